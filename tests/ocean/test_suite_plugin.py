"""`pytest --ocean`: what is collected, and what one sees of a learner that does not pass."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENVS = ("bandit", "continuous", "identity", "memory", "mixed", "password", "truncation")
LEFT_OUT = {file.stem for file in (ROOT / "ocean").glob("[a-z]*.py")} - {"bandit", "mixed"}
pytestmark = [pytest.mark.slow, pytest.mark.beside]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's project, with a learner and a test of its own."""
    folder = tmp_path_factory.mktemp("project")
    shutil.copy(ROOT / "tests/helpers/toy_learners.py", folder / "toys.py")
    (folder / "broken.py").write_text("1 / 0\n")
    (folder / "tests").mkdir()
    (folder / "tests" / "test_other.py").write_text("def test_other():\n    pass\n")
    (folder / "pytest.ini").write_text("[pytest]\ntestpaths = tests\n")
    return folder


def environment(folder: Path) -> dict[str, str]:
    path = os.pathsep.join([str(folder), str(ROOT)])
    return {**os.environ, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "150"}


def run(folder: Path, *words: str) -> tuple[int, str]:
    """What pytest returns and prints, with no plugin but this one, as another may be installed."""
    command = [sys.executable, "-m", "pytest", "-p", "cleanrl_demo.suite.plugin", "-p", "no:cacheprovider", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment(folder))
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def outcome(folder: Path) -> tuple[int, str]:
    """What comes of the toys, one environment each."""
    words = [word for env in ENVS for word in ("--ocean-env", env)]
    return run(folder, "-v", "-rs", "--ocean", "toys:train_here", *words)


def part(outcome: tuple[int, str], env: str) -> str:
    """What is said of one environment that failed."""
    _, _, rest = outcome[1].partition(f"_ ocean/{env} _")
    assert rest, outcome[1]
    return rest.partition("\n___")[0].partition("\n====")[0]


def test_each_environment_is_a_test_and_nothing_else_is_collected(outcome: tuple[int, str]) -> None:
    status, output = outcome
    assert status == 1
    for env in ENVS:
        word = {"bandit": "PASSED", "mixed": "SKIPPED"}.get(env, "FAILED")
        assert f"ocean::{env} {word}" in output
    assert "test_other" not in output
    assert "ocean: 7 for toys:train_here" in output
    assert "5 failed, 1 passed, 1 skipped" in output


def test_a_low_score_is_reported_with_what_the_environment_catches_and_no_traceback(outcome: tuple[int, str]) -> None:
    said = part(outcome, "password")
    assert "\nscore 0.000, bar 0.90 (uniform play 0.031, the best policy 1.000)\nmay be: a learner that does" in said
    assert "learning ocean/password on serial from 1" in said  # its output, as of any test
    assert ".py" not in said


@pytest.mark.parametrize(("env", "error"), [("continuous", "KeyError"), ("truncation", "AttributeError")])
def test_what_a_learner_raises_is_shown_from_its_first_line_on(outcome: tuple[int, str], env: str, error: str) -> None:
    said = part(outcome, env)
    assert f"{error}: " in said and "toys.py:" in said
    for module in ("examining.py", "plugin.py", "evaluation.py"):
        assert module not in said


@pytest.mark.parametrize(
    ("env", "sentence"),
    [("identity", "\nActionError: actions have shape (), "), ("memory", "\nPlanError: the trainer returned 3; ")],
)
def test_what_a_learner_returns_wrongly_is_a_sentence(outcome: tuple[int, str], env: str, sentence: str) -> None:
    said = part(outcome, env)
    assert sentence in said
    assert ".py:" not in said


def test_what_a_learner_cannot_do_is_skipped_with_its_reason(outcome: tuple[int, str]) -> None:
    (line,) = (line for line in outcome[1].splitlines() if line.startswith("SKIPPED [1] "))
    assert line.endswith(": ocean/mixed: toys have no mixed actions")


@pytest.mark.long
def test_options_reach_the_task_and_named_paths_are_run_too(folder: Path) -> None:
    options = ("--ocean", "toys:train_here", "--ocean-backend", "multiprocessing", "--ocean-seed", "7")
    status, output = run(folder, "-s", "-v", "-k", "bandit or other", *options, "tests")
    assert status == 0
    assert "learning ocean/bandit on multiprocessing from 7" in output
    assert "ocean::bandit" in output and "tests/test_other.py::test_other PASSED" in output
    assert "2 passed" in output and "deselected" in output


@pytest.mark.long
def test_an_id_is_that_of_a_test(folder: Path) -> None:
    status, output = run(folder, "-v", "--ocean", "toys:train_here", "ocean::bandit", "ocean::mixed")
    assert status == 0
    assert "ocean::bandit PASSED" in output and "ocean::mixed SKIPPED" in output
    assert "1 passed, 1 skipped" in output


@pytest.mark.long
def test_an_environment_that_cannot_be_learnt_fails_and_the_others_go_on(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "ocean", tmp_path / "ocean", ignore=shutil.ignore_patterns("__pycache__"))
    for name in LEFT_OUT:
        (tmp_path / "ocean" / f"{name}.py").unlink()
    (tmp_path / "ocean" / "coin.py").write_text("class Coins:\n    pass\n")
    shutil.copy(folder / "toys.py", tmp_path)
    status, output = run(tmp_path, "-v", "--ocean", "toys:train_here")
    assert status == 1
    assert "ocean::bandit PASSED" in output and "ocean::coin FAILED" in output
    assert '\n"ocean/coin": ocean/coin.py has no class Coin, which its name stands for, but Coins; rename' in output


WRONG: list[tuple[tuple[str, ...], str]] = [
    (("--ocean-env", "bandit"), "ERROR: no learner for --ocean-env; add --ocean module:function"),
    (("--ocean-backend", "pool"), "ERROR: no learner for --ocean-backend; add --ocean module:function"),
    (("--ocean-seed", "2"), "ERROR: no learner for --ocean-seed; add --ocean module:function"),
    (("ocean::bandit",), "ERROR: no learner for ocean::bandit; add --ocean module:function"),
    (("--ocean", "toys:train_here", "ocean::bandid"), "did you mean ocean/bandit?"),
    (("--ocean", "toys:trian"), 'ERROR: --ocean: "toys:trian": toys has no trian; did you mean train?'),
    (("--ocean", "swords:train"), "there is no module swords on the module search path"),
    (("--ocean", "broken:train"), "ZeroDivisionError"),
    (("--ocean", "toys:train_here", "--ocean-env", "bandid"), "did you mean ocean/bandit?"),
]
# One process for all: each has to import what Ocean needs.
ONE_BY_ONE = """
import json, sys
import pytest
for words in json.loads(sys.argv[1]):
    sys.stdout.flush()
    status = pytest.main(["-p", "cleanrl_demo.suite.plugin", "-p", "no:cacheprovider", *words])
    sys.stderr.flush()
    print(f"\\n{status:d} THE NEXT", flush=True)
"""


@pytest.fixture(scope="module")
def refusals(folder: Path) -> list[tuple[int, str]]:
    """What pytest returns and prints for each of WRONG."""
    command = [sys.executable, "-c", ONE_BY_ONE, json.dumps([words for words, _ in WRONG])]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder, env=environment(folder)
    )
    *parts, rest = re.split(r"\n(\d+) THE NEXT\n", done.stdout)
    assert len(parts) == 2 * len(WRONG) and not rest, done.stdout
    return [(int(status), output) for output, status in zip(parts[::2], parts[1::2], strict=True)]


@pytest.mark.parametrize("number", range(len(WRONG)), ids=lambda number: " ".join(WRONG[number][0]))
def test_a_wrong_name_ends_the_run_before_anything_is_learnt(refusals: list[tuple[int, str]], number: int) -> None:
    status, output = refusals[number]
    assert status == pytest.ExitCode.USAGE_ERROR
    assert WRONG[number][1] in output
    assert "INTERNALERROR" not in output and "learning" not in output


def test_runs_without_it_are_as_they_were(folder: Path) -> None:
    code = "import sys; before = set(sys.modules); import pytest; middle = set(sys.modules)\n"
    code += "import cleanrl_demo.suite.plugin; print(*sorted(set(sys.modules) - middle))"
    without = {**os.environ, "PYTHONPATH": str(ROOT)}
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=without)
    loaded = {name for name in printed.stdout.split() if name.partition(".")[0] not in sys.stdlib_module_names}
    assert loaded == {"cleanrl_demo", "cleanrl_demo.suite", "cleanrl_demo.suite.plugin"}
    status, output = run(folder, "-v")
    assert status == 0
    assert "1 passed" in output and "ocean" not in output
