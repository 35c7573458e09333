/* Converting Python's texts to UTF-8, and making NumPy's arrays. */
#include "calls.h"

PyObject *ascii_method;

/* Return a str in UTF-8. A surrogate pair becomes its character, any other surrogate U+FFFD. */
static PyObject *mended(PyObject *text)
{
    PyObject *units = PyUnicode_AsEncodedString(text, "utf-16", "surrogatepass");
    PyObject *whole = units ? PyUnicode_FromEncodedObject(units, "utf-16", "replace") : NULL;
    PyObject *bytes = whole ? PyUnicode_AsUTF8String(whole) : NULL;

    Py_XDECREF(units);
    Py_XDECREF(whole);
    return bytes;
}

static int is_ascii(PyObject *text)
{
    PyObject *answer = PyObject_CallFunctionObjArgs(ascii_method, text, NULL);

    if (answer == NULL)
        PyErr_Clear();
    Py_XDECREF(answer);
    return answer == Py_True;
}

/* A str of ASCII contains its UTF-8. Any other str would keep its UTF-8 in memory once requested,
   so a copy is made of a long str. */
int take_text(PyObject *text, Taken *taken)
{
    *taken = (Taken){0};
    if (PyUnicode_Check(text)) {
        Py_ssize_t characters = PyUnicode_GetLength(text);
        if (characters <= CACHED_CHARS || is_ascii(text)) {
            taken->bytes = (const uint8_t *)PyUnicode_AsUTF8AndSize(text, &taken->length);
            taken->is_ascii = taken->length == characters;
        } else {
            taken->owner = PyUnicode_AsUTF8String(text);
        }
        if (taken->bytes)
            return 1;
        if (taken->owner == NULL && PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) {
            PyErr_Clear();
            taken->owner = mended(text);
        }
        text = taken->owner;
    }
    if (text == NULL || !PyBytes_Check(text))
        return 0;
    taken->bytes = (const uint8_t *)PyBytes_AsString(text);
    taken->length = PyBytes_Size(text);
    return 1;
}

PyObject *new_array(const Coder *self, int dimensions, const Py_ssize_t *shape, int64_t number,
                    void *data)
{
    void *const *numpy = self->facts.numpy;
    int flags = data ? ARRAY_FLAGS : 0;

    return ((NewArray)numpy[NEW_ARRAY])(numpy[NDARRAY_TYPE], dimensions, shape, (int)number, NULL,
                                        data, 0, flags, NULL);
}
