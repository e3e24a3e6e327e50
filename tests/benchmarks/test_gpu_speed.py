"""Tests of the benchmark of kernels, on the host."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import gpu, warpdrive
from benchmarks.lines import lines_of

pytestmark = pytest.mark.beside


@pytest.mark.slow
@pytest.mark.long
def test_kernels_are_measured_on_the_host_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import gpu_plots

    small = {"num_envs": (10,), "num_agents": (5,), "sampler_envs": (10,), "min_steps": 5, "min_s": 0.01, "repeats": 2}
    monkeypatch.setattr(gpu, "SHORT", small)
    out = tmp_path / "gpu-host.json"
    lines = tmp_path / "lines"
    monkeypatch.setattr(sys, "argv", ["gpu", "--device", "host", "--out", str(out), "--lines", str(lines)])
    gpu.main()
    results = json.loads(out.read_text())
    assert [item["way"] for item in results["figures"]] == [
        *["launch", "rollout", "network", "logits"] * 2,
        "numpy",
        "numpy",
    ]
    assert all(item["least"] <= item["median"] <= item["greatest"] for item in results["figures"])
    assert [item["way"] for item in results["sampler"]] == ["ours", "torch", "multinomial"] * 2
    assert "| tag/grid | 5 | 10 | rollout |" in gpu.table(results)
    assert "| tag/grid | 5 | 50 | ours |" in gpu.table(results)
    assert "Target 5 times torch's for 50 rows of 11 x 11: " in gpu.table(results)
    assert all(nbytes < struct / 5 for struct, nbytes in results["argument_us"].values())
    assert re.search(r"Arguments of tag/grid, handed to CuPy: [\d.]+ µs a launch; as a struct", gpu.table(results))
    assert results["warpdrive"] == "left out: it needs a CUDA device, and this is the host"
    assert all(item["steps"] > 0 for item in results["figures"]) and not results["left_out"]
    written = lines_of(lines)
    assert written[0]["of"] == "device" and [line["way"] for line in written[1:]] == [
        *["launch", "rollout", "network", "logits"] * 2,
        *["ours", "torch", "multinomial"] * 2,
        *["numpy"] * 2,
    ]
    assert gpu_plots.plot_kernels(out, tmp_path).stat().st_size > 5000


@pytest.mark.long
def test_kernels_are_measured_by_their_worth_while_there_is_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "gpu-host.json"
    asked = ["--cases", "tag/grid:10x5", "tag/continuous:10x5", "--limit", "0.001", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["gpu", "--device", "host", *asked])
    gpu.main()
    results = json.loads(out.read_text())
    assert not results["figures"] and not results["sampler"]
    assert results["left_out"][0] == "tag/grid 10 x 5, for want of time" and len(results["left_out"]) >= 4
    with pytest.raises(argparse.ArgumentTypeError, match=r"'tag/cube:3x4' is no case; write ENV:NUM_ENVSxNUM_AGENTS"):
        gpu.Case.of("tag/cube:3x4")


def test_cases_with_a_target_come_first_and_all_are_timed_within_limits() -> None:
    cases = gpu.cases(gpu.LONG)
    sizes = [(case.env, case.num_envs, case.num_agents) for case in cases]
    targets = {target[:3] for target in gpu.TARGETS}
    assert set(sizes[: len(targets)]) == targets and len(set(sizes)) == len(sizes) == 2 * 7 * 4
    played = []

    def play() -> int:
        time.sleep(0.002)
        played.append(2)
        return 2

    settings = {"min_steps": 100, "min_s": 0.01, "repeats": 4, "most_s": 1000.0}
    rates, steps = gpu.timed(play, settings, torch.device("cpu"))
    assert steps == 100 and len(rates) == 4 and sum(played) >= 400 and 0 < min(rates) <= max(rates) <= 1001
    rates, steps = gpu.timed(play, {**settings, "most_s": 0.0}, torch.device("cpu"))
    assert steps == 2 and len(rates) == 4


def test_warpdrive_says_why_it_is_left_out_and_what_came_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cases, device = [gpu.Case("tag/grid", 10, 5), gpu.Case("tag/continuous", 10, 5)], torch.device("cuda", 0)
    assert warpdrive.figures_of(cases, {}, torch.device("cpu"))[1].endswith("this is the host")
    monkeypatch.setattr(warpdrive, "find_spec", lambda module: None if module == "gym" else module)
    assert warpdrive.figures_of(cases, {}, device) == ([], "left out: not installed: gym (see benchmarks/warpdrive.py)")
    monkeypatch.setattr(warpdrive, "find_spec", lambda module: module)
    monkeypatch.setattr(warpdrive.metadata, "version", lambda package: "2.7.1")
    figure = dataclasses.asdict(gpu.figure(cases[0], "warpdrive", ([2.0, 1.0, 3.0], 7)))
    asked = []

    def run(command: list[str], *, input: str, stdout: Any, text: bool, timeout: float) -> Any:
        asked.append((command[-1], json.loads(input), timeout))
        stdout.write(f"Setting Numba\n{json.dumps(figure)}\n{{'cut': ")
        stdout.flush()
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(warpdrive.subprocess, "run", run)
    figures, text = warpdrive.figures_of(cases, {"warpdrive_s": 5.0}, device)
    assert figures == [figure] and (figure["median"], figure["least"], figure["steps"]) == (20.0, 10.0, 7)
    assert text == "2.7.1: 1 of 2 cases in 0 s; then its time was up"
    (name, arguments, timeout), *_ = asked
    assert (name, arguments["device"], timeout) == ("benchmarks.warpdrive", "cuda:0", 5.0)
    assert [gpu.Case(**item) for item in arguments["cases"]] == cases


@pytest.mark.gpu  # it needs none, but is installed only where there is one, if there
def test_warpdrive_has_the_environments_that_are_measured() -> None:
    pytest.importorskip("warp_drive")
    for case in (gpu.Case("tag/grid", 10, 5), gpu.Case("tag/continuous", 10, 105)):
        env = warpdrive.environment(case)
        assert (env.num_agents, env.grid_length) == (case.num_agents, case.env_kwargs["grid_length"])
        assert len(env.reset()[0]) == (6 if case.env == "tag/grid" else 7 * case.num_nearest + 1)


@pytest.mark.long
def test_the_kernel_benchmark_refuses_a_kernel_that_plays_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    from cuda_ext.references.tag_grid import TagGrid

    gpu.hold_against_reference("host")
    monkeypatch.setattr(TagGrid, "_rewards", lambda self, hit, tagged: np.zeros(len(hit), np.float32))
    with pytest.raises(AssertionError, match="rewards"):
        gpu.hold_against_reference("host")
