// LayerNorm, with the residual and the bias that come before it: out = norm(x + residual + bias).
//
//   x, residual, out, sum  (rows, width); residual may be null. out may be x or residual.
//   sum       what was normalized, rounded to T, for models that go on with it; may be null, or be x or residual.
//   bias      (width), of the layer that made x; may be null.
//   weight, offset  (width), of the norm; offset may be null.
//
// `add_norm_i8_*_N` and `add_norm_f8_*_N` write the codes (rows, width) and the scales (rows) of `out` too, as
// quantize.cu does: what multiplies them next need not have it read again.
//
// `add_norm_*_N` takes widths up to N, multiples of 8; the smallest N that fits is the fastest.
// Launch: 128 threads. Up to 1024 a row is one warp's: grid (rows / 4, rounded up). Above it is a block's: grid (rows).
//
// A row is read and written once, which is all the time it takes: 6 bytes an element with a residual. A row on one warp
// needs no barrier, and its 4 vectors a lane of either input, all loaded before the first is used, keep enough bytes in
// flight; what is wider is cut so that no lane has more than 64 values in registers.
// Statistics are f32, of the unrounded sum.

#include "codes.cuh"

template <typename Form, typename T, int WARPS, int VECTORS>
__device__ __forceinline__ void add_norm(T* out, T* sum, uint8_t* codes, float* scales, const T* x, const T* residual,
                                         const T* __restrict__ bias, const T* __restrict__ weight,
                                         const T* __restrict__ offset, int rows, int width, float epsilon) {
    using Row = Row<WARPS, VECTORS>;
    const int index = Row::index();
    if (index >= rows) return;
    const size_t start = static_cast<size_t>(index) * width;
    const auto own = Row::fetch(x + start, width);
    const auto other = Row::fetch(residual == nullptr ? nullptr : residual + start, width);
    const auto biases = Row::fetch(bias, width);
    Row row;
    row.template set<T>(own);
    row.template add<T>(other);
    row.template add<T>(biases);
    // Each thread writes only what it has read itself, after it has.
    if (sum != nullptr) row.write(sum + start, width);
    row.normalize(weight, offset, width, epsilon);
    row.write(out + start, width);
    write_codes_of<Form, T>(row, codes + start, scales + index, width);
}

#define ADD_NORM(NAME, T, WARPS, VECTORS)                                                                           \
    extern "C" __global__ void __launch_bounds__(128)                                                               \
        NAME(T* out, T* sum, const T* x, const T* residual, const T* bias, const T* weight, const T* offset,        \
             int rows, int width, float epsilon) {                                                                  \
        add_norm<Uncoded, T, WARPS, VECTORS>(out, sum, nullptr, nullptr, x, residual, bias, weight, offset, rows,   \
                                             width, epsilon);                                                       \
    }

#define ADD_NORM_OF(TYPE)                        \
    ADD_NORM(add_norm_##TYPE##_256, TYPE, 1, 1)  \
    ADD_NORM(add_norm_##TYPE##_512, TYPE, 1, 2)  \
    ADD_NORM(add_norm_##TYPE##_768, TYPE, 1, 3)  \
    ADD_NORM(add_norm_##TYPE##_1024, TYPE, 1, 4) \
    ADD_NORM(add_norm_##TYPE##_2048, TYPE, 4, 2) \
    ADD_NORM(add_norm_##TYPE##_4096, TYPE, 4, 4) \
    ADD_NORM(add_norm_##TYPE##_8192, TYPE, 4, 8)

ADD_NORM_OF(f16)
ADD_NORM_OF(bf16)

#define ADD_NORM_CODED(NAME, FORM, T, WARPS, VECTORS)                                                               \
    extern "C" __global__ void __launch_bounds__(128)                                                               \
        NAME(T* out, T* sum, uint8_t* codes, float* scales, const T* x, const T* residual, const T* bias,           \
             const T* weight, const T* offset, int rows, int width, float epsilon) {                                \
        add_norm<FORM, T, WARPS, VECTORS>(out, sum, codes, scales, x, residual, bias, weight, offset, rows, width,  \
                                          epsilon);                                                                 \
    }

#define ADD_NORM_CODED_OF(NAME, FORM, TYPE)                         \
    ADD_NORM_CODED(add_norm_##NAME##_##TYPE##_256, FORM, TYPE, 1, 1)  \
    ADD_NORM_CODED(add_norm_##NAME##_##TYPE##_512, FORM, TYPE, 1, 2)  \
    ADD_NORM_CODED(add_norm_##NAME##_##TYPE##_768, FORM, TYPE, 1, 3)  \
    ADD_NORM_CODED(add_norm_##NAME##_##TYPE##_1024, FORM, TYPE, 1, 4) \
    ADD_NORM_CODED(add_norm_##NAME##_##TYPE##_2048, FORM, TYPE, 4, 2) \
    ADD_NORM_CODED(add_norm_##NAME##_##TYPE##_4096, FORM, TYPE, 4, 4) \
    ADD_NORM_CODED(add_norm_##NAME##_##TYPE##_8192, FORM, TYPE, 4, 8)

ADD_NORM_CODED_OF(i8, Int8, f16)
ADD_NORM_CODED_OF(i8, Int8, bf16)
ADD_NORM_CODED_OF(f8, Float8, f16)
ADD_NORM_CODED_OF(f8, Float8, bf16)
