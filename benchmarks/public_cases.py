"""Run programs and environment wrappers of PufferLib 1.0.1, 2.0.6 and 3.0.0, unchanged, on this project.

    python -m benchmarks.public_cases [CASE …] [--venv NAME]          three hours, with the installations

The programs come from the source distributions in the package index, and run from where these are unpacked: in
benchmarks/.venvs, which git ignores. Each is a process with a time limit. By default all run in two virtual
environments, with the versions of then (Gymnasium 0.29, NumPy 1.26) and of now. Writes
benchmarks/results/public_cases.json, in which cases that were not run keep their earlier results, and the table in
docs/pufferlib.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.lines import table_text
from benchmarks.pages import fill, table, write_page
from benchmarks.processes import send_signal
from benchmarks.revisions import version
from benchmarks.venvs import NotInstalled, ignored_folder, pufferlib_release, python_of

__all__ = ["CASES", "Case", "Result", "page_text", "read_results", "results_text", "run"]

ROOT = Path(__file__).parent.parent
RESULTS, PAGE = ROOT / "benchmarks" / "results" / "public_cases.json", ROOT / "docs" / "pufferlib.md"
LIMIT_S = 5400.0  # one program starts Ray for each of 108 environments
VENVS = {"programs-old": "Gymnasium 0.29, NumPy 1.26", "programs": "Gymnasium 1.4, NumPy 2.4"}
HOOK = """
import os, sys
from importlib.machinery import PathFinder

RELEASE = {release!r}

class Finder:
    \"\"\"Finds this project in place of the release, and in its environments those of the release first.\"\"\"

    def find_spec(self, name, path=None, target=None):
        if name == "pufferlib":
            return PathFinder.find_spec(name, [entry for entry in sys.path if os.path.abspath(entry) != RELEASE])
        if name != "pufferlib.environments":
            return None
        spec = PathFinder.find_spec(name, path)
        spec.submodule_search_locations.insert(0, os.path.join(RELEASE, "pufferlib", "environments"))
        return spec

sys.meta_path.insert(0, Finder())
"""  # it imports nothing else, as any process of the program runs it
RUNS, FAILS, NOT_INSTALLED = "runs", "fails", "cannot be installed"

# Packages that some cases need, and what pip installs for them, where both virtual environments lack it.
PACKAGES = {
    "Atari of old gym": ("ale-py==0.7.5",),  # there are wheels up to CPython 3.10
    "bsuite": ("bsuite==0.3.5",),
    "crafter": ("crafter==1.8.3",),
    "dm_control": ("dm-control==1.0.34",),
    "nle": ("nle==1.2.0",),
    "procgen": ("procgen==0.10.7",),
    "slimevolleygym": ("slimevolleygym==0.1.0",),
    "vizdoom": ("vizdoom==1.2.4",),
}


class Case(NamedTuple):
    """A program of a release. kind, path and arguments are those of public_case.py; needs: a key of PACKAGES.

    settings: files that the program reads from its folder and that the source distribution lacks, by path.
    """

    release: str
    kind: str
    path: str
    arguments: tuple[str, ...] = ()
    needs: str = ""
    settings: Mapping[str, str] = {}

    @property
    def name(self) -> str:
        """The release, the path, and what tells the case from others of this path."""
        return " ".join((self.release, self.path, *self.arguments)).strip()


def _wrappers(release: str, names: Sequence[str]) -> list[Case]:
    """Return a case for each ``package``, ``package:environment`` or ``package@needed`` in ``names``."""
    cases = []
    for text in names:
        text, _, needs = text.partition("@")
        package, _, name = text.partition(":")
        cases.append(Case(release, "wrapper", package, (name,) if name else ("",), needs))
    return cases


# The settings of a short training with the trainer of 2.0.6, whose source distribution has no settings.
DEMO = """
[base]
package = {package}
env_name = {name}
vec = multiprocessing
policy_name = Policy
rnn_name = {rnn}
max_suggestion_cost = 3600
[env]
[policy]
[rnn]
[train]
seed = 1
torch_deterministic = True
cpu_offload = False
device = 'cpu'
total_timesteps = 2048
learning_rate = 2.5e-4
anneal_lr = True
gamma = 0.99
gae_lambda = 0.95
update_epochs = 2
norm_adv = True
clip_coef = 0.1
clip_vloss = True
vf_coef = 0.5
vf_clip_coef = 0.1
max_grad_norm = 0.5
ent_coef = 0.01
target_kl = None
num_envs = 4
num_workers = 2
env_batch_size = 2
zero_copy = True
data_dir = 'experiments'
checkpoint_interval = 200
batch_size = 512
minibatch_size = 128
bptt_horizon = 16
compile = False
compile_mode = 'reduce-overhead'
"""


def _demo(package: str, name: str, rnn: str = "None") -> Case:
    settings = {"config/default.ini": "", "config/one.ini": DEMO.format(package=package, name=name, rnn=rnn)}
    return Case("2.0.6", "script", "demo.py", ("--env", name), settings=settings)


# The list was made before any of them was tried. Left out: what needs PufferLib's compiled environments, a GPU, a
# screen or an account; what imports modules that its own release lacks; and what does not use PufferLib.
CASES = [
    *(
        Case("3.0.0", "script", f"examples/{name}.py")
        for name in ("gym_env", "gymnasium_env", "pettingzoo_env", "puffer_env", "structured_env", "vectorization")
    ),
    *_wrappers(
        "3.0.0",
        [
            *("atari:breakout", "box2d", "butterfly", "classic_control:cartpole", "classic_control:mountaincar"),
            *("classic_control_continuous", "crafter@crafter", "dm_control@dm_control", "minigrid", "mujoco"),
            *("nethack@nle", "procgen:bigfish@procgen", "slimevolley@slimevolleygym", "vizdoom@vizdoom"),
        ],
    ),
    *(_demo("classic_control", "cartpole"), _demo("atari", "breakout", "Recurrent")),
    Case("2.0.6", "script", "atari_pool.py"),
    Case("2.0.6", "script", "cleanrl_ppo_atari.py", ("--total-timesteps=512", "--num-steps=32", "--no-cuda")),
    *_wrappers(
        "2.0.6",
        [
            *("atari:breakout", "box2d", "butterfly", "classic_control:cartpole", "classic_control:mountaincar"),
            *("classic_control_continuous", "crafter@crafter", "dm_control@dm_control", "minigrid", "mujoco"),
            *("vizdoom@vizdoom",),
        ],
    ),
    *(
        Case("1.0.1", "script", f"tests/{name}.py")
        for name in ("test", "test_api", "test_atari_reset", "test_import_performance", "test_namespace")
    ),
    Case("1.0.1", "script", "tests/test_record_emulation.py"),
    Case("1.0.1", "script", "tests/test_utils.py", needs="Atari of old gym"),
    Case("1.0.1", "functions", "tests/test_cleanrl_utils.py", ("test_sample_logits",)),
    Case("1.0.1", "pytest", "tests/test_pytorch.py"),
    *_wrappers(
        "1.0.1",
        [
            *("atari:BreakoutNoFrameskip-v4", "bsuite@bsuite", "butterfly", "classic_control", "crafter@crafter"),
            *("dm_control@dm_control", "minigrid", "vizdoom@vizdoom"),
            *("ocean:squared", "ocean:bandit", "ocean:memory", "ocean:password", "ocean:stochastic"),
            *("ocean:multiagent", "ocean:spaces", "ocean:performance", "ocean:performance_empiric"),
        ],
    ),
]


class Result(NamedTuple):
    """The outcome of a case. status: RUNS, FAILS or NOT_INSTALLED. reason: "" if it runs."""

    status: str
    reason: str = ""


def run(case: Case, python: Path | str, release: Path, limit_s: float = LIMIT_S) -> Result:
    """Run a case with a Python, in an empty folder. release: the unpacked source distribution."""
    driver = Path(__file__).with_name("public_case.py")
    command = [str(python), "-W", "ignore", str(driver), str(release), case.kind, case.path, *case.arguments]
    environment = {**os.environ, "PYTHONBREAKPOINT": "0", "SDL_VIDEODRIVER": "dummy", "MPLBACKEND": "agg"}
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as output:
        for path, text in case.settings.items():
            (Path(folder) / path).parent.mkdir(exist_ok=True)
            (Path(folder) / path).write_text(text)
        hook = Path(folder) / "hooks" / "sitecustomize.py"  # for processes that the program starts, too
        hook.parent.mkdir()
        hook.write_text(HOOK.format(release=str(release.absolute())))
        paths = [str(hook.parent), *filter(None, [environment.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            send_signal(process.pid, signal.SIGKILL)
            process.wait()
            return Result(FAILS, f"did not end within {limit_s:.0f} s")
        finally:
            send_signal(process.pid, signal.SIGKILL)  # what it left behind, in its process group
        if code == 0:
            return Result(RUNS)
        output.seek(0)
        return Result(FAILS, _reason(output.read(), code))


def _reason(output: str, code: int) -> str:
    """Return the last error in the output of a process."""
    plain = re.sub(r"\x1b\[[\d;]*m", "", output)  # without colors
    lines = [re.sub(r"^(E  |[│ ])+|[│ ]+$", "", line) for line in plain.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Exit|Usage|Deleted)\b.*", line)]
    return (errors or lines or [f"exit status {code}"])[-1][:200]


def _lacking(python: Path, package: str, again: bool) -> str:
    """Install a package of PACKAGES; return the reason why that is not possible, or ""."""
    note = python.parent.parent / "packages.json"
    tried = json.loads(note.read_text()) if note.exists() else {}
    if package not in tried or (tried[package] and again):
        pins = [f"{name}=={_version(python, name)}" for name in ("numpy", "gymnasium", "torch")]
        command = [str(python), "-m", "pip", "install", "--quiet", *PACKAGES[package], *pins]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=600)
            lines = [line for line in done.stderr.splitlines() if "error" in line.lower()] or [done.stderr[-200:]]
            tried[package] = lines[0].strip()[:200] if done.returncode else ""
        except subprocess.TimeoutExpired:
            tried[package] = "pip did not end within 600 s"
        note.write_text(json.dumps(tried))
    reason: str = tried[package]
    return reason


def _version(python: Path, name: str) -> str:
    code = f"import importlib.metadata as m; print(m.version({name!r}))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def read_results(path: Path) -> dict[str, Any]:
    """Return the stored results: the version, and by virtual environment and case, [status, reason]."""
    stored = json.loads(path.read_text()) if path.exists() else {}
    return {key: {name: row for name, *row in value} if key in VENVS else value for key, value in stored.items()}


def results_text(stored: Mapping[str, Any]) -> str:
    """Return results as JSON in one line."""
    return table_text(
        {
            key: [[name, *result] for name, result in value.items()] if key in VENVS else value
            for key, value in stored.items()
        }
    )


def page_text(stored: Mapping[str, Any]) -> str:
    """Return a sentence with the counts, and the table of all cases, as Markdown. A case runs if it does on either."""
    rows, counts = [], Counter[str]()
    for case in CASES:
        results = [stored.get(venv, {}).get(case.name, ["not tried", ""]) for venv in VENVS]
        rows.append((case.release, " ".join((case.path, *case.arguments)).strip(), *(_cell(*item) for item in results)))
        statuses = {venv: status for venv, (status, _) in zip(VENVS, results, strict=True)}
        counts += Counter(venv for venv, status in statuses.items() if status == RUNS)
        counts["tried"] += not {RUNS, FAILS}.isdisjoint(statuses.values())
        counts[RUNS] += RUNS in statuses.values()
    text = (
        f"{counts[RUNS]} of the {counts['tried']} cases whose packages can be installed run: "
        f"{' and '.join(f'{counts[venv]} on {title}' for venv, title in VENVS.items())} ({stored['version']})."
    )
    return text + "\n\n" + table(("release", "program or wrapper", *VENVS.values()), rows)


def _cell(status: str, reason: str) -> str:
    return status if not reason else f"{status}: {reason.replace('|', '/')}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="CASE", help="words of the names of cases; by default all")
    parser.add_argument("--venv", choices=VENVS, help="one of the virtual environments")
    parser.add_argument("--python", type=Path, help="run there instead, and write nothing")
    parser.add_argument("--again", action="store_true", help="try again what could not be installed")
    parser.add_argument("--limit", type=float, default=LIMIT_S, metavar="S")
    options = parser.parse_args()
    cases = [case for case in CASES if not options.names or any(name in case.name for name in options.names)]
    stored = read_results(RESULTS)
    stored["version"] = version()
    for venv in [options.venv] if options.venv else VENVS:
        try:
            python = options.python.absolute() if options.python else python_of(venv)
        except NotInstalled as error:
            sys.exit(f"{venv}: {error}")
        results = stored.setdefault(venv, {})
        for case in cases:
            release = pufferlib_release(case.release)
            lacking = _lacking(python, case.needs, options.again) if case.needs and not options.python else ""
            result = Result(NOT_INSTALLED, lacking) if lacking else run(case, python, release, options.limit)
            results[case.name] = list(result)
            print(f"{venv}: {case.name}: {_cell(*result)}", flush=True)
            if not options.python:
                RESULTS.write_text(results_text(stored))
        if options.python:
            return
    write_page(PAGE, fill(PAGE.read_text(), {"public_cases": page_text(stored)}))


if __name__ == "__main__":
    ignored_folder()
    main()
