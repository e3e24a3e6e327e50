"""What nashpy and OpenSpiel find in random games: written to population_reference.json, which the tests read.

    python tests/helpers/population_reference.py

Needs ``nashpy`` and ``pip install "pufferlib[games]" matplotlib``; the tests need neither. Made with nashpy 0.0.43 and
OpenSpiel 2.0.2.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

FILE = Path(__file__).with_suffix(".json")
SHAPES = {"square": (4, 4), "wide": (3, 6), "larger": (9, 7), "three": (3, 2, 4)}


def payoffs_of(name: str, zero_sum: bool) -> Any:
    """Return the random game of this name: (num_seats, n_0, n_1, …)."""
    shape = SHAPES[name]
    rng = np.random.default_rng(len(name))
    if zero_sum:
        matrix = rng.normal(size=shape)
        return np.stack([matrix, -matrix])
    return rng.normal(size=(len(shape), *shape))


def main() -> None:
    import nashpy
    from open_spiel.python.algorithms import projected_replicator_dynamics as prd
    from open_spiel.python.egt import alpharank

    results: dict[str, Any] = {}
    for name, shape in SHAPES.items():
        if len(shape) == 2:
            matrix = payoffs_of(name, zero_sum=True)[0]
            results[f"nash {name}"] = [strategy.tolist() for strategy in nashpy.Game(matrix).linear_program()]
        for zero_sum in (True, False) if len(shape) == 2 else (False,):
            tensors = list(payoffs_of(name, zero_sum))
            key = f"{name} {zero_sum}"
            for alpha, kwargs in (
                (None, {"use_inf_alpha": True, "inf_alpha_eps": 1e-3}),
                (0.7, {"alpha": 0.7, "m": 50}),
            ):
                _, _, joint, _, _ = alpharank.compute(tensors, **kwargs)
                results[f"alpha_rank {alpha} {key}"] = joint.tolist()
            for steps in (1, 200):
                played = prd.projected_replicator_dynamics(
                    tensors, prd_iterations=steps, prd_dt=0.05, prd_gamma=1e-3, average_over_last_n_strategies=steps
                )
                results[f"replicator {steps} {key}"] = [strategy.tolist() for strategy in played]
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in results.items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
