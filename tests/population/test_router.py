"""Many policies in one batch: each row is computed by the policy of its seat in its environment's matchup."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pettingzoo
import pytest
import torch
from gymnasium import spaces
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pettingzoo.classic import tictactoe_v3

import pufferlib
import pufferlib.population.router
from pufferlib.errors import CallError, CheckpointError, PlanError
from pufferlib.models import Actor, Origin
from pufferlib.population import (
    Capped,
    Fixed,
    Matchup,
    Member,
    Mixture,
    PolicyPool,
    Prioritized,
    Router,
    Sampled,
    Seat,
    population_based_training,
    product,
    random_pairs,
    seats_of,
)

pytestmark = pytest.mark.beside

PLACES, ACTIONS = 3, 5
ORIGINS = {
    "mlp": Origin("mlp", {"hidden_size": 8}),
    "other": Origin("mlp", {"hidden_size": 4}),
    "lstm": Origin("lstm", {"hidden_size": 4}),
    "frames": Origin("mlp", {"hidden_size": 8}, frame_stack=2),
}


class SeatEnv(pettingzoo.ParallelEnv[str, Any, Any]):
    """Shows seat and time; with ``turn_based`` only one seat at a time may act. Pays actions. Lasts 1 to 6 steps."""

    metadata = {"name": "turns"}

    def __init__(self, turn_based: bool = False, longest: int = 6) -> None:
        self.possible_agents = [f"{'scout' if seat else 'guard'}_{seat}" for seat in range(PLACES)]
        who = {"who": spaces.Box(-9, 9, (4,), np.float32)}
        mask = {"action_mask": spaces.Box(0, 1, (ACTIONS,), np.float32)}
        self.space = spaces.Dict({**mask, **who} if turn_based else who)
        self.turn_based, self.longest = turn_based, longest
        self.rng = np.random.default_rng()

    def observation_space(self, agent: str) -> Any:
        return self.space

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(ACTIONS)

    def _seen(self) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        for seat, agent in enumerate(self.possible_agents):
            seen[agent] = {"who": np.array([seat, self.tick, *self.rng.random(2)], np.float32)}
            if self.turn_based:
                allowed = self.rng.random(ACTIONS) < 0.7 if self.tick % PLACES == seat else np.zeros(ACTIONS)
                seen[agent]["action_mask"] = allowed.astype(np.float32)
        return seen

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self.tick, self.length = 0, int(self.rng.integers(1, self.longest + 1))
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        self.tick += 1
        over = dict.fromkeys(self.possible_agents, self.tick == self.length)
        rewards = {agent: float(actions[agent]) for agent in self.possible_agents}
        seen = self._seen()
        if self.tick == self.length:
            self.agents = []
        return seen, rewards, over, dict.fromkeys(over, False), {agent: {} for agent in over}


def pool_of(vec: pufferlib.VecEnv, kinds: Sequence[str], seed: int = 0) -> PolicyPool:
    """A pool of random policies, with weights large enough that they differ."""
    torch.manual_seed(seed)
    pool = PolicyPool()
    for kind in kinds:
        actor = ORIGINS[kind].actor(vec.observation_layout, vec.single_action_space)
        for weights in actor.policy.parameters():
            torch.nn.init.normal_(weights)
        pool.add(actor.policy, ORIGINS[kind])
    return pool


class Naive:
    """The plain twin of a router's forward passes: a row at a time, each with the history of its agent alone."""

    def __init__(self, pool: PolicyPool, vec: pufferlib.VecEnv) -> None:
        self.actors = [pool.actor(i, vec.observation_layout, vec.single_action_space) for i in range(len(pool))]
        self.states: dict[int, Any] = {}
        self.frames: dict[int, Any] = {}

    @torch.no_grad()
    def logits(self, policy: int, agent: int, row: Any, goes_on: bool) -> tuple[Any, Any]:
        """Return the logits of one row, and its action mask."""
        actor, row = self.actors[policy], torch.from_numpy(row.copy())
        if not goes_on:
            self.states.pop(agent, None)
            self.frames.pop(agent, None)
        before = self.frames.get(agent, row)
        self.frames[agent] = row
        seen = torch.cat([before, row])[None] if actor.frame_stack == 2 else row[None]
        mask = actor.mask(seen)
        if mask is not None and not mask.any():
            return None, mask
        state = self.states.get(agent, actor.initial_state(1))
        outputs, _, self.states[agent] = actor.outputs(seen, state, mask)
        return outputs[0], mask


def heard(router: Router) -> list[Any]:
    """A list that gets the outputs and masks of each batch."""
    calls: list[Any] = []
    make = router.decisions.distribution
    router.decisions.distribution = lambda *args: (calls.append(args), make(*args))[1]  # type: ignore[method-assign]
    return calls


@settings(max_examples=8, phases=(Phase.explicit, Phase.reuse, Phase.generate))  # a shrunk one says no more
@given(
    data=st.data(),
    kinds=st.lists(st.sampled_from(sorted(ORIGINS)), min_size=1, max_size=6),
    turn_based=st.booleans(),
    sizes=st.sampled_from([(5, 5), (5, 2), (7, 3)]),
)
def test_a_router_computes_what_a_loop_over_rows_does(
    data: st.DataObject, kinds: list[str], turn_based: bool, sizes: tuple[int, int]
) -> None:
    num_envs, batch_size = sizes
    policy = st.integers(0, len(kinds) - 1)
    matchups = data.draw(st.lists(st.tuples(*[policy] * PLACES), min_size=1, max_size=8))
    with (
        pytest.MonkeyPatch.context() as patch,
        pufferlib.make(
            SeatEnv, num_envs=num_envs, batch_size=batch_size, env_kwargs={"turn_based": turn_based}, seed=1
        ) as vec,
    ):
        pool = pool_of(vec, kinds)
        naive = Naive(pool, vec)
        patch.setattr(pufferlib.population.router, "FEWEST", data.draw(st.sampled_from([2, 99])))
        mixture = Sampled(product([range(len(kinds))] * PLACES, [np.full(len(kinds), 1 / len(kinds))] * PLACES), 2)
        router = Router(pool, vec, Fixed(matchups) if data.draw(st.booleans()) else mixture, seed=3)
        calls = heard(router)
        vec.async_reset()
        for _ in range(9):
            batch = vec.recv()
            actions = router.act(batch)
            logits = calls[-1][0]
            for index, agent in enumerate(batch.agent_ids.tolist()):
                matchup = router.matchup(agent // PLACES)
                assert matchup is not None
                chosen = matchup[agent % PLACES]
                assert chosen == router.policies(batch.agent_ids)[index]
                wanted, mask = naive.logits(chosen, agent, batch.observations[index], bool(batch.masks[index]))
                if wanted is not None:
                    torch.testing.assert_close(logits[index], wanted, rtol=1e-4, atol=1e-4)
                    assert mask is None or mask[0, actions[index]]
            vec.send(actions)


@pytest.mark.parametrize("turn_based", [False, True])
def test_policies_that_are_alike_are_computed_at_once(turn_based: bool) -> None:
    with pufferlib.make(SeatEnv, num_envs=24, env_kwargs={"turn_based": turn_based}, seed=1) as vec:
        pool = pool_of(vec, ["mlp"] * 8 + ["lstm"])
        # Without turns each policy has as many rows; with turns nothing is even, and one has a memory.
        table = Fixed([(env, (env + 3) % 8, 8 if turn_based else env) for env in range(8)])
        routers = [Router(pool, vec, table, stack=stack, seed=1) for stack in (True, False)]
        calls_of = [heard(router) for router in routers]
        vec.async_reset()
        for _ in range(6):
            batch = vec.recv()
            actions, _ = (router.act(batch) for router in routers)
            (one, mask), (other, _) = (calls[-1] for calls in calls_of)
            active = slice(None) if mask is None else mask.any(1)
            torch.testing.assert_close(one[active], other[active], rtol=1e-4, atol=1e-4)
            vec.send(actions)
        used, unused = (router._stacks for router in routers)
        assert used and not unused and all(len(names) >= 8 for names in used)
        assert routers[0]._unstackable == {None}


@pytest.mark.parametrize("backend", [pytest.param("serial", marks=pytest.mark.long), "pool"])
def test_mixtures_are_constant_within_an_episode_and_drawn_as_often_as_they_say(backend: str) -> None:
    """A policy drawn again at every step would fail this: then nobody plays the mixture."""
    joint = np.array([[0.5, 0.0], [0.2, 0.3]])
    mixture = Mixture.of_joint([(0, 1), (2, 3)], joint)
    teams = [Seat("guards", (0,)), Seat("scouts", (1, 2))]
    drawn: Counter[Matchup] = Counter()
    with pufferlib.make(SeatEnv, backend=backend, num_envs=16, batch_size=8, num_workers=2, seed=1) as vec:
        pool = pool_of(vec, ["mlp"] * 4)
        router = Router(pool, vec, Sampled(mixture, seed=1), seats=teams, seed=1)
        vec.async_reset()
        playing: dict[int, Any] = {}
        for _ in range(400):
            batch = vec.recv()
            vec.send(router.act(batch))
            for env_id, rows in zip(batch.env_ids.tolist(), batch.masks.reshape(-1, PLACES), strict=True):
                if rows.any():
                    assert router.matchup(env_id) == playing[env_id]
                else:
                    playing[env_id] = router.matchup(env_id)
                    drawn[playing[env_id]] += 1
    shares = np.array([[drawn[one, two] for two in (2, 3)] for one in (0, 1)]) / sum(drawn.values())
    assert sum(drawn.values()) > 500
    assert np.abs(shares - joint).max() < 0.12  # more than five standard deviations


class Watching(Fixed):
    """Keeps what is reported."""

    def __init__(self, matchups: Sequence[Matchup]) -> None:
        super().__init__(matchups)
        self.reports: list[tuple[int, Any]] = []

    def report(self, env_id: int, matchup: Matchup, returns: Any) -> None:
        self.reports.append((env_id, None if returns is None else returns.tolist()))


def test_returns_are_reported_by_seat_without_those_of_cut_episodes() -> None:
    with pufferlib.make(SeatEnv, num_envs=4, seed=1) as vec:
        pool, maker = pool_of(vec, ["mlp", "other"]), Watching([(0, 1)])
        seats = seats_of(vec, role=lambda name: name.partition("_")[0])
        assert seats == (Seat("guard", (0,)), Seat("scout", (1, 2)))
        router = Router(pool, vec, maker, seats=seats, seed=1)
        wanted: dict[int, list[Any]] = defaultdict(list)
        sums = np.zeros((4, PLACES))
        for _ in range(2):
            vec.async_reset()
            for _ in range(9):
                batch = vec.recv()
                rows = batch.masks.reshape(4, PLACES)
                sums[~rows.any(1)] = 0
                sums += batch.rewards.reshape(4, PLACES) * rows
                for env_id in np.flatnonzero(batch.terminations.reshape(4, PLACES).all(1)).tolist():
                    wanted[env_id].append([sums[env_id, 0], sums[env_id, 1:].sum()])
                vec.send(router.act(batch))
    for env_id in range(4):
        reported = [returns for env, returns in maker.reports if env == env_id]
        complete = [returns for returns in reported if returns is not None]
        assert complete == wanted[env_id][: len(complete)]
        assert len(complete) >= len(wanted[env_id]) - 2  # the last one, before either end, may not have been told yet
        assert len(reported) - len(complete) <= 1  # what the second reset cut off


@pytest.mark.parametrize(
    ("env", "env_kwargs"),
    [("tag/grid", {"num_taggers": 2, "num_runners": 3, "grid_length": 5, "episode_length": 12}), ("ocean/mixed", {})],
    ids=["tag", "mixed"],
)
def test_episodes_are_the_same_on_every_backend(env: str, env_kwargs: dict[str, Any]) -> None:
    """Arrays, tensors and workers; agents that are caught on the way, and actions of two kinds."""
    results = []
    for arguments in ({}, {"as_torch": True}, {"backend": "multiprocessing", "num_workers": 2}):
        with pufferlib.make(env, num_envs=4, seed=1, env_kwargs=env_kwargs, **arguments) as vec:
            pool = pool_of(vec, ["mlp", "other"])
            maker = Watching([tuple(seat % 2 for seat in range(vec.agents_per_env))])
            router = Router(pool, vec, maker, seed=1)
            vec.async_reset()
            for _ in range(80):
                vec.send(router.act(vec.recv()))
        results.append(maker.reports)
    assert len(results[0]) > 4 and results[0] == results[1] == results[2]


def test_learners_play_as_they_are_and_are_frozen_as_they_were() -> None:
    with pufferlib.make(SeatEnv, num_envs=2, seed=1) as vec:
        pool = PolicyPool()
        actor = Actor("mlp", vec.observation_layout, vec.single_action_space)
        learner = pool.add_learner(actor, Origin("mlp"))
        with torch.no_grad():
            actor.policy.actor[-1].bias[0] = 100  # so that it plays 0 for now
        before = pool.freeze(learner)
        router = Router(pool, vec, Fixed([(learner, before, learner)]), greedy=True)
        for action in (2, 4):
            with torch.no_grad():
                actor.policy.actor[-1].bias[:] = 100 * torch.eye(ACTIONS)[action]
            assert pool.publish(learner) == pool.version(learner)
            vec.async_reset()
            rows = router.act(vec.recv()).reshape(2, PLACES)
            assert (rows[:, [0, 2]] == action).all()
            assert (rows[:, 1] == 0).all()
        after = pool.freeze(learner)
        assert pool[before].digest != pool[after].digest
        assert pool.freeze(learner) == after + 1 and pool[after + 1].digest == pool[after].digest


def test_a_pool_is_read_again_and_notices_what_was_changed(tmp_path: Any) -> None:
    with pufferlib.make(SeatEnv, num_envs=1) as vec:
        source = pool_of(vec, ["mlp", "lstm"])
    pool = PolicyPool(tmp_path / "pool")
    for policy, seat in ((0, "guard_0"), (1, None), (0, None)):
        pool.add(source.weights(policy), source.origin(policy), seat)
    again = PolicyPool.open(tmp_path / "pool")
    assert [again[policy] for policy in range(3)] == [pool[policy] for policy in range(3)]
    assert again.of("guard_0") == (0, 1, 2) and again.of("scout_1") == (1, 2)
    assert len(list((tmp_path / "pool").glob("*.pt"))) == 2  # the third shares the first one's
    assert again.origin(1) == source.origin(1)
    for name, weights in source.weights(0).items():
        assert torch.equal(again.weights(2)[name], weights)
    with pytest.raises(CallError, match="open"):
        PolicyPool(tmp_path / "pool")
    paths = {policy: tmp_path / "pool" / f"{pool[policy].digest}.pt" for policy in (0, 1)}
    paths[1].write_bytes(paths[0].read_bytes())
    with pytest.raises(CheckpointError, match="digest"):
        PolicyPool.open(tmp_path / "pool").weights(1)
    index = tmp_path / "pool" / "pool.json"
    index.write_text(index.read_text().replace(pool[0].digest, "../elsewhere"))
    with pytest.raises(CheckpointError, match="elsewhere"):
        PolicyPool.open(tmp_path / "pool")


def test_who_is_met_most_is_who_wins_most() -> None:
    maker = Prioritized(0, -1, [[0, 1]], seed=1)
    for _ in range(200):
        maker.report(0, (-1, 0), np.array([1.0, -1.0]))
        maker.report(0, (-1, 1), np.array([-1.0, 1.0]))
        maker.report(0, (-1, 1), None)
    assert maker.win_rates()[0] > 0.95 and maker.win_rates()[1] < 0.05
    assert all(matchup == (-1, 1) for matchup in maker.assign(range(50)))  # the other weighs (1/87)²
    maker.add(0, 7)
    assert (-1, 7) in maker.assign(range(100))


def test_pairs_are_of_different_policies() -> None:
    pairs = Counter(random_pairs([3, 4, 5], seed=1).assign(range(6000)))
    assert set(pairs) == {(a, b) for a in (3, 4, 5) for b in (3, 4, 5) if a != b}
    assert min(pairs.values()) > 800  # of 1000


def test_a_cap_holds_and_changes_no_share() -> None:
    """Under policies whose episodes last 1 to 9 times as long, the shares of episodes stay those of the mixture."""
    shares = np.array([0.1, 0.2, 0.3, 0.4])
    maker = Capped(Sampled(product([range(4), range(2)], [shares, [0.5, 0.5]]), seed=1), most=3, episodes=1)
    ends: dict[int, int] = {}
    playing: dict[int, Matchup] = {}
    counts: Counter[int] = Counter()
    for tick in range(8_000):
        over = [env for env in range(8) if ends.get(env, tick) == tick]
        for env in over:  # one after another, as environments of a pool
            (playing[env],) = maker.assign([env])
            ends[env] = tick + 1 + 2 * playing[env][0]
            counts[playing[env][0]] += 1
            assert len(set(playing.values())) <= 3
    measured = np.array([counts[policy] for policy in range(4)]) / sum(counts.values())
    assert np.abs(measured - shares).max() < 0.03, measured


def test_turn_based_environments_of_pettingzoo_are_played_by_the_rules() -> None:
    """An AEC environment through emulation: who does not act has a mask that allows nothing, and is not computed."""
    with pufferlib.make(tictactoe_v3.env, num_envs=4, seed=1) as vec:
        pool = PolicyPool()
        pool.add(Actor("mlp", vec.observation_layout, vec.single_action_space).policy, Origin("mlp"))
        maker = Watching([(0, 0)])
        router = Router(pool, vec, maker, seed=1)
        seen: list[int] = []
        actor = router.pool.actor(0, vec.observation_layout, vec.single_action_space)
        actor.policy.register_forward_pre_hook(lambda module, args: seen.append(len(args[0])))
        pool.actor = lambda *args: actor  # type: ignore[method-assign]
        vec.async_reset()
        for _ in range(60):
            vec.send(router.act(vec.recv()))
        assert len(maker.reports) > 12
        assert all(
            sorted(returns) in ([-1, 1], [0, 0]) for _, returns in maker.reports
        )  # an illegal move would pay (-1, 0)
        assert max(seen) == 4  # of eight rows


def test_population_based_training_copies_the_best_and_varies_them() -> None:
    """Each training adds the rate to a weight, which is the score: those of the worst come from the best."""
    pool = PolicyPool()
    with pufferlib.make(SeatEnv, num_envs=1) as vec:
        actors = [ORIGINS["mlp"].actor(vec.observation_layout, vec.single_action_space) for _ in range(5)]
    learners = [pool.add_learner(actor, ORIGINS["mlp"]) for actor in actors]
    members: list[Member] = []

    def train(member: Member) -> float:
        members.append(member)
        weight = actors[learners.index(member.learner)].policy.critic[-1].bias
        with torch.no_grad():
            weight += member.settings["rate"]
        return float("nan") if member.learner == learners[0] and len(members) == 1 else weight.item()

    settings = {learner: {"rate": float(rate)} for learner, rate in zip(learners, (9, 1, 2, 3, 4), strict=True)}
    generations = population_based_training(pool, settings, train, seed=1)
    first = next(generations)
    assert [member.learner for member in first] == [learners[4], *reversed(learners[1:4]), learners[0]]
    second = next(generations)
    heir = members[-1]  # the one without a score, whatever its rate was
    assert (heir.learner, heir.parent) == (learners[0], learners[4])
    assert heir.settings["rate"] in (4 * 0.8, 4 * 1.2)
    scores = {member.learner: member.score for member in second}
    assert scores[learners[4]] == 8.0 and scores[learners[0]] == pytest.approx(4 + heir.settings["rate"])
    assert pool.version(learners[0]) == 3 and pool.version(learners[4]) == 2
    with pytest.raises(PlanError, match="share"):
        next(population_based_training(pool, settings, train, share=0.6))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda pool, vec: Router(pool, vec, Fixed([(0, 0)])).act(vec.recv()), "3 seats"),
        (lambda pool, vec: Router(pool, vec, Fixed([(0, 0, 9)])).act(vec.recv()), "no policy has id 9"),
        (lambda pool, vec: Router(pool, vec, Fixed([(1, 0, 0)])).act(vec.recv()), "cannot take 'guard_0'"),
        (lambda pool, vec: Router(pool, vec, Fixed([(0,)]), seats=[Seat("all", (0, 1))]), "each of 0 to 2"),
        (lambda pool, vec: Fixed([]), "matchups is empty"),
        (lambda pool, vec: product([(0, 1)], [[0.5, 0.6]]), "sum to 1"),
        (lambda pool, vec: pool.version(0), "frozen"),
    ],
)
def test_mistakes_are_refused_with_their_values(make: Any, message: str) -> None:
    with pufferlib.make(SeatEnv, num_envs=1) as vec:
        pool = pool_of(vec, ["mlp"])
        pool.add(pool.weights(0), ORIGINS["mlp"], seat="scout_1")
        vec.async_reset()
        with pytest.raises(PlanError, match=message):
            make(pool, vec)


def test_a_router_that_missed_a_beginning_says_so() -> None:
    with pufferlib.make(SeatEnv, num_envs=2, env_kwargs={"longest": 1}, seed=1) as vec:
        router = Router(pool_of(vec, ["mlp"]), vec, Fixed([(0, 0, 0)]))
        vec.reset()
        vec.step(np.zeros(2 * PLACES, np.int64))
        with pytest.raises(CallError, match=r"\[0, 1\]"):
            router.act(vec.batch)
        vec.step(np.zeros(2 * PLACES, np.int64))  # the next episodes
        assert len(router.act(vec.batch)) == 2 * PLACES
