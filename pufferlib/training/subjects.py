"""The subject of an evaluation: a policy, from a file or by its name, and the environment that it plays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from pufferlib import registry
from pufferlib.errors import CheckpointError, PlanError, RegistryError
from pufferlib.models import Actor, SavedPolicy, read_policy
from pufferlib.models.files import POLICY_FILE
from pufferlib.training.runs import saying_where

__all__ = ["Subject"]


@dataclass(frozen=True)
class Saved:
    """A policy file's policy, whose errors name the folder of the file."""

    policy: SavedPolicy
    folder: Path

    def actor(self, layout: Any, action_space: Any) -> Actor:
        """Create the Actor, as ``SavedPolicy.actor`` does."""
        with saying_where(self.folder):
            return self.policy.actor(layout, action_space)


@dataclass(frozen=True)
class Untrained:
    """A policy with random weights. policy, policy_kwargs: as for ``Actor``. seed: the seed of the weights."""

    policy: str
    policy_kwargs: Mapping[str, Any]
    seed: int

    def actor(self, layout: Any, action_space: Any) -> Actor:
        """Create the Actor. Raises the errors of ``Actor``."""
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(self.seed)  # a network draws its weights from torch's generator
            return Actor(self.policy, layout, action_space, **self.policy_kwargs)


@dataclass(frozen=True)
class Subject:
    """A policy and the environment in which to evaluate it. policy: a description of the policy.

    source: a function of the evaluation's seed that returns the policy, as ``pufferlib.evaluate`` takes it.
    """

    policy: str
    source: Callable[[int], Any]
    env: Any
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    wrap_kwargs: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        target: str | Path,
        policy: str | None = None,
        policy_kwargs: Mapping[str, Any] | None = None,
        env: Any = None,
        env_kwargs: Mapping[str, Any] | None = None,
        wrap_kwargs: Mapping[str, Any] | None = None,
        trust: bool = False,
    ) -> Subject:
        """Return the subject for a policy's file or a run's folder, or for an environment and the name of a policy.

        target: the file, the folder or the environment. policy: only if the target is an environment; "random" or
        module:Class. policy_kwargs: the arguments of this class. env: the environment to use instead of the file's; the
        file's ``env_kwargs`` are then ignored. env_kwargs, wrap_kwargs: added to the file's arguments; they override
        arguments of the same name. trust: see ``read_policy``.

        Raises CheckpointError if there is no readable policy. Raises PlanError if the target is a Python program, if
        there is no policy for an environment, or if arguments do not go together. Raises RegistryError if the file's
        environment is not found.
        """
        kwargs, wrapping = dict(env_kwargs or {}), dict(wrap_kwargs or {})
        path = Path(target)
        if path.is_dir() and not (path / POLICY_FILE).exists() and ":" not in path.name:
            raise CheckpointError(f"the folder {path} has no {POLICY_FILE}: it is not a run's, or the run saved none")
        path = path / POLICY_FILE if path.is_dir() else path
        if path.suffix == ".py" and path.is_file():
            raise PlanError(
                f"{path} is a program, and no policy; name the folder of a run or its {POLICY_FILE}, or an environment "
                f"that the program makes, {path.stem}:function, and a policy to play it"
            )
        if not path.is_file() and path.suffix != ".pt":
            return cls._by_name(env or target, policy, policy_kwargs or {}, kwargs, wrapping)
        if policy is not None or policy_kwargs:
            raise PlanError(f"policy={policy!r}, but {path} has a policy of its own; name an environment instead")
        saved_policy = read_policy(path, env=env, trust=trust)
        if env is None:
            if saved_policy.origin.env is None:
                raise CheckpointError(f"{path} does not name the environment; name it: --env module:function")
            kwargs = {**saved_policy.origin.env_kwargs, **kwargs}
            with saying_where(path.parent):
                registry.creator(saved_policy.origin.env)

        wrapping = {**saved_policy.origin.wrap_kwargs, **wrapping}
        saved = Saved(saved_policy, path.parent)
        return cls(str(path), lambda seed: saved, saved_policy.origin.env if env is None else env, kwargs, wrapping)

    @classmethod
    def _by_name(
        cls,
        env: Any,
        policy: str | None,
        policy_kwargs: Mapping[str, Any],
        env_kwargs: Mapping[str, Any],
        wrap_kwargs: Mapping[str, Any],
    ) -> Subject:
        if policy == "random" and policy_kwargs:
            raise PlanError(f"policy='random' takes no arguments, and there are {', '.join(policy_kwargs)}")
        if policy is None:
            try:
                registry.find(str(env))
            except RegistryError as error:
                raise CheckpointError(f"there is no file or run's folder {env}, and {error}") from error
            raise PlanError(f"no policy for {env}; pass --policy random, --policy module:Class, or a run's folder")

        def source(seed: int) -> Any:
            return policy if policy == "random" else Untrained(policy, policy_kwargs, seed)

        return cls(policy, source, env, env_kwargs, wrap_kwargs)
