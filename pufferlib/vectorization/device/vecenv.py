"""CUDA: environments that run as kernels, with their state and all that learners read on one device.

A launch steps environments, whose rows fill slots of a block; a full block is the next batch. Nothing is copied to or
from the device, and the host does not wait: work on the device can use a batch before it is complete.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import gymnasium
import numpy as np

from pufferlib.emulation import emulate
from pufferlib.errors import KernelError, PlanError
from pufferlib.util.annotations import ResetSeed
from pufferlib.util.suggestions import says_what_was_meant
from pufferlib.vectorization.core.arguments import (
    CHECKS,
    checked_backend_kwargs,
    checked_env_args,
    checked_ids,
    checked_limits,
    checked_restarts,
    misplaced,
    options_per_env,
    require_known,
)
from pufferlib.vectorization.core.batch import Batch
from pufferlib.vectorization.core.call_errors import (
    closed_error,
    in_flight_error,
    no_batch_error,
    not_waiting_error,
    too_few_in_flight_error,
)
from pufferlib.vectorization.core.messages import EnvSpec, Failed
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
from pufferlib.vectorization.device.episodes import EpisodeStats, EpisodeSums
from pufferlib.vectorization.device.host_view import HostView
from pufferlib.vectorization.device.kernel_lookup import device_of, kernel_of_all, reference_of, same_kwargs
from pufferlib.vectorization.device.policy import LOGITS, NO_POLICY, Chosen, Policies
from pufferlib.vectorization.device.rollout import Rollout, played
from pufferlib.vectorization.device.rows import FLYING, NEW, WAITING, Block, Ids, States, array_of
from pufferlib.vectorization.device.streams import Streams, require_uncaptured
from pufferlib.vectorization.processes.start import start_method

__all__ = ["CUDA", "KernelStats"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class KernelStats:
    """Counts of launches, steps and bytes. seconds: since counting began; launches may still be under way."""

    num_launches: int
    num_env_steps: int
    seconds: float
    host_to_device_nbytes: int  # by the data manager, seeds and actions
    device_to_host_nbytes: int  # infos and attributes that were read

    @property
    def env_steps_per_s(self) -> float:
        return self.num_env_steps / self.seconds

    @property
    def steps_per_s(self) -> float:
        """The same as ``env_steps_per_s``, under the name in the statistics of other backends."""
        return self.env_steps_per_s

    def __str__(self) -> str:
        return (
            f"{self.num_env_steps:,} environment steps in {self.num_launches:,} launches and {self.seconds:.3g} s, "
            f"{self.env_steps_per_s:,.0f} a second; {self.host_to_device_nbytes:,} bytes went to the device, "
            f"{self.device_to_host_nbytes:,} came back"
        )


class CUDA(VecEnv):
    """A VecEnv whose environments run as one kernel. Batches are torch tensors on the device, or for "host" on the CPU.

    as_torch: False returns NumPy arrays, and makes infos at once; both wait for a GPU.
    device: "cuda" (the default), "cuda:1", or "host": the same kernel, run by this process.
    backend_kwargs: threads: the number of threads on the host, by default one for each available CPU. checked: run on
        the host in the order of a device, shuffled, with checked barriers: slow (cuda_ext/checking.py).

    All environments take the same arguments, and resets accept only options that do not change the reference's first
    state. Actions on the host are checked at every step. Actions in tensors on a GPU are checked at each environment's
    first step, and at every step with ``check="always"`` or ``debug=True``, which waits for the GPU; at other steps an
    action outside the space is played as action 0. ``infos`` are made when they are read, which copies some columns of
    the batch to the host; ``info["episode"]["t"]`` is the episode's share of the time that ``stats`` counts. With
    ``autoreset_mode="disabled"`` an environment whose episode is over stays unchanged, with masks False, until it is
    reset, so that the host need not wait for the device. ``get_attr`` and ``set_attr`` access the fields of the
    kernel's schema; ``call`` and ``render`` use a reference environment set to an environment's state. ``states`` and
    ``twin`` are these two steps separately, to store states and render them later. One thread at a time.
    """

    backend = "cuda"

    @says_what_was_meant(misplaced, "env_kwargs")
    def __init__(
        self,
        env: Any,
        *,
        num_envs: int | None = None,
        num_workers: int | None = None,
        batch_size: int | None = None,
        seed: int | None = None,
        env_args: Sequence[Any] = (),
        env_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        wrap_kwargs: Mapping[str, Any] | None = None,
        autoreset_mode: Any = "next_step",
        context: str | None = None,
        copy: bool = False,
        as_torch: bool | None = None,
        device: Any = None,
        check: str = "first",
        debug: bool = False,
        on_error: str = "raise",
        max_restarts: int | None = 3,
        step_timeout: float | None = None,
        reset_timeout: float | None = None,
        backend_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        kernel, num_envs = kernel_of_all(env, num_envs)
        self._plan = plan = Plan.of(num_envs, num_workers, batch_size)
        autoreset_mode = checked_mode(autoreset_mode)
        require_known("check", check, CHECKS)
        checked_limits(step_timeout, reset_timeout)  # unused here; a wrong value is an error on every backend
        checked_restarts(on_error, max_restarts)
        if context is not None:
            start_method(context)
        if wrap_kwargs:
            raise PlanError(f"wrap_kwargs={dict(wrap_kwargs)!r}: a kernel's rows are flat already; leave it out")
        own_kwargs = checked_backend_kwargs(backend_kwargs, ("threads", "checked", "telemetry"), self.backend)
        num_threads, checked = own_kwargs.get("threads"), bool(own_kwargs.get("checked", False))
        num_threads = available_cpus() if num_threads is None else checked_count("threads", num_threads)
        self._torch = torch = imported_torch()
        self.device = device_of(torch, device)
        self._on_host = self.device.type == "cpu"
        if checked and self.device.type != "cpu":
            raise PlanError('backend_kwargs={"checked": True} is of the host; give device="host" too')
        self._seeds: Seeds | None = None
        self._seed = checked_seed(seed)

        make_reference = functools.partial(
            reference_of(kernel), *checked_env_args(env_args), **same_kwargs(env_kwargs, plan.num_envs)
        )
        try:
            self._reference = reference = make_reference()
            env_spec = EnvSpec.of(emulate(reference))
        except Exception as error:  # any error of the user's environment
            raise Failed.of(0, 0, "__init__", error).error() from error
        self._look_like(env_spec, plan.num_envs, plan.batch_size, autoreset_mode)
        self._check_spaces(kernel.name)
        self._open(kernel, num_threads, checked)
        self._leased: deque[Block] = deque()
        self._stream = _host_stream if self._on_host else Streams(torch, self.device, self._newest).current
        self._host_view = HostView(self._data, reference)
        self._policies = Policies(self, torch)
        batches = -(-plan.num_envs // plan.batch_size)
        self._blocks = [Block(self, torch, plan.batch_size) for _ in range(batches + 2)]
        self._free = deque(self._blocks)
        self._filling: Block | None = None
        self._full: deque[Block] = deque()
        self._states = States(plan.num_envs)
        self._everyone = range(plan.num_envs)
        checks = self._launcher.checks_actions
        if checks:
            self._launcher.set({name: self._policies.fixed[name] for name in ("policy_nvec", "policy_num_choices")})
        self._actions = Actions(
            torch,
            self._data,
            self.single_action_space,
            plan.num_envs,
            self.agents_per_env,
            synchronous=plan.synchronous,
            always=debug or check == "always",
            launches_check=checks,
        )
        self._copy, self._debug, self._as_arrays = copy, debug, as_torch is not None and not as_torch
        self._batch: Batch | None = None
        self._last: Ids | None = None  # the environments of the last batch
        self._only_resets = False
        self._closed = False
        self._clear_stats()

    def _open(self, kernel: Any, num_threads: int, checked: bool) -> None:
        """Make the arrays, and compile the kernel."""
        data, launcher = importlib.import_module("cuda_ext.data"), importlib.import_module("cuda_ext.launcher")
        self._data = data.Data(kernel, self.num_envs, self.agents_per_env, self.device, self._reference)
        fixed = {
            **self._data.parameters,
            "num_agents": self.agents_per_env,
            "observation_size": int(np.prod(self.single_observation_space.shape or (1,))),
            "autoreset": AUTORESET_MODES.index(self.autoreset_mode),
            "policy": NO_POLICY,
        }

        def make_launcher(**more: Any) -> Any:
            context: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
            if not self._on_host:
                context = self._torch.cuda.device(self.device)
                require_uncaptured(
                    self._torch,
                    self._torch.cuda.current_stream(self.device),
                    "this call is the first that needs its kernel, which is compiled and loaded then, and a capture "
                    "holds none of that; make it once before the capture",
                )
            with context:
                instance = launcher.Launcher(kernel, self._data, {**fixed, **more}, num_threads, checked)
            self._launchers.append(instance)
            return instance

        self._launchers: list[Any] = []
        self._launcher = make_launcher(num_steps=1, step_slots=0)
        self._launcher_of = functools.cache(make_launcher)  # variants, compiled at their first use

    def _check_spaces(self, name: str) -> None:
        observed, acted = self.single_observation_space, self.single_action_space
        if observed.dtype != np.float32:
            raise KernelError(
                f'"{name}" observes {observed.dtype}, and kernels write float32; make its observations float32'
            )
        if not isinstance(acted, (gymnasium.spaces.Discrete, gymnasium.spaces.MultiDiscrete)):
            raise KernelError(f'"{name}" takes {acted}, and kernels take Discrete or MultiDiscrete actions')
        if np.any(getattr(acted, "start", 0)):
            raise KernelError(f'"{name}" takes {acted}, and kernels number actions from 0; leave start out')

    # ----------------------------------------------------------------------------------------- asynchronous use

    def async_reset(self, seed: ResetSeed = None, options: Any = None, env_ids: Sequence[int] | None = None) -> None:
        self._refuse_closed()
        self._stream()  # it may raise, while nothing has changed
        ids: Ids
        if env_ids is None:
            ids = range(self.num_envs)
        else:
            ids = np.array(checked_ids(env_ids, self.num_envs))
            flying = ids[self._states.of(ids) == FLYING].tolist()
            if flying:
                raise in_flight_error(dict.fromkeys(flying, FLYING))
        seeds, new_seeds = reset_seeds(seed, ids, self.num_envs)
        wrong = [value for value in seeds if value is not None and value >= 2**32]
        if wrong:
            raise PlanError(f"seeds {wrong[:8]} are none for a kernel; give each environment 0 to 2**32 - 1, or None")
        if options is not None:
            self._host_view.require_no_effect(options_per_env(options, len(ids)), _listed(ids))
        if env_ids is None:
            self._drop()
            self._seeds = new_seeds or self._seeds
        self._only_resets = env_ids is not None and (self._only_resets or not len(self._states.where(FLYING)))
        if self._states.all in (None, NEW):
            fresh = (self._states.of(ids) == NEW).tolist()
            seeds = [
                self._first_seed(env_id) if new and value is None else value
                for env_id, new, value in zip(ids, fresh, seeds, strict=True)
            ]
        seeded = np.array([value is not None for value in seeds])
        if seeded.all():
            self._launch(ids, None, seeds=np.array(seeds, np.uint32), resets=True)
        elif not seeded.any():
            self._launch(ids, None, resets=True)
        else:
            some = np.array([value for value in seeds if value is not None], np.uint32)
            self._launch(np.asarray(ids)[seeded], None, seeds=some, resets=True)
            self._launch(np.asarray(ids)[~seeded], None, resets=True)

    def _first_seed(self, env_id: int) -> int:
        """Return the seed of an environment that was never reset."""
        if self._seeds is None:
            self._seeds = Seeds(self._seed, self.num_envs)
        return self._seeds[env_id]

    def send(self, actions: Any, env_ids: Sequence[int] | None = None) -> None:
        if env_ids is None and self._states.all == WAITING:
            plain = self._actions.plain(actions)
            if plain is not None and self._send_all(plain):
                return
        ids = self._ids_of(env_ids)
        tensor = self._actions.checked(actions, _listed(ids))
        self._refuse_busy(ids, env_ids, "send")
        self._only_resets = False
        self._launch(ids, tensor)

    def _ids_of(self, env_ids: Sequence[int] | None) -> Ids:
        """Return the environments of a call: those named, or those of the last batch."""
        self._refuse_closed()
        self._stream()
        if env_ids is not None:
            return np.array(checked_ids(env_ids, self.num_envs))
        if self._last is None:
            raise no_batch_error()
        return self._last

    def _refuse_busy(self, ids: Ids, env_ids: Sequence[int] | None, what: str) -> None:
        if self._states.all == WAITING:
            return
        states = self._states.of(ids)
        busy = states != WAITING
        if busy.any():
            wrong = dict(zip(np.asarray(ids)[busy].tolist(), states[busy].tolist(), strict=True))
            raise not_waiting_error(what, wrong, named=env_ids is not None)

    def _send_all(self, actions: Any) -> bool:
        """Step all environments with actions that need no conversion: the plain case, as cheap as its launch.

        Return False, and change nothing, if the launch refuses an action.
        """
        block = self._free[0]
        block.begin()
        played = block.play_all(actions)
        if played:
            self._all_sent(block)
        return played

    def _all_sent(self, block: Block) -> None:
        """Record that a block with the rows of all environments has been launched."""
        self._free.popleft()
        block.ids, block.num_filled = self._everyone, self.num_envs
        self._full.append(block)
        self._states.all = FLYING
        self._num_launches += 1
        self._num_env_steps += self.num_envs

    def recv(self, timeout: float | None = None) -> Batch:
        if not self._full:
            self._refuse_closed()
            self._fill_with_unchanged()
        block = self._finished()
        if len(self._leased) == 2:  # valid until the second recv after its own
            old = self._leased.popleft()
            old.expire(self._debug)
            self._free.append(old)
        self._leased.append(block)
        self._states.set(block.ids, WAITING)
        self._last = block.ids
        self._only_resets = False
        self._batch = batch = block.batch(copied=self._copy, as_arrays=self._as_arrays)
        return batch

    def send_logits(
        self, logits: Any, masks: Any = None, env_ids: Sequence[int] | None = None, *, greedy: bool = False
    ) -> Chosen:
        """Choose actions from logits and send them; for all environments, in the launch that plays them.

        logits: float32 (rows, options of all discrete actions). masks: bool or uint8 of this shape, True if allowed.
        greedy: choose the likeliest action. The returned Chosen is valid as long as the next batch.
        ``cuda_ext/references/sampling.py`` defines the sampling, and the result for NaN. Raises ActionError.
        """
        if env_ids is None and self._states.all == WAITING and self._plan.synchronous:
            logits, masks = self._policies.checked(logits, masks, self.num_envs)
            block = self._free[0]
            block.begin()
            chosen = block.choose_all(logits, masks, greedy)
            self._all_sent(block)
            return self._handed(Chosen(*(tensor.clone() for tensor in chosen)) if self._copy else chosen)
        ids, chosen = self._sampled(logits, masks, env_ids, greedy)
        self._only_resets = False
        self._launch(ids, chosen.actions)
        return self._handed(chosen)

    def sample(
        self, logits: Any, masks: Any = None, env_ids: Sequence[int] | None = None, *, greedy: bool = False
    ) -> Chosen:
        """Choose the actions that ``send_logits`` would choose, in one launch, without sending them. They stay valid.

        logits, masks, greedy: see ``send_logits``.
        """
        return self._handed(self._sampled(logits, masks, env_ids, greedy)[1])

    def _handed(self, chosen: Chosen) -> Chosen:
        """Return chosen actions for the user: as arrays if ``as_torch`` is False."""
        return Chosen(*map(array_of, chosen)) if self._as_arrays else chosen

    def _sampled(self, logits: Any, masks: Any, env_ids: Sequence[int] | None, greedy: bool) -> tuple[Ids, Chosen]:
        """Choose actions for waiting environments; return the environments and the choices."""
        ids = self._ids_of(env_ids)
        logits, masks = self._policies.checked(logits, masks, len(ids))
        self._refuse_busy(ids, env_ids, "sample")
        contiguous = isinstance(ids, range)
        tensors: list[Any] = []
        chosen = self._policies.chosen(len(logits))
        launcher = self._launcher_of(policy=LOGITS, num_steps=0, step_slots=0)
        launcher.set({**self._policies.fixed, **self._policies.addresses(chosen), "policy_greedy": greedy})
        launcher.set({"policy_logits": logits.data_ptr(), "policy_masks": 0 if masks is None else masks.data_ptr()})
        launcher.set({"first_env": ids[0] if contiguous else 0})
        launcher.set({"env_ids": 0 if contiguous else self._carried(np.asarray(ids, np.int32), tensors)})
        launcher.launch(len(ids), self._stream())
        self._num_launches += 1
        return ids, chosen

    @overload
    def rollout(self, num_steps: int, actions: Any = None, *, keep: bool = True) -> Batch: ...
    @overload
    def rollout(self, num_steps: int, *, policy: Any, greedy: bool = False, keep: bool = True) -> Rollout: ...
    def rollout(
        self, num_steps: int, actions: Any = None, *, policy: Any = None, greedy: bool = False, keep: bool = True
    ) -> Batch | Rollout:
        """Play many steps in one launch, and return their rows, each column (num_steps, rows, …), valid for ever.

        actions: a table (num_steps, rows, …); None: uniform random actions from the environments' generators. The
            action of a step that starts an episode (next_step) is ignored.
        policy: a torch.nn.Sequential of Linear, Tanh and ReLU, from a row's observation to the logits of its action;
            the result then holds its choices as well. greedy: choose the likeliest action.
        keep: False returns only the rows of the last step, (rows, …), and, without a table, writes no others.
        Afterwards ``batch`` holds the last step's rows, and ``send`` continues from there. There are no infos; read
        ``terminations`` and ``truncations``. Raises CallError unless all environments wait and batches hold all of
        them, KernelError for a policy that no kernel can run.
        """
        return played(self, num_steps, actions, policy, greedy, keep)

    def _finished(self) -> Block:
        """Take a full block that is done, or the oldest one, for which the caller's stream then waits."""
        if not self._full:
            num_flying, some_wait = len(self._states.where(FLYING)), len(self._states.where(WAITING)) > 0
            raise too_few_in_flight_error(num_flying, self._plan.batch_size, some_wait=some_wait)
        if self._plan.synchronous:
            self._stream()
            return self._full.popleft()
        block = next((full for full in self._full if full.is_done()), self._full[0])
        self._full.remove(block)
        block.wait()
        return block

    # ------------------------------------------------------------------------------------------------- launches

    def _launch(self, ids: Ids, actions: Any, *, seeds: Array | None = None, resets: bool = False) -> None:
        """Step or reset environments, whose rows fill the next free slots."""
        num_sent, size = 0, self._plan.batch_size
        while num_sent < len(ids):
            block = self._filling or self._open_block()
            if self._plan.synchronous:
                num = len(ids)
            else:
                num = min(len(ids) - num_sent, size - block.num_filled)
            part = slice(num_sent, num_sent + num)
            rows = slice(num_sent * self.agents_per_env, (num_sent + num) * self.agents_per_env)
            self._launch_part(
                block,
                ids[part],
                None if actions is None else actions[rows],
                None if seeds is None else seeds[part],
                resets,
            )
            num_sent += num

    def _open_block(self) -> Block:
        if not self._free:
            raise AssertionError("more blocks are in use than batches can be under way")
        self._filling = block = self._free.popleft()
        block.begin()
        return block

    def _launch_part(self, block: Block, ids: Ids, actions: Any, seeds: Array | None, resets: bool) -> None:
        launcher, num = self._launcher, len(ids)
        arguments = launcher.arguments
        synchronous = self._plan.synchronous
        contiguous = isinstance(ids, range)
        tensors: list[Any] = []  # read by the launch; referenced until it has been launched
        for name, address in block.addresses:
            arguments[name] = address
        arguments["first_env"] = ids[0] if contiguous else 0
        arguments["env_ids"] = 0 if contiguous else self._carried(np.asarray(ids, np.int32), tensors)
        arguments["seeds"] = 0 if seeds is None else self._carried(seeds.view(np.int32), tensors)
        arguments["resets"] = resets
        arguments["by_env"] = synchronous
        arguments["first_slot"] = 0 if synchronous else block.num_filled
        if actions is not None:
            if not (synchronous and contiguous):
                actions = block.take_actions(actions, ids if synchronous else None)
            arguments["actions"], arguments["actions_nbytes"] = actions.data_ptr(), actions.element_size()
            tensors.append(actions)
        with block.on_stream(tensors) as stream:
            launcher.launch(num, stream)
        block.fill(ids)
        self._states.set(ids, FLYING)
        self._num_launches += 1
        self._num_env_steps += 0 if resets else num
        if block.num_filled == self._plan.batch_size:
            self._filling = None
            self._full.append(block)

    def _settle(self) -> None:
        """Make the current stream wait for all launches."""
        self._stream()
        for block in self._blocks:
            block.wait()

    def _newest(self) -> Block | None:
        """Return the block of the last batch."""
        return self._leased[-1] if self._leased else None

    def _carried(self, array: Array, tensors: list[Any]) -> int:
        """Copy an array to the device; add the tensor to tensors, and return its address."""
        tensor = self._torch.from_numpy(np.ascontiguousarray(array)).to(self.device)
        self._data.host_to_device_nbytes += array.nbytes
        tensors.append(tensor)
        return int(tensor.data_ptr())

    def _fill_with_unchanged(self) -> None:
        """Complete a partial reset of a synchronous object: copy the last rows of the other environments."""
        block = self._filling
        if block is None or not (self._plan.synchronous and self._only_resets) or len(self._states.where(NEW)):
            return
        others = self._states.where(WAITING)
        block.copy_rows(self._leased[-1], others)
        block.fill(others)
        self._filling = None
        self._full.append(block)

    def _drop(self) -> None:
        """Discard the rows of environments in flight."""
        for block in (*self._full, *([self._filling] if self._filling is not None else [])):
            block.wait()
            self._free.append(block)
        self._full.clear()
        self._filling = None

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
        return Batch.of(self._leased[-1].arrays(), batch.infos)

    @property
    def restarts(self) -> list[int]:
        return [0] * self.num_envs

    @property
    def data(self) -> Any:
        """The data manager (cuda_ext.data.Data): all arrays on the device."""
        return self._data

    def call(self, name: str, *args: Any, env_ids: Sequence[int] | None = None, **kwargs: Any) -> list[Any]:
        self._refuse_closed()
        self._settle()
        return self._host_view.call(name, args, kwargs, self._chosen(env_ids))

    def get_attr(self, name: str, env_ids: Sequence[int] | None = None) -> list[Any]:
        self._refuse_closed()
        self._settle()
        return self._host_view.get(name, self._chosen(env_ids))

    def set_attr(self, name: str, values: Any, env_ids: Sequence[int] | None = None) -> None:
        self._refuse_closed()
        self._settle()
        self._host_view.set(name, values, self._chosen(env_ids))

    def _chosen(self, env_ids: Sequence[int] | None) -> list[int]:
        return list(range(self.num_envs)) if env_ids is None else checked_ids(env_ids, self.num_envs)

    def states(self, env_ids: Any = None) -> dict[str, Any]:
        """Return the state of environments by field, as new tensors on the device, (env_ids, …).

        env_ids: a sequence, or an int64 tensor on the device, which needs no copy to the device and no wait.
        """
        self._refuse_closed()
        self._settle()
        if not isinstance(env_ids, self._torch.Tensor):
            env_ids = self._torch.tensor(self._chosen(env_ids), dtype=self._torch.int64, device=self.device)
        return self._host_view.states(env_ids)

    def twin(self, state: Mapping[str, Array]) -> Any:
        """Return a reference environment in a state: the fields of ``states`` for one environment, as NumPy arrays."""
        self._refuse_closed()
        return self._host_view.environment(state)

    def stats(self, *, reset: bool = False) -> KernelStats:  # type: ignore[override]  # kernels count other things
        """Return counts of launches, steps and bytes since the beginning, or since ``stats(reset=True)``."""
        self._refuse_closed()
        stats = KernelStats(
            self._num_launches,
            self._num_env_steps,
            time.perf_counter() - self._start_s,
            self._data.host_to_device_nbytes - self._before[0],
            self._data.device_to_host_nbytes - self._before[1],
        )
        if reset:
            self._clear_stats()
        return stats

    def episode_stats(self, *, reset: bool = False) -> EpisodeStats:
        """Return means over the episodes that have ended since the beginning, or since the last reset=True; print them.

        They include steps launched but not received. This waits for the device; see ``episode_sums``.
        """
        sums = self.episode_sums(reset=reset)
        self._data.device_to_host_nbytes += sums.nbytes
        return sums.stats()

    def episode_sums(self, *, reset: bool = False) -> EpisodeSums:
        """Return the sums behind ``episode_stats``, on the device, without waiting; ``.stats()`` on them waits."""
        self._refuse_closed()
        self._settle()
        return EpisodeSums.of(self._data.arrays, self.agent_names, reset=reset)

    def _clear_stats(self) -> None:
        self._num_launches = self._num_env_steps = 0
        self._start_s = time.perf_counter()
        self._before = (self._data.host_to_device_nbytes, self._data.device_to_host_nbytes)

    def close(self, grace_s: float = 0.0) -> None:
        """Close all environments. Safe to call again. grace_s: unused, for the signature of other backends."""
        if self._closed:
            return
        self._closed = True
        self._states.all = None  # so that no call takes the plain path
        if self.device.type == "cuda":
            self._torch.cuda.synchronize(self.device)  # running kernels write to memory that is freed next
        for launcher in self._launchers:
            launcher.close()
        self._blocks, self._batch, self._filling = [], None, None
        for blocks in (self._free, self._leased, self._full):
            blocks.clear()
        del (
            self._data,
            self._actions,
            self._launcher,
            self._launcher_of,
            self._launchers,
            self._policies,
            self._host_view,
        )
        close = getattr(self._reference, "close", None)
        if close is not None:
            close()

    @property
    def closed(self) -> bool:
        return self._closed

    def _refuse_closed(self) -> None:
        if self._closed:
            raise closed_error("CUDA")

    def __repr__(self) -> str:
        return (
            f"CUDA(num_envs={self.num_envs}, batch_size={self.batch_size}, device={str(self.device)!r}, "
            f"agents_per_env={self.agents_per_env}{', closed' if self._closed else ''})"
        )


def _host_stream() -> int:
    """Return 0, the address of a stream on the host, which has none."""
    return 0


def _listed(ids: Ids) -> Sequence[int]:
    return ids if isinstance(ids, range) else ids.tolist()
