"""Errors for calls made in the wrong order, with the same messages on every backend."""

from __future__ import annotations

from collections.abc import Mapping

from pufferlib.errors import CallError, ClosedError

__all__ = [
    "FAILED",
    "FLYING",
    "NEW",
    "READY",
    "WAITING",
    "closed_error",
    "in_flight_error",
    "no_batch_error",
    "not_waiting_error",
    "too_few_in_flight_error",
]

NEW, WAITING, FLYING, READY, FAILED = range(5)  # the state of an environment
_WORDS = ("has never been reset", "waits for an action", "is in flight", "has finished but was not received", "failed")


def closed_error(name: str, because: str = "") -> ClosedError:
    """Return the error for a call after ``close``.

    name: the class's name. because: the reason, as text that follows "is closed"; "" for none.
    """
    return ClosedError(f"this {name} is closed{because}; make a new one")


def no_batch_error() -> CallError:
    """Return the error for actions sent before the first batch."""
    return CallError("there is no batch to act on yet; call reset, or async_reset and recv, first")


def not_waiting_error(call: str, states: Mapping[int, int], *, named: bool) -> CallError:
    """Return the error for actions sent to environments that are not waiting for one.

    call: the name of the call. states: those environments' states, keyed by env id. named: whether ``env_ids`` was
    passed to the call.
    """
    lost = [env_id for env_id, state in states.items() if state in (NEW, FAILED)]
    if lost:
        way_out = f"call reset, or async_reset(env_ids={lost[:8]})"
    elif named:
        way_out = "name only environments whose rows have been received"
    else:
        way_out = "the last batch has been answered already; call recv"
    return CallError(f"cannot {call}: {_described(states)}; {way_out}")


def in_flight_error(states: Mapping[int, int]) -> CallError:
    """Return the error for resetting environments whose rows have not been received.

    states: those environments' states, keyed by env id.
    """
    return CallError(f"cannot reset: {_described(states)}; recv first")


def too_few_in_flight_error(num_in_flight: int, batch_size: int, *, some_wait: bool) -> CallError:
    """Return the error for a ``recv`` whose batch can never be full.

    some_wait: whether some environments are waiting for an action.
    """
    return CallError(
        f"{num_in_flight} environments are in flight, and a batch holds {batch_size}: recv could never return; "
        f"{'send actions for more' if some_wait else 'call reset or async_reset first'}"
    )


def _described(states: Mapping[int, int]) -> str:
    return "; ".join(f"environment {env_id} {_WORDS[state]}" for env_id, state in [*states.items()][:8])
