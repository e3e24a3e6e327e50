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

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

import pufferlib
from pufferlib.models import Origin
from pufferlib.training import DeviceConfig, DeviceVideo, Result, Session, device_runs, main
from pufferlib.training.cuda_graphs import GraphedIteration, Reading, on_own_stream
from pufferlib.training.ddp import gathered, of_this_rank, total
from pufferlib.training.kernel_actions import KernelActions, pair
from pufferlib.training.minibatches import UNITS, require_shuffled, shares, shuffled
from pufferlib.training.results import charts_of_stats
from pufferlib.training.teams import Team, team_actor, teams_of, unpadded_sizes
from pufferlib.vectorization.device.episodes import EpisodeSums


@dataclass(frozen=True)
class Config(DeviceConfig):
    """Train policies with PPO on kernel environments. One step is one action of one agent."""

    algorithm: ClassVar[str] = "ppo_cuda"
    losses: ClassVar[tuple[str, ...]] = ("policy_loss", "value_loss", "entropy", "approx_kl", "clipfrac")

    num_epochs: int = 4
    num_minibatches: int = 4
    minibatch_units: str = "rows"
    """what is shuffled into minibatches: rows, or environments, all of whose rows are in one minibatch"""
    clip: float = 0.2
    learner: str = "torch"
    """torch, or fused: compiled code computes MLPs and their updates, which is faster on the host"""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("1 or more", lambda value: value >= 1, "num_epochs", "num_minibatches")
        self.require("more than 0", lambda value: value > 0, "clip")
        self.require("torch, fused", lambda value: value in ("torch", "fused"), "learner")
        self.require(", ".join(UNITS), lambda value: value in UNITS, "minibatch_units")
        if self.learner == "fused":
            self.require("rows, or --learner torch", lambda value: value == "rows", "minibatch_units")
            self.require("host, or --learner torch", lambda value: value == "cpu", "device")
            self.require("float32, or --learner torch", lambda value: value == "float32", "precision")


class Learner:
    """The training state, which checkpoints save. actor: all teams' policies combined in one."""

    def __init__(self, vec: pufferlib.VecEnv, origin: Origin, config: DeviceConfig) -> None:
        teams = teams_of(vec.agent_names or [""] * vec.agents_per_env, config)
        if len(teams) > 1:
            kwargs = {"policy": origin.policy, "places": teams, "sizes": unpadded_sizes(vec, teams)}
            origin = replace(origin, policy="teams", policy_kwargs={**origin.policy_kwargs, **kwargs})
        self.origin = origin
        self.actor = origin.actor(vec.observation_layout, vec.single_action_space)
        if self.actor.recurrent:
            raise pufferlib.PlanError(f"policy={config.policy!r} has a memory, which is not kept here; use ppo_lstm")
        require_shuffled(
            config, [config.rollout_length * vec.num_envs * len(agent_indices) for agent_indices in teams.values()]
        )
        policy: Any = self.actor.policy.to(config.device)
        parts = {name: policy.policy_of(name) if len(teams) > 1 else policy for name in teams}
        self.teams = [
            Team(name, team_actor(parts[name], vec), agent_indices, config) for name, agent_indices in teams.items()
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


class Rollout:
    """The observations, actions and outcomes of all agents over a rollout, on the device: (steps, envs, agents, …).

    Observations and values have one more step, for which there is no action yet: the first step of the next rollout.
    """

    def __init__(self, vec: Any, learner: Learner, config: DeviceConfig) -> None:
        self.vec, self.learner, self.config = vec, learner, config
        self.num_steps = config.rollout_length
        rows = (vec.num_envs, vec.agents_per_env)
        self.kernel_actions = KernelActions(learner.actor.decisions, config.device)

        def zeros(num_steps: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros((num_steps, *rows, *shape), dtype=dtype, device=config.device)

        self.observations = zeros(self.num_steps + 1, *(vec.single_observation_space.shape or ()))
        self.values = zeros(self.num_steps + 1)
        self.actions = zeros(self.num_steps, self.kernel_actions.width, dtype=self.kernel_actions.dtype)
        self.log_probs, self.rewards = zeros(self.num_steps), zeros(self.num_steps)
        self.terminations, self.truncations, self.masks = (zeros(self.num_steps, dtype=torch.bool) for _ in range(3))
        self.device_video = DeviceVideo(vec, config.video_envs, self.num_steps) if config.video_envs else None
        self._actions_shape = (vec.agents_per_batch, *(vec.single_action_space.shape or ()))
        columns = (self.observations[1:], self.rewards, self.terminations, self.truncations, self.masks)
        self._rows = list(zip(*(column.flatten(1, 2) for column in columns), strict=True))  # those of each step

    def begin(self) -> None:
        """Store the first observations of newly reset environments."""
        batch = self.vec.recv()
        self.observations[-1] = batch.observations.view_as(self.observations[-1])
        if self.device_video is not None:
            self.device_video.take(0, batch)

    @torch.no_grad()
    def play(self) -> None:
        """Play ``rollout_length`` steps from the last stored observations, and store them.

        Rewards are multiplied by ``reward_scale``, then clipped to plus or minus ``reward_clip`` unless that is None.
        """
        self.observations[0] = self.observations[-1]
        for step in range(self.num_steps):
            for team in self.learner.teams:
                distribution, values = team.decide(team.observations_of(self.observations[step : step + 1]))
                drawn = distribution.sample(self.learner.generator)
                if values is not None:
                    team.write(self.values[step], values)
                team.write(self.actions[step], drawn[self.kernel_actions.is_continuous])
                team.write(self.log_probs[step], distribution.log_prob(*drawn))
            self.step(step)
        for team in self.learner.teams:  # at once, in parts as large as the update's minibatches
            team.write_values(self.values, self.observations, getattr(self.config, "num_minibatches", 1))
        self.rewards.mul_(self.config.reward_scale)
        if self.config.reward_clip is not None:
            self.rewards.clamp_(-self.config.reward_clip, self.config.reward_clip)

    def step(self, step: int) -> None:
        """Take the actions that are stored for a step. The environments write their rows into the rollout."""
        actions = self.kernel_actions.of_environments(self.actions[step])
        self.vec.send(actions.view(self._actions_shape), out=self._rows[step])
        batch = self.vec.recv()
        if self.device_video is not None:
            self.device_video.take(step, batch)

    def advantages(self, gamma: float, gae_lambda: float) -> Tensor:
        """Return the advantage of each action, (steps, envs, agents); 0 where its mask is unset."""
        terminations = self.terminations if self.config.bootstrap else self.terminations | self.truncations
        return advantages(self.rewards, self.values, terminations, self.truncations, self.masks, gamma, gae_lambda)


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
    shape = (rollout.num_steps, rollout.vec.num_envs) if config.minibatch_units == "environments" else None
    metrics = []
    for team in learner.teams:
        observations = team.observations_of(rollout.observations[:-1])
        actions, old_log_probs, b_advantages = map(team.rows_of, (rollout.actions, rollout.log_probs, advantages))
        b_returns = b_advantages + team.rows_of(rollout.values[:-1])
        columns = (observations, actions, old_log_probs, b_advantages, b_returns)
        masks = team.rows_of(rollout.masks).float()
        if config.learner == "fused":
            valid = masks.nonzero().squeeze(1)
            orders = [valid[torch.randperm(len(valid), generator=learner.generator)] for _ in range(config.num_epochs)]
            epochs = [shares(order, config.num_minibatches) for order in orders]
            metrics.append(team.update_fused(*columns, epochs))
            continue
        for _ in range(config.num_epochs):
            minibatches = shuffled((*columns, masks), config.num_minibatches, learner.generator, shape)
            terms = torch.stack([ppo_step(team, config, *minibatch) for minibatch in minibatches])
        metrics.append(terms.mean(0))
    return torch.stack(metrics)


def ppo_step(
    team: Team,
    config: Config,
    observations: Tensor,
    actions: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    returns: Tensor,
    masks: Tensor,
) -> Tensor:
    """Take a gradient step on PPO's loss; return this process's share of each of ``Config.losses``.

    masks: 1 for valid rows, else 0.
    """
    shares, normalized = weighed(advantages, masks, config.advantage_floor)
    distribution, newvalue, _ = team.actor(observations)
    logratio = distribution.log_prob(*pair(actions)) - old_log_probs
    ratio = logratio.exp()
    clipped_ratio = ratio.clamp(1 - config.clip, 1 + config.clip)
    pg_loss = -torch.min(normalized * ratio, normalized * clipped_ratio)  # (rows,), as are the other losses
    v_loss = 0.5 * (newvalue - returns).square()
    entropy = distribution.entropy()
    loss = pg_loss + config.value_coefficient * v_loss - team.entropy_coefficient * entropy
    descend(team, loss @ shares, config)
    with torch.no_grad():
        approx_kl, clipfrac = ratio - 1 - logratio, (ratio != clipped_ratio).float()
        return torch.stack([pg_loss, v_loss, entropy, approx_kl, clipfrac]) @ shares


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
                first = Reading(rollout.device_video.tensors(1), ()).values()
                rollout.device_video.show(session.videos, first, learner.num_steps)
            most_steps = int(total(torch.tensor(rollout.masks.numel(), device=config.device)))  # an iteration's maximum
            previous: Reading | None = None
            known_steps = learner.num_steps  # without the previous iteration's, even if they have been read
            report.phase("learning")
            while learner.num_steps < last_step:
                rates = [team.set_rate(known_steps, config.total_steps) for team in learner.teams]
                try:
                    reading = Reading(iterate(), rates)
                except pufferlib.ActionError:  # an action is NaN; the report that waits tells which loss was
                    if previous is not None:
                        report_iteration(session, learner, rollout, previous)
                    raise
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
        sums = vec.episode_sums(reset=True)
        episodes = (sums.num_episodes, sums.num_steps, sums.scores, sums.returns)
        video_tensors = () if rollout.device_video is None else rollout.device_video.tensors()
        return total(rollout.masks.sum()), losses, *map(total, episodes), *video_tensors

    return GraphedIteration(play_and_update, learner.generator, config)


def report_iteration(session: Session, learner: Learner, rollout: Rollout, reading: Reading) -> None:
    """Wait for an iteration's results, and report them.

    Also draws the states recorded for films, adds the steps to the learner's, and updates the learner's charts.
    """
    num_steps, losses, num_episodes, num_ended_steps, scores, returns, *video_tensors = reading.values()
    if rollout.device_video is not None:
        rollout.device_video.show(session.videos, video_tensors, learner.num_steps)
    learner.num_steps += int(num_steps)
    episodes = EpisodeSums(num_episodes, num_ended_steps, scores, returns, session.vec.agent_names).stats()
    if episodes.num_episodes:
        learner.charts = charts_of_stats(episodes)
    scalars = dict(learner.charts)
    names = cast("DeviceConfig", session.config).losses
    for team, terms, rate in zip(learner.teams, losses.tolist(), reading.rates, strict=True):
        end = f"_{team.name}" if team.name else ""
        scalars.update({f"losses/{name}{end}": term for name, term in zip(names, terms, strict=True)})
        scalars[f"charts/learning_rate{end}"] = rate
    session.report.update(learner.num_steps, scalars)


def begin(
    vec: pufferlib.VecEnv,
    learner: Learner,
    config: Any,
    update: Callable[[Learner, Rollout, Any], Tensor] = update,
) -> GraphedIteration:
    """Return the first iteration of a run whose environments have just been reset, for ``num_envs="auto"``."""
    rollout = Rollout(vec, learner, config)
    rollout.begin()
    return iteration(rollout, config, update)


def train(config: Config, env: Callable[..., Any] | None = None) -> Result:
    """Train policies, evaluate them on fresh seeds, and return the result.

    env: a KernelEnv to use instead of config.env.
    """
    return device_runs.run(config, Learner, learn, begin, env)


def resume(
    folder: Path, env: Any = None, total_steps: int | None = None, *, trust: bool = False
) -> tuple[Config, Result]:
    """Resume the run in a folder (see ``device_runs.resumed``); return its settings and its result."""
    return device_runs.resumed(folder, Config, Learner, learn, env, total_steps, trust)


if __name__ == "__main__":
    main(Config, train)
