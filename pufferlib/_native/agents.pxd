"""The declarations of agents.pyx for other compiled modules."""

# The addresses of an environment's rows, one per agent.
cdef struct Rows:
    char *observations
    char *rewards
    bint wide_rewards  # float64, not float32
    char *terminations
    char *truncations
    char *masks

# The outcome of a step or reset: UNUSUAL if Python has to handle it; else its rows are written, and the episode
# continues or is over.
cdef enum Outcome: UNUSUAL, GOES_ON, IS_OVER

cdef class Agents:
    cdef object row_env, env, copy_value
    cdef Py_ssize_t num  # rows
    cdef object env_id
    cdef double total_reward, start_s  # of the episode
    cdef long length
    cdef dict infos_by_agent  # infos of the last step or reset; key None: the environment's
    cdef list agent_indices  # of the labelled infos
    cdef tuple shape  # of the rows' observations
    cdef object dtype

    # Copy the episode's totals to the RowEnv, which takes the next step.
    cdef int export_state(self) except -1

    # Read the totals and the living agents from the RowEnv.
    cdef int resume(self) except -1

    # Return whether the compiled code may make the next reset, or the next step.
    cdef bint can_reset(self) except? True
    cdef bint can_step(self) except? True

    # Call the environment's step or reset and return its result.
    cdef object step(self)
    cdef object reset(self)

    # Write the rows of such a result; for a reset, only the observations. UNUSUAL: nothing has changed, and no rows are
    # written. IS_OVER: the next reset may be made here.
    cdef Outcome take(self, object result, Rows *rows) except *
    cdef Outcome take_reset(self, object result, Rows *rows) except *

    cdef int add_end(self, dict infos_by_agent, double total_reward) except -1
    cdef list label_infos(self, dict infos_by_agent)

    # Return a copy of the rows' observations, and the infos with final_obs and final_info.
    cdef object copy_observations(self, Rows *rows)
    cdef dict with_finals(self, dict firsts, dict lasts, Rows *rows, object observations)

# Write the outcome of a reset.
cdef void put_first_outcome(Rows *rows, Py_ssize_t count) noexcept nogil
