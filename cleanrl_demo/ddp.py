"""Data-parallel training: processes that play environments of their own each, and learn as one from all of them.

    torchrun --nproc-per-node 2 -m cleanrl_demo.ppo_cuda --env tag/grid

What a process adds to a sum goes through ``total``: the number of rows that count, gradients, losses. So a step is that
of one process with all the rows, up to rounding. NCCL carries it between GPUs, one a process, gloo between CPUs.

A checkpoint has what all have in common once, and of each process what is its own: the states of its generators. Its
environments' seeds follow from its rank.
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

from cleanrl_demo.planner import AUTO
from cleanrl_demo.runs import command_to_resume, num_processes, read_run
from pufferlib.errors import CheckpointError, PlanError

__all__ = ["alike", "gathered", "is_first", "joined", "of_this_rank", "require_as_many", "several", "total"]


@contextlib.contextmanager
def joined(config: Any, plan: Callable[[Any], int]) -> Iterator[tuple[Any, Any]]:
    """Be one of the processes that torchrun has started, and yield this one's settings, and those of all together.

    ``num_envs`` and ``seed`` become this process's share; only the first process shows and writes anything. plan: says
    for num_envs="auto" how many environments this process has room for; each has as many as the one with the least.
    """
    world_size = num_processes()
    if world_size == 1:
        alone = replace(config, num_envs=plan(config)) if config.num_envs == AUTO else config
        yield alone, alone
        return
    rank, on_gpu = int(os.environ["RANK"]), torch.device(config.device).type == "cuda"
    if rank:
        sys.stdout = open(os.devnull, "w")  # to the end of the process, which has nothing to say
    changes: dict[str, Any] = {"device": f"cuda:{os.environ['LOCAL_RANK']}" if on_gpu else config.device}
    if config.num_envs == AUTO:  # before processes wait for each other, which trials that fail would not come to
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
    # Its functions have the group for a default, if there is one: gloo's threads would then outlive the group, and a
    # process that ends while one holds a tensor ends by SIGABRT (pytorch/pytorch#190489). Optimizers import it, too.
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
    """Raise PlanError unless as many processes as began the run in a folder are to go on with it."""
    num_begun, num_running = read_run(folder).get("processes", 1), num_processes()
    if num_begun != num_running:
        raise PlanError(
            f"{folder} was begun by {num_begun} process{'es' if num_begun > 1 else ''}, and this would be "
            f"{num_running}: each goes on with its own environments and random numbers; use "
            f"{command_to_resume(folder, num_begun)}"
        )


def several() -> bool:
    """Whether this process is one of several that learn as one."""
    return torch.distributed.is_initialized()


def is_first() -> bool:
    """Whether this process is the one that shows and writes: alone, or the first of several."""
    return not several() or torch.distributed.get_rank() == 0


def gathered(value: Any) -> Any:
    """Return what each process has, a list by rank, from which ``of_this_rank`` picks; alone, the value itself."""
    if not several():
        return value
    values = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(values, value)
    return values


def of_this_rank(values: Any) -> Any:
    """Return this process's value of those that ``gathered`` returned to as many processes. Raises CheckpointError."""
    if not several():
        return values
    if not isinstance(values, list) or len(values) != torch.distributed.get_world_size():
        raise CheckpointError(
            "the checkpoint lacks the random state of each process; start a new run with its config.json"
        )
    return values[torch.distributed.get_rank()]


def total(tensor: Tensor) -> Tensor:
    """Make a tensor the sum of those that all processes have, and return it."""
    if several():
        torch.distributed.all_reduce(tensor)
    return tensor


def alike(tensor: Tensor) -> None:
    """Make a tensor what the first process has."""
    if several():
        torch.distributed.broadcast(tensor, 0)
