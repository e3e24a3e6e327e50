"""classic/cartpole: the rules are Gymnasium's, and the host's many at once play as one after another."""

from __future__ import annotations

import itertools
import platform
import shutil
import subprocess
from typing import Any

import gymnasium
import numpy as np
import pytest
from devices import FIBRES, LOOPS, Player, array_of
from gymnasium.utils.env_checker import check_env
from kernel_programs import COMPILER

import pufferlib
from cuda_ext import functions, sources
from cuda_ext.classic_cartpole import KERNEL
from cuda_ext.references.classic_cartpole import HEIGHT, WIDTH, ClassicCartpole

pytestmark = pytest.mark.beside

COLUMNS = ("observations", "rewards", "terminations", "truncations", "masks")
STATE = ("x", "x_dot", "theta", "theta_dot")


def test_the_rules_are_gymnasiums() -> None:
    """From the same states, also beyond the edges, to the rounding of float32."""
    random = np.random.default_rng(1)
    original: Any = gymnasium.make("CartPole-v1").unwrapped
    env = ClassicCartpole()
    original.reset(seed=1)
    env.reset(seed=1)
    assert (env.observation_space, env.action_space) == (original.observation_space, original.action_space)
    for _ in range(2000):
        state = (random.uniform(-1, 1, 4) * [2.5, 4, 0.22, 4]).astype(np.float32)
        action = int(random.integers(2))
        original.state, original.steps_beyond_terminated = tuple(state.astype(float)), None
        env.x, env.x_dot, env.theta, env.theta_dot = state
        expected, actual = original.step(action), env.step(action)
        np.testing.assert_allclose(actual[0], expected[0], rtol=2e-6, atol=2e-6)
        near = (np.abs(np.abs(expected[0][[0, 2]]) - [2.4, 12 * np.pi / 180]) < 1e-5).any()
        assert near or actual[1:3] == expected[1:3]


def lengths(name: str, num_envs: int, **kwargs: Any) -> list[int]:
    """Those of all episodes that end within 600 steps of random play."""
    random, values = np.random.default_rng(2), []
    with pufferlib.make(name, num_envs=num_envs, seed=1, **kwargs) as vec:
        vec.reset()
        for _ in range(600):
            infos = vec.step(random.integers(0, 2, num_envs))[4]
            values += [info["episode"]["l"] for info in infos]
    return values


def test_random_play_is_as_long_as_gymnasiums() -> None:
    """Means that differ by chance are six standard errors apart once in five hundred million times."""
    ours, theirs = lengths("classic/cartpole", 128, backend="cuda", device="host"), lengths("CartPole-v1", 16)
    error = np.sqrt(np.var(ours) / len(ours) + np.var(theirs) / len(theirs))
    assert len(theirs) > 300 and abs(np.mean(ours) - np.mean(theirs)) < 6 * error < 4


def test_as_an_environment_of_gymnasium() -> None:
    check_env(ClassicCartpole(render_mode="rgb_array"))
    env = ClassicCartpole(max_episode_steps=5)
    env.reset(seed=3)
    assert [env.step(k % 2)[3] for k in range(5)] == [False] * 4 + [True]
    with pytest.raises(ValueError, match="max_episode_steps=0 is impossible"):
        ClassicCartpole(max_episode_steps=0)
    with pytest.raises(ValueError, match="render_mode='human' is unknown"):
        ClassicCartpole(render_mode="human")


def test_pictures() -> None:
    for theta, leans in ((-0.2, -1), (0.2, 1)):
        for mode in ("ansi", "rgb_array"):
            env = ClassicCartpole(render_mode=mode)
            env.reset(seed=1)
            env.x, env.theta = np.float32(1.2), np.float32(theta)
            picture = env.render()
            if mode == "ansi":
                lines = picture.splitlines()
                assert (lines[0].index("|") - lines[-1].index("####") - 3) * leans > 0
            else:
                assert picture.shape == (HEIGHT, WIDTH, 3) and picture.dtype == np.uint8
                pole = np.flatnonzero((picture == (200, 150, 100)).all(axis=-1).any(axis=0))
                assert (pole.mean() - 222) * leans > 0  # 150 in the middle, 60 a metre
    assert ClassicCartpole().render() is None


# ------------------------------------------------------------------------------------------------- many at once


def rows(vec: Any) -> list[Any]:
    batch = vec.batch
    order = np.argsort(array_of(batch.env_ids), kind="stable")
    lengths_of = sorted((info["env_id"], info["episode"]["l"]) for info in batch.infos)
    finals = [info["final_obs"].tolist() for info in batch.infos if "final_obs" in info]
    ended = array_of(vec._queue.newest().ended)[order].tolist()
    return [*(array_of(getattr(batch, name))[order].tobytes() for name in COLUMNS), lengths_of, finals, ended]


THREE = LOOPS._replace(backend_kwargs={"threads": 3})


def played(player: Player, num_envs: int, mode: str, kind: str = "int64", batch_size: int | None = None) -> list[Any]:
    """What 30 steps give, with a reset of some in between, or with batches of fewer than all."""
    results = []
    arguments: dict[str, Any] = dict(
        env_kwargs={"max_episode_steps": 14}, autoreset_mode=mode, batch_size=batch_size, seed=5
    )
    with player.make("classic/cartpole", num_envs=num_envs, **arguments) as vec:
        vec.async_reset()
        for step in range(30):
            vec.recv()
            results.append(rows(vec))
            random = np.random.default_rng([7, step])
            if step % 10 == 9 and batch_size is None:
                vec.async_reset(env_ids=sorted({0, num_envs // 2, num_envs - 1}))
                vec.recv()
                results.append(rows(vec))
            vec.send(random.integers(0, 2, vec.agents_per_batch).astype(kind))
        vec.recv()
        results += [[vec.get_attr(name) for name in ("seed", "episode", "t", *STATE)]]
    return results


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_many_at_once_play_as_one_after_another(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer than are played at once, more by one, shared among threads; with both widths of actions."""
    monkeypatch.setattr(functions, "THREAD_NS", 0)
    for num_envs, kind in ((1, "int64"), (17, "int32"), (257, "int64"), (1025, "int32")):
        assert played(THREE, num_envs, mode, kind) == played(FIBRES, num_envs, mode, kind), (num_envs, mode)


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_a_device_plays_as_the_host_does(mode: str, device: str) -> None:
    for num_envs, kind in ((1, "int64"), (17, "int32"), (257, "int64"), (1025, "int32")):
        there = played(Player("device", device, {}), num_envs, mode, kind)
        assert there == played(LOOPS, num_envs, mode, kind), (num_envs, mode)


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_batches_of_fewer_than_all(mode: str) -> None:
    assert played(THREE, 520, mode, batch_size=300) == played(FIBRES, 520, mode, batch_size=300)


def reports() -> bool:
    """Whether there is GCC, whose report the test reads, for a processor that has other widths than one."""
    if shutil.which(COMPILER[0]) is None or platform.machine() != "x86_64":
        return False
    version = subprocess.run([*COMPILER, "--version"], capture_output=True, text=True).stdout
    return "Free Software Foundation" in version


@pytest.mark.long
@pytest.mark.skipif(not reports(), reason="needs GCC on x86-64")
def test_the_compiler_makes_instructions_for_many() -> None:
    """Of the loops over neighbours, for 256 and 512 bits, whatever the type of actions; the first loop only clears."""
    # Python's own flags come before ours where setup.py compiles.
    command = [
        *COMPILER,
        "-fwrapv",
        *sources.HOST_FLAGS,
        "-fopt-info-optimized",
        "-S",
        "-o",
        "/dev/null",
        "-x",
        "c++",
        "-",
    ]
    command += ["-I", str(sources.FOLDER)]
    done = subprocess.run(command, input=sources.for_host(KERNEL), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = (sources.FOLDER / "kernel.cuh").read_text().splitlines()
    clears, *loops = [number + 2 for number, line in enumerate(lines) if line.strip() == "SIDE_BY_SIDE"]
    assert len(loops) == 3

    def notes(line: int, what: str) -> int:
        return sum(f"kernel.cuh:{line}:" in note and what in note for note in done.stderr.splitlines())

    num_variants, num_action_types = 3, 3  # baseline, AVX2, AVX-512; int64, int32, random
    assert notes(clears, "split to 0 loops and 3 library calls") == num_variants * num_action_types
    for loop, nbytes in itertools.product(loops, (32, 64)):
        assert notes(loop, f"{nbytes} byte vectors") >= num_action_types, (loop, nbytes)
