"""The wire to an actor, without Ray: whom it lets in, the order of answers, and how one end learns of the other's."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from pufferlib.vectorization.ray_wire import Door, Wire, new_key


@contextmanager
def served(answer: Callable[[bytes], bytes]) -> Iterator[tuple[Wire, Future[None]]]:
    """A wire, and what becomes of the door at its end."""
    key = new_key()
    door = Door("127.0.0.1", key, answer, 3)
    with ThreadPoolExecutor(1) as threads:
        end = threads.submit(door.serve)
        wire = Wire(door.address, key)
        try:
            yield wire, end
        finally:
            wire.close()


def test_answers_come_in_the_order_of_their_calls() -> None:
    second = threading.Event()

    def answer(call: bytes) -> bytes:
        if call == b"2":
            second.set()
        else:
            assert second.wait(30)
        return call * 2

    with served(answer) as (wire, end):
        wire.send(b"1")
        wire.send(b"2")
        assert [wire.receive(), wire.receive()] == [b"11", b"22"]
    assert end.result(30) is None


def test_what_a_call_raises_ends_the_wire() -> None:
    def answer(call: bytes) -> bytes:
        raise OSError(f"cannot answer {call!r}")  # not one of the connection's own

    with served(answer) as (wire, end):
        wire.send(b"1")
        with pytest.raises((EOFError, OSError)):
            wire.receive()
        with pytest.raises(OSError, match="cannot answer b'1'"):
            end.result(30)


def test_only_who_knows_the_key_is_let_in() -> None:
    key = new_key()
    door = Door("127.0.0.1", key, bytes.upper, 3)
    with ThreadPoolExecutor(1) as threads:
        end = threads.submit(door.serve)
        with pytest.raises(OSError):
            Wire(door.address, new_key())
        with socket.create_connection(door.address) as hasty:
            hasty.sendall(key[:5])  # and goes
        wire = Wire(door.address, key)
        with pytest.raises(OSError):  # one is enough
            Wire(door.address, key)
        wire.send(b"a")
        assert wire.receive() == b"A"
        wire.close()
        assert end.result(30) is None
