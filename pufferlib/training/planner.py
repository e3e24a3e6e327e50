"""The number of environments that fit in memory: predicted from trials with few environments, then verified.

    puffer train tag/grid --algorithm ppo_cuda --num-envs auto

The memory that an environment takes (its state, its rows, its columns of a rollout, its share of a minibatch's
activations) is measured. To compute it instead, all shapes would have to be written down a second time. One trial plays
whole iterations with few environments, another with twice as many; the difference is the memory of the environments
added. The number that should fit in most of the free memory is then tried, and halved until an iteration completes. All
memory is released between trials.
"""

from __future__ import annotations

import gc
import math
import os
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pufferlib.errors import PlanError
from pufferlib.util.memory import memory_at_hand, memory_text

__all__ = ["Account", "Needs", "as_many_as_fit", "free_nbytes", "measured"]

SHARE = 0.8  # of free memory, to plan with: allocators round up, and a run's report and evaluation come on top
# Rows of a trial for the prediction: with fewer, the memory that grows with them is lost in the memory that all share.
SAMPLE_ROWS = 4096

Trial = Callable[[int], None]  # plays like a run with this number of environments, and keeps nothing


@dataclass(frozen=True)
class Needs:
    """A run's memory needs: the bytes that all environments share, and the bytes that each environment adds."""

    shared_nbytes: float
    per_env_nbytes: float

    def nbytes(self, num_envs: int) -> float:
        """Return the bytes that ``num_envs`` environments need."""
        return self.shared_nbytes + self.per_env_nbytes * num_envs

    def num_envs(self, nbytes: float) -> int:
        """Return the number of environments that fit in ``nbytes``, possibly 0."""
        return max(0, math.floor((nbytes - self.shared_nbytes) / self.per_env_nbytes))

    def __str__(self) -> str:
        return f"{amount(self.per_env_nbytes)} for each and {amount(self.shared_nbytes)} for all"


def as_many_as_fit(
    trial: Trial, device: str, rows_per_env: int, most: int, *, free: float | None = None, share: float = SHARE
) -> tuple[int, Needs]:
    """Return the number of environments that fit on a device, at most ``most``, and a run's memory needs.

    The number is predicted from small trials, then halved until a trial with it fits. trial: a function that runs
    iterations with a given number of environments. rows_per_env: one environment's rows in a rollout. free: the
    available bytes; by default, all the bytes that are free now. share: the fraction of these bytes to plan with.
    Raises PlanError if not even two environments fit.
    """
    free = free_nbytes(device) if free is None else free
    budget = share * free
    needs = measured(trial, device, max(1, -(-SAMPLE_ROWS // rows_per_env)), budget)
    predicted = min(most, needs.num_envs(budget))
    for num_envs in halved(predicted):
        if most_nbytes(trial, num_envs, device, budget) is not None:
            return num_envs, needs
    message = f"no environment fits into {amount(budget)}, {share:.0%} of the {amount(free)} that are free on {device}"
    raise PlanError(f"num_envs=auto: {message}: they take {needs}; use a smaller network or a shorter rollout_length")


def measured(trial: Trial, device: str, num_envs: int, budget: float) -> Needs:
    """Return a run's memory needs, from a trial with ``num_envs`` environments and a trial with twice as many.

    If either trial exceeds ``budget`` bytes, both are repeated with half as many environments. Raises PlanError if not
    even two environments fit, since nothing can be predicted then.
    """
    for few in halved(num_envs):
        once, twice = (most_nbytes(trial, number, device, budget) for number in (few, 2 * few))
        if once is not None and twice is not None:
            per_env = max(1.0, (twice - once) / few)
            return Needs(max(0.0, once - per_env * few), per_env)
    raise PlanError(
        f"num_envs=auto: not even two environments fit into {amount(budget)} on {device}; use a smaller network or a "
        "shorter rollout_length, or num_envs=1"
    )


def halved(number: int) -> Iterator[int]:
    """Yield a number and its successive halves, rounded down, the last being 1. Yields nothing for 0."""
    while number:
        yield number
        number //= 2


def most_nbytes(trial: Trial, num_envs: int, device: str, budget: float) -> int | None:
    """Run a trial, and return its peak memory in bytes, or None if it ran out of memory or exceeded the budget.

    On a GPU, memory that the trial no longer uses is returned to the device.
    """
    on_gpu = torch.device(device).type == "cuda"
    try:
        if on_gpu:
            before, reserved = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
            torch.cuda.reset_peak_memory_stats(device)
            trial(num_envs)
            most: int = torch.cuda.max_memory_allocated(device) - before
            # A graph keeps the memory of the captured iteration, which counts as reserved, not as allocated.
            if torch.cuda.memory_reserved(device) - reserved > budget:
                return None
        else:  # the host kills processes that use too much memory, so a trial ends at the budget
            with Account(budget) as account:
                trial(num_envs)
            most = account.most_nbytes
        return most if most <= budget else None
    except Exception as error:
        if not ran_out(error):
            raise
    finally:
        if on_gpu:
            gc.collect()
            torch.cuda.empty_cache()
    return None


def ran_out(error: BaseException | None) -> bool:
    """Return whether an error, or one in its chain of causes, means that memory ran out.

    If memory runs out during a graph's capture, the capture raises another error, whose context is the original error.
    """
    while error is not None:
        if isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "DefaultCPUAllocator" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def free_nbytes(device: str) -> float:
    """Return the free bytes of a device.

    For the CPU, these are the bytes available on this machine, divided by the number of processes that torchrun started
    on it.
    """
    if torch.device(device).type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    return memory_at_hand() / int(os.environ.get("LOCAL_WORLD_SIZE", 1))


def amount(nbytes: float) -> str:
    """Return an amount of memory as text: in KiB below 1 MiB, else in MiB or GiB."""
    return memory_text(nbytes) if nbytes >= 2**20 else f"{nbytes / 2**10:.1f} KiB"


class Account(TorchDispatchMode):
    """A context manager that tracks the memory of the tensors that operations in its block return.

    nbytes: the memory of those tensors that are still alive. most_nbytes: the largest value of ``nbytes`` so far. An
    operation that brings ``nbytes`` above ``limit`` raises torch.OutOfMemoryError.
    """

    def __init__(self, limit: float = math.inf) -> None:
        TorchDispatchMode.__init__(self)
        self.limit = limit
        self.nbytes = self.most_nbytes = 0
        self._storages: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._count(leaf.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, nbytes = id(storage), storage.nbytes()
        if key in self._storages:  # a view, or an output written in place
            return
        self._storages.add(key)
        weakref.finalize(storage, self._freed, key, nbytes).atexit = False
        self.nbytes += nbytes
        self.most_nbytes = max(self.most_nbytes, self.nbytes)
        if self.nbytes > self.limit:
            raise torch.OutOfMemoryError(f"{amount(self.nbytes)} are more than {amount(self.limit)}")

    def _freed(self, key: int, nbytes: int) -> None:
        self._storages.discard(key)
        self.nbytes -= nbytes
