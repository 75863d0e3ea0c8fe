// The rotation, the cache and the attention of a prefill pass: several tokens of each row.
#pragma once

#include "attention.h"

namespace {

const int QUERIES = 48;  // queries of a prompt that read a block of tokens together

// A prefill pass of one layer: for each row the projected heads of its tokens, where its cache is, and where the result
// goes. Token `t` of row `b` is number `b * tokens + t`, and its steps are numbers between tokens. A row has `sizes` of
// the tokens, at the positions from `starts` on. The angles of a row are `angles_step` numbers after those of the one
// before it. A window of 0 means that a token sees all tokens before it, and a cap of 0 that scores have none. The
// rotated queries [rows, tokens, heads, dim] go to `turned` too, where it is given.
template <typename T>
struct Prompts {
    const T *queries, *keys, *values, *cosines, *sines;
    int64_t queries_step, keys_step, values_step, angles_step;
    T *const *held_keys, *const *held_values;
    const int64_t *capacities, *starts, *sizes;
    T* out;
    int64_t rows, tokens, heads, shared, dim, window;
    float scale, cap;
    Norm<T> query_norm, key_norm;
    float* turned;
};

// Writes the new keys and values of one head of one row.
template <typename T>
void hold(const Prompts<T>& of, int64_t row, int64_t head) {
    const int64_t dim = of.dim, first = head * of.capacities[row] + of.starts[row];
    for (int64_t t = 0; t < of.sizes[row]; ++t) {
        const int64_t token = row * of.tokens + t, angles = row * of.angles_step + t * dim;
        float turned[DIM];
        turn(of.keys + token * of.keys_step + head * dim, of.key_norm, of.cosines + angles, of.sines + angles, dim,
             turned);
        T* to = of.held_keys[row] + (first + t) * dim;
        for (int64_t i = 0; i < dim; i += LANES) store(to + i, load(turned + i));
        std::memcpy(of.held_values[row] + (first + t) * dim, of.values + token * of.values_step + head * dim,
                    dim * sizeof(T));
    }
}

// Adds rows [COUNT, depth] times [depth, PANEL] to sums [COUNT, PANEL]. Steps are numbers between the rows of each.
template <int COUNT>
inline void add_products(const float* __restrict rows, int64_t rows_step, const float* __restrict by, int64_t by_step,
                         int64_t depth, float* __restrict to, int64_t to_step) {
    floats sums[COUNT][2];
#pragma GCC unroll 8
    for (int r = 0; r < COUNT; ++r)
        for (int p = 0; p < 2; ++p) sums[r][p] = load(to + r * to_step + p * LANES);
    for (int64_t k = 0; k < depth; ++k) {
        const floats one = load(by + k * by_step), other = load(by + k * by_step + LANES);
#pragma GCC unroll 8
        for (int r = 0; r < COUNT; ++r) {
            const float value = rows[r * rows_step + k];
            sums[r][0] += one * value;
            sums[r][1] += other * value;
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < COUNT; ++r)
        for (int p = 0; p < 2; ++p) store(to + r * to_step + p * LANES, sums[r][p]);
}

inline void add_products(int64_t count, const float* rows, int64_t rows_step, const float* by, int64_t by_step,
                         int64_t depth, float* to, int64_t to_step) {
    for (; count >= ROWS; count -= ROWS, rows += ROWS * rows_step, to += ROWS * to_step)
        add_products<ROWS>(rows, rows_step, by, by_step, depth, to, to_step);
    switch (count) {
        case 5: add_products<5>(rows, rows_step, by, by_step, depth, to, to_step); break;
        case 4: add_products<4>(rows, rows_step, by, by_step, depth, to, to_step); break;
        case 3: add_products<3>(rows, rows_step, by, by_step, depth, to, to_step); break;
        case 2: add_products<2>(rows, rows_step, by, by_step, depth, to, to_step); break;
        case 1: add_products<1>(rows, rows_step, by, by_step, depth, to, to_step); break;
    }
}

// The first position that a token sees.
inline int64_t seen_from(int64_t position, int64_t window) {
    return window && position >= window ? position - window + 1 : 0;
}

// What some queries of one head of keys of one row read: those from number `begin` on, where the queries of a token
// follow each other. Each query is computed by itself, over blocks of tokens that begin at multiples of BLOCK, so its
// bits depend neither on the other queries nor on the pass.
template <typename T>
void attend_queries(const Prompts<T>& of, int64_t row, int64_t head, int64_t begin) {
    const int64_t dim = of.dim, group = of.heads / of.shared, every = of.sizes[row] * group;
    const int64_t count = every - begin < QUERIES ? every - begin : QUERIES;
    const int64_t at = head * of.capacities[row] * dim, start = of.starts[row];
    const T *keys = of.held_keys[row] + at, *values = of.held_values[row] + at;
    const int64_t end = start + (begin + count - 1) / group + 1;
    alignas(64) float queries[QUERIES * DIM], sums[QUERIES * DIM], scores[QUERIES * BLOCK], wide[BLOCK * DIM];
    float most[QUERIES], total[QUERIES];
    for (int64_t n = 0; n < count; ++n) {
        const int64_t t = (begin + n) / group, angles = row * of.angles_step + t * dim;
        const int64_t own = head * group + (begin + n) % group;
        const T* query = of.queries + (row * of.tokens + t) * of.queries_step;
        turn(query + own * dim, of.query_norm, of.cosines + angles, of.sines + angles, dim, queries + n * dim);
        float* turned = of.turned + ((row * of.tokens + t) * of.heads + own) * dim;
        if (of.turned) std::memcpy(turned, queries + n * dim, dim * sizeof(float));
        most[n] = -INFINITY;
        total[n] = 0;
    }
    std::memset(sums, 0, count * dim * sizeof(float));
    int64_t token = seen_from(start + begin / group, of.window) / BLOCK * BLOCK;
    for (; token < end; token += BLOCK) {
        const int64_t size = end - token < BLOCK ? end - token : BLOCK;
        // the keys of PANEL tokens lie together, number by number
        for (int64_t t = 0; t < BLOCK; t += LANES)
            for (int64_t i = 0; i < dim; i += LANES) {
                floats part[LANES];
                for (int n = 0; n < LANES; ++n)
                    part[n] = t + n < size ? load(keys + (token + t + n) * dim + i) : all(0);
                transpose(part);
                for (int n = 0; n < LANES; ++n)
                    store(wide + (t / PANEL * dim + i + n) * PANEL + t % PANEL, part[n]);
            }
        std::memset(scores, 0, count * BLOCK * sizeof(float));
        for (int64_t t = 0; t < size; t += PANEL)
            add_products(count, queries, dim, wide + t * dim, PANEL, dim, scores + t, BLOCK);
        for (int64_t n = 0; n < count; ++n) {
            float* own = scores + n * BLOCK;
            const int64_t position = start + (begin + n) / group;
            const int64_t from = seen_from(position, of.window) - token;
            const int32_t first = from > 0 ? (from < BLOCK ? from : BLOCK) : 0;
            const int32_t last = position - token < BLOCK ? position - token : BLOCK;
            if (first >= BLOCK || last < 0) {
                std::memset(own, 0, BLOCK * sizeof(float));
                continue;
            }
            floats largest = all(-INFINITY);
            for (int64_t t = 0; t < BLOCK; t += LANES) {
                ints place = (ints){0, 1, 2, 3, 4, 5, 6, 7} + (int32_t)t;
                ints is_seen = (place >= first) & (place <= last);
                floats score = load(own + t) * of.scale;
                if (of.cap) score = capped(score, of.cap);
                score = is_seen ? score : all(-INFINITY);
                largest = score > largest ? score : largest;
                store(own + t, score);
            }
            float now = most[n];
            for (int t = 0; t < LANES; ++t) now = largest[t] > now ? largest[t] : now;
            const float kept = exponential(all(most[n] - now))[0];
            floats added = {};
            for (int64_t t = 0; t < BLOCK; t += LANES) {
                floats power = exponential(load(own + t) - now);
                store(own + t, power);
                added += power;
            }
            most[n] = now;
            total[n] = total[n] * kept + sum(added);
            for (int64_t i = 0; i < dim; i += LANES) store(sums + n * dim + i, load(sums + n * dim + i) * kept);
        }
        for (int64_t t = 0; t < size; ++t) widen(values + (token + t) * dim, dim, wide + t * dim);
        for (int64_t i = 0; i < dim; i += PANEL) add_products(count, scores, BLOCK, wide + i, dim, size, sums + i, dim);
    }
    for (int64_t n = 0; n < count; ++n) {
        const int64_t t = (begin + n) / group, query = head * group + (begin + n) % group;
        for (int64_t i = 0; i < dim; i += LANES)
            store(of.out + ((row * of.tokens + t) * of.heads + query) * dim + i, load(sums + n * dim + i) / total[n]);
    }
}

template <typename T>
void attend_prompts(const Prompts<T>* of, int threads) {
    const int64_t heads = of->rows * of->shared, each = (of->tokens * (of->heads / of->shared) + QUERIES - 1) / QUERIES;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t n = 0; n < heads; ++n) hold(*of, n / of->shared, n % of->shared);
    // the last queries read most tokens, so they go first
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
    for (int64_t n = heads * each - 1; n >= 0; --n) {
        const int64_t row = n % heads / of->shared, begin = n / heads * QUERIES;
        if (begin < of->sizes[row] * (of->heads / of->shared)) attend_queries(*of, row, n % of->shared, begin);
    }
}

}  // namespace
