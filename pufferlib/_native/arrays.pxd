"""The declarations of arrays.h for Cython."""

from cpython.object cimport PyObject

cdef extern from "arrays.h":
    bint puf_is_array(object, object ndarray)
    char *puf_data(object)
    int puf_ndim(object)
    Py_ssize_t puf_dim(object, int)
    PyObject *puf_descr(object)
    bint puf_is_plain(object)
    bint puf_is_writeable(object)
