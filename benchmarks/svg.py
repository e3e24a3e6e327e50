"""Pictures of a terminal as SVG."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

from rich.console import Console


def write_svg(renderable: Any, title: str, out: Path, width: int) -> None:
    """Write rich's rendering of an object, ``width`` columns wide, to an SVG file."""
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(renderable)
    svg = console.export_svg(title=title)
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)  # a picture on a page must load nothing
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(svg)
    print(f"Wrote {out}")
