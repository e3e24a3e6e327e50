"""autotune: it finds the fastest plan, says why, keeps to what is given, to the budget and to the memory."""

from __future__ import annotations

import errno
import importlib
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mock_envs import TagEnv
from timing_tools import Sleeper, stats_of

import pufferlib
from pufferlib.errors import PlanError, PlatformError, WorkerError
from pufferlib.telemetry.throughput_model import Arrangement, steps_per_s
from pufferlib.tuning.autotune import autotune
from pufferlib.tuning.plans import Row, TunedPlan, load_plan, rate_text
from pufferlib.tuning.trial import Outcome, Trial, TrialRunner
from pufferlib.util.memory import memory_at_hand, memory_nbytes
from pufferlib.util.toml import read_toml, to_toml

pytestmark = pytest.mark.beside
MIB = 1 << 20
module = importlib.import_module("pufferlib.tuning.autotune")  # which has a function of that name


class World:
    """Stands in for laboratories: plans reach what the model says of these step times, and time is a number.

    overhead_s: what a batch costs with processes; row_s: what a row costs on serial.
    """

    def __init__(self, durations: Any, cpu: float, cores: int = 2, **costs: float) -> None:
        self.durations, self.cpu, self.cores = durations, cpu, cores
        self.overhead_s, self.row_s = costs.get("overhead_s", 50e-6), costs.get("row_s", 2e-6)
        self.env_nbytes, self.process_nbytes = costs.get("env_nbytes", 10 * MIB), costs.get("process_nbytes", 20 * MIB)
        self.start_s = costs.get("start_s", 0.01)
        self.broken: dict[str, str] = {}
        self.load = stats_of(durations, steps_per_s=1.0, cpu=cpu, cores=cores).load
        self.now = 0.0
        self.tried: list[Mapping[str, Any]] = []
        self.most_nbytes = 0.0

    def memory(self, plan: Mapping[str, Any]) -> float:
        return plan["num_envs"] * self.env_nbytes + plan.get("num_workers", 0) * self.process_nbytes

    def rate(self, plan: Mapping[str, Any], learner_s: float) -> float:
        load, batch_size = self.load, plan["batch_size"]
        if plan["backend"] == "serial":
            return batch_size / (batch_size * (load.row_s + self.row_s) + learner_s)
        arrangement = Arrangement(
            plan["num_envs"],
            plan["num_workers"],
            batch_size,
            self.cores,
            think_s=learner_s,
            overhead_s=self.overhead_s,
            first_finished=plan["backend"] == "pool",
        )
        return steps_per_s(load, arrangement)

    def try_out(self, trial: Trial) -> Outcome:
        plan = trial.plan
        self.tried.append(plan)
        self.most_nbytes = max(self.most_nbytes, self.memory(plan))
        starting = self.start_s * -(-plan["num_envs"] // plan.get("num_workers", 1))
        self.now += starting + trial.windows * trial.seconds
        if plan["backend"] in self.broken:
            return Outcome(self.broken[plan["backend"]])
        rate = self.rate(plan, trial.learner_s)
        steps = np.resize(self.durations, (plan["num_envs"], 60))
        counts = (plan["backend"], plan["num_envs"], plan.get("num_workers", 1), plan["batch_size"])
        stats = stats_of(steps, steps_per_s=rate, cpu=self.cpu, cores=self.cores, plan=counts)
        return Outcome("", (rate, 0.9 * rate, 1.1 * rate), starting, round(self.memory(plan)), stats)

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def tuned(monkeypatch: pytest.MonkeyPatch, world: World, **kwargs: Any) -> TunedPlan:
    monkeypatch.setattr(module, "TrialRunner", lambda arguments: world)
    monkeypatch.setattr(module, "monotonic", lambda: world.now)
    monkeypatch.setattr(module, "available_cpus", lambda: world.cores)
    return autotune("ocean/squared", **{"max_memory": "100 GB", **kwargs})


EXPONENTIAL = np.random.default_rng(0).exponential(0.01, (8, 200))
EVEN = np.full((8, 200), 0.01)
TRIVIAL = np.full((8, 200), 1e-6)


def test_serial_is_right_for_steps_that_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = tuned(monkeypatch, World(TRIVIAL, 1.0, overhead_s=400e-6), num_envs=8)
    assert dict(plan) == {"backend": "serial", "num_envs": 8, "batch_size": 8}
    assert plan.reason.startswith("serial is right: a step takes 1.00 µs, spread by 0 %, on 2 cores; ")
    assert "the next, makes 0.0" in plan.reason


def test_serial_is_right_on_one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = tuned(monkeypatch, World(EVEN, 1.0, cores=1), num_envs=8)
    assert plan["backend"] == "serial" and "on 1 core" in plan.reason


def test_a_pool_is_right_for_steps_that_sleep_and_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = tuned(monkeypatch, World(EXPONENTIAL, 0.0), batch_size=8)
    assert plan["backend"] == "pool" and plan["batch_size"] == 8
    assert plan["num_envs"] == plan["num_workers"] == 32
    assert "spread by 9" in plan.reason and "times serial" in plan.reason


def test_multiprocessing_is_right_for_even_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = tuned(monkeypatch, World(EVEN, 1.0, cores=4), num_envs=8, batch_size=8)
    assert plan["backend"] == "multiprocessing" and plan["num_workers"] in (4, 8)
    assert "4.0 times serial" in plan.reason


@pytest.mark.parametrize(
    "arguments",
    [
        {"backend": "pool", "num_workers": 3},
        {"num_envs": 10, "batch_size": 3},
        {"backend": "serial", "batch_size": 5},
        *(
            pytest.param(arguments, marks=pytest.mark.long)
            for arguments in ({"backend": "multiprocessing"}, {"num_envs": 10}, {"num_workers": 40}, {"num_envs": 1})
        ),
    ],
)
def test_what_is_given_stays(arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(EXPONENTIAL, 0.5)
    plan = tuned(monkeypatch, world, **arguments)
    for tried in [*world.tried[2:], plan]:  # the first two are looks at the environment
        for name, value in arguments.items():
            if name in tried or tried["backend"] != "serial":
                assert tried[name] == value
    Plan = importlib.import_module("pufferlib.vectorization.core.plan").Plan
    for tried in world.tried:
        Plan.of(tried["num_envs"], tried.get("num_workers"), tried["batch_size"])


@pytest.mark.parametrize("max_memory", [200 * MIB, 600 * MIB, "1.5 GiB"])
def test_memory_is_kept_to(max_memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(EXPONENTIAL, 0.0)
    plan = tuned(monkeypatch, world, batch_size=8, max_memory=max_memory)
    limit = 1.5 * 1024 * MIB if isinstance(max_memory, str) else max_memory
    assert 0.25 * limit < world.most_nbytes <= limit
    assert world.memory(plan) <= limit
    assert any(row.untried.startswith("of more than") for row in plan.table) == (limit < 1000 * MIB)


def test_memory_that_grows_is_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where plans take more than a look had promised, later ones are estimated by that."""
    world = World(EXPONENTIAL, 0.0)
    true = world.memory
    monkeypatch.setattr(world, "memory", lambda plan: true(plan) * (1 if len(world.tried) <= 2 else 2))
    tuned(monkeypatch, world, batch_size=8, max_memory=700 * MIB)
    assert world.most_nbytes <= 2 * 700 * MIB
    assert sum(world.memory(plan) > 700 * MIB for plan in world.tried[2:]) <= 1


def test_nothing_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        PlanError, match=r"nothing fits into max_memory=50 MiB: the smallest plan, serial 16/1/16, would"
    ):
        tuned(monkeypatch, World(EVEN, 1.0), num_envs=16, max_memory=50 * MIB)
    with pytest.raises(PlanError, match=r"nothing fits into max_memory=5 MiB: one environment takes 10 MiB; raise"):
        tuned(monkeypatch, World(EVEN, 1.0), max_memory=5 * MIB)


def test_one_process_more_may_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(EXPONENTIAL, 0.0, process_nbytes=500 * MIB)
    assert tuned(monkeypatch, world, num_envs=8, max_memory=100 * MIB)["backend"] == "serial"


@pytest.mark.parametrize("budget_s", [3.0, 10.0, 60.0])
def test_the_budget_is_kept_to(budget_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(EXPONENTIAL, 0.0)
    plan = tuned(monkeypatch, world, budget_s=budget_s)
    assert world.now <= 1.05 * budget_s
    assert any(row.untried == "for want of time" for row in plan.table) == (budget_s < 60)


def test_environments_that_start_slowly_are_tried_less(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(EXPONENTIAL, 0.0, start_s=4.0)
    plan = tuned(monkeypatch, world, budget_s=30, num_envs=8)
    assert world.now < 45
    assert len(world.tried) < 5 and plan["num_envs"] == 8


def test_a_learner_that_takes_long_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = tuned(monkeypatch, World(EVEN, 0.0), batch_size=4, learner_s=lambda batch_size: 0.01)
    assert plan["backend"] == "pool"  # it steps while the learner thinks, though all steps take as long
    assert max(row.median for row in plan.table) < 4 / 0.01


def test_a_plan_that_fails_costs_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(EXPONENTIAL, 0.0)
    world.broken["pool"] = "ValueError: only one of us at a time"
    plan = tuned(monkeypatch, world, num_envs=8)
    assert plan["backend"] == "multiprocessing"
    assert any(row.failed == world.broken["pool"] for row in plan.table)
    world.broken["multiprocessing"] = "KeyError: 'sword'"
    with pytest.raises(WorkerError, match=r"the environment cannot be tried: KeyError: 'sword'; `puffer check` says"):
        tuned(monkeypatch, world, num_envs=8)


def test_the_table_is_reported_as_it_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    plan = tuned(
        monkeypatch, World(EXPONENTIAL, 0.0), after=lambda rows: seen.append(sum(bool(row.steps_per_s) for row in rows))
    )
    assert seen == sorted(seen) and seen[0] == 1
    assert seen[-1] == sum(bool(row.steps_per_s) for row in plan.table)
    medians = [row.median for row in plan.table]
    assert medians == sorted(medians, reverse=True)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"budget_s": 0}, "budget_s=0 leaves no time"),
        ({"backend": "threads"}, "backend='threads' is not one of"),
        ({"num_envs": 4, "batch_size": 8}, "batch_size=8 is more than num_envs=4"),
        ({"num_envs": 4, "num_workers": 8}, "num_workers=8 is more than num_envs=4"),
        ({"num_envs": 3, "env_kwargs": [{}, {}]}, "num_envs=3, but env_kwargs lists 2"),
        ({"max_memory": "lots"}, "max_memory='lots' is no amount of memory"),
        ({"max_memory": 0}, "max_memory=0 is no amount of memory"),
    ],
)
def test_impossible_arguments(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanError, match=says):
        autotune("ocean/squared", **arguments)


# ---------------------------------------------------------------------------------------------- plans in files


def a_plan(**arguments: Any) -> TunedPlan:
    rows = [
        Row(
            {"backend": "pool", "num_envs": 4, "num_workers": 2, "batch_size": 2}, 9.0, 30 * MIB, (9.0, 8.0, 10.0), 0.5
        ),
        Row({"backend": "serial", "num_envs": 4, "batch_size": 4}, 5.0, MIB, failed="KeyError: 'swörd'"),
        Row({"backend": "serial", "num_envs": 8, "batch_size": 8}, 5.0, MIB, untried="for want of time"),
    ]
    return TunedPlan(arguments, rows, "pool is right.")


def test_a_plan_reads() -> None:
    assert str(a_plan()).splitlines() == [
        "plan (environments/workers/batch)  steps/s             start  memory",
        "pool 4/2/2                            9.00  8.00–10.0  0.5 s  30 MiB",
        "serial 4/1/4                                                   1 MiB  KeyError: 'swörd'",
        "Not tried: 1 for want of time.",
        "",
        "pool is right.",
    ]


def test_a_plan_is_arguments_of_make_and_survives_a_file(tmp_path: Path) -> None:
    plan = a_plan(backend="pool", num_envs=4, num_workers=2, batch_size=2, backend_kwargs={"spin": 0})
    path = plan.save(tmp_path / "plan.toml")
    assert load_plan(path) == dict(plan)
    assert "# pool is right." in path.read_text(encoding="utf-8")
    with pufferlib.make("ocean/squared", **load_plan(path)) as vec:
        assert vec.backend == "pool" and vec.num_envs == 4


def test_toml_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "values.toml"
    values = {"context": 'a "quoted"\n\\ tab\t \x7f \x01 🐡', "num_envs": 3, "backend_kwargs": {"x": 0.1, "y": True}}
    path.write_text(to_toml({**values, "seed": None}), encoding="utf-8")
    assert load_plan(path) == values
    nested = {"ids": [0, 2], "table": {"a.b c": {"x": 1e-300, "words": ["é", "\n"]}, "bare-key_1": -1}, "empty": []}
    path.write_text(to_toml(nested), encoding="utf-8")
    assert read_toml(path, "") == nested
    scalars = {"a": np.float64(0.1), "b": [np.int64(3), np.float32(0.25)], "c": {"d": np.bool_(True)}}
    path.write_text(to_toml(scalars), encoding="utf-8")
    assert read_toml(path, "") == {"a": 0.1, "b": [3, 0.25], "c": {"d": True}}


def test_a_file_that_is_no_plan(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    with pytest.raises(PlanError, match=r"plan.toml cannot be read .*; TunedPlan.save writes such files"):
        load_plan(path)
    path.write_text("num_envs = ")
    with pytest.raises(PlanError, match="is no TOML"):
        load_plan(path)
    path.write_text("num_envs = 3\nlearning_rate = 1.0\nenv = 'x'\n")
    with pytest.raises(PlanError, match="has env, learning_rate, but a plan has backend, num_envs"):
        load_plan(path)


@pytest.mark.parametrize(("rate", "text"), [(9.0, "9.00"), (999.6, "1.00k"), (30_440, "30.4k"), (999.6e6, "1.00G")])
def test_rates_have_three_digits(rate: float, text: str) -> None:
    assert rate_text(rate) == text


# ------------------------------------------------------------------------------------------ in real processes


def exits() -> Any:
    os._exit(3)


def hangs() -> Any:
    time.sleep(100)


def kills_itself() -> Any:
    print("out of bananas", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def ends_by_a_signal_without_a_name() -> Any:
    os.kill(os.getpid(), signal.SIGRTMIN + 1)


def raises() -> Any:
    raise KeyError("no such ROM")


SERIAL = {"backend": "serial", "num_envs": 1, "batch_size": 1}
LIMIT_S = 60.0
SHORT = Trial(SERIAL, 0.01, 1, 0.0, LIMIT_S)


def test_a_process_that_the_system_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr("pufferlib.vectorization.processes.sandbox.subprocess.Popen", refused)
    with TrialRunner({"env": raises}) as trial_runner:
        with pytest.raises(PlatformError, match=r"no process can be started \(Resource temporarily unavailable\); end"):
            trial_runner.try_out(SHORT)


@pytest.mark.slow
def test_a_trial_runner_survives_what_environments_do() -> None:
    for creator, says in (
        (raises, "KeyError: 'no such ROM'"),
        (exits, "the process died (exit code 3)"),
        (kills_itself, "the process died (signal 9 (SIGKILL)): out of bananas"),
        (ends_by_a_signal_without_a_name, f"the process died (signal {signal.SIGRTMIN + 1} (unknown))"),
        (hangs, "it did not end within 1 s"),
    ):
        with TrialRunner({"env": creator}) as trial_runner:
            trial = SHORT._replace(limit_s=1.0) if creator is hangs else SHORT
            assert trial_runner.try_out(trial).error == says
            if creator is exits:
                assert trial_runner.try_out(trial).error == says  # by another process


@pytest.mark.slow
def test_a_trial_runner_plays_plans() -> None:
    # A lambda, a list, agents, and an environment of a module that only the tests' search path has.
    creators = [lambda: TagEnv(num_agents=3)] * 3
    think_s, start_s = 0.001, time.monotonic()
    with TrialRunner({"env": creators, "seed": 0}) as trial_runner:
        plan = {"backend": "pool", "num_envs": 3, "num_workers": 2, "batch_size": 2}
        outcome = trial_runner.try_out(Trial(plan, 0.05, 3, think_s, LIMIT_S))
        assert not outcome.error
        assert len(outcome.steps_per_s) == 3 and all(0 < rate <= 2 / think_s for rate in outcome.steps_per_s)
        assert outcome.memory_nbytes > MIB
        stats = outcome.stats
        assert stats is not None and stats.agents_per_env == 3 and stats.num_batches >= 3
        # The share of a busy machine is any; in seconds it is what the learner thought of each batch but the last.
        thought_s = stats.thinks * stats.seconds
        assert think_s * (stats.num_batches - 1) <= thought_s < stats.seconds < time.monotonic() - start_s
        one = trial_runner.try_out(SHORT)  # the first of the list
        assert not one.error and one.stats is not None and one.stats.num_envs == 1


@pytest.mark.slow
@pytest.mark.flaky(reruns=2)
def test_autotune() -> None:
    plan = pufferlib.autotune(Sleeper, budget_s=8, batch_size=4, env_kwargs={"mean_s": 0.005}, seed=1)
    assert plan["backend"] == "pool" and plan["batch_size"] == 4, str(plan)
    serial = max(row.median for row in plan.table if row.plan["backend"] == "serial")
    assert plan.table[0].median > 3 * serial
    with pufferlib.make(Sleeper, env_kwargs={"mean_s": 0.005}, **plan) as vec:
        assert vec.agents_per_batch == 4


def test_memory_is_measured() -> None:
    before = memory_nbytes()
    hoard = np.ones(50 * MIB, np.uint8)
    grown = memory_nbytes() - before
    assert before > 10 * MIB
    assert 0.9 * hoard.nbytes < grown < 1.5 * hoard.nbytes
    assert memory_at_hand() > 10 * MIB
