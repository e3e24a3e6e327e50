/* Access to NumPy arrays without NumPy's headers: building needs only a C compiler and Cython.
 *
 * The first members of an array object and the offset of a NumPy scalar's value are the same since NumPy 1.0, also
 * in NumPy 2. pack.pyx checks this when it is imported: it compares the fields read here with the attributes of arrays
 * and scalars, and refuses to load if they differ, so that the portable path runs.
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

/* Only numpy.ndarray itself: subclasses may use their memory differently, so Python handles them. */
static inline int puf_is_array(PyObject *object, PyObject *ndarray) { return (PyObject *)Py_TYPE(object) == ndarray; }
static inline char *puf_data(PyObject *array) { return ((puf_array *)array)->data; }
static inline int puf_ndim(PyObject *array) { return ((puf_array *)array)->nd; }
static inline Py_ssize_t puf_dim(PyObject *array, int axis) { return ((puf_array *)array)->dimensions[axis]; }
static inline Py_ssize_t *puf_dims(PyObject *array) { return ((puf_array *)array)->dimensions; }
static inline Py_ssize_t *puf_strides(PyObject *array) { return ((puf_array *)array)->strides; } /* in bytes */
static inline PyObject *puf_base(PyObject *array) { return ((puf_array *)array)->base; }         /* borrowed */
static inline PyObject *puf_descr(PyObject *array) { return ((puf_array *)array)->descr; }       /* borrowed */
static inline int puf_flags(PyObject *array) { return ((puf_array *)array)->flags; }

/* Return whether an array is one plain C block, described by its address and size. */
static inline int puf_is_plain(PyObject *array)
{
    int required = PUF_C_CONTIGUOUS | PUF_ALIGNED;
    return (puf_flags(array) & required) == required;
}

static inline int puf_is_writeable(PyObject *array) { return puf_flags(array) & PUF_WRITEABLE; }

/* Return a pointer to the value of a NumPy scalar of a number type; it follows the object's head. */
static inline char *puf_scalar(PyObject *scalar) { return (char *)scalar + sizeof(PyObject); }

#endif
