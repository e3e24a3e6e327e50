// tag/continuous: taggers chase runners over a plane. references/tag_continuous.py defines the rules, in NumPy.
#include "cells.cuh"
#include "trigonometry.cuh"

enum { START = 1, POOL = 2 };  // purposes of random numbers
enum { MOST_NEAREST = 32, NUM_DIFFERENCES = 5 };
enum { SORTED = 33 };  // agents; from this number on they are sorted by cell
// Agents. Finding the ten nearest of 105 to 1,000 took longer with 2 and with 8; on the host, 1 to 3 % longer with 4.
constexpr float PER_CELL = GROUP_SIZE == 1 ? 3.0f : 4.0f;

__device__ void start(const Env& env, int e, const Group& group) {
    const unsigned seed = env.seed[e], episode = env.episode[e];
    const float* layout = nullptr;
    if (env.num_layouts > 0) {
        const unsigned drawn = below(philox(seed, episode, 0, 0, POOL).w[0], env.num_layouts);
        layout = env.layouts + (size_t)3 * env.num_agents * drawn;
    }
    for (int a = group.rank; a < env.num_agents; a += group.size) {
        const int i = e * env.num_agents + a;
        env.alive[i] = true;
        if (layout != nullptr) {
            env.x[i] = layout[3 * a];
            env.y[i] = layout[3 * a + 1];
            env.direction[i] = layout[3 * a + 2];
        } else {
            const Words words = philox(seed, episode, 0, a, START);
            env.x[i] = uniform(words.w[0]) * env.grid_length;
            env.y[i] = uniform(words.w[1]) * env.grid_length;
            env.direction[i] = (float)below(words.w[2], 4) * HALF_PI;
        }
    }
}

__device__ __forceinline__ float clipped(float value, float most) {
    return value < 0.0f ? 0.0f : value > most ? most : value;
}

__device__ __forceinline__ float squared_distance(const Env& env, int i, int j) {
    const float dx = env.x[j] - env.x[i], dy = env.y[j] - env.y[i];
    return dx * dx + dy * dy;
}

__device__ __forceinline__ void move(const Env& env, int e, int a, int row) {
    const int i = e * env.num_agents + a;
    const bool runs = a >= env.num_taggers;
    const float top = runs ? env.top_speed_runner : env.top_speed_tagger;
    const int acceleration_level = action(env, e, a, row, env.num_accelerations, 0, 2);
    const int turn_level = action(env, e, a, row, env.num_turns, 1, 2);
    const float acceleration = env.acceleration[i] + env.accelerations[acceleration_level];
    const float direction = wrapped(env.direction[i] + env.turns[turn_level]);
    const float speed = clipped(env.speed[i] + acceleration, top);
    const SineCosine heading = sine_cosine(direction);
    const float free_x = env.x[i] + speed * heading.cosine, free_y = env.y[i] + speed * heading.sine;  // without edges
    const float x = clipped(free_x, env.grid_length), y = clipped(free_y, env.grid_length);
    env.x[i] = x;
    env.y[i] = y;
    env.speed[i] = speed;
    env.direction[i] = direction;
    env.acceleration[i] = speed <= 0.0f || speed >= top ? 0.0f : acceleration;
    env.rewards[row + a] = (x != free_x || y != free_y ? env.edge_hit_penalty : 0.0f) +
                           (runs ? env.step_reward_for_runner : env.step_penalty_for_tagger);
}

__device__ void step(const Env& env, int e, int row, const Group& group) {
    const int first = e * env.num_agents, num_taggers = env.num_taggers;
    for (int a = group.rank; a < env.num_agents; a += group.size) {
        env.tags[first + a] = 0;
        if (env.masks[row + a]) move(env, e, a, row);
    }
    group.sync();

    for (int a = group.rank; a < env.num_agents; a += group.size) {
        if (a < num_taggers || !env.masks[row + a]) continue;
        int nearest = 0;
        float least = squared_distance(env, first + a, first);
        for (int b = 1; b < num_taggers; ++b) {
            const float square = squared_distance(env, first + a, first + b);
            if (square >= least) continue;
            least = square;
            nearest = b;
        }
        if (least >= env.squared_reach) continue;
        env.tags[first + a] = 1;
        atomicAdd(&env.tags[first + nearest], 1);  // other threads may count tags of this tagger at the same time
    }
    group.sync();

    int runners = 0;
    for (int a = group.rank; a < env.num_agents; a += group.size) {
        if (a < num_taggers || !env.masks[row + a]) continue;
        const bool left = env.tags[first + a] > 0 && env.runner_exits_game_after_tagged;
        env.alive[first + a] = !left;
        env.terminations[row + a] = left;
        runners += !left;
    }
    const bool late = env.t[e] >= env.episode_length, won = !group.any(runners > 0);
    for (int a = group.rank; a < env.num_agents; a += group.size) {
        if (!env.masks[row + a]) continue;
        const int tags = env.tags[first + a];
        if (a < num_taggers) {
            env.rewards[row + a] += (float)tags * env.tag_reward_for_tagger;
            env.terminations[row + a] = won;
        } else if (tags > 0) {
            env.rewards[row + a] += env.tag_penalty_for_runner;
        } else if (late) {
            env.rewards[row + a] += env.end_of_game_reward_for_runner;
        }
        env.truncations[row + a] = late && !env.terminations[row + a];
    }
}

// Returns one of the first five features, which are differences between agents j and i.
__device__ __forceinline__ float difference(const Env& env, int kind, int i, int j) {
    switch (kind) {
        case 0: return (env.x[j] - env.x[i]) / env.diagonal;
        case 1: return (env.y[j] - env.y[i]) / env.diagonal;
        case 2: return (env.speed[j] - env.speed[i]) / env.max_speed;
        case 3: return (env.acceleration[j] - env.acceleration[i]) / env.max_speed;
        default: return (env.direction[j] - env.direction[i]) / TWO_PI;
    }
}

// Every agent is in every other's row, so threads handle elements rather than agents: adjacent threads write adjacent
// elements.
__device__ __forceinline__ void observe_all(const Env& env, int e, const Group& group, float* observations) {
    const int n = env.num_agents, first = e * n, size = env.observation_size;
    const float time = (float)env.t[e] / (float)env.episode_length;
    for (int k = group.rank; k < n * size; k += group.size) {
        const int a = k / size, feature = k % size, kind = feature / (n - 1), column = feature % (n - 1);
        const int other = column + (column >= a);
        const bool alive = env.alive[first + other];
        float value = time;
        if (kind < NUM_DIFFERENCES) value = alive ? difference(env, kind, first + a, first + other) : 0.0f;
        if (kind == NUM_DIFFERENCES) value = other < env.num_taggers ? 1.0f : 0.0f;
        if (kind == NUM_DIFFERENCES + 1) value = alive ? 1.0f : 0.0f;
        observations[k] = value;
    }
}

#define NO_AGENT (~0ull)

// A thread keeps an agent's nearest so far in order, in registers if the compiler knows their number. A key is the bits
// of the squared distance, which order floats that are not negative, followed by the other agent's index.
__device__ __forceinline__ void observe_nearest(const Env& env, int e, const Group& group, float* observations) {
    const int n = env.num_agents, first = e * n, size = env.observation_size;
    const float time = (float)env.t[e] / (float)env.episode_length;
#if HAS_CELLS
    const bool sorts = n >= SORTED && n <= Cells::MOST_AGENTS;
    Cells cells;
    if (sorts) {
        int living = 0;
        for (int a = group.rank; a < n; a += group.size) living += env.alive[first + a];
        cells = cells_for(group.sum(living), PER_CELL, env.grid_length);
        sort(cells, env.x + first, env.y + first, n, group, [&](int b) { return env.alive[first + b]; });
    }
#else
    const bool sorts = false;
#endif
    for (int a = group.rank; a < n; a += group.size) {
        // A runner that left in an earlier step observes nothing.
        if (a >= env.num_taggers && !env.alive[first + a] && env.tags[first + a] == 0) continue;
        unsigned long long nearest[MOST_NEAREST];
#pragma unroll
        for (int rank = 0; rank < env.num_nearest; ++rank) nearest[rank] = NO_AGENT;
        const auto consider = [&](float square, int b) {
            unsigned long long key = (unsigned long long)__float_as_uint(square) << 32 | (unsigned)b;
            if (b == a || key >= nearest[env.num_nearest - 1]) return;
#pragma unroll
            for (int rank = 0; rank < env.num_nearest; ++rank) {  // a rank keeps the nearer, and passes on the other
                const unsigned long long current = nearest[rank];
                nearest[rank] = key < current ? key : current;
                key = key < current ? current : key;
            }
        };
#if HAS_CELLS
        const auto reach = [&] { return (unsigned)(nearest[env.num_nearest - 1] >> 32); };
        if (sorts) search(cells, env.x[first + a], env.y[first + a], consider, reach);
#endif
        for (int b = 0; b < n && !sorts; ++b) {
            if (env.alive[first + b]) consider(squared_distance(env, first + a, first + b), b);
        }
        float* const row = observations + a * size;
#pragma unroll
        for (int rank = 0; rank < env.num_nearest; ++rank) {
            const bool present = nearest[rank] != NO_AGENT;
            const int other = (int)(unsigned)nearest[rank];
            float* feature = row + rank;
#pragma unroll
            for (int kind = 0; kind < NUM_DIFFERENCES; ++kind, feature += env.num_nearest) {
                *feature = present ? difference(env, kind, first + a, first + other) : 0.0f;
            }
            feature[0] = present && other < env.num_taggers ? 1.0f : 0.0f;
            feature[env.num_nearest] = present ? 1.0f : 0.0f;
        }
        row[size - 1] = time;
    }
}

__device__ void observe(const Env& env, int e, const Group& group, float* observations) {
    if (env.full_observation) {
        observe_all(env, e, group, observations);
    } else {
        observe_nearest(env, e, group, observations);
    }
}
