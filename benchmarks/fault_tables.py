"""Make the tables of docs/faults.md from the results of benchmarks/faults.py; benchmarks/report.py calls it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.pages import table
from benchmarks.workloads import LIBRARIES, Participant

__all__ = ["PAGE", "fault_sections"]

PAGE = Path(__file__).parent.parent / "docs" / "faults.md"
CASES = ("raise", "kill", "hang", "parent", "parent-hang")
LONGEST = 150  # characters of a message

Trial = Mapping[str, Any]


def fault_sections(path: Path) -> dict[str, str]:
    """Return the Markdown of each section by its name: the machine, and a table for each case."""
    names = [f"fault_{case.replace('-', '_')}" for case in CASES]
    if not path.exists():
        return dict.fromkeys(("fault_machine", *names), "Nothing has been tried yet: `python -m benchmarks.faults`.")
    result = json.loads(path.read_text())
    tables = {name: _case_table(case, result["participants"]) for name, case in zip(names, CASES, strict=True)}
    return {"fault_machine": _machine(result), **tables}


def _machine(result: Mapping[str, Any]) -> str:
    repeats = max(len(entry[case]) for entry in result["participants"] for case in CASES if case in entry)
    before, after = result["load"]
    lines = [
        f"- Machine: {result['machine']}.",
        f"- Tried: {result['date'][:10]}, version {result['version']}, by `{result['command']}`, {repeats} "
        f"time{'s' * (repeats > 1)} each, {result['jobs']} at a time; load {before:.1f} before and {after:.1f} after.",
        f"- Libraries: {_versions(result['participants'])}.",
    ]
    return "\n".join(lines)


def _versions(entries: Iterable[Mapping[str, Any]]) -> str:
    titles = {}
    for entry in entries:
        library = LIBRARIES[Participant.of(entry["name"]).library]
        trials = [trial for case in CASES for trial in entry.get(case, ())]
        versions = [trial["versions"].get(library.package, "") for trial in trials if "versions" in trial]
        titles[library.title] = f"{library.title} {max(versions, default='')}".strip()
    return ", ".join(titles.values())


def _case_table(case: str, entries: Iterable[Mapping[str, Any]]) -> str:
    """Return the table of one fault: a row for each participant, several where its trials ended differently."""
    killed = case.startswith("parent")
    heads = ("", "what the user sees", "after", "the program then", "left behind")
    rows = []
    for entry in entries:
        groups: dict[tuple[str, str], list[Trial]] = {}
        for trial in entry.get(case, ()):
            alike = re.sub(r"\d+", "", _symptom(trial, case))  # without the numbers of environments and processes
            groups.setdefault((alike, _end(trial)), []).append(trial)
        for (_, end), trials in groups.items():
            share = f" ({len(trials)} of {len(entry[case])})" if len(groups) > 1 else ""
            slow = max(trial.get("end_s", 0.0) for trial in trials)
            end += f", {_seconds(slow)} later" if slow >= 1 else ""
            row = (entry["name"] + share, _symptom(trials[0], case), _after(trials), end, _most_left(trials))
            rows.append((row[0], row[2] or row[1], row[4]) if killed else row)
    return table(("", "its processes are gone after", "left behind") if killed else heads, rows)


def _symptom(trial: Trial, case: str) -> str:
    """Return the symptom that the user sees."""
    kind = trial["what"]
    printed = "; what was raised is printed" if case == "raise" and trial.get("cause_shown") else ""
    if kind in ("not applicable", "not installed", "not handled"):
        return f"{kind}: {_escaped(trial['text'])}"
    if kind == "exception":
        message = f": {_escaped(trial['text'])}" if trial["text"] else f", without a word{printed}"
        return f"`{trial['type'].rpartition('.')[2]}`{message}"
    if kind == "restart":
        return f'a crash row, `info["restarted"]`: {_escaped(trial["text"])}'
    if kind == "nothing":
        return f"nothing: batches go on, of {trial['rows']} environments{printed}"
    if kind == "hang":
        zombies = f"; {_count(trial['zombies'], 'zombie')}" if trial["zombies"] else ""
        return f"nothing: it hangs{printed}{zombies}"
    return {"end": "the program ends", "killed": ""}[kind]


def _end(trial: Trial) -> str:
    """Return how the program ends."""
    if "ended_by" not in trial:
        return ""
    code = trial["exit_code"]
    end = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    if trial["ended_by"] != "itself":
        return f"ends by {trial['ended_by']} only"
    return "plays on" if trial["what"] in ("restart", "nothing") else end


def _after(trials: Sequence[Trial]) -> str:
    times = [trial["after_s"] for trial in trials if trial.get("after_s") is not None]
    if not times or trials[0]["what"] in ("hang", "nothing"):
        return "never" if trials[0]["what"] in ("hang", "nothing", "killed") else ""
    return " – ".join(dict.fromkeys(_seconds(time) for time in (min(times), max(times))))


def _seconds(time: float) -> str:
    return f"{time:.1f} s" if time >= 1 else f"{1e3 * time:.0f} ms" if time >= 1e-3 else "1 ms"


def _most_left(trials: Sequence[Trial]) -> str:
    """Return the most that any trial left behind."""
    if "left" not in trials[0]:
        return ""
    processes = max(trial["left"] for trial in trials)
    cpus = max(trial["left_cpus"] for trial in trials)
    files = max(len(trial["left_shm"]) for trial in trials)
    temporary = max(len(trial["left_tmp"]) for trial in trials)
    busy = f" using {100 * cpus:.0f} % of a CPU" if cpus >= 0.01 else ""
    parts = (
        f"{_count(processes, 'process', 'processes')}{busy}" if processes else "",
        f"{_count(files, 'file')} in /dev/shm" if files else "",
        _count(temporary, "temporary file") if temporary else "",
    )
    return ", ".join(filter(None, parts)) or "nothing"


def _count(number: int, one: str, several: str = "") -> str:
    return f"{number} {one if number == 1 else several or one + 's'}"


def _escaped(text: str) -> str:
    short = text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
    return short.replace("|", "\\|").replace("\n", " ")
