"""The NetHack Learning Environment: unchanged, and under "nethack/…" with the observations that most agents use."""

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
    """NetHack whose games follow from the seed of the first reset; NLE has a separate method for seeds."""

    _random: np.random.Generator | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None or self._random is None:
            self._random = np.random.default_rng(seed)
        core, disp = self._random.integers(1 << 31, size=2).tolist()
        self.unwrapped.seed(core, disp, reseed=False)  # type: ignore[attr-defined]
        return self.env.reset(seed=seed, options=options)


def env_creator(name: str = FAMILY.examples[0].name, **kwargs: object) -> GymnasiumEnv:
    """Return a task of NetHack that seeds make repeatable, except NetHackChallenge, which refuses them.

    Under "NetHack…" an observation has all of NLE's defaults. Under "nethack/…" it is a Dict of the map, int16
    "glyphs", uint8 "chars" and uint8 "colors", each (21, 79), of int64 "blstats" (27,) and uint8 "message" (256,): a
    twentieth of the bytes. It lacks the descriptions of the map's contents, the inventory, "specials" and the terminal;
    "observation_keys" adds them by name. Of these five, NLE's agent (nle/agent) reads "glyphs" and "blstats", and
    MiniHack's agents get all.
    """
    if name.startswith("nethack/"):
        name, kwargs = name.replace("nethack/", "NetHack", 1), {"observation_keys": KEYS, **kwargs}
    env = from_gymnasium(FAMILY, name, **kwargs)
    return env if name.startswith("NetHackChallenge") else Seeded(env)
