// What stands between the products of a gated MLP (Shazeer 2020, arXiv:2002.05202).
#pragma once

#include "vectors.h"

namespace {

// SiLU (Hendrycks and Gimpel 2016, arXiv:1606.08415) of some numbers, times others.
template <typename T>
ONCE void gate(const T* gates, const T* others, T* out, int64_t width) {
    for (int64_t at = 0; at < width; at += LANES) {
        floats value = load(gates + at);
        floats power = exponential(value < 0.0f ? value : -value);
        floats share = (value < 0.0f ? power : all(1.0f)) / (power + 1.0f);
        store(out + at, value * share * load(others + at));
    }
}

template <typename T>
void gate_all(const T* gates, const T* others, T* out, int64_t count, int64_t width, int64_t gates_step,
              int64_t others_step, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t row = 0; row < count; ++row)
        gate(gates + row * gates_step, others + row * others_step, out + row * width, width);
}

}  // namespace
