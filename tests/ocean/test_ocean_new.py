"""The rest of Ocean, bell to performance: rules, scores, parameters, seeds, pictures, backends."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest
from matrix import covering

import pufferlib
from ocean import performance
from ocean.bell import Bell
from ocean.continuous import Continuous
from ocean.identity import Identity
from ocean.mixed import Mixed
from ocean.performance import Performance
from ocean.population import LEAVE, Population
from ocean.truncation import Truncation
from ocean.uneven import ALL as ALL_ARM
from ocean.uneven import FAST, SLOW, Uneven
from pufferlib import registry
from pufferlib.emulation import emulate
from pufferlib.errors import PlanError

pytestmark = pytest.mark.beside

# One agent: what makes them quick, by name.
SINGLE = {
    "continuous": {},
    "truncation": {},
    "identity": {"step_s": 0},
    "mixed": {},
    "bell": {},
    "uneven": {"step_s": 0, "env_index": 2},
}
SOLVED = {**SINGLE, "population": {}}
ALL = {**SOLVED, "performance": {"mean_s": 0}}


def wrapped(name, **kwargs):
    return pufferlib.wrap(registry.creator(f"ocean/{name}")(**{**ALL[name], **kwargs}))


def solved(env):
    """The action of ``solve`` as a wrapped environment of one agent takes it."""
    return env.action_layout.flatten(env.raw.solve()) if isinstance(env.raw, Mixed) else env.raw.solve()[0]


def play(env, policy, num_episodes, seed):
    """Return the scores of episodes of a wrapped environment of one agent; policy(env) gives the action."""
    scores = []
    env.reset(seed=seed)
    while len(scores) < num_episodes:
        _, _, terminated, truncated, info = env.step(policy(env))
        assert ("score" in info) == (terminated or truncated)
        if terminated or truncated:
            assert 0 <= info["score"] <= 1
            scores.append(info["score"])
            env.reset()
    return np.array(scores)


def play_population(env, policy, num_agents, seed):
    """Return the scores of agents; policy(env) gives the actions of all that are alive."""
    scores = []
    env.reset(seed=seed)
    while len(scores) < num_agents:
        infos = env.step(policy(env))[4]
        scores += [info["score"] for info in infos.values() if info]
        if not env.agents:
            env.reset()
    assert all(0 <= score <= 1 for score in scores)
    return np.array(scores)


def require_mean(scores, expected):
    assert abs(scores.mean() - expected) < 4 * scores.std() / len(scores) ** 0.5


# -------------------------------------------------------------------------------------------------------------- scores

SOLVABLE = [
    ("continuous", {}),
    ("truncation", {}),
    ("truncation", {"hazard": 1, "leave": 0, "entry": 0}),
    ("identity", {}),
    ("identity", {"num_codes": 2, "horizon": 1}),
    ("mixed", {}),
    ("bell", {}),
    ("bell", {"ring": 0.9, "hazard": 1}),
]


@pytest.mark.parametrize(("name", "params"), SOLVABLE)
def test_solve_reaches_the_best_score(name, params):
    env = wrapped(name, **params)
    np.testing.assert_allclose(play(env, solved, 500, seed=1), env.raw.best, rtol=1e-6)


@pytest.mark.parametrize("params", [{}, {"places": 2, "spawn": 0, "hazard": 1}, {"places": 3, "horizon": 5}])
def test_solve_reaches_the_best_score_of_a_population(params):
    env = Population(**params)
    assert set(play_population(env, Population.solve_agents, 500, seed=1)) == {Population.best}


def test_four_pushes_hit_whatever_can_be_hit():
    env = wrapped("continuous", discrete=True)
    missed = 0
    for seed in range(1000):
        env.reset(seed=seed)
        start, target = env.raw.position, env.raw.target
        reached = [start[axis] + 0.1 * np.arange(-25, 26) for axis in range(2)]  # what pushes of 0.1 lead to
        inside = [places[np.abs(places) <= 1] for places in reached]
        nearest = np.hypot(*(np.abs(places - target[axis]).min() for axis, places in enumerate(inside)))
        over = False
        while not over:
            _, _, terminated, truncated, info = env.step(solved(env))
            over = terminated or truncated
        assert info["score"] == (nearest < 0.1)
        missed += nearest >= 0.1
    assert missed <= 5  # 0.04 % of 1,000 is 0.4


@pytest.mark.parametrize(
    ("name", "params", "chance", "num_episodes"),
    [
        ("continuous", {"discrete": True}, 0.0382, 3_000),
        ("identity", {"num_codes": 10}, 0.1, 6_000),
        # Of these test_ocean.py has fewer episodes.
        pytest.param("continuous", {}, Continuous.chance, 3_000, marks=pytest.mark.long),
        pytest.param("truncation", {}, Truncation.chance, 20_000, marks=pytest.mark.long),
        pytest.param("identity", {}, Identity.chance, 6_000, marks=pytest.mark.long),
        pytest.param("mixed", {}, Mixed.chance, 20_000, marks=pytest.mark.long),
        pytest.param("bell", {}, Bell.chance, 3_000, marks=pytest.mark.long),
    ],
)
def test_uniform_play_scores_chance(name, params, chance, num_episodes):
    env = wrapped(name, **params)
    env.action_space.seed(1)
    actions = iter([env.action_space.sample() for _ in range(5_000)] * 1000)
    require_mean(play(env, lambda env: next(actions), num_episodes, seed=2), chance)


@pytest.mark.long  # test_ocean.py has fewer agents
def test_uniform_play_of_a_population_scores_chance():
    rng = np.random.default_rng(3)
    scores = play_population(
        Population(), lambda env: dict(zip(env.agents, rng.integers(3, size=8).tolist(), strict=False)), 20_000, seed=2
    )
    require_mean(scores, Population.chance)


def test_scores_that_are_stated_by_formula():
    """The formulas of ``chance``, counted out another way."""
    shares = [(n, 0.35 ** (n - 1)) for n in range(1, 200)]  # steps in the room, and the probability of so many
    assert Truncation.chance == pytest.approx(sum(p * (0.5 * (n - 1) / n + 0.15) for n, p in shares))
    assert round(Truncation.chance, 4) == 0.3846
    rng = np.random.default_rng(4)
    error = np.abs(rng.uniform(-1, 1, (1_000_000, 2)) - rng.uniform(-1, 1, (1_000_000, 2))).mean(1)
    require_mean(0.125 + 0.5 * np.maximum(0, 1 - error), Mixed.chance)
    assert round(Mixed.chance, 4) == 0.3083


# --------------------------------------------------------------------------------------------------------------- rules


@pytest.mark.parametrize("discrete", [False, True])
def test_rules_of_continuous(discrete):
    env = wrapped("continuous", discrete=discrete)
    pushes = [(-0.1, 0), (0.1, 0), (0, -0.1), (0, 0.1)]
    rng = np.random.default_rng(5)
    endings = set()
    for seed in range(120):
        observation, _ = env.reset(seed=seed)
        position, velocity, target = np.split(observation.astype(np.float64), 3)
        assert not velocity.any()
        over, steps = False, 0
        while not over:
            if seed % 3 == 0:  # to the left, stop, to the right, stop: these see the time limit
                action = (0, 1, 1, 0)[steps % 4] if discrete else np.array([0.2 * (-1) ** steps, 0], np.float32)
            else:
                action = int(rng.integers(4)) if discrete else rng.uniform(-1.5, 1.5, 2).astype(np.float32)
            velocity = np.clip(velocity + (pushes[action] if discrete else 0.1 * np.clip(action, -1, 1)), -1, 1)
            position = position + velocity
            observation, reward, terminated, truncated, info = env.step(action)
            assert observation in env.observation_space
            steps += 1
            distance = np.sqrt(((position - target) ** 2).sum())
            out = np.abs(position).max() > 1
            hit = not out and distance < 0.1
            expected = -1 if out else 5 if hit else 0.02 * (1 - distance)
            assert reward == pytest.approx(expected, abs=1e-5)
            assert terminated == (out or hit)
            assert truncated == (steps == 100 and not terminated)
            np.testing.assert_allclose(observation, [*np.clip(position, -1, 1), *velocity, *target], atol=1e-5)
            over = terminated or truncated
        assert info["score"] == hit
        endings.add("out" if out else "hit" if hit else "limit")
    assert endings == {"out", "hit", "limit"}


@pytest.mark.parametrize(("far", "outcome"), [(0.0, (5, True, False)), (1.8, (-1, True, False))])
def test_what_the_last_step_brings_comes_before_the_time_limit(far, outcome):
    env = wrapped("continuous")
    env.reset(seed=1)
    env.raw.position, env.raw.velocity, env.raw.t = env.raw.target.copy(), np.full(2, far, np.float32), 99
    assert env.step(np.zeros(2, np.float32))[1:4] == outcome


@pytest.mark.parametrize("params", [{}, {"hazard": 0.05, "leave": 2.5, "entry": 1}, {"hazard": 1}])
def test_rules_of_truncation(params):
    env = wrapped("truncation", **params)
    hazard, leave, entry = params.get("hazard", 0.3), params.get("leave", 8), params.get("entry", 8)
    rng = np.random.default_rng(6)
    for seed in range(500):
        first, _ = env.reset(seed=seed)
        assert first.tolist() == [0]
        action = int(rng.integers(2))
        assert env.step(action) == ([1], -entry, False, False, {})
        stayed = steps = 0
        while True:
            action = int(rng.random() < 0.3)
            observation, reward, terminated, truncated, info = env.step(action)
            steps += 1
            stayed += action == 0
            assert observation.tolist() == [1]
            assert reward == (leave if action else 1)
            assert terminated == (action == 1)
            if terminated or truncated:
                break
        assert info == {"score": stayed / steps}
    stays = []
    for _ in range(2000):
        env.reset()
        env.step(0)
        steps = 1
        while not env.step(0)[3]:
            steps += 1
        stays.append(steps)
    if hazard < 1:
        require_mean(np.array(stays), 1 / hazard)
    else:
        assert set(stays) == {1}


@pytest.mark.parametrize("params", [{}, {"ring": 0.7, "hazard": 0.5}])
def test_rules_of_bell(params):
    env = wrapped("bell", **params)
    rng = np.random.default_rng(7)
    rings, lengths = [], []
    for seed in range(1_000):
        observation, _ = env.reset(seed=seed)
        heard, right, answers = [], 0, rng.integers(2, size=1_000).tolist()
        over = False
        while not over:
            heard.append(int(observation[0]))
            observation, reward, over, truncated, info = env.step(answers[len(heard)])
            assert reward == (answers[len(heard)] == max(heard)) and not truncated
            right += reward
        assert observation[0] == 0 and info == {"score": right / len(heard)}
        rings += heard
        lengths.append(len(heard))
    require_mean(np.array(rings), params.get("ring", 0.2))
    require_mean(np.array(lengths), 1 / params.get("hazard", 0.1))


def test_what_bell_is_worth_to_those_who_forget_too_little_or_all():
    """The best answer to how long ago the last ring was, and to whether it rings: what is left of both is stated."""
    env = Bell()
    by_age, by_ring = np.zeros((2, 60, 2))
    age, num_episodes = 59, 20_000
    for number in range(num_episodes):
        env.reset(seed=None if number else 8)
        over = False
        rings = []
        while not over:
            age = 0 if env.observations[0, 0] else min(age + 1, 59)
            rings.append((age, int(env.rung)))
            over = env.step(env.solve()) is not None
        for since, rung in rings:
            by_age[since, rung] += 1 / len(rings)
            by_ring[int(since == 0), rung] += 1 / len(rings)
        age = min(age + 1, 59)  # the last row, in which nothing rings
    assert 0.8 < by_age.max(1).sum() / num_episodes < 0.82
    assert 0.65 < by_ring.max(1).sum() / num_episodes < 0.67


@pytest.mark.parametrize("params", [{}, {"num_codes": 7, "horizon": 3, "fortune": 0.5}])
def test_rules_of_identity(params):
    env = wrapped("identity", **params)
    num_codes, horizon = params.get("num_codes", 4), params.get("horizon", 8)
    rng = np.random.default_rng(7)
    codes, lucks = [], []
    for seed in range(300):
        observation, _ = env.reset(seed=seed)
        right = 0
        for step in range(horizon):
            *code, luck = observation.tolist()
            codes.append(code.index(1))
            lucks.append(luck)
            assert sorted(code) == [0] * (num_codes - 1) + [1]
            action = int(rng.integers(num_codes))
            observation, reward, terminated, truncated, info = env.step(action)
            assert reward == pytest.approx((action == codes[-1]) + params.get("fortune", 4) * luck, abs=1e-5)
            right += action == codes[-1]
            assert (terminated, truncated) == (step == horizon - 1, False)
        assert info == {"score": right / horizon}
    counts = np.bincount(codes, minlength=num_codes) / len(codes)
    assert np.abs(counts - 1 / num_codes).max() < 0.05
    assert min(lucks) < -0.95 and max(lucks) > 0.95
    require_mean(np.array(lucks), 0)


def test_every_fourth_environment_is_slow_whatever_it_shows(monkeypatch):
    codes_of, naps = [], []
    for env_index in range(8):
        env = pufferlib.wrap(Identity(env_index=env_index, slow=5, step_s=0.01))
        slept = []
        naps.append(slept)
        monkeypatch.setattr(time, "sleep", slept.append)
        codes = []
        observation, _ = env.reset(seed=8)
        for _ in range(8):
            codes.append(int(observation.argmax()))
            observation = env.step(0)[0]
        codes_of.append(codes)
        usual = 0.05 if env_index in (3, 7) else 0.01
        assert len(slept) == len(set(slept)) == 8
        assert 0.7 * usual <= min(slept) < max(slept) <= 1.3 * usual
    assert codes_of == [codes_of[0]] * 8
    assert naps[0] == naps[1]  # with the same seed
    env = pufferlib.wrap(Identity(step_s=0))
    monkeypatch.setattr(time, "sleep", None)
    codes = [int(env.reset(seed=8)[0].argmax()), *(int(env.step(0)[0].argmax()) for _ in range(7))]
    assert codes == codes_of[0]


def test_make_passes_environments_their_numbers():
    with pufferlib.make("ocean/identity", backend="pool", num_envs=8, num_workers=2, seed=1) as vec:
        vec.reset()
        step_s = vec.get_attr("step_s")
    assert [duration_s / min(step_s) for duration_s in step_s] == [1, 1, 1, 5] * 2


def test_rules_of_uneven():
    """The means that the docstring states, from equally many steps of each environment."""
    means = np.zeros(3)
    for env_index in range(8):
        env = wrapped("uneven", env_index=env_index, horizon=3)
        speeds = set()
        for seed in range(200):
            assert env.reset(seed=200 * env_index + seed)[0].tolist() == [1]
            paying = (FAST, ALL_ARM)[env_index % 4] if env_index % 4 < 2 else SLOW if env.raw.is_slow else ALL_ARM
            speeds.add(env.raw.is_slow)
            for arm in range(3):
                observation, reward, terminated, truncated, info = env.step(arm)
                assert observation.tolist() == [1] and (terminated, truncated) == (arm == 2, False)
                assert reward == pytest.approx({ALL_ARM: 1, FAST: 1.25, SLOW: 1.4}[arm] if arm == paying else 0)
                means[arm] += reward / 8 / 200
            assert info == {"score": 1 / 3}
        assert speeds == ({False}, {True}, {False, True}, {False, True})[env_index % 4]
    np.testing.assert_allclose(means[[ALL_ARM, FAST, SLOW]], [0.5, 0.3125, 0.35], atol=0.03)


def test_uneven_environments_sleep_only_alone_in_their_process(monkeypatch):
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    envs = []
    for env_index in range(2):
        envs.append(pufferlib.wrap(Uneven(env_index=env_index, step_s=0.5, slow=10)))
        envs[-1].reset(seed=1)
        envs[-1].step(0)
    assert slept == [0.5]
    del envs[0]
    envs[0].reset(seed=1)
    envs[0].step(0)
    assert slept == [0.5, 5]


def test_rules_of_mixed():
    env = wrapped("mixed")
    rng = np.random.default_rng(9)
    observations = []
    for seed in range(1000):
        observation, _ = env.reset(seed=seed)
        observations.append(observation)
        assert observation in env.observation_space
        choice, aim = int(rng.integers(4)), rng.uniform(-1, 1, 2).astype(np.float32)
        score = 0.5 * observation[choice] + 0.5 * max(0, 1 - np.abs(aim - observation[4:]).sum() / 2)
        again, reward, terminated, truncated, info = env.step((np.array([choice]), aim))
        assert (again.tolist(), terminated, truncated) == (observation.tolist(), True, False)
        assert reward == info["score"] == pytest.approx(score, abs=1e-6)
    means = np.mean(observations, 0)
    np.testing.assert_allclose(means, [0.25] * 4 + [0, 0], atol=0.08)
    assert (np.array(observations)[:, :4].sum(1) == 1).all()


POPULATIONS = [
    {},
    {"places": 3, "spawn": 0.9, "horizon": 20, "hazard": 0.05, "leave": 1.5, "entry": 2.5},
    {"places": 2, "spawn": 0, "horizon": 10, "hazard": 1},
]


@pytest.mark.parametrize("params", POPULATIONS)
def test_rules_of_population(params):
    env = Population(**params)
    places, horizon = params.get("places", 8), params.get("horizon", 64)
    leave, entry, spawn = params.get("leave", 5), params.get("entry", 8), params.get("spawn", 0.5)
    rng = np.random.default_rng(10)
    lives, chances = [], []  # of those who stayed until they were cut; whether one appeared where one might
    early = 0
    for seed in range(80):
        seen, infos = env.reset(seed=seed)
        assert {name: row.tolist() for name, row in seen.items()} == {name: [1, 0] for name in env.agents}
        assert len(env.agents) == 2
        assert not any(infos.values())
        ever, grown = set(env.agents), {}
        step = 0
        while env.agents:
            before = env.agents
            room = len(before) < places
            actions = {name: int(rng.choice(3, p=[0.45, 0.45, 0.1])) for name in before}
            rows, rewards, terminations, truncations, infos = env.step(actions)
            step += 1
            born = set(env.agents) - set(before)
            assert not born & ever
            assert len(born) <= room
            ever |= born
            assert len(env.agents) <= places
            assert set(rows) == set(rewards) == set(terminations) == set(truncations) == set(infos)
            assert set(rows) == set(before) | born
            for name in born:
                assert rows[name].tolist() == [1, 0]
                assert (rewards[name], terminations[name], truncations[name], infos[name]) == (0, False, False, {})
            for name in before:
                action, (newborn, bit) = actions[name], seen[name]
                assert rows[name] in env.observation_space(name)
                assert rows[name][0] == 0
                ended = terminations[name] or truncations[name]
                assert ended == (name not in env.agents)
                assert not (terminations[name] and truncations[name])
                if newborn:
                    assert rewards[name] == -entry
                    assert truncations[name] == (step == horizon)
                    assert not terminations[name]
                    assert infos[name] == {}
                    continue
                assert rewards[name] == (leave if action == LEAVE else action == bit)
                assert terminations[name] == (action == LEAVE)
                grown.setdefault(name, []).append(action == bit)
                assert infos[name] == ({"score": np.mean(grown[name])} if ended else {})
                if truncations[name] and step < horizon:
                    lives.append(len(grown[name]))
            if step < horizon and room:
                stayed = set(before) & set(env.agents)
                assert stayed or born
                if stayed:
                    chances.append(bool(born))
            seen = rows
        assert step == horizon or not room  # nobody left, and no place was free
        early += step < horizon
        assert env.agents == []
    if chances and 0 < spawn < 1:
        require_mean(np.array(chances, float), spawn)
    elif spawn == 0:
        assert not any(chances)
        assert set(lives) == {1}
    assert bool(early) == (places <= 3)


@pytest.mark.parametrize("params", POPULATIONS)
def test_places_of_the_population_are_those_of_the_rows(params):
    raw = Population(**params)
    with pufferlib.make(lambda: raw, backend="serial", num_envs=1, seed=11) as vec:
        vec.reset()
        assert vec.agents_per_env == raw.max_num_agents
        for _ in range(500):
            actions = np.random.default_rng(12).choice(3, raw.places, p=[0.45, 0.45, 0.1])
            observations = vec.step(actions)[0]
            for life in raw.lives.values():
                assert observations[life.agent_index].tolist() == [life.newborn, life.bit]


def test_lives_of_a_population_are_geometric():
    env = Population(places=40, horizon=2000)
    env.reset(seed=13)
    lives = []
    while env.agents:
        known = dict(env.lives)
        _, _, _, truncations, _ = env.step(env.solve_agents())
        lives += [known[name].num_steps for name, cut in truncations.items() if cut and env.agents]
    require_mean(np.array(lives), 1 / 0.3)


# --------------------------------------------------------------------------------------------------- seeds, generators


@pytest.mark.parametrize("name", SINGLE)
def test_seeds_repeat_and_episodes_differ(name):
    def episodes(env, seed):
        env.action_space.seed(1)
        for number in range(30):
            rows = [env.reset(seed=None if number else seed)[0].tolist()]
            over = False
            while not over:
                row, reward, terminated, truncated, _ = env.step(env.action_space.sample())
                rows.append((row.tolist(), reward, terminated, truncated))
                over = terminated or truncated
            yield repr(rows)

    first, again, other = (list(episodes(wrapped(name), seed)) for seed in (14, 14, 15))
    used = wrapped(name)
    list(episodes(used, 16))
    assert first == again == list(episodes(used, 14))
    assert first != other
    assert len(set(first)) > {"truncation": 4, "bell": 20, "uneven": 20}.get(name, 29)  # short ones may be alike


def test_seeds_of_a_population_repeat_and_episodes_differ():
    def episodes(env, seed):
        for number in range(5):
            rows = [env.reset(seed=None if number else seed)[0]]
            while env.agents:
                rows.append(env.step(env.solve_agents())[:4])
            yield repr(rows)

    used = Population()
    first, other = list(episodes(used, 14)), list(episodes(used, 15))
    assert first == list(episodes(used, 14)) == list(episodes(Population(), 14))
    assert len({*first, *other}) == 10


@pytest.mark.parametrize("name", ALL)
def test_global_generators_are_left_alone(name):
    np.random.seed(1)
    random.seed(1)
    before = np.random.get_state()[1].tolist(), random.getstate()
    env = wrapped(name)
    env.reset(seed=1)
    for _ in range(50):
        agents = getattr(env, "agents", None)
        actions = solved(env) if agents is None else env.raw.solve_agents()
        outcome = env.step(actions)
        if agents is None and (outcome[2] or outcome[3]):
            env.reset()
    assert (np.random.get_state()[1].tolist(), random.getstate()) == before


# ---------------------------------------------------------------------------------------------- parameters and pictures


@pytest.mark.parametrize(
    ("maker", "params", "message"),
    [
        (Continuous, {"discrete": "no"}, "discrete='no' is neither True nor False"),
        (Bell, {"ring": 0}, "ring=0 leaves nothing to ask"),
        (Bell, {"ring": 1}, "ring=1 leaves nothing to ask"),
        (Bell, {"hazard": 0}, "hazard=0 is not a probability .* use 0 < hazard <= 1"),
        (Truncation, {"hazard": 0}, "hazard=0 is not a probability .* use 0 < hazard <= 1"),
        (Truncation, {"hazard": 1.5}, "hazard=1.5 is not a probability"),
        (Truncation, {"leave": -1}, "leave=-1 must be a number from 0 up"),
        (Truncation, {"entry": float("nan")}, "entry=nan must be a number from 0 up"),
        (Population, {"places": 1}, "places=1 is too few"),
        (Population, {"spawn": 1.1}, "spawn=1.1 is not a probability; use 0 to 1"),
        (Population, {"horizon": 0}, "horizon=0 is not a number of steps"),
        (Population, {"hazard": -0.1}, "hazard=-0.1 is not a probability"),
        (Population, {"leave": float("inf")}, "leave=inf must be"),
        (Population, {"entry": -8}, "entry=-8 must be"),
        (Identity, {"num_codes": 1}, "num_codes=1 leaves nothing to choose"),
        (Identity, {"horizon": 0}, "horizon=0 is not a number of steps"),
        (Identity, {"fortune": -1}, "fortune=-1 must be a number"),
        (Identity, {"slow": 0.5}, "slow=0.5 would not be slower"),
        (Identity, {"step_s": -1}, "step_s=-1 is not a time"),
        (Identity, {"env_index": -1}, "env_index=-1 is not an environment's number"),
        (Performance, {"mean_s": -1}, "mean_s=-1 is not a time"),
        (Performance, {"std_s": float("inf")}, "std_s=inf is not a time"),
        (Performance, {"reset_s": float("nan")}, "reset_s=nan is not a time"),
        (Performance, {"mean_s": 0, "std_s": 1}, "std_s=1 is impossible with mean_s=0"),
        (Performance, {"bandwidth": 0}, "bandwidth=0 is not a number of bytes"),
        (Performance, {"mode": "gpu"}, 'mode=\'gpu\' is unknown; use "cpu" or "sleep"'),
        *((maker, {"render_mode": "human"}, 'use "ansi", "rgb_array" or None') for maker in (Continuous, Mixed)),
        *((maker, {"render_mode": "human"}, 'use "ansi", "rgb_array" or None') for maker in (Truncation, Population)),
        *((maker, {"render_mode": "human"}, 'use "ansi", "rgb_array" or None') for maker in (Identity, Performance)),
        (Bell, {"render_mode": "human"}, 'use "ansi", "rgb_array" or None'),
    ],
)
def test_impossible_parameters_are_refused(maker, params, message):
    with pytest.raises(ValueError, match=message):
        maker(**params)


@pytest.mark.parametrize(
    ("name", "height", "width", "blue", "red"),
    [
        ("continuous", 21, 21, 1, 1),
        ("truncation", 1, 3, 1, 1),
        ("population", 2, 8, 0, 2),
        ("identity", 2, 4, 1, 0),
        ("mixed", 10, 9, 2, 0),
        ("bell", 2, 1, 0, 0),
        ("performance", 1, 8, 0, 0),
    ],
)
def test_pictures(name, height, width, blue, red):
    """Of the first step of an episode."""
    env = wrapped(name, render_mode="ansi")
    env.reset(seed=2)
    drawn = env.render()
    assert [line.count("██") for line in drawn.split("\n")] == [width] * height
    assert drawn.count("\033[94m██") == blue
    assert drawn.count("\033[91m██") == red
    env.step(env.raw.solve_agents() if name == "population" else solved(env))
    assert env.render() != drawn

    env = wrapped(name, render_mode="rgb_array")
    env.reset(seed=2)
    picture = env.render()
    assert (picture.dtype, picture.shape) == (np.uint8, (32 * height, 32 * width, 3))
    env = wrapped(name)
    env.reset(seed=2)
    assert env.render() is None


def test_what_pictures_show():
    env = Continuous(render_mode="ansi")
    env.reset(seed=2)
    env.position, env.target = np.array([-1.0, -1.0]), np.array([1.0, 1.0])
    lines = env.render().split("\n")
    assert lines[0].endswith("\033[94m██\033[0m")  # the target: to the right, and up
    assert lines[-1].startswith("\033[91m██")

    env = Mixed(render_mode="ansi")
    env.reset(seed=2)
    env.code, env.point = 0, np.array([-1, 1], np.float32)
    env.step({"choice": 3, "aim": np.array([1, -1], np.float32)})
    first, top, *_, bottom = env.render().split("\n")
    assert [cell.startswith("94m") for cell in first.split("\033[")[1::2]] == [True] + [False] * 8
    assert [cell.startswith("91m") for cell in first.split("\033[")[1::2]] == [False] * 3 + [True] + [False] * 5
    assert top.startswith("\033[94m")
    assert bottom.endswith("\033[91m██\033[0m")

    env = Bell(ring=0.99, hazard=0.01, render_mode="ansi")
    env.reset(seed=2)
    for answer, colour in ((1, "94m"), (0, "91m")):
        env.step(np.array([answer]))
        assert [line[2:5] for line in env.render().split("\n")] == ["94m", colour]


# --------------------------------------------------------------------------------------------------------- performance


class Naps(list):
    def __call__(self, seconds):
        self.append(seconds)


def test_performance_takes_the_time_it_is_given(monkeypatch):
    naps = Naps()
    for module, name in ((time, "sleep"), (performance, "_work")):
        monkeypatch.setattr(module, name, naps)
    for mode in ("sleep", "cpu"):
        env = pufferlib.wrap(Performance(mean_s=0.02, std_s=0.005, reset_s=0.7, mode=mode))
        naps.clear()
        env.reset(seed=1)
        for _ in range(2000):
            assert env.step(1)[1:] == (0, False, False, {})
        assert naps.pop(0) == 0.7
        assert len(naps) == 2000
        assert min(naps) > 0
        require_mean(np.array(naps), 0.02)
        assert np.std(naps) == pytest.approx(0.005, rel=0.1)
        env = pufferlib.wrap(Performance(mean_s=0.02, mode=mode))
        naps.clear()
        env.reset()
        env.step(0)
        assert naps == [0, 0.02]


def test_performance_works_as_much_as_it_says():
    performance._turns_per_s()
    taken = []
    for _ in range(5):
        start_s = time.thread_time()
        performance._work(0.02)
        taken.append(time.thread_time() - start_s)
    assert 0.01 < min(taken) < 0.05  # of CPU time, whatever else uses the core


def test_performance_fills_its_observations():
    env = pufferlib.wrap(Performance(mean_s=0, bandwidth=1000))
    assert env.reset(seed=1)[0].tolist() == [0] * 1000
    assert env.step(0)[0].tolist() == [1] * 1000
    for _ in range(255):
        observation = env.step(0)[0]
    assert observation.tolist() == [0] * 1000
    assert Performance.chance is Performance.best is None


# ------------------------------------------------------------------------------------------------------------ backends

BACKENDS = {
    "serial": {},
    "multiprocessing": {"num_workers": 2},
    "pool": {"num_workers": 2, "batch_size": 2},
}


@covering({"name": [*SOLVED], "backend": [*BACKENDS]})
def test_solve_through_backends(name, backend):
    scores = []
    with pufferlib.make(
        f"ocean/{name}", backend=backend, num_envs=4, env_kwargs=SOLVED[name], seed=17, **BACKENDS[backend]
    ) as vec:
        vec.async_reset()
        while len(scores) < 20:
            batch = vec.recv()
            scores += [info["score"] for info in batch.infos if "score" in info]
            actions = vec.call("solve", env_ids=batch.env_ids)
            if name == "mixed":
                pairs = [vec.action_layout.flatten(action) for action in actions]
                vec.send(tuple(np.stack(parts) for parts in zip(*pairs, strict=True)))
            else:
                vec.send(np.concatenate(actions))
    np.testing.assert_allclose(scores, 1, rtol=1e-6)


def test_rows_of_who_says_how_many_there_may_be():
    """max_agents is asked for only where an environment does not tell itself."""
    rows = emulate(Population(places=5))
    assert rows.num_agents == 5
    assert emulate(pufferlib.wrap(Population(places=5))).num_agents == 5
    assert emulate(Population(places=5), max_agents=7).num_agents == 7

    class Silent(Population):
        max_num_agents = 0

    class Undecided(Population):
        @property
        def max_num_agents(self):
            return len(None)

    for maker in (Silent, Undecided):
        with pytest.raises(PlanError, match="pass max_agents="):
            emulate(maker())
