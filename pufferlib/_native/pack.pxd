"""The declarations of pack.pyx for other compiled modules; pack.pyx explains the fields."""

from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_CheckExact
from cpython.object cimport PyObject
from libc.stdint cimport int64_t

cdef extern from "casts.h" nogil:
    enum: PUF_NO_NUMBER, PUF_BOOL, PUF_INT8, PUF_INT64, PUF_UINT64, PUF_FLOAT32, PUF_FLOAT64, PUF_NUM_NUMBERS

cdef struct Node:
    int kind
    PyObject *key
    Node *children
    Py_ssize_t count, offset, nbytes, itemsize, length_offset
    int ndim
    Py_ssize_t *dims
    PyObject *dtype
    PyObject *scalar
    int number  # a puf_number
    PyObject *warnings
    PyObject *write
    bint busy
    char *data

cdef struct Part:
    int kind
    PyObject *key
    Part *children
    Py_ssize_t count, start, itemsize
    PyObject *shape
    PyObject *dtype
    double *low
    double *high

cdef extern from "values.h" nogil:
    enum puf_values: PUF_ANY_VALUE
    bint puf_values_fit(puf_values, const void *, size_t, size_t, const void *, const void *)

# The results of number_of.
cdef enum Number: NO_NUMBER, A_BOOL, AN_INT, A_FLOAT

# Return the kind of a Python number or NumPy scalar, and store its value: of a float as float_value, of others as
# int_value and as float_value (rounded if necessary). NO_NUMBER: no number, or one that only NumPy can read.
cdef Number number_of(object value, int64_t *int_value, double *float_value) noexcept

# Do the same for an array of one element.
cdef Number element_of(object array, int64_t *int_value, double *float_value) noexcept

# Return whether an object is a number, alone or in an array of one element, that C can read; store its kind and value.
cdef bint number_in(object value, int64_t *int_value, double *float_value, Number *kind) noexcept


cdef inline bint read_reward(object value, double *reward) noexcept:
    """Read a reward as ``single_agent.scalar_reward`` does; return whether C can read it."""
    cdef int64_t int_value
    cdef Number kind
    if PyFloat_CheckExact(value):
        reward[0] = PyFloat_AS_DOUBLE(value)
        return True
    return number_in(value, &int_value, reward, &kind)


cdef inline bint read_flag(object value, bint *flag) noexcept:
    """Read a flag as ``single_agent.checked_flag`` does; return whether C can read it."""
    cdef int64_t int_value
    cdef double float_value
    cdef Number kind
    if value is False or value is True:
        flag[0] = value is True
        return True
    if not number_in(value, &int_value, &float_value, &kind) or (float_value != 0 and float_value != 1):
        return False
    flag[0] = float_value == 1
    return True


cdef class ValueCheck:
    cdef puf_values kind
    cdef size_t num_columns
    cdef object dtype, low, high
    cdef const void *low_data
    cdef const void *high_data

    # Return whether all values of num_rows actions are valid. They lie one after another, in the space's dtype.
    cdef bint fit_at(self, const void *values, size_t num_rows) noexcept

cdef class Packer:
    cdef Node root, row
    cdef Node *padding
    cdef Py_ssize_t num_gaps
    cdef readonly Py_ssize_t nbytes  # of a row
    cdef tuple shape  # of a row
    cdef bint is_scalar
    cdef list references

    # Write all bytes of a row and return 1; or return 0 and leave the row undefined, if the sample is unusual and
    # Layout.pack_into has to accept or refuse it. Raises what the sample's code raises, except for the exceptions that
    # mean a bad sample.
    cdef int pack_at(self, object sample, char *row) except -1

    # Return a new array that holds a sample; None if pack_at returns 0.
    cdef object packed(self, object sample)

cdef class Unpacker:
    cdef Part root
    cdef Node lone
    cdef bint has_discrete, has_box
    cdef Py_ssize_t num_discrete, num_box
    cdef int64_t *start
    cdef object unpack_in_python
    cdef list references

    # Return a row's action, which shares no memory with it; pass NULL for a component that rows do not have. If the
    # space is one leaf, pass its row, of the space's dtype, as either. Raises SpaceError for NaN in a Box of integers.
    cdef object unpack_at(self, const char *discrete, const char *box)

cdef class MaskPacker:
    cdef int kind
    cdef readonly Py_ssize_t size  # elements of a mask
    cdef dict parts  # of a nested space, by key
    cdef object array  # the returned array

    # Return a mask as pack_mask of emulation/action_masks.py does, always in the same array; None if it is unusual.
    cdef object packed(self, object mask)

    cdef bint fill(self, object mask, char *row) except? True
