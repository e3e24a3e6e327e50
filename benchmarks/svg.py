"""Pictures of what a terminal shows, as SVG."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

from rich.console import Console


def write_svg(renderable: Any, title: str, out: Path, width: int) -> None:
    """Write what rich shows, so many columns wide, into a file."""
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(renderable)
    svg = console.export_svg(title=title)
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)  # a page's picture may load nothing
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(svg)
    print(f"Wrote {out}")
