"""Learned responses for the loops of ``pufferlib.population``: PPO or DQN against opponents drawn from a mixture.

    with pufferlib.make(partial(GameEnv, "leduc_poker", observation="index"), num_envs=256, seed=1) as vec:
        oracle = LearnedOracle(vec, PolicyPool(), ppo.Config(total_steps=100_000, gamma=1.0))
        for iteration in psro(oracle, PayoffTable(2), solvers.alpha_rank, evaluate=Evaluator(vec, oracle.pool)):
            …

The trainers are ``ppo.py`` and ``dqn.py`` of ``cleanrl_demo``, unchanged. They step a ``LearnerView``, which shows
them only the rows in which one seat acts. A router plays the other seats; it draws their policies for each episode.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np

from pufferlib import VecEnv
from pufferlib.errors import PlanError
from pufferlib.models import Origin
from pufferlib.population import (
    ImprovingOracle,
    LearnerView,
    Matchup,
    Mixture,
    Oracle,
    PolicyPool,
    Router,
    Sampled,
    Seat,
    product,
    seats_of,
)
from pufferlib.training.minibatches import require_rows
from pufferlib.training.report import require_finite
from pufferlib.training.run_config import RunConfig
from pufferlib.training.session import torch_set_up

# The function of each trainer that makes a learner.
LEARNERS = {"ppo": "make_learner", "dqn": "Learner"}
# Keys of a learner's state that an improvement does not restore: they are stored elsewhere, or start from scratch.
# DQN's target network starts from scratch too: the first update copies the trained network to it.
NOT_RESUMED = {"weights", "target", "generator", "replay", "num_steps", "num_updates"}


def trainer_of(algorithm: str) -> Any:
    """Import a trainer's module by its algorithm's name, and return it.

    Trainers are in a higher layer than this module, which therefore cannot import them at its top.
    """
    return import_module(f"cleanrl_demo.{algorithm}")


class LearnedOracle(Oracle, ImprovingOracle):
    """An oracle whose policies learn by playing: it trains responses, and improves learners.

    vec: a VecEnv on any backend, made with ``as_torch=True`` and any autoreset mode but "same_step"; it is reset for
    each policy. pool: the pool to which policies are added. config: ``ppo.Config`` or ``dqn.Config``, whose
    ``algorithm`` selects the trainer. Its ``total_steps`` is the number of rows in which the seat acts, for each
    response or improvement; settings of a run's environments, folder and evaluation are ignored. warm: whether a
    response starts with the weights of its seat's newest policy instead of new weights; if that policy was made with
    another class or other arguments than the oracle's, new weights are used anyway. seats: as in ``Router``.

    Attribute num_episodes: the number of finished episodes so far. Equal seeds give equal policies if the VecEnv gives
    equal batches.

    During training, the pool also has a temporary learner, which is removed at the end. A learner's optimizer and PPO's
    statistics of reward sizes continue from one improvement to the next, as part of the learner's state in the pool;
    the learning rate starts over in each improvement.

    Raises PlanError for ``frame_stack`` above 1, since a trainer sees only some of its agents' observations, for a
    device other than the CPU, since routers compute on the CPU, and for ``compile``. Training raises PlanError for
    settings that the trainer rejects, for a VecEnv with ``autoreset_mode="same_step"``, and if there are too few rows
    for the minibatches.
    """

    def __init__(
        self,
        vec: VecEnv,
        pool: PolicyPool,
        config: RunConfig,
        *,
        warm: bool = True,
        seats: Sequence[Seat] | None = None,
    ) -> None:
        if config.frame_stack > 1 or config.device != "cpu":
            raise PlanError(f"frame_stack={config.frame_stack}, device={config.device!r}: an oracle has 1, and cpu")
        if config.compile:
            raise PlanError("compile=True: an oracle learns many policies, and would compile each; leave compile out")
        self.pool, self.num_episodes = pool, 0
        self._vec, self._config, self._warm = vec, config, warm
        self._seats = seats_of(vec) if seats is None else tuple(seats)
        self._origin = Origin(*config.made_as())
        self._seeds = np.random.SeedSequence(config.seed)

    def initial(self, seat: int) -> int:
        """Add an untrained policy for a seat to the pool, and return its id."""
        with torch_set_up(self._seeded()):
            actor = self._origin.actor(self._vec.observation_layout, self._vec.single_action_space)
        return self.pool.add(actor.policy, self._origin, self._seats[seat].name)

    def respond(self, seat: int, mixture: Mixture) -> int:
        """Train a policy to play a seat against a mixture, add it to the pool, and return its id."""
        newest = mixture.populations[seat][-1]
        warm = self._warm and self.pool.origin(newest) == self._origin
        learner = self._trained(seat, mixture, self.pool.weights(newest) if warm else None)
        return self.pool.add(learner.actor.policy, self._origin, self._seats[seat].name)

    def begin(self, seat: int) -> int:
        """Add an untrained learner for a seat to the pool, and return its id."""
        with torch_set_up(self._seeded()):
            actor = self._origin.actor(self._vec.observation_layout, self._vec.single_action_space)
        return self.pool.add_learner(actor.policy.state_dict(), self._origin, self._seats[seat].name)

    def improve(self, seat: int, learner: int, mixture: Mixture) -> None:
        """Train a learner further to play a seat against a mixture, and publish the result in the pool."""
        trained = self._trained(seat, mixture, self.pool.weights(learner), self.pool.state(learner))
        state = {name: value for name, value in trained.state().items() if name not in NOT_RESUMED}
        self.pool.publish(learner, trained.actor.policy.state_dict(), state)

    def _trained(
        self, seat: int, mixture: Mixture, weights: Mapping[str, Any] | None, state: Mapping[str, Any] | None = None
    ) -> Any:
        """Train a learner to play a seat against a mixture, count the episodes, and return the learner.

        weights: initial weights; None draws new ones. state: other parts of a learner's state to restore, if
        ``weights`` are given. Raises PlanError if there are too few rows for the minibatches.
        """
        config = self._seeded()
        trainer = trainer_of(config.algorithm)
        make_learner = getattr(trainer, LEARNERS[config.algorithm])
        num_rows = config.rows_per_update(self._vec) // self._vec.agents_per_env
        require_rows(config, num_rows * len(self._seats[seat].places))
        with torch_set_up(config):
            learner = make_learner(self._vec, self._origin, config)
            if weights is not None:
                learner.restore({**learner.state(), **(state or {}), "weights": weights})
            learner_id = self.pool.add_learner(learner.actor, self._origin, self._seats[seat].name)
            try:
                opponents = Opponents(mixture, seat, learner_id, config.seed)
                router = Router(self.pool, self._vec, opponents, seats=self._seats, seed=config.seed)
                trainer.learn(Practice(LearnerView(self._vec, router, learner_id), learner, config), learner, config)
            finally:
                self.pool.drop(learner_id)
        self.num_episodes += opponents.num_episodes
        return learner

    def _seeded(self) -> RunConfig:
        """Return the oracle's settings, with the next seed of its sequence."""
        return replace(self._config, seed=int(self._seeds.spawn(1)[0].generate_state(1)[0]))


class Opponents(Sampled):
    """A matchmaker that draws a learner's opponents from a mixture for each episode, and counts finished episodes."""

    def __init__(self, mixture: Mixture, seat: int, learner: int, seed: int) -> None:
        populations = [*mixture.populations[:seat], (learner,), *mixture.populations[seat + 1 :]]
        if mixture.joint is None:
            marginals = [*mixture.marginals[:seat], np.ones(1), *mixture.marginals[seat + 1 :]]
            super().__init__(product(populations, marginals), seed)
        else:
            super().__init__(Mixture.of_joint(populations, mixture.joint.sum(seat, keepdims=True)), seed)
        self.num_episodes = 0

    def report(self, env_id: int, matchup: Matchup, returns: Any) -> None:
        self.num_episodes += returns is not None


class Practice:
    """A stand-in for the Session that a trainer's ``learn`` uses.

    It has one stretch, and serves as its own report; as a report, it only checks that losses are finite.
    """

    def __init__(self, vec: LearnerView, learner: Any, config: RunConfig) -> None:
        self.vec, self.report, self._learner, self._config = vec, self, learner, config

    def stretches(self) -> Iterator[int]:
        self.vec.async_reset(seed=self._config.seed)
        yield self._config.total_steps

    def goes_on(self, last_step: int) -> bool:
        return bool(self._learner.num_steps < last_step)

    def film(self) -> None:
        pass

    def phase(self, name: str) -> None:
        pass

    def infos(self, infos: Any) -> None:
        pass

    def update(self, num_steps: int, scalars: Any) -> None:
        require_finite(num_steps, scalars)
