"""The original Ocean but for squared and continuous: rules, stated scores, parameters, seeds, pictures, backends."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from matrix import covering

import pufferlib
from pufferlib import registry

pytestmark = pytest.mark.beside

# What each is made with: its defaults first.
PARAMS = {
    "bandit": [
        {},
        {"num_actions": 2, "arm_seed": 5},
        {"num_actions": 9, "reward_scale": 10.0, "reward_noise": 1.0, "arm_seed": 1},
    ],
    "memory": [{}, {"length": 1, "delay": 0}, {"length": 3, "delay": 1}],
    "password": [{}, {"length": 1}, {"length": 8, "password_seed": 3}],
    "stochastic": [{}, {"p": 0.25, "horizon": 10}, {"p": 0.5, "horizon": 1}],
    "multiagent": [{}],
    "spaces": [{}],
}
ALL = [(name, params) for name, sets in PARAMS.items() for params in sets]
NUM_ACTIONS = {"memory": 2, "password": 2, "stochastic": 2}
BACKENDS = {
    "serial": {"num_envs": 5},
    "multiprocessing": {"num_envs": 5, "num_workers": 2},
    "pool": {"num_envs": 5, "num_workers": 2, "batch_size": 2},
}
each_name = pytest.mark.parametrize("name", PARAMS)
each_environment = pytest.mark.parametrize(("name", "params"), ALL, ids=str)


def creator(name):
    return registry.creator(f"ocean/{name}")


def wrapped(name, **params):
    return pufferlib.wrap(creator(name)(**params))


def solution(vec, env_ids):
    """The actions, one a row, of ``solve`` in these environments; nested ones go through the wrapper's layout."""
    actions = vec.call("solve", env_ids=env_ids.tolist())
    if isinstance(actions[0], dict):
        return np.stack([vec.action_layout.flatten(action) for action in actions])
    return np.concatenate(actions)


def scores(name, num_episodes, seed, policy, params=None, backend="serial", **counts):
    """The scores of at least ``num_episodes``, played through ``make``; policy(vec, batch) gives the actions."""
    values = []
    counts = counts or {"num_envs": 50}
    with pufferlib.make(f"ocean/{name}", backend=backend, seed=seed, env_kwargs=params or {}, **counts) as vec:
        vec.async_reset()
        while True:
            batch = vec.recv()
            values += [info["score"] for info in batch.infos if "score" in info]
            assert all("episode" in info for info in batch.infos if "score" in info)
            if len(values) >= num_episodes:
                return values
            vec.send(policy(vec, batch))


def solving(vec, batch):
    return solution(vec, batch.env_ids)


def uniform(seed):
    """A policy that draws all actions uniformly."""
    rng = np.random.default_rng(seed)

    def policy(vec, batch):
        space = vec.single_action_space
        sizes = np.array([space.n]) if isinstance(space, Discrete) else space.nvec
        actions = rng.integers(sizes, size=(len(batch.env_ids) * vec.agents_per_env, len(sizes)))
        return actions[:, 0] if isinstance(space, Discrete) else actions

    return policy


def assert_mean(values, expected):
    error = np.std(values) / math.sqrt(len(values))
    assert abs(np.mean(values) - expected) < 4 * error


# --- what is stated of scores


@pytest.mark.long  # test_ocean.py has fewer episodes of each
@pytest.mark.parametrize(
    ("name", "num_episodes"),
    [("bandit", 20_000), ("memory", 10_000), ("password", 20_000), ("stochastic", 2000), ("multiagent", 10_000),
     ("spaces", 10_000)],
)  # fmt: skip
def test_uniform_play_scores_chance(name, num_episodes):
    assert_mean(scores(name, num_episodes, 1, uniform(2)), creator(name).chance)


@each_environment
def test_solve_reaches_the_best_score(name, params):
    values = scores(name, 100, 3, solving, params)
    if name == "stochastic":  # by lot, so in the mean
        p, horizon = params.get("p", 0.7), params.get("horizon", 100)
        best = 1 - p * (1 - p) / horizon
        if not params:
            assert creator(name).best == pytest.approx(best)
        if horizon > 1:  # at p = 0.5 both outcomes of one step score the same
            assert_mean(scores(name, 1000, 3, solving, params), best)
        else:
            assert set(values) == {best}
    else:
        assert creator(name).best == 1
        assert values == [1.0] * len(values)


@covering({"name": [*PARAMS], "backend": BACKENDS})
def test_solve_is_worth_as_much_on_every_backend(name, backend):
    values = scores(name, 10 if name == "stochastic" else 40, 4, solving, backend=backend, **BACKENDS[backend])
    if name == "stochastic":
        assert abs(np.mean(values) - creator(name).best) < 0.004
    else:
        assert values == [1.0] * len(values)


def test_one_action_all_the_time_is_worth_less_than_drawing_lots():
    """What a learner that plays the likeliest action ends at."""
    values = scores("stochastic", 100, 1, lambda vec, batch: np.zeros(len(batch.env_ids), np.int64))
    assert values == [pytest.approx(0.91)] * len(values)


def test_the_lot_that_is_paid_most_scores_as_stated():
    """The reward of stochastic is not its score: over a grid of q it is highest near 0.61."""
    rng = np.random.default_rng(1)
    qs = np.arange(0.55, 0.76, 0.02)
    zero = rng.random((1, 4000, 100)) < qs[:, None, None]  # the same draws for each q
    share = zero.cumsum(2) / np.arange(1, 101)
    proximity = 1 - (0.7 - share) ** 2
    returns = np.where(zero == (share < 0.7), proximity, 0).sum(2).mean(1)
    assert qs[returns.argmax()] == pytest.approx(0.61, abs=0.021)
    assert 1 - 0.09**2 - 0.61 * 0.39 / 100 == pytest.approx(0.9895, abs=5e-5)


# --- rules: random play beside an independent reading of the definition


def episodes(name, params, num_episodes=200):
    """Random play: for each episode its observations and its (action, reward, terminated, info)."""
    env = wrapped(name, **params)
    env.action_space.seed(5)
    for episode in range(num_episodes):
        seen, steps = [env.reset(seed=6 if episode == 0 else None)[0]], []
        while not (steps and steps[-1][2]):
            action = env.action_space.sample()
            observation, reward, terminated, truncated, info = env.step(action)
            assert not truncated
            assert ("score" in info) == terminated
            assert observation in env.observation_space
            seen.append(observation)
            steps.append((action, reward, terminated, info))
        yield seen, steps


@pytest.mark.parametrize("params", PARAMS["bandit"])
def test_rules_of_bandit(params):
    num_actions, scale = params.get("num_actions", 4), params.get("reward_scale", 1)
    deviation = params.get("reward_noise", 0)
    env = creator("bandit")(**params)
    assert env.single_observation_space == Box(0, 1, (1,), np.float32)
    assert env.single_action_space == Discrete(num_actions)
    noises = []
    for seen, steps in episodes("bandit", params, 2000):
        assert [row.tolist() for row in seen] == [[1.0], [1.0]]
        ((arm, reward, terminated, info),) = steps
        assert terminated
        assert info["score"] == float(arm == env.best_arm)
        noises.append(reward / scale - info["score"])
    assert np.std(noises) == pytest.approx(deviation, abs=0.07 * deviation + 1e-12)
    assert abs(np.mean(noises)) <= 4 * deviation / math.sqrt(len(noises)) + 1e-12
    assert len({round(noise, 9) for noise in noises}) == (len(noises) if deviation else 1)  # each its own


def test_the_best_arm_of_bandit_comes_from_its_seed_alone():
    best = [[creator("bandit")(num_actions=9, arm_seed=seed).best_arm for seed in range(40)] for _ in range(2)]
    assert best[0] == best[1]
    assert set(best[0]) == set(range(9))
    env = creator("bandit")()
    arm = env.best_arm
    env.reset(seed=11)
    assert env.best_arm == arm


@pytest.mark.parametrize("params", PARAMS["memory"])
def test_rules_of_memory(params):
    length, delay = params.get("length", 2), params.get("delay", 2)
    env = creator("memory")(**params)
    assert env.single_observation_space == Box(-1, 1, (1,), np.float32)
    assert env.single_action_space == Discrete(2)
    for seen, steps in episodes("memory", params):
        assert len(steps) == 2 * length + delay
        bits = [int(value > 0) for (value,) in seen[:length]]
        assert all(abs(value) == 1 for (value,) in seen[:length])
        assert all(value == 0 for (value,) in seen[length:])
        answers = [action for action, *_ in steps[length + delay :]]
        assert [reward for _, reward, _, _ in steps[: length + delay]] == [0.0] * (length + delay)
        assert [reward for _, reward, _, _ in steps[length + delay :]] == [
            float(bit == answer) for bit, answer in zip(bits, answers, strict=True)
        ]
        assert steps[-1][3]["score"] == float(bits == answers)


@pytest.mark.parametrize("params", PARAMS["password"])
def test_rules_of_password(params):
    length = params.get("length", 5)
    env = creator("password")(**params)
    assert env.single_observation_space == Box(-1, 1, (length,), np.float32)
    assert env.single_action_space == Discrete(2)
    password, won = None, 0
    for seen, steps in episodes("password", params, 600):
        assert len(steps) == length
        guesses = [action for action, *_ in steps]
        for step, row in enumerate(seen):
            assert row.tolist() == guesses[:step] + [-1] * (length - step)
        rewards = [reward for _, reward, _, _ in steps]
        assert not any(rewards[:-1])
        assert steps[-1][3]["score"] == rewards[-1]
        if rewards[-1]:
            assert rewards[-1] == 1
            assert password in (None, guesses)  # always the same one
            password, won = guesses, won + 1
    assert abs(won - 600 / 2**length) < 4 * math.sqrt(600 / 2**length)


def test_the_password_comes_from_its_seed_alone():
    drawn = [[tuple(creator("password")(3, password_seed=seed).password) for seed in range(60)] for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) == 2**3


@pytest.mark.parametrize("params", PARAMS["stochastic"])
def test_rules_of_stochastic(params):
    p, horizon = params.get("p", 0.7), params.get("horizon", 100)
    env = creator("stochastic")(**params)
    assert env.single_observation_space == Box(0, 1, (1,), np.float32)
    assert env.single_action_space == Discrete(2)
    for seen, steps in episodes("stochastic", params, 50):
        assert len(steps) == horizon
        assert all(row.tolist() == [1.0] for row in seen)
        zeros = 0
        for step, (action, reward, *_) in enumerate(steps, 1):
            zeros += action == 0
            f = zeros / step
            proximity = 1 - (p - f) ** 2
            paid = (action == 0 and f < p) or (action == 1 and f >= p)
            assert reward == pytest.approx(proximity if paid else 0)
        assert steps[-1][3]["score"] == pytest.approx(proximity)


def test_rules_of_multiagent():
    env = wrapped("multiagent")
    first, second = env.possible_agents
    assert env.observation_space(first) == env.observation_space(second) == Box(-1, 1, (2,), np.float32)
    assert env.action_space(first) == env.action_space(second) == Discrete(2)
    rng = np.random.default_rng(7)
    met = []
    for episode in range(400):
        seen, _ = env.reset(seed=8 if episode == 0 else None)
        (b1, zero1), (zero2, b2) = seen[first], seen[second]
        assert zero1 == zero2 == 0
        assert {abs(b1), abs(b2)} == {1}
        actions = {first: int(rng.integers(2)), second: int(rng.integers(2))}
        _, rewards, terminations, truncations, infos = env.step(actions)
        right = {first: actions[first] == (b1 > 0), second: actions[second] == (b2 < 0)}
        assert rewards == {agent: float(right[agent]) for agent in right}
        assert {agent: info["score"] for agent, info in infos.items()} == rewards
        assert terminations == {first: True, second: True}
        assert not any(truncations.values())
        assert env.agents == []
        met.append((b1, b2, actions[first], actions[second]))
    counts = [met.count(case) for case in set(met)]
    assert len(counts) == 16  # each b is drawn by itself
    assert max(counts) < 25 + 4 * 5


def test_rules_of_spaces():
    env = creator("spaces")()
    assert env.observation_space == Dict(image=Box(-1, 1, (5, 5), np.float32), flat=Box(-1, 1, (5,), np.int8))
    assert env.action_space == Dict(image=Discrete(2), flat=Discrete(2))
    env.action_space.seed(9)
    images, flats = [], []
    for episode in range(3000):
        seen, _ = env.reset(seed=10 if episode == 0 else None)
        assert seen in env.observation_space
        total, flat_total = math.fsum(seen["image"].ravel().tolist()), sum(seen["flat"].tolist())
        assert flat_total != 0
        action = env.action_space.sample()
        after, reward, terminated, truncated, info = env.step(action)
        assert after in env.observation_space
        expected = 0.5 * (action["image"] == (total > 0)) + 0.5 * (action["flat"] == (flat_total > 0))
        assert reward == info["score"] == expected
        assert terminated and not truncated
        images.append(seen["image"])
        flats.append(seen["flat"])
    assert len({image.tobytes() for image in images}) == len(images)  # what was handed out stays as it was
    quarters, _ = np.histogram(np.stack(images), 4, (-1, 1))
    assert np.allclose(quarters, 3000 * 25 / 4, atol=4 * math.sqrt(3000 * 25 * 3 / 16))
    values, counts = np.unique(np.stack(flats), return_counts=True)
    assert values.tolist() == [-1, 0, 1]
    # 1 + 20 + 30 of the 243 draws of five have the sum 0; these have 5·1 + 3·20 + 1·30 = 95 of the 405 zeros in them.
    shares = {-1: 325 / 960, 0: 310 / 960, 1: 325 / 960}
    for value, count in zip(values.tolist(), counts.tolist(), strict=True):
        assert abs(count / 15_000 - shares[value]) < 4 * math.sqrt(0.25 / 15_000)
    for parts in (images, flats):  # both answers are equally likely
        positive = np.mean([part.sum(dtype=np.float64) > 0 for part in parts])
        assert abs(positive - 0.5) < 4 * 0.5 / math.sqrt(3000)


# --- seeds


def trace(name, seed, num_steps=60):
    """Rows and rewards of random play, the same actions for every seed."""
    policy, rows = uniform(3), []
    params = {"reward_noise": 1.0} if name == "bandit" else {}
    with pufferlib.make(f"ocean/{name}", backend="serial", num_envs=3, seed=seed, env_kwargs=params) as vec:
        vec.async_reset()
        for _ in range(num_steps):
            batch = vec.recv()
            rows.append((batch.observations.copy(), batch.rewards.copy(), batch.terminations.copy()))
            vec.send(policy(vec, batch))
    return rows


@each_name
def test_seeds_repeat_and_episodes_differ(name):
    first, again, other = trace(name, 1), trace(name, 1), trace(name, 2)
    for one, two in zip(first, again, strict=True):
        for left, right in zip(one, two, strict=True):
            np.testing.assert_array_equal(left, right)
    same = all(
        np.array_equal(left, right)
        for one, two in zip(first, other, strict=True)
        for left, right in zip(one, two, strict=True)
    )
    assert same == (name in ("password", "stochastic"))  # in which nothing is left to chance
    if not same:
        rows = np.stack([np.concatenate([part.ravel() for part in row]) for row in first])
        assert len(np.unique(rows, axis=0)) > 4  # neither the copies nor their episodes are the same


@each_name
def test_global_generators_are_left_alone(name):
    random.seed(1)
    np.random.seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist()
    scores(name, 20, 1, solving)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


# --- parameters, pictures, conformance


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("bandit", {"num_actions": 1}, "num_actions=1 leaves nothing to choose; use 2 or more"),
        ("bandit", {"reward_scale": 0.0}, "reward_scale=0.0 would hide which arm is the best; use a number above 0"),
        ("bandit", {"reward_scale": math.nan}, "reward_scale=nan"),
        ("bandit", {"reward_noise": -1.0}, "reward_noise=-1.0 is not a standard deviation; use 0 or more"),
        ("bandit", {"reward_noise": math.inf}, "reward_noise=inf"),
        ("bandit", {"arm_seed": -1}, "arm_seed=-1 cannot seed a generator; use 0 or more"),
        ("memory", {"length": 0}, "length=0 leaves nothing to remember; use 1 or more"),
        ("memory", {"delay": -1}, "delay=-1 is not a number of steps; use 0 or more"),
        ("password", {"length": 0}, "length=0 leaves nothing to guess; use 1 or more"),
        ("password", {"password_seed": -1}, "password_seed=-1 cannot seed a generator; use 0 or more"),
        ("stochastic", {"p": 0.0}, "p=0.0 asks for one action only; use a number between 0 and 1"),
        ("stochastic", {"p": 1.0}, "p=1.0 asks for one action only"),
        ("stochastic", {"p": math.nan}, "p=nan"),
        ("stochastic", {"horizon": 0}, "horizon=0 is not a number of steps; use 1 or more"),
    ],
)
def test_impossible_parameters_are_refused(name, params, message):
    with pytest.raises(ValueError, match=message):
        creator(name)(**params)


BLUE, RED, GREY = "\033[94m██\033[0m", "\033[91m██\033[0m", "\033[90m██\033[0m"


def pictures(name, actions, **params):
    """The picture in the terminal after a reset, and after some actions."""
    env = wrapped(name, render_mode="ansi", **params)
    env.reset(seed=1)
    before = env.render()
    for action in actions:
        env.step(action)
    return env, before, env.render()


def test_picture_of_bandit():
    env, before, after = pictures("bandit", [0], arm_seed=0)
    arms = [BLUE if arm == env.env.best_arm else GREY for arm in range(4)]
    assert before == "".join(arms) + "\n" + GREY * 4
    assert after == "".join(arms) + "\n" + RED + GREY * 3


def test_picture_of_memory():
    env, before, after = pictures("memory", [0] * 4 + [1, 0])
    bits = [BLUE if bit else RED for bit in env.env.bits]
    assert before == bits[0] + GREY + "\n" + GREY * 2
    assert after == "".join(bits) + "\n" + BLUE + RED


def test_picture_of_password():
    env, before, after = pictures("password", [1, 0])
    password = "".join(BLUE if bit else RED for bit in env.env.password)
    assert before == password + "\n" + GREY * 5
    assert after == password + "\n" + BLUE + RED + GREY * 3


def test_picture_of_stochastic():
    _, before, after = pictures("stochastic", [0, 1, 0, 1])
    assert before == BLUE * 14 + GREY * 6 + "\n" + GREY * 20
    assert after == BLUE * 14 + GREY * 6 + "\n" + RED * 10 + GREY * 10


def test_picture_of_multiagent():
    env, before, after = pictures("multiagent", [{"agent_0": 1, "agent_1": 0}])
    first, second = (BLUE if b > 0 else RED for b in env.env.asked)
    assert before == first + GREY * 2 + "\n" + GREY + second + GREY
    assert after == first + GREY + BLUE + "\n" + GREY + second + RED


def test_picture_of_spaces():
    env = creator("spaces")(render_mode="ansi")
    seen, _ = env.reset(seed=1)
    rows = [*seen["image"], seen["flat"]]
    assert env.render() == "\n".join("".join(BLUE if x > 0 else RED if x < 0 else GREY for x in row) for row in rows)
