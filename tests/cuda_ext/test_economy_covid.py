"""economy/covid as an environment: masks, observations, conservation, settings, and its two types of agents."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo.test import parallel_api_test, parallel_seed_test

import pufferlib
from cuda_ext.references.economy_covid import GOVERNOR_SIZE, PLANNER_SIZE, EconomyCovid, masks, observations
from cuda_ext.references.economy_data import load
from cuda_ext.references.economy_model import Model

pytestmark = pytest.mark.beside

CALIFORNIA, NUM_STATES = 4, 51
Array = np.ndarray[Any, Any]


def act(env: EconomyCovid, governors: Any = 0, planner: int = 0) -> tuple[Any, ...]:
    """Play a step. governors: an action for all, or one for each."""
    actions = [*np.broadcast_to(governors, NUM_STATES).tolist(), planner]
    return env.step(dict(zip(env.possible_agents, actions, strict=True)))


def allowed(observations: Any) -> tuple[Any, Any]:
    """Return how many actions a governor may choose, for each governor, and how many the planner may."""
    counts = [int(observation["action_mask"].sum()) for observation in observations.values()]
    return counts[:-1], counts[-1]


def test_the_environment_and_its_equations_have_the_same_defaults() -> None:
    env, model = (inspect.signature(kind).parameters for kind in (EconomyCovid, Model))
    names = set(env) - {"render_mode"}
    assert names == set(model) - {"data"} and len(names) == 10
    assert {name: env[name].default for name in names} == {name: model[name].default for name in names}


def test_governors_are_bound_for_four_weeks_and_the_planner_until_its_next_day() -> None:
    env = EconomyCovid(episode_length=100)
    observed, _ = env.reset(seed=1)
    assert allowed(observed) == ([11] * NUM_STATES, 21)
    first = env.levels.reshape(29, NUM_STATES)[0].copy()
    waits = np.arange(NUM_STATES) % 2  # every second governor does nothing on the first day
    observed, *_ = act(env, np.where(waits, 0, 3), planner=4)
    assert allowed(observed) == (np.where(waits, 11, 1).tolist(), 1)
    expected = np.where(waits, first, 3)
    for _ in range(2, 29):
        observed, *_ = act(env, np.where(waits, 0, 9), planner=20)  # which the masks forbid
        np.testing.assert_array_equal(level(env), expected)
        assert env.subsidy_level == 4
    assert allowed(observed) == ([11] * NUM_STATES, 1)
    for day in range(29, 91):
        observed, *_ = act(env, 10 if day == 29 else 0)
        np.testing.assert_array_equal(level(env), 10)
    assert env.t == 90 and allowed(observed)[1] == 21
    act(env, planner=1)
    assert env.subsidy_level == 1


def level(env: EconomyCovid) -> Any:
    return env.levels.reshape(29, NUM_STATES)[env.t % 29]


def test_without_masks_all_actions_count() -> None:
    env = EconomyCovid(enforce_masks=False)
    observed, _ = env.reset()
    for day, (stringency, subsidy) in enumerate([(3, 4), (9, 0), (0, 7)], 1):
        assert allowed(observed) == ([11] * NUM_STATES, 21)
        observed, *_ = act(env, stringency, subsidy)
        assert (level(env) == (stringency or 9)).all() and env.subsidy_level == subsidy, day


def test_cooldown_and_interval_are_settings() -> None:
    env = EconomyCovid(action_cooldown=3, subsidy_interval=2)
    env.reset()
    levels, subsidies = [], []
    for day in range(1, 8):
        act(env, day, day)
        levels.append(int(level(env)[0]))
        subsidies.append(env.subsidy_level)
    assert (levels, subsidies) == ([1, 1, 1, 4, 4, 4, 7], [1, 1, 3, 3, 5, 5, 7])


def test_all_are_truncated_together_at_the_end() -> None:
    env = EconomyCovid(episode_length=3)
    env.reset(seed=5)
    for day in range(1, 4):
        _, rewards, terminations, truncations, infos = act(env)
        assert list(rewards) == list(infos) == env.possible_agents
        assert not any(terminations.values())
        assert set(truncations.values()) == {day == 3}
    assert env.agents == [] and env.step({}) == ({}, {}, {}, {}, {})
    env.reset()
    assert (env.seed, env.episode, env.t, len(env.agents)) == (5, 1, 0, 52)
    assert not env.product.any() and env.infected[CALIFORNIA] == np.float32(9881.3235)


def test_observations_of_a_script() -> None:
    model = Model(load())
    state, seen = model.starts(1), {}
    states = np.arange(NUM_STATES)
    for day in range(101):
        seen[day] = [part[0] for part in observations(model, state)]
        governors = 1 + (states + 3 * (day // 28)) % 10
        state = model.step(state, governors[np.newaxis], np.array([7 * (day // 90) % 21]))
    expected = {
        0: [0.99962141, 0.00025008270, 0.00012854992, 2.570998e-06, 0, 0.045, 0, 0.2],
        1: [0.99958982, 0.00026379149, np.nan, np.nan, 0, 0.0872923, 0.9332544, 0.2],
        100: [0.98832850, 0.0033178376, 0.0083538983, 1.6707796e-04, 0, 0.0790495, 1.0565659, 0.1],
    }
    for day, values in expected.items():
        governors, planner = seen[day]
        row = governors[CALIFORNIA]
        known = np.isfinite(values)
        np.testing.assert_allclose(row[51:59][known], np.array(values)[known], rtol=2e-6)
        assert row[:51].tolist() == (states == CALIFORNIA).tolist()
        np.testing.assert_array_equal(planner[:306].reshape(6, 51)[:, CALIFORNIA], row[51:57])
        rest = planner[306:]
        columns = [rest[CALIFORNIA], rest[51 + CALIFORNIA], rest[102], rest[103 + CALIFORNIA], *rest[154:]]
        np.testing.assert_array_equal(columns, row[57:])
    last = seen[100][0][CALIFORNIA]
    level_day_100 = 1 + (CALIFORNIA + 3 * (99 // 28)) % 10
    expected_tail = [100 / 540, level_day_100 / 10, 1 - (100 % 90) / 90, 7 / 20, 1]
    np.testing.assert_allclose(last[59:], expected_tail, rtol=1e-6)
    assert seen[90][0][CALIFORNIA][61] == 1  # on a day of choice, not 0
    assert last[58] == np.float32((1 + (CALIFORNIA + 3 * 2) % 10) / 10)  # the level of day 72


def test_vaccines_are_announced_the_day_before() -> None:
    model = Model(load(), first_vaccines=3)
    state = model.starts(1)
    for day in range(5):
        governors, planner = observations(model, state)
        assert (governors[0, :, -1] == (day != 2)).all() and planner[0, -1] == (day != 2)
        assert state.vaccinated.sum(dtype=np.float64) == max(0, day - 2) * 986_190
        state = model.step(state, np.zeros((1, NUM_STATES), int), np.zeros(1, int))


def test_no_person_is_lost() -> None:
    """Susceptible, infected and recovered, with the dead, add up to the population, whatever is chosen."""
    model = Model(load())
    random = np.random.default_rng(1)
    state = model.starts(4)
    before = (state.susceptible + state.infected.astype(np.float64) + state.recovered)[0]
    np.testing.assert_allclose(before, load().population, rtol=1e-6)
    for day in range(400):
        last = state
        state = model.step(state, random.integers(0, 11, (4, NUM_STATES)), random.integers(0, 21, 4))
        total = state.susceptible.astype(np.float64) + state.infected + state.recovered
        np.testing.assert_allclose(total, np.broadcast_to(before, (4, NUM_STATES)), rtol=1e-5)
        assert all((people >= 0).all() for people in state[1:7])
        assert (state.vaccinated >= last.vaccinated).all() and (state.vaccinated <= state.recovered).all()
        assert (state.recovered >= last.recovered).all(), day
    assert state.susceptible.min() == 0 or (state.susceptible < last.susceptible).any()


def test_transmission_below_zero_can_be_clipped() -> None:
    """In five states infected persons become susceptible again at level 10, as in the source, unless clipped."""
    grows = {}
    for clip in (False, True):
        model = Model(load(), clip_transmission=clip, enforce_masks=False)
        state = model.starts(1)
        for _ in range(40):
            last, state = state, model.step(state, np.full((1, NUM_STATES), 10), np.zeros(1, int))
        grows[clip] = np.flatnonzero(state.susceptible > last.susceptible).tolist()
    names = load().state_names[grows[False]].tolist()
    assert names == ["Connecticut", "Massachusetts", "Michigan", "New Jersey", "North Dakota"]
    assert grows[True] == []


def test_a_dollar_of_subsidies_costs_the_planner_three_cents() -> None:
    model = Model(load())
    state = model.starts(2)
    after = model.step(state, np.zeros((2, NUM_STATES), int), np.array([0, 8]))
    paid = 8 / 20 * 1.80130365e10
    assert (after.product[1] - after.product[0]).sum(dtype=np.float64) == pytest.approx(paid, rel=1e-6)
    of_year = 365 * after.product.sum(axis=1, dtype=np.float64) / model.norm[-1]
    of_year[1] -= 365 * 1.03 * paid / model.norm[-1]
    economy = model.indices(state, after).economy
    np.testing.assert_allclose(economy[:, -1], (2 - 1 / of_year) / 365, rtol=1e-7)
    assert (economy[1, :-1] > economy[0, :-1]).all() and economy[1, -1] < economy[0, -1]


def test_environments_of_a_batch_are_as_alone() -> None:
    """Even on different days: the equations look at each environment's own time."""
    model = Model(load(), subsidy_interval=7, action_cooldown=5, first_vaccines=20)
    random = np.random.default_rng(2)
    governors, planner = random.integers(0, 11, (40, 3, NUM_STATES)), random.integers(0, 21, (40, 3))
    alone = []
    for env in range(3):
        state = model.starts(1)
        for day in range(40 - 5 * env):
            state = model.step(state, governors[day, [env]], planner[day, [env]])
        alone.append(state)
    together = type(alone[0])(*(np.concatenate(parts) for parts in zip(*alone, strict=True)))
    after = model.step(together, governors[0], planner[0])
    for env, state in enumerate(alone):
        single = model.step(state, governors[0, [env]], planner[0, [env]])
        expected: list[Any] = [*single, *observations(model, single), *masks(model, single)]
        actual: list[Any] = [*after, *observations(model, after), *masks(model, after)]
        for number, (of_one, of_all) in enumerate(zip(expected, actual, strict=True)):
            np.testing.assert_array_equal(of_one[0], of_all[env], str(number))


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [({"episode_length": 601}, "episode_length=601 is impossible; use an integer from 1 to 600"),
     ({"action_cooldown": 0}, "action_cooldown=0"), ({"subsidy_interval": 1.5}, "subsidy_interval=1.5"),
     ({"vaccines_per_million": 2e6}, "vaccines_per_million"), ({"max_annual_subsidy": -1}, "max_annual_subsidy=-1"),
     ({"health_priority_of_planner": float("nan")}, "health_priority_of_planner"),
     ({"render_mode": "human"}, "render_mode='human' is unknown")],
)  # fmt: skip
def test_impossible_settings_are_refused(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EconomyCovid(**kwargs)


def test_an_impossible_action_names_its_agent() -> None:
    env = EconomyCovid()
    env.reset()
    with pytest.raises(ValueError, match="action 11 of governor_3 is impossible; use 0 to 10"):
        act(env, np.where(np.arange(NUM_STATES) == 3, 11, 0))
    with pytest.raises(ValueError, match="action 21 of planner is impossible; use 0 to 20"):
        act(env, planner=21)
    assert env.t == 0


def test_text_of_a_day() -> None:
    env = EconomyCovid(render_mode="ansi")
    env.reset()
    act(env, 10, planner=5)
    assert env.render() == f"2020-03-23  3,942 deaths, 10.6 % unemployed, subsidies 5\n{'X' * NUM_STATES}"


class WithIntegerMasks(EconomyCovid):
    """With masks of int8, which PettingZoo's test passes on to ``Discrete.sample``; kernels write float32."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        for kind, (observed, acted) in self._spaces.items():
            parts: Any = observed
            mask = spaces.Box(0, 1, parts["action_mask"].shape, np.int8)
            self._spaces[kind] = spaces.Dict({**parts.spaces, "action_mask": mask}), acted

    def _observe(self) -> dict[str, Any]:
        observed = super()._observe()
        return {
            name: {**parts, "action_mask": parts["action_mask"].astype(np.int8)} for name, parts in observed.items()
        }


def test_pettingzoo_accepts_it() -> None:
    parallel_api_test(WithIntegerMasks(episode_length=20), num_cycles=50)
    parallel_seed_test(lambda: WithIntegerMasks(episode_length=20), num_cycles=5)


def test_rows_hold_both_types_of_agents() -> None:
    with pufferlib.make(EconomyCovid, num_envs=2, env_kwargs={"episode_length": 9}, seed=1) as vec:
        assert vec.single_observation_space.shape == (PLANNER_SIZE + 21,)
        assert vec.single_action_space.n == 21  # type: ignore[attr-defined]
        assert vec.agent_names[49:] == ("governor_49", "governor_50", "planner")
        sizes = [layout.shape for layout in vec.observation_layouts]
        assert sizes == [(GOVERNOR_SIZE + 11,)] * NUM_STATES + [(PLANNER_SIZE + 21,)]
        vec.reset()
        observed, *_ = vec.step(np.full(104, 20))  # beyond a governor's actions: the last of them
        levels = np.array(vec.get_attr("levels")).reshape(2, 29, NUM_STATES)[:, 1]
        assert (levels == 10).all() and vec.get_attr("subsidy_level") == [20, 20]
        first = np.asarray(observed)[0]
        assert first[:11].tolist() == [1] + [0] * 10 and not first[GOVERNOR_SIZE + 11 :].any()
        values: Any = vec.observation_layouts[0].unflatten(first[: GOVERNOR_SIZE + 11])
        assert values["observation"][0] == 1
