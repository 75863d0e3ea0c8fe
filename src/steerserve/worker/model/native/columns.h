// The figures of the columns of some rows, in double: see `Kernels.figures`.
#pragma once

#include "vectors.h"

namespace {

struct Figures {
    const float* values;
    int64_t rows, width;
    double *means, *squares;
    float *active, *least, *greatest;
};

// `COUNT` times LANES columns. Differences from the first row are summed, so that sums stay exact far from 0.
template <int COUNT>
void measure(const Figures& of, int64_t column) {
    const float* from = of.values + column;
    quarters first[2 * COUNT];
    doubles sums[2 * COUNT] = {}, squares[2 * COUNT] = {};
    floats least[COUNT], greatest[COUNT];
    ints active[COUNT] = {};
    std::memcpy(first, from, sizeof first);
    std::memcpy(least, from, sizeof least);
    std::memcpy(greatest, from, sizeof greatest);
    for (int64_t row = 0; row < of.rows; ++row, from += of.width)
        for (int n = 0; n < COUNT; ++n) {
            const floats value = load(from + n * LANES);
            least[n] = value < least[n] ? value : least[n];
            greatest[n] = value > greatest[n] ? value : greatest[n];
            active[n] -= value != 0.0f;
            for (int half = 2 * n; half < 2 * n + 2; ++half) {
                quarters part;
                std::memcpy(&part, from + half * LANES / 2, sizeof part);
                const doubles apart =
                    __builtin_convertvector(part, doubles) - __builtin_convertvector(first[half], doubles);
                sums[half] += apart;
                squares[half] += apart * apart;
            }
        }
    const double rows = of.rows;
    for (int n = 0; n < COUNT * LANES; ++n) {
        const int half = n / (LANES / 2), at = n % (LANES / 2);
        const double rest = sums[half][at] / rows, spread = squares[half][at] - rest * rest * rows;
        of.means[column + n] = first[half][at] + rest;
        of.squares[column + n] = spread > 0 ? spread : 0;
        of.active[column + n] = active[n / LANES][n % LANES];
        of.least[column + n] = least[n / LANES][n % LANES];
        of.greatest[column + n] = greatest[n / LANES][n % LANES];
    }
}

void measure_all(const Figures& of, int threads) {
    const int64_t count = of.width / (2 * LANES);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t n = 0; n < count; ++n) measure<2>(of, n * 2 * LANES);
}

}  // namespace
