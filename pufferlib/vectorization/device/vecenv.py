"""CUDA: a VecEnv whose environments run as kernels, with their state and everything that learners read on one device.

A launch steps environments, whose rows fill slots of a block; a full block is the next batch. By default, nothing is
copied to or from the device, and the host does not wait: work on the device can use a batch before it is complete.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, overload

import numpy as np

from pufferlib.emulation import emulate
from pufferlib.errors import CallError, PlanError
from pufferlib.util.annotations import Array, EnvCreator, EnvSource, ResetSeed
from pufferlib.util.parameters import Unpack
from pufferlib.util.suggestions import says_what_was_meant
from pufferlib.vectorization.core.arguments import (
    CHECKS,
    checked_backend_kwargs,
    checked_env_args,
    checked_fair,
    checked_ids,
    checked_limits,
    checked_restarts,
    deadline_of,
    misplaced,
    options_per_env,
    require_known,
)
from pufferlib.vectorization.core.batch import Batch
from pufferlib.vectorization.core.call_errors import NEW, WAITING, no_batch_error
from pufferlib.vectorization.core.messages import EnvSpec, Failed
from pufferlib.vectorization.core.parameters import VecEnvParameters
from pufferlib.vectorization.core.plan import (
    AUTORESET_MODES,
    Plan,
    Seeds,
    available_cpus,
    checked_count,
    checked_mode,
    checked_seed,
    reset_seeds,
)
from pufferlib.vectorization.core.tensors import imported_torch
from pufferlib.vectorization.core.vecenv import VecEnv
from pufferlib.vectorization.device.actions import Actions
from pufferlib.vectorization.device.block_shape import BlockShape
from pufferlib.vectorization.device.episodes import EpisodeStats, EpisodeSums
from pufferlib.vectorization.device.host_view import HostView
from pufferlib.vectorization.device.kernel_lookup import (
    device_of,
    kernel_of_all,
    reference_of,
    require_kernel_spaces,
    same_kwargs,
)
from pufferlib.vectorization.device.launchers import KernelStats, Launchers
from pufferlib.vectorization.device.policy import NO_POLICY, Chosen, Policies, num_continuous_of
from pufferlib.vectorization.device.queue import DeviceQueue
from pufferlib.vectorization.device.rollout import Rollout, played
from pufferlib.vectorization.device.rows import array_of
from pufferlib.vectorization.device.states import Ids
from pufferlib.vectorization.processes.start import start_method

__all__ = ["CUDA", "KernelStats"]


class CUDA(VecEnv):
    """A VecEnv whose environments run as one kernel. Batches are torch tensors on the device, or for "host" on the CPU.

    as_torch: False returns NumPy arrays and makes infos at once, both of which wait for a GPU.
    device: "cuda" (the default), another CUDA device, such as "cuda:1", or "host", with which this process runs the
        same kernel on the CPU.
    backend_kwargs: "threads", the number of threads on the host, by default one for each available CPU; "checked",
        whether the host runs the kernel slowly and as a device would: threads in shuffled order, with checked barriers
        (cuda_ext/checking.py).

    Each kernel has a reference: an ordinary environment with the same dynamics. All environments take the same
    arguments, and resets accept only options that do not change the reference's first state. Only one thread at a time
    may use the object.

    Actions on the host are checked at every step. Actions in tensors on a GPU are checked at each environment's first
    step. With ``check="always"`` or ``debug=True`` they are checked at every step, which waits for the GPU. At a step
    without a check, an action outside the space is played as action 0, and NaN in a Box as its lower bound. Numbers
    beyond a Box's bounds are clipped.

    ``infos`` are made when they are read, which copies some columns of the batch to the host.
    ``info["episode"]["t"]`` is estimated: the number of steps times the mean time of a step. With
    ``autoreset_mode="disabled"``, an environment whose episode is over stays unchanged, with masks False, until it is
    reset, so that the host need not wait for the device.

    ``get_attr`` and ``set_attr`` access the state fields of the kernel's schema. ``call``, ``render``, and ``get_attr``
    of anything else use a reference environment set to the environment's state. ``states`` returns states that can be
    stored; ``twin`` returns a reference environment set to such a state, for example to render it later.
    """

    backend = "cuda"

    @says_what_was_meant(misplaced, "env_kwargs", VecEnvParameters)
    def __init__(self, env: EnvSource, **kwargs: Unpack[VecEnvParameters]) -> None:
        kernel, num_envs = kernel_of_all(env, kwargs["num_envs"])
        plan = Plan.of(num_envs, kwargs["num_workers"], kwargs["batch_size"])
        autoreset_mode = checked_mode(kwargs["autoreset_mode"])
        check, debug, as_torch = kwargs["check"], kwargs["debug"], kwargs["as_torch"]
        require_known("check", check, CHECKS)
        # unused here; a wrong value is an error on every backend
        checked_limits(kwargs["step_timeout"], kwargs["reset_timeout"])
        checked_restarts(kwargs["on_error"], kwargs["max_restarts"])
        if (context := kwargs["context"]) is not None:
            start_method(context)
        if (fair := checked_fair(kwargs["fair"])) is not None:
            raise PlanError(f"fair={fair!r}: a kernel steps all environments alike, none gets ahead; leave it out")
        if wrap_kwargs := kwargs["wrap_kwargs"]:
            raise PlanError(f"wrap_kwargs={dict(wrap_kwargs)!r}: a kernel's rows are flat already; leave it out")
        own_kwargs = checked_backend_kwargs(kwargs["backend_kwargs"], ("threads", "checked", "telemetry"), self.backend)
        num_threads, checked = own_kwargs.get("threads"), bool(own_kwargs.get("checked", False))
        num_threads = available_cpus() if num_threads is None else checked_count("threads", num_threads)
        self._torch = torch = imported_torch()
        self.device = device_of(torch, kwargs["device"])
        if checked and self.device.type != "cpu":
            raise PlanError('backend_kwargs={"checked": True} is of the host; give device="host" too')
        self._seeds: Seeds | None = None
        self._seed = checked_seed(kwargs["seed"])

        make_reference = functools.partial(
            reference_of(kernel),
            *checked_env_args(kwargs["env_args"]),
            **same_kwargs(kwargs["env_kwargs"], plan.num_envs),
        )
        with ExitStack() as undo:
            try:
                self._reference = reference = make_reference()
                undo.callback(close, reference)
                env_spec = EnvSpec.of(emulate(reference))
            except Exception as error:  # any error of the user's environment
                raise Failed.of(0, 0, "__init__", error).error() from error
            self._look_like(env_spec, plan.num_envs, plan.batch_size, autoreset_mode)
            space = self.single_action_space
            require_kernel_spaces(kernel.name, self.single_observation_space, space)
            shape = BlockShape.of(self)
            fixed = {
                "autoreset": AUTORESET_MODES.index(self.autoreset_mode),
                "policy": NO_POLICY,
                "num_continuous": num_continuous_of(space),
            }
            self._launchers = launchers = Launchers(
                torch, self.device, kernel, reference, shape, fixed, num_threads, checked
            )
            self._host_view = HostView(launchers.data, reference)
            self._policies = policies = Policies(torch, shape, space, launchers)
            self._queue = DeviceQueue(torch, shape, launchers)
            checks = launchers.step.checks_actions and not policies.num_continuous
            if checks:
                launchers.step.set({name: policies.fixed[name] for name in ("policy_nvec", "policy_num_choices")})
            always = debug or check == "always"
            self._actions = Actions(torch, launchers.data, space, shape, always=always, launches_check=checks)
            self._copy, self._debug, self._as_arrays = kwargs["copy"], debug, as_torch is not None and not as_torch
            self._batch: Batch | None = None
            launchers.clear_stats()
            undo.pop_all()

    # ----------------------------------------------------------------------------------------- asynchronous use

    def async_reset(self, seed: ResetSeed = None, options: Any = None, env_ids: Sequence[int] | None = None) -> None:
        queue = self._queue
        self._launchers.require_open()
        queue.streams.current()  # it may raise, while nothing has changed
        ids: Ids
        if env_ids is None:
            ids = range(self.num_envs)
        else:
            ids = np.array(checked_ids(env_ids, self.num_envs))
            queue.require_received(ids)
        seeds, new_seeds = reset_seeds(seed, ids, self.num_envs)
        wrong = [value for value in seeds if value is not None and value >= 2**32]
        if wrong:
            raise PlanError(f"seeds {wrong[:8]} are none for a kernel; give each environment 0 to 2**32 - 1, or None")
        if options is not None:
            self._host_view.require_no_effect(options_per_env(options, len(ids)), _listed(ids))
        if env_ids is None:
            self._seeds = new_seeds or self._seeds
        if queue.states.all in (None, NEW):
            fresh = (queue.states.of(ids) == NEW).tolist()
            seeds = [
                self._first_seed(env_id) if new and value is None else value
                for env_id, new, value in zip(ids, fresh, seeds, strict=True)
            ]
        queue.reset(ids, seeds, partial=env_ids is not None)

    def _first_seed(self, env_id: int) -> int:
        """Return the seed for the first reset of an environment."""
        if self._seeds is None:
            self._seeds = Seeds(self._seed, self.num_envs)
        return self._seeds[env_id]

    def send(self, actions: Any, env_ids: Sequence[int] | None = None, *, out: Sequence[Any] | None = None) -> None:
        """Send actions to environments, as on every backend (see ``VecEnv.send``); ``recv`` returns the rows.

        out: tensors into which the step writes its rows, without a copy, such as those of a rollout: observations,
            rewards, terminations, truncations and masks, in this order, each with the shape, dtype and device that it
            has in a batch, and contiguous. ``recv`` returns a batch of these tensors. They belong to the caller, so
            the batch is valid until the caller, or a later step with the same ``out``, changes them; its infos, ids and
            ``final_observations`` expire with the second ``recv`` after it, as always.

        Raises CallError for an ``out`` that does not fit, and for one with env_ids, or with batch_size < num_envs.
        """
        queue = self._queue
        if out is not None:
            queue.require_out(out, named=env_ids is not None)
        if env_ids is None and queue.states.all == WAITING:
            plain = self._actions.plain(actions)
            if plain is not None and queue.step_all(plain, out):
                return
        ids = self._ids_of(env_ids)
        tensor = self._actions.checked(actions, _listed(ids))
        queue.require_waiting(ids, "send", named=env_ids is not None)
        queue.launch(ids, tensor, out=out)

    def remake(self, env_ids: Sequence[int], creators: Sequence[EnvCreator] | None = None) -> None:
        checked_ids(env_ids, self.num_envs)
        if creators is not None:
            raise CallError("the environments of a kernel share their arguments; creators cannot replace them")

    def _ids_of(self, env_ids: Sequence[int] | None) -> Ids:
        """Return the environments of a call: ``env_ids``, by default the environments of the last batch.

        Raises ClosedError after ``close``; CallError for invalid ids, or if there are no ids and no batch.
        """
        self._launchers.require_open()
        self._queue.streams.current()
        if env_ids is not None:
            return np.array(checked_ids(env_ids, self.num_envs))
        last_ids = self._queue.last_ids
        if last_ids is None:
            raise no_batch_error()
        return last_ids

    def recv(self, timeout: float | None = None) -> Batch:
        if timeout is not None:
            deadline_of(timeout)  # refuses what the other backends refuse
        block = self._queue.receive(self._debug)
        self._batch = batch = block.batch(copied=self._copy, as_arrays=self._as_arrays)
        return batch

    def send_logits(
        self, logits: Any, masks: Any = None, env_ids: Sequence[int] | None = None, *, greedy: bool = False
    ) -> Chosen:
        """Choose actions from logits, send them, and return the choices.

        If batches hold all environments and env_ids is None, one launch chooses the actions and plays them.

        logits: float32 (rows, options of all discrete actions). masks: bool or uint8 of this shape, True where an
        option is allowed. env_ids: see ``send``. greedy: whether to choose the likeliest action. The returned Chosen is
        valid at least as long as the next batch. ``cuda_ext/references/sampling.py`` defines the sampling, and the
        result for NaN. Raises ActionError for logits or masks of a wrong shape or dtype; CallError if an environment is
        not waiting for an action.
        """
        queue = self._queue
        if env_ids is None and queue.states.all == WAITING and queue.shape.synchronous:
            logits, masks = self._policies.checked(logits, masks, self.num_envs)
            chosen = queue.choose_all(self._policies, logits, masks, greedy)
            return self._handed(Chosen(*(tensor.clone() for tensor in chosen)) if self._copy else chosen)
        ids, chosen = self._sampled(logits, masks, env_ids, greedy)
        queue.launch(ids, chosen.actions)
        return self._handed(chosen)

    def sample(
        self, logits: Any, masks: Any = None, env_ids: Sequence[int] | None = None, *, greedy: bool = False
    ) -> Chosen:
        """Return the actions that ``send_logits`` would choose, without sending them.

        The returned Chosen stays valid forever. logits, masks, env_ids, greedy and errors: see ``send_logits``.
        """
        return self._handed(self._sampled(logits, masks, env_ids, greedy)[1])

    def _handed(self, chosen: Chosen) -> Chosen:
        """Return chosen actions in the user's form: as arrays if ``as_torch`` is False."""
        return Chosen(*map(array_of, chosen)) if self._as_arrays else chosen

    def _sampled(self, logits: Any, masks: Any, env_ids: Sequence[int] | None, greedy: bool) -> tuple[Ids, Chosen]:
        """Choose actions for waiting environments; return the environments and the choices."""
        ids = self._ids_of(env_ids)
        logits, masks = self._policies.checked(logits, masks, len(ids))
        self._queue.require_waiting(ids, "sample", named=env_ids is not None)
        return ids, self._policies.sample(ids, logits, masks, greedy=greedy, streams=self._queue.streams)

    @overload
    def rollout(self, num_steps: int, actions: Any = None, *, keep: bool = True) -> Batch: ...
    @overload
    def rollout(
        self, num_steps: int, *, policy: Any, greedy: bool = False, keep: bool = True, precision: str = "float32"
    ) -> Rollout: ...
    def rollout(
        self,
        num_steps: int,
        actions: Any = None,
        *,
        policy: Any = None,
        greedy: bool = False,
        keep: bool = True,
        precision: str = "float32",
    ) -> Batch | Rollout:
        """Play many steps in one launch, and return their rows.

        Columns have the shape (num_steps, rows, …), except ``env_ids`` and ``agent_ids``, which are those of a batch.

        actions: a table (num_steps, rows, …); by default, uniform random actions from the environments' generators. The
            action of a step that starts an episode (next_step) is ignored.
        policy: a torch.nn.Sequential of Linear, Tanh and ReLU, from a row's observation to the logits of its action;
            or, on the host, a cuda_ext.learner.fused.FusedLearner; or, on its device, a
            cuda_ext.learner.device.DeviceLearner. The result is then a Rollout, which also holds the policy's choices.
            greedy: whether the policy chooses the likeliest action.
        keep: True returns the rows of all steps, which stay valid forever, without infos; read ``terminations`` and
            ``truncations`` instead. False returns only the rows of the last step, (rows, …), which are valid as long as
            a batch is. Without a table of actions, the launch then writes no other rows.
        precision: "float32", or "bfloat16", in which a GPU's tensor cores compute the policy (sm_80 or later): faster,
            with less exact logits (docs/kernels.md).

        Afterwards ``batch`` holds the last step's rows, and ``send`` continues from there. Raises CallError unless all
        environments wait and batches hold all of them, for an impossible ``num_steps``, if both actions and a policy
        are given, and for a precision without such a policy; ActionError for invalid actions; KernelError for a policy
        that no kernel can run, and for bfloat16 on a device without such tensor cores.
        """
        self._launchers.require_open()
        self._queue.streams.current()
        parts = self._queue, self._actions, self._policies, self.recv
        last: Any = played(*parts, num_steps, actions, policy, greedy=greedy, keep=keep, precision=precision)
        if self._as_arrays:
            last = last._make(array_of(column) if isinstance(column, self._torch.Tensor) else column for column in last)
        return last  # type: ignore[no-any-return]

    # -------------------------------------------------------------------------------------------------- control

    @property
    def batch(self) -> Batch | None:
        return self._batch

    @property
    def host_batch(self) -> Batch | None:
        batch: Any = self._batch
        if batch is None or self._as_arrays:
            return self._batch
        if self._copy:
            return Batch._make(part if isinstance(part, Sequence) else array_of(part) for part in batch)
        block = self._queue.newest()
        assert block is not None  # there is a batch
        return Batch.of(block.arrays(), batch.infos)

    @property
    def restarts(self) -> list[int]:
        return [0] * self.num_envs

    @property
    def data(self) -> Any:
        """The data manager (cuda_ext.data.Data), which holds the environments' fields as arrays on the device."""
        return self._launchers.data

    def call(self, name: str, *args: Any, env_ids: Sequence[int] | None = None, **kwargs: Any) -> list[Any]:
        self._queue.settle()
        return self._host_view.call(name, args, kwargs, self._chosen(env_ids))

    def get_attr(self, name: str, env_ids: Sequence[int] | None = None) -> list[Any]:
        self._queue.settle()
        return self._host_view.get(name, self._chosen(env_ids))

    def set_attr(self, name: str, values: Any, env_ids: Sequence[int] | None = None) -> None:
        self._queue.settle()
        self._host_view.set(name, values, self._chosen(env_ids))

    def _chosen(self, env_ids: Sequence[int] | None) -> list[int]:
        return list(range(self.num_envs)) if env_ids is None else checked_ids(env_ids, self.num_envs)

    def states(self, env_ids: Any = None) -> dict[str, Any]:
        """Return the states of environments by field, as new tensors on the device, (environments, …).

        env_ids: a sequence, or an int64 tensor on the device, which needs no copy to the device and no wait; by
        default, all.
        """
        self._queue.settle()
        if not isinstance(env_ids, self._torch.Tensor):
            env_ids = self._torch.tensor(self._chosen(env_ids), dtype=self._torch.int64, device=self.device)
        return self._host_view.states(env_ids)

    def twin(self, state: Mapping[str, Array]) -> Any:
        """Return a reference environment in a given state.

        state: one environment's fields from ``states``, as NumPy arrays.
        """
        self._launchers.require_open()
        return self._host_view.environment(state)

    def stats(self, *, reset: bool = False) -> KernelStats:  # type: ignore[override]  # kernels count other things
        """Return the counts of launches, steps and bytes since ``make`` or the last ``stats(reset=True)``."""
        self._launchers.require_open()
        stats = self._launchers.stats()
        if reset:
            self._launchers.clear_stats()
        return stats

    def episode_stats(self, *, reset: bool = False) -> EpisodeStats:
        """Return means over ended episodes; print them for a summary.

        They cover the episodes that have ended since the VecEnv was made, or since the last call with reset=True,
        including steps launched but not received. This waits for the device; see ``episode_sums``.
        """
        sums = self.episode_sums(reset=reset)
        self._launchers.count_read(sums.nbytes)
        return sums.stats()

    def episode_sums(self, *, reset: bool = False) -> EpisodeSums:
        """Return the sums behind ``episode_stats``, on the device, without waiting.

        The ``stats()`` of the result waits. reset: see ``episode_stats``.
        """
        self._queue.settle()
        return EpisodeSums.of(self._launchers.data.arrays, self.agent_names, reset=reset)

    def close(self, grace_s: float = 0.0) -> None:
        """Close all environments; safe to call again. grace_s: unused; other backends need it."""
        if self._launchers.closed:
            return
        self._queue.close()
        self._batch = None
        del self._actions, self._policies, self._host_view
        close(self._reference)

    @property
    def closed(self) -> bool:
        return self._launchers.closed

    def __repr__(self) -> str:
        return (
            f"CUDA(num_envs={self.num_envs}, batch_size={self.batch_size}, device={str(self.device)!r}, "
            f"agents_per_env={self.agents_per_env}{', closed' if self.closed else ''})"
        )


def close(reference: Any) -> None:
    """Close a reference environment if it has a ``close``."""
    if (method := getattr(reference, "close", None)) is not None:
        method()


def _listed(ids: Ids) -> Sequence[int]:
    return ids if isinstance(ids, range) else ids.tolist()
