"""What every VecEnv consists of, whatever runs its environments.

vecenv         VecEnv, the interface that users see
arguments      check what users pass
plan           counts, shares and seeds
slab           the arrays that environments and learner share
batch          finished rows as views or copies
infos          the infos of a batch, made when they are read
tensors        the same batch as torch tensors
messages       what a VecEnv and its workers send each other
frames         messages as bytes
backend        the interface to whatever runs the workers
step_watchdog  time limits of steps and resets
sharing        refuse one environment object in two rows
transfer       pickle an object together with what is registered in this process
"""
