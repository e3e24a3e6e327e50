"""Recordings: the same wherever made, identical wherever replayed, and the first difference by its name."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import os
import pickle
import signal
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from matrix import covering
from mock_envs import HashEnv, HashPopulation, NestedHashEnv, TagEnv

from pufferlib import _native
from pufferlib.errors import PlanError, RecordingError, WorkerError
from pufferlib.recording import Recording, Replay, record, replay
from pufferlib.recording.rows import Crash, Reader
from pufferlib.vectorization.core.messages import CrashCause, Died, Failed, Message, located
from pufferlib.vectorization.core.step_watchdog import Doing

pytestmark = pytest.mark.beside

# Backend, workers, batch; of four environments. None is all.
ARRANGEMENTS = [
    ("serial", None, None),
    ("serial", None, 3),
    ("multiprocessing", 2, None),
    ("multiprocessing", 3, 2),
    ("pool", 2, None),
    ("pool", 3, 2),
    ("pool", 2, 1),
]
FEW = [ARRANGEMENTS[0], ARRANGEMENTS[3], ARRANGEMENTS[6]]
PROCESSES = FEW[1:]
MODES = ("next_step", "same_step", "disabled")
PATHS = ["compiled", "portable"] if _native.available else ["portable"]
SHORT_PATHS = [PATHS[0], *(pytest.param(path, marks=pytest.mark.long) for path in PATHS[1:])]


@pytest.fixture(params=SHORT_PATHS, autouse=True)
def path_between(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Take each path in turn, in forked workers too.

    The short form takes both in the tests of ``on_each_path``, and the compiled one in the others.
    """
    if request.param == "portable":
        monkeypatch.setattr(_native, "available", False)
    return str(request.param)


def on_each_path(axes: dict[str, Sequence[Any]]) -> pytest.MarkDecorator:
    """Parametrize a test as ``covering`` does, with the two paths as another axis."""
    return covering({"path_between": PATHS, **axes}, indirect=["path_between"])


def on(arrangement: tuple[str, int | None, int | None]) -> dict[str, Any]:
    return dict(zip(("backend", "num_workers", "batch_size"), arrangement, strict=True))


def saved(recording: Recording, folder: Path) -> bytes:
    recording.save(folder / "some.npz")
    return (folder / "some.npz").read_bytes()


class Planted(NestedHashEnv):
    """Does something else in one of its rows, if it is told to: ``fault`` in row ``at`` of environment ``where``.

    Rows are counted as a VecEnv gives them in next_step and disabled: each reset and each step is one.
    """

    def __init__(self, env_index: int = 0, faults: tuple[Any, ...] = (), **kwargs: Any) -> None:
        super().__init__(env_index, **kwargs)
        self.faults = {at: fault for where, at, fault in faults if where == env_index}
        self.row = -1

    def tampered(self, observation: Any, name: str) -> Any:
        if name == "bits":
            observation["bits"] = 1 - observation["bits"]
        if name == "pair.1":
            observation["pair"][1][1] += 1
        if name == "word":
            observation["word"] = observation["word"][:-1]
        return observation

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.row += 1
        observation, info = super().reset(seed=seed, options=options)
        return self.tampered(observation, self.happening()), info

    def happening(self) -> str:
        fault = str(self.faults.get(self.row, ""))
        if fault == "raises":
            raise ValueError(f"the emulator at {self!r} caught fire")
        if fault == "raises otherwise":
            raise ValueError("the emulator fell into the water")
        if fault == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        return fault

    def step(self, action: Any) -> Any:
        self.row += 1
        fault = self.happening()
        observation, reward, terminated, truncated, info = super().step(action)
        observation = self.tampered(observation, fault)
        if fault == "reward":
            reward = np.nextafter(np.float32(reward), np.float32(1e9))
        if fault == "terminated":
            terminated = not terminated
        if fault == "truncated":
            truncated = not truncated
        if fault == "episode":
            info = {**info, "episode": {"r": 0.5, "l": 3}}
        return observation, float(reward), terminated, truncated, info


def planted(*faults: tuple[int, int, str], **kwargs: Any) -> Callable[..., Any]:
    return functools.partial(Planted, faults=faults, mean_length=1000, **kwargs)


def test_planted_faults_are_where_they_are_said_to_be() -> None:
    """Nothing below proves anything unless the environment with faults is otherwise the one without."""
    assert replay(record(planted(), num_steps=40), env=planted((2, 41, "bits"))).identical


# ------------------------------------------------------------------------------------------ the same everywhere


@pytest.mark.slow
@on_each_path({"env": [HashEnv, NestedHashEnv, HashPopulation, TagEnv], "mode": MODES})
def test_a_recording_is_the_same_file_wherever_it_is_made_and_replays_anywhere(
    env: Any, mode: str, tmp_path: Path
) -> None:
    wrap_kwargs = {"max_agents": 5} if env is HashPopulation else {}
    arguments: dict[str, Any] = {"num_steps": 25, "seed": 7, "wrap_kwargs": wrap_kwargs, "autoreset_mode": mode}
    first = record(env, tmp_path / "first.npz", keep=True, **arguments)
    assert first.num_episodes > 4 and first.failure is None
    content = (tmp_path / "first.npz").read_bytes()
    for arrangement in ARRANGEMENTS[1 + MODES.index(mode) :: 3]:
        assert saved(record(env, keep=True, **arguments, **on(arrangement)), tmp_path) == content, arrangement
        report = replay(tmp_path / "first.npz", **on(arrangement))
        assert report.identical, str(report)


@st.composite
def arrangements(draw: st.DrawFn, num_envs: int) -> dict[str, Any]:
    backend = draw(st.sampled_from(["serial", "multiprocessing", "pool"]))
    num_workers = 1 if backend == "serial" else draw(st.integers(1, num_envs))
    return {"backend": backend, "num_workers": num_workers, "batch_size": draw(st.integers(1, num_envs))}


@pytest.mark.slow
@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), num_envs=st.integers(1, 6), seed=st.integers(0, 2**40))
@on_each_path({"env": [HashEnv, HashPopulation]})
def test_any_arrangement_replays_on_any_other(env: Any, data: st.DataObject, num_envs: int, seed: int) -> None:
    """Also where steps take random times, so that a pool's batches come in any order."""
    made_on, replayed_on = data.draw(arrangements(num_envs)), data.draw(arrangements(num_envs))
    mode, num_steps = data.draw(st.sampled_from(MODES)), data.draw(st.integers(1, 25))
    recording = record(
        env,
        num_steps=num_steps,
        num_envs=num_envs,
        seed=seed,
        env_kwargs={"max_delay_s": 0.001},
        wrap_kwargs={"max_agents": 5} if env is HashPopulation else None,
        autoreset_mode=mode,
        **made_on,
    )
    assert [tape.num_rows for tape in recording.tapes] == [num_steps + 1] * num_envs
    report = replay(recording, **replayed_on)
    assert report.identical, str(report)


def test_what_is_recorded_is_what_the_environment_does() -> None:
    """ExtraLeaves the raw environment, played by hand: seeds, actions, rewards, flags, masks and ends."""
    recording = record(HashEnv, num_steps=60, num_envs=3, seed=4, keep=True)
    ends = 0
    for env_id, tape in enumerate(recording.tapes):
        env, over, seed = HashEnv(env_id), True, recording.origin.seeds[env_id]
        for row in range(61):
            if over:
                observation, _ = env.reset(seed=seed if row == 0 else None)
                reward, terminated, truncated, mask, total, length = 0.0, False, False, False, 0.0, 0
            else:
                observation, reward, terminated, truncated, _ = env.step(int(tape.actions[0][row - 1, 0]))
                mask, total, length = True, total + reward, length + 1
            over = terminated or truncated
            assert tape.observations is not None
            assert np.array_equal(tape.observations[row, 0], observation)
            is_row = (tape.rewards[row, 0], tape.terminations[row, 0], tape.truncations[row, 0], tape.masks[row, 0])
            assert is_row == (np.float32(reward), terminated, truncated, mask)
            assert tape.episodes.get(row, ()) == (((0, total, length),) if over else ())
            ends += over
    assert ends == recording.num_episodes > 15
    drawn = [tape.actions[0].tobytes() for tape in recording.tapes]
    assert len({*drawn, record(HashEnv, num_steps=60, num_envs=1, seed=5).tapes[0].actions[0].tobytes()}) == 4


class Masked(gymnasium.Env[Any, Any]):
    """Refuses actions that its mask forbids, by an exception."""

    observation_space = Dict(action_mask=Box(0, 1, (7,), np.int8), tick=Discrete(100))
    action_space = Discrete(7)

    def observe(self) -> Any:
        self.mask = (self.np_random.random(7) < 0.3).astype(np.int8)
        self.mask[self.tick % 7] = 1
        return {"action_mask": self.mask, "tick": self.tick}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.tick = 0
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        assert self.mask[action], "a forbidden action"
        self.tick += 1
        return self.observe(), 0.0, self.tick == 9, False, {}


@on_each_path({"arrangement": FEW[::2]})
def test_actions_obey_masks(arrangement: Any) -> None:
    recording = record(Masked, num_steps=50, **on(arrangement))
    assert recording.failure is None
    assert len(np.unique(recording.tapes[0].actions[0])) == 7
    assert replay(recording, **on(arrangement)).identical


@on_each_path({"arrangement": FEW[::2]})
def test_vectorized_environments(arrangement: Any) -> None:
    """One environment of three copies, which start again by themselves."""

    def copies() -> Any:
        return gymnasium.vector.SyncVectorEnv([functools.partial(HashEnv, index) for index in range(3)])

    recording = record(copies, num_steps=40)
    assert recording.row_spec.agents_per_env == 3 and recording.num_episodes > 30
    report = replay(recording, env=copies, **on(arrangement))
    assert report.identical, str(report)


def test_each_environment_may_have_arguments_of_its_own() -> None:
    lengths = [{"mean_length": length} for length in (2, 20)]
    recording = record(HashEnv, num_envs=2, num_steps=200, env_kwargs=lengths)
    ends = [len(tape.episodes) for tape in recording.tapes]
    assert ends[0] > 4 * ends[1] > 0
    assert replay(recording, backend="pool", num_workers=2, batch_size=1).identical
    many = record([HashEnv, NestedHashEnv][:1] * 2, num_steps=10, seed=1)
    assert many.num_envs == 2 and many.origin.env == ["mock_envs:HashEnv"] * 2
    assert replay(many, backend="multiprocessing").identical


# ------------------------------------------------------------------------------------------ the first difference


FAULTS: list[tuple[str, str, tuple[str, ...]]] = [
    ("bits", "observation.bits", ()),
    ("pair.1", "observation.pair.1", ()),
    ("word", "observation.word.data", ("observation.word.length",)),
    ("reward", "reward", ()),
    ("terminated", "terminated", ("episode",)),
    ("truncated", "truncated", ("episode",)),
    ("episode", "episode", ()),
    ("raises", "error", ()),
]


@on_each_path({"fault,field,also": FAULTS, "arrangement": FEW})
def test_the_first_difference_is_named(fault: str, field: str, also: Any, arrangement: Any, first: Recording) -> None:
    report = replay(first, env=planted((2, 7, fault)), **on(arrangement))
    difference = report.difference
    assert difference is not None
    assert (difference.env_id, difference.step, difference.place, difference.field, difference.also) == (
        2,
        7,
        None,
        field,
        also,
    ), str(report)
    assert str(report).startswith(f"different: environment 2, step 7: {field}")


@pytest.fixture(scope="module")
def first() -> Recording:
    """Of the environment without a fault."""
    return record(planted(), num_steps=30, seed=2)


FIRST_FAULTS: list[tuple[Any, tuple[int, int]]] = [
    (((0, 20, "reward"), (3, 7, "reward")), (3, 7)),
    (((3, 7, "reward"), (1, 7, "bits")), (1, 7)),
    (((0, 30, "reward"),), (0, 30)),
    (((3, 0, "bits"), (0, 1, "bits")), (3, 0)),
    (((0, 20, "raises"), (3, 7, "raises")), (3, 7)),
    (((2, 9, "raises"), (1, 9, "bits")), (1, 9)),
]


@on_each_path({"faults,named": FIRST_FAULTS, "arrangement": FEW})
def test_it_is_the_first_by_step_and_then_by_environment(
    faults: Any, named: Any, arrangement: Any, first: Recording
) -> None:
    """Though the environment that has it may be the last to get there: here it is slow."""
    report = replay(first, env=functools.partial(with_a_slow_one, slow=named[0], faults=faults), **on(arrangement))
    assert report.difference is not None
    assert (report.difference.env_id, report.difference.step) == named, str(report)


def with_a_slow_one(env_index: int, slow: int, faults: Any) -> Any:
    return planted(*faults)(env_index, max_delay_s=0.004 if env_index == slow else 0.0)


def test_a_difference_in_the_middle_of_an_episode_says_which(first: Recording) -> None:
    short = functools.partial(Planted, mean_length=4)
    recording = record(short, num_steps=30, seed=2)
    ends = sorted(recording.tapes[1].episodes)
    for at, where in (
        (0, "first reset"),
        (ends[0], f"step {ends[0]}"),
        (ends[0] + 1, f"step {ends[0] + 1} (reset to episode 2)"),
        (ends[1] + 3, f"step {ends[1] + 3} (episode 3, step 2)"),
    ):
        report = replay(recording, env=functools.partial(short, faults=((1, at, "bits"),)))
        assert str(report).startswith(f"different: environment 1, {where}: observation.bits")


class Misremembers(HashPopulation):
    """Tells its second agent, on place 1, something else in its step 5."""

    def _observe(self, agents: list[Any]) -> Any:
        seen = super()._observe(agents)
        if self.tick == 5 and self.env_index == 1 and (1,) in seen:
            seen[1,] = seen[1,] + 1
        return seen


@on_each_path({"arrangement": FEW})
def test_the_agent_is_named(arrangement: Any) -> None:
    recording = record(HashPopulation, num_steps=12, seed=6, wrap_kwargs={"max_agents": 5})
    ended = [end.place for row, ends in recording.tapes[1].episodes.items() if row < 6 for end in ends]
    assert not {1, -1} & {*ended}, "another seed would be better: the second agent does not live that long"
    difference = replay(recording, env=Misremembers, **on(arrangement)).difference
    assert difference is not None
    assert (difference.env_id, difference.step, difference.place, difference.field, difference.also) == (
        1,
        5,
        1,
        "observation",
        (),
    )
    assert difference.where == "environment 1, agent 1, step 5: observation"


class Loses(HashPopulation):
    """Its second agent is gone after step 4, though it told nobody of its end."""

    def step(self, actions: Any) -> Any:
        outcome = super().step(actions)
        if self.tick == 5 and self.env_index == 1:
            self.agents.remove((1,))
            for part in outcome:
                part.pop((1,), None)
        return outcome


@on_each_path({"arrangement": FEW})
def test_an_agent_that_is_not_there_is_a_difference(arrangement: Any) -> None:
    recording = record(HashPopulation, num_steps=12, seed=6, wrap_kwargs={"max_agents": 5})
    difference = replay(recording, env=Loses, **on(arrangement)).difference
    assert difference is not None and (difference.env_id, difference.step, difference.place) == (1, 5, 1)
    assert (difference.field, difference.also) == ("observation", ("reward", "truncated", "mask", "episode"))


def test_values_are_shown_where_they_were_kept(first: Recording) -> None:
    hashes_only = replay(first, env=planted((2, 7, "pair.1")))
    assert hashes_only.difference is not None and not hashes_only.shows_values
    assert hashes_only.difference.recorded == "not kept"
    recording = record(planted(), num_steps=30, seed=2, keep=True)
    difference = replay(recording, env=planted((2, 7, "pair.1"))).difference
    assert difference is not None and recording.tapes[2].observations is not None
    assert difference.now == hashes_only.difference.now
    recorded, now = (
        np.array(json.loads(text.replace(".,", ".0,").replace(".]", ".0]")))
        for text in (difference.recorded, difference.now)
    )
    assert np.array_equal(now - recorded, [0, 1])
    reward = replay(first, env=planted((2, 7, "reward"))).difference
    assert reward is not None and np.float32(reward.recorded) < np.float32(reward.now)
    assert float(reward.now) - float(reward.recorded) < 1e-5  # one unit in the last place is seen, and shown


class Screen(gymnasium.Env[Any, Any]):
    """An image of one value, but for what is told at its creation: {(row, column): value}."""

    observation_space = Box(-np.inf, np.inf, (20, 30), np.float32)
    action_space = Discrete(2)

    def __init__(self, pixels: Any = ()) -> None:
        self.pixels = pixels

    def observe(self) -> Any:
        image = np.full((20, 30), 0.5, np.float32)
        for index, bits in self.pixels:
            image.view(np.uint32)[index] = bits
        return image

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        return self.observe(), 0.0, False, False, {}


def bits_of(value: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def test_of_a_large_leaf_the_first_element_is_shown() -> None:
    recording = record(Screen, num_steps=2, keep=True)
    pixels = [((3, 17), bits_of(0.25)), ((11, 2), bits_of(0.75))]
    report = replay(recording, env_kwargs={"pixels": pixels})
    assert str(report).splitlines()[:3] == [
        "different: environment 0, first reset: observation",
        "  recorded: 0.5 at [3, 17]",
        "  now:      0.25; 2 of 600 elements differ",
    ]


@pytest.mark.parametrize(("then", "now"), [(0x7FC00000, 0x7FC00001), (bits_of(0.0), bits_of(-0.0))])
def test_everything_is_compared_by_its_bytes(then: int, now: int) -> None:
    """A NaN is the same NaN, and differs from another; 0.0 differs from -0.0."""
    recording = record(Screen, num_steps=2, keep=True, env_kwargs={"pixels": [((0, 0), then)]})
    assert replay(recording).identical
    difference = replay(recording, env_kwargs={"pixels": [((0, 0), now)]}).difference
    assert difference is not None and difference.field == "observation"
    texts = difference.recorded.partition(" at")[0], difference.now.partition(";")[0]
    assert texts in (("nan (bytes 0000c07f)", "nan (bytes 0100c07f)"), ("0.0", "-0.0"))  # all NaNs read alike


class Rewards(HashEnv):
    """Gives the same reward each time."""

    def __init__(self, env_index: int = 0, bits: int = 0) -> None:
        super().__init__(env_index, mean_length=1000)
        self.value = struct.unpack("<f", struct.pack("<I", bits))[0]

    def step(self, action: Any) -> Any:
        observation, _, *rest = super().step(action)
        return observation, self.value, *rest


@pytest.mark.parametrize(("then", "now"), [(bits_of(np.nan), bits_of(np.inf)), (bits_of(0.0), bits_of(-0.0))])
def test_rewards_are_compared_by_their_bytes(then: int, now: int) -> None:
    recording = record(Rewards, num_steps=2, env_kwargs={"bits": then})
    assert replay(recording).identical
    difference = replay(recording, env_kwargs={"bits": now}).difference
    assert difference is not None and (difference.step, difference.field) == (1, "reward")
    assert difference.recorded != difference.now


def test_seeds_are_those_of_the_file() -> None:
    """However later versions derive them from the one seed."""
    recording = record(HashEnv, num_steps=10, seed=1)
    origin = recording.origin
    assert replay(dataclasses.replace(recording, origin=origin._replace(seed=2))).identical
    turned = dataclasses.replace(recording, origin=origin._replace(seeds=(*origin.seeds[:3], 5)))
    difference = replay(turned, **on(FEW[-1])).difference
    assert difference is not None and (difference.env_id, difference.step, difference.field) == (3, 0, "observation")


class GloballyRandom(HashEnv):
    def step(self, action: Any) -> Any:
        observation, _, *rest = super().step(action)
        return observation, np.random.random() if self.tick == 3 else 0.0, *rest


def test_an_environment_that_draws_from_a_global_generator_is_found_out() -> None:
    np.random.seed(0)
    recording = record(GloballyRandom, num_steps=20, env_kwargs={"mean_length": 100})
    difference = replay(recording).difference
    assert difference is not None and (difference.step, difference.field) == (3, "reward")


def test_other_spaces_are_a_difference() -> None:
    class Wider(HashEnv):
        def __init__(self, env_index: int = 0) -> None:
            super().__init__(env_index)
            self.action_space = Box(-1, 1, (2,), np.float32)

    recording = record(HashEnv, num_steps=3)
    report = replay(recording, env=NestedHashEnv)
    assert report.difference is not None and report.difference.step is None
    assert str(report).startswith("different: observation space\n  recorded: uint8 (16,)\n  now:      bits int8 (3,), ")
    assert "different: action space\n  recorded: int64 ()\n  now:      float32 (2,)" in str(
        replay(recording, env=Wider)
    )
    report = replay(record(TagEnv, num_steps=3), env_kwargs={"num_agents": 3})
    assert str(report).startswith("different: number of agents\n  recorded: 2\n  now:      3")


def test_other_versions_are_named_where_there_is_a_difference(first: Recording) -> None:
    first.origin.versions["numpy"], then = "1.0", first.origin.versions["numpy"]
    try:
        assert "numpy" not in str(replay(first, env=planted()))
        report = str(replay(first, env=planted((2, 7, "reward"))))
        assert report.endswith(f"\nrecorded with numpy 1.0 (now {np.__version__})")
    finally:
        first.origin.versions["numpy"] = then


# ------------------------------------------------------------------------------------------------------ failures


@pytest.mark.slow
@on_each_path({"at,mode": [(0, "next_step"), (7, "next_step"), (7, "disabled")], "made_on": FEW})
def test_a_recording_that_ends_in_an_exception_is_replayed_to_it(
    made_on: Any, at: int, mode: str, tmp_path: Path
) -> None:
    broken = planted((1, at, "raises"))
    recording = record(broken, tmp_path / "broken.npz", num_steps=20, autoreset_mode=mode, **on(made_on))
    failure = recording.failure
    assert failure is not None and (failure.env_id, failure.step) == (1, at)
    assert "in happening" in failure.traceback
    phase = "step" if at else "reset"
    assert (
        failure.text
        == f"raised in {phase}: ValueError: the emulator at <test_recording.Planted object at 0x…> caught fire"
    )
    lengths = [tape.num_rows for tape in recording.tapes]
    assert lengths[1] == at == max(lengths)
    for arrangement in FEW:
        report = replay(tmp_path / "broken.npz", env=broken, **on(arrangement))
        assert report.identical, str(report)
        assert str(report).endswith(f"\nends as recorded: environment 1, step {at}, {failure.text}")
        if arrangement != FEW[-1]:
            continue
        for other, now in (
            (planted(), "it went on"),
            (planted((1, at, "raises otherwise")), f"raised in {phase}: ValueError: the emulator fell into the water"),
        ):
            difference = replay(tmp_path / "broken.npz", env=other, **on(arrangement)).difference
            assert difference is not None
            assert (difference.env_id, difference.step, difference.field) == (1, at, "error")
            assert (difference.recorded, difference.now) == (failure.text, now)
            assert ("in happening" in difference.traceback) == ("raised" in now)


@on_each_path({"made_on": PROCESSES})
def test_a_recording_that_ends_in_a_workers_death_is_replayed_to_it(made_on: Any) -> None:
    deadly = planted((1, 7, "dies"))
    recording = record(deadly, num_steps=20, **on(made_on))
    failure = recording.failure
    assert failure is not None and (failure.env_id, failure.step) == (1, 7)
    assert failure.text == "ended its worker, which was killed by signal 9 (SIGKILL), in its step"
    for arrangement in PROCESSES:
        report = replay(recording, env=deadly, **on(arrangement))
        assert report.identical, str(report)
        difference = replay(recording, env=planted((1, 7, "raises")), **on(arrangement)).difference
        assert difference is not None and (difference.field, difference.recorded) == ("error", failure.text)


def test_what_other_environments_do_before_a_workers_death_is_compared() -> None:
    deadly = ((1, 7, "dies"),)
    recording = record(planted(*deadly), num_steps=20, backend="multiprocessing", num_workers=2)
    env = functools.partial(with_a_slow_one, slow=0, faults=((0, 6, "bits"), *deadly))
    report = replay(recording, env=env, backend="pool", num_workers=2, batch_size=1)
    assert report.difference is not None, str(report)
    assert (report.difference.env_id, report.difference.step) == (0, 6)


@pytest.mark.parametrize(
    ("message", "crash"),
    [
        (
            Failed.of(5, 1, "step", ValueError(f"a\n{object()}")),
            Crash(5, "raised in step: ValueError: a", "ValueError: a\n<object object at"),
        ),
        (
            Died(1, -9, range(4, 8), Doing(5, is_reset=True)),
            Crash(5, "ended its worker, which was killed by signal 9 (SIGKILL), in its reset"),
        ),
        (Died(1, 3, range(4, 8)), Crash(None, "worker 1, with environments 4 to 7, ended with exit code 3")),
    ],
)
def test_a_crash_reads_the_same_from_a_ray_actor(message: Message, crash: Crash) -> None:
    assert isinstance(message, (Failed, Died))
    cause = CrashCause.of(message)
    plain = Crash.of(cause)
    assert plain._replace(traceback="") == crash._replace(traceback="") and plain.traceback.startswith(crash.traceback)
    assert Crash.of(pickle.loads(pickle.dumps(cause))) == plain
    remote = located(message, 3, ", on node 10.0.0.7")
    assert isinstance(remote, (Failed, Died)) and "worker 4, on node 10.0.0.7" in CrashCause.of(remote)
    assert plain.env_id is None or Crash.of(CrashCause.of(remote)) == plain


@on_each_path({"arrangement": PROCESSES})
def test_a_worker_that_dies_in_a_replay_is_a_difference(arrangement: Any, first: Recording) -> None:
    difference = replay(first, env=planted((1, 7, "dies")), **on(arrangement)).difference
    assert difference is not None
    assert (difference.env_id, difference.step, difference.field, difference.recorded) == (1, 7, "error", "none")
    assert "was killed by signal 9 (SIGKILL)" in difference.now


def test_rows_that_were_lost_are_not_called_identical(first: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """As may happen to those who share the worker of one that ends it, and are late."""
    read = Reader.row

    def row(self: Reader, batch: Any, index: int, infos: Any) -> Any:
        lost = batch.env_ids[index] == 0 and next(counter) == 3
        return read(self, batch, index, infos)._replace(crash=Crash(1, "ended its worker") if lost else None)

    counter = itertools.count()
    monkeypatch.setattr(Reader, "row", row)
    with pytest.raises(WorkerError, match="not all rows could be compared: environment 0, step 3: environment 1 ended"):
        replay(first, env=planted())


def test_an_environment_that_cannot_be_made_is_an_error(first: Recording) -> None:
    with pytest.raises(WorkerError, match="raised in __init__: TypeError"):
        replay(first, env=planted(), env_kwargs={"colour": "red"})
    with pytest.raises(WorkerError, match="raised in __init__: TypeError"):
        record(HashEnv, env_kwargs={"colour": "red"})


# --------------------------------------------------------------------------------------------------------- files


def test_any_numpy_reads_a_file(tmp_path: Path) -> None:
    record(HashEnv, tmp_path / "a.npz", num_steps=5, num_envs=2, seed=3, env_kwargs={"mean_length": 4})
    with np.load(tmp_path / "a.npz", allow_pickle=False) as arrays:
        header = json.loads(str(arrays["header"]))
        shapes = {name: (arrays[name].dtype.str, arrays[name].shape) for name in arrays.files if name != "header"}
    assert (header["format"], header["version"]) == ("pufferlib recording", 1)
    assert (header["env"], header["env_kwargs"], header["seed"]) == ("mock_envs:HashEnv", "{'mean_length': 4}", 3)
    assert header["versions"].keys() >= {"Python", "numpy", "gymnasium", "pufferlib", "machine"}
    ends = shapes["episode_rows"][1]
    assert shapes == {
        "lengths": ("<i8", (2,)),
        "actions_0": ("<i8", (12, 1)),
        "hashes": ("<u8", (12, 1, 1)),
        "rewards": ("<f4", (12, 1)),
        "terminations": ("|b1", (12, 1)),
        "truncations": ("|b1", (12, 1)),
        "masks": ("|b1", (12, 1)),
        "episode_rows": ("<i8", ends),
        "episode_places": ("<i8", ends),
        "episode_returns": ("<f8", ends),
        "episode_lengths": ("<i8", ends),
    }


def test_the_version_of_an_environments_own_package_is_noted() -> None:
    recording = record("CartPole-v1", num_steps=2)
    assert recording.origin.versions["gymnasium"] == gymnasium.__version__
    assert "mock_envs" not in record(HashEnv, num_steps=2).origin.versions
    by_function = record(gymnasium.make, num_steps=2, env_args=("CartPole-v1",))
    assert by_function.origin.env == "gymnasium.envs.registration:make"
    assert replay(by_function).identical


@pytest.mark.parametrize(
    ("arguments", "missing"),
    [
        ({"env": lambda: HashEnv()}, "env="),
        ({"env": functools.partial(HashEnv, mean_length=3)}, "env="),
        ({"env": [HashEnv, lambda: HashEnv()], "num_envs": None}, "env="),
        ({"env": HashEnv, "env_kwargs": {"mean_length": np.float32(4.5)}}, "env_kwargs="),
        ({"env": lambda **_: HashEnv(), "env_kwargs": {"x": object()}}, "env= and env_kwargs="),
    ],
)
def test_what_a_file_cannot_hold_is_asked_for(arguments: Any, missing: str, tmp_path: Path) -> None:
    record(**{"num_envs": 2, "num_steps": 5, **arguments}, path=tmp_path / "a.npz")
    # NumPy 1 prints its numbers as Python's, and then there is nothing missing.
    if missing == "env_kwargs=" and "np." not in repr(np.float32(1)):
        assert replay(tmp_path / "a.npz").identical
        return
    with pytest.raises(RecordingError, match=f"cannot hold what it was made from; pass {missing} as to record"):
        replay(tmp_path / "a.npz")
    again = {name: value for name, value in arguments.items() if name != "num_envs"}
    assert replay(tmp_path / "a.npz", **again).identical


def test_arguments_come_back_as_they_were(tmp_path: Path) -> None:
    """A tuple is no list, and 1 no True: an environment may tell them apart."""
    kwargs = {"a": (1, [2.5, None]), "b": {"c": True, 3: "ü'\""}, "d": -1e-300, "e": {1, 2}, "f": b"\0"}

    def make(*args: Any, **keywords: Any) -> Any:
        assert repr((args, keywords)) == repr(((1, (2,)), kwargs))
        return HashEnv()

    record(make, tmp_path / "a.npz", num_steps=3, env_args=(1, (2,)), env_kwargs=kwargs)
    assert replay(tmp_path / "a.npz", env=make).identical


def test_numbers_may_be_numpys(tmp_path: Path) -> None:
    known = record(HashEnv, num_steps=np.int64(3), num_envs=np.int64(2), seed=np.int64(5))
    known.save(tmp_path / "a.npz")
    assert (known.origin.seed, known.num_steps) == (5, 6)
    assert replay(tmp_path / "a.npz", env=HashEnv).identical


def test_wrong_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    recording = record(HashEnv, path, num_steps=5)
    original = path.read_bytes()

    def message() -> str:
        with pytest.raises(RecordingError) as caught:
            replay(path)
        return str(caught.value).replace(str(path), "FILE")

    def tampered(**changed: Any) -> None:
        with np.load(path) as arrays:
            content = {**arrays, **changed}
        path.unlink()
        np.savez(path, **content)

    path.write_bytes(b"")
    assert message() == "FILE is no .npz, or not all of one; `puffer record ENV` makes one"
    path.write_bytes(original[: len(original) // 2])
    assert message() == "FILE is no .npz, or not all of one; `puffer record ENV` makes one"
    path.write_bytes(original[:200] + bytes(200) + original[400:])
    assert message().startswith("FILE cannot be read (")
    np.savez(path, x=np.arange(3))
    assert message() == "FILE is no recording of pufferlib's; `puffer record ENV` makes one"
    np.savez(path, header=np.array([HashEnv], object))
    assert message().startswith("FILE cannot be read (Object arrays cannot be loaded when allow_pickle=False")
    path.unlink()
    assert message() == "there is no file FILE; `puffer record ENV` makes one"
    path.mkdir()
    assert message() == "there is no file FILE; `puffer record ENV` makes one"
    path.rmdir()

    path.write_bytes(original)
    header = json.loads(str(np.load(path)["header"]))
    tampered(header=json.dumps({**header, "version": 2, "versions": {"pufferlib": "9.1"}}))
    assert "FILE has version 2 of the format, as pufferlib 9.1 writes it; pufferlib" in message()
    tampered(header=json.dumps({**header, "version": 2, "versions": ["9.1"]}))
    assert "FILE has version 2 of the format, as pufferlib unknown writes it; pufferlib" in message()
    for changed in (
        {"rewards": np.zeros((3, 1), np.float32)},
        {"lengths": np.array([5, 6, 6, 6])},
        {"header": json.dumps({**header, "env_kwargs": "open('x')"})},
        {"header": json.dumps({name: value for name, value in header.items() if name != "seeds"})},
        {"header": json.dumps({**header, "failure": {"env_id": 1}})},
    ):
        path.write_bytes(original)
        tampered(**changed)
        assert message().startswith("FILE is a recording, but a damaged one ("), changed
    path.write_bytes(original)
    assert replay(path).identical and saved(recording, tmp_path) == original


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = record(HashEnv, tmp_path / "a.npz", num_steps=5)
    before = (tmp_path / "a.npz").read_bytes()

    def full(file: Any, **_: Any) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(OSError, match="No space left"):
        recording.save(tmp_path / "a.npz")
    assert (tmp_path / "a.npz").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


def test_impossible_arguments_are_refused(first: Recording, tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match=r"there is no folder .*no for a.npz; make it, or save elsewhere"):
        record(lambda: pytest.fail("played for nothing"), tmp_path / "no" / "a.npz")
    with pytest.raises(PlanError, match="num_steps=0 leaves nothing to record"):
        record(HashEnv, num_steps=0)
    with pytest.raises(PlanError, match="batch_size=5 is more than num_envs=4"):
        replay(first, env=planted(), batch_size=5)
    with pytest.raises(PlanError, match="backend='threads' is not one of"):
        replay(first, env=planted(), backend="threads")


def test_progress_is_reported() -> None:
    counts: list[tuple[int, int]] = []
    recording = record(HashEnv, num_steps=5, num_envs=2, after=lambda done, of: counts.append((done, of)))
    assert counts[0] == (0, 10) and counts[-1] == (10, 10)
    assert [done for done, _ in counts] == sorted(done for done, _ in counts)
    counts.clear()
    report = replay(recording, after=lambda done, of: counts.append((done, of)))
    assert isinstance(report, Replay) and report.where == "serial"
    assert counts[-1] == (10, 10)
