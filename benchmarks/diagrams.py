"""Draw the diagrams of docs/how.md: the path of a row, and slots in blocks.

    python -m benchmarks.diagrams

Writes docs/pictures/path.svg and docs/pictures/blocks.svg.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.drawing import Drawing

PICTURES = Path(__file__).parent.parent / "docs" / "pictures"
OURS, THEIRS, ROWS = "#d9efec", "#fbe3dc", "#fff3c9"


def draw_path() -> None:
    """Draw the learner, a worker to its right, and the shared memory between them; numbers as in design.md, 8."""
    drawing = Drawing(700, 330)
    for x, width, title in ((10, 190, "your process"), (255, 190, "shared memory"), (500, 190, "a worker process")):
        drawing.box(x, 10, width, 310, fill="#fafafa", line="#bbb")
        drawing.text(x + width / 2, 30, title, anchor="middle", bold=True)
    for x, y, width, fill, caption, small in (
        (25, 60, 160, THEIRS, "your learner", "chooses actions"),
        (25, 130, 160, OURS, "send", "checks and writes them"),
        (25, 250, 160, OURS, "recv", "waits for a full block"),
        (270, 130, 160, ROWS, "action rows", "and a word for the worker"),
        (270, 250, 160, ROWS, "block of rows", "is the batch"),
        (515, 60, 160, OURS, "unpack", "the action as it was"),
        (515, 130, 160, THEIRS, "your environment", "step, and reset if due"),
        (515, 250, 160, OURS, "pack", "straight into a slot"),
    ):
        drawing.box(x, y, width, 46, fill=fill)
        drawing.text(x + width / 2, y + 20, caption, anchor="middle", bold=True)
        drawing.text(x + width / 2, y + 37, small, anchor="middle", size=11)
    drawing.arrow((105, 106), (105, 128))
    drawing.arrow((185, 153), (268, 153))
    drawing.arrow((430, 145), (470, 145), (470, 83), (513, 83))
    drawing.arrow((595, 106), (595, 128))
    drawing.arrow((595, 176), (595, 248))
    drawing.arrow((515, 273), (432, 273))
    drawing.arrow((270, 273), (187, 273))
    drawing.arrow((25, 273), (17, 273), (17, 83), (23, 83))
    for x, y, caption in ((226, 147, "1"), (480, 115, "2"), (604, 215, "2"), (473, 267, "3"), (228, 267, "3")):
        drawing.text(x, y, caption, anchor="middle", bold=True)
    drawing.text(350, 312, "no gathering, one copy", anchor="middle", size=11)
    drawing.write(PICTURES / "path.svg")


def draw_blocks() -> None:
    """Draw three blocks of a pool of 6 environments in batches of 3: one with the learner, one full, one filling."""
    drawing = Drawing(700, 235)
    slots = (("5", "0", "3"), ("1", "4", "2"), ("0", "5", ""))
    titles = ("received", "full: the next batch", "being filled")
    for block, (ids, title) in enumerate(zip(slots, titles, strict=True)):
        x = 10 + block * 230
        drawing.box(x, 30, 220, 130, fill="#fafafa", line="#bbb")
        drawing.text(x + 110, 22, f"block {block}: {title}", anchor="middle", bold=True)
        for slot, env_id in enumerate(ids):
            y = 40 + slot * 38
            drawing.box(x + 10, y, 200, 30, fill=ROWS if env_id else "#fff")
            drawing.text(x + 20, y + 19, f"slot {slot}")
            drawing.text(x + 200, y + 19, f"environment {env_id}" if env_id else "who is done next", anchor="end")
    drawing.text(120, 180, "valid until the second recv", anchor="middle")
    drawing.text(120, 196, "after it; then filled again", anchor="middle")
    drawing.text(350, 180, "recv returns it as it is:", anchor="middle")
    drawing.text(350, 196, "its arrays are the batch", anchor="middle")
    drawing.text(580, 180, "environment 3 is at work;", anchor="middle")
    drawing.text(580, 196, "4, 1 and 2 wait for actions", anchor="middle")
    drawing.text(
        350,
        226,
        "6 environments in batches of 3 have four blocks, used round and round; three are shown.",
        anchor="middle",
        size=11,
    )
    drawing.write(PICTURES / "blocks.svg")


if __name__ == "__main__":
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    draw_path()
    draw_blocks()
