"""The compiled learner under sanitizers: its threads do not race, and it stays within its memory."""

from __future__ import annotations

from pathlib import Path

import kernel_programs
import pytest
from kernel_programs import REPORTED

from cuda_ext import sources

pytestmark = pytest.mark.beside

# Updates with every number of rows around the size of a tile, on more threads than there are groups of rows. All arrays
# are as long as they have to be, on the heap.
PROGRAM = """
#define DIGEST ""
#include "learner/main.h"

template <class T> T* filled(size_t count, T value) {
    T* const numbers = new T[count];
    for (size_t k = 0; k < count; ++k) numbers[k] = value;
    return numbers;
}

int main() {
    const int nvec[] = {3, 2}, num_inputs = 3, num_outputs = 7;
    const Network actor = {num_inputs, 3, TANH, {9, 5, num_outputs}}, critic = {num_inputs, 2, RELU, {20, 1}};
    size_t actor_size = 0, critic_size = 0;
    for (int layer = 0; layer < actor.num_layers; ++layer) actor_size += layer_size(actor, layer);
    for (int layer = 0; layer < critic.num_layers; ++layer) critic_size += layer_size(critic, layer);
    const auto aligned = [](size_t size) { return (int)((size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT); };
    for (int variant = 0; variant < learner_num_variants(); ++variant) {
        for (int num_rows : {1, 63, 64, 65, 1100}) {
            void* const learner = learner_open(3, 0);
            Update update = {};
            update.actor = actor;
            update.critic = critic;
            update.heads = {nvec, 2, 5, 2};
            update.objective = {PPO, 0.2f, 0.01f, 0.5f};
            update.learning_rate = 1e-3, update.beta1 = 0.9, update.beta2 = 0.999, update.epsilon = 1e-5;
            update.max_grad_norm = 0.5, update.advantage_floor = 0.1;
            update.log_std = aligned(actor_size);
            update.critic_weights = update.log_std + aligned(2);
            update.num_weights = update.critic_weights + aligned(critic_size);
            update.variant = variant;
            update.most_groups = 16;
            float** const vectors[] = {&update.weights, &update.means, &update.squares, &update.gradients};
            for (float** vector : vectors) *vector = filled(update.num_weights, 0.0f);
            for (int k = 0; k < update.num_weights; ++k) update.weights[k] = 0.01f * (k % 7);
            update.beta_powers = filled(2, 1.0);
            update.observations = filled(num_rows * num_inputs, 0.5f);
            update.discrete_actions = filled(num_rows * 2, 1ll);
            update.continuous_actions = filled(num_rows * 2, 0.5f);
            update.allowed = filled(num_rows * 5, (unsigned char)1);
            update.masks = filled(num_rows, (unsigned char)1);
            update.log_probs = filled(num_rows, -3.0f);
            update.advantages = filled(num_rows, 1.0f);
            update.returns = filled(num_rows, 1.0f);
            long long* const order = filled(num_rows, 0ll);
            for (int k = 0; k < num_rows; ++k) order[k] = num_rows - 1 - k;
            int* const bounds = filled(2, 0);
            bounds[1] = num_rows;
            update.order = order, update.bounds = bounds, update.num_minibatches = 1;
            update.terms = filled(NUM_TERMS + 1, 0.0);
            for (int k = 0; k < 3; ++k) learner_update(learner, &update);
            float* const outputs = filled(num_rows * num_outputs, 0.0f);
            learner_outputs(learner, &actor, update.weights, update.observations, num_rows, variant, outputs);
            Inference batch = {};
            batch.actor = actor, batch.critic = critic, batch.heads = update.heads;
            batch.log_std = update.log_std, batch.critic_weights = update.critic_weights;
            batch.variant = variant, batch.num_rows = num_rows;
            batch.weights = update.weights, batch.features = update.observations, batch.allowed = update.allowed;
            batch.exponentials = filled(num_rows * 5, 0.5f), batch.normals = filled(num_rows * 2, 0.5f);
            batch.outputs = filled(num_rows * num_outputs, 0.0f), batch.values = filled(num_rows, 0.0f);
            batch.discrete_actions = filled(num_rows * 2, 0ll);
            batch.continuous_actions = filled(num_rows * 2, 0.0f), batch.log_probs = filled(num_rows, 0.0f);
            batch.options = filled(5, 0.0f);
            learner_infer(learner, &batch);
            learner_draw(learner, &batch);
            learner_close(learner);
            if (!(update.terms[NUM_TERMS] > 0.0)) return 1;
        }
    }
    return 0;
}
"""


@pytest.mark.long
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_sanitizers_report_nothing(sanitizer: str, tmp_path: Path) -> None:
    assert kernel_programs.run(PROGRAM, tmp_path, sources.FOLDER, sanitizer) == (0, "")


FAULTS = {  # the program's text or a source's, and what a sanitizer would report
    "address,undefined": (PROGRAM, "filled(num_rows * 5, (unsigned char)1)", "filled(num_rows * 4, (unsigned char)1)"),
    "thread": ("learner/main.h", "thread_local Memory tile_memory", "Memory tile_memory"),
}


@pytest.mark.long
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_a_fault_would_be_reported(sanitizer: str, tmp_path: Path) -> None:
    where, sound, unsound = FAULTS[sanitizer]
    program = PROGRAM.replace(sound, unsound) if where is PROGRAM else PROGRAM
    kernel_programs.with_faults(tmp_path / "headers", [] if where is PROGRAM else [FAULTS[sanitizer]])
    code, _ = kernel_programs.run("#define PLAIN_ONLY\n" + program, tmp_path, tmp_path / "headers", sanitizer)
    assert code == REPORTED
