"""The lines in which a trainer's script differs from ppo.py, which readers compare it with."""

from __future__ import annotations

import ast
import difflib
import re
import textwrap
from pathlib import Path
from types import ModuleType

from cleanrl_demo import ppo

__all__ = ["changed_lines"]

FUSED = {"config.learner == 'fused'", "self.learner == 'fused'"}
# How ppo.py would stand without the compiled learner and without the weights of rows.
REPLACED = {
    r"^    optimizer: Any\n(?=    generator)": "    optimizer: torch.optim.Optimizer\n",
    r"^    optimizer: Any\n": "",
    r" optimizer: Adam, or the FusedPolicy, which also acts\.": "",
    r"^    policy = learner\.optimizer if .*\n": "",
    r"= policy\(rollout": "= learner.actor(rollout",
    r"^    valid = by_weight\((.*), rollout\.weights, generator\)\n(.*)\(valid\)": r"\2(\1)",
    r"^.*(\bby_weight,|fair: str|weights: learn from|\"fair\"\)|self\.weights\b).*\n": "",
    r"^.*(FusedPolicy,|\bLEARNERS\b|learner: str|torch, or fused).*\n+": "",
}


def plain_lines() -> list[str]:
    """Return the lines of ppo.py without the compiled learner and the weights of rows, which no other script takes."""
    source = Path(str(ppo.__file__)).read_text()
    lines = source.splitlines(keepends=True)
    branches = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.If)]
    branches = [node for node in branches if ast.unparse(node.test) in FUSED]
    for node in sorted(branches, key=lambda node: node.lineno, reverse=True):
        rest = lines[node.orelse[0].lineno - 1 : node.end_lineno] if node.orelse else []
        indent = " " * node.col_offset
        lines[node.lineno - 1 : node.end_lineno] = [textwrap.indent(textwrap.dedent("".join(rest)), indent)]
    text = "".join(lines)
    for pattern, replacement in REPLACED.items():
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    return code_of(text)


def code_of(text: str) -> list[str]:
    """Return the lines after what a script says of itself."""
    lines = text.splitlines()
    return lines[lines.index("from __future__ import annotations") :]


def changed_lines(script: ModuleType) -> tuple[list[str], set[str]]:
    """Return the lines that differ, each with "+" or "-" before it, and the functions that only ppo.py has."""
    plain, other = plain_lines(), code_of(Path(str(script.__file__)).read_text())
    changed = [line for line in difflib.ndiff(plain, other) if line[0] in "+-"]
    return changed, {line for line in plain if line.startswith("def ")} - set(other)
