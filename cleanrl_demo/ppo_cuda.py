"""PPO that runs entirely on the device, where a kernel simulates the environments.

    python -m cleanrl_demo.ppo_cuda --env tag/grid --separate
    python -m cleanrl_demo.ppo_cuda --env tag/grid --num-envs 64 --device host      without a GPU

An iteration plays ``rollout_length`` steps of all environments, estimates advantages and updates the policies. During
an iteration the host reads no value from the device, so it never waits for one, and on a GPU the whole iteration is one
CUDA graph, which is replayed. Since selecting rows by their masks would need such a value, invalid rows get weight 0
instead. An iteration's losses, episode statistics and step count are read while the next iteration runs.

A rollout has a row for each step and agent: the observation, the action and the action's outcome. Nothing is learnt
from a transition whose outcome has its mask unset. After a truncation, the next row has the episode's last observation,
whose value is added; the next episode begins one row later (autoreset_mode="next_step").

All agents share one policy, or each team has its own, with its own optimizer and schedule (``--separate``, or tables
``[teams.NAME]`` in a file). ``a2c_cuda.py`` differs only in its update.

Source: Schulman et al., arXiv:1707.06347 (PPO) and arXiv:1506.02438 (GAE).
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn

import pufferlib
from cleanrl_demo.ppo import PRECISIONS, SCHEDULES
from pufferlib.errors import PlanError
from pufferlib.models import Actor, Origin
from pufferlib.training.checkpoints import checkpoint_path
from pufferlib.training.cuda_graphs import GraphedIteration, Reading, on_own_stream
from pufferlib.training.ddp import alike, gathered, joined, of_this_rank, require_as_many, total
from pufferlib.training.device_video import DeviceVideo
from pufferlib.training.planner import as_many_as_fit, free_nbytes
from pufferlib.training.results import RETURN_OF, Result
from pufferlib.training.runs import num_processes
from pufferlib.training.session import RunConfig, Session, environments, main, origin_of, resumed, run, torch_set_up
from pufferlib.training.teams import OF_A_TEAM, teams_of
from pufferlib.util.memory import memory_text
from pufferlib.vectorization.device.episodes import EpisodeStats, EpisodeSums

ALIGNMENT = 32  # floats, or 128 bytes: cuBLAS uses slower kernels for matrices at other addresses


@dataclass(frozen=True)
class DeviceConfig(RunConfig):
    """The settings that all device trainers share. losses: the names of the values that an update returns."""

    losses: ClassVar[tuple[str, ...]]
    plans_num_envs: ClassVar[bool] = True

    env: str = "tag/grid"
    """an environment with a kernel: tag/grid, tag/continuous, ocean/squared, or your own module:KERNEL"""
    backend: str = "cuda"
    """cuda; --device chooses the device"""
    device: str = "cuda"
    """cuda, cuda:1, or host, which runs the kernels on the CPU"""
    num_envs: int | Literal["auto"] = 2000  # type: ignore[assignment]
    """number of environments, or auto: as many as fit in memory without a rollout of more than total_steps; config.json
    has the number"""
    total_steps: int = 50_000_000
    checkpoint_every: int | None = None
    """steps between checkpoints; each checkpoint resets all environments. Another one is written at the end"""
    separate: bool = False
    """a policy for each type of agent (by the agents' names without numbers), instead of one for all"""
    teams: Mapping[str, Any] = field(default_factory=dict)
    """settings by team name: agents (names, or patterns such as tagger_*), learning_rate, schedule,
    entropy_coefficient"""
    rollout_length: int = 32
    """steps of each environment between updates"""
    learning_rate: float = 1e-3
    """learning rate at the start"""
    schedule: str = "linear"
    """schedule of the learning rate: linear or cosine, which fall to 0, constant, or "0:1e-3 2e6:1e-4": rates at these
    steps, with linear interpolation"""
    gamma: float = 0.99
    gae_lambda: float = 0.95
    advantage_floor: float = 0.1
    """minimum of the standard deviation by which advantages are divided"""
    entropy_coefficient: float = 0.01
    value_coefficient: float = 0.5
    max_grad_norm: float = 0.5
    precision: str = "float32"
    """dtype in which networks compute: float32 or bfloat16; everything else, such as weights, is float32"""
    graphs: bool = True
    """capture iterations in a CUDA graph; otherwise each operation is launched separately"""

    def __post_init__(self) -> None:
        if self.device in ("host", "cpu"):
            object.__setattr__(self, "device", "cpu")  # what torch calls it
        super().__post_init__()
        self.require("1 or more", lambda value: value >= 1, "rollout_length")
        self.require("0 to 1", lambda value: 0 <= value <= 1, "gamma", "gae_lambda")
        self.require("more than 0", lambda value: value > 0, "advantage_floor", "max_grad_norm")
        self.require(", ".join(PRECISIONS), lambda value: value in PRECISIONS, "precision")
        self.require("cuda", lambda value: value == "cuda", "backend")
        self.require("None: all environments", lambda value: value in (None, self.num_envs), "batch_size")
        self.require("1: policies here see one observation", lambda value: value == 1, "frame_stack")
        self.require("False: kernels do not report lives", lambda value: not value, "episodic_life")
        for table in ({"schedule": self.schedule}, *self.teams.values()):
            if wrong := set(table) - set(OF_A_TEAM):
                raise PlanError(f"teams have {', '.join(OF_A_TEAM)}, and not {', '.join(sorted(wrong))}")
            rate_at(table.get("schedule", "constant"), 0.0, 0, 1)
            for name in ("learning_rate", "entropy_coefficient"):
                if not isinstance(table.get(name, 0.0), (int, float)):
                    raise PlanError(f"a team's {name}={table[name]!r} is no number; leave out the quotation marks")

    def rows_per_update(self, vec: pufferlib.VecEnv) -> int:
        """Return the largest number of rows that an update of the smallest team can learn from."""
        teams = teams_of(vec.agent_names or [""] * vec.agents_per_env, self)
        return self.rollout_length * vec.num_envs * min(map(len, teams.values()))


class Team:
    """A policy, its optimizer, and the agents that the policy plays.

    agent_indices: these agents' indices in an environment.
    """

    def __init__(self, name: str, actor: Actor, agent_indices: Sequence[int], config: DeviceConfig) -> None:
        table = config.teams.get(name, {})
        self.name, self.actor = name, actor
        neighbours = list(agent_indices) == list(
            range(agent_indices[0], agent_indices[-1] + 1)
        )  # adjacent rows need no copy
        self.agent_indices = (
            slice(agent_indices[0], agent_indices[-1] + 1)
            if neighbours
            else torch.tensor(agent_indices, device=config.device)
        )
        self.first_rate = table.get("learning_rate", config.learning_rate)
        self.schedule = table.get("schedule", config.schedule)
        self.entropy_coefficient = table.get("entropy_coefficient", config.entropy_coefficient)
        actor.precision = PRECISIONS[config.precision]
        self.weights = aligned(actor.policy)
        alike(self.weights)
        self.rate = torch.tensor(self.first_rate, device=config.device)
        on_device = self.weights.is_cuda
        self.optimizer = torch.optim.Adam(
            [self.weights],
            self.rate if on_device else self.first_rate,
            eps=1e-5,
            capturable=on_device and config.graphs,
            fused=True,
        )

    def rows_of(self, column: Tensor) -> Tensor:
        """Return the team's rows, (steps * envs * agents, …), from a column (steps, envs, agents, …)."""
        return column[:, :, self.agent_indices].flatten(0, 2)

    def write(self, column: Tensor, rows: Tensor) -> None:
        """Write the team's rows, (envs * agents, …), into a step's column, (envs, agents, …)."""
        column[:, self.agent_indices] = rows.view(len(column), -1, *rows.shape[1:])

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the optimizer from a ``state_dict``. Raises ValueError if it does not match the weights.

        Also accepts older checkpoints, whose vectors have no alignment gaps between the parameters.
        """
        moments = {
            index: {name: self._aligned(values) if values.ndim else values for name, values in param_state.items()}
            for index, param_state in state["state"].items()
        }
        self.optimizer.load_state_dict({**state, "state": moments})
        if self.weights.is_cuda:
            self.optimizer.param_groups[0]["lr"] = self.rate  # loading replaced it with a copy

    def _aligned(self, numbers: Tensor) -> Tensor:
        """Return one of the optimizer's vectors, with a number for each weight, in the aligned layout of the weights.

        Raises ValueError if its length does not match the weights.
        """
        if numbers.shape == self.weights.shape:
            return numbers
        parts = [part.numel() for part in self.actor.policy.parameters()]
        if len(numbers) != sum(parts):
            raise ValueError(f"{len(numbers)} numbers of an optimizer for {len(self.weights)} weights")
        aligned_numbers = torch.zeros_like(self.weights)
        for begin, part in zip(begins_of(parts), numbers.split(parts), strict=False):
            aligned_numbers[begin : begin + len(part)] = part
        return aligned_numbers

    def set_rate(self, num_steps: int, total_steps: int) -> float:
        """Set and return the scheduled learning rate after ``num_steps`` steps, without waiting for the device."""
        rate = rate_at(self.schedule, self.first_rate, num_steps, total_steps)
        if self.weights.is_cuda:
            self.rate.fill_(rate)
        else:
            self.optimizer.param_groups[0]["lr"] = rate
        return rate


def aligned(policy: nn.Module) -> Tensor:
    """Move a policy's weights into one vector, with a gradient of zeros, and return the vector.

    The policy's parameters and their gradients become views of the vector and of its gradient. Unlike in
    ``minibatches.as_one``, each parameter begins at a multiple of ALIGNMENT, with zeros in between.
    """
    parts = list(policy.parameters())
    begins = begins_of([part.numel() for part in parts])
    weights = parts[0].detach().new_zeros(begins[-1])
    weights.grad = torch.zeros_like(weights)
    for begin, part in zip(begins, parts, strict=False):
        span = slice(begin, begin + part.numel())
        weights[span] = part.detach().reshape(-1)
        part.data = weights[span].view_as(part)
        part.grad = weights.grad[span].view_as(part)
    return weights


def begins_of(sizes: Sequence[int]) -> list[int]:
    """Return the offset of each part, a multiple of ALIGNMENT, then the padded total size. sizes: the parts' sizes."""
    return [0, *itertools.accumulate(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)]


def rate_at(schedule: str, first: float, num_steps: int, total_steps: int) -> float:
    """Return the learning rate after ``num_steps`` steps. Raises PlanError for an invalid schedule.

    schedule: as in Config. first: the initial rate, for the schedules in SCHEDULES.
    """
    if schedule in SCHEDULES:
        return first * SCHEDULES[schedule](min(1.0, num_steps / total_steps))
    try:
        points = [point.split(":") for point in schedule.split()]
        steps, rates = [float(step) for step, _ in points], [float(rate) for _, rate in points]
    except ValueError:
        steps, rates = [], []
    if not steps or steps != sorted(set(steps)) or min(rates) < 0:
        raise PlanError(
            f'schedule={schedule!r} is none; use {", ".join(SCHEDULES)}, or "0:1e-3 2e6:1e-4" with growing steps'
        )
    return float(np.interp(num_steps, steps, rates))


@dataclass(frozen=True)
class Config(DeviceConfig):
    """Train policies with PPO on kernel environments. One step is one action of one agent."""

    algorithm: ClassVar[str] = "ppo_cuda"
    losses: ClassVar[tuple[str, ...]] = ("policy_loss", "value_loss", "entropy", "approx_kl", "clipfrac")

    num_epochs: int = 4
    num_minibatches: int = 4
    clip: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("1 or more", lambda value: value >= 1, "num_epochs", "num_minibatches")
        self.require("more than 0", lambda value: value > 0, "clip")


def train(config: Config, env: Callable[..., Any] | None = None) -> Result:
    """Train policies, evaluate them on fresh seeds, and return the result.

    env: a KernelEnv to use instead of config.env.
    """
    with joined(config, lambda local_config: num_envs_that_fit(local_config, env)) as (local_config, run_config):
        return run(local_config, Learner, learn, env=env, run_config=run_config)


def resume(
    folder: Path, env: Any = None, total_steps: int | None = None, *, trust: bool = False
) -> tuple[Config, Result]:
    """Resume the run in a folder (see ``session.resumed``); return its settings and its result.

    Raises PlanError if the number of processes is not the same as when the run began.
    """
    require_as_many(checkpoint_path(folder).parent)
    return resumed(folder, Config, Learner, learn, env, total_steps, trust, as_begun)


def as_begun(config: Any) -> contextlib.AbstractContextManager[tuple[Any, Any]]:
    """Return the context manager of ``ddp.joined`` for a resumed run, whose number of environments is known."""
    return joined(config, lambda local_config: int(local_config.num_envs))


# -------------------------------------------------------------------------------------------------- teams and learner


# Random numbers in a graph: torch counts them in an unsigned int, and sampling actions takes a few.
MOST_DRAWN = 2**32 - 2**20
MOST_SHUFFLED = 2**31 - 1


def require_shuffled(config: Any, rows: Sequence[int]) -> None:
    """Raise PlanError if a rollout has too many rows to shuffle on the GPU. rows: the number of rows of each team.

    torch.randperm indexes rows with a signed 32-bit int, which limits the rows of any one team. It also draws a random
    number per row in every epoch, and in a CUDA graph torch counts the draws in an unsigned 32-bit int, which limits
    epochs times rows over all teams.
    """
    num_epochs = getattr(config, "num_epochs", 0)
    if torch.device(config.device).type != "cuda" or num_epochs == 0:
        return
    num_drawn = num_epochs * sum(rows) if config.graphs else 0
    if max(rows) <= MOST_SHUFFLED and num_drawn <= MOST_DRAWN:
        return
    message = f"a rollout has {max(rows):,} rows of a team, and {MOST_SHUFFLED:,} can be shuffled"
    if num_drawn > MOST_DRAWN:
        message = (
            f"num_epochs={num_epochs} of {sum(rows):,} rows draw more random numbers than a graph's {MOST_DRAWN:,}"
        )
    raise PlanError(f"{message}; use fewer num_envs, or a shorter rollout_length")


class Learner:
    """The training state, which checkpoints save. actor: all teams' policies combined in one."""

    def __init__(self, vec: pufferlib.VecEnv, origin: Origin, config: DeviceConfig) -> None:
        layout, space = vec.observation_layout, vec.single_action_space
        teams = teams_of(vec.agent_names or [""] * vec.agents_per_env, config)
        if len(teams) > 1:
            kwargs = {**origin.policy_kwargs, "policy": origin.policy, "places": teams}
            origin = replace(origin, policy="teams", policy_kwargs=kwargs)
        self.origin = origin
        self.actor = origin.actor(layout, space)
        if self.actor.recurrent:
            raise PlanError(f"policy={config.policy!r} has a memory, which this trainer does not keep; use ppo_lstm")
        require_shuffled(
            config, [config.rollout_length * vec.num_envs * len(agent_indices) for agent_indices in teams.values()]
        )
        policy: Any = self.actor.policy.to(config.device)
        parts = {name: policy.policy_of(name) if len(teams) > 1 else policy for name in teams}
        self.teams = [
            Team(name, Actor(lambda *_, part=parts[name]: part, layout, space), agent_indices, config)
            for name, agent_indices in teams.items()
        ]
        self.generator = torch.Generator(config.device).manual_seed(config.seed)
        self.num_steps = 0
        self.charts: dict[str, float] = {}  # of the latest episodes to end

    def state(self) -> dict[str, Any]:
        """Return the training state as plain values and tensors."""
        return {
            "weights": self.actor.policy.state_dict(),
            "optimizers": [team.optimizer.state_dict() for team in self.teams],
            "generator": gathered(self.generator.get_state()),
            "num_steps": self.num_steps,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state that ``state`` returned."""
        self.actor.policy.load_state_dict(state["weights"])
        for team, optimizer_state in zip(self.teams, state["optimizers"], strict=True):
            team.restore(optimizer_state)
        self.generator.set_state(of_this_rank(state["generator"]))
        self.num_steps = state["num_steps"]


# ----------------------------------------------------------------------------------------------- rollouts and updates


class Rollout:
    """The observations, actions and outcomes of all agents over a rollout, on the device: (steps, envs, agents, …).

    Observations and values have one more step, for which there is no action yet: the first step of the next rollout.
    """

    def __init__(self, vec: pufferlib.VecEnv, learner: Learner, config: DeviceConfig) -> None:
        self.vec, self.learner, self.reward_clip = vec, learner, config.reward_clip
        self.num_steps = config.rollout_length
        rows = (vec.num_envs, vec.agents_per_env)
        decisions = learner.actor.decisions

        def zeros(num_steps: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros((num_steps, *rows, *shape), dtype=dtype, device=config.device)

        self.observations = zeros(self.num_steps + 1, *(vec.single_observation_space.shape or ()))
        self.values = zeros(self.num_steps + 1)
        self.discrete_actions = zeros(self.num_steps, len(decisions.nvec), dtype=torch.int64)
        self.log_probs, self.rewards = zeros(self.num_steps), zeros(self.num_steps)
        self.terminations, self.truncations, self.masks = (zeros(self.num_steps, dtype=torch.bool) for _ in range(3))
        self.device_video = DeviceVideo(vec, config.video_envs, self.num_steps) if config.video_envs else None
        self._actions_shape = (vec.agents_per_batch, *(vec.single_action_space.shape or ()))

    def begin(self) -> None:
        """Store the first observations of newly reset environments."""
        batch: Any = self.vec.recv()
        self.observations[-1] = batch.observations.view_as(self.observations[-1])
        if self.device_video is not None:
            self.device_video.take(0, batch)

    @torch.no_grad()
    def play(self) -> None:
        """Play ``rollout_length`` steps from the last stored observations, and store them.

        Rewards are clipped to plus or minus ``reward_clip`` unless that is None.
        """
        self.observations[0] = self.observations[-1]
        for step in range(self.num_steps):
            for team in self.learner.teams:
                distribution, values, _ = team.actor(team.rows_of(self.observations[step : step + 1]))
                discrete_actions, continuous_actions = distribution.sample(self.learner.generator)
                team.write(self.values[step], values)
                team.write(self.discrete_actions[step], discrete_actions)
                team.write(self.log_probs[step], distribution.log_prob(discrete_actions, continuous_actions))
            self.vec.send(self.discrete_actions[step].view(self._actions_shape))
            self.keep(step, self.vec.recv())
        for team in self.learner.teams:
            team.write(self.values[-1], team.actor(team.rows_of(self.observations[-1:]))[1])
        if self.reward_clip is not None:
            self.rewards.clamp_(-self.reward_clip, self.reward_clip)

    def keep(self, step: int, batch: Any) -> None:
        """Store the rows that a step produced."""
        for column, values in (
            (self.observations[step + 1], batch.observations),
            (self.rewards[step], batch.rewards),
            (self.terminations[step], batch.terminations),
            (self.truncations[step], batch.truncations),
            (self.masks[step], batch.masks),
        ):
            column.copy_(values.view_as(column))
        if self.device_video is not None:
            self.device_video.take(step, batch)

    def advantages(self, gamma: float, gae_lambda: float) -> Tensor:
        """Return the advantage of each action, (steps, envs, agents); 0 where its mask is unset."""
        ends = (self.terminations, self.truncations)
        return advantages(self.rewards, self.values, *ends, self.masks, gamma, gae_lambda)


def advantages(
    rewards: Tensor,
    values: Tensor,
    terminations: Tensor,
    truncations: Tensor,
    masks: Tensor,
    gamma: float,
    gae_lambda: float,
) -> Tensor:
    """Return generalised advantage estimates, (steps, …); 0 where a step's mask is unset.

    values: (steps + 1, …), the values of the observations before each action and after the last one. The other
    arguments: (steps, …), the outcomes of the actions. Source: Schulman et al., arXiv:1506.02438, eq. 16.
    """
    lives = masks & ~terminations
    deltas = masks * (rewards - values[:-1]) + gamma * lives * values[1:]
    decays = gamma * gae_lambda * (lives & ~truncations)
    estimates = torch.empty_like(deltas)
    lastgaelam = torch.zeros_like(deltas[0])
    for step in reversed(range(len(deltas))):
        lastgaelam = torch.addcmul(deltas[step], decays[step], lastgaelam, out=estimates[step])
    return estimates


def update(learner: Learner, rollout: Rollout, config: Config) -> Tensor:
    """Train each team on a rollout for ``num_epochs`` epochs.

    Return this process's share of the last epoch's losses, averaged over the minibatches, with a row per team and a
    column per name in ``Config.losses``. The shares of all processes add up to the losses.
    """
    advantages = rollout.advantages(config.gamma, config.gae_lambda)
    metrics = []
    for team in learner.teams:
        observations, discrete_actions = team.rows_of(rollout.observations[:-1]), team.rows_of(rollout.discrete_actions)
        old_log_probs, b_advantages = team.rows_of(rollout.log_probs), team.rows_of(advantages)
        b_returns = b_advantages + team.rows_of(rollout.values[:-1])
        masks = team.rows_of(rollout.masks).float()
        for _ in range(config.num_epochs):
            shuffled = torch.randperm(len(masks), generator=learner.generator, device=masks.device)
            columns = (observations, discrete_actions, old_log_probs, b_advantages, b_returns, masks)
            # As many minibatches in every process, whatever its share, since all processes take part in every sum.
            chunks = [column[shuffled].tensor_split(config.num_minibatches) for column in columns]
            terms = torch.stack([ppo_step(team, config, *chunk) for chunk in zip(*chunks, strict=True)])
        metrics.append(terms.mean(0))
    return torch.stack(metrics)


def ppo_step(
    team: Team,
    config: Config,
    observations: Tensor,
    discrete_actions: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    returns: Tensor,
    masks: Tensor,
) -> Tensor:
    """Take a gradient step on PPO's loss; return this process's share of each of ``Config.losses``.

    masks: 1 for valid rows, else 0.
    """
    shares, normalized = weighed(advantages, masks, config.advantage_floor)
    distribution, values, _ = team.actor(observations)
    log_ratios = distribution.log_prob(discrete_actions, advantages[:, None]) - old_log_probs
    ratios = log_ratios.exp()
    bounded = ratios.clamp(1 - config.clip, 1 + config.clip)
    pg_objectives = torch.min(ratios * normalized, bounded * normalized)
    v_losses = 0.5 * (values - returns).square()
    entropies = distribution.entropy()
    losses = config.value_coefficient * v_losses - pg_objectives - team.entropy_coefficient * entropies
    descend(team, losses @ shares, config)
    with torch.no_grad():
        terms = (-pg_objectives, v_losses, entropies, ratios - 1 - log_ratios, (ratios != bounded).float())
        return torch.stack(terms) @ shares


def weighed(advantages: Tensor, masks: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    """Return each row's weight in a mean over the valid rows of all processes, and the normalized advantages.

    Advantages are centred on their mean and divided by their standard deviation or ``floor``, whichever is larger.
    Processes wait for each other only once: the count and both moments are summed together, in float64; the variance
    follows from them.
    """
    weighted = (advantages * masks).double()
    sums = total(torch.stack([masks.sum(dtype=weighted.dtype), weighted.sum(), weighted.square().sum()]))
    count = sums[0].clamp(min=1)
    mean, square = (sums[1:] / count).unbind()
    deviation = (square - mean.square()).clamp(min=0).sqrt().clamp(min=floor)
    return masks / count.float(), (advantages - mean.float()) / deviation.float()


def descend(team: Team, loss: Tensor, config: DeviceConfig) -> None:
    """Take a gradient step on ``loss``, summed over the processes, with the gradient's norm clipped."""
    gradient = team.weights.grad
    assert gradient is not None
    gradient.zero_()
    loss.backward()
    total(gradient)
    gradient.mul_((config.max_grad_norm / gradient.norm()).clamp(max=1))
    team.optimizer.step()


# ----------------------------------------------------------------------------------------------------------- learning


def learn(
    session: Session, learner: Learner, config: Any, update: Callable[[Learner, Rollout, Any], Tensor] = update
) -> None:
    """Alternate between playing and updating until ``total_steps`` transitions have been learnt from.

    An iteration's results are read while the next iteration runs. They are read at once if it is time to save
    newest.pt, or if the stretch of steps (see ``Session.stretches``) may end with this iteration.
    """
    report = session.report
    with on_own_stream(config.device):
        rollout: Rollout | None = None  # one for all stretches: a second would take as much memory again
        for last_step in session.stretches():
            if rollout is None:
                rollout = Rollout(session.vec, learner, config)
                iterate = iteration(rollout, config, update)
            rollout.begin()
            if rollout.device_video is not None:
                show(session, rollout.device_video, learner, Reading(rollout.device_video.tensors(1), ()).values())
            most_steps = int(total(torch.tensor(rollout.masks.numel(), device=config.device)))  # an iteration's maximum
            previous: Reading | None = None
            known_steps = learner.num_steps  # without the previous iteration's, even if they have been read
            report.phase("learning")
            while learner.num_steps < last_step:
                rates = [team.set_rate(known_steps, config.total_steps) for team in learner.teams]
                reading = Reading(iterate(), rates)
                if previous is not None:
                    report_iteration(session, learner, rollout, previous)
                known_steps = learner.num_steps
                previous, due = reading, session.is_due()
                if due or learner.num_steps + most_steps >= last_step:
                    report_iteration(session, learner, rollout, previous)
                    previous = None
                if due:
                    session.save_newest()


def iteration(
    rollout: Rollout, config: Any, update: Callable[[Learner, Rollout, Any], Tensor] = update
) -> GraphedIteration:
    """Return a callable that plays a rollout, learns from it, and returns the results.

    The results are the number of valid steps, the losses, sums over the finished episodes, and the states to film.
    """
    vec, learner = rollout.vec, rollout.learner

    def play_and_update() -> tuple[Tensor, ...]:
        rollout.play()
        losses = total(update(learner, rollout, config))
        sums = vec.episode_sums(reset=True)  # type: ignore[attr-defined]
        episodes = (sums.num_episodes, sums.num_steps, sums.scores, sums.returns)
        video_tensors = () if rollout.device_video is None else rollout.device_video.tensors()
        return total(rollout.masks.sum()), losses, *map(total, episodes), *video_tensors

    return GraphedIteration(play_and_update, learner.generator, config)


def num_envs_that_fit(
    config: Any,
    env: Callable[..., Any] | None = None,
    update: Callable[[Learner, Rollout, Any], Tensor] = update,
) -> int:
    """Return the number of environments of this process that fit in the free memory, and print it.

    The number is limited so that one rollout of all processes takes at most ``total_steps`` steps.
    """
    with environments(replace(config, num_envs=1, video_envs=()), env) as vec:
        rows_per_env = vec.agents_per_env * config.rollout_length

    def trial(num_envs: int) -> None:
        trial_config = replace(config, num_envs=num_envs, video_envs=())
        with torch_set_up(trial_config), environments(trial_config, env) as vec:
            learner = Learner(vec, origin_of(trial_config, env), trial_config)
            vec.async_reset(seed=trial_config.seed)
            with on_own_stream(trial_config.device):
                rollout = Rollout(vec, learner, trial_config)
                rollout.begin()
                iterate = iteration(rollout, trial_config, update)
                for _ in range(1 + (iterate.eager_calls or 0)):  # the last of them is captured, if any is
                    iterate()

    free = free_nbytes(config.device)
    most = max(1, config.total_steps // (rows_per_env * num_processes()))  # as the processes share total_steps
    num_envs, needs = as_many_as_fit(trial, config.device, rows_per_env, most, free=free)
    where = "" if num_processes() == 1 else " in the first process"
    print(f"num_envs={num_envs}{where}: {needs}; {memory_text(free)} are free, and total_steps is enough for {most}")
    return num_envs


def show(session: Session, device_video: DeviceVideo, learner: Learner, tensors: Sequence[Tensor]) -> None:
    """Draw recorded states and add them to the session's videos, if it makes any.

    tensors: as for ``DeviceVideo.show``. Call it before the recorded steps are added to ``learner.num_steps``, which
    dates the films.
    """
    if session.videos is not None:
        device_video.show(session.videos, tensors, learner.num_steps)


def report_iteration(session: Session, learner: Learner, rollout: Rollout, reading: Reading) -> None:
    """Wait for an iteration's results, and report them.

    Also draws the states recorded for films, adds the steps to the learner's, and updates the learner's charts.
    """
    num_steps, losses, *sums = reading.values()
    sums, video_tensors = sums[:4], sums[4:]
    if rollout.device_video is not None:
        show(session, rollout.device_video, learner, video_tensors)
    learner.num_steps += int(num_steps)
    num_episodes, num_ended_steps, scores, returns = sums
    episodes = EpisodeSums(num_episodes, num_ended_steps, scores, returns, session.vec.agent_names).stats()
    if episodes.num_episodes:
        learner.charts = charts_of(episodes)
    scalars = dict(learner.charts)
    names = cast("DeviceConfig", session.config).losses
    for team, terms, rate in zip(learner.teams, losses.tolist(), reading.rates, strict=True):
        end = f"_{team.name}" if team.name else ""
        scalars.update({f"losses/{name}{end}": term for name, term in zip(names, terms, strict=True)})
        scalars[f"charts/learning_rate{end}"] = rate
    session.report.update(learner.num_steps, scalars)


def charts_of(episodes: EpisodeStats) -> dict[str, float]:
    """Return the charts of the episodes that ended in an iteration, keyed by TensorBoard name."""
    score = {} if episodes.mean_score is None else {"charts/score": episodes.mean_score}
    returns = {f"{RETURN_OF}{name}": mean for name, mean in episodes.mean_returns_by_type.items()}
    means = {"charts/episodic_return": episodes.mean_return, "charts/episodic_length": episodes.mean_length}
    return {**means, **score, **returns}


if __name__ == "__main__":
    main(Config, train)
