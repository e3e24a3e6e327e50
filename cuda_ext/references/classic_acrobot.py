"""Acrobot: swing two links up to a line, by a motor at the joint between them.

State        The angle theta1 of the first link, 0 straight down, and theta2 of the second, relative to the first, both
             from -pi to pi, and their speeds in radians per second, up to 4 pi and 9 pi in magnitude. Each link has
             length 1, mass 1, moment of inertia 1 and its centre of mass in the middle; gravity is 9.8.
Actions      Discrete(3): a torque of -1, 0 or 1 on the joint.
Motion       A step lasts 0.2 s, by one step of the classical Runge-Kutta method. Then whole turns are subtracted from
             the angles, and the speeds are bounded.
Reward       -1 for each step, but 0 for the last one if it reaches the line.
Ending       The episode terminates when the end of the second link is higher than 1 above the fixed end of the first:
             -cos(theta1) - cos(theta1 + theta2) > 1. Otherwise it is truncated after ``max_episode_steps``.
Observation  Box(float32, (6,)): cosine and sine of theta1, cosine and sine of theta2, and the speeds.
Start        All four numbers are uniform between -0.1 and 0.1, drawn for each episode.
Seeding      ``reset(seed=s)`` starts episode 0 of seed s, and each later ``reset()`` the next episode.
Arithmetic   float32, in the order of operations written here, so that a kernel can equal it bit for bit.
Source       Acrobot-v1 of Gymnasium, which has the same rules but computes in float64 and draws its starts from
             another generator. The equations of motion are those of Sutton and Barto, "Reinforcement learning: an
             introduction", section 11.3, with these masses and lengths inserted.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from cuda_ext.references.classic_env import ClassicEnv, Floats
from cuda_ext.references.trigonometry import sine_cosine, without_turns
from pufferlib.util.philox import uniform

f = np.float32
HALF, ONE, TWO = f(0.5), f(1), f(2)
SECONDS, HALF_SECONDS, SIXTH = f(0.2), f(0.1), f(0.2 / 6)
MOST_SPEED1, MOST_SPEED2 = f(4 * np.pi), f(9 * np.pi)
WIDTH, HEIGHT = 33, 17  # of text; two columns are as wide as a line is high


class Links(NamedTuple):
    """Two angles and their speeds, or the derivatives of these, all float32."""

    theta1: Any
    theta2: Any
    theta1_dot: Any
    theta2_dot: Any


class ClassicAcrobot(ClassicEnv):
    """The Acrobot environment.

    Its state consists of ``seed``, ``episode`` and ``t`` (ints), and ``theta1``, ``theta2``, ``theta1_dot`` and
    ``theta2_dot`` (float32). Raises ValueError for invalid arguments.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 15}

    def __init__(self, *, max_episode_steps: int = 500, render_mode: str | None = None) -> None:
        super().__init__(max_episode_steps, render_mode)
        high = np.array([1, 1, 1, 1, MOST_SPEED1, MOST_SPEED2], np.float32)
        self.observation_space = spaces.Box(-high, high)
        self.action_space = spaces.Discrete(3)
        self.theta1: Any = f(0)  # float32, as are the next three
        self.theta2: Any = f(0)
        self.theta1_dot: Any = f(0)
        self.theta2_dot: Any = f(0)

    def begin(self, *words: Any) -> None:
        self.theta1, self.theta2, self.theta1_dot, self.theta2_dot = (uniform(word) * f(0.2) - f(0.1) for word in words)

    def step(self, action: int) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        torque = f(int(action) - 1)
        links = Links(self.theta1, self.theta2, self.theta1_dot, self.theta2_dot)
        first = derivative(links, torque)
        second = derivative(moved(links, first, HALF_SECONDS), torque)
        third = derivative(moved(links, second, HALF_SECONDS), torque)
        fourth = derivative(moved(links, third, SECONDS), torque)
        sums = (
            ((one + TWO * two) + TWO * three) + four
            for one, two, three, four in zip(first, second, third, fourth, strict=True)
        )
        after = moved(links, Links(*sums), SIXTH)
        self.theta1, self.theta2 = without_turns(after.theta1), without_turns(after.theta2)
        self.theta1_dot = min(max(after.theta1_dot, -MOST_SPEED1), MOST_SPEED1)
        self.theta2_dot = min(max(after.theta2_dot, -MOST_SPEED2), MOST_SPEED2)
        self.t += 1
        height = -sine_cosine(self.theta1)[1] - sine_cosine(self.theta1 + self.theta2)[1]
        arrived = bool(height > ONE)
        truncated = not arrived and self.t >= self.max_episode_steps
        return self.observed(), 0.0 if arrived else -1.0, arrived, truncated, {}

    def render(self) -> Any:
        """Draw the line as "-", the fixed end as "+" and the ends of the links as "o"; return a str, else None."""
        if self.render_mode != "ansi":
            return None
        picture = np.full((HEIGHT, WIDTH), " ")
        angles = np.array([self.theta1, self.theta1 + self.theta2], np.float64)
        rights, ups = np.cumsum(np.sin(angles)), np.cumsum(-np.cos(angles))
        picture[self._line(1.0)] = "-"
        for letter, right, up in (("+", 0.0, 0.0), *(("o", *end) for end in zip(rights, ups, strict=True))):
            picture[self._line(up), round((right + 2) / 4 * (WIDTH - 1))] = letter
        return "\n".join("".join(line).rstrip() for line in picture)

    def _line(self, up: float) -> int:
        return round((2 - up) / 4 * (HEIGHT - 1))

    def observed(self) -> Floats:
        (sine1, cosine1), (sine2, cosine2) = sine_cosine(self.theta1), sine_cosine(self.theta2)
        return np.array([cosine1, sine1, cosine2, sine2, self.theta1_dot, self.theta2_dot], np.float32)


def derivative(links: Links, torque: Any) -> Links:
    """Return the derivatives of the angles and the speeds by time, in 1/s and 1/s²."""
    sine2, cosine2 = sine_cosine(links.theta2)
    _, _, speed1, speed2 = links
    inertia, coupling = f(3.5) + cosine2, f(1.25) + HALF * cosine2
    weight2 = f(4.9) * sine_cosine(links.theta1 + links.theta2)[0]
    weight1 = f(14.7) * sine_cosine(links.theta1)[0] + weight2
    load1 = weight1 - (HALF * speed2 + speed1) * speed2 * sine2
    load2 = weight2 + HALF * (speed1 * speed1) * sine2
    share = coupling / inertia
    acceleration2 = (torque + share * load1 - load2) / (f(1.25) - share * coupling)
    return Links(speed1, speed2, -(coupling * acceleration2 + load1) / inertia, acceleration2)


def moved(links: Links, slope: Links, seconds: Any) -> Links:
    """Return the links after some seconds with constant derivatives."""
    return Links(*(value + seconds * change for value, change in zip(links, slope, strict=True)))
