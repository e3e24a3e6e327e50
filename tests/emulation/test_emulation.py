"""Emulation of Gymnasium environments, odd ones too, and of PufferEnvs: the raw environment is the oracle."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.toy_text.taxi import TaxiEnv
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.utils.env_checker import check_env, data_equivalence
from row_tools import SpacesEnv, batched, reset, same, step

from ocean.squared import Squared
from pufferlib.emulation import emulate, wrap
from pufferlib.emulation.gymnasium_env import EmulatedEnv
from pufferlib.emulation.infos import copy_value
from pufferlib.environments._tuple_agents import TupleAgents
from pufferlib.errors import CallError, PlanError, SpaceError
from pufferlib.layout import Layout

pytestmark = pytest.mark.beside

NESTED = Dict(
    image=Box(0, 255, (3, 2), np.uint8),
    pair=Tuple([Discrete(4, start=2), Box(-1, 1, (2,), np.float64)]),
    bits=MultiBinary(3),
)
OBSERVATIONS = {
    "discrete": Discrete(5, start=-2),
    "box": Box(-1, 1, (2, 3), np.float32),
    "scalar box": Box(-1, 1, (), np.float64),
    "image": Box(0, 255, (4, 4, 3), np.uint8),
    "multi discrete": MultiDiscrete([3, 4]),
    "multi binary": MultiBinary([2, 2]),
    "one dtype": Dict(a=Box(-1, 1, (2,), np.float32), b=Tuple([Box(0, 5, (1,), np.float32)])),
    "nested": NESTED,
}
ACTIONS = {
    "discrete": Discrete(3, start=1),
    "box": Box(-1, 1, (2,), np.float32),
    "multi discrete": MultiDiscrete([2, 3]),
    "multi binary": MultiBinary(3),
    "nested discrete": Dict(a=Discrete(3, start=1), b=MultiBinary(2)),
    "nested box": Tuple([Box(-1, 1, (2,), np.float32), Box(-1, 1, (1,), np.float64)]),
    "both": Dict(move=Box(-1, 1, (2,), np.float32), use=Tuple([Discrete(4), MultiDiscrete([2, 5])])),
}


def play_against_raw(env: Any, raw: Any, num_steps: int, seed: int = 3) -> int:
    """Step the rows of env and raw with the same actions, resetting both at ends; return how many episodes ended."""
    rows = emulate(env)
    held, (observation, info) = reset(rows, seed), raw.reset(seed=seed)
    rows.action_space.seed(seed)
    ends, total, length = 0, 0.0, 0
    assert not held.masks[0]
    for _ in range(num_steps):
        assert same(rows.observation_layout.decode(held.observations[0]), observation)
        assert (held.rewards[0], held.terminations[0], held.truncations[0]) == (0, False, False) or held.masks[0]
        action = rows.action_space.sample()
        over, held = step(rows, batched(action))
        observation, reward, terminated, truncated, info = raw.step(rows.action_layout.decode(action))
        total, length = total + reward, length + 1
        assert over == (terminated or truncated)
        assert held.masks[0]
        assert (held.rewards[0], held.terminations[0], held.truncations[0]) == (reward, terminated, truncated)
        if over:
            assert same(rows.observation_layout.decode(held.observations[0]), observation)
            ((agent_index, last),) = held.infos
            assert (agent_index, last["env"], last["episode"]["l"]) == (0, True, length)
            assert last["episode"]["r"] == total
            assert last["episode"]["t"] > 0
            assert data_equivalence({key: last[key] for key in last if key not in ("env", "episode")}, info)
            held, (observation, info) = reset(rows), raw.reset()
            assert not held.masks[0]
            ends, total, length = ends + 1, 0.0, 0
        elif info:
            assert data_equivalence(held.infos[0][1], info)
        else:
            assert held.infos == []
    rows.close()
    raw.close()
    return ends


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_observations_pass_check_env_and_equal_raw(name: str) -> None:
    space = OBSERVATIONS[name]
    env = wrap(SpacesEnv(space, Discrete(2)))
    check_env(env, skip_render_check=True)
    assert env.observation_layout.space is space
    if isinstance(space, (Dict, Tuple)):
        assert isinstance(env.observation_space, Box)
    else:
        assert env.observation_space is space
    assert play_against_raw(SpacesEnv(space, Discrete(2)), SpacesEnv(space, Discrete(2)), 0) == 0
    first, second = (SpacesEnv(_copy(space), Discrete(2)) for _ in range(2))
    assert play_against_raw(first, second, 30) >= 4


def _copy(space: Any) -> Any:
    """Return an equal space with its own generator."""
    import copy

    return copy.deepcopy(space)


@pytest.mark.parametrize("name", ACTIONS)
def test_actions_pass_check_env_and_reach_the_env(name: str) -> None:
    space = ACTIONS[name]
    env = wrap(SpacesEnv(Discrete(3), space))
    check_env(env, skip_render_check=True)
    env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(5):
        action = env.action_space.sample()
        env.step(action)
        assert same(env.action_layout.flatten(env.unwrapped.action), action)
    first, second = (SpacesEnv(Discrete(3), _copy(space)) for _ in range(2))
    assert play_against_raw(first, second, 30) >= 4


@pytest.mark.parametrize("name", ["CartPole-v1", "Blackjack-v1", "FrozenLake-v1", "Pendulum-v1"])
def test_rows_equal_raw_gymnasium_envs(name: str) -> None:
    assert play_against_raw(gymnasium.make(name), gymnasium.make(name), 450) >= 2


def test_rows_take_an_env_that_is_wrapped_already() -> None:
    assert play_against_raw(wrap(gymnasium.make("CartPole-v1")), gymnasium.make("CartPole-v1"), 100) >= 2


@pytest.mark.slow
@pytest.mark.extras
def test_list_rewards_of_lbforaging() -> None:
    import lbforaging  # noqa: F401  # registers

    name = "Foraging-5x5-2p-1f-v3"
    raw, rows = gymnasium.make(name), emulate(gymnasium.make(name))
    rows.action_space.seed(0)
    assert isinstance(rows.action_space, MultiDiscrete)
    held, (observation, _) = reset(rows, 5), raw.reset(seed=5)
    ends, rewarded = 0, 0
    for _ in range(1000):
        assert same(tuple(observation), rows.observation_layout.decode(held.observations[0]))
        action = rows.action_space.sample()
        over, held = step(rows, batched(action))
        observation, rewards, terminated, truncated, _ = raw.step(tuple(action.tolist()))
        assert isinstance(rewards, list)
        assert held.rewards[0] == sum(rewards)
        assert held.infos[0][1]["rewards"] == rewards
        assert (held.terminations[0], held.truncations[0]) == (terminated, truncated)
        rewarded += any(rewards)
        if over:
            ends += 1
            held, (observation, _) = reset(rows), raw.reset()
    assert ends >= 5
    assert rewarded


class Pair(gymnasium.Env[Any, Any]):
    """Two players in Tuples: each observes its last action and a random number, and is paid its action."""

    observation_space = Tuple([Box(0, 9, (2,), np.float32), Box(0, 9, (2,), np.float32)])
    action_space = Tuple([Discrete(3), Discrete(3)])

    def observed(self, actions: Any) -> Any:
        return tuple(np.array([action, self.np_random.random()], np.float32) for action in actions)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return self.observed((0, 0)), {}

    def step(self, actions: Any) -> Any:
        self.time += 1
        return self.observed(actions), [float(action) for action in actions], self.time == 3, self.time == 5, {}


def test_players_in_tuples_can_be_agents() -> None:
    """Each has its element of the Tuples, and its own reward; all end together."""
    raw, agents = Pair(), wrap(TupleAgents(Pair()))
    names = ["agent_0", "agent_1"]
    assert agents.possible_agents == names and [agents.action_space(name) for name in names] == list(raw.action_space)
    (observations, _), (expected, _) = agents.reset(seed=5), raw.reset(seed=5)
    for episode in range(3):
        for actions in ((0, 1), (2, 1), (2, 0)):
            assert same(tuple(observations[name] for name in names), expected)
            observations, rewards, *flags, _ = agents.step(dict(zip(names, actions, strict=True)))
            expected, expected_rewards, terminated, truncated, _ = raw.step(actions)
            assert list(rewards.values()) == expected_rewards
            assert [set(ends.values()) for ends in flags] == [{terminated}, {truncated}]
        assert agents.agents == [] and same(tuple(observations.values()), expected)
        (observations, _), (expected, _) = agents.reset(seed=episode), raw.reset(seed=episode)
    with pytest.raises(TypeError, match="has no agents in Tuples: its spaces are Box.* and Discrete"):
        TupleAgents(gymnasium.make("CartPole-v1"))


@pytest.mark.extras
def test_players_of_lbforaging_can_be_agents() -> None:
    from pufferlib.environments.lbforaging import env_creator

    agents = wrap(env_creator("Foraging-5x5-2p-1f-v3", agents=True))
    observations, _ = agents.reset(seed=1)
    assert {name: len(observation) for name, observation in observations.items()} == {"agent_0": 9, "agent_1": 9}
    assert agents.action_space("agent_1") == Discrete(6)
    agents.close()


# ---- the wrapped face ----


def test_step_before_reset_is_an_error() -> None:
    with pytest.raises(CallError, match=r"call reset\(\) first"):
        wrap(SpacesEnv(Discrete(2), Discrete(2))).step(0)


@pytest.mark.parametrize("action", [1.7, [1, 1], "1", None])
def test_a_puffer_env_is_given_no_other_actions_than_its_own(action: Any) -> None:
    """They go through an array, to which NumPy would cast 1.7 without a word."""
    env = wrap(Squared())
    env.reset(seed=0)
    with pytest.raises(SpaceError, match="expected an integer, got "):
        env.step(action)
    assert env.step(np.int32(1))[0].shape == env.observation_space.shape


def test_a_wrapped_env_is_not_wrapped_again() -> None:
    env = wrap(SpacesEnv(Discrete(2), Discrete(2)))
    assert wrap(env) is env
    with pytest.raises(PlanError, match="wrapped already, so check cannot be set"):
        wrap(env, check="always")
    with pytest.raises(PlanError, match="wrapped already"):
        emulate(env, check="always")
    assert emulate(env).env is env.raw


@pytest.mark.parametrize("argument", ["max_agents", "observation_space", "action_space"])
def test_arguments_that_do_not_concern_an_env_are_refused(argument: str) -> None:
    value: Any = 3 if argument == "max_agents" else Discrete(2)
    for wrapper in (wrap, emulate):
        with pytest.raises(
            PlanError, match=f"SpacesEnv has one agent, whose spaces are known: {argument} cannot be set"
        ):
            wrapper(SpacesEnv(Discrete(2), Discrete(2)), **{argument: value})


@pytest.mark.parametrize("thing", [None, 3, object(), SpacesEnv, lambda: None])
def test_what_is_no_env_is_refused(thing: Any) -> None:
    for wrapper in (wrap, emulate):
        with pytest.raises(SpaceError, match="expected a Gymnasium or PettingZoo environment or a PufferEnv") as caught:
            wrapper(thing)
        assert ("not a function that makes it" in str(caught.value)) == callable(thing)


def test_a_vectorized_env_is_refused() -> None:
    envs = gymnasium.make_vec("CartPole-v1", num_envs=1)
    with pytest.raises(SpaceError, match="vectorized environments cannot be wrapped"):
        wrap(envs)
    envs.close()


def test_what_gymnasium_asks_of_a_wrapper() -> None:
    raw = gymnasium.make("CartPole-v1", render_mode="rgb_array")
    env = wrap(raw, check="always")
    assert env.env is raw
    assert env.unwrapped is raw.unwrapped
    assert env.metadata == raw.metadata
    assert env.render_mode == "rgb_array"
    assert env.get_wrapper_attr("gravity") == raw.unwrapped.gravity
    env.reset(seed=4)
    assert env.np_random is raw.unwrapped.np_random
    assert env.render().ndim == 3
    again = env.spec.make()
    assert isinstance(again, EmulatedEnv)
    assert again.wrap_kwargs == {"action_mask": False, "check": "always"}
    again.close()
    env.close()


def test_checks_are_full_on_first_reset_and_step_or_always(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[Any] = []
    monkeypatch.setattr(Layout, "check", lambda self, sample: checked.append(sample))
    for check, expected in (("first", 2), ("always", 8)):
        rows = emulate(SpacesEnv(Discrete(2), Discrete(2)), check=check)  # type: ignore[arg-type]
        checked.clear()
        for _ in range(2):
            reset(rows)
            for _ in range(3):
                step(rows, np.array([1]))
        assert len(checked) == expected


def test_messages_name_path_and_what_came() -> None:
    class Wrong(SpacesEnv):
        def step(self, action: Any) -> Any:
            observation, *rest = super().step(action)
            if self.tick > 2:
                observation["pair"] = (observation["pair"][0], np.zeros(3))
            return observation, *rest

    env = wrap(Wrong(NESTED, Discrete(2)))
    env.reset()
    env.step(0)
    env.step(0)
    with pytest.raises(SpaceError, match=r"pair\.1: expected float64 of shape \(2,\), got float64 of shape \(3,\)"):
        env.step(0)


# ---- action masks ----


def test_an_action_mask_in_infos_becomes_a_leaf_on_request() -> None:
    env, rows = wrap(TaxiEnv(), action_mask=True), emulate(TaxiEnv(), action_mask=True)
    check_env(env, skip_render_check=True)
    raw = TaxiEnv()
    assert env.observation_layout.space == Dict({"observation": raw.observation_space, "action_mask": MultiBinary(6)})
    observation, info = raw.reset(seed=0)
    flat, flat_info = env.reset(seed=0)
    held = reset(rows, 0)
    for action in (0, 1, 2, 3, 0):
        for row in (flat, held.observations[0]):
            decoded = env.observation_layout.decode(row)
            assert decoded["observation"] == observation
            assert same(decoded["action_mask"], info["action_mask"])
        assert same(flat_info["action_mask"], info["action_mask"])
        assert "action_mask" not in dict(held.infos)[0]  # not sent twice
        observation, *_, info = raw.step(action)
        flat, *_, flat_info = env.step(action)
        held = step(rows, np.array([action]))[1]


def test_masks_of_several_choices_are_one_array() -> None:
    space = Dict(a=Discrete(2), b=Tuple([MultiDiscrete([2, 3]), Box(-1, 1, (1,)), MultiBinary(1)]))

    class Masking(SpacesEnv):
        def step(self, action: Any) -> Any:
            *rest, _ = super().step(action)
            mask = {"a": np.array([0, 1], np.int8), "b": ((np.array([1, 0]), np.array([0, 1, 1])), None, None)}
            return *rest, {
                "action_mask": mask if self.tick == 1 else {"a": None, "b": (np.array([0, 1, 1, 1, 0]), None, 1)}
            }

    env = wrap(Masking(Discrete(3), space), action_mask=True)
    flat, _ = env.reset()
    action = env.action_space.sample()
    masks = [
        env.observation_layout.decode(row)["action_mask"].tolist()
        for row in (flat, env.step(action)[0], env.step(action)[0])
    ]
    assert masks == [[1] * 9, [0, 1, 1, 0, 0, 1, 1, 1, 1], [1, 1, 0, 1, 1, 1, 0, 1, 1]]


def test_masks_that_fit_no_choices_are_errors() -> None:
    class Masking(SpacesEnv):
        def reset(self, **kwargs: Any) -> Any:
            return super().reset(**kwargs)[0], {"action_mask": np.ones(3, np.int8)}

    with pytest.raises(SpaceError, match="has no choices to mask"):
        wrap(Masking(Discrete(2), Box(-1, 1, (2,))), action_mask=True)
    with pytest.raises(SpaceError, match="3 elements, but Discrete\\(2\\) has 2 choices"):
        wrap(Masking(Discrete(2), Discrete(2)), action_mask=True).reset()


def test_a_mask_in_observations_is_repeated_in_infos() -> None:
    space = Dict(observation=Discrete(3), action_mask=MultiBinary(2))
    env = wrap(SpacesEnv(space, Discrete(2)))
    check_env(env, skip_render_check=True)
    flat, info = env.reset()
    assert same(env.observation_layout.decode(flat)["action_mask"], info["action_mask"])
    flat, *_, info = env.step(0)
    assert same(env.observation_layout.decode(flat)["action_mask"], info["action_mask"])


# ---- infos ----


def test_owned_infos_share_nothing_that_can_change() -> None:
    array, inner = np.zeros(2), {"list": [1, [2]]}
    info = {"array": array, "dict": inner, "tuple": (array, "text")}
    owned = copy_value(info)
    array[:] = 1
    inner["list"][1].append(3)  # type: ignore[union-attr]
    assert owned["array"].tolist() == owned["tuple"][0].tolist() == [0, 0]
    assert owned["dict"] == {"list": [1, [2]]}


def test_an_episode_that_the_env_supplies_is_kept() -> None:
    rows = emulate(gymnasium.wrappers.RecordEpisodeStatistics(SpacesEnv(Discrete(2), Discrete(2), length=2)))
    reset(rows)
    step(rows, np.array([1]))
    _, held = step(rows, np.array([1]))
    ((_, info),) = held.infos
    assert info["env"] is True
    assert float(info["episode"]["r"]) == 2 and int(info["episode"]["l"]) == 2
    assert set(info["episode"]) == {"r", "l", "t"}


def test_options_reach_the_env_and_infos_of_reset_are_returned() -> None:
    rows = emulate(SpacesEnv(Discrete(2), Discrete(2)))
    assert reset(rows, 0, {"level": 3}).infos == [(0, {"options": {"level": 3}})]


def test_no_warning_is_raised_by_what_is_regular() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for env in (gymnasium.make("CartPole-v1"), SpacesEnv(NESTED, ACTIONS["both"])):
            rows = emulate(env)
            reset(rows, 0)
            for _ in range(3):
                step(rows, batched(rows.action_space.sample()))
            rows.close()
