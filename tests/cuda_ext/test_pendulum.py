"""classic/pendulum: the rules are Gymnasium's, and the kernel swings up as the reference does."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from devices import LOOPS, array_of, assert_same_bits
from gymnasium.utils.env_checker import check_env

from cuda_ext.references.classic_pendulum import ClassicPendulum
from pufferlib.testing import check_kernel

pytestmark = pytest.mark.beside


def test_the_rules_are_gymnasiums() -> None:
    """From the same states, also with the fastest speeds, to the rounding of float32."""
    random = np.random.default_rng(1)
    original: Any = gymnasium.make("Pendulum-v1").unwrapped
    env = ClassicPendulum()
    original.reset(seed=1)
    env.reset(seed=1)
    assert (env.observation_space, env.action_space) == (original.observation_space, original.action_space)
    speeds = []
    for _ in range(600):
        state = (random.uniform(-1, 1, 2) * (np.pi, 8)).astype(np.float32)
        env.theta, env.theta_dot = state
        original.state = state.astype(np.float64)
        action = random.uniform(-2.5, 2.5, 1).astype(np.float32)  # beyond the bounds, too
        expected, actual = original.step(action), env.step(action)
        np.testing.assert_allclose(actual[0], expected[0], rtol=1e-5, atol=3e-6)
        np.testing.assert_allclose(actual[1], expected[1], rtol=1e-5, atol=1e-6)
        assert actual[2] is expected[2] is False
        speeds.append(abs(float(env.theta_dot)))
    assert 5 < np.sum(np.equal(speeds, 8)) < 500


def test_an_episode_is_gymnasiums() -> None:
    """With the same start and actions for 200 steps, in which errors of rounding grow."""
    original: Any = gymnasium.make("Pendulum-v1")
    env = ClassicPendulum()
    original.reset(seed=1)
    env.reset(seed=1)
    original.unwrapped.state = np.array([env.theta, env.theta_dot], np.float64)
    returns = np.zeros(2)
    for _ in range(200):
        action = np.sign([env.theta_dot]).astype(np.float32) * 2  # it goes round many times
        expected, actual = original.step(action), env.step(action)
        np.testing.assert_allclose(actual[0], expected[0], atol=2e-3)
        returns += expected[1], actual[1]
        assert actual[2:4] == expected[2:4]
    assert actual[3]
    assert returns[0] == pytest.approx(returns[1], abs=0.1)


def push(observations: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Torque that brings the energy to that of rest at the top; near the top, torque against angle and speed."""
    cosine, sine, speed = observations.T
    lacking = 15 - (speed**2 / 2 + 15 * cosine)
    pump = np.where(speed < 0, -lacking, lacking)
    return np.where(cosine > 0.95, -10 * sine - 2 * speed, pump).astype(np.float32)[:, None]


def test_the_right_torque_swings_up_and_holds() -> None:
    with LOOPS.make("classic/pendulum", num_envs=8, seed=1) as vec:
        vec.reset()
        infos: list[Any] = []
        for _ in range(200):
            infos += vec.step(push(array_of(vec.batch.observations)))[4]
        assert (array_of(vec.batch.observations)[:, 0] > 0.99).all()
    returns = [info["episode"]["r"] for info in infos]
    assert len(returns) == 8 and min(returns) > -900  # about -1,200 by chance


def test_numbers_beyond_the_bounds_are_clipped() -> None:
    with (
        LOOPS.make("classic/pendulum", num_envs=3, seed=1) as vec,
        LOOPS.make("classic/pendulum", num_envs=3, seed=1) as other,
    ):
        vec.reset()
        other.reset()
        for number in (5, -1e30, 2, 0.5):
            vec.step(np.full((3, 1), number, np.float32))
            other.step(np.full((3, 1), np.clip(number, -2, 2), np.float32))
            assert_same_bits(vec.batch.observations, other.batch.observations)
            assert_same_bits(vec.batch.rewards, other.batch.rewards)


def test_an_episode_of_200_steps_equals_the_reference() -> None:
    report = check_kernel("classic/pendulum", device="host", num_envs=1, num_steps=202)
    assert report.passed, str(report)
    assert report.num_episodes > 0


def test_as_an_environment_of_gymnasium() -> None:
    check_env(ClassicPendulum(render_mode="ansi"))
    env = ClassicPendulum(max_episode_steps=5)
    env.reset(seed=3)
    assert [env.step(np.zeros(1, np.float32))[3] for _ in range(5)] == [False] * 4 + [True]
    with pytest.raises(ValueError, match="max_episode_steps=0 is impossible"):
        ClassicPendulum(max_episode_steps=0)
    with pytest.raises(ValueError, match="render_mode='human' is unknown"):
        ClassicPendulum(render_mode="human")


def test_the_pendulum_is_drawn_where_it_is() -> None:
    env = ClassicPendulum(render_mode="ansi")
    env.reset(seed=1)
    ends = []
    for angle in (0.0, np.pi / 2, np.pi):
        env.theta = np.float32(angle)
        lines = env.render().splitlines()
        ends += [(row, line.index("o")) for row, line in enumerate(lines) if "o" in line]
        assert lines[8][16] == "+"
    assert ends == [(0, 16), (8, 32), (16, 16)]
    assert ClassicPendulum().render() is None
