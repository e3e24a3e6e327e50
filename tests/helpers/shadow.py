"""Shadows: each environment played a second time in the parent, so that every row of a VecEnv can be checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import pufferlib
from pufferlib.vectorization.core.plan import Seeds

__all__ = ["Shadow"]


class Shadow:
    """What a VecEnv with ``on_error="restart"`` must deliver, checked row by row.

    make(env_id): an environment like the VecEnv's, that never fails; it is deterministic given seed and actions, and
    has one agent. lethal: actions that end their environment, by an exception or with its worker. may_crash(env_id):
    whether the loss of its worker is a reason for this environment to crash now. num_steps, num_crashes, num_resets:
    rows that were checked.
    """

    def __init__(
        self,
        vec: pufferlib.VecEnv,
        make: Callable[[int], Any],
        *,
        seed: int,
        lethal: frozenset[int] = frozenset(),
        may_crash: Callable[[int], bool] = lambda env_id: False,
    ) -> None:
        num = vec.num_envs
        self.vec, self._make, self._lethal, self._may_crash = vec, make, lethal, may_crash
        self._seeds = Seeds(seed, num)
        self._drawn: list[list[int]] = [[self._seeds[env_id]] for env_id in range(num)]  # one a restart
        self._envs: list[Any] = [None] * num
        self._shadow_life: list[int] = [-1] * num  # which of an environment's lives its shadow leads
        self._recovery = [0] * num  # the VecEnv's, when the environment was sent something last
        self._begins = [True] * num  # whether the next row is the first of an episode
        self._sent: list[int | None] = [None] * num  # None: a reset
        self.num_steps = self.num_crashes = self.num_resets = 0

    def send(self, actions: Any) -> None:
        """Send actions for the last batch."""
        batch = self.vec.batch
        assert batch is not None
        self._note(batch.env_ids.tolist(), actions.tolist())
        self.vec.send(actions)

    def async_reset(self) -> None:
        """Reset all environments."""
        self.vec.async_reset()
        self._begins = [True] * self.vec.num_envs
        self._note(range(self.vec.num_envs), [None] * self.vec.num_envs)

    def _note(self, env_ids: Any, actions: Any) -> None:
        restarts = self.vec.restarts
        for env_id, action in zip(env_ids, actions, strict=True):
            self._sent[env_id], self._recovery[env_id] = action, restarts[env_id]

    def recv(self) -> pufferlib.Batch:
        """Return the next batch, each of its rows being the one that is due."""
        batch = self.vec.recv(timeout=60)
        infos: dict[int, dict[str, Any]] = {}
        row_infos: Sequence[dict[str, Any]] = batch.infos
        for info in row_infos:
            infos.setdefault(info["env_id"], {}).update(info)
        for index, env_id in enumerate(batch.env_ids.tolist()):
            row = [column[index] for column in (*batch[:4], batch.masks)]
            self._check(env_id, row, infos.get(env_id, {}))
        return batch

    def _check(self, env_id: int, row: list[Any], info: dict[str, Any]) -> None:
        action = self._sent[env_id]
        if "restarted" in info:
            assert [np.any(value) for value in row] == [False, False, False, True, False], (env_id, row)
            begins = self._begins[env_id]
            assert (action in self._lethal and not begins) or self._may_crash(env_id), (env_id, action, info)
            self._begins[env_id] = True
            self._envs[env_id] = None
            self.num_crashes += 1
            return
        if self._begins[env_id]:
            self._expect(env_id, row, (self._begun(env_id), 0.0, False, False, False))
            self._begins[env_id] = False
            self.num_resets += 1
            return
        assert action is not None and action not in self._lethal, (env_id, action)
        observation, reward, terminated, truncated, _ = self._envs[env_id].step(action)
        if (terminated or truncated) and self.vec.autoreset_mode == "same_step":
            assert np.array_equal(info["final_obs"], observation), env_id
            observation, _ = self._envs[env_id].reset()
        elif terminated or truncated:
            self._begins[env_id] = True
        self._expect(env_id, row, (observation, reward, terminated, truncated, True))
        self.num_steps += 1

    def _begun(self, env_id: int) -> Any:
        """Return the first observation of an episode: of a new environment after a restart, seeded as it should be."""
        life, drawn = self._recovery[env_id], self._drawn[env_id]
        seed = None
        if self._envs[env_id] is None or self._shadow_life[env_id] != life:
            while len(drawn) <= life:
                drawn.append(self._seeds.draw(env_id, len(drawn)))
            assert self._shadow_life[env_id] < life, f"environment {env_id} was recreated without being lost"
            self._envs[env_id], self._shadow_life[env_id], seed = self._make(env_id), life, drawn[life]
        return self._envs[env_id].reset(seed=seed)[0]

    def _expect(self, env_id: int, row: list[Any], expected: tuple[Any, ...]) -> None:
        for name, is_, should in zip(
            ("observation", "reward", "terminated", "truncated", "mask"), row, expected, strict=True
        ):
            assert np.array_equal(is_, np.asarray(should, np.asarray(is_).dtype)), (env_id, name, is_, should)
