"""The streams of a CUDA's launches: what waits for what where the current stream changes, and what a capture holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pufferlib.errors import CallError

__all__ = ["Streams", "is_captured", "require_uncaptured"]


def is_captured(torch: Any, stream: Any) -> bool:
    """Return whether a graph is captured on a stream."""
    with torch.cuda.stream(stream):
        return bool(torch.cuda.is_current_stream_capturing())


def require_uncaptured(torch: Any, stream: Any, why: str) -> None:
    """Raise CallError, which says why, if a graph is captured on a stream."""
    if is_captured(torch, stream):
        raise CallError(why)


class Streams:
    """Tells the stream that a launch goes to: torch's current one, ordered after the one before.

    torch: the module. device: a CUDA device. newest: returns the block of rows that was handed over last, or None.

    A capture on the very stream of the steps before goes unnoticed: a trainer's is one, which copies rows at each step.
    """

    def __init__(self, torch: Any, device: Any, newest: Callable[[], Any]) -> None:
        self._torch, self._device, self._newest = torch, device, newest
        self._last: Any = None  # the stream that was current last,
        self._last_address: int | None = None  # and its address
        self._seen: Any = None  # the rows that a capture's first step followed, until the capture is over
        self._captures = False
        # A step asks for an address alone: torch makes an object of a stream in several times as long.
        raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        self._raw: Callable[[int], int] = raw or (lambda index: torch.cuda.current_stream(device).cuda_stream)
        self._index: int = device.index

    def current(self) -> int:
        """Return the address of the current stream, which waits for what was launched before on another.

        Raises CallError where a capture would not hold that, or has not held all that its replays need.
        """
        address = self._raw(self._index)
        if address != self._last_address:
            self._change(address)
        return address

    def _change(self, address: int) -> None:
        stream, last = self._torch.cuda.current_stream(self._device), self._last
        if last is not None:
            require_uncaptured(
                self._torch,
                last,
                "the current stream is not that of the step before, and a graph is captured on that one; "
                "take all steps of a capture on one stream",
            )
        seen, captured, self._captures = self._seen, self._captures, is_captured(self._torch, stream)
        self._last, self._last_address = stream, address
        self._seen = self._newest() if self._captures else None
        if last is not None and not self._captures:  # what captures has been waited for: torch.cuda.graph does
            stream.wait_stream(last)
        if captured and self._newest() is not seen:
            raise CallError(
                "the steps that were captured in a graph do not end in the rows that they began with, which a replay "
                "would begin with, too: three blocks of rows take turns, so capture 3, 6, 9, … steps"
            )
