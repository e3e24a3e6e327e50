"""``make``: vectorize any number of environments on any of the backends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

from pufferlib import _native, vectorization
from pufferlib.errors import PlanError
from pufferlib.util.parameters import Unpack
from pufferlib.util.suggestions import not_one_of, says_what_was_meant
from pufferlib.vectorization import Multiprocessing, Pool, Serial, VecEnv
from pufferlib.vectorization.core.arguments import misplaced
from pufferlib.vectorization.core.parameters import MakeParameters

__all__ = ["BACKENDS", "known_backends", "make"]

BACKENDS = {kind.backend: kind for kind in (Serial, Multiprocessing, Pool)}  # each runs any environment on this machine
KINDS = {backend: kind.__name__ for backend, kind in BACKENDS.items()} | {"ray": "Ray", "cuda": "CUDA"}


def known_backends() -> tuple[str, ...]:
    """Return the names of the backends that can run any environment; "ray" is among them only if Ray is installed."""
    return (*BACKENDS, *["ray"] * (find_spec("ray") is not None))


@says_what_was_meant(misplaced, "env_kwargs", MakeParameters)
def make(
    env: Callable[..., Any] | str | Sequence[Callable[..., Any] | str], **kwargs: Unpack[MakeParameters]
) -> VecEnv:
    """Return a VecEnv that runs ``num_envs`` environments.

    env: a callable that makes one environment (Gymnasium, PettingZoo or PufferEnv) and is called in its worker; a
        registered name such as "ocean/squared" or a Gymnasium id; or a list of these, one per environment. A callable
        with a parameter ``env_index`` receives the environment's index.
    backend: "serial" (this process), "multiprocessing" (worker processes), "pool" (worker processes; batches hold the
        first environments to finish), "ray" (like "pool", but with Ray actors on the machines of a cluster), "cuda"
        (one GPU kernel steps all environments; only for environments that have a kernel).
    num_envs: the number of environments, by default 1, or the length of ``env`` if that is a list. num_workers: the
        number of workers, by default one for each available CPU, but at most num_envs.
    batch_size: the number of environments in each batch that ``recv`` returns, by default all. num_envs, num_workers
        and batch_size need not be multiples of one another.
    seed: the seed for the first reset of all environments; None draws one at random.
    env_args, env_kwargs: arguments for the callable; env_kwargs may be a list of dicts, one per environment.
    wrap_kwargs: arguments for ``pufferlib.wrap``, such as bounds of variable-length spaces and ``max_agents``.
    autoreset_mode: "next_step": the step after an episode's end ignores its action and returns the next episode's first
        observation; "same_step": the step that ends an episode already returns the next episode's first observation,
        and infos hold ``final_obs`` and ``final_info``; "disabled": the caller resets environments. A
        ``gymnasium.vector.AutoresetMode``, as in ``vec.metadata``, also works.
    context: the start method of processes, "fork", "spawn" or "forkserver"; by default fork where it is safe.
    copy: True makes ``recv`` return arrays that stay valid; by default they expire at the second ``recv`` after the one
        that returned them.
    as_torch: True returns torch tensors that share the memory of the arrays, False returns NumPy arrays. None, the
        default, returns tensors if ``device`` is set or the backend is "cuda", else arrays.
    device: the tensors' device. "cuda", "cuda:1", "mps", …: tensors are copies (asynchronous on CUDA), valid as long as
        arrays would be; "host" or "cpu": they share the arrays' memory. On backend "cuda", the device that runs the
        kernel: a GPU ("cuda", "cuda:1") or the CPU ("host").
    fair: what to do about fast environments, which deliver more rows than slow ones if batch_size is less than num_envs
        and the backend is "pool" or "ray". "weights": batches have ``weights``, which undo that. A number: no
        environment gets more rows than that ahead of the slowest, so all deliver as many, at the pace of the slowest.
        None: nothing. On "serial" and "multiprocessing" every environment gets its turn: a number changes nothing, and
        weights are 1. On "cuda" it is refused.
    check: "first" fully checks each environment's first reset and step, and only shapes and dtypes after that; "always"
        fully checks every reset and step.
    debug: fill expired batches with NaN or implausible numbers.
    on_error: the response to an environment that raises or a worker that dies. "raise": ``recv`` raises WorkerError; a
        reset restarts what failed. "restart": the environment, or every environment of a worker that died, is made
        again. Each open episode then ends in a *crash row*: observation and reward 0, truncated, mask False,
        ``info["restarted"]`` with the cause; the environment's next row is the first of a new episode, in every
        autoreset mode.
    max_restarts: the total number of restarts allowed per environment before ``recv`` raises; None sets no limit.
    step_timeout, reset_timeout: the seconds that one step, or one reset, may take while ``recv`` waits for it. A worker
        that takes longer is killed and treated as one that died. On "serial", a late step or reset counts as having
        raised, once it returns.
    backend_kwargs: arguments that not every backend takes: ``worker_threads`` and ``spin`` for processes; ``address``,
        ``resources``, ``placement``, ``local_workers``, ``start_timeout`` for "ray"; ``threads`` and ``checked`` for
        "cuda" on the host; and ``telemetry``, False to record nothing for ``stats``.

    Raises PlanError for impossible counts or arguments, RegistryError for unknown names, MissingExtra if a required
    package is not installed, SpaceError for spaces that cannot be flattened, WorkerError if an environment cannot be
    made, KernelError if a kernel cannot be compiled or does not support the spaces, and PlatformError if the system
    cannot provide the memory or the processes, or if Ray cannot be started or does not answer.
    """
    backend = kwargs.pop("backend")
    try:
        name = KINDS[backend]
    except (KeyError, TypeError):
        raise PlanError(not_one_of("backend", backend, KINDS)) from None
    _native.warn_of_portable_path()
    kind: Callable[..., VecEnv] = getattr(vectorization, name)
    return kind(env, **kwargs)
