"""record: play environments with random actions and keep what came of it."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import Any

import gymnasium
import numpy as np

from pufferlib import registry
from pufferlib.backends import make
from pufferlib.errors import PlanError, WorkerError
from pufferlib.recording.files import Failure, Origin, Recording, Tape
from pufferlib.recording.playing import Action, Arriving, play
from pufferlib.recording.rows import Episode, Face, Reader
from pufferlib.testing.backends import Actor, stacked
from pufferlib.vectorization import VecEnv
from pufferlib.vectorization.plan import Seeds
from pufferlib.version import __version__

__all__ = ["record", "versions_of"]

Array = np.ndarray[Any, Any]


def record(
    env: Callable[..., Any] | str | Sequence[Callable[..., Any] | str],
    path: str | os.PathLike[str] | None = None,
    *,
    num_steps: int = 1000,
    num_envs: int | None = None,
    seed: int = 0,
    keep: bool = False,
    env_args: Sequence[Any] = (),
    env_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    wrap_kwargs: Mapping[str, Any] | None = None,
    autoreset_mode: str = "next_step",
    backend: str = "serial",
    num_workers: int | None = None,
    batch_size: int | None = None,
    context: str | None = None,
    after: Callable[[int, int], None] | None = None,
) -> Recording:
    """Return a recording of environments that were played with random actions, and save it.

    Of each environment and step it has the action, the reward, the flags, the mask, the returns and lengths of episodes
    that ended, and a hash of each leaf of the observation: 64 bits of BLAKE2b over its bytes.

    env, env_args, env_kwargs, wrap_kwargs, autoreset_mode: as ``pufferlib.make`` takes them. What has no name, or is no
    Python literal, is not in the file, and ``replay`` has to be told again.
    path: of the file, an .npz; None saves nothing.
    num_steps: of each environment; the steps in which it is reset by itself count. num_envs: 4 unless env is a list.
    seed: of the environments, as make takes it, and of the actions, which obey action masks.
    keep: keep the observations, too, so that ``replay`` can show both where they differ.
    backend, num_workers, batch_size, context: as make takes them. The recording is the same on all, to the bit, if the
        environment is deterministic.
    after: called now and then with how many steps of how many are done.

    An environment that raises, or ends its worker, ends the recording, which then holds what came before and has it as
    its ``failure``: a replay is expected to end in the same way. Raises what make raises.
    """
    if num_steps < 1:
        raise PlanError(f"num_steps={num_steps} leaves nothing to record; use 1 or more")
    if num_envs is None and not isinstance(env, (list, tuple)):
        num_envs = 4
    with make(
        env,
        backend=backend,
        num_envs=num_envs,
        num_workers=num_workers,
        batch_size=batch_size,
        seed=seed,
        env_args=env_args,
        env_kwargs=env_kwargs,
        wrap_kwargs=wrap_kwargs,
        autoreset_mode=autoreset_mode,
        context=context,
        on_error="restart",
        max_restarts=None,
    ) as vec:
        derived = Seeds(seed, vec.num_envs)
        seeds = tuple(derived[env_id] for env_id in range(vec.num_envs))
        reader = Reader(vec)
        recorder = _Recorder(vec, reader.face, seed, num_steps + 1, keep, after or (lambda done, of: None))
        play(vec, reader, seeds, recorder)
    each = isinstance(env, (list, tuple))
    names = [_name(one) for one in env] if each else _name(env)  # type: ignore[union-attr]
    origin = Origin(
        None if each and None in names else names,
        tuple(env_args),
        dict(env_kwargs or {}) if env_kwargs is None or isinstance(env_kwargs, Mapping) else list(map(dict, env_kwargs)),
        dict(wrap_kwargs or {}),
        autoreset_mode,
        seed,
        seeds,
        versions_of(env),
    )
    recording = recorder.recording(origin)
    if path is not None:
        recording.save(path)
    return recording


class _Recorder:
    """The part of environments that are recorded: to play at random."""

    def __init__(
        self, vec: VecEnv, face: Face, seed: int, num_rows: int, keep: bool, after: Callable[[int, int], None]
    ) -> None:
        self._face, self._keep, self._after = face, keep, after
        self._space = vec.single_action_space
        self._actors = [Actor(vec, [seed, env_id]) for env_id in range(vec.num_envs)]
        self._no_action = tuple(np.zeros((face.agents_per_env, *shape), dtype) for dtype, shape in face.actions)
        space = vec.single_observation_space
        self._no_rows = np.zeros((0, face.agents_per_env, *(space.shape or ())), space.dtype)
        self._tapes = [_Growing() for _ in range(vec.num_envs)]
        self._targets = [num_rows] * vec.num_envs
        self._failure: Failure | None = None
        self._num_rows = 0

    def is_done(self, env_id: int) -> bool:
        return len(self._tapes[env_id].rows) >= self._targets[env_id]

    def take(self, arriving: Arriving) -> None:
        env_id, batch, index, row, is_last = arriving
        tape = self._tapes[env_id]
        if row.crash is not None:
            self._fail(env_id, len(tape.rows), row.crash.env_id, row.crash.text)
            return
        if row.episodes:
            tape.episodes[len(tape.rows)] = row.episodes
        tape.rows.append(tuple(column.copy() for column in row[1:6]))
        if self._keep:
            tape.observations.append(row.observations.copy())
        tape.actions.append(self._no_action if is_last else self._drawn(env_id, batch, index))
        self._num_rows += 1
        self._after(max(0, self._num_rows - len(self._tapes)), sum(self._targets) - len(self._tapes))

    def _drawn(self, env_id: int, batch: Any, index: int) -> Action:
        num = self._face.agents_per_env
        drawn = stacked(self._space, self._actors[env_id].actions(batch, slice(index * num, (index + 1) * num)))
        return drawn if isinstance(drawn, tuple) else (drawn,)

    def action(self, env_id: int) -> Action:
        return self._tapes[env_id].actions[-1]

    def _fail(self, env_id: int, step: int, culprit: int | None, text: str) -> None:
        """End the recording where the first environment fails."""
        self._targets[env_id] = 0
        if culprit is None:
            raise WorkerError(f"nothing was recorded: {text}", env_id=env_id)
        if culprit == env_id and (self._failure is None or (step, env_id) < (self._failure.step, self._failure.env_id)):
            self._failure = Failure(env_id, step, text)
            self._targets = [min(step, target) for target in self._targets]

    def recording(self, origin: Origin) -> Recording:
        """Return what was recorded."""
        failure = self._failure
        tapes = [tape.cut(self._no_action, self._face, self._no_rows, self._keep, failure) for tape in self._tapes]
        return Recording(origin, self._face, tuple(tapes), failure)


class _Growing:
    """A tape while it is recorded."""

    def __init__(self) -> None:
        self.actions: list[Action] = []
        self.rows: list[tuple[Array, ...]] = []
        self.episodes: dict[int, tuple[Episode, ...]] = {}
        self.observations: list[Array] = []

    def cut(self, no_action: Action, face: Face, no_rows: Array, keep: bool, failure: Failure | None) -> Tape:
        """Return the tape, up to where the first environment failed."""
        num = len(self.rows) if failure is None else min(failure.step, len(self.rows))
        agents = (0, face.agents_per_env)
        if num:
            actions = [np.stack(parts) for parts in zip(*self.actions[:num], strict=True)]
            columns = [np.stack(column) for column in zip(*self.rows[:num], strict=True)]
        else:
            actions = [np.zeros((0, *part.shape), part.dtype) for part in no_action]
            kinds = (np.float32, np.bool_, np.bool_, np.bool_)
            columns = [np.zeros((*agents, face.num_leaves), np.uint64), *(np.zeros(agents, kind) for kind in kinds)]
        episodes = {row: ended for row, ended in self.episodes.items() if row < num}
        observations = np.stack(self.observations[:num]) if keep and num else no_rows if keep else None
        return Tape(tuple(actions), *columns, episodes, observations)  # type: ignore[arg-type]


def _name(env: Any) -> str | None:
    """Return the name by which ``make`` finds an environment in another process; None if it has none."""
    if isinstance(env, str):
        return env
    name = f"{getattr(env, '__module__', None)}:{getattr(env, '__qualname__', None)}"
    try:
        found = registry.creator(name)
    except (LookupError, ImportError, AttributeError, ValueError):
        return None
    return name if found is env and not name.startswith("__main__:") else None


def versions_of(env: Any) -> dict[str, str]:
    """Return the versions of what trajectories may depend on: interpreter, machine, packages, the environment's own."""
    found = {
        "Python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "pufferlib": __version__,
        "numpy": np.__version__,
        "gymnasium": gymnasium.__version__,
    }
    for one in env if isinstance(env, (list, tuple)) else [env]:
        package = _package(one)
        try:
            found.setdefault(package, metadata.version(package))
        except (metadata.PackageNotFoundError, ValueError):
            continue  # a module of the user's own, which is in no package
    return found


def _package(env: Any) -> str:
    """Return the top-level module of an environment's code."""
    if not isinstance(env, str):
        return str(getattr(env, "__module__", "")).partition(".")[0]
    entry = registry.find(env)
    if entry.package == "gymnasium" and entry.target in gymnasium.registry:
        return str(gymnasium.registry[entry.target].entry_point).partition(":")[0].partition(".")[0]
    return entry.package
