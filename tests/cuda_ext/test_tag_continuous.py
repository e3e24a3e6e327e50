"""Tag on a plane: each rule in a scene, all rules beside a second telling of them, and the same episodes everywhere."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from devices import ON_HOST_AND_DEVICE, Player
from hypothesis import given, settings
from hypothesis import strategies as st
from pettingzoo.test import parallel_api_test, parallel_seed_test

import pufferlib
from cuda_ext.references.episodes import POOL, START
from cuda_ext.references.pictures import FIELD, GROUND, HEADER, HEIGHT, MARGIN, RUNNER, TAGGED, TAGGER, WIDTH
from cuda_ext.references.tag_continuous import TagContinuous
from cuda_ext.references.trigonometry import HALF_PI, TWO_PI
from pufferlib.testing import check_kernel
from pufferlib.util.philox import below, philox, uniform

pytestmark = pytest.mark.beside

Position = tuple[float, ...]  # x, y; direction 0 unless it follows
f = np.float32
REST = (0, 0)
# With two levels, actions: 0 nothing, 1 the least, 2 the most.
TWO_LEVELS = {"num_acceleration_levels": 2, "num_turn_levels": 2}


def scene(*places: Position, taggers: int = 1, length: float = 8, seed: int = 0, **kwargs: Any) -> TagContinuous:
    """An environment whose agents, taggers first, have just been put on these places, at rest."""
    counts = {"num_taggers": taggers, "num_runners": len(places) - taggers}
    starts = [(*position, 0.0)[:3] for position in places]
    env = TagContinuous(**{**counts, "grid_length": length, "start": "fixed", "starts": starts, **TWO_LEVELS, **kwargs})
    env.reset(seed=seed)
    return env


def act(env: TagContinuous, *actions: tuple[int, int]) -> Any:
    """What a step returns for the actions of those who live, infos left out; flags as the names of whose are set.

    Without actions all rest.
    """
    chosen = dict(zip(env.agents, actions or [REST] * len(env.agents), strict=True))
    observations, rewards, terminations, truncations, infos = env.step(chosen)
    assert list(observations) == list(rewards) == list(terminations) == list(truncations) == list(infos)
    flagged = [{name for name, flag in flags.items() if flag} for flags in (terminations, truncations)]
    return observations, list(rewards.values()), *flagged


def places(env: TagContinuous) -> list[tuple[float, float]]:
    return list(zip(env.x.tolist(), env.y.tolist(), strict=True))


# Motion


def test_actions_are_nothing_and_then_levels() -> None:
    env = TagContinuous(max_acceleration=0.5, min_acceleration=-0.25, num_acceleration_levels=4, num_turn_levels=3)
    assert env.accelerations.tolist() == [0, -0.25, 0, 0.25, 0.5] and env.accelerations.dtype == np.float32
    assert env.turns.tolist() == [0, -HALF_PI, 0, HALF_PI]
    assert env.action_space("tagger_0").nvec.tolist() == [5, 4]
    env = TagContinuous()
    assert env.action_space("runner_0").nvec.tolist() == [11, 11]
    assert np.count_nonzero(env.accelerations) == np.count_nonzero(env.turns) == 10  # even: nothing is the first alone
    assert TagContinuous(num_turn_levels=1, min_turn=0.5, max_turn=0.75).turns.tolist() == [0, 0.5]


def test_acceleration_adds_up() -> None:
    env = scene((1, 1), (7, 7), max_acceleration=0.125, min_acceleration=-0.125)
    speeds, accelerations, xs = [], [], []
    for action in (2, 0, 2, 0, 1, 1, 1):
        act(env, (action, 0), REST)
        speeds.append(env.speed[0] * 8)
        accelerations.append(env.acceleration[0] * 8)
        xs.append((env.x[0] - 1) * 8)
    assert accelerations == [1, 1, 2, 2, 1, 0, -1]
    assert speeds == [1, 2, 4, 6, 7, 7, 6]
    assert xs == np.cumsum(speeds).tolist()
    assert (env.speed[1], env.acceleration[1], places(env)[1]) == (0, 0, (7, 7))


def test_at_top_speed_and_at_rest_acceleration_is_lost() -> None:
    env = scene((1, 1), (1, 7), max_acceleration=0.75, min_acceleration=-0.75)
    states = []
    for action in (2, 0, 0, 1, 0, 0):
        act(env, (action, 0), REST)
        states.append((env.speed[0], env.acceleration[0]))
    assert states == [(0.75, 0.75), (1, 0), (1, 0), (0.25, -0.75), (0, 0), (0, 0)]
    env = scene((1, 1), (1, 7), max_acceleration=0.5)  # reached without being cut
    assert [act(env, (action, 0), REST) and env.acceleration[0] for action in (2, 0)] == [0.5, 0]
    assert env.speed[0] == 1


def test_skill_scales_the_top_speed_alone() -> None:
    env = scene((1, 1), (1, 7), max_speed=2, skill_level_tagger=0.25, skill_level_runner=0, max_acceleration=3)
    act(env, (2, 0), (2, 0))
    assert (env.speed.tolist(), env.acceleration.tolist(), places(env)) == ([0.5, 0], [0, 0], [(1.5, 1), (1, 7)])
    env = scene((1, 1), (1, 7), skill_level_tagger=4, max_acceleration=0.5)
    act(env, (2, 0), (2, 0))
    assert env.speed.tolist() == [0.5, 0.5]


def test_turns_come_before_the_move_and_directions_stay_below_a_turn() -> None:
    env = scene((4, 4), (7, 7))
    env.speed[0] = 1
    expected = [(4, 5), (3, 5), (3, 4), (4, 4)]
    for quarter, position in enumerate(expected, start=1):
        act(env, (0, 2), REST)
        assert env.direction[0] == pytest.approx(quarter % 4 * HALF_PI, abs=1e-6)
        assert places(env)[0] == pytest.approx(position, abs=1e-6)
    for quarter in (3, 2, 1, 0):
        act(env, (0, 1), REST)
        distance = abs(env.direction[0] - quarter * HALF_PI)
        assert min(distance, TWO_PI - distance) < 1e-6
    env = scene((4, 4), (7, 7), max_turn=TWO_PI, min_turn=-TWO_PI)
    for turn_action in (1, 2, 1, 1, 2, 2):
        act(env, (0, turn_action), REST)
        assert 0 <= env.direction[0] < TWO_PI


def test_who_rests_turns_all_the_same() -> None:
    env = scene((4, 4, 1), (7, 7))
    act(env, (0, 2), REST)
    assert env.direction[0] == f(1) + HALF_PI and places(env)[0] == (4, 4)


@pytest.mark.parametrize(
    ("position", "speed", "after", "hit"),
    [
        ((7.5, 4, 0), 1, (8, 4), True),
        ((7, 4, 0), 1, (8, 4), False),  # to the edge and no further
        ((8, 4, 0), 0, (8, 4), False),
        ((0.5, 4, np.pi), 1, (0, 4), True),
        ((4, 7.5, np.pi / 2), 1, (4, 8), True),
        ((4, 0.5, 3 * np.pi / 2), 1, (4, 0), True),
        ((7.5, 7.5, np.pi / 4), 1, (8, 8), True),  # both at once
        ((8, 4, np.pi / 4), 1, (8, 4 + 0.5**0.5), True),  # along the edge it goes on
    ],
)
def test_edges(position: Position, speed: float, after: Position, hit: bool) -> None:
    env = scene(position, (1, 1), edge_hit_penalty=-0.5, tagging_distance=0)
    env.speed[0] = speed
    _, (reward, _), *_ = act(env)
    assert places(env)[0] == pytest.approx(after, abs=1e-6)
    assert reward == (-0.5 if hit else 0)
    assert (env.speed[0], env.direction[0]) == (speed, f(position[2]))


# Tags, rewards, endings

AMOUNTS = {
    "tag_reward_for_tagger": 10.0,
    "tag_penalty_for_runner": -5.0,
    "step_penalty_for_tagger": -0.25,
    "step_reward_for_runner": 0.5,
    "end_of_game_reward_for_runner": 3.0,
    "tagging_distance": 0.125,  # 1 in a scene
}


def test_near_is_nearer_than_the_tagging_distance() -> None:
    assert act(scene((1, 1), (2, 1), **AMOUNTS))[1:] == ([-0.25, 0.5], set(), set())
    everybody = {"tagger_0", "runner_0"}
    assert act(scene((1, 1), (1.99, 1), **AMOUNTS))[1:] == ([9.75, -4.5], everybody, set())
    assert act(scene((1, 1), (1.8, 1.8), **AMOUNTS))[2] == set()
    assert act(scene((1, 1), (1.7, 1.7), **AMOUNTS))[2] == everybody
    assert act(scene((1, 1), (1, 1), **{**AMOUNTS, "tagging_distance": 0}))[2] == set()


def test_tags_are_of_places_after_the_move() -> None:
    env = scene((1, 1), (2.5, 1, np.pi), **AMOUNTS)
    env.speed[:] = 1
    assert act(env)[2] == {"tagger_0", "runner_0"}  # they have passed each other, and are 0.5 apart
    env = scene((1, 1, np.pi), (1.5, 1), **AMOUNTS)
    env.speed[:] = 1
    assert act(env)[2] == set()


def test_one_tagger_tags_many_and_is_paid_for_each() -> None:
    """And the game ends: WarpDrive loses one of two rewards, and counts one runner too many from then on."""
    env = scene((1, 1), (1.5, 1), (1, 1.5), (0.5, 1), **AMOUNTS)
    assert act(env)[1:] == ([29.75, -4.5, -4.5, -4.5], set(env.possible_agents), set())
    assert env.agents == [] and env.step({}) == ({}, {}, {}, {}, {})
    env = scene((1, 1), (1.5, 1), (1, 1.5), (7, 7), **AMOUNTS)
    assert act(env)[1:] == ([19.75, -4.5, -4.5, 0.5], {"runner_0", "runner_1"}, set())
    assert env.agents == ["tagger_0", "runner_2"]
    assert env.alive.tolist() == [True, False, False, True]


def test_only_the_nearest_tagger_is_paid() -> None:
    env = scene((1, 1), (1.75, 1), (1, 7), (1.5, 1), (1, 6.5), taggers=3, **AMOUNTS)
    assert act(env)[1] == [-0.25, 9.75, 9.75, -4.5, -4.5]


@pytest.mark.parametrize("shift", range(4))
def test_of_taggers_as_near_the_lower_number_is_paid(shift: int) -> None:
    around = [(4, 4.5), (4.5, 4), (4, 3.5), (3.5, 4)]
    env = scene((0, 0), *around[shift:], *around[:shift], (4, 4), taggers=5, **AMOUNTS)
    assert act(env)[1] == [-0.25, 9.75, -0.25, -0.25, -0.25, -4.5]


def test_who_was_tagged_stays_away() -> None:
    env = scene((1, 1), (1.5, 1, 1), (7, 7), **AMOUNTS)
    env.speed[1] = 0.25
    act(env, (0, 0), (2, 2), REST)
    left = [getattr(env, name)[1] for name in ("x", "y", "speed", "direction", "acceleration")]
    assert left[2] == 1 and left[3] == f(1) + HALF_PI
    observations, rewards, terminated, _ = act(env)
    assert (list(observations), rewards, terminated) == (["tagger_0", "runner_1"], [-0.25, 0.5], set())
    assert [getattr(env, name)[1] for name in ("x", "y", "speed", "direction", "acceleration")] == left


def test_time_runs_out_for_all_that_live() -> None:
    env = scene((0, 0), (7, 7), (7, 0), episode_length=2, **AMOUNTS)
    assert act(env)[1:] == ([-0.25, 0.5, 0.5], set(), set())
    assert act(env)[1:] == ([-0.25, 3.5, 3.5], set(), set(env.possible_agents))
    assert env.agents == [] and env.alive.all()


def test_a_tag_in_the_last_step_is_a_tag_and_ends_without_bonus() -> None:
    env = scene((1, 1), (1.5, 1), episode_length=1, **AMOUNTS)
    assert act(env)[1:] == ([9.75, -4.5], {"tagger_0", "runner_0"}, set())
    env = scene((1, 1), (1.5, 1), (7, 7), episode_length=1, **AMOUNTS)
    assert act(env)[1:] == ([9.75, -4.5, 3.5], {"runner_0"}, {"tagger_0", "runner_1"})
    env = scene((1, 1), (1.5, 1), (7, 7), episode_length=1, runner_exits_game_after_tagged=False, **AMOUNTS)
    assert act(env)[1:] == ([9.75, -4.5, 3.5], set(), set(env.possible_agents))


def test_runners_may_stay_in_the_game() -> None:
    env = scene((1, 1), (1.5, 1), episode_length=3, runner_exits_game_after_tagged=False, **AMOUNTS)
    for _ in range(2):
        assert act(env)[1:] == ([9.75, -4.5], set(), set())
        assert env.alive.all() and env.agents == ["tagger_0", "runner_0"]
    assert act(env)[2:] == (set(), {"tagger_0", "runner_0"})


def test_rewards_are_sums_of_float32() -> None:
    env = scene((8, 1), (8, 1), (8, 1), edge_hit_penalty=-0.3, tag_reward_for_tagger=0.7, step_penalty_for_tagger=-0.1)
    env.speed[0] = 0.03125
    reward = act(env)[1][0]
    assert reward == float((-f(0.3) - f(0.1)) + f(2) * f(0.7)) != -0.3 - 0.1 + 2 * 0.7


# Observations


def test_full_observations() -> None:
    env = scene((1, 2, 1), (3, 4), (4, 0, 2), taggers=2, episode_length=8, max_speed=2)
    env.speed[:], env.acceleration[:] = (0.5, 1, 1.5), (0.25, -0.25, 0)
    observations, *_ = act(env)
    diagonal, state = f(8) * f(np.sqrt(2)), [env.x, env.y, env.speed, env.acceleration, env.direction]
    scales = [diagonal, diagonal, f(2), f(2), TWO_PI]
    assert env.speed.tolist() == [0.75, 0.75, 1.5]
    for agent, others in ((0, (1, 2)), (1, (0, 2)), (2, (0, 1))):
        row = [(values[o] - values[agent]) / scale for values, scale in zip(state, scales, strict=True) for o in others]
        row += [float(o < 2) for o in others] + [1, 1, 0.125]
        row_seen = observations[env.possible_agents[agent]]
        assert row_seen.dtype == np.float32 and row_seen.tolist() == [float(values) for values in row]


def test_observations_know_of_this_steps_tags() -> None:
    """WarpDrive's are made before tags are resolved, and tell one step late who is out."""
    env = scene((1, 1), (1.5, 1), (7, 7), **AMOUNTS)
    observations, *_ = act(env)
    others = observations["tagger_0"][:-1].reshape(7, 2)
    assert others[:, 0].tolist() == [0] * 7
    assert others[:2, 1].tolist() != [0, 0] and others[5:, 1].tolist() == [0, 1]
    row = observations["runner_0"][:-1].reshape(7, 2)  # its last: it sees the others as it has always done
    assert row[0, 0] == f(-0.5) / (f(8) * f(np.sqrt(2))) and row[5:].tolist() == [[1, 0], [1, 1]]
    assert act(env)[0]["runner_1"][:-1].reshape(7, 2)[:, 1].tolist() == [0] * 7
    env = scene((1, 1), (1.5, 1), (7, 7), full_observation=False, num_nearest=2, **AMOUNTS)
    others = act(env)[0]["tagger_0"][:-1].reshape(7, 2)
    assert others[5:].tolist() == [[0, 0], [1, 0]] and others[0, 0] > 0.5


def test_the_nearest_of_both_kinds_are_seen_in_order() -> None:
    env = scene((4, 4), (4, 7), (4, 5), (4.5, 4), (2, 4), taggers=2, full_observation=False, num_nearest=3)
    others = env.reset()[0]["tagger_0"][:-1].reshape(7, 3) * 1
    diagonal = f(8) * f(np.sqrt(2))
    assert (others[0] * diagonal).tolist() == pytest.approx([0.5, 0, -2])
    assert (others[1] * diagonal).tolist() == pytest.approx([0, 1, 0])
    assert others[5].tolist() == [0, 0, 0] and others[6].tolist() == [1, 1, 1]
    assert env.reset()[0]["runner_0"][:-1].reshape(7, 3)[5].tolist() == [1, 0, 1]


def test_of_two_as_near_the_lower_number_is_seen_first() -> None:
    around = [(4, 5), (5, 4), (4, 3), (3, 4)]
    crowd = around * 10  # sorts that are not stable often are where there is little to sort
    env = scene(*crowd, (4, 4), taggers=40, full_observation=False, num_nearest=30)
    row = env.reset()[0]["runner_0"][:-1].reshape(7, 30)
    diagonal = f(8) * f(np.sqrt(2))
    assert row[0].tolist() == [f(x - 4) / diagonal for x, _ in crowd[:30]]
    assert row[1].tolist() == [f(y - 4) / diagonal for _, y in crowd[:30]]


def test_zeros_follow_where_fewer_are_alive() -> None:
    env = scene((1, 1), (1.5, 1), full_observation=False, num_nearest=4, episode_length=8, **AMOUNTS)
    first = env.reset()[0]["tagger_0"]
    assert first.shape == (29,) and first[:-1].reshape(7, 4)[:, 1:].any() == np.False_
    assert first[:-1].reshape(7, 4)[6].tolist() == [1, 0, 0, 0]
    observations, *_ = act(env)
    assert observations["tagger_0"].tolist() == [0] * 28 + [0.125]
    assert observations["runner_0"][:-1].reshape(7, 4)[5:].tolist() == [[1, 0, 0, 0]] * 2


def test_bounds_are_met_and_hold() -> None:
    env = scene((0, 0), (8, 8), skill_level_tagger=0.5, skill_level_runner=3, max_speed=1.5)
    space = env.observation_space("tagger_0")
    assert space.low[:-1].reshape(7, 1)[:, 0].tolist() == [-1, -1, -3, -6, -1, 0, 0]
    assert space.high.tolist() == [1, 1, 3, 6, 1, 1, 1, 1]
    env.speed[:], env.direction[:] = (0, 4.5), (np.nextafter(TWO_PI, f(0)), 0)
    env.acceleration[:] = (-env.top_speed_runner, env.top_speed_runner)
    everyone = np.arange(2)
    for name, row in env._by_name(everyone, env._observe(everyone)).items():
        assert row in space, name
        assert abs(row[2:4]).tolist() == [3, 6]


# Starts and seeds


def test_procedural_starts_are_draws_by_agent() -> None:
    assert (START, POOL) == (1, 2)  # other numbers would start all seeds elsewhere
    env = TagContinuous(num_taggers=3, num_runners=2, grid_length=7)
    for seed, episode in ((5, 0), (5, 1), (2**32 - 1, 0)):
        env.speed[:] = env.acceleration[:] = 1
        env.reset(seed=None if episode else seed)
        draws = [philox(seed, episode, 0, agent, START) for agent in range(5)]
        assert places(env) == [(uniform(words[0]) * f(7), uniform(words[1]) * f(7)) for words in draws]
        assert env.direction.tolist() == [f(below(words[2], 4)) * HALF_PI for words in draws]
        assert not env.speed.any() and not env.acceleration.any() and env.alive.all()


def test_procedural_starts_are_uniform() -> None:
    env = TagContinuous(num_taggers=2, num_runners=1, grid_length=4)
    counts = np.zeros((3, 3, 4))
    for seed in range(1600):
        env.reset(seed=seed)
        drawn = np.stack([env.x, env.y, env.direction / HALF_PI]).astype(int)
        counts[np.arange(3)[:, None], np.arange(3), drawn] += 1
    assert counts.sum() == 9 * 1600
    assert np.abs(counts - 400).max() < 6 * np.sqrt(400)  # always the same draws


def test_fixed_starts() -> None:
    other = TagContinuous(num_taggers=2, num_runners=2)
    other.reset(seed=0)
    env = TagContinuous(num_taggers=2, num_runners=2, start="fixed")
    for seed in (1, None, 2):
        env.reset(seed=seed)
        assert places(env) == places(other) and (env.direction == other.direction).all()


def test_layouts_of_a_pool_come_whole_and_all_come() -> None:
    pool = [[(i, i + 0.5, i), (i + 1, i, 0), (i, i + 1, 1)] for i in range(4)]
    env = TagContinuous(num_taggers=2, num_runners=1, grid_length=4, start="pool", starts=pool)
    seen: Counter[int] = Counter()
    observations, _ = env.reset(seed=3)
    for episode in range(400):
        number = below(philox(3, episode, 0, 0, POOL)[0], len(pool))
        assert [(*position, direction) for position, direction in zip(places(env), env.direction, strict=True)] == pool[
            number
        ]
        assert observations["tagger_0"][0] == (env.x[1] - env.x[0]) / (f(4) * f(np.sqrt(2)))  # of the layout drawn
        seen[number] += 1
        observations, _ = env.reset()
    assert set(seen) == set(range(4)) and min(seen.values()) > 60


def test_the_pool_is_by_default_episodes_of_seed_0() -> None:
    env, other = TagContinuous(start="pool"), TagContinuous()
    other.reset(seed=0)
    layouts = [places(other)]
    for _ in range(4):
        other.reset()
        layouts.append(places(other))
    indices = set()
    for seed in range(60):
        env.reset(seed=seed)
        indices.add(layouts.index(places(env)))
    assert indices == set(range(5))


def test_a_layout_is_not_changed_by_play() -> None:
    env = scene((1, 1), (3, 3))
    act(env, (2, 2), (2, 2))
    env.reset()
    env.x[:] = env.y[:] = env.direction[:] = 2
    env.reset()
    assert places(env) == [(1, 1), (3, 3)] and not env.direction.any()


def test_seeds_and_episodes() -> None:
    env = TagContinuous()
    env.reset(seed=7)
    layouts = [places(env)]
    for episode in (1, 2):
        env.reset()
        assert (env.seed, env.episode, env.t) == (7, episode, 0)
        layouts.append(places(env))
    assert len({tuple(layout) for layout in layouts}) == 3
    env.reset(seed=7)
    assert (env.episode, places(env)) == (0, layouts[0])
    with pytest.raises(ValueError, match=r"seed=-1 is no uint32; use 0 to 2\*\*32 - 1"):
        env.reset(seed=-1)


# All rules at once


def expected_motion(env: TagContinuous, before: Any, agent: int, action: tuple[int, int]) -> tuple[list[float], bool]:
    """Where an agent gets, told in Python's floats: x, y, speed, direction, and whether it clearly hits the edge."""
    x, y, speed, direction, acceleration = (float(values[agent]) for values in before)
    skill = env.top_speed_tagger if agent < env.num_taggers else env.top_speed_runner
    direction = (direction + float(env.turns[action[1]])) % (2 * math.pi)
    speed = min(max(speed + acceleration + float(env.accelerations[action[0]]), 0), float(skill))
    x, y = x + speed * math.cos(direction), y + speed * math.sin(direction)
    inside = min(max(x, 0), float(env.grid_length)), min(max(y, 0), float(env.grid_length))
    return [*inside, speed, direction], math.dist(inside, (x, y)) > 1e-4


def tagged_by(env: TagContinuous, runner: int) -> int | None:
    """The tagger of a runner, of places as they are now."""
    best: tuple[np.float32, int] | None = None
    for tagger in range(env.num_taggers):
        dx, dy = env.x[tagger] - env.x[runner], env.y[tagger] - env.y[runner]
        square = dx * dx + dy * dy
        if best is None or square < best[0]:
            best = square, tagger
    assert best is not None
    return best[1] if best[0] < env.squared_reach else None


def sight(env: TagContinuous, agent: int) -> list[float]:
    """What an agent sees of the state as it is now."""
    everyone = [o for o in range(len(env.alive)) if o != agent]
    if not env.full_observation:

        def key(o: int) -> tuple[float, int]:
            dx, dy = env.x[o] - env.x[agent], env.y[o] - env.y[agent]
            return dx * dx + dy * dy, o

        everyone = sorted((o for o in everyone if env.alive[o]), key=key)[: env.num_nearest]
    gap = [0.0] * (0 if env.full_observation else env.num_nearest - len(everyone))
    diagonal = f(env.grid_length) * f(np.sqrt(2))
    row: list[float] = []
    for values, scale in (
        (env.x, diagonal),
        (env.y, diagonal),
        (env.speed, env.max_speed),
        (env.acceleration, env.max_speed),
        (env.direction, TWO_PI),
    ):
        row += [float((values[o] - values[agent]) / scale) if env.alive[o] else 0.0 for o in everyone] + gap
    row += [float(o < env.num_taggers) for o in everyone] + gap
    row += [float(env.alive[o]) for o in everyone] + gap
    return [*row, float(f(env.t) / f(env.episode_length))]


positive, losses = st.floats(0, 1e3, width=32), st.floats(-1e3, 0, width=32)
configs = st.fixed_dictionaries(
    {
        "num_taggers": st.integers(1, 4),
        "num_runners": st.integers(1, 6),
        "grid_length": st.floats(0.5, 5, width=32),
        "episode_length": st.integers(1, 25),
        "max_speed": st.floats(0.125, 2, width=32),
        "skill_level_tagger": st.floats(0, 2, width=32),
        "skill_level_runner": st.floats(0, 2, width=32),
        "max_acceleration": st.floats(0, 1, width=32),
        "min_acceleration": st.floats(-1, 0, width=32),
        "max_turn": st.floats(0, 6.25, width=32),
        "min_turn": st.floats(-6.25, 0, width=32),
        "num_acceleration_levels": st.integers(1, 5),
        "num_turn_levels": st.integers(1, 5),
        "edge_hit_penalty": losses,
        "full_observation": st.booleans(),
        "num_nearest": st.integers(1, 7),
        "tagging_distance": st.floats(0, 0.375, width=32),
        "tag_reward_for_tagger": positive,
        "tag_penalty_for_runner": losses,
        "step_penalty_for_tagger": losses,
        "step_reward_for_runner": positive,
        "end_of_game_reward_for_runner": positive,
        "runner_exits_game_after_tagged": st.booleans(),
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
    env, rng = TagContinuous(**config), np.random.default_rng(seed)
    names, num_taggers = env.possible_agents, env.num_taggers
    most = env.action_space(names[0]).nvec
    for episode in range(2):
        observations, _ = env.reset(seed=None if episode else seed)
        time = 0
        while env.agents:
            active = [names.index(name) for name in env.agents]
            for agent in active:
                assert observations[names[agent]].tolist() == sight(env, agent)
            actions = {agent: tuple(rng.integers(0, most).tolist()) for agent in active}
            before = [array.copy() for array in (env.x, env.y, env.speed, env.direction, env.acceleration)]
            alive = env.alive.copy()
            observations, *outcome, _ = env.step({names[agent]: action for agent, action in actions.items()})
            time += 1
            assert env.t == time
            tagger_of = {agent: tagged_by(env, agent) for agent in active if agent >= num_taggers}
            tagged = [agent for agent, tagger in tagger_of.items() if tagger is not None]
            left = tagged if config["runner_exits_game_after_tagged"] else []
            over, last = len(left) == len(tagger_of), time == config["episode_length"]
            for agent, action in actions.items():
                state = [float(array[agent]) for array in (env.x, env.y, env.speed, env.direction)]
                wanted, hit = expected_motion(env, before, agent, action)
                assert state[:3] == pytest.approx(wanted[:3], abs=1e-5)
                around = abs(state[3] - wanted[3])
                assert min(around, abs(around - 2 * math.pi)) < 1e-5 and 0 <= state[3] < TWO_PI
                inner = all(1e-4 < value < env.grid_length - 1e-4 for value in state[:2])
                reward = outcome[0][names[agent]]
                runs = agent >= num_taggers
                expected = []
                for penalty in (env.edge_hit_penalty, f(0)):
                    total = penalty + (env.step_reward_for_runner if runs else env.step_penalty_for_tagger)
                    if not runs:
                        total = total + f(list(tagger_of.values()).count(agent)) * env.tag_reward_for_tagger
                    elif agent in tagged:
                        total = total + env.tag_penalty_for_runner
                    elif last:
                        total = total + env.end_of_game_reward_for_runner
                    expected.append(float(total))
                assert reward in expected[: 1 if hit else None][1 if inner else 0 :]
                assert outcome[1][names[agent]] == (agent in left or over)
                assert outcome[2][names[agent]] == (last and not (agent in left or over))
                top = env.top_speed_runner if runs else env.top_speed_tagger
                acceleration = before[4][agent] + env.accelerations[action[0]] if 0 < env.speed[agent] < top else 0
                assert env.acceleration[agent] == acceleration and abs(acceleration) <= top
                assert observations[names[agent]].tolist() == sight(env, agent)
                assert observations[names[agent]] in env.observation_space(names[agent])
            assert env.alive.tolist() == [was and agent not in left for agent, was in enumerate(alive)]
            gone = last or over
            assert env.agents == [names[agent] for agent in active if not gone and agent not in left]
            for array in (env.x, env.y, env.speed, env.direction, env.acceleration):
                assert array.dtype == np.float32
            assert 0 <= env.x.min() and env.x.max() <= env.grid_length
            assert 0 <= env.y.min() and env.y.max() <= env.grid_length


@pytest.mark.extras
@pytest.mark.parametrize("player", ON_HOST_AND_DEVICE, indirect=True)
@settings(max_examples=10)
@given(config=configs)
def test_the_kernel_plays_the_same_with_any_arguments(config: dict[str, Any], player: Player) -> None:
    report = check_kernel("tag/continuous", device=player.device, env_kwargs=config, num_envs=2, num_steps=40)
    assert report.passed, str(report)


# What others ask of an environment


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"full_observation": False, "num_runners": 3, "num_nearest": 4, "num_taggers": 2, "start": "pool",
         "tagging_distance": 0.2, "grid_length": 2},
    ],
)  # fmt: skip
def test_pettingzoos_own_tests(kwargs: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    parallel_api_test(TagContinuous(**kwargs), num_cycles=250)
    parallel_seed_test(lambda: TagContinuous(**kwargs), num_cycles=50)


def rollout(backend: str) -> list[np.ndarray]:
    kwargs = {"num_taggers": 3, "num_runners": 2, "grid_length": 3, "tagging_distance": 0.2, "episode_length": 12}
    workers = 1 if backend == "serial" else 2
    rng = np.random.default_rng(2)
    with pufferlib.make(
        "tag/continuous", backend=backend, num_envs=3, num_workers=workers, seed=4, env_kwargs=kwargs, copy=True
    ) as vec:
        vec.reset()
        rows: list[np.ndarray] = []
        for _ in range(40):
            vec.step(rng.integers(0, 11, vec.action_space.shape))
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
    with pufferlib.make("tag/continuous", num_envs=16, seed=1, env_kwargs={"start": start}) as vec:
        observations, _ = vec.reset()
        first = {tuple(rows[0].tolist()) for rows in observations.reshape(16, 11, -1)}
    assert len(first) == 16 if start == "procedural" else 2 <= len(first) <= 5


def test_pictures() -> None:
    env = scene((2, 2), (6, 6, np.pi / 2), (2.1, 2), render_mode="rgb_array", tagging_distance=0.05)
    pixels = env.render()
    assert (pixels.shape, pixels.dtype) == ((HEIGHT, WIDTH, 3), np.uint8)

    def has(colour: tuple[int, int, int], x: float, y: float, right: int = 0, up: int = 0) -> bool:
        """Whether a colour is so many pixels from a place, or next to there."""
        row, column = HEIGHT - MARGIN - round(FIELD * y / 8) - up, MARGIN + round(FIELD * x / 8) + right
        return bool((pixels[row - 2 : row + 3, column - 2 : column + 3] == colour).all(axis=2).any())

    assert has(RUNNER, 6, 6) and has(RUNNER, 6, 6, up=20)  # it heads upwards, as y goes
    assert not has(RUNNER, 6, 6, up=-20) and not has(RUNNER, 6, 6, right=20)
    # The tagger heads right: its tail is wide, and its tip is not.
    assert has(TAGGER, 2, 2, right=-10, up=8) and not has(TAGGER, 2, 2, right=14, up=8) and has(TAGGER, 2, 2, right=14)
    assert not has(GROUND, 2, 2, up=20) and has(GROUND, 2, 2, up=32)  # within its reach, and beyond
    header = pixels[:HEADER]
    act(env)  # the runner beside it is tagged
    act(env, (2, 0), REST)  # it goes on
    pixels = env.render()
    assert has(TAGGED, 2.1, 2, right=-11) and has(TAGGED, 2.1, 2, right=11) and not has(RUNNER, 2.1, 2)
    assert (pixels[:HEADER] != header).any()
    assert scene((0, 0, np.pi), (8, 8), render_mode="rgb_array").render().shape == pixels.shape
    assert TagContinuous().render() is None


PLACES = [(1.0, 1.0, 1.0)] * 11


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"num_taggers": 0}, "num_taggers=0 is impossible; use an integer from 1 to 16777216"),
        ({"num_runners": 1.0}, "num_runners=1.0 is impossible; use an integer from 1"),
        ({"grid_length": 0}, r"grid_length=0 is impossible; use a number from 1e-06 to 1e\+06"),
        ({"max_speed": float("nan")}, "max_speed=nan is impossible; use a number from 1e-06"),
        ({"skill_level_tagger": -1}, "skill_level_tagger=-1 is impossible; use a number from 0 to"),
        ({"num_nearest": 33}, "num_nearest=33 is impossible; use an integer from 1 to 32"),
        ({"max_turn": 7}, "max_turn=7 is impossible; use a number from -6.28319 to 6.28319"),
        ({"min_acceleration": 2}, "min_acceleration=2 is more than max_acceleration=1.0; use at most that"),
        ({"num_turn_levels": 0}, "num_turn_levels=0 is impossible"),
        ({"tagging_distance": "1"}, "tagging_distance='1' is impossible"),
        ({"edge_hit_penalty": 0.5}, "edge_hit_penalty=0.5 is impossible; use a number of at most 0 that a float32 can"),
        ({"tag_penalty_for_runner": 1.0}, "tag_penalty_for_runner=1.0 is impossible; use a number of at most 0"),
        ({"step_penalty_for_tagger": 1.0}, "step_penalty_for_tagger=1.0 is impossible"),
        ({"tag_reward_for_tagger": -1.0}, "tag_reward_for_tagger=-1.0 is impossible; use a number of at least 0"),
        ({"step_reward_for_runner": 1e39}, r"step_reward_for_runner=1e\+39 is impossible"),
        ({"end_of_game_reward_for_runner": None}, "end_of_game_reward_for_runner=None is impossible"),
        ({"start": "random"}, 'start=\'random\' is unknown; use "procedural", "fixed" or "pool"'),
        ({"starts": PLACES}, 'draws its own starts; leave starts out, or use "fixed" or "pool"'),
        ({"start": "fixed", "starts": [(0, 0)] * 11}, r'shape \(11, 2\); start="fixed" takes \(11, 3\)'),
        ({"start": "pool", "starts": PLACES}, r'shape \(11, 3\); start="pool" takes \(P, 11, 3\)'),
        ({"start": "fixed", "starts": [("a",) * 3] * 11}, "starts is of <U1; use numbers"),
        (
            {"start": "fixed", "starts": [(0, 11, 0)] * 11},
            "has x and y from 0.0 to 11.0; use 0 to grid_length=10",
        ),
        ({"start": "fixed", "starts": [(0, np.nan, 0)] * 11}, "starts has x and y from nan to nan; use 0 to"),
        (
            {"start": "fixed", "starts": [(0, 0, 6.5)] * 11},
            "has directions from 6.5 to 6.5; use 0 to below 2 pi",
        ),
        ({"render_mode": "ansi"}, "render_mode='ansi' is unknown; use \"rgb_array\" or None"),
    ],
)
def test_what_cannot_be_played_is_refused(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TagContinuous(**kwargs)


@pytest.mark.parametrize("action", [(-1, 0), (3, 0), (0, 3)])
def test_what_is_no_action_is_refused_and_changes_nothing(action: tuple[int, int]) -> None:
    env = scene((1, 1), (3, 3))
    with pytest.raises(ValueError, match=r"are not all of MultiDiscrete\(\[3, 3\]\); use 0 to 2 and 0 to 2"):
        act(env, action, REST)
    assert (env.t, places(env)) == (0, [(1, 1), (3, 3)])
