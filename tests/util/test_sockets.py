"""Only a peer with the key gets in, and no other peer keeps it waiting."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from pufferlib.util import sockets
from pufferlib.util.sockets import NBYTES, Listener, connect, new_key, receive_frame, send_frame

pytestmark = pytest.mark.beside


@contextlib.contextmanager
def listening(key: bytes) -> Iterator[tuple[Listener, Future[socket.socket]]]:
    """Yield a listener and the future of the first peer that it accepts; close both."""
    listener = Listener("127.0.0.1", key)
    with ThreadPoolExecutor(1) as threads:
        accepted = threads.submit(listener.accept, 60.0)
        try:
            yield listener, accepted
        finally:
            if not accepted.done():
                with contextlib.suppress(OSError):
                    connect(listener.address, key).close()
            accepted.result(30).close()
            listener.close()


def ended(peer: socket.socket, within_s: float = 30.0) -> bool:
    """Return whether the other end closes within some seconds, and sends nothing but its challenge until then."""
    peer.settimeout(within_s)
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while data := peer.recv(1000):
            received += data
    return len(received) in (0, NBYTES)


def test_both_ends_exchange_frames_after_the_handshake() -> None:
    key = new_key()
    with listening(key) as (listener, accepted), connect(listener.address, key) as client:
        server = accepted.result(30)
        send_frame(client, b"to the listener")
        assert receive_frame(server, 100) == b"to the listener"
        send_frame(server, b"")
        assert receive_frame(client, 0) == b""
        server.close()
        with pytest.raises(EOFError):
            receive_frame(client, 100)


def test_a_peer_with_another_key_is_refused_and_so_is_a_listener_with_another() -> None:
    with listening(new_key()) as (listener, _), pytest.raises(ConnectionError, match="ended the handshake"):
        connect(listener.address, new_key())
    with socket.create_server(("127.0.0.1", 0)) as false, ThreadPoolExecutor(1) as threads:
        connecting = threads.submit(connect, false.getsockname(), new_key())
        with false.accept()[0] as peer:
            peer.sendall(bytes(NBYTES))
            assert len(peer.recv(2 * NBYTES, socket.MSG_WAITALL)) == 2 * NBYTES
            peer.sendall(bytes(NBYTES))
            with pytest.raises(ConnectionError, match="does not have the key"):
                connecting.result(30)


def test_the_key_is_not_sent_and_a_recorded_handshake_is_worth_nothing() -> None:
    key = new_key()
    with listening(key) as (listener, accepted), socket.create_server(("127.0.0.1", 0)) as relay:
        with ThreadPoolExecutor(1) as threads:
            connecting = threads.submit(connect, relay.getsockname(), key)
            with relay.accept()[0] as theirs, socket.create_connection(listener.address) as ours:
                challenge = ours.recv(NBYTES, socket.MSG_WAITALL)
                theirs.sendall(challenge)
                answer = theirs.recv(2 * NBYTES, socket.MSG_WAITALL)
                ours.sendall(answer)
                digest = ours.recv(NBYTES, socket.MSG_WAITALL)
                theirs.sendall(digest)
                connecting.result(30).close()
                accepted.result(30)
        assert key not in challenge + answer + digest
    with listening(key) as (listener, accepted):
        for recorded in (answer, answer[:NBYTES] + digest):
            with socket.create_connection(listener.address) as again:
                again.sendall(recorded)
                assert ended(again)
        with socket.create_connection(listener.address) as mirror:  # what the listener itself would send proves nothing
            challenge = mirror.recv(NBYTES, socket.MSG_WAITALL)
            mirror.sendall(challenge + digest)
            assert ended(mirror)
        assert not accepted.done()


def test_silent_slow_and_departed_peers_keep_no_other_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a time limit of its own: bytes that arrive one by one do not extend it."""
    monkeypatch.setattr(sockets, "HANDSHAKE_S", 2.0)
    key = new_key()
    begun_s = time.monotonic()
    with listening(key) as (listener, accepted), contextlib.ExitStack() as stack:
        silent, slow = (stack.enter_context(socket.create_connection(listener.address)) for _ in range(2))
        socket.create_connection(listener.address).close()
        over = threading.Event()

        def trickle() -> None:
            with contextlib.suppress(OSError):
                while not over.wait(0.1):
                    slow.send(b"?")

        thread = threading.Thread(target=trickle)
        thread.start()
        assert ended(silent) and ended(slow)
        assert time.monotonic() - begun_s >= sockets.HANDSHAKE_S
        over.set()
        thread.join()
        monkeypatch.setattr(sockets, "HANDSHAKE_S", 60.0)
        late = stack.enter_context(socket.create_connection(listener.address))  # still in its handshake
        stack.enter_context(connect(listener.address, key))
        accepted.result(30)
        assert len(listener._peers) == 1
        listener.close()
        assert ended(late)


def test_more_peers_than_are_kept_drop_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    key = new_key()
    with listening(key) as (listener, accepted), contextlib.ExitStack() as stack:
        peers = [stack.enter_context(socket.create_connection(listener.address)) for _ in range(sockets.MOST_PEERS + 3)]
        stack.enter_context(connect(listener.address, key))
        accepted.result(30)
        assert all(ended(peer) for peer in peers[:4])
        peers[4].setblocking(False)
        assert peers[4].recv(NBYTES) and len(listener._peers) == sockets.MOST_PEERS - 1


def test_a_frame_that_is_too_long_is_refused_before_it_is_read() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall((1 << 40).to_bytes(8, "big") + b"beginning")
        with pytest.raises(ConnectionError, match="1099511627776 bytes was announced, and 1000 are allowed"):
            receive_frame(ours, 1000)


def test_waiting_for_a_peer_ends() -> None:
    with contextlib.closing(Listener("127.0.0.1", os.urandom(NBYTES))) as listener:
        with pytest.raises(TimeoutError, match="no peer with the key"):
            listener.accept(0.05)


def test_without_a_free_descriptor_the_oldest_peer_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """And without a peer to drop, the listener does not try without a pause."""
    key = new_key()
    with contextlib.closing(Listener("127.0.0.1", key)) as listener, ThreadPoolExecutor(1) as threads:
        silent = socket.create_connection(listener.address)
        with pytest.raises(TimeoutError):
            listener.accept(0.2)
        connecting = threads.submit(connect, listener.address, key)
        accept, refused = listener._socket.accept, 0

        class Full:
            """A listening socket that finds no free descriptor ten times."""

            def accept(self) -> object:
                nonlocal refused
                if refused < 10:
                    refused += 1
                    raise OSError(errno.EMFILE, "Too many open files")
                return accept()

            def close(self) -> None:
                listening.close()

        listening, listener._socket = listener._socket, Full()  # type: ignore[assignment]
        start_s = time.monotonic()
        with listener.accept(30), connecting.result(30):
            assert ended(silent)
            assert refused == 10 and time.monotonic() - start_s > 5 * sockets.RETRY_S
        silent.close()
