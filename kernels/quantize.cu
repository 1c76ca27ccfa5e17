// Activations in 8 bits, one scale for each row, and the way back after an integer product.
//
// `quantize_i8_*_N`, `quantize_f8_*_N`: out = x / scale, in int8 or in fp8 (e4m3).
//   x (rows, width), out (rows, width) bytes, scales (rows) f32. The largest magnitude of a row becomes 127 or 448, so
//   that an error is at most 1/254 of it in int8, and in fp8 1/16 of the value itself (of values from 2^-6 / 448 of the
//   largest on). A row that nowhere reaches 1e-30 is taken for zeros and has scale 0. Widths up to N, multiples of 8.
//   Launch: N = 1024: 128 threads, grid (rows / 4, rounded up); 4096: 128 threads, grid (rows); 16384: 256 threads,
//   grid (rows).
//
// `dequantize_*`, `dequantize_gelu_*`, ...: out = f(sums * row_scale * column_scale + bias).
//   sums (rows, width) int32, row_scales (rows) and column_scales (width) f32, bias (width) or null, out (rows, width).
//   Launch: as activation.cu's.

#include <cuda_fp8.h>

#include "functions.cuh"
#include "row.cuh"

struct Int8 {
    static constexpr float LARGEST = 127.0f;

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

    static __device__ __forceinline__ uint32_t pack(const float* values) {
        const uint32_t low = pair(values[0], values[1]), high = pair(values[2], values[3]);
        return low | high << 16;
    }

    static __device__ __forceinline__ uint32_t pair(float low, float high) {
        return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, __NV_E4M3);
    }
};

template <typename Form, typename T, int WARPS, int VECTORS>
__device__ __forceinline__ void quantize(uint8_t* __restrict__ out, float* __restrict__ scales,
                                         const T* __restrict__ x, int rows, int width) {
    using Row = Row<WARPS, VECTORS>;
    const int index = Row::index();
    if (index >= rows) return;
    const size_t start = static_cast<size_t>(index) * width;
    Row row;
    row.template set<T>(Row::fetch(x + start, width));
    const float largest = row.magnitude();
    const bool zeros = largest < 1e-30f;
    const float inverse = zeros ? 0.0f : Form::LARGEST / largest;
    if (threadIdx.x % Row::LANES == 0) scales[index] = zeros ? 0.0f : largest / Form::LARGEST;
    row.each(width, [&](float(&values)[VECTOR], int column) {
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) values[j] *= inverse;
        *reinterpret_cast<uint2*>(out + start + column) = make_uint2(Form::pack(values), Form::pack(values + 4));
    });
}

#define QUANTIZE(NAME, FORM, T, WARPS, VECTORS)                                           \
    extern "C" __global__ void __launch_bounds__(WARPS > 4 ? WARPS * WARP : 128)          \
        NAME(uint8_t* out, float* scales, const T* x, int rows, int width) {              \
        quantize<FORM, T, WARPS, VECTORS>(out, scales, x, rows, width);                   \
    }

#define QUANTIZE_OF(FORM, NAME, TYPE)                            \
    QUANTIZE(quantize_##NAME##_##TYPE##_1024, FORM, TYPE, 1, 4)  \
    QUANTIZE(quantize_##NAME##_##TYPE##_4096, FORM, TYPE, 4, 4)  \
    QUANTIZE(quantize_##NAME##_##TYPE##_16384, FORM, TYPE, 8, 8)

QUANTIZE_OF(Int8, i8, f16)
QUANTIZE_OF(Int8, i8, bf16)
QUANTIZE_OF(Float8, f8, f16)
QUANTIZE_OF(Float8, f8, bf16)

constexpr int DEQUANTIZE_ROWS = 4;

// A thread takes 8 columns of 4 rows, for the reasons of activation.cu.
template <typename Function, typename T>
__device__ __forceinline__ void dequantize(T* __restrict__ out, const int* __restrict__ sums,
                                           const float* __restrict__ row_scales,
                                           const float* __restrict__ column_scales, const T* __restrict__ bias,
                                           int rows, int width) {
    const int column = (blockIdx.y * blockDim.x + threadIdx.x) * VECTOR;
    if (column >= width) return;
    const int first = blockIdx.x * DEQUANTIZE_ROWS;
    const size_t start = static_cast<size_t>(first) * width + column;
    int4 low[DEQUANTIZE_ROWS], high[DEQUANTIZE_ROWS];
    float scales[DEQUANTIZE_ROWS];
#pragma unroll
    for (int i = 0; i < DEQUANTIZE_ROWS; ++i) {
        if (first + i < rows) {
            const auto* from = reinterpret_cast<const int4*>(sums + start + static_cast<size_t>(i) * width);
            low[i] = from[0];
            high[i] = from[1];
            scales[i] = row_scales[first + i];
        }
    }
    float factors[VECTOR], biases[VECTOR];
    load(column_scales + column, factors);
    unpack<T>(load_bits_or_zeros(bias, column), biases);
#pragma unroll
    for (int i = 0; i < DEQUANTIZE_ROWS; ++i) {
        if (first + i < rows) {
            const int4 a = low[i], b = high[i];
            const int whole[VECTOR] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
            float values[VECTOR];
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) {
                values[j] = Function::apply(static_cast<float>(whole[j]) * (scales[i] * factors[j]) + biases[j]);
            }
            store(out + start + static_cast<size_t>(i) * width, values);
        }
    }
}

#define DEQUANTIZE(NAME, T, FUNCTION)                                                                               \
    extern "C" __global__ void __launch_bounds__(256)                                                               \
        NAME(T* out, const int* sums, const float* row_scales, const float* column_scales, const T* bias, int rows, \
             int width) {                                                                                           \
        dequantize<FUNCTION>(out, sums, row_scales, column_scales, bias, rows, width);                              \
    }

#define DEQUANTIZE_OF(TYPE)                                \
    DEQUANTIZE(dequantize_##TYPE, TYPE, Identity)          \
    DEQUANTIZE(dequantize_gelu_##TYPE, TYPE, Gelu)         \
    DEQUANTIZE(dequantize_gelu_tanh_##TYPE, TYPE, GeluTanh) \
    DEQUANTIZE(dequantize_relu_##TYPE, TYPE, Relu)         \
    DEQUANTIZE(dequantize_silu_##TYPE, TYPE, Silu)

DEQUANTIZE_OF(f16)
DEQUANTIZE_OF(bf16)
