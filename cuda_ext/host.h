// Runs kernel source on the host, in one of three ways:
//
//     (default)            One thread of the host plays a whole group in plain loops, as with device="host".
//     HOST_FIBRES          One fibre per CUDA thread, in an order that order_seed shuffles, blocks one after another.
//                          It checks barriers: it reports threads that wait on different lines, or for a thread that
//                          has ended.
//     HOST_THREADS         One thread of the host per CUDA thread, for ThreadSanitizer and AddressSanitizer.
//
// Shared memory is poisoned before every block. Blocks are one-dimensional, with up to 1,024 threads. There are no
// textures, clusters, streams or inline PTX, but host_tensor_cores.h has functions for what kernels write in PTX. Memory
// is as strongly ordered as the host's. Speed is no guide to a GPU's.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(size) __attribute__((aligned(size)))

struct __align__(16) float4 { float x, y, z, w; };
struct __align__(16) uint4 { unsigned x, y, z, w; };

inline unsigned __float_as_uint(float value) {
    unsigned bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}
inline float __uint_as_float(unsigned bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

#if !defined(HOST_FIBRES) && !defined(HOST_THREADS)

#ifdef __clang__
#define SIDE_BY_SIDE _Pragma("clang loop vectorize(assume_safety)")
#else
#define SIDE_BY_SIDE _Pragma("GCC ivdep")
#endif

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
struct CallSite { const char* file; int line; };  // of a barrier
inline Index block_index, block_size, grid_size;
inline std::atomic<unsigned> votes[3];
inline unsigned long long lanes[MOST_THREADS];

inline void poison() {
    if (__start_cuda_shared) memset(__start_cuda_shared, 0xAB, __stop_cuda_shared - __start_cuda_shared);
}
}  // namespace host

// Identifies a barrier: its own line, or the line that calls a method with a SITE parameter.
constexpr host::CallSite caller = {nullptr, 0};
#define SITE host::CallSite caller = {__builtin_FILE(), __builtin_LINE()}
#define CURRENT_SITE (caller.file ? caller : host::CallSite{__FILE__, __LINE__})

#define blockIdx host::block_index
#define blockDim host::block_size
#define gridDim host::grid_size
#define threadIdx host::thread_index()

#ifdef HOST_THREADS

#include <pthread.h>

// Each block has new arrays of the heap, so that AddressSanitizer notices an index that is out of range.
#define STAGED(type, name, size) static host::Array<type, size> name

namespace host {
struct AnyArray {
    AnyArray() : next(all) { all = this; }
    virtual void renew() = 0;
    AnyArray* next;
    static inline AnyArray* all = nullptr;
};
template <class T, size_t size> struct Array : AnyArray {
    T* elements = nullptr;
    void renew() override {
        free(elements);
        elements = (T*)malloc(size * sizeof(T));
        memset((void*)elements, 0xAB, size * sizeof(T));
    }
    operator T*() const { return elements; }
};
inline void renew_arrays() {
    for (AnyArray* array = AnyArray::all; array; array = array->next) array->renew();
}

struct Thread { Index index; unsigned num_barriers, num_votes, num_warp_barriers[2]; };
inline thread_local Thread self;
// Three, used in rotation: with one, ThreadSanitizer orders a thread that leaves it late after a thread that reaches
// the next barrier early.
inline pthread_barrier_t barriers[3], warp_barriers[MOST_THREADS / 32][2][3];
// The threads that the barriers of a warp are for: all of them, and those that play; 0: none yet.
inline unsigned warp_masks[MOST_THREADS / 32][2];
inline pthread_mutex_t warp_mutexes[MOST_THREADS / 32];

inline Index thread_index() { return self.index; }
inline void barrier(CallSite) { pthread_barrier_wait(&barriers[self.num_barriers++ % 3]); }
inline void warp_barrier(unsigned mask, CallSite) {
    const unsigned warp = self.index.x / 32, some = mask != ~0u;
    auto& kind = warp_barriers[warp][some];
    pthread_mutex_lock(&warp_mutexes[warp]);
    if (!warp_masks[warp][some]) {
        for (auto& barrier : kind) pthread_barrier_init(&barrier, nullptr, __builtin_popcount(mask));
        warp_masks[warp][some] = mask;
    }
    pthread_mutex_unlock(&warp_mutexes[warp]);
    pthread_barrier_wait(&kind[self.num_warp_barriers[some]++ % 3]);
}

template <class Kernel> const char* launch(unsigned num_blocks, unsigned num_threads, unsigned, Kernel kernel) {
    struct Start { Kernel* kernel; unsigned thread; };
    block_size = {num_threads, 1, 1};
    grid_size = {num_blocks, 1, 1};
    for (unsigned block = 0; block < num_blocks; ++block) {
        block_index = {block, 0, 0};
        renew_arrays();
        poison();
        for (auto& count : votes) count = 0;
        for (int k = 0; k < 3; ++k) {
            pthread_barrier_init(&barriers[k], nullptr, num_threads);
        }
        for (auto& mutex : warp_mutexes) pthread_mutex_init(&mutex, nullptr);
        std::vector<pthread_t> threads(num_threads);
        std::vector<Start> starts(num_threads);
        for (unsigned t = 0; t < num_threads; ++t) {
            starts[t] = {&kernel, t};
            const auto run = [](void* argument) -> void* {
                const Start* start = (Start*)argument;
                self = {{start->thread, 0, 0}, 0, 0, {0, 0}};
                (*start->kernel)();
                return nullptr;
            };
            if (pthread_create(&threads[t], nullptr, run, &starts[t])) return "could not start another thread";
        }
        for (auto& thread : threads) pthread_join(thread, nullptr);
        for (int k = 0; k < 3; ++k) {
            pthread_barrier_destroy(&barriers[k]);
        }
        for (unsigned warp = 0; warp < MOST_THREADS / 32; ++warp) {
            for (int some = 0; some < 2; ++some) {
                if (warp_masks[warp][some]) {
                    for (auto& barrier : warp_barriers[warp][some]) pthread_barrier_destroy(&barrier);
                }
                warp_masks[warp][some] = 0;
            }
            pthread_mutex_destroy(&warp_mutexes[warp]);
        }
    }
    return nullptr;
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
enum State { RUNS, AT_BARRIER, AT_WARP_BARRIER, DONE };
struct Fibre { void* stack; Index index; State state; CallSite site; unsigned mask, num_votes; };
inline Fibre* current;
inline void* scheduler;
inline void (*body)(void*);
inline void* body_argument;
inline Index thread_index() { return current->index; }

#ifdef __x86_64__
extern "C" void host_switch(void** from, void* to);
// Ten times faster than swapcontext, which saves the signal mask with two system calls.
asm(".weak host_switch\n.hidden host_switch\nhost_switch:\n push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n"
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

inline void wait(State state, unsigned mask, CallSite site) {
    current->state = state;
    current->mask = mask;
    current->site = site;
    yield();
}
inline void barrier(CallSite site) { wait(AT_BARRIER, 0, site); }
inline void warp_barrier(unsigned mask, CallSite site) { wait(AT_WARP_BARRIER, mask, site); }
inline unsigned& num_votes() { return current->num_votes; }

inline void shuffle(std::vector<unsigned>& order, uint32_t& random) {
    for (unsigned k = order.size() - 1; k; --k) {
        random = random * 1664525u + 1013904223u;
        std::swap(order[k], order[(random >> 8) % (k + 1)]);
    }
}

inline bool alike(const Fibre& one, const Fibre& other) {
    return one.state == other.state && one.mask == other.mask && one.site.line == other.site.line &&
           !strcmp(one.site.file, other.site.file);
}

// Returns a text that explains why a block cannot continue: a thread waits for another that waits elsewhere or has
// ended.
inline const char* reason(const Fibre& waits, const Fibre& other) {
    static char text[400];
    const auto name = [](const char* file) { return strrchr(file, '/') ? strrchr(file, '/') + 1 : file; };
    const int length = snprintf(text, sizeof text, "in block %u, thread %u waits at the barrier of %s:%d, and thread %u ",
                                block_index.x, waits.index.x, name(waits.site.file), waits.site.line, other.index.x);
    if (other.state == DONE) {
        snprintf(text + length, sizeof text - length, "has ended");
    } else {
        snprintf(text + length, sizeof text - length, "at that of %s:%d", name(other.site.file), other.site.line);
    }
    return text;
}

// Releases the threads of a warp's barrier if all are there. Returns null, or a text that explains why they are not.
inline const char* release_warp(std::vector<Fibre>& fibres, const Fibre& one) {
    Fibre* const warp = &fibres[one.index.x / 32 * 32];
    const unsigned mask = one.mask;
    for (unsigned k = 0; k < 32; ++k) {
        if (mask >> k & 1 && !alike(one, warp[k])) return reason(one, warp[k]);
    }
    for (unsigned k = 0; k < 32; ++k) {
        if (mask >> k & 1) warp[k].state = RUNS;
    }
    return nullptr;
}

// Releases the block, or every complete warp. Returns null, or a text that explains why no thread can continue.
inline const char* release(std::vector<Fibre>& fibres) {
    const Fibre* first = nullptr;  // of the fibres at a barrier of the block, which ignores fibres that have ended
    const char* wrong = nullptr;
    bool all = true, any = false;
    for (const Fibre& fibre : fibres) {
        if (fibre.state == AT_BARRIER && !first) first = &fibre;
        if (fibre.state == AT_BARRIER && !alike(*first, fibre)) return reason(*first, fibre);
        all &= fibre.state == AT_BARRIER || fibre.state == DONE;
    }
    for (Fibre& fibre : fibres) {
        if (fibre.state == AT_BARRIER && all) fibre.state = RUNS;
        if (fibre.state != AT_WARP_BARRIER) continue;
        if (const char* why = release_warp(fibres, fibre)) {
            wrong = why;
        } else {
            any = true;
        }
    }
    return all || any ? nullptr : wrong;
}

// Plays a block. Returns null, or a text that explains why its threads cannot continue.
inline const char* run_block(std::vector<Fibre>& fibres, std::vector<unsigned>& order, uint32_t& random, bool shuffled) {
    for (;;) {
        if (shuffled) shuffle(order, random);
        for (unsigned index : order) {
            if (fibres[index].state != RUNS) continue;
            current = &fibres[index];
            resume(fibres[index]);
        }
        bool live = false;
        for (const Fibre& fibre : fibres) live |= fibre.state != DONE;
        if (!live) return nullptr;
        if (const char* wrong = release(fibres)) return wrong;
    }
}

template <class Kernel> const char* launch(unsigned num_blocks, unsigned num_threads, unsigned order_seed, Kernel kernel) {
    static std::vector<unsigned char> stacks;
    if (stacks.size() < (size_t)STACK_NBYTES * num_threads) stacks.resize((size_t)STACK_NBYTES * num_threads);
    block_size = {num_threads, 1, 1};
    grid_size = {num_blocks, 1, 1};
    body = [](void* argument) { (*(Kernel*)argument)(); };
    body_argument = &kernel;
    std::vector<Fibre> fibres(num_threads);
    std::vector<unsigned> order(num_threads);
    for (unsigned t = 0; t < num_threads; ++t) order[t] = t;
    uint32_t random = order_seed * 2654435761u + 1;
    for (unsigned block = 0; block < num_blocks; ++block) {
        block_index = {block, 0, 0};
        poison();
        for (auto& count : votes) count = 0;
        for (unsigned t = 0; t < num_threads; ++t) {
            fibres[t] = {nullptr, {t, 0, 0}, RUNS, {}, 0, 0};
            prepare(fibres[t], &stacks[(size_t)STACK_NBYTES * t]);
        }
        if (const char* wrong = run_block(fibres, order, random, order_seed != 0)) return wrong;
    }
    return nullptr;
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
// Returns whether any thread of the block passes a value other than 0. Three counters are used in rotation; a barrier
// separates the last reading of one from its next use.
inline int any_of_block(int value, CallSite site) {
    const unsigned vote = num_votes()++;
    if (value) votes[vote % 3].fetch_add(1, std::memory_order_relaxed);
    barrier(site);
    const int result = votes[vote % 3].load(std::memory_order_relaxed) != 0;
    votes[(vote + 2) % 3].store(0, std::memory_order_relaxed);
    return result;
}

template <class T> T shuffled(unsigned mask, T value, int source, CallSite site) {
    const unsigned thread = thread_index().x;
    memcpy(&lanes[thread], &value, sizeof value);
    warp_barrier(mask, site);
    T result;
    memcpy(&result, &lanes[thread / 32 * 32 + source % 32], sizeof result);
    warp_barrier(mask, site);
    return result;
}

inline unsigned ballot(unsigned mask, int value, CallSite site) {
    const unsigned thread = thread_index().x;
    lanes[thread] = value != 0;
    warp_barrier(mask, site);
    unsigned result = 0;
    for (unsigned bit = 0; bit < 32; ++bit) {
        if (mask >> bit & 1 && lanes[thread / 32 * 32 + bit]) result |= 1u << bit;
    }
    warp_barrier(mask, site);
    return result;
}
}  // namespace host

#define __syncthreads() host::barrier(CURRENT_SITE)
#define __syncthreads_or(value) host::any_of_block(value, CURRENT_SITE)
#define __syncwarp(mask) host::warp_barrier(mask, CURRENT_SITE)
#define __shfl_sync(mask, value, source) host::shuffled(mask, value, source, CURRENT_SITE)
#define __ballot_sync(mask, value) host::ballot(mask, value, CURRENT_SITE)

#include "host_tensor_cores.h"

#endif
