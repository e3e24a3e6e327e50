"""Raw environments as oracles: stepped without pufferlib, and written down as what a VecEnv's rows must say."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

__all__ = ["Moment", "Tape", "identical"]


class Moment(NamedTuple):
    """One environment after a reset or a step, with next-step autoreset. Dicts are keyed by an agent's place.

    A place that is not in ``observations`` has no agent; one that is not in ``rewards`` made no transition.
    """

    observations: dict[int, Any]  # as the raw environment gave them
    rewards: dict[int, float]
    terminations: dict[int, bool]
    truncations: dict[int, bool]
    infos: dict[int | None, dict[Any, Any]]  # those not empty; None: of the environment itself
    actions: dict[int, Any]  # what the living play next, in their raw spaces; empty before a reset
    events: dict[str, int]  # how often what a test may want to have seen happened
    spaces: dict[int, Any]  # of the observations


class Tape:
    """All moments of one raw environment that is played by random actions, recorded as far as they are asked for."""

    def __init__(self, env: Any, seed: int, max_agents: int | None = None) -> None:
        self._oracle = _Agents(env, max_agents) if callable(env.observation_space) else _One(env)
        self._env = env
        self._seed, self._max_agents = seed, max_agents
        self._random = np.random.default_rng(seed)
        self._moments: list[tuple[bytes, dict[int, Any]]] = []
        self._steps: list[int] = []  # played up to each moment
        self._actions: dict[Any, Any] = {}

    def __getitem__(self, index: int) -> Moment:
        while index >= len(self._moments):
            self._record()
        compressed, where = self._moments[index]
        return Moment._make((*pickle.loads(zlib.decompress(compressed)), where))

    def steps(self, num_moments: int) -> int:
        """Return how many steps, as opposed to resets, are among the first moments."""
        while num_moments > len(self._moments):
            self._record()
        return self._steps[num_moments - 1]

    def repeats(self, num_moments: int) -> bool:
        """Return whether a second reset with the seed begins what the first one did, after all that was played."""
        self.steps(num_moments)  # recorded first, since both are played by one environment
        again = Tape(self._env, self._seed, self._max_agents)
        return all(identical(tuple(again[index])[:-1], tuple(self[index])[:-1]) for index in range(num_moments))

    def close(self) -> None:
        self._env.close()

    def _record(self) -> None:
        oracle = self._oracle
        if self._actions:
            moment = oracle.step(self._actions)
        else:
            moment = oracle.reset(None if self._moments else self._seed)
        self._steps.append(moment.events.get("steps", 0) + (self._steps[-1] if self._steps else 0))
        self._actions = {
            agent: self._actions[agent]
            if agent in self._actions and mask is None and self._random.random() < oracle.persistence
            else _draw(space, self._random, mask)
            for agent, (space, mask) in oracle.spaces_and_masks().items()
        }
        actions = {oracle.seats[agent]: action for agent, action in self._actions.items()}
        *values, where = moment._replace(actions=actions)
        # Pickled at once: environments may write into what they gave. A thousand steps of battle are half a gigabyte.
        self._moments.append((zlib.compress(pickle.dumps(values), 1), where))


class _One:
    """A Gymnasium environment, whose one agent has place 0."""

    persistence = 0.0

    def __init__(self, env: Any) -> None:
        self.env = env
        self.seats = {None: 0}
        self.over = True

    def reset(self, seed: int | None) -> Moment:
        observation, info = self.env.reset(seed=seed)
        self.over, self.total, self.length = False, 0.0, 0
        return self._moment(observation, info, {"resets": 1})

    def spaces_and_masks(self) -> dict[Any, tuple[Any, Any]]:
        return {} if self.over else {None: (self.env.action_space, None)}

    def step(self, actions: Mapping[Any, Any]) -> Moment:
        observation, reward, terminated, truncated, info = self.env.step(actions[None])
        if isinstance(reward, list):  # lbforaging's
            info = {**info, "rewards": reward}
            reward = sum(reward)
        self.over = terminated or truncated
        self.total += reward
        self.length += 1
        events = {
            "steps": 1,
            "rewarded": reward != 0,
            "terminated": terminated,
            "truncated": truncated,
            "told": len(info),
        }
        if self.over:
            info = {**info, "env": True, "episode": {"r": self.total, "l": self.length}}
        return self._moment(observation, info, events, {0: reward}, {0: terminated}, {0: truncated})

    def _moment(self, observation: Any, info: Any, events: Any, *outcome: Any) -> Moment:
        infos: dict[int | None, dict[Any, Any]] = {0: info} if info else {}
        rewards, terminations, truncations = outcome or ({}, {}, {})
        where = {0: self.env.observation_space}
        return Moment({0: observation}, rewards, terminations, truncations, infos, {}, events, where)


class _Agents:
    """A PettingZoo parallel environment, whose agents have the places that the contract gives them.

    With ``possible_agents``, agent i of the list has place i. Else (max_agents) each takes the lowest free place when
    it appears, in the environment's order; the place of one that ended is free from the next step on. An agent ends
    when it is first flagged, though some environments go on to list it; one that is flagged at birth gets no place.
    """

    persistence = 0.8  # how often an action is repeated: trembling, agents would hardly meet, fight and die

    def __init__(self, env: Any, max_agents: int | None) -> None:
        self.env = env
        self.max_agents = max_agents
        self.seats: dict[Any, int] = {}  # of the living
        self.masked = False  # there are action masks in the infos
        self.masked_spaces: dict[int, tuple[Any, Any]] = {}

    def reset(self, seed: int | None) -> Moment:
        observations, infos = self.env.reset(seed=seed)
        self.masked |= any("action_mask" in info for info in infos.values())
        self.seats = {}
        self.freed: set[int] = set()
        self.last: dict[Any, int] = {}  # places of the living, and of the ended until someone else takes them
        self.totals: dict[Any, float] = {}
        self.lengths: dict[Any, int] = {}
        self.total, self.length = 0.0, 0
        self._seat(self.env.agents)
        return self._moment(observations, infos, {"resets": 1})

    def spaces_and_masks(self) -> dict[Any, tuple[Any, Any]]:
        return {agent: (self.env.action_space(agent), self.allowed[agent]) for agent in self.seats}

    def step(self, actions: Mapping[Any, Any]) -> Moment:
        observations, rewards, terminations, truncations, infos = self.env.step(dict(actions))
        acted = dict(self.seats)
        flagged = {agent for agent in terminations if terminations[agent] or truncations[agent]}
        ended = [agent for agent in acted if agent in flagged]
        assert set(acted) - set(self.env.agents) <= set(ended), "these environments flag every end"
        for agent in acted:
            self.totals[agent] += rewards[agent]
            self.lengths[agent] += 1
            self.total += rewards[agent]
        self.length += 1
        self.freed = {self.seats.pop(agent) for agent in ended}
        born = [agent for agent in self.env.agents if agent not in self.totals and agent not in flagged]
        self._seat(born)
        events = {
            "steps": 1,
            "rewarded": any(rewards[agent] for agent in acted),
            "terminated": sum(terminations[agent] for agent in acted),
            "truncated": sum(truncations[agent] for agent in acted),
            "died": len(ended) if self.seats else 0,
            "born": len(born),
            "told": sum(map(len, infos.values())),
        }
        infos = {agent: dict(info) for agent, info in infos.items()}
        for agent in ended:
            infos[agent]["episode"] = {"r": self.totals[agent], "l": self.lengths[agent]}
        outcome = [{acted[agent]: of[agent] for agent in acted} for of in (rewards, terminations, truncations)]
        moment = self._moment(observations, infos, events, outcome, ended)
        if not self.seats:
            env_info = moment.infos.setdefault(None, {})
            env_info.update({"env": True, "episode": {"r": self.total, "l": self.length}})
        return moment

    def _seat(self, agents: Iterable[Any]) -> None:
        for agent in agents:
            if self.max_agents is None:
                agent_index = self.env.possible_agents.index(agent)
            else:
                agent_index = min(set(range(self.max_agents)) - set(self.seats.values()) - self.freed)
            self.last = {other: taken for other, taken in self.last.items() if taken != agent_index}
            self.seats[agent] = self.last[agent] = agent_index
            self.totals[agent], self.lengths[agent] = 0.0, 0

    def _moment(
        self, observations: Any, infos: Any, events: Any, outcome: Iterable[Any] = ({}, {}, {}), ended: Any = ()
    ) -> Moment:
        held, where, self.allowed = {}, {}, {}
        for agent in (*ended, *self.seats):
            agent_index = self.last[agent]
            held[agent_index], where[agent_index] = observations[agent], self.env.observation_space(agent)
            source = observations[agent] if isinstance(observations[agent], dict) else infos[agent]
            self.allowed[agent] = mask = source.get("action_mask")
            if self.masked:  # it becomes a leaf of the observation, and is no longer in the infos
                num_actions = int(self.env.action_space(agent).n)
                where[agent_index] = self._masked_space(where[agent_index], num_actions)
                mask = np.ones(num_actions, np.int8) if mask is None else mask
                held[agent_index] = {"observation": held[agent_index], "action_mask": mask}
        by_place: dict[int | None, dict[Any, Any]] = {}
        for agent, info in infos.items():
            if self.masked and agent in self.last:
                info = {key: info[key] for key in info if key != "action_mask"}
            if info and agent in self.last:
                by_place[self.last[agent]] = info
            elif info:  # of one that is gone, or never came
                by_place.setdefault(None, {})[agent] = info
        rewards, terminations, truncations = outcome
        return Moment(held, rewards, terminations, truncations, by_place, {}, events, where)

    def _masked_space(self, space: Any, num_actions: int) -> Any:
        known = self.masked_spaces.get(id(space))
        if known is None:
            masked = spaces.Dict({"observation": space, "action_mask": spaces.MultiBinary(num_actions)})
            known = self.masked_spaces[id(space)] = (space, masked)
        return known[1]


def _draw(space: Any, random: np.random.Generator, mask: Any = None) -> Any:
    """Return a random action of a space; of a Discrete one that mask allows, where it allows any."""
    if isinstance(space, spaces.Discrete):
        allowed = range(space.n) if mask is None or not np.any(mask) else np.flatnonzero(mask)
        return int(space.start + allowed[random.integers(len(allowed))])
    if isinstance(space, spaces.Box):
        low, high = (np.clip(bound, -1e3, 1e3) for bound in (space.low, space.high))
        return random.uniform(low, high).astype(space.dtype)
    if isinstance(space, spaces.MultiDiscrete):
        return random.integers(space.nvec).astype(space.dtype)
    if isinstance(space, spaces.MultiBinary):
        return random.integers(2, size=space.shape).astype(space.dtype)
    if isinstance(space, spaces.Dict):
        return {key: _draw(part, random) for key, part in space.spaces.items()}
    assert isinstance(space, spaces.Tuple), space
    return tuple(_draw(part, random) for part in space.spaces)


def identical(actual: Any, expected: Any) -> bool:
    """Return whether two trees, such as infos, are of the same types and values throughout."""
    if type(actual) is not type(expected):
        return False
    if isinstance(expected, dict):
        return actual.keys() == expected.keys() and all(identical(actual[key], expected[key]) for key in expected)
    if isinstance(expected, (list, tuple)):
        return len(actual) == len(expected) and all(map(identical, actual, expected))
    if isinstance(expected, np.ndarray):
        return actual.dtype == expected.dtype and np.array_equal(actual, expected, equal_nan=actual.dtype.kind in "fc")
    return bool(actual == expected)
