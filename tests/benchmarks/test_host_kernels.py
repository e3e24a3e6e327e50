"""The host's kernels beside another revision's: what is played, and the table."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import host_kernels

pytestmark = pytest.mark.beside

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_a_turn_plays_a_kernel_of_a_tree(tmp_path: Path) -> None:
    rates = host_kernels.rates_of(ROOT, "tag/grid", 0.05)
    assert [*rates] == [*host_kernels.WAYS] and min(rates.values()) > 0
    (tmp_path / "pufferlib").mkdir()
    (tmp_path / "pufferlib" / "__init__.py").write_text("raise ImportError('an unbuilt tree')")
    with pytest.raises(SystemExit, match=r"tag/grid does not play in (.*\n)*.*an unbuilt tree"):
        host_kernels.rates_of(tmp_path, "tag/grid", 0.05)


def test_ratios_are_within_pairs_of_turns() -> None:
    sides = {"before": [1e6, 2e6, 4e6], "now": [2e6, 2e6, 6e6]}
    revisions = {"machine": "a machine", "revision": "abc1234", "before": "0123abc"}
    text = host_kernels.table_of({**revisions, "kernels": {"tag/grid": {"steps": sides}}})
    assert "| kernel | played by | `0123abc` | `abc1234` | times as fast |" in text
    assert "| `tag/grid` | steps | 2,000,000 (1,000,000 – 4,000,000) | 2,000,000 (2,000,000 – 6,000,000)" in text
    assert text.endswith("| 1.50 (1.00 – 2.00) |")


@pytest.mark.long
def test_the_program_plays_all_kernels(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["host_kernels", str(ROOT), "--short"])
    host_kernels.main()
    text = capsys.readouterr().out
    assert all(f"| `{env}` | {way} |" in text for env in host_kernels.KERNELS for way in host_kernels.WAYS)
