"""The face for dm_env passes dm_env's own conformance suite, tells ends apart, and a learner of TimeSteps learns."""

from __future__ import annotations

import unittest
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from mock_envs import FaultyEnv, HashEnv
from tensor_batches import over_tensors

import pufferlib

pytest.importorskip("dm_env")
from dm_env import test_utils

from pufferlib.adapters.dm_env import DMEnvironment, make

pytestmark = [pytest.mark.extras, pytest.mark.beside]


class Nested(gymnasium.Env[Any, Any]):
    """Draws what it shows, every kind of leaf; episodes of three steps."""

    def __init__(self) -> None:
        self.observation_space = Dict(
            box=Box(-1, 1, (2,), np.float32), rest=Tuple([Discrete(4, start=-2), MultiDiscrete([2, 3]), MultiBinary(2)])
        )
        self.action_space = Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.tick = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        self.tick += 1
        return self.observation_space.sample(), 0.5, self.tick == 3, False, {}


@pytest.mark.parametrize("env_creator", [HashEnv, Nested])
@pytest.mark.parametrize("backend", ["serial", "multiprocessing"])
def test_conforms(backend: str, env_creator: Any) -> None:
    class Conformance(test_utils.EnvironmentTestMixin, unittest.TestCase):  # type: ignore[misc]
        def make_object_under_test(self) -> Any:
            return make(env_creator, backend=backend, seed=1)

    suite = unittest.defaultTestLoader.loadTestsFromTestCase(Conformance)
    result = unittest.TestResult()
    suite.run(result)
    assert result.testsRun >= 4 and result.wasSuccessful(), [*result.failures, *result.errors]


def test_ends_have_the_discount_of_their_kind() -> None:
    seen = set()
    with make(HashEnv, seed=1) as env, pufferlib.make(HashEnv, seed=1) as vec:
        env.reset()
        vec.reset()
        for action in range(100):
            step = env.step(action)
            observations, rewards, terminations, truncations, _ = vec.step(np.array([action]))
            np.testing.assert_array_equal(step.observation, observations[0])
            assert step.last() == bool(terminations[0] or truncations[0])
            if not step.first():
                assert step.reward == rewards[0] and step.discount == 1 - terminations[0]
            seen.add((step.step_type, step.discount))
    assert len(seen) == 4  # the first, one in the middle, both kinds of ends
    with make(FaultyEnv, on_error="restart") as env:
        env.reset()
        crashed = env.step(991)
        assert crashed.last() and crashed.discount == 0 and env.step(0).first()
    with pufferlib.make(HashEnv, num_envs=2) as two, pytest.raises(pufferlib.PlanError, match="num_envs=1"):
        DMEnvironment(two)


@over_tensors
def test_plays_over_tensors_as_over_arrays(kwargs: dict[str, Any]) -> None:
    with make("classic/cartpole", seed=1, **kwargs) as env, make("classic/cartpole", seed=1) as expected:
        steps, num_ends = [(env.reset(), expected.reset())], 0
        for tick in range(120):
            steps.append((env.step(tick % 2), expected.step(tick % 2)))
            num_ends += steps[-1][0].last()
        for step, other in steps:  # all of which may be kept
            assert step[:3] == other[:3] and type(step.observation) is np.ndarray
            np.testing.assert_array_equal(step.observation, other.observation)
        assert num_ends > 1


def test_agents_cannot_be_rows() -> None:
    with pytest.raises(pufferlib.PlanError, match="dm_env cannot make agents rows"):
        make("ocean/multiagent", agents="rows")


def test_a_learner_of_time_steps_learns_bandit() -> None:
    rng, values = np.random.default_rng(1), np.ones(4)  # optimistic, so that each arm is tried
    with make("ocean/bandit") as env:
        scores = []
        for _ in range(100):
            step = env.reset()
            while not step.last():
                action = int(rng.choice(np.flatnonzero(values == values.max())))
                step = env.step(action)
                values[action] += 0.5 * (step.reward - values[action])
            scores.append(step.reward)
    assert np.mean(scores[50:]) >= 0.9
