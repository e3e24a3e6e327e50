"""Data-parallel training: processes that play environments of their own each, and learn as one from all of them.

    torchrun --nproc-per-node 2 -m cleanrl_demo.ppo_cuda --env tag/grid

What a process adds to a sum goes through ``total``: the number of rows that count, gradients, losses. So a step is that
of one process with all the rows, up to rounding. NCCL carries it between GPUs, one a process, gloo between CPUs.
"""

from __future__ import annotations

import contextlib
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
from cleanrl_demo.runs import read_run
from pufferlib.errors import PlanError

__all__ = ["alike", "joined", "require_alone", "total"]


@contextlib.contextmanager
def joined(config: Any, plan: Callable[[Any], int]) -> Iterator[Any]:
    """Be one of the processes that torchrun has started, and yield this one's settings; alone, those that are given.

    ``num_envs`` and ``seed`` become this process's share; only the first process shows and writes anything. plan: says
    for num_envs="auto" how many environments this process has room for; each has as many as the one with the least.
    """
    world_size = int(os.environ.get("WORLD_SIZE", 1))
    if world_size == 1:
        yield replace(config, num_envs=plan(config)) if config.num_envs == AUTO else config
        return
    rank, on_gpu = int(os.environ["RANK"]), torch.device(config.device).type == "cuda"
    own: dict[str, Any] = {"device": f"cuda:{os.environ['LOCAL_RANK']}" if on_gpu else config.device}
    if config.num_envs == AUTO:  # before processes wait for each other, which trials that fail would not come to
        own["num_envs"] = plan(replace(config, **own))
    elif config.num_envs < world_size:
        raise PlanError(f"num_envs={config.num_envs} is less than the {world_size} processes; use more")
    else:
        own["num_envs"] = config.num_envs * (rank + 1) // world_size - config.num_envs * rank // world_size
    if rank:
        seed = int(np.random.SeedSequence([config.seed, rank]).generate_state(1)[0])
        own |= {"seed": seed, "runs": None, "track": False, "eval_episodes": 1, "video_envs": ()}
    if on_gpu:
        torch.cuda.set_device(own["device"])
    torch.distributed.init_process_group("nccl" if on_gpu else "gloo")
    if rank:
        sys.stdout = open(os.devnull, "w")  # to the end of the process, which has nothing more to say
    try:
        if config.num_envs == AUTO:
            least = torch.tensor(own["num_envs"], device=own["device"])
            torch.distributed.all_reduce(least, torch.distributed.ReduceOp.MIN)
            own["num_envs"] = int(least)
        yield replace(config, **own)
    finally:
        torch.distributed.destroy_process_group()


def require_alone(folder: Path) -> None:
    """Raise PlanError unless the run in a folder was one process's, and this is one."""
    if int(os.environ.get("WORLD_SIZE", 1)) > 1 or read_run(folder).get("processes", 1) > 1:
        raise PlanError(
            f"{folder} cannot be resumed by several processes, or where several have begun it: its checkpoint has one "
            f"process's share; begin anew: torchrun … --config {folder}/config.json has its settings"
        )


def total(tensor: Tensor) -> Tensor:
    """Make a tensor the sum of those that all processes have, and return it."""
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(tensor)
    return tensor


def alike(tensor: Tensor) -> None:
    """Make a tensor what the first process has."""
    if torch.distributed.is_initialized():
        torch.distributed.broadcast(tensor, 0)
