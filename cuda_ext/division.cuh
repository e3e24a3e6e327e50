// Divides as IEEE 754 says, on a device without the branch that a division has for very small and very large numbers:
// several divisions run side by side there.
#pragma once

#ifdef __CUDA_ARCH__
#define DIVIDES_BY_STEPS 1
#endif
#ifndef DIVIDES_BY_STEPS  // a test turns it on
#define DIVIDES_BY_STEPS 0
#endif

// Returns numerator / denominator, rounded. inverse: the float nearest to that of the denominator. For 2 / x one beside it
// suffices, unless x has a mantissa of ones. Each step adds what is left, as a device's own division does. Source:
// Markstein, IBM J. Res. Dev. 34 (1990).
__device__ __forceinline__ float quotient(float numerator, float denominator, float inverse) {
    float sum = numerator * inverse;
    sum = fmaf(inverse, fmaf(-denominator, sum, numerator), sum);
    return fmaf(inverse, fmaf(-denominator, sum, numerator), sum);
}

// Divides integers by the same positive one.
struct Divisor {
    float denominator, inverse;
    __device__ __forceinline__ explicit Divisor(int number)
        : denominator((float)number), inverse(DIVIDES_BY_STEPS ? 1.0f / (float)number : 0.0f) {}
    __device__ __forceinline__ float divide(int number) const {
        const float numerator = (float)number;
        return DIVIDES_BY_STEPS ? quotient(numerator, denominator, inverse) : numerator / denominator;
    }
};

// Returns 2 / x, for x from 1 to 2^100. approximation: of its inverse, by a device's instruction.
__device__ __forceinline__ float twice_the_inverse(float x, float approximation) {
    return quotient(2.0f, x, fmaf(approximation, fmaf(-x, approximation, 1.0f), approximation));
}
