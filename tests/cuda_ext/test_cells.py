"""Who is near by cells is who is near by looking at all, wherever agents are; and the cells have no races."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kernel_programs
import numpy as np
import pytest
from devices import Player, array_of
from kernel_programs import REPORTED
from matrix import covering

from cuda_ext.functions import Shape
from cuda_ext.tag_continuous import KERNEL
from pufferlib.testing import check_kernel

pytestmark = pytest.mark.beside

LENGTH = 8.0
NUM_AGENTS = 200
FAR = np.random.default_rng(1).uniform(0, LENGTH, (NUM_AGENTS, 2))


def clusters() -> np.ndarray[Any, Any]:
    """Nearly all in one corner, the others along the opposite edges."""
    near = FAR / 100
    near[::9] = LENGTH - near[::9] * [1, 99]
    return near


SCENES = {
    "anywhere": FAR,
    "on one spot": np.full((NUM_AGENTS, 2), 3.0),
    "in the corners": np.array([(0, 0), (0, LENGTH), (LENGTH, 0), (LENGTH, LENGTH)])[np.arange(NUM_AGENTS) % 4],
    "on the corners of cells": np.stack(np.divmod(np.arange(NUM_AGENTS) * 7 % 225, 15), axis=1) * (LENGTH / 14),
    "on a line": np.stack([np.full(NUM_AGENTS, LENGTH), np.linspace(0, LENGTH, NUM_AGENTS)], axis=1),
    "in clusters": clusters(),
}


def arguments_of(places: Any, num_nearest: int, num_taggers: int = 2, **kwargs: Any) -> dict[str, Any]:
    return {
        "num_taggers": num_taggers,
        "num_runners": len(places) - num_taggers,
        "grid_length": LENGTH,
        "start": "fixed",
        "starts": [(x, y, 0) for x, y in places],
        "full_observation": False,
        "num_nearest": num_nearest,
        "max_speed": 0.5,
        **kwargs,
    }


@covering({"scene": [*SCENES], "num_nearest": [1, 32], "player": ["loops", "fibres"]}, indirect=["player"])
def test_the_nearest_are_the_references(scene: str, num_nearest: int, player: Player) -> None:
    check_nearest(scene, num_nearest, player)


@pytest.mark.gpu
@pytest.mark.parametrize("num_nearest", [1, 32])
@pytest.mark.parametrize("scene", SCENES)
def test_the_nearest_are_the_references_on_a_device(scene: str, num_nearest: int, device: str) -> None:
    check_nearest(scene, num_nearest, Player("device", device, {}))


def check_nearest(scene: str, num_nearest: int, player: Player) -> None:
    played: dict[str, Any] = dict(device=player.device, backend_kwargs=player.backend_kwargs, num_envs=1, num_steps=2)
    report = check_kernel(KERNEL, env_kwargs=arguments_of(SCENES[scene], num_nearest), **played)
    assert report.passed, str(report)


def test_who_has_left_is_not_seen(player: Player) -> None:
    """All but some leave in the first step, so that fewer are alive than could be seen."""
    places = np.where(np.arange(NUM_AGENTS)[:, np.newaxis] % 40 == 3, [8, 8], SCENES["in the corners"] / 100)
    played: dict[str, Any] = dict(device=player.device, backend_kwargs=player.backend_kwargs, num_envs=2, num_steps=3)
    report = check_kernel(KERNEL, env_kwargs=arguments_of(places, 20, tagging_distance=0.5), **played)
    assert report.passed, str(report)


@pytest.mark.parametrize(
    ("num_agents", "player"),
    [
        (33, "fibres"),
        pytest.param(1_100, "loops", marks=pytest.mark.long),
        pytest.param(1_100, "fibres", marks=pytest.mark.long),
        (2_049, "loops"),
        *(pytest.param(num_agents, "device", marks=pytest.mark.gpu) for num_agents in (33, 800, 1_100, 2_049)),
    ],
    indirect=["player"],
)
def test_any_number_of_agents(num_agents: int, player: Player) -> None:
    """From one agent a thread to several, and to more than cells hold."""
    places = np.random.default_rng(2).uniform(0, LENGTH, (num_agents, 2)).astype(np.float32)
    with player.make(KERNEL, env_kwargs=arguments_of(places, 10)) as vec:
        observations, _ = vec.reset(seed=1)
        neighbours = array_of(observations)[:, :20].reshape(num_agents, 2, 10)
    diagonal = np.float32(LENGTH) * np.float32(np.sqrt(2))
    for agent in range(0, num_agents, 7):
        gaps = places - places[agent]
        squares = gaps[:, 0] * gaps[:, 0] + gaps[:, 1] * gaps[:, 1]
        squares[agent] = np.inf
        nearest = np.argsort(squares, kind="stable")[:10]
        np.testing.assert_array_equal(neighbours[agent], gaps[nearest].T / diagonal)


SYNC, NO_SYNC = "    group.sync();\n", "    if (!FAULT) group.sync();\n"
COUNT = "cells.first_of(cells.index(y[a]), cells.index(x[a])) + 1"
RACES = {  # sound, unsound
    "zeros not waited for": ("*cells.total = 0;\n" + SYNC, "*cells.total = 0;\n" + NO_SYNC),
    "counts without atomics": (
        f"atomicAdd({COUNT}, 1);\n    }}",
        f"if (FAULT) *({COUNT}) += 1; else atomicAdd({COUNT}, 1);\n    }}",
    ),
    "sums not waited for": (
        "next += count;\n        }\n    }\n" + SYNC,
        "next += count;\n        }\n    }\n" + NO_SYNC,
    ),
    "a place not waited for": ("cells.agent[k] = a;\n    }\n" + SYNC, "cells.agent[k] = a;\n    }\n" + NO_SYNC),
}
Sanitized = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Sanitized:
    """What plays the kernel for some steps, with a fault in its cells or without: compiled once for all of them."""

    @functools.cache
    def built(sanitizer: str, spoilt: bool) -> Path:
        folder = tmp_path_factory.mktemp("sanitized")
        headers = folder / "headers"
        faults = [("cells.cuh", *texts) for texts in RACES.values()]
        kernel_programs.with_faults(headers, faults if spoilt else ())
        values = {parameter.name: 1 for parameter in KERNEL.schema.parameters}
        values |= {"num_agents": 64, "observation_size": 22, "num_taggers": 4, "num_nearest": 3, "full_observation": 0}
        values |= {"num_layouts": 0, "episode_length": 2, "squared_reach": 0}
        kernel = dataclasses.replace(KERNEL, source=str(headers / "tag_continuous.cuh"))
        text = kernel_programs.program(kernel, Shape(64, 64, 64, 0), 2, values, 2)
        return kernel_programs.build(text, folder, headers, sanitizer)

    def play(sanitizer: str, race: str = "", spoilt: bool = True) -> tuple[int, str]:
        number = [*RACES].index(race) + 1 if race else 0
        return kernel_programs.play(built(sanitizer, spoilt), sanitizer, number)

    return play


@pytest.mark.long
@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
@pytest.mark.parametrize("spoilt", [True, False])
def test_sanitizers_are_silent(spoilt: bool, sanitizer: str, sanitized: Sanitized) -> None:
    """Also with the faults in it, as long as they are turned off."""
    assert sanitized(sanitizer, spoilt=spoilt) == (0, "")


@pytest.mark.parametrize("race", RACES)
def test_races_are_noticed(race: str, sanitized: Sanitized) -> None:
    code, said = sanitized("thread", race)
    assert (code, "ThreadSanitizer: data race" in said or "ThreadSanitizer: SEGV" in said) == (REPORTED, True), said
