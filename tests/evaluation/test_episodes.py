"""Episodes and their statistics, against figures computed by hand or by other means."""

from __future__ import annotations

import json
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from mock_envs import HashEnv, TagEnv

import pufferlib
from pufferlib import Episodes
from pufferlib.errors import MissingExtra, PlanError
from pufferlib.evaluation import statistics

pytestmark = pytest.mark.beside


def episodes(returns: Any, tasks: Any = None, endings: Any = None, infos: Any = None) -> Episodes:
    returns = np.asarray(returns, np.float64)
    num = len(returns)
    return Episodes(
        tasks=np.array(["task"] * num if tasks is None else tasks),
        seeds=np.arange(num) + 10,
        returns=returns,
        lengths=np.arange(num),
        endings=np.array(["terminated"] * num if endings is None else endings),
        restarts=np.zeros(num, np.int64),
        seconds=np.full(num, 0.5),
        agent_returns=returns[:, None],
        infos=infos or {},
    )


# ---------------------------------------------------------------------------------------------------- the figures


def test_means_of_one_task_and_of_several() -> None:
    assert episodes([1, 2, 9]).mean().value == 4
    assert episodes([1, 2, 9]).mean("lengths").value == 1
    # Each task counts the same: (2 + 10) / 2.
    assert episodes([1, 3, 10], ["a", "a", "b"]).mean().value == 6
    assert episodes([1, 2, 9], infos={"score": np.array([0.0, 1.0, 5.0])}).mean("score").value == 2


def test_the_interquartile_mean_leaves_out_a_quarter_at_either_end() -> None:
    assert episodes([100, 1, 2, 3, 4, 5, 6, -50]).iqm().value == 3.5  # of 2, 3, 4 and 5
    assert episodes([5, 1, 3]).iqm().value == 3  # a quarter of three is none
    assert episodes([0, 1, 2, 3, 4, 5, 60]).iqm().value == 3  # one at either end
    # Over all tasks together.
    assert episodes([0, 10, 20, 30], ["a", "a", "b", "b"]).iqm().value == 15


def test_the_interquartile_mean_is_scipys_trimmed_mean() -> None:
    scipy_stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(1)
    for num in (3, 8, 21, 50):
        scores = rng.exponential(size=num)
        assert episodes(scores).iqm().value == pytest.approx(scipy_stats.trim_mean(scores, 0.25))


def test_the_probability_of_improvement_counts_pairs() -> None:
    # Pairs of (1, 4, 6) with (2, 4): below, below; above, equal; above, above.
    first, second = episodes([1, 4, 6]), episodes([4, 2])
    assert first.probability_of_improvement(second).value == pytest.approx((0 + 0 + 1 + 0.5 + 1 + 1) / 6)
    assert second.probability_of_improvement(first).value == pytest.approx(1 - 3.5 / 6)
    # Over tasks, the mean: task a as above, and b always better.
    tasks = ["a", "a", "a", "b"]
    other = episodes([4, 2, 0], ["a", "a", "b"])
    assert episodes([1, 4, 6, 1], tasks).probability_of_improvement(other).value == pytest.approx((3.5 / 6 + 1) / 2)
    with pytest.raises(PlanError, match="one has the tasks task, the other a, b; use the same tasks"):
        first.probability_of_improvement(other)


def test_performance_profiles_are_shares_above_thresholds() -> None:
    profile = episodes([0, 1, 2, 3]).performance_profile([-1, 0, 1.5, 3])
    assert profile.values.tolist() == [1, 0.75, 0.5, 0] and profile.thresholds.tolist() == [-1, 0, 1.5, 3]
    assert (profile.low <= profile.values).all() and (profile.values <= profile.high).all()
    assert profile.low[0] == profile.high[0] == 1 and profile.low[2] < 0.5 < profile.high[2]


@pytest.mark.parametrize("statistic", ["mean", "iqm"])
def test_intervals_cover_as_often_as_they_say(statistic: str) -> None:
    rng = np.random.default_rng(2)
    covered = []
    for _ in range(60):
        estimate = getattr(episodes(rng.normal(3, 2, 40)), statistic)(num_resamples=400)
        covered.append(estimate.low <= 3 <= estimate.high)
    assert 0.85 <= np.mean(covered) <= 1
    wide = episodes(rng.normal(0, 1, 400)).mean()
    assert (wide.high - wide.low) / 2 == pytest.approx(1.96 / 20, rel=0.15)
    narrow = episodes(rng.normal(0, 1, 400)).mean(confidence=0.5)
    assert (narrow.high - narrow.low) / 2 == pytest.approx(0.674 / 20, rel=0.2)


def test_what_is_drawn_again_are_episodes_within_a_task_or_runs() -> None:
    # Within a task all are alike: there is nothing that chance could change.
    constant = episodes([1, 1, 1, 9, 9], ["a", "a", "a", "b", "b"])
    assert constant.mean() == (5, 5, 5)
    # Runs that differ are drawn again, and the episodes within them are not.
    runs = Episodes.stack([episodes([level - 5, level + 5]) for level in (0, 10, 20)])
    assert runs.scores()["task"].tolist() == [0, 10, 20]
    estimate = runs.mean()
    assert estimate.value == 10 and estimate.low == 0 and estimate.high == 20
    better = Episodes.stack([episodes([level]) for level in (10, 25)])
    assert better.probability_of_improvement(runs).value == pytest.approx((1 + 0.5 + 0 + 3) / 6)
    with pytest.raises(PlanError, match="stack one or more, with the same tasks"):
        Episodes.stack([episodes([1]), episodes([1], ["other"])])
    with pytest.raises(PlanError, match="stack one or more"):
        Episodes.stack([])


def test_the_figures_are_those_of_rliable() -> None:
    """Eight runs of two algorithms on four tasks: equal statistics, and intervals that differ by the drawing alone."""
    example = json.loads(Path(__file__).with_name("rliable_example.json").read_text())
    first, second = (
        Episodes.stack([episodes(run, ["a", "b", "c", "d"]) for run in example[name]]) for name in ("first", "second")
    )

    def require_same(estimate: Any, expected: list[float]) -> None:
        value, low, high = expected
        assert estimate.value == pytest.approx(value, rel=1e-12)
        assert (estimate.low, estimate.high) == pytest.approx((low, high), abs=0.06 * (high - low))

    how: dict[str, Any] = {"num_resamples": 10_000}
    for name, runs in (("first", first), ("second", second)):
        require_same(runs.mean(**how), example["mean"][name])
        require_same(runs.iqm(**how), example["iqm"][name])
    require_same(first.probability_of_improvement(second, num_resamples=4000), example["improvement"])
    profile = first.performance_profile(example["thresholds"], num_resamples=4000)
    values, low, high = map(np.array, example["profile"])
    np.testing.assert_allclose(profile.values, values, rtol=1e-12)
    assert abs(profile.low - low).max() <= 1 / 32 and abs(profile.high - high).max() <= 1 / 32  # of 32 scores


def test_resamples_are_repeatable_and_do_not_depend_on_how_many_are_drawn_at_once(monkeypatch: Any) -> None:
    several = episodes(np.random.default_rng(3).normal(size=30))
    assert several.mean() == several.mean() != several.mean(seed=1)
    monkeypatch.setattr(statistics, "MAX_NUMBERS", 100)
    in_parts = several.mean()
    assert in_parts.low == pytest.approx(several.mean().low, abs=0.1)
    with pytest.raises(PlanError, match="confidence=1.5 and num_resamples=2000 are impossible"):
        several.mean(confidence=1.5)


def test_failed_episodes_are_refused_unless_the_caller_says_otherwise() -> None:
    some = episodes([1, np.nan, 3], endings=["cut", "failed", "terminated"])
    for call in (some.mean, some.iqm, lambda: some.performance_profile([0]), lambda: some.mean("lengths")):
        with pytest.raises(PlanError, match='1 of 3 episodes have no .* with the seeds 11; .* failed="leave out"'):
            call()
    assert some.mean(failed="leave out").value == 2 and some.mean("lengths", failed="leave out").value == 1
    with pytest.raises(PlanError, match="there is nothing to compute"):
        episodes([np.nan], endings=["failed"]).mean(failed="leave out")
    with pytest.raises(PlanError, match="failed='drop' is neither|failed='drop' is not"):
        some.mean(failed="drop")
    with pytest.raises(PlanError, match="did you mean 'returns'"):
        some.mean("return")
    texts = episodes([1, 2], infos={"text": np.array(["a", "b"], object)})
    with pytest.raises(PlanError, match="the infos text are no numbers"):
        texts.mean("text")


# ---------------------------------------------------------------------------------------------------- other forms


def test_rows_files_and_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = pufferlib.evaluate(
        TagEnv, lambda batch: batch.agent_ids % 2, episodes=3, backend="serial", env_kwargs={"length": 5}
    )
    assert result.returns.tolist() == [5] * 3 and result.agent_returns.tolist() == [[0, 5]] * 3
    result.to_json(tmp_path / "episodes.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "episodes.jsonl").read_text().splitlines()]
    assert rows == [*result.rows()] and [row["seed"] for row in rows] == result.seeds.tolist()
    assert rows[0]["agent_returns"] == [0, 5] and rows[0]["ending"] == "terminated" and rows[0]["task"] == "TagEnv"
    failed = episodes([np.nan], endings=["failed"], infos={"x": np.array([np.arange(2)], object)[:, 0]})
    assert [row["return"] for row in failed.rows()] == [None]
    json.dumps([*failed.rows()], allow_nan=False)
    with pytest.raises(TypeError):  # in the second row
        replace(result, restarts=np.array([0, None])).to_json(tmp_path / "episodes.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["episodes.jsonl"]
    assert len((tmp_path / "episodes.jsonl").read_text().splitlines()) == 3
    assert "3 episodes, mean return 5" in repr(result) and "1 failed" in repr(failed)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtra, match="needs pandas"):
        result.to_pandas()
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=dict))  # in place of one
    columns = result.to_pandas()
    assert columns["returns"].tolist() == [5] * 3 and columns["agent_returns/1"].tolist() == [5] * 3


def test_plots_are_drawn_of_episodes_and_of_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    some = episodes([1, 5, 2, np.nan], ["a", "a", "b", "b"], ["cut"] * 3 + ["failed"])
    for results in (some, Episodes.stack([some, some])):
        path = results.plot(tmp_path / "a.png", failed="leave out")
        assert path.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(PlanError, match="1 of 4 episodes have no returns or failed"):
        some.plot(tmp_path / "b.png")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtra, match="a plot needs matplotlib"):
        some.plot(tmp_path / "b.png", failed="leave out")
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]


def test_equality_leaves_out_times_and_restarts() -> None:
    how = {"episodes": 4, "backend": "serial", "infos": ("tick",)}
    first, again = (pufferlib.evaluate(HashEnv, "random", **how) for _ in range(2))
    assert first == again and first.seconds.tolist() != again.seconds.tolist()
    assert first != pufferlib.evaluate(HashEnv, "random", **{**how, "seed": 3}) and first != 3
    assert (first.seconds > 0).all() and first.wall_s > 0


def test_equality_compares_infos_of_any_kind_and_takes_nan_for_nan() -> None:
    def with_infos(*values: Any) -> Episodes:
        column = np.empty(len(values), object)
        column[:] = values
        return episodes([1] * len(values), infos={"x": column})

    def with_last(last: Any) -> Episodes:
        array = np.array([1, np.nan])
        return with_infos(array, {"a": float("nan"), "b": [array, (1, None)]}, None, "text", last)

    assert with_last(1) == with_last(1) != with_last(2)
    assert with_last({"a": np.nan}) == with_last({"a": np.nan}) != with_last({"a": 0.0}) and with_last(
        "1"
    ) != with_last(1)


def test_profiles_of_many_scores_and_thresholds_take_little_memory() -> None:
    several = episodes(np.random.default_rng(1).random(5000))
    thresholds = np.linspace(0, 1, 400)
    tracemalloc.start()
    profile = several.performance_profile(thresholds, num_resamples=50)
    _, most_nbytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most_nbytes < 50e6
    np.testing.assert_array_equal(profile.values, [(several.returns > limit).mean() for limit in thresholds])
