// Computes exp, log and tanh in float32, with IEEE operations only, because no two libraries agree bit for bit.
//
// It equals references/exponentials.py, which explains more, operation by operation. Compile it without fused
// multiply-adds.
#pragma once
#include "division.cuh"

// log(2 pi) / 2 and log(2 pi e) / 2, of the density and the entropy of a normal distribution.
constexpr float HALF_LOG_2_PI = 0.91893853320467274178f, HALF_LOG_2_PI_E = 1.41893853320467274178f;
constexpr unsigned INFINITE_BITS = 0x7F800000u, NAN_BITS = 0x7FC00000u;

// Returns exp(x) for x from -87.33654 to 88.72283.
__device__ __forceinline__ float exponential_inside(float x) {
    const float rounder = 12582912.0f;  // adding it to a number rounds that to an integer
    const float number = (x * 1.4426950216293335f + rounder) - rounder;  // of doublings
    const float rest = (x - number * 0.693359375f) - number * -0.00021219444170128554f;
    const float power = 1.0f + (rest + rest * rest * (0.4999999403953552f + rest * (0.1666652113199234f + rest *
                        (0.04166826233267784f + rest * (0.00836867094039917f + rest * 0.001382104237563908f)))));
    const int doublings = (int)number, half = doublings >> 1;  // in two factors: 2 to the 128 is no float32
    return power * __uint_as_float((unsigned)(half + 127) << 23) *
           __uint_as_float((unsigned)(doublings - half + 127) << 23);
}

// Returns exp(x): infinite for x from 88.72284, 0 for x below -87.33654, where float32 has no normal numbers. It has no
// branches, so that a device computes several side by side.
__device__ __forceinline__ float exponential(float x) {
    const bool inside = x >= -87.33654022216797f && x <= 88.72283172607422f;
    const float power = exponential_inside(inside ? x : 0.0f);
    return inside ? power : x != x ? x : x < 0.0f ? 0.0f : __uint_as_float(INFINITE_BITS);
}

// Returns the natural logarithm of x: minus infinity for 0, NaN for negative numbers.
__device__ __forceinline__ float logarithm(float x) {
    const float infinite = __uint_as_float(INFINITE_BITS);
    if (x != x || x == infinite) return x;
    if (x <= 0.0f) return x == 0.0f ? -infinite : __uint_as_float(NAN_BITS);
    const bool subnormal = x < 1.1754943508222875e-38f;
    const unsigned bits = __float_as_uint(subnormal ? x * 8388608.0f : x);
    const int doublings = (int)(bits - 0x3F3504F3u) >> 23;  // so that the rest is from sqrt(1/2) to sqrt(2)
    const float f = __uint_as_float(bits - (unsigned)doublings * 8388608u) - 1.0f;
    const float number = (float)(subnormal ? doublings - 23 : doublings), square = f * f;
    const float tail = f * square * (0.3333333134651184f + f * (-0.2500081956386566f + f * (0.2000124305486679f + f *
                       (-0.1662341058254242f + f * (0.14201539754867554f + f * (-0.13159550726413727f + f *
                       (0.12762485444545746f + f * -0.07636940479278564f)))))));
    return (f + ((tail + number * -0.00021219444170128554f) - 0.5f * square)) + number * 0.693359375f;
}

// Returns 2 / x, for x from 1 to 2^100.
__device__ __forceinline__ float twice_the_inverse(float x) {
#ifdef __CUDA_ARCH__
    float approximation;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(approximation) : "f"(x));
    return twice_the_inverse(x, approximation);
#else
    return 2.0f / x;
#endif
}

__device__ __forceinline__ float hyperbolic_tangent(float x) {
    const float size = x < 0.0f ? -x : x, square = x * x;
    const float near = x + x * square * (-0.3333328068256378f + square * (0.1333140879869461f + square *
               (-0.05373691767454147f + square * (0.02062983624637127f + square * -0.005694468040019274f))));
#ifndef __CUDA_ARCH__
    if (size < 0.625f) return near;  // a device computes both, side by side for several numbers
#endif
    const float clipped = size < 20.0f ? size : 20.0f;  // beyond 9.1 all is 1, rounded
    const float tangent = 1.0f - twice_the_inverse(exponential_inside(clipped + clipped) + 1.0f);
    return size < 0.625f ? near : x != x ? x : x < 0.0f ? -tangent : tangent;
}
