// Draws actions from a policy's outputs and random numbers, for hosts and devices.
//
// tests/cuda_ext/test_learner_actions.py compares it with Distribution of pufferlib.models.
#pragma once
#include "learner/losses.cuh"

// Draws one row's action, and returns its log-probability. Replaces logits in outputs by log-probabilities.
// exponentials: a random number of the exponential distribution for each option: of exponential clocks with rates p, the
// one with rate p[k] rings first with probability p[k]. Those of part k begin at first * num_rows, where first is the
// number of its first option, with a row for each row. normals: of the standard normal distribution, of this row.
// weights: num_options floats to work in.
__device__ __forceinline__ float draw_action(const Heads& heads, const unsigned char* allowed, const float* log_std,
                                             const float* exponentials, size_t num_rows, size_t row,
                                             const float* normals, float* outputs, float* weights,
                                             long long* discrete_actions, float* continuous_actions) {
    float log_prob = 0.0f;
    for (int part = 0, first = 0; part < heads.num_discrete; first += heads.nvec[part++]) {
        const int n = heads.nvec[part];
        float* const logits = outputs + first;
        log_softmax(logits, allowed == nullptr ? nullptr : allowed + first, n, weights);
        const float* const clocks = exponentials + first * num_rows + row * n;
        int chosen = 0;
        float greatest = logits[0] - logarithm(clocks[0]);
        for (int k = 1; k < n; ++k) {
            const float candidate = logits[k] - logarithm(clocks[k]);
            if (candidate > greatest) {
                greatest = candidate;
                chosen = k;
            }
        }
        discrete_actions[part] = chosen;
        log_prob += logits[chosen];
    }
    const float* const means = outputs + heads.num_options;
    for (int k = 0; k < heads.num_continuous; ++k) {
        const float std = exponential(log_std[k]), action = means[k] + std * normals[k];
        const float deviation = (action - means[k]) / std;
        continuous_actions[k] = action;
        log_prob += -0.5f * (deviation * deviation) - log_std[k] - HALF_LOG_2_PI;
    }
    return log_prob;
}
