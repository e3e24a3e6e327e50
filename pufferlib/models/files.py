"""Policies in files: weights, how the policy was made, and for what; no code."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
import torch
from torch import Tensor, nn

from pufferlib import registry
from pufferlib.emulation import emulate
from pufferlib.errors import CheckpointError, PlanError
from pufferlib.files import written_whole
from pufferlib.layout import Layout
from pufferlib.models.acting import Actor, Player
from pufferlib.version import __version__

__all__ = [
    "Origin",
    "SavedPolicy",
    "is_plain",
    "load_policy",
    "read_checkpoint",
    "read_policy",
    "save_checkpoint",
    "save_policy",
]

VERSION = 1
POLICY = "pufferlib policy"


@dataclass(frozen=True)
class Origin:
    """How a policy was made, and for what.

    policy, policy_kwargs, frame_stack: as ``Actor`` takes them, the policy by name. env: a name; None if it has none.
    Raises PlanError for arguments of the policy that a file cannot hold. Those of the environment are not in the file
    then, nor is its name, so that ``load_policy`` has to be given it.
    """

    policy: str = "default"
    policy_kwargs: Mapping[str, Any] = field(default_factory=dict)
    env: str | None = None
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    wrap_kwargs: Mapping[str, Any] = field(default_factory=dict)
    frame_stack: int = 1

    def actor(self, layout: Layout, action_space: gymnasium.Space[Any]) -> Actor:
        """Return a policy made so, for these observations and actions. Raises as ``Actor`` does."""
        return Actor(self.policy, layout, action_space, self.frame_stack, **self.policy_kwargs)

    def __post_init__(self) -> None:
        if not is_plain(self.policy_kwargs):
            raise PlanError(f"policy_kwargs={self.policy_kwargs!r} can't be kept; use numbers, texts, lists and dicts")
        if not is_plain([self.env_kwargs, self.wrap_kwargs]):
            for name, value in (("env", None), ("env_kwargs", {}), ("wrap_kwargs", {})):
                object.__setattr__(self, name, value)


def is_plain(value: Any) -> bool:
    """Whether a value is made of numbers, texts, lists and dicts alone, which files can hold without code."""
    if isinstance(value, Mapping):
        return all(map(is_plain, value)) and all(map(is_plain, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(is_plain, value))
    return value is None or type(value) in (bool, int, float, str)


@dataclass(frozen=True)
class SavedPolicy:
    """What a policy's file holds. path: of it."""

    path: str
    origin: Origin
    weights: Mapping[str, Tensor]

    def actor(self, layout: Layout, action_space: gymnasium.Space[Any]) -> Actor:
        """Return the policy, for a VecEnv's ``observation_layout`` and ``single_action_space``.

        Raises CheckpointError where it was trained on others.
        """
        actor = self.origin.actor(layout, action_space)
        try:
            actor.policy.load_state_dict(dict(self.weights))
        except RuntimeError as error:
            raise CheckpointError(f"{self.path} holds a policy for other observations or actions: {error}") from error
        actor.policy.eval()
        return actor


def save_policy(path: str | os.PathLike[str], policy: nn.Module, origin: Origin) -> None:
    """Write a policy's weights, and how it was made, to a file that ``torch.load(weights_only=True)`` reads.

    A file that is there already is replaced, and whole at any time.
    """
    save_checkpoint(path, POLICY, {**asdict(origin), "weights": policy.state_dict()})


def read_policy(path: str | os.PathLike[str]) -> SavedPolicy:
    """Return what a policy's file holds. Raises CheckpointError for what is no such file. No code comes out of it."""
    kept = read_checkpoint(path, POLICY, "policy.pt")
    origin = Origin(**{name: kept[name] for name in Origin.__dataclass_fields__})
    return SavedPolicy(os.fspath(path), origin, kept["weights"])


def load_policy(
    path: str | os.PathLike[str], env: Any = None, *, greedy: bool = False, seed: int | None = None
) -> Player:
    """Return the policy of a file, at play.

    env: a raw environment such as the policy was trained on, which stays yours; or what makes one. By default the one
    that the file names is made. greedy, seed: as ``BatchPlayer`` has them. Raises CheckpointError for what is no such
    file, or does not fit env, and what making the environment raises. A policy class of yours is imported by name.
    """
    saved = read_policy(path)
    origin = saved.origin
    if env is None and origin.env is None:
        raise CheckpointError(f"{path} does not name the environment; pass one: load_policy(path, env)")
    given: Any = origin.env if env is None else env
    owned = isinstance(given, (str, type)) or not hasattr(given, "step")
    rows = emulate(registry.creator(given)(**origin.env_kwargs) if owned else given, **origin.wrap_kwargs)
    try:
        actor = saved.actor(rows.observation_layout, rows.action_space)
        return Player(actor, rows, owned=owned, greedy=greedy, seed=seed)
    except BaseException:
        if owned:
            rows.close()
        raise


def save_checkpoint(path: str | os.PathLike[str], kind: str, content: Mapping[str, Any]) -> None:
    """Write plain values and tensors, whole or not at all, to a file that ``read_checkpoint`` reads. kind: of file."""
    with written_whole(path) as part:
        torch.save({"format": kind, "version": VERSION, "pufferlib": __version__, **content}, part)


def read_checkpoint(path: str | os.PathLike[str], kind: str, name: str) -> dict[str, Any]:
    """Return what ``save_checkpoint`` wrote, tensors on the CPU; nothing in the file is run.

    name: of such files in a run's folder, for the errors. Raises CheckpointError for a file that is not there, not
    whole, of another kind, or of another version.
    """
    if not Path(path).is_file():
        raise CheckpointError(f"there is no file {path}; a trainer's run folder has {name}")
    try:
        kept = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged files make torch raise whatever comes
        reason = str(error).partition("\n")[0]
        if "weights only" in reason.lower():  # torch goes on to tell how to run such code all the same
            reason = "there is code in it, which is not run"
        raise CheckpointError(f"{path} holds no {kind}, or not all of one ({reason}); train it again") from error
    if not isinstance(kept, dict) or kept.get("format") != kind:
        raise CheckpointError(f"{path} is no {kind}; those are called {name}")
    if kept.get("version") != VERSION:
        raise CheckpointError(
            f"{path} has version {kept.get('version')} of the format, as pufferlib {kept.get('pufferlib')} writes it; "
            f"pufferlib {__version__} reads version {VERSION}: install the other one"
        )
    return kept
