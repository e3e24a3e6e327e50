"""Run one program of a release of PufferLib in this process, unchanged and from where it is.

    python benchmarks/public_case.py RELEASE KIND PATH [ARGUMENT …]          as benchmarks/public_cases.py starts it

RELEASE is the folder of an unpacked source distribution. KIND is "script", "functions" (the arguments name functions
of the program), "pytest", or "wrapper" (PATH is a package of PufferLib's ``environments``, the argument the name of an
environment in it). ``import pufferlib`` is this project's, but the modules of ``pufferlib.environments`` are first
those of the release, through a hook of public_cases.py: these wrappers are programs, too.
"""

from __future__ import annotations

import importlib
import os
import runpy
import sys
from pathlib import Path
from typing import Any

NUM_ENVS = 2
STEPS = 60


def main() -> None:
    release, kind, path, *arguments = sys.argv[1:]
    sys.path.pop(0)  # this folder
    if kind == "wrapper":
        play(importlib.import_module(f"pufferlib.environments.{path}"), *arguments)
        return
    program = Path(release, path)
    if (program.parent / "c_gae.pyx").exists():
        compile_on_import()
    if kind == "pytest":
        import pytest

        options = ["-q", "-p", "no:cacheprovider", "--import-mode=importlib"]
        alone = ["-c", os.devnull, "--rootdir", os.getcwd()]  # without the settings of the project around it
        sys.exit(pytest.main([*options, *alone, str(program)]))
    sys.path.insert(0, str(program.parent))
    if kind == "functions":
        members = runpy.run_path(str(program), run_name="program")
        for name in arguments:
            members[name]()
        return
    sys.argv = [str(program), *arguments]
    runpy.run_path(str(program), run_name="__main__")


def compile_on_import() -> None:
    """Compile the release's Cython module when the program imports it, into the current folder."""
    import numpy as np
    import pyximport

    pyximport.install(build_dir=os.getcwd(), setup_args={"include_dirs": np.get_include()}, language_level=3)


def play(package: Any, name: str) -> None:
    """Play a wrapped environment on Serial and in processes, and let the package's policy answer the observations."""
    import pufferlib.vector

    creator = package.env_creator(name) if name else package.env_creator()
    for backend in (pufferlib.vector.Serial, pufferlib.vector.Multiprocessing):
        vecenv = pufferlib.vector.make(creator, num_envs=NUM_ENVS, num_workers=NUM_ENVS, backend=backend)
        shape = (vecenv.agents_per_batch, *vecenv.single_observation_space.shape)
        policy = getattr(package, "Policy", None)
        network = None if policy is None else policy(vecenv.driver_env)
        vecenv.async_reset(seed=1)
        for step in range(STEPS):
            observations, rewards, terminals, truncations, infos, agent_ids, masks = vecenv.recv()
            assert observations.shape == shape, (observations.shape, shape)
            assert observations.dtype == vecenv.single_observation_space.dtype
            assert len(rewards) == len(terminals) == len(truncations) == len(agent_ids) == len(masks) == shape[0]
            assert masks.any()
            assert isinstance(list(infos), list)
            if network is not None and step % 20 == 0:
                import torch

                outputs = network(torch.as_tensor(observations))
                assert len(outputs[1]) == shape[0]
            vecenv.send(vecenv.action_space.sample())
        vecenv.recv()
        vecenv.close()


if __name__ == "__main__":
    main()
