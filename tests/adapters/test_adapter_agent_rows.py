"""Agents as rows: each agent of a PettingZoo environment is an environment of Gymnasium's interface, or refused."""

from __future__ import annotations

import functools
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pettingzoo
import pytest
from gymnasium.spaces import Box, Dict, Discrete

import pufferlib
from pufferlib.adapters.agent_rows import AgentRows
from pufferlib.adapters.gymnasium_vector import SyncVectorEnv, make, make_vec
from pufferlib.errors import PlanError

pytestmark = pytest.mark.beside

AGENTS = ("ann", "bob", "cy")
LENGTH = 4


class Trio(pettingzoo.ParallelEnv[Any, Any, Any]):
    """Three agents that see (env_index, place, seed drawn, tick) and are paid what they play; all end at once."""

    metadata: ClassVar[dict[str, Any]] = {"name": "trio_v0", "render_modes": []}
    possible_agents: ClassVar[list[str]] = list(AGENTS)

    def __init__(self, env_index: int = 0, dies: str = "", absent: str = "", odd: str = "") -> None:
        self.env_index, self.dies, self.absent, self.odd = env_index, dies, absent, odd
        self.level = 0

    def observation_space(self, agent: Any) -> Any:
        return Box(-1, 1000, (5,) if agent == self.odd else (4,), np.float32)

    def action_space(self, agent: Any) -> Any:
        return Discrete(8)

    def _seen(self) -> Any:
        return {
            agent: np.array([self.env_index, AGENTS.index(agent), self.drawn, self.tick], np.float32)
            for agent in self.agents
        }

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None or not hasattr(self, "generator"):
            self.generator = np.random.default_rng(seed)
        self.agents = [agent for agent in AGENTS if agent != self.absent]
        self.drawn, self.tick = int(self.generator.integers(1000)), 0
        return self._seen(), {agent: {"level": (options or {}).get("level", -1)} for agent in self.agents}

    def step(self, actions: Any) -> Any:
        assert list(actions) == self.agents
        self.tick += 1
        over = self.tick == LENGTH
        seen, present = self._seen(), self.agents
        ended = {agent: over or (agent == self.dies and self.tick == 2) for agent in present}
        self.agents = [agent for agent in present if not ended[agent]]
        infos: Any = {agent: {"told": f"{agent} {self.tick}"} for agent in present}
        infos["common"] = {"tick": self.tick}
        cut = {agent: end and agent == "cy" for agent, end in ended.items()}
        return (
            seen,
            {agent: float(actions[agent]) for agent in present},
            {agent: end and not cut[agent] for agent, end in ended.items()},
            cut,
            infos,
        )


class TakingTurns(pettingzoo.AECEnv[Any, Any, Any]):
    """Two agents, one of which acts at a time."""

    metadata: ClassVar[dict[str, Any]] = {"name": "turns_v0", "is_parallelizable": False}
    possible_agents: ClassVar[list[str]] = ["ann", "bob"]

    def observation_space(self, agent: Any) -> Any:
        return Discrete(9)

    def action_space(self, agent: Any) -> Any:
        return Discrete(2)

    def observe(self, agent: Any) -> Any:
        return np.int64(self.tick)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.agents, self.tick, self.agent_selection = list(self.possible_agents), 0, "ann"
        self.rewards, self._cumulative_rewards = (dict.fromkeys(self.agents, 0.0) for _ in range(2))
        self.terminations, self.truncations = (dict.fromkeys(self.agents, False) for _ in range(2))
        self.infos = {agent: {} for agent in self.agents}

    def step(self, action: Any) -> None:
        self.tick += 1
        self.agent_selection = self.possible_agents[self.tick % 2]
        self.terminations = dict.fromkeys(self.possible_agents, self.tick == 8)


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"backend": "multiprocessing", "num_workers": 2},
        pytest.param({"as_torch": True}, marks=pytest.mark.extras),
    ],
    ids=str,
)
def test_each_agent_is_a_row_and_plays_as_in_its_environment(kwargs: dict[str, Any]) -> None:
    envs = make(Trio, num_envs=2, agents="rows", autoreset_mode="same_step", **kwargs)
    assert envs.num_envs == 6 and envs.single_action_space == Discrete(8)
    assert envs.single_observation_space == Box(-1, 1000, (4,), np.float32)
    assert envs.action_space.shape == (6,) and envs.observation_space.shape == (6, 4)
    theirs = [Trio(0), Trio(1)]
    observations, infos = envs.reset(seed=5, options={"level": 3})
    expected = [env.reset(seed=5 + 3 * index)[0] for index, env in enumerate(theirs)]  # of the first row's number
    np.testing.assert_array_equal(observations, [row for seen in expected for row in seen.values()])
    assert infos["level"].tolist() == [3] * 6
    rng, pairs = np.random.default_rng(1), []
    for tick in range(1, 3 * LENGTH + 1):
        actions = rng.integers(8, size=6)
        observations, rewards, terminations, truncations, infos = envs.step(actions)
        np.testing.assert_array_equal(rewards, actions)
        ends = tick % LENGTH == 0
        assert terminations.tolist() == [ends, ends, False] * 2 and truncations.tolist() == [False, False, ends] * 2
        lasts = [env.step(dict(zip(AGENTS, actions[3 * index :], strict=False)))[0] for index, env in enumerate(theirs)]
        texts = [f"{agent} {(tick - 1) % LENGTH + 1}" for agent in AGENTS] * 2
        if ends:
            key = "final_obs" if "final_obs" in infos else "final_observation"
            np.testing.assert_array_equal(np.stack(list(infos[key])), [row for seen in lasts for row in seen.values()])
            assert "episode" not in infos  # which Gymnasium's RecordEpisodeStatistics adds
            if isinstance(infos["final_info"], dict):
                assert infos["final_info"]["told"].tolist() == texts
            lasts = [env.reset()[0] for env in theirs]
        else:
            assert infos["told"].tolist() == texts and infos["_common"].all()
        np.testing.assert_array_equal(observations, [row for seen in lasts for row in seen.values()])
        pairs.append((observations, observations.copy()))
    for observations, copies in pairs:
        np.testing.assert_array_equal(observations, copies)
    envs.close()


@pytest.mark.skipif(not hasattr(gymnasium.wrappers, "vector"), reason="Gymnasium 0.29 has no vector wrappers")
def test_gymnasiums_wrappers_take_it() -> None:
    envs = make(Trio, num_envs=2, agents="rows", autoreset_mode="next_step")
    wrapped = gymnasium.wrappers.vector.RecordEpisodeStatistics(envs)
    wrapped.reset(seed=1)
    for tick in range(2 * (LENGTH + 1)):
        *_, infos = wrapped.step(np.arange(6))
        if tick % (LENGTH + 1) == LENGTH - 1:
            assert infos["episode"]["r"].tolist() == [LENGTH * row for row in range(6)]
            assert infos["episode"]["l"].tolist() == [LENGTH] * 6
    wrapped.close()


def test_rows_are_asked_and_set_by_number_and_reset_with_their_environment() -> None:
    vec = AgentRows(pufferlib.make(Trio, num_envs=2, autoreset_mode="disabled"))
    vec.reset()
    assert vec.get_attr("env_index") == [0, 0, 0, 1, 1, 1] and vec.get_attr("env_index", [4, 1]) == [1, 0]
    assert vec.call("observation_space", "ann", env_ids=[5]) == [Box(-1, 1000, (4,), np.float32)]
    vec.set_attr("level", [10, 11, 12, 13, 14, 15])
    assert vec.get_attr("level") == [10] * 3 + [13] * 3
    vec.set_attr("level", 7, env_ids=[2])
    assert vec.get_attr("level") == [7] * 3 + [13] * 3
    for _ in range(2):
        vec.step(np.zeros(6, np.int64))
    observations, infos = vec.reset(seed=[1, 2, 3], env_ids=[3, 4, 5])
    assert observations[:, 3].tolist() == [2, 2, 2, 0, 0, 0]
    assert [info["env_id"] for info in infos] == [3, 4, 5] and vec.restarts == [0] * 6
    with pytest.raises(pufferlib.CallError, match="name all rows of an environment"):
        vec.reset(env_ids=[3, 4])
    with pytest.raises(pufferlib.CallError, match=r"\[6\] do not exist"):
        vec.get_attr("level", [6])
    with pytest.raises(pufferlib.PlanError, match="2 values for 6 rows"):
        vec.set_attr("level", [1, 2])
    vec.close()
    assert vec.closed


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_who_ends_early_is_named(mode: str) -> None:
    envs = make(functools.partial(Trio, dies="bob"), num_envs=2, agents="rows", autoreset_mode=mode)
    envs.reset()
    envs.step(np.zeros(6, np.int64))
    with pytest.raises(
        pufferlib.SpaceError, match=r"'bob' of environment 0 has ended .* while agent 'ann'.*make, whose"
    ):
        envs.step(np.zeros(6, np.int64))
    envs.close()


def test_who_is_absent_is_named() -> None:
    envs = make(functools.partial(Trio, absent="cy"), num_envs=2, agents="rows")
    envs.reset()
    with pytest.raises(pufferlib.SpaceError, match=r"'cy' of environment 0 is absent while agent 'ann' acts"):
        envs.step(np.zeros(6, np.int64))
    envs.close()


def test_whose_spaces_differ_is_named() -> None:
    with pytest.raises(pufferlib.SpaceError, match=r"'bob' observes Box.*\(5,\).* and agent 'ann' Box.*pufferlib.make"):
        make(functools.partial(Trio, odd="bob"), num_envs=2, agents="rows")


def test_who_takes_turns_is_refused() -> None:
    envs = make(TakingTurns, agents="rows")
    with pytest.raises(pufferlib.SpaceError, match="take turns"):
        envs.reset()
        envs.step(np.zeros(2, np.int64))
    envs.close()


def test_several_agents_are_refused_with_the_way_out() -> None:
    with pytest.raises(pufferlib.SpaceError, match='3 agents an environment.*agents="rows" to make'):
        make(Trio, num_envs=2)
    with pytest.raises(pufferlib.PlanError, match="agents='row' is not \"rows\""):
        make(Trio, agents="row")
    with pytest.raises(pufferlib.WorkerError, match=r'SpaceError.*gymnasium_vector.make\(…, agents="rows"\)'):
        SyncVectorEnv([Trio])


def test_a_crash_ends_the_episode_of_all_its_agents() -> None:
    class Crashing(Trio):
        def step(self, actions: Any) -> Any:
            if actions["ann"] == 7:
                raise ValueError("ann played 7")
            return super().step(actions)

    envs = make(Crashing, num_envs=2, agents="rows", on_error="restart", autoreset_mode="same_step")
    envs.reset()
    _, _, terminations, truncations, infos = envs.step(np.array([7, 0, 0, 1, 0, 0]))
    assert terminations.tolist() == [True] * 3 + [False] * 3 and not truncations.any()  # nothing is bootstrapped
    assert infos["_restarted"].tolist() == [True] * 3 + [False] * 3
    assert envs.step(np.zeros(6, np.int64))[0][:, 3].tolist() == [0, 0, 0, 2, 2, 2]
    envs.close()


def test_one_agent_is_one_row_and_copies_are_rows_that_end_when_they_will() -> None:
    envs = make("ocean/bandit", num_envs=3, agents="rows")
    assert envs.reset()[0].shape[0] == 3
    envs.close()
    copies = make(
        lambda: gymnasium.make_vec("CartPole-v1", num_envs=3, vectorization_mode="sync"),
        num_envs=2,
        agents="rows",
    )
    copies.reset(seed=1)
    ends = np.zeros(6, np.int64)
    for _ in range(60):
        _, _, terminations, _, _ = copies.step(np.array([0, 1] * 3))
        ends += terminations
    assert ends.all()
    copies.close()


def test_observations_of_dicts_are_dicts_of_rows() -> None:
    class Seeing(Trio):
        def observation_space(self, agent: Any) -> Any:
            return Dict(seen=super().observation_space(agent), place=Discrete(3))

        def _seen(self) -> Any:
            return {agent: {"seen": row, "place": int(row[1])} for agent, row in super()._seen().items()}

    envs = make(Seeing, num_envs=2, agents="rows")
    observations, _ = envs.reset()
    assert observations["place"].tolist() == [0, 1, 2] * 2 and observations["seen"].shape == (6, 4)
    envs.close()


@pytest.mark.extras
def test_agents_of_kernels_are_rows() -> None:
    kinds: list[dict[str, Any]] = [{"backend": "cuda", "device": "host"}, {}]
    ours, theirs = (make("tag/grid", num_envs=2, agents="rows", **kwargs) for kwargs in kinds)
    np.testing.assert_array_equal(ours.reset(seed=1)[0], theirs.reset(seed=1)[0])
    for step in range(10):
        actions = np.full(ours.num_envs, step % 5)
        for part, other in zip(ours.step(actions)[:4], theirs.step(actions)[:4], strict=True):
            np.testing.assert_array_equal(part, other)
    ours.close()
    theirs.close()


@pytest.mark.parametrize("vectorizer", ["sync", "async"])
def test_make_vec_makes_agents_rows(vectorizer: str) -> None:
    envs = make_vec(Trio, num_envs=2, vectorizer=vectorizer, agents="rows", vectorizer_kwargs={"num_workers": 1})
    assert envs.num_envs == 6 and envs.reset(seed=1)[0].shape == (6, 4)
    *_, infos = envs.step(np.zeros(6, np.int64))
    assert infos["told"].tolist() == ["ann 1", "bob 1", "cy 1"] * 2
    envs.close()
    with pytest.raises(pufferlib.PlanError, match="max_episode_steps=3"):
        make_vec(Trio, agents="rows", max_episode_steps=3)
    with pytest.raises(pufferlib.PlanError, match="vectorizer"):
        make_vec(Trio, agents="rows", vectorizer=SyncVectorEnv)


@pytest.mark.extras
@pytest.mark.parametrize("name", ["mpe2.simple_spread_v3", pytest.param("pettingzoo.butterfly.pistonball_v6",
                                                                         marks=pytest.mark.slow)])  # fmt: skip
def test_agents_of_families_play_as_in_pettingzoo(name: str) -> None:
    family = pytest.importorskip(name)
    env_kwargs: dict[str, Any] = {"N": 3} if "spread" in name else {"n_pistons": 4, "random_drop": False}
    envs = make(family.parallel_env, env_kwargs={**env_kwargs, "max_cycles": 6}, num_envs=2, agents="rows",
                autoreset_mode="next_step")  # fmt: skip
    theirs = [family.parallel_env(**env_kwargs, max_cycles=6) for _ in range(2)]
    num = envs.num_envs // 2
    observations, _ = envs.reset(seed=3)
    expected = [env.reset(seed=3 + num * index)[0] for index, env in enumerate(theirs)]
    np.testing.assert_array_equal(observations, np.concatenate([list(seen.values()) for seen in expected]))
    envs.action_space.seed(1)
    ended = 0
    while not ended:
        actions = envs.action_space.sample()
        observations, rewards, terminations, truncations, _ = envs.step(actions)
        played = [
            env.step(dict(zip(env.agents, actions[num * index :], strict=False))) for index, env in enumerate(theirs)
        ]
        for part, which in ((observations, 0), (rewards, 1), (terminations, 2), (truncations, 3)):
            one = np.concatenate([list(outcome[which].values()) for outcome in played])
            np.testing.assert_array_equal(part, one.astype(part.dtype))
        ended = int((terminations | truncations).sum())
    assert ended in (num, 2 * num)  # all agents of an environment
    for env in (envs, *theirs):
        env.close()


@pytest.mark.skipif(not hasattr(gymnasium.vector, "AutoresetMode"), reason="Gymnasium 0.29 has one mode")
def test_copies_that_reset_by_themselves_in_another_mode_say_where_to_change_it() -> None:
    def create() -> Any:
        return gymnasium.make_vec("CartPole-v1", num_envs=3, vectorization_mode="sync")

    with pytest.raises(PlanError, match=r"vectorized already .* make it with that mode.*AutoresetMode.SAME_STEP"):
        make(create, num_envs=2, agents="rows", autoreset_mode="same_step")
