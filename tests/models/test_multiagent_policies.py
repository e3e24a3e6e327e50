"""A critic that sees the environment's state, and a policy for each type of agents: in theory, in training, at play."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

import pufferlib
from cleanrl_demo import appo_ray, dqn, ppo_lstm, ppo_selfplay
from pufferlib.emulation import emulate
from pufferlib.errors import PlanError
from pufferlib.layout import observation_layout
from pufferlib.models import Actor, Origin, Player, action_mask_reader, load_policy, make_policy, save_policy
from pufferlib.models.distributions import Decisions
from pufferlib.models.multiagent import Separate

pytestmark = pytest.mark.beside

LINE = spaces.Box(-9, 9, (3,), np.float32)
SPACE = spaces.Dict(
    OrderedDict(
        state=spaces.Dict(x=spaces.Box(-9, 9, (4,), np.float32), y=spaces.Discrete(5)),
        agent_type=spaces.Discrete(3),
        action_mask=spaces.MultiBinary(5),
        observation=LINE,
    )
)
LAYOUT = observation_layout(SPACE)
MIXED = spaces.Tuple([spaces.MultiDiscrete([3, 2]), spaces.Box(-1, 1, (2,), np.float32)])
ACTIONS = [spaces.Discrete(5), spaces.Box(-1, 1, (2,), np.float32), MIXED]


def rows(num: int, **leaves: Any) -> torch.Tensor:
    """Rows of samples, with these leaves in place of theirs."""
    SPACE.seed(1)
    samples = [dict(SPACE.sample()) for _ in range(num)]
    for name, values in leaves.items():
        for sample, value in zip(samples, values, strict=True):
            sample[name] = value
    return torch.from_numpy(np.stack([LAYOUT.flatten(sample) for sample in samples]))


def parts(outputs: Any) -> list[torch.Tensor]:
    return [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)


# ---- a centralised critic ----


@pytest.mark.parametrize("space", ACTIONS, ids=str)
def test_only_the_critic_sees_the_state(space: Any) -> None:
    policy = make_policy("central", LAYOUT, space, hidden_size=8)
    one, other = rows(6), rows(6)
    LAYOUT.unflatten(other)["state"]["x"].mul_(-1)
    LAYOUT.unflatten(other)["state"]["y"].copy_((LAYOUT.unflatten(other)["state"]["y"] + 1) % 5)
    (said, values, _), (again, others, _) = policy(one, None, None), policy(other, None, None)
    for first, second in zip(parts(said), parts(again), strict=True):
        assert torch.equal(first, second)
    assert (values != others).all()
    seen = other.clone()
    LAYOUT.unflatten(seen)["observation"].mul_(-1)
    assert not torch.equal(parts(policy(seen, None, None)[0])[0], parts(again)[0])
    layers: Any = policy.actor
    assert layers[1].in_features == 3 + 5 + 3  # the type, the mask, the observation
    (sum(part.sum() for part in parts(said)) + values.sum()).backward()
    assert all(part.grad is not None for part in policy.parameters() if part.numel())


@pytest.mark.slow
def test_a_critic_learns_what_only_the_state_shows() -> None:
    torch.manual_seed(1)
    seen = rows(256)
    returns = LAYOUT.unflatten(seen)["state"]["x"][:, 0] / 9
    unexplained = {}
    for name in ("central", "mlp"):
        blind = seen.clone()
        if name == "mlp":
            LAYOUT.unflatten(blind)["state"]["x"].zero_()
        policy = make_policy(name, LAYOUT, spaces.Discrete(5), hidden_size=32)
        optimizer = torch.optim.Adam(policy.parameters(), 3e-3)
        test, train = slice(0, 64), slice(64, 256)
        for _ in range(150):
            optimizer.zero_grad()
            loss = (policy(blind[train], None, None)[1] - returns[train]).square().mean()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            errors = policy(blind[test], None, None)[1] - returns[test]
        unexplained[name] = float(errors.var() / returns[test].var())
    assert unexplained["central"] < 0.3 and unexplained["mlp"] > 0.8


# ---- a policy for each type ----


class Telling(nn.Module):
    """Says which policy it is, and what it was given."""

    num_policies = 0

    def __init__(self, observation_layout: Any, action_space: Any, scale: float = 1.0) -> None:
        super().__init__()
        self.decisions, self.layout = Decisions(action_space), observation_layout
        self.number = nn.Parameter(torch.full((), float(Telling.num_policies)))
        self.calls = 0
        Telling.num_policies += 1

    def forward(self, observations: Any, state: Any, action_mask: Any) -> Any:
        self.calls += 1
        marks = self.layout.unflatten(observations)["observation"][:, :1]
        numbers = (100 * self.number + marks).expand(-1, self.decisions.num_outputs)
        if action_mask is not None:
            numbers = numbers + 1000 * action_mask[:, :1]
        return self.decisions.outputs(numbers, torch.zeros(self.decisions.num_aims)), numbers[:, 0], state


class Remembering(Telling):
    size = 2

    def initial_state(self, num_rows: int) -> Any:
        return torch.zeros(num_rows, self.size), torch.zeros(num_rows, 1, dtype=torch.int64)

    def forward(self, observations: Any, state: Any, action_mask: Any) -> Any:
        outputs, values, _ = super().forward(observations, None, action_mask)
        state = self.initial_state(len(observations)) if state is None else state
        return outputs, values, (state[0] + values[:, None].detach(), state[1] + 1)


class Large(Remembering):
    size = 3


@pytest.fixture(autouse=True)
def fresh(one_thread: None) -> None:
    """Restart the numbering of policies; networks are small."""
    Telling.num_policies = 0


TYPES = [2, 0, 2, 1, 0, 2, 2]
MARKS = np.arange(7, dtype=np.float32)[:, None] + np.zeros(3, np.float32)


@pytest.mark.parametrize("space", ACTIONS, ids=str)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("types", [TYPES, [1] * 7, [0, 2] * 3 + [0]], ids=str)
def test_each_row_goes_to_the_policy_of_its_type_and_back(types: list[int], masked: bool, space: Any) -> None:
    policy = make_policy("separate", LAYOUT, space, policy="test_multiagent_policies:Telling")
    assert not hasattr(policy, "initial_state")
    bits = torch.arange(7) % 2 == 0
    mask = bits[:, None].expand(7, 5) if masked else None
    outputs, values, state = policy(rows(7, agent_type=types, observation=MARKS), None, mask)
    assert state is None
    expected = [100.0 * kind + i + 1000 * (masked and i % 2 == 0) for i, kind in enumerate(types)]
    assert values.tolist() == expected
    first, *rest = parts(outputs)
    assert first.tolist() == [[value] * first.shape[1] for value in expected]
    if rest:
        assert (rest[-1] == 1).all() and len(rest[-1]) == 7
    # Only the policies of the types that there are have been asked, and are trained.
    values.sum().backward()
    for kind, inner in enumerate(policy.policies):  # type: ignore[arg-type]
        assert inner.calls == (kind in types)
        assert (inner.number.grad is not None) == (kind in types)
        assert inner.number.grad is None or inner.number.grad == 100 * types.count(kind)


def test_zeros_of_absent_agents_go_to_the_first() -> None:
    layout = observation_layout(spaces.Dict(agent_type=spaces.Discrete(2, start=4), observation=LINE))
    policy = make_policy("separate", layout, spaces.Discrete(2), policy="test_multiagent_policies:Telling")
    seen = np.stack(
        [layout.flatten({"agent_type": 5, "observation": np.zeros(3, np.float32)}), np.zeros(layout.shape, np.uint8)]
    )
    assert policy(torch.from_numpy(seen), None, None)[1].tolist() == [100, 0]


def test_memories_are_kept_apart() -> None:
    policy: Any = make_policy("separate", LAYOUT, spaces.Discrete(5), policy="test_multiagent_policies:Remembering")
    seen = rows(7, agent_type=TYPES, observation=MARKS)
    state = policy.initial_state(7)
    assert [tuple(part.shape) for part in state] == [(7, 2), (7, 1)]
    first = policy(seen, None, None)[2]
    for count in (1, 2, 3):
        _, values, state = policy(seen, state, None)
        assert state[0].tolist() == [[count * value] * 2 for value in values.tolist()]
        assert state[1].tolist() == [[count]] * 7
        if count == 1:
            assert all(map(torch.equal, state, first))


@pytest.mark.parametrize("name", ["lstm", "central", ["mlp", "central", "mlp"]])
def test_inner_policies_say_what_they_would_say_alone(name: Any) -> None:
    torch.manual_seed(1)
    policy: Any = make_policy("separate", LAYOUT, MIXED, policy=name, hidden_size=8)
    assert [type(inner).__name__.lower() for inner in policy.policies] == (
        [name] * 3 if isinstance(name, str) else name
    )
    seen = rows(7, agent_type=TYPES)
    state = policy.initial_state(7) if name == "lstm" else None
    for _ in range(2):
        outputs, values, after = policy(seen, state, None)
        for i, kind in enumerate(TYPES):
            own_state = None if state is None else tuple(part[i : i + 1] for part in state)
            alone, value, next_state = policy.policies[kind](seen[i : i + 1], own_state, None)
            for one, other in zip(outputs, alone, strict=True):
                torch.testing.assert_close(one[i], other[0])
            torch.testing.assert_close(values[i], value[0])
            for one, other in zip(after or (), next_state or (), strict=True):
                torch.testing.assert_close(one[i], other[0])
        state = after


# ---- what cannot be ----

BARE = observation_layout(spaces.Dict(observation=LINE))


@pytest.mark.parametrize(
    ("policy", "layout", "kwargs", "error", "says"),
    [
        ("central", observation_layout(LINE), {}, pufferlib.SpaceError,
         r'"central" needs the leaf "state" at the top .*wrap\(state=True\).*--wrap.state puts it there'),
        ("separate", BARE, {}, pufferlib.SpaceError, r'"separate" needs the leaf "agent_type".*--wrap.agent-type puts'),
        ("separate", observation_layout(spaces.Dict(agent_type=LINE)), {}, pufferlib.SpaceError, "as a Discrete, and"),
        ("separate", LAYOUT, {"policy": ["mlp", "lstm"]}, pufferlib.PlanError, "names 2 policies, but .* 3 types"),
        ("separate", LAYOUT, {"policy": "large"}, pufferlib.PlanError, "policy='large' is not one of"),
        ("separate", LAYOUT, {"policy": "mlp", "depth": 3}, pufferlib.PlanError, "depth=3.*unexpected keyword"),
        ("separate", LAYOUT, {"policy": ["mlp", "lstm", "mlp"], "hidden_size": 4}, pufferlib.SpaceError,
         r"that of type 0 has none, that of type 1 has \(4,\), \(4,\)"),
        ("separate", LAYOUT, {"policy": [Remembering, Large, Remembering]}, pufferlib.SpaceError,
         r"type 0 has \(2,\), \(1,\), that of type 1 has \(3,\)"),
        ("separate", BARE, {"policy": "central"}, pufferlib.SpaceError, '"separate" needs the leaf "agent_type"'),
    ],
)  # fmt: skip
def test_what_is_missing_is_named_with_the_argument_that_gives_it(
    policy: str, layout: Any, kwargs: Any, error: Any, says: str
) -> None:
    with pytest.raises(error, match=f"(?s){says}"):
        make_policy(policy, layout, spaces.Discrete(5), **kwargs)


# ---- training ----


class Opposite:
    """Two types see the same sign; the wolf is paid for saying it, the sheep for saying the other one.

    The state says how much is paid in this episode, of which the agents are not told.
    """

    metadata: dict[str, Any] = {"name": "opposite"}
    possible_agents = ["wolf_0", "sheep_0", "wolf_1", "sheep_1"]
    state_space = spaces.Box(0, 1, (1,), np.float32)
    render_mode = None

    def observation_space(self, agent: Any) -> Any:
        return spaces.Box(-1, 1, (1,), np.float32)

    def action_space(self, agent: Any) -> Any:
        return spaces.Discrete(2)

    def state(self) -> Any:
        return np.float32([self.pay])

    def observe(self) -> Any:
        self.sign = int(self.generator.integers(2))
        return {agent: np.float32([2 * self.sign - 1]) for agent in self.agents}

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None or not hasattr(self, "generator"):
            self.generator = np.random.default_rng(seed)
        self.agents, self.tick, self.pay = self.possible_agents[:], 0, float(self.generator.integers(2))
        return self.observe(), {agent: {} for agent in self.agents}

    def step(self, actions: Any) -> Any:
        self.tick += 1
        right = {agent: (action == self.sign) == agent.startswith("wolf") for agent, action in actions.items()}
        over, acted = self.tick == 8, self.agents
        observations = self.observe()
        rewards = {agent: 0.25 * (self.pay + 0.5) * right[agent] for agent in acted}
        self.agents = [] if over else acted
        flags = dict.fromkeys(acted, False)
        return observations, rewards, dict.fromkeys(acted, over), flags, {agent: {} for agent in acted}


BEST = 8.0  # 4 agents, 8 steps, a quarter each, paid once on average


def trained(tmp_path: Any = None, **settings: Any) -> Any:
    from cleanrl_demo import ppo

    config = ppo.Config(
        env="test_multiagent_policies:Opposite", backend="serial", num_envs=8, rollout_length=16, gamma=0.0,
        learning_rate=3e-3, total_steps=12_000, eval_episodes=200, eval_greedy=True,
        runs=None if tmp_path is None else str(tmp_path), **settings,
    )  # fmt: skip
    return ppo.train(config)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.extras
def test_two_types_learn_to_act_oppositely_where_one_policy_cannot(tmp_path: Any) -> None:
    shared = trained(policy="mlp", policy_kwargs={"hidden_size": 16})
    assert shared.mean_return < 0.6 * BEST  # whatever it says, it is right for one type
    result = trained(
        tmp_path, policy="separate", policy_kwargs={"policy": "central", "hidden_size": 16},
        wrap_kwargs={"agent_type": True, "state": True},
    )  # fmt: skip
    assert isinstance(result.policy, Separate)
    assert result.mean_return > 0.9 * BEST
    # Kept and played, as any policy; with the state in infos, and without.
    env = Opposite()
    with load_policy(result.run_folder / "policy.pt", greedy=True) as player:
        observations, infos = env.reset(seed=3)
        while env.agents:
            actions = player.act(observations, infos)
            agent_infos = {agent: {"state": env.state()} for agent in env.agents}
            assert player.act(observations, agent_infos) == actions
            assert {agent: int(action == env.sign) for agent, action in actions.items()} == {
                agent: int(agent.startswith("wolf")) for agent in env.agents
            }
            observations, *_, infos = env.step(actions)


@pytest.mark.slow
@pytest.mark.extras
@pytest.mark.parametrize(
    ("name", "policy"),
    [
        ("simple_adversary_v3", "separate"),
        pytest.param("simple_spread_v3", "central", marks=pytest.mark.long),
        pytest.param("simple_adversary_v3", "central", marks=pytest.mark.long),
        pytest.param("simple_spread_v3", "separate", marks=pytest.mark.long),
    ],
)
def test_mpe_envs_are_trained_and_played(name: str, policy: str, tmp_path: Any) -> None:
    """Agents whose observations differ in size among them."""
    pytest.importorskip("mpe2")
    from cleanrl_demo import ppo

    inner: dict[str, Any] = {"policy": "central"} if policy == "separate" else {}
    config = ppo.Config(
        env=f"mpe/{name}", backend="pool", num_envs=4, num_workers=2, batch_size=2, rollout_length=32,
        total_steps=600, eval_episodes=4, policy=policy, policy_kwargs={"hidden_size": 16, **inner},
        wrap_kwargs={"state": True, "agent_type": True}, runs=str(tmp_path),
    )  # fmt: skip
    result = ppo.train(config)
    assert result.num_steps >= 600 and result.run_folder is not None
    with load_policy(result.run_folder / "policy.pt", seed=1) as player:
        env = pufferlib.registry.creator(f"mpe/{name}")()
        observations, infos = env.reset(seed=1)
        while env.agents:
            observations, *_, infos = env.step(player.act(observations, infos))
        env.close()


def test_masks_and_memories_of_several_types_at_play(tmp_path: Any) -> None:
    class Masked(Opposite):
        def reset(self, seed: int | None = None, options: Any = None) -> Any:
            observations, _ = super().reset(seed, options)
            return observations, self.infos()

        def step(self, actions: Any) -> Any:
            *most, _ = super().step(actions)
            return (*most, self.infos())

        def infos(self) -> Any:
            return {agent: {"action_mask": np.int8([0, 1] if "wolf" in agent else [1, 0])} for agent in self.agents}

    env = Masked()
    kwargs = {"agent_type": True, "state": True, "action_mask": True}
    emulated = emulate(env, **kwargs)
    assert action_mask_reader(emulated.observation_layout, emulated.action_space) is not None
    network = make_policy("separate", emulated.observation_layout, emulated.action_space, policy="lstm", hidden_size=4)
    origin = Origin("separate", {"policy": "lstm", "hidden_size": 4}, None, {}, kwargs)
    save_policy(tmp_path / "policy.pt", network, origin)
    with load_policy(tmp_path / "policy.pt", env, seed=1) as player:
        observations, infos = env.reset(seed=1)
        while env.agents:
            actions = player.act(observations, infos)
            assert actions == {agent: int("wolf" in agent) for agent in env.agents}
            observations, *_, infos = env.step(actions)
        assert len(player._player._memory._states) == 2


def test_a_policy_by_places_plays_alone_and_knows_its_agents() -> None:
    """A single agent has no name."""
    alone, several = emulate(gymnasium.make("CartPole-v1")), emulate(Opposite())
    for rows, agents in ((alone, [0]), (several, range(several.num_agents))):
        with Player(Actor("teams", rows.observation_layout, rows.action_space, places={"all": agents}), rows) as player:
            if rows is alone:
                assert player.act(np.zeros(4, np.float32)) in (0, 1)
            else:
                with pytest.raises(pufferlib.CallError, match=r"there is no agent 'cow'; the agents are wolf_0, "):
                    player.act({"cow": np.zeros(3, np.float32)})


class Seated(torch.nn.Module):
    """A recurrent policy that depends on the agents' indices."""

    num_places = 3

    def __init__(self, observation_layout: Any, action_space: Any) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(observation_layout.shape[0], int(action_space.n))

    def initial_state(self, num_rows: int) -> tuple[torch.Tensor, ...]:
        return (torch.zeros(num_rows, 1),)


@pytest.mark.parametrize("trainer", [ppo_selfplay, ppo_lstm, appo_ray])
def test_trainers_that_shuffle_agents_refuse_a_policy_by_places(trainer: Any) -> None:
    teams = {"places": {"all": [0, 1, 2]}}
    origin = Origin(f"{__name__}:Seated") if trainer is ppo_lstm else Origin("teams", teams)
    with pufferlib.make(Opposite, backend="serial") as vec:
        with pytest.raises(PlanError, match=r"goes by agents' places; use cleanrl_demo.ppo_cuda --separate"):
            trainer.make_learner(vec, origin, trainer.Config(runs=None))
        with pytest.raises(PlanError, match="network='teams' depends on agents' indices"):
            dqn.Greedy(vec.observation_layout, vec.single_action_space, "teams", **teams)


def test_padded_options_and_forbidden_ones_are_never_drawn() -> None:
    """A walker observes 5 numbers, 3 of them a mask of its 3 actions; a flyer all 7, without a mask, and has 4."""
    layout, space = observation_layout(spaces.Box(-9, 9, (7,), np.float32)), spaces.Discrete(4)
    sizes = {
        "walker": {"num_numbers": 5, "num_actions": 3, "num_masks": 3},
        "flyer": {"num_numbers": 7, "num_actions": 4},
    }
    places = {"walker": [0, 1], "flyer": [2]}
    torch.manual_seed(1)
    actor = Actor("teams", layout, space, places=places, sizes=sizes, hidden_size=8)
    seen = torch.randn(300, 3, 7)
    seen[:, 0, :3] = torch.tensor([1.0, 0.0, 1.0])
    seen[:, 1, :3] = 0  # nothing is allowed: any of its own, as in rows of absent agents
    drawn = actor(seen.flatten(0, 1))[0].sample(torch.Generator().manual_seed(1))[0].view(300, 3)
    assert [sorted(drawn[:, agent].unique().tolist()) for agent in range(3)] == [[0, 2], [0, 1, 2], [0, 1, 2, 3]]
    values = actor(seen.flatten(0, 1))[1].view(300, 3)
    seen[:, :2, 5:] += 1  # of the padding nothing is read
    assert torch.equal(actor(seen.flatten(0, 1))[1].view(300, 3), values)
    seen[:, 2, 5:] += 1
    assert not torch.equal(actor(seen.flatten(0, 1))[1].view(300, 3)[:, 2], values[:, 2])
