"""Environments as programs for PufferLib 1 to 3 write them."""

from __future__ import annotations

import os
import signal
from typing import Any

import gymnasium
import numpy as np
import pettingzoo
from gymnasium import spaces

import pufferlib
import pufferlib.emulation


class Counter(gymnasium.Env[Any, Any]):
    """Observations are (seed, tick); an episode has ``length`` steps, and is truncated if ``truncates``."""

    def __init__(self, length: int = 3, truncates: bool = False, dies_at: int = -1) -> None:
        self.observation_space = spaces.Box(-1, 1 << 20, (2,), np.float32)
        self.action_space = spaces.Discrete(5)
        self.length, self.truncates, self.dies_at = length, truncates, dies_at
        self.first = -1
        self.closed = False

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.first = self.first if seed is None else seed
        self.tick = 0
        return np.array([self.first, 0], np.float32), {}

    def step(self, action: Any) -> Any:
        self.tick += 1
        if self.tick == self.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        over = self.tick == self.length
        info = {"action": int(action)} if over else {}
        observation = np.array([self.first, self.tick], np.float32)
        return observation, float(action), over and not self.truncates, over and self.truncates, info

    def close(self) -> None:
        self.closed = True


class Nested(gymnasium.Env[Any, Any]):
    """A Dict of dtypes that differ, with a nested Tuple, and a Dict of actions."""

    observation_space = spaces.Dict(
        {"a": spaces.Box(0, 255, (2, 2), np.uint8), "b": spaces.Box(-1, 1, (3,), np.float32), "c": spaces.Discrete(9)}
    )
    action_space = spaces.Dict({"x": spaces.Discrete(3), "y": spaces.Tuple([spaces.Discrete(2), spaces.Discrete(4)])})

    def observation(self) -> Any:
        tick = self.tick
        return {"a": np.full((2, 2), tick, np.uint8), "b": np.full(3, tick / 8, np.float32), "c": tick}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.tick = 0
        return self.observation(), {}

    def step(self, action: Any) -> Any:
        assert action in self.action_space or all(isinstance(part, int) for part in (action["x"], *action["y"]))
        self.tick += 1
        return self.observation(), action["x"] + 10 * action["y"][0] + 100 * action["y"][1], self.tick == 8, False, {}


class Team(pettingzoo.ParallelEnv):  # type: ignore[misc]
    """Three agents; agent i ends after i + 2 steps, and with ``late``, the last is absent from the reset."""

    metadata = {"render_modes": [], "name": "team"}

    def __init__(self, late: bool = False, odd_infos: bool = False) -> None:
        self.possible_agents = ["a0", "a1", "a2"]
        self.agents: list[str] = []
        self.late, self.odd_infos = late, odd_infos
        self.render_mode = None

    def observation_space(self, agent: Any) -> Any:
        return spaces.Box(-1, 1 << 20, (2,), np.float32)

    def action_space(self, agent: Any) -> Any:
        return spaces.Discrete(4)

    def observation(self, agent: str) -> Any:
        return np.array([self.seed_of_reset, 10 * int(agent[1]) + self.tick + 1], np.float32)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.seed_of_reset = -1 if seed is None else seed
        self.tick = 0
        self.agents = self.possible_agents[: 2 if self.late else 3]
        return {agent: self.observation(agent) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions: Any) -> Any:
        self.tick += 1
        acted = self.agents
        ended = {agent: self.tick == int(agent[1]) + 2 for agent in acted}
        self.agents = [agent for agent in acted if not ended[agent]]
        infos = {"mean": 0.5} if self.odd_infos else {agent: {"tick": self.tick} for agent in acted}
        return (
            {agent: self.observation(agent) for agent in acted},
            {agent: float(actions[agent]) for agent in acted},
            ended,
            dict.fromkeys(acted, False),
            infos,
        )


class Native(pufferlib.PufferEnv):
    """A PufferEnv as versions 2 and 3 write it: it fills the buffers, and starts again in the last step."""

    terminals: Any

    def __init__(self, agents: int = 2, buf: Any = None, seed: int = 0) -> None:
        self.single_observation_space = spaces.Box(-1, 1 << 20, (2,), np.float32)
        self.single_action_space = spaces.Discrete(5)
        self.num_agents = agents
        self.construction_seed, self.num_notified = seed, 0
        super().__init__(buf)

    def reset(self, seed: int | None = None) -> Any:  # type: ignore[override]
        self.tick = 0
        self.observations[:, 0] = -1 if seed is None else seed
        self.observations[:, 1] = 0
        return self.observations, [{"construction_seed": self.construction_seed}]

    def step(self, actions: Any) -> Any:
        self.tick += 1
        self.rewards[:] = actions
        self.terminals[:] = self.tick == 3
        infos = [{"score": 1.0}, {"score": 2.0}] if self.tick == 3 else []
        self.tick %= 3
        self.observations[:, 1] = self.tick
        return self.observations, self.rewards, self.terminals, self.truncations, infos

    def notify(self) -> None:
        self.num_notified += 1

    def close(self) -> None:
        pass


def one(length: int = 3, truncates: bool = False, dies_at: int = -1, buf: Any = None, seed: int = 0) -> Any:
    """A creator for version 3."""
    keywords = {"length": length, "truncates": truncates, "dies_at": dies_at}
    return pufferlib.emulation.GymnasiumPufferEnv(env_creator=Counter, env_kwargs=keywords, buf=buf, seed=seed)


def one_of_version_1(length: int = 3) -> Any:
    """A creator for version 1."""
    return pufferlib.emulation.GymnasiumPufferEnv(Counter(length))


def nested(buf: Any = None, seed: int = 0) -> Any:
    return pufferlib.emulation.GymnasiumPufferEnv(env_creator=Nested, buf=buf)


def team(late: bool = False, odd_infos: bool = False, buf: Any = None, seed: int = 0) -> Any:
    return pufferlib.emulation.PettingZooPufferEnv(env_creator=Team, env_args=[late, odd_infos], buf=buf)
