"""VecEnv: many environments behind one object. The one class that users see, whatever runs the environments."""

from __future__ import annotations

import functools
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import gymnasium
import numpy as np

from pufferlib.errors import CallError, ClosedError, PlanError, RecvTimeout, WorkerError
from pufferlib.vectorization.arguments import checked_actions, checked_ids, env_creators, options_per_env
from pufferlib.vectorization.batch import Batch, Batches
from pufferlib.vectorization.crew import CLOSE_S, Crew
from pufferlib.vectorization.flight import FAILED, FLYING, NEW, READY, WAITING, Flight
from pufferlib.vectorization.messages import Call, Died, Done, Failed, Reply, Reset, ResetOrder
from pufferlib.vectorization.plan import AUTORESET_MODES, Plan, Seeds, checked_seed, listed_seeds
from pufferlib.vectorization.slab import LAPS, Slab, SlabShape
from pufferlib.vectorization.worker import WorkerTask

__all__ = ["Batch", "VecEnv"]

Array = np.ndarray[Any, Any]


Method = TypeVar("Method", bound=Callable[..., Any])


def whole(method: Method) -> Method:
    """Note where Ctrl-C ends a method in the middle, that is anywhere but in a wait: only a full reset mends that."""

    @functools.wraps(method)
    def guarded(self: VecEnv, *args: Any, **kwargs: Any) -> Any:
        crew = self._open_crew()
        crew.interruptible = False
        try:
            return method(self, *args, **kwargs)
        except Exception:
            raise
        except BaseException:
            self._torn = self._torn or not crew.interruptible
            raise

    return guarded  # type: ignore[return-value]


class VecEnv:
    """Many environments stepped at once; see ``pufferlib.make``, which makes one.

    Serial, Multiprocessing and Pool are this class with another crew of workers and another rule for which finished
    environments form the next batch.
    """

    backend: ClassVar[str]
    first_finished: ClassVar[bool] = False  # batches hold the first to finish, rather than the first sent
    backend_arguments: ClassVar[tuple[str, ...]] = ()  # keys of backend_kwargs that this backend knows

    num_envs: int
    agents_per_env: int
    agents_per_batch: int
    single_observation_space: gymnasium.Space[Any]
    single_action_space: gymnasium.Space[Any]
    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    autoreset_mode: str
    metadata: dict[str, Any]
    batch: Batch | None

    def __init__(
        self,
        env: Callable[..., Any] | str | Sequence[Callable[..., Any] | str],
        *,
        num_envs: int | None = None,
        num_workers: int | None = None,
        batch_size: int | None = None,
        seed: int | None = None,
        env_args: Sequence[Any] = (),
        env_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        wrap_kwargs: Mapping[str, Any] | None = None,
        autoreset_mode: str = "next_step",
        context: str | None = None,
        copy: bool = False,
        check: str = "first",
        debug: bool = False,
        backend_kwargs: Mapping[str, Any] | None = None,
        reward_dtype: str = "float32",
    ) -> None:
        self._crew: Crew | None = None
        creators = env_creators(env, num_envs, env_args, env_kwargs)
        self._plan = plan = Plan.of(len(creators), num_workers, batch_size)
        if autoreset_mode not in AUTORESET_MODES:
            raise PlanError(f"autoreset_mode={autoreset_mode!r} is not one of {', '.join(map(repr, AUTORESET_MODES))}")
        if check not in ("first", "always"):
            raise PlanError(f"check={check!r} is not 'first' or 'always'")
        foreign = sorted(set(backend_kwargs or {}) - set(self.backend_arguments))
        if foreign:
            known = ", ".join(self.backend_arguments) or "nothing"
            raise PlanError(f"backend_kwargs has {', '.join(foreign)}, but backend {self.backend!r} knows {known}")
        self._seeds = Seeds(checked_seed(seed), plan.num_envs)

        each = not plan.synchronous
        emulation = {**(wrap_kwargs or {}), "check": check}
        crew = self._make_crew(
            plan,
            lambda index, share: WorkerTask(
                index, share, [creators[env_id] for env_id in share], emulation, autoreset_mode, each
            ),
            context=context,
            entropy=self._seeds.entropy,
            **(backend_kwargs or {}),
        )
        face = crew.start()
        space = face.action_space
        self._action_spaces = space.spaces if isinstance(space, gymnasium.spaces.Tuple) else (space,)
        try:
            self._slab: Slab = crew.attach(
                SlabShape(
                    plan.num_envs,
                    face.num_agents,
                    (tuple(face.observation_space.shape or ()), np.dtype(face.observation_space.dtype).str),
                    tuple((tuple(space.shape or ()), np.dtype(space.dtype).str) for space in self._action_spaces),
                    reward_dtype,
                )
            )
        except BaseException:
            crew.close()
            raise
        self._crew = crew
        self._finalizer = weakref.finalize(self, crew.close)
        self._shares = crew.shares

        self.num_envs = plan.num_envs
        self.agents_per_env = face.num_agents
        self.agents_per_batch = plan.batch_size * face.num_agents
        self.multi_agent = face.multi_agent
        self.single_observation_space = face.observation_space
        self.single_action_space = face.action_space
        self.observation_space = gymnasium.vector.utils.batch_space(face.observation_space, self.agents_per_batch)
        self.action_space = gymnasium.vector.utils.batch_space(face.action_space, self.agents_per_batch)
        self.observation_layout = face.observation_layout
        self.action_layout = face.action_layout
        self.observation_layouts = face.observation_layouts
        self.action_layouts = face.action_layouts
        self.autoreset_mode = autoreset_mode
        self.metadata = {**face.metadata, "autoreset_mode": gymnasium_autoreset_mode(autoreset_mode)}
        self.render_mode = face.render_mode
        self.spec = face.spec
        self.batch = None

        self._batches = Batches(self._slab, plan, copy=copy, debug=debug)
        self._flight = Flight(plan.num_envs, plan.batch_size, first_finished=self.first_finished)
        self._laps = [0] * plan.num_envs  # where each environment's next rows go
        self._first_seeds = {env_id: self._seeds[env_id] for env_id in range(plan.num_envs)}  # of those still to come
        self._infos: dict[int, list[dict[str, Any]]] = {}
        self._errors: deque[WorkerError] = deque()
        self._replies: weakref.WeakValueDictionary[int, Replies] = weakref.WeakValueDictionary()  # by ticket
        self._num_calls = 0
        self._worker_of = [index for index, share in enumerate(self._shares) for _ in share]
        self._in_order = list(range(plan.num_envs))
        self._last_ids: list[int] | None = None
        self._torn = False  # whether Ctrl-C has left something half done
        self._only_resets = False  # nothing but a partial reset is in flight, so recv fills the batch up
        self._restarts = [0] * plan.num_envs
        self._inbox: deque[Any] = deque()
        self._action_arrays = [
            array.reshape(plan.num_envs, face.num_agents, *array.shape[1:]) for array in self._slab.actions
        ]

    def _make_crew(
        self, plan: Plan, task: Callable[[int, range], WorkerTask], *, context: str | None, entropy: Any, **kwargs: Any
    ) -> Any:
        raise NotImplementedError(f"{type(self).__name__} is a base class; use pufferlib.make or Serial, Pool, …")

    # ------------------------------------------------------------------------------------------ synchronous use

    def reset(
        self, seed: int | Sequence[int] | None = None, options: Any = None, env_ids: Sequence[int] | None = None
    ) -> tuple[Array, list[dict[str, Any]]]:
        """Start new episodes and return (observations, infos) of the next batch.

        Actions already sent are executed first and their rows dropped. The arguments are those of ``async_reset``;
        with ``env_ids`` the rows of the others come back unchanged, all masks False.
        """
        if env_ids is not None and not self._plan.synchronous:
            raise CallError(
                f"reset(env_ids=…) returns all rows, but batch_size={self._plan.batch_size} is less than "
                f"num_envs={self.num_envs}; use async_reset(env_ids=…), whose rows come by recv"
            )
        self.async_reset(seed, options, env_ids)
        batch = self.recv()
        return batch.observations, batch.infos

    def step(self, actions: Any) -> tuple[Array, Array, Array, Array, list[dict[str, Any]]]:
        """Send actions and return (observations, rewards, terminations, truncations, infos) of the next batch."""
        self.send(actions)
        return self.recv()[:5]

    # ----------------------------------------------------------------------------------------- asynchronous use

    @whole
    def async_reset(
        self, seed: int | Sequence[int] | None = None, options: Any = None, env_ids: Sequence[int] | None = None
    ) -> None:
        """Start new episodes; their first rows come by ``recv``.

        seed: starts the derivation of all seeds anew; a sequence: one an environment; None: each environment goes on
            with its own generator (its first reset is seeded by ``make(seed=…)``).
        options: a mapping for all, or a sequence of one an environment.
        env_ids: only these, which must not be in flight. None: all; actions already sent are executed first, and
            their rows dropped.

        Also mends what Ctrl-C has torn; earlier batches are then no longer valid, and worker processes new ones.
        """
        crew = self._open_crew()
        if env_ids is not None:
            self._refuse_torn()
        ids = list(range(self.num_envs)) if env_ids is None else checked_ids(env_ids, self.num_envs)
        if env_ids is not None:
            busy = [self._flight.describe(env_id) for env_id in ids if self._flight.states[env_id] in (FLYING, READY)]
            if busy:
                raise CallError(f"cannot reset: {'; '.join(busy[:8])}; recv first")
        seeds = self._given_seeds(seed, ids, everything=env_ids is None)
        each_options = options_per_env(options, len(ids))
        if env_ids is None and not self._torn:
            self._drain()
        for env_id in self._mend() if self._torn else crew.revive():
            self._restarts[env_id] += 1
            self._first_seeds[env_id] = self._seeds.draw(env_id, self._restarts[env_id])
        requests: dict[int, list[ResetOrder]] = {}
        for env_id, env_seed, env_options in zip(ids, seeds, each_options, strict=True):
            own_seed = self._first_seeds.get(env_id) if env_seed is None else env_seed
            order = ResetOrder(env_id, self._laps[env_id], own_seed, env_options)
            requests.setdefault(self._worker_of[env_id], []).append(order)
        sealed = {worker: crew.seal(Reset(orders)) for worker, orders in requests.items()}
        for env_id in ids:
            self._first_seeds.pop(env_id, None)
        alone = self._flight.num_flying + self._flight.num_ready == 0
        self._only_resets = env_ids is not None and (alone or self._only_resets)
        self._flight.depart(ids)
        for worker, request in sealed.items():
            crew.send(worker, request)

    @whole
    def send(self, actions: Any, env_ids: Sequence[int] | None = None) -> None:
        """Have environments play actions, whose rows come by ``recv``.

        actions: (rows, \\*single_action_space.shape), one row an agent, of the last batch, or of ``env_ids`` in that
            order; for a Tuple space, a tuple of such arrays. Copied. Actions of rows without a living agent, and of
            rows that start an episode next (autoreset), are ignored.
        Raises ActionError for a wrong shape or dtype, CallError for environments that do not wait; nothing is sent.
        """
        crew = self._open_crew()
        self._refuse_torn()
        if env_ids is None:
            if self._last_ids is None:
                raise CallError("there is no batch to act on yet; call reset, or async_reset and recv, first")
            ids = self._last_ids
        else:
            ids = checked_ids(env_ids, self.num_envs)
        components = checked_actions(actions, self._action_spaces, len(ids), self.agents_per_env)
        flight = self._flight
        if any(flight.states[env_id] != WAITING for env_id in ids):
            self._refuse_send(ids, asked=env_ids is not None)
        if self.autoreset_mode == "disabled" and any(flight.overs[env_id] for env_id in ids):
            over = [env_id for env_id in ids if flight.overs[env_id]]
            raise CallError(
                f"the episodes of environments {over} are over, and autoreset_mode is 'disabled'; "
                f"call {'reset' if self._plan.synchronous else 'async_reset'}(env_ids={over}) first"
            )
        everything = ids is self._in_order or ids == self._in_order
        for array, component in zip(self._action_arrays, components, strict=True):
            array[slice(None) if everything else ids] = component
        flight.depart(ids)
        self._only_resets = False
        if everything and self._plan.synchronous:
            crew.step_all(self._laps[0])
        else:
            crew.step(ids, [self._laps[env_id] for env_id in ids])

    @whole
    def recv(self, timeout: float | None = None) -> Batch:
        """Return the next batch, waiting for it up to ``timeout`` seconds (None: for ever).

        Raises WorkerError if an environment raised or a worker died; the object can then be reset or closed.
        Raises RecvTimeout, and loses nothing; CallError if so few environments are in flight that no batch can come.
        """
        self._refuse_torn()
        flight = self._flight
        deadline = None if timeout is None else time.monotonic() + timeout
        self._raise_error()
        coming, batch_size = flight.num_flying + flight.num_ready, self._plan.batch_size
        if coming < batch_size and not self._fill_with_unchanged():
            raise CallError(
                f"{coming} environments are in flight, and a batch holds {batch_size}: recv could never return; "
                f"{'send actions for more' if flight.of_state(WAITING) else 'call reset or async_reset first'}"
            )
        while not flight.batch_is_ready():
            if not self._pump(deadline):
                raise RecvTimeout(
                    f"no batch within {timeout} s: {flight.num_ready} environments have finished of the {batch_size} "
                    f"that it holds, {flight.of_state(FLYING)} are in flight; call recv again, or close"
                )
            self._raise_error()
        ids = flight.land()
        arrays = self._batches.take(ids, self._laps)
        infos: list[dict[str, Any]] = []
        for env_id in ids:
            self._laps[env_id] = (self._laps[env_id] + 1) % LAPS
            if self._infos:
                infos += self._infos.pop(env_id, ())
        self._last_ids = ids
        self._only_resets = False
        observations, rewards, terminations, truncations, masks = arrays
        batch_ids, agent_ids = self._batches.ids(ids)
        self.batch = Batch(observations, rewards, terminations, truncations, infos, batch_ids, agent_ids, masks)
        return self.batch

    # -------------------------------------------------------------------------------------------------- control

    def call(self, name: str, *args: Any, env_ids: Sequence[int] | None = None, **kwargs: Any) -> list[Any]:
        """Return, for each environment, the result of its method ``name``, or its attribute if it is not callable.

        The environments finish first what was sent to them. Results of other processes are copies.
        """
        return self._control("call", name, env_ids, lambda ids: args, kwargs)

    def get_attr(self, name: str, env_ids: Sequence[int] | None = None) -> list[Any]:
        """Return attribute ``name`` of each environment."""
        return self._control("get", name, env_ids, lambda ids: (), {})

    def set_attr(self, name: str, values: Any, env_ids: Sequence[int] | None = None) -> None:
        """Set attribute ``name``. values: a list or tuple of one an environment, or one value for all."""

        def each(ids: list[int]) -> tuple[Any, ...]:
            if not isinstance(values, (list, tuple)):
                return (values,) * len(ids)
            if len(values) != len(ids):
                raise PlanError(f"{len(values)} values for {len(ids)} environments; give one each, or one for all")
            return tuple(values)

        self._control("set", name, env_ids, each, {})

    def render(self, env_ids: Sequence[int] | None = None) -> list[Any]:
        """Return what ``render()`` of each environment returns."""
        return self.call("render", env_ids=env_ids)

    def close(self, grace_s: float = CLOSE_S) -> None:
        """Close all environments and end their workers. Safe to call again, and after any error.

        grace_s: how many seconds worker processes may take, before they are killed.
        """
        crew, self._crew = self._crew, None
        if crew is None:
            return
        self._finalizer.detach()
        for message in crew.close(grace_s):
            if isinstance(message, Failed):
                warnings.warn(str(message.error()), RuntimeWarning, stacklevel=2)
        self._slab.close()

    @property
    def closed(self) -> bool:
        """Whether ``close`` has been called."""
        return self._crew is None

    def __enter__(self) -> VecEnv:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        plan = self._plan
        return (
            f"{type(self).__name__}(num_envs={plan.num_envs}, num_workers={len(self._shares)}, "
            f"batch_size={plan.batch_size}, agents_per_env={self.agents_per_env}"
            f"{', closed' if self.closed else ''})"
        )

    # ------------------------------------------------------------------------------------- from send to recv

    def _pump(self, deadline: float | None) -> bool:
        """Take what the workers say; False if nothing came before the deadline."""
        crew = self._open_crew()
        if not self._inbox:
            timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
            self._inbox.extend(crew.poll(timeout))
        if not self._inbox:
            return False
        while self._inbox:
            self._take(self._inbox.popleft())
        return True

    def _take(self, message: Any) -> None:
        if isinstance(message, Done):
            self._flight.arrive(message.env_ids, message.overs)
            for info in message.infos:
                self._infos.setdefault(info["env_id"], []).append(info)
        elif isinstance(message, Reply):
            replies = self._replies.get(message.ticket)
            if replies is not None:
                replies.append(message)
        elif isinstance(message, Failed):
            self._errors.append(message.error())
            if message.env_id is not None:
                self._flight.fail(message.env_id)
        else:
            assert isinstance(message, Died), message
            self._errors.append(message.error())
            for env_id in message.env_ids:
                self._flight.fail(env_id)

    def _raise_error(self) -> None:
        if self._errors:
            raise self._errors.popleft()

    def _fill_with_unchanged(self) -> bool:
        """Complete a partial reset: copy the rows of the environments that still wait. False if it is none."""
        flight, slab = self._flight, self._slab
        if not (self._plan.synchronous and self._only_resets) or flight.of_state(NEW, FAILED):
            return False
        for env_id in flight.of_state(WAITING):
            lap = self._laps[env_id]
            old, new = slab.rows(env_id, (lap - 1) % LAPS), slab.rows(env_id, lap)
            for old_array, new_array in zip(old[:4], new[:4], strict=True):
                new_array[...] = old_array
            new.masks[...] = False
            flight.fill(env_id)
        return True

    def _drain(self) -> None:
        """Wait for what is in flight and drop it; environments that raised are about to be reset anyway."""
        while self._flight.num_flying:
            self._pump(None)
        self._flight.drop()
        self._infos.clear()
        while self._errors:
            warnings.warn(f"dropped by reset: {self._errors.popleft()}", RuntimeWarning, stacklevel=4)

    def _mend(self) -> list[int]:
        """Begin anew where Ctrl-C left things half done; return the environments that are new."""
        new = self._open_crew().mend()
        self._flight = Flight(self.num_envs, self._plan.batch_size, first_finished=self.first_finished)
        self._laps = [0] * self.num_envs
        for kept in (self._inbox, self._infos, self._errors):
            kept.clear()
        self._torn = False
        return new

    # ------------------------------------------------------------------------------------------------- checks

    def _refuse_torn(self) -> None:
        if self._torn:
            raise CallError("Ctrl-C has ended a call in the middle; call reset, which begins anew, or close")

    def _open_crew(self) -> Crew:
        if self._crew is None:
            raise ClosedError(f"this {type(self).__name__} is closed; make a new one")
        return self._crew

    def _refuse_send(self, ids: list[int], *, asked: bool) -> None:
        states = self._flight.states
        wrong = [env_id for env_id in ids if states[env_id] != WAITING]
        lost = [env_id for env_id in wrong if states[env_id] in (NEW, FAILED)]
        text = "; ".join(self._flight.describe(env_id) for env_id in wrong[:8])
        if lost:
            way_out = f"call reset, or async_reset(env_ids={lost[:8]})"
        elif asked:
            way_out = "name only environments whose rows have been received"
        else:
            way_out = "the last batch has been answered already; call recv"
        raise CallError(f"cannot send: {text}; {way_out}")

    def _given_seeds(self, seed: Any, ids: list[int], *, everything: bool) -> list[int | None]:
        if seed is None:
            return [None] * len(ids)
        if isinstance(seed, (Sequence, np.ndarray)):
            return listed_seeds(seed, len(ids))
        seeds = Seeds(checked_seed(seed), self.num_envs)
        if everything:
            self._seeds = seeds
        return [seeds[env_id] for env_id in ids]

    def _control(
        self,
        action: str,
        name: str,
        env_ids: Sequence[int] | None,
        args: Callable[[list[int]], tuple[Any, ...]],
        kwargs: dict[str, Any],
    ) -> list[Any]:
        return self._ask(action, name, env_ids, args, kwargs)(None)

    @whole
    def _ask(
        self,
        action: str,
        name: str,
        env_ids: Sequence[int] | None,
        args: Callable[[list[int]], tuple[Any, ...]],
        kwargs: dict[str, Any],
    ) -> Callable[[float | None], list[Any]]:
        """Have environments do something. Return what waits for their results, up to a number of seconds.

        Waiting raises RecvTimeout, and may then be tried again. Who needs no results need not wait.
        """
        crew = self._open_crew()
        self._refuse_torn()
        ids = list(range(self.num_envs)) if env_ids is None else checked_ids(env_ids, self.num_envs)
        given = args(ids)
        by_worker: dict[int, list[int]] = {}
        for env_id in ids:
            by_worker.setdefault(self._worker_of[env_id], []).append(env_id)
        gone = [worker for worker in by_worker if worker in crew.dead]
        if gone:
            raise CallError(f"workers {gone} have died; call reset, which starts them again, or close")
        self._num_calls += 1
        ticket = self._num_calls
        replies = self._replies[ticket] = Replies()  # gone once nobody waits for them
        sealed = {}
        for worker, share in by_worker.items():
            own = tuple(given[ids.index(env_id)] for env_id in share) if action == "set" else given
            sealed[worker] = crew.seal(Call(ticket, action, name, share, own, kwargs))
        for worker, request in sealed.items():
            crew.send(worker, request)

        def wait(timeout: float | None) -> list[Any]:
            deadline = None if timeout is None else time.monotonic() + timeout
            while len(replies) < len(by_worker):
                if not self._pump(deadline):
                    raise RecvTimeout(f"{len(replies)} of {len(by_worker)} workers have answered within {timeout} s")
                gone = [worker for worker in by_worker if worker in crew.dead]
                if gone:
                    self._raise_error()
                    raise CallError(f"workers {gone} died before they answered; call reset, or close")
            for reply in replies:
                if reply.failed is not None:
                    raise reply.failed.error()
            results = {
                env_id: result
                for reply in replies
                for env_id, result in zip(by_worker[reply.worker], reply.results, strict=True)
            }
            return [results[env_id] for env_id in ids]

        return wait


class Replies(list[Reply]):
    """The answers to one Call so far. (A plain list cannot be referred to weakly.)"""


def gymnasium_autoreset_mode(name: str) -> Any:
    """Return Gymnasium's AutoresetMode of this name, or the name where Gymnasium (0.29) has none."""
    mode = getattr(gymnasium.vector, "AutoresetMode", None)
    return name if mode is None else mode[name.upper()]
