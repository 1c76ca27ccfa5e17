// What all kernels share: the two 16-bit types, 16-byte accesses and sums over a warp.
//
// Every kernel is a template in a .cu file, instantiated at its end behind extern "C" names that say the type, such as
// `gelu_f16`. Activations are 16 bits wide, arithmetic between a load and a store is f32. Matrices are row-major
// without gaps; pointers to them and to parameters are multiples of 16 bytes, and widths multiples of 8, so that every
// access is one of 16 bytes. The CPU version in src/ops is the specification.

#pragma once

#include "ptx.cuh"

using f16 = __half;
using bf16 = __nv_bfloat16;

constexpr int WARP = 32;
// Values of a 16-byte access.
constexpr int VECTOR = 8;

__device__ __forceinline__ float2 unpack(__half2 pair) { return __half22float2(pair); }
__device__ __forceinline__ float2 unpack(__nv_bfloat162 pair) { return __bfloat1622float2(pair); }

// Two values of a type in one register.
template <typename T>
struct Pair;

template <>
struct Pair<f16> {
    using type = __half2;
    static __device__ __forceinline__ __half2 pack(float low, float high) { return __floats2half2_rn(low, high); }
};

template <>
struct Pair<bf16> {
    using type = __nv_bfloat162;
    static __device__ __forceinline__ __nv_bfloat162 pack(float low, float high) {
        return __floats2bfloat162_rn(low, high);
    }
};

// Two values, rounded and packed as tensor cores take them.
template <typename T>
__device__ __forceinline__ uint32_t pack_bits(float low, float high) {
    const auto pair = Pair<T>::pack(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
}

// The values of 16 loaded bytes.
template <typename T>
__device__ __forceinline__ void unpack(const uint4& bits, float (&values)[VECTOR]) {
    const auto* pairs = reinterpret_cast<const typename Pair<T>::type*>(&bits);
#pragma unroll
    for (int i = 0; i < VECTOR / 2; ++i) {
        const float2 pair = unpack(pairs[i]);
        values[2 * i] = pair.x;
        values[2 * i + 1] = pair.y;
    }
}

template <typename T>
__device__ __forceinline__ uint4 load_bits(const T* from) {
    return *reinterpret_cast<const uint4*>(from);
}

template <typename T>
__device__ __forceinline__ void load(const T* from, float (&values)[VECTOR]) {
    unpack<T>(load_bits(from), values);
}

__device__ __forceinline__ void load(const float* from, float (&values)[VECTOR]) {
    const float4 low = reinterpret_cast<const float4*>(from)[0], high = reinterpret_cast<const float4*>(from)[1];
    values[0] = low.x, values[1] = low.y, values[2] = low.z, values[3] = low.w;
    values[4] = high.x, values[5] = high.y, values[6] = high.z, values[7] = high.w;
}

// 16 bytes of an array, or zeros where it is null. Not a branch but a condition of the load, so that the values can be
// unpacked when they are needed and other loads start before.
template <typename T>
__device__ __forceinline__ uint4 load_bits_or_zeros(const T* base, size_t at) {
    uint4 bits = make_uint4(0, 0, 0, 0);
    if (base != nullptr) bits = load_bits(base + at);
    return bits;
}

template <typename T>
__device__ __forceinline__ void store(T* to, const float (&values)[VECTOR]) {
    uint4 bits;
    auto* pairs = reinterpret_cast<typename Pair<T>::type*>(&bits);
#pragma unroll
    for (int i = 0; i < VECTOR / 2; ++i) pairs[i] = Pair<T>::pack(values[2 * i], values[2 * i + 1]);
    *reinterpret_cast<uint4*>(to) = bits;
}

__device__ __forceinline__ void store(float* to, const float (&values)[VECTOR]) {
    reinterpret_cast<float4*>(to)[0] = make_float4(values[0], values[1], values[2], values[3]);
    reinterpret_cast<float4*>(to)[1] = make_float4(values[4], values[5], values[6], values[7]);
}

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
    for (int distance = WARP / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(~0u, value, distance);
    return value;
}
