"""What comes of a run: episodes as they end, and what to tell at the end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import nn

from pufferlib.models import Actor

NUMBERS = (int, float, np.integer, np.floating, np.bool_)  # a bool is an int


class Episode(NamedTuple):
    """A finished episode: the return is summed over agents; the score is their mean, None where there is none.

    env_id: of the environment; where environments are vectorized already, the agent id of the copy.
    """

    env_id: int
    episodic_return: float
    length: int
    score: float | None
    cut: bool = False  # an evaluation's max_steps has ended it


@dataclass(frozen=True)
class Result:
    """What came of a run; ``seconds`` are of training alone, which began at the Unix time ``began``.

    ``episodes`` are of the evaluation after it.
    """

    actor: Actor
    num_steps: int
    began: float
    seconds: float
    episodes: list[Episode]
    run_folder: Path | None

    @property
    def policy(self) -> nn.Module:
        """The network."""
        return self.actor.policy

    @property
    def mean_return(self) -> float:
        """Mean return of the evaluation."""
        return float(np.mean([episode.episodic_return for episode in self.episodes]))

    @property
    def score(self) -> float | None:
        """Mean score of the evaluation; None where the environment reports none."""
        return mean_score(self.episodes)


class Episodes:
    """Picks finished episodes out of infos, where agents may have reported their scores before the last step."""

    def __init__(self, by_copy: bool = False) -> None:
        """by_copy: environments are vectorized already, and the copies in them are told apart."""
        self.key = "agent_id" if by_copy else "env_id"
        self.scores: dict[int, list[float]] = defaultdict(list)  # by environment, of the episode under way

    def in_batch(self, infos: Iterable[Mapping[str, Any]]) -> list[Episode]:
        """Return the episodes that ended in a batch with these infos."""
        for info in infos:
            if "restarted" in info:  # the episode came to nothing, and so do the scores of those who left it early
                for env_id in list(self.scores) if self.key not in info else [info[self.key]]:
                    self.scores[env_id] = []
            if isinstance(info.get("score"), NUMBERS):
                self.scores[info[self.key]].append(float(info["score"]))
        ended = []
        for info in infos:
            if info.get("env") is True and "episode" in info:  # ours: users may have an "env" of their own
                env_id, scores = info[self.key], self.scores[info[self.key]]
                score = float(np.mean(scores)) if scores else None
                ended.append(Episode(env_id, info["episode"]["r"], info["episode"]["l"], score))
                self.scores[env_id] = []
        return ended

    def cut(self, env_id: int, episodic_return: float, length: int) -> Episode:
        """Return the episode that an environment is in the middle of, as it is to be given up."""
        scores, self.scores[env_id] = self.scores[env_id], []
        return Episode(env_id, episodic_return, length, float(np.mean(scores)) if scores else None, True)


def mean_score(episodes: Iterable[Episode]) -> float | None:
    """Return the mean score of the episodes that have one, None if none has."""
    scores = [episode.score for episode in episodes if episode.score is not None]
    return float(np.mean(scores)) if scores else None


def charts(episodes: Iterable[Episode]) -> dict[str, float]:
    """Return mean return, length and score of episodes, by their TensorBoard names."""
    if not episodes:
        return {}
    score = mean_score(episodes)
    return {
        "charts/episodic_return": float(np.mean([episode.episodic_return for episode in episodes])),
        "charts/episodic_length": float(np.mean([episode.length for episode in episodes])),
        **({} if score is None else {"charts/score": score}),
    }


def summary(config: Any, result: Result) -> str:
    """Return what to tell at the end of a run: how good the policy is, how long it took, what to try next."""
    score = "" if result.score is None else f"score {result.score:.3f}, "
    lines = [
        f"{config.env}: {score}mean return {result.mean_return:.3f} over {len(result.episodes):,} fresh episodes, "
        f"after {result.num_steps:,} steps in {result.seconds:.1f} s of training",
    ]
    if result.run_folder is not None:
        lines += [
            f"Curves: tensorboard --logdir {result.run_folder}",
            f"See it play: puffer eval {result.run_folder} --watch",
        ]
    return "\n".join([*lines, *([NEXT] if config.env == "ocean/squared" else [])])


NEXT = """\
Try next:
  puffer train MiniGrid-Empty-8x8-v0               an environment of others (pip install "pufferlib[minigrid]")
  puffer train ocean/squared --backend serial      the same, stepped in one process; or multiprocessing
  puffer check my_module:my_env_creator            is yours ready?"""
