"""The packer under sanitizers, faults of which would be noticed, and most of the compiled path.

``make sanitize`` runs all tests of the compiled path under them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import sanitize

try:
    sanitize.libraries()
    MISSING = ""
except sanitize.Unavailable as error:
    MISSING = str(error)

pytestmark = [pytest.mark.slow, pytest.mark.beside, pytest.mark.skipif(bool(MISSING), reason=MISSING)]

# A minute of what reaches most of the compiled lines: hostile samples, and short runs on every backend.
SHORT = [
    "tests/laws/test_fuzz_pack.py::test_each_kind_of_hostility_in_each_kind_of_leaf",
    "tests/native/test_native_pack.py::test_takes_what_is_plain",
    "tests/laws/test_paths.py::test_steps_of_several_agents_leave_no_references",
    "tests/evaluation/test_stage.py::test_the_compiled_path_leaves_a_batch_that_is_not_plain",
    "tests/evaluation/test_stage.py::test_the_compiled_path_counts_and_copies_a_plain_batch",
    "tests/native/test_native_pack.py::test_leaves_what_does_not_fit_to_the_twin",
    "tests/native/test_native_pack.py::test_reals_are_clipped_cast_and_rounded_alike",
    "tests/failures/test_restarts.py::test_only_an_environment_that_raises_is_restarted[pool-4-next_step]",
    "tests/failures/test_restarts.py::test_only_an_environment_that_raises_is_restarted[serial-6-same_step]",
    "tests/failures/test_restarts.py::test_a_worker_that_dies_takes_only_its_own_environments_with_it[pool-6-next_step]",
]


@pytest.mark.long
@pytest.mark.timeout(420)
def test_nothing_is_reported(tmp_path: Path) -> None:
    tree = sanitize.build(tmp_path)
    code, reports = sanitize.run(tree, ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *SHORT], limit_s=300)
    assert not reports, "\n".join(reports)
    assert code == 0


PACK = """
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple
from pufferlib._native import pack
from pufferlib import _native
_native.pack, _native.available = pack, True
from pufferlib.layout import action_layout, observation_layout
"""
IN_A_WORKER = """
import os
if os.fork():
    os.wait()
    os._exit(0)
"""
# What is put in, and what shows it. The text of a sample that is as long as it may be leaves no room behind it.
FAULTS = {
    "heap-buffer-overflow": (
        "        memcpy(row + node.offset, PyUnicode_DATA(sample), size)\n",
        "        memcpy(row + node.offset, PyUnicode_DATA(sample), size + 64)\n",
        "observation_layout(Tuple((Discrete(2), Text(5000)))).flatten((1, 'a' * 5000))",
    ),
    "signed integer overflow": (
        "    return <int64_t>(<uint64_t>value + <uint64_t>start)\n",
        "    return value + start\n",
        "action_layout(Dict(d=Discrete(3, start=1))).unpack(np.array([2**63 - 1]))",
    ),
    "misaligned address": (
        "        value = (<int32_t *>puf_scalar(sample))[0]\n",
        "        value = (<int32_t *>(puf_scalar(sample) + 1))[0]\n",
        "observation_layout(Dict(a=Discrete(3), b=Discrete(3))).flatten({'a': np.int32(1), 'b': 2})",
    ),
}


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree whose packer, the only one of its compiled modules that is built, has all the faults."""
    tree = tmp_path_factory.mktemp("faulty") / "tree"
    shutil.copytree(sanitize.ROOT, tree, ignore=shutil.ignore_patterns(*sanitize.LEFT_OUT))
    for name in ("agents", "fast_path", "infos", "ring", "staging", "step_loop"):
        (tree / f"pufferlib/_native/{name}.pyx").unlink()
    path = tree / "pufferlib/_native/pack.pyx"
    source = path.read_text()
    for sound, unsound, _ in FAULTS.values():
        assert source.count(sound) == 1, sound
        source = source.replace(sound, unsound)
    path.write_text(source)
    sanitize.rebuild(tree)
    return tree


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("process", ["parent", "worker"])
def test_faults_are_noticed(fault: str, process: str, faulty: Path) -> None:
    """Also where nobody asks how the process that had one has ended."""
    program = PACK + (IN_A_WORKER if process == "worker" else "") + FAULTS[fault][2]
    code, reports = sanitize.run(faulty, ["-c", program], limit_s=200, PUFFERLIB_NATIVE="")
    assert len(reports) == 1 and fault in reports[0] and "pack" in reports[0], reports
    assert code == (0 if process == "worker" else sanitize.EXITCODE)


SOUND = """
from pufferlib.errors import SpaceError
space = Dict(box=Box(0, 1, (2,)), some=Tuple((Discrete(3, start=1), Discrete(4))), many=MultiDiscrete([2, 3]),
             bits=MultiBinary(5), picture=Box(0, 255, (3, 4, 5), np.uint8))
space.seed(1)
layout = observation_layout(space)
for _ in range(20):
    sample = space.sample()
    found = layout.unflatten(layout.flatten(sample))
    assert found["some"][0] == sample["some"][0] and (found["picture"] == sample["picture"]).all()
    sample["box"] = np.array([0.5, np.inf], np.float32)
    layout.flatten(sample)
    for wrong in (None, sample | {"many": [1]}, sample | {"some": 3}, {"box": sample["box"]}):
        try:
            layout.flatten(wrong)
        except SpaceError:
            pass
        else:
            raise AssertionError(wrong)
assert action_layout(Dict(d=Discrete(3, start=1))).unpack(np.array([2])) == {"d": 3}
"""


@pytest.mark.long
def test_without_faults_it_is_silent(faulty: Path) -> None:
    """Whatever it packs and refuses, as long as no fault is reached."""
    code, reports = sanitize.run(faulty, ["-c", PACK + SOUND], limit_s=60, PUFFERLIB_NATIVE="")
    assert (code, reports) == (0, [])


@pytest.mark.parametrize("compiler", ["echo", "/nowhere/gcc"])
def test_without_the_libraries_it_says_so(compiler: str) -> None:
    command = [sys.executable, sanitize.__file__, "nothing"]
    done = subprocess.run(command, env={**os.environ, "CC": compiler}, capture_output=True, text=True)
    assert done.returncode == 3, done.stderr
    assert "has no libasan.so" in done.stderr and "apt-get install gcc" in done.stderr
