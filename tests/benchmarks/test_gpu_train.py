"""The benchmark of training on a device: its arithmetic, and a small case of it on the host."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import Case
from benchmarks.gpu_fused import fused_figure
from benchmarks.gpu_plots import plot_training
from benchmarks.gpu_train import Measured, measured, memcpy_nbytes, reached, split, table

pytestmark = pytest.mark.beside


def test_an_iteration_is_split_into_its_parts() -> None:
    parts = split(10.0, 5.0, 2.0, 4.0)
    assert parts == {"whole_s": 10.0, "environments_s": 2.0, "inference_s": 3.0, "training_s": 4.0, "rest_s": 1.0}
    assert split(1.0, 1.0, 2.0, 1.0)["inference_s"] == split(1.0, 1.0, 2.0, 1.0)["rest_s"] == 0.0


def test_copies_between_host_and_device_are_added_up() -> None:
    def event(name: str, nbytes: int, cat: str = "gpu_memcpy") -> dict[str, Any]:
        return {"cat": cat, "name": name, "args": {"bytes": nbytes}}

    events = [
        event("Memcpy HtoD (Pageable -> Device)", 8),
        event("Memcpy DtoH (Device -> Pinned)", 16),
        event("Memcpy DtoH (Device -> Pinned)", 4),
        event("Memcpy DtoD (Device -> Device)", 1000),
        event("HtoD by the name alone", 7, "cpu_op"),
        {"name": "a mark"},
    ]
    assert memcpy_nbytes({"traceEvents": events}) == {"HtoD": 8, "DtoH": 20}


def run(way: str, rate: float, last_s: float) -> dict[str, Any]:
    """A run that makes so many steps a second; a tagger's return grows with the steps, a runner's falls."""
    seconds = [0.0, last_s]
    steps = [rate * at_s for at_s in seconds]
    returns = {"tagger": [at_s / 100 for at_s in steps], "runner": [-at_s / 100 for at_s in steps]}
    return {"way": way, "seed": 1, "num_steps": steps[1], "training_s": last_s, "seconds": seconds, "steps": steps,
            "returns": returns}  # fmt: skip


def test_ways_are_compared_when_the_fastest_is_done() -> None:
    runs = [run("device", 1000.0, 2.0), run("pool", 100.0, 20.0), run("pool", 300.0, 20.0), run("device", 500.0, 4.0)]
    device, pool = reached(runs)
    assert device["at_s"] == pool["at_s"] == 2.0 and (device["seeds"], pool["seeds"]) == (2, 2)
    assert device["steps"] == [1500.0, 1000.0, 2000.0] and pool["steps"] == [400.0, 200.0, 600.0]
    assert device["tagger"] == [15.0, 10.0, 20.0] and pool["runner"] == [-4.0, -6.0, -2.0]
    assert pool["steps_per_s"] == [200.0, 100.0, 300.0]


def test_a_case_of_the_compiled_learner_is_measured() -> None:
    settings = {"min_steps": 1, "min_s": 0.0, "most_s": 0.1, "repeats": 2}
    figure = fused_figure(Case("tag/grid", 4, 5), "host", 4, settings)
    assert 0 < figure["least"] <= figure["median"] <= figure["greatest"] and figure["repeats"] == 2
    assert (figure["env"], figure["num_envs"], figure["num_agents"]) == ("tag/grid", 4, 5)


def test_a_case_is_measured_and_drawn(tmp_path: Path) -> None:
    figure = measured(Case("tag/grid", 4, 5), "host", {"min_steps": 32, "min_s": 0.0, "most_s": 0.1, "repeats": 2})
    assert isinstance(figure, Measured) and 0 < figure.least <= figure.median <= figure.greatest and figure.repeats == 2
    assert figure.whole_s > figure.environments_s > 0 and figure.training_s > 0
    assert (figure.host_to_device_nbytes_per_step, figure.device_to_host_nbytes_per_step) == (0, 0)
    runs = [run("device", 1000.0, 2.0), run("pool", 100.0, 20.0)]
    results = {"device": "host", "machine": "some; cores", "load": [0.5, 1.0], "figures": [asdict(figure)],
               "runs": runs, "reached": reached(runs)}  # fmt: skip
    text = table(results)
    assert "| tag/grid | 5 | 4 | " in text and "| device | 2,000 (2,000 – 2,000) | 1,000 (" in text
    path = tmp_path / "gpu-train-host.json"
    path.write_text(json.dumps(results))
    assert plot_training(path, tmp_path).stat().st_size > 5000
