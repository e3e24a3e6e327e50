/* NumPy arrays as C sees them, without NumPy's headers: building needs nothing but a C compiler and Cython.
 *
 * The first members of an array object have been the same since NumPy 1.0, and NumPy 2 has kept them. Nobody need take
 * that on trust: `puf_arrays_agree` compares them with what an array says of itself, and a module that finds them
 * otherwise refuses to load, so that the portable path runs instead. The type object, which `puf_is_array` compares
 * with, is numpy.ndarray itself: subclasses may mean something else by their memory and go the careful way.
 */
#ifndef PUF_ARRAYS_H
#define PUF_ARRAYS_H

#include <Python.h>

typedef struct {
    PyObject_HEAD
    char *data;
    int nd;
    Py_ssize_t *dimensions;
    Py_ssize_t *strides;
    PyObject *base;
    PyObject *descr;
    int flags;
} puf_array;

enum { PUF_C_CONTIGUOUS = 0x0001, PUF_ALIGNED = 0x0100, PUF_WRITEABLE = 0x0400 };

static inline int puf_is_array(PyObject *object, PyObject *ndarray) { return (PyObject *)Py_TYPE(object) == ndarray; }
static inline char *puf_data(PyObject *array) { return ((puf_array *)array)->data; }
static inline int puf_ndim(PyObject *array) { return ((puf_array *)array)->nd; }
static inline Py_ssize_t puf_dim(PyObject *array, int axis) { return ((puf_array *)array)->dimensions[axis]; }
static inline Py_ssize_t puf_stride(PyObject *array, int axis) { return ((puf_array *)array)->strides[axis]; }
static inline PyObject *puf_descr(PyObject *array) { return ((puf_array *)array)->descr; } /* borrowed */
static inline int puf_flags(PyObject *array) { return ((puf_array *)array)->flags; }

/* Whether an array's memory is one plain C block: the only case that is copied without asking NumPy. */
static inline int puf_is_plain(PyObject *array)
{
    int wanted = PUF_C_CONTIGUOUS | PUF_ALIGNED;
    return (((puf_array *)array)->flags & wanted) == wanted;
}

#endif
