"""Names that mean something in PufferLib and something else here: which meaning a program gets, and by what sign."""

from __future__ import annotations

import pickle
import subprocess
import sys
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import pytest
from compat_programs import Native, one
from gymnasium import spaces

import pufferlib
import pufferlib.environment
import pufferlib.vector
from pufferlib.compat.puffer_env import BufferedEnv

pytestmark = [pytest.mark.beside, pytest.mark.usefixtures("no_version")]


class Ours(pufferlib.PufferEnv):
    single_observation_space = spaces.Box(0, 1, (1,), np.float32)
    single_action_space = spaces.Discrete(2)

    def step(self, actions: Any) -> Any:
        self.rewards[:] = 1
        self.terminations[:] = True


class OursWithConstructor(Ours):
    def __init__(self, size: int = 3) -> None:
        super().__init__()
        self.size = size


class TakesBuf(Native):
    """It takes buf, but does not pass it on."""

    def __init__(self, buf: Any = None) -> None:
        super().__init__(1)


class PassesBuf(pufferlib.PufferEnv):
    def __init__(self) -> None:
        self.single_observation_space = spaces.Box(0, 1, (1,), np.float32)
        self.single_action_space = spaces.Discrete(2)
        self.num_agents = 1
        super().__init__(None)


class PassesNothing(pufferlib.PufferEnv):
    """Version 3 accepts it; nothing but what its step will return tells it from one of ours."""

    def __init__(self) -> None:
        self.single_observation_space = spaces.Box(0, 1, (1,), np.float32)
        self.single_action_space = spaces.Discrete(2)
        self.num_agents = 1
        super().__init__()


class UsesTerminals(PassesNothing):
    def step(self, actions: Any) -> Any:
        self.terminals[:] = True
        return self.observations, self.rewards, self.terminals, self.truncations, []


class Base:
    def __init__(self, size: int) -> None:
        self.size = size


class OursWithBase(Ours, Base):
    def __init__(self) -> None:
        super().__init__(4)


class Mixin:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise AssertionError("PufferLib's constructor calls no other")


class NativeWithMixin(Native, Mixin):
    pass


class NativeWithMixinAndConstructor(Native, Mixin):
    def __init__(self) -> None:
        super().__init__(1)


class Pickled(pufferlib.PufferEnv, gymnasium.utils.EzPickle):
    def __init__(self, buf: Any = None, seed: int = 0) -> None:
        gymnasium.utils.EzPickle.__init__(self, buf, seed)
        self.single_observation_space = spaces.Box(0, 1, (1,), np.float32)
        self.single_action_space = spaces.Discrete(2)
        self.num_agents = 1
        super().__init__(buf)


class OursWithArgument(Ours):
    num_agents = 1

    def __init__(self) -> None:
        super().__init__(3)


def test_the_argument_of_one_of_ours_is_refused() -> None:
    with pytest.raises(pufferlib.APIUsageError, match=r"OursWithArgument got buf=3.*passes nothing"):
        OursWithArgument()


@pytest.mark.parametrize(
    "kind", [Native, TakesBuf, PassesBuf, UsesTerminals, NativeWithMixin, NativeWithMixinAndConstructor, Pickled]
)
def test_a_puffer_env_is_theirs_if_it_takes_buf_or_passes_it_on_or_uses_terminals(kind: Any) -> None:
    env = kind()
    assert isinstance(env, BufferedEnv)
    assert isinstance(env, kind)
    assert type(env).__name__ == kind.__name__
    assert env.terminals.shape == (env.num_agents,)


def test_a_second_base_class_may_pickle_it() -> None:
    other = pickle.loads(pickle.dumps(Pickled()))
    assert (type(other), other.terminals.tolist()) == (type(Pickled()), [False])


@pytest.mark.parametrize("kind", [Ours, OursWithConstructor])
def test_a_puffer_env_that_does_neither_is_ours(kind: Any) -> None:
    env = kind()
    assert not isinstance(env, BufferedEnv)
    with pufferlib.make(kind, num_envs=2) as vec:
        vec.reset()
        assert vec.step(np.zeros(2, int))[1].tolist() == [1, 1]


def test_arguments_for_another_base_class_reach_it() -> None:
    env = OursWithBase()
    assert env.size == 4
    assert not isinstance(env, BufferedEnv)


@pytest.mark.parametrize("kind", [PassesNothing, Ours])
def test_vector_make_refuses_what_nothing_tells_apart_with_both_ways_to_say_it(kind: Any) -> None:
    for arguments in ({}, {"backend": pufferlib.vector.Serial}):
        with pytest.raises(pufferlib.APIUsageError, match=r"super\(\).__init__\(buf\).*pufferlib.make"):
            pufferlib.vector.make(kind, **arguments)


def test_theirs_is_vectorized_by_ours_as_well() -> None:
    with pufferlib.make(Native, num_envs=2, num_workers=1) as vec:
        vec.reset(seed=[3, 4])
        assert vec.autoreset_mode == "same_step"
        assert vec.batch.observations[:, 0].tolist() == [3, 3, 4, 4]
    with pufferlib.make(one, num_envs=2) as vec:
        vec.reset(seed=[3, 4])
        assert vec.batch.observations.tolist() == [[3, 0], [4, 0]]


def test_environment_has_the_names_of_both() -> None:
    assert pufferlib.environment.PufferEnv is pufferlib.PufferEnv
    assert pufferlib.environment.set_buffers is pufferlib.set_buffers
    with pytest.raises(AttributeError, match="nothing"):
        pufferlib.environment.nothing  # noqa: B018


def test_emulation_has_the_names_of_both() -> None:
    from pufferlib.emulation import GymnasiumPufferEnv, PettingZooPufferEnv, emulate, wrap

    assert callable(wrap)
    assert emulate.__module__ == "pufferlib.emulation"
    assert GymnasiumPufferEnv is not PettingZooPufferEnv


def test_emulate_is_told_apart_by_its_arguments() -> None:
    import pufferlib.emulation

    struct = np.zeros(1, [("a", np.int32), ("b", np.float32, (2,))])
    pufferlib.emulation.emulate(struct, {"a": 3, "b": [1, 2]})
    assert struct["a"].tolist() == [3]
    assert pufferlib.emulation.emulate(Ours()).num_agents == 1


def test_serial_and_multiprocessing_are_told_apart_by_their_module() -> None:
    import pufferlib.vectorization

    assert pufferlib.vectorization.Serial is not pufferlib.vector.Serial
    assert pufferlib.vectorization.Multiprocessing is not pufferlib.vector.Multiprocessing


def test_namespace_is_a_function_and_a_module() -> None:
    code = """
import pufferlib
assert pufferlib.namespace(a=1).a == 1
import pufferlib.namespace
assert pufferlib.namespace(a=2)["a"] == 2
from pufferlib.namespace import Namespace, dataclass, namespace
assert dict(**namespace(b=3)) == {"b": 3}
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_modules_that_all_versions_have_tell_nothing() -> None:
    code = """
import pufferlib, pufferlib.emulation, pufferlib.vector
from pufferlib.compat.versions import version_of_program
assert version_of_program() is None
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.fixture
def imported(no_version: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that makes exactly these of the modules of one version alone count as imported."""

    def only(*names: str) -> None:
        for name in names:
            monkeypatch.setitem(sys.modules, name, ModuleType(name))

    return only


@pytest.mark.parametrize(
    ("modules", "version"),
    [
        (["frameworks"], 1),
        (["cleanrl"], 2),
        (["pufferl"], 3),
        (["frameworks", "pufferl"], None),
        ([], None),
    ],
    ids=str,
)
def test_a_module_of_one_version_tells_which_it_is(imported: Any, modules: list[str], version: Any) -> None:
    from pufferlib.compat.versions import version_of_creator, version_of_program

    def of_any(**kwargs: Any) -> None: ...

    imported(*(f"pufferlib.{name}" for name in modules))
    assert version_of_program() is version
    assert version_of_creator(of_any) == (version or 3)
    assert version_of_creator(lambda: None) == (version or 1)


def test_a_function_of_one_version_tells_which_it_is(imported: Any) -> None:
    imported()
    assert one().reset(seed=4)[0].tolist() == [[4, 0]]
    pufferlib.emulation.emulate_copy(3, np.int64, np.dtype(np.int32))
    assert one().reset(seed=4)[0].tolist() == [4, 0]


@pytest.mark.extras
@pytest.mark.parametrize(
    ("module", "observation", "dtype"),
    [("frameworks", [4, 0], "int64"), ("cleanrl", [[4, 0]], "int64"), ("pufferl", [[4, 0]], "int32")],
)
def test_what_differs_by_version(imported: Any, module: str, observation: Any, dtype: str) -> None:
    imported(f"pufferlib.{module}")
    env = one()
    assert env.reset(seed=4)[0].tolist() == observation
    assert env.step(1)[0].ndim == np.ndim(observation)
    import torch

    import pufferlib.pytorch

    assert pufferlib.pytorch.sample_logits(torch.zeros(2, 3))[0].dtype == getattr(torch, dtype)


@pytest.mark.parametrize(("module", "seeds"), [("frameworks", [0, 0]), ("cleanrl", [0, 0]), ("pufferl", [8, 9])])
def test_only_version_3_passes_seeds_to_any_keyword(imported: Any, module: str, seeds: list[int]) -> None:
    imported(f"pufferlib.{module}")
    with pufferlib.vector.make(lambda **kw: Native(**kw), num_envs=2, backend="Serial", seed=8) as vecenv:
        assert [info["construction_seed"] for info in vecenv.reset()[1]] == seeds


def test_creators_tell_their_version() -> None:
    from pufferlib.compat.versions import version_of_creator

    def of_1(size: int = 1) -> None: ...
    def of_2(size: int = 1, buf: Any = None) -> None: ...
    def of_3(buf: Any = None, seed: int = 0) -> None: ...
    def of_any(**kwargs: Any) -> None: ...
    def of_2_or_3(buf: Any = None, **kwargs: Any) -> None: ...

    class OfNone:
        pass

    class Inheriting(Native):
        pass

    creators = (of_1, of_2, of_3, of_any, of_2_or_3, OfNone, Ours, Inheriting)
    assert [version_of_creator(creator) for creator in creators] == [1, 2, 3, 3, 3, 1, 1, 3]
