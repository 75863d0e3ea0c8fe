// Decode passes of whole decoder layers.
#pragma once

#include "attention.h"
#include "gates.h"
#include "norms.h"
#include "products.h"

namespace {

// A decoder layer of the Llama form: norm, attention, addition, norm, gated MLP, addition. In the Gemma form, attention
// and MLP have norms behind them too. `projected` has the queries, the keys and the values one below the other, `gated`
// the gates and what they are multiplied with.
template <typename T>
struct Layer {
    Norm<T> before_attention, after_attention, before_mlp, after_mlp, of_queries, of_keys;
    Weight projected, attended, gated, down;
    int64_t heads, shared, dim, window;
    float scale, cap;
    Activation activation;
};

// The rows of a decode pass whose caches lie on one shelf, at these places of it, and where their tokens are.
template <typename T>
struct Part {
    T *keys, *values;
    const int64_t *places, *positions;
    int64_t first, count, capacity;
};

// A decode pass of `count` rows. The rest is room that the layers share: `products` for the rows of the widest product,
// `middle` and `normalised` for rows of the hidden size, `heads` for those of attention, `wide` for the widest rows that are
// multiplied.
template <typename T>
struct Pass {
    const T *cosines, *sines;
    const Part<T>* parts;
    T *products, *middle, *normalised, *heads;
    float* wide;
    int64_t angles_step, parts_count, count;
};

template <typename T>
inline void add(const T* from, T* to, int64_t size) {
    for (int64_t at = 0; at < size; at += LANES) store(to + at, load(to + at) + load(from + at));
}

// What a call does of a layer: its steps from `first` up to `last`, so that the host may change a value between two
// calls.
enum Step : int { HEADS, ATTENDED, NORMED_ATTENTION, ADDED_ATTENTION, MLP_INPUT, NEURONS, MLP, NORMED_MLP, ADDED_MLP, DONE };
struct Steps {
    int first, last;
    bool have(int step) const { return first <= step && step < last; }
};

// Multiplies the rows that lie in `wide`, and adds `residual` where there is one.
template <typename T>
inline void multiply_shared(const Pass<T>& pass, const Weight& by, const T* residual, T* out,
                            const Team::Turn& turn) {
    const Product<T> of = {&by, nullptr, (const T*)by.bias, pass.wide, out, pass.count};
    Team::own().share(turn, chunks(by.width), [&](int64_t chunk) {
        multiply_chunk(of, chunk);
        if (!residual) return;
        const int64_t first = chunk * CHUNK * PANEL, size = by.width - first;
        for (int64_t row = 0; row < pass.count; ++row)
            add(residual + row * by.width + first, out + row * by.width + first,
                size < CHUNK * PANEL ? size : CHUNK * PANEL);
    });
}

// Three steps from `step` on: multiplies as above, normalises the products where there is a norm, and adds `residual`.
template <typename T>
inline void multiply_residual(const Pass<T>& pass, const Weight& by, const Norm<T>& norm, const T* residual,
                              T* out, Steps steps, int step, const Team::Turn& turn) {
    const bool is_multiplied = steps.have(step), is_normed = norm.weight && steps.have(step + 1);
    bool is_added = steps.have(step + 2);
    if (is_multiplied) {
        const bool is_joint = is_added && !norm.weight;
        multiply_shared(pass, by, is_joint ? residual : nullptr, out, turn);
        is_added = is_added && !is_joint;
    }
    if (!is_normed && !is_added) return;
    Team::own().share(turn, pass.count, [&](int64_t row) {
        T* own = out + row * by.width;
        if (is_normed) normalise(own, norm, own, by.width);
        if (is_added) add(residual + row * by.width, own, by.width);
    });
}

// Puts rows, one of which begins every `step` numbers, where they are multiplied with a weight.
template <typename T>
inline void spread_shared(const Pass<T>& pass, const T* rows, const Weight& by, int64_t step,
                          const Team::Turn& turn) {
    Team::own().share(turn, pass.count, [&](int64_t row) {
        spread(rows + row * step, by.size, lane(pass.wide, row, pass.count, by.size), 0, by);
    });
}

// Normalises rows, and puts them where they are multiplied with a weight.
template <typename T>
inline void normalise_shared(const Pass<T>& pass, const T* rows, const Norm<T>& norm, const Weight& by,
                             const Team::Turn& turn) {
    const int64_t width = by.size;
    Team::own().share(turn, pass.count, [&](int64_t row) {
        T* normalised = pass.normalised + row * width;
        normalise(rows + row * width, norm, normalised, width);
        spread(normalised, width, lane(pass.wide, row, pass.count, width), 0, by);
    });
}

template <typename T>
inline void attend_shared(const Layer<T>& layer, const Pass<T>& pass, const Team::Turn& turn) {
    const int64_t dim = layer.dim, width = layer.heads * dim, step = layer.projected.width;
    Team::own().share(turn, pass.count * layer.shared, [&](int64_t n) {
        const int64_t row = n / layer.shared, head = n % layer.shared;
        const int64_t size = layer.heads / layer.shared * dim, first = head * size;
        T* own = pass.heads + row * width + first;
        const Part<T>* part = pass.parts;
        while (part < pass.parts + pass.parts_count && row >= part->first + part->count) ++part;
        if (part == pass.parts + pass.parts_count) {
            // a row without room in the cache
            std::memset(own, 0, size * sizeof *own);
        } else {
            const T* queries = pass.products + part->first * step;
            const int64_t angles = part->first * pass.angles_step;
            attend<T>({queries, queries + width, queries + width + layer.shared * dim, pass.cosines + angles,
                              pass.sines + angles, step, step, step, pass.angles_step, part->keys, part->values,
                              part->places, part->positions, pass.heads + part->first * width, part->count,
                              layer.heads, layer.shared, dim, part->capacity, layer.window, layer.scale,
                              layer.cap, layer.of_queries, layer.of_keys, nullptr},
                             row - part->first, head);
        }
        spread(own, size, lane(pass.wide, row, pass.count, width), first, layer.attended);
    });
}

// A call that ends before the MLP's last product leaves the neurons in the first half of each row of `products`. A call
// that begins in the middle reads what the call before it left, and what the host has put in its place.
template <typename T>
void run_layer(const Layer<T>& layer, const Pass<T>& pass, const T* rows, T* out, Steps steps, int threads) {
    const Team::Turn turn(threads);
    const int64_t hidden = layer.down.width, width = layer.down.size, heads = layer.attended.size;
    if (steps.have(HEADS)) {
        normalise_shared(pass, rows, layer.before_attention, layer.projected, turn);
        multiply_shared<T>(pass, layer.projected, nullptr, pass.products, turn);
        attend_shared(layer, pass, turn);
    }
    if (steps.first == ATTENDED) spread_shared(pass, pass.heads, layer.attended, heads, turn);
    multiply_residual(pass, layer.attended, layer.after_attention, rows, pass.middle, steps, ATTENDED, turn);
    if (steps.have(MLP_INPUT)) normalise_shared(pass, pass.middle, layer.before_mlp, layer.gated, turn);
    if (steps.first == NEURONS) spread_shared(pass, pass.normalised, layer.gated, hidden, turn);
    if (steps.have(NEURONS)) {
        multiply_shared<T>(pass, layer.gated, nullptr, pass.products, turn);
        const int64_t size = 32 * LANES, pieces = (width + size - 1) / size;
        Team::own().share(turn, pass.count * pieces, [&](int64_t n) {
            const int64_t row = n / pieces, first = n % pieces * size, count = width - first;
            T found[size], *gates = pass.products + row * 2 * width + first;
            const int64_t own = count < size ? count : size;
            gate(gates, gates + width, found, own, layer.activation);
            spread(found, own, lane(pass.wide, row, pass.count, width), first, layer.down);
            if (steps.last == MLP) std::memcpy(gates, found, own * sizeof *found);
        });
    }
    if (steps.first == MLP) spread_shared(pass, pass.products, layer.down, 2 * width, turn);
    multiply_residual(pass, layer.down, layer.after_mlp, pass.middle, out, steps, MLP, turn);
}

}  // namespace
