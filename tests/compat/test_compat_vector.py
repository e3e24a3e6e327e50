"""PufferLib's ``vector``: its calls, attributes and batches, and what differs from it on purpose."""

from __future__ import annotations

import functools
import multiprocessing
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from compat_programs import Counter, Native, Team, nested, one, one_of_version_1, team
from gymnasium import spaces

import pufferlib
import pufferlib.vector
from pufferlib.vector import Multiprocessing, Serial

pytestmark = [pytest.mark.beside, pytest.mark.usefixtures("no_version")]

BACKENDS = [Serial, Multiprocessing]


@pytest.mark.parametrize("backend", [*BACKENDS, "Serial", "Multiprocessing"], ids=str)
def test_a_program_for_version_3(backend: Any) -> None:
    vecenv = pufferlib.vector.make(one, env_kwargs={"length": 2}, num_envs=4, num_workers=2, backend=backend)
    try:
        assert vecenv.single_observation_space.shape == (2,)
        assert (vecenv.num_agents, vecenv.agents_per_batch, vecenv.num_envs) == (4, 4, 4)
        assert vecenv.action_space == spaces.MultiDiscrete([5] * 4)
        assert vecenv.observation_space.shape == (4, 2)
        assert vecenv.emulated["observation_dtype"] == np.float32
        assert vecenv.driver_env.single_action_space.n == 5
        observations, infos = vecenv.reset(seed=10)
        assert observations.tolist() == [[10, 0], [11, 0], [12, 0], [13, 0]]
        assert infos == [{}] * 4
        actions = np.array([1, 2, 3, 4])
        vecenv.send(actions)
        observations, rewards, terminals, _, infos, agent_ids, masks = vecenv.recv()
        assert (rewards.tolist(), rewards.dtype, terminals.any()) == ([1, 2, 3, 4], np.float32, False)
        assert (agent_ids.tolist(), agent_ids.dtype, masks.all()) == ([0, 1, 2, 3], np.int64, True)
        *_, terminals, _, infos = vecenv.step(actions)
        assert terminals.all()
        assert [(info["env_id"], info["action"]) for info in infos] == [(0, 1), (1, 2), (2, 3), (3, 4)]
        # The step after the end starts the next episode: its action is ignored, and its mask is True.
        vecenv.send(actions)
        observations, rewards, terminals, _truncations, infos, agent_ids, masks = vecenv.recv()
        assert (observations[:, 1].any(), rewards.any(), terminals.any(), masks.all()) == (False, False, False, True)
    finally:
        vecenv.close()


def test_a_program_for_version_1_needs_no_backend() -> None:
    vecenv = pufferlib.vector.make(one_of_version_1, env_args=[5], num_envs=2)
    assert isinstance(vecenv, Serial)
    assert len(vecenv.envs) == 2
    assert vecenv.driver_env is vecenv.envs[0]
    observations, _ = pufferlib.vector.reset(vecenv, seed=3)
    assert observations.tolist() == [[3, 0], [4, 0]]
    assert pufferlib.vector.step(vecenv, [1, 1])[1].tolist() == [1, 1]
    vecenv.close()


class Closing(Counter):
    def reset(self, **kwargs: Any) -> Any:
        assert not self.closed
        return super().reset(**kwargs)


def test_an_environment_that_its_creator_holds_is_made_once_and_stays_open() -> None:
    env = pufferlib.emulation.GymnasiumPufferEnv(Closing())
    calls = []

    def creator() -> Any:
        calls.append(1)
        return env

    with pufferlib.vector.make(creator) as vecenv:
        vecenv.reset()
        assert (len(calls), vecenv.driver_env is env) == (1, True)
    assert env.env.closed

    env = pufferlib.emulation.GymnasiumPufferEnv(Closing())
    for wrong in ({"num_workers": 0}, {"batch_size": 3}, {"backend": pufferlib.PufferEnv}):
        env.env.closed = False
        with pytest.raises(pufferlib.APIUsageError):
            pufferlib.vector.make(lambda: env, **wrong)
        assert env.env.closed


def test_the_seed_reaches_an_environment_whatever_the_backend() -> None:
    assert pufferlib.vector.make(Native, seed=5).construction_seed == 5
    assert pufferlib.vector.make(Native).construction_seed == 0


def test_backends_are_also_constructed_directly() -> None:
    with Serial([one] * 3, [[]] * 3, [{}] * 3, 3) as vecenv:
        vecenv.async_reset(seed=1)
        assert len(vecenv.recv()) == 7
    for creators, args, kwargs, num_envs in (
        ([one] * 3, [[]] * 3, [{}] * 3, 2),
        ([one] * 2, [[]] * 3, [{}] * 2, 2),
        ([one] * 2, [[]] * 2, [{}], 2),
        ([], [], [], 1),
    ):
        with pytest.raises(pufferlib.APIUsageError, match="must be a list of length"):
            Serial(creators, args, kwargs, num_envs)


def test_masks_belong_to_the_caller() -> None:
    with pufferlib.vector.make(one, num_envs=2, backend=Serial) as vecenv:
        vecenv.async_reset()
        vecenv.recv()[6][:] = False
        vecenv.send(np.zeros(2, int))
        assert vecenv.recv()[6].all()
        assert vecenv.masks.all()


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_infos_have_the_environments_own_keys_its_id_and_the_episode(backend: Any) -> None:
    with pufferlib.vector.make(one, env_kwargs={"length": 2}, num_envs=2, backend=backend) as vecenv:
        vecenv.reset(seed=1)
        infos = [vecenv.step(np.ones(2, int))[4] for _ in range(2)]
    assert infos[0] == []
    assert [{*info} for info in infos[1]] == [{"action", "env_id", "episode"}] * 2


@pytest.mark.parametrize("creator", [one, team, Native])
def test_the_arrays_have_their_form_before_the_first_batch(creator: Any) -> None:
    """Programs ask with hasattr, and take shapes and dtypes from the arrays."""
    with pufferlib.vector.make(creator, num_envs=2, backend=Serial) as vecenv:
        names = ("observations", "rewards", "terminals", "truncations", "masks")
        before = [getattr(vecenv, name) for name in names]
        assert before[4].all()
        assert not any(array.any() for array in before[:4])
        vecenv.reset()
        after = [getattr(vecenv, name) for name in names]
        assert [(a.shape, a.dtype) for a in before] == [(a.shape, a.dtype) for a in after]


def test_environments_in_this_process_show_the_last_batch() -> None:
    with pufferlib.vector.make(one, env_kwargs={"length": 2}, num_envs=2, backend=Serial) as vecenv:
        vecenv.reset(seed=5)
        env = vecenv.envs[1]
        assert (env.initialized, env.done, env.observations.tolist()) == (True, False, [[6, 0]])
        for _ in range(2):
            vecenv.step(np.array([3, 4]))
        assert vecenv.driver_env.observations.tolist() == [[5, 2]]
        assert (env.done, env.rewards.tolist(), env.terminals.tolist()) == (True, [4], [True])

    with pufferlib.vector.make(team, backend=Serial) as vecenv:
        vecenv.reset(seed=5)
        for _ in range(3):
            vecenv.step(np.array([1, 2, 3]))
        env = vecenv.driver_env
        assert (env.done, env.mask) == (False, {"a0": False, "a1": True, "a2": True})
        assert env.observations.tolist() == [[0, 0], [5, 14], [5, 24]]
        vecenv.step(np.array([1, 2, 3]))
        assert vecenv.driver_env.done


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_native_environments(backend: Any) -> None:
    vecenv = pufferlib.vector.make(Native, num_envs=2, num_workers=2, backend=backend, seed=100)
    try:
        assert (vecenv.num_agents, vecenv.emulated) == (4, False)
        observations, infos = vecenv.reset(seed=7)
        assert observations[:, 0].tolist() == [7, 7, 8, 8]
        assert [info["construction_seed"] for info in infos] == [100, 101]  # each its own construction seed
        for _ in range(3):
            observations, rewards, terminals, _, infos = vecenv.step(np.array([0, 1, 2, 3]))
        assert (rewards.tolist(), terminals.all(), observations[:, 1].any()) == ([0, 1, 2, 3], True, False)
        assert [info["score"] for info in infos] == [1, 2, 1, 2]
        vecenv.notify()
        assert vecenv.vecenv.get_attr("num_notified") == [1, 1]
    finally:
        vecenv.close()


class OneInfo(Native):
    """As pufferlib-core allows, its infos are one dict."""

    def step(self, actions: Any) -> Any:
        *rows, infos = super().step(actions)
        return *rows, {"scores": len(infos)} if infos else {}


def test_infos_of_a_native_environment_may_be_one_dict() -> None:
    with pufferlib.vector.make(OneInfo, num_envs=2, backend=Serial) as vecenv:
        vecenv.reset(seed=7)
        infos = [vecenv.step(np.zeros(4, int))[4] for _ in range(3)]
    assert infos == [[], [], [{"scores": 2, "env_id": 0}, {"scores": 2, "env_id": 1}]]


class Around(pufferlib.PufferEnv):
    """It passes its buffers on to an environment inside, which writes them."""

    def __init__(self, buf: Any = None, seed: int = 0) -> None:
        self.env = Native(buf=buf, seed=seed)
        self.single_observation_space, self.num_agents = self.env.single_observation_space, self.env.num_agents
        self.single_action_space = self.env.single_action_space
        super().__init__(buf)

    def reset(self, seed: int | None = None) -> Any:  # type: ignore[override]
        return self.env.reset(seed)

    def step(self, actions: Any) -> Any:
        return self.env.step(actions)

    def close(self) -> None:
        pass


class PassesAttributesOn(pufferlib.PufferEnv):
    """It calls no constructor, and has the attributes of an environment inside, which knows none of its infos."""

    def __init__(self, env: Any) -> None:
        self._env = env

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_env"), name)

    def reset(self, *args: Any, **kwargs: Any) -> Any:
        return self._env.reset(*args, **kwargs)

    def step(self, actions: Any) -> Any:
        *rows, infos = self._env.step(actions)
        return *rows, [*infos, {"outer": 1}]


class PassesAllOn(PassesAttributesOn):
    def __getattribute__(self, name: str) -> Any:
        if name in ("_env", "step"):
            return object.__getattribute__(self, name)
        return getattr(object.__getattribute__(self, "_env"), name)


@pytest.mark.parametrize("kind", [PassesAttributesOn, PassesAllOn])
@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_a_native_environment_may_stand_around_another(backend: Any, kind: Any) -> None:
    def creator(buf: Any = None, seed: int = 0) -> Any:
        return kind(Native(buf=buf, seed=seed))

    with pufferlib.vector.make(creator, num_envs=2, num_workers=1, backend=backend) as vecenv:
        assert vecenv.num_agents == 4
        assert vecenv.reset(seed=7)[0][:, 0].tolist() == [7, 7, 8, 8]
        observations, rewards, _, _, infos = vecenv.step(np.arange(4))
        assert (observations[:, 1].tolist(), rewards.tolist()) == ([1] * 4, [0, 1, 2, 3])
        assert infos == [{"outer": 1, "env_id": 0}, {"outer": 1, "env_id": 1}]
        assert isinstance(vecenv.driver_env._env, Native)


class Taught(Native):
    """As those for pufferlib-core, it has a teacher's actions, in odd steps."""

    def step(self, actions: Any) -> Any:
        result = super().step(actions)
        self.teacher_actions[:] = self.tick % 2 * (actions + 1)
        return result


@pytest.mark.parametrize("plan", [{}, {"num_workers": 2, "batch_size": 1, "backend": Multiprocessing}], ids=str)
def test_batches_have_the_actions_of_teachers(plan: dict[str, Any]) -> None:
    with pufferlib.vector.make(Taught, num_envs=2, **{"backend": Serial, **plan}) as vecenv:
        vecenv.async_reset(3)
        for step in range(6):
            *rows, teacher_actions, infos, _agent_ids, _masks = vecenv.recv()
            assert len(rows) == 4
            assert (teacher_actions.shape, teacher_actions.dtype) == (rows[1].shape, np.int32)
            assert not any("teacher_actions" in info for info in infos)
            is_odd = rows[0][:, 1] % 2 == 1
            assert (teacher_actions == is_odd * (rows[1] + 1)).all()
            vecenv.send(np.full(len(rows[1]), step % 4))
        vecenv.recv()
        assert len(vecenv.step(np.zeros(len(rows[1]), int))) == 5


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_a_batch_of_environments_without_a_teacher_has_seven_values(backend: Any) -> None:
    with pufferlib.vector.make(Native, num_envs=2, num_workers=1, backend=backend) as vecenv:
        vecenv.async_reset(3)
        _observations, rewards, _terminals, _truncations, infos, agent_ids, masks = vecenv.recv()
        assert not hasattr(vecenv.driver_env, "teacher_actions")
        assert [info["env_id"] for info in infos] == [0, 1]
        assert (rewards.shape, agent_ids.size, masks.all()) == ((4,), 4, True)


class ReadsBuffers(Native):
    """It reads the buffers that it gets, before any other does."""

    def __init__(self, buf: Any = None, seed: int = 0) -> None:
        assert buf is None or buf["observations"].shape == (2, 2)
        super().__init__(2, buf, seed)


@pytest.mark.parametrize("kind", [Around, ReadsBuffers])
def test_an_environment_may_pass_its_buffers_on_or_read_them(kind: Any) -> None:
    with pufferlib.vector.make(kind, num_envs=2, backend=Serial) as vecenv:
        assert vecenv.reset(seed=7)[0][:, 0].tolist() == [7, 7, 8, 8]


class Finite(Native):
    """It does not start its next episode by itself, but is ``done`` after three steps."""

    @property
    def done(self) -> bool:  # type: ignore[override]
        return bool(self.terminals.all())

    def step(self, actions: Any) -> Any:
        assert not self.done
        return super().step(actions)


def test_a_native_environment_that_is_done_is_reset_in_the_next_step() -> None:
    with pufferlib.vector.make(Finite, num_envs=2, backend=Serial) as vecenv:
        vecenv.reset(seed=7)
        steps = [vecenv.step(np.ones(4, int))[:3] for _ in range(4)]
        assert [terminals.all() for _, _, terminals in steps] == [False, False, True, False]
        assert steps[3][1].tolist() == [0] * 4
        assert vecenv.step(np.ones(4, int))[1].tolist() == [1] * 4


class NativeOfVersion1(pufferlib.PufferEnv):
    """The vecenv assigns its ``buf``."""

    buf: Any

    def __init__(self, agents: int = 2) -> None:
        self.observation_space = self.single_observation_space = spaces.Box(0, 9, (2,), np.float32)
        self.action_space = self.single_action_space = spaces.Discrete(4)
        self.num_agents, self.emulated, self.done = agents, None, False
        self.actions = np.zeros(agents, np.uint8)

    def reset(self, seed: int | None = None) -> Any:  # type: ignore[override]
        self.tick = 0
        self.buf.observations[:] = 0
        return self.buf.observations, {}

    def step(self, actions: Any) -> Any:
        self.tick += 1
        self.actions[:] = actions
        self.buf.observations[:], self.buf.rewards[:] = self.tick, self.actions
        self.buf.terminals[:] = self.tick == 3
        infos = {"tick": self.tick} if self.tick == 2 else {}
        return self.buf.observations, self.buf.rewards, self.buf.terminals, self.buf.truncations, infos


@pytest.mark.parametrize("plan", [{}, {"backend": Multiprocessing, "num_workers": 2}], ids=str)
def test_native_environments_of_version_1(plan: dict[str, Any]) -> None:
    with pufferlib.vector.make(NativeOfVersion1, num_envs=2, **plan) as vecenv:
        assert (vecenv.num_agents, vecenv.emulated) == (4, False)
        assert vecenv.reset(seed=7)[0].tolist() == [[0, 0]] * 4
        for _ in range(2):
            observations, rewards, terminals, _, infos = vecenv.step(np.arange(4))
    assert (observations.tolist(), rewards.tolist(), terminals.any()) == ([[2, 2]] * 4, [0, 1, 2, 3], False)
    assert [(info["tick"], info["env_id"]) for info in infos] == [(2, 0), (2, 1)]


def counting(queue: Any, buf: Any = None, seed: int = 0) -> Any:
    queue.put(os.getpid())
    return one(buf=buf)


def test_creators_may_hold_a_queue_while_threads_run() -> None:
    """With threads, workers are spawned, but a queue of multiprocessing is only inherited."""
    ended, queue = threading.Event(), multiprocessing.SimpleQueue()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    try:
        with pufferlib.vector.make(counting, env_args=[queue], num_envs=2, backend=Multiprocessing) as vecenv:
            vecenv.reset(seed=1)
            assert os.getpid() not in {queue.get(), queue.get()}
    finally:
        ended.set()
        thread.join()


def test_a_native_environment_is_returned_as_it_is() -> None:
    for backend in ({}, {"backend": pufferlib.PufferEnv}, {"backend": "PufferEnv"}):
        env = pufferlib.vector.make(Native, env_kwargs={"agents": 3}, **backend)
        assert type(env).__name__ == "Native"
        assert env.num_agents == 3
    with pytest.raises(pufferlib.APIUsageError, match="num_envs=1"):
        pufferlib.vector.make(Native, num_envs=2)
    with pytest.raises(pufferlib.APIUsageError, match="native PufferEnv"):
        pufferlib.vector.make(one, backend=pufferlib.PufferEnv)


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_agents_of_pettingzoo(backend: Any) -> None:
    vecenv = pufferlib.vector.make(team, num_envs=2, num_workers=2, backend=backend)
    try:
        assert (vecenv.num_agents, vecenv.agents_per_batch) == (6, 6)
        vecenv.async_reset(seed=5)
        observations, *_, infos, agent_ids, masks = vecenv.recv()
        assert observations[:, 0].tolist() == [5] * 3 + [6] * 3
        assert (agent_ids.tolist(), masks.all()) == ([*range(6)], True)
        vecenv.step(np.arange(6) % 4)
        *_, terminals, _, infos = vecenv.step(np.arange(6) % 4)
        assert terminals.tolist() == [True, False, False] * 2
        assert [info["a1"]["tick"] for info in infos] == [2, 2]
        assert [(agent, of_agent["env_id"]) for info in infos for agent, of_agent in info.items()] == [
            *((f"a{index}", 0) for index in range(3)),
            *((f"a{index}", 1) for index in range(3)),
        ]
        vecenv.send(np.arange(6) % 4)
        observations, _rewards, terminals, _truncations, infos, agent_ids, masks = vecenv.recv()
        assert masks.tolist() == [False, True, True] * 2
        assert not terminals[0]
    finally:
        vecenv.close()


def test_agents_absent_from_a_reset_have_no_mask() -> None:
    with pufferlib.vector.make(team, env_kwargs={"late": True}, num_envs=2, backend=Serial) as vecenv:
        vecenv.async_reset()
        assert vecenv.recv()[6].tolist() == [True, True, False] * 2


def test_infos_that_belong_to_no_agent() -> None:
    with pufferlib.vector.make(team, env_kwargs={"odd_infos": True}, num_envs=2, backend=Serial) as vecenv:
        vecenv.reset()
        assert [(info["mean"], info["env_id"]) for info in vecenv.step(np.zeros(6, int))[4]] == [(0.5, 0), (0.5, 1)]


class ScoredTeam(Team):
    """Its infos are numbers."""

    def step(self, actions: Any) -> Any:
        *rows, _ = super().step(actions)
        return *rows, dict.fromkeys(actions, 0.5)


def test_infos_of_agents_need_not_be_dicts() -> None:
    creator = functools.partial(pufferlib.emulation.PettingZooPufferEnv, env_creator=ScoredTeam)
    with pufferlib.vector.make(creator, backend=Serial) as vecenv:
        vecenv.reset()
        assert vecenv.step(np.zeros(3, int))[4] == [{"a0": 0.5, "a1": 0.5, "a2": 0.5, "env_id": 0}]


class NumberedTeam(Team):
    """Its agents are numbers, as PettingZoo allows."""

    possible_agents: Any = (0, 1)

    def __init__(self) -> None:
        self.agents: Any = []

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents = [0, 1]
        return dict.fromkeys(self.agents, np.zeros(2, np.float32)), {}

    def step(self, actions: Any) -> Any:
        observations, _ = self.reset()
        flags = dict.fromkeys(actions, False)
        return observations, dict.fromkeys(actions, 1.0), flags, flags, {agent: {"score": agent} for agent in actions}


def numbered_team(buf: Any = None, seed: int = 0) -> Any:
    return pufferlib.emulation.PettingZooPufferEnv(NumberedTeam(), buf=buf)


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_infos_of_agents_have_the_agents_for_keys(backend: Any) -> None:
    with pufferlib.vector.make(numbered_team, num_envs=2, num_workers=2, backend=backend) as vecenv:
        vecenv.reset(seed=1)
        infos = vecenv.step(np.ones(4, int))[4]
    assert [{agent: info[agent]["score"] for agent in info} for info in infos] == [{0: 0, 1: 1}] * 2


def test_infos_of_agents_hold_only_agents() -> None:
    with pufferlib.vector.make(team, num_envs=2, backend=Serial) as vecenv:
        assert vecenv.reset()[1] == [{}, {}]
        ends = 0
        for _ in range(6):
            for info in vecenv.step(np.zeros(6, int))[4]:
                assert info.keys() <= {"a0", "a1", "a2"}
                ends += sum("episode" in of_agent for of_agent in info.values())
        assert ends == 6


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_nested_spaces(backend: Any) -> None:
    vecenv = pufferlib.vector.make(nested, num_envs=2, num_workers=2, backend=backend)
    try:
        assert vecenv.single_observation_space.shape == (20,)
        assert vecenv.action_space.shape == (2, 3)
        vecenv.reset()
        observations, rewards, *_ = vecenv.step(np.array([[1, 0, 2], [2, 1, 3]], np.int64))
        assert rewards.tolist() == [201, 312]
        struct = observations.view(vecenv.emulated["emulated_observation_dtype"])
        assert struct["c"].ravel().tolist() == [1, 1]
    finally:
        vecenv.close()


# ------------------------------------------------------------------------------------------- what differs on purpose


def test_counts_need_not_divide_each_other() -> None:
    with pufferlib.vector.make(one, num_envs=5, num_workers=2, batch_size=3, backend=Multiprocessing) as vecenv:
        vecenv.async_reset(0)
        for _ in range(4):
            observations, *_, agent_ids, masks = vecenv.recv()
            assert len(observations) == len(agent_ids) == len(masks) == 3
            vecenv.send(np.zeros(3, int))


def test_workers_may_outnumber_cores() -> None:
    count = (os.cpu_count() or 1) + 1
    with pufferlib.vector.make(one, num_envs=count, num_workers=count, backend=Multiprocessing) as vecenv:
        assert len(vecenv.reset()[0]) == count


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_arrays_stay_valid_until_the_second_recv(backend: Any) -> None:
    with pufferlib.vector.make(one, num_envs=2, backend=backend) as vecenv:
        first, _ = vecenv.reset(seed=1)
        copy = first.copy()
        vecenv.step(np.ones(2, int))
        assert first.tolist() == copy.tolist()


def test_closing_ends_the_environments() -> None:
    vecenv = pufferlib.vector.make(one, num_envs=2, backend=Serial)
    vecenv.close()
    vecenv.close()
    assert [env.env.closed for env in vecenv.envs] == [True, True]

    vecenv = pufferlib.vector.make(one, num_envs=2, backend=Multiprocessing)
    driver = vecenv.driver_env
    assert driver is vecenv.driver_env
    assert vecenv.envs == []
    vecenv.close()
    assert driver.env.closed


def test_importing_changes_nothing(tmp_path: Path) -> None:
    code = """
import gymnasium, numpy, os, signal, warnings
def state():
    return os.listdir(), warnings.filters[:], [signal.getsignal(number) for number in signal.valid_signals()]
before = state()
import pufferlib.emulation, pufferlib.vector, pufferlib.postprocess, pufferlib.exceptions
from pufferlib import APIUsageError, EpisodeStats, Suppress
assert state() == before
"""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(Path(pufferlib.__file__).parents[1])}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, env=environment)


def of_version_2(buf: Any = None) -> Any:
    return one(buf=buf)


def test_batches_come_in_turn_in_programs_for_version_3_alone() -> None:
    """Its trainer wants contiguous rows; in the others, the environments that finish first are the next batch."""
    plan = {"num_envs": 4, "num_workers": 2, "batch_size": 2, "backend": Multiprocessing}
    with pufferlib.vector.make(one, **plan) as vecenv:
        vecenv.async_reset(0)
        for first in (0, 2, 0, 2, 0, 2):
            assert vecenv.recv()[5].tolist() == [first, first + 1]
            vecenv.send(np.zeros(2, int))
        assert vecenv.vecenv.backend == "multiprocessing"
    for creator, arguments in ((one, {"zero_copy": False}), (one, {"sync_traj": False}), (of_version_2, {})):
        with pufferlib.vector.make(creator, **plan, **arguments) as vecenv:
            assert vecenv.vecenv.backend == "pool"


@pytest.mark.parametrize(("creator", "rows"), [(one, 1), (team, 3)])
def test_each_reset_has_an_info_in_whichever_batch_it_comes(creator: Any, rows: int) -> None:
    with pufferlib.vector.make(creator, num_envs=4, batch_size=2, num_workers=2, backend=Serial) as vecenv:
        vecenv.async_reset(0)
        for infos in ([{}, {}], [{}, {}]):
            assert vecenv.recv()[4] == infos
            vecenv.send(np.zeros(2 * rows, int))
        assert len(vecenv.recv()[4]) == (0 if creator is one else 2)  # no longer a reset


def test_serial_makes_all_environments_whatever_the_batch() -> None:
    with pufferlib.vector.make(one, num_envs=4, batch_size=2, num_workers=4, backend=Serial) as vecenv:
        vecenv.async_reset(0)
        first = vecenv.recv()[5].tolist()
        vecenv.send(np.zeros(2, int))
        assert sorted([*first, *vecenv.recv()[5].tolist()]) == [0, 1, 2, 3]


def test_counts_may_be_auto() -> None:
    with pufferlib.vector.make(one, num_envs=4, num_workers="auto", batch_size="auto", backend="Serial") as vecenv:
        assert (vecenv.num_agents, vecenv.agents_per_batch) == (4, 2)


def test_seeds_are_used() -> None:
    with pufferlib.vector.make(one, num_envs=2, backend=Serial, seed=9) as vecenv:
        assert vecenv.reset()[0][:, 0].tolist() == [9, 10]
        assert vecenv.reset(None)[0][:, 0].tolist() == [9, 10]  # unseeded: the environment keeps what it has
        assert vecenv.reset([5, 3])[0][:, 0].tolist() == [5, 3]
        with pytest.raises(pufferlib.APIUsageError, match="2 ints"):
            vecenv.reset([1, 2, 3])
    with pufferlib.vector.make(one, num_envs=2, backend=Serial) as vecenv:
        assert vecenv.reset()[0][:, 0].tolist() == [42, 43]


def test_truncated_episodes_are_reset_also_in_programs_for_version_1() -> None:
    def truncating() -> Any:
        return pufferlib.emulation.GymnasiumPufferEnv(Counter(1, truncates=True))

    with pufferlib.vector.make(truncating, num_envs=1) as vecenv:
        vecenv.reset()
        assert vecenv.step(np.zeros(1, int))[3].tolist() == [True]
        observations, rewards, _terminals, truncations, _ = vecenv.step(np.ones(1, int))
        assert (observations[0, 1], rewards[0], truncations[0]) == (0, 0, False)


def test_two_resets_in_a_row() -> None:
    with pufferlib.vector.make(one, num_envs=2, backend=Multiprocessing) as vecenv:
        for _ in range(3):
            vecenv.reset()


@pytest.mark.slow
def test_a_killed_worker_is_named() -> None:
    """Theirs waits for ever. No timeout is involved: none is set."""
    with pufferlib.vector.make(one, env_kwargs={"dies_at": 2}, num_envs=2, backend=Multiprocessing) as vecenv:
        vecenv.reset()
        vecenv.step(np.zeros(2, int))
        with pytest.raises(pufferlib.WorkerError, match="SIGKILL"):
            vecenv.step(np.zeros(2, int))


def test_every_action_is_checked() -> None:
    with pufferlib.vector.make(one, num_envs=2, backend=Serial) as vecenv:
        vecenv.reset()
        for wrong in (np.array([0, 5]), np.zeros(3, int), np.array([0.5, 0])):
            with pytest.raises(pufferlib.APIUsageError):
                vecenv.send(wrong)
        assert isinstance(_error_of(lambda: vecenv.send(np.array([0, 5]))), pufferlib.ActionError)
        vecenv.step(np.array([0, 4]))


def _error_of(call: Any) -> Exception:
    with pytest.raises(Exception) as caught:
        call()
    return caught.value


def test_calls_out_of_order() -> None:
    with pufferlib.vector.make(one, num_envs=2, backend=Serial) as vecenv:
        with pytest.raises(pufferlib.APIUsageError, match="Call reset before stepping"):
            vecenv.recv()
        vecenv.async_reset()
        with pytest.raises(pufferlib.APIUsageError, match="before sending"):
            vecenv.send(np.zeros(2, int))
        vecenv.recv()
        vecenv.notify()  # which these environments do not have
    vecenv.close()


def swallowing(**kwargs: Any) -> Any:
    """A creator that accepts buf and drops it, with which version 3 returns zeros."""
    return pufferlib.emulation.GymnasiumPufferEnv(env_creator=Counter)


class NativeSubclass(Native):
    pass


@pytest.mark.parametrize(
    "creator",
    [
        Native,
        NativeSubclass,
        functools.partial(NativeSubclass, 1),
        lambda **kwargs: Native(**kwargs),
        lambda buf=None, **kwargs: Native(buf=buf, **kwargs),
    ],
    ids=["class", "subclass", "partial", "any keyword", "buf and any keyword"],
)
def test_each_environment_has_its_own_construction_seed(creator: Any) -> None:
    with pufferlib.vector.make(creator, num_envs=3, backend=Serial, seed=100) as vecenv:
        assert [info["construction_seed"] for info in vecenv.reset(7)[1]] == [100, 101, 102]


def test_a_creator_that_passes_its_keywords_on_gets_only_those_that_are_known() -> None:
    def of_version_1(**kwargs: Any) -> Any:
        return pufferlib.emulation.GymnasiumPufferEnv(Counter(**kwargs))

    def of_version_2(buf: Any = None, **kwargs: Any) -> Any:
        return pufferlib.emulation.GymnasiumPufferEnv(Counter(**kwargs), buf=buf)

    for creator in (of_version_1, of_version_2):
        with pufferlib.vector.make(creator, env_kwargs={"length": 1}, num_envs=2, backend=Serial) as vecenv:
            vecenv.reset()
            assert vecenv.step(np.zeros(2, int))[2].all()
    with pytest.raises(TypeError, match="'size'"):
        pufferlib.vector.make(of_version_1, env_kwargs={"size": 1}, backend=Serial)


def test_creators_that_swallow_buf() -> None:
    with pufferlib.vector.make(swallowing, num_envs=1, backend=Serial) as vecenv:
        assert vecenv.reset(seed=3)[0].tolist() == [[3, 0]]


def test_a_lone_discrete_can_be_observed() -> None:
    class Position(Counter):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = spaces.Discrete(9)

        def reset(self, **kwargs: Any) -> Any:
            super().reset(**kwargs)
            return 0, {}

        def step(self, action: Any) -> Any:
            return self.tick + 1, *super().step(action)[1:]

    with pufferlib.vector.make(lambda: pufferlib.emulation.GymnasiumPufferEnv(Position()), num_envs=2) as vecenv:
        vecenv.reset()
        assert vecenv.step(np.zeros(2, int))[0].tolist() == [1, 1]


# ------------------------------------------------------------------------------------------------------- what is wrong


def failing(buf: Any = None, seed: int = 0) -> Any:
    raise ImportError("a game is missing")


@pytest.mark.parametrize(("backend", "kind"), [(Serial, ImportError), (Multiprocessing, pufferlib.WorkerError)])
def test_what_a_creator_raises(backend: Any, kind: Any) -> None:
    with pytest.raises(kind, match="a game is missing"):
        pufferlib.vector.make(failing, num_envs=2, backend=backend)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"num_envs": 0}, "num_envs"),
        ({"num_envs": 1.5}, "num_envs"),
        ({"backend": "Threads"}, "Invalid backend: 'Threads'"),
        ({"colour": 3}, "Invalid argument: colour"),
        ({"num_envs": 2, "batch_size": 3, "backend": Serial}, "batch_size=3"),
        ({"num_envs": 2, "env_creator_or_creators": [one]}, "env_creators must be a list of length"),
        ({"env_creator_or_creators": [3]}, "env_creators must be a list of callables"),
        ({"env_creator_or_creators": 3}, "callable"),
        ({"env_creator_or_creators": [one], "env_args": [3]}, "env_args must be a list of lists"),
        ({"env_creator_or_creators": [one], "env_kwargs": [3]}, "env_kwargs must be a list of dicts"),
        ({"env_creator_or_creators": Counter, "backend": Serial}, "returned a Counter"),
    ],
    ids=str,
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(pufferlib.APIUsageError, match=text):
        pufferlib.vector.make(**{"env_creator_or_creators": one, **arguments})


def test_lists_of_creators() -> None:
    keywords = [{"length": 1}, {"length": 2}]
    with pufferlib.vector.make([one, one], [[], []], keywords, Serial, num_envs=2) as vecenv:
        vecenv.reset()
        assert vecenv.step(np.zeros(2, int))[2].tolist() == [True, False]


@pytest.mark.slow
def test_autotune_prints_a_plan(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from pufferlib.tuning.trial import TrialRunner

    trials = []
    try_out = TrialRunner.try_out

    def recorded(self: Any, trial: Any) -> Any:
        trials.append(trial.plan["num_envs"])
        return try_out(self, trial)

    monkeypatch.setattr(TrialRunner, "try_out", recorded)
    assert pufferlib.vector.autotune(one, batch_size=2, max_envs=5, time_per_test=0.05) is None
    assert {2, 4} <= {*trials}
    assert max(trials) <= 5
    assert "make(env_creator, backend=" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [{"batch_size": None}, {"batch_size": 9, "max_envs": 8}, {"batch_size": 4, "max_batch_vram_gb": 1e-9}],
    ids=str,
)
def test_autotune_refuses(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"batch_size|max_envs|max_batch_vram_gb"):
        pufferlib.vector.autotune(one, **arguments)


def test_check_envs() -> None:
    envs = [one(), one()]
    pufferlib.vector.check_envs(envs, envs[0])
    with pytest.raises(pufferlib.APIUsageError, match="returned a"):
        pufferlib.vector.check_envs([gymnasium.make("CartPole-v1")], envs[0])
    with pytest.raises(pufferlib.APIUsageError, match="single_observation_space"):
        pufferlib.vector.check_envs([nested()], envs[0])
