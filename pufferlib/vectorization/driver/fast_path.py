"""FastPath: the plain case of ``send`` and ``recv`` on the portable path: one array of actions, one answer a worker.

Like the compiled ``_native.fast_path``, it returns before it has changed anything where a call is not plain; the
careful code takes over from there.
"""

from __future__ import annotations

import time
from threading import get_ident
from typing import Any

import numpy as np

from pufferlib.layout.action_values import ActionValues
from pufferlib.telemetry.timeline import Recording
from pufferlib.vectorization.core.backend import Backend
from pufferlib.vectorization.core.batch import Batch
from pufferlib.vectorization.driver.scheduler import Gather, PortableScheduler

__all__ = ["FastPath"]


class FastPath:
    """The plain case of synchronous batches. half_done: whether Ctrl-C would now leave a call half done.

    actions: the slab's. values: the checks of their values. disabled: whether autoreset_mode is "disabled", so that a
    finished episode takes no action. owner: as in CallGuard; if it is set, the general path raises the error.
    """

    def __init__(
        self,
        scheduler: PortableScheduler,
        backend: Backend,
        actions: Any,
        values: ActionValues,
        gather: Gather,
        recording: Recording,
        *,
        disabled: bool,
    ) -> None:
        self._scheduler, self._backend, self._gather, self._recording = scheduler, backend, gather, recording
        self._actions, self._shape, self._dtype = actions, actions.shape, actions.dtype
        self._values = values
        self._disabled = disabled
        self.half_done = False
        self.owner = 0
        self.clear = True  # nothing stands in the way of the plain case

    def send(self, actions: Any, env_ids: Any = None) -> bool:
        """Send actions for the last batch if that is plain; return whether it was. To name env_ids is not."""
        me = get_ident()
        if not self.owner and env_ids is None:
            self.owner = me
        else:
            return False
        try:
            return self._send(actions)
        finally:
            self.owner = 0

    def _send(self, actions: Any) -> bool:
        start_s = time.monotonic()
        scheduler, backend = self._scheduler, self._backend
        if (
            not self.clear
            or type(actions) is not np.ndarray
            or actions.shape != self._shape
            or actions.dtype != self._dtype
            or not self._values.fit(actions)
            or not scheduler.all_wait()
            or (self._disabled and any(scheduler.overs))
        ):
            return False
        backend.interruptible, self.half_done = False, True
        self._actions[...] = actions
        backend.step_all(scheduler.depart_all())
        self.half_done = False
        self._recording.note_send(start_s)
        return True

    def recv(self, timeout_s: float) -> Batch | None:
        """Return the next batch if it comes in time (and soon) and nothing but rows does; None otherwise."""
        me = get_ident()
        if not self.owner:
            self.owner = me
        else:
            return None
        try:
            return self._recv(timeout_s)
        finally:
            self.owner = 0

    def _recv(self, timeout_s: float) -> Batch | None:
        scheduler = self._scheduler
        if not scheduler.all_fly():
            return None
        start_s = time.monotonic()
        self.half_done = True
        if not self._backend.all_played(timeout_s):
            self.half_done = False
            return None
        scheduler.arrive_all()
        batch = scheduler.land(self._gather)
        self.half_done = False
        self._recording.note_recv(start_s)
        return batch
