"""CuPy where there is no GPU: a stand-in that notes what it is handed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

__all__ = ["StandIn"]


class StandIn:
    """CuPy as far as DeviceFunctions ask it: notes the files that it loads and what is launched.

    play: called with a kernel's name, its arguments and its number of blocks.
    """

    def __init__(self, play: Callable[[str, Any, int], None] = lambda name, arguments, num_blocks: None) -> None:
        self.play = play
        self.loaded: list[tuple[Path, str]] = []
        self.launched: list[tuple[Any, ...]] = []
        self.present, self.error = 0, ""
        self.cuda = SimpleNamespace(Device=lambda: Device(self), runtime=SimpleNamespace(getDevice=self.get_device))

    def get_device(self) -> int:
        return self.present

    def RawModule(self, *, path: str) -> Any:
        def get_function(name: str) -> Any:
            if self.error:
                raise RuntimeError(self.error)
            self.loaded.append((Path(path), name))
            return SimpleNamespace(kernel=functools.partial(self.launch, name))

        return SimpleNamespace(get_function=get_function)

    def launch(self, name: str, grid: Any, block: Any, arguments: Any, shared_nbytes: int, stream: Any) -> None:
        self.play(name, arguments[0], grid[0])
        self.launched.append((grid, block, arguments, shared_nbytes, stream.ptr, self.present))


class Device:
    """A device of CuPy's."""

    def __init__(self, cupy: StandIn) -> None:
        self.cupy, self.id, self.compute_capability = cupy, cupy.present, "90"
        self.attributes = {"MultiProcessorCount": 4}

    def __enter__(self) -> None:
        self.before, self.cupy.present = self.cupy.present, self.id

    def __exit__(self, *_: object) -> None:
        self.cupy.present = self.before
