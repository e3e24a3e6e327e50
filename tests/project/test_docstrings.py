"""What users import says what it is: every public name, member, field and argument of the API."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = [pytest.mark.beside, pytest.mark.extras]

ROOT = Path(__file__).parents[2]
MODULES = (
    "pufferlib", "pufferlib.vectorization", "pufferlib.emulation", "pufferlib.environment", "pufferlib.errors",
    "pufferlib.evaluation",
    "pufferlib.layout", "pufferlib.models", "pufferlib.recording", "pufferlib.population", "pufferlib.testing",
    "pufferlib.adapters.gymnasium_vector",
)  # fmt: skip
FACES = "sb3 tianshou torchrl skrl dm_env gymnax rllib envpool cleanrl".split()
LIBRARY_MODULES = tuple(f"pufferlib.adapters.{name}" for name in FACES)


def ours(thing: Any) -> bool:
    return str(getattr(thing, "__module__", "")).startswith("pufferlib")


@cache
def comments(cls: type) -> dict[str, str]:
    """What is said beside each field of a class: at the end of its line, above it or below it."""
    lines = textwrap.dedent(inspect.getsource(cls)).splitlines()
    body = ast.parse("\n".join(lines)).body[0].body
    texts = {}
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign):
            near = [lines[node.lineno - 1].partition("  # ")[2], lines[node.lineno - 2], *lines[node.end_lineno :][:1]]
            parts = [near[0], *(line.strip() for line in near[1:] if line.strip().startswith("#"))]
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                parts.append(str(after.value.value))
            texts[node.target.id] = " ".join(parts).strip()
    return texts


@cache
def words() -> set[str]:
    """The words that mean the same everywhere: what `make` is called with, and those of design.md, section 2."""
    section = (ROOT / "docs/design.md").read_text().partition("## 2. Words")[2].partition("## 3.")[0]
    make = import_module("pufferlib").make
    return (
        set(inspect.signature(make).parameters) | set(re.findall(r"`(\w+)`", section)) | {"path", "env_id", "agent_id"}
    )


def named(name: str, *texts: str | None) -> bool:
    return name in words() or any(re.search(rf"\b{name}\b", text or "") for text in texts)


def of_a_library(cls: type, name: str) -> bool:
    """Whether a method is one that another library's base class describes."""
    return any(name in base.__dict__ for base in cls.__mro__ if not ours(base))


def untold(where: str, function: Any, *texts: str | None) -> Iterator[str]:
    """The arguments of a function of which neither its docstring nor texts say anything."""
    for name, parameter in inspect.signature(function).parameters.items():
        plain = parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if plain and name not in ("self", "cls") and not named(name, inspect.getdoc(function), *texts):
            yield f"{where}: argument {name}"


def docstrings_of_others(function: Any, module: ModuleType) -> Iterator[str | None]:
    """Yield the docstrings of the functions whose arguments a function takes, as its docstring says."""
    for name in re.findall(r"Takes the arguments of ``(\w+)``", inspect.getdoc(function) or ""):
        yield inspect.getdoc(getattr(module, name))


def gaps_of_class(where: str, cls: type, module: ModuleType) -> Iterator[str]:
    docstring = cls.__doc__
    if not docstring or docstring.startswith(f"{cls.__name__}("):  # a dataclass makes one like that by itself
        yield f"{where}: no docstring"
        return
    around = [base.__doc__ for base in cls.__mro__ if ours(base)] + [inspect.getmodule(cls).__doc__, module.__doc__]
    if ours(cls.__init__) and not issubclass(cls, Exception):
        yield from untold(where, cls.__init__, *around, *comments_of(cls))
    for name in cls.__dict__:
        member = inspect.getattr_static(cls, name)
        function = getattr(member, "fget", None) or getattr(member, "func", None) or getattr(member, "__func__", member)
        if name.startswith("_") or not (inspect.isfunction(function) and ours(function)) or of_a_library(cls, name):
            continue
        docstrings = [base.__dict__[name].__doc__ for base in cls.__mro__ if name in base.__dict__]
        if not any(docstrings):
            yield f"{where}.{name}: no docstring"
        yield from untold(f"{where}.{name}", function, *docstrings, *around)
    for base in cls.__mro__:
        if ours(base):
            yield from (
                f"{where}: field {name}"
                for name, comment in comments(base).items()
                if not (name.startswith("_") or comment or named(name, *around))
            )


def comments_of(cls: type) -> set[str]:
    return {name for base in cls.__mro__ if ours(base) for name, comment in comments(base).items() if comment}


def gaps(name: str) -> Iterator[str]:
    """What the docstrings of a module leave out."""
    module = import_module(name)
    if not module.__doc__:
        yield f"{name}: no docstring"
    for public in module.__all__:
        thing, where = getattr(module, public), f"{name}.{public}"
        if inspect.isclass(thing) and ours(thing):
            yield from gaps_of_class(where, thing, module)
        elif inspect.isfunction(thing):
            if not thing.__doc__:
                yield f"{where}: no docstring"
            yield from untold(where, thing, module.__doc__, *docstrings_of_others(thing, module))


@pytest.mark.parametrize("name", MODULES)
def test_the_public_api_says_what_it_is(name: str) -> None:
    assert sorted(set(gaps(name))) == []


def assigns(node: ast.stmt, name: str) -> bool:
    return isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == name


@pytest.mark.parametrize("name", LIBRARY_MODULES)
def test_faces_of_libraries_apart_have_docstrings(name: str) -> None:
    tree = ast.parse((ROOT / f"{name.replace('.', '/')}.py").read_text())
    public = [node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name[0] != "_"]
    assert ast.get_docstring(tree) and public
    assert [node.name for node in public if not ast.get_docstring(node)] == []
    (exported,) = (ast.literal_eval(node.value) for node in tree.body if assigns(node, "__all__"))
    documented = re.findall(rf"^::: {re.escape(name)}\.(\w+)$", (ROOT / "docs/api/adapters.md").read_text(), re.M)
    assert sorted(documented) == sorted(node.name for node in public if node.name in exported)


def test_the_reference_has_every_public_name() -> None:
    documented = set(
        re.findall(r"^::: (\S+)$", "".join(path.read_text() for path in (ROOT / "docs/api").glob("*.md")), re.M)
    )
    for name in MODULES:
        module = import_module(name)
        missing = []
        for public in module.__all__:
            thing = getattr(module, public)
            homes = {f"{other}.{public}" for other in MODULES}
            if (inspect.isclass(thing) or inspect.isfunction(thing)) and ours(thing) and not homes & documented:
                missing.append(public)
        assert missing == [], name
    for name in documented - {*MODULES, *LIBRARY_MODULES}:
        module, _, public = name.rpartition(".")
        if module not in LIBRARY_MODULES:
            assert hasattr(import_module(module), public), name
