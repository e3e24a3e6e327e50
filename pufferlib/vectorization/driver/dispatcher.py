"""Dispatcher: handling of the workers' messages: finished rows, infos, failures and deaths."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from pufferlib.errors import PufferError, WorkerError
from pufferlib.layout.action_values import ActionValues
from pufferlib.telemetry.timeline import Recording
from pufferlib.util.annotations import Info
from pufferlib.vectorization.core.backend import SLICE_S, Backend
from pufferlib.vectorization.core.batch import Batches
from pufferlib.vectorization.core.call_errors import closed_error
from pufferlib.vectorization.core.frames import infos_messages
from pufferlib.vectorization.core.messages import Died, Done, Failed, InfosMessage, Message, Reply
from pufferlib.vectorization.core.plan import Plan
from pufferlib.vectorization.core.slab import Slab
from pufferlib.vectorization.core.step_watchdog import StepWatchdog
from pufferlib.vectorization.driver.control import Control
from pufferlib.vectorization.driver.recovery import Recovery
from pufferlib.vectorization.driver.ring_scheduler import RingScheduler
from pufferlib.vectorization.driver.scheduler import FAILED, FLYING, READY, WAITING, PortableScheduler

if TYPE_CHECKING:
    from pufferlib._native.ring import Ring

__all__ = ["Dispatcher", "make_scheduler"]


class Dispatcher:
    """A handler of the workers' messages.

    scheduler: the state of the environments; set once it exists. errors: those not raised yet. ring: the Ring of the
    compiled path, which stores infos that arrived as records; None on the portable path.
    """

    scheduler: PortableScheduler | RingScheduler

    def __init__(
        self, backend: Backend, ring: Ring | None, recovery: Recovery, watchdog: StepWatchdog, name: str
    ) -> None:
        self._backend: Backend | None = backend
        self._ring = ring
        self._recovery, self._watchdog, self._name = recovery, watchdog, name
        self.control = Control(backend, self.pump, self.raise_error)
        self.errors: deque[WorkerError] = deque()
        self.closed_because = ""  # the reason, if it is not a call of ``close``
        self._messages: deque[Message] = deque()
        self._infos: dict[object, list[Info]] = {}  # by env id: of rows that have not been received yet

    @property
    def backend(self) -> Backend:
        """The workers' backend. Raises ClosedError if it is closed or another thread is closing it."""
        if self._backend is None or self._backend.closing:
            raise closed_error(self._name, self.closed_because)
        return self._backend

    @property
    def closed(self) -> bool:
        """Whether ``close`` has been called."""
        return self._backend is None

    def close(self) -> None:
        """Stop handling messages; a call in progress in another thread ends with ClosedError."""
        self._backend = None

    def let_go(self) -> None:
        """Break reference cycles, so that memory is freed with its last user. Call it when no call is in progress."""
        del self.scheduler, self.control

    def forget_infos(self) -> None:
        """Discard the infos of rows that are discarded without having been received."""
        self._infos.clear()
        if self._ring is not None:
            self._ring.drop_infos()

    def _forget_infos_of(self, env_id: int) -> None:
        """Discard the infos of an environment's rows that will never arrive."""
        self._infos.pop(env_id, None)
        if self._ring is not None:
            self._ring.drop_infos(env_id)

    def raise_error(self) -> None:
        """Raise the oldest error not raised yet, if any."""
        if self.errors:
            raise self.errors.popleft()

    # -------------------------------------------------------------------------------------------------- messages

    def pump(self, deadline: float | None, wait: Callable[[float], None] | None = None) -> bool:
        """Wait for messages from the workers and handle them; return False if nothing arrived before the deadline.

        On the portable path every event arrives as a message. On the compiled path ``wait`` does the waiting, by
        default for any row or message; True then only means that the caller should look again.
        """
        backend, scheduler = self.backend, self.scheduler
        was_interruptible, backend.interruptible = backend.interruptible, False
        if isinstance(scheduler, RingScheduler):
            scheduler.look()
            self._messages.extend(backend.poll(0))
            left_s = self._left_s(deadline)
            if not self._messages:
                backend.interruptible = True
                (wait or scheduler.await_row)(left_s)
                backend.interruptible = False
                self._messages.extend(backend.poll(0))
            self._kill_overdue()
            # Where environments are stepped in this process, no message comes later.
            came = bool(self._messages) or (left_s > 0 and backend.play is None)
        else:
            while not self._messages:
                self._messages.extend(self.backend.poll(min(self._left_s(deadline), SLICE_S)))
                self._kill_overdue()
                if backend.play is not None or (deadline is not None and time.monotonic() >= deadline):
                    break
            came = bool(self._messages)
        while self._messages:
            self._take(self._messages.popleft())
        backend.interruptible = was_interruptible
        return came

    def _left_s(self, deadline: float | None) -> float:
        """Return the longest time to wait, in seconds: until the deadline or the watchdog's next look."""
        left_s = math.inf if deadline is None else max(0.0, deadline - time.monotonic())
        return left_s if self._watchdog.slice_s is None else min(left_s, self._watchdog.slice_s)

    def _kill_overdue(self) -> None:
        """Kill the workers whose step or reset has exceeded its time limit."""
        shares = self.backend.shares
        for worker, cause in self._watchdog.look(lambda worker: self.scheduler.asked(worker, shares[worker])):
            self.backend.kill(worker, cause)

    def _take(self, message: Message) -> None:
        if isinstance(message, (Done, InfosMessage)):
            if isinstance(message, Done):
                self.scheduler.arrive(message.env_ids, message.overs)
            for info in message.infos:
                self._infos.setdefault(info["env_id"], []).append(info)
        elif isinstance(message, Reply):
            self.control.take(message)
        elif isinstance(message, Failed):
            self._take_failure(message)
        else:
            assert isinstance(message, Died), message
            self._take_death(message)

    def may_land(self) -> bool:
        """Return whether the next batch is complete and every message that came with it has been handled."""
        scheduler = self.scheduler
        return scheduler.batch_is_ready() and not scheduler.has_news() and self.collect_infos() and not self._messages

    # ----------------------------------------------------------------------------------------------------- infos

    def collect_infos(self, taken: list[tuple[int, int, bytes]] | None = None) -> bool:
        """Collect the infos that arrived with rows; return False if some cannot be unpickled.

        taken: pickled infos that have already been taken from the ring; None takes them here.
        """
        if self._ring is None:
            return True
        readable, backend = True, self.backend
        was_interruptible, backend.interruptible = backend.interruptible, False  # taken infos exist nowhere else
        for message in infos_messages(self._ring.take_infos() if taken is None else taken):
            if isinstance(message, InfosMessage):
                self._take(message)
            else:
                self._messages.append(message)
                readable = False
        backend.interruptible = was_interruptible
        return readable

    def gather_infos(self, env_ids: Sequence[int]) -> list[Info]:
        """Remove and return the infos, except records, of these environments' rows, in the order of env_ids."""
        if not self._infos:
            return []
        return [info for env_id in env_ids for info in self._infos.pop(env_id, ())]

    # -------------------------------------------------------------------------------------------------- failures

    def _take_failure(self, failed: Failed) -> None:
        env_id = failed.env_id
        refusal = "" if env_id is None else self._recovery.refusal([env_id])
        if env_id is not None and refusal is None:
            self._crash([env_id], failed.text)
            return
        self.errors.append(failed.error(refusal or ""))
        if env_id is not None:
            if failed.phase == "__init__":
                self._recovery.lose(env_id)
            elif failed.seed is not None:
                self._recovery.retry_seed(env_id, failed.seed)
            self._fail(env_id)

    def _take_death(self, died: Died) -> None:
        self.scheduler.mark_dirty()
        self.control.lose(died)
        refusal = self._recovery.refusal(died.env_ids)
        if refusal is None:
            try:
                self.backend.restart(died.worker)
            except PufferError as error:  # no resources, or a task that cannot be sent to a spawned process
                refusal = f"a new one cannot be started: {error}"
        if refusal is None:
            self._crash(died.env_ids, died.text)
            return
        self.errors.append(died.error(refusal))
        for env_id in died.env_ids:
            self._recovery.lose(env_id)
            self._fail(env_id, died=True)

    def _fail(self, env_id: int, *, died: bool = False) -> None:
        self.scheduler.fail(env_id, died=died)
        if self.scheduler.states[env_id] == FAILED:
            self._forget_infos_of(env_id)

    def _crash(self, env_ids: Iterable[int], cause: str) -> None:
        """Restart lost environments: their episodes end in crash rows, written now if their rows are awaited."""
        flying = set(self.scheduler.of_state(FLYING))
        self.scheduler.hold(True)
        for env_id in env_ids:
            self._recovery.lose(env_id)
            if env_id in flying:
                self.answer_by_crash(env_id, cause)
            elif env_id not in self._recovery.reset_due and self.scheduler.states[env_id] in (READY, WAITING):
                self._recovery.crash_due[env_id] = cause

    def answer_by_crash(self, env_id: int, cause: str) -> None:
        """Deliver crash rows for a lost environment whose action or reset was in flight."""
        self._forget_infos_of(env_id)  # they belong to rows that are replaced
        self._infos[env_id] = [{"env_id": env_id, "restarted": cause}]
        self.scheduler.crash(env_id)
        self._recovery.crash_due.pop(env_id, None)
        self._recovery.reset_due.add(env_id)


def make_scheduler(
    slab: Slab,
    ring: Ring | None,
    plan: Plan,
    batches: Batches,
    backend: Backend,
    dispatcher: Dispatcher,
    recording: Recording,
    action_values: Sequence[ActionValues],
    *,
    first_finished: bool,
    disabled: bool,
) -> PortableScheduler | RingScheduler:
    """Make the scheduler for a slab, compiled or portable as the slab is, and set it in the dispatcher.

    disabled: whether autoreset_mode is "disabled", so that a finished episode takes no action.
    """
    scheduler: PortableScheduler | RingScheduler
    if ring is None:
        scheduler = PortableScheduler(slab, batches, plan.batch_size, first_finished=first_finished)
    else:
        scheduler = RingScheduler(
            slab,
            batches,
            ring,
            backend.shares,
            action_values,
            dispatcher.collect_infos,
            dispatcher.gather_infos,
            backend.dead,
            first_finished=first_finished,
            disabled=disabled,
            spin=backend.spin,
            play=backend.play,
            step=backend.step,
            parent_times=recording.parent_times,
        )
    dispatcher.scheduler = scheduler
    return scheduler
