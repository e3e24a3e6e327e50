"""GymnasiumVecEnv, the base class of pufferlib's SyncVectorEnv and AsyncVectorEnv.

GymnasiumVecEnv converts Gymnasium's calls to those of a WorkerVecEnv, and the WorkerVecEnv's rows, infos and errors to
Gymnasium's form. The WorkerVecEnv steps, resets and seeds the environments.
"""

from __future__ import annotations

import functools
import multiprocessing
from collections.abc import Callable, Collection, Sequence
from enum import Enum
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

import gymnasium
import numpy as np
from gymnasium import logger
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError
from gymnasium.vector import VectorEnv
from gymnasium.vector.async_vector_env import AsyncState
from gymnasium.vector.utils import batch_space, iterate

from pufferlib.adapters.common import raise_cause
from pufferlib.adapters.split_env import EXTRAS_KEY, OURS, ActionRows, ObservationRows, SplitEnv, info_parts
from pufferlib.errors import ActionError, CallError, PlanError, PufferError, RecvTimeout, SpaceError, WorkerError
from pufferlib.util.annotations import Array, Function
from pufferlib.vectorization import Batch, Infos
from pufferlib.vectorization.core.plan import checked_mode, checked_seed
from pufferlib.vectorization.driver.worker_vecenv import WorkerVecEnv

__all__ = ["DEFAULT_MODE", "AutoresetMode", "GymnasiumVecEnv", "WaitTimeout", "columns_of"]

Seeds = int | Sequence[int | None] | None
Step = tuple[Any, Array, Array, Array, dict[str, Any]]  # observations, rewards, terminations, truncations, infos

_BEFORE_1 = issubclass(VectorEnv, gymnasium.Env)  # Gymnasium 0.29, which has different names and a different default
_GATHER_S = 0.5  # how long an error waits for other environments, so that all errors of a step are logged

if TYPE_CHECKING:
    from gymnasium.vector import AutoresetMode

    _VectorEnv = VectorEnv[Any, Any, Any]
else:
    _VectorEnv = VectorEnv
    try:
        from gymnasium.vector import AutoresetMode
    except ImportError:  # before 1.1

        class AutoresetMode(Enum):
            """A replacement for Gymnasium 1.1's AutoresetMode in earlier versions: when to start the next episode."""

            NEXT_STEP = "NextStep"
            SAME_STEP = "SameStep"
            DISABLED = "Disabled"


DEFAULT_MODE = AutoresetMode.SAME_STEP if _BEFORE_1 else AutoresetMode.NEXT_STEP


def _mode(mode: object) -> AutoresetMode:
    """Convert an autoreset mode to an AutoresetMode.

    mode: a member, a member's value ("NextStep") or pufferlib's name for it ("next_step"). Raises PlanError for any
    other mode.
    """
    modes = {member.value: member for member in AutoresetMode}
    return modes[mode] if isinstance(mode, str) and mode in modes else AutoresetMode[checked_mode(mode).upper()]


class WaitTimeout(RecvTimeout, multiprocessing.TimeoutError):
    """An error raised when ``reset_wait``, ``step_wait`` or ``call_wait`` times out.

    Nothing is lost: the same method may be called again.
    """


class GymnasiumVecEnv(_VectorEnv):
    """A Gymnasium VectorEnv backed by a WorkerVecEnv, with the methods of Gymnasium's AsyncVectorEnv."""

    num_envs: int
    autoreset_mode: AutoresetMode
    uncallable: frozenset[str] = frozenset()  # names that ``call`` refuses
    logs_errors = False
    final_obs_key = "final_observation" if _BEFORE_1 else "final_obs"  # in infos
    _vec: WorkerVecEnv | None = None  # set even if __init__ raises: some versions of Gymnasium call close on deletion
    _state = AsyncState.DEFAULT

    def __init__(
        self,
        make: Callable[..., WorkerVecEnv],
        env_fns: Sequence[Callable[[], Any]],
        copy: bool,
        observation_mode: Any,
        autoreset_mode: str | AutoresetMode,
        envs: list[Any] | None,
    ) -> None:
        self.env_fns = list(env_fns)
        self.copy = copy
        self.observation_mode = observation_mode
        self.autoreset_mode = _mode(autoreset_mode)
        self.closed = False
        if _BEFORE_1:
            self.is_vector_env, self.viewer = True, None
        _check_observation_mode(observation_mode)
        mode = self.autoreset_mode.name.lower()
        makers = [functools.partial(SplitEnv.make, env_fn, mode == "same_step", envs) for env_fn in self.env_fns]
        try:
            self._vec = vec = make(makers, autoreset_mode=mode, reward_dtype="float64")
            self.num_envs = vec.num_envs
            observation_spaces: list[Any] = vec.get_attr("observation_space")
            action_spaces: list[Any] = vec.get_attr("action_space")
            self._set_spaces(observation_spaces, action_spaces)
        except WorkerError as error:
            self.close()
            raise_cause(error)
        except SpaceError as error:  # rows of one environment do not fit another's
            self.close()
            raise RuntimeError(f"the spaces of the sub-environments differ: {error}") from error
        except BaseException:
            self.close()
            raise
        self.metadata = {**vec.metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = vec.render_mode
        self._observation_rows = ObservationRows(observation_spaces[0])
        self._action_rows = ActionRows(self.single_action_space)
        row = vec.single_action_space
        start = getattr(row, "start", 0)  # every row sent must be in the row space
        self._no_actions = np.full((self.num_envs, *(row.shape or ())), start, row.dtype)
        self._objects: list[tuple[Any, ...]] = [()] * self.num_envs  # the parts of observations that rows do not hold
        self._was_reset = False
        self._answer: Callable[[float | None], list[Any]] | None = None  # waits for the results of the pending call

    def _set_spaces(self, observation_spaces: list[Any], action_spaces: list[Any]) -> None:
        mode = self.observation_mode
        self.single_observation_space = single = observation_spaces[0] if isinstance(mode, str) else mode[1]
        if mode == "same":
            self.observation_space = batch_space(single, self.num_envs)
            if any(space != single for space in observation_spaces):
                raise RuntimeError(
                    "observation_mode='same', but the sub-environments observation spaces are not equivalent. They are "
                    f"{observation_spaces}. If this is intentional, use `observation_mode='different'` instead."
                )
        else:
            from gymnasium.spaces.utils import is_space_dtype_shape_equiv
            from gymnasium.vector.utils import batch_differing_spaces

            self.observation_space = mode[0] if mode != "different" else batch_differing_spaces(observation_spaces)
            if not all(is_space_dtype_shape_equiv(space, single) for space in observation_spaces):
                raise RuntimeError(
                    f"observation_mode={mode!r}, but the observation spaces {observation_spaces} and {single} "
                    "do not share a common shape and dtype; all rows of a batch must"
                )
        self.single_action_space = action_spaces[0]
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        if any(space != self.single_action_space for space in action_spaces):
            raise RuntimeError(
                f"the action spaces of the sub-environments differ: {action_spaces}; "
                "use one vector environment for each kind"
            )

    # ------------------------------------------------------------------------------------------------ reset, step

    def reset(self, *, seed: Seeds = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start new episodes and return (observations, infos). Arguments: see ``reset_async``."""
        self.reset_async(seed, options)
        return self.reset_wait()

    def reset_async(self, seed: Seeds = None, options: dict[str, Any] | None = None) -> None:
        """Start new episodes, without waiting for the first observations, which ``reset_wait`` returns.

        seed: an integer gives environment i seed + i; a list has an integer or None per environment; by default, every
            environment keeps its random generator.
        options: a dict for all environments. The key "reset_mask", a bool array (num_envs,), restricts the reset to the
            environments for which it is True. The caller's dict is not modified.

        Raises TypeError or ValueError for a wrong mask; PlanError for an invalid seed or a wrong number of seeds;
        CallError for a mask that leaves environments out of the first reset.
        """
        vec = self._open_vec()
        seeds: Any = self._seeds(seed)
        self._require_idle("reset_async")
        env_ids = None
        if options is not None and "reset_mask" in options:
            mask = self._checked_mask(options["reset_mask"])
            options = {key: value for key, value in options.items() if key != "reset_mask"}
            if not mask.all():
                env_ids = np.flatnonzero(mask).tolist()
                seeds = [seeds[env_id] for env_id in env_ids]
                if not self._was_reset:
                    raise CallError(
                        f"reset_mask={mask} before the first reset: the others have no observation; reset all"
                    )
        vec.async_reset(seeds, [{EXTRAS_KEY: (env_seed, options)} for env_seed in seeds], env_ids)
        self._was_reset = True
        self._state = AsyncState.WAITING_RESET

    def reset_wait(
        self, timeout: float | None = None, seed: object = None, options: object = None
    ) -> tuple[Any, dict[str, Any]]:
        """Wait for the reset and return its (observations, infos).

        timeout: seconds, after which WaitTimeout is raised; this method may then be called again. seed, options:
        ignored, but accepted because the wrappers of Gymnasium 0.29 pass them to ``reset_async`` and to this method.
        """
        _, observations, infos = self._receive(AsyncState.WAITING_RESET, timeout)
        return observations, infos

    def step(self, actions: Any) -> Step:
        """Play one step and return its result. For actions, see ``step_async``; for the result, ``step_wait``."""
        self.step_async(actions)
        return self.step_wait()

    def step_async(self, actions: Any) -> None:
        """Start one step, without waiting for its results, which ``step_wait`` returns.

        actions: a batch in the form of ``action_space``, or in another form that Gymnasium's ``iterate`` accepts.
        Raises ActionError for a wrong number of actions. If ``reset`` has not been called, the environments are stepped
        in the states in which env_fns returned them.
        """
        vec = self._open_vec()
        self._require_idle("step_async")
        rows = self._action_rows.encode(actions, self.num_envs)
        separate = None
        if rows is None:
            separate = list(iterate(self.action_space, actions))
            if len(separate) != self.num_envs:
                raise ActionError(f"{len(separate)} actions for {self.num_envs} environments; give one each")
        if not self._was_reset:  # env_fns may have reset their environments
            vec.async_reset(self._seeds(None), {EXTRAS_KEY: ()})
            vec.recv()
            self._was_reset = True
        if separate is not None:
            rows = self._no_actions
            self._override_actions([(action,) for action in separate])
        try:
            vec.send(rows)
        except PufferError:
            if separate is not None:
                self._override_actions([()] * self.num_envs)
            raise
        self._state = AsyncState.WAITING_STEP

    def step_wait(self, timeout: float | None = None) -> Step:
        """Wait for the step and return its (observations, rewards, terminations, truncations, infos).

        Rewards, float64 (num_envs,), and flags, bool (num_envs,), are copies. Observations have the form of
        ``observation_space``; they are copies too, unless ``copy=False``: then they are valid until the second wait
        after this one. timeout: see ``reset_wait``. An environment's exception is raised unchanged; its ``__cause__``
        is a WorkerError with the environment's id. The WorkerError itself is raised if a process died or the exception
        is a PufferError.
        """
        batch, observations, infos = self._receive(AsyncState.WAITING_STEP, timeout)
        return observations, batch.rewards.copy(), batch.terminations.copy(), batch.truncations.copy(), infos

    def _receive(self, state: AsyncState, timeout: float | None) -> tuple[Batch, Any, dict[str, Any]]:
        vec = self._open_vec()
        self._require_pending(state)
        try:
            batch = vec.recv(timeout)
        except RecvTimeout as error:
            raise self._timeout(timeout, error) from None
        except WorkerError as error:
            self._state = AsyncState.DEFAULT
            self._fail(error)
        except CallError:  # environments that this reset leaves out have failed; then all must be reset
            self._state = AsyncState.DEFAULT
            raise
        self._state = AsyncState.DEFAULT
        infos = self._infos(batch.infos)
        rows = vec.observation_layout.unflatten(batch.observations)
        return batch, self._observation_rows.batch(rows, self._objects, copied=self.copy), infos

    def _infos(self, batch_infos: Infos) -> dict[str, Any]:
        """Convert infos to Gymnasium's form, and store the parts of observations that the infos carry."""
        columns = columns_of(self, batch_infos, OURS, EXTRAS_KEY, "final_obs")
        if columns is not None:
            return columns
        infos: dict[str, Any] = {}
        row_infos: Sequence[dict[str, Any]] = batch_infos
        for info in row_infos:
            env_id = info["env_id"]
            env_info, objects, finals = info_parts(info)
            if objects:
                self._objects[env_id] = objects
            if finals:
                ends = {self.final_obs_key: finals[0], "final_info": info_parts(info["final_info"]).info}
                infos = self._add_info(infos, ends, env_id)
            infos = self._add_info(infos, env_info, env_id)
        return infos

    def _override_actions(self, actions: list[tuple[Any, ...]]) -> None:
        """Make the next step play these actions in place of its rows, without waiting for the workers' answers.

        actions: one tuple per environment: (action,), or () to play the action in the environment's row after all.
        """
        self._open_vec()._ask("set", EXTRAS_KEY, None, actions, {})

    # ---------------------------------------------------------------------------------------------------- control

    def call(self, name: str, *args: object, **kwargs: object) -> tuple[Any, ...]:
        """Call method ``name`` of each environment and return the results.

        If the attribute ``name`` is not callable, its values are returned. Raises ValueError for a name in
        ``uncallable``.
        """
        self.call_async(name, *args, **kwargs)
        return self.call_wait()

    def call_async(self, name: str, /, *args: object, **kwargs: object) -> None:
        """Start a call, without waiting for its results, which ``call_wait`` returns.

        Arguments: see ``call``. Raises ValueError for a name in ``uncallable``.
        """
        vec = self._open_vec()
        self._require_idle("call_async")
        if name in self.uncallable:
            raise ValueError(f"call({name!r}) would go behind this object's back; use its own `{name}`")
        self._answer = vec._ask("call", name, None, args, kwargs)
        self._state = AsyncState.WAITING_CALL

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """Wait for the call and return its results. timeout: see ``reset_wait``."""
        self._open_vec()
        self._require_pending(AsyncState.WAITING_CALL)
        assert self._answer is not None
        try:
            results = tuple(self._answer(timeout))
        except RecvTimeout as error:
            raise self._timeout(timeout, error) from None
        except WorkerError as error:
            self._state = AsyncState.DEFAULT
            self._fail(error)
        self._state, self._answer = AsyncState.DEFAULT, None
        return results

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return attribute ``name`` of each environment; if it is a method, call it and return its result."""
        return self.call(name)

    def set_attr(self, name: str, values: object) -> None:
        """Set attribute ``name`` of each environment.

        values: a list or tuple with one value per environment, or one value for all.
        """
        vec = self._open_vec()
        self._require_idle("set_attr")
        try:
            vec.set_attr(name, values)
        except WorkerError as error:
            self._fail(error)

    def render(self) -> tuple[Any, ...]:
        """Render each environment and return the results."""
        return self.call("render")

    @property  # type: ignore[misc]  # there is nothing to set: each environment has its own
    def np_random(self) -> Any:
        """The environments' random generators; copies if the environments run in other processes."""
        return self.get_attr("np_random")

    @property
    def np_random_seed(self) -> Any:
        """The seeds of the environments' random generators."""
        return self.get_attr("np_random_seed")

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Close the environments and end their processes.

        timeout: seconds to wait for a pending call; then the processes are killed. By default, the wait has no limit.
        terminate: whether to kill the processes without waiting.
        """
        vec = self._vec
        if vec is None:
            return
        if self._state is not AsyncState.DEFAULT:
            pending = self._state.value
            logger.warn(f"Calling `close` while waiting for a pending call to `{pending}` to complete.")
            try:
                getattr(self, f"{pending}_wait")(0 if terminate else timeout)
            except WaitTimeout:
                terminate = True
            except Exception as error:  # must not prevent closing
                logger.error("%s", f"dropped by `close`: {error!r}")
        if terminate:
            vec.close(grace_s=0)
        else:
            vec.close()

    # ----------------------------------------------------------------------------------------------------- checks

    def _open_vec(self) -> WorkerVecEnv:
        if self.closed or self._vec is None:
            raise ClosedEnvironmentError(f"this {type(self).__name__} is closed; make a new one")
        return self._vec

    def _require_idle(self, call: str) -> None:
        if self._state is not AsyncState.DEFAULT:
            pending = self._state.value
            raise AlreadyPendingCallError(
                f"Calling `{call}` while waiting for a pending call to `{pending}` to complete; use `{pending}_wait`",
                pending,
            )

    def _require_pending(self, state: AsyncState) -> None:
        if self._state is not state:
            name = state.value
            raise NoAsyncCallError(f"Calling `{name}_wait` without any prior call to `{name}_async`.", name)

    def _timeout(self, timeout: float | None, error: RecvTimeout) -> WaitTimeout:
        name = f"{self._state.value}_wait"
        return WaitTimeout(f"`{name}` has timed out after {timeout} second(s), and may be called again ({error})")

    def _seeds(self, seed: Seeds) -> list[int | None]:
        if seed is None:
            return [None] * self.num_envs
        if isinstance(seed, (Sequence, np.ndarray)):
            if len(seed) != self.num_envs:
                raise PlanError(f"{len(seed)} seeds for num_envs={self.num_envs}; give one each, or a single number")
            return [checked_seed(env_seed) for env_seed in seed]
        first = checked_seed(seed)
        assert first is not None
        return [first + env_id for env_id in range(self.num_envs)]

    def _checked_mask(self, mask: object) -> Array:
        name, shape = "`options['reset_mask']` must", (self.num_envs,)
        if not isinstance(mask, np.ndarray):
            raise TypeError(f"{name} be a numpy array, got {type(mask)}")
        if mask.shape != shape:
            raise ValueError(f"{name} have shape `{shape}`, got {mask.shape}")
        if mask.dtype != np.bool_:
            raise TypeError(f"{name} have `dtype=np.bool_`, got {mask.dtype}")
        if not mask.any():
            raise ValueError(f"{name} name at least one environment to reset, got {mask}")
        return mask

    def _fail(self, error: WorkerError) -> NoReturn:
        """Raise an environment's exception. If several environments raised, log all and raise the last, like Gymnasium.

        error: the first error. Waits at most _GATHER_S seconds for further errors of the same call. A single error is
        logged only if ``logs_errors`` is set. Raises the WorkerError itself if a process died or if the exception is a
        PufferError.
        """
        errors = [error, *self._further_errors()]
        if self.logs_errors or len(errors) > 1:
            for failure in errors:
                number = failure.worker if failure.env_id is None else failure.env_id
                logger.error("%s", f"Received the following error from Worker-{number} - Shutting it down")
                logger.error("%s", failure.remote_traceback or str(failure))
            logger.error("%s", "Raising the last exception back to the main process.")
        raise_cause(errors[-1])

    def _further_errors(self) -> list[WorkerError]:
        vec, errors = self._open_vec(), []
        try:  # a worker that answers has finished its earlier work
            vec._ask("get", EXTRAS_KEY, None, (), {})(_GATHER_S)
        except (CallError, RecvTimeout):  # a worker has died, or an environment is slow
            pass
        except WorkerError as error:
            errors.append(error)
        while True:
            try:
                vec.recv(timeout=0)
                return errors
            except WorkerError as error:
                errors.append(error)
            except (CallError, RecvTimeout):
                return errors


@functools.cache
def _adds_columns(add_info: Function) -> bool:
    """Return whether ``add_info`` is Gymnasium's own and chooses the same dtypes and shapes as ``Infos.column``."""
    if add_info is not VectorEnv._add_info:
        return False
    values = {"i": 1, "f": 1.0, "b": True, "s": np.float32(1), "t": "text", "a": np.zeros(2, np.int8)}
    vector_env: Any = SimpleNamespace(num_envs=1)
    try:
        added = add_info(vector_env, {}, values, 0)
    except AttributeError:  # Gymnasium 0.29, which has a different rule
        return False
    columns = {key: Infos([{**values, "env_id": 0}], [0], 1).column(key)[0] for key in values}
    return all(added[key].dtype == columns[key].dtype and added[key].shape == columns[key].shape for key in values)


def columns_of(vector_env: _VectorEnv, infos: Infos, left_out: Collection[str], *nested: str) -> dict[str, Any] | None:
    """Convert infos to Gymnasium's form column by column, leaving out the keys in ``left_out``.

    Returns None if that is impossible: if the infos contain a key of ``nested``, whose values need separate conversion;
    if they contain both a key and the name of its mask, "_" and the key; if values are objects other than str; or if
    the class of ``vector_env`` or the installed Gymnasium chooses other dtypes or shapes. The batch must have one row
    per environment.
    """
    if not infos:
        return {}
    if not _adds_columns(type(vector_env)._add_info):
        return None
    columns: dict[str, Any] = {}
    keys = infos.keys()
    for key in keys:
        if key in nested or f"_{key}" in keys:  # ``_{key}`` is the name of the key's mask
            return None
        if key in left_out:
            continue
        values, mask = infos.column(key)
        if values.dtype.hasobject and not all(value is None or isinstance(value, str) for value in values):
            return None
        columns[key], columns[f"_{key}"] = values, mask
    return columns


def _check_observation_mode(mode: object) -> None:
    if isinstance(mode, tuple) and len(mode) == 2:
        if not all(isinstance(space, gymnasium.Space) for space in mode):
            raise TypeError(f"observation_mode={mode!r} is not a pair of spaces: one of a batch, one of an environment")
    elif mode not in ("same", "different"):
        raise PlanError(
            "Invalid `observation_mode`, expected: 'same' or 'different' or tuple of single and batch observation "
            f"space, actual got {mode}"
        )
    if mode != "same" and _BEFORE_1:
        raise PlanError(f"observation_mode={mode!r} needs gymnasium 1.0 or later; use 'same'")
