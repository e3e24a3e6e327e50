"""The compiled path under AddressSanitizer and UndefinedBehaviorSanitizer: python tests/sanitize.py PYTEST-ARGUMENTS…

It is built so in a copy of the tree, and tested there. What a sanitizer has to say, of whichever process (workers die
of it, as they do of much else that the tests are about), goes to files; the run fails if there are any.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
COMPILER = os.environ.get("CC", "cc").split()
LEFT_OUT = (".*", "*.so", "__pycache__", "build", "dist", "*.egg-info", ".venv*", "results")
TRANSLATED = "build/cython"  # as in setup.py
# Those of gcc that find what C leaves undefined; float-cast-overflow is not one of "undefined".
CHECKS = "-fsanitize=address,undefined,float-cast-overflow"
FLAGS = f"-O0 -g1 -fno-omit-frame-pointer -fno-sanitize-recover=all {CHECKS}"
# gcc's libubsan reads the path of its reports in vain where libasan is loaded too; so each process tells it.
STARTUP = """
import ctypes, os
ctypes.CDLL(os.environ["SANITIZE_LIBUBSAN"]).__sanitizer_set_report_path(os.environ["SANITIZE_REPORTS"].encode())
"""
EXITCODE = 99  # of a process that a sanitizer has ended


class Unavailable(Exception):
    """The compiler has no sanitizers."""


def libraries() -> list[str]:
    """Return what is to be loaded first, because Python itself is built without. Raises Unavailable."""
    paths = []
    for name in ("libasan.so", "libubsan.so", "libstdc++.so"):  # the last one, or exceptions of C++ end the process
        command = [*COMPILER, f"-print-file-name={name}"]
        path = ""
        with contextlib.suppress(OSError):
            path = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
        if "/" not in path or not Path(path).exists():
            raise Unavailable(
                f"{' '.join(COMPILER)} has no {name}, so that nothing can be sanitized; install gcc with its libraries "
                "(on Debian and Ubuntu: apt-get install gcc g++), or name it: CC=gcc"
            )
        paths.append(str(Path(path).resolve()))
    return paths


def build(folder: Path) -> Path:
    """Copy the tree into a folder and build its compiled path there, sanitized; return the copy.

    Cython translates again only what has changed since it was translated in the tree itself.
    """
    libraries()
    tree = folder / "tree"
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*LEFT_OUT))
    if (ROOT / TRANSLATED).is_dir():
        shutil.copytree(ROOT / TRANSLATED, tree / TRANSLATED)
    rebuild(tree)
    return tree


def rebuild(tree: Path) -> None:
    """Build the compiled path of such a copy, in place."""
    setup = (tree / "setup.py").read_text()
    # Kernels have sanitizers of their own (test_kernel_tools.py), and take a while to compile.
    for old, new in (("-O2", "-O0"), ("-g0", "-g1"), ("extensions() + kernels()", "extensions()")):
        assert setup.count(old) == 1, f"setup.py has no {old}, or several, to be replaced"
        setup = setup.replace(old, new)
    command = [sys.executable, "-c", setup, "-q", "build_ext", "--inplace", "-j2"]
    environment = {**os.environ, "CFLAGS": FLAGS, "LDFLAGS": CHECKS}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    built = list((tree / "pufferlib/_native").glob("*.so"))
    if done.returncode or not built:
        raise SystemExit(f"{done.stdout}{done.stderr}\nthe compiled path could not be built with sanitizers")
    for path in built:
        assert b"__asan_" in path.read_bytes() and b"__ubsan_" in path.read_bytes(), f"{path.name} is not sanitized"


def run(tree: Path, arguments: list[str], limit_s: float | None = None, **environment: str) -> tuple[int, list[str]]:
    """Run Python on a copy's compiled path; return its exit code and what the sanitizers have reported.

    Raises subprocess.TimeoutExpired after limit_s.
    """
    reports = tree / "reports"
    shutil.rmtree(reports, ignore_errors=True)
    reports.mkdir()
    (tree / "sitecustomize.py").write_text(STARTUP)  # Python imports it first of all, in every process
    log_path, preloaded = str(reports / "report"), libraries()
    options = f"log_path={log_path}:exitcode={EXITCODE}:halt_on_error=1"
    environment = {
        **os.environ,
        "LD_PRELOAD": ":".join(preloaded),
        "SANITIZE_LIBUBSAN": preloaded[1],
        "SANITIZE_REPORTS": f"{log_path}.ubsan",
        # Python frees little when it ends. Where memory is too large, an exception is expected, not the end.
        "ASAN_OPTIONS": f"{options}:detect_leaks=0:allocator_may_return_null=1:handle_segv=0",
        "UBSAN_OPTIONS": f"{options}:print_stacktrace=1",
        "PYTHONMALLOC": "malloc",  # or small objects lie unguarded in large arenas
        "PYTHONPATH": str(tree),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PUFFERLIB_NATIVE": "1",
        **environment,
    }
    done = subprocess.run([sys.executable, *arguments], cwd=tree, env=environment, check=False, timeout=limit_s)
    return done.returncode, [path.read_text() for path in sorted(reports.iterdir())]


def main(arguments: list[str]) -> int:
    """Build, run pytest with these arguments, and return an exit code."""
    with tempfile.TemporaryDirectory(prefix="pufferlib-sanitized-") as folder:
        try:
            print("Building the compiled path with sanitizers …", flush=True)
            tree = build(Path(folder))
        except Unavailable as error:
            print(error, file=sys.stderr)
            return 3
        # Ten times slower, a test that Hypothesis repeats takes minutes.
        code, reports = run(tree, ["-m", "pytest", "-p", "no:cacheprovider", "-o", "timeout=1800", *arguments])
        for report in reports:
            print(report, file=sys.stderr)
        print(f"The sanitizers have reported {len(reports) or 'nothing'}.", flush=True)
        return code or (EXITCODE if reports else 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
