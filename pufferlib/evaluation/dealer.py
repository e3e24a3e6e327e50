"""Dealer: the loop of an evaluation, which deals seeded episodes to whichever environment of a VecEnv is free."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pufferlib.evaluation.consistency import NONE, HistoryCheck
from pufferlib.evaluation.episodes import CUT, FAILED, TERMINATED, TRUNCATED
from pufferlib.evaluation.rules import EpisodeQueue, Results, Rules
from pufferlib.evaluation.stage import BatchStage, Stage
from pufferlib.util.annotations import Array
from pufferlib.vectorization import Batch, VecEnv
from pufferlib.vectorization.core.messages import crash_cause

__all__ = ["Dealer"]

IDLE = NONE  # in place of the index of a slot's episode
DEATHS_PER_FAILURE = 16  # workers' deaths of unknown cause that count as one failure of each of their episodes
MIN_HOPELESS = 8  # episodes that have to be given up before the others are


class Dealer:
    """A player of seeded episodes in a VecEnv, in which each free environment gets the next episode at once.

    A slot is an environment of the VecEnv, which plays one episode after another. The VecEnv's own autoreset is never
    used: the row that ends an episode is answered by a reset with the seed of the next one. vec: the VecEnv; unless it
    was made with on_error="restart", a failure raises WorkerError. act: the policy, as a function of a PolicyBatch, or
    of a Batch if the rules have no policy_batch. results: where to store results; episodes that have an ending there
    are not played. env_tasks: the task that the environment of each slot was made for, which is kept up to date. see:
    called with each batch, as arrays, while its environments wait. after: called after each batch with the numbers of
    finished episodes and of steps. done: called with the index of each episode that has been played to its end.
    """

    def __init__(
        self,
        vec: VecEnv,
        act: Callable[[Any], Any],
        rules: Rules,
        results: Results,
        env_tasks: list[int],
        *,
        see: Callable[[Batch, Dealer], None] | None = None,
        after: Callable[[int, int], None] | None = None,
        done: Callable[[int], None] | None = None,
    ) -> None:
        num_envs, num_agents = vec.num_envs, vec.agents_per_env
        self.vec, self.rules, self.results = vec, rules, results
        self.num_finished, self.num_steps = results.num_finished, 0
        self._act, self._see, self._after, self._done = act, see, after, done
        self._num_agents = num_agents
        self._queue, self._env_tasks = EpisodeQueue(rules, results.endings), env_tasks
        # By slot, of its current episode:
        self._episodes = np.full(num_envs, IDLE)
        self._seeds, self._steps = np.zeros(num_envs, np.int64), np.zeros(num_envs, np.int64)
        self._returns = np.zeros((num_envs, num_agents))
        self._begun_s = np.zeros(num_envs)
        self._infos: list[dict[str, dict[int | None, object]]] = [{} for _ in range(num_envs)]
        of_slots = self._episodes, self._seeds, self._steps, self._returns
        self._staged = (
            BatchStage(vec)
            if rules.policy_batch is None
            else Stage(vec, rules.policy_batch, *of_slots, rules.max_steps)
        )
        self._used = np.zeros(num_envs, np.int64)  # by slot: how many episodes its environment has begun
        self._idle: list[int] = []  # slots without an episode that are not in flight
        self._num_flying = 0
        self._has_failed = np.zeros(num_envs, np.bool_)  # by slot: whether its environment has failed
        self._failures = [*zip(*vec.failures, strict=True)]  # by slot: those that have been counted
        self._check = HistoryCheck(num_agents, enabled=rules.checked and not rules.fresh)

    def episodes_of(self, env_ids: Array) -> Array:
        """Return the index of the episode that each of these slots plays, or -1 if it plays none; int64, as env_ids."""
        episodes: Array = self._episodes[env_ids]
        return episodes

    def play(self) -> None:
        """Play all episodes that have no ending yet, and store their results.

        If the first episodes have all failed, and every environment has, the others are not played. Raises
        HistoryError, WorkerError, and what the policy raises.
        """
        vec, batch_size, staged = self.vec, self.vec.batch_size, self._staged
        self._deal_first()
        while self._is_going:
            self._complete_batch()
            self._receive()
            while not staged.full and self._num_flying >= batch_size and vec.ready:
                self._receive()
            self._send()
        while self._num_flying:  # of episodes that are given up: a failure not received would be reported by close
            self._complete_batch()
            self._idle += vec.recv().env_ids.tolist()
            self._num_flying -= batch_size

    def _complete_batch(self) -> None:
        """Complete the next batch with idle environments, if fewer are in flight than it has."""
        short = self.vec.batch_size - self._num_flying
        if short > 0:
            self.vec.idle(self._idle[:short])
            del self._idle[:short]
            self._num_flying += short

    @property
    def _is_going(self) -> bool:
        num_failed = len(self.results.causes)
        if num_failed == self.num_finished >= MIN_HOPELESS and self._has_failed.all():
            return False
        return bool(self._check.replaying) or self.num_finished < len(self.rules.seeds)

    # ------------------------------------------------------------------------------------------------ episodes

    def _deal_first(self) -> None:
        """Reset all environments, with the first episodes; slots for which there is none become idle."""
        rules, num_envs = self.rules, self.vec.num_envs
        seeds, options = [0] * num_envs, list[Mapping[str, object] | None]([None] * num_envs)
        for slot in range(num_envs):
            episode = self._queue.take(self._env_tasks, slot)
            if episode is None:
                break
            self._begin(slot, episode)
            seeds[slot] = int(rules.seeds[episode])
            options[slot] = None if rules.options is None else rules.options[episode]
        self._switch_tasks([slot for slot in range(num_envs) if self._episodes[slot] != IDLE])
        self.vec.async_reset(seeds, None if rules.options is None else options)
        self._used[:] = 1
        self._num_flying = num_envs

    def _deal(self, slots: list[int]) -> None:
        """Begin the next episodes in slots that have none; slots for which no episode is left become idle."""
        dealt = []
        for slot in slots:
            episode = self._check.replay(slot, at_end=not self._queue)
            if episode is None:
                episode = self._queue.take(self._env_tasks, slot)
                if episode is None:
                    self._episodes[slot] = IDLE
                    self._idle.append(slot)
                    continue
                self._check.begin(slot, episode, int(self._used[slot]))
            self._begin(slot, episode)
            dealt.append(slot)
        self._reset(dealt)

    def _begin(self, slot: int, episode: int) -> None:
        self._episodes[slot], self._steps[slot], self._returns[slot] = episode, 0, 0.0
        self._seeds[slot] = self.rules.seeds[episode]
        self._infos[slot], self._begun_s[slot] = {}, time.perf_counter()

    def _reset(self, slots: list[int]) -> None:
        """Reset the environments of slots with the seeds and options of their episodes."""
        if not slots:
            return
        rules, episodes = self.rules, self._episodes[slots]
        self._switch_tasks(slots)
        replaying = self._check.replaying
        used = [slot for slot in slots if self._used[slot] and (rules.fresh or slot in replaying)]
        if used:
            self.vec.remake(used)
            self._used[used] = 0
        options = None if rules.options is None else [rules.options[episode] for episode in episodes.tolist()]
        self.vec.async_reset(rules.seeds[episodes].tolist(), options, slots)
        self._used[slots] += 1
        self._num_flying += len(slots)

    def _switch_tasks(self, slots: list[int]) -> None:
        """Replace the environments of slots whose next episodes are of other tasks, at their resets."""
        tasks = {slot: self.rules.task_of(int(self._episodes[slot])) for slot in slots}
        others = [slot for slot, task in tasks.items() if task != self._env_tasks[slot]]
        if others:
            self.vec.remake(others, [self.rules.creators[tasks[slot]] for slot in others])
            self._used[others] = 0
            for slot in others:
                self._env_tasks[slot] = tasks[slot]

    def _receive(self) -> None:
        """Receive a batch: count its steps, conclude the episodes that ended, and stage the other rows."""
        self.vec.recv()
        batch = self.vec.host_batch
        assert batch is not None
        if self._see is not None:
            self._see(batch, self)
        self._num_flying -= len(batch.env_ids)
        self._check.add_batch(batch)
        num_steps = -1 if self._check.replayed else self._staged.add_plain(batch)
        self.num_steps += self._add(batch) if num_steps < 0 else num_steps
        if self._after is not None:
            self._after(self.num_finished, self.num_steps)

    def _add(self, batch: Batch) -> int:
        """Do what ``_receive`` does for any batch, without the compiled path; return the number of steps."""
        slots = batch.env_ids
        shape = len(slots), self._num_agents
        masks = batch.masks.reshape(shape)
        stepped = masks.any(1)
        self._returns[slots] += np.where(masks, batch.rewards.reshape(shape), 0.0)
        self._steps[slots] += stepped
        ended = (batch.terminations | batch.truncations).reshape(shape).any(1)
        if self.rules.max_steps is not None:
            ended |= self._steps[slots] >= self.rules.max_steps
        for slot in self._check.replayed:
            ended |= slots == slot
        going = self._episodes[slots] != IDLE
        if ended.any() or not going.all():
            going &= self._conclude(batch, ended & going)
        self._staged.add(batch, going)
        return int(stepped.sum())

    def _conclude(self, batch: Batch, ended: Array) -> Array:
        """Conclude the episodes that ended in a batch, and deal the next ones; return which slots are to act.

        ended: bool (batch_size,), True for slots in which an agent has ended, or in which the episode is to be cut.
        Returns bool (batch_size,), True for the slots whose episode goes on and waits for an action.
        """
        going = np.ones(len(ended), np.bool_)
        infos: dict[int, list[dict[str, Any]]] = {}
        for info in batch.infos if ended.any() else ():
            infos.setdefault(info["env_id"], []).append(info)  # type: ignore[arg-type]
        flags = (batch.terminations | batch.truncations).reshape(len(ended), -1)
        truncated = np.asarray(batch.truncations.reshape(flags.shape).any(1))
        stepped = np.asarray(batch.masks.reshape(flags.shape).any(1))  # rows of crashes have no masks
        free, again = list[int](), list[int]()
        for position in np.flatnonzero(ended).tolist():
            slot = int(batch.env_ids[position])
            items = infos.get(slot, [])
            causes = [] if stepped[position] else [cause for info in items if (cause := crash_cause(info)) is not None]
            if causes:
                (again if self._retry(slot, causes[0]) else free).append(slot)
                going[position] = False
                continue
            over = self._is_over(flags[position], items)
            cut = not over and self._is_cut(slot)
            self._collect(slot, items, flags[position], everything=over or cut)
            if over or cut:
                self._finish(slot, CUT if cut else TRUNCATED if truncated[position] else TERMINATED)
                free.append(slot)
                going[position] = False
        resting = batch.env_ids[self._episodes[batch.env_ids] == IDLE].tolist()
        self._idle += [slot for slot in resting if slot not in free]
        self._reset(again)
        self._deal(free)
        return going

    def _is_over(self, flags: Array, infos: list[dict[str, Any]]) -> bool:
        if not self.vec.multi_agent and self._num_agents == 1:
            return bool(flags[0])
        return any(info.get("env") is True and "episode" in info for info in infos)

    def _is_cut(self, slot: int) -> bool:
        limit = self.rules.max_steps
        if limit is not None and self._steps[slot] >= limit:
            return True
        return slot in self._check.replayed

    def _collect(self, slot: int, infos: list[dict[str, Any]], flags: Array, *, everything: bool) -> None:
        """Store the infos of the agents that have ended; if ``everything``, those of all agents."""
        for info in infos if self.rules.info_names else ():
            agent = info["agent_id"] % self._num_agents if "agent_id" in info else None
            if everything or (agent is not None and flags[agent]):
                for name in self.rules.info_names:
                    if name in info:
                        self._infos[slot].setdefault(name, {})[agent] = info[name]

    def _finish(self, slot: int, ending: str) -> None:
        """Store the result of a slot's episode. Raises HistoryError if the rows of the same episode were others."""
        episode, self._episodes[slot] = int(self._episodes[slot]), IDLE
        if self._check.finish(slot):
            return
        results = self.results
        self._queue.finish(episode)
        results.lengths[episode] = self._steps[slot]
        results.seconds[episode] = time.perf_counter() - self._begun_s[slot]
        if ending != FAILED:
            results.returns[episode] = self._returns[slot]
            for name, values in self._infos[slot].items():
                results.infos[name][episode] = values
        results.endings[episode] = ending  # after all else: Ctrl-C leaves no ending without its results
        self.num_finished += 1
        if ending != FAILED and self._done is not None:
            self._done(episode)

    def _retry(self, slot: int, cause: str) -> bool:
        """Begin a slot's episode again after a failure; return False if it has failed too often and is given up."""
        episode, rules, results = int(self._episodes[slot]), self.rules, self.results
        self._used[slot] = 0  # the next reset makes the environment again
        self._has_failed[slot] = True
        at_fault, unexplained = self._new_failures(slot)
        if self._check.drop(slot):
            self._episodes[slot] = IDLE
            return False
        results.restarts[episode] += 1
        results.failures[episode] += at_fault
        results.deaths[episode] += unexplained and not at_fault
        num = results.failures[episode] + results.deaths[episode] // DEATHS_PER_FAILURE
        if rules.max_restarts is not None and num > rules.max_restarts:
            results.causes[episode] = cause
            self._steps[slot] = 0
            self._finish(slot, FAILED)
            return False
        self._begin(slot, episode)
        return True

    def _new_failures(self, slot: int) -> tuple[bool, bool]:
        """Return whether a slot has failed since the last call by itself, and whether for an unknown cause."""
        at_fault, unexplained = (counts[slot] for counts in self.vec.failures)
        fault_before, unexplained_before = self._failures[slot]
        self._failures[slot] = at_fault, unexplained
        return at_fault > fault_before, unexplained > unexplained_before

    # ----------------------------------------------------------------------------------------------- the policy

    def _send(self) -> None:
        """Call the policy for the staged rows, and send its actions."""
        for batch, places in self._staged.batches():
            actions, slots = self._act(batch), batch.env_ids[places]
            if len(slots):
                actions = self._staged.chosen_actions(actions, places)
                self._check.add_actions(slots, actions)
                self.vec.send(actions, env_ids=slots)  # type: ignore[arg-type]
                self._num_flying += len(slots)
