"""Calls: send calls to actors, over their sockets or through Ray, and receive the answers.

backend.py makes the calls and reads the answers; their content does not matter here.
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

from pufferlib.util.sockets import Address, new_key
from pufferlib.vectorization.core.backend import SLICE_S
from pufferlib.vectorization.core.messages import EnvSpec
from pufferlib.vectorization.ray.sockets import SocketClient
from pufferlib.vectorization.ray.supervisor import RemoteActor
from pufferlib.vectorization.worker.worker import WorkerTask

__all__ = ["ActorHandle", "Calls"]

ASK_S = 0.002  # how often, and for how long, Ray is asked for answers while sockets may have some as well
DEATH_S = 1.0  # the time for Ray to report the death of an actor that could not be connected to


@dataclass(eq=False)
class ActorHandle(RemoteActor):
    """The driver's record of an actor and of the actors that replace it.

    tasks: the tasks of the actor's workers.
    env_spec: as for ``Backend.start``.
    number: the number of the last ``exchange`` call.
    calls: (kind, Ray's reference) of each call in flight, in order; a call over a socket has None as its reference.
    more: whether the actor has work in progress whose results need another call.
    begun_s: when the actor's placement began, None once it is placed.
    held: requests to send once the actor is placed.
    key: the key of the actor's SocketServer.
    client: the direct connection to the actor, or None.
    serving: Ray's reference to the ``serve`` call, which lasts as long as the direct connection.
    """

    tasks: list[WorkerTask]
    env_spec: EnvSpec | None = None
    number: int = 0
    calls: deque[tuple[str, Any]] = field(default_factory=deque)
    more: bool = False
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
    """The calls of one driver to its actors. Each actor answers its calls in order."""

    def __init__(self, ray: Any, actors: Sequence[ActorHandle]) -> None:
        self._ray = ray
        self._waiting = list(actors)  # the actor that answered last is polled last
        self._clients = selectors.DefaultSelector()
        self._direct = True
        self._asked_s = self._looked_s = 0.0  # when Ray was last asked for answers, and for ended connections

    # ------------------------------------------------------------------------------------------------ there

    def send(self, actor: ActorHandle, call: bytes) -> None:
        """Send an actor an ``exchange`` call: over its socket if ``SocketClient.takes`` allows it, else through Ray."""
        if actor.client is not None and actor.client.takes(call):
            with suppress(OSError):  # the end of the connection is noticed when answers are received
                actor.client.send(call)
            actor.calls.append(("exchange", None))
        else:
            actor.calls.append(("exchange", actor.handle.exchange.remote(call)))

    def ask_for_client(self, actor: ActorHandle) -> None:
        """Ask an actor to listen for a direct connection, unless a direct connection to any actor has failed before."""
        if self._direct:
            actor.key = new_key()
            actor.calls.append(("listen", actor.handle.listen.remote(actor.key)))

    def _connect(self, actor: ActorHandle, address: Address | None) -> None:
        """Connect to an actor for small calls, unless it cannot listen or a direct connection has failed before.

        If the connection fails although the actor lives, warns, and makes no direct connections from then on.
        """
        if address is None or not self._direct:
            return
        serving = actor.handle.serve.remote()
        try:
            actor.client = SocketClient(address, actor.key)
        except OSError as error:
            if self._ray.wait([serving], timeout=DEATH_S)[0]:  # the actor is dead, which its calls report
                return
            self._direct = False
            host, port = address
            warnings.warn(
                f"{actor.name} cannot be reached directly at {host}:{port} ({error}); calls go "
                "through Ray, which takes a millisecond for each. Nodes must be able to connect to each other's ports",
                RuntimeWarning,
                stacklevel=2,
            )
            return
        actor.serving = serving
        self._clients.register(actor.client, selectors.EVENT_READ, actor)

    # ------------------------------------------------------------------------------------------------- back

    def wait(self, timeout_s: float) -> list[ActorHandle]:
        """Return the actors that have answered a call, or whose direct connection has ended.

        Waits up to timeout_s seconds for the first of them.
        """
        heads = {actor.calls[0][1]: actor for actor in self._waiting if actor.calls}
        direct = heads.pop(None, None) is not None
        ready = self._await_clients(0.0 if heads else timeout_s)
        if not heads or (ready and time.monotonic() - self._asked_s < ASK_S):
            return ready
        wait_s = 0.0 if ready else min(timeout_s, ASK_S) if direct else timeout_s
        done, left = self._ray.wait(list(heads), timeout=wait_s)
        if done and len(left) > 1:  # for a single one it is not worth 0.1 ms: it comes first next time
            done += self._ray.wait(left, num_returns=len(left), timeout=0)[0]
        self._asked_s = time.monotonic()
        heard = {heads[ref]: None for ref in done}
        others = [actor for actor in self._waiting if actor not in heard]
        self._waiting = [*others, *heard]  # in one assignment, in case of Ctrl-C
        return [*ready, *heard]

    def _await_clients(self, timeout_s: float) -> list[ActorHandle]:
        """Return the actors with direct answers to read, or whose direct connection has ended.

        Waits up to timeout_s seconds for the first of them.
        """
        if not self._clients.get_map():
            time.sleep(timeout_s)
            return []
        readable: list[ActorHandle] = [key.data for key, _ in self._clients.select(timeout_s)]
        now_s = time.monotonic()
        if now_s - self._looked_s >= SLICE_S:  # a machine that is gone sends nothing, but Ray reports it
            self._looked_s = now_s
            silent = set(self._waiting).difference(readable)
            serving = {actor.serving: actor for actor in silent if actor.client is not None}
            for ref in self._ray.wait(list(serving), num_returns=len(serving), timeout=0)[0] if serving else []:
                self.cut(serving[ref])
        return [actor for actor in readable if not actor.calls or actor.calls[0][1] is None]

    def take(self, actor: ActorHandle) -> tuple[str, Any]:
        """Return the kind and the answer of an actor's oldest call. Raises RayError if the call failed.

        Returns ("", None) if there is nothing for the caller, because the answer is incomplete, belongs to a "listen"
        call, or is missing because the direct connection has ended. In the last case, the only call of the actor that
        remains is "serve".
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
        if answer is None:  # the rest of it has not arrived yet
            return "", None
        return actor.calls.popleft()[0], answer

    # ----------------------------------------------------------------------------------------------- ending

    def cut(self, actor: ActorHandle) -> None:
        """Drop the direct connection to an actor, if there is one, and all calls except ``serve``.

        The end of the ``serve`` call shows why the connection ended.
        """
        if actor.client is not None:
            with suppress(KeyError, ValueError):  # Ctrl-C came before it was registered, or after it was unregistered
                self._clients.unregister(actor.client)
            actor.client.close()
            actor.client = None
            actor.calls = deque([("serve", actor.serving)])

    def discard(self, actor: ActorHandle) -> None:
        """Drop the direct connection and all calls of an actor that has ended."""
        self.cut(actor)
        actor.calls.clear()
        actor.more, actor.begun_s = False, None

    def close(self) -> None:
        for actor in self._waiting:
            self.discard(actor)
        self._clients.close()
