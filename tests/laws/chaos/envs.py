"""Environments that say in every row where and when it was made, and misbehave when an action tells them to.

``KINDS`` has one of each kind of environment that pufferlib steps in another way. Each says in shared memory what it is
in the middle of, so that a death can be counted by the phase that it hit.
"""

from __future__ import annotations

import mmap
import os
import signal
import tempfile
import time
from enum import IntEnum
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pettingzoo
from gymnasium.spaces import Box, Dict, Discrete

import pufferlib

from .board import INIT, PACKING, PHASE, PID, RAISED, RESETTING, STEPPING, UNMAKEABLE, board_at
from .tale import (
    CHECK,
    WORDS,
    check_of,
    checks_of,
    first_chain,
    is_told,
    is_truncation,
    length_of,
    next_chain,
    reward_of,
)

__all__ = ["KINDS", "LETHAL", "PLAIN", "Fault"]

PLAIN = 10  # actions below it do nothing


class Fault(IntEnum):
    """What an action has an environment do."""

    RAISE_IN_STEP = 100
    RAISE_IN_PACKING = 101
    MISFIT = 102  # an observation of another shape
    RAISE_IN_INIT = 103  # raises, and once more when it is restarted
    DIE_IN_STEP = 104
    DIE_IN_PACKING = 105
    DIE_IN_COPYING = 106  # of SIGBUS, while the observation is read
    EXIT = 107
    ABORT = 108
    HANG = 109
    STOP = 110  # stops its own process
    # What follows does no harm, or not yet.
    RAISE_IN_RESET = 111  # when the episode is over
    DIE_IN_RESET = 112
    SLOW = 113
    TALK = 114  # an info that fits no pipe
    CHATTER = 115  # an info that nearly does


LETHAL = frozenset(fault for fault in Fault if fault < Fault.RAISE_IN_RESET)
_BIG = 1 << 62


class Boom(Exception):
    """What environments raise."""


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)  # the signal comes to another thread perhaps


class Core:
    """What the environments have in common: the tale, and the faults of all phases but packing."""

    def __init__(self, env_index: int, board: tuple[str, int, int]) -> None:
        self.index = env_index
        self.words = board_at(*board).env(env_index)
        self.words[PHASE], self.words[PID] = INIT, os.getpid()
        self.life, self.episode, self.primed, self.spoil = 0, -1, 0, 0
        if self.words[UNMAKEABLE]:
            self.words[UNMAKEABLE] = 0
            self.boom("cannot be made")

    def boom(self, text: str) -> None:
        self.words[RAISED] += 1
        raise Boom(text)

    def begin(self, seed: int | None) -> None:
        """Start an episode."""
        self.words[PHASE] = RESETTING
        primed, self.primed, self.spoil = self.primed, 0, 0
        if primed == Fault.RAISE_IN_RESET:
            self.boom("in reset")
        if primed == Fault.DIE_IN_RESET:
            die()
        if seed is not None:
            self.life, self.episode = int(seed), -1
        self.episode += 1
        self.tick = 0
        self.length: int = length_of(self.life, self.episode)

    def advance(self, action: int) -> bool:
        """Go on by one step, whose action may be a fault; True if it is the last."""
        self.words[PHASE] = STEPPING
        if action >= PLAIN:
            self.misbehave(action)
        self.tick += 1
        return self.tick == self.length

    def misbehave(self, action: int) -> None:
        if action == Fault.RAISE_IN_STEP:
            self.boom("in step")
        elif action == Fault.RAISE_IN_INIT:
            self.words[UNMAKEABLE] = 1
            self.boom("for good")
        elif action == Fault.DIE_IN_STEP:
            die()
        elif action == Fault.EXIT:
            os._exit(3)
        elif action == Fault.ABORT:
            os.abort()
        elif action == Fault.STOP:
            os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(600)
        elif action == Fault.HANG:
            time.sleep(600)
        elif action == Fault.SLOW:
            time.sleep(0.002)
        elif action in (Fault.RAISE_IN_RESET, Fault.DIE_IN_RESET):
            self.primed = action
        else:
            self.spoil = action

    def spoilt(self, row: Any) -> Any:
        """Return an observation as the fault has it that was asked for last."""
        spoil, self.spoil = self.spoil, 0
        if spoil == Fault.MISFIT:
            self.words[RAISED] += 1
            return row[..., : WORDS - 3]
        if spoil == Fault.DIE_IN_COPYING:
            return gone(row)
        if spoil == Fault.RAISE_IN_PACKING:
            return Lazy(self, row, self.boom, "in packing")
        if spoil == Fault.DIE_IN_PACKING:
            return Lazy(self, row, die)
        return row


class Lazy:
    """Something that turns into an array when it is asked to, or does something else instead."""

    def __init__(self, core: Any, row: Any, do: Any = None, *arguments: Any) -> None:
        self.core, self.row, self.do, self.arguments = core, row, do, arguments

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        self.core.words[PHASE] = PACKING
        if self.do is not None:
            self.do(*self.arguments)
        return self.row


def gone(row: Any) -> Any:
    """Return an array like row the end of which lies behind the end of its file: reading it raises SIGBUS."""
    size = -(-row.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    with tempfile.TemporaryFile() as file:
        file.truncate(2 * size)
        memory = mmap.mmap(file.fileno(), 2 * size)
        file.truncate(size)
        start = size - row.nbytes // 2 // row.itemsize * row.itemsize
        return np.frombuffer(memory, row.dtype, row.size, start).reshape(row.shape)


class Single(Core, gymnasium.Env[Any, Any]):
    """One agent. width: words in a row; tells: whether there are infos."""

    def __init__(self, env_index: int, board: tuple[str, int, int], width: int = WORDS, tells: bool = True) -> None:
        self.observation_space = Box(-_BIG, _BIG, (width,), np.int64)
        self.action_space = Discrete(200)
        self.tells = tells
        self.row = np.zeros(width, np.int64)  # given to the caller as it is: who keeps it has to copy it
        Core.__init__(self, env_index, board)

    def observation(self, action: int) -> Any:
        words = (self.index, 0, self.life, self.episode, self.tick, action, self.chain)
        self.row[:CHECK] = words
        self.row[CHECK:] = check_of(*words)
        return self.row

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.begin(seed)
        self.chain = first_chain(self.life, self.episode, 0)
        row = self.observation(0)
        self.words[PHASE] = PACKING
        return row, {}

    def step(self, action: Any) -> Any:
        action = int(action)
        over = self.advance(action)
        self.chain = next_chain(self.chain, action, self.tick)
        row = self.observation(action)
        info = {}
        if self.tells and is_told(self.chain):
            info["told"] = self.chain
        if self.spoil:
            if self.spoil in (Fault.TALK, Fault.CHATTER):
                info["noise"] = bytes(200_000 if self.spoil == Fault.TALK else 50_000)
                self.spoil = 0
            else:
                row = self.spoilt(row)
        cut = over and is_truncation(self.life, self.episode)
        self.words[PHASE] = PACKING
        return row, reward_of(self.chain), over and not cut, cut, info


class Nested(Single):
    """One agent whose observation is a dict, half of which is made when it is asked for."""

    def __init__(self, env_index: int, board: tuple[str, int, int]) -> None:
        super().__init__(env_index, board, 4 * WORDS)
        part = Box(-_BIG, _BIG, (WORDS,), np.int64)
        self.observation_space = Dict(a=part, b=Box(-_BIG, _BIG, (3 * WORDS,), np.int64))

    def observation(self, action: int) -> Any:
        row = super().observation(action)
        return {"a": row[:WORDS], "b": Lazy(self, row[WORDS:])}

    def spoilt(self, row: Any) -> Any:
        return {**row, "b": super().spoilt(self.row[WORDS:])}


class InPlace(Core, pufferlib.PufferEnv):
    """One agent that writes its row in place: the fastest kind."""

    single_action_space = Discrete(200)

    def __init__(self, env_index: int, board: tuple[str, int, int]) -> None:
        self.single_observation_space = Box(-_BIG, _BIG, (WORDS,), np.int64)
        self.own_rows = self.observations
        self.cells = self.own_rows.reshape(-1).data
        Core.__init__(self, env_index, board)

    def tell(self, action: int) -> None:
        words = (self.index, 0, self.life, self.episode, self.tick, action, self.chain)
        for index, word in enumerate((*words, check_of(*words))):
            self.cells[index] = word

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.begin(seed)
        self.observations = self.own_rows  # a fault has put others in their place perhaps
        self.chain = first_chain(self.life, self.episode, 0)
        self.tell(0)
        cells, keys = self.cells, self.keys
        self.base = cells[CHECK] - keys[0] * self.chain
        self.words[PHASE] = PACKING

    keys: ClassVar[tuple[int, ...]] = (86_028_121, 49_979_687, 67_867_967)  # of chain, tick and action

    def step(self, actions: Any) -> None:
        action = int(actions[0])
        over = self.advance(action)
        tick, cells, keys = self.tick, self.cells, self.keys
        self.chain = chain = next_chain(self.chain, action, tick)
        cells[4], cells[5], cells[6] = tick, action, chain
        cells[7] = self.base + keys[0] * chain + keys[1] * tick + keys[2] * action
        self.rewards[0] = reward_of(chain)
        if over:
            (self.truncations if is_truncation(self.life, self.episode) else self.terminations)[0] = True
        if self.spoil:
            self.observations = spoilt_in_place(self)
        self.words[PHASE] = PACKING


class Team(Core, pufferlib.PufferEnv):
    """Three agents that write their rows in place; they end together."""

    single_action_space = Discrete(200)
    num_agents = 3

    def __init__(self, env_index: int, board: tuple[str, int, int]) -> None:
        self.single_observation_space = Box(-_BIG, _BIG, (WORDS,), np.int64)
        self.own_rows = self.observations
        self.places = np.arange(self.num_agents)
        Core.__init__(self, env_index, board)

    def tell(self, actions: Any) -> None:
        rows = self.observations
        rows[:, :WORDS - 1] = np.stack(np.broadcast_arrays(
            self.index, self.places, self.life, self.episode, self.tick, actions, self.chain), 1)  # fmt: skip
        rows[:, CHECK] = checks_of(rows)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.begin(seed)
        self.observations = self.own_rows  # a fault has put others in their place perhaps
        self.chain = first_chain(self.life, self.episode, self.places)
        self.tell(0)
        self.words[PHASE] = PACKING

    def step(self, actions: Any) -> None:
        over = self.advance(int(actions.max()))
        self.chain = next_chain(self.chain, actions, self.tick)
        self.tell(actions)
        self.rewards[:] = reward_of(self.chain)
        if over:
            (self.truncations if is_truncation(self.life, self.episode) else self.terminations)[:] = True
        if self.spoil:
            self.observations = spoilt_in_place(self)
        self.words[PHASE] = PACKING


def spoilt_in_place(env: Any) -> Any:
    """Return the rows of a PufferEnv as a fault has them; it returns none that could raise by themselves."""
    if env.spoil in (Fault.TALK, Fault.CHATTER):
        env.spoil = 0
    instead = {Fault.RAISE_IN_PACKING: Fault.MISFIT, Fault.DIE_IN_PACKING: Fault.DIE_IN_COPYING}
    env.spoil = instead.get(env.spoil, env.spoil)
    return env.spoilt(env.observations)


class Zoo(Core, pettingzoo.ParallelEnv[Any, Any, Any]):  # type: ignore[misc]
    """Two agents with PettingZoo's interface; they end together."""

    metadata: ClassVar[dict[str, Any]] = {"name": "chaos_zoo_v0", "render_modes": []}

    def __init__(self, env_index: int, board: tuple[str, int, int]) -> None:
        self.possible_agents = ["left", "right"]
        self.agents: list[str] = []
        self.spaces = (Box(-_BIG, _BIG, (WORDS,), np.int64), Discrete(200))
        Core.__init__(self, env_index, board)

    def observation_space(self, agent: Any) -> Any:
        return self.spaces[0]

    def action_space(self, agent: Any) -> Any:
        return self.spaces[1]

    def row(self, agent_index: int, action: int) -> Any:
        words = (self.index, agent_index, self.life, self.episode, self.tick, action, self.chains[agent_index])
        return np.array([*words, check_of(*words)], np.int64)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.begin(seed)
        self.agents = list(self.possible_agents)
        self.chains = [first_chain(self.life, self.episode, agent_index) for agent_index in range(2)]
        rows = {agent: self.row(agent_index, 0) for agent_index, agent in enumerate(self.agents)}
        self.words[PHASE] = PACKING
        return rows, {agent: {} for agent in self.agents}

    def step(self, actions: Any) -> Any:
        agents, played = self.agents, [int(actions[agent]) for agent in self.agents]
        over = self.advance(max(played))
        chains = self.chains = [
            next_chain(self.chains[agent_index], played[agent_index], self.tick) for agent_index in range(2)
        ]
        rows = {agent: self.row(agent_index, played[agent_index]) for agent_index, agent in enumerate(agents)}
        infos: dict[str, dict[str, Any]] = {agent: {} for agent in agents}
        for agent_index, agent in enumerate(agents):
            if is_told(chains[agent_index]):
                infos[agent]["told"] = chains[agent_index]
        if self.spoil in (Fault.TALK, Fault.CHATTER):
            infos["left"]["noise"] = bytes(200_000 if self.spoil == Fault.TALK else 50_000)
            self.spoil = 0
        elif self.spoil:
            rows["right"] = self.spoilt(rows["right"])
        cut = over and is_truncation(self.life, self.episode)
        if over:
            self.agents = []
        self.words[PHASE] = PACKING
        return (rows, {agent: reward_of(chains[agent_index]) for agent_index, agent in enumerate(agents)},
                dict.fromkeys(agents, over and not cut), dict.fromkeys(agents, cut), infos)  # fmt: skip


class Wide(Single):
    """Rows that take long to copy: half a megabyte."""

    def __init__(self, env_index: int, board: tuple[str, int, int]) -> None:
        super().__init__(env_index, board, 1 << 16)


KINDS: dict[str, Any] = {
    "in place": InPlace, "single": Single, "nested": Nested, "wide": Wide, "team": Team, "zoo": Zoo,
}  # fmt: skip
TELLING = frozenset({"single", "nested", "wide", "zoo"})  # kinds with infos
