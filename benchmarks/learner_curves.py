"""CartPole's return over the seconds of training: ppo_fused, ppo, Stable-Baselines3 and a script in CleanRL's style.

The part of learner.py that draws curves. ``ppo_fused`` and ``ppo`` have the settings of its part ``cartpole``. The
other two have those that their authors publish for CartPole: of RL Baselines3 Zoo, without the schedule of its clip
range, and the defaults of CleanRL's ppo.py. Each trains in an environment of its own making, on one thread; returns are
means over the latest episodes.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.learner_trainings import CARTPOLE, EAGER, FUSED
from benchmarks.train import Contestant, run
from benchmarks.trainers.settings import Settings
from cleanrl_demo import ppo, ppo_fused
from pufferlib.training.plot import TAG, Curve, band_of, curves_of, draw

__all__ = ["PICTURE", "curves_text", "draw_curves", "measure_curves"]

PICTURE = Path(__file__).parent.parent / "docs" / "curves" / "learner-cartpole.png"
GOAL = 475.0
OURS = {"ppo_fused": (ppo_fused, FUSED), "ppo": (ppo, EAGER)}
ZOO = Settings(
    "cartpole",
    total_steps=100_000,
    num_envs=8,
    num_epochs=20,
    num_minibatches=1,
    gamma=0.98,
    gae_lambda=0.8,
    entropy_coefficient=0.0,
)
CLEANRL = Settings("cartpole", total_steps=200_000, num_envs=4, rollout_length=128, learning_rate=2.5e-4)
OTHERS = {
    "SB3": (Contestant("", "stable_baselines", {"cartpole": {"vectorizer": "dummy", "curve": "seconds"}}), ZOO),
    "CleanRL-style script": (
        Contestant("", "vector_ppo", {"cartpole": {"vectorizer": "sync", "curve": "seconds"}}),
        CLEANRL,
    ),
}
Curves = dict[str, list[dict[str, list[float]]]]  # of each side, for each seed: seconds and returns


def measure_curves(seeds: Sequence[int], share: float = 1.0) -> Curves:
    """Train each side with each seed; return the curves. share: of the steps to train.

    Leaves out Stable-Baselines3 if it is not installed.
    """
    curves: Curves = {}
    for seed in seeds:
        for name, (trainer, settings) in OURS.items():
            curves.setdefault(name, []).append(our_curve(trainer, {**CARTPOLE, **settings, "seed": seed}, share))
        for name, (contestant, others) in OTHERS.items():
            if name == "SB3" and find_spec("stable_baselines3") is None:
                continue
            total_steps = int(share * others.total_steps)
            task = replace(others, seed=seed, total_steps=total_steps, eval_episodes=others.num_envs)
            points = run(contestant, task, Path(sys.executable))["curve"]
            seconds, returns = np.array(points).T.tolist()
            curves.setdefault(name, []).append({"seconds": seconds, "returns": returns})
        print(f"seed {seed}: {', '.join(f'{name} {last(parts[-1])}' for name, parts in curves.items())}", flush=True)
    return curves


def our_curve(trainer: Any, settings: Mapping[str, Any], share: float) -> dict[str, list[float]]:
    """Train with one of our trainers; return the seconds and the returns that it reports."""
    with tempfile.TemporaryDirectory() as runs:
        changed = {"runs": runs, "total_steps": int(share * settings["total_steps"])}
        folder = trainer.train(trainer.Config(**{**settings, **changed})).run_folder
        (curve,) = curves_of([folder], TAG, "seconds").values()
    return {"seconds": curve.steps.tolist(), "returns": curve.values.tolist()}


def last(curve: Mapping[str, Sequence[float]]) -> str:
    """Return in words where a curve ends."""
    return f"{curve['returns'][-1]:.0f} after {curve['seconds'][-1]:.2f} s"


def draw_curves(curves: Curves, out: Path) -> None:
    """Draw the mean of each side's curves, with its interval, over a logarithmic axis of seconds."""
    bands = []
    for name, parts in curves.items():
        numbers = [Curve(np.array(part["seconds"]), np.array(part["returns"])) for part in parts]
        bands.append(band_of(f"{name}: {len(parts)} seed{'s' * (len(parts) > 1)}", numbers))
    draw(bands, out, "seconds of training", "episodic return", x_scale="log")


def curves_text(curves: Curves) -> str:
    """Return the Markdown of the picture, and of the seconds after which each side's return first reaches GOAL."""
    parts = []
    for name, runs in curves.items():
        reached = [next((s for s, value in zip(*part.values(), strict=True) if value >= GOAL), None) for part in runs]
        times = sorted(seconds for seconds in reached if seconds is not None)
        within = f"{times[0]:.2f} to {times[-1]:.2f} s, " if times else ""
        parts.append(f"{name} {within}{len(times)} of {len(runs)} seeds")
    return (
        f"![CartPole's return over seconds of training](curves/{PICTURE.name})\n\n"
        f"Seconds until the latest episodes of training first have a mean return of {GOAL:.0f}: {'; '.join(parts)}."
    )
