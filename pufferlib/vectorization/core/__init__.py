"""The parts of every VecEnv that do not depend on the backend.

vecenv         VecEnv, the interface that users see
arguments      checks of what users pass
call_errors    errors of calls in the wrong order
plan           counts, shares and seeds
slab           the arrays that environments and learner share
batch          finished rows as views or copies
infos          the infos of a batch, made when they are read
tensors        the same batch as torch tensors
messages       messages between a VecEnv and its workers
frames         messages as bytes
backend        the interface to what runs the workers
step_watchdog  time limits of steps and resets
sharing        refusal of one environment object in two rows
transfer       pickling of an object together with the registrations of this process
"""
