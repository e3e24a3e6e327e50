"""Functions that run `puffer record` and `puffer replay`, and return the lines to print."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

from pufferlib.cli.options import Record, Replay, keywords
from pufferlib.errors import RecordingError
from pufferlib.recording import Recording, record, replay

__all__ = ["recorded", "replayed"]

After = Callable[[int, int], None]


def recorded(options: Record, name: str, after: After) -> tuple[int, list[str]]:
    """Make the recording that the options describe; return the exit status and the lines to print.

    The status is 1 if an error cut the recording short, else 0. name: the file's name if the options have none. after:
    called with the number of finished steps and the number of all steps. Raises RecordingError if the file exists and
    --overwrite is not set.
    """
    path = Path(options.save or name)
    if path.exists() and not options.overwrite:
        raise RecordingError(f"{path} already exists; --overwrite replaces it, --save FILE chooses another")
    recording = record(
        options.env,
        path,
        num_steps=options.num_steps,
        num_envs=options.num_envs,
        seed=options.seed,
        keep=options.keep,
        **options.arguments(),
        autoreset_mode=options.autoreset_mode,
        backend=options.backend,
        num_workers=options.num_workers,
        batch_size=options.batch_size,
        after=after,
    )
    ends, failure = recording.num_episodes, recording.failure
    lines = [f"{options.env}: {recording.size_text}, {ends:,} episode end{'s' * (ends != 1)}, seed {options.seed}"]
    if failure is not None:
        lines += [f"ends early: {failure}", *_indented(failure.traceback)]
    lines.append(f"saved in {path} ({_size_text(path.stat().st_size)})")
    other = "pool" if options.backend == "serial" else "serial"
    lines.append(f"Next: puffer replay {shlex.quote(str(path))} --backend {other}")
    return (0 if failure is None else 1), lines


def replayed(options: Replay, after: After) -> tuple[int, list[str]]:
    """Replay a recording as the options describe; return the exit status and the lines to print.

    The status is 0 if the replay equals the recording, else 1. after: called with the number of finished steps and the
    number of all steps.
    """
    recording = Recording.load(options.file)
    report = replay(
        recording,
        backend=options.backend,
        num_workers=options.num_workers,
        batch_size=options.batch_size,
        env=options.env,
        env_kwargs=None if options.env_kwargs is None else keywords(options.env_kwargs),
        after=after,
    )
    if report.identical:
        return 0, [str(report)]
    env = options.env or recording.origin.env
    name = shlex.quote(env) if isinstance(env, str) else "ENV"
    traceback = "" if report.difference is None else report.difference.traceback
    lines = [
        str(report),
        *_indented(traceback),
        f"Next: puffer check {name} says whether it depends on more than its seed and actions",
    ]
    if not report.shows_values:
        lines.append("      puffer record --keep keeps observations, so that a difference can be shown")
    return 1, lines


def _indented(text: str) -> list[str]:
    return [f"  {line}" for line in text.splitlines()]


def _size_text(nbytes: int) -> str:
    return f"{nbytes / 2**20:.1f} MiB" if nbytes >= 2**20 else f"{max(1, round(nbytes / 2**10))} KiB"
