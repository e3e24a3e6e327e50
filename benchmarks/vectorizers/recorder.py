"""Play a real environment and record its results.

    python recorder.py NAME FILE        a name that players know, or that of an example of one of pufferlib's families

benchmarks/record.py runs it in a virtual environment that has the environment.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

from child import versions
from envs import REAL_ENVS
from games import GAMES
from player import Task
from recordings import record, record_agents, store


def main() -> None:
    name, path = sys.argv[1], Path(sys.argv[2])
    for variable, value in (("SDL_VIDEODRIVER", "dummy"), ("SDL_AUDIODRIVER", "dummy"), ("MUJOCO_GL", "disable")):
        os.environ.setdefault(variable, value)
    warnings.simplefilter("ignore")
    env = make_env(name)
    recording = (record_agents if hasattr(env, "possible_agents") else record)(env)
    recording["notes"]["versions"] = versions()
    store(recording, path)
    episodes = recording["episodes"]
    notes = {key: value for key, value in recording["notes"].items() if value and key != "versions"}
    steps = sum(len(results) for _, results in episodes)
    print(f"{name}: {steps} steps in {len(episodes)} episodes {json.dumps(notes) if notes else ''}")


def make_env(name: str) -> Any:
    """Return an environment as players step it or as ``make test-envs`` plays it."""
    if name in {**REAL_ENVS, **GAMES}:
        return Task("", name, {}, 1, 1, 1).env_creator()
    from pufferlib.emulation.pettingzoo_rows import as_parallel
    from pufferlib.environments import families
    from pufferlib.registry import creator

    examples = [example for family in families().values() for example in family.examples]
    (env_kwargs,) = (example.env_kwargs for example in examples if example.name == name)
    env = creator(name)(**env_kwargs)
    return as_parallel(env) if hasattr(env, "possible_agents") else env


if __name__ == "__main__":
    main()
