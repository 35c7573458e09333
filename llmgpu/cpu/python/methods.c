/* Methods of Tokenizer that handle the usual case, and call the replaced functions in any other case. */
#include "calls.h"

enum method { ENCODE, COUNT_IDS, DECODE, DECODE_BYTES, TOKEN_TO_ID, METHODS };

PyObject *coder_name; /* the name of the attribute that has the coder */

static PyObject *replaced[METHODS], *names_of_methods[METHODS]; /* NULL for functions that stay */
static PyMethodDef tokenizer_methods[METHODS];

/* Return whether a method of a tokenizer is the method made here, not one of a subclass or
 * object. */
static int is_ours(PyObject *tokenizer, enum method method)
{
    PyObject *name = names_of_methods[method];
    PyObject *found = name ? PyObject_GetAttr(tokenizer, name) : NULL;
    int is_same = found && Py_TYPE(found) == &PyCFunction_Type &&
                  PyCFunction_GetFunction(found) == tokenizer_methods[method].ml_meth;

    if (found == NULL)
        PyErr_Clear();
    Py_XDECREF(found);
    return is_same;
}

/* Return whether the named arguments are dtype=list. */
static int is_list(PyObject *names, PyObject *const *named)
{
    return PyTuple_Size(names) == 1 && named[0] == (PyObject *)&PyList_Type &&
           PyUnicode_CompareWithASCIIString(PyTuple_GetItem(names, 0), "dtype") == 0;
}

/* Return the result of a method; None if this is not a usual case.
 *
 * names: the names of the last arguments; NULL if none has a name. */
static inline PyObject *result_of(enum method method, Coder *coder, PyObject *self,
                                  PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    enum result kind = (enum result)coder->usual;
    const char *errors = "replace";

    if (method == DECODE && count == 2)
        errors = handler(args[--count]);
    if (method == ENCODE && names && count == 1 && is_list(names, args + 1)) {
        kind = LIST;
        names = NULL;
    }
    if (count != 1 || names || errors == NULL)
        return nothing();
    switch (method) {
    case ENCODE:
        return kind == ARRAY || kind == LIST ? encode(coder, args[0], kind, 0) : nothing();
    case COUNT_IDS:
        return kind != NARROW && is_ours(self, ENCODE) ? encode(coder, args[0], COUNT, 0) : nothing();
    case DECODE:
        return is_ours(self, DECODE_BYTES) ? decode(&coder->facts, args[0], errors) : nothing();
    case DECODE_BYTES:
        return decode(&coder->facts, args[0], NULL);
    default:
        return find(coder, args[0]);
    }
}

static PyObject *call_replaced(enum method method, PyObject *self, PyObject *const *args,
                               Py_ssize_t count, PyObject *names)
{
    PyObject *given = PyTuple_New(count + 1), *named = names ? PyDict_New() : NULL, *result = NULL;
    int is_whole = given && (named || names == NULL);

    for (Py_ssize_t k = 0; is_whole && k <= count; k++)
        PyTuple_SetItem(given, k, Py_NewRef(k ? args[k - 1] : self));
    for (Py_ssize_t k = 0; is_whole && names && k < PyTuple_Size(names); k++)
        is_whole = PyDict_SetItem(named, PyTuple_GetItem(names, k), args[count + k]) == 0;
    if (is_whole)
        result = PyObject_Call(replaced[method], given, named);
    Py_XDECREF(given);
    Py_XDECREF(named);
    return result;
}

/* Return the result of the usual case, or else of the replaced function. */
static inline PyObject *call(enum method method, PyObject *self, PyObject *const *args,
                             Py_ssize_t count, PyObject *names)
{
    PyObject *coder = PyObject_GetAttr(self, coder_name);
    int has_coder = coder && Py_TYPE(coder) == coder_type;

    if (coder == NULL)
        PyErr_Clear();
    PyObject *result = has_coder ? result_of(method, (Coder *)coder, self, args, count, names)
                                 : nothing();
    Py_XDECREF(coder);
    if (result != Py_None)
        return result;
    Py_DECREF(result);
    return call_replaced(method, self, args, count, names);
}

#define FUNCTION(name, method)                                                                      \
    static PyObject *name(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names) \
    {                                                                                               \
        return call(method, self, args, count, names);                                              \
    }
#define METHOD(name, function) {name, FASTCALL(function), METH_FASTCALL | METH_KEYWORDS, NULL}

FUNCTION(method_encode, ENCODE)
FUNCTION(method_count, COUNT_IDS)
FUNCTION(method_decode, DECODE)
FUNCTION(method_decode_bytes, DECODE_BYTES)
FUNCTION(method_token_to_id, TOKEN_TO_ID)

static PyMethodDef tokenizer_methods[METHODS] = {
    METHOD("encode", method_encode), METHOD("count", method_count), METHOD("decode", method_decode),
    METHOD("decode_bytes", method_decode_bytes), METHOD("token_to_id", method_token_to_id)};

PyObject *make_method(PyObject *module, PyObject *args)
{
    PyObject *type, *name, *function;
    const char *doc;
    int k = 0;

    (void)module;
    if (!PyArg_ParseTuple(args, "OUOs", &type, &name, &function, &doc))
        return NULL;
    while (k < METHODS && PyUnicode_CompareWithASCIIString(name, tokenizer_methods[k].ml_name) != 0)
        k++;
    if (k == METHODS || (replaced[k] && replaced[k] != function))
        return PyErr_Format(PyExc_ValueError,
                            "there is no method %U, or it replaces another function", name);
    if (replaced[k] == NULL) {
        tokenizer_methods[k].ml_doc = strdup(doc); /* never freed, like the type */
        names_of_methods[k] = Py_NewRef(name);
        replaced[k] = Py_NewRef(function);
    }
    return PyDescr_NewMethod((PyTypeObject *)type, &tokenizer_methods[k]);
}
