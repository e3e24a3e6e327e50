"""PufferLib's ``pytorch``: nested observations as tensors, and its distributions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from compat_programs import nested
from gymnasium import spaces

import pufferlib.emulation
import pufferlib.vector

pytestmark = pytest.mark.beside

torch = pytest.importorskip("torch")

import pufferlib.pytorch  # noqa: E402

pytestmark = pytest.mark.usefixtures("no_version")


@pytest.mark.parametrize("kind", [dict, lambda items: SimpleNamespace(**items)], ids=["items", "attributes"])
def test_the_leaves_of_a_batch_are_views(kind: Any) -> None:
    with pufferlib.vector.make(nested, num_envs=3, backend="Serial") as vecenv:
        vecenv.reset()
        observations = torch.as_tensor(vecenv.step(np.zeros((3, 3), int))[0])
        dtypes = pufferlib.pytorch.nativize_dtype(kind(vecenv.emulated))
        leaves = pufferlib.pytorch.nativize_tensor(observations, dtypes)
        assert {name: (leaf.dtype, tuple(leaf.shape)) for name, leaf in leaves.items()} == {
            "a": (torch.uint8, (3, 2, 2)),
            "b": (torch.float32, (3, 3)),
            "c": (torch.int32, (3, 1)),
        }
        assert leaves["b"].tolist() == [[0.125] * 3] * 3
        assert leaves["c"].tolist() == [[1]] * 3
        assert leaves["b"].untyped_storage().data_ptr() == observations.untyped_storage().data_ptr()
        assert pufferlib.pytorch.flattened_tensor_size(dtypes) == 4 + 3 + 1
        assert dtypes["c"] == (torch.int32, (1,), 16, 4)


def test_leaves_of_one_dtype_are_found_by_element() -> None:
    space = spaces.Dict({"a": spaces.Box(-1, 1, (3,)), "b": spaces.Box(-1, 1, (2, 2))})
    emulated_space, structure = pufferlib.emulation.emulate_observation_space(space)
    emulated = {"observation_dtype": emulated_space.dtype, "emulated_observation_dtype": structure}
    dtypes = pufferlib.pytorch.nativize_dtype(emulated)
    assert dtypes["b"] == (torch.float32, (2, 2), 3, 4)
    leaves = pufferlib.pytorch.nativize_observation(torch.arange(14.0).reshape(2, 7), emulated)
    assert leaves["b"][1].tolist() == [[10, 11], [12, 13]]


def test_the_dtype_of_a_row_may_have_the_shape_of_the_row() -> None:
    structure = np.dtype([("a", np.float32, (2,)), ("b", np.int32, (2, 3))])
    emulated = {"observation_dtype": np.dtype((np.uint8, (32,))), "emulated_observation_dtype": structure}
    assert pufferlib.pytorch.nativize_dtype(emulated) == {
        "a": (torch.float32, (2,), 0, 8),
        "b": (torch.int32, (2, 3), 8, 24),
    }


def test_nested_leaves_are_where_the_environment_wrote_them() -> None:
    """Version 3 looks for what follows a nested Dict at its end without padding."""
    inner = spaces.Dict({"x": spaces.Box(-9, 9, (1,), np.float32), "y": spaces.Box(0, 9, (2,), np.uint8)})
    space = spaces.Dict({"d": inner, "e": spaces.Box(-9, 9, (1,), np.float32)})
    emulated_space, structure = pufferlib.emulation.emulate_observation_space(space)
    sample = {"d": {"x": np.float32([3]), "y": np.uint8([4, 5])}, "e": np.float32([6])}
    row = pufferlib.emulation.make_buffer(np.uint8, structure, None, 1)
    pufferlib.emulation.emulate(row.view(structure)[0, 0], sample)
    emulated = {"observation_dtype": emulated_space.dtype, "emulated_observation_dtype": structure}
    leaves = pufferlib.pytorch.nativize_observation(torch.as_tensor(row), emulated)
    assert (leaves["d"]["x"].item(), leaves["d"]["y"].tolist(), leaves["e"].item()) == (3, [[4, 5]], 6)


def test_sampled_logits() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0], [2.0, 0.0, -1.0]])
    expected = torch.distributions.Categorical(logits=logits)
    action, logprob, entropy = pufferlib.pytorch.sample_logits(logits)
    assert (action.shape, action.dtype) == ((2,), torch.int32)
    assert torch.allclose(logprob, expected.log_prob(action))
    assert torch.allclose(entropy, expected.entropy())

    taken = torch.tensor([2, 0])
    action, logprob, _ = pufferlib.pytorch.sample_logits(logits, taken)
    assert action.tolist() == [2, 0]
    assert torch.allclose(logprob, pufferlib.pytorch.log_prob(logits, taken))

    pair = (logits, logits[:, :2])
    action, logprob, entropy = pufferlib.pytorch.sample_logits(pair)
    assert (action.shape, logprob.shape, entropy.shape) == ((2, 2), (2,), (2,))
    again = pufferlib.pytorch.sample_logits(pair, action)
    assert torch.equal(again[0], action)
    assert torch.allclose(again[1], logprob)

    normal = torch.distributions.Normal(torch.zeros(2, 3), torch.ones(2, 3))
    action, logprob, _ = pufferlib.pytorch.sample_logits(normal)
    assert torch.allclose(logprob, normal.log_prob(action).sum(1))
    assert pufferlib.pytorch.sample_logits(torch.tensor([[float("nan")] * 2]))[0].item() in (0, 1)


def test_samples_have_the_probabilities_of_their_logits() -> None:
    torch.manual_seed(1)
    probabilities = torch.tensor([[0.1, 0.2, 0.7], [0.6, 0.4, 0.0]])
    logits = probabilities.log().repeat_interleave(4000, 0)
    for action in (
        pufferlib.pytorch.sample_logits(logits)[0],
        *pufferlib.pytorch.sample_logits((logits, logits))[0].T,
    ):
        counts = torch.nn.functional.one_hot(action.long(), 3).reshape(2, 4000, 3).float().mean(1)
        assert torch.allclose(counts, probabilities, atol=0.04)  # five standard deviations
        assert counts[1, 2] == 0
    means = torch.tensor([-3.0, 5.0]).repeat(4000, 1)
    actions = pufferlib.pytorch.sample_logits(torch.distributions.Normal(means, 2.0))[0]
    assert torch.allclose(actions.mean(0), means[0], atol=0.16)
    assert torch.allclose(actions.std(0), torch.full((2,), 2.0), atol=0.16)


def test_layers() -> None:
    layer = pufferlib.pytorch.layer_init(torch.nn.Linear(4, 4), std=2.0, bias_const=1.0)
    assert torch.allclose(layer.weight @ layer.weight.T, 4 * torch.eye(4), atol=1e-5)
    assert layer.bias.tolist() == [1] * 4
    lstm = pufferlib.pytorch.BatchFirstLSTM(3, 5)
    hidden, states = lstm(torch.zeros(2, 7, 3))
    assert (hidden.shape, states[0].shape) == ((2, 7, 5), (2, 1, 5))
    assert lstm(torch.zeros(2, 7, 3), states)[0].shape == (2, 7, 5)
    assert pufferlib.pytorch.round_to(9, 4) == 12
