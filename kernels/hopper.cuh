// The instructions that only Hopper has (sm_90a): copies of whole tiles, barriers that count their bytes, and products
// that a group of four warps starts and waits for later. What uses this file is compiled to nothing for other cards.

#pragma once

#include <cuda.h>

#include "ptx.cuh"

// Barriers in shared memory.

__device__ __forceinline__ void init_barrier(uint64_t* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

// Makes initialized barriers visible to the copy engine, and to the other blocks of the cluster.
__device__ __forceinline__ void publish_barriers() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Arrives, and has the barrier wait for so many bytes as well.
__device__ __forceinline__ void arrive_expecting(uint64_t* barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}

// Arrives at the barrier that block `rank` of the cluster has at this place. It orders nothing but what the tensor
// cores have read, and that is over when they were waited for. An arrival that releases to the cluster would be a fence
// of the whole card's memory, a microsecond each.
__device__ __forceinline__ void arrive_at(uint64_t* barrier, int rank) {
    asm volatile(
        "{\n.reg .b32 remote;\n"
        "mapa.shared::cluster.u32 remote, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}\n" ::"r"(shared_address(barrier)),
        "r"(rank)
        : "memory");
}

// Waits until the phase of this parity is over.
__device__ __forceinline__ void wait_for(uint64_t* barrier, int parity) {
    asm volatile(
        "{\n.reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}\n" ::"r"(shared_address(barrier)),
        "r"(parity)
        : "memory");
}

// The cluster.

__device__ __forceinline__ int cluster_rank() {
    int rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

__device__ __forceinline__ void sync_cluster() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n" ::: "memory");
}

// Copies.

__device__ __forceinline__ void prefetch_map(const CUtensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Starts copying the box at (column, row) of a matrix, which `barrier` counts the bytes of. What lies outside the
// matrix becomes zeros.
__device__ __forceinline__ void copy_tile(void* to, const CUtensorMap* map, int column, int row, uint64_t* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(to)),
        "l"(map), "r"(column), "r"(row), "r"(shared_address(barrier))
        : "memory");
}

// The same to this place of every block in `blocks`, a bit for each; the barrier at the same place there counts.
__device__ __forceinline__ void copy_tile_to(uint16_t blocks, void* to, const CUtensorMap* map, int column, int row,
                                             uint64_t* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(to)),
        "l"(map), "r"(column), "r"(row), "r"(shared_address(barrier)), "h"(blocks)
        : "memory");
}

// Warps.

template <int REGISTERS>
__device__ __forceinline__ void give_up_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// Waits at named barrier `id` until `threads` have come, those included that only arrive.
__device__ __forceinline__ void wait_at(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ void arrive_at_named(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Products.

// Describes a tile in shared memory to the tensor cores: rows of 128 bytes, swizzled by the copy engine, 8 rows in
// 1,024 bytes. Its address is a multiple of 1,024. A step of 16 bytes along a row adds 1.
__device__ __forceinline__ uint64_t describe_tile(const void* tile) {
    const uint64_t address = (shared_address(tile) & 0x3ffff) >> 4;
    return address | (uint64_t(1) << 16) | (uint64_t(1024 >> 4) << 32) | (uint64_t(1) << 62);
}

// Orders accesses to registers before products that use them.
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until all but the last `LEFT` groups of products are done.
template <int LEFT>
__device__ __forceinline__ void wait_for_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

// Makes what this thread has written to shared memory, or copied there, visible to the tensor cores. Of other threads'
// they see what is there after the block's next barrier.
__device__ __forceinline__ void show_to_tensor_cores() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Keeps the compiler from moving accesses to sums across this place: it does not know that they are still being
// computed.
__device__ __forceinline__ void pin(int (&d)[64]) {
#pragma unroll
    for (int i = 0; i < 64; ++i) asm volatile("" : "+r"(d[i])::"memory");
}
__device__ __forceinline__ void pin(float (&d)[64]) {
#pragma unroll
    for (int i = 0; i < 64; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
template <int COLUMNS>
__device__ __forceinline__ void pin(float (&d)[COLUMNS][4]) {
#pragma unroll
    for (int i = 0; i < 4 * COLUMNS; ++i) asm volatile("" : "+f"(d[i / 4][i % 4])::"memory");
}

// What the tensor cores multiply.
struct Int8 {
    using Sum = int;
};
struct E4m3 {
    using Sum = float;
};
struct F16 {
    using Sum = float;
};
struct Bf16 {
    using Sum = float;
};

// d (64 x 128) = a (64 x 32 bytes) * b transposed (128 x 32 bytes), plus d if `accumulate`; both are described tiles.
// Of a warp's 16 rows lane l has rows l / 4 (0, 1) and the same + 8 (2, 3), of every 8 columns 2 * (l % 4) and the
// next.
template <typename KIND>
__device__ __forceinline__ void multiply_add_tile(typename KIND::Sum (&d)[64], uint64_t a, uint64_t b, int accumulate);

// SHAPE names the depth and the types, REGISTER is the constraint of a sum, END what floating point adds: signs.
#define MULTIPLY_ADD_TILE(KIND, SHAPE, REGISTER, END)                                                               \
    template <>                                                                                                     \
    __device__ __forceinline__ void multiply_add_tile<KIND>(KIND::Sum (&d)[64], uint64_t a, uint64_t b,             \
                                                            int accumulate) {                                       \
        asm volatile(                                                                                               \
            "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"                                                            \
            "wgmma.mma_async.sync.aligned.m64n128" SHAPE " {"                                                       \
            "%0, %1, %2, %3, %4, %5, %6, %7, "                                                                      \
            "%8, %9, %10, %11, %12, %13, %14, %15, "                                                                \
            "%16, %17, %18, %19, %20, %21, %22, %23, "                                                              \
            "%24, %25, %26, %27, %28, %29, %30, %31, "                                                              \
            "%32, %33, %34, %35, %36, %37, %38, %39, "                                                              \
            "%40, %41, %42, %43, %44, %45, %46, %47, "                                                              \
            "%48, %49, %50, %51, %52, %53, %54, %55, "                                                              \
            "%56, %57, %58, %59, %60, %61, %62, %63"                                                                \
            "}, %64, %65, p" END ";\n}\n"                                                                           \
            : "+" REGISTER(d[0]), "+" REGISTER(d[1]), "+" REGISTER(d[2]), "+" REGISTER(d[3]),                       \
              "+" REGISTER(d[4]), "+" REGISTER(d[5]), "+" REGISTER(d[6]), "+" REGISTER(d[7]),                       \
              "+" REGISTER(d[8]), "+" REGISTER(d[9]), "+" REGISTER(d[10]), "+" REGISTER(d[11]),                     \
              "+" REGISTER(d[12]), "+" REGISTER(d[13]), "+" REGISTER(d[14]), "+" REGISTER(d[15]),                   \
              "+" REGISTER(d[16]), "+" REGISTER(d[17]), "+" REGISTER(d[18]), "+" REGISTER(d[19]),                   \
              "+" REGISTER(d[20]), "+" REGISTER(d[21]), "+" REGISTER(d[22]), "+" REGISTER(d[23]),                   \
              "+" REGISTER(d[24]), "+" REGISTER(d[25]), "+" REGISTER(d[26]), "+" REGISTER(d[27]),                   \
              "+" REGISTER(d[28]), "+" REGISTER(d[29]), "+" REGISTER(d[30]), "+" REGISTER(d[31]),                   \
              "+" REGISTER(d[32]), "+" REGISTER(d[33]), "+" REGISTER(d[34]), "+" REGISTER(d[35]),                   \
              "+" REGISTER(d[36]), "+" REGISTER(d[37]), "+" REGISTER(d[38]), "+" REGISTER(d[39]),                   \
              "+" REGISTER(d[40]), "+" REGISTER(d[41]), "+" REGISTER(d[42]), "+" REGISTER(d[43]),                   \
              "+" REGISTER(d[44]), "+" REGISTER(d[45]), "+" REGISTER(d[46]), "+" REGISTER(d[47]),                   \
              "+" REGISTER(d[48]), "+" REGISTER(d[49]), "+" REGISTER(d[50]), "+" REGISTER(d[51]),                   \
              "+" REGISTER(d[52]), "+" REGISTER(d[53]), "+" REGISTER(d[54]), "+" REGISTER(d[55]),                   \
              "+" REGISTER(d[56]), "+" REGISTER(d[57]), "+" REGISTER(d[58]), "+" REGISTER(d[59]),                   \
              "+" REGISTER(d[60]), "+" REGISTER(d[61]), "+" REGISTER(d[62]), "+" REGISTER(d[63])                    \
            : "l"(a), "l"(b), "r"(accumulate));                                                                     \
    }

MULTIPLY_ADD_TILE(Int8, "k32.s32.s8.s8", "r", "")
MULTIPLY_ADD_TILE(E4m3, "k32.f32.e4m3.e4m3", "f", ", 1, 1")

#undef MULTIPLY_ADD_TILE

// The same for 64 columns and depths of 16, of 16-bit floats: d (64 x 64) in groups of 8 columns.
//
// multiply_add_narrow: a (64 x 16) and b (64 x 16, transposed) are both described.
// multiply_add_across: b (16 x 64) is described as it lies, not transposed: a depth of 16 further adds 128. Of a lane
// holds what multiply_add (ptx.cuh) takes of the warp's 16 rows; its registers are not to be written before the products
// were waited for.
template <typename KIND>
__device__ __forceinline__ void multiply_add_narrow(float (&d)[8][4], uint64_t a, uint64_t b, int accumulate);
template <typename KIND>
__device__ __forceinline__ void multiply_add_across(float (&d)[8][4], const uint32_t (&a)[4], uint64_t b);

#define SUMS_OF_8(d, i) \
    "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3]), "+f"(d[i + 1][0]), "+f"(d[i + 1][1]), \
        "+f"(d[i + 1][2]), "+f"(d[i + 1][3])
#define MULTIPLY_ADD_64(KIND, TYPE)                                                                                 \
    template <>                                                                                                     \
    __device__ __forceinline__ void multiply_add_narrow<KIND>(float (&d)[8][4], uint64_t a, uint64_t b,             \
                                                              int accumulate) {                                     \
        asm volatile(                                                                                               \
            "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"                                                            \
            "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " {"                                        \
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                \
            "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"                        \
            "}, %32, %33, p, 1, 1, 0, 0;\n}\n"                                                                      \
            : SUMS_OF_8(d, 0), SUMS_OF_8(d, 2), SUMS_OF_8(d, 4), SUMS_OF_8(d, 6)                                    \
            : "l"(a), "l"(b), "r"(accumulate));                                                                     \
    }                                                                                                               \
    template <>                                                                                                     \
    __device__ __forceinline__ void multiply_add_across<KIND>(float (&d)[8][4], const uint32_t (&a)[4],             \
                                                              uint64_t b) {                                         \
        asm volatile(                                                                                               \
            "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " {"                                        \
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                \
            "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"                        \
            "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;\n"                                                           \
            : SUMS_OF_8(d, 0), SUMS_OF_8(d, 2), SUMS_OF_8(d, 4), SUMS_OF_8(d, 6)                                    \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                                  \
    }

MULTIPLY_ADD_64(F16, "f16")
MULTIPLY_ADD_64(Bf16, "bf16")

#undef MULTIPLY_ADD_64
#undef SUMS_OF_8
