/* The part of NumPy's C API that reads memory, for arguments that Cython knows as objects.
 *
 * NumPy's own declarations for Cython would check the type of each argument again. These functions compile to what
 * NumPy's inline functions are, so a module needs none of the table that import_array fills; pack.pyx calls that, to
 * refuse a NumPy of another ABI.
 */
#ifndef PUF_ARRAYS_H
#define PUF_ARRAYS_H

#include <Python.h>
#include <stddef.h>

#include <numpy/ndarraytypes.h>

#include <numpy/arrayscalars.h>

/* Only numpy.ndarray itself: subclasses may use their memory differently, so Python handles them. */
static inline int puf_is_array(PyObject *object, PyObject *ndarray) { return (PyObject *)Py_TYPE(object) == ndarray; }
static inline char *puf_data(PyObject *array) { return PyArray_BYTES((PyArrayObject *)array); }
static inline int puf_ndim(PyObject *array) { return PyArray_NDIM((PyArrayObject *)array); }
static inline Py_ssize_t puf_dim(PyObject *array, int axis) { return PyArray_DIM((PyArrayObject *)array, axis); }
static inline Py_ssize_t *puf_dims(PyObject *array) { return PyArray_DIMS((PyArrayObject *)array); }
/* In bytes. */
static inline Py_ssize_t *puf_strides(PyObject *array) { return PyArray_STRIDES((PyArrayObject *)array); }
/* Borrowed. */
static inline PyObject *puf_descr(PyObject *array) { return (PyObject *)PyArray_DESCR((PyArrayObject *)array); }

/* Return whether an array has all of these flags. */
static inline int puf_has_flags(PyObject *array, int flags) { return PyArray_CHKFLAGS((PyArrayObject *)array, flags); }

/* Return whether an array is one plain C block, described by its address and size. */
static inline int puf_is_plain(PyObject *array)
{
    return puf_has_flags(array, NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED);
}

static inline int puf_is_writeable(PyObject *array) { return puf_has_flags(array, NPY_ARRAY_WRITEABLE); }

/* Return a pointer to the value of a NumPy scalar of a number type; it has the same place in all that are read here. */
static inline char *puf_scalar(PyObject *scalar) { return (char *)scalar + offsetof(PyBoolScalarObject, obval); }
_Static_assert(offsetof(PyCDoubleScalarObject, obval) == offsetof(PyBoolScalarObject, obval), "values of scalars");

#endif
