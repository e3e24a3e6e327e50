"""Streams of launches: what waits for what, what a capture may hold, and that reads of state wait for launches.

torch's streams are played by a stand-in that notes who waits for whom; where there is a GPU, real ones are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import pufferlib
from pufferlib.errors import CallError
from pufferlib.vectorization.device.block_shape import BlockShape
from pufferlib.vectorization.device.streams import BlockStream, Streams

pytestmark = pytest.mark.beside

ENV: dict[str, Any] = {"num_taggers": 2, "num_runners": 1, "grid_length": 3, "episode_length": 4}


class Stream:
    def __init__(self, address: int, waits: list[tuple[int, int]]) -> None:
        self.cuda_stream, self.captured, self._waits = address, False, waits

    def wait_stream(self, other: Stream) -> None:
        assert not (self.captured ^ other.captured), "a capture would have to hold what is not in it"
        self._waits.append((self.cuda_stream, other.cuda_stream))


class Torch:
    """torch as far as streams go. waits: who has waited for whom. objects: how often one was asked for."""

    def __init__(self, *, raw: bool = True) -> None:
        self.waits: list[tuple[int, int]] = []
        self.default, self.side, self.other = (Stream(address, self.waits) for address in (0, 7, 9))
        self.now, self.objects = self.default, 0
        self.cuda: Any = self
        self._C = SimpleNamespace(_cuda_getCurrentRawStream=lambda index: self.now.cuda_stream) if raw else None

    def current_stream(self, device: Any) -> Stream:
        self.objects += 1
        return self.now

    @contextlib.contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.now = self.now, stream
        yield
        self.now = before

    def is_current_stream_capturing(self) -> bool:
        return self.now.captured

    @contextlib.contextmanager
    def graph(self, stream: Stream) -> Iterator[None]:
        with self.stream(stream):
            stream.captured = True
            yield
            stream.captured = False


def rows(blocks: list[int]) -> Callable[[], int]:
    return lambda: blocks[-1]


def test_a_stream_waits_for_the_one_before() -> None:
    for raw in (True, False):
        fake = Torch(raw=raw)
        streams = Streams(fake, torch.device("cuda", 0), rows([0]))
        assert [streams.current() for _ in range(3)] == [0, 0, 0] and fake.waits == []
        with fake.stream(fake.side):
            assert [streams.current() for _ in range(3)] == [7, 7, 7]
        assert streams.current() == 0
        assert fake.waits == [(7, 0), (0, 7)]


def test_a_step_makes_no_object_of_its_stream() -> None:
    fake = Torch()
    streams = Streams(fake, torch.device("cuda", 0), rows([0]))
    streams.current()
    before = fake.objects
    for _ in range(100):
        streams.current()
    assert fake.objects == before


def test_a_capture_on_another_stream_waits_for_nothing() -> None:
    """torch.cuda.graph has waited for the device, and what is captured cannot wait for what is not."""
    fake, blocks = Torch(), [0]
    streams = Streams(fake, torch.device("cuda", 0), rows(blocks))
    streams.current()
    with fake.graph(fake.side):
        for block in (1, 2, 0):
            streams.current()
            blocks.append(block)
    assert fake.waits == []
    assert streams.current() == 0 and fake.waits == [(0, 7)]


def test_another_stream_within_a_capture_is_refused() -> None:
    fake = Torch()
    streams = Streams(fake, torch.device("cuda", 0), rows([0]))
    with fake.graph(fake.side):
        streams.current()
        for fake.other.captured in (True, False):
            with (
                fake.stream(fake.other),
                pytest.raises(CallError, match="and the current stream is another; take all steps of a capture"),
            ):
                streams.current()
        assert streams.current() == 7
    assert fake.waits == []


@pytest.mark.parametrize("num_steps", [1, 2, 4, 32])
def test_a_capture_of_steps_that_are_no_multiple_of_the_blocks_is_refused(num_steps: int) -> None:
    """By the call that comes next, which changes nothing; the one after that goes on."""
    fake, blocks = Torch(), [0]
    streams = Streams(fake, torch.device("cuda", 0), rows(blocks))
    streams.current()
    with fake.graph(fake.side):
        for step in range(num_steps):
            streams.current()
            blocks.append((step + 1) % 3)
    with pytest.raises(CallError, match=r"three blocks of rows take turns, so capture 3, 6, 9, … steps"):
        streams.current()
    assert streams.current() == 0 and fake.waits == [(0, 7)]


def test_a_pool_is_not_captured_and_keeps_its_event() -> None:
    fake: Any = Torch()
    events: list[Any] = []

    def event() -> Any:
        events.append(SimpleNamespace(record=lambda stream: None))
        return events[-1]

    fake.Event = event
    streams = Streams(fake, torch.device("cuda", 0), rows([0]))
    fake.Stream = lambda device: fake.other
    shape = BlockShape(4, 2, 1, False, (), (), synchronous=False, final_observations=False)
    stream = BlockStream(fake, torch.device("cuda", 0), streams, shape)
    addresses: list[int] = []
    launcher = SimpleNamespace(launch=lambda num_envs, address: addresses.append(address))
    for _ in range(3):
        stream.launch(launcher, 2, ())
    assert addresses == [9] * 3 and fake.waits == [(9, 0)] * 3 and len(events) == 1
    with (
        fake.graph(fake.side),
        pytest.raises(CallError, match="batch_size=2 of num_envs=4 plays on .* capture with batch_size=num_envs"),
    ):
        stream.launch(launcher, 2, ())
    assert len(addresses) == 3


def test_a_kernel_is_not_loaded_within_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """What chooses actions of logits is compiled when it is first used."""
    fake: Any = Torch()
    monkeypatch.setattr(fake, "device", lambda device: contextlib.nullcontext(), raising=False)
    with pufferlib.make("tag/grid", backend="cuda", device="host", num_envs=4, env_kwargs=ENV, seed=1) as vec:
        venv: Any = vec
        venv.reset()
        for name, value in (("_on_host", False), ("_torch", fake)):
            monkeypatch.setattr(venv._launchers, name, value)
        logits = torch.zeros(12, 5)
        with (
            fake.graph(fake.side),
            pytest.raises(CallError, match="is compiled and .* make it once before the capture"),
        ):
            venv.send_logits(logits)
        venv.send_logits(logits)
        with fake.graph(fake.side):
            venv.recv()
            for _ in range(4):
                venv.send_logits(logits)
                venv.recv()


CALLS: dict[str, Callable[[Any], Any]] = {
    "get_attr": lambda vec: vec.get_attr("x"),
    "get_attr of a twin": lambda vec: vec.get_attr("grid_length"),
    "set_attr": lambda vec: vec.set_attr("t", 0),
    "call": lambda vec: vec.call("observation_space", "runner_0"),
    "states": lambda vec: vec.states(),
    "episode_sums": lambda vec: vec.episode_sums(),
    "episode_stats": lambda vec: vec.episode_stats(),
}


@pytest.mark.parametrize("name", CALLS)
def test_access_to_state_waits_for_all_launches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pufferlib.make(
        "tag/grid", backend="cuda", device="host", num_envs=6, batch_size=2, env_kwargs=ENV, seed=1
    ) as vec:
        vec.async_reset()
        vec.recv()
        waited: list[BlockStream] = []
        monkeypatch.setattr(BlockStream, "wait", lambda stream: waited.append(stream))
        reads: list[int] = []

        class Arrays(dict[str, Any]):
            def __getitem__(self, key: str) -> Any:
                reads.append(len(waited))
                return super().__getitem__(key)

        data: Any = vec.data  # type: ignore[attr-defined]
        monkeypatch.setattr(data, "arrays", Arrays(data.arrays))
        CALLS[name](vec)
        streams = {block.stream for block in vec._queue.blocks}  # type: ignore[attr-defined]
        assert {*waited} == streams and reads and min(reads) == len(streams)


def test_every_call_asks_for_the_stream_before_it_changes_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused call can be made again."""

    def refused() -> int:
        raise CallError("another stream")

    kwargs: dict[str, Any] = {"backend": "cuda", "device": "host", "num_envs": 4, "env_kwargs": ENV, "seed": 1}
    with pufferlib.make("tag/grid", **kwargs) as vec, pufferlib.make("tag/grid", **kwargs) as other:
        venv: Any = vec
        actions, logits = np.zeros(12, np.int64), np.zeros((12, 5), np.float32)
        calls: list[Callable[[], Any]] = [
            *(lambda call=call: call(venv) for call in CALLS.values()),
            lambda: venv.async_reset(),
            lambda: venv.reset(env_ids=[1]),
            lambda: venv.send(actions),
            lambda: venv.send(actions[:3], env_ids=[2]),
            lambda: venv.send_logits(logits),
            lambda: venv.sample(logits),
            lambda: venv.rollout(2),
        ]
        venv.reset()
        other.reset()
        for _ in range(4):
            for call in calls:
                with monkeypatch.context() as patched, pytest.raises(CallError, match="another stream"):
                    patched.setattr(venv._queue.streams, "current", refused)
                    call()
            venv.send(actions)
            with monkeypatch.context() as patched, pytest.raises(CallError, match="another stream"):
                patched.setattr(venv._queue.streams, "current", refused)
                venv.recv()
            assert torch.equal(venv.recv().observations, other.step(actions)[0])
        assert venv.get_attr("t") == other.get_attr("t") and venv.stats().num_launches == other.stats().num_launches


@pytest.mark.gpu
def test_on_a_gpu_streams_take_turns(cuda: str) -> None:
    """Each step on another stream plays what all of them on one do."""
    kwargs: dict[str, Any] = {"backend": "cuda", "device": cuda, "num_envs": 50_000, "env_kwargs": ENV, "seed": 1}
    with pufferlib.make("tag/grid", **kwargs) as vec, pufferlib.make("tag/grid", **kwargs) as other:
        actions = torch.randint(0, 5, (vec.agents_per_batch,), device=cuda)
        torch.cuda.synchronize()
        vec.reset()
        other.reset()
        streams = [torch.cuda.Stream() for _ in range(3)]
        for step in range(30):
            with torch.cuda.stream(streams[step % 3]):
                vec.step(actions)
            other.step(actions)
        assert vec.get_attr("t", env_ids=[0, 49_999]) == other.get_attr("t", env_ids=[0, 49_999])
        for name in ("observations", "rewards", "masks"):
            assert torch.equal(getattr(vec.batch, name), getattr(other.batch, name)), name


@pytest.mark.gpu
def test_on_a_gpu_captures_that_cannot_be_replayed_are_refused(cuda: str) -> None:
    with pufferlib.make("tag/grid", backend="cuda", device=cuda, num_envs=10, env_kwargs=ENV, seed=1) as vec:
        actions = torch.zeros(vec.agents_per_batch, dtype=torch.int64, device=cuda)
        vec.reset()
        for _ in range(3):
            vec.step(actions)
        for num_steps in (3, 4):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(num_steps):
                    vec.step(actions)
            if num_steps == 4:
                with pytest.raises(CallError, match="three blocks of rows take turns"):
                    vec.step(actions)
            vec.step(actions)
        graph = torch.cuda.CUDAGraph()
        with pytest.raises(CallError, match="a graph is being captured on the stream"), torch.cuda.graph(graph):
            vec.step(actions)
            with torch.cuda.stream(torch.cuda.Stream()):
                vec.step(actions)


@pytest.mark.gpu
def test_on_a_gpu_state_is_that_of_what_was_launched_last(device: str) -> None:
    """Of a pool, whose blocks fly on streams of their own. Nobody moves, so nobody is tagged."""
    env_kwargs = {**ENV, "episode_length": 999, "start": "fixed"}
    part = 20 if device == "host" else 20_000
    kwargs: dict[str, Any] = {
        "backend": "cuda",
        "device": device,
        "num_envs": 3 * part,
        "batch_size": part,
        "seed": 1,
    }
    with pufferlib.make("tag/grid", **kwargs, env_kwargs=env_kwargs) as vec:
        vec.async_reset()
        actions = torch.zeros(vec.agents_per_batch, dtype=torch.int64, device=vec.device)
        for num_steps in range(1, 20):
            received = [vec.recv().env_ids.tolist() for _ in range(3)]  # one sent again may be there before another
            for env_ids in received:
                vec.send(actions, env_ids=env_ids)
            assert vec.get_attr("t") == [num_steps] * 3 * part
            assert vec.states()["t"].eq(num_steps).all()  # type: ignore[attr-defined]
