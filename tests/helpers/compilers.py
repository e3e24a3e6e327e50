"""A compiler for tests of which only the outcome counts, not how fast that is."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from cuda_ext.functions import compiler_command

__all__ = ["quick_compilers"]


def quick_compilers(folder: Path) -> dict[str, str]:
    """Return CC and CXX for an environment: the system's compilers, told last of all not to optimize."""
    scripts = {}
    for name, command in (
        ("CC", os.environ.get("CC") or shutil.which("cc") or "gcc"),
        ("CXX", " ".join(compiler_command())),
    ):
        script = folder / f"quick-{name.lower()}"
        script.write_text(f'#!/bin/sh\nexec {command} "$@" -O0\n')
        script.chmod(0o755)
        scripts[name] = str(script)
    return scripts
