"""Games: trees of Kuhn and Leduc poker and of OpenSpiel's, as environments, and solved exactly in sequence form.

``GameEnv`` needs PettingZoo, ``Tabular`` and ``Logits`` torch, and games other than "kuhn_poker" and "leduc_poker"
OpenSpiel: ``pip install "pufferlib[games]"``.
"""

from pufferlib.population.games.game_env import GameEnv
from pufferlib.population.games.sequence_form import SequenceForm
from pufferlib.population.games.tabular import Logits, Tabular
from pufferlib.population.games.trees import Game, KuhnPoker, LeducPoker, State, load_game

__all__ = ["Game", "GameEnv", "KuhnPoker", "LeducPoker", "Logits", "SequenceForm", "State", "Tabular", "load_game"]
