"""What the faces for other libraries share; each has a file of tests of its own, test_adapter_*.py."""

from __future__ import annotations

import importlib
import sys

import pytest

import pufferlib

pytestmark = pytest.mark.beside

LIBRARIES = {
    "sb3": "stable_baselines3",
    "tianshou": "tianshou",
    "torchrl": "torchrl",
    "skrl": "skrl",
    "dm_env": "dm_env",
    "gymnax": "gymnax",
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
