// Products of rows with weights.
#pragma once

#include "threads.h"
#include "weights.h"

namespace {

// Rows [count, in] times a weight, plus its bias where there is one. `wide` has room for the rows as float32: ROWS of
// them together, number by number. Rows that are multiplied in pairs lie there as bfloat16, pair by pair.
template <typename T>
struct Product {
    const Weight* by;
    const T *rows, *bias;
    float* wide;
    T* out;
    int64_t count;
};

// Writes LANES numbers of a row of the result, or as many as it has from `first` on.
template <typename T>
inline void finish(const Product<T>& of, int64_t row, int64_t first, floats found) {
    const int64_t width = of.by->width;
    T* to = of.out + row * width + first;
    if (first + LANES <= width) {
        if (of.bias) found += load(of.bias + first);
        store(to, found);
    } else if (first < width) {
        T bias[LANES] = {}, kept[LANES];
        const int64_t size = (width - first) * sizeof(T);
        if (of.bias) std::memcpy(bias, of.bias + first, size);
        store(kept, found + load(bias));
        std::memcpy(to, kept, size);
    }
}

const int64_t AHEAD = 1024;  // bytes of a panel

// Adds the products of some rows with the numbers at `from` of each panel, for the numbers of `in` in one part of a step.
template <int PLACE, int COUNT, int PANELS, typename W>
inline void add_part(const W& numbers, const uint8_t* from, int64_t panel_bytes, const float* rows,
                     typename W::Numbers (&sums)[COUNT][PANELS]) {
    const int together = W::STEP / W::PARTS;
#pragma GCC unroll 2
    for (int p = 0; p < PANELS; ++p) {
        typename W::Numbers own[together];
        // few rows wait for the memory: it is asked for the numbers that come later
        if (COUNT <= 2 && PLACE == 0) __builtin_prefetch(from + p * panel_bytes + AHEAD);
        numbers.template widen<PLACE>(from + p * panel_bytes, own);
#pragma GCC unroll 2
        for (int n = 0; n < together; ++n)
#pragma GCC unroll 8
            for (int r = 0; r < COUNT; ++r) sums[r][p] += own[n] * rows[(PLACE * together + n) * COUNT + r];
    }
}

// Some rows times some panels. Every number is summed in the order of `in`, by blocks of `each`, whatever the rows and
// the panels are.
template <typename W, int COUNT, int PANELS, typename T>
ONCE void block(const Product<T>& of, const W& numbers, int64_t row, int64_t panel) {
    const int64_t in = of.by->size, bytes = in / W::STEP * W::BYTES;
    const int64_t each = W::IN_BLOCKS ? of.by->each : in, blocks = in / each;
    const float* __restrict rows = of.wide + row * in;
    const uint8_t* __restrict from = of.by->panels + panel * bytes;
    const float* scales = of.by->scales + panel * blocks * PANEL;
    typedef typename W::Numbers Numbers;
    Numbers total[COUNT][PANELS] = {};
    for (int64_t b = 0; b < blocks; ++b) {
        Numbers sums[COUNT][PANELS] = {};
        for (int64_t k = b * each; k < (b + 1) * each; k += W::STEP, from += W::BYTES) {
            add_part<0, COUNT, PANELS>(numbers, from, bytes, rows + k * COUNT, sums);
            if constexpr (W::PARTS > 1) add_part<1, COUNT, PANELS>(numbers, from, bytes, rows + k * COUNT, sums);
        }
        for (int r = 0; r < COUNT; ++r)
            for (int p = 0; p < PANELS; ++p) {
                if constexpr (W::HAS_SCALES)
                    total[r][p] += sums[r][p] * load_panel<Numbers>(scales + (p * blocks + b) * PANEL);
                else if constexpr (W::IN_BLOCKS)
                    total[r][p] += sums[r][p];
                else
                    total[r][p] = sums[r][p];
            }
    }
    for (int r = 0; r < COUNT; ++r)
        for (int p = 0; p < 2 * PANELS; ++p)
            finish(of, row + r, panel * PANEL + p * LANES, eight_of(total[r][p / 2], p % 2));
}

#ifdef __AVX512BF16__
// As `block`, for rows that lie in pairs. The processor adds the two products of a pair to a sum at once.
template <int COUNT, int PANELS>
ONCE void block_of_pairs(const Product<bfloat16>& of, int64_t row, int64_t panel) {
    const int64_t in = of.by->size, bytes = in / Half::STEP * Half::BYTES;
    const int32_t* rows = (const int32_t*)(of.wide + row * in);
    const uint8_t* from = of.by->panels + panel * bytes;
    __m512 sums[COUNT][PANELS];
    for (int r = 0; r < COUNT; ++r)
        for (int p = 0; p < PANELS; ++p) sums[r][p] = _mm512_setzero_ps();
    for (int64_t k = 0; k < in / 2; ++k, from += Half::BYTES) {
        __m512bh numbers[PANELS];
#pragma GCC unroll 2
        for (int p = 0; p < PANELS; ++p) {
            if (COUNT <= 2) __builtin_prefetch(from + p * bytes + AHEAD);
            numbers[p] = (__m512bh)_mm512_loadu_si512(from + p * bytes);
        }
#pragma GCC unroll 8
        for (int r = 0; r < COUNT; ++r) {
            const __m512bh pair = (__m512bh)_mm512_set1_epi32(rows[k * COUNT + r]);
#pragma GCC unroll 2
            for (int p = 0; p < PANELS; ++p) sums[r][p] = _mm512_dpbf16_ps(sums[r][p], numbers[p], pair);
        }
    }
    for (int r = 0; r < COUNT; ++r)
        for (int p = 0; p < PANELS; ++p) {
            float found[PANEL];
            _mm512_storeu_ps(found, sums[r][p]);
            for (int n = 0; n < PANEL; n += LANES) finish(of, row + r, (panel + p) * PANEL + n, load(found + n));
        }
}

template <int PANELS>
void multiply_pairs(const Product<bfloat16>& of, int64_t panel) {
    int64_t row = 0;
    for (; row + ROWS <= of.count; row += ROWS) block_of_pairs<ROWS, PANELS>(of, row, panel);
    switch (of.count - row) {
        case 5: block_of_pairs<5, PANELS>(of, row, panel); break;
        case 4: block_of_pairs<4, PANELS>(of, row, panel); break;
        case 3: block_of_pairs<3, PANELS>(of, row, panel); break;
        case 2: block_of_pairs<2, PANELS>(of, row, panel); break;
        case 1: block_of_pairs<1, PANELS>(of, row, panel); break;
    }
}
#endif

// Whether rows of this type are multiplied with a weight in pairs.
template <typename T>
inline bool are_paired(const Weight& by) {
    return HAS_PAIRS && sizeof(T) == sizeof(bfloat16) && by.form == BFLOAT16;
}

const int64_t DEPTH = 64;  // numbers of `in` that are widened at once for several rows
const int64_t CROWD = 96;  // the most rows that share what is widened

// Adds the products of some rows with numbers that are widened.
template <int COUNT>
ONCE void add_widened(const float* __restrict numbers, const float* __restrict rows, int64_t size, const float* scales,
                      float* total) {
    wide_floats sums[COUNT] = {};
    for (int64_t k = 0; k < size; ++k) {
        const wide_floats own = load_panel<wide_floats>(numbers + k * PANEL);
#pragma GCC unroll 8
        for (int r = 0; r < COUNT; ++r) sums[r] += own * rows[k * COUNT + r];
    }
    const wide_floats scale = load_panel<wide_floats>(scales);
    for (int r = 0; r < COUNT; ++r) {
        float* to = total + r * PANEL;
        store_panel(to, load_panel<wide_floats>(to) + sums[r] * scale);
    }
}

// As `block`, with the same bits, for the rows from `first` to before `last`, which share what is widened.
template <typename T>
void multiply_crowd(const Product<T>& of, const Four& numbers, int64_t first, int64_t last, int64_t panel) {
    const int64_t in = of.by->size, each = of.by->each, blocks = in / each;
    const uint8_t* from = of.by->panels + panel * in / Four::STEP * Four::BYTES;
    alignas(64) float wide[DEPTH * PANEL], total[CROWD * PANEL];
    std::memset(total, 0, (last - first) * PANEL * sizeof(float));
    for (int64_t b = 0; b < blocks; ++b) {
        for (int64_t k = 0; k < each; k += Four::STEP, from += Four::BYTES) {
            Four::Numbers own[Four::STEP];
            numbers.widen<0>(from, own);
            numbers.widen<1>(from, own + Four::STEP / Four::PARTS);
            std::memcpy(wide + k * PANEL, own, sizeof own);
        }
        const float* scales = of.by->scales + (panel * blocks + b) * PANEL;
        for (int64_t row = first; row < last; row += ROWS) {
            const int64_t size = last - row < ROWS ? last - row : ROWS;
            const float* rows = of.wide + row * in + b * each * size;
            float* to = total + (row - first) * PANEL;
            switch (size) {
                case 6: add_widened<6>(wide, rows, each, scales, to); break;
                case 5: add_widened<5>(wide, rows, each, scales, to); break;
                case 4: add_widened<4>(wide, rows, each, scales, to); break;
                case 3: add_widened<3>(wide, rows, each, scales, to); break;
                case 2: add_widened<2>(wide, rows, each, scales, to); break;
                case 1: add_widened<1>(wide, rows, each, scales, to); break;
            }
        }
    }
    for (int64_t row = first; row < last; ++row)
        for (int p = 0; p < 2; ++p)
            finish(of, row, panel * PANEL + p * LANES, load(total + (row - first) * PANEL + p * LANES));
}

template <typename W, typename T>
void multiply_panels(const Product<T>& of, int64_t first, int64_t last) {
    const W numbers(of.by->table);
    int64_t panel = first;
    // with few rows, the sums of two panels hide how long an addition takes
    if (of.count == 1)
        for (; panel + 1 < last; panel += 2) block<W, 1, 2>(of, numbers, 0, panel);
    if (of.count == 2)
        for (; panel + 1 < last; panel += 2) block<W, 2, 2>(of, numbers, 0, panel);
    if constexpr (W::HAS_SCALES && W::PARTS > 1)
        if (of.count > 2 && of.by->each <= DEPTH)
            for (; panel < last; ++panel)
                for (int64_t row = 0; row < of.count; row += CROWD)
                    multiply_crowd(of, numbers, row, row + CROWD < of.count ? row + CROWD : of.count, panel);
    for (; panel < last; ++panel) {
        int64_t row = 0;
        for (; row + ROWS <= of.count; row += ROWS) block<W, ROWS, 1>(of, numbers, row, panel);
        switch (of.count - row) {
            case 5: block<W, 5, 1>(of, numbers, row, panel); break;
            case 4: block<W, 4, 1>(of, numbers, row, panel); break;
            case 3: block<W, 3, 1>(of, numbers, row, panel); break;
            case 2: block<W, 2, 1>(of, numbers, row, panel); break;
            case 1: block<W, 1, 1>(of, numbers, row, panel); break;
        }
    }
}

// Where the numbers of a row lie among those of the rows that are multiplied together with it.
struct Lane {
    float* first;
    int64_t step;
};

inline Lane lane(float* wide, int64_t row, int64_t count, int64_t in) {
    const int64_t first = row / ROWS * ROWS, size = count - first < ROWS ? count - first : ROWS;
    return {wide + first * in + row - first, size};
}

// Writes numbers of a row, from the one at `first` on, where they are multiplied with a weight.
template <typename T>
inline void spread(const T* from, int64_t size, Lane to, int64_t first, const Weight& by) {
    if (are_paired<T>(by)) {
        float* pairs = to.first + first / 2 * to.step;
        if (to.step == 1)
            std::memcpy(pairs, from, size * sizeof *from);
        else
            for (int64_t k = 0; k < size; k += 2) std::memcpy(pairs + k / 2 * to.step, from + k, sizeof *pairs);
    } else if (to.step == 1)
        widen(from, size, to.first + first);
    else
        for (int64_t k = 0; k < size; k += LANES) {
            floats value = load(from + k);
            for (int n = 0; n < LANES; ++n) to.first[(first + k + n) * to.step] = value[n];
        }
}

const int64_t CHUNK = 2;  // panels that a thread takes at once
const int64_t FEW = 64;   // rows of a decode pass. Products of more rows share the threads of the tensor library.

inline int64_t chunks(int64_t width) { return ((width + PANEL - 1) / PANEL + CHUNK - 1) / CHUNK; }

template <typename T>
inline void multiply_chunk(const Product<T>& of, int64_t chunk) {
    const int64_t all = (of.by->width + PANEL - 1) / PANEL, first = chunk * CHUNK;
    const int64_t last = first + CHUNK < all ? first + CHUNK : all;
#ifdef __AVX512BF16__
    if constexpr (sizeof(T) == sizeof(bfloat16))
        if (are_paired<T>(*of.by)) {
            int64_t panel = first;
            for (; panel + 1 < last; panel += 2) multiply_pairs<2>(of, panel);
            if (panel < last) multiply_pairs<1>(of, panel);
            return;
        }
#endif
    switch (of.by->form) {
        case BFLOAT16: return multiply_panels<Half>(of, first, last);
        case FLOAT16: return multiply_panels<Sixteen>(of, first, last);
        case FLOAT32: return multiply_panels<Whole>(of, first, last);
        case CODE_OF_8: return multiply_panels<Eight>(of, first, last);
        case CODE_OF_4: return multiply_panels<Four>(of, first, last);
    }
}

template <typename T>
void multiply_all(const Product<T>& of, int threads) {
    const int64_t in = of.by->size, count = chunks(of.by->width);
    const auto spread_row = [&](int64_t row) {
        spread(of.rows + row * in, in, lane(of.wide, row, of.count, in), 0, *of.by);
    };
    if (of.count <= FEW) {
        const Team::Turn turn(threads);
        Team::own().share(turn, of.count, spread_row);
        Team::own().share(turn, count, [&](int64_t chunk) { multiply_chunk(of, chunk); });
        return;
    }
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t row = 0; row < of.count; ++row) spread_row(row);
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
    for (int64_t chunk = 0; chunk < count; ++chunk) multiply_chunk(of, chunk);
}

}  // namespace
