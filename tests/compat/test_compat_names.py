"""Every public name of PufferLib 1.0.1, 2.0.6 and 3.0.0 is there, is refused, or is listed in docs/migrating.md.

names.json has the names, as record_names.py found them in the source distributions.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from compat_programs import Native, Team, one, team

import pufferlib
import pufferlib.utils
import pufferlib.vector
from pufferlib.util import compat_names

pytestmark = [pytest.mark.beside, pytest.mark.usefixtures("no_version")]

ROOT = Path(__file__).parents[2]
RECORD = json.loads(Path(__file__).with_name("names.json").read_text())
PAGE = (ROOT / "docs/migrating.md").read_text()

# Names that are not there, each of which docs/migrating.md lists with the reason; a module stands for all its names.
LISTED = {
    *(
        f"pufferlib.{name}"
        for name in (
            *("cleanrl_ppo_atari", "frameworks.rllib", "multi_env", "policy_ranker", "policy_store"),
            *("shared_memory", "sweep"),
        )
    ),
    *(
        f"pufferlib.pufferl.{name}"
        for name in ("ADVANTAGE_CUDA", "abbreviate", "dist_mean", "dist_sum", "duration", "fmt_perf")
    ),
    *(f"pufferlib.{name}" for name in ("link_to", "original_stderr", "original_stdout", "path")),
    "pufferlib.environment.ERROR",
    "pufferlib.pufferlib.ENV_ERROR",
    "pufferlib.pytorch.PolicyPool",
    *(f"pufferlib.utils.{name}" for name in ("check_env", "install_and_import", "install_requirements", "myprint")),
}

NEED_TORCH = {f"pufferlib.{name}" for name in ("cleanrl", "frameworks.cleanrl", "models", "pufferl", "pytorch")}
ENTRIES = [
    pytest.param(
        *(module, name),
        id=f"{version}-{module}.{name}",
        marks=[pytest.mark.extras] if module in NEED_TORCH else [],
    )
    for version, modules in RECORD.items()
    for module, names in modules.items()
    for name in names
]
# Instances, for members that a class of PufferLib defines and the instances of ours have.
INSTANCES = {
    "PettingZooPufferEnv": team,
    "PettingZooTruncatedWrapper": lambda: pufferlib.PettingZooTruncatedWrapper(Team()),
    "Profiler": lambda: pufferlib.utils.Profiler(),
    "PufferEnv": Native,
}


def listed_name(module: str, name: str) -> str | None:
    """Return the listed name that stands for a name: its module, itself or its class; None if there is none."""
    names = (module, f"{module}.{name}", f"{module}.{name.partition('.')[0]}")
    return next((entry for entry in names if entry in LISTED), None)


def require(module: str, name: str) -> None:
    """Raise AttributeError unless a module has a name, or its class or an instance of it has the member."""
    owner, _, member = name.partition(".")
    value = getattr(import_module(module), owner)
    if member and not hasattr(value, member):
        getattr(INSTANCES[owner](), member)


@pytest.mark.parametrize(("module", "name"), ENTRIES)
def test_a_public_name_is_there_or_refused_or_listed(module: str, name: str) -> None:
    listed = listed_name(module, name)
    if listed is not None:
        assert f"`{listed.rpartition('.')[2]}`" in PAGE
    elif (module, name.partition(".")[0]) in compat_names.REFUSED:
        pass  # see test_refused_names_say_what_to_use
    else:
        require(module, name)


def test_the_record_has_all_versions() -> None:
    assert [*RECORD] == ["1.0.1", "2.0.6", "3.0.0"]
    assert all("make" in modules["pufferlib.vector"] for modules in RECORD.values())


def test_refused_names_say_what_to_use() -> None:
    for (package, name), reason in compat_names.REFUSED.items():
        names: dict[str, Any] = {}
        exec(f"from {package} import {name}", names)
        with pytest.raises(pufferlib.CallError, match=re.escape(reason)):
            names[name](1, n=2)
        assert f"`{name}`" in PAGE


def test_names_at_the_top_are_those_of_their_modules() -> None:
    for package, name in compat_names.NAMES:
        if package != "pufferlib.models":  # which needs torch, and whose names are in the record
            assert getattr(import_module(package), name) is not None
    import pufferlib.pufferlib
    from pufferlib.exceptions import APIUsageError
    from pufferlib.postprocess import EpisodeStats

    assert pufferlib.APIUsageError is APIUsageError is pufferlib.pufferlib.APIUsageError
    assert pufferlib.EpisodeStats is EpisodeStats
    assert pufferlib.pufferlib.PufferEnv is pufferlib.PufferEnv


def test_modules_are_found_by_every_kind_of_import() -> None:
    code = """
import sys, pufferlib
assert not [name for name in sys.modules if name.startswith("pufferlib.compat")]
from pufferlib import vector
import pufferlib.vector as again, pufferlib.emulation, pufferlib.spaces
assert vector is again is pufferlib.vector is sys.modules["pufferlib.vector"]
assert vector.pufferlib.emulation.GymnasiumPufferEnv is vector.GymnasiumPufferEnv
import importlib.util
assert importlib.util.find_spec("pufferlib.pytorch") is not None
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.long
@pytest.mark.extras
def test_modules_are_attributes_without_their_import() -> None:
    code = "import pufferlib; print(pufferlib.models.Default, pufferlib.frameworks.cleanrl.Policy)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_files_that_pufferlib_left_are_not_used(tmp_path: Path) -> None:
    """PufferLib's vector.py and emulation.py, in the folder of an installation that ours was written over."""
    folder = tmp_path / "pufferlib"
    shutil.copytree(ROOT / "pufferlib", folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("vector", "pufferlib", "emulation"):
        (folder / f"{name}.py").write_text("raise ImportError('a file of PufferLib')\n")
    code = "import pufferlib.vector, pufferlib.pufferlib, pufferlib.emulation; print(pufferlib.__file__)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, check=True, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == str(folder / "__init__.py")


BUFFERS = "observations rewards terminals truncations masks actions"
ATTRIBUTES = {
    "env": "env observation_space action_space single_observation_space single_action_space num_agents initialized "
    "done is_obs_emulated is_atn_emulated obs_dtype atn_dtype is_observation_checked is_action_checked render_modes "
    f"render_mode obs_struct emulated buf obs {BUFFERS}",
    "team": f"env agents possible_agents num_agents done all_done mask emulated single_observation_space {BUFFERS}",
    "native": "emulated done driver_env agent_per_batch agent_ids observation_space action_space "
    f"single_observation_space single_action_space num_agents async_reset send recv reset step close render {BUFFERS}",
    "vecenv": "driver_env num_agents agents_per_batch num_envs single_observation_space single_action_space agent_ids "
    "observation_space action_space emulated initialized flag async_reset recv send reset step close notify",
    "serial": f"envs agents_per_env {BUFFERS}",
    "multiprocessing": "num_environments envs_per_worker num_workers workers_per_batch obs_batch_shape atn_batch_shape",
}


@pytest.mark.parametrize("kind", ["env", "team", "native"])
def test_attributes_of_environments(kind: str) -> None:
    env = {"env": one, "team": team, "native": Native}[kind]()
    if kind == "team":
        env.reset()
    assert [name for name in ATTRIBUTES[kind].split() if not hasattr(env, name)] == []


def test_attributes_of_vecenvs() -> None:
    with pufferlib.vector.make(one, num_envs=2, backend=pufferlib.vector.Serial) as vecenv:
        vecenv.reset()
        names = " ".join(ATTRIBUTES[kind] for kind in ("vecenv", "serial", "multiprocessing")).split()
        assert [name for name in names if not hasattr(vecenv, name)] == []


def test_internals_of_workers_are_listed() -> None:
    with pufferlib.vector.make(one, num_envs=2, backend=pufferlib.vector.Multiprocessing) as vecenv:
        for name in "processes shm buf waiting_workers ready_workers w_slice batch_mask".split():
            assert not hasattr(vecenv, name)
            assert f"`{name}`" in PAGE


def test_signatures_name_the_arguments_of_all_versions() -> None:
    arguments = {
        pufferlib.vector.make: "env_args env_kwargs backend num_envs seed",
        pufferlib.vector.Serial: "env_creators env_args env_kwargs num_envs buf seed",
        pufferlib.vector.Multiprocessing: "env_creators env_args env_kwargs num_envs num_workers batch_size zero_copy "
        "sync_traj overwork seed",
        pufferlib.vector.autotune: "env_creator batch_size max_envs model_forward_s max_env_ram_gb max_batch_vram_gb "
        "time_per_test",
        pufferlib.emulation.GymnasiumPufferEnv: "env env_creator env_args env_kwargs buf seed",
        pufferlib.emulation.PettingZooPufferEnv: "env env_creator env_args env_kwargs buf seed to_puffer",
    }
    for function, names in arguments.items():
        assert set(names.split()) <= {*inspect.signature(function).parameters}
