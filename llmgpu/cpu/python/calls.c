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

static PyMethodDef coder_methods[] = {{"encode", FASTCALL(coder_encode), METH_FASTCALL, NULL},
                                      {"encode_batch", coder_encode_batch, METH_VARARGS, NULL},
                                      {"decode_batch", coder_decode_batch, METH_VARARGS, NULL},
                                      {"spans", FASTCALL(coder_spans), METH_FASTCALL, NULL},
                                      {"stream", FASTCALL(coder_stream), METH_FASTCALL, NULL},
                                      {NULL, NULL, 0, NULL}};
static PyMemberDef coder_members[] = {{"usual", T_INT, offsetof(Coder, usual), 0, NULL},
                                      {NULL, 0, 0, 0, NULL}};
static PyType_Slot coder_slots[] = {{Py_tp_new, coder_new},
                                    {Py_tp_dealloc, coder_dealloc},
                                    {Py_tp_methods, coder_methods},
                                    {Py_tp_members, coder_members},
                                    {0, NULL}};
static PyType_Spec coder_spec = {"llmgpu.cpu.calls.Coder", sizeof(Coder), 0, Py_TPFLAGS_DEFAULT,
                                 coder_slots};

PyTypeObject *coder_type;
Py_ssize_t tuple_items;

/* Fill the module. A module that is made again has the same types. */
static int fill_module(PyObject *module)
{
    if (coder_type == NULL) {
        PyObject *size = PyObject_GetAttrString((PyObject *)&PyTuple_Type, "__basicsize__");

        tuple_items = size ? PyLong_AsSsize_t(size) : -1;
        Py_XDECREF(size);
        coder_type = tuple_items < 0 ? NULL : (PyTypeObject *)PyType_FromSpec(&coder_spec);
        stream_type = (PyTypeObject *)PyType_FromSpec(&stream_spec);
        ascii_method = PyObject_GetAttrString((PyObject *)&PyUnicode_Type, "isascii");
        coder_name = PyUnicode_InternFromString("_coder");
        pthread_atfork(NULL, NULL, count_fork);
    }
    if (coder_type == NULL || stream_type == NULL || ascii_method == NULL || coder_name == NULL)
        return -1;
    if (PyModule_AddObject(module, "sources", PyLong_FromUnsignedLong(LLMGPU_SOURCES)) != 0)
        return -1;
    return PyModule_AddObjectRef(module, "Coder", (PyObject *)coder_type);
}

static PyMethodDef functions[] = {{"method", make_method, METH_VARARGS, NULL}, {NULL, NULL, 0, NULL}};
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
