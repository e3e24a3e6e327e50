"""The interface of a library's file: it defines ``start(task) -> Player``, and the benchmark plays the Player."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).parent.parent))  # last, so that nothing there hides an installed package

import envs
import games
import replayed

__all__ = ["NotHandled", "Player", "Task"]

AGENTS = ("agents", "replayed_agents", "simple_tag", "knights_archers_zombies", "faulty_agents", *games.AGENTS)


class NotHandled(Exception):
    """Raised when a library lacks an arrangement or cannot handle the environments, with the reason."""


class Player(NamedTuple):
    """A vectorizer with one batch in flight.

    recv: waits for a batch and returns its number of environment steps. send: sends the next actions. If a library has
    one call for both, ``recv`` makes it and ``send`` does nothing. infos: returns those of the last batch, if stored.
    """

    recv: Callable[[], int]
    send: Callable[[], None]
    close: Callable[[], None]
    infos: Callable[[], Sequence[dict[str, Any]]] = list


class Task(NamedTuple):
    """The environments to step, and the arrangement.

    env: "plain", "returning", "agents", "replayed", "replayed_agents", "native", or a key of ``envs.REAL_ENVS``,
    ``games.GAMES`` or ``envs.FAULTY_ENVS``. env_kwargs: only of environments that are not real. num_workers: processes;
    a library without that choice uses one per environment. batch_size: environments in a batch.
    """

    arrangement: str
    env: str
    env_kwargs: dict[str, Any]
    num_envs: int
    num_workers: int
    batch_size: int

    @property
    def env_creator(self) -> Callable[[], Any]:
        """A picklable function that makes one environment."""
        if self.env == "plain":
            return functools.partial(envs.PlainEnv, **self.env_kwargs)
        if self.env == "returning":
            return functools.partial(envs.ReturningEnv, **self.env_kwargs)
        if self.env == "replayed":
            return functools.partial(replayed.ReplayedEnv, **self.env_kwargs)
        if self.env in ("agents", "replayed_agents"):
            import agents  # it imports PettingZoo

            kind = agents.ReturningAgents if self.env == "agents" else agents.ReplayedAgents
            return functools.partial(kind, **self.env_kwargs)
        if self.env == "native":
            import native_rows  # it imports pufferlib

            return functools.partial(native_rows.NativeRows, **self.env_kwargs)
        if self.env in envs.FAULTY_ENVS:
            return functools.partial(envs.FAULTY_ENVS[self.env], **self.env_kwargs)
        return {**envs.REAL_ENVS, **games.GAMES}[self.env]

    @property
    def multi_agent(self) -> bool:
        """Whether the environment is PettingZoo's."""
        return self.env in AGENTS

    def choose(self, **arrangements: Any) -> Any:
        """Return the value of this task's arrangement. Raises NotHandled if there is none."""
        if self.arrangement not in arrangements:
            raise NotHandled(f"no arrangement {self.arrangement!r}, only {', '.join(arrangements)}")
        return arrangements[self.arrangement]

    def need(self, *, single_agent: bool = True, synchronous: bool = False, own_processes: bool = False) -> None:
        """Raise NotHandled for what a library cannot do: agents, partial batches, environments that share a process."""
        if single_agent and self.multi_agent:
            raise NotHandled("does not handle PettingZoo's environments")
        if synchronous and self.batch_size != self.num_envs:
            raise NotHandled("has no batches of some environments")
        if own_processes and self.num_workers != self.num_envs:
            raise NotHandled("has one process an environment")
