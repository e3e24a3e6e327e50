"""The plain case of ``send`` and ``recv`` on the portable path: one array of actions for all, one answer a worker.

As the compiled ``_native.lane``, it gives up before anything has been changed wherever something else is wanted or has
come; the code that is careful goes on from there.
"""

from __future__ import annotations

import time
from threading import get_ident
from typing import Any

import numpy as np

from pufferlib.action_values import ActionValues
from pufferlib.vectorization.batch import Batch
from pufferlib.vectorization.crew import Crew
from pufferlib.vectorization.flight import Flight, Gather
from pufferlib.vectorization.telemetry import Recording

__all__ = ["Lane"]


class Lane:
    """The short way of synchronous batches. midway: whether Ctrl-C would leave something half done.

    actions: the slab's. values: which they may hold. disabled: whether autoreset_mode is "disabled", so that a finished
    episode takes no action.
    owner: as in turns; whoever else finds somebody there is sent the careful way, which refuses.
    """

    def __init__(
        self,
        flight: Flight,
        crew: Crew,
        actions: Any,
        values: ActionValues,
        gather: Gather,
        recording: Recording,
        *,
        disabled: bool,
    ) -> None:
        self._flight, self._crew, self._gather, self._recording = flight, crew, gather, recording
        self._actions, self._shape, self._dtype = actions, actions.shape, actions.dtype
        self._values = values
        self._disabled = disabled
        self.midway = False
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
        flight, crew = self._flight, self._crew
        if (
            not self.clear
            or type(actions) is not np.ndarray
            or actions.shape != self._shape
            or actions.dtype != self._dtype
            or not self._values.fit(actions)
            or not flight.all_wait()
            or (self._disabled and any(flight.overs))
        ):
            return False
        crew.interruptible, self.midway = False, True
        self._actions[...] = actions
        crew.step_all(flight.depart_all())
        self.midway = False
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
        flight = self._flight
        if not flight.all_fly():
            return None
        start_s = time.monotonic()
        self.midway = True
        if not self._crew.all_played(timeout_s):
            self.midway = False
            return None
        flight.arrive_all()
        batch = flight.land(self._gather)
        self.midway = False
        self._recording.note_recv(start_s)
        return batch
