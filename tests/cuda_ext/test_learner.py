"""The compiled learner: torch's autograd is the reference for its losses, gradients and weights.

Its results are the same to the bit for every instruction set and any number of threads.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, MultiDiscrete, Tuple
from hypothesis import HealthCheck, Phase, assume, example, given, settings
from hypothesis import strategies as st
from kernel_functions import COMPILER, FLAGS, ROOT
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from cuda_ext import sources
from cuda_ext.learner import fused
from cuda_ext.learner.fused import TERMS, FusedLearner, Rows, Settings
from cuda_ext.learner.library import VARIANTS, library, with_signatures
from pufferlib.errors import CallError, ClosedError, KernelError, PlanError, SpaceError
from pufferlib.models import Decisions

pytestmark = pytest.mark.beside


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """torch with one thread: others only wait for the small operations here."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU}


@dataclass(frozen=True)
class Case:
    """Networks, actions and rows to learn from, drawn with a seed."""

    num_inputs: int = 3
    hidden: tuple[int, ...] = (9, 5)
    activation: str = "tanh"
    nvec: tuple[int, ...] = (3, 2)
    num_continuous: int = 2
    num_rows: int = 150
    num_minibatches: int = 2
    has_forbidden: bool = True  # options
    has_absent: bool = True  # rows
    objective: str = "ppo"
    max_grad_norm: float = 0.5
    clip: float = 0.2
    value_coefficient: float = 0.5
    advantage_floor: float = 0.1
    advantage_scale: float = 1.0
    seed: int = 0

    def settings(self) -> Settings:
        return Settings(
            self.objective,
            clip=self.clip,
            entropy_coefficient=0.05,
            value_coefficient=self.value_coefficient,
            advantage_floor=self.advantage_floor,
            max_grad_norm=self.max_grad_norm,
        )

    def networks(self) -> tuple[nn.Sequential, nn.Sequential, nn.Parameter]:
        torch.manual_seed(self.seed)

        def network(num_outputs: int) -> nn.Sequential:
            widths = (self.num_inputs, *self.hidden)
            layers = [
                part
                for inputs, outputs in itertools.pairwise(widths)
                for part in (nn.Linear(inputs, outputs), ACTIVATIONS[self.activation]())
            ]
            return nn.Sequential(*layers, nn.Linear(widths[-1], num_outputs))

        return (
            network(sum(self.nvec) + self.num_continuous),
            network(1),
            nn.Parameter(0.3 * torch.randn(self.num_continuous)),
        )

    def rows(self) -> Rows:
        generator = np.random.default_rng(self.seed)
        count, num_options = self.num_rows, sum(self.nvec)

        def normal(*shape: int) -> Any:
            return generator.normal(size=shape).astype(np.float32)

        allowed = generator.random((count, num_options)) < 0.7
        allowed[: count // 10] = False  # rows in which nothing is allowed, as those of absent agents
        actions = np.zeros((count, len(self.nvec)), np.int64)
        for part, (n, first) in enumerate(zip(self.nvec, np.cumsum((0, *self.nvec)), strict=False)):
            preference = generator.random((count, n)) + (allowed[:, first : first + n] if self.has_forbidden else 0)
            actions[:, part] = preference.argmax(1)
        return Rows(
            normal(count, self.num_inputs),
            actions,
            normal(count, self.num_continuous),
            -1.5 * generator.random(count).astype(np.float32) * (len(self.nvec) + self.num_continuous),
            np.float32(self.advantage_scale) * (2 * normal(count) + 1),
            normal(count),
            allowed if self.has_forbidden else None,
            generator.random(count) < 0.8 if self.has_absent else None,
        )

    def minibatches(self, epoch: int = 0) -> list[np.ndarray]:
        shuffled = np.random.default_rng([self.seed, epoch]).permutation(self.num_rows)
        return np.array_split(shuffled, self.num_minibatches)


class Reference:
    """The same learner in torch, in float64.

    kink_distance: the smallest input of a ReLU so far, without its sign. If it is as small as an error of float32, the
    compiled learner may place the unit on the other side of 0.
    """

    def __init__(self, case: Case) -> None:
        actor, critic, log_std = case.networks()
        self.actor, self.critic = actor.double(), critic.double()
        self.log_std = nn.Parameter(log_std.detach().double())
        self.parameters = [*self.actor.parameters(), *self.critic.parameters(), self.log_std]
        self.gradients = [torch.zeros_like(part) for part in self.parameters]
        self.optimizer = torch.optim.Adam(self.parameters, 1.0, eps=1e-5)
        parts: list[Any] = [MultiDiscrete(list(case.nvec))] if case.nvec else []
        parts += [Box(-1, 1, (case.num_continuous,))] if case.num_continuous else []
        self.decisions = Decisions(Tuple(parts))
        self.settings = case.settings()
        self.kink_distance = np.inf
        for part in (*self.actor, *self.critic):
            if isinstance(part, nn.ReLU):
                part.register_forward_pre_hook(self.measure)

    def measure(self, relu: nn.Module, inputs: tuple[torch.Tensor]) -> None:
        self.kink_distance = min(self.kink_distance, float(inputs[0].detach().abs().min()))

    def update(self, rows: Rows, minibatch: np.ndarray, learning_rate: float) -> dict[str, float]:
        """Take a step of Adam, and return the terms."""
        settings = self.settings
        if rows.masks is not None:
            minibatch = minibatch[rows.masks[minibatch]]
        if not len(minibatch):
            return dict.fromkeys(TERMS, 0.0)

        def column(values: Any) -> Tensor:
            tensor = torch.from_numpy(values[minibatch])
            return tensor.double() if tensor.is_floating_point() else tensor

        features = column(rows.features)
        mask = None if rows.allowed is None else column(rows.allowed)
        outputs = self.decisions.outputs(self.actor(features), self.log_std)
        distribution = self.decisions.distribution(outputs, mask)
        log_probs = distribution.log_prob(column(rows.discrete_actions), column(rows.continuous_actions))
        advantages = column(rows.advantages)
        advantages = (advantages - advantages.mean()) / advantages.std(correction=0).clamp(min=settings.advantage_floor)
        log_ratios = log_probs - column(rows.log_probs)
        ratios = log_ratios.exp()
        bounded = ratios.clamp(1 - settings.clip, 1 + settings.clip)
        goals = torch.min(ratios * advantages, bounded * advantages)
        approx_kls, clipfracs = ratios - 1 - log_ratios, (ratios != bounded).double()
        if settings.objective == "a2c":
            goals, approx_kls, clipfracs = log_probs * advantages, 0 * ratios, 0 * ratios
        v_losses = 0.5 * (self.critic(features)[:, 0] - column(rows.returns)).square()
        entropies = distribution.entropy()
        losses = settings.value_coefficient * v_losses - goals - settings.entropy_coefficient * entropies
        self.optimizer.zero_grad()
        losses.mean().backward()
        none = torch.zeros(())
        self.gradients = [(none if part.grad is None else part.grad).clone() for part in self.parameters]
        norm = nn.utils.clip_grad_norm_(self.parameters, math.inf)
        for part in self.parameters:
            if part.grad is not None:
                part.grad.mul_(min(1.0, settings.max_grad_norm / float(norm)))
        self.optimizer.param_groups[0]["lr"] = learning_rate
        self.optimizer.step()
        terms = [float(part.detach().mean()) for part in (-goals, v_losses, entropies, approx_kls, clipfracs)]
        return dict(zip(TERMS, [*terms, float(norm)], strict=True))


def fused_of(case: Case, **kwargs: Any) -> FusedLearner:
    return FusedLearner(*case.networks(), case.nvec, case.settings(), **kwargs)


def near(actual: Any, expected: Any, share: float) -> None:
    """Assert that no element differs by more than a share of the tensor's largest, or of a tenth if that is less."""
    expected = np.asarray(expected)
    if expected.size:
        bound = share * max(0.1, np.abs(expected).max())
        np.testing.assert_allclose(actual, expected, rtol=0, atol=bound)


def compare(case: Case, num_epochs: int = 1, share: float = 1e-5, *, avoid_kinks: bool = False) -> None:
    """Assert that the compiled learner and torch agree: terms and gradients in the first update, then weights.

    avoid_kinks: whether Hypothesis draws another case if an input of a ReLU is as small as an error of float32.
    """
    learner, reference, rows = fused_of(case), Reference(case), case.rows()
    for epoch in range(num_epochs):
        for index, minibatch in enumerate(case.minibatches(epoch)):
            terms = learner.update(rows, [minibatch], 1e-3)[0]
            expected = reference.update(rows, minibatch, 1e-3)
            if avoid_kinks:
                assume(reference.kink_distance > 1e-6)
            if epoch == index == 0:
                for name, term in zip(TERMS, terms, strict=True):
                    assert term == pytest.approx(expected[name], rel=2e-5, abs=2e-5), name
                for actual, gradient in zip(learner.by_parameter(learner.gradients), reference.gradients, strict=True):
                    near(actual, gradient, share)
    for actual, weights in zip(learner.by_parameter(learner.weights), reference.parameters, strict=True):
        near(actual, weights.detach(), 1e-4)


def compare_calls(case: Case) -> None:
    """Assert that one call with several minibatches does what a call for each does."""
    one, other, rows, minibatches = fused_of(case), fused_of(case), case.rows(), case.minibatches()
    terms = [other.update(rows, [minibatch], 1e-2)[0] for minibatch in minibatches]
    np.testing.assert_array_equal(one.update(rows, minibatches, 1e-2), terms)
    np.testing.assert_array_equal(one.weights, other.weights)


def compare_tanh() -> None:
    """Assert that hidden units are tanh of their inputs, however large those are."""
    actor, critic = (nn.Sequential(nn.Linear(1, 1), nn.Tanh(), nn.Linear(1, 1)) for _ in range(2))
    with torch.no_grad():
        for name, part in actor.named_parameters():
            part.fill_(1 if name.endswith("weight") else 0)
    learner = FusedLearner(actor, critic, nn.Parameter(torch.zeros(1)), (), Settings())
    numbers = np.linspace(-20, 20, 20_001, dtype=np.float32)[:, None]
    numbers = np.concatenate([numbers, [[-1e30], [-300], [300], [1e30]]]).astype(np.float32)
    np.testing.assert_allclose(learner.policy_outputs(numbers), np.tanh(numbers.astype(np.float64)), rtol=3.1e-7)


CASES = st.builds(
    Case,
    num_inputs=st.integers(1, 20),
    hidden=st.lists(st.integers(1, 40), min_size=1, max_size=3).map(tuple),
    activation=st.sampled_from(sorted(ACTIVATIONS)),
    nvec=st.lists(st.integers(1, 6), max_size=3).map(tuple),
    num_continuous=st.integers(0, 3),
    num_rows=st.integers(4, 300),
    num_minibatches=st.integers(1, 3),
    has_forbidden=st.booleans(),
    has_absent=st.booleans(),
    objective=st.sampled_from(["ppo", "a2c"]),
    max_grad_norm=st.sampled_from([0.1, 0.5, 100.0]),
    clip=st.sampled_from([0.05, 0.2, 0.5]),
    value_coefficient=st.sampled_from([0.1, 0.5, 2.0]),
    advantage_floor=st.sampled_from([0.01, 0.1, 1.0]),
    advantage_scale=st.sampled_from([0.01, 1.0]),
    seed=st.integers(0, 2**31),
).filter(lambda case: case.nvec or case.num_continuous)
ONCE = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@given(case=CASES)
@example(case=Case(19, (1,), "relu", (1, 3, 6), 3, 4, 2, False, True, seed=408474))  # a minibatch without valid rows
@settings(max_examples=60, deadline=None, suppress_health_check=ONCE)
def test_one_update_is_torchs(case: Case) -> None:
    compare(case, avoid_kinks=True)


@given(case=CASES)
@settings(max_examples=8, deadline=None, suppress_health_check=ONCE, phases=[Phase.reuse, Phase.generate])
def test_weights_after_a_hundred_updates_are_torchs(case: Case) -> None:
    # With ReLU, a unit that float32 and float64 place on two sides of 0 may be anywhere after a hundred updates.
    compare(replace(case, num_minibatches=2, activation="tanh"), num_epochs=50)


@pytest.mark.parametrize("objective", ["ppo", "a2c"])
def test_weights_after_a_hundred_updates_with_relu_are_torchs(objective: str) -> None:
    compare(Case(activation="relu", hidden=(15, 20), num_rows=60, objective=objective), num_epochs=50)


def test_one_call_does_what_a_call_for_each_minibatch_does() -> None:
    compare_calls(Case(num_minibatches=3))


def test_units_are_tanh_of_their_inputs() -> None:
    compare_tanh()


def test_what_ignored_rows_hold_changes_nothing() -> None:
    case = Case(num_continuous=1)
    rows = case.rows()
    assert rows.masks is not None
    ignored, changed = ~rows.masks, {}
    for name, value in (("features", np.nan), ("continuous_actions", np.inf), ("log_probs", np.nan),
                        ("advantages", np.nan), ("returns", np.inf), ("discrete_actions", -1)):  # fmt: skip
        changed[name] = getattr(rows, name).copy()
        changed[name][ignored] = value
    for kind in ("tanh", "relu"):
        one, other = (fused_of(replace(case, activation=kind)) for _ in range(2))
        terms = one.update(rows, case.minibatches(), 1e-2)
        np.testing.assert_array_equal(other.update(replace(rows, **changed), case.minibatches(), 1e-2), terms)
        np.testing.assert_array_equal(one.weights, other.weights)
        assert np.isfinite(one.weights).all()


@given(case=CASES, seed=st.integers(0, 2**31))
@settings(max_examples=20, deadline=None)
def test_outputs_are_torchs(case: Case, seed: int) -> None:
    learner, (actor, critic, _) = fused_of(case), case.networks()
    features = np.random.default_rng(seed).normal(size=(case.num_rows, case.num_inputs)).astype(np.float32)
    with torch.no_grad():
        near(learner.policy_outputs(features), actor(torch.from_numpy(features)), 1e-5)
        near(learner.values(features), critic(torch.from_numpy(features))[:, 0], 1e-5)


# -------------------------------------------------------------------------------------------------- the same bits

LARGE = Case(num_inputs=5, hidden=(33, 64, 17), num_rows=1500, num_minibatches=1)


def bits(case: Case, **kwargs: Any) -> tuple[bytes, ...]:
    """The weights, gradients and terms after a few updates, and the values of all rows."""
    learner, rows = fused_of(case, **kwargs), case.rows()
    terms = [learner.update(rows, case.minibatches(epoch), 1e-2) for epoch in range(3)]
    parts: list[Any] = [learner.weights, learner.gradients, *terms, learner.values(rows.features)]
    return tuple(part.tobytes() for part in parts)


@pytest.mark.parametrize("case", [LARGE, replace(LARGE, activation="relu", objective="a2c", num_rows=77)])
def test_every_instruction_set_has_the_same_bits(case: Case) -> None:
    variants = VARIANTS[: library().learner_num_variants()]
    assert len({bits(case, variant=variant) for variant in variants}) == 1


def test_any_number_of_threads_has_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "THREAD_NS", 0.0)  # however little there is to do
    assert len({bits(LARGE, num_threads=num_threads) for num_threads in (1, 2, 3, 5)}) == 1


def test_a_variant_that_the_processor_lacks_is_refused() -> None:
    with pytest.raises(KernelError, match="variant='sse9' does not run on this processor; use baseline"):
        fused_of(LARGE, variant="sse9")


@pytest.mark.parametrize("compiler", [name for name in ("c++", "clang++") if shutil.which(name)])
def test_every_instruction_set_compiles(compiler: str, tmp_path: Path) -> None:
    flags = [*sources.HOST_FLAGS, "-O0", "-shared", "-fPIC", f"-I{ROOT / 'cuda_ext'}"]
    command = [compiler, *flags, "-x", "c++", "-", "-o", str(tmp_path / "learner.so")]
    done = subprocess.run(command, input=sources.for_learner(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_slow_processor_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library(), "learner_num_variants", lambda: 1)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    with pytest.warns(UserWarning, match="lacks AVX2 or FMA, .* slower than torch; use ppo or ppo_cuda"):
        fused_of(Case())


# ---------------------------------------------------------------------------------------------------- advantages


def advantages(rewards: Any, values: Any, terminations: Any, truncations: Any, masks: Any, *, gamma: float,
               gae_lambda: float) -> Any:  # fmt: skip
    """Generalized advantage estimates by their definition: sums over the steps until an episode or the rollout ends."""
    estimates = np.zeros(rewards.shape)
    for step, agent in np.argwhere(masks):
        decay = 1.0
        for t in range(step, len(rewards)):
            if not masks[t, agent]:
                break
            next_value = 0 if terminations[t, agent] else values[t + 1, agent]
            estimates[step, agent] += decay * (rewards[t, agent] + gamma * next_value - values[t, agent])
            decay *= gamma * gae_lambda
            if terminations[t, agent] or truncations[t, agent]:
                break
    return estimates


def outcomes_of(seed: int = 0) -> tuple[Any, Any, Any, Any, Any]:
    generator, shape = np.random.default_rng(seed), (12, 5)
    rewards, values = (generator.normal(size=(rows, 5)).astype(np.float32) for rows in (12, 13))
    terminations, truncations, masks = (generator.random(shape) < share for share in (0.15, 0.15, 0.9))
    return rewards, values, terminations, truncations, masks


def compare_advantages(learner: FusedLearner) -> None:
    columns = outcomes_of()
    expected = advantages(*columns, gamma=0.9, gae_lambda=0.8)
    near(learner.advantages(*columns, gamma=0.9, gae_lambda=0.8), expected, 1e-6)


def test_advantages_follow_their_definition() -> None:
    compare_advantages(fused_of(Case()))


# -------------------------------------------------------------------------------------------------- planted faults

# By name, a text of the sources, and what stands in its place. FAULT is 1 while the fault is on, else 0.
FAULTS = {
    "sign of the entropy's derivative": ("? -probabilities[k] * (", "? (FAULT ? 1 : -1) * probabilities[k] * ("),
    "sign of the value's derivative": ("error = *value - target", "error = (FAULT ? -1 : 1) * (*value - target)"),
    "sign of the policy's loss": ("sums[POLICY_LOSS] -= share", "sums[POLICY_LOSS] -= (FAULT ? -share : share)"),
    "index of the chosen option": ("(k == chosen ?", "(k == chosen + FAULT ?"),
    "index of the transposed weights": ("rows[(size_t)i * width + j]", "rows[(size_t)i * width + (j + FAULT) % width]"),
    "index of the first group": ("for (int group = 1; group", "for (int group = 1 + FAULT; group"),
    "epsilon": ("/ step.root + step.epsilon)", "/ step.root + (FAULT ? 1e-3f : step.epsilon))"),
    "correction of the second moment": ("(1.0 - update.beta_powers[1])", "(1.0 - update.beta_powers[1 - FAULT])"),
    "derivative of tanh": ("1.0f - units[k] * units[k]", "1.0f - (1 - FAULT) * units[k] * units[k]"),
    "side on which a ratio is clipped": ("free <= clipped ?", "(FAULT ? free >= clipped : free <= clipped) ?"),
    "derivative by the standard deviation": ("deviation * deviation - 1.0f)", "deviation * deviation - (1 - FAULT))"),
    "absent rows": ("update.masks[row] != 0", "update.masks[row] != FAULT * 2"),
    "norm at which gradients are clipped": ("norm > update.max_", "(1 - FAULT) * norm > update.max_"),
    "values after truncations": ("return terminated || truncated ?", "return terminated || (!FAULT && truncated) ?"),
    "correction of the variance": ("sqrt(squares / count)", "sqrt(squares / (count - FAULT))"),
    "minimum of the deviation": ("deviation : update.advantage_", "deviation : FAULT ? 1.0 : update.advantage_"),
    "coefficient of the value's loss": ("(objective.value_co", "(FAULT ? 0.5f * error : objective.value_co"),
    "least ratio": ("least = 1.0f - objective.clip", "least = 1.0f - (FAULT ? 0.2f : objective.clip)"),
    "greatest ratio": ("most = 1.0f + objective.clip", "most = 1.0f + (FAULT ? 0.2f : objective.clip)"),
    "rows of later minibatches": ("update->order + begin", "update->order + (1 - FAULT) * begin"),
    "terms of later minibatches": ("update->terms + k * (", "update->terms + (1 - FAULT) * k * ("),
    "tanh of small numbers": ("x < -most ?", "!FAULT && x < -most ?"),
    "tanh of large numbers": ("x > most ?", "!FAULT && x > most ?"),
}  # fmt: skip
# Not wrong results, but refusals of the system, in the same form.
REFUSALS = {"memory": ("data_ = (float*)aligned", "data_ = FAULT ? nullptr : (float*)aligned")}
CHECKS: tuple[Callable[[], None], ...] = (
    lambda: compare(Case(), num_epochs=4),
    lambda: compare(Case(max_grad_norm=100.0, has_absent=False)),
    lambda: compare(Case(value_coefficient=1.3, clip=0.4, advantage_floor=0.05, advantage_scale=0.01)),
    lambda: compare_calls(Case(num_minibatches=3)),
    compare_tanh,
    lambda: compare_advantages(fused_of(Case())),
)


WITHOUT_VECTORS = pytest.mark.filterwarnings("ignore:this processor lacks AVX2")  # the variants that are not compiled


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The learner with all faults, of which set_fault turns one on; compiled once."""
    if shutil.which(COMPILER[0]) is None:
        pytest.skip("there is no C++ compiler")
    folder = tmp_path_factory.mktemp("faulty")
    (folder / "learner").mkdir()
    for file in (*(ROOT / "cuda_ext").glob("*.h"), *(ROOT / "cuda_ext").glob("*.cuh")):
        shutil.copy(file, folder)
    remaining = dict(enumerate((FAULTS | REFUSALS).values(), 1))
    for file in (ROOT / "cuda_ext/learner").glob("*.*h"):
        text = file.read_text()
        for number, (sound, wrong) in [*remaining.items()]:
            if sound in text:
                assert text.count(sound) == 1, sound
                text = text.replace(sound, wrong.replace("FAULT", f"(fault == {number})"))
                del remaining[number]
        (folder / "learner" / file.name).write_text(text)
    assert not remaining
    program = """
        #define DIGEST ""
        #define PLAIN_ONLY
        static int fault = 0;
        extern "C" __attribute__((visibility("default"))) void set_fault(int number) { fault = number; }
        #include "learner/main.h"
    """
    library_file = folder / "faulty.so"
    command = [*COMPILER, *FLAGS, "-O1", f"-I{folder}", "-x", "c++", "-", "-o", str(library_file)]
    done = subprocess.run(command, input=program, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return with_signatures(ctypes.CDLL(str(library_file)))


@pytest.fixture
def with_faults(faulty: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Learners that are made in the test have the fault whose number is passed to set_fault."""
    monkeypatch.setattr(fused, "library", lambda: faulty)
    yield faulty.set_fault
    faulty.set_fault(0)


@WITHOUT_VECTORS
def test_without_a_fault_all_checks_pass(with_faults: Callable[[int], None]) -> None:
    for check in CHECKS:
        check()


@WITHOUT_VECTORS
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_caught(name: str, with_faults: Callable[[int], None]) -> None:
    with_faults(1 + [*FAULTS].index(name))
    with pytest.raises(AssertionError):
        for check in CHECKS:
            check()


@WITHOUT_VECTORS
def test_without_memory_it_says_so_and_changes_nothing(with_faults: Callable[[int], None]) -> None:
    case = Case()
    learner, rows = fused_of(case), case.rows()
    before = learner.weights.copy()
    with_faults(1 + len(FAULTS))
    for call in (
        lambda: learner.update(rows, case.minibatches(), 1e-2),
        lambda: threaded(lambda: learner.values(rows.features)),  # a new thread has no memory yet
    ):
        with pytest.raises(MemoryError, match=r"the learner cannot allocate [\d,]+ bytes"):
            call()
    np.testing.assert_array_equal(learner.weights, before)
    with_faults(0)
    learner.update(rows, case.minibatches(), 1e-2)
    assert (learner.weights != before).any()


def threaded(function: Callable[[], Any]) -> Any:
    """Call a function in a new thread; return its result, or raise what it raised."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


# ------------------------------------------------------------------------------------------------------- refusals


CALLS: dict[str, Callable[[FusedLearner], Any]] = {
    "update": lambda learner: learner.update(Case().rows(), Case().minibatches(), 1e-3),
    "values": lambda learner: learner.values(Case().rows().features),
    "policy_outputs": lambda learner: learner.policy_outputs(Case().rows().features),
    "advantages": lambda learner: learner.advantages(*outcomes_of(), gamma=0.9, gae_lambda=0.8),
    "load": lambda learner: learner.load(),
    "save": lambda learner: learner.save(),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_closed_learner_refuses_calls(name: str) -> None:
    learner = fused_of(Case(), num_threads=2)
    CALLS[name](learner)
    learner.close()
    learner.close()
    with pytest.raises(ClosedError, match="this learner is closed; make another"):
        CALLS[name](learner)


def test_only_one_thread_at_a_time_may_call(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = fused_of(Case())
    started, may_end, compute = threading.Event(), threading.Event(), learner._functions.learner_outputs

    class Functions:
        def __getattr__(self, name: str) -> Any:
            return getattr(library(), name)

        @staticmethod
        def learner_outputs(*arguments: Any) -> int:
            started.set()
            assert may_end.wait(30)
            return int(compute(*arguments))

    monkeypatch.setattr(learner, "_functions", Functions())
    with ThreadPoolExecutor(1) as pool:
        values = pool.submit(CALLS["values"], learner)
        assert started.wait(30)
        try:
            for call in (*CALLS.values(), FusedLearner.close):
                with pytest.raises(CallError, match="another thread is in a call of this learner, and only one at a"):
                    call(learner)
        finally:
            may_end.set()
        near(values.result(), CALLS["values"](learner), 0.0)


@pytest.mark.parametrize(
    ("actor", "reason"),
    [
        (nn.Linear(3, 7), "the policy is a Linear; the fused learner takes"),
        (nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 7)), "the policy has a GELU at place 1; the fused"),
        (nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 7)), r"with the activations \[0, 0\]"),
        (nn.Sequential(nn.Linear(3, 7, bias=False)), "has a layer without biases"),
        (nn.Sequential(nn.Linear(3, 8)), "the actor has 8 outputs and the critic 1; these actions need 7 and 1"),
        (nn.Sequential(nn.Linear(4, 7)), "the actor takes 4 features and the critic 3"),
    ],
)
def test_networks_that_it_cannot_learn_are_refused(actor: nn.Module, reason: str) -> None:
    case = Case()
    _, critic, log_std = case.networks()
    with pytest.raises(KernelError, match=reason):
        FusedLearner(actor, critic, log_std, case.nvec, case.settings())


def test_weights_of_two_layers_are_refused_if_shared() -> None:
    case = Case(hidden=(3,))
    actor, critic, log_std = case.networks()
    critic[0] = actor[0]
    with pytest.raises(KernelError, match="the policy has weights that several layers share; the fused learner takes"):
        FusedLearner(actor, critic, log_std, case.nvec, case.settings())


def test_weights_that_are_computed_are_refused() -> None:
    case = Case()
    actor, critic, log_std = case.networks()
    weight_norm(critic[0])
    with pytest.raises(KernelError, match="the policy computes weights of a layer, as weight_norm does; the fused"):
        FusedLearner(actor, critic, log_std, case.nvec, case.settings())


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"objective": "trpo"}, "objective='trpo' is out of bounds; use ppo, a2c"),
        ({"clip": 0.0}, "clip=0.0 is out of bounds; use more than 0"),
        ({"advantage_floor": 0.0}, "advantage_floor=0.0 is out of bounds"),
        ({"epsilon": math.nan}, "epsilon=nan is out of bounds"),
        ({"max_grad_norm": -1.0}, "max_grad_norm=-1.0 is out of bounds"),
        ({"value_coefficient": math.inf}, "value_coefficient=inf is out of bounds; use a finite number"),
        ({"betas": (0.9, 1.0)}, r"betas=\(0.9, 1.0\) is out of bounds; use two numbers from 0 to below 1"),
    ],
)
def test_settings_out_of_bounds_are_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(PlanError, match=reason):
        Settings(**settings)


def test_arguments_that_do_not_fit_the_networks_are_refused() -> None:
    with pytest.raises(SpaceError, match=r"is_scaled has shape \(2,\); the networks take 3 features"):
        fused_of(Case(), is_scaled=[True, False])
    with pytest.raises(SpaceError, match=r"nvec=\(3, 0\) has to be the numbers of options"):
        fused_of(replace(Case(), nvec=(3, 0)))


@pytest.mark.parametrize(
    ("minibatch", "reason"),
    [
        (np.array([True, False]), "a minibatch has bool indices; give the indices of rows as integers"),
        (np.array([1.9]), "a minibatch has float64 indices"),
        ([1, 2], "a minibatch: a list; give a NumPy array, for example tensor.numpy()"),
        (torch.arange(2), "a minibatch: a Tensor; give a NumPy array"),
        (np.array([[1, 2]]), r"a minibatch: an array with shape \(1, 2\); give one with 1 dimensions"),
    ],
)
def test_minibatches_that_are_no_indices_are_refused(minibatch: Any, reason: str) -> None:
    with pytest.raises(SpaceError, match=reason):
        fused_of(Case()).update(Case().rows(), [minibatch], 1e-3)


def test_a_learning_rate_that_is_no_number_is_refused() -> None:
    with pytest.raises(PlanError, match="learning_rate=nan is out of bounds; use a finite number from 0"):
        fused_of(Case()).update(Case().rows(), Case().minibatches(), math.nan)


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("features", torch.from_numpy, "features: a Tensor; give a NumPy array, for example tensor.numpy()"),
        ("returns", list, "returns: a list; give a NumPy array"),
        ("features", lambda part: part.astype(np.float64), r"features are float64 \(150, 3\); they have to be"),
        ("features", lambda part: part[:, ::-1], r"features are float32 \(150, 3\), not contiguous"),
        ("returns", lambda part: part[:-1], r"returns are float32 \(149,\); they have to be .* \(150,\)"),
        ("allowed", lambda part: part[:, :-1].copy(), r"have to be a C-contiguous array, bool \(150, 5\)"),
        ("discrete_actions", lambda part: part + 2, r"are not all in 0 to nvec - 1, where nvec=\[3, 2\]"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(name: str, change: Any, reason: str) -> None:
    case, rows = Case(), Case().rows()
    learner = fused_of(case)
    with pytest.raises(SpaceError, match=reason):
        learner.update(replace(rows, **{name: change(getattr(rows, name))}), case.minibatches(), 1e-3)
    for call in (learner.policy_outputs, learner.values):
        with pytest.raises(SpaceError, match="features: a list; give a NumPy array"):
            call(rows.features.tolist())
    with pytest.raises(SpaceError, match="minibatches have rows 0 to 150, and there are 150 rows"):
        learner.update(rows, [np.array([0, 150])], 1e-3)


def test_without_a_compiler_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from cuda_ext.learner import library as functions

    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(functions, "built_library", lambda: None)
    with pytest.raises(KernelError, match=r"the fused learner has to be compiled .* no no-such-compiler: install a C"):
        functions.library.__wrapped__()


def test_learnt_weights_are_copied_to_the_torch_networks() -> None:
    case = Case()
    actor, critic, log_std = case.networks()
    learner = FusedLearner(actor, critic, log_std, case.nvec, case.settings())
    learner.update(case.rows(), case.minibatches(), 1e-2)
    learner.save()
    weights = [part.detach().numpy() for part in (*actor.parameters(), *critic.parameters(), log_std)]
    for actual, expected in zip(weights, learner.by_parameter(learner.weights), strict=True):
        np.testing.assert_array_equal(actual, expected)
    before = learner.weights.copy()
    learner.load()
    np.testing.assert_array_equal(learner.weights, before)
