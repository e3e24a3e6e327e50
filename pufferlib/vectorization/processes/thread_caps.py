"""Limits on the threads of a worker process, because all workers share the cores."""

from __future__ import annotations

import os
import sys

from pufferlib.util.annotations import Function

__all__ = ["imported_function", "limit_imported", "limit_threads"]

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def limit_threads(threads: int) -> None:
    """Limit the threads of BLAS and OpenMP libraries, whether already loaded or loaded later.

    No thread of this process may be in BLAS during the call.
    """
    import threadpoolctl

    for variable in THREAD_VARIABLES:
        os.environ[variable] = str(threads)
    controller = threadpoolctl.ThreadpoolController()
    controller.limit(limits=threads)
    for library in controller.lib_controllers:
        # In a forked process OpenBLAS starts all its threads again to change their number, and each spins for 10 ms.
        # End them here; the allowed ones start when there is work.
        loaded = library.dynlib if hasattr(library, "dynlib") else library._dynlib  # threadpoolctl before 3.2
        if library.internal_api == "openblas" and hasattr(loaded, "blas_thread_shutdown_"):
            loaded.blas_thread_shutdown_()


def limit_imported(threads: int | None) -> None:
    """Limit the threads of torch and of OpenCV, if they have been imported. threads: None for no limit."""
    if threads is not None:
        for module, name in (("torch", "set_num_threads"), ("cv2", "setNumThreads")):
            if (limit := imported_function(module, name)) is not None:
                limit(threads)


def imported_function(module: str, name: str) -> Function | None:
    """Return a module's attribute if the module is imported and has it, else None.

    The module may be incomplete, if another thread is importing it or if it is a folder left by an uninstalled package.
    """
    return getattr(sys.modules.get(module), name, None)
