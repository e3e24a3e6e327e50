"""Environments of programs in which Python finds only some of the installed packages."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

__all__ = ["TORCH", "limited"]

ROOT = Path(__file__).parents[2]
# torch and NumPy, with what torch requires.
TORCH = (
    *("torch", "functorch", "torchgen", "nvidia", "triton", "numpy"),
    *("typing_extensions", "sympy", "mpmath", "networkx", "jinja2", "markupsafe", "fsspec", "filelock"),
)
FINDER = """
import os
import sys
from importlib.machinery import PathFinder

class Some:
    there = {{*sys.stdlib_module_names, *sys.builtin_module_names, *{packages!r}}}
    here = {{name.partition(".")[0] for folder in {ours!r} for name in os.listdir(folder)}}

    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        there = path is not None or top.startswith("_") or top in self.there | self.here
        return PathFinder.find_spec(name, path, target) if there else None

sys.meta_path[:] = [*(each for each in sys.meta_path if each is not PathFinder), Some()]
"""


def limited(folder: Path, packages: Collection[str], ours: Collection[str] = (".",)) -> dict[str, str]:
    """Return an environment in which Python finds only the standard library and some packages.

    folder: where to write a ``sitecustomize.py``, which also takes effect in the processes that the program starts.
    packages: the top-level names of the packages to find. ours: folders, relative to this repository, whose modules are
    found too.
    """
    folders = [str(ROOT / name) for name in ours]
    (folder / "sitecustomize.py").write_text(FINDER.format(packages=tuple(packages), ours=folders))
    return {**os.environ, "PYTHONPATH": str(folder)}
