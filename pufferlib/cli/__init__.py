"""The command `puffer`: list, check, measure, record and replay environments, and train and evaluate policies.

tyro parses the arguments and rich formats the output; both come with the extra "train" and are imported when used.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import itertools
import json
import math
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence

from pufferlib import environments, registry
from pufferlib.cli.checking import check
from pufferlib.cli.league import league
from pufferlib.cli.measuring import autotune, bench
from pufferlib.cli.ocean import ocean
from pufferlib.cli.options import Envs, Record, Replay, size_flags
from pufferlib.cli.parsing import parse, require
from pufferlib.cli.port import port
from pufferlib.cli.screen import cleared, counting, new_console
from pufferlib.cli.training import evaluate, plot, train
from pufferlib.errors import PufferError, RegistryError, WorkerError
from pufferlib.util.files import file_name
from pufferlib.util.suggestions import near
from pufferlib.version import __version__

__all__ = ["main"]

HELP = """\
puffer {version}: wrap any reinforcement-learning environment, and run many

  puffer envs [FILTER]   list the named environments, and which are installed
  puffer check ENV       find an environment's faults
  puffer bench ENV       measure steps per second on each backend
  puffer autotune ENV    find the fastest plan, and explain it
  puffer train ENV       train a policy, by PPO or --algorithm NAME
  puffer eval RUN        evaluate the policy of a run's folder, or of a file
  puffer plot RUN…       draw the curves of runs
  puffer ocean           test a learner on all of Ocean
  puffer league run FILE grow a population; also show FOLDER, play FOLDER
  puffer record ENV      play an environment at random and save the trajectories
  puffer replay FILE     replay such a file and show the first difference
  puffer port FILE…      name what stands here in place of PufferLib's names
  puffer doctor          describe this machine and find what is broken

ENV is a name (ocean/squared), a Gymnasium id (CartPole-v1), or your own
function (my_module:make_env, found in the current folder).

`puffer COMMAND --help` shows the options of a command; --debug, anywhere in it,
shows the traceback of an error.

Start with: puffer train ocean/squared
"""
_PUFFERLIB_OPTION = re.compile(r"--(train|vec|env|policy|rnn|sweep)\.")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0 for success, 1 for failure, 2 for wrong arguments, 130 for Ctrl-C.

    arguments: the command's name and arguments, by default those of this process.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # for module:function; workers get the same path
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader has closed the pipe, as `head` does
        sys.stdout = open(os.devnull, "w")  # else the interpreter complains when it flushes at exit
        return 1
    except SystemExit as stop:  # tyro has printed an error or its help
        return stop.code if isinstance(stop.code, int) else 2
    except Exception as error:
        if debug:
            traceback.print_exc()
        else:
            _explain(error)
        return 1


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(HELP.format(version=__version__), end="")
        return 0
    if arguments[0] in ("--version", "-V"):
        print(f"puffer {__version__}")
        return 0
    if _is_for_pufferlib_3(arguments):
        importlib.import_module("pufferlib.pufferl").main(arguments)  # torch takes seconds
        return 0
    command, rest = arguments[0], arguments[1:]
    if command not in COMMANDS:
        matches = near(command, COMMANDS)
        meant = f"did you mean `puffer {matches[0]}`?" if matches else f"there are {', '.join(COMMANDS)}."
        print(f'puffer knows no command "{command}"; {meant} `puffer` alone shows help', file=sys.stderr)
        return 2
    if not rest and command == "replay":
        print("puffer replay needs a file: `puffer replay my.npz`; `puffer record ENV` makes one", file=sys.stderr)
        return 2
    if not rest and command == "port":
        print("puffer port needs files: `puffer port my_program.py`", file=sys.stderr)
        return 2
    if not rest and command == "plot":
        print("puffer plot needs runs: `puffer plot runs/*`; `puffer train ENV` makes one", file=sys.stderr)
        return 2
    if not rest and command == "eval":
        print(
            "puffer eval needs a policy: `puffer eval runs/…`, the folder of a run, or a file; or an environment and "
            "its policy: `puffer eval ocean/squared --policy random`",
            file=sys.stderr,
        )
        return 2
    if not rest and command not in ("envs", "ocean", "league", "doctor"):
        print(
            f"puffer {command} needs an environment: `puffer {command} ocean/squared`, or `puffer {command} "
            "my_module:make_env` for your own; `puffer envs` lists names",
            file=sys.stderr,
        )
        return 2
    return COMMANDS[command](rest)


def _is_for_pufferlib_3(arguments: Sequence[str]) -> bool:
    """Return whether a command is written for PufferLib 3: by the name of one of its environments, or its options."""
    if arguments[0] not in ("train", "eval", "sweep", "autotune", "profile", "export") or len(arguments) < 2:
        return False
    return arguments[1].startswith("puffer_") or any(_PUFFERLIB_OPTION.match(option) for option in arguments[2:])


def _explain(error: Exception) -> None:
    """Print an error's message on stderr.

    For pufferlib's own errors, also print the flags that set the size limits named in the message. For other errors,
    also print the file and line that raised the error. If a WorkerError was caused by one of pufferlib's own errors,
    print the cause instead.
    """
    if isinstance(error, WorkerError) and isinstance(error.__cause__, PufferError):
        error = error.__cause__  # pufferlib's error in a worker: its message is complete
    if isinstance(error, PufferError):
        print(f"puffer: {error}", file=sys.stderr)
        for flag in size_flags(str(error)):
            print(f"puffer: here that is {flag} N", file=sys.stderr)
        return
    # The innermost line in a file; frames of the import system have none.
    frame = [entry for entry in traceback.extract_tb(error.__traceback__) if not entry.filename.startswith("<")][-1]
    where = f"{os.path.relpath(frame.filename)}, line {frame.lineno}"
    print(f"puffer: {type(error).__name__}: {error} ({where}); --debug shows the traceback", file=sys.stderr)


def envs(arguments: list[str]) -> int:
    """Run ``puffer envs [FILTER]``: list the named environments; return the exit status, always 0.

    Raises RegistryError if no name contains FILTER.
    """
    require("rich")
    from rich.markup import escape
    from rich.table import Table

    text = "list only names that contain this, with families in full"
    text_filter = parse(Envs, "envs", arguments, "FILTER", text).env
    entries = _entries(text_filter.lower())
    if not entries:
        raise RegistryError(f'no environment has "{text_filter}" in its name; `puffer envs` lists all')
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("name", no_wrap=True)
    table.add_column("installed")
    table.add_column("what it is")
    for (description, extra, ready), group in itertools.groupby(
        entries, lambda entry: (entry.description, entry.extra, registry.installed(entry))
    ):
        what = description if ready else f'{description}: pip install "pufferlib[{extra}]"'
        table.add_row("\n".join(entry.name for entry in group), "yes" if ready else "no", escape(what))
    console = new_console()
    console.print(table)
    if not text_filter:
        console.print(
            "\nYou can also name any other id that is registered with Gymnasium, or your own module:function.\n"
            "`puffer envs minigrid` lists all names that contain minigrid."
        )
    return 0


def doctor(arguments: list[str]) -> int:
    """Run ``puffer doctor``: describe this machine, and find what is broken.

    Returns the exit status: 0 if nothing is broken, else 1.
    """
    from pufferlib.cli.doctor import diagnose
    from pufferlib.cli.ray_doctor import STEP_MS, diagnose_ray

    parser = argparse.ArgumentParser("puffer doctor", allow_abbrev=False)  # tyro may be broken
    parser.add_argument("--json", action="store_true", help="print a list of objects with name, text, fine")
    parser.add_argument("--ray", action="store_true", help="also check a Ray cluster; start one if none runs")
    parser.add_argument("--address", help="address of the cluster: auto, or host:port; default: that of backend ray")
    step_help = f"milliseconds of an environment's step, for the advice; default: {STEP_MS:g}"
    parser.add_argument("--step-ms", type=float, help=step_help)
    options = parser.parse_args(arguments)
    step_ms = STEP_MS if options.step_ms is None else options.step_ms
    if not options.ray and (options.address, options.step_ms) != (None, None):
        parser.error("--address and --step-ms are about a cluster; add --ray")
    if not 0 < step_ms < math.inf:
        parser.error(f"--step-ms {step_ms:g} is impossible; use milliseconds, more than 0")
    findings = []
    for finding in itertools.chain(diagnose(), diagnose_ray(options.address, step_ms) if options.ray else ()):
        findings.append(finding)
        if not options.json:
            print(f"{finding.name:14}{finding.text}", flush=True)
    if options.json:
        print(json.dumps([finding._asdict() for finding in findings], indent=1))
    return 0 if all(finding.fine for finding in findings) else 1


def record(arguments: list[str]) -> int:
    """Run ``puffer record ENV``: play an environment at random, and save the trajectories.

    Returns the exit status: 1 if an error cut the recording short, else 0.
    """
    from pufferlib.cli.recordings import recorded

    options: Record = parse(Record, "record", arguments)
    console = new_console()
    with cleared(console):
        status, lines = recorded(options, f"{file_name(options.env)}.npz", counting(console))
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)
    return status


def replay(arguments: list[str]) -> int:
    """Run ``puffer replay FILE``: replay a recording, and show the first difference.

    Returns the exit status: 0 if the replay equals the recording, else 1.
    """
    from pufferlib.cli.recordings import replayed

    options: Replay = parse(Replay, "replay", arguments, "FILE", "a file saved by `puffer record`", "file")
    console = new_console()
    with cleared(console):
        status, lines = replayed(options, counting(console))
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)
    return status


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "envs": envs,
    "check": check,
    "bench": bench,
    "autotune": autotune,
    "train": train,
    "eval": evaluate,
    "plot": plot,
    "ocean": ocean,
    "league": league,
    "record": record,
    "replay": replay,
    "port": port,
    "doctor": doctor,
}


def _entries(text_filter: str) -> list[registry.Entry]:
    """Return the registry's entries whose name, extra or package contains a text, given in lower case.

    If the text is empty, each family is one entry. Otherwise, the environments of a family are separate entries; to
    find them, the packages of the installed families are imported.
    """
    for entry in registry.names() if text_filter else ():
        if not entry.target and registry.installed(entry):
            with contextlib.suppress(Exception):  # a failing import must not prevent listing the others
                environments.register(environments.families()[entry.family])
    entries = registry.names(members=bool(text_filter))
    return [entry for entry in entries if text_filter in f"{entry.name} {entry.extra} {entry.package}".lower()]
