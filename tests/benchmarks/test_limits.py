"""What limits.py measures makes sense, and what train.py compares does the same work."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

from benchmarks import limits, train
from pufferlib.layout import observation_layout
from pufferlib.models import make_policy

pytestmark = pytest.mark.beside

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SAMPLE_S = 0.001


@pytest.fixture
def trainers(monkeypatch):
    """What contestants have on their path."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield
    for name in [name for name in sys.modules if name == "envs" or name.split(".")[0] == "trainers"]:
        del sys.modules[name]


# ------------------------------------------------------------------------------------------------------- the floors


def test_samples_are_kept_and_summed_up():
    durations = iter([3e-6, 1e-6, 2e-6, 5e-9, 4e-9, 6e-9])
    rows = [limits.Row("first", "one", "s", lambda seconds: next(durations))]
    limits.measure(rows, 3, SAMPLE_S)
    other = limits.Row("second", "one", "s", lambda seconds: next(durations))
    limits.measure([other], 3, SAMPLE_S)
    assert rows[0].facts() == {
        "group": "first",
        "name": "one",
        "unit": "s",
        "median": 2e-6,
        "min": 1e-6,
        "max": 3e-6,
        "samples": [3e-6, 1e-6, 2e-6],
    }
    assert limits.table([*rows, other]).splitlines()[2:] == [
        "| first: one | 2 µs (1 – 3) |",
        "| second: one | 5 ns (4 – 6) |",
    ]


def test_rows_take_turns():
    names = []
    rows = [limits.Row("", name, "s", lambda seconds, name=name: names.append(name) or 1.0) for name in "ab"]
    limits.measure(rows, 3, SAMPLE_S)
    assert names == ["a", "b"] * 3


@pytest.fixture
def short_pause(monkeypatch):
    monkeypatch.setattr(limits, "PAUSE_S", 0.01)


def check(rows):
    """Every row has another name, a positive figure, and a line in the table."""
    limits.measure(rows, 1, SAMPLE_S)
    assert len({(row.group, row.name) for row in rows}) == len(rows)
    assert all(0 < row.samples[0] < 1 for row in rows if row.unit == "s"), rows
    assert all(row.samples[0] > 100 for row in rows if row.unit != "s"), rows
    assert limits.table(rows).count("\n") == len(rows) + 1
    json.dumps([row.facts() for row in rows])


def test_loops():
    rows = limits.loop_rows()
    check(rows)
    assert [row.unit for row in rows] == ["steps/s"] * 3


def test_python():
    check(limits.python_rows())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="CPUs can be chosen, and eventfd is there, on Linux")
@pytest.mark.usefixtures("short_pause")
def test_processes():
    rows = limits.process_rows(num_workers=(1, 3))
    check(rows)
    links = {"pipe", "eventfd", "flag and sched_yield"}
    assert {*links, "1 worker", "3 workers", "Python, pipes"} == {row.name for row in rows}


@pytest.mark.skipif(shutil.which("cc") is None or not sys.platform.startswith("linux"), reason="needs cc and futexes")
@pytest.mark.usefixtures("short_pause")
def test_the_program():
    with limits.compiled() as program:
        rows = limits.program_rows(program, num_workers=(1, 3))
        check(rows)
    assert not program.exists()


def test_without_a_compiler(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with limits.compiled() as program:
        assert program is None


# ------------------------------------------------------------------------------------------------------ end to end


@pytest.mark.parametrize("shape", [(4,), (4, 84, 84)])
def test_networks_are_the_same(trainers, shape):
    from trainers import ours as contestant
    from trainers.network import Agent, features

    if len(shape) == 1:
        space = gymnasium.spaces.Box(-np.inf, np.inf, shape, np.float32)
        observations = 100 * torch.randn((5, *shape))
    else:
        space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
        observations = torch.randint(0, 256, (5, *shape), dtype=torch.uint8)
    settings = replace(train.SETTINGS["breakout"], hidden_size=32)
    theirs = Agent(space, 3, settings)
    kwargs = contestant.config_of(settings, {}).policy_kwargs
    ours = make_policy("default", observation_layout(space), gymnasium.spaces.Discrete(3), **kwargs)
    parts = [part for part in ours.parameters() if part.numel()]  # without the deviations of continuous actions
    for parameter, other in zip(parts, theirs.parameters(), strict=True):
        assert parameter.shape == other.shape
        other.data = parameter.data
    logits, values, _ = ours(observations, None, None)
    log_probs = theirs.actor(features(observations)).log_softmax(1)
    torch.testing.assert_close(logits.log_softmax(1), log_probs)
    torch.testing.assert_close(values, theirs.critic(features(observations)).squeeze(1))


@pytest.mark.parametrize("env", train.SETTINGS)
def test_our_trainer_gets_all_settings(trainers, env):
    from trainers import ours

    settings = replace(train.SETTINGS[env], seed=9, gamma=0.5, num_epochs=3, torch_threads=2)
    for name in ("ours", "ours, portable"):
        config = vars(ours.config_of(settings, train.CONTESTANTS[name].options[env]))
        config = {**config, **config["policy_kwargs"]}
        assert {key: config[key] for key in vars(settings)} == vars(settings)
        assert config["backend"] in ("serial", "multiprocessing", "pool")


def outcome(seed, steps_per_s, **others):
    settings = {"seed": seed, "gamma": 0.9}
    return {
        "settings": settings,
        "num_parameters": 7,
        "torch_threads": 1,
        "versions": {"torch": "2.13.0"},
        "steps_per_s": steps_per_s,
        "final_return": 10.0 * seed,
        "setup_s": 2.0,
        **others,
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("settings", {"seed": 1, "gamma": 0.8}),
        ("num_parameters", 8),
        ("torch_threads", 2),
        ("versions", {"torch": "2.12.0"}),
    ],
)
def test_who_does_something_else_is_found_out(name, value):
    train.agree([outcome(1, 5.0), outcome(1, 9.0)])
    with pytest.raises(train.Failed, match=r"the runs (differ|have different versions)"):
        train.agree([outcome(1, 5.0), outcome(1, 9.0, **{name: value})])


def test_runs_of_one_seed_are_compared():
    ours = {"name": "ours", "runs": [outcome(1, 4000.0), outcome(2, 9000.0), outcome(3, 6000.0)]}
    theirs = {"name": "theirs", "runs": [outcome(3, 2000.0), outcome(1, 5000.0), outcome(2, 3000.0)]}
    _, _, first, second = train.table([ours, theirs]).splitlines()
    assert first == "| ours | 6,000 (4,000 – 9,000) |  | mean 20.0 (10.0 – 30.0) | 2.0 |"
    assert "| 3.00 (0.80 – 3.00), ahead in 2 of 3 |" in second


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where a contestant of the test's own is looked for."""
    monkeypatch.setattr(train, "FOLDER", tmp_path)
    (tmp_path / "trainers").mkdir()
    return tmp_path / "trainers"


def test_a_contestant_gets_its_task_and_answers(folder):
    program = "import json, os, sys\nprint('noise')\nprint(json.dumps([sys.argv[1], os.environ['WISH'], os.getcwd()]))"
    (folder / "echo.py").write_text(program)
    contestant = train.Contestant("none", "echo", {"cartpole": {"backend": "pool"}}, variables={"WISH": "0"})
    settings = train.SETTINGS["cartpole"]
    request, wish, where = train.run(contestant, settings, Path(sys.executable))
    assert json.loads(request)["settings"]["total_steps"] == settings.total_steps
    assert json.loads(request)["options"] == {"backend": "pool"}
    assert wish == "0"
    assert not Path(where).exists()


def test_a_contestant_that_fails_says_why(folder):
    (folder / "broken.py").write_text("raise RuntimeError('no such thing')")
    contestant = train.Contestant("none", "broken", {"cartpole": {}})
    with pytest.raises(train.Failed, match="no such thing"):
        train.run(contestant, train.SETTINGS["cartpole"], Path(sys.executable))
