"""All about the project stands in pyproject.toml; here only what is compiled, which is optional.

The compiled path: where there is no C compiler, no Cython, no NumPy or no Linux, the package installs without it and
runs the portable path; `puffer doctor` says which one is in use. The kernels of cuda_ext as the host plays them:
without them they are compiled when they are first used.
"""

import os
import sys
from glob import glob
from importlib import import_module
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.modified import newer_group

FOLDER = "pufferlib/_native"
# Aligned code: otherwise a change elsewhere in a file moves the speed of a trivial step by up to 5 %.
ALIGNED = ["-falign-functions=64", "-falign-loops=32"]
FLAGS = ["-O2", "-g0", "-std=gnu11", "-fno-strict-aliasing", "-Wno-unused-function", *ALIGNED]
# The oldest NumPy that pyproject.toml names: what is built with NumPy 2's headers runs with that and all later ones.
NUMPY = [(name, "NPY_1_23_API_VERSION") for name in ("NPY_TARGET_VERSION", "NPY_NO_DEPRECATED_API")]
KERNELS = Path("build/kernels")


def extensions() -> list[Extension]:
    if not sys.platform.startswith("linux") or sys.implementation.name != "cpython":
        return []
    try:
        import numpy
        from Cython.Build import cythonize
    except ImportError:
        return []
    modules = [
        Extension(
            source.removesuffix(".pyx").replace("/", "."),
            [source],
            include_dirs=[FOLDER, numpy.get_include()],
            define_macros=NUMPY,
            depends=[source, *sorted(glob(f"{FOLDER}/*.h") + glob(f"{FOLDER}/*.pxd"))],
            libraries=["m"],
            extra_compile_args=FLAGS,
        )
        for source in sorted(glob(f"{FOLDER}/*.pyx"))
    ]
    directives = {"language_level": 3, "boundscheck": False, "wraparound": False, "cdivision": True}
    built = cythonize(modules, compiler_directives=directives, build_dir=f"build/cython/{sys.implementation.cache_tag}")
    for extension in built:
        extension.optional = True  # cythonize forgets it: a compiler that fails is a warning
    return built


def written(path: Path, text: str) -> str:
    """Write a file that has another text, so that what is built of it is built again only then; return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
    return str(path)


def kernels() -> list[Extension]:
    """Return one library of cuda_ext's kernels and its learner, their programs written where they are compiled."""
    if not sys.platform.startswith("linux") or sys.implementation.name != "cpython":
        return []
    sys.path.insert(0, "")
    sources = import_module("cuda_ext.sources")
    texts = {stem: sources.for_host(import_module(f"cuda_ext.{stem}").KERNEL) for stem in sources.stems()}
    programs = [
        written(KERNELS / f"{name}.cpp", text) for name, text in {**texts, "learner": sources.for_learner()}.items()
    ]
    return [
        Extension(
            "cuda_ext._host",
            ["cuda_ext/_host.cpp", *programs],
            include_dirs=["cuda_ext"],
            depends=sorted(
                file for name in ("*.c*", "*.h", "*.py", "learner/*.*h") for file in glob(f"cuda_ext/{name}")
            ),
            extra_compile_args=[*sources.HOST_FLAGS, "-DNDEBUG"],
            extra_link_args=["-pthread", "-s"],
            language="c++",
            optional=True,
            py_limited_api=True,  # one library for all versions of Python, which an environment of another finds built
        )
    ]


class BuildExt(build_ext):
    """Leaves what the checkout has built already: pip builds each editable installation in a new folder."""

    def build_extension(self, ext: Extension) -> None:
        written = [path for path in ext.depends if not os.path.isabs(path)]  # NumPy's headers are copied each time
        if not self.editable_mode or newer_group(["setup.py", *written], self.get_ext_filename(ext.name)):
            super().build_extension(ext)


setup(
    cmdclass={"build_ext": BuildExt},
    ext_modules=extensions() + kernels(),
    options={"build_ext": {"parallel": True}},  # on all processors
)
