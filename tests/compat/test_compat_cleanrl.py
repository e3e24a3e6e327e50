"""PufferLib's ``cleanrl`` and ``frameworks.cleanrl``: policies that sample their actions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from gymnasium import spaces

pytestmark = [pytest.mark.beside, pytest.mark.usefixtures("no_version")]

torch = pytest.importorskip("torch")

ENV = SimpleNamespace(
    single_observation_space=spaces.Box(-1, 1, (3,)), single_action_space=spaces.MultiDiscrete([2, 3])
)


@pytest.mark.parametrize("module", ["pufferlib.cleanrl", "pufferlib.frameworks.cleanrl"])
def test_a_policy_samples_actions(module: str) -> None:
    cleanrl: Any = __import__(module, fromlist=["Policy"])
    from pufferlib.models import Default, LSTMWrapper

    torch.manual_seed(1)
    policy = cleanrl.Policy(Default(ENV, 8))
    assert hasattr(policy.policy, "value_head")  # the module tells the version
    assert {name.split(".")[0] for name in policy.state_dict()} == {"policy"}
    rows = torch.randn(5, 3)
    actions, logprobs, entropies, values = policy.get_action_and_value(rows)
    assert (actions.shape, actions.dtype, values.shape) == ((5, 2), torch.int64, (5, 1))
    again, *others = policy(rows, action=actions)
    assert torch.equal(again, actions)
    assert torch.allclose(others[0], logprobs)
    logits, _ = policy.policy(rows)
    chosen = [torch.distributions.Categorical(logits=part) for part in logits]
    assert torch.allclose(logprobs, sum(part.log_prob(actions[:, i]) for i, part in enumerate(chosen)))
    assert torch.allclose(entropies, sum(part.entropy() for part in chosen))
    assert torch.equal(policy.get_value(rows), values)

    recurrent = cleanrl.RecurrentPolicy(LSTMWrapper(ENV, Default(ENV, 8), 8, 8))
    assert recurrent.lstm is recurrent.policy.recurrent
    actions, logprobs, _, values, state = recurrent.get_action_and_value(rows)
    _, again, _, _, state = recurrent(rows, None, actions)
    assert torch.allclose(again, logprobs)
    assert torch.equal(recurrent.get_value(rows, None), values)
    assert not torch.allclose(recurrent(rows, state, actions)[1], logprobs)
    with pytest.raises(ValueError, match="neither recurrent nor lstm"):
        cleanrl.RecurrentPolicy(torch.nn.Linear(1, 1)).lstm  # noqa: B018


def test_a_normal_distribution_is_told_by_itself() -> None:
    import pufferlib.cleanrl
    from pufferlib.models import Default

    env = SimpleNamespace(single_observation_space=spaces.Box(-1, 1, (3,)), single_action_space=spaces.Box(-1, 1, (2,)))
    policy = pufferlib.cleanrl.Policy(Default(env, 8))
    assert policy.is_continuous
    actions, logprobs, _, _ = policy(torch.randn(5, 3))
    assert (actions.shape, logprobs.shape) == ((5, 2), (5,))


def test_the_modules_are_imported_as_their_versions_do() -> None:
    import pufferlib.frameworks.cleanrl
    from pufferlib.compat.versions import version_of_program
    from pufferlib.frameworks import cleanrl

    assert pufferlib.frameworks.cleanrl is cleanrl
    assert version_of_program() == 1
