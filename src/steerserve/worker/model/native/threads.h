// The threads of a decode pass.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>

namespace {

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

}  // namespace
