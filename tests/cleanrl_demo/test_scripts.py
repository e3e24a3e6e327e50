"""The scripts of cleanrl_demo: they are short, and run where only pufferlib, NumPy and torch are installed."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from limited_imports import TORCH, limited

from pufferlib.cli.training import ALGORITHMS

pytestmark = pytest.mark.beside

ROOT = Path(__file__).parents[2]
# Ray with the packages that it requires, and the folders of the modules that it carries.
RAY = (
    *("ray", "click", "jsonschema", "jsonschema_specifications", "referencing", "rpds", "attr", "attrs", "msgpack"),
    *("packaging", "google", "yaml", "requests", "urllib3", "certifi", "charset_normalizer", "idna"),
)
CARRIED = ("thirdparty_files", "_private/runtime_env/agent", "_private/runtime_env/agent/thirdparty_files")
DEPENDENCIES = ("gymnasium", "farama_notifications", "cloudpickle", "threadpoolctl", "tomli", "tomli_w")
FLAGS = {
    "ppo": "--backend pool --num-workers 2 --num-envs 4 --rollout-length 8 --total-steps 200",
    "ppo_lstm": "--env ocean/memory --backend serial --num-envs 4 --rollout-length 8 --total-steps 200",
    "ppo_selfplay": "--env ocean/multiagent --backend serial --num-envs 16 --rollout-length 8 --total-steps 200",
    "dqn": "--total-steps 300 --learning-starts 100 --no-keep-buffer --policy-kwargs hidden_size 16",
    "sac": "--total-steps 300 --learning-starts 100 --steps-per-update 8 --no-keep-buffer",
    "td3": "--total-steps 300 --learning-starts 100 --steps-per-update 8 --num-critics 1",
    "qmix": "--total-steps 300 --learning-starts 100 --mixer vdn --recurrent --sequence-length 2",
    "maddpg": "--total-steps 300 --learning-starts 100 --critic attention --num-critics 2",
    "ppo_cuda": "--env ocean/squared --device host --num-envs 8 --separate --rollout-length 8 --total-steps 200",
    "a2c_cuda": "--env ocean/squared --device host --num-envs auto --env-kwargs distance 2 --total-steps 200",
    "ppo_fused": "--device host --num-envs 8 --rollout-length 8 --total-steps 200",
    "appo_ray": "--num-actors 1 --num-envs 4 --rollout-length 8 --total-steps 200",
    "dqn_ray": "--num-actors 1 --num-envs 4 --rollout-length 8 --total-steps 300 --learning-starts 100",
}
OVER_RAY = ("appo_ray", "dqn_ray")
SOME = ("ppo", "dqn", "ppo_cuda")  # on workers, off policy, on a device
OTHERS = tuple(name for name in FLAGS if name not in (*SOME, *OVER_RAY))
MAIN = """
import importlib.util, json, runpy, sys

if __name__ == "__main__":  # not in workers, which may import this file
    for package in ("tensorboard", "rich", "tyro", "matplotlib", "scipy", "PIL", "pettingzoo"):
        assert importlib.util.find_spec(package) is None, package
    for name, flags in json.loads(sys.argv[1]).items():
        sys.argv = [name, *flags.split()]
        runpy.run_module(f"cleanrl_demo.{name}", run_name="__main__", alter_sys=True)
"""


def run_scripts(
    folder: Path, names: Sequence[str], packages: tuple[str, ...] = (), ours: tuple[str, ...] = (".",)
) -> dict[str, dict[str, Any]]:
    """Run scripts, one after another, where few packages are found; return the configuration of each run's folder."""
    (folder / "main.py").write_text(MAIN)
    flags = {name: f"{FLAGS[name]} --eval-episodes 4 --runs {folder}/runs" for name in names}
    env = limited(folder, (*TORCH, *DEPENDENCIES, *packages), ours)
    env["PYTHONPATH"] += f":{ROOT}"
    command = [sys.executable, str(folder / "main.py"), json.dumps(flags)]
    done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("fresh episodes, after") == len(names)
    assert done.stdout.count("no curves are stored, because tensorboard is not installed") == len(names)
    assert "tensorboard --logdir" not in done.stdout
    configs = {}
    for run in (folder / "runs").iterdir():
        assert {"config.json", "run.json", "checkpoint.pt", "policy.pt"} <= {path.name for path in run.iterdir()}
        algorithm = json.loads((run / "run.json").read_text())["algorithm"]
        configs[algorithm] = json.loads((run / "config.json").read_text())
    return configs


@pytest.mark.long
@pytest.mark.slow
def test_scripts_run_with_numpy_and_torch_alone(tmp_path: Path) -> None:
    configs = run_scripts(tmp_path, SOME)
    assert configs.keys() == set(SOME)
    assert configs["ppo"]["num_envs"] == 4 and configs["ppo"]["num_workers"] == 2
    assert configs["dqn"]["keep_buffer"] is False and configs["dqn"]["policy_kwargs"] == {"hidden_size": 16}
    assert configs["ppo_cuda"]["separate"] is True and configs["ppo_cuda"]["device"] == "cpu"


@pytest.mark.long
def test_so_do_the_others(tmp_path: Path) -> None:
    configs = run_scripts(tmp_path, OTHERS)
    assert configs.keys() == set(OTHERS)
    assert configs["sac"]["keep_buffer"] is False and configs["td3"]["num_critics"] == 1
    assert configs["qmix"]["mixer"] == "vdn" and configs["qmix"]["recurrent"] is True
    assert configs["maddpg"]["critic"] == "attention"
    assert configs["a2c_cuda"]["num_envs"] > 1 and configs["a2c_cuda"]["env_kwargs"] == {"distance": 2}


@pytest.mark.long
@pytest.mark.parametrize("name", OVER_RAY)
def test_scripts_with_actors_need_ray_besides(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "")
    installed = find_spec("ray")
    assert installed is not None and installed.submodule_search_locations is not None
    ray = installed.submodule_search_locations[0]
    configs = run_scripts(tmp_path, [name], RAY, (".", *(f"{ray}/{folder}" for folder in CARRIED)))
    assert configs[name]["num_actors"] == 1


def test_each_script_is_short_and_stands_in_the_order_of_cleanrl() -> None:
    """Arguments, agent, rollout, advantages, update, training."""
    assert FLAGS.keys() == set(ALGORITHMS)
    for name in ALGORITHMS:
        lines = (ROOT / f"cleanrl_demo/{name}.py").read_text(encoding="utf-8").splitlines()
        assert len(lines) < 400, name
        module = importlib.import_module(f"cleanrl_demo.{name}")
        parts = ("Config", "Learner", "Rollout", "advantages", "vtrace", "update", "learn", "train", "resume")
        defined = [
            line.split()[1].partition("(")[0].rstrip(":") for line in lines if line.startswith(("class ", "def "))
        ]
        order = [part for part in defined if part in parts]
        assert {"Config", "update", "train", "resume"} <= set(order) and hasattr(module, "learn"), name
        assert order == [part for part in parts if part in order], name
