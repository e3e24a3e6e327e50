"""`puffer port`: name what stands here in place of the names that a program uses of PufferLib."""

from __future__ import annotations

import ast
import tokenize
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from pufferlib.cli.options import Port
from pufferlib.cli.parsing import parse
from pufferlib.errors import PlanError
from pufferlib.util.toml import read_toml

__all__ = ["Use", "port", "uses_of"]

TABLE = Path(__file__).with_name("port.toml")
SAME = "same"
ROOT = "pufferlib"
HINT = "install pufferlib again"
IMPORTED_HERE = ("pufferlib.environments", "pufferlib.models")  # the modules that programs for this library import, too


class Use(NamedTuple):
    """A use of PufferLib in a program. replacement: None if the table has none."""

    line: int
    name: str
    replacement: str | None


def port(arguments: list[str]) -> int:
    """Run ``puffer port FILE…``: print the uses of PufferLib in programs; return the exit status, always 0.

    The files are not changed. Raises PlanError for a file that cannot be read, or that is no Python.
    """
    options: Port = parse(Port, "port", arguments, "FILE", "Python files of a program", "files", tuple[str, ...])
    num_uses = num_unknown = 0
    for argument in options.files:
        for use in uses_of(_read(Path(argument)), argument):
            print(f"{argument}:{use.line}: {use.name}: {use.replacement or '? (see docs/migrating.md)'}")
            num_uses, num_unknown = num_uses + 1, num_unknown + (use.replacement is None)
    print(f"{num_uses} uses of PufferLib, {num_unknown} of them without a replacement here")
    return 0


def _read(path: Path) -> str:
    try:
        with tokenize.open(path) as file:  # in the encoding that the file declares
            return file.read()
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        raise PlanError(f"{path} cannot be read ({error}); name Python files") from error


def uses_of(program: str, file: str = "the program") -> list[Use]:
    """Return the uses of PufferLib's names in a program, by line. Raises PlanError if it is no Python.

    Each import of a module is a use of the module. A name that is imported with ``from`` is a use where it is imported;
    otherwise, a use is an attribute of a module or of an alias of one. Aliases are those of imports and of plain
    assignments. file: its name, for messages.
    """
    try:
        tree = ast.parse(program)
    except (SyntaxError, ValueError) as error:  # ValueError: null bytes, before Python 3.12
        line, reason = getattr(error, "lineno", 1), getattr(error, "msg", error)
        raise PlanError(f"{file}: line {line} is no Python ({reason}); name Python files") from error
    replacements, modules = _replacements(), _modules()
    aliases: dict[str, str] = {}
    found_uses: dict[tuple[int, str], Use] = {}

    def add(line: int, name: str) -> None:
        found_uses.setdefault((line, name), Use(line, name, modules.get(name) or replacements.get(name)))

    for line, name, alias in _imports(tree):
        aliases[alias] = ROOT if alias == ROOT else name
        add(line, name)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            module = _resolved(node.value, aliases)
            if module in modules:
                aliases[node.targets[0].id] = str(module)
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and id(node) not in inner:
            dotted = _resolved(node, aliases)
            if dotted is not None and dotted not in modules and _module_alias(node, aliases, modules):
                add(node.lineno, _known(dotted, modules))
    return sorted(found_uses.values())


def _imports(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Yield (line, name, alias) of each import of PufferLib's modules and names.

    The alias of a module that is imported by its whole name is ``pufferlib``, from which programs reach it.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for item in node.names:
                if item.name.split(".")[0] == ROOT:
                    yield node.lineno, item.name, item.asname or ROOT
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == ROOT and not node.level:
            for item in node.names:
                yield node.lineno, f"{node.module}.{item.name}", item.asname or item.name


def _resolved(node: ast.AST, aliases: Mapping[str, str]) -> str | None:
    """Return the dotted name that an expression stands for; None if it is not of PufferLib."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in aliases:
        return None
    return ".".join([aliases[node.id], *reversed(parts)])


def _module_alias(node: ast.AST, aliases: Mapping[str, str], modules: Container[str]) -> bool:
    """Return whether an attribute is one of a module: those of imported names were counted with the import."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and aliases[node.id] in modules


def _known(name: str, modules: Container[str]) -> str:
    """Return a dotted name without the attributes of what a module has: "pufferlib.vector.make", not its "__doc__"."""
    parts = name.split(".")
    longest = max(size for size in range(1, len(parts) + 1) if ".".join(parts[:size]) in modules)
    return ".".join(parts[: longest + 1])


def _replacements() -> dict[str, str]:
    """Return what stands here in place of each name, by dotted name."""
    tables = read_toml(TABLE, HINT)
    same = tables.pop(SAME)
    tables |= {module: {**tables[source], **tables.get(module, {})} for module, source in same.items()}
    return {f"{module}.{name}": text for module, table in tables.items() for name, text in table.items()}


def _modules() -> dict[str, str]:
    """Return what to import here in place of each module of PufferLib, by its name."""
    tables = read_toml(TABLE, HINT)
    names = {*tables.pop(SAME), *tables}
    names |= {name.rpartition(".")[0] for name in names} - {""}  # packages, such as pufferlib.frameworks
    return {name: f"import {name if name in IMPORTED_HERE else ROOT}" for name in names}
