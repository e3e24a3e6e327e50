"""Policy files: they hold a policy's weights and the arguments of policy and environment, but no code."""

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
POLICY_FILE = "policy.pt"  # the policy that a trainer saves in its run's folder
OURS = {"pufferlib", "ocean", "cuda_ext", "cleanrl_demo", "__main__"}  # a file may name these anywhere


@dataclass(frozen=True)
class Origin:
    """The arguments from which a policy and its environment are created.

    policy, policy_kwargs, frame_stack: as for ``Actor``; the policy must be a name. env: the environment's name, or
    None if it has none. Raises PlanError if policy_kwargs cannot be saved to a file. If the environment's arguments
    cannot be saved, they and the name are dropped, and the environment must be passed to ``load_policy``.
    """

    policy: str = "default"
    policy_kwargs: Mapping[str, Any] = field(default_factory=dict)
    env: str | None = None
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)  # as for ``make``
    wrap_kwargs: Mapping[str, Any] = field(default_factory=dict)  # as for ``make``
    frame_stack: int = 1

    def actor(self, layout: Layout, action_space: gymnasium.Space[Any]) -> Actor:
        """Create an Actor with these arguments for a layout and an action space. Raises the errors of ``Actor``."""
        return Actor(self.policy, layout, action_space, self.frame_stack, **self.policy_kwargs)

    def __post_init__(self) -> None:
        for name in ("policy_kwargs", "env_kwargs", "wrap_kwargs"):
            object.__setattr__(self, name, dict(getattr(self, name)))
        if not is_plain(self.policy_kwargs):
            raise PlanError(f"cannot save policy_kwargs={self.policy_kwargs!r}; use numbers, strings, lists and dicts")
        if not is_plain([self.env_kwargs, self.wrap_kwargs]):
            for name, value in (("env", None), ("env_kwargs", {}), ("wrap_kwargs", {})):
                object.__setattr__(self, name, value)


def is_plain(value: Any) -> bool:
    """Return whether a value consists only of None, booleans, numbers, strings, lists, tuples and dicts."""
    if type(value) is dict:
        return all(map(is_plain, value)) and all(map(is_plain, value.values()))
    if type(value) in (list, tuple):
        return all(map(is_plain, value))
    return value is None or type(value) in (bool, int, float, str)


@dataclass(frozen=True)
class SavedPolicy:
    """The contents of a policy file."""

    path: str  # of the file
    origin: Origin  # the arguments of the policy and its environment
    weights: Mapping[str, Tensor]  # by name

    def actor(self, layout: Layout, action_space: gymnasium.Space[Any]) -> Actor:
        """Create an Actor with the saved weights for a VecEnv's ``observation_layout`` and ``single_action_space``.

        Raises CheckpointError if the saved weights do not fit, and the errors of ``Actor``.
        """
        actor = self.origin.actor(layout, action_space)
        try:
            actor.policy.load_state_dict(dict(self.weights))
        except RuntimeError as error:
            raise misfit(f"{self.path} holds a policy", error) from error
        actor.policy.eval()
        return actor


def misfit(description: str, error: Exception) -> CheckpointError:
    """Return the CheckpointError for weights that do not fit a network.

    description: the beginning of the message, such as "policy.pt holds a policy".
    """
    return CheckpointError(
        f"{description} for other observations or actions, or one from a version of pufferlib with different networks, "
        f"such as those for images among other leaves; train it again: {error}"
    )


def save_policy(path: str | os.PathLike[str], policy: nn.Module, origin: Origin) -> None:
    """Save a policy's weights and its origin to a file that ``torch.load(weights_only=True)`` can read.

    An existing file is replaced atomically.
    """
    save_weights(path, policy.state_dict(), origin)


def save_weights(path: str | os.PathLike[str], weights: Mapping[str, Tensor], origin: Origin) -> None:
    """Save a policy file like ``save_policy``, from a mapping of weights rather than a policy."""
    save_checkpoint(path, POLICY, {**vars(origin), "weights": dict(weights)})


def read_policy(path: str | os.PathLike[str], *, env: Any = None, trust: bool = False) -> SavedPolicy:
    """Read a policy file, or the one in a run's folder. Raises CheckpointError if it is missing, incomplete or invalid.

    A file contains no code but may refer to some, because environment and policy may be given as module:name. The
    caller will import and call that code. Therefore, CheckpointError is also raised for code that neither belongs to
    pufferlib nor is in the current folder, unless ``trust`` is True. env: an environment that the caller uses instead
    of the file's; the environment's name in the file is then not checked.
    """
    if Path(path).is_dir():
        path = Path(path) / POLICY_FILE
        if not path.is_file():
            raise CheckpointError(
                f"the folder {path.parent} has no {POLICY_FILE}: not a run's folder, or its run has learnt nothing"
            )
    content = read_checkpoint(path, POLICY, POLICY_FILE)
    try:
        origin = Origin(**{name: content[name] for name in Origin.__dataclass_fields__})
        saved = SavedPolicy(os.fspath(path), origin, dict(content["weights"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path} does not hold a complete {POLICY} ({error!r}); train it again") from error
    named = [origin.policy, origin.policy_kwargs, origin.env if env is None else None, origin.env_kwargs]
    require_trust(path, named, trust)
    return saved


def require_trust(path: str | os.PathLike[str], named: Any, trust: bool) -> None:
    """Raise CheckpointError if a file refers to code outside pufferlib and the current folder, unless trust is True.

    named: the file's values that may contain such references, "module:name".
    """
    for name in () if trust else _names(named):
        module = name.partition(":")[0]
        if ":" in name and not _is_local(module):
            raise CheckpointError(
                f"{path} names code that is not in the current folder, {name}; if you know where the file comes from, "
                "pass trust=True (--trust) or, if the code is the environment's, pass the environment itself"
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
    """Load the policy in a file, or in a run's folder, as a Player.

    env: a raw environment like the one in training, or a callable or name that creates one; by default, the file's
    environment is created. The Player closes an environment that this function created; the caller has to close one
    that was passed. greedy, seed: as for ``BatchPlayer``. trust: as for ``read_policy``. Raises CheckpointError for an
    invalid file, for weights that do not fit env, and if neither the caller nor the file provides an environment; also
    raises the errors of ``Actor`` and of creating the environment.
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
    """Write plain values and tensors atomically to a file that ``read_checkpoint`` can read.

    kind: the kind of file, such as "pufferlib policy", which ``read_checkpoint`` checks.
    """
    with written_whole(path) as part:
        torch.save({"format": kind, "version": VERSION, "pufferlib": __version__, **content}, part)


def read_checkpoint(path: str | os.PathLike[str], kind: str, name: str) -> dict[str, Any]:
    """Read a file written by ``save_checkpoint``, without running any code in it.

    Tensors are on the CPU and memory-mapped, so they are read from disk when they are used. kind: the expected kind of
    file. name: the name of such files in a run's folder, for error messages. Raises CheckpointError if the file is
    missing, is incomplete, contains code, or is of the wrong kind or version.
    """
    if not Path(path).is_file():
        raise CheckpointError(f"there is no file {path}; a trainer's run folder has {name}")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # damaged files make torch raise any exception
        reason = str(error).partition("\n")[0]
        if "mmap" in reason:  # torch's message for truncated files and those that it did not write
            reason = f"torch did not write it, or wrote only a part; such files are called {name}"
        if "weights only" in reason.lower():  # torch would explain how to run such code
            reason = "it contains code, which is not run"
        raise CheckpointError(f"{path} does not hold a complete {kind} ({reason}); train it again") from error
    if not isinstance(content, dict) or content.get("format") != kind:
        raise CheckpointError(f"{path} is not a {kind}; such files are called {name}")
    if content.get("version") != VERSION:
        raise CheckpointError(
            f"{path} has version {content.get('version')} of the format, which pufferlib {content.get('pufferlib')} "
            f"wrote; pufferlib {__version__} reads version {VERSION}: install pufferlib {content.get('pufferlib')}"
        )
    return content
