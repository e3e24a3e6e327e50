// A module without contents: the library in which setup.py puts all kernels, as the host plays them.
#include <Python.h>

static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_host", nullptr, -1, nullptr, nullptr, nullptr, nullptr, nullptr};

PyMODINIT_FUNC PyInit__host() { return PyModule_Create(&definition); }
