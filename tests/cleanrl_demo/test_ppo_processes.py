"""Processes that train on a device together: they learn as one, go on as one, and agree on what fits all of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cleanrl_demo import a2c_cuda, ppo_cuda
from pufferlib.errors import PlanError
from pufferlib.training.runs import read_config, read_run
from tests.cleanrl_demo.test_ppo_cuda import config, played

pytestmark = [pytest.mark.slow, pytest.mark.beside, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
PATHS = os.pathsep.join([str(ROOT), str(ROOT / "tests/helpers")])
COLUMNS = ("observations", "values", "actions", "log_probs", "rewards", "terminations", "truncations", "masks")

# Does what torchrun does, once for each script that a line of stdin names, and answers with 0 or 1. The processes are
# forked from this one, which has imported everything: importing costs more than what the tests are about.
FORKED = """
import os, runpy, socket, sys, traceback
import tests.cleanrl_demo.test_ppo_processes, torch._dynamo, torch.distributed.tensor

def run(script):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    os.environ |= {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = {}
    for rank in range(2):
        if not (process := os.fork()):
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            for number, name in ((1, "out"), (2, "err")):
                os.dup2(os.open(f"{script}.{name}", os.O_CREAT | os.O_APPEND | os.O_WRONLY), number)
            status = 1
            try:
                runpy.run_path(script, run_name="__main__")
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(status)
        ranks[process] = rank
    failed = 0
    while ranks:
        process, status = os.wait()
        del ranks[process]
        if status and not failed:
            failed = 1
            for other in ranks:
                os.kill(other, 15)  # which waits for the one that is no more
    return failed

for line in sys.stdin:
    print(run(line.strip()), flush=True)
"""


@pytest.fixture(scope="module")
def as_peers() -> Iterator[Callable[[Path], str]]:
    """Give a function that has two processes run a script, which must not fail, and returns what they print."""
    env = {**os.environ, "PYTHONPATH": PATHS, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", FORKED]
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as forking:
        assert forking.stdin is not None and forking.stdout is not None

        def run(script: Path) -> str:
            print(script, file=forking.stdin, flush=True)
            assert forking.stdout is not None
            failed = forking.stdout.readline()
            said, errors = (Path(f"{script}.{name}") for name in ("out", "err"))
            assert failed == "0\n", said.read_text() + errors.read_text()
            return said.read_text()

        yield run
        forking.stdin.close()


PEERS: Sequence[tuple[Any, dict[str, Any]]] = (
    (ppo_cuda, {"num_epochs": 1, "num_minibatches": 1}),
    (a2c_cuda, {}),
)
PEER = """
import os, torch, torch.distributed
from tests.cleanrl_demo.test_ppo_cuda import config, played
from tests.cleanrl_demo.test_ppo_processes import PEERS

torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
for trainer, more in PEERS:
    settings = config(trainer.Config, **more, seed=rank + 1, rollout_length=25)
    learner, rollout, vec = played(settings, rank + 1)  # the second takes over the first one's weights
    told = trainer.update(learner, rollout, settings)
    torch.distributed.all_reduce(told)
    torch.save((learner.teams[0].weights.detach(), told), f"{folder}/{{trainer.__name__}}-{{rank}}.pt")
    vec.close()
torch.distributed.barrier()
os._exit(0)  # without destructors: the optimizer has kept the group, whose threads abort now and then (peers.py)
"""


def test_two_processes_learn_as_one_with_the_rows_of_both(as_peers: Callable[[Path], str], tmp_path: Path) -> None:
    (tmp_path / "peer.py").write_text(PEER.format(folder=tmp_path))
    as_peers(tmp_path / "peer.py")
    for trainer, more in PEERS:
        (first, losses), (second, _) = (torch.load(tmp_path / f"{trainer.__name__}-{rank}.pt") for rank in range(2))
        assert torch.equal(first, second)

        settings = config(trainer.Config, rollout_length=25, **more)
        (learner, rollout, vec), (_, its_rollout, its_vec) = (played(replace(settings, seed=seed)) for seed in (1, 2))
        vec.close()
        its_vec.close()
        for column in COLUMNS:
            setattr(rollout, column, torch.cat([getattr(rollout, column), getattr(its_rollout, column)], 1))
        together = trainer.update(learner, rollout, settings)
        torch.testing.assert_close(learner.teams[0].weights.detach(), first, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(together, losses, rtol=1e-4, atol=1e-5)


STOPPED = """
import os, sys, torch, torch.distributed
from dataclasses import replace
from pathlib import Path
from tests.cleanrl_demo.test_ppo_cuda import config
from cleanrl_demo import ppo_cuda
from pufferlib.training import session

session.TURNS_TOGETHER = 1  # newest.pt is written all the while, and changes nothing
folder = Path("{folder}")
rank = int(os.environ["RANK"])

# One group for all three runs: torchrun's store has room for one.
join = torch.distributed.init_process_group
torch.distributed.init_process_group = lambda *how: torch.distributed.is_initialized() or join(*how)
destroy, torch.distributed.destroy_process_group = torch.distributed.destroy_process_group, lambda: None

def keep(name, result):
    torch.save((result.num_steps, result.actor.policy.state_dict()), folder / f"{{name}}-{{rank}}.pt")

# Of nine environments one process has five.
settings = config(
    num_envs=9, rollout_length=5, total_steps=600, checkpoint_every=300, checkpoint_minutes=0, schedule="constant"
)
keep("whole", ppo_cuda.train(settings))
half = ppo_cuda.train(replace(settings, total_steps=300, runs=str(folder / "runs"))).run_folder
assert (half is None) == bool(rank), half
torch.distributed.barrier()  # the first process alone writes files, and the others may be here before it has
run_folder = next((folder / "runs").iterdir())
keep("resumed", ppo_cuda.resume(run_folder, total_steps=600)[1])
destroy()
threads = [file.read_text().strip() for file in Path("/proc/self/task").glob("*/comm")]
assert not any("gloo" in name for name in threads), threads  # one that holds a tensor ends the process by SIGABRT
"""


@pytest.mark.parametrize("launcher", ["fork", pytest.param("torchrun", marks=pytest.mark.long)])
def test_processes_that_are_resumed_end_as_if_they_had_not_stopped(
    launcher: str, as_peers: Callable[[Path], str], tmp_path: Path
) -> None:
    script = tmp_path / "peer.py"
    script.write_text(STOPPED.format(folder=tmp_path))
    if launcher == "fork":
        as_peers(script)
    else:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
        env = {**os.environ, "PYTHONPATH": PATHS, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    files = {name: [torch.load(tmp_path / f"{name}-{rank}.pt") for rank in range(2)] for name in ("whole", "resumed")}
    (num_steps, weights), *others = *files["whole"], *files["resumed"]
    assert num_steps >= 600
    for steps, state in others:
        assert steps == num_steps and all(torch.equal(weights[name], part) for name, part in state.items())
    folder = next((tmp_path / "runs").iterdir())
    assert read_config(folder)["num_envs"] == 9 and read_run(folder)["resumed"][0]["num_steps"] >= 300
    with pytest.raises(PlanError, match="begun by 2 processes, and this would be 1: .* torchrun --nproc-per-node 2"):
        ppo_cuda.resume(folder, total_steps=900)


AUTO = """
import os
from pathlib import Path
from tests.cleanrl_demo.test_ppo_cuda import config
from cleanrl_demo import ppo_cuda
from pufferlib.training import device_runs, session

rank, run = int(os.environ["RANK"]), session.run

def noted(local_config, *arguments, run_config, **more):
    Path("{folder}", str(rank)).write_text(f"{{local_config.num_envs}} {{run_config.num_envs}}")
    return run(local_config, *arguments, run_config=run_config, **more)

session.run = noted
device_runs.free_nbytes = lambda device: (1.2e6, 0.8e6)[rank]
ppo_cuda.train(config(num_envs="auto", total_steps=4000, runs="{folder}/runs"))
"""


@pytest.mark.long
def test_processes_agree_on_the_number_of_the_one_with_the_least_room(
    as_peers: Callable[[Path], str], tmp_path: Path
) -> None:
    (tmp_path / "peer.py").write_text(AUTO.format(folder=tmp_path))
    said = as_peers(tmp_path / "peer.py")
    numbers = [tuple(map(int, (tmp_path / str(rank)).read_text().split())) for rank in range(2)]
    per_process, together = numbers[0]
    assert numbers[1] == (per_process, together) and together == 2 * per_process
    first, second = re.findall(r"^num_envs=(\d+)(.*)", said, re.MULTILINE)
    assert int(first[0]) > per_process and first[1].startswith(" in the first process: ")
    assert second == (str(together), f": {per_process} in each of 2 processes")
    assert read_config(next((tmp_path / "runs").iterdir()))["num_envs"] == together
