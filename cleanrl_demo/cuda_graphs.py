"""Iterations on a device: captured in a CUDA graph, and what they tell read while the next one runs."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from pufferlib.errors import PlanError

__all__ = ["GraphedIteration", "Reading", "on_own_stream"]


class GraphedIteration:
    """An iteration, called again and again: on a GPU captured once it has been played twice, and then replayed.

    generator: what is drawn from in it. config: a ``ppo_cuda.DeviceConfig``.
    """

    def __init__(self, play: Callable[[], tuple[Tensor, ...]], generator: torch.Generator, config: Any) -> None:
        self.play, self.generator = play, generator
        self.eager_calls = 2 if config.graphs and torch.device(config.device).type == "cuda" else None
        self.graph: torch.cuda.CUDAGraph | None = None
        self.outputs: tuple[Tensor, ...] = ()

    def __call__(self) -> tuple[Tensor, ...]:
        if self.eager_calls is None:
            return self.play()
        if self.eager_calls > 0:  # what is made at first use, kernels and buffers, is made outside of the graph
            self.eager_calls -= 1
            with warnings.catch_warnings():  # the optimizer is made for the graph, and has not long to wait for it
                warnings.filterwarnings("ignore", message=".*capturable=True.*", category=UserWarning)
                return self.play()
        if self.graph is None:
            self.graph = self._captured()
        self.graph.replay()
        return self.outputs

    def _captured(self) -> torch.cuda.CUDAGraph:
        """Return a graph of the iteration. Raises PlanError where something in it waits for the device."""
        graph = torch.cuda.CUDAGraph()
        if torch_version() < (2, 14):  # which does so by itself, and warns of who does
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


FAILED: list[torch.cuda.CUDAGraph] = []  # torch's allocator goes on asking a graph whose capture has failed


def torch_version() -> tuple[int, ...]:
    """Return torch's version: major, minor."""
    return tuple(map(int, torch.__version__.split(".")[:2]))


def of_capture(error: BaseException) -> BaseException | None:
    """Return what has first broken a capture, of an error and those that it came of; None for other errors."""
    first = None
    chain: BaseException | None = error
    while chain is not None:
        if isinstance(chain, torch.OutOfMemoryError):
            return None
        first = chain if "captur" in str(chain) else first
        chain = chain.__cause__ or chain.__context__
    return first


class Reading:
    """Numbers on their way from the device. outputs: of an iteration. rates: its learning rates."""

    def __init__(self, outputs: Sequence[Tensor], rates: Sequence[float]) -> None:
        self.rates = rates
        self._event: torch.cuda.Event | None = None
        on_device = outputs[0].is_cuda
        # Pinned memory, to which a device copies while the host goes on.
        self._copies = [torch.empty_like(output, device="cpu", pin_memory=on_device) for output in outputs]
        for copy, output in zip(self._copies, outputs, strict=True):
            copy.copy_(output.detach(), non_blocking=True)
        if on_device:
            self._event = torch.cuda.Event()
            self._event.record()

    def values(self) -> list[Tensor]:
        """Return the numbers; waits until they are there."""
        if self._event is not None:
            self._event.synchronize()
        return self._copies


@contextlib.contextmanager
def on_own_stream(device: str) -> Iterator[None]:
    """Queue what follows on a stream of its own, which graphs need, after what is queued and before what comes then."""
    if torch.device(device).type != "cuda":
        yield
        return
    outer, inner = torch.cuda.current_stream(device), torch.cuda.Stream(device)
    inner.wait_stream(outer)
    try:
        with torch.cuda.stream(inner):
            yield
    finally:
        outer.wait_stream(inner)
