"""The caller's side of a VecEnv whose environments are stepped by workers.

worker_vecenv   send and recv: checks, order of calls
fast_path       the plain case of send and recv, on the portable path
scheduler       which finished environments form the next batch, on the portable path
ring_scheduler  the same on the compiled path
dispatcher      handling of the workers' messages
recovery        which environments must be made again, with which seeds
control         calls of methods and access to attributes of the environments
call_guard      one thread at a time, and only in the process that made the VecEnv
"""
