/* Decoding ids to texts, the offsets of tokens, and finding tokens by name. */
#include "calls.h"

/* Ids to decode: their number, and the number of their bytes. */
typedef struct {
    uint32_t few[FEW_IDS];
    uint32_t *ids;
    int64_t count, bytes;
} Numbers;

static int make_room(Numbers *numbers, Py_ssize_t count)
{
    numbers->ids = count <= FEW_IDS ? numbers->few : malloc((size_t)count * sizeof *numbers->ids);
    numbers->count = count;
    numbers->bytes = 0;
    return numbers->ids != NULL;
}

static void free_numbers(Numbers *numbers)
{
    if (numbers->ids != numbers->few)
        free(numbers->ids);
}

/* Append a number; return whether it is an id with a token. */
static inline int add_number(const Coder *self, Numbers *numbers, int64_t k, uint64_t number)
{
    if (number >= (uint64_t)self->size)
        return 0;
    int64_t length = self->offsets[number + 1] - self->offsets[number];
    numbers->ids[k] = (uint32_t)number;
    numbers->bytes += length;
    return length > 0;
}

static int take_list(const Coder *self, PyObject *list, Numbers *numbers)
{
    int is_tuple = Py_TYPE(list) == &PyTuple_Type;
    Py_ssize_t count = is_tuple ? PyTuple_Size(list) : PyList_Size(list);

    if (!make_room(numbers, count))
        return 0;
    for (Py_ssize_t k = 0; k < count; k++) {
#ifdef Py_GIL_DISABLED
        PyObject *item = PySequence_GetItem(list, k);
        int is_int = item && PyLong_CheckExact(item);
        long long number = is_int ? PyLong_AsLongLong(item) : -1;
        Py_XDECREF(item);
#else
        PyObject *item = is_tuple ? PyTuple_GetItem(list, k) : PyList_GetItem(list, k);
        long long number = item && PyLong_CheckExact(item) ? PyLong_AsLongLong(item) : -1;
#endif
        if (!add_number(self, numbers, k, (uint64_t)number)) {
            PyErr_Clear();
            return 0;
        }
    }
    return 1;
}

#define SIGNED 16
#define TAKE(type)                                                                                  \
    for (Py_ssize_t k = 0; k < count && fits; k++)                                                  \
        fits = add_number(self, numbers, k, (uint64_t)(int64_t)((const type *)view.buf)[k]);        \
    break

static int take_array(const Coder *self, PyObject *array, Numbers *numbers)
{
    Py_buffer view;
    int fits = 0;

    if (PyObject_GetBuffer(array, &view, PyBUF_FORMAT | PyBUF_ND) != 0) {
        PyErr_Clear();
        return 0;
    }
    Py_ssize_t count = view.itemsize ? view.len / view.itemsize : 0;
    const char *type = strchr("BHILQbhilq", view.format[0]);
    if (view.ndim == 1 && type && *type && view.format[1] == 0 && make_room(numbers, count)) {
        fits = 1;
        switch (view.itemsize | (*type >= 'a' ? SIGNED : 0)) {
        case 1: TAKE(uint8_t);
        case 2: TAKE(uint16_t);
        case 4: TAKE(uint32_t);
        case 8: TAKE(uint64_t);
        case SIGNED | 1: TAKE(int8_t);
        case SIGNED | 2: TAKE(int16_t);
        case SIGNED | 4: TAKE(int32_t);
        case SIGNED | 8: TAKE(int64_t);
        default: fits = 0;
        }
    }
    PyBuffer_Release(&view);
    return fits;
}

/* Read ids from a list or tuple of int, or from an array (n,) of NumPy; return 0 for any other
 * object, and for unknown ids. */
static int take_ids(const Coder *self, PyObject *ids, Numbers *numbers)
{
    numbers->ids = numbers->few;
    if (Py_TYPE(ids) == &PyList_Type || Py_TYPE(ids) == &PyTuple_Type)
        return take_list(self, ids, numbers);
    if ((void *)Py_TYPE(ids) == self->numpy[NDARRAY_TYPE])
        return take_array(self, ids, numbers);
    return 0;
}

/* Write the bytes of ids, which fill `out`. */
static void spell(const Coder *self, const Numbers *numbers, uint8_t *out)
{
    const uint8_t *end = out + numbers->bytes;
    const uint32_t *ids = numbers->ids;

    for (int64_t k = 0; k < numbers->count; k++) {
        int64_t first = self->offsets[ids[k]], length = self->offsets[ids[k] + 1] - first;
        if (length <= TEXT_PADDING && end - out >= TEXT_PADDING)
            memcpy(out, self->data + first, TEXT_PADDING);
        else
            memcpy(out, self->data + first, (size_t)length);
        out += length;
    }
}

static PyObject *spelled_bytes(const Coder *self, const Numbers *numbers)
{
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, numbers->bytes);

    if (bytes)
        spell(self, numbers, (uint8_t *)PyBytes_AsString(bytes));
    return bytes;
}

static PyObject *spelled_text(const Coder *self, const Numbers *numbers, const char *errors)
{
    uint8_t few[FEW_IDS * TEXT_PADDING];
    uint8_t *bytes = numbers->bytes <= (int64_t)sizeof few ? few : malloc((size_t)numbers->bytes);

    if (bytes == NULL)
        return PyErr_NoMemory();
    spell(self, numbers, bytes);
    PyObject *text = PyUnicode_DecodeUTF8((const char *)bytes, numbers->bytes, errors);
    if (bytes != few)
        free(bytes);
    return text;
}

PyObject *decode(const Coder *self, PyObject *ids, const char *errors)
{
    Numbers numbers;
    PyObject *result = !take_ids(self, ids, &numbers) ? nothing()
                       : errors ? spelled_text(self, &numbers, errors)
                                : spelled_bytes(self, &numbers);

    free_numbers(&numbers);
    return result;
}

const char *handler(PyObject *const *args, Py_ssize_t count)
{
    Py_ssize_t length;

    if (count != 2 || !PyUnicode_Check(args[1]))
        return NULL;
    const char *name = PyUnicode_AsUTF8AndSize(args[1], &length);
    if (name == NULL)
        PyErr_Clear();
    return name && strlen(name) == (size_t)length ? name : NULL;
}

/* decode_batch(rows, errors): return a list of texts, with None for a row that Python's code has to
 * decode.
 * rows: a list. */
PyObject *coder_decode_batch(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    const char *errors = handler(args, given);
    Py_ssize_t count = given ? PySequence_Size(args[0]) : 0;
    PyObject *texts = count < 0 ? NULL : PyList_New(count);

    for (Py_ssize_t k = 0; texts && k < count; k++) {
        PyObject *row = errors ? PySequence_GetItem(args[0], k) : NULL;
        PyObject *text = row ? decode((Coder *)self, row, errors) : nothing();
        if (text == NULL) { /* Python's code decodes this row, and raises the error */
            PyErr_Clear();
            text = nothing();
        }
        Py_XDECREF(row);
        PyList_SetItem(texts, k, text);
    }
    return texts;
}

/* ---- Offsets and names ---- */

/* spans(text, ids): return the characters of each token, int64 (n, 2), as `character_spans` of
 * spelling.py does. */
PyObject *coder_spans(PyObject *object, PyObject *const *args, Py_ssize_t given)
{
    Coder *self = (Coder *)object;
    PyObject *array = NULL;
    Numbers numbers;
    Taken text;

    if (given != 2)
        return PyErr_Format(PyExc_TypeError, "spans takes a text and its ids");
    int status = take_text(args[0], &text);
    if (status <= 0)
        return status ? NULL : nothing();
    int fits = take_ids(self, args[1], &numbers);
    int64_t at = 0, characters = 0, *row;
    for (int64_t k = 0; fits && k < numbers.count; k++)
        at += self->spans[numbers.ids[k]];
    if (fits && at == text.length) {
        Py_ssize_t shape[] = {numbers.count, 2};
        array = new_array(self, 2, shape, self->span_number, NULL);
        row = array ? data_of(array) : NULL;
        at = 0;
        for (int64_t k = 0; array && k < numbers.count; k++, row += 2) {
            const uint8_t *p = text.bytes + at, *end = p + self->spans[numbers.ids[k]];
            /* A token that begins inside a character includes this character. */
            row[0] = characters - (p < end && (*p & 0xC0) == 0x80 && characters > 0);
            for (; p < end; p++)
                characters += (*p & 0xC0) != 0x80;
            row[1] = characters;
            at = p - text.bytes;
        }
    } else {
        array = nothing();
    }
    free_numbers(&numbers);
    Py_XDECREF(text.owner);
    return array;
}

PyObject *find(Coder *self, PyObject *given)
{
    uint8_t few[TOKEN_BYTES + TEXT_PADDING] = {0}, *padded = few;
    uint32_t found = UINT32_MAX;
    Taken text;

    if (self->vocabulary == NULL || self->offsets[self->size] == 0) /* it knows no tokens */
        return nothing();
    if (PyUnicode_Check(given)) {
        PyObject *id = PyDict_GetItemWithError(self->special, given);
        Py_XINCREF(id);
        if (id || PyErr_Occurred())
            return id;
    }
    int status = take_text(given, &text);
    if (status <= 0)
        return status ? NULL : nothing();
    if (text.length > TOKEN_BYTES)
        padded = calloc((size_t)text.length + TEXT_PADDING, 1);
    if (padded && text.length) {
        memcpy(padded, text.bytes, (size_t)text.length);
        found = self->engine.find_token(self->vocabulary, padded, text.length);
    }
    Py_XDECREF(text.owner);
    if (padded == NULL)
        return PyErr_NoMemory();
    if (padded != few)
        free(padded);
    return found == UINT32_MAX ? nothing() : PyLong_FromUnsignedLong(found);
}
