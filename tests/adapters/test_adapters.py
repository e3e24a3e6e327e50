"""What the faces for other libraries share; each has a file of tests of its own, test_adapter_*.py."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pufferlib
from pufferlib.adapters.common import needs

pytestmark = pytest.mark.beside

LIBRARIES = {
    "sb3": "stable_baselines3",
    "tianshou": "tianshou",
    "torchrl": "torchrl",
    "skrl": "skrl",
    "dm_env": "dm_env",
    "gymnax": "jax",
    "envpool": "envpool",
    "rllib": "ray",
}


@pytest.mark.parametrize("adapter", LIBRARIES)
def test_missing_library_is_named_with_the_command(adapter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == LIBRARIES[adapter]]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, LIBRARIES[adapter], None)
    monkeypatch.delitem(sys.modules, f"pufferlib.adapters.{adapter}", raising=False)
    extra = adapter.replace("_", "-")
    with pytest.raises(pufferlib.MissingExtra, match=rf'pip install "pufferlib\[{extra}\]"'):
        importlib.import_module(f"pufferlib.adapters.{adapter}")


def test_a_library_that_is_there_in_part_is_missing() -> None:
    with (
        pytest.raises(pufferlib.MissingExtra, match=r'without tune.*pip install "pufferlib\[rllib\]"'),
        needs("RLlib", "rllib"),
    ):
        raise ImportError("ray is without tune")


@pytest.mark.long
def test_importing_pufferlib_is_enough_for_the_one_liners_of_the_docs() -> None:
    page = (Path(__file__).parents[2] / "docs/adapters.md").read_text()
    named = set(re.findall(r"pufferlib\.adapters\.([a-z0-9_]+)", page))
    assert named >= {*LIBRARIES, "gymnasium_vector", "cleanrl"}
    program = f"""
import sys

import pufferlib

assert "pufferlib.adapters" not in sys.modules
for name in {named}:
    try:
        assert getattr(pufferlib.adapters, name) is sys.modules[f"pufferlib.adapters.{{name}}"]
    except pufferlib.MissingExtra:
        pass
print(hasattr(pufferlib.adapters, "nothing"), pufferlib.adapters.gymnasium_vector.AsyncVectorEnv.__name__)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "False AsyncVectorEnv\n", done.stderr
