"""PufferLib's wrapper classes: what they accept, what they return, and how nested spaces lie in a row."""

from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from compat_programs import Counter, Native, Nested, Team
from gymnasium import spaces

import pufferlib
import pufferlib.emulation as emulation
import pufferlib.exceptions
import pufferlib.vector
from pufferlib.emulation import GymnasiumPufferEnv, PettingZooPufferEnv

pytestmark = [pytest.mark.beside, pytest.mark.usefixtures("no_version")]


def test_spaces_lie_in_rows_as_in_version_3() -> None:
    space, dtype = emulation.emulate_observation_space(Nested.observation_space)
    assert space == spaces.Box(0, 255, (20,), np.uint8)
    assert {name: dtype.fields[name][1] for name in dtype.names} == {"a": 0, "b": 4, "c": 16}
    assert (dtype["c"], dtype.itemsize) == (np.int32, 20)

    same = spaces.Dict({"a": spaces.Box(-1, 1, (3,)), "b": spaces.Box(-1, 1, (2,))})
    assert emulation.emulate_observation_space(same)[0].shape == (5,)

    box = spaces.Box(-1, 1, (3,))
    space, dtype = emulation.emulate_observation_space(box)
    assert space is box
    assert dtype == np.dtype((np.float32, (3,)))

    deep = spaces.Dict({"d": spaces.Tuple([spaces.Box(0, 1, (3,), np.uint8), spaces.Box(0, 1, (2,))]), "e": box})
    space, dtype = emulation.emulate_observation_space(deep)
    assert dtype["d"].names == ("f0", "f1")
    assert dtype.itemsize == space.shape[0]

    space, _ = emulation.emulate_action_space(Nested.action_space)
    assert space == spaces.MultiDiscrete([3, 2, 4])


FLAG = spaces.Box(0, 1, (1,), np.uint8)
NUMBER = spaces.Box(0, 1, (1,), np.float32)


@pytest.mark.usefixtures("no_version")
def test_samples_are_copied_into_rows() -> None:
    """Version 1's tests give such rows to ``step``."""
    space = spaces.Tuple([spaces.Discrete(3), spaces.Tuple([spaces.Discrete(5), spaces.Discrete(7)])])
    flat, structure = pufferlib.emulation.emulate_action_space(space)
    row = pufferlib.emulation.emulate_copy((2, (4, 6)), flat.dtype, structure)
    assert row.tolist() == [2, 4, 6] and row.dtype == flat.dtype and row in flat
    _, mixed = pufferlib.emulation.emulate_observation_space(
        spaces.Dict({"a": spaces.Box(0, 9, (2,), np.uint8), "b": spaces.Box(-1, 1, (1,))})
    )
    row = pufferlib.emulation.emulate_copy({"a": np.uint8([1, 2]), "b": np.float32([0.5])}, np.uint8, mixed)
    assert row.view(mixed)[0]["a"].tolist() == [1, 2] and row.view(mixed)[0]["b"].tolist() == [0.5]
    assert pufferlib.emulation.emulate_copy(3, np.int64, np.dtype(np.int32)) == 3


def test_structures_inside_others_are_not_padded() -> None:
    """NumPy's align=True, and so version 3, takes 12 bytes, and places the inner structure at 4."""
    space, dtype = emulation.emulate_observation_space(spaces.Tuple([FLAG, spaces.Tuple([FLAG, NUMBER])]))
    assert (space.shape, dtype.itemsize) == ((8,), 8)
    offsets = [dtype.fields["f1"][1] + dtype["f1"].fields[name][1] for name in ("f0", "f1")]
    assert offsets == [1, 4]


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(5),
        spaces.Dict({"a": NUMBER, "t": spaces.Text(5)}),
        spaces.Dict({"a": NUMBER, "t": spaces.Dict({})}),
        spaces.Tuple([]),
        spaces.Tuple([NUMBER, spaces.Tuple([FLAG, spaces.Sequence(NUMBER)])]),
    ],
    ids=str,
)
def test_spaces_without_a_place_in_a_row_are_refused(space: Any) -> None:
    env: Any = Counter()
    env.observation_space = space
    with pytest.raises(pufferlib.SpaceError):
        GymnasiumPufferEnv(env)
    with pytest.raises(pufferlib.APIUsageError):
        emulation.emulate_observation_space(space)


def test_leaves_keep_the_dtype_and_bounds_of_their_spaces() -> None:
    """Version 3 narrows a MultiDiscrete to int32, and has the bounds of the dtype."""
    space, dtype = emulation.emulate_observation_space(spaces.Dict({"m": spaces.MultiDiscrete([3, 4])}))
    assert (dtype["m"].base, space.dtype) == (np.int64, np.int64)
    pair = spaces.Tuple([spaces.Box(-2, 3, (1,)), spaces.Box(0, 1, (1,))])
    space, _ = emulation.emulate_observation_space(pair)
    assert (space.low.tolist(), space.high.tolist()) == ([-2, 0], [3, 1])


def test_a_gymnasium_environment_is_one_row_of_a_buffer() -> None:
    env = GymnasiumPufferEnv(env=Counter(length=2))
    assert (env.num_agents, env.done, env.initialized, env.single_observation_space.shape) == (1, True, False, (2,))
    assert env.emulated["observation_dtype"] == env.emulated.observation_dtype == np.float32
    with pytest.raises(pufferlib.APIUsageError, match="reset"):
        env.step(0)
    observation, info = env.reset(seed=7)
    assert observation is env.observations
    assert (observation.tolist(), info, env.done) == ([[7, 0]], {}, False)
    observation, reward, terminated, truncated, info = env.step(np.array([3]))
    assert (observation.tolist(), reward, terminated, truncated, info) == ([[7, 1]], 3.0, False, False, {})
    with pytest.raises(pufferlib.ActionError, match="5"):
        env.step(5)
    env.step(4)
    assert (env.done, env.rewards.tolist(), env.terminals.tolist()) == (True, [4], [True])
    with pytest.raises(pufferlib.APIUsageError, match="end"):
        env.step(0)
    env.close()
    assert env.env.closed


@pytest.mark.parametrize("kind", [dict, SimpleNamespace], ids=["version 3", "version 2"])
def test_rows_are_written_into_the_buffers_of_the_caller(kind: Any) -> None:
    arrays = {
        "observations": np.zeros((1, 2), np.float32),
        "rewards": np.zeros(1, np.float32),
        **{name: np.zeros(1, bool) for name in ("terminals", "truncations", "masks")},
        "actions": np.zeros(1, np.int32),
    }
    env = GymnasiumPufferEnv(env_creator=Counter, buf=kind(**arrays))
    env.reset(seed=5)
    env.step(2)
    assert arrays["observations"].tolist() == [[5, 1]]
    assert arrays["rewards"].tolist() == [2]


def test_nested_observations_and_actions() -> None:
    env = GymnasiumPufferEnv(env_creator=Nested)
    assert (env.is_obs_emulated, env.is_atn_emulated) == (True, True)
    env.reset()
    observation, reward, *_ = env.step(np.array([2, 1, 3], np.int64))
    assert reward == 2 + 10 + 300
    struct = observation.view(env.emulated["emulated_observation_dtype"])[0, 0]
    assert (struct["a"].tolist(), struct["b"].tolist(), int(struct["c"])) == ([[1, 1], [1, 1]], [0.125] * 3, 1)
    assert env.obs_struct["c"].tolist() == [1]
    sample = emulation.nativize(observation[0], Nested.observation_space, env.obs_dtype)
    assert sample["c"] == 1
    assert sample["b"].tolist() == [0.125] * 3


def test_a_subclass_may_define_step() -> None:
    class Doubled(GymnasiumPufferEnv):
        def step(self, action: Any) -> Any:
            observation, reward, *others = super().step(action)
            return observation, 2 * reward, *others

    with pufferlib.vector.make(lambda: Doubled(Counter()), num_envs=2, backend="Serial") as vecenv:
        assert vecenv.reset(seed=3)[0].tolist() == [[3, 0], [4, 0]]
        observations, rewards, *_ = vecenv.step(np.array([1, 2]))
        assert (observations[:, 1].tolist(), rewards.tolist()) == ([1, 1], [2, 4])


@pytest.mark.parametrize("backend", ["Serial", "Multiprocessing"])
def test_a_subclass_for_several_agents_may_define_reset_and_step(backend: str) -> None:
    class Hundredfold(PettingZooPufferEnv):
        def reset(self, seed: Any = None) -> Any:  # type: ignore[override]
            return super().reset(None if seed is None else seed + 1)

        def step(self, actions: Any) -> Any:
            observations, rewards, *others = super().step(actions)
            return observations, {agent: 100 * reward for agent, reward in rewards.items()}, *others

    def play(creator: Any) -> Any:
        with pufferlib.vector.make(creator, num_envs=2, backend=backend) as vecenv:
            vecenv.async_reset([7, 7])
            batches = [[np.array(value) for value in vecenv.recv()]]
            for _ in range(12):
                vecenv.send(np.array([1, 2, 3, 1, 2, 3]))
                batches.append([np.array(value) for value in vecenv.recv()])
            return batches

    for late in (False, True):
        plain = play(lambda late=late: PettingZooPufferEnv(Team(late)))
        mine = play(lambda late=late: Hundredfold(Team(late)))
        assert mine[0][0][0, 0] == 8
        for ours, theirs in zip(mine, plain, strict=True):
            assert np.array_equal(ours[0][:, 1], theirs[0][:, 1])
            assert np.array_equal(ours[1], 100 * theirs[1])
            assert all(np.array_equal(ours[index], theirs[index]) for index in (2, 3, 5, 6))


@pytest.mark.parametrize("base", [GymnasiumPufferEnv, PettingZooPufferEnv])
def test_a_subclass_may_define_notify_and_close(base: Any) -> None:
    class Counting(base):  # type: ignore[misc]
        num_notified = num_closed = 0

        def notify(self) -> None:
            self.num_notified += 1

        def close(self) -> None:
            self.num_closed += 1

    vecenv = pufferlib.vector.make(
        lambda: Counting(Counter() if base is GymnasiumPufferEnv else Team()), num_envs=2, backend="Serial"
    )
    vecenv.reset()
    vecenv.notify()
    envs = vecenv.envs
    vecenv.close()
    assert [(env.num_notified, env.num_closed) for env in envs] == [(1, 1), (1, 1)]


def test_a_wrapper_takes_one_environment_or_one_creator() -> None:
    with pytest.raises(ValueError, match="exactly one"):
        GymnasiumPufferEnv()
    with pytest.raises(ValueError, match="exactly one"):
        GymnasiumPufferEnv(env=Counter(), env_creator=Counter)
    for wrong in (Counter, lambda: Counter()):
        with pytest.raises(TypeError, match="instance"):
            PettingZooPufferEnv(env=wrong)
    with pytest.raises(TypeError, match="callable"):
        GymnasiumPufferEnv(env_creator=3)


def test_a_pettingzoo_environment_has_a_row_for_each_possible_agent() -> None:
    env = PettingZooPufferEnv(env_creator=Team)
    assert (env.num_agents, env.possible_agents, env.single_action_space.n) == (3, ["a0", "a1", "a2"], 4)
    with pytest.raises(pufferlib.exceptions.InvalidAgentError, match="nobody"):
        env.observation_space("nobody")
    observations, _ = env.reset(seed=4)
    assert {agent: row.tolist() for agent, row in observations.items()} == {
        "a0": [4, 1],
        "a1": [4, 11],
        "a2": [4, 21],
    }
    with pytest.raises(pufferlib.APIUsageError, match="rows"):
        env.step(np.zeros(2, int))
    with pytest.raises(pufferlib.exceptions.InvalidAgentError, match="nobody"):
        env.step({"nobody": 0})
    env.step(np.array([1, 2, 3]))
    terminals = env.step({"a0": 1, "a1": 2, "a2": 3})[2]
    assert terminals == {"a0": True, "a1": False, "a2": False}
    observations, rewards, terminals, _truncations, infos = env.step(np.array([1, 2, 3]))
    assert (rewards, infos["a1"]) == ({"a0": 0, "a1": 2, "a2": 3}, {"tick": 3})
    assert env.masks.tolist() == [False, True, True]
    assert terminals["a0"] is False  # absent, which version 3 calls terminated
    assert env.mask == {"a0": False, "a1": True, "a2": True}
    assert not env.done
    env.step(np.array([1, 2, 3]))
    assert env.done


class LingeringTeam(Team):
    """The agents stay in ``agents`` after their ends, one of which may be a truncation."""

    def __init__(self, truncated: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.truncated = truncated

    def step(self, actions: Any) -> Any:
        acted = self.agents
        observations, rewards, ended, _, infos = super().step(actions)
        self.agents = acted
        truncations = {agent: ended[agent] and agent in self.truncated for agent in acted}
        return observations, rewards, {a: ended[a] and not truncations[a] for a in acted}, truncations, infos


class EndingTogether(LingeringTeam):
    def step(self, actions: Any) -> Any:
        observations, rewards, _, _, infos = super().step(actions)
        terminals = {agent: self.tick == 2 and agent not in self.truncated for agent in self.agents}
        truncations = {agent: self.tick == 2 and agent in self.truncated for agent in self.agents}
        return observations, rewards, terminals, truncations, infos


def test_rewards_of_agents_are_the_environments_own() -> None:
    class Fractions(Team):
        def step(self, actions: Any) -> Any:
            observations, rewards, *rest = super().step(actions)
            return observations, {agent: reward + 0.1 for agent, reward in rewards.items()}, *rest

    env = pufferlib.emulation.PettingZooPufferEnv(Fractions())
    env.reset()
    rewards = env.step(dict.fromkeys(env.agents, 0))[1]
    assert {reward % 1 for reward in rewards.values()} == {0.1}  # float32 has no 0.1


def test_actions_of_absent_agents_may_be_anything() -> None:
    env = pufferlib.emulation.PettingZooPufferEnv(Team())
    env.reset()
    while len(env.agents) == 3:
        env.step(dict.fromkeys(env.agents, 0))
    assert "a0" not in env.agents
    env.step({**dict.fromkeys(env.agents, 0), "a0": {"of": "another space"}})


def test_an_episode_of_several_agents_ends_with_the_last_of_them() -> None:
    """Also if the caller acted for those alone that ended, and if some ends are truncations."""
    env = PettingZooPufferEnv(LingeringTeam())
    env.reset()
    env.step(np.zeros(3, int))
    terminals = env.step({"a0": 0, "a1": 0, "a2": 0})[2]
    assert (terminals, env.done) == ({"a0": True, "a1": False, "a2": False}, False)

    class ActingAlone(LingeringTeam):
        def step(self, actions: Any) -> Any:
            return super().step({**dict.fromkeys(self.possible_agents, 0), **actions})

    env = PettingZooPufferEnv(ActingAlone())
    env.reset()
    env.step({"a0": 1})
    assert env.step({"a0": 1})[2]["a0"]
    assert not env.done

    env = PettingZooPufferEnv(EndingTogether(truncated=("a1",)))
    env.reset()
    env.step(np.zeros(3, int))
    assert not env.done
    env.step(np.zeros(3, int))
    assert env.done


def test_an_episode_of_which_nothing_is_returned_is_over() -> None:
    class SilentTeam(LingeringTeam):
        def step(self, actions: Any) -> Any:
            return {}, {}, {}, {}, {}

    env = PettingZooPufferEnv(SilentTeam())
    env.reset()
    env.step(np.zeros(3, int))
    assert env.done


def test_the_native_environment_is_its_own_vecenv() -> None:
    env = Native(3)
    assert isinstance(env, pufferlib.PufferEnv)
    assert isinstance(env, Native)
    assert (env.emulated, env.done, env.driver_env is env, env.agent_per_batch) == (False, False, True, 3)
    assert env.action_space == spaces.MultiDiscrete([5, 5, 5])
    assert env.observation_space.shape == (3, 2)
    assert (env.actions.dtype, env.masks.tolist(), env.agent_ids.tolist()) == (np.int32, [True] * 3, [0, 1, 2])
    env.async_reset(6)
    observations, _rewards, _terminals, _truncations, _infos, _agent_ids, _masks = env.recv()
    assert observations is env.observations
    assert observations[:, 0].tolist() == [6, 6, 6]
    env.send(np.array([1, 2, 3]))
    assert env.recv()[1].tolist() == [1, 2, 3]
    with pytest.raises(pufferlib.SpaceError, match="pufferlib.make"):
        pufferlib.wrap(env)


def test_programs_may_set_the_counts_of_a_native_environment() -> None:
    class Counted(Native):
        def __init__(self, buf: Any = None) -> None:
            self.agents_per_batch = 6
            super().__init__(3, buf)
            self.agent_per_batch = 7

    env: Any = Counted()
    assert (env.agents_per_batch, env.agent_per_batch) == (6, 7)
    env = Native(3)
    assert (env.agents_per_batch, env.agent_per_batch) == (3, 3)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))], ids=["copy", "pickle"])
def test_a_copy_of_a_native_environment_plays_on(copied: Any) -> None:
    env = Native(2, seed=4)
    env.reset(5)
    env.step(np.array([1, 2]))
    other = copied(env)
    assert isinstance(other, Native)
    assert (type(other), other.construction_seed) == (type(env), 4)
    env.step(np.array([3, 3]))
    assert other.rewards.tolist() == [1, 2]
    assert other.step(np.array([0, 4]))[0].tolist() == [[5, 2], [5, 2]]


@pytest.mark.parametrize("buf", [3, {"observations": np.zeros((1, 2))}], ids=["number", "missing arrays"])
def test_buf_must_have_the_arrays(buf: Any) -> None:
    with pytest.raises(pufferlib.APIUsageError, match=r"which must be None or have the arrays observations, rewards"):
        Native(1, buf)


@pytest.mark.parametrize(
    ("missing", "text"),
    [
        ("single_observation_space", "must set self.single_observation_space"),
        ("single_action_space", "must set self.single_action_space"),
        ("num_agents", "must set self.num_agents"),
    ],
)
def test_a_native_environment_must_set_its_spaces_first(missing: str, text: str) -> None:
    class Incomplete(pufferlib.PufferEnv):
        def __init__(self, buf: Any = None) -> None:
            for name, value in vars(Native(1)).items():
                if name in ("single_observation_space", "single_action_space", "num_agents") and name != missing:
                    setattr(self, name, value)
            super().__init__(buf)

    with pytest.raises(pufferlib.APIUsageError, match=text):
        Incomplete()


def test_errors_are_of_both_kinds() -> None:
    error = pufferlib.APIUsageError()
    assert isinstance(error, (RuntimeError, pufferlib.PufferError))
    assert error.message == "API usage error."
    assert pufferlib.exceptions.APIUsageError is pufferlib.APIUsageError
    assert isinstance(pufferlib.exceptions.EnvironmentSetupError(ImportError("x"), "nle"), RuntimeError)


def test_errors_can_be_pickled() -> None:
    env = GymnasiumPufferEnv(Counter())
    env.reset()
    with pytest.raises(pufferlib.ActionError) as caught:
        env.step(9)
    for error in (
        caught.value,
        pufferlib.APIUsageError("a"),
        pufferlib.exceptions.InvalidAgentError("b", ["a"]),
        pufferlib.exceptions.EnvironmentSetupError(ImportError("x"), "nle"),
    ):
        other = pickle.loads(pickle.dumps(error))
        assert (type(other), str(other)) == (type(error), str(error))
