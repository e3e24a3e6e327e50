"""What docs/ocean.md tells a newcomer: an environment is one file, a learner one function."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces
from pages import play, programs

import pufferlib
from ocean.suite import tasks
from pufferlib import registry

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "ocean.md").read_text()
_, LEARNER, COIN = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
pytestmark = [pytest.mark.slow, pytest.mark.beside]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with Ocean and one environment more, and with a learner."""
    folder = tmp_path_factory.mktemp("newcomer")
    shutil.copytree(ROOT / "ocean", folder / "ocean", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "ocean" / "coin.py").write_text(COIN)
    (folder / "my_learner.py").write_text(LEARNER)
    return folder


def python(folder: Path, *words: str) -> tuple[int, str]:
    """What a module returns and prints there."""
    path = os.pathsep.join([str(folder), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "COLUMNS": "150"}
    done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, cwd=folder, env=environment)
    return done.returncode, done.stdout + done.stderr


def actions_in_words(name: str) -> str:
    with pufferlib.make(name, num_envs=1) as vec:
        space, num_agents = vec.single_action_space, vec.agents_per_env
    parts = []
    for part in space if isinstance(space, spaces.Tuple) else (space,):
        if isinstance(part, spaces.Box):
            parts.append(f"{part.shape[0]} numbers")
        else:
            counts = np.ravel(part.nvec if isinstance(part, spaces.MultiDiscrete) else part.n)
            parts.append(f"{' × '.join(map(str, counts))} choices")
    return " and ".join(parts) + (f", of {num_agents} agents each" if num_agents > 1 else "")


def test_the_page_says_what_actions_and_scores_are() -> None:
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \| ([\d.]+) → ([\d.]+) \| ([\d.]+) \|", PAGE, re.MULTILINE)
    expected = []
    for name in tasks.names():
        env_creator = registry.creator(name)
        stated = (f"{round(number, 3):g}" for number in (env_creator.chance, env_creator.best, env_creator.bar))
        expected.append((name.removeprefix("ocean/"), actions_in_words(name), *stated))
    assert rows == expected


def test_the_loop_over_names_and_classes_prints_what_the_page_says() -> None:
    play(programs("docs/ocean.md")[0], {"__name__": "__main__"})


def test_a_file_is_an_environment(folder: Path) -> None:
    status, output = python(folder, "pufferlib.cli", "envs", "ocean")
    assert status == 0
    assert re.search(r"^ocean/coin +yes +Coin: call what lies on the table\.", output, re.MULTILINE)


@pytest.mark.long
def test_it_is_trained_and_passed(folder: Path) -> None:
    status, output = python(folder, "pufferlib.cli", "ocean", "--env", "coin", "--backend", "serial")
    assert status == 0, output
    assert re.search(r"^ocean/coin  score \S+, chance 0.500, bar 0\.95  \S+ s  passed$", output, re.MULTILINE)


FAULTS = {
    "chance": ("chance, best, bar = 0.5", "chance, best, bar = 0.3"),
    "solve": ("return self.observations[:, 0].astype(np.int64)", "return np.zeros(1, np.int64)"),
    "source": ("Source  ", "Sauce   "),
}


@pytest.mark.long
def test_it_is_held_to_what_it_states(folder: Path) -> None:
    """As it is, and with faults, each of which one test finds."""
    files = []
    for fault, (right, wrong) in FAULTS.items():
        assert right in COIN
        files.append(folder / "ocean" / f"coin_{fault}.py")
        files[-1].write_text(COIN.replace("Coin", f"Coin{fault.capitalize()}").replace(right, wrong))
    words = ["pytest", "-q", "-p", "no:cacheprovider", str(ROOT / "tests/ocean/test_ocean.py")]
    try:
        status, output = python(folder, *words, "-k", "coin and not (coin_ and check_env)")
    finally:
        for file in files:
            file.unlink()
    assert status == 1, output
    assert sorted(re.findall(r"^FAILED .*\[(\w+)\]", output, re.MULTILINE)) == [f"coin_{fault}" for fault in FAULTS]
    assert "3 failed, 18 passed" in output  # six tests of the coin, five of each with a fault


@pytest.mark.long
def test_a_learner_is_a_function(folder: Path) -> None:
    command, output = re.search(r"^\$ puffer (ocean .*--trainer my_learner:.*)\n((?:ocean/.*\n)+)", PAGE, re.M).groups()
    status, printed = python(folder, "pufferlib.cli", *command.split())
    assert status == 1
    without_seconds = [re.sub(r"\S+ s  ", "", text) for text in (printed, output)]
    assert without_seconds[0].startswith(without_seconds[1])
