"""classic/acrobot: the rules are Gymnasium's, and the kernel swings up as the reference does."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from devices import LOOPS, array_of
from gymnasium.utils.env_checker import check_env

from cuda_ext.references.classic_acrobot import ClassicAcrobot
from pufferlib.testing import check_kernel

pytestmark = pytest.mark.beside


def test_the_rules_are_gymnasiums() -> None:
    """From the same states, also with the fastest speeds and near the line, to the rounding of float32."""
    random = np.random.default_rng(1)
    original: Any = gymnasium.make("Acrobot-v1").unwrapped
    env = ClassicAcrobot()
    original.reset(seed=1)
    env.reset(seed=1)
    assert (env.observation_space, env.action_space) == (original.observation_space, original.action_space)
    ends = []
    for number in range(600):
        size = (np.pi, np.pi, 4 * np.pi, 9 * np.pi) if number % 2 else (np.pi, np.pi, 1, 1)
        state = (random.uniform(-1, 1, 4) * size).astype(np.float32)
        env.theta1, env.theta2, env.theta1_dot, env.theta2_dot = state
        original.state = state.astype(np.float64)
        action = int(random.integers(3))
        expected, actual = original.step(action), env.step(action)
        np.testing.assert_allclose(actual[0], expected[0], rtol=1e-4, atol=3e-4)
        theta1, theta2, _, _ = original.state
        if abs(-np.cos(theta1) - np.cos(theta1 + theta2) - 1) > 1e-3:
            assert actual[1:3] == expected[1:3]
            ends.append(actual[2])
    assert 20 < sum(ends) < 580


def test_torque_along_the_speed_of_the_second_link_swings_up() -> None:
    with LOOPS.make("classic/acrobot", num_envs=8, seed=1) as vec:
        vec.reset()
        infos: list[Any] = []
        for _ in range(300):
            speeds = array_of(vec.batch.observations)[:, 5]
            infos += vec.step(np.where(speeds < 0, 0, 2))[4]
    episodes = [info["episode"] for info in infos]
    assert len(episodes) >= 8 and max(episode["l"] for episode in episodes) < 300
    assert [episode["r"] for episode in episodes] == [1 - episode["l"] for episode in episodes]


def test_an_episode_of_500_steps_equals_the_reference() -> None:
    report = check_kernel("classic/acrobot", device="host", num_envs=1, num_steps=502)
    assert report.passed, str(report)
    assert report.num_episodes > 0


def test_as_an_environment_of_gymnasium() -> None:
    check_env(ClassicAcrobot(render_mode="ansi"))
    env = ClassicAcrobot(max_episode_steps=5)
    env.reset(seed=3)
    assert [env.step(k % 3)[3] for k in range(5)] == [False] * 4 + [True]
    with pytest.raises(ValueError, match="max_episode_steps=0 is impossible"):
        ClassicAcrobot(max_episode_steps=0)
    with pytest.raises(ValueError, match="render_mode='human' is unknown"):
        ClassicAcrobot(render_mode="human")


def test_the_links_are_drawn_where_they_are() -> None:
    env = ClassicAcrobot(render_mode="ansi")
    env.reset(seed=1)
    ends = []
    for angles in ((0.0, 0.0), (np.pi / 2, np.pi / 2), (np.pi, 0.0)):
        env.theta1, env.theta2 = np.float32(angles)
        lines = env.render().splitlines()
        ends.append({(row, line.index("o")) for row, line in enumerate(lines) if "o" in line})
        assert lines[8][16] == "+" and lines[4].startswith("---")
    assert ends == [{(12, 16), (16, 16)}, {(8, 24), (4, 24)}, {(4, 16), (0, 16)}]
    assert ClassicAcrobot().render() is None
