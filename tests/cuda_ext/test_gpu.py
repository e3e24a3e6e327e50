"""A device plays and trains what the host does: rows and choices, pools, graphs, trainers in graphs, a group of one.

What is about kernels alone is held against references by test_every_kernel.py and its like.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from devices import LOOPS, ON_HOST_AND_DEVICE, Player, array_of, assert_same_bits
from matrix import covering
from torch import Tensor, nn

from cleanrl_demo import a2c_cuda, ppo_cuda
from cleanrl_demo.ppo_cuda import Learner, Rollout, iteration
from pufferlib.training.cuda_graphs import on_own_stream
from pufferlib.training.session import environments, origin_of, torch_set_up
from tests.cleanrl_demo.test_ppo_cuda import config

pytestmark = pytest.mark.beside

ROOT = Path(__file__).parents[2]
ROWS = ("observations", "rewards", "terminations", "truncations", "masks")
SAMPLE_COLUMNS = ("actions", "log_probs", "entropies")
MODES = ["next_step", "same_step"]


def grid(num_agents: int) -> tuple[str, dict[str, Any]]:
    kwargs = {"num_taggers": num_agents - 1, "full_observation": False, "grid_length": 9, "episode_length": 20}
    return "tag/grid", kwargs


def continuous(num_agents: int, num_taggers: int) -> tuple[str, dict[str, Any]]:
    kwargs = {"num_taggers": num_taggers, "num_runners": num_agents - num_taggers, "full_observation": False}
    kwargs |= {"num_nearest": min(10, num_agents - 1), "grid_length": 9, "episode_length": 20}
    return "tag/continuous", {**kwargs, "tagging_distance": 0.05}


# As many agents as take a part of a warp, a warp, a block and several turns of its threads.
CASES = [
    *map(grid, (5, 32, 33, 105, 1000)),
    *(continuous(*size) for size in ((5, 1), (33, 2), (105, 5), (820, 40), (1000, 50))),
    *((name, dict[str, Any]()) for name in ("classic/cartpole", "ocean/squared", "tag/grid", "tag/continuous")),
]
ONE_THREAD = LOOPS._replace(backend_kwargs={"threads": 1})
FEW = 105  # agents that play with a network


def sizes(player: Player, on_host: tuple[int, int], on_device: tuple[int, int]) -> tuple[int, int]:
    """Return how many and how long: more on a device, which takes them at once."""
    return on_host if player.device == "host" else on_device


def size_of(kwargs: dict[str, Any], num_rows: int) -> int:
    """Return how many environments have about so many rows."""
    return max(2, num_rows // (kwargs.get("num_taggers", 10) + kwargs.get("num_runners", 1)))


def nvec_of(vec: Any) -> list[int]:
    space = vec.single_action_space
    return np.atleast_1d(getattr(space, "nvec", getattr(space, "n", None))).tolist()


def assert_same_columns(actual: Any, expected: Any, names: Any, context: Any = "") -> None:
    for name in names:
        assert_same_bits(getattr(actual, name), getattr(expected, name), (context, name))


def assert_same_state(vec: Any, expected: Any) -> None:
    for name, field in expected.data.fields.items():
        if field.role == "state":
            assert_same_bits(vec.data.pull(name), expected.data.pull(name), name)


@covering({"case": CASES, "autoreset_mode": MODES, "player": ON_HOST_AND_DEVICE}, indirect=["player"])
def test_rows_choices_and_state_are_the_hosts(case: Any, autoreset_mode: str, player: Player) -> None:
    name, kwargs = case
    num_rows, num_steps = sizes(player, (200, 5), (20_000, 30))
    arguments: dict[str, Any] = dict(num_envs=size_of(kwargs, num_rows), seed=3, env_kwargs=kwargs)
    arguments["autoreset_mode"] = autoreset_mode
    torch.manual_seed(1)
    with player.make(name, **arguments) as vec, ONE_THREAD.make(name, **arguments) as other:
        num_options = sum(nvec_of(vec))
        logits = torch.randn(vec.agents_per_batch, num_options)
        assert_same_bits(vec.reset()[0], other.reset()[0])
        for step in range(num_steps):
            step_logits = logits.roll(step, 0)
            assert_same_columns(
                vec.send_logits(step_logits.to(vec.device)), other.send_logits(step_logits), SAMPLE_COLUMNS, step
            )
            assert_same_columns(vec.recv(), other.recv(), ROWS, step)
        if vec.agents_per_env <= FEW:
            num_inputs = int(np.prod(vec.single_observation_space.shape))
            policy = nn.Sequential(nn.Flatten(), nn.Linear(num_inputs, 64), nn.Tanh(), nn.Linear(64, num_options))
            played = other.rollout(num_steps, policy=policy)
            assert_same_columns(vec.rollout(num_steps, policy=policy.to(vec.device)), played, (*ROWS, *SAMPLE_COLUMNS))
        assert_same_state(vec, other)


# ------------------------------------------------------------------------------------------------------------- pools

THREE_AGENTS = {"num_taggers": 2, "num_runners": 1, "grid_length": 3, "episode_length": 4}
ENVS_AND_TURNS = (12, 10), (3_000, 30)


@pytest.mark.parametrize("player", ON_HOST_AND_DEVICE, indirect=True)
@pytest.mark.parametrize("autoreset_mode", MODES)
def test_batches_on_streams_of_their_own_are_those_of_all_at_once(autoreset_mode: str, player: Player) -> None:
    """In whichever order they come and are answered, with actions that kernels choose."""
    num_envs, num_turns = sizes(player, *ENVS_AND_TURNS)
    num_parts, num_agents = 3, 3
    arguments: dict[str, Any] = dict(num_envs=num_envs, seed=3, env_kwargs=THREE_AGENTS, autoreset_mode=autoreset_mode)
    random = np.random.default_rng(1)
    logits = torch.from_numpy(random.normal(size=(7, num_envs, num_agents, 5)).astype(np.float32))
    counts = np.zeros(num_envs, int)
    batches: list[tuple[Any, ...]] = []  # of which environments, after how many steps: names of columns, and these
    with player.make("tag/grid", batch_size=num_envs // num_parts, **arguments) as vec:
        vec.async_reset()
        for _ in range(num_parts * num_turns):
            batch = vec.recv()
            ids = array_of(batch.env_ids)
            batches.append((ids, counts[ids], ROWS, [array_of(getattr(batch, name)) for name in ROWS]))
            assert_same_bits(batch.agent_ids, (ids[:, np.newaxis] * num_agents + np.arange(num_agents)).reshape(-1))
            for part in np.split(random.permutation(ids), [random.integers(1, len(ids))]):
                sent = logits[counts[part] % len(logits), part].flatten(0, 1)
                chosen = vec.send_logits(sent.to(vec.device), env_ids=part.tolist())
                batches.append((part, counts[part], SAMPLE_COLUMNS, [array_of(array) for array in chosen]))
                counts[part] += 1
    assert counts.sum() == num_envs * num_turns
    with ONE_THREAD.make("tag/grid", **arguments) as other:
        other.reset()
        expected: dict[str, list[Any]] = {name: [] for name in (*ROWS, *SAMPLE_COLUMNS)}  # by step
        for step in range(counts.max()):
            batch, chosen = other.batch, other.send_logits(logits[step % len(logits)].flatten(0, 1))
            for name, array in expected.items():
                column = array_of(getattr(batch if name in ROWS else chosen, name))
                array.append(column.reshape(num_envs, num_agents, *column.shape[1:]))
            other.recv()
    columns = {name: np.stack(array) for name, array in expected.items()}
    for ids, steps, names, arrays in batches:
        for name, array in zip(names, arrays, strict=True):
            assert_same_bits(array, columns[name][steps, ids].reshape(array.shape), name)


@pytest.mark.parametrize("player", ON_HOST_AND_DEVICE, indirect=True)
def test_state_is_read_and_written_while_blocks_fly(player: Player) -> None:
    """A call comes after all that was sent before it, and before all that is sent after it."""
    num_envs, num_steps = sizes(player, *ENVS_AND_TURNS)
    arguments: dict[str, Any] = dict(num_envs=num_envs, seed=3, env_kwargs=THREE_AGENTS)
    random = np.random.default_rng(1)
    with (
        player.make("tag/grid", batch_size=num_envs // 3, **arguments) as vec,
        ONE_THREAD.make("tag/grid", **arguments) as other,
    ):
        vec.async_reset()
        other.reset()
        for step in range(num_steps):
            parts = []
            for _ in range(3):
                batch = vec.recv()
                parts.append(array_of(batch.env_ids))
                for name in ROWS:
                    column = array_of(getattr(other.batch, name))
                    wanted = column.reshape(num_envs, 3, *column.shape[1:])[parts[-1]]
                    assert_same_bits(getattr(batch, name), wanted.reshape(column[: parts[-1].size * 3].shape), name)
            assert sorted(np.concatenate(parts)) == [*range(num_envs)]
            actions = torch.from_numpy(random.integers(0, 5, (num_envs, 3)))
            for ids in parts:
                vec.send(actions[ids].flatten().to(vec.device), env_ids=ids.tolist())
            other.send(actions.flatten())
            assert vec.get_attr("t") == other.get_attr("t")
            chosen = random.choice(num_envs, num_envs // 2, replace=False).tolist()
            for name in ("x", "t") if step % 2 else ("y",):
                values = [random.integers(0, 4, 3) if name != "t" else int(random.integers(0, 4)) for _ in chosen]
                for venv in (vec, other):
                    venv.set_attr(name, values, env_ids=chosen)
            states = other.states()
            for name, state in vec.states().items():
                assert_same_bits(state, states[name], name)
            other.recv()


# ------------------------------------------------------------------------------------------------------------ graphs


@pytest.mark.gpu
@covering({"case": CASES, "autoreset_mode": MODES})
def test_steps_in_a_graph_are_those_one_by_one(case: Any, autoreset_mode: str, cuda: str) -> None:
    """Three replays of 30 steps, with the actions and logits that are in the captured tensors at each."""
    name, kwargs = case
    arguments: dict[str, Any] = dict(num_envs=size_of(kwargs, 20_000), seed=3, env_kwargs=kwargs)
    arguments["autoreset_mode"] = autoreset_mode
    random = np.random.default_rng(1)
    player = Player("device", cuda, {})
    with player.make(name, **arguments) as vec, player.make(name, **arguments) as other:
        nvec = nvec_of(vec)
        shape = (vec.agents_per_batch, *vec.single_action_space.shape)
        actions = torch.zeros(shape, dtype=torch.int64, device=cuda)
        logits = torch.zeros((len(actions), sum(nvec)), device=cuda)

        def play(venv: Any, num_steps: int) -> None:
            for _ in range(num_steps - 3):
                venv.step(actions)
            for _ in range(3):
                venv.send_logits(logits)
                venv.recv()

        for venv in (vec, other):
            venv.reset()
            play(venv, 6)  # each block of rows has been filled both ways
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            play(vec, 30)
        assert_same_state(vec, other)  # a capture plays nothing
        for _ in range(3):
            actions.copy_(torch.from_numpy(random.integers(0, nvec if len(shape) > 1 else nvec[0], shape)))
            logits.copy_(torch.from_numpy(random.normal(size=tuple(logits.shape)).astype(np.float32)))
            graph.replay()
            play(other, 30)
            assert_same_columns(vec.batch, other.batch, ROWS)
            assert_same_state(vec, other)
        play(vec, 6)  # and it goes on one by one
        play(other, 6)
        assert_same_columns(vec.batch, other.batch, ROWS)
        assert_same_state(vec, other)


# ---------------------------------------------------------------------------------------------------------- trainers


def trained(trainer: Any, device: str, graphs: bool, **more: Any) -> Tensor:
    """Return weights after eight iterations, which come one after another, or two so and six in a graph."""
    settings = config(trainer.Config, device=device, graphs=graphs, num_envs=16, rollout_length=8, tf32=False, **more)
    with torch_set_up(settings), environments(settings, None) as vec:
        learner = Learner(vec, origin_of(settings, None), settings)
        vec.async_reset(seed=settings.seed)
        with on_own_stream(settings.device):
            rollout = Rollout(vec, learner, settings)
            rollout.begin()
            iterate = iteration(rollout, settings, trainer.update)
            for _ in range(8):
                iterate()
        weights = torch.cat([team.weights.detach().cpu() for team in learner.teams])
        assert (iterate.graph is not None) == (graphs and device != "host")
    return weights


def assert_near(actual: Tensor, expected: Tensor) -> None:
    """To a hundred-thousandth of the largest: in a graph cuBLAS may choose other kernels."""
    largest = float(expected.abs().max())
    assert expected.isfinite().all() and float((actual - expected).abs().max()) <= 1e-5 * largest


def name_of(value: Any) -> str:
    return str(getattr(value, "__name__", value))


CONTINUOUS: dict[str, Any] = {"env": "ocean/continuous", "env_kwargs": {}}
TRAINERS = [
    *((ppo_cuda, more) for more in ({}, {"separate": True}, CONTINUOUS)),
    *((a2c_cuda, more) for more in ({}, {"separate": True})),
]


@pytest.mark.gpu
@pytest.mark.parametrize(("trainer", "more"), TRAINERS, ids=name_of)
def test_a_trainer_in_a_graph_learns_what_it_does_without(trainer: Any, more: dict[str, Any], device: str) -> None:
    eager = trained(trainer, device, False, **more)
    assert not torch.equal(eager, trained(trainer, device, False, seed=2, **more))
    assert_near(trained(trainer, device, True, **more), eager)


@pytest.mark.gpu
@pytest.mark.parametrize("trainer", [ppo_cuda, a2c_cuda])
def test_stretches_in_a_row_are_those_without_a_graph(trainer: Any, device: str) -> None:
    """The graph of the first plays on in the second and the third, whose environments start again."""
    runs = []
    for graphs in (True, False):
        more = {"graphs": graphs, "tf32": False}
        settings = config(trainer.Config, device=device, total_steps=1500, checkpoint_every=500, **more)
        result = trainer.train(settings)
        assert result.num_steps >= 1500
        runs.append(torch.cat([part.cpu().flatten() for part in result.actor.policy.state_dict().values()]))
    assert_near(*runs)


ALONE = """
import sys, torch.distributed, torch.distributed.nn.functional
from benchmarks.gpu_stages import find_own_tests
from cleanrl_demo import ppo_cuda
from devices import begin

find_own_tests()
from tests.cuda_ext import test_gpu

device = sys.argv[1]
if device != "host":
    begin(device)
for graphs in (False, True):
    alone = test_gpu.trained(ppo_cuda, device, graphs)
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo" if device == "host" else "nccl", store=store, rank=0, world_size=1)
    try:
        test_gpu.assert_near(test_gpu.trained(ppo_cuda, device, graphs), alone)
    finally:
        torch.distributed.destroy_process_group()
print("done")
"""


@pytest.mark.gpu
def test_a_group_of_one_process_learns_as_one_without_a_group(device: str) -> None:
    """NCCL's sums are in the graph, too."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests/helpers"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", ALONE, device]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True,
                          timeout=100)  # fmt: skip
    assert done.returncode == 0 and done.stdout.endswith("done\n"), done.stderr[-3000:]
