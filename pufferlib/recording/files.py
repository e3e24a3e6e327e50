"""Recordings and their files.

A file is an .npz, a zip of arrays in NumPy's format (numpy.lib.format): any version of NumPy can open it, nothing in it
is pickled, and equal recordings produce identical files. ``header`` is a JSON string:

    {"format": "pufferlib recording", "version": 1, "env": "ocean/squared", "env_args": "()", …}

``lengths`` holds the number of rows of each environment. The arrays whose names begin with ``episode_`` have one entry
per episode that ended; ``episode_rows`` holds the index of the row in which it ended, counted over all environments.
All other arrays have one entry per row: first all rows of environment 0, then all rows of environment 1, and so on. An
environment's row 0 comes from its first reset, and its row n from the n-th step after that, whichever batch the row
arrived in. ``actions_0`` (and ``actions_1`` if an action is a pair) holds the action sent after each row. Later
versions of pufferlib can read earlier files.
"""

from __future__ import annotations

import ast
import bisect
import contextlib
import json
import os
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pufferlib.errors import RecordingError
from pufferlib.recording.rows import ENV, Episode, Leaf, RowSpec
from pufferlib.util.annotations import Array
from pufferlib.util.files import written_whole
from pufferlib.util.renamed import renamed_arguments
from pufferlib.version import __version__

__all__ = ["ARGUMENTS", "MISSING", "ROWS", "Failure", "Origin", "Recording", "Tape"]


FORMAT = "pufferlib recording"
VERSION = 1
ROWS = ("hashes", "rewards", "terminations", "truncations", "masks")  # (rows, agents, …)
EPISODES = ("episode_rows", "episode_places", "episode_returns", "episode_lengths")
ARGUMENTS = ("env_args", "env_kwargs", "wrap_kwargs")
FAILURE = ("env_id", "step", "text")
MISSING = object()  # stands for an argument that is not a Python literal, which a file cannot hold


class Origin(NamedTuple):
    """The arguments of ``pufferlib.make`` for a recording's environments, and the versions of the software in use.

    env: a name, or a list of names, one per environment; None if any environment has no name. env_args, env_kwargs,
    wrap_kwargs: in a recording loaded from a file, MISSING if they were not Python literals. seeds: the seed of each
    environment's first reset. versions: the versions of Python and packages, and the type of machine, keyed by name.
    """

    env: Any
    env_args: Any
    env_kwargs: Any
    wrap_kwargs: Any
    autoreset_mode: str
    seed: int
    seeds: tuple[int, ...]
    versions: dict[str, str]


class Failure(NamedTuple):
    """The step at which a recording ended early, and the reason.

    env_id: the environment that failed. text: the reason, such as "raised in step: ValueError: …". traceback: the
    exception's traceback; "" for a dead worker, and in a recording loaded from a file. Files omit tracebacks, because
    tracebacks contain local paths.
    """

    env_id: int
    step: int
    text: str
    traceback: str = ""

    def __str__(self) -> str:
        return f"environment {self.env_id}, step {self.step:,}, {self.text}"


@dataclass(frozen=True)
class Tape:
    """One environment's part of a recording. Arrays have one entry per row."""

    actions: tuple[Array, ...]  # each (rows, agents, …): the actions after each row; those after the last were not sent
    hashes: Array  # (rows, agents, leaves) uint64
    rewards: Array  # (rows, agents) float32
    terminations: Array  # (rows, agents) bool
    truncations: Array  # (rows, agents) bool
    masks: Array  # (rows, agents) bool
    episodes: dict[int, tuple[Episode, ...]]  # by the row in which they ended
    observations: Array | None  # (rows, agents, …); None if they were not kept

    @classmethod
    @renamed_arguments(face="row_spec")
    def blank(cls, row_spec: RowSpec, num_rows: int, observations: Array | None) -> Tape:
        """Create a tape of zeros for ``num_rows`` rows of ``row_spec``.

        observations: the array in which to store the rows' observations, or None to store none.
        """
        agents = (num_rows, row_spec.agents_per_env)
        return cls(
            actions=tuple(np.zeros((*agents, *shape), dtype) for dtype, shape in row_spec.actions),
            hashes=np.zeros((*agents, row_spec.num_leaves), np.uint64),
            rewards=np.zeros(agents, np.float32),
            terminations=np.zeros(agents, np.bool_),
            truncations=np.zeros(agents, np.bool_),
            masks=np.zeros(agents, np.bool_),
            episodes={},
            observations=observations,
        )

    def cut(self, num_rows: int) -> Tape:
        """Return a tape of the first ``num_rows`` rows, as views."""
        return Tape(
            actions=tuple(array[:num_rows] for array in self.actions),
            **{name: getattr(self, name)[:num_rows] for name in ROWS},
            episodes={row: ended for row, ended in self.episodes.items() if row < num_rows},
            observations=None if self.observations is None else self.observations[:num_rows],
        )

    @property
    def num_rows(self) -> int:
        """The number of rows: one for the first reset, and one per step."""
        return len(self.hashes)


@dataclass(frozen=True)
class Recording:
    """The recorded trajectories of one or more environments; returned by ``record``. Treat it as read-only.

    failure: the failure of an environment that raised an exception or ended its worker, if any; every tape ends before
    the failure's step.
    """

    origin: Origin  # how the environments were made
    row_spec: RowSpec  # the arrays of a row
    tapes: tuple[Tape, ...]  # one per environment
    failure: Failure | None = None

    @property
    def face(self) -> RowSpec:
        """The old name of ``row_spec``, which works for one more release, with a DeprecationWarning."""
        warnings.warn("Recording.face is now Recording.row_spec", DeprecationWarning, stacklevel=2)
        return self.row_spec

    @property
    def num_envs(self) -> int:
        """The number of environments."""
        return len(self.tapes)

    @property
    def num_steps(self) -> int:
        """The total number of steps in all environments, not counting the first resets."""
        return sum(max(0, tape.num_rows - 1) for tape in self.tapes)

    @property
    def num_episodes(self) -> int:
        """The number of episodes that ended.

        If episodes of whole environments were recorded, those of single agents are not counted.
        """
        env_agent = ENV if any(episode.place == ENV for episode in self._episodes()) else None
        return sum(env_agent is None or episode.place == env_agent for episode in self._episodes())

    def _episodes(self) -> Iterator[Episode]:
        for tape in self.tapes:
            for episodes in tape.episodes.values():
                yield from episodes

    @property
    def size_text(self) -> str:
        """The numbers of environments and steps as text, such as "4 environments × 1,000 steps"."""
        envs = f"{self.num_envs} environment{'s' * (self.num_envs != 1)}"
        lengths = {tape.num_rows for tape in self.tapes}
        if len(lengths) > 1:
            return f"{envs}, {self.num_steps:,} steps in all"
        return f"{envs} × {self.num_steps // self.num_envs:,} steps"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the recording to a file, replacing an existing file atomically."""
        with written_whole(path) as part, open(part, "wb") as file:
            arrays: Any = self._arrays()
            np.savez_compressed(file, header=np.array(json.dumps(self._header())), **arrays)

    def _header(self) -> dict[str, Any]:
        origin = self.origin
        return {
            "format": FORMAT,
            "version": VERSION,
            "env": origin.env,
            **{name: _literal(getattr(origin, name)) for name in ARGUMENTS},
            "autoreset_mode": origin.autoreset_mode,
            "seed": origin.seed,
            "seeds": origin.seeds,
            "versions": origin.versions,
            "agents_per_env": self.row_spec.agents_per_env,
            "leaves": [[leaf._asdict() for leaf in leaves] for leaves in self.row_spec.leaves],
            "actions": [{"dtype": dtype, "shape": shape} for dtype, shape in self.row_spec.actions],
            "failure": None if self.failure is None else dict(zip(FAILURE, self.failure, strict=False)),
        }

    def _arrays(self) -> dict[str, Array]:
        tapes = self.tapes
        arrays = {"lengths": np.array([tape.num_rows for tape in tapes], np.int64)}
        for index in range(len(self.row_spec.actions)):
            arrays[f"actions_{index}"] = np.concatenate([tape.actions[index] for tape in tapes])
        for name in ROWS:
            arrays[name] = np.concatenate([getattr(tape, name) for tape in tapes])
        ended, start = [], 0
        for tape in tapes:
            ended += [(start + row, episode) for row in sorted(tape.episodes) for episode in tape.episodes[row]]
            start += tape.num_rows
        arrays["episode_rows"] = np.array([row for row, _ in ended], np.int64)
        arrays["episode_places"] = np.array([episode.place for _, episode in ended], np.int64)
        arrays["episode_returns"] = np.array([episode.total for _, episode in ended], np.float64)
        arrays["episode_lengths"] = np.array([episode.length for _, episode in ended], np.int64)
        if all(tape.observations is not None for tape in tapes):
            arrays["observations"] = np.concatenate([tape.observations for tape in tapes])
        return arrays

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Recording:
        """Read the recording in a file.

        Raises RecordingError if the file does not exist, is damaged, is not a recording, or has a later version of the
        format.
        """
        if not Path(path).is_file():
            raise RecordingError(f"there is no file {path}; `puffer record ENV` makes one")
        if not zipfile.is_zipfile(path):
            raise RecordingError(f"{path} is no .npz, or not all of one; `puffer record ENV` makes one")
        try:
            with np.load(path, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
        except (ValueError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
            raise RecordingError(f"{path} cannot be read ({error}); `puffer record ENV` makes a new one") from error
        header = _checked_header(path, arrays.pop("header", None))
        try:
            return cls._of(header, arrays)
        except (KeyError, TypeError, ValueError, IndexError, SyntaxError) as error:
            raise RecordingError(f"{path} is a recording, but a damaged one ({error!r}); record it again") from error

    @classmethod
    def _of(cls, header: dict[str, Any], arrays: dict[str, Array]) -> Recording:
        origin = Origin(
            env=header["env"],
            autoreset_mode=header["autoreset_mode"],
            seed=header["seed"],
            seeds=tuple(header["seeds"]),
            versions=dict(header["versions"]),
            **{name: MISSING if header[name] is None else ast.literal_eval(header[name]) for name in ARGUMENTS},
        )
        leaves = [
            [Leaf(leaf["name"], leaf["dtype"], tuple(leaf["shape"])) for leaf in row_leaves]
            for row_leaves in header["leaves"]
        ]
        actions = [(action["dtype"], tuple(action["shape"])) for action in header["actions"]]
        row_spec = RowSpec(header["agents_per_env"], tuple(map(tuple, leaves)), tuple(actions))
        failure = None if header["failure"] is None else Failure(*(header["failure"][name] for name in FAILURE))

        lengths = arrays["lengths"].tolist()
        stops = np.cumsum(lengths).tolist()
        acted = [arrays[f"actions_{index}"] for index in range(len(actions))]
        observations = arrays.get("observations")
        columns = {name: arrays[name] for name in ROWS}
        sizes = {len(array) for array in (*acted, *columns.values(), *([] if observations is None else [observations]))}
        if sizes != {stops[-1]} or len(lengths) != len(origin.seeds):
            raise ValueError(f"{stops[-1]} rows of {len(lengths)} environments, but arrays of {sorted(sizes)}")
        ended: list[dict[int, tuple[Episode, ...]]] = [{} for _ in lengths]
        for row, *values in zip(*(arrays[name].tolist() for name in EPISODES), strict=True):
            env_id = bisect.bisect_right(stops, row)
            env_row = row - stops[env_id] + lengths[env_id]
            ended[env_id][env_row] = (*ended[env_id].get(env_row, ()), Episode(*values))
        tapes = []
        for length, stop, episodes in zip(lengths, stops, ended, strict=True):
            rows = slice(stop - length, stop)
            tapes.append(
                Tape(
                    actions=tuple(array[rows] for array in acted),
                    **{name: array[rows] for name, array in columns.items()},
                    episodes=episodes,
                    observations=None if observations is None else observations[rows],
                )
            )
        return cls(origin, row_spec, tuple(tapes), failure)


def _checked_header(path: Any, text: Array | None) -> dict[str, Any]:
    header: Any = None
    with contextlib.suppress(json.JSONDecodeError):
        header = None if text is None else json.loads(str(text))
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise RecordingError(f"{path} is no recording of pufferlib's; `puffer record ENV` makes one")
    if header.get("version") not in range(1, VERSION + 1):
        versions = header.get("versions")  # a later format may store them differently
        writer = versions.get("pufferlib", "unknown") if isinstance(versions, dict) else "unknown"
        raise RecordingError(
            f"{path} has version {header.get('version')} of the format, as pufferlib {writer} writes it; pufferlib "
            f"{__version__} reads up to {VERSION}; install the version that wrote it"
        )
    return header


def _literal(value: Any) -> str | None:
    """Return the Python literal of a value; None if the value has no literal that evaluates to an equal value."""
    if value is MISSING:
        return None
    text = repr(value)
    with contextlib.suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        if ast.literal_eval(text) == value:
            return text
    return None
