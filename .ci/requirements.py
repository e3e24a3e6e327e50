"""requirements.py EXTRA…: print what pyproject.toml, in this folder, asks for with these extras; without any, the core.

The Dockerfile installs that before it has seen a source file; pip has no option for it. Python 3.11, or tomli.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

try:
    import tomllib
except ImportError:
    import tomli as tomllib

PROJECT = tomllib.loads(Path("pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


def requirements(extras: list[str]) -> Iterator[str]:
    if not extras:
        yield from PROJECT["dependencies"]
    for extra in extras:
        if extra not in EXTRAS:
            sys.exit(f'there is no extra "{extra}"; there are {", ".join(EXTRAS)}')
        for requirement in EXTRAS[extra]:
            name, _, others = requirement.rstrip("]").partition("[")
            yield from requirements(others.split(",")) if name == PROJECT["name"] else [requirement]


print("\n".join(requirements(sys.argv[1:])))
