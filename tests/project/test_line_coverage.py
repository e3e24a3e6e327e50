"""The lines that `make coverage` counts: which there are, and which ran, in any process that ends in any way."""

from __future__ import annotations

import sys
import venv
from pathlib import Path

import pytest
from line_coverage import ROOT, Lines, by_package, lines_of, measure, missing

pytestmark = pytest.mark.beside

SOURCE = '''"""The text of a module."""

from __future__ import annotations


# a comment
def doubled(number: int) -> int:
    """The text of a function."""

    if not number:
        return 0
    return sum(
        each
        for each in (number, number)
    )


class Empty:
    pass
'''

MODULE = """import os
import signal
import gymnasium
import numpy as np

class Env(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        if action == 1:
            print("a worker", end="")
        if action == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return np.zeros(1, np.float32), 0.0, False, False, {}

    def render(self):
        return None  # never

def by_fork(action):
    os._exit(action)

def by_forkserver(action):
    os._exit(action)

def by_spawn(action):
    os.kill(os.getpid(), signal.SIGKILL)
"""

PROGRAM = """import contextlib
import multiprocessing

from measured import module

if __name__ == "__main__":
    import pufferlib

    with pufferlib.make(module.Env, num_envs=2, num_workers=2, backend="multiprocessing", on_error="raise") as vec:
        vec.reset()
        vec.step([0, 1])
        with contextlib.suppress(pufferlib.WorkerError):
            vec.step([2, 0])
    for method in ("fork", "forkserver", "spawn"):
        process = multiprocessing.get_context(method).Process(target=getattr(module, f"by_{method}"), args=(3,))
        process.start()
        process.join()
    raise SystemExit(5)
"""


def test_lines_that_compile_to_bytecode(tmp_path: Path) -> None:
    source = tmp_path / "source.py"
    source.write_text(SOURCE)
    assert lines_of(source) == {1, 3, 7, 10, 11, 12, 13, 14, 18, 19}


def test_packages_are_summed_without_those_inside() -> None:
    counted = {
        "a/__init__.py": Lines(set(), set()),
        "a/one.py": Lines({1, 2, 5}, {1, 2}),
        "a/two.py": Lines({1, 9, 10}, {1, 10}),
        "a/b/three.py": Lines(set(range(1, 201)), set(range(1, 200))),
        "c/__init__.py": Lines(set(), set()),
    }
    rows = [line.split() for line in by_package(counted).splitlines()]
    assert rows == [
        ["package", "lines", "run", "%"],
        ["a", "6", "4", "66.7"],
        ["a/b", "200", "199", "99.5"],
        ["c", "0", "0"],
        ["total", "206", "203", "98.5"],
    ]
    assert missing(counted) == "a/one.py: 5\na/two.py: 9\na/b/three.py: 200\n"


if hasattr(sys, "monitoring"):

    def test_lines_of_killed_processes_count(tmp_path: Path) -> None:
        """The lines run in workers and other processes, forked or not, of which most end before they could say so."""
        package = tmp_path / "tree" / "measured"
        package.mkdir(parents=True)
        (package / "module.py").write_text(MODULE)
        (package / "program.py").write_text(PROGRAM)
        venv.create(tmp_path / "venv", symlinks=True)
        (site,) = tmp_path.glob("venv/lib/python*/site-packages")
        (site / "tree.pth").write_text("\n".join([str(package.parent), str(ROOT), *sys.path]))
        command = [str(tmp_path / "venv/bin/python"), str(package / "program.py")]
        exitcode, counts = measure(command, package.parent, ["measured"], tmp_path / "marks", site)
        assert exitcode == 5
        assert counts.keys() == {"measured/module.py", "measured/program.py"}
        never = 1 + MODULE[: MODULE.index("# never")].count("\n")
        assert missing(counts) == f"measured/module.py: {never}\n"
        assert not list(site.glob("line_probe*"))
