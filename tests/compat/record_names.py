"""Record the public names of PufferLib's modules, from unpacked source distributions.

    python tests/compat/record_names.py FOLDER …     FOLDER: pufferlib-3.0.0 and the like; writes names.json

A name is public if a module, or a class in it, defines it and it does not begin with "_"; imported names are left out.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["RECORD"]

RECORD = Path(__file__).with_name("names.json")
LEFT_OUT = ("ocean", "extensions", "resources", "config")  # folders: environments, C, CUDA, settings


def names_of(body: list[ast.stmt], prefix: str = "") -> Iterator[str]:
    """Yield the public names that statements define, and those in their classes as ``Class.name``."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield prefix + node.name
        elif isinstance(node, ast.ClassDef):
            yield prefix + node.name
            yield from names_of(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
                yield from (prefix + part.id for part in parts if isinstance(part, ast.Name))
        elif isinstance(node, (ast.If, ast.Try, ast.With)):
            yield from names_of(node.body, prefix)


def modules_of(folder: Path) -> dict[str, list[str]]:
    """Return the public names of each module of a distribution."""
    modules = {}
    for path in sorted((folder / "pufferlib").rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        if set(parts) & set(LEFT_OUT) or (parts[1] == "environments" and len(parts) > 3):  # each a case of its own
            continue
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        names = dict.fromkeys(names_of(ast.parse(path.read_text()).body))
        public = [name for name in names if not any(part.startswith("_") for part in name.split("."))]
        modules[module] = sorted(public)
    return modules


def main() -> None:
    versions = {Path(folder).name.partition("-")[2]: modules_of(Path(folder)) for folder in sys.argv[1:]}
    RECORD.write_text(json.dumps(versions, indent=1) + "\n")


if __name__ == "__main__":
    main()
