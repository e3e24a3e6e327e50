"""DQN with actors on Ray, as in Gorila: actors play on any machines, and one learner trains on a replay buffer.

    python -m cleanrl_demo.dqn_ray --env ocean/squared --num-actors 4                   # Ray on this machine
    python -m cleanrl_demo.dqn_ray --env ocean/squared --num-actors 64 --address auto   # a running cluster

Each actor has its own environments (any local backend) and a copy of the network, and plays ``rollout_length`` steps of
each environment with random actions at a share of epsilon. The learner, in this process, adds the first
``rollouts_per_update`` rollouts to arrive to its replay buffer, takes the updates that are due after so many steps, and
pushes the new weights, with epsilon, to the actors. Updates, targets and settings are those of ``dqn.py``. As the
learner is off-policy, rollouts of older weights need no correction.

Source: Nair et al., arXiv:1507.04296 (Gorila). There, several learners send gradients to a server of parameters; here
one learner has the parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, cast

import gymnasium
import numpy as np
import torch
from torch import Tensor

import pufferlib
from cleanrl_demo import dqn
from cleanrl_demo.appo_ray import PolicyActor
from cleanrl_demo.dqn import NETWORK, Greedy, Learner, charts, due_updates, epsilon_at
from pufferlib.layout import Layout
from pufferlib.training import Fleet, FleetConfig, ReplayBuffer, Result, Session, main, resumed, run
from pufferlib.training.fleet import connect
from pufferlib.training.lines import Lines
from pufferlib.training.rollout_actor import packed
from pufferlib.vectorization.core.infos import Infos


@dataclass(frozen=True)
class Config(dqn.Config, FleetConfig):
    """Train a policy with DQN on Ray. One step is one action of one agent."""

    algorithm: ClassVar[str] = "dqn_ray"

    env: str = "ocean/squared"
    """name of the environment (`puffer envs` lists them), Gymnasium id, or your own module:callable"""
    num_envs: int = 16
    """environments of each actor; the learner has as many, for the evaluation at the end"""
    num_workers: int | None = 1
    """processes of an actor's environments; None: one for each core"""
    rollout_length: int = 16
    """steps of each environment in a rollout"""
    rollouts_per_update: int | None = 1
    """rollouts between pushes of weights: the first that arrive; None: as many as there are actors"""
    max_lag: int = 100
    """maximum age of an arriving rollout, in pushes; older ones are dropped. 0: actors wait for new weights"""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("1 or more", lambda value: value >= 1, "rollout_length")

    def made_as(self) -> tuple[str, Mapping[str, Any]]:
        """Return the policy's name and its keyword arguments."""
        return "cleanrl_demo.dqn_ray:EpsilonGreedy", super().made_as()[1]


class EpsilonGreedy(Greedy):
    """A Greedy policy whose weights include epsilon, the share of random actions of actors, so that it is pushed, too.

    Elsewhere, as in ``puffer eval``, the policy plays the best action.
    """

    epsilon: Tensor

    def __init__(
        self, observation_layout: Layout, action_space: gymnasium.Space[Any], network: str = NETWORK, **kwargs: Any
    ) -> None:
        super().__init__(observation_layout, action_space, network, **kwargs)
        self.register_buffer("epsilon", torch.ones(()))


class EpsilonGreedyActor(PolicyActor):
    """An actor that plays rollouts with its copy of the network and epsilon, on any machine."""

    def act(self, batch: Any, rows: slice) -> Any:
        """Return the actions for a batch, as ``VecEnv.send`` takes them; store them in the rollout's ``rows``."""
        policy, observations = cast("EpsilonGreedy", self.actor.policy), self.rollout.observations[rows]
        mask = self.actor.mask(observations)
        discrete_actions = policy.choose(observations, mask, float(policy.epsilon), self.generator)
        self.rollout.discrete_actions[rows, 0] = torch.from_numpy(discrete_actions)
        return policy.actions(discrete_actions)


def add(replay: ReplayBuffer, lines: Lines) -> int:
    """Add the transitions of a rollout to a buffer for as many agents; return the number of steps."""
    num_steps, ids = 0, np.arange(lines.masks.shape[1])
    nothing = np.zeros(len(ids), np.bool_)
    previous: tuple[np.ndarray, ...] = (np.zeros(len(ids), np.float32), nothing, nothing, nothing)
    columns = (lines.rewards, lines.terminations, lines.truncations, lines.masks)
    for row, observations in enumerate(lines.observations):
        rewards, terminations, truncations, masks = previous  # outcomes of the actions of the row before
        arrays = (observations, rewards, terminations, truncations, ids, ids, masks)
        batch = pufferlib.Batch.of(arrays, Infos([], ids, 1))
        num_steps += replay.add(batch, observations, lines.discrete_actions[row, :, 0], rewards, terminations)
        previous = tuple(column[row] for column in columns)
    replay.end()  # the agents' last rows, whose actions have no outcome yet, come again in the next rollout
    return num_steps


def update(learner: Learner, rollouts: Sequence[Lines], config: Config) -> dict[str, float]:
    """Add rollouts to the buffer, and take the updates that are then due; return scalars to report."""
    learner.num_steps += sum(add(learner.replay, lines) for lines in rollouts)
    return charts(learner, due_updates(learner, config))


def push(fleet: Fleet, learner: Learner, config: Config, version: int) -> float:
    """Push the weights and epsilon to the actors, as a new version; return epsilon."""
    policy, epsilon = cast("EpsilonGreedy", learner.policy), epsilon_at(config, learner.num_steps)
    policy.epsilon.fill_(epsilon)
    fleet.broadcast(version, policy)
    return epsilon


def learn(session: Session, learner: Learner, config: Config) -> None:
    """Learn from the rollouts that actors play, until ``total_steps`` transitions have been added to the buffer."""
    report, setup = session.report, packed(replace(config, device="cpu"), session.env, session.origin)
    version = 0
    with Fleet(connect(config), report, config, EpsilonGreedyActor, setup) as fleet:
        for last_step in session.stretches():
            epsilon = push(fleet, learner, config, version)
            fleet.begin(session.seed)
            while session.goes_on(last_step):
                report.phase("environments")
                rollouts, lags = fleet.gather(config.num_rollouts)
                report.phase("learning")
                scalars = {"charts/epsilon": epsilon, **update(learner, rollouts, config)}
                version += 1
                epsilon = push(fleet, learner, config, version)
                report.update(learner.num_steps, {**scalars, "charts/lag": float(np.mean(lags)), **fleet.charts()})


def train(config: Config, env: Callable[..., Any] | None = None) -> Result:
    """Train a policy, evaluate it greedily on fresh seeds, and return the result.

    env: a creator to use instead of config.env. Raises SpaceError if the actions are not Discrete, and as
    ``appo_ray.train`` does for what happens to actors and to Ray.
    """
    return run(config, Learner, learn, env=env)


def resume(
    folder: Path, env: Any = None, total_steps: int | None = None, *, trust: bool = False
) -> tuple[Config, Result]:
    """Resume the run in a folder (see ``session.resumed``); return its settings and its result."""
    return resumed(folder, Config, Learner, learn, env, total_steps, trust)


if __name__ == "__main__":
    main(Config, train)
