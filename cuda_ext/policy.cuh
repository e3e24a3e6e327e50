// Chooses actions before a step, from outputs that a learner passes or that a small network computes from the
// observations: logits of options, or means of numbers. kernel.cuh includes this file after the declarations of Env and
// Group.
#pragma once
#include "layers.cuh"
#include "sampling.cuh"

#ifdef NETWORK_WIDTH  // floats of the widest layer, padded
#define HAS_NETWORK
#else
#define NETWORK_WIDTH 256  // for any network: the host's program, and launches without one
#endif
// A launch for a device also knows NETWORK_LAYERS, the number of inputs and, for each layer, of its outputs and its
// activation, and POLICY_OPTIONS, the number of options of each choice.
#ifndef NUM_WEIGHTS  // of a network that a block keeps in shared memory; 0 for none
#define NUM_WEIGHTS 0
#endif

#if TENSOR_CORES
#include "tensor_cores.cuh"
#endif

enum { NO_POLICY, LOGITS, NETWORK };

// Makes the choices of an agent's action.
struct Chooser {
    const Env& env;
    int e, a;
    size_t index;  // of the agent's row
    const float* logits;
    const unsigned char* allowed;
    float log_prob, entropy;
    Words words;

    // Makes the k-th choice. KNOWN: the number of its options, where the compiler is to know it, else 0.
    template <int KNOWN> __device__ __forceinline__ void make(int k) {
        if (k % 4 == 0) words = philox(env.seed[e], env.episode[e], env.t[e] + 1, a, POLICY, k / 4);
        const int n = KNOWN > 0 ? KNOWN : env.policy_nvec[k], j = k % 4;
        const unsigned word = j == 0 ? words.w[0] : j == 1 ? words.w[1] : j == 2 ? words.w[2] : words.w[3];
        const Choice choice = choose_option<KNOWN>(logits, allowed, n, word, env.policy_greedy);
        ((long long*)env.policy_actions)[index * env.policy_num_choices + k] = choice.option;
        log_prob += choice.log_prob;
        entropy += choice.entropy;
        logits += n;
        if (allowed != nullptr) allowed += n;
    }

    // Makes choices of so many options each.
    template <int... COUNTS> __device__ __forceinline__ void make_known() {
        int k = 0;
        (make<COUNTS>(k++), ...);
    }
};

// Chooses an agent's action by its logits and writes it to the agent's row, where action() reads it.
__device__ __forceinline__ void choose_action(const Env& env, int e, int row, int a, const float* logits) {
    const size_t index = row + a;
#ifdef HAS_NETWORK
    const unsigned char* allowed = nullptr;
#else
    const unsigned char* allowed = env.policy_masks;
    if (allowed != nullptr) allowed += index * env.policy_num_options;
#endif
    float log_prob = 0.0f, entropy = 0.0f;
    Words words = {};
    for (int k = 0; k < env.num_continuous; ++k) {
        if (k % 4 == 0) words = philox(env.seed[e], env.episode[e], env.t[e] + 1, a, POLICY, k / 4);
        const unsigned first = k % 4 < 2 ? words.w[0] : words.w[2], second = k % 4 < 2 ? words.w[1] : words.w[3];
        const Number number = draw_number(logits[k], env.policy_log_std[k], first, second, k % 2, env.policy_greedy);
        const float action = env.policy_centers[k] + env.policy_spans[k] * number.value;
        ((float*)env.policy_actions)[index * env.num_continuous + k] = action;
        log_prob += number.log_prob;
        entropy += number.entropy;
    }
    Chooser chooser = {env, e, a, index, logits, allowed, log_prob, entropy, {}};
#ifdef POLICY_OPTIONS
    chooser.make_known<POLICY_OPTIONS>();
#else
    for (int k = 0; k < env.policy_num_choices; ++k) chooser.make<0>(k);
#endif
    env.policy_log_probs[index] = chooser.log_prob;
    env.policy_entropies[index] = chooser.entropy;
}

// Chooses the actions of an environment's next step. inputs: the agents' observations, a row each. weights: of the
// network. plays: whether the thread has agents; with tensor cores the others help to compute the network.
__device__ __forceinline__ void choose(const Env& env, int e, int row, const Group& group, const float* inputs,
                                       const float* weights, bool plays) {
#if TENSOR_CORES
    float logits[NETWORK_WIDTH];
    const int warp_lane = threadIdx.x % 32, last = env.num_agents - 1;
    for (int a = group.rank; GROUP_SIZE > 32 ? a - warp_lane <= last : a < group.size; a += group.size) {
        const float* const observation = inputs + (size_t)(a < last ? a : last) * env.observation_size;
        forward_warp<NETWORK_LAYERS>(observation, weights, logits);
        if (plays && a <= last) choose_action(env, e, row, a, logits);
    }
#else
    for (int a = group.rank; a < env.num_agents; a += group.size) {
        float units[2 * NETWORK_WIDTH];
        const float* logits;
        if (env.policy == NETWORK) {
            const float* const observation = inputs + (size_t)a * env.observation_size;
#ifdef NETWORK_LAYERS
            logits = forward_known<NETWORK_LAYERS>(observation, weights, units, units + NETWORK_WIDTH);
#else
            logits = forward(observation, env.observation_size, weights, env.policy_layers, env.policy_num_layers,
                             units, NETWORK_WIDTH);
#endif
        } else {
            logits = env.policy_logits + (size_t)(row + a) * env.policy_num_options;
        }
        choose_action(env, e, row, a, logits);
    }
#endif
}
