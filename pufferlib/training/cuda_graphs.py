"""CUDA graphs of training iterations, and asynchronous copies of their results to the host."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from pufferlib.errors import PlanError

__all__ = ["GraphedIteration", "Reading", "on_own_stream"]


class GraphedIteration:
    """A training iteration to be called repeatedly. On a GPU, it is replayed from a CUDA graph.

    The first two calls run the iteration as usual. The third call captures it in the graph and replays the graph, as
    all later calls do. play: a function that runs the iteration and returns its outputs. generator: the random
    generator that the iteration draws from. config: a ``ppo_cuda.DeviceConfig``; with ``graphs=False`` nothing is
    captured.
    """

    def __init__(self, play: Callable[[], tuple[Tensor, ...]], generator: torch.Generator, config: Any) -> None:
        self.play, self.generator = play, generator
        self.eager_calls = 2 if config.graphs and torch.device(config.device).type == "cuda" else None
        self.graph: torch.cuda.CUDAGraph | None = None
        self.outputs: tuple[Tensor, ...] = ()

    def __call__(self) -> tuple[Tensor, ...]:
        if self.eager_calls is None:
            return self.play()
        if self.eager_calls > 0:  # kernels and buffers are created on first use, which must precede the capture
            self.eager_calls -= 1
            with warnings.catch_warnings():  # the optimizer is made for the graph that follows
                warnings.filterwarnings("ignore", message=".*capturable=True.*", category=UserWarning)
                return self.play()
        if self.graph is None:
            self.graph = self._captured()
        self.graph.replay()
        return self.outputs

    def _captured(self) -> torch.cuda.CUDAGraph:
        """Capture the iteration in a CUDA graph, set ``outputs`` to the graph's outputs, and return the graph.

        Raises PlanError if the iteration cannot be captured, for example because it waits for the device. Errors that
        do not come from the capture, such as a lack of memory, propagate.
        """
        graph = torch.cuda.CUDAGraph()
        if torch_version() < (2, 14):  # later versions do so themselves, and warn if callers do too
            graph.register_generator_state(self.generator)
        try:
            with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
                self.outputs = self.play()
        except RuntimeError as error:
            FAILED.append(graph)
            cause = of_capture(error)
            if cause is None:
                raise
            raise PlanError(
                f"an iteration cannot be captured in a CUDA graph: {str(cause).partition(chr(10))[0]}; policies that "
                "wait for the device, by .item(), .cpu() or a branch on a tensor's value, train with --no-graphs "
                "(graphs=False)"
            ) from error
        return graph


FAILED: list[torch.cuda.CUDAGraph] = []  # kept alive: torch's allocator still queries a graph whose capture failed


def torch_version() -> tuple[int, ...]:
    """Return torch's version as (major, minor)."""
    return tuple(map(int, torch.__version__.split(".")[:2]))


def of_capture(error: BaseException) -> BaseException | None:
    """Follow an error's chain of causes; return the innermost error whose message mentions a capture.

    Returns None if no message does, or if an error in the chain means that memory ran out.
    """
    first = None
    chain: BaseException | None = error
    while chain is not None:
        if isinstance(chain, torch.OutOfMemoryError):
            return None
        first = chain if "captur" in str(chain) else first
        chain = chain.__cause__ or chain.__context__
    return first


class Reading:
    """A copy, on the host, of an iteration's outputs; it is made without waiting for the device.

    rates: the learning rates of the iteration.
    """

    def __init__(self, outputs: Sequence[Tensor], rates: Sequence[float]) -> None:
        self.rates = rates
        self._event: torch.cuda.Event | None = None
        on_device = outputs[0].is_cuda
        # Pinned memory, so that the device can copy while the host continues.
        self._copies = [torch.empty_like(output, device="cpu", pin_memory=on_device) for output in outputs]
        for copy, output in zip(self._copies, outputs, strict=True):
            copy.copy_(output.detach(), non_blocking=True)
        if on_device:
            self._event = torch.cuda.Event()
            self._event.record()

    def values(self) -> list[Tensor]:
        """Wait until the copies are complete, and return them."""
        if self._event is not None:
            self._event.synchronize()
        return self._copies


@contextlib.contextmanager
def on_own_stream(device: str) -> Iterator[None]:
    """Run the block on the process's stream for graphs, as their capture requires; on the CPU, run it as usual.

    The block's work begins after all work queued earlier on the current stream. Work queued on that stream later waits
    for the block's work.
    """
    if torch.device(device).type != "cuda":
        yield
        return
    outer, inner = torch.cuda.current_stream(device), stream_for_graphs(device)
    inner.wait_stream(outer)
    try:
        with torch.cuda.stream(inner):
            yield
    finally:
        outer.wait_stream(inner)


@functools.cache
def stream_for_graphs(device: str) -> torch.cuda.Stream:
    """Return the one stream of a device on which this process captures and trains.

    A second training must not take another: for each stream on which torch has multiplied matrices, and each thread
    that did so, it keeps a workspace of cuBLAS allocated, 32 MiB on an H200.
    """
    return torch.cuda.Stream(device)
