"""Stable-Baselines3's ``evaluate_policy`` over ``pufferlib.evaluate``: the same arguments, names and figures."""

from __future__ import annotations

import inspect
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import pufferlib
from pufferlib.adapters.sb3_evaluation import evaluate_policy
from pufferlib.errors import PlanError

pytestmark = pytest.mark.beside


class Countdown(gymnasium.Env[Any, Any]):
    """Pays the action in each step, and ends after as many as its seed draws."""

    observation_space = spaces.Box(0, 100, (1,), np.float32)
    action_space = spaces.Discrete(4)
    render_mode = "ansi"
    num_drawn, closed = 0, False

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(2, 9))
        return np.array([self.left], np.float32), {}

    def step(self, action: Any) -> Any:
        self.left -= 1
        info = {"is_success": action == 3} if self.left == 0 else {}
        return np.array([self.left], np.float32), float(action), self.left == 0, False, info

    def render(self) -> Any:
        self.num_drawn += 1
        return "drawn"

    def close(self) -> None:
        self.closed = True


class Model:
    """Takes action 3 if the count is odd."""

    action_space = spaces.Discrete(4)

    def predict(
        self, observations: Any, state: Any = None, episode_start: Any = None, deterministic: Any = True
    ) -> Any:
        return (3 * (observations[:, 0] % 2)).astype(np.int64), None


def test_means_lists_and_thresholds() -> None:
    how = {"num_envs": 3, "num_workers": 2}
    mean, std = evaluate_policy(Model(), Countdown, 12, **how)
    returns, lengths = evaluate_policy(Model(), Countdown, 12, return_episode_rewards=True, **how)
    assert (mean, std) == (np.mean(returns), np.std(returns)) and returns == [3.0 * ((n + 1) // 2) for n in lengths]
    assert len({*lengths}) > 2
    with pytest.raises(AssertionError, match="Mean reward below threshold"):
        evaluate_policy(Model(), Countdown, 12, reward_threshold=mean, **how)
    assert evaluate_policy(Model(), Countdown, 12, reward_threshold=mean - 0.1, **how) == (mean, std)
    env = Countdown()
    assert evaluate_policy(Model(), env, 12, render=True) == (mean, std)
    assert env.num_drawn >= sum(lengths) and not env.closed


@pytest.mark.parametrize("backend", ["serial", "pool"])
def test_callbacks_read_the_names_that_they_read_in_stable_baselines3(backend: str) -> None:
    successes: list[bool] = []
    last: dict[str, Any] = {}

    def callback(names: dict[str, Any], _: dict[str, Any]) -> None:
        last.update(names)
        assert names["done"] == names["dones"][names["infos"].index(names["info"])] or not names["info"]
        if names["done"]:
            successes.append(names["info"]["is_success"])
            assert names["episode_rewards"][-1] == names["current_rewards"][names["i"]]

    how = {"backend": backend, "num_envs": 3, "fresh": "never"}
    returns, lengths = evaluate_policy(Model(), Countdown, 10, callback=callback, return_episode_rewards=True, **how)
    assert successes == [True] * 10
    assert sorted(last["episode_rewards"]) == sorted(returns) and sorted(last["episode_lengths"]) == sorted(lengths)
    assert last["episode_counts"].sum() == 10 and last["n_envs"] == 3


def test_what_cannot_be_evaluated_is_refused() -> None:
    with pufferlib.make(Countdown) as vec, pytest.raises(PlanError, match="pass what makes one of them, and num_envs="):
        evaluate_policy(Model(), vec)
    with pytest.raises(PlanError, match="render=True draws one environment in this process"):
        evaluate_policy(Model(), Countdown, render=True)


@pytest.mark.extras
def test_the_arguments_and_the_figures_are_those_of_stable_baselines3() -> None:
    evaluation = pytest.importorskip("stable_baselines3.common.evaluation")
    from stable_baselines3.common.monitor import Monitor

    theirs = inspect.signature(evaluation.evaluate_policy).parameters.values()
    ours = [*inspect.signature(evaluate_policy).parameters.values()][: len(theirs)]
    assert [(item.name, item.default) for item in ours] == [(item.name, item.default) for item in theirs]
    env = Fixed()
    assert evaluate_policy(Model(), env, 4) == evaluation.evaluate_policy(Model(), Monitor(env), 4)
    wrapped = gymnasium.wrappers.TransformReward(Monitor(env), lambda reward: 2 * reward)
    with pytest.warns(UserWarning, match="a Monitor below other wrappers, whose sums are not used"):
        assert evaluate_policy(Model(), wrapped, 4) == (12, 0)
    assert evaluate_policy(Model(), env, 4) == (6, 0)


class Fixed(Countdown):
    """All its episodes are equal."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left = 4
        return np.array([self.left], np.float32), {}
