/* A CUDA driver over host memory: what streams and memory pools need of one, with the habits that were measured on a
 * card. Everything else that cuda.h declares is generated beside it and answers CUDA_ERROR_NOT_SUPPORTED.
 *
 * Pools hold whole granules of 32 MiB and give out what is asked for. What is freed can be used again at once by the
 * same stream, and goes back to the card after a synchronization. A full card takes the cache of all other pools.
 *
 * Memory is also given out in chunks of 2 MiB, to be put where addresses were kept for it: other addresses of those
 * cannot be touched.
 *
 * Tests steer it through fake_set and read it through fake_get. FAKE_CUDA_DEVICES, FAKE_CUDA_POOLS and FAKE_CUDA_VIRTUAL
 * are read from the environment. One lock around everything: this is for tests, not for speed. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef int CUresult;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long u64;

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, INVALID_DEVICE = 101, NOT_SUPPORTED = 801 };

#define GRANULE (32ull << 20)
#define ROUND_UP(n, to) (((n) + (to) - 1) / (to) * (to))
#define POOLS_MAX 64

/* What tests steer and read, by number. */
enum {
    CAPACITY,     /* bytes of the card */
    NEIGHBOUR,    /* bytes that another process has */
    FAIL_ALLOCS,  /* so many of the next allocations fail for lack of memory */
    FAIL_FREES,   /* so many of the next frees report an error */
    STICKY,       /* an error that every call reports */
    ALLOCS,       /* allocations that were asked for */
    FREES,        /* frees that were asked for */
    POOLS,        /* pools that exist, without the streams' own, and ranges of addresses */
    LIVING,       /* bytes that something lives in, but for mapped ones */
    TRIMS,        /* trims that were asked for */
    MAPPED,       /* bytes that are mapped */
    CONTROLS
};
static u64 control[CONTROLS] = {[CAPACITY] = 4ull << 30};

struct pool {
    int exists;
    u64 reserved, used, pending, most;
};
static struct pool pools[POOLS_MAX] = {[0] = {.exists = 1}};

/* Before each block: where it belongs. Blocks are aligned to 512 bytes, and so is the header. */
struct header {
    u64 magic, bytes;
    int pool; /* -1: none */
};
#define HEADER 512
#define MAGIC 0x504c494d534f4c4cull

/* Addresses that are kept, and how often each of their chunks is mapped. */
#define CHUNK (2ull << 20)
struct range {
    char *whole;
    size_t whole_bytes;
    CUdeviceptr start;
    size_t bytes;
    unsigned char *mapped;
};
static struct range ranges[POOLS_MAX];
/* Chunks that were made and are not mapped anywhere yet. */
static u64 loose;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static u64 plain;
static _Thread_local void *current;
/* The context of device 0; the others follow. */
#define FIRST_CONTEXT 0x1000

static u64 number_from(const char *name, u64 otherwise) {
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : otherwise;
}

void fake_set(int what, u64 value) {
    pthread_mutex_lock(&lock);
    control[what] = value;
    pthread_mutex_unlock(&lock);
}

u64 fake_get(int what) {
    pthread_mutex_lock(&lock);
    u64 value = control[what];
    if (what == POOLS || what == LIVING) {
        value = what == LIVING ? plain : 0;
        for (int i = 0; i < POOLS_MAX; i++)
            if (pools[i].exists) value += what == LIVING ? pools[i].used : i > 0;
        for (int i = 0; what == POOLS && i < POOLS_MAX; i++) value += ranges[i].bytes > 0;
    }
    pthread_mutex_unlock(&lock);
    return value;
}

static u64 free_bytes(void) {
    u64 taken = plain + control[NEIGHBOUR] + control[MAPPED] + loose * CHUNK;
    for (int i = 0; i < POOLS_MAX; i++) taken += pools[i].reserved;
    return taken < control[CAPACITY] ? control[CAPACITY] - taken : 0;
}

static void shrink(struct pool *pool, u64 keep) {
    u64 least = ROUND_UP(pool->used + pool->pending, GRANULE);
    keep = ROUND_UP(keep, GRANULE);
    if (keep < least) keep = least;
    if (pool->reserved > keep) pool->reserved = keep;
}

/* Whether the card has so much, if need be at the cost of all pools but one. */
static int take(u64 bytes, int but) {
    if (bytes <= free_bytes()) return 1;
    for (int i = 0; i < POOLS_MAX; i++)
        if (i != but) {
            pools[i].pending = 0;
            shrink(&pools[i], 0);
        }
    return bytes <= free_bytes();
}

static CUresult give(CUdeviceptr *out, u64 bytes, int pool) {
    char *block = aligned_alloc(HEADER, ROUND_UP(bytes, HEADER) + HEADER);
    if (!block) return OUT_OF_MEMORY;
    *(struct header *)block = (struct header){MAGIC, bytes, pool};
    *out = (CUdeviceptr)(uintptr_t)(block + HEADER);
    return SUCCESS;
}

static CUresult alloc_from(CUdeviceptr *out, size_t bytes, int index) {
    if (control[STICKY]) return (CUresult)control[STICKY];
    control[ALLOCS]++;
    if (bytes == 0) {
        *out = 0;
        return SUCCESS;
    }
    if (control[FAIL_ALLOCS] > 0) {
        control[FAIL_ALLOCS]--;
        return OUT_OF_MEMORY;
    }
    struct pool *pool = &pools[index];
    u64 rounded = ROUND_UP((u64)bytes, 512), wanted = pool->used + rounded;
    u64 missing = wanted > pool->reserved ? ROUND_UP(wanted - pool->reserved, GRANULE) : 0;
    if (pool->most && pool->reserved + missing > ROUND_UP(pool->most, GRANULE)) return OUT_OF_MEMORY;
    if (!take(missing, index)) return OUT_OF_MEMORY;
    CUresult result = give(out, rounded, index);
    if (result == SUCCESS) {
        pool->reserved += missing;
        pool->used += rounded;
        if (pool->pending > pool->reserved - pool->used) pool->pending = pool->reserved - pool->used;
    }
    return result;
}

static CUresult release(CUdeviceptr pointer) {
    if (control[STICKY]) return (CUresult)control[STICKY];
    control[FREES]++;
    if (pointer == 0) return SUCCESS;
    struct header *header = (struct header *)(uintptr_t)(pointer - HEADER);
    if (pointer < 4096 || pointer % HEADER || header->magic != MAGIC) return INVALID_VALUE;
    if (header->pool < 0) {
        plain -= header->bytes;
    } else {
        pools[header->pool].used -= header->bytes;
        pools[header->pool].pending += header->bytes;
    }
    header->magic = 0;
    free(header);
    /* As on a card: the block is free, and what is reported is the error of earlier work. */
    if (control[FAIL_FREES] > 0) {
        control[FAIL_FREES]--;
        return INVALID_VALUE;
    }
    return SUCCESS;
}

static CUresult said(void) {
    pthread_mutex_lock(&lock);
    CUresult result = (CUresult)control[STICKY];
    pthread_mutex_unlock(&lock);
    return result;
}

#define LOCKED(call)                      \
    do {                                  \
        pthread_mutex_lock(&lock);        \
        CUresult result_ = (call);        \
        pthread_mutex_unlock(&lock);      \
        return result_;                   \
    } while (0)

CUresult cuMemAllocAsync(CUdeviceptr *out, size_t bytes, void *stream) { (void)stream; LOCKED(alloc_from(out, bytes, 0)); }
CUresult cuMemFreeAsync(CUdeviceptr pointer, void *stream) { (void)stream; LOCKED(release(pointer)); }
CUresult cuMemFree_v2(CUdeviceptr pointer) { LOCKED(release(pointer)); }
CUresult cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t bytes, void *pool, void *stream) {
    (void)stream;
    LOCKED(alloc_from(out, bytes, (int)(intptr_t)pool));
}

static CUresult alloc_plain(CUdeviceptr *out, size_t bytes) {
    if (control[STICKY]) return (CUresult)control[STICKY];
    control[ALLOCS]++;
    if (bytes == 0) return INVALID_VALUE;
    if (control[FAIL_ALLOCS] > 0) {
        control[FAIL_ALLOCS]--;
        return OUT_OF_MEMORY;
    }
    if (!take(bytes, -1)) return OUT_OF_MEMORY;
    CUresult result = give(out, bytes, -1);
    if (result == SUCCESS) plain += bytes;
    return result;
}
CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes) { LOCKED(alloc_plain(out, bytes)); }

/* The beginning of CUmemPoolProps: type, handles, location (type, number), attributes of another system, largest size. */
struct properties {
    int type, handles, location, device;
    void *security;
    size_t most;
};

static CUresult create(void **out, const struct properties *properties) {
    if (control[STICKY]) return (CUresult)control[STICKY];
    /* Pinned memory of the current context's device, as only that is modelled. */
    if (properties->type != 1 || properties->location != 1) return INVALID_VALUE;
    if (properties->device != (int)(intptr_t)current - FIRST_CONTEXT) return INVALID_VALUE;
    for (int i = 1; i < POOLS_MAX; i++)
        if (!pools[i].exists) {
            pools[i] = (struct pool){.exists = 1, .most = properties->most};
            *out = (void *)(intptr_t)i;
            return SUCCESS;
        }
    return OUT_OF_MEMORY;
}
CUresult cuMemPoolCreate(void **out, const struct properties *properties) { LOCKED(create(out, properties)); }

static CUresult destroy(int index) {
    if (index <= 0 || index >= POOLS_MAX || !pools[index].exists || pools[index].used) return INVALID_VALUE;
    pools[index] = (struct pool){0};
    return SUCCESS;
}
CUresult cuMemPoolDestroy(void *pool) { LOCKED(destroy((int)(intptr_t)pool)); }

static CUresult trim(int index, size_t keep) {
    control[TRIMS]++;
    shrink(&pools[index], keep);
    return (CUresult)control[STICKY];
}
CUresult cuMemPoolTrimTo(void *pool, size_t keep) { LOCKED(trim((int)(intptr_t)pool, keep)); }

static CUresult attribute(int index, int which, u64 *value) {
    if (index < 0 || index >= POOLS_MAX || !pools[index].exists) return INVALID_VALUE;
    switch (which) {
    case 5: *value = pools[index].reserved; return SUCCESS;
    case 7: *value = pools[index].used; return SUCCESS;
    default: return INVALID_VALUE;
    }
}
CUresult cuMemPoolGetAttribute(void *pool, int which, u64 *value) { LOCKED(attribute((int)(intptr_t)pool, which, value)); }
CUresult cuMemPoolSetAttribute(void *pool, int which, void *value) {
    (void)pool;
    /* Only what is set on purpose: the reuse policies, and the threshold, which has to be "keep everything". */
    if (which == 4) return *(u64 *)value == UINT64_MAX ? SUCCESS : INVALID_VALUE;
    return which >= 1 && which <= 3 && *(int *)value == 0 ? SUCCESS : INVALID_VALUE;
}

static CUresult reserve(CUdeviceptr *out, size_t bytes) {
    if (control[STICKY]) return (CUresult)control[STICKY];
    for (int i = 0; i < POOLS_MAX; i++) {
        struct range *range = &ranges[i];
        if (range->bytes) continue;
        size_t whole = bytes + CHUNK;
        char *start = mmap(NULL, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (start == MAP_FAILED) return OUT_OF_MEMORY;
        CUdeviceptr aligned = ROUND_UP((CUdeviceptr)(uintptr_t)start, CHUNK);
        *range = (struct range){start, whole, aligned, bytes, calloc(bytes / CHUNK, 1)};
        *out = aligned;
        return SUCCESS;
    }
    return OUT_OF_MEMORY;
}
CUresult cuMemAddressReserve(CUdeviceptr *out, size_t bytes, size_t alignment, CUdeviceptr where, u64 flags) {
    if (bytes % CHUNK || alignment != CHUNK || where || flags) return INVALID_VALUE;
    LOCKED(reserve(out, bytes));
}

static CUresult unreserve(CUdeviceptr start, size_t bytes) {
    for (int i = 0; i < POOLS_MAX; i++) {
        struct range *range = &ranges[i];
        if (!range->bytes || range->start != start || range->bytes != bytes) continue;
        for (size_t chunk = 0; chunk < bytes / CHUNK; chunk++)
            if (range->mapped[chunk]) return INVALID_VALUE;
        munmap(range->whole, range->whole_bytes);
        free(range->mapped);
        *range = (struct range){0};
        return SUCCESS;
    }
    return INVALID_VALUE;
}
CUresult cuMemAddressFree(CUdeviceptr start, size_t bytes) { LOCKED(unreserve(start, bytes)); }

/* The beginning of CUmemAllocationProp: type, handles, location (type, number). */
struct chunk_properties {
    int type, handles, location, device;
};

static CUresult create_chunk(u64 *handle, size_t bytes, const struct chunk_properties *properties) {
    if (control[STICKY]) return (CUresult)control[STICKY];
    if (bytes != CHUNK || properties->type != 1 || properties->location != 1) return INVALID_VALUE;
    if (properties->device != (int)(intptr_t)current - FIRST_CONTEXT) return INVALID_VALUE;
    control[ALLOCS]++;
    if (control[FAIL_ALLOCS] > 0) {
        control[FAIL_ALLOCS]--;
        return OUT_OF_MEMORY;
    }
    if (!take(CHUNK, -1)) return OUT_OF_MEMORY;
    loose++;
    *handle = MAGIC;
    return SUCCESS;
}
CUresult cuMemCreate(u64 *handle, size_t bytes, const struct chunk_properties *properties, u64 flags) {
    if (flags) return INVALID_VALUE;
    LOCKED(create_chunk(handle, bytes, properties));
}
/* The memory stays as long as it is mapped. */
CUresult cuMemRelease(u64 handle) { return handle == MAGIC ? said() : INVALID_VALUE; }

static unsigned char *chunk_at(CUdeviceptr at, size_t bytes) {
    for (int i = 0; i < POOLS_MAX; i++) {
        struct range *range = &ranges[i];
        if (range->bytes && at >= range->start && at + bytes <= range->start + range->bytes && at % CHUNK == 0)
            return range->mapped + (at - range->start) / CHUNK;
    }
    return NULL;
}

static CUresult map_chunk(CUdeviceptr at, size_t bytes, u64 handle) {
    unsigned char *mapped = chunk_at(at, bytes);
    if (bytes != CHUNK || handle != MAGIC || !mapped || *mapped || !loose) return INVALID_VALUE;
    *mapped = 1;
    loose--;
    control[MAPPED] += CHUNK;
    return SUCCESS;
}
CUresult cuMemMap(CUdeviceptr at, size_t bytes, size_t offset, u64 handle, u64 flags) {
    if (offset || flags) return INVALID_VALUE;
    LOCKED(map_chunk(at, bytes, handle));
}

/* CUmemAccessDesc: location (type, number), what may be done. */
struct access {
    int location, device, flags;
};

static CUresult allow(CUdeviceptr at, size_t bytes, const struct access *access) {
    unsigned char *mapped = chunk_at(at, bytes);
    if (!mapped || bytes % CHUNK || access->location != 1 || access->flags != 3) return INVALID_VALUE;
    for (size_t chunk = 0; chunk < bytes / CHUNK; chunk++)
        if (!mapped[chunk]) return INVALID_VALUE;
    return mprotect((void *)(uintptr_t)at, bytes, PROT_READ | PROT_WRITE) ? OUT_OF_MEMORY : SUCCESS;
}
CUresult cuMemSetAccess(CUdeviceptr at, size_t bytes, const struct access *access, size_t count) {
    if (count != 1) return INVALID_VALUE;
    LOCKED(allow(at, bytes, access));
}

static CUresult unmap_chunk(CUdeviceptr at, size_t bytes) {
    unsigned char *mapped = chunk_at(at, bytes);
    if (bytes != CHUNK || !mapped || !*mapped) return INVALID_VALUE;
    *mapped = 0;
    control[MAPPED] -= CHUNK;
    control[TRIMS]++;
    /* Whoever still uses it finds out. */
    void *memory = (void *)(uintptr_t)at;
    mmap(memory, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    return (CUresult)control[STICKY];
}
CUresult cuMemUnmap(CUdeviceptr at, size_t bytes) { LOCKED(unmap_chunk(at, bytes)); }

CUresult cuMemGetAllocationGranularity(size_t *granularity, const struct chunk_properties *properties, int option) {
    (void)properties, (void)option;
    *granularity = CHUNK;
    return SUCCESS;
}

static CUresult synchronize(void) {
    for (int i = 0; i < POOLS_MAX; i++) pools[i].pending = 0;
    return (CUresult)control[STICKY];
}
CUresult cuCtxSynchronize(void) { LOCKED(synchronize()); }
CUresult cuStreamSynchronize(void *stream) { (void)stream; LOCKED(synchronize()); }

static CUresult info(size_t *free_out, size_t *total) {
    *free_out = free_bytes();
    *total = control[CAPACITY];
    return (CUresult)control[STICKY];
}
CUresult cuMemGetInfo_v2(size_t *free_out, size_t *total) { LOCKED(info(free_out, total)); }

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, void *stream) {
    (void)stream;
    memcpy((void *)(uintptr_t)to, from, bytes);
    return said();
}
CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, void *stream) {
    (void)stream;
    memcpy(to, (void *)(uintptr_t)from, bytes);
    return said();
}
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, void *stream) {
    (void)stream;
    memmove((void *)(uintptr_t)to, (void *)(uintptr_t)from, bytes);
    return said();
}
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, void *stream) {
    (void)stream;
    memset((void *)(uintptr_t)to, value, bytes);
    return said();
}

CUresult cuInit(unsigned flags) { (void)flags; return number_from("FAKE_CUDA_DEVICES", 1) ? SUCCESS : NO_DEVICE; }
CUresult cuDriverGetVersion(int *version) { *version = 13000; return SUCCESS; }
CUresult cuDeviceGetCount(int *count) { *count = (int)number_from("FAKE_CUDA_DEVICES", 1); return SUCCESS; }
CUresult cuDeviceGet(int *device, int ordinal) {
    *device = ordinal;
    return ordinal >= 0 && (u64)ordinal < number_from("FAKE_CUDA_DEVICES", 1) ? SUCCESS : INVALID_DEVICE;
}
CUresult cuDeviceGetName(char *name, int len, int device) {
    (void)device;
    snprintf(name, (size_t)len, "Fake GPU");
    return SUCCESS;
}
CUresult cuDeviceGetPCIBusId(char *id, int len, int device) {
    snprintf(id, (size_t)len, "0000:%02x:00.0", device);
    return SUCCESS;
}
CUresult cuDeviceGetAttribute(int *value, int which, int device) {
    (void)device;
    switch (which) {
    case 75: *value = 9; break;                                      /* compute capability */
    case 76: *value = 0; break;
    case 102: *value = (int)number_from("FAKE_CUDA_VIRTUAL", 1); break; /* virtual memory */
    case 115: *value = (int)number_from("FAKE_CUDA_POOLS", 1); break; /* memory pools */
    default: *value = 1;
    }
    return SUCCESS;
}
CUresult cuDeviceGetGraphMemAttribute(int device, int which, u64 *value) {
    (void)device, (void)which;
    *value = 0;
    return SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(void **context, int device) {
    *context = (void *)(intptr_t)(FIRST_CONTEXT + device);
    return SUCCESS;
}
CUresult cuDevicePrimaryCtxRelease_v2(int device) { (void)device; return SUCCESS; }
CUresult cuCtxGetCurrent(void **context) { *context = current; return SUCCESS; }
CUresult cuCtxSetCurrent(void *context) { current = context; return SUCCESS; }
CUresult cuStreamCreate(void **stream, unsigned flags) {
    static intptr_t next = 0x100;
    (void)flags;
    *stream = (void *)__atomic_add_fetch(&next, 1, __ATOMIC_RELAXED);
    return SUCCESS;
}
CUresult cuStreamDestroy_v2(void *stream) { (void)stream; return SUCCESS; }
CUresult cuStreamWaitEvent(void *stream, void *event, unsigned flags) { (void)stream, (void)event, (void)flags; return SUCCESS; }
CUresult cuEventCreate(void **event, unsigned flags) { (void)flags; *event = (void *)0x1; return SUCCESS; }
CUresult cuEventDestroy_v2(void *event) { (void)event; return SUCCESS; }
CUresult cuEventRecord(void *event, void *stream) { (void)event, (void)stream; return SUCCESS; }

CUresult cuGetErrorName(CUresult error, const char **text) {
    *text = error == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_OF_THE_FAKE";
    return SUCCESS;
}
CUresult cuGetErrorString(CUresult error, const char **text) {
    *text = error == OUT_OF_MEMORY ? "out of memory" : "an error of the fake driver";
    return SUCCESS;
}
