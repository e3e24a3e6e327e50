"""Games: Kuhn poker, Leduc poker and OpenSpiel's games, as environments and as sequence forms for exact solutions.

``GameEnv`` needs PettingZoo; ``Tabular`` and ``Logits`` need torch; games other than "kuhn_poker" and "leduc_poker"
need OpenSpiel: ``pip install "pufferlib[games]"``.
"""

from pufferlib.population.games.game_env import GameEnv
from pufferlib.population.games.sequence_form import SequenceForm
from pufferlib.population.games.tabular import Logits, Tabular
from pufferlib.population.games.trees import Game, KuhnPoker, LeducPoker, State, load_game

__all__ = ["Game", "GameEnv", "KuhnPoker", "LeducPoker", "Logits", "SequenceForm", "State", "Tabular", "load_game"]
