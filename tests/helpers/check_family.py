"""Plays a family of environments against its raw environments, and writes down what came of it.

    python tests/helpers/check_family.py NAME                   in an environment that has it; `make test-envs` does
    python tests/helpers/check_family.py NAME --keep-speeds     play it again, but keep the speeds that its file has
    python tests/helpers/check_family.py NAME --failed LOG      the family could not be installed: pip's log says why
    python tests/helpers/check_family.py --page                 write the table of docs/environments.md

Each family has a file in benchmarks/results/environments, from which the table is made. What is checked is what
test_real_envs.py checks, for the examples that the family's file names: at least 1,000 steps with ends of
episodes on serial and on pool with three environments, by the same oracle, that a second reset with a seed begins the
same again, and then the speed of both. Needs no pytest and no torch.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import platform
import re
import statistics
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "environments"
PAGE = ROOT / "docs" / "environments.md"
HEADER = "| family | environments | checked with | installs | emulated exactly | serial, steps/s | pool, steps/s |"
SEED = 7
NUM_ENVS = 3
NUM_STEPS = 1000
BACKENDS: dict[str, dict[str, Any]] = {
    "serial": {"num_envs": NUM_ENVS},
    "pool": {"num_envs": NUM_ENVS, "num_workers": 2, "batch_size": 2},
}
# Of what a process can have one of: one plays on serial, on pool each has a worker.
ALONE = {"serial": {"num_envs": 1}, "pool": {**BACKENDS["pool"], "num_workers": NUM_ENVS}}


def check(stem: str, keep_speeds: bool = False) -> dict[str, Any]:
    """Return the results of a family that is installed here.

    keep_speeds: copy the speeds, and the machine that they were measured on, from the family's file, for a machine that
    is busy. Where the file lacks an example's speed, all are measured.
    """
    from benchmarks.revisions import version
    from pufferlib import environments
    from pufferlib.tuning.bench import machine

    family = environments.families()[stem]
    before = json.loads((RESULTS / f"{stem}.json").read_text()) if keep_speeds else {}
    earlier = {entry["name"]: entry for entry in before.get("environments", ()) if "steps_per_s" in entry}
    if not all(example.name in earlier for example in family.examples):
        earlier = {}
    measured = {"machine": machine(), "revision": version()}
    if earlier:
        measured = {key: before[key] for key in measured if key in before}
    return {
        "family": stem,
        "extra": family.extra,
        "names": list(family.names),
        "installs": True,
        "python": platform.python_version(),
        **measured,
        "packages": packages(family.extra),
        "environments": [checked(example, earlier.get(example.name)) for example in family.examples],
    }


def alone(example: Any) -> bool:
    """Return whether a process can have no more than one of an example's environments."""
    from pufferlib import environments

    match = environments.family_of(example.name)
    return match is not None and match[1].alone


def packages(extra: str) -> dict[str, str]:
    """Return the versions of what the extra asks for, and of what they all share."""
    versions = {}
    for name in ["gymnasium", "numpy", *re.findall(r"[\"']([A-Za-z0-9_.-]+)", extras()[extra])]:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def extras() -> dict[str, str]:
    """Return the extras of pyproject.toml, each as it is written."""
    text = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    return dict(re.findall(r"^([\w-]+) = (\[.*?\])(?:  #[^\n]*)?$", text, re.MULTILINE | re.DOTALL))


def checked(example: Any, before: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the results of one environment: whether its rows are the raw one's, and how fast it is.

    before: earlier results, whose speeds are kept; None: measure them.
    """
    result: dict[str, Any] = {"name": example.name, "env_kwargs": dict(example.env_kwargs), "exact": False}
    try:
        result |= compared(example)
        result |= measured(example) if before is None else {key: before[key] for key in ("steps_per_s", "pool_plan")}
    except Exception as error:
        traceback.print_exc()
        where = traceback.extract_tb(error.__traceback__)[-1]
        message = str(error).strip() or f"{where.line} ({Path(where.filename).name}, line {where.lineno})"
        result["error"] = f"{type(error).__name__}: {message}"[:500]
    return result


def measured(example: Any) -> dict[str, Any]:
    """Return how many steps an environment makes a second on each backend, and the plan of the pool."""
    from pufferlib.tuning.bench import compare_backends

    rounds: list[dict[str, Any]] = [{"backends": tuple(BACKENDS), "num_envs": 8}]
    if alone(example):
        rounds = [{"backends": ["serial"], "num_envs": 1}, {"backends": ["pool"], "num_envs": 8, "num_workers": 8}]
    speeds = [
        speed
        for plan in rounds
        for speed in compare_backends(example.name, seconds=0.5, repeats=5, env_kwargs=example.env_kwargs, **plan)
    ]
    return {
        "steps_per_s": {entry.backend: round(statistics.median(entry.steps_per_s), 1) for entry in speeds},
        "pool_plan": {"num_envs": 8, "num_workers": speeds[1].num_workers, "batch_size": speeds[1].batch_size},
    }


def compared(example: Any, num_steps: int = NUM_STEPS) -> dict[str, Any]:
    """Play an environment on both backends and return its rows' form.

    Raises AssertionError where a row differs, and where no episode ended.
    """
    from comparison import compare
    from oracles import Tape
    from subprocess_env import SubprocessEnv

    import pufferlib
    from pufferlib.emulation.pettingzoo_rows import as_parallel
    from pufferlib.registry import creator
    from pufferlib.vectorization.core.plan import Seeds

    env_creator, seeds = creator(example.name), Seeds(SEED, NUM_ENVS)
    steps = {}
    with contextlib.ExitStack() as stack:
        tapes = []
        for env_id in range(NUM_ENVS):
            raw = (
                SubprocessEnv(env_creator, **example.env_kwargs)
                if alone(example)
                else env_creator(**example.env_kwargs)
            )
            tapes.append(Tape(as_parallel(raw) if hasattr(raw, "possible_agents") else raw, seeds[env_id]))
            stack.callback(tapes[-1].close)
        for backend, plan in (ALONE if alone(example) else BACKENDS).items():
            num_envs = plan["num_envs"]
            num_moments = num_steps // num_envs
            while sum(tape.steps(num_moments) for tape in tapes[:num_envs]) < num_steps:
                num_moments += 1
            with pufferlib.make(example.name, backend=backend, seed=SEED, env_kwargs=example.env_kwargs, **plan) as vec:
                events = compare(vec, tapes[:num_envs], num_moments, timeout=300)
                report = {
                    "agents": vec.agents_per_env,
                    "observations": str(vec.single_observation_space),
                    "actions": str(vec.single_action_space),
                }
            steps[backend] = {"steps": events["steps"], "episodes": events["resets"] - num_envs}
            assert events["steps"] >= num_steps
            assert steps[backend]["episodes"] > 0, f"no episode ended in {events['steps']} steps on {backend}"
        assert tapes[0].repeats(num_steps // 10), "a second reset with the same seed begins something else"
    return {**report, "compared": steps, "exact": True}


def failed(stem: str, log: str) -> dict[str, Any]:
    """Return what is to be said of a family that could not be installed. Imports nothing of ours: there may be none."""
    text = Path(log).read_text() if Path(log).exists() else ""
    reasons = [line.strip() for line in text.splitlines() if re.match(r"\s*(ERROR:|\w*Error:)", line)]
    return {"family": stem, "installs": False, "reason": (reasons or ["pip could not install it"])[-1][:300]}


# ------------------------------------------------------------------------------------------------------- the table


def table() -> str:
    """Return the table of all families, made of what their files say."""
    from pufferlib import environments

    lines = [HEADER, "| --- | --- | --- | --- | --- | --- | --- |"]
    for stem, family in environments.families().items():
        names = ", ".join(f"`{name.replace('*', '…')}`" for name in family.names)
        file = RESULTS / f"{stem}.json"
        results: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"installs": None}
        if not results["installs"]:
            why = "not tried yet" if results["installs"] is None else f"no: {results['reason']}"
            lines.append(f"| `{family.extra}` | {names} |  | {why.replace('|', '/')} |  |  |  |")
        for number, entry in enumerate(results.get("environments", ())):
            first = (f"`{family.extra}`", names, f"yes, Python {results['python'].rpartition('.')[0]}")
            family_column, names_column, installs = first if number == 0 else ("", "", "")
            exact = "yes" if entry["exact"] else f"no: {entry['error']}".replace("|", "/").replace("\n", " ")
            speeds = [f"{entry['steps_per_s'][name]:,.0f}" if "steps_per_s" in entry else "" for name in BACKENDS]
            cells = (family_column, names_column, f"`{entry['name']}`", installs, exact, *speeds)
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def with_table(page: str) -> str:
    """Return the page with the table in place of the one that it has."""
    before, _, rest = page.partition(HEADER)
    return before + table() + rest[rest.index("\n\n") + 1 :]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("family", nargs="?", metavar="NAME", help="a file of pufferlib/environments, without .py")
    parser.add_argument("--keep-speeds", action="store_true", help="keep the speeds that the family's file has")
    parser.add_argument("--failed", metavar="LOG", help="it could not be installed; pip's log")
    parser.add_argument("--page", action="store_true", help="write the table of docs/environments.md")
    options = parser.parse_args()
    if options.page:
        from benchmarks.pages import write_page

        write_page(PAGE, with_table(PAGE.read_text()))
    if options.family is None:
        return 0
    for name, value in (("SDL_VIDEODRIVER", "dummy"), ("SDL_AUDIODRIVER", "dummy"), ("MUJOCO_GL", "disable")):
        os.environ.setdefault(name, value)
    warnings.simplefilter("ignore")
    results = failed(options.family, options.failed) if options.failed else check(options.family, options.keep_speeds)
    from benchmarks.lines import table_text

    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{options.family}.json").write_text(table_text(dict(sorted(results.items()))))
    for entry in results.get("environments", ()):
        print(entry["name"], "exact" if entry["exact"] else "", entry.get("error") or entry["steps_per_s"], flush=True)
    return 0 if results["installs"] and not any("error" in entry for entry in results["environments"]) else 1


if __name__ == "__main__":
    sys.exit(main())
