"""ReplayedEnv: an environment that returns the results of a real one at almost no cost."""

from __future__ import annotations

from typing import Any

import gymnasium

try:
    from benchmarks.recordings import built, load
except ImportError:  # in a player, whose path holds the files of this folder
    from recordings import built, load  # type: ignore[import-not-found,no-redef]

__all__ = ["ReplayedEnv"]


class ReplayedEnv(gymnasium.Env[Any, Any]):
    """An environment that returns the objects of a recording in their order, independent of its actions.

    recording: its name, or the path of its file. ``reset`` begins the next episode of the recording, and with a seed
    the episode of that number, modulo their count. All environments of a process share the objects.
    """

    metadata = {"render_modes": []}

    def __init__(self, recording: str) -> None:
        content = load(recording)
        self.observation_space, self.action_space = built(content["observation"]), built(content["action"])
        self._episodes = content["episodes"]
        self._number = 0
        self._results: Any = iter(())

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self._number = int(seed)
        begin, results = self._episodes[self._number % len(self._episodes)]
        self._number += 1
        self._results = iter(results)
        return begin  # type: ignore[no-any-return]

    def step(self, action: Any) -> Any:
        return next(self._results)
