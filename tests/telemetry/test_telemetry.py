"""Telemetry: what is noted is true and cheap, what is read from it too, and what it foretells comes true."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from timing_tools import Sleeper, arrays, stats_of, timed

import pufferlib
from pufferlib.errors import CallError, MissingExtra
from pufferlib.telemetry.durations import seconds_text, times_text
from pufferlib.telemetry.stats import SERIAL_ROW_S, Stats
from pufferlib.telemetry.throughput_model import Arrangement, Load, steps_per_s
from pufferlib.telemetry.timeline import (
    FILL_MAX,
    MAX,
    NUM_BUCKETS,
    NUM_RECV,
    PORTABLE_COST_S,
    RESET,
    RETURNED,
    SQUARES,
    STEP,
    SUM,
    WEIGHT,
    Stopwatch,
    Timeline,
    bucket_edges,
    bucket_of,
)

pytestmark = pytest.mark.beside

# ------------------------------------------------------------------------------------------------ noting


@given(st.integers(1, 1 << 40))
def test_a_duration_lies_between_the_edges_of_its_bucket(ns: int) -> None:
    bucket, edges = bucket_of(ns), bucket_edges() * 1e9
    assert edges[bucket] <= ns * (1 + 1e-12)
    assert ns < edges[bucket + 1] * (1 + 1e-12) or bucket == NUM_BUCKETS - 1


def test_buckets_are_a_quarter_of_an_octave() -> None:
    edges = bucket_edges()
    assert edges.shape == (NUM_BUCKETS + 1,)
    assert edges[0] == 1e-9 and np.all(np.diff(edges) > 0)
    np.testing.assert_allclose(edges[4:] / edges[:-4], 2)
    assert bucket_of(0) == 0


def test_steps_that_are_long_are_all_timed() -> None:
    durations = np.random.default_rng(0).uniform(101 * PORTABLE_COST_S, 1, (3, 200))
    noted, samples = timed(durations)
    assert samples == durations.size
    times = noted["times"][:, STEP]
    np.testing.assert_allclose(times[:, WEIGHT], 200)
    np.testing.assert_allclose(times[:, SUM], durations.sum(1))
    np.testing.assert_allclose(times[:, SQUARES], (durations**2).sum(1))
    np.testing.assert_array_equal(times[:, MAX], durations.max(1))
    assert noted["histogram"].sum(1).tolist() == [200, 200, 200]
    assert not noted["times"][:, RESET].any()


@pytest.mark.parametrize("mean_s", [0.2e-6, 1e-6, 10e-6, 100e-6])
def test_timing_takes_about_a_hundredth_of_the_time(mean_s: float) -> None:
    durations = np.random.default_rng(0).exponential(mean_s, (1, 100_000))
    _, samples = timed(durations)
    assert samples * PORTABLE_COST_S < 0.015 * durations.sum()
    assert samples > 80


@pytest.mark.parametrize(
    "draw",
    [
        lambda generator, shape: np.where(generator.random(shape) < 0.1, 1e-3, 1e-6),  # one in ten slow
        lambda generator, shape: np.where(np.arange(shape[1]) % 10 == 0, 1e-4, 2e-6) * np.ones(shape),  # every tenth
        lambda generator, shape: generator.exponential(5e-6, shape),
    ],
)
def test_fast_steps_do_not_outweigh_slow_ones(draw: Callable[..., Any]) -> None:
    durations = draw(np.random.default_rng(1), (4, 100_000))
    noted, samples = timed(durations)
    times = noted["times"][:, STEP].sum(0)
    assert samples < durations.size / 5
    assert times[WEIGHT] == pytest.approx(durations.size, rel=0.05)
    assert times[SUM] / times[WEIGHT] == pytest.approx(durations.mean(), rel=0.15)
    std = math.sqrt(times[SQUARES] / times[WEIGHT] - (times[SUM] / times[WEIGHT]) ** 2)
    assert std == pytest.approx(durations.std(), rel=0.1)


def test_resets_are_all_timed_apart_from_steps() -> None:
    noted = arrays(2)
    stopwatch = Stopwatch(noted["times"], noted["histogram"])
    stopwatch.record_reset(1, 0.5)
    stopwatch.record_reset(1, 0.25)
    assert noted["times"][1, RESET].tolist() == [2, 0.75, 0.3125, 0.5]
    assert not noted["times"][:, STEP].any() and not noted["histogram"].any()


def test_a_period_begins_where_the_last_one_ended() -> None:
    noted = arrays(1)
    stopwatch = Stopwatch(noted["times"], noted["histogram"])
    timeline = Timeline(noted, [os.getpid()])
    for seconds in (0.1, 0.4, 0.2):
        stopwatch.record(0, seconds)
        stopwatch.record_reset(0, 2 * seconds)
    timeline.parent_times[FILL_MAX] = 7.0
    timeline.parent_times[[NUM_RECV, RETURNED]] = 3, 12.5
    assert timeline.take().times[0, :, MAX].tolist() == [0.4, 0.8]
    timeline.begin()
    assert timeline.parent_times[RETURNED] == 0
    stopwatch.record(0, 0.3)
    stopwatch.record_reset(0, 0.6)
    timeline.parent_times[NUM_RECV] = 5
    taken = timeline.take()
    assert taken.times[0, STEP, :MAX].tolist() == pytest.approx([1, 0.3, 0.09])
    assert 0.3 <= taken.times[0, STEP, MAX] <= 0.3 * 1.25  # an earlier period's was longer: the bucket tells
    assert taken.times[0, RESET, MAX] == pytest.approx(0.6)
    assert taken.histogram.sum() == 1
    assert (taken.parent_times[NUM_RECV], taken.parent_times[FILL_MAX]) == (2, 0)
    stopwatch.record(0, 0.5)
    assert timeline.take().times[0, STEP, MAX] == 0.5


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the system does not tell")
def test_cpu_time_is_distinguished_from_sleep() -> None:
    timeline = Timeline(arrays(1, 2), [os.getpid(), 0])
    start = time.thread_time()
    while time.thread_time() < start + 0.05:
        pass
    time.sleep(0.05)
    taken = timeline.take()
    assert taken.worker_cpu_s[0] == pytest.approx(0.05, abs=0.02)
    assert taken.parent_cpu_s == pytest.approx(0.05, abs=0.02)
    assert math.isnan(taken.worker_cpu_s[1])


# ----------------------------------------------------------------------------------------------- reading


def harmonic(count: int) -> float:
    return sum(1 / number for number in range(1, count + 1))


def test_figures_are_those_of_the_steps() -> None:
    generator = np.random.default_rng(0)
    durations = generator.lognormal(-5, 0.5, (6, 2000)) * np.array([1, 1, 1, 1, 2, 3])[:, None]
    stats = stats_of(durations, steps_per_s=100.0, thinks=0.25, cpu=0.5, resets=(0.5, 1.5))
    assert stats.step.num == durations.size
    assert stats.step.mean_s == pytest.approx(durations.mean())
    assert stats.step.std_s == pytest.approx(durations.std())
    assert stats.step.max_s == pytest.approx(durations.max())
    for share, total, per_worker in (
        (50, stats.step.p50_s, stats.env_step.p50_s),
        (99, stats.step.p99_s, stats.env_step.p99_s),
    ):
        assert total == pytest.approx(np.percentile(durations, share), rel=0.1)
        np.testing.assert_allclose(per_worker, np.percentile(durations, share, axis=1), rtol=0.2)
    np.testing.assert_allclose(stats.env_step.mean_s, durations.mean(1))
    np.testing.assert_allclose(stats.env_step.std_s, durations.std(1))
    assert stats.spread == pytest.approx(durations.std() / durations.mean())
    assert stats.spread_between == pytest.approx(durations.mean(1).std() / durations.mean())
    assert stats.spread**2 == pytest.approx(stats.spread_within**2 + stats.spread_between**2)
    assert (stats.reset.num, stats.reset.mean_s, stats.reset.max_s) == (2, 1.0, 1.5)
    assert math.isnan(stats.env_reset.mean_s[1]) and stats.env_reset.mean_s[0] == 1.0
    assert stats.steps_per_s == pytest.approx(100)
    assert (stats.waits, stats.thinks) == pytest.approx((0.75, 0.25))
    assert stats.cpu == pytest.approx(0.5, abs=0.01) and stats.queued == 0
    assert (stats.fill_mean_s, stats.fill_max_s) == (0.25, 0.5)
    with pytest.raises(AttributeError):
        stats.spread = 0.0  # type: ignore[misc]


DURATIONS = st.floats(1e-9, 1e3) | st.sampled_from([100e-6, 1e-3, 2.0**22 * 1e-9, 10.0])


@given(st.lists(st.lists(DURATIONS, min_size=1, max_size=5), min_size=1, max_size=4), st.booleans())
def test_figures_could_be_those_of_some_steps(durations: list[list[float]], second_period: bool) -> None:
    noted = arrays(len(durations))
    stopwatch, timeline = Stopwatch(noted["times"], noted["histogram"], 1e-12), Timeline(noted, [0])
    if second_period:  # whose longest step is known only roughly
        for env_id in range(len(durations)):
            stopwatch.record(env_id, 2e3)
        timeline.begin()
    for env_id, row in enumerate(durations):
        for seconds in row:
            stopwatch.left_out[env_id] = 0
            stopwatch.record(env_id, seconds)
    stats = Stats.of(timeline.take(), backend="serial", num_envs=len(durations), num_workers=1, batch_size=1, cores=1)
    for times in (stats.step, stats.env_step):
        slack = 1e-6 * np.abs(times.max_s)
        assert np.all(times.p50_s <= times.p99_s + slack) and np.all(times.p99_s <= times.max_s + slack)
        assert np.all(times.mean_s <= times.max_s + slack)
        assert np.all(np.abs(times.p50_s - times.mean_s) <= times.std_s + slack)
    if not second_period:
        assert stats.step.max_s == max(map(max, durations))


def test_a_median_of_steps_beyond_the_last_bucket_is_among_them() -> None:
    stats = stats_of(np.full((2, 10), 10.0), steps_per_s=0.1)
    assert stats.step[1:] == pytest.approx((10.0, 0.0, 10.0, 10.0, 10.0))


def test_nothing_measured_is_no_error() -> None:
    noted = arrays(3, 2)
    taken = Timeline(noted, [0, 0]).take()
    stats = Stats.of(taken, backend="pool", num_envs=3, num_workers=2, batch_size=2, cores=2)
    assert stats.verdict == "nothing to judge yet: play some batches first"
    assert "–" in str(stats)
    with pytest.raises(CallError, match="nothing was measured in this period"):
        stats.forecast("pool", 6, 2, 2)


def test_the_table_reads() -> None:
    stats = stats_of(np.full((4, 100), 2e-3), steps_per_s=1500.0, thinks=0.1)
    text = str(stats)
    assert text.startswith("multiprocessing: 4 environments, 4 workers, batches of 4, 2 cores\n100 batches in 267 ms: ")
    assert "1,500 steps/s" in text
    assert "step         2.00 ms" in text
    assert text.endswith(stats.verdict)
    assert max(map(len, text.splitlines()[:-1])) <= 80


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (2.5e-8, "25 ns"),
        (1e-6, "1.00 µs"),
        (0.0305, "30.5 ms"),
        (0.9996, "1.00 s"),
        (99.0, "99.0 s"),
        (999.4, "999 s"),
        (999.6, "1,000 s"),
        (math.nan, "–"),
    ],
)
def test_durations_have_three_digits(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


@pytest.mark.parametrize(("times", "text"), [(1.94, "1.9"), (9.96, "10"), (1234.0, "1,234")])
def test_ratios_have_two_digits(times: float, text: str) -> None:
    assert times_text(times) == text


def test_plot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    durations = np.random.default_rng(0).exponential(1e-3, (8, 100))
    stats = stats_of(durations, steps_per_s=2000.0)
    assert stats.plot(tmp_path / "stats.png") == tmp_path / "stats.png"
    assert (tmp_path / "stats.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtra, match="a plot needs matplotlib: pip install"):
        stats.plot(tmp_path / "other.png")


# --------------------------------------------------------------------------------------------- foretelling


def load_of(durations: Any, **kwargs: Any) -> Load:
    noted, _ = timed(np.asarray(durations), cost_s=1e-12)
    return Load(noted["histogram"], np.mean(durations, 1), np.std(durations, 1), **kwargs)


EXPONENTIAL = np.random.default_rng(0).exponential(0.01, (32, 1000))


@pytest.mark.parametrize("num_envs", [2, 8, 32])
def test_a_synchronous_batch_waits_for_its_slowest(num_envs: int) -> None:
    reached = steps_per_s(load_of(EXPONENTIAL, cpu=0.0), Arrangement(num_envs, num_envs, num_envs, cores=2))
    assert reached == pytest.approx(num_envs / (0.01 * harmonic(num_envs)), rel=0.05)


def test_a_pool_reaches_what_is_in_flight() -> None:
    load = load_of(EXPONENTIAL, cpu=0.0)
    assert 0.75 < steps_per_s(load, Arrangement(32, 32, 8, cores=2)) / (32 / 0.01) < 0.95
    assert steps_per_s(load, Arrangement(32, 32, 1, cores=2)) == pytest.approx(32 / 0.01, rel=0.05)
    in_order = steps_per_s(load, Arrangement(32, 32, 8, cores=2, first_finished=False))
    assert in_order < 0.7 * steps_per_s(load, Arrangement(32, 32, 8, cores=2))


@pytest.mark.parametrize("num_workers", [2, 4, 32])
def test_steps_that_need_cores_are_bound_by_them(num_workers: int) -> None:
    load = load_of(EXPONENTIAL, cpu=1.0)
    assert steps_per_s(load, Arrangement(32, num_workers, 8, cores=2)) == pytest.approx(2 / 0.01, rel=0.08)
    assert steps_per_s(load, Arrangement(32, 1, 8, cores=2)) == pytest.approx(1 / 0.01, rel=0.05)
    half = load_of(EXPONENTIAL, cpu=0.5)
    assert steps_per_s(half, Arrangement(32, 32, 8, cores=2)) == pytest.approx(4 / 0.01, rel=0.1)


@pytest.mark.parametrize(("think_s", "expected"), [(0.0, 400), (0.02, 4 / 0.03), (0.001, 4 / 0.011)])
def test_a_synchronous_learner_thinks_while_nothing_steps(think_s: float, expected: float) -> None:
    plan = Arrangement(4, 4, 4, cores=4, think_s=think_s)
    assert steps_per_s(load_of(np.full((4, 100), 0.01)), plan) == pytest.approx(expected, rel=0.03)


def test_a_pool_steps_while_the_learner_thinks() -> None:
    load = load_of(np.full((8, 100), 0.01), cpu=0.0)
    both = steps_per_s(load, Arrangement(8, 8, 4, cores=2, think_s=0.01))
    assert both == pytest.approx(4 / 0.01, rel=0.1)  # alone it would be 4 / 0.02
    assert steps_per_s(load, Arrangement(8, 8, 4, cores=2, overhead_s=0.05)) == pytest.approx(4 / 0.05, rel=0.05)


def test_an_environment_that_is_always_slow_stays_slow() -> None:
    durations = np.full((8, 100), 0.01)
    durations[0] = 0.1
    load = load_of(durations, cpu=0.0)
    assert steps_per_s(load, Arrangement(8, 8, 8, cores=2)) == pytest.approx(8 / 0.1, rel=0.05)
    assert steps_per_s(load, Arrangement(8, 8, 1, cores=2)) == pytest.approx(7 / 0.01 + 1 / 0.1, rel=0.05)


def test_resets_count() -> None:
    load = load_of(np.full((1, 100), 0.01), reset_share=0.1, reset_s=0.11)
    assert load.row_s == pytest.approx(0.02)
    assert steps_per_s(load, Arrangement(1, 1, 1, cores=1)) == pytest.approx(50, rel=0.1)


def test_forecasts_fit_what_was_measured() -> None:
    """What a batch costs beside its steps is found again, so that the plan at hand is forecast as measured."""
    sync = 32 / (0.01 * harmonic(32))
    for reached in (0.5 * sync, 0.9 * sync, 1.05 * sync):
        stats = stats_of(EXPONENTIAL, steps_per_s=reached)
        assert stats.forecast("multiprocessing", 32, 32, 32).gain == pytest.approx(1, rel=1e-6)


# ------------------------------------------------------------------------------------------------ verdicts


def test_environment_bound() -> None:
    sync = 32 / (0.01 * harmonic(32))
    stats = stats_of(EXPONENTIAL, steps_per_s=0.95 * sync)
    assert stats.verdict.startswith(
        "environment-bound, 100 % spread: a pool of 4× the batch on 128 workers would raise"
    )
    pools = {plan.num_envs: plan.gain for plan in stats.forecasts if plan.backend == "pool"}
    assert list(pools) == [48, 64, 80, 96, 128]
    assert pools[48] < pools[64] < pools[80] < pools[96] < pools[128]


def test_environment_bound_with_few_cores() -> None:
    durations = np.random.default_rng(0).lognormal(-7, 0.75, (8, 1000))
    bound = 2 / durations.mean()
    stats = stats_of(durations, steps_per_s=0.7 * bound, cpu=1.0, plan=("multiprocessing", 8, 2, 8))
    assert "% spread: a pool of" in stats.verdict and "workers" not in stats.verdict
    assert max(plan.gain for plan in stats.forecasts) < 1.45
    stats = stats_of(durations, steps_per_s=0.99 * bound, cpu=1.0, plan=("pool", 8, 2, 2))
    assert stats.verdict == (
        "environment-bound: steps take 99 % of the time of 2 cores; only faster environments or more cores would raise "
        "throughput"
    )


@pytest.mark.parametrize("plan", [("serial", 8, 1, 8), ("multiprocessing", 8, 2, 8)])
def test_cores_that_others_take_are_not_sleep(plan: tuple[str, int, int, int]) -> None:
    stats = stats_of(np.full((8, 100), 0.01), steps_per_s=100.0, cpu=0.4, queued=0.6, plan=plan)
    assert stats.load.cpu == pytest.approx(1, rel=0.02) and stats.load.net_share == 1
    assert max(forecast.gain for forecast in stats.forecasts) < 2.1


def test_cores_that_workers_take_from_each_other_are_found_again() -> None:
    stats = stats_of(np.full((8, 100), 0.04), steps_per_s=195.0, cpu=0.25, queued=0.75, plan=("pool", 8, 8, 2))
    assert (stats.load.cpu, stats.load.net_share) == pytest.approx((1, 0.25), rel=0.02)
    assert stats.load.row_s == pytest.approx(0.01, rel=0.02)
    assert stats.forecast("pool", 8, 2, 2).gain == pytest.approx(1, rel=0.1)


def test_environment_bound_for_want_of_workers() -> None:
    durations = np.full((8, 100), 0.01)
    stats = stats_of(durations, steps_per_s=195.0, cpu=0.0, plan=("multiprocessing", 8, 2, 8))
    assert "0 % spread: 8 workers rather than 2 would raise throughput about 3.7×, a pool of" in stats.verdict


def test_learner_bound() -> None:
    stats = stats_of(np.full((8, 100), 0.001), steps_per_s=900.0, thinks=0.88)
    assert stats.verdict == (
        "learner-bound: it thinks 88 % of the time; environments that cost nothing would raise throughput 1.14× at most"
    )


def test_overhead_bound() -> None:
    stats = stats_of(np.full((8, 2000), 1e-6), steps_per_s=20_000.0, cpu=1.0, plan=("multiprocessing", 8, 2, 8))
    assert stats.verdict.startswith("overhead-bound: a step takes 1.00 µs, and a batch of 8 39")
    assert "µs on top of its steps: serial is right, about" in stats.verdict


def test_serial_is_right() -> None:
    step_s = SERIAL_ROW_S / 2
    rate = 1 / (step_s + SERIAL_ROW_S)
    stats = stats_of(np.full((8, 2000), step_s), steps_per_s=rate, cpu=1.0, plan=("serial", 8, 1, 8))
    assert stats.verdict.startswith("overhead-bound: a step takes ")
    assert "on 2 cores: serial is right" in stats.verdict
    assert stats.busy.tolist() == pytest.approx([1 / 3], rel=0.1)
    one_core = stats_of(np.full((8, 200), 0.01), steps_per_s=100.0, cpu=1.0, plan=("serial", 8, 1, 8), cores=1)
    assert one_core.verdict.startswith("environment-bound: a step takes 10.0 ms, on 1 core: serial is right")
    assert "2 workers rather than 1 would raise throughput about 2.0×" in replace(one_core, cores=2).verdict


def preempted(durations: Any, share: float, wait_s: float) -> tuple[Any, float]:
    """Return steps of which a share waited for a core, and the seconds of all waits."""
    waits = np.random.default_rng(7).random(durations.shape) < share
    return durations + wait_s * waits, float(wait_s * waits.sum())


@pytest.mark.parametrize("plan", [("serial", 8, 1, 8), ("multiprocessing", 8, 2, 8), ("pool", 8, 2, 4)])
@pytest.mark.parametrize(("step_s", "share", "wait_s"), [(7e-6, 0.002, 4e-3), (1e-3, 0.2, 4e-3)])
def test_a_wait_for_a_core_is_no_spread_of_the_environment(
    plan: tuple[str, int, int, int], step_s: float, share: float, wait_s: float
) -> None:
    durations, waited_s = preempted(np.full((8, 5000), step_s), share, wait_s)
    queued = waited_s / durations.sum()
    stats = stats_of(durations, steps_per_s=0.9 / durations.mean(), cpu=1 - queued, queued=queued, plan=plan)
    assert stats.spread < 0.2 and stats.preempted == pytest.approx(share, rel=0.3)
    assert stats.step.std_s == pytest.approx(durations.std())  # what was measured stays to be seen
    assert "preempted" in str(stats) and "a pool of" not in stats.verdict
    if step_s < 50e-6 and plan[0] != "serial":  # too short to have slept
        assert stats.cpu + stats.queued == pytest.approx(1)
    unexplained = stats_of(durations, steps_per_s=0.9 / durations.mean(), cpu=1.0, plan=plan)
    assert unexplained.preempted == 0 and unexplained.spread == pytest.approx(durations.std() / durations.mean())


@pytest.mark.parametrize("wait_s", [1e-3, 0.0114, 0.13, 1.9, 3.9])
@pytest.mark.parametrize("step_s", [1e-6, 5e-6, 3e-4])
def test_steps_keep_their_mean_where_one_wait_is_longer_than_all_of_them(step_s: float, wait_s: float) -> None:
    durations = np.full((2, 100), step_s)
    durations[0, 7] += wait_s
    stats = stats_of(durations, steps_per_s=100.0, cpu=0.0, queued=1.0, plan=("serial", 2, 1, 2))
    left = wait_s < 4 * step_s  # too short to be told from a step
    assert stats.own.mean_s == pytest.approx(step_s, rel=0.2) or left
    assert stats.spread == pytest.approx(0, abs=0.2) or left


def test_what_an_environment_takes_long_for_is_its_spread_on_a_busy_machine_too() -> None:
    step_s = np.where(np.random.default_rng(3).random((8, 5000)) < 0.1, 3e-3, 0.1e-3)
    durations, waited_s = preempted(step_s, 0.02, 4e-3)
    queued = waited_s / durations.sum()
    stats = stats_of(durations, steps_per_s=1000.0, cpu=1 - queued, queued=queued, plan=("serial", 8, 1, 8))
    assert stats.spread > 0.9 * step_s.std() / step_s.mean()


def test_what_sleeps_is_not_preempted() -> None:
    stats = stats_of(EXPONENTIAL[:8], steps_per_s=100.0, cpu=0.05, queued=0.3)
    assert stats.preempted == 0 and stats.spread == pytest.approx(1, rel=0.05)


@pytest.mark.parametrize("fastest", ["serial", "multiprocessing", "pool"])
def test_what_was_measured_settles_the_verdict(fastest: str) -> None:
    """Whatever a model says of them: it would advise all kinds of plans here."""
    backends = ("serial", "multiprocessing", "pool")
    for backend in backends:
        for durations in (np.full((8, 1000), 1e-6), EXPONENTIAL[:8]):
            plan = (backend, 8, 1 if backend == "serial" else 2, 4 if backend == "pool" else 8)
            stats = stats_of(durations, steps_per_s=0.3 / durations.mean(), plan=plan)
            verdict = stats.verdict_beside(fastest, 1.0 if fastest == backend else 1.25, backends)
            if fastest != backend:
                assert f"{fastest}, measured in turn with this, made 1.25 times as many steps" in verdict
                for times in (0.97, 1.0, 1.004):
                    assert verdict.replace("1.25 times", "about") == stats.verdict_beside(fastest, times, backends)
            assert ("serial is right" in verdict) == (backend == fastest == "serial")
            assert "a pool of" not in verdict or backend == fastest == "pool"


# --------------------------------------------------------------------------------------- with real workers


def played(backend: str, num_envs: int, batch_size: int, num_steps: int, num_workers: int | None = None) -> Stats:
    kwargs = dict(num_envs=num_envs, num_workers=num_workers or num_envs, batch_size=batch_size)
    with pufferlib.make(Sleeper, backend=backend, seed=0, **kwargs) as vec:
        vec.async_reset()
        actions = np.zeros(batch_size, np.int64)
        for batch in range(2 + num_steps // batch_size):
            vec.recv()
            if batch == 2:
                vec.stats(reset=True)
            vec.send(actions)
        vec.recv()
        return vec.stats()


@pytest.mark.alone
@pytest.mark.parametrize("backend", ["serial", "multiprocessing", "pool"])
@pytest.mark.flaky(reruns=4)
def test_stats_of_a_vec_env(backend: str) -> None:
    stats = played(backend, 4, 2 if backend == "pool" else 4, 100, num_workers=2)
    assert (stats.backend, stats.num_envs) == (backend, 4)
    assert stats.step.mean_s == pytest.approx(0.01, rel=0.5)
    assert 80 < stats.step.num < 130 and stats.reset.num <= 8
    assert 0.6 < stats.spread < 1.6
    assert stats.thinks < 0.2
    assert stats.busy.shape == (1 if backend == "serial" else 2,) and stats.busy.min() > 0.3
    assert stats.steps_per_s == pytest.approx(stats.num_batches * stats.batch_size / stats.seconds)
    assert not stats.cpu > 0.5


@pytest.mark.alone
@pytest.mark.slow
def test_forecasts_come_true() -> None:
    """In one of a few attempts: what else the machine has to do may change between two measurements."""
    forecasts = []
    for _ in range(5):
        sync = played("multiprocessing", 8, 8, 600)
        for num_envs in (16, 24):
            foretold = sync.forecast("pool", num_envs, num_envs, 8).gain
            forecasts.append((foretold, played("pool", num_envs, 8, 1500).steps_per_s / sync.steps_per_s))
        if all(foretold == pytest.approx(reached, rel=0.25) for foretold, reached in forecasts[-2:]):
            return
    raise AssertionError(f"foretold and reached: {forecasts}")
