"""Functions that draw small grids, as text for a terminal or as RGB pixels."""

from __future__ import annotations

from typing import Any

import numpy as np

RENDER_MODES = ("ansi", "rgb_array")
CELL_PIXELS = 32
COLOURS = {  # value of a cell: terminal colour code, RGB
    -1: (91, (220, 60, 60)),  # agent, red
    0: (90, (90, 90, 90)),  # empty, grey
    1: (94, (60, 110, 230)),  # target, blue
}


def check_render_mode(render_mode: str | None) -> str | None:
    """Return ``render_mode`` unchanged. Raises ValueError if it is not "ansi", "rgb_array" or None."""
    if render_mode is not None and render_mode not in RENDER_MODES:
        raise ValueError(f'render_mode={render_mode!r} is unknown; use "ansi", "rgb_array" or None')
    return render_mode


def draw(grid: np.ndarray[Any, Any], render_mode: str | None) -> Any:
    """Return a picture of a grid (height, width), whose cells are -1 (agent), 0 (empty) or 1 (target).

    "ansi": a str with two coloured block characters per cell. "rgb_array": pixels, uint8 (CELL_PIXELS * height,
    CELL_PIXELS * width, 3). Otherwise None.
    """
    if render_mode == "ansi":
        return "\n".join("".join(f"\033[{COLOURS[int(cell)][0]}m██\033[0m" for cell in line) for line in grid)
    if render_mode == "rgb_array":
        pixels = np.array([[COLOURS[int(cell)][1] for cell in line] for line in grid], np.uint8)
        return pixels.repeat(CELL_PIXELS, axis=0).repeat(CELL_PIXELS, axis=1)
    return None
