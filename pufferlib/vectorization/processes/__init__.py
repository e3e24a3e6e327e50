"""Workers in processes: the backends multiprocessing and pool.

backend           the backend, and the two classes of VecEnv
start             starting a worker process
serve             the main function of a worker process
lifetime          ending it with its parent, however the parent ends
thread_caps       limits on its threads
channel           frames over a socket pair
deferred_signals  delay of Ctrl-C while a process starts or ends
"""
