"""One environment, one row: what a creator holds and returns twice is refused by name, on every backend."""

from __future__ import annotations

import collections
import copy
import functools
import gc
import itertools
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from matrix import covering

import pufferlib
from pufferlib.errors import RegistryError, WorkerError
from pufferlib.vectorization.core.sharing import MOST_PARTS, Claims, held_by, lies_at, parts_of

pytestmark = pytest.mark.beside

SAYS = "that object already plays environment 0.*pass a function that makes a new environment each time"
BACKENDS = [("serial", {}), ("multiprocessing", {}), ("multiprocessing", {"context": "spawn"}), ("pool", {})]


class Walk(gymnasium.Env[Any, Any]):
    observation_space = Box(0, 99, (1,), np.float32)
    action_space = Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.tick = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.tick += 1
        return np.full(1, self.tick, np.float32), 1.0, False, False, {}


class Around(gymnasium.Wrapper[Any, Any, Any, Any]):
    pass


class Factory:
    def __init__(self) -> None:
        self.env_lists = {"walk": [Walk()]}

    def __call__(self) -> Any:
        return self.env_lists["walk"][0]

    def take(self) -> Any:
        return self()


class Shelf:
    """Holds its environment in the class; makes it known through methods of each kind."""

    walk = Walk()

    def __call__(self) -> Any:
        return self.walk

    @classmethod
    def of_class(cls) -> Any:
        return cls.walk

    @property
    def taken(self) -> Any:
        return ENV

    def through_property(self) -> Any:
        return self.taken


class Reader:
    def __call__(self) -> Any:
        return ENV


class Endless:
    def __init__(self, env: Any) -> None:
        self.env = env

    def __next__(self) -> Any:
        return self.env


ENV = Walk()


def read_global() -> Any:
    return ENV


def through_another() -> Any:
    return read_global()


def in_closure() -> Callable[[], Any]:
    env = Walk()
    return lambda: env


def in_default(env: Any = ENV) -> Any:
    return env


def in_keyword_default(*, env: Any = ENV) -> Any:
    return env


def as_given(env: Any) -> Any:
    return env


def inside(env: Any) -> Any:
    return env.unwrapped


in_attribute: Any = lambda: in_attribute.env  # noqa: E731
in_attribute.env = Walk()

ONE_FOR_ALL: dict[str, Any] = {
    "a global": read_global,
    "a global of a function that is called": through_another,
    "a closure": in_closure(),
    "a default": in_default,
    "a keyword's default": in_keyword_default,
    "an argument of partial": functools.partial(as_given, Walk()),
    "a keyword of partial": functools.partial(as_given, env=Walk()),
    "a factory": Factory(),
    "a bound method": Factory().take,
    "an attribute of the class": Shelf(),
    "an attribute of the class, by a class method": Shelf.of_class,
    "a property": Shelf().through_property,
    "a global that an object reads": Reader(),
    "the only one of a set": functools.partial(lambda envs: next(iter(envs)), {Walk()}),
    "an iterator": Endless(Walk()).__next__,
    "an attribute of the function": in_attribute,
    "what it wraps": lambda: Around(ENV),
    "what it wraps twice": lambda: pufferlib.wrap(Around(ENV)),
    "the inside of what it holds": functools.partial(inside, Around(Walk())),
}


def play(env: Any, backend: str, num_envs: int | None, num_workers: int, **kwargs: Any) -> None:
    with pufferlib.make(env, backend=backend, num_envs=num_envs, num_workers=num_workers, **kwargs) as vec:
        vec.reset(seed=0)
        observations, *_ = vec.step(np.zeros(vec.num_envs, int))
        assert observations[:, 0].tolist() == [1] * vec.num_envs


@pytest.mark.slow
@covering({"backend,kwargs": BACKENDS, "num_workers": [1, 3]})
def test_an_object_plays_one_row(backend: str, kwargs: Any, num_workers: int) -> None:
    for name, env_creator in ONE_FOR_ALL.items():
        if kwargs and name not in ("a closure", "a factory", "a global of a function that is called"):
            continue  # a process that is spawned takes its time
        num_envs = 2 if kwargs else 3
        with pytest.raises(WorkerError, match=SAYS) as raised:
            play(env_creator, backend, num_envs, min(num_workers, num_envs), **kwargs)
        assert raised.value.env_id == 1, name
        if not kwargs:
            play(env_creator, backend, 1, 1)
            play(env_creator, backend, 1, 1)  # after close it is free again


@pytest.mark.parametrize("backend", ["serial", "multiprocessing"])
def test_the_refusal_names_where_it_lies(backend: str) -> None:
    for name, says in (
        ("a global of a function that is called", "Walk, which its creator holds as read_global's ENV, and"),
        ("a closure", "Walk, which its creator holds as env, and"),
        ("a factory", r"Walk, which its creator holds as env_lists\['walk'\]\[0\], and"),
        ("a default", "Walk, which its creator holds as default 0, and"),
    ):
        with pytest.raises(WorkerError, match=says):
            play(ONE_FOR_ALL[name], backend, 2, 2)


@covering({"backend": ["serial", "multiprocessing", "pool"], "num_workers": [1, 3]})
def test_creators_that_make_new_ones_may_hold_others(backend: str, num_workers: int) -> None:
    three, created = [Walk(), Walk(), Walk()], []
    one, two = Walk(), Around(Walk())

    def remembered() -> Any:
        created.append(Walk())
        return created[-1]

    for env_creator in (
        lambda: copy.deepcopy(ENV),
        lambda: Around(copy.deepcopy(two)),
        lambda: type(ENV)(),
        lambda env_index: three[env_index],
        remembered,
        [lambda: one, lambda: two, lambda: ENV],
    ):
        num_envs = None if isinstance(env_creator, list) else 3
        play(env_creator, backend, num_envs, num_workers)
        play(env_creator, backend, num_envs, num_workers)


class Task:
    """A key whose repr differs from process to process."""

    def __init__(self, name: str) -> None:
        self.name = name


@pytest.mark.parametrize(
    ("backend", "kwargs"),
    [
        ("serial", {}),
        ("multiprocessing", {}),
        pytest.param("multiprocessing", {"context": "spawn"}, marks=pytest.mark.long),
    ],
)
def test_an_environment_each_from_one_collection(backend: str, kwargs: Any) -> None:
    names = [f"{'a long name of a level, as those of a file often are, ' * 2}{i}" for i in range(3)]
    by_name = {name: Walk() for name in names}
    by_task = {Task(name): Walk() for name in names}
    walks = [Walk() for _ in names]
    for name, walk in zip(names, walks, strict=True):
        walk.name = name  # type: ignore[attr-defined]
    in_set: set[Any] = set(walks)
    for env_creator in (
        lambda env_index: by_name[names[env_index]],
        lambda env_index: next(env for task, env in by_task.items() if task.name == names[env_index]),
        lambda env_index: next(env for env in in_set if env.name == names[env_index]),
    ):
        play(env_creator, backend, 3, 2, **kwargs)
    with pytest.raises(WorkerError, match=SAYS):
        play(lambda: by_name[names[2]], backend, 3, 3, **kwargs)


class MadeWhereItArrives:
    """Makes its environment as it is unpickled, so that each process has one of its own."""

    env: Any = None

    def __reduce__(self) -> Any:
        return MadeWhereItArrives._restored, ()

    @staticmethod
    def _restored() -> Any:
        restored = MadeWhereItArrives()
        restored.env = Walk()
        return restored

    def __call__(self) -> Any:
        return self.env


def test_what_a_worker_makes_for_itself_is_its_own() -> None:
    play(MadeWhereItArrives(), "multiprocessing", 2, 2, context="spawn")


class Remote:
    """Runs code, and fails, when asked for anything that its class does not have."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"asked for {name}")


class Paid(dict[str, Any]):
    def items(self) -> Any:
        raise AssertionError("read")

    def __iter__(self) -> Any:
        raise AssertionError("read")


@pytest.mark.parametrize("backend", ["serial", "multiprocessing"])
def test_looking_runs_no_code_of_what_a_creator_holds(backend: str) -> None:
    remote, paid = Remote(), Paid(env=Walk())
    play(lambda: Walk() if (remote, paid) else None, backend, 2, 2)


def test_looking_takes_as_long_for_any_size() -> None:
    """Counted, not timed: looking into what creators hold ends after a number of objects, and of parts."""
    huge = {"rows": [list(range(1000)) for _ in range(1000)], "numbers": dict.fromkeys(range(1_000_000))}
    env, num_parts = Walk(), [0]
    (match,) = held_by(lambda: env if huge else None, {}, num_parts)
    assert match == (("env",), env)
    assert num_parts[0] == MOST_PARTS
    pool = [Walk() for _ in range(300)]
    known: dict[int, Any] = {}

    def from_pool(env_index: int) -> Any:
        return pool[env_index]

    creators = [functools.partial(from_pool, env_index) for env_index in range(300)]
    assert [lies_at(("", "pool", f"[{i}]"), creator, known) for i, creator in enumerate(creators)] == pool
    assert len(known) == 300 + 2  # a partial each, and their function and list once


@pytest.mark.parametrize("backend", ["serial", "multiprocessing", "pool"])
def test_creators_in_a_list_share_no_environment(backend: str) -> None:
    env = Walk()
    for creators in ([lambda: env, lambda: env], [Walk, lambda: env, lambda: Around(env)]):
        with pytest.raises(WorkerError, match="already plays environment"):
            play(creators, backend, None, len(creators))
    with pytest.raises(WorkerError, match=SAYS):
        play(as_given, backend, 2, 2, env_kwargs={"env": env})
    play(as_given, backend, 2, 2, env_kwargs=[{"env": env}, {"env": Walk()}])


@pytest.mark.parametrize("first", ["serial", "multiprocessing"])
@pytest.mark.parametrize("second", ["serial", "pool"])
def test_an_object_plays_in_one_open_vecenv(first: str, second: str) -> None:
    env = Walk()
    with pufferlib.make(lambda: env, backend=first, num_envs=1) as vec:
        vec.reset()
        for env_creator in (lambda: env, lambda: Around(env)):
            with pytest.raises(WorkerError, match="already plays environment 0 of another VecEnv that is open"):
                pufferlib.make(env_creator, backend=second, num_envs=1)
        vec.step(np.zeros(1, int))
        play(lambda: copy.deepcopy(env), second, 2, 2)
    play(lambda: env, second, 1, 1)


def test_a_cache_that_is_filled_is_seen() -> None:
    @functools.lru_cache
    def cached() -> Any:
        return Walk()

    with pytest.raises(WorkerError, match=SAYS):
        play(cached, "serial", 2, 1)
    with pytest.raises(WorkerError, match=SAYS):  # within one process
        play(cached, "multiprocessing", 2, 1)
    repeated = itertools.repeat(Walk())
    with pytest.raises(WorkerError, match=SAYS):
        play(lambda: next(repeated), "serial", 2, 1)


def test_what_functional_environments_share_is_no_environment() -> None:
    class Functions:
        def reset(self, key: Any) -> Any:
            return 0

        def step(self, key: Any, state: Any, action: Any) -> Any:
            return state + 1

    class Stateful(Walk):
        def __init__(self, functions: Any) -> None:
            self.env = functions

    functions = Functions()
    for backend in ("serial", "multiprocessing"):
        play(lambda: Stateful(functions), backend, 3, 3)


def test_an_environment_that_is_made_again_takes_its_own_place() -> None:
    class Fragile(Walk):
        def step(self, action: Any) -> Any:
            if self.tick == 2:
                raise RuntimeError("it broke")
            return super().step(action)

    env = Fragile()
    with pufferlib.make(lambda: env, num_envs=1, on_error="restart") as vec:
        vec.reset()
        for _ in range(6):
            vec.step(np.zeros(1, int))
        assert sum(vec.restarts) == 1


def test_what_was_refused_leaves_nothing_behind() -> None:
    env = Walk()
    for backend in ("serial", "multiprocessing"):
        with pytest.raises(WorkerError, match="already plays"):
            play(lambda: env, backend, 2, 2)
        with pytest.raises(WorkerError, match="no environment|expected a Gymnasium"):
            play([lambda: env, lambda: 3], backend, None, 2)  # type: ignore[list-item]
        play(lambda: env, backend, 1, 1)
    vec: Any = pufferlib.make(lambda: env, num_envs=1)
    del vec
    claims = Claims()
    claims.claim(0, env)
    claims.release()
    play(lambda: env, "serial", 1, 1)


def test_the_advice_for_an_instance_is_what_works() -> None:
    with pytest.raises(RegistryError, match=r"pass a function that makes a new one each time, such as Walk, or lambda"):
        pufferlib.make(ENV, num_envs=2)  # type: ignore[arg-type]


class Counting(gymnasium.Env[Any, Any]):
    """Has attributes of its own."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self.observation = np.zeros(1, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.observation, {}

    def step(self, action: Any) -> Any:
        return self.observation, 0.0, False, False, {}


def test_the_attributes_of_environments_are_read_as_fast_as_before() -> None:
    """CPython keeps them without a dict until somebody asks for one, and reads them faster so."""
    created: list[Counting] = []

    def create() -> Counting:
        created.append(Counting())
        return created[-1]

    def held(env: Counting) -> bool:
        return any(type(referent) is dict for referent in gc.get_referents(env))

    held_too = Counting()
    with pufferlib.make([create, lambda: held_too]) as vec:
        vec.reset()
        vec.step(np.zeros(2, int))
        assert [held(env) for env in (*created, held_too)] == [held(Counting())] * 2


@pytest.mark.parametrize(
    "value",
    [{"a": 1, "b": 2}, collections.deque([1, 2]), functools.partial(print, a=1, b=2)],
    ids=["dict", "deque", "partial"],
)
def test_another_thread_may_change_what_is_searched(value: Any) -> None:
    """A worker in a thread searches its creators while another makes environments, which may fill a cache."""
    parts = parts_of(value)
    num_parts = len([next(parts), *([next(parts)] if isinstance(value, functools.partial) else [])])
    if isinstance(value, collections.deque):
        value.append(3)
    else:
        (value if isinstance(value, dict) else value.keywords)["c"] = 3
    assert num_parts + len([*parts]) == (3 if isinstance(value, functools.partial) else 2)


def test_a_large_structure_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """A creator may read a table of millions of entries, of which only the first are searched."""
    monkeypatch.setattr("pufferlib.vectorization.core.sharing.MOST", 10)
    value = dict.fromkeys(range(300_000))
    tracemalloc.start()
    try:
        assert len([*parts_of(value)]) == 10
        assert tracemalloc.get_traced_memory()[1] < sys.getsizeof(value) / 10
    finally:
        tracemalloc.stop()
