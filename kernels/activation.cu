// The bias and the activation function between the linear layers of a feed-forward block.
//
// `gelu_*`, `gelu_tanh_*`, `relu_*`, `silu_*`: out = f(x + bias).
//   x, out (rows, width), bias (width) or null. out may be x.
// `*_gated_*`: out = f(x + bias) * (gate + gate_bias).
//   x, gate, out (rows, width), bias, gate_bias (width) or null. out may be x or gate.
//
// Launch: blocks of 32 to 256 threads, best width / 8 rounded up to a multiple of 32, and no more than 128; grid
// (rows / 4, rounded up; width / (8 * threads), rounded up).
//
// A thread takes 8 columns of 4 rows. The loads of all 4 are on their way before the first is computed, a division by
// width is never needed, and the bias is loaded once for the 4.

#include "functions.cuh"

constexpr int ACTIVATION_ROWS = 4;

// `gate` and `gate_bias` are looked at where GATED says so.
template <typename Function, bool GATED, typename T>
__device__ __forceinline__ void activate(T* out, const T* x, const T* gate, const T* __restrict__ bias,
                                         const T* __restrict__ gate_bias, int rows, int width) {
    const int column = (blockIdx.y * blockDim.x + threadIdx.x) * VECTOR;
    if (column >= width) return;
    const int first = blockIdx.x * ACTIVATION_ROWS;
    const size_t start = static_cast<size_t>(first) * width + column;
    uint4 bits[ACTIVATION_ROWS], gates[ACTIVATION_ROWS];
#pragma unroll
    for (int i = 0; i < ACTIVATION_ROWS; ++i) {
        if (first + i < rows) {
            bits[i] = load_bits(x + start + static_cast<size_t>(i) * width);
            if constexpr (GATED) gates[i] = load_bits(gate + start + static_cast<size_t>(i) * width);
        }
    }
    const uint4 bias_bits = load_bits_or_zeros(bias, column);
    const uint4 gate_bias_bits = GATED ? load_bits_or_zeros(gate_bias, column) : bias_bits;
    float biases[VECTOR], gate_biases[VECTOR];
    unpack<T>(bias_bits, biases);
    unpack<T>(gate_bias_bits, gate_biases);
#pragma unroll
    for (int i = 0; i < ACTIVATION_ROWS; ++i) {
        if (first + i < rows) {
            float values[VECTOR], factors[VECTOR];
            unpack<T>(bits[i], values);
            if constexpr (GATED) unpack<T>(gates[i], factors);
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) {
                values[j] = Function::apply(values[j] + biases[j]);
                if constexpr (GATED) values[j] *= factors[j] + gate_biases[j];
            }
            store(out + start + static_cast<size_t>(i) * width, values);
        }
    }
}

#define ACTIVATION(NAME, T, FUNCTION)                                                            \
    extern "C" __global__ void __launch_bounds__(256)                                            \
        NAME(T* out, const T* x, const T* bias, int rows, int width) {                           \
        activate<FUNCTION, false, T>(out, x, nullptr, bias, nullptr, rows, width);               \
    }

#define GATED_ACTIVATION(NAME, T, FUNCTION)                                                                 \
    extern "C" __global__ void __launch_bounds__(256)                                                       \
        NAME(T* out, const T* x, const T* gate, const T* bias, const T* gate_bias, int rows, int width) {   \
        activate<FUNCTION, true, T>(out, x, gate, bias, gate_bias, rows, width);                            \
    }

#define ACTIVATION_OF(TYPE)                                  \
    ACTIVATION(gelu_##TYPE, TYPE, Gelu)                      \
    ACTIVATION(gelu_tanh_##TYPE, TYPE, GeluTanh)             \
    ACTIVATION(relu_##TYPE, TYPE, Relu)                      \
    ACTIVATION(silu_##TYPE, TYPE, Silu)                      \
    GATED_ACTIVATION(gelu_gated_##TYPE, TYPE, Gelu)          \
    GATED_ACTIVATION(gelu_tanh_gated_##TYPE, TYPE, GeluTanh) \
    GATED_ACTIVATION(relu_gated_##TYPE, TYPE, Relu)          \
    GATED_ACTIVATION(silu_gated_##TYPE, TYPE, Silu)

ACTIVATION_OF(f16)
ACTIVATION_OF(bf16)
