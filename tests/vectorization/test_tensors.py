"""Batches as tensors: the same memory on the CPU; on a device in order, without waiting, and never too early."""

from __future__ import annotations

import functools
import gc
import warnings
import weakref
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from hypothesis import given
from hypothesis import strategies as st
from mock_envs import HashEnv

import pufferlib
from pufferlib.errors import ActionError, PlanError, SpaceError
from pufferlib.vectorization.core.tensors import MAX_KEYS, Tensors, as_numpy

pytestmark = pytest.mark.beside

DTYPES = ["float32", "float64", "float16", "uint8", "int8", "int16", "int32", "int64", "bool"]


def frozen(array: Any) -> Any:
    array.flags.writeable = False
    return array


def batch(rows: int = 4, start: int = 0) -> tuple[Any, ...]:
    """The arrays of one block; the ids are read-only."""
    return (
        np.arange(start, start + rows * 3, dtype=np.float32).reshape(rows, 3),
        np.arange(start, start + rows, dtype=np.float32),
        np.zeros(rows, np.bool_),
        np.ones(rows, np.bool_),
        frozen(np.arange(rows)),
        frozen(np.arange(rows)),
        np.ones(rows, np.bool_),
    )


@pytest.mark.parametrize("device", [None, "cpu", torch.device("cpu")])
def test_tensors_on_the_cpu_are_the_arrays_memory(device: Any) -> None:
    arrays = batch()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tensors = Tensors(device).of(0, arrays)
    assert [tensor.data_ptr() for tensor in tensors] == [array.ctypes.data for array in arrays]
    arrays[0][1, 2] = 77
    assert tensors[0][1, 2] == 77
    for array, tensor in zip(arrays, tensors, strict=True):
        assert (tuple(tensor.shape), str(tensor.dtype)) == (array.shape, f"torch.{array.dtype}")
        assert np.array_equal(tensor.numpy(), array)
    assert [array.flags.writeable for array in arrays] == [True, True, True, True, False, False, True]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_every_dtype_and_shape_is_viewed(dtype: str, shape: tuple[int, ...]) -> None:
    rows = np.ones((6, *shape), dtype)
    for array in (rows, rows[2:4], rows[::2], frozen(rows[1:5])):
        (tensor,) = Tensors().of(0, (array,))
        assert np.array_equal(tensor.numpy(), array)
        assert tensor.data_ptr() == array.ctypes.data
    if shape:
        space = Box(0, 1, shape, np.dtype(dtype).type)
        Tensors().check(space)


def test_a_learner_trains_on_what_was_received_in_inference_mode() -> None:
    check_trains_on_what_was_received_in_inference_mode("cpu")


def check_trains_on_what_was_received_in_inference_mode(device: str) -> None:
    tensors, arrays, weights = Tensors(device), batch(), torch.ones(3, device=device, requires_grad=True)
    with torch.inference_mode():
        first = tensors.of(0, arrays)
    (first[0] @ weights).sum().backward()  # autograd keeps the observations
    assert weights.grad is not None and weights.grad.cpu().numpy().tolist() == arrays[0].sum(0).tolist()
    for _ in range(3):  # which are written again
        tensors.of(0, arrays)
    with torch.inference_mode():
        others = [*tensors.of(1, batch()), tensors.on_device(np.ones(2))]
    assert not any(tensor.is_inference() for tensor in others)


def test_the_same_arrays_give_the_same_tensors() -> None:
    tensors, arrays = Tensors(), batch()
    first = tensors.of(0, arrays)
    assert tensors.of(0, arrays) is first
    assert tensors.of(0, tuple(arrays)) is first
    assert tensors.of(0, list(arrays)) is first
    changed = (*arrays[:4], np.array([9, 8, 7, 6]), *arrays[5:])
    second = tensors.of(0, changed)
    assert [old is new for old, new in zip(first, second, strict=True)] == [True] * 4 + [False] + [True] * 2
    assert second[4].tolist() == [9, 8, 7, 6]
    assert tensors.of(1, arrays)[0] is not first[0]


def test_what_is_kept_is_bounded_and_let_go() -> None:
    tensors = Tensors()
    watched = []
    for key in range(2 * MAX_KEYS):
        arrays = batch()
        watched.append(weakref.ref(arrays[0]))
        tensors.of(key, arrays)
    del arrays
    gc.collect()
    assert [ref() is None for ref in watched] == [True] * MAX_KEYS + [False] * MAX_KEYS
    arrays = batch()
    tensors.of(2 * MAX_KEYS - 1, arrays)  # other arrays under a known key: the old ones go
    gc.collect()
    assert watched[-1]() is None
    tensors.close()
    tensors.close()
    gc.collect()
    assert all(ref() is None for ref in watched)


def test_a_tensor_keeps_its_memory_alive() -> None:
    tensors = Tensors()
    held = tensors.of(0, [frozen(np.arange(100_000)), np.arange(100_000)])
    tensors.close()
    gc.collect()
    filler = [np.full(100_000, -1) for _ in range(8)]
    assert [int(tensor.sum()) for tensor in held] == [sum(range(100_000))] * 2
    assert len(filler) == 8


def test_copies_are_owned() -> None:
    tensors, arrays = Tensors(copy=True), batch()
    first = tensors.of(0, arrays)
    clones = [tensor.clone() for tensor in first]
    arrays[0][...] = -1
    arrays[1][...] = -1
    second = tensors.of(0, arrays)
    assert all(torch.equal(tensor, copy) for tensor, copy in zip(first, clones, strict=True))
    assert second[0].eq(-1).all()
    assert not {tensor.data_ptr() for tensor in first} & {tensor.data_ptr() for tensor in second}


@pytest.mark.parametrize("space", [Box(0, 1, (2,), np.longdouble), Box(0, 1, (2,), np.dtype(">f4"))])
def test_dtypes_that_torch_lacks_are_refused_by_name(space: Any) -> None:
    with pytest.raises(SpaceError, match=rf"observations of {space.dtype} cannot be tensors of torch .*leave as_torch"):
        Tensors().check(space)
    Tensors().check(Discrete(3))


@pytest.mark.parametrize("device", ["cuda:99", "nonsense", "xpu:7", 3.5, "meta:x"])
def test_devices_that_are_not_there_are_refused(device: Any) -> None:
    with pytest.raises(PlanError, match=rf"device={device!r} cannot be used: .*; leave device out for the CPU"):
        Tensors(device)


def test_actions_of_any_form_become_arrays() -> None:
    numbers = [[1, 2], [3, 4]]
    for given_actions in (torch.tensor(numbers), torch.nn.Parameter(torch.tensor(numbers, dtype=torch.float32))):
        array = as_numpy(given_actions)
        assert type(array) is np.ndarray
        assert array.tolist() == numbers
        assert array.ctypes.data == given_actions.data_ptr()  # not copied
    pair = as_numpy((torch.tensor([1, 2]), np.array([0.5, 1.0])))
    assert type(pair) is tuple
    assert [type(part) for part in pair] == [np.ndarray] * 2
    assert np.asarray(as_numpy([torch.tensor(3), torch.tensor(4)])).tolist() == [3, 4]
    for other in (np.arange(3), [1, 2, 3], (np.arange(2), np.arange(2)), 5, None, "text"):
        assert as_numpy(other) is other


@pytest.mark.parametrize(
    ("actions", "says"),
    [
        (torch.zeros(3, dtype=torch.bfloat16), r"NumPy cannot read \(torch.bfloat16, torch.strided, on cpu\): .*float"),
        (torch.zeros(3, 3).to_sparse(), r"NumPy cannot read \(torch.float32, torch.sparse_coo, on cpu\)"),
        (torch.zeros(3, device="meta"), r"NumPy cannot read \(torch.float32, torch.strided, on meta\)"),
        ((torch.zeros(3), torch.zeros(3, dtype=torch.bfloat16)), "torch.bfloat16"),
    ],
)
def test_tensors_that_numpy_cannot_read_are_refused_as_actions(actions: Any, says: str) -> None:
    with pytest.raises(ActionError, match=says):
        as_numpy(actions)


class FakeEvent:
    def __init__(self, cuda: FakeCuda, passes_after: int) -> None:
        self.cuda, self.passes_after = cuda, passes_after

    def query(self) -> bool:
        self.cuda.log.append("query")
        return self.cuda.done >= self.passes_after

    def synchronize(self) -> None:
        self.cuda.log.append("wait")
        self.cuda.run(max(0, self.passes_after - self.cuda.done))


class FakeCuda:
    """A device on the CPU that copies as late as it may: when told to, or when somebody waits."""

    def __init__(self, refuses: bool = False) -> None:
        self.log: list[str] = []
        self.queue: list[Any] = []
        self.done = 0
        self.refuses = refuses
        self.registered: set[int] = set()

    def run(self, count: int) -> None:
        for source, target in self.queue[self.done : self.done + count]:
            target.copy_(source)
        self.done = min(len(self.queue), self.done + count)

    def register(self, address: int, nbytes: int) -> bool:
        if not self.refuses:
            self.registered.add(address)
        return not self.refuses

    def unregister(self, address: int) -> None:
        copies = [target for _, target in self.queue[self.done :] if isinstance(target, torch.Tensor)]
        assert not copies, "memory unlocked while it is being copied"
        self.registered.remove(address)

    def pinned(self, like: Any) -> Any:
        self.log.append("pinned")
        return torch.full_like(like, 1)

    def empty(self, like: Any) -> Any:
        self.log.append("empty")
        return torch.empty_like(like)

    def begin(self) -> None:
        self.log.append("begin")

    def copy(self, source: Any, target: Any) -> None:
        self.log.append("copy")
        self.queue.append((source, target))

    def record(self) -> FakeEvent:
        self.log.append("record")
        return FakeEvent(self, len(self.queue))


class Blocks:
    """A slab of a few blocks, as a VecEnv has one; ids are the same objects in all."""

    def __init__(self, num: int, rows: int = 4) -> None:
        self.memory = np.zeros((num, rows, 3), np.float32)
        self.flags = np.zeros((num, rows), np.bool_)
        self.ids = frozen(np.arange(rows))
        self.arrays = [(self.memory[index], self.flags[index], self.ids) for index in range(num)]

    def fill(self, index: int, value: int) -> None:
        self.memory[index] = value
        self.flags[index] = value % 2


def on_fake(cuda: FakeCuda, **kwargs: Any) -> Tensors:
    return Tensors("cuda", cuda=cuda, **kwargs)  # type: ignore[arg-type]


def pinned_blocks(cuda: FakeCuda, num: int = 3, **kwargs: Any) -> tuple[Tensors, Blocks]:
    tensors, blocks = on_fake(cuda, **kwargs), Blocks(num)
    assert tensors.pin(blocks.memory) and tensors.pin(blocks.flags)
    return tensors, blocks


def test_a_batch_is_queued_in_order_and_nothing_waits() -> None:
    cuda = FakeCuda()
    tensors, blocks = pinned_blocks(cuda)
    for number in range(2):
        tensors.of(number, blocks.arrays[number])  # makes the buffers
    cuda.run(100)
    cuda.log.clear()
    for number in range(12):
        key = number % 3
        blocks.fill(key, number)
        targets = tensors.of(key, blocks.arrays[key])
        assert cuda.log == ["begin", "copy", "copy", "record"]  # not the ids, and no asking, waiting or new memory
        cuda.run(100)
        assert targets[0].eq(number).all()
        assert targets[2].tolist() == [0, 1, 2, 3]
        cuda.log.clear()


def test_a_block_is_leased_until_its_copy_has_passed() -> None:
    cuda = FakeCuda()
    tensors, blocks = pinned_blocks(cuda)
    assert tensors.leases() == []
    tensors.finish(0)  # nothing is on its way
    for key in range(3):
        tensors.of(key, blocks.arrays[key])
    assert tensors.leases() == [0, 1, 2]
    cuda.run(3)
    assert tensors.leases() == [1, 2]
    cuda.log.clear()
    tensors.finish(0)
    assert cuda.log == ["query"]  # has passed
    tensors.finish(2)
    assert cuda.log == ["query", "query", "wait"]
    assert cuda.done == len(cuda.queue)
    tensors.finish(2)
    assert tensors.leases() == []


def test_device_tensors_are_valid_until_the_second_batch_after_theirs() -> None:
    cuda = FakeCuda()
    tensors, blocks = pinned_blocks(cuda, 6)
    given_out = []
    for key in range(6):
        blocks.fill(key, key)
        given_out.append(tensors.of(key, blocks.arrays[key]))
        cuda.run(100)
        for age in range(min(2, key + 1)):
            assert given_out[key - age][0].eq(key - age).all()
    assert len({out[0].data_ptr() for out in given_out}) == 2


def test_owned_device_tensors_are_never_written_again() -> None:
    cuda = FakeCuda()
    tensors, blocks = pinned_blocks(cuda, copy=True)
    given_out = []
    for number in range(9):
        key = number % 3
        tensors.finish(key)
        blocks.fill(key, number)
        given_out.append(tensors.of(key, blocks.arrays[key]))
    cuda.run(100)
    for number, out in enumerate(given_out):
        assert out[0].eq(number).all() and out[1].eq(bool(number % 2)).all() and out[2].tolist() == [0, 1, 2, 3]


@given(st.lists(st.integers(0, 5), min_size=30, max_size=60), st.booleans(), st.sampled_from([3, 4, 5]))
def test_whatever_the_device_lags_the_learner_sees_its_batches(lags: list[int], refuses: bool, num: int) -> None:
    """The learner's own work is queued behind the copies: it sees a batch once the device has come that far."""
    cuda, expected = FakeCuda(refuses), []
    tensors, blocks = on_fake(cuda), Blocks(num)
    assert tensors.pin(blocks.memory) is not refuses
    tensors.pin(blocks.flags)
    seen: list[Any] = []
    for number, lag in enumerate(lags):
        key = number % num
        tensors.finish(key)
        blocks.fill(key, number)
        targets = tensors.of(key, blocks.arrays[key])
        expected.append([number, bool(number % 2), 3])
        cuda.queue.append((targets, Reader(seen)))
        next_key = (number + 1) % num
        if next_key not in tensors.leases():
            blocks.fill(next_key, -1)  # what the learner may not see
        cuda.run(lag)
    cuda.run(len(cuda.queue))
    assert seen == expected
    tensors.close()
    assert not cuda.registered


class Reader:
    """The learner's kernel in the device's queue: it reads all of a batch."""

    def __init__(self, seen: list[Any]) -> None:
        self.seen = seen

    def copy_(self, targets: Any) -> None:
        observations, flags, ids = targets
        self.seen.append([*observations.unique().tolist(), *flags.unique().tolist(), int(ids.max())])


def test_memory_that_cannot_be_pinned_goes_through_buffers_and_needs_no_lease() -> None:
    cuda = FakeCuda(refuses=True)
    tensors, blocks = on_fake(cuda), Blocks(1)
    assert not tensors.pin(blocks.memory)
    for number in range(2):
        blocks.fill(0, number)
        targets = tensors.of(0, blocks.arrays[0])
        assert tensors.leases() == []
        blocks.fill(0, 99)  # at once
        cuda.run(100)
        assert targets[0].eq(number).all()
    cuda.log.clear()
    tensors.of(0, blocks.arrays[0])
    tensors.of(0, blocks.arrays[0])
    assert "wait" not in cuda.log and "pinned" not in cuda.log
    tensors.of(0, blocks.arrays[0])  # the device is two batches behind, and their buffers are full
    assert cuda.log.count("wait") == 1


def test_batches_of_another_size_get_other_buffers() -> None:
    cuda = FakeCuda()
    tensors = on_fake(cuda)
    for rows in (4, 4, 2, 6, 6, 6):
        arrays = batch(rows, start=rows)
        targets = tensors.of(rows, arrays)
        cuda.run(100)
        for array, target in zip(arrays, targets, strict=True):
            assert np.array_equal(target.numpy(), array)


def test_closing_waits_for_copies_and_unlocks_memory() -> None:
    cuda = FakeCuda()
    tensors, blocks = pinned_blocks(cuda)
    targets = tensors.of(0, blocks.arrays[0])
    unpinned = batch()
    more = tensors.of(1, unpinned)
    assert len(cuda.registered) == 2
    tensors.close()
    assert (cuda.registered, tensors.leases()) == (set(), [])
    assert torch.equal(targets[0], torch.zeros(4, 3)) and more[0].tolist() == unpinned[0].tolist()
    tensors.close()


PLANS = [
    dict(backend="serial"),
    dict(backend="multiprocessing", num_workers=2),
    dict(backend="multiprocessing", num_workers=2, batch_size=3),
    dict(backend="pool", num_workers=1, batch_size=3),  # one worker: its environments finish in the order of sending
]


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize(
    "arguments", [dict(as_torch=True), dict(device="cpu", copy=True), dict(as_torch=True, debug=True)]
)
def test_a_vec_env_gives_tensors_of_the_same_batches(plan: dict[str, Any], arguments: dict[str, Any]) -> None:
    plain, tensors = played(plan, {}), played(plan, arguments)
    assert [[part.tolist() for part in batch] for batch in plain] == [[part.tolist() for part in b] for b in tensors]
    assert all(isinstance(part, torch.Tensor) for batch in tensors for part in batch)
    shared = arguments == dict(as_torch=True)
    with pufferlib.make(HashEnv, num_envs=4, seed=1, **arguments) as vec:
        vec.reset()
        assert np.shares_memory(vec.batch.observations.numpy(), vec._slab.observations) is (
            shared or "debug" in arguments
        )


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("refuses", [False, True])
def test_a_vec_env_lets_no_worker_write_what_a_device_still_copies(
    plan: dict[str, Any], refuses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device copies as late as it may, and the learner's kernels come behind the copies."""
    cuda, seen = FakeCuda(refuses), []

    def make_tensors(device: Any, *, copy: bool) -> Tensors:
        assert device == "cuda"
        return on_fake(cuda, copy=copy)

    monkeypatch.setattr("pufferlib.vectorization.core.tensors.Tensors", make_tensors)

    class Kernel:
        def copy_(self, targets: Any) -> None:
            seen.append([target.clone().tolist() for target in targets])

    played(plan, dict(device="cuda"), lambda batch: cuda.queue.append((batch, Kernel())))
    cuda.run(len(cuda.queue))
    assert seen == [[part.tolist() for part in batch] for batch in played(plan, {})]
    assert not cuda.registered


def played(plan: dict[str, Any], arguments: dict[str, Any], see: Any = None) -> list[list[Any]]:
    """Play fixed actions; return the arrays or tensors of each batch, copied, or show them to ``see``."""
    batches = []
    with pufferlib.make(functools.partial(HashEnv, mean_length=5), num_envs=4, seed=1, **plan, **arguments) as vec:
        vec.async_reset()
        for number in range(40):
            parts = [part for part in vec.recv() if not isinstance(part, pufferlib.vectorization.Infos)]
            if see is None:
                batches.append([part.copy() if isinstance(part, np.ndarray) else part.clone() for part in parts])
            else:
                see(parts)
            vec.send(torch.full((vec.agents_per_batch,), number % 3))
    return batches


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("where", ["arrays", "tensors", "debug", "device"])
def test_the_host_batch_is_there_without_waiting(
    plan: dict[str, Any], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a device that has not copied anything yet, too."""
    cuda = FakeCuda()
    if where == "device":
        monkeypatch.setattr(
            "pufferlib.vectorization.core.tensors.Tensors", lambda device, *, copy: on_fake(cuda, copy=copy)
        )
    arguments = {"arrays": {}, "tensors": {"as_torch": True}, "debug": {"debug": True}, "device": {"device": "cuda"}}
    expected, seen = played(plan, {}), []
    with pufferlib.make(
        functools.partial(HashEnv, mean_length=5), num_envs=4, seed=1, **plan, **arguments[where]
    ) as vec:
        assert vec.host_batch is None
        vec.async_reset()
        for number in range(40):
            vec.recv()
            host = vec.host_batch
            assert host is not None and host.infos is vec.batch.infos
            seen.append([part.tolist() for part in host if isinstance(part, np.ndarray)])
            vec.send(np.full(vec.agents_per_batch, number % 3))
        cuda.run(len(cuda.queue))
    assert seen == [[part.tolist() for part in batch] for batch in expected]


def test_only_cuda_pins() -> None:
    assert not Tensors().pin(np.zeros(4))
    assert Tensors().leases() == []
    Tensors().finish(0)


@pytest.mark.gpu
@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("pin", [False, True])
def test_on_a_gpu_every_batch_arrives(pin: bool, copy: bool, cuda: str) -> None:
    tensors, blocks = Tensors(cuda, copy=copy), Blocks(4, rows=4096)
    if pin:
        assert tensors.pin(blocks.memory) and tensors.pin(blocks.flags)
        assert torch.from_numpy(blocks.memory).is_pinned()
    sums = []
    for number in range(200):
        key = number % 4
        tensors.finish(key)
        blocks.fill(key, number)
        observations, flags, ids = tensors.of(key, blocks.arrays[key])
        assert observations.is_cuda and ids.is_cuda
        sums.append((observations.sum(), flags.sum(), ids.sum()))  # queued behind the copy; nothing has waited
    for number, (total, flagged, ids_total) in enumerate(sums):
        assert total.item() == number * 4096 * 3
        assert (flagged.item(), ids_total.item()) == (4096 * (number % 2), sum(range(4096)))
    tensors.close()
    assert tensors.leases() == []
    assert not torch.from_numpy(blocks.memory).is_pinned()


@pytest.mark.gpu
def test_on_a_gpu_a_learner_trains_on_what_was_received_in_inference_mode(cuda: str) -> None:
    check_trains_on_what_was_received_in_inference_mode(cuda)


@pytest.mark.gpu
def test_on_a_gpu_of_does_not_wait_for_the_device(cuda: str) -> None:
    tensors, blocks = Tensors(cuda), Blocks(3, rows=1024)
    assert tensors.pin(blocks.memory) and tensors.pin(blocks.flags)
    for key in range(3):
        tensors.of(key, blocks.arrays[key])
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)  # about a second of work before the copies
    tensors.of(0, blocks.arrays[0])
    assert tensors.leases() == [0]
    tensors.finish(0)
    assert tensors.leases() == []
    tensors.close()


@pytest.mark.gpu
def test_on_a_gpu_actions_come_back_and_spaces_are_checked(cuda: str) -> None:
    assert as_numpy((torch.arange(3, device=cuda), torch.ones(2, device=cuda)))[0].tolist() == [0, 1, 2]
    Tensors(cuda).check(gymnasium.spaces.Box(0, 255, (2,), np.uint8))
    Tensors("cuda:0").check(gymnasium.spaces.Discrete(3))
