// Products of 8-bit matrices on Hopper's tensor cores, with all that follows in the same pass:
//
//   y[t][o] = activation(scale(t, o) * sum over i of x[t][i] * weight[o][i]  +  bias[o])
//
//   x        (tokens, inputs) int8 or e4m3, through a tensor map of boxes of TILE rows of TILE bytes
//   weight   (outputs, inputs) of the same kind, through a map of boxes of TILE / BLOCKS rows
//   scale    x_scales[t] * weight_scales[o], f32
//   bias     (outputs) T, or null
//   y        (tokens, outputs) T; outputs is a multiple of 8
//
// The maps are of bytes, swizzle by 128 of them and fill what lies outside with zeros, so that no size has to be a
// multiple of the tile. `row_bytes` is the length of a row of x and of the weights.
//
// Launch: grid a multiple of BLOCKS, as many blocks as the card holds at most; THREADS threads; SHARED_BYTES of dynamic
// shared memory. Only for sm_90a: on other cards the kernels do nothing.
//
// How: a block has a warp that copies and two groups of four warps that compute. A group computes a tile of y from
// start to end while the other one scales, activates and stores the tile before: the tensor cores always have work,
// whatever the activation costs. Tiles of x and of the weights pass through a ring of STAGES places. The two blocks of
// a cluster compute tiles below each other, which need the same weights: each copies half of them, to both.
//
// Numbers: sums of int8 are exact in 32 bits (inputs up to 2^17). Those of e4m3 are as wide as the tensor cores keep
// them, about 14 bits below the largest term.

#include "functions.cuh"
#include "hopper.cuh"

constexpr int TILE = 128;  // rows of y, columns of y, bytes of a row of x and of the weights
constexpr int BLOCKS = 2;  // of a cluster
constexpr int STAGES = 6;
constexpr int GROUP = 128;  // threads
constexpr int THREADS = 3 * GROUP;
constexpr int TILE_BYTES = TILE * TILE;
constexpr int STAGE_BYTES = 2 * TILE_BYTES;
// Tiles begin at multiples of 1,024 bytes.
constexpr int SHARED_BYTES = STAGES * STAGE_BYTES + 1024 + 2 * STAGES * 8;
static_assert(SHARED_BYTES <= 227 * 1024, "a block of Hopper has no more");

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900 && defined(__CUDA_ARCH_FEAT_SM90_ALL)

// x * (1 + tanh(u)) / 2 with u = sqrt(2 / pi) * (x + 0.044715 x^3). The tanh of one instruction is within 2^-11: what
// is computed here becomes 8 bits next.
struct GeluTanhFast {
    static __device__ __forceinline__ float apply(float x) {
        const float u = x * (0.0356774081f * x * x + 0.7978845608f);
        float t;
        asm("tanh.approx.f32 %0, %1;" : "=f"(t) : "f"(u));
        const float half = 0.5f * x;
        return half * t + half;
    }
};

// What a block keeps in shared memory.
struct Shared {
    uint8_t* tiles;
    uint64_t* full;
    uint64_t* empty;

    __device__ __forceinline__ Shared() {
        const uint32_t start = shared_address(dynamic_shared());
        tiles = static_cast<uint8_t*>(dynamic_shared()) + ((1024 - start % 1024) % 1024);
        full = reinterpret_cast<uint64_t*>(tiles + STAGES * STAGE_BYTES);
        empty = full + STAGES;
    }

    __device__ __forceinline__ uint8_t* x(int stage) const { return tiles + stage * STAGE_BYTES; }
    __device__ __forceinline__ uint8_t* weight(int stage) const { return x(stage) + TILE_BYTES; }
};

// A place of the ring, and which time round it is.
struct Place {
    int stage = 0;
    int parity = 0;

    __device__ __forceinline__ void next() {
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
    __device__ __forceinline__ void skip(int steps) {
        stage += steps;
        parity ^= (stage / STAGES) & 1;
        stage %= STAGES;
    }
};

// Tiles in the order in which clusters take them: the columns of a pair of rows of tiles, then the next pair.
struct Tiles {
    int columns;
    int count;

    __device__ __forceinline__ Tiles(int tokens, int outputs) {
        columns = (outputs + TILE - 1) / TILE;
        count = columns * ((tokens + BLOCKS * TILE - 1) / (BLOCKS * TILE));
    }
    __device__ __forceinline__ int row(int tile, int rank) const { return (tile / columns * BLOCKS + rank) * TILE; }
    __device__ __forceinline__ int column(int tile) const { return tile % columns * TILE; }
};

// Four lanes side by side hold columns 2c, 2c + 1 of four groups of 8 columns; afterwards lane c holds all of group c.
__device__ __forceinline__ uint4 gather_columns(uint32_t (&pairs)[4], int lane) {
    // A transposition of 4 x 4 by halves: first with the lane at distance 2, then at distance 1.
    const bool high = lane & 2, odd = lane & 1;
    uint32_t send0 = high ? pairs[0] : pairs[2], send1 = high ? pairs[1] : pairs[3];
    uint32_t got0 = __shfl_xor_sync(~0u, send0, 2), got1 = __shfl_xor_sync(~0u, send1, 2);
    // Groups 2 * high and the next; of columns (lane & 1) and (lane & 1) + 2, the lower ones first.
    uint32_t a0 = high ? got0 : pairs[0], a1 = high ? got1 : pairs[1];
    uint32_t b0 = high ? pairs[2] : got0, b1 = high ? pairs[3] : got1;
    uint32_t send_a = odd ? a0 : a1, send_b = odd ? b0 : b1;
    uint32_t got_a = __shfl_xor_sync(~0u, send_a, 1), got_b = __shfl_xor_sync(~0u, send_b, 1);
    uint4 all;
    all.x = odd ? got_a : a0;
    all.y = odd ? a1 : got_a;
    all.z = odd ? got_b : b0;
    all.w = odd ? b1 : got_b;
    return all;
}

// What a thread needs of a tile's columns: of every 8 the two that it has sums of. Loaded before the sums are computed,
// so that nobody waits for it afterwards.
template <typename T>
struct Columns {
    float2 scales[TILE / 8];
    uint32_t bias[TILE / 8];

    __device__ __forceinline__ Columns(const float* weight_scales, const T* offsets, int column, int outputs) {
#pragma unroll
        for (int group = 0; group < TILE / 8; ++group) {
            const int at = column + 8 * group + 2 * (threadIdx.x % 4);
            scales[group] = make_float2(1.0f, 1.0f);
            bias[group] = 0;
            if (at < outputs) scales[group] = *reinterpret_cast<const float2*>(weight_scales + at);
            if (offsets != nullptr && at < outputs) bias[group] = *reinterpret_cast<const uint32_t*>(offsets + at);
        }
    }

    __device__ __forceinline__ float2 offset(int group) const {
        return unpack(reinterpret_cast<const typename Pair<T>::type&>(bias[group]));
    }
};

// Scales, activates and stores 64 x 128 sums. `row` is the thread's first row of y.
template <typename ACTIVATION, typename T, typename SUM>
__device__ __forceinline__ void store_tile(const SUM (&sums)[64], const Columns<T>& columns, T* y,
                                           const float* x_scales, int row, int column, int tokens, int outputs) {
    const int lane = threadIdx.x % WARP;
    const int rows[2] = {row, row + 8};
    float scales[2] = {1.0f, 1.0f};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        if (rows[half] < tokens) scales[half] = x_scales[rows[half]];
    }
#pragma unroll
    for (int quad = 0; quad < 4; ++quad) {
        uint32_t packed[2][4];
#pragma unroll
        for (int group = 0; group < 4; ++group) {
            const int index = quad * 4 + group;
            const float2 weight = columns.scales[index], offset = columns.offset(index);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const SUM* pair = sums + 4 * index + 2 * half;
                const float low = static_cast<float>(pair[0]) * (scales[half] * weight.x) + offset.x;
                const float high = static_cast<float>(pair[1]) * (scales[half] * weight.y) + offset.y;
                packed[half][group] = pack_bits<T>(ACTIVATION::apply(low), ACTIVATION::apply(high));
            }
        }
        const int at = column + 32 * quad + 8 * (lane % 4);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const uint4 all = gather_columns(packed[half], lane);
            if (rows[half] < tokens && at < outputs) {
                *reinterpret_cast<uint4*>(y + static_cast<size_t>(rows[half]) * outputs + at) = all;
            }
        }
    }
}

template <typename KIND, typename T, typename ACTIVATION>
__device__ __forceinline__ void product(const CUtensorMap* x_map, const CUtensorMap* weight_map, T* y,
                                        const float* x_scales, const float* weight_scales, const T* bias, int tokens,
                                        int row_bytes, int outputs) {
    using Sum = typename KIND::Sum;
    const Shared shared;
    const Tiles tiles(tokens, outputs);
    const int group = threadIdx.x / GROUP, rank = cluster_rank();
    const int steps = (row_bytes + TILE - 1) / TILE;
    const int first = blockIdx.x / BLOCKS, stride = gridDim.x / BLOCKS;
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) {
            init_barrier(shared.full + stage, 1);
            // Each warp of the group that reads it, in every block whose memory this block writes.
            init_barrier(shared.empty + stage, GROUP / WARP * BLOCKS);
        }
        publish_barriers();
    }
    __syncthreads();
    sync_cluster();

    if (group == 2) {
        give_up_registers<40>();
        if (threadIdx.x == 2 * GROUP) {
            prefetch_map(x_map);
            prefetch_map(weight_map);
            Place place;
            constexpr int PART = TILE / BLOCKS;
            for (int tile = first; tile < tiles.count; tile += stride) {
                const int row = tiles.row(tile, rank), column = tiles.column(tile);
                for (int step = 0; step < steps; ++step, place.next()) {
                    // A fresh barrier's phase before the first counts as over.
                    wait_for(shared.empty + place.stage, place.parity ^ 1);
                    uint64_t* full = shared.full + place.stage;
                    arrive_expecting(full, STAGE_BYTES);
                    copy_tile(shared.x(place.stage), x_map, step * TILE, row, full);
                    copy_tile_to((1 << BLOCKS) - 1, shared.weight(place.stage) + rank * PART * TILE, weight_map,
                                 step * TILE, column + rank * PART, full);
                }
            }
        }
        __syncwarp();
    } else {
        take_registers<232>();
        const int warp = threadIdx.x / WARP % 4, lane = threadIdx.x % WARP;
        // Named barrier 1 + g lets group g start a tile. The first group may start at once.
        if (group == 1) arrive_at_named(1, 2 * GROUP);
        Place place;
        if (group == 1) place.skip(steps);
        const auto release = [&](int stage) {
            if (lane < BLOCKS) arrive_at(shared.empty + stage, lane);
        };
        for (int tile = first + group * stride; tile < tiles.count; tile += 2 * stride) {
            Sum upper[64], lower[64];
            const int row = tiles.row(tile, rank) + 16 * warp + lane / 4, column = tiles.column(tile);
            const Columns<T> columns(weight_scales, bias, column, outputs);
            wait_at(1 + group, 2 * GROUP);
            int before = 0;
            for (int step = 0; step < steps; ++step, place.next()) {
                wait_for(shared.full + place.stage, place.parity);
                const uint64_t x = describe_tile(shared.x(place.stage));
                const uint64_t weight = describe_tile(shared.weight(place.stage));
                pin(upper);
                pin(lower);
                begin_products();
#pragma unroll
                for (int part = 0; part < TILE / 32; ++part) {
                    const int accumulate = step > 0 || part > 0;
                    multiply_add_tile<KIND>(upper, x + 2 * part, weight + 2 * part, accumulate);
                    multiply_add_tile<KIND>(lower, x + (64 * TILE >> 4) + 2 * part, weight + 2 * part, accumulate);
                }
                commit_products();
                pin(upper);
                pin(lower);
                if (step > 0) {
                    wait_for_products<1>();
                    release(before);
                }
                before = place.stage;
            }
            arrive_at_named(1 + (1 - group), 2 * GROUP);
            wait_for_products<0>();
            pin(upper);
            pin(lower);
            release(before);
            place.skip(steps);
            store_tile<ACTIVATION>(upper, columns, y, x_scales, row, column, tokens, outputs);
            store_tile<ACTIVATION>(lower, columns, y, x_scales, row + 64, column, tokens, outputs);
        }
    }
    // The other block may still write to this one's memory.
    sync_cluster();
}

#define BODY(KIND, T, ACTIVATION) \
    product<KIND, T, ACTIVATION>(&x_map, &weight_map, y, x_scales, weight_scales, bias, tokens, row_bytes, outputs)
#else
#define BODY(KIND, T, ACTIVATION)
#endif

// Other cards know no clusters.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define CLUSTERED
#else
#define CLUSTERED __cluster_dims__(BLOCKS, 1, 1)
#endif

#define PRODUCT(NAME, KIND, T, ACTIVATION)                                                                          \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) CLUSTERED                                              \
        NAME(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap weight_map, T* y,       \
             const float* x_scales, const float* weight_scales, const T* bias, int tokens, int row_bytes,           \
             int outputs) {                                                                                         \
        BODY(KIND, T, ACTIVATION);                                                                                  \
    }

#define PRODUCTS(NAME, KIND, T, GELU)             \
    PRODUCT(product_##NAME, KIND, T, Identity)    \
    PRODUCT(product_##NAME##_gelu, KIND, T, GELU) \
    PRODUCT(product_##NAME##_relu, KIND, T, Relu)

PRODUCTS(int8, Int8, f16, GeluTanhFast)
PRODUCTS(e4m3, E4m3, f16, GeluTanhFast)
