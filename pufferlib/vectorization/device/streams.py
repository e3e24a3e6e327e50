"""The CUDA streams of launches: order across streams, events, and checks for graph captures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from pufferlib.errors import CallError
from pufferlib.vectorization.device.block_shape import BlockShape

__all__ = ["BlockStream", "CurrentStream", "HostStream", "Streams", "is_captured", "require_uncaptured"]


def is_captured(torch: Any, stream: Any) -> bool:
    """Return whether a graph is being captured on a stream."""
    with torch.cuda.stream(stream):
        return bool(torch.cuda.is_current_stream_capturing())


def require_uncaptured(torch: Any, stream: Any, why: str) -> None:
    """Raise CallError with the reason ``why`` if a graph is being captured on a stream."""
    if is_captured(torch, stream):
        raise CallError(why)


class CurrentStream(Protocol):
    """The stream on which the caller's next launch runs."""

    def current(self) -> int:
        """Make the stream wait for earlier launches, and return its address.

        Raises CallError if a graph capture makes the wait impossible.
        """


class HostStream:
    """The host's substitute for a stream: on the host, each launch ends before the next starts."""

    def current(self) -> int:
        """Return 0: the host has no streams."""
        return 0


class Streams:
    """The stream of each launch: torch's current stream, which first waits for the previous launch's stream.

    torch: the module. device: a CUDA device. newest: a function that returns where the rows of the last batch are, or
    None.

    Only a change of stream is noticed. A graph captured on the stream on which earlier steps ran is therefore not
    checked. The trainers capture graphs in this way, which works because each step writes its rows into a rollout.
    """

    def __init__(self, torch: Any, device: Any, newest: Callable[[], int | None]) -> None:
        self._torch, self._device, self._newest = torch, device, newest
        self._last: Any = None  # the stream of the last launch,
        self._last_address: int | None = None  # and its address
        self._first_rows: int | None = None  # where rows are before a capture's first step, until the capture ends
        self._captures = False
        # A step reads only the address: making a stream object takes torch several times as long.
        raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        self._raw: Callable[[int], int] = raw or (lambda index: torch.cuda.current_stream(device).cuda_stream)
        self._index: int = device.index

    def current(self) -> int:
        """Make the current stream wait for earlier launches on another stream, and return its address.

        Raises CallError if the stream changes while a graph is being captured on the previous stream. Also raises
        CallError after the capture of a graph that does not end with its rows where they were when it began.
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
                "a graph is being captured on the stream of the previous step, and the current stream is another; "
                "take all steps of a capture on one stream",
            )
        first_rows, captured, self._captures = self._first_rows, self._captures, is_captured(self._torch, stream)
        self._last, self._last_address = stream, address
        self._first_rows = self._newest() if self._captures else None
        if last is not None and not self._captures:  # torch.cuda.graph has waited before a capture
            stream.wait_stream(last)
        if captured and self._newest() != first_rows:
            raise CallError(
                "the steps captured in a graph do not end in the block of rows with which they began, and with which "
                "each replay begins: three blocks of rows take turns, so capture 3, 6, 9, … steps, or give the last "
                "step the tensors that the last step before the capture had as out"
            )


class BlockStream:
    """The stream of the launches that fill one block, and the event after the last of these launches.

    On a GPU, blocks that hold only some of the environments have a stream each; all other launches run on the caller's
    stream. torch: the module. device: the block's device. streams: the caller's current stream. shape: the BlockShape.
    """

    def __init__(self, torch: Any, device: Any, streams: CurrentStream, shape: BlockShape) -> None:
        self._torch, self._device, self._streams, self._shape = torch, device, streams, shape
        pooled = device.type == "cuda" and not shape.synchronous
        self._stream = torch.cuda.Stream(device) if pooled else None
        self._event: Any = None

    def launch(self, launcher: Any, num_envs: int, tensors: Sequence[Any]) -> None:
        """Launch a kernel that starts after all work on the caller's stream. tensors: the tensors that it reads.

        Raises the errors of ``CurrentStream.current``, and CallError if the block has its own stream while a graph is
        being captured.
        """
        address, stream = self._streams.current(), self._stream
        if stream is None:
            launcher.launch(num_envs, address)
            return
        torch = self._torch
        caller = torch.cuda.current_stream(self._device)
        require_uncaptured(
            torch,
            caller,
            f"batch_size={self._shape.batch_size} of num_envs={self._shape.num_envs} plays on several streams, and its "
            "batches come in no fixed order, so that no graph can hold them; capture with batch_size=num_envs",
        )
        stream.wait_stream(caller)
        for tensor in tensors:
            tensor.record_stream(stream)
        try:
            launcher.launch(num_envs, int(stream.cuda_stream))
        finally:
            self._event = self._event or torch.cuda.Event()
            self._event.record(stream)

    def is_done(self) -> bool:
        """Return whether the launches have finished; always True on the caller's stream, which orders them."""
        return self._event is None or self._event.query()

    def wait(self) -> None:
        """Make the caller's stream wait until the launches have finished."""
        if self._event is not None:
            self._torch.cuda.current_stream(self._device).wait_event(self._event)
