"""Tests of how the programs that are compared take turns."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import peers
from benchmarks.processes import cpu_s, descendants
from benchmarks.workloads import Workload

pytestmark = [
    pytest.mark.beside,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="peers are compared on Linux only"),
]

ROOT = Path(__file__).parents[2]
SMALL = Workload("small", "", ("bare loop", "gymnasium async", "gymnasium sync"), num_envs=2)


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module that plays, as a library's process has it."""
    before, path = set(sys.modules), list(sys.path)
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "vectorizers"))
    yield importlib.import_module("child")
    sys.path[:] = path
    for name in {"child", "player", "envs", "processes"} - before:
        sys.modules.pop(name, None)


@pytest.fixture
def this_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "_python", lambda venv: Path(sys.executable))


def all_stop(pids: list[int]) -> bool:
    """Whether all these processes are stopped, or are so within a minute: each has to be on a core to notice."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if {Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in pids} == {"T"}:
            return True
        time.sleep(0.001)
    return False


@pytest.mark.usefixtures("this_python")
def test_a_participant_is_stopped_with_all_its_processes_but_for_its_turns(tmp_path: Path) -> None:
    with open(tmp_path / "log", "w") as log:
        child = peers.Child(SMALL, "gymnasium async", log)
        child.wait_until_ready()
        (pid,) = set(descendants(os.getpid())) & {child._process.pid}
        pids = [pid, *descendants(pid)]
        try:
            assert len(pids) >= 3
            for _ in range(2):
                assert all_stop(pids)
                assert child.take_turn({"kind": "play", "seconds": 0.02, "warm_up_s": 0.01})["steps"] > 0
        finally:
            child.close()
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.mark.usefixtures("this_python")
@pytest.mark.parametrize("kind", ["play", "wait", "idle"])
def test_before_the_first_turn_each_environment_is_stepped_three_times(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[dict[str, Any]] = []
    monkeypatch.setattr(
        peers.Child, "take_turn", lambda child, command: commands.append(command) or {"steps": 1, "seconds": 1}
    )
    workload = dataclasses.replace(SMALL, kind=kind)
    with open(tmp_path / "log", "w") as log:
        peers.measure(workload, ["bare loop"], repeats=2, window_s=0.5, warm_up_s=0.1, log=log)
    first, second = commands
    assert (first["warm_up_s"], first["warm_up_steps"]) == (0.5, 6)
    assert second["warm_up_s"] == 0.1 and "warm_up_steps" not in second


@pytest.mark.parametrize("new_processes", [False, True])
def test_new_processes_play_each_repeat_where_that_is_asked_for(
    new_processes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[tuple[str, str]] = []

    class Child:
        def __init__(self, workload: Workload, name: str, log: Any) -> None:
            self.name = name
            self.pipe = os.pipe()
            os.write(self.pipe[1], b"ready")
            events.append(("start", name))

        def fileno(self) -> int:
            return self.pipe[0]

        def wait_until_ready(self) -> dict[str, Any]:
            return {}

        def take_turn(self, command: dict[str, Any]) -> dict[str, Any]:
            events.append(("first" if "warm_up_steps" in command else "turn", self.name))
            return {"steps": 1, "seconds": 1.0}

        def ask_to_end(self) -> None:
            events.append(("end", self.name))

        def close(self) -> None:
            for descriptor in self.pipe:
                os.close(descriptor)

    monkeypatch.setattr(peers, "Child", Child)
    workload = dataclasses.replace(SMALL, new_processes=new_processes)
    with open(tmp_path / "log", "w") as log:
        entries = peers.measure(workload, ["a", "b"], repeats=3, window_s=0.5, warm_up_s=0.1, log=log)
    assert [len(entry["turns"]) for entry in entries] == [3, 3]
    events_of_play = [(kind, name) for kind, name in events if kind in ("first", "turn")]
    assert "".join(name for _, name in events_of_play) == "abbaab"  # the other one begins with every repeat
    assert [kind for kind, _ in events_of_play] == ["first"] * 2 + ["first" if new_processes else "turn"] * 4
    starts_and_ends = [kind for kind, _ in events if kind in ("start", "end")]
    assert starts_and_ends == ["start", "start", "end", "end"] * (3 if new_processes else 1)


@pytest.mark.parametrize(("kind", "more"), [("play", {}), ("wait", {"think_s": 0.0}), ("idle", {})])
@pytest.mark.flaky(reruns=4)
def test_a_warm_up_lasts_until_there_were_steps_enough_but_not_forever(
    kind: str, more: dict[str, float], child: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = 0

    def recv() -> int:
        nonlocal done
        done += 1
        time.sleep(0.05 if done < 10 else 0.001)  # environments' first resets
        return 2

    measure = functools.partial(
        getattr(child, kind), child.Player(recv, lambda: None, lambda: None), 0.05, 0.01, **more
    )
    answer = measure(warm_up_steps=40)
    if kind == "idle":
        assert answer["usual_us"] < 25_000
    else:
        assert answer["steps"] <= 2 * (done - 20) and answer["steps"] / answer["seconds"] > 200
    monkeypatch.setattr(child, "WARM_UP_AT_MOST_S", 0.1)
    start = time.perf_counter()
    measure(warm_up_steps=10**9)
    assert time.perf_counter() - start < 60


@pytest.mark.long
@pytest.mark.usefixtures("this_python")
def test_participants_take_turns_and_one_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    workload = dataclasses.replace(SMALL, kind="idle")
    said: list[str] = []
    names = ("bare loop", "gymnasium nothing", "gymnasium sync")
    with open(tmp_path / "log", "w") as log:
        entries = peers.measure(workload, names, repeats=2, window_s=0.05, warm_up_s=0.01, log=log, say=said.append)
    assert [entry["status"] for entry in entries] == ["ran", "not handled", "ran"]
    assert "no arrangement 'nothing'" in entries[1]["reason"] and "gymnasium nothing" in said[0]
    for entry in (entries[0], entries[2]):
        assert len(entry["turns"]) == 2
        assert all(turn_result["parent_cpu"] < 0.5 and turn_result["first_us"] > 0 for turn_result in entry["turns"])
        assert entry["versions"]["numpy"] == np.__version__


def test_what_is_not_installed_is_said_and_holds_nobody_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(peers, "_interpreter", lambda venv: (None, "no wheel"))
    with open(tmp_path / "log", "w") as log:
        (entry,) = peers.measure(SMALL, ["bare loop"], repeats=1, window_s=1, warm_up_s=0, log=log, say=[].append)
    assert (entry["status"], entry["reason"], entry["turns"]) == ("not installed", "no wheel", [])


def test_cpu_time_of_a_process_is_its_own() -> None:
    used = time.process_time()
    assert cpu_s(os.getpid()) == pytest.approx(used, abs=0.05)


def test_listing_workloads_runs_none(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["peers.py", "--list", "--only", "trivial-s*"])
    peers.main()
    *lines, total = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["trivial-sync", "trivial-serial-32", "trivial-serial-8"]
    assert total.startswith("about ")
