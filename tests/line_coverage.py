"""Measure which lines of our packages a command runs, in all of its Python processes: `make coverage`.

    .venv-coverage/bin/python -m tests.line_coverage MODULE ARGUMENTS…

Runs ``python -m MODULE ARGUMENTS…`` and prints the share of lines that ran, by package; ends with the module's exit
code. Until then every Python of this virtual environment counts, however it is started and however it ends
(tests/line_probe.py), so measure one command at a time. The folder ``coverage`` of the virtual environment gets
``missing``: the lines that did not run, a source file each. Lines count that compile to bytecode; what Cython compiles
is left out. Needs CPython 3.12 or newer.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import sysconfig
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import CodeType
from typing import NamedTuple

__all__ = ["Lines", "by_package", "lines_of", "measure", "missing"]

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("pufferlib", "cleanrl_demo", "ocean", "cuda_ext")
PROBE = ROOT / "tests" / "line_probe.py"


class Lines(NamedTuple):
    """The lines of a source file that could run, and those of them that did."""

    there: set[int]
    run: set[int]


def lines_of(source: Path) -> set[int]:
    """Return the lines of a source file that compile to bytecode."""
    lines: set[int] = set()
    codes = [compile(source.read_bytes(), str(source), "exec", dont_inherit=True)]
    while codes:
        code = codes.pop()
        lines.update(line for _, _, line in code.co_lines() if line)  # a module begins on line 0
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return lines


def measure(
    command: Sequence[str], root: Path, packages: Sequence[str], folder: Path, site: Path
) -> tuple[int, dict[str, Lines]]:
    """Run a command; return its exit code, and the lines of the packages in root by their files' paths in it.

    folder: for the marks. site: the site-packages of the virtual environment whose processes count.
    """
    sources = sorted(path for package in packages for path in (root / package).rglob("*.py"))
    offsets, num_bytes = {}, 0
    for source in sources:
        offsets[str(source)] = num_bytes
        num_bytes += source.read_bytes().count(b"\n") + 2  # lines count from 1, and the last one may lack its end
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "lines").write_bytes(bytes(num_bytes))
    (folder / "files.json").write_text(json.dumps(offsets))
    hook = site / "line_probe.pth"
    # Such lines of a .pth file are executed as begin with import. None can hold a with; this loader closes the file.
    begin = "import _frozen_importlib_external as loaders; names = {}; probe = loaders.SourceFileLoader('line_probe', "
    begin += f"{str(PROBE)!r}); exec(probe.get_data(probe.path), names); names['start']({str(folder.resolve())!r})"
    hook.write_text(f"{begin}\n")
    try:
        exitcode = subprocess.call(command)
    finally:
        hook.unlink()
    marks = (folder / "lines").read_bytes()
    counts = {}
    for source in sources:
        there = lines_of(source)
        counts[str(source.relative_to(root))] = Lines(there, {n for n in there if marks[offsets[str(source)] + n]})
    return exitcode, counts


def by_package(counts: Mapping[str, Lines]) -> str:
    """Return a table with a row for each package, its subpackages apart, and one for all."""
    there, run = Counter[str](), Counter[str]()
    for path, lines in counts.items():
        for package in (str(Path(path).parent), "total"):
            there[package] += len(lines.there)
            run[package] += len(lines.run)
    rows = [f"{'package':<32}{'lines':>8}{'run':>8}{'%':>8}"]
    for package in sorted(there, key=lambda package: (package == "total", package)):
        share = f"{100 * run[package] / there[package]:.1f}" if there[package] else ""
        rows.append(f"{package:<32}{there[package]:>8}{run[package]:>8}{share:>8}")
    return "\n".join(rows) + "\n"


def missing(counts: Mapping[str, Lines]) -> str:
    """Return the numbers of the lines that did not run, on one line a file."""
    lacking = {path: sorted(lines.there - lines.run) for path, lines in counts.items()}
    return "".join(f"{path}: {' '.join(map(str, lines))}\n" for path, lines in lacking.items() if lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("module", metavar="MODULE", help="such as pytest")
    parser.add_argument("arguments", metavar="ARGUMENTS", nargs=argparse.REMAINDER)
    asked = parser.parse_args()
    folder = Path(sys.prefix) / "coverage"
    command = [sys.executable, "-m", asked.module, *asked.arguments]
    exitcode, counts = measure(command, ROOT, PACKAGES, folder, Path(sysconfig.get_path("purelib")))
    (folder / "missing").write_text(missing(counts))
    print(by_package(counts), end="")
    return exitcode


if __name__ == "__main__":
    sys.exit(main())
