"""What other compiled modules may use of pack.pyx, where each field is explained."""

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
    int number  # PUF_NO_NUMBER or what follows it
    PyObject *warned
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

# What number_of finds.
cdef enum Number: NO_NUMBER, A_BOOL, AN_INT, A_FLOAT

# Say what kind of number an object is, one of Python's own or of NumPy's scalars, and store its value: of a float as
# real, of others as whole and as real (where a float is too short for it, rounded). NO_NUMBER: none, or one that only
# NumPy can read.
cdef Number number_of(object value, int64_t *whole, double *real) noexcept

# Store an array of one element as number_of does.
cdef Number element_of(object array, int64_t *whole, double *real) noexcept

# Say whether this is one number, alone or in an array of one element, that C can read: what kind, and its value.
cdef bint number_in(object value, int64_t *whole, double *real, Number *found) noexcept


cdef inline bint read_reward(object value, double *reward) noexcept:
    """Read a reward as ``single_agent.scalar_reward`` does; return whether that is possible here."""
    cdef int64_t whole
    cdef Number found
    if PyFloat_CheckExact(value):
        reward[0] = PyFloat_AS_DOUBLE(value)
        return True
    return number_in(value, &whole, reward, &found)


cdef inline bint read_flag(object value, bint *flag) noexcept:
    """Read a flag as ``single_agent.checked_flag`` does; return whether that is possible here."""
    cdef int64_t whole
    cdef double real
    cdef Number found
    if value is False or value is True:
        flag[0] = value is True
        return True
    if not number_in(value, &whole, &real, &found) or (real != 0 and real != 1):
        return False
    flag[0] = real == 1
    return True


cdef class ValueCheck:
    cdef puf_values kind
    cdef size_t num_columns
    cdef object dtype, low, high
    cdef const void *least
    cdef const void *most

    # Return whether all values of so many actions may be sent. They lie one after another, in the space's dtype.
    cdef bint fit_at(self, const void *values, size_t num_rows) noexcept

cdef class Packer:
    cdef Node root, row
    cdef Node *padding
    cdef Py_ssize_t num_gaps
    cdef readonly Py_ssize_t nbytes  # of a row
    cdef tuple shape  # of a row
    cdef bint is_scalar
    cdef list kept

    # Write all bytes of a row and return 1; or return 0 and leave the row undefined, because something about the sample
    # is unusual and Layout.pack_into has to take or refuse it. Raises what the sample's own code raises, other than
    # because the sample is a bad one.
    cdef int pack_at(self, object sample, char *row) except -1

    # Return a new array that holds a sample; None where pack_at returns 0.
    cdef object packed(self, object sample)

cdef class Unpacker:
    cdef Part root
    cdef Node lone
    cdef bint has_choices, has_reals
    cdef Py_ssize_t num_choices, num_reals
    cdef int64_t *start
    cdef object careful
    cdef list kept

    # Return the action, owned, that a row's components hold; NULL stands for one that rows have not. Of a space that is
    # one leaf: whichever is not NULL, in the space's own dtype. Raises SpaceError for NaN in a Box of integers.
    cdef object unpack_at(self, const char *discrete, const char *box)

cdef class MaskPacker:
    cdef int kind
    cdef readonly Py_ssize_t size  # choices
    cdef dict parts  # of a nested space, by key
    cdef object array  # in which masks are returned

    # Return a mask as pack_mask of emulation/action_masks.py does, in one array each time; None where it is unusual.
    cdef object packed(self, object mask)

    cdef bint fill(self, object mask, char *row) except? True
