"""classic/mountain_car: the rules are Gymnasium's, and the kernel reaches the goal as the reference does."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from devices import Player, array_of
from gymnasium.utils.env_checker import check_env

from cuda_ext.references.classic_mountain_car import ClassicMountainCar
from pufferlib.testing import check_kernel

pytestmark = pytest.mark.beside


def test_the_rules_are_gymnasiums() -> None:
    """From the same states, also at the wall and at the goal, to the rounding of float32."""
    random = np.random.default_rng(1)
    original: Any = gymnasium.make("MountainCar-v0").unwrapped
    env = ClassicMountainCar()
    original.reset(seed=1)
    env.reset(seed=1)
    assert (env.observation_space, env.action_space) == (original.observation_space, original.action_space)
    seen = set()
    for _ in range(2000):
        env.position, env.velocity = (random.uniform(-1, 1, 2) * [0.9, 0.07] - [0.3, 0]).astype(np.float32)
        original.state = (float(env.position), float(env.velocity))
        action = int(random.integers(3))
        expected, actual = original.step(action), env.step(action)
        near = min(abs(expected[0][0] - 0.5), abs(expected[0][0] + 1.2) or 1) < 1e-6
        if not near:
            np.testing.assert_allclose(actual[0], expected[0], rtol=1e-6, atol=1e-6)
            assert actual[1:3] == expected[1:3]
        seen.add((bool(actual[2]), bool(actual[0][0] == np.float32(-1.2))))
    assert seen == {(True, False), (False, True), (False, False)}  # it arrived, stopped, and drove on


def test_pushing_along_the_velocity_reaches_the_goal(player: Player) -> None:
    with player.make("classic/mountain_car", num_envs=20, seed=1) as vec:
        vec.reset()
        infos: list[Any] = []
        for _ in range(199):
            velocities = array_of(vec.batch.observations)[:, 1]
            infos += vec.step(np.where(velocities < 0, 0, 2))[4]
    lengths = [info["episode"]["l"] for info in infos]
    assert len(lengths) >= 20 and max(lengths) < 200
    assert [info["episode"]["r"] for info in infos] == [-length for length in lengths]


def test_full_episodes_equal_the_reference(player: Player) -> None:
    report = check_kernel(
        "classic/mountain_car", device=player.device, backend_kwargs=player.backend_kwargs, num_envs=2, num_steps=202
    )
    assert report.passed, str(report)
    assert report.num_episodes > 0


def test_as_an_environment_of_gymnasium() -> None:
    check_env(ClassicMountainCar(render_mode="ansi"))
    env = ClassicMountainCar(max_episode_steps=5)
    env.reset(seed=3)
    assert [env.step(k % 3)[3] for k in range(5)] == [False] * 4 + [True]
    with pytest.raises(ValueError, match="max_episode_steps=0 is impossible"):
        ClassicMountainCar(max_episode_steps=0)
    with pytest.raises(ValueError, match="render_mode='human' is unknown"):
        ClassicMountainCar(render_mode="human")


def test_the_car_is_drawn_where_it_is() -> None:
    env = ClassicMountainCar(render_mode="ansi")
    env.reset(seed=1)
    columns = []
    for position in (-1.0, -0.5, 0.4):
        env.position = np.float32(position)
        lines = env.render().splitlines()
        (line,) = (line for line in lines if "O" in line)
        columns.append(line.index("O"))
    assert columns == [7, 23, 53]  # 60 columns for 1.8
    assert ClassicMountainCar().render() is None
