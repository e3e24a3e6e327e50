"""What every library is given, and what the benchmark plays on: one file a library holds ``start(task) -> Player``."""

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
    """This library has no such arrangement, or does not handle such environments; says why."""


class Player(NamedTuple):
    """A vectorizer of which one batch is under way.

    recv: waits for a batch and returns how many environment steps it holds; send: has it played on. Where a library
    has one call for both, ``recv`` makes it and ``send`` does nothing. infos: those of the last batch, where asked for.
    """

    recv: Callable[[], int]
    send: Callable[[], None]
    close: Callable[[], None]
    infos: Callable[[], Sequence[dict[str, Any]]] = list


class Task(NamedTuple):
    """What is to be stepped, and how.

    env: "plain", "returning", "agents", "replayed", "replayed_agents", "native", or a key of ``envs.REAL_ENVS``,
    ``games.GAMES`` or ``envs.FAULTY_ENVS``; env_kwargs: of those not real.
    num_workers: processes; a library that has no such choice uses one an environment. batch_size: environments in a
    batch.
    """

    arrangement: str
    env: str
    env_kwargs: dict[str, Any]
    num_envs: int
    num_workers: int
    batch_size: int

    @property
    def env_creator(self) -> Callable[[], Any]:
        """What makes one environment; it can be pickled."""
        if self.env == "plain":
            return functools.partial(envs.PlainEnv, **self.env_kwargs)
        if self.env == "returning":
            return functools.partial(envs.ReturningEnv, **self.env_kwargs)
        if self.env == "replayed":
            return functools.partial(replayed.ReplayedEnv, **self.env_kwargs)
        if self.env in ("agents", "replayed_agents"):
            import agents  # which imports PettingZoo

            kind = agents.ReturningAgents if self.env == "agents" else agents.ReplayedAgents
            return functools.partial(kind, **self.env_kwargs)
        if self.env == "native":
            import native_rows  # which imports pufferlib

            return functools.partial(native_rows.NativeRows, **self.env_kwargs)
        if self.env in envs.FAULTY_ENVS:
            return functools.partial(envs.FAULTY_ENVS[self.env], **self.env_kwargs)
        return {**envs.REAL_ENVS, **games.GAMES}[self.env]

    @property
    def multi_agent(self) -> bool:
        """Whether the environment is PettingZoo's."""
        return self.env in AGENTS

    def choose(self, **arrangements: Any) -> Any:
        """Return what the arrangement names. Raises NotHandled."""
        if self.arrangement not in arrangements:
            raise NotHandled(f"no arrangement {self.arrangement!r}, only {', '.join(arrangements)}")
        return arrangements[self.arrangement]

    def need(self, *, single_agent: bool = True, synchronous: bool = False, own_processes: bool = False) -> None:
        """Refuse what a library cannot do: agents, batches of some environments, environments that share a process."""
        if single_agent and self.multi_agent:
            raise NotHandled("does not handle PettingZoo's environments")
        if synchronous and self.batch_size != self.num_envs:
            raise NotHandled("has no batches of some environments")
        if own_processes and self.num_workers != self.num_envs:
            raise NotHandled("has one process an environment")
