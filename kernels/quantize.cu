// Activations in 8 bits, one scale for each row, and the way back after an integer product.
//
// `quantize_i8_*_N`, `quantize_f8_*_N`: out = x / scale, in int8 or in fp8 (e4m3).
//   x (rows, width), out (rows, width) bytes, scales (rows) f32. In int8 x is turned first, 8 values at a time. The
//   largest magnitude of a row becomes 127 or 448, so that an error is at most 1/254 of it in int8, and in fp8 1/16 of the value itself (of values from 2^-6 / 448 of the
//   largest on). A row that nowhere reaches 1e-30 is taken for zeros and has scale 0. Widths up to N, multiples of 8.
//   Launch: N = 1024: 128 threads, grid (rows / 4, rounded up); 4096: 128 threads, grid (rows); 16384: 256 threads,
//   grid (rows).
//
// `dequantize_i8_*`, `dequantize_gelu_i8_*`, ...: out = f(sums * row_scale * column_scale + bias).
//   sums (rows, width) int32, row_scales (rows) and column_scales (width) f32, bias (width) or null, out (rows, width).
// `dequantize_f8_*`, ...: the same with sums in f32.
//   Launch: as activation.cu's.

#include "codes.cuh"
#include "functions.cuh"

template <typename Form, typename T, int WARPS, int VECTORS>
__device__ __forceinline__ void quantize(uint8_t* __restrict__ out, float* __restrict__ scales,
                                         const T* __restrict__ x, int rows, int width) {
    using Row = Row<WARPS, VECTORS>;
    const int index = Row::index();
    if (index >= rows) return;
    const size_t start = static_cast<size_t>(index) * width;
    Row row;
    row.template set<T>(Row::fetch(x + start, width));
    write_codes<Form>(row, out + start, scales + index, width);
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

// Four sums, of one access.
template <typename Sum>
struct Quarter;

template <>
struct Quarter<int> {
    using type = int4;
};

template <>
struct Quarter<float> {
    using type = float4;
};

// A thread takes 8 columns of 4 rows, for the reasons of activation.cu.
template <typename Function, typename Sum, typename T>
__device__ __forceinline__ void dequantize(T* __restrict__ out, const Sum* __restrict__ sums,
                                           const float* __restrict__ row_scales,
                                           const float* __restrict__ column_scales, const T* __restrict__ bias,
                                           int rows, int width) {
    const int column = (blockIdx.y * blockDim.x + threadIdx.x) * VECTOR;
    if (column >= width) return;
    const int first = blockIdx.x * DEQUANTIZE_ROWS;
    const size_t start = static_cast<size_t>(first) * width + column;
    using Four = typename Quarter<Sum>::type;
    Four low[DEQUANTIZE_ROWS], high[DEQUANTIZE_ROWS];
    float scales[DEQUANTIZE_ROWS];
#pragma unroll
    for (int i = 0; i < DEQUANTIZE_ROWS; ++i) {
        if (first + i < rows) {
            const auto* from = reinterpret_cast<const Four*>(sums + start + static_cast<size_t>(i) * width);
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
            const Four a = low[i], b = high[i];
            const Sum whole[VECTOR] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
            float values[VECTOR];
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) {
                values[j] = Function::apply(static_cast<float>(whole[j]) * (scales[i] * factors[j]) + biases[j]);
            }
            store(out + start + static_cast<size_t>(i) * width, values);
        }
    }
}

#define DEQUANTIZE(NAME, SUM, T, FUNCTION)                                                                          \
    extern "C" __global__ void __launch_bounds__(256)                                                               \
        NAME(T* out, const SUM* sums, const float* row_scales, const float* column_scales, const T* bias, int rows, \
             int width) {                                                                                           \
        dequantize<FUNCTION>(out, sums, row_scales, column_scales, bias, rows, width);                              \
    }

#define DEQUANTIZE_OF(FORM, SUM, TYPE)                                       \
    DEQUANTIZE(dequantize_##FORM##_##TYPE, SUM, TYPE, Identity)              \
    DEQUANTIZE(dequantize_gelu_##FORM##_##TYPE, SUM, TYPE, Gelu)             \
    DEQUANTIZE(dequantize_gelu_tanh_##FORM##_##TYPE, SUM, TYPE, GeluTanh)    \
    DEQUANTIZE(dequantize_relu_##FORM##_##TYPE, SUM, TYPE, Relu)             \
    DEQUANTIZE(dequantize_silu_##FORM##_##TYPE, SUM, TYPE, Silu)

DEQUANTIZE_OF(i8, int, f16)
DEQUANTIZE_OF(i8, int, bf16)
DEQUANTIZE_OF(f8, float, f16)
DEQUANTIZE_OF(f8, float, bf16)
