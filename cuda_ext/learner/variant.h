// The learner's loops over rows, for one instruction set. main.h includes this file once for each, with VARIANT, the
// name of a namespace, TARGET, the attribute of functions, and WIDTH, the floats of a vector, defined.
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

// The operands of out[m][n] = start[m][n] + the sum over k of a[m][k] * b[k][n]. Numbers that end in _m or _k are the
// distances between neighbours. start: null for zeros; start_m may be 0, for a row of biases.
struct Product {
    float* out;
    long out_m;
    const float* start;
    long start_m;
    const float* a;
    long a_m, a_k;
    const float* b;
    long b_k;
    int num_k;
};

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
TARGET inline void multiply(const Product& product, int num_m, int num_n) {
    int n = 0;
    for (; n + 2 * WIDTH <= num_n; n += 2 * WIDTH) columns<Wide, 2>(product, num_m, n);
    for (; n + WIDTH <= num_n; n += WIDTH) columns<Wide, 1>(product, num_m, n);
    for (; n < num_n; n += CHUNK) columns<Narrow, 1>(product, num_m, n);
}

// ------------------------------------------------------------------------------------------------- activations

// Returns tanh(x), a value from -1 to 1, with a relative error below 3.1e-7. Beyond TANGENT_MOST it
// is that of TANGENT_MOST, where the derivative is 4.5e-7.
template <class V> ALWAYS V tangent(V x) {
    const V most = filled<V>(TANGENT_MOST);
    x = x < -most ? -most : x > most ? most : x;
    const V square = x * x;
    V over = filled<V>(TANGENT_OVER[TANGENT_TERMS - 1]), under = filled<V>(TANGENT_UNDER[TANGENT_TERMS - 1]);
#pragma GCC unroll 8
    for (int k = TANGENT_TERMS - 2; k >= 0; --k) {
        over = fused(over, square, filled<V>(TANGENT_OVER[k]));
        under = fused(under, square, filled<V>(TANGENT_UNDER[k]));
    }
    return x * over / under;
}

// count: a multiple of CHUNK.
TARGET inline void activate(float* units, int count, int activation) {
    for (int k = 0; k < count; k += CHUNK) {
        for (int part = 0; part < CHUNK; part += sizeof(Narrow) / sizeof(float)) {
            const Narrow x = load<Narrow>(units + k + part);
            store<Narrow>(units + k + part, activation == TANH ? tangent(x) : x < 0.0f ? Narrow{} : x);
        }
    }
}

// Multiplies derivatives by those of the activation, given its results.
TARGET inline void deactivate(float* slopes, const float* units, int count, int activation) {
    for (int k = 0; k < count; ++k) {
        const float slope = activation == TANH ? 1.0f - units[k] * units[k] : units[k] > 0.0f ? 1.0f : 0.0f;
        slopes[k] = slopes[k] * slope;
    }
}

// ----------------------------------------------------------------------------------------------------- networks

// The memory of a tile: num_rows rows of inputs, of each layer's outputs, and of two layers' derivatives.
struct Tile {
    float* inputs;
    float* units[MOST_LAYERS];
    float* slopes[2];

    TARGET Tile(const Network& network, float* memory) {
        int widest = 0;
        for (int layer = 0; layer < network.num_layers; ++layer) {
            const int width = padded(network.widths[layer]);
            units[layer] = memory;
            memory += TILE * width;
            widest = width > widest ? width : widest;
        }
        slopes[0] = memory;
        slopes[1] = memory + TILE * widest;
        inputs = memory + 2 * TILE * widest;
    }
};

// Computes a tile's units from its inputs. Returns the outputs, padded rows.
TARGET inline float* pass_forward(const Network& network, const float* weights, const Tile& tile, int num_rows) {
    const float* inputs = tile.inputs;
    long inputs_m = network.num_inputs;
    for (int layer = 0; layer < network.num_layers; ++layer) {
        const int width = padded(network.widths[layer]), num_inputs = inputs_of(network, layer);
        float* const units = tile.units[layer];
        multiply({units, width, weights, 0, inputs, inputs_m, 1, weights + width, width, num_inputs}, num_rows, width);
        if (layer + 1 < network.num_layers) activate(units, num_rows * width, network.activation);
        weights += layer_size(network, layer);
        inputs = units;
        inputs_m = width;
    }
    return tile.units[network.num_layers - 1];
}

// Adds a tile's products to the gradient. The outputs have been replaced by their derivatives.
// transposed: of all layers but the first, as transpose writes them.
TARGET inline void pass_backward(const Network& network, const float* transposed, const Tile& tile, int num_rows,
                                 float* gradient) {
    const float one = 1.0f;
    size_t weights_end = 0, transposed_end = transposed_size(network);
    for (int layer = 0; layer < network.num_layers; ++layer) weights_end += layer_size(network, layer);
    const float* slopes = tile.units[network.num_layers - 1];
    for (int layer = network.num_layers - 1; layer >= 0; --layer) {
        const int width = padded(network.widths[layer]), num_inputs = inputs_of(network, layer);
        weights_end -= layer_size(network, layer);
        float* const biases = gradient + weights_end;
        float* const rows = biases + width;
        const float* const inputs = layer == 0 ? tile.inputs : tile.units[layer - 1];
        const long inputs_m = layer == 0 ? num_inputs : padded(num_inputs);
        multiply({biases, width, biases, width, &one, 0, 0, slopes, width, num_rows}, 1, width);
        multiply({rows, width, rows, width, inputs, 1, inputs_m, slopes, width, num_rows}, num_inputs, width);
        if (layer == 0) break;
        transposed_end -= (size_t)network.widths[layer] * inputs_m;
        float* const next = tile.slopes[layer % 2];
        multiply({next, inputs_m, nullptr, 0, slopes, width, 1, transposed + transposed_end, inputs_m,
                  network.widths[layer]},
                 num_rows, (int)inputs_m);
        deactivate(next, inputs, num_rows * (int)inputs_m, network.activation);
        slopes = next;
    }
}

// Writes the outputs of rows first to last - 1, without padding.
TARGET void compute_outputs(const Network& network, const float* weights, const float* observations, int first,
                            int last, float* memory, float* outputs) {
    const Tile tile(network, memory);
    const int num_inputs = network.num_inputs, num_outputs = outputs_of(network), width = padded(num_outputs);
    for (int begin = first; begin < last; begin += TILE) {
        const int num_rows = last - begin < TILE ? last - begin : TILE;
        memcpy(tile.inputs, observations + (size_t)begin * num_inputs, sizeof(float) * num_rows * num_inputs);
        const float* const rows = pass_forward(network, weights, tile, num_rows);
        for (int row = 0; row < num_rows; ++row) {
            memcpy(outputs + (size_t)(begin + row) * num_outputs, rows + (size_t)row * width,
                   sizeof(float) * num_outputs);
        }
    }
}

// Writes the gradient of one network on one group of rows. Groups of the actor are numbered first, then the critic's.
TARGET void learn_from_group(const Update& update, const Minibatch& minibatch, int index, float* memory) {
    const bool is_actor = index < minibatch.num_groups;
    const int group = is_actor ? index : index - minibatch.num_groups;
    const Network& network = is_actor ? update.actor : update.critic;
    const float* const weights = update.weights + (is_actor ? 0 : update.critic_weights);
    float* const gradients = minibatch.gradients + (size_t)group * update.num_weights;
    float* const gradient = gradients + (is_actor ? 0 : update.critic_weights);
    const int end = is_actor ? update.critic_weights : update.num_weights - update.critic_weights;
    for (int k = 0; k < end; ++k) gradient[k] = 0.0f;

    const int first = group * minibatch.group_rows;
    const int last = first + minibatch.group_rows < minibatch.num_rows ? first + minibatch.group_rows
                                                                        : minibatch.num_rows;
    const Heads& heads = update.heads;
    const int num_inputs = network.num_inputs, num_outputs = outputs_of(network), width = padded(num_outputs);
    float* const probabilities = memory;
    float* const entropies = probabilities + heads.num_options;
    const Tile tile(network, memory + (heads.num_options + heads.num_discrete + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
    double sums[NUM_TERMS] = {};
    for (int begin = first; begin < last; begin += TILE) {
        const int num_rows = last - begin < TILE ? last - begin : TILE;
        const long long* const indices = minibatch.rows + begin;
        for (int row = 0; row < num_rows; ++row) {
            const float* const source = update.observations + (size_t)indices[row] * num_inputs;
            float* const target = tile.inputs + (size_t)row * num_inputs;
            const bool valid = is_valid(update, indices[row]);  // others may hold NaN, which 0 times does not remove
            for (int k = 0; k < num_inputs; ++k) target[k] = valid ? source[k] : 0.0f;
        }
        float* const outputs = pass_forward(network, weights, tile, num_rows);
        for (int row = 0; row < num_rows; ++row) {
            float* const output = outputs + (size_t)row * width;
            const size_t r = (size_t)indices[row];
            if (!is_valid(update, indices[row])) {
                for (int k = 0; k < num_outputs; ++k) output[k] = 0.0f;
            } else if (is_actor) {
                const ActionRow action = {
                    update.discrete_actions + r * heads.num_discrete,
                    update.continuous_actions + r * heads.num_continuous,
                    update.allowed == nullptr ? nullptr : update.allowed + r * heads.num_options,
                    update.log_probs[r],
                    (update.advantages[r] - minibatch.mean) / minibatch.deviation,
                };
                differentiate_policy(heads, update.objective, action, minibatch.share, output,
                                     update.weights + update.log_std, gradient + update.log_std, probabilities,
                                     entropies, sums);
            } else {
                differentiate_value(update.objective, update.returns[r], minibatch.share, output, sums);
            }
        }
        pass_backward(network, is_actor ? minibatch.actor_transposed : minibatch.critic_transposed, tile, num_rows,
                      gradient);
    }
    double* const terms = minibatch.terms + group * NUM_TERMS;
    for (int k = 0; k < NUM_TERMS; ++k) {
        if ((k == VALUE_LOSS) != is_actor) terms[k] = sums[k];
    }
}

// ------------------------------------------------------------------------------------------------------- weights

// Writes the transposed weights of all layers but the first: a padded row for each output.
TARGET void transpose(const Network& network, const float* weights, float* transposed) {
    weights += layer_size(network, 0);
    for (int layer = 1; layer < network.num_layers; ++layer) {
        const int num_inputs = network.widths[layer - 1], num_outputs = network.widths[layer];
        const int width = padded(num_outputs), row_size = padded(num_inputs);
        const float* const rows = weights + width;
        for (int j = 0; j < num_outputs; ++j) {
            for (int i = 0; i < num_inputs; ++i) transposed[(size_t)j * row_size + i] = rows[(size_t)i * width + j];
            for (int i = num_inputs; i < row_size; ++i) transposed[(size_t)j * row_size + i] = 0.0f;
        }
        transposed += (size_t)num_outputs * row_size;
        weights += layer_size(network, layer);
    }
}

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

TARGET void step(const AdamStep& adam_step, int num_weights, float scale, const float* gradients, float* weights,
                 float* means, float* squares) {
    const AdamStep constants = adam_step;
    SIDE_BY_SIDE
    for (int k = 0; k < num_weights; ++k) {
        adam(constants, gradients[k] * scale, weights[k], means[k], squares[k]);
    }
}

#undef ALWAYS
}  // namespace VARIANT
