"""PolicyPool: frozen policies with permanent ids, and learners, whose current weights can be frozen."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium
import torch
from torch import Tensor, nn

from pufferlib.errors import CallError, CheckpointError, PlanError
from pufferlib.layout import Layout
from pufferlib.models import Actor, Origin, read_policy
from pufferlib.models.files import misfit, save_weights
from pufferlib.models.making import require_known, require_made_by, require_shapes
from pufferlib.util.files import written_whole

__all__ = ["INDEX", "Content", "Entry", "PolicyPool"]

INDEX = "pool.json"
FORMAT = "pufferlib policy pool"
VERSION = 1

Content = tuple[Origin, Mapping[str, Tensor]]  # a policy's origin and weights


@dataclass(frozen=True)
class Entry:
    """A pool's record of a policy, without its weights.

    id: 0, 1, … for frozen policies, and -1, -2, … for learners. seat: the seat that the policy plays; None if it can
    play any. digest: the SHA-256 of its origin and weights in hexadecimal; "" for a learner that was added as an actor,
    because an actor's weights may change at any time.
    """

    id: int
    seat: str | None
    digest: str


@dataclass
class LearnerRecord:
    """A pool's record of a learner.

    actor: the actor with the learner's weights; None if the pool itself stores the weights. version, state: see
    ``PolicyPool.publish``.
    """

    entry: Entry
    origin: Origin
    actor: Actor | None = None
    version: int = 0
    state: Any = None


class PolicyPool:
    """A collection of policies by id. A frozen policy keeps its id and its weights, and is never removed.

    Policies with the same origin and weights share storage, in memory and on disk. A learner has an id below 0 and only
    one version of its weights, the current one; ``freeze`` appends a frozen copy of it. A learner's weights are either
    those of an actor, which may change at any time, or a copy that changes only when new ones are published.

    folder: the folder to which each frozen policy is written when it is added, and from which ``open`` can read it; by
    default, policies are kept only in memory. Raises CallError if the folder already contains a pool.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self._folder = None if folder is None else Path(folder)
        self._trust = False
        self._entries: list[Entry] = []
        self._learners: dict[int, LearnerRecord] = {}
        self._last_learner = 0  # ids are never reused
        self._contents: dict[str, Content] = {}  # by digest; read when first needed
        if self._folder is not None:
            if (self._folder / INDEX).exists():
                raise CallError(f"{self._folder} already contains a pool; open it with PolicyPool.open(folder)")
            self._folder.mkdir(parents=True, exist_ok=True)
            self._write_index()

    @classmethod
    def copied(cls, entries: Sequence[Entry], learners: Sequence[Entry], kept: Mapping[str, Content]) -> PolicyPool:
        """Return an in-memory copy of another pool, with all of its entries and some of its contents.

        entries: the entries of the frozen policies. learners: the entries of the learners, with the digests of their
        current contents. kept: contents (origins and weights) by digest; policies whose contents are missing cannot be
        played.
        """
        pool = cls()
        pool._entries, pool._contents = list(entries), dict(kept)
        for entry in learners:
            pool._learners[entry.id] = LearnerRecord(entry, kept[entry.digest][0] if entry.digest in kept else Origin())
            pool._last_learner = min(pool._last_learner, entry.id)
        return pool

    @classmethod
    def open(cls, folder: str | os.PathLike[str], *, trust: bool = False, num: int | None = None) -> PolicyPool:
        """Open the pool in a folder, to read its policies and add others; learners are not stored there.

        num: how many policies to keep; later ones are ignored, and their ids are given to policies that are added. By
        default, all are kept. trust: see ``read_policy``. Weights are read, and compared with their digests, when they
        are first needed. Raises CheckpointError if the folder contains no valid pool, or fewer than ``num`` policies.
        """
        pool = cls()
        pool._folder, pool._trust = Path(folder), trust
        try:
            index = json.loads((pool._folder / INDEX).read_text())
            if (index["format"], index["version"]) != (FORMAT, VERSION):
                raise ValueError(f"format {index['format']!r}, version {index['version']!r}")
            pool._entries = [_entry(number, row) for number, row in enumerate(index["policies"])][:num]
            if num is not None and len(pool._entries) < num:
                raise ValueError(f"{len(pool._entries)} policies, not {num}")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{folder} holds no {FORMAT} ({error!r})") from error
        return pool

    def add(self, policy: nn.Module | Actor | Mapping[str, Tensor], origin: Origin, seat: str | None = None) -> int:
        """Append a frozen copy of a policy, or of its weights, and return its id.

        origin: the arguments with which the policy was created. seat: the name of the seat that it plays; by default,
        it can play any. Raises PlanError if the policy has the wrong type, or if its class, or the names or shapes of
        its weights, differ from those that are expected for the origin. What is expected is inferred from the policy
        itself and from an earlier policy with the same origin and seat, as far as possible.
        """
        digest = self._store(self._checked(policy, origin, seat), origin)
        if self._folder is not None and not self._path(digest).exists():
            save_weights(self._path(digest), self._contents[digest][1], origin)
        self._entries.append(Entry(len(self._entries), seat, digest))
        if self._folder is not None:
            self._write_index()
        return self._entries[-1].id

    def add_learner(self, policy: Actor | Mapping[str, Tensor], origin: Origin, seat: str | None = None) -> int:
        """Add a policy that continues to learn, and return its id.

        policy: an actor, whose current weights are always used; or weights, which are copied and used until new weights
        are published. origin, seat: see ``add``. Raises PlanError like ``add``.
        """
        weights = self._checked(policy, origin, seat)
        self._last_learner -= 1
        actor, digest = (policy, "") if isinstance(policy, Actor) else (None, self._store(weights, origin))
        entry = Entry(self._last_learner, seat, digest)
        self._learners[self._last_learner] = LearnerRecord(entry, copy.deepcopy(origin), actor)
        return self._last_learner

    def freeze(self, learner: int) -> int:
        """Append a frozen copy of a learner's current version, and return the copy's id."""
        record = self._learner(learner)
        return self.add(self._content(learner)[1], record.origin, record.entry.seat)

    def publish(self, learner: int, weights: Mapping[str, Tensor] | None = None, state: Any = ...) -> int:
        """Increment a learner's version and return it; also set the learner's weights and state, if they are passed.

        state: anything else that is needed to continue training the learner, such as an optimiser's state, or None; the
        pool takes ownership. If state is omitted, the previous one stays. Raises PlanError for an id that is not a
        learner's, and for weights whose names or shapes differ from the learner's.
        """
        record = self._learner(learner)
        if weights is not None and (record.actor is not None or record.entry.digest in self._contents):
            require_shapes(weights, self._content(learner)[1], f"learner {learner} has")
        if weights is not None and record.actor is not None:
            record.actor.policy.load_state_dict(dict(weights))
        elif weights is not None:
            old_entry, record.entry = record.entry, replace(record.entry, digest=self._store(weights, record.origin))
            self._release(old_entry.digest)
        if state is not ...:
            record.state = state
        record.version += 1
        return record.version

    def version(self, learner: int) -> int:
        """Return how often ``publish`` has been called for a learner."""
        return self._learner(learner).version

    def state(self, learner: int) -> Any:
        """Return a copy of the training state that was last published for a learner; None if there is none."""
        return copy.deepcopy(self._learner(learner).state)

    def drop(self, learner: int) -> None:
        """Remove a learner, and release its actor or stored weights. The learner's id is never reused."""
        entry = self._learner(learner).entry
        del self._learners[learner]
        self._release(entry.digest)

    def __len__(self) -> int:
        """Return the number of frozen policies."""
        return len(self._entries)

    def __getitem__(self, policy: int) -> Entry:
        """Return a policy's entry. Raises PlanError for an unknown id."""
        if policy in self._learners:
            return self._learners[policy].entry
        if not 0 <= policy < len(self._entries):
            raise PlanError(f"no policy has id {policy}: {len(self._entries)} are frozen, {len(self._learners)} learn")
        return self._entries[policy]

    def of(self, seat: str | None) -> tuple[int, ...]:
        """Return the ids of the frozen policies that can play a seat, in the order in which they were added."""
        return tuple(entry.id for entry in self._entries if entry.seat in (seat, None))

    def learners(self) -> tuple[int, ...]:
        """Return the ids of the learners, in the order in which they were added."""
        return tuple(self._learners)

    def weights(self, policy: int) -> dict[str, Tensor]:
        """Return a copy of a policy's weights, on the CPU or, for a learner that is an actor, on the actor's device."""
        return {name: value.detach().clone() for name, value in self._content(policy)[1].items()}

    def origin(self, policy: int) -> Origin:
        """Return a copy of a policy's origin, the arguments with which it was created."""
        return copy.deepcopy(self._content(policy)[0])

    def actor(self, policy: int, layout: Layout, action_space: gymnasium.Space[Any]) -> Actor:
        """Return an actor for a policy: for a learner that was added as an actor, that actor; otherwise a new one.

        A new actor has a copy of the policy's weights, in evaluation mode and without gradients. layout, action_space:
        the ``observation_layout`` and ``single_action_space`` of the VecEnv for which a new actor is created. Raises
        CheckpointError if the weights do not fit them.
        """
        actor = self._actor(policy)
        if actor is not None:
            return actor
        actor = self.origin(policy).actor(layout, action_space)
        try:
            actor.policy.load_state_dict(self.weights(policy))
        except RuntimeError as error:
            raise misfit(f"policy {policy} is", error) from error
        actor.policy.eval().requires_grad_(False)
        return actor

    def _learner(self, policy: int) -> LearnerRecord:
        if policy >= 0:
            raise PlanError(f"policy {policy} is frozen; a learner's id is below 0")
        return self._learners[self[policy].id]

    def _actor(self, policy: int) -> Actor | None:
        return self._learners[policy].actor if policy in self._learners else None

    def _content(self, policy: int) -> Content:
        """Return a policy's origin and weights without copying them; callers must not change them."""
        actor = self._actor(policy)
        if actor is not None:
            return self._learners[policy].origin, actor.policy.state_dict()
        return self._read(self[policy].digest)

    def _checked(self, policy: Any, origin: Origin, seat: str | None) -> Mapping[str, Tensor]:
        """Check a policy that is being added, and return its weights without copying. Raises PlanError like ``add``."""
        module = policy.policy if isinstance(policy, Actor) else policy
        if isinstance(module, nn.Module):
            require_made_by(module, origin.policy, origin.policy_kwargs)
            weights: Mapping[str, Tensor] = module.state_dict()
        elif isinstance(module, Mapping):
            require_known(origin.policy)
            weights = module
        else:
            raise PlanError(f"policy={policy!r:.80} is no policy; pass a torch.nn.Module, an Actor or a state dict")
        match = self._matching_entry(origin, seat)
        if match is not None:
            require_shapes(
                weights, self._contents[match.digest][1], f"policy {match.id}, of the same origin and seat, has"
            )
        return weights

    def _matching_entry(self, origin: Origin, seat: str | None) -> Entry | None:
        """Return the entry of the newest frozen policy with this origin and seat whose weights are in memory.

        Returns None if there is none. Of the origin, only the arguments that determine the network are compared.
        """
        recipe = (origin.policy, origin.policy_kwargs, origin.frame_stack)
        for entry in reversed(self._entries):
            if entry.seat == seat and entry.digest in self._contents:
                other = self._contents[entry.digest][0]
                if (other.policy, other.policy_kwargs, other.frame_stack) == recipe:
                    return entry
        return None

    def _store(self, weights: Mapping[str, Tensor], origin: Origin) -> str:
        """Store a copy of a policy's origin and weights in memory, and return the digest of the two."""
        copies = {name: value.detach().to("cpu", copy=True) for name, value in weights.items()}
        digest = digest_of(origin, copies)
        self._contents.setdefault(digest, (copy.deepcopy(origin), copies))
        return digest

    def _release(self, digest: str) -> None:
        """Remove the content with this digest from memory if no policy uses it any more."""
        learner_entries = (record.entry for record in self._learners.values())
        if all(entry.digest != digest for entry in (*self._entries, *learner_entries)):
            self._contents.pop(digest, None)

    def _read(self, digest: str) -> Content:
        if digest not in self._contents:
            if self._folder is None:
                raise PlanError("this policy's weights did not come with the task; add its id to the task's policies")
            saved = read_policy(self._path(digest), trust=self._trust)
            weights = {name: value.clone() for name, value in saved.weights.items()}
            if digest_of(saved.origin, weights) != digest:
                raise CheckpointError(f"{saved.path} is not what was written there: its content has another digest")
            self._contents[digest] = (saved.origin, weights)
        return self._contents[digest]

    def _path(self, digest: str) -> Path:
        assert self._folder is not None
        return self._folder / f"{digest}.pt"

    def _write_index(self) -> None:
        assert self._folder is not None
        rows = [[entry.seat, entry.digest] for entry in self._entries]
        with written_whole(self._folder / INDEX) as part:
            part.write_text(json.dumps({"format": FORMAT, "version": VERSION, "policies": rows}))


def digest_of(origin: Origin, weights: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of a policy's origin and weights, in hexadecimal."""
    digest = hashlib.sha256(json.dumps(vars(origin), sort_keys=True).encode())
    for name in sorted(weights):
        value = weights[name].detach().cpu().contiguous()
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _entry(number: int, row: Any) -> Entry:
    """Parse an entry of the index. Raises ValueError or TypeError if the seat or the digest is invalid.

    The digest must be checked because it becomes part of a path.
    """
    seat, digest = row
    if not (seat is None or isinstance(seat, str)) or not re.fullmatch("[0-9a-f]{64}", digest):
        raise ValueError(f"{row!r} is no policy's seat and digest")
    return Entry(number, seat, digest)
