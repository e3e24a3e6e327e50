"""The plain case of the portable path is taken where it may be, gives what the careful way gives, and loses nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from matrix import covering
from mock_envs import HashPopulation

import pufferlib
from pufferlib import _native
from pufferlib.vectorization.core.frames import PLAYED_FRAME
from pufferlib.vectorization.core.slab import NUM_BUFFERS

pytestmark = pytest.mark.beside

BACKENDS = ("serial", "multiprocessing", "pool")


@pytest.fixture(autouse=True)
def portable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Take the portable path, in forked workers too."""
    monkeypatch.setattr(_native, "available", False)
    yield


class Odd(gymnasium.Env[Any, Any]):
    """Observes what it was told so far, and at every eighth step or so does something that is not plain."""

    def __init__(self, observation: str = "box", action: str = "discrete", env_index: int = 0) -> None:
        self.observation_space = {
            "box": Box(-1e9, 1e9, (3,), np.float32),
            "discrete": Discrete(2**40),
            "dict": Dict(a=Box(-1e9, 1e9, (2,), np.float32), b=Discrete(2**40)),
        }[observation]
        self.action_space = {
            "discrete": Discrete(5),
            "started": Discrete(5, start=-2),
            "box": Box(-1, 1, (2,), np.float32),
            "pair": Tuple([Discrete(3), Box(-1, 1, (1,), np.float32)]),
        }[action]
        self.kind, self.env_index = observation, env_index
        self.buffer = np.zeros(3, np.float32)

    def observe(self) -> Any:
        if self.kind == "discrete":
            return self.sum
        if self.kind == "dict":
            return {"a": np.array([self.sum, self.tick], np.float32), "b": self.sum}
        self.buffer[:] = self.sum, self.tick, self.env_index  # a view of a live buffer
        return self.buffer

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.sum, self.tick = int(self.np_random.integers(1000)), 0
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.tick += 1
        self.sum += int(10 * np.sum([np.sum(part) for part in action] if isinstance(action, tuple) else action)) + 27
        observation, reward = self.observe(), self.sum / 8
        odd = self.np_random.integers(64)
        if odd == 0:
            return observation, np.float64(reward), np.bool_(False), False, {}
        if odd == 1:
            return observation, reward, False, False, {"sum": self.sum}
        if odd == 2 and isinstance(observation, np.ndarray):
            return observation.astype(np.float64), reward, False, False, {}
        if odd == 3:
            return [observation, int(reward), False, False, None]
        if odd == 4:
            return observation, reward, False, self.tick > 3, {}
        if odd == 5:
            return observation, reward, {"done": {}}  # a failure, which each path tells
        return observation, reward, odd == 6, odd == 7, None if odd == 8 else {}


def play(steps: int, **arguments: Any) -> list[Any]:
    """Return all that a learner sees, failures among it, to be compared."""
    seen: list[Any] = []
    generator = np.random.default_rng(3)
    with pufferlib.make(seed=5, **arguments) as vec:
        vec.reset()
        for _ in range(steps):
            vec.action_space.seed(int(generator.integers(2**31)))
            if arguments.get("autoreset_mode") == "disabled":
                over = [env_id for env_id in range(vec.num_envs) if vec._scheduler.overs[env_id]]
                if over:
                    vec.async_reset(env_ids=over)
                    seen.append(columns_of(vec.recv()))
            vec.send(vec.action_space.sample())
            try:
                seen.append(columns_of(vec.recv()))
            except pufferlib.WorkerError as error:
                seen.append((error.env_id, str(error).partition("\n")[0]))
                seen.append(vec.reset()[0].tobytes())
    return seen


def columns_of(batch: Any) -> list[Any]:
    return [array.tobytes() for array in (*batch[:4], *batch[5:])] + [repr(timeless(batch.infos))]


def timeless(value: Any) -> Any:
    """Return infos without the seconds of episodes."""
    if isinstance(value, dict):
        return {key: timeless(item) for key, item in value.items() if key != "t"}
    return [timeless(item) for item in value] if isinstance(value, (list, pufferlib.vectorization.Infos)) else value


@pytest.mark.filterwarnings("ignore:.*is cast to", "ignore:dropped by reset")
@covering(
    {
        "observation,action": [("box", "discrete"), ("discrete", "started"), ("dict", "pair"), ("box", "box")],
        "backend": ["serial", "multiprocessing"],
        "autoreset_mode": ["next_step", "same_step", "disabled"],
    }
)
def test_plain_and_careful_steps_give_the_same(
    observation: str, action: str, backend: str, autoreset_mode: str
) -> None:
    def seen(check: str) -> list[Any]:
        return play(
            150 if backend == "serial" else 60,
            env=Odd,
            backend=backend,
            num_envs=5,
            num_workers=2,
            env_kwargs={"observation": observation, "action": action},
            autoreset_mode=autoreset_mode,
            check=check,
        )

    assert seen("first") == seen("always")  # who is always checked is never stepped the short way


class Plain(gymnasium.Env[Any, Any]):
    """Nothing but rows: observes how often it was stepped."""

    observation_space, action_space = Box(0, 1e6, (2,), np.float32), Discrete(9)
    blob = b""

    def __init__(self, env_index: int = 0) -> None:
        self.env_index = env_index

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.tick = 0
        return np.array([self.env_index, 0], np.float32), {}

    def step(self, action: Any) -> Any:
        self.tick += 1
        return np.array([self.env_index, self.tick], np.float32), float(action), False, False, {}


def never(*_: Any) -> Any:
    raise AssertionError("this was to go the short way")


@covering({
    "backend": BACKENDS,
    "options": [{}, {"copy": True}, {"debug": True}, {"backend_kwargs": {"telemetry": False}}],
})  # fmt: skip
def test_plain_batches_go_the_short_way(backend: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with pufferlib.make(Plain, backend=backend, num_envs=5, num_workers=2, **options) as vec:
        vec.reset()
        vec.step(np.zeros(5, np.int64))  # is checked
        for name in ("_send", "_recv"):
            monkeypatch.setattr(vec, name, never)
        if backend == "serial":
            monkeypatch.setattr(vec._backend._worker, "advance", never)
        for tick in range(2, 9):
            vec.send(np.arange(5) + tick % 4)
            batch = vec.recv()
            np.testing.assert_array_equal(batch.observations, [[env_id, tick] for env_id in range(5)])
            np.testing.assert_array_equal(batch.rewards, np.arange(5) + tick % 4)
            assert batch.masks.all() and not (batch.terminations.any() or batch.truncations.any())
            assert batch.env_ids.tolist() == list(range(5)) and batch.infos == []


class Slips(Plain):
    """Observes, at last, what is not quite of its space; where it slips its episode may as well end."""

    observation_space = Box(0, 255, (2,), np.uint8)

    def __init__(self, last: Any = None) -> None:
        super().__init__()
        self.last = last

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.tick = 0
        return np.zeros(2, np.uint8), {}

    def step(self, action: Any) -> Any:
        self.tick += 1
        over = self.tick == 4 and self.last is None
        return np.zeros(2, np.uint8) if self.tick < 4 or over else self.last, 0.0, over, False, {}


@pytest.mark.parametrize("last", [np.array([300, 1]), np.zeros(1, np.uint8), np.zeros((2, 2), np.uint8)])
def test_what_could_be_stored_but_is_not_of_the_space_is_refused(last: Any) -> None:
    with pufferlib.make(Slips, env_kwargs={"last": last}) as vec:
        vec.reset()
        for _ in range(3):
            vec.step(np.zeros(1, np.int64))
        with pytest.raises(pufferlib.WorkerError, match="SpaceError"):
            vec.step(np.zeros(1, np.int64))


def test_who_is_over_is_not_stepped_the_short_way_either() -> None:
    with pufferlib.make(Slips, num_envs=2, autoreset_mode="disabled") as vec:
        vec.reset()
        for _ in range(4):
            terminations = vec.step(np.zeros(2, np.int64))[2]
        assert terminations.all()
        with pytest.raises(pufferlib.errors.CallError, match="are over"):
            vec.send(np.zeros(2, np.int64))


@pytest.mark.parametrize("env", [Plain, HashPopulation])
def test_flags_of_one_buffer_touch_no_other(env: Callable[..., Any]) -> None:
    """What ``recv`` returned keeps its flags until the second ``recv`` after it, for one agent and for several."""
    wrap_kwargs = {"max_agents": 4} if env is HashPopulation else None
    with pufferlib.make(env, backend="serial", num_envs=6, wrap_kwargs=wrap_kwargs, seed=2) as vec:
        vec.reset()
        for _ in range(40):
            vec.send(np.zeros(vec.agents_per_batch, np.int64))
            batch = vec.recv()
            copies = [array.copy() for array in batch[1:4]], batch.masks.copy()
            vec.send(np.zeros(vec.agents_per_batch, np.int64))
            for array, copy in zip([*batch[1:4], batch.masks], [*copies[0], copies[1]], strict=True):
                np.testing.assert_array_equal(array, copy)
            vec.recv()


@pytest.mark.parametrize("shift", range(len(PLAYED_FRAME)))
def test_a_part_of_a_reply_is_no_answer_to_a_step(shift: int) -> None:
    """Nobody waits for this reply, and any stretch of it may look like the word that all went well."""
    with pufferlib.make(Plain, backend="multiprocessing", num_envs=2, num_workers=2) as vec:
        vec.reset()
        vec.step(np.zeros(2, np.int64))
        blob = bytes(shift) + PLAYED_FRAME * (1 << 20)
        vec.set_attr("blob", blob)
        vec._ask("get", "blob", None, (), {})
        for channel in vec._backend._channels.values():
            assert channel.take(channel.sock.recv(1000)) == []
        vec.send(np.ones(2, np.int64))
        for tick in range(2, 6):
            batch = vec.recv()
            assert batch.observations[:, 1].tolist() == [tick, tick]
            vec.send(np.ones(2, np.int64))
        assert vec.get_attr("blob") == [blob, blob]


@pytest.mark.parametrize("careful", [False, True])
def test_ctrl_c_between_two_answers_loses_neither(careful: bool) -> None:
    """One worker's answer has been read when the wait for the other's is interrupted."""
    with pufferlib.make(Plain, backend="multiprocessing", num_envs=4, num_workers=2) as vec:
        vec.reset()
        vec.step(np.zeros(4, np.int64))
        vec.step(np.zeros(4, np.int64))
        backend: Any = vec._backend

        def interrupt(_: float) -> Any:
            raise KeyboardInterrupt

        lines = list(backend._lines)
        backend._lines[1] = lines[1]._replace(is_ready=interrupt)
        vec.send(np.ones(4, np.int64))
        with pytest.raises(KeyboardInterrupt):
            vec.recv()
        assert backend._played == [lines[0].worker]
        backend._lines[:] = lines
        fast_path = vec._fast_path
        vec._fast_path = None if careful else fast_path
        batch = vec.recv(timeout=5)
        assert batch.observations.tolist() == [[env_id, 3] for env_id in range(4)]
        vec._fast_path = fast_path
        for tick in range(4, 4 + 2 * NUM_BUFFERS):
            assert vec.step(np.ones(4, np.int64))[0][:, 1].tolist() == [tick] * 4


def test_many_small_waits_are_no_longer_than_the_timeout() -> None:
    """Each worker that is waited for has its own wait, but all share one deadline."""
    with pufferlib.make(Plain, backend="multiprocessing", num_envs=4, num_workers=4, backend_kwargs={"spin": 9}) as vec:
        vec.reset()
        vec.step(np.zeros(4, np.int64))
        backend: Any = vec._backend
        waits: list[float] = []
        backend._lines[:] = [line._replace(is_ready=waits.append) for line in backend._lines]
        vec.send(np.zeros(4, np.int64))
        assert not backend.all_played(0.05)
        assert waits[:9] == [0] * 9 and 0 <= waits[9] <= 50 and len(waits) == 10
        backend._lines.clear()
        vec.recv()
