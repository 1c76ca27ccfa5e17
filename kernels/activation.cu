// The bias and the activation function between the linear layers of a feed-forward block.
//
// `gelu_*`, `gelu_tanh_*`, `relu_*`, `silu_*`: out = f(x + bias).
//   x, out (rows, width), bias (width) or null. out may be x.
// `*_gated_*`: out = f(x's left half + bias) * (x's right half + bias).
//   x (rows, 2 * width), out (rows, width), bias (2 * width) or null. out must not overlap x.
//
// Launch: blocks of 32 to 256 threads, best width / 8 rounded up to a multiple of 32, and no more than 128; grid
// (rows / 4, rounded up; width / (8 * threads), rounded up).
//
// A thread takes 8 columns of 4 rows. The loads of all 4 are on their way before the first is computed, a division by
// width is never needed, and the bias is loaded once for the 4.

#include "functions.cuh"

constexpr int ACTIVATION_ROWS = 4;

template <typename Function, bool GATED, typename T>
__device__ __forceinline__ void activate(T* out, const T* x, const T* __restrict__ bias, int rows, int width) {
    const int column = (blockIdx.y * blockDim.x + threadIdx.x) * VECTOR;
    if (column >= width) return;
    const int first = blockIdx.x * ACTIVATION_ROWS;
    const size_t stride = GATED ? 2 * static_cast<size_t>(width) : width;
    const T* from = x + first * stride + column;
    uint4 bits[ACTIVATION_ROWS], gates[ACTIVATION_ROWS];
#pragma unroll
    for (int i = 0; i < ACTIVATION_ROWS; ++i) {
        if (first + i < rows) {
            bits[i] = load_bits(from + i * stride);
            if constexpr (GATED) gates[i] = load_bits(from + i * stride + width);
        }
    }
    const uint4 bias_bits = load_bits_or_zeros(bias, column);
    const uint4 gate_bias_bits = GATED ? load_bits_or_zeros(bias, width + column) : bias_bits;
    float biases[VECTOR], gate_biases[VECTOR];
    unpack<T>(bias_bits, biases);
    unpack<T>(gate_bias_bits, gate_biases);
    T* to = out + static_cast<size_t>(first) * width + column;
#pragma unroll
    for (int i = 0; i < ACTIVATION_ROWS; ++i) {
        if (first + i < rows) {
            float values[VECTOR], gate[VECTOR];
            unpack<T>(bits[i], values);
            if constexpr (GATED) unpack<T>(gates[i], gate);
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) {
                values[j] = Function::apply(values[j] + biases[j]);
                if constexpr (GATED) values[j] *= gate[j] + gate_biases[j];
            }
            store(to + static_cast<size_t>(i) * width, values);
        }
    }
}

#define ACTIVATION(NAME, T, FUNCTION, GATED)                                                     \
    extern "C" __global__ void __launch_bounds__(256)                                            \
        NAME(T* out, const T* x, const T* bias, int rows, int width) {                           \
        activate<FUNCTION, GATED>(out, x, bias, rows, width);                                    \
    }

#define ACTIVATION_OF(TYPE)                                         \
    ACTIVATION(gelu_##TYPE, TYPE, Gelu, false)                      \
    ACTIVATION(gelu_tanh_##TYPE, TYPE, GeluTanh, false)             \
    ACTIVATION(relu_##TYPE, TYPE, Relu, false)                      \
    ACTIVATION(silu_##TYPE, TYPE, Silu, false)                      \
    ACTIVATION(gelu_gated_##TYPE, TYPE, Gelu, true)                 \
    ACTIVATION(gelu_tanh_gated_##TYPE, TYPE, GeluTanh, true)        \
    ACTIVATION(relu_gated_##TYPE, TYPE, Relu, true)                 \
    ACTIVATION(silu_gated_##TYPE, TYPE, Silu, true)

ACTIVATION_OF(f16)
ACTIVATION_OF(bf16)
