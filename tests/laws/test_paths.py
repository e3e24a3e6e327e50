"""The compiled and the portable path are one path: the same programs give the same bytes, infos and errors on both."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import hashlib
import os
import pickle
import random
import signal
import sys
import threading
import time
import types
import warnings
from collections import defaultdict, namedtuple
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Sequence, Text, Tuple
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix import covering
from mock_envs import HashPopulation, NestedHashEnv, TagEnv

import pufferlib
from pufferlib import _native
from pufferlib.adapters.gymnasium_vector import AsyncVectorEnv, SyncVectorEnv
from pufferlib.emulation.action_masks import mask_size

pytestmark = pytest.mark.beside

if not _native.available:
    pytest.skip(f"there is one path only: {_native.reason}", allow_module_level=True)

BACKENDS = ("serial", "multiprocessing", "pool")
MODES = ("next_step", "same_step", "disabled")


def on_both(play: Callable[[], Any]) -> tuple[Any, Any]:
    """Return what a program gives on the compiled and on the portable path. Forked workers take the same one."""
    results = []
    for available in (True, False):
        with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of dtypes that are cast; workers would write it to stderr
            patch.setattr(_native, "available", available)
            results.append(play())
    return results[0], results[1]


def plain(value: Any) -> Any:
    """Return a value as something that compares to the bit, without the seconds of episodes."""
    if isinstance(value, dict):
        return [(key, plain(item)) for key, item in value.items() if key != "t"]  # in their order
    if isinstance(value, (list, tuple, pufferlib.vectorization.Infos)):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray) and value.dtype.hasobject:  # whose bytes are addresses
        return plain(value.tolist())
    if isinstance(value, (np.ndarray, np.generic)):
        return value.dtype.str, value.shape, value.tobytes()
    return type(value).__name__, value.hex() if isinstance(value, float) else value


# -------------------------------------------------------------------------------- environments with every odd habit

OBSERVATIONS = {
    "float32": Box(-9, 9, (3,), np.float32),
    "float64": Box(-9, 9, (2, 2), np.float64),
    "scalar": Box(-9, 9, (), np.float32),
    "nine": Box(-9, 9, (1, 2, 1, 1, 1, 2, 1, 1, 1), np.float32),
    "eight": Box(-9, 9, (1, 2, 1, 1, 1, 2, 1, 1), np.int16),
    "image": Box(0, 255, (4, 3, 2), np.uint8),
    "nothing": Box(0, 1, (0,), np.float32),
    "discrete": Discrete(7, start=-3),
    "choices": MultiDiscrete([3, 4]),
    "bits": MultiBinary((2, 2)),
    "words": Text(6, charset="abc"),
    "many": Sequence(Box(-1, 1, (2,), np.float32)),
    "two": Tuple([Box(-9, 9, (2,), np.float32), Dict(a=Discrete(3))]),  # looks like an observation and an info
    "nested": Dict(
        a=Box(-9, 9, (3,), np.float32), b=Tuple([Discrete(5, start=2), MultiBinary(3)]),
        c=Dict(d=Box(-9, 9, (2, 2), np.float64), e=Text(4, charset="xyz")), f=Box(0, 255, (3,), np.uint8),
    ),
}  # fmt: skip
ACTIONS = {
    "discrete": Discrete(5),
    "started": Discrete(5, start=-2),
    "started short": Discrete(3, start=-2),
    "box": Box(-1, 1, (2,), np.float32),
    "double": Box(-1, 1, (1, 2), np.float64),
    "nothing": Box(0, 1, (0,), np.float32),
    "choices": MultiDiscrete([3, 4]),
    "bits": MultiBinary(3),
    "pair": Tuple([Discrete(3), Box(-1, 1, (1,), np.float32)]),
    "parts": Dict(push=Discrete(3), where=MultiDiscrete([2, 2])),
}

MASKABLE = [name for name, space in ACTIONS.items() if mask_size(space)]


@functools.cache
def samples(name: str) -> list[Any]:
    """Return some samples of a space of observations."""
    space = OBSERVATIONS[name]
    space.seed(1)
    return [tuple(space.sample())[:3] if name == "many" else space.sample() for _ in range(32)]


class Marked(np.ndarray):  # type: ignore[type-arg]
    """An array that is not quite an ndarray."""


class ForeignNumber:
    """A number that NumPy does not know."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __float__(self) -> float:
        return self.value


class Infos(dict):  # type: ignore[type-arg]
    """A dict that is not quite a dict."""


Five = namedtuple("Five", "observation reward terminated truncated info")
Two = namedtuple("Two", ["observation", "info"])
Pair = namedtuple("Pair", ["left", "right"])
SHARED = {"shared": 1}

# An array of the same values, as it came or as something else.
ARRAYS: list[Callable[[Any], Any]] = [
    lambda array: array,
    lambda array: np.asfortranarray(array).reshape(array.shape),
    lambda array: np.repeat(array, 2, axis=-1)[..., ::2] if array.ndim else array,
    lambda array: array.copy().view(Marked),
    lambda array: frozen(array),
    lambda array: array.astype(np.float64) if array.dtype.kind == "f" else array,
    lambda array: array.astype(array.dtype.newbyteorder()),
    lambda array: array.tolist(),
    lambda array: tuple(array.tolist()) if array.ndim else array.item(),
    lambda array: array.astype({"f": np.float16, "i": np.int64, "u": np.uint32}.get(array.dtype.kind, np.bool_)),
    lambda array: array > 0,
    lambda array: array.astype(np.int16) if array.dtype.kind == "f" else array[()],
]
REWARDS: list[Callable[[float], Any]] = [
    float, float, float, int, np.float64, np.float32, lambda reward: reward > 8, lambda reward: np.bool_(reward > 8),
    lambda reward: [reward, 0.5], lambda reward: np.array([reward]), np.asarray, lambda reward: -0.0,
    lambda reward: np.uint64(2**64 - 1), np.float16, np.longdouble, lambda reward: np.full((1, 1), reward, ">f4"),
    lambda reward: np.array([reward, 1]), lambda reward: 2**70, lambda reward: np.int8(-reward), ForeignNumber,
    lambda reward: np.float64(1e39), lambda reward: -1e39,
]  # fmt: skip
FLAGS: list[Callable[[bool], Any]] = [
    bool, np.bool_, int, lambda flag: [flag], bool, float, np.asarray, np.float32, np.uint64,
    lambda flag: np.array([flag]), lambda flag: np.array([flag, True]), lambda flag: np.full((1, 1), flag, int),
]  # fmt: skip
INFOS: list[Callable[[int], Any]] = [
    lambda tick: {}, lambda tick: {}, lambda tick: {}, lambda tick: None, lambda tick: SHARED,
    lambda tick: {"tick": tick}, lambda tick: {"deep": {"array": np.arange(3) * tick}},
    lambda tick: Infos(sub=tick), lambda tick: {"episode": "mine"}, lambda tick: {"env_id": "x", "z": 1, "agent_id": 2},
    lambda tick: {"list": [np.ones(2), {"deep": [tick]}], "pair": (np.zeros(1), tick), "array": np.arange(tick % 5)},
    lambda tick: {"b": np.float32(tick), "a": np.bool_(tick % 2), "text": "x" * tick, "none": None, 3: "number"},
    lambda tick: {"marked": np.arange(3).view(Marked), "sub": Infos(deep=np.ones(2)), "two": Pair(1, [tick])},
]  # fmt: skip


def frozen(array: Any) -> Any:
    array = array.copy()
    array.flags.writeable = False
    return array


def with_habit(habit: Callable[[Any], Any], sample: Any) -> Any:
    """Return a sample whose arrays have a habit."""
    if isinstance(sample, dict):
        return {key: with_habit(habit, part) for key, part in sample.items()}
    if isinstance(sample, tuple):
        return tuple(with_habit(habit, part) for part in sample)
    return habit(sample) if isinstance(sample, np.ndarray) else sample


class Habits(gymnasium.Env[Any, Any]):
    """Draws what it observes, and in which odd forms it says so, from a hash of all that has been done to it."""

    def __init__(self, observed: str, acted: str, odd: float, env_index: int = 0, old: bool = True) -> None:
        self.observation_space, self.action_space = OBSERVATIONS[observed], ACTIONS[acted]
        self.observed, self.odd, self.env_index, self.old = observed, odd, env_index, old
        self.salt: Any = 0
        self.buffer = samples(observed)[0].copy() if isinstance(samples(observed)[0], np.ndarray) else None

    def note(self, *things: Any) -> None:
        self.digest = hashlib.md5(self.digest + pickle.dumps(things)).digest()

    def choose(self, options: Any, byte: int) -> Any:
        return options[self.digest[byte] % len(options)] if self.digest[0] < 256 * self.odd else options[0]

    def observe(self) -> Any:
        sample = samples(self.observed)[self.digest[2] % 32]
        if self.buffer is not None and self.digest[3] % 3 == 0:
            self.buffer[...] = sample  # which the next such observation overwrites
            return self.buffer
        return with_habit(self.choose(ARRAYS, 4), sample)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.digest = repr((self.env_index, int(self.np_random.integers(1 << 62)), options)).encode()
        self.tick = 0
        self.note(self.salt)
        result = self.observe(), self.choose(INFOS, 5) and self.choose(INFOS, 5)(0)
        if self.odd and self.old and self.digest[12] % 4 == 1:
            return result[0]
        return self.choose((tuple, tuple, Two._make), 15)(result)

    def step(self, action: Any) -> Any:
        self.tick += 1
        self.note(self.tick, plain(action), self.salt)
        reward, info = self.digest[6] / 16, self.choose(INFOS, 7)(self.tick)
        over, cut = self.digest[8] < 26, self.digest[9] < 13
        if self.odd and self.digest[10:12] == b"\x00\x00":
            info = {"large": bytes(3 << 20)}
        if self.odd and self.old and self.digest[12] % 16 == 1:
            return self.observe(), reward, over or cut, {"TimeLimit.truncated": cut, **(info or {})}
        flag = self.choose(FLAGS, 13)
        result = self.observe(), self.choose(REWARDS, 14)(reward), flag(over), flag(cut), info
        return self.choose((tuple, Five._make, list, tuple), 15)(result)

    def seasoned(self, salt: Any) -> int:
        self.salt = salt
        return self.tick


class Veiled(Habits):
    """Tells action masks, which its observations are to have."""

    def infos_of_step(self, result: Any) -> Any:
        bits = iter([byte % 2 for byte in self.digest] * 2)
        mask = mask_of(self.action_space, bits, self.choose(MASKS, 11))
        *others, info = result
        if self.digest[12] % 8 == 1:
            return result
        position = (1, 0)[self.digest[15] % 2]
        items = list((info or {}).items())
        items.insert(position * len(items), ("action_mask", mask))
        return type(result)((*others, type(info or {})(items))) if type(result) is tuple else result

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        result = super().reset(seed=seed, options=options)
        return self.infos_of_step(result) if type(result) is tuple and len(result) == 2 else result

    def step(self, action: Any) -> Any:
        return self.infos_of_step(super().step(action))


class Alone(pufferlib.PufferEnv):
    """A PufferEnv of one agent that at times replaces its buffers, dies without a flag, or tells infos."""

    single_observation_space = Box(-9, 999, (3,), np.float32)
    single_action_space = MultiDiscrete([3, 4])

    def __init__(self, odd: float, env_index: int = 0) -> None:
        self.odd, self.env_index, self.salt = odd, env_index, 0

    def note(self, *things: Any) -> None:
        self.digest = hashlib.md5(self.digest + pickle.dumps(things)).digest()
        self.observations[0] = [self.env_index, self.tick, self.digest[1]]

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        # As new: how far a pool had come when everything restarted is up to chance, and so is what it has replaced.
        self.observations, self.rewards = np.zeros((1, 3), np.float32), np.zeros(1, np.float32)
        self.digest, self.tick = repr((self.env_index, int(self.np_random.integers(1 << 62)), options)).encode(), 0
        self.note(self.salt)
        infos = self.infos_of_step()
        self.alive[:] = True  # or its first step ends the episode, of which no info tells
        return infos

    def step(self, actions: Any) -> Any:
        self.tick += 1
        self.note(actions.tolist(), self.salt)
        self.rewards[:] = self.digest[2] / 7
        self.terminations[:] = self.digest[3] < 20
        self.truncations[:] = self.digest[4] < 10
        return self.infos_of_step()

    def infos_of_step(self) -> Any:
        if self.digest[0] >= 256 * self.odd:
            return None
        what = self.digest[5] % 8
        if what == 0:
            self.rewards = self.rewards.astype((np.float32, np.float64)[self.digest[6] % 2])
        elif what == 1 and self.tick > 1:  # later than it is looked at, unless it always is
            self.observations = self.observations.astype((np.float64, np.float32)[self.digest[6] % 2])
        elif what == 2:
            self.terminations, self.truncations = self.terminations.copy(), self.truncations[::-1]
        elif what == 3:
            self.alive[:] = False
        elif what == 4:
            self.observations = np.asfortranarray(np.repeat(self.observations, 2, axis=1))[:, ::2]
        return (None, {}, {"tick": self.tick}, [{}], [{"listed": 1}])[self.digest[7] % 5]

    def seasoned(self, salt: Any) -> int:
        self.salt = salt
        return self.tick


MASKS: list[Callable[[list[int]], Any]] = [
    lambda mask: np.array(mask, np.int8), np.array, lambda mask: np.array(mask, np.float32), lambda mask: mask,
    lambda mask: None, lambda mask: np.array(mask, bool), lambda mask: np.array([mask], np.int8),
]  # fmt: skip
ODD_MASKS: list[Callable[[list[int]], Any]] = [
    *MASKS, np.uint8, tuple, lambda mask: np.repeat(mask, 2).astype(np.int8)[::2], lambda mask: list(map(bool, mask)),
    lambda mask: np.array(mask, ">i4"), lambda mask: np.array(mask, np.int8).view(Marked), lambda mask: mask[1:],
    lambda mask: np.array([*mask, 1]), lambda mask: np.array(mask, np.int8) * 3, lambda mask: np.array(mask) * 300,
    lambda mask: np.array(mask) * 2.0, lambda mask: [[x] for x in mask], lambda mask: [np.int64(x) for x in mask],
    lambda mask: "1" * len(mask), lambda mask: 1, lambda mask: np.array(mask, object), lambda mask: {0: mask, 1: mask},
    lambda mask: (np.array(mask[:1], np.int8), mask[1:]), lambda mask: np.array(mask, np.int8).view(np.bool_) * 2,
    lambda mask: (np.array(mask, np.uint8) * 5).view(np.bool_), lambda mask: np.full(len(mask), np.nan),
    lambda mask: [x * 1.0 for x in mask], lambda mask: np.array(mask, np.uint64) * (2**64 - 1),
    lambda mask: np.ones(()), lambda mask: [3 * x for x in mask], lambda mask: np.array([256 * x for x in mask], ">i2"),
]  # fmt: skip


def mask_of(space: Any, bits: Any, form: Callable[[list[int]], Any]) -> Any:
    """Return a mask as Gymnasium has it, its arrays in some form. bits: an iterator over which choices are allowed."""
    if isinstance(space, Dict):
        return {key: mask_of(part, bits, form) for key, part in space.spaces.items()}
    if isinstance(space, Tuple):
        return tuple(mask_of(part, bits, form) for part in space.spaces)
    if isinstance(space, MultiDiscrete):
        parts = tuple(form([next(bits) for _ in range(n)]) for n in space.nvec)
        return None if any(part is None for part in parts) else parts
    return form([next(bits) for _ in range(mask_size(space) or 0)])


GOOD_REWARDS = [reward for reward in REWARDS if np.size(reward(1.0)) == 1]  # several are an error for an agent


class Crowd:
    """A parallel environment of two teams, which draws who lives, what they are told, and in which odd forms.

    observed, acted: of each team, a key of OBSERVATIONS and of ACTIONS. masks: where action masks are. fates: what may
    happen to single agents ("die", "come", "linger"; "swap": often, and they come only in place of others). made_up:
    there are no possible_agents.
    """

    metadata: dict[str, Any] = {}

    def __init__(
        self, num: int, observed: Any, acted: Any, masks: str, fates: Any, made_up: bool, odd: float, env_index: int = 0
    ) -> None:
        self.env_index, self.odd, self.masks, self.fates, self.salt = env_index, odd, masks, fates, 0
        self.observed, self.names = observed, [f"{'red' if i % 2 else 'blue'}_{i}" for i in range(num)]
        if made_up:
            self.max_num_agents = num
        else:
            self.possible_agents = self.names
        self.state_space = Box(-9, 9, (3,), np.float32)
        self.action_spaces = [ACTIONS[name] for name in acted]
        self.spaces = [OBSERVATIONS[name] for name in observed]
        if masks == "observation":
            self.spaces = [Dict(observation=space, action_mask=MultiBinary(4)) for space in self.spaces]
        self.generator: Any = None

    def observation_space(self, agent: str) -> Any:
        return self.spaces[agent.startswith("red")]

    def action_space(self, agent: str) -> Any:
        return self.action_spaces[agent.startswith("red")]

    def state(self) -> Any:
        return self.choose(ARRAYS)(np.frombuffer(self.digest, np.int8)[:3].astype(np.float32))

    def note(self, *things: Any) -> None:
        self.digest = hashlib.md5(self.digest + pickle.dumps(things)).digest()
        self.draw = random.Random(self.digest)

    def is_odd(self, share: float = 1.0) -> bool:
        return self.draw.random() < self.odd * share

    def choose(self, options: Any) -> Any:
        return self.draw.choice(options) if self.is_odd() else options[0]

    def observe(self, agent: str) -> Any:
        sample = self.draw.choice(samples(self.observed[agent.startswith("red")]))
        observation = with_habit(self.choose(ARRAYS), sample)
        if self.masks == "observation":
            return {"action_mask": np.ones(4, np.int8), "observation": observation}
        return observation

    def tell(self, agents: list[str]) -> Any:
        infos: dict[str, Any] = {agent: self.choose(INFOS)(self.draw.randrange(9)) for agent in agents}
        if self.masks == "info":
            for agent in agents:
                space, form = self.action_space(agent), self.choose(MASKS)
                bits = iter(lambda: self.draw.randrange(2), 2)
                flat = not isinstance(space, (Dict, Tuple)) and self.draw.random() < 0.5
                mask = form([next(bits) for _ in range(mask_size(space) or 0)]) if flat else mask_of(space, bits, form)
                infos[agent] = {"action_mask": mask, **(infos[agent] or {})} if not self.is_odd(0.2) else None
            return infos
        if self.is_odd(0.3):
            infos["common"] = self.draw.choice([{}, {"all": np.ones(2)}, None])
        if self.is_odd(0.1):
            infos["winner"] = "nobody"
        if self.is_odd(0.2):
            infos = {agent: infos[agent] for agent in reversed(infos)}
        return None if self.is_odd(0.1) else infos

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None or self.generator is None:
            self.generator = np.random.default_rng(seed)
        self.digest, self.tick = repr((self.env_index, int(self.generator.integers(1 << 62)), options)).encode(), 0
        self.note(self.salt)
        late = len(self.names) // 2 if "come" in self.fates else 0
        self.alive, self.late, self.dead = self.names[late:], self.names[:late], []
        self.agents = list(self.alive)
        self.length = self.draw.randrange(3, 12)
        observations = {agent: self.observe(agent) for agent in self.alive}
        return observations if self.masks != "info" and self.is_odd(0.2) else (observations, self.tell(self.alive))

    def step(self, actions: Any) -> Any:
        assert sorted(actions) == sorted(self.alive)
        self.tick += 1
        self.note(self.tick, plain(actions), self.salt)
        acted, is_last, cut = self.alive, self.tick >= self.length, self.draw.random() < 0.5
        danger = (0.2 if "swap" in self.fates else 0.06) if "die" in self.fates else 0
        ended = [agent for agent in acted if is_last or self.draw.random() < danger]
        reported = acted + [agent for agent in self.dead if self.is_odd(0.5)]
        flag = self.choose(FLAGS)
        rewards = {agent: self.choose(GOOD_REWARDS)(self.draw.randrange(256) / 7) for agent in reported}
        terminations = {agent: flag(agent not in self.alive or (agent in ended and not cut)) for agent in reported}
        truncations = {agent: flag(agent in ended and cut) for agent in reported}
        for agent in ended:
            if self.is_odd(0.1) and "die" in self.fates:  # vanishes
                del rewards[agent], terminations[agent], truncations[agent]
        self.dead = self.dead + ended
        self.alive = [agent for agent in acted if agent not in ended]
        most = (len(self.names) + 1) // 2 if "swap" in self.fates else len(self.names)
        room = min(len(self.late), most - len(acted), 2 if "swap" in self.fates else 1)
        for _ in range(room if self.draw.random() < 0.3 and not is_last else 0):
            self.alive.insert(self.draw.choice([0, len(self.alive)]), self.late.pop())
        self.agents = [*self.alive, *(self.dead if "linger" in self.fates else [])]
        seen = dict.fromkeys([*acted, *self.alive]) if not self.is_odd(0.2) else self.alive
        heard = [*seen, *(self.dead if self.is_odd(0.2) else [])]
        infos = self.tell([agent for agent in heard if agent in self.alive or agent in rewards or agent in self.dead])
        result: list[Any] = [{agent: self.observe(agent) for agent in seen}, rewards, terminations, truncations, infos]
        if self.is_odd(0.05) and self.alive:
            self.err(result, self.alive[0])
        if self.is_odd(0.1):
            self.agents = self.draw.choice([tuple, lambda names: names[::-1]])(self.agents)
        if self.is_odd(0.1):
            which = self.draw.randrange(4)
            result[which] = self.draw.choice([Infos, functools.partial(defaultdict, float)])(result[which])
        return self.choose([tuple, list, Five._make if len(result) == 5 else tuple])(result)

    def err(self, result: list[Any], agent: str) -> None:
        """Spoil a result."""
        what = self.draw.randrange(9)
        if what == 0:
            raise ValueError("out of order")
        if what < 4:
            result[what].pop(agent, None)
        elif what == 4:
            result[0][agent] = None
        elif what == 5:
            result[self.draw.randrange(1, 4)]["nobody"] = 0.0
        elif what == 6:
            result[2][agent] = "no"
        elif what == 7:
            result[1][agent] = [1, 2]
        else:
            result.pop()

    def seasoned(self, salt: Any) -> int:
        self.salt = salt
        return self.tick


class Fresh(Crowd):
    """Agents who have other spaces, though equal ones, in some episodes, and some of them in the midst of one."""

    def step(self, actions: Any) -> Any:
        if self.digest[0] < 30:
            self.spaces = copy.deepcopy(self.spaces)
        return super().step(actions)


class Turncoats(Crowd):
    """Agents whose teams change their spaces in each episode."""

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.spaces, self.observed = self.spaces[::-1], self.observed[::-1]
        return super().reset(seed, options)


class Herd(Alone):
    """A PufferEnv of several agents who end alone or all at once, begin again, replace their buffers and tell infos."""

    def __init__(self, num_agents: int, lone: bool, odd: float, env_index: int = 0) -> None:
        super().__init__(odd, env_index)
        self.num_agents, self.lone = num_agents, lone

    def note(self, *things: Any) -> None:
        self.digest = hashlib.md5(self.digest + pickle.dumps(things)).digest()
        self.draw = np.random.default_rng(list(self.digest))
        self.observations[:] = self.draw.integers(0, 999, (self.num_agents, 3))

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.observations, self.rewards = np.zeros((self.num_agents, 3), np.float32), np.zeros(self.num_agents)
        pufferlib.PufferEnv.reset(self, seed=seed)
        self.digest, self.tick = repr((self.env_index, int(self.np_random.integers(1 << 62)), options)).encode(), 0
        self.note(self.salt)
        if self.draw.random() < self.odd:
            self.alive[0] = False
        return self.infos_of_step()

    def infos_of_step(self) -> Any:
        if self.draw.random() >= self.odd:
            return None
        agent_infos = [{} if i % 3 else {"place": i, "array": np.ones(2)} for i in range(self.num_agents)]
        forms = (None, {}, [], (), {"tick": self.tick}, {"episode": 1}, agent_infos, tuple(agent_infos), Infos(a=1))
        return forms[self.draw.integers(9)]

    def step(self, actions: Any) -> Any:
        self.tick += 1
        fresh = ~self.alive
        self.note(actions.tolist(), self.salt)
        draw = self.draw
        if self.lone:
            self.alive[fresh] = draw.random(fresh.sum()) < 0.7
            self.terminations[:] = draw.random(self.num_agents) < 0.1
            self.truncations[:] = draw.random(self.num_agents) < 0.05
            self.alive[draw.random(self.num_agents) < 0.02] = False
        elif draw.random() < 0.15:
            (self.terminations, self.truncations)[self.tick % 2][:] = True
        self.rewards[:] = draw.random(self.num_agents)
        if draw.random() < self.odd / 2:
            what = draw.integers(4)
            if what == 0:
                self.rewards = self.rewards.astype((np.float32, np.float64)[draw.integers(2)])
            elif what == 1:
                self.terminations, self.truncations = self.terminations.copy(), self.truncations[::-1]
            elif what == 2:
                self.alive = self.alive.copy()
            else:
                self.observations = np.asfortranarray(self.observations)
        return self.infos_of_step()


class Seasoned(TagEnv):
    """A PufferEnv of several agents."""

    salt = 0

    def step(self, actions: Any) -> Any:
        super().step(actions + self.salt)

    def seasoned(self, salt: Any) -> int:
        self.salt = salt
        return int(self.tick)


class SeasonedHashes(NestedHashEnv):
    """Nested observations and actions, nothing else odd."""

    def seasoned(self, salt: Any) -> int:
        self.digest = hashlib.md5(self.digest + bytes(salt)).digest() if salt else self.digest
        return self.tick


class SeasonedPopulation(HashPopulation):
    """Agents that come and go."""

    def seasoned(self, salt: Any) -> int:
        self.digest = hashlib.md5(self.digest + bytes(salt)).digest() if salt else self.digest
        return self.tick


# --------------------------------------------------------------------------------------------------------- programs

NAMED: list[Callable[[list[int]], Any]] = [  # ways to name environments, all of which mean the same
    lambda env_ids: env_ids,
    np.array,
    tuple,
    lambda env_ids: np.array(env_ids, np.uint16),
    lambda env_ids: np.repeat(env_ids, 2)[::2],
    lambda env_ids: np.array(env_ids).view(Marked)[:, None],
    lambda env_ids: np.array(env_ids, ">i8"),
]

NUMBERS = st.integers(0, 2**31 - 1)


class Log(NamedTuple):
    order: list[Any]  # env ids batch by batch, answers of calls, words of errors
    rows: dict[tuple[int, int], list[Any]]  # by (number of the last full reset, env_id)
    errors: list[str]


class Player:
    """Plays a program. What it sends to an environment depends on that environment's own past alone."""

    def __init__(self, vec: pufferlib.VecEnv, seed: int) -> None:
        self.vec, self.seed, self.epoch = vec, seed, -1
        self.log = Log([], {}, [])
        self.waiting: list[int] = []  # in the order of their arrival
        self.over: set[int] = set()
        self.sent: dict[int, int] = {}
        self.batch_size = vec.agents_per_batch // vec.agents_per_env
        self.synchronous = self.batch_size == vec.num_envs

    def actions(self, env_ids: list[int]) -> Any:
        space, drawn = self.vec.single_action_space, []
        for env_id in env_ids:
            generator = np.random.default_rng([self.seed, self.epoch, env_id, self.sent[env_id]])
            self.sent[env_id] += 1
            for _ in range(self.vec.agents_per_env):
                space._np_random = generator
                drawn.append(space.sample())
                if isinstance(space, Tuple):
                    for part in space.spaces:
                        part._np_random = generator
                    drawn[-1] = space.sample()
        if isinstance(space, Tuple):
            return tuple(np.stack(part) for part in zip(*drawn, strict=True))
        return np.stack(drawn)

    def reset(self, number: int, options: bool) -> None:
        self.epoch += 1
        self.waiting, self.over, self.sent = [], set(), dict.fromkeys(range(self.vec.num_envs), 0)
        self.vec.async_reset(seed=number, options={"number": number} if options else None)
        self.drain()

    def receive(self, timeout: float | None) -> None:
        try:
            batch = self.vec.recv(timeout)
        except pufferlib.RecvTimeout:
            batch = self.vec.recv()
        n = self.vec.agents_per_env
        columns = [np.asarray(column) for column in (*batch[:4], *batch[5:])]
        ids = columns[4].tolist()
        self.log.order.append(ids)
        assert columns[5].tolist() == [env_id * n + agent_index for env_id in ids for agent_index in range(n)]
        env_ids = [info["env_id"] for info in batch.infos]
        ended = {info["env_id"] for info in batch.infos if info.get("env")}
        assert env_ids == sorted(env_ids, key=ids.index)
        infos: dict[int, list[Any]] = {env_id: [] for env_id in ids}
        for info in batch.infos:
            infos[info["env_id"]].append(plain(info))
        for index, env_id in enumerate(ids):
            mine = slice(index * n, (index + 1) * n)
            rows = [(column.dtype.str, column[mine].tobytes()) for column in (*columns[:4], columns[6])]
            self.log.rows.setdefault((self.epoch, env_id), []).append((*rows, infos[env_id]))
            (self.over.add if env_id in ended else self.over.discard)(env_id)
            self.waiting.append(env_id)

    def drain(self, timeout: float | None = None) -> None:
        """Receive as often as there is a batch to come."""
        while self.vec.num_envs - len(self.waiting) >= self.batch_size:
            self.receive(timeout)

    def send(self, number: int) -> None:
        """Send to some that wait, in an order that the number tells; in synchronous use also to all at once."""
        able = [e for e in self.waiting if self.vec.autoreset_mode != "disabled" or e not in self.over]
        if self.synchronous and number % 4 and len(able) == self.vec.num_envs:
            self.vec.send(self.actions(able))
            self.waiting = []
        elif able:
            chosen = [able[index] for index in np.random.default_rng(number).permutation(len(able))]
            chosen = chosen if self.synchronous else chosen[: 1 + number % len(chosen)]
            self.vec.send(self.actions(chosen), env_ids=NAMED[number % len(NAMED)](chosen))
            self.waiting = [env_id for env_id in self.waiting if env_id not in chosen]

    def restart(self, number: int) -> None:
        """Reset all that are over and stay so, or else one of those that wait."""
        alone = len(self.waiting) == self.vec.num_envs
        chosen = [e for e in self.waiting if e in self.over] if self.vec.autoreset_mode == "disabled" else []
        if not chosen and self.vec.backend != "pool":  # when an environment waits there is chance
            chosen = self.waiting[number % max(1, len(self.waiting)) :][:1]
        if not chosen:
            return
        self.over.difference_update(chosen)
        self.waiting = [env_id for env_id in self.waiting if env_id not in chosen]
        self.vec.async_reset(seed=[100 * self.sent[env_id] + env_id for env_id in chosen], env_ids=chosen)
        if self.synchronous and alone:
            self.waiting = []  # the others come again as they are

    def call(self, number: int) -> None:
        if self.vec.backend == "pool":  # how far each environment is there is chance
            self.vec.call("seasoned", 0)
        else:
            self.log.order.append(self.vec.call("seasoned", number % 3))

    def perform(self, what: str, number: int) -> None:
        if what == "reset":
            self.reset(number, number % 2 == 1)
        elif what == "send and reset":
            self.send(number)
            self.reset(number, False)
        elif what == "restart":
            self.restart(number)
            self.drain()
        else:
            self.send(number)
            if what == "call":
                self.call(number)
            self.drain(0.0 if what == "hurry" else None)


def played(creator: Callable[[], Any], seed: int, program: list[tuple[str, int]], **arguments: Any) -> Log:
    """Return what a program saw."""
    with pufferlib.make(creator, **arguments) as vec:
        player = Player(vec, seed)
        player.reset(seed, False)
        for what, number in program:
            try:
                player.perform(what, number)
            except pufferlib.WorkerError as error:
                player.log.errors.append(str(error).splitlines()[0])
                if arguments["backend"] != "serial":  # how much arrived before is chance
                    break
                player.reset(number, False)
    return player.log


def assert_alike(first: Log, second: Log, backend: str) -> None:
    """Assert that logs are equal, as far as chance does not decide how long they are."""
    assert backend == "pool" or bool(first.errors) == bool(second.errors)
    if backend == "serial" or not (backend == "pool" or first.errors):
        assert first == second
        return
    for key in first.rows.keys() & second.rows.keys():
        length = min(len(first.rows[key]), len(second.rows[key]))
        assert first.rows[key][:length] == second.rows[key][:length], f"(epoch, environment) {key} differs"


@st.composite
def creators(draw: Any) -> tuple[Any, dict[str, Any]]:
    """Return a creator and its wrap_kwargs."""
    odd = draw(st.sampled_from([0.0, 0.1, 0.5]))
    kind = draw(st.sampled_from(["habits"] * 6 + ["alone", "veiled"] * 2 + ["agents", "population", "hashes"]))
    if kind == "veiled":
        observed, acted = draw(st.sampled_from(sorted({*OBSERVATIONS} - {"many"}))), draw(st.sampled_from(MASKABLE))
        return functools.partial(Veiled, observed, acted, odd, old=False), {"action_mask": True}
    if kind == "habits":
        observed, acted = draw(st.sampled_from(sorted(OBSERVATIONS))), draw(st.sampled_from(sorted(ACTIONS)))
        return functools.partial(Habits, observed, acted, odd), {"max_length": 3} if observed == "many" else {}
    if kind == "alone":
        return functools.partial(Alone, odd), {}
    if kind == "agents":
        return functools.partial(Seasoned, num_agents=draw(st.integers(2, 3))), {}
    return (SeasonedPopulation, {"max_agents": 4}) if kind == "population" else (SeasonedHashes, {})


@st.composite
def crowds(draw: Any) -> tuple[Any, dict[str, Any]]:
    """Return a creator of environments of several agents and its wrap_kwargs."""
    odd = draw(st.sampled_from([0.0, 0.1, 0.4]))
    num = draw(st.sampled_from([1, 2, 3, 11]))
    if draw(st.integers(0, 3)) == 0:
        return functools.partial(Herd, draw(st.sampled_from([2, 3, 11, 150])), draw(st.booleans()), odd), {}
    observed, acted = st.sampled_from(sorted({*OBSERVATIONS} - {"many"})), st.sampled_from(sorted(ACTIONS))
    teams = [draw(st.tuples(of, of)) if draw(st.booleans()) else (draw(of),) * 2 for of in (observed, acted)]
    masks = draw(st.sampled_from(["", "", "info", "observation"]))
    fates = draw(st.sampled_from([(), (), *({"die"}, {"come"}, {"die", "come"}, {"die", "linger"}, SWAP, SWAP)]))
    fates = (*sorted(fates), *(["linger"] if fates == SWAP and draw(st.booleans()) else []))
    made_up = draw(st.integers(0, 3)) == 0
    if masks == "info":  # which a Box has not
        teams[1] = tuple("discrete" if mask_size(ACTIONS[name]) is None else name for name in teams[1])
    kwargs: dict[str, Any] = {}
    if draw(st.integers(0, 2)) == 0:
        kwargs = {"state": True} if made_up else draw(st.sampled_from([{"state": True}, {"agent_type": True}]))
    if masks == "info":
        kwargs["action_mask"] = True
    if made_up and fates and teams[0][0] != teams[0][1]:
        teams[0] = (teams[0][0],) * 2
    if made_up and fates and teams[1][0] != teams[1][1]:
        teams[1] = (teams[1][0],) * 2
    if "swap" in fates:
        kwargs["max_agents"] = (num + 1) // 2
    kind = Fresh if made_up and fates and draw(st.booleans()) else Crowd
    return functools.partial(kind, num, *teams, masks, fates, made_up, odd), kwargs


SWAP = {"die", "come", "swap"}
SAME = ("float32", "float32"), ("discrete", "discrete")
OTHER = ("nested", "image"), ("started", "choices")
CROWDS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {  # and their wrap_kwargs
    "whole": (functools.partial(Crowd, 3, *SAME, "", (), False, 0.0), {}),
    "many": (functools.partial(Crowd, 150, *SAME, "", (), False, 0.0), {}),
    "odd": (functools.partial(Crowd, 11, *SAME, "", (), False, 0.1), {}),
    "made up": (functools.partial(Crowd, 3, *SAME, "", ("die", "come"), True, 0.0), {}),
    "die": (functools.partial(Crowd, 11, *SAME, "", ("die",), False, 0.05), {}),
    "come": (functools.partial(Crowd, 11, *OTHER, "", ("die", "come"), False, 0.05), {}),
    "swap": (functools.partial(Crowd, 12, *SAME, "", (*SWAP, "linger"), False, 0.05), {"max_agents": 6}),
    "swap others": (functools.partial(Crowd, 12, *OTHER, "", SWAP, False, 0.0), {"max_agents": 6}),
    "swap made up": (functools.partial(Crowd, 12, *SAME, "", SWAP, True, 0.05), {"max_agents": 6, "state": True}),
    "swap turncoats": (
        functools.partial(Turncoats, 12, ("float32", "float64"), SAME[1], "", SWAP, True, 0.05),
        {"max_agents": 6},
    ),
    "fresh": (functools.partial(Fresh, 12, *SAME, "", SWAP, True, 0.02), {"max_agents": 6}),
    "linger": (functools.partial(Crowd, 4, *SAME, "", ("die", "linger"), False, 0.1), {}),
    "others": (functools.partial(Crowd, 4, *OTHER, "", (), False, 0.0), {}),
    "two sizes": (functools.partial(Crowd, 4, ("float32", "scalar"), ("pair", "box"), "", (), False, 0.0), {}),
    "starts": (functools.partial(Crowd, 4, SAME[0], ("started", "discrete"), "", (), False, 0.0), {}),
    "one start": (functools.partial(Crowd, 4, SAME[0], ("started", "started short"), "", (), False, 0.0), {}),
    "turncoats": (functools.partial(Turncoats, 4, ("float32", "float64"), SAME[1], "", (), True, 0.0), {}),
    "parts": (functools.partial(Crowd, 4, SAME[0], ("parts", "pair"), "", (), False, 0.0), {}),
    "masks": (functools.partial(Crowd, 4, *SAME, "info", (), False, 0.2), {"action_mask": True}),
    "masks of others": (functools.partial(Crowd, 4, *OTHER, "info", (), False, 0.2), {"action_mask": True}),
    "masks seen": (functools.partial(Crowd, 4, *SAME, "observation", ("die",), False, 0.05), {"agent_type": True}),
    "state": (functools.partial(Crowd, 4, *SAME, "", ("die",), False, 0.1), {"state": True, "agent_type": True}),
    "all leaves": (
        functools.partial(Crowd, 4, OTHER[0], SAME[1], "info", (), False, 0.05),
        {"state": True, "agent_type": True, "action_mask": True},
    ),
    "herd": (functools.partial(Herd, 150, False, 0.0), {}),
    "odd herd": (functools.partial(Herd, 3, False, 0.3), {}),
    "small lone herd": (functools.partial(Herd, 2, True, 0.0), {}),
    "lone herd": (functools.partial(Herd, 11, True, 0.0), {}),
    "odd lone herd": (functools.partial(Herd, 3, True, 0.3), {}),
}


# Of the others the short form has programs that are drawn.
SOME_CROWDS = (
    *("whole", "made up", "die", "come", "swap", "swap made up", "fresh", "linger"),
    *("turncoats", "masks of others", "masks seen", "all leaves", "odd herd", "lone herd"),
)


@covering(
    {
        "name": [pytest.param(name, marks=[] if name in SOME_CROWDS else [pytest.mark.long]) for name in CROWDS],
        "autoreset_mode": ["next_step", "same_step"],
        "backend": ["serial", "multiprocessing"],
    }
)
def test_chosen_crowds_see_the_same_on_both_paths(name: str, autoreset_mode: str, backend: str) -> None:
    """Whole episodes, many of them, where drawn programs are mostly short."""
    creator, wrap_kwargs = CROWDS[name]
    arguments: dict[str, Any] = dict(
        backend=backend, num_envs=3, num_workers=2, batch_size=3, autoreset_mode=autoreset_mode, debug=True,
        wrap_kwargs=wrap_kwargs,
    )  # fmt: skip

    def play() -> Log:
        return played(creator, 5, [("send", 1)] * (60 if backend == "serial" else 30), **arguments)

    compiled, portable = on_both(play)
    assert_alike(compiled, portable, backend)


class Moves(np.ndarray[Any, Any]):
    """An array that gives its environment other buffers when it is copied."""

    env: Any = None

    def copy(self, order: Any = "C") -> Any:
        self.env.rewards = np.full(2, 7, np.float32)
        return np.array(self)


class Restless(pufferlib.PufferEnv):
    """Two agents, whose infos change the environment's buffers where they are copied."""

    single_observation_space, single_action_space, num_agents = Box(0, 1, (1,), np.float32), Discrete(2), 2

    def reset(self, seed: Any = None, options: Any = None) -> None:
        return None

    def step(self, actions: Any) -> Any:
        moves = np.zeros(1).view(Moves)
        moves.env = self
        return {"moves": moves}


def test_buffers_that_change_while_infos_are_copied_are_seen() -> None:
    def play() -> Any:
        with pufferlib.make(Restless, num_envs=2) as vec:
            vec.reset()
            return [plain(vec.step(np.zeros(4, int))[1]) for _ in range(6)]

    compiled, portable = on_both(play)
    assert compiled == portable and compiled[-1] == plain(np.full(4, 7, np.float32))


@settings(max_examples=settings().max_examples // 8)
@given(data=st.data())
def test_programs_see_the_same_on_both_paths(data: st.DataObject) -> None:
    assert_programs_see_the_same(data, creators())


@pytest.mark.long
@settings(max_examples=settings().max_examples // 2)
@given(data=st.data())
def test_many_programs_see_the_same_on_both_paths(data: st.DataObject) -> None:
    assert_programs_see_the_same(data, creators())


@settings(max_examples=settings().max_examples // 8)
@given(data=st.data())
def test_programs_of_several_agents_see_the_same_on_both_paths(data: st.DataObject) -> None:
    assert_programs_see_the_same(data, crowds())


@pytest.mark.long
@settings(max_examples=settings().max_examples // 2)
@given(data=st.data())
def test_many_programs_of_several_agents_see_the_same_on_both_paths(data: st.DataObject) -> None:
    assert_programs_see_the_same(data, crowds())


def assert_programs_see_the_same(data: st.DataObject, strategy: Any) -> None:
    creator, wrap_kwargs = data.draw(strategy, "creator")
    num_envs = data.draw(st.integers(1, 6), "num_envs")
    backend = data.draw(st.sampled_from(BACKENDS), "backend")
    program = data.draw(
        st.lists(
            st.tuples(st.sampled_from(["send"] * 8 + ["reset", "send and reset", "restart", "call", "hurry"]), NUMBERS),
            min_size=1,
            max_size=40,
        ),
        "program",
    )
    arguments: dict[str, Any] = dict(
        backend=backend,
        num_envs=num_envs,
        num_workers=data.draw(st.integers(1, num_envs), "num_workers"),
        batch_size=data.draw(st.sampled_from([num_envs, *range(1, num_envs + 1)]), "batch_size"),
        autoreset_mode=data.draw(st.sampled_from(MODES), "autoreset_mode"),
        check=data.draw(st.sampled_from(["first", "first", "always"]), "check"),
        wrap_kwargs=wrap_kwargs,
        **data.draw(st.sampled_from([{}, {}, {}, {"copy": True}, {"debug": True}]), "kwargs"),
    )
    seed = data.draw(NUMBERS, "seed")
    compiled, portable = on_both(lambda: played(creator, seed, program, **arguments))
    assert_alike(compiled, portable, backend)


# ------------------------------------------------------------------------------------------------- chosen programs


WRITTEN: list[Callable[[Any], Any]] = [  # ways to write down actions, all of which mean the same
    lambda actions: actions,
    lambda actions: np.repeat(actions, 2)[::2],
    lambda actions: actions[::-1].copy()[::-1],
    lambda actions: actions.astype(">i8"),
    lambda actions: frozen(actions),
    lambda actions: actions.view(Marked),
    lambda actions: actions.astype(pickle.loads(pickle.dumps(np.dtype(np.int64)))),  # equal, and another object
    lambda actions: np.frombuffer(b"x" + actions.tobytes(), np.int64, offset=1),
    lambda actions: actions.astype(np.int16),
    lambda actions: actions.astype(np.uint8),
    lambda actions: actions.astype(np.bool_),
    lambda actions: actions.tolist(),
    lambda actions: tuple(actions.tolist()),
]


@covering({"backend": BACKENDS, "batch_size": [3, 2]})
def test_actions_of_any_kind_are_played_alike(backend: str, batch_size: int) -> None:
    def play(written: list[Callable[[Any], Any]]) -> Any:
        creator = functools.partial(Habits, "float32", "discrete", 0.0)
        rows: dict[int, list[Any]] = {0: [], 1: [], 2: []}
        with pufferlib.make(creator, backend=backend, num_envs=3, num_workers=2, batch_size=batch_size) as vec:
            vec.async_reset(seed=3)
            number = 0
            while min(map(len, rows.values())) < 20:  # in a pool some may begin long after others
                number += 1
                batch = vec.recv()
                for index, env_id in enumerate(batch.env_ids.tolist()):
                    rows[env_id].append(batch.observations[index].tolist())
                vec.send(written[number % len(written)](1 - batch.env_ids % 2))
        return rows

    compiled, portable = on_both(lambda: play(WRITTEN))
    expected = play(WRITTEN[:1])
    for env_id, rows in expected.items():
        num = min(len(rows), len(compiled[env_id]), len(portable[env_id]))
        assert num > 1 and rows[:num] == compiled[env_id][:num] == portable[env_id][:num]


MISNAMED: list[Any] = [  # environments of four, of which 3 has not been received, and what they are sent
    [4], [-1], [0, 0], [], [0, 3], 0, np.int64(1), [0.0], [True], ["0"], [[0, 1], [2, 2]], [[0], [1, 2]], [None], "012",
    np.zeros(0, int), np.array([0, 2, 1])[::2], np.array([2**63], np.uint64), np.array([2**32]), range(3), iter([0]),
    {0}, np.array([0, None]),
]  # fmt: skip


@covering({"backend": ["serial", "multiprocessing"], "batch_size": [4, 2]})
def test_environments_are_named_wrongly_alike(backend: str, batch_size: int) -> None:
    def play() -> Any:
        seen: list[Any] = []
        creator = functools.partial(Habits, "float32", "discrete", 0.0)
        with pufferlib.make(creator, backend=backend, num_envs=4, num_workers=2, batch_size=batch_size) as vec:
            for env_ids in MISNAMED:
                for num in (1, 2, 3):
                    vec.reset(seed=3) if batch_size == 4 else vec.async_reset(seed=3)
                    if batch_size == 2:
                        vec.recv()
                        vec.recv()
                    vec.send(np.zeros(1, int), env_ids=[3])
                    try:
                        vec.send(np.ones(num, int), env_ids=env_ids)
                        vec.send(np.ones(1, int), env_ids=[2])
                        seen.append(plain(vec.recv()))
                    except (pufferlib.CallError, pufferlib.ActionError) as error:
                        seen.append(str(error))
        return seen

    compiled, portable = on_both(play)
    assert compiled == portable
    assert len({repr(what) for what in compiled}) > 20


def test_who_is_over_may_not_be_named() -> None:
    def play() -> list[str]:
        creators = [functools.partial(TagEnv, num_agents=1, length=length) for length in (1, 9)]
        with pufferlib.make(creators, autoreset_mode="disabled") as vec:
            vec.reset()
            vec.step(np.zeros(2, int))
            with pytest.raises(pufferlib.CallError) as error:
                vec.send(np.zeros(1, int), env_ids=[0])
            vec.send(np.zeros(1, int), env_ids=[1])
            return [str(error.value)]

    compiled, portable = on_both(play)
    assert compiled == portable and "environments [0] are over" in compiled[0]


def test_a_send_to_some_ends_a_partial_reset() -> None:
    """From then on a batch needs all, on both paths."""

    def play() -> Any:
        with pufferlib.make(functools.partial(Habits, "float32", "discrete", 0.0), num_envs=3) as vec:
            vec.reset(seed=3)
            vec.async_reset(env_ids=[0])
            vec.send(np.zeros(1, int), env_ids=[1])
            with pytest.raises(pufferlib.CallError, match="2 environments are in flight"):
                vec.recv()
            vec.send(np.zeros(1, int), env_ids=np.array([2]))
            return plain(vec.recv())

    compiled, portable = on_both(play)
    assert compiled == portable


@covering({"vectorizer": [SyncVectorEnv, AsyncVectorEnv], "odd": [0.0, 0.5]})
def test_the_gymnasium_face_sees_the_same(vectorizer: Any, odd: float) -> None:
    creators = [functools.partial(Habits, "nested", "parts", odd, index, old=False) for index in range(3)]
    vec = vectorizer(creators)
    vec.action_space.seed(7)
    actions = [vec.action_space.sample() for _ in range(60)]  # once: Gymnasium 0.29 reseeds batches of spaces
    vec.close()

    def play() -> Any:
        vec = vectorizer(creators)
        seen = [plain(vec.reset(seed=5))]
        for action in actions:
            *rows, infos = vec.step(action)
            assert rows[1].dtype == np.float64
            seen.append((plain(rows), plain({key: infos[key] for key in infos if key not in ("episode", "_episode")})))
        vec.close()
        return seen

    compiled, portable = on_both(play)
    assert compiled == portable


# ------------------------------------------------------------------------------------ ends and beginnings in one step


class Ends(gymnasium.Env[Any, Any]):
    """Is over at every third step. Returns what is plain in most cases, and else any of the forms above."""

    action_space = Discrete(5)

    def __init__(self, observed: str, env_index: int = 0) -> None:
        self.observation_space = OBSERVATIONS[observed]
        self.observed, self.env_index, self.times, self.ticks = observed, env_index, 0, 0
        self.buffer = samples(observed)[0].copy() if isinstance(samples(observed)[0], np.ndarray) else None

    def drawn(self, options: Any, *number: int) -> Any:
        generator = np.random.default_rng([self.env_index, self.times, self.ticks, *self.observed.encode(), *number])
        return options[generator.integers(len(options)) if generator.random() < 0.25 else 0]

    def observe(self) -> Any:
        sample = samples(self.observed)[(7 * self.times + self.ticks) % 32]
        if self.buffer is not None and self.ticks % 2:
            self.buffer[...] = sample  # which the reset overwrites
            return self.buffer
        return with_habit(self.drawn(ARRAYS, 1), sample)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.times += 1
        result = self.observe(), self.drawn(INFOS, 2)(0)
        return (
            self.drawn([tuple, tuple, Two._make, list, lambda pair: pair[0]], 3)(result) if self.times > 1 else result
        )

    def step(self, action: Any) -> Any:
        self.ticks += 1
        over, flag = (self.ticks + self.env_index) % 3 == 0, self.drawn(FLAGS, 4)
        reward, info = self.drawn(REWARDS, 5)(self.ticks / 8), self.drawn(INFOS, 6)(self.ticks)
        result = self.observe(), reward, flag(over and self.ticks % 2 == 0), flag(over), info
        return self.drawn((tuple, Five._make, list), 7)(result)


# Of these the short form has what is like the others: numbers of one size and several, images, texts, lists, parts.
SIMILAR = ("bits", "choices", "eight", "float64", "nine", "nothing", "two")


@covering(
    {
        "observed": [
            pytest.param(name, marks=[pytest.mark.long] if name in SIMILAR else []) for name in sorted(OBSERVATIONS)
        ],
        "backend": BACKENDS,
    }
)
def test_same_step_ends_are_reported_alike(observed: str, backend: str) -> None:
    num_envs, num_steps = 9, 40

    def play() -> Any:
        seen: dict[int, list[Any]] = {env_id: [] for env_id in range(num_envs)}
        wrap_kwargs = {"max_length": 3} if observed == "many" else {}
        with pufferlib.make(
            Ends,
            env_args=[observed],
            num_envs=num_envs,
            num_workers=3,
            batch_size=3 if backend == "pool" else None,
            backend=backend,
            autoreset_mode="same_step",
            wrap_kwargs=wrap_kwargs,
            on_error="restart",
            max_restarts=None,
        ) as vec:
            vec.async_reset(seed=1)
            while min(map(len, seen.values())) < num_steps:
                batch = vec.recv()
                infos: dict[int, list[Any]] = {}
                for info in batch.infos:
                    if "restarted" in info:
                        info["restarted"] = info["restarted"].partition("\n")[0]  # without the traceback
                    infos.setdefault(info["env_id"], []).append((plain(info), type(info.get("final_obs"))))
                for index, env_id in enumerate(batch.env_ids.tolist()):
                    row = [plain(np.asarray(column)[index]) for column in (*batch[:4], batch.masks)]
                    seen[env_id].append((row, infos.get(env_id)))
                vec.send(batch.env_ids % 5)
            while vec._scheduler.num_coming >= vec.batch_size:
                vec.recv()
            if backend != "pool":  # how often each one plays there is chance
                seen[-1] = list(zip(vec.get_attr("times"), vec.get_attr("ticks"), strict=True))
        return seen

    compiled, portable = on_both(play)
    for key in compiled:
        num = min(len(compiled[key]), len(portable[key]))
        assert num >= num_envs and compiled[key][:num] == portable[key][:num]


class Reusing(gymnasium.Env[Any, Any]):
    """Observes how often it was reset or stepped, always in the same buffer; every third step ends an episode."""

    observation_space, action_space = Box(0, 999, (2,), np.float32), Discrete(2)

    def __init__(self) -> None:
        self.ticks, self.buffer = 0, np.zeros(2, np.float32)

    def observe(self) -> Any:
        self.ticks += 1
        self.buffer[:] = self.ticks
        return self.buffer

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        return self.observe(), 0.0, self.ticks % 4 == 0, False, {}


class ReusingParts(Reusing):
    """The same in a dict, whose parts are packed."""

    observation_space = Dict(a=Box(0, 999, (2,), np.float32), b=Box(0, 999, (1,), np.float32))

    def observe(self) -> Any:
        super().observe()
        return {"a": self.buffer, "b": self.buffer[:1]}


class ReusingAgents:
    """The same of two agents, whose observations are views of one buffer."""

    metadata: dict[str, Any] = {}
    possible_agents = ("a", "b")

    def __init__(self) -> None:
        self.ticks, self.buffer = 0, np.zeros(2, np.float32)
        self.views = {"a": self.buffer, "b": self.buffer[::-1]}

    def observation_space(self, agent: str) -> Any:
        return Reusing.observation_space

    def action_space(self, agent: str) -> Any:
        return Reusing.action_space

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.ticks, self.agents = self.ticks + 1, ["a", "b"]
        self.buffer[:] = self.ticks
        return self.views, {}

    def step(self, actions: Any) -> Any:
        self.ticks += 1
        self.buffer[:] = self.ticks
        is_over = self.ticks % 4 == 0
        self.agents = [] if is_over else self.agents
        return self.views, *(dict.fromkeys("ab", value) for value in (0.0, is_over, False)), {}


class ReusingRows(pufferlib.PufferEnv):
    """The same as a PufferEnv, which always has one buffer."""

    single_observation_space, single_action_space = Reusing.observation_space, Reusing.action_space

    def __init__(self, num_agents: int) -> None:
        self.num_agents, self.ticks = num_agents, 0

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.ticks += 1
        self.observations[:] = self.ticks

    def step(self, actions: Any) -> Any:
        self.reset()
        self.terminations[:] = self.ticks % 4 == 0


REUSING: dict[str, Callable[[], Any]] = {
    "an array": Reusing,
    "a dict": ReusingParts,
    "two agents": ReusingAgents,
    "a row": functools.partial(ReusingRows, 1),
    "two rows": functools.partial(ReusingRows, 2),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", REUSING)
def test_final_observations_stay_as_they_were(name: str, backend: str) -> None:
    """They are copies, which neither the environment nor a later batch changes."""

    def play() -> Any:
        finals = []
        with pufferlib.make(REUSING[name], num_envs=1, backend=backend, autoreset_mode="same_step") as vec:
            vec.reset()
            for _ in range(12):
                infos = vec.step(np.zeros(vec.agents_per_batch, int))[4]
                finals += [(info["agent_id"], info["final_obs"]) for info in infos if "final_obs" in info]
        if backend == "serial":
            assert all(final.flags.owndata for _, final in finals)  # no row keeps those of all agents alive
        return [(agent_id, final.view(np.float32).tolist()) for agent_id, final in finals]

    num_agents, size = 1 + ("two" in name), 3 if name == "a dict" else 2
    expected = [(agent_id, [4.0 * end] * size) for end in (1, 2, 3, 4) for agent_id in range(num_agents)]
    compiled, portable = on_both(play)
    assert compiled == portable == expected


@covering({"mode": ["same_step", "next_step"], "late": [False, True]})
@pytest.mark.flaky(reruns=4)
def test_resets_are_timed_and_refused_alike(mode: str, late: bool) -> None:
    """The time of a reset is none of its step's, though it happens there; one that takes too long is refused."""

    class Slow(gymnasium.Env[Any, Any]):
        observation_space = Box(0, 9, (1,), np.float32)
        action_space = Discrete(2)
        ticks = 0

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            time.sleep(0 if not self.ticks else 0.2 if late else 0.06)
            return np.zeros(1, np.float32), {}

        def step(self, action: Any) -> Any:
            self.ticks += 1
            until = time.perf_counter() + 2e-5  # each step is timed
            while time.perf_counter() < until:
                pass
            return np.zeros(1, np.float32), 0.0, self.ticks % 3 == 0, False, {}

    def play() -> Any:
        message = ""
        with pufferlib.make(Slow, num_envs=1, autoreset_mode=mode, reset_timeout=0.1 if late else 60) as vec:
            vec.reset()
            try:
                for _ in range(20):
                    vec.step(np.zeros(1, int))
            except pufferlib.WorkerError as error:
                message = str(error)
            return message, vec.stats(), vec.get_attr("ticks")

    for message, stats, ticks in on_both(play):
        assert ("reset took" in message and "longer than reset_timeout=0.1 s" in message) == late
        assert stats.step.num > 0 and stats.step.mean_s < 0.015  # were it among them, at least 0.02
        assert stats.reset.num == (2 if late else 1 + ticks[0] // 3) and stats.reset.max_s >= 0.06


# --------------------------------------------------------------------------------------------------- masks in infos


class Masking(gymnasium.Env[Any, Any]):
    """Tells masks of all forms in turn, every third step alone, and is over at every fourth step."""

    observation_space = Box(-9, 999, (2,), np.float32)

    def __init__(self, acted: str, env_index: int = 0) -> None:
        self.action_space, self.ticks, self.env_index = ACTIONS[acted], 0, env_index

    def infos_of_step(self) -> Any:
        number, bits = self.ticks // 2 + self.env_index, iter(np.random.default_rng(self.ticks).integers(2, size=99))
        if self.ticks % 2 == 0 or self.ticks < 4:  # the first ones are checked in full
            number = 0
        mask = mask_of(self.action_space, map(int, bits), ODD_MASKS[number % len(ODD_MASKS)])
        if self.ticks % 7 == 3:
            return [None, {}, {"action_mask": None}, {"tick": self.ticks}, Infos(action_mask=mask)][self.ticks % 5]
        return {"action_mask": mask} if self.ticks % 3 else {"a": 1, "action_mask": mask, "tick": self.ticks}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.ticks += 1
        return np.full(2, -1, np.float32), self.infos_of_step()

    def step(self, action: Any) -> Any:
        self.ticks += 1
        return np.full(2, self.ticks, np.float32), 1.0, self.ticks % 4 == 0, False, self.infos_of_step()


@covering(
    {
        "acted": MASKABLE,
        "autoreset_mode": ["next_step", "same_step"],
        "backend": ["serial", "multiprocessing"],
    }
)
def test_masks_of_any_form_are_read_alike(acted: str, autoreset_mode: str, backend: str) -> None:
    def play() -> Any:
        seen: list[Any] = []
        arguments: dict[str, Any] = dict(
            backend=backend, num_envs=2, num_workers=1, autoreset_mode=autoreset_mode, wrap_kwargs={"action_mask": True}
        )  # one worker, as which of two errors comes first is chance
        with pufferlib.make(Masking, env_args=[acted], **arguments) as vec:
            vec.action_space.seed(1)
            actions = vec.action_space.sample()
            vec.reset(seed=1)
            for _ in range(72):
                try:
                    seen.append(plain(vec.step(actions)))
                    seen += [type(info.get("final_obs")) for info in vec.batch.infos]  # type: ignore[union-attr]
                except pufferlib.WorkerError as error:
                    seen.append(str(error).partition("\n")[0])
                    with contextlib.suppress(pufferlib.WorkerError), warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        vec.reset()
        return seen

    compiled, portable = on_both(play)
    assert compiled == portable
    assert acted == "bits" or any("elements, but" in str(what) for what in compiled)


# ------------------------------------------------------------------------------------------------- without a VecEnv


@covering({"observed": sorted(OBSERVATIONS), "acted": sorted(ACTIONS), "odd": [0.0, 0.5], "check": ["first", "always"]})
def test_wrapped_environments_step_alike(observed: str, acted: str, odd: float, check: str) -> None:
    def play() -> Any:
        bounds = {"max_length": 3} if observed == "many" else {}
        env = pufferlib.wrap(Habits(observed, acted, odd), check=check, **bounds)
        env.action_space.seed(3)
        seen: list[Any] = [type(env.reset(seed=1)[0])]
        for number in range(60):
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                try:
                    values = env.step(env.action_space.sample())
                    seen.append(([type(value) for value in values], plain(values)))
                    values[4]["mine"] = number  # is the caller's
                except Exception as error:
                    seen.append((type(error), str(error)))
            seen += [str(warning.message) for warning in warned]
            if number % 16 == 15:
                seen.append(plain(env.reset()))
        return seen

    compiled, portable = on_both(play)
    assert compiled == portable


@pytest.mark.parametrize("wrong_tick", [1, 3])
@pytest.mark.parametrize("check", ["first", "always"])
def test_wrapped_environments_are_checked_alike(check: str, wrong_tick: int) -> None:
    """The first step in full, later ones only where that is asked for."""

    class Strays(gymnasium.Env[Any, Any]):
        observation_space = Discrete(3)
        action_space = Discrete(3)
        tick = 0

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return 0, {}

        def step(self, action: Any) -> Any:
            self.tick += 1
            return 7 if self.tick == wrong_tick else 1, 0.0, False, False, {}

    def play() -> Any:
        env = pufferlib.wrap(Strays(), check=check)
        env.reset()
        seen = []
        for _ in range(4):
            try:
                seen.append(plain(env.step(1)[0]))
            except pufferlib.SpaceError as error:
                seen.append(str(error))
        return seen

    compiled, portable = on_both(play)
    assert compiled == portable
    assert ("the value 7 is not in" in str(compiled)) == (wrong_tick == 1 or check == "always")


ACTS: list[Any] = [
    1, np.int64(2), np.int32(2), np.array(1), np.array([1, 1]), np.array([1, 1], np.int16), [1, 1], (1, 1), True, 7, -1,
    2**70, 1.0, "1", None, np.array([1, 9]), np.array([1.0, 0.5], np.float32), np.array([1.0, 0.5]), [0.5, np.nan],
    np.array([np.inf, 1], np.float32), np.array([[1, 1]]), (np.array([1]), np.array([0.5], np.float32)),
    (np.array([5]), np.array([0.5], np.float32)), [np.array([1]), np.array([0.5], np.float32)],
    (np.array([1]), np.array([np.nan], np.float32)), (np.array([1]),), np.array([1, 1, 1], np.int8)[:2],
    np.array([1, 1, 0]), np.array([1, 1, 0], np.int8), np.array([1, 2, 0], np.int8), np.arange(4)[::2],
    np.array([[0.5, 1.0]]), np.array([[0.5, 1e39]]), np.array([1, 1], ">i8"), np.zeros(0, np.float32),
]  # fmt: skip


@pytest.mark.parametrize("acted", sorted(ACTIONS))
def test_wrapped_environments_take_the_same_actions(acted: str) -> None:
    def play() -> Any:
        env = pufferlib.wrap(Habits("float32", acted, 0.0))
        env.reset(seed=1)
        seen = []
        for action in ACTS:
            try:
                seen.append(plain(env.step(action)[0]))  # hashed of what reached it
            except Exception as error:
                seen.append((type(error), str(error)))
        return seen

    compiled, portable = on_both(play)
    assert compiled == portable
    assert len({repr(what) for what in compiled}) > 3


def test_wrapped_environments_own_what_they_return_and_can_be_copied() -> None:
    class Live(gymnasium.Env[Any, Any]):
        observation_space = Box(-9, 99, (2,), np.float32)
        action_space = Discrete(3)

        def __init__(self) -> None:
            self.infos_of_step, self.seen = {"array": np.zeros(1), "none": None}, np.zeros(2, np.float32)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return self.seen, self.infos_of_step

        def step(self, action: Any) -> Any:
            self.seen += 1
            self.infos_of_step["array"] += 1
            return self.seen, 1.0, False, False, self.infos_of_step

    def play() -> Any:
        env = pufferlib.wrap(Live())
        results = [env.reset(), *(env.step(1) for _ in range(3))]
        again = copy.deepcopy(env)
        results += [env.step(1), again.step(1), again.step(1), env.step(1)]
        return [(result[0].tolist(), result[-1]["array"].tolist()) for result in results]

    for seen in on_both(play):
        assert seen == [([n, n], [n]) for n in (0, 1, 2, 3, 4, 4, 5, 5)]


# What a step may return instead of (observation, reward, terminated, truncated, info), given these five.
WRONG: dict[str, Callable[..., Any]] = {
    "nothing": lambda o, r, t, u, i: None,
    "three": lambda o, r, t, u, i: (o, r, t),
    "six": lambda o, r, t, u, i: (o, r, t, u, i, i),
    "a list": lambda o, r, t, u, i: [o, r, t, u, i],
    "an iterator": lambda o, r, t, u, i: iter((o, r, t, u, i)),
    "reward str": lambda o, r, t, u, i: (o, "x", t, u, i),
    "reward None": lambda o, r, t, u, i: (o, None, t, u, i),
    "reward complex": lambda o, r, t, u, i: (o, 1j, t, u, i),
    "reward nan": lambda o, r, t, u, i: (o, float("nan"), t, u, i),
    "reward huge": lambda o, r, t, u, i: (o, 1e300, t, u, i),
    "reward too huge": lambda o, r, t, u, i: (o, 10**400, t, u, i),
    "reward bool": lambda o, r, t, u, i: (o, True, t, u, i),
    "rewards": lambda o, r, t, u, i: (o, [1, 2], t, u, i),
    "no rewards": lambda o, r, t, u, i: (o, [], t, u, i),
    "flag None": lambda o, r, t, u, i: (o, r, None, u, i),
    "flags": lambda o, r, t, u, i: (o, r, np.array([True, False]), u, i),
    "info int": lambda o, r, t, u, i: (o, r, t, u, 5),
    "info list": lambda o, r, t, u, i: (o, r, t, u, [1]),
    "info proxy": lambda o, r, t, u, i: (o, r, t, u, types.MappingProxyType({"a": 1})),
    "empty info proxy": lambda o, r, t, u, i: (o, r, t, u, types.MappingProxyType({})),
    "observation None": lambda o, r, t, u, i: (None, r, t, u, i),
    "observation list": lambda o, r, t, u, i: (o.tolist(), r, t, u, i),
    "observation short": lambda o, r, t, u, i: (o[:1], r, t, u, i),
    "observation broadcast": lambda o, r, t, u, i: (o[None], r, t, u, i),
    "observation complex": lambda o, r, t, u, i: (o.astype(complex), r, t, u, i),
    "observation objects": lambda o, r, t, u, i: (o.astype(object), r, t, u, i),
    "observation masked": lambda o, r, t, u, i: (np.ma.array(o), r, t, u, i),
    "observation int": lambda o, r, t, u, i: (5, r, t, u, i),
}


class Errs(gymnasium.Env[Any, Any]):
    """Does well at first, and then what it is told to."""

    observation_space = Box(-9, 99, (2,), np.float32)
    action_space = Discrete(3)

    def __init__(self, err: Callable[..., Any]) -> None:
        self.err = err

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.tick = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.tick += 1
        result = np.full(2, self.tick, np.float32), 0.25, False, False, {}
        return self.err(*result) if self.tick == 3 else result


class NativeErrs(pufferlib.PufferEnv):
    """Does well at first, and then what it is told to."""

    single_observation_space = Box(-9, 99, (2,), np.float32)
    single_action_space = Discrete(3)

    def __init__(self, err: Callable[[Any], Any]) -> None:
        self.err = err

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.tick = 0
        self.observations[:] = 0

    def step(self, actions: Any) -> Any:
        self.tick += 1
        self.observations[:], self.rewards[:] = self.tick, 0.1
        return self.err(self) if self.tick == 3 else None


def replaced(name: str, by: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return what replaces an attribute of an environment."""
    return lambda env: setattr(env, name, by(getattr(env, name)))


NATIVE_WRONG: dict[str, Callable[[Any], Any]] = {
    f"{name} {what}": replaced(name, by)
    for name in ("observations", "rewards", "terminations", "truncations", "alive")
    for what, by in {
        "list": lambda array: array.tolist(),
        "int8": lambda array: array.astype(np.int8),
        "longer": lambda array: np.repeat(array, 2, axis=0),
        "empty": lambda array: array[:0],
        "scalar": lambda array: array.reshape(-1)[0],
        "None": lambda array: None,
        "objects": lambda array: array.astype(object),
        "swapped": lambda array: array.astype(array.dtype.newbyteorder()),
        "broadcast": lambda array: array[..., None],
    }.items()
} | {
    "tuple of one": lambda env: ({"a": 1},),
    "too many": lambda env: [{}, {}],
    "str": lambda env: "x",
    "int": lambda env: 5,
    "empty str": lambda env: "",
    "proxy": lambda env: types.MappingProxyType({"a": 1}),
    "deletes": lambda env: delattr(env, "rewards"),
    "dies": lambda env: env.alive.fill(False),
}


class Recovery(gymnasium.Env[Any, Any]):
    """Is over at every third step, and starts again well the first time; then as it is told to."""

    observation_space = Box(-9, 99, (2,), np.float32)
    action_space = Discrete(3)

    def __init__(self, err: Callable[..., Any]) -> None:
        self.err = err
        self.times = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.tick, self.times = 0, self.times + 1
        result = np.full(2, self.times, np.float32), {}
        return self.err(*result) if self.times % 4 == 3 else result

    def step(self, action: Any) -> Any:
        self.tick += 1
        return np.full(2, self.tick, np.float32), 0.25, self.tick % 3 == 0, False, {}


class NativeRestarts(NativeErrs):
    """Is over at every third step, and starts again well the first time; then as it is told to."""

    times = 0

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        super().reset()
        self.times += 1
        self.observations[:] = self.times
        columns = {name: getattr(self, name).tolist() for name in ("rewards", "terminations", "truncations", "alive")}
        return self.err(self) if self.times % 4 == 3 else columns

    def step(self, actions: Any) -> Any:
        self.tick += 1
        self.observations[:], self.rewards[:], self.terminations[:] = self.tick, 0.1, self.tick % 3 == 0


RESET_WRONG: dict[str, Callable[..., Any]] = {
    "info None": lambda observation, info: (observation, None),
    "alone": lambda observation, info: observation,
    "list": lambda observation, info: [observation, info],
    "named tuple": lambda observation, info: Two(observation, info),
    "told": lambda observation, info: (observation, {"told": 1}),
    "own info": lambda observation, info: (observation, Infos(told=1)),
    "empty own info": lambda observation, info: (observation, Infos()),
    "proxy": lambda observation, info: (observation, types.MappingProxyType({"a": 1})),
    "int": lambda observation, info: (observation, 5),
    "three": lambda observation, info: (observation, info, 1),
    "one": lambda observation, info: (observation,),
    "None": lambda observation, info: None,
    "no observation": lambda observation, info: (None, info),
    "other dtype": lambda observation, info: (observation.astype(np.float64), info),
    "other shape": lambda observation, info: (observation[:1], info),
    "objects": lambda observation, info: (observation.astype(object), info),
    "floats": lambda observation, info: (observation.tolist(), info),
    "strided": lambda observation, info: (np.repeat(observation, 2)[::2], info),
}


def raising(error: type[BaseException]) -> Callable[..., Any]:
    def err(*result: Any) -> Any:
        raise error("out of order")

    return err


RAISED = (StopIteration, SystemExit, MemoryError, RecursionError, GeneratorExit, KeyboardInterrupt)


WRONGS = [
    *(pytest.param(Errs, err, id=name) for name, err in WRONG.items()),
    *(pytest.param(NativeErrs, err, id=f"native {name}") for name, err in NATIVE_WRONG.items()),
    *(pytest.param(NativeRestarts, err, id=f"native reset {name}") for name, err in NATIVE_WRONG.items()),
    *(pytest.param(env, raising(error), id=f"{env.__name__} {error.__name__}")
      for env in (Errs, NativeErrs, Recovery, NativeRestarts) for error in RAISED),
    *(pytest.param(Recovery, err, id=f"reset {name}") for name, err in RESET_WRONG.items()),
]  # fmt: skip


@covering({"env,err": WRONGS, "autoreset_mode": ["next_step", "same_step"]})
def test_faults_are_reported_alike(env: Any, err: Callable[..., Any], autoreset_mode: str) -> None:
    def play() -> Any:
        seen: list[Any] = []
        with pufferlib.make([lambda: env(err), lambda: env(lambda *_: None)], autoreset_mode=autoreset_mode) as vec:
            vec.reset()
            for _ in range(12):
                try:
                    seen.append(plain(vec.step(np.zeros(2, np.int64))))
                except BaseException as error:
                    seen.append((type(error), str(error).partition("\n")[0]))
                    with (
                        contextlib.suppress(pufferlib.WorkerError, pufferlib.errors.ClosedError),
                        warnings.catch_warnings(),
                    ):
                        warnings.simplefilter("ignore")
                        vec.reset()
        return seen

    compiled, portable = on_both(play)
    assert compiled == portable


# What becomes of the five dicts of a step of two agents, a and b, and of the environment.
AGENTS_WRONG: dict[str, Callable[[list[Any], Any], Any]] = {
    f"{name} {what}": functools.partial(lambda index, change, dicts, env: change(dicts, index), index, change)
    for index, name in enumerate(("observations", "rewards", "terminations", "truncations", "infos"))
    for what, change in {
        "missing": lambda dicts, index: dicts[index].pop("b"),
        "None": lambda dicts, index: dicts[index].update(b=None),
        "of nobody": lambda dicts, index: dicts[index].update(c=dicts[index]["a"]),
        "renamed": lambda dicts, index: dicts.__setitem__(index, {"x": 1, "y": 2}),
        "reversed": lambda dicts, index: dicts.__setitem__(index, {key: dicts[index][key] for key in "ba"}),
        "no dict": lambda dicts, index: dicts.__setitem__(index, 5),
        "gone": lambda dicts, index: dicts.__setitem__(index, None),
        "proxy": lambda dicts, index: dicts.__setitem__(index, types.MappingProxyType(dicts[index])),
        "own dict": lambda dicts, index: dicts.__setitem__(index, Infos(dicts[index])),
        "a word": lambda dicts, index: dicts[index].update(b="x"),
        "a list": lambda dicts, index: dicts[index].update(b=[dicts[index]["b"]]),
        "an ellipsis": lambda dicts, index: dicts[index].update(b=...),
        "raises": lambda dicts, index: dicts.__setitem__(index, Unordered(dicts[index])),
    }.items()
} | {
    "four": lambda dicts, env: dicts.pop(),
    "nothing": lambda dicts, env: dicts.clear(),
    "common": lambda dicts, env: dicts[4].update(common={"c": np.ones(2)}, a={"z": 1}),
    "common first": lambda dicts, env: dicts.__setitem__(4, {"__common__": {"c": 1}, "b": {}, "a": {"z": 1}}),
    "common None": lambda dicts, env: dicts[4].update(common=None),
    "common int": lambda dicts, env: dicts[4].update(common=3),
    "a word of nobody": lambda dicts, env: dicts[4].update(winner="nobody"),
    "a list of nobody": lambda dicts, env: dicts[4].update(winner=["nobody"]),
    "episode": lambda dicts, env: dicts[4].update(a={"episode": "mine"}),
    "a lives on": lambda dicts, env: (dicts[2].update(b=True), env.agents.remove("b")),
    "b vanishes": lambda dicts, env: ([by_agent.pop("b") for by_agent in dicts], env.agents.remove("b")),
    "b lingers": lambda dicts, env: dicts[2].update(b=True),
    "all end": lambda dicts, env: (dicts[3].update(a=True, b=1), env.agents.clear()),
    "all end and linger": lambda dicts, env: dicts[2].update(a=True, b=np.True_),
    "all end and c comes": lambda dicts, env: (dicts[2].update(a=True, b=True), setattr(env, "agents", ["c"])),
    "all end unseen": lambda dicts, env: (dicts[2].update(a=True, b=True), dicts[0].clear(), env.agents.clear()),
    "all end untold": lambda dicts, env: (dicts[2].update(a=True, b=True), dicts[1].clear(), env.agents.clear()),
    "all end and tell": lambda dicts, env: (
        dicts[2].update(a=True, b=True), dicts[4].update(b={"x": 1}, common={"y": 2}), env.agents.clear()
    ),
    **{
        f"all end, the next {what}": functools.partial(
            lambda begin, dicts, env: (dicts[2].update(a=True, b=True), env.agents.clear(), begin(env)), begin
        )
        for what, begin in {
            "has no infos": lambda env: setattr(env, "reset", lambda **_: AgentsErr.reset(env)[0]),
            "raises": lambda env: setattr(env, "reset", lambda **_: 1 / 0),
            "has another": lambda env: setattr(env, "invited", True),
        }.items()
    },
    "c comes": lambda dicts, env: (dicts[0].update(c=np.zeros(2, np.float32)), env.agents.append("c")),
    "c comes unflagged": lambda dicts, env: (
        [by_agent.update(c=by_agent["a"]) for by_agent in dicts], env.agents.insert(0, "c"), dicts[4].update(c={"z": 1})
    ),
    "c comes twice": lambda dicts, env: (dicts[0].update(c=dicts[0]["a"]), env.agents.extend("cc")),
    "c comes and ends": lambda dicts, env: (
        dicts[0].update(c=dicts[0]["a"]), dicts[2].update(c=True), env.agents.append("c")
    ),
    "c comes, flagged by a word": lambda dicts, env: (
        dicts[0].update(c=dicts[0]["a"]), dicts[3].update(c="x"), env.agents.append("c")
    ),
    "c comes, all end": lambda dicts, env: (
        dicts[0].update(c=dicts[0]["a"]), dicts[2].update(a=True, b=True), setattr(env, "agents", ["c"])
    ),
    "b ends": lambda dicts, env: (dicts[2].update(b=True), dicts[0].pop("b"), env.agents.remove("b")),
    "b ends and comes back": lambda dicts, env: (
        dicts[2].update(b=True), env.agents.remove("b"),
        setattr(env, "later", lambda dicts, env: (dicts[0].update(b=dicts[0]["a"]), env.agents.append("b"))),
    ),
    "b ends and is told": lambda dicts, env: (
        dicts[2].update(b=True), env.agents.remove("b"),
        setattr(env, "later", lambda dicts, env: [by_agent.update(b=by_agent["a"]) for by_agent in dicts]),
    ),
    "b lingers and leaves": lambda dicts, env: (
        dicts[2].update(b=True), setattr(env, "later", lambda dicts, env: env.agents.remove("b")),
    ),
    "b vanishes for another": lambda dicts, env: (
        [by_agent.update(x=by_agent.pop("b")) for by_agent in dicts[:4]], dicts[4].pop("b"), env.agents.remove("b")
    ),
    "b vanishes unrewarded": lambda dicts, env: (dicts[1].pop("b"), env.agents.remove("b")),
    "b vanishes rewarded": lambda dicts, env: (
        [dicts[index].pop("b") for index in (0, 2, 3, 4)], env.agents.remove("b")
    ),
    "b vanishes seen": lambda dicts, env: ([dicts[index].pop("b") for index in (1, 2, 3)], env.agents.remove("b")),
    "b unflagged": lambda dicts, env: (dicts[2].pop("b"), dicts[0].pop("b"), env.agents.remove("b")),
    "c in place of b": lambda dicts, env: (dicts[0].update(c=dicts[0]["b"]), setattr(env, "agents", ["a", "c"])),
    "c comes unseen": lambda dicts, env: env.agents.append("c"),
    "d comes": lambda dicts, env: env.agents.append("d"),
    "other order": lambda dicts, env: env.agents.reverse(),
    "agents twice": lambda dicts, env: env.agents.extend(env.agents),
    "agents a tuple": lambda dicts, env: setattr(env, "agents", tuple(env.agents)),
    "agents None": lambda dicts, env: setattr(env, "agents", None),
    "agents deleted": lambda dicts, env: delattr(env, "agents"),
    "no state": lambda dicts, env: setattr(env, "has_state", False),
    "state None": lambda dicts, env: setattr(env, "seen", None),
    "state other": lambda dicts, env: setattr(env, "seen", np.ones(3)),
}  # fmt: skip
AGENTS_WRONG |= {f"{name}, c is known": err for name, err in AGENTS_WRONG.items() if name.startswith(("c ", "other "))}


class Unordered(dict):  # type: ignore[type-arg]
    """A dict that cannot be read."""

    def get(self, *arguments: Any) -> Any:
        raise RuntimeError("out of order")


class AgentsErr:
    """Two agents who do well at first, and then what they are told to. invited: the next reset begins with a third."""

    possible_agents = ("a", "b", "c")
    invited = False
    later: Any = None  # what they do in the step after
    metadata: dict[str, Any] = {}
    observed, acted = Box(-9, 99, (2,), np.float32), Discrete(3)
    state_space = observed

    def __init__(self, err: Callable[[list[Any], Any], Any], when: int = 3) -> None:
        self.err, self.when = err, when

    def observation_space(self, agent: str) -> Any:
        return self.observed

    def action_space(self, agent: str) -> Any:
        return self.acted

    def state(self) -> Any:
        self.looks += 1
        if not self.has_state:
            raise NotImplementedError
        return self.seen

    def looked(self) -> int:
        return self.looks

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.tick, self.has_state, self.seen, self.looks = 0, True, np.zeros(2, np.float32), 0
        self.agents = ["a", "b", "c"] if self.invited else ["a", "b"]
        self.invited, self.later = False, None
        return {agent: np.zeros(2, np.float32) for agent in self.agents}, {}

    def step(self, actions: Any) -> Any:
        self.tick += 1
        dicts: list[Any] = [{}, {}, {}, {}, {}]
        later, self.later = self.later, None
        for agent in list(self.agents or ()):
            values = np.full(2, self.tick, np.float32), 0.25 + (agent == "b"), False, False, {}
            for by_agent, value in zip(dicts, values, strict=True):
                by_agent[agent] = value
        if later is not None:
            later(dicts, self)
        if self.tick == self.when:
            self.err(dicts, self)
        return tuple(dicts)


@covering({"name": list(AGENTS_WRONG), "autoreset_mode": ["next_step", "same_step"], "state": [False, True]})
def test_faults_of_agents_are_reported_alike(name: str, autoreset_mode: str, state: bool) -> None:
    assert_told_alike(name, autoreset_mode, state)


@pytest.mark.parametrize("name", [name for name in AGENTS_WRONG if name.startswith("all end")])
def test_ends_in_the_same_step_are_reported_alike(name: str) -> None:
    assert_told_alike(name, "same_step", True)


def assert_told_alike(name: str, autoreset_mode: str, state: bool) -> None:
    def play() -> Any:
        seen: list[Any] = []
        creators = [lambda: AgentsErr(AGENTS_WRONG[name]), lambda: AgentsErr(lambda dicts, env: None)]
        with pufferlib.make(creators, autoreset_mode=autoreset_mode, wrap_kwargs={"state": state}) as vec:
            if "known" in name:
                vec.set_attr("invited", True)
                vec.reset()
                vec.step(np.zeros(6, np.int64))
            vec.reset()
            for _ in range(12):
                try:
                    seen.append(plain(vec.step(np.zeros(6, np.int64))))
                    seen.append(plain([vec.batch.masks, vec.call("looked")]))  # type: ignore[union-attr]
                except BaseException as error:
                    seen.append((type(error), str(error).partition("\n")[0]))
                    with contextlib.suppress(pufferlib.WorkerError), warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        vec.reset()
        return seen

    compiled, portable = on_both(play)
    assert compiled == portable


class Newcomers:
    """An agent, and from step 3 on others, whose observation is outside of their space. own_spaces: theirs alone."""

    metadata: dict[str, Any] = {}
    max_num_agents = 3
    space, shared_action_space = Discrete(2), Discrete(2)

    def __init__(self, own_spaces: bool) -> None:
        self.own_spaces = own_spaces

    def observation_space(self, agent: str) -> Any:
        return Discrete(2) if self.own_spaces and agent != "a" else self.space

    def action_space(self, agent: str) -> Any:
        return self.shared_action_space

    def seen(self) -> dict[str, Any]:
        return {agent: 0 if agent == "a" else 5 for agent in self.agents}

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.tick, self.agents = 0, ["a"]
        return self.seen(), {}

    def step(self, actions: Any) -> Any:
        acted, no = self.agents, dict.fromkeys(self.agents, False)
        self.tick += 1
        self.agents = ["a"] if self.tick < 3 else ["a", f"b{self.tick // 5}"] if self.tick < 9 else []
        return {**dict.fromkeys(acted, 1), **self.seen()}, dict.fromkeys(acted, 1.0), no, no, {}


@pytest.mark.parametrize("own_spaces", [False, True])
def test_agents_are_checked_where_their_space_is_their_own(own_spaces: bool) -> None:
    """Without possible_agents: who has the space of an agent that was checked is not."""

    def play() -> Any:
        seen: list[Any] = []
        with pufferlib.make(functools.partial(Newcomers, own_spaces), num_envs=2) as vec:
            vec.reset()
            try:
                seen.extend(plain(vec.step(np.zeros(6, np.int64))) for _ in range(24))
            except pufferlib.WorkerError as error:
                seen.append(str(error).partition("\n")[0])
        return seen

    compiled, portable = on_both(play)
    assert compiled == portable and len(compiled) == (3 if own_spaces else 24)
    assert not own_spaces or "agent 'b0'" in compiled[-1]


class Scripted:
    """Lists agents as a script has them: a line of one-letter names for the reset and for each step.

    infos: those of some steps. possible: its possible_agents, None for an environment without them.
    """

    metadata: dict[str, Any] = {}
    space, shared_action_space = Box(0, 999, (2,), np.float32), Discrete(2)

    def __init__(self, script: list[str], infos: dict[int, Any], possible: str | None) -> None:
        self.script, self.infos = script, infos
        if possible is not None:
            self.possible_agents = list(possible)

    def observation_space(self, agent: str) -> Any:
        return self.space

    def action_space(self, agent: str) -> Any:
        return self.shared_action_space

    def observations(self, agents: list[str]) -> dict[str, Any]:
        return {agent: np.array([self.tick, ord(agent)], np.float32) for agent in agents}

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.tick, self.agents = 0, list(self.script[0])
        return self.observations(self.agents), {}

    def step(self, actions: Any) -> Any:
        before, self.tick = self.agents, self.tick + 1
        self.agents = list(self.script[self.tick])
        rewards = {agent: float(actions[agent]) for agent in before}
        terminations = {agent: agent not in self.agents for agent in before}
        truncations = dict.fromkeys(before, False)
        observations = self.observations([*before, *self.agents])
        return observations, rewards, terminations, truncations, self.infos.get(self.tick, {})


SCRIPTS: dict[str, tuple[list[str], dict[int, Any], int]] = {  # with infos by step, and the number of places
    "one is listed twice": (["aab", "aab", "aabc", "bc", "b", ""], {}, 3),
    "one is listed twice by the reset": (["aab", "ab", "abc", "ac", ""], {}, 3),
    "all are listed twice": (["abab", "abab", "ba", "bac", "c", ""], {}, 3),
    "a newcomer is listed twice": (["ab", "ab", "abcc", "abcc", "bc", ""], {}, 4),
    "one is listed twice, no place is left": (["aab", "ab", "ab", "b", "bc", ""], {2: {"b": {"x": 1}}}, 2),
    "one has an info when displaced": (["ab", "b", "bc", "bc", ""], {3: {"a": {"late": 1}, "c": {"x": 2}}}, 2),
}


@pytest.mark.parametrize("autoreset_mode", ["next_step", "same_step"])
@pytest.mark.parametrize("possible", ["abc", None])
@pytest.mark.parametrize("name", SCRIPTS)
def test_scripted_agents_have_the_same_places(name: str, possible: str | None, autoreset_mode: str) -> None:
    """Each script is played several times: the compiled path leaves agents that it does not know to the other."""
    script, infos, max_agents = SCRIPTS[name]

    def play() -> Any:
        log: list[Any] = []
        arguments: dict[str, Any] = {"autoreset_mode": autoreset_mode, "wrap_kwargs": {"max_agents": max_agents}}
        with pufferlib.make(functools.partial(Scripted, script, infos, possible), num_envs=2, **arguments) as vec:
            rows = np.arange(vec.agents_per_batch)
            vec.reset()
            for step in range(4 * len(script)):
                log.append(plain(vec.step(rows // (1 + step % 2) % 2)))
                log.append(plain(vec.batch.masks))  # type: ignore[union-attr]
            vec.reset()
            names = vec.batch.observations[:, 1].tolist()  # type: ignore[union-attr]
        assert [chr(int(name)) for name in names if name] == sorted({*script[0]}) * 2
        return log

    compiled, portable = on_both(play)
    assert compiled == portable


class LateStrays(gymnasium.Env[Any, Any]):
    """Ends with each step, and begins its third episode with what is not in its space."""

    observation_space, action_space = Discrete(3), Discrete(2)
    times = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.times += 1
        return 7 if self.times == 3 else 1, {}

    def step(self, action: Any) -> Any:
        return 2, 0.0, True, False, {}


class LateStrayRows(pufferlib.PufferEnv):
    """The same as a PufferEnv."""

    single_observation_space, single_action_space = LateStrays.observation_space, LateStrays.action_space

    def __init__(self, num_agents: int) -> None:
        self.num_agents, self.times = num_agents, 0

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.times += 1
        self.observations[:] = 7 if self.times == 3 else 1

    def step(self, actions: Any) -> None:
        self.observations[:], self.terminations[:] = 2, True


LATE_STRAYS: dict[str, Callable[[], Any]] = {
    "values": LateStrays,
    "a row": functools.partial(LateStrayRows, 1),
    "two rows": functools.partial(LateStrayRows, 2),
}


@pytest.mark.parametrize("check", ["first", "always"])
@pytest.mark.parametrize("autoreset_mode", ["next_step", "same_step"])
@pytest.mark.parametrize("name", LATE_STRAYS)
def test_later_resets_are_checked_where_that_is_asked_for(name: str, autoreset_mode: str, check: Any) -> None:
    def play() -> Any:
        log: list[Any] = []
        with pufferlib.make(LATE_STRAYS[name], num_envs=1, autoreset_mode=autoreset_mode, check=check) as vec:
            vec.reset()
            try:
                for _ in range(8):
                    log.append(plain(vec.step(np.zeros(vec.agents_per_batch, int))))
            except pufferlib.WorkerError as error:
                log.append(str(error).partition("\n")[0])
        return log

    compiled, portable = on_both(play)
    assert compiled == portable
    assert ("the value 7 is not in" in str(portable)) == (check == "always")


class Teller(Errs):
    """Tells infos that are hard to send: of which kind, its action says."""

    def __init__(self) -> None:
        super().__init__(lambda *result: result)

    def step(self, action: Any) -> Any:
        *rows, _ = super().step(action)
        return *rows, [{}, {"large": np.arange(1 << 18)}, {"small": b"x" * 20000}, {"lock": threading.Lock()}][action]


@pytest.mark.parametrize("backend", ["multiprocessing", "pool"])
def test_infos_of_every_size_arrive_alike(backend: str) -> None:
    def play() -> Any:
        seen = []
        with pufferlib.make(Teller, backend=backend, num_envs=9, num_workers=2) as vec:
            vec.reset()
            for actions in ([1] * 9, [2] * 9, [2, 1] * 4 + [0], [0] * 9, [0, 0, 0, 3, 0, 2, 1, 0, 0]):
                vec.send(np.array(actions))
                try:
                    seen.append(plain(vec.recv().infos))
                except pufferlib.WorkerError as error:
                    seen.append(str(error))
            vec.reset(env_ids=[3])
            assert vec.batch is not None
            seen.append(plain(vec.batch))
        return seen

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Teller, "action_space", Discrete(4))
        compiled, portable = on_both(play)
    assert compiled == portable
    assert "cannot be pickled" in compiled[4]


@pytest.mark.parametrize("backend", ["multiprocessing", "pool"])
def test_workers_that_are_stopped_for_a_while_lose_nothing(backend: str) -> None:
    creator = functools.partial(TagEnv, num_agents=1, length=10**6)
    with pufferlib.make(creator, backend=backend, num_envs=5, num_workers=3) as vec:
        vec.reset()
        pids = vec._workers.pids
        timers = []
        for tick in range(1, 13):
            pid = pids[tick % 3]
            os.kill(pid, signal.SIGSTOP)
            vec.send(np.full(5, tick % 3))
            timers.append(threading.Timer(0.02 if tick % 4 else 0.15, os.kill, (pid, signal.SIGCONT)))
            timers[-1].start()
            batch = vec.recv(timeout=30)
            assert batch.observations[:, 2].tolist() == [tick] * 5 and batch.rewards.tolist() == [tick % 3] * 5
        for timer in timers:
            timer.join()


def test_steps_leave_no_references() -> None:
    """Of what each step passes through, as many references as before are held after ten thousand steps."""
    bits, word, info, action = np.zeros((2, 2), np.int8), "".join(["a", "b"]), {}, 290

    class Holder(gymnasium.Env[Any, Any]):
        observation_space = Dict(bits=MultiBinary((2, 2)), word=Text(3), pair=Tuple([Discrete(3), Box(0, 1, (2,))]))
        action_space = Dict(a=Discrete(300), b=Box(-1, 1, (2,)))
        box = np.zeros(2, np.float32)
        result: Any = ({"bits": bits, "word": word, "pair": (2, box)}, 1.5, False, False, info)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return self.result[0], {}

        def step(self, action: Any) -> Any:
            return self.result

    def counts() -> list[int]:
        gc.collect()
        return [sys.getrefcount(thing) for thing in held]

    held = [bits, word, info, Holder.result, Holder.box, bits.dtype, Holder.box.dtype, np.dtype(np.int64)]
    if sys.version_info < (3, 12):  # later ones are immortal
        held += [True, False, 2]
    actions = np.full((50, 1), action), np.zeros((50, 2), np.float32)
    with pufferlib.make(Holder, num_envs=50) as vec:
        vec.reset()
        for _ in range(3):
            vec.step(actions)
        before = counts()
        for _ in range(200):
            vec.step(actions)
        after = counts()
    assert all(abs(new - old) < 50 for old, new in zip(before, after, strict=True)), (before, after)


@pytest.mark.parametrize(("made_up", "autoreset_mode"), [(False, "next_step"), (True, "same_step")])
def test_steps_of_several_agents_leave_no_references(made_up: bool, autoreset_mode: str) -> None:
    seen, reward, info, names = np.zeros(2, np.float32), float("1.5"), {"told": "".join(["a", "b"])}, ["a_0", "a_1"]
    step = tuple(dict.fromkeys(names, value) for value in (seen, reward, False, False, info))
    last = (*step[:3], dict.fromkeys(names, True), {"common": info})
    alone, two = tuple(dict.fromkeys(names[:1], value) for value in (seen, reward, False, False, info)), [*names]
    played = [(names[:1], alone), (two, (step[0], *alone[1:])), (two, step), (two, step), ([], last)]
    held: list[Any] = [seen, reward, info, info["told"], *names, step, last, *step, *last, alone, *alone]

    class Holder:
        """An agent is alone at first, one comes, and both end."""

        metadata: dict[str, Any] = {}
        max_num_agents = 2
        spaces = Box(-1, 1, (2,), np.float32), Discrete(300)

        def observation_space(self, agent: str) -> Any:
            return self.spaces[0]

        def action_space(self, agent: str) -> Any:
            return self.spaces[1]

        def reset(self, seed: int | None = None, options: Any = None) -> Any:
            self.tick, self.agents = 0, names[:1]
            return alone[0], {}

        def step(self, actions: Any) -> Any:
            self.tick += 1
            self.agents, result = played[self.tick - 1]
            return result

    def counts() -> list[int]:
        gc.collect()
        return [sys.getrefcount(thing) for thing in held]

    class Named(Holder):
        possible_agents = names

    actions = np.full(100, 290)
    with pufferlib.make(Holder if made_up else Named, num_envs=50, autoreset_mode=autoreset_mode) as vec:
        vec.reset()
        for _ in range(60):  # whole episodes, each of five steps, or of these and a reset
            vec.step(actions)
        before = counts()
        for _ in range(240):
            vec.step(actions)
        after = counts()
    assert all(abs(new - old) < 50 for old, new in zip(before, after, strict=True)), (before, after)


class Pace(gymnasium.Env[Any, Any]):
    """Sleeps 0.3 ms in every fourth step and in every reset; an episode has ten steps."""

    observation_space = Box(0, 9, (1,), np.float32)
    action_space = Discrete(2)

    def __init__(self, sleeps: bool) -> None:
        self.sleeps, self.tick = sleeps, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        time.sleep(0.0003 * self.sleeps)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.tick += 1
        if self.sleeps and self.tick % 4 == 0:
            time.sleep(0.0003)
        return np.zeros(1, np.float32), 0.0, self.tick % 10 == 0, False, {}


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["serial", "multiprocessing"])
@pytest.mark.flaky(reruns=4)
def test_telemetry_is_the_same(backend: str) -> None:
    """Of long and of short steps, about as many are counted as were played; of resets exactly as many."""
    num_resets = 400

    def play(sleeps: bool, num: int) -> Any:
        creator = functools.partial(Pace, sleeps)
        with pufferlib.make(creator, backend=backend, num_envs=2, num_workers=2, seed=1) as vec:
            vec.reset()
            for _ in range(num):
                vec.step(np.zeros(2, np.int64))
            return vec.stats()

    for stats in on_both(lambda: play(True, 11 * num_resets)):  # 10 of 11 batches step, one resets
        assert stats.reset.num == 2 + 2 * num_resets and stats.reset.mean_s >= 0.0003
        assert stats.step.max_s >= 0.0003
        long = stats.histogram.sum(0)[stats.edges[:-1] >= 0.00025].sum()
        assert int(long) == pytest.approx(5 * num_resets, rel=0.4)
        assert stats.num_batches == 11 * num_resets + 1 and stats.waits + stats.thinks == pytest.approx(1)
    for stats in on_both(lambda: play(False, 11 * num_resets)):
        assert stats.step.num == pytest.approx(20 * num_resets, rel=0.3)
        assert stats.reset.num == 2 + 2 * num_resets


@pytest.mark.parametrize("backend", ["serial", "multiprocessing"])
def test_episodes_have_their_seconds(backend: str) -> None:
    def play() -> list[float]:
        start_s = time.perf_counter()
        with pufferlib.make(functools.partial(Pace, True), backend=backend, num_envs=2, num_workers=2) as vec:
            vec.reset()
            infos = [info for _ in range(33) for info in vec.step(np.zeros(2, np.int64))[4]]
        times = [info["episode"]["t"] for info in infos]
        assert sum(times[::2]) <= time.perf_counter() - start_s  # one environment's, one after the other
        return times

    for times in on_both(play):
        assert len(times) == 6 and min(times) >= 0.0006


def test_who_is_over_is_not_alive() -> None:
    def play() -> Any:
        with pufferlib.make(functools.partial(TagEnv, num_agents=1, length=3), num_envs=2) as vec:
            vec.reset()
            overs = [vec.step(np.zeros(2, np.int64))[2].tolist() for _ in range(3)]
            return overs, [alive.tolist() for alive in vec.get_attr("alive")]

    for overs, alive in on_both(play):
        assert overs[1:] == [[False] * 2, [True] * 2] and alive == [[False]] * 2
