// Computes the losses of PPO and A2C row by row, with their derivatives, generalized advantage estimates, and Adam's
// step for one weight. All of it is scalar code for the host and for devices.
//
// tests/cuda_ext/test_learner.py compares it with torch's autograd. Compile it without fused multiply-adds.
#pragma once
#include "exponentials.cuh"

enum { PPO, A2C };
enum { POLICY_LOSS, VALUE_LOSS, ENTROPY, APPROX_KL, CLIPFRAC, NUM_TERMS };

constexpr float FORBIDDEN_LOGIT = -3.4028234663852886e38f;  // the least float32, as in Decisions.distribution

// The parts of an action: discrete ones, with nvec[k] options each, and continuous ones. A network's outputs are the
// logits of all options, then the means of the continuous parts.
struct Heads {
    const int* nvec;
    int num_discrete, num_options, num_continuous;
};

struct Objective {
    int kind;  // PPO or A2C
    float clip, entropy_coefficient, value_coefficient;
};

// One row's action. allowed: a byte per option, 0 for a forbidden one; null allows all.
struct ActionRow {
    const long long* discrete_actions;
    const float* continuous_actions;
    const unsigned char* allowed;
    float log_prob;   // of the policy that played
    float advantage;  // normalized
};

// Replaces the logits of one discrete part by log-probabilities, and writes probabilities times their sum, which is
// returned, to weights. allowed: a byte per option, 0 for a forbidden one; null allows all.
__device__ __forceinline__ float log_softmax(float* logits, const unsigned char* allowed, int n, float* weights) {
    float most = FORBIDDEN_LOGIT, total = 0.0f;
    for (int k = 0; k < n; ++k) {
        if (allowed != nullptr && allowed[k] == 0) logits[k] = FORBIDDEN_LOGIT;
        most = logits[k] > most ? logits[k] : most;
    }
    for (int k = 0; k < n; ++k) {
        weights[k] = exponential(logits[k] - most);
        total += weights[k];
    }
    const float log_total = logarithm(total);
    for (int k = 0; k < n; ++k) logits[k] = (logits[k] - most) - log_total;
    return total;
}

// Replaces a row's outputs by the derivative of share times the policy's loss, and adds the derivative by the
// logarithms of the standard deviations to log_std_slopes. Writes the row's terms, times share.
// probabilities: num_options floats to work in; entropies: num_discrete floats.
__device__ __forceinline__ void differentiate_policy(const Heads& heads, const Objective& objective,
                                                     const ActionRow& row, float share, float* outputs,
                                                     const float* log_std, float* log_std_slopes, float* probabilities,
                                                     float* entropies, float* terms) {
    float log_prob = 0.0f, entropy = 0.0f;
    for (int part = 0, first = 0; part < heads.num_discrete; first += heads.nvec[part++]) {
        const int end = first + heads.nvec[part];
        const unsigned char* const allowed = row.allowed == nullptr ? nullptr : row.allowed + first;
        const float total = log_softmax(outputs + first, allowed, heads.nvec[part], probabilities + first);
        float part_entropy = 0.0f;
        for (int k = first; k < end; ++k) {
            probabilities[k] = probabilities[k] / total;
            if (probabilities[k] > 0.0f) part_entropy -= probabilities[k] * outputs[k];
        }
        log_prob += outputs[first + (int)row.discrete_actions[part]];
        entropies[part] = part_entropy;
        entropy += part_entropy;
    }
    float* const means = outputs + heads.num_options;
    for (int k = 0; k < heads.num_continuous; ++k) {
        const float deviation = (row.continuous_actions[k] - means[k]) / exponential(log_std[k]);
        log_prob += -0.5f * (deviation * deviation) - log_std[k] - HALF_LOG_2_PI;
        entropy += log_std[k] + HALF_LOG_2_PI_E;
    }

    float goal = log_prob * row.advantage, slope = row.advantage;  // slope: the derivative of goal by log_prob
    if (objective.kind == PPO) {
        const float log_ratio = log_prob - row.log_prob, ratio = exponential(log_ratio);
        const float least = 1.0f - objective.clip, most = 1.0f + objective.clip;
        const float bounded = ratio < least ? least : ratio > most ? most : ratio;
        const float free = ratio * row.advantage, clipped = bounded * row.advantage;
        goal = free < clipped ? free : clipped;
        slope = free <= clipped ? free : 0.0f;
        terms[APPROX_KL] = share * (ratio - 1.0f - log_ratio);
        terms[CLIPFRAC] = ratio != bounded ? share : 0.0f;
    }
    terms[POLICY_LOSS] = -share * goal;
    terms[ENTROPY] = share * entropy;

    for (int part = 0, first = 0; part < heads.num_discrete; first += heads.nvec[part++]) {
        const int end = first + heads.nvec[part], chosen = first + (int)row.discrete_actions[part];
        for (int k = first; k < end; ++k) {
            const float by_log_prob = (k == chosen ? 1.0f : 0.0f) - probabilities[k];
            const float by_entropy =
                probabilities[k] > 0.0f ? -probabilities[k] * (outputs[k] + entropies[part]) : 0.0f;
            const bool allowed = row.allowed == nullptr || row.allowed[k] != 0;
            outputs[k] = allowed ? -share * (slope * by_log_prob + objective.entropy_coefficient * by_entropy) : 0.0f;
        }
    }
    for (int k = 0; k < heads.num_continuous; ++k) {
        const float std = exponential(log_std[k]), deviation = (row.continuous_actions[k] - means[k]) / std;
        means[k] = -share * (slope * (deviation / std));
        log_std_slopes[k] += -share * (slope * (deviation * deviation - 1.0f) + objective.entropy_coefficient);
    }
}

// Replaces a row's value by the derivative of share times the value's loss. Writes the loss, times share.
__device__ __forceinline__ void differentiate_value(const Objective& objective, float target, float share, float* value,
                                                    float* terms) {
    const float error = *value - target;
    terms[VALUE_LOSS] = share * (0.5f * (error * error));
    *value = share * (objective.value_coefficient * error);
}

// Returns a number on a signed logarithmic scale, as pufferlib.models.Features reads numbers without small bounds.
__device__ __forceinline__ float scaled(float number) {
    const float size = logarithm(1.0f + (number < 0.0f ? -number : number));
    return number < 0.0f ? -size : size;
}

// Returns the advantage of an action from that of the next one. values: of this and of the next observation.
// Source: Schulman et al., arXiv:1506.02438, eq. 16.
__device__ __forceinline__ float advantage_of(float reward, float value, float next_value, bool terminated,
                                              bool truncated, bool valid, float gamma, float gae_lambda, float next) {
    if (!valid) return 0.0f;
    const float delta = (reward - value) + (terminated ? 0.0f : gamma * next_value);
    return terminated || truncated ? delta : delta + gamma * gae_lambda * next;
}

// Adam's settings for one step. rate: the learning rate divided by 1 - beta1**t. root: the square root of 1 - beta2**t.
struct AdamStep {
    float beta1, beta2, epsilon, rate, root;
};

// Source: Kingma and Ba, arXiv:1412.6980, algorithm 1.
__device__ __forceinline__ void adam(const AdamStep& step, float gradient, float& weight, float& mean, float& square) {
    mean = mean + (gradient - mean) * (1.0f - step.beta1);
    square = square * step.beta2 + gradient * gradient * (1.0f - step.beta2);
    weight = weight - step.rate * mean / (sqrtf(square) / step.root + step.epsilon);
}
