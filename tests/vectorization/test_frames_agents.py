"""How many of pufferlib's Python functions a step of several agents enters, in this process and in a worker."""

from __future__ import annotations

from itertools import chain, cycle, repeat
from typing import Any

import numpy as np
import pytest
from frames import MOST, NUM_ENVS, Counting, frames_a_step, frames_in_worker
from gymnasium.spaces import Box, Discrete
from matrix import covering

import pufferlib
from pufferlib import _native

pytestmark = [
    pytest.mark.beside,
    pytest.mark.skipif(not _native.available, reason=f"there is no compiled path: {_native.reason}"),
]

MODES = ("next_step", "same_step")
SEEN = Box(-1, 1, (8,), np.float32)
NOTHING = np.zeros(8, np.float32)


class Several:
    """A parallel environment that returns the same objects each time; all agents end at once.

    returns: a key of SEVERAL.
    """

    metadata: dict[str, Any] = {}

    def __init__(self, returns: str, episode_length: int = 10) -> None:
        num, self.spaces, reward, flag, info = SEVERAL[returns]
        self.possible_agents = [f"agent_{i}" for i in range(num)]
        self.state_space = Box(-1, 1, (3,), np.float32)
        self.seen = {agent: self.observation_space(agent).sample() for agent in self.possible_agents}
        values = [dict.fromkeys(self.possible_agents, value) for value in (reward, flag(False), flag(True), info)]
        rewards, noes, yeses, self.infos = values
        step = self.seen, rewards, noes, noes, self.infos
        last = self.seen, rewards, noes, yeses, self.infos
        self.results = cycle(chain(repeat(step, episode_length - 1), (last,)))

    def observation_space(self, agent: str) -> Any:
        return self.spaces[0] if agent == "agent_0" else self.spaces[-1]

    def action_space(self, agent: str) -> Any:
        return FIVE if agent == "agent_0" and len(self.spaces) > 1 else FOUR

    def state(self) -> Any:
        return NOTHING[:3]

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents = self.possible_agents[:]
        return self.seen, self.infos

    def step(self, actions: Any) -> Any:
        result = next(self.results)
        if result[3][self.possible_agents[0]]:
            self.agents = []
        return result


FOUR, FIVE = Discrete(4), Discrete(5)
SEVERAL: dict[str, tuple[int, tuple[Any, ...], Any, Any, Any]] = {
    "2 agents": (2, (SEEN,), 1.0, bool, {}),
    "4 agents": (4, (SEEN,), 1.0, bool, {}),
    "16 agents": (16, (SEEN,), 1.0, bool, {}),
    "4 agents, casts": (4, (Box(-1, 1, (8,), np.float32),), np.float32(1), np.bool_, {}),
    "4 agents of other spaces": (4, (SEEN, Box(-1, 1, (3,), np.float32)), 1, bool, {}),
    "4 agents with infos": (4, (SEEN,), 1.0, bool, {"a": 1, "b": 0.5}),
    "4 agents with masks": (4, (SEEN,), 1.0, bool, {"action_mask": np.ones(4, np.int8)}),
}


class Herd(pufferlib.PufferEnv):
    """A PufferEnv whose agents all end at once. infos: what its steps return."""

    single_observation_space, single_action_space = SEEN, FOUR

    def __init__(self, infos: Any, num_agents: int, episode_length: int) -> None:
        self.infos, self.num_agents, self.episode_length = infos, num_agents, episode_length

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.left = self.episode_length

    def step(self, actions: Any) -> Any:
        self.left -= 1
        self.truncations[:] = self.left == 0
        return self.infos


class WatchedSeveral(Counting, Several):
    pass


class Swapping:
    """Agents of whom each lives for six steps; a new one comes in every other. An episode has twelve steps."""

    metadata: dict[str, Any] = {}

    def observation_space(self, agent: str) -> Any:
        return SEEN

    def action_space(self, agent: str) -> Any:
        return FOUR

    def listed(self) -> list[str]:
        return [f"agent_{born}" for born in range(0, self.tick + 1, 2) if self.tick < born + 6]

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.tick, self.agents = 0, ["agent_0"]
        return {"agent_0": NOTHING}, {}

    def step(self, actions: Any) -> Any:
        self.tick += 1
        acted, self.agents = self.agents, self.listed() if self.tick < 12 else []
        gone = {agent: agent not in self.agents for agent in acted}
        seen = dict.fromkeys([*acted, *self.agents], NOTHING)
        return seen, dict.fromkeys(acted, 1.0), gone, dict.fromkeys(acted, False), {agent: {"a": 1} for agent in acted}


class SwappingMadeUp(Counting, Swapping):
    max_num_agents = 4


class SwappingNamed(Counting, Swapping):
    possible_agents = [f"agent_{born}" for born in range(0, 12, 2)]


SWAPPING: dict[str, tuple[Any, dict[str, Any]]] = {
    "made up": (SwappingMadeUp, {}),
    "named": (SwappingNamed, {}),
    "named, of fewer places": (SwappingNamed, {"max_agents": 4}),
}


@covering({"name": [*SWAPPING], "autoreset_mode": MODES})
def test_agents_that_come_and_go_enter_few_python_functions(name: str, autoreset_mode: str) -> None:
    creator, kwargs = SWAPPING[name]
    plan: dict[str, Any] = {"num_envs": NUM_ENVS, "wrap_kwargs": kwargs, "autoreset_mode": autoreset_mode}
    with pufferlib.make(creator, **plan) as vec:
        for _ in range(2):  # agents are looked at twice, and the last of them only live for one step
            vec.reset()
            for _ in range(26):
                vec.step(np.zeros(vec.agents_per_batch, int))
        entered = frames_a_step(vec, np.zeros(vec.agents_per_batch, int))
    assert entered <= MOST, f"{name}: {entered:.2f} frames a step"
    with pufferlib.make(creator, **plan, num_workers=1, backend="multiprocessing") as vec:
        for _ in range(2):
            vec.reset()
            for _ in range(26):
                vec.step(np.zeros(vec.agents_per_batch, int))
        entered = frames_in_worker(vec, np.zeros(vec.agents_per_batch, int))
    assert entered <= MOST, f"{name}: {entered:.2f} frames a step in the worker"


@covering(
    {
        "returns": [*SEVERAL],
        "kwargs": [pytest.param({}, id="rows"), pytest.param({"state": True, "agent_type": True}, id="state")],
        "autoreset_mode": MODES,
    }
)
def test_steps_of_several_agents_enter_few_python_functions(
    returns: str, kwargs: dict[str, Any], autoreset_mode: str
) -> None:
    plan: dict[str, Any] = {"num_envs": NUM_ENVS, "wrap_kwargs": kwargs, "autoreset_mode": autoreset_mode}
    with pufferlib.make(Several, env_args=[returns], **plan) as vec:
        entered = frames_a_step(vec, np.zeros(vec.agents_per_batch, int))
    assert entered <= MOST, f"{returns}: {entered:.2f} frames a step"


@pytest.mark.parametrize("infos", [None, {"a": 1}, [{"a": 1}]], ids=["nothing", "one", "each"])
@pytest.mark.parametrize("num_agents", [1, 64])
@pytest.mark.parametrize("autoreset_mode", MODES)
def test_steps_of_puffer_envs_enter_few_python_functions(autoreset_mode: str, num_agents: int, infos: Any) -> None:
    infos = infos * num_agents if isinstance(infos, list) else infos
    length = 10 if num_agents > 1 else 1000  # those of one agent are reset in Python
    plan: dict[str, Any] = {"num_envs": NUM_ENVS, "autoreset_mode": autoreset_mode}
    with pufferlib.make(Herd, env_args=[infos, num_agents, length], **plan) as vec:
        entered = frames_a_step(vec, np.zeros(vec.agents_per_batch, int))
    assert entered <= MOST, f"{entered:.2f} frames a step"


@covering({"returns": [*SEVERAL], "autoreset_mode": MODES})
def test_workers_of_several_agents_enter_few_python_functions(returns: str, autoreset_mode: str) -> None:
    plan: dict[str, Any] = {"num_envs": NUM_ENVS, "num_workers": 1, "backend": "multiprocessing"}
    with pufferlib.make(WatchedSeveral, env_args=[returns], **plan, autoreset_mode=autoreset_mode) as vec:
        entered = frames_in_worker(vec, np.zeros(vec.agents_per_batch, int))
    assert entered <= MOST, f"{returns}: {entered:.2f} frames a step in the worker"
