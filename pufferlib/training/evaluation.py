"""Evaluation of policies: complete episodes on fresh seeds, and statistics of their returns.

Both ``play``, which implements `puffer eval`, and ``evaluate``, which uses a trainer's VecEnv and policy, are calls of
``pufferlib.evaluation``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import pufferlib
from pufferlib.errors import PlanError
from pufferlib.evaluation.dealer import Dealer
from pufferlib.evaluation.film import RGB
from pufferlib.evaluation.filming import render_mode
from pufferlib.evaluation.reel import Reel, film_names
from pufferlib.evaluation.rules import Rules
from pufferlib.evaluation.run import (
    POLICY_BATCH,
    SEED,
    EvaluationInterrupted,
    play_in,
    with_freshness_of,
)
from pufferlib.evaluation.seeds import derived_seeds
from pufferlib.evaluation.store import Store, described, fingerprint
from pufferlib.evaluation.tasks import name_of, with_env_index
from pufferlib.models import BatchPlayer
from pufferlib.training import copies
from pufferlib.training.evaluation_results import Evaluation, Summary
from pufferlib.training.results import Episode, listed
from pufferlib.training.subjects import Subject

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["MAX_STEPS", "SEED", "Evaluation", "Subject", "Summary", "evaluate", "play", "policy_batch_of"]

MAX_STEPS = 30_000  # per episode; ALE's own limit is 108,000 frames, or 27,000 steps


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
    video_seeds: Sequence[int] = (),
    snapshots: Sequence[int] | None = None,
    snapshots_folder: str | Path = "snapshots",
    watch: Console | None = None,
    save: str | Path | None = None,
    after: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Evaluate a policy, and return the evaluation.

    greedy: take the most likely actions instead of sampling them. torch_threads: the number of threads that torch uses
    meanwhile. device: for backend "cuda" only, the device of the environments; policies stay on the CPU. video: a .gif
    or .mp4 file for the first ``num_videos`` episodes, one after another, or a folder with a file for each.
    video_seeds: the seeds of the episodes to film instead of the first ones. snapshots: the steps of the first
    environment's first episode to save as pictures in snapshots_folder, along with a GIF of the episode. watch: the
    terminal in which to show the play; only one environment is then used. save: as for ``pufferlib.evaluate``. For the
    other arguments, see ``evaluate`` and ``pufferlib.make``.

    Raises PlanError for impossible requests before anything is played.
    """
    from pufferlib.training.video import Snapshots

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
    seeds = derived_seeds(seed, num_episodes)
    reel = _reel(video, num_videos, video_seeds, seeds, num_envs)
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
        seeds=seeds,
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


def _reel(
    video: str | Path | None, num_videos: int, video_seeds: Sequence[int], seeds: np.ndarray[Any, Any], num_envs: int
) -> Reel | None:
    """Return the Reel of the episodes to film: those of ``video_seeds``, or the first ``num_videos``.

    Returns None if ``video`` is None. Raises PlanError for impossible requests, and the errors of Reel.
    """
    if video is None:
        if len(video_seeds):
            raise PlanError(f"video_seeds={video_seeds} without video; name a file or a folder for the films")
        return None
    if len(video_seeds):
        return Reel(Path(video), film_names(video_seeds, seeds), range(num_envs))
    if not 1 <= num_videos <= len(seeds):
        raise PlanError(f"{num_videos} videos of {len(seeds)} episodes; use 1 to {len(seeds)}")
    # The first episodes are dealt to the first environments; those after them to any.
    names = {episode: f"episode-{episode + 1}" for episode in range(num_videos)}
    return Reel(Path(video), names, range(min(num_envs, num_videos)))


def evaluate(
    vec: pufferlib.VecEnv,
    policy: Any,
    num_episodes: int,
    seed: int,
    *,
    policy_kwargs: Mapping[str, Any] | None = None,
    alike: bool = False,
    max_steps: int = MAX_STEPS,
    see: Callable[[pufferlib.Batch], None] | None = None,
    after: Callable[[int, int], None] | None = None,
) -> list[Episode]:
    """Play ``num_episodes`` episodes in an existing VecEnv, and return them in the order of their seeds.

    The number of episodes of each environment is fixed beforehand, because the episodes that finish first are mostly
    short ones, and environments may differ. ``alike`` states that they do not: the next episode then goes to whichever
    is free, and its ``env_id`` is 0.

    policy: a function that returns the flat actions for a Batch, and is called with each batch; with policy_kwargs, the
    arguments of ``pufferlib.evaluation.policies.opened``, an Actor. seed: the episodes' seeds are derived from it.
    max_steps: the number of steps after which an episode is cut, with ``Episode.cut`` set, so that endless episodes
    also end. see: called with each batch while its environments wait for actions. after: called after each batch with
    the numbers of episodes and of environment steps so far.

    An episode that fails is played once more if the VecEnv restarts environments. If it fails again, it is left out,
    with a warning. Raises WorkerError if all fail.
    """
    if vec.copies_per_env > 1:
        act = policy
        if policy_kwargs is not None:
            kwargs = {"agents_per_env": vec.agents_per_env, "greedy": policy_kwargs["greedy"], "seed": seed}
            act = BatchPlayer(policy, vec.num_envs * vec.agents_per_env, **kwargs)
        return copies.evaluate(vec, act, num_episodes, seed, max_steps=max_steps, see=see, after=after)
    env_ids = np.zeros(num_episodes, np.int64) if alike else np.arange(num_episodes) % vec.num_envs
    rules = Rules(
        seeds=derived_seeds(seed, num_episodes),
        policy_batch=None if policy_kwargs is None else policy_kwargs["policy_batch"],
        max_steps=max_steps,
        max_restarts=1,
        info_names=("score",),
        task_names=["evaluation"] if alike else [f"environment {env_id}" for env_id in range(vec.num_envs)],
        tasks=None if alike else env_ids,
    )
    env_tasks = [0] * vec.num_envs if alike else list(range(vec.num_envs))
    watch = None if see is None else lambda batch, dealer: see(batch)
    played = play_in(vec, policy, rules, policy_kwargs, env_tasks=env_tasks, see=watch, after=after)
    return listed(played, env_ids.tolist())


def policy_batch_of(vec: pufferlib.VecEnv) -> int:
    """Return the number of environments with whose rows to call a policy in a VecEnv: 16 to 256, a power of two.

    Derived seeds spread evenly over so many places.
    """
    return min(256, max(POLICY_BATCH, 1 << (vec.batch_size.bit_length() - 1)))
