"""``evaluate``: exactly the episodes of the given seeds, the same to the bit wherever they are played."""

from __future__ import annotations

import math
import os
import signal
import time
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
from gymnasium import spaces
from mock_envs import HashEnv, HashPopulation, NestedHashEnv

import pufferlib
from pufferlib.errors import ActionError, PlanError, WorkerError
from pufferlib.evaluation import PolicyBatch, uniforms

pytestmark = pytest.mark.beside

PLANS: list[dict[str, Any]] = [
    {"backend": "serial", "num_envs": 1},
    {"backend": "serial", "num_envs": 5, "batch_size": 2},
    {"backend": "multiprocessing", "num_envs": 6, "num_workers": 2},
    {"backend": "multiprocessing", "num_envs": 7, "num_workers": 3, "batch_size": 3},
    {"backend": "pool", "num_envs": 6, "num_workers": 2},
    {"backend": "pool", "num_envs": 7, "num_workers": 2, "batch_size": 4},
]


def noisy(batch: PolicyBatch) -> Any:
    """Depends on the rows and on the seed, the step and the agent; not on anything that differs between plans."""
    num_agents = len(batch.agent_ids) // len(batch.env_ids)
    agents = batch.agent_ids % num_agents
    numbers = uniforms(batch.seeds.repeat(num_agents), batch.steps.repeat(num_agents), agents, 1)[:, 0]
    return ((numbers * 7).astype(np.int64) + batch.observations.reshape(len(agents), -1)[:, 0]) % 9


def nested(batch: PolicyBatch) -> Any:
    numbers = uniforms(batch.seeds, batch.steps, batch.env_ids * 0, 3)
    return (numbers[:, :1] * 5).astype(np.int64), (2 * numbers[:, 1:] - 1).astype(np.float32)


@pytest.mark.parametrize(("env", "policy"), [(HashEnv, noisy), (HashPopulation, noisy), (NestedHashEnv, nested)])
def test_results_are_the_same_wherever_they_are_played(env: Any, policy: Any) -> None:
    how = {"episodes": 23, "infos": ("tick", "born", "first"), "max_steps": 9}
    if env is HashPopulation:
        how["wrap_kwargs"] = {"max_agents": 4}
    first = pufferlib.evaluate(env, policy, **PLANS[0], **how)
    assert len(set(first.seeds.tolist())) == len(first) == 23
    assert {*first.endings.tolist()} == {"terminated", "truncated", "cut"}
    assert first.lengths.max() == 9 and len(set(first.returns.tolist())) > 15
    for plan in PLANS[1:]:
        assert pufferlib.evaluate(env, policy, **plan, **how) == first, plan
    backwards = {**how, "seeds": first.seeds[::-1].tolist(), "episodes": None}
    again = pufferlib.evaluate(env, policy, **PLANS[4], **backwards)
    assert again.returns[::-1].tolist() == first.returns.tolist()


def test_a_row_is_as_an_episode_played_alone() -> None:
    result = pufferlib.evaluate(HashEnv, noisy, seeds=[7, 3], backend="serial", infos=("tick",))
    for seed, episode_return, length, tick in zip(
        result.seeds, result.returns, result.lengths, result.infos["tick"], strict=True
    ):
        env = HashEnv()
        observation, _ = env.reset(seed=int(seed))
        total, over, steps, info = 0.0, False, 0, {}
        while not over:
            batch = PolicyBatch(*[np.array([x]) for x in (observation, 0, steps > 0, 0, 0, seed, steps)])
            observation, reward, terminated, truncated, info = env.step(noisy(batch)[0])
            total, over, steps = total + reward, terminated or truncated, steps + 1
        assert (episode_return, length) == (total, steps)
        assert tick == info["tick"] if "tick" in info else math.isnan(tick)
        assert ("truncated" if truncated else "terminated") in result.endings.tolist()


def test_the_policy_always_gets_the_same_number_of_rows_and_sees_where_episodes_begin() -> None:
    rows_of: dict[tuple[int, int], int] = {}

    def policy(batch: PolicyBatch) -> Any:
        assert len(batch.observations) == len(batch.masks) == len(batch.seeds) == len(batch.env_ids) == 4
        exists = batch.env_ids < 6
        assert len({*batch.env_ids.tolist()}) == 4 and exists.any()
        assert (batch.masks == (exists & (batch.steps > 0))).all() and (batch.seeds % 4 == np.arange(4))[exists].all()
        for slot, seed, step in zip(batch.env_ids.tolist(), batch.seeds.tolist(), batch.steps.tolist(), strict=True):
            if slot < 6:
                rows_of[seed, step] = rows_of.get((seed, step), 0) + 1
        return np.zeros(4, np.int64)

    how = {"policy_batch": 4, "num_envs": 6, "fresh": "never"}
    result = pufferlib.evaluate(HashEnv, policy, episodes=11, backend="pool", num_workers=2, **how)
    assert rows_of == {
        (seed, step): 1
        for seed, length in zip(result.seeds.tolist(), result.lengths.tolist(), strict=True)
        for step in range(length)
    }


class HeavyTailed(gymnasium.Env[Any, Any]):
    """Its episodes last long where their seed draws so."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left = int(self.np_random.lognormal(1, 1.3)) + 1
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.left -= 1
        return np.zeros(1, np.float32), 1.0, self.left == 0, False, {}


@pytest.mark.long
def test_neither_short_nor_long_episodes_are_favoured() -> None:
    seeds = list(range(400))
    env = HeavyTailed()
    lengths = []
    for seed in seeds:
        env.reset(seed=seed)
        lengths.append(env.left)
    for plan in PLANS[3:]:
        result = pufferlib.evaluate(HeavyTailed, "random", seeds=seeds, **plan)
        assert result.seeds.tolist() == seeds
        assert result.lengths.tolist() == lengths == result.returns.tolist()


def test_no_environment_is_idle_while_a_seed_is_left() -> None:
    """While a seed is left, each row of a batch is an episode's reset or step."""
    num_envs, num_seeds = 4, 40
    counts = [(0, 0)]  # after each batch: how many episodes are finished, how many steps have been counted
    pufferlib.evaluate(
        HeavyTailed, "random", seeds=range(num_seeds), backend="serial", num_envs=num_envs, fresh="never",
        progress=lambda *numbers: counts.append(numbers),
    )  # fmt: skip
    num_checked = 0
    for num_batches in range(1, len(counts)):
        num_begun = num_envs + counts[num_batches - 1][0]  # an episode that is finished is followed by another
        if num_begun > num_seeds:
            break
        num_checked += 1
        assert num_envs * num_batches == counts[num_batches][1] + num_begun
    assert num_checked > num_seeds / num_envs


class Optioned(gymnasium.Env[Any, Any]):
    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, env_index: int = 7, bonus: int = 0) -> None:
        self.index, self.bonus = env_index, bonus

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.pay = (options or {}).get("pay", 0)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        info = {"text": f"paid {self.pay}", "vector": np.arange(2), "index": self.index}
        return np.zeros(1, np.float32), float(self.pay + self.bonus), True, False, info


def test_options_arguments_and_infos_reach_their_episodes() -> None:
    options = [{"pay": pay} for pay in range(5)]
    how = {"num_envs": 2, "env_kwargs": {"bonus": 10}, "infos": ("text", "vector", "index", "none")}
    for plan in (PLANS[1], PLANS[4]):
        result = pufferlib.evaluate(Optioned, "random", seeds=range(5), options=options, **{**plan, **how})
        assert result.returns.tolist() == [10, 11, 12, 13, 14]
        assert result.infos["text"].tolist() == [f"paid {pay}" for pay in range(5)]
        assert [vector.tolist() for vector in result.infos["vector"]] == [[0, 1]] * 5
        assert result.infos["index"].tolist() == [0] * 5 and np.isnan(result.infos["none"]).all()
    same = pufferlib.evaluate(Optioned, "random", seeds=range(3), options={"pay": 2}, backend="serial")
    assert same.returns.tolist() == [2, 2, 2] and same.tasks.tolist() == ["Optioned"] * 3


def test_progress_is_reported_to_the_end() -> None:
    seen: list[tuple[int, int]] = []
    result = pufferlib.evaluate(
        HashEnv, "random", episodes=9, backend="serial", num_envs=3, fresh="never",
        progress=lambda *numbers: seen.append(numbers),
    )  # fmt: skip
    assert seen == sorted(seen) and seen[-1] == (9, result.lengths.sum())
    pufferlib.evaluate(HashEnv, "random", episodes=3, backend="serial", progress=True)


# -------------------------------------------------------------------------------------- dependence on earlier episodes


class Warming(HashEnv):
    """Its first observation tells how many episodes it has played."""

    num_played = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.num_played += 1
        return super().reset(seed=seed, options={"played": self.num_played})


class Curriculum(HashEnv):
    """Its third episode and later ones are longer."""

    def __init__(self, env_index: int = 0) -> None:
        super().__init__(env_index)
        self.level = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.level += 1
        observation, info = super().reset(seed=seed)
        self.length = 5 + self.level
        return observation, info


@pytest.mark.parametrize("env", [Warming, Curriculum])
def test_an_environment_that_remembers_is_made_again_for_each_episode(env: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        always = pufferlib.evaluate(env, noisy, episodes=8, fresh="always", **PLANS[0])
    for plan in (PLANS[0], PLANS[1], PLANS[4]):
        with pytest.warns(RuntimeWarning, match=f"{env.__name__}: the episode of seed .* had played before"):
            assert (
                pufferlib.evaluate(env, noisy, episodes=8, **{**plan, "num_envs": min(plan["num_envs"], 3)}) == always
            )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert pufferlib.evaluate(env, noisy, episodes=8, fresh="never", **PLANS[0]) != always
        assert pufferlib.evaluate(env, noisy, episodes=5, backend="serial") is not None  # none plays twice


class Levels(HashEnv):
    """Becomes harder after every three episodes."""

    def __init__(self, env_index: int = 0) -> None:
        super().__init__(env_index)
        self.num_played = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.num_played += 1
        observation, info = super().reset(seed=seed)
        self.length = 5 + self.num_played // 3
        return observation, info


@pytest.mark.parametrize("plan", [*PLANS[:3], {"backend": "pool", "num_envs": 8, "num_workers": 2}])
def test_memory_that_shows_later_is_found_in_the_last_episode_of_an_environment(plan: dict[str, Any]) -> None:
    always = pufferlib.evaluate(Levels, noisy, episodes=24, fresh="always", **PLANS[0])
    with pytest.warns(RuntimeWarning, match="had played before"):
        assert pufferlib.evaluate(Levels, noisy, episodes=24, **plan) == always


def test_only_two_episodes_are_played_twice() -> None:
    for plan, num in (({"num_envs": 3}, 2), ({"num_envs": 6}, 1), ({"num_envs": 12}, 0)):
        calls: list[tuple[int, int]] = []

        def count(num_finished: int, num_steps: int, calls: Any = calls) -> None:
            calls.append((num_finished, num_steps))

        result = pufferlib.evaluate(Optioned, "random", seeds=range(12), backend="serial", progress=count, **plan)
        assert calls[-1] == (12, 12 + num) and result.lengths.sum() == 12, plan


def test_the_check_of_memory_leaves_no_trace() -> None:
    counts = [
        pufferlib.evaluate(HashEnv, noisy, episodes=9, fresh=fresh, **PLANS[1]) for fresh in ("auto", "never", "always")
    ]
    assert counts[0] == counts[1] == counts[2]


def test_a_policy_that_draws_from_a_shared_generator_is_not_taken_for_a_faulty_environment() -> None:
    generator = np.random.default_rng(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pufferlib.evaluate(HashEnv, lambda batch: generator.integers(0, 9, len(batch.seeds)), episodes=9, **PLANS[1])


# ------------------------------------------------------------------------------------------------------- failures


class Deadly(HashEnv):
    """Some seeds kill their worker on their third step, the first time, and one always raises."""

    def __init__(self, env_index: int = 0, folder: str = "", sleeps: bool = False) -> None:
        super().__init__(env_index, mean_length=12)
        self.folder, self.sleeps = folder, sleeps

    def step(self, action: Any) -> Any:
        if self.tick == 2 and self.last_seed % 3 == 0:
            with open(f"{self.folder}/{self.last_seed}", "a") as file:
                first = file.tell() == 0
                file.write("x")
            if first and self.sleeps:
                time.sleep(60)
            if first:
                os.kill(os.getpid(), signal.SIGKILL)
        if self.tick == 1 and self.last_seed == 5:
            raise ValueError("the fifth is cursed")
        return super().step(action)


@pytest.mark.parametrize(
    "plan", [PLANS[2], *(pytest.param(plan, marks=pytest.mark.long) for plan in PLANS[3:5]), PLANS[5]]
)
def test_the_death_of_workers_costs_no_episode(plan: dict[str, Any], tmp_path: Path) -> None:
    seeds = [seed for seed in range(1, 31) if seed != 5]
    how = {"seeds": seeds, "env_kwargs": {"folder": str(tmp_path)}, "infos": ("tick",)}
    for seed in seeds:
        (tmp_path / str(seed)).write_text("x")
    expected = pufferlib.evaluate(Deadly, noisy, backend="serial", **how)
    assert not expected.restarts.any()
    for seed in seeds:
        (tmp_path / str(seed)).unlink()
    result = pufferlib.evaluate(Deadly, noisy, **plan, **how)
    assert result == expected
    died = [seed for seed in seeds if (tmp_path / str(seed)).exists()]
    assert died and all(result.restarts[seeds.index(seed)] >= 1 for seed in died)
    assert all(len((tmp_path / str(seed)).read_text()) >= 2 for seed in died)


class Registered(HashEnv):
    """Leaves the id of its process in a folder. length: of all episodes, if not 0."""

    def __init__(self, env_index: int = 0, folder: str = "", length: int = 0) -> None:
        super().__init__(env_index, mean_length=15)
        self.fixed = length
        if folder:
            Path(folder, str(os.getpid())).touch()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        result = super().reset(seed=seed, options=options)
        self.length = self.fixed or self.length
        return result


@pytest.mark.parametrize("plan", [PLANS[3], PLANS[4]])
def test_workers_that_are_killed_at_any_time_lose_and_double_nothing(plan: dict[str, Any], tmp_path: Path) -> None:
    how = {"seeds": range(120), "infos": ("tick",), "max_restarts": None}
    expected = pufferlib.evaluate(Registered, noisy, backend="serial", **how)
    num_killed = 0

    def kill_one(num_finished: int, num_steps: int) -> None:
        nonlocal num_killed
        if num_finished >= 10 * (num_killed + 1):
            path = min(tmp_path.iterdir())
            path.unlink()
            os.kill(int(path.name), signal.SIGKILL)
            num_killed += 1

    result = pufferlib.evaluate(
        Registered, noisy, env_kwargs={"folder": str(tmp_path)}, progress=kill_one, **plan, **how
    )
    assert num_killed >= 8 and result.restarts.sum() >= num_killed // 2
    assert result == expected and result.seeds.tolist() == [*range(120)]


@pytest.mark.parametrize("backend", ["multiprocessing", "pool"])
def test_workers_that_are_killed_while_they_wait_fail_no_episode(backend: str, tmp_path: Path) -> None:
    num_killed = 0

    def kill(num_finished: int, num_steps: int) -> None:
        nonlocal num_killed
        if num_killed < 6 and num_steps >= 8 * (num_killed + 1):
            num_killed += 1
            path = next(tmp_path.iterdir())
            path.unlink()
            os.kill(int(path.name), signal.SIGKILL)
            while psutil.pid_exists(int(path.name)) and psutil.Process(int(path.name)).status() != "zombie":
                time.sleep(0.001)

    how = {"seeds": range(6), "env_kwargs": {"folder": str(tmp_path), "length": 100}}
    plan = {"backend": backend, "num_envs": 3, "num_workers": 1, "batch_size": 3}
    result = pufferlib.evaluate(Registered, noisy, progress=kill, **plan, **how)
    assert num_killed == 6 and result.restarts[:3].min() >= 4
    assert result == pufferlib.evaluate(Registered, noisy, backend="serial", **how)


class Hopeless(HashEnv):
    """Episodes of odd seeds, or all, raise in their first step, and leave a file; the others are long."""

    def __init__(self, env_index: int = 0, folder: str = "", odd: bool = False) -> None:
        super().__init__(env_index)
        self.folder, self.odd = folder, odd

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        result = super().reset(seed=seed)
        self.length = 50
        return result

    def step(self, action: Any) -> Any:
        if self.tick == 0 and (self.last_seed % 2 or not self.odd):
            with open(f"{self.folder}/tries", "a") as file:
                file.write("x")
            raise ValueError("hopeless")
        return super().step(action)


@pytest.mark.parametrize("plan", PLANS[:5])
def test_an_environment_that_never_works_is_given_up_soon(plan: dict[str, Any], tmp_path: Path) -> None:
    how = {"episodes": 300, "env_kwargs": {"folder": str(tmp_path)}, "max_restarts": 1, **plan}
    with pytest.raises(WorkerError, match=r"(?s)hopeless.*no episode could be played; the first \d+ were tried"):
        pufferlib.evaluate(Hopeless, noisy, **how)
    assert 16 <= len((tmp_path / "tries").read_text()) <= 48


def test_a_few_good_episodes_are_waited_for(tmp_path: Path) -> None:
    how = {"env_kwargs": {"folder": str(tmp_path), "odd": True}, "max_restarts": 0, "backend": "serial", "num_envs": 3}
    with pytest.warns(RuntimeWarning, match="30 of 32 episodes failed"):
        result = pufferlib.evaluate(Hopeless, noisy, seeds=[0, 2, *range(1, 61, 2)], **how)
    assert np.isfinite(result.returns).tolist() == [True] * 2 + [False] * 30


@pytest.mark.parametrize("backend", ["serial", "pool"])
def test_infos_of_the_environment_may_have_the_key_of_a_crash(backend: str) -> None:
    result = pufferlib.evaluate(Rested, "random", episodes=12, backend=backend, num_envs=3, infos=("restarted",))
    assert not result.restarts.any() and {*result.endings} == {"terminated"}
    assert result.infos["restarted"].tolist() == ["three times"] * 12


class Rested(HeavyTailed):
    def step(self, action: Any) -> Any:
        return *super().step(action)[:4], {"restarted": "three times"}


@pytest.mark.parametrize("backend", ["serial", "pool"])
def test_a_seed_that_always_fails_is_given_up_and_the_others_are_played(backend: str, tmp_path: Path) -> None:
    (tmp_path / "3").write_text("x")
    (tmp_path / "6").write_text("x")
    how = {"backend": backend, "num_envs": 3, "env_kwargs": {"folder": str(tmp_path)}, "max_restarts": 2}
    with pytest.warns(RuntimeWarning, match=r"seed 5 failed 3 times: (?s:.*)cursed(?s:.*)1 of 6 episodes failed"):
        result = pufferlib.evaluate(Deadly, noisy, seeds=[1, 2, 3, 4, 5, 6], **how)
    assert result.endings.tolist().count("failed") == 1 and result.endings[4] == "failed"
    assert np.isnan(result.returns).tolist() == [False] * 4 + [True, False] and result.restarts.tolist()[4] == 3
    with pytest.raises(PlanError, match=r"1 of 6 episodes have no returns or failed, with the seeds 5"):
        result.mean()
    assert result.mean(failed="leave out").value == pytest.approx(np.nanmean(result.returns))
    alone = pufferlib.evaluate(Deadly, noisy, seeds=[1, 2, 4], **how)
    assert alone.returns.tolist() == result.returns[[0, 1, 3]].tolist()
    with pytest.raises(WorkerError, match=r"(?s)seed 5 failed 3 times: .*no episode could be played"):
        pufferlib.evaluate(Deadly, noisy, seeds=[5], **how)


class Killer(HashEnv):
    """One seed always kills the worker, soon; the episodes of the others are long."""

    def __init__(self, env_index: int = 0) -> None:
        super().__init__(env_index, mean_length=60)

    def step(self, action: Any) -> Any:
        if self.tick == 1 and self.last_seed == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


@pytest.mark.parametrize("how", [{"backend": "pool", "num_workers": 1}, {"backend": "multiprocessing"}])
def test_episodes_that_die_with_the_worker_of_another_do_not_count_as_failures(how: dict[str, Any]) -> None:
    with pytest.warns(RuntimeWarning, match=r"seed 5 failed 4 times: (?s:.*)1 of 6 episodes failed"):
        result = pufferlib.evaluate(Killer, noisy, seeds=[1, 2, 5, 3, 4, 6], num_envs=3, max_restarts=3, **how)
    assert (result.endings == "failed").tolist() == [False, False, True, False, False, False]
    alone = pufferlib.evaluate(Killer, noisy, seeds=[1, 2, 3, 4, 6], backend="serial")
    assert result.returns[[0, 1, 3, 4, 5]].tolist() == alone.returns.tolist()


def test_a_step_that_takes_too_long_is_played_again(tmp_path: Path) -> None:
    how = {"backend": "pool", "num_envs": 2, "num_workers": 2, "step_timeout": 1.0}
    env_kwargs = {"folder": str(tmp_path), "sleeps": True}
    result = pufferlib.evaluate(Deadly, noisy, seeds=[1, 2, 3, 4], env_kwargs=env_kwargs, **how)
    assert result.restarts.sum() >= 1 and (tmp_path / "3").exists()
    assert pufferlib.evaluate(Deadly, noisy, seeds=[1, 2, 3, 4], env_kwargs=env_kwargs, backend="serial") == result


# ------------------------------------------------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "pass one of them"),
        ({"episodes": 3, "seeds": [1]}, "pass one of them"),
        ({"episodes": 0}, "episodes=0 is impossible; use 1 or more"),
        ({"episodes": 2.5}, "episodes=2.5 is not a whole number"),
        ({"seeds": []}, "seeds is empty; use one or more integers from 0"),
        ({"seeds": [1, 2, 1]}, r"seeds names \[1\] more than once"),
        ({"seeds": [1, -2]}, "seed=-2 is negative"),
        ({"seeds": [2**32]}, r"seeds has \[4294967296\]; use one or more integers from 0 to"),
        ({"seeds": 3}, "seeds=3 are no seeds; pass a sequence"),
        ({"seeds": ["a"]}, "seed='a' is not a whole number"),
        ({"seeds": [True, False]}, r"seeds has \[True, False\]; use one or more integers"),
        ({"episodes": 2, "seed": None}, "seed=None gives other episodes each time; use 0 or more"),
        ({"episodes": 2, "policy_batch": 0}, "policy_batch=0 is impossible"),
        ({"episodes": 2, "max_steps": 0}, "max_steps=0 is impossible"),
        ({"episodes": 2, "max_restarts": -1}, "max_restarts=-1 is impossible"),
        ({"episodes": 2, "num_envs": 0}, "num_envs=0 is impossible"),
        ({"episodes": 2, "fresh": "allways"}, "did you mean 'always'"),
        ({"episodes": 2, "infos": "score"}, "infos='score' is no sequence of names"),
        ({"episodes": 2, "options": [{}]}, "neither a mapping nor a sequence of 2"),
        ({"episodes": 2, "env_kwargs": [{}]}, "env_kwargs=.* is no dict"),
        ({"episodes": 2, "progress": "yes"}, "progress='yes' is neither True, False nor a function of two numbers"),
        ({"episodes": 2, "policy": 5}, "policy=5 is no policy"),
        ({"episodes": 2, "env": [HashEnv, HashEnv]}, "env lists 2 environments; pass them as tasks="),
        ({"episodes": 2, "backend": "pol"}, "backend='pol' is not one of"),
    ],
)
def test_impossible_arguments_are_refused(arguments: dict[str, Any], says: str) -> None:
    how = {"env": HashEnv, "policy": "random", "backend": "serial", **arguments}
    with pytest.raises(PlanError, match=says):
        pufferlib.evaluate(how.pop("env"), how.pop("policy"), **how)


def test_wrong_actions_and_unknown_arguments_are_refused() -> None:
    with pytest.raises(ActionError, match=r"actions of shape \(1,\) for 16 rows; return one action for each row"):
        pufferlib.evaluate(HashEnv, lambda batch: np.zeros(1, np.int64), episodes=2, backend="serial")
    with pytest.raises(ActionError, match=r"the policy returned NoneType for 16 rows"):
        pufferlib.evaluate(HashEnv, lambda batch: None, episodes=2, backend="serial")
    with pytest.raises(ZeroDivisionError):
        pufferlib.evaluate(HashEnv, lambda batch: 1 // 0, episodes=2, backend="pool")
    with pytest.raises(TypeError, match="evaluate.. has no argument num_env; did you mean num_envs"):
        pufferlib.evaluate(HashEnv, "random", episodes=2, num_env=2)


def test_an_environment_that_is_vectorized_already_is_refused() -> None:
    def several() -> Any:
        return gymnasium.make_vec("CartPole-v1", num_envs=3, vectorization_mode="sync")

    with pytest.raises(PlanError, match="several is 3 environments in one, which cannot be seeded and reset one at a"):
        pufferlib.evaluate(several, "random", episodes=4, backend="serial")
