// Samples actions from the outputs of a policy, with log-probability and entropy: choices among options from their
// logits, and numbers of normal distributions from their means.
//
// It equals references/sampling.py, which explains more, operation by operation.
#pragma once
#include "exponentials.cuh"
#include "philox.cuh"
#include "trigonometry.cuh"

struct Choice {
    int option;
    float log_prob, entropy;
};

// Chooses one of n options by their logits. allowed: a byte per option, 0 for a forbidden one; null allows all. KNOWN: n,
// where the compiler is to know it, else 0.
template <int KNOWN = 0>
__device__ __forceinline__ Choice choose_option(const float* logits, const unsigned char* allowed, int n, unsigned word,
                                                bool greedy) {
    const int num_options = KNOWN ? KNOWN : n;
    const float least = -__uint_as_float(INFINITE_BITS);
    float most = least;
    bool any = false, spoiled = false;
#pragma unroll (KNOWN ? KNOWN : 1)
    for (int k = 0; k < num_options; ++k) {
        if (allowed != nullptr && allowed[k] == 0) continue;
        const float logit = logits[k];
        any = true;
        spoiled = spoiled || logit != logit;
        if (logit > most) most = logit;
    }
    // Returns the logit of an option minus that of the likeliest: -inf for a forbidden option, 0 if all are forbidden.
    const auto below_most = [&](int k) {
        if (!any) return 0.0f;
        if (allowed != nullptr && allowed[k] == 0) return least;
        const float logit = logits[k] != logits[k] ? least : logits[k];
        return logit == most ? 0.0f : logit - most;
    };
    float total = 0.0f, sum = 0.0f, weights[KNOWN ? KNOWN : 1];
#pragma unroll (KNOWN ? KNOWN : 1)
    for (int k = 0; k < num_options; ++k) {
        const float distance = below_most(k), weight = exponential(distance);
        if (KNOWN) weights[k] = weight;
        total += weight;
        if (weight > 0.0f) sum += weight * distance;
    }
    // target is below total, and the option at which the sum exceeds it has a weight above 0, so it is allowed.
    const float target = uniform(word) * total;
    float passed = 0.0f, distance = 0.0f;
    int option = 0;
    if (KNOWN) {
        bool chosen = false;
#pragma unroll
        for (int k = 0; k < KNOWN; ++k) {
            passed += weights[k];
            const float here = below_most(k);
            const bool now = !chosen && (greedy ? here == 0.0f : passed > target);
            option = now ? k : option;
            distance = now ? here : distance;
            chosen |= now;
        }
    } else {
        for (; option < num_options; ++option) {
            distance = below_most(option);
            passed += exponential(distance);
            if (greedy ? distance == 0.0f : passed > target) break;
        }
    }
    const float spoil = spoiled ? __uint_as_float(NAN_BITS) : 0.0f, log_total = logarithm(total);
    return {option, spoil + (distance - log_total), spoil + (log_total - sum / total)};
}

struct Number {
    float value, log_prob, entropy;
};

// Draws a number of a normal distribution. Two words give two independent numbers; which: 0 or 1.
__device__ __forceinline__ Number draw_number(float mean, float log_std, unsigned first, unsigned second, int which,
                                              bool greedy) {
    const SineCosine angle = sine_cosine(uniform(second) * TWO_PI);
    const float radius = sqrtf(-2.0f * logarithm(1.0f - uniform(first)));
    const float normal = greedy ? 0.0f : radius * (which == 0 ? angle.cosine : angle.sine);
    return {mean + exponential(log_std) * normal, -0.5f * (normal * normal) - log_std - HALF_LOG_2_PI,
            log_std + HALF_LOG_2_PI_E};
}
