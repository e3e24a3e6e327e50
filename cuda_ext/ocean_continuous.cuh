// ocean/continuous: push a point to a target. ocean/continuous.py defines the rules.

enum { START = 1 };  // purposes of random numbers

constexpr int NUM_STEPS = 100;
constexpr float PUSH = 0.1f;

__device__ __forceinline__ float within(float number) { return number < -1.0f ? -1.0f : number > 1.0f ? 1.0f : number; }

__device__ void start(const Env& env, int e, const Group& group) {
    const Words words = philox(env.seed[e], env.episode[e], 0, 0, START);
    const size_t first = (size_t)e * env.num_axes;
#pragma unroll
    for (int axis = 0; axis < 2; ++axis) {
        env.position[first + axis] = 2.0f * uniform(words.w[axis]) - 1.0f;
        env.target[first + axis] = 2.0f * uniform(words.w[2 + axis]) - 1.0f;
        env.velocity[first + axis] = 0.0f;
    }
}

__device__ void step(const Env& env, int e, int row, const Group& group) {
    const size_t first = (size_t)e * env.num_axes;
    const int way = env.discrete ? action(env, e, 0, row, 4) : 0;  // left, right, down, up
    bool outside = false;
    float square = 0.0f;
#pragma unroll
    for (int axis = 0; axis < 2; ++axis) {
        const float full = way / 2 != axis ? 0.0f : way % 2 == 0 ? -1.0f : 1.0f;
        const float push = env.discrete ? full : continuous_action(env, e, 0, row, -1.0f, 1.0f, axis, 2);
        const float velocity = within(env.velocity[first + axis] + PUSH * push);
        const float position = env.position[first + axis] + velocity;
        const float error = position - env.target[first + axis];
        env.velocity[first + axis] = velocity;
        env.position[first + axis] = position;
        outside |= position < -1.0f || position > 1.0f;
        square += error * error;
    }
    const float distance = sqrtf(square);
    const bool hit = !outside && distance < PUSH, late = env.t[e] >= NUM_STEPS;
    env.rewards[row] = outside ? -1.0f : hit ? 5.0f : 0.02f * (1.0f - distance);
    env.terminations[row] = outside || hit;
    env.truncations[row] = late && !outside && !hit;
    if (outside || hit || late) env.scores[row] = hit ? 1.0 : 0.0;
}

__device__ void observe(const Env& env, int e, const Group& group, float* observations) {
    const size_t first = (size_t)e * env.num_axes;
#pragma unroll
    for (int axis = 0; axis < 2; ++axis) {
        observations[axis] = within(env.position[first + axis]);
        observations[2 + axis] = env.velocity[first + axis];
        observations[4 + axis] = env.target[first + axis];
    }
}
