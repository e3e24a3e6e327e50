"""Policies in files: the weights, the policy's arguments and its environment; no code."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium
import torch
from torch import Tensor, nn

from pufferlib import registry
from pufferlib.emulation import emulate
from pufferlib.errors import CheckpointError, PlanError
from pufferlib.layout import Layout
from pufferlib.models.inference import Actor, Player
from pufferlib.util.files import written_whole
from pufferlib.version import __version__

__all__ = [
    "Origin",
    "SavedPolicy",
    "is_plain",
    "load_policy",
    "misfit",
    "read_checkpoint",
    "read_policy",
    "save_checkpoint",
    "save_policy",
    "save_weights",
]

VERSION = 1
POLICY = "pufferlib policy"
POLICY_FILE = "policy.pt"  # a trainer's, in its run's folder
OURS = {"pufferlib", "ocean", "cuda_ext", "cleanrl_demo", "__main__"}  # modules that a file may name in any location


@dataclass(frozen=True)
class Origin:
    """The arguments of a policy and of its environment.

    policy, policy_kwargs, frame_stack: those of ``Actor``, the policy by name. env: a name; None if it has none.
    Raises PlanError for arguments of the policy that a file cannot hold. If a file cannot hold those of the
    environment, it has neither them nor the name, and ``load_policy`` needs the environment.
    """

    policy: str = "default"
    policy_kwargs: Mapping[str, Any] = field(default_factory=dict)
    env: str | None = None
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)  # those of ``make``
    wrap_kwargs: Mapping[str, Any] = field(default_factory=dict)  # those of ``make``
    frame_stack: int = 1

    def actor(self, layout: Layout, action_space: gymnasium.Space[Any]) -> Actor:
        """Return such a policy for these observations and actions. Raises what ``Actor`` raises."""
        return Actor(self.policy, layout, action_space, self.frame_stack, **self.policy_kwargs)

    def __post_init__(self) -> None:
        for name in ("policy_kwargs", "env_kwargs", "wrap_kwargs"):
            object.__setattr__(self, name, dict(getattr(self, name)))
        if not is_plain(self.policy_kwargs):
            raise PlanError(f"policy_kwargs={self.policy_kwargs!r} can't be kept; use numbers, texts, lists and dicts")
        if not is_plain([self.env_kwargs, self.wrap_kwargs]):
            for name, value in (("env", None), ("env_kwargs", {}), ("wrap_kwargs", {})):
                object.__setattr__(self, name, value)


def is_plain(value: Any) -> bool:
    """Return whether a value consists of numbers, texts, lists and dicts, which files can hold without code."""
    if type(value) is dict:
        return all(map(is_plain, value)) and all(map(is_plain, value.values()))
    if type(value) in (list, tuple):
        return all(map(is_plain, value))
    return value is None or type(value) in (bool, int, float, str)


@dataclass(frozen=True)
class SavedPolicy:
    """The content of a policy's file."""

    path: str  # of the file
    origin: Origin  # the arguments of the policy and its environment
    weights: Mapping[str, Tensor]  # by name

    def actor(self, layout: Layout, action_space: gymnasium.Space[Any]) -> Actor:
        """Return the policy, for a VecEnv's ``observation_layout`` and ``single_action_space``.

        Raises CheckpointError if it was trained on others.
        """
        actor = self.origin.actor(layout, action_space)
        try:
            actor.policy.load_state_dict(dict(self.weights))
        except RuntimeError as error:
            raise misfit(f"{self.path} holds a policy", error) from error
        actor.policy.eval()
        return actor


def misfit(description: str, error: Exception) -> CheckpointError:
    """Return the error for weights that do not fit a network. description: of the weights."""
    return CheckpointError(
        f"{description} for other observations or actions, or of a pufferlib whose networks were made otherwise, as "
        f"those for images among other leaves were; train it again: {error}"
    )


def save_policy(path: str | os.PathLike[str], policy: nn.Module, origin: Origin) -> None:
    """Write a policy's weights, and its origin, to a file that ``torch.load(weights_only=True)`` reads.

    An existing file is replaced atomically.
    """
    save_weights(path, policy.state_dict(), origin)


def save_weights(path: str | os.PathLike[str], weights: Mapping[str, Tensor], origin: Origin) -> None:
    """Write a policy's file from its weights alone."""
    save_checkpoint(path, POLICY, {**vars(origin), "weights": dict(weights)})


def read_policy(path: str | os.PathLike[str], *, env: Any = None, trust: bool = False) -> SavedPolicy:
    """Return the content of a policy's file, or of the one in a run's folder. Raises CheckpointError for other files.

    A file has no code, but may name some: the environment and the policy may be the user's module:name. Such code is
    going to be imported and called, so it needs ``trust`` unless it is in the current folder. env: the caller's, in
    place of the file's.
    """
    if Path(path).is_dir():
        path = Path(path) / POLICY_FILE
        if not path.is_file():
            raise CheckpointError(
                f"the folder {path.parent} has no {POLICY_FILE}: it is no run's, or that has learnt nothing"
            )
    content = read_checkpoint(path, POLICY, POLICY_FILE)
    try:
        origin = Origin(**{name: content[name] for name in Origin.__dataclass_fields__})
        saved = SavedPolicy(os.fspath(path), origin, dict(content["weights"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path} holds no whole {POLICY} ({error!r}); train it again") from error
    named = [origin.policy, origin.policy_kwargs, origin.env if env is None else None, origin.env_kwargs]
    require_trust(path, named, trust)
    return saved


def require_trust(path: str | os.PathLike[str], named: Any, trust: bool) -> None:
    """Raise CheckpointError if a file's values name code outside of the current folder, unless ``trust``."""
    for name in () if trust else _names(named):
        module = name.partition(":")[0]
        if ":" in name and not _is_local(module):
            raise CheckpointError(
                f"{path} names code that is not in the current folder, {name}; if you know where the file comes from, "
                "pass trust=True (--trust), or the environment itself where it is that"
            )


def _names(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _names(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _names(part)


def _is_local(module: str) -> bool:
    top = module.partition(".")[0]
    if top in OURS:
        return True
    try:
        spec = find_spec(top)
    except (ImportError, ValueError):
        return False
    if spec is None:
        return True  # its import can only fail
    paths = [*(spec.submodule_search_locations or ()), *([spec.origin] if spec.has_location and spec.origin else ())]
    current_folder = Path.cwd().resolve()
    resolved = [Path(path).resolve() for path in paths]
    return bool(resolved) and all(
        current_folder in path.parents and "site-packages" not in path.parts for path in resolved
    )


def load_policy(
    path: str | os.PathLike[str],
    env: Any = None,
    *,
    greedy: bool = False,
    seed: int | None = None,
    trust: bool = False,
) -> Player:
    """Return a Player of the policy in a file, or in a run's folder.

    env: a raw environment like that of the training, which the caller has to close; or a callable or name that makes
    one. By default the file's environment is made. greedy, seed: those of ``BatchPlayer``; trust: that of
    ``read_policy``. Raises CheckpointError for other files and for a policy that does not fit env, and what making the
    environment raises.
    """
    saved = read_policy(path, env=env, trust=trust)
    origin = saved.origin
    if env is None and origin.env is None:
        raise CheckpointError(f"{path} does not name the environment; pass one: load_policy(path, env)")
    source: Any = origin.env if env is None else env
    owned = isinstance(source, (str, type)) or not hasattr(source, "step")
    rows = emulate(registry.creator(source)(**origin.env_kwargs) if owned else source, **origin.wrap_kwargs)
    try:
        actor = saved.actor(rows.observation_layout, rows.action_space)
        return Player(actor, rows, owned=owned, greedy=greedy, seed=seed)
    except BaseException:
        if owned:
            rows.close()
        raise


def save_checkpoint(path: str | os.PathLike[str], kind: str, content: Mapping[str, Any]) -> None:
    """Write plain values and tensors atomically to a file that ``read_checkpoint`` reads. kind: of file."""
    with written_whole(path) as part:
        torch.save({"format": kind, "version": VERSION, "pufferlib": __version__, **content}, part)


def read_checkpoint(path: str | os.PathLike[str], kind: str, name: str) -> dict[str, Any]:
    """Return the content of a file of ``save_checkpoint``, tensors on the CPU, read on use; no code in it is run.

    name: of such files in a run's folder, for the errors. Raises CheckpointError for a file that is missing,
    incomplete, of another kind, or of another version.
    """
    if not Path(path).is_file():
        raise CheckpointError(f"there is no file {path}; a trainer's run folder has {name}")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # damaged files make torch raise any exception
        reason = str(error).partition("\n")[0]
        if "mmap" in reason:  # torch's message for files of others, and for truncated ones
            reason = f"torch did not write it, or not to its end; those are called {name}"
        if "weights only" in reason.lower():  # torch would explain how to run such code
            reason = "there is code in it, which is not run"
        raise CheckpointError(f"{path} holds no {kind}, or not all of one ({reason}); train it again") from error
    if not isinstance(content, dict) or content.get("format") != kind:
        raise CheckpointError(f"{path} is no {kind}; those are called {name}")
    if content.get("version") != VERSION:
        raise CheckpointError(
            f"{path} has version {content.get('version')} of the format, as pufferlib {content.get('pufferlib')} "
            f"writes it; pufferlib {__version__} reads version {VERSION}: install the other one"
        )
    return content
