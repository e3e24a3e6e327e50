// The kernel of catch.py: a fruit falls, and a basket moves below it. One thread plays one environment.

enum { START = 1 };  // the purpose of random numbers

__device__ void start(const Env& env, int e, const Group& group) {
    const Words words = philox(env.seed[e], env.episode[e], 0, 0, START);
    env.fruit[e] = below(words.w[0], env.width);
    env.basket[e] = below(words.w[1], env.width);
}

__device__ void step(const Env& env, int e, int row, const Group& group) {
    const int target = env.basket[e] + action(env, e, 0, row, 3) - 1;
    env.basket[e] = target < 0 ? 0 : target >= env.width ? env.width - 1 : target;
    if (env.t[e] < env.height) return;
    env.terminations[row] = true;
    env.rewards[row] = env.basket[e] == env.fruit[e] ? 1.0f : -1.0f;
}

__device__ void observe(const Env& env, int e, const Group& group, float* observations) {
    observations[0] = (float)env.fruit[e] / (float)env.width;
    observations[1] = (float)env.basket[e] / (float)env.width;
    observations[2] = (float)env.t[e] / (float)env.height;
}
