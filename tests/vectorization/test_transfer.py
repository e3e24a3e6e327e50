"""What a script registers with Gymnasium reaches processes that were spawned, by value where the script defines it."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.beside

ROOT = Path(__file__).parents[2]

# A script as people write them: everything in one file, no main guard around what is registered.
SCRIPT = """
import sys
import threading

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import WrapperSpec

import pufferlib

LENGTHS = {"C": 2}


class Corridor(gym.Env):
    observation_space = gym.spaces.Box(-1, 99, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, length=5, rewards=None, render_mode=None):
        self.length, self.rewards = length, np.ones(99) if rewards is None else rewards

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 0
        return np.array([0], np.float32), {}

    def step(self, action):
        self.at += int(action)
        return np.array([self.at], np.float32), float(self.rewards[self.at]), self.at >= self.length, False, {}


class Scaled(gym.RewardWrapper):
    def __init__(self, env, factor):
        super().__init__(env)
        self.factor = factor

    def reward(self, reward):
        return self.factor * reward


def by_length(name="C", **kwargs):
    return Corridor(LENGTHS[name], **kwargs)


scaled = WrapperSpec("Scaled", f"{__name__}:Scaled", {"factor": 5})
gym.register("Text-v0", entry_point=f"{__name__}:Corridor", max_episode_steps=3)
gym.register("Class-v0", entry_point=Corridor, kwargs={"rewards": 2 * np.ones(99)})
gym.register("Lambda-v0", entry_point=lambda **kwargs: Corridor(4, **kwargs))
gym.register("Function-v0", entry_point="__main__:by_length")
gym.register("Wrapped-v0", entry_point="__main__:Corridor", additional_wrappers=(scaled,))
lock = threading.Lock()
gym.register("Locked-v0", entry_point=lambda: lock and Corridor())
NAMES = ("Text-v0", "Class-v0", "Lambda-v0", "Function-v0", "Wrapped-v0")


def maker(name):
    def make_env():
        LENGTHS["C"] = 6  # what both use is one and the same there, too
        return gym.make(name)
    return make_env


def played(envs):
    # How many steps the first episode of each has, and the reward of its last step.
    envs.reset()
    found = {}
    for count in range(1, 12):
        _, rewards, *ends = envs.step(np.ones(len(NAMES), int))
        over = ends[0] | ends[1] if len(ends) == 3 else ends[0]
        for index in np.flatnonzero(over):
            found.setdefault(NAMES[index], (count, float(rewards[index])))
    envs.close()
    return found


if __name__ == "__main__":
    {thread}
    assert threading.active_count() > 1
    for envs in FACES:
        found = played(envs())
        print(*(found[name] for name in NAMES))
    {more}
"""
THREAD = "threading.Thread(target=threading.Event().wait, daemon=True).start()"
EXPECTED = "(3, 1.0) (5, 2.0) (4, 1.0) (6, 1.0) (5, 5.0)"
REFUSED = """
    try:
        pufferlib.make(lambda: gym.make("Locked-v0"), num_envs=2, num_workers=2, backend="multiprocessing")
    except pufferlib.WorkerError as error:
        print(str(error).splitlines()[0])
"""
SERVED = """[
    lambda: pufferlib.make([maker(name) for name in NAMES]),
    lambda: pufferlib.make([maker(name) for name in NAMES], num_workers=2, backend="multiprocessing"),
    lambda: pufferlib.make([maker(name) for name in NAMES], num_workers=1, backend="pool", context="forkserver"),
    lambda: pufferlib.make([*NAMES[:3], maker(NAMES[3]), NAMES[4]], num_workers=2, backend="pool"),
]"""
FACES = """[
    lambda: gymnasium_vector.AsyncVectorEnv([maker(name) for name in NAMES], max_concurrency=2),
    lambda: gymnasium_vector.SyncVectorEnv([maker(name) for name in NAMES]),
    lambda: sb3.SubprocVecEnv([maker(name) for name in NAMES], num_workers=1),
    lambda: sb3.DummyVecEnv([maker(name) for name in NAMES]),
]"""


def run(folder: Path, script: str, **environment: str) -> tuple[str, str]:
    """Run a script, and return what it printed and complained of."""
    file = folder / "script.py"
    file.write_text(script)
    done = subprocess.run(
        [sys.executable, file],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout, done.stderr


def scripted(faces: str, thread: str = THREAD, more: str = "") -> str:
    text = SCRIPT.replace("{thread}", thread).replace("{more}", more.strip())
    return text.replace("\n\nif __name__", f"\n\nFACES = {faces}\n\nif __name__")


@pytest.mark.slow
@pytest.mark.parametrize(("native", "num"), [("", 4), pytest.param("0", 4, marks=pytest.mark.long)])
def test_workers_know_what_the_script_has_registered(tmp_path: Path, native: str, num: int) -> None:
    """num: of SERVED, from the first on."""
    out, _ = run(tmp_path, scripted(f"{SERVED}[:{num}]", more=REFUSED), PUFFERLIB_NATIVE=native)
    *registered, refused = out.splitlines()
    assert registered == [EXPECTED] * num
    assert '"Locked-v0" was registered' in refused and "cannot be pickled" in refused
    assert "register it in the env_creator" in refused


@pytest.mark.extras
@pytest.mark.slow
@pytest.mark.long
def test_faces_know_what_the_script_has_registered(tmp_path: Path) -> None:
    """A thread of TensorBoard's, which every script of CleanRL's starts first, has workers spawned."""
    imports = "from pufferlib.adapters import gymnasium_vector, sb3"  # here: each worker runs what is above the guard
    thread = f"{imports}; from torch.utils.tensorboard import SummaryWriter; writer = SummaryWriter('runs')"
    out, _ = run(tmp_path, scripted(FACES, thread))
    assert out.splitlines() == [EXPECTED] * 4


PACKAGE = """
import gymnasium as gym

for index in range(3):
    gym.register(f"games/Game{index}-v0", entry_point="games.play:Game", max_episode_steps=20)
"""
GAME = """
import gymnasium as gym
import numpy as np


class Game(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, False, False, {}
"""
OF_A_PACKAGE = """
import threading

import games
import gymnasium as gym
import numpy as np

import pufferlib

if __name__ == "__main__":
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    gym.registry["games/Game0-v0"].max_episode_steps = 2
    make = lambda: gym.make("games/Game0-v0")
    with pufferlib.make(make, num_envs=4, num_workers=2, backend="multiprocessing") as vec:
        vec.reset()
        vec.step(np.zeros(4, int))
        print(vec.step(np.zeros(4, int))[3])
"""


def test_a_package_that_registers_when_it_is_imported(tmp_path: Path) -> None:
    """Each worker's first gym.make imports it, and it registers the same again: silently, and nothing is overridden."""
    (tmp_path / "games").mkdir()
    (tmp_path / "games" / "__init__.py").write_text(PACKAGE)
    (tmp_path / "games" / "play.py").write_text(GAME)
    out, errors = run(tmp_path, OF_A_PACKAGE)
    assert out.strip() == "[ True  True  True  True]"
    assert "Overriding" not in errors, errors


UNLOADABLE = """
import sys
import threading
import types

import gymnasium as gym

import pufferlib

if __name__ == "__main__":
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    module = sys.modules["only_here"] = types.ModuleType("only_here")
    exec("class Game: pass", vars(module))
    module.Game.__module__ = "only_here"
    gym.register("Elsewhere-v0", entry_point=module.Game)
    del module
    sys.modules["only_here"].__spec__ = None
    with pufferlib.make(lambda: gym.make("CartPole-v1"), num_envs=2, num_workers=2, backend="multiprocessing") as vec:
        print(vec.reset()[0].shape)
    try:
        pufferlib.make(lambda: gym.make("Elsewhere-v0"), num_envs=2, num_workers=2, backend="multiprocessing")
    except pufferlib.WorkerError as error:
        print(str(error).splitlines()[0])
"""


def test_what_cannot_be_loaded_there_stands_in_nobodys_way(tmp_path: Path) -> None:
    out, _ = run(tmp_path, UNLOADABLE)
    shape, refused = out.splitlines()[:2]
    assert shape == "(2, 4)"
    assert '"Elsewhere-v0" was registered' in refused and "No module named 'only_here'" in refused


ATARI = """
import threading

import ale_py
import gymnasium as gym

import pufferlib

if __name__ == "__main__":
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    for make in (lambda: gym.make("ALE/Pong-v5"), lambda: gym.make("PongNoFrameskip-v4"), "ALE/Pong-v5"):
        with pufferlib.make(make, num_envs=2, num_workers=1, backend="multiprocessing") as vec:
            print(vec.reset()[0].shape)
"""


@pytest.mark.extras
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.skipif(find_spec("ale_py") is None, reason="needs ale-py")
def test_atari_after_its_import(tmp_path: Path) -> None:
    out, errors = run(tmp_path, ATARI)
    assert out.split("\n")[:-1] == ["(2, 210, 160, 3)"] * 3
    assert "Overriding" not in errors, errors


ON_RAY = """
import warnings

import gymnasium as gym
import numpy as np
import ray

import pufferlib


class Corridor(gym.Env):
    observation_space = gym.spaces.Box(-1, 99, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.ones(1, np.float32), 1.0, False, False, {}


gym.register("Text-v0", entry_point="__main__:Corridor", max_episode_steps=3)
gym.register("Class-v0", entry_point=Corridor, max_episode_steps=3)

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    ray.init("local", include_dashboard=False, num_cpus=2, logging_level="error")
    makers = [lambda: gym.make("Text-v0"), lambda: gym.make("Class-v0")]
    for settings in ({"num_workers": 1}, {"num_workers": 1, "backend_kwargs": {"local_workers": 1}}):
        with pufferlib.make(makers, backend="ray", **settings) as vec:
            vec.reset()
            print([vec.step(np.zeros(2, int))[3].tolist() for _ in range(3)][-1])
    ray.shutdown()
"""


@pytest.mark.extras
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray")
def test_actors_of_ray_know_what_the_script_has_registered(tmp_path: Path) -> None:
    """In an actor itself, and in processes that an actor starts."""
    patch = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_raylet_start_wait_time_s": "120"}
    out, _ = run(tmp_path, ON_RAY, **patch)
    assert [line for line in out.splitlines() if line.startswith("[T")] == ["[True, True]"] * 2


TUNED = """
import gymnasium as gym
import pufferlib
from gymnasium.envs.classic_control import CartPoleEnv

gym.register("Tuned-v0", entry_point="__main__:CartPoleEnv", max_episode_steps=9)

if __name__ == "__main__":
    plan = pufferlib.autotune(lambda: gym.make("Tuned-v0"), budget_s=3, backend="serial", num_envs=2)
    with pufferlib.make(lambda: gym.make("Tuned-v0"), **plan) as vec:
        print(vec.backend, vec.num_envs)
"""


@pytest.mark.slow
def test_a_process_that_tries_plans_knows_what_the_script_has_registered(tmp_path: Path) -> None:
    out, _ = run(tmp_path, TUNED)
    assert out.splitlines()[-1] == "serial 2"


CACHED = """
import functools

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

import pufferlib


@functools.lru_cache(maxsize=7)
def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


class Tutorial(ParallelEnv):  # as PettingZoo's tutorials write their spaces
    metadata = {"name": "tutorial"}
    render_mode = None
    possible_agents = ["one", "two"]

    @functools.lru_cache(maxsize=None)
    def observation_space(self, agent):
        return spaces.Box(0, 99, (2,), np.float32)

    @functools.cache
    def action_space(self, agent):
        return spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents = self.possible_agents[:]
        return {agent: np.zeros(2, np.float32) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions):
        found = np.array([fibonacci(20) % 99, fibonacci.cache_parameters()["maxsize"]], np.float32)
        told = {agent: found for agent in self.agents}
        flags = dict.fromkeys(self.agents, False)
        return told, dict.fromkeys(self.agents, 1.0), flags, flags, {agent: {} for agent in self.agents}


def local():
    class Local(Tutorial):
        @functools.lru_cache
        def action_space(self, agent):
            return spaces.Discrete(3)

    return Local


for kind in (Tutorial, local()):
    with pufferlib.make(kind, num_envs=2, backend="multiprocessing", num_workers=2, context="spawn") as vec:
        vec.reset()
        print(vec.step(np.ones(4, int))[0][0].tolist(), vec.single_action_space.n)
"""


def test_cached_functions_of_the_script_go_by_value(tmp_path: Path) -> None:
    pytest.importorskip("pettingzoo")
    out, _ = run(tmp_path, CACHED)
    assert out.splitlines() == ["[33.0, 7.0] 2", "[33.0, 7.0] 3"]
