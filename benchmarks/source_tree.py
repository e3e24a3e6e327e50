"""Count, for readers of the source tree, what is on the path of a step, bare Any, long files, and lines.

    python -m benchmarks.source_tree                        this tree
    python -m benchmarks.source_tree --tree FOLDER          a checkout of another revision, built in place
    python -m benchmarks.source_tree --lines REVISION …     only lines, of revisions of this repository

Prints Markdown. It counts the functions of pufferlib that `sys.setprofile` sees between `send` and the return of
`recv`, in the parent and in the worker. It sees no compiled functions; the portable path is entirely in Python.
"""

from __future__ import annotations

import argparse
import ast
import collections
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parent.parent
PACKAGES = ("pufferlib", "ocean", "cuda_ext", "cleanrl_demo")
NUM_STEPS = 20
LONG = 400  # lines of a file
SOURCES = (".py", ".pyx", ".pxd", ".pyi", ".h", ".cuh")
TRAINERS = ("cleanrl_demo", "pufferlib.training")
BESIDE_THE_WAY = ("emulation", "layout", "layout.py", "leaves.py", "pack.py", "unpack.py")  # reported separately


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, default=ROOT, help="the checkout to look at")
    parser.add_argument("--list", action="store_true", help="name the functions, too")
    parser.add_argument("--trace", choices=("plain", "infos"), help=argparse.SUPPRESS)
    parser.add_argument("--lines", nargs="+", metavar="REVISION", help="only count lines, of each revision")
    options = parser.parse_args()
    if options.lines:
        print(*line_table(options.lines), sep="\n")
        return
    tree = options.tree.resolve()
    if options.trace:
        print(json.dumps(traced(tree, infos=options.trace == "infos")))
        return
    print(*step_table(tree, options.list), "", *size_table(tree), sep="\n")


# ----------------------------------------------------------------------------------------------- the path of a step


class Calls:
    """A profiler that counts the calls of pufferlib's functions by (file, function)."""

    def __init__(self, package: str) -> None:
        self.package, self.counts = package, collections.Counter[tuple[str, str]]()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(self.package):
            self.counts[os.path.relpath(code.co_filename, self.package), code.co_qualname] += 1  # CPython >= 3.11

    def of_each_step(self) -> list[tuple[str, str]]:
        """Return the functions that every step calls."""
        return sorted(call for call, count in self.counts.items() if count >= NUM_STEPS)


def traced(tree: Path, *, infos: bool) -> dict[str, list[tuple[str, str]]]:
    """Return the functions that a step of Multiprocessing calls in the parent and in its worker."""
    sys.path.insert(0, str(tree))
    import gymnasium
    import numpy as np

    import pufferlib

    package = str(Path(pufferlib.__file__).parent) + os.sep

    class Traced(gymnasium.Env[Any, Any]):
        observation_space = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
        action_space = gymnasium.spaces.Discrete(2)
        calls: Any = None

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            return np.zeros(4, np.float32), {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            return np.zeros(4, np.float32), 1.0, False, False, {"lives": 3} if infos else {}

        def begin(self) -> None:
            Traced.calls = Calls(package)
            sys.setprofile(Traced.calls)

        def end(self) -> list[tuple[str, str]]:
            sys.setprofile(None)
            calls: list[tuple[str, str]] = Traced.calls.of_each_step()
            return calls

    with pufferlib.make(Traced, num_envs=2, num_workers=1, backend="multiprocessing", context="fork") as vec:
        actions = np.zeros(2, np.int64)
        vec.reset()
        for _ in range(NUM_STEPS):
            vec.step(actions)
        parent = Calls(package)
        sys.setprofile(parent)
        try:
            for _ in range(NUM_STEPS):
                vec.send(actions)
                batch = vec.recv()
                if infos:
                    list(batch.infos)
        finally:
            sys.setprofile(None)
        vec.call("begin", env_ids=[0])
        for _ in range(NUM_STEPS):
            vec.step(actions)
        (worker,) = vec.call("end", env_ids=[0])
    return {"parent": parent.of_each_step(), "worker": [tuple(call) for call in worker]}


def step_table(tree: Path, named: bool) -> Iterable[str]:
    yield "| path | infos | process | files | functions | of these in emulation and layout |"
    yield "|---|---|---|---|---|---|"
    lists = []
    for path, native in (("compiled", "1"), ("portable", "0")):
        for infos in ("plain", "infos"):
            command = [sys.executable, __file__, "--tree", str(tree), "--trace", infos]
            environment = {**os.environ, "PUFFERLIB_NATIVE": native}
            done = subprocess.run(command, env=environment, cwd=tree, capture_output=True, text=True, check=True)
            for process, calls in json.loads(done.stdout).items():
                aside = [call for call in calls if call[0].split(os.sep)[0] in BESIDE_THE_WAY]
                way = [call for call in calls if call not in aside]
                files, aside_files = ({file for file, _ in part} for part in (way, aside))
                yield (
                    f"| {path} | {'one entry' if infos == 'infos' else 'none'} | {process} | {len(files)} | {len(way)} "
                    f"| {len(aside_files)}, {len(aside)} |"
                )
                lists += [f"\n{path}, {infos}, {process}:", *(f"    {file} {name}" for file, name in calls)]
    if named:
        yield from lists


# ------------------------------------------------------------------------------------------------ sizes and types


def size_table(tree: Path) -> Iterable[str]:
    yield "| package | files | of more than 400 lines | files in the fullest folder | annotations | bare Any |"
    yield "|---|---|---|---|---|---|"
    rooms = [f"pufferlib/{name}" for name in ("emulation", "adapters", "environments")]
    for package in (*PACKAGES, *rooms, "tests"):
        files = [path for path in (tree / package).rglob("*") if path.suffix in (".py", ".pyx", ".cuh", ".h")]
        long = [path for path in files if len(path.read_text().splitlines()) > LONG]
        fullest, count = max(collections.Counter(path.parent for path in files).items(), key=lambda item: item[1])
        annotations = [annotation for path in files if path.suffix == ".py" for annotation in annotations_of(path)]
        bare = sum(isinstance(annotation, ast.Name) and annotation.id == "Any" for annotation in annotations)
        share = f"{100 * bare / len(annotations):.0f} %" if annotations else "0 %"
        yield (
            f"| {package} | {len(files)} | {len(long)} | {count} in {fullest.relative_to(tree)} | {len(annotations)} "
            f"| {bare} ({share}) |"
        )


def line_table(revisions: Sequence[str]) -> Iterable[str]:
    """Yield a table of ``line_counts`` with a column for each revision."""
    columns = []
    for revision in revisions:
        archive = subprocess.run(["git", "archive", revision], cwd=ROOT, capture_output=True, check=True).stdout
        with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=io.BytesIO(archive)) as file:
            file.extractall(folder, filter="data")
            columns.append(line_counts(Path(folder)))
    yield f"| | {' | '.join(f'`{revision}`' for revision in revisions)} |"
    yield "|---" * (1 + len(revisions)) + "|"
    for name in columns[0]:
        yield f"| {name} | {' | '.join(column[name] for column in columns)} |"


def line_counts(tree: Path) -> dict[str, str]:
    """Return the numbers of lines in a tree, as text by what is counted."""
    results = tree / "benchmarks" / "results"
    sources = [path for path in tree.rglob("*") if path.suffix in SOURCES and results not in path.parents]
    raw_files = [path for path in results.rglob("*") if path.is_file()]
    modules = [*(tree / "pufferlib" / "population").glob("*.py")]
    script = tree / "cleanrl_demo" / "ppo.py"
    shared = shared_files(tree, script)
    return {
        "lines of programs": f"{num_lines(sources):,}",
        "lines of raw results": f"{num_lines(raw_files):,}",
        "`pufferlib/population`, without `games`": f"{len(modules)} files, {num_lines(modules):,} lines",
        "`ppo.py`": f"{num_lines([script]):,} lines",
        "the trainers' modules from which it imports": f"{len(shared)} files, {num_lines(shared):,} lines",
    }


def num_lines(paths: Iterable[Path]) -> int:
    return sum(path.read_bytes().count(b"\n") for path in paths)


def shared_files(tree: Path, script: Path) -> list[Path]:
    """Return the files of TRAINERS that define what a script imports, also through a package's ``__init__``."""
    files = set[Path]()
    for module, name in imported(script):
        if module.startswith(TRAINERS):
            path = tree / module.replace(".", "/")
            package = path / "__init__.py"
            origins = {part: origin for origin, part in imported(package)} if package.exists() else {}
            files.add((tree / origins.get(name, module).replace(".", "/")).with_suffix(".py"))
    return sorted(files)


def imported(path: Path) -> list[tuple[str, str]]:
    """Return (module, name) of each name that a file imports with ``from``."""
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    return [(node.module or "", item.name) for node in nodes for item in node.names]


def annotations_of(path: Path) -> Iterable[ast.expr]:
    """Yield the annotations of arguments, returns and variables in a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
            yield node.annotation
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns is not None:
            yield node.returns


if __name__ == "__main__":
    main()
