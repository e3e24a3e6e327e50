"""PufferLib's ``utils``: what programs use of it."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from types import ModuleType
from typing import Any, TypeVar

import gymnasium
import numpy as np
from gymnasium import spaces

from pufferlib.compat.exceptions import EnvironmentSetupError

__all__ = [
    "Profiler",
    "RandomState",
    "Suppress",
    "aggregate_profilers",
    "compare_arrays",
    "compare_dicts",
    "compare_lists",
    "compare_space_samples",
    "current_datetime",
    "format_bytes",
    "get_init_args",
    "is_dict_space",
    "is_multiagent",
    "make_zeros_like",
    "profile",
    "silence_warnings",
    "try_import",
    "unroll_nested_dict",
    "validate_args",
]

Function = TypeVar("Function", bound=Callable[..., Any])


def unroll_nested_dict(d: Any) -> Iterator[tuple[Any, Any]]:
    """Yield (key, value) for each value of nested dicts, with the keys joined by "/"; nothing if ``d`` is no dict."""
    if not isinstance(d, Mapping):
        return
    for key, value in d.items():
        if isinstance(value, Mapping):
            for below, item in unroll_nested_dict(value):
                yield f"{key}/{below}", item
        else:
            yield key, value


def silence_warnings(original_func: Function, category: type[Warning] = DeprecationWarning) -> Function:
    """Return a function that calls ``original_func`` and ignores its warnings of one category."""

    @functools.wraps(original_func)
    def call(*args: Any, **kwargs: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", category)
            return original_func(*args, **kwargs)

    return call  # type: ignore[return-value]


class Suppress(contextlib.AbstractContextManager[None]):
    """A context in which nothing is printed: stdout and stderr, of Python and of C, lead to os.devnull."""

    def __init__(self) -> None:
        self._stack: contextlib.ExitStack | None = None

    def __enter__(self) -> None:
        with contextlib.ExitStack() as stack:
            null = stack.enter_context(open(os.devnull, "w"))
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(AttributeError, ValueError):
                    stream.flush()
            for descriptor in (1, 2):
                copy = os.dup(descriptor)
                stack.callback(os.close, copy)
                os.dup2(null.fileno(), descriptor)
                stack.callback(os.dup2, copy, descriptor)
            stack.enter_context(contextlib.redirect_stdout(null))
            stack.enter_context(contextlib.redirect_stderr(null))
            self._stack = stack.pop_all()

    def __exit__(self, *error: object) -> None:
        assert self._stack is not None
        self._stack.close()


class Profiler:
    """A context that adds up the seconds (``elapsed``) and the number (``calls``) of its uses.

    ``delta``: the seconds of the last use. ``start`` and ``stop`` are the same as entering and leaving. memory and
    pytorch_memory are accepted and not measured.
    """

    def __init__(
        self, elapsed: bool = True, calls: bool = True, memory: bool = False, pytorch_memory: bool = False
    ) -> None:
        self.elapsed = 0.0
        self.calls = 0
        self.delta = 0.0
        self.prev = 0.0
        self._start_s = 0.0

    @property
    def serial(self) -> dict[str, float]:
        """``elapsed``, ``calls`` and ``delta`` as a dict."""
        return {"elapsed": self.elapsed, "calls": self.calls, "delta": self.delta}

    def start(self) -> Profiler:
        """Begin a use."""
        self._start_s = time.perf_counter()
        return self

    def stop(self, *_: object) -> None:
        """End a use."""
        self.delta = time.perf_counter() - self._start_s
        self.elapsed += self.delta
        self.calls += 1

    def __enter__(self) -> Profiler:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"{self.elapsed:.3f} s in {self.calls} calls"


def profile(func: Function) -> Function:
    """Return a method that adds up its time in ``self._timers``, a dict of Profilers by the method's name."""

    @functools.wraps(func)
    def call(*args: Any, **kwargs: Any) -> Any:
        timers = vars(args[0]).setdefault("_timers", {})
        with timers.setdefault(func.__name__, Profiler()):
            return func(*args, **kwargs)

    return call  # type: ignore[return-value]


def aggregate_profilers(profiler_dicts: Sequence[Mapping[str, Profiler]]) -> dict[str, Profiler]:
    """Return a Profiler for each name in several dicts of them, with the sums of their times and calls."""
    totals: dict[str, Profiler] = {}
    for profilers in profiler_dicts:
        for name, profiler in profilers.items():
            total = totals.setdefault(name, Profiler())
            total.elapsed += profiler.elapsed
            total.calls += profiler.calls
    return totals


def get_init_args(fn: Callable[..., Any] | None) -> dict[str, Any]:
    """Return the default value of each parameter of a function or class, other than ``self``, ``env`` and ``policy``.

    Parameters without a default are None; those that collect arguments are left out. For None, returns {}.
    """
    if fn is None:
        return {}
    return {
        name: None if item.default is item.empty else item.default
        for name, item in inspect.signature(fn).parameters.items()
        if name not in ("self", "env", "policy") and item.kind not in (item.VAR_POSITIONAL, item.VAR_KEYWORD)
    }


def validate_args(fn: Callable[..., Any], kwargs: Mapping[str, Any]) -> None:
    """Raise ValueError if a function does not accept one of these keyword arguments."""
    parameters = inspect.signature(fn).parameters.values()
    if any(item.kind is item.VAR_KEYWORD for item in parameters):
        return
    unknown = [name for name in kwargs if name not in {item.name for item in parameters}]
    if unknown:
        raise ValueError(f"{fn} takes no {', '.join(unknown)}; it takes {[item.name for item in parameters]}")


def make_zeros_like(data: Any) -> Any:
    """Return zeros of the shape and dtype of each array or number in nested dicts, tuples and lists."""
    if isinstance(data, Mapping):
        return {key: make_zeros_like(value) for key, value in data.items()}
    if isinstance(data, (tuple, list)):
        return type(data)(make_zeros_like(value) for value in data)
    return np.zeros_like(data) if isinstance(data, (np.ndarray, np.generic)) else type(data)(0)


def compare_arrays(array_1: Any, array_2: Any) -> bool:
    """Return whether two arrays or numbers have the same shape and values."""
    return bool(np.array_equal(np.asarray(array_1), np.asarray(array_2)))


def compare_space_samples(sample_1: Any, sample_2: Any, sample_2_batch_idx: int | None = None) -> bool:
    """Return whether two samples of nested spaces are equal.

    sample_2_batch_idx: if given, the index of the sample in ``sample_2``, whose arrays are batches.
    """
    if isinstance(sample_1, Mapping):
        return sample_1.keys() == sample_2.keys() and all(
            compare_space_samples(value, sample_2[key], sample_2_batch_idx) for key, value in sample_1.items()
        )
    if isinstance(sample_1, (tuple, list)):
        return len(sample_1) == len(sample_2) and all(
            compare_space_samples(value, item, sample_2_batch_idx)
            for value, item in zip(sample_1, sample_2, strict=True)
        )
    item = sample_2 if sample_2_batch_idx is None else sample_2[sample_2_batch_idx]
    if not isinstance(sample_1, np.ndarray):
        item = np.asarray(item).reshape(-1)[0] if np.size(item) == 1 else item
    return compare_arrays(sample_1, item)


def compare_dicts(dict_1: Mapping[Any, Any], dict_2: Mapping[Any, Any], idx: int | None) -> bool:
    """Return ``compare_space_samples`` of two dicts."""
    return compare_space_samples(dict_1, dict_2, idx)


def compare_lists(list_1: Sequence[Any], list_2: Sequence[Any], idx: int | None) -> bool:
    """Return ``compare_space_samples`` of two lists or tuples."""
    return compare_space_samples(list(list_1), list(list_2), idx)


def is_dict_space(space: gymnasium.Space[Any]) -> bool:
    """Return whether a space is a Dict, of Gymnasium or of old gym."""
    return isinstance(space, spaces.Dict) or type(space).__name__ == "Dict"


def is_multiagent(env: Any) -> bool:
    """Return whether an environment has several agents: its class, or an instance, of PettingZoo."""
    return hasattr(env, "possible_agents") or callable(getattr(env, "observation_space", None))


def current_datetime() -> str:
    """Return the local time as YYYY-MM-DD_HH-MM-SS."""
    return datetime.now().strftime("%Y-%m-%d_%H-%M-%S")


class RandomState:
    """Numbers of NumPy's generator for arguments that change slowly. seed: of the generator."""

    def __init__(self, seed: int | None) -> None:
        self.rng = np.random.RandomState(seed)

    def random(self) -> float:
        """Return a number from [0, 1)."""
        return float(self.rng.random())

    def probabilistic_round(self, n: float) -> int:
        """Return n rounded down or up at random, so that n is the expected value."""
        return int(np.floor(n)) + int(self.random() < n - np.floor(n))

    def sample(self, ary: Sequence[Any], n: int) -> list[Any]:
        """Return n different items of a sequence."""
        return [ary[index] for index in self.rng.choice(len(ary), n, replace=False)]

    def choice(self, ary: Sequence[Any]) -> Any:
        """Return one item of a sequence."""
        return ary[self.rng.randint(len(ary))]


def try_import(module_path: str, package_name: str | None = None) -> ModuleType:
    """Import the module with this path; return its package, ``dm_control`` for ``dm_control.suite``.

    Raises EnvironmentSetupError, with ``package_name``, if it cannot be imported; by default, the name is the path.
    """
    try:
        importlib.import_module(module_path)
        return importlib.import_module(module_path.partition(".")[0])
    except ImportError as error:
        raise EnvironmentSetupError(error, package_name or module_path) from error


def format_bytes(size: float) -> str:
    """Return a number of bytes with a unit that suits it, such as "1.50 MB" (1 MB is 1024 KB)."""
    units = ("B", "KB", "MB", "GB", "TB", "PB")
    for unit in units[:-1]:
        if abs(size) < 1024:
            return f"{size:.2f} {unit}"
        size /= 1024
    return f"{size:.2f} {units[-1]}"
