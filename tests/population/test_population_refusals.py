"""What populations refuse at once: learners without a seat, another origin, games too large, no iterations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import pufferlib
from pufferlib.errors import PlanError, RecvTimeout
from pufferlib.models import LSTM, MLP, Actor, Origin
from pufferlib.population import (
    Capped,
    Evaluator,
    ExactOracle,
    Fixed,
    LearnerView,
    Mixture,
    PayoffTable,
    PolicyPool,
    Prioritized,
    Rated,
    Ratings,
    Router,
    Sampled,
    Settings,
    pipeline_psro,
    population_based_training,
    product,
    psro,
    rectified_targets,
    solvers,
)
from pufferlib.population.games import GameEnv, KuhnPoker, SequenceForm
from pufferlib.population.pool import digest_of

pytestmark = [pytest.mark.extras, pytest.mark.beside]


@pytest.fixture
def vec() -> Iterator[pufferlib.VecEnv]:
    with pufferlib.make("ocean/multiagent", num_envs=2, seed=1) as vec:
        yield vec


def pool_of(vec: Any, num: int = 2, folder: Any = None) -> PolicyPool:
    pool = PolicyPool(folder)
    for _ in range(num):
        pool.add(MLP(vec.observation_layout, vec.single_action_space), Origin("mlp"))
    return pool


class Silent:
    """A matchmaker that does not say whom it can seat, and seats frozen policies for the first rounds."""

    def __init__(self, rounds: int, learner: int) -> None:
        self.rounds, self.learner = rounds, learner

    def assign(self, env_ids: Any) -> Any:
        self.rounds -= 1
        return [(0, 1) if self.rounds >= 0 else (self.learner, 1) for _ in env_ids]

    def report(self, env_id: int, matchup: Any, returns: Any) -> None:
        pass


@pytest.mark.parametrize("timeout", [None, 5.0])
@pytest.mark.parametrize(
    "maker",
    [
        lambda: Fixed([(0, 1), (1, 0)]),
        lambda: Sampled(product([(0,), (1,)], [(1.0,), (1.0,)]), seed=1),
        lambda: Sampled(product([(0, -1), (1,)], [(1.0, 0.0), (1.0,)]), seed=1),
        lambda: Prioritized(0, 0, [[1]], seed=1),
        lambda: Capped(Fixed([(0, 1)]), 2, 1),
        lambda: Rated(Fixed([(0, 1)]), Ratings()),
    ],
)
def test_a_learner_that_nobody_seats_is_named(vec: Any, maker: Any, timeout: float | None) -> None:
    pool = pool_of(vec)
    learner = pool.add_learner(Actor("mlp", vec.observation_layout, vec.single_action_space), Origin("mlp"))
    view = LearnerView(vec, Router(pool, vec, maker()), learner)
    vec.async_reset()
    for _ in range(2):  # nor the second time
        with pytest.raises(PlanError, match=rf"no row of learner {learner} can arrive.*seats the policies \[0, 1\]"):
            view.recv(timeout)


def test_a_learner_that_is_not_seated_in_time_is_waited_for_no_longer(vec: Any) -> None:
    pool = pool_of(vec)
    learner = pool.add_learner(Actor("mlp", vec.observation_layout, vec.single_action_space), Origin("mlp"))
    maker = Silent(10**9, learner)
    view = LearnerView(vec, Router(pool, vec, maker), learner)
    vec.async_reset()
    with pytest.raises(RecvTimeout, match=rf"no row of learner {learner} came within 0.1 s, in \d+ batches"):
        view.recv(timeout=0.1)
    maker.rounds = 0
    batch = view.recv(timeout=60)  # goes on, with the infos of the batches before
    assert len(batch.observations) == 2 and any("episode" in info for info in batch.infos)


def test_nothing_that_a_pool_hands_out_changes_what_is_frozen(vec: Any, tmp_path: Any) -> None:
    layout, space = vec.observation_layout, vec.single_action_space
    kwargs = {"hidden_size": 32}
    policy, origin = MLP(layout, space, 32), Origin("mlp", kwargs)
    pool = PolicyPool(tmp_path / "pool")
    frozen = pool.add(policy, origin)
    learner = pool.add_learner(pool.weights(frozen), origin)
    opened = PolicyPool.open(tmp_path / "pool")
    for pool_view, number in ((pool, frozen), (pool, learner), (opened, frozen)):
        digest = pool_view[number].digest
        for weights in (pool_view.weights(number), dict(pool_view.actor(number, layout, space).policy.state_dict())):
            for value in weights.values():
                value.zero_()
        pool_view.weights(number).clear()
        pool_view.origin(number).policy_kwargs["hidden_size"] = 5  # type: ignore[index]
        origin.policy_kwargs["hidden_size"] = 5  # type: ignore[index]
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.zero_()
        assert digest_of(pool_view.origin(number), pool_view.weights(number)) == digest
        assert any(bool(value.any()) for value in pool_view.weights(number).values())
    assert pool[pool.freeze(learner)].digest == pool[frozen].digest


@pytest.mark.parametrize(
    ("make", "origin", "message"),
    [
        (lambda *spaces: torch.nn.Linear(2, 2), Origin("mlp"), "a Linear is not what policy='mlp' makes"),
        (MLP, Origin("lstm"), "a MLP is not what policy='lstm' makes"),
        (LSTM, Origin(), "a LSTM is not what policy='default' makes, CNN or MLP"),
        (lambda *spaces: MLP(*spaces, 32), Origin("mlp", {"hidden_size": 64}), r"shape \(32, 2\).*shape \(64, 2\)"),
        (lambda *spaces: MLP(*spaces, 32), Origin("mlp"), r"shape \(32, 2\).*shape \(64, 2\)"),
        (MLP, Origin("mlp", {"hiden_size": 64}), "hiden_size"),
        (MLP, Origin("mpl"), "policy='mpl' is not one of 'default'"),
        (lambda *spaces: {"a": torch.zeros(1)}, Origin("mpl"), "policy='mpl' is not one of 'default'"),
        (lambda *spaces: {"a": torch.zeros(1)}, Origin("mlp"), "weight '.*' is missing, and policy 0, of the same"),
        (lambda *spaces: MLP(*spaces).parameters(), Origin("mlp"), "is no policy; pass a torch.nn.Module"),
        (MLP, Origin("no_such_module:Net"), "there is no module no_such_module"),
    ],
)
def test_a_policy_is_held_to_its_origin(vec: Any, make: Any, origin: Any, message: str) -> None:
    pool = pool_of(vec, 1)
    policy = make(vec.observation_layout, vec.single_action_space)
    state = torch.random.get_rng_state()
    for add in (pool.add, pool.add_learner):
        with pytest.raises(pufferlib.PufferError, match=message):
            add(policy, origin)
    assert (len(pool), pool.learners()) == (1, ()) and bool((torch.random.get_rng_state() == state).all())
    assert pool.add(Actor("mlp", vec.observation_layout, vec.single_action_space), Origin("mlp")) == 1


def test_weights_of_another_shape_are_not_published(vec: Any) -> None:
    pool = pool_of(vec, 1)
    spaces = vec.observation_layout, vec.single_action_space
    learners = pool.add_learner(Actor("mlp", *spaces), Origin("mlp")), pool.add_learner(pool.weights(0), Origin("mlp"))
    for learner in learners:
        with pytest.raises(PlanError, match=rf"learner {learner} has one of shape \(64, 2\)"):
            pool.publish(learner, MLP(*spaces, 32).state_dict())
        assert pool.version(learner) == 0
        assert pool.publish(learner, MLP(*spaces).state_dict()) == 1
    with pufferlib.make("ocean/squared", num_envs=1) as other:
        # Another seat's policies may be of other observations.
        assert pool.add(MLP(other.observation_layout, other.single_action_space), Origin("mlp"), "b") == 1


class Wide:
    """A node with ``width`` children down to ``depth``; it counts those that were visited."""

    visited = 0

    def __init__(self, width: int, depth: int) -> None:
        self.width, self.depth = width, depth

    def new_initial_state(self) -> Wide:
        return self

    def num_players(self) -> int:
        return 1

    def num_distinct_actions(self) -> int:
        return self.width

    def is_terminal(self) -> bool:
        return self.depth == 0

    def is_chance_node(self) -> bool:
        return False

    def current_player(self) -> int:
        return 0

    def legal_actions(self) -> list[int]:
        return list(range(self.width))

    def child(self, action: int) -> Wide:
        Wide.visited += 1
        return Wide(self.width, self.depth - 1)

    def information_state_string(self, player: int) -> str:
        return f"{self.depth} {id(self)}"

    def returns(self) -> list[float]:
        return [0.0]


@pytest.mark.parametrize("make", [ExactOracle, SequenceForm, lambda game: GameEnv(game, "index")])
def test_games_too_large_are_refused_before_they_are_enumerated(make: Any) -> None:
    Wide.visited = 0
    with pytest.raises(PlanError, match=r"more than max_nodes=1,000,000 nodes.*LearnedOracle.*or raise max_nodes"):
        make(Wide(30, 40))
    assert Wide.visited < 1000


def test_the_limit_is_exact() -> None:
    assert SequenceForm(KuhnPoker(), max_nodes=58).num_states == 12
    for max_nodes in (1, 20, 57):
        with pytest.raises(PlanError, match=f"more than max_nodes={max_nodes} nodes"):
            SequenceForm(KuhnPoker(), max_nodes=max_nodes)
    with pytest.raises(PlanError, match="use 1 or more"):
        ExactOracle("kuhn_poker", max_nodes=0)


def up_to(loop: Any, num: int) -> list[Any]:
    return [next(loop).mixture for _ in range(num)]


@pytest.mark.parametrize("word", solvers.SOLVERS)
def test_loops_take_the_words_that_a_league_takes(word: str) -> None:
    def grown(solver: Any, **kwargs: Any) -> Any:
        oracle = ExactOracle("kuhn_poker")
        return up_to(psro(oracle, oracle.table(), solver, evaluate=oracle.evaluate, **kwargs), 4)

    settings = Settings.of({"game": "kuhn_poker", "solver": word, "stop": {"iterations": 1}}, "a test")
    by_word, by_league = grown(word), grown(settings.solve(), targets=settings.targets())
    by_function = grown(getattr(solvers, word), targets=rectified_targets if word == "rectified_nash" else None)
    for first, second, third in zip(by_word, by_league, by_function, strict=True):
        assert first.populations == second.populations == third.populations
        assert all(map(np.array_equal, first.marginals, second.marginals))
    oracle = ExactOracle("kuhn_poker", rate=0.7)
    assert len(up_to(pipeline_psro(oracle, oracle.table(), word, evaluate=oracle.evaluate), 2)) == 2


def test_words_that_are_none_are_refused_before_anything_is_played() -> None:
    oracle = ExactOracle("kuhn_poker")
    with pytest.raises(PlanError, match="solver='lp_nahs' is none; did you mean lp_nash"):
        psro(oracle, oracle.table(), "lp_nahs")
    with pytest.raises(PlanError, match="solver=None is none"):
        psro(oracle, oracle.table(), None)  # type: ignore[arg-type]
    assert len(oracle.pool) == 0


@pytest.mark.parametrize("count", [0, -1, 2.5, True, None])
@pytest.mark.parametrize("solver", [solvers.fictitious_play, solvers.projected_replicator])
@pytest.mark.parametrize("num_seats", [2, 3])
def test_solvers_iterate_once_at_least(solver: Any, count: Any, num_seats: int) -> None:
    payoffs = np.zeros((num_seats, *(2,) * num_seats))
    with pytest.raises(PlanError, match="num_iterations=.* must be a whole number of at least 1"):
        solver(payoffs, num_iterations=count)
    assert all(abs(mixture.sum() - 1) < 1e-9 for mixture in solver(payoffs, num_iterations=1))


@pytest.mark.parametrize(
    ("solver", "kwargs"),
    [
        ("fictitious_play", {"num_iterations": 0}),
        ("projected_replicator", {"num_iterations": 0}),
        ("projected_replicator", {"dt": 0.0}),
        ("projected_replicator", {"gamma": 0.6}),
        ("alpha_rank", {"epsilon": 0.0}),
        ("alpha_rank", {"alpha": float("nan")}),
    ],
)
def test_a_leagues_file_is_refused_for_what_its_solver_refuses(solver: str, kwargs: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match=f"solver {solver} does not take .*{next(iter(kwargs))}"):
        Settings(game="kuhn_poker", solver=solver, solver_kwargs=kwargs)
    with pytest.raises(PlanError):
        getattr(solvers, solver)(np.zeros((2, 2, 2)), **kwargs)


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("inf"), "1", 1e6])
def test_intensities_that_rank_nothing_are_refused(alpha: Any) -> None:
    payoffs = np.stack([1 - np.eye(2), 1 - np.eye(2)])  # with two combinations that only worse mutants would leave
    with pytest.raises(PlanError, match=f"alpha={alpha!r}"):
        solvers.alpha_rank(payoffs, alpha=alpha)
    assert solvers.alpha_rank(payoffs, alpha=0.1)[0].tolist() == pytest.approx([0.5, 0.5])


@pytest.mark.parametrize(
    "start",
    [
        [[1.0, 0.0]],
        [[1.0, 0.0], [1.0]],
        [[1.0, 0.0], [1.0, 1.0]],
        [[2.0, -1.0], [1.0, 0.0]],
        [[float("nan"), 1.0], [1.0, 0.0]],
        [["a", "b"], [1.0, 0.0]],
        0.5,
    ],
)
def test_replicators_start_from_probabilities(start: Any) -> None:
    payoffs = np.stack([np.eye(2), -np.eye(2)])
    with pytest.raises(PlanError, match=r"(?s)start=.* does not fit \(2, 2\) policies \(.*\); pass an array of prob"):
        solvers.projected_replicator(payoffs, start=start)
    assert len(solvers.projected_replicator(payoffs, 1, start=[[0.5, 0.5], [1.0, 0.0]])) == 2  # type: ignore[list-item]


def test_seats_and_probabilities_that_are_none_are_refused() -> None:
    table = PayoffTable(2)
    for seat in (2, -1, "0", None):
        for change in (table.add, table.clear):
            with pytest.raises(PlanError, match=f"seat {seat!r} is not in this table; use 0 to 1"):
                change(seat, 0)  # type: ignore[arg-type]
    assert table.populations == [[], []] and table.counts.shape == (0, 0)
    nan = float("nan")
    for marginals in ([[nan], [1.0]], [[1.0], [nan]]):
        with pytest.raises(PlanError, match="nan.* are not probabilities"):
            product([(0,), (1,)], marginals)
    with pytest.raises(PlanError, match="nan.* are not probabilities"):
        Mixture.of_joint([(0,), (1,)], np.array([[nan]]))


def test_an_oracle_that_mixes_in_nothing_is_refused() -> None:
    for rate in (0.0, -1.0, 1.5):
        with pytest.raises(PlanError, match=f"rate={rate}"):
            ExactOracle("kuhn_poker", rate=rate)


@pytest.mark.parametrize("shares", [[0.5, 0.5 + 5e-7], [0.5, 0.5 + 2e-6], [1.0, -1e-9]])
def test_replicators_start_from_what_a_mixture_holds_and_from_nothing_else(shares: list[float]) -> None:
    payoffs = np.stack([np.eye(2), -np.eye(2)])
    try:
        marginals = product([(0, 1), (0, 1)], [shares, shares]).marginals
    except PlanError as error:
        with pytest.raises(PlanError) as refusal:
            solvers.projected_replicator(payoffs, start=[shares, shares])  # type: ignore[list-item]
        assert str(error) in str(refusal.value)  # which says what is wrong with them
    else:
        solvers.projected_replicator(payoffs, 1, start=marginals)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"confidence": 1.0}, "confidence=1.0, half_width=None: confidence must be between 0 and 1"),
        ({"confidence": 0.0}, "confidence=0.0"),
        ({"confidence": float("nan")}, "confidence=nan"),
        ({"half_width": -0.1, "max_episodes": 200}, "half_width=-0.1: .* half_width at least 0"),
        ({"half_width": float("nan"), "max_episodes": 200}, "half_width=nan"),
    ],
)
def test_an_evaluator_refuses_intervals_that_none_can_have(vec: Any, kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        Evaluator(vec, PolicyPool(), **kwargs)


@pytest.mark.parametrize(
    ("seat", "memory", "message"),
    [
        (2, 100.0, "seat=2 is not one of 2 seats; use 0 to 1"),
        (-1, 100.0, "seat=-1 is not one of 2 seats"),
        (0, 0.0, "memory=0.0 is not a number of episodes; use more than 0"),
        (0, -5.0, "memory=-5.0"),
        (0, float("nan"), "memory=nan"),
    ],
)
def test_prioritized_refuses_seats_and_memories_that_are_none(seat: int, memory: float, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        Prioritized(seat, 0, [(1, 2)], memory=memory)
    assert Prioritized(1, 0, [(1,)], memory=float("inf"), seed=1).assign([0]) == [(1, 0)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"share": 0.0}, "share=0.0 of 2 learners"),
        ({"share": float("nan")}, "share=nan of 2 learners"),
        ({"share": float("inf")}, "share=inf of 2 learners"),
        ({"factors": ()}, "factors is empty; pass at least one factor"),
    ],
)
def test_a_population_that_cannot_be_trained_is_refused(changes: dict[str, Any], message: str) -> None:
    generations = population_based_training(PolicyPool(), {-1: {}, -2: {}}, lambda member: 0.0, **changes)
    with pytest.raises(PlanError, match=message):
        next(generations)
