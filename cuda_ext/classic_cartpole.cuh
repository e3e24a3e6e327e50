// classic/cartpole: balance a pole on a cart. references/classic_cartpole.py defines the rules, in NumPy.
#include "trigonometry.cuh"

enum { START = 1 };  // purposes of random numbers

constexpr float GRAVITY = 9.8f, MASS = 1.1f, POLE_MASS = 0.1f, LENGTH = 0.5f, POLE_MOMENT = 0.05f, FORCE = 10.0f;
constexpr float SECONDS = 0.02f, MOST_X = 2.4f, MOST_THETA = 0.20943951606750488f;

__device__ __forceinline__ float near_zero(unsigned word) { return uniform(word) * 0.1f - 0.05f; }

__device__ void start(const Env& env, int e, const Group& group) {
    const Words words = philox(env.seed[e], env.episode[e], 0, 0, START);
    env.x[e] = near_zero(words.w[0]);
    env.x_dot[e] = near_zero(words.w[1]);
    env.theta[e] = near_zero(words.w[2]);
    env.theta_dot[e] = near_zero(words.w[3]);
}

__device__ void step(const Env& env, int e, int row, const Group& group) {
    const float x_dot = env.x_dot[e], theta_dot = env.theta_dot[e];
    const float force = action(env, e, 0, row, 2) == 1 ? FORCE : -FORCE;
    const SineCosine pole = sine_cosine(env.theta[e]);
    const float pushed = (force + POLE_MOMENT * (theta_dot * theta_dot) * pole.sine) / MASS;
    const float inertia = LENGTH * (4.0f / 3.0f - POLE_MASS * (pole.cosine * pole.cosine) / MASS);
    const float theta_acceleration = (GRAVITY * pole.sine - pole.cosine * pushed) / inertia;
    const float x_acceleration = pushed - POLE_MOMENT * theta_acceleration * pole.cosine / MASS;
    const float x = env.x[e] + SECONDS * x_dot, theta = env.theta[e] + SECONDS * theta_dot;
    env.x[e] = x;
    env.x_dot[e] = x_dot + SECONDS * x_acceleration;
    env.theta[e] = theta;
    env.theta_dot[e] = theta_dot + SECONDS * theta_acceleration;
    const bool fell = (x < -MOST_X) | (x > MOST_X) | (theta < -MOST_THETA) | (theta > MOST_THETA);
    env.rewards[row] = 1.0f;
    env.terminations[row] = fell;
    env.truncations[row] = !fell & (env.t[e] >= env.max_episode_steps);
}

__device__ void observe(const Env& env, int e, const Group& group, float* observations) {
    observations[0] = env.x[e];
    observations[1] = env.x_dot[e];
    observations[2] = env.theta[e];
    observations[3] = env.theta_dot[e];
}
