"""Diagrams as SVG: boxes, arrows and text on white, without external fonts or files."""

from __future__ import annotations

from html import escape
from pathlib import Path

__all__ = ["Drawing"]


class Drawing:
    """A picture of the given width and height in units, which a page scales to its own width."""

    def __init__(self, width: float, height: float) -> None:
        self.size = width, height
        self.parts: list[str] = []

    def box(self, x: float, y: float, width: float, height: float, *, fill: str = "#fff", line: str = "#444") -> None:
        self.parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}" stroke="{line}"/>'
        )

    def text(
        self, x: float, y: float, content: str, *, anchor: str = "start", bold: bool = False, size: int = 12
    ) -> None:
        """Write text with its base line at y. anchor: "start", "middle" or "end"."""
        weight = ' font-weight="bold"' if bold else ""
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"{weight}>{escape(content)}</text>'
        )

    def arrow(self, *points: tuple[float, float]) -> None:
        """Draw a line through points, with an arrowhead at the last one."""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(
            f'<polyline points="{path}" fill="none" stroke="#444" stroke-width="1.5" marker-end="url(#head)"/>'
        )

    def write(self, path: Path) -> None:
        width, height = self.size
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" font-family="sans-serif">'
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            'orient="auto">'
            '<path d="M0,0 L8,4 L0,8 z" fill="#444"/></marker></defs>'
            f'<rect width="{width:g}" height="{height:g}" fill="#fff"/>'
        )
        path.write_text("\n".join([head, *self.parts, "</svg>"]) + "\n")
        print(f"Wrote {path}")
