// The forms of a weight in memory, and how its numbers are widened to float32.
#pragma once

#include "vectors.h"

namespace {

// The form of a number: `Half`, `Sixteen`, `Whole`, `Eight` or `Four`.
enum Form : int64_t { BFLOAT16, FLOAT16, FLOAT32, CODE_OF_8, CODE_OF_4 };

// A weight [width, size], plus a bias where there is one, in panels of PANEL outputs. All forms but `Half` are summed in
// blocks of `each` numbers of an output. A code times the scale of its block is a number: a code of 8 bits is an integer,
// and one of 4 bits the place of an integer in the table.
struct Weight {
    const uint8_t* panels;
    const float* scales;  // [panels, size / each, PANEL]
    const uint8_t* table;
    const void* bias;
    int64_t size, width, each;
    Form form;
};

// Numbers of bfloat16, for two numbers of `in` at a time: those of an output lie together.
struct Half {
    typedef wide_floats Numbers;
    static const int STEP = 2, BYTES = 4 * PANEL, PARTS = 2;
    static const bool HAS_SCALES = false, IN_BLOCKS = false;
    explicit Half(const uint8_t*) {}

    template <int PLACE>
    void widen(const uint8_t* from, Numbers* own) const {
#ifdef __AVX512F__
        const __m512i both = _mm512_loadu_si512(from);
        *own = (Numbers)(PLACE ? _mm512_and_si512(both, _mm512_set1_epi32(0xffff0000)) : _mm512_slli_epi32(both, 16));
#else
        for (int p = 0; p < 2; ++p) {
            words both;
            std::memcpy(&both, from + p * sizeof both, sizeof both);
            own->halves[p] = (floats)(PLACE ? both & 0xffff0000 : both << 16);
        }
#endif
    }
};

// Numbers of float16, one output after the other.
struct Sixteen {
    typedef wide_floats Numbers;
    static const int STEP = 1, BYTES = 2 * PANEL, PARTS = 1;
    static const bool HAS_SCALES = false, IN_BLOCKS = true;
    explicit Sixteen(const uint8_t*) {}

    template <int>
    void widen(const uint8_t* from, Numbers* own) const {
#ifdef __AVX512F__
        *own = (Numbers)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from));
#else
        for (int p = 0; p < 2; ++p) {
#ifdef __F16C__
            own->halves[p] = (floats)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(from + p * 2 * LANES)));
#else
            halves bits;
            std::memcpy(&bits, from + p * sizeof bits, sizeof bits);
            const words whole = __builtin_convertvector(bits, words);
            // the exponent of a float16 is 112 less than that of the same number in float32
            const floats size = (floats)((whole & 0x7fff) << 13) * 0x1p112f;
            own->halves[p] = (floats)((words)size | (whole & 0x8000) << 16);
#endif
        }
#endif
    }
};

// Numbers of float32, one output after the other.
struct Whole {
    typedef wide_floats Numbers;
    static const int STEP = 1, BYTES = 4 * PANEL, PARTS = 1;
    static const bool HAS_SCALES = false, IN_BLOCKS = true;
    explicit Whole(const uint8_t*) {}

    template <int>
    void widen(const uint8_t* from, Numbers* own) const {
        *own = load_panel<Numbers>((const float*)from);
    }
};

// Whether the processor adds two products of bfloat16 numbers at once.
#ifdef __AVX512BF16__
const bool HAS_PAIRS = true;
#else
const bool HAS_PAIRS = false;
#endif

// Whether the processor has instructions for products of bfloat16 numbers that the functions here do not use: tiles, and
// those of Arm.
#if defined(__AMX_BF16__) || defined(__ARM_FEATURE_BF16)
const bool LEAVES_INSTRUCTIONS = true;
#else
const bool LEAVES_INSTRUCTIONS = false;
#endif

// Codes of 8 bits, one output after the other.
struct Eight {
    typedef wide_floats Numbers;
    static const int STEP = 1, BYTES = PANEL, PARTS = 1;
    static const bool HAS_SCALES = true, IN_BLOCKS = true;
    explicit Eight(const uint8_t*) {}

    template <int>
    void widen(const uint8_t* from, Numbers* own) const {
#ifdef __AVX512F__
        *own = (Numbers)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)from)));
#else
        for (int p = 0; p < 2; ++p) {
            floats& half = own->halves[p];
#ifdef __AVX2__
            half = (floats)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)(from + p * LANES))));
#else
            for (int n = 0; n < LANES; ++n) half[n] = (int8_t)from[p * LANES + n];
#endif
        }
#endif
    }
};

// Codes of 4 bits, for four numbers of `in` at a time. Byte b has the codes of output b / 16 * 4 + b % 8 / 2 + b % 2 * 8
// for the number b / 8 % 2 of `in`, in the low bits, and for the number two further on, in the high bits. The table has
// 16 low bytes of its integers, then 16 high bytes. What is widened is 65536 times the integer.
struct Four {
    typedef two_floats Numbers;  // they are widened eight at a time
    static const int STEP = 4, BYTES = 2 * PANEL, PARTS = 2;
    static const bool HAS_SCALES = true, IN_BLOCKS = true;
#ifdef __AVX2__
    __m256i low, high;
    explicit Four(const uint8_t* table)
        : low(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)table))),
          high(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)(table + 16)))) {}
#else
    const uint8_t* table;
    explicit Four(const uint8_t* table) : table(table) {}
#endif

    template <int PLACE>
    void widen(const uint8_t* from, Numbers* own) const {
#ifdef __AVX2__
        const __m256i both = _mm256_loadu_si256((const __m256i*)from);
        const __m256i codes = _mm256_and_si256(PLACE ? _mm256_srli_epi16(both, 4) : both, _mm256_set1_epi8(15));
        const __m256i one = _mm256_shuffle_epi8(low, codes), other = _mm256_shuffle_epi8(high, codes);
        const words pairs[2] = {(words)_mm256_unpacklo_epi8(one, other), (words)_mm256_unpackhi_epi8(one, other)};
        for (int n = 0; n < 2; ++n) {
            own[n].halves[0] = __builtin_convertvector((ints)(pairs[n] << 16), floats);
            own[n].halves[1] = __builtin_convertvector((ints)(pairs[n] & 0xffff0000), floats);
        }
#else
        for (int b = 0; b < BYTES; ++b) {
            const int code = PLACE ? from[b] >> 4 : from[b] & 15;
            own[b / 8 % 2].halves[b % 2][b / 16 * 4 + b % 8 / 2] = (int16_t)(table[code] | table[code + 16] << 8) * 65536.0f;
        }
#endif
    }
};

}  // namespace
