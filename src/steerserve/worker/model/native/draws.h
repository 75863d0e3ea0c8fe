// What draws the next token of each row from its logits. All sums have the bits of numbers that are added one after the
// other in double and rounded once to float.
#pragma once

#include <cmath>

#include "vectors.h"

namespace {

const int64_t PART = 512;  // numbers that are looked at together
const float TINY = 1.17549435e-38f;

inline float single(const float* from) { return *from; }
inline float single(const bfloat16* from) {
    const uint32_t bits = (uint32_t)from->bits << 16;
    float found;
    std::memcpy(&found, &bits, sizeof found);
    return found;
}

// The largest number of a row; NaN where one of its numbers is NaN.
template <typename T>
float largest(const T* row, int64_t size) {
    floats most[4] = {all(-INFINITY), all(-INFINITY), all(-INFINITY), all(-INFINITY)};
    ints is_nan = {};
    int64_t at = 0;
    for (; at + 4 * LANES <= size; at += 4 * LANES)
        for (int n = 0; n < 4; ++n) {
            const floats value = load(row + at + n * LANES);
            is_nan |= value != value;
            most[n] = value > most[n] ? value : most[n];
        }
    float found = -INFINITY;
    for (int n = 0; n < 4 * LANES; ++n) {
        if (is_nan[n % LANES]) return NAN;
        found = most[n / LANES][n % LANES] > found ? most[n / LANES][n % LANES] : found;
    }
    for (; at < size; ++at) {
        const float value = single(row + at);
        if (value != value) return NAN;
        found = value > found ? value : found;
    }
    return found;
}

// The first place of a row that has this number; 0 where none has.
template <typename T>
int64_t first_of(const T* row, int64_t size, float value) {
    int64_t at = 0;
    for (; at + PART <= size; at += PART) {
        ints same = {};
        for (int64_t n = 0; n < PART; n += LANES) same |= load(row + at + n) == value;
        int32_t has = 0;
        for (int n = 0; n < LANES; ++n) has |= same[n];
        if (has) break;
    }
    for (; at < size; ++at)
        if (single(row + at) == value) return at;
    return 0;
}

template <typename T>
void scale(const T* row, int64_t size, float peak, float temperature, float* out) {
    int64_t at = 0;
    for (; at + LANES <= size; at += LANES) store(out + at, (load(row + at) - peak) / temperature);
    for (; at < size; ++at) out[at] = (single(row + at) - peak) / temperature;
}

// Rows of logits, `step` numbers from each other: the peak of each row, and the first token that has it where the
// temperature of the row is 0. The next row of `scaled` gets the logits of a row with another temperature: the
// differences to the peak, divided by the temperature.
template <typename T>
void peak_all(const T* rows, int64_t step, int64_t count, int64_t size, const float* temperatures, float* peaks,
              int64_t* tokens, float* scaled, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t n = 0; n < count; ++n) {
        const T* row = rows + n * step;
        peaks[n] = largest(row, size);
        if (temperatures[n] == 0) {
            tokens[n] = first_of(row, size, peaks[n]);
            continue;
        }
        int64_t place = 0;
        for (int64_t before = 0; before < n; ++before) place += temperatures[before] != 0;
        scale(row, size, peaks[n], temperatures[n], scaled + place * size);
    }
}

// The sum of those numbers that are above `floor`, in some order.
double added(const float* row, int64_t size, float floor) {
    doubles sums[2] = {};
    int64_t at = 0;
    for (; at + LANES <= size; at += LANES) {
        const floats value = load(row + at);
        const floats kept = value > floor ? value : all(0.0f);
        for (int n = 0; n < 2; ++n) {
            quarters part;
            std::memcpy(&part, (const char*)&kept + n * sizeof part, sizeof part);
            sums[n] += __builtin_convertvector(part, doubles);
        }
    }
    const doubles both = sums[0] + sums[1];
    double found = (both[0] + both[2]) + (both[1] + both[3]);
    for (; at < size; ++at) found += row[at] > floor ? row[at] : 0.0f;
    return found;
}

// By how much two sums of these numbers in different orders may differ.
inline double slack_of(double sum, int64_t size) { return sum * (size + PART) * 0x1p-52; }

// The sum of the numbers above `floor`, added one after the other, as float.
float mass_above(const float* row, int64_t size, float floor) {
    double sum = added(row, size, floor);
    const double slack = slack_of(sum, size);
    if ((float)(sum - slack) == (float)(sum + slack)) return (float)sum;
    sum = 0;
    for (int64_t at = 0; at < size; ++at) sum += row[at] > floor ? row[at] : 0.0f;
    return (float)sum;
}

// The first place at which the sum of the numbers above `floor`, added one after the other up to there, is as float not
// below the threshold; the last place where there is none.
int64_t reached(const float* row, int64_t size, float floor, float threshold, float mass) {
    // a sum is rounded up to the threshold from the middle between it and the float below it on
    const double middle = ((double)threshold + std::nextafter(threshold, 0.0f)) / 2, slack = slack_of(mass, size);
    double sum = 0;
    bool is_close = false;
    for (int64_t at = 0; at < size && !is_close; at += PART) {
        const int64_t end = at + PART < size ? at + PART : size;
        const double next = sum + added(row + at, end - at, floor);
        if (next < middle - slack) {
            sum = next;
            continue;
        }
        for (int64_t n = at; n < end && !is_close; ++n) {
            sum += row[n] > floor ? row[n] : 0.0f;
            if (sum >= middle + slack) return n;
            is_close = sum >= middle - slack;
        }
    }
    sum = 0;
    for (int64_t at = 0; at < size; ++at) {
        sum += row[at] > floor ? row[at] : 0.0f;
        if ((float)sum >= threshold) return at;
    }
    return size - 1;
}

// One draw of a row of weights. Only weights above `floor` count, and they hold `mass` together. `is_outside` says
// that the token lies outside the nucleus: those above its weight hold `limit` or more, and are drawn from next.
struct Draw {
    double limit;
    int64_t row, token;
    float uniform, floor, mass;
    int32_t is_outside;
};

void draw_one(const float* row, int64_t size, Draw& of) {
    if (of.floor < 0) of.mass = mass_above(row, size, of.floor);
    const float threshold = of.uniform * of.mass;
    // a draw of exactly 0 must not pick a token of weight 0 at the front
    of.token = reached(row, size, of.floor, threshold > TINY ? threshold : TINY, of.mass);
    of.is_outside = 0;
    if (of.limit < 1) {
        const float floor = row[of.token], mass = mass_above(row, size, floor);
        of.is_outside = mass >= of.limit;
        of.floor = floor;
        of.mass = mass;
    }
}

void draw_all(const float* weights, int64_t size, Draw* draws, int64_t count, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t n = 0; n < count; ++n) draw_one(weights + draws[n].row * size, size, draws[n]);
}

}  // namespace
