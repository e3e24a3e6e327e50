"""Run unmodified CleanRL scripts on pufferlib's workers, with any registered environment.

    python -m pufferlib.adapters.cleanrl path/to/dqn.py --env-id ocean/squared
    python -m pufferlib.adapters.cleanrl --num-workers 4 path/to/ppo_continuous_action.py --num-envs 32

While a script runs, pufferlib's vector environments replace Gymnasium's, ``gymnasium.make`` also accepts the names in
pufferlib's registry and the ids of Atari games, and ``gymnasium.wrappers`` has the wrapper names of Gymnasium 0.29.
docs/adapters.md lists the differences.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import re
import runpy
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import gymnasium
import numpy as np

from pufferlib.adapters import cleanrl_wrappers, gymnasium_vector
from pufferlib.adapters.gymnasium_vecenv import AutoresetMode, GymnasiumVecEnv
from pufferlib.emulation import wrap
from pufferlib.errors import PlanError, RegistryError, SpaceError
from pufferlib.registry import creator
from pufferlib.util.annotations import Function
from pufferlib.util.suggestions import not_one_of

__all__ = ["FORMS", "AsyncVectorEnv", "SyncVectorEnv", "main", "play", "replaced"]


_ATARI = re.compile(r"ALE/.+|[A-Z]\w*-v[04]")  # ids that may be Atari games


class _OldForm(GymnasiumVecEnv):
    """A vector environment whose infos have the form that CleanRL reads, that of Gymnasium 0.29.

    The installed version of Gymnasium makes no difference. By default, when an episode ends, the next starts in the
    same step. Values that are not numbers, such as ``infos["final_info"]`` and ``infos["final_observation"]``, are in
    object arrays, with None for environments without a value. The mask of each array has the array's key with a leading
    underscore.
    """

    final_obs_key = "final_observation"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"autoreset_mode": AutoresetMode.SAME_STEP, **kwargs})

    def _add_info(self, infos: dict[str, Any], info: dict[str, Any], env_num: int) -> dict[str, Any]:
        for key, part in info.items():
            if key not in infos:
                is_number = isinstance(part, (int, float, np.number))
                infos[key] = np.zeros(self.num_envs, type(part)) if is_number else np.full(self.num_envs, None)
                infos[f"_{key}"] = np.zeros(self.num_envs, np.bool_)
            infos[key][env_num], infos[f"_{key}"][env_num] = part, True
        return infos


class SyncVectorEnv(_OldForm, gymnasium_vector.SyncVectorEnv):
    """pufferlib's SyncVectorEnv, with infos in the form of Gymnasium 0.29."""


class AsyncVectorEnv(_OldForm, gymnasium_vector.AsyncVectorEnv):
    """pufferlib's AsyncVectorEnv, with infos in the form of Gymnasium 0.29."""


FORMS = {
    "0.29": (SyncVectorEnv, AsyncVectorEnv),
    "1.x": (gymnasium_vector.SyncVectorEnv, gymnasium_vector.AsyncVectorEnv),
}


@contextlib.contextmanager
def replaced(infos: str = "0.29", num_workers: int = 0) -> Iterator[None]:
    """Replace Gymnasium's vector environments with pufferlib's, and extend ``gymnasium.make``, in the ``with`` block.

    ``gymnasium.make`` then also accepts the names in pufferlib's registry and the ids of Atari games.

    infos: the Gymnasium version whose form of infos the script reads, a key of FORMS; "0.29" also adds that version's
        wrappers.
    num_workers: the number of processes that step the environments, for both classes; 0 leaves the number to the script
        and steps a SyncVectorEnv in this process.

    Raises PlanError if infos is not in FORMS or num_workers is negative.
    """
    if infos not in FORMS:
        raise PlanError(not_one_of("infos", infos, FORMS))
    if num_workers < 0:
        raise PlanError(f"num_workers={num_workers} is impossible; use 0 (as the script has it) or more")
    sync, processes = FORMS[infos]
    kinds: dict[str, Any] = {"SyncVectorEnv": sync, "AsyncVectorEnv": _in_processes(processes, infos)}
    if num_workers:
        kinds = dict.fromkeys(kinds, _in_processes(processes, infos, max_concurrency=num_workers))
    with mock.patch.multiple(gymnasium.vector, **kinds), _names(infos):
        yield


def play(script: str | Path, arguments: Sequence[str] = (), infos: str = "0.29", num_workers: int = 0) -> None:
    """Run a script as ``python SCRIPT ARGUMENTS…`` would, inside a block of ``replaced(infos, num_workers)``."""
    with (
        replaced(infos, num_workers),
        mock.patch.object(sys, "argv", [str(script), *arguments]),
        mock.patch.object(sys, "path", [str(Path(script).resolve().parent), *sys.path]),
    ):
        runpy.run_path(str(script), run_name="__main__")


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line and run the script that it names."""
    parser = argparse.ArgumentParser(
        "python -m pufferlib.adapters.cleanrl", description=(__doc__ or "").partition("\n")[0]
    )
    infos_help = "version of Gymnasium whose infos the script reads (0.29)"
    parser.add_argument("--infos", choices=FORMS, default="0.29", help=infos_help)
    parser.add_argument("--num-workers", type=int, default=0, help="processes that step the environments (0: none)")
    parser.add_argument("script", type=Path, help="the script; it gets the arguments that follow")
    parser.add_argument("rest", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    play(options.script, options.rest, options.infos, options.num_workers)


@contextlib.contextmanager
def _names(infos: str) -> Iterator[None]:
    wrappers = cleanrl_wrappers.named() if infos == "0.29" else contextlib.nullcontext()
    with wrappers, mock.patch.object(gymnasium, "make", functools.partial(_make, gymnasium.make)):
        yield


def _in_processes(kind: Any, infos: str, **fixed: object) -> Any:
    """Return a subclass of ``kind``, a vector environment's class, whose workers make the environments with ``_call``.

    fixed: arguments that override the caller's.
    """

    class InProcesses(kind):  # type: ignore[misc]
        def __init__(self, env_fns: Sequence[Callable[[], Any]], *args: object, **kwargs: object) -> None:
            env_fns = [functools.partial(_call, env_fn, infos) for env_fn in env_fns]
            super().__init__(env_fns, *args, **{**kwargs, **fixed})

    InProcesses.__name__ = kind.__name__
    return InProcesses


def _call(env_fn: Callable[[], object], infos: str) -> object:
    """Call env_fn while Gymnasium is patched, because a spawned process does not inherit the patches."""
    with _names(infos):
        return env_fn()


def _make(theirs: Function, name: Any, *args: object, **kwargs: object) -> object:
    try:
        return theirs(name, *args, **kwargs)
    except gymnasium.error.UnregisteredEnv as error:
        if _is_ataris(name):
            return theirs(name, *args, **kwargs)
        try:
            make_env = creator(name)
        except RegistryError as ours:  # its suggestions include Gymnasium's names
            atari = "; for Atari games, run `pip install ale-py`" if _ATARI.fullmatch(name) else ""
            raise gymnasium.error.UnregisteredEnv(f"{ours}{atari}") from error
    env = wrap(make_env(*args, **kwargs))
    if not isinstance(env, gymnasium.Env):
        raise SpaceError(f"{name} has several agents, but CleanRL's scripts need environments with one agent")
    return env


def _is_ataris(name: str) -> bool:
    """Return whether a name is an Atari game's id; always False if ale_py is not installed.

    If the name looks like such an id, imports ale_py, which registers the ids. Gymnasium 1.0 and later do not import
    ale_py on their own.
    """
    if not _ATARI.fullmatch(name) or find_spec("ale_py") is None:
        return False
    importlib.import_module("ale_py")
    return name in gymnasium.registry


if __name__ == "__main__":
    main()
