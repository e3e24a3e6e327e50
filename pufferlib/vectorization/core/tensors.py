"""Batches as torch tensors: views of the memory that environments wrote, or copies on a device.

torch is not imported until the first tensors are made.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

import gymnasium
import numpy as np

from pufferlib.errors import ActionError, MissingExtra, PlanError, SpaceError
from pufferlib.util.annotations import Array

if TYPE_CHECKING:
    import mmap

    import torch
    from torch.cuda import Event

    Tensor = torch.Tensor
    Device = torch.device

__all__ = ["Tensors", "as_numpy", "imported_torch", "tensors_of"]

MAX_KEYS = 64  # keys whose tensors are cached: more than a VecEnv has blocks


class Tensors:
    """A converter of batches' arrays to tensors, with a cache for arrays that are the same objects each time.

    device: a name, or a torch.device.

    - None, "cpu" or "host": tensors share the arrays' memory, and are valid as long as the arrays are.
    - "cuda", "cuda:1", …: tensors are copies in device memory, made on a separate stream. ``of`` returns at once;
      later work on the caller's current stream waits for the copy on the device. Tensors are valid until the
      second ``of`` after the call that returned them. Arrays in memory passed to ``pin`` are copied directly, and must
      not change until the copy is complete; ``finish(key)`` waits for that. Other arrays are copied through pinned
      buffers, and may change as soon as ``of`` has returned.
    - Any other device, such as "mps": tensors are copies, complete when ``of`` returns.

    Tensors are normal ones, even if the caller is in torch's inference mode, so that learners can train on them later.
    Only copies are of the caller's mode.

    copy: whether tensors stay valid forever, which takes a new copy of each batch. cuda: the Cuda that copies to the
    device; by default, one is created when it is first needed.

    Raises MissingExtra if torch is not installed, PlanError for a device that cannot be used.
    """

    def __init__(self, device: Device | str | None = None, *, copy: bool = False, cuda: Cuda | None = None) -> None:
        self._torch = imported_torch()
        self.clone = self._torch.Tensor.clone  # copies a tensor
        self._copy = copy
        self._cuda = cuda
        self.device = self._device_of(device)
        self._known: OrderedDict[Hashable, tuple[Sequence[Array], tuple[Tensor, ...]]] = OrderedDict()
        self._buffers = [_Buffers([], [], []) for _ in range(2)]  # alternating: a batch is valid until the next but one
        self._buffer_index = 0
        self._passes: dict[Hashable, Event] = {}  # the event after which each key's arrays may change
        # By buffer index: the event after which its pinned buffers may change.
        self._staged: list[Event | None] = [None, None]
        self._pinned: list[tuple[int, int]] = []  # addresses of registered memory: start, end

    def _device_of(self, device: Device | str | None) -> Device:
        torch = self._torch
        try:
            torch_device: Device = torch.device("cpu" if device is None or device == "host" else device)
            if torch_device.type == "cuda" and self._cuda is None:
                count = torch.cuda.device_count()  # creates no CUDA context, so that workers may still be forked
                if (torch_device.index or 0) >= count:
                    raise RuntimeError(f"torch {torch.__version__} sees {count} CUDA devices")
            elif self._cuda is None:
                torch.empty(0, device=torch_device)
        except (RuntimeError, TypeError, AssertionError, NotImplementedError) as error:
            reason = str(error).splitlines()[0]
            raise PlanError(f"device={device!r} cannot be used: {reason}; leave device out for the CPU") from None
        return torch_device

    def check(self, space: gymnasium.Space[object]) -> None:
        """Raise SpaceError if torch does not support the dtype of a flat observation space on this device.

        For a CUDA device, only torch's support on the host is checked.
        """
        dtype = np.dtype(space.dtype)
        try:
            host = self._torch.from_numpy(np.zeros(0, dtype))
            if self.device.type != "cuda":
                host.to(self.device)
        except (TypeError, ValueError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
            raise SpaceError(
                f"observations of {dtype} cannot be tensors of torch {self._torch.__version__} on {self.device}: "
                f"{reason}; leave as_torch and device out, or change the dtype of the observation space"
            ) from None

    def of(self, key: Hashable, arrays: Sequence[Array]) -> tuple[Tensor, ...]:
        """Return a tensor for each array.

        key: a name for the memory, such as the index of a block, under which its tensors are cached. A tensor is made
        again if its array is not the same object as last time. Read-only arrays must never change, since their
        copies on a CUDA device are reused.
        """
        host = self.views(key, arrays)
        if self.device.type == "cpu":
            return tuple([tensor.clone() for tensor in host]) if self._copy else host
        if self.device.type == "cuda":
            return self._copied(key, arrays, host)
        return tuple([tensor.to(self.device) for tensor in host])

    def views(self, key: Hashable, arrays: Sequence[Array]) -> tuple[Tensor, ...]:
        """Return tensors over the arrays' memory, cached by key as in ``of``."""
        entry = self._known.get(key)
        if entry is not None:
            before, tensors = entry
            if before is arrays or all(old is new for old, new in zip(before, arrays, strict=True)):
                return tensors
            tensors = tuple(
                [
                    tensor if old is new else self._over(new)
                    for old, new, tensor in zip(before, arrays, tensors, strict=True)
                ]
            )
        else:
            tensors = tuple([self._over(array) for array in arrays])
        self._known[key] = (tuple(arrays), tensors)
        self._known.move_to_end(key)
        if len(self._known) > MAX_KEYS:  # keys that are not used again must not keep memory alive
            self._known.popitem(last=False)
        return tensors

    def pin(self, memory: Array | mmap.mmap) -> bool:
        """Pin a buffer, such as an array or an mmap, until ``close``, so that CUDA copies directly from it.

        Return False if the device is not CUDA, or if the system refuses. If the system refuses, copies go through a
        pinned buffer instead.
        """
        if self.device.type != "cuda":
            return False
        view = np.frombuffer(memory, np.uint8)
        start = view.ctypes.data
        if not self._device().register(start, view.nbytes):
            return False
        self._pinned.append((start, start + view.nbytes))
        return True

    def leases(self) -> list[Hashable]:
        """Return, without waiting, the keys whose arrays are still being copied and so must not change."""
        return [key for key, event in self._passes.items() if not event.query()]

    def finish(self, key: Hashable) -> None:
        """Wait until the copy of this key's arrays is complete, so that they may be written again."""
        event = self._passes.pop(key, None)
        if event is not None and not event.query():
            event.synchronize()

    def close(self) -> None:
        """Wait for the copies in progress, unpin memory, and drop all cached tensors and buffers.

        The tensors that ``of`` returned are not affected.
        """
        for key in list(self._passes):
            self.finish(key)
        for event in self._staged:
            if event is not None:
                event.synchronize()
        for start, _ in self._pinned:
            self._device().unregister(start)
        self._pinned, self._staged = [], [None, None]
        self._known.clear()
        self._buffers = [_Buffers([], [], []) for _ in range(2)]

    def on_device(self, array: Array) -> Tensor:
        """Return a tensor on the device with an array's contents; it is complete, and stays valid forever."""
        with self._outside_inference():
            tensor: Tensor = self._torch.from_numpy(array).to(self.device)
        return tensor

    def _over(self, array: Array) -> Tensor:
        """Return a tensor over an array's memory, without torch's warning for a read-only array."""
        writeable = array if array.flags.writeable else np.asarray(_Writeable(array))
        with self._outside_inference():
            tensor: Tensor = self._torch.from_numpy(writeable)
        return tensor

    def _outside_inference(self) -> AbstractContextManager[object]:
        torch = self._torch
        return torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext()

    def _copied(self, key: Hashable, arrays: Sequence[Array], host: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Start copying a batch to the device, except read-only arrays that are there already; return the targets."""
        cuda = self._device()
        self._buffer_index ^= 1
        buffer_index = self._buffer_index
        buffers = _Buffers([], [], []) if self._copy else self._buffers[buffer_index]
        buffers.fit(host, cuda)
        cuda.begin()
        direct = staged = False
        for index, (array, source, target) in enumerate(zip(arrays, host, buffers.targets, strict=True)):
            if not array.flags.writeable and buffers.sources[index] is array:
                continue  # already on the device
            buffers.sources[index] = None if array.flags.writeable else array
            if self._is_pinned(array):
                direct = True
            else:
                source = self._staging(buffer_index, index, source, first=not staged)
                staged = True
            cuda.copy(source, target)
        event = cuda.record()
        if direct:
            self._passes[key] = event
        if staged:
            self._staged[buffer_index] = event
        return tuple(buffers.targets)

    def _staging(self, buffer_index: int, index: int, source: Tensor, *, first: bool) -> Tensor:
        """Return a copy of a tensor in a pinned buffer, which was last used two batches ago.

        first: whether this is the batch's first such copy. The first copy waits until the device has read the previous
        content of the buffers.
        """
        event = self._staged[buffer_index]
        if first and event is not None:
            if not event.query():
                event.synchronize()  # the device is two batches behind
            self._staged[buffer_index] = None
        pinned = self._buffers[buffer_index].pinned
        while len(pinned) <= index:
            pinned.append(None)
        buffer = pinned[index]
        if buffer is None or not _alike(buffer, source):
            buffer = pinned[index] = self._device().pinned(source)
        return buffer.copy_(source)

    def _is_pinned(self, array: Array) -> bool:
        start = array.__array_interface__["data"][0]
        return any(low <= start and start + array.nbytes <= high for low, high in self._pinned)

    def _device(self) -> Cuda:
        if self._cuda is None:
            self._cuda = Cuda(self._torch, self.device)
        return self._cuda


def tensors_of(as_torch: bool | None, device: Device | str | None, *, copy: bool) -> Tensors | None:
    """Return the Tensors for these arguments of ``make``, or None if batches are arrays.

    as_torch: None means tensors if a device is given. With False, the device is not used, but it must exist. Raises the
    same errors as Tensors.
    """
    if device is None or (device == "host" and as_torch is not None):
        return Tensors(copy=copy) if as_torch else None
    tensors = Tensors(device, copy=copy)
    return tensors if as_torch is None or as_torch else None


class Cuda:
    """The stream on which a Tensors object copies to one CUDA device, and the memory and events that copies need."""

    def __init__(self, torch: ModuleType, device: Device) -> None:
        self._torch = torch
        self._device = torch.device("cuda", torch.cuda.current_device()) if device.index is None else device
        self._stream = torch.cuda.Stream(self._device)

    def register(self, address: int, nbytes: int) -> bool:
        """Page-lock host memory for copies by the device; return False if the system refuses."""
        torch = self._torch
        with torch.cuda.device(self._device):
            portable = 1  # to all devices of this process
            if int(torch.cuda.cudart().cudaHostRegister(address, nbytes, portable)) == 0:
                return True
            try:
                torch.zeros(1, device=self._device)  # torch's next kernel would report that error: clear it here
            except RuntimeError:
                pass
        return False

    def unregister(self, address: int) -> None:
        """Unlock the memory that ``register`` locked."""
        self._torch.cuda.cudart().cudaHostUnregister(address)

    def pinned(self, like: Tensor) -> Tensor:
        """Return a new tensor with the shape and dtype of ``like``, in pinned host memory."""
        with self._torch.inference_mode(False):
            tensor: Tensor = self._torch.empty_like(like, pin_memory=True)
        return tensor

    def empty(self, like: Tensor) -> Tensor:
        """Return a new tensor with the shape and dtype of ``like``, in device memory, as the target of copies."""
        with self._torch.inference_mode(False):
            tensor: Tensor = self._torch.empty_like(like, device=self._device)
        tensor.record_stream(self._stream)  # if it is dropped early, its memory stays in use until the copy is complete
        return tensor

    def begin(self) -> None:
        """Make subsequent copies wait for the caller's queued work, which may still read the targets' old content."""
        self._stream.wait_stream(self._torch.cuda.current_stream(self._device))

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Queue a copy from pinned host memory to a tensor on the device."""
        with self._torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)

    def record(self) -> Event:
        """Record an event after all copies so far, make the caller's subsequent work wait for it, and return it."""
        event: Event = self._torch.cuda.Event()
        event.record(self._stream)
        self._torch.cuda.current_stream(self._device).wait_event(event)
        return event


class _Buffers(NamedTuple):
    """The buffers of one batch, in lists that are indexed like the batch's arrays.

    targets: tensors on the device. sources: for each target, the read-only array of which it is a copy, or None if it
    is a copy of a writeable array. pinned: tensors in pinned host memory, through which arrays in other memory are
    copied; None before the first such copy.
    """

    targets: list[Tensor]
    sources: list[Array | None]
    pinned: list[Tensor | None]

    def fit(self, host: Sequence[Tensor], cuda: Cuda) -> None:
        """Allocate missing targets, and replace each target whose shape or dtype differs from the tensor to copy."""
        for index, tensor in enumerate(host):
            if index == len(self.targets):
                self.targets.append(cuda.empty(tensor))
                self.sources.append(None)
            elif not _alike(self.targets[index], tensor):
                self.targets[index] = cuda.empty(tensor)


class _Writeable:
    """An array interface that presents a read-only array's memory as writeable, for callers that do not write."""

    def __init__(self, array: Array) -> None:
        address, _ = array.__array_interface__["data"]
        self.__array_interface__ = {**array.__array_interface__, "data": (address, False)}
        self._array = array  # the owner of the memory


def as_numpy(actions: object) -> object:
    """Convert a tensor, or the tensors in a tuple or list, to arrays; return any other actions unchanged.

    A tensor on the CPU becomes a view. A tensor on any other device is copied, which waits for its computation.
    Gradients are dropped. Raises ActionError for a tensor that NumPy cannot read.
    """
    if type(actions) is np.ndarray or "torch" not in sys.modules:
        return actions
    tensor_type = sys.modules["torch"].Tensor
    if isinstance(actions, tensor_type):
        return _array(actions)
    if not isinstance(actions, (tuple, list)):
        return actions
    for part in actions:
        if isinstance(part, tensor_type):
            parts = [_array(part) if isinstance(part, tensor_type) else part for part in actions]
            return parts if isinstance(actions, list) else tuple(parts)
    return actions


def _array(tensor: Tensor) -> Array:
    try:
        array: Array = tensor.detach().cpu().numpy()
        return array
    except (TypeError, RuntimeError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ActionError(
            f"actions are a tensor that NumPy cannot read ({tensor.dtype}, {tensor.layout}, on {tensor.device}): "
            f"{reason}; send a dense tensor of a dtype that both have, such as actions.float() or actions.long()"
        ) from None


def _alike(first: Tensor, second: Tensor) -> bool:
    return bool(first.shape == second.shape and first.dtype == second.dtype)


def imported_torch() -> ModuleType:
    """Return the torch module. Raises MissingExtra if it is not installed."""
    try:
        import torch
    except ImportError as error:
        raise MissingExtra('tensors need torch: pip install "pufferlib[train]"') from error
    return torch
