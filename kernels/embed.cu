// The sum of word, position and type embeddings, normalized.
//
//   out       (tokens, width).
//   words, positions, types  the tables, (their rows, width). positions and types may be null: nothing is added.
//   *_ids     (tokens): rows of the tables. Null stands for row 0 of every token. Ids outside their table are taken for
//             its last row, so that nothing is read that is not there; the host checks.
//   weight, offset  (width), of the norm; offset may be null.
//
// `embed_i8_*_N` and `embed_f8_*_N` write the codes (tokens, width) and the scales (tokens) of `out` too: see norm.cu.
//
// `embed_*_N` takes widths up to N, multiples of 8. Launch as add_norm: 128 threads; grid (tokens / 4, rounded up) up
// to 1024, (tokens) above.

#include "codes.cuh"

// The row of a token in its table, which is null where the table is.
template <typename T>
__device__ __forceinline__ const T* find(const T* table, uint32_t rows, const uint32_t* ids, int token, int width) {
    if (table == nullptr) return nullptr;
    const uint32_t id = ids == nullptr ? 0 : min(ids[token], rows - 1);
    return table + static_cast<size_t>(id) * width;
}

template <typename Form, typename T, int WARPS, int VECTORS>
__device__ __forceinline__ void embed(T* __restrict__ out, uint8_t* __restrict__ codes, float* __restrict__ scales,
                                      const T* __restrict__ words,
                                      const uint32_t* __restrict__ word_ids, uint32_t word_rows,
                                      const T* __restrict__ positions, const uint32_t* __restrict__ position_ids,
                                      uint32_t position_rows, const T* __restrict__ types,
                                      const uint32_t* __restrict__ type_ids, uint32_t type_rows,
                                      const T* __restrict__ weight, const T* __restrict__ offset, int tokens, int width,
                                      float epsilon) {
    using Row = Row<WARPS, VECTORS>;
    const int token = Row::index();
    if (token >= tokens) return;
    // All ids before the first row, so that the three are waited for at once.
    const T* word = find(words, word_rows, word_ids, token, width);
    const T* position = find(positions, position_rows, position_ids, token, width);
    const T* type = find(types, type_rows, type_ids, token, width);
    const auto of_word = Row::fetch(word, width), of_position = Row::fetch(position, width),
               of_type = Row::fetch(type, width);
    Row row;
    row.template set<T>(of_word);
    row.template add<T>(of_position);
    row.template add<T>(of_type);
    row.normalize(weight, offset, width, epsilon);
    const size_t start = static_cast<size_t>(token) * width;
    row.write(out + start, width);
    write_codes_of<Form, T>(row, codes + start, scales + token, width);
}

#define EMBED(NAME, T, WARPS, VECTORS)                                                                              \
    extern "C" __global__ void __launch_bounds__(128)                                                               \
        NAME(T* out, const T* words, const uint32_t* word_ids, uint32_t word_rows, const T* positions,              \
             const uint32_t* position_ids, uint32_t position_rows, const T* types, const uint32_t* type_ids,        \
             uint32_t type_rows, const T* weight, const T* offset, int tokens, int width, float epsilon) {          \
        embed<Uncoded, T, WARPS, VECTORS>(out, nullptr, nullptr, words, word_ids, word_rows, positions,             \
                                          position_ids, position_rows, types, type_ids, type_rows, weight, offset,  \
                                          tokens, width, epsilon);                                                  \
    }

#define EMBED_OF(TYPE)                     \
    EMBED(embed_##TYPE##_256, TYPE, 1, 1)  \
    EMBED(embed_##TYPE##_512, TYPE, 1, 2)  \
    EMBED(embed_##TYPE##_768, TYPE, 1, 3)  \
    EMBED(embed_##TYPE##_1024, TYPE, 1, 4) \
    EMBED(embed_##TYPE##_2048, TYPE, 4, 2) \
    EMBED(embed_##TYPE##_4096, TYPE, 4, 4) \
    EMBED(embed_##TYPE##_8192, TYPE, 4, 8)

EMBED_OF(f16)
EMBED_OF(bf16)

#define EMBED_CODED(NAME, FORM, T, WARPS, VECTORS)                                                                  \
    extern "C" __global__ void __launch_bounds__(128)                                                               \
        NAME(T* out, uint8_t* codes, float* scales, const T* words, const uint32_t* word_ids, uint32_t word_rows,   \
             const T* positions, const uint32_t* position_ids, uint32_t position_rows, const T* types,              \
             const uint32_t* type_ids, uint32_t type_rows, const T* weight, const T* offset, int tokens, int width, \
             float epsilon) {                                                                                       \
        embed<FORM, T, WARPS, VECTORS>(out, codes, scales, words, word_ids, word_rows, positions, position_ids,     \
                                       position_rows, types, type_ids, type_rows, weight, offset, tokens, width,    \
                                       epsilon);                                                                    \
    }

#define EMBED_CODED_OF(NAME, FORM, TYPE)                       \
    EMBED_CODED(embed_##NAME##_##TYPE##_256, FORM, TYPE, 1, 1)  \
    EMBED_CODED(embed_##NAME##_##TYPE##_512, FORM, TYPE, 1, 2)  \
    EMBED_CODED(embed_##NAME##_##TYPE##_768, FORM, TYPE, 1, 3)  \
    EMBED_CODED(embed_##NAME##_##TYPE##_1024, FORM, TYPE, 1, 4) \
    EMBED_CODED(embed_##NAME##_##TYPE##_2048, FORM, TYPE, 4, 2) \
    EMBED_CODED(embed_##NAME##_##TYPE##_4096, FORM, TYPE, 4, 4) \
    EMBED_CODED(embed_##NAME##_##TYPE##_8192, FORM, TYPE, 4, 8)

EMBED_CODED_OF(i8, Int8, f16)
EMBED_CODED_OF(i8, Int8, bf16)
EMBED_CODED_OF(f8, Float8, f16)
EMBED_CODED_OF(f8, Float8, bf16)
