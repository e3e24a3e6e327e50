"""PufferLib's policies: their modules in each version, what they return, and how their versions are told apart."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from compat_programs import nested, one, team
from gymnasium import spaces

torch = pytest.importorskip("torch")

import pufferlib.vector  # noqa: E402
from pufferlib.models import (  # noqa: E402
    Convolutional,
    ConvSequence,
    Default,
    LSTMWrapper,
    ProcgenResnet,
    ResidualBlock,
)

pytestmark = [pytest.mark.beside, pytest.mark.extras, pytest.mark.usefixtures("no_version")]

BOX = spaces.Box(-1, 1, (3,))


def env_of(observation_space: Any, action_space: Any) -> Any:
    return SimpleNamespace(single_observation_space=observation_space, single_action_space=action_space)


@pytest.fixture(params=[3, 2])
def version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The version that the program's imports show."""
    for name in ("frameworks", "cleanrl", "pufferl"):
        monkeypatch.delitem(sys.modules, f"pufferlib.{name}", raising=False)
    if request.param == 2:
        monkeypatch.setitem(sys.modules, "pufferlib.cleanrl", ModuleType("cleanrl"))
    return int(request.param)


def test_state_dicts_have_each_versions_names(version: int) -> None:
    policies = {
        "discrete": Default(env_of(BOX, spaces.Discrete(4)), hidden_size=8),
        "multi": Default(env_of(BOX, spaces.MultiDiscrete([2, 3])), hidden_size=8),
        "box": Default(env_of(BOX, spaces.Box(-1, 1, (2,))), hidden_size=8),
        "dict": Default(nested(), hidden_size=8),
        "lstm": LSTMWrapper(nested(), Default(nested(), 8), input_size=8, hidden_size=8),
    }
    names = {kind: {*policy.state_dict()} for kind, policy in policies.items()}

    def pairs(*modules: str) -> set[str]:
        return {f"{module}.{kind}" for module in modules for kind in ("weight", "bias")}

    value, encoder = ("value", "encoder.0") if version == 3 else ("value_head", "encoder")
    assert names["discrete"] == pairs(encoder, "decoder", value)
    assert names["multi"] == pairs(encoder, *(["decoder"] if version == 3 else ["decoder.0", "decoder.1"]), value)
    assert names["box"] == pairs(encoder, "decoder_mean", value) | {"decoder_logstd"}
    assert names["dict"] >= pairs("encoder")
    assert policies["dict"].encoder.in_features == 4 + 3 + 1
    tensors = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    layers = {f"recurrent.{name}_l0" for name in tensors}
    if version == 3:
        layers = {f"lstm.{name}_l0" for name in tensors} | {f"cell.{name}" for name in tensors}
    assert {name for name in names["lstm"] if not name.startswith("policy.")} == layers


def test_the_hidden_layer_of_default_begins_with_torchs_own_weights(version: int) -> None:
    torch.manual_seed(1)
    encoder = Default(env_of(BOX, spaces.Discrete(4)), hidden_size=8).encoder
    torch.manual_seed(1)
    expected = torch.nn.Linear(3, 8)
    assert torch.equal((encoder[0] if version == 3 else encoder).weight, expected.weight)


def test_what_default_returns(version: int) -> None:
    rows = torch.randn(5, 3)
    logits, values = Default(env_of(BOX, spaces.Discrete(4)))(rows)
    assert (logits.shape, values.shape) == ((5, 4), (5, 1))
    logits, _ = Default(env_of(BOX, spaces.MultiDiscrete([2, 3])))(rows)
    assert isinstance(logits, tuple if version == 3 else list)
    assert [part.shape for part in logits] == [(5, 2), (5, 3)]
    normal, _ = Default(env_of(BOX, spaces.Box(-1, 1, (2,))))(rows)
    assert (normal.loc.shape, normal.scale.tolist()) == ((5, 2), [[1, 1]] * 5)
    policy = Default(env_of(BOX, spaces.Discrete(4)))
    hidden = policy.encode_observations(rows)
    if version == 2:
        hidden, lookup = hidden
        assert lookup is None
        assert (hidden >= 0).all()  # a ReLU
    else:
        assert (hidden < 0).any()  # a GELU
        assert torch.equal(policy.forward_eval(rows, {})[0], policy(rows)[0])
    assert torch.equal(policy.decode_actions(hidden)[0], policy(rows)[0])
    with pytest.raises(pufferlib.SpaceError, match="MultiBinary"):
        Default(env_of(BOX, spaces.MultiBinary(2)))


def test_leaves_of_nested_observations_are_joined_as_numbers() -> None:
    with pufferlib.vector.make(nested, num_envs=2, backend="Serial") as vecenv:
        vecenv.reset()
        observations = torch.as_tensor(vecenv.step(np.zeros((2, 3), int))[0])
        policy = Default(vecenv.driver_env, hidden_size=4)
        flat = torch.tensor([[1.0] * 4 + [0.125] * 3 + [1.0]] * 2)
        assert torch.allclose(
            policy.encode_observations(observations),
            torch.nn.functional.linear(flat, policy.encoder.weight, policy.encoder.bias),
        )
    assert not Default(team()).is_dict_obs


class OfVersion2(Default):
    def encode_observations(self, observations: Any) -> Any:  # type: ignore[override]
        return torch.relu(self.encoder(observations)), observations

    def decode_actions(self, hidden: Any, lookup: Any, concat: Any = None) -> Any:
        return self.decoder(hidden) + lookup.sum(1, keepdim=True), self.value_head(hidden)


class EncoderOfVersion2(Default):
    def encode_observations(self, observations: Any) -> Any:  # type: ignore[override]
        return torch.relu(self.encoder(observations)), None


class OfVersion3(Default):
    def encode_observations(self, observations: Any, state: Any = None) -> Any:
        self.seen = state
        return self.encoder(observations)

    def decode_actions(self, hidden: Any) -> Any:  # type: ignore[override]
        return self.decoder(hidden), self.value(hidden)


def test_a_policys_methods_tell_its_version() -> None:
    env = env_of(BOX, spaces.Discrete(4))
    rows = torch.randn(2, 3)
    for kind, has in ((OfVersion2, "value_head"), (EncoderOfVersion2, "value_head"), (OfVersion3, "value")):
        policy = kind(env)
        assert hasattr(policy, has)
        assert policy(rows)[0].shape == (2, 4)
        wrapped = LSTMWrapper(env, policy)
        assert hasattr(wrapped, "recurrent") is (has == "value_head")
    state = {"lstm_h": None, "lstm_c": None}
    policy = OfVersion3(env)
    LSTMWrapper(env, policy).forward_eval(rows, state)
    assert policy.seen is state  # the encoder sees the state
    assert hasattr(LSTMWrapper(env, torch.nn.Linear(1, 1), 128, 128, 1), "recurrent")


def test_an_lstm_of_version_3_unrolls_as_it_steps() -> None:
    env = env_of(BOX, spaces.MultiDiscrete([2, 3]))
    policy = LSTMWrapper(env, Default(env, 8), input_size=8, hidden_size=8)
    rows, steps = 4, 5
    observations = torch.randn(rows, steps, 3)
    state: dict[str, Any] = {"lstm_h": None, "lstm_c": None}
    stepped = [policy.forward_eval(observations[:, step], state) for step in range(steps)]
    unrolled: dict[str, Any] = {"lstm_h": None, "lstm_c": None}
    logits, values = policy(observations, unrolled)
    for part in range(2):
        successive = torch.stack([logits[part] for logits, _ in stepped], 1)
        assert torch.allclose(logits[part].reshape(rows, steps, -1), successive, atol=1e-6)
    assert torch.allclose(values, torch.cat([values for _, values in stepped], 1), atol=1e-6)
    assert torch.allclose(unrolled["lstm_h"][0], state["lstm_h"], atol=1e-6)
    assert (unrolled["lstm_c"].shape, unrolled["lstm_c"].requires_grad) == ((1, rows, 8), False)
    assert unrolled["hidden"].shape == (rows, steps, 8)
    again, _ = policy(observations[:, 0], unrolled)
    after, _ = policy.forward_eval(observations[:, 0], state)
    assert torch.allclose(again[0], after[0], atol=1e-6)


def test_an_lstm_of_version_2_unrolls_as_it_steps() -> None:
    env = env_of(BOX, spaces.Discrete(4))
    policy = LSTMWrapper(env, EncoderOfVersion2(env, 8), input_size=8, hidden_size=8, num_layers=2)
    observations = torch.randn(3, 5, 3)
    logits, values, (h, c) = policy(observations, None)
    assert (logits.shape, values.shape, h.shape, c.shape) == ((15, 4), (15, 1), (2, 3, 8), (2, 3, 8))
    state, stepped = None, []
    for step in range(5):
        row, _, state = policy(observations[:, step], state)
        stepped.append(row)
    assert torch.allclose(logits.reshape(3, 5, 4), torch.stack(stepped, 1), atol=1e-6)
    assert torch.allclose(h, state[0], atol=1e-6)


def test_an_lstm_initializes_the_policy_in_version_3_alone() -> None:
    env = env_of(BOX, spaces.Discrete(4))
    policy = OfVersion3(env, 8)
    torch.nn.init.constant_(policy.encoder[0].bias, 5)
    LSTMWrapper(env, policy, 8, 8)
    assert not policy.encoder[0].bias.any()
    assert torch.allclose(policy.decoder.weight @ policy.decoder.weight.T, torch.eye(4), atol=1e-5)
    other = EncoderOfVersion2(env, 8)
    torch.nn.init.constant_(other.encoder.bias, 5)
    LSTMWrapper(env, other, 8, 8)
    assert (other.encoder.bias == 5).all()


def test_an_lstm_refuses_other_shapes() -> None:
    env = one()
    policy = LSTMWrapper(env, Default(env))
    with pytest.raises(ValueError, match=r"\(2, 3\); expected \(rows"):
        policy(torch.zeros(2, 3), {"lstm_h": None, "lstm_c": None})
    zeros = torch.zeros(3, 128)
    with pytest.raises(AssertionError, match="3 rows"):
        policy.forward_eval(torch.zeros(2, 2), {"lstm_h": zeros, "lstm_c": zeros})
    with pytest.raises(KeyError, match="lstm_h"):
        policy.forward_eval(torch.zeros(2, 2), {})


def test_networks_for_images(version: int) -> None:
    env = env_of(spaces.Box(0, 255, (84, 84, 4), np.uint8), spaces.Discrete(6))
    images = torch.randint(0, 256, (2, 84, 84, 4), dtype=torch.uint8)
    sizes = {"framestack": 4, "flat_size": 64 * 7 * 7, "hidden_size": 16, "output_size": 16}
    policy = Convolutional(env, **sizes, channels_last=True)
    logits, values = policy(images)
    assert (logits.shape, values.shape) == ((2, 6), (2, 1))
    first = Convolutional(env, **sizes)
    first.load_state_dict(policy.state_dict())
    assert torch.equal(first(images.permute(0, 3, 1, 2))[0], logits)
    half = Convolutional(env, **{**sizes, "flat_size": 64}, channels_last=True, downsample=2)
    assert half(images)[0].shape == (2, 6)

    env = env_of(spaces.Box(0, 255, (15, 16, 3), np.uint8), spaces.Discrete(6))
    resnet = ProcgenResnet(env, cnn_width=4, mlp_width=8)
    logits, values = resnet(torch.zeros(2, 15, 16, 3, dtype=torch.uint8))
    assert (logits.shape, values.shape) == ((2, 6), (2, 1))
    assert {name.split(".")[0] for name in resnet.state_dict()} == {"network", "actor", "value"}
    stage = ConvSequence((3, 15, 16), 4)
    assert stage(torch.zeros(1, 3, 15, 16)).shape[1:] == stage.get_output_shape() == (4, 8, 8)
    block = ResidualBlock(3)
    for parameter in block.parameters():
        torch.nn.init.zeros_(parameter)
    x = torch.randn(1, 3, 4, 4)
    assert torch.equal(block(x), x)
    if version == 3:
        assert LSTMWrapper(env, resnet, 8, 8).forward_eval(
            torch.zeros(2, 15, 16, 3, dtype=torch.uint8), {"lstm_h": None, "lstm_c": None}
        )[1].shape == (2, 1)
