"""Record what `puffer port` says of the public programs for PufferLib that `benchmarks.public_cases` runs.

    python -m tests.cli.record_ports          writes ports.json; downloads the source distributions first

For each file: its uses of PufferLib, as "LINE NAME", with a "?" at the end if nothing stands here in the name's place.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.lines import table_text
from benchmarks.public_cases import CASES
from benchmarks.venvs import pufferlib_release
from pufferlib.cli.port import uses_of

__all__ = ["RECORD", "programs", "uses"]

RECORD = Path(__file__).with_name("ports.json")
MODULES = {"demo.py": ("clean_pufferl.py",)}  # that a program imports from its own folder


def programs() -> list[tuple[str, str]]:
    """Return the release and the path of each program, and of each file of a wrapper's package."""
    files: dict[tuple[str, str], None] = {}
    for case in CASES:
        release = pufferlib_release(case.release)
        paths = [release / case.path, *(release / name for name in MODULES.get(case.path, ()))]
        if case.kind == "wrapper":
            paths = sorted((release / "pufferlib/environments" / case.path).glob("*.py"))
        files |= {(case.release, path.relative_to(release).as_posix()): None for path in paths}
    return sorted(files)


def uses(release: str, path: str) -> Iterator[str]:
    """Yield the uses of PufferLib in a file of a release, in the form of the record."""
    for use in uses_of((pufferlib_release(release) / path).read_text(), path):
        yield f"{use.line} {use.name}" + ("" if use.replacement else " ?")


def main() -> None:
    RECORD.write_text(table_text({"uses": {" ".join(program): [*uses(*program)] for program in programs()}}))


if __name__ == "__main__":
    main()
