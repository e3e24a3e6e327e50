"""Tests that pages say what the results say, and of the form of both."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path

import pytest

from benchmarks import adapters, report
from benchmarks.lines import table_text
from benchmarks.ratios import MedianRange, ratios

pytestmark = pytest.mark.beside

ROOT = Path(__file__).parents[2]


def test_the_page_of_adapters_says_what_their_results_say() -> None:
    libraries = json.loads((adapters.RESULTS / "adapters.json").read_text())["libraries"]
    page = adapters.PAGE.read_text()
    assert report.fill(page, {"adapters": adapters.text(libraries)}) == page


def test_the_page_of_adapters_says_who_is_faster_and_who_was_not_measured() -> None:
    rates = {"ours": [3.0, 2.0], "theirs": [2.0, 1.0], "ours-processes": [1.0, 3.0], "theirs-processes": [2.0, 4.0]}
    skrl_rates = {"ours": [1.0, 1.0], "theirs": [2.0, 0.5], "ours-processes": [2.0], "theirs-processes": [1.0]}
    said = adapters.summary({name: {"steps_per_s": item} for name, item in (("sb3", rates), ("skrl", skrl_rates))})
    assert said.replace("\n", " ") == (
        "In this process ours are in every repeat faster than Stable-Baselines3's; now faster and now slower than "
        "skrl's. In processes ours are in every repeat faster than skrl's; in every repeat slower than "
        "Stable-Baselines3's. Not measured yet: Tianshou, TorchRL and RLlib."
    )


def test_report_fills_pages_between_their_marks_and_leaves_the_rest() -> None:
    page = "before\n<!-- begin targets -->\nold\n<!-- end targets -->\nafter <!-- begin other -->x<!-- end other -->"
    filled = report.fill(page, {"targets": "new"})
    assert filled == page.replace("old", "new")
    assert report.fill(filled, {"targets": "new"}) == filled


def test_the_readme_says_what_every_file_is() -> None:
    folder = ROOT / "benchmarks"
    named = set(re.findall(r"benchmarks\.(\w+)|`(\w+)\.\w+`|`(\w+)/`", (folder / "README.md").read_text()))
    there = {path.stem for path in folder.iterdir() if not path.name.startswith((".", "_"))}
    assert there <= {name for names in named for name in names} | {"README"}


@pytest.mark.parametrize(("program", "name"), [("native", "native"), ("install", "install"), ("ray_backend", "ray")])
def test_other_tables_of_the_readme_say_what_their_results_say(program: str, name: str) -> None:
    results, page = json.loads((report.RESULTS / f"{name}.json").read_text()), report.PAGES[0].read_text()
    text = importlib.import_module(f"benchmarks.{program}").table(results)
    assert text in page and report.fill(page, {name: text}) == page


@pytest.mark.parametrize("name", ["limits", "leaks", "ocean_suite"])
def test_sections_of_the_readme_say_what_their_results_say(name: str) -> None:
    page, module = report.PAGES[0].read_text(), importlib.import_module(f"benchmarks.{name}")
    path = report.RESULTS / f"{name}.json"
    assert f"<!-- begin {name} -->" in page
    if path.exists():  # it is measured by hand
        assert report.fill(page, {name: module.section(json.loads(path.read_text()))}) == page


@pytest.mark.parametrize("program", ["population", "learned_oracles", "selfplay"])
def test_the_page_of_populations_says_what_their_results_say(program: str) -> None:
    module = importlib.import_module(f"benchmarks.{program}")
    texts, page = module.sections(json.loads(module.RESULT.read_text())), module.PAGE.read_text()
    assert report.fill(page, texts) == page, f"python -m benchmarks.{program} --page writes it"
    assert all(f"<!-- begin {name} -->" in page for name in texts)


@pytest.mark.parametrize("program", ["evaluation", "fairness"])
def test_pages_of_results_by_part_say_what_these_say(program: str) -> None:
    module = importlib.import_module(f"benchmarks.{program}")
    texts, page = module.sections(module.stored()), module.PAGE.read_text()
    assert report.fill(page, texts) == page
    assert all(f"<!-- begin {name} -->" in page for name in texts)


@pytest.mark.slow
def test_pages_that_programs_make_say_what_their_results_say() -> None:
    from benchmarks import fault_tables, ocean, reference
    from benchmarks.pages import without_revisions
    from tests.laws.chaos.report import page as chaos_page

    stored = {
        name: json.loads((report.RESULTS / f"{name}.json").read_text()) for name in ("ocean", "reference", "chaos")
    }
    returns = {(run["task"], run["contestant"], run["settings"]["seed"]): run for run in stored["reference"]["runs"]}
    faults = fault_tables.fault_sections(report.RESULTS / "faults.json")
    for page, generated in {
        "ocean_scores": ocean.page(stored["ocean"]["by_env"]),
        "reference": reference.page(stored["reference"], returns),
        "chaos": chaos_page((ROOT / "docs/chaos.md").read_text(), stored["chaos"]),
        "faults": report.fill((ROOT / "docs/faults.md").read_text(), faults),
    }.items():
        assert without_revisions((ROOT / f"docs/{page}.md").read_text()) == without_revisions(generated), page


def test_training_next_to_others_is_reported_as_measured() -> None:
    table, readme = (ROOT / "docs/training.md").read_text(), report.PAGES[0].read_text()
    for measured in json.loads((report.RESULTS / "train.json").read_text())["environments"]:
        ours, *others = measured["contestants"]
        speeds, *theirs = ([run["steps_per_s"] for run in item["runs"]] for item in measured["contestants"])
        assert f"{ours['name']} (" in table and f"| {MedianRange.of(speeds):,.0f} | |" in table
        for other, their_speeds in zip(others, theirs, strict=True):
            held = f"{MedianRange.of(ratios(speeds, their_speeds)):.2f}"
            assert f"| {MedianRange.of(their_speeds):,.0f} | {held} | " in table
            assert f"{held} times" in readme or not other["name"].startswith("SB3")


def test_the_page_of_ocean_leaves_out_seconds_on_a_busy_machine_and_names_what_was_measured_elsewhere() -> None:
    from benchmarks import ocean

    facts = {"machine": "A", "date": "1999-01-01", "version": "1"}
    runs = [{"backend": "serial", "seed": seed, "score": 1.0, "seconds": 3.0 * seed} for seed in (1, 2)]
    results = {env: {**facts, "runs": runs} for env in ("ocean/bandit", "ocean/bell")}
    results["ocean/uneven"] = {**facts, "machine": "B", "runs": [{**run, "busy": run["seed"] == 2} for run in runs]}
    lines = ocean.page(results).splitlines()
    assert "A. 1999-01-01, version 1." in lines and "ocean/uneven: B. 1999-01-01, version 1." in lines
    cells = {line.split(" | ")[0][2:]: line.split(" | ")[6] for line in lines if line.startswith("| ocean/")}
    assert (cells["ocean/bell"], cells["ocean/uneven"], cells["ocean/squared"]) == ("4.5, 6.0", "3.0, 3.0", "—")


def test_results_are_written_with_a_line_for_each_item_of_their_tables() -> None:
    result = {
        "date": "2026-11-26",
        "load": [0.5, 1.0],
        "participants": [{"name": "ours", "turns": [{"steps": 1}, {"steps": 2}]}, {"name": "theirs", "turns": []}],
        "by_env": {"coin": [1, 2], "bandit": {"score": 1.0}},
        "curve": [[1, 2.0], [3, 4.0]],
        "left_out": [],
    }
    text = table_text(result)
    assert json.loads(text) == result
    assert text.splitlines() == [
        '{"date": "2026-11-26", "load": [0.5, 1.0], "curve": [[1, 2.0], [3, 4.0]], "left_out": [],',
        '"participants": [',
        ' {"name": "ours", "turns": [{"steps": 1}, {"steps": 2}]},',
        ' {"name": "theirs", "turns": []}',
        "],",
        '"by_env": {',
        ' "coin": [1, 2],',
        ' "bandit": {"score": 1.0}',
        "}}",
    ]
    assert table_text({"runs": [{"a": 1}]}) == '{"runs": [\n {"a": 1}\n]}\n'


def test_the_raw_results_are_small() -> None:
    """A line for each item of a table, and below 5,000 lines in all."""
    files = list(report.RESULTS.rglob("*.json"))
    assert all(path.read_text() == table_text(json.loads(path.read_text())) for path in files)
    assert sum(path.read_text().count("\n") for path in report.RESULTS.rglob("*.*")) < 5000
