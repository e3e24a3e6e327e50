"""Workers in Ray actors, on the machines of a cluster: the backend ray.

backend     the backend, and the kind of VecEnv that uses it
actor       the code that runs in an actor
calls       the calls in flight to each actor
supervisor  starting, replacing and ending actors
connection  the connection to the cluster
sockets     a direct connection to an actor, for small calls
"""
