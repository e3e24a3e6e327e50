"""What other compiled modules may use of agents.pyx."""

# Where the rows of one environment go, one an agent.
cdef struct Rows:
    char *observations
    char *rewards
    bint wide_rewards  # float64, not float32
    char *terminations
    char *truncations
    char *masks

# What became of a step or a reset: Python has to take it, or its rows are written, and the episode goes on or is over.
cdef enum Outcome: ODD, GOES_ON, IS_OVER

cdef class Agents:
    cdef object row_env, env, own
    cdef Py_ssize_t num  # places
    cdef object env_id
    cdef double total_reward, start_s  # of the episode
    cdef long length
    cdef list infos  # what the last step or reset tells, labelled; None: nothing
    cdef list places  # whose each of these is; None for the environment's own

    # Give the episode's totals to the plain twin, which is about to go on.
    cdef int hold(self) except -1

    # Take them back, and look who is there.
    cdef int resume(self) except -1

    # Whether the next reset may be played here; and whether the next step may.
    cdef bint can_reset(self) except? True
    cdef bint can_step(self) except? True

    # Call the environment's own step or reset and return what it returns.
    cdef object step(self)
    cdef object reset(self)

    # Write the rows of what it returned. If ODD is returned, nothing has changed, and no rows are written.
    # ends: whether an episode may end here.
    cdef Outcome take(self, object result, Rows *rows, bint ends) except *
    cdef Outcome take_reset(self, object result, Rows *rows) except *

    cdef int add_end(self, dict told, double total_reward) except -1
    cdef list labelled(self, dict told)
