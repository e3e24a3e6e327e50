"""`benchmarks.public_cases`: how it runs the programs of a release, and what it says of them."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks import public_cases
from benchmarks.public_cases import (
    CASES,
    FAILS,
    NOT_INSTALLED,
    PACKAGES,
    RUNS,
    Case,
    page_text,
    read_results,
    results_text,
    run,
)

pytestmark = pytest.mark.beside

PROGRAM = """
import sys
import neighbor, pufferlib.environments.games
assert pufferlib.__file__ != "theirs" and __name__ == "__main__"
assert open("settings.ini").read() == "a = 1" and sys.argv[1:] == ["--fast"]
"""
GAMES = """
import gymnasium
import pufferlib.emulation
class Game(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Box(0, 1, (3,)), gymnasium.spaces.Discrete(2)
    def reset(self, seed=None):
        return self.observation_space.sample(), {}
    def step(self, action):
        return self.observation_space.sample(), 1.0, False, False, {}
def env_creator(name="game"):
    return lambda: pufferlib.emulation.GymnasiumPufferEnv(env_creator=Game)
"""


@pytest.fixture
def release(tmp_path: Path) -> Path:
    folder = tmp_path / "pufferlib-9.9"
    games = folder / "pufferlib/environments/games"
    games.mkdir(parents=True)
    (folder / "pufferlib/__init__.py").write_text("__file__ = 'theirs'")
    (games / "__init__.py").write_text(GAMES)
    (folder / "program.py").write_text(PROGRAM)
    (folder / "neighbor.py").write_text("def fail():\n    raise ValueError('as | it must')\n")
    (folder / "endless.py").write_text("import time\ntime.sleep(60)\n")
    return folder


def test_programs_run_beside_their_files_and_on_this_project(release: Path) -> None:
    program = Case("9.9", "script", "program.py", ("--fast",), settings={"settings.ini": "a = 1"})
    assert run(program, sys.executable, release) == (RUNS, "")
    assert run(Case("9.9", "wrapper", "games", ("game",)), sys.executable, release) == (RUNS, "")


def test_failures_have_their_reason(release: Path) -> None:
    failing = Case("9.9", "functions", "neighbor.py", ("fail",))
    assert run(failing, sys.executable, release) == (FAILS, "ValueError: as | it must")
    endless = Case("9.9", "script", "endless.py")
    assert run(endless, sys.executable, release, limit_s=1.5) == (FAILS, "did not end within 2 s")


def test_the_list_has_all_releases_and_no_case_twice() -> None:
    assert max(Counter(case.name for case in CASES).values()) == 1
    assert Counter(case.release for case in CASES).keys() == {"1.0.1", "2.0.6", "3.0.0"}
    assert len(CASES) >= 25
    assert {case.needs for case in CASES} == {"", *PACKAGES}


def test_results_are_one_line(tmp_path: Path) -> None:
    stored = {"version": "abc", "programs": {"9.9 a.py": [RUNS, ""], "9.9 b.py": [FAILS, "a | b"]}}
    path = tmp_path / "results.json"
    assert read_results(path) == {}
    path.write_text(results_text(stored))
    assert path.read_text().count("\n") == 1
    assert read_results(path) == stored


def test_the_page_counts_what_could_be_installed(monkeypatch: Any) -> None:
    cases = [Case("9.9", "script", f"{name}.py") for name in "abc"]
    monkeypatch.setattr(public_cases, "CASES", cases)
    now = zip(cases, [(RUNS, ""), (FAILS, "a | b"), (NOT_INSTALLED, "no wheel")], strict=True)
    then = {cases[0].name: [RUNS, ""], cases[1].name: [RUNS, ""]}
    stored = {"version": "abc", "programs": {case.name: [*result] for case, result in now}, "programs-old": then}
    text = page_text(stored)
    assert "2 of the 2 cases whose packages can be installed run: 2 on Gymnasium 0.29, NumPy 1.26 and 1 on" in text
    assert "| 9.9 | b.py | runs | fails: a / b |" in text
    assert "| 9.9 | c.py | not tried | cannot be installed: no wheel |" in text
