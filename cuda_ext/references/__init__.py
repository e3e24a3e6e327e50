"""Reference implementations of the kernels in NumPy, to read, to compare with, and to run without a GPU.

Each environment is one file. The other files hold code that environments share, and functions that match other parts of
kernels, such as sampling. An environment computes in float32, in the order written in its file, and draws random
numbers with ``pufferlib.util.philox``, so that a kernel can give the same results bit for bit.
Attributes such as ``seed``, ``episode`` and ``t`` correspond to the kernel's fields of the same names.
"""
