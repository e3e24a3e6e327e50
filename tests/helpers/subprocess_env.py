"""Environment in a process of its own: an oracle for environments of which a process can hold only one."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

__all__ = ["SubprocessEnv"]


class SubprocessEnv:
    """Environment that runs ``env_creator(**kwargs)`` in another process: reset, step, close, spaces."""

    def __init__(self, env_creator: Callable[..., Any], **kwargs: Any) -> None:
        spawn = multiprocessing.get_context("spawn")  # a fork would have what its parent has
        self._pipe, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_serve, args=(theirs, cloudpickle.dumps((env_creator, kwargs))))
        self._process.start()
        theirs.close()
        self.observation_space, self.action_space = self._answer()

    def reset(self, **kwargs: Any) -> Any:
        return self._call("reset", **kwargs)

    def step(self, action: Any) -> Any:
        return self._call("step", action)

    def close(self) -> None:
        self._call("close")
        self._process.join()
        self._pipe.close()
        self._process.close()

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        self._pipe.send((method, args, kwargs))
        return self._answer()

    def _answer(self) -> Any:
        answer = self._pipe.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer


def _serve(pipe: Connection, pickled: bytes) -> None:
    """Make the environment, send its spaces, and answer calls, up to the first error or "close"."""
    method = ""
    try:
        env_creator, kwargs = cloudpickle.loads(pickled)
        env = env_creator(**kwargs)
        pipe.send((env.observation_space, env.action_space))
        while method != "close":
            method, args, kwargs = pipe.recv()
            pipe.send(getattr(env, method)(*args, **kwargs))
    except EOFError:  # the caller is gone
        return
    except Exception as error:
        pipe.send(error)
