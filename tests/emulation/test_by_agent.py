"""What an environment returns by agent: no agent is missing, none is unknown, flags are bools."""

from __future__ import annotations

from collections import defaultdict
from types import MappingProxyType
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import pufferlib
from pufferlib.emulation import emulate, wrap
from pufferlib.errors import SpaceError, WorkerError
from pufferlib.testing import check_env

pytest.importorskip("pettingzoo")
pytestmark = pytest.mark.beside

NAMES = ("observations", "rewards", "terminations", "truncations", "infos")
FAULTS: dict[str, Any] = {}  # by name: what becomes of the five dicts of a step; and what the error says


def fault(says: str) -> Any:
    def note(change: Any) -> Any:
        FAULTS[change.__name__] = change, says
        return change

    return note


for _what in NAMES[1:]:

    def rename(outcome: dict[str, Any], what: str = _what) -> None:
        outcome[what] = {f"agent{i}": value for i, value in enumerate(outcome[what].values())}

    def add(outcome: dict[str, Any], what: str = _what) -> None:
        outcome[what]["nobody"] = outcome[what]["agent_1"]

    def number(outcome: dict[str, Any], what: str = _what) -> None:
        outcome[what] = 1.0

    FAULTS[f"{_what} renamed"] = rename, "agent0"
    FAULTS[f"{_what} of nobody"] = add, f"Pair.step returned {_what} for 'nobody', which no agent has as its name"
    FAULTS[f"{_what} no dict"] = number, f"Pair.step returned {_what} that are not a dict but a float, 1.0"
    if _what != "infos":

        def drop(outcome: dict[str, Any], what: str = _what) -> None:
            del outcome[what]["agent_1"]

        FAULTS[f"{_what} missing"] = drop, f"gave no {_what[:-1]} for agent 'agent_1', which acted"


@fault("Pair.step returned observations that are not a dict but a ndarray")
def observations_no_dict(outcome: dict[str, Any]) -> None:
    outcome["observations"] = np.zeros((2, 1), np.float32)


@fault("Pair.step gave no reward for agent 'agent_1', which acted; it gave those of ['agent_0']")
def no_reward_at_the_end(outcome: dict[str, Any]) -> None:
    outcome["terminations"]["agent_1"] = True
    del outcome["rewards"]["agent_1"]


@fault("Pair.step returned the termination 'no'; expected a bool")
def word_for_a_flag(outcome: dict[str, Any]) -> None:
    outcome["terminations"]["agent_0"] = "no"


@fault("Pair.step returned the truncation None; expected a bool")
def none_for_a_flag(outcome: dict[str, Any]) -> None:
    outcome["truncations"]["agent_1"] = None


@fault("Pair.step returned the truncation 7; expected a bool")
def count_for_a_flag(outcome: dict[str, Any]) -> None:
    outcome["truncations"]["agent_1"] = 7


@fault("Pair.step returned the info 3.0 for agent 'agent_1'; expected a dict")
def number_for_an_info(outcome: dict[str, Any]) -> None:
    outcome["infos"]["agent_1"] = 3.0


class Pair:
    """Two agents who play ten steps. From the second step on, ``change`` changes what is returned."""

    possible_agents = ("agent_0", "agent_1")
    metadata: dict[str, Any] = {}

    def __init__(self, change: Any = lambda outcome: None) -> None:
        self.change = change
        self.spaces = Box(0, 99, (1,), np.float32), Discrete(2)

    def observation_space(self, agent: str) -> Any:
        return self.spaces[0]

    def action_space(self, agent: str) -> Any:
        return self.spaces[1]

    def see(self) -> Any:
        return {agent: np.full(1, self.tick, np.float32) for agent in self.agents}

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents, self.tick = list(self.possible_agents), 0
        return self.see(), {agent: {} for agent in self.agents}

    def step(self, actions: Any) -> Any:
        self.tick += 1
        over = self.tick == 10
        values = (self.see(), 1.0, over, False, {})
        outcome = {
            name: value if name == "observations" else dict.fromkeys(self.agents, value)
            for name, value in zip(NAMES, values, strict=True)
        }
        if self.tick > 1:
            self.change(outcome)
        self.agents = [] if over else self.agents
        return tuple(outcome[name] for name in NAMES)


@pytest.mark.parametrize("name", FAULTS)
def test_values_of_no_agent_and_missing_values_of_one_are_named(name: str) -> None:
    change, says = FAULTS[name]
    for backend in ("serial", "multiprocessing"):
        with pufferlib.make(lambda: Pair(change), num_envs=1, num_workers=1, backend=backend) as vec:
            vec.reset()
            vec.step(np.zeros(2, int))
            with pytest.raises(WorkerError) as raised:
                vec.step(np.zeros(2, int))
            assert says in str(raised.value)
    env = wrap(Pair(change))
    env.reset()
    env.step({"agent_0": 0, "agent_1": 0})
    with pytest.raises(SpaceError) as refused:
        env.step({"agent_0": 0, "agent_1": 0})
    assert says in str(refused.value)


@pytest.mark.parametrize("name", FAULTS)
def test_puffer_check_finds_it(name: str) -> None:
    change, says = FAULTS[name]
    report = check_env(lambda: Pair(change), num_steps=30, only=["make", "wraps", "runs"])
    assert report["runs"].status == "failed"
    assert says in report["runs"].text


def test_a_reset_returns_dicts() -> None:
    class Wrong(Pair):
        def reset(self, seed: int | None = None, options: Any = None) -> Any:
            return self.returned

    for returned, says in (
        ((3.0, {}), "Wrong.reset returned observations that are not a dict but a float"),
        (np.zeros(2), "Wrong.reset returned observations that are not a dict but a ndarray"),
        (({}, 3.0), "Wrong.reset returned infos that are not a dict but a float"),
        (({agent: np.zeros(1, np.float32) for agent in Pair.possible_agents}, {"nobody": {}}), "'nobody'"),
    ):
        for wrapper in (wrap, emulate):
            raw = Wrong()
            raw.agents, raw.returned = list(Pair.possible_agents), returned
            env = wrapper(raw, action_mask=False)
            with pytest.raises(SpaceError) as refused:
                env.reset(None, None)
            assert says in str(refused.value)


def keep(outcome: dict[str, Any]) -> None:
    """Change nothing."""


def leave_infos_out(outcome: dict[str, Any]) -> None:
    outcome["infos"] = {"agent_1": None}


def tell_what_concerns_all(outcome: dict[str, Any]) -> None:
    outcome["infos"] = {"common": {"tick": 1}, "__common__": {"tick": 1}, "winner": "nobody"}


def flags_of_other_types(outcome: dict[str, Any]) -> None:
    outcome["terminations"] = {"agent_0": np.bool_(outcome["terminations"]["agent_0"]), "agent_1": 0}
    outcome["truncations"] = {"agent_0": np.zeros(1), "agent_1": np.int8(0)}


def leave_out_of_defaultdicts(outcome: dict[str, Any]) -> None:
    outcome["rewards"] = defaultdict(lambda: 1.0, {"agent_0": 1.0})
    outcome["terminations"], outcome["truncations"] = defaultdict(bool), defaultdict(bool)


@pytest.mark.parametrize(
    "change", [keep, leave_infos_out, tell_what_concerns_all, flags_of_other_types, leave_out_of_defaultdicts]
)
def test_what_is_harmless_is_taken(change: Any) -> None:
    rows, env = emulate(Pair(change)), wrap(Pair(change))
    rows.reset(None, None)
    env.reset()
    for _ in range(9):
        assert not rows.step(np.zeros(2, int))
        _, rewards, terminations, truncations, _ = env.step({"agent_0": 0, "agent_1": 0})
        assert rewards == {"agent_0": 1.0, "agent_1": 1.0}
        assert terminations == truncations == {"agent_0": False, "agent_1": False}
        assert all(type(flag) is bool for flag in [*terminations.values(), *truncations.values()])


class Leaving(Pair):
    """agent_1 leaves in the third step. named: what it returns of that agent then, and for ``more`` further steps."""

    def __init__(self, named: tuple[str, ...], more: int = 0) -> None:
        super().__init__()
        self.named, self.more = named, more

    def step(self, actions: Any) -> Any:
        *dicts, infos = super().step(actions)
        dicts = [dict(part) for part in (*dicts, infos)]
        if self.tick == 3:
            self.agents = ["agent_0"]
            dicts[2]["agent_1"] = True
        if self.tick >= 3:
            last = {"observations": np.zeros(1, np.float32), "rewards": 1.0, "terminations": True}
            for name, part in zip(NAMES, dicts, strict=True):
                part.pop("agent_1", None)
                if name in self.named and self.tick - 3 <= self.more:
                    part["agent_1"] = last.get(name, {} if name == "infos" else False)
        return tuple(dicts)


@pytest.mark.parametrize("more", [0, 1, 5])
@pytest.mark.parametrize(
    ("outcome", "terminated", "mask"),
    [
        (NAMES, True, True),
        (NAMES[1:], True, True),
        (("rewards", "terminations"), True, True),
        (("rewards",), False, True),
        (("infos",), False, False),
        ((), False, False),
    ],
)
def test_dead_agents_may_be_returned_or_not(outcome: Any, more: int, terminated: bool, mask: bool) -> None:
    env = Leaving(outcome, more)
    rows, wrapped = emulate(env), wrap(Leaving(outcome, more))
    with pufferlib.make(lambda: Leaving(outcome, more), num_envs=1) as vec:
        vec.reset()
        wrapped.reset()
        for tick in range(1, 10):
            _, rewards, terminations, truncations, _ = vec.step(np.zeros(2, int))
            masks = vec.batch.masks.tolist()
            wrapped.step(dict.fromkeys(wrapped.agents, 0))
            if tick == 3:
                assert (terminations[1], truncations[1], masks[1]) == (terminated, not terminated, mask)
                assert rewards[1] == mask
            else:
                assert masks == [True, tick < 3]
    assert rows.num_agents == 2


class Flagged(gymnasium.Env[Any, Any]):
    observation_space = Box(0, 1, (1,), np.float32)
    action_space = Discrete(2)

    def __init__(self, terminated: Any, truncated: Any = False) -> None:
        self.flags = terminated, truncated

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.tick = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.tick += 1
        return np.zeros(1, np.float32), 1.0, *(self.flags if self.tick == 3 else (False, False)), {}


class OldFlagged(Flagged):
    def step(self, action: Any) -> Any:
        observation, reward, done, _, info = super().step(action)
        return observation, reward, done, info


@pytest.mark.parametrize("value", ["no", "", None, 2, -1, 0.5, float("nan"), [], {}, object(), [True, "no"], b"\0"])
def test_a_flag_that_is_no_bool_is_refused(value: Any) -> None:
    for make_env, what in (
        (lambda: Flagged(value), "termination"),
        (lambda: Flagged(False, value), "truncation"),
        (lambda: OldFlagged(value), "termination"),
    ):
        env = wrap(make_env())
        env.reset()
        env.step(0)
        env.step(0)
        with pytest.raises(SpaceError, match=rf"Flagged.step returned the {what} .*; expected a bool"):
            env.step(0)
        with pufferlib.make(make_env, num_envs=1) as vec:
            vec.reset()
            vec.step(np.zeros(1, int))
            vec.step(np.zeros(1, int))
            with pytest.raises(WorkerError, match=f"returned the {what} .*; expected a bool"):
                vec.step(np.zeros(1, int))
    report = check_env(lambda: Flagged(value), num_steps=30, only=["make", "wraps", "runs"])
    assert report["runs"].status == "failed" and "expected a bool" in report["runs"].text


@pytest.mark.parametrize("value", [True, 1, 1.0, np.True_, np.int64(1), np.ones(1), [True, True], np.ones((), bool)])
def test_flags_of_any_numeric_type_are_taken(value: Any) -> None:
    env = wrap(Flagged(value))
    env.reset()
    assert [env.step(0)[2] for _ in range(3)] == [False, False, True]


def test_an_info_that_is_no_dict_is_refused() -> None:
    class Telling(Flagged):
        def step(self, action: Any) -> Any:
            return *super().step(action)[:4], 3.0

    env = wrap(Telling(False))
    env.reset()
    with pytest.raises(SpaceError, match=r"Telling.step returned the info 3.0; expected a dict"):
        env.step(0)


@pytest.mark.parametrize("value", ["no", 2, None])
def test_flags_of_vector_environments_are_bools(value: Any) -> None:
    class Copies(gymnasium.vector.VectorEnv):  # type: ignore[type-arg]
        num_envs = 2
        single_observation_space, single_action_space = Flagged.observation_space, Flagged.action_space
        observation_space = gymnasium.vector.utils.batch_space(single_observation_space, 2)
        action_space = gymnasium.vector.utils.batch_space(single_action_space, 2)

        def __init__(self) -> None:  # Gymnasium 0.29's asks for the above
            pass

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            return np.zeros((2, 1), np.float32), {}

        def step(self, actions: Any) -> Any:
            return np.zeros((2, 1), np.float32), np.zeros(2), np.array([value, value]), np.zeros(2, bool), {}

    rows = emulate(Copies())
    rows.reset(None, None)
    with pytest.raises(SpaceError, match="Copies.step returned the flags .*; expected bools"):
        rows.step(np.zeros(2, int))


def test_an_info_may_be_any_mapping() -> None:
    class Proxied(gymnasium.Env[Any, Any]):
        observation_space, action_space = Box(-1, 1, (1,)), Discrete(2)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return np.zeros(1, np.float32), {}

        def step(self, action: Any) -> Any:
            return np.zeros(1, np.float32), 1.0, True, False, MappingProxyType({"level": 3})

    with pufferlib.make(Proxied, num_envs=1) as vec:
        vec.reset()
        vec.step(np.zeros(1, int))
        assert vec.batch is not None
        assert vec.batch.infos[0]["level"] == 3
