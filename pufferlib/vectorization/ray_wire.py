"""The wire: a connection straight to an actor, over which calls and answers go that are small.

A call of Ray's takes a millisecond there and back, whatever it carries; over a socket it takes a tenth. Ray places
actors, tells their deaths, and carries what is large, through its object store. An actor that no connection reaches is
called through Ray alone.

Actor: ``Door`` listens, lets in whoever knows its key, which travels through Ray, and answers calls. Driver: ``Wire``.
"""

from __future__ import annotations

import hmac
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from queue import SimpleQueue

__all__ = ["CALL_NBYTES", "Address", "Door", "Wire", "new_key"]

CALL_NBYTES = 64 << 10  # larger calls go by Ray: nobody waits here until an actor has read them
CONNECT_S = 3.0
KEY_NBYTES = 32
LET_IN = b"\x06"

Address = tuple[str, int]


class Wire:
    """The driver's end. key: that the actor's ``Door`` was given.

    Raises OSError if there is no connection, or none that knows the key, within CONNECT_S.
    """

    def __init__(self, address: Address, key: bytes) -> None:
        with socket.create_connection(address, CONNECT_S) as ours:
            ours.sendall(key)
            if ours.recv(1) != LET_IN:
                raise ConnectionError("nobody is let in there")
            self._connection = connection_of(ours)

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, call: bytes) -> None:
        """Send a call of CALL_NBYTES at most. Raises OSError if the other end is gone."""
        self._connection.send_bytes(call)

    def receive(self) -> bytes:
        """Return the next answer. Raises EOFError or OSError if the other end is gone."""
        return self._connection.recv_bytes()

    def close(self) -> None:
        self._connection.close()


class Door:
    """The actor's end: answers each call with ``answer(call)``, ``num_threads`` of them at a time.

    host: the address of this machine to listen at. Raises OSError where that is impossible.
    """

    def __init__(self, host: str, key: bytes, answer: Callable[[bytes], bytes], num_threads: int) -> None:
        self._listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        self.address: Address = self._listener.getsockname()[:2]
        self._key, self._answer, self._num_threads = key, answer, num_threads
        self._reads, self._writes = threading.Lock(), threading.Condition()
        self._num_read = self._num_sent = 0
        self._over: SimpleQueue[BaseException | None] = SimpleQueue()

    def serve(self) -> None:
        """Let one in, answer its calls until it goes, and raise what ``answer`` has raised."""
        with self._listener:
            theirs = self._let_in()
        with theirs, connection_of(theirs) as connection:
            for _ in range(self._num_threads):
                threading.Thread(target=self._answer_calls, args=[connection], daemon=True).start()
            error = self._over.get()
            with suppress(OSError):
                theirs.shutdown(socket.SHUT_RDWR)  # one of the threads still reads
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

    def _answer_calls(self, connection: Connection) -> None:
        """Take calls in turn with the other threads: one reads while others answer."""
        try:
            while True:
                with self._reads:
                    call, number = connection.recv_bytes(), self._num_read
                    self._num_read += 1
                try:
                    answer = self._answer(call)
                except BaseException as error:
                    self._over.put(error)
                    return
                self._send(connection, answer, number)
        except (EOFError, OSError):
            self._over.put(None)

    def _send(self, connection: Connection, answer: bytes, number: int) -> None:
        """Send an answer once those to all earlier calls are sent."""
        with self._writes:
            while self._num_sent != number:
                self._writes.wait()
            connection.send_bytes(answer)
            self._num_sent += 1
            self._writes.notify_all()


def connection_of(connected: socket.socket) -> Connection:
    """Return a connection that sends whole messages, and at once."""
    connected.settimeout(None)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Connection(connected.dup().detach())


def new_key() -> bytes:
    return os.urandom(KEY_NBYTES)
