// What both kinds of attention share: which keys a query sees, and how scores become weights (FlashAttention-2).

#pragma once

#include "common.cuh"

// Keys of a tile.
constexpr int KEYS = 64;

// Where a row lies, and what its queries see.
struct Sight {
    int length;
    int back;
    int ahead;

    // The keys that query i sees: from low(i) on, below high(i).
    __device__ __forceinline__ int low(int i) const { return max(0, i - back); }
    __device__ __forceinline__ int high(int i) const { return min(length, i + ahead + 1); }
};

// Of 16 queries and a tile of keys a lane holds parts of queries lane / 4 and lane / 4 + 8: of every 8 keys those at
// 2 * (lane % 4) and the next, for the former (0, 1) and the latter (2, 3). That is how tensor cores return products.

// What a lane has seen so far of its two queries.
struct Seen {
    // The largest score.
    float largest[2] = {-INFINITY, -INFINITY};
    // This lane's share of the sum of weights exp(score - largest).
    float totals[2] = {0.0f, 0.0f};
};

// Makes weights of the scores of a tile, two in a register, as tensor cores take them for the product with the values;
// `sums`, the weighted sums of values before this tile, are brought to the new largest score. Without EDGE every query
// sees all keys. Otherwise the warp's queries see none from `count` on, and which of the others each sees `sight` says:
// `query` is the first of this lane's, `key` the first of this lane's in the tile, counted from the start of the row.
template <bool EDGE, typename T, int COLUMNS>
__device__ __forceinline__ void weigh(float (&scores)[KEYS / 8][4], uint32_t (&weights)[KEYS / 16][4],
                                      float (&sums)[COLUMNS][4], Seen& seen, float scale, int count, Sight sight,
                                      int query, int key) {
    // A product is over 16 keys: which of the tile's are needed at all.
    auto needed = [&](int pair) { return !EDGE || pair * 16 < count; };
    float base[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        if constexpr (EDGE) {
            const int i = query + half * 8, low = sight.low(i);
            // Both bounds in one comparison: keys below `low` are far above any count.
            const unsigned visible = max(0, sight.high(i) - low), first = key - low;
#pragma unroll
            for (int n = 0; n < KEYS / 8; ++n) {
                if (first + n * 8 >= visible) scores[n][2 * half] = -INFINITY;
                if (first + n * 8 + 1 >= visible) scores[n][2 * half + 1] = -INFINITY;
            }
        }
        float best = seen.largest[half];
#pragma unroll
        for (int n = 0; n < KEYS / 8; ++n) {
            if (needed(n / 2)) best = fmaxf(best, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
        }
        best = fmaxf(best, __shfl_xor_sync(~0u, best, 1));
        best = fmaxf(best, __shfl_xor_sync(~0u, best, 2));
        // A query that has seen no key yet has weights exp2(-inf - 0) = 0, not exp2(-inf + inf).
        base[half] = EDGE && best == -INFINITY ? 0.0f : best * scale;
        const float before = exp2_fast(seen.largest[half] * scale - base[half]);
        seen.largest[half] = best;
        seen.totals[half] *= before;
#pragma unroll
        for (int column = 0; column < COLUMNS; ++column) {
            sums[column][2 * half] *= before;
            sums[column][2 * half + 1] *= before;
        }
    }
#pragma unroll
    for (int n = 0; n < KEYS / 8; ++n) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            uint32_t& pair = weights[n / 2][n % 2 * 2 + half];
            if (needed(n / 2)) {
                const float left = exp2_fast(scores[n][2 * half] * scale - base[half]);
                const float right = exp2_fast(scores[n][2 * half + 1] * scale - base[half]);
                seen.totals[half] += left + right;
                pair = pack_bits<T>(left, right);
            } else {
                pair = 0;
            }
        }
    }
}

// 1 / the sum of all weights of a query, of which every lane of four has a share.
__device__ __forceinline__ float inverse_total(float total) {
    total += __shfl_xor_sync(~0u, total, 1);
    total += __shfl_xor_sync(~0u, total, 2);
    return reciprocal_fast(total);
}
