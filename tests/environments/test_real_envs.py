"""Real environments: whatever a backend hands out is what the raw environment says, bit for bit.

docs/environments.md is the table of these cases; ``python tests/environments/test_real_envs.py`` writes it.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from comparison import compare, global_generators
from gymnasium import spaces
from oracles import Tape
from pettingzoo import AECEnv
from pettingzoo.test.example_envs import (
    generated_agents_env_action_mask_info_v0,
    generated_agents_env_action_mask_obs_v0,
    generated_agents_env_cust_agentid_v0,
    generated_agents_env_v0,
    generated_agents_parallel_cust_agentid_v0,
    generated_agents_parallel_v0,
)
from pettingzoo.utils import wrappers
from pettingzoo.utils.conversions import turn_based_aec_to_parallel

import pufferlib
from pufferlib.registry import creator
from pufferlib.vectorization.core.plan import Seeds

pytestmark = pytest.mark.beside

DOCS = Path(__file__).parents[2] / "docs" / "environments.md"
SEED = 7
NUM_ENVS = 3
NUM_STEPS = 500  # of environments, compared on each backend; resets come on top
BACKENDS = {
    "serial": {},
    "multiprocessing": {"num_workers": 2},
    "pool": {"num_workers": 2, "batch_size": 2},
}


@dataclass(frozen=True, eq=False)  # hashable, so that pytest can group tests by cases
class Case:
    """One environment of this page, and what it is here for."""

    env: str | Callable[..., Any]
    exercises: str
    shows: str  # events that so many steps must hold, or nothing would be proved
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    wrap_kwargs: dict[str, Any] = field(default_factory=dict)
    name: str = ""
    slow: bool = False  # so that the backends but the first get a quarter of the steps
    short: int = 250  # steps in the short form

    def __str__(self) -> str:
        return self.name or str(self.env)

    def raw(self) -> Any:
        """Return the raw environment; an AEC one as PettingZoo converts it."""
        env = creator(self.env)(**self.env_kwargs)
        return turn_based_aec_to_parallel(env) if isinstance(env, AECEnv) else env


# PettingZoo's example environments sample observations from spaces, to which they hand the seed of each reset: without
# one, they cannot be reproduced. These draw it from the environment's own generator instead.


def reproducible(env_class: Any) -> Any:
    """Return a subclass whose episodes all follow from the seed of the first."""

    class Reproducible(env_class):
        def reset(self, seed: int | None = None, options: Any = None) -> Any:
            if seed is None:
                seed = int(self.np_random.integers(1 << 31))
            return super().reset(seed=seed, options=options)

        def add_type(self) -> Any:
            kind = super().add_type()
            self._obs_spaces[kind].seed(int(self.np_random.integers(1 << 31)))
            return kind

    return Reproducible


def generated_parallel(module: Any) -> Any:
    class Counting(reproducible(module.parallel_env)):
        """Its episodes would have no end: the original counts no steps."""

        def step(self, actions: Any) -> Any:
            self.num_steps += 1
            return super().step(actions)

    return Counting(max_cycles=60)


def generated_in_turns(module: Any) -> Any:
    class Crowded(reproducible(module.raw_env)):
        """Agents begin to die when there are twenty: it starts with nearly as many."""

        def reset(self, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed, options)
            while len(self.agents) < 18:
                self.add_agent(self.np_random.choice(self.types))
            self._agent_selector.reinit(self.agents)
            self.agent_selection = self._agent_selector.next()

    env = Crowded(max_cycles=4)  # of about twenty turns each
    if "action_mask" in module.__name__:
        env = wrappers.TerminateIllegalWrapper(env, illegal_reward=-1)
    return wrappers.OrderEnforcingWrapper(wrappers.AssertOutOfBoundsWrapper(env))


def generated(make: Callable[[Any], Any], module: Any, exercises: str, shows: str, **wrap_kwargs: Any) -> Case:
    widest = {"observation_space": spaces.Box(0, 1, (49,)), "action_space": spaces.Discrete(9), "max_agents": 40}
    name = module.__name__.rpartition(".")[2]
    return Case(functools.partial(make, module), exercises, shows, {}, {**widest, **wrap_kwargs}, name, short=275)


MASKED = spaces.Dict(observation=spaces.Box(0, 1, (49,)), action_mask=spaces.Box(0, 1, (9,), np.int8))
CASES = [
    Case("classic/cartpole", "the plainest case", "terminated truncated rewarded", {"max_episode_steps": 25}),
    Case("Blackjack-v1", "a Tuple of three Discrete; episodes of one to three steps", "terminated rewarded"),
    Case(
        "CarRacing-v3",
        "images; slow, uneven steps; Box actions",
        "truncated rewarded",
        {"max_episode_steps": 20},
        slow=True,
        short=75,
    ),
    Case(
        "ALE/Breakout-v5",
        "images; infos in every step; a reset takes as long as hundreds of steps",
        "terminated truncated rewarded told",
        {"max_episode_steps": 250},
        short=750,
    ),
    Case(
        "MiniGrid-Fetch-5x5-N2-v0",
        "a Dict with a text, of MiniGrid's own space",
        "terminated truncated rewarded",
        {"max_episode_steps": 30},
        {},
    ),
    Case(
        "BabyAI-GoToLocalS5N2-v0",
        "the same; missions of more words",
        "terminated truncated rewarded",
        {"max_episode_steps": 50},
        {},
    ),
    Case(
        "Foraging-8x8-3p-3f-v3",
        "Tuples of agents under Gymnasium's API; rewards in a list",
        "terminated rewarded told",
    ),
    Case("mpe/simple_speaker_listener_v4", "agents whose spaces differ", "truncated rewarded"),
    Case(
        "mpe/simple_speaker_listener_v4",
        "the same with Box actions of two sizes",
        "truncated rewarded",
        {"continuous_actions": True},
        name="mpe/simple_speaker_listener_v4, continuous",
    ),
    Case(
        "butterfly/knights_archers_zombies_v11",
        "an AEC environment; agents that die one by one",
        "terminated truncated died rewarded",
        {"max_cycles": 100, "spawn_delay": 4, "line_death": True},
        short=400,
    ),
    Case("magent/battle_v4", "162 agents that die", "truncated terminated died rewarded", {"max_cycles": 80}),
    Case(
        "magent/tiger_deer_v4",
        "121 agents of two kinds, whose observations and actions differ in size",
        "truncated terminated died rewarded",
        {"max_cycles": 60},
    ),
    generated(
        generated_parallel,
        generated_agents_parallel_v0,
        "no `possible_agents`: agents of changing kinds that spawn and die",
        "truncated terminated died born rewarded",
    ),
    generated(
        generated_parallel,
        generated_agents_parallel_cust_agentid_v0,
        "the same with tuples for ids",
        "truncated terminated died born rewarded",
    ),
    generated(
        generated_in_turns,
        generated_agents_env_v0,
        "the same as an AEC environment in which one agent acts at a time",
        "truncated terminated died born rewarded told",
    ),
    generated(
        generated_in_turns,
        generated_agents_env_cust_agentid_v0,
        "the same with tuples for ids",
        "truncated terminated died born rewarded told",
    ),
    generated(
        generated_in_turns,
        generated_agents_env_action_mask_obs_v0,
        "action masks in observations",
        "terminated born rewarded told",
        observation_space=MASKED,
    ),
    generated(
        generated_in_turns,
        generated_agents_env_action_mask_info_v0,
        "action masks in infos",
        "truncated terminated born rewarded told",
    ),
]


# Every second case takes turns with one backend in the short form; in the long one, whose steps begin as the short
# form's do, all of them with all backends.
DEAR = {"magent/battle_v4", "CarRacing-v3"}  # seconds each
SHORT = [
    pytest.param(
        backend,
        (case, case.short),
        id=f"{case}-{backend}",
        marks=[pytest.mark.long] if str(case) in DEAR else [],
    )
    for case, backend in zip(CASES[::2], itertools.cycle(BACKENDS), strict=False)
]
LONG = [
    pytest.param(backend, (case, num_steps), id=f"{case}, {num_steps} steps-{backend}", marks=pytest.mark.long)
    for case in CASES
    for num_steps in [max(NUM_STEPS, case.short)]
    for backend in BACKENDS
]


class Played(NamedTuple):
    """A case, and what its raw environments do, one for each of a VecEnv's: so many moments each make the steps."""

    case: Case
    tapes: list[Tape]
    num_steps: int
    num_moments: int


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest) -> Iterator[Played]:
    """The three backends share it: they follow one another, as pytest groups tests by the last of their arguments."""
    case, num_steps = request.param
    seeds = Seeds(SEED, NUM_ENVS)
    tapes = [Tape(case.raw(), seeds[env_id], case.wrap_kwargs.get("max_agents")) for env_id in range(NUM_ENVS)]
    num_moments = num_steps // NUM_ENVS
    while sum(tape.steps(num_moments) for tape in tapes) < num_steps:
        num_moments += 1
    yield Played(case, tapes, num_steps, num_moments)
    for tape in tapes:
        tape.close()


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "played"), [*SHORT, *LONG], indirect=["played"], scope="module")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*render_mode", "ignore:.*[Ii]llegal")
def test_rows_equal_what_the_raw_env_says(backend: str, played: Played) -> None:
    case, tapes, num_steps, num_moments = played
    part = 4 if case.slow and backend != "serial" and num_steps == NUM_STEPS else 1
    before = global_generators()
    with pufferlib.make(
        case.env, backend=backend, num_envs=NUM_ENVS, seed=SEED, env_kwargs=case.env_kwargs,
        wrap_kwargs=case.wrap_kwargs, **BACKENDS[backend],
    ) as vec:  # fmt: skip
        events = compare(vec, tapes, -(-num_moments // part), generated="max_agents" in case.wrap_kwargs)
    for event in case.shows.split():
        assert events[event], event
    least = num_steps if part == 1 else num_steps // part - NUM_ENVS
    assert events["steps"] >= least and events["resets"] > NUM_ENVS
    assert before == global_generators()  # or rows would be equal by chance alone


# ------------------------------------------------------------------------------------------------------- the table


def table() -> str:
    lines = [
        "| environment | what it exercises | arguments of `wrap` | agents | observations → rows | actions → rows |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for case in CASES:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            lines.append("| " + " | ".join(columns(case)) + " |")
    return "\n".join(lines) + "\n"


def columns(case: Case) -> list[str]:
    raw, bounds = case.raw(), case.wrap_kwargs
    if not callable(raw.observation_space):
        observed, acted = [raw.observation_space], [raw.action_space]
    elif "max_agents" in bounds:
        observed, acted = [bounds["observation_space"]], [bounds["action_space"]]
    else:
        observed, acted = (list(map(of, raw.possible_agents)) for of in (raw.observation_space, raw.action_space))
    raw.close()
    with pufferlib.make(case.env, env_kwargs=case.env_kwargs, wrap_kwargs=bounds) as vec:
        agents = f"{vec.agents_per_env} at most" if "max_agents" in bounds else str(vec.agents_per_env)
        rows = [vec.single_observation_space, vec.single_action_space]
    most = "at most " if "max_agents" in bounds else ""
    forms = [most + form(spaces, row) for spaces, row in zip((observed, acted), rows, strict=True)]
    limits = ", ".join(f"`{key}={value}`" if isinstance(value, int) else f"`{key}`" for key, value in bounds.items())
    name, comma, kwargs = str(case).partition(", ")
    return [f"`{name}`{comma}{kwargs}", case.exercises, limits, agents, *forms]


def form(agents: list[Any], row: Any) -> str:
    """Return how spaces read in the table, and that of the rows where it is another."""
    kinds = list(dict.fromkeys(map(describe, agents)))
    text = " and ".join(kinds)
    return text if kinds == [describe(row)] else f"{text} → {describe(row)}"


def describe(space: Any) -> str:
    if isinstance(space, spaces.Box):
        return f"{space.dtype} {space.shape}"
    if isinstance(space, spaces.Discrete):
        return f"Discrete({space.n})"
    if isinstance(space, spaces.MultiDiscrete):
        return f"MultiDiscrete({space.nvec.tolist()})"
    if isinstance(space, spaces.Tuple):
        parts = Counter(map(describe, space.spaces))
        return "Tuple(" + ", ".join(part if count == 1 else f"{count} × {part}" for part, count in parts.items()) + ")"
    if isinstance(space, spaces.Dict):
        return "Dict(" + ", ".join(f"{key}: {describe(part)}" for key, part in space.spaces.items()) + ")"
    return type(space).__name__


@pytest.mark.long
def test_the_docs_have_this_table() -> None:
    assert table() in DOCS.read_text()


if __name__ == "__main__":
    before, head, rest = DOCS.read_text().partition("| environment |")
    DOCS.write_text(before + table() + rest[rest.index("\n\n") + 1 :])
