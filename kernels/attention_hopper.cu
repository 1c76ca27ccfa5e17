// Attention as in attention.cu, with its arguments and one more, for heads of 64 on Hopper: a group of four warps starts its
// products at once (wgmma), operands come from shared memory without passing registers, and there are no matrix loads to
// issue.
//
// Launch: grid (heads, as many as the card holds of blocks at once divided by heads, and no more than tiles).
// `attention_hopper_*_64` has tiles of 64 queries and 128 threads, `*_long` of 128 queries and 256 threads; dynamic shared
// memory is Shape's. Only for sm_90a: on other cards the kernels do nothing.
//
//   count   tiles. Those without queries come last.
//
// How: a group owns 64 queries, each of its warps 16. Tiles lie in shared memory in rows of 128 bytes, a head of one token,
// with their 16 bytes swizzled as the tensor cores expect. Scores and weighted sums stay in registers, and weights go to the
// tensor cores from there. Keys of the next tile are on their way while scores are computed, its values while weights are
// multiplied: two buffers of each. Keys that do not exist are not loaded, since their scores are never looked at; values that
// do not exist are zeros, since even a weight of 0 would turn what is not a number into one that is not.
//
// A block computes one tile of queries after the other, of one head. Of the next one the queries, keys and values are on
// their way before the last keys of this one are done: most rows are so short that nothing else would hide the way.

#include "attention.cuh"
#include "hopper.cuh"

constexpr int SIZE = 64;
constexpr int ROW_BYTES = 2 * SIZE;
constexpr int GROUP = 128;          // threads
constexpr int GROUP_QUERIES = 64;
constexpr int TILE_BYTES = KEYS * ROW_BYTES;

template <int GROUPS>
struct Shape {
    static constexpr int THREADS = GROUPS * GROUP;
    static constexpr int QUERIES = GROUPS * GROUP_QUERIES;
    static constexpr int QUERY_BYTES = QUERIES * ROW_BYTES;
    // Two buffers of queries, of keys and of values. Tiles begin at multiples of 1,024 bytes.
    static constexpr int SHARED_BYTES = 2 * QUERY_BYTES + 4 * TILE_BYTES + 1024;
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900 && defined(__CUDA_ARCH_FEAT_SM90_ALL)

// The tensor cores' name of a dtype.
template <typename T>
struct KindOf;
template <>
struct KindOf<f16> {
    using Kind = F16;
};
template <>
struct KindOf<bf16> {
    using Kind = Bf16;
};

// Where the 16 bytes `chunk` of a token are in a tile.
__device__ __forceinline__ int place_of(int token, int chunk) {
    return token * ROW_BYTES + ((chunk ^ (token % 8)) * 16);
}

template <typename T, int GROUPS>
__device__ __forceinline__ void attention(const T* __restrict__ qkv, T* __restrict__ out,
                                          const int4* __restrict__ tiles, int kv_heads, unsigned stride, float scale,
                                          int back, int ahead, int tile_count) {
    using Shape = Shape<GROUPS>;
    using Kind = typename KindOf<T>::Kind;
    constexpr int CHUNKS = SIZE / VECTOR;
    constexpr int PASS = Shape::THREADS / CHUNKS;  // tokens
    static_assert(PASS % 8 == 0, "a thread's chunk is at the same place in all of its tokens");
    const int heads = gridDim.x, head = blockIdx.x, kv_head = head / (heads / kv_heads);
    const uint32_t start = shared_address(dynamic_shared());
    uint8_t* queries = static_cast<uint8_t*>(dynamic_shared()) + (1024 - start % 1024) % 1024;
    uint8_t* keys = queries + 2 * Shape::QUERY_BYTES;
    uint8_t* values = keys + 2 * TILE_BYTES;
    const int token = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
    const int place = place_of(token, chunk);
    // The shuffle tells the compiler that all lanes have the same.
    const int lane = threadIdx.x % WARP, warp = __shfl_sync(~0u, threadIdx.x / WARP, 0);

    // The block's tiles of queries: (row start, row length, first query, nothing), no length where there is none any more.
    // Those of long rows come first; turning back after each round gives every block about as much.
    const auto tile_of = [&](int round) {
        const int place = round % 2 == 0 ? blockIdx.y : gridDim.y - 1 - blockIdx.y, index = round * gridDim.y + place;
        return index < tile_count ? tiles[index] : make_int4(0, 0, 0, 0);
    };
    // The keys that any query of a tile sees, by whole tiles of the row.
    const auto begin_of = [&](const int4& tile) { return Sight{tile.y, back, ahead}.low(tile.z) / KEYS * KEYS; };
    const auto end_of = [&](const int4& tile) {
        return Sight{tile.y, back, ahead}.high(min(tile.y, tile.z + Shape::QUERIES) - 1);
    };

    // Of the tile of keys that is loaded next: this thread's first key, and how many there are from it on.
    const T* source = nullptr;
    int left = 0;
    // Of the tile of keys that is computed. Both alternate.
    int buffer = 0, query_buffer = 0;
    const auto load_queries = [&](const int4& tile, uint8_t* to) {
        const T* from = qkv + ((tile.x + tile.z + token) * stride + head * SIZE + chunk * VECTOR);
        const int count = tile.y - tile.z - token;
#pragma unroll
        for (int i = 0; i < Shape::QUERIES; i += PASS) {
            if (i < count) copy_async(to + place + i * ROW_BYTES, from + i * stride, true);
        }
        const int begin = begin_of(tile);
        source = qkv + ((tile.x + begin + token) * stride + (heads + kv_head) * SIZE + chunk * VECTOR);
        left = end_of(tile) - begin - token;
    };
    const auto load_keys = [&](uint8_t* to) {
#pragma unroll
        for (int i = 0; i < KEYS; i += PASS) {
            if (i < left) copy_async(to + place + i * ROW_BYTES, source + i * stride, true);
        }
    };
    const auto load_values = [&](uint8_t* to) {
#pragma unroll
        for (int i = 0; i < KEYS; i += PASS) {
            copy_async(to + place + i * ROW_BYTES, source + (kv_heads * SIZE + i * stride), i < left);
        }
    };

    int4 tile = tile_of(0);
    if (tile.z >= tile.y) return;
    load_queries(tile, queries);
    load_keys(keys);
    commit_copies();
    load_values(values);
    commit_copies();

    float scores[KEYS / 8][4], sums[SIZE / 8][4];
    uint32_t weights[KEYS / 16][4] = {};
    for (int round = 1;; ++round) {
        const int4 next = tile_of(round);
        const bool more_tiles = next.z < next.y;
        const int length = tile.y, begin = begin_of(tile), end = end_of(tile);
        const Sight sight = {length, back, ahead};
        // The warp's own queries. Where it has none it only helps its group.
        const int mine = tile.z + warp * 16;
        const bool active = mine < length;
        const int last = min(length, mine + 16) - 1;
        // The keys that all of them see, and the first that none of them sees any more.
        const int all_from = sight.low(last), all_until = sight.high(mine), any_until = sight.high(last);
        const uint64_t query_tile = describe_tile(queries + query_buffer + warp / 4 * GROUP_QUERIES * ROW_BYTES);
        Seen seen;
#pragma unroll
        for (int i = 0; i < 4 * (SIZE / 8); ++i) sums[i / 4][i % 4] = 0.0f;
        for (int key = begin; key < end; key += KEYS, buffer ^= TILE_BYTES) {
            const bool more_keys = key + KEYS < end, more = more_keys || more_tiles;
            // All but the values.
            wait_for_copies_but<1>();
            show_to_tensor_cores();
            __syncthreads();
            // The other buffer was read for the scores of the tile before, which every group has waited for before its last
            // barrier. The other queries were read a tile of queries ago, and so was what was stored in their place.
            if (more_keys) {
                source += KEYS * stride;
                left -= KEYS;
            } else if (more_tiles) {
                load_queries(next, queries + (query_buffer ^ Shape::QUERY_BYTES));
            }
            if (more) load_keys(keys + (buffer ^ TILE_BYTES));
            commit_copies();
            const uint64_t key_tile = describe_tile(keys + buffer);
            begin_products();
#pragma unroll
            for (int step = 0; step < SIZE / 16; ++step) {
                multiply_add_narrow<Kind>(scores, query_tile + 2 * step, key_tile + 2 * step, step > 0);
            }
            commit_products();
            // The products with the values of the tile before, too.
            wait_for_products<0>();
            pin(scores);
            pin(sums);
            const bool alike = all_from <= key && key < any_until && all_until == any_until;
            const View view = {any_until - key, alike, sight, mine + lane / 4, key + lane % 4 * 2};
            if (active && all_from <= key && key + KEYS <= all_until) {
                weigh<false, T>(scores, weights, sums, seen, scale, key == begin, view);
            } else if (active) {
                weigh<true, T>(scores, weights, sums, seen, scale, key == begin, view);
            }
            // All but the next keys.
            wait_for_copies_but<1>();
            show_to_tensor_cores();
            __syncthreads();
            // Nobody reads the other buffer any more: see above.
            if (more) load_values(values + (buffer ^ TILE_BYTES));
            commit_copies();
            const uint64_t value_tile = describe_tile(values + buffer);
            pin(sums);
            begin_products();
#pragma unroll
            for (int pair = 0; pair < KEYS / 16; ++pair) {
                multiply_add_across<Kind>(sums, weights[pair], value_tile + pair * (16 * ROW_BYTES >> 4));
            }
            commit_products();
        }
        wait_for_products<0>();
        pin(sums);
        if (active) {
            // Through shared memory, so that whole lines are written: the warp's own queries, which nobody reads any more.
            uint8_t* own = queries + query_buffer + warp * 16 * ROW_BYTES;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float inverse = inverse_total(seen.totals[half]);
                const int line = half * 8 + lane / 4;
#pragma unroll
                for (int column = 0; column < SIZE / 8; ++column) {
                    *reinterpret_cast<uint32_t*>(own + place_of(line, column) + lane % 4 * 4) =
                        pack_bits<T>(sums[column][2 * half] * inverse, sums[column][2 * half + 1] * inverse);
                }
            }
            __syncwarp();
            T* target = out + (static_cast<size_t>(tile.x) + mine) * heads * SIZE + head * SIZE;
#pragma unroll
            for (int i = 0; i < 16 * CHUNKS / WARP; ++i) {
                const int vector = i * WARP + lane, query = vector / CHUNKS, column = vector % CHUNKS;
                if (mine + query < length) {
                    *reinterpret_cast<uint4*>(target + static_cast<size_t>(query) * heads * SIZE + column * VECTOR) =
                        *reinterpret_cast<const uint4*>(own + place_of(query, column));
                }
            }
        }
        if (!more_tiles) return;
        tile = next;
        query_buffer ^= Shape::QUERY_BYTES;
    }
}

#define BODY(T, GROUPS) attention<T, GROUPS>(qkv, out, tiles, kv_heads, stride, scale, back, ahead, count)
#else
#define BODY(T, GROUPS)
#endif

// BLOCKS of a multiprocessor bound the registers of a thread: a block more would have some spilled, and products wait for
// each other.
#define ATTENTION(NAME, T, GROUPS, BLOCKS)                                                                            \
    extern "C" __global__ void __launch_bounds__(Shape<GROUPS>::THREADS, BLOCKS)                                      \
        NAME(const T* qkv, T* out, const int4* tiles, int kv_heads, unsigned stride, float scale, int back,           \
             int ahead, int count) {                                                                                  \
        BODY(T, GROUPS);                                                                                              \
    }

#define ATTENTION_OF(TYPE)                                 \
    ATTENTION(attention_hopper_##TYPE##_64, TYPE, 1, 4)    \
    ATTENTION(attention_hopper_##TYPE##_64_long, TYPE, 2, 2)

ATTENTION_OF(f16)
ATTENTION_OF(bf16)
