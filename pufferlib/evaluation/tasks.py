"""Tasks: several environments that one evaluation plays, such as the levels of a suite."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pufferlib.errors import PlanError
from pufferlib.registry import creator
from pufferlib.util.annotations import EnvCreator
from pufferlib.vectorization.core.arguments import accepts_env_index, env_creators

__all__ = ["Task", "name_of", "tasks_of", "with_env_index"]


class Task(NamedTuple):
    """A task: its name, and a callable without arguments that makes its environment."""

    name: str
    creator: EnvCreator


def tasks_of(
    env: Callable[..., Any] | str | None,
    tasks: Mapping[str, Any] | Sequence[Any],
    env_args: Sequence[Any],
    env_kwargs: Mapping[str, Any] | None,
) -> list[Task]:
    """Return the tasks that the arguments of ``evaluate`` describe. Makes no environment.

    Raises PlanError if there are none, if two have one name, or if one has neither an environment nor arguments.
    """
    if isinstance(tasks, (str, bytes)) or not isinstance(tasks, (Mapping, Sequence)) or not tasks:
        raise PlanError(
            f"tasks={tasks!r:.80} are none; pass a sequence, or a dict by name, of env_kwargs or of creators"
        )
    items = [*tasks.items()] if isinstance(tasks, Mapping) else [(None, item) for item in tasks]
    listed = []
    for name, item in items:
        is_kwargs = isinstance(item, Mapping)
        if is_kwargs and env is None:
            raise PlanError(f"the task {item!r:.80} has arguments, but env=None; name the environment that takes them")
        maker = env if is_kwargs else item
        kwargs = with_env_index(maker, {**(env_kwargs or {}), **(item if is_kwargs else {})}, "pool")
        if name is None:
            arguments = ", ".join(f"{key}={value}" for key, value in item.items()) if is_kwargs else ""
            name = arguments or name_of(maker)
        (made_by,) = env_creators(maker, 1, env_args, kwargs)  # type: ignore[arg-type]
        listed.append(Task(name, functools.partial(_called, made_by)))
    twice = [name for name, count in Counter(task.name for task in listed).items() if count > 1]
    if twice:
        raise PlanError(f"several tasks are called {', '.join(twice)}; pass a dict with a name for each")
    return listed


def _called(function: EnvCreator) -> Any:
    """Call a function. A partial of this has no parameter ``env_index`` that ``make`` would pass."""
    return function()


def name_of(env: Any) -> str:
    """Return the name of an environment, as the name of a task."""
    return env if isinstance(env, str) else str(getattr(env, "__name__", type(env).__name__))


def with_env_index(env: Any, env_kwargs: Mapping[str, Any] | None, backend: str) -> Mapping[str, Any]:
    """Return the arguments of every environment: those in env_kwargs, and env_index=0 if the creator takes an index.

    Raises PlanError for several environments or several mappings.
    """
    if isinstance(env, (list, tuple)):
        raise PlanError(f"env lists {len(env)} environments; pass them as tasks=, with env=None")
    if env_kwargs is not None and not isinstance(env_kwargs, Mapping):
        raise PlanError(f"env_kwargs={env_kwargs!r:.80} is no dict; pass several as tasks=")
    kwargs = dict(env_kwargs or {})
    if backend != "cuda" and accepts_env_index(creator(env)):
        kwargs.setdefault("env_index", 0)  # all environments are equal: any of them may get any seed
    return kwargs
