"""The caller's side of a VecEnv whose environments are stepped in workers.

factory             construction of a WorkerVecEnv, for one kind of backend
worker_vecenv       send and recv: checks, order of calls
call_guard          restriction to one thread at a time, in the process that made the VecEnv
workers             starting, replacing and ending the workers
scheduler           the interface that chooses the finished environments of the next batch
portable_scheduler  the scheduler of the portable path
ring_scheduler      the scheduler of the compiled path, with a fast path for send and recv
dispatcher          handling of the workers' messages
pending_infos       the infos of rows that have not been received yet
fairness            quotas and row weights, for pools whose environments differ in speed
recovery            which environments must be made again, and with which seeds
control             method calls on environments and access to their attributes
"""
