"""The environment's state, and each agent's type, as leaves beside the observations of PettingZoo environments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cloudpickle
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, Text
from mock_envs import HashEnv, TagEnv
from pettingzoo.test import parallel_api_test
from row_tools import Diverse, Newcomer, expect_row, poisoned, reset, same, step

import pufferlib
from pufferlib.emulation import emulate, wrap
from pufferlib.emulation.extra_leaves import agent_types
from pufferlib.errors import PlanError, PopulationError, SpaceError
from pufferlib.testing.play import Player, Subject

pytestmark = pytest.mark.beside

D2, D5 = Discrete(2), Discrete(5)
LINE = Box(-1, 1, (2,), np.float32)
LONG = Box(-1, 1, (5,), np.float32)
MIXED = Dict(a=Box(-1, 1, (2,), np.float32), b=Discrete(3))
WIDE = Dict(a=Box(-1, 1, (1,), np.float64), b=Discrete(3))
MASKED = Dict(observation=LINE, action_mask=MultiBinary(2))
STATE = Box(-5, 5, (3,), np.float32)
BOTH: dict[str, Any] = {"state": True, "agent_type": True}


class Stateful(Diverse):
    """Samples its state, as it does its observations."""

    state_space: Any = STATE

    def observe(self) -> Any:
        self.last_state = self.state_space.sample()
        return super().observe()

    def state(self) -> Any:
        return self.last_state


class Counting:
    """Observations and states that say where and when they are: (env_index, tick), of two agents.

    One dies in step 2; the episode ends in step 4.
    """

    metadata: dict[str, Any] = {"name": "counting"}
    possible_agents = ["wolf_0", "sheep_0"]
    state_space = Box(0, 99, (2,), np.int32)

    def __init__(self, env_index: int = 0) -> None:
        self.env_index = env_index

    def observation_space(self, agent: Any) -> Any:
        return Box(0, 99, (2 if agent == "wolf_0" else 3,), np.float32)

    def action_space(self, agent: Any) -> Any:
        return D2

    def state(self) -> Any:
        self.live[:] = self.env_index, self.tick  # a buffer that it keeps
        return self.live

    def observe(self, agents: list[str]) -> Any:
        seen = [self.env_index, self.tick, 7]
        return {agent: np.float32(seen[: self.observation_space(agent).shape[0]]) for agent in agents}

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents, self.tick, self.live = self.possible_agents[:], 0, np.zeros(2, np.int32)
        return self.observe(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions: Any) -> Any:
        acted, self.tick = self.agents, self.tick + 1
        over = {agent: self.tick == (2 if agent == "sheep_0" else 4) for agent in acted}
        self.agents = [agent for agent in acted if not over[agent]]
        flags = dict.fromkeys(acted, False)
        return self.observe(acted), dict.fromkeys(acted, 1.0), over, flags, {agent: {} for agent in acted}


# ---- rows ----


@pytest.mark.parametrize("autoreset_mode", ["next_step", "same_step"])
@pytest.mark.parametrize("backend", ["serial", "multiprocessing", "pool"])
def test_rows_carry_the_state_after_their_step(backend: str, autoreset_mode: str) -> None:
    with pufferlib.make(
        Counting, backend=backend, num_envs=5, num_workers=2, batch_size=3 if backend == "pool" else 5, seed=1,
        wrap_kwargs=BOTH, autoreset_mode=autoreset_mode,
    ) as vec:  # fmt: skip
        layout, (wolfs, sheeps) = vec.observation_layout, vec.observation_layouts
        assert [leaf.name for leaf in layout.leaves] == ["state", "agent_type", "observation"]

        def expect(rows: Any, env_id: int, tick: int) -> None:
            state = {"state": np.int32([env_id, tick])}
            expect_row(rows[0], wolfs, {**state, "agent_type": 0, "observation": np.float32([env_id, tick])})
            if tick > 2:  # it is dead
                assert not rows[1].any()
            else:
                expect_row(rows[1], sheeps, {**state, "agent_type": 1, "observation": np.float32([env_id, tick, 7])})

        ticks, finals = dict.fromkeys(range(5), 0), 0
        last = 4 if autoreset_mode == "next_step" else 3
        vec.async_reset()
        while min(ticks.values()) <= 10:  # a pool may keep to one worker's for a while
            batch = vec.recv()
            for rows, env_id in zip(batch.observations.reshape(-1, 2, *layout.shape), batch.env_ids, strict=True):
                expect(rows, int(env_id), ticks[env_id] % (last + 1))
                ticks[env_id] += 1
            for info in batch.infos:
                if "final_obs" in info and info["episode"]["l"] == 4:  # the wolf's
                    assert layout.unflatten(info["final_obs"])["state"].tolist() == [info["env_id"], 4]
                    finals += 1
            vec.send(np.zeros(vec.agents_per_batch, np.int64))
        assert (finals > 5) == (autoreset_mode == "same_step")


@pytest.mark.parametrize("kwargs", [{"state": True}, {"agent_type": True}, BOTH], ids=str)
@pytest.mark.parametrize("state_space", [STATE, Box(0, 9, (3,), np.uint8), Dict(x=D5, y=Text(3)), D5], ids=str)
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (LINE, LINE),
        (MIXED, MIXED),
        (LINE, LONG),
        (LINE, Box(-1, 1, (2, 2), np.float32)),
        (MIXED, LONG),
        (MIXED, WIDE),
        (Discrete(3), D5),
        (Box(0, 9, (3,), np.uint8), Box(0, 255, (2, 2), np.uint8)),
        (MASKED, MASKED),
        (MASKED, Dict(observation=LONG, action_mask=MultiBinary(2))),
        (LINE, MASKED),
    ],
)
def test_every_agents_own_layout_reads_its_row(first: Any, second: Any, state_space: Any, kwargs: Any) -> None:
    env, raw = Stateful(wolf_1=(first, D2), sheep_1=(second, D2)), Stateful(wolf_1=(first, D2), sheep_1=(second, D2))
    env.state_space, raw.state_space = state_space, state_space
    rows, wrapped = emulate(env, **kwargs), wrap(raw, **kwargs)
    held, (flat, _) = reset(rows, 0), wrapped.reset(seed=0)
    target = poisoned(rows)
    for _ in range(4):
        seen = rows.observation_layout.unflatten(held.observations)
        rows.write_observations(target)  # the same rows each time
        for agent_index, agent in enumerate(env.possible_agents):
            layout, space = rows.observation_layouts[agent_index], [first, second][agent_index]
            inner = env.seen[agent] if space is MASKED or "action_mask" in getattr(space, "spaces", {}) else None
            extra_leaves = {"observation": env.seen[agent]} if inner is None else inner
            expected = {**extra_leaves, "state": env.last_state, "agent_type": agent_index}
            expected = {name: expected[name] for name in layout.space}
            assert set(expected) == {*kwargs, *extra_leaves}
            for written in (held.observations[agent_index], target.observations[agent_index]):
                expect_row(written, layout, expected)
            # What stands in front is read by the layout of the rows, too.
            if "agent_type" in kwargs:
                assert seen["agent_type"][agent_index] == agent_index
            if "state" in kwargs and state_space is STATE:
                assert np.array_equal(seen["state"][agent_index], env.last_state)
            assert wrapped.observation_layout(agent) == layout
            expected |= {name: part for name, part in {"state": raw.last_state}.items() if name in expected}
            expected |= {"observation": raw.seen[agent]} if inner is None else raw.seen[agent]
            assert same(wrapped.observation_layout(agent).decode(flat[agent]), expected)
        _, held = step(rows, np.zeros(2, int))
        flat, *_ = wrapped.step(dict.fromkeys(wrapped.agents, 0))


def test_what_policies_read_is_one_box_where_agents_have_one_dtype() -> None:
    rows = emulate(Stateful(wolf_1=(LINE, D2), sheep_1=(LONG, D2)), **BOTH)
    assert rows.observation_layout.space == Dict(state=STATE, agent_type=D2, observation=LONG)
    assert rows.observation_space == rows.observation_layout.flat_space
    other = emulate(
        Stateful(wolf_1=(MASKED, D2), sheep_1=(Dict(observation=LONG, action_mask=MultiBinary(2)), D2)), **BOTH
    )
    assert list(other.observation_layout.space) == ["state", "agent_type", "action_mask", "observation"]  # type: ignore[call-overload]
    env = other.env
    held = reset(other, 1)
    seen = other.observation_layout.unflatten(held.observations)
    for agent_index, agent in enumerate(env.possible_agents):
        observation = env.seen[agent]["observation"]
        assert seen["action_mask"][agent_index].tolist() == env.seen[agent]["action_mask"].tolist()
        assert seen["observation"][agent_index].tolist() == [*observation.tolist(), *[0] * (5 - len(observation))]


def test_masks_of_infos_stand_beside_them() -> None:
    class Masked(Stateful):
        def info(self) -> Any:
            return {agent: {"action_mask": np.int8([0, 1])} for agent in self.agents}

    rows = emulate(Masked(wolf_1=(LINE, D2), sheep_1=(LONG, D2)), **BOTH)
    held = reset(rows, 1)
    assert [leaf.name for leaf in rows.observation_layout.leaves] == [
        "state", "agent_type", "action_mask", "observation",
    ]  # fmt: skip
    assert rows.observation_layout.unflatten(held.observations)["action_mask"].tolist() == [[0, 1]] * 2
    assert held.infos == []


def test_agents_that_come_and_go_share_the_rows_that_were_given() -> None:
    class Coming(Newcomer, Stateful):
        pass

    env = Coming(a=(LINE, D2), b=(LONG, D2))
    rows = emulate(env, state=True, max_agents=3, observation_space=Box(-1, 1, (6,), np.float32), action_space=D5)
    assert rows.observation_layout.space == Dict(state=STATE, observation=Box(-1, 1, (6,), np.float32))
    held = reset(rows, 1)
    assert not held.observations[1:].any()
    _, held = step(rows, np.zeros(3, int))
    seen = rows.observation_layout.unflatten(held.observations)
    assert seen["observation"][1].tolist() == [*env.seen["b"].tolist(), 0.0]
    assert [part.tolist() for part in seen["state"]] == [env.last_state.tolist()] * 2 + [[0.0] * 3]


def test_masks_that_may_differ_in_size_are_no_leaf_of_the_rows() -> None:
    large = Dict(observation=LONG, action_mask=MultiBinary(5))
    kwargs = {"state": True, "max_agents": 2, "observation_space": large, "action_space": D5}
    rows = emulate(Stateful(a=(MASKED, D2)), **kwargs)
    assert [leaf.name for leaf in rows.observation_layout.leaves] == ["state", "observation"]
    held = reset(rows, 1)
    expect_row(held.observations[0], rows.observation_layouts[0], {**rows.env.seen["a"], "state": rows.env.last_state})
    unequal = emulate(Stateful(a=(MASKED, D2), b=(large, D5)), state=True)
    assert [leaf.name for leaf in unequal.observation_layout.leaves] == ["state", "observation"]


@pytest.mark.extras
@pytest.mark.parametrize("turn_based", [False, True])
def test_aec_envs_have_the_same_leaves(turn_based: bool) -> None:
    from mpe2 import simple_adversary_v3 as module

    rows, other = emulate(module.env(max_cycles=5), **BOTH), emulate(module.parallel_env(max_cycles=5), **BOTH)
    if turn_based:
        from pettingzoo.utils.conversions import turn_based_aec_to_parallel

        env = module.env(max_cycles=5)
        rows = emulate(turn_based_aec_to_parallel(env), **BOTH)
    held, others = reset(rows, 3), reset(other, 3)
    assert rows.observation_layout == other.observation_layout
    for _ in range(5):
        seen = rows.observation_layout.unflatten(held.observations)
        assert seen["state"].any() and (seen["state"] == seen["state"][0]).all()
        assert seen["agent_type"].tolist() == [0, 1, 1]
        if turn_based:
            assert np.array_equal(seen["state"][0], env.state())
        else:
            assert np.array_equal(held.observations, others.observations)
            # In these environments the state is all agents' observations, one after another.
            sizes, parts = (8, 10, 10), seen["observation"]
            assert seen["state"][0].tolist() == [x for row, size in zip(parts, sizes, strict=True) for x in row[:size]]
        actions = np.array([1, 2, 3])
        (over, held), (_, others) = step(rows, actions), step(other, actions)
        assert over == (not rows.env.agents)
    rows.close()
    other.close()


# ---- the wrapped face ----


@pytest.mark.extras
def test_a_wrapped_env_keeps_pettingzoos_api() -> None:
    from mpe2 import simple_adversary_v3 as module

    env = wrap(module.parallel_env(max_cycles=20), **BOTH)
    parallel_api_test(env, num_cycles=30)
    flat, _ = env.reset(seed=1)
    decoded = env.observation_layout("agent_1").decode(flat["agent_1"])
    assert np.array_equal(decoded["state"], env.state()) and decoded["agent_type"] == 1
    assert env.wrap_kwargs["state"] is True
    assert emulate(env).observation_layout == emulate(module.parallel_env(), **BOTH).observation_layout
    first = env.observation_layout("adversary_0").decode(flat["adversary_0"])["state"]
    env.step(dict.fromkeys(env.agents, 1))
    assert first.tolist() == decoded["state"].tolist() != env.state().tolist()


@pytest.mark.parametrize("space", [MIXED, MASKED])
def test_puffer_check_leaves_them_out_of_what_it_compares(space: Any) -> None:
    player = Player(Subject(lambda: Stateful(wolf_1=(space, D2), sheep_1=(LONG, D2)), wrap_kwargs=BOTH))
    moment = player.reset(1)
    for agent, row in moment.rows.items():
        assert same(player.decoded(agent, row), moment.raw[agent])


def test_nothing_is_asked_for_a_state_without_need() -> None:
    class Silent(Diverse):
        state_space = STATE

        def state(self) -> Any:
            raise AssertionError("not asked for")

    for env in (emulate(Silent(a=(LINE, D2))), emulate(Silent(a_1=(LINE, D2)), agent_type=True, state=False)):
        reset(env)
        step(env, np.zeros(1, int))
    assert emulate(Silent(a=(LINE, D2)), state=False).observation_space == LINE


# ---- agents' types ----


def test_types_are_numbered_as_they_first_appear() -> None:
    names = ["wolf_0", "sheep_12", "wolf_7", "dog", "sheep", "red_2_x", "dog_"]
    assert agent_types("env", names, True) == dict(zip(names, [0, 1, 0, 2, 1, 3, 4], strict=True))
    assert agent_types("env", [3, 4, 5], lambda agent: "even" if agent % 2 == 0 else "odd") == {3: 0, 4: 1, 5: 0}


def test_a_function_gives_types_in_workers_too() -> None:
    def by_size(agent: Any) -> str:
        return "small" if agent == "wolf_0" else "large"

    with pufferlib.make(
        Counting, backend="multiprocessing", num_envs=2, wrap_kwargs={"agent_type": by_size}, seed=1
    ) as vec:
        seen = vec.observation_layout.unflatten(vec.reset()[0])
        assert seen["agent_type"].tolist() == [0, 1, 0, 1]
    assert cloudpickle.loads(cloudpickle.dumps(by_size))("wolf_0") == "small"


# ---- a raw environment's observation as a row, as load_policy's player makes it ----


@pytest.mark.parametrize("state_space", [STATE, Box(2, 3, (3,), np.float32), Dict(x=Discrete(3, start=4), y=Text(3))])
def test_a_raw_observations_state_comes_from_its_info_or_is_zeros(state_space: Any, recwarn: Any) -> None:
    env = Stateful(wolf_1=(LINE, D2), sheep_1=(LONG, D2))
    env.state_space = state_space
    rows, held = emulate(env, **BOTH), emulate(env, **BOTH)
    written = reset(held, 1)
    for agent_index, agent in enumerate(env.possible_agents):
        packed = rows.row_of(env.seen[agent], {"state": env.last_state}, agent)
        assert packed.tolist() == written.observations[agent_index].tolist()
        row = rows.row_of(env.seen[agent], {}, agent)
        (size,) = {leaf.offset for leaf in rows.observation_layout.leaves if leaf.name == "agent_type"}
        assert not row.view(np.uint8)[:size].any()
        assert row.view(np.uint8)[size:].tolist() == packed.view(np.uint8)[size:].tolist()
        assert rows.row_of(env.seen[agent], None, agent).tolist() == row.tolist()
    with pytest.raises(SpaceError, match="state"):
        rows.row_of(env.seen["wolf_1"], {"state": np.zeros((2, 2))}, "wolf_1")
    assert not recwarn.list


# ---- what cannot be ----


class Unwritten(Stateful):
    def state(self) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize("wrapper", [wrap, emulate])
@pytest.mark.parametrize(
    ("creator", "kwargs", "error", "says"),
    [
        (lambda: Diverse(a=(LINE, D2)), {"state": True}, PlanError, "Diverse has no state_space, .*or leave state out"),
        (HashEnv, {"state": True}, PlanError, "HashEnv has one agent, .*: state cannot be set"),
        (HashEnv, {"agent_type": True}, PlanError, "HashEnv has one agent, .*: agent_type cannot be set"),
        (TagEnv, {"state": True}, PlanError, "TagEnv is a PufferEnv.*: state cannot be set"),
        (lambda: Unwritten(a=(LINE, D2)), {"state": True}, SpaceError, r"its state\(\) is not implemented; leave"),
        (
            lambda: Stateful(a=(Dict(state=LINE, action_mask=MultiBinary(2)), D2)),
            {"state": True},
            SpaceError,
            'already has a leaf "state" next to its "action_mask".*leave state out, or rename',
        ),
        (
            lambda: Newcomer(a=(LINE, D2), b=(LINE, D2)),
            {"agent_type": True, "max_agents": 2},
            PlanError,
            "Newcomer has no possible_agents, .*leave agent_type out",
        ),
        (lambda: Diverse(a=(LINE, D2)), {"agent_type": lambda agent: 3}, PlanError, r"agent_type\('a'\) returned 3"),
    ],
)
def test_what_cannot_be_is_refused(
    wrapper: Callable[..., Any], creator: Callable[[], Any], kwargs: Any, error: Any, says: str
) -> None:
    with pytest.raises(error, match=says):
        env = wrapper(creator(), **kwargs)
        env.reset(None, None) if wrapper is emulate else env.reset()


def test_agents_without_names_or_out_of_nowhere_are_refused() -> None:
    class Numbers(Diverse):
        def __init__(self) -> None:
            self.spaces = {3: (LINE, D2)}
            self.possible_agents = [3]

    with pytest.raises(PlanError, match="3 is not one; pass a function from an agent to the name of its type"):
        emulate(Numbers(), agent_type=True)

    class Stranger(Diverse):
        def reset(self, seed: int | None = None, options: Any = None) -> Any:
            observations, infos = super().reset(seed, options)
            self.agents.append("c_1")
            return {**observations, "c_1": LINE.sample()}, infos

    spaces = {"a_1": (LINE, D2), "b_1": (LINE, D2), "c_1": (LINE, D2)}
    env = Stranger(**spaces)
    env.possible_agents = ["a_1", "b_1"]
    with pytest.raises(PopulationError, match="agent 'c_1' is not in possible_agents"):
        wrap(env, agent_type=True, action_mask=False).reset()


def test_a_state_that_does_not_fit_its_space_is_named() -> None:
    env = Stateful(a=(LINE, D2))
    rows = emulate(env, state=True)
    env.state_space = Box(-1, 1, (7,), np.float32)
    with pytest.raises(
        SpaceError, match=r"agent 'a': state: expected float32 of shape \(3,\), got float32 of .*\(7,\)"
    ):
        rows.reset(None, None)


def test_an_observation_without_the_dict_that_it_promised_is_named() -> None:
    class Bare(Stateful):
        def observe(self) -> Any:
            super().observe()
            return {agent: LINE.sample() for agent in self.agents}

    with pytest.raises(SpaceError, match="agent 'a': expected a dict with an 'action_mask', got"):
        emulate(Bare(a=(MASKED, D2)), state=True).reset(None, None)
