/* Kernels that fail on a real card when they are told to: preloaded into a program that is linked with the CUDA driver.
 *
 *     cc -O1 -shared -fPIC -o launch_faults.so launch_faults.c -ldl
 *     PLIMSOLL_LAUNCH_FAULT=FILE LD_PRELOAD=./launch_faults.so plimsoll serve ...
 *
 * As soon as FILE is there, the next kernel that the program launches fails, once, and FILE is gone:
 *
 *     refuse   in it: the launch is refused, as one that asks for too much; nothing else is wrong
 *     wild     in it: the kernel gets addresses that are nobody's, so that the context is lost
 *
 * Kernels of cuBLAS do not pass here, nor those of a recorded graph.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LAUNCH_OUT_OF_RESOURCES = 701, PARAMETERS_MAX = 64 };
/* Addresses of a card are above this, what kernels get as numbers is below. */
static const uint64_t LEAST_ADDRESS = (uint64_t)1 << 33;
static const uint64_t NOBODYS = 0x10;

typedef int (*Launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
typedef int (*ParameterInfo)(void*, size_t, size_t*, size_t*);

/* The first letter of what the file says, which is taken away; 0 if there is none. */
static int told(void) {
    const char* path = getenv("PLIMSOLL_LAUNCH_FAULT");
    if (path == NULL || access(path, R_OK) != 0) return 0;
    FILE* file = fopen(path, "r");
    if (file == NULL) return 0;
    int letter = fgetc(file);
    fclose(file);
    /* Of several threads one. */
    return unlink(path) == 0 ? letter : 0;
}

int cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   void* stream, void** parameters, void** extra) {
    static Launch launch;
    static ParameterInfo info;
    if (launch == NULL) launch = (Launch)dlsym(RTLD_NEXT, "cuLaunchKernel");
    if (info == NULL) info = (ParameterInfo)dlsym(RTLD_NEXT, "cuFuncGetParamInfo");
    int letter = told();
    if (letter == 'r') return LAUNCH_OUT_OF_RESOURCES;
    void* wild[PARAMETERS_MAX];
    if (letter == 'w' && info != NULL && parameters != NULL) {
        size_t at, size;
        for (size_t i = 0; i < PARAMETERS_MAX && info(function, i, &at, &size) == 0; i++) {
            uint64_t value = 0;
            wild[i] = parameters[i];
            if (size == sizeof value) memcpy(&value, parameters[i], size);
            if (value >= LEAST_ADDRESS) wild[i] = (void*)&NOBODYS;
        }
        parameters = wild;
    }
    return launch(function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra);
}
