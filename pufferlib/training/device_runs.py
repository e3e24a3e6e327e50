"""Runs of trainers whose environments are kernels: their settings, processes, and number of environments.

``run`` and ``resumed`` wrap the functions of ``session`` with the same names. They connect the processes that torchrun
started, and find the number of environments if it is "auto".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import pufferlib
from pufferlib.models import PRECISIONS, Origin
from pufferlib.training import session
from pufferlib.training.checkpoints import checkpoint_path
from pufferlib.training.cuda_graphs import GraphedIteration, on_own_stream
from pufferlib.training.ddp import joined, require_as_many
from pufferlib.training.planner import as_many_as_fit, free_nbytes
from pufferlib.training.results import Result
from pufferlib.training.run_config import RunConfig
from pufferlib.training.runs import num_processes
from pufferlib.training.session import environments, origin_of, torch_set_up
from pufferlib.training.teams import require_settings, teams_of
from pufferlib.util.memory import memory_text

__all__ = ["DeviceConfig", "num_envs_that_fit", "resumed", "run"]

MakeLearner = Callable[[pufferlib.VecEnv, Origin, Any], Any]
Begin = Callable[[pufferlib.VecEnv, Any, Any], GraphedIteration]


@dataclass(frozen=True)
class DeviceConfig(RunConfig):
    """The settings that all device trainers share. losses: the names of the values that an update returns."""

    losses: ClassVar[tuple[str, ...]]
    plans_num_envs: ClassVar[bool] = True

    env: str = "tag/grid"
    """an environment with a kernel: tag/grid, tag/continuous, ocean/squared, or your own module:KERNEL"""
    backend: str = "cuda"
    """cuda; --device chooses the device"""
    device: str = "cuda"
    """cuda, cuda:1, or host, which runs the kernels on the CPU"""
    num_envs: int | Literal["auto"] = 2000  # type: ignore[assignment]
    """number of environments, or auto: as many as fit in memory without a rollout of more than total_steps; config.json
    has the number"""
    total_steps: int = 50_000_000
    checkpoint_every: int | None = None
    """steps between checkpoints; each checkpoint resets all environments. Another one is written at the end"""
    separate: bool = False
    """a policy for each type of agent (by the agents' names without numbers), instead of one for all"""
    teams: Mapping[str, Any] = field(default_factory=dict)
    """settings by team name: agents (names, or patterns such as tagger_*), learning_rate, schedule,
    entropy_coefficient"""
    rollout_length: int = 32
    """steps of each environment between updates"""
    learning_rate: float = 1e-3
    """learning rate at the start"""
    schedule: str = "linear"
    """schedule of the learning rate: linear or cosine, which fall to 0, constant, or "0:1e-3 2e6:1e-4": rates at these
    steps, with linear interpolation"""
    reward_scale: float = 1.0
    """factor of rewards in training, best such that returns are near 1; reported returns do not change"""
    bootstrap: bool = True
    """add the value of a truncated episode's last observation to its return; otherwise the end of time terminates it"""
    gamma: float = 0.99
    gae_lambda: float = 0.95
    advantage_floor: float = 0.1
    """minimum of the standard deviation by which advantages are divided"""
    entropy_coefficient: float = 0.01
    value_coefficient: float = 0.5
    max_grad_norm: float = 0.5
    precision: str = "float32"
    """dtype in which networks compute: float32 or bfloat16; everything else, such as weights, is float32"""
    tf32: bool = True
    """multiply float32 matrices in TF32 on a GPU, which is faster and rounds their elements to 10 bits of mantissa"""
    graphs: bool = True
    """capture iterations in a CUDA graph; otherwise each operation is launched separately"""

    def __post_init__(self) -> None:
        if self.device in ("host", "cpu"):
            object.__setattr__(self, "device", "cpu")  # what torch calls it
        super().__post_init__()
        self.require("1 or more", lambda value: value >= 1, "rollout_length")
        self.require("0 to 1", lambda value: 0 <= value <= 1, "gamma", "gae_lambda")
        self.require("more than 0", lambda value: value > 0, "advantage_floor", "max_grad_norm", "reward_scale")
        self.require(", ".join(PRECISIONS), lambda value: value in PRECISIONS, "precision")
        self.require("cuda", lambda value: value == "cuda", "backend")
        self.require("None: all environments", lambda value: value in (None, self.num_envs), "batch_size")
        self.require("1: policies here see one observation", lambda value: value == 1, "frame_stack")
        self.require("False: kernels do not report lives", lambda value: not value, "episodic_life")
        self.require("False: an iteration is a CUDA graph", lambda value: not value, "compile")
        require_settings(self)

    def made_as(self) -> tuple[str, Mapping[str, Any]]:
        """Return the policy's name and its keyword arguments. Raises PlanError for ``normalize``."""
        if self.policy_kwargs.get("normalize"):
            wrong = "policy_kwargs has normalize=True, but this trainer does not update its statistics"
            raise pufferlib.PlanError(f"{wrong}; leave it out, or use ppo")
        return super().made_as()

    def rows_per_update(self, vec: pufferlib.VecEnv) -> int:
        """Return the largest number of rows that an update of the smallest team can learn from."""
        teams = teams_of(vec.agent_names or [""] * vec.agents_per_env, self)
        return self.rollout_length * vec.num_envs * min(map(len, teams.values()))


def run(
    config: Any,
    make_learner: MakeLearner,
    learn: Callable[[session.Session, Any, Any], None],
    begin: Begin,
    env: Callable[..., Any] | None = None,
) -> Result:
    """Train policies, evaluate them on fresh seeds, and return the result.

    config: a ``DeviceConfig``. make_learner, learn: as for ``session.run``. begin: as for ``num_envs_that_fit``. env: a
    KernelEnv to use instead of config.env. Raises the errors of ``session.run`` and ``ddp.joined``.
    """

    def plan(local_config: Any) -> int:
        return num_envs_that_fit(local_config, make_learner, begin, env)

    with joined(config, plan) as (local_config, run_config):
        return session.run(local_config, make_learner, learn, env=env, run_config=run_config)


def resumed(
    folder: Path,
    kind: type[Any],
    make_learner: MakeLearner,
    learn: Callable[[session.Session, Any, Any], None],
    env: Any = None,
    total_steps: int | None = None,
    trust: bool = False,
) -> tuple[Any, Result]:
    """Resume the run in a folder, as ``session.resumed`` does; return its settings and its result.

    Raises PlanError if the number of processes is not the same as when the run began.
    """
    require_as_many(checkpoint_path(folder).parent)
    return session.resumed(folder, kind, make_learner, learn, env, total_steps, trust, _joined_as_begun)


def _joined_as_begun(config: Any) -> Any:
    """Return the context manager of ``ddp.joined`` for a resumed run, whose number of environments is known."""
    return joined(config, lambda local_config: int(local_config.num_envs))


def num_envs_that_fit(
    config: Any, make_learner: MakeLearner, begin: Begin, env: Callable[..., Any] | None = None
) -> int:
    """Return the number of environments of this process that fit in the free memory, and print it.

    The number is limited so that one rollout of all processes takes at most ``total_steps`` steps. config: a
    ``DeviceConfig``. make_learner: as for ``session.run``. begin: a function of newly reset environments, a learner and
    settings that returns the run's iteration, which is then called to measure its memory. env: as for ``run``.
    """
    with environments(replace(config, num_envs=1, video_envs=()), env) as vec:
        rows_per_env = vec.agents_per_env * config.rollout_length

    def trial(num_envs: int) -> None:
        trial_config = replace(config, num_envs=num_envs, video_envs=())
        with torch_set_up(trial_config), environments(trial_config, env) as vec:
            learner = make_learner(vec, origin_of(trial_config, env), trial_config)
            vec.async_reset(seed=trial_config.seed)
            with on_own_stream(trial_config.device):
                iterate = begin(vec, learner, trial_config)
                for _ in range(1 + (iterate.eager_calls or 0)):  # the last of them is captured, if any is
                    iterate()

    free = free_nbytes(config.device)
    most = max(1, config.total_steps // (rows_per_env * num_processes()))  # as the processes share total_steps
    num_envs, needs = as_many_as_fit(trial, config.device, rows_per_env, most, free=free)
    where = "" if num_processes() == 1 else " in the first process"
    print(f"num_envs={num_envs}{where}: {needs}; {memory_text(free)} are free, and total_steps is enough for {most}")
    return num_envs
