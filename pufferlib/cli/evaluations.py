"""`puffer eval`: run the evaluation that the options describe, and format its result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table

from pufferlib.cli.options import Eval, keywords
from pufferlib.training.evaluation import SEED, Evaluation, Subject, play
from pufferlib.util.files import file_name

__all__ = ["evaluated", "lines"]

NUM_EPISODES, NUM_WATCHED = 100, 3
SNAPSHOT_STEPS = (0, 50, 150, 300)


def evaluated(options: Eval, console: Console, after: Callable[[int, int], None] | None) -> Evaluation:
    """Run the evaluation that the options describe, and return its result.

    after: None, or a function that is called during the evaluation with the number of finished episodes and the number
    of steps played.
    """
    subject = Subject.of(
        options.target,
        options.policy,
        keywords(options.policy_kwargs, "--policy-kwargs"),
        options.env,
        keywords(options.env_kwargs),
        options.wrap.kwargs(),
        trust=options.trust,
    )
    usual = NUM_WATCHED if options.watch else NUM_EPISODES
    return play(
        subject,
        num_episodes=usual if options.episodes is None else options.episodes,
        greedy=options.greedy,
        seed=SEED if options.seed is None else options.seed,
        max_steps=options.max_steps,
        backend=options.backend,
        num_envs=options.num_envs,
        num_workers=options.num_workers,
        batch_size=options.batch_size,
        device=options.device,
        torch_threads=options.torch_threads,
        video=options.video,
        num_videos=options.videos,
        video_seeds=options.video_seeds,
        snapshots=SNAPSHOT_STEPS if options.snapshots == () else options.snapshots,
        snapshots_folder=options.snapshots_folder or f"snapshots-{file_name(str(subject.env))}",
        watch=console if options.watch else None,
        save=options.save,
        after=after,
    )


def lines(evaluation: Evaluation) -> Iterator[RenderableType]:
    """Yield an Evaluation's output: a heading, a table of statistics, and notes."""
    num = len(evaluation.episodes)
    how = "" if evaluation.policy == "random" else ", most likely actions" if evaluation.greedy else ", sampled actions"
    played = f"{num:,} episode{'s' * (num != 1)}, seed {evaluation.seed}{how}"
    yield escape(f"{evaluation.env}, {evaluation.policy}: {played}")
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for name in ("mean", "95 %", "least", "median", "most"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, statistics in evaluation.spreads().items():
        mean, low, high, *rest = (_text(value) for value in statistics)
        table.add_row(name, mean, f"{low} – {high}" if num > 1 else "", *rest)
    yield table
    if num > 1:
        yield "95 %: the interval of the mean, by bootstrap over episodes."
    if evaluation.num_cut:
        cut = f"{evaluation.num_cut:,} of them" if evaluation.num_cut < num else "All"
        yield f"{cut} were cut at {evaluation.max_steps:,} steps; --max-steps allows more."
    if evaluation.num_failed:
        yield f"{evaluation.num_failed:,} of them failed, and are left out."
    for path in evaluation.videos:
        yield escape(f"filmed in {path}")
    if evaluation.snapshots:
        paths = [Path(path) for path in evaluation.snapshots]
        yield escape(f"pictures in {paths[0].parent}: {', '.join(path.name for path in paths)}")
    yield from map(escape, evaluation.notes)


def _text(value: float) -> str:
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.3f}"
