"""All about the project stands in pyproject.toml; here only what is compiled, which is optional.

The compiled path: where there is no C compiler, no Cython, no NumPy or no Linux, the package installs without it and
runs the portable path; `puffer doctor` says which one is in use. The kernels of cuda_ext as the host plays them:
without them they are compiled when they are first used.
"""

import sys
from glob import glob
from importlib import import_module
from pathlib import Path

from setuptools import Extension, setup

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
            depends=sorted(glob(f"{FOLDER}/*.h") + glob(f"{FOLDER}/*.pxd")),
            libraries=["m"],
            extra_compile_args=FLAGS,
        )
        for source in sorted(glob(f"{FOLDER}/*.pyx"))
    ]
    directives = {"language_level": 3, "boundscheck": False, "wraparound": False, "cdivision": True}
    built = cythonize(modules, compiler_directives=directives, build_dir="build/cython")
    for extension in built:
        extension.optional = True  # cythonize forgets it: a compiler that fails is a warning
    return built


def kernels() -> list[Extension]:
    """Return one library of cuda_ext's kernels and its learner, their programs written where they are compiled."""
    if not sys.platform.startswith("linux") or sys.implementation.name != "cpython":
        return []
    sys.path.insert(0, "")
    sources = import_module("cuda_ext.sources")
    KERNELS.mkdir(parents=True, exist_ok=True)
    programs = ["cuda_ext/_host.cpp"]
    for stem in sources.stems():
        program = KERNELS / f"{stem}.cpp"
        program.write_text(sources.for_host(import_module(f"cuda_ext.{stem}").KERNEL))
        programs.append(str(program))
    learner = KERNELS / "learner.cpp"
    learner.write_text(sources.for_learner())
    programs.append(str(learner))
    return [
        Extension(
            "cuda_ext._host",
            programs,
            include_dirs=["cuda_ext"],
            depends=sorted(
                file for name in ("*.cuh", "*.h", "*.py", "learner/*.*h") for file in glob(f"cuda_ext/{name}")
            ),
            extra_compile_args=[*sources.HOST_FLAGS, "-DNDEBUG"],
            extra_link_args=["-pthread", "-s"],
            language="c++",
            optional=True,
        )
    ]


setup(ext_modules=extensions() + kernels(), options={"build_ext": {"parallel": True}})  # on all processors
