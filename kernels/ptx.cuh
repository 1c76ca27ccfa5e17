// The instructions that C++ has no names for: asynchronous copies, matrix loads, tensor cores, exp2 and reciprocal.
// Nothing else in kernels/ is written in PTX. All of them exist from sm_80 on.

#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

// The block's dynamic shared memory.
__device__ __forceinline__ void* dynamic_shared() {
    extern __shared__ uint4 dynamic_shared_memory[];
    return dynamic_shared_memory;
}

// Where in shared memory a pointer points, as the instructions below want it.
__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Starts copying 16 bytes from global to shared memory, past registers and L1. Unless `present`, nothing is read and
// the 16 bytes become zeros. Both addresses are multiples of 16.
__device__ __forceinline__ void copy_async(void* to, const void* from, bool present) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n" ::"r"(shared_address(to)), "l"(from),
                 "r"(present ? 16 : 0)
                 : "memory");
}

// Waits for all copies that this thread started. Those of other threads are there after the block's next barrier.
__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;\n" ::: "memory"); }

// Copies that this thread has started since the last call are a group.
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }

// Waits for all groups but the last `LEFT`.
template <int LEFT>
__device__ __forceinline__ void wait_for_copies_but() {
    asm volatile("cp.async.wait_group %0;\n" ::"n"(LEFT) : "memory");
}

// Loads four 8 x 8 matrices of 16-bit values. Lane l gives the address of row l % 8 of matrix l / 8, 16 bytes; it gets
// of each matrix the two values at row l / 4, columns 2 * (l % 4) and the next.
__device__ __forceinline__ void load_matrices(uint32_t (&values)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(values[0]), "=r"(values[1]), "=r"(values[2]), "=r"(values[3])
                 : "r"(address));
}

// The same with every matrix transposed: lane l gets rows 2 * (l % 4) and the next of column l / 4.
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&values)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(values[0]), "=r"(values[1]), "=r"(values[2]), "=r"(values[3])
                 : "r"(address));
}

// sums (16 x 8) += a (16 x 16) * b (16 x 8), sums in f32. With g = lane / 4 and c = 2 * (lane % 4) a lane holds
//   sums: rows g (0, 1) and g + 8 (2, 3), columns c and c + 1;
//   a:    rows g (0, 2) and g + 8 (1, 3), columns c and c + 1 (0, 1), the same + 8 (2, 3);
//   b:    column g, rows c and c + 1 (b0), the same + 8 (b1).
template <typename T>
__device__ __forceinline__ void multiply_add(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);

template <>
__device__ __forceinline__ void multiply_add<__half>(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0,
                                                     uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};\n"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
__device__ __forceinline__ void multiply_add<__nv_bfloat16>(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0,
                                                            uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};\n"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// 2^x within 2 units in the last place; 2^-inf = 0. One instruction, where exp2f also looks after denormal results.
__device__ __forceinline__ float exp2_fast(float x) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

// 1 / x within 1 unit in the last place; 1 / inf = 0.
__device__ __forceinline__ float reciprocal_fast(float x) {
    float result;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}
