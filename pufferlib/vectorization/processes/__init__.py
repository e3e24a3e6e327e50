"""Workers in processes: the backends multiprocessing and pool.

backend           the backend, and the two kinds of VecEnv that use it
start             starting a worker process
serve             main function of a worker process
lifetime          ending a worker process, no later than its parent
thread_caps       limits on a worker's threads
channel           frames over a socket pair
sandbox           a process for a function that may print, hang or crash
deferred_signals  delay of Ctrl-C while a process starts or ends
"""
