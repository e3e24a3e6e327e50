// What an update computes between its passes, for hosts and devices: the statistics of a minibatch's advantages, and the
// constants of a step of Adam.
#pragma once
#include "learner/update.h"

// A sum over valid rows, and their number.
struct RowSum {
    double total;
    int count;
};

// Returns the sum of the advantages' distances from a number, or of the squares of these distances, over a minibatch.
// Each tile of TILE rows has a sum, and these are added in order. tile_sums: one for each thread, shared by all.
__device__ inline RowSum add_tiles(const Update& update, const Minibatch& minibatch, double from, bool squared,
                                   RowSum* tile_sums, const Group& group) {
    RowSum sum = {0.0, 0};
    const int num_tiles = (minibatch.num_rows + TILE - 1) / TILE;
    for (int first = 0; first < num_tiles; first += group.size) {
        const int begin = (first + group.rank) * TILE;
        RowSum tile = {0.0, 0};
        const int end = begin + TILE < minibatch.num_rows ? begin + TILE : minibatch.num_rows;
#pragma unroll 8  // so that a device reads several rows at once
        for (int k = begin; k < end; ++k) {
            const long long row = minibatch.rows[k];
            const bool counts = is_valid(update, row);
            const double distance = update.advantages[row] - from;
            tile.total = counts ? tile.total + (squared ? distance * distance : distance) : tile.total;
            tile.count += counts;
        }
        group.sync();
        tile_sums[group.rank] = tile;
        group.sync();
        for (int k = 0; k < group.size && first + k < num_tiles; ++k) {
            sum.total += tile_sums[k].total;
            sum.count += tile_sums[k].count;
        }
    }
    return sum;
}

// Sets the statistics of a minibatch's advantages. Returns the number of valid rows; with none, it sets nothing.
__device__ inline int measure(const Update& update, Minibatch& minibatch, RowSum* tile_sums, const Group& group) {
    const RowSum sum = add_tiles(update, minibatch, 0.0, false, tile_sums, group);
    if (sum.count == 0) return 0;
    const double mean = sum.total / sum.count;
    const double squares = add_tiles(update, minibatch, mean, true, tile_sums, group).total;
    const double deviation = sqrt(squares / sum.count);
    minibatch.mean = (float)mean;
    minibatch.deviation = (float)(deviation > update.advantage_floor ? deviation : update.advantage_floor);
    minibatch.share = (float)(1.0 / sum.count);
    return sum.count;
}

// A step of Adam whose gradient is multiplied by a scale first.
struct ScaledStep {
    AdamStep adam;
    float scale;
};

// Returns the next step, given the gradient's norm, and counts it.
__device__ inline ScaledStep next_step(const Update& update, double learning_rate, double norm) {
    const double scale = norm > update.max_grad_norm ? update.max_grad_norm / norm : 1.0;
    update.beta_powers[0] *= update.beta1;
    update.beta_powers[1] *= update.beta2;
    const AdamStep adam = {(float)update.beta1, (float)update.beta2, (float)update.epsilon,
                           (float)(learning_rate / (1.0 - update.beta_powers[0])),
                           (float)sqrt(1.0 - update.beta_powers[1])};
    return {adam, (float)scale};
}
