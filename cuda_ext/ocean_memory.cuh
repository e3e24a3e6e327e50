// ocean/memory: repeat a sequence of bits after a pause. ocean/memory.py defines the rules.

enum { BITS = 1 };  // purposes of random numbers

__device__ void start(const Env& env, int e, const Group& group) {
    const size_t first = (size_t)e * env.length;
    for (int begin = 0; begin < env.length; begin += 4) {
        const Words words = philox(env.seed[e], env.episode[e], 0, 0, BITS, begin / 4);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            if (begin + k >= env.length) break;
            env.bits[first + begin + k] = below(words.w[k], 2) == 1;
            env.answers[first + begin + k] = false;
        }
    }
}

__device__ void step(const Env& env, int e, int row, const Group& group) {
    const int answer = env.t[e] - 1 - env.length - env.delay;  // of the recall; negative before it
    if (answer < 0) return;
    const bool* const bits = env.bits + (size_t)e * env.length;
    bool* const answers = env.answers + (size_t)e * env.length;
    const bool bit = action(env, e, 0, row, 2) == 1;
    answers[answer] = bit;
    env.rewards[row] = bit == bits[answer] ? 1.0f : 0.0f;
    if (answer + 1 < env.length) return;
    bool right = true;
    for (int k = 0; k < env.length; ++k) right &= answers[k] == bits[k];
    env.terminations[row] = true;
    env.scores[row] = right ? 1.0 : 0.0;
}

__device__ void observe(const Env& env, int e, const Group& group, float* observations) {
    const int t = env.t[e];
    observations[0] = t >= env.length ? 0.0f : env.bits[(size_t)e * env.length + t] ? 1.0f : -1.0f;
}
