"""Random populations against a simple model: who sits where, whose transition is real, and who ended, exactly once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from hypothesis import given, settings
from hypothesis import strategies as st
from row_tools import reset, step, without_time

from pufferlib.emulation import emulate
from pufferlib.errors import PlanError, PopulationError, SpaceError

pytestmark = pytest.mark.beside

PLACES = 5
# What happens to an agent in a step. drop: a last row, but no flag. vanish: neither. linger: it ends, but stays listed.
EVENTS = ("stay", "stay", "stay", "end", "cut", "both", "drop", "vanish", "linger", "linger and cut")
SPAWNS = ("none", "none", "one", "two", "stillborn")


class Scripted:
    """A parallel environment (no ParallelEnv: it has what is called, and no more) that plays a script and keeps a log.

    script: of each step, an event for each living agent in turn (repeated as needed) and what spawns. Agents see (their
    number, the tick) and are rewarded by the number of the action and the tick.
    """

    def __init__(self, script: list[Any], first: int, listed: bool) -> None:
        self.script = script
        self.first = first
        self.steps = 0
        if listed:
            self.possible_agents = [self.name(number) for number in range(100)]
        self.space = Box(-1, 1e6, (2,), np.float32)
        self.actions = Discrete(10)

    @staticmethod
    def name(number: int) -> Any:
        return ("agent", number) if number % 2 else number

    def observation_space(self, agent: Any) -> Any:
        return self.space

    def action_space(self, agent: Any) -> Any:
        return self.actions

    def see(self, agent: Any) -> Any:
        return np.array([agent if isinstance(agent, int) else agent[1], self.tick], np.float32)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.tick = 0
        self.agents = [self.name(number) for number in range(self.first)]
        self.alive = list(self.agents)
        self.lingering: dict[Any, int] = {}
        self.born = self.first
        return {agent: self.see(agent) for agent in self.agents}, {agent: {"first": True} for agent in self.agents[:1]}

    def step(self, actions: Any) -> Any:
        assert list(actions) == self.alive
        events, spawn = self.script[self.steps % len(self.script)]
        self.steps += 1
        self.tick += 1
        self.log = {agent: events[i % len(events)] for i, agent in enumerate(self.alive)}
        observations, rewards, terminations, truncations = {}, {}, {}, {}
        for agent, event in self.log.items():
            if event == "vanish":
                continue
            observations[agent] = self.see(agent)
            rewards[agent] = int(actions[agent]) + self.tick / 8
            if event != "drop":
                terminations[agent] = event in ("end", "both", "linger")
                truncations[agent] = event in ("cut", "both", "linger and cut")
        for agent in self.lingering:
            observations[agent], rewards[agent] = self.see(agent), 99.0
            terminations[agent] = truncations[agent] = True
        self.lingering = {agent: left - 1 for agent, left in self.lingering.items() if left}
        self.lingering |= {agent: self.tick % 3 for agent, event in self.log.items() if event.startswith("linger")}
        self.alive = [agent for agent in self.alive if self.log[agent] == "stay"]
        self.spawned = []
        for _ in range({"one": 1, "two": 2, "stillborn": 1}.get(spawn, 0)):
            agent = self.name(self.born)
            self.born += 1
            observations[agent], rewards[agent] = self.see(agent), 77.0
            terminations[agent] = spawn == "stillborn"
            if spawn == "stillborn":
                self.lingering[agent] = 0
            else:
                self.spawned.append(agent)
        self.alive = self.spawned + self.alive  # not in order of appearance
        self.agents = [*self.lingering, *self.alive]
        infos: dict[Any, Any] = {agent: {"tick": self.tick} for agent in observations if self.tick % 2}
        return observations, rewards, terminations, truncations, infos


class Model:
    """What rows must show, from the log alone."""

    def __init__(self, env: Scripted, places: int) -> None:
        self.env = env
        self.places = places
        self.fixed = hasattr(env, "possible_agents")
        self.seats = {agent: self.seat(agent, list(range(places))) for agent in ()}
        free = list(range(places))
        self.seats = {agent: self.seat(agent, free) for agent in env.agents}
        self.returns = dict.fromkeys(self.seats, 0.0)
        self.lengths = dict.fromkeys(self.seats, 0)
        self.total = 0.0

    def seat(self, agent: Any, free: list[int]) -> int:
        return self.env.possible_agents.index(agent) if self.fixed else free.pop(0)

    def blank(self) -> Any:
        return {name: np.zeros(self.places) for name in ("rewards", "terminations", "truncations", "masks")}, np.zeros(
            (self.places, 2)
        )

    def first(self) -> Any:
        outcome, observations = self.blank()
        for agent, agent_index in self.seats.items():
            observations[agent_index] = self.env.see(agent)
        return outcome, observations

    def step(self, actions: Any) -> Any:
        """Return the rows, and by place the return and length of the lives that ended."""
        env = self.env
        outcome, observations = self.blank()
        ended = {}
        free = sorted(set(range(self.places)) - set(self.seats.values()))
        for agent, event in env.log.items():
            agent_index = self.seats[agent]
            if event != "vanish":
                observations[agent_index] = env.see(agent)
                outcome["masks"][agent_index] = 1
                outcome["rewards"][agent_index] = actions[agent_index] + env.tick / 8
                self.returns[agent] += actions[agent_index] + env.tick / 8
                self.total += actions[agent_index] + env.tick / 8
                self.lengths[agent] += 1
            outcome["terminations"][agent_index] = event in ("end", "both", "linger")
            outcome["truncations"][agent_index] = event in ("cut", "both", "drop", "vanish", "linger and cut")
            if event != "stay":
                ended[agent_index] = (self.returns[agent], self.lengths[agent])
                del self.seats[agent]
        for agent in env.spawned:
            self.seats[agent] = self.seat(agent, free)
            self.returns[agent], self.lengths[agent] = 0.0, 0
            observations[self.seats[agent]] = env.see(agent)
        return (outcome, observations), ended


def expect(held: Any, expected: Any) -> None:
    outcome, observations = expected
    assert held.observations.tolist() == observations.tolist()
    for name, column in outcome.items():
        assert getattr(held, name).tolist() == column.tolist(), name


scripts = st.lists(
    st.tuples(st.lists(st.sampled_from(EVENTS), min_size=1, max_size=6), st.sampled_from(SPAWNS)),
    min_size=1,
    max_size=25,
)


@settings(max_examples=settings().max_examples // 4)
@given(scripts, st.integers(1, PLACES), st.booleans())
def test_rows_follow_a_simple_model(script: Any, first: int, listed: bool) -> None:
    check_rows(script, first, listed)


@pytest.mark.long
@given(scripts, st.integers(1, PLACES), st.booleans())
def test_rows_follow_a_simple_model_at_length(script: Any, first: int, listed: bool) -> None:
    check_rows(script, first, listed)


def check_rows(script: Any, first: int, listed: bool) -> None:
    env = Scripted(script, first, listed)
    rows = emulate(env) if listed else emulate(env, max_agents=PLACES)
    assert rows.num_agents == (100 if listed else PLACES)
    held, over = reset(rows), False
    model = Model(env, rows.num_agents)
    expect(held, model.first())
    for count in range(40):
        if over:
            held, over = reset(rows), False
            model = Model(env, rows.num_agents)
            expect(held, model.first())
            assert dict(held.infos) == {model.seats[env.agents[0]]: {"first": True}}
            continue
        actions = (np.arange(rows.num_agents) + count) % 10
        before = set(model.seats.values())
        try:
            over, held = step(rows, actions)
        except PopulationError:
            assert not listed
            assert len(before) + len(env.spawned) > PLACES  # a place freed in a step is not free in the same step
            return
        assert listed or len(before) + len(env.spawned) <= PLACES
        expected, ended = model.step(actions)
        expect(held, expected)
        assert over == (not model.seats)
        infos = dict(without_time(held.infos))
        episodes = {
            agent_index: info.pop("episode")
            for agent_index, info in infos.items()
            if agent_index is not None and "episode" in info
        }
        assert {agent_index: (episode["r"], episode["l"]) for agent_index, episode in episodes.items()} == ended
        if over:
            assert infos[None]["episode"] == {"r": pytest.approx(model.total), "l": env.tick}
            assert infos[None]["env"] is True
        else:
            assert "episode" not in infos.get(None, {})


class Listed(Scripted):
    """agents: of each tick, who is listed; everybody listed has a row."""

    def __init__(self, *listed: list[Any], possible: list[Any] | None = None) -> None:
        super().__init__([], 0, False)
        self.listed = listed
        if possible is not None:
            self.possible_agents = possible

    def see(self, agent: Any) -> Any:
        return np.full(2, self.tick, np.float32)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.tick = 0
        self.agents = self.listed[0]
        return {agent: self.see(agent) for agent in self.agents}, {}

    def step(self, actions: Any) -> Any:
        self.tick += 1
        before, self.agents = self.agents, self.listed[self.tick]
        rows = {agent: self.see(agent) for agent in {*before, *self.agents}}
        gone = {agent: agent not in self.agents for agent in before}
        return rows, dict.fromkeys(rows, 1.0), gone, dict.fromkeys(gone, False), {}


def test_an_agent_that_comes_back_is_an_error() -> None:
    for env, keywords in (
        (Listed(["a", "b"], ["b"], ["a", "b"]), {"max_agents": 9}),
        (Listed(["a", "b"], ["b"], ["b", "a"], possible=["a", "b"]), {}),
    ):
        rows = emulate(env, **keywords)  # type: ignore[arg-type]
        reset(rows)
        step(rows, np.zeros(9, int))
        with pytest.raises(PopulationError, match="Listed: agent 'a' came back after its end"):
            rows.step(np.zeros(9, int))
        assert not reset(rows).masks.any()  # a new episode begins from scratch


def test_more_agents_than_places_is_an_error() -> None:
    rows = emulate(Listed(["a"], ["a", "b"], ["a", "b", "c"]), max_agents=2)
    reset(rows)
    step(rows, np.zeros(2, int))
    with pytest.raises(PopulationError, match="no place for agent 'c', as max_agents=2 are taken"):
        rows.step(np.zeros(2, int))
    with pytest.raises(PopulationError, match="no place for agent 'b', as max_agents=1"):
        emulate(Listed(["a", "b"]), max_agents=1).reset(None, None)


def test_a_place_is_free_from_the_next_step_on() -> None:
    rows = emulate(Listed(["a", "b"], ["b"], ["b", "c"], ["c"], ["c", "d"]), max_agents=2)
    steps = [reset(rows)] + [step(rows, np.zeros(2, int))[1] for _ in range(4)]
    assert [held.masks.tolist() for held in steps] == [
        [False, False],
        [True, True],
        [False, True],
        [True, True],
        [True, False],
    ]
    with pytest.raises(PopulationError, match="a place freed in one step is free from the next on"):
        rows = emulate(Listed(["a", "b"], ["b", "c"]), max_agents=2)
        reset(rows)
        rows.step(np.zeros(2, int))


def test_an_agent_outside_possible_agents_is_an_error() -> None:
    rows = emulate(Listed(["a"], ["a", "x"], possible=["a", "b"]))
    reset(rows)
    with pytest.raises(PopulationError, match=r"agent 'x' is not in possible_agents, \['a', 'b'\]"):
        rows.step(np.zeros(2, int))


def test_the_number_of_rows_must_be_known() -> None:
    with pytest.raises(PlanError, match="Listed has no possible_agents.*pass max_agents="):
        emulate(Listed(["a"]))
    with pytest.raises(PlanError, match="max_agents must be at least 1, got 0"):
        emulate(Listed(["a"]), max_agents=0)


def test_fewer_places_than_possible_agents_are_shared() -> None:
    possible = [f"agent_{number}" for number in range(50)]
    rows = emulate(Listed(["agent_40"], ["agent_40", "agent_7"], possible=possible), max_agents=3)
    assert (rows.num_agents, emulate(Listed(["agent_40"], possible=possible), max_agents=60).num_agents) == (3, 50)
    reset(rows)
    _, held = step(rows, np.zeros(3, int))
    assert held.observations.tolist() == [[1, 1], [1, 1], [0, 0]]


def test_a_living_agent_has_an_observation() -> None:
    class Blind(Listed):
        def step(self, actions: Any) -> Any:
            observations, *rest = super().step(actions)
            return dict.fromkeys(observations), *rest

    rows = emulate(Blind(["a", "b"], ["a", "b"], []), max_agents=2)
    reset(rows)
    with pytest.raises(SpaceError, match="Blind gave None as the observation of agent 'a', which is alive"):
        rows.step(np.zeros(2, int))
    over, held = step(rows, np.zeros(2, int))  # the ended may do without
    assert over
    assert not held.observations.any()
    assert held.masks.all()


def test_an_env_without_agents_is_over() -> None:
    rows = emulate(Listed([], possible=["a"]))
    assert not reset(rows).observations.any()


def test_infos_of_no_place_are_the_environments() -> None:
    class Telling(Listed):
        step_infos: Any = None

        def step(self, actions: Any) -> Any:
            return *super().step(actions)[:4], self.step_infos

    env = Telling(["a", "b"], ["b"], ["b"], ["b", "c"], ["b"], [])
    rows = emulate(env, max_agents=2)
    reset(rows)
    env.step_infos = {"a": {"last": 1}, "common": {"x": 1}, "b": {}, "note": "text"}
    assert without_time(step(rows, np.zeros(2, int))[1].infos) == [
        (0, {"last": 1, "episode": {"r": 1.0, "l": 1}}),
        (None, {"common": {"x": 1}, "note": "text"}),
    ]
    env.step_infos = {"a": {"late": 1}}
    assert step(rows, np.zeros(2, int))[1].infos == [(0, {"late": 1})]
    assert step(rows, np.zeros(2, int))[1].infos == [(None, {"a": {"late": 1}})]  # place 0 is another's now
    env.step_infos = {"c": {"episode": "its own"}}
    assert step(rows, np.zeros(2, int))[1].infos == [(0, {"episode": "its own"})]
    env.step_infos = {"common": {"x": 1}}
    agent_index, last = without_time(step(rows, np.zeros(2, int))[1].infos)[0]
    assert (agent_index, last) == (None, {"common": {"x": 1}, "env": True, "episode": {"r": 7.0, "l": 5}})
