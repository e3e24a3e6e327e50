"""What the fuzzing of VecEnv's calls draws from: an environment that fails on command, arguments right and wrong."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from mock_envs import HashEnv, Unpicklable

__all__ = ["DOMAINS", "LETHAL", "MOST_ENVS", "ODD_ACTIONS", "SLOW", "WRONG_ACTIONS", "FuzzEnv"]

MOST_ENVS = 6
RAISES, KILLS, EXITS, UNPICKLABLE, SLOW = 991, 992, 993, 994, 995
LETHAL = {"raise": RAISES, "kill": KILLS, "exit": EXITS, "unpicklable": UNPICKLABLE}


class FuzzEnv(HashEnv):
    """HashEnv that fails on command: of its action, of its reset's options, of a file when it is made.

    parent: the process that must not be killed.
    """

    def __init__(self, env_index: int, folder: str = "", parent: int = 0) -> None:
        sabotage = Path(folder, str(env_index))
        if sabotage.exists():
            sabotage.unlink()
            raise OSError("the level file is gone")
        super().__init__(env_index, mean_length=4)
        self.parent = parent
        self.mark = 0

    def fail(self, how: Any) -> None:
        if how == KILLS and os.getpid() != self.parent:
            os.kill(os.getpid(), signal.SIGKILL)
        if how == EXITS:
            raise SystemExit(3)
        if how == UNPICKLABLE:
            raise Unpicklable("has a lock inside")
        raise ValueError("the emulator caught fire")

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if options and "fault" in options:
            self.fail(options["fault"])
        observation, info = super().reset(seed=seed, options=options)
        return observation, info if seed is None else {**info, "seed": seed}

    def step(self, action: Any) -> Any:
        if action == SLOW:
            time.sleep(0.002)
        elif action > 990:
            self.fail(action)
        return super().step(action)

    def double(self, number: int) -> int:
        return 2 * number

    def render(self) -> Any:
        return f"environment {self.env_index}"


# Arguments are drawn from these, with the same chances; none depends on the state, so that Hypothesis can shrink them.
BITS = tuple(range(2**MOST_ENVS))
SALTS = tuple(range(16))
PLANS = (
    ("serial", 3, 1, 3), ("serial", 4, 1, 2), ("serial", 1, 1, 1),
    ("multiprocessing", 4, 2, 4), ("multiprocessing", 5, 2, 2), ("multiprocessing", 3, 3, 1),
    ("pool", 4, 2, 4), ("pool", 5, 2, 2), ("pool", 6, 3, 4), ("pool", 3, 1, 1),
)  # fmt: skip
FAULTS = ("none",) * 10 + ("slow", "slow", "raise", "exit", "unpicklable", "kill")
WRONG_ACTIONS: dict[str, Callable[[Any], Any]] = {
    "too few": lambda actions: actions[:-1],
    "too many": lambda actions: np.concatenate([actions, actions]),
    "two-dimensional": lambda actions: actions[:, None],
    "floats": lambda actions: actions + 0.5,
    "NaN": lambda actions: np.full(len(actions), np.nan),
    "ragged": lambda actions: [[0], [0, 1], *actions[2:].tolist()],
    "None": lambda actions: None,
    "words": lambda actions: ["left"] * len(actions),
    "objects": lambda actions: actions.astype(object),
    "a number": lambda actions: 3,
    "a mapping": lambda actions: {"action": actions},
    "a generator": lambda actions: (action for action in actions),
    "complex": lambda actions: actions * 1j,
    "huge": lambda actions: [2**70] * len(actions),
}
ODD_ACTIONS: tuple[Callable[[Any], Any], ...] = (  # which are taken as they are meant
    lambda actions: actions,
    lambda actions: actions.tolist(),
    lambda actions: tuple(actions),
    lambda actions: actions.astype(np.int32),
    lambda actions: actions.astype(">i8"),
    lambda actions: np.repeat(actions, 2)[::2],
    lambda actions: actions[::-1].copy()[::-1],
    lambda actions: np.frombuffer(actions.tobytes(), np.int64),
    lambda actions: np.frombuffer(b" " + actions.tobytes(), np.int64, len(actions), 1),
)
WRONG_IDS: tuple[Any, ...] = (
    [], [MOST_ENVS], [-1], [0, 0], [0.0], ["0"], [None], "0", int, [[0], [0, 0]], [2**70], [True], {0}, [np.nan],
)  # fmt: skip
WRONG_RESETS: tuple[dict[str, Any], ...] = (
    {"seed": -1}, {"seed": 1.5}, {"seed": "words"}, {"seed": [1] * 9}, {"seed": [0.5] * 9}, {"seed": np.array(5.0)},
    {"seed": object()}, {"options": "much too long"}, {"options": 3}, {"options": [{}] * 9}, {"options": "as long as"},
    {"seed": 3, "options": "much too long"}, {"seed": 3, "options": "as long as"}, {"seed": "as long as"},
)  # fmt: skip
WRONG_PLANS: tuple[dict[str, Any], ...] = (
    {"num_envs": 0}, {"num_envs": -1}, {"num_envs": 1.5}, {"num_envs": True}, {"num_envs": "2"},
    {"num_workers": 9}, {"num_workers": 0}, {"batch_size": 9}, {"batch_size": 0}, {"batch_size": 1.0},
    {"autoreset_mode": "no"}, {"on_error": "ignore"}, {"max_restarts": -1}, {"step_timeout": 0}, {"check": "never"},
    {"seed": -1}, {"seed": "x"}, {"backend_kwargs": {"spin": -1}}, {"backend_kwargs": {"foreign": 1}},
    {"context": "thread"}, {"env_kwargs": [{}]},
)  # fmt: skip
DOMAINS: dict[str, dict[str, tuple[Any, ...]]] = {
    "make": dict(
        plan=PLANS,
        mode=("next_step", "next_step", "same_step", "disabled"),
        on_error=("raise", "restart"),
        most=(None, None, 0, 2),
        lend=("views", "views", "copy", "debug"),
        seed=tuple(range(5)),
    ),
    "make_wrong": dict(wrong=WRONG_PLANS, backend=("serial", "multiprocessing", "pool")),
    "async_reset": dict(
        bits=BITS, who=("all", "some", "idle", "failed"), seed=(None, None, 3, "each"),
        options=(None, None, "one", "each"), fault=FAULTS, index=SALTS,
    ),
    "reset": dict(
        bits=BITS, who=("all", "all", "idle"), seed=(None, None, 3), options=(None, None, "one"), fault=FAULTS,
        index=SALTS,
    ),
    "reset_wrong": dict(wrong=WRONG_RESETS, bits=BITS, who=("all", "idle"), method=("reset", "async_reset")),
    "reset_wrong_ids": dict(wrong=WRONG_IDS),
    "reset_unsendable": dict(),
    "send": dict(to=("last", "last", "waiting", "some"), bits=BITS, fault=FAULTS, index=SALTS, salt=SALTS),
    "send_wrong": dict(to=("last", "waiting"), wrong=tuple(WRONG_ACTIONS)),
    "send_wrong_ids": dict(wrong=WRONG_IDS),
    "step": dict(fault=FAULTS, index=SALTS, salt=SALTS),
    "step_on": dict(salt=SALTS),
    "recv": dict(timeout=(None, None, None, 0, -1.0, 1e-4)),
    "call": dict(kind=("call", "get", "set", "render", "stats"), bits=BITS, who=("all", "some"), salt=SALTS),
    "call_wrong": dict(kind=("name", "raises", "unpicklable", "values", "ids", "environment"), wrong=WRONG_IDS),
    "kill": dict(index=SALTS),
    "sabotage": dict(index=SALTS),
    "close": dict(times=(1, 2), grace=(5.0, 5.0, 0.0)),
}  # fmt: skip
