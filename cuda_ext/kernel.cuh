// The code that all kernels share: it assigns environments to threads, implements autoreset on the device, reads
// actions and writes rows.
//
// A kernel file finds `struct Env` declared by its schema and defines three functions. All threads of a group call them
// and play one environment together; thread `group.rank` handles agents rank, rank + size, …:
//
//     void start(const Env& env, int e, const Group& group);             // the first state of an episode
//     void step(const Env& env, int e, int row, const Group& group);     // from actions to state, rewards and flags
//     void observe(const Env& env, int e, const Group& group, float* observations);  // (num_agents, observation_size)
//
// `e` is the index of the environment, `e * env.num_agents + a` that of an agent in the fields, `row + a` its row in
// env.rewards, env.terminations and env.truncations, which are zero before a step, and in env.masks, which is true for
// agents that act in the step. A terminated or truncated agent no longer acts; the episode is over when no agent acts.
// Environments share no memory. A thread sees the writes of other threads after group.sync().
//
// The groups of a warp run in step: a barrier waits for all of them. So no condition that differs between environments
// may surround group.sync, sum, any or min; fibres report it. A group that has nothing to do in a step calls `step`
// with its neighbours, as do, when another's episode starts, `start` and `observe`; its threads' ranks are then beyond
// all agents and all elements. So write only in loops that begin at group.rank, or if group.rank has a certain value.
//
// A group has GROUP_SIZE threads: 1 (no thread waits for another; the host runs kernels this way), 2 to 32 of one warp,
// or a whole block. A launch for a device keeps the state of NUM_AGENTS agents per environment, and the rows of a step,
// on the chip (see on_chip.cuh). TILE is the number of floats of shared memory that collect the observations of a warp,
// or of a block that is one group, so that they are written to memory in order; 0 for none.
#pragma once
#include "group.cuh"
#include "philox.cuh"

#ifndef TILE
#define TILE 0
#endif
#ifndef SIDE_BY_SIDE  // before a loop whose iterations do not depend on each other
#define SIDE_BY_SIDE
#endif

enum { NEXT_STEP, SAME_STEP, DISABLED };
enum { POLICY = 100 };  // the purpose of random numbers that choose actions; environments use purposes below it

__device__ void start(const Env& env, int e, const Group& group);
__device__ void step(const Env& env, int e, int row, const Group& group);
__device__ void observe(const Env& env, int e, const Group& group, float* observations);

// Returns an action, given as an unsigned number, from 0 to num_actions - 1. On the host all actions are checked before
// a launch. On a GPU not every one is checked: one out of range, also a negative one, is read as 0, so that no kernel
// uses it as an index.
template <class Unsigned>
__device__ __forceinline__ int in_range(Unsigned action, int num_actions) {
#ifdef CUDA_KERNEL
    return action < (Unsigned)num_actions ? (int)action : 0;
#else
    return (int)action;
#endif
}

// Returns the action of a row, from 0 to num_actions - 1; a random one if the launch has no actions. If an action has
// several components, which lie one after another, call this for each.
__device__ __forceinline__ int action(const Env& env, int e, int a, int row, int num_actions, int component = 0,
                                      int num_components = 1) {
    if (env.actions == nullptr) {
        const Words words = philox(env.seed[e], env.episode[e], env.t[e], a, POLICY, component / 4);
        return (int)below(words.w[component % 4], num_actions);
    }
    const size_t offset = (size_t)(row + a) * num_components + component;
    if (env.actions_nbytes == 8) return in_range(((const unsigned long long*)env.actions)[offset], num_actions);
    return in_range(((const unsigned*)env.actions)[offset], num_actions);
}

// Returns a component of a row's action that is a number, from low to high; a random one if the launch has no actions.
// Numbers beyond the bounds are clipped, and NaN is read as low.
__device__ __forceinline__ float continuous_action(const Env& env, int e, int a, int row, float low, float high,
                                                   int component = 0, int num_components = 1) {
    if (env.actions == nullptr) {
        const Words words = philox(env.seed[e], env.episode[e], env.t[e], a, POLICY, component / 4);
        return low + uniform(words.w[component % 4]) * (high - low);
    }
    const float value = ((const float*)env.actions)[(size_t)(row + a) * num_components + component];
    return value >= low ? value <= high ? value : high : low;
}

#include "policy.cuh"

__device__ __forceinline__ int env_of(const Env& env, int index) {
#ifdef CUDA_KERNEL
    return env.env_id;  // a thread plays one environment
#else
    return env.env_ids == nullptr ? env.first_env + index : env.env_ids[index];
#endif
}

__device__ __forceinline__ void begin(const Env& env, int index, int e, const Group& group) {
    // On a device each thread has its own copy of the seed, the episode, the time and of whether the episode is over.
    if (!group.is_idle()) {
        if (env.resets && env.seeds != nullptr) {
            env.seed[e] = env.seeds[index];
            env.episode[e] = 0;
        } else {
            env.episode[e] += 1;
        }
        zero_env(env, e, group.rank);
    }
    for (int a = group.rank; a < env.num_agents; a += group.size) {
        const int i = e * env.num_agents + a;
        zero_agent(env, i);
        env.acts[i] = true;
    }
    group.sync();
    start(env, e, group);
    group.sync();
}

// Returns a flag as a number, 0 or 1, which compilers vectorize more readily than a bool.
__device__ __forceinline__ unsigned char& byte(bool& flag) { return *(unsigned char*)&flag; }

// Plays one step; returns whether the episode is over. Writes the returns of agents that ended, and of all agents of an
// episode that is over; with writes_all those of all agents, in a loop that compilers vectorize.
template <bool writes_all>
__device__ __forceinline__ bool advance(const Env& env, int e, int row, const Group& group) {
    if (!group.is_idle()) env.t[e] += 1;
    step(env, e, row, group);
    group.sync();
    bool acts = false;
    for (int a = group.rank; a < env.num_agents; a += group.size) {
        const int i = e * env.num_agents + a;
        const int plays = byte(env.masks[row + a]);
        const int goes_on = plays & ~(byte(env.terminations[row + a]) | byte(env.truncations[row + a]));
        env.episode_return[i] += plays != 0 ? env.rewards[row + a] : 0.0f;
        if (goes_on != plays) env.lengths[row + a] = env.t[e];
        if (writes_all || goes_on != plays) env.returns[row + a] = env.episode_return[i];
        env.acts[i] = goes_on != 0;
        acts |= goes_on != 0;
    }
    const bool ended = !group.any(acts) && !group.is_idle();
    if (!group.is_idle()) env.over[e] = ended;
    if (!writes_all && ended) {
        for (int a = group.rank; a < env.num_agents; a += group.size) {
            env.returns[row + a] = env.episode_return[e * env.num_agents + a];
        }
    }
    return ended;
}

// Adds a finished episode to the sums over finished episodes. The thread that owns an element adds to it, episode by
// episode, so no sum depends on the order of threads.
__device__ __forceinline__ void count_episode(const Env& env, int e, int slot, const Group& group) {
    if (group.rank == 0) {
        env.ended_episodes[e] += 1;
        env.ended_steps[e] += env.t[e];
        env.ended_scores[e] += env.scores[slot];
    }
    for (int a = group.rank; a < env.num_agents; a += group.size) {
        const int i = e * env.num_agents + a;
        env.ended_returns[i] += env.episode_return[i];
    }
}

// Writes an environment's observations after a step or at a start. If an episode has ended, writes its last
// observations, then the first of the next episode. Returns when the rows are written. starts: begin an episode first;
// final: begin one after this observation.
__device__ __forceinline__ void show(const Env& env, int index, int e, int row, const Group& group, bool starts,
                                     bool final, float* observations) {
    Group observes = group;
#pragma unroll 1
    for (;;) {
        if (group.together(starts)) begin(env, index, e, observes.only(starts));
        float* const finals = env.final_observations + (size_t)row * env.observation_size;
        float* const rows = final && !TILE ? finals : observations;
        observe(env, e, observes, rows);
        group.sync();
        for (int a = observes.rank; a < env.num_agents; a += group.size) {
            if (starts || env.masks[row + a]) continue;  // an agent that ended before observes zeros
            for (int k = 0; k < env.observation_size; ++k) rows[a * env.observation_size + k] = 0.0f;
        }
        group.sync();
        if (!group.together(final)) return;
        observes = group.only(final);
        if (TILE) {
            for (int k = observes.rank; k < env.num_agents * env.observation_size; k += group.size) finals[k] = rows[k];
            group.sync();
        }
        starts = final;
        final = false;
    }
}

__device__ __forceinline__ void clear(const Env& env, int row, const Group& group) {
    for (int a = group.rank; a < env.num_agents; a += group.size) {
        env.rewards[row + a] = 0.0f;
        env.terminations[row + a] = env.truncations[row + a] = false;
    }
}

// Plays one step of some environments, or the resets that are due instead. This is the only autoreset on the device.
// index: of the first environment in the launch; slot: of its rows; count: the number of environments, which are
// adjacent in the launch and in the rows.
//
// A group plays one environment. The host plays up to MOST single-agent environments side by side, in loops that a
// compiler vectorizes. It advances all of them, even those that start an episode: the start overwrites that step.
template <int MOST>
__device__ __forceinline__ void play(const Env& env, int index, int slot, int count, const Group& group,
                                     float* observations) {
    const int num_envs = MOST > 1 ? count : 1;
    unsigned char starts[MOST], finals[MOST];  // finals: the first observation written is the last of an episode
    bool rests = false;  // until the caller resets it
    if (MOST > 1) {  // in bytes, which compilers vectorize; launches that reset are not played side by side
        const unsigned char next_step = env.autoreset == NEXT_STEP;
        SIDE_BY_SIDE
        for (int k = 0; k < num_envs; ++k) clear(env, slot + k, group);
        SIDE_BY_SIDE
        for (int k = 0; k < num_envs; ++k) {
            const int e = env_of(env, index + k);
            starts[k] = next_step & byte(env.over[e]);
            byte(env.masks[slot + k]) = byte(env.acts[e]);  // no agent acts whose episode is over
        }
    } else {
        const int e = env_of(env, index), row = slot * env.num_agents;
        const bool over = env.over[e];
        starts[0] = env.resets || (env.autoreset == NEXT_STEP && over);
        rests = !starts[0] && env.autoreset == DISABLED && over;
        clear(env, row, group);
        for (int a = group.rank; a < env.num_agents; a += group.size) {
            env.masks[row + a] = !starts[0] && env.acts[e * env.num_agents + a];
        }
    }
    group.sync();  // all rows are clear before a thread writes one
    SIDE_BY_SIDE
    for (int k = 0; k < num_envs; ++k) {
        const int e = env_of(env, index + k), row = (slot + k) * env.num_agents;
        bool ended = false;
        const bool advances = MOST > 1 || (!starts[k] && !rests);
        if (group.together(advances)) ended = advance<(MOST > 1)>(env, e, row, group.only(advances));
        if (MOST > 1) ended &= starts[k] == 0;
        if (MOST == 1 && ended) count_episode(env, e, slot, group);
        if (group.rank == 0) env.ended[slot + k] = ended;
        finals[k] = ended & (env.autoreset == SAME_STEP);
    }
    if (group.rank == 0 && env.slot_ids != nullptr) {
        for (int k = 0; k < num_envs; ++k) env.slot_ids[slot + k] = env_of(env, index + k);
    }
    int chosen[MOST], num_chosen = num_envs;  // the environments in which an episode starts or has ended
    if (MOST > 1) {
        num_chosen = 0;
        for (int k = 0; k < num_envs; ++k) {
            chosen[num_chosen] = k;
            num_chosen += starts[k] | byte(env.ended[slot + k]);
        }
    }
    for (int i = 0; i < num_chosen; ++i) {
        const int k = MOST > 1 ? chosen[i] : 0, e = env_of(env, index + k), row = (slot + k) * env.num_agents;
        if (MOST > 1 && env.ended[slot + k]) count_episode(env, e, slot + k, group);
        if (MOST > 1 && !starts[k] && !finals[k]) continue;
        if (MOST > 1 && starts[k]) clear(env, row, group);
        show(env, index + k, e, row, group, starts[k], finals[k], observations + (size_t)k * env.observation_size);
    }
    if (MOST == 1) return;
    SIDE_BY_SIDE
    for (int k = 0; k < num_envs; ++k) {
        observe(env, env_of(env, index + k), group, observations + (size_t)k * env.observation_size);
    }
}

// Plays the launch's steps, one after another; the rows of a step follow those of the previous step, or overwrite them.
// count: environments from this index on. rows: where they are while a step is played. weights: those of a policy that
// is a network. A launch without steps only chooses actions, from logits.
template <int MOST, class Rows>
__device__ __forceinline__ void play_all(const Env& env, int index, int count, const Group& group, const Rows& rows,
                                         const float* weights) {
    const int size = env.num_agents * env.observation_size;
    if (env.policy == LOGITS && env.num_steps == 0) {
        const int e = env_of(env, index), slot = env.first_slot + (env.by_env ? e : index);
        choose(env, e, slot * env.num_agents, group, nullptr, weights, true);
        return;
    }
    const float* inputs = env.policy_inputs;  // of the first step; after it, the observations of the step before
    for (int k = 0; k < env.num_steps; ++k) {
        const int first_slot = env.first_slot + env.step_slots * k;
        const int slot = first_slot + (env.by_env ? env_of(env, index) : index), row = slot * env.num_agents;
        float* const observations = rows.observations(env.observations + (size_t)slot * size);
        rows.begin_step(row);
        if (env.policy != NO_POLICY) {
            if (k == 0 && inputs != nullptr) inputs += (size_t)slot * size;
            choose(env, env_of(env, index), row, group, inputs, weights, rows.plays);
            inputs = observations;
        }
        if (!rows.plays) continue;
        play<MOST>(env, index, slot, count, group, observations);
        rows.end_step(slot, k + 1 < env.num_steps);
    }
}

// Rows that a step writes where they belong.
struct InPlace {
    static constexpr bool plays = true;  // false in a thread that only helps to compute a network
    __device__ __forceinline__ float* observations(float* in_memory) const { return in_memory; }
    __device__ __forceinline__ void begin_step(int) const {}
    __device__ __forceinline__ void end_step(int, bool) const {}
};

#ifdef CUDA_KERNEL  // run by a device, or by the fibres and threads of host.h
#include "device_main.cuh"
#endif
