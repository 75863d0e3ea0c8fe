// Vectors of numbers in float32, and how they are read from rows and written to rows of float32 or bfloat16.
#pragma once

#include <cstdint>
#include <cstring>
#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace {

typedef float floats __attribute__((vector_size(32)));
typedef int32_t ints __attribute__((vector_size(32)));
typedef uint32_t words __attribute__((vector_size(32)));
typedef uint16_t halves __attribute__((vector_size(16)));
typedef double doubles __attribute__((vector_size(32)));
typedef float quarters __attribute__((vector_size(16)));

// Each of these functions is compiled once, so that all its callers get the same bits.
#define ONCE __attribute__((noinline))

struct bfloat16 {
    uint16_t bits;
};

const int LANES = 8;
const int ROWS = 6;    // rows that are multiplied together
const int PANEL = 16;  // outputs of a weight that lie together

inline floats load(const float* from) {
    floats found;
    std::memcpy(&found, from, sizeof found);
    return found;
}

inline floats load(const bfloat16* from) {
    halves bits;
    std::memcpy(&bits, from, sizeof bits);
#ifdef __AVX2__
    return (floats)((words)_mm256_cvtepu16_epi32((__m128i)bits) << 16);
#else
    return (floats)(__builtin_convertvector(bits, words) << 16);
#endif
}

inline void store(float* to, floats value) { std::memcpy(to, &value, sizeof value); }

// The PANEL numbers of one panel.
struct two_floats {
    floats halves[2];
};

inline floats eight_of(const two_floats& value, int half) { return value.halves[half]; }
inline two_floats operator*(two_floats one, two_floats other) {
    return {{one.halves[0] * other.halves[0], one.halves[1] * other.halves[1]}};
}
inline two_floats operator*(two_floats one, float other) { return {{one.halves[0] * other, one.halves[1] * other}}; }
inline two_floats operator+(two_floats one, two_floats other) {
    return {{one.halves[0] + other.halves[0], one.halves[1] + other.halves[1]}};
}
inline void operator+=(two_floats& one, two_floats other) { one = one + other; }

// The same, as one vector where the processor has such vectors.
#ifdef __AVX512F__
typedef float wide_floats __attribute__((vector_size(64)));

inline floats eight_of(wide_floats value, int half) {
    const __m512d both = _mm512_castps_pd((__m512)value);
    return (floats)_mm256_castpd_ps(half ? _mm512_extractf64x4_pd(both, 1) : _mm512_castpd512_pd256(both));
}
#else
typedef two_floats wide_floats;
#endif

template <typename F>
inline F load_panel(const float* from) {
    F found;
    std::memcpy(&found, from, sizeof found);
    return found;
}

template <typename F>
inline void store_panel(float* to, F value) { std::memcpy(to, &value, sizeof value); }

// rounds to the nearest, and to the even one of two that are as near; NaN stays NaN
inline void store(bfloat16* to, floats value) {
    words bits = (words)value;
    words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    words is_nan = (words)((bits & 0x7fffffff) > 0x7f800000);
    rounded = (rounded & ~is_nan) | (0x7fc0 & is_nan);
    halves low = __builtin_convertvector(rounded, halves);
    std::memcpy(to, &low, sizeof low);
}

inline float sum(floats value) {
    return ((value[0] + value[4]) + (value[1] + value[5])) + ((value[2] + value[6]) + (value[3] + value[7]));
}

inline floats all(float value) { return (floats){value, value, value, value, value, value, value, value}; }

// Eight rows of eight numbers become the columns.
inline void transpose(floats* rows) {
#ifdef __AVX2__
    __m256 pairs[LANES], fours[LANES];
    for (int i = 0; i < LANES; i += 2) {
        pairs[i] = _mm256_unpacklo_ps((__m256)rows[i], (__m256)rows[i + 1]);
        pairs[i + 1] = _mm256_unpackhi_ps((__m256)rows[i], (__m256)rows[i + 1]);
    }
    for (int i = 0; i < LANES; i += 4)
        for (int n = 0; n < 2; ++n) {
            fours[i + 2 * n] = _mm256_shuffle_ps(pairs[i + n], pairs[i + n + 2], 0x44);
            fours[i + 2 * n + 1] = _mm256_shuffle_ps(pairs[i + n], pairs[i + n + 2], 0xee);
        }
    for (int i = 0; i < 4; ++i) {
        rows[i] = (floats)_mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20);
        rows[i + 4] = (floats)_mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31);
    }
#else
    floats columns[LANES];
    for (int i = 0; i < LANES; ++i)
        for (int n = 0; n < LANES; ++n) columns[i][n] = rows[n][i];
    std::memcpy(rows, columns, sizeof columns);
#endif
}

// e to the power of a number that is not above 0, within 2^-22 of it; 0 below -87
inline floats exponential(floats value) {
    ints is_small = value < -87.0f;
    floats bounded = is_small ? all(-87.0f) : value;
    floats scaled = bounded * 1.44269504f - 0.5f;
    ints whole = __builtin_convertvector(scaled, ints);
    floats power = __builtin_convertvector(whole, floats);
    floats rest = (bounded - power * 0.693359375f) + power * 2.12194440e-4f;
    floats found = all(1.9875691500e-4f);
    found = found * rest + 1.3981999507e-3f;
    found = found * rest + 8.3334519073e-3f;
    found = found * rest + 4.1665795894e-2f;
    found = found * rest + 1.6666665459e-1f;
    found = found * rest + 5.0000001201e-1f;
    found = found * rest * rest + rest + 1.0f;
    found = (floats)((ints)found + (whole << 23));
    return is_small ? all(0.0f) : found;
}

template <typename T>
inline void widen(const T* from, int64_t count, float* to) {
    for (int64_t at = 0; at < count; at += LANES) store(to + at, load(from + at));
}

}  // namespace
