"""``ppo --learner fused``: compiled code learns what torch learns, in any environment that an MLP can play."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from learner_cases import near
from test_ppo import KINDS, Bits, Echo, Picky

import pufferlib
from cleanrl_demo import ppo
from cleanrl_demo.ppo import Config, resume, train
from cuda_ext.learner import library
from ocean.suite.tasks import tasks
from pufferlib.errors import ClosedError, KernelError, PlanError
from pufferlib.models import MLP, load_policy
from pufferlib.models.reading import Features
from pufferlib.population import Mixture, PolicyPool
from pufferlib.population.games import GameEnv
from pufferlib.training.oracles import LearnedOracle

pytestmark = pytest.mark.beside

SETTINGS: dict[str, Any] = {
    "backend": "serial", "num_envs": 8, "rollout_length": 16, "runs": None, "eval_episodes": 10, "learner": "fused"
}  # fmt: skip


def config(**settings: Any) -> Config:
    return Config(**{**SETTINGS, **settings})


def weights(result: Any) -> dict[str, torch.Tensor]:
    return {**result.policy.state_dict()}


def same(one: Any, other: Any) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


# ------------------------------------------------------------------------------------------------------ like torch

CASES: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    **{name: (lambda space=space: Echo(space), {}) for name, space in KINDS.items()},
    "mixture": (lambda: Echo(spaces.Dict(KINDS)), {"entropy_coefficient": 0.0}),
    "masks of options": (Picky, {"wrap_kwargs": {"action_mask": True}}),
    "absent agents": (Bits, {"num_minibatches": 3}),
    "normalized observations": (lambda: Echo(spaces.Discrete(2)), {"normalize_observations": True}),
    "stacked observations": (lambda: Echo(spaces.Discrete(2)), {"frame_stack": 3}),
    "clipped gradients": (lambda: Echo(spaces.Discrete(2)), {"max_grad_norm": 0.01, "clip": 0.1}),
    "few epochs": (lambda: Echo(spaces.Discrete(2)), {"target_kl": 1e-4, "learning_rate": 0.01}),
    "random batches": (lambda: Echo(spaces.Discrete(2)), {"batch_size": 3}),
}


SHORT = ("mixture", "masks of options", "absent agents", "few epochs")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in SHORT else pytest.mark.long) for name in CASES]
)
def test_it_learns_what_torch_learns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    env, settings = CASES[name]
    losses: dict[str, list[dict[str, float]]] = {"torch": [], "fused": []}
    update = ppo.update

    def updated(learner: Any, rollout: Any, config: Config) -> dict[str, float]:
        losses[config.learner].append(update(learner, rollout, config))
        return losses[config.learner][-1]

    monkeypatch.setattr(ppo, "update", updated)
    settings = {"total_steps": 250, "eval_episodes": 1, **settings}
    one, other = (weights(train(config(**{**settings, "learner": learner}), env)) for learner in losses)
    for parameter in one:
        near(other[parameter], one[parameter], 1e-4)
    assert len(losses["torch"]) > 1 and len(losses["torch"]) == len(losses["fused"])
    for expected, actual in zip(*losses.values(), strict=True):
        assert actual == pytest.approx(expected, rel=1e-4, abs=1e-5)


class Far(gymnasium.Env):
    """Observes a table of large numbers in float64."""

    observation_space = spaces.Box(-np.inf, np.inf, (2, 3), np.float64)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        return self._observation(), 1.0, bool(self.np_random.random() < 0.1), False, {}

    def _observation(self) -> Any:
        return self.np_random.normal(0, 100, (2, 3))


class Halves(Features):
    """A reader with other features than its class's."""

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return super().forward(observations) / 2


class Reader(MLP):
    """An MLP with a reader of its own."""

    def __init__(self, layout: Any, space: Any) -> None:
        super().__init__(layout, space)
        self.read = Halves(layout)


@pytest.mark.parametrize(
    ("env", "settings"),
    [
        pytest.param(lambda: Echo(spaces.Dict(KINDS)), {}, id="nested"),
        pytest.param(Far, {}, id="numbers"),
        pytest.param(Far, {"frame_stack": 2}, id="stacked numbers"),
        pytest.param(Far, {"policy": f"{__name__}:Reader"}, id="a reader of its own"),
    ],
)
def test_torch_has_the_weights_that_act_and_learn(
    env: Callable[[], Any], settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    num_updates, update = 0, ppo.update

    @torch.no_grad()
    def acted(policy: Any, observations: torch.Tensor) -> list[torch.Tensor]:
        """Actions, log-probabilities and values."""
        distribution, values, _ = policy(observations)
        actions = distribution.sample(torch.Generator().manual_seed(1))
        return [*actions, distribution.log_prob(*actions), values]

    def updated(learner: Any, rollout: Any, config: Config) -> dict[str, float]:
        nonlocal num_updates
        losses, fused = update(learner, rollout, config), learner.optimizer.learner
        policy = learner.actor.policy
        expected = [*policy.actor.parameters(), *policy.critic.parameters(), policy.log_std]
        for values, parameter in zip(fused.by_parameter(fused.weights), expected, strict=True):
            np.testing.assert_array_equal(values, parameter.detach().numpy())
        (discrete, continuous, *columns), torchs = (
            acted(part, rollout.observations) for part in (learner.optimizer, learner.actor)
        )
        assert torch.equal(discrete, torchs[0])
        for column, torch_column in zip((continuous, *columns), torchs[1:], strict=True):
            near(column, torch_column, 1e-5)
        num_updates += 1
        return losses

    monkeypatch.setattr(ppo, "update", updated)
    train(config(total_steps=300, **settings), env)
    assert num_updates > 1


# -------------------------------------------------------------------------------------------------------- runs


def test_it_learns_bandit() -> None:
    result = train(
        config(env="ocean/bandit", total_steps=3000, learning_rate=5e-3, rollout_length=32, eval_episodes=200)
    )
    assert result.score >= 0.9  # 0.25 by chance


# Steps where fewer than the demo's are plenty: at least four times those after which 20 runs of it stay above the bar
# (benchmarks/results/ocean.json).
ENOUGH = {"ocean/bandit": 8_000, "ocean/multiagent": 8_000, "ocean/password": 12_000, "ocean/truncation": 8_000}


@pytest.mark.long
@pytest.mark.parametrize("task", [task for task in tasks() if not task.needs_memory], ids=lambda task: task.env)
def test_it_learns_ocean(task: Any) -> None:
    total_steps = ENOUGH.get(task.env, task.total_steps)
    changes = {"total_steps": total_steps, "learner": "fused", "runs": None, "eval_episodes": 200}
    assert train(Config(**{**task.settings, **changes})).score >= task.bar


def test_a_resumed_run_ends_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"checkpoint_every": 300, "runs": str(tmp_path), "schedule": "constant"}
    uninterrupted, half = (train(config(total_steps=total_steps, **settings)) for total_steps in (600, 300))
    assert not same(weights(uninterrupted), weights(half))
    assert half.run_folder is not None
    _, rest = resume(half.run_folder, total_steps=600)
    assert same(weights(uninterrupted), weights(rest))


def test_its_policy_is_an_ordinary_one(tmp_path: Path) -> None:
    result = train(config(total_steps=300, runs=str(tmp_path)))
    assert result.run_folder is not None
    with load_policy(result.run_folder) as player:
        assert same(player.policy.state_dict(), weights(result))


def test_an_oracle_improves_what_it_has_learnt_as_with_torch() -> None:
    learnt = []
    for learner in ("torch", "fused"):
        env = partial(GameEnv, "kuhn_poker", observation="index")
        with pufferlib.make(env, backend="serial", num_envs=8, seed=1, as_torch=True) as vec:
            oracle = LearnedOracle(vec, PolicyPool(), config(total_steps=100, learner=learner))
            improved, opponent = oracle.begin(0), oracle.initial(1)
            for _ in range(2):
                oracle.improve(0, improved, Mixture(((improved,), (opponent,)), (np.ones(1), np.ones(1))))
            learnt.append(oracle.pool.weights(improved))
    for name, parameter in learnt[0].items():
        near(learnt[1][name], parameter, 1e-5)


# ---------------------------------------------------------------------------------------------------- refusals


class Pictures(gymnasium.Env):
    """Observes images."""

    observation_space = spaces.Box(0, 255, (40, 40), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros((40, 40), np.uint8), {}


class Table(torch.nn.Module):
    """A policy that is no MLP."""

    def __init__(self, layout: Any, space: Any) -> None:
        super().__init__()


class Doubled(MLP):
    """An MLP with other outputs than its networks'."""

    def forward(self, observations: Any, state: Any = None, action_mask: Any = None) -> Any:
        outputs, values, state = super().forward(observations, state, action_mask)
        return outputs, 2 * values, state


class Wide(MLP):
    """An MLP with networks of its own."""

    def __init__(self, layout: Any, space: Any) -> None:
        super().__init__(layout, space)
        self.actor, self.critic = (
            torch.nn.Sequential(torch.nn.Linear(self.read.size, 20), torch.nn.ReLU(), torch.nn.Linear(20, num_outputs))
            for num_outputs in (self.decisions.num_outputs, 1)
        )


def test_a_policy_with_networks_of_its_own_is_learnt() -> None:
    result = train(config(policy=f"{__name__}:Wide", total_steps=300))
    assert result.policy.actor[0].bias.count_nonzero() > 10


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"policy": "lstm"}, "policy='lstm' has a memory, which this trainer does not keep; use ppo_lstm"),
        ({"policy": f"{__name__}:Table"}, "the policy is a Table, and the fused learner takes only MLPs of numbers; "
                                          "use --learner torch"),
        ({"policy": f"{__name__}:Doubled"}, "the policy is a Doubled, and the fused learner takes only MLPs"),
        ({"device": "cuda"}, "device='cuda' is out of bounds; use cpu, or --learner torch"),
        ({"precision": "bfloat16"}, "precision='bfloat16' is out of bounds; use float32, or --learner torch"),
        ({"learner": "jax"}, "learner='jax' is out of bounds; use torch, fused"),
    ],
)  # fmt: skip
def test_what_it_cannot_learn_is_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(PlanError, match=reason):
        train(config(**settings))


def test_images_are_refused() -> None:
    with pytest.raises(PlanError, match="the policy is a CNN that reads images, .* only MLPs of numbers; use --learn"):
        train(config(), Pictures)


def test_without_a_compiler_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(library, "built_library", lambda: None)
    monkeypatch.setattr("cuda_ext.learner.fused.library", library.library.__wrapped__)
    with pytest.raises(KernelError, match=r"the fused learner has to be compiled .* install a C"):
        train(config())


def test_torch_is_the_default() -> None:
    (field,) = (field for field in dataclasses.fields(Config) if field.name == "learner")
    assert field.default == "torch"
    with pufferlib.make("ocean/squared", backend="serial", num_envs=1) as vec:
        origin = pufferlib.models.Origin()
        assert isinstance(ppo.make_learner(vec, origin, config(learner="torch")).optimizer, torch.optim.Adam)


def test_closing_ends_the_learner_and_keeps_the_weights() -> None:
    with pufferlib.make("ocean/squared", backend="serial", num_envs=1) as vec:
        learner = ppo.make_learner(vec, pufferlib.models.Origin(), config())
        observations = torch.as_tensor(vec.reset()[0])
    learner.optimizer(observations)
    for _ in range(2):
        learner.optimizer.close()
    with pytest.raises(ClosedError, match="this learner is closed"):
        learner.optimizer(observations)
    assert not learner.actor.policy.log_std.isnan().any() and learner.optimizer.state_dict()["means"].shape
