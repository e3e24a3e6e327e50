"""Pendulum: swing a pendulum up by a motor that is too weak to lift it, and hold it there.

State        The angle theta, 0 straight up, from -pi to pi, and its speed theta_dot, from -8 to 8 radians per second.
             The pendulum is a rod of length 1 and mass 1; gravity is 10.
Actions      Box(-2, 2, (1,), float32): the torque. Numbers beyond the bounds are clipped.
Motion       A step lasts 0.05 s. It changes the speed by (15 sin(theta) + 3 torque) times that, and then the angle by
             the new speed times that. The speed is bounded, and whole turns are subtracted from the angle.
Reward       -(theta² + 0.1 theta_dot² + 0.001 torque²), with the state before the step.
Ending       The episode is truncated after ``max_episode_steps``; it never terminates.
Observation  Box(float32, (3,)): cosine and sine of theta, and theta_dot.
Start        The angle is uniform between -pi and pi, the speed between -1 and 1, drawn for each episode.
Seeding      ``reset(seed=s)`` starts episode 0 of seed s, and each later ``reset()`` the next episode.
Arithmetic   float32, in the order of operations written here, so that a kernel can equal it bit for bit.
Source       Pendulum-v1 of Gymnasium, which has the same rules but computes in float64 and draws its starts from
             another generator.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from cuda_ext.references.classic_env import ClassicEnv, Floats
from cuda_ext.references.trigonometry import TWO_PI, sine_cosine, without_turns
from pufferlib.util.philox import uniform

f = np.float32
SECONDS, MOST_TORQUE, MOST_SPEED, PI = f(0.05), f(2), f(8), f(np.pi)
SIZE = 17  # lines of text


class ClassicPendulum(ClassicEnv):
    """The Pendulum environment.

    Its state consists of ``seed``, ``episode`` and ``t`` (ints), and ``theta`` and ``theta_dot`` (float32). Raises
    ValueError for invalid arguments.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 30}

    def __init__(self, *, max_episode_steps: int = 200, render_mode: str | None = None) -> None:
        super().__init__(max_episode_steps, render_mode)
        high = np.array([1, 1, MOST_SPEED], np.float32)
        self.observation_space = spaces.Box(-high, high)
        self.action_space = spaces.Box(-MOST_TORQUE, MOST_TORQUE, (1,))
        self.theta: Any = f(0)  # float32, as is the next
        self.theta_dot: Any = f(0)

    def begin(self, *words: Any) -> None:
        self.theta = uniform(words[0]) * TWO_PI - PI
        self.theta_dot = uniform(words[1]) * f(2) - f(1)

    def step(self, action: Floats) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        theta, theta_dot = self.theta, self.theta_dot
        torque = min(max(f(action[0]), -MOST_TORQUE), MOST_TORQUE)
        reward = -((theta * theta + f(0.1) * (theta_dot * theta_dot)) + f(0.001) * (torque * torque))
        speed = theta_dot + (f(15) * sine_cosine(theta)[0] + f(3) * torque) * SECONDS
        self.theta_dot = min(max(speed, -MOST_SPEED), MOST_SPEED)
        self.theta = without_turns(theta + self.theta_dot * SECONDS)
        self.t += 1
        return self.observed(), float(reward), False, self.t >= self.max_episode_steps, {}

    def render(self) -> Any:
        """Draw the fixed end as "+" and the other end as "o"; return a str for "ansi", else None."""
        if self.render_mode != "ansi":
            return None
        picture = np.full((SIZE, 2 * SIZE - 1), " ")  # two columns are as wide as a line is high
        middle = SIZE // 2
        picture[middle, 2 * middle] = "+"
        right, up = np.sin(float(self.theta)), np.cos(float(self.theta))
        picture[middle - round(up * middle), 2 * middle + round(right * 2 * middle)] = "o"
        return "\n".join("".join(line).rstrip() for line in picture)

    def observed(self) -> Floats:
        sine, cosine = sine_cosine(self.theta)
        return np.array([cosine, sine, self.theta_dot], np.float32)
