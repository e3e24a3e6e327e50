"""The equations of economy/covid, for many environments at once; economy_covid.py describes them.

Arrays of the state are float32, and the arithmetic is float64 in the order of operations written here, so that a kernel
can equal it bit for bit. Sums over states go from the first to the last.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cuda_ext.references.economy_data import FIRST_DAY, NUM_FILTERS, NUM_STATES, EconomyData
from cuda_ext.references.exponentials import exponential, logarithm

__all__ = ["MAX_DAYS", "NUM_CHOICES", "NUM_LEVELS", "Indices", "Model", "State"]

Array = NDArray[Any]

NUM_LEVELS, NUM_CHOICES = 10, 21  # of stringency; of subsidies, no subsidy among them
LAG = 29  # days until a level of stringency changes the transmission
MAX_DAYS = 600  # after which a change of level no longer affects unemployment
GAMMA = np.float32(1 / 14)  # share of the infected that recovers in a day
MORTALITY = 0.02  # share of the recovered that has died
WORKING_AGE, TOO_SICK = 0.6, 0.1  # shares of the population and of the infected
GDP_PER_PERSON, VALUE_OF_LIFE = 65_300.0, 1e7  # dollars
COST_OF_SUBSIDIES = 1.03  # with interest
DAYS_PER_YEAR = 365.0
LINEAR = np.float32(20)  # from here on softplus(x) is x


class State(NamedTuple):
    """The states of num_envs environments. Arrays of the 51 states of the country are in alphabetical order."""

    t: NDArray[np.int32]  # (num_envs,) days since the start
    susceptible: NDArray[np.float32]  # (num_envs, 51) persons, as in the next four
    infected: NDArray[np.float32]
    recovered: NDArray[np.float32]  # with the dead and the vaccinated
    vaccinated: NDArray[np.float32]
    unemployed: NDArray[np.float32]
    product: NDArray[np.float32]  # (num_envs, 51) dollars of this day, with subsidies; 0 at the start
    memory: NDArray[np.float32]  # (num_envs, 5 * 51) decaying sums of past changes of level
    levels: NDArray[np.uint8]  # (num_envs, 29 * 51) the level of day t - k in the line (t - k) % 29
    bound_until: NDArray[np.int32]  # (num_envs, 51) a governor can act from the step after this day on
    subsidy_level: NDArray[np.int32]  # (num_envs,) 0 to 20

    def deaths(self) -> NDArray[np.float32]:
        """Return the cumulative deaths, (num_envs, 51)."""
        alive = self.recovered.astype(np.float64) - self.vaccinated
        return (MORTALITY * alive).astype(np.float32)

    def level(self, days_ago: int = 0) -> NDArray[np.uint8]:
        """Return the levels of stringency of day t - days_ago, (num_envs, 51). days_ago: 0 to 28."""
        lines = self.levels.reshape(-1, LAG, NUM_STATES)
        return lines[np.arange(len(lines)), (self.t + (LAG - days_ago)) % LAG]


class Indices(NamedTuple):
    """The terms of the rewards, (num_envs, 52), float64: of the states, then of the country."""

    health: Array
    economy: Array


class Model:
    """The constants of the equations, computed from data and settings. Settings: see ``EconomyCovid``.

    Arrays have a number for each of the 51 states, or of 52 numbers for the country as well.
    """

    def __init__(
        self,
        data: EconomyData,
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
    ) -> None:
        self.episode_length, self.action_cooldown = episode_length, action_cooldown
        self.subsidy_interval, self.first_vaccines = subsidy_interval, first_vaccines
        self.enforce_masks, self.clip_transmission = enforce_masks, clip_transmission

        persons = data.population.astype(np.float64)
        self.population = data.population.astype(np.float32)
        self.per_person, self.percent = 1 / persons, persons / 100  # products are faster than quotients
        self.transmission_intercept, self.transmission_slope = data.transmission_intercept, data.transmission_slope
        self.decay = np.exp(-1 / data.filter_days.astype(np.float64))  # (5,) in a day
        self.cut = np.exp(-MAX_DAYS / data.filter_days.astype(np.float64))  # (5,)
        self.filter_weights = np.ascontiguousarray(data.filter_weights.T.astype(np.float64))  # (5, 51)
        self.unemployment_bias = data.unemployment_bias
        self.doses = np.floor(persons * vaccines_per_million / 1e6).astype(np.float32)  # a day

        # Unemployed persons if all states had always been open
        open_unemployed = (np.log(2.0) + data.unemployment_bias) * persons / 100
        workforce = np.trunc(WORKING_AGE * persons.sum() - open_unemployed.sum())
        per_worker = np.float64(np.float32(GDP_PER_PERSON / (workforce / persons.sum()) / DAYS_PER_YEAR))
        self.workers = WORKING_AGE * persons
        most = ((self.workers - open_unemployed) * per_worker).astype(np.float32)  # dollars of a day
        self.most_product = most
        yearly = (DAYS_PER_YEAR * most.astype(np.float64)).astype(np.float32).astype(np.float64)
        self.norm = np.append(yearly, yearly.sum())  # dollars of a year
        self.harm, self.yearly = -VALUE_OF_LIFE / self.norm, DAYS_PER_YEAR / self.norm  # of a death, and of a dollar
        self.per_worker = np.array([per_worker])
        self.subsidy = persons * max_annual_subsidy / DAYS_PER_YEAR / (NUM_CHOICES - 1)  # dollars a day, for each level
        self.national_subsidy = np.array([self.subsidy.sum()])

        weight = data.health_weight.astype(np.float64)
        priority = np.append(np.full(NUM_STATES, health_priority_of_governors), health_priority_of_planner)
        odds = priority * weight / (1 - weight)
        self.health_weight = odds / (1 + odds)
        self.least_health, self.least_economy, most_health, most_economy = (
            bound.astype(np.float64)
            for bound in (data.least_health, data.least_economy, data.most_health, data.most_economy)
        )
        self.health_scale = 1 / (most_health - self.least_health + 1e-10)
        self.economy_scale = 1 / (most_economy - self.least_economy + 1e-10)

        before = data.levels[: FIRST_DAY + 1]
        changes = np.diff(before.astype(np.int8), axis=0, prepend=np.int8(1))
        self.past_changes = changes.astype(np.float32)  # (82, 51) of level, on the days up to the first
        self.start = self._start(data)

    def _start(self, data: EconomyData) -> State:
        """Return the state of one environment at the start of an episode."""
        memory = np.zeros((NUM_FILTERS, NUM_STATES))
        for change in self.past_changes:
            memory = memory * self.decay[:, np.newaxis] + change
        lines = np.zeros((LAG, NUM_STATES), np.uint8)
        for day in range(1 - LAG, 1):
            lines[day % LAG] = data.levels[FIRST_DAY + day]
        no_one = np.zeros(NUM_STATES, np.float32)
        arrays: Any = {
            "t": np.int32(0),
            "susceptible": data.susceptible,
            "infected": data.infected,
            "recovered": data.recovered,
            "vaccinated": no_one,
            "unemployed": data.unemployed,
            "product": np.zeros(NUM_STATES, np.float32),
            "memory": memory.astype(np.float32).ravel(),
            "levels": lines.ravel(),
            "bound_until": np.zeros(NUM_STATES, np.int32),
            "subsidy_level": np.int32(0),
        }
        return State(**{name: np.asarray(array)[np.newaxis] for name, array in arrays.items()})

    def starts(self, num_envs: int) -> State:
        """Return the states of ``num_envs`` environments at the start of an episode."""
        copies: Any = (np.repeat(array, num_envs, axis=0) for array in self.start)
        return State(*copies)

    def step(self, before: State, governors: Array, planner: Array) -> State:
        """Return the states a day later.

        governors: (num_envs, 51), 0 to 10. planner: (num_envs,), 0 to 20.
        """
        t = before.t + 1
        level, bound_until, subsidy_level = self._decided(before, t, governors, planner)
        slot = t % LAG
        lines = before.levels.reshape(-1, LAG, NUM_STATES).copy()
        envs = np.arange(len(lines))
        lagged = lines[envs, slot]  # of day t - 29
        change = level.astype(np.float64) - before.level()
        lines[envs, slot] = level

        susceptible, infected, recovered, vaccinated = self._infections(before, t, lagged)
        memory = self._memory(before, t, change)
        after = State(
            t, susceptible, infected, recovered, vaccinated, before.unemployed, before.product,
            memory.reshape(len(lines), -1), lines.reshape(len(lines), -1), bound_until, subsidy_level,
        )  # fmt: skip
        unemployed = self._unemployed(memory)
        return after._replace(unemployed=unemployed, product=self._product(after, unemployed))

    def _decided(self, before: State, t: Array, governors: Array, planner: Array) -> tuple[Array, Array, Array]:
        """Return the levels of stringency, until when governors are bound, and the level of subsidies."""
        due = t[:, np.newaxis] > before.bound_until
        bound = before.bound_until + np.where(due, np.where(governors != 0, self.action_cooldown, 1), 0)
        heard = due | (not self.enforce_masks)
        level = np.where(heard & (governors != 0), governors, before.level())
        decides = ((t - 1) % self.subsidy_interval == 0) | (not self.enforce_masks)
        subsidy_level = np.where(decides, planner, before.subsidy_level)
        return level.astype(np.uint8), bound.astype(np.int32), subsidy_level.astype(np.int32)

    def _infections(self, before: State, t: Array, lagged: Array) -> tuple[Array, Array, Array, Array]:
        """Return the susceptible, infected, recovered and vaccinated persons after a day."""
        beta = self.transmission_intercept + self.transmission_slope * lagged.astype(np.float32)
        if self.clip_transmission:
            beta = np.maximum(beta, np.float32(0))
        s, i = before.susceptible.astype(np.float64), before.infected.astype(np.float64)
        available = np.where(t[:, np.newaxis] >= self.first_vaccines, self.doses.astype(np.float64), 0.0)
        doses = np.minimum(available, s)
        missed = 1 - np.minimum(1, available / (s + 1e-10))  # share of the susceptible that gets no dose
        new = beta * (s * self.per_person * i) * missed
        gone = GAMMA.astype(np.float64) * i + doses
        fewer = -new - doses
        states = (s + fewer, i + (-fewer - gone), before.recovered + gone, before.vaccinated + doses)
        susceptible, infected, recovered, vaccinated = (np.maximum(0, state).astype(np.float32) for state in states)
        return susceptible, infected, recovered, vaccinated

    def _memory(self, before: State, t: Array, change: Array) -> NDArray[np.float32]:
        """Return the decaying sums of changes, (num_envs, 5, 51), without those that are MAX_DAYS old."""
        day = t - (MAX_DAYS - FIRST_DAY)
        known = (day >= 0)[:, np.newaxis]
        old = np.where(known, self.past_changes[np.clip(day, 0, FIRST_DAY)], 0).astype(np.float64)
        memory = before.memory.reshape(-1, NUM_FILTERS, NUM_STATES)
        decay, cut = self.decay[:, np.newaxis], self.cut[:, np.newaxis]
        sums = decay * memory + change[:, np.newaxis] - cut * old[:, np.newaxis]
        return sums.astype(np.float32)

    def _unemployed(self, memory: NDArray[np.float32]) -> NDArray[np.float32]:
        signal = self.filter_weights[0] * memory[:, 0]
        for number in range(1, NUM_FILTERS):
            signal = signal + self.filter_weights[number] * memory[:, number]
        x = signal.astype(np.float32)
        softplus = np.where(x > LINEAR, x, logarithm(np.float32(1) + exponential(np.minimum(x, LINEAR))))
        rate = softplus.astype(np.float64) + self.unemployment_bias
        persons: Array = rate * self.percent
        return persons.astype(np.float32)

    def _product(self, state: State, unemployed: Array) -> NDArray[np.float32]:
        """Return the dollars that are earned or paid as subsidies in a day."""
        unable = TOO_SICK * state.infected.astype(np.float64) + state.deaths()
        working = np.maximum(0, self.workers - WORKING_AGE * unable - unemployed)
        dollars: Array = working * self.per_worker + state.subsidy_level[:, np.newaxis] * self.subsidy
        return dollars.astype(np.float32)

    def indices(self, before: State, after: State) -> Indices:
        """Return the indices of a day, from the states before and after it."""
        new_deaths = _with_sum(after.deaths().astype(np.float64) - before.deaths())
        dollars = _with_sum(after.product.astype(np.float64))
        dollars[:, -1] -= COST_OF_SUBSIDIES * (after.subsidy_level * self.national_subsidy)
        of_year = np.clip(dollars * self.yearly, 0.1, 3)
        return Indices(new_deaths * self.harm, (2 - 1 / of_year) * (1 / DAYS_PER_YEAR))

    def rewards(self, indices: Indices) -> Array:
        """Return the rewards of the governors, then of the planner, float32 (num_envs, 52)."""
        health = (indices.health - self.least_health) * self.health_scale
        economy = (indices.economy - self.least_economy) * self.economy_scale
        rewards: Array = self.health_weight * health + (1 - self.health_weight) * economy
        return rewards.astype(np.float32)


def _with_sum(values: Array) -> Array:
    """Return values of the states, (num_envs, 51), with their sum as one more column."""
    return np.concatenate([values, np.add.accumulate(values, axis=1)[:, -1:]], axis=1)
