"""Evaluation of policies: complete episodes on fresh seeds, and statistics of their returns.

``play`` implements `puffer eval` over ``pufferlib.evaluation``; ``evaluate`` uses a trainer's VecEnv and policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

import pufferlib
from pufferlib import registry
from pufferlib.errors import CheckpointError, PlanError, RegistryError
from pufferlib.evaluation import statistics
from pufferlib.evaluation.dealer import Dealer
from pufferlib.evaluation.episodes import CUT, FAILED
from pufferlib.evaluation.rules import Rules
from pufferlib.evaluation.run import (
    SEED,
    EvaluationInterrupted,
    derived_seeds,
    play_in,
    with_freshness_of,
)
from pufferlib.evaluation.store import Store, described, fingerprint
from pufferlib.evaluation.tasks import name_of, with_env_index
from pufferlib.models import Actor, SavedPolicy, read_policy
from pufferlib.models.files import POLICY_FILE
from pufferlib.training.random_policy import Act
from pufferlib.training.results import Episode, EpisodeCollector, labels_of, labels_of_names
from pufferlib.training.runs import saying_where

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["MAX_STEPS", "SEED", "Evaluation", "Subject", "Summary", "evaluate", "play"]

MAX_STEPS = 30_000  # per episode; ALE's own limit is 108,000 frames, or 27,000 steps


# ------------------------------------------------------------------------------------------- policies and environments


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


def play(
    subject: Subject,
    *,
    num_episodes: int = 100,
    greedy: bool = False,
    seed: int = SEED,
    max_steps: int = MAX_STEPS,
    backend: str = "multiprocessing",
    num_envs: int = 16,
    num_workers: int | None = None,
    batch_size: int | None = None,
    device: Any = None,
    torch_threads: int = 1,
    video: str | Path | None = None,
    num_videos: int = 1,
    snapshots: Sequence[int] | None = None,
    snapshots_folder: str | Path = "snapshots",
    watch: Console | None = None,
    save: str | Path | None = None,
    after: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Evaluate a policy, and return the evaluation.

    greedy: take the most likely actions instead of sampling them. torch_threads: the number of threads that torch uses
    meanwhile. device: for backend "cuda" only, the device of the environments; policies stay on the CPU. video: a .gif
    or .mp4 file for the first ``num_videos`` episodes, one after another, or a folder with a file for each. If there
    are several environments, the first episodes of the first environments are filmed. snapshots: the steps of the first
    environment's first episode to save as pictures in snapshots_folder, along with a GIF of the episode. watch: the
    terminal in which to show the play; only one environment is then used. save: as for ``pufferlib.evaluate``. For the
    other arguments, see ``evaluate`` and ``pufferlib.make``.

    Raises PlanError for impossible requests before anything is played.
    """
    from pufferlib.training.film import RGB
    from pufferlib.training.video import Reel, Snapshots, render_mode

    if num_episodes < 1 or max_steps < 1:
        raise PlanError(f"{num_episodes} episodes of at most {max_steps} steps; use 1 or more of both")
    if num_envs < 1 or (batch_size is not None and batch_size < 1):
        raise PlanError(f"num_envs={num_envs} and batch_size={batch_size} are impossible; use 1 or more of both")
    if device is not None and backend != "cuda":
        raise PlanError(f'device={device!r} is where backend="cuda" plays, and this is "{backend}"; leave it out')
    if watch is not None:
        backend, num_envs = "serial" if backend != "cuda" else backend, 1
    num_envs = min(num_envs, num_episodes)
    if batch_size is None:
        batch_size = -(-num_envs // (2 if backend == "pool" else 1))
    batch_size = min(num_envs, batch_size)
    reel = None if video is None else Reel(Path(video), num_videos, num_envs, num_episodes)
    shots = None if snapshots is None else Snapshots(Path(snapshots_folder), snapshots)
    common_kwargs = with_env_index(subject.env, subject.env_kwargs, backend)
    env_kwargs: Any = [dict(common_kwargs) for _ in range(num_envs)]
    if watch is not None or reel is not None or shots is not None:
        # An environment has only one render mode at a time.
        among = ("ansi", RGB) if reel is None and shots is None else (RGB,)
        make_kwargs = {"backend": backend, "device": device} if backend == "cuda" else None
        mode = render_mode(subject.env, subject.env_kwargs, subject.wrap_kwargs, among, make_kwargs)
        rendered_ids = {0} if reel is None else {0, *reel.env_ids}
        # A kernel's environments share their arguments, and draw only on request.
        for env_id in range(num_envs) if backend == "cuda" else rendered_ids:
            env_kwargs[env_id]["render_mode"] = mode
    rules = Rules(
        seeds=derived_seeds(seed, num_episodes),
        max_steps=max_steps,
        info_names=("score",),
        checked=backend != "cuda" and watch is None,
        task_names=(name_of(subject.env),),
    )
    with ExitStack() as stack:
        vec = stack.enter_context(
            pufferlib.make(
                subject.env,
                backend=backend,
                num_envs=num_envs,
                num_workers=num_workers,
                batch_size=batch_size,
                env_kwargs=env_kwargs,
                wrap_kwargs=subject.wrap_kwargs,
                autoreset_mode="disabled",
                on_error="restart",
                max_restarts=None,
                device=device,
                seed=seed,
            )
        )
        observers: list[Callable[[pufferlib.Batch, Dealer], None]] = []
        if reel is not None:
            observers.append(reel.of(vec))
        if shots is not None:
            observers.append(shots.of(vec))
        if watch is not None:
            from pufferlib.training.terminal_view import TerminalView

            view = stack.enter_context(TerminalView(vec, watch))
            observers.append(lambda batch, dealer: view.see(batch))

        def see(batch: pufferlib.Batch, dealer: Dealer) -> None:
            for observer in observers:
                observer(batch, dealer)

        policy, store = subject.source(seed), None
        if save is not None:
            named = {"env": name_of(subject.env), "env_kwargs": common_kwargs, "wrap_kwargs": subject.wrap_kwargs}
            of_policy = {"policy": (subject.policy, fingerprint(policy)), "policy_seed": seed, "greedy": greedy}
            store = stack.enter_context(Store(save, described({**named, **of_policy, "max_steps": max_steps})))
            rules = with_freshness_of(store, rules, "auto")
        policy_kwargs = {"policy_batch": rules.policy_batch, "greedy": greedy, "torch_threads": torch_threads}
        interrupted = ""
        try:
            episodes = play_in(vec, policy, rules, policy_kwargs, see=see, after=after, store=store)
        except EvaluationInterrupted as stopped:
            episodes, interrupted = stopped.episodes, str(stopped)
            if not len(episodes):
                raise
        videos, pictures = (
            [] if recorder is None or interrupted else [str(path) for path in recorder.save()]
            for recorder in (reel, shots)
        )
    notes = [shots.note] if shots is not None and shots.note else []
    if interrupted:
        notes.append(interrupted if save is None else f"{interrupted}; the same command goes on")
    result = Evaluation(
        name_of(subject.env), subject.policy, greedy, seed, max_steps, episodes, videos, pictures, notes
    )
    return replace(result, interrupted=bool(interrupted))


# ----------------------------------------------------------------------------------------------------- the episodes


def evaluate(
    vec: pufferlib.VecEnv,
    act: Act,
    num_episodes: int,
    seed: int,
    *,
    max_steps: int = MAX_STEPS,
    see: Callable[[pufferlib.Batch], None] | None = None,
    after: Callable[[int, int], None] | None = None,
) -> list[Episode]:
    """Reset the environments with ``seed``, play ``num_episodes`` episodes, and return them.

    The number of episodes from each environment (from each copy, if environments are already vectorized) is fixed
    beforehand, because the episodes that finish first are mostly short ones. act: returns the flat actions for a batch.
    max_steps: the number of steps after which an episode is cut, with ``Episode.cut`` set, so that endless episodes
    also end. see: called with each batch while its environments wait for actions. after: called after each batch with
    the numbers of episodes and of environment steps so far.
    """
    copies = vec.copies_per_env
    share, rest = divmod(num_episodes, vec.num_envs * copies)
    num_left = [share + (env_id < rest) for env_id in range(vec.num_envs * copies)]
    finished, episodes, num_steps = EpisodeCollector(copies > 1, labels_of(vec)), list[Episode](), 0
    # Of the unfinished episodes; each environment has a return per agent.
    returns, lengths = np.zeros((len(num_left), vec.agents_per_env // copies)), np.zeros(len(num_left), np.int64)
    abandoned: set[int] = set()  # copies that play on after their episode was cut
    vec.async_reset(seed=seed)
    while True:
        batch, host = vec.recv(), vec.host_batch
        assert host is not None
        if see is not None:
            see(host)
        env_ids, rewards, masks = host.env_ids if copies == 1 else host.agent_ids, host.rewards, host.masks
        env_masks = masks.reshape(len(env_ids), -1)
        # A row without a transition begins an episode.
        returns[env_ids] = np.where(
            env_masks.any(1, keepdims=True), returns[env_ids] + rewards.reshape(env_masks.shape) * env_masks, 0
        )
        lengths[env_ids] = np.where(env_masks.any(1), lengths[env_ids] + 1, 0)
        num_steps += int(env_masks.any(1).sum())
        ended = finished.in_batch(batch.infos)
        over = [*(episode.env_id for episode in ended)]
        ended = [episode for episode in ended if episode.env_id not in abandoned]
        abandoned -= set(over)
        late = [env_id for env_id in env_ids.tolist() if lengths[env_id] >= max_steps and env_id not in over]
        ended += [finished.cut(env_id, returns[env_id], int(lengths[env_id])) for env_id in late]
        for episode in ended:
            if num_left[episode.env_id]:
                num_left[episode.env_id] -= 1
                episodes.append(episode)
        if after is not None:
            after(len(episodes), num_steps)
        if len(episodes) == num_episodes:
            return episodes
        if copies > 1:  # a single copy cannot be reset: it plays on, and the result is not counted
            abandoned |= set(late)
            returns[late], lengths[late] = 0, 0
            late = []
        _send(vec, host.env_ids, act(host), late)


def _send(vec: pufferlib.VecEnv, env_ids: np.ndarray, actions: Any, late: Sequence[int]) -> None:
    """Send actions to these environments, except to those in ``late``, which are reset."""
    if not late:
        vec.send(actions)
        return
    on_time = ~np.isin(env_ids, late)
    rows = on_time.repeat(vec.agents_per_env)
    if on_time.any():
        some = tuple(part[rows] for part in actions) if isinstance(actions, tuple) else actions[rows]
        vec.send(some, env_ids=env_ids[on_time].tolist())
    vec.async_reset(env_ids=late)


# ------------------------------------------------------------------------------------------------------ the results


class Summary(NamedTuple):
    """Statistics of one number per episode: the mean with its 95 % interval, minimum, median and maximum."""

    mean: float
    low: float
    high: float
    minimum: float
    median: float
    maximum: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Summary:
        """Return the statistics of one or more values.

        The interval is found by bootstrap: the values are resampled with replacement 2000 times, and its ends
        are the 2.5th and 97.5th percentiles of the resamples' means. It assumes no distribution, and is too narrow for
        fewer than about ten episodes.
        """
        array = np.asarray(list(values), np.float64)
        low, high = statistics.bootstrap(statistics.mean_of_tasks, [array])
        middle = array.mean(), low, high, array.min(), np.median(array), array.max()
        return cls(*map(float, middle))


@dataclass(frozen=True)
class Evaluation:
    """The episodes that a policy played in an environment, and how they were played. policy: its description."""

    env: str
    policy: str
    greedy: bool
    seed: int
    max_steps: int
    episodes: pufferlib.Episodes
    videos: Sequence[str] = ()
    snapshots: Sequence[str] = ()
    notes: Sequence[str] = ()  # further remarks, as sentences
    interrupted: bool = False  # whether Ctrl-C has ended it early

    @property
    def returns(self) -> Summary:
        """Statistics of the returns, summed over agents."""
        return Summary.of(self.episodes.returns[self._played])

    @property
    def scores(self) -> Summary | None:
        """Statistics of the scores; None if the environment reports none."""
        scores = self._scores[self._played]
        scores = scores[~np.isnan(scores)]
        return Summary.of(scores) if len(scores) else None

    @property
    def lengths(self) -> Summary:
        """Statistics of the episodes' lengths, in steps."""
        return Summary.of(self.episodes.lengths[self._played])

    @property
    def num_cut(self) -> int:
        """The number of episodes that were cut at ``max_steps``."""
        return int((self.episodes.endings == CUT).sum())

    @property
    def num_failed(self) -> int:
        """The number of episodes that failed too often to be played; the statistics leave them out."""
        return int((~self._played).sum())

    def spreads(self) -> Mapping[str, Summary]:
        """Return the statistics of returns, agents' returns, scores (if there are any) and lengths, keyed by name."""
        agents = {
            f"return of {label}": Summary.of(returns[self._played])
            for label, returns in self._returns_by_label().items()
        }
        scores = {} if self.scores is None else {"score": self.scores}
        return {"return": self.returns, **agents, **scores, "length": self.lengths}

    def as_dict(self) -> dict[str, Any]:
        """Return the fields and statistics as a dict of values that JSON can hold."""
        names = (
            "env",
            "policy",
            "greedy",
            "seed",
            "max_steps",
            "num_cut",
            "interrupted",
            "videos",
            "snapshots",
            "notes",
        )
        values = {name: getattr(self, name) for name in names}
        summaries = {name: summary._asdict() for name, summary in self.spreads().items()}
        return {**values, "num_episodes": len(self.episodes), **summaries, "episodes": [*self._rows()]}

    @property
    def _played(self) -> np.ndarray[Any, Any]:
        return np.asarray(self.episodes.endings != FAILED)

    @property
    def _scores(self) -> np.ndarray[Any, Any]:
        """The score of each episode, as the mean over the agents that report one; NaN without any."""
        try:
            return self.episodes.numbers("score")
        except PlanError:  # no numbers
            return np.full(len(self.episodes), np.nan)

    def _returns_by_label(self) -> Mapping[str, np.ndarray[Any, Any]]:
        """Return the returns of each agent, or type of agents, in each episode, by label (see ``labels_of_names``)."""
        columns: dict[str, list[int]] = {}
        for agent_index, label in enumerate(labels_of_names(self.episodes.agent_names)):
            columns.setdefault(label, []).append(agent_index)
        return {label: self.episodes.agent_returns[:, indices].mean(1) for label, indices in columns.items()}

    def _rows(self) -> Iterator[dict[str, Any]]:
        by_label = self._returns_by_label()
        for index, score in enumerate(self._scores.tolist()):
            failed = not self._played[index]
            yield {
                "seed": int(self.episodes.seeds[index]),
                "episodic_return": None if failed else float(self.episodes.returns[index]),
                "length": int(self.episodes.lengths[index]),
                "score": None if np.isnan(score) else score,
                "cut": bool(self.episodes.endings[index] == CUT),
                "failed": failed,
                "restarts": int(self.episodes.restarts[index]),
                "returns_of": {} if failed else {label: float(part[index]) for label, part in by_label.items()},
            }
