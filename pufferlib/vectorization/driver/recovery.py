"""Recovery: which environments must be made again, with which seeds, and what answers their next action."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pufferlib.util.annotations import EnvCreator, Info
from pufferlib.vectorization.core.messages import CrashCause, ResetOrder
from pufferlib.vectorization.core.plan import Seeds

__all__ = ["Recovery"]

FIRST_REMADE = 2**31  # in place of the number of failures, where seeds are drawn for environments that have not failed


class Recovery:
    """A record of the environments that raised or lost their worker.

    counts: how many times each environment has been lost; each time, its next reset makes it again. failures: how many
    of these times it was at fault. unexplained: how many of these times nobody knows who was. crash_due: the
    environments that were lost while they waited for an action or their finished rows waited for ``recv``, with the
    reason; a crash row answers their next action. reset_due: the environments whose crash row has been written, and
    those that ``idle`` adds; a reset, if the environment was lost that of a new one, answers their next action. If
    ``on_error`` is "raise", ``crash_due`` stays empty.
    """

    def __init__(self, num_envs: int, seeds: Seeds, *, on_error: str, max_restarts: int | None) -> None:
        self.seeds = seeds
        self.counts, self.failures, self.unexplained = [0] * num_envs, [0] * num_envs, [0] * num_envs
        self.crash_due: dict[int, CrashCause] = {}
        self.reset_due: set[int] = set()
        self._unmade: set[int] = set()  # environments that are made again by their next reset
        self._first_seeds = {env_id: seeds[env_id] for env_id in range(num_envs)}  # of environments not reset yet
        self._num_remade = [0] * num_envs
        self._creators: dict[int, EnvCreator] = {}  # of environments that their worker's own creators do not make
        self._restarts, self._max_restarts = on_error == "restart", max_restarts

    @property
    def pending(self) -> bool:
        """Whether any environment must not receive a plain step."""
        return bool(self.crash_due or self.reset_due)

    def refusal(self, env_ids: Iterable[int]) -> str | None:
        """Return why environments may not be restarted ("" if on_error is "raise"), or None if they may."""
        if not self._restarts:
            return ""
        most = self._max_restarts
        spent = [] if most is None else [env_id for env_id in env_ids if self.counts[env_id] >= most]
        if not spent:
            return None
        which = f"environment {spent[0]} has" if len(spent) == 1 else f"environments {spent} have"
        return f"{which} been restarted {most} times, which is max_restarts"

    def lose(self, env_id: int, at_fault: int | None) -> None:
        """Record a lost environment: its next reset makes it again, with a seed that no environment has had.

        at_fault: the environment that raised, or that its worker was stepping or resetting when it died; None if the
        worker died without doing either, or if that is not known.
        """
        self.counts[env_id] += 1
        self.failures[env_id] += at_fault == env_id
        self.unexplained[env_id] += at_fault is None
        self._first_seeds[env_id] = self.seeds.draw(env_id, self.counts[env_id])
        self._unmade.add(env_id)

    def remake(self, env_ids: Sequence[int], creators: Sequence[EnvCreator] | None = None) -> None:
        """Record environments that have not failed, but are to be replaced by their next reset.

        If that has no seed, and none is due, it uses one that no environment has had. creators: what makes each of them
        from then on; None for the same as before.
        """
        self._creators.update(zip(env_ids, creators or (), strict=bool(creators)))
        for env_id in env_ids:
            self._unmade.add(env_id)
            if env_id not in self._first_seeds:
                self._num_remade[env_id] += 1
                self._first_seeds[env_id] = self.seeds.draw(env_id, FIRST_REMADE + self._num_remade[env_id])

    def idle(self, env_ids: Iterable[int], *, refused: bool) -> None:
        """Record waiting environments whose episodes were ended without a step.

        refused: whether the VecEnv refuses actions for them until they are reset. If not, a reset answers their next
        action.
        """
        for env_id in env_ids:
            self.crash_due.pop(env_id, None)
            if not refused:
                self.reset_due.add(env_id)

    def retry_seed(self, env_id: int, seed: int) -> None:
        """Record a failed reset: the environment's next reset without a seed uses this seed.

        If another seed is already due for the environment, does nothing.
        """
        self._first_seeds.setdefault(env_id, seed)

    def order(self, env_id: int, slot: int, seed: int | None = None, options: Info | None = None) -> ResetOrder:
        """Return the order to reset an environment.

        seed: by default, the seed that is due: the seed of the environment's first reset, or the seed that ``lose`` or
            ``retry_seed`` has recorded. If no seed is due, the order has none.
        """
        order_seed = self._first_seeds.get(env_id) if seed is None else seed
        fresh = env_id in self._unmade
        return ResetOrder(env_id, slot, order_seed, options, fresh, self._creators.get(env_id) if fresh else None)

    def begun(self, env_ids: Sequence[int]) -> None:
        """Record that the reset orders of these environments are being sent, and forget what was due for them."""
        for env_id in env_ids:
            self._first_seeds.pop(env_id, None)
            self.crash_due.pop(env_id, None)
        self._unmade.difference_update(env_ids)
        self.reset_due.difference_update(env_ids)
