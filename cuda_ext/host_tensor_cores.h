// Plays the tensor cores of a warp with one fibre or thread of the host for each lane.
//
// Fragments are laid out as the PTX ISA says in "Matrix Fragments for mma.m16n8k16": a register holds two bfloat16, the
// one of the lower column of A, or of the lower row of B, in its lower half. A product's sums are computed in float64
// and rounded once; how a device rounds them is not specified.
#pragma once

namespace host {
struct Fragments { unsigned a[4], b[2]; };
inline Fragments fragments[MOST_THREADS];  // of each thread's last product

// Returns the one of two bfloat16 at an odd or even index.
inline double half(unsigned word, unsigned index) {
    return __uint_as_float(index % 2 ? word & 0xFFFF0000u : word << 16);
}

// Returns elements of A, 16 x 16, and of B, 16 x 8, from the fragments of a warp.
inline double element_of_a(const Fragments* warp, unsigned row, unsigned column) {
    return half(warp[row % 8 * 4 + column % 8 / 2].a[row / 8 + column / 8 * 2], column);
}
inline double element_of_b(const Fragments* warp, unsigned row, unsigned column) {
    return half(warp[column * 4 + row % 8 / 2].b[row / 8], row);
}

inline void multiply_add(float* sums, const uint4& a, unsigned b0, unsigned b1, CallSite site) {
    const unsigned thread = thread_index().x, warp_lane = thread % 32;
    fragments[thread] = {{a.x, a.y, a.z, a.w}, {b0, b1}};
    warp_barrier(~0u, site);
    const Fragments* const warp = fragments + (thread - warp_lane);
    for (unsigned i = 0; i < 4; ++i) {
        const unsigned row = warp_lane / 4 + i / 2 * 8, column = warp_lane % 4 * 2 + i % 2;  // of the result
        double sum = sums[i];
        for (unsigned k = 0; k < 16; ++k) sum += element_of_a(warp, row, k) * element_of_b(warp, k, column);
        sums[i] = (float)sum;
    }
    warp_barrier(~0u, site);
}

inline unsigned to_bfloat16(float value) {
    if (value != value) return 0x7FFFu;
    const unsigned bits = __float_as_uint(value);
    return (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;
}
}  // namespace host

#define multiply_add(sums, a, b0, b1) host::multiply_add(sums, a, b0, b1, CURRENT_SITE)

inline unsigned bfloat16s(float low, float high) { return host::to_bfloat16(low) | host::to_bfloat16(high) << 16; }
