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

// What a warp's queries see of a tile of keys.
struct View {
    // None of them sees a key from here on; less than 1: none sees any.
    int count;
    // Whether all of them see all keys before, and at least one.
    bool alike;
    // If not, each sees what this says: `query` is the first of this lane's, `key` the first of this lane's in the tile,
    // both counted from the start of the row.
    Sight sight;
    int query;
    int key;
};

// How keys are kept from being seen.
enum class Mask { NONE, END, SIGHT };

// Makes weights of the scores of the first PAIRS * 16 keys of a tile, two in a register, as tensor cores take them for the
// product with the values; the others' become 0. `sums`, the weighted sums of values before this tile, are brought to the new
// largest score; before the `first` tile there are none.
template <int PAIRS, Mask MASK, typename T, int COLUMNS>
__device__ __forceinline__ void weigh_pairs(float (&scores)[KEYS / 8][4], uint32_t (&weights)[KEYS / 16][4],
                                            float (&sums)[COLUMNS][4], Seen& seen, float scale, bool first,
                                            const View& view) {
    if constexpr (MASK == Mask::END) {
        // The end is among the last of them.
#pragma unroll
        for (int n = 2 * PAIRS - 2; n < 2 * PAIRS; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                if (n * 8 + threadIdx.x % 4 * 2 + i % 2 >= view.count) scores[n][i] = -INFINITY;
            }
        }
    }
    float base[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        if constexpr (MASK == Mask::SIGHT) {
            const int i = view.query + half * 8, low = view.sight.low(i);
            // Both bounds in one comparison: keys below `low` are far above any count.
            const unsigned visible = max(0, view.sight.high(i) - low), from = view.key - low;
#pragma unroll
            for (int n = 0; n < 2 * PAIRS; ++n) {
                if (from + n * 8 >= visible) scores[n][2 * half] = -INFINITY;
                if (from + n * 8 + 1 >= visible) scores[n][2 * half + 1] = -INFINITY;
            }
        }
        float best = seen.largest[half];
#pragma unroll
        for (int n = 0; n < 2 * PAIRS; ++n) best = fmaxf(best, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
        best = fmaxf(best, __shfl_xor_sync(~0u, best, 1));
        best = fmaxf(best, __shfl_xor_sync(~0u, best, 2));
        // A query that has seen no key yet has weights exp2(-inf - 0) = 0, not exp2(-inf + inf).
        base[half] = MASK == Mask::SIGHT && best == -INFINITY ? 0.0f : best * scale;
        // A branch where there is one anyway: among long rows it would cost more than it saves.
        if (MASK == Mask::NONE || !first) {
            const float before = exp2_fast(seen.largest[half] * scale - base[half]);
            seen.totals[half] *= before;
#pragma unroll
            for (int column = 0; column < COLUMNS; ++column) {
                sums[column][2 * half] *= before;
                sums[column][2 * half + 1] *= before;
            }
        }
        seen.largest[half] = best;
    }
#pragma unroll
    for (int n = 0; n < KEYS / 8; ++n) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            uint32_t& pair = weights[n / 2][n % 2 * 2 + half];
            if (n >= 2 * PAIRS) {
                pair = 0;
                continue;
            }
            const float left = exp2_fast(scores[n][2 * half] * scale - base[half]);
            const float right = exp2_fast(scores[n][2 * half + 1] * scale - base[half]);
            // Rounded as everywhere else, whatever multiplication comes before.
            seen.totals[half] = __fadd_rn(seen.totals[half], left + right);
            pair = pack_bits<T>(left, right);
        }
    }
}

// The same for a tile of which not every query sees all keys. A branch for each number of products: branches between them
// would have every exp2 waited for.
template <Mask MASK, typename T, int COLUMNS>
__device__ __forceinline__ void weigh_masked(float (&scores)[KEYS / 8][4], uint32_t (&weights)[KEYS / 16][4],
                                             float (&sums)[COLUMNS][4], Seen& seen, float scale, bool first,
                                             const View& view) {
    static_assert(KEYS / 16 == 4, "there is a branch for each");
    if (view.count > 48) {
        weigh_pairs<4, MASK, T>(scores, weights, sums, seen, scale, first, view);
    } else if (view.count > 32) {
        weigh_pairs<3, MASK, T>(scores, weights, sums, seen, scale, first, view);
    } else if (view.count > 16) {
        weigh_pairs<2, MASK, T>(scores, weights, sums, seen, scale, first, view);
    } else {
        weigh_pairs<1, MASK, T>(scores, weights, sums, seen, scale, first, view);
    }
}

// The same for a tile of which every query sees all keys if not EDGE.
template <bool EDGE, typename T, int COLUMNS>
__device__ __forceinline__ void weigh(float (&scores)[KEYS / 8][4], uint32_t (&weights)[KEYS / 16][4],
                                      float (&sums)[COLUMNS][4], Seen& seen, float scale, bool first,
                                      const View& view) {
    if (!EDGE) {
        weigh_pairs<KEYS / 16, Mask::NONE, T>(scores, weights, sums, seen, scale, first, view);
    } else if (view.alike) {
        weigh_masked<Mask::END, T>(scores, weights, sums, seen, scale, first, view);
    } else {
        weigh_masked<Mask::SIGHT, T>(scores, weights, sums, seen, scale, first, view);
    }
}

// 1 / the sum of all weights of a query, of which every lane of four has a share.
__device__ __forceinline__ float inverse_total(float total) {
    total += __shfl_xor_sync(~0u, total, 1);
    total += __shfl_xor_sync(~0u, total, 2);
    return reciprocal_fast(total);
}
