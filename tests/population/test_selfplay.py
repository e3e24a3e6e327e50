"""Learning among many: which rows are a learner's, responses that are learnt, and self-play."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from matrix import covering
from pettingzoo import ParallelEnv
from pettingzoo.classic import tictactoe_v3
from script_diffs import changed_lines

import pufferlib
from cleanrl_demo import dqn, ppo, ppo_selfplay
from pufferlib.errors import PlanError
from pufferlib.models import MLP, Actor, Origin
from pufferlib.population import (
    Coordinator,
    Evaluator,
    ExactOracle,
    Fixed,
    LearnerView,
    Mixture,
    PayoffTable,
    PolicyPool,
    RemoteOracle,
    Router,
    Sampled,
    product,
)
from pufferlib.population.games import GameEnv
from pufferlib.training import self_play
from pufferlib.training.oracles import LearnedOracle

pytestmark = [pytest.mark.beside, pytest.mark.usefixtures("one_thread")]

SEATS = 3
LOGITS = "pufferlib.population.games:Logits"


class Dice(ParallelEnv[str, Any, Any]):
    """Each row says who and when; who may act is drawn, now and then nobody; pay is a power of 2 for each tick.

    So a sum of pay says which ticks are in it. Lasts 1 to 9 steps, and ends by a termination or a truncation.
    """

    metadata = {"name": "dice"}

    def __init__(self, masked: bool = True) -> None:
        self.possible_agents = [f"player_{seat}" for seat in range(SEATS)]
        row = {"who": spaces.Box(-1, 99, (2,), np.float32)}
        mask = {"action_mask": spaces.Box(0, 1, (2,), np.float32)}
        self.space = spaces.Dict({**mask, **row} if masked else row)
        self.masked, self.rng = masked, np.random.default_rng()

    def observation_space(self, agent: str) -> Any:
        return self.space

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(2)

    def _seen(self) -> dict[str, Any]:
        rows = {
            agent: {"who": np.array([seat, self.tick], np.float32)} for seat, agent in enumerate(self.possible_agents)
        }
        acts = self.rng.random(SEATS) < 0.4
        mask = {agent: {"action_mask": np.full(2, may, np.float32)} for agent, may in zip(rows, acts, strict=True)}
        return {agent: {**(mask[agent] if self.masked else {}), **row} for agent, row in rows.items()}

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.agents, self.tick = list(self.possible_agents), 0
        self.length, self.cut = int(self.rng.integers(1, 10)), bool(self.rng.random() < 0.3)
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        self.tick += 1
        over, agents, seen = self.tick == self.length, self.possible_agents, self._seen()
        self.agents = [] if over else self.agents
        pay = dict.fromkeys(agents, 2.0**self.tick)
        ends = dict.fromkeys(agents, over and not self.cut), dict.fromkeys(agents, over and self.cut)
        return seen, pay, *ends, {agent: {} for agent in agents}


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("batch_size", [6, 2])
def test_a_learner_sees_its_decisions_and_what_came_of_them(masked: bool, batch_size: int) -> None:
    """By a slow account of what the VecEnv says: for each agent, the rows in which it decides, and pay in between."""
    with pufferlib.make(Dice, num_envs=6, batch_size=batch_size, env_kwargs={"masked": masked}, seed=1) as vec:
        pool = PolicyPool()
        frozen = pool.add(MLP(vec.observation_layout, vec.single_action_space), Origin("mlp"))
        learner = pool.add_learner(Actor("mlp", vec.observation_layout, vec.single_action_space), Origin("mlp"))
        half = np.full(2, 0.5)
        router = Router(pool, vec, Sampled(product([(learner, frozen)] * SEATS, [half] * SEATS), 1), seed=1)
        view = LearnerView(vec, router, learner)
        expected_of: dict[int, list[Any]] = {agent: [] for agent in range(6 * SEATS)}
        rows_of: dict[int, list[Any]] = {agent: [] for agent in range(6 * SEATS)}
        act = router.act

        def listen(batch: Any, but: int | None = None) -> Any:
            actions = act(batch, but)
            mine = router.policies(batch.agent_ids) == learner
            seen = vec.observation_layout.unflatten(batch.observations.copy())
            acts = seen["action_mask"].any(1) if masked else np.ones(len(mine), bool)
            for row, agent in enumerate(batch.agent_ids.tolist()):
                ends = batch.terminations[row], batch.truncations[row]
                outcome = bool(batch.masks[row]), float(batch.rewards[row]), *map(bool, ends), int(seen["who"][row, 1])
                expected_of[agent].append((bool(mine[row]), bool(acts[row]), *outcome))
            return actions

        router.act = listen  # type: ignore[method-assign]
        vec.async_reset()
        for _ in range(100):
            batch = view.recv()
            assert len(batch.masks)
            ticks = vec.observation_layout.unflatten(batch.observations)["who"][:, 1]
            columns = (batch.masks, batch.rewards, batch.terminations, batch.truncations, ticks)
            for agent, *row in zip(batch.agent_ids.tolist(), *map(np.ndarray.tolist, columns), strict=True):
                rows_of[agent].append(tuple(row))
            view.send(np.zeros(len(batch.masks), np.int64))
        assert sum(map(len, rows_of.values())) > 150
        for agent, rows in expected_of.items():
            expected, pay, goes_on = [], 0.0, False
            for mine, acts_now, mask, paid, ended, cut, tick in rows:
                pay, goes_on = (pay + paid, goes_on) if mask else (0.0, False)
                if mine and (acts_now or ended or cut):
                    expected.append((goes_on, pay, ended, cut, tick))
                    pay, goes_on = 0.0, True
            assert rows_of[agent] == expected


def test_both_seats_of_a_game_in_turns_hear_how_it_ended() -> None:
    """Also the one whose turn it was not, in the row after its last move; and nobody is paid anything before."""
    with pufferlib.make(tictactoe_v3.raw_env, num_envs=4, seed=1) as vec:
        pool, rng = PolicyPool(), np.random.default_rng(1)
        learner = pool.add_learner(Actor("mlp", vec.observation_layout, vec.single_action_space), Origin("mlp"))
        view = LearnerView(vec, Router(pool, vec, Fixed([(learner, learner)]), seed=1), learner)
        results = set()
        vec.async_reset()
        for _ in range(150):
            batch = view.recv()
            seen = vec.observation_layout.unflatten(batch.observations)
            over, masks = batch.terminations, seen["action_mask"]
            assert masks[~over].any(1).all() and not batch.rewards[~over].any() and not batch.truncations.any()
            for env_id in np.unique(batch.agent_ids[over] // 2):
                first, second = rows = np.flatnonzero(batch.agent_ids // 2 == env_id)
                assert over[rows].all() and batch.masks[rows].all()
                results.add(tuple(batch.rewards[rows].tolist()))
                for mine, theirs in ((first, second), (second, first)):
                    board = seen["observation"][mine, :, :, 0]
                    diagonals = board.trace(), board[::-1].trace()
                    assert (batch.rewards[mine] == 1) == (max(*board.sum(0), *board.sum(1), *diagonals) == 3)
                    assert batch.rewards[mine] == -batch.rewards[theirs]
            view.send((masks + rng.random(masks.shape)).argmax(1))
        assert results == {(1.0, -1.0), (-1.0, 1.0), (0.0, 0.0)}


def small(algorithm: Any, **settings: Any) -> Any:
    by_trainer: Mapping[Any, Mapping[str, Any]] = {
        ppo: {"gae_lambda": 1.0, "rollout_length": 16, "num_minibatches": 2, "learning_rate": 0.05},
        dqn: {
            "steps_per_update": 16,
            "minibatch_size": 256,
            "learning_rate": 0.05,
            "end_epsilon": 0.1,
            "learning_starts": 100,
        },
    }
    return algorithm.Config(**{"gamma": 1.0, "policy": LOGITS, **by_trainer[algorithm], **settings})


@pytest.mark.long
@pytest.mark.parametrize(("algorithm", "most"), [(ppo, 0.4), (dqn, 0.1)])
def test_a_response_is_nearly_as_good_as_the_best(algorithm: Any, most: float) -> None:
    """In both seats of Kuhn poker, against a joint mixture; and with the same seed it is the same."""
    env = partial(GameEnv, "kuhn_poker", observation="index")
    with pufferlib.make(env, num_envs=64, seed=1, as_torch=True) as vec:
        for seat in (0, 1):
            exact = ExactOracle("kuhn_poker")
            oracle = LearnedOracle(vec, exact.pool, small(algorithm, total_steps=1500, seed=3), warm=False)
            others = exact.initial(1 - seat), oracle.initial(1 - seat)
            populations = [(oracle.initial(seat),), others][:: 1 - 2 * seat]
            joint = np.array([[0.7, 0.3]])
            mixture = Mixture.of_joint(populations, joint if seat == 0 else joint.T)
            response = oracle.respond(seat, mixture)
            assert exact.pool[response].seat == f"player_{seat}"
            assert 400 < oracle.num_episodes < 2000
            plans = exact.plans(mixture)
            best, _ = exact.form.best_response(seat, plans)
            plans[seat] = exact._plan(seat, response)
            assert -1e-6 < best - exact.form.values(plans)[seat] < most


@covering(
    {
        "algorithm": [ppo, dqn],
        "env": [partial(GameEnv, "kuhn_poker", observation="index"), tictactoe_v3.raw_env],
    }
)
def test_equal_seeds_give_equal_responses_on_any_backend(algorithm: Any, env: Any) -> None:
    """Bit for bit; in games whose seats take turns as well. And a response leaves nothing else in the pool."""
    policy = LOGITS if isinstance(env, partial) else "default"
    digests = []
    for backend in ("serial", "multiprocessing"):
        with pufferlib.make(env, backend=backend, num_envs=8, num_workers=2, as_torch=True) as vec:
            oracle = LearnedOracle(vec, PolicyPool(), small(algorithm, total_steps=150, policy=policy))
            mixture = product([(oracle.initial(0),), (oracle.initial(1),)], [[1.0], [1.0]])
            digests.append([oracle.pool[oracle.respond(seat, mixture)].digest for seat in (0, 1, 1)])
            assert oracle.pool.learners() == () and len(oracle.pool) == 5
    assert digests[0] == digests[1] and len(set(digests[0])) == 3


def improving(vec: Any, pool: PolicyPool, seed: int, algorithm: Any) -> LearnedOracle:
    return LearnedOracle(vec, pool, small(algorithm, total_steps=150, seed=seed))


@pytest.mark.parametrize("algorithm", [ppo, dqn])
def test_an_optimiser_goes_on_where_a_learner_does(algorithm: Any) -> None:
    """Also where each improvement is a task of any worker; later steps do not change what is published."""
    env = partial(GameEnv, "kuhn_poker", observation="index")
    pool, steps, before = PolicyPool(), [], None
    with Coordinator(pool, env, num_envs=8, as_torch=True) as coordinator:
        oracle = RemoteOracle(coordinator, partial(improving, algorithm=algorithm), seed=1)
        mixture = product([(oracle.initial(0),), (oracle.initial(1),)], [[1.0], [1.0]])
        learner = oracle.begin(0)
        for _ in range(2):
            oracle.improve(0, learner, mixture)
            assert set(pool.state(learner)) == {"optimizer", "outcomes"} - ({"outcomes"} if algorithm is dqn else set())
            (moments,) = pool.state(learner)["optimizer"]["state"].values()
            steps.append(int(moments["step"]))
            if before is None:
                before, state = pool._learners[learner].state, pool.state(learner)
        assert 0 < steps[0] < steps[1] and str(before) == str(state)
        frozen = pool.freeze(learner)
        pool.drop(learner)
        assert pool.learners() == () and pool[frozen].seat == "player_0"
        with pytest.raises(PlanError, match=f"no policy has id {learner}"):
            pool.state(learner)
        assert oracle.begin(0) == learner - 1  # nobody has an id again


@pytest.mark.parametrize("warm", [True, False])
def test_a_warm_response_begins_where_the_newest_policy_is(warm: bool) -> None:
    with pufferlib.make(partial(GameEnv, "kuhn_poker", observation="index"), num_envs=8, as_torch=True) as vec:
        oracle = LearnedOracle(vec, PolicyPool(), small(ppo, total_steps=8, learning_rate=0.0), warm=warm)
        weights = {name: value + 1 for name, value in oracle.pool.weights(oracle.initial(0)).items()}
        newest = oracle.pool.add(weights, Origin(LOGITS), "player_0")
        mixture = product([(0, newest), (oracle.initial(1),)], [[0.5, 0.5], [1.0]])
        assert oracle.pool[oracle.respond(0, mixture)].digest == oracle.pool[newest if warm else 0].digest


def test_nothing_that_has_turned_to_nan_gets_into_a_pool() -> None:
    with pufferlib.make(partial(GameEnv, "kuhn_poker", observation="index"), num_envs=8, as_torch=True) as vec:
        oracle = LearnedOracle(vec, PolicyPool(), small(ppo, total_steps=1500, learning_rate=1e38))
        mixture = product([(oracle.initial(0),), (oracle.initial(1),)], [[1.0], [1.0]])
        with pytest.raises(PlanError, match="loss is nan after .* steps.*lower learning_rate"):
            oracle.respond(0, mixture)
        assert len(oracle.pool) == 2 and not oracle.pool.learners()


def test_learnt_policies_are_measured_by_what_they_do() -> None:
    """A network in a table's place: as many points as the table that says the same."""
    exact = ExactOracle("kuhn_poker")
    env = partial(GameEnv, "kuhn_poker", observation="index")
    with pufferlib.make(env, num_envs=1, seed=1) as vec:
        network = Origin(LOGITS).actor(vec.observation_layout, vec.single_action_space).policy
    torch.nn.init.normal_(network.logits)
    learnt = exact.pool.add(network, Origin(LOGITS))
    table = exact._add(0, network.logits.detach().double().softmax(1).numpy())
    second = exact.initial(1)
    values = [exact.nash_conv(product([(policy,), (second,)], [[1.0], [1.0]])) for policy in (learnt, table)]
    assert abs(values[0] - values[1]) < 1e-6


def test_networks_that_read_tensors_are_measured_by_what_they_pay() -> None:
    """Against uniform play, in both seats of Kuhn poker: what is computed is what episodes come to."""
    exact = ExactOracle("kuhn_poker", observation="tensor")
    env = partial(GameEnv, "kuhn_poker", observation="tensor")
    with pufferlib.make(env, num_envs=64, seed=1) as vec:
        ids = []
        for seat in (0, 1):
            with torch.random.fork_rng():
                torch.manual_seed(seat)
                network = Origin("mlp").actor(vec.observation_layout, vec.single_action_space).policy
                torch.nn.init.normal_(network.actor[-1].weight)
            ids.append(exact.pool.add(network, Origin("mlp"), f"player_{seat}"))
        table = PayoffTable(2, [[policy] for policy in ids])
        Evaluator(vec, exact.pool, min_episodes=2000, seed=1)(table)
    computed = PayoffTable(2, table.populations)
    exact.evaluate(computed)
    assert abs(computed.means[0, 0, 0]) > 0.05  # they play differently
    assert np.abs(computed.means - table.means).max() < table.half_widths(1 - 1e-6).max()
    with pytest.raises(PlanError, match="observation='tensors' is not available"):
        ExactOracle("kuhn_poker", observation="tensors")


@pytest.mark.long
def test_a_network_learns_half_of_what_uniform_play_of_leduc_leaves_to_gain() -> None:
    """A short form of benchmarks/learned_oracles.py: one response, here by PPO and from new weights."""
    exact = ExactOracle("leduc_poker", observation="tensor")
    env = partial(GameEnv, "leduc_poker", observation="tensor")
    config = ppo.Config(total_steps=2_400, gamma=1.0, learning_rate=0.01, rollout_length=8, num_minibatches=2, seed=1)
    with pufferlib.make(env, num_envs=64, seed=1, as_torch=True) as vec:
        oracle = LearnedOracle(vec, exact.pool, config, warm=False)
        uniform = [oracle.initial(seat) for seat in (0, 1)]  # nearly
        mixture = product([(policy,) for policy in uniform], [[1.0], [1.0]])
        response = oracle.respond(0, mixture)
    plans = exact.plans(mixture)
    best, _ = exact.form.best_response(0, plans)
    before = exact.form.values(plans)[0]
    plans[0] = exact._plan(0, response)
    assert abs(before) < 0.2 and best > 2.0
    assert exact.form.values(plans)[0] > 0.5 * best


# --------------------------------------------------------------------------------------------------------- self-play


def test_the_diff_to_ppo_is_the_population() -> None:
    """Readers compare the two files; what has no reason to differ must not. Past selves are played by torch alone."""
    changed, missing = changed_lines(ppo_selfplay)
    assert len(changed) < 60
    assert sum(line[0] == "-" for line in changed) < 10
    assert not missing


SMALL = ppo_selfplay.Config(
    env="pettingzoo.classic.tictactoe_v3:env",
    backend="serial",
    num_envs=8,
    total_steps=600,
    num_past=3,
    eval_episodes=8,
)


@pytest.mark.long
def test_self_play_keeps_past_selves_and_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_play, "VERSUS_EPISODES", 2)
    learners: list[Any] = []
    make = ppo_selfplay.make_learner
    monkeypatch.setattr(ppo_selfplay, "make_learner", lambda *args: learners.append(make(*args)) or learners[-1])
    result = ppo_selfplay.train(replace(SMALL, runs=str(tmp_path)))
    assert result.run_folder is not None
    ppo_selfplay.resume(result.run_folder, total_steps=900, trust=True)
    digests = [[learner.pool[past].digest for past in learner.past] for learner in learners]
    assert len(set(digests[0])) == 3  # each of another time
    assert digests[1] == digests[0]


def test_teams_sit_together_and_one_seat_is_refused() -> None:
    tag = {"num_taggers": 2, "num_runners": 1, "episode_length": 8, "grid_length": 4}
    config = replace(SMALL, env="tag/grid", env_kwargs=tag, teams=True, total_steps=300, num_past=1, runs=None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(self_play, "VERSUS_EPISODES", 2)
        matchups: list[Any] = []
        versus = ppo_selfplay.versus
        patch.setattr(ppo_selfplay, "versus", lambda *args: matchups.append(versus(*args)) or matchups[-1])
        ppo_selfplay.train(config)
    assert sorted(matchups[0]) == [
        "versus/oldest_runner",
        "versus/oldest_tagger",
        "versus/random_runner",
        "versus/random_tagger",
    ]
    with pytest.raises(PlanError, match="two seats"):
        ppo_selfplay.train(replace(config, env="ocean/bandit", env_kwargs={}))


def test_an_actor_that_learns_is_measured_as_it_is_now() -> None:
    env = partial(GameEnv, "kuhn_poker", observation="index")
    with pufferlib.make(env) as vec:
        actor = Actor("pufferlib.population.games:Logits", vec.observation_layout, vec.single_action_space)
    oracle = ExactOracle("kuhn_poker")
    learner = oracle.pool.add_learner(actor, Origin("pufferlib.population.games:Logits"), "player_0")
    mixture = product([(learner,), (oracle.initial(1),)], [(1.0,), (1.0,)])
    before = oracle.nash_conv(mixture)
    with torch.no_grad():
        for part in actor.policy.parameters():
            part += torch.linspace(-3, 3, part.numel()).view_as(part)
    assert oracle.nash_conv(mixture) != pytest.approx(before)
