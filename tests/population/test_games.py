"""Games: exact values, environments that agree with them, OpenSpiel's, and populations that grow on them."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import numpy as np
import pytest

import pufferlib
from pufferlib.errors import ActionError, PlanError, RegistryError
from pufferlib.population import (
    Evaluator,
    ExactOracle,
    Iteration,
    PayoffTable,
    fictitious_self_play,
    psro,
    rectified_targets,
    self_play,
    solvers,
)
from pufferlib.population.games import GameEnv, KuhnPoker, SequenceForm, load_game
from pufferlib.population.games.trees import KuhnState, decisions_of, tensor_of

pytestmark = pytest.mark.beside

KUHN, LEDUC = (SequenceForm(load_game(name)) for name in ("kuhn_poker", "leduc_poker"))


def random_tables(form: SequenceForm, seed: int, count: int = 1) -> list[Any]:
    rng = np.random.default_rng(seed)
    weights = rng.random((count, form.num_states, form.num_actions)) ** 3 * form.legal
    return list(weights / weights.sum(2, keepdims=True))


def test_games_have_the_sizes_and_values_that_are_known() -> None:
    """Those of OpenSpiel's: 4.7472 is what uniform play of Leduc leaves to gain, 0.9167 of Kuhn."""
    assert (KUHN.num_sequences, KUHN.num_states) == ([13, 13], 12)
    assert (LEDUC.num_sequences, LEDUC.num_states) == ([1093, 1093], 936)
    for form, value, left in ((KUHN, 0.125, 0.916666667), (LEDUC, -0.078125, 4.747222222)):
        plans = [form.plan(player, form.uniform()) for player in (0, 1)]
        np.testing.assert_allclose(form.values(plans), [value, -value], atol=1e-12)
        assert abs(form.nash_conv(plans) - left) < 1e-8


@pytest.mark.parametrize("third", [0.0, 0.5, 1.0])
def test_kuhns_equilibria_are_equilibria(third: float) -> None:
    """Kuhn's own: the first player bets the jack with a probability up to 1/3 and the king three times as often."""
    bets = third / 3
    chances = {  # of betting: by player, card, and what was played
        (0, 0, ()): bets,
        (0, 1, ()): 0.0,
        (0, 2, ()): 3 * bets,
        (0, 0, (0, 1)): 0.0,
        (0, 1, (0, 1)): bets + 1 / 3,
        (0, 2, (0, 1)): 1.0,
        (1, 0, (0,)): 1 / 3,
        (1, 1, (0,)): 0.0,
        (1, 2, (0,)): 1.0,
        (1, 0, (1,)): 0.0,
        (1, 1, (1,)): 1 / 3,
        (1, 2, (1,)): 1.0,
    }
    table = np.zeros((12, 2))
    for (player, card, played), chance in chances.items():
        known = f"{((card,), ())}{(played,)}"
        table[KUHN.index[player, known]] = [1 - chance, chance]
    plans = [KUHN.plan(player, table) for player in (0, 1)]
    np.testing.assert_allclose(KUHN.values(plans), [-1 / 18, 1 / 18], atol=1e-12)
    assert abs(KUHN.nash_conv(plans)) < 1e-12


def brute_force(form: SequenceForm, player: int, plans: list[Any]) -> float:
    """The best of all pure tables of a player."""
    states = sorted(number for (who, _), number in form.index.items() if who == player)
    best = -np.inf
    for actions in itertools.product(range(form.num_actions), repeat=len(states)):
        table = np.zeros((form.num_states, form.num_actions))
        table[states, actions] = 1
        tried = [form.plan(player, table) if who == player else plan for who, plan in enumerate(plans)]
        best = max(best, form.values(tried)[player])
    return best


@pytest.mark.parametrize("player", [0, 1])
def test_best_responses_are_the_best_of_all_pure_policies(player: int) -> None:
    plans = [KUHN.plan(who, table) for who, table in enumerate(random_tables(KUHN, 7, 2))]
    value, plan = KUHN.best_response(player, plans)
    assert abs(value - brute_force(KUHN, player, plans)) < 1e-12
    played = [plan if who == player else other for who, other in enumerate(plans)]
    assert abs(KUHN.values(played)[player] - value) < 1e-12


def test_plans_and_tables_are_the_same_policies_and_mix() -> None:
    tables = random_tables(LEDUC, 3, 4)
    plans = [[LEDUC.plan(player, table) for table in tables] for player in (0, 1)]
    for player in (0, 1):
        again = LEDUC.plan(player, LEDUC.table(player, plans[player][0]))
        np.testing.assert_allclose(again, plans[player][0], atol=1e-12)
    payoffs = LEDUC.payoffs([np.stack(seat_plans) for seat_plans in plans])
    one_by_one = [[LEDUC.values([first, second]) for second in plans[1]] for first in plans[0]]
    np.testing.assert_allclose(payoffs, np.moveaxis(np.array(one_by_one), 2, 0), atol=1e-12)
    shares = np.array([0.1, 0.2, 0.3, 0.4])
    mixed = [sum(share * plan for share, plan in zip(shares, seat_plans, strict=True)) for seat_plans in plans]
    np.testing.assert_allclose(LEDUC.values(mixed), solvers.expected(payoffs, [shares, shares]), atol=1e-12)


class Forgets(KuhnState):
    def information_state_string(self, player: int) -> str:
        return str(self.cards[player])

    def child(self, action: int) -> Any:
        return Forgets((*self.cards, action), self.played) if self.is_chance_node() else self._next_state(action)


class Forgetful(KuhnPoker):
    """Kuhn poker in which nobody knows what was played."""

    def new_initial_state(self) -> Any:
        state = super().new_initial_state()
        kind = type(
            "Forgets", (type(state),), {"information_state_string": lambda self, player: str(self.cards[player])}
        )
        kind.child = lambda self, action: (  # type: ignore[attr-defined]
            kind((*self.cards, action), self.played) if self.is_chance_node() else self._next_state(action)
        )
        return kind()


def test_a_game_in_which_players_forget_is_refused() -> None:
    with pytest.raises(PlanError, match="forgets"):
        SequenceForm(Forgetful())


# ------------------------------------------------------------------------------------------------------ environments


@pytest.mark.parametrize("game", ["kuhn_poker", "leduc_poker"])
def test_games_are_pettingzoo_environments_of_turns(game: str) -> None:
    env = GameEnv(game)
    seen, _ = env.reset(seed=1)
    while env.agents:
        movers = [agent for agent in env.agents if seen[agent]["action_mask"].any()]
        assert len(movers) == 1
        legal = np.flatnonzero(seen[movers[0]]["action_mask"])
        assert (env.form.legal[seen[movers[0]]["state"]].nonzero()[0] == legal).all()
        seen, rewards, *_ = env.step(dict.fromkeys(env.agents, int(legal[-1])))
    assert sum(rewards.values()) == 0
    with pytest.raises(ActionError, match="may play"):
        env.reset(seed=1)
        env.step(dict.fromkeys(env.agents, 9))


@pytest.mark.parametrize(("game", "form"), [("kuhn_poker", KUHN), ("leduc_poker", LEDUC)])
def test_tensors_tell_information_states_apart(game: str, form: SequenceForm) -> None:
    """Each information state has one state here, and no two of a player's have the same observation."""
    env = GameEnv(game, observation="tensor")
    seen: dict[Any, int] = {}
    for player, state in decisions_of(env.game):
        observation = env.observation_of(state, player)
        assert env.observation_space("player_0").contains(observation)
        assert (observation["action_mask"].astype(bool) == form.legal[len(seen)]).all()
        seen[observation["state"].tobytes()] = index = form.index[player, state.information_state_string(player)]
        assert index == len(seen) - 1
    assert len(seen) == form.num_states


@pytest.mark.parametrize("backend", ["serial", "pool"])
def test_sampled_payoffs_are_the_exact_ones(backend: str) -> None:
    """The same policies, computed in sequence form and played through emulation, VecEnv and router."""
    oracle = ExactOracle("kuhn_poker")
    exact, sampled = oracle.table(), PayoffTable(2)
    steps = psro(oracle, exact, solvers.lp_nash, evaluate=oracle.evaluate)
    for iteration in itertools.islice(steps, 3):
        last = iteration
    for seat, ids in enumerate(last.mixture.populations):
        for policy in ids:
            sampled.add(seat, policy)
    env = partial(GameEnv, "kuhn_poker", observation="index")
    with pufferlib.make(env, backend=backend, num_envs=48, batch_size=24, num_workers=2, seed=1) as vec:
        episodes = Evaluator(vec, oracle.pool, min_episodes=150, task_episodes=24, seed=1)(sampled)
    assert episodes == 9 * 150
    widths = sampled.half_widths(confidence=1 - 1e-8)
    # Cells in which nothing but the cards is drawn may have equal returns by chance, and an interval that is too short.
    assert (np.abs(sampled.means - exact.means)[0] <= np.maximum(widths, 0.3)).all()
    assert widths.max() < 1.2


# ------------------------------------------------------------------------------------------------------- populations


def sizes_at(game: str, solver: Any, levels: tuple[float, ...], most: int) -> list[int | None]:
    """Policies of each player when a population's NashConv first falls to each of these levels."""
    oracle = ExactOracle(game)
    evaluate = None if solver in (solvers.uniform, solvers.last) else oracle.evaluate
    sizes: list[int | None] = [None] * len(levels)
    for iteration in psro(oracle, oracle.table(), solver, evaluate=evaluate, measure=oracle.nash_conv):
        assert iteration.nash_conv is not None
        for number, level in enumerate(levels):
            if iteration.nash_conv <= level and sizes[number] is None:
                sizes[number] = iteration.sizes[0]
        if None not in sizes or iteration.sizes[0] >= most:
            return sizes
    raise AssertionError("it has no end")


@pytest.mark.parametrize(
    ("solver", "low", "high"),
    [
        (solvers.alpha_rank, 24, 30),
        pytest.param(solvers.fictitious_play, 37, 45, marks=pytest.mark.long),
        pytest.param(solvers.uniform, 92, 112, marks=pytest.mark.long),
    ],
)
def test_populations_for_leduc_are_as_large_as_was_measured(solver: Any, low: int, high: int) -> None:
    """NashConv 0.5; benchmarks/population.py has all solvers. MALib's Table 3: 21, 40 and 60."""
    (size,) = sizes_at("leduc_poker", solver, (0.5,), 130)
    assert size is not None and low <= size <= high


def test_self_play_does_not_converge_and_fictitious_self_play_does() -> None:
    for loop, converges in ((self_play, False), (fictitious_self_play, True)):
        oracle = ExactOracle("kuhn_poker")
        values = [
            iteration.nash_conv
            for iteration in itertools.islice(loop(oracle, oracle.table(), measure=oracle.nash_conv), 60)
        ]
        assert (min(values[30:]) < 0.15) == converges, loop  # type: ignore[type-var]


def test_psro_solves_kuhn_exactly_and_goes_on_where_it_was() -> None:
    oracle = ExactOracle("kuhn_poker")
    table = oracle.table()

    def play(count: int, targets: Any = None) -> Iteration:
        steps = psro(
            oracle, table, solvers.lp_nash, evaluate=oracle.evaluate, measure=oracle.nash_conv, targets=targets
        )
        *_, last = itertools.islice(steps, count)
        return last

    assert play(3).sizes == (3, 3)
    reached = play(20)
    assert reached.sizes == (22, 22) and reached.nash_conv is not None and abs(reached.nash_conv) < 1e-9
    np.testing.assert_allclose(solvers.expected(table.means, reached.mixture.marginals), [-1 / 18, 1 / 18], atol=1e-9)
    grown = play(2, rectified_targets)
    assert min(grown.sizes) > 23  # one for each policy in use


# ---------------------------------------------------------------------------------------------------------- OpenSpiel


@pytest.mark.extras
@pytest.mark.parametrize("name", ["kuhn_poker", "leduc_poker", "kuhn_poker(players=3)"])
def test_values_are_openspiels(name: str) -> None:
    pyspiel = pytest.importorskip("pyspiel")
    from open_spiel.python import policy
    from open_spiel.python.algorithms import best_response, expected_game_score, exploitability

    game = pyspiel.load_game(name)
    form = SequenceForm(game)
    (table,) = random_tables(form, 5)
    theirs = policy.TabularPolicy(game)
    for (_, known), number in form.index.items():
        theirs.policy_for_key(known)[:] = table[number]
    plans = [form.plan(player, table) for player in range(form.num_players)]
    ours = form.values(plans)
    scores = expected_game_score.policy_value(game.new_initial_state(), [theirs] * form.num_players)
    np.testing.assert_allclose(ours, scores, atol=1e-9)
    np.testing.assert_allclose(form.nash_conv(plans), exploitability.nash_conv(game, theirs), atol=1e-9)
    for player in range(form.num_players):
        response = best_response.BestResponsePolicy(game, player, theirs)
        wanted = response.value(game.new_initial_state())
        np.testing.assert_allclose(form.best_response(player, plans)[0], wanted, atol=1e-9)


@pytest.mark.extras
def test_openspiels_games_are_environments() -> None:
    pytest.importorskip("pyspiel")
    for name in ("leduc_poker", "tic_tac_toe", "goofspiel(num_cards=3,points_order=descending)", "matrix_rps"):
        game: Any = name
        if name == "leduc_poker":  # OpenSpiel's, not ours
            import pyspiel

            game = pyspiel.load_game(name)
        with pufferlib.make(GameEnv, num_envs=2, seed=1, env_args=(game,)) as vec:
            vec.reset()
            for _ in range(30):
                batch = vec.batch
                assert batch is not None
                masks = vec.observation_layout.unflatten(batch.observations)["action_mask"]
                assert ((masks.sum(1) > 0).reshape(2, -1).sum(1) <= 1).all()
                vec.step(masks.argmax(1))
    with pytest.raises(RegistryError, match="no_such_game"):
        load_game("no_such_game")


@pytest.mark.extras
@pytest.mark.parametrize("name", ["kuhn_poker", "leduc_poker"])
def test_our_games_have_openspiels_tensors(name: str) -> None:
    """In all states, of both players."""
    pyspiel = pytest.importorskip("pyspiel")
    game, theirs = load_game(name), pyspiel.load_game(name)
    assert tensor_of(game) == tensor_of(theirs)
    waiting, num = [(game.new_initial_state(), theirs.new_initial_state())], 0
    while waiting:
        state, other = waiting.pop()
        if state.is_chance_node():
            actions = [action for action, _ in state.chance_outcomes()]
        else:
            actions = [] if state.is_terminal() else list(state.legal_actions())
            num += 1
            for player in (0, 1):
                assert list(state.information_state_tensor(player)) == other.information_state_tensor(player)
        waiting += [(state.child(action), other.child(action)) for action in actions]
    assert num > {"kuhn_poker": 50, "leduc_poker": 9000}[name]
