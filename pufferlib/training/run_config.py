"""The settings that all trainers share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

import pufferlib
from pufferlib.errors import PlanError
from pufferlib.training.runs import AUTO

__all__ = ["RunConfig"]


@dataclass(frozen=True)
class RunConfig:
    """The settings that all trainers share. One step is one action of one agent."""

    algorithm: ClassVar[str]
    plans_num_envs: ClassVar[bool] = False  # whether num_envs="auto" is understood

    env: str = "ocean/squared"
    """name of the environment (`puffer envs` lists them), Gymnasium id, or your own module:callable"""
    backend: str = "pool"
    """serial, multiprocessing or pool"""
    num_envs: int = 32
    num_workers: int | None = None
    """number of worker processes; default: one for each core"""
    batch_size: int | None = None
    """environments in a batch; default: half of num_envs on a pool, else all"""
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """arguments of the environment"""
    wrap_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """arguments of pufferlib.wrap, such as bounds of variable-length spaces"""
    on_error: str = "raise"
    """raise, or restart: replace environments that raise or whose worker dies, and go on"""
    step_timeout: float | None = None
    """seconds that a step may take before its worker is killed; None: no limit"""
    max_restarts: int | None = 3
    """maximum number of restarts of each environment; None: no limit"""
    seed: int = 1
    total_steps: int = 120_000
    policy: str = "default"
    """mlp, cnn, nature, lstm, central, separate, or your own module:Class; default: a CNN for images, else an MLP"""
    policy_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """arguments of the policy, such as hidden_size"""
    frame_stack: int = 1
    """number of recent observations that the policy sees"""
    reward_clip: float | None = None
    """bound on the rewards' magnitude in training; reported returns do not change"""
    episodic_life: bool = False
    """treat a lost life (info["lives"]) as the end of an episode in learning; the episode itself goes on"""
    device: str = "cpu"
    """where the policy learns and acts, such as cuda; environments step on the CPU"""
    torch_threads: int = 1
    """number of threads that torch uses; more than one helps only large networks"""
    compile: bool = False
    """compile networks by torch.compile, which takes up to a minute and may make updates of large minibatches faster"""
    checkpoint_every: int | None = 1_000_000
    """steps between checkpoints; each checkpoint resets all environments. Another one is written at the end"""
    checkpoint_minutes: float | None = 1.0
    """minutes between updates of newest.pt, which saves progress since the checkpoint without resets; None: never"""
    eval_episodes: int = 1000
    eval_greedy: bool = False
    """evaluate with the most likely action instead of a sampled one"""
    runs: str | None = "runs"
    """parent folder of the run's folder; None writes nothing"""
    track: bool = False
    """send configuration and scalars to Weights & Biases; WANDB_MODE=offline writes them only into the run's folder"""
    track_project: str = "pufferlib"
    video_envs: tuple[int, ...] = ()
    """ids of environments to film in training, such as 0; the films are saved in the run's folder, as GIFs"""
    video_every: int = 50_000
    """steps between the starts of two films of an environment"""

    def __post_init__(self) -> None:
        if not isinstance(self.env, str):
            raise PlanError(f"env={self.env!r} is no name; pass a creator as the second argument: train(config, env)")
        num_envs: Any = self.num_envs
        if not (self.plans_num_envs and num_envs == AUTO):
            self.require("1 or more", lambda value: isinstance(value, int) and value >= 1, "num_envs")
        self.require("1 or more", lambda value: value >= 1, "total_steps", "frame_stack")
        self.require("1 or more", lambda value: value >= 1, "torch_threads", "eval_episodes", "video_every")
        self.require("1 or more, or None", lambda value: value is None or value >= 1, "checkpoint_every", "batch_size")
        self.require("0 or more, or None", lambda value: value is None or value >= 0, "checkpoint_minutes")
        self.require("more than 0, or None", lambda value: value is None or value > 0, "reward_clip")
        try:
            torch.device(self.device)
        except (RuntimeError, TypeError) as error:
            raise PlanError(f"device={self.device!r} is none that torch knows; use cpu or cuda") from error

    def require(self, expected: str, fits: Callable[[Any], bool], *names: str) -> None:
        """Raise PlanError unless ``fits`` accepts the value of each named setting.

        expected: the allowed values, for the message.
        """
        for name in names:
            value = getattr(self, name)
            try:
                fine = fits(value)
            except TypeError:  # no number
                fine = False
            if not fine:
                raise PlanError(f"{name}={value!r} is out of bounds; use {expected}")

    def made_as(self) -> tuple[str, Mapping[str, Any]]:
        """Return the policy's name and its keyword arguments."""
        return self.policy, self.policy_kwargs

    def rows_per_update(self, vec: pufferlib.VecEnv) -> int:
        """Return the largest number of rows that an update can learn from.

        The result is meant for trainers with a ``rollout_length``; without this setting, a length of 1 is assumed.
        """
        batch_size = vec.agents_per_batch // vec.agents_per_env
        length: int = getattr(self, "rollout_length", 1)
        return max(1, length * vec.num_envs // batch_size) * vec.agents_per_batch
