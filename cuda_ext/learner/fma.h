// fmaf for processors of x86-64 without the instruction, where the C library takes ten times as long.
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && !defined(__FMA__)
// Returns a * b + c, rounded once. The product of two float32 is exact in float64. The sum is rounded to odd: what
// rounding has lost shows in the last bit, so that rounding to float32 is right.
// Source: Boldo and Melquiond, Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd.
inline float fused_once(float a, float b, float c) {
    const double product = (double)a * b, sum = product + c, part = sum - product;
    const double rest = (product - (sum - part)) + ((double)c - part);
    int64_t bits;
    memcpy(&bits, &sum, sizeof bits);
    const int64_t away = (rest > 0) == (sum > 0) ? 1 : -1;  // from 0, or towards it
    bits += (rest < 0 || rest > 0) && !(bits & 1) ? away : 0;
    double odd;
    memcpy(&odd, &bits, sizeof odd);
    return (float)odd;
}
#else
inline float fused_once(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
#endif
