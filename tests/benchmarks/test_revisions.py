"""Pages name the revision that was measured, and two revisions are compared in turns."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import against, leaks, ocean_suite, pages, peers, revisions, venvs
from benchmarks.workloads import LIBRARIES, WORKLOADS, Participant, library_of

pytestmark = pytest.mark.beside

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "benchmarks/README.md", *sorted((ROOT / "docs").glob("*.md"))]
needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *who, "-C", folder, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit(folder: Path, path: str, text: str) -> str:
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_text(text)
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", f"Write {path}")
    return git(folder, "rev-parse", "--short", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> tuple[Path, str]:
    """A repository with three commits to the program after the first one, whose name comes with it, and two others."""
    root = tmp_path / "repository"
    root.mkdir()
    git(root, "init", "--quiet")
    first = commit(root, "pufferlib/_native/a.pyx", "0")
    commit(root, "docs/page.md", "1")
    commit(root, "pufferlib/_native/a.pyx", "2")
    commit(root, "pufferlib/layout/layout.py", "3")
    commit(root, "pufferlib/vectorization/b.py", "4")
    commit(root, "pufferlib/vectorization/b.py", "5")
    return root, first


# ---------------------------------------------------------------------------------------------------- revisions


@needs_git
def test_commits_to_the_program_are_counted(repository: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    root, first = repository
    head = revisions.version(root)
    assert head == git(root, "rev-parse", "--short", "HEAD")
    assert [revisions.commits_since(name, root) for name in (first, f"{first}+", head)] == [3, 3, 0]
    (root / "pufferlib/layout/layout.py").write_text("changed")
    assert revisions.version(root) == f"{head}+"
    text = revisions.revision_text({first, head}, root)
    assert f"`{first}` (3)" in text and f"`{head}` (0)" in text and "older program" not in text
    monkeypatch.setattr(revisions, "MANY", 2)
    assert revisions.revision_text({first}, root).endswith("**Measured on an older program.**")
    assert "older program" not in revisions.revision_text({head}, root)


def test_over_a_hundred_commits_make_an_older_program(monkeypatch: pytest.MonkeyPatch) -> None:
    for count, old in ((100, False), (101, True)):
        monkeypatch.setattr(revisions, "commits_since", lambda name, root, count=count: count)
        assert revisions.revision_text({"abc1234"}).endswith("**Measured on an older program.**") is old


@needs_git
def test_what_git_cannot_count_is_said(repository: tuple[Path, str], tmp_path: Path) -> None:
    root, first = repository
    unknown = "Measured at revision `0123abc` (not known here); in brackets"
    assert revisions.revision_text({"0123abc"}, root).startswith(unknown)
    git(tmp_path, "clone", "--quiet", "--depth", "1", f"file://{root}", "shallow")
    shallow = tmp_path / "shallow"
    assert revisions.version(shallow) == revisions.version(root)
    assert revisions.commits_since(revisions.version(root), shallow) is None
    assert f"`{first}` (not known here)" in revisions.revision_text({first}, shallow)
    (root / "inside").mkdir()  # such as an unpacked release, in somebody's repository
    assert (revisions.version(root / "inside"), revisions.commits_since(first, root / "inside")) == ("", None)


def test_without_git_nothing_is_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert (revisions.version(), revisions.commits_since("abc1234")) == ("", None)
    assert "`abc1234` (not known here)" in revisions.revision_text({"abc1234"})
    with pytest.raises(ValueError, match="git knows no commit 'HEAD'"):
        revisions.resolved("HEAD")


@needs_git
def test_revisions_are_resolved_to_commits(repository: tuple[Path, str]) -> None:
    root, first = repository
    git(root, "tag", "before", first)
    assert revisions.resolved("before", root) == revisions.resolved("HEAD~5", root) == first
    for wrong in ("nonsense", "--all", "HEAD~6", "HEAD:docs"):
        with pytest.raises(ValueError, match=re.escape(f"git knows no commit {wrong!r}")):
            revisions.resolved(wrong, root)


@pytest.mark.parametrize(
    ("results", "names"),
    [
        ({"machine": "m", "version": "729b833", "participants": [{"versions": {"numpy": "2"}}]}, {"729b833"}),
        ({"machine": "m", "revision": "729b833+", "version": "0.1.0"}, {"729b833+"}),
        ({"machine": "m", "version": "0.1.0, compiled path"}, {""}),
        ({"facts": {"machine": "m", "version": "0.1.0"}, "runs": []}, {""}),
        ({"libraries": {"a": {"machine": "m", "revision": "729b833"}, "b": {"machine": "m"}}}, {"729b833", ""}),
        ({"machines": [{"processor": "p", "revision": "729b833"}, {"processor": "p"}]}, {"729b833", ""}),
        ({"checks": [], "trainings": []}, {""}),
    ],
)
def test_results_name_their_revisions(results: Any, names: set[str]) -> None:
    assert revisions.recorded(results) == names


def test_revisions_that_were_not_recorded_are_said_to_be_so() -> None:
    assert revisions.revision_text({""}) == "Revision not recorded."
    assert revisions.revision_text({"", "abc1234"}).count("Of some of it the revision was not recorded.") == 1


def test_pages_are_filled_with_the_revisions_of_their_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tag-host.json").write_text(json.dumps({"machine": "m", "revision": "abc1234"}))
    lines = [{"machine": "m", "revision": name} for name in ("abc1235", "abc1236")]
    (tmp_path / "lines.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    monkeypatch.setattr(pages, "results_of", lambda name: revisions.results_of(name, tmp_path))
    page = tmp_path / "page.md"
    marks = "\n\n".join(pages.mark(f"revision_{name}") for name in ("tag_host", "none", "lines"))
    blank = f"Before.\n\n{marks}\n\nAfter.\n"
    pages.write_page(page, blank)
    written = page.read_text()
    assert "Measured at revision `abc1234` (not known here)" in written and "Not measured yet." in written
    assert "Measured at revisions `abc1235` (not known here), `abc1236` (not known here)" in written
    assert pages.without_revisions(written) == blank


def test_each_page_names_the_revisions_of_its_results() -> None:
    marked = set()
    for page in PAGES:
        for mark in revisions.MARK.finditer(page.read_text()):
            marked.add(mark[2])
            names = set().union(*map(revisions.recorded, revisions.results_of(mark[2])))
            if not names:
                assert "Not measured yet." in mark[0], (page, "python -m benchmarks.report writes it")
            for name in names:
                said = f"`{name}` (" if name else "not recorded"
                assert said in mark[0], (page, mark[2], "python -m benchmarks.report writes it")
    behind = {path for name in marked for path in paths_of(name)}
    # The first has no page, the second is a policy and no measurement, the third's table names its revision.
    unmarked = {"nested", "economy-searched", "public_cases"}
    there = {path.stem for path in revisions.RESULTS.glob("*.json*")} - unmarked
    assert there <= behind


def paths_of(name: str) -> set[str]:
    patterns = revisions.GROUPS.get(name, (name, name.replace("_", "-")))
    return {path.stem for pattern in patterns for path in revisions.RESULTS.glob(f"{pattern}.json*")}


# ------------------------------------------------------------------------------------------ one against another


def pair_result(workload: str, before: list[dict[str, float]], now: list[dict[str, float]]) -> dict[str, Any]:
    pair = against.pairs_of(WORKLOADS[workload], "abc1234", 7)[0]
    entries = [
        {"name": name, "status": "ran", "turns": results, "path": "compiled"}
        for name, results in zip(pair.participants, (now, before), strict=True)
    ]
    facts = {"form": "full", "repeats": 7, "window_s": 0.3, "date": "2026-11-23T00:00:00", "load": [0.123, 1]}
    about = {"name": pair.name, "title": pair.title, "kind": pair.kind}
    return {"workload": about, "participants": entries, "command": "a command", **facts}


def turn_results(*rates: float) -> list[dict[str, float]]:
    return [{"steps": 2 * rate, "seconds": 2.0} for rate in rates]


STEADY = pair_result("trivial-serial-8", turn_results(*[10] * 7), turn_results(11, 12, 13, 14, 15, 16, 90))
FACTS = {"machine": "a machine", "version": "def5678", "commit": "abc1234"}


def test_each_arrangement_of_ours_has_a_cell_of_its_own() -> None:
    for name in against.CELLS:
        pairs = against.pairs_of(WORKLOADS[name], "abc1234", 61)
        ours = [
            participant for participant in WORKLOADS[name].participants if Participant.of(participant).library == "ours"
        ]
        assert [pair.participants for pair in pairs] == [
            (participant, participant.replace("ours", "ours@abc1234")) for participant in ours
        ]
        assert ours and all(pair.repeats == 61 for pair in pairs)
        assert all(tuple(peers.form_of(pair, short=True)[0]) == pair.participants for pair in pairs)
        tasks = [[pair.task(participant) for participant in pair.participants] for pair in pairs]
        assert all(now == before for now, before in tasks)
    assert against.pairs_of(WORKLOADS["trivial-sync"], "abc1234", 7)[0].participants[1] == "ours@abc1234 processes@w2"


def test_a_commit_of_ours_has_an_environment_of_its_own() -> None:
    library = library_of("ours@abc1234 pool@w4b8")
    assert (library.venv, library.file) == ("ours@abc1234", LIBRARIES["ours"].file)
    venv, ours = venvs._venv(library.venv), venvs.VENVS["ours"]
    assert venv.described()["installs"] == ours.described()["installs"]
    assert len({venv_of.described()["tree"] for venv_of in (venv, venvs._venv("ours@def5678"), ours)}) == 3


@needs_git
def test_a_commit_is_built_from_what_git_has_of_it(
    repository: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, first = repository
    built: dict[str, str] = {}

    def build(python: Path, source: Path) -> None:
        built.update({str(path.relative_to(source)): path.read_text() for path in source.rglob("*.*")})

    monkeypatch.setattr(venvs, "ROOT", root)
    monkeypatch.setattr(venvs, "_build", build)
    venvs._install_commit(first, Path("python"))
    assert built == {"pufferlib/_native/a.pyx": "0"}
    with pytest.raises(venvs.NotInstalled, match="git archive 0123abc"):
        venvs._install_commit("0123abc", Path("python"))


def test_a_cell_has_the_median_ratio_and_its_interval() -> None:
    cell = against.cell_of(STEADY)
    assert (cell["ratio"], cell["interval"]) == (1.4, [1.1, 9.0])
    assert (cell["before"], cell["now"][-1], cell["load"]) == ([10.0] * 7, 90.0, [0.1, 1])
    waits = [{"wait_us": us} for us in (10.0, 20, 30, 40, 50, 60, 70)]
    cell = against.cell_of(pair_result("think-1ms", waits, [{"wait_us": 20.0}] * 7))
    assert (cell["ratio"], cell["interval"]) == (2.0, [0.5, 3.5])


def test_a_cell_that_failed_says_why() -> None:
    failed = {"name": "ours@abc1234 serial", "status": "failed", "reason": "it broke", "turns": []}
    cell = against.cell_of({**STEADY, "participants": [STEADY["participants"][0], failed]})
    assert cell["failed"] == "ours@abc1234 serial: failed: it broke" and "ratio" not in cell
    assert "it broke" in against.cells_text({**FACTS, "cells": [cell]})


def test_cells_of_the_same_two_revisions_share_a_file(tmp_path: Path) -> None:
    path, cell = tmp_path / "against-abc1234.json", against.cell_of(STEADY)
    against.add(path, FACTS, cell)
    against.add(path, FACTS, {**cell, "workload": "trivial-sync"})
    against.add(path, FACTS, {**cell, "ratio": 2.0})
    stored = json.loads(path.read_text())
    ratios = [(entry["workload"], entry["ratio"]) for entry in stored["cells"]]
    assert ratios == [("trivial-sync", 1.4), ("trivial-serial-8", 2.0)]
    assert revisions.recorded(stored) == {"def5678"}
    against.add(path, {**FACTS, "version": "fed8765"}, cell)
    assert [entry["ratio"] for entry in json.loads(path.read_text())["cells"]] == [1.4]


def test_the_table_says_which_is_faster(tmp_path: Path) -> None:
    assert against.section(tmp_path).startswith("Nothing has been compared yet")
    cells = [{**against.cell_of(STEADY), "interval": interval} for interval in ([1.1, 9], [0.1, 0.9], [0.9, 1.1])]
    portable = {**cells[0], "paths": ["portable: there is no cc", "compiled"]}
    (tmp_path / "against-abc1234.json").write_text(json.dumps({**FACTS, "cells": [*cells, portable]}))
    about, _, heads, _, *rows = against.section(tmp_path).splitlines()
    assert about.startswith("`abc1234` (before) and `def5678` (now), 2026-11-23; a machine; load before a cell 0.1")
    assert heads == "| workload | arrangement | `abc1234` | `def5678` | times as fast (95 %) | pairs | shown |"
    expected = "| trivial env, Serial, 8 envs | serial | 10 steps/s | 14 steps/s | 1.400 (1.100 – 9.000) | 7 | faster |"
    assert rows[0] == expected
    assert [row.split(" | ")[-1] for row in rows] == ["faster |", "slower |", "neither |", "faster |"]
    assert "| 10 steps/s, portable | 14 steps/s |" in rows[3]


def test_the_readme_has_the_tables_of_all_that_was_compared() -> None:
    page = (ROOT / "benchmarks/README.md").read_text()
    assert pages.fill(page, {"against": against.section(revisions.RESULTS)}) == page, "python -m benchmarks.report"


@pytest.mark.long
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="turns are taken on Linux only")
def test_two_revisions_take_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(peers, "_interpreter", lambda venv: (Path(sys.executable), ""))
    monkeypatch.setattr(peers, "ignored_folder", lambda: tmp_path)
    monkeypatch.setattr(peers, "resolved", lambda revision: "abc1234")
    short = replace(WORKLOADS["trivial-serial-8"], window_s=0.02)
    monkeypatch.setitem(WORKLOADS, short.name, short)
    words = ["--against", "before", "--only", short.name, "--repeats", "6", "--results", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["peers.py", *words])
    peers.main()
    assert [path.name for path in tmp_path.glob("*.json")] == ["against-abc1234.json"]
    stored = json.loads((tmp_path / "against-abc1234.json").read_text())
    (cell,) = stored["cells"]
    assert (stored["commit"], cell["arrangement"], cell["repeats"]) == ("abc1234", "serial", 6)
    assert min(*cell["before"], *cell["now"]) > 0 and len(cell["before"]) == len(cell["now"]) == 6
    assert cell["interval"][0] <= cell["ratio"] <= cell["interval"][1]
    assert against.verdict_text(cell) in capsys.readouterr().out
    assert against.verdict_text({**cell, "ratio": 1.5, "interval": [1.25, 2]}) == (
        "1.500 (1.250 – 2.000) times as fast over 6 pairs: faster"
    )


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["nonsense"], "--against: git knows no commit 'nonsense'"),
        (["HEAD", "--repeats", "5"], "6 --repeats at least"),
        (["HEAD", "--resume"], "takes no --resume"),
    ],
)
def test_what_cannot_be_compared_is_said(
    words: list[str], reason: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["peers.py", "--list", "--against", *words])
    with pytest.raises(SystemExit):
        peers.main()
    assert reason in capsys.readouterr().err


# ---------------------------------------------------------------------------------------- what is timed from outside


def test_a_command_is_timed_with_all_its_processes() -> None:
    inner = "import time\nwhile time.process_time() < 0.2: pass"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}]); print('first'); print('last')"
    measured = ocean_suite.run([sys.executable, "-c", outer])
    assert measured["cpu_s"] >= 0.2 and measured["wall_s"] >= 0.2
    assert (measured["exit_code"], measured["said"]) == (0, "last")
    failed = ocean_suite.run([sys.executable, "-c", "raise SystemExit('it broke')"])
    assert (failed["exit_code"], failed["said"]) == (1, "it broke")


def test_what_the_suite_takes_is_reported() -> None:
    runs = [{"wall_s": wall_s, "cpu_s": 100.0, "load": 0.1, "exit_code": 0, "said": "all"} for wall_s in (80, 70, 90)]
    text = ocean_suite.section({"machine": "a machine", "date": "2026-11-23T00", "runs": {"puffer ocean": runs}})
    assert text.splitlines()[-1] == "| `puffer ocean` | 80 (70 – 90) | 100 (100 – 100) | 0.1 (0.1 – 0.1) | 3 | all |"


def test_what_grew_is_stored_and_reported(tmp_path: Path) -> None:
    path = tmp_path / "leaks.json"
    seen = {"done": 1000, "seconds": 61.0, "descriptors": 1, "threads": 0, "objects": -3, "bytes": 2048}
    for words, more in ((("steps", "pool"), {"worker_bytes": 1024}), (("cycles", "pool"), {})):
        for grown in (0, 1):
            leaks.add(words, {**seen, **more, "descriptors": grown}, path)
    stored = json.loads(path.read_text())
    assert [run["words"] for run in stored["runs"]] == ["cycles pool", "steps pool"]
    assert leaks.section(stored).splitlines()[-2:] == [
        "| `cycles pool` | 1,000 | 61 | 1 | -3 | 2 |  |",
        "| `steps pool` | 1,000 | 61 | 1 | -3 | 2 | 1 |",
    ]
