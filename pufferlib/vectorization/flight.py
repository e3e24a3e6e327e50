"""Flight: where each environment is on its way from send to recv, and which finished ones form the next batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

__all__ = ["FAILED", "FLYING", "NEW", "READY", "WAITING", "Flight"]

NEW, WAITING, FLYING, READY, FAILED = range(5)
_WORDS = ("has never been reset", "waits for an action", "is in flight", "has finished but was not received", "failed")


class Flight:
    """The state of every environment, and the order in which batches take them.

    states: one of NEW, WAITING (its rows were received), FLYING (an action or reset was sent), READY (its rows are
    written), FAILED (it raised or its worker died; only a reset helps). overs: whose episode was over on arrival.
    """

    def __init__(self, num_envs: int, batch_size: int, *, first_finished: bool) -> None:
        self.states = bytearray(num_envs)
        self.overs = bytearray(num_envs)
        self.num_flying = 0
        self.num_ready = 0
        self._batch_size = batch_size
        self._synchronous = batch_size == num_envs
        self._first_finished = first_finished
        self._lost: set[int] = set()  # of those READY, whose worker has died since: they fail once received
        self._order: deque[int] = deque()  # of departure, or of arrival; unused where batches hold everything
        self._in_order = list(range(num_envs))

    def depart(self, env_ids: Iterable[int]) -> None:
        """These environments were sent something to do."""
        for env_id in env_ids:
            self.states[env_id] = FLYING
            self.num_flying += 1
            if not (self._synchronous or self._first_finished):
                self._order.append(env_id)

    def arrive(self, env_ids: Iterable[int], overs: Iterable[bool]) -> None:
        """The rows of these environments are written."""
        for env_id, over in zip(env_ids, overs, strict=True):
            self.states[env_id] = READY
            self.overs[env_id] = over
            self.num_flying -= 1
            self.num_ready += 1
            if self._first_finished and not self._synchronous:
                self._order.append(env_id)

    def fail(self, env_id: int) -> None:
        """This environment raised, or lost its worker. Rows that it has written already still count."""
        if self.states[env_id] == READY:
            self._lost.add(env_id)
            return
        if self.states[env_id] == FLYING:
            self.num_flying -= 1
            if not (self._synchronous or self._first_finished):
                self._order.remove(env_id)
        self.states[env_id] = FAILED

    def fill(self, env_id: int) -> None:
        """This waiting environment takes part in the next batch without having been sent anything."""
        self.states[env_id] = READY
        self.num_ready += 1

    def batch_is_ready(self) -> bool:
        """Whether the environments of the next batch have all arrived."""
        if self.num_ready < self._batch_size:
            return False
        if self._synchronous or self._first_finished:
            return True
        return all(self.states[self._order[index]] == READY for index in range(self._batch_size))

    def land(self) -> list[int]:
        """Return the environments of the next batch, which now wait (unless they lost their workers meanwhile)."""
        if self._synchronous:
            env_ids = self._in_order
        else:
            env_ids = [self._order.popleft() for _ in range(self._batch_size)]
        for env_id in env_ids:
            self.states[env_id] = WAITING
        if self._lost:
            for env_id in self._lost.intersection(env_ids):
                self.states[env_id] = FAILED
            self._lost.difference_update(env_ids)
        self.num_ready -= len(env_ids)
        return env_ids

    def drop(self) -> None:
        """Forget the rows that have arrived; their environments are about to be reset."""
        self._order.clear()
        self._lost.clear()
        self.num_ready = 0

    def of_state(self, *states: int) -> list[int]:
        """Return the environments in one of these states."""
        return [env_id for env_id, state in enumerate(self.states) if state in states]

    def describe(self, env_id: int) -> str:
        """Return the state of an environment in words."""
        return f"environment {env_id} {_WORDS[self.states[env_id]]}"
