"""Tag on a grid: each rule in a scene, all rules beside a second telling of them, and the same episodes everywhere."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pettingzoo.test import parallel_api_test, parallel_seed_test

import pufferlib
from cuda_ext.references.episodes import POOL, START
from cuda_ext.references.pictures import FIELD, GROUND, HEADER, HEIGHT, MARGIN, RUNNER, TAGGED, TAGGER, WIDTH
from cuda_ext.references.tag_grid import TagGrid
from pufferlib.util.philox import below, philox

pytestmark = pytest.mark.beside

STAY, RIGHT, LEFT, UP, DOWN = range(5)
WALL, TAG, PENALTY, COST = map(np.float32, (0.1, 10, 2, 0.01))  # the defaults


def scene(*cells: tuple[int, int], taggers: int = 1, length: int = 4, seed: int = 0, **kwargs: Any) -> TagGrid:
    """An environment whose agents, taggers first, have just been put on these cells."""
    counts = {"num_taggers": taggers, "num_runners": len(cells) - taggers}
    env = TagGrid(**counts, grid_length=length, start="fixed", starts=cells, **kwargs)
    env.reset(seed=seed)
    return env


def act(env: TagGrid, *actions: int) -> Any:
    """What a step returns for the actions of those who live, infos left out; flags as the names of whose are set."""
    observations, rewards, terminations, truncations, infos = env.step(dict(zip(env.agents, actions, strict=True)))
    assert list(observations) == list(rewards) == list(terminations) == list(truncations) == list(infos)
    flagged = [{name for name, flag in flags.items() if flag} for flags in (terminations, truncations)]
    return observations, list(rewards.values()), *flagged


def cells(env: TagGrid) -> list[tuple[int, int]]:
    return list(zip(env.x.tolist(), env.y.tolist(), strict=True))


def test_moves() -> None:
    env = scene(*[(2, 2)] * 5, (0, 0), taggers=5)
    act(env, STAY, RIGHT, LEFT, UP, DOWN, STAY)
    assert cells(env) == [(2, 2), (3, 2), (1, 2), (2, 3), (2, 1), (0, 0)]  # on one cell before: nobody blocks anybody


@pytest.mark.parametrize(
    ("corner", "into", "along"),
    [((0, 0), (LEFT, DOWN), (RIGHT, UP)), ((4, 4), (RIGHT, UP), (LEFT, DOWN)),
     ((0, 4), (LEFT, UP), (RIGHT, DOWN)), ((4, 0), (RIGHT, DOWN), (LEFT, UP))],
)  # fmt: skip
def test_walls_in_the_corners(corner: tuple[int, int], into: Any, along: Any) -> None:
    for action in into:
        env = scene(corner, corner[::-1] if corner[0] != corner[1] else (corner[0], 4 - corner[1]))
        _, (tagger, runner), *_ = act(env, action, STAY)
        assert cells(env)[0] == corner
        assert (tagger, runner) == (-WALL - COST, COST)
    for action in along:
        env = scene(corner, (2, 2))
        assert act(env, action, STAY)[1] == [-COST, COST]
        assert cells(env)[0] != corner


def test_who_hits_the_wall_may_tag_and_be_tagged_there() -> None:
    env = scene((0, 0), (0, 0))
    _, rewards, terminated, truncated = act(env, LEFT, DOWN)
    assert rewards == [-WALL + TAG, -WALL - PENALTY]
    assert (terminated, truncated) == ({"tagger_0", "runner_0"}, set())


def test_a_start_on_one_cell_is_no_tag_yet() -> None:
    env = scene((1, 1), (1, 1))
    assert env.agents == ["tagger_0", "runner_0"]
    assert act(env, STAY, RIGHT)[1] == [-COST, COST]


def test_swapping_cells_is_no_tag_and_meeting_is() -> None:
    env = scene((1, 1), (2, 1))
    assert act(env, RIGHT, LEFT)[1:] == ([-COST, COST], set(), set())
    env = scene((1, 1), (3, 1))
    assert act(env, RIGHT, LEFT)[1:] == ([TAG, -PENALTY], {"tagger_0", "runner_0"}, set())


def test_every_tagger_is_rewarded_for_every_runner() -> None:
    """Two tagged at once, by one tagger or by two, or one by two: nobody loses a reward and none is paid twice."""
    for taggers in ([(1, 1), (4, 4)], [(1, 1), (1, 1)], [(1, 1), (3, 3)]):
        env = scene(*taggers, (1, 1), (1, 1) if taggers[1] != (3, 3) else (3, 3), (0, 4), taggers=2)
        _, rewards, terminated, truncated = act(env, *[STAY] * 5)
        assert rewards == [2 * TAG, 2 * TAG, -PENALTY, -PENALTY, COST]
        assert (terminated, truncated) == ({"runner_0", "runner_1"}, set())
        assert env.agents == ["tagger_0", "tagger_1", "runner_2"]
        assert env.alive.tolist() == [True, True, False, False, True]


def test_who_was_tagged_stays_away() -> None:
    env = scene((1, 1), (1, 1), (4, 4))
    act(env, STAY, STAY, STAY)
    observations, rewards, terminated, _ = act(env, STAY, STAY)  # on the cell where runner_0 was
    assert (list(observations), rewards, terminated) == (["tagger_0", "runner_1"], [-COST, COST], set())
    assert cells(env)[1] == (1, 1)
    for _ in range(3):
        act(env, RIGHT, STAY)
    for _ in range(2):
        act(env, UP, STAY)
    assert act(env, UP, STAY)[1:] == ([TAG, -PENALTY], {"tagger_0", "runner_1"}, set())
    assert env.agents == [] and env.step({}) == ({}, {}, {}, {}, {})
    assert env.t == 8


def test_time_runs_out_for_all_that_live() -> None:
    env = scene((0, 0), (2, 2), episode_length=2)
    assert act(env, STAY, STAY)[2:] == (set(), set())
    assert act(env, STAY, STAY)[1:] == ([-COST, COST], set(), {"tagger_0", "runner_0"})
    assert env.agents == [] and env.alive.all()


def test_a_tag_in_the_last_step_is_a_tag() -> None:
    everyone = {"tagger_0", "runner_0"}
    assert act(scene((1, 1), (1, 1), episode_length=1), STAY, STAY)[1:] == ([TAG, -PENALTY], everyone, set())
    env = scene((1, 1), (1, 1), (4, 4), episode_length=1)  # one is left: the others have no time more
    assert act(env, *[STAY] * 3)[1:] == ([TAG, -PENALTY, COST], {"runner_0"}, {"tagger_0", "runner_1"})
    assert env.agents == []


def test_rewards_are_sums_of_float32() -> None:
    env = scene((0, 0), (0, 0), (0, 0), (4, 4), wall_hit_penalty=0.3, tag_reward_for_tagger=0.7)
    rewards = act(env, LEFT, STAY, STAY, STAY)[1]
    assert rewards[0] == float(-np.float32(0.3) + np.float32(2) * np.float32(0.7)) != -0.3 + 2 * 0.7


def test_full_observations() -> None:
    env = scene((1, 2), (3, 4), (4, 0), (1, 3), taggers=2, episode_length=8)
    first, _ = env.reset()
    x, y, kind = [0.25, 0.75, 1, 0.25], [0.5, 1, 0, 0.75], [0, 0, 1, 1]
    for agent, name in enumerate(env.possible_agents):
        assert first[name].dtype == np.float32
        assert first[name].tolist() == [*x, *y, *kind, *np.eye(4)[agent], 0]
    observations, *_ = act(env, UP, STAY, STAY, STAY)  # tags runner_1, which sees itself gone
    x, y, kind = [0.25, 0.75, 1, 0], [0.75, 1, 0, 0], [0, 0, 1, 0]
    for agent, name in enumerate(env.possible_agents):
        assert observations[name].tolist() == [*x, *y, *kind, *np.eye(4)[agent], 0.125]


def test_partial_observations() -> None:
    env = scene((2, 2), (0, 0), (4, 4), taggers=2, full_observation=False, episode_length=8)
    observations, _ = env.reset()
    assert observations["tagger_0"].tolist() == [0.5, 0.5, 1, 1, 0, 0]
    assert observations["tagger_1"].tolist() == [0, 0, 1, 1, 0, 0]
    assert observations["runner_0"].tolist() == [1, 1, 0.5, 0.5, 1, 0]
    observations, *_ = act(env, LEFT, UP, DOWN)
    assert observations["runner_0"].tolist() == [1, 0.75, 0.25, 0.5, 1, 0.125]


def test_of_two_as_near_the_lower_number_is_seen() -> None:
    around = [(2, 3), (3, 2), (2, 1), (1, 2)]
    for shift in range(4):
        taggers = around[shift:] + around[:shift]
        env = scene((4, 4), *taggers, (2, 2), taggers=5, full_observation=False, num_nearest=2)
        seen = env.reset()[0]["runner_0"] * 4
        assert seen[2:6].tolist() == [taggers[0][0], taggers[1][0], taggers[0][1], taggers[1][1]]
    crowd = around * 25  # sorts that are not stable often are where there is little to sort
    env = scene(*crowd, (2, 2), taggers=100, full_observation=False, num_nearest=100)
    assert (env.reset()[0]["runner_0"][2:102] * 4).tolist() == [x for x, _ in crowd]


def test_nearest_first_and_zeros_where_fewer_live() -> None:
    env = scene((2, 2), (4, 4), (2, 2), (2, 1), full_observation=False, num_nearest=5, episode_length=4)
    observations, _ = env.reset()
    assert (observations["tagger_0"] * 4).tolist() == [2, 2, 2, 2, 4, 0, 0, 2, 1, 4, 0, 0, 0, 0]
    assert (observations["runner_0"] * 4).tolist() == [4, 4, 2, 0, 0, 0, 0, 2, 0, 0, 0, 0, 4, 0]
    observations, *_ = act(env, *[STAY] * 4)
    assert (observations["tagger_0"] * 4).tolist() == [2, 2, 2, 4, 0, 0, 0, 1, 4, 0, 0, 0, 0, 1]
    assert (observations["runner_1"] * 4).tolist() == [2, 2, 2, 0, 0, 0, 0, 2, 0, 0, 0, 0, 4, 1]  # the one that left


def test_when_all_are_gone_there_is_nobody_to_see() -> None:
    env = scene((2, 2), (2, 2), (2, 2), full_observation=False, num_nearest=2)
    observations, _, terminated, _ = act(env, *[STAY] * 3)
    assert terminated == set(env.possible_agents)
    assert (observations["tagger_0"] * 4)[:-2].tolist() == [2, 2, 0, 0, 0, 0]


def test_squared_distances_do_not_overflow() -> None:
    most = 32_767
    env = scene((most, most), (most - 1, most), (0, 0), taggers=2, length=most, full_observation=False)
    assert env.reset()[0]["runner_0"][2] == np.float32(most - 1) / np.float32(most)


# Starts and seeds


def test_procedural_starts_are_draws_by_agent() -> None:
    assert (START, POOL) == (1, 2)  # other numbers would start all seeds elsewhere
    env = TagGrid(num_taggers=3, num_runners=2, grid_length=7)
    for seed, episode in ((5, 0), (5, 1), (2**32 - 1, 0)):
        env.reset(seed=None if episode else seed)
        draws = [philox(seed, episode, 0, agent, START) for agent in range(5)]
        assert cells(env) == [(below(words[0], 8), below(words[1], 8)) for words in draws]


def test_procedural_starts_are_uniform() -> None:
    env = TagGrid(num_taggers=2, num_runners=1, grid_length=3)
    counts = np.zeros((3, 4, 4))
    for seed in range(1600):
        env.reset(seed=seed)
        counts[np.arange(3), env.x, env.y] += 1
    assert np.abs(counts - 100).max() < 6 * np.sqrt(100)  # always the same draws


def test_fixed_starts() -> None:
    env = TagGrid(num_taggers=2, num_runners=2, grid_length=5, start="fixed")
    for seed in (1, None, 2):
        env.reset(seed=seed)
        assert cells(env) == [(2, 2), (2, 2), (0, 0), (0, 0)]


def test_layouts_of_a_pool_come_whole_and_all_come() -> None:
    pool = [[(i, i), (i + 1, i), (i, i + 1)] for i in range(4)]
    env = TagGrid(num_taggers=2, num_runners=1, grid_length=4, start="pool", starts=pool)
    seen: Counter[int] = Counter()
    env.reset(seed=3)
    for episode in range(400):
        number = below(philox(3, episode, 0, 0, POOL)[0], len(pool))
        assert cells(env) == pool[number]
        seen[number] += 1
        observations, _ = env.reset()
        expected = np.array([*env.x, *env.y], np.float32) / np.float32(4)  # of the layout that was drawn
        assert observations["runner_0"][:6].tolist() == expected.tolist()
    assert set(seen) == set(range(4)) and min(seen.values()) > 60


def test_the_pool_is_by_default_episodes_of_seed_0() -> None:
    env, other = TagGrid(start="pool"), TagGrid()
    other.reset(seed=0)
    layouts = [cells(other)]
    for _ in range(4):
        other.reset()
        layouts.append(cells(other))
    indices = set()
    for seed in range(60):
        env.reset(seed=seed)
        indices.add(layouts.index(cells(env)))
    assert indices == set(range(5))


def test_a_layout_is_not_changed_by_play() -> None:
    env = scene((1, 1), (3, 3))
    act(env, RIGHT, LEFT)
    env.reset()
    env.x[:] = env.y[:] = 2
    env.reset()
    assert cells(env) == [(1, 1), (3, 3)]


def test_seeds_and_episodes() -> None:
    env = TagGrid()
    env.reset(seed=7)
    layouts = [cells(env)]
    for episode in (1, 2):
        env.reset()
        assert (env.seed, env.episode, env.t) == (7, episode, 0)
        layouts.append(cells(env))
    env.reset(seed=8)
    assert len({*map(tuple, layouts), tuple(cells(env))}) == 4
    env.reset(seed=7)
    assert (env.episode, cells(env)) == (0, layouts[0])
    for seed in (-1, 2**32):
        with pytest.raises(ValueError, match=rf"seed={seed} is no uint32; use 0 to 2\*\*32 - 1"):
            env.reset(seed=seed)
    drawn = [TagGrid() for _ in range(2)]
    for env in drawn:
        env.reset()
        assert env.episode == 0
    assert drawn[0].seed != drawn[1].seed


# All rules at once


def oracle(config: dict[str, Any], before: list[tuple[int, int] | None], actions: dict[int, int], last: bool) -> Any:
    """The rules told again, agent by agent: cells (None for who has left), and of the living rewards, ends, sights."""
    num_taggers, side = config["num_taggers"], config["grid_length"]
    f = np.float32
    after, rewards = list(before), {}
    for agent, action in actions.items():
        x, y = before[agent]  # type: ignore[misc]
        if action in (1, 2):
            x += 3 - 2 * action
        elif action:
            y += 7 - 2 * action
        inside = 0 <= x <= side and 0 <= y <= side
        if inside:
            after[agent] = (x, y)
        rewards[agent] = f(0) if inside else -f(config["wall_hit_penalty"])
    hunted = set(after[:num_taggers])
    caught = [agent for agent in actions if agent >= num_taggers and after[agent] in hunted]
    left = [agent for agent in actions if agent >= num_taggers and agent not in caught]
    for agent in rewards:
        if agent >= num_taggers:
            gain = -f(config["tag_penalty_for_runner"]) if agent in caught else f(config["step_cost_for_tagger"])
        elif caught:
            gain = f(len(caught)) * f(config["tag_reward_for_tagger"])
        else:
            gain = -f(config["step_cost_for_tagger"])
        rewards[agent] = f(rewards[agent] + gain)
    ends = {agent: "terminated" if agent in caught or not left else "truncated" if last else "" for agent in actions}
    visible = [None if agent in caught else cell for agent, cell in enumerate(after)]
    sights = {agent: sight(config, visible, agent, after[agent]) for agent in actions}
    return visible, rewards, ends, sights


def sight(config: dict[str, Any], visible: list[Any], agent: int, cell_of_agent: Any) -> list[float]:
    """What an agent on the cell ``own`` sees, but for the time."""
    num_taggers, side, k = config["num_taggers"], np.float32(config["grid_length"]), config["num_nearest"]
    if config["full_observation"]:
        row = [np.float32(cell[axis] if cell else 0) / side for axis in (0, 1) for cell in visible]
        row += [float(bool(cell) and other >= num_taggers) for other, cell in enumerate(visible)]
        return row + [float(other == agent) for other in range(len(visible))]
    others = visible[num_taggers:] if agent < num_taggers else visible[:num_taggers]
    # sorted() is stable, so that of two as near the first stays first
    near = sorted(
        (c for c in others if c), key=lambda c: (c[0] - cell_of_agent[0]) ** 2 + (c[1] - cell_of_agent[1]) ** 2
    )[:k]
    near += [(0, 0)] * (k - len(near))
    row = [np.float32(value) / side for value in (*cell_of_agent, *(c[0] for c in near), *(c[1] for c in near))]
    return [*row, float(agent >= num_taggers)]


amounts = st.floats(0, 1e6, width=32)
configs = st.fixed_dictionaries(
    {
        "num_taggers": st.integers(1, 5),
        "num_runners": st.integers(1, 6),
        "grid_length": st.integers(1, 6),
        "episode_length": st.integers(1, 30),
        "wall_hit_penalty": amounts,
        "tag_reward_for_tagger": amounts,
        "tag_penalty_for_runner": amounts,
        "step_cost_for_tagger": amounts,
        "full_observation": st.booleans(),
        "num_nearest": st.integers(1, 7),
        "start": st.sampled_from(["procedural", "fixed", "pool"]),
    }
)


@settings(max_examples=settings().max_examples // 4)
@given(configs, st.integers(0, 2**32 - 1))
def test_plays_by_the_rules(config: dict[str, Any], seed: int) -> None:
    check_rules(config, seed)


@pytest.mark.long
@given(configs, st.integers(0, 2**32 - 1))
def test_plays_by_the_rules_at_length(config: dict[str, Any], seed: int) -> None:
    check_rules(config, seed)


def check_rules(config: dict[str, Any], seed: int) -> None:
    env, rng = TagGrid(**config), np.random.default_rng(seed)
    names, side = env.possible_agents, config["grid_length"]
    for episode in range(2):
        observations, _ = env.reset(seed=None if episode else seed)
        visible: list[tuple[int, int] | None] = list(cells(env))
        time = 0
        while env.agents:
            for agent, name in enumerate(names):
                if name in env.agents and not time:
                    assert observations[name].tolist() == [*sight(config, visible, agent, visible[agent]), 0]
            actions = {agent: int(rng.integers(5)) for agent, name in enumerate(names) if name in env.agents}
            time += 1
            visible, rewards, ends, sights = oracle(config, visible, actions, time == config["episode_length"])
            observations, *outcome, _ = env.step({names[agent]: action for agent, action in actions.items()})
            assert outcome == [
                {names[agent]: reward for agent, reward in rewards.items()},
                {names[agent]: end == "terminated" for agent, end in ends.items()},
                {names[agent]: end == "truncated" for agent, end in ends.items()},
            ]
            share = np.float32(time) / np.float32(config["episode_length"])
            for agent, row in sights.items():
                assert observations[names[agent]].tolist() == [*row, share]
                assert observations[names[agent]] in env.observation_space(names[agent])
            assert env.agents == [names[agent] for agent, end in ends.items() if not end]
            assert [cell if alive else None for cell, alive in zip(cells(env), env.alive, strict=True)] == visible
            assert all(0 <= x <= side and 0 <= y <= side for x, y in cells(env))
            assert env.x.dtype == env.y.dtype == np.int32 and env.t == time


# What others ask of an environment


@pytest.mark.parametrize(
    "kwargs", [{}, {"full_observation": False, "num_runners": 3, "num_nearest": 4, "num_taggers": 2, "start": "pool"}]
)
def test_pettingzoos_own_tests(kwargs: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    parallel_api_test(TagGrid(**kwargs), num_cycles=250)
    parallel_seed_test(lambda: TagGrid(**kwargs), num_cycles=50)


def rollout(backend: str) -> list[np.ndarray]:
    kwargs = {"num_taggers": 3, "num_runners": 2, "grid_length": 3, "episode_length": 12, "full_observation": False}
    workers = 1 if backend == "serial" else 2
    rng = np.random.default_rng(2)
    with pufferlib.make(
        "tag/grid", backend=backend, num_envs=3, num_workers=workers, seed=4, env_kwargs=kwargs, copy=True
    ) as vec:
        vec.reset()
        rows: list[np.ndarray] = []
        for _ in range(40):
            vec.step(rng.integers(0, 5, vec.action_space.shape))
            batch = vec.batch
            rows += [batch.observations, batch.rewards, batch.terminations, batch.truncations, batch.masks]
        return rows


def test_the_same_episodes_on_every_backend() -> None:
    expected = rollout("serial")
    assert any(rows.any() for rows in expected[2::5]) and any(rows.any() for rows in expected[3::5])
    for backend in ("multiprocessing", "pool"):
        for actual, rows in zip(rollout(backend), expected, strict=True):
            np.testing.assert_array_equal(actual, rows)


@pytest.mark.parametrize("start", ["procedural", "pool"])
def test_environments_start_differently(start: str) -> None:
    with pufferlib.make("tag/grid", num_envs=16, seed=1, env_kwargs={"start": start}) as vec:
        observations, _ = vec.reset()
        first = {tuple(rows[0, :22].tolist()) for rows in observations.reshape(16, 11, -1)}
    assert len(first) == 16 if start == "procedural" else 2 <= len(first) <= 5


def test_pictures() -> None:
    cells = [(0, 0), (2, 1), (0, 0), (1, 1), (2, 1), (2, 2)]
    env = scene(*cells, taggers=2, length=2, render_mode="ansi")
    assert env.render() == "..R\n.RB\nB.."
    act(env, STAY, STAY, STAY, STAY, STAY, STAY)
    assert env.render() == "..R\n.RT\nT.."
    env.render_mode = "rgb_array"
    pixels = env.render()
    assert (pixels.shape, pixels.dtype) == ((HEIGHT, WIDTH, 3), np.uint8)

    def at(x: int, y: int, right: int = 0) -> tuple[int, ...]:
        row, column = (int(FIELD * (coordinate + 0.5) / 3) for coordinate in (y, x))
        return tuple(pixels[HEIGHT - MARGIN - row, MARGIN + column + right].tolist())

    expected = [[GROUND, GROUND, RUNNER], [GROUND, RUNNER, TAGGER], [TAGGER, GROUND, GROUND]]
    assert [[at(x, y) for x in range(3)] for y in (2, 1, 0)] == expected
    header = pixels[:HEADER]
    act(env, UP, DOWN, STAY, STAY)
    pixels = env.render()
    assert (at(0, 0), at(0, 0, right=20), at(0, 0, right=-20)) == (
        GROUND,
        TAGGED,
        TAGGED,
    )  # a ring where one was tagged
    assert (pixels[:HEADER] != header).any()  # which tells the time
    assert TagGrid(grid_length=30_000, render_mode="rgb_array").render().shape == pixels.shape
    assert TagGrid().render() is None


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"num_taggers": 0}, "num_taggers=0 is impossible; use an integer from 1 to 16777216"),
        ({"num_runners": 1.0}, "num_runners=1.0 is impossible; use an integer from 1"),
        ({"grid_length": 32768}, "grid_length=32768 is impossible; use an integer from 1 to 32767"),
        ({"episode_length": 2**24 + 1}, "use an integer from 1 to 16777216"),
        ({"num_nearest": 0}, "num_nearest=0 is impossible"),
        ({"wall_hit_penalty": float("nan")}, "wall_hit_penalty=nan is impossible; use a number that a float32 can"),
        ({"tag_reward_for_tagger": 1e39}, r"tag_reward_for_tagger=1e\+39 is impossible"),
        ({"tag_penalty_for_runner": "2"}, "tag_penalty_for_runner='2' is impossible"),
        ({"step_cost_for_tagger": None}, "step_cost_for_tagger=None is impossible"),
        ({"start": "random"}, 'start=\'random\' is unknown; use "procedural", "fixed" or "pool"'),
        ({"starts": [(0, 0)] * 11}, 'draws its own starts; leave starts out, or use "fixed" or "pool"'),
        ({"start": "fixed", "starts": [(0, 0)]}, r'shape \(1, 2\); start="fixed" takes \(11, 2\)'),
        ({"start": "pool", "starts": [(0, 0)] * 11}, r'shape \(11, 2\); start="pool" takes \(P, 11, 2\)'),
        ({"start": "pool", "starts": np.empty((0, 11, 2), int)}, r"takes \(P, 11, 2\)"),
        ({"start": "fixed", "starts": 3}, r"has the shape \(\)"),
        ({"start": "fixed", "starts": [(0, 0.5)] * 11}, "starts is of float64; use integers"),
        ({"start": "fixed", "starts": [(0, 11)] * 11}, "starts has 0 to 11; use 0 to grid_length=10"),
        ({"start": "fixed", "starts": [(0, -1)] * 11}, "starts has -1 to 0; use 0 to"),
        ({"render_mode": "human"}, 'render_mode=\'human\' is unknown; use "ansi", "rgb_array" or None'),
    ],
)
def test_what_cannot_be_played_is_refused(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TagGrid(**kwargs)


@pytest.mark.parametrize("action", [-1, 5])
def test_what_is_no_action_is_refused_and_changes_nothing(action: int) -> None:
    env = scene((1, 1), (3, 3))
    with pytest.raises(ValueError, match=rf"actions \[{action}, 0\] are not all of Discrete\(5\); use 0 to 4"):
        act(env, action, STAY)
    assert (env.t, cells(env)) == (0, [(1, 1), (3, 3)])
