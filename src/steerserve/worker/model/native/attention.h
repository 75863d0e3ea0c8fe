// The rotation, the cache and the attention of a decode pass: one token of each row.
#pragma once

#include <cmath>

#include "norms.h"
#include "vectors.h"

namespace {

const int BLOCK = 64;    // tokens whose scores are held at once
const int GROUP = 8;     // heads of queries that read a token together
const int TOGETHER = 4;  // tokens whose values are added together
const int DIM = 256;     // the most numbers of a head

// Rotates a head by the angles of its position: each number with the one half a head further on.
template <typename T>
inline void turn(const T* head, const T* cosines, const T* sines, int64_t dim, float* out) {
    int64_t half = dim / 2;
    for (int64_t at = 0; at < half; at += LANES) {
        floats one = load(head + at), other = load(head + half + at);
        store(out + at, one * load(cosines + at) - other * load(sines + at));
        store(out + half + at, other * load(cosines + half + at) + one * load(sines + half + at));
    }
}

// As above, after the norm of the head, where there is one. The norm rounds to the dtype of the head, as it does alone.
template <typename T>
inline void turn(const T* head, const Norm<T>& norm, const T* cosines, const T* sines, int64_t dim, float* out) {
    T normalised[DIM];
    if (norm.weight) {
        normalise(head, norm, normalised, dim);
        head = normalised;
    }
    turn(head, cosines, sines, dim, out);
}

// Scores with a soft cap (Gemma 2, arXiv:2408.00118): cap * tanh(score / cap).
inline floats capped(floats score, float cap) {
    floats twice = score * (2 / cap);
    floats power = exponential(twice < 0.0f ? twice : -twice);
    floats found = (1.0f - power) / (power + 1.0f) * cap;
    return score < 0.0f ? -found : found;
}

// One layer of a decode pass: for each row the projected heads, where its cache is, and where the result goes. Steps are
// numbers between the rows of a tensor. A window of 0 means that a row sees all its tokens, and a cap of 0 that
// scores have none. The rotated queries [rows, heads, dim] go to `turned` too, where it is given.
template <typename T>
struct Heads {
    const T *queries, *keys, *values, *cosines, *sines;
    int64_t queries_step, keys_step, values_step, angles_step;
    T *held_keys, *held_values;
    const int64_t *places, *positions;
    T* out;
    int64_t rows, heads, shared, dim, capacity, window;
    float scale, cap;
    Norm<T> query_norm, key_norm;
    float* turned;
};

// Writes the new key and value of one head of one row, and computes what the heads of queries that share it read. The
// softmax is taken over blocks of tokens from the first token on (Milakov and Gimelshein 2018, arXiv:1805.02867).
template <typename T>
ONCE void attend(const Heads<T>& of, int64_t row, int64_t head) {
    const int64_t dim = of.dim, group = of.heads / of.shared, end = of.positions[row] + 1;
    const int64_t first = of.window && end > of.window ? end - of.window : 0;
    const int64_t at = (of.places[row] * of.shared + head) * of.capacity * dim;
    T *keys = of.held_keys + at, *values = of.held_values + at;
    const T *cosines = of.cosines + row * of.angles_step, *sines = of.sines + row * of.angles_step;
    float turned[DIM];
    turn(of.keys + row * of.keys_step + head * dim, of.key_norm, cosines, sines, dim, turned);
    for (int64_t i = 0; i < dim; i += LANES) store(keys + (end - 1) * dim + i, load(turned + i));
    std::memcpy(values + (end - 1) * dim, of.values + row * of.values_step + head * dim, dim * sizeof(T));
    for (int64_t begin = 0; begin < group; begin += GROUP) {
        const int64_t count = group - begin < GROUP ? group - begin : GROUP;
        const int64_t query = head * group + begin;
        float queries[GROUP][DIM], sums[GROUP][DIM], scores[GROUP][BLOCK], most[GROUP], total[GROUP];
        for (int64_t n = 0; n < count; ++n) {
            const T* own = of.queries + row * of.queries_step + (query + n) * dim;
            turn(own, of.query_norm, cosines, sines, dim, queries[n]);
            if (of.turned) std::memcpy(of.turned + (row * of.heads + query + n) * dim, queries[n], dim * sizeof(float));
            std::memset(sums[n], 0, dim * sizeof(float));
            most[n] = -INFINITY;
            total[n] = 0;
        }
        for (int64_t token = first; token < end; token += BLOCK) {
            const int64_t size = end - token < BLOCK ? end - token : BLOCK;
            for (int64_t t = 0; t < size; ++t) {
                float key[DIM];
                widen(keys + (token + t) * dim, dim, key);
                for (int64_t n = 0; n < count; ++n) {
                    floats one = {}, other = {};
                    for (int64_t i = 0; i < dim; i += 2 * LANES) {
                        one += load(key + i) * load(queries[n] + i);
                        other += load(key + i + LANES) * load(queries[n] + i + LANES);
                    }
                    scores[n][t] = sum(one + other) * of.scale;
                }
            }
            for (int64_t n = 0; n < count; ++n) {
                if (of.cap) {
                    for (int64_t t = size; t % LANES; ++t) scores[n][t] = 0;
                    for (int64_t t = 0; t < size; t += LANES) store(scores[n] + t, capped(load(scores[n] + t), of.cap));
                }
                float now = most[n];
                for (int64_t t = 0; t < size; ++t) now = scores[n][t] > now ? scores[n][t] : now;
                for (int64_t t = size; t < BLOCK; ++t) scores[n][t] = -INFINITY;
                const float kept = sum(exponential(all(most[n] - now))) / LANES;
                floats added = {};
                for (int64_t t = 0; t < BLOCK; t += LANES) {
                    floats power = exponential(load(scores[n] + t) - now);
                    store(scores[n] + t, power);
                    added += power;
                }
                most[n] = now;
                total[n] = total[n] * kept + sum(added);
                for (int64_t i = 0; i < dim; i += LANES) store(sums[n] + i, load(sums[n] + i) * kept);
            }
            for (int64_t t = 0; t < size; t += TOGETHER) {
                float value[TOGETHER][DIM];
                for (int64_t m = 0; m < TOGETHER; ++m)
                    // behind the last token the powers are 0, and what is read there must be a number
                    widen(values + (token + (t + m < size ? t + m : t)) * dim, dim, value[m]);
                for (int64_t n = 0; n < count; ++n)
                    for (int64_t i = 0; i < dim; i += LANES) {
                        floats added = load(sums[n] + i);
                        for (int64_t m = 0; m < TOGETHER; ++m) added += load(value[m] + i) * scores[n][t + m];
                        store(sums[n] + i, added);
                    }
            }
        }
        for (int64_t n = 0; n < count; ++n)
            for (int64_t i = 0; i < dim; i += LANES)
                store(of.out + (row * of.heads + query + n) * dim + i, load(sums[n] + i) / total[n]);
    }
}

template <typename T>
void attend_all(const Heads<T>* of, int threads) {
    const int64_t count = of->rows * of->shared;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t n = 0; n < count; ++n) attend(*of, n / of->shared, n % of->shared);
}

}  // namespace
