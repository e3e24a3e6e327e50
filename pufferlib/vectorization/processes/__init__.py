"""Workers in processes of their own: the backends multiprocessing and pool.

backend           the backend, and the two classes of VecEnv
start             start a worker process
serve             what runs in it
lifetime          end it with its parent, whatever ends the parent
thread_caps       limit its threads
channel           frames over a socket pair
deferred_signals  delay Ctrl-C while a process starts or ends
"""
