"""Calls: the calls in flight to each actor, over its socket or through Ray, and their answers.

backend.py makes the calls and reads the answers; this file does not know their content.
"""

from __future__ import annotations

import selectors
import time
import warnings
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pufferlib.vectorization.core.backend import SLICE_S
from pufferlib.vectorization.ray.connection import Connection
from pufferlib.vectorization.ray.sockets import Address, SocketClient, new_key
from pufferlib.vectorization.worker.worker import WorkerTask

__all__ = ["ActorHandle", "Calls"]

ASK_S = 0.002  # how often Ray is asked for answers where wires have some, and how long where they are waited for, too
DEATH_S = 1.0  # for Ray to tell that an actor has died to which there was no connection


@dataclass(eq=False)
class ActorHandle:
    """The driver's record of one actor. tasks: of its workers.

    handle: None while it is dead. calls: (kind, Ray's reference) of each call in flight, in order. more: whether it has
    further work under way. begun_s: when its placement began, None once it is placed. held: requests to send then. key:
    of its SocketServer. client: the connection to it, if there is one; calls over it have None for a reference.
    serving: the reference of Ray's call that lasts as long as the connection.
    """

    index: int
    tasks: list[WorkerTask]
    handle: Any = None
    generation: int = 0
    number: int = 0
    calls: deque[tuple[str, Any]] = field(default_factory=deque)
    more: bool = False
    location: str = ""
    begun_s: float | None = None
    held: list[list[Any]] = field(default_factory=list)
    key: bytes = b""
    client: SocketClient | None = None
    serving: Any = None

    @property
    def env_ids(self) -> range:
        return range(self.tasks[0].env_ids.start, self.tasks[-1].env_ids.stop)

    @property
    def workers(self) -> range:
        return range(self.tasks[0].worker, self.tasks[-1].worker + 1)


class Calls:
    """The calls of one driver to its actors. Those to one actor are answered in order."""

    def __init__(self, connection: Connection, actors: Sequence[ActorHandle]) -> None:
        self._connection = connection
        self._ray = connection.ray
        self._waiting = list(actors)  # the actor that answered last is polled last
        self._clients = selectors.DefaultSelector()
        self._direct = True
        self._asked_s = self._looked_s = 0.0  # when Ray was asked last for answers, and for the ends of wires

    # ------------------------------------------------------------------------------------------------ there

    def send(self, actor: ActorHandle, call: bytes) -> None:
        """Send an actor an ``exchange`` call, which executes a request and returns the results so far."""
        if actor.client is not None and actor.client.takes(call):
            with suppress(OSError):  # its end is heard where answers are
                actor.client.send(call)
            actor.calls.append(("exchange", None))
        else:
            actor.calls.append(("exchange", actor.handle.exchange.remote(call)))

    def ask_for_client(self, actor: ActorHandle) -> None:
        """Request an actor to listen, unless an actor turned out to be unreachable."""
        if self._direct:
            actor.key = new_key()
            actor.calls.append(("listen", actor.handle.listen.remote(actor.key)))

    def _connect(self, actor: ActorHandle, address: Address | None) -> None:
        """Connect to an actor for small calls, unless an actor turned out to be unreachable."""
        if address is None or not self._direct:
            return
        serving = actor.handle.serve.remote()
        try:
            actor.client = SocketClient(address, actor.key)
        except OSError as error:
            if self._ray.wait([serving], timeout=DEATH_S)[0]:  # there is nobody to be reached, as its calls say
                return
            self._direct = False
            host, port = address
            warnings.warn(
                f"actor {actor.index}{actor.location} cannot be reached directly at {host}:{port} ({error}); calls go "
                "through Ray, which takes a millisecond for each. Nodes must be able to connect to each other's ports",
                RuntimeWarning,
                stacklevel=2,
            )
            return
        actor.serving = serving
        self._clients.register(actor.client, selectors.EVENT_READ, actor)

    # ------------------------------------------------------------------------------------------------- back

    def wait(self, timeout_s: float) -> list[ActorHandle]:
        """Return the actors of which a call is back, waiting a little for the first."""
        heads = {actor.calls[0][1]: actor for actor in self._waiting if actor.calls}
        direct = heads.pop(None, None) is not None
        ready = self._await_clients(0.0 if heads else timeout_s)
        if not heads or (ready and time.monotonic() - self._asked_s < ASK_S):
            return ready
        wait_s = 0.0 if ready else min(timeout_s, ASK_S) if direct else timeout_s
        done, left = self._ray.wait(list(heads), timeout=wait_s)
        if done and len(left) > 1:  # asking takes 0.1 ms: of two, the other is asked first the next time
            done += self._ray.wait(left, num_returns=len(left), timeout=0)[0]
        self._asked_s = time.monotonic()
        heard = {heads[ref]: None for ref in done}
        others = [actor for actor in self._waiting if actor not in heard]
        self._waiting = [*others, *heard]  # at once, should Ctrl-C come
        return [*ready, *heard]

    def _await_clients(self, timeout_s: float) -> list[ActorHandle]:
        """The same of calls that went directly, or of their wires' ends."""
        if not self._clients.get_map():
            time.sleep(timeout_s)
            return []
        readable: list[ActorHandle] = [key.data for key, _ in self._clients.select(timeout_s)]
        now_s = time.monotonic()
        if now_s - self._looked_s >= SLICE_S:  # a machine that is gone says nothing, but Ray does
            self._looked_s = now_s
            silent = set(self._waiting).difference(readable)
            serving = {actor.serving: actor for actor in silent if actor.client is not None}
            for ref in self._ray.wait(list(serving), num_returns=len(serving), timeout=0)[0] if serving else []:
                self.cut(serving[ref])
        return [actor for actor in readable if not actor.calls or actor.calls[0][1] is None]

    def take(self, actor: ActorHandle) -> tuple[str, Any]:
        """Return what the first call on its way to an actor was for, and its answer. Raises RayError.

        What concerns nobody else is ("", None), as is a wire's end; "serve" is what it ends with.
        """
        if not actor.calls or actor.calls[0][1] is None:
            return self._take_directly(actor)
        kind, ref = actor.calls.popleft()
        answer = self._ray.get(ref)
        if kind == "listen":
            self._connect(actor, answer)
            return "", None
        return kind, answer

    def _take_directly(self, actor: ActorHandle) -> tuple[str, Any]:
        assert actor.client is not None
        try:
            answer = actor.client.receive()
        except (EOFError, OSError):
            self.cut(actor)
            return "", None
        if answer is None:  # the rest of it is on its way
            return "", None
        return actor.calls.popleft()[0], answer

    # ----------------------------------------------------------------------------------------------- ending

    def cut(self, actor: ActorHandle) -> None:
        """Forget the wire to an actor, and what was to come over it: the end of ``serve`` says what has happened."""
        if actor.client is not None:
            with suppress(KeyError, ValueError):  # Ctrl-C came before it was registered, or after it was not any more
                self._clients.unregister(actor.client)
            actor.client.close()
            actor.client = None
            actor.calls = deque([("serve", actor.serving)])

    def kill(self, actor: ActorHandle) -> None:
        """End an actor, and forget what was under way."""
        handle, actor.handle = actor.handle, None
        self.cut(actor)
        actor.calls.clear()
        actor.more, actor.begun_s = False, None
        if handle is not None and self._connection.alive():  # else Ray would start another one, to be told
            self._ray.kill(handle)

    def close(self) -> None:
        for actor in self._waiting:
            self.cut(actor)
        self._clients.close()
