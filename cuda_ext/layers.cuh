// Computes small networks: linear layers with tanh or ReLU between them. Each sum adds its inputs in order.
//
// It equals references/layers.py, operation by operation.
#pragma once
#include "exponentials.cuh"

enum { LINEAR, TANH, RELU };
constexpr int CHUNK = 8;  // outputs that are summed at once, in registers; layers are zero-padded to multiples of it

// Returns a pointer to the outputs, which are in one of the two rows of units, of width floats each.
// weights: for each layer the biases, then a row for each input, padded. layers: for each layer the number of outputs
// and the activation that follows it.
__device__ __forceinline__ const float* forward(const float* inputs, int num_inputs, const float* weights,
                                                const int* layers, int num_layers, float* units, int width) {
    for (int layer = 0; layer < num_layers; ++layer) {
        const int num_outputs = layers[2 * layer], activation = layers[2 * layer + 1];
        const int padded = (num_outputs + CHUNK - 1) / CHUNK * CHUNK;
        float* const outputs = units + layer % 2 * width;
#pragma unroll 1
        for (int first = 0; first < padded; first += CHUNK) {
            const float* row = weights + first;
            float sums[CHUNK];
            for (int j = 0; j < CHUNK; ++j) sums[j] = row[j];
#pragma unroll 1
            for (int i = 0; i < num_inputs; ++i) {
                const float input = inputs[i];
                row += padded;
                for (int j = 0; j < CHUNK; ++j) sums[j] += input * row[j];
            }
            for (int j = 0; j < CHUNK; ++j) outputs[first + j] = sums[j];
        }
#pragma unroll 1
        for (int k = 0; k < num_outputs; ++k) {
            const float output = outputs[k];
            if (activation == TANH) outputs[k] = hyperbolic_tangent(output);
            if (activation == RELU) outputs[k] = output < 0.0f ? 0.0f : output;
        }
        weights += (size_t)(num_inputs + 1) * padded;
        inputs = outputs;
        num_inputs = num_outputs;
    }
    return inputs;
}
