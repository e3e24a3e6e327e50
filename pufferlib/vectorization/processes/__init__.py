"""Workers in processes: the backends multiprocessing and pool.

backend           the backend, and the two kinds of VecEnv that use it
start             start of a worker process
serve             main function of a worker process
lifetime          end of a worker process, at the latest with its parent
thread_caps       limits on a worker's threads
channel           frames over a socket pair
sandbox           functions in processes that may print, hang or crash
deferred_signals  delay of Ctrl-C while a process starts or ends
"""
