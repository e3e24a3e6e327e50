"""The compiled learner under sanitizers: its threads do not race, and it stays within its memory."""

from __future__ import annotations

from pathlib import Path

import kernel_programs
import pytest
from kernel_programs import REPORTED

from cuda_ext import sources

pytestmark = pytest.mark.beside

# An update of so many rows. All arrays are as long as they have to be, on the heap.
UPDATE = """
template <class T> T* filled(size_t count, T value) {
    T* const numbers = new T[count];
    for (size_t k = 0; k < count; ++k) numbers[k] = value;
    return numbers;
}

Update update_of(int num_rows, int variant, int most_groups) {
    static const int nvec[] = {3, 2};
    const int num_inputs = 3, num_outputs = 7;
    const Network actor = {num_inputs, 3, TANH, {64, 64, num_outputs}}, critic = {num_inputs, 2, RELU, {20, 1}};
    size_t actor_size = 0, critic_size = 0;
    for (int layer = 0; layer < actor.num_layers; ++layer) actor_size += layer_size(actor, layer);
    for (int layer = 0; layer < critic.num_layers; ++layer) critic_size += layer_size(critic, layer);
    const auto aligned = [](size_t size) { return (int)((size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT); };
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
    update.most_groups = most_groups;
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
    return update;
}
"""
# With every number of rows around the size of a tile, on more threads than there are groups of rows.
PROGRAM = (
    '#define DIGEST ""\n#include "learner/main.h"\n'
    + UPDATE
    + """
int main() {
    for (int variant = 0; variant < learner_num_variants(); ++variant) {
        for (int num_rows : {1, 63, 64, 65, 1100}) {
            void* const learner = learner_open(3, 0);
            const Update update = update_of(num_rows, variant, 16);
            const int num_outputs = outputs_of(update.actor);
            for (int k = 0; k < 3; ++k) learner_update(learner, &update);
            float* const outputs = filled(num_rows * num_outputs, 0.0f);
            learner_outputs(learner, &update.actor, update.weights, update.observations, num_rows, variant, outputs);
            Inference batch = {};
            batch.actor = update.actor, batch.critic = update.critic, batch.heads = update.heads;
            batch.log_std = update.log_std, batch.critic_weights = update.critic_weights;
            batch.variant = variant, batch.num_rows = num_rows;
            const int num_inputs = update.actor.num_inputs;
            batch.weights = update.weights, batch.allowed = update.allowed;
            batch.features = filled(num_rows * num_inputs, 3.0f);
            batch.is_scaled = filled(num_inputs, (unsigned char)1);
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
)


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


# ------------------------------------------------------------------------------------------- the kernels for devices

# Each kernel, a thread for each of CUDA, with rows of one tile, and of two in a group or in two groups.
DEVICE_PROGRAM = (
    "#include <cstdlib>\nstatic int fault = 0;\n"
    + sources.for_learner_checks(threads=True)
    + UPDATE
    + """
int rows_of_tile(const Network& network) {
    const int rows = TILE_FLOATS / row_size(network).all;
    return rows < TILE ? rows / 4 * 4 : TILE;
}

#define LAUNCH(name, arguments, num_blocks) if (name##_check(&arguments, num_blocks, 1)) return 1

int main(int, char** words) {
    if (words[1]) fault = atoi(words[1]);
    for (int number = 0; number < 3; ++number) {
        const int num_rows = number == 0 ? 1 : 70, num_groups = number == 2 ? 2 : 1;
        const Update update = update_of(num_rows, 0, num_groups);
        const int num_blocks = (update.num_weights + GROUP_SIZE - 1) / GROUP_SIZE;
        const int num_weight_blocks = num_blocks < MOST_BLOCKS ? num_blocks : MOST_BLOCKS;
        DeviceUpdate device = {};
        device.update = update;
        device.actor_rows = rows_of_tile(update.actor), device.critic_rows = rows_of_tile(update.critic);
        device.learning_rate = filled(1, 1e-3);
        device.statistics = new Statistics[1]();
        device.transposed = filled(transposed_size(update.actor) + transposed_size(update.critic), 0.0f);
        device.gradients = filled(num_groups * update.num_weights, 0.0f);
        device.group_terms = filled(num_groups * NUM_TERMS, 0.0);
        device.next_step = new ScaledStep[1]();
        LAUNCH(learner_statistics, device, 1);
        LAUNCH(learner_transpose, device, 2);
        LAUNCH(learner_gradients, device, 2 * num_groups);
        LAUNCH(learner_sum, device, num_weight_blocks);
        LAUNCH(learner_norm, device, 1);
        LAUNCH(learner_step, device, num_weight_blocks);
        if (!(update.terms[NUM_TERMS] > 0.0)) return 2;
        DeviceOutputs outputs = {};
        outputs.network = update.actor;
        outputs.num_rows = num_rows, outputs.tile_rows = rows_of_tile(update.actor);
        outputs.weights = update.weights, outputs.inputs = update.observations;
        outputs.is_scaled = filled(update.actor.num_inputs, (unsigned char)1);
        outputs.features = filled(num_rows * update.actor.num_inputs, 0.0f);
        outputs.outputs = filled(num_rows * outputs_of(update.actor), 0.0f);
        LAUNCH(learner_outputs, outputs, (num_rows + outputs.tile_rows - 1) / outputs.tile_rows);
        DeviceAdvantages rollout = {};
        rollout.num_steps = 1, rollout.num_agents = num_rows;
        rollout.rewards = update.returns, rollout.values = filled(2 * num_rows, 0.5f);
        rollout.terminations = rollout.truncations = rollout.masks = update.masks;
        rollout.gamma = rollout.gae_lambda = 0.9f;
        rollout.advantages = filled(num_rows, 0.0f), rollout.returns = filled(num_rows, 0.0f);
        LAUNCH(learner_advantages, rollout, 1);
    }
    return 0;
}
"""
)
PASSES, STATISTICS, DEVICE = (f"learner/{name}.cuh" for name in ("passes", "statistics", "device"))
SYNC, NO_SYNC = "group.sync();", "if (!FAULT) group.sync();"


def without_sync(file: str, before: str, after: str) -> tuple[str, str, str]:
    """Return a fault: a barrier between two texts that no thread waits at."""
    return file, f"{before}{SYNC}{after}", f"{before}{NO_SYNC}{after}"


RACES = {
    "the next tile's inputs": without_sync(PASSES, "", "  // the last tile's gradient is complete"),
    "inputs before they are read": without_sync(PASSES, "", "\n        float* const outputs = pass_forward"),
    "products before their activation": without_sync(PASSES, "", "\n        if (layer + 1 < network.num_layers)"),
    "activations before the next layer": without_sync(
        PASSES, "network.activation, group);\n            ", "\n        }\n        weights +="
    ),
    "derivatives of outputs": without_sync(
        PASSES, "", "\n        for (int k = group.rank; k < NUM_TERMS; k += group.size) {"
    ),
    "derivatives of units": without_sync(PASSES, "", "\n        deactivate("),
    "derivatives of a layer": without_sync(PASSES, "", "\n        slopes = next;"),
    "sums of tiles": without_sync(STATISTICS, "tile_sums[group.rank] = tile;\n        ", ""),
    "sums of squares": without_sync(DEVICE, "", "\n    if (group.rank > 0) return;\n    double total"),
    "features before they are read": without_sync(DEVICE, "", "\n    }\n    device::compute_outputs"),
}
OVERFLOWS = {
    "transposed weights": (PASSES, "k < num_outputs * row_size;", "k < num_outputs * row_size + FAULT;"),
    "the sum's weights": (DEVICE, "if (k >= num_weights ||", "if ((!FAULT && k >= num_weights) ||"),
    "the step's weights": (DEVICE, "if (k >= update.num_weights ||", "if ((!FAULT && k >= update.num_weights) ||"),
    "a minibatch's rows": (STATISTICS, "= begin + TILE < minibatch.num", "= FAULT || begin + TILE < minibatch.num"),
    "a rollout's agents": (DEVICE, "(agent >= arguments.num_agents)", "(!FAULT && agent >= arguments.num_agents)"),
}
DEVICE_FAULTS = {"thread": RACES, "address,undefined": OVERFLOWS}
# Of weights. They follow one another, so that threads of different blocks cannot race.
MOST_BLOCKS = {"thread": "#define MOST_BLOCKS 2\n", "address,undefined": "#define MOST_BLOCKS 1000000\n"}
NUM_THREADS = "#define GROUP_SIZE 256", "#define GROUP_SIZE 64"  # of a block; the host switches between them


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_sanitizers_find_the_faults_of_a_device_and_nothing_else(sanitizer: str, tmp_path: Path) -> None:
    faults = DEVICE_FAULTS[sanitizer]
    kernel_programs.with_faults(tmp_path / "headers", faults.values())
    header = tmp_path / "headers" / DEVICE
    assert NUM_THREADS[0] in header.read_text()
    header.write_text(header.read_text().replace(*NUM_THREADS))
    binary = kernel_programs.build(MOST_BLOCKS[sanitizer] + DEVICE_PROGRAM, tmp_path, tmp_path / "headers", sanitizer)
    assert kernel_programs.play(binary, sanitizer) == (0, "")
    codes = {name: kernel_programs.play(binary, sanitizer, number)[0] for number, name in enumerate(faults, 1)}
    assert codes == dict.fromkeys(faults, REPORTED)
