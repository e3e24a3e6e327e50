"""Environments whose observations say where they come from, so that a misrouted row shows itself."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pettingzoo
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, Text, Tuple

import pufferlib


class HashEnv(gymnasium.Env[Any, Any]):
    """Each observation is a running hash of the seed and all past actions: a lost, repeated or misrouted action
    changes every later row. Episodes have random lengths; some end by truncation; steps take random times."""

    def __init__(self, env_index: int = 0, mean_length: int = 6, max_delay_s: float = 0.0) -> None:
        self.observation_space = Box(0, 255, (16,), np.uint8)
        self.action_space = Discrete(1000)
        self.env_index = env_index
        self.mean_length = mean_length
        self.max_delay_s = max_delay_s
        self.delays = np.random.default_rng()  # when rows finish must not change what they hold

    def _observation(self) -> Any:
        return np.frombuffer(self.digest, np.uint8).copy()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if seed is not None:
            self.last_seed = seed
        draw = int(self.np_random.integers(1 << 62))
        self.digest = hashlib.md5(repr((self.env_index, draw, options)).encode()).digest()
        self.length = int(self.np_random.geometric(1 / self.mean_length))
        self.tick = 0
        return self._observation(), {"first": draw % 7} if draw % 3 == 0 else {}

    def step(self, action: Any) -> Any:
        if self.max_delay_s:
            time.sleep(self.delays.uniform(0, self.max_delay_s))
        self.tick += 1
        self.digest = hashlib.md5(self.digest + repr((int(action), self.tick)).encode()).digest()
        over = self.tick >= self.length
        truncated = over and self.length % 2 == 0
        info = {"tick": self.tick} if self.digest[0] % 5 == 0 else {}
        return self._observation(), self.digest[1] / 8, over and not truncated, truncated, info

    def pid(self) -> int:
        return os.getpid()


class WideEnv(HashEnv):
    """HashEnv, with observations of that many bytes: those of two environments fit a wire of Ray's backend."""

    nbytes = 24 << 10

    def __init__(self, env_index: int = 0) -> None:
        super().__init__(env_index)
        self.observation_space = Box(0, 255, (self.nbytes,), np.uint8)

    def _observation(self) -> Any:
        return np.resize(super()._observation(), self.nbytes)


class LargeEnv(WideEnv):
    """Its observations travel in Ray's object store, as they are too large for any other way."""

    nbytes = 128 << 10


class NestedHashEnv(HashEnv):
    """HashEnv with nested observations of mixed dtypes, and actions of both kinds."""

    def __init__(self, env_index: int = 0, **kwargs: Any) -> None:
        super().__init__(env_index, **kwargs)
        self.observation_space = Dict(
            bits=MultiBinary(3), pair=Tuple([Discrete(7, start=-3), Box(0, 255, (2,), np.float32)]),
            word=Text(8, charset="abcdefgh"), all=Box(0, 255, (16,), np.uint8),
        )  # fmt: skip
        self.action_space = Dict(push=Discrete(5), aim=Box(-1, 1, (2,), np.float32))

    def _observation(self) -> Any:
        b = self.digest
        word = "".join("abcdefgh"[byte % 8] for byte in b[: 1 + b[0] % 8])
        pair = (np.int64(b[1] % 7 - 3), np.array([b[2], b[3]], np.float32))
        bits = np.array([b[4] & 1, b[5] & 1, b[6] & 1], np.int8)
        return {"bits": bits, "pair": pair, "word": word, "all": np.frombuffer(b, np.uint8).copy()}

    def step(self, action: Any) -> Any:
        return super().step(int(action["push"]) + int.from_bytes(action["aim"].tobytes(), "little"))


class HashPopulation(pettingzoo.ParallelEnv[Any, Any, Any]):  # type: ignore[misc]
    """Agents that spawn, die and vanish at random; each observes a running hash of all that anyone has done."""

    metadata: ClassVar[dict[str, Any]] = {"name": "hash_population_v0", "render_modes": []}

    def __init__(self, env_index: int = 0, max_delay_s: float = 0.0) -> None:
        self.env_index = env_index
        self.max_delay_s = max_delay_s
        self.delays = np.random.default_rng()
        self.spaces = (Box(0, 255, (16,), np.uint8), Discrete(9))
        self.agents: list[Any] = []
        self.born = 0

    def observation_space(self, agent: Any) -> Any:
        return self.spaces[0]

    def action_space(self, agent: Any) -> Any:
        return self.spaces[1]

    def _observe(self, agents: list[Any]) -> Any:
        return {
            agent: np.frombuffer(hashlib.md5(self.digest + repr(agent).encode()).digest(), np.uint8) for agent in agents
        }

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None or not self.born:
            self.generator = np.random.default_rng(seed)
        self.digest = repr((self.env_index, int(self.generator.integers(1 << 62)))).encode()
        self.agents, self.born, self.tick = [(0,), (1,)], 2, 0
        return self._observe(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions: Any) -> Any:
        if self.max_delay_s:
            time.sleep(self.delays.uniform(0, self.max_delay_s))
        assert set(actions) == set(self.agents)
        self.tick += 1
        self.digest = hashlib.md5(self.digest + repr([(a, int(actions[a])) for a in self.agents]).encode()).digest()
        acted = self.agents
        ends = {agent: self.generator.random() for agent in acted}
        if self.tick == 12:
            ends = dict.fromkeys(acted, 0.05)
        terminations = {agent: end < 0.1 for agent, end in ends.items()}
        truncations = {agent: 0.1 <= end < 0.15 for agent, end in ends.items()}
        vanished = [agent for agent, end in ends.items() if 0.15 <= end < 0.2]
        rewards = {agent: hashlib.md5(self.digest + repr(agent).encode()).digest()[0] / 4 for agent in acted}
        self.agents = [agent for agent, end in ends.items() if end >= 0.2]
        if self.agents and len(self.agents) < 3 and self.generator.random() < 0.5:
            self.agents.append((self.born,))
            self.born += 1
        reported = [agent for agent in dict.fromkeys([*acted, *self.agents]) if agent not in vanished]
        for agent in vanished:
            del rewards[agent], terminations[agent], truncations[agent]
        infos = {agent: {"born": agent[0]} if self.digest[1] % 4 == 0 else {} for agent in reported}
        return self._observe(reported), rewards, terminations, truncations, infos


class TagEnv(pufferlib.PufferEnv):
    """Rows of (env_index, agent, tick); every agent's life ends with the episode, after ``length`` steps."""

    single_action_space = Discrete(3)

    def __init__(self, env_index: int = 0, num_agents: int = 2, length: int = 4) -> None:
        self.single_observation_space = Box(-1, 1e6, (3,), np.float32)
        self.num_agents = num_agents
        self.env_index = env_index
        self.length = length

    def _write(self) -> None:
        self.observations[:, 0] = self.env_index
        self.observations[:, 1] = np.arange(self.num_agents)
        self.observations[:, 2] = self.tick

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        super().reset(seed=seed)
        self.tick = 0
        self._write()

    def step(self, actions: Any) -> None:
        self.tick += 1
        self._write()
        self.rewards[:] = actions
        self.terminations[:] = self.tick >= self.length


class FaultyEnv(HashEnv):
    """Misbehaves on purpose when told to by its action: 990 and above."""

    def step(self, action: Any) -> Any:
        if action == 991:
            raise ValueError("the emulator caught fire")
        if action == 992:
            os.kill(os.getpid(), signal.SIGKILL)
        if action == 993:
            raise SystemExit(3)
        if action == 994:
            raise Unpicklable("has a lock inside")
        if action == 995:
            observation, reward, terminated, truncated, _ = super().step(0)
            return observation, reward, terminated, truncated, {"handle": (x for x in "")}
        if action == 996:
            time.sleep(60)
        return super().step(action)


class Unpicklable(Exception):
    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle this exception")


def fails_in_init(env_index: int) -> Any:
    if env_index == 1:
        raise RuntimeError("no such ROM")
    return HashEnv(env_index)
