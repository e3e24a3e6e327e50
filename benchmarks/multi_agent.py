"""Train teams and rivals with this project's algorithms for several agents, and compare them with one another.

    python -m benchmarks.multi_agent [--only two-step …] [--seeds 1 2 3] [--jobs 2] [--short] [--page]

QMIX, VDN and IQL play the two-step game of QMIX's paper and level-based foraging; MADDPG and independent DDPG the seven
MPE scenarios that MALib names; MADDPG with the critic of MAAC, MAPPO, and PPO without the state, simple_spread. In
scenarios with two sides, each side that MADDPG has trained also plays against the other side that DDPG has trained, and
the other way round, in all pairs of seeds. BenchMARL's own MADDPG, with its own settings, plays spread and
speaker-listener with continuous actions in a virtual environment of its own. A step is one of an environment. After
training, a policy plays EPISODES fresh episodes with its best actions; returns are sums over agents.

Runs go side by side (``--jobs``), each on one thread. Those that the results hold already, with the same settings, are
skipped, and a run that was stopped goes on from its newest file, so the program can be stopped and started again. All
take about 40 hours of one core, most of it BenchMARL's. --short tries everything but BenchMARL with few steps, and
stores nothing. Writes benchmarks/results/multi_agent.json after each run, then the tables of docs/multi_agent.md;
--page writes only these.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from threadpoolctl import threadpool_limits

import pufferlib
from benchmarks.lines import by_task, table_text, ungrouped
from benchmarks.multi_agent_tables import PAGE, sections
from benchmarks.pages import fill, write_page
from benchmarks.revisions import version
from benchmarks.venvs import NotInstalled, ignored_folder, python_of
from pufferlib.models.files import SavedPolicy, read_policy
from pufferlib.training.checkpoints import FILE, NEWEST
from pufferlib.training.settings import family_settings
from pufferlib.tuning.bench import machine
from pufferlib.util.files import written_whole

__all__ = ["RESULT", "TASKS", "Task", "cross_play", "measure", "settings_of", "store", "stored"]

FOLDER = Path(__file__).parent
RESULT = FOLDER / "results" / "multi_agent.json"
EPISODES = 1_000
SEEDS = (1, 2, 3)
BENCHMARL = "benchmarl"
KEYS = {"runs": ("task", "algorithm", "seed"), "pairings": ("task", "first", "second")}  # of the results' entries


@dataclass(frozen=True)
class Task:
    """An environment and the algorithms that learn it.

    num_agents: of the environment. steps: of the environment, in training. trainers: by algorithm, the name of the
    trainer, None for BenchMARL's, and its settings; they are added to those of ``settings_of``. num_opponents: of two
    sides, the number of agents of the first; 0 if there is one side.
    """

    env: str
    num_agents: int
    steps: int
    trainers: Mapping[str, tuple[str | None, Mapping[str, Any]]]
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    num_opponents: int = 0
    seeds: Sequence[int] = SEEDS


def _mixers(**settings: Any) -> dict[str, tuple[str, dict[str, Any]]]:
    return {mixer: ("qmix", {"mixer": mixer, **settings}) for mixer in ("qmix", "vdn", "iql")}


CRITICS = {"maddpg": ("maddpg", {}), "ddpg": ("maddpg", {"critic": "own"})}
BOXES = {"maddpg": CRITICS["maddpg"], BENCHMARL: (None, {})}
CONTINUOUS = {"continuous_actions": True}
MILLION = 1_000_000
TASKS = {
    "two-step": Task(
        "benchmarks.team_games:TwoStep",
        2,
        4_000,
        _mixers(
            num_envs=32, learning_starts=200, learning_rate=5e-3, target_period=30, end_epsilon=1.0,
            wrap_kwargs={"state": True}, policy_kwargs={"hidden_size": 32},
        ),
        seeds=(1, 2, 3, 4, 5),
    ),
    "simple": Task("mpe/simple_v3", 1, MILLION, CRITICS),
    "spread": Task(
        "mpe/simple_spread_v3", 3, MILLION, {**CRITICS, "attention": ("maddpg", {"critic": "attention"})}
    ),
    "speaker-listener": Task("mpe/simple_speaker_listener_v4", 2, MILLION, CRITICS),
    "adversary": Task("mpe/simple_adversary_v3", 3, MILLION, CRITICS, num_opponents=1),
    "push": Task("mpe/simple_push_v3", 2, MILLION, CRITICS, num_opponents=1),
    "tag": Task("mpe/simple_tag_v3", 4, MILLION, CRITICS, num_opponents=3),
    "crypto": Task("mpe/simple_crypto_v3", 3, MILLION, CRITICS, num_opponents=1),
    "spread-continuous": Task("mpe/simple_spread_v3", 3, MILLION, BOXES, CONTINUOUS),
    "speaker-listener-continuous": Task("mpe/simple_speaker_listener_v4", 2, MILLION, BOXES, CONTINUOUS),
    "foraging": Task(
        "Foraging-8x8-2p-2f-coop-v3",
        2,
        2 * MILLION,
        _mixers(),  # with the family's settings
        {"agents": True},
    ),
    "spread-ppo": Task(
        "mpe/simple_spread_v3",
        3,
        2 * MILLION,
        {"mappo": ("ppo", {"policy": "central", "wrap_kwargs": {"state": True}}), "ppo": ("ppo", {})},
    ),
}  # fmt: skip
SHORT = {
    "qmix": {"learning_starts": 64, "num_envs": 8},
    "maddpg": {"learning_starts": 64, "steps_per_update": 64, "minibatch_size": 32},
    "ppo": {"num_envs": 4},
}


def settings_of(name: str, algorithm: str) -> dict[str, Any]:
    """Return the settings of one of our trainers for a task, except the seed. One of its steps is one of an agent."""
    task = TASKS[name]
    trainer, settings = task.trainers[algorithm]
    common: dict[str, Any] = {"env": task.env, "env_kwargs": dict(task.env_kwargs), "backend": "serial"}
    common["total_steps"] = task.steps * task.num_agents
    if trainer == "maddpg":  # as its authors: an update in 100 steps of the environment, after 1,024 episodes of 25
        common |= {"steps_per_update": 100 * task.num_agents, "learning_starts": 25_600 * task.num_agents}
        common |= {"buffer_size": MILLION * task.num_agents}
    of_family = family_settings(task.env, import_module(f"cleanrl_demo.{trainer}").Config)[1]
    return {**of_family, **common, **settings}


def measure(name: str, algorithm: str, seed: int, folder: str | Path, short: bool = False) -> dict[str, Any]:
    """Train on a task, and return what is stored of it. The policy is stored in a folder, as ``policy_path`` says.

    A run of the same settings that was stopped goes on from its newest file, which lies in this folder, too.
    """
    with threadpool_limits(1):
        torch.set_num_threads(1)
        task, began = TASKS[name], time.perf_counter()
        trainer_name = task.trainers[algorithm][0]
        if trainer_name is None:
            outcome = train_benchmarl(task, seed, Path(folder) / f"{name}-{algorithm}-{seed}")
            return {"task": name, "algorithm": algorithm, "seed": seed, **outcome, "settings": {"steps": task.steps}}
        settings, trainer = settings_of(name, algorithm), import_module(f"cleanrl_demo.{trainer_name}")
        if short:
            settings = {**settings, "total_steps": 400 * task.num_agents, **SHORT[trainer_name]}
        runs = Path(folder) / f"{name}-{algorithm}-{seed}"
        fixed = {"eval_episodes": 1, "checkpoint_every": None, "checkpoint_minutes": 0.0 if short else 10.0}
        result = trained(trainer, trainer.Config(**{**settings, **fixed}, seed=seed, runs=str(runs)))
        path = policy_path(folder, name, algorithm, seed)
        shutil.copyfile(result.run_folder / "policy.pt", path)
        shutil.rmtree(runs)
        episodes = 4 if short else EPISODES
        returns = play(task, read_policy(path, env=task.env, trust=True), episodes, seed)
        outcome = {"mean_return": round(sum(returns), 3), "agent_returns": returns}
        outcome |= {"seconds": round(time.perf_counter() - began, 1)}
        return {"task": name, "algorithm": algorithm, "seed": seed, **outcome, "settings": settings}


def trained(trainer: Any, config: Any) -> Any:
    """Return the result of a run: of one that was stopped in ``config.runs`` with these settings, or of a new one."""
    wanted = json.loads(json.dumps(vars(config)))
    for file in Path(config.runs).glob("*/config.json"):
        checkpoints = [path for path in (file.with_name(NEWEST), file.with_name(FILE)) if path.exists()]
        if checkpoints and json.loads(file.read_text()) == wanted:
            return trainer.resume(checkpoints[0], trust=True)[1]
    shutil.rmtree(config.runs, ignore_errors=True)
    return trainer.train(config)


def train_benchmarl(task: Task, seed: int, runs: Path) -> dict[str, Any]:
    """Train BenchMARL's MADDPG in its virtual environment, and return its outcome. Raises NotInstalled.

    runs: the folder of its checkpoints, from which a run that was stopped goes on.
    """
    module = task.env.partition("/")[2]
    arguments = {"module": module, "env_kwargs": dict(task.env_kwargs), "steps": task.steps, "seed": seed}
    arguments |= {"episodes": EPISODES, "changes": {}, "folder": str(runs)}
    program = FOLDER / "trainers" / "benchmarl_maddpg.py"
    python = python_of(BENCHMARL)
    runs.mkdir(exist_ok=True)
    done = subprocess.run([python, program, json.dumps(arguments)], cwd=runs, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"BenchMARL: {done.stderr[-2000:]}")
    outcome: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    shutil.rmtree(runs)
    return outcome


def play(task: Task, policy: Any, episodes: int, seed: int) -> list[float]:
    """Return each agent's mean return over fresh episodes."""
    result = pufferlib.evaluate(
        task.env, policy, episodes=episodes, greedy=True, backend="serial", seed=10_000 + seed,
        env_kwargs=task.env_kwargs, fresh="never",
    )  # fmt: skip
    return [round(float(value), 3) for value in result.agent_returns.mean(0)]


def policy_path(folder: str | Path, name: str, algorithm: str, seed: int) -> Path:
    """Return where a trained policy is stored."""
    return Path(folder) / f"{name}-{algorithm}-{seed}.pt"


def joined(first: SavedPolicy, second: SavedPolicy, num_opponents: int) -> SavedPolicy:
    """Return a policy of MADDPG whose first agents have the actors of ``first``, and the others those of ``second``."""
    weights = {
        name: torch.cat([part[:num_opponents], second.weights[name][num_opponents:]])
        if name.startswith("layers.")
        else part
        for name, part in first.weights.items()
    }
    return replace(first, weights=weights)


def cross_play(
    name: str, first: Sequence[Any], second: Sequence[Any], folder: str | Path, episodes: int = EPISODES
) -> dict[str, Any]:
    """Play the first side of one training against the second side of another; return what is stored of it.

    first, second: (algorithm, seed), of trainings whose policies are in the folder.
    """
    with threadpool_limits(1):
        torch.set_num_threads(1)
        task = TASKS[name]
        policies = [read_policy(policy_path(folder, name, *side), env=task.env, trust=True) for side in (first, second)]
        returns = play(task, joined(*policies, task.num_opponents), episodes, 0)
        sides = [round(sum(part), 3) for part in (returns[: task.num_opponents], returns[task.num_opponents :])]
        return {"task": name, "first": list(first), "second": list(second), "returns": sides}


def missing_runs(
    results: Mapping[str, Any], names: Iterable[str], seeds: Sequence[int] | None = None
) -> list[tuple[Any, ...]]:
    """Return (task, algorithm, seed) of the trainings that the results do not hold yet with the same settings."""
    stored = {(run["task"], run["algorithm"], run["seed"]): run["settings"] for run in results["runs"]}
    missing = []
    for name in names:
        for seed in seeds or TASKS[name].seeds:
            for algorithm, (trainer, _) in TASKS[name].trainers.items():
                settings = {"steps": TASKS[name].steps} if trainer is None else settings_of(name, algorithm)
                if stored.get((name, algorithm, seed)) != json.loads(json.dumps(settings)):
                    missing.append((name, algorithm, seed))
    return missing


def missing_pairings(results: Mapping[str, Any], names: Iterable[str], folder: Path) -> list[tuple[Any, ...]]:
    """Return (task, first, second) of the pairings of stored policies that the results do not hold yet."""
    stored = [(item["task"], item["first"], item["second"]) for item in results["pairings"]]
    missing = []
    for name in names:
        if not TASKS[name].num_opponents:
            continue
        seeds = sorted({run["seed"] for run in results["runs"] if run["task"] == name})
        for algorithms in (("maddpg", "ddpg"), ("ddpg", "maddpg")):
            for pair in ([[algorithms[0], one], [algorithms[1], other]] for one in seeds for other in seeds):
                there = all(policy_path(folder, name, *side).exists() for side in pair)
                if there and (name, *pair) not in stored:
                    missing.append((name, *pair))
    return missing


def run_missing(results: dict[str, Any], names: Sequence[str], seeds: Sequence[int] | None, jobs: int) -> None:
    """Train and play what the results do not hold yet, side by side, and store each result as it comes."""
    folder = ignored_folder() / "multi_agent"
    folder.mkdir(exist_ok=True)
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        runs = {pool.submit(measure, *key, folder): key for key in missing_runs(results, names, seeds)}
        for name, algorithm, seed in runs.values():  # pairings of an older policy do not count any more
            results["pairings"] = [
                item
                for item in results["pairings"]
                if item["task"] != name or [algorithm, seed] not in (item["first"], item["second"])
            ]
        complete(results, "runs", runs)
        pairs = missing_pairings(results, names, folder)
        complete(results, "pairings", {pool.submit(cross_play, *pair, folder): pair for pair in pairs})


def complete(results: dict[str, Any], table: str, futures: Mapping[Future[Any], tuple[Any, ...]]) -> None:
    """Store the entries of a table as they come, in place of those of the same task and policies."""
    for future in as_completed(futures):
        try:
            entry = {**future.result(), **facts()}
        except NotInstalled as error:
            print(f"{futures[future]} is left out: {error}", flush=True)
            continue
        others = [item for item in results[table] if any(item[key] != entry[key] for key in KEYS[table])]
        results[table] = [*others, entry]
        store(results)
        print(*futures[future], entry.get("mean_return", entry.get("returns")), flush=True)


def try_out(names: Sequence[str]) -> None:
    """Train and play everything but BenchMARL with few steps and two seeds; print the tables."""
    results: dict[str, Any] = {"runs": [], "pairings": []}
    with TemporaryDirectory() as folder:
        for name in names:
            for algorithm, (trainer, _) in TASKS[name].trainers.items():
                if trainer is not None:
                    results["runs"] += [measure(name, algorithm, seed, folder, True) for seed in (1, 2)]
        pairs = missing_pairings(results, names, Path(folder))
        results["pairings"] = [cross_play(*pair, folder, 2) for pair in pairs]
    print(*sections(results).values(), sep="\n\n")


def facts() -> dict[str, Any]:
    """Return the circumstances of a measurement."""
    load = round(os.getloadavg()[0], 1)
    return {"machine": machine(), "revision": version(), "date": time.strftime("%Y-%m-%d"), "load": load}


def store(results: Mapping[str, Any]) -> None:
    """Write the results, in the order of the tasks, with a line for each task."""
    order = list(TASKS)
    tables = {
        key: by_task(sorted(items, key=lambda item: (order.index(item["task"]), json.dumps(item))))
        for key, items in results.items()
    }
    with written_whole(RESULT) as part:
        part.write_text(table_text(tables))


def stored() -> dict[str, Any]:
    """Return the results that ``store`` wrote; without a file, empty ones."""
    tables = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    return {key: ungrouped(tables.get(key, {})) for key in KEYS}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--seeds", type=int, nargs="+", help="default: those of the task")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs side by side; default: one a core")
    parser.add_argument("--short", action="store_true", help="try the program with few steps, and store nothing")
    parser.add_argument("--page", action="store_true", help="only write the tables")
    options = parser.parse_args()
    if options.short:
        try_out(options.only)
        return
    results = stored()
    if not options.page:
        run_missing(results, options.only, options.seeds, options.jobs)
    texts = sections(results)
    write_page(PAGE, fill(PAGE.read_text(), texts))
    print(*texts.values(), sep="\n\n")


if __name__ == "__main__":
    main()
