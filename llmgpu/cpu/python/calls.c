/* The extension module: single calls from Python that encode or decode a text on the CPU engine.
 *
 * - The engine is the library that ctypes has loaded: Python passes the addresses of its functions
 *   and objects. So calls through ctypes and calls through this module run the same code, and this
 *   module contains only what needs CPython's API.
 * - A function handles the usual case. In any other case it returns None, and Python's code does
 *   the work or raises the error.
 * - CPython's lock is released for longer texts. Data that threads share is changed with this lock
 *   held, or, in a CPython without the lock, with the lock of a `Coder` held. Each call has a
 *   `Tool` of its own.
 * - Arrays are made by NumPy's C functions, which are found by their numbers in NumPy's table of
 *   functions. The numbers are fixed within a version of NumPy's interface, and Python's code
 *   checks the version.
 */
#include "calls.h"

#define FAST(function) (PyCFunction)(void (*)(void))(function), METH_FASTCALL

static PyMethodDef coder_methods[] = {{"prepare", coder_prepare, METH_VARARGS, NULL},
                                      {"encode", FAST(coder_encode), NULL},
                                      {"returns", FAST(coder_returns), NULL},
                                      {"encode_batch", FAST(coder_encode_batch), NULL},
                                      {"decode_batch", FAST(coder_decode_batch), NULL},
                                      {"spans", FAST(coder_spans), NULL},
                                      {"stream", FAST(coder_stream), NULL},
                                      {NULL, NULL, 0, NULL}};
static PyType_Slot coder_slots[] = {{Py_tp_new, coder_new},
                                    {Py_tp_dealloc, coder_dealloc},
                                    {Py_tp_methods, coder_methods},
                                    {0, NULL}};
static PyType_Spec coder_spec = {"llmgpu.cpu.calls.Coder", sizeof(Coder), 0, Py_TPFLAGS_DEFAULT,
                                 coder_slots};

PyTypeObject *coder_type;

static PyObject *sources(PyObject *module, PyObject *none)
{
    (void)module;
    (void)none;
    return PyLong_FromUnsignedLong(LLMGPU_SOURCES);
}

/* forked(): count a fork; must be called in the child process. */
static PyObject *forked(PyObject *module, PyObject *none)
{
    (void)module;
    (void)none;
    forks++;
    return nothing();
}

/* Fill the module. A module that is made again has the same types. */
static int fill_module(PyObject *module)
{
    if (coder_type == NULL) {
        coder_type = (PyTypeObject *)PyType_FromSpec(&coder_spec);
        stream_type = (PyTypeObject *)PyType_FromSpec(&stream_spec);
        ascii_method = PyObject_GetAttrString((PyObject *)&PyUnicode_Type, "isascii");
    }
    if (coder_type == NULL || stream_type == NULL || ascii_method == NULL || fill_methods() != 0)
        return -1;
    Py_INCREF((PyObject *)coder_type);
    return PyModule_AddObject(module, "Coder", (PyObject *)coder_type);
}

static PyMethodDef functions[] = {{"sources", sources, METH_NOARGS, NULL},
                                  {"forked", forked, METH_NOARGS, NULL},
                                  {"method", make_method, METH_VARARGS, NULL},
                                  {NULL, NULL, 0, NULL}};
static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, fill_module},
#ifdef Py_GIL_DISABLED
                                          {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
                                          {0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "calls", NULL, 0, functions,
                                        module_slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_calls(void)
{
    return PyModuleDef_Init(&definition);
}
