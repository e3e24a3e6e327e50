// ocean/squared: walk from the centre of a square to the targets on its rim. ocean/squared.py defines the rules.

enum { TARGETS = 1 };  // purposes of random numbers

__device__ __forceinline__ int largest(int a, int b) { return a > b ? a : b; }
__device__ __forceinline__ int absolute(int a) { return a < 0 ? -a : a; }

// Returns the number, in the square, of the index-th cell of the rim. Both are counted row by row.
__device__ __forceinline__ int rim_cell(int index, int side) {
    if (index < side) return index;
    if (index >= 3 * side - 4) return index - (3 * side - 4) + side * (side - 1);
    const int middle = index - side;  // index among the rows between the first and the last, of two cells each
    return (1 + middle / 2) * side + middle % 2 * (side - 1);
}

// Chooses the targets by Robert Floyd's algorithm, which makes all sets equally likely.
__device__ void start(const Env& env, int e, const Group& group) {
    const int side = 2 * env.distance + 1, rim = 8 * env.distance;
    bool* const goals = env.goal_cells + (size_t)e * env.num_cells;
    bool* const left = env.left_cells + (size_t)e * env.num_cells;
    for (int cell = 0; cell < env.num_cells; ++cell) goals[cell] = false;
    for (int k = 0; k < env.num_targets; ++k) {
        const int last = rim - env.num_targets + k;
        const int drawn = below(philox(env.seed[e], env.episode[e], 0, k, TARGETS).w[0], last + 1);
        goals[rim_cell(goals[rim_cell(drawn, side)] ? last : drawn, side)] = true;
    }
    for (int cell = 0; cell < env.num_cells; ++cell) left[cell] = goals[cell];
    env.row[e] = env.column[e] = env.distance;
}

__device__ void step(const Env& env, int e, int row, const Group& group) {
    const int side = 2 * env.distance + 1, move = action(env, e, 0, row, 8), direction = move + (move >= 4);
    bool* const left = env.left_cells + (size_t)e * env.num_cells;
    int y = env.row[e] + direction / 3 - 1, x = env.column[e] + direction % 3 - 1;
    int nearest = side, num_left = 0;
    for (int cell = 0; cell < env.num_cells; ++cell) {
        if (!left[cell]) continue;
        const int distance = largest(absolute(y - cell / side), absolute(x - cell % side));
        nearest = distance < nearest ? distance : nearest;
        num_left += 1;
    }
    env.rewards[row] = (float)(1.0 - (double)nearest / env.distance);
    if (largest(absolute(y - env.distance), absolute(x - env.distance)) == env.distance) {
        num_left -= left[y * side + x];
        left[y * side + x] = false;
        y = x = env.distance;
    }
    env.row[e] = y;
    env.column[e] = x;
    if (env.t[e] < env.num_targets * env.distance) return;
    env.terminations[row] = true;
    env.scores[row] = 1.0 - (double)num_left / env.num_targets;
}

__device__ void observe(const Env& env, int e, const Group& group, float* observations) {
    bool* const goals = env.goal_cells + (size_t)e * env.num_cells;
    const int agent = env.row[e] * (2 * env.distance + 1) + env.column[e];
#pragma unroll 4
    SIDE_BY_SIDE
    for (int cell = 0; cell < env.num_cells; ++cell) {
        const float number = byte(goals[cell]);
        observations[cell] = cell == agent ? -1.0f : number;
    }
}
