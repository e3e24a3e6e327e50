"""The shape of the code (docs/design.md, section 7): imports point down; `import pufferlib` is light and silent."""

from __future__ import annotations

import ast
import functools
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.beside

ROOT = Path(__file__).parents[2]
PACKAGES = ("pufferlib", "ocean", "cuda_ext", "cleanrl_demo")

# A module may import from its own room and from the rooms above it in this list. A room is a folder, or a single file.
LAYERS = [
    {"pufferlib.version", "pufferlib.errors", "pufferlib.util", "pufferlib._native"},
    # Old places of modules, which go with the next release (pufferlib/util/renamed.py).
    {"pufferlib.philox", "pufferlib.plans", "pufferlib.toml", "pufferlib.vectorization.stats"},
    {"pufferlib.layout"},
    {"pufferlib.environments"},
    {"pufferlib.environment", "pufferlib.registry"},
    {"pufferlib.emulation"},
    {"pufferlib.telemetry"},
    {"pufferlib.vectorization.core"},
    {"pufferlib.vectorization.worker"},
    {"pufferlib.vectorization.driver"},
    {"pufferlib.vectorization.processes"},
    {"pufferlib.vectorization.device", "pufferlib.vectorization.serial"},
    {"pufferlib.vectorization.ray"},
    {"pufferlib.vectorization"},  # its __init__.py
    {"pufferlib.construct"},
    {"pufferlib.evaluation", "pufferlib.tuning"},
    {"pufferlib"},  # its __init__.py
    {"pufferlib.models"},
    {"pufferlib.population"},
    {"pufferlib.adapters", "pufferlib.testing", "pufferlib.recording"},
    {"pufferlib.training"},
    {"pufferlib.compat"},
    {"pufferlib.cli"},
]
# What reads the table of PufferLib's names, through which alone ``pufferlib.compat`` is reached.
READ_COMPAT_NAMES = {
    "pufferlib",
    "pufferlib.emulation",
    "pufferlib.environment",
    "pufferlib.environments",
    "pufferlib.models",
}
# The other packages may import from themselves and from these.
OTHERS = {
    "ocean": {"pufferlib.environment", "pufferlib.util.philox"},
    "ocean.suite": set().union(*LAYERS) | {"ocean", "cleanrl_demo"},
    "cuda_ext": {
        "pufferlib.errors",
        "pufferlib.environment",
        "pufferlib.util.annotations",
        "pufferlib.util.files",
        "pufferlib.util.philox",
    },
    "cleanrl_demo": set().union(*LAYERS) | {"ocean", "cuda_ext"},
}
# What finds a package above pufferlib by name (docs/design.md, section 7).
BY_NAME = {
    "pufferlib.vectorization.device.kernel_lookup": "cuda_ext",
    "pufferlib.vectorization.device.launchers": "cuda_ext",
    "pufferlib.vectorization.device.policy": "cuda_ext",
    "pufferlib.vectorization.device.rollout": "cuda_ext",
    "pufferlib.testing.kernel_usage": "cuda_ext",
    "pufferlib.training.fused_policy": "cuda_ext",
    "pufferlib.training.oracles": "cleanrl_demo",
    "pufferlib.cli.doctor": "cuda_ext",
    "pufferlib.cli.ocean": "ocean",
    "pufferlib.cli.training": "cleanrl_demo",
}
# Packages whose docstring lists their modules.
LISTING = """adapters compat evaluation telemetry training tuning util vectorization.core vectorization.device
    vectorization.driver vectorization.processes vectorization.ray""".split()
# Optional packages are imported in the files about them, and nowhere else in pufferlib.
OPTIONAL = {
    "pettingzoo": {
        "pufferlib.emulation.pettingzoo_env",
        "pufferlib.emulation.pettingzoo_rows",
        "pufferlib.testing.pettingzoo_api",
        "pufferlib.population.games.game_env",
    },
    "pyspiel": {"pufferlib.population.games.trees"},
    "scipy": {"pufferlib.population.solvers", "pufferlib.training.plot"},
    "openskill": {"pufferlib.population.ratings"},
    "torch": {
        "pufferlib.vectorization.device.vecenv",
        "pufferlib.vectorization.core.tensors",
        "pufferlib.cli.doctor",
        "pufferlib.models",
        "pufferlib.population",
        "pufferlib.compat.advantage_op",
        "pufferlib.compat.cleanrl",
        "pufferlib.compat.models",
        "pufferlib.compat.pufferl",
        "pufferlib.compat.pytorch",
        "pufferlib.compat.timing",
        "pufferlib.compat.trainer",
        "pufferlib.adapters.sb3_policy",
        "pufferlib.adapters.torchrl",
        "pufferlib.adapters.skrl",
        "pufferlib.training",
    },
    "ray": {"pufferlib.vectorization.ray.connection", "pufferlib.adapters.rllib"},
    "tensorboard": {"pufferlib.training.plot"},
    "wandb": {"pufferlib.training.tracking", "pufferlib.compat.loggers"},
    "neptune": {"pufferlib.compat.loggers"},
    "matplotlib": {
        "pufferlib.evaluation.plot",
        "pufferlib.population.pictures",
        "pufferlib.telemetry.plot",
        "pufferlib.training.plot",
    },
    "dm_env": {"pufferlib.adapters.dm_env"},
    "envpool": {"pufferlib.adapters.envpool"},
    "gymnax": {"pufferlib.adapters.gymnax"},
    "jax": {"pufferlib.adapters.gymnax"},
    "skrl": {"pufferlib.adapters.skrl"},
    "stable_baselines3": {"pufferlib.adapters.sb3"},
    "tensordict": {"pufferlib.adapters.torchrl"},
    "tianshou": {"pufferlib.adapters.tianshou"},
    "torchrl": {"pufferlib.adapters.torchrl"},
    "tyro": {"pufferlib.cli", "pufferlib.training.settings"},
    "pandas": {"pufferlib.evaluation.episodes"},
    "rich": {
        "pufferlib.cli",
        "pufferlib.compat.trainer",
        "pufferlib.evaluation.progress",
        "pufferlib.training.dashboard",
        "pufferlib.training.evaluation",
        "pufferlib.training.report",
        "pufferlib.training.terminal_view",
    },
}


def modules() -> dict[str, Path]:
    """All modules of the four packages, by dotted name."""
    paths = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return paths


MODULES = modules()


def imports(name: str, tree: ast.AST) -> Iterator[str]:
    """The absolute names that a module imports anywhere, inside functions and under TYPE_CHECKING too."""
    package = name if MODULES[name].name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, *([node.module] if node.module else [])])
            for alias in node.names:
                submodule = f"{base}.{alias.name}"
                yield submodule if submodule in MODULES else base


@functools.cache
def all_imports() -> dict[str, list[str]]:
    """What each module imports. Not read as this file is: each process of `make test` does that."""
    return {name: sorted(set(imports(name, ast.parse(path.read_text())))) for name, path in MODULES.items()}


def within(name: str, package: str) -> bool:
    return name == package or (package != "pufferlib" and name.startswith(package + "."))


def visible(name: str) -> set[str]:
    """The packages of ours that a module may import."""
    others = [package for package in OTHERS if within(name, package)]
    if others:
        package = max(others, key=len)  # ocean.suite rather than ocean
        return OTHERS[package] | {package}
    depths = [depth for depth, members in enumerate(LAYERS) if any(within(name, member) for member in members)]
    assert depths, f"{name} has no layer: give it one in docs/design.md and in LAYERS"
    return set().union(*LAYERS[: depths[0] + 1])


def test_imports_point_down() -> None:
    wrong = []
    for name, targets in all_imports().items():
        may_see = visible(name)
        ours = (target for target in targets if target.partition(".")[0] in PACKAGES)
        wrong += [f"{name}: {target}" for target in ours if not any(within(target, package) for package in may_see)]
    assert not wrong  # modules, each with one that it must not see


def test_what_is_imported_by_name_from_above_is_listed() -> None:
    """Only texts count that begin with a package's name; the registry imports what users name."""
    imported = {
        (name, match[1])
        for name, path in MODULES.items()
        if name.partition(".")[0] == "pufferlib"
        for match in re.finditer(r'import_module\(f?"(ocean|cuda_ext|cleanrl_demo)\b', path.read_text())
    }
    assert imported == {*BY_NAME.items()}


@pytest.mark.parametrize("package", LISTING)
def test_a_package_that_lists_its_modules_lists_all(package: str) -> None:
    folder = ROOT / "pufferlib" / package.replace(".", "/")
    listed = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    stems = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert not [stem for stem in sorted(stems) if not re.search(rf"\b{stem}\b", listed)]


def test_environments_of_ocean_do_not_see_the_suite() -> None:
    for name in MODULES:
        if within(name, "ocean") and not within(name, "ocean.suite"):
            assert not [target for target in all_imports()[name] if within(target, "ocean.suite")], name


def test_pufferlibs_interface_is_reached_by_the_table_alone() -> None:
    """Each of its modules has a file in compat/modules, and nothing else of ours names ``pufferlib.compat``."""
    from pufferlib.util.compat_names import MODULES as LEADS
    from pufferlib.util.compat_names import NAMES

    users = {name for name in MODULES if not within(name, "pufferlib.compat")}
    assert not {name for name in users if any(within(target, "pufferlib.compat") for target in all_imports()[name])}
    assert {name for name in users if "pufferlib.util.compat_names" in all_imports()[name]} == READ_COMPAT_NAMES
    prefix = "pufferlib.compat.modules."
    files = {name.removeprefix(prefix) for name in MODULES if name.startswith(prefix)} - {"frameworks"}  # a package
    assert files == {name.removeprefix("pufferlib.") for name in LEADS}
    assert {package for package, _ in NAMES} == READ_COMPAT_NAMES
    assert {*LEADS.values(), *NAMES.values()} <= MODULES.keys()


def test_every_room_has_a_layer() -> None:
    """A new folder, or a file beside the folders, needs a place in LAYERS; no room there is without files."""
    folders = [ROOT / "pufferlib", ROOT / "pufferlib/vectorization"]
    rooms = {name for folder in folders for path in folder.iterdir() if (name := room_of(path)) is not None}
    assert rooms == set().union(*LAYERS)


def room_of(path: Path) -> str | None:
    """Return the dotted name of a folder with Python files, or of a file that is no __init__.py; None for others."""
    if not list(path.glob("*.py")) and (path.suffix != ".py" or path.name == "__init__.py"):
        return "pufferlib" if path == ROOT / "pufferlib/__init__.py" else None
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def test_imports_make_no_circle() -> None:
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, f"a circle: {' -> '.join([*path[path.index(name) :], name])}"
        if name not in done:
            for target in all_imports()[name]:
                if target in MODULES and target != name:
                    visit(target, (*path, name))
            done.add(name)

    for name in MODULES:
        visit(name, ())


@pytest.mark.parametrize("package", OPTIONAL)
def test_optional_packages_stay_in_their_files(package: str) -> None:
    users = {name for name, targets in all_imports().items() if any(within(target, package) for target in targets)}
    ours = {name for name in users if name.startswith("pufferlib")}
    assert not {name for name in ours if not any(within(name, path) for path in OPTIONAL[package])}


def python(code: str, **environment: str) -> str:
    """What a fresh interpreter prints for ``code``."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_pulls_numpy_and_gymnasium_only() -> None:
    code = """
import sys, gymnasium, numpy
before = set(sys.modules)
from pufferlib import *
names = {name.partition(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)
print(*sorted(name for name in names if not name.startswith("_cython_")))  # what compiled modules share of Cython's
"""
    assert python(code).split() == ["pufferlib"]


def test_import_has_no_side_effects(tmp_path: Path) -> None:
    code = """
import gymnasium, numpy
import json, locale, logging, multiprocessing, os, pathlib, random, signal, sys, threading, warnings
here = pathlib.Path.cwd()

def state():
    return {
        "files": sorted(map(str, here.rglob("*"))),
        "environment": dict(os.environ),
        "threads": [thread.name for thread in threading.enumerate()],
        "warnings": list(map(repr, warnings.filters)),
        "streams": [id(sys.stdin), id(sys.stdout), id(sys.stderr), id(sys.excepthook), id(warnings.showwarning)],
        "signals": [repr(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
        "logging": [repr(logging.root), repr(logging.root.handlers)],
        "random": [repr(random.getstate()), repr(numpy.random.get_state())],
        "start method": multiprocessing.get_start_method(allow_none=True),
        "path": list(sys.path),
        "locale": locale.setlocale(locale.LC_ALL),
        "registered": sorted(gymnasium.registry),
        "directory": os.getcwd(),
        "descriptors": len(os.listdir("/dev/fd")),
    }

before = state()
from pufferlib import *
after = state()
print(json.dumps([key for key in before if before[key] != after[key]]))
"""
    # A bytecode cache would be a file of python's own making.
    written = python(
        f"import os; os.chdir({str(tmp_path)!r})\n" + code, HOME=str(tmp_path), PYTHONDONTWRITEBYTECODE="1"
    )
    assert json.loads(written) == [], "import pufferlib changed these"


def test_names_that_are_imported_on_demand_are_listed_and_found() -> None:
    code = """
import importlib.util, pufferlib
on_demand = {*pufferlib._MODULE_OF, *pufferlib._MODULES}
assert {*pufferlib._MODULE_OF} < {*pufferlib.__all__} <= {*dir(pufferlib)} and on_demand <= {*dir(pufferlib)}
assert not on_demand & {*vars(pufferlib)}, "imported at once"
for name in on_demand if importlib.util.find_spec("torch") else on_demand - {"models"}:
    assert getattr(pufferlib, name) is getattr(pufferlib, name) is vars(pufferlib)[name]
assert not hasattr(pufferlib, "mak")
assert {*pufferlib.vectorization.__all__} <= {*dir(pufferlib.vectorization)}
print("fine")
"""
    assert python(code) == "fine\n"


@pytest.mark.slow
@pytest.mark.alone
def test_import_costs_less_than_a_fifth_of_gymnasiums() -> None:
    """And making a first environment, which imports what the import has put off, less than a half."""
    code = """
from time import process_time
times = [process_time()]
import gymnasium
times.append(process_time())
import pufferlib
times.append(process_time())
vec = pufferlib.make("ocean/squared")
times.append(process_time())
vec.close()
print(*times)
"""
    # CPU time, and of each part the least of several: what it costs by itself, whatever else the machine was doing. The
    # first run leaves our bytecode where an installation has gymnasium's.
    runs = [list(map(float, python(code, PYTHONDONTWRITEBYTECODE="").split())) for _ in range(5)]
    parts = ([after - before for before, after in itertools.pairwise(times)] for times in runs[1:])
    alone, imported, called = (min(part) for part in zip(*parts, strict=True))
    message = f"import gymnasium: {alone:.3f} s, import pufferlib: {imported:.3f} s more, make: {called:.3f} s more"
    assert imported < 0.2 * alone, message
    assert imported + called < 0.5 * alone, message
