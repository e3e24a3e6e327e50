"""The caller's side of a VecEnv whose environments are stepped in workers.

worker_vecenv   send and recv: checks, order of calls
fast_path       the plain case of send and recv, on the portable path
scheduler       which finished environments form the next batch, on the portable path
ring_scheduler  its counterpart on the compiled path
dispatcher      handling of the workers' messages
recovery        which environments must be made again, and with which seeds
control         method calls on environments and access to their attributes
call_guard      restriction to one thread at a time, in the process that made the VecEnv
"""
