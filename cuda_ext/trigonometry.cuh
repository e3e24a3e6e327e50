// Computes sine and cosine in float32, with IEEE additions and multiplications only, because no two libraries agree bit
// for bit.
//
// It equals references/trigonometry.py, which explains more, operation by operation. Compile it without fused
// multiply-adds.
#pragma once

constexpr float HALF_PI = 1.57079637050628662109375f, TWO_PI = 6.283185482025146484375f;

struct SineCosine {
    float sine, cosine;
};

// Returns sine and cosine of an angle from -8192 to 8192. They are from -1 to 1, and within 1e-7 of the exact values.
__device__ __forceinline__ SineCosine sine_cosine(float angle) {
    const float rounder = 12582912.0f;  // adding it to a number rounds that to an integer
    const float number = (angle * 0.636619746685028076171875f + rounder) - rounder;  // of quarter turns
    const float rest = ((angle - number * 1.5703125f) - number * 4.837512969970703e-4f) - number * 7.549790126404332e-8f;
    const float square = rest * rest;
    const float sine = rest + rest * square * (-0.16666650772094727f + square * (0.008331975899636745f +
                                                                                square * -0.00019495293963700533f));
    const float cosine = (1.0f - square * 0.5f) + square * square * (0.04166664555668831f + square *
                                                  (-0.0013887364184483886f + square * 2.443809171381872e-5f));
    const int quarter = (int)number;
    const float s = quarter & 1 ? cosine : sine, c = quarter & 1 ? sine : cosine;
    return {quarter & 2 ? -s : s, (quarter + 1) & 2 ? -c : c};
}

// Wraps an angle from -TWO_PI to 2 * TWO_PI into the range from 0 to below TWO_PI.
__device__ __forceinline__ float wrapped(float angle) {
    if (angle >= TWO_PI) angle -= TWO_PI;
    if (angle < 0.0f) angle += TWO_PI;
    return angle >= TWO_PI ? 0.0f : angle;  // the sum may have been rounded up
}

// Subtracts whole turns from an angle from -8192 to 8192, so that at most half a turn is left, up to rounding.
__device__ __forceinline__ float without_turns(float angle) {
    const float rounder = 12582912.0f;  // adding it to a number rounds that to an integer
    return angle - ((angle * 0.15915494309f + rounder) - rounder) * TWO_PI;
}
