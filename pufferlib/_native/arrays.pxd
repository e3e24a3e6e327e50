"""The declarations of arrays.h for Cython."""

from cpython.object cimport PyObject

cdef extern from "arrays.h":
    enum: NPY_ARRAY_C_CONTIGUOUS, NPY_ARRAY_WRITEABLE
    bint puf_is_array(object, object ndarray)
    char *puf_data(object)
    int puf_ndim(object)
    Py_ssize_t puf_dim(object, int)
    Py_ssize_t *puf_dims(object)
    Py_ssize_t *puf_strides(object)
    PyObject *puf_descr(object)
    bint puf_has_flags(object, int flags)
    bint puf_is_plain(object)
    bint puf_is_writeable(object)
    char *puf_scalar(object)
