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
static inline int add_number(const Facts *facts, Numbers *numbers, int64_t k, uint64_t number)
{
    if (number >= (uint64_t)facts->size)
        return 0;
    int64_t length = facts->offsets[number + 1] - facts->offsets[number];
    numbers->ids[k] = (uint32_t)number;
    numbers->bytes += length;
    return length > 0;
}

static int take_list(const Facts *facts, PyObject *list, Numbers *numbers)
{
#ifdef Py_GIL_DISABLED /* another thread may change a list */
    PyObject *held = PySequence_Tuple(list);
#else
    PyObject *held = Py_NewRef(list);
#endif
    int fits = held && make_room(numbers, Py_SIZE(held)), overflow;
    PyObject **items = fits ? items_of(held) : NULL;

    for (Py_ssize_t k = 0; fits && k < numbers->count; k++) {
        int is_int = PyLong_CheckExact(items[k]);
        long long number = is_int ? PyLong_AsLongLongAndOverflow(items[k], &overflow) : -1;
        fits = add_number(facts, numbers, k, (uint64_t)number);
    }
    Py_XDECREF(held);
    return fits;
}

#define TAKE(type)                                                                                  \
    for (Py_ssize_t k = 0; fits && k < count; k++) {                                                \
        uint64_t number = ((const type *)view.buf)[k];                                              \
        fits = number < end && add_number(facts, numbers, k, number);                               \
    }

static int take_array(const Facts *facts, PyObject *array, Numbers *numbers)
{
    Py_buffer view;

    if (PyObject_GetBuffer(array, &view, PyBUF_FORMAT | PyBUF_ND) != 0) {
        PyErr_Clear();
        return 0;
    }
    Py_ssize_t count = view.itemsize ? view.len / view.itemsize : 0;
    const char *type = strchr("BHILQbhilq", view.format[0]);
    int fits = view.ndim == 1 && type && *type && view.format[1] == 0 && make_room(numbers, count);
    /* Read as a number without a sign, a negative number is at least `end`. */
    uint64_t end = fits && *type >= 'a' ? UINT64_C(1) << (8 * view.itemsize - 1) : UINT64_MAX;
    switch (view.itemsize) {
    case 1: TAKE(uint8_t) break;
    case 2: TAKE(uint16_t) break;
    case 4: TAKE(uint32_t) break;
    default: TAKE(uint64_t)
    }
    PyBuffer_Release(&view);
    return fits;
}

/* Read ids from a list or tuple of int, or from an array (n,) of NumPy; return 0 for any other
 * object, and for unknown ids. */
static inline int take_ids(const Facts *facts, PyObject *ids, Numbers *numbers)
{
    make_room(numbers, 0);
    if (Py_TYPE(ids) == &PyList_Type || Py_TYPE(ids) == &PyTuple_Type)
        return take_list(facts, ids, numbers);
    if ((void *)Py_TYPE(ids) == facts->numpy[NDARRAY_TYPE])
        return take_array(facts, ids, numbers);
    return 0;
}

/* Write the bytes of ids, which fill `out`. */
static void spell(const Facts *facts, const Numbers *numbers, uint8_t *out)
{
    const uint8_t *end = out + numbers->bytes;
    const uint32_t *ids = numbers->ids;

    for (int64_t k = 0; k < numbers->count; k++) {
        int64_t first = facts->offsets[ids[k]], length = facts->offsets[ids[k] + 1] - first;
        if (length <= TEXT_PADDING && end - out >= TEXT_PADDING)
            memcpy(out, facts->data + first, TEXT_PADDING);
        else
            memcpy(out, facts->data + first, (size_t)length);
        out += length;
    }
}

PyObject *decode(const Facts *facts, PyObject *ids, const char *errors)
{
    uint8_t few[FEW_IDS * TEXT_PADDING], *more = NULL;
    PyObject *result = NULL;
    Numbers numbers;
    int fits = take_ids(facts, ids, &numbers);

    if (fits && errors == NULL) {
        result = PyBytes_FromStringAndSize(NULL, numbers.bytes);
        if (result)
            spell(facts, &numbers, (uint8_t *)PyBytes_AsString(result));
    } else if (fits && (numbers.bytes <= (int64_t)sizeof few ||
                        (more = malloc((size_t)numbers.bytes)) != NULL)) {
        uint8_t *bytes = more ? more : few;
        spell(facts, &numbers, bytes);
        result = PyUnicode_DecodeUTF8((const char *)bytes, numbers.bytes, errors);
    }
    free(more);
    free_numbers(&numbers);
    return result ? result : nothing(); /* None where memory is short: Python's code raises MemoryError */
}

const char *handler(PyObject *errors)
{
    Py_ssize_t length;
    const char *name = PyUnicode_Check(errors) ? PyUnicode_AsUTF8AndSize(errors, &length) : NULL;

    if (name == NULL)
        PyErr_Clear();
    return name && strlen(name) == (size_t)length ? name : NULL;
}

/* decode_batch(rows, errors): return a list of texts, with None for a row that Python's code has to
 * decode.
 * rows: a list. */
PyObject *coder_decode_batch(PyObject *self, PyObject *args)
{
    PyObject *rows, *errors, *texts = NULL;

    if (PyArg_ParseTuple(args, "O!O", &PyList_Type, &rows, &errors))
        texts = PyList_New(PyList_Size(rows));
    const char *name = texts ? handler(errors) : NULL;
    for (Py_ssize_t k = 0; texts && k < PyList_Size(texts); k++) {
        PyObject *row = name ? PySequence_GetItem(rows, k) : NULL;
        PyObject *text = row ? decode(&((Coder *)self)->facts, row, name) : NULL;
        PyErr_Clear(); /* Python's code decodes the row again, and raises the error */
        PyList_SetItem(texts, k, text ? text : nothing());
        Py_XDECREF(row);
    }
    return texts;
}

/* ---- Offsets and names ---- */

/* Write the range of characters of each token of a text: the first character, and the end. */
static void write_spans(const Facts *facts, const Numbers *numbers, const uint8_t *p, int64_t *row)
{
    int64_t characters = 0;

    for (int64_t k = 0; k < numbers->count; k++) {
        const uint8_t *end = p + facts->spans[numbers->ids[k]];
        /* A token that begins inside a character includes this character. */
        *row++ = characters - (p < end && (*p & 0xC0) == 0x80 && characters > 0);
        for (; p < end; p++)
            characters += (*p & 0xC0) != 0x80;
        *row++ = characters;
    }
}

/* spans(text, ids): return the characters of each token, int64 (n, 2), as `character_spans` of
 * spelling.py does. */
PyObject *coder_spans(PyObject *object, PyObject *const *args, Py_ssize_t given)
{
    const Coder *self = (Coder *)object;
    Numbers numbers;
    Taken text;

    if (given != 2)
        return PyErr_Format(PyExc_TypeError, "spans takes a text and its ids");
    if (!take_text(args[0], &text))
        return nothing();
    int64_t rest = text.length;
    int fits = take_ids(&self->facts, args[1], &numbers);
    for (int64_t k = 0; fits && k < numbers.count; k++)
        rest -= self->facts.spans[numbers.ids[k]];
    Py_ssize_t shape[] = {numbers.count, 2};
    PyObject *array = fits && rest == 0 ? new_array(self, 2, shape, self->facts.span_number, NULL)
                                        : nothing();
    if (array && array != Py_None)
        write_spans(&self->facts, &numbers, text.bytes, data_of(array));
    free_numbers(&numbers);
    Py_XDECREF(text.owner);
    return array;
}

PyObject *find(const Coder *self, PyObject *given)
{
    uint8_t padded[TOKEN_BYTES + TEXT_PADDING];
    const Facts *facts = &self->facts;
    uint32_t found = UINT32_MAX;
    Taken text;

    if (facts->vocabulary == NULL || facts->offsets[facts->size] == 0) /* it knows no tokens */
        return nothing();
    PyObject *id = PyUnicode_Check(given) ? PyDict_GetItemWithError(self->special, given) : NULL;
    if (id)
        return Py_NewRef(id);
    if (PyErr_Occurred() || !take_text(given, &text))
        return nothing();
    if (text.length && text.length <= TOKEN_BYTES) {
        memcpy(padded, text.bytes, (size_t)text.length);
        memset(padded + text.length, 0, TEXT_PADDING);
        found = facts->engine.find_token(facts->vocabulary, padded, text.length);
    }
    Py_XDECREF(text.owner);
    return found == UINT32_MAX ? nothing() : PyLong_FromUnsignedLong(found);
}
