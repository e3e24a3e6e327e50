"""All about the project stands in pyproject.toml; here only the compiled path, which is optional.

Where there is no C compiler, no Cython or no Linux, the package installs without it and runs the portable path;
`puffer doctor` says which one is in use.
"""

import sys
from glob import glob

from setuptools import Extension, setup

FOLDER = "pufferlib/_native"
FLAGS = ["-O2", "-g0", "-std=gnu11", "-fno-strict-aliasing", "-Wno-unused-function"]


def extensions() -> list[Extension]:
    if not sys.platform.startswith("linux") or sys.implementation.name != "cpython":
        return []
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    found = [
        Extension(
            source.removesuffix(".pyx").replace("/", "."),
            [source],
            include_dirs=[FOLDER],
            depends=sorted(glob(f"{FOLDER}/*.h") + glob(f"{FOLDER}/*.pxd")),
            libraries=["m"],
            extra_compile_args=FLAGS,
        )
        for source in sorted(glob(f"{FOLDER}/*.pyx"))
    ]
    directives = {"language_level": 3, "boundscheck": False, "wraparound": False, "cdivision": True}
    built = cythonize(found, compiler_directives=directives, build_dir="build/cython")
    for extension in built:
        extension.optional = True  # cythonize forgets it: a compiler that fails is a warning
    return built


setup(ext_modules=extensions())
