"""The backend "cuda": environments that run as kernels on one device, which also holds everything that learners read.

vecenv           the VecEnv
queue            the order of blocks from launch to batch
kernel_lookup    the kernel, reference and device that the arguments of make select
actions          checks of actions, and their conversion to tensors for the kernel
launchers        the compiled kernel, its arrays, and counts of launches
rows             a batch's rows, which launches fill slot by slot
block_shape      the counts and shapes that determine a batch's arrays
states           whether each environment is new, waiting for an action, or in flight
infos, episodes  infos and episode statistics, read on demand
policy, rollout  choice of actions on the device, and many steps in one launch
streams          the order of launches on CUDA streams
host_view        access to fields and methods of the environments from the host
"""
