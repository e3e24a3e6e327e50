"""Compare a kernel with its reference, bit for bit.

``check_kernel`` returns a report to print:

    report = pufferlib.testing.check_kernel("tag/grid", device="host")
    print(report)
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from pufferlib.construct import make
from pufferlib.errors import PlanError
from pufferlib.util.annotations import Array
from pufferlib.vectorization.core.arguments import checked_seconds
from pufferlib.vectorization.core.plan import AUTORESET_MODES
from pufferlib.vectorization.core.vecenv import VecEnv
from pufferlib.vectorization.device.kernel_lookup import kernel_of, reference_of
from pufferlib.vectorization.device.vecenv import CUDA

__all__ = ["Difference", "KernelReport", "check_kernel"]

ROWS = ("observations", "rewards", "terminations", "truncations", "masks")


@dataclass(frozen=True)
class Difference:
    """The first difference between a kernel and its reference."""

    mode: str  # the autoreset mode
    step: int  # 0 for the first reset
    env_id: int
    agent: str  # "" in a single-agent environment, and for values of a whole environment
    name: str  # a field of the schema, a column of the rows, or "infos"
    index: tuple[int, ...]  # within the agent's or environment's values
    expected: Any  # the reference's value
    found: Any  # the kernel's

    def __str__(self) -> str:
        index = f"[{', '.join(map(str, self.index))}]" if self.index else ""
        agent = f", {self.agent}" if self.agent else ""
        return (
            f"step {self.step} ({self.mode}), environment {self.env_id}{agent}: {self.name}{index} is {self.found!r}, "
            f"and the reference has {self.expected!r}"
        )


@dataclass(frozen=True)
class KernelReport:
    """The result of comparing a kernel with its reference; ``str(report)`` describes it."""

    name: str  # the kernel's name
    num_env_steps: int  # environment steps compared
    num_episodes: int  # episodes that ended in these steps
    difference: Difference | None  # the first difference, or None
    budget: float | None = None  # seconds after which the comparison stopped early, or None if it was complete

    @property
    def passed(self) -> bool:
        """Whether there was no difference."""
        return self.difference is None

    def __str__(self) -> str:
        played = f"{self.num_env_steps:,} steps and {self.num_episodes:,} episodes"
        if self.difference is None:
            cut = "" if self.budget is None else f", as many as {self.budget:g} s allow"
            return f"{self.name}: the kernel equals its reference, bit for bit, over {played}{cut}"
        return f"{self.name}: the kernel differs after {played}: {self.difference}"


def check_kernel(
    env: Any,
    *,
    device: Any = None,
    env_kwargs: Mapping[str, Any] | None = None,
    num_envs: int = 8,
    num_steps: int = 500,
    seed: int = 0,
    backend_kwargs: Mapping[str, Any] | None = None,
    budget: float | None = None,
    after: Callable[[str, int, int], None] | None = None,
) -> KernelReport:
    """Compare a kernel with its reference step by step, with the same seeds and random actions; return a report.

    env, device, env_kwargs, backend_kwargs: as in ``make(backend="cuda")``.

    All rows, all state fields of the schema, and all infos must be equal for ``num_steps`` steps of ``num_envs``
    environments, in each of the autoreset modes "next_step" and "same_step". Infos are compared without times, and with
    floats rounded to 9 significant digits. In the second half of the steps or of the budget, each environment repeats
    its last actions with probability 1/2 in each step, because random walks stay near their start.

    budget: the seconds after which the comparison stops early; by default, there is no limit. Each mode gets half of
        the budget, counted from the mode's first reset, and plays at least one step.
    after: called after each step with the autoreset mode, the number of its steps played so far, and num_steps; also
        with 0 steps at the start of each mode, before environments are made and the kernel is compiled.

    Raises PlanError if num_steps or budget is not positive, and the errors of ``make``.
    """
    if num_steps < 1:
        raise PlanError(f"num_steps={num_steps} is impossible; use 1 or more")
    budget_s = checked_seconds("budget", budget)
    after = after or (lambda mode, step, of: None)
    kernel = kernel_of(env)
    arguments: dict[str, Any] = {"num_envs": num_envs, "seed": seed, "env_kwargs": env_kwargs}
    num_env_steps = num_episodes = 0
    cut = False
    for mode in AUTORESET_MODES[:2]:
        after(mode, 0, num_steps)
        with (
            make(reference_of(kernel), backend="serial", autoreset_mode=mode, **arguments) as reference,
            make(
                kernel, backend="cuda", device=device, autoreset_mode=mode, backend_kwargs=backend_kwargs, **arguments
            ) as kernel_vec,
        ):
            assert isinstance(kernel_vec, CUDA)
            random = np.random.default_rng(seed)
            reference.reset()
            kernel_vec.reset()
            actions = _drawn(random, reference)
            start_s, limit_s = time.monotonic(), math.inf if budget_s is None else budget_s / 2
            for step in range(num_steps + 1):
                for name, index, expected, value in _differences(reference, kernel_vec):
                    difference = _difference(reference, mode, step, name, index, expected, value)
                    return KernelReport(kernel.name, num_env_steps, num_episodes, difference)
                spent_s = time.monotonic() - start_s
                cut |= step < num_steps and step > 0 and spent_s >= limit_s
                if step == num_steps or (step and spent_s >= limit_s):
                    break
                drawn = _drawn(random, reference)
                if step > num_steps // 2 or spent_s > limit_s / 2:
                    repeated = np.repeat(random.random(num_envs) < 0.5, reference.agents_per_env)
                    drawn[repeated] = actions[repeated]
                actions = drawn
                reference.step(actions)
                kernel_vec.step(actions)
                num_env_steps += num_envs
                assert reference.batch is not None
                num_episodes += sum("env" in info for info in reference.batch.infos)
                after(mode, step + 1, num_steps)
    return KernelReport(kernel.name, num_env_steps, num_episodes, None, budget_s if cut else None)


def _drawn(random: np.random.Generator, vec: VecEnv) -> Array:
    space = vec.single_action_space
    shape = (vec.agents_per_batch, *(space.shape or ()))
    if isinstance(space, spaces.Box):
        return random.uniform(space.low, space.high, shape).astype(space.dtype)
    most = getattr(space, "nvec", None)
    most = space.n if most is None else most  # type: ignore[attr-defined]
    return random.integers(0, most, shape)


def _differences(reference: VecEnv, kernel_vec: CUDA) -> Iterator[tuple[str, tuple[int, ...], Any, Any]]:
    """Yield the first difference in each field and column, and in the infos, as (name, index, expected, actual).

    An index begins with a row number for columns, and with an environment's number for fields and infos.
    """
    expected, ours = reference.batch, kernel_vec.host_batch
    assert expected is not None and ours is not None
    for name, field in kernel_vec.data.fields.items():
        if field.role == "state":
            values = np.array([np.asarray(value) for value in reference.get_attr(name)])
            yield from _first(name, values.astype(field.dtype), kernel_vec.data.pull(name))
    for name in ROWS:
        yield from _first(name, np.asarray(getattr(expected, name)), np.asarray(getattr(ours, name)))
    expected_infos, actual_infos = ([_plain(info) for info in infos] for infos in (expected.infos, ours.infos))
    for position in range(max(len(expected_infos), len(actual_infos))):
        expected_info, actual_info = (
            infos[position] if position < len(infos) else None for infos in (expected_infos, actual_infos)
        )
        if expected_info != actual_info:
            env_id = (expected_info or actual_info or {})["env_id"]
            yield "infos", (env_id,), expected_info, actual_info
            return


def _plain(value: Any) -> Any:
    """Return an info, or a value in it, without times, with floats rounded and with arrays as lists.

    Floats are rounded to 9 significant digits, because kernel and reference may add numbers in different orders;
    elements of arrays are not rounded.
    """
    if isinstance(value, Mapping):
        return {name: _plain(entry) for name, entry in value.items() if name != "t"}
    if isinstance(value, np.ndarray):
        return value.tolist()
    return float(f"{value:.9g}") if isinstance(value, float) else value


def _first(name: str, expected: Array, actual: Array) -> Iterator[tuple[str, tuple[int, ...], Any, Any]]:
    differs = expected.view(np.uint8 if expected.dtype == bool else f"u{expected.itemsize}") != actual.view(
        np.uint8 if actual.dtype == bool else f"u{actual.itemsize}"
    )
    if differs.any():
        index = tuple(int(coordinate) for coordinate in np.argwhere(differs)[0])
        yield name, index, expected[index].item(), actual[index].item()


def _difference(
    reference: VecEnv, mode: str, step: int, name: str, index: tuple[int, ...], expected: Any, actual: Any
) -> Difference:
    """Return the Difference for a result of ``_differences``; convert a row's index to an environment and an agent."""
    if name in ROWS:
        index = (*divmod(index[0], reference.agents_per_env), *index[1:])
    env_id, agent_index, names = index[0], index[1:2], reference.agent_names
    agent = ""
    if agent_index and reference.multi_agent:
        agent = str(names[agent_index[0]]) if names else f"agent {agent_index[0]}"
    return Difference(mode, step, env_id, agent, name, index[2:], expected, actual)
