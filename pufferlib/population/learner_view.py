"""LearnerView: a VecEnv reduced to one learner of a population, for trainers that cannot handle other policies."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

from pufferlib.errors import PlanError, RecvTimeout
from pufferlib.models import action_mask_reader
from pufferlib.population.matchmaking import policies_of
from pufferlib.population.router import Router
from pufferlib.util.annotations import Array
from pufferlib.vectorization import Batch, Infos, VecEnv
from pufferlib.vectorization.core.tensors import as_numpy

__all__ = ["LearnerView"]


class LearnerView:
    """A view of a VecEnv with only one learner's rows; a router plays all other rows.

    ::

        view = LearnerView(vec, Router(pool, vec, matchmaker), learner)
        vec.async_reset()
        while True:
            batch = view.recv()     # the learner's rows, from one up to vec.agents_per_batch
            view.send(actions)      # one per row

    The view has the rows of the learner's agents in which the agent can act or its episode ends. The reward in such a
    row is the undiscounted sum of the agent's rewards since its previous row in the view, including any received while
    other agents acted. An agent's first row of an episode has the mask False, even if the agent could not act when the
    episode began. All attributes that are not defined here are the VecEnv's. learner: the learner's id in the router's
    pool.
    """

    def __init__(self, vec: VecEnv, router: Router, learner: int) -> None:
        self._vec, self._router, self._learner = vec, router, learner
        self._read_mask = action_mask_reader(vec.observation_layout, vec.single_action_space)
        num_agents = vec.num_envs * vec.agents_per_env
        self._rewards = np.zeros(num_agents, np.float32)  # since the agent's last row in a view
        self._same_episode = np.zeros(num_agents, np.bool_)  # whether that row is in the same episode
        self._rows: Array = np.zeros(0, np.int64)  # the view's rows, as indices in the VecEnv's batch
        self._actions: Any = None  # for the whole batch; send fills in the learner's
        self._infos: list[dict[str, Any]] = []  # of batches without learner rows, for the next view
        self.host_batch: Batch | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._vec, name)

    def recv(self, timeout: float | None = None) -> Batch:
        """Return the learner's rows in the next batch that has any, waiting up to ``timeout`` seconds.

        By default, there is no limit. The router acts on batches without rows of the learner; their infos are added to
        those of the returned batch. Raises RecvTimeout if no row of the learner has arrived in time; PlanError if none
        can arrive, because the matchmaker does not seat the learner. After either error, recv may be called again.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        num_batches = 0
        while True:
            try:
                batch: Any = self._vec.recv(None if deadline is None else max(0.0, deadline - time.monotonic()))
            except RecvTimeout as error:
                if num_batches:
                    raise self._timeout_error(num_batches, timeout) from error
                raise
            self._infos.extend(batch.infos)
            self._actions = self._router.act(batch, but=self._learner)
            view = self._view(self._vec.host_batch)
            if len(self._rows):
                break
            self._vec.send(self._actions)
            num_batches += 1
            self._require_rows(num_batches, timeout, deadline)
        infos, self._infos = Infos(self._infos, view.agent_ids.tolist(), None), []
        self.host_batch = view = view._replace(infos=infos)
        if isinstance(batch.observations, np.ndarray):
            return view
        columns: Any = (torch.from_numpy(np.array(column)) for column in (*view[:4], *view[5:]))
        return Batch.of(tuple(column.to(batch.observations.device) for column in columns), infos)

    def _require_rows(self, num_batches: int, timeout: float | None, deadline: float | None) -> None:
        """Raise PlanError if no row of the learner can arrive, RecvTimeout if the deadline has passed.

        num_batches: how many batches without such a row have been received.
        """
        seated = None if self._router.plays(self._learner) else policies_of(self._router.matchmaker)
        if seated is not None and self._learner not in seated:
            raise PlanError(
                f"no row of learner {self._learner} can arrive: it plays in no environment, and the matchmaker seats "
                f"the policies {sorted(seated)}; add it to the matchups, or pass another learner"
            )
        if deadline is not None and time.monotonic() >= deadline:
            raise self._timeout_error(num_batches, timeout)

    def _timeout_error(self, num_batches: int, timeout: float | None) -> RecvTimeout:
        return RecvTimeout(
            f"no row of learner {self._learner} came within {timeout} s, in {num_batches} batches of others' rows; "
            "none can come while the matchmaker does not seat it; call recv again to keep waiting"
        )

    def send(self, actions: Any) -> None:
        """Send actions for the rows that ``recv`` last returned, with the router's actions for all other rows.

        actions: the learner's, (rows, …); for a Tuple space, a pair of such arrays.
        """
        pairs = isinstance(self._actions, tuple)
        for column, learner_column in zip(self._actions, actions, strict=True) if pairs else [(self._actions, actions)]:
            column[self._rows] = as_numpy(learner_column)
        self._vec.send(self._actions)

    def _view(self, batch: Any) -> Batch:
        ids, masks = batch.agent_ids, batch.masks
        self._rewards[ids] = np.where(masks, self._rewards[ids] + batch.rewards, 0)
        self._same_episode[ids] &= masks
        mask = self._router.policies(ids) == self._learner
        if self._read_mask is not None:
            can_act = self._read_mask(torch.from_numpy(batch.observations)).any(1).numpy()
            mask &= can_act | batch.terminations | batch.truncations
        self._rows = rows = np.flatnonzero(mask)
        agents = ids[rows]
        view: Batch = batch._replace(
            observations=batch.observations[rows],
            rewards=self._rewards[agents],
            terminations=batch.terminations[rows],
            truncations=batch.truncations[rows],
            agent_ids=agents,
            masks=self._same_episode[agents],
        )
        self._rewards[agents], self._same_episode[agents] = 0, True
        return view
