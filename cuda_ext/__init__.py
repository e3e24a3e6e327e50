"""The home of environments that run as CUDA kernels, one `.cuh` and one `.py` of the same stem each.

``references`` holds what a kernel will have to be equal to. There is no kernel yet, and no ``backend="cuda"``.
"""
