// The functions that a library for the host exports for learners. Those with a learner share its threads; calls for one
// learner must not overlap.
#pragma once
#include <math.h>
#include <stdlib.h>

#include <atomic>

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "host.h"
#include "host_threads.h"
#include "learner/statistics.cuh"

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

#define VARIANT plain
#define TARGET
#define WIDTH 4
#include "learner/variant.h"
#undef VARIANT
#undef TARGET
#undef WIDTH

#if defined(__x86_64__) && !defined(PLAIN_ONLY)
#define VARIANT avx2
#define TARGET __attribute__((target("avx2,fma")))
#define WIDTH 8
#include "learner/variant.h"
#undef VARIANT
#undef TARGET
#undef WIDTH

#define VARIANT avx512
// Without prefer-vector-width, for which clang would ignore all of it.
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma")))
#define WIDTH 16
#include "learner/variant.h"
#undef VARIANT
#undef TARGET
#undef WIDTH
#endif

struct Functions {
    decltype(&plain::compute_outputs) compute_outputs;
    decltype(&plain::learn_from_group) learn_from_group;
    decltype(&plain::transpose) transpose;
    decltype(&plain::add_groups) add_groups;
    decltype(&plain::step) step;
};

#define FUNCTIONS(name) {name::compute_outputs, name::learn_from_group, name::transpose, name::add_groups, name::step}
constexpr Functions VARIANTS[] = {
    FUNCTIONS(plain),
#if defined(__x86_64__) && !defined(PLAIN_ONLY)
    FUNCTIONS(avx2),
    FUNCTIONS(avx512),
#endif
};

// The number of variants that this processor can run: each can run all before the last.
int num_variants() {
#if defined(__x86_64__) && !defined(PLAIN_ONLY)
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 1;
    const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return wide ? 3 : 2;
#else
    return 1;
#endif
}

const Functions& functions_of(int variant) { return VARIANTS[variant < 0 ? num_variants() - 1 : variant]; }

// Aligned memory that grows with the largest request. A request leaves its contents undefined, and returns null if the
// memory cannot be had.
class Memory {
  public:
    Memory() = default;
    Memory(const Memory&) = delete;
    ~Memory() { free(data_); }

    float* floats(size_t count) {
        if (count <= size_) return data_;
        free(data_);
        size_ = (count + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        data_ = (float*)aligned_alloc(64, size_ * sizeof(float));
        if (data_ == nullptr) size_ = 0;
        return data_;
    }

  private:
    float* data_ = nullptr;
    size_t size_ = 0;
};

thread_local Memory tile_memory;

constexpr Group ALONE = {0};  // a thread of the host

// The floats that a tile's memory takes.
size_t tile_size(const Network& network) { return (size_t)TILE * row_size(network).all; }

struct Learner {
    host::ThreadPool threads;
    Memory transposed, gradients, terms;
    std::atomic<long long> lacking{0};  // the bytes that a call could not allocate

    // Returns memory, or null, after which the call ends with the number of bytes in lacking.
    float* floats(Memory& memory, size_t count) {
        float* const data = memory.floats(count);
        if (data == nullptr) lacking.store((long long)(count * sizeof(float)));
        return data;
    }

    // As ThreadPool::run, with a tile's memory for each part: part(first, last, memory). Returns false without memory.
    template <class Part> bool run(int num_items, int grain, size_t num_floats, const Part& part) {
        threads.run(num_items, grain, [&](int first, int last) {
            float* const memory = floats(tile_memory, num_floats);
            if (memory != nullptr) part(first, last, memory);
        });
        return lacking.load() == 0;
    }
};

// Learns from one minibatch, or changes no weight if memory is lacking.
// terms: out: NUM_TERMS means and the gradient's norm.
void learn(Learner& learner, const Update& update, const long long* rows, int num_rows, double* terms) {
    const Functions& functions = functions_of(update.variant);
    Minibatch minibatch = {};
    minibatch.rows = rows;
    minibatch.num_rows = num_rows;
    for (int k = 0; k <= NUM_TERMS; ++k) terms[k] = 0.0;
    RowSum tile_sum;
    if (measure(update, minibatch, &tile_sum, ALONE) == 0) return;
    divide(minibatch, update.most_groups);
    const size_t actor_size = transposed_size(update.actor);
    float* const transposed = learner.floats(learner.transposed, actor_size + transposed_size(update.critic));
    minibatch.gradients = learner.floats(learner.gradients, (size_t)minibatch.num_groups * update.num_weights);
    minibatch.terms = (double*)learner.floats(learner.terms, (size_t)minibatch.num_groups * NUM_TERMS * 2);
    if (learner.lacking.load() != 0) return;
    functions.transpose(update.actor, update.weights, transposed, ALONE);
    functions.transpose(update.critic, update.weights + update.critic_weights, transposed + actor_size, ALONE);
    minibatch.actor_transposed = transposed;
    minibatch.critic_transposed = transposed + actor_size;

    const size_t actor_floats = tile_size(update.actor), critic_floats = tile_size(update.critic);
    const size_t num_floats = actor_floats > critic_floats ? actor_floats : critic_floats;
    const bool is_done = learner.run(2 * minibatch.num_groups, 1, num_floats, [&](int first, int last, float* memory) {
        for (int index = first; index < last; ++index) {
            functions.learn_from_group(update, minibatch, index, memory, TILE, ALONE);
        }
    });
    if (!is_done) return;

    for (int group = 0; group < minibatch.num_groups; ++group) {
        for (int k = 0; k < NUM_TERMS; ++k) terms[k] += minibatch.terms[group * NUM_TERMS + k];
    }
    const double norm = sqrt(functions.add_groups(minibatch, update.num_weights, update.gradients));
    terms[NUM_TERMS] = norm;
    const ScaledStep next = next_step(update, update.learning_rate, norm);
    functions.step(next, update.num_weights, update.gradients, update.weights, update.means, update.squares);
}

// Reads the numbers of rows from first to last as features: those of is_scaled on a logarithmic scale, others unchanged.
// features may be numbers.
void read_numbers(const unsigned char* is_scaled, int num_inputs, size_t first, size_t last,
                  const float* numbers, float* features) {
    for (size_t row = first; row < last; ++row) {
        for (int k = 0; k < num_inputs; ++k) {
            const float number = numbers[row * num_inputs + k];
            features[row * num_inputs + k] = is_scaled[k] ? scaled(number) : number;
        }
    }
}

}  // namespace

// num_threads: the most to use, including the caller's. worth_ns: the work that justifies another thread.
EXPORTED void* learner_open(int num_threads, double worth_ns) {
    return new Learner{{num_threads, worth_ns}, {}, {}, {}, {}};
}

EXPORTED void learner_close(void* learner) { delete (Learner*)learner; }

EXPORTED int learner_num_variants() { return num_variants(); }

// The next four functions return 0; or the number of bytes that could not be allocated, and do no more after that.

EXPORTED long long learner_update(void* opened, const Update* update) {
    Learner& learner = *(Learner*)opened;
    for (int k = 0; k < update->num_minibatches && learner.lacking.load() == 0; ++k) {
        const int begin = update->bounds[k];
        learn(learner, *update, update->order + begin, update->bounds[k + 1] - begin,
              update->terms + k * (NUM_TERMS + 1));
    }
    return learner.lacking.exchange(0);
}

// Writes a network's outputs, num_rows rows.
EXPORTED long long learner_outputs(void* opened, const Network* network, const float* weights,
                                   const float* observations, int num_rows, int variant, float* outputs) {
    Learner& learner = *(Learner*)opened;
    const Functions& functions = functions_of(variant);
    learner.run(num_rows, TILE, tile_size(*network), [&](int first, int last, float* memory) {
        functions.compute_outputs(*network, weights, observations, first, last, memory, TILE, outputs, ALONE);
    });
    return learner.lacking.exchange(0);
}

// Writes the actor's outputs and the critic's values. is_scaled: see Inference.
EXPORTED long long learner_infer(void* opened, const Inference* batch) {
    Learner& learner = *(Learner*)opened;
    const Functions& functions = functions_of(batch->variant);
    if (batch->is_scaled != nullptr) {
        read_numbers(batch->is_scaled, batch->actor.num_inputs, 0, batch->num_rows, batch->features, batch->features);
    }
    const auto compute = [&](const Network& network, const float* weights, float* outputs) {
        learner.run(batch->num_rows, TILE, tile_size(network), [&](int first, int last, float* memory) {
            functions.compute_outputs(network, weights, batch->features, first, last, memory, TILE, outputs, ALONE);
        });
    };
    compute(batch->actor, batch->weights, batch->outputs);
    compute(batch->critic, batch->weights + batch->critic_weights, batch->values);
    return learner.lacking.exchange(0);
}

// Draws actions from the outputs that learner_infer has written.
EXPORTED long long learner_draw(void*, const Inference* batch) {
    const Heads& heads = batch->heads;
    const size_t num_outputs = heads.num_options + heads.num_continuous;
    for (size_t row = 0; row < (size_t)batch->num_rows; ++row) {
        batch->log_probs[row] = draw_action(
            heads, batch->allowed == nullptr ? nullptr : batch->allowed + row * heads.num_options,
            batch->weights + batch->log_std, batch->exponentials, batch->num_rows, row,
            batch->normals + row * heads.num_continuous, batch->outputs + row * num_outputs, batch->options,
            batch->discrete_actions + row * heads.num_discrete,
            batch->continuous_actions + row * heads.num_continuous);
    }
    return 0;
}

// Returns -1, and plays no further step, if a launch refuses to play.
EXPORTED long long learner_play(void* opened, const Play* arguments) {
    Learner& learner = *(Learner*)opened;
    const Play& steps = *arguments;
    const Functions& functions = functions_of(steps.variant);
    const int num_inputs = steps.actor.num_inputs, num_outputs = outputs_of(steps.actor);
    const size_t num_floats = tile_size(steps.actor);
    const float* observations = steps.inputs;
    float* logits = steps.logits;
    for (int step = 0; step < steps.num_steps; ++step) {
        const auto part = [&](int first, int last, float* memory) {
            read_numbers(steps.is_scaled, num_inputs, first, last, observations, steps.features);
            functions.compute_outputs(steps.actor, steps.weights, steps.features, first, last, memory, TILE,
                                      logits, ALONE);
        };
        if (!learner.run(steps.num_rows, TILE, num_floats, part)) return learner.lacking.exchange(0);
        const int first_slot = step * steps.slot_step;
        memcpy(steps.launch + steps.first_slot, &first_slot, sizeof first_slot);
        if (steps.play(steps.pool, steps.launch)) return -1;
        const size_t shift = steps.slot_step == 0 ? 0 : steps.num_rows;
        observations = steps.observations + step * shift * num_inputs;
        logits += shift * num_outputs;
    }
    return 0;
}

// Writes advantages, (num_steps, num_agents), 0 where the mask is unset. values: (num_steps + 1, num_agents).
EXPORTED void learner_advantages(int num_steps, int num_agents, const float* rewards, const float* values,
                                 const unsigned char* terminations, const unsigned char* truncations,
                                 const unsigned char* masks, float gamma, float gae_lambda, float* advantages) {
    for (int step = num_steps - 1; step >= 0; --step) {
        const size_t begin = (size_t)step * num_agents;
        const float* const next = step + 1 < num_steps ? advantages + begin + num_agents : nullptr;
        for (int agent = 0; agent < num_agents; ++agent) {
            const size_t k = begin + agent;
            advantages[k] =
                advantage_of(rewards[k], values[k], values[k + num_agents], terminations[k] != 0, truncations[k] != 0,
                             masks[k] != 0, gamma, gae_lambda, next == nullptr ? 0.0f : next[agent]);
        }
    }
}

EXPORTED const char* learner_digest() { return DIGEST; }
