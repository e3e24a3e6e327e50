"""APPO and IMPALA in one file, on Ray: actors play on any machines, and one learner trains on their rollouts.

    python -m cleanrl_demo.appo_ray --env ocean/squared --num-actors 4                   # Ray on this machine
    python -m cleanrl_demo.appo_ray --env ocean/squared --num-actors 64 --address auto   # a running cluster

docs/appo.md lists the settings that make it A3C.

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

import pufferlib
from cleanrl_demo.ppo_lstm import Rollout
from pufferlib.models import Actor, Distribution, Memory, Origin, State, observe
from pufferlib.training import (
    SCHEDULES,
    Fleet,
    FleetConfig,
    Result,
    RewardProcessing,
    Session,
    as_one,
    main,
    rate_at,
    resumed,
    run,
    shares,
)
from pufferlib.training.fleet import connect
from pufferlib.training.lines import Lines, joined, lines_of
from pufferlib.training.rollout_actor import RolloutActor, packed

LOSSES = ("appo", "impala")


@dataclass(frozen=True)
class Config(FleetConfig):
    """Train a policy, recurrent or not, with APPO or IMPALA on Ray. One step is one action of one agent."""

    algorithm: ClassVar[str] = "appo_ray"

    device: str = field(default_factory=lambda: "cuda" if torch.cuda.is_available() else "cpu")
    """where the policy learns; default: cuda if available. Actors play on the CPU"""
    rollout_length: int = 32
    """steps of each environment in a rollout"""
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
    vtrace: bool = True
    """correct for lag by V-trace; False: estimate advantages as if the current policy had played, as in A3C"""
    clip: float = 0.2
    normalize_advantages: bool = True
    """shift and scale the advantages of a minibatch to mean 0 and standard deviation 1"""
    advantage_floor: float = 0.1
    """minimum of the standard deviation by which advantages are divided"""
    entropy_coefficient: float = 0.01
    value_coefficient: float = 0.5
    max_grad_norm: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("1 or more", lambda value: value >= 1, "rollout_length", "num_epochs", "num_minibatches")
        self.require("0 to 1", lambda value: 0 <= value <= 1, "gamma", "gae_lambda")
        self.require("more than 0", lambda value: value > 0, "rho_bar", "c_bar")
        self.require("more than 0", lambda value: value > 0, "clip", "advantage_floor", "max_grad_norm")
        self.require(", ".join(SCHEDULES), lambda value: value in SCHEDULES, "schedule")
        self.require(", ".join(LOSSES), lambda value: value in LOSSES, "loss")
        if self.loss == "impala" and self.num_epochs > 1:
            raise pufferlib.PlanError(
                f"num_epochs={self.num_epochs} with loss='impala', which is not clipped; use 1, or appo"
            )

    def made_as(self) -> tuple[str, Mapping[str, Any]]:
        """Return the policy's name and its keyword arguments."""
        normalize = {"normalize": True} if self.normalize_observations else {}
        return self.policy, {**normalize, **self.policy_kwargs}


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
    if actor.by_places:
        raise pufferlib.PlanError(
            f"policy={config.policy!r} goes by agents' places; use cleanrl_demo.ppo_cuda --separate"
        )
    if any(part.requires_grad for part in actor.initial_state(1) or ()):
        raise pufferlib.PlanError(
            f"policy={config.policy!r} learns its initial state; return zeros, and add to them in forward"
        )
    actor.policy.to(config.device)
    optimizer = torch.optim.Adam([as_one(actor.policy)], config.learning_rate, eps=1e-5, fused=True)
    return Learner(actor, optimizer, torch.Generator(config.device).manual_seed(config.seed))


class PolicyActor(RolloutActor):
    """An actor that plays rollouts with its copy of the policy, on any machine."""

    def begin(self, vec: pufferlib.VecEnv) -> None:
        """Prepare for rollouts of environments that are about to be reset."""
        config = self.config
        self.generator = torch.Generator().manual_seed(self.seed)
        reward_processing = RewardProcessing(vec, config.gamma, False, config.reward_clip, config.episodic_life)
        batch_size = vec.agents_per_batch // vec.agents_per_env
        num_batches = max(1, config.rollout_length * vec.num_envs // batch_size)
        self.rollout = Rollout(vec, self.actor, reward_processing, num_batches)
        initial = self.actor.initial_state(self.num_agents)
        self.memory = None if initial is None else Memory(initial)

    def play_rollout(self, vec: pufferlib.VecEnv) -> tuple[Lines, list[list[dict[str, Any]]]]:
        """Play a rollout; return its rows, and the infos of each batch."""
        rollout, all_infos = self.rollout, []
        rollout.start()
        for rows in rollout.batches[1:]:
            batch, host = vec.recv(), vec.host_batch
            assert host is not None
            rollout.receive(batch, host, rows)
            vec.send(self.act(batch, rows))
            all_infos.append(self.global_infos(batch))
        return lines_of(rollout), all_infos

    @torch.inference_mode()
    def act(self, batch: Any, rows: slice) -> Any:
        """Return the policy's actions for a batch, as ``VecEnv.send`` takes them.

        Stores the actions, their log-probabilities, the values and the policy's previous states in the rollout's
        ``rows``, and the new states in the memory.
        """
        rollout, state = self.rollout, None
        if self.memory is not None:
            state = rollout.store_state(self.memory.of(batch.agent_ids, batch.masks), rows)
        distribution, values, next_state = self.actor(rollout.observations[rows], state)
        if self.memory is not None:
            assert next_state is not None
            self.memory.keep(batch.agent_ids, next_state)
        discrete_actions, continuous_actions = distribution.sample(self.generator)
        rollout.log_probs[rows] = distribution.log_prob(discrete_actions, continuous_actions)
        rollout.values[rows], rollout.discrete_actions[rows] = values, discrete_actions
        rollout.continuous_actions[rows] = continuous_actions
        return self.actor.decisions.actions(discrete_actions, continuous_actions)


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


def evaluate_rows(actor: Actor, observations: Any, states: State, starts: Any) -> tuple[Distribution, torch.Tensor]:
    """Return the action distributions and the values for all rows, (steps * agents, …), in order of steps.

    observations: (steps, agents, …). states, starts: as ``state`` and ``starts`` of ``Actor.unroll``; ignored if the
    policy has no memory.
    """
    if actor.recurrent:
        return actor.unroll(observations, states, starts)
    distribution, values, _ = actor(observations.flatten(0, 1))
    return distribution, values


def update(learner: Learner, rollouts: Sequence[Lines], config: Config) -> dict[str, float]:
    """Train on the valid rows of rollouts for ``num_epochs`` epochs; return scalars to report.

    The scalars are keyed by TensorBoard name, and include the last epoch's losses. After the last epoch, the policy's
    running statistics of observations, if any, are updated with the same rows.
    """
    actor, optimizer, generator = learner.actor, learner.optimizer, learner.generator
    host = joined(rollouts)
    lines = host.on(config.device)
    with torch.no_grad():
        distribution, values = evaluate_rows(actor, lines.observations, lines.states, lines.starts)
        log_probs = distribution.log_prob(
            lines.discrete_actions.flatten(0, 1), lines.continuous_actions.flatten(0, 1)
        ).view_as(lines.masks)
        values = values.view_as(log_probs)
    log_ratios = (log_probs - lines.log_probs).cpu().numpy()
    importance = float(np.exp(np.minimum(log_ratios[host.masks], 0)).mean())
    if not config.vtrace:
        log_ratios = np.zeros_like(log_ratios)
    transitions = (host.rewards, values.cpu().numpy(), host.terminations, host.truncations, host.masks)
    bounds = (config.gamma, config.gae_lambda, config.rho_bar, config.c_bar)
    corrections, advantages = map(torch.from_numpy, vtrace(log_ratios, *transitions, *bounds))
    returns, advantages = values + corrections.to(config.device), advantages.to(config.device)
    columns = [lines.observations, lines.starts, lines.discrete_actions, lines.continuous_actions]
    columns += [log_probs, advantages, returns, lines.masks]
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
            distribution, newvalue = evaluate_rows(actor, mb_observations, state, starts)
            newlogprob = distribution.log_prob(discrete_actions.flatten(0, 1), continuous_actions.flatten(0, 1))
            newlogprob, entropy = newlogprob[mb_masks], distribution.entropy()[mb_masks]
            logratio = newlogprob - old_log_probs[mb_masks]
            ratio = logratio.exp()
            mb_advantages = mb_advantages[mb_masks]
            if config.normalize_advantages:
                std, mean = torch.std_mean(mb_advantages, correction=0)
                mb_advantages = (mb_advantages - mean) / std.clamp(min=config.advantage_floor)
            clipped_ratio = ratio.clamp(1 - config.clip, 1 + config.clip)
            if config.loss == "impala":
                pg_loss = -mb_advantages * newlogprob  # (rows,), as are the other losses
            else:
                pg_loss = -torch.min(mb_advantages * ratio, mb_advantages * clipped_ratio)
            v_loss = 0.5 * (newvalue - mb_returns)[mb_masks].square()
            loss = pg_loss + config.value_coefficient * v_loss - config.entropy_coefficient * entropy
            weights.grad.zero_()
            loss.mean().backward()
            weights.grad.mul_((config.max_grad_norm / weights.grad.norm()).clamp(max=1))
            optimizer.step()
            if epoch == config.num_epochs - 1:
                with torch.no_grad():
                    approx_kl, clipfrac = ratio - 1 - logratio, (ratio != clipped_ratio).float()
                    terms = [pg_loss, v_loss, entropy, approx_kl, clipfrac]
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
                lrnow = rate_at(config.schedule, config.learning_rate, learner.num_steps, config.total_steps)
                learner.optimizer.param_groups[0]["lr"] = lrnow
                losses = update(learner, rollouts, config)
                learner.num_steps += num_steps
                learner.version += 1
                fleet.broadcast(learner.version, learner.actor.policy)
                report.update(learner.num_steps, {**losses, "charts/lag": float(np.mean(lags)), **fleet.charts()})


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


if __name__ == "__main__":
    main(Config, train)
