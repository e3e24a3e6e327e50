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
    cdef dict by_place  # what the last step or reset tells, by place; None is the environment's own
    cdef list places  # whose each of the labelled infos is
    cdef tuple shape  # of the rows' observations
    cdef object dtype

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

    # Write the rows of what it returned, of a reset the observations alone. If ODD is returned, nothing has changed, and
    # no rows are written. If IS_OVER, the next reset may be played here.
    cdef Outcome take(self, object result, Rows *rows) except *
    cdef Outcome take_reset(self, object result, Rows *rows) except *

    cdef int add_end(self, dict told, double total_reward) except -1
    cdef list labelled(self, dict told)

    # Return a copy of the rows' observations. Return infos with those of the last rows of an episode, as Python does.
    cdef object seen(self, Rows *rows)
    cdef dict with_finals(self, dict firsts, dict lasts, Rows *rows, object observations)

# Write the outcome of a reset.
cdef void put_first_outcome(Rows *rows, Py_ssize_t count) noexcept nogil
