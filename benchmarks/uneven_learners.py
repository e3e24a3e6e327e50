"""Train PPO of this project, Tianshou or TorchRL on ``ocean/uneven``, each over its own environments and collectors.

    python -m benchmarks.uneven_learners tianshou async 1 15000 2      prints the result as JSON

The arguments are the library, the collector (``async``: batches of the environments that finish first; ``sync``: steps
of all environments; ``weights``, ours only: ``async`` with weights), the seed, the number of rows, and the milliseconds
of a fast step. ``benchmarks.fairness`` runs this in the library's Python. The learners of all have the settings that
our trainer has for this environment, where the libraries have them. The score is the probability of the arm that is
best over all environments.
"""

from __future__ import annotations

import contextlib
import functools
import json
import multiprocessing
import sys
from collections.abc import Callable, Generator, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
import torch

import pufferlib
from ocean.uneven import ALL, Uneven

ENV = "ocean/uneven"
NUM_ENVS, BATCH_SIZE, ROUND = 16, 4, 256  # ROUND: rows between two updates
NUM_EPOCHS, NUM_MINIBATCHES, LEARNING_RATE = 4, 4, 3e-3
SETTINGS = {"gamma": 0.0, "clip": 0.2, "entropy": 0.01, "max_grad_norm": 0.5}

# Of each round: the rows of each environment, (NUM_ENVS,), and the probabilities of the arms, (3,).
Rounds = Generator[tuple[np.ndarray[Any, Any], torch.Tensor], None, None]


def make_env(env_index: int, step_s: float) -> Any:
    """Return one environment as Gymnasium's."""
    return pufferlib.wrap(Uneven(env_index=env_index, step_s=step_s))


def layers(num_outputs: int) -> torch.nn.Sequential:
    """Return a network over the observation, which is a single 1."""
    return torch.nn.Sequential(torch.nn.Linear(1, 64), torch.nn.Tanh(), torch.nn.Linear(64, num_outputs))


def ours(kind: str, seed: int, num_rows: int, step_s: float) -> dict[str, Any]:
    """Train our PPO; return the score, without shares, which its run does not report."""
    from cleanrl_demo import ppo
    from pufferlib.training.settings import family_settings

    settings = {**family_settings(ENV, ppo.Config)[1], "env": ENV, "env_kwargs": {"step_s": step_s}, "seed": seed}
    settings |= {"total_steps": num_rows, "eval_episodes": 1, "runs": None}
    settings |= {"fair": "weights" if kind == "weights" else None}
    if kind == "sync":
        settings |= {"backend": "multiprocessing", "batch_size": settings["num_envs"]}
    result = ppo.train(ppo.Config(**settings))
    with torch.no_grad():
        distribution, *_ = result.actor(torch.ones(1, 1))
    log_prob = distribution.log_prob(torch.tensor([[ALL]]), torch.zeros(1, 0))
    return {"score": float(log_prob.exp())}


def tianshou(is_async: bool, makers: Sequence[Callable[[], Any]]) -> Rounds:
    """Train over an ``AsyncCollector`` or a ``Collector``; yield after each round."""
    from tianshou.algorithm import PPO
    from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import AsyncCollector, Batch, Collector, VectorReplayBuffer
    from tianshou.env import SubprocVectorEnv
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic
    from tianshou.utils.torch_utils import policy_within_training_step, torch_train_mode

    class Policy(DiscreteActorPolicy):  # type: ignore[misc]
        """Has a memory and an entry in the buffer: without, AsyncCollector of 2.0.1 raises."""

        def forward(self, batch: Any, state: Any = None, **kwargs: Any) -> Any:
            result = super().forward(batch, None, **kwargs)
            result.state = np.zeros((len(result.act), 1))
            result.policy = Batch(number=np.arange(len(result.act)))
            return result

    envs = SubprocVectorEnv(makers, **({"wait_num": BATCH_SIZE} if is_async else {}))

    def net() -> Net:
        return Net(state_shape=(1,), hidden_sizes=[64], activation=torch.nn.Tanh)

    actor = DiscreteActor(preprocess_net=net(), action_shape=(3,), softmax_output=False)
    policy = Policy(actor=actor, action_space=envs.action_space[0])
    algorithm = PPO(
        policy=policy,
        critic=DiscreteCritic(preprocess_net=net()),
        optim=AdamOptimizerFactory(lr=LEARNING_RATE),
        gamma=SETTINGS["gamma"],
        eps_clip=SETTINGS["clip"],
        ent_coef=SETTINGS["entropy"],
        max_grad_norm=SETTINGS["max_grad_norm"],
    )
    # Each environment's part of the buffer holds a whole round, however fast it is.
    buffer = VectorReplayBuffer(2 * ROUND * NUM_ENVS, NUM_ENVS)
    collector = (AsyncCollector if is_async else Collector)(algorithm, envs, buffer)
    collector.reset()
    while True:
        with policy_within_training_step(policy):
            collector.collect(n_step=ROUND)
            num_rows = np.array([len(part) for part in buffer.buffers])
            with torch_train_mode(policy):
                algorithm.update(buffer=buffer, batch_size=ROUND // NUM_MINIBATCHES, repeat=NUM_EPOCHS)
        collector.reset_buffer(keep_statistics=True)
        with torch.no_grad():
            yield num_rows, actor(np.ones((1, 1), np.float32))[0].softmax(-1)[0]


def torchrl(is_async: bool, makers: Sequence[Callable[[], Any]]) -> Rounds:
    """Train over an ``AsyncBatchedCollector``, or a ``Collector`` of a ``ParallelEnv``; yield after each round."""
    from tensordict.nn import TensorDictModule
    from torchrl.collectors import AsyncBatchedCollector, Collector
    from torchrl.envs import GymWrapper, ParallelEnv
    from torchrl.modules import ProbabilisticActor, ValueOperator
    from torchrl.objectives import ClipPPOLoss

    multiprocessing.set_start_method("fork", force=True)  # importing TorchRL sets "spawn"
    wrapped = [functools.partial(_gym_wrapper, GymWrapper, maker) for maker in makers]
    net = layers(3)
    actor = ProbabilisticActor(
        TensorDictModule(net, in_keys=["observation"], out_keys=["logits"]),
        in_keys=["logits"],
        distribution_class=torch.distributions.Categorical,
        return_log_prob=True,
    )
    critic = ValueOperator(layers(1), in_keys=["observation"])
    loss = ClipPPOLoss(actor, critic, clip_epsilon=SETTINGS["clip"], entropy_coeff=SETTINGS["entropy"])
    optimizer = torch.optim.Adam(loss.parameters(), LEARNING_RATE)
    collector: Any
    if is_async:
        collector = AsyncBatchedCollector(
            wrapped, policy=actor, frames_per_batch=ROUND, env_backend="multiprocessing", transport="driver"
        )
    else:
        envs = ParallelEnv(NUM_ENVS, wrapped, mp_start_method="fork")
        collector = Collector(envs, actor, frames_per_batch=ROUND, total_frames=-1)
    try:
        for data in collector:
            num_rows = np.full(NUM_ENVS, ROUND // NUM_ENVS)
            if is_async:
                num_rows = np.bincount([int(index) for index in data["env_index"]], minlength=NUM_ENVS)
            with torch.no_grad():
                _update(data.reshape(-1), critic, loss, optimizer)
                yield num_rows, net(torch.ones(1, 1)).softmax(-1)[0]
    finally:
        collector.shutdown()


def _update(data: Any, critic: Any, loss: Any, optimizer: torch.optim.Optimizer) -> None:
    """Train on a round's rows, (rows,), as our trainer does; with a gamma of 0, their order does not matter."""
    from tensordict import TensorDict

    columns = {name: data[name] for name in ("observation", "action", "action_log_prob")}
    rewards = data["next", "reward"]
    advantages = rewards - critic.module(columns["observation"])
    advantages = (advantages - advantages.mean()) / advantages.std().clamp(min=0.1)
    rows = TensorDict({**columns, "value_target": rewards, "advantage": advantages}, [len(rewards)])
    for _ in range(NUM_EPOCHS):
        for part in rows[torch.randperm(len(rows))].split(ROUND // NUM_MINIBATCHES):
            with torch.enable_grad():
                losses = loss(part)
                optimizer.zero_grad()
                sum(value for key, value in losses.items() if key.startswith("loss_")).backward()
            torch.nn.utils.clip_grad_norm_(loss.parameters(), SETTINGS["max_grad_norm"])
            optimizer.step()


def _gym_wrapper(wrapper: Any, maker: Callable[[], Any]) -> Any:
    return wrapper(maker(), categorical_action_encoding=True)


LEARNERS = {"tianshou": tianshou, "torchrl": torchrl}


def theirs(library: str, kind: str, num_rows: int, step_s: float) -> dict[str, Any]:
    """Train another library's PPO; return the score, and each environment's share of the rows."""
    makers = [functools.partial(make_env, env_index, step_s) for env_index in range(NUM_ENVS)]
    total = np.zeros(NUM_ENVS)
    try:
        with contextlib.closing(LEARNERS[library](kind == "async", makers)) as rounds:
            while total.sum() < num_rows:
                counts, probabilities = next(rounds)
                total += counts
    finally:
        for child in multiprocessing.active_children():
            child.terminate()
    return {"score": float(probabilities[ALL]), "shares": (total / total.sum()).round(4).tolist()}


def main() -> None:
    library, kind, *numbers = sys.argv[1:]
    seed, num_rows, step_s = int(numbers[0]), int(numbers[1]), float(numbers[2]) / 1000
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    np.random.seed(seed)
    if library == "ours":
        result = ours(kind, seed, num_rows, step_s)
    else:
        result = theirs(library, kind, num_rows, step_s)
        result["versions"] = {name: version(name) for name in (library, "torch")}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
