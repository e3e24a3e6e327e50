// classic/pendulum: swing a pendulum up and hold it there. references/classic_pendulum.py defines the rules, in NumPy.
#include "trigonometry.cuh"

enum { START = 1 };  // purposes of random numbers

constexpr float SECONDS = 0.05f, MOST_TORQUE = 2.0f, MOST_SPEED = 8.0f, PI = 3.1415927410125732421875f;

__device__ void start(const Env& env, int e, const Group& group) {
    const Words words = philox(env.seed[e], env.episode[e], 0, 0, START);
    env.theta[e] = uniform(words.w[0]) * TWO_PI - PI;
    env.theta_dot[e] = uniform(words.w[1]) * 2.0f - 1.0f;
}

__device__ void step(const Env& env, int e, int row, const Group& group) {
    const float torque = continuous_action(env, e, 0, row, -MOST_TORQUE, MOST_TORQUE);
    const float theta = env.theta[e], theta_dot = env.theta_dot[e];
    const float faster = theta_dot + (15.0f * sine_cosine(theta).sine + 3.0f * torque) * SECONDS;
    const float speed = faster < -MOST_SPEED ? -MOST_SPEED : faster > MOST_SPEED ? MOST_SPEED : faster;
    env.theta[e] = without_turns(theta + speed * SECONDS);
    env.theta_dot[e] = speed;
    env.rewards[row] = -((theta * theta + 0.1f * (theta_dot * theta_dot)) + 0.001f * (torque * torque));
    env.truncations[row] = env.t[e] >= env.max_episode_steps;
}

__device__ void observe(const Env& env, int e, const Group& group, float* observations) {
    const SineCosine angle = sine_cosine(env.theta[e]);
    observations[0] = angle.cosine;
    observations[1] = angle.sine;
    observations[2] = env.theta_dot[e];
}
