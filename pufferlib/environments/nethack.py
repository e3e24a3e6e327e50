"""The NetHack Learning Environment: "NetHack…" unchanged, "nethack/…" with the observations that most agents use."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from pufferlib.environments import Example, Family, from_gymnasium
from pufferlib.util.annotations import GymnasiumEnv

FAMILY = Family(
    names=("NetHack*", "nethack/*"),
    description="NetHack",
    package="nle",
    extra="nethack",
    examples=(
        Example("NetHackScore-v0", {"max_episode_steps": 200}),
        Example("nethack/Score-v0", {"max_episode_steps": 200}),
    ),
    aliases={"nethack/": "NetHack"},
)
KEYS = ("glyphs", "chars", "colors", "blstats", "message")


class Seeded(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper that derives the seeds of all games from the last seed passed to ``reset``.

    NLE itself takes seeds only through a separate method. If no seed was ever passed, the games are random.
    """

    _random: np.random.Generator | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None or self._random is None:
            self._random = np.random.default_rng(seed)
        core, disp = self._random.integers(1 << 31, size=2).tolist()
        self.unwrapped.seed(core, disp, reseed=False)  # type: ignore[attr-defined]
        return self.env.reset(seed=seed, options=options)


def env_creator(name: str = FAMILY.examples[0].name, **kwargs: object) -> GymnasiumEnv:
    """Make a NetHack task. A seed makes its games repeatable, except in NetHackChallenge, which refuses seeds.

    "NetHack…" observations have all of NLE's default keys. "nethack/…" observations have five keys: "glyphs" (int16),
    "chars" and "colors" (uint8), each (21, 79), for the map; "blstats", int64 (27,); and "message", uint8 (256,). These
    take a twentieth of the bytes of the default keys, because they leave out the descriptions of the map's contents,
    the inventory, "specials" and the terminal. NLE's own agent (nle/agent) reads only "glyphs" and "blstats";
    MiniHack's agents receive all five keys.

    kwargs: arguments of ``gymnasium.make``; "observation_keys" selects other keys by name.
    """
    if name.startswith("nethack/"):
        name, kwargs = name.replace("nethack/", "NetHack", 1), {"observation_keys": KEYS, **kwargs}
    env = from_gymnasium(FAMILY, name, **kwargs)
    return env if name.startswith("NetHackChallenge") else Seeded(env)
