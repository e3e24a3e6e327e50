"""What the checks look at, worked out once and when it is first asked for."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from pufferlib.testing.clocks import fake_clock
from pufferlib.testing.generators import drawn_from, generator_states
from pufferlib.testing.play import Player, Subject, Trace, parting, replay
from pufferlib.testing.replay import ReplayResult, replay_in_processes
from pufferlib.testing.rollout import Rollout, roll

__all__ = ["CheckContext"]

REPLAY_S = 0.7  # how long one of the many short replays may take
MAX_REPLAY_STEPS = 200
NUM_USES = 8
HASH_SEEDS = (1, 2)
CLOCK, OTHER_CLOCK = (1_600_000_000.25, 0.001), (1_700_000_000.5, 1.75)  # (start, tick), seconds


class CheckContext:
    """One subject, and everything that has been found out about it."""

    def __init__(self, subject: Subject, num_steps: int, seed: int) -> None:
        self.subject = subject
        self.num_steps = num_steps
        self.seed = seed

    @functools.cached_property
    def rollout(self) -> Rollout:
        """The one long rollout."""
        return roll(self.subject, self.num_steps, self.seed)

    @functools.cached_property
    def replay_steps(self) -> int:
        """How many steps a replay has: fewer where they are slow."""
        step_s = float(np.mean(self.rollout.step_s)) if self.rollout.step_s else 0.0
        return max(8, min(self.num_steps, MAX_REPLAY_STEPS, int(REPLAY_S / max(step_s, 1e-6))))

    @functools.cached_property
    def drawn(self) -> dict[str, set[str]]:
        """Which global generators change in which calls, such as {"numpy.random": {"reset", "step"}}."""
        found: dict[str, set[str]] = {}
        states: dict[str, Any] = {}

        def before() -> None:
            states.update(generator_states())

        def after(method: str) -> None:
            for name in drawn_from(states, generator_states()):
                found.setdefault(name, set()).add(method)

        before()
        player = Player(self.subject, before, after)
        after("__init__")
        replay(player, self.seed, self.replay_steps)
        player.close()
        return found

    @functools.cached_property
    def traces(self) -> dict[str, Trace]:
        """Replays in this process, by name.

        "first", "second": of two environments by the same clock; "later": by another clock; "other seed".
        """
        return {
            "first": self._trace(self.seed, CLOCK),
            "second": self._trace(self.seed, CLOCK),
            "later": self._trace(self.seed, OTHER_CLOCK),
            "other seed": self._trace(self.seed + 1, CLOCK),
        }

    def _trace(self, seed: int, clock: tuple[float, float]) -> Trace:
        with fake_clock(*clock):
            player = Player(self.subject)
            try:
                return replay(player, seed, self.replay_steps, action_seed=self.seed)
            finally:
                player.close()

    @functools.cached_property
    def leftovers(self) -> str | None:
        """Where reset(seed) after play parts from that of a new environment, in words; None if it does not."""
        first = self.traces["first"]
        with fake_clock(*CLOCK):
            player = Player(self.subject)
            try:
                for turn in range(NUM_USES):  # several, as what is left of an episode may matter only now and then
                    replay(player, self.seed + 2 + turn, self.replay_steps // NUM_USES)
                    num_steps = 1 if turn < NUM_USES - 1 else self.replay_steps
                    where = parting(first[:num_steps], replay(player, self.seed, num_steps))
                    if where is not None:
                        return where
            finally:
                player.close()
        return None

    @functools.cached_property
    def replays(self) -> list[ReplayResult]:
        """Replays in other processes, one for each of HASH_SEEDS."""
        return self.replay_in_processes(HASH_SEEDS)

    def replay_in_processes(self, hash_seeds: tuple[int, ...]) -> list[ReplayResult]:
        """Replay in new processes with these hash seeds."""
        return replay_in_processes(self.subject, self.seed, self.replay_steps, hash_seeds)
