"""A fake clock, to detect environments whose behaviour depends on the time."""

from __future__ import annotations

import datetime
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["fake_clock"]

# Modules that keep the real clocks, because they wait with timeouts or measure for the checks.
_SPARED = {*sys.stdlib_module_names, "numpy", "torch", "gymnasium", "pufferlib", "_pytest", "pytest", "hypothesis"}


@contextmanager
def fake_clock(start_s: float, tick_s: float) -> Iterator[None]:
    """Replace Python's clocks, inside the ``with`` block, with a fake clock.

    The fake clock starts at start_s and advances by tick_s at each reading; both are in seconds.

    The replaced clocks are ``time``, ``monotonic``, ``perf_counter`` and ``process_time`` of the module ``time``, their
    ``_ns`` variants, and the classes ``datetime`` and ``date``. Modules that have imported any of these by name see the
    replacements too, unless they belong to a package in _SPARED. Clocks that compiled code reads do not change.
    """
    ticks = itertools.count()

    def seconds() -> float:
        return start_s + tick_s * next(ticks)

    def nanoseconds() -> int:
        return int(seconds() * 1e9)

    class FakeDatetime(datetime.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return cls.fromtimestamp(seconds(), tz)

        @classmethod
        def utcnow(cls) -> Any:
            return cls.fromtimestamp(seconds(), datetime.timezone.utc).replace(tzinfo=None)

    class FakeDate(datetime.date):
        @classmethod
        def today(cls) -> Any:
            return cls.fromtimestamp(seconds())

    replacements: dict[Any, Any] = {
        **{getattr(time, name): seconds for name in ("time", "monotonic", "perf_counter", "process_time")},
        **{getattr(time, f"{name}_ns"): nanoseconds for name in ("time", "monotonic", "perf_counter", "process_time")},
        datetime.datetime: FakeDatetime,
        datetime.date: FakeDate,
    }
    replaced = list(_replace(replacements))
    try:
        yield
    finally:
        for namespace, name, original in replaced:
            namespace[name] = original


def _replace(replacements: dict[Callable[..., Any], Any]) -> Iterator[tuple[dict[str, Any], str, Any]]:
    kinds = tuple({type(original) for original in replacements})
    namespaces = [time.__dict__, datetime.__dict__]
    for module_name, module in list(sys.modules.items()):
        if module_name.partition(".")[0] not in _SPARED:
            namespaces.append(getattr(module, "__dict__", {}))
    for namespace in namespaces:
        for name, value in list(namespace.items()):
            if isinstance(value, kinds) and value in replacements:
                namespace[name] = replacements[value]
                yield namespace, name, value
