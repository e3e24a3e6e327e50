"""What kernels do with actions that there are not: refused with row, value and space, or played as action 0."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from devices import FIBRES, LOOPS, ON_DEVICE, ON_HOST_AND_DEVICE, Player, array_of, assert_same_bits
from gymnasium import spaces

import pufferlib
from cuda_ext import sources
from cuda_ext.classic_cartpole import KERNEL
from cuda_ext.references.classic_cartpole import ClassicCartpole
from cuda_ext.schema import KernelEnv
from pufferlib.errors import ActionError, KernelError
from pufferlib.layout.action_values import ActionValues

pytestmark = pytest.mark.beside

KERNELS: list[KernelEnv] = [importlib.import_module(f"cuda_ext.{stem}").KERNEL for stem in sources.stems()]
NUMBERS = ("classic/pendulum", "ocean/continuous")  # whose actions are numbers: see the tests at the end
# The code that reads actions is the same in all; one kernel of each way to play them is enough in the short form.
PLAYED_ALIKE = (
    *("classic/acrobot", "classic/mountain_car"),
    *("ocean/bandit", "ocean/memory", "ocean/password", "ocean/stochastic"),
)
NAMES = [
    pytest.param(kernel.name, marks=[pytest.mark.long] if kernel.name in PLAYED_ALIKE else [])
    for kernel in KERNELS
    if kernel.name not in ("economy/covid", *NUMBERS)  # the former's actions are as those of tag/grid
]
OF_STEPS = [param for param in NAMES if param.values != ("ocean/bandit",)]  # whose episodes have several steps
NUM_ENVS = 5
COLUMNS = ("observations", "rewards", "terminations", "truncations", "masks")
WRONG = [-1, 99, 2**31 - 1, -(2**31), 2**32 + 1, -(2**63), 2**63 - 1]


def make(name: Any, player: Player = LOOPS, **kwargs: Any) -> Any:
    return player.make(name, **{"num_envs": NUM_ENVS, "seed": 1, **kwargs})


def good(vec: Any, num_envs: int = NUM_ENVS) -> Any:
    return np.zeros((num_envs * vec.agents_per_env, *vec.single_action_space.shape), np.int64)


def pattern(vec: Any, row: int, env_id: int) -> str:
    agent = f", agent {row % vec.agents_per_env}" if vec.agents_per_env > 1 else ""
    return rf"action \S.* of row {row} \(environment {env_id}{agent}\) is not in (Multi)?Discrete"


@pytest.mark.parametrize("value", WRONG)
@pytest.mark.parametrize(
    ("player", "kwargs"),
    [("loops", {}), ("fibres", {}), ("loops", {"num_workers": 2}), pytest.param("device", {}, marks=pytest.mark.gpu)],
    indirect=["player"],
    ids=str,
)
@pytest.mark.parametrize("name", OF_STEPS)
def test_what_comes_from_the_host_is_checked_at_every_step(
    name: str, player: Player, kwargs: dict[str, Any], value: int
) -> None:
    with make(name, player, **kwargs) as vec:
        vec.reset()
        for step in range(3):
            for dtype in (np.int64, np.int32):
                row = (7 * step + 3) % vec.agents_per_batch
                actions = good(vec).astype(dtype)
                if not np.iinfo(dtype).min <= value <= np.iinfo(dtype).max:
                    continue
                actions[row] = value
                for sent in (actions, torch.from_numpy(actions), actions.tolist(), np.repeat(actions, 2, 0)[::2]):
                    with pytest.raises(ActionError, match=pattern(vec, row, row // vec.agents_per_env)):
                        vec.send(sent)
            vec.step(good(vec))
            assert vec.get_attr("t") == [step + 1] * NUM_ENVS


@pytest.mark.parametrize("player", ON_HOST_AND_DEVICE, indirect=True)
@pytest.mark.parametrize("name", NAMES)
def test_the_last_action_is_one_and_the_next_is_none(name: str, player: Player) -> None:
    with make(name, player) as vec:
        vec.reset()
        space = vec.single_action_space
        options = np.asarray(getattr(space, "nvec", getattr(space, "n", None)))
        for row in range(vec.agents_per_batch):
            actions = good(vec)
            actions[row] = options - 1
            vec.step(actions)
            for choice in range(options.size):
                actions.reshape(vec.agents_per_batch, -1)[row, choice] += 1
                with pytest.raises(ActionError, match=pattern(vec, row, row // vec.agents_per_env)):
                    vec.send(actions)
                actions.reshape(vec.agents_per_batch, -1)[row, choice] -= 1


@pytest.mark.parametrize("player", ON_HOST_AND_DEVICE, indirect=True)
@pytest.mark.parametrize("name", NAMES)
def test_environments_are_named_by_their_ids(name: str, player: Player) -> None:
    with make(name, player) as vec, make(name, player, batch_size=2) as pooled:
        vec.reset()
        pooled.async_reset()
        ids = [int(env_id) for env_id in pooled.recv().env_ids]
        for target, env_ids in ((vec, [3, 1]), (pooled, ids), (pooled, None)):
            actions = good(target, 2)
            actions[target.agents_per_env] = 99
            with pytest.raises(ActionError, match=pattern(target, target.agents_per_env, (env_ids or ids)[1])):
                target.send(actions, env_ids)
        table = np.zeros((4, *good(vec).shape), int)
        table[2, 1] = -1
        with pytest.raises(ActionError, match="in step 2 of the table, " + pattern(vec, 1, 1 // vec.agents_per_env)):
            vec.rollout(4, table)
        assert vec.get_attr("t") == [0] * NUM_ENVS


class OnDevice:
    """Fibres, which play a GPU's code, and whose tensors are taken for those of a GPU: reading them would wait."""

    def __init__(self, name: Any, **kwargs: Any) -> None:
        self.vec = make(name, FIBRES, **kwargs)
        actions = self.vec._actions
        actions._waits, actions._on_host, actions._launches_check = True, False, False
        self.vec._launchers.step.set({"policy_nvec": 0})  # a launch on a GPU does not check

    def __enter__(self) -> Any:
        return self.vec.__enter__()

    def __exit__(self, *_: object) -> None:
        self.vec.close()


@pytest.fixture(params=["stand-in", ON_DEVICE])
def on_device(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Makes environments on a device, or what is taken for that."""
    device = "host" if request.param == "stand-in" else request.getfixturevalue("device")
    if device == "host":
        return OnDevice
    return lambda name, **kwargs: make(name, Player("device", device, {}), **kwargs)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("name", NAMES)
def test_on_a_device_the_first_step_is_checked_and_others_play_action_0(
    name: str, dtype: Any, on_device: Callable[..., Any]
) -> None:
    """So no value reaches memory that is not the environment's: those that there are not play what zeros play."""
    random = np.random.default_rng(1)
    with on_device(name) as vec, make(name) as zeros:
        vec.reset()
        zeros.reset()
        wrong = torch.from_numpy(good(vec)).to(vec.device, dtype)
        wrong[2] = 99
        with pytest.raises(ActionError, match=pattern(vec, 2, 2 // vec.agents_per_env)):
            vec.send(wrong)
        for step in range(60):
            actions = good(vec)
            there = random.random(actions.shape) < 0.5
            sent = np.where(there, actions, random.choice(WRONG, actions.shape))
            if step == 0:
                sent = actions
            tensor = torch.from_numpy(sent) if dtype == torch.int64 else _narrowed(sent)
            vec.step(tensor.to(vec.device))
            zeros.step(actions)
            for column in COLUMNS:
                assert_same_bits(getattr(vec.batch, column), getattr(zeros.batch, column), (step, column))
        with pytest.raises(ActionError, match="of row 2 "):
            vec.send(wrong.cpu().numpy())  # what is on the host is read anyway


def _narrowed(actions: Any) -> torch.Tensor:
    """int32 of the same values, but for those that it has not."""
    return torch.from_numpy(np.clip(actions, -(2**31), 2**31 - 1).astype(np.int32))


@pytest.mark.parametrize("kwargs", [{"check": "always"}, {"debug": True}], ids=str)
@pytest.mark.parametrize("name", OF_STEPS)
def test_on_a_device_every_step_is_checked_where_that_is_asked_for(
    name: str, kwargs: dict[str, Any], on_device: Callable[..., Any]
) -> None:
    with on_device(name, **kwargs) as vec:
        vec.reset()
        for step in range(3):
            actions = torch.from_numpy(good(vec)).to(vec.device)
            before = vec.stats()
            vec.step(actions)
            after = vec.stats()  # values are read, and go nowhere else
            assert after.device_to_host_nbytes - before.device_to_host_nbytes == actions.nbytes
            assert after.host_to_device_nbytes == before.host_to_device_nbytes
            actions[1] = -1
            with pytest.raises(ActionError, match=pattern(vec, 1, 1 // vec.agents_per_env)):
                vec.send(actions)
            with pytest.raises(ActionError, match="in step 1 of the table"):
                vec.rollout(2, torch.stack([actions * 0, actions]))
            assert vec.get_attr("t") == [step + 1] * NUM_ENVS


def test_on_a_device_each_environment_has_its_first_step(on_device: Callable[..., Any]) -> None:
    seen: list[int] = []
    with on_device("classic/cartpole", batch_size=1) as vec:
        vec.async_reset()
        wrong = torch.tensor([5], device=vec.device)
        while len({*seen}) < NUM_ENVS or len(seen) < NUM_ENVS + 2:
            env_id = int(vec.recv().env_ids[0])
            if env_id in seen:
                vec.send(wrong)
            else:
                with pytest.raises(ActionError, match=rf"action 5 of row 0 \(environment {env_id}\)"):
                    vec.send(wrong)
                vec.send(wrong * 0)
            seen.append(env_id)


@pytest.mark.parametrize("wrong", [torch.zeros(NUM_ENVS), torch.full((NUM_ENVS,), float("nan")), torch.zeros(1).bool()])
def test_on_a_device_shape_and_dtype_are_checked_at_every_step(
    wrong: torch.Tensor, on_device: Callable[..., Any]
) -> None:
    with on_device("classic/cartpole") as vec:
        vec.reset()
        for _ in range(3):
            with pytest.raises(ActionError, match=r"actions have (dtype torch.float32|shape \(1,\)), expected"):
                vec.send(wrong.to(vec.device))
            vec.step(torch.ones(NUM_ENVS, dtype=torch.bool, device=vec.device))


@pytest.mark.parametrize("player", ON_HOST_AND_DEVICE, indirect=True)
def test_logits_choose_actions_that_there_are(player: Player) -> None:
    for logits in (np.nan, np.inf, -np.inf, 1e38):
        with make("tag/continuous", player, check="always") as vec:
            vec.reset()
            nvec = vec.single_action_space.nvec
            for _ in range(3):
                chosen = vec.send_logits(torch.full((vec.agents_per_batch, int(nvec.sum())), logits))
                assert ((chosen.actions >= 0) & (chosen.actions < torch.from_numpy(nvec).to(vec.device))).all()
                vec.recv()


def test_actions_are_numbered_from_0() -> None:
    with pytest.raises(KernelError, match=r"takes Discrete\(2, start=1\), and kernels number actions from 0"):
        make(dataclasses.replace(KERNEL, reference="test_device_actions:Shifted"))


class Shifted(ClassicCartpole):
    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Discrete(2, start=1)


def test_options_that_a_kernel_cannot_follow_are_named() -> None:
    with make(dataclasses.replace(KERNEL, reference="test_device_actions:Tilted")) as vec:
        vec.reset(options={"colour": "red"})
        before = vec.get_attr("episode")
        with pytest.raises(pufferlib.PlanError, match=r"options=\{'theta': 0.1\} of environment 2 change theta in the"):
            vec.reset(options=[None, {}, {"theta": 0.1}, {"theta": 0.1}, None])
        with pytest.raises(pufferlib.PlanError, match="change max_episode_steps in the reference"):
            vec.reset(options={"most": 3})
        with pytest.raises(pufferlib.WorkerError, match=r"environment 3 \(worker 0\) raised in reset: KeyError: 'x'"):
            vec.async_reset(options=[{"x": 1}], env_ids=[3])
        assert vec.get_attr("episode") == before


class Tilted(ClassicCartpole):
    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        observation = super().reset(seed=seed)
        if options and "x" in options:
            raise KeyError("x")
        self.theta = np.float32((options or {}).get("theta", self.theta))
        self.max_episode_steps = (options or {}).get("most", self.max_episode_steps)
        return observation


@pytest.mark.parametrize(
    ("space", "value", "refused"),
    [
        (spaces.Discrete(3, start=-1), -1, [-2, 2]),
        (spaces.MultiDiscrete([2, 3]), [1, 2], [[2, 0], [0, 3], [-1, 0]]),
        (spaces.MultiBinary(2), [1, 0], [[2, 0], [0, -1]]),
        (spaces.Box(-1, 1, (2,), np.float32), [50.0, -9.0], [[np.nan, 0.0], [0.0, np.inf], [-np.inf, 0.0]]),
    ],
    ids=str,
)
def test_values_are_refused_by_their_space(space: Any, value: Any, refused: list[Any]) -> None:
    part = np.array([[[value, value]] for _ in range(3)])[:, 0]
    ActionValues(space).refuse(part, [4, 5, 6])
    for wrong in refused:
        changed = part.copy()
        changed[1, 1] = wrong
        with pytest.raises(ActionError) as caught:
            ActionValues(space).refuse(changed, [4, 5, 6])
        assert str(caught.value).startswith(f"action {wrong!r} of row 3 (environment 5, agent 1) is not in {space}")


# ------------------------------------------------------------------------------------------------------------- numbers


@pytest.mark.parametrize("player", ON_HOST_AND_DEVICE, indirect=True)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e39])
def test_numbers_from_the_host_have_to_be_finite(player: Player, value: float) -> None:
    wrong = good_numbers().astype(np.float64 if np.isfinite(value) else np.float32)
    wrong[3] = value
    pattern = r"action \[.*\] of row 3 \(environment 3\) is not in Box.*: element 0 is .*; use finite"
    with make("classic/pendulum", player) as vec:
        vec.reset()
        for sent in (wrong, torch.from_numpy(wrong), wrong.tolist(), np.repeat(wrong, 2, 0)[::2]):
            with pytest.raises(ActionError, match=pattern):
                vec.send(sent)
        with pytest.raises(ActionError, match="in step 1 of the table, " + pattern):
            vec.rollout(2, np.stack([good_numbers(), wrong]))
        vec.step(good_numbers())
        assert vec.get_attr("t") == [1] * NUM_ENVS


def good_numbers() -> np.ndarray[Any, Any]:
    return np.linspace(-2, 2, NUM_ENVS, dtype=np.float32)[:, None]


@pytest.mark.parametrize("player", ON_HOST_AND_DEVICE, indirect=True)
def test_numbers_of_any_dtype_are_played_as_float32(player: Player) -> None:
    sent = [
        good_numbers().astype(np.float64), good_numbers().tolist(), np.repeat(good_numbers(), 2, 0)[::2],
        good_numbers().astype(">f4"), *(torch.from_numpy(good_numbers()).to(dtype) for dtype in (None, torch.float64)),
    ]  # fmt: skip
    with make("classic/pendulum", player) as vec, make("classic/pendulum", player) as other:
        vec.reset()
        other.reset()
        for actions in sent:
            vec.step(actions)
            other.step(good_numbers())
            assert_same_bits(vec.batch.observations, other.batch.observations)
        integers = np.array([[-1], [0], [1], [2], [-2]])
        for actions in (integers, torch.from_numpy(integers), integers.astype(np.int8)):
            vec.step(actions)
            other.step(integers.astype(np.float32))
            assert_same_bits(vec.batch.observations, other.batch.observations)
        with pytest.raises(ActionError, match=r"actions have dtype complex64, expected float32"):
            vec.send(integers.astype(np.complex64))
        with pytest.raises(ActionError, match=r"actions have shape \(5,\), expected \(5, 1\)"):
            vec.send(good_numbers()[:, 0])


def test_on_a_device_numbers_are_checked_at_the_first_step_and_nan_is_played_as_the_bound(
    on_device: Callable[..., Any],
) -> None:
    with on_device("classic/pendulum") as vec, make("classic/pendulum") as other:
        vec.reset()
        other.reset()
        wrong = torch.full((NUM_ENVS, 1), float("nan"), device=vec.device)
        with pytest.raises(ActionError, match="of row 0 "):
            vec.send(wrong)
        vec.step(torch.zeros_like(wrong))
        other.step(np.zeros((NUM_ENVS, 1), np.float32))
        vec.step(wrong)
        other.step(np.full((NUM_ENVS, 1), -2, np.float32))
        assert_same_bits(vec.batch.observations, other.batch.observations)


def test_numbers_in_chunks_are_those_of_their_environments() -> None:
    """With batch_size below num_envs, actions are copied to where a launch reads them."""
    with make("classic/pendulum", batch_size=2) as pooled, make("classic/pendulum") as vec:
        vec.reset()
        vec.step(good_numbers())
        expected = array_of(vec.batch.observations)
        pooled.async_reset()
        seen: set[int] = set()
        while len(seen) < NUM_ENVS:
            batch = pooled.recv()
            ids = array_of(batch.env_ids)
            times = pooled.get_attr("t", ids.tolist())
            for env_id, t, row in zip(ids.tolist(), times, batch.observations, strict=True):
                if t == 1:
                    assert_same_bits(row, expected[env_id])
                    seen.add(env_id)
            pooled.send(good_numbers()[ids])


def test_numbers_are_not_chosen_from_logits() -> None:
    with make("classic/pendulum") as vec:
        vec.reset()
        for choose in (vec.send_logits, vec.sample):
            with pytest.raises(KernelError, match=r"logits choose among options, and these environments take Box"):
                choose(torch.zeros(NUM_ENVS, 1))
        with pytest.raises(KernelError, match="a torch.nn.Sequential chooses among options"):
            vec.rollout(2, policy=torch.nn.Sequential(torch.nn.Linear(3, 1)))
        vec.step(good_numbers())


@pytest.mark.parametrize("space", [spaces.Box(-1, np.inf, (1,)), spaces.Box(-1, 1, (1,), np.float64)], ids=str)
def test_boxes_have_finite_bounds_and_float32(space: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Boxed, "space", space)
    with pytest.raises(KernelError, match=r"takes Box.*, and kernels take float32 Boxes with finite bounds"):
        make(dataclasses.replace(KERNEL, reference="test_device_actions:Boxed"))


class Boxed(ClassicCartpole):
    space: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.action_space = self.space
