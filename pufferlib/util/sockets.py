"""Authenticated sockets: each end proves with HMAC-SHA-256 that it has the key, which is never sent.

The listener sends a challenge, the other end answers with a challenge of its own and a digest of both, and the listener
answers with another digest of both. Frames that follow are neither signed nor encrypted: the handshake keeps out peers
without the key, but not attackers who can read or alter the network's traffic.

multiprocessing.connection is unsuitable here: its ``accept`` waits for the handshake of one peer at a time, so that one
silent peer blocks all others, and before Python 3.12 it uses MD5.
"""

from __future__ import annotations

import errno
import hmac
import os
import selectors
import socket
import struct
import time
from typing import NamedTuple

__all__ = [
    "HEADER_NBYTES",
    "Address",
    "Listener",
    "connect",
    "frame_nbytes",
    "new_key",
    "receive_frame",
    "send_frame",
]

CONNECT_S = 3.0
HANDSHAKE_S = 10.0  # for each end, from its connection on
RETRY_S = 0.05  # where no descriptor is free for a peer
MOST_PEERS = 64  # in a handshake at a time; with more, the oldest is dropped
NBYTES = 32  # of a key, a challenge and a digest

_HEADER = struct.Struct("!Q")  # the length of the content that follows
HEADER_NBYTES = _HEADER.size

Address = tuple[str, int]


class Peer(NamedTuple):
    """A peer in its handshake. received: the bytes received so far."""

    socket: socket.socket
    challenge: bytes
    received: bytearray
    deadline_s: float


class Listener:
    """A socket that listens for peers with the key, on a free port.

    host: the address of this machine to listen on. key: NBYTES bytes. Raises OSError if it cannot listen there.
    """

    def __init__(self, host: str, key: bytes) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, 0), family=family, backlog=2 * MOST_PEERS)
        self._socket.setblocking(False)
        self.address: Address = self._socket.getsockname()[:2]
        self._key = key
        self._peers: list[Peer] = []  # the oldest first
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)

    def accept(self, timeout_s: float | None = None) -> socket.socket:
        """Wait for a peer that has the key, and return its socket, which blocks without a timeout and sends at once.

        A peer is dropped if its handshake fails or takes longer than HANDSHAKE_S seconds, or if it is the oldest of
        more than MOST_PEERS peers in a handshake. Peers do not delay each other. Raises TimeoutError if no peer has
        proved within timeout_s seconds that it has the key; None means no limit.
        """
        deadline_s = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        while True:
            now_s = time.monotonic()
            while self._peers and self._peers[0].deadline_s <= now_s:
                self._drop(self._peers[0])
            if now_s > deadline_s:
                raise TimeoutError(f"no peer with the key has connected to {self.address} within {timeout_s} s")
            until_s = min(deadline_s, self._peers[0].deadline_s if self._peers else deadline_s)
            for selected, _ in self._selector.select(None if until_s == float("inf") else until_s - now_s):
                if selected.data is None:
                    self._greet()
                elif selected.data in self._peers and self._has_key(selected.data):
                    accepted: Peer = selected.data
                    self._forget(accepted)
                    make_prompt(accepted.socket)
                    return accepted.socket

    def _greet(self) -> None:
        """Begin the handshake of the next peer that has connected.

        If MOST_PEERS peers are in a handshake already, drops the oldest first. If no file descriptor is free for the
        new peer, drops the oldest instead or, if there is none, waits for RETRY_S seconds.
        """
        try:
            connected, _ = self._socket.accept()
        except OSError as error:  # it has gone already, or no descriptor is free
            if error.errno in (errno.EMFILE, errno.ENFILE):
                if self._peers:
                    self._drop(self._peers[0])
                else:
                    time.sleep(RETRY_S)
            return
        if len(self._peers) == MOST_PEERS:
            self._drop(self._peers[0])
        peer = Peer(connected, os.urandom(NBYTES), bytearray(), time.monotonic() + HANDSHAKE_S)
        self._peers.append(peer)
        connected.setblocking(False)
        self._selector.register(connected, selectors.EVENT_READ, peer)
        try:
            connected.sendall(peer.challenge)
        except OSError:
            self._drop(peer)

    def _has_key(self, peer: Peer) -> bool:
        """Read what a peer has sent, and return whether it has now proved that it has the key.

        If the peer has proved it, sends this end's own proof; if the handshake has failed, drops the peer.
        """
        try:
            data = peer.socket.recv(2 * NBYTES - len(peer.received))
            if not data:
                raise ConnectionError
            peer.received.extend(data)
            if len(peer.received) < 2 * NBYTES:
                return False
            challenge, digest = bytes(peer.received[:NBYTES]), bytes(peer.received[NBYTES:])
            if not hmac.compare_digest(digest, _digest(self._key, b"connect", peer.challenge, challenge)):
                raise ConnectionError
            peer.socket.sendall(_digest(self._key, b"listen", peer.challenge, challenge))
        except BlockingIOError:
            return False
        except OSError:
            self._drop(peer)
            return False
        return True

    def _forget(self, peer: Peer) -> None:
        self._peers.remove(peer)
        self._selector.unregister(peer.socket)

    def _drop(self, peer: Peer) -> None:
        self._forget(peer)
        peer.socket.close()

    def close(self) -> None:
        """Close the listening socket and the sockets of peers in their handshake, but no socket already returned."""
        for peer in list(self._peers):
            self._drop(peer)
        self._selector.close()
        self._socket.close()


def connect(address: Address, key: bytes) -> socket.socket:
    """Connect to a Listener with the same key; return a socket that blocks without a timeout and sends at once.

    Raises OSError if it cannot connect within CONNECT_S seconds, or if the handshake fails or takes longer than
    HANDSHAKE_S seconds.
    """
    connected = socket.create_connection(address, CONNECT_S)
    try:
        deadline_s = time.monotonic() + HANDSHAKE_S
        theirs = _receive(connected, NBYTES, deadline_s)
        ours = os.urandom(NBYTES)
        connected.sendall(ours + _digest(key, b"connect", theirs, ours))
        digest = _receive(connected, NBYTES, deadline_s)
        if not hmac.compare_digest(digest, _digest(key, b"listen", theirs, ours)):
            raise ConnectionError(f"{address} does not have the key")
        make_prompt(connected)
    except EOFError:
        connected.close()
        raise ConnectionError(f"{address} ended the handshake; it may have another key, or too many peers") from None
    except BaseException:
        connected.close()
        raise
    return connected


def _digest(key: bytes, end: bytes, listeners: bytes, connecting: bytes) -> bytes:
    """Return the digest with which an end proves that it has the key.

    end: b"listen" or b"connect". listeners, connecting: the challenges of the two ends.
    """
    return hmac.digest(key, end + listeners + connecting, "sha256")


def send_frame(connected: socket.socket, content: bytes) -> None:
    """Send content as a frame, preceded by its length. Raises OSError if the other end is gone."""
    connected.sendall(_HEADER.pack(len(content)) + content)


def receive_frame(connected: socket.socket, most_nbytes: int) -> bytes:
    """Wait for a frame and return its content.

    Raises EOFError or OSError if the other end is gone, ConnectionError if the frame has more than most_nbytes bytes.
    """
    return _receive(connected, frame_nbytes(_receive(connected, _HEADER.size), most_nbytes))


def frame_nbytes(header: bytes, most_nbytes: int) -> int:
    """Return the length that a frame's header announces. Raises ConnectionError if it is more than most_nbytes."""
    (nbytes,) = _HEADER.unpack(header)
    if nbytes > most_nbytes:
        raise ConnectionError(f"a frame of {nbytes} bytes was announced, and {most_nbytes} are allowed")
    return int(nbytes)


def _receive(connected: socket.socket, nbytes: int, deadline_s: float | None = None) -> bytes:
    """Wait for nbytes bytes and return them. Raises EOFError or OSError if the other end goes away first.

    deadline_s: the monotonic time after which TimeoutError is raised; None means no limit.
    """
    data = bytearray()
    while len(data) < nbytes:
        if deadline_s is not None:
            connected.settimeout(max(1e-3, deadline_s - time.monotonic()))
        part = connected.recv(nbytes - len(data))
        if not part:
            raise EOFError
        data += part
    return bytes(data)


def make_prompt(connected: socket.socket) -> None:
    """Set a socket to block without a timeout, and to send small data at once (TCP_NODELAY)."""
    connected.settimeout(None)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def new_key() -> bytes:
    """Return a random key."""
    return os.urandom(NBYTES)
