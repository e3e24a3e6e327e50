"""The replay buffer against lists: what it stores, whatever the order of rows, and how it draws."""

from __future__ import annotations

import math

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

import pufferlib
from cleanrl_demo import dqn
from pufferlib.errors import PlanError
from pufferlib.training import ReplayBuffer
from pufferlib.training.sum_tree import SumTree
from tests.mutants.replay_reference import batch_of, buffer, expected_of, fed, fill, priorities_differ, stored

pytestmark = [pytest.mark.beside, pytest.mark.extras, pytest.mark.usefixtures("one_thread")]

BACKENDS = ["serial", "multiprocessing", "pool"]
# ------------------------------------------------------------------------------------------------------ what is stored


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_envs=st.integers(1, 5),
    agents_per_env=st.integers(1, 3),
    share=st.floats(0.01, 1),
    n_step=st.integers(1, 5),
    num_batches=st.integers(0, 30),
    rate=st.sampled_from([0.0, 0.1, 0.4]),
    capacity=st.integers(15, 40),
)
def test_transitions_are_those_of_each_agents_list_of_rows(
    seed, num_envs, agents_per_env, share, n_step, num_batches, rate, capacity
):
    """Random masks, endings and finish orders; an agent's row is its number, and how many it has had before."""
    batch_size = math.ceil(share * num_envs)
    sizes = (num_envs, agents_per_env, batch_size)
    replay, small = buffer(*sizes, n_step=n_step), buffer(*sizes, capacity, n_step=n_step)
    lives = fed([replay, small], np.random.default_rng(seed), *sizes, num_batches, rate)
    open_steps = {
        (agent, row[0][1])
        for agent, life in enumerate(lives)
        for row in life[-n_step:]  # those that may still be open
    }
    closed = stored(replay)
    replay.end()
    small.end()
    expected = sorted(part for life in lives for part in expected_of(life, n_step))
    assert sorted(stored(replay)) == expected and len(replay) == replay.num_added == len(expected)
    assert stored(small) == stored(replay)[-capacity:] and len(small) == min(capacity, len(expected))
    assert replay.num_steps == sum(row[5] for life in lives for row in life)
    assert all((int(row[0][0]), row[0][1]) in open_steps for row in stored(replay)[len(closed) :])
    replay.end()  # nothing is open any more
    assert len(stored(replay)) == len(expected)


def test_a_transition_of_several_steps_is_complete_as_soon_as_its_last_outcome_arrives():
    replay, ids = buffer(n_step=3), np.zeros(1, np.int64)
    lengths = []
    for time in range(7):
        batch = batch_of(ids, [2.0**time], [time == 5], [False], [time > 0])
        replay.add(batch, np.full((1, 2), time, np.float64), ids + time, batch.rewards, batch.terminations)
        lengths.append(len(replay))
    assert lengths == [0, 0, 0, 1, 2, 5, 5]  # the episode ends with row 5
    assert stored(replay) == [
        ([0.0, 0.0], 0, 2 + 4 / 2 + 8 / 4, False, [3.0, 3.0], 1 / 8),
        ([1.0, 1.0], 1, 4 + 8 / 2 + 16 / 4, False, [4.0, 4.0], 1 / 8),
        ([2.0, 2.0], 2, 8 + 16 / 2 + 32 / 4, True, [5.0, 5.0], 1 / 8),
        ([3.0, 3.0], 3, 16 + 32 / 2, True, [5.0, 5.0], 1 / 4),
        ([4.0, 4.0], 4, 32, True, [5.0, 5.0], 1 / 2),
    ]


class Countdown(gymnasium.Env):
    """Observes the episode and its steps; ends after three: odd episodes terminated, even ones truncated."""

    observation_space = spaces.Box(0, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(5, start=2)
    num_episodes = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        self.num_episodes += 1
        return np.array([self.num_episodes, 0], np.float32), {}

    def step(self, action):
        self.time += 1
        over, odd = self.time == 3, self.num_episodes % 2 == 1
        return np.array([self.num_episodes, self.time], np.float32), float(action), over and odd, over and not odd, {}


class Pair(pufferlib.PufferEnv):
    """Two agents that each count as Countdown does; the second's life ends a step earlier."""

    num_agents = 2
    single_observation_space = Countdown.observation_space
    single_action_space = Countdown.action_space
    num_episodes = 0

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.num_episodes, self.time = self.num_episodes + 1, 0
        self.observations[:] = [self.num_episodes, 0]

    def step(self, actions):
        self.time += 1
        self.observations[:, 1] = self.time
        self.rewards[:] = actions
        ends = np.array([self.time == 3, self.time == 2])
        (self.terminations if self.num_episodes % 2 else self.truncations)[:] = ends


def played(vec, num_batches=60, n_step=1):
    """What a buffer keeps of random play, as (time, time of the next observation, terminated, episode is odd)."""
    space, rng = vec.single_action_space, np.random.default_rng(1)
    replay = ReplayBuffer(vec, vec.observation_layout, 10_000, n_step=n_step, gamma=1.0)
    vec.async_reset()
    for _ in range(num_batches):
        batch = vec.recv()
        discrete_actions = rng.integers(0, space.n, vec.agents_per_batch)
        vec.send(discrete_actions + space.start)
        replay.add(batch, batch.observations, discrete_actions, batch.rewards, batch.terminations)
    for (episode, before), choice, reward, terminated, (next_episode, after), _ in stored(replay):
        assert next_episode == episode and (reward == choice + 2 or n_step > 1)
        yield int(before), int(after), terminated, episode % 2 == 1


TRUE_ONES = {
    (0, 1, False, True), (1, 2, False, True), (2, 3, True, True),
    (0, 1, False, False), (1, 2, False, False), (2, 3, False, False),
}  # fmt: skip
OF_TWO_STEPS = {(0, 2, False, True), (1, 3, True, True), (2, 3, True, True)}
OF_TWO_STEPS |= {(before, after, False, False) for before, after, _, _ in OF_TWO_STEPS}


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_next_observation_is_the_true_one_at_every_ending(backend):
    plan = dict(backend=backend, num_envs=3, num_workers=2, batch_size=2, seed=1)
    with pufferlib.make(Countdown, **plan) as vec:
        assert set(played(vec)) == TRUE_ONES
        assert set(played(vec, n_step=2)) == OF_TWO_STEPS
    with pufferlib.make(Pair, **plan) as vec:
        assert set(played(vec)) == TRUE_ONES | {(1, 2, True, True), (1, 2, False, False)}  # of the second agent


@pytest.mark.skipif(not hasattr(gymnasium.vector, "AutoresetMode"), reason="Gymnasium 1.1 brought the modes")
def test_environments_that_reset_their_copies_must_show_the_final_observation():
    def copies(mode):
        return lambda: gymnasium.vector.SyncVectorEnv([Countdown] * 3, autoreset_mode=mode)

    with pufferlib.make(copies(gymnasium.vector.AutoresetMode.NEXT_STEP), num_envs=2, batch_size=1) as vec:
        assert set(played(vec)) == TRUE_ONES
    config = dqn.Config(num_envs=4, learning_starts=100, total_steps=200, runs=None)
    with pytest.raises(PlanError, match="resets its copies by itself, and shows no final observation"):
        dqn.train(config, copies(gymnasium.vector.AutoresetMode.SAME_STEP))


class Fragile(Countdown):
    """Never comes to its end."""

    def step(self, action):
        if self.time == 2:
            raise ValueError("no further")
        return super().step(action)


@pytest.mark.filterwarnings("ignore:environment . .* raised in:RuntimeWarning")  # as close tells
@pytest.mark.parametrize("backend", BACKENDS)
def test_crash_rows_are_never_kept(backend):
    plan = dict(backend=backend, num_envs=3, num_workers=2, batch_size=2, seed=1)
    with pufferlib.make(Fragile, **plan, on_error="restart", max_restarts=None) as vec:
        assert {(before, after, over) for before, after, over, _ in played(vec)} == {(0, 1, False), (1, 2, False)}
        ends = {(before, after, over) for before, after, over, _ in played(vec, n_step=3)}
        assert ends == {(0, 2, False), (1, 2, False)}  # the crash ends both
        assert sum(vec.restarts) > 10


def test_a_buffer_that_is_too_small_or_too_large_is_refused():
    with pufferlib.make(Countdown, num_envs=3) as vec:
        with pytest.raises(PlanError, match="buffer_size=2 is less than the 3 rows of a batch"):
            ReplayBuffer(vec, vec.observation_layout, 2)
        with pytest.raises(PlanError, match=r"buffer_size=10{15} needs .* are at hand; use \d+ or less"):
            ReplayBuffer(vec, vec.observation_layout, 10**15)


# --------------------------------------------------------------------------------------------------------- how it draws


@pytest.mark.parametrize("num_added", [5, 17, 40])
def test_all_stored_transitions_are_drawn_and_equally_often(num_added):
    replay = buffer(capacity=17)
    fill(replay, num_added)
    sample = replay.sample(50 * len(replay), torch.Generator().manual_seed(1))
    assert sample.weights is None
    counts = np.unique(sample.serials, return_counts=True)
    assert counts[0].tolist() == list(range(max(0, num_added - 17), num_added))
    assert counts[1].min() > 15 and counts[1].max() < 110
    assert sample.transitions.rewards.tolist() == sample.serials.tolist()  # as fill has it


@settings(max_examples=25, deadline=None)
@given(
    calls=st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 9), st.lists(st.floats(-9, 9, width=32), min_size=4, max_size=4)),
        min_size=1,
        max_size=8,
    ),
    capacity=st.integers(1, 12),
    exponent=st.sampled_from([0.5, 1.0]),
)
def test_priorities_draws_and_weights_are_those_of_a_list(calls, capacity, exponent):
    """New transitions have the largest priority so far, and errors of overwritten ones change nothing."""
    assert not priorities_differ(buffer(capacity=capacity, priority_exponent=exponent), calls)


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.sampled_from([0.0, 1e-6, 0.5, 1.0, 3.0, 1e3]), min_size=1, max_size=40), seed=st.integers(0, 99)
)
def test_a_sum_tree_finds_what_a_running_sum_does(values, seed):
    tree, rng = SumTree(len(values)), np.random.default_rng(seed)
    order = rng.permutation(len(values))
    tree[order] = np.array(values)[order]
    tree[order[:1]] = np.array([2.0])
    values[order[0]] = 2.0
    assert tree[np.arange(len(values))].tolist() == values
    assert tree.total == pytest.approx(sum(values))
    sums = np.cumsum(values)
    masses = rng.random(50) * tree.total
    masses = masses[np.abs(masses[:, None] - sums).min(1) > 1e-9]  # where rounding decides nothing
    assert tree.find(masses).tolist() == np.searchsorted(sums, masses, side="right").tolist()


# ------------------------------------------------------------------------------------------------------- what is saved


@pytest.mark.parametrize("exponent", [0.0, 0.6])
def test_a_restored_buffer_draws_and_goes_on_as_the_one_that_was_saved(exponent):
    replay, restored = (buffer(2, 2, 2, 23, n_step=3, priority_exponent=exponent) for _ in range(2))
    sizes = (2, 2, 2, 30, 0.1)
    fed([replay], np.random.default_rng(1), *sizes)
    replay.update_priorities(replay.sample(9, torch.Generator().manual_seed(1)).serials, torch.arange(9.0))
    replay.end()
    restored.restore(replay.state())
    fed([replay, restored], np.random.default_rng(2), *sizes)
    assert stored(restored) == stored(replay) and restored.num_steps == replay.num_steps
    one, other = (part.sample(40, torch.Generator().manual_seed(3), 0.5) for part in (replay, restored))
    assert one.serials.tolist() == other.serials.tolist()
    assert (one.weights is None) == (exponent == 0) and (exponent == 0 or torch.equal(one.weights, other.weights))


def test_a_state_of_former_versions_is_restored():
    """It had five columns, and no count of steps."""
    replay, restored = buffer(), buffer()
    fill(replay, 4)
    former = replay.state()
    former["columns"], _ = former["columns"][:5], former.pop("num_steps")
    restored.restore(former)
    assert stored(restored) == stored(replay) and restored.num_steps == 4


def test_the_note_states_the_size_of_a_full_buffer_or_of_the_whole_run():
    replay = buffer(capacity=1 << 16)
    fill(replay, 1)
    assert replay.nbytes == sum(column.nbytes for column in replay.columns) == 49 << 16  # 2 * 16 + 8 + 4 + 1 + 4
    for total_steps, size in ((1 << 20, "3.1"), (1 << 15, "1.6")):
        assert f"checkpoints have the replay buffer, {size} MiB at most; --no-keep" in replay.note(total_steps)
