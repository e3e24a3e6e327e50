"""backend="ray" over several nodes, which come and go under load. The nodes are all on this machine, and real."""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from mock_envs import HashEnv
from shadow import Shadow

import pufferlib
from cleanrl_demo.appo_ray import Config, train
from pufferlib.cli import main, ray_doctor
from pufferlib.training.report import Report

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.extras, pytest.mark.slow, pytest.mark.beside, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
DOCTOR = importlib.import_module("pufferlib.cli.doctor")
# A node is given up sooner than by default, after three seconds in place of some twenty.
QUICKLY = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 1000, "health_check_failure_threshold": 3}

# From CPython 3.13 on a process that multiprocessing forks clears the callbacks of atexit. Ray's hold its nodes, which
# end with a SIGSEGV in gRPC there, whatever was forked; so they live on.
NODES: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Not after each test, as elsewhere: nodes come and go. ``cluster`` looks at its end."""
    yield


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Three nodes of one CPU each, for all tests here. Who takes one away gives another."""
    from ray.cluster_utils import Cluster

    before = set(psutil.Process().children(recursive=True))  # Python's own helpers, of tests before
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_raylet_start_wait_time_s", "120")  # on a busy machine
        add_node = Cluster.add_node
        patch.setattr(Cluster, "add_node", lambda *args, **kwargs: NODES.append(add_node(*args, **kwargs)) or NODES[-1])
        local_cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "_system_config": QUICKLY})
        try:
            for _ in range(2):
                local_cluster.add_node(num_cpus=1)
            yield local_cluster
        finally:
            ray.shutdown()
            local_cluster.shutdown()
    _, left = psutil.wait_procs(set(psutil.Process().children(recursive=True)) - before, timeout=60)
    assert not left


def test_doctor_measures_every_node_and_finds_other_versions(
    cluster: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(DOCTOR, "diagnose", lambda: iter(()))  # which is not about clusters
    for name, value in (("NUM_BYTES", 1 << 20), ("NUM_TRANSFERS", 1), ("NUM_CALLS", 20)):
        monkeypatch.setattr(ray_doctor, name, value)
    assert main(["doctor", "--ray", "--address", cluster.address, "--step-ms", "2"]) == 0
    output = capsys.readouterr().out
    assert f"at {cluster.address}, 3 nodes\n" in output
    assert sorted(re.findall(r"^node .*\(([0-9a-f]{8}).*\): 1 CPU, .* object store$", output, re.M)) == sorted(
        node.node_id[:8] for node in cluster.list_all_nodes()
    )
    assert output.count("has the same versions\n") == 3
    calls = re.findall(r"a call takes ([\d.]+) (µs|ms) \([\d.]+ (?:ns|µs|ms) to [\d.]+ (?:µs|ms|s)\)$", output, re.M)
    assert len(calls) == 3
    assert len(re.findall(r"1 MiB go there at .* [MG]iB/s\), and come back at .* [MG]iB/s\)$", output, re.M)) == 3
    unit_ms = {"µs": 1e-3, "ms": 1.0}
    number, unit = max(calls, key=lambda call: float(call[0]) * unit_ms[call[1]])
    half_ms = 0.5 * 10.0 ** -len(number.partition(".")[2])  # what is shown is rounded to its last digit
    least, most = (math.ceil(4.5 * (float(number) + sign * half_ms) * unit_ms[unit]) for sign in (-1, 1))
    (advised,) = re.findall(r"^advice +with steps of 2.00 ms, (\d+) or more environments per actor", output, re.M)
    assert least <= int(advised) <= most  # so that calls have a tenth of the time
    assert not ray.is_initialized()
    here = {"pufferlib": "0.1", "Ray": "2.60", "Python": "3.11"}
    other = ray_doctor.Finding("", "has other versions: Ray 2.40, here 2.60", fine=False)
    assert ray_doctor._fit(here, {**here, "Ray": "2.40"}) == other


def test_doctor_says_where_no_cluster_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """At once, where Ray itself would try for minutes."""
    monkeypatch.setattr(DOCTOR, "diagnose", lambda: iter(()))
    monkeypatch.setattr(ray, "init", None)
    assert main(["doctor", "--ray", "--address", "127.0.0.1:1"]) == 1
    output = capsys.readouterr().out
    assert re.match(r"Ray +no Ray cluster answers at address='127.0.0.1:1': .*refused; start one", output), output


def test_a_node_that_goes_takes_its_own_environments_and_one_that_comes_is_used(cluster: Any) -> None:
    """Every row is the one that was due: what is lost are open episodes, each of which says so."""
    creator = functools.partial(HashEnv, mean_length=10**6)  # so that there is an open episode to lose
    lost = set[int]()
    with pufferlib.make(
        creator,
        backend="ray",
        num_envs=6,
        num_workers=3,
        batch_size=4,
        seed=5,
        on_error="restart",
        backend_kwargs={"address": cluster.address},
    ) as vec:
        shadow = Shadow(vec, creator, seed=5, may_crash=lambda env_id: env_id in lost)

        def play(until: Any) -> set[int]:
            seen: set[int] = set()
            deadline = time.monotonic() + 120
            while not until(seen):
                assert time.monotonic() < deadline
                batch = shadow.recv()
                seen.update(batch.env_ids.tolist())
                shadow.send(np.arange(4))
            return seen

        shadow.async_reset()
        play(lambda seen: len(seen) == 6)
        places = [actor.location for actor in vec._workers.backend._actors]  # type: ignore[attr-defined]
        assert len(set(places)) == 3, "work is spread over nodes"
        node = next(iter(cluster.worker_nodes))
        (index,) = [index for index, node_name in enumerate(places) if node.node_id[:8] in node_name]
        lost.update([2 * index, 2 * index + 1])
        restarts = [int(env_id in lost) for env_id in range(6)]
        cluster.remove_node(node, allow_graceful=False)
        play(lambda seen: shadow.num_crashes == 2)
        steps = shadow.num_steps
        play(lambda seen: shadow.num_steps > steps + 100)  # nobody else stands still
        assert vec.restarts == restarts and shadow.num_crashes == 2
        new = cluster.add_node(num_cpus=1)
        play(lambda seen: lost <= seen)
        assert new.node_id[:8] in vec._workers.backend._actors[index].location  # type: ignore[attr-defined]
        assert vec.restarts == restarts


class Enough(Exception):
    """Ends a training."""


@pytest.mark.long
@pytest.mark.timeout(900)  # on a busy machine an actor takes a minute to start
def test_training_goes_on_without_a_node_and_with_the_next_one(
    cluster: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Lost are an actor, its rollouts and its open episodes, which the report counts."""
    charts: list[dict[str, float]] = []
    stages: list[tuple[str, int]] = []  # the node that went or came, and when
    update = Report.update

    def watched(self: Any, num_steps: int, scalars: dict[str, float]) -> None:
        update(self, num_steps, scalars)
        charts.append({**scalars, **self.recent_statistics.charts()})
        time.sleep(0.02)  # what takes long is what Ray notices by itself, and a processor that is busy is in its way
        playing = {match[1] for name in scalars if (match := re.fullmatch(r"actors/\S+-([0-9a-f]{4})/\d", name))}
        if not stages and len(playing) == 3:
            node = next(iter(cluster.worker_nodes))
            stages.append((node.node_id[:4], num_steps))
            cluster.remove_node(node, allow_graceful=False)
        elif len(stages) == 1 and "charts/lost_actors" in scalars and num_steps > stages[0][1] + 2_000:
            assert len(playing) == 2 and stages[0][0] not in playing
            stages.append((cluster.add_node(num_cpus=1).node_id[:4], num_steps))
        elif len(stages) == 2 and stages[1][0] in playing:
            assert len(playing) == 3
            raise Enough

    monkeypatch.setattr(Report, "update", watched)
    config = Config(
        env="ocean/squared", num_actors=3, rollouts_per_update=1, num_envs=4, rollout_length=16, num_epochs=1,
        address=cluster.address, total_steps=10**9, runs=None, device="cpu",
    )  # fmt: skip
    with pytest.raises(Enough):
        train(config)
    out, err = capfd.readouterr()
    lost = rf"actor [0-2] on \S+-{stages[0][0]} died: .*A rollout and the open episodes of its 4 environments are lost"
    assert re.search(lost, out), out
    lost = re.search(r"lost: ([12]) actor\(s\), (\d) rollout\(s\), and the open episodes of ([48]) environments", out)
    assert lost is not None, out
    num_actors, num_rollouts, num_episodes = map(int, lost.groups())  # 2: Ray put its heir on the node that had gone
    assert num_episodes == 4 * num_actors
    assert "(raylet)" not in out + err
    assert charts[-1]["charts/lost_actors"] == num_actors and charts[-1]["charts/restarts"] == num_episodes
    assert charts[-1]["charts/lost_rollouts"] == num_rollouts
    assert num_actors <= num_rollouts <= num_actors + 1  # one that each played, and one that lay there


def run(program: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests/helpers")])}
    environment |= {"RAY_raylet_start_wait_time_s": "120", "RAY_USAGE_STATS_ENABLED": "0"}
    environment["RAY_prestart_worker_first_driver"] = "0"  # as many as there are processors, and few are used
    environment.pop("RAY_ADDRESS", None)
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], env=environment, capture_output=True, text=True, timeout=280
    )


def test_the_loss_of_the_head_is_reported() -> None:
    done = run("""
        import time
        import numpy as np
        import pytest
        from ray.cluster_utils import Cluster
        import pufferlib
        from mock_envs import HashEnv
        from pufferlib.vectorization.ray import connection as ray_connection

        ray_connection.LOST_S = 3.0
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
        there = {"address": cluster.address}
        vec = pufferlib.make(HashEnv, backend="ray", num_envs=2, num_workers=1, backend_kwargs=there)
        vec.reset()
        cluster.head_node.kill_gcs_server()
        with pytest.raises(pufferlib.PlatformError, match="the head .*, at .*, has not answered for 3 s"):
            deadline = time.monotonic() + 100
            while time.monotonic() < deadline:
                vec.step(np.zeros(2, np.int64))
        with pytest.raises(pufferlib.PlatformError, match="has not answered for 3 s"):
            vec.stats()  # at once: Ray would wait, and then end this process
        vec.close(grace_s=0.5)  # nobody can tell the actor
        print("closed")
    """)
    assert done.stdout.endswith("closed\n"), done.stderr


def test_a_ray_of_our_own_ends_with_its_last_user_and_with_this_process() -> None:
    done = run("""
        import os
        import signal
        import psutil
        import ray
        import pufferlib
        from mock_envs import HashEnv

        length = 7
        local = lambda: HashEnv(mean_length=length)  # which only __main__ knows
        first = pufferlib.make(local, backend="ray", num_envs=2, num_workers=1)
        second = pufferlib.make(local, backend="ray", num_envs=2, num_workers=1)
        first.close()
        assert ray.is_initialized()
        second.reset()
        second.close()
        assert not ray.is_initialized()
        third = pufferlib.make(local, backend="ray", backend_kwargs={"local_workers": 1})
        third.reset()
        names = {process.pid: process.name() for process in psutil.Process().children(recursive=True)}
        print({pid: "environment" for pid in third.call("pid")} | names, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    assert done.returncode == -signal.SIGKILL, done.stderr
    names = ast.literal_eval(done.stdout.splitlines()[-1])
    agents = [pid for pid, name in names.items() if name.endswith("Agent")]  # Ray leaves them to themselves
    for pid in agents:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while left := [name for pid, name in names.items() if psutil.pid_exists(pid) and pid not in agents]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


@pytest.mark.long
def test_where_somebody_has_shut_ray_down_no_other_is_started() -> None:
    done = run("""
        import pytest
        import ray
        import pufferlib
        from mock_envs import HashEnv

        vec = pufferlib.make(HashEnv, backend="ray", num_envs=2, num_workers=1)
        vec.reset()
        ray.shutdown()

        def reset_after_ctrl_c():
            vec._torn = True
            vec.reset()

        for use in (vec.stats, vec.reset, reset_after_ctrl_c):
            with pytest.raises(pufferlib.PlatformError, match="somebody has called ray.shutdown"):
                use()
            assert not ray.is_initialized(), use
        vec.close()
        print("closed")
    """)
    assert done.stdout.endswith("closed\n"), done.stderr


def test_without_ray_the_error_says_what_to_install() -> None:
    done = run("""
        import sys
        sys.modules["ray"] = None
        import pufferlib
        pufferlib.make("CartPole-v1", backend="ray")
    """)
    assert "MissingExtra" in done.stderr and "pip install 'pufferlib[ray]'" in done.stderr


@pytest.mark.long
def test_the_cluster_of_the_docs_fits_rays_schema() -> None:
    import jsonschema
    import yaml

    schema = json.loads((Path(ray.__file__).parent / "autoscaler" / "ray-schema.json").read_text())
    jsonschema.validate(yaml.safe_load((ROOT / "docs/cluster.yaml").read_text()), schema)
