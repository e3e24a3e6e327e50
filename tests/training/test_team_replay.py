"""The replay buffer of teams against lists: which steps of which agents its sequences have, in which order."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pufferlib.errors import PlanError
from pufferlib.training import TeamReplay
from tests.mutants.replay_reference import batch_of

pytestmark = [pytest.mark.beside, pytest.mark.extras, pytest.mark.usefixtures("one_thread")]

ROW = SimpleNamespace(shape=(2,), dtype=np.float64)


def replay_for(num_envs=1, num_agents=1, batch_size=1, capacity=10_000, **kwargs):
    vec = SimpleNamespace(num_envs=num_envs, agents_per_env=num_agents, agents_per_batch=batch_size * num_agents)
    return TeamReplay(vec, ROW, capacity, **kwargs)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_envs=st.integers(1, 4),
    num_agents=st.integers(1, 3),
    share=st.floats(0.01, 1),
    num_steps=st.integers(1, 4),
    num_batches=st.integers(8, 30),
    rate=st.sampled_from([0.0, 0.1, 0.4]),
    rows_per_env=st.sampled_from([5, 9, 100]),
)
def test_sequences_are_those_of_each_environments_list_of_rows(
    seed, num_envs, num_agents, share, num_steps, num_batches, rate, rows_per_env
):
    """Random masks, endings and finish orders; an agent's row has its number, and how many its environment has had."""
    random, batch_size = np.random.default_rng(seed), math.ceil(share * num_envs)
    capacity = rows_per_env * num_envs * num_agents
    replay = replay_for(num_envs, num_agents, batch_size, capacity, num_steps=num_steps, memory_size=1)
    lists = [[] for _ in range(num_envs)]
    num_added = 0
    for _ in range(num_batches):
        env_ids = random.permutation(num_envs)[:batch_size]
        ids = (env_ids[:, None] * num_agents + np.arange(num_agents)).reshape(-1)
        masks, ends = random.random(len(ids)) >= rate, random.random(len(ids)) < rate
        rewards, times = random.random(len(ids)), np.repeat([len(lists[env]) for env in env_ids], num_agents)
        batch = batch_of(ids, rewards, ends, [False] * len(ids), masks)._replace(env_ids=env_ids)
        observations = np.stack([ids, times], 1).astype(np.float64)
        memory = (1000 * ids + times)[:, None].astype(np.float32)
        num_added += replay.add(batch, observations, 10 * times + ids, batch.rewards, ends, memory)
        for row, env in enumerate(env_ids):
            part = slice(row * num_agents, (row + 1) * num_agents)
            lists[env].append((masks[part], ends[part], batch.rewards[part]))
    assert num_added == replay.num_added == sum(int(masks.sum()) for rows in lists for masks, _, _ in rows)
    num_kept = [min(len(rows), rows_per_env) for rows in lists]
    assert len(replay) == sum(max(0, num - num_steps) for num in num_kept)
    if not len(replay):
        return
    sampled = replay.sample(50, torch.Generator().manual_seed(1))
    for index in range(50):
        first = sampled.observations[0, index, 0].tolist()
        env, begin = int(first[0]) // num_agents, int(first[1])
        assert len(lists[env]) - num_kept[env] <= begin < len(lists[env]) - num_steps
        agents = env * num_agents + np.arange(num_agents)
        assert sampled.memory[index, :, 0].tolist() == (1000 * agents + begin).tolist()
        for step in range(num_steps + 1):
            assert sampled.observations[step, index].tolist() == [[agent, begin + step] for agent in agents]
            assert sampled.starts[step, index].tolist() == (~lists[env][begin + step][0]).tolist()
        for step in range(num_steps):
            masks, ends, rewards = lists[env][begin + step + 1]
            assert sampled.actions[step, index].tolist() == (10 * (begin + step) + agents).tolist()
            assert sampled.acted[step, index].tolist() == masks.tolist()
            assert sampled.alive[step, index].tolist() == (masks & ~ends).tolist()
            assert sampled.rewards[step, index].tolist() == np.where(masks, rewards, 0).tolist()
    restored = replay_for(num_envs, num_agents, batch_size, capacity, num_steps=num_steps, memory_size=1)
    restored.restore(replay.state())
    again = restored.sample(50, torch.Generator().manual_seed(1))
    assert all(torch.equal(*columns) for columns in zip(sampled, again, strict=True))
    assert restored.num_added == num_added


def test_sequences_begin_with_a_transition_wherever_there_is_one():
    """Every second row is a reset's; drawn blindly, half of the sequences would teach nothing."""
    replay, ids = replay_for(), np.zeros(1, np.int64)
    for time in range(40):
        batch = batch_of(ids, [1.0], [time % 2 == 1], [False], [time % 2 == 1])
        replay.add(batch, np.full((1, 2), time, np.float64), ids, batch.rewards, batch.terminations)
    sampled = replay.sample(500, torch.Generator().manual_seed(1))
    assert sampled.acted.all() and not sampled.alive.any()
    assert set(sampled.observations[0, :, 0, 0].tolist()) == set(range(0, 39, 2))  # each of them


def test_a_step_that_only_some_agents_take_is_drawn_as_often_as_others():
    """Rows of two agents, of whom the second is there in every second row only."""
    replay, ids = replay_for(num_agents=2), np.arange(2)
    for time in range(41):
        batch = batch_of(ids, [1.0, 1.0], [False] * 2, [False] * 2, [time > 0, time > 0 and time % 2 == 0])
        batch = batch._replace(env_ids=np.zeros(1, np.int64))
        replay.add(batch, np.full((2, 2), time, np.float64), ids, batch.rewards, batch.terminations)
    sampled = replay.sample(1_000, torch.Generator().manual_seed(1))
    assert sampled.acted[0, :, 0].all()
    assert sampled.acted[0, :, 1].float().mean() == pytest.approx(0.5, abs=0.1)


def test_a_state_is_a_copy_and_sizes_are_those_of_the_columns():
    joint = replay_for(3, 2, 3, 60, memory_size=4)
    assert joint.nbytes == sum(column.nbytes for column in joint.columns.values())
    replay, ids = replay_for(num_envs=2, batch_size=2, capacity=51, memory_size=3), np.arange(2)

    def add(value: float) -> None:
        batch = batch_of(ids, [value] * 2, [False] * 2, [False] * 2, [True] * 2)
        replay.add(batch, np.full((2, 2), value), ids, batch.rewards, batch.terminations, np.full((2, 3), value))

    for value in range(25):
        add(value)
    assert replay.capacity == 50
    before, state = replay.sample(20, torch.Generator().manual_seed(1)), replay.state()
    for value in range(100, 130):
        add(value)
    replay.restore(state)
    after = replay.sample(20, torch.Generator().manual_seed(1))
    assert all(torch.equal(*columns) for columns in zip(before, after, strict=True))


def test_sizes_that_cannot_be_are_refused():
    with pytest.raises(PlanError, match=r"buffer_size=40 is less than a sequence of 5 joint steps in each of 4 .* 48"):
        replay_for(4, 2, 4, 40, num_steps=5)
    assert len(replay_for(4, 2, 4, 48, num_steps=5)) == 0
    with pytest.raises(PlanError, match=r"buffer_size=\d+ needs .* are at hand; use \d+ or less"):
        replay_for(capacity=10**13)
