"""Draw pictures of Tag: a square field with agents, and above it the numbers of agents and the time.

Shapes are signed distance functions, in pixels, so that edges can be smooth. Drawing needs only NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["HEIGHT", "RUNNER", "TAGGED", "TAGGER", "WIDTH", "TagPicture"]

FIELD, MARGIN, HEADER = 568, 12, 48  # pixels
WIDTH, HEIGHT = FIELD + 2 * MARGIN, HEADER + FIELD + 2 * MARGIN
PAPER, GROUND, LINE, INK = (255, 255, 255), (246, 246, 243), (224, 224, 220), (70, 70, 70)
TAGGER, RUNNER, TAGGED = (214, 48, 49), (41, 98, 214), (165, 165, 165)  # red, blue, grey
LEAST_RADIUS, MOST_RADIUS = 2.5, 12.0  # an agent's, in pixels
CROWDED = 75.0  # pixels; an agent's radius is this over the square root of the number of agents, if there are many
LEAST_CELL, CELL_SHARE = 8, 0.3  # pixels of a cell that has borders; an agent's radius as a share of a large cell
DOT = 6  # pixels of a digit's dot
DIGITS = {  # 3 x 5 dots
    "0": "### #.# #.# #.# ###", "1": ".#. ##. .#. .#. ###", "2": "### ..# ### #.. ###", "3": "### ..# ### ..# ###",
    "4": "#.# #.# ### ..# ..#", "5": "### #.. ### ..# ###", "6": "### #.. ### #.# ###", "7": "### ..# ..# .#. .#.",
    "8": "### #.# ### #.# ###", "9": "### #.# ### ..# ###", "/": "..# ..# .#. #.. #..",
}  # fmt: skip

Colour = tuple[int, int, int]
Floats = NDArray[np.floating[Any]]
Shape = Callable[[Floats, Floats], Floats]  # signed distances of x and y from the middle, y upwards


class TagPicture:
    """A picture to draw on. ``pixels`` is uint8 (HEIGHT, WIDTH, 3).

    num_agents: the more agents, the smaller they are drawn. num_cells: the number of cells along a side of the field, 0
    for a plane. Positions are fractions of a side, from 0 to 1, y upwards. Later drawings cover earlier ones.
    """

    def __init__(self, num_agents: int, num_cells: int = 0) -> None:
        self.pixels = np.full((HEIGHT, WIDTH, 3), PAPER, np.uint8)
        top, bottom, left, right = HEADER + MARGIN, HEIGHT - MARGIN, MARGIN, WIDTH - MARGIN
        self.pixels[top - 2 : bottom + 2, left - 2 : right + 2] = INK
        field = self.pixels[top:bottom, left:right]
        field[:] = GROUND
        if num_cells and FIELD >= LEAST_CELL * num_cells:
            borders = np.arange(1, num_cells) * FIELD // num_cells
            field[borders] = field[:, borders] = LINE
        self.radius = float(np.clip(CROWDED / np.sqrt(num_agents), LEAST_RADIUS, MOST_RADIUS))
        if num_cells:
            self.radius = max(self.radius, min(CELL_SHARE * FIELD / num_cells, 2 * MOST_RADIUS))

    def tagged(self, x: float, y: float) -> None:
        """Draw a runner that was tagged and has left, as a grey ring."""
        self._draw(*_pixel(x, y), self.radius, _ring(self.radius), TAGGED)

    def tagger(self, x: float, y: float, direction: float | None = None) -> None:
        """Draw a tagger, as an arrowhead that points in ``direction`` (radians), or as a square if that is None."""
        row, column = _pixel(x, y)
        self._draw(row, column, 2 * self.radius, _tagger(self.radius, direction), TAGGER, outlined=True)

    def runner(self, x: float, y: float, direction: float | None = None) -> None:
        """Draw a runner, as a disc, with a line in ``direction`` (radians) unless that is None."""
        row, column = _pixel(x, y)
        if direction is not None:
            self._draw(row, column, 3 * self.radius, _hand(2 * self.radius, direction), RUNNER)
        self._draw(row, column, self.radius, _disc(self.radius), RUNNER, outlined=True)

    def reach(self, x: float, y: float, radius: float) -> None:
        """Shade a tagger's reach. radius: a fraction of the field's side."""
        self._draw(*_pixel(x, y), radius * FIELD, _disc(radius * FIELD), TAGGER, strength=0.15)

    def header(self, num_taggers: int, num_runners: int, num_tagged: int, t: int, episode_length: int) -> None:
        """Write the numbers of taggers, runners and tagged runners, each next to its symbol, and the time."""
        middle, column = (HEADER + MARGIN) / 2 - 1, float(MARGIN)
        shapes = ((_tagger(MOST_RADIUS, None), TAGGER), (_disc(MOST_RADIUS), RUNNER), (_ring(MOST_RADIUS), TAGGED))
        for (shape, colour), count in zip(shapes, (num_taggers, num_runners, num_tagged), strict=True):
            self._draw(middle, column + MOST_RADIUS, MOST_RADIUS, shape, colour)
            column = self._write(str(count), column + 3 * MOST_RADIUS) + 2 * MOST_RADIUS
        time = f"{t}/{episode_length}"
        self._write(time, WIDTH - MARGIN - (4 * len(time) - 1) * DOT)

    def _write(self, text: str, column: float) -> float:
        """Write digits and slashes, and return the column where they end."""
        top, left = (HEADER + MARGIN - 5 * DOT) // 2, int(column)
        for character in text:
            dots = np.array([[dot == "#" for dot in line] for line in DIGITS[character].split()])
            self.pixels[top : top + 5 * DOT, left : left + 3 * DOT][np.kron(dots, np.ones((DOT, DOT), bool))] = INK
            left += 4 * DOT
        return left - DOT

    def _draw(
        self,
        row: float,
        column: float,
        size: float,
        shape: Shape,
        colour: Colour,
        *,
        strength: float = 1.0,
        outlined: bool = False,
    ) -> None:
        """Draw a shape that extends at most ``size`` pixels from its centre, which is at ``row`` and ``column``.

        strength: the opacity of ``colour``, 0 to 1. outlined: surround the shape with a thin line in PAPER.
        """
        least = np.floor([row - size, column - size]).astype(int) - 2
        most = np.ceil([row + size, column + size]).astype(int) + 3
        (top, left), (bottom, right) = least.clip(0), most.clip(0)
        pixels = self.pixels[top:bottom, left:right]
        rows, columns = np.ogrid[top : top + pixels.shape[0], left : left + pixels.shape[1]]
        distances = shape(columns - column, row - rows)
        for paint, margin in ((PAPER, 1.5), (colour, 0.0)) if outlined else ((colour, 0.0),):
            covered = strength * (margin + 0.5 - distances).clip(0, 1)[..., np.newaxis]
            pixels[:] = np.rint(pixels + covered * (np.array(paint) - pixels))


def _pixel(x: float, y: float) -> tuple[float, float]:
    """Return the row and the column, in pixels, of a position on the field."""
    return HEIGHT - MARGIN - 0.5 - y * (FIELD - 1), MARGIN + x * (FIELD - 1)


def _disc(radius: float) -> Shape:
    return lambda x, y: np.hypot(x, y) - radius


def _ring(radius: float) -> Shape:
    width = max(1.0, 0.2 * radius)
    return lambda x, y: np.abs(np.hypot(x, y) - radius + width) - width


def _hand(length: float, direction: float) -> Shape:
    def distance(x: Floats, y: Floats) -> Floats:
        along, across = _turned(x, y, direction)
        result: Floats = np.hypot(along - along.clip(0, length), across) - 1.0
        return result

    return distance


def _tagger(radius: float, direction: float | None) -> Shape:
    if direction is None:
        return lambda x, y: np.maximum(np.abs(x), np.abs(y)) - radius

    def distance(x: Floats, y: Floats) -> Floats:
        along, across = _turned(x, y, direction)
        tip, tail, half = 1.7 * radius, 1.1 * radius, 1.2 * radius
        side = ((along - tip) * half + np.abs(across) * (tip + tail)) / np.hypot(half, tip + tail)
        result: Floats = np.maximum(side, -along - tail)
        return result

    return distance


def _turned(x: Floats, y: Floats, direction: float) -> tuple[Floats, Floats]:
    cosine, sine = np.cos(direction), np.sin(direction)
    return x * cosine + y * sine, y * cosine - x * sine
