"""The learner's kernels for devices, played on fibres: the results are the host learner's to the bit."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from devices import LOOPS, ON_HOST_AND_DEVICE, Player, assert_same_bits
from hypothesis import example, given, settings
from learner_cases import CASES, Case, fused_of, outcomes_of
from stand_in_cupy import StandIn

from cleanrl_demo.ppo_fused import Config, Learner
from cuda_ext import nvrtc
from cuda_ext.learner import device as device_form
from cuda_ext.learner.device import DeviceLearner, DeviceRows
from cuda_ext.occupancy import MULTIPROCESSORS
from pufferlib.errors import KernelError, SpaceError
from pufferlib.models import Origin

pytestmark = pytest.mark.beside

# More groups than one, of tiles that do not divide them; and a minibatch without valid rows.
LARGE = Case(num_inputs=5, hidden=(33, 64, 17), num_rows=1500, num_minibatches=1)
WIDE = Case(num_inputs=20, hidden=(64, 64), num_rows=300)  # whose products read vectors of four
WITHOUT_ROWS = Case(19, (1,), "relu", (1, 3, 6), 3, 4, 2, False, True, seed=408474)
ARRAYS = ("weights", "gradients", "means", "squares", "beta_powers")


def rows_of(case: Case, device: str = "cpu") -> DeviceRows:
    columns = vars(case.rows()).values()
    tensors: Any = [None if column is None else torch.from_numpy(column).to(device) for column in columns]
    return DeviceRows(*tensors)


def compare_bits(case: Case, device: str = "cpu", num_epochs: int = 2) -> None:
    host, other = fused_of(case), DeviceLearner(fused_of(case), device)
    rows, tensors = case.rows(), rows_of(case, device)
    other.learning_rate.fill_(1e-2)
    for epoch in range(num_epochs):
        minibatches = case.minibatches(epoch)
        terms = host.update(rows, minibatches, 1e-2)
        actual = other.update(tensors, [torch.from_numpy(minibatch).to(device) for minibatch in minibatches])
        assert_same_bits(actual, terms, "terms")
        for name in ARRAYS:
            assert_same_bits(getattr(other, name), getattr(host, name), name)
    assert_same_bits(other.values(tensors.features), host.values(rows.features), "values")


@given(case=CASES)
@example(case=LARGE)
@example(case=replace(LARGE, most_groups=24, num_minibatches=2))
@example(case=WIDE)
@example(case=WITHOUT_ROWS)
@settings(max_examples=12, deadline=None)
def test_an_update_has_the_bits_of_the_hosts(case: Case) -> None:
    compare_bits(case)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "case", [Case(), LARGE, replace(LARGE, activation="relu", objective="a2c"), WIDE, WITHOUT_ROWS]
)
def test_on_a_gpu_an_update_has_the_bits_of_the_hosts(case: Case, device: str) -> None:
    compare_bits(case, device.replace("host", "cpu"))


@pytest.mark.parametrize("player", ON_HOST_AND_DEVICE, indirect=True)
def test_advantages_have_the_bits_of_the_hosts(player: Player) -> None:
    compare_advantage_bits(player.device.replace("host", "cpu"))


def compare_advantage_bits(device: str) -> None:
    columns = outcomes_of()
    tensors = [torch.from_numpy(column).to(device) for column in columns]
    expected = fused_of(Case()).advantages(*columns, gamma=0.9, gae_lambda=0.8)
    advantages, returns = DeviceLearner(fused_of(Case()), device).advantages(*tensors, gamma=0.9, gae_lambda=0.8)
    assert_same_bits(advantages, expected)
    assert_same_bits(returns, expected + columns[1][:-1])


@pytest.mark.parametrize("player", ON_HOST_AND_DEVICE, indirect=True)
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("env", ["tag/grid", "tag/continuous", "ocean/continuous"])
def test_a_rollout_has_the_bits_of_the_hosts(env: str, keep: bool, player: Player) -> None:
    device = player.device.replace("host", "cpu")
    with LOOPS.make(env, num_envs=3, seed=1) as vec, player.make(env, num_envs=3, seed=1) as other:
        trainer = Learner(vec, Origin(), Config(env=env, num_envs=3, runs=None))
        learner = trainer.fused
        if env == "ocean/continuous":
            with torch.no_grad():
                trainer.actor.policy.log_std.copy_(torch.tensor([0.2, -1.0]))
            learner.load()
        vec.reset()
        other.reset()
        for _ in range(2):  # the second continues where the first ended
            expected = vec.rollout(6, policy=learner, keep=keep)
            actual = other.rollout(6, policy=DeviceLearner(learner, device), keep=keep)
            for name in ("actions", "log_probs", "entropies", "observations", "rewards", "masks"):
                assert_same_bits(getattr(actual, name), getattr(expected, name), name)


def test_minibatches_without_rows_change_nothing() -> None:
    case, rows = Case(), rows_of(Case())
    one, other = (DeviceLearner(fused_of(case), "cpu") for _ in range(2))
    none, some = torch.arange(0), torch.arange(40)
    terms = one.update(rows, [none, some, none])
    assert_same_bits(terms[1:2], other.update(rows, [some]))
    assert not terms[::2].any() and not one.update(rows, [none]).any()
    assert one.update(rows, []).shape == (0, 6)
    for name in ARRAYS:
        assert_same_bits(getattr(one, name), getattr(other, name), name)


def test_learnt_weights_reach_the_torch_networks() -> None:
    case = Case()
    learner = fused_of(case)
    before = learner.weights.copy()
    other = DeviceLearner(learner, "cpu")
    other.learning_rate.fill_(1e-2)
    other.update(rows_of(case), [torch.arange(case.num_rows)])
    assert_same_bits(learner.weights, before)
    other.save()
    assert (learner.weights != before).any()
    parameters = learner._parameters()
    for parameter, expected in zip(parameters, learner.by_parameter(learner.weights), strict=True):
        assert_same_bits(parameter, expected)
    assert_same_bits(DeviceLearner(learner, "cpu").beta_powers, other.beta_powers)


def test_cupy_is_handed_what_the_fibres_play(monkeypatch: pytest.MonkeyPatch) -> None:
    """The structures, as bytes, and the number of blocks."""
    case, played = Case(), []

    def play(name: str, arguments: Any, num_blocks: int) -> None:
        played.append(name)
        check = getattr(device_form._library_of_fibres(), f"{name}_check")
        assert check(ctypes.c_char_p(arguments.tobytes()), num_blocks, 0) is None

    monkeypatch.setitem(sys.modules, "cupy", StandIn(play))
    monkeypatch.setattr(nvrtc, "learner_cubin_file", lambda architecture: architecture)
    monkeypatch.setattr(device_form, "_OnFibres", device_form._OnDevice)
    compare_bits(case)
    assert {*played} >= {"learner_statistics", "learner_gradients", "learner_step", "learner_outputs"}


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("features", lambda part: part.double(), r"features are torch.float64 \(150, 3\) on cpu; they have to be"),
        ("returns", lambda part: part[:-1], r"returns are torch.float32 \(149,\) on cpu"),
        ("log_probs", lambda part: torch.stack([part, part], 1)[:, 0], "log_probs are .* on cpu, not contiguous"),
        ("masks", lambda part: part.to("meta"), r"masks are torch.bool \(150,\) on meta; .*, torch.bool .* on cpu"),
    ],
)  # fmt: skip
def test_tensors_that_do_not_fit_are_refused(name: str, change: Any, reason: str) -> None:
    rows = rows_of(Case())
    rows = replace(rows, **{name: change(getattr(rows, name))})
    with pytest.raises(SpaceError, match=reason):
        DeviceLearner(fused_of(Case()), "cpu").update(rows, [torch.arange(10)])


def test_actions_and_rows_that_do_not_exist_are_read_as_the_nearest() -> None:
    rows, learner = rows_of(Case()), DeviceLearner(fused_of(Case()), "cpu")
    learner.update(replace(rows, discrete_actions=rows.discrete_actions + 9), [torch.tensor([-5, 3, 999])])
    expected = DeviceLearner(fused_of(Case()), "cpu")
    last = torch.tensor(Case().nvec).expand(150, 2) - 1
    expected.update(replace(rows, discrete_actions=last), [torch.tensor([0, 3, 149])])
    assert_same_bits(learner.gradients, expected.gradients)


def test_a_row_that_does_not_fit_on_the_chip_is_refused() -> None:
    with pytest.raises(KernelError, match=r"a row of the policy takes 48,\d+ bytes of shared memory, .* are 45,056"):
        DeviceLearner(fused_of(Case(hidden=(4000,))), "cpu")


def test_sizes_are_those_of_the_source() -> None:
    """Where they must be known in both languages."""
    source = (device_form.sources.FOLDER / "learner" / "device.cuh").read_text()
    assert f"#define GROUP_SIZE {device_form.BLOCK_SIZE} " in source
    assert f"TILE_FLOATS = {device_form.TILE_FLOATS};" in source


# The most registers of a thread, and bytes of shared memory of a block.
MOST = {
    "learner_statistics": (48, 4096),
    "learner_transpose": (40, 0),
    "learner_gradients": (96, 45056),
    "learner_sum": (40, 0),
    "learner_norm": (40, 64),
    "learner_step": (32, 0),
    "learner_outputs": (104, 45056),
    "learner_advantages": (40, 0),
}


@pytest.mark.long
@pytest.mark.parametrize("architecture", MULTIPROCESSORS)
def test_registers_and_shared_memory_suffice(architecture: str) -> None:
    cubins = nvrtc.compiled_learner(architecture)
    assert {*cubins} == {*MOST}
    for name, cubin in cubins.items():
        assert cubin.code[:4] == b"\x7fELF"
        assert cubin.spilled_nbytes == cubin.stack_nbytes == 0, name
        assert cubin.num_registers <= MOST[name][0], name
        assert cubin.shared_nbytes <= MOST[name][1], name
