"""Supervisor: reserves the resources of Ray actors, starts them, counts their deaths, replaces them and ends them.

The users of a ``Supervisor`` make the calls to their actors, and decide when an actor is replaced.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from typing import Any, Generic, TypeVar

from pufferlib.errors import WorkerError
from pufferlib.vectorization.ray.connection import Connection, Placement

__all__ = ["RemoteActor", "Supervisor"]

MOST_DEATHS = 3  # in a row, of an actor and its replacements


@dataclass(eq=False)
class RemoteActor:
    """A record of an actor and of the actors that replace it.

    index: the actor's number. handle: Ray's handle of the actor, None while there is no actor. generation: how many
    actors have been requested. deaths: how many actors have died in a row. location: where the actor is, as text that
    follows its name; "" if the location is not known.
    """

    index: int
    _: KW_ONLY
    handle: Any = None
    generation: int = 0
    deaths: int = 0
    location: str = ""

    @property
    def name(self) -> str:
        """The actor's number and location, for messages."""
        return f"actor {self.index}{self.location}"


Actor = TypeVar("Actor", bound=RemoteActor)
Answers = tuple[list[tuple[Actor, Any]], list[Actor]]


class Supervisor(Generic[Actor]):
    """The actors of one class that the user of this object runs in a cluster.

    connection: a use of the cluster; ``close`` releases it, and so does this constructor if it raises. actors: the
    records of the actors, which ``start`` starts. resources, placement: see ``Placement``, whose errors are raised.
    options: Ray's other options for an actor.
    """

    def __init__(
        self,
        connection: Connection,
        actor_class: type[Any],
        actors: Sequence[Actor],
        *,
        resources: Mapping[str, float] | None,
        placement: Any,
        **options: Any,
    ) -> None:
        self.connection, self.ray, self._actors, self._options = connection, connection.ray, actors, options
        try:
            self._actor_class = self.ray.remote(actor_class)
            self.placement = Placement(connection, placement, resources, len(actors))
        except BaseException:
            connection.release()
            raise

    def start(self, actor: Actor, *arguments: Any) -> None:
        """Start an actor, after killing the one that it replaces. Raises PlatformError if the connection has ended.

        arguments: the arguments with which the actor's class is called.
        """
        self.connection.require()
        self.kill(actor)
        options = {"max_restarts": 0, "max_task_retries": 0, **self._options, **self.placement.options(actor.index)}
        actor.handle = self._actor_class.options(**options).remote(*arguments)
        actor.generation += 1

    def kill(self, actor: Actor) -> None:
        """Kill an actor, if it was started and the connection has not ended; drop its handle in any case."""
        handle, actor.handle = actor.handle, None
        if handle is not None and self.connection.alive():  # otherwise this call would start a new Ray
            self.ray.kill(handle)

    def count_death(self, actor: Actor, when: str, reason: str) -> None:
        """Count a death of an actor. Raises WorkerError if this is the MOST_DEATHS-th death in a row.

        In that case, ``deaths`` is 0 again. The user of this object also sets it to 0 when the actor makes progress.
        when: text for the error that says when the actor died, such as "before it had made its environments". reason:
        the cause of this death, for the error.
        """
        actor.deaths += 1
        if actor.deaths == MOST_DEATHS:
            actor.deaths = 0  # the user may try again
            text = f"{actor.name} died {MOST_DEATHS} times {when}; the last time: {reason}"
            raise WorkerError(text, worker=actor.index)

    def answers(self, calls: Mapping[Any, Actor], timeout_s: float) -> Answers[Actor]:
        """Return (actor, answer) for each call that ends within timeout_s, and the actors whose calls take longer.

        calls: for each call, the actor, keyed by Ray's reference to the call. Calls that fail are left out; if the
        connection has ended, all calls are left out.
        """
        if not calls or not self.connection.alive():
            return [], []
        ended, late = self.ray.wait(list(calls), num_returns=len(calls), timeout=timeout_s)
        answers = []
        for call in ended:
            with suppress(self.ray.exceptions.RayError):  # an actor's death is reported by its other calls
                answers.append((calls[call], self.ray.get(call)))
        return answers, [calls[call] for call in late]

    def ask_to_close(self, actors: Iterable[Actor], timeout_s: float, *arguments: Any) -> Answers[Actor]:
        """Call ``close(*arguments)`` of each actor that exists, and return the answers as ``answers`` does."""
        asked = [actor for actor in actors if actor.handle is not None and self.connection.alive()]
        return self.answers({actor.handle.close.remote(*arguments): actor for actor in asked}, timeout_s)

    def close(self) -> None:
        """Kill all actors, give back their resources, and release the connection."""
        try:
            for actor in self._actors:
                self.kill(actor)
            if self.connection.alive():
                self.placement.remove()
        finally:
            self.connection.release()
