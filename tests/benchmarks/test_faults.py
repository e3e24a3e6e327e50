"""The benchmark of faults: what it makes go wrong, what it notices of that, and what is made of it."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from programs import running

from benchmarks import envs, fault_tables, faults, report
from benchmarks.fault_tables import fault_sections
from benchmarks.processes import marked, shared_files, state
from benchmarks.workloads import LIBRARIES, Library, Participant

pytestmark = [
    pytest.mark.beside,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="peers are compared on Linux only"),
]

ROOT = Path(__file__).parents[2]


# --------------------------------------------------------------------------------------------- what goes wrong


def test_an_armed_fault_happens_once_in_one_environment(tmp_path: Path) -> None:
    path = str(tmp_path / "fault")
    pair = [envs.FaultyEnv(path), envs.FaultyEnv(path)]
    for env in pair:
        env.reset(seed=0)
        env.step(0)
    envs.arm(path, "raise")
    with pytest.raises(RuntimeError, match=envs.FAULT_MESSAGE):
        pair[1].step(0)
    assert float((tmp_path / "fault.begun").read_text()) > 0
    for env in pair:
        assert env.step(0)[1] == 1.0


def test_every_participant_exists_and_every_library_takes_part() -> None:
    libraries = [Participant.of(name).library for name in faults.PARTICIPANTS]
    assert {*libraries} == {*LIBRARIES} - {"bare", "bare-old", "ours-old", "ours-program", "ours-program-new"}
    for library in libraries:
        assert (ROOT / f"benchmarks/vectorizers/{LIBRARIES[library].file}.py").exists()
    assert fault_tables.CASES == faults.CASES


def test_processes_are_known_by_a_variable_of_their_environment() -> None:
    script = "import os; os.fork(); print(flush=True); os.read(0, 1)"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with running([sys.executable, "-c", script], env={**os.environ, "TEST_MARK": "here"}, **pipes) as process:
        assert process.stdin and process.stdout
        process.stdout.readline(), process.stdout.readline()
        pids = marked("TEST_MARK", "here")
        assert len(pids) == 2 and process.pid in pids
        assert not marked("TEST_MARK", "her") and not marked("EST_MARK", "here")
        process.stdin.close()
    assert state(process.pid) == ""


def test_files_in_dev_shm_are_found_by_who_has_mapped_them() -> None:
    from multiprocessing.shared_memory import SharedMemory

    memory = SharedMemory(create=True, size=64)
    try:
        assert f"/dev/shm/{memory.name}" in shared_files([os.getpid()])
    finally:
        memory.close()
        memory.unlink()
    assert f"/dev/shm/{memory.name}" not in shared_files([os.getpid()])


# ----------------------------------------------------------------------------------------------- what is noticed


@pytest.fixture
def suffer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """What has a participant suffer, in this Python."""
    monkeypatch.setattr(faults, "python_of", lambda venv: Path(sys.executable))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    with open(tmp_path / "log", "w") as log:
        yield functools.partial(faults.suffer, log=log)


def test_an_exception_is_timed_and_nothing_is_left_of_the_program(suffer: Any) -> None:
    outcome = suffer("gymnasium async", "raise")
    assert (outcome["what"], outcome["type"], outcome["text"]) == ("exception", "RuntimeError", envs.FAULT_MESSAGE)
    assert 0 < outcome["after_s"] < faults.LIMIT_S and outcome["cause_shown"]
    assert (outcome["ended_by"], outcome["exit_code"], outcome["left"], outcome["left_shm"]) == ("itself", 1, 0, [])
    assert outcome["processes"] >= 5


# A library that steps its environment in another process, and that Ctrl-C ends unless it is deaf. Gymnasium's may hang
# then: at its end it waits for what workers have queued, which multiprocessing may have killed before that was sent.
WAITING = """
import os, signal
from player import Player

def start(task):
    if task.arrangement == "deaf":
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    env = task.env_creator()
    env.reset(seed=0)

    def recv():
        if pid := os.fork():
            return bool(os.waitpid(pid, 0))
        try:
            env.step(0)
        finally:
            os._exit(0)

    return Player(recv, lambda: None, lambda: None)
"""


@pytest.mark.parametrize(
    ("arrangement", "seconds", "end"), [("hears", 60.0, ("Ctrl-C", 0)), ("deaf", 0.2, ("SIGKILL", 1))]
)
def test_who_waits_for_ever_is_said_to_hang_and_is_interrupted(
    arrangement: str, seconds: float, end: tuple[str, int], suffer: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "waiting.py").write_text(WAITING)
    library = Library("waiting", "ours", "waiting", variables={"PYTHONPATH": str(tmp_path)})
    monkeypatch.setitem(LIBRARIES, "waiting", library)
    monkeypatch.setattr(faults, "LIMIT_S", 0.2)
    for limit in ("INTERRUPTED_S", "SETTLE_S"):
        monkeypatch.setattr(faults, limit, seconds)
    outcome = suffer(f"waiting {arrangement}", "hang")
    assert (outcome["what"], outcome["ended_by"], outcome["left"]) == ("hang", *end)


def test_processes_that_outlive_the_program_are_counted_and_killed(
    suffer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "LIMIT_S", 0.2)
    monkeypatch.setattr(faults, "SETTLE_S", 0.2)
    monkeypatch.setattr(faults, "VARIABLE", f"TEST_FAULTS_{os.getpid()}")
    outcome = suffer("gymnasium async", "parent-hang")
    assert (outcome["what"], outcome["after_s"]) == ("killed", None)
    assert outcome["left"] >= 1
    processes = psutil.process_iter(["environ"])
    assert not [left.pid for left in processes if faults.VARIABLE in (left.info["environ"] or {})]


def test_what_does_not_apply_and_what_is_not_installed_is_said(suffer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert suffer("envpool threads@w2", "kill") == {"what": "not applicable", "text": faults.NOT_FAULTY}
    assert suffer("gymnasium nothing", "kill")["text"].startswith("no arrangement 'nothing'")

    def fail(venv: str) -> None:
        raise faults.NotInstalled("no wheel")

    monkeypatch.setattr(faults, "python_of", fail)
    assert suffer("gymnasium async", "kill") == {"what": "not installed", "text": "no wheel"}


# ------------------------------------------------------------------------------------------------- what is made of it


def outcome(what: str, **more: Any) -> dict[str, Any]:
    left = {"left": 0, "left_cpus": 0.0, "left_shm": [], "left_tmp": []}
    end = {"ended_by": "itself", "exit_code": 1}
    return {"what": what, "text": "", "after_s": 0.0021, "cause_shown": False, **left, **end, **more}


RESULT = {
    "machine": "a machine",
    "version": "abc",
    "command": "a command",
    "date": "2026-11-21T00:00:00",
    "load": [0.1, 0.2],
    "jobs": 4,
    "participants": [
        {
            "name": "gymnasium async",
            "raise": [
                outcome("exception", type="RuntimeError", text="env 1 | broke", versions={"gymnasium": "1.4.0"}),
                outcome("exception", type="RuntimeError", text="env 2 | broke", after_s=1.23),
                outcome("hang", ended_by="SIGKILL", zombies=1, left=2, left_cpus=2.0, left_shm=["a"], cause_shown=True),
            ],
            "parent": [{**outcome("killed", after_s=None, left=1), "versions": {}}],
        },
        {"name": "envpool threads@w2", "raise": [{"what": "not applicable", "text": "in C++"}]},
        {"name": "ours pool@w2b2", "raise": [outcome("restart", text="env 3 raised", exit_code=0, rows=2)]},
    ],
}


def test_tables_say_what_is_seen_when_how_it_ends_and_what_is_left(tmp_path: Path) -> None:
    (tmp_path / "faults.json").write_text(json.dumps(RESULT))
    texts = fault_sections(tmp_path / "faults.json")
    assert "3 times each, 4 at a time" in texts["fault_machine"]
    assert "Gymnasium 1.4.0, EnvPool, this project" in texts["fault_machine"]
    assert texts["fault_raise"].splitlines()[2:] == [
        "| gymnasium async (2 of 3) | `RuntimeError`: env 1 \\| broke | 2 ms – 1.2 s | exit code 1 | nothing |",
        "| gymnasium async (1 of 3) | nothing: it hangs; what was raised is printed; 1 zombie | never | "
        "ends by SIGKILL only | 2 processes using 200 % of a CPU, 1 file in /dev/shm |",
        "| envpool threads@w2 | not applicable: in C++ |  |  |  |",
        '| ours pool@w2b2 | a crash row, `info["restarted"]`: env 3 raised | 2 ms | plays on | nothing |',
    ]
    assert texts["fault_parent"].splitlines()[2:] == ["| gymnasium async | never | 1 process |"]


def test_the_page_has_a_place_for_every_table_and_is_up_to_date() -> None:
    texts, page = fault_sections(report.RESULTS / "faults.json"), fault_tables.PAGE.read_text()
    assert set(re.findall(r"<!-- begin (\w+) -->", page)) == {*texts, "revision_faults"}
    assert report.fill(page, texts) == page
