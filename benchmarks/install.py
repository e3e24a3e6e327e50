"""Measure installing and importing this project, PufferLib, Gymnasium, Stable-Baselines3 and EnvPool.

    python -m benchmarks.install             6 minutes once the wheels are fetched; --short: one installation each

Each is installed into a fresh virtual environment on the same Python. Wheels are fetched, or built from a source
distribution, before any timing; the timed command is `pip install --no-index` with pip's defaults, so it compiles
bytecode. Sizes are those of the installed files by pip's records, with bytecode and without pip. Imports are timed in
fresh processes, without the start of the interpreter. All take turns. Writes benchmarks/results/install.json and the
table in benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from benchmarks.lines import table_text
from benchmarks.pages import fill, write_page
from benchmarks.ratios import MedianRange
from benchmarks.revisions import version
from benchmarks.venvs import copy_tree, ignored_folder, python311, tree_digest
from pufferlib.tuning.bench import machine

NUM_INSTALLS, NUM_IMPORTS = 3, 11
GYMNASIUM = ("gymnasium==1.4.0", "numpy==2.4.6")
TORCH = "torch==2.13.0"


class Subject(NamedTuple):
    """A package to install, and the module that a program with many environments imports."""

    package: str
    requirements: tuple[str, ...]
    module: str


SUBJECTS = {
    "ours": Subject("pufferlib", ("pufferlib", *GYMNASIUM), "pufferlib"),
    "ours [train]": Subject("pufferlib", ("pufferlib[train]", TORCH, *GYMNASIUM), "cleanrl_demo.ppo"),
    "PufferLib 1.0.1": Subject(  # it imports the last two packages but does not require them
        "pufferlib", ("pufferlib==1.0.1", "psutil==7.2.2", "filelock==3.20.0"), "pufferlib.vector"
    ),
    "Gymnasium 1.4.0": Subject("gymnasium", GYMNASIUM, "gymnasium"),
    "Stable-Baselines3 2.9.2": Subject(
        "stable-baselines3", ("stable-baselines3==2.9.2", TORCH, *GYMNASIUM), "stable_baselines3"
    ),
    "EnvPool 1.2.5": Subject("envpool", ("envpool==1.2.5", *GYMNASIUM), "envpool"),
}
SIZES = """
import json
from importlib.metadata import distributions
def size(distribution):
    paths = (file.locate() for file in distribution.files or ())
    return sum(path.stat().st_size for path in paths if path.is_file())
print(json.dumps({d.metadata["Name"].lower().replace("_", "-"): size(d) for d in distributions()}))
"""
IMPORT = """
import sys, time
before, start_s = len(sys.modules), time.perf_counter()
import {}
print(time.perf_counter() - start_s, len(sys.modules) - before)
"""


def environment() -> dict[str, str]:
    """Return the environment variables without settings of pip and Python."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))}


def output_of(*command: str | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> str:
    """Return the output of a command. Raises RuntimeError with its last lines if it fails."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, env=env, cwd=cwd)
    if done.returncode:
        raise RuntimeError(" ".join((done.stderr or done.stdout).strip().splitlines()[-2:])[:400])
    return done.stdout


def wheels_of(name: str) -> Path:
    """Return the folder of all wheels that a subject needs; fetch them if it is missing or outdated."""
    subject = SUBJECTS[name]
    folder = ignored_folder() / "wheels" / name.replace(" ", "-")
    content = json.dumps([subject.requirements, tree_digest() if name.startswith("ours") else ""])
    note = folder / "made.json"
    if note.exists() and note.read_text() == content:
        return folder
    print(f"fetching wheels of {name}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        python = Path(scratch) / "venv" / "bin" / "python"
        output_of(python311(), "-m", "venv", Path(scratch) / "venv")
        pip = (python, "-m", "pip", "wheel", "--quiet", "--wheel-dir", folder)
        requirements = list(subject.requirements)
        if name == "ours":
            copy_tree(Path(scratch) / "source")
            output_of(*pip, "--no-deps", Path(scratch) / "source")
        if name.startswith("ours"):
            (wheel,) = (folder if name == "ours" else wheels_of("ours")).glob("pufferlib-*.whl")
            requirements[0] = requirements[0].replace(
                "pufferlib", str(wheel)
            )  # on PyPI this name belongs to another project
        output_of(*pip, *requirements)
    note.write_text(content)
    return folder


def installed(name: str, wheels: Path, folder: Path) -> float:
    """Make a fresh virtual environment in a folder; return the seconds that pip takes to install a subject there."""
    shutil.rmtree(folder, ignore_errors=True)
    output_of(python311(), "-m", "venv", folder)
    pip = (folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-index", "--find-links", wheels)
    start_s = perf_counter()
    output_of(*pip, *SUBJECTS[name].requirements, env={**environment(), "PIP_CONFIG_FILE": os.devnull})
    return perf_counter() - start_s


def sizes(name: str, python: Path) -> dict[str, float]:
    """Return the MB of the package, of all it installs, and of torch among that."""
    mb_by_package = {key: value / 1e6 for key, value in json.loads(output_of(python, "-I", "-c", SIZES)).items()}
    total = sum(value for key, value in mb_by_package.items() if key not in ("pip", "setuptools"))
    return {"own": mb_by_package[SUBJECTS[name].package], "all": total, "torch": mb_by_package.get("torch", 0.0)}


def imported(name: str, python: Path) -> tuple[float, int]:
    """Return the seconds of an import in a fresh process, and the number of modules it loads."""
    printed = output_of(python, "-I", "-c", IMPORT.format(SUBJECTS[name].module), env=environment(), cwd=Path("/"))
    seconds, modules = printed.split()[-2:]
    return float(seconds), int(modules)


def measure(num_installs: int, num_imports: int) -> dict[str, dict[str, Any]]:
    figures: dict[str, dict[str, Any]] = {}
    wheels = {}
    for name in SUBJECTS:
        try:
            wheels[name] = wheels_of(name)
            figures[name] = {"install_s": [], "import_s": []}
        except RuntimeError as error:
            figures[name] = {"failed": str(error)}
    with tempfile.TemporaryDirectory(prefix="pufferlib-install-") as scratch:
        folders = {name: Path(scratch) / name.replace(" ", "-") for name in wheels}
        for repeat in range(num_installs):
            for name in sorted(wheels, reverse=repeat % 2 == 1):
                figures[name]["install_s"].append(installed(name, wheels[name], folders[name]))
                print(f"{name}: installed in {figures[name]['install_s'][-1]:.1f} s", flush=True)
        pythons = {name: folder / "bin" / "python" for name, folder in folders.items()}
        for name, python in pythons.items():
            figures[name]["mb"] = sizes(name, python)
        for repeat in range(num_imports + 1):
            for name in sorted(wheels, reverse=repeat % 2 == 1):
                seconds, figures[name]["modules"] = imported(name, pythons[name])
                if repeat:  # the first one loads files into memory
                    figures[name]["import_s"].append(seconds)
    return figures


def table(results: Mapping[str, Any]) -> str:
    """Return the figures as Markdown."""
    lines = [
        f"{results['machine']}; load {results['load'][0]:.1f} before, {results['load'][1]:.1f} after.",
        f"{results['day']}, `{results['command']}`; [raw results](results/install.json).",
        "",
        "| | MB, its own | MB, with all it needs | of that torch (CPU) | seconds to install | what is imported | "
        "seconds to import | modules |",
        "| --- | ---: | ---: | ---: | ---: | --- | ---: | ---: |",
    ]
    for name, figures in results["figures"].items():
        if "failed" in figures:
            lines.append(f"| {name} | could not be installed: {figures['failed']} | | | | | | |")
            continue
        mb = figures["mb"]
        cells = [f"{mb['own']:.1f}", f"{mb['all']:.0f}", f"{mb['torch']:.0f}" if mb["torch"] else ""]
        install_s, import_s = MedianRange.of(figures["install_s"]), MedianRange.of(figures["import_s"])
        cells += [f"{install_s:.1f}", f"`{SUBJECTS[name].module}`", f"{import_s:.2f}"]
        lines.append(f"| {name} | {' | '.join(cells)} | {figures['modules']:,} |")
    return "\n".join(lines)


def write(results: dict[str, Any], folder: Path) -> None:
    (folder / "results" / "install.json").write_text(table_text(results))
    page = folder / "README.md"
    write_page(page, fill(page.read_text(), {"install": table(results)}))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--short", action="store_true", help="one installation each, and three imports")
    short = parser.parse_args().short
    before = os.getloadavg()[0]
    figures = measure(*((1, 3) if short else (NUM_INSTALLS, NUM_IMPORTS)))
    results = {
        "machine": machine(),
        "revision": version(),
        "day": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "command": "python -m benchmarks.install" + " --short" * short,
        "load": [before, os.getloadavg()[0]],
        "figures": figures,
    }
    write(results, Path(__file__).parent)
    print(table(results))
    sys.exit(any("failed" in figure for figure in figures.values()))


if __name__ == "__main__":
    main()
