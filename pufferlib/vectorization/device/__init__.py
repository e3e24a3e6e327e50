"""Environments that are kernels, with everything that learners read, on one device: the backend cuda.

vecenv           the VecEnv
kernel_lookup    which kernel, arguments and device a name stands for
actions          check actions, pass them to the kernel
rows             the batch, which launches fill slot by slot
infos, episodes  infos and episode statistics, read on demand
policy, rollout  many steps in one launch, with the policy in it
streams          order launches among CUDA streams
host_view        environments seen from the host: fields and methods
"""
