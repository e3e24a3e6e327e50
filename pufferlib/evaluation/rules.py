"""The episodes of an evaluation, their order and their results: Rules, EpisodeQueue, Results."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pufferlib.util.annotations import Array, EnvCreator

__all__ = ["EpisodeQueue", "Results", "Rules"]


@dataclass(frozen=True)
class Rules:
    """The rules by which the episodes of an evaluation are played.

    seeds: the seed of each episode, distinct within a task. options: the reset options of each episode, or None for
    none at all. policy_batch: the number of environments with whose rows the policy is called; None if it gets each
    batch of the VecEnv as it is. max_steps: the number of steps after which an episode is cut; None for no limit.
    max_restarts: how many failures of one episode are followed by another try; None for no limit. info_names: the keys
    of the infos to collect. fresh: whether each episode is played in a new environment. checked: whether to raise
    HistoryError if an episode depends on earlier ones.
    task_names, creators: the name of each task, and what makes its environment; no creators if the VecEnv keeps its
    environments, and each plays its own task only. tasks: the index of each episode's task; None if there is only one.
    """

    seeds: Array
    options: Sequence[Mapping[str, object] | None] | None = None
    policy_batch: int | None = 16
    max_steps: int | None = None
    max_restarts: int | None = 3
    info_names: Sequence[str] = ()
    fresh: bool = False
    checked: bool = False
    task_names: Sequence[str] = ("",)
    creators: Sequence[EnvCreator] = ()
    tasks: Array | None = None

    def task_of(self, episode: int) -> int:
        """Return the index of an episode's task."""
        return 0 if self.tasks is None else int(self.tasks[episode])

    def place_of(self, episode: int) -> int:
        """Return the place of an episode in the policy's batches, from 0 to policy_batch - 1; 0 without that."""
        return 0 if self.policy_batch is None else int(self.seeds[episode]) % self.policy_batch


@dataclass
class Results:
    """The results of the episodes, in the order of ``Rules.seeds``; arrays (episodes,) unless noted.

    returns: NaN until the episode has been played; (episodes, agents). endings: the words of episodes.py; "" until the
    episode has been played. restarts: how many times each episode was begun again. seconds: the wall time of the try
    that counts. infos: by name, one dict per episode: values by agent index, or by None for a value about the whole
    environment.
    """

    returns: Array
    lengths: Array
    endings: list[str]
    restarts: Array
    seconds: Array
    infos: dict[str, list[dict[int | None, object]]]
    failures: Array = field(init=False)  # of each episode, not counting those of other causes
    deaths: Array = field(init=False)  # of each episode's worker, of unknown cause
    causes: dict[int, str] = field(default_factory=dict)  # the last failure of each episode that was given up

    @classmethod
    def of(cls, rules: Rules, num_agents: int) -> Results:
        """Return results without any episode."""
        num_episodes = len(rules.seeds)
        return cls(
            np.full((num_episodes, num_agents), np.nan),
            np.zeros(num_episodes, np.int64),
            [""] * num_episodes,
            np.zeros(num_episodes, np.int64),
            np.full(num_episodes, np.nan),
            {name: [{} for _ in range(num_episodes)] for name in rules.info_names},
        )

    def __post_init__(self) -> None:
        self.failures, self.deaths = np.zeros_like(self.restarts), np.zeros_like(self.restarts)

    @property
    def num_finished(self) -> int:
        """The number of episodes that have been played, or given up."""
        return len(self.endings) - self.endings.count("")


class EpisodeQueue:
    """The episodes that have not been begun, dealt so that the policy is called seldom: with one of each place.

    An environment goes on with its task as long as that has episodes. endings: of each episode; those that have one are
    left out.
    """

    def __init__(self, rules: Rules, endings: Sequence[str]) -> None:
        self._rules = rules
        self._waiting: dict[int, dict[int, deque[int]]] = {}  # by task and place
        for episode, ending in enumerate(endings):
            if not ending:
                places = self._waiting.setdefault(rules.task_of(episode), {})
                places.setdefault(rules.place_of(episode), deque()).append(episode)
        self._num_playing = Counter[int]()  # by place: how many episodes are played

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def take(self, env_tasks: Sequence[int], slot: int) -> int | None:
        """Take a slot's next episode, the first one of the place at which the fewest are played; None if none is left.

        env_tasks: the task that the environment of each slot was made for, or -1. If that has no episode left, the task
        with the most episodes for each of its environments gets the slot; without creators, the slot gets none.
        """
        if not self._waiting:
            return None
        task = env_tasks[slot]
        if task not in self._waiting:
            if not self._rules.creators:
                return None
            num_envs = Counter(env_tasks)
            shares = {
                task: sum(map(len, places.values())) / (1 + num_envs[task]) for task, places in self._waiting.items()
            }
            task = max(shares, key=lambda task: (shares[task], -task))
        playing, waiting = self._num_playing, self._waiting[task]
        index = min(waiting, key=lambda index: (playing[index], waiting[index][0]))
        episode = waiting[index].popleft()
        if not waiting[index]:
            del waiting[index]
        if not waiting:
            del self._waiting[task]
        playing[index] += 1
        return episode

    def first_tasks(self, num_envs: int) -> list[int]:
        """Take the first episode of each of so many slots; return their tasks."""
        env_tasks = [-1] * num_envs
        for slot in range(num_envs):
            episode = self.take(env_tasks, slot)
            env_tasks[slot] = 0 if episode is None else self._rules.task_of(episode)
        return env_tasks

    def finish(self, episode: int) -> None:
        """Record that an episode is no longer played."""
        self._num_playing[self._rules.place_of(episode)] -= 1
