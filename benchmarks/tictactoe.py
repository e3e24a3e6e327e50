"""Exact values of policies in PettingZoo's tictactoe_v3, computed without playing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
import torch

from pufferlib.layout import Layout
from pufferlib.models import Actor

__all__ = ["Board", "Play", "best_value", "chance", "perfect", "play_of", "value"]

Board = tuple[int, ...]  # nine squares: 0 is free, 1 the first seat's, 2 the second's
Play = Mapping[Board, np.ndarray]  # for the seat to move, a probability for each square
EMPTY: Board = (0,) * 9
LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))


def on_turn(board: Board) -> int:
    """Return the seat to move, 1 or 2."""
    return 1 if board.count(1) == board.count(2) else 2


def after(board: Board, square: int) -> Board:
    """Return the board after the seat to move takes a square."""
    return (*board[:square], on_turn(board), *board[square + 1 :])


@cache
def result(board: Board) -> int | None:
    """Return the first seat's result, 1, 0 or -1; None if the game goes on."""
    for a, b, c in LINES:
        if board[a] and board[a] == board[b] == board[c]:
            return 1 if board[a] == 1 else -1
    return None if 0 in board else 0


def moves(board: Board) -> list[int]:
    """Return the free squares."""
    return [square for square in range(9) if not board[square]]


@cache
def best_value(board: Board = EMPTY) -> int:
    """Return the first seat's result if both play perfectly (minimax)."""
    ending = result(board)
    if ending is not None:
        return ending
    values = [best_value(after(board, square)) for square in moves(board)]
    return max(values) if on_turn(board) == 1 else min(values)


@cache
def boards() -> tuple[Board, ...]:
    """Return all reachable boards on which the game goes on."""
    reached, new = {EMPTY}, [EMPTY]
    while new:
        board = new.pop()
        nexts = {after(board, square) for square in moves(board)} - reached
        nexts = {successor for successor in nexts if result(successor) is None}
        reached |= nexts
        new += nexts
    return tuple(sorted(reached))


def chance() -> Play:
    """Return the policy that plays at random."""
    return _even(moves)


def perfect() -> Play:
    """Return the policy that chooses at random among all perfect moves."""
    return _even(
        lambda board: [square for square in moves(board) if best_value(after(board, square)) == best_value(board)]
    )


def _even(chosen: Callable[[Board], list[int]]) -> Play:
    play = {}
    for board in boards():
        play[board] = np.zeros(9)
        play[board][chosen(board)] = 1 / len(chosen(board))
    return play


def play_of(actor: Actor, layout: Layout) -> Play:
    """Return the probabilities of a network's policy on each board. layout: of PettingZoo's observations."""
    rows = []
    for board in boards():
        squares, seat = np.array(board).reshape(3, 3), on_turn(board)
        planes = np.stack([squares == seat, squares == 3 - seat], axis=-1)
        mask = squares.reshape(-1) == 0
        rows.append(layout.flatten({"observation": planes.astype(np.int8), "action_mask": mask.astype(np.int8)}))
    with torch.inference_mode():
        distribution, _, _ = actor(torch.from_numpy(np.stack(rows)))
    return dict(zip(boards(), distribution.log_probs[0].double().exp().numpy(), strict=True))


def value(first: Play, second: Play) -> float:
    """Return the first seat's expected result."""
    values: dict[Board, float] = {}

    def of(board: Board) -> float:
        over = result(board)
        if over is not None:
            return float(over)
        if board not in values:
            chances: Any = (first if on_turn(board) == 1 else second)[board]
            values[board] = sum(
                float(chances[square]) * of(after(board, square)) for square in moves(board) if chances[square]
            )
        return values[board]

    return of(EMPTY)
