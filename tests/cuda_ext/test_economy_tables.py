"""Runs of economy/covid by fixed policies, next to numbers of a separate program, and next to what happened."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cuda_ext.references.economy_covid import recorded_actions
from cuda_ext.references.economy_data import FIRST_DAY, load
from cuda_ext.references.economy_model import Model

pytestmark = pytest.mark.beside

Array = np.ndarray[Any, Any]

POLICIES = ("hold", "open", "closed", "mid", "closed180", "script", "open_max", "closed_max")
STATES = {"CA": 4, "FL": 9, "NY": 32, "TX": 43, "WY": 50}
PEOPLE = 328_737_916
# By policy: deaths of days 100, 284, 365 and the last; infected of 30, 100, 365 and the last; susceptible of the last.
PERSONS = """
hold      179165.2  739901.1  969195.5 1025541.8 1510347.1  1388817.3 1086139.6    824.3  43820369
open     1186765.8 4496618.2 4649247.5 4662527.1 1646663.9 20259914.0  365162.5     24.0     14304
closed     86873.7   91744.7   92633.5   92961.6 1440067.3    66551.2    5176.0     12.7  82473312
mid       306304.8 1396318.4 1741189.1 1811709.2 1554843.2  3357279.5 1428139.2    929.9  23431051
closed180  86873.7   93427.1  175069.2  576992.6 1440067.3    66551.2 1813147.4  94377.2  61582466
script    421098.4 1053556.7 1300759.0 1362438.0 1593899.8  2331183.7 1225673.1    961.8  36126631
real      136410.6  325153.0  518850.6  610853.6 1510347.1   493037.1 1438124.6 392351.7 157763894
"""
# By policy: percent of unemployed of days 1, 30, 100, 365, the last, and the mean; 1e12 dollars of product, with
# subsidies, and of subsidies; the sums of rewards of a governor, on average over states, and of the planner.
ECONOMY = """
hold        7.99863 10.46961 10.46591 6.84634 5.75958  8.07262 29.493642 0.000000 431.5896 437.9824
open        5.72318  4.53027  4.12906 4.17601 4.19180  4.21833 31.349853 0.000000 379.9697 369.7752
closed     10.56735 16.07948 16.38902 9.47622 7.34967 11.76764 27.457752 0.000000 356.1933 384.3920
mid         7.78898  9.39499  9.13247 6.19771 5.36364  7.22394 32.345848 2.431760 546.2200 422.1273
closed180  10.56735 16.07948 16.38902 3.55386 3.61996  7.95686 29.609308 0.000000 435.7689 445.7014
script      7.94578  9.61643  9.72009 7.04263 6.36511  7.91384 32.955547 3.404464 571.6928 423.8835
open_max    5.72318  4.53027  4.12906 4.17601 4.19180  4.21833 41.076893 9.727040 728.2212 359.7205
closed_max 10.56735 16.07948 16.38902 9.47622 7.34967 11.76764 37.184792 9.727040 784.9493 371.0894
real        7.99863 12.52314 10.58374 5.95997 4.73674  8.12614 24.654267 0.779064 395.1356 361.0163
"""
# By policy: rewards of days 1, 30, 100 and 365, of a governor, on average over states, and of the planner.
REWARDS = """
hold       0.873383 0.745590 0.712936 0.856811 0.872530 0.704807  0.711579 0.871174
open       0.970793 0.987222 0.255613 0.935063 0.960504 0.940871 -0.061442 0.985804
closed     0.703205 0.366021 0.393332 0.795212 0.763485 0.423127  0.484573 0.830486
mid        1.084279 0.988413 0.929612 1.056539 0.875816 0.746132  0.655981 0.866672
closed180  0.703205 0.366021 0.393332 0.971298 0.763485 0.423127  0.484573 0.960449
script     0.840488 0.738724 0.992714 1.118277 0.874661 0.742091  0.679386 0.846207
open_max   1.624593 1.622910 0.896488 1.582053 0.941343 0.922509 -0.079902 0.967130
closed_max 1.476605 1.280896 1.309951 1.528091 0.740362 0.393760  0.454810 0.808348
real       0.873383 0.759727 0.888675 1.150300 0.872530 0.605669  0.751373 0.882713
"""
# By policy and state: deaths of days 100, 365 and the last; percent of unemployed of days 1, 30, 100, 365 and the last;
# the sum of rewards.
BY_STATE = """
real CA        3624.19  52636.68  63386.48  9.2266 13.8934 13.7343  8.5878 7.3254 368.0184
real FL        1557.28  19588.16  25765.02  8.6035 12.7727 11.5939  5.6963 4.1256 381.5211
real NY       63272.81  82058.16  82250.44  9.1936 13.8144 14.0209  6.6559 4.2583 343.2660
real TX        1870.14  35850.94  46408.78  6.9420 12.3751  9.4765  5.4868 4.6408 396.8156
real WY           2.41    147.76    234.00  4.5561  6.4320  6.8999  5.5595 4.7701 443.3611
closed CA      2397.45   2733.52   2733.56  9.5594 16.2709 18.3724 11.8397 9.3362 364.0876
closed FL      1260.66   2365.59   2398.58 11.0292 15.4201 15.5273  9.5524 7.5155 340.0628
closed NY     44648.28  45566.06  45566.06  9.8720 16.5331 17.9873 10.7751 8.2869 297.9621
closed TX      1216.37   1535.15   1536.08  9.1350 15.1159 15.0193  7.9697 6.3652 372.0107
closed WY         1.31      1.40      1.40  3.9702  7.8641  9.8155  7.1997 6.2383 465.1742
open CA       48819.11 610158.81 610168.06  8.0714  5.8349  4.9688  4.9687 5.0052 381.0864
open FL        3229.30 171412.14 176677.03  5.7366  4.8670  4.5751  4.6091 4.6279 329.4201
open NY      285932.06 336018.28 336018.28  6.8400  4.5988  3.8062  3.8457 3.8833 456.4595
open TX        8106.20 364013.47 364414.31  5.3828  4.8272  4.6324  4.6686 4.6794 379.1404
open WY          25.60   8488.98   8492.42  5.5947  4.7713  4.4726  4.4807 4.4902 293.6286
script CA      6601.62 221929.92 237974.28  8.7292 10.9980  7.9049  4.8469 7.7845 510.3296
script FL      1561.01  20933.68  24745.06 11.0292 10.9031 13.0623  8.8467 5.9144 566.6453
script NY    170406.03 217515.39 217522.89  7.5060  8.2148  9.0080  9.4368 9.5461 533.7418
script TX      2673.93  45847.07  55566.88  6.5231  9.3617  8.8003  8.6571 4.2766 588.4659
script WY        12.13    241.76    369.76  5.5947  4.2796  7.7762  4.7943 4.5652 632.6275
closed180 CA   2397.45  23448.84 165775.84  9.5594 16.2709 18.3724  4.3772 4.4143 414.6976
closed180 FL   1260.66   5467.11  10003.54 11.0292 15.4201 15.5273  3.9777 4.0426 431.7074
closed180 NY  44648.28  64464.25 142823.64  9.8720 16.5331 17.9873  3.2528 3.2919 398.0328
closed180 TX   1216.37   4376.71  16288.44  9.1350 15.1159 15.0193  4.0069 4.1195 442.9357
closed180 WY      1.31      2.67     20.84  3.9702  7.8641  9.8155  3.9421 4.0700 511.6802
"""
# Day; deaths, simulated with the recorded policies, and recorded; percent of unemployed, the same.
HISTORY = """
 30  46115  46940 12.523 14.593
 60  98028  96343 12.624 12.944
100 136411 127992 10.584 11.160
150 169081 172460  8.972  8.630
200 206032 212342  7.265  7.106
250 262714 268192  6.890  6.828
284 325153 351197  6.846  6.695
320 411260 460316  6.635  6.260
365 518851 541270  5.960  6.098
404 582495 573572  5.190  6.014
"""


class Run:
    """One run: deaths, infected and unemployed persons, (days, 51); product, subsidies and susceptible of the country;
    rewards, (days, 52); and levels of stringency and of subsidies. Days count from 1."""

    def __init__(self, days: list[dict[str, Array]], env: int) -> None:
        columns = {name: np.array([day[name][env] for day in days], np.float64) for name in days[0]}
        self.deaths, self.infected, self.unemployed = (columns[name] for name in ("deaths", "infected", "unemployed"))
        self.susceptible, self.product = (columns[name].sum(axis=1) for name in ("susceptible", "product"))
        self.subsidies, self.rewards, self.levels = (columns[name] for name in ("subsidies", "rewards", "levels"))
        self.subsidy_levels = columns["subsidy_levels"]


def played(model: Model, governors: Array, planners: Array) -> list[Run]:
    """Return the runs of tables of actions, (days, runs, 51) and (days, runs)."""
    state, days = model.starts(governors.shape[1]), []
    for of_governors, of_planners in zip(governors, planners, strict=True):
        after = model.step(state, of_governors, of_planners)
        rewards = model.rewards(model.indices(state, after))
        state = after
        days.append(
            {
                **{name: getattr(state, name) for name in ("infected", "unemployed", "susceptible", "product")},
                "deaths": state.deaths(),
                "levels": state.level(),
                "rewards": rewards,
                "subsidies": state.subsidy_level * model.national_subsidy,
                "subsidy_levels": state.subsidy_level,
            }
        )
    return [Run(days, env) for env in range(governors.shape[1])]


@pytest.fixture(scope="module")
def runs() -> dict[str, Run]:
    t, states = np.arange(540), np.arange(51)
    governors, planners = np.zeros((540, len(POLICIES), 51), int), np.zeros((540, len(POLICIES)), int)
    fixed = {"open": 1, "closed": 10, "mid": 5, "open_max": 1, "closed_max": 10}
    for policy, level in fixed.items():
        governors[:, POLICIES.index(policy)] = level
    governors[:, POLICIES.index("closed180")] = np.where(t < 180, 10, 1)[:, np.newaxis]
    governors[:, POLICIES.index("script")] = 1 + (states + 3 * (t // 28)[:, np.newaxis]) % 10
    for policy, levels in {"mid": 5, "open_max": 20, "closed_max": 20, "script": 7 * (t // 90) % 21}.items():
        planners[:, POLICIES.index(policy)] = levels
    result = dict(zip(POLICIES, played(Model(load()), governors, planners), strict=True))
    model = Model(load(), enforce_masks=False)
    recorded, subsidies = recorded_actions(model)
    result["real"] = played(model, recorded[:, np.newaxis], subsidies[:, np.newaxis])[0]
    return result


def rows(table: str, num_names: int = 1) -> list[Any]:
    lines = [line.split() for line in table.strip().splitlines()]
    return [pytest.param(*line[:num_names], np.array(line[num_names:], float), id=line[0]) for line in lines]


def at(days: list[int], values: Array) -> Array:
    return values[[day - 1 if day > 0 else day for day in days]]


LAST = -1
WITHIN: dict[str, Any] = dict(rtol=5e-5, atol=0.06)  # the numbers are rounded to a tenth


@pytest.mark.parametrize(("policy", "expected"), rows(PERSONS))
def test_persons_of_the_country(runs: dict[str, Run], policy: str, expected: Array) -> None:
    run = runs[policy]
    np.testing.assert_allclose(at([100, 284, 365, LAST], run.deaths.sum(axis=1)), expected[:4], **WITHIN)
    # Infections regrow exponentially from a few; those of states may differ by 5e-3.
    np.testing.assert_allclose(at([30, 100, 365, LAST], run.infected.sum(axis=1)), expected[4:8], rtol=1e-4, atol=0.6)
    np.testing.assert_allclose(run.susceptible[LAST], expected[8], rtol=5e-5)


@pytest.mark.parametrize(("policy", "expected"), rows(ECONOMY))
def test_economy_and_rewards_of_the_country(runs: dict[str, Run], policy: str, expected: Array) -> None:
    run = runs[policy]
    percent = 100 * run.unemployed.sum(axis=1) / PEOPLE
    np.testing.assert_allclose([*at([1, 30, 100, 365, LAST], percent), percent.mean()], expected[:6], rtol=1e-5)
    np.testing.assert_allclose([run.product.sum() / 1e12, run.subsidies.sum() / 1e12], expected[6:8], rtol=1e-6)
    sums = run.rewards.sum(axis=0)
    np.testing.assert_allclose([sums[:51].mean(), sums[51]], expected[8:], rtol=5e-5)


@pytest.mark.parametrize(("policy", "expected"), rows(REWARDS))
def test_rewards_of_days(runs: dict[str, Run], policy: str, expected: Array) -> None:
    rewards = at([1, 30, 100, 365], runs[policy].rewards)
    np.testing.assert_allclose(rewards[:, :51].mean(axis=1), expected[:4], atol=1e-4, rtol=0)
    np.testing.assert_allclose(rewards[:, 51], expected[4:], atol=1e-4, rtol=0)


@pytest.mark.parametrize(("policy", "state", "expected"), rows(BY_STATE, 2))
def test_states(runs: dict[str, Run], policy: str, state: str, expected: Array) -> None:
    run, number = runs[policy], STATES[state]
    np.testing.assert_allclose(at([100, 365, LAST], run.deaths[:, number]), expected[:3], rtol=1e-3, atol=0.05)
    percent = 100 * run.unemployed[:, number] / load().population[number]
    np.testing.assert_allclose(at([1, 30, 100, 365, LAST], percent), expected[3:8], rtol=1e-5, atol=5e-5)
    np.testing.assert_allclose(run.rewards[:, number].sum(), expected[8], rtol=5e-5)


def test_changes_of_level_end_after_600_days(runs: dict[str, Run]) -> None:
    """Four states had a change in the first days of 2020; after t = 525 it no longer counts."""
    expected = {
        49: (6.9352, 6.9243, 6.3636), 1: (7.8248, 7.4692, 7.3600), 17: (4.9613, 4.9561, 4.6856),
        25: (6.5015, 6.4942, 6.0731),
    }  # fmt: skip
    for state, rates in expected.items():
        percent = 100 * runs["closed"].unemployed[:, state] / load().population[state]
        np.testing.assert_allclose(at([525, 526, 540], percent), rates, rtol=1e-5, atol=5e-5)


def test_levels_of_a_script_under_cooldowns(runs: dict[str, Run]) -> None:
    run = runs["script"]
    assert at([1, 29, 57, 540], run.levels[:, STATES["CA"]]).tolist() == [5, 8, 1, 2]
    assert at([28, 56], run.levels[:, STATES["CA"]]).tolist() == [5, 8]
    assert at([1, 91, 181, 271, 361, 451], run.subsidy_levels).tolist() == [0, 7, 14, 0, 7, 14]
    assert at([90, 180], run.subsidy_levels).tolist() == [0, 7]
    opened = np.flatnonzero(runs["closed180"].levels[:, 0] == 1)
    assert opened[0] == 197 - 1


def test_the_first_weeks_are_the_same_for_all_policies(runs: dict[str, Run]) -> None:
    for policy, run in runs.items():
        np.testing.assert_array_equal(run.infected[:29], runs["hold"].infected[:29], policy)
        assert policy in ("hold", "real") or (run.infected[29] != runs["hold"].infected[29]).any()
    infected, deaths = (values.sum(axis=1) for values in (runs["hold"].infected, runs["hold"].deaths))
    np.testing.assert_allclose([infected[0], infected[27]], [398_928.3, 1_537_129.5], rtol=1e-6)
    np.testing.assert_allclose([deaths[0], deaths[29]], [3_942.1, 46_115.2], rtol=2e-5)


def test_recorded_policies_give_about_what_happened(runs: dict[str, Run]) -> None:
    data = load()
    table = np.array([line.split() for line in HISTORY.strip().splitlines()], float)
    days = table[:, 0].astype(int)
    deaths = runs["real"].deaths.sum(axis=1)[days - 1]
    percent = 100 * runs["real"].unemployed.sum(axis=1)[days - 1] / PEOPLE
    np.testing.assert_allclose(deaths, table[:, 1], atol=3)
    np.testing.assert_allclose(percent, table[:, 3], atol=6e-4)
    recorded = data.deaths.sum(axis=1, dtype=np.float64)[days]
    np.testing.assert_allclose(recorded, table[:, 2], atol=0.6)
    month = np.searchsorted(data.unemployment_days, days + FIRST_DAY, side="right") - 1
    rates = data.unemployment[month] @ (data.population / PEOPLE)
    np.testing.assert_allclose(rates, table[:, 4], atol=6e-4)
    assert np.abs(deaths / recorded - 1).max() < 0.11 and np.abs(percent - rates).max() < 2.1


def test_subsidies_are_what_was_decided(runs: dict[str, Run]) -> None:
    """Payments of 274, 142 and 386 billion dollars are levels 3, 2 and 5, each for 90 days; at times two together."""
    levels = runs["real"].subsidy_levels
    assert at([24, 25, 114, 115, 280, 281, 354, 355, 370, 371, 437], levels).tolist() == [
        0,
        3,
        3,
        0,
        0,
        2,
        2,
        7,
        7,
        5,
        5,
    ]
    level = PEOPLE * 1000 * 90 / 365
    assert runs["real"].subsidies[:354].sum() == pytest.approx((3 * 90 + 2 * 74) / 90 * level)
    assert runs["open_max"].subsidies[0] == pytest.approx(1.80130365e10)
