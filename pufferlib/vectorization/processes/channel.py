"""Channel: frames over a socket pair, for a parent that must never block on one worker alone."""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable, Iterator

from pufferlib.vectorization.core.frames import Frame, complete_frames

__all__ = ["Channel", "yield_core"]

_CHUNK_NBYTES = 1 << 18


def _sleep_none() -> None:
    time.sleep(0)


yield_core = getattr(os, "sched_yield", _sleep_none)  # macOS has no sched_yield


class Channel:
    """One end of a socket pair that carries frames. The other end's death is the end of its frames."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.incoming = bytearray()  # frames that are not whole yet
        self._outgoing = bytearray()

    def fileno(self) -> int:
        return self.sock.fileno()

    # ------------------------------------------------------------------------- for the parent: never blocks

    def post(self, frame: bytes) -> None:
        """Send a frame, keeping what the socket does not take at once for ``flush``."""
        if self._outgoing:
            self._outgoing += frame
        else:
            sent = self._send_some(frame)
            self._outgoing += frame[sent:]

    def flush(self) -> bool:
        """Send more of what is kept; True once nothing is."""
        if self._outgoing:
            sent = self._send_some(self._outgoing)
            del self._outgoing[:sent]
        return not self._outgoing

    def _send_some(self, data: bytes | bytearray) -> int:
        try:
            return self.sock.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except (BrokenPipeError, ConnectionResetError):  # the worker is dead; its Died message says so
            return len(data)

    def take(self, data: bytes) -> list[Frame]:
        """Return the frames that are whole with this data, which has come past ``arrived``."""
        self.incoming += data
        return list(complete_frames(self.incoming))

    def arrived(self) -> tuple[list[Frame], bool]:
        """Return the frames that have arrived whole, and whether the other end is closed. Never waits."""
        closed = False
        while True:
            try:
                data = self.sock.recv(_CHUNK_NBYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            except ConnectionResetError:
                data = b""
            if not data:
                closed = True
                break
            self.incoming += data
            if len(data) < _CHUNK_NBYTES:
                break
        return list(complete_frames(self.incoming)), closed

    # ------------------------------------------------------------------------------ for the worker: blocks

    def send(self, frame: bytes) -> None:
        """Send a whole frame, waiting as long as it takes."""
        self.sock.sendall(frame)

    def send_and_tell(self, frame: bytes, announce: Callable[[bool], None], *, urgent: bool) -> None:
        """Send a whole frame to a parent that looks only when told: ``announce(urgent)``.

        What does not fit into the socket at once is urgent, or the parent would never make room for the rest.
        """
        rest = memoryview(frame)
        while rest:
            try:
                rest = rest[self.sock.send(rest, socket.MSG_DONTWAIT) :]
            except BlockingIOError:
                announce(True)  # the parent may sleep until a block is full, and has to make room first
                room = select.poll()
                room.register(self.sock, select.POLLOUT)
                room.poll()
                continue
            announce(urgent or len(rest) > 0)

    def frames(self, spin: int) -> Iterator[Frame]:
        """Yield frames until the other end is closed.

        spin: how often to offer the core to others before sleeping: waking a process that sleeps on another
            core costs tens of microseconds, so a short wait is cheaper awake.
        """
        sock, incoming = self.sock, self.incoming
        while True:
            yield from complete_frames(incoming)
            for _ in range(spin):
                try:
                    data = sock.recv(_CHUNK_NBYTES, socket.MSG_DONTWAIT)
                    break
                except BlockingIOError:
                    yield_core()
            else:
                data = sock.recv(_CHUNK_NBYTES)
            if not data:
                return
            incoming += data

    def close(self) -> None:
        self.sock.close()
