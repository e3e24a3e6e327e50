"""Mark each line of some source files when it first runs: what a .pth file of tests/line_coverage.py executes.

Every Python of one virtual environment does that at its start, then calls ``start``. In the folder that it names,
``files.json`` says where each file's lines begin in ``lines``, which has one byte a line and is mapped by all
processes: one that is killed has lost nothing, and a forked one goes on marking. After a line's first event
sys.monitoring leaves it alone.
"""

import json
import mmap
import os
import sys
from types import CodeType
from typing import Any

MONITORING: Any = vars(sys)["monitoring"]  # from CPython 3.12 on


def start(folder: str) -> None:
    """Watch the files that the folder names, in all threads, and in the processes forked from this one."""
    tool, events, disable = MONITORING.COVERAGE_ID, MONITORING.events, MONITORING.DISABLE
    if MONITORING.get_tool(tool) is not None:  # Python has found the .pth file twice
        return
    with open(os.path.join(folder, "files.json")) as file:
        offsets: dict[str, int | None] = json.load(file)
    # Before 3.13 a map keeps a descriptor of its own.
    options: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}
    with open(os.path.join(folder, "lines"), "r+b") as lines:
        marks = mmap.mmap(lines.fileno(), 0, **options)

    def offset_of(name: str) -> int | None:
        if name not in offsets and name[:1] not in "/<":  # a script, named by its relative path
            offsets[name] = offsets.get(os.path.abspath(name))
        return offsets.get(name)

    def on_start(code: CodeType, _: int) -> Any:
        if offset_of(code.co_filename) is not None:
            MONITORING.set_local_events(tool, code, events.LINE)
        return disable

    def on_line(code: CodeType, line: int) -> Any:
        offset = offset_of(code.co_filename)
        if offset is not None:
            marks[offset + line] = 1
        return disable

    MONITORING.use_tool_id(tool, "line_probe")
    MONITORING.register_callback(tool, events.PY_START, on_start)
    MONITORING.register_callback(tool, events.LINE, on_line)
    MONITORING.set_events(tool, events.PY_START)
