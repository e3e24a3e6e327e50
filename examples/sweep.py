"""A sweep: Optuna searches for good hyperparameters of PPO and writes the best ones to a file of settings.

    pip install "pufferlib[train,sweep]"
    python examples/sweep.py --env ocean/squared --num-trials 30 --out best.toml
    puffer train --config best.toml

A trial trains with several seeds in turn, and its value is the mean of their returns, because a single good run may be
luck. A trial is pruned if its first seeds are below the median of earlier trials.
"""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import optuna
import tyro

from cleanrl_demo.ppo import Config, train
from pufferlib.util.toml import to_toml


@dataclass(frozen=True)
class Options:
    """Search for hyperparameters of PPO."""

    env: str = "ocean/squared"
    num_trials: int = 30
    num_seeds: int = 3
    """of each trial; different from the usual ones, so that a test of the best settings on those is fair"""
    total_steps: int = 60_000
    """of each training"""
    num_envs: int = 32
    backend: str = "pool"
    out: Path | None = None
    """a file for the best settings, which are always printed"""


def suggested(trial: optuna.Trial) -> dict[str, float | int]:
    """Return the settings of a trial, drawn from the search space."""
    return {
        "learning_rate": trial.suggest_float("learning_rate", 1e-4, 1e-2, log=True),
        "entropy_coefficient": trial.suggest_float("entropy_coefficient", 1e-4, 0.1, log=True),
        "gamma": 1 - trial.suggest_float("one_minus_gamma", 1e-3, 0.1, log=True),
        "num_epochs": trial.suggest_int("num_epochs", 1, 10),
        "rollout_length": trial.suggest_categorical("rollout_length", [16, 32, 64]),
    }


def main(options: Options) -> None:
    """Run the sweep, and print the best settings as TOML."""
    fixed = {name: getattr(options, name) for name in ("env", "total_steps", "num_envs", "backend")}

    def mean_return(trial: optuna.Trial) -> float:
        returns = []
        for seed in range(options.num_seeds):
            settings = {**fixed, **suggested(trial), "seed": 1_000 + seed}
            returns.append(train(Config(**settings, eval_episodes=100, runs=None)).mean_return)
            trial.report(float(np.mean(returns)), seed)
            if trial.should_prune():
                raise optuna.TrialPruned
        return float(np.mean(returns))

    pruner = optuna.pruners.MedianPruner(n_startup_trials=5)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=1), pruner=pruner)
    study.optimize(mean_return, options.num_trials)
    best = {**fixed, **suggested(optuna.trial.FixedTrial(study.best_params))}
    assert set(best) <= {field.name for field in dataclasses.fields(Config)}
    text = f"# mean return {study.best_value:.3f} over {options.num_seeds} seeds\n{to_toml(best)}"
    print(text, end="")
    if options.out is not None:
        options.out.write_text(text, encoding="utf-8")
        print(f"Next: puffer train --config {options.out}", file=sys.stderr)


if __name__ == "__main__":
    main(tyro.cli(Options))
