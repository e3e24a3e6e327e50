"""Play a real environment, and write a recording of what it returned.

    python recorder.py NAME FILE

Run by benchmarks/record.py in a virtual environment that has the environment.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path

from child import versions
from player import Task
from recordings import record, record_agents, store


def main() -> None:
    name, path = sys.argv[1], Path(sys.argv[2])
    for variable, value in (("SDL_VIDEODRIVER", "dummy"), ("SDL_AUDIODRIVER", "dummy"), ("MUJOCO_GL", "disable")):
        os.environ.setdefault(variable, value)
    warnings.simplefilter("ignore")
    task = Task("", name, {}, 1, 1, 1)
    env = task.env_creator()
    recording = (record_agents if task.multi_agent else record)(env)
    recording["notes"]["versions"] = versions()
    store(recording, path)
    episodes = recording["episodes"]
    told = {key: value for key, value in recording["notes"].items() if value and key != "versions"}
    steps = sum(len(results) for _, results in episodes)
    print(f"{name}: {steps} steps in {len(episodes)} episodes {json.dumps(told) if told else ''}")


if __name__ == "__main__":
    main()
