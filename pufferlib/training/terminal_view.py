"""An environment shown in a terminal: its text, or its pictures as half blocks, in place and in real time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import lru_cache
from itertools import groupby
from types import TracebackType
from typing import Any

import numpy as np
from rich.color import Color
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

import pufferlib
from pufferlib.errors import PlanError
from pufferlib.evaluation.film import FPS, checked_picture, scaled

NUM_LINES_BELOW = 2  # the caption, and the cursor


class TerminalView:
    """A context manager that shows a VecEnv's only environment: call ``see`` between ``recv`` and ``send``.

    ``see`` waits until the next picture is due, according to ``metadata["render_fps"]``. Raises PlanError if the
    console is not a terminal.
    """

    def __init__(self, vec: pufferlib.VecEnv, console: Console) -> None:
        if not console.is_terminal:
            raise PlanError("there is no terminal to watch in; --video FILE.gif makes a film")
        self.vec, self.console = vec, console
        self.frame_s = 1 / float(vec.metadata.get("render_fps") or FPS)
        self.live = Live(console=console, auto_refresh=False)  # without a thread
        self.num_episodes, self.num_steps, self.episodic_return = 0, 0, 0.0
        self._due_s = 0.0

    def __enter__(self) -> TerminalView:
        self.live.start()
        return self

    def see(self, batch: pufferlib.Batch) -> None:
        """Show the environment as it is now, and the number, step and return of its current episode."""
        masks = np.asarray(batch.masks)
        if masks.any():
            self.num_steps += 1
            self.episodic_return += float(np.asarray(batch.rewards)[masks].sum())
        else:
            self.num_episodes += 1
            self.num_steps, self.episodic_return = 0, 0.0
        (picture,) = self.vec.render(env_ids=[0])
        caption = Text(
            f"episode {self.num_episodes}  step {self.num_steps:,}  return {self.episodic_return:.6g}", "dim"
        )
        now_s = time.monotonic()
        time.sleep(max(0.0, self._due_s - now_s))
        self._due_s = max(now_s, self._due_s) + self.frame_s
        self.live.update(Group(renderable(picture, self.console), caption), refresh=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.live.stop()


def renderable(picture: Any, console: Console) -> RenderableType:
    """Return the result of an environment's ``render`` as a rich renderable.

    A picture is scaled down to fit the terminal. Raises PlanError for anything but a text or a picture.
    """
    if isinstance(picture, str):
        return Text.from_ansi(picture, no_wrap=True)
    width, height = console.size.width, console.size.height - NUM_LINES_BELOW
    return HalfBlocks(scaled(checked_picture(picture), (width, 2 * max(1, height))))


class HalfBlocks:
    """A picture, uint8 (height, width, 3), drawn in a terminal; each character shows an upper and a lower pixel."""

    def __init__(self, picture: np.ndarray) -> None:
        if len(picture) % 2:
            picture = np.concatenate([picture, picture[-1:]])
        self.picture = picture

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for upper, lower in zip(self.picture[::2].tolist(), self.picture[1::2].tolist(), strict=True):
            pairs = ((tuple(above), tuple(below)) for above, below in zip(upper, lower, strict=True))
            for colours, run in groupby(pairs):  # one code for each run of characters of the same colours
                yield Segment("▀" * len(list(run)), _style(*colours))
            yield Segment.line()


@lru_cache(maxsize=4096)
def _style(above: tuple[int, int, int], below: tuple[int, int, int]) -> Style:
    return Style(color=Color.from_rgb(*above), bgcolor=Color.from_rgb(*below))
