"""`puffer ocean`: what is asked of learners, and what becomes of those that fail, each in a process of its own."""

from __future__ import annotations

import dataclasses
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from programs import running
from rich.console import Console

from cleanrl_demo import ppo, ppo_lstm
from ocean.suite import examining, tasks
from ocean.suite.examining import Examination, Verdict, examine, learner, score
from ocean.suite.table import Screen, closing_line
from pufferlib import registry
from pufferlib.cli import main
from pufferlib.errors import ActionError, PlanError

pytestmark = pytest.mark.beside

ROOT = Path(__file__).parents[2]
ONLY_ON_LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="has signals without a name")
ENVS = ("bandit", "identity", "memory", "mixed", "multiagent", "password", "squared", "truncation", "stochastic")


def project(folder: Path) -> Path:
    shutil.copy(ROOT / "tests/helpers/toy_learners.py", folder / "toys.py")
    (folder / "tmp").mkdir()
    return folder


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200", "TMPDIR": str(folder / "tmp")}


def hanging(folder: Path) -> list[int]:
    """The processes of a learner that hangs: its own, and one that it has started."""
    return [int(word) for word in (folder / "hanging").read_text().split()]


def gone(pids: list[int]) -> bool:
    """Wait until these processes are no more, or are dead but not waited for."""
    deadline = time.monotonic() + 30
    while any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder with toy learners, where this process is."""
    monkeypatch.chdir(project(tmp_path))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("COLUMNS", "200")
    yield tmp_path
    sys.modules.pop("toys", None)


# ------------------------------------------------------------------------------------------------------ what is asked


def test_tasks_are_environments_with_a_bar_and_the_demo_trainers_settings() -> None:
    task_list = list(tasks.tasks(backends=["serial", "pool"], seeds=[4, 5]))
    assert sorted({task.env for task in task_list}) == sorted(tasks.names())
    assert "ocean/performance" not in tasks.names()
    assert len(task_list) == 4 * len(tasks.names()) == len(set(task_list))
    assert len(list(tasks.tasks(["bandit", "ocean/bandit"], ["pool", "pool"]))) == 1
    for task in task_list:
        assert task.settings["env"] == task.env
        batches = 4 if task.env == "ocean/uneven" else 2  # that a pool needs for a row of each environment
        assert task.batch_size == (task.num_envs // batches if task.backend == "pool" else task.num_envs)
        with_memory = task.env in ("ocean/bell", "ocean/memory")
        assert task.needs_memory == with_memory
        assert tasks.demo_trainer(task.env) is (ppo_lstm if with_memory else ppo)


def test_a_task_makes_its_environments_and_takes_changes() -> None:
    (task,) = tasks.tasks(["bandit"], ["serial"], [3])
    with task.make() as vec:
        assert (vec.num_envs, vec.agents_per_batch) == (task.num_envs, task.num_envs)
        assert vec.backend == "serial"
    with task.make(num_envs=2, batch_size=1, env_kwargs={"num_actions": 9}) as vec:
        assert (vec.num_envs, vec.agents_per_batch, vec.single_action_space.n) == (2, 1, 9)


def test_a_score_is_of_episodes_that_no_training_has_seen() -> None:
    (task,) = tasks.tasks(["identity"], ["serial"], [3])
    task = dataclasses.replace(task, settings={**task.settings, "env_kwargs": {"step_s": 0}})  # it would sleep
    seen: list[np.ndarray] = []

    def play(batch: object) -> np.ndarray:
        seen.append(batch.observations.copy())  # type: ignore[attr-defined]
        return batch.observations.argmax(1)  # type: ignore[attr-defined]

    assert score(task, play, num_episodes=100) == 1
    with task.make() as vec:
        assert not np.array_equal(vec.reset()[0], seen[0])
    first = seen[0]
    seen.clear()
    verdict, player = examine(task, lambda task: play)
    assert player is play and verdict.passed and verdict.score == 1
    np.testing.assert_array_equal(seen[0], first)  # the same for every learner


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--env", "bandid"], "env='bandid' is no environment of Ocean that can be learnt; did you mean ocean/bandit?"),
        (
            ["--env", "performance"],
            "env='performance' is no environment of Ocean that can be learnt: Performance has no bar and no chance and "
            "no best; ocean/__init__.py says what these are",
        ),
        (["--env", "bandit,bandid"], "env='bandid' is no environment of Ocean"),
        (["--env", "ocean/qqqqqqqqqqqqqq"], "there are ocean/bandit, "),
        (["--env", "bandit", "--trainer", "toys:train", "--watch"], "--watch needs a terminal"),
        (["--seeds", "0"], "--seeds 0 is impossible; use 1 or more"),
        (["--jobs", "0"], "--jobs 0 is impossible; use 1 or more"),
        (["--timeout", "0"], "--timeout 0.0 is impossible; use seconds above 0"),
        (["--seed", "-1"], "--seed -1 is impossible; use 0 or more"),
        (["--mutants", "--save", "x.json"], "`puffer ocean --mutants` is now `python -m tests.mutants`, from the"),
        (["--env", "bandit", "--mutant", "rewards_late"], "is now `python -m tests.mutants`, from the root of a"),
        (["--trainer", "toys:no_task"], "trainer='toys:no_task' cannot be called as train(task) (too many positional"),
        (["--trainer", "toys:trian"], '"toys:trian": toys has no trian; did you mean train?'),
        (["--trainer", "reinforce"], "trainer='reinforce' is not module:function, such as reinforce:train for the"),
        (["--trainer", "reinforce"], "in the box is ocean.suite.demo:train: PPO, with an LSTM where a memory"),
        (["--trainer", "toys:"], "trainer='toys:' is not module:function, such as toys:train for the function"),
        (["--trainer", "toys.py"], '"toys.py" names a file; name its module: toys:function'),
        (["--trainer", "toys:not_callable"], '"toys:not_callable" is no callable but a int'),
        (["--trainer", "swords:train"], "there is no module swords on the module search path"),
    ],
)
def test_a_wrong_word_is_refused_before_anything_is_learnt(
    folder: Path, capfd: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    assert main(["ocean", *words]) == 1
    output = capfd.readouterr()
    assert says in output.err
    assert output.out == ""


def test_what_returns_nothing_callable_is_refused() -> None:
    (task,) = tasks.tasks(["bandit"], ["serial"])
    with pytest.raises(PlanError, match=r"the trainer returned 3; it has to return a callable that takes a batch"):
        examine(task, lambda task: 3)  # type: ignore[arg-type, return-value]


def test_an_environment_without_a_score_is_refused_before_anything_is_learnt() -> None:
    (task,) = tasks.tasks(["bandit"], ["serial"])
    with pytest.raises(PlanError, match=r"CartPole-v1 reports no info\['score'\] at the end of an episode; see ocean/"):
        examine(dataclasses.replace(task, env="CartPole-v1"), lambda task: pytest.fail("it was trained on"))


@pytest.mark.parametrize(
    ("env", "column", "value", "says"),
    [
        ("bandit", 0, 4, r"action 4 of row 1 \(environment 1\) is not in Discrete\(4\); use 0 to 3"),
        ("bandit", 0, -1, r"action -1 of row 1 \(environment 1\) is not in Discrete\(4\); use 0 to 3"),
        ("spaces", 1, 2, r"of row 1 \(environment 1\) is not in MultiDiscrete\(.*\): element 1 is 2; use 0 to 1"),
        ("continuous", 1, np.nan, r"of row 1 \(environment 1\) is not in Box\(.*\): element 1 is nan; use finite"),
        ("continuous", 1, 7, None),
    ],
)
def test_an_action_that_there_is_not_is_refused(env: str, column: int, value: float, says: str | None) -> None:
    (task,) = tasks.tasks([env], ["serial"])
    with task.make() as vec:
        shape, dtype = vec.action_space.shape, vec.action_space.dtype

    def play(batch: object) -> np.ndarray:
        actions = np.zeros(shape, dtype)
        actions.reshape(shape[0], -1)[1, column] = value
        return actions

    if says is None:
        score(task, play, num_episodes=task.num_envs)
    else:
        with pytest.raises(ActionError, match=says):
            score(task, play, num_episodes=task.num_envs)


def coin(**stated: float) -> type:
    return type("Coin", (), stated)


@pytest.mark.parametrize(
    ("stated", "lacking"),
    [
        ({"chance": 0.5, "best": 1.0}, "bar"),
        ({"bar": 0.9}, "chance and no best"),
        ({"bar": 0.9, "chance": 0.5}, "best"),
    ],
)
def test_what_an_environment_does_not_state_is_named(
    monkeypatch: pytest.MonkeyPatch, stated: dict[str, float], lacking: str
) -> None:
    monkeypatch.setattr(tasks, "_listed", lambda: ["ocean/coin"])
    monkeypatch.setattr(registry, "creator", lambda name: coin(**stated))
    says = f"env='coin' is no environment of Ocean that can be learnt: Coin has no {lacking}; ocean/__init__.py says"
    with pytest.raises(PlanError, match=says):
        list(tasks.tasks(["coin"]))
    assert tasks.names() == []
    assert [says in fault for fault in tasks.faults().values()] == ([True] if "bar" in stated else [])


def test_an_environment_that_cannot_be_learnt_is_named_and_the_others_go_on(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    creator = registry.creator
    monkeypatch.setattr(tasks, "_listed", lambda: ["ocean/bandit", "ocean/coin"])
    monkeypatch.setattr(registry, "creator", lambda name: coin(bar=0.9) if name == "ocean/coin" else creator(name))
    words = ["ocean", "--trainer", "toys:train", "--backend", "serial"]
    assert main(words) == 1
    output = capfd.readouterr()
    assert "1 of 1 passed" in output.out
    assert output.err.startswith("puffer: env='coin' is no environment of Ocean that can be learnt: Coin has no chance")
    assert main([*words, "--env", "bandit"]) == 0
    assert capfd.readouterr().err == ""


# ------------------------------------------------------------------------------------------ what becomes of learners


@dataclasses.dataclass(frozen=True)
class Outcome:
    status: int
    lines: dict[str, str]  # by environment
    why: dict[str, str]  # likewise, of those that did not pass
    closing: str
    pids: list[int]
    files: list[Path]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """What `puffer ocean` says of the toys. One of them hangs, for which the others have to wait."""
    folder = project(tmp_path_factory.mktemp("toys"))
    words = ["--trainer", "toys:train", "--backend", "serial", "--jobs", "2", "--timeout", "6", "--env", *ENVS]
    command = [sys.executable, "-m", "pufferlib.cli", "ocean", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment(folder))
    assert done.stderr == ""
    table, *why, last = re.split(r"\n\n(?=ocean/)|\n(?=\d+ of \d+ passed)", done.stdout)
    lines = {line.split()[0].removeprefix("ocean/"): line for line in table.splitlines()}
    reasons = {part.partition("\n")[0].removeprefix("ocean/"): part.partition("\n")[2] for part in why}
    return Outcome(done.returncode, lines, reasons, last, hanging(folder), list((folder / "tmp").iterdir()))


@pytest.mark.slow
def test_each_learner_is_one_verdict_and_the_others_go_on(outcome: Outcome) -> None:
    assert sorted(outcome.lines) == sorted(ENVS)
    for env, line in outcome.lines.items():
        assert line.endswith({"bandit": " passed", "mixed": " cannot"}.get(env, " FAILED"))
    assert "score 1.000, chance 0.250, bar 0.90" in outcome.lines["bandit"]
    assert "score 0.000, chance 0.031, bar 0.90" in outcome.lines["password"]
    assert sorted(outcome.why) == sorted(set(ENVS) - {"bandit"})
    assert outcome.status == 1
    assert re.fullmatch(r"1 of 9 passed in \d+ s, 2 at a time: 7 failed, 1 cannot be learnt by it\n", outcome.closing)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "says"),
    [
        ("identity", r"took longer than 6 s, and was killed\nlearning ocean/identity"),
        ("memory", r"ended with exit code 3\nline 88\n(line \d+\n)*line 99"),
        ("mixed", r"toys have no mixed actions"),
        (
            "multiagent",
            r"pufferlib\.errors\.ActionError: action 2 of row 2 \(environment 1, agent 0\) is not in Discrete\(2\); "
            "use 0 to 1",
        ),
        ("password", r"may be: a learner that does not latch onto a rare reward.*"),
        ("squared", r"died of signal 11 \(SIGSEGV\)\nlearning ocean/squared\nthis is the end"),
        ("truncation", r"Traceback \(most recent call last\):\n.*toys\.py.*\n(.*\n)*KeyError: 'of damocles'"),
        ("stochastic", r"pufferlib\.errors\.PlanError: the trainer returned 3; it has to return a callable .*"),
    ],
)
def test_it_is_reported_why_a_learner_did_not_pass(outcome: Outcome, env: str, says: str) -> None:
    assert re.fullmatch(says, outcome.why[env].strip("\n")), outcome.why[env]


@pytest.mark.slow
def test_nothing_is_left_of_a_learner_that_was_killed(outcome: Outcome) -> None:
    assert gone(outcome.pids)
    assert outcome.files == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status"),
    [
        (signal.SIGINT, 130),
        pytest.param(signal.SIGTERM, -signal.SIGTERM, marks=pytest.mark.long),
        (signal.SIGKILL, -signal.SIGKILL),
    ],
)
def test_whatever_ends_it_nothing_is_left(tmp_path: Path, number: int, status: int) -> None:
    folder = project(tmp_path)
    command = [sys.executable, "-m", "pufferlib.cli", "ocean", "--trainer", "toys:train", "--env", "identity"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with running(command, cwd=folder, env=environment(folder), **pipes) as process:
        while not (folder / "hanging").exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        out, err = process.communicate()
    assert process.returncode == status
    assert "Traceback" not in out + err
    if number == signal.SIGINT:
        assert re.search(r"^0 of 1 passed in \d+ s, 1 at a time: 1 not judged$", out, re.MULTILINE)
    assert gone(hanging(folder))
    assert list((folder / "tmp").iterdir()) == []


@pytest.mark.parametrize(
    ("name", "passed", "says"),
    [
        ("says_much", False, r"Traceback.*\n.*toys\.py(.*\n)*ValueError: x{300000}"),
        ("leaves_thread", True, ""),
        ("leaves_process", True, ""),
        ("leaves_fork", False, r"ended with exit code 3\nforked True"),
        ("prints_much", False, r"ended with exit code 3\n(y{999}\n){11}the end"),
        pytest.param("nameless_signal", False, r"died of signal \d+ \(unknown\)", marks=ONLY_ON_LINUX),
    ],
)
def test_a_verdict_is_there_when_it_is_and_ends_what_the_learner_has_started(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, passed: bool, says: str
) -> None:
    monkeypatch.setattr(examining, "GRACE_S", 0.1)
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "tmp"))
    monkeypatch.syspath_prepend(str(folder))
    (task,) = tasks.tasks(["bandit"], ["serial"])
    timeout_s, start_s = 100.0, time.monotonic()
    ((_, verdict),) = examining.examined([Examination(task, f"toys:{name}")], timeout_s=timeout_s)
    assert time.monotonic() - start_s < timeout_s
    assert verdict.passed == passed
    assert re.fullmatch(says, verdict.error)
    if (folder / "hanging").exists():
        assert gone(hanging(folder))
    assert list((folder / "tmp").iterdir()) == []


def test_the_exit_code_is_0_if_none_fails(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["ocean", "--trainer", "toys:train", "--backend", "serial", "--env"]
    assert main([*words, "bandit"]) == 0
    assert re.search(r"\n1 of 1 passed in \d+ s, 1 at a time: all passed\n$", capfd.readouterr().out)
    assert main([*words, "bandit", "ocean/mixed", "--jobs", "1"]) == 0
    assert re.search(r"\n1 of 2 passed in \d+ s, 1 at a time: 1 cannot be learnt by it\n$", capfd.readouterr().out)
    assert main([*words, "password"]) == 1
    assert re.search(r"\n0 of 1 passed in \d+ s, 1 at a time: 1 failed\n$", capfd.readouterr().out)


def test_what_a_learner_cannot_do_is_no_failure_while_it_is_watched(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = io.StringIO()
    monkeypatch.setattr(
        sys.modules["pufferlib.cli.ocean"], "new_console", lambda: Console(file=output, force_terminal=True)
    )
    assert main(["ocean", "--trainer", "toys:train", "--env", "mixed", "--watch"]) == 0
    assert output.getvalue() == "ocean/mixed  toys have no mixed actions\n"


def test_several_backends_and_seeds_are_distinguished(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["--env", "bandit", "--backend", "serial", "pool", "--seed", "7", "--seeds", "2", "--jobs", "2"]
    assert main(["ocean", "--trainer", "toys:train", *words]) == 0
    output = capfd.readouterr().out
    for name in ("serial  seed 7", "serial  seed 8", "pool  seed 7", "pool  seed 8"):
        assert f"ocean/bandit  {name}  " in output


@pytest.mark.long
@pytest.mark.slow
def test_the_demo_trainer_passes_bandit(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tasks.demo_settings("ocean/bandit")
    monkeypatch.setattr(tasks, "demo_settings", lambda env: {**settings, "total_steps": 8_000})
    assert main(["ocean", "--env", "bandit", "--backend", "serial"]) == 0
    match = re.search(
        r"^ocean/bandit  score (\S+), chance 0.250, bar 0.90  \S+ s  passed$", capfd.readouterr().out, re.MULTILINE
    )
    assert match and float(match[1]) >= 0.9
    assert not (folder / "runs").exists()


# --------------------------------------------------------------------------------------------- a learner of a script


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The module of a learner that uses nothing of pufferlib's but Gymnasium's face, and one thread."""
    num_threads = torch.get_num_threads()
    monkeypatch.syspath_prepend(str(ROOT))
    yield "examples.ocean_cleanrl"
    torch.set_num_threads(num_threads)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(("function", "passes"), [("train", True), ("train_naive", False)])
def test_a_script_passes_truncation_if_it_is_careful(script: str, function: str, passes: bool) -> None:
    (task,) = tasks.tasks(["truncation"], ["serial"])
    task = dataclasses.replace(task, settings={**task.settings, "total_steps": 20_000})
    verdict, _ = examine(task, learner(f"{script}:{function}"))
    assert verdict.passed == passes
    assert verdict.failed != passes


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ("multiagent", "one agent per environment, and ocean/multiagent has several"),
        ("population", "one agent per environment, and ocean/population has several"),
        ("spaces", "no nested spaces and no actions of several parts, as ocean/spaces has"),
        ("mixed", "no nested spaces and no actions of several parts, as ocean/mixed has"),
    ],
)
def test_a_script_says_what_it_cannot_learn(script: str, env: str, says: str) -> None:
    (task,) = tasks.tasks([env], ["serial"])
    with pytest.raises(tasks.Cannot, match=says):
        examine(task, learner(f"{script}:train"))


# ------------------------------------------------------------------------------------------------------ what one sees


VERDICTS = {
    "bandit": Verdict(1.0, 0.9, 12.3),
    "memory": Verdict(None, 0.9, 0.4, "toys have [no] memory", cannot=True),
    "squared": Verdict(0.25, 0.95, 5.6),
}


def seen(width: int, **how: bool) -> tuple[list[str], list[Examination]]:
    """What a console has been shown after each step, and the examinations."""
    console = Console(file=io.StringIO(), width=width, highlight=False, **how)  # type: ignore[arg-type]
    examinations = [Examination(task) for task in tasks.tasks(VERDICTS, ["serial"])]
    screens, before = [], 0

    def note() -> None:
        nonlocal before
        written = console.file.getvalue()  # type: ignore[attr-defined]
        screens.append(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written[before:]).replace("\r", ""))
        before = len(written)

    with Screen(examinations, console) as screen:
        for examination in examinations:
            screen.began(examination)
            note()
            screen.ended(examination, VERDICTS[examination.task.env.removeprefix("ocean/")])
            note()
    note()
    return screens, examinations


def test_a_terminal_shows_a_table_of_all() -> None:
    screens, _ = seen(100, force_terminal=True)
    first, last = screens[0], screens[-1]
    assert re.search(r"environment +chance +score +bar +seconds", first)
    assert re.search(r"ocean/bandit +0\.250 +… +0\.90 +0 +learning", first)
    assert re.search(r"ocean/memory +0\.250 +0\.90 *\n", first)
    assert re.search(r"ocean/bandit +0\.250 +1\.000 +0\.90 +12\.3 +passed", screens[1])
    assert re.search(r"ocean/memory +0\.250 +– +0\.90 +0\.4 +cannot", last)
    assert re.search(r"ocean/squared +0\.008 +0\.250 +0\.95 +5\.6 +FAILED", last)
    assert "\nocean/memory\ntoys have [no] memory\n" in last
    assert "\nocean/squared\nmay be: " in last and "\nocean/bandit\n" not in last


def test_elsewhere_there_is_a_line_for_each() -> None:
    lines, _ = seen(30, force_terminal=False)
    assert lines[:-1] == [
        *("", "ocean/bandit   score 1.000, chance 0.250, bar 0.90  12.3 s  passed\n"),
        *("", "ocean/memory   no score, chance 0.250, bar 0.90  0.4 s  cannot\n"),
        *("", "ocean/squared  score 0.250, chance 0.008, bar 0.95  5.6 s  FAILED\n"),
    ]
    assert lines[-1].startswith("\nocean/memory\ntoys have [no] memory\n\nocean/squared\nmay be: ")


def test_what_a_low_score_may_come_of() -> None:
    bandit, memory = tasks.tasks(["bandit,memory"], ["serial"])
    assert tasks.shortfall(bandit, 0.86).startswith("may be: an advantage or a reward of the wrong sign")
    assert tasks.shortfall(bandit, 0.87).startswith("near the bar: another seed may pass, or longer training\nmay be: ")
    assert tasks.shortfall(memory, 0.5).startswith("no policy without a memory passes\nmay be: a recurrent state")


def test_what_they_come_to() -> None:
    all_three = closing_line(list(VERDICTS.values()), 61.2)
    assert all_three == "1 of 3 passed in 61 s, 1 at a time: 1 failed, 1 cannot be learnt by it"
    assert closing_line([VERDICTS["bandit"]], 1, 3, jobs=2) == "1 of 4 passed in 1 s, 2 at a time: 3 not judged"
    assert closing_line([VERDICTS["bandit"]], 1) == "1 of 1 passed in 1 s, 1 at a time: all passed"


@pytest.mark.parametrize(
    ("cores", "words", "num_envs", "jobs"),
    [
        (1, [], 3, 1),
        (2, [], 3, 2),
        (64, [], 3, 2),
        (64, [], 1, 1),  # more than there are would say too much
        (1, ["--jobs", "3"], 3, 3),
        (64, ["--jobs", "1"], 3, 1),
    ],
)
def test_two_trainings_run_at_a_time_where_there_are_cores(
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    cores: int,
    words: list[str],
    num_envs: int,
    jobs: int,
) -> None:
    asked: list[int] = []

    def examined(examinations: list[Examination], **options: Any) -> Iterator[tuple[Examination, Verdict]]:
        asked.append(options["jobs"])
        for examination in examinations:
            options["began"](examination)
            yield examination, VERDICTS["bandit"]

    monkeypatch.setattr(examining, "examined", examined)
    monkeypatch.setattr(sys.modules["pufferlib.cli.ocean"], "available_cpus", lambda: cores)
    output = io.StringIO()
    monkeypatch.setattr(
        sys.modules["pufferlib.cli.ocean"], "new_console", lambda: Console(file=output, force_terminal=True, width=100)
    )
    assert main(["ocean", "--env", *list(VERDICTS)[:num_envs], *words]) == 0
    assert asked == [jobs]
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output.getvalue())
    assert re.search(rf"\n{jobs} training{'s' if jobs > 1 else ''} at a time *\n", text)
    assert re.search(rf"\n{num_envs} of {num_envs} passed in \d+ s, {jobs} at a time: all passed\n", text)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("jobs", "cores", "threads"), [(2, 4, 2), *(pytest.param(jobs, 2, 1, marks=pytest.mark.long) for jobs in (2, 3))]
)
def test_trainings_that_share_the_cores_share_threads(
    folder: Path, monkeypatch: pytest.MonkeyPatch, jobs: int, cores: int, threads: int
) -> None:
    monkeypatch.setattr(examining, "available_cpus", lambda: cores)
    monkeypatch.syspath_prepend(str(folder))
    (task,) = tasks.tasks(["bandit"], ["serial"])
    ((_, verdict),) = examining.examined([Examination(task, "toys:number_of_threads")], jobs=jobs)
    assert verdict.error.endswith(f"RuntimeError: {threads} threads")


@pytest.mark.parametrize("algorithm", ["sac", "td3"])
def test_off_policy_trainers_say_what_they_cannot_play(algorithm: str) -> None:
    (task,) = tasks.tasks(["bandit"], ["serial"])
    with pytest.raises(tasks.Cannot, match=rf"{algorithm.upper()} plays Boxes of floats, and not Discrete\(4\)"):
        learner(f"ocean.suite.demo:train_{algorithm}")(task)


@pytest.mark.parametrize(
    ("algorithm", "env", "message"),
    [
        ("qmix", "continuous", "QMIX plays Discrete actions, and not Box"),
        ("maddpg", "spaces", "MADDPG plays Boxes of floats, and not"),
    ],
)
def test_trainers_of_several_agents_say_what_they_cannot_play(algorithm: str, env: str, message: str) -> None:
    (task,) = tasks.tasks([env], ["serial"])
    with pytest.raises(tasks.Cannot, match=message):
        learner(f"ocean.suite.demo:train_{algorithm}")(task)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
    ("algorithm", "env"),
    [("sac", "continuous"), ("td3", "continuous"), ("qmix", "multiagent"), ("maddpg", "multiagent")],
)
def test_off_policy_trainers_solve_theirs(algorithm: str, env: str) -> None:
    (task,) = tasks.tasks([env], ["pool"])
    verdict, _ = examine(task, learner(f"ocean.suite.demo:train_{algorithm}"), 200)
    assert verdict.passed, verdict
