// The tanh of the learner's units. variant.h and device.cuh include this file in their namespaces, after they have
// defined fused, a multiply-add, and filled, for their vectors or for float.

// Returns tanh(x), a value from -1 to 1, with a relative error below 3.1e-7. Beyond TANGENT_MOST it is that of
// TANGENT_MOST, where the derivative is 4.5e-7.
template <class V> ALWAYS V tangent(V x) {
    const V most = filled<V>(TANGENT_MOST);
    x = x < -most ? -most : x > most ? most : x;
    const V square = x * x;
    V over = filled<V>(TANGENT_OVER[TANGENT_TERMS - 1]), under = filled<V>(TANGENT_UNDER[TANGENT_TERMS - 1]);
#ifdef __CUDACC__
#pragma unroll
#else
#pragma GCC unroll 8
#endif
    for (int k = TANGENT_TERMS - 2; k >= 0; --k) {
        over = fused(over, square, filled<V>(TANGENT_OVER[k]));
        under = fused(under, square, filled<V>(TANGENT_UNDER[k]));
    }
    return x * over / under;
}
