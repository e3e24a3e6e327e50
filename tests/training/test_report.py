"""What one sees of a run: the report with its dashboard and scalars, Weights & Biases, the run's folder, and curves."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import pufferlib
from cleanrl_demo.ppo import Config, train
from pufferlib.cli import main
from pufferlib.training import report as report_module
from pufferlib.training.dashboard import Dashboard, duration, number
from pufferlib.training.plot import Curve, band_of, curves_of, draw, folders_of, grouped, interval_radius, plot, read
from pufferlib.training.recent_statistics import NUM_KEYS, RecentStatistics
from pufferlib.training.report import PHASES, Report
from pufferlib.training.results import Episode, summary
from pufferlib.training.runs import git_state, new_run_folder, read_config, read_run
from pufferlib.training.tracking import Tracker
from pufferlib.vectorization.core.messages import CrashCause

pytestmark = pytest.mark.beside


class Clock:
    """Seconds that pass when they are told to."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(report_module, "perf_counter", clock)
    return clock


def plain() -> Console:
    return Console(file=io.StringIO(), force_terminal=False, width=200)


def ended(episodic_return: float = 1.0, env_id: int = 0, **others: Any) -> dict[str, Any]:
    return {"env_id": env_id, "env": True, "episode": {"r": episodic_return, "l": 7, "t": 0.1}, **others}


# ------------------------------------------------------------------------------------------------------- infos


def test_recent_episodes_are_the_last_hundred() -> None:
    statistics = RecentStatistics()
    assert statistics.charts() == {} and statistics.infos() == {}
    for episode in range(150):
        statistics.take([ended(float(episode), score=0.5)])
    assert statistics.charts() == {
        "charts/episodic_return": np.mean(range(50, 150)),
        "charts/episodic_length": 7.0,
        "charts/score": 0.5,
    }


@pytest.mark.parametrize(
    ("info", "means"),
    [
        ({"lives": 3}, {"lives": 3.0}),
        ({"won": True}, {"won": 1.0}),
        ({"won": np.bool_(True)}, {"won": 1.0}),
        ({"fuel": np.float32(0.5), "coins": np.int64(7)}, {"fuel": 0.5, "coins": 7.0}),
        ({"stats": {"kills": 2, "by": {"sword": 1}}}, {"stats/kills": 2.0, "stats/by/sword": 1.0}),
        ({"stats": {"score": 2, "env": 1}}, {"stats/score": 2.0, "stats/env": 1.0}),
        ({"final_info": {"lives": 3, "score": 1.0, "stats": {"kills": 2}}}, {"lives": 3.0, "stats/kills": 2.0}),
        ({"seen": np.zeros(3), "one": np.array([1.0]), "name": "x", "path": [1, 2], "none": None}, {}),
        ({"score": 1.0, "env_id": 3, "agent_id": 4, "restarted": "it raised", "final_obs": 3.0}, {}),
        ({"huge": 10**400}, {"huge": math.inf}),
    ],
)
def test_numbers_in_infos_are_kept(info: Mapping[str, Any], means: Mapping[str, float]) -> None:
    statistics = RecentStatistics()
    statistics.take([{"env_id": 0, **info}])
    assert statistics.infos() == {f"infos/{key}": value for key, value in means.items()}


def test_a_scalar_is_the_mean_of_its_last_hundred_values() -> None:
    statistics = RecentStatistics()
    for value in range(150):
        statistics.take([{"env_id": value % 4, "lives": value}])
    assert statistics.infos() == {"infos/lives": np.mean(range(50, 150))}


def test_ever_new_names_do_not_fill_the_memory() -> None:
    statistics = RecentStatistics()
    statistics.take([{"env_id": 0, f"monster {number}": number} for number in range(10 * NUM_KEYS)])
    statistics.take([{"env_id": 0, "monster 0": 2.0}])
    assert len(statistics.infos()) == NUM_KEYS
    assert statistics.infos()["infos/monster 0"] == 1.0


def test_restarts_are_counted_and_their_episodes_forgotten() -> None:
    statistics = RecentStatistics()
    statistics.take([{"env_id": 0, "score": 9.0}])
    statistics.take([{"env_id": number, "restarted": CrashCause("it died")} for number in range(2)])
    statistics.take([{"env_id": 0, "restarted": 3}, {"env_id": 1, "restarted": "by hand"}])  # its own infos
    statistics.take([ended(score=1.0)])
    assert statistics.charts()["charts/restarts"] == 2
    assert statistics.charts()["charts/score"] == 1.0


# ------------------------------------------------------------------------------------------------------ the report


def test_phases_share_the_time(clock: Clock) -> None:
    with Report("a run", 100, None, plain()) as report:
        assert report.shares() == {}
        clock.now += 5  # of no phase
        for _ in range(2):
            for seconds, name in enumerate(PHASES, 1):
                report.phase(name)
                clock.now += seconds
        assert report.shares() == {"environments": 1 / 6, "inference": 2 / 6, "learning": 3 / 6}
        with pytest.raises(pufferlib.PlanError, match="'learn' is not one of environments, inference, learning"):
            report.phase("learn")


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """The (step, value) of all TensorBoard scalars of a run."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {tag: [(point.step, point.value) for point in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_scalars_are_stored_by_their_names(tmp_path: Path, clock: Clock) -> None:
    with Report("a run", 100, tmp_path, plain()) as report:
        report.phase("learning")
        clock.now += 2
        report.infos([ended(3.0, lives=2), {"env_id": 1, "restarted": CrashCause("it raised")}])
        report.infos([])
        report.update(50, {"losses/policy_loss": 0.25})
    assert scalars(tmp_path) == {
        "losses/policy_loss": [(50, 0.25)],
        "charts/SPS": [(50, 25.0)],
        "charts/seconds": [(50, 2.0)],
        "charts/episodic_return": [(50, 3.0)],
        "charts/episodic_length": [(50, 7.0)],
        "charts/restarts": [(50, 1.0)],
        "charts/share_environments": [(50, 0.0)],
        "charts/share_inference": [(50, 0.0)],
        "charts/share_learning": [(50, 1.0)],
        "infos/lives": [(50, 2.0)],
    }


def test_a_resumed_run_goes_on_where_its_checkpoint_was(tmp_path: Path, clock: Clock) -> None:
    with Report("a run", 100, tmp_path / "run", plain()) as report:
        report.phase("environments")
        clock.now += 10
        report.phase("learning")
        report.infos([ended(3.0, score=0.5, lives=2), {"env_id": 1, "restarted": CrashCause("it raised")}])
        report.update(20, {})
        torch.save(report.state(), tmp_path / "state.pt")
        clock.now += 10
        report.infos([ended(9.0, lives=9)])
        report.update(40, {})  # lost: it comes after the checkpoint
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    clock.now += 1000  # while nothing ran
    with Report("a run", 100, tmp_path / "run", plain(), resumed_at=20) as report:
        report.restore(state)
        report.phase("learning")
        clock.now += 5
        report.update(30, {})
        assert report.dashboard().seconds_left == 35  # 70 steps at the speed since it was resumed
    stored = scalars(tmp_path / "run")
    assert stored["charts/SPS"] == [(20, 2.0), (30, 2.0)]
    assert stored["charts/seconds"] == [(20, 10.0), (30, 15.0)]
    assert stored["charts/share_learning"] == [(20, 0.0), (30, pytest.approx(1 / 3))]
    assert stored["charts/episodic_return"] == [(20, 3.0), (30, 3.0)]
    assert stored["charts/score"] == [(20, 0.5), (30, 0.5)]
    assert stored["charts/restarts"] == [(20, 1.0), (30, 1.0)]
    assert stored["infos/lives"] == [(20, 2.0), (30, 2.0)]


def test_the_state_of_numpys_numbers_is_plain(tmp_path: Path) -> None:
    report = Report("a run", 100, None, plain())
    report.infos([ended(np.float64(3), score=np.float32(1), lives=np.int64(2)), ended(np.float32(3))])
    torch.save(report.state(), tmp_path / "state.pt")
    again = Report("a run", 100, None, plain(), resumed_at=10)
    again.restore(torch.load(tmp_path / "state.pt", weights_only=True))
    assert list(again.recent_statistics.episodes) == [Episode(0, 3.0, 7, 1.0), Episode(0, 3.0, 7, None)]
    assert again.state()["recent"] == report.state()["recent"]


def test_present_speed_is_that_of_the_last_seconds(clock: Clock) -> None:
    with Report("a run", 10_000, None, plain()) as report:
        num_steps = 0
        for rate in (10, 100):
            for _ in range(30):
                clock.now += 1
                num_steps += rate
                report.update(num_steps, {})
        assert report.dashboard().steps_per_s == 100
        assert report.dashboard().mean_steps_per_s == 55


# --------------------------------------------------------------------------------------------------- in a terminal


def screen(width: int = 80, height: int = 50) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, height=height, color_system=None)


def test_lines_are_printed_where_rich_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in [name for name in sys.modules if name.partition(".")[0] == "rich"]:
        monkeypatch.setitem(sys.modules, module, None)
    with Report("ppo", 100, None) as report:
        report.update(100, {})
    assert report.live is None and capsys.readouterr().out.startswith("ppo  100%  100 steps  ")


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


DASHBOARD = Dashboard(
    "ocean/[squared]",
    54_321,
    120_000,
    seconds=3723,
    seconds_left=62,
    steps_per_s=16_912,
    mean_steps_per_s=16_700,
    shares={"environments": 0.23, "inference": 0.31, "learning": 0.46},
    episodes={"return": 1.95, "restarts": 2},
    learning={"explained variance": -0.5, "learning rate": 5e-4},
    infos={f"[infos]/{index}": index / 2 for index in range(20)},
    actors={"[node]-a": 4321.0, "[node]-a/0": 2160.5},
)


@pytest.mark.parametrize("width", [24, 40, 79, 80, 120, 200])
def test_dashboard_fits_and_shows_everything(width: int) -> None:
    console = screen(width)
    console.print(DASHBOARD)
    lines = written(console).splitlines()
    assert max(map(len, lines)) <= width - 3
    text_shown = " ".join(written(console).split())
    for text in ("45%", "23%", "31%", "46%", "1.950", "0.0005", "-0.500", "5.500"):
        assert text in text_shown
    assert "6.000" not in text_shown  # the thirteenth of users' scalars
    if width >= 40:
        for text in ("ocean/[squared]", "54,321 of 120,000 steps", "1:02:03 passed, 1:02 left",
                     "16,912 steps/s, mean 16,700", "explained variance", "[infos]/11", "12 of 20", "actors, steps/s",
                     "[node]-a/0", "4,321"):  # fmt: skip
            assert text in text_shown
    shared_lines = [line for line in lines if "environments" in line and "return" in line]
    assert bool(shared_lines) == (width >= 79)


def test_of_many_actors_only_the_nodes_are_shown() -> None:
    console, nodes = screen(), {f"node-{node}": 8.0 for node in range(3)}
    console.print(
        dataclasses.replace(DASHBOARD, actors={**nodes, **{f"node-{index % 3}/{index}": 2.0 for index in range(12)}})
    )
    assert "node-2" in written(console) and "/1" not in written(console).replace("[infos]/1", "")


def test_numbers_and_durations_are_short() -> None:
    assert [number(value) for value in (3, 1234, 0.0, 1.5, 0.00012, 1e-9, -123.45, 1e9, math.nan)] == [
        "3", "1,234", "0.0000", "1.500", "0.0001", "1.0e-09", "-123.5", "1.0e+09", "nan",
    ]  # fmt: skip
    assert [duration(seconds) for seconds in (0.4, 61, 3600, math.inf)] == ["0:00", "1:01", "1:00:00", "–"]


def test_a_terminal_shows_the_latest_of_everything(clock: Clock) -> None:
    console = screen()
    threads = threading.active_count()
    with Report("a run", 1000, None, console) as report:
        assert threading.active_count() == threads  # one more would keep workers from forking
        for steps in range(100, 1100, 100):
            report.phase("learning")
            clock.now += 1
            report.infos([ended(1.5, score=0.25, lives=steps / 100)])
            report.update(steps, {"losses/policy_loss": steps / 1000})
    last = written(console).rpartition("╭")[2]
    for text in ("100%", "1,000 of 1,000 steps", "0:10 passed, 0:00 left", "100 steps/s, mean 100", "policy loss",
                 "1.000", "1.500", "0.250", "lives", "5.500", "learning"):  # fmt: skip
        assert text in last


def test_it_is_drawn_four_times_a_second_at_most(clock: Clock) -> None:
    console = screen()
    with Report("a run", 100_000, None, console) as report:
        for _ in range(1000):
            clock.now += 0.01
            report.phase("inference")
            report.update(1, {})
    assert 30 <= written(console).count("╭") <= 43  # in 10 s, with the first and the last


def test_slow_drawing_takes_little_of_the_time(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = Report.dashboard

    def slowly(self: Report) -> Dashboard:
        clock.now += 0.1
        return draw(self)

    monkeypatch.setattr(Report, "dashboard", slowly)
    console = screen()
    with Report("a run", 100_000, None, console) as report:
        for _ in range(1000):
            clock.now += 0.1
            report.phase("inference")
    assert written(console).count("╭") <= 25  # in 100 s


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_terminal_is_left_as_it_was(error: type[BaseException], tmp_path: Path) -> None:
    console, streams = screen(), (sys.stdout, sys.stderr)
    with pytest.raises(error), Report("a run", 100, tmp_path, console) as report:
        report.update(50, {"losses/policy_loss": 0.5})
        raise error
    output = written(console)
    assert output.rindex("\x1b[?25h") > output.rindex("\x1b[?25l")  # the cursor
    assert "╰" in output and "50 of 100 steps" in output.rpartition("╭")[2]
    assert (sys.stdout, sys.stderr) == streams
    assert scalars(tmp_path)["losses/policy_loss"] == [(50, 0.5)]


def test_what_is_printed_meanwhile_stands_above(capsys: pytest.CaptureFixture[str]) -> None:
    console = screen()
    with Report("a run", 100, None, console):
        print("an environment of the user's says something")
    assert "an environment of the user's says something" in written(console)


@pytest.mark.parametrize("num_updates", [1, 3, 10, 1000])
def test_elsewhere_there_are_a_few_lines(num_updates: int) -> None:
    console = plain()
    with Report("a [run]", 1000, None, console) as report:
        report.infos([ended(1.5, score=0.25)])
        for update in range(1, num_updates + 1):
            report.update(1000 * update // num_updates, {})
    lines = written(console).splitlines()
    assert len(lines) == min(num_updates, 10)
    assert all("return 1.50  score 0.25" in line and line.startswith("a [run]  ") for line in lines)
    assert "100%  1,000 steps" in lines[-1] and lines[-1].endswith("0 s left")


def test_a_dumb_terminal_gets_lines_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    console = screen()
    with Report("a run", 10, None, console) as report:
        report.update(10, {})
    assert written(console).count("\n") == 1 and "\x1b" not in written(console)


# ----------------------------------------------------------------------------------------------- Weights & Biases


class FakeRun:
    def __init__(self, **arguments: Any) -> None:
        self.arguments, self.metrics, self.logged, self.exit_code = arguments, [], [], None

    def define_metric(self, *names: str, **options: str) -> None:
        self.metrics.append((names, options))

    def log(self, scalars: Mapping[str, float]) -> None:
        self.logged.append(scalars)

    def finish(self, exit_code: int) -> None:
        self.exit_code = exit_code


@pytest.fixture
def wandb_runs(monkeypatch: pytest.MonkeyPatch) -> list[FakeRun]:
    runs: list[FakeRun] = []

    def init(**arguments: Any) -> FakeRun:
        runs.append(FakeRun(**arguments))
        return runs[-1]

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init, Settings=dict))
    return runs


def test_tracking_sends_what_tensorboard_stores(tmp_path: Path, wandb_runs: list[FakeRun]) -> None:
    config = Config(backend="serial", num_envs=4, total_steps=300, eval_episodes=4, runs=str(tmp_path), track=True,
                    track_project="mine")  # fmt: skip
    folder = train(config).run_folder
    assert folder is not None
    (run,) = wandb_runs
    assert run.arguments["project"] == "mine"
    assert run.arguments["name"] == run.arguments["id"] == folder.name
    assert (run.arguments["dir"], run.arguments["resume"]) == (str(folder), "allow")
    assert run.arguments["config"] == dataclasses.asdict(config)
    assert run.arguments["settings"] == {"console": "off"}
    assert run.metrics == [(("steps",), {}), (("*",), {"step_metric": "steps"})]
    assert run.exit_code == 0
    sent = {
        tag: [(logged["steps"], pytest.approx(logged[tag])) for logged in run.logged if tag in logged]
        for tag in dict.fromkeys(tag for logged in run.logged for tag in logged if tag != "steps")
    }
    assert sent == scalars(folder)


def test_tracking_says_that_a_run_failed(tmp_path: Path, wandb_runs: list[FakeRun]) -> None:
    tracker = Tracker("mine", {})
    with pytest.raises(ValueError), Report("a run", 10, tmp_path, plain(), tracker=tracker):
        raise ValueError
    assert wandb_runs[0].exit_code == 1


def test_tracking_needs_wandb_and_a_folder_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    config = Config(track=True, runs=str(tmp_path / "runs"))
    with pytest.raises(pufferlib.MissingExtra, match=r'--track needs wandb: pip install "pufferlib\[track\]"'):
        train(config)
    with pytest.raises(pufferlib.PlanError, match="track=True with runs=None"):
        train(dataclasses.replace(config, runs=None))
    assert not (tmp_path / "runs").exists()


def test_wandb_is_imported_on_request_only() -> None:
    code = "import sys, cleanrl_demo.ppo; print({'wandb', 'tensorboard', 'matplotlib'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("set()\n", "")


# ------------------------------------------------------------------------------------------------------ run folders


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", folder, *identity, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_folder_has_what_is_needed_to_repeat_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "cleanrl_demo.ppo", "--env", "my game"])
    config = Config(seed=7, runs="runs", env_kwargs={"size": 3})
    folder = new_run_folder(config, "my/game", "ppo")
    again = new_run_folder(config, "my/game", "ppo")
    assert folder.parent == Path("runs") and folder.name.startswith("my-game__ppo__7__")
    assert again != folder
    assert read_config(folder) == json.loads(json.dumps(dataclasses.asdict(config)))
    run = read_run(folder)
    assert (run["env"], run["algorithm"]) == ("my/game", "ppo")
    assert run["command"] == "python -m cleanrl_demo.ppo --env 'my game'"
    assert set(run["versions"]) == {"python", "pufferlib", "torch", "numpy", "gymnasium"}
    assert run["versions"]["numpy"] == np.__version__
    recorded, imported = (version.partition("+")[0] for version in (run["versions"]["torch"], str(torch.__version__)))
    assert recorded == imported  # +cu130 and the like is not in the metadata of each of its wheels
    assert "pufferlib" in run["machine"] and run["started"][:2] == "20"
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "run.json"]


def test_git_revision_and_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    repository = tmp_path / "repository"
    repository.mkdir()
    assert git_state(repository) is None
    git(repository, "init", "--quiet")
    assert git_state(repository) is None  # nothing has been committed
    (repository / "a.py").write_text("1\n")
    git(repository, "add", "a.py")
    git(repository, "commit", "--quiet", "-m", "x")
    (repository / "runs").mkdir()
    (repository / "runs" / "new").write_text("what runs leave is no change")
    state = {"revision": git(repository, "rev-parse", "HEAD"), "dirty": False}
    assert git_state(repository / "runs") == state
    (repository / "a.py").write_text("2\n")
    assert git_state(repository) == {**state, "dirty": True}
    monkeypatch.setenv("PATH", "")
    assert git_state(repository) is None


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "one"
    run.mkdir(parents=True)
    with pytest.raises(pufferlib.PlanError, match=r"two is no run: there is no such folder$"):
        read_config(tmp_path / "two")
    with pytest.raises(pufferlib.PlanError, match=r"one is no run: it has no config\.json$"):
        read_config(run)
    for text, says in (("{", "is no JSON"), ("[]", "is no JSON object")):
        (run / "config.json").write_text(text)
        with pytest.raises(pufferlib.PlanError, match=says):
            read_config(run)
    with pytest.raises(pufferlib.PlanError, match=r"runs is no run: it has no config\.json; runs are in it, such as "):
        read_config(tmp_path / "runs")


def test_a_run_is_written_down_and_summed_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = Config(backend="serial", num_envs=4, total_steps=3_000, eval_episodes=20, runs=str(tmp_path))
    result = train(config)
    assert result.run_folder is not None and result.run_folder.parent == tmp_path
    assert result.run_folder.name.startswith("ocean-squared__ppo__1__")
    stored = scalars(result.run_folder)
    assert set(stored) == {
        *(f"charts/{name}" for name in ("episodic_return", "episodic_length", "score", "SPS", "learning_rate")),
        *(f"charts/share_{name}" for name in PHASES),
        *(f"losses/{name}" for name in ("policy_loss", "value_loss", "entropy", "approx_kl", "clipfrac")),
        "losses/explained_variance",
        "charts/seconds",
    }
    assert all(0.01 < stored[f"charts/share_{name}"][-1][1] < 0.99 for name in PHASES)
    assert "100%" in capsys.readouterr().out
    text = summary(config, result)
    assert f"score {result.score:.3f}, mean return {result.mean_return:.3f} over 20 fresh episodes" in text
    assert "puffer train" in text


# ----------------------------------------------------------------------------------------------------------- curves


@pytest.fixture
def new_run(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Makes run folders with a scalar: new_run(seed, values, …) has one each ten steps, and each second."""
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report_module, "perf_counter", clock)

        def new_run(seed: int, values: Iterator[float], env: str = "a/game", algorithm: str = "ppo", **settings: Any):
            folder = new_run_folder(Config(seed=seed, runs=str(tmp_path / "runs"), **settings), env, algorithm)
            with Report("a run", 100, folder, plain()) as report:
                for index, value in enumerate(values, 1):
                    clock.now += 1
                    report.update(10 * index, {"charts/episodic_return": value})
            return folder

        yield new_run


def test_runs_that_differ_in_their_seeds_only_are_one_line(new_run: Callable[..., Path]) -> None:
    values = [1.0, 2.0]
    folders = [
        new_run(1, values),
        new_run(2, values, eval_episodes=3, track_project="other"),
        new_run(1, values, learning_rate=0.5),
        new_run(1, values, learning_rate=0.5),
        new_run(1, values, env="b/game", policy_kwargs={"hidden_size": 8}),
        new_run(1, values, algorithm="dqn"),
    ]
    curves = curves_of(folders, "charts/episodic_return", "steps")
    assert {label: len(members) for label, members in grouped(curves).items()} == {
        "a/game, dqn: 1 seed": 1,
        "a/game, ppo, learning_rate=0.001: 2 seeds": 2,
        "a/game, ppo, learning_rate=0.5: 2 runs": 2,
        "b/game, ppo: 1 seed": 1,
    }


def test_a_run_from_before_run_json_has_its_algorithm_in_its_name(new_run: Callable[..., Path]) -> None:
    folder = new_run(1, [1.0], env="ocean/squared")
    (folder / "run.json").unlink()
    assert list(grouped(curves_of([folder], "charts/episodic_return", "steps"))) == ["ocean/squared, ppo: 1 seed"]


def test_curves_are_read_over_steps_and_seconds(new_run: Callable[..., Path]) -> None:
    folder = new_run(1, [1.0, 2.0, 4.0])
    curve = read(folder, "charts/episodic_return")
    assert (curve.steps.tolist(), curve.values.tolist()) == ([10, 20, 30], [1.0, 2.0, 4.0])
    (curve,) = curves_of([folder], "charts/episodic_return", "seconds").values()
    assert (curve.steps.tolist(), curve.values.tolist()) == ([1.0, 2.0, 3.0], [1.0, 2.0, 4.0])


def curves(*rows: list[float]) -> list[Curve]:
    return [Curve(np.arange(1, len(row) + 1) * 10, np.array(row)) for row in rows]


def test_one_run_is_a_line_and_two_have_a_range() -> None:
    band = band_of("x: 1 seed", curves([1.0, 3.0]))
    assert band.label == "x: 1 seed"
    assert np.array_equal(band.low, band.high)
    band = band_of("x: 2 seeds", curves([1.0, 3.0, 9.0], [2.0, 7.0]))
    assert band.label == "x: 2 seeds, the lower to the higher"
    assert (band.x[0], band.x[-1]) == (10, 20)  # not where only one has been
    assert (band.low[-1], band.mean[-1], band.high[-1]) == (3.0, 5.0, 7.0)


def test_three_seeds_have_an_interval() -> None:
    band = band_of("x: 3 seeds", curves([1.0, 0.0], [2.0, 0.0], [6.0, 0.0]))
    assert band.label == "x: 3 seeds, 95% interval of the mean"
    # Student's 0.975 quantile with two degrees is 4.3027; the variance of 1, 2, 6 is 7.
    assert band.mean[0] == 3
    np.testing.assert_allclose([band.high[0] - 3, 3 - band.low[0]], 4.3027 * math.sqrt(7 / 3), rtol=1e-4)
    assert band.low[-1] == band.high[-1] == 0


def test_intervals_hold_the_mean_as_often_as_they_say() -> None:
    samples = np.random.default_rng(0).normal(size=(5, 4000))
    held = np.abs(samples.mean(0)) < interval_radius(samples)
    assert held.mean() == pytest.approx(0.95, abs=0.015)


def test_runs_without_a_common_stretch_are_refused() -> None:
    late = Curve(np.array([100, 200]), np.array([1.0, 2.0]))
    with pytest.raises(pufferlib.PlanError, match="one ends at 20 before another begins at 100"):
        band_of("x", [*curves([1.0, 2.0]), late])


def test_puffer_plot(new_run: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str],
                     monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    for seed in (1, 2, 3):
        new_run(seed, [1.0, float(seed)])
    monkeypatch.chdir(tmp_path)
    for out, words in (("a.png", ["runs/*"]), ("new/b.png", [*map(str, folders_of(["runs/*"])), "--x", "seconds"])):
        assert main(["plot", *words, "--out", out]) == 0
        assert capsys.readouterr().out == f"drawn in {out}\n"
        assert Path(out).read_bytes().startswith(b"\x89PNG")
    assert main(["plot", "runs/*", "--tag", "losses/none"]) == 1
    said = capsys.readouterr().err
    assert "has no scalar losses/none; those are charts/SPS, charts/episodic_return, charts/seconds" in said
    assert "seconds; the same goes for 2 other runs\n" in said
    assert not Path("curves.png").exists()
    assert len(folders_of(["runs/*", "runs/a*"])) == 3
    with pytest.raises(pufferlib.PlanError, match="there are no runs to plot"):
        plot([], Path("c.png"))
    with pytest.raises(pufferlib.PlanError, match="x='days' is not one of steps, seconds"):
        plot(folders_of(["runs/*"]), Path("c.png"), x="days")


def test_runs_that_died_at_once_are_left_out_of_a_plot(new_run: Callable[..., Path], tmp_path: Path,
                     capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    unstored = new_run_folder(Config(runs="runs"), "a/game", "ppo")  # no file of TensorBoard's
    empty = new_run(1, []).relative_to(tmp_path)  # one with nothing in it
    for axis in ("steps", "seconds"):
        assert main(["plot", str(unstored), "runs/*", "--x", axis]) == 1
        says = (
            "has no scalar charts/episodic_return; nothing has been stored in it yet; the same goes for 1 other run\n"
        )
        assert says in capsys.readouterr().err
    complete = new_run(2, [1.0, 2.0])
    assert main(["plot", str(unstored), str(complete), str(empty)]) == 0
    left_out, drawn = capsys.readouterr().out.splitlines()
    assert left_out == f"left out, without charts/episodic_return: {unstored}, {empty}" and drawn.startswith("drawn")
    (tmp_path / "runs" / "none").mkdir()
    assert main(["plot", "runs/*"]) == 1
    assert "runs/none is no run: it has no config.json" in capsys.readouterr().err


def test_a_run_without_scalars_says_so(tmp_path: Path) -> None:
    folder = new_run_folder(Config(runs=str(tmp_path)), "a/game", "ppo")
    with pytest.raises(pufferlib.PlanError, match="has no scalar charts/x; nothing has been stored in it yet"):
        read(folder, "charts/x")


def test_plots_need_matplotlib(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(pufferlib.MissingExtra, match="a plot needs matplotlib: pip install"):
        draw([], tmp_path / "a.png", "steps", "return")


def test_configurations_that_json_cannot_hold_become_texts(tmp_path: Path) -> None:
    folder = new_run_folder(Config(runs=str(tmp_path), env_kwargs={"game": len}), "a/game", "ppo")
    assert json.loads((folder / "config.json").read_text())["env_kwargs"] == {"game": "<built-in function len>"}
