"""Make examples/tour.ipynb of docs/tour.md: its programs as cells, and what lies between them.

python docs/site/notebook.py
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE, NOTEBOOK = ROOT / "docs/tour.md", ROOT / "examples/tour.ipynb"
PROGRAM = re.compile(r"```python[^\n]*\n(.*?)```\n(?:\n*```text\n.*?```\n)?", re.DOTALL)


def cell(kind: str, text: str, index: int) -> dict[str, Any]:
    code = {"execution_count": None, "outputs": []} if kind == "code" else {}
    return {"cell_type": kind, "id": f"cell-{index}", "metadata": {}, **code, "source": text.strip().splitlines(True)}


def notebook(page: str) -> str:
    """Return a page as a notebook, without its outputs. Links go to where the pages are, seen from examples/."""
    page = re.sub(r"\]\((?!https?:|\.\.)", "](../docs/", page)
    words = PROGRAM.split(page)  # text, program, text, …
    cells = [cell("code" if i % 2 else "markdown", text, i) for i, text in enumerate(words) if text.strip()]
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    content = {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    NOTEBOOK.write_text(notebook(PAGE.read_text()))
    print(f"Wrote {NOTEBOOK.relative_to(ROOT)}")
