/* Methods of Tokenizer that handle the usual case, and call the replaced functions in any other case. */
#include "calls.h"

enum method { ENCODE, COUNT_IDS, DECODE, DECODE_BYTES, TOKEN_TO_ID, METHODS };

static PyObject *replaced[METHODS];
static PyObject *coder_name, *encode_name, *decode_bytes_name; /* of attributes */
static PyObject *dtype_name;                                  /* of an argument */

/* Return the coder of a tokenizer; NULL, without an error, if it has none. */
static PyObject *coder_of(PyObject *tokenizer)
{
    PyObject *coder = PyObject_GetAttr(tokenizer, coder_name);

    if (coder && Py_TYPE(coder) == coder_type)
        return coder;
    Py_XDECREF(coder);
    PyErr_Clear();
    return NULL;
}

static PyMethodDef tokenizer_methods[METHODS];

/* Return whether a method of a tokenizer is the method made here, not one of a subclass or
 * object. */
static int is_ours(PyObject *tokenizer, enum method method, PyObject *name)
{
    PyObject *found = PyObject_GetAttr(tokenizer, name);
    int is_same = found && Py_TYPE(found) == &PyCFunction_Type &&
                  PyCFunction_GetFunction(found) == tokenizer_methods[method].ml_meth;

    if (found == NULL)
        PyErr_Clear();
    Py_XDECREF(found);
    return is_same;
}

/* Return the result of the usual case; if it is None, call the replaced function.
 *
 * names: the names of the last arguments; NULL if none has a name. */
static PyObject *or_replaced(PyObject *result, enum method method, PyObject *self,
                             PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    if (result != Py_None)
        return result;
    Py_DECREF(result);
    PyObject *given = PyTuple_New(count + 1), *named = names ? PyDict_New() : NULL;
    int is_whole = given && (named || names == NULL);

    for (Py_ssize_t k = 0; is_whole && k <= count; k++) {
        PyObject *item = k ? args[k - 1] : self;
        Py_INCREF(item);
        PyTuple_SetItem(given, k, item);
    }
    for (Py_ssize_t k = 0; is_whole && names && k < PyTuple_Size(names); k++)
        is_whole = PyDict_SetItem(named, PyTuple_GetItem(names, k), args[count + k]) == 0;
    result = is_whole ? PyObject_Call(replaced[method], given, named) : NULL;
    Py_XDECREF(given);
    Py_XDECREF(named);
    return result;
}

/* encode(text), encode(text, dtype=list) */
static PyObject *method_encode(PyObject *self, PyObject *const *args, Py_ssize_t count,
                               PyObject *names)
{
    PyObject *coder = count == 1 ? coder_of(self) : NULL, *result;
    enum result kind = coder ? (enum result)((Coder *)coder)->usual : OTHER;
    int is_usual = coder != NULL;

    if (is_usual && names && PyTuple_Size(names)) {
        is_usual = PyTuple_Size(names) == 1 && args[1] == (PyObject *)&PyList_Type &&
                   PyUnicode_Compare(PyTuple_GetItem(names, 0), dtype_name) == 0;
        kind = LIST;
    }
    is_usual = is_usual && (kind == ARRAY || kind == LIST);
    result = is_usual ? encode((Coder *)coder, args[0], kind, 0) : nothing();
    Py_XDECREF(coder);
    return or_replaced(result, ENCODE, self, args, count, names);
}

/* decode(ids), decode(ids, errors) */
static PyObject *method_decode(PyObject *self, PyObject *const *args, Py_ssize_t count,
                               PyObject *names)
{
    const char *errors = names ? NULL : count == 1 ? "replace" : handler(args, count);
    int is_usual = errors && is_ours(self, DECODE_BYTES, decode_bytes_name);
    PyObject *coder = is_usual ? coder_of(self) : NULL;
    PyObject *result = coder ? decode((Coder *)coder, args[0], errors) : nothing();

    Py_XDECREF(coder);
    return or_replaced(result, DECODE, self, args, count, names);
}

/* Handle the usual case of a method with one argument. */
static PyObject *of_one(enum method method, PyObject *self, PyObject *const *args, Py_ssize_t count,
                        PyObject *names)
{
    PyObject *object = count == 1 && names == NULL ? coder_of(self) : NULL, *result;
    Coder *coder = (Coder *)object;

    if (coder == NULL || (method == COUNT_IDS &&
                          (coder->usual == NARROW || !is_ours(self, ENCODE, encode_name))))
        result = nothing();
    else if (method == COUNT_IDS)
        result = encode(coder, args[0], COUNT, 0);
    else if (method == DECODE_BYTES)
        result = decode(coder, args[0], NULL);
    else
        result = find(coder, args[0]);
    Py_XDECREF(object);
    return or_replaced(result, method, self, args, count, names);
}

#define OF_ONE(name, method)                                                                        \
    static PyObject *name(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names) \
    {                                                                                               \
        return of_one(method, self, args, count, names);                                            \
    }

OF_ONE(method_count, COUNT_IDS)
OF_ONE(method_decode_bytes, DECODE_BYTES)
OF_ONE(method_token_to_id, TOKEN_TO_ID)

#define METHOD(name, function)                                                                      \
    {name, (PyCFunction)(void (*)(void))(function), METH_FASTCALL | METH_KEYWORDS, NULL}

static PyMethodDef tokenizer_methods[METHODS] = {
    METHOD("encode", method_encode), METHOD("count", method_count), METHOD("decode", method_decode),
    METHOD("decode_bytes", method_decode_bytes), METHOD("token_to_id", method_token_to_id)};

PyObject *make_method(PyObject *module, PyObject *args)
{
    PyObject *type, *function;
    const char *name, *doc;

    (void)module;
    if (!PyArg_ParseTuple(args, "OsOs", &type, &name, &function, &doc))
        return NULL;
    for (int k = 0; k < METHODS; k++) {
        if (strcmp(tokenizer_methods[k].ml_name, name) != 0)
            continue;
        if (replaced[k] == NULL) {
            tokenizer_methods[k].ml_doc = strdup(doc); /* never freed, like the type */
            Py_INCREF(function);
            replaced[k] = function;
        } else if (replaced[k] != function) {
            break;
        }
        return PyDescr_NewMethod((PyTypeObject *)type, &tokenizer_methods[k]);
    }
    return PyErr_Format(PyExc_ValueError, "there is no method %s, or it replaces another function",
                        name);
}

int fill_methods(void)
{
    PyObject **names[] = {&coder_name, &encode_name, &decode_bytes_name, &dtype_name};
    const char *texts[] = {"_coder", "encode", "decode_bytes", "dtype"};

    for (int k = 0; k < 4; k++)
        if (*names[k] == NULL && (*names[k] = PyUnicode_InternFromString(texts[k])) == NULL)
            return -1;
    return 0;
}
