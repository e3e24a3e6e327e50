// Computes small networks with a warp's tensor cores: inputs, weights and hidden layers in bfloat16, sums in float32.
//
// It equals references/tensor_cores.py, but for the rounding of sums, which no source specifies, and for tanh, which a
// device approximates. network.py packs the weights. The fragments of the instruction's matrices are those of the PTX
// ISA, "Matrix Fragments for mma.m16n8k16": lane 4 * k + m of a warp has rows k and k + 8 of a result, in its columns
// 2 * m and 2 * m + 1. That lane's own row is k + 8 * m of the warp's 32, which two tiles of 16 rows hold, so that a
// row leaves its four lanes only as inputs and as outputs. The inputs that a lane needs of the next layer are outputs
// that it has of this one.
#pragma once
#include "layers.cuh"

constexpr unsigned ALL_LANES = ~0u;
constexpr int PART = 16;  // inputs of an instruction, and outputs of two; layers are zero-padded to multiples of it
constexpr int MOST_KEPT = 64;  // inputs and outputs of a layer whose fragments a thread keeps in registers

#ifdef __CUDA_ARCH__  // else host_tensor_cores.h has the first two of these functions

// Adds a 16 x 16 matrix times a 16 x 8 matrix to sums, whose four numbers are of the result.
__device__ __forceinline__ void multiply_add(float* sums, const uint4& a, unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

// Returns two numbers, rounded to the nearest bfloat16.
__device__ __forceinline__ unsigned bfloat16s(float low, float high) {
    unsigned both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

// Returns tanh(x), with a relative error of at most 2^-11, half of what rounding to bfloat16 then adds at most.
__device__ __forceinline__ float approximate_tangent(float x) {
    float tangent;
    asm("tanh.approx.f32 %0, %1;" : "=f"(tangent) : "f"(x));
    return tangent;
}

#else

inline float approximate_tangent(float x) { return hyperbolic_tangent(x); }

#endif

// Applies an activation to the sums of a part, in both of its halves and tiles. num_left: the number of outputs from
// the lane's first column on.
__device__ __forceinline__ void activate(float* sums, int activation, int num_left) {
    if (activation == TANH) {
#pragma unroll
        for (int i = 0; i < 16; ++i) sums[i] = approximate_tangent(sums[i]);
    } else if (activation == RELU) {
#pragma unroll
        for (int i = 0; i < 16; ++i) sums[i] = sums[i] < 0.0f ? 0.0f : sums[i];
    }
    if (num_left >= 10) return;
    // A sum of no output is 0, except where an input is infinite, from which it would spread.
#pragma unroll
    for (int i = 0; i < 16; ++i) sums[i] = i / 8 * 8 + i % 2 < num_left ? sums[i] : 0.0f;
}

// Gives each lane the outputs of its own row. sums: of 8 columns, for both tiles. outputs: the lane's row, from the
// first of these columns on.
__device__ __forceinline__ void exchange(const float (*sums)[4], float* outputs) {
    const int warp_lane = threadIdx.x % 32, m = warp_lane % 4;
    for (int k = 0; k < 4; ++k) {
        const int other = m ^ k;  // of the same four lanes; its row is in tile other / 2, 8 * (other % 2) rows below
        for (int j = 0; j < 2; ++j) {
            const float upper = other < 2 ? sums[0][j] : sums[1][j];
            const float lower = other < 2 ? sums[0][2 + j] : sums[1][2 + j];
            outputs[2 * other + j] = __shfl_sync(ALL_LANES, other % 2 == 0 ? upper : lower, warp_lane ^ k);
        }
    }
}

// Returns a lane's fragment of the k-th part of the first layer's inputs. inputs: the lane's own row.
__device__ __forceinline__ uint4 first_fragment(const float* inputs, int tile, int k, int num_inputs) {
    const int warp_lane = threadIdx.x % 32, m = warp_lane % 4;
    unsigned words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // of the upper and the lower row: two columns, then those 8 to the right
        const int owner = warp_lane - m + 2 * tile + i % 2, column = k * PART + 2 * m + i / 2 * 8;
        const float* const row = (const float*)__shfl_sync(ALL_LANES, (unsigned long long)inputs, owner);
        words[i] = bfloat16s(column < num_inputs ? row[column] : 0.0f,
                             column + 1 < num_inputs ? row[column + 1] : 0.0f);
    }
    return {words[0], words[1], words[2], words[3]};
}

// Returns the 32-bit words of a layer's weights.
constexpr __device__ __forceinline__ int words_of_layer(int num_inputs, int num_outputs) {
    const int num_steps = (num_inputs + PART - 1) / PART, num_parts = (num_outputs + PART - 1) / PART;
    return num_parts * PART + num_parts * num_steps * 32 * 4;
}

// Computes a layer for the rows of a warp's lanes. units: of the fragments of its inputs, two a part, one for each tile;
// null, where inputs is, the lane's own row. later: gets the fragments of its outputs, unless it is the last layer, whose
// outputs get those of the lane's row. weights: the biases, then the fragments.
template <int INPUTS, int OUTPUTS, int ACTIVATION>
__device__ __forceinline__ void compute_layer_warp(const uint4* units, const float* inputs, uint4* later,
                                                   float* outputs, const float* weights) {
    constexpr bool keeps = INPUTS <= MOST_KEPT && OUTPUTS <= MOST_KEPT;
    [[maybe_unused]] constexpr int most_parts = keeps ? MOST_KEPT / PART : 1;
    constexpr int num_steps = (INPUTS + PART - 1) / PART, num_parts = (OUTPUTS + PART - 1) / PART;
    const int warp_lane = threadIdx.x % 32, m = warp_lane % 4;
    const uint4* const fragments = (const uint4*)(weights + num_parts * PART) + warp_lane;
#pragma unroll most_parts
    for (int part = 0; part < num_parts; ++part) {
        float sums[2][2][4];  // for each half of the part and each tile
        for (int half = 0; half < 2; ++half) {
            const float* const biases = weights + part * PART + 8 * half + 2 * m;
            for (int i = 0; i < 4; ++i) sums[half][0][i] = sums[half][1][i] = biases[i % 2];
        }
#pragma unroll most_parts
        for (int k = 0; k < num_steps; ++k) {
            const uint4 words = fragments[(part * num_steps + k) * 32];
            for (int tile = 0; tile < 2; ++tile) {
                const uint4 a = units != nullptr ? units[2 * k + tile] : first_fragment(inputs, tile, k, INPUTS);
                multiply_add(sums[0][tile], a, words.x, words.y);
                multiply_add(sums[1][tile], a, words.z, words.w);
            }
        }
        activate(&sums[0][0][0], ACTIVATION, OUTPUTS - part * PART - 2 * m);
        if (later == nullptr) {
            exchange(sums[0], outputs + part * PART);
            exchange(sums[1], outputs + part * PART + 8);
            continue;
        }
        for (int tile = 0; tile < 2; ++tile) {
            const float *const left = sums[0][tile], *const right = sums[1][tile];
            later[2 * part + tile] = {bfloat16s(left[0], left[1]), bfloat16s(left[2], left[3]),
                                      bfloat16s(right[0], right[1]), bfloat16s(right[2], right[3])};
        }
    }
}

// Computes a layer and those after it, from fragments of its inputs or from its inputs.
template <int INPUTS, int OUTPUTS, int ACTIVATION, int... LATER>
__device__ __forceinline__ void compute_layers_warp(const uint4* units, const float* inputs, const float* weights,
                                                    float* outputs) {
    if constexpr (sizeof...(LATER) == 0) {
        compute_layer_warp<INPUTS, OUTPUTS, ACTIVATION>(units, inputs, nullptr, outputs, weights);
    } else {
        uint4 later[2 * ((OUTPUTS + PART - 1) / PART)];
        compute_layer_warp<INPUTS, OUTPUTS, ACTIVATION>(units, inputs, later, outputs, weights);
        compute_layers_warp<OUTPUTS, LATER...>(later, nullptr, weights + words_of_layer(INPUTS, OUTPUTS), outputs);
    }
}

// Computes the outputs of the rows of a warp's lanes. All lanes of the warp call it. INPUTS, LAYERS: the number of inputs
// and, for each layer, of its outputs and its activation. inputs: the lane's row, which others read. weights: of each
// layer. outputs: NETWORK_WIDTH floats for the lane's row.
template <int INPUTS, int... LAYERS>
__device__ __forceinline__ void forward_warp(const float* inputs, const float* weights, float* outputs) {
    __syncwarp(ALL_LANES);  // others have written these rows
    if constexpr (INPUTS <= NETWORK_WIDTH) {
        uint4 units[2 * ((INPUTS + PART - 1) / PART)];
#pragma unroll
        for (int k = 0; k < (INPUTS + PART - 1) / PART; ++k) {
            for (int tile = 0; tile < 2; ++tile) units[2 * k + tile] = first_fragment(inputs, tile, k, INPUTS);
        }
        compute_layers_warp<INPUTS, LAYERS...>(units, inputs, weights, outputs);
    } else {  // each part of the first layer reads its inputs once more
        compute_layers_warp<INPUTS, LAYERS...>(nullptr, inputs, weights, outputs);
    }
    __syncwarp(ALL_LANES);  // before a lane writes its next inputs
}
