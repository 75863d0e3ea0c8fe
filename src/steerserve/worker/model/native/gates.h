// What stands between the products of a gated MLP (Shazeer 2020, arXiv:2002.05202).
#pragma once

#include "vectors.h"

namespace {

// SiLU or GELU with a tanh (Hendrycks and Gimpel 2016, arXiv:1606.08415): a number x times the logistic function of x,
// or of 2 sqrt(2 / pi) (x + 0.044715 x^3).
enum Activation : int32_t { SILU, GELU };

// The activation of some numbers, times others.
template <typename T>
ONCE void gate(const T* gates, const T* others, T* out, int64_t width, Activation activation) {
    for (int64_t at = 0; at < width; at += LANES) {
        floats value = load(gates + at), of = value;
        if (activation == GELU) of = value * (value * value * 0.0713548163f + 1.59576912f);
        floats power = exponential(of < 0.0f ? of : -of);
        floats share = (of < 0.0f ? power : all(1.0f)) / (power + 1.0f);
        store(out + at, value * share * load(others + at));
    }
}

template <typename T>
void gate_all(const T* gates, const T* others, T* out, int64_t count, int64_t width, int64_t gates_step,
              int64_t others_step, Activation activation, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t row = 0; row < count; ++row)
        gate(gates + row * gates_step, others + row * others_step, out + row * width, width, activation);
}

}  // namespace
