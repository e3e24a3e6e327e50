"""COVID-19 in the USA: 51 governors choose the stringency of their measures, and a planner chooses subsidies.

A proof of concept for research, not advice on policy. A step is a day, and an episode begins on 2020-03-22.

Agents       "governor_0" to "governor_50", of the 50 states and D.C. in alphabetical order, then "planner".
Actions      A governor, Discrete(11): 0 keeps the level of stringency, 1 (open) to 10 (closed) set it. After a choice
             other than 0, a governor is bound for ``action_cooldown`` days. The planner, Discrete(21): every
             ``subsidy_interval`` days it sets the level of subsidies, from 0 to 20; 20 pays ``max_annual_subsidy``
             dollars a person and year. An action that the mask forbids counts as 0, and leaves the level as it is. With
             ``enforce_masks=False`` all actions count on all days, and the planner sets its level each day.
Infections   Susceptible, infected and recovered persons of each state. The transmission falls with the stringency of 29
             days ago, and differs by state; in five states it is negative at level 10, unless ``clip_transmission``.
             Of the recovered 2 % have died. From day ``first_vaccines`` on, ``vaccines_per_million`` persons are
             vaccinated each day; they count as recovered.
Economy      Changes of stringency of the last 600 days, through five filters that decay exponentially, determine the
             rate of unemployment. A state produces what its workers, less the dead, a tenth of the infected and the
             unemployed, earn in a day; subsidies are added.
Reward       A weighted mean of two indices of the day, each scaled so that it is 0 and 1 on average if all states are
             always open and always closed, or the other way round. The index of health counts new deaths, that of the
             economy is a concave function of product and subsidies. The planner's are of the whole country, and charge
             it 1.03 dollars for a dollar of subsidies. ``health_priority_of_governors`` and
             ``health_priority_of_planner`` multiply the odds of health's weights, which were fitted to real policies.
Ending       All agents are truncated after ``episode_length`` days, up to 600.
Observation  A Dict of "action_mask", 1 where an action is allowed, and "observation", both Boxes of float32, as kernels
             write. A governor observes 64 numbers: a one-hot vector of the state; its susceptible, infected, recovered,
             dead, vaccinated and unemployed persons as shares of the population; the product as a share of the largest
             without subsidies; the level of stringency that determines the next day's transmission, in tens; the time,
             t / ``episode_length``; the level of stringency in tens; days until the next choice of subsidies, as a
             share of ``subsidy_interval``, 1 on the day of a choice; the level of subsidies in twentieths; and 0 on the
             day before the first vaccines arrive, else 1. The planner observes 463: the same without the one-hot
             vector, of all states where they differ.
Start        Always the same: what was recorded on 2020-03-22. Nothing is random.
Seeding      ``reset(seed=s)`` starts episode 0 of seed s, and each later ``reset()`` the next episode.
Arithmetic   See economy_model.py. A kernel can equal it bit for bit.
Source       CovidAndEconomySimulation of the AI Economist (Trott et al., arXiv:2108.02904), which WarpDrive plays, from
             a description of its equations; none of its code was used. economy_covid.md names the sources of the data.
             Otherwise than there, masks are enforced, the levels of real subsidies do not add up from one episode to
             the next, and the planner acts each day if masks are not enforced.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from pettingzoo import ParallelEnv

from cuda_ext.references.economy_data import FIRST_DAY, NUM_FILTERS, NUM_STATES, load
from cuda_ext.references.economy_model import LAG, MAX_DAYS, NUM_CHOICES, NUM_LEVELS, Model, State
from cuda_ext.references.episodes import amount, count
from pufferlib.util.philox import episode_of

__all__ = ["GOVERNOR_SIZE", "PLANNER_SIZE", "EconomyCovid", "masks", "observations", "recorded_actions"]

Floats = NDArray[np.float32]

GOVERNOR_SIZE = NUM_STATES + 13
PLANNER_SIZE = 9 * NUM_STATES + 4
RENDER_MODES = ("ansi",)
# What the kernel reads of the model, under the same names.
CONSTANTS = (
    "population", "per_person", "percent", "transmission_intercept", "transmission_slope", "decay", "cut",
    "filter_weights", "unemployment_bias", "doses", "workers", "per_worker", "most_product", "harm", "yearly",
    "subsidy", "national_subsidy", "health_weight", "least_health", "health_scale", "least_economy", "economy_scale",
    "past_changes",
)  # fmt: skip


class EconomyCovid(ParallelEnv[str, Any, Any]):  # type: ignore[misc]
    """A PettingZoo environment of a country in a pandemic. Raises ValueError for invalid arguments.

    Its state consists of ``seed``, ``episode`` and ``t``, ints, and of one environment's part of the arrays of
    ``economy_model.State``. ``state_names`` has the names of the governors' states.
    """

    metadata: ClassVar = {
        "name": "economy_covid",
        "render_modes": list(RENDER_MODES),
        "render_fps": 8,
        "is_parallelizable": True,
    }

    def __init__(
        self,
        *,
        episode_length: int = 540,
        action_cooldown: int = 28,
        subsidy_interval: int = 90,
        max_annual_subsidy: float = 20_000.0,
        vaccines_per_million: float = 3_000.0,
        first_vaccines: int = 296,
        health_priority_of_governors: float = 0.3,
        health_priority_of_planner: float = 0.45,
        enforce_masks: bool = True,
        clip_transmission: bool = False,
        render_mode: str | None = None,
    ) -> None:
        if render_mode is not None and render_mode not in RENDER_MODES:
            raise ValueError(f'render_mode={render_mode!r} is unknown; use "ansi" or None')
        self.render_mode = render_mode
        self.episode_length = count("episode_length", episode_length, MAX_DAYS)
        self.action_cooldown = count("action_cooldown", action_cooldown)
        self.subsidy_interval = count("subsidy_interval", subsidy_interval)
        self.first_vaccines = count("first_vaccines", first_vaccines)
        self.enforce_masks, self.clip_transmission = bool(enforce_masks), bool(clip_transmission)
        data = load()
        self.model = Model(
            data,
            episode_length=self.episode_length,
            action_cooldown=self.action_cooldown,
            subsidy_interval=self.subsidy_interval,
            first_vaccines=self.first_vaccines,
            max_annual_subsidy=_not_negative("max_annual_subsidy", max_annual_subsidy),
            vaccines_per_million=_not_negative("vaccines_per_million", vaccines_per_million, 1e6),
            health_priority_of_governors=_not_negative("health_priority_of_governors", health_priority_of_governors),
            health_priority_of_planner=_not_negative("health_priority_of_planner", health_priority_of_planner),
            enforce_masks=self.enforce_masks,
            clip_transmission=self.clip_transmission,
        )
        self.num_states, self.num_sums, self.num_past_levels = NUM_STATES, NUM_FILTERS * NUM_STATES, LAG * NUM_STATES
        for name in CONSTANTS:
            setattr(self, name, getattr(self.model, name))
        for name, start in self.model.start._asdict().items():
            setattr(self, f"start_{name}", start[0])
        self.state_names: list[str] = data.state_names.tolist()
        self.possible_agents = [f"governor_{state}" for state in range(NUM_STATES)] + ["planner"]
        self.agents: list[str] = []
        self._spaces = {
            kind: (_observed(num_actions, size), spaces.Discrete(num_actions))
            for kind, num_actions, size in (
                ("governor", NUM_LEVELS + 1, GOVERNOR_SIZE),
                ("planner", NUM_CHOICES, PLANNER_SIZE),
            )
        }
        self.seed: int | None = None
        self.episode = 0
        self._take(self.model.start)

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self._spaces[agent.partition("_")[0]][0]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self._spaces[agent.partition("_")[0]][1]

    def reset(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode and return (observations, infos), dicts with one entry per agent.

        seed: from 0 to 2**32 - 1; it changes nothing but ``seed`` and ``episode``. options: ignored.
        """
        self.seed, self.episode = episode_of(seed, self.seed, self.episode)
        self._take(self.model.start)
        self.agents = list(self.possible_agents)
        return self._observe(), {name: {} for name in self.agents}

    def step(
        self, actions: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        if not self.agents:
            return {}, {}, {}, {}, {}
        chosen = self._chosen(actions)
        before = self._state()
        after = self.model.step(before, chosen[:-1][np.newaxis], chosen[-1:])
        rewards = self.model.rewards(self.model.indices(before, after))[0]
        self._take(after)
        late = self.t >= self.episode_length
        names = self.agents
        if late:
            self.agents = []
        return (
            self._observe(),
            dict(zip(names, rewards.tolist(), strict=True)),
            dict.fromkeys(names, False),
            dict.fromkeys(names, late),
            {name: {} for name in names},
        )

    def render(self) -> Any:
        """Return the day, deaths, unemployment, subsidies and all levels as a str for "ansi", else None."""
        if self.render_mode != "ansi":
            return None
        state = self._state()
        day = np.datetime64("2020-03-22") + self.t
        percent = 100 * state.unemployed.sum(dtype=np.float64) / self.model.population.sum(dtype=np.float64)
        levels = "".join("0123456789X"[level] for level in state.level()[0])
        return (
            f"{day}  {state.deaths().sum(dtype=np.float64):,.0f} deaths, {percent:.1f} % unemployed, "
            f"subsidies {self.subsidy_level}\n{levels}"
        )

    def _state(self) -> State:
        arrays: Any = (np.asarray(getattr(self, name))[np.newaxis] for name in State._fields)
        return State(*arrays)

    def _take(self, state: State) -> None:
        """Set the attributes that are this environment's state."""
        for name, array in state._asdict().items():
            setattr(self, name, array[0].copy() if array.ndim > 1 else int(array[0]))

    def _chosen(self, actions: Mapping[str, Any]) -> NDArray[np.int64]:
        """Return the actions of all agents, (52,). Raises ValueError if one is out of range."""
        chosen = np.array([int(actions[name]) for name in self.agents])
        wrong = (chosen < 0) | (chosen > np.append(np.full(NUM_STATES, NUM_LEVELS), NUM_CHOICES - 1))
        if wrong.any():
            agent = self.agents[wrong.argmax()]
            most = self.action_space(agent).n - 1  # type: ignore[attr-defined]
            raise ValueError(f"action {chosen[wrong.argmax()]} of {agent} is impossible; use 0 to {most}")
        return chosen

    def _observe(self) -> dict[str, Any]:
        state = self._state()
        parts = zip(masks(self.model, state), observations(self.model, state), strict=True)
        (governor_masks, governors), (planner_mask, planner) = parts
        rows = [*zip(governor_masks[0], governors[0], strict=True), (planner_mask[0], planner[0])]
        return {
            name: {"action_mask": mask, "observation": observation}
            for name, (mask, observation) in zip(self.possible_agents, rows, strict=True)
        }


def masks(model: Model, state: State) -> tuple[Floats, Floats]:
    """Return which actions of the next step count, 1 or 0: governors' (num_envs, 51, 11), planners' (num_envs, 21)."""
    num_envs = len(state.t)
    governors, planner = np.ones((num_envs, NUM_STATES, NUM_LEVELS + 1)), np.ones((num_envs, NUM_CHOICES))
    if model.enforce_masks:
        governors[:, :, 1:] = (state.t[:, np.newaxis] >= state.bound_until)[:, :, np.newaxis]
        planner[:, 1:] = (state.t % model.subsidy_interval == 0)[:, np.newaxis]
    return governors.astype(np.float32), planner.astype(np.float32)


def observations(model: Model, state: State) -> tuple[Floats, Floats]:
    """Return observations without masks, float32: governors' (num_envs, 51, 64), planners' (num_envs, 463)."""
    num_envs, f = len(state.t), np.float32
    people = (state.susceptible, state.infected, state.recovered, state.deaths(), state.vaccinated, state.unemployed)
    shares = np.stack([persons / model.population for persons in people], axis=1)  # (num_envs, 6, 51)
    product = state.product / model.most_product
    lagged, level = (state.level(days).astype(f) / f(NUM_LEVELS) for days in (LAG - 1, 0))
    time = state.t.astype(f) / f(model.episode_length)
    interval = model.subsidy_interval
    until_subsidy = f(1) - (state.t % interval).astype(f) / f(interval)
    subsidy = state.subsidy_level.astype(f) / f(NUM_CHOICES - 1)
    until_vaccines = (state.t != model.first_vaccines - 1).astype(f)

    governors = np.zeros((num_envs, NUM_STATES, GOVERNOR_SIZE), f)
    governors[:, :, :NUM_STATES] = np.eye(NUM_STATES)
    governors[:, :, NUM_STATES : NUM_STATES + 6] = shares.swapaxes(1, 2)
    columns = (product, lagged, time, level, until_subsidy, subsidy, until_vaccines)
    for number, values in enumerate(columns, NUM_STATES + 6):
        governors[:, :, number] = values if values.ndim > 1 else values[:, np.newaxis]

    parts = [shares.reshape(num_envs, -1), product, lagged, time, level, until_subsidy, subsidy, until_vaccines]
    planner = np.concatenate([part.reshape(num_envs, -1) for part in parts], axis=1)
    return governors, planner


def recorded_actions(model: Model) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return what was done from 2020-03-22 to 2021-06-01, for ``enforce_masks=False``.

    The levels of the governors, (437, 51), are those of the day before, as in the run to which the model was fitted.
    The levels of subsidies, (437,), spread each payment over 90 days from the day after the decision.
    """
    data = load()
    governors = data.levels[FIRST_DAY:].astype(np.int64)
    planner = np.zeros(len(governors), np.int64)
    for day, dollars in zip(data.subsidy_days, data.subsidies, strict=True):
        first = day - FIRST_DAY
        planner[first : first + 90] += round(dollars / (90 * model.national_subsidy[0]))
    return governors, planner


def _not_negative(name: str, value: Any, most: float = 1e12) -> float:
    """Return a number as a float. Raises ValueError unless it is from 0 to ``most``."""
    amount(name, value, 0, most)
    return float(value)


def _observed(num_actions: int, size: int) -> spaces.Dict:
    return spaces.Dict(
        {
            "action_mask": spaces.Box(0, 1, (num_actions,), np.float32),
            "observation": spaces.Box(-np.inf, np.inf, (size,), np.float32),
        }
    )
