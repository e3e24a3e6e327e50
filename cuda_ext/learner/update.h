// The arguments of the learner's functions, as fused.py passes them, and the order in which gradients are summed.
#pragma once
#include "group.cuh"
#include "layers.cuh"
#include "learner/actions.cuh"
#include "learner/losses.cuh"

constexpr int MOST_LAYERS = 4;   // three hidden layers and the outputs
constexpr int TILE = 64;         // rows whose activations are kept at once
constexpr int ALIGNMENT = 16;    // floats; the number of all weights is a multiple of it

// tanh(x) is x times a polynomial of x * x, divided by another; beyond TANGENT_MOST it is that of TANGENT_MOST. They
// minimize the greatest relative error, and were fitted for this file.
constexpr int TANGENT_TERMS = 5;
__device__ constexpr float TANGENT_MOST = 8.0f;
__device__ constexpr float TANGENT_OVER[TANGENT_TERMS] = {1.0f, 0.13444513082504272f, 0.0035716157872229815f,
                                               2.1894951714784838e-05f, 1.5230821048817234e-08f};
__device__ constexpr float TANGENT_UNDER[TANGENT_TERMS] = {1.0f, 0.46777841448783875f, 0.02616451121866703f,
                                                0.0003411320794839412f, 8.522610528416408e-07f};

// A network, whose layers but the last are followed by an activation, TANH or RELU of layers.cuh. Its weights are for
// each layer the biases, then a row for each input, padded.
struct Network {
    int num_inputs, num_layers, activation;
    int widths[MOST_LAYERS];  // the outputs of each layer
};

struct Update {
    Network actor, critic;
    Heads heads;
    Objective objective;
    double learning_rate, beta1, beta2, epsilon, max_grad_norm, advantage_floor;
    // The actor's weights come first, then, at multiples of ALIGNMENT, the logarithms of the standard deviations and
    // the critic's weights.
    int log_std, critic_weights, num_weights;
    int variant;      // of the compiled code; -1: the fastest
    int most_groups;  // into which a minibatch's rows are divided
    float *weights, *means, *squares;  // of the weights; Adam's averages of gradients and of their squares
    float* gradients;      // out: those of the last minibatch, before they are clipped
    double* beta_powers;   // beta1**t and beta2**t, where t counts the steps
    const float* observations;
    const long long* discrete_actions;
    const float* continuous_actions;
    const unsigned char *allowed, *masks;  // null: all options, all rows
    const float *log_probs, *advantages, *returns;
    // Minibatch i consists of rows order[bounds[i]] to order[bounds[i + 1] - 1].
    const long long* order;
    const int* bounds;
    int num_minibatches;
    double* terms;  // out: NUM_TERMS means and the gradient's norm for each minibatch
};

// Whether a row is learnt from.
__device__ inline bool is_valid(const Update& update, long long row) {
    return update.masks == nullptr || update.masks[row] != 0;
}

// Steps that an actor plays in environments whose kernel the host runs: for each step, features and logits are computed
// for all rows, and the kernel chooses actions and steps.
struct Play {
    Network actor;
    int variant, num_rows, num_steps, slot_step;
    int first_slot;  // where the launch has this argument, in bytes
    const float* weights;
    const unsigned char* is_scaled;  // for each input whether it is read on a logarithmic scale
    const float* inputs;             // the observations before the first step
    const float* observations;       // those that launches write, num_rows rows; for each step if slot_step is not 0
    float *features, *logits;        // features: num_rows rows to work in
    int (*play)(void* pool, const void* launch);
    void* pool;
    char* launch;
};

// A batch of rows whose actions are drawn: weights are as in Update, and exponentials and normals as for draw_action.
struct Inference {
    Network actor, critic;
    Heads heads;
    int log_std, critic_weights, variant, num_rows;
    const float* weights;
    float* features;
    const unsigned char* is_scaled;  // null: features are read already; else they are numbers, to be read in place
    const unsigned char* allowed;  // null: all options
    const float *exponentials, *normals;
    float *outputs, *values;
    long long* discrete_actions;
    float *continuous_actions, *log_probs;
    float* options;  // num_options floats to work in
};

// A minibatch while it is learnt from. Each group of its rows has a gradient of its own, in which the products of the
// rows are added in order; the groups' gradients are then added in order. So the sums depend on the rows alone.
struct Minibatch {
    const long long* rows;
    int num_rows, num_groups, group_rows;
    float mean, deviation, share;  // of the advantages; 1 divided by the number of valid rows
    const float *actor_transposed, *critic_transposed;
    float* gradients;  // num_weights for each group
    double* terms;     // NUM_TERMS for each group
};

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

// Divides a minibatch's rows into groups of whole tiles of TILE rows.
__device__ inline void divide(Minibatch& minibatch, int most_groups) {
    if (minibatch.num_rows == 0) return;
    const int num_tiles = (minibatch.num_rows + TILE - 1) / TILE;
    const int group_tiles = (num_tiles + most_groups - 1) / most_groups;
    minibatch.group_rows = group_tiles * TILE;
    minibatch.num_groups = (num_tiles + group_tiles - 1) / group_tiles;
}

__device__ inline int padded(int width) { return (width + CHUNK - 1) / CHUNK * CHUNK; }

__device__ inline int inputs_of(const Network& network, int layer) {
    return layer == 0 ? network.num_inputs : network.widths[layer - 1];
}

__device__ inline int outputs_of(const Network& network) { return network.widths[network.num_layers - 1]; }

// The floats that a layer's weights take.
__device__ inline size_t layer_size(const Network& network, int layer) {
    return (size_t)(inputs_of(network, layer) + 1) * padded(network.widths[layer]);
}

// The floats that the transposed weights of all layers but the first take.
__device__ inline size_t transposed_size(const Network& network) {
    size_t size = 0;
    for (int layer = 1; layer < network.num_layers; ++layer) {
        size += (size_t)network.widths[layer] * padded(network.widths[layer - 1]);
    }
    return size;
}

__device__ inline size_t network_size(const Network& network) {
    size_t size = 0;
    for (int layer = 0; layer < network.num_layers; ++layer) size += layer_size(network, layer);
    return size;
}

// The floats that a row of a tile takes: of the activations, of the widest layer, and of all.
struct RowSize {
    int units, widest, all;
};

__device__ inline RowSize row_size(const Network& network) {
    RowSize size = {0, 0, 0};
    for (int layer = 0; layer < network.num_layers; ++layer) {
        const int width = padded(network.widths[layer]);
        size.units += width;
        size.widest = width > size.widest ? width : size.widest;
    }
    size.all = size.units + 2 * size.widest + NUM_TERMS + network.num_inputs;
    return size;
}
