"""Policies in files: weights, how the policy was made, and for what; no code."""

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
POLICY_FILE = "policy.pt"  # of a trainer, in its run's folder
OURS = {"pufferlib", "ocean", "cuda_ext", "cleanrl_demo", "__main__"}  # modules that a file may name wherever they lie


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
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)  # as ``make`` takes them
    wrap_kwargs: Mapping[str, Any] = field(default_factory=dict)  # as ``make`` takes them
    frame_stack: int = 1

    def actor(self, layout: Layout, action_space: gymnasium.Space[Any]) -> Actor:
        """Return a policy made so, for these observations and actions. Raises as ``Actor`` does."""
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
    """Whether a value is made of numbers, texts, lists and dicts alone, which files can hold without code."""
    if type(value) is dict:
        return all(map(is_plain, value)) and all(map(is_plain, value.values()))
    if type(value) in (list, tuple):
        return all(map(is_plain, value))
    return value is None or type(value) in (bool, int, float, str)


@dataclass(frozen=True)
class SavedPolicy:
    """What a policy's file holds."""

    path: str  # of the file
    origin: Origin  # how it was made, and for what
    weights: Mapping[str, Tensor]  # by name

    def actor(self, layout: Layout, action_space: gymnasium.Space[Any]) -> Actor:
        """Return the policy, for a VecEnv's ``observation_layout`` and ``single_action_space``.

        Raises CheckpointError where it was trained on others.
        """
        actor = self.origin.actor(layout, action_space)
        try:
            actor.policy.load_state_dict(dict(self.weights))
        except RuntimeError as error:
            raise misfit(f"{self.path} holds a policy", error) from error
        actor.policy.eval()
        return actor


def misfit(held: str, error: Exception) -> CheckpointError:
    """Return the error of weights that a network does not take. held: what they are."""
    return CheckpointError(
        f"{held} for other observations or actions, or of a pufferlib whose networks were made otherwise, as those for "
        f"images among other leaves were; train it again: {error}"
    )


def save_policy(path: str | os.PathLike[str], policy: nn.Module, origin: Origin) -> None:
    """Write a policy's weights, and its origin, to a file that ``torch.load(weights_only=True)`` reads.

    A file that is there already is replaced, and whole at any time.
    """
    save_weights(path, policy.state_dict(), origin)


def save_weights(path: str | os.PathLike[str], weights: Mapping[str, Tensor], origin: Origin) -> None:
    """Write such a file of a policy that is not there, but its weights are."""
    save_checkpoint(path, POLICY, {**vars(origin), "weights": dict(weights)})


def read_policy(path: str | os.PathLike[str], *, env: Any = None, trust: bool = False) -> SavedPolicy:
    """Return what a policy's file holds, or the one of a run's folder. Raises CheckpointError for what is no such file.

    A file has no code, but names some: the environment and the policy may be module:name of one's own. Where these do
    not lie in the current folder, as one's own do, it takes ``trust``, for they are going to be imported and called.
    env: of the caller's, in place of the file's.
    """
    if Path(path).is_dir():
        path = Path(path) / POLICY_FILE
        if not path.is_file():
            raise CheckpointError(
                f"the folder {path.parent} has no {POLICY_FILE}: it is no run's, or that has learnt nothing"
            )
    kept = read_checkpoint(path, POLICY, POLICY_FILE)
    try:
        origin = Origin(**{name: kept[name] for name in Origin.__dataclass_fields__})
        saved = SavedPolicy(os.fspath(path), origin, dict(kept["weights"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path} holds no whole {POLICY} ({error!r}); train it again") from error
    named = [origin.policy, origin.policy_kwargs, origin.env if env is None else None, origin.env_kwargs]
    require_trust(path, named, trust)
    return saved


def require_trust(path: str | os.PathLike[str], named: Any, trust: bool) -> None:
    """Raise CheckpointError where a file's values name code elsewhere than in the current folder. trust: never do."""
    for name in () if trust else _names(named):
        module = name.partition(":")[0]
        if ":" in name and not _lies_here(module):
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


def _lies_here(module: str) -> bool:
    top = module.partition(".")[0]
    if top in OURS:
        return True
    try:
        spec = find_spec(top)
    except (ImportError, ValueError):
        return False
    if spec is None:
        return True  # nothing can come of it but an error
    places = [*(spec.submodule_search_locations or ()), *([spec.origin] if spec.has_location and spec.origin else ())]
    here = Path.cwd().resolve()
    found = [Path(place).resolve() for place in places]
    return bool(found) and all(here in place.parents and "site-packages" not in place.parts for place in found)


def load_policy(
    path: str | os.PathLike[str],
    env: Any = None,
    *,
    greedy: bool = False,
    seed: int | None = None,
    trust: bool = False,
) -> Player:
    """Return the policy of a file, or of a run's folder, at play.

    env: a raw environment such as the policy was trained on, which stays yours; or what makes one. By default the one
    that the file names is made. greedy, seed: as ``BatchPlayer`` has them; trust: as ``read_policy``. Raises
    CheckpointError for what is no such file, or does not fit env, and what making the environment raises.
    """
    saved = read_policy(path, env=env, trust=trust)
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
    """Return what ``save_checkpoint`` wrote, tensors on the CPU, read as they are used; nothing in the file is run.

    name: of such files in a run's folder, for the errors. Raises CheckpointError for a file that is not there, not
    whole, of another kind, or of another version.
    """
    if not Path(path).is_file():
        raise CheckpointError(f"there is no file {path}; a trainer's run folder has {name}")
    try:
        kept = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # damaged files make torch raise whatever comes
        reason = str(error).partition("\n")[0]
        if "mmap" in reason:  # which is torch's word for files that are none of its own, or end in the middle
            reason = f"torch did not write it, or not to its end; those are called {name}"
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
