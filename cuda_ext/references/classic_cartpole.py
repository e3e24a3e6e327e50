"""CartPole: balance a pole on a cart that is pushed to the left or to the right.

State        x of the cart (m) and its speed x_dot (m/s), the angle theta of the pole (rad, clockwise from upright) and
             its speed theta_dot (rad/s).
Actions      Discrete(2): push with 10 N to the left or to the right.
Motion       The cart weighs 1 kg; the pole weighs 0.1 kg and is 1 m long; nothing has friction. Each step is an Euler
             step of 0.02 s, which changes positions by the speeds from before the step.
Reward       1 for each step.
Ending       The episode terminates beyond 2.4 m or 12 degrees to either side; otherwise it is truncated after
             ``max_episode_steps``.
Observation  Box(float32, (4,)): the state.
Start        All four state variables are uniform between -0.05 and 0.05, drawn for each episode.
Seeding      ``reset(seed=s)`` starts episode 0 of seed s, and each later ``reset()`` the next episode.
Arithmetic   float32, in the order of operations written here, so that a kernel can equal it bit for bit.
Source       CartPole-v1 of Gymnasium, which has the same rules but computes in float64 and draws its starts from
             another generator. After Barto, Sutton and Anderson, "Neuronlike adaptive elements that can solve
             difficult learning control problems", IEEE SMC 1983.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from cuda_ext.references.classic_env import ClassicEnv, Floats
from cuda_ext.references.trigonometry import sine_cosine
from pufferlib.util.philox import uniform

f = np.float32
GRAVITY, FORCE = f(9.8), f(10)
MASS, POLE_MASS = f(1.1), f(0.1)  # of the cart with the pole, and of the pole alone
LENGTH, POLE_MOMENT = f(0.5), f(0.05)  # half the pole's length, and its mass times that
ONE_THIRD_MORE = f(4) / f(3)
SECONDS = f(0.02)
MOST_X, MOST_THETA = f(2.4), f(12 * np.pi / 180)

WIDTH, HEIGHT = 300, 200  # pixels
PIXELS_PER_M, TRACK = 60, 150  # the picture is 5 m wide; the cart's row
CART, POLE_PIXELS = (15, 8), 3  # half the cart's width and height; half the pole's width
WHITE, BLACK, BROWN = (255, 255, 255), (0, 0, 0), (200, 150, 100)
COLUMNS, LINES = 61, 7  # of text


class ClassicCartpole(ClassicEnv):
    """The CartPole environment.

    Its state consists of ``seed``, ``episode`` and ``t`` (ints), and ``x``, ``x_dot``, ``theta`` and ``theta_dot``
    (float32). Raises ValueError for invalid arguments.
    """

    metadata = {"render_modes": ["ansi", "rgb_array"], "render_fps": 50}

    def __init__(self, *, max_episode_steps: int = 500, render_mode: str | None = None) -> None:
        super().__init__(max_episode_steps, render_mode)
        bounds = np.array([2 * MOST_X, np.inf, 2 * MOST_THETA, np.inf], np.float32)
        self.observation_space = spaces.Box(-bounds, bounds)
        self.action_space = spaces.Discrete(2)
        self.x: Any = f(0)  # float32, as are the next three
        self.x_dot: Any = f(0)
        self.theta: Any = f(0)
        self.theta_dot: Any = f(0)

    def begin(self, *words: Any) -> None:
        self.x, self.x_dot, self.theta, self.theta_dot = (uniform(word) * f(0.1) - f(0.05) for word in words)

    def step(self, action: int) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        force = FORCE if action == 1 else -FORCE
        sine, cosine = sine_cosine(self.theta)
        pushed = (force + POLE_MOMENT * (self.theta_dot * self.theta_dot) * sine) / MASS
        inertia = LENGTH * (ONE_THIRD_MORE - POLE_MASS * (cosine * cosine) / MASS)
        theta_acceleration = (GRAVITY * sine - cosine * pushed) / inertia
        x_acceleration = pushed - POLE_MOMENT * theta_acceleration * cosine / MASS
        self.x, self.x_dot = self.x + SECONDS * self.x_dot, self.x_dot + SECONDS * x_acceleration
        self.theta, self.theta_dot = (
            self.theta + SECONDS * self.theta_dot,
            self.theta_dot + SECONDS * theta_acceleration,
        )
        self.t += 1
        fell = bool(abs(self.x) > MOST_X or abs(self.theta) > MOST_THETA)
        return self.observed(), 1.0, fell, not fell and self.t >= self.max_episode_steps, {}

    def render(self) -> Any:
        """Draw track, cart and pole; return a str for "ansi", uint8 (HEIGHT, WIDTH, 3) for "rgb_array", else None."""
        if self.render_mode == "ansi":
            return self._text()
        if self.render_mode == "rgb_array":
            return self._pixels()
        return None

    def observed(self) -> Floats:
        return np.array([self.x, self.x_dot, self.theta, self.theta_dot], np.float32)

    def _pixels(self) -> NDArray[np.uint8]:
        pixels = np.full((HEIGHT, WIDTH, 3), WHITE, np.uint8)
        rows, columns = np.indices((HEIGHT, WIDTH))
        right, up = columns - (WIDTH / 2 + PIXELS_PER_M * float(self.x)), TRACK - rows  # of the joint
        pixels[TRACK] = BLACK
        pixels[(abs(right) <= CART[0]) & (abs(up) <= CART[1])] = BLACK
        sine, cosine = np.sin(float(self.theta)), np.cos(float(self.theta))
        along, across = right * sine + up * cosine, right * cosine - up * sine
        pixels[(along >= 0) & (along <= PIXELS_PER_M) & (abs(across) <= POLE_PIXELS)] = BROWN
        return pixels

    def _text(self) -> str:
        picture = np.full((LINES, COLUMNS), " ")
        columns_per_m = (COLUMNS - 1) / (2 * float(MOST_X))
        cart = (float(self.x) + float(MOST_X)) * columns_per_m
        picture[-1] = "-"
        picture[-1, _columns(cart + np.arange(-3, 4))] = "#"
        heights = np.arange(1, LINES)  # the drawn pole leans twice as far, as letters are twice as high as wide
        picture[LINES - 1 - heights, _columns(cart + 2 * heights * np.tan(float(self.theta)))] = "|"
        return "\n".join("".join(line).rstrip() for line in picture)


def _columns(positions: Any) -> NDArray[np.intp]:
    columns: NDArray[np.intp] = np.round(positions).astype(np.intp).clip(0, COLUMNS - 1)
    return columns
