"""Train BenchMARL's MADDPG, with its own settings, on a scenario of mpe2; print the outcome as JSON in the last line.

Runs in a virtual environment of its own. The argument is JSON: module, the scenario's in mpe2; env_kwargs; steps, of
the environment; seed; episodes, of the evaluation, with the policy's actions without noise; changes of settings;
folder, an existing one for checkpoints (1 GB each). A run that was stopped goes on from the newest that is whole; from
then on it draws other random numbers than a run that was not stopped.
"""

from __future__ import annotations

import importlib
import json
import pickle
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from benchmarl.algorithms import MaddpgConfig
from benchmarl.environments import PettingZooTask
from benchmarl.environments.pettingzoo.common import PettingZooClass
from benchmarl.experiment import Callback, Experiment, ExperimentConfig
from benchmarl.models.mlp import MlpConfig
from torchrl.envs import EnvBase, PettingZooWrapper
from torchrl.envs.utils import ExplorationType, set_exploration_type

TASKS = {
    "simple_spread_v3": PettingZooTask.SIMPLE_SPREAD,
    "simple_speaker_listener_v4": PettingZooTask.SIMPLE_SPEAKER_LISTENER,
}
MAX_CYCLES = 25
STEPS_PER_CHECKPOINT = 60_000  # a multiple of the 6,000 that are collected before updates


class Mpe2(PettingZooClass):
    """A task of BenchMARL whose environments are those of mpe2, which this project plays, too."""

    def get_env_fun(
        self, num_envs: int, continuous_actions: bool, seed: int | None, device: Any
    ) -> Callable[[], EnvBase]:
        """Return a function that makes an environment."""
        module = importlib.import_module(f"mpe2.{self.config['task']}")

        def make() -> EnvBase:
            env = module.parallel_env(continuous_actions=continuous_actions, max_cycles=MAX_CYCLES)
            return PettingZooWrapper(env, return_state=True, categorical_actions=True, seed=seed, device=device)

        return make


class Optimizers(Callback):
    """Puts the optimizers into checkpoints, in which BenchMARL has weights, buffers and the collector only."""

    def on_state_dict(self, state_dict: dict[str, Any]) -> None:
        state_dict["optimizers"] = {
            group: {name: optimizer.state_dict() for name, optimizer in optimizers.items()}
            for group, optimizers in self.experiment.optimizers.items()
        }

    def on_load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for group, states in state_dict["optimizers"].items():
            for name, state in states.items():
                self.experiment.optimizers[group][name].load_state_dict(state)


def main() -> None:
    task = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    config = ExperimentConfig.get_from_yaml()
    config.max_n_frames, config.loggers, config.create_json = task["steps"], [], False
    config.evaluation, config.render, config.save_folder = False, False, task["folder"]
    config.checkpoint_interval, config.keep_checkpoints_num = STEPS_PER_CHECKPOINT, 2  # a kill may cut one short
    config.prefer_continuous_actions = task["env_kwargs"]["continuous_actions"]
    for name, value in task["changes"].items():
        setattr(config, name, value)
    experiment = continued(task, config)
    experiment.run()
    seconds = experiment.total_time
    returns = evaluate(experiment, task["episodes"], task["seed"])
    versions = {name: version(name) for name in ("benchmarl", "torchrl", "torch", "mpe2")}
    outcome = {"mean_return": round(sum(returns), 3), "agent_returns": returns, "seconds": round(seconds, 1)}
    print(json.dumps({**outcome, "versions": versions}), flush=True)


def continued(task: dict[str, Any], config: ExperimentConfig) -> Experiment:
    """Return an experiment from the newest whole checkpoint in the task's folder, or a new one."""
    scenario = TASKS[task["module"]]
    env_config = {"task": task["module"], "max_cycles": MAX_CYCLES}

    def experiment(checkpoint: Path | None) -> Experiment:
        config.restore_file = None if checkpoint is None else str(checkpoint)
        return Experiment(
            task=Mpe2(name=scenario.name, config=env_config),
            algorithm_config=MaddpgConfig.get_from_yaml(),
            model_config=MlpConfig.get_from_yaml(),
            critic_model_config=MlpConfig.get_from_yaml(),
            seed=task["seed"],
            config=config,
            callbacks=[Optimizers()],
        )

    checkpoints = Path(task["folder"]).glob("*/checkpoints/*.pt")
    for checkpoint in sorted(checkpoints, key=lambda path: path.stat().st_mtime, reverse=True):
        try:
            return experiment(checkpoint)
        except (EOFError, OSError, RuntimeError, pickle.UnpicklingError) as error:
            print(f"{checkpoint} is left out: {error!r}", file=sys.stderr)
    return experiment(None)


def evaluate(experiment: Any, episodes: int, seed: int) -> list[float]:
    """Return each agent's mean return over episodes."""
    totals: dict[str, Any] = {}
    env = experiment.test_env
    env.set_seed(10_000 + seed)
    with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
        for _ in range(episodes):
            played = env.rollout(MAX_CYCLES, experiment.policy)
            for group, agents in experiment.group_map.items():
                rewards = played["next", group, "reward"].sum(0).flatten().tolist()
                for agent, reward in zip(agents, rewards, strict=True):
                    totals[agent] = totals.get(agent, 0.0) + reward
    return [round(total / episodes, 3) for total in totals.values()]


if __name__ == "__main__":
    main()
