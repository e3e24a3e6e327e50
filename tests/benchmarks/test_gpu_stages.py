"""`make gpu`: how its stages end, what its summary says, and that it runs with what a GPU machine has and no more."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import psutil
import pytest
from limited_imports import TORCH, limited
from programs import running

from benchmarks import gpu_stages
from benchmarks.gpu_stages import DONE, STAGES, Outcome, Run
from benchmarks.lines import append, lines_of

pytestmark = [
    pytest.mark.beside,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="GPUs are lent by Linux machines"),
]

ROOT = Path(__file__).parents[2]
# What `make gpu` may import: what lies on such a machine, and gymnasium, farama-notifications and pettingzoo of wheels.
THERE = (
    *TORCH,
    *("cupy", "cupy_backends", "cupyx", "fastrlock", "Cython", "cython", "setuptools", "_distutils_hack"),
    *("pkg_resources", "pytest", "_pytest", "hypothesis", "psutil", "gymnasium", "farama_notifications", "pettingzoo"),
    # which these need:
    *("packaging", "pluggy", "iniconfig", "pygments", "sortedcontainers", "attr", "attrs", "py", "cloudpickle"),
    "_hypothesis_",
)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run("cuda", tmp_path, {**os.environ, **gpu_stages.ENV})


def test_a_line_is_whole_whenever_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    assert lines_of(path) == []
    append(None, of="nothing")
    append(path, of="one", value=1.5)
    append(path, of="two")
    with open(path, "a") as file:
        file.write('{"of": "cut')
    assert lines_of(path) == [{"of": "one", "value": 1.5}, {"of": "two"}]


def test_how_a_program_ends_says_how_its_stage_did(run: Run) -> None:
    def outcome(script: str, limit_s: float = 60.0) -> Outcome:
        return gpu_stages.outcome_of(*run.python("-c", script, limit_s=limit_s))

    assert outcome("print('well')") == DONE
    assert outcome("raise SystemExit('a word\\nthe last word')") == Outcome("failed", "exit status 1: the last word")
    assert outcome("import os; os.kill(os.getpid(), 9)") == Outcome("failed", "exit status 137: ")
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)"
    assert outcome(deaf, limit_s=1.0) == Outcome("cut short", "its time was up")
    assert outcome("import time; time.sleep(60)", limit_s=1.0) == Outcome("cut short", "its time was up")
    log = (run.out / "log.txt").read_text()
    assert "the last word" in log and "exit status 124" in log


def test_commands_run_at_once_until_their_time_is_up(run: Run) -> None:
    def waiting(number: int, other: int) -> list[str]:
        script = f"""
import pathlib, time
pathlib.Path({str(run.out)!r}, "{number}").touch()
while not pathlib.Path({str(run.out)!r}, "{other}").exists():
    time.sleep(0.01)
print({number})"""
        return [sys.executable, "-c", script]

    assert run.calls([waiting(1, 2), waiting(2, 1)], 60.0, at_once=2) == [(0, "1\n"), (0, "2\n")]
    alone = run.calls([waiting(3, 4), waiting(4, 3)], 2.0)  # the first waits in vain, and no time is left
    assert alone == [(gpu_stages.TIME_UP, "")] * 2


def test_a_fault_counts_where_a_sanitizer_has_not_ended() -> None:
    text = "========= COMPUTE-SANITIZER\n========= Error: Race reported between Read access at kernel+0x10\n"
    outcome = gpu_stages.found_by_sanitizer(gpu_stages.TIME_UP, text)
    assert outcome == Outcome("failed", "Error: Race reported between Read access at kernel+0x10")
    assert gpu_stages.found_by_sanitizer(gpu_stages.TIME_UP, text.splitlines()[0]).status == "cut short"


TOOL = """#!{python}
import sys
print({words!r})
sys.exit({status})
"""


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts a program on the path that says some words and ends with a status."""

    def put(name: str, words: str, status: int) -> None:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(TOOL.format(python=sys.executable, words=words, status=status))
        (folder / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    return put


@pytest.mark.parametrize(
    ("words", "status", "expected"),
    [
        ("========= ERROR SUMMARY: 0 errors", 0, DONE),
        ("========= Error: Device not supported. Please refer to the docs", 1, "not available"),
        (
            "========= COMPUTE-SANITIZER\n========= Invalid __global__ write of size 4 bytes\n=========  at k.cu:3",
            9,
            "failed",
        ),
        ("Traceback\nRuntimeError: something else", 1, "failed"),
    ],
)
def test_what_a_sanitizer_says(run: Run, tool: Any, words: str, status: int, expected: Any) -> None:
    tool("compute-sanitizer", words, status)
    run = Run(run.device, run.out, {**run.env, "PATH": os.environ["PATH"]})
    stage = gpu_stages.sanitize(run, 30.0)
    assert stage.status == (expected.status if expected is DONE else expected)
    if status == 9:
        assert "Invalid __global__ write of size 4 bytes" in stage.words
    if expected == "not available":
        assert "Device not supported" in stage.words
    sanitizer_lines = [line for line in lines_of(run.lines) if line["of"] == "sanitizer"]
    assert [line["tool"] for line in sanitizer_lines] == list(gpu_stages.TOOLS)
    assert (run.out / "sanitizers.txt").read_text().count(words.splitlines()[0]) == 3


PAGE = """
  kernel_step (334, 1, 1)x(192, 1, 1), Context 1, Stream 7, Device 0, CC 9.0
    Section: GPU Speed Of Light Throughput
    Metric Name             Metric Unit Metric Value
    DRAM Throughput                   %         1.25
    Duration                         us         3.10
    Registers Per Thread register/thread           40
  kernel_rollout (8, 1, 1)x(192, 1, 1), Context 1, Stream 7, Device 0, CC 9.0
    Duration                         ms         2.5
"""


def test_what_a_profiler_says(run: Run, tool: Any) -> None:
    tool("ncu", PAGE, 0)
    run = Run(run.device, run.out, {**run.env, "PATH": os.environ["PATH"]})
    assert gpu_stages.profile(run, 30.0) == DONE
    step, rollout = (line for line in lines_of(run.lines) if line["of"] == "profile")
    assert (step["kernel"], step["Duration"], step["DRAM Throughput"]) == ("kernel_step", "3.10 us", "1.25 %")
    assert step["Registers Per Thread"] == "40 register/thread" and rollout["Duration"] == "2.5 ms"
    tool("ncu", "==ERROR== Failed to initialize the profiler: LibraryNotLoaded", 255)
    refused = gpu_stages.profile(run, 30.0)
    assert refused == Outcome("not available", "==ERROR== Failed to initialize the profiler: LibraryNotLoaded")


def test_the_worst_of_several_outcomes_counts() -> None:
    refused = Outcome("not available", "no device")
    assert gpu_stages.joined({"a": DONE, "b": DONE}) == DONE
    assert gpu_stages.joined({"a": refused, "b": refused}) == refused
    assert gpu_stages.joined({"a": DONE, "b": Outcome("failed", "a race")}) == Outcome(
        "failed", "a: done; b: failed (a race)"
    )
    assert gpu_stages.joined({"a": DONE, "b": refused}).status == "not available"


def test_the_summary_sets_figures_beside_their_targets() -> None:
    def figure(way: str, median: float, num_envs: int = 2000, **more: Any) -> dict[str, Any]:
        return {
            "of": "play",
            "env": "tag/grid",
            "num_envs": num_envs,
            "num_agents": 5,
            "way": way,
            "median": median,
            **more,
        }

    text = gpu_stages.summary(
        [
            {"of": "stage", "stage": "speed", "status": "cut short", "seconds": 12.0, "words": "its time was up"},
            figure("launch", 6e8),
            figure("graph", 4e8),
            figure("warpdrive", 1.25e7),
            figure("launch", 1e6, num_envs=7),
            {"of": "training", "env": "tag/grid", "num_envs": 2000, "num_agents": 5, "median": 4e7},
        ]
    )
    assert "| speed | cut short | 12.0 | its time was up |" in text
    assert "| tag/grid 2,000 x 5 | launch | 6e+08 | 3e+08 | reached | 1.25e+07 |" in text
    assert "| tag/grid 2,000 x 5 | graph | 4e+08 | 8e+08 | missed by 2.0× | 1.25e+07 |" in text
    assert "| tag/grid 2,000 x 5 | rollout |  | 4e+09 | not measured | 1.25e+07 |" in text
    assert "| tag/grid 2,000 x 5 | training | 4e+07 | 2e+07 | reached | 1.25e+07 |" in text
    assert "| tag/grid 7 x 5 | launch | 1e+06 | | | |" in text


def test_the_summary_finds_what_came_as_a_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "carried-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("carried_module.py", "words = 'a summary'")

    def summary(lines: Any) -> str:
        return str(importlib.import_module("carried_module").words)

    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", ["gpu_stages", "--device", "host", "--out", str(tmp_path / "out"), "--stages",
                                      "versions", "--wheels", str(tmp_path)])  # fmt: skip
    monkeypatch.setattr(gpu_stages, "NEEDED", ("carried_module",))
    monkeypatch.setattr(gpu_stages, "summary", summary)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        assert gpu_stages.main() == 0
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert "a summary" in (tmp_path / "out" / "summary.md").read_text()


@pytest.mark.long
def test_a_foreign_package_called_tests_hides_none_of_ours(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "__init__.py").write_text("")
    files = ("tests/cuda_ext/test_gpu.py", "tests/training/test_planner.py")
    command = [sys.executable, "-m", "pytest", "-o", "addopts=", "-p", "no:cacheprovider", "--collect-only", "-q",
               "-p", "benchmarks.gpu_stages", *files]  # fmt: skip
    environment = {**os.environ, **gpu_stages.ENV, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0 and "tests/cuda_ext/test_gpu.py::" in done.stdout, done.stdout[-2000:]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_list_has_every_file_with_tests_for_a_gpu() -> None:
    command = [sys.executable, "-m", "pytest", "-o", "addopts=", "-p", "no:cacheprovider", "--collect-only", "-q", "-m",
               "gpu", "tests"]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    files = {line.partition("::")[0] for line in done.stdout.splitlines() if "::" in line}
    assert files == {*gpu_stages.TESTS}


def test_wheels_are_asked_for_where_gymnasium_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu_stages.unpacked(tmp_path, tmp_path / "here") is None
    monkeypatch.setattr(gpu_stages.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="pip download --no-deps --dest .* gymnasium farama-notifications pettingzoo"):
        gpu_stages.unpacked(tmp_path, tmp_path / "here")
    with zipfile.ZipFile(tmp_path / "some-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("some.py", "value = 3")
    assert gpu_stages.unpacked(tmp_path, tmp_path / "here") == tmp_path / "here"
    assert (tmp_path / "here" / "some.py").read_text() == "value = 3"


def blocked(folder: Path) -> dict[str, str]:
    """Return an environment in which Python finds no more than a GPU machine has."""
    env = limited(folder, THERE, (".", "tests/helpers", "examples/kernel"))
    for module, status in (("rich", 1), ("numpy", 0)):
        done = subprocess.run([sys.executable, "-c", f"import {module}"], env=env, capture_output=True)
        assert done.returncode == status
    return env


def command(out: Path, **options: str) -> list[str]:
    variables = {"DEVICE": "host", "OUT": str(out), **options}
    # The interpreter of this test, whichever it is.
    return ["make", "gpu", f"VENV={sys.prefix}", *(f"{name}={value}" for name, value in variables.items())]


@pytest.mark.slow
@pytest.mark.long
def test_what_was_found_is_kept_where_it_is_killed(tmp_path: Path) -> None:
    out, lines = tmp_path / "out", tmp_path / "out" / "lines.jsonl"
    with running(command(out, STAGES="versions speed"), cwd=ROOT, env=blocked(tmp_path)) as process:
        deadline_s = time.monotonic() + 100
        while sum(line["of"] == "play" for line in lines_of(lines)) < 2 and time.monotonic() < deadline_s:
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    written = lines_of(lines)
    assert sum(line["of"] == "play" for line in written) >= 2 and written[0]["of"] == "versions"
    assert not (out / "summary.md").exists()
    while any(str(lines) in (process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])):
        assert time.monotonic() < deadline_s, "what it has started goes on"
        time.sleep(0.05)
    assert not (out / "gpu.json").exists()  # nor has that gone on to its end


@pytest.mark.slow
@pytest.mark.long
def test_every_stage_is_in_the_summary_however_little_time_there_is(tmp_path: Path) -> None:
    out = tmp_path / "out"
    began_s = time.monotonic()
    done = subprocess.run(command(out, LIMIT="6"), cwd=ROOT, env=blocked(tmp_path), capture_output=True, text=True)
    seconds = time.monotonic() - began_s
    stages = {line["stage"]: line["status"] for line in lines_of(out / "lines.jsonl") if line["of"] == "stage"}
    assert [*stages] == [*STAGES] and done.returncode == ("failed" in stages.values()), done.stdout + done.stderr
    assert {*stages.values()} <= {"done", "cut short", "not available"}, (out / "log.txt").read_text()[-3000:]
    assert seconds < 6 + 10 + 100  # what is cut short ends at once, on a busy machine too
    for stage, status in stages.items():
        assert f"| {stage} | {status} |" in (out / "summary.md").read_text()


@pytest.mark.long
@pytest.mark.timeout(2100)
def test_all_stages_pass_on_the_host_with_what_a_gpu_machine_has(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = subprocess.run(command(out, LIMIT="2000"), cwd=ROOT, env=blocked(tmp_path), capture_output=True, text=True)
    lines = lines_of(out / "lines.jsonl")
    stages = {line["stage"]: line["status"] for line in lines if line["of"] == "stage"}
    assert done.returncode == 0 and "failed" not in stages.values(), (out / "log.txt").read_text()[-5000:]
    assert stages["build"] == stages["versions"] == stages["check"] == "done", stages
    assert stages["sanitize"] == stages["profile"] == "not available"
    tests = {line["test"]: line["outcome"] for line in lines if line["of"] == "test"}
    assert {*tests.values()} == {"passed", "skipped"}  # what is about CUDA itself is skipped
    passed = {name.partition("::")[0] for name, outcome in tests.items() if outcome == "passed"}
    assert {*gpu_stages.TESTS} - passed == {
        "tests/benchmarks/test_gpu_speed.py",  # about WarpDrive
        "tests/cleanrl_demo/test_ppo_fused.py",
        "tests/training/test_cuda_graphs.py",
        "tests/training/test_planner.py",
        "tests/cuda_ext/test_division.py",
        "tests/vectorization/test_bfloat16_policies.py",
        "tests/vectorization/test_tensors.py",
    }
    assert {line["way"] for line in lines if line["of"] == "play"} >= {"launch", "rollout"}
    assert any(line["of"] == "training" for line in lines)
    assert len(list(out.iterdir())) <= 8
    json.loads((out / "gpu.json").read_text())
