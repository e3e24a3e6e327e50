// The passes through networks, for hosts and devices. variant.h and device.cuh include this file in their namespaces,
// with TARGET, the attribute of functions, defined, and these functions, whose loops the group's threads share:
//
//     multiply(product, num_m, num_n, group), add_rows(sums, rows, num_rows, width, group),
//     activate(units, count, activation, group)
//
// On the host a group is one thread. Each element is written by one thread, which adds the products of rows in order, so
// neither the number of threads nor of rows in a tile changes a result.

// The memory of a tile: most_rows rows of each layer's outputs, of two layers' derivatives, of terms and of inputs.
struct Tile {
    float *units, *slopes, *terms, *inputs;
    int most_rows, widest;

    ALWAYS Tile(const Network& network, float* memory, int most_rows) : most_rows(most_rows) {
        const RowSize size = row_size(network);
        widest = size.widest;
        units = memory;
        slopes = units + most_rows * size.units;
        terms = slopes + 2 * most_rows * widest;
        inputs = terms + most_rows * NUM_TERMS;
    }
};

// Computes a tile's units from num_rows rows of inputs. Returns the outputs, padded rows.
TARGET float* pass_forward(const Network& network, const float* weights, const float* inputs, const Tile& tile,
                                  int num_rows, const Group& group) {
    float *units = tile.units, *outputs = units;
    long inputs_m = network.num_inputs;
    for (int layer = 0; layer < network.num_layers; ++layer) {
        const int width = padded(network.widths[layer]), num_inputs = inputs_of(network, layer);
        multiply({units, width, weights, 0, inputs, inputs_m, 1, weights + width, width, num_inputs}, num_rows, width,
                 group);
        group.sync();
        if (layer + 1 < network.num_layers) {
            activate(units, num_rows * width, network.activation, group);
            group.sync();
        }
        weights += layer_size(network, layer);
        inputs = outputs = units;
        inputs_m = width;
        units += tile.most_rows * width;
    }
    return outputs;
}

// Multiplies derivatives by those of the activation, given its results.
TARGET void deactivate(float* slopes, const float* units, int count, int activation, const Group& group) {
    for (int k = group.rank; k < count; k += group.size) {
        const float slope = activation == TANH ? 1.0f - units[k] * units[k] : units[k] > 0.0f ? 1.0f : 0.0f;
        slopes[k] = slopes[k] * slope;
    }
}

// Adds a tile's products to the gradient. The outputs have been replaced by their derivatives.
// transposed: of all layers but the first, as transpose writes them.
TARGET void pass_backward(const Network& network, const float* transposed, const Tile& tile, float* outputs,
                                 int num_rows, float* gradient, const Group& group) {
    gradient += network_size(network);
    transposed += transposed_size(network);
    const float *units = outputs, *slopes = outputs;
    for (int layer = network.num_layers - 1; layer >= 0; --layer) {
        const int width = padded(network.widths[layer]), num_inputs = inputs_of(network, layer);
        const int inputs_m = layer == 0 ? num_inputs : padded(num_inputs);
        gradient -= layer_size(network, layer);
        float* const rows = gradient + width;
        units = layer == 0 ? tile.inputs : units - tile.most_rows * inputs_m;
        add_rows(gradient, slopes, num_rows, width, group);
        multiply({rows, width, rows, width, units, 1, inputs_m, slopes, width, num_rows}, num_inputs, width, group);
        if (layer == 0) break;
        transposed -= (size_t)network.widths[layer] * inputs_m;
        float* const next = tile.slopes + layer % 2 * tile.most_rows * tile.widest;
        multiply({next, inputs_m, nullptr, 0, slopes, width, 1, transposed, inputs_m, network.widths[layer]}, num_rows,
                 inputs_m, group);
        group.sync();
        deactivate(next, units, num_rows * inputs_m, network.activation, group);
        group.sync();
        slopes = next;
    }
}

// Writes the outputs of rows first to last - 1, without padding. memory: of a tile of tile_rows rows.
TARGET void compute_outputs(const Network& network, const float* weights, const float* observations, int first,
                            int last, float* memory, int tile_rows, float* outputs, const Group& group) {
    const Tile tile(network, memory, tile_rows);
    const int num_inputs = network.num_inputs, num_outputs = outputs_of(network), width = padded(num_outputs);
    for (int begin = first; begin < last; begin += tile_rows) {
        const int num_rows = last - begin < tile_rows ? last - begin : tile_rows;
        const float* const inputs = observations + (size_t)begin * num_inputs;
        const float* const rows = pass_forward(network, weights, inputs, tile, num_rows, group);
        for (int row = group.rank; row < num_rows; row += group.size) {
            memcpy(outputs + (size_t)(begin + row) * num_outputs, rows + (size_t)row * width,
                   sizeof(float) * num_outputs);
        }
        group.sync();
    }
}

// Replaces a row's outputs by the derivatives of the policy's loss, and writes its terms. index: of the row.
// probabilities: num_options floats to work in. slopes: the num_continuous derivatives by the logarithms of the standard
// deviations, which are added to, then num_discrete floats to work in.
TARGET void differentiate_action(const Update& update, const Minibatch& minibatch, size_t index, float* outputs,
                                        float* terms, float* probabilities, float* slopes) {
    const Heads& heads = update.heads;
    const ActionRow action = {
        update.discrete_actions + index * heads.num_discrete,
        update.continuous_actions + index * heads.num_continuous,
        update.allowed == nullptr ? nullptr : update.allowed + index * heads.num_options,
        update.log_probs[index],
        (update.advantages[index] - minibatch.mean) / minibatch.deviation,
    };
    differentiate_policy(heads, update.objective, action, minibatch.share, outputs, update.weights + update.log_std,
                         slopes, probabilities, slopes + heads.num_continuous, terms);
}

// Writes the gradient of one network on one group of rows. Groups of the actor are numbered first, then the critic's.
// memory: of a tile of tile_rows rows.
TARGET void learn_from_group(const Update& update, const Minibatch& minibatch, int index, float* memory, int tile_rows,
                             const Group& group) {
    const bool is_actor = index < minibatch.num_groups;
    const int number = is_actor ? index : index - minibatch.num_groups;
    const Network& network = is_actor ? update.actor : update.critic;
    const float* const weights = update.weights + (is_actor ? 0 : update.critic_weights);
    float* const gradients = minibatch.gradients + (size_t)number * update.num_weights;
    float* const gradient = gradients + (is_actor ? 0 : update.critic_weights);
    double* const sums = minibatch.terms + number * NUM_TERMS;
    const int end = is_actor ? update.critic_weights : update.num_weights - update.critic_weights;
    for (int k = group.rank; k < end; k += group.size) gradient[k] = 0.0f;
    for (int k = group.rank; k < NUM_TERMS; k += group.size) {
        if ((k == VALUE_LOSS) != is_actor) sums[k] = 0.0;
    }

    const int first = number * minibatch.group_rows;
    const int last = first + minibatch.group_rows < minibatch.num_rows ? first + minibatch.group_rows
                                                                        : minibatch.num_rows;
    const Heads& heads = update.heads;
    const int num_inputs = network.num_inputs, num_outputs = outputs_of(network), width = padded(num_outputs);
    const Tile tile(network, memory, tile_rows);
    float* const row_slopes = tile.slopes + tile.most_rows * tile.widest;
    for (int begin = first; begin < last; begin += tile_rows) {
        const int num_rows = last - begin < tile_rows ? last - begin : tile_rows;
        const long long* const indices = minibatch.rows + begin;
        group.sync();  // the last tile's gradient is complete, and its memory is free
        for (int row = group.rank; row < num_rows; row += group.size) {
            const float* const source = update.observations + (size_t)indices[row] * num_inputs;
            float* const target = tile.inputs + (size_t)row * num_inputs;
            const bool valid = is_valid(update, indices[row]);  // others may hold NaN, which 0 times does not remove
            for (int k = 0; k < num_inputs; ++k) target[k] = valid ? source[k] : 0.0f;
        }
        group.sync();
        float* const outputs = pass_forward(network, weights, tile.inputs, tile, num_rows, group);
        for (int row = group.rank; row < num_rows; row += group.size) {
            float* const output = outputs + (size_t)row * width;
            float* const terms = tile.terms + row * NUM_TERMS;
            float* const slopes = row_slopes + row * tile.widest;
            for (int k = 0; k < heads.num_continuous; ++k) slopes[k] = 0.0f;
            for (int k = 0; k < NUM_TERMS; ++k) terms[k] = 0.0f;
            if (!is_valid(update, indices[row])) {
                for (int k = 0; k < num_outputs; ++k) output[k] = 0.0f;
            } else if (is_actor) {
                differentiate_action(update, minibatch, indices[row], output, terms, tile.slopes + row * tile.widest,
                                     slopes);
            } else {
                differentiate_value(update.objective, update.returns[indices[row]], minibatch.share, output, terms);
            }
        }
        group.sync();
        for (int k = group.rank; k < NUM_TERMS; k += group.size) {
            if ((k == VALUE_LOSS) == is_actor) continue;
            double sum = sums[k];
            for (int row = 0; row < num_rows; ++row) sum += tile.terms[row * NUM_TERMS + k];
            sums[k] = sum;
        }
        for (int k = group.rank; is_actor && k < heads.num_continuous; k += group.size) {
            float sum = gradient[update.log_std + k];
            for (int row = 0; row < num_rows; ++row) sum += row_slopes[row * tile.widest + k];
            gradient[update.log_std + k] = sum;
        }
        group.sync();
        pass_backward(network, is_actor ? minibatch.actor_transposed : minibatch.critic_transposed, tile, outputs,
                      num_rows, gradient, group);
    }
}

// Writes the transposed weights of all layers but the first: a padded row for each output.
TARGET void transpose(const Network& network, const float* weights, float* transposed, const Group& group) {
    weights += layer_size(network, 0);
    for (int layer = 1; layer < network.num_layers; ++layer) {
        const int num_inputs = network.widths[layer - 1], num_outputs = network.widths[layer];
        const int width = padded(num_outputs), row_size = padded(num_inputs);
        const float* const rows = weights + width;
        int j = group.rank / row_size, i = group.rank % row_size;
        for (int k = group.rank; k < num_outputs * row_size; k += group.size) {
            transposed[k] = i < num_inputs ? rows[(size_t)i * width + j] : 0.0f;
            for (i += group.size; i >= row_size; i -= row_size) ++j;
        }
        transposed += (size_t)num_outputs * row_size;
        weights += layer_size(network, layer);
    }
}
