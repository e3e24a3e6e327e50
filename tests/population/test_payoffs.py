"""What matchups pay: sums that are right, episodes that go where they are needed, and none that is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import pufferlib
from pufferlib.errors import CheckpointError, PlanError
from pufferlib.models import Origin
from pufferlib.population import Evaluator, PayoffTable, PolicyPool

pytestmark = pytest.mark.beside


class Constant(nn.Module):
    """Always plays one action, its only weight."""

    def __init__(self, observation_layout: Any, action_space: Any) -> None:
        super().__init__()
        self.register_buffer("logits", torch.zeros(action_space.n))

    def forward(self, observations: Any, state: Any, action_mask: Any) -> Any:
        return self.logits.expand(len(observations), -1), observations.new_zeros(len(observations)), state


ORIGIN = Origin(f"{__name__}:Constant")


class Pays(pufferlib.PufferEnv):
    """Two agents; the first gets 10 * its action + the other's, the second the negative. One episode in four is long.

    noise: of what is paid. by_length: the length of the episode is paid instead.
    """

    num_agents = 2
    single_observation_space = spaces.Box(0, 1, (1,), np.float32)
    single_action_space = spaces.Discrete(5)

    def __init__(self, noise: float = 0.0, by_length: bool = False) -> None:
        self.noise, self.by_length = noise, by_length

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        super().reset(seed=seed)
        self.length, self.tick = int(self.np_random.choice([1, 30], p=[0.75, 0.25])), 0

    def step(self, actions: Any) -> None:
        self.tick += 1
        self.terminations[:] = self.tick == self.length
        if self.tick == self.length:
            paid = 10.0 * actions[0] + actions[1] + self.noise * actions[0] * self.np_random.normal()
            self.rewards[:] = [self.length if self.by_length else paid, -paid]


def pool_of_constants(folder: Any = None) -> PolicyPool:
    pool = PolicyPool(folder)
    for action in range(4):
        pool.add({"logits": 1000 * torch.eye(5)[action]}, ORIGIN, seat=None)
    return pool


@given(
    st.lists(st.lists(st.tuples(*[st.floats(-1e3, 1e3)] * 2), max_size=6), min_size=1, max_size=6),
    st.randoms(use_true_random=False),
)
def test_the_order_of_batches_does_not_matter_and_none_counts_twice(batches: Any, random: Any) -> None:
    table = PayoffTable(2, [[7], [3, 4]])
    everything = [(number, batch) for number, batch in enumerate(batches)] * 2
    random.shuffle(everything)
    counted = [table.update((7, 4), f"{number}", np.array(batch).reshape(-1, 2)) for number, batch in everything]
    assert sum(counted) == len(batches)
    values = np.array([row for batch in batches for row in batch]).reshape(-1, 2)
    assert table.counts.tolist() == [[0, len(values)]]
    assert np.isnan(table.means[:, 0, 0]).all()
    if len(values):
        np.testing.assert_allclose(table.means[:, 0, 1], values.mean(0), atol=1e-9)
    if len(values) > 1:
        np.testing.assert_allclose(table.variances()[:, 0, 1], values.var(0, ddof=1), rtol=1e-9, atol=1e-9)
        wanted = 1.959964 * np.sqrt(values.var(0, ddof=1).max() / len(values))
        np.testing.assert_allclose(table.half_widths()[0, 1], wanted, rtol=1e-6, atol=1e-9)


def test_a_table_grows_around_what_is_known_and_is_read_again(tmp_path: Path) -> None:
    table = PayoffTable(2, [[0, 1], [2]])
    table.update((1, 2), "a", [[1.0, -1.0], [3.0, -3.0]])
    table.add(0, 5)
    table.add(1, 6)
    assert table.missing() == [(0, 2), (0, 6), (1, 6), (5, 2), (5, 6)]
    assert table.means[:, 1, 0].tolist() == [2.0, -2.0]
    table.save(tmp_path / "table.npz")
    again = PayoffTable.load(tmp_path / "table.npz")
    assert again.populations == table.populations and again.missing(3) == table.missing(3)
    np.testing.assert_array_equal(again.half_widths(), table.half_widths())
    assert not again.update((1, 2), "a", [[9.0, 9.0]])
    assert again.update((1, 2), "b", [[2.0, -2.0]]) and again.counts[1, 0] == 3
    again.fill(np.zeros((2, 3, 2)))
    assert not again.missing() and not again.half_widths().any()
    (tmp_path / "table.npz").write_bytes(b"nothing of the kind")
    with pytest.raises(CheckpointError, match="payoff table"):
        PayoffTable.load(tmp_path / "table.npz")
    for wrong in ([[1.0]], [[np.nan, 0.0]], [1.0, 2.0]):
        with pytest.raises(PlanError, match="returns"):
            table.update((1, 2), "c", wrong)
    with pytest.raises(PlanError, match="populations"):
        table.update((2, 1), "c", [[0.0, 0.0]])


def test_batches_count_once_in_a_cell_until_it_is_cleared() -> None:
    table, batch = PayoffTable(2, [[0, 1], [2]]), [[1.0, -1.0]]
    assert table.update((0, 2), "a", batch) and table.update((1, 2), "a", batch)
    table.replace(0, 1, 3)
    assert not table.update((3, 2), "a", batch)
    table.clear(0, 3)
    assert table.update((3, 2), "a", batch) and not table.update((0, 2), "a", batch)
    assert table.counts.tolist() == [[1], [1]]


@pytest.mark.parametrize("backend", ["serial", "pool"])
def test_an_evaluator_plays_what_is_missing_and_nothing_else(backend: str) -> None:
    table = PayoffTable(2, [[0, 1, 2], [3, 1]])
    table.update((1, 3), "known", [[0.5, -0.5]] * 6)
    with pufferlib.make(Pays, backend=backend, num_envs=8, batch_size=4, num_workers=2, seed=1) as vec:
        evaluator = Evaluator(vec, pool_of_constants(), min_episodes=5, task_episodes=2, seed=1)
        assert evaluator(table) == 25
        assert evaluator(table) == 0
    assert table.counts.tolist() == [[5, 5], [6, 5], [5, 5]]
    wanted = np.array([[3.0, 1.0], [0.5, 11.0], [23.0, 21.0]])
    np.testing.assert_array_equal(table.means, [wanted, -wanted])


def test_long_episodes_are_counted_like_short_ones() -> None:
    """A quarter of them last 30 steps, so the mean is 8.25; the first 128 to finish would all have lasted one."""
    table = PayoffTable(2, [[0], [0]])
    with pufferlib.make(Pays, num_envs=128, seed=1, env_kwargs={"by_length": True}) as vec:
        Evaluator(vec, pool_of_constants(), min_episodes=128, seed=1)(table)
    assert table.counts[0, 0] == 128
    assert table.means[0, 0, 0] > 3.5  # more than four standard deviations below, and seeded


def test_episodes_go_where_the_interval_is_wide() -> None:
    table = PayoffTable(2, [[0, 1, 2], [0]])
    with pufferlib.make(Pays, num_envs=8, seed=1, env_kwargs={"noise": 1.0}) as vec:
        evaluator = Evaluator(
            vec, pool_of_constants(), min_episodes=10, max_episodes=200, half_width=0.4, task_episodes=5, seed=1
        )
        evaluator(table)
    quiet, some, most = table.counts[:, 0].tolist()  # noises of 0, 1 and 2: of the last two 24 and 96 are needed
    assert quiet == 10 < some < most < 200
    assert table.half_widths().max() <= 0.4


def test_an_episode_that_failed_is_played_again() -> None:
    table = PayoffTable(2, [[1], [2]])
    with pufferlib.make(Failing, num_envs=3, seed=1, on_error="restart", max_restarts=None) as vec:
        Evaluator(vec, pool_of_constants(), min_episodes=12, task_episodes=4, seed=1)(table)
        assert sum(vec.restarts) > 0
    assert table.counts.tolist() == [[12]]
    assert table.means[:, 0, 0].tolist() == [12.0, -12.0]


class Failing(Pays):
    """Every other episode of several steps fails in the middle."""

    def step(self, actions: Any) -> None:
        if self.tick == 3 and self.np_random.random() < 0.5:
            raise ValueError("on purpose")
        super().step(actions)
