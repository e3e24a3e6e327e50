"""``evaluate``: play exactly the episodes of given seeds, and return their results."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pufferlib.construct import make
from pufferlib.errors import PlanError, WorkerError
from pufferlib.evaluation.consistency import HistoryError
from pufferlib.evaluation.dealer import Dealer
from pufferlib.evaluation.episodes import FAILED, Episodes, info_column
from pufferlib.evaluation.film import RGB
from pufferlib.evaluation.filming import render_mode
from pufferlib.evaluation.policies import loaded, opened, wrap_kwargs_of
from pufferlib.evaluation.progress import progress_bar
from pufferlib.evaluation.reel import Reel, film_names
from pufferlib.evaluation.rules import EpisodeQueue, Results, Rules
from pufferlib.evaluation.seeds import episode_seeds
from pufferlib.evaluation.store import Store, described, fingerprint
from pufferlib.evaluation.tasks import name_of, tasks_of, with_env_index
from pufferlib.util.annotations import Array
from pufferlib.util.suggestions import not_one_of, says_what_was_meant
from pufferlib.vectorization import Batch, VecEnv
from pufferlib.vectorization.core.arguments import misplaced, options_per_env
from pufferlib.vectorization.core.plan import checked_count

__all__ = ["SEED", "EvaluationInterrupted", "evaluate", "play_in", "with_freshness_of"]

SEED = 987_654_321  # far from those that people train with
NUM_ENVS, POLICY_BATCH = 16, 16
FRESH = ("auto", "always", "never")
FIRST_FINISHED = ("pool", "ray")  # backends whose batches hold the environments that finish first


@says_what_was_meant(misplaced, "env_kwargs")
def evaluate(
    env: Callable[..., Any] | str | None,
    policy: Any,
    *,
    tasks: Mapping[str, Any] | Sequence[Any] | None = None,
    seeds: Iterable[int] | None = None,
    episodes: int | None = None,
    seed: int = SEED,
    greedy: bool = False,
    max_steps: int | None = None,
    infos: Sequence[str] = (),
    options: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None,
    backend: str = "pool",
    num_envs: int | None = None,
    num_workers: int | None = None,
    batch_size: int | None = None,
    policy_batch: int = POLICY_BATCH,
    max_restarts: int | None = 3,
    fresh: str = "auto",
    save: str | os.PathLike[str] | None = None,
    progress: bool | Callable[[int, int], None] = False,
    see: Callable[[Batch, Array], None] | None = None,
    videos: Iterable[int] = (),
    videos_folder: str | os.PathLike[str] = "videos",
    torch_threads: int = 1,
    trust: bool = False,
    env_args: Sequence[Any] = (),
    env_kwargs: Mapping[str, Any] | None = None,
    wrap_kwargs: Mapping[str, Any] | None = None,
    context: str | None = None,
    device: Any = None,
    check: str = "first",
    step_timeout: float | None = None,
    reset_timeout: float | None = None,
    backend_kwargs: Mapping[str, Any] | None = None,
) -> Episodes:
    """Play one episode for each seed, or each task and seed, and return their results in the order of the seeds.

    Whichever environment is free gets the next seed at once, and every seed is played to its end, so that neither short
    nor long episodes are favoured. An episode's result depends only on the environment, the seed, the policy and
    ``policy_batch``: it is the same to the bit on every backend, with any number of environments, workers and
    environments in a batch.

    env: as for ``make``, but only one, not a list. A callable with a parameter ``env_index`` gets 0.
    tasks: several environments with the same spaces, in each of which every seed is played: a sequence, or a dict by
        name, of env_kwargs that are added to those of all, or of creators or names, and then env is None. At most
        num_envs environments exist at a time: one is made when its task's first episode is dealt to it, and replaced
        when its task has no more episodes. Results are in the order of the tasks and, within each, of the seeds.
    policy: a function that returns the actions for a PolicyBatch; or the path of a run's folder or of its policy.pt; or
        a torch module with the interface of ``pufferlib.models``; or an Actor; or a model of Stable-Baselines3; or
        "random". A policy with a memory has a state for each agent, which starts again with each episode.
    seeds: the seed of each episode, distinct integers from 0 to 2**32 - 1. episodes: instead of seeds, the number of
        episodes; their seeds are derived from ``seed``.
    greedy: take the likeliest actions instead of sampled ones. A sampled action is drawn from random numbers that
        depend on the episode's seed, the step and the agent alone. Functions decide for themselves.
    max_steps: the number of steps after which an episode is cut, with the ending "cut"; None sets no limit.
    infos: the keys of infos to collect: of each episode's last step, and of each agent's.
    options: the options of every reset; or a sequence with one mapping, or None, for each episode.
    backend, num_workers, env_args, wrap_kwargs, context, device, check, step_timeout, reset_timeout, backend_kwargs: as
        for ``make``. wrap_kwargs are added to those that a saved policy was trained with. env_kwargs: one mapping.
    num_envs: the number of environments, by default 16; at most the number of episodes. batch_size: the number of
        environments in a batch, by default 1 on "pool" and "ray", where the policy also gets all other rows that are
        there at that time, and all of them on the other backends.
    policy_batch: the number of environments with whose rows the policy is called, always; missing ones are filled up. A
        network's answer to one row depends in its last bits on the number of rows, and on the row's place among them,
        which is the seed modulo this number.
    max_restarts: an environment that raises, dies or takes too long costs no episode: the episode is played again from
        its first step, with the same seed. If one fails more often than this, its ending is "failed", its return NaN,
        and the others are played. None sets no limit. Deaths of workers that were not stepping it do not count; 16 of
        unknown cause count as one failure.
    fresh: "always" makes the environment again for each episode; "never" does not. "auto" does so if an episode turns
        out to depend on those that the environment played before: two episodes are played twice to find that out.
    save: a file in which each episode is stored as soon as it is over. If the file exists, the episodes in it are not
        played again, so an evaluation that was killed goes on, and one with further seeds plays only these. Episodes
        that failed are tried again. The environment, the policy's weights (or a function's name) and the arguments on
        which results depend have to be those of the file.
    progress: True shows a bar with the time left; or a function that is called with the number of finished episodes and
        the number of steps after each batch.
    see: a function that is called with each batch, as arrays, while its environments wait, and with the index of the
        episode that each of them plays, int64 (batch_size,), or -1 for none.
    videos: the seeds whose episodes to film, in every task. videos_folder: the folder of the films, whose names have
        the seed and the return; or one .gif or .mp4 file for all of them. The environment needs the render mode
        "rgb_array". Episodes that are in ``save`` already are not filmed. Films are written at the end.
    torch_threads: the number of threads that torch uses meanwhile, if the policy is one of torch's. trust: accept a
        policy.pt that names code outside the current folder.

    Raises PlanError for impossible arguments and policies, the errors of ``make``, CheckpointError for a policy.pt that
    cannot be read, MissingExtra if torch is needed and not installed, ActionError for actions that do not fit, and what
    the policy raises. Raises WorkerError if all episodes have failed, or the first ones in every environment. Ctrl-C
    raises EvaluationInterrupted, a KeyboardInterrupt that has the finished ``episodes``.
    """
    rules = Rules(
        seeds=episode_seeds(seeds, episodes, seed),
        policy_batch=checked_count("policy_batch", policy_batch),
        max_steps=None if max_steps is None else checked_count("max_steps", max_steps),
        max_restarts=None if max_restarts is None else checked_count("max_restarts", max_restarts, 0, ", or None"),
        info_names=_info_names(infos),
        fresh=_is_fresh(fresh),
        checked=fresh == "auto" and backend != "cuda",  # a kernel's reset(seed) sets its whole state
    )
    policy = loaded(policy, None if tasks is not None and env is None else env, trust=trust)
    wrapping = {**wrap_kwargs_of(policy), **(wrap_kwargs or {})} or None
    filmed, kwargs_made = sorted(set(videos)), env_kwargs
    if filmed:
        mode = (
            RGB
            if tasks is not None
            else render_mode(
                env,
                with_env_index(env, env_kwargs, backend),
                wrapping,
                make_kwargs={"backend": backend, "device": device} if backend == "cuda" else None,
                env_args=env_args,
            )
        )
        kwargs_made = {**(env_kwargs or {}), "render_mode": mode}
    rules = _with_tasks(rules, env, tasks, env_args, kwargs_made, backend)
    num_episodes = len(rules.seeds)
    if options is not None:
        rules = replace(rules, options=options_per_env(options, num_episodes))
    num_envs = min(num_episodes, NUM_ENVS if num_envs is None else checked_count("num_envs", num_envs))
    if batch_size is None and backend in FIRST_FINISHED:
        batch_size = 1
    reel = None
    if filmed:
        task_names = () if tasks is None else [rules.task_names[rules.task_of(index)] for index in range(num_episodes)]
        reel = Reel(Path(videos_folder), film_names(filmed, rules.seeds, task_names), range(num_envs))
    with ExitStack() as stack:
        store = None
        if save is not None:
            description: dict[str, Any] = {
                "env": rules.task_names,
                "tasks": tasks,
                "env_args": env_args,
                "env_kwargs": env_kwargs or {},
            }
            description |= {"wrap_kwargs": wrap_kwargs or {}, "policy": fingerprint(policy), "greedy": greedy}
            description |= {name: getattr(rules, name) for name in ("policy_batch", "max_steps", "info_names")}
            store = stack.enter_context(Store(save, described(description)))
            rules = with_freshness_of(store, rules, fresh)
        if not callable(progress) and not isinstance(progress, bool):
            raise PlanError(f"progress={progress!r:.80} is neither True, False nor a function of two numbers")
        after = progress if callable(progress) else None
        if progress is True:
            after = stack.enter_context(progress_bar(num_episodes))
        one_env: dict[str, Any] = {"num_envs": num_envs, "env_args": env_args}
        env_tasks = [0] * num_envs
        source: Any = env
        if rules.creators:
            endings = [""] * num_episodes if store is None else store.endings(rules)
            env_tasks, one_env = EpisodeQueue(rules, endings).first_tasks(num_envs), {}
            source = [rules.creators[task] for task in env_tasks]
        else:
            one_env["env_kwargs"] = with_env_index(env, kwargs_made, backend)
        vec = stack.enter_context(
            make(
                source,
                **one_env,
                backend=backend,
                num_workers=None if num_workers is None else min(checked_count("num_workers", num_workers), num_envs),
                batch_size=None if batch_size is None else min(checked_count("batch_size", batch_size), num_envs),
                seed=seed,
                wrap_kwargs=wrapping,
                autoreset_mode="disabled",
                context=context,
                device=device,
                as_torch=None if backend == "cuda" else False,
                check=check,
                on_error="restart",
                max_restarts=None,
                step_timeout=step_timeout,
                reset_timeout=reset_timeout,
                backend_kwargs=backend_kwargs,
            )
        )
        act = {"policy_batch": rules.policy_batch, "greedy": greedy, "torch_threads": torch_threads}
        film = None if reel is None else reel.of(vec)

        def watch(batch: Batch, dealer: Dealer) -> None:
            if film is not None:
                film(batch, dealer)
            if see is not None:
                see(batch, dealer.episodes_of(batch.env_ids))

        seen = None if film is None and see is None else watch
        result = play_in(vec, policy, rules, act, env_tasks=env_tasks, see=seen, after=after, store=store)
        if reel is not None:
            reel.save()
        return result


def play_in(
    vec: VecEnv,
    policy: Any,
    rules: Rules,
    policy_kwargs: Mapping[str, Any] | None,
    *,
    env_tasks: list[int] | None = None,
    see: Callable[[Batch, Dealer], None] | None = None,
    after: Callable[[int, int], None] | None = None,
    store: Store | None = None,
) -> Episodes:
    """Play the episodes of ``rules`` in an existing VecEnv, and return their results.

    policy: as for ``evaluate``, but no path; without a policy_batch in the rules, a function of a Batch. policy_kwargs:
    arguments of ``opened``; None for such a function. env_tasks, see, after: as for Dealer; env_tasks are zeros by
    default. store: where to store finished episodes; those in it are not played.

    If an episode depends on those that an environment played before, all episodes are played again, each in a new
    environment, with a warning. Raises PlanError for an environment that is vectorized already, and
    EvaluationInterrupted on Ctrl-C.
    """
    if vec.copies_per_env > 1:
        raise PlanError(
            f"{rules.task_names[0]} is {vec.copies_per_env} environments in one, which cannot be seeded and reset one "
            "at a time; evaluate a creator that makes one of them"
        )
    start_s, slot_tasks = time.perf_counter(), [0] * vec.num_envs if env_tasks is None else env_tasks

    def played(rules: Rules) -> Results:
        results = Results.of(rules, vec.agents_per_env)
        if store is not None:
            store.load(rules, results)
        done = None if store is None else lambda episode: store.add(rules, results, episode)
        try:
            with nullcontext(policy) if policy_kwargs is None else opened(policy, vec, **policy_kwargs) as act:
                Dealer(vec, act, rules, results, slot_tasks, see=see, after=after, done=done).play()
        except KeyboardInterrupt:
            finished = _episodes(vec, rules, results, time.perf_counter() - start_s).finished()
            raise EvaluationInterrupted(finished, len(rules.seeds)) from None
        return results

    try:
        results = played(rules)
    except HistoryError as error:
        warnings.warn(
            f"{_described(rules, error.episode)} was another one, from step {error.step} on, in "
            f"an environment that had played before ({error.num_before} episodes). Therefore, all episodes are played "
            "again, each in a new environment; "
            'fresh="always" does so at once, and fresh="never" not at all. Reset all state in reset(seed)',
            RuntimeWarning,
            stacklevel=4,
        )
        vec.remake(range(vec.num_envs))
        if store is not None:
            store.restart()
        results = played(replace(rules, fresh=True))
    _report_failures(results, rules)
    return _episodes(vec, rules, results, time.perf_counter() - start_s)


def _described(rules: Rules, episode: int) -> str:
    return f"{rules.task_names[rules.task_of(episode)]}: the episode of seed {rules.seeds[episode]}"


def _report_failures(results: Results, rules: Rules) -> None:
    """Warn of the episodes that failed too often. Raises WorkerError if none was played to its end."""
    if not results.causes:
        return
    episode, cause = next(iter(results.causes.items()))
    num_failures = results.failures[episode] + results.deaths[episode]
    text = f"{_described(rules, episode)} failed {num_failures} times: {cause}"
    num = len(results.causes)
    if {*results.endings} <= {"", FAILED}:
        others = f"; the first {num} were tried, and the other {len(rules.seeds) - num} not"
        raise WorkerError(f"{text}\n\nno episode could be played{others if num < len(rules.seeds) else ''}")
    warnings.warn(f"{text}\n\n{num} of {len(rules.seeds)} episodes failed", RuntimeWarning, stacklevel=5)


class EvaluationInterrupted(KeyboardInterrupt):
    """Raised when Ctrl-C ends an evaluation.

    episodes: the results of the episodes that were finished. num_episodes: how many there would have been.
    """

    def __init__(self, episodes: Episodes, num_episodes: int) -> None:
        super().__init__(f"interrupted after {len(episodes)} of {num_episodes} episodes")
        self.episodes = episodes


def with_freshness_of(store: Store, rules: Rules, fresh: str) -> Rules:
    """Return the rules, with new environments for each episode if the store's had them.

    Raises PlanError if the store's episodes were played otherwise than ``fresh`` says.
    """
    if store.fresh == rules.fresh:
        return rules
    if fresh != "auto" and store.num_episodes:
        how = "each in a new environment" if store.fresh else "in environments that had played before"
        raise PlanError(
            f"fresh={fresh!r}, but the episodes in {store.path} were played {how}; "
            'use fresh="auto", or name another file'
        )
    if rules.fresh:
        store.restart()
    return replace(rules, fresh=True)


def _episodes(vec: VecEnv, rules: Rules, results: Results, wall_s: float) -> Episodes:
    num_episodes = len(rules.seeds)
    return Episodes(
        tasks=np.array(rules.task_names)[np.zeros(num_episodes, np.int64) if rules.tasks is None else rules.tasks],
        seeds=rules.seeds,
        returns=results.returns.sum(1),
        lengths=results.lengths,
        endings=np.array(results.endings),
        restarts=results.restarts,
        seconds=results.seconds,
        agent_returns=results.returns,
        infos={name: info_column(results.infos[name], vec.agents_per_env) for name in rules.info_names},
        agent_names=vec.agent_names,
        wall_s=wall_s,
    )


def _with_tasks(
    rules: Rules,
    env: Any,
    tasks: Mapping[str, Any] | Sequence[Any] | None,
    env_args: Sequence[Any],
    env_kwargs: Mapping[str, Any] | None,
    backend: str,
) -> Rules:
    """Return rules that play every seed in every task. Raises PlanError for impossible tasks."""
    if tasks is None:
        return replace(rules, task_names=(name_of(env),))
    if backend == "cuda":
        raise PlanError("tasks are environments with other arguments, which a kernel's share; evaluate one at a time")
    listed, num_seeds = tasks_of(env, tasks, env_args, env_kwargs), len(rules.seeds)
    return replace(
        rules,
        seeds=np.tile(rules.seeds, len(listed)),
        task_names=[task.name for task in listed],
        creators=[task.creator for task in listed],
        tasks=np.arange(len(listed)).repeat(num_seeds),
    )


def _info_names(infos: Sequence[str]) -> tuple[str, ...]:
    if isinstance(infos, str) or not all(isinstance(name, str) for name in infos):
        raise PlanError(f"infos={infos!r} is no sequence of names; use a tuple, such as ('score',)")
    return tuple(dict.fromkeys(infos))


def _is_fresh(fresh: str) -> bool:
    if fresh not in FRESH:
        raise PlanError(not_one_of("fresh", fresh, FRESH))
    return fresh == "always"
