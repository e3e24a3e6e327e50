"""Squared: its rules, its stated scores, its parameters and pictures."""

from __future__ import annotations

import math

import gymnasium
import numpy as np
import pytest

import pufferlib
from ocean.squared import MOVES, Squared

pytestmark = pytest.mark.beside


def wrapped(**kwargs):
    return pufferlib.wrap(Squared(**kwargs))


def positions(grid, value):
    return [tuple(cell) for cell in np.argwhere(grid == value).tolist()]


def play(env, policy, num_episodes, seed):
    """Return the scores of ``num_episodes``; policy(env) gives the action."""
    scores = []
    env.reset(seed=seed)
    while len(scores) < num_episodes:
        _, _, terminated, _, info = env.step(policy(env))
        if terminated:
            scores.append(info["score"])
            env.reset()
    return scores


@pytest.mark.parametrize("params", [{}, {"distance": 1}, {"distance": 2, "num_targets": 3}, {"num_targets": 24}])
def test_solve_reaches_the_best_score(params):
    scores = play(wrapped(**params), lambda env: int(env.env.solve()[0]), 50, seed=1)
    assert scores == [Squared.best] * 50


def test_uniform_play_scores_chance():
    num_episodes = 20_000
    rng = np.random.default_rng(1)
    mean = np.mean(play(wrapped(), lambda env: int(rng.integers(8)), num_episodes, seed=2))
    deviation = math.sqrt(Squared.chance * (1 - Squared.chance) / num_episodes)
    assert abs(mean - Squared.chance) < 4 * deviation


@pytest.mark.parametrize("params", [{}, {"distance": 1}, {"distance": 2, "num_targets": 3}])
def test_rules(params):
    """Replay random play with rules rewritten from the description."""
    env = wrapped(**params)
    d, num_targets = params.get("distance", 3), params.get("num_targets", 1)
    rng = np.random.default_rng(3)
    for seed in range(100):
        grid, _ = env.reset(seed=seed)
        targets = positions(grid, 1)
        middle = agent = (d, d)
        assert positions(grid, -1) == [middle]
        assert len(targets) == num_targets
        assert all(max(abs(row - d), abs(column - d)) == d for row, column in targets)
        left = list(targets)
        for step in range(num_targets * d):
            action = int(rng.integers(8))
            agent = (agent[0] + MOVES[action][0], agent[1] + MOVES[action][1])
            nearest = min(max(abs(agent[0] - row), abs(agent[1] - column)) for row, column in left)
            grid, reward, terminated, truncated, info = env.step(action)
            assert reward == pytest.approx(1 - nearest / d)
            if agent in left:
                left.remove(agent)
            if max(abs(agent[0] - d), abs(agent[1] - d)) == d:
                agent = middle
            assert positions(grid, -1) == [agent]
            assert positions(grid, 1) == targets
            assert grid in env.observation_space
            assert not truncated
            assert terminated == (step == num_targets * d - 1)
            assert ("score" in info) == terminated
        assert info["score"] == pytest.approx(1 - len(left) / num_targets)


def test_targets_differ_between_episodes_and_repeat_with_the_seed():
    env = wrapped()
    first = [env.reset(seed=4)[0].copy()] + [env.reset()[0].copy() for _ in range(200)]
    again = [env.reset(seed=4)[0].copy()] + [env.reset()[0].copy() for _ in range(200)]
    np.testing.assert_array_equal(first, again)
    assert len({positions(grid, 1)[0] for grid in first}) == 24


def test_global_generators_are_left_alone():
    np.random.seed(1)
    before = np.random.get_state()[1].tolist()
    play(wrapped(), lambda env: 0, 5, seed=1)
    assert np.random.get_state()[1].tolist() == before


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"distance": 0}, "distance=0 leaves no room"),
        ({"num_targets": 0}, "num_targets=0 must be 1 to 24"),
        ({"distance": 1, "num_targets": 9}, "num_targets=9 must be 1 to 8"),
        ({"render_mode": "human"}, 'use "ansi", "rgb_array" or None'),
    ],
)
def test_impossible_parameters_are_refused(params, message):
    with pytest.raises(ValueError, match=message):
        Squared(**params)


def test_pictures():
    env = wrapped(distance=1, render_mode="ansi")
    env.reset(seed=1)
    lines = env.render().split("\n")
    assert [line.count("██") for line in lines] == [3, 3, 3]
    assert lines[1].count("\033[91m██") == 1  # the agent, red, in the middle row
    assert sum(line.count("\033[94m██") for line in lines) == 1  # the target, blue
    assert sum(line.count("\033[90m██") for line in lines) == 7  # empty, grey

    env = wrapped(distance=2, render_mode="rgb_array")
    env.reset(seed=1)
    picture = env.render()
    assert picture.dtype == np.uint8
    assert picture.shape == (160, 160, 3)
    red, green, blue = picture[80, 80]
    assert red > max(green, blue)
    assert wrapped().render() is None


def test_as_a_gymnasium_environment():
    env = wrapped()
    assert isinstance(env, gymnasium.Env)
    assert env.observation_space == gymnasium.spaces.Box(-1, 1, (7, 7), np.float32)
    assert env.action_space == gymnasium.spaces.Discrete(8)
    from gymnasium.utils.env_checker import check_env

    check_env(env, skip_render_check=True)
