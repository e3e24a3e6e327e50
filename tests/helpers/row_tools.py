"""Rows for tests of emulation: poisoned before each write, so that whatever is left unwritten shows itself."""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.spaces import Box

from pufferlib.emulation import RowEnv, Rows


class Held(NamedTuple):
    """What a RowEnv wrote."""

    observations: Any
    rewards: Any
    terminations: Any
    truncations: Any
    masks: Any
    infos: Any


def poisoned(env: RowEnv) -> Rows:
    """Return rows full of what no environment wrote."""
    space: Any = env.observation_space
    observations = np.frombuffer(
        bytes([0xA5]) * (env.num_agents * int(np.prod(space.shape)) * np.dtype(space.dtype).itemsize), space.dtype
    )
    observations = observations.reshape(env.num_agents, *space.shape).copy()
    terminations, truncations, masks = (np.ones(env.num_agents, np.bool_) for _ in range(3))
    places = tuple(observations[agent_index, ...] for agent_index in range(env.num_agents))
    return Rows(observations, np.full(env.num_agents, np.nan), terminations, truncations, masks, places)


def written(env: RowEnv) -> Held:
    """Return what env holds, written into fresh rows."""
    rows = poisoned(env)
    env.write_observations(rows)
    env.write_outcome(rows)
    return Held(*rows[:5], env.infos)


def reset(env: RowEnv, seed: int | None = None, options: Any = None) -> Held:
    """Reset env and return its rows."""
    env.reset(seed, options)
    return written(env)


def step(env: RowEnv, actions: Any) -> tuple[bool, Held]:
    """Step env; return whether its episode is over, and its rows."""
    over = env.step(actions)
    return over, written(env)


def batched(row_action: Any) -> Any:
    """Return one agent's flat action as the rows of an environment of one agent."""
    if isinstance(row_action, tuple):
        return tuple(np.asarray(part)[None] for part in row_action)
    return np.asarray(row_action)[None]


def without_time(infos: Any) -> Any:
    """Return (place, info) pairs with the seconds taken out of their episodes."""
    return [
        (
            agent_index,
            {**info, "episode": {"r": info["episode"]["r"], "l": info["episode"]["l"]}} if "episode" in info else info,
        )
        for agent_index, info in infos
    ]


class SpacesEnv(gymnasium.Env[Any, Any]):
    """Samples its observations; asserts that its actions are in their space; the reward tells the last action apart."""

    def __init__(self, observation_space: Any, action_space: Any, length: int = 7) -> None:
        self.observation_space = observation_space
        self.action_space = action_space
        self.length = length

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(int(self.np_random.integers(1 << 30)))
        self.tick = 0
        return self.observation_space.sample(), {"options": options} if options else {}

    def step(self, action: Any) -> Any:
        assert action in self.action_space, action
        self.tick += 1
        self.action = action
        numbers = gymnasium.spaces.flatten(self.action_space, action)
        reward = float(np.asarray(numbers, np.float64).sum())
        over = self.tick >= self.length
        return self.observation_space.sample(), reward, over and self.tick % 2 == 0, over and self.tick % 2 == 1, {}


def same(first: Any, second: Any) -> bool:
    """Whether two observations are equal, dtypes too; Python's numbers count as NumPy's."""
    if isinstance(second, dict):
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in second)
    if isinstance(second, tuple):
        return len(first) == len(second) and all(map(same, first, second))
    first, second = np.asarray(first), np.asarray(second)
    return first.dtype == second.dtype and np.array_equal(first, second)


def expect_row(row: Any, layout: Any, expected: Any) -> None:
    """Assert that a row begins with this observation and has zeros behind it."""
    head = np.zeros(layout.shape, layout.dtype)
    layout.pack(expected, head)
    data = row.tobytes()
    assert data[: head.nbytes] == head.tobytes()
    assert not any(data[head.nbytes :])


class Diverse:
    """A parallel environment of one agent a pair of spaces; samples its observations, and keeps the actions it gets."""

    metadata: dict[str, Any] = {"name": "diverse"}

    def __init__(self, **spaces: Any) -> None:
        self.spaces = spaces
        self.possible_agents = list(spaces)

    def observation_space(self, agent: Any) -> Any:
        return self.spaces[agent][0]

    def action_space(self, agent: Any) -> Any:
        return self.spaces[agent][1]

    def observe(self) -> Any:
        self.seen = {agent: self.observation_space(agent).sample() for agent in self.agents}
        return self.seen

    def info(self) -> Any:
        return {agent: {} for agent in self.agents}

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        for number, agent in enumerate(self.possible_agents):
            self.observation_space(agent).seed(seed if seed is None else seed + number)
        self.agents = self.possible_agents[:]
        return self.observe(), self.info()

    def step(self, actions: Any) -> Any:
        self.actions = actions
        for agent, action in actions.items():
            space = self.action_space(agent)
            if isinstance(space, Box) and space.dtype.kind == "f":  # which numbers beyond its bounds may reach
                assert (action.shape, action.dtype) == (space.shape, space.dtype), (agent, action)
            else:
                assert action in space, (agent, action)
        flags = dict.fromkeys(self.agents, False)
        return self.observe(), dict.fromkeys(self.agents, 0.0), flags, flags, self.info()

    def state(self) -> Any:
        return "the state"

    def __str__(self) -> str:
        return "diverse"


class Newcomer(Diverse):
    """Agent b appears in the first step."""

    possible_agents: Any

    def __init__(self, **spaces: Any) -> None:
        super().__init__(**spaces)
        del self.possible_agents

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents = ["a"]
        return self.observe(), self.info()

    def step(self, actions: Any) -> Any:
        self.agents = ["a", "b"]
        return super().step(actions)
