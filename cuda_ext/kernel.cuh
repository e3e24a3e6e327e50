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
// A thread sees the writes of other threads after group.sync(), which all threads of the group must reach. Environments
// share no memory.
//
// A group has GROUP_SIZE threads: 1 (no thread waits for another; the host runs kernels this way), 2 to 32 of one warp,
// or a whole block. TILE is the number of floats of shared memory that collect a block's observations, so that they are
// written to memory in order; 0 for none.
#pragma once
#include "philox.cuh"

#ifndef GROUP_SIZE
#define GROUP_SIZE 1
#endif
#ifndef BLOCK_SIZE
#define BLOCK_SIZE GROUP_SIZE
#endif
#ifndef TILE
#define TILE 0
#endif
#ifndef SIDE_BY_SIDE  // before a loop whose iterations do not depend on each other
#define SIDE_BY_SIDE
#endif
#ifndef SITE  // the parameter by which host.h distinguishes barriers
#define SITE int caller = 0
#endif

enum { NEXT_STEP, SAME_STEP, DISABLED };
enum { POLICY = 100 };  // the purpose of random numbers that choose actions; environments use purposes below it

struct Group {
    int rank;
#if GROUP_SIZE == 1
    static constexpr int size = 1;
    __device__ __forceinline__ void sync() const {}
    __device__ __forceinline__ bool any(bool value) const { return value; }
    __device__ __forceinline__ int sum(int value) const { return value; }
    __device__ __forceinline__ unsigned long long min(unsigned long long value) const { return value; }
#elif GROUP_SIZE <= 32
    static constexpr int size = GROUP_SIZE;
    unsigned mask;   // the group's lanes of its warp
    int first_lane;  // the lowest of them
    __device__ __forceinline__ void sync(SITE) const { __syncwarp(mask); }
    __device__ __forceinline__ bool any(bool value, SITE) const { return (__ballot_sync(mask, value) & mask) != 0; }
    __device__ __forceinline__ int sum(int value, SITE) const {
        int total = 0;
        for (int k = 0; k < size; ++k) total += __shfl_sync(mask, value, first_lane + k);
        return total;
    }
    __device__ __forceinline__ unsigned long long min(unsigned long long value, SITE) const {
        unsigned long long least = value;
        for (int k = 0; k < size; ++k) {
            const unsigned long long other = __shfl_sync(mask, value, first_lane + k);
            least = other < least ? other : least;
        }
        return least;
    }
#else
    static constexpr int size = GROUP_SIZE;
    unsigned long long* shared;  // one word of the block
    __device__ __forceinline__ void sync(SITE) const { __syncthreads(); }
    __device__ __forceinline__ bool any(bool value, SITE) const { return __syncthreads_or(value) != 0; }
    __device__ __forceinline__ int sum(int value, SITE) const {
        if (rank == 0) *shared = 0;
        sync(caller);
        if (value) atomicAdd((int*)shared, value);
        sync(caller);
        const int total = *(int*)shared;
        sync(caller);  // before a thread uses the word again
        return total;
    }
    __device__ __forceinline__ unsigned long long min(unsigned long long value, SITE) const {
        if (rank == 0) *shared = ~0ull;
        sync(caller);
        if (value != ~0ull) atomicMin(shared, value);
        sync(caller);
        const unsigned long long least = *shared;
        sync(caller);
        return least;
    }
#endif
};

__device__ void start(const Env& env, int e, const Group& group);
__device__ void step(const Env& env, int e, int row, const Group& group);
__device__ void observe(const Env& env, int e, const Group& group, float* observations);

// Returns the action of a row, from 0 to num_actions - 1; a random one if the launch has no actions. If an action has
// several components, which lie one after another, call this for each. On a GPU not every action is checked before this
// call: one out of range is read as 0, so that no kernel uses it as an index.
__device__ __forceinline__ int action(const Env& env, int e, int a, int row, int num_actions, int component = 0,
                                      int num_components = 1) {
    if (env.actions == nullptr) {
        const Words words = philox(env.seed[e], env.episode[e], env.t[e], a, POLICY, component / 4);
        return (int)below(words.w[component % 4], num_actions);
    }
    const size_t offset = (size_t)(row + a) * num_components + component;
    if (env.actions_nbytes == 8) {
        const long long value = ((const long long*)env.actions)[offset];
        return (unsigned long long)value < (unsigned long long)num_actions ? (int)value : 0;
    }
    const int value = ((const int*)env.actions)[offset];
    return (unsigned)value < (unsigned)num_actions ? value : 0;
}

#include "policy.cuh"

__device__ __forceinline__ int env_of(const Env& env, int index) {
    return env.env_ids == nullptr ? env.first_env + index : env.env_ids[index];
}

__device__ __forceinline__ void begin(const Env& env, int index, int e, const Group& group) {
    if (group.rank == 0) {
        if (env.resets && env.seeds != nullptr) {
            env.seed[e] = env.seeds[index];
            env.episode[e] = 0;
        } else {
            env.episode[e] += 1;
        }
        zero_env(env, e);
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

// Returns a flag as 0 or 1, which compilers vectorize more readily than a bool.
__device__ __forceinline__ int number(const bool& flag) { return *(const unsigned char*)&flag; }

// Plays one step; returns whether the episode is over.
__device__ __forceinline__ bool advance(const Env& env, int e, int row, const Group& group) {
    if (group.rank == 0) env.t[e] += 1;
    group.sync();
    step(env, e, row, group);
    group.sync();
    bool acts = false;
    for (int a = group.rank; a < env.num_agents; a += group.size) {
        const int i = e * env.num_agents + a;
        const int plays = number(env.masks[row + a]);
        const int goes_on = plays & ~(number(env.terminations[row + a]) | number(env.truncations[row + a]));
        env.episode_return[i] += plays != 0 ? env.rewards[row + a] : 0.0f;
        if (goes_on != plays) env.lengths[row + a] = env.t[e];
        env.acts[i] = goes_on != 0;
        acts |= goes_on != 0;
    }
    const bool ended = !group.any(acts);
    group.sync();
    if (group.rank == 0) env.over[e] = ended;
    for (int a = group.rank; a < env.num_agents; a += group.size) {
        env.returns[row + a] = env.episode_return[e * env.num_agents + a];
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
#pragma unroll 1
    for (bool again = true; again; final = false) {
        again = final;
        if (starts) begin(env, index, e, group);
        float* const rows = final ? env.final_observations + (size_t)row * env.observation_size : observations;
        observe(env, e, group, rows);
        group.sync();
        for (int a = group.rank; a < env.num_agents; a += group.size) {
            if (starts || env.masks[row + a]) continue;  // an agent that ended before observes zeros
            for (int k = 0; k < env.observation_size; ++k) rows[a * env.observation_size + k] = 0.0f;
        }
        group.sync();
        starts = true;
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
    bool rests = false;               // until the caller resets it
    SIDE_BY_SIDE
    for (int k = 0; k < num_envs; ++k) {
        const int e = env_of(env, index + k), row = (slot + k) * env.num_agents;
        const bool over = env.over[e];
        starts[k] = env.resets || (env.autoreset == NEXT_STEP && over);
        if (MOST == 1) rests = !starts[k] && env.autoreset == DISABLED && over;
        clear(env, row, group);
        for (int a = group.rank; a < env.num_agents; a += group.size) {
            env.masks[row + a] = !starts[k] && env.acts[e * env.num_agents + a];
        }
    }
    group.sync();  // all have read before anybody writes
    SIDE_BY_SIDE
    for (int k = 0; k < num_envs; ++k) {
        const int e = env_of(env, index + k), row = (slot + k) * env.num_agents;
        bool ended = false;
        if (MOST > 1 || (!starts[k] && !rests)) ended = advance(env, e, row, group);
        if (MOST > 1) ended &= starts[k] == 0;
        if (MOST == 1 && ended) count_episode(env, e, slot, group);
        if (group.rank == 0) env.ended[slot + k] = ended;
        finals[k] = ended & (env.autoreset == SAME_STEP);
    }
    if (group.rank == 0 && env.slot_ids != nullptr) {
        for (int k = 0; k < num_envs; ++k) env.slot_ids[slot + k] = env_of(env, index + k);
    }
    for (int k = 0; k < num_envs; ++k) {
        const int e = env_of(env, index + k), row = (slot + k) * env.num_agents;
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
// count: environments from this index on; 0 plays none. weights: those of a policy that is a network. In a launch
// without steps the policy only chooses actions.
// flush: called after each step with the step's first slot, also by threads that do not play.
template <int MOST, class Flush>
__device__ __forceinline__ void play_all(const Env& env, int index, int count, const Group& group, float* tile,
                                         const Flush& flush, const float* weights) {
    const int size = env.num_agents * env.observation_size;
    const bool plays = count > 0;
    if (env.policy != NO_POLICY && env.num_steps == 0) {
        const int e = plays ? env_of(env, index) : 0, slot = env.first_slot + (env.by_env ? e : index);
        if (plays) choose(env, e, slot * env.num_agents, group, nullptr, weights);
        return;
    }
    const float* inputs = env.policy_inputs;  // of the first step; after it, the observations of the step before
    for (int k = 0; k < env.num_steps; ++k) {
        const int first_slot = env.first_slot + env.step_slots * k;
        const int slot = first_slot + (env.by_env && plays ? env_of(env, index) : index);
        float* const observations = tile != nullptr ? tile : env.observations + (size_t)slot * size;
        if (env.policy != NO_POLICY) {
            if (k == 0 && inputs != nullptr) inputs += (size_t)slot * size;
            if (plays) choose(env, env_of(env, index), slot * env.num_agents, group, inputs, weights);
            inputs = observations;
        }
        if (plays) play<MOST>(env, index, slot, count, group, observations);
        flush(first_slot);
        if (plays) group.sync();
    }
}

#ifdef CUDA_KERNEL  // run by a device, or by the fibres and threads of host.h
extern "C" __global__ void __launch_bounds__(BLOCK_SIZE, 1) CUDA_KERNEL(const Env env) {
#if GROUP_SIZE <= 32
    constexpr int groups_per_warp = 32 / GROUP_SIZE, groups_per_block = BLOCK_SIZE / 32 * groups_per_warp;
    const int warp_lane = threadIdx.x % 32, group_in_warp = warp_lane / GROUP_SIZE;
    const int first_lane = group_in_warp * GROUP_SIZE;
    const int group_in_block = threadIdx.x / 32 * groups_per_warp + group_in_warp;
    const bool plays =
        group_in_warp < groups_per_warp && blockIdx.x * groups_per_block + group_in_block < (unsigned)env.num_envs;
#if GROUP_SIZE == 1
    const Group group = {0};
#else
    const Group group = {warp_lane - first_lane, (unsigned)((1ull << GROUP_SIZE) - 1) << first_lane, first_lane};
#endif
#else
    constexpr int groups_per_block = 1;
    __shared__ unsigned long long word;
    const int group_in_block = 0;
    const bool plays = true;
    const Group group = {(int)threadIdx.x, &word};
#endif
#ifdef __CUDA_ARCH__
    __builtin_assume(group.rank >= 0 && group.rank < group.size);  // a loop over group.size agents needs no branch
#endif
    const int first = blockIdx.x * groups_per_block;
#if NUM_WEIGHTS
    __shared__ float weights[NUM_WEIGHTS];
    for (int k = threadIdx.x; k < NUM_WEIGHTS; k += BLOCK_SIZE) weights[k] = env.policy_network[k];
    __syncthreads();
#else
    const float* const weights = env.policy_network;
#endif
#if TILE
    __shared__ float tile[TILE];
    if (env.by_env && env.env_ids != nullptr) {  // the rows of the block's environments are not adjacent
        play_all<1>(env, first + group_in_block, plays, group, nullptr, [](int) {}, weights);
        return;
    }
    const int size = env.num_agents * env.observation_size;
    const int count = (env.num_envs - first < groups_per_block ? env.num_envs - first : groups_per_block) * size;
    play_all<1>(env, first + group_in_block, plays, group, tile + group_in_block * size, [&](int first_slot) {
        const int shift = env.by_env ? env.first_env : 0;
        float* const out = env.observations + (size_t)(first_slot + shift + first) * size;
        __syncthreads();
        for (int k = threadIdx.x; k < count; k += BLOCK_SIZE) out[k] = tile[k];
        __syncthreads();
    }, weights);
#else
    play_all<1>(env, first + group_in_block, plays, group, nullptr, [](int) {}, weights);
#endif
}
#endif
