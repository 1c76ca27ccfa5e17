// Activation functions that memory does not have to wait for: at 4 TB/s an H200 has some 30 instructions for each
// element that is read and written, converting it included, and erff, tanhf or a division takes most of them.

#pragma once

#include "common.cuh"

// The value itself.
struct Identity {
    static __device__ __forceinline__ float apply(float x) { return x; }
};

// x * (1 + erf(x / sqrt 2)) / 2, which is max(x, 0) - |x| * erfc(|x| / sqrt 2) / 2: nothing is taken from 1, so that
// small results of negative x keep their digits. erfc is Abramowitz and Stegun's 7.1.26, within 1.5e-7.
struct Gelu {
    static __device__ __forceinline__ float apply(float x) {
        const float size = fabsf(x);
        // Their p / sqrt 2, and half of their coefficients.
        const float t = reciprocal_fast(0.23164189f * size + 1.0f);
        float sum = 0.5307027145f;
        sum = sum * t - 0.7265760135f;
        sum = sum * t + 0.7107068705f;
        sum = sum * t - 0.142248368f;
        sum = sum * t + 0.127414796f;
        // erfc(|x| / sqrt 2) / 2: exp(-x^2 / 2) is 2^(-x^2 / (2 ln 2)).
        const float half_erfc = sum * t * exp2_fast(x * x * -0.72134752f);
        return fmaxf(x, 0.0f) - size * half_erfc;
    }
};

// x * sigmoid(argument).
__device__ __forceinline__ float times_sigmoid(float x, float argument) {
    return x * reciprocal_fast(1.0f + exp2_fast(argument * -1.44269504f));
}

// x * (1 + tanh(u)) / 2 with u = sqrt(2 / pi) * (x + 0.044715 x^3), which is x * sigmoid(2 u).
struct GeluTanh {
    static __device__ __forceinline__ float apply(float x) {
        return times_sigmoid(x, x * (0.0713548163f * x * x + 1.5957691216f));
    }
};

struct Relu {
    static __device__ __forceinline__ float apply(float x) { return fmaxf(x, 0.0f); }
};

// x * sigmoid(x).
struct Silu {
    static __device__ __forceinline__ float apply(float x) { return times_sigmoid(x, x); }
};
