// ocean/bandit: pull one of several arms, only one of which pays. ocean/bandit.py defines the rules.

enum { NOISE = 1 };  // purposes of random numbers

__device__ void start(const Env& env, int e, const Group& group) {
    env.noise[e] = 0.0;
    if (env.reward_noise[0] == 0.0) return;
    double sum = 0.0;
    for (int block = 0; block < 3; ++block) {
        const Words words = philox(env.seed[e], env.episode[e], 0, 0, NOISE, block);
        for (int k = 0; k < 4; ++k) sum += (double)uniform(words.w[k]);
    }
    env.noise[e] = (sum - 6.0) * env.reward_noise[0];
}

__device__ void step(const Env& env, int e, int row, const Group& group) {
    const double score = action(env, e, 0, row, env.num_actions) == env.best_arm ? 1.0 : 0.0;
    env.rewards[row] = (float)((score + env.noise[e]) * env.reward_scale[0]);
    env.terminations[row] = true;
    env.scores[row] = score;
}

__device__ void observe(const Env& env, int e, const Group& group, float* observations) { observations[0] = 1.0f; }
