"""PPO in one file, over send and recv, for any environment that the registry can name.

    python -m cleanrl_demo.ppo --env ocean/squared --backend pool

What trainers get wrong most often stands in two places. ``Rollout`` strings the rows of each agent together by
``agent_ids``, whatever batch they come in. ``advantages`` cuts an agent's line where its episode ended: after a
termination nothing more is to be had, after a truncation what the final observation promises, and that is the very row
whose flag is set. Only real transitions are trained on, those whose next row has its mask set; so neither reset rows
nor the padding of absent agents are.

Source: Schulman et al., arXiv:1707.06347 (PPO) and arXiv:1506.02438 (GAE); for the details Huang et al., "The 37
Implementation Details of Proximal Policy Optimization", ICLR blog track, 2022.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

import pufferlib
from cleanrl_demo.report import Report
from cleanrl_demo.results import Episode, Episodes, Result, charts, evaluate, new_run_folder, summary
from pufferlib.distributions import Decisions, Distribution
from pufferlib.models import Origin, action_mask_reader, make_policy, save_policy


@dataclass(frozen=True)
class Config:
    """Train a policy with PPO. One step is one action of one agent."""

    env: str = "ocean/squared"
    """name of the environment (`puffer envs` lists them), any id of Gymnasium, or module:callable of your own"""
    backend: str = "pool"
    """serial, multiprocessing or pool"""
    num_envs: int = 32
    num_workers: int | None = None
    """processes; default: one for each core"""
    batch_size: int | None = None
    """environments in a batch; default: half of them on a pool, else all"""
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """arguments of the environment"""
    wrap_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """arguments of pufferlib.wrap, such as bounds of variable-length spaces"""
    seed: int = 1
    total_steps: int = 120_000
    rollout_length: int = 32
    """steps of each environment between updates"""
    learning_rate: float = 1e-3
    """at the start; it falls to 0"""
    num_epochs: int = 4
    num_minibatches: int = 4
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip: float = 0.2
    advantage_floor: float = 0.1
    """advantages are divided by their deviation, but by no less than this: where no reward is found they are noise,
    which would drive the policy away from exploring"""
    entropy_coefficient: float = 0.01
    value_coefficient: float = 0.5
    max_grad_norm: float = 0.5
    policy: str = "default"
    """mlp, cnn, or module:Class of your own; default: a CNN for images, else an MLP"""
    policy_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """arguments of the policy, such as hidden_size"""
    torch_threads: int = 1
    """more only help large networks"""
    eval_episodes: int = 1000
    eval_greedy: bool = False
    """evaluate with the likeliest action instead of a sampled one"""
    runs: str | None = "runs"
    """folder for the folder of this run; None writes nothing"""


def train(config: Config, env: Callable[..., Any] | None = None) -> Result:
    """Train a policy, evaluate it on fresh seeds, and return both. env: a creator, in place of the name in config."""
    made_for = (None if env is not None else config.env, config.env_kwargs, config.wrap_kwargs)
    origin = Origin(config.policy, config.policy_kwargs, *made_for)
    num_threads = torch.get_num_threads()
    torch.set_num_threads(config.torch_threads)
    try:
        with pufferlib.make(
            config.env if env is None else env,
            backend=config.backend,
            num_envs=config.num_envs,
            num_workers=config.num_workers,
            batch_size=config.batch_size or -(-config.num_envs // (2 if config.backend == "pool" else 1)),
            env_kwargs=config.env_kwargs,
            wrap_kwargs=config.wrap_kwargs,
            seed=config.seed,
        ) as vec:
            with torch.random.fork_rng(devices=()):
                torch.manual_seed(config.seed)  # initial weights come from torch's global generator
                actor = Actor(vec, config.policy, config.policy_kwargs)
                optimizer = torch.optim.Adam([as_one(actor.policy)], config.learning_rate, eps=1e-5, fused=True)
            name = config.env if env is None else getattr(env, "__name__", type(env).__name__)
            run_folder = None if config.runs is None else new_run_folder(config, name, "ppo")
            with Report(name, config.total_steps, run_folder) as report:
                began, start_s = time.time(), time.perf_counter()
                num_steps = learn(vec, actor, optimizer, config, report)
                seconds = time.perf_counter() - start_s
            if run_folder is not None:
                save_policy(run_folder / "policy.pt", actor.policy, origin)
            report.console.print(f"{name}  playing {config.eval_episodes:,} fresh episodes …", soft_wrap=True)
            seed = config.seed + 1_000_000
            episodes = evaluate(vec, actor.at_play(seed, config.eval_greedy), config.eval_episodes, seed)
    finally:
        torch.set_num_threads(num_threads)
    return Result(actor.policy, num_steps, began, seconds, episodes, run_folder)


class Actor:
    """A policy for the environments of a VecEnv, and what becomes of its outputs. Raises as ``make_policy``."""

    def __init__(
        self, vec: pufferlib.VecEnv, policy: str | Callable[..., nn.Module], kwargs: Mapping[str, Any]
    ) -> None:
        spaces = vec.observation_layout, vec.single_action_space
        self.policy = make_policy(policy, *spaces, **kwargs)
        if hasattr(self.policy, "initial_state"):
            raise pufferlib.PlanError(f"policy={policy!r} has a memory, which this trainer does not keep")
        self.decisions = Decisions(vec.single_action_space)
        self.read_mask = action_mask_reader(*spaces)

    def __call__(self, observations: torch.Tensor) -> tuple[Distribution, torch.Tensor]:
        """Return the distribution of allowed actions and the values, (rows,) float32, of flat observations."""
        mask = None if self.read_mask is None else self.read_mask(observations)
        outputs, values, _ = self.policy(observations, None, mask)
        return self.decisions.distribution(outputs, mask), values

    def at_play(self, seed: int, greedy: bool = False) -> Callable[[pufferlib.Batch], Any]:
        """Return what plays: flat actions for a batch. greedy: the likeliest ones instead of drawn ones."""
        generator = torch.Generator().manual_seed(seed)

        def act(batch: pufferlib.Batch) -> Any:
            with torch.inference_mode():
                distribution, _ = self(torch.from_numpy(batch.observations))
                return self.decisions.actions(*(distribution.mode() if greedy else distribution.sample(generator)))

        return act


def as_one(policy: nn.Module) -> torch.Tensor:
    """Move all weights into one vector and their gradients into another, and return the first.

    The policy keeps views of both. Gradients are clipped and applied by a few operations on one long vector rather
    than as many on each of a dozen small tensors, which took a quarter of the time of an update.
    """
    weights = nn.utils.parameters_to_vector(policy.parameters()).detach()
    weights.grad = torch.zeros_like(weights)
    nn.utils.vector_to_parameters(weights, policy.parameters())
    begin = 0
    for part in policy.parameters():
        part.grad = weights.grad[begin : begin + part.numel()].view_as(part)
        begin += part.numel()
    return weights


def learn(vec: pufferlib.VecEnv, actor: Actor, optimizer: torch.optim.Optimizer, config: Config, report: Report) -> int:
    """Play and update in turns until ``total_steps`` transitions have been learnt from; return how many they were."""
    generator = torch.Generator().manual_seed(config.seed)
    batch_size = vec.agents_per_batch // vec.agents_per_env
    rollout = Rollout(vec, actor.decisions, max(1, config.rollout_length * vec.num_envs // batch_size))
    finished, recent = Episodes(vec.num_envs), deque[Episode](maxlen=100)
    num_steps = 0
    vec.async_reset()
    while num_steps < config.total_steps:
        rollout.start()
        for rows in rollout.batches[1:]:
            batch = vec.recv()
            rollout.receive(batch, rows)
            with torch.inference_mode():
                distribution, rollout.values[rows] = actor(rollout.observations[rows])
                choices, aims = distribution.sample(generator)
                rollout.log_probs[rows] = distribution.log_prob(choices, aims)
                rollout.choices[rows], rollout.aims[rows] = choices, aims
            # Sent before the update, not after it: the environments work while we learn.
            vec.send(actor.decisions.actions(choices, aims))
            recent.extend(finished.in_batch(batch.infos))

        optimizer.param_groups[0]["lr"] = config.learning_rate * (1 - num_steps / config.total_steps)
        if rollout.real.any():
            losses = update(actor, optimizer, rollout, config, generator)
            num_steps += int(rollout.real.sum())
            report.update(num_steps, {**losses, **charts(recent)})
    return num_steps


def update(
    actor: Actor, optimizer: torch.optim.Optimizer, rollout: Rollout, config: Config, generator: torch.Generator
) -> dict[str, float]:
    """Train on all real rows of a rollout, ``num_epochs`` times; return the losses of the last epoch, by name."""
    advantages = torch.from_numpy(rollout.advantages(rollout.values.numpy(), config.gamma, config.gae_lambda))
    returns = advantages + rollout.values
    real = torch.from_numpy(rollout.real.nonzero()[0])
    (weights,) = optimizer.param_groups[0]["params"]
    for epoch in range(config.num_epochs):
        told = []
        shuffled = real[torch.randperm(len(real), generator=generator)]
        columns = (rollout.choices, rollout.aims, rollout.log_probs, advantages, returns)
        chunks = [column[shuffled].chunk(config.num_minibatches) for column in columns]
        for rows, *minibatch in zip(shuffled.chunk(config.num_minibatches), *chunks, strict=True):
            choices, aims, old_log_probs, gains, aimed_values = minibatch
            distribution, values = actor(rollout.observations[rows])
            log_ratios = distribution.log_prob(choices, aims) - old_log_probs
            ratios = log_ratios.exp()
            spread, centre = torch.std_mean(gains, correction=0)
            gains = (gains - centre) / spread.clamp(min=config.advantage_floor)
            bounded = ratios.clamp(1 - config.clip, 1 + config.clip)
            gained = torch.min(ratios * gains, bounded * gains)
            errors = (values - aimed_values).square()
            # One mean of all terms, not one of each, which takes a tenth less time forwards and backwards.
            losses = (0.5 * config.value_coefficient) * errors - gained
            if config.entropy_coefficient:
                losses = losses - config.entropy_coefficient * distribution.entropy()
            weights.grad.zero_()
            losses.mean().backward()
            norm = float(weights.grad.norm())
            if norm > config.max_grad_norm:
                weights.grad.mul_(config.max_grad_norm / norm)
            optimizer.step()
            if epoch == config.num_epochs - 1:
                with torch.no_grad():
                    approx_kls, clipped = ratios - 1 - log_ratios, (ratios != bounded).float()
                    terms = [-gained, 0.5 * errors, distribution.entropy(), approx_kls, clipped]
                    told.append(torch.stack(terms).mean(1))
    names = ("policy_loss", "value_loss", "entropy", "approx_kl", "clipfrac")
    means = torch.stack(told).mean(0).tolist()
    unexplained = advantages[real].var(correction=0) / returns[real].var(correction=0)
    return {
        **{f"losses/{name}": mean for name, mean in zip(names, means, strict=True)},
        "losses/explained_variance": 1 - float(unexplained),
        "charts/learning_rate": optimizer.param_groups[0]["lr"],
    }


class Rollout:
    """Rows in the order in which they came, and for each row the next one of the same agent.

    The first rows, one for each agent, are what the rollout before left without an outcome: an action that was sent,
    but whose reward had not come back. Behind them lie ``num_batches`` batches. The last row is nobody's: what has no
    predecessor writes there, and what has no successor points there.
    """

    def __init__(self, vec: pufferlib.VecEnv, decisions: Decisions, num_batches: int) -> None:
        num_agents = vec.num_envs * vec.agents_per_env
        bounds = range(num_agents, num_agents + (num_batches + 1) * vec.agents_per_batch, vec.agents_per_batch)
        self.batches = [slice(0, num_agents), *itertools.starmap(slice, itertools.pairwise(bounds))]
        self.nobody = bounds[-1]
        num_rows = self.nobody + 1
        # What the policy saw and did.
        layout = vec.observation_layout
        self.observations = torch.from_numpy(np.zeros((num_rows, *layout.shape), layout.dtype))
        self.choices = torch.zeros((num_rows, len(decisions.nvec)), dtype=torch.int64)
        self.aims = torch.zeros((num_rows, decisions.num_aims))
        self.log_probs, self.values = torch.zeros(num_rows), torch.zeros(num_rows)
        # What came of it, and where the agent went on.
        self.rewards = np.zeros(num_rows, np.float32)
        self.terminations = np.zeros(num_rows, np.bool_)
        self.truncations = np.zeros(num_rows, np.bool_)
        self.real = np.zeros(num_rows, np.bool_)
        self.following = np.full(num_rows, self.nobody)
        self.newest = np.full(num_agents, self.nobody)  # each agent's row that waits for its outcome

    def start(self) -> None:
        """Begin anew, with the rows that still wait for their outcome in front."""
        waiting, front = torch.from_numpy(self.newest), self.batches[0]
        for column in (self.observations, self.choices, self.aims, self.log_probs, self.values):
            column[front] = column[waiting]
        self.newest = np.where(self.newest == self.nobody, self.nobody, np.arange(front.stop))
        self.real[:] = False
        self.following[:] = self.nobody

    def receive(self, batch: pufferlib.Batch, rows: slice) -> None:
        """Take a batch's observations as new rows, and the rest of it as the outcome of each agent's row before."""
        before, new = self.newest[batch.agent_ids], np.arange(rows.start, rows.stop)
        self.rewards[before] = batch.rewards
        self.terminations[before] = batch.terminations
        self.truncations[before] = batch.truncations
        self.real[before] = batch.masks
        self.following[before] = new
        self.real[self.nobody], self.following[self.nobody] = False, self.nobody
        self.newest[batch.agent_ids] = new
        self.observations.numpy()[rows] = batch.observations

    def advantages(self, values: np.ndarray, gamma: float, gae_lambda: float) -> np.ndarray:
        """Return the advantage of each row, (num_rows,), given their values; 0 where a row is not real."""
        ends = (self.terminations, self.truncations)
        lines = (self.real, self.following, self.batches)
        return advantages(self.rewards, values, *ends, *lines, gamma, gae_lambda)


def advantages(
    rewards: np.ndarray,
    values: np.ndarray,
    terminations: np.ndarray,
    truncations: np.ndarray,
    real: np.ndarray,
    following: np.ndarray,
    batches: Iterable[slice],
    gamma: float,
    gae_lambda: float,
) -> np.ndarray:
    """Return generalised advantage estimates, (num_rows,); 0 where a row is not real.

    values: of the row's own observation. rewards, terminations, truncations: what its action brought. following: the
    same agent's next row, which must lie in a later one of ``batches``; where there is none, a row that is not real.
    Source: Schulman et al., arXiv:1506.02438, eq. 16.
    """
    lives = real & ~terminations
    deltas = np.where(real, rewards - values, 0) + gamma * np.where(lives, values[following], 0)
    decays = gamma * gae_lambda * (lives & ~truncations)
    estimates = np.zeros_like(values)
    for rows in reversed(list(batches)):
        estimates[rows] = deltas[rows] + decays[rows] * estimates[following[rows]]
    return estimates


if __name__ == "__main__":
    import tyro

    config = tyro.cli(Config)
    print(summary(config, train(config)))
