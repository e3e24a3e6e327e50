// ocean/password: guess a fixed sequence of bits. ocean/password.py defines the rules.

__device__ void start(const Env& env, int e, const Group& group) {
    for (int k = 0; k < env.length; ++k) env.guesses[(size_t)e * env.length + k] = false;
}

__device__ void step(const Env& env, int e, int row, const Group& group) {
    bool* const guesses = env.guesses + (size_t)e * env.length;
    guesses[env.t[e] - 1] = action(env, e, 0, row, 2) == 1;
    if (env.t[e] < env.length) return;
    bool right = true;
    for (int k = 0; k < env.length; ++k) right &= guesses[k] == env.password[k];
    env.rewards[row] = right ? 1.0f : 0.0f;
    env.terminations[row] = true;
    env.scores[row] = right ? 1.0 : 0.0;
}

__device__ void observe(const Env& env, int e, const Group& group, float* observations) {
    for (int k = 0; k < env.length; ++k) {
        observations[k] = k < env.t[e] ? (float)env.guesses[(size_t)e * env.length + k] : -1.0f;
    }
}
