"""TextWorld: text games that are generated from a seed and played by choosing among commands."""

from __future__ import annotations

import importlib
import tempfile
from pathlib import Path
from typing import Any, SupportsInt

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
MAX_LENGTH = 4096  # characters of a text; longer ones are cut
MAX_COMMANDS = 64


class Quest(gymnasium.Env[Any, Any]):
    """A text game: a quest through several rooms.

    An observation is a Dict of "text", the game's text; "commands", the commands that the game accepts, one per line;
    and "action_mask", int8 (MAX_COMMANDS,), which is 1 at the indices of these commands and 0 elsewhere. An action is
    the index of a command; an index without a command plays "look". Commands beyond the first MAX_COMMANDS are left out
    and cannot be chosen. The reward is the increase in the score.

    num_rooms, num_objects, quest_length: the size of the game. game_seed: the seed from which the game is generated;
    all episodes play the same game. max_episode_steps: the number of steps after which an episode is truncated.
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
        env_infos = textworld.EnvInfos(admissible_commands=True, score=True, won=True, lost=True)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "game.json"
            game.save(str(file))
            self._game = textworld.start(str(file), env_infos)
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

    def step(self, action: SupportsInt) -> tuple[Any, float, bool, bool, dict[str, Any]]:
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
        commands = "\n".join(self._commands)
        return {"text": _plain(state.feedback), "commands": _plain(commands), "action_mask": mask}


def _plain(text: str | None) -> str:
    """Remove all characters except newlines and printable ASCII, and cut the text to MAX_LENGTH.

    The observation space contains only such texts.
    """
    return "".join(character for character in text or "" if character == "\n" or " " <= character <= "~")[:MAX_LENGTH]


def env_creator(name: str = FAMILY.examples[0].name, **kwargs: Any) -> Quest:
    """Make a game. kwargs: arguments of ``Quest``. Raises RegistryError unless name is "textworld/quest"."""
    member(FAMILY, name)
    return Quest(**kwargs)
