"""The model of what a step costs a GPU: bytes by hand, and which limit holds."""

from __future__ import annotations

import pytest

from benchmarks import kernel_model
from cuda_ext.machine_code import Instructions
from pufferlib.testing.kernel_usage import kernel_usage

pytestmark = pytest.mark.beside


def test_a_step_of_tag_costs_what_a_hand_counts() -> None:
    cost = kernel_model.cost_of("tag/grid", kernel_usage("tag/grid", "rollout", "sm_90", kernel_model.GRID))
    assert cost.rows_nbytes == 5 * (6 * 4 + 4 + 3) + 1  # observation, reward, three flags; whether an episode ended
    fields = 5 * (4 + 4 + 1 + 1 + 8) + (4 + 4 + 4 + 1)  # x, y, alive, acts, return; seed, episode, t, over
    assert cost.state_nbytes == 2 * fields
    assert cost.warps_per_env == 1 / 6
    assert 300 < cost.instructions.total < 1_500


def test_few_environments_are_limited_by_latency_and_many_by_issue_or_memory() -> None:
    def limit(total: int, rows_nbytes: int, num_envs: int) -> str:
        instructions = Instructions(total, 0, 0, 0, 0, 0, 0)
        rates = kernel_model.rates(kernel_model.Cost(instructions, 1 / 6, 4_000, rows_nbytes, 0), num_envs)
        return min(rates, key=lambda name: rates[name])

    assert limit(1_000, 100, 1_000) == "latency"
    assert limit(1_000, 100, 100_000) == "issue"
    assert limit(1_000, 100_000, 100_000) == "memory"
