"""The vector environments that tests take as an argument: ours, and Gymnasium's, whose defects ours must not have."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import warnings
from collections.abc import Iterator
from typing import Any

import gymnasium
import pytest

from pufferlib.adapters.gymnasium_vector import AsyncVectorEnv, SyncVectorEnv

peer = gymnasium.vector
HAS_MODES = hasattr(peer, "AutoresetMode")  # since 1.1
HAS_WRAPPERS = importlib.util.find_spec("gymnasium.wrappers.vector") is not None  # since 1.0
TwoWorkers = functools.partial(AsyncVectorEnv, max_concurrency=2)
OURS = {"sync": SyncVectorEnv, "async": TwoWorkers}
KINDS = [pytest.param(kind, id=name) for name, kind in OURS.items()]
ours = pytest.mark.parametrize("vectorizer", KINDS)


def contenders(*, broken: dict[str, str], only: str = "") -> Any:
    """Parametrize ``vectorizer`` over ours, and over those of Gymnasium 1.4, whose broken ones must fail."""
    params = [pytest.param(kind, id=name) for name, kind in OURS.items() if only in name]
    peers = {
        "gymnasium-sync": peer.SyncVectorEnv,
        "gymnasium-async": peer.AsyncVectorEnv,
        "gymnasium-async-pipes": functools.partial(peer.AsyncVectorEnv, shared_memory=False),
    }
    if gymnasium.__version__.startswith("1.4."):
        for name, kind in peers.items():
            marks = [pytest.mark.xfail(reason=broken[name], strict=True)] if name in broken else []
            if only in name:
                params.append(pytest.param(kind, id=name, marks=marks))
    return pytest.mark.parametrize("vectorizer", params)


@contextlib.contextmanager
def running(vectorizer: Any, env_fns: list[Any], **kwargs: Any) -> Iterator[Any]:
    """A vector environment that is gone afterwards, whatever state a defect has left it in."""
    envs = vectorizer(env_fns, **kwargs)
    try:
        yield envs
    finally:
        if isinstance(envs, (SyncVectorEnv, AsyncVectorEnv, peer.SyncVectorEnv)):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                envs.close()
        else:
            for process in envs.processes:
                process.kill()
                process.join()
                process.close()
            for pipe in filter(None, envs.parent_pipes):
                pipe.close()
            envs.error_queue._reader.close()
            envs.error_queue._writer.close()
            envs.closed = True


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Errors are logged as warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
