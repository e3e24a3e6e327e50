// Runs kernel source on the host, in one of three ways:
//
//     (default)            one thread of the host plays a whole group: plain loops. How device="host" runs it.
//     HOST_FIBRES          one fibre per CUDA thread, blocks one after another, in an order that order_seed shuffles.
//                          Barriers are checked: threads that wait on different lines, or for one that never comes.
//     HOST_THREADS         one thread of the host per CUDA thread, for ThreadSanitizer and AddressSanitizer.
//
// Shared memory is poisoned before every block. One-dimensional blocks of up to 1,024 threads; no textures, clusters,
// streams or inline PTX; memory is as strongly ordered as the host's. Speed says nothing about a GPU.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)

#if !defined(HOST_FIBRES) && !defined(HOST_THREADS)

template <class T, class U> inline T atomicAdd(T* target, U value) {
    const T before = *target;
    *target = before + (T)value;
    return before;
}

#else

#include <atomic>
#include <utility>
#include <vector>

#define __shared__ static __attribute__((section("cuda_shared")))
extern "C" {
extern unsigned char __start_cuda_shared[] __attribute__((weak)), __stop_cuda_shared[] __attribute__((weak));
}

namespace host {
enum { MOST_THREADS = 1024, STACK_NBYTES = 65536 };
struct Index { unsigned x, y, z; };
inline Index block_index, block_size, grid_size;
inline std::atomic<unsigned> votes[3];
inline unsigned long long lanes[MOST_THREADS];

inline void poison() {
    if (__start_cuda_shared) memset(__start_cuda_shared, 0xAB, __stop_cuda_shared - __start_cuda_shared);
}
}  // namespace host

#define blockIdx host::block_index
#define blockDim host::block_size
#define gridDim host::grid_size
#define threadIdx host::thread_index()

#ifdef HOST_THREADS

#include <pthread.h>

namespace host {
struct Thread { Index index; unsigned num_barriers, num_votes, num_group_barriers; };
inline thread_local Thread self;
// Three that take turns: with one, ThreadSanitizer orders who leaves it slowly after who comes to the next one fast.
inline pthread_barrier_t barriers[3], group_barriers[MOST_THREADS][3];

inline Index thread_index() { return self.index; }
inline void barrier(int) { pthread_barrier_wait(&barriers[self.num_barriers++ % 3]); }
inline void group_barrier(unsigned mask, int) {
    const unsigned first = self.index.x / 32 * 32 + __builtin_ctz(mask);
    pthread_barrier_wait(&group_barriers[first][self.num_group_barriers++ % 3]);
}

template <class Kernel> int launch(unsigned num_blocks, unsigned num_threads, unsigned, Kernel kernel) {
    struct Start { Kernel* kernel; unsigned thread; };
    block_size = {num_threads, 1, 1};
    grid_size = {num_blocks, 1, 1};
    const unsigned group_size = GROUP_SIZE;
    for (unsigned block = 0; block < num_blocks; ++block) {
        block_index = {block, 0, 0};
        poison();
        for (auto& each : votes) each = 0;
        for (int k = 0; k < 3; ++k) {
            pthread_barrier_init(&barriers[k], nullptr, num_threads);
            for (unsigned t = 0; t < num_threads; ++t) {
                pthread_barrier_init(&group_barriers[t][k], nullptr, group_size <= 32 ? group_size : 1);
            }
        }
        std::vector<pthread_t> threads(num_threads);
        std::vector<Start> starts(num_threads);
        for (unsigned t = 0; t < num_threads; ++t) {
            starts[t] = {&kernel, t};
            const auto run = [](void* given) -> void* {
                const Start* start = (Start*)given;
                self = {{start->thread, 0, 0}, 0, 0, 0};
                (*start->kernel)();
                return nullptr;
            };
            if (pthread_create(&threads[t], nullptr, run, &starts[t])) return 1;
        }
        for (auto& each : threads) pthread_join(each, nullptr);
        for (int k = 0; k < 3; ++k) {
            pthread_barrier_destroy(&barriers[k]);
            for (unsigned t = 0; t < num_threads; ++t) pthread_barrier_destroy(&group_barriers[t][k]);
        }
    }
    return 0;
}
inline unsigned& num_votes() { return self.num_votes; }
}  // namespace host

template <class T, class U> inline T atomicAdd(T* target, U value) {
    return __atomic_fetch_add(target, (T)value, __ATOMIC_RELAXED);
}
inline unsigned long long atomicMin(unsigned long long* target, unsigned long long value) {
    unsigned long long before = __atomic_load_n(target, __ATOMIC_RELAXED);
    while (value < before &&
           !__atomic_compare_exchange_n(target, &before, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    return before;
}

#else

#include <ucontext.h>

namespace host {
enum State { RUNS, AT_BARRIER, AT_GROUP_BARRIER, DONE };
struct Fibre { void* stack; Index index; State state; int line; unsigned mask, num_votes; };
inline Fibre* current;
inline void* scheduler;
inline void (*body)(void*);
inline void* body_argument;
inline Index thread_index() { return current->index; }

#ifdef __x86_64__
extern "C" void host_switch(void** from, void* to);
// Ten times faster than swapcontext, which saves the signal mask with two system calls.
asm(".weak host_switch\nhost_switch:\n push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n"
    " mov %rsp,(%rdi)\n mov %rsi,%rsp\n pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n ret\n");
inline void resume(Fibre& fibre) { host_switch(&scheduler, fibre.stack); }
inline void yield() { host_switch(&current->stack, scheduler); }
inline void enter() {
    body(body_argument);
    current->state = DONE;
    yield();
    __builtin_unreachable();
}
inline void prepare(Fibre& fibre, unsigned char* stack) {
    void** top = (void**)((uintptr_t)(stack + STACK_NBYTES - 1) & ~(uintptr_t)15) - 2;
    *top = (void*)enter;
    for (int k = 0; k < 6; ++k) *--top = nullptr;
    fibre.stack = top;
}
#else
inline ucontext_t contexts[MOST_THREADS], scheduler_context;
inline void resume(Fibre& fibre) { swapcontext(&scheduler_context, &contexts[fibre.index.x]); }
inline void yield() { swapcontext(&contexts[current->index.x], &scheduler_context); }
inline void enter() {
    body(body_argument);
    current->state = DONE;
    yield();
}
inline void prepare(Fibre& fibre, unsigned char* stack) {
    ucontext_t& context = contexts[fibre.index.x];
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = STACK_NBYTES;
    makecontext(&context, enter, 0);
}
#endif

inline void wait(State state, unsigned mask, int line) {
    current->state = state;
    current->mask = mask;
    current->line = line;
    yield();
}
inline void barrier(int line) { wait(AT_BARRIER, 0, line); }
inline void group_barrier(unsigned mask, int line) { wait(AT_GROUP_BARRIER, mask, line); }
inline unsigned& num_votes() { return current->num_votes; }

inline void shuffle(std::vector<unsigned>& order, uint32_t& random) {
    for (unsigned k = order.size() - 1; k; --k) {
        random = random * 1664525u + 1013904223u;
        std::swap(order[k], order[(random >> 8) % (k + 1)]);
    }
}

// Lets those go on whose whole group has come to its barrier. Returns whether there were any.
inline bool release_groups(std::vector<Fibre>& fibres) {
    bool any = false;
    for (unsigned first = 0; first < fibres.size(); ++first) {
        const unsigned mask = fibres[first].mask, warp = first / 32 * 32;
        if (fibres[first].state != AT_GROUP_BARRIER || first % 32 != (unsigned)__builtin_ctz(mask)) continue;
        bool all = true;
        for (unsigned lane = 0; lane < 32; ++lane) {
            if (!(mask >> lane & 1)) continue;
            all &= warp + lane < fibres.size() && fibres[warp + lane].state == AT_GROUP_BARRIER &&
                   fibres[warp + lane].mask == mask;
        }
        for (unsigned lane = 0; all && lane < 32; ++lane) {
            if (mask >> lane & 1) fibres[warp + lane].state = RUNS;
        }
        any |= all;
    }
    return any;
}

// Returns 0, or what is wrong: 2 for threads of a block that wait at different barriers, 3 for one not all come to.
inline int run_block(std::vector<Fibre>& fibres, std::vector<unsigned>& order, uint32_t& random, bool shuffled) {
    for (;;) {
        if (shuffled) shuffle(order, random);
        bool moved = false;
        for (unsigned index : order) {
            if (fibres[index].state != RUNS) continue;
            current = &fibres[index];
            resume(fibres[index]);
            moved = true;
        }
        unsigned live = 0, waiting = 0;
        int line = 0;
        for (const Fibre& each : fibres) {
            live += each.state != DONE;
            if (each.state != AT_BARRIER) continue;
            if (waiting++ && each.line != line) {
                fprintf(stderr, "threads of one block wait at the barriers of lines %d and %d\n", line, each.line);
                return 2;
            }
            line = each.line;
        }
        if (!live) return 0;
        if (waiting == live) {
            for (Fibre& each : fibres) {
                if (each.state == AT_BARRIER) each.state = RUNS;
            }
        } else if (!release_groups(fibres) && !moved) {
            fprintf(stderr, "not all threads come to the barrier of line %d\n", line);
            return 3;
        }
    }
}

template <class Kernel> int launch(unsigned num_blocks, unsigned num_threads, unsigned order_seed, Kernel kernel) {
    static std::vector<unsigned char> stacks;
    if (stacks.size() < (size_t)STACK_NBYTES * num_threads) stacks.resize((size_t)STACK_NBYTES * num_threads);
    block_size = {num_threads, 1, 1};
    grid_size = {num_blocks, 1, 1};
    body = [](void* given) { (*(Kernel*)given)(); };
    body_argument = &kernel;
    std::vector<Fibre> fibres(num_threads);
    std::vector<unsigned> order(num_threads);
    for (unsigned t = 0; t < num_threads; ++t) order[t] = t;
    uint32_t random = order_seed * 2654435761u + 1;
    for (unsigned block = 0; block < num_blocks; ++block) {
        block_index = {block, 0, 0};
        poison();
        for (auto& each : votes) each = 0;
        for (unsigned t = 0; t < num_threads; ++t) {
            fibres[t] = {nullptr, {t, 0, 0}, RUNS, 0, 0, 0};
            prepare(fibres[t], &stacks[(size_t)STACK_NBYTES * t]);
        }
        const int wrong = run_block(fibres, order, random, order_seed != 0);
        if (wrong) return wrong;
    }
    return 0;
}
}  // namespace host

template <class T, class U> inline T atomicAdd(T* target, U value) {
    const T before = *target;
    *target = before + (T)value;
    return before;
}
inline unsigned long long atomicMin(unsigned long long* target, unsigned long long value) {
    const unsigned long long before = *target;
    if (value < before) *target = value;
    return before;
}

#endif

namespace host {
// Whether any thread of the block votes so. Three counters take turns; a barrier lies between the last reading of one
// and its next use.
inline int any_of_block(int value, int line) {
    const unsigned turn = num_votes()++;
    if (value) votes[turn % 3].fetch_add(1, std::memory_order_relaxed);
    barrier(line);
    const int found = votes[turn % 3].load(std::memory_order_relaxed) != 0;
    votes[(turn + 2) % 3].store(0, std::memory_order_relaxed);
    return found;
}

template <class T> T shuffled(unsigned mask, T value, int lane, int line) {
    const unsigned thread = thread_index().x;
    memcpy(&lanes[thread], &value, sizeof value);
    group_barrier(mask, line);
    T found;
    memcpy(&found, &lanes[thread / 32 * 32 + lane % 32], sizeof found);
    group_barrier(mask, line);
    return found;
}

inline unsigned ballot(unsigned mask, int value, int line) {
    const unsigned thread = thread_index().x;
    lanes[thread] = value != 0;
    group_barrier(mask, line);
    unsigned found = 0;
    for (unsigned lane = 0; lane < 32; ++lane) {
        if (mask >> lane & 1 && lanes[thread / 32 * 32 + lane]) found |= 1u << lane;
    }
    group_barrier(mask, line);
    return found;
}
}  // namespace host

#define __syncthreads() host::barrier(__LINE__)
#define __syncthreads_or(value) host::any_of_block(value, __LINE__)
#define __syncwarp(mask) host::group_barrier(mask, __LINE__)
#define __shfl_sync(mask, value, lane) host::shuffled(mask, value, lane, __LINE__)
#define __ballot_sync(mask, value) host::ballot(mask, value, __LINE__)

#endif
