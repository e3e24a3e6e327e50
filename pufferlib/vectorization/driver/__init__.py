"""The caller's side of a VecEnv whose environments are stepped in workers.

factory             the parts of a WorkerVecEnv, made for one kind of backend
worker_vecenv       send and recv: checks, order of calls
call_guard          restriction to one thread at a time, in the process that made the VecEnv
workers             which workers live: start, replacement, end
scheduler           which finished environments form the next batch: the interface
portable_scheduler  the same on the portable path
ring_scheduler      the same on the compiled path, with its fast path for send and recv
dispatcher          handling of the workers' messages
pending_infos       the infos of rows that have not been received yet
recovery            which environments must be made again, and with which seeds
control             method calls on environments and access to their attributes
"""
