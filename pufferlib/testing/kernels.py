"""The consistency checker: does a kernel play what its reference plays, to the bit?

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

from pufferlib.construct import make
from pufferlib.errors import PlanError
from pufferlib.vectorization.core.arguments import checked_seconds
from pufferlib.vectorization.core.plan import AUTORESET_MODES
from pufferlib.vectorization.core.vecenv import VecEnv
from pufferlib.vectorization.device.kernel_lookup import kernel_of, reference_of
from pufferlib.vectorization.device.vecenv import CUDA

__all__ = ["Difference", "KernelReport", "check_kernel"]

Array = np.ndarray[Any, Any]
ROWS = ("observations", "rewards", "terminations", "truncations", "masks")


@dataclass(frozen=True)
class Difference:
    """The first place where a kernel is another than its reference."""

    mode: str  # of autoreset
    step: int  # 0 for the first reset
    env_id: int
    agent: str  # "" for what is the environment's
    name: str  # of a field of the schema, or a column of the rows
    index: tuple[int, ...]  # within the agent's part of it
    expected: Any  # the reference's value
    found: Any  # the kernel's

    def __str__(self) -> str:
        place = f"[{', '.join(map(str, self.index))}]" if self.index else ""
        of = f", {self.agent}" if self.agent else ""
        return (
            f"step {self.step} ({self.mode}), environment {self.env_id}{of}: {self.name}{place} is {self.found!r}, "
            f"and the reference has {self.expected!r}"
        )


@dataclass(frozen=True)
class KernelReport:
    """What came of a comparison. Print it."""

    name: str  # of the kernel
    num_env_steps: int  # that were compared
    num_episodes: int  # that ended meanwhile
    difference: Difference | None  # the first; None if there is none
    budget: float | None = None  # seconds that were spent before all steps were compared; None if all were

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
    """Return how a kernel compares with its reference, step by step, with the same seeds and random actions.

    env, device, env_kwargs, backend_kwargs: as ``make(backend="cuda")`` takes them.

    All state that the schema declares is compared, and all rows, exactly, in each autoreset mode that starts episodes
    by itself, for ``num_steps`` steps of ``num_envs`` environments. In the second half of them half of the actions
    repeat the one before: random walks alone get nowhere. Raises what ``make`` raises.

    budget: seconds after which fewer steps than that are enough, at least one in each mode; half of it for each, from
        its first reset on. None: any time.
    after: called after each step with the autoreset mode, how many of its steps are compared, and of how many; first
        with 0, while environments are made and the kernel is compiled.
    """
    if num_steps < 1:
        raise PlanError(f"num_steps={num_steps} is impossible; use 1 or more")
    budget_s = checked_seconds("budget", budget)
    after = after or (lambda mode, step, of: None)
    kernel = kernel_of(env)
    made: dict[str, Any] = {"num_envs": num_envs, "seed": seed, "env_kwargs": env_kwargs}
    num_env_steps = num_episodes = 0
    cut = False
    for mode in AUTORESET_MODES[:2]:
        after(mode, 0, num_steps)
        with (
            make(reference_of(kernel), backend="serial", autoreset_mode=mode, **made) as reference,
            make(
                kernel, backend="cuda", device=device, autoreset_mode=mode, backend_kwargs=backend_kwargs, **made
            ) as found,
        ):
            assert isinstance(found, CUDA)
            random = np.random.default_rng(seed)
            reference.reset()
            found.reset()
            actions = _drawn(random, reference)
            start_s, limit_s = time.monotonic(), math.inf if budget_s is None else budget_s / 2
            for step in range(num_steps + 1):
                for name, index, expected, value in _differences(reference, found):
                    difference = _told(reference, mode, step, name, index, expected, value)
                    return KernelReport(kernel.name, num_env_steps, num_episodes, difference)
                spent_s = time.monotonic() - start_s
                cut |= step < num_steps and step > 0 and spent_s >= limit_s
                if step == num_steps or (step and spent_s >= limit_s):
                    break
                drawn = _drawn(random, reference)
                if step > num_steps // 2 or spent_s > limit_s / 2:
                    kept = np.repeat(random.random(num_envs) < 0.5, reference.agents_per_env)
                    drawn[kept] = actions[kept]
                actions = drawn
                reference.step(actions)
                found.step(actions)
                num_env_steps += num_envs
                assert reference.batch is not None
                num_episodes += sum("env" in info for info in reference.batch.infos)
                after(mode, step + 1, num_steps)
    return KernelReport(kernel.name, num_env_steps, num_episodes, None, budget_s if cut else None)


def _drawn(random: np.random.Generator, vec: VecEnv) -> Array:
    space = vec.single_action_space
    most = getattr(space, "nvec", None)
    most = space.n if most is None else most  # type: ignore[attr-defined]
    return random.integers(0, most, (vec.agents_per_batch, *(space.shape or ())))


def _differences(reference: VecEnv, found: CUDA) -> Iterator[tuple[str, tuple[int, ...], Any, Any]]:
    """Yield the first place where each column or field differs: its name, (env or row, …), what is expected, found."""
    expected, ours = reference.batch, found.host_batch
    assert expected is not None and ours is not None
    for name, field in found.data.fields.items():
        if field.role == "state":
            values = np.array([np.asarray(each) for each in reference.get_attr(name)])
            yield from _first(name, values.astype(field.dtype), found.data.pull(name))
    for name in ROWS:
        yield from _first(name, np.asarray(getattr(expected, name)), np.asarray(getattr(ours, name)))
    told, said = ([_plain(info) for info in infos] for infos in (expected.infos, ours.infos))
    for place in range(max(len(told), len(said))):
        one, other = (infos[place] if place < len(infos) else None for infos in (told, said))
        if one != other:
            env_id = (one or other or {})["env_id"]
            yield "infos", (env_id,), one, other
            return


def _plain(value: Any) -> Any:
    """Return infos as they can be compared: without times, sums of rewards rounded, as their order may differ."""
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items() if name != "t"}
    if isinstance(value, np.ndarray):
        return value.tolist()
    return float(f"{value:.9g}") if isinstance(value, float) else value


def _first(name: str, expected: Array, found: Array) -> Iterator[tuple[str, tuple[int, ...], Any, Any]]:
    differs = expected.view(np.uint8 if expected.dtype == bool else f"u{expected.itemsize}") != found.view(
        np.uint8 if found.dtype == bool else f"u{found.itemsize}"
    )
    if differs.any():
        index = tuple(int(each) for each in np.argwhere(differs)[0])
        yield name, index, expected[index].item(), found[index].item()


def _told(
    reference: VecEnv, mode: str, step: int, name: str, index: tuple[int, ...], expected: Any, found: Any
) -> Difference:
    """Say where an index is: rows are numbered through all environments, fields by environment."""
    if name in ROWS:
        index = (*divmod(index[0], reference.agents_per_env), *index[1:])
    env_id, places, names = index[0], index[1:2], reference.agent_names
    agent = ""
    if places and reference.multi_agent:
        agent = str(names[places[0]]) if names else f"agent {places[0]}"
    return Difference(mode, step, env_id, agent, name, index[2:], expected, found)
