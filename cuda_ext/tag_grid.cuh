// tag/grid: taggers chase runners over a grid. references/tag_grid.py defines the rules, in NumPy.
#include "division.cuh"

enum { START = 1, POOL = 2 };  // purposes of random numbers

__device__ void start(const Env& env, int e, const Group& group) {
    const unsigned seed = env.seed[e], episode = env.episode[e];
    const unsigned num_cells = env.grid_length + 1;
    const int* layout = nullptr;
    if (env.num_layouts > 0) {
        layout = env.layouts + 2 * env.num_agents * below(philox(seed, episode, 0, 0, POOL).w[0], env.num_layouts);
    }
    for (int a = group.rank; a < env.num_agents; a += group.size) {
        const int i = e * env.num_agents + a;
        env.alive[i] = true;
        if (layout != nullptr) {
            env.x[i] = layout[2 * a];
            env.y[i] = layout[2 * a + 1];
        } else {
            const Words words = philox(seed, episode, 0, a, START);
            env.x[i] = below(words.w[0], num_cells);
            env.y[i] = below(words.w[1], num_cells);
        }
    }
}

__device__ __forceinline__ int clipped(int value, int length) { return value < 0 ? 0 : value > length ? length : value; }

__device__ void step(const Env& env, int e, int row, const Group& group) {
    const int first = e * env.num_agents, num_taggers = env.num_taggers;
    for (int a = group.rank; a < env.num_agents; a += group.size) {
        const int i = first + a;
        env.tagged[i] = 0;
        if (!env.masks[row + a]) continue;
        const int move = action(env, e, a, row, 5);
        const int x = env.x[i] + (move == 1) - (move == 2), y = env.y[i] + (move == 3) - (move == 4);
        env.x[i] = clipped(x, env.grid_length);
        env.y[i] = clipped(y, env.grid_length);
        env.rewards[row + a] = env.x[i] != x || env.y[i] != y ? -env.wall_hit_penalty : 0.0f;
    }
    group.sync();

    for (int a = group.rank; a < num_taggers; a += group.size) {
        for (int r = num_taggers; r < env.num_agents; ++r) {
            if (env.alive[first + r] && env.x[first + a] == env.x[first + r] && env.y[first + a] == env.y[first + r]) {
                atomicAdd(&env.tagged[first + r], 1);
            }
        }
    }
    group.sync();

    int tags = 0, runners = 0;
    for (int a = group.rank; a < env.num_agents; a += group.size) {
        if (a < num_taggers || !env.alive[first + a]) continue;
        const bool is_tagged = env.tagged[first + a] > 0;
        tags += is_tagged;
        runners += !is_tagged;
        env.rewards[row + a] += is_tagged ? -env.tag_penalty_for_runner : env.step_cost_for_tagger;
        env.terminations[row + a] = is_tagged;
    }
    tags = group.sum(tags);
    const bool won = !group.any(runners > 0), late = !won && env.t[e] >= env.episode_length;
    for (int a = group.rank; a < env.num_agents; a += group.size) {
        if (a < num_taggers) {
            env.rewards[row + a] += tags > 0 ? (float)tags * env.tag_reward_for_tagger : -env.step_cost_for_tagger;
            env.terminations[row + a] = won;
        } else if (env.terminations[row + a]) {
            env.alive[first + a] = false;  // after a barrier: compilers let all threads read it before their own agents
        }
        env.truncations[row + a] = late && env.masks[row + a] && !env.terminations[row + a];
    }
}

// Every agent's cell is in every row, so threads handle elements rather than agents: adjacent threads write adjacent
// elements.
__device__ __forceinline__ void observe_all(const Env& env, int e, const Group& group, float* observations) {
    const int n = env.num_agents, first = e * n, size = env.observation_size;
    const Divisor length(env.grid_length);
    const float time = Divisor(env.episode_length).divide(env.t[e]);
    for (int k = group.rank; k < n * size; k += group.size) {
        const int a = k / size, feature = k % size, kind = feature / n, other = feature % n;
        const bool alive = env.alive[first + other];
        float value = time;
        if (kind == 0) value = alive ? length.divide(env.x[first + other]) : 0.0f;
        if (kind == 1) value = alive ? length.divide(env.y[first + other]) : 0.0f;
        if (kind == 2) value = alive && other >= env.num_taggers ? 1.0f : 0.0f;
        if (kind == 3) value = other == a ? 1.0f : 0.0f;
        observations[k] = value;
    }
}

#define NO_AGENT (~0ull)

// Returns a key: an agent's squared distance, followed by its index. The least key is that of the nearest agent, and
// of the lowest index among equally near ones.
__device__ __forceinline__ unsigned long long distance(const Env& env, int i, int j, int b) {
    const long long dx = env.x[i] - env.x[j], dy = env.y[i] - env.y[j];
    return env.alive[j] ? (unsigned long long)(dx * dx + dy * dy) << 32 | (unsigned)b : NO_AGENT;
}

__device__ __forceinline__ void write_other(const Env& env, int first, unsigned long long key, int rank,
                                            const Divisor& length, float* row) {
    const int j = first + (int)(unsigned)key;
    row[2 + rank] = key == NO_AGENT ? 0.0f : length.divide(env.x[j]);
    row[2 + env.num_nearest + rank] = key == NO_AGENT ? 0.0f : length.divide(env.y[j]);
}

__device__ __forceinline__ void observe_nearest(const Env& env, int e, const Group& group, float* observations) {
    const int n = env.num_agents, first = e * n, size = env.observation_size, num_taggers = env.num_taggers;
    const Divisor length(env.grid_length);
    const float time = Divisor(env.episode_length).divide(env.t[e]);
    // If runners are few, all threads search together for each of them.
    const bool together = group.size > 32 && (n - num_taggers) * 16 <= num_taggers;
    for (int a = group.rank; a < n; a += group.size) {
        float* const row = observations + a * size;
        const bool runs = a >= num_taggers;
        row[0] = length.divide(env.x[first + a]);
        row[1] = length.divide(env.y[first + a]);
        row[size - 2] = runs ? 1.0f : 0.0f;
        row[size - 1] = time;
        if (runs && together) continue;
        const int from = runs ? 0 : num_taggers, to = runs ? num_taggers : n;
        unsigned long long least = 0;  // the least key that comes next; a lesser one minus it wraps, and is beyond all
        for (int rank = 0; rank < env.num_nearest; ++rank) {
            unsigned long long beyond = NO_AGENT - least;  // by how much the nearest agent's key is greater
            for (int b = from; b < to; ++b) {
                const unsigned long long key = distance(env, first + a, first + b, b) - least;
                if (key < beyond) beyond = key;
            }
            const unsigned long long nearest = least + beyond;
            write_other(env, first, nearest, rank, length, row);
            least = nearest == NO_AGENT ? nearest : nearest + 1;
        }
    }
    if (!together) return;
    for (int a = num_taggers; a < n; ++a) {
        float* const row = observations + a * size;
        unsigned long long least = 0;
        for (int rank = 0; rank < env.num_nearest; ++rank) {
            unsigned long long beyond = NO_AGENT - least;
            for (int b = group.rank; b < num_taggers; b += group.size) {
                const unsigned long long key = distance(env, first + a, first + b, b) - least;
                if (key < beyond) beyond = key;
            }
            const unsigned long long nearest = least + group.min(beyond);
            if (group.rank == 0) write_other(env, first, nearest, rank, length, row);
            least = nearest == NO_AGENT ? nearest : nearest + 1;
        }
    }
}

__device__ void observe(const Env& env, int e, const Group& group, float* observations) {
    if (env.full_observation) {
        observe_all(env, e, group, observations);
    } else {
        observe_nearest(env, e, group, observations);
    }
}
