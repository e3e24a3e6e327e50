// The learner's kernels for devices: an update's steps, outputs of networks, and advantages. The results equal those of
// main.h to the bit, whatever the number of blocks. host.h plays them on fibres or threads of the host.
//
// A minibatch takes five launches: learner_transpose, learner_gradients, learner_sum, learner_norm and learner_step.
// learner_statistics comes before the first, for all minibatches at once. No kernel waits for the host.
#pragma once
#define GROUP_SIZE 256  // the threads of a block
#ifndef __CUDACC__
#define __grid_constant__
#endif
#include "learner/statistics.cuh"
#include "on_chip.cuh"

constexpr int TILE_FLOATS = 11264;  // of shared memory for a tile; the largest for which no launch needs an attribute

STAGED(float, tile_memory, TILE_FLOATS);
STAGED(RowSum, tile_sums, GROUP_SIZE);
STAGED(float, column_squares, ALIGNMENT);

// A minibatch's statistics. count: of valid rows; nothing is learnt without any.
struct Statistics {
    float mean, deviation, share;
    int count;
};

// An update on a device, whose memory has all that these pointers refer to.
struct DeviceUpdate {
    Update update;
    int minibatch;                // its number
    int actor_rows, critic_rows;  // of a tile, which fit in TILE_FLOATS
    const double* learning_rate;  // instead of the update's, since a graph's arguments never change
    Statistics* statistics;       // of each minibatch
    float* transposed;            // weights of the actor, then of the critic
    float* gradients;             // num_weights for each group
    double* group_terms;          // NUM_TERMS for each group
    ScaledStep* next_step;
};

// Outputs of a network for num_rows rows. inputs, if not null, are written to the features first, those of is_scaled on
// a logarithmic scale.
struct DeviceOutputs {
    Network network;
    int num_rows, tile_rows;
    const float *weights, *inputs;
    const unsigned char* is_scaled;
    float *features, *outputs;
};

// Advantages and returns of num_steps steps of num_agents agents, as learner_advantages of main.h has them.
struct DeviceAdvantages {
    int num_steps, num_agents;
    const float *rewards, *values;
    const unsigned char *terminations, *truncations, *masks;
    float gamma, gae_lambda;
    float *advantages, *returns;
};

namespace device {

#define TARGET __device__ __forceinline__
#define ALWAYS TARGET

ALWAYS float fused(float a, float b, float c) { return fmaf(a, b, c); }

template <class V> ALWAYS V filled(float number) { return number; }

#include "learner/tangent.cuh"

enum { SCATTERED, ALONG_M, ALONG_K };  // how the numbers of a lie that a thread reads as one vector of four, if any

// Adds the products of M factors and a row of four numbers to sums.
template <int M> ALWAYS void add_products(float (&sums)[M][4], const float (&factors)[M], const float4& row) {
#pragma unroll
    for (int i = 0; i < M; ++i) {
        sums[i][0] = fused(factors[i], row.x, sums[i][0]);
        sums[i][1] = fused(factors[i], row.y, sums[i][1]);
        sums[i][2] = fused(factors[i], row.z, sums[i][2]);
        sums[i][3] = fused(factors[i], row.w, sums[i][3]);
    }
}

ALWAYS float component(const float4& vector, int k) {
    return k == 0 ? vector.x : k == 1 ? vector.y : k == 2 ? vector.z : vector.w;
}

// Each thread computes blocks of M rows and 4 columns, in registers.
template <int M, int LAYOUT>
ALWAYS void multiply_blocks(const Product& product, int num_m, int num_n, const Group& group) {
    constexpr int N = 4, STEPS = LAYOUT == ALONG_K ? 4 : 1;
    const int columns = num_n / N, num_blocks = (num_m + M - 1) / M * columns;
#pragma unroll 1
    for (int index = group.rank; index < num_blocks; index += group.size) {
        const int m = index / columns * M, n = index % columns * N;
        int rows[M];  // those beyond the last one repeat it, and are not written
#pragma unroll
        for (int i = 0; i < M; ++i) rows[i] = m + i < num_m ? m + i : num_m - 1;
        float sums[M][N];
#pragma unroll
        for (int i = 0; i < M; ++i) {
            float4 start = {0.0f, 0.0f, 0.0f, 0.0f};
            if (product.start != nullptr) start = *(const float4*)(product.start + rows[i] * product.start_m + n);
            sums[i][0] = start.x, sums[i][1] = start.y, sums[i][2] = start.z, sums[i][3] = start.w;
        }
        const float* b = product.b + n;
#pragma unroll(LAYOUT == ALONG_K ? 1 : 4)
        for (int k = 0; k < product.num_k; k += STEPS) {
            float4 vectors[M];
            if (LAYOUT == ALONG_M) vectors[0] = *(const float4*)(product.a + m + k * product.a_k);
#pragma unroll
            for (int i = 0; LAYOUT == ALONG_K && i < M; ++i) {
                vectors[i] = *(const float4*)(product.a + rows[i] * product.a_m + k);
            }
#pragma unroll
            for (int j = 0; j < STEPS; ++j) {
                float factors[M];
#pragma unroll
                for (int i = 0; i < M; ++i) {
                    factors[i] = LAYOUT == ALONG_M   ? component(vectors[0], i)
                                 : LAYOUT == ALONG_K ? component(vectors[i], j)
                                                     : product.a[rows[i] * product.a_m + k * product.a_k];
                }
                add_products(sums, factors, *(const float4*)b);
                b += product.b_k;
            }
        }
#pragma unroll
        for (int i = 0; i < M; ++i) {
            if (m + i >= num_m) break;
            *(float4*)(product.out + (m + i) * product.out_m + n) = {sums[i][0], sums[i][1], sums[i][2], sums[i][3]};
        }
    }
}

// Where blocks of four rows are too few for all threads, each computes a row of a block.
ALWAYS void multiply(const Product& product, int num_m, int num_n, const Group& group) {
    const bool is_aligned = ((size_t)product.a & 15) == 0;
    if ((num_m + 3) / 4 * (num_n / 4) <= group.size / 2) {
        multiply_blocks<1, SCATTERED>(product, num_m, num_n, group);
    } else if (is_aligned && product.a_m == 1 && product.a_k % 4 == 0 && num_m % 4 == 0) {
        multiply_blocks<4, ALONG_M>(product, num_m, num_n, group);
    } else if (is_aligned && product.a_k == 1 && product.a_m % 4 == 0 && product.num_k % 4 == 0) {
        multiply_blocks<4, ALONG_K>(product, num_m, num_n, group);
    } else {
        multiply_blocks<4, SCATTERED>(product, num_m, num_n, group);
    }
}

ALWAYS void add_rows(float* sums, const float* rows, int num_rows, int width, const Group& group) {
    for (int k = group.rank; k < width; k += group.size) {
        float sum = sums[k];
        for (int row = 0; row < num_rows; ++row) sum += rows[row * width + k];
        sums[k] = sum;
    }
}

ALWAYS void activate(float* units, int count, int activation, const Group& group) {
    for (int k = group.rank; k < count; k += group.size) {
        units[k] = activation == TANH ? tangent(units[k]) : units[k] < 0.0f ? 0.0f : units[k];
    }
}

#include "learner/passes.cuh"

#undef TARGET
#undef ALWAYS

__device__ __forceinline__ Group block() {
    static_assert(GROUP_SIZE > 32);
    return {(int)threadIdx.x, nullptr};
}

// Returns a minibatch with its rows and groups.
__device__ __forceinline__ Minibatch minibatch_of(const Update& update, int number) {
    Minibatch minibatch = {};
    const int begin = update.bounds[number];
    minibatch.rows = update.order + begin;
    minibatch.num_rows = update.bounds[number + 1] - begin;
    divide(minibatch, update.most_groups);
    return minibatch;
}

}  // namespace device

#define KERNEL extern "C" __global__ void __launch_bounds__(GROUP_SIZE)

// A block for each minibatch.
KERNEL learner_statistics(const __grid_constant__ DeviceUpdate arguments) {
    const Group group = device::block();
    Minibatch minibatch = device::minibatch_of(arguments.update, blockIdx.x);
    const int count = measure(arguments.update, minibatch, tile_sums, group);
    if (group.rank > 0) return;
    arguments.statistics[blockIdx.x] = {minibatch.mean, minibatch.deviation, minibatch.share, count};
}

// A block for each network.
KERNEL learner_transpose(const __grid_constant__ DeviceUpdate arguments) {
    const Update& update = arguments.update;
    const bool is_actor = blockIdx.x == 0;
    device::transpose(is_actor ? update.actor : update.critic,
                      update.weights + (is_actor ? 0 : update.critic_weights),
                      arguments.transposed + (is_actor ? 0 : transposed_size(update.actor)), device::block());
}

// The blocks of learner_gradients on a multiprocessor at a time, at least; with three, sm_100 and later spill registers.
#if __CUDA_ARCH__ >= 1000
#define NUM_RESIDENT 2
#else
#define NUM_RESIDENT 3
#endif

// A block for each group of each network.
extern "C" __global__ void __launch_bounds__(GROUP_SIZE, NUM_RESIDENT)
learner_gradients(const __grid_constant__ DeviceUpdate arguments) {
    const Statistics statistics = arguments.statistics[arguments.minibatch];
    if (statistics.count == 0) return;
    Minibatch minibatch = device::minibatch_of(arguments.update, arguments.minibatch);
    minibatch.mean = statistics.mean;
    minibatch.deviation = statistics.deviation;
    minibatch.share = statistics.share;
    minibatch.actor_transposed = arguments.transposed;
    minibatch.critic_transposed = arguments.transposed + transposed_size(arguments.update.actor);
    minibatch.gradients = arguments.gradients;
    minibatch.terms = arguments.group_terms;
    device::learn_from_group(arguments.update, minibatch, blockIdx.x, tile_memory,
                             (int)blockIdx.x < minibatch.num_groups ? arguments.actor_rows : arguments.critic_rows,
                             device::block());
}

// A thread for each weight, which adds the groups' gradients in order.
KERNEL learner_sum(const __grid_constant__ DeviceUpdate arguments) {
    const int k = blockIdx.x * blockDim.x + threadIdx.x, num_weights = arguments.update.num_weights;
    if (k >= num_weights || arguments.statistics[arguments.minibatch].count == 0) return;
    const int num_groups = device::minibatch_of(arguments.update, arguments.minibatch).num_groups;
    float sum = arguments.gradients[k];
    for (int group = 1; group < num_groups; ++group) sum += arguments.gradients[(size_t)group * num_weights + k];
    arguments.update.gradients[k] = sum;
}

// One block: the gradient's norm, the terms, and the constants of Adam's step.
KERNEL learner_norm(const __grid_constant__ DeviceUpdate arguments) {
    const Update& update = arguments.update;
    const Group group = device::block();
    const bool is_skipped = arguments.statistics[arguments.minibatch].count == 0;
    double* const terms = update.terms + arguments.minibatch * (NUM_TERMS + 1);
    if (group.rank < NUM_TERMS) {
        const int num_groups = device::minibatch_of(update, arguments.minibatch).num_groups;
        double sum = 0.0;
        for (int k = 0; k < num_groups && !is_skipped; ++k) sum += arguments.group_terms[k * NUM_TERMS + group.rank];
        terms[group.rank] = sum;
    }
    if (group.rank < ALIGNMENT && !is_skipped) {
        float squares = 0.0f;
#pragma unroll 8
        for (int k = group.rank; k < update.num_weights; k += ALIGNMENT) {
            squares += update.gradients[k] * update.gradients[k];
        }
        column_squares[group.rank] = squares;
    }
    group.sync();
    if (group.rank > 0) return;
    double total = 0.0;
    for (int column = 0; column < ALIGNMENT && !is_skipped; ++column) total += column_squares[column];
    const double norm = sqrt(total);
    terms[NUM_TERMS] = norm;
    if (!is_skipped) *arguments.next_step = next_step(update, *arguments.learning_rate, norm);
}

// A thread for each weight.
KERNEL learner_step(const __grid_constant__ DeviceUpdate arguments) {
    const Update& update = arguments.update;
    const int k = blockIdx.x * blockDim.x + threadIdx.x;
    if (k >= update.num_weights || arguments.statistics[arguments.minibatch].count == 0) return;
    const ScaledStep next = *arguments.next_step;
    adam(next.adam, update.gradients[k] * next.scale, update.weights[k], update.means[k], update.squares[k]);
}

// A block for each tile of rows.
KERNEL learner_outputs(const __grid_constant__ DeviceOutputs arguments) {
    const Group group = device::block();
    const int num_inputs = arguments.network.num_inputs, first = blockIdx.x * arguments.tile_rows;
    const int end = first + arguments.tile_rows, last = end < arguments.num_rows ? end : arguments.num_rows;
    if (arguments.inputs != nullptr) {
        for (size_t k = (size_t)first * num_inputs + group.rank; k < (size_t)last * num_inputs; k += group.size) {
            const float number = arguments.inputs[k];
            arguments.features[k] = arguments.is_scaled[k % num_inputs] ? scaled(number) : number;
        }
        group.sync();
    }
    device::compute_outputs(arguments.network, arguments.weights, arguments.features, first, last, tile_memory,
                            arguments.tile_rows, arguments.outputs, group);
}

// A thread for each agent.
KERNEL learner_advantages(const __grid_constant__ DeviceAdvantages arguments) {
    const int agent = blockIdx.x * blockDim.x + threadIdx.x;
    if (agent >= arguments.num_agents) return;
    float next = 0.0f;
    for (int step = arguments.num_steps - 1; step >= 0; --step) {
        const size_t k = (size_t)step * arguments.num_agents + agent;
        next = advantage_of(arguments.rewards[k], arguments.values[k], arguments.values[k + arguments.num_agents],
                            arguments.terminations[k] != 0, arguments.truncations[k] != 0, arguments.masks[k] != 0,
                            arguments.gamma, arguments.gae_lambda, next);
        arguments.advantages[k] = next;
        arguments.returns[k] = next + arguments.values[k];
    }
}
