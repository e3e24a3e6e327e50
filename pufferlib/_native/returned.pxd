"""What other compiled modules may use of returned.pyx."""

# Whether an info tells nothing.
cdef bint is_empty(object info) noexcept

# Read a reward as ``single_agent.scalar_reward`` does; return whether that is possible here.
cdef bint read_reward(object value, double *reward) noexcept

# Read a flag as ``single_agent.checked_flag`` does; return whether that is possible here.
cdef bint read_flag(object value, bint *flag) noexcept

# Return a copy of a dict, as ``own`` of emulation/infos.py makes it; None where that would be empty.
cdef dict owned(object info, object own)
