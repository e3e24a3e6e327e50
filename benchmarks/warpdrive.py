"""Measure WarpDrive's Tag on the same device and in the same sizes as ours; benchmarks.gpu runs this if it can.

    pip install --no-deps rl-warp-drive gym && pip install numba pyyaml
    python -m benchmarks.gpu

It uses rl-warp-drive 2.7.1 with its numba backend and its examples TagGridWorld and TagContinuous. A step consists of
the calls of its trainer, ``step_all_envs`` and ``reset_only_done_envs``. Actions lie on the device, drawn at random
once, like ours. Its rules differ from ours in details (cuda_ext/references); its work is the same.

It runs in its own process: a kernel that fails destroys everything that its process has on the device.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib import metadata
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from benchmarks.gpu import Case, Figure, figure, timed

__all__ = ["environment", "figures_of", "why_not", "wrapped"]

NEEDED = {"warp_drive": "rl-warp-drive", "gym": "gym", "numba": "numba", "yaml": "pyyaml"}  # module: package
MOST_SCRATCH_NBYTES = 2**31  # made on the host first, a copy of each array per environment


def why_not(device: torch.device) -> str:
    """Return the reason why WarpDrive cannot be measured here, "" if it can."""
    if device.type != "cuda":
        return "it needs a CUDA device, and this is the host"
    lacking = [package for module, package in NEEDED.items() if find_spec(module) is None]
    return f"not installed: {', '.join(lacking)} (see benchmarks/warpdrive.py)" if lacking else ""


def figures_of(
    cases: Sequence[Case], settings: dict[str, Any], device: torch.device
) -> tuple[list[dict[str, Any]], str]:
    """Return the figures of the cases that fit into ``settings["warpdrive_s"]``, and a summary of the run."""
    reason = why_not(device)
    if reason:
        return [], f"left out: {reason}"
    request = json.dumps({"cases": [asdict(case) for case in cases], "settings": settings, "device": str(device)})
    command = [sys.executable, "-B", "-m", "benchmarks.warpdrive"]
    with tempfile.TemporaryFile("w+") as out:
        start_s = time.perf_counter()
        try:
            status = subprocess.run(
                command, input=request, stdout=out, text=True, timeout=settings["warpdrive_s"]
            ).returncode
            end = f"; it ended with {status}" if status else ""
        except subprocess.TimeoutExpired:
            end = "; then its time was up"
        seconds = time.perf_counter() - start_s
        out.seek(0)
        lines = [
            json.loads(line) for line in out if line.startswith("{") and line.endswith("}\n")
        ]  # it prints other lines, too
    figures = [line for line in lines if "way" in line]
    failures = "".join(f"; {line['failed']}" for line in lines if "failed" in line)
    version = metadata.version("rl-warp-drive")
    return figures, f"{version}: {len(figures)} of {len(cases)} cases in {seconds:.0f} s{failures}{end}"


def environment(case: Case) -> Any:
    """Return WarpDrive's environment for a case."""
    if case.env == "tag/grid":
        from example_envs.tag_gridworld.tag_gridworld import CUDATagGridWorld

        options = dict(case.env_kwargs)
        return CUDATagGridWorld(use_full_observation=options.pop("full_observation"), **options)
    from example_envs.tag_continuous.tag_continuous import TagContinuous

    options = dict(case.env_kwargs)
    full, num_nearest = options.pop("full_observation"), options.pop("num_nearest")
    return TagContinuous(use_full_observation=full, num_other_agents_observed=num_nearest, seed=None, **options)


def wrapped(case: Case) -> Any:
    """Return the case's environments on the device, reset, with random actions."""
    from warp_drive.env_wrapper import EnvWrapper
    from warp_drive.training.utils.data_loader import create_and_push_data_placeholders

    # It writes the numbers of environments and agents into modules that are imported only once.
    for name in list(sys.modules):
        if name.startswith("warp_drive.numba_includes.") or name.endswith("_step_numba"):
            del sys.modules[name]
    wrapper = EnvWrapper(environment(case), num_envs=case.num_envs, env_backend="numba")
    wrapper.reset_all_envs()
    # All environments start alike, so one reset in Python serves for all.
    first = wrapper.obs_at_reset()
    wrapper.obs_at_reset = lambda: first
    create_and_push_data_placeholders(wrapper, push_data_batch_placeholders=False)
    actions = wrapper.cuda_data_manager.data_on_device_via_torch("sampled_actions")  # (envs, agents, 1 or 2)
    space = wrapper.env.action_space[0]
    drawn = np.random.default_rng(1).integers(0, getattr(space, "nvec", [getattr(space, "n", 0)]), actions.shape)
    actions.copy_(torch.from_numpy(drawn))
    return wrapper


def _measured(case: Case, settings: dict[str, Any], device: torch.device) -> Figure:
    wrapper = wrapped(case)

    def step() -> int:
        wrapper.step_all_envs()
        wrapper.reset_only_done_envs()
        return 1

    return figure(case, "warpdrive", timed(step, settings, device))


def _scratch_nbytes(case: Case) -> int:
    """Return the bytes that TagContinuous uses for distances: two arrays of all pairs, 4 bytes each."""
    return 8 * case.num_envs * case.num_agents * (case.num_agents - 1) if case.env == "tag/continuous" else 0


def main() -> None:
    request = json.load(sys.stdin)
    settings, device = request["settings"], torch.device(request["device"])
    import numba.cuda

    if not hasattr(np, "row_stack"):  # NumPy 2.5 has removed it, and WarpDrive 2.7.1 calls it
        np.row_stack = np.vstack  # type: ignore[attr-defined]
    torch.cuda.set_device(device)
    numba.cuda.select_device(device.index or 0)
    logging.getLogger().setLevel(logging.ERROR)
    for case in (Case(**fields) for fields in request["cases"]):
        if _scratch_nbytes(case) > MOST_SCRATCH_NBYTES:
            print(
                json.dumps({"failed": f"{case.text} left out for {_scratch_nbytes(case):,} bytes of pairs"}), flush=True
            )
            continue
        try:
            print(json.dumps(asdict(_measured(case, settings, device))), flush=True)
        except Exception as error:  # an unmaintained package may raise anything
            message = str(error).strip().splitlines() or [""]
            print(json.dumps({"failed": f"{case.text}: {type(error).__name__}: {message[-1]}"}), flush=True)


if __name__ == "__main__":
    main()
