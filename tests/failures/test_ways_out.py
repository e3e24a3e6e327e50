"""Ways out that lead there: what an error advises can be typed, and what is shown can be read."""

from __future__ import annotations

import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from mock_envs import HashEnv, HashPopulation

import pufferlib
from pufferlib import vectorization
from pufferlib.errors import PlanError, RegistryError, SpaceError, WorkerError
from pufferlib.vectorization.core import arguments
from pufferlib.vectorization.core.failure_summaries import MOST_CAUSES, summary_of
from pufferlib.vectorization.core.messages import Failed
from pufferlib.vectorization.core.plan import AUTORESET_MODES, checked_mode

pytestmark = pytest.mark.beside

BACKENDS = ("serial", "multiprocessing", "pool")
ENUM = getattr(gymnasium.vector, "AutoresetMode", None)  # Gymnasium 0.29 has none


class Wordy(gymnasium.Env):
    """Observes as many numbers as ``length`` says, in a Sequence that has no bound."""

    observation_space = spaces.Dict({"words": spaces.Sequence(spaces.Discrete(3))})
    action_space = spaces.Discrete(2)

    def __init__(self, length=1):
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return {"words": (1,)}, {}

    def step(self, action):
        return {"words": (1,) * self.length}, 0.0, False, False, {}


class Bare(gymnasium.Env):
    """Observes one number, under a name that its users choose."""

    observation_space = spaces.Sequence(spaces.Discrete(3))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return "no sequence", {}

    def step(self, action):
        raise AssertionError


def only_error(caught):
    """The last line of a worker's traceback."""
    return str(caught.value).strip().splitlines()[-1]


# ----------------------------------------------------------------------------------------------- arguments of others


@pytest.mark.parametrize(
    ("name", "value", "advice"),
    [
        ("max_length", 3, r"pass wrap_kwargs=\{'max_length': 3\}\. An argument .* env_kwargs=\{'max_length': 3\}$"),
        ("max_agents", 2, r"pass wrap_kwargs=\{'max_agents': 2\}\."),
        ("bounds", {"a": {}}, r"pass wrap_kwargs=\{'bounds': \{'a': \{\}\}\}\."),
        ("action_mask", True, r"pass wrap_kwargs=\{'action_mask': True\}\."),
        ("max_lenght", 3, r"did you mean wrap_kwargs=\{'max_length': 3\}\? An argument"),
        ("spin", 0, r"pass backend_kwargs=\{'spin': 0\}\."),
        ("render_mode", 1, r"; an argument of the environment's own goes in env_kwargs=\{'render_mode': 1\}$"),
    ],
)
@pytest.mark.parametrize(
    "make", [pufferlib.make, vectorization.Serial, vectorization.Pool, vectorization.CUDA, pufferlib.autotune]
)
def test_what_make_does_not_take_is_sent_to_what_does(make, name, value, advice):
    with pytest.raises(TypeError, match=rf"{make.__name__}\(\) has no argument {name}; ?.*{advice.lstrip('; ')}"):
        make(Wordy, **{name: value})


def test_arguments_of_each_backend_are_known_as_such():
    kinds = [getattr(vectorization, name) for name in ("Serial", "Multiprocessing", "Pool", "Ray")]
    names = {name for kind in kinds for name in kind.backend_arguments}
    assert names | {"threads", "checked", "telemetry"} == set(arguments.BACKEND_ARGUMENTS)


@pytest.mark.parametrize("backend", BACKENDS)
def test_errors_about_sizes_say_where_make_takes_them(backend):
    with pytest.raises(WorkerError) as caught:
        pufferlib.make(Wordy, backend=backend)
    assert only_error(caught).endswith(
        "words: nothing bounds this Sequence; pass wrap_kwargs={'max_length': …}, or for it alone "
        "wrap_kwargs={'bounds': {'words': {'max_length': …}}}"
    )
    assert str(caught.value.__cause__) in only_error(caught)
    kwargs = {"wrap_kwargs": {"max_length": 2}, "env_kwargs": {"length": 3}}
    with pufferlib.make(Wordy, backend=backend, **kwargs) as vec:
        vec.reset()
        with pytest.raises(WorkerError) as caught:
            vec.step(np.zeros(1, int))
    assert only_error(caught).endswith(
        "longer than max_length=2; pass a larger max_length in wrap_kwargs, or for it alone "
        "wrap_kwargs={'bounds': {'words': {'max_length': 3}}}"
    )


def test_errors_about_sizes_say_where_wrap_takes_them():
    advice = r"pass max_length=…, or for it alone bounds=\{'words': \{'max_length': …\}\}$"
    with pytest.raises(SpaceError, match=advice):
        pufferlib.wrap(Wordy())
    with pytest.raises(WorkerError, match=advice):  # which the creator has called, not make
        pufferlib.make(lambda: pufferlib.wrap(Wordy()))


@pytest.mark.parametrize("outer", [lambda env: env, gymnasium.wrappers.TransformReward], ids=["itself", "below"])
def test_what_users_have_wrapped_speaks_of_wrap(outer):
    def creator():
        env = pufferlib.wrap(Wordy(3), max_length=2)
        return env if outer is not gymnasium.wrappers.TransformReward else outer(env, lambda reward: reward)

    with pufferlib.make(creator) as vec:
        vec.reset()
        with pytest.raises(WorkerError, match="pass a larger max_length, or for it alone bounds="):
            vec.step(np.zeros(1, int))


def test_errors_about_agents_say_where_make_takes_their_number():
    with pytest.raises(WorkerError, match=r"unknown; pass wrap_kwargs=\{'max_agents': …\}, the most agents"):
        pufferlib.make(HashPopulation)
    with pytest.raises(PlanError, match="unknown; pass max_agents=, the most agents"):
        pufferlib.emulation.emulate(HashPopulation())
    with pufferlib.make(HashPopulation, wrap_kwargs={"max_agents": 2}, autoreset_mode="same_step", seed=1) as vec:
        vec.reset()
        with pytest.raises(WorkerError, match="no place for agent .*; pass a larger max_agents in wrap_kwargs"):
            for _ in range(1000):
                vec.step(np.zeros(2, int))


# -------------------------------------------------------------------------------------------------- modes, backends


@pytest.mark.skipif(ENUM is None, reason="Gymnasium 0.29 has no enum")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("word", AUTORESET_MODES)
def test_autoreset_modes_are_gymnasiums_too(backend, word):
    mode = ENUM[word.upper()]
    with pufferlib.make(HashEnv, backend=backend, autoreset_mode=mode) as vec:
        assert vec.autoreset_mode == word and vec.metadata["autoreset_mode"] is mode
        with pufferlib.make(HashEnv, autoreset_mode=vec.metadata["autoreset_mode"]) as other:
            assert other.autoreset_mode == word


def test_autoreset_modes_are_the_faces_too():
    from pufferlib.adapters.gymnasium_vector import AutoresetMode, SyncVectorEnv

    for mode in AutoresetMode:
        word = mode.name.lower()
        assert checked_mode(mode) == word
        for value in (mode, mode.value, word):
            vec = SyncVectorEnv([HashEnv], autoreset_mode=value)
            assert vec.autoreset_mode is mode and vec.metadata["autoreset_mode"] is mode
            vec.close()


@pytest.mark.parametrize("mode", ["nextstep", "NEXT_STEP", "NextStep", "next-step"])
def test_a_mode_that_is_none_is_answered_with_the_nearest(mode):
    with pytest.raises(PlanError, match="is not one of .*; did you mean 'next_step'"):
        pufferlib.make(HashEnv, autoreset_mode=mode)
    for impossible in (None, 3, ["next_step"], "reset"):
        with pytest.raises(PlanError, match=r"is not one of .*AutoresetMode$"):
            pufferlib.make(HashEnv, autoreset_mode=impossible)


@pytest.mark.parametrize(
    ("backend", "meant"), [("multiproc", "multiprocessing"), ("Serial", "serial"), ("pol", "pool"), ("zzz", None)]
)
def test_a_backend_that_is_none_is_answered_with_the_nearest(backend, meant):
    for call in (pufferlib.make, pufferlib.autotune):
        with pytest.raises(PlanError) as caught:
            call(HashEnv, backend=backend)
        assert str(caught.value).partition("; ")[2] == (f"did you mean {meant!r}?" if meant else "")


# -------------------------------------------------------------------------------------------------- what is shown


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_the_repr_shows_can_be_read(backend):
    with pufferlib.make(HashEnv, backend=backend, num_envs=5, num_workers=2, batch_size=3) as vec:
        assert vec.num_workers == (1 if backend == "serial" else 2) and vec.batch_size == 3
        assert f"num_workers={vec.num_workers}, batch_size={vec.batch_size}, " in repr(vec)


# ---------------------------------------------------------------------------------------------------- wrap by name


def test_wrap_takes_names():
    env = pufferlib.wrap("CartPole-v1")
    assert env.spec.id == "CartPole-v1" and env.observation_space.shape == (4,)
    env.close()
    env = pufferlib.wrap("ocean/squared")
    assert env.reset(seed=1)[0].shape == env.observation_space.shape
    env.close()
    with pytest.raises(RegistryError, match="did you mean CartPole-v1"):
        pufferlib.wrap("CartPole-v7")
    with pytest.raises(PlanError, match="max_agents cannot be set"):
        pufferlib.wrap("CartPole-v1", max_agents=3)


# ------------------------------------------------------------------------------------------- one warning of a reset


class Raises(HashEnv):
    """Raises in each step, in its own words."""

    def __init__(self, env_index, text):
        super().__init__()
        self.text = text.format(env_index)

    def step(self, action):
        raise ValueError(self.text)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("text", ["the same for all", "of {} alone"])
def test_a_reset_sums_up_what_it_drops(backend, text):
    with pufferlib.make(Raises, backend=backend, num_envs=16, num_workers=2, env_kwargs={"text": text}) as vec:
        observations, _ = vec.reset(seed=1)
        vec.send(np.zeros((16, *vec.single_action_space.shape), vec.single_action_space.dtype))
        with pytest.raises(WorkerError) as raised:
            vec.recv()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            again, _ = vec.reset(seed=1)
        np.testing.assert_array_equal(observations, again)
    (warning,) = caught
    message = str(warning.message)
    others = [env_id for env_id in range(16) if env_id != raised.value.env_id]
    runs = [run for run in (others[: raised.value.env_id], others[raised.value.env_id :]) if run]
    ids = ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)
    assert message.startswith(f"dropped by reset: environments {ids} raised in step: ValueError: ")
    assert message.endswith(")") and "(test_ways_out.py, line " in message and "\n" not in message


def test_a_summary_has_a_line_for_each_cause():
    def failed(env_id, error):
        try:
            raise error
        except Exception as caught:
            return Failed.of(env_id, 0, "step", caught).error()

    dead = [WorkerError("worker 1, with environments 4 to 7, ended with exit code 3", env_id=5, worker=1)]
    errors = [failed(0, ValueError("a")), failed(3, KeyError("b")), failed(1, ValueError("a")), *dead]
    head, *lines = summary_of(errors).split("\n  ")
    assert head == "4 failures"
    assert lines[0].startswith("environments 0, 1 raised in step: ValueError: a (test_ways_out.py, line ")
    assert lines[1].startswith("environment 3 raised in step: KeyError: 'b' (")
    assert lines[2] == str(dead[0])
    many = [failed(env_id, ValueError("x" * env_id)) for env_id in range(MOST_CAUSES + 4)]
    assert summary_of(many).split("\n  ")[-1] == "and 4 more"
    assert len(summary_of(many).splitlines()) == MOST_CAUSES + 2
