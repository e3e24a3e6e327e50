"""Environments that run as kernels, with all that learners read, on one device: the backend cuda.

vecenv           the VecEnv
kernel_lookup    the kernel, arguments and device for the arguments of make
actions          checks of actions, and their tensor for the kernel
rows             the batch, which launches fill slot by slot
infos, episodes  infos and episode statistics, read on demand
policy, rollout  many steps in one launch, with the policy in it
streams          order of launches on CUDA streams
host_view        access to fields and methods of the environments from the host
"""
