"""All about the project stands in pyproject.toml; here only the compiled path, which is optional.

Where there is no C compiler, no Cython or no Linux, the package installs without it and runs the portable path;
`puffer doctor` says which one is in use.
"""

import sys

from setuptools import Extension, setup

MODULES = ("pack", "lanes")
FLAGS = ["-O3", "-std=gnu11", "-fno-strict-aliasing", "-Wno-unused-function"]


def extensions() -> list[Extension]:
    if not sys.platform.startswith("linux"):
        return []
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    found = [
        Extension(
            f"pufferlib._native.{name}",
            [f"pufferlib/_native/{name}.pyx"],
            include_dirs=["pufferlib/_native"],
            depends=["pufferlib/_native/arrays.h", "pufferlib/_native/ring.h"],
            extra_compile_args=FLAGS,
            optional=True,
        )
        for name in MODULES
    ]
    directives = {"language_level": 3, "boundscheck": False, "wraparound": False, "cdivision": True}
    return cythonize(found, compiler_directives=directives, build_dir="build/cython")


setup(ext_modules=extensions())
