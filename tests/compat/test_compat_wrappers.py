"""PufferLib's wrappers, its namespace and its helper functions."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from compat_programs import Counter, Team
from gymnasium import spaces

import pufferlib
import pufferlib.emulation
import pufferlib.environments
import pufferlib.namespace
import pufferlib.postprocess
import pufferlib.spaces
import pufferlib.utils
import pufferlib.wrappers

pytestmark = [pytest.mark.beside, pytest.mark.usefixtures("no_version")]


class Scored(Counter):
    def step(self, action: Any) -> Any:
        *values, _ = super().step(action)
        return *values, {"score": 2, "parts": {"x": np.array([1.0, 2.0])}, "text": "t"}


def test_episode_stats() -> None:
    env = pufferlib.EpisodeStats(Scored(length=3))
    env.reset(seed=1)
    assert env.step(1)[4] == {}
    env.step(2)
    info = env.step(3)[4]
    assert (info["episode_return"], info["episode_length"], info["score"]) == (6, 3, 6)
    assert info["parts/x"].tolist() == [3, 6]
    assert "text" not in info
    env.reset()
    assert env.step(1)[4] == {}


def test_episode_stats_sum_numbers_and_arrays_alone() -> None:
    class Odd(Counter):
        won = np.zeros(1)

        def step(self, action: Any) -> Any:
            *values, _ = super().step(action)
            self.won += 1
            numbers = {"ok": np.True_, "small": np.uint8(200), "smalls": np.full(2, 200, np.uint8), "won": self.won}
            changing = self.tick if self.tick < 3 else "over"
            others = {"list": [1, 2], "changing": changing, "ragged": np.ones(self.tick + 1)}
            return *values, {**numbers, **others}

    env = pufferlib.EpisodeStats(Odd(length=3))
    env.reset()
    env.step(0)
    env.step(0)
    info = env.step(0)[4]
    assert (info["ok"], info["small"], info["smalls"].tolist(), info["changing"]) == (3, 600, [600, 600], 3)
    assert type(info["ok"]) is int
    assert info["won"].tolist() == [1 + 2 + 3]
    assert not {"list", "ragged"} & info.keys()


def test_wrappers_pass_on_attributes() -> None:
    box = Counter(7)
    box.action_space = spaces.Box(-1, 1, (1,))
    for env in (pufferlib.EpisodeStats(Counter(7)), pufferlib.ClipAction(box)):
        assert env.length == 7
        assert not hasattr(env, "_private")
        assert not hasattr(env, "nothing")


def test_episode_stats_of_an_object_that_is_no_gymnasium_environment() -> None:
    class Plain:
        observation_space, action_space = Counter().observation_space, Counter().action_space
        name = "plain"

        def reset(self, seed: Any = None) -> Any:
            return np.zeros(2, np.float32), {}

        def step(self, action: Any) -> Any:
            return np.zeros(2, np.float32), 2.0, True, False, {}

    env = pufferlib.emulation.GymnasiumPufferEnv(pufferlib.EpisodeStats(Plain()))
    env.reset(seed=1)
    assert env.step(0)[4]["episode_return"] == 2
    assert env.env.env.name == "plain"
    env.close()


def test_stats_of_several_agents() -> None:
    env = pufferlib.MultiagentEpisodeStats(Team())
    env.reset()
    assert env.possible_agents == ["a0", "a1", "a2"]
    env.step({"a0": 1, "a1": 2, "a2": 3})
    infos = env.step({"a0": 1, "a1": 2, "a2": 3})[4]
    assert (infos["a0"]["episode_return"], infos["a0"]["episode_length"], infos["a1"]) == (2, 2, {})

    means = pufferlib.postprocess.MeanOverAgents(Team())
    means.reset()
    assert means.step({"a0": 1, "a1": 2, "a2": 3})[4] == {"tick": 1}


def test_a_wrapper_of_pettingzoo_hides_private_attributes() -> None:
    env = pufferlib.wrappers.PettingZooWrapper(Team())
    assert env.late is False
    with pytest.raises(AttributeError):
        env._private  # noqa: B018


def test_resized_observations() -> None:
    class Image(Counter):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = spaces.Box(0, 255, (4, 6), np.uint8)

        def reset(self, **kwargs: Any) -> Any:
            super().reset(**kwargs)
            return np.arange(24, dtype=np.uint8).reshape(4, 6), {}

    env = pufferlib.ResizeObservation(Image())
    assert env.observation_space.shape == (2, 3)
    assert env.reset()[0].tolist() == [[0, 2, 4], [12, 14, 16]]
    with pytest.raises(ValueError, match="4"):
        pufferlib.ResizeObservation(Image(), downscale=4)


def test_clipped_actions() -> None:
    class Echo(Counter):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = spaces.Box(-1, 1, (1,), np.float32)

        def step(self, action: Any) -> Any:
            return np.zeros(2, np.float32), float(action[0]), False, False, {}

    env = pufferlib.ClipAction(Echo())
    assert env.action_space.high[0] > 1e30
    env.reset()
    assert env.step(np.array([5.0]))[1] == 1
    with pytest.raises(ValueError, match="Box"):
        pufferlib.ClipAction(Counter())


def test_environments_of_old_gym() -> None:
    class Old:
        observation_space, action_space = spaces.Box(0, 1, (1,)), spaces.Discrete(2)

        def seed(self, seed: int) -> None:
            self.value = seed

        def reset(self) -> Any:
            return np.float32([self.value])

        def step(self, action: Any) -> Any:
            return np.float32([1]), 1.0, True, {}

    env = pufferlib.wrappers.GymToGymnasium(Old())
    assert env.reset(seed=3) == (np.float32([3]), {})
    assert env.step(0)[1:] == (1.0, True, False, {})


def test_namespaces() -> None:
    space = pufferlib.namespace.namespace(a=1, b=2)
    assert (space.a, space["b"], dict(**space), len(space), [*space.items()]) == (
        1,
        2,
        {"a": 1, "b": 2},
        2,
        [("a", 1), ("b", 2)],
    )
    target = SimpleNamespace()
    pufferlib.namespace.namespace(target, x=3)
    assert target.x == 3
    with pytest.raises(TypeError):
        space["a"] = 3

    @pufferlib.dataclass
    class Settings:
        rate: float
        steps = 5

    @pufferlib.dataclass
    class MoreSettings(Settings):
        steps = 6
        size: int = 3

    assert {**MoreSettings(rate=0.5)} == {"rate": 0.5, "size": 3, "steps": 6}
    with pytest.raises(TypeError, match="rate"):
        MoreSettings()
    settings = Settings(rate=0.5)
    assert (settings.rate, settings["steps"], {**settings}) == (0.5, 5, {"rate": 0.5, "steps": 5})
    assert [*Settings(steps=2, rate=1).values()] == [1, 2]
    with pytest.raises(TypeError, match="rate"):
        Settings()


def test_nested_dicts() -> None:
    assert [*pufferlib.unroll_nested_dict({"a": {"b": 1, "c": {"d": 2}}, "e": [3]})] == [
        ("a/b", 1),
        ("a/c/d", 2),
        ("e", [3]),
    ]
    assert [*pufferlib.utils.unroll_nested_dict(3)] == []


def test_suppressed_output(capfd: pytest.CaptureFixture[str]) -> None:
    with pufferlib.Suppress():
        print("nothing")
        print("nothing", file=sys.stderr)
    print("something")
    assert capfd.readouterr() == ("something\n", "")


def test_classes_of_spaces() -> None:
    assert isinstance(spaces.Discrete(3), pufferlib.spaces.Discrete)
    assert not isinstance(spaces.Discrete(3), pufferlib.spaces.Box)
    assert pufferlib.spaces.joint_space(spaces.Discrete(3), 2) == spaces.MultiDiscrete([3, 3])
    assert pufferlib.spaces.joint_space(spaces.MultiDiscrete([3, 4]), 2).high.tolist() == [[2, 3]] * 2
    assert pufferlib.spaces.joint_space(spaces.Box(0, 1, (3,)), 2).shape == (2, 3)
    assert pufferlib.spaces.joint_space(spaces.MultiBinary(3), 2) == spaces.Box(0, 1, (2, 3), np.int8)
    shifted = pufferlib.spaces.joint_space(spaces.Discrete(3, start=5), 2)
    assert (shifted.contains(np.array([5, 7])), shifted.contains(np.array([4, 7]))) == (True, False)
    with pytest.raises(ValueError, match="Text"):
        pufferlib.spaces.joint_space(spaces.Text(3), 2)


def test_profilers() -> None:
    profiler = pufferlib.utils.Profiler()
    with profiler:
        pass
    profiler.start()
    profiler.stop()
    assert profiler.calls == 2
    assert 0 <= profiler.delta <= profiler.elapsed

    class Worker:
        @pufferlib.utils.profile
        def work(self) -> int:
            return 3

    worker = Worker()
    assert worker.work() == 3
    assert pufferlib.utils.aggregate_profilers([worker._timers, worker._timers])["work"].calls == 2


def test_helper_functions() -> None:
    def train(env: Any, rate: float = 0.5, steps: Any = None) -> None: ...

    assert pufferlib.utils.get_init_args(train) == {"rate": 0.5, "steps": None}
    with pytest.raises(ValueError, match="speed"):
        pufferlib.utils.validate_args(train, {"speed": 1})
    zeros = pufferlib.utils.make_zeros_like({"a": np.ones(2), "b": (1, 2.0)})
    assert (zeros["a"].tolist(), zeros["b"]) == ([0, 0], (0, 0.0))
    assert pufferlib.utils.compare_space_samples({"a": np.ones(2)}, {"a": np.ones((3, 2))}, 1)
    assert not pufferlib.utils.compare_space_samples({"a": np.ones(2)}, {"a": np.zeros(2)})
    assert pufferlib.utils.format_bytes(1536 * 1024) == "1.50 MB"
    assert pufferlib.utils.is_multiagent(Team())
    assert not pufferlib.utils.is_multiagent(gymnasium.make("CartPole-v1"))
    assert pufferlib.environments.try_import("os.path") is os
    with pytest.raises(pufferlib.EnvironmentSetupError, match="no_such_game"):
        pufferlib.environments.try_import("no_such_game")
    state = pufferlib.utils.RandomState(1)
    assert state.probabilistic_round(3.0) == 3
    assert sorted(state.sample([1, 2, 3], 3)) == [1, 2, 3]
