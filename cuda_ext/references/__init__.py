"""References of the kernels: the same environments in NumPy, to read, to compare with, and to run without a GPU.

One file is one environment, but for episodes, pictures and the functions that they share with kernels. It computes in
float32, in the order that it states, and draws by ``pufferlib.util.philox``, so that a kernel can be equal to it to the
bit. Its attributes ``seed``, ``episode``, ``t`` and so on are a kernel's fields of the same names.
"""
