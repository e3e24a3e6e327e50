"""The environments of the benchmarks: plain Gymnasium ones with a configurable cost, and real ones.

Every library steps the same class, so this file imports only Gymnasium (0.29 or later) and NumPy (1.23 or later).
Packages of real environments are imported in the functions that make them.
"""

from __future__ import annotations

import os
import signal
import time
from copy import deepcopy
from importlib import import_module
from importlib.util import find_spec
from itertools import chain, count, cycle, repeat
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

__all__ = [
    "FAULTS",
    "FAULTY_ENVS",
    "FAULT_MESSAGE",
    "REAL_ENVS",
    "RETURNS",
    "FaultyEnv",
    "PlainEnv",
    "ReturningEnv",
    "arm",
    "atari_vector",
    "breakout",
    "cartpole",
    "doorkey",
    "faulty_agents",
    "knights_archers_zombies",
    "lunarlander",
    "minigrid",
    "observation_space",
    "simple_tag",
]

NUM_DELAYS = 4096  # drawn in advance and used in turn: drawing one costs as much as a trivial step


def observation_space(kind: str) -> spaces.Space[Any]:
    """Return the space of "small", "large" or "nested" observations: 32 bytes, 28 kB, 12 leaves of about 1 kB."""
    if kind == "small":
        return spaces.Box(-1, 1, (8,), np.float32)
    if kind == "large":
        return spaces.Box(0, 255, (4, 84, 84), np.uint8)
    if kind != "nested":
        raise ValueError(f"observation={kind!r} is not 'small', 'large' or 'nested'")
    box = lambda *shape: spaces.Box(-1, 1, shape, np.float32)  # noqa: E731
    return spaces.Dict(
        {
            "body": spaces.Dict(
                {
                    "position": box(3),
                    "velocity": box(3),
                    "joints": box(17, 3),
                    "stance": spaces.Discrete(5),
                    "tool": spaces.Discrete(24),
                }
            ),
            "entities": spaces.Tuple((box(10, 10), spaces.Discrete(11))),
            "goal": spaces.Dict({"place": box(6), "item": spaces.Discrete(199)}),
            "lidar": box(64),
            "phase": spaces.Discrete(20),
            "view": spaces.Box(0, 255, (5, 5, 5), np.uint8),
        }
    )


class PlainEnv(gymnasium.Env[Any, Any]):
    """An environment that does nothing for a configurable time, and alternates between two observations.

    observation: "small", float32 (8,); "large", uint8 (4, 84, 84); "nested", a Dict of 12 leaves.
    mean_s: seconds that a step takes on average; 0: none, and ``step`` is as light as Python allows.
    spread: the standard deviation of a step's time, as a share of the mean; 0: none, 1: an exponential distribution,
        between: a gamma distribution.
    kind: "busy" uses that much CPU time, not counting interruptions; "sleep" leaves the CPU to others.
    episode_length: steps until an episode terminates. It does not truncate, since PufferLib 0.7 would never reset it.
    """

    metadata = {"render_modes": []}

    def __init__(
        self,
        observation: str = "small",
        mean_s: float = 0.0,
        spread: float = 0.0,
        kind: str = "busy",
        episode_length: int = 200,
    ) -> None:
        if kind not in ("busy", "sleep"):
            raise ValueError(f"kind={kind!r} is not 'busy' or 'sleep'")
        self.observation_space = observation_space(observation)
        self.action_space = spaces.Discrete(4)
        self._episode_length = episode_length
        self._mean_s, self._spread = mean_s, spread
        self._results: Any = None  # of the next steps: an observation, and whether the episode is over
        if mean_s > 0:
            self.step = self._busy_step if kind == "busy" else self._sleepy_step  # type: ignore[method-assign]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None or self._results is None:
            self.observation_space.seed(int(self.np_random.integers(2**31)))
            self._observations = cycle([self.observation_space.sample() for _ in range(2)])
            self._delays = cycle(self._draw_delays())
        ends = chain(repeat(False, self._episode_length - 1), (True,))
        self._results = zip(self._observations, ends, strict=False)
        return deepcopy(next(self._observations)), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Advance at almost no cost: no branch, no arithmetic, 90 ns."""
        observation, terminated = next(self._results)
        return observation, 1.0, terminated, False, {}

    def _busy_step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        clock = time.thread_time
        until = clock() + next(self._delays)
        while clock() < until:
            pass
        observation, terminated = next(self._results)
        return observation, 1.0, terminated, False, {}

    def _sleepy_step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(next(self._delays))
        observation, terminated = next(self._results)
        return observation, 1.0, terminated, False, {}

    def _draw_delays(self) -> list[float]:
        if not self._spread:
            return [self._mean_s]
        shape = self._spread**-2  # of a gamma distribution; 1 makes it exponential
        return [float(delay) for delay in self.np_random.gamma(shape, self._mean_s / shape, NUM_DELAYS)]


# -------------------------------------------------------------------------------------- what environments return

SMALL = spaces.Box(-1, 1, (8,), np.float32)


def _result(observation: Any = None, reward: Any = 1.0, flag: Any = False, info: Any = None) -> tuple[Any, ...]:
    """Return the result of a step, with plain values by default."""
    observation = np.linspace(-1, 1, 8, dtype=np.float32) if observation is None else observation
    return observation, reward, flag, flag, {} if info is None else info


def _entries(count: int, value: Any) -> dict[str, Any]:
    return {f"key_{index}": value for index in range(count)}


_FLOATS = np.linspace(-1, 1, 8)

# By name: the observation space, and the result of each step except the last of an episode.
RETURNS: dict[str, tuple[spaces.Space[Any], tuple[Any, ...]]] = {
    "plain": (SMALL, _result()),
    "reward np.float64": (SMALL, _result(reward=np.float64(1))),
    "reward np.float32": (SMALL, _result(reward=np.float32(1))),
    "reward int": (SMALL, _result(reward=1)),
    "reward 0-d": (SMALL, _result(reward=np.array(1.0))),
    "flag np.bool_": (SMALL, _result(flag=np.bool_(False))),
    "observation float64": (SMALL, _result(_FLOATS)),
    "observation list": (SMALL, _result(_FLOATS.tolist())),
    "observation bools": (spaces.MultiBinary(8), _result(_FLOATS > 0)),
    "observation number": (spaces.Box(-1, 1, (), np.float32), _result(0.5)),
    "observation Dict of four float64": (
        spaces.Dict(dict.fromkeys("abcd", SMALL)),
        _result(dict.fromkeys("abcd", _FLOATS)),
    ),
    "info of one": (SMALL, _result(info=_entries(1, 3))),
    "info of four": (SMALL, _result(info=_entries(4, 0.5))),
    "info of eight": (SMALL, _result(info=_entries(8, 0.5))),
    "info of one np.float64": (SMALL, _result(info=_entries(1, np.float64(3)))),
    "info of four np.float64": (SMALL, _result(info=_entries(4, np.float64(0.5)))),
    "info of eight np.float64": (SMALL, _result(info=_entries(8, np.float64(0.5)))),
    "info of an array": (SMALL, _result(info=_entries(1, np.zeros(4)))),
}

ACTIONS = {
    "number": lambda: spaces.Discrete(4),
    "tuple": lambda: spaces.Tuple((spaces.Discrete(4), spaces.Box(-1, 1, (2,), np.float32))),
}


class ReturningEnv(gymnasium.Env[Any, Any]):
    """An environment whose step costs almost nothing and returns the same objects each time, as many real ones do.

    returns: a key of RETURNS. episode_length: steps until an episode terminates. actions: a key of ACTIONS.
    """

    metadata = {"render_modes": []}

    def __init__(self, returns: str, episode_length: int = 200, actions: str = "number") -> None:
        self.observation_space, step = RETURNS[returns]
        self.action_space = ACTIONS[actions]()
        # A copy: some vectorizers add keys to the info of a step, and all other environments would return these, too.
        observation, reward, flag, _, info = deepcopy(step)
        step = (observation, reward, flag, flag, info)
        last = (observation, reward, type(flag)(True), flag, info)
        self._begin = (observation, info)
        # Not itertools.cycle, which stores every item of an episode, however long.
        self._results = chain.from_iterable(chain(repeat(step, episode_length - 1), (last,)) for _ in count())

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._begin

    def step(self, action: Any) -> Any:
        return next(self._results)


# ------------------------------------------------------------------------------------------------------------ faults

FAULTS = ("raise", "kill", "hang")  # an exception; SIGKILL to the environment's process; a step that never returns
FAULT_MESSAGE = "the environment is broken"


def arm(path: str, fault: str) -> None:
    """Arm a fault: the next step of one environment that has this path performs it, and no later step."""
    assert fault in FAULTS, fault
    _write(path, fault)


def _break_down(path: str) -> None:
    """Perform the armed fault, if any, after writing the time (on the clock all processes share) to ``path.begun``."""
    try:
        os.rename(path, f"{path}.taken")  # succeeds for one environment only
    except FileNotFoundError:
        return
    with open(f"{path}.taken") as file:
        fault = file.read()
    _write(f"{path}.begun", repr(time.monotonic()))
    if fault == "raise":
        raise RuntimeError(FAULT_MESSAGE)
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    while True:
        time.sleep(1)


def _write(path: str, text: str) -> None:
    """Write a file atomically: readers see all of it or none."""
    with open(f"{path}.new", "w") as file:
        file.write(text)
    os.rename(f"{path}.new", path)


class FaultyEnv(PlainEnv):
    """A plain environment whose steps sleep for 1 ms, until one performs the armed fault."""

    def __init__(self, fault_file: str) -> None:
        super().__init__()
        self._fault_file = fault_file

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        _break_down(self._fault_file)
        time.sleep(1e-3)
        return super().step(action)


def faulty_agents(fault_file: str) -> Any:
    """Return simple_tag, a ParallelEnv, one of whose steps performs the armed fault."""
    from pettingzoo.utils import BaseParallelWrapper

    class FaultyAgents(BaseParallelWrapper):  # type: ignore[misc, type-arg]
        def step(self, actions: Any) -> Any:
            _break_down(fault_file)
            return super().step(actions)

    return FaultyAgents(simple_tag())


FAULTY_ENVS = {"faulty": FaultyEnv, "faulty_agents": faulty_agents}


# ------------------------------------------------------------------------------------------------- real ones


def cartpole() -> gymnasium.Env[Any, Any]:
    """Return CartPole-v1 without the passive checker, whose time is not part of the comparison."""
    return gymnasium.make("CartPole-v1", disable_env_checker=True)


def lunarlander(continuous: bool = False) -> gymnasium.Env[Any, Any]:
    """Return LunarLander-v3, with engines that are on or off, or continuously throttled."""
    return gymnasium.make("LunarLander-v3", continuous=continuous, disable_env_checker=True)


def doorkey() -> gymnasium.Env[Any, Any]:
    """Return MiniGrid's DoorKey-5x5 as 147 numbers: the 7 x 7 cells ahead, without the mission's text."""
    import minigrid.wrappers

    env = minigrid.wrappers.ImgObsWrapper(gymnasium.make("MiniGrid-DoorKey-5x5-v0", disable_env_checker=True))
    space = spaces.Box(0, 255, (147,), np.float32)
    flat = lambda image: image.reshape(-1).astype(np.float32)  # noqa: E731
    return gymnasium.wrappers.TransformObservation(env, flat, space)


def breakout() -> gymnasium.Env[Any, Any]:
    """Return ALE's Breakout preprocessed as for DQN by Gymnasium's wrappers: uint8 (4, 84, 84), 4 frames a step."""
    from ale_py import registration

    if "ALE/Breakout-v5" not in gymnasium.registry:  # ALE does not notice Gymnasium 0.29, but works with it
        registration.register_v5_envs()
    wrappers = gymnasium.wrappers
    env = gymnasium.make("ALE/Breakout-v5", frameskip=1, disable_env_checker=True)
    env = wrappers.AtariPreprocessing(env, noop_max=30, frame_skip=4, screen_size=84)
    if hasattr(wrappers, "FrameStackObservation"):
        return wrappers.FrameStackObservation(env, 4)
    return wrappers.TransformObservation(wrappers.FrameStack(env, 4), np.asarray)


def atari_vector(num_envs: int, num_threads: int) -> Any:
    """Return ALE's vector environment of Breakout, which preprocesses and copies in C++ threads."""
    from ale_py.vector_env import AtariVectorEnv

    return AtariVectorEnv("breakout", num_envs, num_threads=num_threads)


def minigrid() -> gymnasium.Env[Any, Any]:
    """Return an empty MiniGrid room with images only: most libraries do not handle the text of the mission."""
    import minigrid.wrappers

    env = gymnasium.make("MiniGrid-Empty-8x8-v0", disable_env_checker=True)
    return minigrid.wrappers.ImgObsWrapper(env)


def simple_tag() -> Any:
    """Return MPE's simple_tag, a ParallelEnv of 3 chasers and 1 runner whose observations differ in length."""
    try:
        from mpe2 import simple_tag_v3
    except ImportError:  # mpe2 requires a newer Gymnasium
        from pettingzoo.mpe import simple_tag_v3

    return simple_tag_v3.parallel_env(max_cycles=100)


def knights_archers_zombies() -> Any:
    """Return PettingZoo's knights_archers_zombies, a ParallelEnv of 4 players that die one by one."""
    module = "pettingzoo.butterfly.knights_archers_zombies_v"
    newest = next(version for version in (11, 10) if find_spec(f"{module}{version}"))
    return import_module(f"{module}{newest}").parallel_env()


REAL_ENVS = {
    "cartpole": cartpole,
    "breakout": breakout,
    "minigrid": minigrid,
    "simple_tag": simple_tag,
    "knights_archers_zombies": knights_archers_zombies,
}
