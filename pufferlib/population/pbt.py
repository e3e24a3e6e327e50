"""Population-based training: bad learners copy the weights of good ones and continue with changed settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pufferlib.errors import PlanError
from pufferlib.population.pool import PolicyPool

__all__ = ["Member", "population_based_training"]

MemberSettings = Mapping[str, float]


@dataclass(frozen=True)
class Member:
    """A learner of a population.

    learner: the learner's id in the pool. settings: the settings of its training, such as a learning rate. score: its
    score after its last training; NaN before the first. parent: the id of the learner whose weights it has just copied;
    None if it has kept its weights.
    """

    learner: int
    settings: MemberSettings
    score: float = float("nan")
    parent: int | None = None


def population_based_training(
    pool: PolicyPool,
    settings: Mapping[int, MemberSettings],
    train: Callable[[Member], float],
    *,
    share: float = 0.2,
    factors: Sequence[float] = (0.8, 1.2),
    seed: int | None = None,
) -> Iterator[list[Member]]:
    """Train a population, and yield its members, best first, after each generation, endlessly.

    pool: the pool with the learners; a new version of each is published after each generation. settings: the initial
        settings of each learner, by id.
    train: a function that trains a member's learner for a while, and returns its score; NaN ranks last. If it publishes
        a state for the learner, such as an optimiser's, the pool has this state at the next call. Anything that the
        function stores elsewhere is outdated if the member has a parent. If ``train`` has a method ``train_all``, as
        ``RemoteTraining`` does, the method is called instead, with all members of a generation, and returns their
        scores.

    After each generation, the worst ``share`` of all members, at least one, copy the weights, state and settings of
    members drawn from the best ``share`` (exploit). Each copied setting is then multiplied by one of ``factors``
    (explore). seed: the seed of these draws. Raises PlanError for fewer than two learners, a share outside (0, 0.5], or
    no factors.
    Source: Jaderberg et al., "Population based training of neural networks", 2017.
    """
    if not 0 < share <= 0.5 or len(settings) < 2:
        raise PlanError(
            f"share={share} of {len(settings)} learners: use at least two learners, and a share of at most 0.5"
        )
    if not len(factors):
        raise PlanError("factors is empty; pass at least one factor, such as 1.0, which leaves settings unchanged")
    count = max(1, min(round(share * len(settings)), len(settings) // 2))
    rng = np.random.default_rng(seed)
    members = [Member(learner, dict(values)) for learner, values in settings.items()]
    while True:
        train_all = getattr(train, "train_all", None)
        scores = [train(member) for member in members] if train_all is None else train_all(members)
        members = [replace(member, score=float(score)) for member, score in zip(members, scores, strict=True)]
        for member in members:
            pool.publish(member.learner)
        # A member whose score is NaN ranks last.
        members.sort(key=lambda member: -np.inf if np.isnan(member.score) else member.score, reverse=True)
        yield list(members)
        best, rest = members[:count], members[count : len(members) - count]
        replacements = [
            _replacement(pool, member, best[rng.integers(count)], factors, rng) for member in members[-count:]
        ]
        members = [*(replace(member, parent=None) for member in (*best, *rest)), *replacements]


def _replacement(
    pool: PolicyPool, member: Member, parent: Member, factors: Sequence[float], rng: np.random.Generator
) -> Member:
    pool.publish(member.learner, pool.weights(parent.learner), pool.state(parent.learner))
    settings = {name: value * float(rng.choice(factors)) for name, value in parent.settings.items()}
    return Member(member.learner, settings, parent=parent.learner)
