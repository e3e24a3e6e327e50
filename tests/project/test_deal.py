"""What `make test` runs in several processes: each test once, and what fails or is not run fails it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.deal import LANES

pytestmark = pytest.mark.beside

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "pytest_timeout"}  # of many
INI = "[pytest]\nmarkers =\n    alone\n    beside\n    left_out\ntimeout = 60\n"
FILE = """
import os
from pathlib import Path
import pytest

def note(name):
    with open("ran", "a") as file:
        print(name, os.getpid(), file=file)

note("{name} is read")

@pytest.mark.beside
def test_computes():
    note("{name} computes")

def test_watches():
    note("{name} watches")
    assert "{name}" != "c"

@pytest.mark.beside
@pytest.mark.alone
def test_times():
    note("{name} times")

@pytest.mark.left_out
def test_left_out():
    note("{name} left out")

@pytest.mark.skip
def test_skipped():
    note("{name} skipped")
"""

DEAR = """
import subprocess
import sys

def test_is_dear():
    spin = "import time\\nwhile time.process_time() < 1.2: pass"
    subprocess.run([sys.executable, "-c", spin], check=True)
"""


def deal(folder: Path, *words: str, **more_env: str) -> subprocess.CompletedProcess[str]:
    """Deal out the tests of a folder."""
    (folder / "pytest.ini").write_text(INI)
    env = {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]), **more_env}
    lanes = [] if "." in words or "here" in words else ["--lanes", "1"]  # where one is enough
    command = [sys.executable, "-m", "tests.deal", *lanes, *words]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)


def test_each_test_runs_once_and_all_are_counted(tmp_path: Path) -> None:
    files = [f"test_{name}.py" for name in "abcd"]
    for name, file in zip("abcd", files, strict=True):
        (tmp_path / file).write_text(FILE.format(name=name))
    with (tmp_path / "test_d.py").open("a") as file:
        file.write(DEAR)
    (tmp_path / "conftest.py").write_text("collect_ignore = ['test_e.py']")
    (tmp_path / "test_e.py").write_text("raise ImportError")
    done = deal(tmp_path, "-m", "not left_out", "--costs", "costs.json", *files[1:3], ".")
    ran = [line.rsplit(" ", 1) for line in (tmp_path / "ran").read_text().splitlines()]
    did = ("computes", "is read", "is read", "times", "watches")  # for what is beside others, and for what is not
    assert sorted(name for name, _ in ran) == [f"{name} {does}" for name in "abcd" for does in did]
    watching = [(name[0], pid) for name, pid in ran if name.endswith(("times", "watches"))]
    assert [name for name, _ in watching] == [*"bbccaadd"] and len({pid for _, pid in watching}) == 1
    *_, dearest, failed, cpu, closing = done.stdout.splitlines()
    assert re.fullmatch(r" +\d+\.\d CPU s  test_d.py::test_is_dear", dearest), done.stdout
    assert re.fullmatch(r"\d+\.\d CPU minutes", cpu), cpu
    assert done.returncode == 1 and failed == "FAILED test_c.py::test_watches", done.stdout + done.stderr
    assert closing.strip("= ").startswith("1 failed, 12 passed, 4 skipped in "), closing
    costs = json.loads((tmp_path / "costs.json").read_text())
    assert len(costs) == 17 and next(iter(costs)) == "test_d.py::test_is_dear", costs
    assert costs["test_d.py::test_is_dear"] > 1 > costs["test_a.py::test_computes"] >= 0, costs


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        ("os._exit(0)", 1, "FAILED a process ended early, with 0: not all that it ran is counted"),
        pytest.param("assert os.fork() or False; os.wait()", 1, "FAILED test_a.py::test_a", marks=pytest.mark.long),
        ("pass\n\n1 / 0", 1, "FAILED test_a.py"),
        ("pass", 5, "= no tests ran in "),
    ],
    ids=["ends the process", "forks one that goes on", "cannot be read", "is left out"],
)
def test_a_run_that_is_not_whole_fails(body: str, code: int, says: str, tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text(f"import os\n\ndef test_a():\n    {body}\n")
    done = deal(tmp_path, "--check", "true", *["-m", "left_out"] * (code == 5), "test_a.py")
    assert done.returncode == code and says in done.stdout, done.stdout + done.stderr


def test_nothing_is_begun_after_the_limit_and_the_rest_is_named(tmp_path: Path) -> None:
    body = "import pytest, time\n\npytestmark = pytest.mark.beside\n\ndef test_a():\n    time.sleep(4)\n"
    body += "\ndef test_b():\n    pass\n"
    for name in "abc":
        (tmp_path / f"test_{name}.py").write_text(body)
    files = [f"test_{name}.py" for name in "abc"]
    for limit, most in (("4", 1), ("0", 0)):
        done = deal(tmp_path, "--limit", limit, *files)
        num_tried = min(most, done.stdout.count(" passed in "))  # none where it takes so long to begin
        *_, untried, _, closing = done.stdout.splitlines()
        assert done.returncode == 0, done.stdout + done.stderr
        rest = ["test_a.py::test_b", *files[1:]] if num_tried else files
        assert untried == f"Not tried, for want of time: {', '.join(rest)}", done.stdout
        assert closing.strip("= ").startswith(f"{num_tried or 'no'} "), closing


def test_what_a_test_leaves_is_found_whoever_has_started_it(pytestconfig: pytest.Config) -> None:
    conftest = pytestconfig.pluginmanager.get_plugin(str(ROOT / "tests/conftest.py"))
    command, started = ["sh", "-c", "sleep 100 & echo $!; wait"], list[subprocess.Popen[str]]()
    thread = threading.Thread(
        target=lambda: started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    )
    thread.start()
    thread.join()
    with started[0] as child:
        grandchild = int(child.stdout.readline())  # type: ignore[union-attr]
        processes, pids = conftest.child_processes(), conftest.descendants()
        os.kill(grandchild, signal.SIGKILL)
    assert {child.pid, grandchild} <= {process.pid for process in processes}
    assert {child.pid, grandchild} <= pids  # one below a helper would not be seen otherwise


@pytest.mark.long
def test_every_file_has_the_fixtures_of_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "conftest.py").write_text(
        "import pytest\n\n@pytest.fixture\ndef asked():\n    return 3\n\n"
        "@pytest.fixture(autouse=True)\ndef always(request):\n    print('always')\n    request.node.had = True\n"
    )
    for number in range(2 * LANES + 1):
        (folder / f"test_{number}.py").write_text(
            "import pytest\n\npytestmark = pytest.mark.beside\n\ndef test_a(request, asked):\n"
            "    assert asked == 3 and request.node.had\n"
        )
    done = deal(tmp_path, "here")
    assert done.returncode == 0 and f"= {2 * LANES + 1} passed in " in done.stdout, done.stdout + done.stderr


def test_a_check_that_fails_beside_the_tests_fails_the_run(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text("import pytest\n\n@pytest.mark.beside\ndef test_a():\n    pass\n")
    done = deal(tmp_path, "--check", "sh -c 'echo said; exit 3'", "test_a.py")
    assert done.returncode == 1 and "said" in done.stdout and "= 1 passed in " in done.stdout
    assert "FAILED sh -c 'echo said; exit 3'" in done.stdout.splitlines()


SKIPS = 'import pytest\n{}pytest.skip("no reason", allow_module_level=True)\n'
IN_A_TEST = "def test_a():\n    "


@pytest.mark.parametrize(
    ("before", "code"),
    [(f"@pytest.mark.gpu\n{IN_A_TEST}", 0), (IN_A_TEST, 1), ("", 1)],
    ids=["a test for a GPU", "a test", "a file"],
)
def test_in_ci_only_what_wants_a_gpu_may_be_skipped(before: str, code: int, tmp_path: Path) -> None:
    """Wherever the tests lie."""
    folder = tmp_path / "gpu"
    folder.mkdir()
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = gpu\ntimeout = 60\n")
    (folder / "test_a.py").write_text(SKIPS.format(before))
    for name in ("conftest.py", "helpers/devices.py"):
        shutil.copy(ROOT / "tests" / name, folder)
    env = {**ENVIRONMENT, "CI": "true", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-m", "pytest"], cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == code and ("CI takes that" in done.stdout) is bool(code), done.stdout + done.stderr


TRIES = """
import time
from pathlib import Path

import pytest

def tries(name):
    with open("tries", "a") as file:
        file.write(name)
    return Path("tries").read_text().count(name)

def test_once():
    assert tries("o") > 1

def test_always():
    assert tries("a") < 1

@pytest.mark.timeout(1)
def test_hangs():
    tries("h")
    time.sleep(60)
"""


@pytest.mark.parametrize(("ci", "tried"), [("true", "aahoo"), pytest.param("", "aho", marks=pytest.mark.long)])
def test_in_ci_a_test_that_fails_runs_once_more_and_is_named(ci: str, tried: str, tmp_path: Path) -> None:
    """But none that hangs."""
    (tmp_path / "test_a.py").write_text(TRIES)
    for name in ("conftest.py", "helpers/devices.py"):
        shutil.copy(ROOT / "tests" / name, tmp_path)
    done = deal(tmp_path, "test_a.py", CI=ci, PYTEST_PLUGINS="pytest_timeout,pytest_rerunfailures")
    assert "".join(sorted((tmp_path / "tries").read_text())) == tried, done.stdout + done.stderr
    names = [line for line in done.stdout.splitlines() if line.startswith("RERUN")]
    assert names[-2:] == ["RERUN test_a.py::test_once", "RERUN test_a.py::test_always"] * bool(ci), done.stdout
    assert done.returncode == 1
    closing = done.stdout.splitlines()[-1]
    assert ("2 failed, 1 passed, 2 rerun in " if ci else "3 failed in ") in closing, closing
