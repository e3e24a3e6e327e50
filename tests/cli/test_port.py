"""`puffer port`: which uses of PufferLib it finds in a program, and what it says of them."""

from __future__ import annotations

import importlib.util
import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import record_ports

import pufferlib
from pufferlib.cli import main
from pufferlib.cli.port import _modules, _replacements, uses_of

RECORD = json.loads((Path(__file__).parents[1] / "compat/names.json").read_text())
PROGRAM = """
import numpy as np
import pufferlib, pufferlib.vector
import pufferlib.models as networks
import pufferlib.frameworks.cleanrl
from pufferlib import emulation as em, PufferEnv
from pufferlib.pytorch import layer_init as init

vector = pufferlib.vector
class Game(PufferEnv): ...
def make(buf=None):
    return em.GymnasiumPufferEnv(Game(), buf=buf)
vecenv = vector.make(make, backend=pufferlib.vector.Serial.__mro__[0])
policy = pufferlib.frameworks.cleanrl.Policy(networks.Default(vecenv.driver_env))
init(np.zeros(3), std=pufferlib.utils.Profiler().elapsed)
other = pufferlib.ocean.env_creator("puffer_breakout")
"""
USES = [
    (3, "pufferlib"),
    (3, "pufferlib.vector"),
    (4, "pufferlib.models"),
    (5, "pufferlib.frameworks.cleanrl"),
    (6, "pufferlib.PufferEnv"),
    (6, "pufferlib.emulation"),
    (7, "pufferlib.pytorch.layer_init"),
    (12, "pufferlib.emulation.GymnasiumPufferEnv"),
    (13, "pufferlib.vector.Serial"),
    (13, "pufferlib.vector.make"),
    (14, "pufferlib.frameworks.cleanrl.Policy"),
    (14, "pufferlib.models.Default"),
    (15, "pufferlib.utils.Profiler"),
    (16, "pufferlib.ocean"),
]


def test_imports_and_aliases_are_resolved() -> None:
    uses = uses_of(PROGRAM)
    assert [(use.line, use.name) for use in uses] == USES
    assert [use.name for use in uses if use.replacement is None] == ["pufferlib.utils.Profiler", "pufferlib.ocean"]
    assert uses_of("import numpy as pufferlib\npufferlib.zeros(3)\nvector.make()\n") == []


@pytest.mark.parametrize(
    ("line", "name", "replacement"),
    [
        ("import pufferlib", "pufferlib", "import pufferlib"),
        ("import pufferlib.models as m", "pufferlib.models", "import pufferlib.models"),
        ("import pufferlib.frameworks.cleanrl", "pufferlib.frameworks.cleanrl", "import pufferlib"),
        ("import pufferlib.ocean", "pufferlib.ocean", None),
        ("from pufferlib import frameworks", "pufferlib.frameworks", "import pufferlib"),
        ("from pufferlib.environments import atari", "pufferlib.environments.atari", None),
        ("from pufferlib.vector import *", "pufferlib.vector.*", None),
    ],
)
def test_an_import_without_further_use_counts(line: str, name: str, replacement: str | None) -> None:
    assert uses_of(line) == [(1, name, replacement)]


def test_the_command_prints_each_use_and_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    assert main(["port", str(path)]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert len(lines) == len(USES)
    assert lines[1] == f"{path}:3: pufferlib.vector: import pufferlib"
    assert lines[8] == f'{path}:13: pufferlib.vector.Serial: backend="serial"'
    assert lines[-1] == f"{path}:16: pufferlib.ocean: ? (see docs/migrating.md)"
    assert last == "14 uses of PufferLib, 2 of them without a replacement here"
    assert path.read_text() == PROGRAM


def test_files_that_are_no_programs_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["port", str(tmp_path / "none.py")]) == 1
    assert "none.py cannot be read" in capsys.readouterr().err
    (tmp_path / "old.py").write_text("print 3\n")
    assert main(["port", str(tmp_path / "old.py")]) == 1
    assert "old.py: line 1 is no Python" in capsys.readouterr().err
    (tmp_path / "zeros.py").write_bytes(b"import pufferlib\0")
    assert main(["port", str(tmp_path / "zeros.py")]) == 1
    assert " is no Python (source code" in capsys.readouterr().err


@pytest.mark.parametrize(("head", "encoding"), [("", "utf-8-sig"), ("# coding: latin-1\n", "latin-1")])
def test_programs_are_read_in_their_encoding(
    head: str, encoding: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.py").write_text(f"{head}import pufferlib.vector  # é\npufferlib.vector.make", encoding=encoding)
    assert main(["port", str(tmp_path / "a.py")]) == 0
    assert "2 uses of PufferLib, 0 of them" in capsys.readouterr().out


def test_the_table_has_names_of_theirs_alone() -> None:
    recorded = {
        f"{module}.{name}" for modules in RECORD.values() for module, names in modules.items() for name in names
    }
    modules = {module for modules in RECORD.values() for module in modules}
    names = {name.rpartition(".")[2] for name in recorded}
    others = ("__version__", "namespace", "PolicyPool", *"Box Dict Discrete Tuple".split())
    for name in _replacements():
        module, _, member = name.rpartition(".")
        assert module in modules, name
        assert member in names or member in others, name


@pytest.mark.extras
def test_what_the_table_names_is_there() -> None:
    texts = {*_replacements().values()}
    dotted = {
        name for text in texts for name in re.findall(r"(?:pufferlib|gymnasium|cleanrl_demo|pettingzoo)[.\w]*", text)
    }
    assert len(dotted) > 20
    for name in dotted:
        if name.startswith("pufferlib.adapters."):  # which need their libraries
            assert importlib.util.find_spec(name)
            continue
        parts = name.rstrip(".").split(".")
        value: Any = importlib.import_module(parts[0])
        for size, part in enumerate(parts[1:], 2):
            if not hasattr(value, part):
                value = importlib.import_module(".".join(parts[:size]))
            else:
                value = getattr(value, part)
    assert issubclass(pufferlib.APIUsageError, pufferlib.PufferError)


@pytest.mark.long
def test_every_public_case_is_answered_as_recorded() -> None:
    """This downloads the source distributions; after a change of the table run `python -m tests.cli.record_ports`."""
    uses = {" ".join(program): [*record_ports.uses(*program)] for program in record_ports.programs()}
    assert uses == json.loads(record_ports.RECORD.read_text())["uses"]


def test_the_record_of_public_cases_is_of_this_table() -> None:
    recorded = json.loads(record_ports.RECORD.read_text())["uses"]
    assert {name.partition(" ")[0] for name in recorded} == {"1.0.1", "2.0.6", "3.0.0"}
    counted = sum(len(uses) for uses in recorded.values())
    unknown = [use.split()[1] for uses in recorded.values() for use in uses if use.endswith("?")]
    assert counted > 300 and len(unknown) < counted / 10
    known = {*_replacements(), *_modules()}
    for use in itertools.chain(*recorded.values()):
        assert (use.split()[1] in known) != use.endswith("?"), use
