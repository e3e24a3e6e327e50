"""What a name that is none was meant for: the nearest one, and nothing that is not near."""

from __future__ import annotations

import pytest

from pufferlib.util.suggestions import meant, near, not_one_of

pytestmark = pytest.mark.beside

ARGUMENTS = (
    "env backend num_envs num_workers batch_size seed env_args env_kwargs wrap_kwargs autoreset_mode context copy "
    "as_torch device check debug on_error max_restarts step_timeout reset_timeout backend_kwargs"
).split()


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("backnd", "backend"),  # letters
        ("sede", "seed"),
        ("bacth_size", "batch_size"),
        ("numenvs", "num_envs"),  # separators and case
        ("Num-Envs", "num_envs"),
        ("num_env", "num_envs"),
        ("n_envs", "num_envs"),  # abbreviations
        ("env_kw", "env_kwargs"),
        ("workers", "num_workers"),  # a large part
        ("torch", "as_torch"),
        ("timeout", "step_timeout"),
    ],
)
def test_what_is_near_is_found(name, nearest):
    assert near(name, ARGUMENTS) == [nearest]


@pytest.mark.parametrize(
    "name",
    "render_mode max_steps num_agents num_players wrappers copies size mode reset level gravity context_size x".split(),
)
def test_what_is_not_near_is_not(name):
    """A word in common, or many of the same letters, is none: these are arguments of environments."""
    assert near(name, ARGUMENTS) == []


def test_the_nearest_comes_first_and_no_more_than_asked_for():
    assert near("squard", ["square", "squared", "circle"], 3) == ["square", "squared"]
    assert near("serial", ["Serial", "serial2"], 1) == ["Serial"]
    assert near("", ["a", ""], 3) == []


def test_two_names_that_differ_where_they_are_short_are_near_if_the_rest_is_the_same():
    assert near("Foraging-8x8-3p-3q", ["Foraging-8x8-3p-3f"]) == ["Foraging-8x8-3p-3f"]
    assert near("ocean/maze", ["ocean/bandit", "ocean/memory"]) == []  # what both begin with is no evidence


def test_sentences_name_what_there_is():
    assert meant("zzz", ["alpha", "beta"]) == "there are alpha, beta"
    assert meant("alfa", ["alpha", "beta"]) == "did you mean alpha?"
    assert meant("alfa", []) == "it takes none"
    assert not_one_of("mode", "frist", ("first", "always")) == (
        "mode='frist' is not 'first' or 'always'; did you mean 'first'?"
    )
    assert not_one_of("mode", 3, ("a", "b", "c"), ", nor None") == "mode=3 is not one of 'a', 'b', 'c', nor None"
