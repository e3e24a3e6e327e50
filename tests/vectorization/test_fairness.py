"""What ``make(fair=…)`` keeps: weights undo that fast environments deliver more rows, a quota bounds their lead."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import pufferlib
from pufferlib.errors import CallError, PlanError, RecvTimeout
from pufferlib.vectorization.core.backend import SLICE_S
from pufferlib.vectorization.core.batch import Batch, WeightedBatch
from pufferlib.vectorization.core.plan import Plan
from pufferlib.vectorization.driver.fairness import Quota, RowWeights

BACKENDS = ("serial", "multiprocessing", "pool")
NUM_ENVS, BATCH_SIZE, SLOW = 4, 2, 10


class Timed(gymnasium.Env[Any, Any]):
    """Environment 0 is slow, or all of them in half of their episodes; reward 1 for a step of a slow one, else 0."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, env_index: int, step_s: float = 0.001, by_episode: bool = False, fails_at: int = 0) -> None:
        self.env_index, self.step_s, self.by_episode, self.fails_at = env_index, step_s, by_episode, fails_at
        self.num_steps = 0

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.is_slow = bool(self.np_random.integers(2)) if self.by_episode else self.env_index == 0
        self.steps_left = 5
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(self.step_s * (SLOW if self.is_slow else 1))
        self.num_steps += 1
        if self.env_index == 1 and self.num_steps == self.fails_at:
            raise RuntimeError("on purpose")
        self.steps_left -= 1
        return np.zeros(1, np.float32), float(self.is_slow), self.steps_left == 0, False, {}


def timed(backend: str = "pool", **kwargs: Any) -> pufferlib.VecEnv:
    defaults = {"num_envs": NUM_ENVS, "num_workers": NUM_ENVS, "batch_size": BATCH_SIZE, "seed": 1}
    return pufferlib.make(Timed, backend=backend, **{**defaults, **kwargs})


def played(vec: pufferlib.VecEnv, num_batches: int) -> list[pufferlib.Batch]:
    """Return the batches of a run of ``num_batches``."""
    batches = []
    vec.async_reset()
    for number in range(num_batches):
        if number:
            vec.send(np.zeros(vec.agents_per_batch, np.int64))
        batches.append(vec.recv())
    return batches


def test_weights_are_those_of_the_rows_counted_since_the_start() -> None:
    with timed(fair="weights", copy=True, env_kwargs={"step_s": 0.0002}) as vec:
        num_rows, total = Counter[int](), 0
        for batch in played(vec, 40) + played(vec, 40):  # the second reset clears no counts
            num_rows.update(batch.env_ids.tolist())
            total += BATCH_SIZE
            expected = [total / NUM_ENVS / num_rows[env_id] for env_id in batch.env_ids.tolist()]
            assert batch.weights is not None and batch.weights.dtype == np.float32
            np.testing.assert_allclose(batch.weights, expected, rtol=1e-6)


@pytest.mark.parametrize("by_episode", [False, True])
def test_weighted_means_are_those_of_equally_fast_environments(by_episode: bool) -> None:
    """On a simulated clock: half of ten environments are ten times as slow, or half of the episodes of each are."""
    plan, rng, horizon = Plan.of(10, 10, 5), np.random.default_rng(1), 20
    weights = RowWeights(plan, 1, first_finished=True, tensors=None)
    is_slow, steps_left = np.arange(10) % 2 == 1, np.full(10, horizon)
    finish_at = np.where(is_slow, SLOW, 1.0) + rng.random(10)
    rewards, factors, now = [], [], 0.0
    for _ in range(6000):
        ids = np.argsort(finish_at)[:5]
        now = float(finish_at[ids].max())
        weights.weigh(Batch._make([np.zeros(5)] * 8), ids.tolist())
        rewards.append(is_slow[ids].astype(float))
        factors.append(weights.host.astype(float))
        steps_left[ids] -= 1
        over = ids[steps_left[ids] == 0]
        steps_left[over] = horizon
        if by_episode:
            is_slow[over] = rng.integers(2, size=len(over))
        finish_at[ids] = now + np.where(is_slow[ids], SLOW, 1.0) * rng.uniform(0.9, 1.1, len(ids))
    plain, weighted = np.mean(rewards), np.average(rewards, weights=factors)
    assert plain == pytest.approx(0.5, abs=0.03) if by_episode else plain < 0.12
    assert weighted == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("batch_size", [NUM_ENVS, BATCH_SIZE])
def test_where_every_environment_gets_its_turn_weights_are_one(backend: str, batch_size: int) -> None:
    with timed(backend, fair="weights", batch_size=batch_size, env_kwargs={"step_s": 0}) as vec:
        batch = played(vec, 6)[-1]
        weights = batch.weights
        assert isinstance(batch, WeightedBatch) and weights is not None and weights.shape == (batch_size,)
        if backend != "pool" or batch_size == NUM_ENVS:
            assert (weights == 1).all()
        assert vec.batch is batch
        host: Any = vec.host_batch
        assert np.array_equal(host.weights, weights)
        observations, rewards, terminations, truncations, infos, env_ids, agent_ids, masks = batch  # still eight
        assert Batch.of((observations, rewards, terminations, truncations, env_ids, agent_ids, masks), infos) == batch
        assert vec.step(np.zeros(batch_size, np.int64))[0].shape == (batch_size, 1)


def test_batches_have_no_weights_unless_they_are_asked_for() -> None:
    with timed(env_kwargs={"step_s": 0}) as vec:
        (batch,) = played(vec, 1)
        assert type(batch) is Batch and batch.weights is None
        assert vec.host_batch is not None and vec.host_batch.weights is None


def test_each_agent_has_its_environments_weight() -> None:
    with pufferlib.make("ocean/multiagent", backend="pool", num_envs=4, batch_size=2, fair="weights", seed=1) as vec:
        vec.async_reset()
        batch = vec.recv()
        vec.send(np.zeros(4, np.int64))
        batch = vec.recv()
        assert batch.weights is not None and batch.weights.shape == (4,)
        assert (batch.weights[::2] == batch.weights[1::2]).all()


@pytest.mark.extras
def test_weights_are_tensors_where_batches_are() -> None:
    torch = pytest.importorskip("torch")
    with timed(fair="weights", as_torch=True, env_kwargs={"step_s": 0}) as vec:
        (batch,) = played(vec, 1)
        assert isinstance(batch.weights, torch.Tensor) and batch.weights.dtype == torch.float32
        host = vec.host_batch
        assert host is not None and isinstance(host.weights, np.ndarray)
        np.testing.assert_array_equal(batch.weights.numpy(), host.weights)


# ------------------------------------------------------------------------------------------------------------ the quota


class Gated(Timed):
    """Environment 0 does not finish its step before a file exists; the others finish at once."""

    def __init__(self, env_index: int, gate: str) -> None:
        super().__init__(env_index, 0)
        self.gate = Path(gate)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        while self.env_index == 0 and not self.gate.exists():
            time.sleep(0.001)
        return super().step(action)


@pytest.mark.parametrize("fair", [1, 3, 10_000])
def test_nobody_gets_further_ahead_than_the_quota(fair: int, tmp_path: Path) -> None:
    gate, num_ahead = tmp_path / "gate", min(fair, 20)
    counts: dict[str, Any] = {"num_envs": NUM_ENVS, "num_workers": NUM_ENVS, "batch_size": 1}
    with pufferlib.make(Gated, backend="pool", fair=fair, seed=1, env_kwargs={"gate": str(gate)}, **counts) as vec:
        vec.async_reset()
        num_rows = Counter[int]()
        for _ in range(NUM_ENVS + (NUM_ENVS - 1) * num_ahead):
            num_rows[int(vec.recv(timeout=60).env_ids[0])] += 1
            vec.send(np.zeros(1, np.int64))
        assert num_rows[0] == 1  # that of its reset
        if fair < 10_000:
            assert num_rows == {0: 1, **dict.fromkeys(range(1, NUM_ENVS), 1 + fair)}
            with pytest.raises(RecvTimeout):
                vec.recv(timeout=0.2)
            gate.touch()
            assert vec.recv(timeout=60).env_ids.tolist() == [0]
            assert vec.recv(timeout=60).env_ids[0] > 0  # what the row of 0 has let go
        gate.touch()


@pytest.mark.parametrize("batch_size", [1, 2, 3])
@pytest.mark.parametrize("num_workers", [1, 2, 4])
def test_a_quota_never_blocks(batch_size: int, num_workers: int) -> None:
    kwargs = {"step_s": 0.0002, "by_episode": True}
    with timed(fair=1, batch_size=batch_size, num_workers=num_workers, env_kwargs=kwargs) as vec:
        num_rows = np.zeros(NUM_ENVS, int)
        vec.async_reset()
        for _ in range(100):
            batch = vec.recv(timeout=20)
            num_rows[batch.env_ids] += 1
            vec.send(np.zeros(batch_size, np.int64))
        assert num_rows.max() - num_rows.min() <= 2
        vec.async_reset()  # withheld actions are executed first
        assert vec.recv(timeout=20).masks.sum() == 0


@pytest.mark.parametrize("fair", [1, None])
def test_a_row_that_comes_just_before_a_wait_ends_it(fair: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """In ``recv`` with a quota, and in a reset of all, which first waits for the rows in flight."""
    with timed(num_envs=2, num_workers=2, batch_size=1, fair=fair) as vec:
        scheduler: Any = vec._scheduler  # type: ignore[attr-defined]
        plain_wait, waited = scheduler.wait, list[float]()

        def wait(backend: Any, timeout_s: float, *, batch: bool) -> Any:
            if not batch and timeout_s > 0:
                time.sleep(0.05)  # now all rows in flight have arrived
            begin_s = time.perf_counter()
            messages = plain_wait(backend, timeout_s, batch=batch)
            if not batch and timeout_s > 0:
                waited.append(time.perf_counter() - begin_s)
            return messages

        monkeypatch.setattr(scheduler, "wait", wait)
        for _ in range(3):
            played(vec, 8)
        assert waited and min(waited) < SLICE_S / 2


def test_an_environment_without_an_action_holds_back_the_others_and_recv_says_so() -> None:
    vec: Any
    with timed(fair=2, batch_size=1, env_kwargs={"step_s": 0}) as vec:
        vec.async_reset()
        for _ in range(NUM_ENVS):
            vec.recv()
        with pytest.raises(CallError, match=r"fair=2 lets environments \[1, 2, 3\] get no further ahead of .*\[0\]"):
            for _ in range(20):
                waiting = [env_id for env_id in (1, 2, 3) if vec._scheduler.states[env_id] == 1]
                vec.send(np.zeros(len(waiting), np.int64), env_ids=waiting)
                vec.recv(timeout=20)
        vec.send(np.zeros(1, np.int64), env_ids=[0])
        assert vec.recv(timeout=20) is not None


def test_a_reset_of_all_begins_a_new_count() -> None:
    vec: Any
    with timed(fair=2, batch_size=1, env_kwargs={"step_s": 0}) as vec:
        for _ in range(2):
            vec.async_reset()
            for _ in range(NUM_ENVS):
                vec.recv(timeout=20)
            for _ in range(2):  # steps of the others, while environment 0 has no action
                vec.send(np.zeros(NUM_ENVS - 1, np.int64), env_ids=[1, 2, 3])
                assert {int(vec.recv(timeout=20).env_ids[0]) for _ in range(NUM_ENVS - 1)} == {1, 2, 3}


def test_a_crash_row_that_answers_a_withheld_action_counts() -> None:
    passed: list[int] = []
    workers: Any = SimpleNamespace(step=lambda env_ids, slots: passed.extend(env_ids))
    scheduler: Any = SimpleNamespace(in_flight=[0, 1], num_ready=1)
    quota = Quota(workers, scheduler, Plan.of(2, 2, 1), 1)
    quota.count([0, 1])  # their resets
    quota.step([0, 1], [0, 0])
    quota.step([1], [0])  # after its row has arrived
    assert passed == [0, 1] and list(scheduler.withheld) == [1]
    scheduler.in_flight = [0]  # a crash row of 1 has
    assert not quota.release()
    scheduler.in_flight = [1]  # the row of 0 has
    quota.step([1], [0])
    assert passed == [0, 1] and list(scheduler.withheld) == [1]


@pytest.mark.parametrize("on_error", ["raise", "restart"])
def test_a_quota_survives_an_environment_that_raises(on_error: str) -> None:
    with timed(fair=1, on_error=on_error, env_kwargs={"step_s": 0, "fails_at": 4}, max_restarts=None) as vec:
        vec.async_reset()
        num_failed = 0
        for _ in range(60):
            try:
                vec.recv(timeout=20)
            except pufferlib.errors.WorkerError:
                num_failed += 1
                vec.async_reset(env_ids=[1])
                continue
            vec.send(np.zeros(BATCH_SIZE, np.int64))
        assert num_failed > 0 if on_error == "raise" else vec.restarts[1] > 0


def test_a_quota_counts_the_rows_of_resets() -> None:
    with timed(fair=1, autoreset_mode="disabled", env_kwargs={"step_s": 0}) as vec:
        vec.async_reset()
        num_rows = np.zeros(NUM_ENVS, int)
        for _ in range(60):
            batch = vec.recv(timeout=20)
            num_rows[batch.env_ids] += 1
            over = batch.terminations
            if over.any():
                vec.async_reset(env_ids=batch.env_ids[over].tolist())
            if not over.all():
                vec.send(np.zeros((~over).sum(), np.int64), env_ids=batch.env_ids[~over].tolist())
        assert num_rows.max() - num_rows.min() <= 2


@pytest.mark.parametrize("native", ["compiled", "0"])
def test_resets_that_take_environments_ahead_of_a_quota_do_not_block_it(
    native: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if native == "0":
        monkeypatch.setenv("PUFFERLIB_NATIVE", "0")
    with timed(fair=1, env_kwargs={"step_s": 0.01}) as vec:
        vec.async_reset()
        num_resets, num_steps, num_rows = 0, 0, np.zeros(NUM_ENVS, int)
        while num_rows[0] < 8:
            batch = vec.recv(timeout=20)
            ids = batch.env_ids.tolist()
            others = [env_id for env_id in ids if env_id != 0]
            for env_id in batch.env_ids[batch.masks & (batch.env_ids != 0)]:
                assert num_rows[env_id] == num_rows[1:].min()  # the least ahead went on
                num_steps += 1
            num_rows[ids] += 1
            if others and num_resets < 30:  # no reset is withheld
                vec.async_reset(env_ids=others)
                num_resets += len(others)
            elif others:
                vec.send(np.zeros(len(others), np.int64), env_ids=others)
            if 0 in ids:
                vec.send(np.zeros(1, np.int64), env_ids=[0])
    assert 1 <= num_steps <= num_rows[0]  # no more than fill the batches of the slow one's rows


@pytest.mark.parametrize("backend", ["serial", "multiprocessing"])
def test_a_quota_is_taken_where_it_changes_nothing(backend: str) -> None:
    with timed(backend, fair=1, copy=True, env_kwargs={"step_s": 0}) as vec:
        ids = np.concatenate([batch.env_ids for batch in played(vec, 10)])
    assert np.bincount(ids).tolist() == [5] * NUM_ENVS


# ------------------------------------------------------------------------------------------------------------ arguments


@pytest.mark.parametrize(
    ("fair", "message"),
    [
        ("weigths", r"fair='weigths' is unknown; use 'weights', a number of rows such as 8, or None"),
        (0, "fair=0 is impossible; use 1 or more rows, 'weights' or None"),
        (1.5, "fair=1.5 is not a whole number"),
        (True, "fair=True is impossible"),
    ],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_bad_value_is_refused(backend: str, fair: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        timed(backend, fair=fair)


@pytest.mark.extras
def test_a_kernel_refuses_it() -> None:
    with pytest.raises(PlanError, match="fair='weights': a kernel steps all environments alike"):
        pufferlib.make("ocean/squared", backend="cuda", device="host", num_envs=2, fair="weights")


def test_stats_show_the_share_of_each_environments_rows() -> None:
    with timed(copy=True) as vec:
        ids = np.concatenate([batch.env_ids for batch in played(vec, 80)])
        stats = vec.stats()
        share = np.bincount(ids, minlength=NUM_ENVS) / len(ids)
        np.testing.assert_allclose(stats.row_share, share, atol=0.05)
        assert stats.row_share.sum() == pytest.approx(1)
        assert "of each environment" in str(stats)
