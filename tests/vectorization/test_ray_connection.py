"""The connection to an actor, without Ray: its key, the order of answers, and what one end learns of the other's end;
and which answers the driver gets when it calls some actors directly and some through Ray."""

from __future__ import annotations

import select
import selectors
import socket
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from pufferlib.util.sockets import Listener, new_key
from pufferlib.vectorization.ray import calls as ray_calls
from pufferlib.vectorization.ray.sockets import CALL_NBYTES, SocketClient, SocketServer

pytestmark = pytest.mark.beside


@contextmanager
def served(answer: Callable[[bytes], bytes]) -> Iterator[tuple[SocketClient, Future[None]]]:
    """Yield a connection, and the future of its server."""
    key = new_key()
    server = SocketServer("127.0.0.1", key, answer, 3)
    with ThreadPoolExecutor(1) as threads:
        end = threads.submit(server.serve)
        client = SocketClient(server.address, key)
        try:
            yield client, end
        finally:
            client.close()


def answer_to(client: SocketClient) -> bytes:
    """The next answer, waited for."""
    while (answer := client.receive()) is None:
        assert select.select([client], [], [], 30)[0]
    return answer


def test_answers_come_in_the_order_of_their_calls() -> None:
    second = threading.Event()

    def answer(call: bytes) -> bytes:
        if call == b"2":
            second.set()
        else:
            assert second.wait(30)
        return call * 2

    with served(answer) as (client, end):
        client.send(b"1")
        client.send(b"2")
        assert [answer_to(client), answer_to(client)] == [b"11", b"22"]
    assert end.result(30) is None


def test_what_a_call_raises_ends_the_connection() -> None:
    def answer(call: bytes) -> bytes:
        raise OSError(f"cannot answer {call!r}")  # not one of the connection's own

    with served(answer) as (client, end):
        client.send(b"1")
        with pytest.raises((EOFError, OSError)):
            answer_to(client)
        with pytest.raises(OSError, match="cannot answer b'1'"):
            end.result(30)


def test_only_who_knows_the_key_is_let_in() -> None:
    key = new_key()
    server = SocketServer("127.0.0.1", key, bytes.upper, 3)
    with ThreadPoolExecutor(1) as threads:
        end = threads.submit(server.serve)
        with pytest.raises(OSError):
            SocketClient(server.address, new_key())
        with socket.create_connection(server.address) as hasty:
            hasty.sendall(bytes(5))  # and goes
        client = SocketClient(server.address, key)
        with pytest.raises(OSError):  # one is enough
            SocketClient(server.address, key)
        client.send(b"a")
        assert answer_to(client) == b"A"
        client.close()
        assert end.result(30) is None


def test_a_driver_waits_for_nothing_of_an_actor_that_stands_still() -> None:
    """Neither for the rest of an answer that has begun to come, nor for calls to be read."""
    key = new_key()
    with closing(Listener("127.0.0.1", key)) as listener, ThreadPoolExecutor(1) as threads:
        connecting = threads.submit(SocketClient, listener.address, key)
        with listener.accept() as theirs:
            client = connecting.result(30)
            num_sent, call = 0, bytes(CALL_NBYTES - 1)
            while client.takes(call):
                client.send(call)
                num_sent += 1
            assert num_sent == 2
            assert not client.takes(bytes(CALL_NBYTES + 1))
            answer = bytes(5) + b"!" * 300_000
            message = len(answer).to_bytes(8, "big") + answer
            for begin, end in [(0, 3), (3, 10), (10, 250_000)]:
                theirs.sendall(message[begin:end])
                assert select.select([client], [], [], 30)[0]
                assert client.receive() is None
            theirs.sendall(message[250_000:] + message)
            assert answer_to(client) == answer_to(client) == answer
            assert client.takes(call)
        client.close()


class FakeRay:
    """Of Ray there is only ``wait``: calls that are ``back``."""

    def __init__(self, *back: str) -> None:
        self.back = back

    def wait(self, calls: list[str], num_returns: int = 1, timeout: float | None = None) -> tuple[list[str], list[str]]:
        return [call for call in calls if call in self.back], [call for call in calls if call not in self.back]


@contextmanager
def driver(fake: FakeRay, num_actors: int) -> Iterator[tuple[ray_calls.Calls, list[ray_calls.ActorHandle]]]:
    actors = [ray_calls.ActorHandle(index, []) for index in range(num_actors)]
    calls = ray_calls.Calls(fake, actors)
    yield calls, actors
    calls.close()


def test_a_direct_answer_keeps_no_other_actor_waiting() -> None:
    """One has always an answer; one is called through Ray; the machine of one is gone, which only Ray knows."""
    fake = FakeRay("call of ray", "serve of gone")
    with driver(fake, 3) as (calls, actors):
        quick, other, gone = actors
        pairs = [socket.socketpair(), socket.socketpair()]
        for actor, name, (ours, _) in zip([quick, gone], ["quick", "gone"], pairs, strict=True):
            client: Any = ours
            actor.client, actor.serving = client, f"serve of {name}"
            actor.calls.append(("exchange", None))
            calls._clients.register(ours, selectors.EVENT_READ, actor)
        other.calls.append(("exchange", "call of ray"))
        pairs[0][1].sendall(b"answer")
        assert calls.wait(30.0) == [quick, other]
        assert gone.client is None and list(gone.calls) == [("serve", "serve of gone")]
        for pair in pairs:
            for end in pair:
                end.close()


def test_an_actor_that_died_before_it_was_reached_is_none_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: Any) -> None:
        raise ConnectionRefusedError("nobody listens")

    monkeypatch.setattr(ray_calls, "SocketClient", refused)
    fake = FakeRay("serve")
    with driver(fake, 1) as (calls, [actor]):
        actor.handle = SimpleNamespace(serve=SimpleNamespace(remote=lambda: "serve"))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            calls._connect(actor, ("127.0.0.1", 1))
        fake.back = ()
        with pytest.warns(RuntimeWarning, match="cannot be reached directly"):
            calls._connect(actor, ("127.0.0.1", 1))


def test_ctrl_c_before_a_connection_is_registered_leaves_one_that_can_be_cut() -> None:
    with driver(FakeRay(), 1) as (calls, [actor]), served(bytes.upper) as (client, _):
        actor.client = client
        calls.cut(actor)
        assert actor.client is None
