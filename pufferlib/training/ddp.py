"""Data-parallel training: each process plays its own environments, and all of them train the same policies.

    torchrun --nproc-per-node 2 -m cleanrl_demo.ppo_cuda --env tag/grid

``total`` sums tensors over all processes: the number of valid rows, the moments of the advantages, the gradients, the
losses. A gradient step therefore equals, up to rounding, that of a single process whose minibatch has the rows of all
processes. The sums use NCCL between GPUs, one per process, and gloo between CPUs.

A checkpoint stores the shared state once, and the states of each process's random generators. The seeds of a process's
environments follow from the run's seed and the process's rank.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed
from torch import Tensor

from pufferlib.errors import CheckpointError, PlanError
from pufferlib.training.runs import AUTO, command_to_resume, num_processes, read_run

__all__ = ["alike", "gathered", "is_first", "joined", "of_this_rank", "require_as_many", "several", "total"]


@contextlib.contextmanager
def joined(config: Any, plan: Callable[[Any], int]) -> Iterator[tuple[Any, Any]]:
    """Connect the processes that torchrun started; yield this process's settings and those of the whole run.

    Each process has its share of ``num_envs`` and its own seed; only the first prints and writes files. Without
    torchrun, the process's settings are those of the run. plan: a function that is called with this process's settings
    if num_envs="auto", and returns the number of environments that fit in the process's memory; every process then gets
    the smallest of these numbers. Raises PlanError if there are fewer environments than processes.
    """
    world_size = num_processes()
    if world_size == 1:
        alone = replace(config, num_envs=plan(config)) if config.num_envs == AUTO else config
        yield alone, alone
        return
    rank, on_gpu = int(os.environ["RANK"]), torch.device(config.device).type == "cuda"
    if rank:
        sys.stdout = open(os.devnull, "w")  # until the process ends: only the first one prints
    changes: dict[str, Any] = {"device": f"cuda:{os.environ['LOCAL_RANK']}" if on_gpu else config.device}
    if config.num_envs == AUTO:  # before processes wait for each other: a failed trial would leave the others waiting
        changes["num_envs"] = plan(replace(config, **changes))
    elif config.num_envs < world_size:
        raise PlanError(f"num_envs={config.num_envs} is less than the {world_size} processes; use more")
    else:
        changes["num_envs"] = config.num_envs * (rank + 1) // world_size - config.num_envs * rank // world_size
    if rank:
        seed = int(np.random.SeedSequence([config.seed, rank]).generate_state(1)[0])
        changes |= {"seed": seed, "runs": None, "track": False, "eval_episodes": 1, "video_envs": ()}
    if on_gpu:
        torch.cuda.set_device(changes["device"])
    # If a group exists at this import, functions keep it as a default: gloo's threads would then outlive the group, and
    # a process that ends while one holds a tensor ends by SIGABRT (pytorch/pytorch#190489). Optimizers also import it.
    importlib.import_module("torch.distributed.nn.functional")
    torch.distributed.init_process_group("nccl" if on_gpu else "gloo")
    try:
        if config.num_envs == AUTO:
            least = torch.tensor(changes["num_envs"], device=changes["device"])
            torch.distributed.all_reduce(least, torch.distributed.ReduceOp.MIN)
            changes["num_envs"] = int(least)
            config = replace(config, num_envs=int(least) * world_size)
            print(f"num_envs={config.num_envs}: {int(least)} in each of {world_size} processes")
        yield replace(config, **changes), config
    finally:
        torch.distributed.destroy_process_group()


def require_as_many(folder: Path) -> None:
    """Raise PlanError unless the run in a folder is resumed by as many processes as began it."""
    num_begun, num_running = read_run(folder).get("processes", 1), num_processes()
    if num_begun != num_running:
        raise PlanError(
            f"{folder} was begun by {num_begun} process{'es' if num_begun > 1 else ''}, and this would be "
            f"{num_running}: each goes on with its own environments and random numbers; use "
            f"{command_to_resume(folder, num_begun)}"
        )


def several() -> bool:
    """Return whether this process is one of several that train together."""
    return torch.distributed.is_initialized()


def is_first() -> bool:
    """Return whether this process is the one that prints and writes: the only one, or the first of several."""
    return not several() or torch.distributed.get_rank() == 0


def gathered(value: Any) -> Any:
    """Return all processes' values as a list, ordered by rank; with one process, return the value itself.

    ``of_this_rank`` returns a process's own value from the result.
    """
    if not several():
        return value
    values = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(values, value)
    return values


def of_this_rank(values: Any) -> Any:
    """Return this process's value from what ``gathered`` returned; with one process, return the argument unchanged.

    Raises CheckpointError if there are several processes, and ``values`` does not have one value for each of them.
    """
    if not several():
        return values
    if not isinstance(values, list) or len(values) != torch.distributed.get_world_size():
        raise CheckpointError(
            "the checkpoint lacks the random state of each process; start a new run with its config.json"
        )
    return values[torch.distributed.get_rank()]


def total(tensor: Tensor) -> Tensor:
    """Sum a tensor over all processes in place, and return it."""
    if several():
        torch.distributed.all_reduce(tensor)
    return tensor


def alike(tensor: Tensor) -> None:
    """Overwrite a tensor with the first process's values."""
    if several():
        torch.distributed.broadcast(tensor, 0)
