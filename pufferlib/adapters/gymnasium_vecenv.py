"""A VecEnv behind the face of Gymnasium's vector environments.

The VecEnv steps, resets, seeds and fails. Here its rows and infos become Gymnasium's, and Gymnasium's calls its own.
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

from pufferlib.adapters.seam import raise_cause
from pufferlib.adapters.split_env import BESIDE, OURS, ActionRows, ObservationRows, SplitEnv, parted
from pufferlib.errors import ActionError, CallError, PlanError, PufferError, RecvTimeout, SpaceError, WorkerError
from pufferlib.vectorization import Batch, Infos
from pufferlib.vectorization.core.plan import checked_mode, checked_seed
from pufferlib.vectorization.driver.worker_vecenv import WorkerVecEnv

__all__ = ["DEFAULT_MODE", "AutoresetMode", "GymnasiumVecEnv", "WaitTimeout", "columns_of"]

Array = np.ndarray[Any, Any]
Step = tuple[Any, Array, Array, Array, dict[str, Any]]  # observations, rewards, terminations, truncations, infos

_BEFORE_1 = issubclass(VectorEnv, gymnasium.Env)  # Gymnasium 0.29, which has other names and another default
_GATHER_S = 0.5  # how long an error waits for other environments, so that all errors of a step are told

if TYPE_CHECKING:
    from gymnasium.vector import AutoresetMode

    _VectorEnv = VectorEnv[Any, Any, Any]
else:
    _VectorEnv = VectorEnv
    try:
        from gymnasium.vector import AutoresetMode
    except ImportError:  # before 1.1

        class AutoresetMode(Enum):
            """When an environment starts its next episode, as in later versions of Gymnasium."""

            NEXT_STEP = "NextStep"
            SAME_STEP = "SameStep"
            DISABLED = "Disabled"


DEFAULT_MODE = AutoresetMode.SAME_STEP if _BEFORE_1 else AutoresetMode.NEXT_STEP


def _mode(mode: Any) -> AutoresetMode:
    """Return Gymnasium's mode: one of its own, its value ("NextStep"), or pufferlib's word. Raises PlanError."""
    values = {each.value: each for each in AutoresetMode}
    return values[mode] if isinstance(mode, str) and mode in values else AutoresetMode[checked_mode(mode).upper()]


class WaitTimeout(RecvTimeout, multiprocessing.TimeoutError):
    """What a wait with a timeout raises. Nothing is lost: the same wait may be tried again."""


class GymnasiumVecEnv(_VectorEnv):
    """A VecEnv as Gymnasium's VectorEnv, with the calls of its AsyncVectorEnv."""

    num_envs: int
    autoreset_mode: AutoresetMode
    uncallable: frozenset[str] = frozenset()  # by ``call``
    logs_errors = False
    final_obs_key = "final_observation" if _BEFORE_1 else "final_obs"  # in infos
    _vec: WorkerVecEnv | None = None  # also where __init__ raises: some versions of Gymnasium close what is deleted
    _state = AsyncState.DEFAULT

    def __init__(
        self,
        make: Callable[..., WorkerVecEnv],
        env_fns: Sequence[Callable[[], Any]],
        copy: bool,
        observation_mode: Any,
        autoreset_mode: str | AutoresetMode,
        made: list[Any] | None,
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
        makers = [functools.partial(SplitEnv.make, env_fn, mode == "same_step", made) for env_fn in self.env_fns]
        try:
            self._vec = vec = make(makers, autoreset_mode=mode, reward_dtype="float64")
            self.num_envs = vec.num_envs
            observation_spaces, action_spaces = vec.get_attr("observation_space"), vec.get_attr("action_space")
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
        start = getattr(row, "start", 0)  # of the row space, as any row that is sent has to be in it
        self._no_actions = np.full((self.num_envs, *(row.shape or ())), start, row.dtype)
        self._objects: list[tuple[Any, ...]] = [()] * self.num_envs  # the parts of observations that rows do not hold
        self._was_reset = False
        self._answer: Callable[[float | None], list[Any]] | None = None  # of the call that is pending

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

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Return (observations, infos) of new episodes. Arguments: those of ``reset_async``."""
        self.reset_async(seed, options)
        return self.reset_wait()

    def reset_async(self, seed: Any = None, options: dict[str, Any] | None = None) -> None:
        """Start new episodes.

        seed: environment i gets seed + i; a list: one each, None among them; None: all go on with their generators.
        options: for all; with "reset_mask", a bool array (num_envs,), only those environments are reset. The caller's
            dict stays as it is.
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
        vec.async_reset(seeds, [{BESIDE: (each, options)} for each in seeds], env_ids)
        self._was_reset = True
        self._state = AsyncState.WAITING_RESET

    def reset_wait(
        self, timeout: float | None = None, seed: Any = None, options: Any = None
    ) -> tuple[Any, dict[str, Any]]:
        """Return (observations, infos) of the reset that was started.

        timeout: seconds to wait; then WaitTimeout, and the wait may be tried again. seed, options: ignored (0.29's
        wrappers give them to both).
        """
        _, observations, infos = self._receive(AsyncState.WAITING_RESET, timeout)
        return observations, infos

    def step(self, actions: Any) -> Step:
        """Play one step. Arguments and result: those of ``step_async`` and ``step_wait``."""
        self.step_async(actions)
        return self.step_wait()

    def step_async(self, actions: Any) -> None:
        """Start one step. actions: as ``action_space`` samples them, or what ``iterate`` takes apart in its place."""
        vec = self._open_vec()
        self._require_idle("step_async")
        rows = self._action_rows.encode(actions, self.num_envs)
        each = None
        if rows is None:
            each = list(iterate(self.action_space, actions))
            if len(each) != self.num_envs:
                raise ActionError(f"{len(each)} actions for {self.num_envs} environments; give one each")
        if not self._was_reset:  # creators may have done that
            vec.async_reset(self._seeds(None), {BESIDE: ()})
            vec.recv()
            self._was_reset = True
        if each is not None:
            rows = self._no_actions
            self._give([(action,) for action in each])
        try:
            vec.send(rows)
        except PufferError:
            if each is not None:
                self._give([()] * self.num_envs)
            raise
        self._state = AsyncState.WAITING_STEP

    def step_wait(self, timeout: float | None = None) -> Step:
        """Return (observations, rewards, terminations, truncations, infos) of the step that was started.

        Arrays (num_envs, …), rewards float64, flags bool, yours to keep; with ``copy=False`` observations only until
        the second wait after this one. timeout: as for ``reset_wait``. An environment's exception is raised again as
        it was; a WorkerError is its cause, which says which environment it was, or stands alone where a process died.
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

    def _infos(self, told: Infos) -> dict[str, Any]:
        """Return infos as Gymnasium's; take what has come with them of observations."""
        columns = columns_of(self, told, OURS, BESIDE, "final_obs")
        if columns is not None:
            return columns
        infos: dict[str, Any] = {}
        for info in told:
            env_id = info["env_id"]
            given, objects, finals = parted(info)
            if objects:
                self._objects[env_id] = objects
            if finals:
                ends = {self.final_obs_key: finals[0], "final_info": parted(info["final_info"]).info}
                infos = self._add_info(infos, ends, env_id)
            infos = self._add_info(infos, given, env_id)
        return infos

    def _give(self, actions: list[tuple[Any, ...]]) -> None:
        """Have environments play these actions next rather than their rows; nobody waits for the answers."""
        self._open_vec()._ask("set", BESIDE, None, actions, {})

    # ---------------------------------------------------------------------------------------------------- control

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Return, for each environment, the result of its method ``name``, or its attribute if it is not callable."""
        self.call_async(name, *args, **kwargs)
        return self.call_wait()

    def call_async(self, name: str, /, *args: Any, **kwargs: Any) -> None:
        """Start a call. Arguments: those of ``call``."""
        vec = self._open_vec()
        self._require_idle("call_async")
        if name in self.uncallable:
            raise ValueError(f"call({name!r}) would go behind this object's back; use its own `{name}`")
        self._answer = vec._ask("call", name, None, args, kwargs)
        self._state = AsyncState.WAITING_CALL

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """Return the results of the call that was started. timeout: as for ``reset_wait``."""
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
        """Return attribute ``name`` of each environment."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set attribute ``name``. values: a list or tuple of one an environment, or one value for all."""
        vec = self._open_vec()
        self._require_idle("set_attr")
        try:
            vec.set_attr(name, values)
        except WorkerError as error:
            self._fail(error)

    def render(self) -> tuple[Any, ...]:
        """Return what ``render()`` of each environment returns."""
        return self.call("render")

    @property  # type: ignore[misc]  # there is nothing to set: each environment has its own
    def np_random(self) -> Any:
        """The generators of the environments; copies where they run elsewhere."""
        return self.get_attr("np_random")

    @property
    def np_random_seed(self) -> Any:
        """The seeds of the environments' generators."""
        return self.get_attr("np_random_seed")

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Close the environments and end their processes.

        timeout: seconds to wait for a pending call, before processes are killed. terminate: kill them at once.
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
            except Exception as error:  # has no bearing on closing
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

    def _seeds(self, seed: Any) -> Any:
        if seed is None:
            return [None] * self.num_envs
        if isinstance(seed, (Sequence, np.ndarray)):
            if len(seed) != self.num_envs:
                raise PlanError(f"{len(seed)} seeds for num_envs={self.num_envs}; give one each, or a single number")
            return [checked_seed(each) for each in seed]
        first = checked_seed(seed)
        assert first is not None
        return [first + env_id for env_id in range(self.num_envs)]

    def _checked_mask(self, mask: Any) -> Array:
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
        """Raise what an environment raised. Where several did, log all and raise the last, as Gymnasium does."""
        errors = [error, *self._further_errors()]
        if self.logs_errors or len(errors) > 1:
            for each in errors:
                who = each.worker if each.env_id is None else each.env_id
                logger.error("%s", f"Received the following error from Worker-{who} - Shutting it down")
                logger.error("%s", each.remote_traceback or str(each))
            logger.error("%s", "Raising the last exception back to the main process.")
        raise_cause(errors[-1])

    def _further_errors(self) -> list[WorkerError]:
        vec, errors = self._open_vec(), []
        try:  # who answers this has finished what came before
            vec._ask("get", BESIDE, None, (), {})(_GATHER_S)
        except (CallError, RecvTimeout):  # a worker has died, or an environment takes its time
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
def _adds_columns(add_info: Any) -> bool:
    """Whether a class adds infos by Gymnasium's rule of today for dtypes, which ``Infos.column`` has."""
    if add_info is not VectorEnv._add_info:
        return False
    values = {"i": 1, "f": 1.0, "b": True, "s": np.float32(1), "t": "text", "a": np.zeros(2, np.int8)}
    found: Any = SimpleNamespace(num_envs=1)
    try:
        added = add_info(found, {}, values, 0)
    except AttributeError:  # Gymnasium 0.29, whose rule is another
        return False
    columns = {key: Infos([{**values, "env_id": 0}], [0], 1).column(key)[0] for key in values}
    return all(added[key].dtype == columns[key].dtype and added[key].shape == columns[key].shape for key in values)


def columns_of(vector_env: Any, infos: Infos, left_out: Collection[str], *nested: str) -> dict[str, Any] | None:
    """Return infos as Gymnasium's, by columns, without the keys that are left out; None where that is not possible.

    nested: keys whose values have to be looked into. Rows are environments.
    """
    if not infos:
        return {}
    if not _adds_columns(type(vector_env)._add_info):
        return None
    found: dict[str, Any] = {}
    keys = infos.keys()
    for key in keys:
        if key in nested or f"_{key}" in keys:  # which would be the key's mask
            return None
        if key in left_out:
            continue
        values, mask = infos.column(key)
        if values.dtype.hasobject and not all(value is None or isinstance(value, str) for value in values):
            return None
        found[key], found[f"_{key}"] = values, mask
    return found


def _check_observation_mode(mode: Any) -> None:
    if isinstance(mode, tuple) and len(mode) == 2:
        if not all(isinstance(space, gymnasium.Space) for space in mode):
            raise TypeError(f"observation_mode={mode!r} is no pair of spaces: that of a batch, that of one environment")
    elif mode not in ("same", "different"):
        raise PlanError(
            "Invalid `observation_mode`, expected: 'same' or 'different' or tuple of single and batch observation "
            f"space, actual got {mode}"
        )
    if mode != "same" and _BEFORE_1:
        raise PlanError(f"observation_mode={mode!r} needs gymnasium 1.0 or later; use 'same'")
