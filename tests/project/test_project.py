"""The project as a stranger meets it: the README's programs, the make targets, and what an installed wheel holds."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from compilers import quick_compilers
from pages import ROOT, play, programs

import pufferlib
from pufferlib.util.toml import read_toml

pytestmark = pytest.mark.beside

README = (ROOT / "README.md").read_text()

PROGRAMS = programs("README.md")


def printed(program: str, folder: Path) -> str:
    """What a program prints when it is run as a script of its own, where any warning is an error."""
    script = folder / "program.py"
    script.write_text(program)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "error", script]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_readme_programs_print_what_the_readme_says(number: int, tmp_path: Path) -> None:
    _, program, output = PROGRAMS[number]
    assert printed(program, tmp_path) == output


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["serial", pytest.param("pool", marks=pytest.mark.long)])
def test_readme_program_prints_the_same_on_every_backend(backend: str) -> None:
    program = PROGRAMS[0]
    assert program.text.count('backend="multiprocessing"') == 1
    play(program._replace(text=program.text.replace("multiprocessing", backend)), {"__name__": "__main__"})


def test_readme_begins_with_a_program_and_its_output() -> None:
    _, program, output = PROGRAMS[0]
    assert output
    assert len(program.splitlines()) <= 12


def test_commands_of_the_documents_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+(?: [a-z-]+)*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    targets = {target for line in targets for target in line.split()}
    documents = README + (ROOT / "CONTRIBUTING.md").read_text()
    named = set(re.findall(r"(?:`|^)make ([a-z-]+)", documents, re.MULTILINE))
    assert {"demo", "test"} <= named <= targets


@pytest.mark.parametrize("name", ["pufferlib", "ocean", "cleanrl_demo"])
def test_a_script_beside_a_checkout_of_that_name_gets_the_package(name: str, tmp_path: Path) -> None:
    """Python looks there first; where a folder is all that it finds, the installed package comes before it."""
    (tmp_path / name).symlink_to(ROOT, target_is_directory=True)
    (tmp_path / "script.py").write_text(f"import {name}; print({name}.__file__)")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [sys.executable, tmp_path / "script.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert (done.stdout, done.stderr) == (f"{ROOT / name / '__init__.py'}\n", "")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree, unpacked; built from a copy, since setuptools builds beside its source."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    # Of the compiled modules one is enough: it is their building that takes time.
    others = (path.name for path in (ROOT / "pufferlib/_native").glob("*.pyx") if path.stem != "pack")
    left_out = shutil.ignore_patterns("__pycache__", "*.so", *others)
    for name in ("pufferlib", "ocean", "cuda_ext", "cleanrl_demo", "tests"):
        shutil.copytree(ROOT / name, source / name, ignore=left_out)
    options = ["--no-deps", "--no-build-isolation", "--quiet", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", folder, source]
    environment = {**os.environ, **quick_compilers(folder), "CXX": "/bin/false"}  # which leaves the kernels out
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("*.whl")
    zipfile.ZipFile(built).extractall(folder / "site")
    return folder / "site"


@pytest.mark.slow
@pytest.mark.long
def test_wheel_holds_the_four_packages_and_nothing_else(wheel: Path) -> None:
    packages = {"pufferlib", "ocean", "cuda_ext", "cleanrl_demo"}
    assert {path.name for path in wheel.iterdir() if not path.name.endswith(".dist-info")} == packages
    for package in packages:
        expected = {path.relative_to(ROOT) for path in (ROOT / package).rglob("*.py")}
        assert {path.relative_to(wheel) for path in (wheel / package).rglob("*.py")} == expected
    assert (wheel / "pufferlib/training/defaults.toml").exists()
    assert {path.name for path in (ROOT / "cuda_ext").glob("*.cuh")} == {
        path.name for path in (wheel / "cuda_ext").glob("*.cuh")
    }
    assert (wheel / "pufferlib/py.typed").exists() and list(wheel.glob("pufferlib/_native/pack*.so"))


@pytest.mark.slow
@pytest.mark.long
def test_wheel_works_where_there_is_no_checkout(wheel: Path, tmp_path: Path) -> None:
    code = f"""
import sys
sys.path.insert(0, {str(wheel)!r})
import pufferlib, ocean, cuda_ext, cleanrl_demo
assert pufferlib.__file__.startswith({str(wheel)!r})
with pufferlib.make("ocean/squared", num_envs=2, seed=0) as vec:
    print(vec.reset()[0].shape)
"""
    environment = {**os.environ, "PUFFERLIB_NATIVE": "0"}  # not all of it was built
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert (done.stdout, done.stderr) == ("(2, 7, 7)\n", "")


@pytest.mark.slow
@pytest.mark.long
def test_wheel_has_the_version_of_the_code(wheel: Path) -> None:
    (metadata,) = wheel.glob("*.dist-info/METADATA")
    assert f"\nVersion: {pufferlib.__version__}\n" in metadata.read_text()


def test_version_stands_in_one_place() -> None:
    places = [
        *ROOT.glob("*.toml"),
        *ROOT.glob("*.py"),
        *ROOT.glob("*.cff"),
        ROOT / "Dockerfile",
        *(ROOT / "pufferlib").rglob("*.py"),
    ]
    written = re.compile(rf"version[_\s:='\"]+{re.escape(pufferlib.__version__)}\b", re.IGNORECASE)
    matches = [path.relative_to(ROOT) for path in places if written.search(path.read_text())]
    assert matches == [Path("pufferlib/version.py")]


def test_dockerfile_copies_what_exists_and_what_dockerignore_lets_in() -> None:
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    names = {name for line in copied for name in line.split()}
    let_in = re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    assert names == set(let_in)
    assert [name for name in names if not (ROOT / name).exists()] == []


def test_targets_of_the_dockerfile_are_those_of_its_page() -> None:
    targets = re.findall(r"^FROM runtime AS (\w+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    page = (ROOT / "docs/container.md").read_text()
    assert set(re.findall(r"^\| `([a-z]+)` \| ", page, re.MULTILINE)) == set(targets) and len(targets) == 3
    assert f"targets=({' '.join(targets)})" in (ROOT / "tests/container.sh").read_text()


def test_families_of_the_container_are_extras_and_those_of_its_page() -> None:
    families = re.findall(r'^ARG FAMILIES="(.+)"$', (ROOT / "Dockerfile").read_text(), re.MULTILINE)[0]
    assert f"families whose pins agree: {', '.join(families.split())} |" in (ROOT / "docs/container.md").read_text()

    def asked(*extras: str) -> list[str]:
        command = [sys.executable, ".ci/requirements.py", *extras]
        return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.splitlines()

    assert "minigrid>=3.0" in asked(*families.split())
    assert set(asked("classic", "train")) < set(asked("dev"))  # which asks for them by pufferlib[…]
    assert "numpy>=1.23" in asked()


def test_workflows_name_what_is_there() -> None:
    texts = {path.name: path.read_text() for path in (ROOT / ".github/workflows").iterdir()}
    assert sorted(texts) == ["ci.yml", "release.yml"]
    assert all(text.startswith("# Untested: ") for text in texts.values())
    jobs = {name: yaml.safe_load(text)["jobs"] for name, text in texts.items()}
    (checks,) = re.findall(r"^CHECKS = \((.*)\)$", (ROOT / ".ci/checks.py").read_text(), re.MULTILINE)
    matrix = jobs["ci.yml"]["linux"]["strategy"]["matrix"]["target"]
    assert [f'"{target}"' for target in matrix] == checks.split(", ")  # as on one machine
    assert all("timeout-minutes" in job for workflow in jobs.values() for job in workflow.values())
    assert jobs["release.yml"]["publish"]["needs"] == ["sdist", "wheels"]
    (publishes,) = (name for name, job in jobs["release.yml"].items() if "id-token" in job.get("permissions", {}))
    assert publishes == "publish"  # the one job that may upload


def test_wheels_are_built_for_each_version_and_tried() -> None:
    project = read_toml(ROOT / "pyproject.toml", "")
    said = [re.fullmatch(r".*:: (3\.\d+)", text) for text in project["project"]["classifiers"]]
    versions = [match[1] for match in said if match]
    built = project["tool"]["cibuildwheel"]["build"]
    assert built == [f"cp{version.replace('.', '')}-manylinux*" for version in versions]
    assert re.findall(r'^VERSIONS = \("(.*)"\)$', (ROOT / ".ci/release.py").read_text(), re.MULTILINE) == [
        '", "'.join(versions)
    ]
    texts = [project["tool"]["cibuildwheel"]["test-command"], (ROOT / "MANIFEST.in").read_text()]
    texts += [path.read_text() for path in (ROOT / ".github/workflows").iterdir()]
    assert all("tests/smoke.py" in text for text in texts) and (ROOT / "tests/smoke.py").exists()


def test_nothing_is_released_that_no_python_could_try() -> None:
    command = [sys.executable, ".ci/release.py", "--versions", "3.99", "3.98"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 1 and done.stderr.startswith("No CPython of 3.99, 3.98 was found"), done
