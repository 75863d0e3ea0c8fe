// RMSNorm (Zhang and Sennrich 2019, arXiv:1910.07467) of rows.
#pragma once

#include <cmath>

#include "vectors.h"

namespace {

// The numbers of a row are multiplied by `weight` plus `shift`, and `constant` is added to the mean of their squares.
// There is no norm without a weight.
template <typename T>
struct Norm {
    const T* weight;
    float constant, shift;
};

template <typename T>
ONCE void normalise(const T* row, const Norm<T>& norm, T* out, int64_t width) {
    floats parts[4] = {};
    for (int64_t at = 0; at < width; at += LANES) {
        floats value = load(row + at);
        parts[at / LANES % 4] += value * value;
    }
    float squares = sum((parts[0] + parts[1]) + (parts[2] + parts[3]));
    floats length = all(std::sqrt(squares / width + norm.constant));
    for (int64_t at = 0; at < width; at += LANES)
        store(out + at, load(row + at) * (load(norm.weight + at) + norm.shift) / length);
}

template <typename T>
void normalise_all(const T* rows, const Norm<T>& norm, T* out, int64_t count, int64_t width, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t row = 0; row < count; ++row) normalise(rows + row * width, norm, out + row * width, width);
}

}  // namespace
