"""Where a worker stands on the portable path: the plain case of a step, in as little Python as it can be.

Like the compiled ``_native.step_loop``, it takes exactly what Gymnasium's API asks for and hands everything else on,
before anything has been changed and with nothing done twice: an episode's end, an info, an exception to ``Worker``.
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
    """One environment of one agent, as long as nothing out of the ordinary happens.

    act: gives its action, given its number. shape, dtype: of observations that are stored as they come; others are
    written by ``write``. reward_sum, length, start_s: of the episode so far; they go to ``row_env.totals`` and back
    where a step has to be finished there.
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
            self.act = slab.actions[0].data.__getitem__  # an element costs a third of what NumPy's does
        space, layout = row_env.observation_space, row_env.observation_layout
        self.shape, self.dtype = (space.shape if layout.is_leaf else None), np.dtype(space.dtype)
        self.places = {  # one a lap
            slot: slab.rows(slot).places[0] for slot in range(env_id, slab.shape.num_slots, slab.shape.num_envs)
        }
        self.ready = False
        self.reward_sum, self.length, self.start_s = 0.0, 0, 0.0

    def resume(self, ready: bool) -> None:
        """Say whether the next step may be played here, and take the episode's totals back if so."""
        self.ready = ready
        if ready:
            self.reward_sum, self.length, self.start_s = self.row_env.totals


class StepLoop:
    """Plays steps for a ``worker.Worker``.

    ``worker.advance(env_id, slot)`` plays a whole step the careful way and ``worker.finish(env_id, slot, result)`` the
    rest of one; both return whether the next may be played here. ``worker.failed`` tells of an exception, and
    ``worker.flush`` announces those that are ``quiet``: whose rows are written, with nothing else to be said.
    """

    def __init__(self, worker: Any, slab: Slab, stopwatch: Stopwatch) -> None:
        self._worker = worker
        self._stopwatch = stopwatch
        self._telemetry = slab.shape.telemetry
        self._each = worker.task.each
        self._slab = slab
        self._steppers: dict[int, Stepper | None] = {}
        self._doing = slab.doing[worker.task.worker].data
        self._limit_s = worker.step_limit_s
        self._rewards: Any = slab.rewards.reshape(-1).data
        self._flags: list[tuple[Any, bytes]] = []  # of plain rows: a column, and what is written there

    def adopt(self, env_id: int, env: RowEnv) -> None:
        """Take an environment, whose plain steps are played here from its first reset on."""
        self._steppers[env_id] = Stepper(env, env_id, self._slab) if env.plain is not None else None
        if env.plain is not None and not self._flags:  # then a slot is one row
            slab, num = self._slab, len(self._worker.task.env_ids)
            for column, flag in ((slab.terminations, b"\0"), (slab.truncations, b"\0"), (slab.masks, b"\1")):
                self._flags.append((column.reshape(-1).view(np.uint8).data, flag * num))

    def resume(self, env_id: int, ready: bool) -> None:
        """Say whether the next step of an environment may be played here."""
        stepper = self._steppers.get(env_id)
        if stepper is not None:
            stepper.resume(ready)

    def _mark(self, slots: Sequence[int]) -> None:
        """Write the flags of plain rows, all at once where they are neighbours; who is careful overwrites them."""
        if type(slots) is range:
            place, num = slice(slots.start, slots.stop), len(slots)
            for column, flags in self._flags:
                column[place] = flags[:num]
        else:
            for column, flags in self._flags:
                for slot in slots:
                    column[slot] = flags[0]

    def step(self, env_ids: Sequence[int], slots: Sequence[int], quiet: list[int]) -> None:
        """Play one step of these environments, in this order; the rows of each go to its slot."""
        worker, steppers, each, telemetry = self._worker, self._steppers, self._each, self._telemetry
        rewards, left_out, array = self._rewards, self._stopwatch.left_out, np.ndarray
        doing, limit_s = self._doing, self._limit_s
        timed, start_s = False, 0.0
        self._mark(slots)
        for env_id, slot in zip(env_ids, slots, strict=True):
            stepper = steppers[env_id]
            doing[0] = 2 * slot + 2  # as in watch: an environment's slot is another one each time
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
                    place = stepper.places[slot]
                    if (
                        type(observation) is array
                        and observation.shape == stepper.shape
                        and observation.dtype == stepper.dtype
                    ):
                        place[...] = observation
                    else:
                        stepper.write(observation, place)
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
            elif each:
                worker.flush()
            if timed:
                timed = False
                self._stopwatch.record(env_id, perf_counter() - start_s - worker.reset_s)
