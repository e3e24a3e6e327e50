"""The checker: proves in the learner's process that every row is the one that was due.

What an agent's next row says follows from the last one (``tale``) and from the action that was sent, so nothing has to
be remembered but one row an agent. A row that is not as expected is a crash row, the first row of a restarted
environment, or a violation; crash rows have to be accounted for by deaths and exceptions that really happened.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from .board import RAISED, Board
from .envs import LETHAL, TELLING
from .tale import (
    ACTION,
    AGENT_INDEX,
    CHAIN,
    CHECK,
    ENV,
    EPISODE,
    LIFE,
    TICK,
    WORDS,
    checks_of,
    first_chain,
    is_told,
    is_truncation,
    length_of,
    next_chain,
    reward_of,
)  # fmt: skip

__all__ = ["Checker", "Violation"]

# What an agent's next row has to be: a step; the first of the next episode; the first of a restarted environment;
# the first after a reset by the user, who does not know what was dropped.
MID, OVER, LOST, ANEW = range(4)
DROPPED = 2  # episodes that a reset by the user may begin: what was under way may have begun one, too


class Violation(AssertionError):
    """A row is not the one that was due. kind: "lost", "doubled", "misrouted", "torn", "crash" or "wrong"."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


class Checker:
    """Follows a VecEnv of environments of one kind of ``envs``.

    deaths: of each worker, counted where it is buried. num_transitions: rows that a step led to; num_resets: first
    rows; crashes: crash rows of each environment, by cause.
    """

    def __init__(self, vec: Any, board: Board, kind: str, seeds: Any) -> None:
        self.vec, self.board, self.seeds = vec, board, seeds
        num_envs, self.per_env = vec.num_envs, vec.agents_per_env
        num_agents = num_envs * self.per_env
        self._tells = kind in TELLING
        self._single = self.per_env == 1
        self.next_step, self.same_step = (vec.autoreset_mode == mode for mode in ("next_step", "same_step"))
        self.rows = np.zeros((num_agents, WORDS), np.int64)
        self.rows[:, ENV], self.rows[:, AGENT_INDEX] = np.divmod(np.arange(num_agents), self.per_env)
        self.state = np.full(num_agents, ANEW)
        self.sent = np.zeros(num_agents, np.int64)
        self.flying = np.zeros(num_envs, bool)
        self.resets = np.zeros(num_envs, np.int64)  # by the user, since each environment's last row
        self._drawn = [[int(seeds[env_id])] for env_id in range(num_envs)]  # seeds, one a life
        self.lives = [-1] * num_envs  # which each environment leads, counted by restarts
        self.order: collections.deque[int] | None = None  # of sending, where rows come in it
        if vec.backend == "multiprocessing" and vec._plan.batch_size < num_envs:
            self.order = collections.deque()
        self.worker_of = [worker for worker, share in enumerate(vec._workers.backend.shares) for _ in share]
        self.deaths = [0] * len(vec._workers.backend.shares)
        self.num_transitions = self.num_resets = self.num_batches = 0
        self.crashes = {"death": [0] * num_envs, "exception": [0] * num_envs}
        self._leased_batches: collections.deque[tuple[Any, Any]] = (
            collections.deque()
        )  # batches still valid, and copies of them

    # ------------------------------------------------------------------------------------------------ what is sent

    def send_all_resets(self) -> None:
        """Note that all environments were reset; what was under way is dropped."""
        self.state[:] = ANEW
        self.flying[:] = True
        self.resets += 1
        self._leased_batches.clear()
        if self.order is not None:
            self.order = collections.deque(range(len(self.flying)))

    def send(self, env_ids: Any, actions: Any) -> None:
        """Note that environments were sent actions, one an agent."""
        self._depart(env_ids)
        self.sent[self._agents(env_ids)] = actions

    def send_resets(self, env_ids: Any) -> None:
        """Note that environments whose episodes are over were reset, where that is the learner's part."""
        self._depart(env_ids)
        assert (self.state[self._agents(env_ids)] == OVER).all()

    def _depart(self, env_ids: Any) -> None:
        if self.flying[env_ids].any():
            raise Violation("doubled", f"environments {env_ids} were sent something, and fly")
        self.flying[env_ids] = True
        if self.order is not None:
            self.order.extend(env_ids.tolist())

    def _agents(self, env_ids: Any) -> Any:
        return env_ids if self._single else (env_ids[:, None] * self.per_env + np.arange(self.per_env)).reshape(-1)

    def over(self, env_ids: Any) -> Any:
        """Return which of these environments' episodes are over, as bools."""
        return self.state[env_ids * self.per_env] == OVER

    # -------------------------------------------------------------------------------------------- what is received

    def receive(self, batch: Any) -> None:
        """Check all rows of a batch. Raises Violation."""
        env_ids = batch.env_ids
        self._check_arrival(env_ids, batch.agent_ids)
        agents = batch.agent_ids
        crashed = self._crashed(batch.infos)
        heads, state = batch.observations[:, :WORDS], self.state[agents]
        due, masks, over = self._due(agents, state)
        rewards = np.where(masks, reward_of(due[:, CHAIN]), 0)
        cut = is_truncation(due[:, LIFE], due[:, EPISODE])
        steps = due
        if self.same_step and over.any():
            due = due.copy()
            self._begin_next(due, over)
        right = (heads == due).all(1) & (batch.rewards == rewards) & (batch.masks == masks)
        right &= (batch.terminations == (over & ~cut)) & (batch.truncations == (over & cut)) & (state <= OVER)
        sent = self.sent[agents]
        right &= ~(masks & (sent >= min(LETHAL)) & (sent <= max(LETHAL)))  # who has been told to crash has to
        if batch.observations.shape[1] > WORDS:
            right &= (batch.observations[:, WORDS:] == heads[:, CHECK:]).all(1)
        if crashed:
            right &= ~np.isin(agents // self.per_env, list(crashed))
        self.rows[agents[right]] = due[right]
        self.state[agents[right]] = np.where(over[right] & (not self.same_step), OVER, MID)
        for index in np.flatnonzero(~right).tolist():
            self._take_odd(batch, index, due[index], crashed)
        self.resets[env_ids] = 0
        self._check_infos(batch, right & masks, over, steps)
        self.num_transitions += int((right & masks).sum())
        self.num_resets += int((right & ~masks).sum())
        self.num_batches += 1
        self._check_kept(batch)

    def _check_arrival(self, env_ids: Any, agent_ids: Any) -> None:
        if env_ids.min() < 0 or env_ids.max() >= len(self.flying):
            raise Violation("misrouted", f"environments {env_ids}, some of which there are none of")
        if len(np.unique(env_ids)) < len(env_ids):
            raise Violation("doubled", f"a batch has environments twice: {env_ids}")
        if not self.flying[env_ids].all():
            raise Violation(
                "doubled", f"rows of environments {env_ids[~self.flying[env_ids]]}, which were sent nothing"
            )
        self.flying[env_ids] = False
        if not np.array_equal(agent_ids, self._agents(env_ids)):
            raise Violation("misrouted", f"agents {agent_ids} of environments {env_ids}")
        if self.order is not None:
            due = [self.order.popleft() for _ in env_ids]
            if due != env_ids.tolist():
                raise Violation("misrouted", f"environments {env_ids} came, and {due} were the next that were sent")

    def _due(self, agents: Any, state: Any) -> tuple[Any, Any, Any]:
        """Return the rows that are due, whether they are steps, and whether they end an episode."""
        due = self.rows[agents]
        masks = state == MID
        due[:, TICK] += 1
        due[:, ACTION] = self.sent[agents]
        due[:, CHAIN] = next_chain(due[:, CHAIN], due[:, ACTION], due[:, TICK])
        due[:, CHECK] = checks_of(due)
        if not masks.all():
            self._begin_next(due, ~masks)
        return due, masks, masks & (due[:, TICK] == length_of(due[:, LIFE], due[:, EPISODE]))

    @staticmethod
    def _begin_next(rows: Any, which: Any) -> None:
        """Make some rows the first ones of the next episode."""
        chosen = rows[which]
        chosen[:, EPISODE] += 1
        chosen[:, TICK] = chosen[:, ACTION] = 0
        chosen[:, CHAIN] = first_chain(chosen[:, LIFE], chosen[:, EPISODE], chosen[:, AGENT_INDEX])
        chosen[:, CHECK] = checks_of(chosen)
        rows[which] = chosen

    # ---------------------------------------------------------------------------------------------------- odd rows

    def _crashed(self, infos: Sequence[dict[str, Any]]) -> dict[int, str]:
        crashed: dict[int, str] = {}
        for info in infos:
            if "restarted" in info:
                if info["env_id"] in crashed:
                    raise Violation("crash", f"environment {info['env_id']} crashed twice in a batch")
                crashed[info["env_id"]] = info["restarted"]
        return crashed

    def _take_odd(self, batch: Any, index: int, due: Any, crashed: dict[int, str]) -> None:
        """Take a row that is not the next of its episode: a crash row, or the first of a new life."""
        agent = int(batch.agent_ids[index])
        env_id, agent_index = divmod(agent, self.per_env)
        row = batch.observations[index]
        outcome = [
            bool(column[index]) for column in (batch.rewards, batch.terminations, batch.truncations, batch.masks)
        ]
        if env_id in crashed:
            if row.any() or outcome != [False, False, True, False]:
                raise Violation("crash", f"the crash row of agent {agent} is {row[:WORDS]}, {outcome}")
            if agent_index == 0:
                self._account_for(env_id, crashed[env_id])
            self.state[agent] = LOST
            return
        kind = self._kind_of(row, due, env_id, agent_index)
        text = f"agent {agent} of environment {env_id} was due {due} and is {row[:WORDS]}, {outcome}"
        if self.state[agent] == MID or any(outcome) or kind in ("torn", "misrouted") or row[TICK] != 0:
            raise Violation(kind, text)
        state, last = self.state[agent], self.rows[agent]
        if row[LIFE] == last[LIFE] and state == ANEW and self.lives[env_id] >= 0:
            begun = int(row[EPISODE] - last[EPISODE])
            if not 1 <= begun <= DROPPED * self.resets[env_id]:
                raise Violation("wrong", text)
        else:
            self._take_new_life(env_id, agent_index, row, text, unseen=DROPPED * self.resets[env_id] or 1)
        if row[CHAIN] != first_chain(int(row[LIFE]), int(row[EPISODE]), agent_index) or row[ACTION] != 0:
            raise Violation("wrong", text)
        self.rows[agent], self.state[agent] = row[:WORDS], MID
        self.num_resets += 1

    def _take_new_life(self, env_id: int, agent_index: int, row: Any, text: str, *, unseen: int) -> None:
        """Take the first row of a restarted environment, seeded as no other was."""
        newest, life = self.vec.restarts[env_id], self.lives[env_id]
        known = [life] if agent_index else range(life + 1, newest + 1)
        for number in known:
            if row[LIFE] == self.seed_of(env_id, number) and row[EPISODE] < unseen:
                self.lives[env_id] = number
                return
        raise Violation("wrong", f"{text}; it is none of its lives {list(known)}")

    def seed_of(self, env_id: int, life: int) -> int:
        """Return the seed that an environment's n-th life has to be given."""
        drawn = self._drawn[env_id]
        while len(drawn) <= life:
            drawn.append(self.seeds.draw(env_id, len(drawn)))
        return drawn[life]

    def _account_for(self, env_id: int, cause: str) -> None:
        """Refuse a crash that nothing has caused: its worker has not died so often, nor has it raised so often."""
        by_death = not cause.startswith("environment")
        kind = "death" if by_death else "exception"
        self.crashes[kind][env_id] += 1
        worker = self.worker_of[env_id]
        most = self.deaths[worker] if by_death else self.board.env(env_id)[RAISED]
        node = r"( on node \S+ at \S+)?"
        named = (
            rf"worker {worker}{node}, " if by_death else rf"environment {env_id} \(worker {worker}{node}\) raised in"
        )
        if self.crashes[kind][env_id] > most or not re.search(named, cause):
            raise Violation("crash", f"environment {env_id} crashed by {kind} {self.crashes[kind][env_id]} times of "
                                     f"{most}: {cause}")  # fmt: skip

    @staticmethod
    def _kind_of(row: Any, due: Any, env_id: int, agent_index: int) -> str:
        """Return what is wrong with a row, in a word."""
        if checks_of(row[None, :WORDS])[0] != row[CHECK] or (row[WORDS:] != row[CHECK]).any():
            return "torn"
        if row[ENV] != env_id or row[AGENT_INDEX] != agent_index:
            return "misrouted"
        if row[LIFE] == due[LIFE]:
            is_, should = ((int(words[EPISODE]), int(words[TICK])) for words in (row, due))
            if is_ != should:
                return "lost" if is_ > should else "doubled"
        return "wrong"

    # ------------------------------------------------------------------------------------------------------- infos

    def _check_infos(self, batch: Any, steps: Any, over: Any, rows: Any) -> None:
        """Each step's info has come, once; rows: as the steps left them, before a same-step autoreset."""
        due = {}
        if self._tells:
            has_info = steps & is_told(rows[:, CHAIN]) & ~(over & self.same_step)
            due = dict(zip(batch.agent_ids[has_info].tolist(), rows[has_info, CHAIN].tolist(), strict=True))
        ends = {}
        if over.any():
            ended = np.flatnonzero(steps & over).tolist()
            ends = {int(batch.agent_ids[index]): index for index in ended}
        finals = dict(ends) if self.same_step else {}
        for info in batch.infos:
            agent = info.get("agent_id", info["env_id"] * self.per_env)
            if "told" in info and due.pop(agent, None) != info["told"]:
                raise Violation("doubled", f"agent {agent} told {info}, which was not due")
            if "final_obs" in info:
                index = finals.pop(agent, None)
                if index is None or not np.array_equal(info["final_obs"][:WORDS], rows[index]):
                    raise Violation("wrong", f"agent {agent} ended with {info['final_obs'][:WORDS]}")
            if "episode" in info and self._single:
                index = ends.pop(agent, None)
                if index is None or info["episode"]["l"] != rows[index, TICK]:
                    raise Violation("wrong", f"agent {agent} tells of an episode: {info['episode']}")
        if due or finals or (self._single and ends):
            raise Violation("lost", f"infos that were due have not come: {due}, {finals}, {ends}")

    def _check_kept(self, batch: Any) -> None:
        """What was received is intact until the second batch after it, also if its worker has died meanwhile."""
        for old, copy in self._leased_batches:
            if not np.array_equal(old.observations[:, :WORDS], copy[0]) or not np.array_equal(old.masks, copy[1]):
                raise Violation("torn", "a batch has changed while it was valid")
        self._leased_batches.append((batch, (batch.observations[:, :WORDS].copy(), batch.masks.copy())))
        if len(self._leased_batches) == 2:
            self._leased_batches.popleft()

    # ------------------------------------------------------------------------------------------------- at the end

    def conclude(self) -> None:
        """Check what can be told only of the whole: restarts are what deaths and exceptions explain, and no others."""
        for env_id, restarts in enumerate(self.vec.restarts):
            deaths, raised = self.deaths[self.worker_of[env_id]], self.board.env(env_id)[RAISED]
            if not deaths <= restarts <= deaths + raised:
                raise Violation("crash", f"environment {env_id}: {restarts} restarts, {deaths} deaths, {raised} raised")

    @property
    def num_crashes(self) -> int:
        """How many crash rows of environments were accounted for."""
        return sum(map(sum, self.crashes.values()))
