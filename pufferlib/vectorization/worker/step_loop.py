"""StepLoop: the plain case of a worker's step on the portable path, in as little Python as possible.

Like the compiled ``_native.step_loop``, it handles a step whose result is exactly as Gymnasium's API defines it. It
passes every other case (an episode's end, an info, an exception) to ``Worker`` before it has changed anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import numpy as np
from gymnasium.spaces import Discrete

from pufferlib.emulation.rows import RowEnv
from pufferlib.telemetry.timeline import Stopwatch
from pufferlib.vectorization.core.slab import Slab

__all__ = ["StepLoop"]


class Stepper:
    """One environment with one agent, in the plain case.

    act: returns the action for an env id. shape, dtype: of observations that are stored unchanged; ``write`` writes
    others. reward_sum, length, start_s: of the episode so far; they are copied to ``row_env.totals`` and back when
    ``Worker`` finishes a step.
    """

    __slots__ = (
        "act",
        "dtype",
        "length",
        "places",
        "ready",
        "reward_sum",
        "row_env",
        "shape",
        "start_s",
        "step",
        "write",
    )

    def __init__(self, row_env: RowEnv, env_id: int, slab: Slab) -> None:
        assert row_env.plain is not None
        self.row_env = row_env
        self.step, act, self.write = row_env.plain
        actions = slab.action(env_id)
        self.act: Callable[[int], Any] = lambda env_id: act(actions)
        if isinstance(row_env.action_space, Discrete) and slab.actions[0].dtype == np.int64:
            self.act = slab.actions[0].data.__getitem__  # reading an element takes a third of NumPy's time
        space, layout = row_env.observation_space, row_env.observation_layout
        self.shape, self.dtype = (space.shape if layout.is_leaf else None), np.dtype(space.dtype)
        self.places = {  # one a buffer of the slab
            slot: slab.rows(slot).places[0] for slot in range(env_id, slab.shape.num_slots, slab.shape.num_envs)
        }
        self.ready = False
        self.reward_sum, self.length, self.start_s = 0.0, 0, 0.0

    def resume(self, ready: bool) -> None:
        """Set whether the next step is played here, and if so, copy the episode's totals back."""
        self.ready = ready
        if ready:
            self.reward_sum, self.length, self.start_s = self.row_env.totals


class StepLoop:
    """The plain steps of a ``worker.Worker``.

    ``worker.advance(env_id, slot)`` plays a whole step in the general way, and ``worker.finish(env_id, slot, result)``
    the rest of one; both return whether the next may be played here. ``worker.failed`` reports an exception, and
    ``worker.flush`` announces the ``quiet`` environments: those whose rows are written and which have no infos.
    """

    def __init__(self, worker: Any, slab: Slab, stopwatch: Stopwatch) -> None:
        self._worker = worker
        self._stopwatch = stopwatch
        self._telemetry = slab.shape.telemetry
        self._announce_each = worker.task.announce_each
        self._slab = slab
        self._steppers: dict[int, Stepper | None] = {}
        self._doing = slab.doing[worker.task.worker].data
        self._limit_s = worker.step_limit_s
        self._rewards: Any = slab.rewards.reshape(-1).data
        self._flags: list[tuple[Any, bytes]] = []  # the flag columns, and their bytes for plain rows

    def adopt(self, env_id: int, env: RowEnv) -> None:
        """Register an environment, whose plain steps are played here from its first reset on."""
        self._steppers[env_id] = Stepper(env, env_id, self._slab) if env.plain is not None else None
        if env.plain is not None and not self._flags:  # then a slot is one row
            slab, num = self._slab, len(self._worker.task.env_ids)
            for column, flag in ((slab.terminations, b"\0"), (slab.truncations, b"\0"), (slab.masks, b"\1")):
                self._flags.append((column.reshape(-1).view(np.uint8).data, flag * num))

    def resume(self, env_id: int, ready: bool) -> None:
        """Set whether the next step of an environment is played here."""
        stepper = self._steppers.get(env_id)
        if stepper is not None:
            stepper.resume(ready)

    def _mark(self, slots: Sequence[int]) -> None:
        """Write the flags of plain rows, contiguous ones at once; ``Worker`` overwrites those of other rows."""
        if type(slots) is range:
            interval, num = slice(slots.start, slots.stop), len(slots)
            for column, flags in self._flags:
                column[interval] = flags[:num]
        else:
            for column, flags in self._flags:
                for slot in slots:
                    column[slot] = flags[0]

    def step(self, env_ids: Sequence[int], slots: Sequence[int], quiet: list[int]) -> None:
        """Step these environments in this order; each writes its rows to its slot."""
        worker, steppers, telemetry = self._worker, self._steppers, self._telemetry
        announce_each = self._announce_each
        rewards, left_out, array = self._rewards, self._stopwatch.left_out, np.ndarray
        doing, limit_s = self._doing, self._limit_s
        timed, start_s = False, 0.0
        self._mark(slots)
        for env_id, slot in zip(env_ids, slots, strict=True):
            stepper = steppers[env_id]
            doing[0] = 2 * slot + 2  # as in step_watchdog: an environment's slot differs from step to step
            if stepper is None or not stepper.ready:
                ready = worker.advance(env_id, slot)
                if stepper is not None:
                    stepper.resume(ready)
                worker.played += 1
                continue
            if left_out[env_id]:
                left_out[env_id] -= 1
            elif telemetry:
                timed, worker.reset_s, start_s = True, 0.0, perf_counter()
            try:
                if limit_s:
                    begun_s = perf_counter()
                result = stepper.step(stepper.act(env_id))
                if limit_s:
                    worker.check_time("step", perf_counter() - begun_s)
                plain = type(result) is tuple and len(result) == 5
                if plain:
                    observation, reward, terminated, truncated, info = result
                    plain = (
                        terminated is False
                        and truncated is False
                        and type(reward) is float
                        and not info
                        and (info is None or type(info) is dict)
                    )
                if plain:
                    target = stepper.places[slot]
                    if (
                        type(observation) is array
                        and observation.shape == stepper.shape
                        and observation.dtype == stepper.dtype
                    ):
                        target[...] = observation
                    else:
                        stepper.write(observation, target)
                    rewards[slot] = reward
                    stepper.reward_sum += reward
                    stepper.length += 1
                    quiet.append(env_id)
            except (Exception, SystemExit) as error:
                stepper.ready = timed = False
                worker.failed(env_id, "step", error)
                worker.played += 1
                continue
            if not plain:
                stepper.row_env.totals = (stepper.reward_sum, stepper.length, stepper.start_s)
                stepper.resume(worker.finish(env_id, slot, result))
                worker.played += 1
            elif announce_each:
                worker.flush()
            if timed:
                timed = False
                self._stopwatch.record(env_id, perf_counter() - start_s - worker.reset_s)
