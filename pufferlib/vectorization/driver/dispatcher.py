"""Dispatcher: handling of the workers' messages, which report finished rows, infos, failures and deaths."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence

from pufferlib.errors import PufferError, WorkerError
from pufferlib.vectorization.core.messages import CrashCause, Died, Done, Failed, InfosMessage, Message, Ready, Reply
from pufferlib.vectorization.core.step_watchdog import StepWatchdog
from pufferlib.vectorization.driver.control import Control
from pufferlib.vectorization.driver.pending_infos import PendingInfos
from pufferlib.vectorization.driver.recovery import Recovery
from pufferlib.vectorization.driver.scheduler import READY, WAITING, Scheduler
from pufferlib.vectorization.driver.workers import Workers

__all__ = ["Dispatcher"]


class Dispatcher:
    """A handler of the workers' messages.

    errors: the WorkerErrors that have not been raised yet. control: the calls that await replies.
    """

    def __init__(
        self,
        workers: Workers,
        scheduler: Scheduler,
        infos: PendingInfos,
        recovery: Recovery,
        watchdog: StepWatchdog,
    ) -> None:
        self._workers, self._scheduler, self._infos = workers, scheduler, infos
        self._recovery, self._watchdog = recovery, watchdog
        self.control = Control(workers)
        self.errors: deque[WorkerError] = deque()
        self._messages: deque[Message] = deque()

    def raise_error(self) -> None:
        """Raise the oldest error not raised yet, if any."""
        if self.errors:
            raise self.errors.popleft()

    # -------------------------------------------------------------------------------------------------- messages

    def pump(self, deadline: float | None, *, batch: bool = False) -> bool:
        """Wait a bounded time for messages or rows, handle the messages, and kill overdue workers.

        Return False if no message came and waiting again is useless, because the deadline has passed or the workers run
        in place.

        deadline: the value of ``time.monotonic`` after which not to wait; None for no deadline. batch: whether rows end
            the wait only if they complete the next batch.
        """
        if self._workers.closed:
            self._workers.require_open()  # raises; another thread has called close
        backend = self._workers.backend
        was_interruptible, backend.interruptible = backend.interruptible, False
        self._take_unreadable_infos()
        left_s = 0.0 if self._messages else self._left_s(deadline)
        self._messages.extend(self._scheduler.wait(backend, left_s, batch=batch))
        self._kill_overdue()
        came = bool(self._messages) or (left_s > 0 and not self._workers.in_place)
        while self._messages:
            self._take(self._messages.popleft())
        backend.interruptible = was_interruptible
        return came

    def _left_s(self, deadline: float | None) -> float:
        """Return the longest time to wait, in seconds: until the deadline or, if sooner, the watchdog's next look."""
        left_s = math.inf if deadline is None else max(0.0, deadline - time.monotonic())
        return left_s if self._watchdog.slice_s is None else min(left_s, self._watchdog.slice_s)

    def _kill_overdue(self) -> None:
        """Kill the workers whose step or reset has exceeded its time limit."""
        if self._watchdog.slice_s is None:
            return
        shares = self._workers.shares
        for worker, cause in self._watchdog.look(lambda worker: self._scheduler.unbegun(worker, shares[worker])):
            self._workers.backend.kill(worker, cause)

    def _take(self, message: Message) -> None:
        if isinstance(message, Done):
            self._scheduler.arrive(message.env_ids, message.overs)
            if message.infos:
                self._infos.add(message.infos)
        elif isinstance(message, InfosMessage):
            self._infos.add(message.infos)
        elif isinstance(message, Reply):
            self.control.take(message)
        elif isinstance(message, Failed):
            self._take_failure(message)
        elif isinstance(message, Died):
            self._take_death(message)
        else:
            assert isinstance(message, Ready), message  # of a worker that replaces a dead one

    def may_land(self) -> bool:
        """Return whether the next batch can be received. If it is complete, collects the infos that arrived with it.

        Returns False if the batch is not complete, or if messages must be handled first. Raises CallError if the batch
        can never be complete.
        """
        return self._scheduler.batch_ready() and self.collect_infos() and not self._messages

    @property
    def has_messages(self) -> bool:
        """Whether there are messages that the next ``pump`` handles at once."""
        return bool(self._messages)

    def collect_infos(self) -> bool:
        """Collect the pickled infos that arrived with rows.

        Return False if messages must be handled first, such as failures to unpickle some of the infos.
        """
        if self._scheduler.fast_path is None:  # infos arrive in the messages of their rows
            return not self._messages
        backend = self._workers.backend
        was_interruptible, backend.interruptible = backend.interruptible, False  # taken infos exist nowhere else
        self._infos.collect()
        self._take_unreadable_infos()
        backend.interruptible = was_interruptible
        return not self._messages

    def _take_unreadable_infos(self) -> None:
        """Queue the Failed messages of infos that could not be unpickled, here or on the fast path."""
        self._messages.extend(self._infos.failures)
        self._infos.failures.clear()

    # -------------------------------------------------------------------------------------------------- failures

    def _take_failure(self, failed: Failed) -> None:
        env_id = failed.env_id
        refusal = "" if env_id is None else self._recovery.refusal([env_id])
        if env_id is not None and refusal is None:
            self._crash([env_id], CrashCause.of(failed))
            return
        self.errors.append(failed.error(refusal or ""))
        if env_id is not None:
            if failed.phase == "__init__":
                self._recovery.lose(env_id, env_id)
            elif failed.seed is not None:
                self._recovery.retry_seed(env_id, failed.seed)
            self._infos.drop(self._scheduler.fail([env_id]))

    def _take_death(self, died: Died) -> None:
        self._workers.mark_dead(died.worker)
        self.control.lose(died)
        refusal = self._recovery.refusal(died.env_ids)
        at_fault = None if died.doing is None else died.doing.env_id
        if refusal is None:
            try:
                self._workers.restart(died.worker)
            except PufferError as error:  # no resources, or a task that cannot be sent to a spawned process
                refusal = f"a new one cannot be started: {error}"
        if refusal is None:
            self._crash(died.env_ids, CrashCause.of(died), died=True)
            return
        self.errors.append(died.error(refusal))
        for env_id in died.env_ids:
            self._recovery.lose(env_id, at_fault)
        self._infos.drop(self._scheduler.fail(died.env_ids, died=True))

    def _crash(self, env_ids: Sequence[int], cause: CrashCause, *, died: bool = False) -> None:
        """Record lost environments, which are made again by their next resets, and end their episodes with crash rows.

        If an action or reset of an environment is in flight, its crash rows are written now. If the environment waits
        for an action, or its finished rows have not been received yet, crash rows answer its next action.
        """
        recovery, scheduler = self._recovery, self._scheduler
        scheduler.held = True
        for env_id in env_ids:
            recovery.lose(env_id, cause.env_id)
        self.answer_by_crash(env_ids, cause, died=died)
        states = scheduler.states
        for env_id in env_ids:
            if env_id not in recovery.reset_due and states[env_id] in (READY, WAITING):
                recovery.crash_due[env_id] = cause

    def answer_by_crash(self, env_ids: Sequence[int], cause: CrashCause, *, died: bool = False) -> None:
        """Deliver crash rows for each of these lost environments that has an action or reset in flight.

        One info with the cause replaces such an environment's pending infos. Its next action is answered by a reset.
        """
        for env_id in self._scheduler.crash(env_ids, died=died):
            self._infos.replace(env_id, {"env_id": env_id, "restarted": cause})  # drops infos of the replaced rows
            self._recovery.crash_due.pop(env_id, None)
            self._recovery.reset_due.add(env_id)
