"""Channel: frames over a socket pair, for a parent that must never block on a single worker."""

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
    """One end of a socket pair that carries frames. The frames end when the other end closes or its process dies."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.incoming = bytearray()  # bytes of incomplete frames
        self._outgoing = bytearray()

    def fileno(self) -> int:
        return self.sock.fileno()

    # ------------------------------------------------------------------------- for the parent: never blocks

    def post(self, frame: bytes) -> None:
        """Send a frame; keep any bytes that the socket does not accept at once, and let ``flush`` send them."""
        if self._outgoing:
            self._outgoing += frame
        else:
            sent = self._send_some(frame)
            self._outgoing += frame[sent:]

    def flush(self) -> bool:
        """Send more of the bytes kept by ``post``; return whether all have been sent."""
        if self._outgoing:
            sent = self._send_some(self._outgoing)
            del self._outgoing[:sent]
        return not self._outgoing

    def _send_some(self, data: bytes | bytearray) -> int:
        try:
            return self.sock.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except (BrokenPipeError, ConnectionResetError):  # the worker is dead; its Died message reports that
            return len(data)

    def arrived(self) -> tuple[list[Frame], bool]:
        """Return the complete frames that have arrived, and whether the other end is closed. Never waits."""
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
        """Send a frame, waiting until the socket has accepted all of it."""
        self.sock.sendall(frame)

    def send_and_tell(self, frame: bytes, announce: Callable[[bool], None], *, urgent: bool) -> None:
        """Send a frame to a parent that reads its socket only after ``announce(urgent)``.

        A frame that does not fit into the socket at once is always announced as urgent; otherwise the parent might
        never make room for the rest.
        """
        rest = memoryview(frame)
        while rest:
            try:
                rest = rest[self.sock.send(rest, socket.MSG_DONTWAIT) :]
            except BlockingIOError:
                announce(True)  # the parent may sleep until a block is full, but must make room first
                room = select.poll()
                room.register(self.sock, select.POLLOUT)
                room.poll()
                continue
            announce(urgent or len(rest) > 0)

    def frames(self, spin: int) -> Iterator[Frame]:
        """Yield frames until the other end is closed.

        spin: how many times to yield the core before sleeping. Waking a process that sleeps on another core takes tens
            of microseconds, so for a short wait it costs less to stay awake.
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
