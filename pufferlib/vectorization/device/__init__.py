"""Environments that run as kernels, with all that learners read, on one device: the backend cuda.

vecenv           the VecEnv
queue            the order of blocks from launch to batch, and the state of each environment
kernel_lookup    the kernel, arguments and device for the arguments of make
actions          checks of actions, and their tensor for the kernel
launchers        the compiled kernel, its arrays, and counts of launches
rows             the batch, which launches fill slot by slot
block_shape      what the arrays of a batch depend on
states           the state of each environment
infos, episodes  infos and episode statistics, read on demand
policy, rollout  many steps in one launch, with the policy in it
streams          order of launches on CUDA streams
host_view        access to fields and methods of the environments from the host
"""
