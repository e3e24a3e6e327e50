"""Atari with the usual preprocessing: gray images of 84 × 84 pixels, one action per four frames.

pip install "pufferlib[train,atari]"
puffer train examples.atari:game --config examples/atari.toml

The trainer stacks four images (``frame_stack``), treats the loss of a life as the end of an episode
(``episodic_life``) and clips rewards (``reward_clip``). The returns that it shows are the game's own.
"""

import ale_py
import gymnasium

gymnasium.register_envs(ale_py)


def game(name="Pong"):
    """Return a game that observes uint8 (84, 84), the maximum of its last two frames.

    An episode begins with up to 30 no-ops, and with "fire" where the game needs it.
    """
    env = gymnasium.make(f"ALE/{name}-v5", frameskip=1, repeat_action_probability=0.0)
    return gymnasium.wrappers.AtariPreprocessing(env, noop_max=30, frame_skip=4, screen_size=84)
