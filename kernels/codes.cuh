// 8-bit codes of a row that is held in registers, with one scale for the row.

#pragma once

#include <cuda_fp8.h>

#include <type_traits>

#include "row.cuh"

struct Int8 {
    static constexpr float LARGEST = 127.0f;
    // src/ops/eight_bit.rs says why.
    static constexpr bool TURNED = true;

    // Four values, to the nearest.
    static __device__ __forceinline__ uint32_t pack(const float* values) {
        uint32_t bytes = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) bytes |= (__float2int_rn(values[i]) & 0xff) << (8 * i);
        return bytes;
    }
};

struct Float8 {
    static constexpr float LARGEST = 448.0f;
    static constexpr bool TURNED = false;

    static __device__ __forceinline__ uint32_t pack(const float* values) {
        const uint32_t low = pair(values[0], values[1]), high = pair(values[2], values[3]);
        return low | high << 16;
    }

    static __device__ __forceinline__ uint32_t pair(float low, float high) {
        return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, __NV_E4M3);
    }
};

// Sums and differences of the 8 values, by the Hadamard matrix; the order of the additions is that of the CPU's twin.
__device__ __forceinline__ void turn(float (&values)[VECTOR]) {
    static_assert(VECTOR == 8);
#pragma unroll
    for (int distance = 4; distance > 0; distance /= 2) {
#pragma unroll
        for (int at = 0; at < VECTOR; ++at) {
            if (at & distance) continue;
            const float a = values[at], b = values[at + distance];
            values[at] = a + b;
            values[at + distance] = a - b;
        }
    }
}

// Writes the row's codes and its scale; the values in registers are no longer those of the row.
template <typename Form, typename Row>
__device__ __forceinline__ void write_codes(Row& row, uint8_t* codes, float* scale, int width) {
    if constexpr (Form::TURNED) row.each(width, [](float(&values)[VECTOR], int) { turn(values); });
    const float largest = row.magnitude();
    const bool zeros = largest < 1e-30f;
    const float inverse = zeros ? 0.0f : Form::LARGEST / largest;
    if (threadIdx.x % Row::LANES == 0) *scale = zeros ? 0.0f : largest / Form::LARGEST;
    row.each(width, [&](float(&values)[VECTOR], int column) {
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) values[j] *= inverse;
        *reinterpret_cast<uint2*>(codes + column) = make_uint2(Form::pack(values), Form::pack(values + 4));
    });
}

// No codes are wanted.
struct Uncoded {};

// The codes of what a pass has just written as T, if it is to write codes.
template <typename Form, typename T, typename Row>
__device__ __forceinline__ void write_codes_of(Row& row, uint8_t* codes, float* scale, int width) {
    if constexpr (!std::is_same_v<Form, Uncoded>) {
        row.template round<T>();
        write_codes<Form>(row, codes, scale, width);
    }
}
