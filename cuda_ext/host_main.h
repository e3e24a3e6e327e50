// The functions that a library for the host exports for a kernel. HOST_KERNEL(open) returns a new thread pool.
// HOST_KERNEL(play) plays a launch on a pool and returns 0; it returns 1 and plays nothing if an action is not in its
// space. HOST_KERNEL(close) ends the pool. HOST_KERNEL(digest) returns the digest of the sources that were compiled.
#include <type_traits>

#include "host_threads.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

#define INLINE inline __attribute__((always_inline))

// Defines functions that call `name` and are compiled with all that it calls: name_plain and, for x86-64, name_avx2 and
// name_avx512, the same code for processors with these instructions. CHOSEN(name) is the one for this processor.
#ifdef __x86_64__
#define VARIANTS(Result, name, parameters, arguments)                                                                    \
    __attribute__((flatten)) Result name##_plain parameters { return name arguments; }                                   \
    __attribute__((flatten, target("avx2"))) Result name##_avx2 parameters { return name arguments; }                    \
    __attribute__((flatten, target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512"))) Result name##_avx512 \
        parameters { return name arguments; }
#define CHOSEN(name) (PROCESSOR == AVX512 ? name##_avx512 : PROCESSOR == AVX2 ? name##_avx2 : name##_plain)

enum Processor { PLAIN, AVX2, AVX512 };
Processor processor() {
    const bool has_512 = __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
    if (has_512 && __builtin_cpu_supports("avx512vl")) return AVX512;
    return __builtin_cpu_supports("avx2") ? AVX2 : PLAIN;
}
const Processor PROCESSOR = processor();
#else
#define VARIANTS(Result, name, parameters, arguments) \
    __attribute__((flatten)) Result name##_plain parameters { return name arguments; }
#define CHOSEN(name) name##_plain
#endif

// Returns a number that is negative if one of these is not from 0 to last: they or last minus them are then negative.
template <class Action, class Unsigned>
INLINE Unsigned signs_of(const Action* actions, size_t num_rows, size_t stride, Unsigned last) {
    Unsigned signs = 0;
    for (size_t row = 0; row < num_rows; ++row) {
        const Unsigned value = actions[row * stride];
        signs |= value | (last - value);
    }
    return signs;
}

// Returns whether all components of these actions are from 0 to nvec - 1. Compilers vectorize the loop over one
// component per row.
template <class Action, class Unsigned>
INLINE bool are_in(const Action* actions, size_t num_rows, const int* nvec, int num_choices) {
    Unsigned signs = num_choices == 1 ? signs_of<Action, Unsigned>(actions, num_rows, 1, nvec[0] - 1) : 0;
    for (int k = 0; k < num_choices && num_choices > 1; ++k) {
        signs |= signs_of<Action, Unsigned>(actions + k, num_rows, num_choices, nvec[k] - 1);
    }
    return signs >> (8 * sizeof(Unsigned) - 1) == 0;
}

// Returns whether the actions for a single step of consecutive environments are in range; true for other launches,
// whose actions Python checks.
INLINE bool are_actions(const Env& env) {
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

VARIANTS(bool, are_actions, (const Env& env), (env))

// Plays environments of a launch, one after another.
void play_one_by_one(const Env& arguments, int first, int last) {
    const Env env = arguments;  // a copy without pointers to it, so that the kernel's writes cannot change it
    for (int index = first; index < last; ++index) {
        play_all<1>(env, index, 1, Group{0}, InPlace{}, env.policy_network);
    }
}

#ifdef LANES

// Plays consecutive environments, LANES of them at once. Action: the type of their actions; void if they are random.
template <class Action>
INLINE void play_lanes(const Env& arguments, int first, int last) {
    Env env = arguments;
    env.num_agents = 1;
    env.observation_size = LANE_SIZE;
    env.env_ids = nullptr;
    env.policy = NO_POLICY;
    if constexpr (std::is_void<Action>::value) {
        env.actions = nullptr;
    } else {
        env.actions_nbytes = sizeof(Action);
        if (env.actions == nullptr) __builtin_unreachable();
    }
    if (env.resets) __builtin_unreachable();
    for (int index = first; index < last; index += LANES) {
        const int count = last - index < LANES ? last - index : LANES;
        play_all<LANES>(env, index, count, Group{0}, InPlace{}, nullptr);
    }
}

INLINE void play_side_by_side(const Env& env, int first, int last) {
    if (env.actions == nullptr) {
        play_lanes<void>(env, first, last);
    } else if (env.actions_nbytes == 8) {
        play_lanes<long long>(env, first, last);
    } else {
        play_lanes<int>(env, first, last);
    }
}

VARIANTS(void, play_side_by_side, (const Env& env, int first, int last), (env, first, last))

// Returns whether the environments of a launch can be played side by side. Not in DISABLED, where an episode that is
// over must not advance.
bool are_neighbours(const Env& env) {
    return env.num_agents == 1 && env.observation_size == LANE_SIZE && env.env_ids == nullptr &&
           env.policy == NO_POLICY && !env.resets && env.autoreset != DISABLED;
}

#endif

}  // namespace

EXPORTED void* HOST_KERNEL(open)(int num_threads, double worth_ns) { return new host::ThreadPool(num_threads, worth_ns); }

EXPORTED int HOST_KERNEL(play)(void* pool, const Env* env) {
    if (!CHOSEN(are_actions)(*env)) return 1;
    auto play = play_one_by_one;
    int grain = 1;
#ifdef LANES
    if (are_neighbours(*env)) {
        play = CHOSEN(play_side_by_side);
        grain = LANES;
    }
#endif
    ((host::ThreadPool*)pool)->run(env->num_envs, grain, [env, play](int first, int last) { play(*env, first, last); });
    return 0;
}

EXPORTED void HOST_KERNEL(close)(void* pool) { delete (host::ThreadPool*)pool; }

EXPORTED const char* HOST_KERNEL(digest)() { return DIGEST; }
