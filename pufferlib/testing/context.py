"""The data that the checks share; each item is computed once, on first use."""

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

REPLAY_S = 0.7  # the time limit of each of the many short replays
MAX_REPLAY_STEPS = 200
NUM_USES = 8
HASH_SEEDS = (1, 2)
CLOCK, OTHER_CLOCK = (1_600_000_000.25, 0.001), (1_700_000_000.5, 1.75)  # (start, tick), seconds


class CheckContext:
    """The environment under test and the cached results of playing it, which the checks share."""

    def __init__(self, subject: Subject, num_steps: int, seed: int) -> None:
        self.subject = subject
        self.num_steps = num_steps
        self.seed = seed

    @functools.cached_property
    def rollout(self) -> Rollout:
        """The results of the long rollout."""
        return roll(self.subject, self.num_steps, self.seed)

    @functools.cached_property
    def replay_steps(self) -> int:
        """The number of steps in each replay: num_steps, but at least 8 and at most MAX_REPLAY_STEPS.

        If steps are slow, the number is lower, down to 8.
        """
        step_s = float(np.mean(self.rollout.step_s)) if self.rollout.step_s else 0.0
        return max(8, min(self.num_steps, MAX_REPLAY_STEPS, int(REPLAY_S / max(step_s, 1e-6))))

    @functools.cached_property
    def drawn(self) -> dict[str, set[str]]:
        """The environment's methods that draw from global generators, such as {"numpy.random": {"reset", "step"}}.

        The keys are the generators' names; generators from which nothing is drawn are omitted.
        """
        methods: dict[str, set[str]] = {}
        states: dict[str, Any] = {}

        def before() -> None:
            states.update(generator_states())

        def after(method: str) -> None:
            for name in drawn_from(states, generator_states()):
                methods.setdefault(name, set()).add(method)

        before()
        player = Player(self.subject, before, after)
        after("__init__")
        replay(player, self.seed, self.replay_steps)
        player.close()
        return methods

    @functools.cached_property
    def traces(self) -> dict[str, Trace]:
        """The traces of replays in this process, each of a new environment with the same actions.

        "first" and "second" have the same seed and clock; "later" has a different clock, "other seed" a different seed.
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
        """The first difference, as text, between replays with the same seed in a new and in a used environment.

        None if the replays are identical.
        """
        first = self.traces["first"]
        with fake_clock(*CLOCK):
            player = Player(self.subject)
            try:
                for use in range(NUM_USES):  # several: state left over from an episode may show only sometimes
                    replay(player, self.seed + 2 + use, self.replay_steps // NUM_USES)
                    num_steps = 1 if use < NUM_USES - 1 else self.replay_steps
                    where = parting(first[:num_steps], replay(player, self.seed, num_steps))
                    if where is not None:
                        return where
            finally:
                player.close()
        return None

    @functools.cached_property
    def replays(self) -> list[ReplayResult]:
        """The results of replays in other processes, one for each hash seed in HASH_SEEDS."""
        return self.replay_in_processes(HASH_SEEDS)

    def replay_in_processes(self, hash_seeds: tuple[int, ...]) -> list[ReplayResult]:
        """Replay in new processes, one per hash seed, and return their results."""
        return replay_in_processes(self.subject, self.seed, self.replay_steps, hash_seeds)
