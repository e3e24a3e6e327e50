"""Ocean by class and through Gymnasium: a PufferEnv held alone explains itself, `import ocean` registers its names."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.utils import EzPickle
from gymnasium.utils.env_checker import check_env

import ocean
import pufferlib
from ocean.multiagent import Multiagent
from ocean.squared import Squared
from pufferlib import registry
from pufferlib.errors import CallError, SpaceError

pytestmark = pytest.mark.beside

NAMES = [entry.name for entry in registry.names() if entry.name.startswith("ocean/")]
SEVERAL_AGENTS = {"ocean/multiagent", "ocean/population"}


class Echo(pufferlib.PufferEnv):
    """Shows the last action; resets itself while it is made, and steps an inner environment that it holds itself."""

    single_observation_space = Box(-1, 9, (1,), np.float32)
    single_action_space = Discrete(9)

    def __init__(self, inner: Any = None) -> None:
        self.inner = inner
        self.reset()

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.observations[:] = -1
        return None if self.inner is None else self.inner.reset(seed=seed, options=options)

    def step(self, actions: Any) -> Any:
        self.observations[:, 0] = actions
        return None if self.inner is None else self.inner.step(actions)


@pytest.mark.parametrize(
    "make", [Squared, Echo, lambda: copy.deepcopy(Squared()), lambda: pickle.loads(pickle.dumps(Echo()))]
)
@pytest.mark.parametrize(
    "action", [3, np.int64(3), [3, 4], [[3], []], np.array(3), np.zeros((1, 1), int), {"agent_0": 3}]
)
def test_what_is_held_alone_says_how_to_hold_it(make: Any, action: Any) -> None:
    env = make()
    with pytest.raises(CallError, match=r"pufferlib\.wrap\(env\) returns it as a Gymnasium"):
        _observation, _info = env.reset(seed=1)
    assert "pufferlib.wrap(env)" in str(env.reset(seed=1)) and not env.reset(seed=1)
    with pytest.raises(CallError, match=r"no observation.*pufferlib\.wrap"):
        env.reset(1)[0]
    with pytest.raises(CallError, match=r"actions of shape \(1,\), got .*pufferlib\.wrap"):
        env.step(action)


def test_several_agents_held_alone_are_sent_to_pettingzoo() -> None:
    with pytest.raises(CallError, match=r"shape \(2,\), got 1: Multiagent .* as a PettingZoo environment"):
        Multiagent().step(1)  # type: ignore[arg-type]


def test_what_plays_by_the_protocol_plays_alone() -> None:
    env = Squared()
    env.reset(seed=1)
    held = pufferlib.wrap(Squared())
    held.reset(seed=1)
    for action in (0, 3, 5):
        env.rewards[:] = 0
        env.step(np.array([action]))
        observation, reward, *_ = held.step(action)
        assert np.array_equal(env.observations[0], observation) and env.rewards[0] == reward


class Counter(Echo):
    """Counts its steps; reads and changes the infos of an inner environment, and takes arguments of its own."""

    count = 0

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        infos = super().reset(seed, options)
        self.count = 0
        return {} if infos is None else infos

    def step(self, action: Any, times: int = 1) -> Any:  # type: ignore[override]
        self.count += times
        return super().step(list(action))


class Counting(Counter, EzPickle):
    def __init__(self) -> None:
        EzPickle.__init__(self)
        super().__init__()


class Copied(Counter):
    def __copy__(self) -> Any:
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other


@pytest.mark.parametrize("kind", [Counter, Counting, Copied])
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_a_copy_that_is_held_alone_steps_itself(kind: Any, copied: Any) -> None:
    env = kind()
    other = copied(env)
    other.step(np.zeros(1, int))
    assert (env.count, other.count) == (0, 1)
    env.step([0], times=2)
    env.step(action=(0,))
    assert (env.count, other.count) == (3, 1)


def test_infos_of_an_environment_held_alone_are_infos() -> None:
    infos = Echo().reset(seed=1)
    assert isinstance(infos, dict) and infos == {} and {**infos} == {} and infos.get("score") is None
    again = pickle.loads(pickle.dumps(infos))
    assert type(again) is dict and again == {}
    infos["score"] = 1
    assert list(infos) == ["score"] and copy.copy(infos) == {"score": 1} and "wrap" not in str(infos)


def test_what_holds_an_environment_holds_those_within_it() -> None:
    env = Echo(Counter(Squared()))
    env.more = {"a": Squared()}  # type: ignore[attr-defined]
    env.itself = env  # type: ignore[attr-defined]
    pufferlib.wrap(env)
    for held in (env, env.inner, env.inner.inner, env.more["a"]):  # type: ignore[attr-defined]
        assert not {"reset", "step"} & set(vars(held))


@pytest.mark.parametrize("backend", ["serial", "multiprocessing"])
def test_an_environment_within_another_and_one_that_resets_itself_are_held(backend: str) -> None:
    with pufferlib.make(lambda: Echo(Squared()), backend=backend, num_envs=2, num_workers=2, seed=1) as vec:
        vec.reset()
        steps = [vec.step(np.full(2, action)) for action in (4, 2, 7)]
        assert [batch[0].tolist() for batch in steps] == [[[4], [4]], [[2], [2]], [[7], [7]]]
        assert [len(batch[4]) for batch in steps] == [0, 0, 2] and {*steps[2][4][0]} >= {"score"}


@pytest.mark.parametrize("hold", [pufferlib.wrap, pufferlib.emulation.emulate])
def test_what_is_held_has_its_own_methods_and_no_others(hold: Any) -> None:
    env = Squared()
    held = hold(env)
    assert "step" not in vars(env) and "reset" not in vars(env)
    assert held is not None and env.step.__func__ is Squared.step and env.reset.__func__ is Squared.reset

    def replaced(actions: Any) -> None:
        raise AssertionError

    other = Squared()
    other.step = replaced  # type: ignore[method-assign]  # a user's own
    held = hold(other)
    assert other.step is replaced


@pytest.mark.parametrize("name", NAMES)
def test_gymnasium_makes_what_has_one_agent(name: str) -> None:
    if name in SEVERAL_AGENTS:
        with pytest.raises(SpaceError, match=rf'several agents.*pufferlib\.make\("{name}"'):
            gymnasium.make(name)
        return
    with gymnasium.make(name, render_mode="ansi") as env:
        assert env.spec is not None and env.spec.id == name and env.render_mode == "ansi"
        check_env(env.unwrapped, skip_render_check=True)
        env.reset(seed=3)
        assert len(env.step(env.action_space.sample())) == 5


def test_arguments_reach_the_class() -> None:
    with gymnasium.make("ocean:ocean/squared", distance=5) as env:
        assert env.observation_space.shape == (11, 11)
    with pytest.raises(TypeError, match="no_such"):
        gymnasium.make("ocean/squared", no_such=1)
    with pytest.raises(ValueError, match="distance=0"):
        gymnasium.make("ocean/squared", distance=0)


def test_gymnasiums_own_vectorization_takes_the_names() -> None:
    with pufferlib.make(lambda: gymnasium.make("ocean:ocean/squared"), num_envs=2, seed=1) as wrapped:
        first, _ = wrapped.reset()
        with pufferlib.make("ocean/squared", num_envs=2, seed=1) as plain:
            assert np.array_equal(first, plain.reset()[0])
    envs = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make("ocean/squared")] * 2)
    assert envs.reset(seed=1)[0].shape == (2, 7, 7)
    envs.close()


def fresh(code: str) -> Any:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_importing_pufferlib_registers_nothing_and_importing_ocean_imports_no_environment() -> None:
    registered, after, imported = fresh(
        "import json, sys, gymnasium, pufferlib\n"
        "before = [name for name in gymnasium.registry if 'ocean' in name]\n"
        "import ocean\n"
        "print(json.dumps([before, [name for name in gymnasium.registry if 'ocean' in name],"
        " [name for name in sys.modules if name.startswith('ocean.')]]))"
    )
    assert (registered, sorted(after), imported) == ([], sorted(NAMES), [])


def test_a_name_with_its_module_needs_no_import() -> None:
    code = "import json, gymnasium; print(json.dumps(gymnasium.make('ocean:ocean/bandit').spec.id))"
    assert fresh(code) == "ocean/bandit"


def test_importing_ocean_again_keeps_what_is_registered() -> None:
    spec = gymnasium.registry["ocean/squared"]
    ocean._register()
    assert gymnasium.registry["ocean/squared"] is spec
