"""Environments whose observations say where they come from, so that a misrouted row shows itself."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

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
            return observation, reward, terminated, truncated, {"handle": (x for x in ())}
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
