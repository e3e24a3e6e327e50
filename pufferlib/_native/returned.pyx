"""Reads what environments return: rewards and flags of every number type, and infos.

What cannot be read here is left to the Python twins in ``emulation``, which take it or say what is wrong with it.
"""

from cpython.dict cimport PyDict_Copy, PyDict_Next
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_CheckExact
from cpython.long cimport PyLong_CheckExact
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_CheckExact
from libc.stdint cimport int64_t

from pufferlib._native.arrays cimport puf_dim, puf_is_array, puf_ndim
from pufferlib._native.pack cimport NO_NUMBER, Number, element_of, number_of

import numpy

cdef object NDARRAY = numpy.ndarray


cdef bint is_empty(object info) noexcept:
    """Whether an info tells nothing."""
    return info is None or (type(info) is dict and len(<dict>info) == 0)


cdef bint number_in(object value, int64_t *whole, double *real, Number *found) noexcept:
    """Whether this is one number, alone or in an array of one element, that C can read: what kind, and its value."""
    if puf_is_array(value, NDARRAY):
        found[0] = element_of(value, whole, real) if is_single(value) else NO_NUMBER
    else:
        found[0] = number_of(value, whole, real)
    return found[0] != NO_NUMBER


cdef bint is_single(object array) noexcept:
    """Whether an array has one element."""
    cdef int axis
    for axis in range(puf_ndim(array)):
        if puf_dim(array, axis) != 1:
            return False
    return True


cdef bint read_reward(object value, double *reward) noexcept:
    """Read a reward as ``single_agent.scalar_reward`` does; return whether that is possible here."""
    cdef int64_t whole
    cdef Number found
    if PyFloat_CheckExact(value):
        reward[0] = PyFloat_AS_DOUBLE(value)
        return True
    return number_in(value, &whole, reward, &found)


cdef bint read_flag(object value, bint *flag) noexcept:
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


cdef dict owned(object info, object own):
    """Return a copy of a dict, as ``own`` of emulation/infos.py makes it; None where that would be empty."""
    cdef PyObject *key
    cdef PyObject *found
    cdef Py_ssize_t position = 0
    cdef dict copy
    if is_empty(info):
        return None
    copy = PyDict_Copy(info)
    while PyDict_Next(info, &position, &key, &found):
        value = <object>found
        if PyFloat_CheckExact(value) or PyLong_CheckExact(value) or PyUnicode_CheckExact(value):
            continue
        if puf_is_array(value, NDARRAY):
            copy[<object>key] = value.copy()  # the key is there already, so the order stays
        elif type(value) is list or type(value) is tuple or isinstance(value, (dict, NDARRAY)):
            copy[<object>key] = own(value)
    return copy
