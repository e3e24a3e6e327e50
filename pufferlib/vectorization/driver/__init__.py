"""The learner's side of a VecEnv whose environments are stepped by workers.

worker_vecenv   send and recv: checks, order of calls
fast_path       the same for the plain case, on the portable path
scheduler       which finished environments form the next batch: portable path
ring_scheduler  the same on the compiled path
dispatcher      handle the workers' messages
recovery        which environments must be made again, with which seeds
control         call methods and read attributes of the environments
call_guard      one thread at a time, and only in the process that made the VecEnv
"""
