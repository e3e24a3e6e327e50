"""Limits on the threads of a worker process: workers share the cores among themselves."""

from __future__ import annotations

import os
import sys
from typing import Any

__all__ = ["imported_function", "limit_imported", "limit_threads"]

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def limit_threads(threads: int) -> None:
    """Cap the threads of BLAS and OpenMP, loaded already or later: workers share the cores among themselves.

    No thread of this process may be in BLAS meanwhile.
    """
    import threadpoolctl

    for variable in THREAD_VARIABLES:
        os.environ[variable] = str(threads)
    controller = threadpoolctl.ThreadpoolController()
    controller.limit(limits=threads)
    for library in controller.lib_controllers:
        # In a forked process OpenBLAS starts all its threads again to change their number, and each spins for 10 ms.
        # They end here; those that are allowed start when there is work for them.
        loaded = library.dynlib if hasattr(library, "dynlib") else library._dynlib  # threadpoolctl before 3.2
        if library.internal_api == "openblas" and hasattr(loaded, "blas_thread_shutdown_"):
            loaded.blas_thread_shutdown_()


def limit_imported(threads: int | None) -> None:
    """Cap the threads of torch and OpenCV, which an environment may have imported; None for no limit."""
    if threads is not None:
        for module, name in (("torch", "set_num_threads"), ("cv2", "setNumThreads")):
            if (limit := imported_function(module, name)) is not None:
                limit(threads)


def imported_function(module: str, name: str) -> Any:
    """Return what a module that is imported already has by a name, else None.

    Not all of one may be: another thread is about to, or it is a folder that an uninstalled package has left behind.
    """
    return getattr(sys.modules.get(module), name, None)
