"""The face for Tianshou does what its own vector environments do, and its REINFORCE learns over it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mock_envs import FaultyEnv, HashEnv, NestedHashEnv
from tensor_batches import over_tensors

import pufferlib

pytest.importorskip("tianshou")
import tianshou.env

from pufferlib.adapters.tianshou import DummyVectorEnv, SubprocVectorEnv, make

pytestmark = [pytest.mark.extras, pytest.mark.beside]

NUM = 5
KINDS: list[Callable[..., Any]] = [DummyVectorEnv, functools.partial(SubprocVectorEnv, num_workers=2)]


@pytest.mark.parametrize("kind", KINDS, ids=["dummy", "subproc"])
def test_plays_as_their_own(kind: Callable[..., Any]) -> None:
    env_fns = [functools.partial(HashEnv, index) for index in range(NUM)]
    theirs, ours = tianshou.env.DummyVectorEnv(env_fns), kind(env_fns)
    try:
        assert len(ours) == len(theirs) and ours.action_space == theirs.action_space
        assert ours.observation_space == theirs.observation_space
        rng = np.random.default_rng(1)
        for env_id in range(NUM):  # theirs seeds all alike, if it is given one seed
            theirs.reset(env_id, seed=7 + env_id)
        ours.reset(seed=7)
        num_dones = 0
        for _ in range(60):
            ids = np.sort(rng.permutation(NUM)[: rng.integers(1, NUM + 1)])
            actions = rng.integers(1000, size=len(ids))
            (*arrays, infos), (*expected, their_infos) = ours.step(actions, ids), theirs.step(actions, ids)
            for array, other in zip(arrays, expected, strict=True):
                np.testing.assert_array_equal(array, other)
            dones = np.logical_or(arrays[2], arrays[3])
            for info, other, done in zip(infos, their_infos, dones, strict=True):
                assert ("episode" in info) == done
                assert {key: info[key] for key in other} == other
            if dones.any():
                num_dones += dones.sum()
                observations, infos = ours.reset(ids[dones])
                expected_observations, expected_infos = theirs.reset(ids[dones])
                np.testing.assert_array_equal(observations, expected_observations)
                assert [info.get("first") for info in infos] == [info.get("first") for info in expected_infos]
        assert num_dones > 10
    finally:
        ours.close()


@over_tensors
def test_plays_over_tensors_as_over_arrays(kwargs: dict[str, Any]) -> None:
    if kwargs.get("backend") == "multiprocessing":
        kwargs = {**kwargs, "backend": "pool"}
    envs, expected = (make("classic/cartpole", num_envs=3, **{"backend": "serial", **more}) for more in (kwargs, {}))
    for venv in (envs, expected):
        venv.seed(1)
    np.testing.assert_array_equal(envs.reset()[0], expected.reset()[0])
    rng, num_dones = np.random.default_rng(1), 0
    for _ in range(80):
        ids = np.sort(rng.permutation(3)[: rng.integers(1, 4)])
        actions = rng.integers(2, size=len(ids))
        (*parts, _), (*others, _) = envs.step(actions, ids), expected.step(actions, ids)
        for part, other in zip(parts, others, strict=True):
            assert type(part) is np.ndarray
            np.testing.assert_array_equal(part, other)
        over = ids[parts[2] | parts[3]]
        num_dones += len(over)
        if len(over):
            np.testing.assert_array_equal(envs.reset(over)[0], expected.reset(over)[0])
    assert num_dones > 3
    envs.close()
    expected.close()


def test_waits_for_the_first_to_finish_and_keeps_the_others() -> None:
    delays = [{"max_delay_s": 0.0}] * 3 + [{"max_delay_s": 4.0}]  # of the last; two are far sooner than that
    with_wait = make(HashEnv, wait_num=2, num_envs=4, num_workers=4, seed=2, env_kwargs=delays)
    try:
        with_wait.reset()
        *_, infos = with_wait.step(np.zeros(4, np.int64))
        first = [info["env_id"] for info in infos]
        assert len(first) == 2 and sorted(first + with_wait.waiting_id) == [0, 1, 2, 3]
        with pytest.raises(pufferlib.CallError, match="are stepping"):
            with_wait.reset(with_wait.waiting_id)
        *_, infos = with_wait.step(None)
        assert sorted([*first, *(info["env_id"] for info in infos)]) == [0, 1, 2, 3] and not with_wait.waiting_id
    finally:
        with_wait.close()


def test_timeout_returns_with_one_at_least() -> None:
    envs = make(HashEnv, timeout=1e-6, num_envs=3, num_workers=1)
    try:
        envs.reset()
        ids: list[int] = []
        *_, infos = envs.step(np.zeros(3, np.int64))
        while True:
            assert len(infos) >= 1
            ids += [info["env_id"] for info in infos]
            if not envs.waiting_id:
                break
            *_, infos = envs.step(None)
        assert sorted(ids) == [0, 1, 2]
    finally:
        envs.close()


def test_a_crash_is_not_bootstrapped_from() -> None:
    envs = make(FaultyEnv, num_envs=2, on_error="restart", backend="serial")
    envs.reset()
    _, _, terminations, truncations, infos = envs.step(np.array([991, 0]))
    assert terminations[0] and not truncations[0] and "restarted" in infos[0]
    envs.close()


def test_whole_numbers_may_come_as_floats() -> None:  # as their RandomActionPolicy has them
    envs, same = DummyVectorEnv([HashEnv] * 2), DummyVectorEnv([HashEnv] * 2)
    for venv in (envs, same):
        venv.reset(seed=3)
    np.testing.assert_array_equal(envs.step(np.array([4.0, 7.0]))[0], same.step(np.array([4, 7]))[0])
    with pytest.raises(pufferlib.ActionError, match="convert them"):
        envs.step(np.array([0.5, 1.0]))
    envs.close()
    same.close()


def test_what_cannot_be_done_is_an_error() -> None:
    envs = DummyVectorEnv([FaultyEnv])
    assert envs.get_env_attr("mean_length") == envs.get_env_attr("mean_length", -1) == [6]
    with pytest.raises(AttributeError):
        envs.get_env_attr("nothing")
    with pytest.raises(AttributeError):
        envs.set_env_attr("unwrapped", 1)
    envs.reset()
    with pytest.raises(pufferlib.WorkerError, match="caught fire"):
        envs.step([991])
    envs.reset()
    envs.close()
    with pytest.raises(pufferlib.SpaceError, match="discrete and continuous"):
        make(NestedHashEnv)


@pytest.mark.slow
@pytest.mark.parametrize("wait_num", [None, 4], ids=["all", "the first 4"])
def test_their_reinforce_learns_bandit(wait_num: int | None) -> None:
    import torch
    from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy, Reinforce
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import AsyncCollector, Batch, Collector, VectorReplayBuffer
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.discrete import DiscreteActor
    from tianshou.utils.torch_utils import policy_within_training_step, torch_train_mode

    class Policy(DiscreteActorPolicy):
        """Has a memory and an entry in the buffer: without, AsyncCollector of 2.0.1 raises, over theirs as well."""

        def forward(self, batch: Any, state: Any = None, **kwargs: Any) -> Any:
            result = super().forward(batch, None, **kwargs)
            result.state = np.zeros((len(result.act), 1))
            result.policy = Batch(number=np.arange(len(result.act)))
            return result

    torch.manual_seed(1)
    envs = make("ocean/bandit", wait_num=wait_num, num_envs=8, seed=1, backend="serial")  # so that runs are alike
    actor = DiscreteActor(
        preprocess_net=Net(state_shape=(1,), hidden_sizes=[16]), action_shape=(4,), softmax_output=False
    )
    policy = Policy(actor=actor, action_space=envs.action_space[0])
    algorithm = Reinforce(policy=policy, gamma=0.9, optim=AdamOptimizerFactory(lr=1e-1))
    collector = (Collector if wait_num is None else AsyncCollector)(algorithm, envs, VectorReplayBuffer(512, 8))
    collector.reset()
    for _ in range(10):
        with policy_within_training_step(policy):
            returns = collector.collect(n_step=64).returns
            with torch_train_mode(policy):
                algorithm.update(buffer=collector.buffer, batch_size=None, repeat=1)
        collector.reset_buffer(keep_statistics=True)
    envs.close()
    assert np.mean(returns) >= 0.9
