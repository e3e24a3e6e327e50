"""Atari as it is usually learnt: gray pictures of 84 × 84 pixels, an action for every fourth frame.

pip install "pufferlib[train,atari]"
puffer train examples.atari:game --config examples/atari.toml

Four pictures are stacked by the trainer (``frame_stack``), which also ends what is learnt from at a life lost
(``episodic_life``) and bounds rewards (``reward_clip``), while the returns that it shows are the game's own.
"""

import ale_py
import gymnasium

gymnasium.register_envs(ale_py)


def game(name="Pong"):
    """Return the game, uint8 (84, 84); no-ops at the beginning, the last two frames' maximum, and fire to begin."""
    env = gymnasium.make(f"ALE/{name}-v5", frameskip=1, repeat_action_probability=0.0)
    return gymnasium.wrappers.AtariPreprocessing(env, noop_max=30, frame_skip=4, screen_size=84)
