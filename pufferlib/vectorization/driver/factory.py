"""BackendKind: a callable that builds WorkerVecEnvs with one kind of backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from pufferlib import _native
from pufferlib.layout.action_values import ActionValues
from pufferlib.telemetry.timeline import Timeline
from pufferlib.util.annotations import EnvCreator, EnvSource, Function
from pufferlib.util.parameters import Unpack
from pufferlib.util.suggestions import says_what_was_meant
from pufferlib.vectorization.core.arguments import (
    CHECKS,
    WEIGHTS,
    checked_backend_kwargs,
    checked_fair,
    checked_limits,
    checked_restarts,
    env_creators,
    misplaced,
    require_known,
)
from pufferlib.vectorization.core.backend import Backend, InPlace
from pufferlib.vectorization.core.batch import Batches
from pufferlib.vectorization.core.messages import EnvSpec, Failed, action_spaces
from pufferlib.vectorization.core.parameters import VecEnvParameters
from pufferlib.vectorization.core.plan import Plan, Seeds, checked_mode, checked_seed
from pufferlib.vectorization.core.sharing import Claims
from pufferlib.vectorization.core.slab import Slab, SlabShape, ring_of
from pufferlib.vectorization.core.step_watchdog import Limits, StepWatchdog
from pufferlib.vectorization.core.tensors import Tensors, tensors_of
from pufferlib.vectorization.driver.dispatcher import Dispatcher
from pufferlib.vectorization.driver.fairness import Quota, RowWeights
from pufferlib.vectorization.driver.pending_infos import PendingInfos
from pufferlib.vectorization.driver.portable_scheduler import PortableScheduler
from pufferlib.vectorization.driver.recovery import Recovery
from pufferlib.vectorization.driver.ring_scheduler import RingScheduler
from pufferlib.vectorization.driver.scheduler import Scheduler
from pufferlib.vectorization.driver.worker_vecenv import WorkerVecEnv
from pufferlib.vectorization.driver.workers import Workers
from pufferlib.vectorization.worker.worker import WorkerTask

if TYPE_CHECKING:
    from pufferlib._native.ring import Ring

__all__ = ["BackendKind", "attach_slab"]


class BackendKind:
    """A callable that makes WorkerVecEnvs with one kind of backend, from the arguments of ``pufferlib.make``.

    backend: the kind's name in ``make``. title: the kind's name in error messages. make_backend: a function
    ``(plan, task, *, context, entropy, **backend_kwargs)`` that returns the Backend; ``task(worker, share)`` returns a
    worker's WorkerTask. backend_arguments: the keys that backend_kwargs may have besides "telemetry". doc: the kind's
    docstring. first_finished: whether batches hold the first environments to finish, rather than the first that were
    sent an action. ``isinstance(vec, kind)`` is True for a VecEnv with this kind of backend.
    """

    def __init__(
        self,
        backend: str,
        title: str,
        make_backend: Function,
        backend_arguments: tuple[str, ...] = (),
        *,
        doc: str,
        first_finished: bool = False,
    ) -> None:
        self.__doc__ = doc
        self.backend, self.__name__, self._make_backend = backend, title, make_backend
        self.backend_arguments, self.first_finished = backend_arguments, first_finished

    def __repr__(self) -> str:
        return self.__name__

    def __mro_entries__(self, bases: object) -> NoReturn:
        raise TypeError(f"{self} is no class and cannot be subclassed; write a function that calls it")

    def __instancecheck__(self, vec: object) -> bool:
        return isinstance(vec, WorkerVecEnv) and vec.backend == self.backend

    @says_what_was_meant(misplaced, "env_kwargs", VecEnvParameters)
    def __call__(
        self, env: EnvSource, *, reward_dtype: str = "float32", **arguments: Unpack[VecEnvParameters]
    ) -> WorkerVecEnv:
        """Start the workers and return their VecEnv.

        reward_dtype: the name of a float dtype. The other arguments are those of ``pufferlib.make``.
        """
        creators = env_creators(env, arguments["num_envs"], arguments["env_args"], arguments["env_kwargs"])
        plan = Plan.of(len(creators), arguments["num_workers"], arguments["batch_size"])
        mode, check = checked_mode(arguments["autoreset_mode"]), arguments["check"]
        require_known("check", check, CHECKS)
        kwargs = checked_backend_kwargs(
            arguments["backend_kwargs"], (*self.backend_arguments, "telemetry"), self.backend
        )
        telemetry = bool(kwargs.pop("telemetry", True))
        limits = checked_limits(arguments["step_timeout"], arguments["reset_timeout"])
        on_error, max_restarts = checked_restarts(arguments["on_error"], arguments["max_restarts"])
        seeds = Seeds(checked_seed(arguments["seed"]), plan.num_envs)
        copy, debug, fair = arguments["copy"], arguments["debug"], checked_fair(arguments["fair"])
        tensors = tensors_of(arguments["as_torch"], arguments["device"], copy=copy)

        announce_each = not plan.synchronous
        first_finished = announce_each and self.first_finished
        emulation = {**(arguments["wrap_kwargs"] or {}), "check": check}

        def task(index: int, share: range) -> WorkerTask:
            of_share = [creators[env_id] for env_id in share]
            return WorkerTask(index, share, of_share, emulation, mode, announce_each, first_finished, limits)

        backend: Backend = self._make_backend(plan, task, context=arguments["context"], entropy=seeds.entropy, **kwargs)
        workers, claims = Workers(backend, self.__name__), Claims()
        env_spec = workers.start()
        try:
            if not backend.in_process:  # otherwise the worker has claimed the environments itself
                claim_originals(claims, creators, workers)
            if tensors is not None:
                tensors.check(env_spec.observation_space)
            parts = attach_slab(
                workers,
                plan,
                env_spec,
                reward_dtype,
                telemetry=telemetry,
                first_finished=self.first_finished,
                disabled=(env_spec.autoreset_mode or mode) == "disabled",
                copy=copy,
                debug=debug,
                tensors=tensors,
            )
            weights = quota = None
            if fair == WEIGHTS:
                weights = RowWeights(plan, env_spec.num_agents, first_finished=first_finished, tensors=tensors)
            elif fair is not None and first_finished:  # elsewhere every environment gets its turn
                quota = Quota(workers, parts.scheduler, plan, int(fair))
            recovery = Recovery(plan.num_envs, seeds, on_error=on_error, max_restarts=max_restarts)
            watchdog = StepWatchdog(
                parts.slab.doing[:, 0], parts.slab.shape.num_ids, limits if backend.watched else Limits()
            )
            return WorkerVecEnv(
                workers,
                parts.scheduler,
                recovery,
                dispatcher=Dispatcher(workers, parts.scheduler, parts.infos, recovery, watchdog),
                timeline=parts.timeline,
                batches=parts.batches,
                infos=parts.infos,
                action_values=parts.action_values,
                claims=claims,
                plan=plan,
                env_spec=env_spec,
                autoreset_mode=mode,
                backend=self.backend,
                weights=weights,
                quota=quota,
            )
        except BaseException:
            workers.close()
            claims.release()
            if tensors is not None:
                tensors.close()
            raise


class Parts(NamedTuple):
    """A slab, its ring, and the objects that read them. ring: None on the portable path."""

    slab: Slab
    ring: Ring | None
    batches: Batches
    infos: PendingInfos
    timeline: Timeline
    action_values: list[ActionValues]  # of each component of the action space
    scheduler: Scheduler


def claim_originals(claims: Claims, creators: Sequence[EnvCreator], workers: Workers) -> None:
    """Claim, for one VecEnv, the environments that its creators already held before they were called.

    Workers have copies of these environments; the originals in this process are claimed. Raises WorkerError if an
    original already serves as another environment.
    """
    for env_id, error in claims.claim_originals(creators, workers.held_envs):
        raise Failed.of(env_id, workers.worker_of[env_id], "__init__", error).error()


def attach_slab(
    workers: Workers,
    plan: Plan,
    env_spec: EnvSpec,
    reward_dtype: str,
    *,
    telemetry: bool,
    first_finished: bool,
    disabled: bool = False,
    copy: bool = False,
    debug: bool = False,
    tensors: Tensors | None = None,
) -> Parts:
    """Make a slab, attach the workers to it, and return the slab with the parts that read it.

    first_finished: as for ``BackendKind``. disabled: whether autoreset_mode is "disabled", so that an environment whose
        episode is over takes no action. copy, debug, tensors: as for ``Batches``.

    Raises PlatformError if memory is insufficient.
    """
    backend, components = workers.backend, action_spaces(env_spec)
    shape = SlabShape.of(
        plan,
        env_spec.num_agents,
        env_spec.observation_space,
        components,
        reward_dtype=reward_dtype,
        num_workers=len(workers.shares),
        telemetry=telemetry,
        compiled=backend.reads_mailboxes and _native.available,
    )
    slab = Slab.shared(shape) if backend.shared_memory else Slab.private(shape)
    ring = ring_of(slab)
    workers.attach(slab, ring)
    if tensors is not None:
        tensors.pin(slab.memory)
    batches, infos = Batches(slab, plan, copy=copy, debug=debug, tensors=tensors), PendingInfos(ring)
    timeline = Timeline(slab.timing_arrays, workers.pids)
    action_values = [ActionValues(space) for space in components]
    scheduler: Scheduler
    if ring is None:
        scheduler = PortableScheduler(slab, batches, infos, plan.batch_size, first_finished=first_finished)
    else:
        scheduler = RingScheduler(
            slab,
            batches,
            infos,
            ring,
            workers,
            action_values,
            first_finished=first_finished,
            disabled=disabled,
            spin=backend.spin,
            play=backend.player() if isinstance(backend, InPlace) else None,
            parent_times=timeline.parent_times,
        )
    return Parts(slab, ring, batches, infos, timeline, action_values, scheduler)
