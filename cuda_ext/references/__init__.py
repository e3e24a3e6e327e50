"""References of the kernels: the same environments in NumPy, to read, to compare with, and to run where no GPU is.

One file is one PettingZoo ``ParallelEnv``, but for episodes, pictures and trigonometry, which they share. It computes
in float32, in the order that it states, and draws by ``pufferlib.util.philox``, so that a kernel can be equal to it to
the bit. Its attributes ``seed``, ``episode``, ``t`` and so on are a kernel's fields of the same names.
"""
