"""``record``: play environments with random actions and store their trajectories."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import gymnasium
import numpy as np

from pufferlib import registry
from pufferlib.construct import make
from pufferlib.errors import PlanError, RecordingError, WorkerError
from pufferlib.recording.files import ROWS, Failure, Origin, Recording, Tape
from pufferlib.recording.playing import Action, Arrival, play
from pufferlib.recording.rows import Crash, Reader, RowSpec
from pufferlib.testing.backends import EnvActions, stacked
from pufferlib.util.suggestions import says_what_was_meant
from pufferlib.vectorization import VecEnv
from pufferlib.vectorization.core.arguments import misplaced
from pufferlib.vectorization.core.plan import Seeds, checked_mode
from pufferlib.version import __version__

__all__ = ["record", "versions_of"]


@says_what_was_meant(misplaced, "env_kwargs")
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
    autoreset_mode: Any = "next_step",
    backend: str = "serial",
    num_workers: int | None = None,
    batch_size: int | None = None,
    context: str | None = None,
    after: Callable[[int, int], None] | None = None,
) -> Recording:
    """Play environments with random actions; save and return the recording.

    For each environment and step, the recording holds the action, the reward, the flags for termination and truncation,
    and the mask. It also holds the returns and lengths of the episodes that ended, and a hash of each leaf of the
    observation: 64 bits of BLAKE2b over the leaf's bytes.

    env, env_args, env_kwargs, wrap_kwargs, autoreset_mode: as for ``pufferlib.make``. The file cannot store an env
        without a name, or arguments that are not Python literals; pass these to ``replay`` again.
    path: the path of the file, an .npz; by default, nothing is saved.
    num_steps: the number of steps of each environment, including those in which it resets itself. num_envs: by default
        4, or the length of env if it is a list.
    seed: the seed of the environments, as for ``make``, and of the actions, which obey action masks.
    keep: whether to store the observations as well, so that ``replay`` can show both values of a difference.
    backend, num_workers, batch_size, context: as for ``make``. With a deterministic environment, they do not change the
        recording.
    after: called after each batch with the number of steps so far and the total number.

    If an environment raises an exception or ends its worker, the recording ends there, with all earlier steps and the
    error as its ``failure``; a replay should end in the same way. Raises PlanError if num_steps is below 1, and
    RecordingError if the file's folder does not exist. Raises WorkerError if a worker failed and it is unknown which
    environment caused the failure. Also raises the errors of ``make``.
    """
    if num_steps < 1:
        raise PlanError(f"num_steps={num_steps} leaves nothing to record; use 1 or more")
    if path is not None and not Path(path).parent.is_dir():  # checked before anything is played
        folder, name = Path(path).parent, Path(path).name
        raise RecordingError(f"there is no folder {folder} for {name}; make it, or save elsewhere")
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
        recorder = _Recorder(vec, reader.row_spec, seed, num_steps + 1, keep)
        play(vec, reader, seeds, recorder, after)
    several, kwargs = isinstance(env, (list, tuple)), cast(Any, env_kwargs or {})
    names = [_name(name_or_creator) for name_or_creator in env] if several else [_name(env)]  # type: ignore[union-attr]
    origin = Origin(
        None if None in names else names if several else names[0],
        tuple(env_args),
        dict(kwargs) if isinstance(kwargs, Mapping) else [dict(one_env_kwargs) for one_env_kwargs in kwargs],
        dict(wrap_kwargs or {}),
        checked_mode(autoreset_mode),
        int(seed),  # a file's header cannot hold NumPy's integers
        seeds,
        versions_of(env),
    )
    recording = recorder.recording(origin)
    if path is not None:
        recording.save(path)
    return recording


class _Recorder:
    """A script that sends random actions and records the rows."""

    def __init__(self, vec: VecEnv, row_spec: RowSpec, seed: int, num_rows: int, keep: bool) -> None:
        self.row_spec = row_spec
        self._agents_per_env, self._space = vec.agents_per_env, vec.single_action_space
        self._actors = [EnvActions(vec, [seed, env_id]) for env_id in range(vec.num_envs)]
        space = vec.single_observation_space
        shape = (num_rows, vec.agents_per_env, *(space.shape or ()))
        self._tapes = [
            Tape.blank(row_spec, num_rows, np.zeros(shape, space.dtype) if keep else None) for _ in range(vec.num_envs)
        ]
        self._num_rows = [0] * vec.num_envs
        self._targets = [num_rows] * vec.num_envs
        self._failure: Failure | None = None

    def is_done(self, env_id: int) -> bool:
        return self._num_rows[env_id] >= self._targets[env_id]

    def take(self, arrival: Arrival) -> None:
        env_id, row, tape = arrival.env_id, arrival.row, self._tapes[arrival.env_id]
        step = self._num_rows[env_id]
        if row.crash is not None:
            self._fail(env_id, step, row.crash)
            return
        if row.episodes:
            tape.episodes[step] = row.episodes
        for name in ROWS:
            getattr(tape, name)[step] = getattr(row, name)
        if tape.observations is not None:
            tape.observations[step] = row.observations
        if not arrival.is_last:
            mine = slice(arrival.batch_index * self._agents_per_env, (arrival.batch_index + 1) * self._agents_per_env)
            drawn = stacked(self._space, self._actors[env_id].actions(arrival.batch, mine))
            for array, part in zip(tape.actions, drawn if isinstance(drawn, tuple) else (drawn,), strict=True):
                array[step] = part
        self._num_rows[env_id] += 1

    def action(self, env_id: int) -> Action:
        step = self._num_rows[env_id] - 1
        return tuple(array[step] for array in self._tapes[env_id].actions)

    def progress(self) -> tuple[int, int]:
        return sum(self._num_rows), sum(self._targets)

    def _fail(self, env_id: int, step: int, crash: Crash) -> None:
        """Stop recording an environment that has no row at this step because of a crash.

        If the environment itself caused the crash, the whole recording is shortened: it ends before the first step in
        which an environment caused a crash. Raises WorkerError if it is unknown which environment caused this crash.
        """
        self._targets[env_id] = 0
        if crash.env_id is None:
            raise WorkerError(f"nothing was recorded: {crash.text}", env_id=env_id)
        if crash.env_id != env_id:
            return  # another environment crashed their worker; its crash ends the recording
        if self._failure is None or (step, env_id) < (self._failure.step, self._failure.env_id):
            self._failure = Failure(env_id, step, crash.text, crash.traceback)
            self._targets = [min(step, target) for target in self._targets]

    def recording(self, origin: Origin) -> Recording:
        """Return the recording; if there was a failure, only the rows before the step in which it happened."""
        row_spec, failure = self.row_spec, self._failure
        limits = self._num_rows if failure is None else [min(failure.step, num) for num in self._num_rows]
        tapes = [tape.cut(num) for tape, num in zip(self._tapes, limits, strict=True)]
        return Recording(origin, row_spec, tuple(tapes), failure)


def _name(env: Any) -> str | None:
    """Return the name by which ``make`` finds an environment in another process; None if it has none."""
    if isinstance(env, str):
        return env
    name = f"{getattr(env, '__module__', None)}:{getattr(env, '__qualname__', None)}"
    try:
        registered = registry.creator(name)
    except (LookupError, ImportError, AttributeError, ValueError):
        return None
    return name if registered is env and not name.startswith("__main__:") else None


def versions_of(env: Any) -> dict[str, str]:
    """Return the versions of Python, pufferlib, NumPy, Gymnasium and the environments' packages, by name.

    The type of machine is included under the name "machine". Modules that belong to no installed package are left out.
    """
    versions = {
        "Python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "pufferlib": __version__,
        "numpy": np.__version__,
        "gymnasium": gymnasium.__version__,
    }
    for env_creator in env if isinstance(env, (list, tuple)) else [env]:
        package = _package(env_creator)
        try:
            versions.setdefault(package, metadata.version(package))
        except (metadata.PackageNotFoundError, ValueError):
            continue  # the user's own module, which is in no package
    return versions


def _package(env: Any) -> str:
    """Return the name of the top-level module that contains an environment's code."""
    if not isinstance(env, str):
        return str(getattr(env, "__module__", "")).partition(".")[0]
    entry = registry.find(env)
    if entry.package == "gymnasium" and entry.target in gymnasium.registry:
        return str(gymnasium.registry[entry.target].entry_point).partition(":")[0].partition(".")[0]
    return entry.package
