"""WorkerVecEnv: a VecEnv whose environments are stepped by the workers of a backend."""

from __future__ import annotations

import functools
import math
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

import numpy as np

from pufferlib.errors import CallError, ClosedError, PufferError, RecvTimeout
from pufferlib.layout.action_values import ActionValues, checked_actions
from pufferlib.telemetry.timeline import Timeline
from pufferlib.util.annotations import EnvCreator, Options, ResetSeed
from pufferlib.vectorization.core.arguments import checked_ids, deadline_of, options_per_env
from pufferlib.vectorization.core.backend import CLOSE_S, Remote
from pufferlib.vectorization.core.batch import Batch, Batches, WeightedBatch
from pufferlib.vectorization.core.call_errors import (
    FAILED,
    FLYING,
    NEW,
    READY,
    WAITING,
    in_flight_error,
    no_batch_error,
    not_waiting_error,
    too_few_in_flight_error,
)
from pufferlib.vectorization.core.failure_summaries import failure_texts, summary_of
from pufferlib.vectorization.core.infos import Infos
from pufferlib.vectorization.core.messages import (
    EnvSpec,
    Failed,
    Request,
    Reset,
    ResetOrder,
)
from pufferlib.vectorization.core.plan import Plan, available_cpus, reset_seeds
from pufferlib.vectorization.core.sharing import Claims
from pufferlib.vectorization.core.tensors import as_numpy
from pufferlib.vectorization.core.vecenv import Failures, VecEnv
from pufferlib.vectorization.driver.call_guard import refuse
from pufferlib.vectorization.driver.control import Replies, each_value
from pufferlib.vectorization.driver.dispatcher import Dispatcher
from pufferlib.vectorization.driver.fairness import Quota, RowWeights, WeightedPath
from pufferlib.vectorization.driver.pending_infos import PendingInfos
from pufferlib.vectorization.driver.recovery import Recovery
from pufferlib.vectorization.driver.scheduler import Scheduler, repeat_rows
from pufferlib.vectorization.driver.workers import Workers

if TYPE_CHECKING:
    from pufferlib._native.fast_path import FastPath
    from pufferlib.telemetry.stats import Stats
    from pufferlib.vectorization.core.tensors import Tensor

__all__ = ["WorkerVecEnv"]

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def exclusive(
    method: Callable[Concatenate[WorkerVecEnv, Parameters], Result],
) -> Callable[Concatenate[WorkerVecEnv, Parameters], Result]:
    """Wrap a WorkerVecEnv's method so that it raises CallError while any thread is in a call of the same VecEnv.

    Once the VecEnv is closed, it raises ClosedError. If the method raises an exception other than PufferError, such as
    KeyboardInterrupt, the VecEnv is closed, unless the backend was ``interruptible`` at that time.
    """

    @functools.wraps(method)
    def guarded(self: WorkerVecEnv, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        workers, me = self._workers, threading.get_ident()
        backend, call_guard = workers.backend, workers.call_guard
        if workers.closed:
            workers.require_open()  # raises
        if not call_guard.owner:
            call_guard.owner = me  # no call since the comparison, so no other thread runs in between
        else:
            refuse(call_guard, workers.title)
        try:
            try:
                backend.interruptible = False
                return method(self, *args, **kwargs)
            finally:
                call_guard.owner = 0
        except PufferError:
            raise
        except BaseException as error:  # Ctrl-C, or an exception from a signal handler
            self._interrupted(error, half_done=not backend.interruptible)
            raise

    return guarded


class WorkerVecEnv(VecEnv):
    """A VecEnv whose environments are stepped by workers.

    Serial, Multiprocessing, Pool and Ray (see driver/factory.py) make such VecEnvs. They differ in the backend that
    runs the workers, and in the rule that chooses the finished environments of the next batch.
    """

    def __init__(
        self,
        workers: Workers,
        scheduler: Scheduler,
        recovery: Recovery,
        *,
        dispatcher: Dispatcher,
        infos: PendingInfos,
        timeline: Timeline,
        batches: Batches,
        action_values: list[ActionValues],
        claims: Claims,
        plan: Plan,
        env_spec: EnvSpec,
        autoreset_mode: str,
        backend: str,
        weights: RowWeights | None = None,
        quota: Quota | None = None,
    ) -> None:
        """Assemble a VecEnv from parts that were made for each other. backend: the backend's name in ``make``."""
        self._look_like(env_spec, plan.num_envs, plan.batch_size, autoreset_mode, len(workers.shares))
        self.backend = backend
        self._workers, self._scheduler, self._recovery = workers, scheduler, recovery
        self._dispatcher, self._infos, self._timeline = dispatcher, infos, timeline
        self._batches, self._claims, self._plan = batches, claims, plan
        self._slab, self._tensors = batches.slab, batches.tensors
        self._action_values, self._action_arrays = action_values, self._slab.actions_by_env
        self._errors = dispatcher.errors
        self._in_order = list(range(plan.num_envs))
        self._only_resets = False  # only a partial reset is in flight, so recv fills the rest of the batch
        self._weights, self._quota = weights, quota
        self._step = workers.step if quota is None else quota.step
        # None on the portable path, with a quota, and once this is closed
        self._fast_path: FastPath | WeightedPath | None = None if quota is not None else scheduler.fast_path
        if weights is not None and scheduler.fast_path is not None:
            self._fast_path = WeightedPath(scheduler.fast_path, weights)
        self._finalizer = weakref.finalize(self, workers.close)

    @property
    def batch(self) -> Batch | None:
        return self._scheduler.batch if self._weights is None else self._weights.batch

    @property
    def host_batch(self) -> Batch | None:
        batch = self._host_batch()
        return batch if batch is None or self._weights is None else WeightedBatch.weighted(batch, self._weights.host)

    def _host_batch(self) -> Batch | None:
        """Return ``host_batch`` without weights."""
        batch = self._scheduler.batch
        if batch is None or self._tensors is None:
            return batch
        if self._tensors.device.type != "cpu":
            return Batch.of(self._batches.host, batch.infos)
        arrays = self._batches.arrays_of.get(id(batch.observations))
        if arrays is None and not self._batches.copies:
            arrays = self._batches.host
        if arrays is not None:
            return Batch.of(arrays, batch.infos)
        tensors: Iterable[Infos | Tensor] = batch  # type: ignore[assignment]  # the fields are annotated as arrays
        return Batch._make(part if isinstance(part, Infos) else part.numpy() for part in tensors)

    @property
    def restarts(self) -> list[int]:
        return list(self._recovery.counts)

    @property
    def failures(self) -> Failures:
        return Failures(list(self._recovery.failures), list(self._recovery.unexplained))

    @exclusive
    def async_reset(
        self, seed: ResetSeed = None, options: Options = None, env_ids: Sequence[int] | None = None
    ) -> None:
        start_s = time.monotonic()
        scheduler, recovery, workers = self._scheduler, self._recovery, self._workers
        if env_ids is not None and scheduler.stuck_reason:
            raise CallError(f"cannot reset some: {scheduler.stuck_reason}")
        ids = self._in_order if env_ids is None else checked_ids(env_ids, self.num_envs)
        if env_ids is not None:
            states = scheduler.states
            busy = {env_id: states[env_id] for env_id in ids if states[env_id] in (FLYING, READY)}
            if busy:
                raise in_flight_error(busy)
        seeds, new_seeds = reset_seeds(seed, ids, self.num_envs)
        env_options = options_per_env(options, len(ids))
        if options is not None:  # options that cannot be sent are refused before anything has changed
            self._sealed(map(recovery.order, ids, ids, seeds, env_options))
        if env_ids is None:
            recovery.seeds = new_seeds or recovery.seeds
            if self._quota is not None:
                self._quota.restart()
            self._drain()
        workers.revive()
        resets = self._sealed(map(recovery.order, ids, scheduler.next_slots(ids), seeds, env_options))
        recovery.begun(ids)
        alone = scheduler.num_coming == 0
        self._only_resets = env_ids is not None and (alone or self._only_resets)
        scheduler.mark_sent(ids)
        if self._quota is not None:
            self._quota.count(ids)
        workers.submit(resets)
        scheduler.held = recovery.pending
        self._timeline.note_send(start_s)

    def _sealed(self, orders: Iterable[ResetOrder]) -> Mapping[int, Request]:
        """Return the reset orders as requests by worker. Raises CallError if one cannot be serialized."""
        workers, resets = self._workers, dict[int, Reset]()
        for order in orders:
            resets.setdefault(workers.worker_of[order.env_id], Reset([])).orders.append(order)
        return workers.seal(resets)

    def send(self, actions: object, env_ids: Sequence[int] | None = None) -> None:
        if type(actions) is not np.ndarray:
            actions = as_numpy(actions)
        fast_path = self._fast_path
        if fast_path is not None:
            try:
                if fast_path.send(actions, env_ids):
                    self._only_resets = False
                    return
            except BaseException as error:
                self._interrupted(error, half_done=fast_path.half_done)
                raise
        self._send(actions, env_ids)

    @exclusive
    def _send(self, actions: object, env_ids: Sequence[int] | None) -> None:
        """Check and send actions without the fast path, which takes only the plain case."""
        start_s = time.monotonic()
        scheduler = self._scheduler
        if env_ids is None:
            last_ids = scheduler.last_ids
            if last_ids is None:
                raise no_batch_error()
            ids = last_ids
        else:
            ids = checked_ids(env_ids, self.num_envs)
        components = checked_actions(actions, self._action_values, ids, self.agents_per_env)
        states = scheduler.states
        wrong = {env_id: states[env_id] for env_id in ids if states[env_id] != WAITING}
        if wrong:
            raise not_waiting_error("send", wrong, named=env_ids is not None)
        if self.autoreset_mode == "disabled" and any(scheduler.overs[env_id] for env_id in ids):
            over = [env_id for env_id in ids if scheduler.overs[env_id]]
            raise CallError(
                f"the episodes of environments {over} are over, and autoreset_mode is 'disabled'; "
                f"call {'reset' if self._plan.synchronous else 'async_reset'}(env_ids={over}) first"
            )
        everything = ids == self._in_order
        for array, component in zip(self._action_arrays, components, strict=True):
            array[slice(None) if everything else ids] = component
        self._only_resets = False
        if scheduler.held:  # some environments, perhaps others than these, have crashed
            self._step_or_restart(ids, scheduler.mark_sent(ids))
        else:
            self._step(ids, scheduler.mark_sent(ids))
        self._timeline.note_send(start_s)

    def _step_or_restart(self, ids: list[int], slots: list[int]) -> None:
        """Step environments; any that have crashed get crash rows, or are made again and reset, instead."""
        workers, recovery, scheduler = self._workers, self._recovery, self._scheduler
        over = scheduler.overs if self.autoreset_mode == "next_step" else bytes(self.num_envs)
        crashed = [env_id for env_id in ids if env_id in recovery.crash_due and not over[env_id]]
        begun = [
            env_id for env_id in ids if env_id in recovery.reset_due or (env_id in recovery.crash_due and over[env_id])
        ]
        slot_of = dict(zip(ids, slots, strict=True))
        resets = self._sealed(recovery.order(env_id, slot_of[env_id]) for env_id in begun)
        recovery.begun(begun)
        steps = [env_id for env_id in ids if env_id not in {*crashed, *begun}]
        if steps:
            self._step(steps, [slot_of[env_id] for env_id in steps])
        if self._quota is not None:
            self._quota.count([*begun, *crashed])
        workers.submit(resets)
        for env_id in crashed:
            self._dispatcher.answer_by_crash([env_id], recovery.crash_due[env_id])
        scheduler.held = recovery.pending

    def recv(self, timeout: float | None = None) -> Batch:
        deadline = None if timeout is None else deadline_of(timeout)
        fast_path = self._fast_path
        if fast_path is not None and not self._errors:
            try:
                batch: Batch | None = fast_path.recv(math.inf if timeout is None else timeout)
            except BaseException as error:
                self._interrupted(error, half_done=fast_path.half_done)
                raise
            if batch is not None:
                self._only_resets = False
                return batch
        return self._recv(timeout, deadline)

    @exclusive
    def _recv(self, timeout: float | None, deadline: float | None) -> Batch:
        """Receive a batch without the fast path, which gives up if messages have arrived or the wait is long."""
        start_s = time.monotonic()
        scheduler, dispatcher = self._scheduler, self._dispatcher
        if scheduler.overdue:
            dispatcher.pump(start_s)  # without waiting
        dispatcher.raise_error()
        coming, batch_size = scheduler.num_coming, self._plan.batch_size
        if coming < batch_size and not self._fill_with_unchanged():
            some_wait = WAITING in scheduler.states
            raise too_few_in_flight_error(coming, batch_size, some_wait=some_wait)
        backend = self._workers.backend
        backend.interruptible = True  # between two waits nothing is half done
        quota = self._quota
        while not dispatcher.may_land():
            any_row = quota is not None and quota.release()  # any row may release an action
            if not dispatcher.pump(deadline, batch=not any_row) and not dispatcher.may_land():
                raise RecvTimeout(
                    f"no batch within {timeout} s: {scheduler.num_ready} environments have finished, a batch needs "
                    f"{batch_size}, and environments {scheduler.in_flight} are in flight; call recv again, or close"
                )
            dispatcher.raise_error()
        backend.interruptible = False
        self._only_resets = False
        batch = scheduler.take_batch()
        if self._weights is not None:
            batch = self._weights.weigh(batch, scheduler.last_ids or ())
        self._timeline.note_recv(start_s)
        return batch

    @property
    def ready(self) -> bool:
        fast_path, scheduler = self._fast_path, self._scheduler
        if fast_path is not None:
            return fast_path.clear and fast_path.is_full(False)
        return scheduler.fast_path is None and not self.closed and scheduler.batch_ready()

    @exclusive
    def idle(self, env_ids: Sequence[int]) -> None:
        scheduler, recovery, ids = self._scheduler, self._recovery, checked_ids(env_ids, self.num_envs)
        wrong = {env_id: state for env_id in ids if (state := scheduler.states[env_id]) != WAITING}
        if wrong:
            raise not_waiting_error("idle", wrong, named=True)
        self._only_resets = False
        scheduler.mark_sent(ids)
        scheduler.crash(ids, over=True)
        if self._quota is not None:
            self._quota.count(ids)
        recovery.idle(ids, refused=self.autoreset_mode == "disabled")
        scheduler.held = recovery.pending

    @exclusive
    def remake(self, env_ids: Sequence[int], creators: Sequence[EnvCreator] | None = None) -> None:
        ids = checked_ids(env_ids, self.num_envs)
        if creators is not None and (len(creators) != len(ids) or not all(map(callable, creators))):
            raise CallError(f"creators={creators!r:.80} are not {len(ids)} callables; pass one for each of env_ids")
        self._recovery.remake(ids, creators)

    # -------------------------------------------------------------------------------------------------- control

    def call(self, name: str, *args: object, env_ids: Sequence[int] | None = None, **kwargs: object) -> list[object]:
        return self._ask("call", name, env_ids, args, kwargs)(None)

    def get_attr(self, name: str, env_ids: Sequence[int] | None = None) -> list[object]:
        return self._ask("get", name, env_ids, (), {})(None)

    def set_attr(self, name: str, values: object, env_ids: Sequence[int] | None = None) -> None:
        num = self.num_envs if env_ids is None else len(checked_ids(env_ids, self.num_envs))
        self._ask("set", name, env_ids, each_value(values, num), {})(None)

    @exclusive
    def _ask(
        self, action: str, name: str, env_ids: Sequence[int] | None, args: Sequence[object], kwargs: dict[str, object]
    ) -> Callable[[float | None], list[object]]:
        """Send a call to environments (see ``Control.ask``); return a function that awaits the results.

        The function takes a timeout (see ``_await``). It may be called again after a RecvTimeout, and need not be
        called at all.
        """
        ids = self._in_order if env_ids is None else checked_ids(env_ids, self.num_envs)
        return functools.partial(self._await, self._dispatcher.control.ask(action, name, ids, args, kwargs))

    @exclusive
    def _await(self, replies: Replies, timeout: float | None) -> list[object]:
        """Return the results of a call, after waiting for them up to ``timeout`` seconds (None: no limit).

        Raises RecvTimeout if workers have not answered in time, and WorkerError if an environment raised. If a worker
        died, raises the oldest WorkerError that has not been raised yet, or CallError if there is none.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        dispatcher = self._dispatcher
        self._workers.backend.interruptible = True  # between two waits nothing is half done
        while not replies.complete:
            if not dispatcher.pump(deadline):
                raise RecvTimeout(
                    f"{len(replies.by_worker)} of {len(replies.ids_of)} workers have answered within {timeout} s"
                )
            if replies.lost:
                dispatcher.raise_error()
                raise CallError(f"{replies.lost}, before it answered; call again")
        return replies.results()

    def stats(self, *, reset: bool = False) -> Stats:
        from pufferlib.telemetry.stats import Stats  # with its model, a tenth of pufferlib's import time

        self._workers.require_open()
        backend = self._workers.backend
        if not self._slab.shape.telemetry:
            raise CallError('no times were recorded: backend_kwargs has {"telemetry": False}; leave that out')
        remote = backend if isinstance(backend, Remote) else None
        if remote is not None:
            remote.fetch_times()
        stats = Stats.of(
            self._timeline.take(),
            backend=self.backend,
            num_envs=self.num_envs,
            num_workers=self.num_workers,
            batch_size=self._plan.batch_size,
            agents_per_env=self.agents_per_env,
            cores=available_cpus() if remote is None else remote.cores(),
            resets_have_rows=self.autoreset_mode != "same_step",
        )
        if reset:
            self._timeline.begin()
        return stats

    def close(self, grace_s: float = CLOSE_S) -> None:
        """Close all environments and end their workers. It can be called again, after any error, and from any thread.

        A call in progress in another thread raises ClosedError there. Environments that raise while they are closed
        cause a RuntimeWarning each. grace_s: how many seconds workers may take before they are killed.
        """
        self._fast_path = None  # first, so that another thread's next call finds that this is closed
        messages = self._workers.close(grace_s)
        self._claims.release()
        if self._workers.left_open:
            self._finalizer.atexit = False  # exit must not wait for a thread that may never return
            return
        if self._finalizer.detach() is None:  # only now, so that another close continues if Ctrl-C interrupts this one
            return
        for text in failure_texts(message for message in messages if isinstance(message, Failed)):
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        if self._tensors is not None:
            self._tensors.close()

    @property
    def closed(self) -> bool:
        return self._workers.closed

    @property
    def _title(self) -> str:
        return self._workers.title

    def __repr__(self) -> str:
        return (
            f"{self._title}(num_envs={self.num_envs}, num_workers={self.num_workers}, "
            f"batch_size={self.batch_size}, agents_per_env={self.agents_per_env}"
            f"{', closed' if self.closed else ''})"
        )

    # ------------------------------------------------------------------------------------- from send to recv

    def _fill_with_unchanged(self) -> bool:
        """Complete a partial reset by repeating the rows of the environments that still wait.

        Return False, and change nothing, if batches are not synchronous, if anything else is in flight, or if an
        environment is new or failed.
        """
        scheduler = self._scheduler
        if not (self._plan.synchronous and self._only_resets) or envs_in(scheduler, NEW, FAILED):
            return False
        waiting, old_slots = envs_in(scheduler, WAITING), scheduler.last_slots
        for env_id, slot in zip(waiting, scheduler.mark_sent(waiting), strict=True):
            repeat_rows(self._slab, old_slots[env_id], slot)
        scheduler.arrive(waiting, [bool(scheduler.overs[env_id]) for env_id in waiting])
        return True

    def _drain(self) -> None:
        """Wait for all rows in flight and drop them; drop errors that have not been raised yet, with a warning."""
        scheduler, dispatcher = self._scheduler, self._dispatcher
        while not scheduler.settled or not dispatcher.collect_infos():
            # If nothing is in flight, no row ends the wait.
            dispatcher.pump(None if scheduler.num_coming > scheduler.num_ready else time.monotonic() + 0.001)
        scheduler.reset()
        self._infos.clear()
        if self._errors:
            dropped = [*self._errors]
            self._errors.clear()
            warnings.warn(f"dropped by reset: {summary_of(dropped)}", RuntimeWarning, stacklevel=4)

    # ------------------------------------------------------------------------------------------------- checks

    def _interrupted(self, error: BaseException, *, half_done: bool) -> None:
        """Close this VecEnv if an exception, usually KeyboardInterrupt, has left a call half done.

        Raises ClosedError if error is an Exception and this VecEnv was closed during the call: by a signal handler, or
        by an environment on the serial backend.
        """
        workers = self._workers
        if workers.closed:
            if isinstance(error, Exception):
                raise ClosedError(f"this {workers.title} was closed in the middle of a call") from error
        elif half_done:
            workers.closed_because = f", because {type(error).__name__} ended a call in the middle"
            self.close()


def envs_in(scheduler: Scheduler, *states: int) -> list[int]:
    """Return the ids of the environments in any of these states."""
    return [env_id for env_id, state in enumerate(scheduler.states) if state in states]
