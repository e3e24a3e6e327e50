// ocean/stochastic: play one of two actions a given share of the time. ocean/stochastic.py defines the rules.

__device__ void start(const Env& env, int e, const Group& group) { env.num_zeros[e] = 0; }

__device__ void step(const Env& env, int e, int row, const Group& group) {
    const bool zero = action(env, e, 0, row, 2) == 0;
    const int num_zeros = env.num_zeros[e] + zero;
    env.num_zeros[e] = num_zeros;
    const double share = (double)num_zeros / env.t[e], away = env.p[0] - share, proximity = 1.0 - away * away;
    env.rewards[row] = zero == (share < env.p[0]) ? (float)proximity : 0.0f;
    if (env.t[e] < env.horizon) return;
    env.terminations[row] = true;
    env.scores[row] = proximity;
}

__device__ void observe(const Env& env, int e, const Group& group, float* observations) { observations[0] = 1.0f; }
