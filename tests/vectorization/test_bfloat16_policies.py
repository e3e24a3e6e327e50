"""Rollouts whose policy tensor cores compute in bfloat16, as fibres play them and, marked gpu, on a device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from devices import FIBRES, LOOPS, Player, array_of, assert_same_bits
from test_device_policies import ROWS, assert_same, expected, make, network_for, nvec_of
from torch import nn

from cuda_ext.references import layers as float32
from cuda_ext.references.layers import Layer
from cuda_ext.references.tensor_cores import error_bound, forward, standard_error
from pufferlib.errors import CallError, KernelError

pytestmark = pytest.mark.beside

# One agent, of whose environments few play in a warp; six groups of a warp, and two idle lanes; two choices; a block.
WHICH = [
    "some agents",
    *(pytest.param(which, marks=pytest.mark.long) for which in ("one agent", "two choices", "many agents")),
]


@pytest.mark.parametrize("which", WHICH)
def test_fibres_play_what_the_reference_plays(which: str) -> None:
    """To the bit, in shuffled order. Sizes are no multiples of 16."""
    with make(which, FIBRES) as vec, make(which) as other:
        vec.reset()
        other.reset()
        policy, layers = network_for(vec, 20, 9)
        for _ in range(2):  # the second launch has smaller blocks
            played = vec.rollout(6, policy=policy, precision="bfloat16")
            for step in range(6):
                wanted = expected(other, forward(seen_by(other), layers))
                assert_same((played.actions[step], played.log_probs[step], played.entropies[step]), wanted)
                other.step(wanted[0])
                for column in ROWS:
                    assert_same_bits(getattr(played, column)[step], getattr(other.batch, column), (step, column))
        assert_near_float32(vec, other, policy, layers)


@pytest.mark.gpu
@pytest.mark.parametrize("which", ["some agents", "one agent", "two choices", "many agents"])
def test_a_device_plays_what_float32_plays_but_for_rounding(which: str, cuda: str) -> None:
    with make(which, Player("device", cuda, {})) as vec, make(which, LOOPS) as other:
        vec.reset()
        other.reset()
        for hidden in ((20, 9), (64, 64)):
            assert_near_float32(vec, other, *network_for(vec, *hidden))


def seen_by(vec: Any) -> np.ndarray:
    seen = array_of(vec.batch.observations)
    return seen.reshape(len(seen), -1)


def assert_near_float32(vec: Any, other: Any, policy: nn.Module, layers: list[Layer]) -> None:
    """Log-probabilities are those of float32, within an error of the logits; the likeliest actions, unless they tie."""
    num_compared = 0
    for greedy in (False, True):
        played = vec.rollout(6, policy=policy, greedy=greedy, precision="bfloat16")
        for step in range(6):
            inputs = seen_by(other)
            error = np.minimum(error_bound(inputs, layers), 6 * standard_error(inputs, layers) + 1e-6).max(axis=1)
            actions = array_of(played.actions[step]).reshape(len(inputs), -1)
            logits = np.split(float32.forward(inputs, layers), np.cumsum(nvec_of(other))[:-1], axis=1)
            parts = [torch.log_softmax(torch.from_numpy(part).double(), dim=1).numpy() for part in logits]
            rows = np.arange(len(inputs))
            log_probs = sum(part[rows, actions[:, k]] for k, part in enumerate(parts))
            # If no logit errs by more than e, no log-probability of a choice errs by more than 2 e.
            assert (np.abs(array_of(played.log_probs[step]) - log_probs) <= 2 * len(parts) * error + 1e-5).all()
            for k, part in enumerate(parts if greedy else []):
                best = np.sort(part, axis=1)
                clear = best[:, -1] - best[:, -2] > 2 * error
                np.testing.assert_array_equal(actions[clear, k], part.argmax(axis=1)[clear])
                num_compared += clear.sum()
            other.step(array_of(played.actions[step]))
            for column in ROWS:
                assert_same_bits(getattr(played, column)[step], getattr(other.batch, column), (step, column))
    assert num_compared > 20


def test_what_cannot_be_is_refused() -> None:
    with make("some agents") as vec:
        vec.reset()
        policy, _ = network_for(vec, 8)
        with pytest.raises(
            KernelError, match=r'tensor cores of a GPU, and device="host" has none; use precision="float32"'
        ):
            vec.rollout(2, policy=policy, precision="bfloat16")
        with pytest.raises(KernelError, match="precision='float16' of a policy; use 'float32' or 'bfloat16'"):
            vec.rollout(2, policy=policy, precision="float16")
        with pytest.raises(
            CallError, match="precision='bfloat16' is for a policy of .*, and there is no policy; leave it out"
        ):
            vec.rollout(2, precision="bfloat16")  # type: ignore[call-overload]
        assert vec.rollout(2, policy=policy, precision="float32").actions.shape == (2, 25)
