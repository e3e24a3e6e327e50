// The learner's loops with vector instructions, for one instruction set. main.h includes this file once for each, with
// VARIANT, the name of a namespace, TARGET, the attribute of functions, and WIDTH, the floats of a vector, defined.
//
// Every product is a chain of fused multiply-adds in one order, and the elements of a vector are never added to each
// other, so the results are the same for every WIDTH.

namespace VARIANT {

#define ALWAYS TARGET inline __attribute__((always_inline))

typedef float Wide __attribute__((vector_size(4 * WIDTH)));
#if WIDTH > 8
typedef float Narrow __attribute__((vector_size(32)));  // CHUNK floats
#else
typedef Wide Narrow;
#endif

#if WIDTH == 16
ALWAYS Wide fused(Wide a, Wide b, Wide c) { return (Wide)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
#endif
#if WIDTH >= 8
ALWAYS Narrow fused(Narrow a, Narrow b, Narrow c) { return (Narrow)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
#else
ALWAYS Wide fused(Wide a, Wide b, Wide c) {
    Wide result;
    for (int column = 0; column < WIDTH; ++column) result[column] = __builtin_fmaf(a[column], b[column], c[column]);
    return result;
}
#endif

// Returns a vector of equal numbers. Compilers drop the subtraction, as no number changes if 0 is subtracted.
template <class V> ALWAYS V filled(float number) { return number - V{}; }

template <class V> ALWAYS V load(const float* source) {
    V result;
    memcpy(&result, source, sizeof result);
    return result;
}

template <class V> ALWAYS void store(float* target, V value) { memcpy(target, &value, sizeof value); }

// ---------------------------------------------------------------------------------------------------- products

// Computes a block of M rows and N vectors, in registers.
template <class V, int M, int N> TARGET __attribute__((noinline)) void block(const Product& product, long m, long n) {
    constexpr int width = sizeof(V) / sizeof(float);
    const float* const a = product.a + m * product.a_m;
    const float* b = product.b + n;
    const long a_m = product.a_m, a_k = product.a_k, b_k = product.b_k;
    V sums[M][N];
#pragma GCC unroll 8
    for (int i = 0; i < M; ++i) {
#pragma GCC unroll 4
        for (int j = 0; j < N; ++j) {
            sums[i][j] = product.start == nullptr
                             ? V{}
                             : load<V>(product.start + (m + i) * product.start_m + n + j * width);
        }
    }
    const int num_k = product.num_k;
    for (int k = 0; k < num_k; ++k) {
        const float* const factors = a + k * a_k;
        V row[N];
#pragma GCC unroll 4
        for (int j = 0; j < N; ++j) row[j] = load<V>(b + j * width);
#pragma GCC unroll 8
        for (int i = 0; i < M; ++i) {
            const V factor = filled<V>(factors[i * a_m]);
#pragma GCC unroll 4
            for (int j = 0; j < N; ++j) sums[i][j] = fused(factor, row[j], sums[i][j]);
        }
        b += b_k;
    }
    float* const out = product.out + m * product.out_m + n;
#pragma GCC unroll 8
    for (int i = 0; i < M; ++i) {
#pragma GCC unroll 4
        for (int j = 0; j < N; ++j) store<V>(out + i * product.out_m + j * width, sums[i][j]);
    }
}

template <class V, int N> TARGET inline void columns(const Product& product, int num_m, long n) {
    int m = 0;
    for (; m + 6 <= num_m; m += 6) block<V, 6, N>(product, m, n);
    switch (num_m - m) {
        case 5: block<V, 5, N>(product, m, n); break;
        case 4: block<V, 4, N>(product, m, n); break;
        case 3: block<V, 3, N>(product, m, n); break;
        case 2: block<V, 2, N>(product, m, n); break;
        case 1: block<V, 1, N>(product, m, n); break;
    }
}

// num_n: a multiple of CHUNK.
TARGET inline void multiply(const Product& product, int num_m, int num_n, const Group&) {
    int n = 0;
    for (; n + 2 * WIDTH <= num_n; n += 2 * WIDTH) columns<Wide, 2>(product, num_m, n);
    for (; n + WIDTH <= num_n; n += WIDTH) columns<Wide, 1>(product, num_m, n);
    for (; n < num_n; n += CHUNK) columns<Narrow, 1>(product, num_m, n);
}

// Adds num_rows rows of width floats, in order, to the sums.
TARGET inline void add_rows(float* sums, const float* rows, int num_rows, int width, const Group& group) {
    const float one = 1.0f;
    multiply({sums, width, sums, width, &one, 0, 0, rows, width, num_rows}, 1, width, group);
}

// ------------------------------------------------------------------------------------------------- activations

#include "learner/tangent.cuh"

// count: a multiple of CHUNK.
TARGET inline void activate(float* units, int count, int activation, const Group&) {
    for (int k = 0; k < count; k += CHUNK) {
        for (int part = 0; part < CHUNK; part += sizeof(Narrow) / sizeof(float)) {
            const Narrow x = load<Narrow>(units + k + part);
            store<Narrow>(units + k + part, activation == TANH ? tangent<Narrow>(x) : x < 0.0f ? Narrow{} : x);
        }
    }
}

#include "learner/passes.cuh"

// ------------------------------------------------------------------------------------------------------- weights

// Adds the groups' gradients in order, and returns the sum of the squares of the result.
TARGET double add_groups(const Minibatch& minibatch, int num_weights, float* gradients) {
    float squares[ALIGNMENT] = {};
    for (int k = 0; k < num_weights; k += ALIGNMENT) {
        float sums[ALIGNMENT];
        for (int column = 0; column < ALIGNMENT; ++column) sums[column] = minibatch.gradients[k + column];
        for (int group = 1; group < minibatch.num_groups; ++group) {
            const float* const source = minibatch.gradients + (size_t)group * num_weights + k;
            for (int column = 0; column < ALIGNMENT; ++column) sums[column] += source[column];
        }
        for (int column = 0; column < ALIGNMENT; ++column) {
            gradients[k + column] = sums[column];
            squares[column] += sums[column] * sums[column];
        }
    }
    double total = 0.0;
    for (int column = 0; column < ALIGNMENT; ++column) total += squares[column];
    return total;
}

TARGET void step(const ScaledStep& next, int num_weights, const float* gradients, float* weights, float* means,
                 float* squares) {
    const ScaledStep constants = next;
    SIDE_BY_SIDE
    for (int k = 0; k < num_weights; ++k) {
        adam(constants.adam, gradients[k] * constants.scale, weights[k], means[k], squares[k]);
    }
}

#undef ALWAYS
}  // namespace VARIANT
