// Drawing actions from logits: categorical choices, several to an action, with log-probability and entropy.
//
// The twin of references/sampling.py, which says more, operation by operation.
#pragma once
#include "exponentials.cuh"
#include "philox.cuh"

struct Choice {
    int option;
    float log_prob, entropy;
};

// A choice of n options by their logits. allowed: a byte an option, 0 for one that is never chosen; null allows all.
__device__ __forceinline__ Choice choose_option(const float* logits, const unsigned char* allowed, int n, unsigned word,
                                                bool greedy) {
    const float least = -__uint_as_float(INFINITE_BITS);
    float most = least;
    bool any = false, spoiled = false;
    for (int k = 0; k < n; ++k) {
        if (allowed != nullptr && allowed[k] == 0) continue;
        const float logit = logits[k];
        any = true;
        spoiled = spoiled || logit != logit;
        if (logit > most) most = logit;
    }
    // How far an option is below the likeliest; what is not allowed is as far as can be, unless nothing is allowed.
    const auto below_most = [&](int k) {
        if (!any) return 0.0f;
        if (allowed != nullptr && allowed[k] == 0) return least;
        const float logit = logits[k] != logits[k] ? least : logits[k];
        return logit == most ? 0.0f : logit - most;
    };
    float total = 0.0f, sum = 0.0f;
    for (int k = 0; k < n; ++k) {
        const float distance = below_most(k), weight = exponential(distance);
        total += weight;
        if (weight > 0.0f) sum += weight * distance;
    }
    // Below total, and where the sum of weights passes it, the last one was above 0: so it is of an option that may be.
    const float target = uniform(word) * total;
    float passed = 0.0f, distance = 0.0f;
    int option = 0;
    for (; option < n; ++option) {
        distance = below_most(option);
        passed += exponential(distance);
        if (greedy ? distance == 0.0f : passed > target) break;
    }
    const float spoil = spoiled ? __uint_as_float(NAN_BITS) : 0.0f, log_total = logarithm(total);
    return {option, spoil + (distance - log_total), spoil + (log_total - sum / total)};
}
