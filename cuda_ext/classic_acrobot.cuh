// classic/acrobot: swing two links up to a line. references/classic_acrobot.py defines the rules, in NumPy.
#include "trigonometry.cuh"

enum { START = 1 };  // purposes of random numbers

constexpr float SECONDS = 0.2f, HALF_SECONDS = 0.1f, SIXTH = 0.0333333333f;
constexpr float MOST_SPEED1 = 12.566370614f, MOST_SPEED2 = 28.274333882f;

struct Links {  // two angles and their speeds, or the derivatives of these
    float theta1, theta2, theta1_dot, theta2_dot;
};

__device__ __forceinline__ float within(float number, float most) {
    return number < -most ? -most : number > most ? most : number;
}

__device__ __forceinline__ float near_zero(unsigned word) { return uniform(word) * 0.2f - 0.1f; }

__device__ __forceinline__ Links derivative(const Links& links, float torque) {
    const SineCosine second = sine_cosine(links.theta2);
    const float speed1 = links.theta1_dot, speed2 = links.theta2_dot;
    const float inertia = 3.5f + second.cosine, coupling = 1.25f + 0.5f * second.cosine;
    const float weight2 = 4.9f * sine_cosine(links.theta1 + links.theta2).sine;
    const float weight1 = 14.7f * sine_cosine(links.theta1).sine + weight2;
    const float load1 = weight1 - (0.5f * speed2 + speed1) * speed2 * second.sine;
    const float load2 = weight2 + 0.5f * (speed1 * speed1) * second.sine;
    const float share = coupling / inertia;
    const float acceleration2 = (torque + share * load1 - load2) / (1.25f - share * coupling);
    return {speed1, speed2, -(coupling * acceleration2 + load1) / inertia, acceleration2};
}

__device__ __forceinline__ Links moved(const Links& links, const Links& slope, float seconds) {
    return {links.theta1 + seconds * slope.theta1, links.theta2 + seconds * slope.theta2,
            links.theta1_dot + seconds * slope.theta1_dot, links.theta2_dot + seconds * slope.theta2_dot};
}

// Returns the weighted sum of the slopes of a Runge-Kutta step.
__device__ __forceinline__ float total(float first, float second, float third, float fourth) {
    return ((first + 2.0f * second) + 2.0f * third) + fourth;
}

__device__ void start(const Env& env, int e, const Group& group) {
    const Words words = philox(env.seed[e], env.episode[e], 0, 0, START);
    env.theta1[e] = near_zero(words.w[0]);
    env.theta2[e] = near_zero(words.w[1]);
    env.theta1_dot[e] = near_zero(words.w[2]);
    env.theta2_dot[e] = near_zero(words.w[3]);
}

__device__ void step(const Env& env, int e, int row, const Group& group) {
    const float torque = (float)(action(env, e, 0, row, 3) - 1);
    const Links links = {env.theta1[e], env.theta2[e], env.theta1_dot[e], env.theta2_dot[e]};
    const Links first = derivative(links, torque);
    const Links second = derivative(moved(links, first, HALF_SECONDS), torque);
    const Links third = derivative(moved(links, second, HALF_SECONDS), torque);
    const Links fourth = derivative(moved(links, third, SECONDS), torque);
    const Links sum = {total(first.theta1, second.theta1, third.theta1, fourth.theta1),
                       total(first.theta2, second.theta2, third.theta2, fourth.theta2),
                       total(first.theta1_dot, second.theta1_dot, third.theta1_dot, fourth.theta1_dot),
                       total(first.theta2_dot, second.theta2_dot, third.theta2_dot, fourth.theta2_dot)};
    const Links next = moved(links, sum, SIXTH);
    const float theta1 = without_turns(next.theta1), theta2 = without_turns(next.theta2);
    env.theta1[e] = theta1;
    env.theta2[e] = theta2;
    env.theta1_dot[e] = within(next.theta1_dot, MOST_SPEED1);
    env.theta2_dot[e] = within(next.theta2_dot, MOST_SPEED2);
    const float height = -sine_cosine(theta1).cosine - sine_cosine(theta1 + theta2).cosine;
    const bool arrived = height > 1.0f;
    env.rewards[row] = arrived ? 0.0f : -1.0f;
    env.terminations[row] = arrived;
    env.truncations[row] = !arrived & (env.t[e] >= env.max_episode_steps);
}

__device__ void observe(const Env& env, int e, const Group& group, float* observations) {
    const SineCosine first = sine_cosine(env.theta1[e]), second = sine_cosine(env.theta2[e]);
    observations[0] = first.cosine;
    observations[1] = first.sine;
    observations[2] = second.cosine;
    observations[3] = second.sine;
    observations[4] = env.theta1_dot[e];
    observations[5] = env.theta2_dot[e];
}
