// classic/mountain_car: drive out of a valley. references/classic_mountain_car.py defines the rules, in NumPy.
#include "trigonometry.cuh"

enum { START = 1 };  // purposes of random numbers

constexpr float LEFT = -1.2f, RIGHT = 0.6f, GOAL = 0.5f, MOST_SPEED = 0.07f, FORCE = 0.001f, GRAVITY = 0.0025f;

__device__ __forceinline__ float within(float number, float low, float high) {
    return number < low ? low : number > high ? high : number;
}

__device__ void start(const Env& env, int e, const Group& group) {
    env.position[e] = uniform(philox(env.seed[e], env.episode[e], 0, 0, START).w[0]) * 0.2f - 0.6f;
    env.velocity[e] = 0.0f;
}

__device__ void step(const Env& env, int e, int row, const Group& group) {
    const float push = (float)(action(env, e, 0, row, 3) - 1) * FORCE;
    const float slope = sine_cosine(3.0f * env.position[e]).cosine;
    const float velocity = within(env.velocity[e] + (push - slope * GRAVITY), -MOST_SPEED, MOST_SPEED);
    const float position = within(env.position[e] + velocity, LEFT, RIGHT);
    const bool stopped = (position == LEFT) & (velocity < 0.0f);
    const float final_velocity = stopped ? 0.0f : velocity;
    const bool arrived = (position >= GOAL) & (final_velocity >= 0.0f);
    env.position[e] = position;
    env.velocity[e] = final_velocity;
    env.rewards[row] = -1.0f;
    env.terminations[row] = arrived;
    env.truncations[row] = !arrived & (env.t[e] >= env.max_episode_steps);
}

__device__ void observe(const Env& env, int e, const Group& group, float* observations) {
    observations[0] = env.position[e];
    observations[1] = env.velocity[e];
}
