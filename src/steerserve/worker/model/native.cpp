// What a pass does on a processor, for rows of bfloat16 or float32, computed in float32. Each row is computed by
// itself, in an order that depends on the row alone, so its bits depend neither on the other rows nor on the number of
// threads. Widths must be multiples of LANES, and dim a multiple of 2 * LANES, at most DIM.

#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <system_error>
#include <thread>
#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace {

typedef float floats __attribute__((vector_size(32)));
typedef int32_t ints __attribute__((vector_size(32)));
typedef uint32_t words __attribute__((vector_size(32)));
typedef uint16_t halves __attribute__((vector_size(16)));

// Each of these functions is compiled once, so that all its callers get the same bits.
#define ONCE __attribute__((noinline))

struct bfloat16 {
    uint16_t bits;
};

const int LANES = 8;
const int ROWS = 6;      // rows that are multiplied together
const int PANEL = 16;    // outputs of a weight that lie together
const int BLOCK = 64;    // tokens whose scores are held at once
const int GROUP = 8;     // heads of queries that read a token together
const int TOGETHER = 4;  // tokens whose values are added together
const int DIM = 256;     // the most numbers of a head
const int QUERIES = 48;  // queries of a prompt that read a block of tokens together

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
ONCE void normalise(const T* row, const T* weight, T* out, int64_t width, float constant) {
    floats parts[4] = {};
    for (int64_t at = 0; at < width; at += LANES) {
        floats value = load(row + at);
        parts[at / LANES % 4] += value * value;
    }
    float squares = sum((parts[0] + parts[1]) + (parts[2] + parts[3]));
    floats length = all(std::sqrt(squares / width + constant));
    for (int64_t at = 0; at < width; at += LANES)
        store(out + at, load(row + at) * load(weight + at) / length);
}

template <typename T>
void normalise_all(const T* rows, const T* weight, T* out, int64_t count, int64_t width, float constant, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t row = 0; row < count; ++row)
        normalise(rows + row * width, weight, out + row * width, width, constant);
}

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

template <typename T>
inline void widen(const T* from, int64_t count, float* to) {
    for (int64_t at = 0; at < count; at += LANES) store(to + at, load(from + at));
}

// One layer of a decode pass: for each row the projected heads, where its cache is, and where the result goes. Steps are
// numbers between the rows of a tensor. A window of 0 means that a row sees all its tokens.
template <typename T>
struct Heads {
    const T *queries, *keys, *values, *cosines, *sines;
    int64_t queries_step, keys_step, values_step, angles_step;
    T *held_keys, *held_values;
    const int64_t *places, *positions;
    T* out;
    int64_t rows, heads, shared, dim, capacity, window;
    float scale;
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
    turn(of.keys + row * of.keys_step + head * dim, cosines, sines, dim, turned);
    for (int64_t i = 0; i < dim; i += LANES) store(keys + (end - 1) * dim + i, load(turned + i));
    std::memcpy(values + (end - 1) * dim, of.values + row * of.values_step + head * dim, dim * sizeof(T));
    for (int64_t begin = 0; begin < group; begin += GROUP) {
        const int64_t count = group - begin < GROUP ? group - begin : GROUP;
        const int64_t query = head * group + begin;
        float queries[GROUP][DIM], sums[GROUP][DIM], scores[GROUP][BLOCK], most[GROUP], total[GROUP];
        for (int64_t n = 0; n < count; ++n) {
            turn(of.queries + row * of.queries_step + (query + n) * dim, cosines, sines, dim, queries[n]);
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

inline void pause() {
#ifdef __x86_64__
    __builtin_ia32_pause();
#endif
}

// Threads that share the pieces of a short work. The work ends once its pieces are done, whether or not every thread has
// come to it: a thread without a processor holds up no more than the piece that it has in hand. A thread that waits
// sleeps after SPINS turns, so that others get its processor.
class Team {
   public:
    // The team of this process, which is never taken down, because its threads wait in it until the process ends.
    static Team& own() {
        static Team& team = *new Team;
        return team;
    }

    // While one call has the team, another one works alone.
    struct Turn {
        explicit Turn(int threads) : is_first(threads > 1 && own().turn.try_lock()) {
            if (is_first) own().resize(threads - 1);
        }
        ~Turn() {
            if (is_first) own().turn.unlock();
        }
        const bool is_first;
    };

    // Calls `work` with each number below `count`, on this thread and on the others of the team.
    template <typename Work>
    void share(const Turn& turn, int64_t count, const Work& work) {
        if (!turn.is_first || count < 2) {
            for (int64_t n = 0; n < count; ++n) work(n);
            return;
        }
        call.store([](const void* of, int64_t n) { (*(const Work*)of)(n); });
        given.store(&work);
        end.store(count);
        done.store(0);
        number += 2;
        next.store(number << 32);
        if (sleepers.load()) wake();
        help();
        wait([&] { return done.load() == count; });
        // closed before the work changes, so that no thread takes a piece of the next work for one of this work
        next.store((number + 1) << 32 | LAST);
    }

   private:
    static const uint64_t LAST = 0xffffffff;
    static const int SPINS = 4000;

    void help() {
        for (;;) {
            uint64_t at = next.load();
            const uint64_t piece = at & LAST;
            const auto function = call.load();
            const void* of = given.load();
            const int64_t count = end.load();
            if (piece == LAST || (int64_t)piece >= count) return;
            if (!next.compare_exchange_strong(at, at + 1)) continue;
            function(of, (int64_t)piece);
            if (done.fetch_add(1) + 1 == count && sleepers.load()) wake();
        }
    }

    template <typename Ready>
    void wait(const Ready& is_ready) {
        for (int turn = 0; turn < SPINS; ++turn) {
            if (is_ready()) return;
            pause();
        }
        std::unique_lock<std::mutex> lock(sleeping);
        sleepers.fetch_add(1);
        change.wait(lock, is_ready);
        sleepers.fetch_sub(1);
    }

    void wake() {
        std::lock_guard<std::mutex> lock(sleeping);
        change.notify_all();
    }

    void resize(int count) {
        if (wanted.load() == count) return;
        std::lock_guard<std::mutex> lock(sleeping);
        wanted.store(count);
        change.notify_all();
        try {
            for (; started < count; ++started) std::thread([this, own = started] { run(own); }).detach();
        } catch (const std::system_error&) {
            // there are as many threads as the system gives
        }
    }

    void run(int own) {
        const auto is_wanted = [&] { return own < wanted.load(); };
        for (;;) {
            wait([&] { return !is_wanted() || has_pieces(); });
            if (is_wanted()) {
                help();
            } else {
                std::unique_lock<std::mutex> lock(sleeping);
                change.wait(lock, is_wanted);
            }
        }
    }

    bool has_pieces() const {
        const uint64_t piece = next.load() & LAST;
        return piece != LAST && (int64_t)piece < end.load();
    }

    std::mutex turn, sleeping;
    std::condition_variable change;
    int started = 0;
    uint64_t number = 0;
    alignas(64) std::atomic<uint64_t> next{LAST};
    alignas(64) std::atomic<int64_t> done{0};
    alignas(64) std::atomic<void (*)(const void*, int64_t)> call{nullptr};
    std::atomic<const void*> given{nullptr};
    std::atomic<int64_t> end{0};
    std::atomic<int> sleepers{0}, wanted{0};
};

// A prefill pass of one layer: for each row the projected heads of its tokens, where its cache is, and where the result
// goes. Token `t` of row `b` is number `b * tokens + t`, and its steps are numbers between tokens. A row has `sizes` of
// the tokens, at the positions from `starts` on. The angles of a row are `angles_step` numbers after those of the one
// before it. A window of 0 means that a token sees all tokens before it.
template <typename T>
struct Prompts {
    const T *queries, *keys, *values, *cosines, *sines;
    int64_t queries_step, keys_step, values_step, angles_step;
    T *const *held_keys, *const *held_values;
    const int64_t *capacities, *starts, *sizes;
    T* out;
    int64_t rows, tokens, heads, shared, dim, window;
    float scale;
};

// Writes the new keys and values of one head of one row.
template <typename T>
void hold(const Prompts<T>& of, int64_t row, int64_t head) {
    const int64_t dim = of.dim, first = head * of.capacities[row] + of.starts[row];
    for (int64_t t = 0; t < of.sizes[row]; ++t) {
        const int64_t token = row * of.tokens + t, angles = row * of.angles_step + t * dim;
        float turned[DIM];
        turn(of.keys + token * of.keys_step + head * dim, of.cosines + angles, of.sines + angles, dim, turned);
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
        const T* query = of.queries + (row * of.tokens + t) * of.queries_step;
        turn(query + (head * group + (begin + n) % group) * dim, of.cosines + angles, of.sines + angles, dim,
             queries + n * dim);
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
                floats score = is_seen ? load(own + t) * of.scale : all(-INFINITY);
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

// A weight [width, in], plus a bias where there is one, in panels of PANEL outputs. Without scales the numbers are bfloat16,
// as `Half` reads them. With scales a number is a code times a scale that `each` codes of an output share: a code is an
// integer of 8 bits, as `Eight` reads it, or with a table the place of an integer in the table, as `Four` reads it.
struct Weight {
    const uint8_t* panels;
    const float* scales;  // [panels, in / each, PANEL]
    const uint8_t* table;
    const void* bias;
    int64_t in, width, each;
};

// Numbers of bfloat16: those of the first half of a panel, each beside one of the second half.
struct Half {
    static const int STEP = 1, BYTES = 2 * PANEL, PARTS = 1;
    static const bool HAS_SCALES = false;
    explicit Half(const uint8_t*) {}

    template <int>
    void widen(const uint8_t* from, floats* own) const {
        words both;
        std::memcpy(&both, from, sizeof both);
        own[0] = (floats)(both << 16);
        own[1] = (floats)(both & 0xffff0000);
    }
};

// Codes of 8 bits, one output after the other.
struct Eight {
    static const int STEP = 1, BYTES = PANEL, PARTS = 1;
    static const bool HAS_SCALES = true;
    explicit Eight(const uint8_t*) {}

    template <int>
    void widen(const uint8_t* from, floats* own) const {
        for (int p = 0; p < 2; ++p) {
#ifdef __AVX2__
            own[p] = (floats)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)(from + p * LANES))));
#else
            for (int n = 0; n < LANES; ++n) own[p][n] = (int8_t)from[p * LANES + n];
#endif
        }
    }
};

// Codes of 4 bits, for four numbers of `in` at a time. Byte b has the codes of output b / 16 * 4 + b % 8 / 2 + b % 2 * 8
// for the number b / 8 % 2 of `in`, in the low bits, and for the number two further on, in the high bits. The table has
// 16 low bytes of its integers, then 16 high bytes. What is widened is 65536 times the integer.
struct Four {
    static const int STEP = 4, BYTES = 2 * PANEL, PARTS = 2;
    static const bool HAS_SCALES = true;
#ifdef __AVX2__
    __m256i low, high;
    explicit Four(const uint8_t* table)
        : low(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)table))),
          high(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)(table + 16)))) {}
#else
    const uint8_t* table;
    explicit Four(const uint8_t* table) : table(table) {}
#endif

    template <int PLACE>
    void widen(const uint8_t* from, floats* own) const {
#ifdef __AVX2__
        const __m256i both = _mm256_loadu_si256((const __m256i*)from);
        const __m256i codes = _mm256_and_si256(PLACE ? _mm256_srli_epi16(both, 4) : both, _mm256_set1_epi8(15));
        const __m256i one = _mm256_shuffle_epi8(low, codes), other = _mm256_shuffle_epi8(high, codes);
        const words pairs[2] = {(words)_mm256_unpacklo_epi8(one, other), (words)_mm256_unpackhi_epi8(one, other)};
        for (int n = 0; n < 2; ++n) {
            own[2 * n] = __builtin_convertvector((ints)(pairs[n] << 16), floats);
            own[2 * n + 1] = __builtin_convertvector((ints)(pairs[n] & 0xffff0000), floats);
        }
#else
        for (int b = 0; b < BYTES; ++b) {
            const int code = PLACE ? from[b] >> 4 : from[b] & 15;
            own[b / 8 % 2 * 2 + b % 2][b / 16 * 4 + b % 8 / 2] = (int16_t)(table[code] | table[code + 16] << 8) * 65536.0f;
        }
#endif
    }
};

// Rows [count, in] times a weight, plus its bias where there is one. `wide` has room for the rows as float32: ROWS of
// them together, number by number.
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
                     floats (&sums)[COUNT][2 * PANELS]) {
    const int together = W::STEP / W::PARTS;
#pragma GCC unroll 2
    for (int p = 0; p < PANELS; ++p) {
        floats own[2 * together];
        // few rows wait for the memory: it is asked for the numbers that come later
        if (COUNT <= 2 && PLACE == 0) __builtin_prefetch(from + p * panel_bytes + AHEAD);
        numbers.template widen<PLACE>(from + p * panel_bytes, own);
#pragma GCC unroll 2
        for (int n = 0; n < together; ++n)
#pragma GCC unroll 8
            for (int r = 0; r < COUNT; ++r) {
                const float value = rows[(PLACE * together + n) * COUNT + r];
                sums[r][2 * p] += own[2 * n] * value;
                sums[r][2 * p + 1] += own[2 * n + 1] * value;
            }
    }
}

// Some rows times some panels. Every number is summed in the order of `in`, by blocks of `each`, whatever the rows and
// the panels are.
template <typename W, int COUNT, int PANELS, typename T>
ONCE void block(const Product<T>& of, const W& numbers, int64_t row, int64_t panel) {
    const int64_t in = of.by->in, bytes = in / W::STEP * W::BYTES;
    const int64_t each = W::HAS_SCALES ? of.by->each : in, blocks = in / each;
    const float* __restrict rows = of.wide + row * in;
    const uint8_t* __restrict from = of.by->panels + panel * bytes;
    const float* scales = of.by->scales + panel * blocks * PANEL;
    floats total[COUNT][2 * PANELS] = {};
    for (int64_t b = 0; b < blocks; ++b) {
        floats sums[COUNT][2 * PANELS] = {};
        for (int64_t k = b * each; k < (b + 1) * each; k += W::STEP, from += W::BYTES) {
            add_part<0, COUNT, PANELS>(numbers, from, bytes, rows + k * COUNT, sums);
            if constexpr (W::PARTS > 1) add_part<1, COUNT, PANELS>(numbers, from, bytes, rows + k * COUNT, sums);
        }
        for (int r = 0; r < COUNT; ++r)
            for (int p = 0; p < 2 * PANELS; ++p) {
                if constexpr (W::HAS_SCALES)
                    total[r][p] += sums[r][p] * load(scales + (p / 2 * blocks + b) * PANEL + p % 2 * LANES);
                else
                    total[r][p] = sums[r][p];
            }
    }
    for (int r = 0; r < COUNT; ++r)
        for (int p = 0; p < 2 * PANELS; ++p) finish(of, row + r, panel * PANEL + p * LANES, total[r][p]);
}

const int64_t DEPTH = 64;  // numbers of `in` that are widened at once for several rows
const int64_t CROWD = 96;  // the most rows that share what is widened

// Adds the products of some rows with numbers that are widened.
template <int COUNT>
ONCE void add_widened(const float* __restrict numbers, const float* __restrict rows, int64_t size, const float* scales,
                      float* total) {
    floats sums[COUNT][2] = {};
    for (int64_t k = 0; k < size; ++k) {
        const floats one = load(numbers + k * PANEL), other = load(numbers + k * PANEL + LANES);
#pragma GCC unroll 8
        for (int r = 0; r < COUNT; ++r) {
            const float value = rows[k * COUNT + r];
            sums[r][0] += one * value;
            sums[r][1] += other * value;
        }
    }
    for (int r = 0; r < COUNT; ++r)
        for (int p = 0; p < 2; ++p) {
            float* to = total + r * PANEL + p * LANES;
            store(to, load(to) + sums[r][p] * load(scales + p * LANES));
        }
}

// As `block`, with the same bits, for the rows from `first` to before `last`, which share what is widened.
template <typename T>
void multiply_crowd(const Product<T>& of, const Four& numbers, int64_t first, int64_t last, int64_t panel) {
    const int64_t in = of.by->in, each = of.by->each, blocks = in / each;
    const uint8_t* from = of.by->panels + panel * in / Four::STEP * Four::BYTES;
    alignas(64) float wide[DEPTH * PANEL], total[CROWD * PANEL];
    std::memset(total, 0, (last - first) * PANEL * sizeof(float));
    for (int64_t b = 0; b < blocks; ++b) {
        for (int64_t k = 0; k < each; k += Four::STEP, from += Four::BYTES) {
            floats own[2 * Four::STEP];
            numbers.widen<0>(from, own);
            numbers.widen<1>(from, own + Four::STEP);
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
    if constexpr (W::PARTS > 1)
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

// Writes numbers of a row, from the one at `first` on, where they are multiplied.
template <typename T>
inline void spread(const T* from, int64_t size, Lane to, int64_t first) {
    if (to.step == 1)
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
    if (!of.by->scales)
        multiply_panels<Half>(of, first, last);
    else if (!of.by->table)
        multiply_panels<Eight>(of, first, last);
    else
        multiply_panels<Four>(of, first, last);
}

template <typename T>
void multiply_all(const Product<T>& of, int threads) {
    const int64_t in = of.by->in, count = chunks(of.by->width);
    const auto spread_row = [&](int64_t row) { spread(of.rows + row * in, in, lane(of.wide, row, of.count, in), 0); };
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

// A decoder layer of the Llama form: norm, attention, addition, norm, gated MLP, addition. `projected` has the queries,
// the keys and the values one below the other, `gated` the gates and what they are multiplied with.
struct Layer {
    const bfloat16 *before_attention, *before_mlp;
    Weight projected, attended, gated, down;
    int64_t heads, shared, dim, window;
    float attention_constant, mlp_constant, scale;
};

// The rows of a decode pass whose caches lie on one shelf, at these places of it, and where their tokens are.
struct Part {
    bfloat16 *keys, *values;
    const int64_t *places, *positions;
    int64_t first, count, capacity;
};

// A decode pass of `count` rows. The rest is room that the layers share: `products` for the rows of the widest product,
// `middle` and `normalised` for rows of the hidden size, `heads` for those of attention, `wide` for the widest rows that are
// multiplied.
struct Pass {
    const bfloat16 *cosines, *sines;
    const Part* parts;
    bfloat16 *products, *middle, *normalised, *heads;
    float* wide;
    int64_t angles_step, parts_count, count;
};

inline void add(const bfloat16* from, bfloat16* to, int64_t size) {
    for (int64_t at = 0; at < size; at += LANES) store(to + at, load(to + at) + load(from + at));
}

// Multiplies the rows that lie in `wide`, and adds `residual` where there is one.
inline void multiply_shared(const Pass& pass, const Weight& by, const bfloat16* residual, bfloat16* out,
                            const Team::Turn& turn) {
    const Product<bfloat16> of = {&by, nullptr, (const bfloat16*)by.bias, pass.wide, out, pass.count};
    Team::own().share(turn, chunks(by.width), [&](int64_t chunk) {
        multiply_chunk(of, chunk);
        if (!residual) return;
        const int64_t first = chunk * CHUNK * PANEL, size = by.width - first;
        for (int64_t row = 0; row < pass.count; ++row)
            add(residual + row * by.width + first, out + row * by.width + first,
                size < CHUNK * PANEL ? size : CHUNK * PANEL);
    });
}

inline void normalise_shared(const Pass& pass, const bfloat16* rows, const bfloat16* weight, int64_t width,
                             float constant, const Team::Turn& turn) {
    Team::own().share(turn, pass.count, [&](int64_t row) {
        bfloat16* normalised = pass.normalised + row * width;
        normalise(rows + row * width, weight, normalised, width, constant);
        spread(normalised, width, lane(pass.wide, row, pass.count, width), 0);
    });
}

inline void attend_shared(const Layer& layer, const Pass& pass, const Team::Turn& turn) {
    const int64_t dim = layer.dim, width = layer.heads * dim, step = layer.projected.width;
    Team::own().share(turn, pass.count * layer.shared, [&](int64_t n) {
        const int64_t row = n / layer.shared, head = n % layer.shared;
        const int64_t size = layer.heads / layer.shared * dim, first = head * size;
        bfloat16* own = pass.heads + row * width + first;
        const Part* part = pass.parts;
        while (part < pass.parts + pass.parts_count && row >= part->first + part->count) ++part;
        if (part == pass.parts + pass.parts_count) {
            // a row without room in the cache
            std::memset(own, 0, size * sizeof *own);
        } else {
            const bfloat16* queries = pass.products + part->first * step;
            const int64_t angles = part->first * pass.angles_step;
            attend<bfloat16>({queries, queries + width, queries + width + layer.shared * dim, pass.cosines + angles,
                              pass.sines + angles, step, step, step, pass.angles_step, part->keys, part->values,
                              part->places, part->positions, pass.heads + part->first * width, part->count,
                              layer.heads, layer.shared, dim, part->capacity, layer.window, layer.scale},
                             row - part->first, head);
        }
        spread(own, size, lane(pass.wide, row, pass.count, width), first);
    });
}

void run_layer(const Layer& layer, const Pass& pass, const bfloat16* rows, bfloat16* out, int threads) {
    const Team::Turn turn(threads);
    const int64_t hidden = layer.down.width, width = layer.down.in;
    normalise_shared(pass, rows, layer.before_attention, hidden, layer.attention_constant, turn);
    multiply_shared(pass, layer.projected, nullptr, pass.products, turn);
    attend_shared(layer, pass, turn);
    multiply_shared(pass, layer.attended, rows, pass.middle, turn);
    normalise_shared(pass, pass.middle, layer.before_mlp, hidden, layer.mlp_constant, turn);
    multiply_shared(pass, layer.gated, nullptr, pass.products, turn);
    const int64_t size = 32 * LANES, pieces = (width + size - 1) / size;
    Team::own().share(turn, pass.count * pieces, [&](int64_t n) {
        const int64_t row = n / pieces, first = n % pieces * size, count = width - first;
        bfloat16 found[size], *gates = pass.products + row * 2 * width + first;
        const int64_t own = count < size ? count : size;
        gate(gates, gates + width, found, own);
        spread(found, own, lane(pass.wide, row, pass.count, width), first);
    });
    multiply_shared(pass, layer.down, pass.middle, out, turn);
}

}  // namespace

extern "C" {
void normalise_half(const void* rows, const void* weight, void* out, int64_t count, int64_t width, float constant,
                    int threads) {
    normalise_all((const bfloat16*)rows, (const bfloat16*)weight, (bfloat16*)out, count, width, constant, threads);
}
void normalise_single(const void* rows, const void* weight, void* out, int64_t count, int64_t width, float constant,
                      int threads) {
    normalise_all((const float*)rows, (const float*)weight, (float*)out, count, width, constant, threads);
}
void gate_half(const void* gates, const void* others, void* out, int64_t count, int64_t width, int64_t gates_step,
               int64_t others_step, int threads) {
    gate_all((const bfloat16*)gates, (const bfloat16*)others, (bfloat16*)out, count, width, gates_step, others_step,
             threads);
}
void gate_single(const void* gates, const void* others, void* out, int64_t count, int64_t width, int64_t gates_step,
                 int64_t others_step, int threads) {
    gate_all((const float*)gates, (const float*)others, (float*)out, count, width, gates_step, others_step, threads);
}
void multiply_half(const void* by, const void* rows, void* wide, const void* bias, void* out, int64_t count,
                   int threads) {
    multiply_all<bfloat16>({(const Weight*)by, (const bfloat16*)rows, (const bfloat16*)bias, (float*)wide,
                            (bfloat16*)out, count},
                           threads);
}
void multiply_single(const void* by, const void* rows, void* wide, const void* bias, void* out, int64_t count,
                     int threads) {
    multiply_all<float>({(const Weight*)by, (const float*)rows, (const float*)bias, (float*)wide, (float*)out, count},
                        threads);
}
void attend_prompts_half(const void* of, int threads) { attend_prompts((const Prompts<bfloat16>*)of, threads); }
void attend_prompts_single(const void* of, int threads) { attend_prompts((const Prompts<float>*)of, threads); }
void attend_half(const void* of, int threads) { attend_all((const Heads<bfloat16>*)of, threads); }
void attend_single(const void* of, int threads) { attend_all((const Heads<float>*)of, threads); }
void run_layer_half(const void* layer, const void* pass, const void* rows, void* out, int threads) {
    run_layer(*(const Layer*)layer, *(const Pass*)pass, (const bfloat16*)rows, (bfloat16*)out, threads);
}
}

// What draws the next token of each row from its logits. All sums have the bits of numbers that are added one after the
// other in double and rounded once to float.
namespace {

typedef double doubles __attribute__((vector_size(32)));
typedef float quarters __attribute__((vector_size(16)));

const int64_t PART = 512;        // numbers that are looked at together
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

}  // namespace

extern "C" {
void peak_half(const void* rows, int64_t step, int64_t count, int64_t size, const float* temperatures, float* peaks,
               int64_t* tokens, float* scaled, int threads) {
    peak_all((const bfloat16*)rows, step, count, size, temperatures, peaks, tokens, scaled, threads);
}
void peak_single(const void* rows, int64_t step, int64_t count, int64_t size, const float* temperatures, float* peaks,
                 int64_t* tokens, float* scaled, int threads) {
    peak_all((const float*)rows, step, count, size, temperatures, peaks, tokens, scaled, threads);
}
void draw(const float* weights, int64_t size, void* draws, int64_t count, int threads) {
    Draw* of = (Draw*)draws;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t n = 0; n < count; ++n) draw_one(weights + of[n].row * size, size, of[n]);
}
}

// The figures of the columns of some rows, in double: see `Kernels.figures`.
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

}  // namespace

extern "C" void figures(const void* of_columns, int threads) {
    const Figures& of = *(const Figures*)of_columns;
    const int64_t count = of.width / (2 * LANES);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t n = 0; n < count; ++n) measure<2>(of, n * 2 * LANES);
}
