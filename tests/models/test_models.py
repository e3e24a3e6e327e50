"""Policies: what they make of observations, the distributions of their outputs, masks, memory, and users' own."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.utils.env_checker import data_equivalence
from torch import nn

import pufferlib
import pufferlib.emulation
from pufferlib import registry
from pufferlib.errors import CheckpointError
from pufferlib.layout import observation_layout
from pufferlib.models import (
    CNN,
    LSTM,
    MLP,
    Actor,
    Decisions,
    Distribution,
    FrameStack,
    Origin,
    action_mask_reader,
    load_policy,
    make_policy,
    observe,
    read_policy,
    running_norm,
    save_policy,
)
from pufferlib.models.critics import ReLUNetwork
from pufferlib.models.files import require_trust
from pufferlib.models.mixers import TeamState
from pufferlib.models.reading import Features, images_of
from pufferlib.models.team_critics import own_features

pytestmark = pytest.mark.beside

FLAT = observation_layout(spaces.Box(-9, 9, (5,), np.float32))
IMAGES = observation_layout(spaces.Box(0, 255, (40, 44, 3), np.uint8))
MASKED = observation_layout(
    spaces.Dict({"action_mask": spaces.MultiBinary(5), "x": spaces.Box(-1, 1, (3,), np.float32)})
)
MIXED = spaces.Tuple([spaces.MultiDiscrete([3, 2]), spaces.Box(-1, 1, (2,), np.float32)])


# --------------------------------------------------------------------------------------------------- distributions


def test_a_distribution_agrees_with_torchs_own() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = [torch.randn(6, 3, generator=generator), torch.randn(6, 5, generator=generator)]
    mean, std = torch.randn(6, 2, generator=generator), torch.rand(6, 2, generator=generator) + 0.1
    distribution = Distribution(logits, mean, std)
    discrete_actions, continuous_actions = distribution.sample(generator)
    normal = torch.distributions.Normal(mean, std)
    parts = [torch.distributions.Categorical(logits=part) for part in logits]
    log_prob = normal.log_prob(continuous_actions).sum(1) + sum(
        part.log_prob(discrete_actions[:, i]) for i, part in enumerate(parts)
    )
    entropy = normal.entropy().sum(1) + sum(part.entropy() for part in parts)
    torch.testing.assert_close(distribution.log_prob(discrete_actions, continuous_actions), log_prob)
    torch.testing.assert_close(distribution.entropy(), entropy)
    best, most_likely = distribution.mode()
    assert best.tolist() == torch.stack([part.argmax(1) for part in logits], 1).tolist()
    assert most_likely.tolist() == mean.tolist()


def test_samples_have_the_distribution_they_are_drawn_from() -> None:
    probs, num = torch.tensor([0.1, 0.2, 0.7]), 100_000
    distribution = Distribution([probs.log().expand(num, 3)], torch.full((num, 1), 2.0), torch.full((num, 1), 3.0))
    discrete_actions, continuous_actions = distribution.sample(torch.Generator().manual_seed(1))
    torch.testing.assert_close(discrete_actions[:, 0].bincount() / num, probs, atol=0.01, rtol=0)
    assert abs(continuous_actions.mean() - 2) < 0.05
    assert abs(continuous_actions.std() - 3) < 0.05


@pytest.mark.parametrize(
    ("space", "discrete_actions", "continuous_actions", "expected"),
    [
        (spaces.Discrete(3, start=5), [[2]], [[]], [7]),
        (spaces.MultiDiscrete([2, 3]), [[1, 2]], [[]], [[1, 2]]),
        (spaces.MultiDiscrete([[2, 3]]), [[1, 2]], [[]], [[[1, 2]]]),
        (spaces.MultiBinary(2), [[1, 0]], [[]], [[1, 0]]),
        (spaces.Box(-2, 6, (3,), np.float32), [[]], [[0.0, -3.0, 0.5]], [[2.0, -2.0, 4.0]]),
        (spaces.Box(-np.inf, np.inf, (1,), np.float64), [[]], [[7.5]], [[7.5]]),
        (spaces.Box(0, 10, (1,), np.int32), [[]], [[0.1]], [[6]]),  # 5.5, to the even one
    ],
)
def test_actions_lie_in_their_space(space: Any, discrete_actions: Any, continuous_actions: Any, expected: Any) -> None:
    decisions = Decisions(space)
    assert (len(decisions.nvec), decisions.num_aims) == (len(discrete_actions[0]), len(continuous_actions[0]))
    actions = decisions.actions(torch.tensor(discrete_actions, dtype=torch.int64), torch.tensor(continuous_actions))
    np.testing.assert_allclose(actions, expected)
    assert actions[0] in space or actions[0].dtype == space.dtype


def test_a_space_without_a_policy_is_refused() -> None:
    with pytest.raises(pufferlib.SpaceError, match="no policy for Text"):
        MLP(FLAT, spaces.Text(3))


@pytest.mark.parametrize("space", [spaces.Discrete(4), spaces.MultiDiscrete([3, 2]), MIXED])
def test_what_a_mask_forbids_is_neither_drawn_nor_counted(space: Any) -> None:
    decisions, num = Decisions(space), 2000
    mask = torch.zeros((num, decisions.num_options), dtype=torch.bool)
    allowed = [[0, 2] if n > 2 else [1] for n in decisions.nvec]
    first = 0
    for n, options in zip(decisions.nvec, allowed, strict=True):
        mask[:, [first + option for option in options]] = True
        first += n
    numbers = torch.randn(num, decisions.num_outputs, requires_grad=True)
    distribution = decisions.distribution(decisions.outputs(numbers, torch.zeros(decisions.num_aims)), mask)
    discrete_actions, continuous_actions = distribution.sample(torch.Generator().manual_seed(1))
    for column, options in zip(discrete_actions.T.tolist(), allowed, strict=True):
        assert set(column) == set(options)
    for column, options in zip(distribution.mode()[0].T.tolist(), allowed, strict=True):
        assert set(column) <= set(options)
    # The others share the probability, and the forbidden have no part in entropy or gradient.
    left = [part[:, options].log_softmax(1) for part, options in
            zip(numbers[:, : decisions.num_options].split(decisions.nvec, 1), allowed, strict=True)]  # fmt: skip
    entropy = sum(-(part.exp() * part).sum(1) for part in left)
    continuous = decisions.num_aims * 0.5 * math.log(2 * math.pi * math.e)
    torch.testing.assert_close(distribution.entropy(), entropy + continuous)
    (distribution.log_prob(discrete_actions, continuous_actions).mean() + distribution.entropy().mean()).backward()
    assert torch.isfinite(numbers.grad).all()
    assert not numbers.grad[:, : decisions.num_options][~mask].any()


def test_where_a_mask_allows_nothing_anything_may_be_drawn() -> None:
    """Rows of absent agents are zeros, their masks as well."""
    logits = torch.tensor([[9.0, 0.0, 0.0]]).repeat(300, 1)
    distribution = Decisions(spaces.Discrete(3)).distribution(logits, torch.zeros(300, 3, dtype=torch.bool))
    discrete_actions, _ = distribution.sample()
    assert set(discrete_actions[:, 0].tolist()) == {0, 1, 2}


# ---------------------------------------------------------------------------------------------------- observations


def test_features_of_nested_observations() -> None:
    space = spaces.Dict(
        {
            "kind": spaces.Discrete(3, start=4),
            "near": spaces.Box(-1, 1, (2,), np.float32),
            "far": spaces.Box(-np.inf, np.inf, (1,), np.float64),
            "pair": spaces.Tuple([spaces.MultiDiscrete([2, 2]), spaces.MultiBinary(1)]),
        }
    )
    layout = observation_layout(space)
    sample = {
        "kind": np.int64(5),
        "near": np.array([0.5, -1], np.float32),
        "far": np.array([math.e - 1]),
        "pair": (np.array([0, 1]), np.array([1], np.int8)),
    }
    rows = torch.from_numpy(np.stack([layout.flatten(sample), np.zeros(layout.shape, layout.dtype)]))
    read = MLP(layout, spaces.Discrete(2), 4).read
    present = {"kind": [0, 1, 0], "near": [0.5, -1], "far": [1], "pair": [1, 0, 0, 1, math.log(2)]}
    absent = {"kind": [0, 0, 0], "near": [0, 0], "far": [0], "pair": [1, 0, 1, 0, 0]}
    for row, expected in zip(read(rows).tolist(), (present, absent), strict=True):
        assert row == pytest.approx([number for key in space.spaces for number in expected[key]])


def test_sac_td3_and_the_agents_of_qmix_and_maddpg_read_numbers_within_10_unchanged() -> None:
    space = spaces.Dict(far=spaces.Box(-11, 11, (1,), np.float32), near=spaces.Box(-9, 9, (1,), np.float32))
    layout = observation_layout(space)
    row = torch.tensor([[1 - math.e, -8.0]])
    for read in (ReLUNetwork(layout, 1).read, own_features(layout)):
        assert read(row).tolist() == [[pytest.approx(-1), -8.0]]
    for read in (MLP(layout, spaces.Discrete(2), 4).read, TeamState(layout, 1).read):
        assert read(row).tolist() == [[pytest.approx(-1), pytest.approx(-math.log(9))]]
    layout = observation_layout(SIGHTS["beside numbers"])
    row = torch.from_numpy(layout.flatten({"screen": np.zeros((40, 44, 3), np.uint8), "health": np.float32([8, -8])}))
    parts: Any = ReLUNetwork(layout, 1).read(row.unsqueeze(0))
    assert parts[1].tolist() == [[8, -8]]


@pytest.mark.parametrize("shape", [(84, 84, 4), (4, 84, 84)])
def test_images_pass_convolutions(shape: Any) -> None:
    layout = observation_layout(spaces.Box(0, 255, shape, np.uint8))
    policy: Any = make_policy("default", layout, spaces.Discrete(2), hidden_size=4, channels=(8, 16, 32))
    assert isinstance(policy, CNN) and policy.actor[1].in_features == 32 * 7 * 7
    frames = torch.randint(0, 256, (3, 4, 84, 84), dtype=torch.uint8)
    images = frames if shape[0] == 4 else frames.permute(0, 2, 3, 1)
    assert torch.equal(policy.read(images), frames / 255)
    assert policy(images, None, None)[1].shape == (3,)


PICTURE = spaces.Box(0, 255, (40, 44, 3), np.uint8)
SIGHTS = {
    "beside numbers": spaces.Dict(screen=PICTURE, health=spaces.Box(-9, 9, (2,), np.float32)),
    "two of one size": spaces.Dict(depth=spaces.Box(0, 255, (40, 44), np.uint8), screen=PICTURE),
    "two sizes": spaces.Dict(map=spaces.Box(0, 255, (1, 36, 36), np.uint8), kind=spaces.Discrete(3), screen=PICTURE),
    "gray": spaces.Box(0, 255, (40, 44), np.uint8),
}


@pytest.mark.parametrize("policy", ["default", "nature", "lstm"])
@pytest.mark.parametrize(
    ("space", "num_channels"), [*zip(SIGHTS.values(), ([3], [4], [3, 1], [1]), strict=True)], ids=SIGHTS
)
def test_images_among_other_leaves_pass_convolutions(space: Any, num_channels: list[int], policy: str) -> None:
    """And the other leaves arrive too: each changes the value."""
    layout = observation_layout(space)
    network: Any = make_policy(policy, layout, spaces.Discrete(2), hidden_size=8)
    first = [
        part.in_channels for part in network.modules() if isinstance(part, nn.Conv2d) and part.kernel_size == (8, 8)
    ]
    assert sorted(first) == sorted(num_channels * (2 if policy == "default" else 1))
    space.seed(1)
    samples = [space.sample() for _ in range(3)]
    rows = torch.from_numpy(np.stack([layout.flatten(sample) for sample in samples]))
    state = network.initial_state(3) if policy == "lstm" else None
    values = network(rows, state, None)[1]
    assert values.shape == (3,)
    for key in space if isinstance(space, spaces.Dict) else ():
        other = np.stack([layout.flatten({**sample, key: samples[0][key]}) for sample in samples])
        assert (network(torch.from_numpy(other), state, None)[1] != values).any(), key


@pytest.mark.parametrize("space", [SIGHTS["beside numbers"], SIGHTS["gray"]], ids=["beside numbers", "gray"])
def test_a_policy_from_before_images_were_seen_says_so(space: Any, tmp_path: Any) -> None:
    layout = observation_layout(space)
    save_policy(tmp_path / "policy.pt", MLP(layout, spaces.Discrete(2)), Origin("default"))
    with pytest.raises(CheckpointError, match="a version of pufferlib with different networks.*train it again"):
        read_policy(tmp_path / "policy.pt").actor(layout, spaces.Discrete(2))


def test_a_stack_of_images_beside_numbers_is_one_image_of_more_channels() -> None:
    layout = observation_layout(SIGHTS["beside numbers"])
    stack = FrameStack(layout, 3, 2)
    assert images_of(stack.layout).shapes == [(9, 40, 44)]  # type: ignore[union-attr]
    samples = [layout.space.sample() for _ in range(6)]
    rows = torch.from_numpy(np.stack([layout.flatten(sample) for sample in samples]))
    for step in range(3):
        seen = stack(rows[2 * step : 2 * step + 2], torch.arange(2), torch.full((2,), step > 0))
    images, numbers = images_of(stack.layout)(seen)
    for agent in range(2):
        frames = [samples[2 * step + agent]["screen"] for step in range(3)]
        assert torch.equal(images[agent].permute(1, 2, 0), torch.from_numpy(np.concatenate(frames, 2)) / 255)
    assert numbers.shape == (2, 6)


@pytest.mark.parametrize("among", [False, True])
def test_an_image_goes_up_to_one_whatever_its_space_calls_the_most(among: bool) -> None:
    """Else a grid of ones and zeros would be all but black."""
    grid = spaces.Box(0, np.array([[1] * 40] * 20 + [[4] * 40] * 20, np.uint8), (40, 40), np.uint8)
    space = spaces.Dict(grid=grid, kind=spaces.Discrete(3)) if among else grid
    layout = observation_layout(space)
    rows = layout.flatten({"grid": grid.high, "kind": 0} if among else grid.high)
    seen = images_of(layout)(torch.from_numpy(rows[None]))
    image = seen[0] if isinstance(seen, list) else seen
    assert image.shape == (1, 1, 40, 40) and image[0, 0, :, 0].tolist() == [0.25] * 20 + [1] * 20


def test_pixels_of_no_channel_are_no_image() -> None:
    space = spaces.Dict(nothing=spaces.Box(0, 255, (40, 44, 0), np.uint8), kind=spaces.Discrete(3))
    assert isinstance(make_policy("default", observation_layout(space), spaces.Discrete(2)), MLP)


@pytest.mark.parametrize("policy", ["default", "cnn", "nature", "lstm"])
def test_numbers_beside_images_are_standardised(policy: str) -> None:
    layout = observation_layout(SIGHTS["beside numbers"])
    network: Any = make_policy(policy, layout, spaces.Discrete(2), hidden_size=8, normalize=True)
    samples = [{"screen": PICTURE.high, "health": np.array(health, np.float32)} for health in ([1, 4], [3, 8])]
    rows = torch.from_numpy(np.stack([layout.flatten(sample) for sample in samples]))
    observe(network, rows)
    image, numbers = (network if policy in ("default", "cnn") else network.encoder).read(rows)
    assert image.amax().item() == 1 and numbers.tolist() == pytest.approx(np.array([[-1, -1], [1, 1]]), abs=1e-4)
    lone = observation_layout(PICTURE)  # has no numbers, and so no statistics
    assert not [*make_policy(policy, lone, spaces.Discrete(2), hidden_size=8, normalize=True).buffers()]


def test_an_mlp_computes_what_its_layers_do_whatever_was_done_to_them() -> None:
    layout = observation_layout(spaces.Box(-1, 1, (5,)))
    policy = make_policy("mlp", layout, spaces.Discrete(3))
    rows = torch.rand(8, 5)
    network: Any = policy.actor
    plain = nn.Sequential(*network)
    assert torch.equal(network(rows), plain(rows))
    seen: list[Any] = []
    handles = [layer.register_forward_hook(lambda layer, inputs, outputs: seen.append(layer)) for layer in network]
    assert torch.equal(network(rows), plain(rows))
    assert seen == [*network, *network]
    for handle in handles:
        handle.remove()
    nn.utils.parametrize.register_parametrization(network[0], "weight", nn.Softplus())
    network[3] = nn.ReLU()
    assert torch.equal(network(rows), nn.Sequential(*network)(rows))
    weights = {name: torch.ones_like(part) for name, part in network.named_parameters()}
    assert torch.equal(
        torch.func.functional_call(network, weights, rows),
        torch.func.functional_call(nn.Sequential(*network), weights, rows),
    )


def test_a_mask_is_found_in_the_observation() -> None:
    space = spaces.Dict({"action_mask": spaces.MultiBinary(5), "x": spaces.Box(0, 1, (1,), np.float64)})
    layout = observation_layout(space)
    read = action_mask_reader(layout, spaces.MultiDiscrete([3, 2]))
    samples = [{"action_mask": np.array(bits, np.int8), "x": np.ones(1)} for bits in ([1, 0, 1, 0, 1], [0] * 5)]
    assert read is not None
    masks = read(torch.from_numpy(np.stack([layout.flatten(sample) for sample in samples])))
    assert masks.dtype == torch.bool and masks.tolist() == [[True, False, True, False, True], [False] * 5]
    assert action_mask_reader(FLAT, spaces.Discrete(2)) is None
    with pytest.raises(pufferlib.SpaceError, match=r'"action_mask" has 5 elements, but Discrete\(4\) has 4 options'):
        action_mask_reader(layout, spaces.Discrete(4))


def test_networks_compute_in_the_precision_that_is_asked_for() -> None:
    """And what comes of it is float32, close by, as are the gradients."""
    rows = torch.from_numpy(np.stack([FLAT.space.sample() for _ in range(64)]))
    seen: list[torch.dtype] = []
    for name in ("mlp", "lstm"):
        actor = Actor(name, FLAT, MIXED)
        for layer in actor.policy.modules():
            if isinstance(layer, torch.nn.Linear):
                layer.register_forward_hook(lambda layer, inputs, outputs: seen.append(outputs.dtype))
        state = actor.initial_state(64)
        seen.clear()
        distribution, values, _ = actor(rows, state)
        assert set(seen) == {torch.float32}
        actor.precision = torch.bfloat16
        seen.clear()
        coarse, coarse_values, after = actor(rows, state)
        assert set(seen) == {torch.bfloat16}
        tensors = [coarse.mean, coarse.std, coarse_values, *coarse.log_probs, *(after or ())]
        assert {part.dtype for part in tensors} == {torch.float32}
        assert torch.allclose(coarse_values, values, atol=0.05) and not torch.equal(coarse_values, values)
        assert torch.allclose(coarse.mean, distribution.mean, atol=0.05)
        if state is not None:
            starts = torch.zeros(4, 16, dtype=torch.bool)
            first = tuple(part[:16] for part in state)
            assert actor.unroll(rows.unflatten(0, (4, 16)), first, starts)[1].dtype == torch.float32
        coarse_values.sum().backward()
        assert {part.grad.dtype for part in actor.policy.parameters() if part.grad is not None} == {torch.float32}


class OwnPolicy(MLP):
    """An MLP whose class has a forward of its own, which may compute anything."""

    def forward(self, observations: torch.Tensor, state: Any = None, action_mask: Any = None) -> Any:
        outputs, values, state = super().forward(observations, state, action_mask)
        return outputs, values + 1, state


@pytest.mark.parametrize(
    ("policy", "separable"), [("mlp", True), ("cnn", True), ("nature", False), (OwnPolicy, False), ("hooked", False)]
)
def test_what_shares_no_layers_is_computed_apart(policy: Any, separable: bool) -> None:
    """With the same results; and the first result is looked at as a whole."""
    layout = IMAGES if policy in ("cnn", "nature") else MASKED
    actor = Actor("mlp" if policy == "hooked" else policy, layout, MIXED, hidden_size=8)
    network: Any = actor.policy
    if policy == "hooked":
        network.register_forward_hook(lambda module, inputs, results: None)
    computed: list[str] = []
    for name in ("actor", "critic"):
        getattr(network, name).register_forward_hook(lambda *_, name=name: computed.append(name))
    rows = torch.from_numpy(np.stack([layout.flatten(layout.space.sample()) for _ in range(6)]))
    assert actor.separable == separable
    for precision in (None, torch.bfloat16):
        actor.precision = precision
        wanted, wanted_values, _ = actor(rows)
        computed.clear()
        values = actor.values(rows)
        assert torch.equal(values, wanted_values) and values.dtype == torch.float32
        assert computed == (["critic"] if separable else ["actor", "critic"])
        computed.clear()
        distribution = actor.distribution(rows)
        assert torch.equal(distribution.mean, wanted.mean) and torch.equal(distribution.std, wanted.std)
        assert all(torch.equal(*pair) for pair in zip(distribution.log_probs, wanted.log_probs, strict=True))
        assert computed == (["actor"] if separable else ["actor", "critic"])
    fresh = Actor(WrongCritic, FLAT, MIXED)
    for method in (fresh.values, fresh.distribution):
        with pytest.raises(pufferlib.SpaceError, match="returned values"):
            method(torch.zeros((6, *FLAT.shape)))


class WrongCritic(MLP):
    def __init__(self, layout: Any, action_space: Any) -> None:
        super().__init__(layout, action_space)
        self.critic = torch.nn.Linear(self.read.size, 2)


class Counting(torch.nn.Module):
    """A policy whose state is a number of steps, int64, and their sum, float64."""

    def __init__(self, layout: Any, action_space: Any) -> None:
        super().__init__()
        self.steps, self.value = torch.nn.Embedding(9, action_space.n), torch.nn.Linear(action_space.n, 1)

    def initial_state(self, num_rows: int) -> tuple[torch.Tensor, ...]:
        return torch.zeros(num_rows, dtype=torch.int64), torch.zeros(num_rows, dtype=torch.float64)

    def forward(self, observations: torch.Tensor, state: Any, action_mask: Any = None) -> Any:
        count, total = state
        logits = self.steps(count)
        return logits, self.value(logits).squeeze(1), (count + 1, total + count)


def test_a_state_keeps_its_types_whatever_the_precision() -> None:
    actor = Actor(Counting, FLAT, spaces.Discrete(2))
    actor.precision = torch.bfloat16
    state = actor.initial_state(2)
    for _ in range(2):
        _, values, state = actor(torch.zeros((2, *FLAT.shape)), state)
    assert values.dtype == torch.float32
    assert [part.tolist() for part in state] == [[2, 2], [1.0, 1.0]]
    assert [part.dtype for part in state] == [torch.int64, torch.float64]


# -------------------------------------------------------------------------------------------------------- policies


@pytest.mark.parametrize("name", ["default", "mlp", "cnn", "nature", "lstm"])
@pytest.mark.parametrize("space", [spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32), MIXED], ids=str)
def test_every_policy_keeps_the_contract(name: str, space: Any) -> None:
    layout = IMAGES if name in ("cnn", "nature") else FLAT
    policy, decisions = make_policy(name, layout, space, hidden_size=8), Decisions(space)
    observations = torch.from_numpy(np.stack([layout.space.sample() for _ in range(4)]))
    state = policy.initial_state(4) if name == "lstm" else None  # type: ignore[operator]
    outputs, values, state = policy(observations, state, None)
    parts = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
    widths = [decisions.num_options] * bool(decisions.nvec) + [decisions.num_aims] * 2 * bool(decisions.num_aims)
    assert [tuple(part.shape) for part in parts] == [(4, width) for width in widths]
    assert values.shape == (4,) and values.dtype == torch.float32
    discrete_actions, continuous_actions = decisions.distribution(outputs).sample()
    flat = decisions.actions(discrete_actions, continuous_actions)
    assert tuple(part[0] for part in flat) in space if isinstance(space, spaces.Tuple) else flat[0] in space
    (decisions.distribution(outputs).log_prob(discrete_actions, continuous_actions).sum() + values.sum()).backward()
    assert all(part.grad is not None for part in policy.parameters() if part.numel())


def test_a_memory_is_kept_by_state_and_a_fresh_one_is_zeros() -> None:
    policy = LSTM(FLAT, spaces.Discrete(3), hidden_size=8)
    rows = torch.randn(6, 5)
    with torch.no_grad():
        state = policy.initial_state(2)
        logits, values = [], []
        for step in range(3):  # two agents, three steps
            out, value, state = policy(rows[2 * step : 2 * step + 2], state, None)
            logits.append(out)
            values.append(value)
        assert torch.equal(policy(rows[:2], None, None)[0], logits[0])
        alone = policy.initial_state(1)
        for step in range(3):
            out, value, alone = policy(rows[2 * step + 1 : 2 * step + 2], alone, None)
            torch.testing.assert_close(out[0], logits[step][1])
            torch.testing.assert_close(value[0], values[step][1])
        assert not torch.allclose(policy(rows[4:], None, None)[0], logits[2])  # it has seen more than this row


def test_a_memory_goes_round_any_encoder() -> None:
    class Sums(nn.Module):
        def forward(self, observations: torch.Tensor) -> torch.Tensor:
            return observations.sum(1, keepdim=True)

    policy = LSTM(FLAT, spaces.Discrete(2), hidden_size=4, encoder=Sums())
    assert policy.cell.input_size == 1
    assert policy(torch.randn(3, 5), policy.initial_state(3), None)[0].shape == (3, 2)
    assert LSTM(IMAGES, spaces.Discrete(2), hidden_size=4)(torch.zeros(2, 40, 44, 3, dtype=torch.uint8))[1].shape == (
        2,
    )


class Linear(nn.Module):
    """What a user would write."""

    def __init__(self, observation_layout: Any, action_space: Any, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale
        self.logits = nn.Linear(observation_layout.shape[0], int(action_space.n))

    def forward(self, observations: Any, state: Any, action_mask: Any) -> Any:
        logits = self.scale * self.logits(observations)
        return logits, logits.mean(1), state


class Raising(Linear):
    def __init__(self, *spaces: Any) -> None:
        raise TypeError("from inside")


def test_a_policy_of_ones_own_is_named_or_passed() -> None:
    for policy in (Linear, "test_models:Linear"):
        network: Any = make_policy(policy, FLAT, spaces.Discrete(2), scale=3.0)
        assert type(network).__name__ == "Linear" and network.scale == 3.0


@pytest.mark.parametrize(
    ("policy", "kwargs", "says"),
    [
        (
            "large",
            {},
            "policy='large' is not one of 'default', 'mlp', 'cnn', .*'teams', and module:Class names one of your own",
        ),
        ("mlp", {"depth": 3}, "policy='mlp' cannot be made .*, depth=3.*unexpected keyword"),
        (
            "default",
            {"hiden_size": 3, "channels": (1, 2, 3)},
            "policy='default' cannot be made .*unexpected.*hiden_size",
        ),
        (lambda layout, space: 3, {}, "makes a int, and not a torch.nn.Module"),
        ("test_models:FLAT", {}, '"test_models:FLAT" is no callable but a Layout'),
        ("test_models:Lineal", {}, "did you mean Linear"),
        ("cnn", {}, 'holds no images.*use the policy "mlp"'),
    ],
)
def test_what_is_no_policy_is_refused(policy: Any, kwargs: Any, says: str) -> None:
    with pytest.raises(pufferlib.errors.PufferError, match=says):
        make_policy(policy, FLAT, spaces.Discrete(2), **kwargs)


def test_what_a_policys_own_code_raises_is_passed_on() -> None:
    with pytest.raises(TypeError, match="from inside") as caught:
        make_policy(Raising, FLAT, spaces.Discrete(2))
    assert not isinstance(caught.value, pufferlib.errors.PufferError)


# ----------------------------------------------------------------------------------------------------------- files


class Nested(gymnasium.Env[Any, Any]):
    """Pays for saying what the observation says, in a structure; only what a mask in the info allows may be said."""

    observation_space = spaces.Dict({"say": spaces.Discrete(3, start=2), "at": spaces.Box(-1, 1, (2,), np.float64)})
    action_space = spaces.Dict({"word": spaces.Discrete(3, start=5), "where": spaces.Box(-2, 2, (2,), np.float32)})
    closed = False

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return {"say": np.int64(3), "at": np.array([0.5, -0.5])}, {"action_mask": {"word": np.array([1, 0, 1], np.int8),
                                                                                  "where": None}}  # fmt: skip

    def step(self, action: Any) -> Any:
        assert action in self.action_space
        return *self.reset()[:1], 0.0, False, False, self.reset()[1]

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("policy", ["mlp", "lstm"])
def test_a_saved_policy_acts_on_a_raw_environment_as_it_did(policy: str, tmp_path: Any) -> None:
    env = Nested()
    rows = pufferlib.emulation.emulate(env, action_mask=True)
    network = make_policy(policy, rows.observation_layout, rows.action_space, hidden_size=8)
    origin = Origin(policy, {"hidden_size": 8}, "test_models:Nested", {}, {"action_mask": True})
    save_policy(tmp_path / "policy.pt", network, origin)
    assert list(tmp_path.iterdir()) == [tmp_path / "policy.pt"]
    with (
        load_policy(tmp_path / "policy.pt", seed=1) as player,
        load_policy(tmp_path / "policy.pt", env, seed=1) as same,
    ):
        assert not player.policy.training
        observation, info = env.reset()
        said = set()
        for _ in range(40):
            action = player.act(observation, info)
            assert action["word"] in (5, 7) and action in env.action_space
            assert same.act(observation, info)["where"].tolist() == action["where"].tolist()
            observation, *_, info = env.step(action)
            said.add(int(action["word"]))
        assert said == {5, 7}
    with load_policy(tmp_path / "policy.pt", env, greedy=True) as player:
        if policy == "lstm":
            player.reset()
            first = player.act(observation, info)["where"]
            second = player.act(observation, info)["where"]
            assert first.tolist() != second.tolist()  # it remembers
            player.reset()
        else:
            first = player.act(observation, info)["where"]
        assert player.act(observation, info)["where"].tolist() == first.tolist()
        with torch.no_grad():
            row = torch.from_numpy(rows.row_of(observation, info))[None]
            _, mean, _ = network(row, network.initial_state(1) if policy == "lstm" else None, None)[0]  # type: ignore[operator]
        np.testing.assert_allclose(first, 2 * mean[0].clamp(-1, 1), rtol=1e-5)
    assert not env.closed


def test_a_policy_acts_for_all_agents_and_remembers_each(tmp_path: Any) -> None:
    pettingzoo_mpe = pytest.importorskip("mpe2.simple_speaker_listener_v4")
    env = pettingzoo_mpe.parallel_env()
    rows = pufferlib.emulation.emulate(env)
    network: Any = make_policy("lstm", rows.observation_layout, rows.action_space, hidden_size=8)
    save_policy(tmp_path / "policy.pt", network, Origin("lstm", {"hidden_size": 8}, "mpe/simple_speaker_listener_v4"))
    with load_policy(tmp_path / "policy.pt", seed=1) as player:
        observations, infos = env.reset(seed=1)
        seen: dict[str, list[Any]] = {agent: [] for agent in observations}
        while env.agents:
            for agent, observation in observations.items():
                seen[agent].append(torch.from_numpy(rows.row_of(observation, None, agent)))
            actions = player.act(observations, infos)
            assert all(actions[agent] in env.action_space(agent) for agent in env.agents)
            observations, _, _, _, infos = env.step(actions)
        for agent, steps in seen.items():  # as one agent alone would have it
            state = None
            with torch.inference_mode():
                for row in steps:
                    _, _, state = network(row[None], state, None)
            assert state is not None
            memory = player._player._memory._states[0][player._ids[agent]]
            torch.testing.assert_close(memory[None], state[0])
        with pytest.raises(pufferlib.CallError, match="several agents; pass a dict"):
            player.act(np.zeros(3))
        assert player.act({}) == {}
    env.close()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.extras
def test_a_users_policy_is_trained_saved_and_played(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a nested environment of several agents: the example of docs/policies.md."""
    from cleanrl_demo import ppo

    examples = Path(__file__).parents[2] / "examples"
    monkeypatch.syspath_prepend(str(examples))
    source = (examples / "own_policy.py").read_text()
    page = (examples.parent / "docs" / "policies.md").read_text()
    policy = source[source.index("class OfferPolicy") : source.index("\n\nif __name__")].strip()
    assert policy in page and len(policy.splitlines()) <= 30
    config = ppo.Config(
        env="own_policy:Market", policy="own_policy:OfferPolicy", policy_kwargs={"hidden_size": 24}, gamma=0.0,
        learning_rate=5e-3, total_steps=40_000, eval_episodes=50, runs=str(tmp_path),
    )  # fmt: skip
    result = ppo.train(config)
    assert result.mean_return > 12  # of 32; 5.3 by chance
    assert result.run_folder is not None
    env, total = registry.creator("own_policy:Market")(), 0.0
    with load_policy(result.run_folder, greedy=True) as player:
        for seed in range(20):
            observations, infos = env.reset(seed=seed)
            while env.agents:
                observations, rewards, _, _, infos = env.step(player.act(observations, infos))
                total += sum(rewards.values()) / 20
    assert total > 12


def test_what_is_no_policys_file_is_refused(tmp_path: Any) -> None:
    path = tmp_path / "policy.pt"
    with pytest.raises(CheckpointError, match="there is no file"):
        load_policy(path)
    with pytest.raises(CheckpointError, match=r"the folder .* has no policy.pt: not a run's folder, or its run"):
        load_policy(tmp_path)
    save_policy(path, MLP(FLAT, spaces.Discrete(2)), Origin("mlp", {}, "CartPole-v1"))
    for location in (path, tmp_path):
        with pytest.raises(CheckpointError, match="(?s)for other observations or actions.*size mismatch"):
            load_policy(location)
    content = path.read_bytes()
    for damaged in (b"", b"text", content[:100], content[: len(content) // 2], content[:-30]):
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match="does not hold a complete pufferlib policy"):
            load_policy(path)
    torch.save({"weights": {}}, path)
    with pytest.raises(CheckpointError, match="is not a pufferlib policy; such files are called policy.pt"):
        load_policy(path)
    torch.save({"format": "pufferlib policy", "version": 9, "pufferlib": "7.0"}, path)
    with pytest.raises(CheckpointError, match=r"has version 9 of the format, which pufferlib 7\.0 wrote"):
        load_policy(path)
    torch.save({"format": pufferlib.PufferEnv}, path)  # no code comes out of it
    with pytest.raises(CheckpointError, match="it contains code, which is not run"):
        load_policy(path)


def test_what_a_file_cannot_hold_is_refused_or_asked_for_again(tmp_path: Any) -> None:
    with pytest.raises(pufferlib.PlanError, match="cannot save policy_kwargs="):
        Origin(policy_kwargs={"encoder": nn.Identity()})
    origin = Origin("mlp", {}, "test_models:Nested", {}, {"bounds": {"x": {3}}})
    assert (origin.env, origin.wrap_kwargs) == (None, {})
    save_policy(tmp_path / "policy.pt", MLP(FLAT, spaces.Discrete(2)), origin)
    with pytest.raises(CheckpointError, match=r"does not name the environment; pass one: load_policy\(path, env\)"):
        load_policy(tmp_path / "policy.pt")


# --------------------------------------------------------------------------------------- frames and running statistics


SHAPES = {
    "vector": (spaces.Box(-2, 2, (3,), np.float32), (12,)),
    "scalar": (spaces.Box(-2, 2, (), np.float32), (4,)),
    "grey": (spaces.Box(0, 255, (40, 44), np.uint8), (4, 40, 44)),
    "channels last": (spaces.Box(0, 255, (40, 44, 3), np.uint8), (40, 44, 12)),
    "channels first": (spaces.Box(0, 255, (3, 40, 44), np.uint8), (12, 40, 44)),
    "choice": (spaces.Discrete(5, start=2), (4,)),
    "nested": (spaces.Dict(a=spaces.Discrete(3), b=spaces.Box(-1, 1, (2,), np.float32)), None),
    "text": (spaces.Dict(word=spaces.Text(4), more=spaces.Sequence(spaces.Discrete(3))), None),
}


@pytest.mark.parametrize("name", SHAPES)
def test_frames_are_stacked_by_agent_and_begin_again_where_a_mask_is_false(name: str) -> None:
    """Against a list of each agent's last rows, for random agents and masks; the newest frame comes last."""
    space, shape = SHAPES[name]
    bounds = {"bounds": {"more": {"max_length": 40}}} if name == "text" else {}
    layout = observation_layout(space, **bounds)  # type: ignore[arg-type]
    stack = FrameStack(layout, 4, num_agents=5)
    if shape is not None:
        assert stack.layout.shape == shape
    rng = np.random.default_rng(1)
    space.seed(1)
    last: dict[int, list[Any]] = {}
    for _ in range(12):
        ids = rng.permutation(5)[:3]
        samples = [space.sample() for _ in ids]
        masks = np.array([agent in last for agent in ids]) & (rng.random(3) < 0.8)
        rows = torch.from_numpy(np.stack([np.asarray(layout.flatten(sample)) for sample in samples]))
        stacked = stack(rows, torch.from_numpy(ids), torch.from_numpy(masks))
        assert stacked.shape == (3, *stack.layout.shape)
        for row, (agent, sample) in enumerate(zip(ids, samples, strict=True)):
            known = last[agent][1:] if masks[row] else [sample] * 3
            last[agent] = [*known, sample]
            if isinstance(space, spaces.Box):
                axis = 2 if name == "channels last" else 0
                joined = np.stack if space.shape == () or name == "grey" else np.concatenate
                np.testing.assert_array_equal(stacked[row].numpy(), joined(last[agent], axis=axis))
            else:  # a Tuple of observations
                for one, expected in zip(stack.layout.decode(stacked[row]), last[agent], strict=True):
                    assert data_equivalence(one, expected)
    if isinstance(space, spaces.Box):
        assert stack.layout.space.contains(stacked[0].numpy())


def test_one_frame_is_no_stack() -> None:
    stack = FrameStack(FLAT, 1, 3)
    rows = torch.randn(2, 5)
    assert stack.layout is FLAT
    assert stack(rows, torch.tensor([2, 0]), torch.tensor([True, False])) is rows
    with pytest.raises(pufferlib.PlanError, match="frame_stack=0 keeps no frame; use 1"):
        FrameStack(FLAT, 0, 3)


def test_a_stacked_policy_plays_as_it_was_trained(tmp_path: Any) -> None:
    """On a raw environment, agent by agent, as over a VecEnv; masks are those of the newest frame."""
    env = Nested()
    rows = pufferlib.emulation.emulate(env, action_mask=True)
    origin = Origin("mlp", {"hidden_size": 8}, None, {}, {"action_mask": True}, frame_stack=3)
    actor = origin.actor(rows.observation_layout, rows.action_space)
    save_policy(tmp_path / "policy.pt", actor.policy, origin)
    with load_policy(tmp_path / "policy.pt", env, greedy=True) as player:
        frames = FrameStack(rows.observation_layout, 3, 1)
        for _ in range(3):
            observation, info = env.reset()
            for step in range(5):
                row = torch.from_numpy(rows.row_of(observation, info))[None]
                seen = frames(row, torch.tensor([0]), torch.tensor([step > 0]))
                with torch.inference_mode():
                    expected = actor.decisions.actions(*actor(seen)[0].mode())
                action = player.act(observation, info)
                again = rows.action_of(tuple(part[0] for part in expected))
                assert data_equivalence(action, again)
                observation, *_, info = env.step(action)
            player.reset()


@pytest.mark.parametrize("sizes", [[7], [1, 1, 30], [5, 0, 2, 100]])
def test_statistics_are_those_of_all_rows(sizes: list[int]) -> None:
    layout = observation_layout(
        spaces.Dict(
            choice=spaces.Discrete(3), far=spaces.Box(-1e6, 1e6, (2,), np.float64), near=spaces.Box(-1, 1, (1,))
        )
    )
    policy = MLP(layout, spaces.Discrete(2), normalize=True)
    features = Features(layout)
    rng = np.random.default_rng(1)
    samples = [
        {
            "far": rng.normal([1e4, -3], [50, 1e3]),
            "near": rng.uniform(-1, 1, 1).astype(np.float32),
            "choice": rng.integers(3),
        }
        for _ in range(sum(sizes))
    ]
    rows = torch.from_numpy(np.stack([layout.flatten(sample) for sample in samples]))
    before = policy.read(rows)
    for part in rows.split(sizes):
        policy(part, None, None)  # acting changes nothing
        observe(policy, part)
    choice = [leaf.name for leaf in layout.leaves].index("choice")
    assert choice == 0  # the one-hot columns come first, and stay
    torch.testing.assert_close(policy.read(rows)[:, :3], features(rows)[:, :3])
    numbers = np.stack([np.concatenate([sample["far"], sample["near"]]) for sample in samples])
    std = numbers.std(0)
    expected = np.clip((numbers - numbers.mean(0)) / np.sqrt(std**2 + 1e-8), -10, 10)
    np.testing.assert_allclose(policy.read(rows)[:, 3:].detach().numpy(), expected, atol=2e-3)
    assert before[:, 3:].abs().max() == 10  # bounded, from the start
    other = MLP(layout, spaces.Discrete(2), normalize=True)
    other.load_state_dict(policy.state_dict())
    torch.testing.assert_close(other(rows, None, None)[0], policy(rows, None, None)[0])


@pytest.mark.parametrize("policy", ["default", "lstm"])
def test_a_rollout_of_images_is_observed_in_parts(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What convolutions make of all of its rows at once takes gigabytes."""
    layout = observation_layout(SIGHTS["beside numbers"])
    network: Any = make_policy(policy, layout, spaces.Discrete(2), hidden_size=8, normalize=True)
    read = network.read if policy == "default" else network.encoder.read
    sizes: list[int] = []
    read.register_forward_hook(lambda module, inputs, seen: sizes.append(len(inputs[0])))
    samples = [layout.flatten(layout.space.sample()) for _ in range(5)]
    rows = torch.from_numpy(np.stack(samples))
    monkeypatch.setattr(running_norm, "SHOWN_NBYTES", 2 * rows[0].nbytes + 1)
    observe(network, rows)
    numbers = np.stack([layout.decode(sample)["health"] for sample in samples])
    assert sizes == [2, 2, 1] and read.features.norm.count == 5
    np.testing.assert_allclose(read.features.norm.mean.numpy(), numbers.mean(0), atol=1e-5)
    np.testing.assert_allclose(read.features.norm.variance.numpy(), numbers.var(0), rtol=1e-4)


def test_a_policy_without_statistics_has_nothing_to_observe() -> None:
    policy = MLP(FLAT, spaces.Discrete(2))
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    observe(policy, torch.randn(4, 5))
    assert all(torch.equal(value, before[name]) for name, value in policy.state_dict().items())


# ------------------------------------------------------------------------------------------------------------ trust


@pytest.mark.parametrize("where", ["env", "policy", "policy_kwargs"])
def test_a_file_that_names_code_elsewhere_is_trusted_on_request_only(where: str, tmp_path: Any) -> None:
    names = {"env": "ocean/squared", "policy": "mlp", "policy_kwargs": {}}
    names[where] = {"network": ["subprocess:run"]} if where == "policy_kwargs" else "subprocess:check_output"
    origin = Origin(**names)  # type: ignore[arg-type]
    save_policy(tmp_path / "policy.pt", MLP(FLAT, spaces.Discrete(2)), origin)
    with pytest.raises(CheckpointError, match="names code that is not in the current folder, subprocess:"):
        load_policy(tmp_path / "policy.pt")
    assert read_policy(tmp_path / "policy.pt", trust=True).origin == origin
    if where == "env":
        assert read_policy(tmp_path / "policy.pt", env="ocean/squared").origin == origin


def test_code_in_the_current_folder_is_ones_own(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("mine", "mine/.venv/lib/site-packages", "theirs"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / f"code_in_{folder[-6:].replace('/', '_')}.py").write_text("def make(): ...")
        monkeypatch.syspath_prepend(str(tmp_path / folder))
    monkeypatch.chdir(tmp_path / "mine")
    require_trust(
        "a file", ["code_in_mine:make", "cleanrl_demo.dqn:Greedy", "__main__:make", "no_such_module:x"], False
    )
    for module in ("code_in_ckages", "code_in_theirs", "torch"):
        with pytest.raises(CheckpointError, match=f"not in the current folder, {module}:make"):
            require_trust("a file", [f"{module}:make"], False)


@pytest.mark.parametrize("missing", ["policy", "weights", "env_kwargs"])
def test_a_file_with_a_part_missing_or_of_a_wrong_type_is_refused(missing: str, tmp_path: Any) -> None:
    path = tmp_path / "policy.pt"
    save_policy(path, MLP(FLAT, spaces.Discrete(2)), Origin("mlp"))
    written = torch.load(path, weights_only=True)
    for wrong in ({name: value for name, value in written.items() if name != missing}, {**written, missing: 3}):
        if wrong.get(missing) == 3 and missing == "policy":
            continue  # a policy's name that is none is refused where it is made
        torch.save(wrong, path)
        with pytest.raises(CheckpointError, match="does not hold a complete pufferlib policy"):
            load_policy(path)


@pytest.mark.parametrize(
    ("low", "high", "expected"), [(5, np.inf, [5, 6, 7]), (-np.inf, -2, [-4, -3, -2]), (-np.inf, np.inf, [-1, 0, 1])]
)
def test_actions_of_a_box_with_a_bound_missing_span_two_units(low: float, high: float, expected: list[float]) -> None:
    decisions = Decisions(spaces.Box(low, high, (1,), np.float32))
    continuous_actions = torch.tensor([[-1.0], [0.0], [1.0]])
    assert decisions.actions(torch.zeros((3, 0), dtype=torch.int64), continuous_actions)[:, 0].tolist() == expected


class Wrong(nn.Module):
    """Returns what it is told to."""

    def __init__(self, returned: Any) -> None:
        super().__init__()
        self.returned = returned

    def forward(self, observations: Any, state: Any, action_mask: Any) -> Any:
        return self.returned


@pytest.mark.parametrize(
    ("space", "returned", "says"),
    [
        (
            spaces.Discrete(4),
            (torch.zeros(2, 3), torch.zeros(2), None),
            r"outputs \(2, 3\); Discrete.* needs logits",
        ),
        (spaces.Discrete(4), (torch.zeros(2, 5), torch.zeros(2), None), r"outputs \(2, 5\); .* needs logits: \(2, 4\)"),
        (spaces.Discrete(4), (torch.zeros(2, 4), torch.zeros(2, 1), None), r"values \(2, 1\); .*values.squeeze\(1\)"),
        (spaces.Discrete(4), (torch.zeros(2, 4), torch.zeros(2)), r"tuple; .* \(outputs, values, state\)"),
        (spaces.Discrete(4), torch.zeros(2, 4), r"\(2, 4\); it has to return \(outputs, values"),
        (
            spaces.Box(-1, 1, (2,)),
            (torch.zeros(2, 2), torch.zeros(2), None),
            r"needs \(mean, std\): \(2, 2\)",
        ),
        (MIXED, ((torch.zeros(2, 5), torch.zeros(2, 2)), torch.zeros(2), None), r"needs \(logits, mean, std\)"),
    ],
)
def test_what_a_policy_returns_is_looked_at_once(space: Any, returned: Any, says: str) -> None:
    actor = Actor(lambda *spaces: Wrong(returned), FLAT, space)
    with pytest.raises(pufferlib.SpaceError, match=f"Wrong.forward returned .*?{says}"):
        actor(torch.zeros(2, 5))
