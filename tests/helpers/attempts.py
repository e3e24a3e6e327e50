"""For tests that measure time: what else a machine has to do may fail one attempt, and a fault fails them all."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import TypeVar

import pytest

__all__ = ["passes_once"]

Test = TypeVar("Test", bound=Callable[..., None])


def passes_once(most: int = 5) -> Callable[[Test], Test]:
    """Return a decorator that repeats a test until it passes, but at most ``most`` times; the last failure counts.

    For assertions about durations, shares of time and timeouts only: a fault that shows now and then would be missed.
    The test must be able to begin again with the same fixtures. A hang, which pytest-timeout ends, is not repeated.
    """

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def repeated(*args: object, **kwargs: object) -> None:
            for _ in range(most - 1):
                with contextlib.suppress(Exception):
                    try:
                        return test(*args, **kwargs)
                    except pytest.fail.Exception as failure:  # no Exception
                        if not str(failure).startswith("DID NOT"):  # neither of pytest.raises nor of pytest.warns
                            raise
            return test(*args, **kwargs)

        return repeated  # type: ignore[return-value]

    return decorate
