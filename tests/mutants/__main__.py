"""The command: `python -m tests.mutants`, from the root of a checkout."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from ocean.suite.tasks import faults
from pufferlib.cli.ocean import num_jobs, require_numbers
from pufferlib.cli.screen import new_console
from pufferlib.errors import PufferError
from pufferlib.util.flags import whole_numbers

from .run import run
from .trainings import COMMAND, Results, examinations

__all__ = ["Options", "main"]


@dataclass(frozen=True)
class Options:
    """Train learners with one bug each on Ocean; the exit code is 0 if each is caught where it should be."""

    env: tuple[str, ...] = ()
    """environments, with or without ocean/, each a word or with commas between; default: all that can be learnt"""
    mutant: tuple[str, ...] = ()
    """mutants; default: all, and "correct trainer", the one without a bug"""
    seed: int = 1
    """the first"""
    seeds: int = 3
    """how many"""
    all_seeds: bool = False
    """use all seeds everywhere, not only where a mutant should be caught"""
    jobs: int | None = None
    """trainings at a time; default: 2, on a single core 1"""
    timeout: float = 600.0
    """seconds after which a training has failed"""
    save: str | None = None
    """a .json for the result of each training, into which several runs may write at a time. Trainings that it holds are
    not repeated, and belong to the code of their time: after a change to an environment, a trainer or what a mutant
    breaks, name another file, or delete this one"""
    page: str | None = None
    """a .md to write the matrix to, after each training"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status: 0, 1 if something is wrong, 130 after Ctrl-C.

    arguments: in place of those of the process. Exits with 2 for arguments that are not understood.
    """
    words = sys.argv[1:] if arguments is None else arguments
    try:
        words = whole_numbers(Options, words)
        return train(tyro.cli(Options, prog=COMMAND, args=words, description=Options.__doc__))
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    except (PufferError, OSError) as error:
        print(f"{COMMAND}: {error}", file=sys.stderr)
        return 1


def train(options: Options) -> int:
    """Train mutants; return 0 if each is caught where it should be, and nothing else is."""
    require_numbers(options.seeds, options.seed, options.jobs, options.timeout)
    broken_envs = {} if options.env else faults()
    for sentence in broken_envs.values():  # the other environments are trained on
        print(f"{COMMAND}: {sentence}", file=sys.stderr)
    seeds = range(options.seed, options.seed + options.seeds)
    matrix = run(
        examinations(options.mutant, options.env, seeds, all_seeds=options.all_seeds),
        Results(None if options.save is None else Path(options.save)),
        new_console(),
        mutants=options.mutant,
        jobs=num_jobs(options.jobs),
        timeout_s=options.timeout,
        page_file=None if options.page is None else Path(options.page),
    )
    return 1 if broken_envs or matrix.all_faults else 0


if __name__ == "__main__":
    sys.exit(main())
