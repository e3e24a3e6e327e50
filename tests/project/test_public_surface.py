"""What users build on stays: names, signatures, options, keys and imports, as recorded in public_surface.txt.

The record is made from the sources alone, so optional packages may be absent and all Python versions agree. Record a
change that is meant: ``python -m tests.project.test_public_surface --write [FOLDER]`` (FOLDER: another source tree).
"""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from copy import deepcopy
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.beside

ROOT = Path(__file__).parents[2]
RECORD = Path(__file__).with_name("public_surface.txt")
WRITE = "python -m tests.project.test_public_surface --write"
TRAINERS = (
    *("ppo", "ppo_lstm", "ppo_selfplay", "dqn", "sac", "td3", "qmix", "maddpg"),
    *("appo_ray", "dqn_ray", "ppo_cuda", "a2c_cuda", "ppo_fused"),
)
PLANS = ("pufferlib/tuning/plans.py", "pufferlib/plans.py")  # the second is that of older sources
LEAGUE = {"": "Settings", "stop.": "Stop", "evaluation.": "Evaluation", "workers.": "Workers"}
IMPORT = "import "  # begins the entry of an import that a page showed
# What was recorded and has changed on purpose; it leaves the record with the next release.
MUTANTS = "the trainer's mutants are in the tests"
MEANT = {
    **dict.fromkeys((f"puffer ocean --{name}" for name in ("mutants", "mutant", "all-seeds", "save", "page")), MUTANTS),
    "puffer ocean --seeds": "its default, which depended on --mutants, is now stated: 1",
    **dict.fromkeys(
        ("pufferlib.models.Decisions.actions", "pufferlib.models.Distribution.log_prob"),
        "choices and aims are now discrete_actions and continuous_actions; the old names are taken, with a warning",
    ),
    "puffer league play --words": "it has no flag: a positional argument, now called arguments",
    "pufferlib.emulation.RowEnv.plain": "the portable path is plain Python, without a fast path of its own",
    "pufferlib.recording.Tape.blank": "its first argument, face, is now row_spec; Recorder alone calls it",
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Definition(NamedTuple):
    """Where the sources define a name."""

    module: str
    node: ast.AST


class Sources:
    """The modules of a source tree, as syntax trees."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._trees: dict[str, ast.Module | None] = {}

    def tree(self, module: str) -> ast.Module | None:
        """Return the syntax tree of a module, or None if the sources have no such module."""
        if module not in self._trees:
            stem = self.root / module.replace(".", "/")
            paths = [path for path in (stem.with_suffix(".py"), stem / "__init__.py") if path.is_file()]
            self._trees[module] = ast.parse(paths[0].read_text(encoding="utf-8")) if paths else None
        return self._trees[module]

    def module(self, name: str) -> str:
        """Return the present name of a module, which a shim may say (see pufferlib/util/renamed.py)."""
        for call in self._calls(name, "moved_module"):
            return str(ast.literal_eval(call.args[1]))
        return name

    def old_names(self, module: str) -> dict[str, str]:
        """Return the new name of each renamed member of a module."""
        return {
            old: new
            for call in self._calls(module, "renamed_members")
            for old, new in ast.literal_eval(call.args[1]).items()
        }

    def _calls(self, module: str, function: str) -> Iterator[ast.Call]:
        tree = self.tree(module)
        for node in tree.body if tree is not None else ():
            value = getattr(node, "value", None)
            if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == function:
                yield value

    def find(self, module: str, name: str) -> Definition | None:
        """Return where a member of a module is defined, through imports and old names; None if nowhere."""
        module = self.module(module)
        name = self.old_names(module).get(name, name)
        tree = self.tree(module)
        if tree is None:
            return None
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    if (alias.asname or alias.name) == name and node.module.startswith(("pufferlib", "cleanrl_demo")):
                        return self.find(node.module, alias.name)
        for node in tree.body:
            if getattr(node, "name", None) == name or name in assigned(node):
                return Definition(module, node)
        submodule = f"{module}.{name}"
        return Definition(submodule, self.tree(submodule)) if self.tree(submodule) else None  # type: ignore[arg-type]

    def bases(self, definition: Definition) -> Iterator[Definition]:
        """Yield a class and those of its bases that the sources define, in the order of a search for members."""
        yield definition
        for base in getattr(definition.node, "bases", ()):
            base = base.value if isinstance(base, ast.Subscript) else base
            parent = self.find(definition.module, base.id) if isinstance(base, ast.Name) else None
            if parent is not None and isinstance(parent.node, ast.ClassDef):
                yield from self.bases(parent)

    def members(self, name: str, definition: Definition) -> dict[str, str]:
        """Return the entries of a class: its arguments, and its public methods and fields."""
        entries: dict[str, str] = {}
        for module, node in self.bases(definition):
            assert isinstance(node, ast.ClassDef)
            for part in node.body:
                if isinstance(part, Function) and part.name == "__init__":
                    entries.setdefault(name, f"class{self.signature(module, part)}")
                elif isinstance(part, Function) and not part.name.startswith("_"):
                    decorators = {ast.unparse(decorator).rpartition(".")[2] for decorator in part.decorator_list}
                    plain = not decorators & {"property", "cached_property", "setter"}
                    entries.setdefault(f"{name}.{part.name}", self.signature(module, part) if plain else "attribute")
                elif isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                    if not part.target.id.startswith("_"):
                        entries.setdefault(f"{name}.{part.target.id}", default_of(part, "attribute"))
        return {name: "class", **entries}

    def signature(self, module: str, function: Function) -> str:
        """Return the parameters of a function: their names, kinds and defaults, without annotations and self.

        If ``says_what_was_meant`` fills in ``**kwargs: Unpack[Parameters]``, each of the declared parameters is there.
        """
        arguments = deepcopy(function.args)
        decorators = {ast.unparse(decorator).partition("(")[0] for decorator in function.decorator_list}
        unpacked = re.fullmatch(r"Unpack\[(\w+)\]", ast.unparse(getattr(arguments.kwarg, "annotation", None) or []))
        if unpacked and "says_what_was_meant" in decorators:
            declared = self.declared(module, unpacked[1])
            arguments.kwarg = None
            arguments.kwonlyargs = [*map(ast.arg, declared), *arguments.kwonlyargs]
            arguments.kw_defaults = [*declared.values(), *arguments.kw_defaults]
        for argument in ast.walk(arguments):
            if isinstance(argument, ast.arg):
                argument.annotation = None
        text = re.sub(r"^(?:self|cls)(?:, /)?(?:, )?", "", ast.unparse(arguments))
        return f"({text})" + " classmethod" * ("classmethod" in decorators)

    def declared(self, module: str, cls: str) -> dict[str, ast.expr]:
        """Return the parameters that a TypedDict declares, with their defaults (pufferlib/util/parameters.py)."""
        definition = self.find(module, cls)
        assert definition is not None and isinstance(definition.node, ast.ClassDef), f"{module}.{cls} is nowhere"
        defaults: dict[str, ast.expr] = {}
        for base in map(ast.unparse, definition.node.bases):
            defaults |= {} if base == "TypedDict" else self.declared(definition.module, base)
        for part in definition.node.body:
            if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                default: ast.expr = ast.Constant(None)
                if isinstance(part.annotation, ast.Subscript) and ast.unparse(part.annotation.value) == "Annotated":
                    default = part.annotation.slice.elts[1]  # type: ignore[attr-defined]
                defaults[part.target.id] = default
        return defaults

    def fields(self, module: str, cls: str) -> dict[str, str]:
        """Return the fields of a dataclass, with their defaults."""
        definition = self.find(module, cls)
        assert definition is not None, f"{module}.{cls} is nowhere"
        entries: dict[str, str] = {}
        for _, node in self.bases(definition):
            for part in getattr(node, "body", ()):
                if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                    if "ClassVar" not in ast.unparse(part.annotation):
                        entries.setdefault(part.target.id, default_of(part))
        return entries

    # ------------------------------------------------------------------------------------------ what is recorded

    def surface(self) -> dict[str, str]:
        """Return all that users build on, but for imports that older pages showed: a text for each name."""
        entries: dict[str, str] = {}
        for name in self.documented:
            entries |= self.entry(name)
        for command, options in self.commands():
            entries |= {f"puffer {command} --{key.replace('_', '-')}": text for key, text in options.items()}
        for trainer in TRAINERS:
            for key, text in self.fields(f"cleanrl_demo.{trainer}", "Config").items():
                entries[f"setting {trainer} {key}"] = text
        for table, cls in LEAGUE.items():
            for key, text in self.fields("pufferlib.population.league_settings", cls).items():
                entries[f"league {table}{key}"] = text
        path = next(self.root / path for path in PLANS if (self.root / path).is_file() and "KEYS" in
                    (self.root / path).read_text(encoding="utf-8"))  # fmt: skip
        keys = next(node for node in ast.parse(path.read_text(encoding="utf-8")).body if "KEYS" in assigned(node))
        entries |= {f"plan {key}": "" for key in ast.literal_eval(keys.value)}  # type: ignore[attr-defined]
        return entries | {f"info {key}": "" for key in self.info_keys()}

    @cached_property
    def documented(self) -> list[str]:
        """The names that docs/api shows."""
        texts = [path.read_text(encoding="utf-8") for path in sorted((self.root / "docs/api").glob("*.md"))]
        return sorted(set(re.findall(r"^::: (\S+)$", "\n".join(texts), re.MULTILINE)))

    def entry(self, name: str) -> dict[str, str]:
        """Return the entries of a name that docs/api shows; empty where the sources do not have it."""
        module, _, member = name.rpartition(".")
        if self.tree(name) is not None and self.find(module, member) is None:
            return {name: "module"}
        definition = self.find(module, member)
        if definition is None:
            return {}
        if isinstance(definition.node, ast.ClassDef):
            return self.members(name, definition)
        factory = self.factory(definition)
        if factory:
            return {f"{name}{key}": text for key, text in factory.items()}
        kind = "module" if isinstance(definition.node, ast.Module) else "value"
        is_function = isinstance(definition.node, Function)
        return {name: self.signature(definition.module, definition.node) if is_function else kind}

    def factory(self, definition: Definition) -> dict[str, str]:
        """Return the entries, without its name, of an object that is called like a class, such as Serial.

        They are the parameters of its ``__call__``, the attributes of its class, and the members of what it returns.
        """
        value = getattr(definition.node, "value", None)
        kind = None
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
            kind = self.find(definition.module, value.func.id)
        if kind is None or not isinstance(kind.node, ast.ClassDef):
            return {}
        functions = {part.name: part for part in kind.node.body if isinstance(part, ast.FunctionDef)}
        if "__call__" not in functions:
            return {}
        result = self.find(kind.module, ast.unparse(functions["__call__"].returns or ast.Constant("")))
        assert result is not None, "no class in these sources is made by it"
        members = self.members("", result)
        _, defaults = parameters(self.signature(kind.module, functions["__init__"])) or ([], {})
        fields = {
            f".{target.attr}": f"attribute = {default}"
            if (default := defaults.get(target.attr, ("", ""))[1])
            else "attribute"
            for target in ast.walk(functions["__init__"])
            if isinstance(target, ast.Attribute) and isinstance(target.ctx, ast.Store) and target.attr[0] != "_"
        }
        return {**members, **fields, "": f"class{self.signature(kind.module, functions['__call__'])}"}

    def commands(self) -> Iterator[tuple[str, dict[str, str]]]:
        """Yield the options of each class in pufferlib/cli/options.py."""
        tree = self.tree("pufferlib.cli.options")
        assert tree is not None
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                words = re.sub(r"(?<!^)(?=[A-Z])", " ", node.name).lower()
                yield words, self.fields("pufferlib.cli.options", node.name)

    def info_keys(self) -> set[str]:
        """Return the keys that are set in infos by name, where environments become rows and rows become batches."""
        keys = set()
        for path in [*self.root.glob("pufferlib/vectorization/**/*.py"), *self.root.glob("pufferlib/emulation/*.py")]:
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Subscript):
                    key = getattr(target.slice, "value", None)
                    if isinstance(target.value, ast.Name) and target.value.id == "info" and isinstance(key, str):
                        keys |= {key, *(f"{key}.{part}" for part in literal_keys(node.value))}
                elif "env_id" in literal_keys(node):  # an info as a whole
                    keys |= literal_keys(node)
        return keys


def literal_keys(node: ast.AST) -> set[str]:
    """Return the keys of a dict display; none of anything else."""
    keys = node.keys if isinstance(node, ast.Dict) else ()
    return {key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}


def assigned(node: ast.AST) -> set[str]:
    """Return the names that a statement assigns."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}


def default_of(field: ast.AnnAssign, kind: str = "") -> str:
    """Return the text of a field: its kind, and its default if it has one."""
    value = "" if field.value is None else f"= {ast.unparse(field.value)}"
    return f"{kind} {value}".strip()


def read_record() -> dict[str, str]:
    """Return the recorded entries."""
    lines = [line for line in RECORD.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    return {name: text.strip() for name, _, text in (line.partition(":") for line in lines)}


def written(entries: dict[str, str]) -> str:
    """Return the text of a record."""
    lines = [f"{name}: {text}".rstrip() for name, text in entries.items()]
    return "\n".join(["# What users build on. tests/project/test_public_surface.py reads it.", *sorted(lines), ""])


@cache
def today() -> dict[str, str]:
    """Return the surface of these sources: what pages show now, and recorded names that still lead somewhere."""
    sources = Sources(ROOT)
    entries = sources.surface()
    # The old name of a class has all members of the new one; a recorded class says which old names there are.
    for name, text in read_record().items() if RECORD.exists() else ():
        if name.startswith("pufferlib.") and name not in entries and not text.startswith("attribute"):
            entries |= sources.entry(name)
    return entries


def parameters(text: str) -> tuple[list[tuple[str, str]], dict[str, tuple[str, str]]] | None:
    """Return the positional parameters of a recorded signature, in order, and all with kinds and defaults, by name."""
    match = re.search(r"\(.*\)", text)
    if match is None or text.startswith(("=", "attribute")):
        return None
    arguments = ast.parse(f"def f{match[0]}: pass").body[0].args  # type: ignore[attr-defined]
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + arguments.defaults + arguments.kw_defaults
    kinds = ["/"] * len(arguments.posonlyargs) + [""] * len(arguments.args) + ["*"] * len(arguments.kwonlyargs)
    kinds += ["*args"] * (arguments.vararg is not None) + ["**kwargs"] * (arguments.kwarg is not None)
    names = [
        argument.arg for argument in [*positional, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg] if argument
    ]
    values = [ast.unparse(default) if default else "" for default in [*defaults, None, None][: len(names)]]
    table = {name: (kind, value) for name, kind, value in zip(names, kinds, values, strict=True)}
    return [(argument.arg, table[argument.arg][1]) for argument in positional], table


def outside(text: str) -> str:
    """Return a recorded text without its parameters: that it is a class, or a classmethod."""
    return re.sub(r"\(.*\)", "()", text)


def extends(recorded: str, now: str) -> bool:
    """Return whether all calls of a recorded signature are calls of the one of today."""
    before, after = parameters(recorded), parameters(now)
    if before is None or after is None or outside(recorded) != outside(now):
        return False
    more = {name: entry for name, entry in after[1].items() if name not in before[1]}
    return (
        after[0][: len(before[0])] == before[0]
        and all(after[1].get(name) == entry for name, entry in before[1].items())
        and all(value or kind.startswith(("*args", "**")) for kind, value in more.values())
    )


def complaint(name: str, recorded: str) -> str | None:
    """Return what is wrong with a recorded entry today, and the way out; None if nothing is."""
    now = today().get(name)
    old = (
        "its old name, with pufferlib/util/renamed.py"
        if name.startswith("pufferlib.")
        else "reading it, with a warning"
    )
    if now is None:
        return f"{name} is gone; keep it, or keep {old}, for one release; what is meant to go stands in MEANT"
    if extends(recorded, now) and recorded != now:
        return f"{name} takes more than is recorded, {now}; run {WRITE}"
    if now != recorded:
        return (
            f"{name} breaks its users: it was {recorded or 'bare'} and is {now or 'bare'}; keep what was, or see MEANT"
        )
    return None


def test_recorded_names_are_still_there() -> None:
    entries = {name: text for name, text in read_record().items() if not name.startswith(IMPORT) and name not in MEANT}
    complaints = [text for name, recorded in entries.items() if (text := complaint(name, recorded)) is not None]
    assert not complaints, "\n".join(complaints)
    assert len(entries) > 500


@pytest.mark.parametrize(
    "name",
    [
        "make",
        "wrap",
        "emulation.emulate",
        *(f"vectorization.{name}" for name in "Serial Multiprocessing Pool CUDA".split()),
    ],
)
def test_signatures_at_run_time_have_the_recorded_parameters(name: str) -> None:
    module, _, member = f"pufferlib.{name}".rpartition(".")
    signature = inspect.signature(getattr(import_module(module), member))
    bare = [parameter.replace(annotation=parameter.empty) for parameter in signature.parameters.values()]
    text = str(signature.replace(parameters=bare, return_annotation=signature.empty))
    assert text == read_record()[f"pufferlib.{name}"].removeprefix("class")


def test_new_names_are_recorded() -> None:
    unrecorded = sorted(today().keys() - read_record().keys())
    assert not unrecorded, f"public and not recorded; run {WRITE}:\n" + "\n".join(unrecorded)


def test_the_record_is_sorted() -> None:
    assert RECORD.read_text(encoding="utf-8") == written(read_record()), f"run {WRITE}"


def imports() -> list[str]:
    return sorted(name.removeprefix(IMPORT) for name in read_record() if name.startswith(IMPORT))


def test_imports_that_pages_showed_are_in_the_sources() -> None:
    """By the sources alone: a member, or a module, at the place that a page named."""
    sources = Sources(ROOT)
    lost = [name for name in imports() if not sources.entry(name)]
    assert not lost, f"pages showed these imports; add a shim with moved_module (pufferlib/util/renamed.py): {lost}"


SHIMS = {
    "pufferlib.philox": "philox",
    "pufferlib.plans": "TunedPlan",
    "pufferlib.toml": "to_toml",
    "pufferlib.vectorization.stats": "Stats",
}
# What trainers share was in cleanrl_demo, and the suite of `puffer ocean` in cleanrl_demo.suite.
TRAINING_SHIMS = {
    "checkpoints": "checkpoint_path",
    "cuda_graphs": "GraphedIteration",
    "dashboard": "Dashboard",
    "ddp": "joined",
    "device_video": "DeviceVideo",
    "evaluation": "Subject",
    "film": "Film",
    "fleet": "Fleet",
    "league_oracles": "ppo_oracle",
    "minibatches": "shares",
    "oracles": "LearnedOracle",
    "planner": "Needs",
    "plot": "Curve",
    "random_policy": "random_actor",
    "recent_statistics": "numbers_in",
    "report": "Report",
    "results": "Episode",
    "reward_processing": "RewardProcessing",
    "runs": "read_config",
    "session": "Session",
    "settings": "family_settings",
    "teams": "teams_of",
    "terminal_view": "TerminalView",
    "tracking": "Tracker",
    "video": "Videos",
}
SUITE_SHIMS = {
    "demo": "train",
    "examining": "Examination",
    "table": "Screen",
    "tasks": "Cannot",
    "watching": "watch",
}
USES = """
import importlib, pickle, sys, warnings
for old, name in zip(sys.argv[1::2], sys.argv[2::2]):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        exec(compile(f"import {old} as module\\n", "users.py", "exec"))
        exec(compile(f"from {old} import {name} as member\\n", "users.py", "exec"))
    deprecations = [warning for warning in caught if warning.category is DeprecationWarning]
    assert [warning.filename for warning in deprecations] == ["users.py"], [str(warning) for warning in caught]
    assert str(deprecations[0].message) == f"{old} is now {module.__name__}"
    assert module is sys.modules[module.__name__] is sys.modules[old] and module.__name__ != old
    assert getattr(module, name) is member and importlib.import_module(old) is module
    plain = pickle.dumps(member, 0)
    assert pickle.loads(plain) is pickle.loads(plain.replace(module.__name__.encode(), old.encode())) is member
"""


def test_moved_modules_work_and_warn_where_they_are_imported() -> None:
    """Each in all ways that Python has, in an interpreter that has not imported any of them."""
    words = [word for pair in SHIMS.items() for word in pair]
    done = subprocess.run([sys.executable, "-c", USES, *words], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_moved_modules_of_the_trainers_work_and_warn() -> None:
    shims = {f"cleanrl_demo.{name}": member for name, member in TRAINING_SHIMS.items()}
    shims |= {f"cleanrl_demo.suite.{name}": member for name, member in SUITE_SHIMS.items()}
    words = [word for pair in shims.items() for word in pair]
    done = subprocess.run([sys.executable, "-c", USES, *words], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    moved = {path.stem for path in (ROOT / "cleanrl_demo/moved").rglob("[a-z]*.py")}
    assert moved == TRAINING_SHIMS.keys() | SUITE_SHIMS.keys()


def test_renamed_members_warn() -> None:
    sources = Sources(ROOT)
    population = import_module("pufferlib.population")
    for old, new in sources.old_names("pufferlib.population").items():
        with pytest.warns(DeprecationWarning, match=rf"{old} is now pufferlib\.population\.{new}") as caught:
            assert getattr(population, old) is getattr(population, new)
        assert caught[0].filename == __file__
    for name in ("sb3", "tianshou", "skrl", "rllib", "dm_env", "torchrl"):  # optional packages: by the sources
        assert "Face" in sources.old_names(f"pufferlib.adapters.{name}")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not hasattr(population, "Nothing")


def test_renamed_arguments_and_attributes_warn() -> None:
    import torch
    from gymnasium.spaces import Discrete

    from pufferlib.models import Decisions
    from pufferlib.recording import Recording, Tape

    decisions = Decisions(Discrete(3))
    distribution = decisions.distribution(torch.eye(3))
    discrete_actions, continuous_actions = distribution.mode()
    with pytest.warns(DeprecationWarning, match="^the argument (choices|aims) is now (discrete|continuous)_") as caught:
        log_probs = distribution.log_prob(choices=discrete_actions, aims=continuous_actions)
        actions = decisions.actions(choices=discrete_actions, aims=continuous_actions)
    assert [warning.filename for warning in caught] == [__file__] * 4
    assert torch.equal(log_probs, distribution.log_prob(discrete_actions, continuous_actions))
    assert actions.tolist() == [0, 1, 2]
    recording = Recording.load(RECORD.with_name("f19f429") / "recording.npz")
    with pytest.warns(DeprecationWarning, match=r"^Recording\.face is now Recording\.row_spec") as caught:
        assert recording.face is recording.row_spec
    assert caught[0].filename == __file__
    with pytest.warns(DeprecationWarning, match="^the argument face is now row_spec"):
        tape = Tape.blank(face=recording.row_spec, num_rows=3, observations=None)
    assert len(tape.rewards) == 3
    with pytest.raises(TypeError, match="got both row_spec and face, its old name; pass one"):
        Tape.blank(face=recording.row_spec, row_spec=recording.row_spec, num_rows=3, observations=None)


def write(root: Path) -> None:
    """Record the surface of a source tree, and keep recorded imports and old names."""
    recorded = read_record() if RECORD.exists() else {}
    entries = Sources(root).surface() if root != ROOT else today()
    entries |= {name: text for name, text in recorded.items() if name.startswith(IMPORT) or name in MEANT}
    RECORD.write_text(written(entries), "utf-8")
    gone = sorted(recorded.keys() - entries.keys())
    print(*(f"no longer recorded: {name}" for name in gone), f"{len(entries)} entries in {RECORD}", sep="\n")


if __name__ == "__main__":
    if sys.argv[1:2] != ["--write"]:
        raise SystemExit(f"usage: {WRITE} [FOLDER]")
    write(Path(sys.argv[2]).resolve() if sys.argv[2:] else ROOT)
