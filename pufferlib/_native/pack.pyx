"""Compiled packing of nested samples into the bytes of a row, and unpacking of action rows into nested actions.

``Packer`` does the work of ``compile_writer`` in pufferlib/layout/pack.py, and ``Unpacker`` that of ``compile_unpack``
in pufferlib/layout/unpack.py: the same bytes in a tenth of the time. Both accept exact types only, and read memory
rather than call methods of a sample. ``Packer`` casts number types as ``pack.Writer.cast`` does, once the latter has
warned of a cast. They leave anything unusual (a value that a cast would change, a string, an extra key) to the Python
code, which accepts it or raises the error.
"""

cimport cython
from cpython.dict cimport PyDict_GetItemWithError, PyDict_Size
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_CheckExact
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from cpython.object cimport Py_EQ, Py_TYPE, PyObject, PyObject_RichCompareBool
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.math cimport isnan, rintf
from libc.stdint cimport int16_t, int32_t, int64_t, uint64_t
from libc.string cimport memcpy, memmove, memset

from pufferlib._native.arrays cimport (
    NPY_ARRAY_C_CONTIGUOUS, NPY_ARRAY_WRITEABLE, puf_data, puf_descr, puf_dim, puf_dims, puf_has_flags, puf_is_array,
    puf_is_plain, puf_ndim, puf_scalar, puf_strides,
)

import collections
import math
import sys

import numpy

__all__ = ["Packer", "Unpacker"]

cdef extern from "numpy/arrayobject.h":
    int _import_array() except -1

cdef extern from "casts.h" nogil:
    ctypedef int puf_cast(char *, const char *, Py_ssize_t, size_t) noexcept
    puf_cast *PUF_CAST_OF[PUF_NUM_NUMBERS][PUF_NUM_NUMBERS]
    size_t PUF_SIZE_OF[PUF_NUM_NUMBERS]
    int puf_cast_array(int, int, int, char *, const char *, const Py_ssize_t *, const Py_ssize_t *, int)

cdef extern from "Python.h":
    Py_UCS4 *PyUnicode_AsUCS4(object, Py_UCS4 *, Py_ssize_t, int) except NULL
    Py_ssize_t PyUnicode_GetLength(object) except -1
    int PyUnicode_KIND(object)
    void *PyUnicode_DATA(object)

cdef object NDARRAY = numpy.ndarray
cdef object EMPTY = numpy.empty
cdef object AS_ARRAY = numpy.asarray
cdef object INT64 = numpy.dtype(numpy.int64)
cdef object UINT8 = numpy.dtype(numpy.uint8)
cdef object INT8 = numpy.dtype(numpy.int8)
cdef object FLOAT32 = numpy.dtype(numpy.float32)
cdef object INT64_SCALAR = numpy.int64
cdef object INT32_SCALAR = numpy.int32
cdef object ORDERED = collections.OrderedDict

_import_array()  # raises RuntimeError if this NumPy is of another ABI, or older than setup.py names

# The exceptions by which the Python code recognizes an unusual sample.
UNUSUAL = (TypeError, ValueError, LookupError, AttributeError, OverflowError)


# ---------------------------------------------------------------------------------------------------- pack

cdef enum:
    ARRAY  # dims, dtype, scalar, number, nbytes, offset
    INT  # a Discrete of int64: the same, without dims
    DICT  # count, children with their keys
    TUPLE  # count, children
    TEXT  # offset, nbytes of a character (1 or 4), count: the most characters, length_offset
    STACK  # as ARRAY with a first dimension of variable length, nbytes of an element, count: the most, length_offset
    REPEATED  # one child, up to count times; offset, nbytes of an element, length_offset
    PYTHON  # write(sample) fills count children, which have data, nbytes and offset


cdef inline bint is_like(object array, Node *node, int first):
    """Return whether an object is an ndarray of the node's dtype and dimensions; those before ``first`` may differ."""
    cdef int i
    if not puf_is_array(array, NDARRAY) or puf_ndim(array) != node.ndim:
        return False
    cdef Py_ssize_t *dims = puf_dims(array)
    for i in range(first, node.ndim):
        if dims[i] != node.dims[i]:
            return False
    return puf_descr(array) == node.dtype or is_equal(puf_descr(array), node.dtype)


cdef bint is_equal(PyObject *dtype, PyObject *expected):
    """Return whether two dtype objects are equal; an unpickled one may be a distinct object."""
    return PyObject_RichCompareBool(<object>dtype, <object>expected, Py_EQ) == 1


cdef int copy(object array, Node *node, Py_ssize_t nbytes, char *target) except -1:
    """Copy an array that ``is_like`` a node; return 0 if it overlaps the target."""
    if puf_has_flags(array, NPY_ARRAY_C_CONTIGUOUS):
        memmove(target, puf_data(array), nbytes)
        return 1
    if overlaps(array, node.itemsize, target, nbytes):
        return 0
    copy_strided(target, puf_data(array), puf_dims(array), puf_strides(array), node.ndim, node.itemsize)
    return 1


cdef bint overlaps(object array, Py_ssize_t itemsize, const char *target, Py_ssize_t nbytes) noexcept:
    """Return whether an array overlaps the memory it is copied to, so that NumPy has to choose the copying order."""
    cdef const char *low = puf_data(array)
    cdef const char *high = low + itemsize
    cdef Py_ssize_t extent
    cdef int i
    for i in range(puf_ndim(array)):
        extent = puf_strides(array)[i] * (puf_dims(array)[i] - 1)
        low += min(extent, 0)
        high += max(extent, 0)
    return low < target + nbytes and target < high


cdef char *copy_strided(char *target, const char *source, const Py_ssize_t *dims, const Py_ssize_t *strides, int ndim,
                        Py_ssize_t itemsize) noexcept nogil:
    """Copy elements in C order; return the end of the written bytes."""
    cdef Py_ssize_t i
    cdef Py_ssize_t count = dims[0]
    cdef Py_ssize_t stride = strides[0]
    if ndim > 1:
        for i in range(count):
            target = copy_strided(target, source + i * stride, dims + 1, strides + 1, ndim - 1, itemsize)
        return target
    # With a constant size, copying an element is one load and one store.
    if stride == itemsize:
        memcpy(target, source, count * itemsize)
    elif itemsize == 1:
        for i in range(count):
            target[i] = source[i * stride]
    elif itemsize == 2:
        for i in range(count):
            memcpy(target + 2 * i, source + i * stride, 2)
    elif itemsize == 4:
        for i in range(count):
            memcpy(target + 4 * i, source + i * stride, 4)
    else:
        for i in range(count):
            memcpy(target + 8 * i, source + i * stride, 8)
    return target + count * itemsize


cdef int fill(Node *node, object sample, char *row) except -1:
    """Write one node of a sample; return 0 if the sample is unusual."""
    cdef Py_ssize_t count
    if node.kind == ARRAY:
        if is_like(sample, node, 0):
            return copy(sample, node, node.nbytes, row + node.offset)
        if <PyObject *>Py_TYPE(sample) == node.scalar:
            memcpy(row + node.offset, puf_scalar(sample), node.itemsize)
            return 1
        return fill_cast(node, sample, row + node.offset)
    if node.kind == INT:
        return fill_int(sample, row + node.offset) or fill_cast(node, sample, row + node.offset)
    if node.kind == DICT:
        if type(sample) is dict or type(sample) is ORDERED:
            return fill_dict(node, sample, row)
        return 0
    if node.kind == TUPLE or node.kind == REPEATED:
        if type(sample) is tuple:
            return fill_tuple(node, sample, row)
        return fill_tuple(node, tuple(sample), row) if type(sample) is list else 0
    if node.kind == TEXT:
        return fill_text(node, sample, row)
    if node.kind == STACK:
        if not is_like(sample, node, 1) or puf_dims(sample)[0] > node.count:
            return 0
        count = puf_dims(sample)[0]
        return copy(sample, node, count * node.nbytes, row + node.offset) and finish(node, count, row)
    return fill_by_python(node, sample, row)


cdef int fill_dict(Node *node, object sample, char *row) except -1:
    cdef PyObject *item
    cdef Py_ssize_t i
    if PyDict_Size(sample) != node.count:
        return 0
    for i in range(node.count):
        item = PyDict_GetItemWithError(sample, <object>node.children[i].key)
        if item == NULL:
            return 0
        child = <object>item  # a reference: comparing other keys may run code that changes the dict
        if not fill(&node.children[i], child, row):
            return 0
    return 1


cdef int fill_tuple(Node *node, tuple sample, char *row) except -1:
    cdef Py_ssize_t i
    cdef Py_ssize_t count = PyTuple_GET_SIZE(sample)
    if node.kind == TUPLE:
        if count != node.count:
            return 0
        for i in range(count):
            if not fill(&node.children[i], <object>PyTuple_GET_ITEM(sample, i), row):
                return 0
        return 1
    if count > node.count:
        return 0
    for i in range(count):
        if not fill(node.children, <object>PyTuple_GET_ITEM(sample, i), row + node.offset + i * node.nbytes):
            return 0
    return finish(node, count, row)


cdef inline int fill_int(object sample, char *target) except -1:
    cdef int64_t value
    cdef int overflow
    if type(sample) is INT64_SCALAR:
        value = (<int64_t *>puf_scalar(sample))[0]
    elif type(sample) is int:
        value = PyLong_AsLongLongAndOverflow(sample, &overflow)
        if overflow:
            return 0
    elif type(sample) is INT32_SCALAR:
        value = (<int32_t *>puf_scalar(sample))[0]
    else:
        return 0
    memcpy(target, &value, 8)
    return 1


# ---------------------------------------------------------------------------------------------------- casts

cdef list NUMBERS = ["b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8"]  # in puf_number's order, from 1
cdef PyObject *DTYPES[PUF_NUM_NUMBERS]  # NumPy's singletons, which nearly every array has
cdef PyObject *SCALARS[PUF_NUM_NUMBERS]
cdef bint SAME_KIND[PUF_NUM_NUMBERS][PUF_NUM_NUMBERS]  # numpy.can_cast of the two
cdef int64_t MOST_EXACT = 1 << 53  # float64 holds all integers up to this exactly
cdef list _number_dtypes = [numpy.dtype(code) for code in NUMBERS]  # holds the references of DTYPES and SCALARS
cdef str CAST = "cast"

for _i in range(len(NUMBERS)):
    DTYPES[_i + 1] = <PyObject *>_number_dtypes[_i]
    SCALARS[_i + 1] = <PyObject *>_number_dtypes[_i].type
    for _j in range(len(NUMBERS)):
        SAME_KIND[_i + 1][_j + 1] = numpy.can_cast(_number_dtypes[_i], _number_dtypes[_j], "same_kind")


cdef int number_type(PyObject *dtype, bint *swapped) except -1:
    """Return a dtype's number type (a puf_number) or PUF_NO_NUMBER; store whether it is byte-swapped."""
    cdef int i
    swapped[0] = False
    for i in range(1, PUF_NUM_NUMBERS):
        if DTYPES[i] == dtype:
            return i
    code = f"{(<object>dtype).kind}{(<object>dtype).itemsize}"
    if code not in NUMBERS:
        return PUF_NO_NUMBER
    swapped[0] = not (<object>dtype).isnative
    return 1 + NUMBERS.index(code)


cdef Number number_of(object value, int64_t *int_value, double *float_value) noexcept:
    cdef PyObject *kind = <PyObject *>Py_TYPE(value)
    cdef int overflow, i
    if PyFloat_CheckExact(value):
        float_value[0] = PyFloat_AS_DOUBLE(value)
        return A_FLOAT
    if value is True or value is False:
        int_value[0] = value is True
        float_value[0] = <double>int_value[0]
        return A_BOOL
    if PyLong_CheckExact(value):
        int_value[0] = PyLong_AsLongLongAndOverflow(value, &overflow)
        float_value[0] = <double>int_value[0]
        return NO_NUMBER if overflow else AN_INT
    for i in range(1, PUF_NUM_NUMBERS):
        if SCALARS[i] == kind:
            return stored(i, puf_scalar(value), int_value, float_value)
    return NO_NUMBER


cdef Number element_of(object array, int64_t *int_value, double *float_value) noexcept:
    cdef int i
    for i in range(1, PUF_NUM_NUMBERS):
        if DTYPES[i] == puf_descr(array):
            return stored(i, puf_data(array), int_value, float_value)
    return NO_NUMBER


cdef bint number_in(object value, int64_t *int_value, double *float_value, Number *kind) noexcept:
    if puf_is_array(value, NDARRAY):
        kind[0] = element_of(value, int_value, float_value) if is_single(value) else NO_NUMBER
    else:
        kind[0] = number_of(value, int_value, float_value)
    return kind[0] != NO_NUMBER


cdef bint is_single(object array) noexcept:
    """Return whether an array has one element."""
    cdef int axis
    for axis in range(puf_ndim(array)):
        if puf_dim(array, axis) != 1:
            return False
    return True


cdef Number stored(int number, const char *data, int64_t *int_value, double *float_value) noexcept:
    """Read a value of a number type. A uint64 beyond int64 does not count as a number."""
    if number == PUF_FLOAT32 or number == PUF_FLOAT64:
        PUF_CAST_OF[number][PUF_FLOAT64](<char *>float_value, data, 0, 1)
        return A_FLOAT
    if not PUF_CAST_OF[number][PUF_INT64](<char *>int_value, data, 0, 1):
        return NO_NUMBER
    float_value[0] = <double>int_value[0]
    return A_BOOL if number == PUF_BOOL else AN_INT


cdef int fill_cast(Node *node, object sample, char *target) except -1:
    """Write a sample that needs a cast, by the rules of ``pack.Writer.cast``; return 0 if that function must decide.

    It must decide until it has warned of the first cast.
    """
    cdef int number
    if node.number == PUF_NO_NUMBER:
        return 0
    if type(sample) is list or type(sample) is tuple:
        return node.ndim > 0 and fill_list(node, sample, node.dims, node.ndim, &target)
    if isinstance(sample, NDARRAY):
        return fill_array(node, sample if type(sample) is NDARRAY else AS_ARRAY(sample), target)
    if node.ndim:
        return 0
    if PyFloat_CheckExact(sample) or PyLong_CheckExact(sample) or sample is True or sample is False:
        return fill_number(node, sample, &target)
    for number in range(1, PUF_NUM_NUMBERS):
        if SCALARS[number] == <PyObject *>Py_TYPE(sample):
            break
    else:
        return 0
    if not (SAME_KIND[number][node.number] and may_cast(node)):
        return 0
    return PUF_CAST_OF[number][node.number](target, puf_scalar(sample), 0, 1)


cdef inline bint may_cast(Node *node) except -1:
    """Return whether NumPy values may be cast silently: a warning was given, or the leaf is a Discrete."""
    return node.warnings == NULL or CAST in <set>node.warnings


cdef int fill_array(Node *node, object array, char *target) except -1:
    """Write an array of a leaf's shape with another dtype or byte order; return 0 if it is unusual."""
    cdef bint swapped
    cdef int i
    cdef int number = number_type(puf_descr(array), &swapped)
    if number == PUF_NO_NUMBER or puf_ndim(array) != node.ndim:
        return 0
    for i in range(node.ndim):
        if puf_dims(array)[i] != node.dims[i]:
            return 0
    if number != node.number and not (SAME_KIND[number][node.number] and may_cast(node)):
        return 0
    if overlaps(array, PUF_SIZE_OF[number], target, node.nbytes):
        return 0
    if number == node.number and not swapped:  # of a subclass
        return copy(array, node, node.nbytes, target)
    return puf_cast_array(
        number, node.number, swapped, target, puf_data(array), puf_dims(array), puf_strides(array), node.ndim
    )


cdef int fill_list(Node *node, object sample, Py_ssize_t *dims, int ndim, char **target) except -1:
    """Write a nested list or tuple of numbers with these dimensions, and move the target to its end.

    Values are those of numpy.asarray(sample). Return 0 where a value would depend on the others (uint64 next to other
    types, integers beyond 2 ** 53 next to floats).
    """
    cdef Py_ssize_t i
    cdef Py_ssize_t count = dims[0]
    cdef bint is_list = type(sample) is list
    if len(sample) != count or count == 0:
        return 0
    for i in range(count):
        if is_list and PyList_GET_SIZE(sample) != count:  # other code has run
            return 0
        part = <object>PyList_GET_ITEM(sample, i) if is_list else <object>PyTuple_GET_ITEM(sample, i)
        if ndim > 1:
            if not (type(part) is list or type(part) is tuple) or not fill_list(node, part, dims + 1, ndim - 1, target):
                return 0
        elif not fill_number(node, part, target):
            return 0
    return 1


cdef int fill_number(Node *node, object value, char **target) noexcept:
    """Write a Python number, or a number in a list, and move the target past it; return 0 if it is unusual."""
    cdef int64_t int_value
    cdef double float_value
    cdef Number kind = number_of(value, &int_value, &float_value)
    if SCALARS[PUF_UINT64] == <PyObject *>Py_TYPE(value):
        return 0
    cdef bint to_float = node.number == PUF_FLOAT32 or node.number == PUF_FLOAT64
    if kind == NO_NUMBER or (kind == A_FLOAT and not to_float):
        return 0
    if to_float:
        if kind != A_FLOAT and not -MOST_EXACT <= int_value <= MOST_EXACT:
            return 0
        PUF_CAST_OF[PUF_FLOAT64][node.number](target[0], <char *>&float_value, 0, 1)
    elif not PUF_CAST_OF[PUF_INT64][node.number](target[0], <char *>&int_value, 0, 1):
        return 0
    target[0] += node.itemsize
    return 1


cdef inline int finish(Node *node, int64_t count, char *row) noexcept:
    """Clear the bytes after the elements of a variable-length node, and store their number."""
    memset(row + node.offset + count * node.nbytes, 0, (node.count - count) * node.nbytes)
    memcpy(row + node.length_offset, &count, 8)
    return 1


cdef int fill_text(Node *node, object sample, char *row) except -1:
    cdef Py_ssize_t size
    if type(sample) is not str:
        return 0
    size = PyUnicode_GetLength(sample)
    if size > node.count:
        return 0
    if node.nbytes == 4:
        if size:
            PyUnicode_AsUCS4(sample, <Py_UCS4 *>(row + node.offset), size, 0)
    elif PyUnicode_KIND(sample) == 1:
        memcpy(row + node.offset, PyUnicode_DATA(sample), size)
    else:
        return 0
    return finish(node, size, row)


cdef int fill_by_python(Node *node, object sample, char *row) except -1:
    """Call Python to write into the node's arrays, and copy them."""
    cdef Py_ssize_t i
    if node.busy:  # the sample's code, or another thread, is using the arrays
        return 0
    node.busy = True
    try:
        (<object>node.write)(sample)
        for i in range(node.count):
            memcpy(row + node.children[i].offset, node.children[i].data, node.children[i].nbytes)
    finally:
        node.busy = False
    return 1


@cython.no_gc_clear  # nodes point into references
cdef class Packer:
    """A writer of samples into rows, made by ``Layout`` from the ``packing_plan`` of its tree.

    shape, dtype: a row's shape and dtype. gaps: the (start, stop) of each padding, in bytes. is_scalar: whether rows
    are NumPy scalars, as for a Discrete. Only the thread with the GIL may use it.
    """

    def __cinit__(self, plan, tuple shape, dtype, gaps, bint is_scalar):
        self.references = []
        self.shape, self.is_scalar = shape, is_scalar
        build(&self.root, plan, self.references)
        build(&self.row, ("array", 0, shape, dtype, None), self.references)
        self.nbytes = self.row.nbytes
        self.num_gaps = len(gaps)
        self.padding = <Node *>allocate(self.num_gaps, sizeof(Node))
        for i, (start, stop) in enumerate(gaps):
            self.padding[i].offset, self.padding[i].nbytes = start, stop - start

    def __dealloc__(self):
        free_node(&self.root)
        free_node(&self.row)
        PyMem_Free(self.padding)

    cdef int pack_at(self, object sample, char *row) except -1:
        cdef Py_ssize_t i
        for i in range(self.num_gaps):
            memset(row + self.padding[i].offset, 0, self.padding[i].nbytes)
        try:
            return fill(&self.root, sample, row)
        except UNUSUAL:
            return 0

    cdef object packed(self, object sample):
        if self.root.kind == ARRAY and is_like(sample, &self.root, 0) and puf_descr(sample) == self.row.dtype:
            return sample.copy()  # half the time of making an array and filling it
        row = EMPTY(self.shape, <object>self.row.dtype)
        return row if self.pack_at(sample, puf_data(row)) else None

    def flatten(self, sample):
        """Return a new row that holds a sample; None if Python has to pack it."""
        row = self.packed(sample)
        return row[()] if self.is_scalar and row is not None else row

    def flat_step(self, result, copy_info):
        """Return the five values of a raw step with a new row for the observation; None if Python has to do it.

        copy_info: ``copy_value`` of emulation/infos.py.
        """
        cdef double reward
        cdef bint terminated, truncated
        if type(result) is not tuple or PyTuple_GET_SIZE(result) != 5:
            return None
        info = <object>PyTuple_GET_ITEM(result, 4)
        if not (
            read_reward(<object>PyTuple_GET_ITEM(result, 1), &reward)
            and read_flag(<object>PyTuple_GET_ITEM(result, 2), &terminated)
            and read_flag(<object>PyTuple_GET_ITEM(result, 3), &truncated)
            and (info is None or type(info) is dict)
        ):
            return None
        row = self.flatten(<object>PyTuple_GET_ITEM(result, 0))
        if row is None:
            return None
        return row, reward, terminated, truncated, copy_info(info) if info else {}

    def pack(self, sample, row):
        """Write a sample into a row of the layout's shape and dtype; return False if Python has to pack it."""
        if not is_like(row, &self.row, 0) or not is_open(row):
            return False
        return self.pack_at(sample, puf_data(row)) == 1

    def pack_padded(self, sample, row):
        """Write a sample, as ``pack`` does, into a 1-D row of the layout's dtype or uint8; zero-fill the rest."""
        cdef Py_ssize_t nbytes
        if not puf_is_array(row, NDARRAY) or puf_ndim(row) != 1 or not is_open(row):
            return False
        nbytes = puf_dims(row)[0]
        if puf_descr(row) == self.row.dtype:
            nbytes *= self.row.itemsize
        elif puf_descr(row) != <PyObject *>UINT8:
            return False
        if nbytes < self.nbytes or not self.pack_at(sample, puf_data(row)):
            return False
        memset(puf_data(row) + self.nbytes, 0, nbytes - self.nbytes)
        return True


cdef inline bint is_open(object row):
    """Return whether a row can be written as one block."""
    return puf_has_flags(row, NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_WRITEABLE)


cdef int build(Node *node, tuple plan, list references) except -1:
    """Fill a node from its plan; append the objects that it points to to references."""
    kind = plan[0]
    if kind == "int":
        node.kind = INT
        node.offset = plan[1]
        build_array(node, (), INT64, references)
    elif kind == "array":
        node.kind = ARRAY
        _, node.offset, shape, dtype, warnings = plan
        build_array(node, shape, dtype, references)
        node.warnings = NULL if warnings is None else keep(warnings, references)
    elif kind == "dict":
        node.kind = DICT
        build_children(node, plan[2], references)
        for i, key in enumerate(plan[1]):
            # The same object as a literal in a program, so that a lookup compares addresses.
            node.children[i].key = keep(sys.intern(key) if type(key) is str else key, references)
    elif kind == "tuple":
        node.kind = TUPLE
        build_children(node, plan[1], references)
    elif kind == "text":
        node.kind = TEXT
        _, node.offset, node.nbytes, node.count, node.length_offset = plan
    elif kind == "stack":
        node.kind = STACK
        _, node.offset, shape, dtype, node.count, node.length_offset = plan
        build_array(node, (1, *shape), dtype, references)
    elif kind == "each":
        node.kind = REPEATED
        build_children(node, (plan[2],), references)
        _, node.offset, _, node.count, node.length_offset = plan
        node.nbytes = node.children.nbytes
    else:
        node.kind = PYTHON
        _, write, arrays, offsets = plan
        node.write = keep(write, references)
        node.count = len(arrays)
        node.children = <Node *>allocate(node.count, sizeof(Node))
        for i, (array, offset) in enumerate(zip(arrays, offsets)):
            keep(array, references)
            node.children[i].offset, node.children[i].nbytes = offset, array.nbytes
            node.children[i].data = puf_data(array)
    return 0


cdef int build_children(Node *node, tuple plans, list references) except -1:
    node.count = len(plans)
    node.children = <Node *>allocate(node.count, sizeof(Node))
    for i, plan in enumerate(plans):
        build(&node.children[i], plan, references)
    return 0


cdef int build_array(Node *node, tuple shape, dtype, list references) except -1:
    """Set the shape and dtype of the arrays that a node accepts."""
    cdef bint swapped
    node.dims = <Py_ssize_t *>allocate(len(shape), sizeof(Py_ssize_t))
    node.ndim = len(shape)
    node.nbytes = node.itemsize = dtype.itemsize
    for i, size in enumerate(shape):
        node.dims[i] = size
        node.nbytes *= size
    node.dtype = keep(dtype, references)
    node.scalar = NULL if shape else keep(dtype.type, references)
    node.number = number_type(node.dtype, &swapped)
    return 0


cdef PyObject *keep(value, list references):
    """Append an object to references; return a pointer to it, valid as long as the list."""
    references.append(value)
    return <PyObject *>value


cdef void *allocate(Py_ssize_t count, size_t size) except NULL:
    """Allocate zeroed memory for count items, or for one if count is 0."""
    cdef void *memory = PyMem_Calloc(max(count, 1), size)
    if memory == NULL:
        raise MemoryError
    return memory


cdef void free_node(Node *node) noexcept:
    cdef Py_ssize_t i
    if node.children != NULL:
        for i in range(1 if node.kind == REPEATED else node.count):
            free_node(&node.children[i])
        PyMem_Free(node.children)
    PyMem_Free(node.dims)


# -------------------------------------------------------------------------------------------------- unpack

cdef enum:
    NUMBER  # a Discrete: the element at start, as a Python int
    DISCRETE_ARRAY  # count elements of the discrete component from start, as an array of shape and dtype
    FLOATS  # the same for count elements of the box component
    DOUBLES  # the same; low and high, which float32 may round, become the exact bounds again
    INTEGERS  # the same, clipped and rounded
    MAPPING  # count, children with their keys
    SEQUENCE  # count, children
    LONE  # a space that is one leaf: an array like its node
    LONE_INT64, LONE_ITEM  # a Discrete that is one leaf: a Python int
    BY_PYTHON  # only the Python code can read it

cdef dict KINDS = {
    "number": NUMBER, "choices": DISCRETE_ARRAY, "floats": FLOATS, "doubles": DOUBLES, "wholes": INTEGERS,
    "dict": MAPPING, "tuple": SEQUENCE, "lone": LONE, "lone int64": LONE_INT64, "lone item": LONE_ITEM,
    "careful": BY_PYTHON,
}


class _NotANumber(Exception):
    """The error for an action that holds NaN for a Box of integers."""


@cython.no_gc_clear  # parts point into references
cdef class Unpacker:
    """A reader of actions from rows, made by ``ActionLayout`` from the ``unpacking_plan`` of its tree.

    start: int64, (discrete elements,), added to the discrete component. num_box: elements of the box component.
    has_discrete, has_box: whether rows have these components; rows of a space that is one leaf are its samples and have
    neither. unpack_in_python(discrete, box): the Python function, called with None for a missing component.
    """

    def __cinit__(self, plan, start, Py_ssize_t num_box, bint has_discrete, bint has_box, unpack_in_python):
        self.references = [start]
        self.start = <int64_t *>puf_data(start)
        self.num_discrete, self.num_box = len(start), num_box
        self.has_discrete, self.has_box = has_discrete, has_box
        self.unpack_in_python = unpack_in_python
        build_part(&self.root, plan, self.references)
        if not has_discrete and not has_box:
            build(&self.lone, ("array", 0, <object>self.root.shape, <object>self.root.dtype, None), self.references)

    def __dealloc__(self):
        free_node(&self.lone)
        free_part(&self.root)

    cdef object unpack_at(self, const char *discrete, const char *box):
        if not self.has_discrete and not self.has_box:
            discrete = box if discrete == NULL else discrete
            if self.root.kind == LONE_INT64:
                return (<const int64_t *>discrete)[0]
            action = EMPTY(<object>self.root.shape, <object>self.root.dtype)
            memcpy(puf_data(action), discrete, self.lone.nbytes)
            return action.item() if self.root.kind == LONE_ITEM else action
        if self.root.kind != BY_PYTHON:
            try:
                return read(self, &self.root, <const int64_t *>discrete, <const float *>box)
            except _NotANumber:
                pass  # the Python function raises the error
        return self.unpack_in_python(
            block(discrete, self.num_discrete, INT64) if self.has_discrete else None,
            block(box, self.num_box, FLOAT32) if self.has_box else None,
        )

    def unpack(self, row):
        """Return the action in a flat row, an array or a pair; NotImplemented if Python has to read it."""
        cdef const char *discrete = NULL
        cdef const char *box = NULL
        if not self.has_discrete and not self.has_box:
            if not is_like(row, &self.lone, 0) or not puf_is_plain(row):
                return NotImplemented
            return self.unpack_at(puf_data(row), NULL)
        if self.has_discrete and self.has_box:
            if type(row) is not tuple or PyTuple_GET_SIZE(row) != 2:
                return NotImplemented
            discrete = data_of(<object>PyTuple_GET_ITEM(row, 0), self.num_discrete, INT64)
            box = data_of(<object>PyTuple_GET_ITEM(row, 1), self.num_box, FLOAT32)
        elif self.has_discrete:
            discrete = data_of(row, self.num_discrete, INT64)
        else:
            box = data_of(row, self.num_box, FLOAT32)
        if (self.has_discrete and discrete == NULL) or (self.has_box and box == NULL):
            return NotImplemented
        return self.unpack_at(discrete, box)


    def unpack_fit(self, row, tuple checks):
        """Return ``unpack(row)`` if the row's values are valid; NotImplemented if Python has to check or read it.

        checks: a ValueCheck for each component.
        """
        cdef int64_t value
        if self.root.kind == LONE_INT64 and (type(row) is int or type(row) is INT64_SCALAR):
            if fill_int(row, <char *>&value) and (<ValueCheck>checks[0]).fit_at(&value, 1):
                return value
            return NotImplemented
        if len(checks) == 1:
            fit = (<ValueCheck>checks[0]).fit(row)
        elif type(row) is tuple and PyTuple_GET_SIZE(row) == 2:
            fit = (<ValueCheck>checks[0]).fit(row[0]) and (<ValueCheck>checks[1]).fit(row[1])
        else:
            fit = False
        return self.unpack(row) if fit else NotImplemented


cdef inline const char *data_of(object component, Py_ssize_t size, object dtype):
    """Return a pointer to a component's elements; NULL unless it is a plain array of this size and dtype."""
    if not puf_is_array(component, NDARRAY) or puf_ndim(component) != 1 or puf_dims(component)[0] != size:
        return NULL
    if puf_descr(component) != <PyObject *>dtype or not puf_is_plain(component):
        return NULL
    return puf_data(component)


cdef object block(const char *data, Py_ssize_t size, object dtype):
    """Return a copy of a component as an array."""
    array = EMPTY(size, dtype)
    memcpy(puf_data(array), data, size * dtype.itemsize)
    return array


cdef object read(Unpacker unpacker, Part *part, const int64_t *discrete, const float *box):
    """Build one part of an action from a row's components."""
    cdef Py_ssize_t i
    if part.kind == NUMBER:
        return sum_of(discrete[part.start], unpacker.start[part.start])
    if part.kind == MAPPING:
        action = {}
        for i in range(part.count):
            action[<object>part.children[i].key] = read(unpacker, &part.children[i], discrete, box)
        return action
    if part.kind == SEQUENCE:
        return tuple([read(unpacker, &part.children[i], discrete, box) for i in range(part.count)])
    array = EMPTY(<object>part.shape, <object>part.dtype)
    if part.kind == DISCRETE_ARRAY:
        read_discrete(part, discrete + part.start, unpacker.start + part.start, puf_data(array))
    else:
        read_box(part, box + part.start, puf_data(array))
    return array


cdef void read_discrete(Part *part, const int64_t *values, const int64_t *start, char *target) noexcept:
    cdef Py_ssize_t i
    for i in range(part.count):
        store(target + i * part.itemsize, part.itemsize, sum_of(values[i], start[i]))


cdef int read_box(Part *part, const float *values, char *target) except -1:
    cdef Py_ssize_t i
    cdef float value
    if part.kind == FLOATS:
        memcpy(target, values, part.count * sizeof(float))
        return 0
    for i in range(part.count):
        value = values[i]
        if part.kind == DOUBLES:
            if value == <float>part.low[i]:
                (<double *>target)[i] = part.low[i]
            else:
                (<double *>target)[i] = part.high[i] if value == <float>part.high[i] else <double>value
        elif isnan(value):
            raise _NotANumber
        else:
            value = max(<float>part.low[i], min(value, <float>part.high[i]))
            store(target + i * part.itemsize, part.itemsize, <int64_t>rintf(value))
    return 0


cdef inline int64_t sum_of(int64_t value, int64_t start) noexcept:
    """Add two integers, wrapping around as NumPy does."""
    return <int64_t>(<uint64_t>value + <uint64_t>start)


cdef inline void store(char *target, Py_ssize_t itemsize, int64_t value) noexcept:
    """Store an integer in itemsize bytes, truncated as by a cast."""
    cdef int32_t value_32 = <int32_t>value
    cdef int16_t value_16 = <int16_t>value
    if itemsize == 8:
        memcpy(target, &value, 8)
    elif itemsize == 4:
        memcpy(target, &value_32, 4)
    elif itemsize == 2:
        memcpy(target, &value_16, 2)
    else:
        target[0] = <char>value


cdef int build_part(Part *part, tuple plan, list references) except -1:
    """Fill a part from its plan; append the objects that it points to to references."""
    part.kind = KINDS[plan[0]]
    if part.kind == MAPPING:
        build_parts(part, plan[2], references)
        for i, key in enumerate(plan[1]):
            part.children[i].key = keep(key, references)
    elif part.kind == SEQUENCE:
        build_parts(part, plan[1], references)
    elif part.kind == NUMBER:
        part.start = plan[1]
    elif part.kind != BY_PYTHON:
        _, part.start, shape, dtype, low, high = plan
        part.shape, part.dtype, part.itemsize = keep(shape, references), keep(dtype, references), dtype.itemsize
        part.count = math.prod(shape)
        if part.kind == DOUBLES or part.kind == INTEGERS:
            part.low, part.high = doubles_of(low, references), doubles_of(high, references)
    return 0


cdef int build_parts(Part *part, tuple plans, list references) except -1:
    part.count = len(plans)
    part.children = <Part *>allocate(part.count, sizeof(Part))
    for i, plan in enumerate(plans):
        build_part(&part.children[i], plan, references)
    return 0


cdef double *doubles_of(array, list references) except NULL:
    return <double *>puf_data(<object>keep(numpy.ascontiguousarray(array, numpy.float64), references))


cdef void free_part(Part *part) noexcept:
    cdef Py_ssize_t i
    if part.children != NULL:
        for i in range(part.count):
            free_part(&part.children[i])
        PyMem_Free(part.children)


# ------------------------------------------------------------------------------------------------- action masks

cdef list MASKS = ["flat", "parts", "unread", "nested"]

cdef enum:
    FLAT, PARTS, UNREAD, NESTED


cdef class MaskPacker:
    """A packer of action masks. Its arguments are the results of ``mask_plan`` in emulation/action_masks.py."""

    def __init__(self, str kind, Py_ssize_t size, dict parts):
        self.kind, self.size, self.parts = MASKS.index(kind), size, {key: MaskPacker(*part) for key, part in parts.items()}
        self.array = EMPTY(size, INT8)

    cdef object packed(self, object mask):
        return self.array if self.fill(mask, puf_data(self.array)) else None

    cdef bint fill(self, object mask, char *row) except? True:
        """Write a mask; return False if it is unusual."""
        cdef MaskPacker packer
        cdef PyObject *item
        cdef Py_ssize_t offset = 0, count
        if mask is None or self.kind == UNREAD:
            memset(row, 1, self.size)
            return True
        if self.kind == NESTED:
            for key, packer in self.parts.items():
                if type(mask) is dict:
                    item = PyDict_GetItemWithError(mask, key)
                    if item == NULL:
                        return False
                    part = <object>item
                elif type(mask) is tuple and type(key) is int and key < PyTuple_GET_SIZE(mask):
                    part = (<tuple>mask)[key]
                else:
                    return False
                if not packer.fill(part, row + offset):
                    return False
                offset += packer.size
            return True
        if self.kind == FLAT or not (type(mask) is tuple or type(mask) is list):
            return fill_choices(mask, row, self.size) == self.size
        for part in mask:
            count = fill_choices(part, row + offset, self.size - offset)
            if count < 0:
                return False
            offset += count
        return offset == self.size


cdef Py_ssize_t fill_choices(object mask, char *row, Py_ssize_t capacity) except -2:
    """Write a number, or the elements of an array or a list; return their count, or -1 if one is unusual."""
    cdef Py_ssize_t i, size
    cdef Py_ssize_t count = 1
    cdef int axis, number
    cdef bint swapped
    cdef double float_value
    cdef int64_t int_value
    if not puf_is_array(mask, NDARRAY):
        if type(mask) is not list and type(mask) is not tuple:
            mask = (mask,)
        if len(mask) > capacity:
            return -1
        for i, value in enumerate(mask):
            if number_of(value, &int_value, &float_value) == NO_NUMBER or (float_value != 0 and float_value != 1):
                return -1
            row[i] = float_value == 1
        return len(mask)
    number = number_type(puf_descr(mask), &swapped)
    if number == PUF_NO_NUMBER or swapped:
        return -1
    for axis in range(puf_ndim(mask)):
        count *= puf_dim(mask, axis)
    if count > capacity:
        return -1
    if not puf_is_plain(mask):
        mask = mask.copy()
    if number != PUF_FLOAT32 and number != PUF_FLOAT64:
        return count if PUF_CAST_OF[number][PUF_INT8](row, puf_data(mask), PUF_SIZE_OF[number], count) else -1
    size = PUF_SIZE_OF[number]
    for i in range(count):
        PUF_CAST_OF[number][PUF_FLOAT64](<char *>&float_value, puf_data(mask) + i * size, 0, 1)
        if float_value != 0 and float_value != 1:
            return -1
        row[i] = float_value == 1
    return count


# -------------------------------------------------------------------------------------------- values of actions

cdef list CHECKED = ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"]  # in puf_values' order, from 1


@cython.final
cdef class ValueCheck:
    """A check that actions hold valid values, made by ``ActionValues``, which defines the rules.

    dtype, shape: one action's dtype and shape. low, high: the least and the greatest value of each element, 1-D, in
    that dtype; None for a Box. Raises TypeError for a dtype that it does not support.
    """

    def __init__(self, dtype, tuple shape, low, high):
        code = f"{dtype.kind}{dtype.itemsize}"
        self.dtype, self.num_columns, self.low, self.high = dtype, math.prod(shape), low, high
        if low is None and dtype.kind != "f":
            self.kind = PUF_ANY_VALUE
        elif code in CHECKED and dtype.isnative:
            self.kind = <puf_values><int>(1 + CHECKED.index(code))
        else:
            raise TypeError(dtype)
        if low is not None:
            self.low_data, self.high_data = puf_data(low), puf_data(high)

    cdef bint fit_at(self, const void *values, size_t num_rows) noexcept:
        return puf_values_fit(self.kind, values, num_rows, self.num_columns, self.low_data, self.high_data)

    def fit(self, values):
        """Return whether values are a plain array of complete actions with the space's dtype, all of them valid."""
        cdef size_t size
        if not puf_is_array(values, NDARRAY) or not puf_is_plain(values) or not self.num_columns:
            return False
        if puf_descr(values) != <PyObject *>self.dtype and <object>puf_descr(values) != self.dtype:
            return False
        size = values.size
        return bool(self.fit_at(puf_data(values), size // self.num_columns))
