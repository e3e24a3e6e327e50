"""Environments with one fault each, for the checks that must find it, and one without."""

from __future__ import annotations

import os
import random
import threading
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete


class Walk(gymnasium.Env[Any, Any]):
    """A random walk from -1 to 1 that does everything right. Episodes end at either side, or are cut after 20 steps."""

    def __init__(self) -> None:
        self.observation_space = Dict({"position": Box(-1, 1, (2,), np.float32), "side": Discrete(2, start=1)})
        self.action_space = Discrete(3)

    def observe(self) -> Any:
        return {"position": self.position.copy(), "side": int(self.position[0] > 0) + 1}

    def draw(self) -> float:
        return float(self.np_random.uniform(-0.5, 0.5))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.position = np.array([self.draw(), 0], np.float32)
        self.tick = 0
        return self.observe(), {"tick": 0}

    def step(self, action: Any) -> Any:
        self.tick += 1
        self.position[0] = np.clip(self.position[0] + 0.2 * (action - 1) + 0.2 * self.draw(), -1, 1)
        self.position[1] = self.tick / 20
        over = bool(abs(self.position[0]) == 1)
        return self.observe(), float(self.position[0]), over, self.tick == 20 and not over, {"tick": self.tick}


class DrawsGlobally(Walk):
    def draw(self) -> float:
        return random.random() - 0.5


class SeedsGlobally(Walk):
    """Reproducible all the same, as long as it is alone."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            np.random.seed(seed)
        return super().reset(seed=seed, options=options)

    def draw(self) -> float:
        return float(np.random.uniform(-0.5, 0.5))


class DrawsFromTorch(Walk):
    def draw(self) -> float:
        import torch

        return float(torch.rand(())) - 0.5


class Float64(Walk):
    def observe(self) -> Any:
        return {**super().observe(), "position": self.position.astype(np.float64)}


class LongerShape(Walk):
    def observe(self) -> Any:
        return {**super().observe(), "position": self.position[None].copy()}


class WrongShape(Walk):
    """From the third step on, when emulation no longer checks everything."""

    def observe(self) -> Any:
        return {**super().observe(), "position": self.position[: 2 if self.tick < 3 else 1].copy()}

    def reset(self, **kwargs: Any) -> Any:
        self.tick = 0
        return super().reset(**kwargs)


class Words(Walk):
    def observe(self) -> Any:
        return {**super().observe(), "side": "left"}

    def reset(self, **kwargs: Any) -> Any:
        return super().reset(**kwargs)


class OutOfRange(Walk):
    def observe(self) -> Any:
        return {**super().observe(), "position": self.position * 2}


class LiveViews(Walk):
    def __init__(self) -> None:
        super().__init__()
        self.live = np.zeros(2, np.float32)

    def observe(self) -> Any:
        self.live[:] = self.position
        return {**super().observe(), "position": self.live}


class Unseeded(Walk):
    def __init__(self) -> None:
        super().__init__()
        self.generator = np.random.default_rng()

    def draw(self) -> float:
        return float(self.generator.uniform(-0.5, 0.5))


class ForgetsSeed(Walk):
    """Starts a new generator at each reset that has no seed."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.generator = np.random.default_rng(seed)
        return super().reset(seed=seed)

    def draw(self) -> float:
        return float(self.generator.uniform(-0.5, 0.5))


class SeedsByClock(Walk):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.generator = random.Random(time.time_ns())
        return super().reset(seed=seed)

    def draw(self) -> float:
        return self.generator.uniform(-0.5, 0.5)


class EndsByClock(Walk):
    """Counts seconds instead of steps."""

    def reset(self, **kwargs: Any) -> Any:
        self.deadline = time.monotonic() + 5
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated, truncated or time.monotonic() > self.deadline, info


class HashOrder(Walk):
    def draw(self) -> float:
        return 0.1 * [*{"left", "right", "up", "down", "in", "out"}].index("up") + super().draw() - 0.3


class ProcessNumber(Walk):
    def draw(self) -> float:
        return super().draw() * (1 + os.getpid() % 1000 / 1e6)


class SharesState(Walk):
    """Environments of one process walk as one; each alone is in order."""

    position = np.zeros(2, np.float32)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "position":
            SharesState.position[:] = value
        else:
            super().__setattr__(name, value)


class Leftovers(Walk):
    """Grows tired from episode to episode, whatever the seed."""

    tired = 0.0

    def reset(self, **kwargs: Any) -> Any:
        self.tired = min(0.4, self.tired + 0.001)
        return super().reset(**kwargs)

    def draw(self) -> float:
        return super().draw() * (1 - self.tired)


class NoChance(Walk):
    def draw(self) -> float:
        return 0.1


class InfiniteReward(Walk):
    def step(self, action: Any) -> Any:
        observation, reward, *rest = super().step(action)
        return observation, reward / (0 if self.tick == 3 else 1) if reward and self.tick != 3 else np.inf, *rest


class LockInInfo(Walk):
    def step(self, action: Any) -> Any:
        *most, info = super().step(action)
        return *most, {**info, "lock": threading.Lock()}


class Raises(Walk):
    def step(self, action: Any) -> Any:
        if self.tick == 7:
            raise ZeroDivisionError("the walker tripped")
        return super().step(action)


class CloseRaises(Walk):
    def close(self) -> None:
        raise RuntimeError("there is no window to close")


class CloseTwiceRaises(Walk):
    def close(self) -> None:
        del self.action_space


class DiesAfterEnd(Walk):
    def step(self, action: Any) -> Any:
        if self.tick >= 20 or abs(self.position[0]) == 1:
            os._exit(3)
        return super().step(action)
