// An empty module: the library into which setup.py compiles all kernels for the host.
#define Py_LIMITED_API 0x030A0000
#include <Python.h>

static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_host", nullptr, -1, nullptr, nullptr, nullptr, nullptr, nullptr};

PyMODINIT_FUNC PyInit__host() { return PyModule_Create(&definition); }
