// Computes small networks: linear layers with tanh or ReLU between them. Each sum adds its inputs in order.
//
// It equals references/layers.py, operation by operation.
#pragma once
#include "exponentials.cuh"

enum { LINEAR, TANH, RELU };
constexpr int CHUNK = 8;  // outputs that are summed at once, in registers; layers are zero-padded to multiples of it
__device__ __forceinline__ float activated(float sum, int activation) {
    return activation == TANH ? hyperbolic_tangent(sum) : activation == RELU && sum < 0.0f ? 0.0f : sum;
}

// Computes a layer. weights: the biases, then a row for each input, padded. INPUTS, OUTPUTS, ACTIVATION: the last three
// arguments where the compiler is to know them, as for a device, else 0.
template <int INPUTS, int OUTPUTS, int ACTIVATION>
__device__ __forceinline__ void compute_layer(const float* inputs, float* outputs, const float* weights, int num_inputs,
                                              int num_outputs, int activation) {
    constexpr bool known = OUTPUTS > 0;
    const int num = known ? INPUTS : num_inputs;
    const int padded = ((known ? OUTPUTS : num_outputs) + CHUNK - 1) / CHUNK * CHUNK;
#pragma unroll 1
    for (int first = 0; first < padded; first += CHUNK) {
        const float* row = weights + first;
        float sums[CHUNK];
        for (int j = 0; j < CHUNK; ++j) sums[j] = row[j];
#pragma unroll 16
        for (int i = 0; i < num; ++i) {
            const float input = inputs[i];
            row += padded;
            for (int j = 0; j < CHUNK; ++j) sums[j] += input * row[j];
        }
        for (int j = 0; j < CHUNK; ++j) outputs[first + j] = known ? activated(sums[j], ACTIVATION) : sums[j];
    }
    for (int k = 0; !known && k < num_outputs; ++k) outputs[k] = activated(outputs[k], activation);
}

// Returns a pointer to the outputs, which are in one of the two rows of units, of width floats each.
// weights: for each layer, as above. layers: for each layer the number of outputs and the activation that follows it.
__device__ __forceinline__ const float* forward(const float* inputs, int num_inputs, const float* weights,
                                                const int* layers, int num_layers, float* units, int width) {
    for (int layer = 0; layer < num_layers; ++layer) {
        const int num_outputs = layers[2 * layer], padded = (num_outputs + CHUNK - 1) / CHUNK * CHUNK;
        float* const outputs = units + layer % 2 * width;
        compute_layer<0, 0, 0>(inputs, outputs, weights, num_inputs, num_outputs, layers[2 * layer + 1]);
        weights += (size_t)(num_inputs + 1) * padded;
        inputs = outputs;
        num_inputs = num_outputs;
    }
    return inputs;
}

// The same for a network that the compiler knows: INPUTS, and for each layer OUTPUTS and ACTIVATION.
template <int INPUTS, int OUTPUTS, int ACTIVATION, int... LATER>
__device__ __forceinline__ const float* forward_known(const float* inputs, const float* weights, float* outputs,
                                                      float* others) {
    compute_layer<INPUTS, OUTPUTS, ACTIVATION>(inputs, outputs, weights, INPUTS, OUTPUTS, ACTIVATION);
    constexpr int padded = (OUTPUTS + CHUNK - 1) / CHUNK * CHUNK;
    if constexpr (sizeof...(LATER) == 0) {
        return outputs;
    } else {
        return forward_known<OUTPUTS, LATER...>(outputs, weights + (INPUTS + 1) * padded, others, outputs);
    }
}
