"""Is what was installed here whole? For a fresh environment that has the wheel, what it asks for, and nothing else.

    python -I tests/smoke.py [--path compiled|portable]         seconds; fails with an AssertionError

--path: which path has to be in use. -I keeps this folder and PYTHONPATH off the path, so that all comes from the wheel.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import sysconfig
import warnings
from importlib import import_module, metadata
from pathlib import Path, PurePosixPath
from time import perf_counter
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

import pufferlib
from pufferlib import _native

PACKAGES = ("pufferlib", "ocean", "cuda_ext", "cleanrl_demo")
NUM_ENVS, NUM_STEPS = 5, 40
ARRANGEMENTS: dict[str, dict[str, Any]] = {
    "serial": {},
    "multiprocessing": {"num_workers": 2},
    "pool": {"num_workers": 2, "batch_size": 2},
}


class Nested(gymnasium.Env[Any, Any]):
    """Observes what it drew and what it was told; episodes end at random."""

    observation_space = spaces.Dict(
        {"drawn": spaces.Box(-1, 1, (3,), np.float32), "told": spaces.Discrete(4), "tick": spaces.MultiDiscrete([99])}
    )
    action_space = spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.tick = 0
        return self.observed(0), {}

    def step(self, action: Any) -> Any:
        self.tick += 1
        return self.observed(int(action)), float(self.np_random.random()), self.np_random.random() < 0.1, False, {}

    def observed(self, action: int) -> Any:
        drawn = self.np_random.uniform(-1, 1, 3).astype(np.float32)
        return {"drawn": drawn, "told": action, "tick": np.array([self.tick])}


def check_files() -> None:
    """The version is one; files are those of a wheel; nothing is imported from elsewhere."""
    assert metadata.version("pufferlib") == pufferlib.__version__
    files = [PurePosixPath(str(file)) for file in metadata.files("pufferlib") or ()]
    assert {file.parts[0] for file in files if file.suffix == ".py"} == set(PACKAGES)
    assert not [file for file in files if file.suffix in (".pyx", ".pxd", ".c") or file.parts[0] == "tests"]
    assert not [file for file in files if file.parts[:2] == ("pufferlib", "_native") and file.suffix == ".h"]
    assert PurePosixPath("pufferlib/py.typed") in files
    assert [file for file in files if file.name == "LICENSE"]
    site = {Path(sysconfig.get_path(kind)).resolve() for kind in ("purelib", "platlib")}
    for package in PACKAGES:
        assert site & set(Path(str(import_module(package).__file__)).resolve().parents), package


def check_path(path: str | None) -> None:
    """The path is the one that is wanted, make says so where it is the slower one, and `puffer doctor` says why."""
    in_use = "compiled" if _native.available else "portable"
    assert path in (None, in_use), f"{path} is wanted, and {in_use} in use: {_native.reason or 'it was built'}"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pufferlib.make(Nested).close()
    wanted = not _native.available and "PUFFERLIB_NATIVE=0" not in _native.reason and sys.platform.startswith("linux")
    assert [str(warning.message).startswith("pufferlib uses its portable path") for warning in caught] == [
        True
    ] * wanted
    puffer = Path(sysconfig.get_path("scripts")) / "puffer"
    done = subprocess.run([sys.executable, "-I", str(puffer), "doctor"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"\npath          {in_use}{': ' * bool(_native.reason)}{_native.reason}\n" in done.stdout, done.stdout
    assert "\nself test     passed" in done.stdout
    if in_use == "compiled":
        assert "\nkernels       built: " in done.stdout and "not built" not in done.stdout, done.stdout


def check_wrap() -> None:
    """What a wrapped environment shows decodes to what it was."""
    env = pufferlib.wrap(Nested())
    observation, _ = env.reset(seed=3)
    original, _ = Nested().reset(seed=3)
    decoded = env.observation_layout.decode(observation)
    assert decoded["told"] == original["told"] and (decoded["drawn"] == original["drawn"]).all()


def trajectories(backend: str) -> list[list[bytes]]:
    """Return the rows of each environment, as bytes, for actions that depend on environment and step alone."""
    rows: list[list[bytes]] = [[] for _ in range(NUM_ENVS)]
    with pufferlib.make(Nested, backend=backend, num_envs=NUM_ENVS, seed=7, **ARRANGEMENTS[backend]) as vec:
        vec.async_reset()
        while min(map(len, rows)) < NUM_STEPS:
            batch = vec.recv()
            parts = (batch.observations, batch.rewards, batch.terminations, batch.truncations, batch.masks)
            for row, env_id in enumerate(batch.env_ids):
                rows[env_id].append(b"".join(part[row].tobytes() for part in parts))
            vec.send(np.array([(env_id + len(rows[env_id])) % 4 for env_id in batch.env_ids]))
    return [env_rows[:NUM_STEPS] for env_rows in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--path", choices=("compiled", "portable"))
    path = parser.parse_args().path
    start_s = perf_counter()
    check_files()
    check_path(path)
    check_wrap()
    serial, *others = map(trajectories, ARRANGEMENTS)
    assert all(other == serial for other in others)
    version = ".".join(map(str, sys.version_info[:3]))
    in_use = "compiled" if _native.available else "portable"
    print(f"pufferlib {pufferlib.__version__} on Python {version}: whole, {in_use}, {perf_counter() - start_s:.1f} s")


if __name__ == "__main__":
    main()
