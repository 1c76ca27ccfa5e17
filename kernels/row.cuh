// A row of a matrix held by a warp, or by several, as f32 in registers: read once, whatever is computed of it.
//
// The lanes of a row hold its vectors in turn: lane l those from l on, LANES apart, so that a warp's accesses are whole
// lines. Rows of up to CAPACITY values fit; what a shorter row leaves free holds zeros.

#pragma once

#include "common.cuh"

template <int WARPS, int VECTORS>
struct Row {
    static constexpr int LANES = WARPS * WARP;
    static constexpr int CAPACITY = LANES * VECTORS * VECTOR;
    // Threads of a block: a row on several warps has a block to itself.
    static constexpr int THREADS = LANES > 128 ? LANES : 128;
    static constexpr int ROWS = THREADS / LANES;

    float values[VECTORS][VECTOR];

    // The row of this thread. From `rows` on there is none and the thread has nothing to do.
    static __device__ __forceinline__ int index() {
        return ROWS == 1 ? blockIdx.x : blockIdx.x * ROWS + threadIdx.x / LANES;
    }

    // Calls visit(values, column) for each vector that this thread holds.
    template <typename Visit>
    __device__ __forceinline__ void each(int width, Visit visit) {
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            const int column = (i * LANES + threadIdx.x % LANES) * VECTOR;
            if (column < width) visit(values[i], column);
        }
    }

    // What this thread holds of a row in memory, as it was loaded.
    struct Fetched {
        uint4 bits[VECTORS];
    };

    // Starts loading a row, or zeros where there is none. Rows fetched one after the other are on their way together:
    // nothing here waits for a value, and an absent row is no branch.
    template <typename T>
    static __device__ __forceinline__ Fetched fetch(const T* row, int width) {
        Fetched fetched;
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            const int column = (i * LANES + threadIdx.x % LANES) * VECTOR;
            fetched.bits[i] = make_uint4(0, 0, 0, 0);
            if (row != nullptr && column < width) fetched.bits[i] = load_bits(row + column);
        }
        return fetched;
    }

    template <typename T>
    __device__ __forceinline__ void set(const Fetched& row) {
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) unpack<T>(row.bits[i], values[i]);
    }

    template <typename T>
    __device__ __forceinline__ void add(const Fetched& row) {
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            float more[VECTOR];
            unpack<T>(row.bits[i], more);
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) values[i][j] += more[j];
        }
    }

    template <typename T>
    __device__ __forceinline__ void write(T* row, int width) {
        each(width, [&](float(&values)[VECTOR], int column) { store(row + column, values); });
    }

    // Rounds the values as `write` does: what follows is computed of what was written.
    template <typename T>
    __device__ __forceinline__ void round() {
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
#pragma unroll
            for (int j = 0; j < VECTOR; j += 2) {
                const float2 pair = unpack(Pair<T>::pack(values[i][j], values[i][j + 1]));
                values[i][j] = pair.x;
                values[i][j + 1] = pair.y;
            }
        }
    }

    // The combination of one value from each lane of the row, for all of them. To be called by the whole block where
    // the row is on several warps.
    template <typename Combine>
    static __device__ __forceinline__ float combine(float value, Combine combine) {
#pragma unroll
        for (int distance = WARP / 2; distance > 0; distance /= 2) {
            value = combine(value, __shfl_xor_sync(~0u, value, distance));
        }
        if constexpr (WARPS > 1) {
            __shared__ float parts[WARPS];
            __syncthreads();  // An earlier combination has been read.
            if (threadIdx.x % WARP == 0) parts[threadIdx.x / WARP] = value;
            __syncthreads();
            value = parts[0];
#pragma unroll
            for (int i = 1; i < WARPS; ++i) value = combine(value, parts[i]);
        }
        return value;
    }

    static __device__ __forceinline__ float sum(float value) {
        return combine(value, [](float a, float b) { return a + b; });
    }

    // Largest magnitude.
    __device__ __forceinline__ float magnitude() const {
        float largest = 0.0f;
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) largest = fmaxf(largest, fabsf(values[i][j]));
        }
        return combine(largest, [](float a, float b) { return fmaxf(a, b); });
    }

    // LayerNorm. The mean is taken off before squaring: exact where it is large beside the deviation.
    template <typename T>
    __device__ __forceinline__ void normalize(const T* weight, const T* bias, int width, float epsilon) {
        float total = 0.0f;
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) total += values[i][j];
        }
        const float share = reciprocal_fast(width), mean = sum(total) * share;
        float squares = 0.0f;
        each(width, [&](float(&values)[VECTOR], int) {
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) {
                values[j] -= mean;
                squares += values[j] * values[j];
            }
        });
        const auto weights = fetch(weight, width), biases = fetch(bias, width);
        const float scale = rsqrtf(sum(squares) * share + epsilon);
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            float factors[VECTOR], offsets[VECTOR];
            unpack<T>(weights.bits[i], factors);
            unpack<T>(biases.bits[i], offsets);
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) values[i][j] = values[i][j] * scale * factors[j] + offsets[j];
        }
    }
};
