"""A direct connection to an actor, for small calls and answers.

A round trip through Ray takes a millisecond even if the content is small; over a socket, a tenth of a millisecond. Ray
places actors, reports their deaths, and carries large content through its object store. An actor that cannot be reached
by a socket is called only through Ray.

The actor's end is a ``SocketServer``: it accepts a client that has the key, which Ray has carried to the actor, and
answers calls. The driver's end is a ``SocketClient``.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Callable
from contextlib import closing, suppress
from queue import SimpleQueue

from pufferlib.util.sockets import (
    HEADER_NBYTES,
    Address,
    Listener,
    connect,
    frame_nbytes,
    receive_frame,
    send_frame,
)

__all__ = ["CALL_NBYTES", "SocketClient", "SocketServer"]

CALL_NBYTES = 64 << 10  # larger calls go through Ray, so that the driver never waits until an actor has read them
UNANSWERED_NBYTES = 2 * CALL_NBYTES  # the socket accepts this many, even if they are not read
ANSWER_NBYTES = 1 << 30  # observations go through Ray if they are large, but infos may be of any size
_CHUNK_NBYTES = 1 << 18


class SocketClient:
    """The driver's end of a direct connection. After the constructor, no method waits for the actor.

    address, key: those of the actor's ``SocketServer``. Raises OSError as ``util.sockets.connect`` does.
    """

    def __init__(self, address: Address, key: bytes) -> None:
        self._socket = connect(address, key)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNANSWERED_NBYTES)
        self._unanswered: deque[int] = deque()  # bytes of each unanswered call
        self._incoming = bytearray()
        self._due: int | None = None  # bytes of the partially received answer

    def fileno(self) -> int:
        return self._socket.fileno()

    def takes(self, call: bytes) -> bool:
        """Return whether a call can be sent without waiting until the actor has read earlier ones."""
        return len(call) <= CALL_NBYTES and sum(self._unanswered) + len(call) <= UNANSWERED_NBYTES

    def send(self, call: bytes) -> None:
        """Send a call for which ``takes`` is True. Raises OSError if the other end is gone."""
        self._unanswered.append(len(call))
        send_frame(self._socket, call)

    def receive(self) -> bytes | None:
        """Return the next answer, or None if it has not fully arrived.

        Raises EOFError or OSError if the other end is gone.
        """
        if self._due is None:
            header = self._complete(HEADER_NBYTES)
            if header is None:
                return None
            self._due = frame_nbytes(header, ANSWER_NBYTES)
        answer = self._complete(self._due)
        if answer is not None:
            self._due = None
            self._unanswered.popleft()
        return answer

    def _complete(self, nbytes: int) -> bytes | None:
        """Return the next nbytes bytes, or None if they have not all arrived."""
        incoming = self._incoming
        while len(incoming) < nbytes:
            try:
                data = self._socket.recv(min(nbytes - len(incoming), _CHUNK_NBYTES), socket.MSG_DONTWAIT)
            except BlockingIOError:
                return None
            if not data:
                raise EOFError
            incoming += data
        data = bytes(incoming)
        incoming.clear()
        return data

    def close(self) -> None:
        self._socket.close()


class SocketServer:
    """The actor's end, which answers each call with ``answer(call)``, up to ``num_threads`` calls at a time.

    host, key: as for ``util.sockets.Listener``. Raises OSError if it cannot listen on ``host``.
    """

    def __init__(self, host: str, key: bytes, answer: Callable[[bytes], bytes], num_threads: int) -> None:
        self._listener = Listener(host, key)
        self.address = self._listener.address
        self._answer, self._num_threads = answer, num_threads
        self._reads, self._writes = threading.Lock(), threading.Condition()
        self._num_read = self._num_sent = 0
        self._over: SimpleQueue[BaseException | None] = SimpleQueue()

    def serve(self) -> None:
        """Accept one client and answer its calls until it disconnects. Raises any exception that ``answer`` raises."""
        with closing(self._listener):
            theirs = self._listener.accept()
        with theirs:
            for _ in range(self._num_threads):
                threading.Thread(target=self._answer_calls, args=[theirs], daemon=True).start()
            error = self._over.get()
            with suppress(OSError):
                theirs.shutdown(socket.SHUT_RDWR)  # one of the threads is still reading
        if error is not None:
            raise error

    def _answer_calls(self, theirs: socket.socket) -> None:
        """Answer calls, taking turns with the other threads: one reads while others answer."""
        try:
            while True:
                with self._reads:
                    call, number = receive_frame(theirs, CALL_NBYTES), self._num_read
                    self._num_read += 1
                try:
                    answer = self._answer(call)
                except BaseException as error:
                    self._over.put(error)
                    return
                self._send(theirs, answer, number)
        except (EOFError, OSError):
            self._over.put(None)

    def _send(self, theirs: socket.socket, answer: bytes, number: int) -> None:
        """Send the answer to call ``number`` once all earlier calls' answers have been sent."""
        with self._writes:
            while self._num_sent != number:
                self._writes.wait()
            send_frame(theirs, answer)
            self._num_sent += 1
            self._writes.notify_all()
