"""A direct connection to an actor, for small calls and answers.

A round trip through Ray takes a millisecond for any content; over a socket it takes a tenth of that. Ray places actors,
reports their deaths, and carries large content through its object store. An actor that cannot be reached by a socket is
called only through Ray.

The actor's end is a ``SocketServer``: it accepts a client that sends the right key, which Ray has carried to the actor,
and answers calls. The driver's end is a ``SocketClient``.
"""

from __future__ import annotations

import hmac
import os
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue

__all__ = ["CALL_NBYTES", "Address", "SocketClient", "SocketServer", "new_key"]

CALL_NBYTES = 64 << 10  # larger calls go through Ray, so that the driver never waits until an actor has read them
UNANSWERED_NBYTES = 2 * CALL_NBYTES  # the socket accepts this many, even if they are not read
CONNECT_S = 3.0
LET_IN_S = 10.0  # a reachable machine may be busy, or waiting CONNECT_S for the key of a client without one
KEY_NBYTES = 32
LET_IN = b"\x06"

_HEADER = struct.Struct("!Q")  # the length of the content that follows
_CHUNK_NBYTES = 1 << 18

Address = tuple[str, int]


class SocketClient:
    """The driver's end of a direct connection. Once accepted, it never waits for the actor.

    address, key: those of the actor's ``SocketServer``. Raises OSError if it cannot connect within CONNECT_S seconds or
    is not accepted within LET_IN_S seconds.
    """

    def __init__(self, address: Address, key: bytes) -> None:
        self._socket = ours = socket.create_connection(address, CONNECT_S)
        try:
            ours.settimeout(LET_IN_S)
            ours.sendall(key)
            if ours.recv(1) != LET_IN:
                raise ConnectionError("nobody is let in there")
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNANSWERED_NBYTES)
            make_prompt(ours)
        except BaseException:
            ours.close()
            raise
        self._unanswered: deque[int] = deque()  # bytes of each unanswered call
        self._incoming = bytearray()
        self._due: int | None = None  # bytes of the partially received answer

    def fileno(self) -> int:
        return self._socket.fileno()

    def takes(self, call: bytes) -> bool:
        """Return whether a call can be sent without waiting until the actor has read earlier ones."""
        return len(call) <= CALL_NBYTES and sum(self._unanswered) + len(call) <= UNANSWERED_NBYTES

    def send(self, call: bytes) -> None:
        """Send a call that it ``takes``. Raises OSError if the other end is gone."""
        self._unanswered.append(len(call))
        self._socket.sendall(_HEADER.pack(len(call)) + call)

    def receive(self) -> bytes | None:
        """Return the next answer, or None if it has not fully arrived.

        Raises EOFError or OSError if the other end is gone.
        """
        if self._due is None:
            header = self._complete(_HEADER.size)
            if header is None:
                return None
            (self._due,) = _HEADER.unpack(header)
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

    host: the address of this machine to listen on. key: the bytes that a client must send to be accepted. Raises
    OSError if it cannot listen there.
    """

    def __init__(self, host: str, key: bytes, answer: Callable[[bytes], bytes], num_threads: int) -> None:
        self._listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        self.address: Address = self._listener.getsockname()[:2]
        self._key, self._answer, self._num_threads = key, answer, num_threads
        self._reads, self._writes = threading.Lock(), threading.Condition()
        self._num_read = self._num_sent = 0
        self._over: SimpleQueue[BaseException | None] = SimpleQueue()

    def serve(self) -> None:
        """Accept one client and answer its calls until it disconnects. Raises any exception that ``answer`` raises."""
        with self._listener:
            theirs = self._let_in()
        make_prompt(theirs)
        with theirs:
            for _ in range(self._num_threads):
                threading.Thread(target=self._answer_calls, args=[theirs], daemon=True).start()
            error = self._over.get()
            with suppress(OSError):
                theirs.shutdown(socket.SHUT_RDWR)  # one of the threads is still reading
        if error is not None:
            raise error

    def _let_in(self) -> socket.socket:
        while True:
            theirs, _ = self._listener.accept()
            theirs.settimeout(CONNECT_S)
            try:
                with theirs.makefile("rb") as file:
                    key = file.read(KEY_NBYTES)
                if hmac.compare_digest(key, self._key):
                    theirs.sendall(LET_IN)
                    return theirs
            except OSError:
                pass
            theirs.close()

    def _answer_calls(self, theirs: socket.socket) -> None:
        """Answer calls, taking turns with the other threads: one reads while others answer."""
        try:
            while True:
                with self._reads:
                    (nbytes,) = _HEADER.unpack(_read(theirs, _HEADER.size))
                    call, number = _read(theirs, nbytes), self._num_read
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
            theirs.sendall(_HEADER.pack(len(answer)) + answer)
            self._num_sent += 1
            self._writes.notify_all()


def make_prompt(connected: socket.socket) -> None:
    """Set a socket to wait without a timeout, and to send small data at once."""
    connected.settimeout(None)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _read(theirs: socket.socket, nbytes: int) -> bytes:
    """Wait for nbytes bytes and return them. Raises EOFError or OSError if the other end goes away first."""
    data = b""
    while len(data) < nbytes:
        part = theirs.recv(nbytes - len(data), socket.MSG_WAITALL)
        if not part:
            raise EOFError
        data += part
    return data


def new_key() -> bytes:
    return os.urandom(KEY_NBYTES)
