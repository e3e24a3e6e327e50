"""MountainCar: drive out of a valley whose slopes are too steep for the engine, by gaining speed to and fro.

State        The position of the car, from -1.2 to 0.6, and its velocity, from -0.07 to 0.07 per step. The height of the
             ground is sin(3 position), so the valley is at -0.52.
Actions      Discrete(3): push to the left, not at all, or to the right.
Motion       Each step changes the velocity by 0.001 times the push and by -0.0025 times cos(3 position), and then the
             position by the velocity. Both are kept within their bounds; the wall at -1.2 stops the car.
Reward       -1 for each step.
Ending       The episode terminates at 0.5 or beyond; otherwise it is truncated after ``max_episode_steps``.
Observation  Box(float32, (2,)): the state.
Start        The position is uniform between -0.6 and -0.4, drawn for each episode; the car stands still.
Seeding      ``reset(seed=s)`` starts episode 0 of seed s, and each later ``reset()`` the next episode.
Arithmetic   float32, in the order of operations written here, so that a kernel can equal it bit for bit.
Source       MountainCar-v0 of Gymnasium, which has the same rules but computes in float64 and draws its starts from
             another generator. After Moore, "Efficient memory-based learning for robot control", 1990.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from cuda_ext.references.classic_env import ClassicEnv, Floats
from cuda_ext.references.trigonometry import sine_cosine
from pufferlib.util.philox import uniform

f = np.float32
LEFT, RIGHT, GOAL = f(-1.2), f(0.6), f(0.5)
MOST_SPEED, FORCE, GRAVITY = f(0.07), f(0.001), f(0.0025)
COLUMNS, LINES = 61, 9  # of text


class ClassicMountainCar(ClassicEnv):
    """The MountainCar environment.

    Its state consists of ``seed``, ``episode`` and ``t`` (ints), and ``position`` and ``velocity`` (float32). Raises
    ValueError for invalid arguments.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 30}

    def __init__(self, *, max_episode_steps: int = 200, render_mode: str | None = None) -> None:
        super().__init__(max_episode_steps, render_mode)
        self.observation_space = spaces.Box(np.array([LEFT, -MOST_SPEED]), np.array([RIGHT, MOST_SPEED]))
        self.action_space = spaces.Discrete(3)
        self.position: Any = f(0)  # float32, as is the next
        self.velocity: Any = f(0)

    def begin(self, *words: Any) -> None:
        self.position, self.velocity = uniform(words[0]) * f(0.2) - f(0.6), f(0)

    def step(self, action: int) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        slope = sine_cosine(f(3) * self.position)[1]
        velocity = self.velocity + (f(int(action) - 1) * FORCE - slope * GRAVITY)
        velocity = min(max(velocity, -MOST_SPEED), MOST_SPEED)
        self.position = min(max(self.position + velocity, LEFT), RIGHT)
        self.velocity = f(0) if self.position == LEFT and velocity < 0 else velocity
        self.t += 1
        arrived = bool(self.position >= GOAL and self.velocity >= 0)
        return self.observed(), -1.0, arrived, not arrived and self.t >= self.max_episode_steps, {}

    def render(self) -> Any:
        """Draw the ground, the goal as "!" and the car as "O"; return a str for "ansi", else None."""
        if self.render_mode != "ansi":
            return None
        picture = np.full((LINES, COLUMNS), " ")
        positions = np.linspace(float(LEFT), float(RIGHT), COLUMNS)
        ground = np.round((1 - np.sin(3 * positions)) / 2 * (LINES - 2)).astype(np.intp) + 1  # line of each column
        picture[ground, np.arange(COLUMNS)] = "_"
        for position, letter in ((GOAL, "!"), (self.position, "O")):
            column = int(np.abs(positions - float(position)).argmin())
            picture[ground[column] - 1, column] = letter
        return "\n".join("".join(line).rstrip() for line in picture)

    def observed(self) -> Floats:
        return np.array([self.position, self.velocity], np.float32)
