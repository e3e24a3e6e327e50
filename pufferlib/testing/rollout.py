"""The long rollout: play random steps over several episodes, and check everything that the environment returns."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
from gymnasium import spaces

from pufferlib.emulation.action_masks import ACTION_MASK
from pufferlib.emulation.infos import copy_value
from pufferlib.testing.faults import find_fault, same
from pufferlib.testing.play import Moment, Player, Subject
from pufferlib.vectorization.core.frames import pickled_frame

__all__ = ["Rollout", "roll"]

TIME_LIMIT_S = 5.0
MAX_PICKLED = 100  # pickling infos may cost more than the steps


@dataclass
class Rollout:
    """The results of a rollout.

    faults: a description of the first fault of each kind. The kinds are "type", "shape", "cast" and "range" for
    observations, as in ``find_fault``; "round trip"; "outcome" (rewards, infos); "live" (observations that the next
    step or reset overwrites); "agents"; and "odd agents" for departures from PettingZoo's rules that pufferlib copes
    with. step_s, reset_s: the duration of each step and reset.
    """

    num_steps: int = 0
    faults: dict[str, str] = field(default_factory=dict)
    error: Exception | SystemExit | None = None  # raised by the environment
    lengths: list[int] = field(default_factory=list)  # of the episodes that ended
    num_truncated: int = 0  # episodes that ended by truncation
    reset_s: list[float] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)
    num_alive: set[int] = field(default_factory=set)  # the numbers of agents alive at once
    num_spawned: int = 0
    masked: bool = False  # whether there are action masks

    def note(self, kind: str, text: str) -> None:
        """Record a fault, unless one of its kind has been recorded."""
        self.faults.setdefault(kind, text)


def roll(subject: Subject, num_steps: int, seed: int) -> Rollout:
    """Play num_steps steps, or as many as fit into TIME_LIMIT_S, and return the results.

    If a reset or step raises an exception, the rollout ends there, and the exception is stored in ``error``. If the
    reason is an observation that emulation cannot pack, a fault is recorded instead. Exceptions raised while the
    environment is created or wrapped propagate.
    """
    rollout = Rollout()
    player = Player(subject)
    try:
        _roll(rollout, player, num_steps, seed)
    except (Exception, SystemExit) as error:
        # An observation that emulation cannot pack is a fault, not an exception of the environment.
        for agent, observation in player.raw_observations().items():
            if not player.multi_agent or agent in player.raw.agents:
                _look_at_observation(rollout, player, agent, observation, "")
        if not {"type", "range"} & rollout.faults.keys():
            rollout.error = error
    finally:
        player.close()
    return rollout


def _roll(rollout: Rollout, player: Player, num_steps: int, seed: int) -> None:
    deadline = perf_counter() + TIME_LIMIT_S
    player.start_actions(seed)
    moment, length, observation_check = player.reset(seed), 0, _OverwriteCheck()
    population = _Population(player, moment)
    while True:
        where = f", {length} steps into episode {len(rollout.lengths) + 1}"
        (rollout.step_s if length else rollout.reset_s).append(moment.seconds)
        _look_at(rollout, player, moment, where)
        observation_check.compare(rollout, moment, where)
        if player.multi_agent:
            population.look_at(rollout, moment, where)
        if moment.over:
            rollout.lengths.append(length)
            rollout.num_truncated += any(moment.truncations.values())
        if rollout.num_steps >= num_steps or perf_counter() > deadline:
            return
        if moment.over:
            moment, length = player.reset(), 0
            population = _Population(player, moment)
            continue
        moment = player.step()
        length += 1
        rollout.num_steps += 1


def _look_at(rollout: Rollout, player: Player, moment: Moment, where: str) -> None:
    for agent, observation in moment.raw.items():
        if _look_at_observation(rollout, player, agent, observation, where):
            continue
        decoded = player.decoded(agent, moment.rows[agent])
        if not same(decoded, observation):
            rollout.note(
                "round trip",
                f"{_of(agent)}observation came back as {_short(decoded)} instead of {_short(observation)}{where}",
            )
    for agent, reward in moment.rewards.items():
        if not math.isfinite(reward):
            rollout.note("outcome", f"{_of(agent)}reward is {reward}{where}; a reward must be finite")
    for info in moment.infos.values():
        rollout.masked |= isinstance(info, dict) and ACTION_MASK in info
    if rollout.num_steps < MAX_PICKLED:
        for key, value in ((k, v) for info in moment.infos.values() if info for k, v in info.items()):
            try:
                pickled_frame(value)
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
                rollout.note("outcome", f'info["{key}"] cannot travel to another process ({reason}); leave it out')


def _look_at_observation(rollout: Rollout, player: Player, agent: Any, observation: Any, where: str) -> bool:
    """Record the worst fault of an observation, if any; return whether there is one."""
    if observation is None:
        return False
    fault = find_fault(player.raw_space(agent), observation, f"{_of(agent)}observation")
    if fault is not None:
        rollout.note(fault.kind, fault.text + where)
    return fault is not None


class _OverwriteCheck:
    """A detector of observations that the environment overwrites later; it copies each moment's observations."""

    def __init__(self) -> None:
        self._pairs: list[tuple[Any, Any]] = []

    def compare(self, rollout: Rollout, moment: Moment, where: str) -> None:
        """Record a fault if the previous moment's observations have changed; then copy this moment's observations."""
        if not all(same(observation, copied) for observation, copied in self._pairs):
            rollout.note("live", f"the observation before was overwritten{where}")
        self._pairs = [(observation, copy_value(observation)) for observation in moment.raw.values()]


class _Population:
    """A checker of the agents in one episode."""

    def __init__(self, player: Player, moment: Moment) -> None:
        self._player = player
        self._possible = getattr(player.env, "possible_agents", None)
        self._before = moment.agents
        self._ended: set[Any] = set()

    def look_at(self, rollout: Rollout, moment: Moment, where: str) -> None:
        """Record how many agents are alive and how many are new.

        Also record faults in the sets of agents that are alive or have ended, in observation spaces, and in masks.
        """
        alive, raw = set(moment.agents), self._player.raw
        if alive:
            rollout.num_alive.add(len(alive))
        rollout.num_spawned += len(alive - set(self._before))
        if len(alive) < len(moment.agents):
            rollout.note("agents", f"agents lists some twice{where}: {list(moment.agents)}")
        flagged = {
            agent
            for agent in self._before
            if moment.terminations.get(agent, False) or moment.truncations.get(agent, False)
        }
        for agent in self._before:
            if agent in flagged and agent in alive:
                rollout.note("agents", f"agent {agent!r} ended, and is still in agents{where}; remove it")
            if agent not in flagged and agent not in alive:
                rollout.note(
                    "odd agents",
                    f"agent {agent!r} left agents without a termination or truncation{where}; pufferlib reports a "
                    "truncation: return one, if that is right",
                )
        self._ended |= {agent for agent in self._before if agent not in alive}
        able = [self._is_able(rollout, moment, agent, where) for agent in moment.agents]
        if able and not any(able):  # an agent whose turn it is not may have no action
            rollout.note("agents", f"no agent is allowed any action by its action_mask{where}")
        for agent in moment.agents:
            self._look_at_agent(rollout, moment, agent, where)
            if not self._player.native and raw.observation_space(agent) is not raw.observation_space(agent):
                text = "observation_space(agent) makes a new space at each call; PettingZoo requires the same object"
                rollout.note("odd agents", text)
        self._before = moment.agents

    def _look_at_agent(self, rollout: Rollout, moment: Moment, agent: Any, where: str) -> None:
        if agent in self._ended:
            rollout.note("agents", f"agent {agent!r} came back after its end{where}; give a new agent a new name")
        if self._possible is not None and agent not in self._possible:
            rollout.note("agents", f"agent {agent!r} is not in possible_agents{where}; list it, or have none at all")
        if agent not in moment.raw:
            rollout.note("agents", f"agent {agent!r} is alive and was given no observation{where}")

    def _is_able(self, rollout: Rollout, moment: Moment, agent: Any, where: str) -> bool:
        """Return whether an agent's mask allows an action; record a mask of the wrong shape.

        Returns True if there is no mask, and for action spaces other than Discrete.
        """
        info = moment.infos.get(agent)
        mask = info.get(ACTION_MASK) if isinstance(info, dict) else None
        space = self._player.env.action_space(agent)
        if mask is None or not isinstance(space, spaces.Discrete):
            return True
        if np.shape(mask) != (space.n,):
            rollout.note("agents", f"agent {agent!r}: action_mask has shape {np.shape(mask)}, not ({space.n},){where}")
        return bool(np.any(mask))


def _of(agent: Any) -> str:
    return "" if agent is None else f"agent {agent!r}: "


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."
