"""The parts of every VecEnv that do not depend on the backend.

vecenv             VecEnv, the interface that users see
arguments          checks of the arguments that users pass
parameters         the parameters of make and of the VecEnv classes
call_errors        errors of calls in the wrong order
plan               counts, shares and seeds
slab               the arrays that environments and learner share
batch              finished rows as views or copies
infos              the infos of a batch, built when first read
tensors            batches as torch tensors
messages           messages between a VecEnv and its workers
frames             messages as bytes
failure_summaries  one text for each cause of several failures
backend            the interface between a VecEnv and whatever runs its workers
step_watchdog      time limits for steps and resets
sharing            detection of one object that serves as two environments
transfer           pickling of an object together with this process's registrations
"""
