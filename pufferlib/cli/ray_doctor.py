"""`puffer doctor --ray`: report a cluster's nodes, whether their versions match, and the cost of a call to each."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Iterator, Mapping
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

import pufferlib
from pufferlib.cli.doctor import Finding
from pufferlib.errors import PufferError
from pufferlib.telemetry.durations import seconds_text
from pufferlib.util.memory import memory_text
from pufferlib.vectorization.ray.connection import Connection

__all__ = ["STEP_MS", "diagnose_ray"]

STEP_MS = 1.0
SHARE = 0.1  # the advised limit of calls, as a share of an actor's time
NUM_CALLS = 100
NUM_TRANSFERS = 3
NUM_BYTES = 32 << 20  # takes a network of 10 Gbit/s fifty times as long as a call
ANSWER_S = 30.0  # enough for a node's first answer, for which it starts a process


def diagnose_ray(address: str | None = None, step_ms: float = STEP_MS) -> Iterator[Finding]:
    """Yield findings about the cluster at ``address``; by default, the one that ``backend="ray"`` finds or starts.

    step_ms: the milliseconds that an environment's step takes, for the advice. If this function starts Ray, it also
    stops it.
    """
    try:
        connection = Connection(address)
    except PufferError as error:
        yield Finding("Ray", str(error), fine=False)
        return
    try:
        yield from _of_cluster(connection, step_ms / 1e3)
    finally:
        connection.release()


def _of_cluster(connection: Connection, step_s: float) -> Iterator[Finding]:
    ray = connection.ray
    versions = _versions(ray)
    nodes = [node for node in ray.nodes() if node["Alive"]]
    whose = "a local Ray, for this check" if connection.is_local else f"at {connection.head or 'an address of ray://'}"
    num_nodes = f"{len(nodes)} node" + "s" * (len(nodes) > 1)
    text = ", ".join(f"{name} {version}" for name, version in versions.items())
    yield Finding("Ray", f"{text}; {whose}, {num_nodes}")
    own_node_id = ray.get_runtime_context().get_node_id() if connection.head else None
    nodes.sort(key=lambda node: (node["NodeID"] != own_node_id, node["NodeManagerAddress"], node["NodeID"]))
    kind = _probe_of(ray)
    probes = [kind.options(scheduling_strategy=_on(ray, node["NodeID"])).remote(NUM_BYTES) for node in nodes]
    costs = []
    for node, probe in zip(nodes, probes, strict=True):
        name = f"{node['NodeManagerAddress']} ({node['NodeID'][:8]}{', this one' * (node['NodeID'] == own_node_id)})"
        yield Finding("node", f"{name}: {_resources(node['Resources'])}")
        try:
            yield _fit(versions, ray.get(probe.versions.remote(), timeout=ANSWER_S))
            cost = _costs(ray, probe)
        except ray.exceptions.RayError as error:
            why = (str(error).strip() or type(error).__name__).splitlines()[-1]
            yield Finding("", f"does not answer calls: {why}", fine=False)
            continue
        finally:
            ray.kill(probe)
        costs.append(cost)
        calls, forth, back = cost
        yield Finding("", f"a call takes {_statistics(calls, seconds_text)}")
        yield Finding("", f"{memory_text(NUM_BYTES)} go there at {_rate(forth)}, and come back at {_rate(back)}")
    if costs:
        yield Finding("advice", _advice(costs, step_s))


def _versions(ray: Any) -> dict[str, str]:
    return {"pufferlib": pufferlib.__version__, "Ray": ray.__version__, "Python": platform.python_version()}


def _on(ray: Any, node_id: str) -> Any:
    return ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node_id, soft=False)


def _probe_of(ray: Any) -> Any:
    """Return an actor class that examines a node.

    The class is defined inside this function so that Ray pickles it by value, because nodes may lack pufferlib.
    """

    class Probe:
        def __init__(self, num_bytes: int) -> None:
            import numpy

            self.array = numpy.ones(num_bytes, numpy.uint8)

        def versions(self) -> dict[str, str]:
            import platform
            from importlib import import_module

            versions = {"Python": platform.python_version()}
            for name, module in (("pufferlib", "pufferlib"), ("Ray", "ray")):
                try:
                    versions[name] = str(getattr(import_module(module), "__version__"))  # noqa: B009
                except ImportError as error:
                    versions[name] = f"which cannot be imported ({error})"
            return versions

        def nothing(self) -> None:
            pass

        def take(self, array: Any) -> None:
            pass

        def give(self) -> Any:
            return self.array

    return ray.remote(num_cpus=0)(Probe)


def _resources(resources: Mapping[str, float]) -> str:
    kinds = {"memory": "memory", "object_store_memory": "object store"}
    named = [f"{resources[name]:g} {name}" for name in ("CPU", "GPU") if name in resources]
    memory = [f"{memory_text(resources[name])} {kind}" for name, kind in kinds.items() if name in resources]
    others = [
        f"{num:g} {name}" for name, num in resources.items() if name not in ("CPU", "GPU", *kinds) and ":" not in name
    ]
    return ", ".join([*named, *memory, *others])


def _fit(versions: Mapping[str, str], remote: Mapping[str, str]) -> Finding:
    """Return a finding on whether a node's versions match those of this process."""
    others = [f"{name} {remote[name]}, here {version}" for name, version in versions.items() if remote[name] != version]
    if others:
        return Finding("", f"has other versions: {'; '.join(others)}", fine=False)
    return Finding("", "has the same versions")


def _costs(ray: Any, probe: Any) -> tuple[list[float], list[float], list[float]]:
    """Measure calls to a probe, and transfers of NUM_BYTES to it and back; return (calls, forth, back), in seconds.

    Each of the three is a list with one element per call or transfer. The transfers go through the object store.
    """
    array = np.ones(NUM_BYTES, np.uint8)
    for _ in range(NUM_CALLS // 10):
        ray.get(probe.nothing.remote(), timeout=ANSWER_S)
    calls = [_timed(lambda: ray.get(probe.nothing.remote(), timeout=ANSWER_S)) for _ in range(NUM_CALLS)]
    forth, back = (
        [_timed(transfer) for _ in range(1 + NUM_TRANSFERS)][1:]  # the first one allocates the stores' memory
        for transfer in (
            lambda: ray.get(probe.take.remote(ray.put(array)), timeout=ANSWER_S),
            lambda: ray.get(probe.give.remote(), timeout=ANSWER_S),
        )
    )
    return calls, forth, back


def _timed(do: Callable[[], Any]) -> float:
    start_s = perf_counter()
    do()
    return perf_counter() - start_s


def _statistics(values: list[float], text: Callable[[float], str]) -> str:
    return f"{text(median(values))} ({text(min(values))} to {text(max(values))})"


def _rate(seconds: list[float]) -> str:
    return _statistics([NUM_BYTES / value for value in seconds], lambda rate: f"{memory_text(rate)}/s")


def _advice(costs: list[tuple[list[float], list[float], list[float]]], step_s: float) -> str:
    """Return advice on the number of environments per actor.

    The advice uses the nodes' median times, the longest for a call and the longest for a transfer back. costs: per
    node, the result of ``_costs``. step_s: the seconds that an environment's step takes.
    """
    call_s = max(median(calls) for calls, _, _ in costs)
    byte_s = max(median(back) for _, _, back in costs) / NUM_BYTES
    num = math.ceil(call_s * (1 - SHARE) / (SHARE * step_s))
    calls, rows = f"calls of {seconds_text(call_s)}", f"{call_s / byte_s / 1024:,.0f} KiB"
    return (
        f"with steps of {seconds_text(step_s)}, {num} or more environments per actor (times local_workers, if any) "
        f"keep {calls} below {SHARE:.0%} of its time; {rows} of rows take as long as a call"
    )
