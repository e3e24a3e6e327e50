"""The comparison of learnt with fixed policies on economy/covid: what is stored, played and said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import economy_learning
from benchmarks.economy_learning import (
    Policy,
    bars,
    fixed_outcomes,
    fixed_policies,
    measured,
    outcome,
    packed,
    played,
    policies_to_draw,
    result_table,
    search,
    unpacked,
)
from pufferlib.models import Actor
from pufferlib.vectorization import CUDA

pytestmark = pytest.mark.beside

SUMS = {"held": (431.5896, 437.9824), "closed": (435.7689, 445.7014), "real": (395.1356, 361.0163)}


def test_fixed_policies_earn_what_the_tables_say_and_are_stored_whole() -> None:
    policies = {name: policy for name, policy in fixed_policies().items() if name in SUMS}
    for name, policy in policies.items():
        of = fixed_outcomes()[name]
        np.testing.assert_allclose([of.governors.sum(), of.planner.sum()], SUMS[name], rtol=5e-5)
        stored = unpacked(packed(policy))
        assert np.array_equal(stored.levels, policy.levels) and np.array_equal(stored.subsidies, policy.subsidies)
    assert [len(policy.levels) for policy in policies.values()] == [540, 540, 437]


def test_what_is_stored_of_an_episode_repeats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy at random plays an episode, and what it did earns the same by the equations, day by day."""
    monkeypatch.setattr(economy_learning, "NUM_DAYS", 40)
    with CUDA("economy/covid", device="host", num_envs=1) as vec:
        layout, space = vec.observation_layout, vec.single_action_space
    torch.manual_seed(1)
    sizes = {"governor": {"num_numbers": 75, "num_actions": 11, "num_masks": 11}}
    sizes["planner"] = {"num_numbers": 484, "num_actions": 21, "num_masks": 21}
    actor = Actor("teams", layout, space, places={"governor": range(51), "planner": [51]}, sizes=sizes, hidden_size=4)
    rewards, policy = played(actor, 2, greedy=False)
    assert rewards.shape == (2, 40, 2) and (rewards[0] != rewards[1]).any()
    of = outcome(unpacked(packed(policy)))
    np.testing.assert_allclose(np.stack([of.governors, of.planner], axis=1), rewards[0], rtol=1e-6)
    assert policy.subsidies.any() and len(np.unique(policy.levels)) == 10


def test_bars_are_above_all_fixed_policies() -> None:
    good = {"sums": [437.0, 447.0], "errors": [0.1, 0.1], "first": [396.0, 362.0]}
    names = ["governors above held and closed", "governors above real"]
    names += ["planner above held and closed", "planner above real"]
    assert bars(good) == dict.fromkeys(names, True)
    for worse, name in (
        ({"errors": [0.5, 0.1]}, names[0]),
        ({"first": [395.0, 362.0]}, names[1]),
        ({"sums": [437.0, 445.9]}, names[2]),
        ({"first": [396.0, 360.0]}, names[3]),
    ):
        assert bars({**good, **worse}) == {**dict.fromkeys(names, True), name: False}


def test_pictures_show_the_learnt_policy_of_the_seed_in_the_middle() -> None:
    lines = []
    for seed, level in ((1, 3), (2, 5), (3, 4)):
        policy = Policy(np.full((540, 51), level), np.zeros(540, int))
        lines.append({"seed": seed, "sums": [400.0 + level, 1.0], "policy": packed(policy)})
    policies = policies_to_draw(lines)
    assert list(policies)[:4] == ["learnt", "held", "closed", "real"] and (policies["learnt"].levels == 4).all()
    assert list(policies_to_draw([])) == list(policies)[1:]


@pytest.mark.long
def test_a_search_ends_where_no_state_does_better_with_another_level() -> None:
    """After the lag of 29 days a level still counts, so the best ones are neither all open nor all closed."""
    policy = search(84, num_sweeps=4)
    best = outcome(policy).governors.sum()
    assert len(np.unique(policy.levels)) > 3
    for change in (-1, 1):
        for begin in (0, 28, 56):
            levels = policy.levels.copy()
            levels[begin : begin + 28] = np.clip(levels[begin : begin + 28] + change, 1, 10)
            assert outcome(Policy(levels, policy.subsidies)).governors.sum() <= best


@pytest.mark.long
def test_a_seed_continues_from_its_last_checkpoint(tmp_path: Path) -> None:
    small = {"num_envs": 1, "num_epochs": 1, "total_steps": 50_000, "checkpoint_every": 25_000}
    first = measured(1, tmp_path, 2, **small)
    assert first["num_steps"] >= 50_000 and first["episodes"] == 2
    assert not bars(first)["planner above held and closed"] and "learnt, seed 1" in result_table([first])
    assert len(list(tmp_path.glob("seed-1/*"))) == 1
    again = measured(1, tmp_path, 2, **small)
    assert len(list(tmp_path.glob("seed-1/*"))) == 1
    same = ("num_steps", "sums", "errors", "first", "argmax", "policy")
    assert [again[name] for name in same] == [first[name] for name in same]
