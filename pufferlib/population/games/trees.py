"""Game trees: Kuhn and Leduc poker in Python, and any OpenSpiel game if OpenSpiel is installed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Protocol

from pufferlib.errors import MissingExtra, RegistryError
from pufferlib.util.suggestions import near

__all__ = ["Game", "KuhnPoker", "LeducPoker", "State", "decisions_of", "load_game", "tensor_of"]

CHANCE, OVER = -1, -4  # current_player() of chance nodes and of terminal ones, as in OpenSpiel


class State(Protocol):
    """A node of a game tree. Its methods are those of OpenSpiel's states, which can be used as nodes directly."""

    def is_terminal(self) -> bool: ...
    def is_chance_node(self) -> bool: ...
    def current_player(self) -> int: ...
    def chance_outcomes(self) -> Sequence[tuple[int, float]]: ...
    def legal_actions(self) -> Sequence[int]: ...
    def child(self, action: int) -> State: ...
    def information_state_string(self, player: int) -> str: ...
    def returns(self) -> Sequence[float]: ...


class Game(Protocol):
    """A game that has a tree. Its methods are those of OpenSpiel's games, which can be used directly."""

    def new_initial_state(self) -> Any: ...
    def num_players(self) -> int: ...
    def num_distinct_actions(self) -> int: ...


def load_game(name: str) -> Game:
    """Return a game by its name: "kuhn_poker" or "leduc_poker", both for two players, or any OpenSpiel game.

    Simultaneous games are converted to turn-based ones with hidden moves. Raises RegistryError for an unknown name; the
    message suggests a similar name if there is one. If OpenSpiel is not installed, raises MissingExtra instead, except
    for a name that is similar to "kuhn_poker" or "leduc_poker".
    """
    for game_class in (KuhnPoker, LeducPoker):
        if name == game_class.name:
            return game_class()
    try:
        import pyspiel
    except ImportError as error:
        matches = near(name, (KuhnPoker.name, LeducPoker.name))
        if matches:
            raise RegistryError(f"there is no game {name!r}; did you mean {matches[0]}?") from error
        raise MissingExtra(f'the game {name} needs OpenSpiel: pip install "pufferlib[games]"') from error
    try:
        game = pyspiel.load_game(name)
    except pyspiel.SpielError as error:
        matches = near(name, pyspiel.registered_names())
        hint = f"; did you mean {matches[0]}?" if matches else f": {error}"
        raise RegistryError(f"OpenSpiel has no game {name!r}{hint}") from error
    simultaneous = game.get_type().dynamics == pyspiel.GameType.Dynamics.SIMULTANEOUS
    loaded: Game = pyspiel.convert_to_turn_based(game) if simultaneous else game
    return loaded


def tensor_of(game: Any) -> tuple[tuple[int, ...], str] | None:
    """Return the shape of a game's tensors, and the name of the state method that returns them for a player.

    These are information state tensors if the game provides them, else observation tensors. Returns None if it provides
    neither. A game provides tensors if its type says so, as those of OpenSpiel's games do, or else if it has a method
    ``information_state_tensor_shape`` or ``observation_tensor_shape``.
    """
    game_type = game.get_type() if hasattr(game, "get_type") else None
    for kind in ("information_state", "observation"):
        shape_method = f"{kind}_tensor_shape"
        provided = game_type is None or getattr(game_type, f"provides_{kind}_tensor")
        if provided and hasattr(game, shape_method):
            return tuple(getattr(game, shape_method)()), f"{kind}_tensor"
    return None


def decisions_of(game: Game) -> Iterator[tuple[int, Any]]:
    """Yield the first state in each information state of a game's tree as (player, state), in depth-first order."""
    known: set[tuple[int, str]] = set()
    waiting = [game.new_initial_state()]
    while waiting:
        state = waiting.pop()
        if state.is_terminal():
            continue
        if state.is_chance_node():
            actions: Sequence[int] = [action for action, _ in state.chance_outcomes()]
        else:
            player, actions = state.current_player(), state.legal_actions()
            key = (player, state.information_state_string(player))
            if key not in known:
                known.add(key)
                yield player, state
        waiting.extend(state.child(action) for action in reversed(actions))


class _Poker:
    """A node of Kuhn or Leduc poker. cards: the cards dealt so far. played: the actions of each round."""

    card_names: tuple[str, ...]
    action_names: tuple[str, ...]
    num_rounds: int
    most_actions: int  # of both players in a round
    recorded: tuple[int, int]  # the actions that a tensor shows

    def __init__(self, cards: tuple[int, ...] = (), played: tuple[tuple[int, ...], ...] = ((),)) -> None:
        self.cards, self.played = cards, played

    def is_chance_node(self) -> bool:
        return self.current_player() == CHANCE

    def is_terminal(self) -> bool:
        return self.current_player() == OVER

    def current_player(self) -> int:
        raise NotImplementedError

    def _deal(self, num_cards: int) -> list[tuple[int, float]]:
        remaining = [card for card in range(num_cards) if card not in self.cards]
        return [(card, 1 / len(remaining)) for card in remaining]

    def _next_state(self, action: int) -> Any:
        *earlier, current = self.played
        return type(self)(self.cards, (*earlier, (*current, action)))

    def information_state_string(self, player: int) -> str:
        """Return the information that a player can see, as text: the player's card, the public card and all actions."""
        cards = (self.cards[player : player + 1], self.cards[2:])
        return f"{cards}{self.played}"

    def information_state_tensor(self, player: int) -> tuple[float, ...]:
        """Return the same information as zeros and ones, in OpenSpiel's layout.

        The layout is: one-hot vectors of the player, the player's card and, if the game has one, the public card; then
        two elements for each action that can be played in a round, one for each action of ``recorded``.
        """
        sizes = (len(self.card_names), self.num_rounds, self.most_actions)
        return _tensor(sizes, self.recorded, player, self.cards[player : player + 1], self.cards[2:], self.played)

    def __str__(self) -> str:
        """Return the whole state as text, including hidden cards."""
        cards = [f"player_{player} {self.card_names[card]}" for player, card in enumerate(self.cards[:2])]
        cards += [f"both {self.card_names[card]}" for card in self.cards[2:]]
        rounds = [" ".join(self.action_names[action] for action in played) for played in self.played]
        return ", ".join(cards) + "".join(f" | {actions}" for actions in rounds if actions)


@lru_cache(maxsize=1 << 12)  # all of Leduc poker's
def _tensor(
    sizes: tuple[int, int, int],
    recorded: tuple[int, int],
    player: int,
    card: tuple[int, ...],
    public: tuple[int, ...],
    played: tuple[tuple[int, ...], ...],
) -> tuple[float, ...]:
    num_cards, num_rounds, most_actions = sizes
    visible_cards = [card, *([public] if num_rounds > 1 else [])]
    bits = [float(seat == player) for seat in range(2)]
    bits += [float(number in cards) for cards in visible_cards for number in range(num_cards)]
    for round_index in range(num_rounds):
        actions = played[round_index] if round_index < len(played) else ()
        for number in range(most_actions):
            bits += [float(actions[number : number + 1] == (action,)) for action in recorded]
    return tuple(bits)


class KuhnState(_Poker):
    """A node of Kuhn poker: three cards, one dealt to each player; the ante is 1, and there is one bet of 1.

    Actions: 0 pass (or fold), 1 bet (or call).
    """

    card_names = ("jack", "queen", "king")
    action_names = ("pass", "bet")
    num_rounds, most_actions, recorded = 1, 3, (0, 1)

    def current_player(self) -> int:
        if len(self.cards) < 2:
            return CHANCE
        (played,) = self.played
        return OVER if len(played) == 3 or played in ((0, 0), (1, 0), (1, 1)) else len(played) % 2

    def chance_outcomes(self) -> list[tuple[int, float]]:
        return self._deal(3)

    def legal_actions(self) -> list[int]:
        return [0, 1]

    def child(self, action: int) -> KuhnState:
        if self.is_chance_node():
            return KuhnState((*self.cards, action), self.played)
        state: KuhnState = self._next_state(action)
        return state

    def returns(self) -> list[float]:
        (played,) = self.played
        first = 1.0 if self.cards[0] > self.cards[1] else -1.0
        if played[-2:] == (1, 1):
            first *= 2
        elif played[-2:] == (1, 0):  # the player who folded loses
            first = 1.0 if len(played) == 2 else -1.0
        return [first, -first]


class KuhnPoker:
    """The game of Kuhn poker. Source: Kuhn, "A simplified two-person poker", 1950."""

    name = "kuhn_poker"

    def new_initial_state(self) -> KuhnState:
        return KuhnState()

    def num_players(self) -> int:
        return 2

    def num_distinct_actions(self) -> int:
        return 2

    def information_state_tensor_shape(self) -> tuple[int]:
        return (11,)


FOLD, CALL, RAISE = range(3)
RAISES = (2, 4)  # chips per raise, by round
MOST_RAISES = 2  # in a round


class LeducState(_Poker):
    """A node of Leduc poker.

    There are six cards, two of each rank. Each player is dealt one card, and a third card is made public between the
    two rounds. A player whose card has the rank of the public card wins; otherwise the higher rank wins, and equal
    ranks draw. The ante is 1. Actions: 0 fold (after a raise), 1 call (or check), 2 raise.
    """

    card_names = ("jack", "jack", "queen", "queen", "king", "king")
    action_names = ("fold", "call", "raise")
    num_rounds, most_actions, recorded = 2, 4, (CALL, RAISE)  # a fold ends the game

    def current_player(self) -> int:
        if len(self.cards) < 2:
            return CHANCE
        current = self.played[-1]
        if current and current[-1] == FOLD:
            return OVER
        if len(current) >= 2 and current[-1] == CALL:  # the last raise was called, or both players checked
            return OVER if len(self.played) == 2 else CHANCE
        return len(current) % 2

    def chance_outcomes(self) -> list[tuple[int, float]]:
        return self._deal(6)

    def legal_actions(self) -> list[int]:
        current = self.played[-1]
        actions = [FOLD, CALL] if current and current[-1] == RAISE else [CALL]
        return actions if current.count(RAISE) == MOST_RAISES else [*actions, RAISE]

    def child(self, action: int) -> LeducState:
        if self.is_chance_node():
            played = (*self.played, ()) if len(self.cards) == 2 else self.played
            return LeducState((*self.cards, action), played)
        state: LeducState = self._next_state(action)
        return state

    def returns(self) -> list[float]:
        stakes = [1, 1]
        for played, raised in zip(self.played, RAISES, strict=False):
            for number, action in enumerate(played):
                if action != FOLD:
                    stakes[number % 2] = max(stakes) + (raised if action == RAISE else 0)
        if self.played[-1][-1] == FOLD:
            winner = len(self.played[-1]) % 2  # the player who did not fold
        else:
            ranks = [card // 2 for card in self.cards]
            strengths = [(rank == ranks[2], rank) for rank in ranks[:2]]
            if strengths[0] == strengths[1]:
                return [0.0, 0.0]
            winner = int(strengths[1] > strengths[0])
        winnings = float(stakes[1 - winner])
        return [winnings, -winnings] if winner == 0 else [-winnings, winnings]


class LeducPoker:
    """The game of Leduc poker, with OpenSpiel's stakes.

    Source: Southey et al., "Bayes' bluff: opponent modelling in poker", 2005.
    """

    name = "leduc_poker"

    def new_initial_state(self) -> LeducState:
        return LeducState()

    def num_players(self) -> int:
        return 2

    def num_distinct_actions(self) -> int:
        return 3

    def information_state_tensor_shape(self) -> tuple[int]:
        return (30,)
