"""Actions of kernel environments: what a policy has, what environments have, and back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gymnasium import spaces

from pufferlib.models.distributions import Decisions
from pufferlib.training.kernel_actions import KernelActions, pair


@pytest.mark.parametrize(
    ("space", "of_policy", "of_environments"),
    [
        (spaces.Discrete(3), [[2], [0]], [[2], [0]]),
        (spaces.MultiDiscrete([2, 3]), [[1, 2]], [[1, 2]]),
        (spaces.Box(-2, 6, (3,)), [[0.0, -3.0, 0.5]], [[2.0, -10.0, 4.0]]),
        (spaces.Box(1, 2, (1, 2)), [[-1.0, 1.0]], [[1.0, 2.0]]),
    ],
)
def test_actions_are_converted_to_and_fro(space: Any, of_policy: Any, of_environments: Any) -> None:
    kernel_actions = KernelActions(Decisions(space), "cpu")
    actions = torch.tensor(of_policy, dtype=kernel_actions.dtype)
    assert actions.shape[1] == kernel_actions.width
    assert kernel_actions.is_continuous == isinstance(space, spaces.Box)
    converted = kernel_actions.of_environments(actions)
    assert converted.dtype == actions.dtype and converted.tolist() == of_environments
    assert torch.equal(kernel_actions.of_policy(converted), actions)
    parts = pair(actions)
    assert parts[kernel_actions.is_continuous] is actions
    assert [part.dtype for part in parts] == [torch.int64, torch.float32]
    assert parts[not kernel_actions.is_continuous].shape == (len(actions), 0)
