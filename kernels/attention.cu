// Attention of every position to the positions of its own row, without a matrix of scores in memory.
//
//   qkv   (tokens, (heads + 2 * kv_heads) * SIZE), a token's queries, keys and values side by side, with their biases.
//         Each key and value head serves heads / kv_heads query heads. From one token to the next there are `stride`
//         elements, a multiple of 8.
//   out   (tokens, heads * SIZE); must not overlap qkv. Tokens of no row are left as they are.
//   tiles (gridDim.y): which queries each block computes, of one row each: the row's first token, its length, the first
//         query counted from the row's start. Tiles whose first query is not inside the row do nothing, so that a list
//         may be longer than needed. Long rows first: the last blocks to start are then short.
//   scale of the scores as exponents of 2, positive: log2(e) / sqrt(SIZE).
//   back, ahead: query i sees keys i - back to i + ahead of its row, both between 0 and 2^30, which is no limit:
//         (2^30, 2^30) is an encoder's attention, (2^30, 0) causal, (w / 2, w / 2) a sliding window of w. Tiles of keys
//         that no query of a tile sees are never loaded, and only those at an edge are masked: limits cost nothing
//         where there are none.
//
// Launch: grid (heads, tiles), at most 65535 tiles: blocks that run together read whole lines of the same tokens.
// Threads and dynamic shared memory, up to 102 KiB, are Shape's. `attention_*` has tiles of 64 queries,
// `attention_*_long` of 128. The latter reads keys and values half as often, what rows of several tiles live on; the
// former wastes less on rows that end early.
//
// How: a warp owns 16 * STACK queries from start to end (FlashAttention-2). Their values stay in registers as the
// tensor cores take them, and so do scores, weights and sums: what the tensor cores return for two neighbouring tiles
// of 8 keys is what they take as a tile of 16, so that weights never touch shared memory. While a tile of 64 keys is
// computed the next one is on its way, into the other of two buffers.
//
// Numbers: scores, softmax and sums are f32; weights are rounded to T for the product with the values, not for the sum
// that they are divided by. qkv has fewer than 2^32 elements: its indices are 32 bits wide, for the registers' sake.

#include "attention.cuh"

// A tile of queries: WARPS * STACK times 16 of them.
template <int SIZE, int WARPS, int STACK>
struct Shape {
    static constexpr int THREADS = WARPS * WARP;
    static constexpr int WARP_QUERIES = 16 * STACK;
    static constexpr int QUERIES = WARPS * WARP_QUERIES;
    // Elements from one token to the next in shared memory. With 16 bytes between them 8 consecutive tokens start in
    // different groups of 4 banks, for every SIZE here: matrix loads, which take 16 bytes of each of 8 tokens, are free
    // of conflicts, and unlike a swizzle's their addresses differ from each other by constants.
    static constexpr int STRIDE = SIZE + VECTOR;
    // Queries, then two buffers of keys and two of values.
    static constexpr int SHARED_BYTES = (QUERIES + 4 * KEYS) * STRIDE * 2;
};

// How the block's threads share the loading of tokens: VECTORS threads side by side load one token, PASS tokens at a
// time. A power of two, so that every tile is a whole number of passes; heads of 96 leave some threads without work.
template <int SIZE, int THREADS>
struct Loading {
    static constexpr int VECTORS = SIZE / VECTOR;
    static constexpr int PASS = THREADS / VECTORS >= 32 ? 32 : THREADS / VECTORS >= 16 ? 16 : 8;
    static_assert(PASS * VECTORS <= THREADS, "there are threads for every pass");

    // Starts loading the first `count` of TOKENS tokens; the rest is zeros up to a multiple of 16: tensor cores read
    // that far, and even a weight of 0 would turn what is not a number into one that is not. `tile` and `from` are
    // those of this thread's first token, which is the tile's `token`th.
    template <int TOKENS, typename T>
    static __device__ __forceinline__ void load(T* tile, const T* from, unsigned stride, int token, int count) {
        const int needed = (count + 15) / 16 * 16;
        if (count >= TOKENS) {
            // Most tiles of long rows: nothing to compare, a third of the instructions.
#pragma unroll
            for (int i = 0; i < TOKENS; i += PASS) copy_async(tile + i * (SIZE + VECTOR), from + i * stride, true);
        } else {
#pragma unroll
            for (int i = 0; i < TOKENS; i += PASS) {
                if (token + i < needed) copy_async(tile + i * (SIZE + VECTOR), from + i * stride, token + i < count);
            }
        }
    }
};

// A warp's queries and what they have seen so far. A lane holds parts of queries lane / 4 and lane / 4 + 8 of each 16,
// in the order of multiply_add.
template <typename T, int SIZE, int STACK>
struct State {
    uint32_t queries[STACK][SIZE / 16][4];
    // Weighted sums of values.
    float sums[STACK][SIZE / 8][4];
    Seen seen[STACK];

    // `tile` is the address of this lane's row of the warp's queries: see load_matrices.
    __device__ __forceinline__ void start(uint32_t tile) {
#pragma unroll
        for (int m = 0; m < STACK; ++m) {
#pragma unroll
            for (int step = 0; step < SIZE / 16; ++step) {
                load_matrices(queries[m][step], tile + (m * 16 * (SIZE + VECTOR) + step * 16) * 2);
            }
#pragma unroll
            for (int column = 0; column < SIZE / 8; ++column) {
#pragma unroll
                for (int i = 0; i < 4; ++i) sums[m][column][i] = 0.0f;
            }
        }
    }

    // Takes in a tile of keys, at `keys` and `values` for this lane; the rest is as in `weigh`.
    template <bool EDGE>
    __device__ __forceinline__ void attend(uint32_t keys, uint32_t values, float scale, bool first, View view) {
        constexpr int STRIDE = SIZE + VECTOR;
        // A product is over 16 keys: which of the tile's are needed at all.
        auto needed = [&](int pair) { return !EDGE || pair * 16 < view.count; };

        float scores[STACK][KEYS / 8][4];
        auto score = [&](int pair, int step) {
            uint32_t b[4];
            load_matrices(b, keys + (pair * 16 * STRIDE + step * 16) * 2);
#pragma unroll
            for (int m = 0; m < STACK; ++m) {
                multiply_add<T>(scores[m][2 * pair], queries[m][step], b[0], b[1]);
                multiply_add<T>(scores[m][2 * pair + 1], queries[m][step], b[2], b[3]);
            }
        };
#pragma unroll
        for (int m = 0; m < STACK; ++m) {
#pragma unroll
            for (int n = 0; n < KEYS / 8; ++n) {
#pragma unroll
                for (int i = 0; i < 4; ++i) scores[m][n][i] = 0.0f;
            }
        }
#pragma unroll
        for (int pair = 0; pair < KEYS / 16; ++pair) {
            if (needed(pair)) {
#pragma unroll
                for (int step = 0; step < SIZE / 16; ++step) score(pair, step);
            }
        }

        uint32_t weights[STACK][KEYS / 16][4];
#pragma unroll
        for (int m = 0; m < STACK; ++m) {
            weigh<EDGE, T>(scores[m], weights[m], sums[m], seen[m], scale, first, view);
            view.query += 16;
        }

#pragma unroll
        for (int pair = 0; pair < KEYS / 16; ++pair) {
            if (needed(pair)) {
#pragma unroll
                for (int step = 0; step < SIZE / 16; ++step) {
                    uint32_t b[4];
                    load_matrices_transposed(b, values + (pair * 16 * STRIDE + step * 16) * 2);
#pragma unroll
                    for (int m = 0; m < STACK; ++m) {
                        multiply_add<T>(sums[m][2 * step], weights[m][pair], b[0], b[1]);
                        multiply_add<T>(sums[m][2 * step + 1], weights[m][pair], b[2], b[3]);
                    }
                }
            }
        }
    }

    // Writes the results to the warp's part of the tile of queries, which only the warp itself ever reads.
    __device__ __forceinline__ void finish(T* tile, int lane) {
#pragma unroll
        for (int m = 0; m < STACK; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float inverse = inverse_total(seen[m].totals[half]);
                T* row = tile + (m * 16 + half * 8 + lane / 4) * (SIZE + VECTOR) + lane % 4 * 2;
#pragma unroll
                for (int column = 0; column < SIZE / 8; ++column) {
                    const auto &sum = sums[m][column];
                    *reinterpret_cast<uint32_t*>(row + column * 8) =
                        pack_bits<T>(sum[2 * half] * inverse, sum[2 * half + 1] * inverse);
                }
            }
        }
    }
};

template <typename T, int SIZE, int WARPS, int STACK>
__device__ __forceinline__ void attention(const T* __restrict__ qkv, T* __restrict__ out,
                                          const int4* __restrict__ tiles, int kv_heads, unsigned stride,
                                          float scale, int back, int ahead) {
    using Shape = Shape<SIZE, WARPS, STACK>;
    constexpr int STRIDE = Shape::STRIDE, THREADS = Shape::THREADS, BUFFER_BYTES = KEYS * STRIDE * 2;
    const int4 tile = tiles[blockIdx.y];
    const int length = tile.y, first = tile.z;
    if (first >= length) return;
    const Sight sight = {length, back, ahead};
    const int count = min(Shape::QUERIES, length - first);

    const int heads = gridDim.x, head = blockIdx.x, kv_head = head / (heads / kv_heads);
    const unsigned row = tile.x * stride;

    T* queries = static_cast<T*>(dynamic_shared());
    T* keys = queries + Shape::QUERIES * STRIDE;
    T* values = keys + 2 * KEYS * STRIDE;
    // The keys that any query of the tile sees, by whole tiles of the row: a tile's number says which buffer it takes.
    const int begin = sight.low(first) / KEYS * KEYS, end = sight.high(first + count - 1);
    using Loading = Loading<SIZE, THREADS>;
    const int token = threadIdx.x / Loading::VECTORS, column = threadIdx.x % Loading::VECTORS * VECTOR;
    const bool loads = Loading::PASS * Loading::VECTORS == THREADS || token < Loading::PASS;
    const int place = token * STRIDE + column;
    const T* source = qkv + (row + (begin + token) * stride + (heads + kv_head) * SIZE + column);
    auto buffer_of = [](int key) { return key / KEYS % 2; };
    // Loads the tile of keys from `key` on, and its values. To be called for one tile after the other.
    auto load_next = [&](int key) {
        if (loads) {
            const int present = min(KEYS, end - key), to = place + buffer_of(key) * KEYS * STRIDE;
            Loading::template load<KEYS>(keys + to, source, stride, token, present);
            Loading::template load<KEYS>(values + to, source + kv_heads * SIZE, stride, token, present);
            source += KEYS * stride;
        }
    };
    if (loads) {
        const T* from = qkv + (row + (first + token) * stride + head * SIZE + column);
        Loading::template load<Shape::QUERIES>(queries + place, from, stride, token, count);
    }
    load_next(begin);

    // The shuffle tells the compiler that all lanes have the same.
    const int lane = threadIdx.x % WARP, warp = __shfl_sync(~0u, threadIdx.x / WARP, 0);
    // The warp's own queries. Where it has none it only helps to load.
    const int mine = first + warp * Shape::WARP_QUERIES;
    const bool active = mine < length;
    const int last = min(length, mine + Shape::WARP_QUERIES) - 1;
    // The keys that all of them see, and the first that none of them sees any more.
    const int all_from = sight.low(last), all_until = sight.high(mine), any_until = sight.high(last);

    // The row of four matrices that this lane addresses, the order being that of multiply_add's registers. Queries, and
    // values, which are transposed: 8 tokens, the 8 below, and the same 8 columns on. Keys: the other way round.
    const int down = lane % 16 * STRIDE + lane / 16 * 8;
    const int across = (lane % 8 + lane / 16 * 8) * STRIDE + lane / 8 % 2 * 8;
    T* own_queries = queries + warp * Shape::WARP_QUERIES * STRIDE;
    const uint32_t key_address = shared_address(keys + across), value_address = shared_address(values + down);

    State<T, SIZE, STACK> state;
    wait_for_copies();
    __syncthreads();
    state.start(shared_address(own_queries + down));
    for (int key = begin; key < end; key += KEYS) {
        const bool more = key + KEYS < end;
        // Nobody reads the other buffer since the last barrier.
        if (more) load_next(key + KEYS);
        const uint32_t offset = buffer_of(key) * BUFFER_BYTES;
        const uint32_t own_keys = key_address + offset, own_values = value_address + offset;
        const bool alike = all_from <= key && all_until == any_until;
        const View view = {any_until - key, alike, sight, mine + lane / 4, key + lane % 4 * 2};
        if (active && all_from <= key && key + KEYS <= all_until) {
            state.template attend<false>(own_keys, own_values, scale, key == begin, view);
        } else if (active && key < any_until) {
            state.template attend<true>(own_keys, own_values, scale, key == begin, view);
        }
        if (more) {
            wait_for_copies();
            __syncthreads();
        }
    }
    if (!active) return;

    // Through shared memory, so that whole lines are written: to where all lanes have read the warp's queries.
    __syncwarp();
    state.finish(own_queries, lane);
    __syncwarp();
    constexpr int VECTORS = SIZE / VECTOR;
    T* target = out + (static_cast<size_t>(tile.x) + mine) * heads * SIZE + head * SIZE;
#pragma unroll
    for (int i = 0; i < Shape::WARP_QUERIES * VECTORS / WARP; ++i) {
        const int vector = i * WARP + lane, query = vector / VECTORS, column = vector % VECTORS * VECTOR;
        if (mine + query < length) {
            *reinterpret_cast<uint4*>(target + static_cast<size_t>(query) * heads * SIZE + column) =
                load_bits(own_queries + query * STRIDE + column);
        }
    }
}

// BLOCKS of a multiprocessor bound the registers of a thread: as many warps as possible hide each other's exp2 and
// loads, and none of the arrays above is spilled. (attention_*_64 parks one address outside its loop.)
#define ATTENTION(NAME, T, SIZE, WARPS, STACK, BLOCKS)                                                                \
    extern "C" __global__ void __launch_bounds__(WARPS * WARP, BLOCKS)                                                \
        NAME(const T* qkv, T* out, const int4* tiles, int kv_heads, unsigned stride, float scale, int back,           \
             int ahead) {                                                                                             \
        attention<T, SIZE, WARPS, STACK>(qkv, out, tiles, kv_heads, stride, scale, back, ahead);                      \
    }

#define ATTENTION_OF(TYPE)                                       \
    ATTENTION(attention_##TYPE##_32, TYPE, 32, 4, 1, 5)          \
    ATTENTION(attention_##TYPE##_64, TYPE, 64, 4, 1, 4)          \
    ATTENTION(attention_##TYPE##_96, TYPE, 96, 4, 1, 3)          \
    ATTENTION(attention_##TYPE##_128, TYPE, 128, 4, 1, 2)        \
    ATTENTION(attention_##TYPE##_32_long, TYPE, 32, 8, 1, 2)     \
    ATTENTION(attention_##TYPE##_64_long, TYPE, 64, 4, 2, 2)     \
    ATTENTION(attention_##TYPE##_96_long, TYPE, 96, 8, 1, 1)     \
    ATTENTION(attention_##TYPE##_128_long, TYPE, 128, 8, 1, 1)

ATTENTION_OF(f16)
ATTENTION_OF(bf16)
