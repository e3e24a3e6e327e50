"""WorkerVecEnv: a VecEnv whose environments are stepped by the workers of a backend."""

from __future__ import annotations

import functools
import math
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

import gymnasium
import numpy as np

from pufferlib.errors import CallError, ClosedError, RecvTimeout
from pufferlib.layout.action_values import ActionValues
from pufferlib.telemetry.timeline import Recording
from pufferlib.util.annotations import Entropy, EnvSource, Guard, Options, ResetSeed
from pufferlib.util.suggestions import says_what_was_meant
from pufferlib.vectorization.core.arguments import (
    CHECKS,
    checked_actions,
    checked_backend_kwargs,
    checked_ids,
    checked_limits,
    checked_restarts,
    env_creators,
    misplaced,
    options_per_env,
    require_known,
)
from pufferlib.vectorization.core.backend import CLOSE_S, Backend, Sealed
from pufferlib.vectorization.core.batch import Batch, Batches
from pufferlib.vectorization.core.call_errors import (
    in_flight_error,
    no_batch_error,
    not_waiting_error,
    too_few_in_flight_error,
)
from pufferlib.vectorization.core.infos import Infos
from pufferlib.vectorization.core.messages import Failed, Reset, ResetOrder, failure_texts, summary_of
from pufferlib.vectorization.core.plan import Plan, Seeds, checked_mode, checked_seed, reset_seeds
from pufferlib.vectorization.core.sharing import Claims
from pufferlib.vectorization.core.slab import SlabShape
from pufferlib.vectorization.core.step_watchdog import Limits, StepWatchdog
from pufferlib.vectorization.core.tensors import as_numpy, tensors_of
from pufferlib.vectorization.core.vecenv import VecEnv
from pufferlib.vectorization.driver.call_guard import CallGuard, exclusive
from pufferlib.vectorization.driver.control import each_value
from pufferlib.vectorization.driver.dispatcher import Dispatcher, make_scheduler
from pufferlib.vectorization.driver.recovery import Recovery
from pufferlib.vectorization.driver.scheduler import FAILED, FLYING, NEW, READY, WAITING
from pufferlib.vectorization.worker.worker import WorkerTask

if TYPE_CHECKING:
    from pufferlib._native.fast_path import FastPath
    from pufferlib.telemetry.stats import Stats
    from pufferlib.vectorization.core.tensors import Device, Tensor

__all__ = ["WorkerVecEnv"]


class WorkerVecEnv(VecEnv):
    """A VecEnv whose environments are stepped by workers.

    Serial, Multiprocessing, Pool and Ray are this class with different backends and different rules for choosing the
    finished environments that form the next batch.
    """

    first_finished: ClassVar[bool] = False  # batches hold the first environments to finish, rather than the first sent
    backend_arguments: ClassVar[tuple[str, ...]] = ()  # the keys of backend_kwargs, apart from telemetry

    @says_what_was_meant(misplaced, "env_kwargs")
    def __init__(
        self,
        env: EnvSource,
        *,
        num_envs: int | None = None,
        num_workers: int | None = None,
        batch_size: int | None = None,
        seed: int | None = None,
        env_args: Sequence[object] = (),
        env_kwargs: Mapping[str, object] | Sequence[Mapping[str, object]] | None = None,
        wrap_kwargs: Mapping[str, object] | None = None,
        autoreset_mode: str | Enum = "next_step",
        context: str | None = None,
        copy: bool = False,
        as_torch: bool | None = None,
        device: Device | str | None = None,
        check: str = "first",
        debug: bool = False,
        on_error: str = "raise",
        max_restarts: int | None = 3,
        step_timeout: float | None = None,
        reset_timeout: float | None = None,
        backend_kwargs: Mapping[str, object] | None = None,
        reward_dtype: str = "float32",
    ) -> None:
        """Start the workers. reward_dtype: a float dtype's name. Other arguments are those of ``pufferlib.make``."""
        creators = env_creators(env, num_envs, env_args, env_kwargs)
        self._plan = plan = Plan.of(len(creators), num_workers, batch_size)
        mode = checked_mode(autoreset_mode)
        require_known("check", check, CHECKS)
        own_kwargs = checked_backend_kwargs(backend_kwargs, (*self.backend_arguments, "telemetry"), self.backend)
        telemetry = bool(own_kwargs.pop("telemetry", True))
        limits = checked_limits(step_timeout, reset_timeout)
        on_error, max_restarts = checked_restarts(on_error, max_restarts)
        seeds = Seeds(checked_seed(seed), plan.num_envs)
        self._tensors = tensors_of(as_torch, device, copy=copy)

        announce_each = not plan.synchronous
        emulation = {**(wrap_kwargs or {}), "check": check}
        backend = self._make_backend(
            plan,
            lambda index, share: WorkerTask(
                index,
                share,
                [creators[env_id] for env_id in share],
                emulation,
                mode,
                announce_each,
                announce_each and self.first_finished,
                limits,
            ),
            context=context,
            entropy=seeds.entropy,
            **own_kwargs,
        )
        env_spec = backend.start()
        self._claims = Claims()
        if not backend.near:  # otherwise the worker, in this process, has claimed them itself
            for env_id, error in self._claims.claim_originals(creators, backend.held_envs):
                backend.close()
                self._claims.release()
                worker = next(index for index, share in enumerate(backend.shares) if env_id in share)
                raise Failed.of(env_id, worker, "__init__", error).error()
        space = env_spec.action_space
        action_spaces = space.spaces if isinstance(space, gymnasium.spaces.Tuple) else (space,)
        self._action_values = [ActionValues(space) for space in action_spaces]
        shape = SlabShape.of(
            plan,
            env_spec.num_agents,
            env_spec.observation_space,
            action_spaces,
            reward_dtype=reward_dtype,
            num_workers=len(backend.shares),
            telemetry=telemetry,
            compiled=backend.compiled,
        )
        try:
            if self._tensors is not None:
                self._tensors.check(env_spec.observation_space)
            self._slab, ring = backend.attach(shape)
            if self._tensors is not None:
                self._tensors.pin(self._slab.memory)
        except BaseException:
            backend.close()
            self._claims.release()
            raise
        self._workers, self._finalizer = backend, weakref.finalize(self, backend.close)

        self._look_like(env_spec, plan.num_envs, plan.batch_size, mode, len(backend.shares))

        self._batches = batches = Batches(self._slab, plan, copy=copy, debug=debug, tensors=self._tensors)
        shared = {name: getattr(self._slab, name) for name in ("times", "histogram", "worker_times")}
        self._recording = Recording(shared, backend.pids)
        self._recovery = Recovery(plan.num_envs, seeds, on_error=on_error, max_restarts=max_restarts)
        watchdog = StepWatchdog(self._slab.doing[:, 0], plan.num_envs, limits if backend.watched else Limits())
        self._dispatcher = dispatcher = Dispatcher(backend, ring, self._recovery, watchdog, type(self).__name__)
        self._scheduler = make_scheduler(
            self._slab,
            ring,
            plan,
            batches,
            backend,
            dispatcher,
            self._recording,
            self._action_values,
            first_finished=self.first_finished,
            disabled=self.autoreset_mode == "disabled",
        )
        # None on the portable path, and once this is closed.
        self._fast_path: FastPath | None = self._scheduler.fast_path
        self._call_guard: Guard = self._fast_path if self._fast_path is not None else CallGuard()
        backend.call_guard = self._call_guard
        self._errors = dispatcher.errors
        self._worker_of = [index for index, share in enumerate(backend.shares) for _ in share]
        self._in_order = list(range(plan.num_envs))
        self._only_resets = False  # only a partial reset is in flight, so recv fills the rest of the batch
        self._action_arrays = [
            array.reshape(plan.num_envs, env_spec.num_agents, *array.shape[1:]) for array in self._slab.actions
        ]

    @property
    def batch(self) -> Batch | None:
        return self._scheduler.batch

    @property
    def host_batch(self) -> Batch | None:
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

    def _make_backend(
        self,
        plan: Plan,
        task: Callable[[int, range], WorkerTask],
        *,
        context: str | None,
        entropy: Entropy,
        **kwargs: object,
    ) -> Backend:
        raise NotImplementedError(f"{type(self).__name__} is a base class; use pufferlib.make or Serial, Pool, …")

    @exclusive
    def async_reset(
        self, seed: ResetSeed = None, options: Options = None, env_ids: Sequence[int] | None = None
    ) -> None:
        start_s = time.monotonic()
        backend = self._backend
        if env_ids is not None and self._scheduler.stuck_reason:
            raise CallError(f"cannot reset some: {self._scheduler.stuck_reason}")
        ids = list(range(self.num_envs)) if env_ids is None else checked_ids(env_ids, self.num_envs)
        if env_ids is not None:
            busy = [env_id for env_id in ids if self._scheduler.states[env_id] in (FLYING, READY)]
            if busy:
                raise in_flight_error({env_id: self._scheduler.states[env_id] for env_id in busy})
        seeds, new_seeds = reset_seeds(seed, ids, self.num_envs)
        env_options = options_per_env(options, len(ids))
        if options is not None:  # options that cannot be sent are refused before anything has changed
            self._sealed(map(self._recovery.order, ids, ids, seeds, env_options))
        if env_ids is None:
            self._recovery.seeds = new_seeds or self._recovery.seeds
            self._drain()
        backend.revive()
        order, slots = self._recovery.order, self._scheduler.coming_slots(ids)
        sealed = self._sealed(map(order, ids, slots, seeds, env_options))
        self._recovery.begun(ids)
        alone = self._scheduler.num_coming == 0
        self._only_resets = env_ids is not None and (alone or self._only_resets)
        self._scheduler.depart(ids)
        backend.send_each(sealed)
        self._scheduler.hold(self._recovery.pending)
        self._recording.note_send(start_s)

    def _sealed(self, orders: Iterable[ResetOrder]) -> dict[int, Sealed]:
        """Serialize the reset orders, grouped by worker. Raises CallError if one cannot be serialized."""
        requests: dict[int, list[ResetOrder]] = {}
        for order in orders:
            requests.setdefault(self._worker_of[order.env_id], []).append(order)
        return {worker: self._backend.seal(Reset(orders)) for worker, orders in requests.items()}

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
        """Send actions that the fast path does not take: to chosen environments, in other formats, or invalid."""
        start_s = time.monotonic()
        backend, scheduler = self._backend, self._scheduler
        if env_ids is None:
            last_ids = scheduler.last_ids
            if last_ids is None:
                raise no_batch_error()
            ids = last_ids
        else:
            ids = checked_ids(env_ids, self.num_envs)
        components = checked_actions(actions, self._action_values, ids, self.agents_per_env)
        if any(scheduler.states[env_id] != WAITING for env_id in ids):
            wrong = {env_id: state for env_id in ids if (state := scheduler.states[env_id]) != WAITING}
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
        if self._recovery.pending:
            self._step_or_restart(ids, scheduler.depart(ids))
        else:
            backend.step(ids, scheduler.depart(ids))
        self._recording.note_send(start_s)

    def _step_or_restart(self, ids: list[int], slots: list[int]) -> None:
        """Step environments; those that crashed end their episodes or start again instead."""
        backend, recovery, scheduler = self._backend, self._recovery, self._scheduler
        over = scheduler.overs if self.autoreset_mode == "next_step" else bytes(self.num_envs)
        crashed = [env_id for env_id in ids if env_id in recovery.crash_due and not over[env_id]]
        begun = [
            env_id for env_id in ids if env_id in recovery.reset_due or (env_id in recovery.crash_due and over[env_id])
        ]
        slot_of = dict(zip(ids, slots, strict=True))
        orders = self._sealed(recovery.order(env_id, slot_of[env_id]) for env_id in begun)
        recovery.begun(begun)
        steps = [env_id for env_id in ids if env_id not in {*crashed, *begun}]
        if steps:
            backend.step(steps, [slot_of[env_id] for env_id in steps])
        backend.send_each(orders)
        for env_id in crashed:
            self._dispatcher.answer_by_crash(env_id, recovery.crash_due[env_id])
        scheduler.hold(recovery.pending)

    def recv(self, timeout: float | None = None) -> Batch:
        deadline = None if timeout is None else time.monotonic() + timeout
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
        """Receive a batch that the fast path leaves: messages have arrived too, or the wait is long."""
        start_s = time.monotonic()
        scheduler, dispatcher = self._scheduler, self._dispatcher
        if scheduler.wants_a_look():
            dispatcher.pump(start_s)  # without waiting
        dispatcher.raise_error()
        coming, batch_size = scheduler.num_coming, self._plan.batch_size
        if coming < batch_size and not self._fill_with_unchanged():
            raise too_few_in_flight_error(coming, batch_size, some_wait=bool(scheduler.of_state(WAITING)))
        backend = self._backend
        backend.interruptible = True  # between two waits nothing is half done
        while not dispatcher.may_land():
            obstacle = scheduler.obstacle()
            if obstacle:
                raise CallError(f"recv could never return: {obstacle}")
            if not dispatcher.pump(deadline, scheduler.await_block) and not dispatcher.may_land():
                raise RecvTimeout(
                    f"no batch within {timeout} s: {scheduler.num_ready} environments have finished of the "
                    f"{batch_size} that it holds, {scheduler.of_state(FLYING)} are in flight; call recv again, or close"
                )
            dispatcher.raise_error()
        backend.interruptible = False
        self._only_resets = False
        batch = scheduler.land(dispatcher.gather_infos)
        self._recording.note_recv(start_s)
        return batch

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
        """Send a call to environments; return a function that waits for the results (see ``Control.ask``)."""
        ids = self._in_order if env_ids is None else checked_ids(env_ids, self.num_envs)
        return functools.partial(self._await, self._dispatcher.control.ask(action, name, ids, args, kwargs))

    @exclusive
    def _await(self, wait: Callable[[float | None], list[object]], timeout: float | None) -> list[object]:
        """Wait up to ``timeout`` seconds for the results of a call."""
        self._backend.interruptible = True  # between two waits nothing is half done
        return wait(timeout)

    def stats(self, *, reset: bool = False) -> Stats:
        from pufferlib.telemetry.stats import Stats  # with its model, a tenth of pufferlib's import time

        backend = self._backend
        if not self._slab.shape.telemetry:
            raise CallError('nothing was noted: backend_kwargs has {"telemetry": False}; leave that out')
        backend.fetch_times()
        stats = Stats.of(
            self._recording.take(),
            backend=self.backend,
            num_envs=self.num_envs,
            num_workers=len(backend.shares),
            batch_size=self._plan.batch_size,
            agents_per_env=self.agents_per_env,
            cores=backend.cores(),
        )
        if reset:
            self._recording.begin()
        return stats

    def close(self, grace_s: float = CLOSE_S) -> None:
        """Close all environments and end their workers. It can be called again, after any error, and from any thread.

        grace_s: the seconds that worker processes may take before they are killed. A call in progress in another
            thread raises ClosedError there.
        """
        self._dispatcher.close()
        self._fast_path = None
        self._claims.release()
        if not self._finalizer.alive:
            return
        # A signal handler may close the object in the middle of this thread's call, which continues afterwards.
        within = self._call_guard.owner == threading.get_ident()
        messages = self._workers.close(grace_s)
        if self._workers.left_open:
            self._finalizer.atexit = False  # exit must not wait for a thread that may never return
            return
        self._finalizer.detach()  # only now, so that another close continues if Ctrl-C interrupts this one
        if not within:
            self._dispatcher.let_go()
        for text in failure_texts(message for message in messages if isinstance(message, Failed)):
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        if self._tensors is not None:
            self._tensors.close()
        self._slab.close()

    @property
    def closed(self) -> bool:
        return self._dispatcher.closed

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(num_envs={self.num_envs}, num_workers={self.num_workers}, "
            f"batch_size={self.batch_size}, agents_per_env={self.agents_per_env}"
            f"{', closed' if self.closed else ''})"
        )

    # ------------------------------------------------------------------------------------- from send to recv

    def _fill_with_unchanged(self) -> bool:
        """Complete a partial reset with the rows of the environments that still wait; return False for any other."""
        scheduler = self._scheduler
        if not (self._plan.synchronous and self._only_resets) or scheduler.of_state(NEW, FAILED):
            return False
        for env_id in scheduler.of_state(WAITING):
            scheduler.fill(env_id)
        return True

    def _drain(self) -> None:
        """Wait for all rows in flight and drop them; environments that raised are about to be reset anyway."""
        scheduler, dispatcher = self._scheduler, self._dispatcher
        while not scheduler.is_settled() or scheduler.has_news() or not dispatcher.collect_infos():
            dispatcher.pump(None, scheduler.await_settling)
        scheduler.drop()
        dispatcher.forget_infos()
        if self._errors:
            dropped = [*self._errors]
            self._errors.clear()
            warnings.warn(f"dropped by reset: {summary_of(dropped)}", RuntimeWarning, stacklevel=4)

    # ------------------------------------------------------------------------------------------------- checks

    def _interrupted(self, error: BaseException, *, half_done: bool) -> None:
        """Close this VecEnv if an exception, usually Ctrl-C, has ended a call half done.

        Raises ClosedError if error is an Exception and this VecEnv was closed during the call: by a signal handler, or
        by an environment on the serial backend.
        """
        if self.closed:
            if isinstance(error, Exception):
                raise ClosedError(f"this {type(self).__name__} was closed in the middle of a call") from error
        elif half_done:
            self._dispatcher.closed_because = f", because {type(error).__name__} ended a call in the middle"
            self.close()

    @property
    def _backend(self) -> Backend:
        """The workers' backend. Raises ClosedError if this VecEnv is closed."""
        return self._dispatcher.backend
