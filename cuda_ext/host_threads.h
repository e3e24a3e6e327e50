// Threads of the host that share a launch with the calling thread.
//
// They start when a launch first has work for them. Between launches they wait, awake for SPIN_NS, then asleep. The
// pool's destructor ends them. A forked process has none of its parent's threads; it starts new ones when it has work.
#pragma once
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace host {

constexpr double SPIN_NS = 50e3;

inline double now_ns() {
    return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline void pause() {
#ifdef __x86_64__
    __builtin_ia32_pause();
#endif
}

// The number of forks between this process and the one that loaded the library.
inline std::atomic<int> num_forks{0};
inline const int counts_forks = pthread_atfork(nullptr, nullptr, [] { num_forks.fetch_add(1); });

class ThreadPool {
  public:
    // num_threads: the most to use, including the caller's. worth_ns: the work that justifies a thread that is awake.
    ThreadPool(int num_threads, double worth_ns) : num_threads_(num_threads), worth_ns_(worth_ns) {}
    ThreadPool(const ThreadPool&) = delete;
    ~ThreadPool() {
        if (team_ == nullptr || forks_ != num_forks.load()) return;  // the threads are another process's
        {
            std::lock_guard<std::mutex> lock(team_->mutex);
            team_->ends.store(true);
        }
        team_->comes.notify_all();
        for (auto& thread : team_->threads) thread.join();
        delete team_;
    }

    // Calls part(first, last) on ranges that cover 0 to num_items, on as many threads as the work justifies, and
    // returns when all calls have returned. Parts begin at multiples of grain; the cost of the first grain predicts the
    // cost of all.
    template <class Part> void run(int num_items, int grain, const Part& part) {
        const double start_ns = now_ns(), pause_ns = start_ns - end_ns_;
        const int first = std::min(num_items, grain), num_grains = (num_items - first + grain - 1) / grain;
        part(0, first);
        const double work_ns = (now_ns() - start_ns) * num_grains;
        const int num_threads = std::min(num_grains, of_use(work_ns, pause_ns));
        if (num_threads > 1) {
            share(first, num_items, grain, num_threads, part);
        } else if (first < num_items) {
            part(first, num_items);
        }
        end_ns_ = now_ns();
        if (num_threads > 1) learn(end_ns_ - start_ns < work_ns);
    }

  private:
    struct Team {
        std::vector<std::thread> threads;
        std::mutex mutex;
        std::condition_variable comes;
        int num_asleep = 0;  // under the mutex
        std::atomic<bool> ends{false};
        std::atomic<bool> any_asleep{false};
        // The current launch. A thread that takes one of the parts left sees all fields stored before it; only the
        // caller reads num_done. The counters are 64 bytes apart, or taking and finishing parts would slow each other.
        alignas(64) std::atomic<int> num_left{0};
        alignas(64) std::atomic<int> num_done{0};
        void (*play)(const void* part, int first, int last) = nullptr;
        const void* part = nullptr;
        int first = 0, last = 0, num_parts = 0, part_items = 0;
    };

    // Returns the number of threads that the work justifies. Ten times as much work is necessary to wake a sleeping
    // thread, unless it will stay awake for the next launches. pause_ns: the time between the last launch and this one.
    int of_use(double work_ns, double pause_ns) {
        if (worth_ns_ == 0 || num_threads_ == 1) return num_threads_;
        if (num_alone_ > 0) {
            num_alone_ -= 1;
            return 1;
        }
        const bool all_awake = team_ != nullptr && !team_->any_asleep.load();
        const double worth_ns = all_awake || pause_ns < SPIN_NS ? worth_ns_ : 10 * worth_ns_;
        return work_ns < num_threads_ * worth_ns ? std::max(1, (int)(work_ns / worth_ns)) : num_threads_;
    }

    // If CPUs are busy with other work, a thread that has taken a part may get no CPU to play it. After a launch that
    // threads slowed down, the caller plays the next two alone, and twice as many each time this repeats in a row.
    void learn(bool helped) {
        failures_ = helped ? 0 : std::min(failures_ + 1, 10);
        num_alone_ = helped ? 0 : 1 << failures_;
    }

    template <class Part> void share(int first, int last, int grain, int num_threads, const Part& part) {
        gather();
        Team& team = *team_;
        const int num_grains = (last - first + grain - 1) / grain, most = std::min(num_grains, 4 * num_threads);
        team.play = [](const void* part, int begin, int end) { (*(const Part*)part)(begin, end); };
        team.part = &part;
        team.first = first;
        team.last = last;
        team.part_items = (num_grains + most - 1) / most * grain;
        team.num_parts = (last - first + team.part_items - 1) / team.part_items;
        team.num_done.store(0, std::memory_order_relaxed);
        team.num_left.store(team.num_parts);
        if (team.any_asleep.load()) {
            std::lock_guard<std::mutex> lock(team.mutex);
            team.comes.notify_all();
        }
        take(team);
        for (int spins = 0; team.num_done.load(std::memory_order_acquire) < team.num_parts; ++spins) {
            if (spins < 1000) {
                pause();
            } else {
                std::this_thread::yield();
            }
        }
    }

    // Plays parts until none is left.
    static void take(Team& team) {
        while (team.num_left.load(std::memory_order_relaxed) > 0) {
            const int left = team.num_left.fetch_sub(1, std::memory_order_acq_rel);
            if (left <= 0) return;
            const int begin = team.first + (team.num_parts - left) * team.part_items;
            team.play(team.part, begin, std::min(begin + team.part_items, team.last));
            team.num_done.fetch_add(1, std::memory_order_release);
        }
    }

    static void serve(Team& team) {
        for (;;) {
            take(team);
            const double until_ns = now_ns() + SPIN_NS;
            bool comes = false;
            while (!comes && now_ns() < until_ns) {
                for (int k = 0; k < 16 && !comes; ++k) {
                    pause();
                    comes = team.num_left.load(std::memory_order_relaxed) > 0 || team.ends.load();
                }
            }
            if (!comes) {
                std::unique_lock<std::mutex> lock(team.mutex);
                team.num_asleep += 1;
                team.any_asleep.store(true);  // before the check: either it sees a part, or the caller sees it
                team.comes.wait(lock, [&team] { return team.num_left.load() > 0 || team.ends.load(); });
                team.num_asleep -= 1;
                team.any_asleep.store(team.num_asleep > 0);
            }
            if (team.ends.load()) return;
        }
    }

    // Starts the threads, unless they have been started.
    void gather() {
        if (team_ != nullptr && forks_ == num_forks.load()) return;
        team_ = new Team;  // a fork leaves its parent's copy alone: it may be locked
        forks_ = num_forks.load();
        try {
            while ((int)team_->threads.size() < num_threads_ - 1) {
                team_->threads.emplace_back([team = team_] { serve(*team); });
            }
        } catch (const std::system_error&) {  // the system starts no more threads
        }
    }

    const int num_threads_;
    const double worth_ns_;
    double end_ns_ = 0;  // of the last launch
    int failures_ = 0, num_alone_ = 0;  // launches in a row that threads slowed down; next launches without them
    int forks_ = 0;
    Team* team_ = nullptr;
};

}  // namespace host
