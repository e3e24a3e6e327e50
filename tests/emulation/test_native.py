"""Emulation of PufferEnvs: rows, infos and endings of one agent and of many."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.utils.env_checker import check_env
from row_tools import reset, step, without_time, written

import pufferlib
from pufferlib.emulation import emulate, wrap
from pufferlib.emulation.native import NativeRows
from pufferlib.errors import CallError, PlanError, SpaceError
from pufferlib.layout import Layout

pytestmark = pytest.mark.beside


class Tally(pufferlib.PufferEnv):
    """Rows of (tick, agent, draw). script: tick → what happens, as {"end": …, "cut": …, "vanish": …, "spawn": …}."""

    single_observation_space = Box(-1, 1000, (3,), np.float32)
    single_action_space = Discrete(5)

    def __init__(self, num_agents: int = 1, script: Any = None, absent: Any = ()) -> None:
        self.num_agents = num_agents
        self.script = {5: {"end": list(range(num_agents))}} if script is None else script
        self.absent = list(absent)
        self.infos: Any = None

    def _see(self) -> None:
        self.observations[:, 0] = self.tick
        self.observations[:, 1] = np.arange(self.num_agents)
        self.observations[:, 2] = self.np_random.integers(1000)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        assert self.alive.all() and not self.rewards.any()
        self.tick = 0
        self.alive[self.absent] = False
        self.rewards[:] = 9  # belongs to no transition
        self._see()
        return options

    def step(self, actions: Any) -> Any:
        assert not (self.rewards.any() or self.terminations.any() or self.truncations.any())
        self.tick += 1
        self.rewards[:] = actions + self.tick / 100
        event = self.script.get(self.tick, {})
        self.terminations[event.get("end", [])] = True
        self.truncations[event.get("cut", [])] = True
        self.alive[event.get("vanish", [])] = False
        self.alive[event.get("spawn", [])] = True
        self._see()
        return self.infos


def play(rows: Any, num_steps: int) -> list[Any]:
    """Return what num_steps steps give, resetting where an episode is over."""
    seen, over = [reset(rows, 11)], False
    for tick in range(num_steps):
        if over:
            over = False
            seen.append(reset(rows))
        else:
            over, held = step(rows, np.full(rows.num_agents, tick % 5))
            seen.append(held)
    return [(*(column.tolist() for column in held[:5]), without_time(held.infos)) for held in seen]


@pytest.mark.parametrize(
    "script", [None, {3: {"cut": [0]}}, {2: {"vanish": [0]}}, {4: {"end": [0], "cut": [0]}}, {1: {"end": [0]}}]
)
def test_one_agent_is_the_same_as_many_of_one(script: Any) -> None:
    one, many = emulate(Tally(1, script)), NativeRows(Tally(1, script), "first")
    assert type(one) is not type(many)
    seen, expected = play(one, 20), play(many, 20)
    for row, other in zip(seen, expected, strict=True):
        assert row[:5] == other[:5]
        episodes = [info["episode"] for _, info in other[5]]
        assert [info["episode"] for _, info in row[5]] == episodes[:1]


@pytest.mark.parametrize("script", [None, {3: {"cut": [0]}}, {2: {"vanish": [0]}}])
def test_a_step_that_was_played_elsewhere_is_held_alike(script: Any) -> None:
    """What the compiled loop does: it steps the environment itself, and has the rest of some steps done here."""
    here, there = emulate(Tally(1, script)), emulate(Tally(1, script))
    assert not here.settled
    over = False
    for tick in range(20):
        if tick == 0 or over:
            over = False
            first, second = reset(here, 5), reset(there, 5)
        else:
            actions = np.array([tick % 5])
            over, first = step(here, actions)
            fast = there.fast
            assert fast is not None and fast.native and fast.env is there.env
            fast.env.rewards[0] = 0
            if tick == 2:  # played to its end there, but for the totals
                there.env.step(actions)
                total, length, start_s = there.totals
                there.totals = (total + there.env.rewards[0], length + 1, start_s)
                continue
            assert there.take(fast.step(actions)) is over
            second = written(there)
            assert there.settled
        assert [column.tolist() for column in first[:5]] == [column.tolist() for column in second[:5]]
        assert without_time(first.infos) == without_time(second.infos)
        assert here.totals[:2] == there.totals[:2]


def test_native_rows_are_what_the_env_wrote() -> None:
    rows = emulate(Tally(3))
    held = reset(rows, 1)
    assert (held.rewards.tolist(), held.masks.tolist()) == ([0] * 3, [False] * 3)
    for tick in range(1, 6):
        over, held = step(rows, np.array([0, 1, 2]))
        assert np.array_equal(held.observations, rows.env.observations)
        assert held.observations[:, :2].tolist() == [[tick, agent] for agent in range(3)]
        assert held.rewards.tolist() == pytest.approx([tick / 100, 1 + tick / 100, 2 + tick / 100])
        assert held.masks.all()
        assert held.terminations.tolist() == [over] * 3 == [tick == 5] * 3
    episodes = without_time(held.infos)
    assert [agent_index for agent_index, _ in episodes] == [0, 1, 2, None]
    assert [info["episode"]["r"] for _, info in episodes] == pytest.approx([0.15, 5.15, 10.15, 15.45])
    assert [info.get("env") for _, info in episodes] == [None, None, None, True]


def test_native_agents_come_and_go() -> None:
    script = {1: {"end": [0]}, 2: {"vanish": [1]}, 3: {"spawn": [0]}, 5: {"cut": [0], "end": [2]}, 6: {"end": [2]}}
    rows = emulate(Tally(4, script, absent=[3]))
    held = reset(rows)
    assert held.observations[3].tolist() == [0, 0, 0]
    seen = [step(rows, np.full(4, 1)) for _ in range(5)]
    table = {
        "masks": [[1, 1, 1, 0], [0, 1, 1, 0], [0, 0, 1, 0], [1, 0, 1, 0], [1, 0, 1, 0]],
        "terminations": [[1, 0, 0, 0], [0] * 4, [0] * 4, [0] * 4, [0, 0, 1, 0]],
        "truncations": [[0] * 4, [0, 1, 0, 0], [0] * 4, [0] * 4, [1, 0, 0, 0]],
    }
    for name, expected in table.items():
        assert [getattr(held, name).astype(int).tolist() for _, held in seen] == expected
    assert [over for over, _ in seen] == [False] * 4 + [True]
    visible = [[bool(row.any()) for row in held.observations] for _, held in seen]
    assert (
        visible
        == [[True, True, True, False], [False, True, True, False], [True, False, True, False]]
        + [[True, False, True, False]] * 2
    )
    for _, held in seen:
        assert not held.rewards[~held.masks].any()
    last = dict(without_time(seen[-1][1].infos))
    assert (last[0]["episode"]["l"], last[2]["episode"]["l"]) == (2, 5)  # agent 0's second life
    assert last[None]["episode"]["l"] == 5
    assert last[None]["episode"]["r"] == pytest.approx(3 * 1.01 + 2 * 1.02 + 1.03 + 2 * 1.04 + 2 * 1.05)


def test_native_infos_are_distinguished() -> None:
    for infos, expected in (
        (None, []),
        ({}, []),
        ({"a": 1}, [(None, {"a": 1})]),
        ([{}, {"b": 2}], [(1, {"b": 2})]),
        (({"a": 1}, {"b": 2}), [(0, {"a": 1}), (1, {"b": 2})]),
        ((MappingProxyType({"a": 1}), None), [(0, {"a": 1})]),
        ([], []),
        ((), []),
        ([None, {}], []),
    ):
        rows = emulate(Tally(2))
        reset(rows)
        rows.env.infos = infos
        assert step(rows, np.zeros(2, np.int64))[1].infos == expected
    rows = emulate(Tally(1))
    assert reset(rows, 0, {"a": 1}).infos == [(0, {"a": 1})]


@pytest.mark.parametrize(
    ("infos", "returned"),
    [
        ([{}], r"\[\{\}\] as infos"),
        (0, "0 as infos"),
        (False, "False as infos"),
        (5, "5 as infos"),
        ({"a"}, r"\{'a'\} as infos"),
        ("abc", "'abc' as infos"),
        (np.zeros(2), r"array\(\[0., 0.\]\) as infos"),
        ("ab", "'a' as the info of agent 0"),
        (["ab", "cd"], "'ab' as the info of agent 0"),
        ([1, 2], "1 as the info of agent 0"),
        ([{}, 0], "0 as the info of agent 1"),
        ([None, ""], "'' as the info of agent 1"),
        ([{"a": 1}, [("b", 2)]], r"\[\('b', 2\)\] as the info of agent 1"),
        ([np.zeros(2), {}], r"array\(\[0., 0.\]\) as the info of agent 0"),
    ],
    ids=repr,
)
def test_native_infos_of_another_form_are_refused(infos: Any, returned: str) -> None:
    message = f"^Tally returned {returned}; expected None, one dict, or a sequence of 2 dicts$"
    rows, raw = emulate(Tally(2)), wrap(Tally(2))
    reset(rows), raw.reset()
    rows.env.infos = raw.env.infos = infos
    with pytest.raises(SpaceError, match=message):
        rows.step(np.zeros(2, np.int64))
    with pytest.raises(SpaceError, match=message):
        rows.reset(0, infos)
    with pytest.raises(SpaceError, match=message):
        raw.step({"agent_0": 0, "agent_1": 0})


@pytest.mark.parametrize("infos", [0, "a", [0], [{}, {}], np.zeros(2)], ids=repr)
def test_infos_of_one_native_agent_of_another_form_are_refused(infos: Any) -> None:
    rows, gym = emulate(Tally(1)), wrap(Tally(1))
    reset(rows), gym.reset()
    rows.env.infos = gym.env.infos = infos
    for play_step in (lambda: rows.step(np.zeros(1, np.int64)), lambda: gym.step(0)):
        with pytest.raises(SpaceError, match="expected None, one dict, or a sequence of 1 dicts"):
            play_step()


@pytest.mark.parametrize("num_agents", [1, 2])
@pytest.mark.parametrize("infos", [0, "ab", [1, 2]], ids=repr)
def test_a_worker_reports_native_infos_of_another_form(num_agents: int, infos: Any) -> None:
    """After ordinary steps, which the compiled loop plays."""

    class Late(Tally):
        def step(self, actions: Any) -> Any:
            super().step(actions)
            return infos if self.tick == 4 else None

    with pufferlib.make(lambda: Late(num_agents), backend="multiprocessing", num_workers=1) as vec:
        vec.reset()
        actions = np.zeros(vec.action_space.shape, np.int64)
        for _ in range(3):
            vec.step(actions)
        with pytest.raises(pufferlib.WorkerError, match="SpaceError: Late returned .* expected None, one dict"):
            vec.step(actions)


@pytest.mark.parametrize("attribute", ["single_observation_space", "single_action_space"])
def test_native_spaces_must_be_leaves(attribute: str) -> None:
    env = Tally()
    setattr(env, attribute, Dict(a=Discrete(2)))
    with pytest.raises(SpaceError, match=rf"Tally.{attribute} must be a Box.* got Dict.*pufferlib.wrap"):
        emulate(env)

    class Bare(pufferlib.PufferEnv):
        pass

    with pytest.raises(SpaceError, match=r"Bare.single_observation_space must be .* got nothing"):
        wrap(Bare())


@pytest.mark.parametrize("num_agents", [0, -1, 1.5, None])
def test_native_envs_have_at_least_one_agent(num_agents: Any) -> None:
    with pytest.raises(SpaceError, match="Tally.num_agents must be an int of at least 1"):
        emulate(Tally(num_agents, script={}))


@pytest.mark.parametrize("name", ["observations", "rewards", "terminations", "truncations", "alive"])
def test_native_buffers_keep_shape_and_dtype(name: str) -> None:
    env = Tally(2)
    setattr(env, name, np.zeros((2, 3), np.complex64))
    with pytest.raises(SpaceError, match=rf"Tally.{name} must be an array of shape .* got \(2, 3\) of complex64"):
        reset(emulate(env))


def test_a_native_env_of_one_agent_is_a_gymnasium_env() -> None:
    env = wrap(Tally())
    check_env(env, skip_render_check=True)
    rows = emulate(Tally())
    observation, _ = env.reset(seed=2)
    held = reset(rows, 2)
    for tick in range(5):
        assert np.array_equal(observation, held.observations[0])
        previous, (observation, reward, terminated, truncated, info) = observation.copy(), env.step(tick)
        assert not np.array_equal(previous, observation)
        over, held = step(rows, np.array([tick]))
        assert (held.rewards[0], held.terminations[0], held.truncations[0]) == (reward, terminated, truncated)
        assert info == {}
    assert over
    assert env.np_random is env.raw.np_random
    env.close()


def test_a_native_observation_of_one_number_is_a_number() -> None:
    class Number(Tally):
        single_observation_space = Discrete(9)  # type: ignore[assignment]

        def _see(self) -> None:
            self.observations[:] = self.tick

    env = wrap(Number())
    check_env(env, skip_render_check=True)
    assert isinstance(env.reset()[0], np.int64)
    assert written_after_reset(Number()).observations.tolist() == [0]


def written_after_reset(env: Any) -> Any:
    rows = emulate(env)
    rows.reset(None, None)
    return written(rows)


def test_native_wrong_calls() -> None:
    env = wrap(Tally())
    with pytest.raises(CallError, match=r"call reset\(\) first"):
        env.step(0)
    assert wrap(env) is env
    assert emulate(env).env is env.raw
    with pytest.raises(PlanError, match="wrapped already, so check cannot be set"):
        emulate(env, check="always")
    for wrapper in (wrap, emulate):
        with pytest.raises(PlanError, match="Tally is a PufferEnv, which sets its rows itself: max_agents, max_length"):
            wrapper(Tally(), max_length=3, max_agents=2)


def test_native_checks_are_full_on_first_reset_and_step_or_always(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[Any] = []
    monkeypatch.setattr(Layout, "check", lambda self, sample: checked.append(sample))
    for check, expected in (("first", 4), ("always", 16)):
        rows = emulate(Tally(2), check=check)  # type: ignore[arg-type]
        checked.clear()
        for _ in range(2):
            reset(rows)
            for _ in range(3):
                step(rows, np.array([1, 1]))
        assert len(checked) == expected
