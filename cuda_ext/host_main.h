// The functions that a library for the host exports for a kernel. HOST_KERNEL(open) returns a new thread pool.
// HOST_KERNEL(play) plays a launch on a pool and returns 0; it returns 1 and plays nothing if an action is not in its
// space. HOST_KERNEL(close) ends the pool. HOST_KERNEL(digest) returns the digest of the sources that were compiled.
#include "host_threads.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

// Returns whether all components of these actions are from 0 to nvec - 1. A number is in that range if neither it nor
// nvec - 1 minus it is negative, a test that compilers vectorize.
template <class Action, class Unsigned>
bool are_in(const Action* actions, size_t num_rows, const int* nvec, int num_choices) {
    Unsigned signs = 0;
    for (int k = 0; k < num_choices; ++k) {
        const Unsigned last = nvec[k] - 1;
        for (size_t row = 0; row < num_rows; ++row) {
            const Unsigned value = actions[row * num_choices + k];
            signs |= value | (last - value);
        }
    }
    return signs >> (8 * sizeof(Unsigned) - 1) == 0;
}

// Returns whether the actions for a single step of consecutive environments are in range; true for other launches,
// whose actions Python checks.
bool are_actions(const Env& env) {
    if (env.policy_nvec == nullptr || env.policy != NO_POLICY || env.actions == nullptr || env.resets ||
        env.env_ids != nullptr || env.num_steps != 1) {
        return true;
    }
    const size_t first = (size_t)(env.first_slot + (env.by_env ? env.first_env : 0)) * env.num_agents;
    const size_t num_rows = (size_t)env.num_envs * env.num_agents, shift = first * env.policy_num_choices;
    if (env.actions_nbytes == 8) {
        return are_in<long long, unsigned long long>((const long long*)env.actions + shift, num_rows, env.policy_nvec,
                                                     env.policy_num_choices);
    }
    return are_in<int, unsigned>((const int*)env.actions + shift, num_rows, env.policy_nvec, env.policy_num_choices);
}

// Plays environments of a launch, one after another.
void play_one_by_one(const Env& arguments, int first, int last) {
    const Env env = arguments;  // a copy without pointers to it, so that the kernel's writes cannot change it
    for (int index = first; index < last; ++index) {
        play_all<1>(env, index, 1, Group{0}, InPlace{}, env.policy_network);
    }
}

#ifdef LANES

// Plays consecutive environments, LANES of them at once.
template <class Action>
inline __attribute__((always_inline)) void play_side_by_side(const Env& arguments, int first, int last) {
    Env env = arguments;
    env.num_agents = 1;
    env.observation_size = LANE_SIZE;
    env.env_ids = nullptr;
    env.policy = NO_POLICY;
    env.actions_nbytes = sizeof(Action);
    if (env.actions == nullptr || env.resets) __builtin_unreachable();
    for (int index = first; index < last; index += LANES) {
        const int count = last - index < LANES ? last - index : LANES;
        play_all<LANES>(env, index, count, Group{0}, InPlace{}, nullptr);
    }
}

#define VARIANT(name, ...)                                                                  \
    __attribute__((flatten, ##__VA_ARGS__)) void name(const Env& env, int first, int last) { \
        if (env.actions_nbytes == 8) {                                                      \
            play_side_by_side<long long>(env, first, last);                                 \
        } else {                                                                            \
            play_side_by_side<int>(env, first, last);                                       \
        }                                                                                   \
    }

VARIANT(play_plain)
#ifdef __x86_64__
VARIANT(play_avx2, target("avx2"))
VARIANT(play_avx512, target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512"))
#endif

// Returns whether the environments of a launch can be played side by side. Not in DISABLED, where an episode that is
// over must not advance.
bool are_neighbours(const Env& env) {
    return env.num_agents == 1 && env.observation_size == LANE_SIZE && env.env_ids == nullptr &&
           env.actions != nullptr && env.policy == NO_POLICY && !env.resets && env.autoreset != DISABLED;
}

auto chosen() {
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
        return play_avx512;
    }
    if (__builtin_cpu_supports("avx2")) return play_avx2;
#endif
    return play_plain;
}

#endif

}  // namespace

EXPORTED void* HOST_KERNEL(open)(int num_threads, double worth_ns) { return new host::ThreadPool(num_threads, worth_ns); }

EXPORTED int HOST_KERNEL(play)(void* pool, const Env* env) {
    if (!are_actions(*env)) return 1;
    auto play = play_one_by_one;
    int grain = 1;
#ifdef LANES
    if (are_neighbours(*env)) {
        play = chosen();
        grain = LANES;
    }
#endif
    ((host::ThreadPool*)pool)->run(env->num_envs, grain, [env, play](int first, int last) { play(*env, first, last); });
    return 0;
}

EXPORTED void HOST_KERNEL(close)(void* pool) { delete (host::ThreadPool*)pool; }

EXPORTED const char* HOST_KERNEL(digest)() { return DIGEST; }
