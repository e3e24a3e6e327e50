"""APPO and IMPALA in one file, on Ray: actors play on any machines, and one learner trains on their rollouts.

    python -m cleanrl_demo.appo_ray --env ocean/squared --num-actors 4                   # Ray on this machine
    python -m cleanrl_demo.appo_ray --env ocean/squared --num-actors 64 --address auto   # a running cluster

Each actor has its own environments (any local backend) and a copy of the policy. It plays ``rollout_length`` steps of
each environment, and puts this rollout, with one sequence of rows per agent, in Ray's object store. The learner, in
this process, receives references to rollouts and trains on the first ``rollouts_per_update`` to arrive. It then puts
the new weights, a new *version* of the policy, in the store once, and each actor fetches them before its next rollout.

When the learner trains on a rollout, the policy may be some versions newer than the version that played it; their
number is the rollout's *lag*. V-trace gives less weight to actions that the new version is less likely to choose than
the old version. Rollouts with a lag above ``max_lag`` are dropped. Episode ends, masks and memories are handled as in
``ppo.py`` and ``ppo_lstm.py``; the ``Rollout`` of ``ppo_lstm.py`` links the rows of each agent.
``pufferlib.training.fleet`` manages the actors.

Source: Espeholt et al., arXiv:1802.01561 (IMPALA, V-trace); Schulman et al., arXiv:1707.06347 (the clipped loss); Luo
et al., arXiv:1912.00167 (both combined); Hilton et al., arXiv:2110.00641 (the loss is clipped around the policy before
the update, not around the one that played).
"""

from __future__ import annotations

import math
import pickle
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

import pufferlib
from cleanrl_demo.ppo_lstm import SCHEDULES, Rollout
from pufferlib.errors import PlanError
from pufferlib.models import Actor, Distribution, Memory, Origin, State, observe
from pufferlib.training.fleet import Fleet, RolloutReport, connect, node_name
from pufferlib.training.minibatches import as_one, shares
from pufferlib.training.recent_statistics import numbers_in
from pufferlib.training.results import Result
from pufferlib.training.reward_processing import RewardProcessing
from pufferlib.training.session import RunConfig, Session, environments, main, resumed, run
from pufferlib.vectorization.core import transfer
from pufferlib.vectorization.ray.connection import ray_module

LOSSES = ("appo", "impala")


@dataclass(frozen=True)
class Config(RunConfig):
    """Train a policy, recurrent or not, with APPO or IMPALA on Ray. One step is one action of one agent."""

    algorithm: ClassVar[str] = "appo_ray"

    num_actors: int = 2
    """number of actors: processes on any machines of the cluster, each with its own environments"""
    address: str | None = None
    """address of a running cluster: auto, or host:port; default: RAY_ADDRESS if set, else Ray starts on this machine"""
    cpus_per_actor: float = 1.0
    """CPUs that Ray reserves for an actor, its num_workers processes included"""
    backend: str = "serial"
    """backend of an actor's environments: serial, multiprocessing or pool"""
    num_envs: int = 16
    """environments of each actor; the learner has as many, for the evaluation at the end"""
    num_workers: int | None = 1
    """processes of an actor's environments; None: one for each core"""
    device: str = field(default_factory=lambda: "cuda" if torch.cuda.is_available() else "cpu")
    """where the policy learns; default: cuda if available. Actors play on the CPU"""
    rollout_length: int = 32
    """steps of each environment in a rollout"""
    rollouts_per_update: int | None = None
    """rollouts per update: the first that arrive; default: as many as there are actors"""
    max_lag: int = 8
    """maximum age of an arriving rollout, in policy versions; older ones are dropped. 0: actors wait for new weights"""
    loss: str = "appo"
    """appo: the clipped loss, for several epochs; impala: the policy gradient, for one epoch"""
    normalize_observations: bool = False
    """scale observed numbers to mean 0 and standard deviation 1, given the data so far; saved with the policy"""
    learning_rate: float = 1e-3
    """learning rate at the start"""
    schedule: str = "linear"
    """schedule of the learning rate: linear or cosine, which fall to 0, or constant"""
    num_epochs: int = 4
    num_minibatches: int = 4
    gamma: float = 0.99
    gae_lambda: float = 0.95
    rho_bar: float = 1.0
    """V-trace's bound on an action's weight; it determines which policy's values are learnt"""
    c_bar: float = 1.0
    """V-trace's bound on the weights of later actions; it determines how fast values are learnt"""
    clip: float = 0.2
    advantage_floor: float = 0.1
    """minimum of the standard deviation by which advantages are divided"""
    entropy_coefficient: float = 0.01
    value_coefficient: float = 0.5
    max_grad_norm: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("1 or more", lambda value: value >= 1, "num_actors", "rollout_length", "num_epochs")
        self.require("1 or more", lambda value: value >= 1, "num_minibatches")
        self.require("0 or more", lambda value: value >= 0, "max_lag")
        self.require("1 or more, or None", lambda value: value is None or value >= 1, "rollouts_per_update")
        self.require("0 to 1", lambda value: 0 <= value <= 1, "gamma", "gae_lambda")
        self.require("more than 0", lambda value: value > 0, "rho_bar", "c_bar", "cpus_per_actor")
        self.require("more than 0", lambda value: value > 0, "clip", "advantage_floor", "max_grad_norm")
        self.require(", ".join(SCHEDULES), lambda value: value in SCHEDULES, "schedule")
        self.require(", ".join(LOSSES), lambda value: value in LOSSES, "loss")
        if self.loss == "impala" and self.num_epochs > 1:
            raise PlanError(f"num_epochs={self.num_epochs} with loss='impala', which is not clipped; use 1, or appo")
        if self.num_actors > max(1, self.max_lag) * self.num_rollouts:
            raise PlanError(
                f"num_actors={self.num_actors} with rollouts_per_update={self.rollouts_per_update} play faster than is "
                f"learnt, and max_lag={self.max_lag} drops most of it; use more of either"
            )
        if self.max_lag == 0 and self.num_rollouts % self.num_actors:
            raise PlanError(
                f"max_lag=0 has all actors play the same weights, so rollouts_per_update={self.num_rollouts} has to be "
                f"a multiple of num_actors={self.num_actors}"
            )
        if self.video_envs:
            raise PlanError("video_envs: actors' environments are not filmed; puffer eval RUN --video films the policy")

    @property
    def num_rollouts(self) -> int:
        """The number of rollouts per update."""
        return self.num_actors if self.rollouts_per_update is None else self.rollouts_per_update

    def rows_per_update(self, vec: pufferlib.VecEnv) -> int:
        """Return the largest number of rows that an update can learn from: that of ``num_rollouts`` whole rollouts."""
        return super().rows_per_update(vec) * self.num_rollouts

    def made_as(self) -> tuple[str, Mapping[str, Any]]:
        """Return the policy's name and its keyword arguments."""
        normalize = {"normalize": True} if self.normalize_observations else {}
        return self.policy, {**normalize, **self.policy_kwargs}


def train(config: Config, env: Callable[..., Any] | None = None) -> Result:
    """Train a policy, evaluate it on fresh seeds, and return the result. env: a creator to use instead of config.env.

    Raises WorkerError if an environment raises in an actor or an actor dies repeatedly; MissingExtra if Ray is not
    installed; PlanError if there is no Ray at the address.
    """
    return run(config, make_learner, learn, env=env)


def resume(
    folder: Path, env: Any = None, total_steps: int | None = None, *, trust: bool = False
) -> tuple[Config, Result]:
    """Resume the run in a folder (see ``session.resumed``); return its settings and its result."""
    return resumed(folder, Config, make_learner, learn, env, total_steps, trust)


# ---------------------------------------------------------------------------------------------------------- learning


@dataclass
class Learner:
    """The training state, which checkpoints save. version: the number of updates of the policy so far."""

    actor: Actor
    optimizer: torch.optim.Optimizer
    generator: torch.Generator
    num_steps: int = 0
    version: int = 0

    def state(self) -> dict[str, Any]:
        """Return the training state as plain values and tensors."""
        return {
            "weights": self.actor.policy.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "generator": self.generator.get_state(),
            "num_steps": self.num_steps,
            "version": self.version,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state that ``state`` returned."""
        self.actor.policy.load_state_dict(state["weights"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.generator.set_state(state["generator"])
        self.num_steps, self.version = state["num_steps"], state["version"]


def make_learner(vec: pufferlib.VecEnv, origin: Origin, config: Config) -> Learner:
    """Return an untrained learner. Raises PlanError for a policy that this trainer does not support."""
    actor = origin.actor(vec.observation_layout, vec.single_action_space)
    if any(part.requires_grad for part in actor.initial_state(1) or ()):
        raise PlanError(f"policy={config.policy!r} learns its initial state; return zeros, and add to them in forward")
    actor.policy.to(config.device)
    optimizer = torch.optim.Adam([as_one(actor.policy)], config.learning_rate, eps=1e-5, fused=True)
    return Learner(actor, optimizer, torch.Generator(config.device).manual_seed(config.seed))


def learn(session: Session, learner: Learner, config: Config) -> None:
    """Train on the rollouts that actors play, until ``total_steps`` transitions have been learnt from."""
    report, setup = session.report, packed(replace(config, device="cpu"), session.env, session.origin)
    with Fleet(connect(config), report, config, PolicyActor, setup) as fleet:
        for last_step in session.stretches():
            fleet.broadcast(learner.version, learner.actor.policy)
            fleet.begin(session.seed)
            while session.goes_on(last_step):
                report.phase("environments")
                rollouts, lags = fleet.gather(config.num_rollouts)
                report.phase("learning")
                num_steps = int(sum(lines.masks.sum() for lines in rollouts))
                if not num_steps:
                    continue
                progress = min(1.0, learner.num_steps / config.total_steps)
                learner.optimizer.param_groups[0]["lr"] = config.learning_rate * SCHEDULES[config.schedule](progress)
                losses = update(learner, rollouts, config)
                learner.num_steps += num_steps
                learner.version += 1
                fleet.broadcast(learner.version, learner.actor.policy)
                report.update(learner.num_steps, {**losses, "charts/lag": float(np.mean(lags)), **fleet.charts()})


class Lines(NamedTuple):
    """The rows of one or several rollouts: steps along the first axis, agents along the second.

    All fields are NumPy arrays, or all are tensors; ``states`` is a tuple, and has no axis of steps.
    """

    observations: Any  # (steps, agents, *layout.shape)
    starts: Any  # (steps, agents) bool: rows before which the memory was reset
    discrete_actions: Any  # (steps, agents, num_choices) int64
    continuous_actions: Any  # (steps, agents, num_aims)
    log_probs: Any  # (steps, agents), of these actions by the policy that played
    rewards: Any  # (steps, agents), outcomes of these actions, as are the next two
    terminations: Any
    truncations: Any
    masks: Any  # (steps, agents) bool: which rows are valid transitions; padding and agents' last rows are not
    states: Any  # a tuple of (agents, …), the memories before the first rows

    def on(self, device: str) -> Lines:
        """Convert the rows from arrays to tensors on a device. On the CPU, the tensors share the arrays' memory."""
        *columns, states = (
            tuple(torch.from_numpy(part).to(device) for part in (column if isinstance(column, tuple) else (column,)))
            for column in self
        )
        return Lines._make([*(column for (column,) in columns), states])


def joined(rollouts: Sequence[Lines]) -> Lines:
    """Concatenate rollouts, whose fields are arrays, along the axis of agents.

    Shorter rollouts are padded with rows whose mask is unset.
    """
    num_steps = max(len(lines.masks) for lines in rollouts)

    def filled(column: np.ndarray) -> np.ndarray:
        rest = np.zeros((num_steps - len(column), *column.shape[1:]), column.dtype)
        return np.concatenate([column, rest]) if len(rest) else column

    *columns, states = zip(*rollouts, strict=True)
    memories = tuple(np.concatenate(parts) for parts in zip(*states, strict=True))
    return Lines._make([*(np.concatenate([filled(part) for part in parts], 1) for parts in columns), memories])


def update(learner: Learner, rollouts: Sequence[Lines], config: Config) -> dict[str, float]:
    """Train on the valid rows of rollouts for ``num_epochs`` epochs; return scalars to report.

    The scalars are keyed by TensorBoard name, and include the last epoch's losses. After the last epoch, the policy's
    running statistics of observations, if any, are updated with the same rows.
    """
    actor, optimizer, generator = learner.actor, learner.optimizer, learner.generator
    host = joined(rollouts)
    lines = host.on(config.device)
    with torch.no_grad():
        distribution, values = outlook(actor, lines.observations, lines.states, lines.starts)
        log_probs = distribution.log_prob(
            lines.discrete_actions.flatten(0, 1), lines.continuous_actions.flatten(0, 1)
        ).view_as(lines.masks)
        values = values.view_as(log_probs)
    log_ratios = (log_probs - lines.log_probs).cpu().numpy()
    importance = float(np.exp(np.minimum(log_ratios[host.masks], 0)).mean())
    transitions = (host.rewards, values.cpu().numpy(), host.terminations, host.truncations, host.masks)
    bounds = (config.gamma, config.gae_lambda, config.rho_bar, config.c_bar)
    corrections, advantages = map(torch.from_numpy, vtrace(log_ratios, *transitions, *bounds))
    returns, advantages = values + corrections.to(config.device), advantages.to(config.device)
    columns = [
        lines.observations,
        lines.starts,
        lines.discrete_actions,
        lines.continuous_actions,
        log_probs,
        advantages,
        returns,
        lines.masks,
    ]
    if not actor.recurrent:  # each row becomes a line, so that minibatches can have any rows
        columns = [column[lines.masks].unsqueeze(0) for column in columns]
    (weights,) = optimizer.param_groups[0]["params"]
    for epoch in range(config.num_epochs):
        metrics = []
        shuffled = torch.randperm(columns[0].shape[1], generator=generator, device=config.device)
        for agents in shares(shuffled, config.num_minibatches, 1 if len(columns[0]) > 1 else 2):
            mb_observations, starts, discrete_actions, continuous_actions, *rest = (
                column[:, agents] for column in columns
            )
            old_log_probs, mb_advantages, mb_returns, mb_masks = (column.flatten() for column in rest)
            if not mb_masks.any():
                continue
            state = tuple(part[agents] for part in lines.states)
            distribution, values = outlook(actor, mb_observations, state, starts)
            new_log_probs = distribution.log_prob(discrete_actions.flatten(0, 1), continuous_actions.flatten(0, 1))[
                mb_masks
            ]
            entropies, log_ratios = distribution.entropy()[mb_masks], new_log_probs - old_log_probs[mb_masks]
            ratios = log_ratios.exp()
            std, mean = torch.std_mean(mb_advantages[mb_masks], correction=0)
            mb_advantages = (mb_advantages[mb_masks] - mean) / std.clamp(min=config.advantage_floor)
            bounded = ratios.clamp(1 - config.clip, 1 + config.clip)
            pg_objectives = (
                mb_advantages * new_log_probs
                if config.loss == "impala"
                else torch.min(ratios * mb_advantages, bounded * mb_advantages)
            )
            v_errors = (values - mb_returns)[mb_masks].square()
            losses = (
                (0.5 * config.value_coefficient) * v_errors - pg_objectives - config.entropy_coefficient * entropies
            )
            weights.grad.zero_()
            losses.mean().backward()
            weights.grad.mul_((config.max_grad_norm / weights.grad.norm()).clamp(max=1))
            optimizer.step()
            if epoch == config.num_epochs - 1:
                with torch.no_grad():
                    terms = [
                        -pg_objectives,
                        0.5 * v_errors,
                        entropies,
                        ratios - 1 - log_ratios,
                        (ratios != bounded).float(),
                    ]
                    metrics.append(torch.stack(terms).mean(1))
    observe(actor.policy, lines.observations[lines.masks])
    names = ("policy_loss", "value_loss", "entropy", "approx_kl", "clipfrac")
    means = torch.stack(metrics).mean(0).tolist()
    masks = torch.from_numpy(host.masks)
    unexplained = corrections[masks].var(correction=0) / returns.cpu()[masks].var(correction=0)
    return {
        **{f"losses/{name}": mean for name, mean in zip(names, means, strict=True)},
        "losses/explained_variance": 1 - float(unexplained),
        "losses/importance": importance,
        "charts/learning_rate": optimizer.param_groups[0]["lr"],
    }


def outlook(actor: Actor, observations: Any, states: State, starts: Any) -> tuple[Distribution, torch.Tensor]:
    """Return the action distributions and the values for all rows, (steps * agents, …), in order of steps.

    observations: (steps, agents, …). states, starts: as ``state`` and ``starts`` of ``Actor.unroll``; ignored if the
    policy has no memory.
    """
    if actor.recurrent:
        return actor.unroll(observations, states, starts)
    distribution, values, _ = actor(observations.flatten(0, 1))
    return distribution, values


def vtrace(
    log_ratios: np.ndarray,
    rewards: np.ndarray,
    values: np.ndarray,
    terminations: np.ndarray,
    truncations: np.ndarray,
    masks: np.ndarray,
    gamma: float,
    gae_lambda: float,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Return V-trace's (corrections, advantages), each float32 (steps, agents); 0 where a row's mask is unset.

    log_ratios: each action's log probability under the learning policy, minus that under the policy that played.
    rewards, terminations, truncations: the action's outcome. values: the learning policy's value of each row's own
    observation; the targets of learning are values + corrections. A row whose mask is set is followed by the row of the
    next observation. If the learning policy is the one that played, and both bounds are 1 or more, both results are
    generalised advantage estimates.
    Source: Espeholt et al., arXiv:1802.01561, section 4.1, with lambda as in remark 2. Unlike in the paper, the
    advantages use lambda as well.
    """
    log_ratios = np.where(masks, log_ratios, 0)
    rhos, cs = (np.exp(np.minimum(log_ratios, math.log(bar))) for bar in (rho_bar, c_bar))
    lives = masks & ~terminations
    next_values = np.concatenate([values[1:], np.zeros_like(values[:1])])
    deltas = np.where(masks, rewards - values, 0) + gamma * np.where(lives, next_values, 0)
    decays = gamma * gae_lambda * (lives & ~truncations)
    corrections, advantages = np.zeros_like(values), np.zeros_like(values)
    next_corrections = np.zeros_like(values[0])
    for step in reversed(range(len(values))):
        advantages[step] = rhos[step] * (deltas[step] + decays[step] * next_corrections)
        corrections[step] = rhos[step] * deltas[step] + decays[step] * cs[step] * next_corrections
        next_corrections = corrections[step]
    return corrections, advantages


# ------------------------------------------------------------------------------------------------------------ playing


def packed(config: Config, env: Callable[..., Any] | None, origin: Origin) -> bytes:
    """Serialize the arguments, together with ``sys.path``, for the ``setup`` of a ``PolicyActor``."""
    return pickle.dumps((sys.path, transfer.dumps((config, env, origin))))


class PolicyActor:
    """An actor with its environments and a copy of the policy that plays them; ``Fleet`` makes it a Ray actor.

    index: the actor's number among all actors. setup: what ``packed`` returned for the configuration, the creator of
    environments (None if the configuration names them) and the policy's origin. It is unpacked in the first call of
    ``play``, so that the caller gets any errors; in the constructor they would end the actor.
    """

    config: Config
    actor: Actor
    reward_processing: RewardProcessing
    rollout: Rollout
    memory: Memory | None

    def __init__(self, index: int, setup: bytes) -> None:
        self.index, self.setup = index, setup
        self.vec: pufferlib.VecEnv | None = None
        self.seed = self.version = -1
        self.num_agents, self.since_s = 0, 0.0

    def play(self, seed: int, version: int, weights: list[Any]) -> tuple[RolloutReport, Lines]:
        """Play a rollout; return a report, and the rollout's rows.

        seed: the environments' seed; they are reset when it changes. version: the policy version to play. weights: a
        list whose only item is a Ray reference to this version's weights, which are fetched if the version has changed.
        """
        vec = self._opened() if self.vec is None else self.vec
        if seed != self.seed:
            self._begin(vec, seed)
        if version != self.version:
            arrays = ray_module().get(weights[0])
            self.actor.policy.load_state_dict({name: torch.from_numpy(part.copy()) for name, part in arrays.items()})
            self.version = version
        infos: list[list[dict[str, Any]]] = []
        self.rollout.start()
        for rows in self.rollout.batches[1:]:
            batch, host = vec.recv(), vec.host_batch
            assert host is not None
            self.rollout.receive(batch, host, rows)
            vec.send(self._actions(batch, rows))
            infos.append([self._global_info(info) for info in batch.infos])
        lines, now_s = lines_of(self.rollout), time.perf_counter()
        seconds, self.since_s = now_s - self.since_s, now_s
        return RolloutReport(version, node_name(), int(lines.masks.sum()), seconds, infos), lines

    def close(self) -> None:
        """Close the environments."""
        if self.vec is not None:
            self.vec.close()

    def _opened(self) -> pufferlib.VecEnv:
        path, rest = pickle.loads(self.setup)
        sys.path += [folder for folder in path if folder not in sys.path]  # where the rest may be defined
        arguments = transfer.loads(rest)
        assert isinstance(arguments, tuple), arguments
        config, env, origin = arguments
        self.config = config
        torch.set_num_threads(config.torch_threads)
        self.since_s = time.perf_counter()
        self.vec = vec = environments(config, env)
        self.actor = origin.actor(vec.observation_layout, vec.single_action_space)
        self.reward_processing = RewardProcessing(vec, config.gamma, False, config.reward_clip, config.episodic_life)
        self.num_agents = vec.num_envs * vec.agents_per_env
        return vec

    def _begin(self, vec: pufferlib.VecEnv, seed: int) -> None:
        config, self.seed = self.config, seed
        torch.manual_seed(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.reward_processing.forget()
        batch_size = vec.agents_per_batch // vec.agents_per_env
        num_batches = max(1, config.rollout_length * vec.num_envs // batch_size)
        self.rollout = Rollout(vec, self.actor, self.reward_processing, num_batches)
        initial = self.actor.initial_state(self.num_agents)
        self.memory = None if initial is None else Memory(initial)
        vec.async_reset(seed=seed)

    @torch.inference_mode()
    def _actions(self, batch: Any, rows: slice) -> Any:
        """Return the policy's actions for a batch, as ``VecEnv.send`` takes them.

        Stores the actions, their log-probabilities, the values and the policy's previous states in the rollout's
        ``rows``, and the new states in the memory.
        """
        rollout, state = self.rollout, None
        if self.memory is not None:
            state = rollout.recall(self.memory.of(batch.agent_ids, batch.masks), rows)
        distribution, values, next_state = self.actor(rollout.observations[rows], state)
        if self.memory is not None:
            assert next_state is not None
            self.memory.keep(batch.agent_ids, next_state)
        discrete_actions, continuous_actions = distribution.sample(self.generator)
        rollout.log_probs[rows] = distribution.log_prob(discrete_actions, continuous_actions)
        rollout.values[rows], rollout.discrete_actions[rows], rollout.continuous_actions[rows] = (
            values,
            discrete_actions,
            continuous_actions,
        )
        return self.actor.decisions.actions(discrete_actions, continuous_actions)

    def _global_info(self, info: Mapping[str, Any]) -> dict[str, Any]:
        numbers = numbers_in(info)
        numbers["env_id"] += self.index * self.config.num_envs
        if "agent_id" in numbers:
            numbers["agent_id"] += self.index * self.num_agents
        return numbers


def lines_of(rollout: Rollout) -> Lines:
    """Return a rollout's rows as ``Lines`` of arrays."""
    steps = rollout.lines()
    policy_columns = (rollout.observations, rollout.discrete_actions, rollout.continuous_actions, rollout.log_probs)
    observations, discrete_actions, continuous_actions, log_probs = (
        column[torch.from_numpy(steps)].numpy() for column in policy_columns
    )
    starts, ends = rollout.starts, (rollout.rewards, rollout.terminations, rollout.truncations, rollout.masks)
    states = tuple(part[torch.from_numpy(steps[0])].numpy() for part in rollout.states)
    played = (observations, starts[steps], discrete_actions, continuous_actions, log_probs)
    return Lines._make([*played, *(column[steps] for column in ends), states])


if __name__ == "__main__":
    main(Config, train)
