// Rotary position embedding, in place.
//
//   x         (tokens, (heads + 2 * kv_heads) * size): a token's queries, keys and values side by side. Queries and
//             keys are turned, values stay. size is a multiple of 16.
//   cosines, sines  (limit, size / 2), f32: of position * frequency, one for each pair of a head.
//   positions (tokens): positions from `limit` on are taken for the last; the host checks.
//
// `rotary_*` turns pairs (i, i + size / 2) of a head, as most models store them; `rotary_interleaved_*` (2 i, 2 i + 1).
//
// Launch: grid (tokens), block of 32 to 1024 threads, best (heads + kv_heads) * size / 16 where that is among them. A
// thread turns 8 pairs at a time: two accesses of 16 bytes each way. All heads of a token read the same few lines of
// the tables, which L1 holds.

#include "common.cuh"

template <typename T, bool INTERLEAVED>
__device__ __forceinline__ void rotary(T* x, const float* __restrict__ cosines, const float* __restrict__ sines,
                                       const uint32_t* __restrict__ positions, uint32_t limit, int heads, int kv_heads,
                                       int size) {
    const size_t token = blockIdx.x;
    const size_t entry = static_cast<size_t>(min(positions[token], limit - 1)) * (size / 2);
    T* row = x + token * (heads + 2 * kv_heads) * size;
    const int each = size / (2 * VECTOR);
    for (int i = threadIdx.x; i < (heads + kv_heads) * each; i += blockDim.x) {
        const int head = i / each, pair = i % each * VECTOR;
        T* low = row + head * size + (INTERLEAVED ? 2 * pair : pair);
        T* high = low + (INTERLEAVED ? VECTOR : size / 2);
        float a[VECTOR], b[VECTOR], cosine[VECTOR], sine[VECTOR];
        load(low, a);
        load(high, b);
        load(cosines + entry + pair, cosine);
        load(sines + entry + pair, sine);
        auto turn = [&](float& first, float& second, int at) {
            const float turned = first * cosine[at] - second * sine[at];
            second = second * cosine[at] + first * sine[at];
            first = turned;
        };
#pragma unroll
        for (int at = 0; at < VECTOR; ++at) {
            if constexpr (INTERLEAVED) {
                float(&half)[VECTOR] = at < VECTOR / 2 ? a : b;
                turn(half[2 * at % VECTOR], half[2 * at % VECTOR + 1], at);
            } else {
                turn(a[at], b[at], at);
            }
        }
        store(low, a);
        store(high, b);
    }
}

#define ROTARY(NAME, T, INTERLEAVED)                                                                               \
    extern "C" __global__ void NAME(T* x, const float* cosines, const float* sines, const uint32_t* positions,     \
                                    uint32_t limit, int heads, int kv_heads, int size) {                           \
        rotary<T, INTERLEAVED>(x, cosines, sines, positions, limit, heads, kv_heads, size);                        \
    }

ROTARY(rotary_f16, f16, false)
ROTARY(rotary_bf16, bf16, false)
ROTARY(rotary_interleaved_f16, f16, true)
ROTARY(rotary_interleaved_bf16, bf16, true)
