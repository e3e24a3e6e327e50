"""The face for skrl gives what skrl's wrapper of Gymnasium's vector environments gives, and its PPO learns over it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from mock_envs import FaultyEnv, HashEnv
from tensor_batches import over_tensors

import pufferlib

pytest.importorskip("skrl")
import torch
import tqdm
from gymnasium.vector import AutoresetMode
from skrl.envs.wrappers.torch import wrap_env

from pufferlib.adapters.skrl import SkrlVecEnv, make

pytestmark = [pytest.mark.extras, pytest.mark.beside]


@pytest.mark.parametrize("backend", ["serial", "multiprocessing"])
def test_plays_as_their_wrapper(backend: str) -> None:
    env_fns = [lambda index=index: HashEnv(index) for index in range(4)]
    theirs = wrap_env(gymnasium.vector.SyncVectorEnv(env_fns, autoreset_mode=AutoresetMode.SAME_STEP))
    ours = make(HashEnv, num_envs=4, backend=backend, num_workers=2)
    assert ours.num_envs == 4 and ours.observation_space == theirs.observation_space
    expected, _ = theirs.reset()
    seeds = theirs._env.np_random_seed
    ours.seed(seeds)  # type: ignore[arg-type]  # one each
    torch.testing.assert_close(ours.reset()[0], expected)
    num_dones = 0
    for t in range(60):
        actions = torch.randint(1000, (4, 1), generator=torch.Generator().manual_seed(t))
        (*parts, infos), (*their_parts, _) = ours.step(actions), theirs.step(actions)
        for part, other in zip(parts, their_parts, strict=True):
            torch.testing.assert_close(part, other)
        dones = int((parts[2] | parts[3]).sum())
        assert ("episode" in infos) == (dones > 0)
        num_dones += dones
    assert num_dones > 20
    assert ours.reset()[0] is parts[0]
    ours.close()
    theirs.close()


@over_tensors
def test_plays_over_tensors_as_over_arrays(kwargs: dict[str, Any]) -> None:
    env, expected = (make("classic/cartpole", num_envs=3, seed=1, **more) for more in (kwargs, {}))
    torch.testing.assert_close(env.reset()[0], expected.reset()[0], rtol=0, atol=0)
    generator, num_ended, pairs = torch.Generator().manual_seed(1), 0, []
    for _ in range(120):
        actions = torch.randint(2, (3, 1), generator=generator)
        (*parts, infos), (*others, other_infos) = env.step(actions), expected.step(actions)
        for part, other in zip(parts, others, strict=True):
            torch.testing.assert_close(part, other, rtol=0, atol=0)
        assert infos == other_infos
        num_ended += "episode" in infos
        pairs.append((parts[0], others[0]))
    assert num_ended > 5
    for observations, others in pairs:  # theirs to keep
        torch.testing.assert_close(observations, others, rtol=0, atol=0)
    env.close()
    expected.close()


@pytest.mark.parametrize("kwargs", [{}, {"backend": "multiprocessing"}, {"as_torch": True}], ids=str)
def test_agents_are_rows(kwargs: dict[str, Any]) -> None:
    env = make("ocean/multiagent", num_envs=3, agents="rows", **kwargs)
    assert env.num_envs == 6 and env.num_agents == 1
    observations, _ = env.reset()
    assert observations.shape[0] == 6
    right = observations @ torch.tensor([[1.0], [-1.0]]) > 0  # the first agent is asked for its b, the second for -b
    actions = torch.where(torch.arange(6)[:, None] < 3, right, ~right).long()  # half of them
    _, rewards, terminated, truncated, infos = env.step(actions)
    assert rewards.squeeze(1).tolist() == [1, 1, 1, 0, 0, 0] and terminated.all() and not truncated.any()
    assert infos["episode"]["return"] == 0.5 and infos["episode"]["length"] == 1  # means over rows
    env.close()


def test_a_crash_is_not_bootstrapped_from() -> None:
    env = make(FaultyEnv, num_envs=2, on_error="restart")
    env.reset()
    _, _, terminated, truncated, _ = env.step(torch.tensor([[991], [0]]))
    assert terminated[0] and not truncated[0]
    env.close()
    with pufferlib.make(HashEnv) as vec, pytest.raises(pufferlib.PlanError, match="same_step"):
        SkrlVecEnv(vec)


@pytest.fixture(scope="module")
def lock_of_tqdm() -> None:
    """Make tqdm create its lock, whose semaphore stays to the end of the process."""
    tqdm.tqdm.get_lock()


@pytest.mark.slow
@pytest.mark.usefixtures("lock_of_tqdm")
@pytest.mark.long
def test_their_ppo_learns_bandit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from skrl.agents.torch.ppo import PPO
    from skrl.memories.torch import RandomMemory
    from skrl.models.torch import CategoricalMixin, DeterministicMixin, Model
    from skrl.trainers.torch import SequentialTrainer

    class Policy(CategoricalMixin, Model):
        def __init__(self, env: Any) -> None:
            Model.__init__(
                self, observation_space=env.observation_space, action_space=env.action_space, device=env.device
            )
            CategoricalMixin.__init__(self)
            self.net = torch.nn.Linear(1, 4)

        def compute(self, inputs: Any, role: str = "") -> Any:
            return self.net(inputs["observations"]), {}

    class Value(DeterministicMixin, Model):
        def __init__(self, env: Any) -> None:
            Model.__init__(
                self, observation_space=env.observation_space, action_space=env.action_space, device=env.device
            )
            DeterministicMixin.__init__(self)
            self.net = torch.nn.Linear(1, 1)

        def compute(self, inputs: Any, role: str = "") -> Any:
            return self.net(inputs["observations"]), {}

    monkeypatch.setattr(tqdm.tqdm, "monitor_interval", 0)  # a thread of tqdm's, which would stay
    torch.manual_seed(1)
    env = make("ocean/bandit", num_envs=8, seed=1)
    cfg = {
        "rollouts": 16,
        "learning_epochs": 2,
        "learning_rate": 0.1,
        "experiment": {"directory": str(tmp_path), "write_interval": 0, "checkpoint_interval": 0},
    }
    agent = PPO(
        models={"policy": Policy(env), "value": Value(env)},
        memory=RandomMemory(memory_size=16, num_envs=8, device=env.device),
        observation_space=env.observation_space,
        action_space=env.action_space,
        device=env.device,
        cfg=cfg,
    )
    trainer = SequentialTrainer(
        env=env, agents=agent, cfg={"timesteps": 320, "disable_progressbar": True, "close_environment_at_exit": False}
    )
    trainer.train()
    rewards = []
    observations, _ = env.reset()
    for _ in range(10):
        with torch.no_grad():
            actions, _ = agent.act(observations, None, timestep=0, timesteps=0)
        observations, reward, *_ = env.step(actions)
        rewards.append(reward.numpy())
    env.close()
    assert np.mean(rewards) >= 0.9
