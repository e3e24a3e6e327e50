"""Emulation of PettingZoo environments: life cycle, places, masks, and agents whose spaces differ."""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.test import parallel_api_test, parallel_seed_test
from pettingzoo.test.example_envs import (
    generated_agents_env_action_mask_info_v0,
    generated_agents_env_action_mask_obs_v0,
    generated_agents_env_cust_agentid_v0,
    generated_agents_env_v0,
    generated_agents_parallel_cust_agentid_v0,
    generated_agents_parallel_v0,
)
from pettingzoo.utils.conversions import turn_based_aec_to_parallel
from row_tools import Diverse, Newcomer, expect_row, reset, same, step, without_time

import pufferlib
from pufferlib.emulation import emulate, wrap
from pufferlib.errors import ActionError, CallError, MissingExtra, PlanError, SpaceError
from pufferlib.layout import Layout
from pufferlib.layout.layout import ActionLayout

pytestmark = pytest.mark.beside

OBSERVED, ACTED = Box(0, 1, (49,), np.float32), Discrete(9)  # as large as any agent of the generated envs
D2 = Discrete(2)
MIXED = Dict(a=Box(-1, 1, (2,), np.float32), b=Discrete(3))
FLOATS = Dict(a=Box(-1, 1, (2,), np.float32), b=Box(0, 5, (1, 2), np.float32))
MASKED = Dict(observation=OBSERVED, action_mask=Box(0, 1, (9,), np.int8))


def speaker_listener() -> Any:
    from mpe2 import simple_speaker_listener_v4

    return simple_speaker_listener_v4.parallel_env()


def tag() -> Any:
    from mpe2 import simple_tag_v3

    return simple_tag_v3.parallel_env(max_cycles=20)


def tag_turns() -> Any:
    from mpe2 import simple_tag_v3

    return simple_tag_v3.env(max_cycles=20)


def knights() -> Any:
    from pettingzoo.butterfly import knights_archers_zombies_v11

    return knights_archers_zombies_v11.parallel_env(max_cycles=300)


def tiger_deer() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy's, about magent2's own code
        from magent2.environments import tiger_deer_v4

        return tiger_deer_v4.parallel_env(map_size=15, max_cycles=60)


GENERATED: dict[str, Callable[[], Any]] = {
    "generated": generated_agents_parallel_v0.parallel_env,
    "generated, ids that are tuples": generated_agents_parallel_cust_agentid_v0.parallel_env,
    "generated, in turns": generated_agents_env_v0.env,
    "generated, in turns, ids that are tuples": generated_agents_env_cust_agentid_v0.env,
    "generated, masks in observations": generated_agents_env_action_mask_obs_v0.env,
    "generated, masks in infos": generated_agents_env_action_mask_info_v0.env,
}
REAL_ENVS: dict[str, Callable[[], Any]] = {
    "speaker and listener": speaker_listener,
    "tag": tag,
    "tag, in turns": tag_turns,
    "knights": knights,
    "tiger and deer": tiger_deer,
}


@pytest.mark.parametrize("name", [*GENERATED, *REAL_ENVS])
@pytest.mark.filterwarnings("ignore")
def test_wrapped_envs_pass_pettingzoos_own_tests(name: str) -> None:
    creator = {**GENERATED, **REAL_ENVS}[name]
    parallel_api_test(wrap(creator()), num_cycles=40)
    parallel_seed_test(lambda: wrap(creator()), num_cycles=40)


class Spy:
    """A parallel environment that keeps what the raw one returned. Not a ParallelEnv: looking like one is enough."""

    def __init__(self, env: Any) -> None:
        self.env = env if isinstance(env, ParallelEnv) else turn_based_aec_to_parallel(env)
        self.actions: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.last = self.env.reset(seed=seed, options=options)
        return self.last

    def step(self, actions: Any) -> Any:
        assert set(actions) == set(self.env.agents)
        for agent, action in actions.items():
            assert action in self.env.action_space(agent)
        self.actions.append(actions)
        self.last = self.env.step(actions)
        return self.last


def play_against_spy(rows: Any, spy: Spy, num_steps: int) -> tuple[int, int]:
    """Compare rows with what the raw env returned, step by step; return how many episodes and agents ended."""
    held, over, living, ended, ends = reset(rows, 1), False, {}, 0, 0
    rows.action_space.seed(1)

    def observed(agent: Any) -> Any:
        observation, info = spy.last[0][agent], spy.last[-1].get(agent, {})
        if isinstance(rows.observation_layouts[living[agent]].space, Dict) and not isinstance(observation, dict):
            return {"observation": observation, "action_mask": info["action_mask"]}
        return observation

    def settle(agent: Any, free: list[int]) -> None:
        living[agent] = possible.index(agent) if possible else free.pop(0)

    possible = list(getattr(spy, "possible_agents", []))
    for count in range(num_steps + 1):
        if count == 0 or over or count % 150 == 0:  # some never end by themselves
            if count:
                held, over = reset(rows), False
            living = {}
            free = list(range(rows.num_agents))
            for agent in spy.agents:
                settle(agent, free)
            last: dict[Any, int] = {}
            assert not (held.masks.any() or held.rewards.any() or held.terminations.any() or held.truncations.any())
        else:
            actions = [rows.action_space.sample() for _ in range(rows.num_agents)]
            over, held = step(rows, np.array(actions))
            _, rewards, terminations, truncations, _ = spy.last
            last = dict(living)
            for agent, index in last.items():
                assert held.masks[index]
                assert held.rewards[index] == rewards[agent]
                assert (held.terminations[index], held.truncations[index]) == (
                    terminations[agent],
                    truncations[agent],
                )
                if terminations[agent] or truncations[agent]:
                    expect_row(held.observations[index], rows.observation_layouts[index], observed(agent))
                    ended += 1
                    del living[agent]
            free = sorted(set(range(rows.num_agents)) - set(last.values()))
            for agent in spy.agents:
                if agent not in living:
                    settle(agent, free)
            assert set(living) == set(spy.agents)
            assert over == (not living)
            ends += over
        for agent, index in living.items():
            expect_row(held.observations[index], rows.observation_layouts[index], observed(agent))
        for index in set(range(rows.num_agents)) - set(living.values()) - set(last.values()):
            assert not held.observations[index].any()
        for index in set(range(rows.num_agents)) - set(last.values()):
            assert not (held.masks[index] or held.rewards[index] or held.terminations[index] or held.truncations[index])
        if over:
            (last_info,) = [info for index, info in held.infos if index is None]
            assert last_info["env"]
    rows.close()
    return ends, ended


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.long] if "ids" in name or name == "generated, in turns" else [])
        for name in GENERATED
    ],
)
@pytest.mark.filterwarnings("ignore:.*render_mode")
def test_rows_of_generated_agents_equal_raw(name: str) -> None:
    module = sys.modules[GENERATED[name].__module__]  # whose env() ends at once where a mask forbids the action
    spy = Spy(module.raw_env(max_cycles=5) if "turns" in name or "masks" in name else GENERATED[name]())
    space = MASKED if "observations" in name else OBSERVED
    rows = emulate(spy, max_agents=40, observation_space=space, action_space=ACTED)
    ends, ended = play_against_spy(rows, spy, 400)
    assert ended > 10
    assert ends >= 2 or isinstance(GENERATED[name], type)  # the parallel ones never end by themselves


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in ("tag, in turns", "knights") else [pytest.mark.long])
        for name in REAL_ENVS
    ],
)
@pytest.mark.slow
def test_rows_of_real_envs_equal_raw(name: str) -> None:
    env = REAL_ENVS[name]()
    if isinstance(env, AECEnv):
        from pettingzoo.utils.conversions import aec_to_parallel

        env = aec_to_parallel(env)
    spy = Spy(env)
    ends, ended = play_against_spy(emulate(spy), spy, 1000)
    assert ends >= 3
    assert ended >= ends


def test_aec_envs_are_converted_by_pettingzoo() -> None:
    rows, others = emulate(tag_turns()), emulate(tag())
    assert isinstance(rows.env, AECEnv)
    held, other = reset(rows, 3), reset(others, 3)
    rows.action_space.seed(0)
    for _ in range(25):
        for first, second in zip(held[:5], other[:5], strict=True):
            assert np.array_equal(first, second)
        actions = np.array([rows.action_space.sample() for _ in range(rows.num_agents)])
        over, held = step(rows, actions)
        other_over, other = step(others, actions)
        assert other_over == over
        if over:
            held, other = reset(rows), reset(others)
    rows.close()
    others.close()


def test_new_spaces_of_each_episode_do_not_pile_up() -> None:
    rows = emulate(GENERATED["generated"](), max_agents=40, observation_space=OBSERVED, action_space=ACTED)
    parallel = wrap(GENERATED["generated"]())
    counts = []
    for _ in range(30):
        reset(rows)
        observations, _ = parallel.reset()
        assert all(
            parallel.observation_layout(agent).space.shape == observations[agent].shape for agent in parallel.agents
        )
        counts.append(sum(isinstance(thing, (Layout, ActionLayout)) for thing in gc.get_objects()))
    assert max(counts[10:]) <= max(counts[:10]) + 10


# ---- the wrapped face ----


def test_a_wrapped_env_keeps_what_the_raw_one_has() -> None:
    raw = Diverse(a=(MIXED, D2), b=(FLOATS, MIXED))
    env = wrap(raw)
    assert isinstance(env, ParallelEnv)
    assert env.env is env.raw is env.unwrapped is raw
    assert (env.metadata, env.state(), env.possible_agents, env.max_num_agents) == (
        raw.metadata,
        "the state",
        ["a", "b"],
        2,
    )
    assert (env.agents, env.num_agents, env.spaces, str(env)) == ([], 0, raw.spaces, "diverse")
    assert env.observation_space("a") == env.observation_layout("a").flat_space == Box(0, 255, (16,), np.uint8)
    assert env.action_space("a") is D2
    assert env.action_layout("b").space is MIXED
    with pytest.raises(CallError, match=r"call reset\(\) first"):
        env.step({})
    env.reset(seed=0)
    with pytest.raises(ActionError, match=r"actions are \[0, 1\]; give a dict with each agent's action"):
        env.step([0, 1])
    assert env.agents == ["a", "b"]
    flat, *_ = env.step({agent: env.action_space(agent).sample() for agent in env.agents})
    assert type(raw.actions["a"]) is int
    assert same(env.observation_layout("b").decode(flat["b"]), raw.seen["b"])
    assert wrap(env) is env
    with pytest.raises(PlanError, match="wrapped already, so max_agents cannot be set"):
        wrap(env, max_agents=3)
    assert not hasattr(env, "nothing")
    assert emulate(env).env is raw
    env.close()


def test_no_possible_agents_where_the_raw_env_has_none() -> None:
    env = wrap(Newcomer(a=(MIXED, D2), b=(D2, D2)), max_agents=4)
    assert not hasattr(env, "possible_agents")
    assert emulate(env).num_agents == 4
    assert [env.reset()[0].keys(), env.step({"a": 0})[0].keys()] == [{"a"}, {"a", "b"}]
    assert env.observation_space("b") is D2


def test_the_space_methods_return_one_object_though_the_raw_env_makes_new_ones() -> None:
    class Making(Diverse):
        def observation_space(self, agent: Any) -> Any:
            return Dict(a=Box(-1, 1, (2,)), b=Discrete(2))

        action_space = observation_space

    env = wrap(Making(a=(None, None)))
    for method in (env.observation_space, env.action_space):
        space = method("a")
        env.reset()
        assert method("a") is space


def test_what_is_returned_is_owned() -> None:
    class Live(Diverse):
        buffer, shared_info = np.zeros(2, np.float32), {"list": [np.zeros(1)]}

        def observe(self) -> Any:
            self.buffer += 1
            self.shared_info["list"][0] += 1
            return dict.fromkeys(self.agents, self.buffer)

        def info(self) -> Any:
            return dict.fromkeys(self.agents, self.shared_info)

    space = Box(0, 99, (2,), np.float32)
    env, rows = wrap(Live(a=(space, D2), b=(space, D2))), emulate(Live(a=(space, D2), b=(space, D2)))
    start = Live.buffer[0]
    flat, infos = env.reset()
    env.step({"a": 0, "b": 0})
    assert flat["a"].tolist() == flat["b"].tolist() == [start + 1] * 2
    assert infos["a"]["list"][0] == start + 1
    held = reset(rows)
    step(rows, np.zeros(2, int))
    assert held.observations.tolist() == [[start + 3] * 2] * 2
    assert held.infos[0][1]["list"][0] == start + 3


def test_an_observation_that_does_not_fit_names_its_agent() -> None:
    class Wrong(Diverse):
        def observe(self) -> Any:
            return {"a": 1, "b": {"a": np.zeros(3, np.float32), "b": 0}}

    for wrapper in (wrap, emulate):
        env = wrapper(Wrong(a=(D2, D2), b=(MIXED, D2)), action_mask=False)
        with pytest.raises(
            SpaceError, match=r"agent 'b': a: expected float32 of shape \(2,\), got float32 of shape \(3,\)"
        ):
            env.reset(seed=None, options=None)


def test_a_warning_of_an_observation_names_its_agent() -> None:
    class Outside(Diverse):
        def observe(self) -> Any:
            return {"a": np.zeros(2, np.float32), "b": np.full(2, 3, np.float32)}

    for wrapper in (wrap, emulate):
        env = wrapper(Outside(**{name: (Box(-1, 1, (2,), np.float32), D2) for name in "ab"}), action_mask=False)
        with pytest.warns(UserWarning, match=r"^agent 'b': the observation: the value 3.0 is not in Box") as caught:
            env.reset(seed=None, options=None)
        assert len(caught) == 1


@pytest.mark.parametrize("reward", [None, "much", [1.0, 2.0]])
def test_a_reward_must_be_a_number(reward: Any) -> None:
    class Rewarding(Diverse):
        def step(self, actions: Any) -> Any:
            observations, _, *rest = super().step(actions)
            return observations, {"a": reward}, *rest

    rows = emulate(Rewarding(a=(D2, D2)))
    reset(rows)
    with pytest.raises(SpaceError, match="Rewarding.step returned the reward .*; expected a number"):
        rows.step(np.zeros(1, int))


def test_an_env_that_returns_observations_alone_or_no_infos_or_takes_no_seed() -> None:
    class Old(Diverse):
        def reset(self) -> Any:  # type: ignore[override]
            return super().reset()[0]

        def step(self, actions: Any) -> Any:
            return (*super().step(actions)[:4], None)

    rows = emulate(Old(a=(D2, D2)))
    with pytest.warns(UserWarning, match="Old.reset takes no seed"):
        held = reset(rows, 3)
    assert held.observations.tolist() == [rows.env.seen["a"]]
    assert step(rows, np.zeros(1, int))[1].observations.tolist() == [rows.env.seen["a"]]
    wrapped = wrap(Old(a=(D2, D2)))
    assert wrapped.reset()[1] == {}
    assert wrapped.step({"a": 0})[4] == {}


def test_wrapping_many_agents_needs_pettingzoo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pufferlib.emulation.pettingzoo_env", None)
    monkeypatch.delattr("pufferlib.emulation.pettingzoo_env")
    with pytest.raises(MissingExtra, match="pip install pettingzoo"):
        wrap(Diverse(a=(D2, D2)))
    assert emulate(Diverse(a=(D2, D2))).num_agents == 1  # rows do without


# ---- PufferEnvs of several agents ----


class Countdown(pufferlib.PufferEnv):
    """Agent 2 appears in step 1, agent 0 vanishes without a flag in step 2, 1 terminates in step 3, 2 is cut in 4."""

    single_observation_space = Box(0, 99, (2,), np.float32)
    single_action_space = Discrete(3)
    num_agents = 3

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.tick = 0
        self.alive[2] = False
        self.observations[:] = self.np_random.random((3, 1))
        return [{"i": i} for i in range(3)]

    def step(self, actions: Any) -> Any:
        self.tick += 1
        self.observations[:, 1] = self.tick
        self.rewards[:] = actions
        self.alive[2] |= self.tick == 1
        self.alive[0] &= self.tick != 2
        self.terminations[1] = self.tick == 3
        self.truncations[2] = self.tick == 4
        return {"tick": self.tick}


def test_a_native_env_of_many_agents_is_a_parallel_env() -> None:
    env, rows = wrap(Countdown()), emulate(Countdown())
    assert isinstance(env, ParallelEnv)
    assert wrap(env) is env
    assert emulate(env).env is env.raw is env.env
    with pytest.raises(CallError, match=r"call reset\(\) first"):
        env.step({})
    assert env.observation_space("agent_0") == env.observation_layout("agent_0").flat_space
    assert env.action_layout("agent_0").space is Countdown.single_action_space
    (observations, infos), held = env.reset(seed=0), reset(rows, 0)
    for wrong, message in ((3, "actions are 3; give a dict"), ({"agent_0": 0}, "actions have no 'agent_1', which")):
        with pytest.raises(ActionError, match=message):
            env.step(wrong)
    assert infos == {"agent_0": {"i": 0}, "agent_1": {"i": 1}}
    lists = [env.agents]
    rewards: Any = {}
    terminations: Any = {}
    truncations: Any = {}
    while True:
        for index, agent in enumerate(env.possible_agents):
            if agent in observations:
                assert same(observations[agent], held.observations[index])
            else:
                assert not held.observations[index].any()
            if held.masks[index]:
                outcome = rewards[agent], terminations[agent], truncations[agent]
                assert outcome == (
                    held.rewards[index],
                    held.terminations[index],
                    held.truncations[index],
                )
            elif agent in rewards:
                assert (rewards[agent], terminations[agent], truncations[agent]) == (0, False, False)
        if not env.agents:
            break
        observations, rewards, terminations, truncations, infos = env.step(dict.fromkeys(env.agents, 2))
        over, held = step(rows, np.full(3, 2))
        lists.append(env.agents)
        assert infos["common"] == {"tick": len(lists) - 1}
        assert over == (not env.agents)
    first, second, third = env.possible_agents
    assert lists == [[first, second], [first, second, third], [second, third], [third], []]
    assert dict(without_time(held.infos)) == {
        2: {"episode": {"r": 6.0, "l": 3}},
        None: {"tick": 4, "env": True, "episode": {"r": 16.0, "l": 4}},
    }
    assert env.render() is None
    env.reset()
    with pytest.raises(SpaceError, match="expected an integer, got float64 of shape"):
        env.step({"agent_0": 0.5, "agent_1": 2})
    env.close()


def test_a_native_env_of_many_agents_passes_pettingzoos_own_tests() -> None:
    class Regular(Countdown):
        def reset(self, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            self.alive[:] = True

        def step(self, actions: Any) -> Any:
            self.tick += 1
            self.observations[:] = self.np_random.random((3, 2))
            self.terminations[:] = self.tick == 5 + np.arange(3)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parallel_api_test(wrap(Regular()), num_cycles=30)
        parallel_seed_test(lambda: wrap(Regular()), num_cycles=30)


@pytest.mark.parametrize(("returned", "got"), [(({}, {}, {}, {}), "4 values"), (None, "a NoneType")])
def test_a_step_that_returns_no_five_dicts_is_named(returned, got):
    from pufferlib.emulation.pettingzoo_rows import checked_step

    with pytest.raises(pufferlib.SpaceError, match=f"Four.step returned {got}; expected five dicts by agent"):
        checked_step(returned, "Four")
