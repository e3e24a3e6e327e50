"""TextWorld: games of text, made anew from a seed, in which one chooses among commands."""

from __future__ import annotations

import importlib
import tempfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from pufferlib.environments import Example, Family, member

FAMILY = Family(
    names=("textworld/*",),
    description="games of text, in which one chooses among commands",
    package="textworld",
    extra="textworld",
    examples=(Example("textworld/quest", {"max_episode_steps": 20}),),
    members=("textworld/quest",),
)
MAX_LENGTH = 4096  # letters of an answer; what is longer is cut
MAX_COMMANDS = 64


class Quest(gymnasium.Env[Any, Any]):
    """A quest through some rooms. An observation is a Dict: what the game says ("text"), the commands that it would
    understand, one a line ("commands"), and an "action_mask" of them; an action is the number of one.
    There are MAX_COMMANDS of them at most: where the game has more, the last ones cannot be chosen.

    num_rooms, num_objects, quest_length: of the game, which game_seed makes; it is the same in all episodes.
    max_episode_steps: then an episode is truncated. The reward is what the score has grown by.
    """

    def __init__(
        self,
        num_rooms: int = 3,
        num_objects: int = 4,
        quest_length: int = 3,
        game_seed: int = 1,
        max_episode_steps: int = 50,
    ) -> None:
        textworld = importlib.import_module("textworld")
        options = textworld.GameOptions()
        options.seeds = game_seed
        options.nb_rooms, options.nb_objects, options.quest_length = num_rooms, num_objects, quest_length
        game = textworld.generator.make_game(options)
        asked = textworld.EnvInfos(admissible_commands=True, score=True, won=True, lost=True)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "game.json"
            game.save(str(file))
            self._game = textworld.start(str(file), asked)
        self._max_steps = max_episode_steps
        text = spaces.Text(MAX_LENGTH, min_length=0, charset="".join(map(chr, (10, *range(32, 127)))))
        self.observation_space = spaces.Dict(
            text=text, commands=text, action_mask=spaces.Box(0, 1, (MAX_COMMANDS,), np.int8)
        )
        self.action_space = spaces.Discrete(MAX_COMMANDS)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps, self._score = 0, 0
        return self._observation(self._game.reset()), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        command = self._commands[int(action)] if int(action) < len(self._commands) else "look"
        state, score, over = self._game.step(command)
        self._steps += 1
        reward, self._score = float(score - self._score), score
        return self._observation(state), reward, bool(over), not over and self._steps >= self._max_steps, {}

    def close(self) -> None:
        self._game.close()

    def _observation(self, state: Any) -> dict[str, Any]:
        self._commands = list(state.admissible_commands or ())[:MAX_COMMANDS]
        mask = np.zeros(MAX_COMMANDS, np.int8)
        mask[: len(self._commands)] = 1
        said = "\n".join(self._commands)
        return {"text": _plain(state.feedback), "commands": _plain(said), "action_mask": mask}


def _plain(text: str | None) -> str:
    """Return a text as its space has it: ASCII, and no longer than that."""
    return "".join(each for each in text or "" if each == "\n" or " " <= each <= "~")[:MAX_LENGTH]


def env_creator(name: str = FAMILY.examples[0].name, **kwargs: Any) -> Any:
    """Return a game; kwargs: of ``Quest``."""
    member(FAMILY, name)
    return Quest(**kwargs)
