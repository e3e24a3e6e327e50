"""``replay``: send the recorded actions again, and find the first difference from the recording."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pufferlib.construct import make
from pufferlib.errors import RecordingError, WorkerError
from pufferlib.recording.difference import UNKNOWN, Difference, leaf_text, value_texts
from pufferlib.recording.files import ARGUMENTS, MISSING, Recording, Tape
from pufferlib.recording.playing import Action, Arrival, play
from pufferlib.recording.recorder import versions_of
from pufferlib.recording.rows import ENV, Crash, Reader, Row, RowSpec
from pufferlib.vectorization import VecEnv
from pufferlib.vectorization.core.plan import Plan

__all__ = ["Replay", "replay"]


@dataclass(frozen=True)
class Replay:
    """The result of a replay; print it to see the report.

    recording: the replayed recording. difference: the first difference, by step and then by environment, or None.
    versions: the versions that have changed since the recording, as (recorded, now), by name. backend, num_workers,
    batch_size: those with which the replay ran.
    """

    recording: Recording
    difference: Difference | None
    versions: dict[str, tuple[str, str]]
    backend: str
    num_workers: int
    batch_size: int

    @property
    def identical(self) -> bool:
        """Whether the replay is identical to the recording."""
        return self.difference is None

    @property
    def where(self) -> str:
        """The replay's backend, number of workers and batch size, as text."""
        if self.backend == "serial":
            where = "serial"
        else:
            where = f"{self.backend}, {self.num_workers} worker{'s' * (self.num_workers != 1)}"
        return where if self.batch_size == self.recording.num_envs else f"{where}, batches of {self.batch_size}"

    @property
    def shows_values(self) -> bool:
        """Whether there is a difference for which the recording has the value itself, not only a hash of it."""
        return self.difference is not None and self.difference.recorded != UNKNOWN

    def __str__(self) -> str:
        failure = self.recording.failure
        if self.difference is None:
            end = "" if failure is None else f"\nends as recorded: {failure}"
            return f"identical: {self.recording.size_text}, on {self.where}{end}"
        lines = [f"different: {self.difference}"]
        if self.versions:
            changed = [f"{name} {then} (now {now})" for name, (then, now) in self.versions.items()]
            lines.append(f"recorded with {', '.join(changed)}")
        return "\n".join(lines)


def replay(
    recording: Recording | str | os.PathLike[str],
    *,
    backend: str = "serial",
    num_workers: int | None = None,
    batch_size: int | None = None,
    context: str | None = None,
    env: Callable[..., Any] | str | Sequence[Callable[..., Any] | str] | None = None,
    env_args: Sequence[Any] | None = None,
    env_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    wrap_kwargs: Mapping[str, Any] | None = None,
    after: Callable[[int, int], None] | None = None,
) -> Replay:
    """Replay the recorded seeds and actions, and return a report with the first difference, if any.

    recording: a Recording, or the path of its file.
    backend, num_workers, batch_size, context: as for ``pufferlib.make``. They may differ from those of the recording,
        because environments are compared one by one, step by step.
    env, env_args, env_kwargs, wrap_kwargs: replacements for the recorded arguments, such as a new version of an
        environment; by default, the recorded ones are used.
    after: called after each batch with the number of steps so far and the total number.

    All values are compared by their bytes: 0.0 differs from -0.0, and a NaN equals only a NaN with the same bytes.
    Nothing in a file is unpickled, but a replay runs the environment that the file refers to, which may be any
    importable function. Replay only files that you would also run as programs.

    Raises RecordingError if the file is not a recording, or if a recording lacks the environment or its arguments and
    they are not passed. Raises WorkerError if a worker failed and it is unknown which environment caused the failure.
    Also raises it if one environment's failure prevented the comparison of another's rows, and no difference was found
    elsewhere. Raises the errors of ``make`` as well.
    """
    stored = recording if isinstance(recording, Recording) else Recording.load(recording)
    origin = stored.origin
    overrides = {"env_args": env_args, "env_kwargs": env_kwargs, "wrap_kwargs": wrap_kwargs}
    arguments: dict[str, Any] = {
        name: getattr(origin, name) if overrides[name] is None else overrides[name] for name in ARGUMENTS
    }
    played = origin.env if env is None else env
    missing = [name for name in ARGUMENTS if arguments[name] is MISSING]
    if played is None or missing:
        names = " and ".join(f"{name}=" for name in (["env"] if played is None else []) + missing)
        raise RecordingError(f"the recording cannot hold what it was made from; pass {names} as to record")
    several = isinstance(played, (list, tuple))
    plan = Plan.of(stored.num_envs, num_workers, batch_size)
    with make(
        played,
        backend=backend,
        num_envs=None if several else stored.num_envs,
        num_workers=num_workers,
        batch_size=batch_size,
        seed=origin.seed,
        autoreset_mode=origin.autoreset_mode,
        context=context,
        on_error="restart",
        max_restarts=None,
        **arguments,
    ) as vec:
        reader = Reader(vec)
        difference = _spec_difference(stored.row_spec, reader.row_spec)
        if difference is None:
            replayer = _Replayer(stored, vec)
            play(vec, reader, origin.seeds, replayer, after)
            difference = replayer.difference
            if difference is None and replayer.lost:
                raise WorkerError(f"not all rows could be compared: {replayer.lost}; replay with another num_workers")
    now = versions_of(played)
    versions = {name: (then, now.get(name, "none")) for name, then in origin.versions.items() if now.get(name) != then}
    workers = 1 if backend == "serial" else plan.num_workers
    return Replay(stored, difference, versions, backend, workers, plan.batch_size)


def _spec_difference(recorded: RowSpec, now: RowSpec) -> Difference | None:
    """Return the first difference in the number of agents or the spaces; None if recording and replay agree."""
    if recorded.agents_per_env != now.agents_per_env:
        return Difference(None, None, None, "number of agents", str(recorded.agents_per_env), str(now.agents_per_env))
    for agent_index in range(now.agents_per_env):
        then, is_now = recorded.leaves_of(agent_index), now.leaves_of(agent_index)
        if then != is_now:
            whose = f"observation space of agent {agent_index}" if now.agents_per_env > 1 else "observation space"
            return Difference(None, None, None, whose, _arrays_text(then), _arrays_text(is_now))
    if recorded.actions != now.actions:
        arrays = ([("", *part) for part in row_spec.actions] for row_spec in (recorded, now))
        then_text, now_text = map(_arrays_text, arrays)
        return Difference(None, None, None, "action space", then_text, now_text)
    return None


def _arrays_text(arrays: Sequence[tuple[str, str, tuple[int, ...]]]) -> str:
    return ", ".join(f"{name} {np.dtype(dtype).name} {shape}".strip() for name, dtype, shape in arrays)


class _Replayer:
    """A script that sends the recorded actions and compares each row."""

    def __init__(self, recording: Recording, vec: VecEnv) -> None:
        self.difference: Difference | None = None
        self._recording = recording
        self._layouts = vec.observation_layouts
        self._num_rows = [0] * recording.num_envs
        self._targets = [tape.num_rows for tape in recording.tapes]  # one more if a failure is expected
        failure = recording.failure
        if failure is not None:
            # The failure may end other environments of its worker. They have usually finished their tapes by then: none
            # is longer, and a worker processes messages in the order in which they were sent.
            self._targets[failure.env_id] += 1
        self.lost = ""  # what could not be compared

    def is_done(self, env_id: int) -> bool:
        return self._num_rows[env_id] >= self._targets[env_id]

    def action(self, env_id: int) -> Action:
        step = self._num_rows[env_id]
        return tuple(actions[step - 1] for actions in self._recording.tapes[env_id].actions)

    def take(self, arrival: Arrival) -> None:
        env_id, row = arrival.env_id, arrival.row
        step, tape = self._num_rows[env_id], self._recording.tapes[env_id]
        self._num_rows[env_id] += 1
        difference = self._compared(env_id, step, tape, row)
        if difference is not None:
            self._num_rows[env_id] = self._targets[env_id]
            if self.difference is None or difference.order < self.difference.order:
                self.difference = difference
                # The other environments continue only while they may still have an earlier difference.
                self._targets = [min(target, step + (other < env_id)) for other, target in enumerate(self._targets)]
        elif row.crash is not None:
            self._num_rows[env_id] = self._targets[env_id]

    def progress(self) -> tuple[int, int]:
        return sum(self._num_rows), sum(self._targets)

    def _compared(self, env_id: int, step: int, tape: Tape, row: Row) -> Difference | None:
        """Compare an environment's rows in a step with the recorded ones; return the first difference, if any.

        If another environment crashed the worker, this is noted in ``lost``, and nothing is compared. Raises
        WorkerError if a worker failed and it is unknown which environment caused the failure.
        """
        failure, crash = self._recording.failure, row.crash
        if step == tape.num_rows:
            assert failure is not None
            now = "it went on" if crash is None else crash.text
            same = crash is not None and (crash.env_id, crash.text) == (env_id, failure.text)
            return None if same else self._differs(env_id, step, None, ["error"], failure.text, now, crash)
        if crash is not None:
            if crash.env_id is None:
                raise WorkerError(f"the remaining rows cannot be compared: {crash.text}", env_id=env_id)
            if crash.env_id != env_id:
                self.lost = f"environment {env_id}, step {step:,}: environment {crash.env_id} {crash.text}"
                return None
            return self._differs(env_id, step, None, ["error"], "none", crash.text, crash)
        differences = list(self._differing(step, tape, row))
        if not differences:
            return None
        agent_index, _, recorded, now = differences[0]
        names = list(dict.fromkeys(name for _, name, *_ in differences))
        return self._differs(env_id, step, agent_index, names, recorded, now)

    def _differs(
        self,
        env_id: int,
        step: int,
        agent_index: int | None,
        names: list[str],
        recorded: str,
        now: str,
        crash: Crash | None = None,
    ) -> Difference:
        if self._recording.row_spec.agents_per_env == 1 or agent_index == ENV:
            agent_index = None
        episode = _episode(self._recording, env_id, step)
        return Difference(
            env_id,
            step,
            agent_index,
            names[0],
            recorded,
            now,
            tuple(names[1:]),
            episode,
            crash.traceback if crash else "",
        )

    def _differing(self, step: int, tape: Tape, row: Row) -> Iterator[tuple[int | None, str, str, str]]:
        """Yield each difference as (agent index, field, recorded text, current text)."""
        for agent_index, index in np.argwhere(tape.hashes[step] != row.hashes).tolist():
            leaf = self._recording.row_spec.leaves_of(agent_index)[index]
            now_leaf = self._layouts[agent_index].leaves[index]
            recorded_row = None if tape.observations is None else tape.observations[step][agent_index]
            name = f"observation.{leaf.name}" if leaf.name else "observation"
            yield agent_index, name, *leaf_text(now_leaf, recorded_row, row.observations[agent_index])
        for name, recorded, now in (
            ("reward", tape.rewards[step], row.rewards),
            ("terminated", tape.terminations[step], row.terminations),
            ("truncated", tape.truncations[step], row.truncations),
            ("mask", tape.masks[step], row.masks),
        ):
            if recorded.tobytes() != now.tobytes():
                for agent_index, (then, is_now) in enumerate(zip(recorded, now, strict=True)):
                    if then.tobytes() != is_now.tobytes():
                        yield agent_index, name, *value_texts(then, is_now)
        recorded_episodes = {episode.place: episode for episode in tape.episodes.get(step, ())}
        current_episodes = {episode.place: episode for episode in row.episodes}
        for agent_index in sorted({*recorded_episodes, *current_episodes}):
            one, other = recorded_episodes.get(agent_index), current_episodes.get(agent_index)
            if repr(one) != repr(other):
                yield agent_index, "episode", _episode_text(one), _episode_text(other)


def _episode_text(episode: Any) -> str:
    return "none ended" if episode is None else f"return {episode.total!r}, {episode.length:,} steps"


def _episode(recording: Recording, env_id: int, step: int) -> tuple[int, int] | None:
    """Return the number of an environment's episode at a step, and the step within it; None in the first episode."""
    multi_agent = recording.row_spec.agents_per_env > 1
    ends = [
        row
        for row, episodes in sorted(recording.tapes[env_id].episodes.items())
        if row < step and any(not multi_agent or episode.place == ENV for episode in episodes)
    ]
    if not ends:
        return None
    first = ends[-1] + (recording.origin.autoreset_mode != "same_step")
    return len(ends) + 1, step - first
