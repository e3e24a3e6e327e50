"""Batches as torch tensors: over the very memory that environments wrote, or on a device, copied without waiting.

The one file that knows torch. It is imported when tensors are asked for, and no earlier.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from pufferlib.errors import ActionError, MissingExtra, PlanError, SpaceError

__all__ = ["Tensors", "as_numpy", "imported_torch", "tensors_of"]

Array = np.ndarray[Any, Any]
KEPT = 64  # keys whose tensors are kept: more than a VecEnv has blocks


class Tensors:
    """Makes tensors of a batch's arrays, again and again the same arrays.

    device: a name, or a torch.device.
        None, "cpu" or "host": tensors share the arrays' memory, and are valid as long as the arrays are.
        "cuda", "cuda:1", …: tensors are copies in device memory, made on a stream of their own. ``of`` returns at once;
        what the caller's current stream does afterwards waits, on the device, for the copy. They are valid until the
        second ``of`` after this one. The arrays must stay as they are until the copy has passed, for which
        ``finish(key)`` waits. Memory that was given to ``pin`` is copied from where it lies, other arrays by way of
        pinned buffers.
        Another ("mps"): tensors are copies that torch has made before ``of`` returns.
    copy: tensors are valid for good.

    Raises MissingExtra without torch, PlanError for a device that is not there.
    """

    def __init__(self, device: Any = None, *, copy: bool = False, cuda: Cuda | None = None) -> None:
        self._torch = imported_torch()
        self.clone = self._torch.Tensor.clone  # what copies a tensor
        self._copy = copy
        self._cuda = cuda
        self.device = self._found(device)
        self._known: OrderedDict[Hashable, tuple[Sequence[Array], tuple[Any, ...]]] = OrderedDict()
        self._buffers = [_Buffers([], [], []) for _ in range(2)]  # by turns: a batch is valid until the one after next
        self._buffer_index = 0
        self._passes: dict[Hashable, Any] = {}  # the event after which a key's arrays may change
        self._staged: list[Any] = [None, None]  # the event after which a turn's pinned buffers may change
        self._pinned: list[tuple[int, int]] = []  # addresses of registered memory: start, end

    def _found(self, device: Any) -> Any:
        torch = self._torch
        try:
            found = torch.device("cpu" if device is None or device == "host" else device)
            if found.type == "cuda" and self._cuda is None:
                count = torch.cuda.device_count()  # makes no CUDA context, so that workers may still fork
                if (found.index or 0) >= count:
                    raise RuntimeError(f"torch {torch.__version__} sees {count} CUDA devices")
            elif self._cuda is None:
                torch.empty(0, device=found)
        except (RuntimeError, TypeError, AssertionError, NotImplementedError) as error:
            reason = str(error).splitlines()[0]
            raise PlanError(f"device={device!r} cannot be used: {reason}; leave device out for the CPU") from None
        return found

    def check(self, space: gymnasium.Space[Any]) -> None:
        """Raise SpaceError unless torch has the dtype of a flat observation space, on this device."""
        dtype = np.dtype(space.dtype)
        try:
            host = self._torch.from_numpy(np.zeros(0, dtype))
            if self.device.type != "cuda":
                host.to(self.device)
        except (TypeError, ValueError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
            raise SpaceError(
                f"observations of {dtype} cannot be tensors of torch {self._torch.__version__} on {self.device}: "
                f"{reason}; leave as_torch and device out, or have the environment observe in another dtype"
            ) from None

    def of(self, key: Hashable, arrays: Sequence[Array]) -> tuple[Any, ...]:
        """Return a tensor for each array.

        key: names the memory, say the number of a block. Tensors are kept under it, and made anew for those of its
        arrays that are other objects than last time. Read-only arrays must never change.
        """
        host = self.views(key, arrays)
        if self.device.type == "cpu":
            return tuple([tensor.clone() for tensor in host]) if self._copy else host
        if self.device.type == "cuda":
            return self._copied(key, arrays, host)
        return tuple([tensor.to(self.device) for tensor in host])

    def views(self, key: Hashable, arrays: Sequence[Array]) -> tuple[Any, ...]:
        """Return tensors over the arrays' memory, kept and made as those of ``of``."""
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
        if len(self._known) > KEPT:  # keys that do not come again must not keep memory that nobody else needs
            self._known.popitem(last=False)
        return tensors

    def pin(self, memory: Any) -> bool:
        """Have CUDA copy straight from this memory (a buffer, such as an array or an mmap), until ``close``.

        Return False where there is no CUDA device to copy to, or the system refuses: copies then take one step more.
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
        """Return the keys whose arrays are still being copied. Asks; waits for nothing."""
        return [key for key, event in self._passes.items() if not event.query()]

    def finish(self, key: Hashable) -> None:
        """Return once the arrays of this key may be written again; at once where their copy has passed."""
        event = self._passes.pop(key, None)
        if event is not None and not event.query():
            event.synchronize()

    def close(self) -> None:
        """Wait for the copies under way and let go of all memory. What ``of`` returned stays as it is."""
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

    def _over(self, array: Array) -> Any:
        """Return a tensor over an array's memory; of a read-only one too, of which torch would warn."""
        return self._torch.from_numpy(array if array.flags.writeable else np.asarray(_Writeable(array)))

    def _copied(self, key: Hashable, arrays: Sequence[Array], host: tuple[Any, ...]) -> tuple[Any, ...]:
        """Start copying to the device, and return where to."""
        cuda = self._device()
        self._buffer_index ^= 1
        turn = self._buffer_index
        buffers = _Buffers([], [], []) if self._copy else self._buffers[turn]
        buffers.fit(host, cuda)
        cuda.begin()
        direct = staged = False
        for index, (array, source, target) in enumerate(zip(arrays, host, buffers.targets, strict=True)):
            if not array.flags.writeable and buffers.sources[index] is array:
                continue  # it is there already
            buffers.sources[index] = None if array.flags.writeable else array
            if self._is_pinned(array):
                direct = True
            else:
                source = self._staging(turn, index, source, first=not staged)
                staged = True
            cuda.copy(source, target)
        event = cuda.record()
        if direct:
            self._passes[key] = event
        if staged:
            self._staged[turn] = event
        return tuple(buffers.targets)

    def _staging(self, turn: int, index: int, source: Any, *, first: bool) -> Any:
        """Return a pinned copy of a tensor. Its buffer was last read two batches ago."""
        if first and self._staged[turn] is not None:
            if not self._staged[turn].query():
                self._staged[turn].synchronize()  # the device is two batches behind
            self._staged[turn] = None
        pinned = self._buffers[turn].pinned
        while len(pinned) <= index:
            pinned.append(None)
        if pinned[index] is None or not _alike(pinned[index], source):
            pinned[index] = self._device().pinned(source)
        return pinned[index].copy_(source)

    def _is_pinned(self, array: Array) -> bool:
        start = array.__array_interface__["data"][0]
        return any(low <= start and start + array.nbytes <= high for low, high in self._pinned)

    def _device(self) -> Cuda:
        if self._cuda is None:
            self._cuda = Cuda(self._torch, self.device)
        return self._cuda


def tensors_of(as_torch: bool | None, device: Any, *, copy: bool) -> Tensors | None:
    """Return what makes tensors of batches; None where they are to be arrays.

    as_torch: None asks for tensors where a device is named. With False a device means nothing to workers on CPUs, but
    has to be one. Raises as Tensors does.
    """
    if device is None or (device == "host" and as_torch is not None):
        return Tensors(copy=copy) if as_torch else None
    tensors = Tensors(device, copy=copy)
    return tensors if as_torch is None or as_torch else None


class Cuda:
    """Streams, events and copies of one device: all that ``Tensors`` asks of CUDA."""

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch = torch
        self._device = torch.device("cuda", torch.cuda.current_device()) if device.index is None else device
        self._stream = torch.cuda.Stream(self._device)

    def register(self, address: int, nbytes: int) -> bool:
        """Lock host memory in place for copies by the device; False where the system refuses."""
        torch = self._torch
        with torch.cuda.device(self._device):
            portable = 1  # to all devices of this process
            if int(torch.cuda.cudart().cudaHostRegister(address, nbytes, portable)) == 0:
                return True
            try:
                torch.zeros(1, device=self._device)  # torch's next kernel is told of that error: let it be this one
            except RuntimeError:
                pass
        return False

    def unregister(self, address: int) -> None:
        """Unlock what ``register`` has locked."""
        self._torch.cuda.cudart().cudaHostUnregister(address)

    def pinned(self, like: Any) -> Any:
        """Return a new tensor in pinned host memory."""
        return self._torch.empty_like(like, pin_memory=True)

    def empty(self, like: Any) -> Any:
        """Return a new tensor in device memory, for copies to write."""
        tensor = self._torch.empty_like(like, device=self._device)
        tensor.record_stream(self._stream)  # whoever drops it early: the memory is in use until the copy has passed
        return tensor

    def begin(self) -> None:
        """Have the copies that follow wait for what the caller has queued, which may still read the old content."""
        self._stream.wait_stream(self._torch.cuda.current_stream(self._device))

    def copy(self, source: Any, target: Any) -> None:
        """Queue a copy from pinned host memory."""
        with self._torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)

    def record(self) -> Any:
        """Return the event that all copies so far have passed, and have what the caller queues next wait for it."""
        event = self._torch.cuda.Event()
        event.record(self._stream)
        self._torch.cuda.current_stream(self._device).wait_event(event)
        return event


class _Buffers(NamedTuple):
    """Memory of one batch: on the device a target for each array, what read-only array it holds, pinned on the way."""

    targets: list[Any]
    sources: list[Any]
    pinned: list[Any]

    def fit(self, host: Sequence[Any], cuda: Cuda) -> None:
        """Make the targets as large as these tensors, where they are not."""
        for index, tensor in enumerate(host):
            if index == len(self.targets):
                self.targets.append(cuda.empty(tensor))
                self.sources.append(None)
            elif not _alike(self.targets[index], tensor):
                self.targets[index] = cuda.empty(tensor)


class _Writeable:
    """The memory of a read-only array without the lock, for those who know that nobody writes."""

    def __init__(self, array: Array) -> None:
        address, _ = array.__array_interface__["data"]
        self.__array_interface__ = {**array.__array_interface__, "data": (address, False)}
        self._array = array  # whose memory it is


def as_numpy(actions: Any) -> Any:
    """Return actions with arrays in place of tensors: of one tensor, or those in a tuple or list; all else as it is.

    A tensor on the CPU is viewed, one on a device copied, which waits for what computes it. Gradients end here.
    Raises ActionError for a tensor that NumPy cannot read.
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


def _array(tensor: Any) -> Any:
    try:
        return tensor.detach().cpu().numpy()
    except (TypeError, RuntimeError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ActionError(
            f"actions are a tensor that NumPy cannot read ({tensor.dtype}, {tensor.layout}, on {tensor.device}): "
            f"{reason}; send a dense tensor of a dtype that both have, say actions.float() or actions.long()"
        ) from None


def _alike(first: Any, second: Any) -> bool:
    return bool(first.shape == second.shape and first.dtype == second.dtype)


def imported_torch() -> Any:
    """Return the module. Raises MissingExtra without it."""
    try:
        import torch
    except ImportError as error:
        raise MissingExtra('tensors need torch: pip install "pufferlib[train]"') from error
    return torch
