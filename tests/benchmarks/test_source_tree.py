"""benchmarks.source_tree: which lines it counts."""

from __future__ import annotations

from pathlib import Path

from benchmarks.source_tree import line_counts

FILES = {
    "cleanrl_demo/ppo.py": "import torch\nfrom cleanrl_demo.rows import rows\nfrom pufferlib.training import Session\n",
    "cleanrl_demo/rows.py": "rows = []\n" * 3,
    "pufferlib/training/__init__.py": "from pufferlib.training.session import Session, main\n",
    "pufferlib/training/session.py": "main = Session = None\n" * 5,
    "pufferlib/training/other.py": "\n" * 90,
    "pufferlib/population/pool.py": "\n" * 7,
    "pufferlib/population/games/trees.py": "\n" * 11,
    "benchmarks/results/a.json": "{}\n" * 13,
    "benchmarks/results/notes.py": "\n",
    "README.md": "\n" * 500,
}


def test_a_scripts_modules_are_those_that_define_what_it_imports(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert [*line_counts(tmp_path).values()] == [
        "120",
        "14",
        "1 files, 7 lines",
        "3 lines",
        "2 files, 8 lines",
    ]
