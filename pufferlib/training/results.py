"""Results of a run: episodes as they end, and the summary printed at the end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import nn

import pufferlib
from pufferlib.emulation.extra_leaves import type_of_name
from pufferlib.errors import PlanError
from pufferlib.evaluation.episodes import CUT, FAILED
from pufferlib.models import Actor
from pufferlib.vectorization.core.messages import crash_cause
from pufferlib.vectorization.device.episodes import EpisodeStats

RETURN_OF = "charts/return_of/"  # followed by the name of an agent or of a type
MOST_LABELS = 12
EVENTS = "events.out.tfevents.*"  # TensorBoard's files in a run's folder
NUMBERS = (int, float, np.integer, np.floating, np.bool_)  # a bool is an int


class Episode(NamedTuple):
    """A finished episode: its return, summed over agents, and the agents' mean score, or None without scores.

    env_id: the environment's id or, for a copy in an already vectorized environment, the copy's agent id; 0 in
    evaluations of environments that are all alike.
    """

    env_id: int
    episodic_return: float
    length: int
    score: float | None
    cut: bool = False  # whether an evaluation's max_steps ended it
    returns_of: Mapping[str, float] = {}  # by label, if there are several agents: see labels_of


@dataclass(frozen=True)
class Result:
    """The result of a run. began: the Unix time at which training began or was last resumed.

    seconds: the duration of training, including the time before it was resumed. episodes: those of the evaluation after
    training, in the order of their seeds, without any that failed.
    """

    actor: Actor
    num_steps: int
    began: float
    seconds: float
    episodes: list[Episode]
    run_folder: Path | None

    def __repr__(self) -> str:
        training = f"num_steps={self.num_steps}, seconds={self.seconds:.1f}"
        outcome = (
            f"mean_return={self.mean_return:.4g} of {len(self.episodes)} episodes" if self.episodes else "no episode"
        )
        return f"Result({training}, {outcome}, run_folder={str(self.run_folder) if self.run_folder else None!r})"

    @property
    def policy(self) -> nn.Module:
        """The policy's network."""
        return self.actor.policy

    @property
    def mean_return(self) -> float:
        """The mean return of the evaluation's episodes."""
        return float(np.mean([episode.episodic_return for episode in self.episodes]))

    @property
    def score(self) -> float | None:
        """The mean score of the evaluation's episodes; None if the environment reports none."""
        return mean_score(self.episodes)


class EpisodeCollector:
    """A collector of finished episodes from infos. Agents may report their scores before an episode's last step."""

    def __init__(self, by_copy: bool = False, labels: Sequence[str] = ()) -> None:
        """by_copy: whether to distinguish the copies in already vectorized environments. labels: see ``labels_of``."""
        self.key, self.labels = "agent_id" if by_copy else "env_id", labels
        self.scores: dict[int, list[float]] = defaultdict(list)  # by environment, of the unfinished episode
        self.returns: dict[int, dict[int, float]] = defaultdict(
            dict
        )  # the same by agent index, of agents that have ended

    def in_batch(self, infos: Iterable[Mapping[str, Any]]) -> list[Episode]:
        """Add a batch's infos to the unfinished episodes, and return the episodes that ended in the batch.

        The unfinished episodes of restarted environments are dropped.
        """
        for info in infos:
            if crash_cause(info) is not None:  # neither the episode counts, nor the scores of agents that left it early
                for env_id in list(self.scores) if self.key not in info else [info[self.key]]:
                    self._close(env_id)
            if self.labels and "agent_id" in info and _has_return(info.get("episode")):
                returns, agent_index = self.returns[info["env_id"]], info["agent_id"] % len(self.labels)
                returns[agent_index] = returns.get(agent_index, 0.0) + float(
                    info["episode"]["r"]
                )  # of all agents with this index
            if isinstance(info.get("score"), NUMBERS):
                self.scores[info[self.key]].append(float(info["score"]))
        ended = []
        for info in infos:
            if info.get("env") is True and "episode" in info:  # ours: users may have an "env" of their own
                env_id, statistics = info[self.key], info["episode"]
                score, agent_returns = self._close(env_id)
                ended.append(
                    Episode(env_id, statistics["r"], statistics["l"], score, False, self._by_label(agent_returns))
                )
        return ended

    def cut(self, env_id: int, returns: np.ndarray, length: int) -> Episode:
        """Cut an environment's unfinished episode short, and return it.

        returns: the agents' returns so far, (agents,). length: the number of steps so far.
        """
        score, _ = self._close(env_id)
        returns_of = self._by_label(dict(enumerate(returns.tolist())))
        return Episode(env_id, float(returns.sum()), length, score, True, returns_of)

    def _close(self, env_id: int) -> tuple[float | None, Mapping[int, float]]:
        """Forget an environment's unfinished episode; return its score, and the returns of agents that have ended.

        The score is None without scores; the returns are keyed by agent index.
        """
        scores: list[Any] = self.scores.pop(env_id, []) or [None]
        # One is the most frequent case, and NumPy's mean takes as long as an episode of one step.
        score = scores[0] if len(scores) == 1 else float(np.mean(scores))
        return score, self.returns.pop(env_id, {})

    def _by_label(self, returns: Mapping[int, float]) -> dict[str, float]:
        members: dict[str, list[float]] = defaultdict(list)
        for agent_index, label in enumerate(self.labels):
            if agent_index in returns:
                members[label].append(returns[agent_index])
        return {label: float(np.mean(values)) for label, values in members.items()}


def _has_return(episode: Any) -> bool:
    """Return whether an info's "episode" has a return; environments may use the key for something else."""
    return isinstance(episode, Mapping) and isinstance(episode.get("r"), NUMBERS)


def labels_of(vec: pufferlib.VecEnv) -> Sequence[str]:
    """Return ``labels_of_names`` for the agents of a VecEnv."""
    return labels_of_names(vec.agent_names)


def labels_of_names(names: Sequence[str]) -> Sequence[str]:
    """Return the label under which each agent's return is shown; () if there are too few or too many labels.

    Labels are the agents' names or, if there are more than MOST_LABELS different names, the agents' types
    (type_of_name). There must be 2 to MOST_LABELS different labels.
    """
    labels = names
    if len(set(labels)) > MOST_LABELS:
        labels = tuple(map(type_of_name, names))
    return labels if 2 <= len(set(labels)) <= MOST_LABELS else ()


def agent_returns_by_label(played: pufferlib.Episodes) -> dict[str, np.ndarray]:
    """Return the mean returns of each agent, or type of agents, in each episode, by label (see ``labels_of_names``)."""
    columns: dict[str, list[int]] = {}
    for agent_index, label in enumerate(labels_of_names(played.agent_names)):
        columns.setdefault(label, []).append(agent_index)
    return {label: played.agent_returns[:, indices].mean(1) for label, indices in columns.items()}


def scores_of(played: pufferlib.Episodes) -> np.ndarray:
    """Return the score of each episode, as the mean over the agents that report one; NaN without any."""
    try:
        return played.numbers("score")
    except PlanError:  # no numbers
        return np.full(len(played), np.nan)


def listed(played: pufferlib.Episodes, env_ids: Sequence[int]) -> list[Episode]:
    """Return evaluated episodes as a list, without those that failed. env_ids: the environment of each."""
    returns_of, scores = agent_returns_by_label(played), scores_of(played)
    return [
        Episode(
            env_ids[index],
            float(played.returns[index]),
            int(played.lengths[index]),
            None if np.isnan(scores[index]) else float(scores[index]),
            ending == CUT,
            {label: float(returns[index]) for label, returns in returns_of.items()},
        )
        for index, ending in enumerate(played.endings.tolist())
        if ending != FAILED
    ]


def mean_score(episodes: Iterable[Episode]) -> float | None:
    """Return the mean score of the episodes that have one; None if none has."""
    scores = [episode.score for episode in episodes if episode.score is not None]
    return float(np.mean(scores)) if scores else None


def returns_by_label(episodes: Iterable[Episode]) -> dict[str, list[float]]:
    """Group the returns of agents, or of types of agents, by label.

    Returns one list of returns per label, in the order of the episodes.
    """
    returns: dict[str, list[float]] = {}
    for episode in episodes:
        for label, value in episode.returns_of.items():
            returns.setdefault(label, []).append(value)
    return returns


def charts(episodes: Collection[Episode]) -> dict[str, float]:
    """Return the means of episodes' returns, lengths and scores, and of agents' returns, keyed by TensorBoard name.

    The score is left out if no episode has one; without episodes, the dict is empty.
    """
    if not episodes:
        return {}
    score = mean_score(episodes)
    return {
        "charts/episodic_return": float(np.mean([episode.episodic_return for episode in episodes])),
        "charts/episodic_length": float(np.mean([episode.length for episode in episodes])),
        **({} if score is None else {"charts/score": score}),
        **{f"{RETURN_OF}{label}": float(np.mean(returns)) for label, returns in returns_by_label(episodes).items()},
    }


def charts_of_stats(episodes: EpisodeStats) -> dict[str, float]:
    """Return the charts of the episodes that ended in an iteration of kernels, keyed by TensorBoard name."""
    score = {} if episodes.mean_score is None else {"charts/score": episodes.mean_score}
    returns = {f"{RETURN_OF}{name}": mean for name, mean in episodes.mean_returns_by_type.items()}
    means = {"charts/episodic_return": episodes.mean_return, "charts/episodic_length": episodes.mean_length}
    return {**means, **score, **returns}


def summary(config: Any, result: Result) -> str:
    """Return the text to print at the end of a run: the policy's results, the training time, commands to try next."""
    score = "" if result.score is None else f"score {result.score:.3f}, "
    lines = [
        f"{config.env}: {score}mean return {result.mean_return:.3f} over {len(result.episodes):,} fresh episodes, "
        f"after {result.num_steps:,} steps in {result.seconds:.1f} s of training",
    ]
    if result.run_folder is not None:
        if any(result.run_folder.glob(EVENTS)):
            lines.append(f"Curves: tensorboard --logdir {result.run_folder}")
        lines.append(f"See it play: puffer eval {result.run_folder} --watch")
    return "\n".join([*lines, *([NEXT] if config.env == "ocean/squared" else [])])


NEXT = """\
Try next:
  puffer train MiniGrid-Empty-8x8-v0               an environment of others (pip install "pufferlib[minigrid]")
  puffer train ocean/squared --backend serial      the same, stepped in one process; or multiprocessing
  puffer check my_module:my_env_creator            is yours ready?"""
