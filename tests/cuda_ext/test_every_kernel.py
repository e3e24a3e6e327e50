"""Every kernel of cuda_ext plays what its reference plays, with every player; a new file is found here."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
from devices import PLAYER_KINDS, Player, array_of, assert_same_bits
from gymnasium import spaces
from matrix import covering

import pufferlib
from cuda_ext import sources
from cuda_ext.machine_code import Instructions
from cuda_ext.occupancy import MULTIPROCESSORS
from cuda_ext.references.sampling import POLICY
from cuda_ext.schema import KernelEnv
from pufferlib.testing import check_kernel
from pufferlib.testing.kernel_usage import kernel_usage
from pufferlib.util.philox import below, philox_array, uniform
from pufferlib.vectorization.device.kernel_lookup import kernel_of, reference_of

pytestmark = pytest.mark.beside

KERNELS: list[KernelEnv] = [importlib.import_module(f"cuda_ext.{stem}").KERNEL for stem in sources.stems()]
NAMES = [kernel.name for kernel in KERNELS]
# In the short form fibres play these alone: of most others one thread plays an environment, where fibres show no more
# than loops do, and each has to be compiled.
TOGETHER = ("tag/grid",)
CONFIGURATIONS: dict[str, list[dict[str, Any]]] = {
    "classic/acrobot": [{"max_episode_steps": 12}],
    "classic/cartpole": [{"max_episode_steps": 12}],
    "classic/mountain_car": [{"max_episode_steps": 12}],
    "classic/pendulum": [{"max_episode_steps": 12}],
    "ocean/bandit": [{"num_actions": 9, "reward_scale": 0.3, "reward_noise": 1.5, "arm_seed": 3}],
    "ocean/continuous": [{"discrete": True}],
    "ocean/memory": [{"length": 1, "delay": 0}, {"length": 9, "delay": 3}],
    "ocean/password": [{"length": 1, "password_seed": 2}],
    "economy/covid": [
        {"episode_length": 35, "action_cooldown": 3, "subsidy_interval": 7, "first_vaccines": 9, "enforce_masks": False,
         "clip_transmission": True, "vaccines_per_million": 9e4},
    ],
    "ocean/squared": [{"distance": 1}, {"distance": 2, "num_targets": 5}, {"num_targets": 24}],
    "ocean/stochastic": [{"p": 0.3, "horizon": 7}],
    "tag/continuous": [
        {"num_taggers": 3, "num_runners": 5, "grid_length": 4, "tagging_distance": 0.1, "full_observation": False,
         "num_nearest": 3, "edge_hit_penalty": -0.3, "step_penalty_for_tagger": -0.01, "step_reward_for_runner": 0.07},
        {"num_taggers": 2, "num_runners": 2, "grid_length": 2, "tagging_distance": 0.2, "episode_length": 17,
         "start": "pool", "runner_exits_game_after_tagged": False, "max_turn": 6.2, "num_turn_levels": 3},
        {"num_taggers": 3, "num_runners": 37, "grid_length": 9, "tagging_distance": 0.1, "full_observation": False,
         "num_nearest": 32, "start": "fixed", "skill_level_tagger": 1.7, "max_acceleration": 0.3, "episode_length": 60},
    ],
    "tag/grid": [{"num_taggers": 3, "num_runners": 3, "grid_length": 4, "episode_length": 20}],
}  # fmt: skip
CASES = [(name, kwargs) for name in NAMES for kwargs in [{}, *CONFIGURATIONS.get(name, [])]]


COMPARED = {"loops": (5, 150), "fibres": (7, 40), "device": (9, 150)}  # how many environments and steps
DEAR = ("economy/covid",)  # whose references take a millisecond a step
COLUMNS = ("observations", "rewards", "terminations", "truncations", "masks")
# By default, in so few steps; their own tests finish episodes.
UNFINISHED = ("classic/acrobot", "classic/mountain_car", "classic/pendulum", "economy/covid")


def played(cases: list[tuple[Any, ...]], *names: str) -> pytest.MarkDecorator:
    """Parametrize a test by cases, which begin with a kernel's name, and by players; long where these show nothing."""
    params = []
    for case in cases:
        for kind in PLAYER_KINDS:
            marks = list(getattr(kind, "marks", ()))
            if kind == "fibres" and case[0] not in TOGETHER:
                marks.append(pytest.mark.long)
            value = kind if isinstance(kind, str) else kind.values[0]
            params.append(pytest.param(*case, value, marks=marks, id="-".join(map(str, (*case, value)))))
    return pytest.mark.parametrize((*names, "player"), params, indirect=["player"])


@played(CASES, "name", "kwargs")
def test_a_kernel_equals_its_reference(name: str, kwargs: dict[str, Any], player: Player) -> None:
    num_envs, num_steps = (3, 40) if name in DEAR else COMPARED[player.name]
    compared: dict[str, Any] = dict(env_kwargs=kwargs, num_envs=num_envs, num_steps=num_steps)
    report = check_kernel(name, device=player.device, backend_kwargs=player.backend_kwargs, **compared)
    assert report.passed, str(report)
    assert report.num_episodes > 0 or player.name == "fibres" or (name in UNFINISHED and not kwargs)


@played([(name,) for name in NAMES], "name")
def test_a_rollout_is_the_same_as_its_steps(name: str, player: Player) -> None:
    arguments: dict[str, Any] = dict(num_envs=5, seed=1)
    with player.make(name, **arguments) as rolled, player.make(name, **arguments) as single:
        rolled.reset()
        single.reset()
        space = single.action_space
        space.seed(1)
        table = np.stack([space.sample() for _ in range(60)])
        rollout = rolled.rollout(60, table)
        for step, actions in enumerate(table):
            single.step(actions)
            for column in COLUMNS:
                assert_same_bits(getattr(rollout, column)[step], getattr(single.batch, column), (step, column))
        last = np.asarray(table[0])
        rolled.step(last)
        single.step(last)
        assert_same_bits(rolled.batch.observations, single.batch.observations)


@played([(name,) for name in NAMES], "name")
def test_a_random_rollout_repeats_with_its_seed(name: str, player: Player) -> None:
    rows = []
    for keep in (True, False):
        with player.make(name, num_envs=5, seed=1) as vec:
            vec.reset()
            rows.append(array_of(vec.rollout(60, keep=keep).observations))
    assert_same_bits(rows[0][-1], rows[1])
    if name not in ("ocean/bandit", "ocean/memory", "ocean/stochastic"):  # which mostly show the same
        assert len({step.tobytes() for step in rows[0]}) > 30  # it does not stand still


@played([(name,) for name in NAMES], "name")
def test_random_actions_are_drawn_by_seed_episode_step_and_agent(name: str, player: Player) -> None:
    """A component of an action is of the word of its number, of one draw."""
    arguments: dict[str, Any] = dict(num_envs=4, seed=1)
    num_steps = 120 if player.name != "fibres" and name not in DEAR else 20
    with (
        player.make(name, **arguments) as vec,
        pufferlib.make(reference_of(kernel_of(name)), backend="serial", **arguments) as reference,
    ):
        vec.reset()
        reference.reset()
        rollout = vec.rollout(num_steps)
        space = reference.single_action_space
        agents = np.arange(reference.agents_per_env)
        for step in range(num_steps):
            seed, episode, t = (
                np.array(reference.get_attr(field))[:, np.newaxis] for field in ("seed", "episode", "t")
            )
            words = philox_array(seed, episode, t + 1, agents, POLICY).reshape(4, -1).T
            reference.step(drawn(space, words))
            for column in COLUMNS:
                expected = getattr(reference.batch, column)
                assert_same_bits(getattr(rollout, column)[step], expected, f"{column} of step {step}")


def drawn(space: Any, words: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The actions that a kernel draws by such words, (rows, 4)."""
    if isinstance(space, spaces.Box):
        numbers = space.low + uniform(words[:, : space.low.size]).reshape(-1, *space.shape) * (space.high - space.low)
        return numbers.astype(np.float32)
    most = np.array(getattr(space, "nvec", getattr(space, "n", None)))
    return below(words[:, : most.size], most).reshape(-1, *most.shape)


DEVICE_CASES: list[tuple[str, dict[str, Any]]] = [
    ("classic/cartpole", {}),
    ("ocean/squared", {}),
    ("tag/grid", {"num_taggers": 4}),
    ("tag/grid", {"num_taggers": 90, "num_runners": 15, "full_observation": False, "num_nearest": 10}),
    ("tag/continuous", {"num_runners": 4}),
    ("tag/continuous", {"num_runners": 4, "full_observation": False, "num_nearest": 4}),
    ("tag/continuous", {"num_taggers": 5, "num_runners": 100, "full_observation": False, "num_nearest": 10}),
    ("tag/continuous", {"num_taggers": 20, "num_runners": 800, "full_observation": False, "num_nearest": 10}),
    ("tag/continuous", {"num_taggers": 50, "num_runners": 1050, "full_observation": False, "num_nearest": 10}),
    ("classic/mountain_car", {}),
    ("classic/acrobot", {}),
    ("ocean/bandit", {"reward_noise": 1.0}),
    ("ocean/password", {}),
    ("ocean/stochastic", {}),
    ("economy/covid", {}),
    ("classic/pendulum", {}),
    ("ocean/continuous", {}),
    ("ocean/memory", {}),
]


SOON_OVER: dict[str, dict[str, Any]] = {
    "classic/cartpole": {"max_episode_steps": 4},
    "classic/mountain_car": {"max_episode_steps": 4},
    "classic/acrobot": {"max_episode_steps": 4},
    "classic/pendulum": {"max_episode_steps": 4},
    "ocean/bandit": {},
    "ocean/continuous": {},
    "ocean/memory": {},
    "ocean/password": {},
    "economy/covid": {"episode_length": 4},
    "ocean/squared": {},
    "ocean/stochastic": {"horizon": 4},
    "tag/grid": {"grid_length": 9, "episode_length": 4},
    "tag/continuous": {"grid_length": 9, "episode_length": 4, "tagging_distance": 0.05},
}


def test_each_kernel_is_compiled_for_devices() -> None:
    assert {name for name, _ in DEVICE_CASES} == set(NAMES)


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "kwargs"), DEVICE_CASES, ids=str)
def test_on_a_gpu_any_number_of_agents_equals_the_reference(name: str, kwargs: dict[str, Any], device: str) -> None:
    num_envs, num_steps = (2, 12) if kwargs.get("num_runners", 1) < 400 else (1, 6)  # NumPy takes long for so many
    compared: dict[str, Any] = dict(env_kwargs={**kwargs, **SOON_OVER[name]}, num_envs=num_envs, num_steps=num_steps)
    report = check_kernel(name, device=device, **compared)
    assert report.passed, str(report)
    assert report.num_episodes > 0


# The most registers of a thread and bytes of shared memory of a block, in the order of DEVICE_CASES.
MOST = [
    (64, 2048), (72, 4608), (72, 12544), (64, 12264), (80, 17824), (80, 17824), (80, 39068), (112, 44420), (96, 43132),
    (64, 1024), (72, 3072), (64, 512), (80, 2560), (64, 512), (96, 404), (56, 1536), (56, 3072), (80, 512),
]  # fmt: skip
# One with a thread an environment and an agent, and one with more agents than a block has threads.
BOUNDED = [
    pytest.param((*case, *most), marks=[] if number in (0, 3, 4, 8) else [pytest.mark.long])
    for number, (case, most) in enumerate(zip(DEVICE_CASES, MOST, strict=True))
]


@covering({"case": BOUNDED, "architecture": [*MULTIPROCESSORS], "launch": ["step", "rollout"]})
def test_registers_and_shared_memory_suffice(
    case: tuple[str, dict[str, Any], int, int], architecture: str, launch: str
) -> None:
    name, kwargs, most_registers, most_shared = case
    cubin = kernel_usage(name, launch, architecture, kwargs).cubin
    assert cubin.code[:4] == b"\x7fELF"
    assert cubin.spilled_nbytes == cubin.stack_nbytes == 0
    assert cubin.num_registers <= most_registers
    assert cubin.shared_nbytes <= most_shared


# Loads from the device's memory that a step of a rollout may contain: of a layout to start from, of an agent's action,
# of what is added up at the end of an episode, and of no state.
LOADS = {"classic/cartpole": 10, "ocean/stochastic": 12, "tag/grid": 10}


@pytest.mark.parametrize("name", ["tag/grid", *(pytest.param(name, marks=pytest.mark.long) for name in [*LOADS][:2])])
def test_state_stays_on_the_chip(name: str) -> None:
    kwargs = {"num_taggers": 4} if name == "tag/grid" else {}
    code = kernel_usage(name, "rollout", "sm_90", kwargs).cubin.code
    step = Instructions.of(code, in_loop=True)
    assert step.global_loads <= LOADS[name]
    assert step.generic == step.barriers == 0  # the compiler knows the memory of each address, and that no warp waits
    assert Instructions.of(code).total > step.total > 300


def test_the_score_of_a_policy_that_solves(player: Player) -> None:
    with player.make("ocean/squared", num_envs=20, seed=1) as vec:
        vec.reset()
        for _ in range(3):
            vec.step(np.concatenate(vec.call("solve")))
        assert vec.batch is not None
        assert [info["score"] for info in vec.batch.infos] == [1.0] * 20
