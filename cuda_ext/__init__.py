"""The home of environments that run as CUDA kernels, one `.cuh` and one `.py` of the same stem each.

There is nothing here yet: no kernel, and no ``backend="cuda"``.
"""
