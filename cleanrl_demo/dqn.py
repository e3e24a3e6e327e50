"""DQN in one file, over send and recv, for any environment that the registry can name and whose actions are Discrete.

    python -m cleanrl_demo.dqn --env CartPole-v1 --backend serial

What trainers get wrong most often stands in ``Replay``. It pairs each agent's row with that agent's next one by
``agent_ids``, whatever batch either comes in, and keeps the pair only where the next row's mask is set; so neither
reset rows nor crash rows nor the padding of absent agents are ever learnt from. The next row of a truncated episode is
the one whose flag is set, and what its observation promises counts; after a termination nothing more is to be had.

Source: Mnih et al., "Human-level control through deep reinforcement learning", Nature 518, 2015 (DQN), and van Hasselt
et al., arXiv:1509.06461 (double estimates).
"""

from __future__ import annotations

import copy
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Discrete
from torch import Tensor, nn
from torch.optim import Adam

import pufferlib
from cleanrl_demo.report import Report
from cleanrl_demo.results import Episode, Episodes, Result, charts, evaluate, new_run_folder, summary
from pufferlib.errors import PlanError, SpaceError
from pufferlib.layout import Layout
from pufferlib.memory import memory_at_hand, memory_text
from pufferlib.models import Origin, action_mask_reader, make_policy, save_policy
from pufferlib.networks import Features, Frames, convolutions, is_image, num_features

STEPS_PER_REPORT = 1000
NETWORK = "cleanrl_demo.dqn:QNetwork"
NEVER = torch.finfo(torch.float32).min  # a logit


@dataclass(frozen=True)
class Config:
    """Train a policy with DQN. One step is one action of one agent. Raises PlanError for settings out of bounds."""

    env: str = "CartPole-v1"
    """name of the environment (`puffer envs` lists them), any id of Gymnasium, or module:callable of your own"""
    backend: str = "serial"
    """serial, multiprocessing or pool"""
    num_envs: int = 8
    num_workers: int | None = None
    """processes; default: one for each core"""
    batch_size: int | None = None
    """environments in a batch; default: half of them on a pool, else all"""
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """arguments of the environment"""
    wrap_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """arguments of pufferlib.wrap, such as bounds of variable-length spaces"""
    seed: int = 1
    total_steps: int = 50_000
    buffer_size: int = 100_000
    """transitions; the newest are kept"""
    learning_starts: int = 1_000
    """steps before the first update"""
    steps_per_update: float = 2.0
    """however many environments there are"""
    minibatch_size: int = 64
    learning_rate: float = 2.3e-3
    """at the start; it falls to 0"""
    gamma: float = 0.99
    target_period: int = 32
    """updates between copies of the network to the one that estimates what comes after"""
    start_epsilon: float = 1.0
    """share of actions that are random, at the start"""
    end_epsilon: float = 0.04
    exploration_fraction: float = 0.2
    """of the steps: how long epsilon falls"""
    max_grad_norm: float = 10.0
    network: str = "default"
    """module:Class of your own, a policy as pufferlib.models says, whose outputs are taken for Q-values; or mlp, cnn"""
    network_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """arguments of the network, such as hidden_size"""
    torch_threads: int = 1
    """more only help large networks"""
    eval_episodes: int = 1000
    runs: str | None = "runs"
    """folder for the folder of this run; None writes nothing"""

    def __post_init__(self) -> None:
        for names, wanted, fits in (
            (("gamma", "start_epsilon", "end_epsilon"), "0 to 1", lambda value: 0 <= value <= 1),
            (("exploration_fraction",), "more than 0, to 1", lambda value: 0 < value <= 1),
            (("minibatch_size", "target_period"), "1 or more", lambda value: value >= 1),
            (("steps_per_update",), "more than 0", lambda value: value > 0),
        ):
            for name in names:
                if not fits(getattr(self, name)):
                    raise PlanError(f"{name}={getattr(self, name)!r} is out of bounds; use {wanted}")
        if self.learning_starts >= self.total_steps:
            raise PlanError(f"learning_starts={self.learning_starts} is not less than total_steps={self.total_steps}")


def train(config: Config, env: Callable[..., Any] | None = None) -> Result:
    """Train a policy, evaluate it greedily on fresh seeds, and return both.

    env: a creator, in place of the name in config. Raises SpaceError where actions are not Discrete.
    """
    made_for = (None if env is not None else config.env, config.env_kwargs, config.wrap_kwargs)
    arguments = {"network": NETWORK if config.network == "default" else config.network, **config.network_kwargs}
    origin = Origin("cleanrl_demo.dqn:Greedy", arguments, *made_for)
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
                policy = Greedy(vec.observation_layout, vec.single_action_space, **arguments)
            name = config.env if env is None else getattr(env, "__name__", type(env).__name__)
            replay = Replay(vec, config.buffer_size)
            run_folder = None if config.runs is None else new_run_folder(config, name, "dqn")
            with Report(name, config.total_steps, run_folder) as report:
                began, start_s = time.time(), time.perf_counter()
                num_steps = learn(vec, policy, replay, config, report)
                seconds = time.perf_counter() - start_s
            if run_folder is not None:
                save_policy(run_folder / "policy.pt", policy, origin)
            report.console.print(f"{name}  playing {config.eval_episodes:,} fresh episodes …", soft_wrap=True)
            episodes = evaluate(vec, policy.at_play(), config.eval_episodes, config.seed + 1_000_000)
    finally:
        torch.set_num_threads(num_threads)
    return Result(policy, num_steps, began, seconds, episodes, run_folder)


class QNetwork(nn.Module):
    """Two ReLU layers over observations of any structure, behind three convolutions where they are images."""

    def __init__(self, observation_layout: Layout, action_space: gymnasium.Space[Any], hidden_size: int = 256) -> None:
        super().__init__()
        image = is_image(observation_layout)
        self.read: Any = (Frames if image else Features)(observation_layout)
        first = convolutions(self.read.shape[0], (32, 64, 64)) if image else nn.Identity()
        size = num_features(first, self.read.shape) if image else self.read.size
        layers = [nn.Linear(size, hidden_size), nn.ReLU(), nn.Linear(hidden_size, hidden_size), nn.ReLU()]
        self.layers = nn.Sequential(first, *layers, nn.Linear(hidden_size, int(action_space.n)))

    def forward(self, observations: Tensor, state: Any = None, action_mask: Tensor | None = None) -> tuple[Any, ...]:
        """Return (Q-values, values, state)."""
        q_values = self.layers(self.read(observations))  # (rows, num_actions)
        return q_values, q_values.amax(1), state


class Greedy(nn.Module):
    """A policy, as ``pufferlib.models`` has them, that always plays the allowed action of the highest Q-value.

    So its logits leave no choice, and whoever draws an action gets the same one as who takes the likeliest.
    network, kwargs: what ``make_policy`` makes a network of, whose outputs are the Q-values. Raises SpaceError where
    actions are not Discrete, PlanError for a network with a memory, and as ``make_policy``.
    """

    def __init__(
        self, observation_layout: Layout, action_space: gymnasium.Space[Any], network: str = NETWORK, **kwargs: Any
    ) -> None:
        super().__init__()
        if not isinstance(action_space, Discrete):
            raise SpaceError(f"DQN plays Discrete actions, and not {action_space}; cleanrl_demo.ppo plays others too")
        self.network = make_policy(network, observation_layout, action_space, **kwargs)
        if hasattr(self.network, "initial_state"):
            raise PlanError(f"network={network!r} has a memory, which this trainer does not keep")
        self.space = action_space
        # Flat observations to the action mask, bool (rows, num_actions); to None where there is none.
        self.mask = action_mask_reader(observation_layout, action_space) or (lambda observations: None)

    def forward(self, observations: Tensor, state: Any = None, action_mask: Tensor | None = None) -> tuple[Any, ...]:
        """Return (logits, values, state)."""
        q_values = allowed(self.network(observations, None, action_mask)[0], action_mask)
        values, best = q_values.max(1, keepdim=True)
        return torch.full_like(q_values, NEVER).scatter(1, best, 0.0), values.squeeze(1), state

    @torch.inference_mode()
    def choose(self, observations: Tensor, epsilon: float, generator: torch.Generator) -> np.ndarray:
        """Return the best action of each row, zero-based int64, or with probability epsilon any that is allowed."""
        mask = self.mask(observations)
        best = allowed(self.network(observations, None, mask)[0], mask)
        any_of_them = allowed(torch.rand(best.shape, generator=generator), mask)
        at_random = torch.rand(len(best), generator=generator) < epsilon
        return torch.where(at_random, any_of_them.argmax(1), best.argmax(1)).numpy()

    def actions(self, choices: np.ndarray) -> np.ndarray:
        """Return zero-based choices as the actions that ``VecEnv.send`` takes."""
        return (choices + self.space.start).astype(self.space.dtype)

    def at_play(self) -> Callable[[pufferlib.Batch], np.ndarray]:
        """Return what plays: the best actions for a batch."""
        return lambda batch: self.actions(self.choose(torch.from_numpy(batch.observations), 0.0, torch.Generator()))


def allowed(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Return scores, (rows, num_actions), as -inf where a bool mask forbids the action.

    Where it forbids all, as in the rows of absent agents, any may be played.
    """
    return scores if mask is None else scores.masked_fill(~mask & mask.any(1, keepdim=True), -torch.inf)


def learn(vec: pufferlib.VecEnv, policy: Greedy, replay: Replay, config: Config, report: Report) -> int:
    """Play, and learn from what was played, for ``total_steps`` transitions; return how many they were."""
    generator = torch.Generator().manual_seed(config.seed)
    target = copy.deepcopy(policy.network).requires_grad_(False)
    optimizer = Adam(policy.network.parameters(), config.learning_rate, fused=True)
    finished, recent = Episodes(vec.num_envs), deque[Episode](maxlen=100)
    num_steps, num_updates, next_report, told = 0, 0, STEPS_PER_REPORT, list[Tensor]()
    vec.async_reset()
    while num_steps < config.total_steps:
        batch = vec.recv()
        falling = num_steps / (config.exploration_fraction * config.total_steps)
        epsilon = config.start_epsilon + min(1.0, falling) * (config.end_epsilon - config.start_epsilon)
        choices = policy.choose(torch.from_numpy(batch.observations), epsilon, generator)
        # Sent before the updates, not after them: the environments work while we learn.
        vec.send(policy.actions(choices))
        num_steps += replay.add(batch, choices)
        recent.extend(finished.in_batch(batch.infos))

        optimizer.param_groups[0]["lr"] = config.learning_rate * max(0.0, 1 - num_steps / config.total_steps)
        while num_updates * config.steps_per_update < num_steps - config.learning_starts:
            if num_updates % config.target_period == 0:
                target.load_state_dict(policy.network.state_dict())
            told.append(update(policy, target, optimizer, replay.sample(config.minibatch_size, generator), config))
            num_updates += 1
        if num_steps >= min(next_report, config.total_steps):
            next_report = num_steps + STEPS_PER_REPORT
            scalars = {"charts/epsilon": epsilon, "charts/learning_rate": optimizer.param_groups[0]["lr"]}
            if told:
                scalars["losses/td_loss"], scalars["losses/q_values"] = torch.stack(told).mean(0).tolist()
            report.update(num_steps, {**scalars, **charts(recent)})
            told.clear()
    return num_steps


def update(policy: Greedy, target: nn.Module, optimizer: Adam, sampled: Transitions, config: Config) -> Tensor:
    """Take one step towards the targets of these transitions; return the mean (loss, Q-value), float32 (2,)."""
    mask = policy.mask(sampled.observations)
    with torch.no_grad():
        next_mask = policy.mask(sampled.next_observations)
        following = [network(sampled.next_observations, None, next_mask)[0] for network in (policy.network, target)]
        aims = targets(sampled.rewards, sampled.terminations, *following, next_mask, config.gamma)
    q_values = policy.network(sampled.observations, None, mask)[0].gather(1, sampled.choices[:, None]).squeeze(1)
    loss = nn.functional.mse_loss(q_values, aims)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(policy.network.parameters(), config.max_grad_norm)
    optimizer.step()
    return torch.stack([loss.detach(), q_values.detach().mean()])


def targets(
    rewards: Tensor, terminations: Tensor, online: Tensor, target: Tensor, mask: Tensor | None, gamma: float
) -> Tensor:
    """Return what the Q-values of the played actions should be, (rows,).

    rewards, terminations: (rows,), of these actions. online, target: (rows, num_actions), the Q-values of the next
    observations by the network that learns, which chooses, and by the older one, which says what the choice is worth:
    one network for both would take its own errors for gains. mask: bool, the actions allowed there; None allows all.
    Source: van Hasselt et al., arXiv:1509.06461, eq. 4.
    """
    best = allowed(online, mask).argmax(1, keepdim=True)
    return rewards + gamma * torch.where(terminations, 0.0, target.gather(1, best).squeeze(1))


class Transitions(NamedTuple):
    """What agents saw, did, got for it, and saw next: the true next observation, never one of a later episode."""

    observations: Tensor  # (rows, *layout.shape) of layout.dtype
    choices: Tensor  # (rows,) int64, zero-based
    rewards: Tensor  # (rows,) float32
    terminations: Tensor  # (rows,) bool; a truncation is none
    next_observations: Tensor  # as observations


class Replay:
    """The newest ``capacity`` transitions, in memory that does not grow.

    An action's outcome comes with the same agent's next row, so each agent's newest row waits for it apart.
    Raises PlanError where a batch, or the memory at hand, is too large for it.
    """

    def __init__(self, vec: pufferlib.VecEnv, capacity: int) -> None:
        if capacity < vec.agents_per_batch:
            raise PlanError(f"buffer_size={capacity} is less than the {vec.agents_per_batch} rows of a batch")
        layout, num_agents = vec.observation_layout, vec.num_envs * vec.agents_per_env
        nbytes, at_hand = capacity * (2 * layout.nbytes + 13), memory_at_hand()  # 13: choice, reward, termination
        if nbytes > at_hand:
            needs = f"needs {memory_text(nbytes)}, and {memory_text(at_hand)} are at hand"
            raise PlanError(f"buffer_size={capacity} {needs}; use {int(capacity * 0.8 * at_hand / nbytes)} or less")
        self.capacity, self.num_added = capacity, 0
        self.columns = Transitions(
            observations=torch.from_numpy(np.zeros((capacity, *layout.shape), layout.dtype)),
            choices=torch.zeros(capacity, dtype=torch.int64),
            rewards=torch.zeros(capacity),
            terminations=torch.zeros(capacity, dtype=torch.bool),
            next_observations=torch.from_numpy(np.zeros((capacity, *layout.shape), layout.dtype)),
        )
        self.seen = np.zeros((num_agents, *layout.shape), layout.dtype)
        self.done = np.zeros(num_agents, np.int64)

    def __len__(self) -> int:
        return min(self.num_added, self.capacity)

    def add(self, batch: pufferlib.Batch, choices: np.ndarray) -> int:
        """Take a batch, the outcome of what was chosen before; return how many transitions that makes.

        choices: what was chosen for its rows, zero-based int64 (rows,).
        """
        rows = batch.masks.nonzero()[0]
        agents = batch.agent_ids[rows]
        columns = (self.seen[agents], self.done[agents], batch.rewards[rows], batch.terminations[rows])
        following = batch.observations[rows]
        # Where an environment resets in the step that ends an episode, the row shows the next episode's beginning.
        for info in batch.infos:
            if "final_obs" in info:
                following[agents == info.get("agent_id", info["env_id"])] = info["final_obs"]
        places = (self.num_added + np.arange(len(rows))) % self.capacity
        for column, values in zip(self.columns, (*columns, following), strict=True):
            column.numpy()[places] = values
        self.num_added += len(rows)
        self.seen[batch.agent_ids], self.done[batch.agent_ids] = batch.observations, choices
        return len(rows)

    def sample(self, num_rows: int, generator: torch.Generator) -> Transitions:
        """Return transitions drawn uniformly, with replacement."""
        rows = torch.randint(len(self), (num_rows,), generator=generator)
        return Transitions(*(column[rows] for column in self.columns))


if __name__ == "__main__":
    import tyro

    config = tyro.cli(Config)
    print(summary(config, train(config)))
