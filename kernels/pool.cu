// One f32 vector for each row out of its tokens' hidden states.
//
//   out     (rows, width), f32.
//   hidden  (tokens, width).
//   starts  (rows + 1): each row's first token, and the end of the last row. A row without tokens gives zeros.
//   pooling 0: the mean of the tokens; 1: the first; 2: the last.
//   normalize  other than 0: divides by the vector's length, or by 1e-12 where that is shorter.
//
// Launch: grid (rows), 512 threads.
//
// A block has a row, so that the length of its vector is known without a second kernel. Its threads are laid over the
// row's columns, 8 each, and what is left over of them in groups over its tokens: 4 groups for a width of 1024. With 8
// tokens of each on their way that is 64 KiB a block. One multiprocessor is busy with a row of 8192 tokens for some 0.2
// ms, which is little beside the layers before it; spreading it over blocks would cost every other batch a launch. Sums
// are f32 in an order that depends on nothing but the row's length and the width.

#include "common.cuh"

constexpr int POOL_THREADS = 512;
constexpr int POOL_WARPS = POOL_THREADS / WARP;
// Tokens that a thread loads at once.
constexpr int POOL_LOADS = 8;

enum Pooling { MEAN = 0, FIRST = 1, LAST = 2 };

template <typename T>
__device__ __forceinline__ void pool(float* __restrict__ out, const T* __restrict__ hidden,
                                     const int* __restrict__ starts, int width, int pooling, int normalize) {
    // Sums of each group; groups * columns of vectors are no more than there are threads.
    __shared__ float sums[POOL_THREADS][VECTOR];
    __shared__ float squares[POOL_WARPS];

    const int start = starts[blockIdx.x], end = starts[blockIdx.x + 1];
    const int vectors = width / VECTOR;
    const int across = min(vectors, POOL_THREADS), groups = POOL_THREADS / across;
    const int group = threadIdx.x / across, lane = threadIdx.x % across;
    int from = start, until = end;
    if (pooling == FIRST) until = min(end, start + 1);
    if (pooling == LAST) from = max(start, end - 1);
    const float share = until > from ? 1.0f / (until - from) : 0.0f;

    float* row = out + static_cast<size_t>(blockIdx.x) * width;
    float square = 0.0f;
    // One turn, unless the row is wider than the block.
    for (int first = 0; first < vectors; first += across) {
        const int column = (first + lane) * VECTOR;
        float total[VECTOR] = {};
        if (group < groups && column < width) {
            for (int at = from + group; at < until; at += POOL_LOADS * groups) {
                uint4 bits[POOL_LOADS];
#pragma unroll
                for (int i = 0; i < POOL_LOADS; ++i) {
                    const int token = at + i * groups;
                    bits[i] = make_uint4(0, 0, 0, 0);
                    if (token < until) bits[i] = load_bits(hidden + static_cast<size_t>(token) * width + column);
                }
#pragma unroll
                for (int i = 0; i < POOL_LOADS; ++i) {
                    float values[VECTOR];
                    unpack<T>(bits[i], values);
#pragma unroll
                    for (int j = 0; j < VECTOR; ++j) total[j] += values[j];
                }
            }
        }
        if (groups > 1) {
            store(sums[threadIdx.x], total);
            __syncthreads();
            // The first group adds up what the others have.
            for (int other = 1; group == 0 && other < groups; ++other) {
#pragma unroll
                for (int j = 0; j < VECTOR; ++j) total[j] += sums[other * across + lane][j];
            }
        }
        if (group == 0 && column < width) {
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) {
                total[j] *= share;
                square += total[j] * total[j];
            }
            store(row + column, total);
        }
    }
    if (!normalize) return;

    square = warp_sum(square);
    if (threadIdx.x % WARP == 0) squares[threadIdx.x / WARP] = square;
    __syncthreads();
    float length = 0.0f;
#pragma unroll
    for (int i = 0; i < POOL_WARPS; ++i) length += squares[i];
    const float scale = 1.0f / fmaxf(sqrtf(length), 1e-12f);
    // Every thread finds in `row` what it has written itself.
    for (int first = 0; first < vectors; first += across) {
        const int column = (first + lane) * VECTOR;
        if (group == 0 && column < width) {
            float values[VECTOR];
            load(row + column, values);
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) values[j] *= scale;
            store(row + column, values);
        }
    }
}

#define POOL(TYPE)                                                                                                  \
    extern "C" __global__ void __launch_bounds__(POOL_THREADS, 2)                                                   \
        pool_##TYPE(float* out, const TYPE* hidden, const int* starts, int width, int pooling, int normalize) {     \
        pool(out, hidden, starts, width, pooling, normalize);                                                       \
    }

POOL(f16)
POOL(bf16)
