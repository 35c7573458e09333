/* Encoding texts to ids: single texts, and batches. */
#include "calls.h"

/* Write the ids of a text, with the lock released if it is long; return the number of ids, below 0
 * without memory. */
static int64_t encode_to(Coder *self, Tool *tool, const Taken *text, uint32_t *ids)
{
    PyThreadState *saved = text->length > FEW_BYTES ? PyEval_SaveThread() : NULL;
    int64_t count = self->engine.encode_document(tool->encoder, tool->table->words, text->bytes,
                                                 text->length, self->part_bytes, ids);

    if (saved)
        PyEval_RestoreThread(saved);
    return count;
}

static PyObject *result_of(Coder *self, enum result kind, const uint32_t *ids, int64_t count)
{
    if (count < 0)
        return nothing(); /* Python's code runs out of memory again, and raises the error */
    if (kind == COUNT)
        return PyLong_FromLongLong(count);
    return kind == LIST ? list_of(self, ids, count) : array_of(self, ids, count);
}

/* Return how many of SAMPLE bytes begin a character beyond ASCII. */
static int64_t count_leads(const uint8_t *text)
{
    int64_t leads = 0;

    for (int64_t at = 0; at < SAMPLE; at += 128) { /* few enough bytes for a count in a byte */
        uint8_t some = 0;
        for (int64_t k = at; k < at + 128; k++)
            some = (uint8_t)(some + (text[k] >= FIRST_LEAD));
        leads += some;
    }
    return leads;
}

/* Call find_cuts, once, if places to cut words speed up a text; return -1 after an error. */
static int find_cuts(Coder *self, const Taken *text)
{
    if (text->is_ascii || text->length < LONG_BYTES || self->find_cuts == NULL)
        return 0;
    if (count_leads(text->bytes) * LEAST_SHARE < SAMPLE)
        return 0;
    PyObject *function = __atomic_exchange_n(&self->find_cuts, NULL, __ATOMIC_ACQ_REL);
    if (function == NULL)
        return 0;
    PyObject *done = PyObject_CallFunctionObjArgs(function, NULL);
    Py_DECREF(function);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

static PyObject *encode_taken(Coder *self, Tool *tool, const Taken *text, enum result kind)
{
    int is_direct = kind == ARRAY && text->length > COPIED_BYTES; /* into an array to be shortened */
    Py_ssize_t room = text->length + 3;

    if (!is_direct) {
        uint32_t *ids = room_for(tool, room);
        return result_of(self, kind, ids, ids ? encode_to(self, tool, text, ids) : -1);
    }
    PyObject *array = new_array(self, 1, &room, self->id_number, NULL);
    int64_t count = array ? encode_to(self, tool, text, data_of(array)) : 0;
    if (array == NULL || count >= 0)
        return array ? shortened(self, array, count) : NULL;
    Py_DECREF(array);
    return nothing();
}

PyObject *encode(Coder *self, PyObject *given, enum result kind, int any_length)
{
    PyObject *result = NULL;
    Taken text;

    if (self->pattern == NULL)
        return nothing();
    int status = take_text(given, &text);
    if (status <= 0)
        return status ? NULL : nothing();
    int fits = text.length <= self->most_bytes || any_length;
    Tool *tool = fits && find_cuts(self, &text) == 0 ? take_tool(self) : NULL;
    if (tool) {
        result = encode_taken(self, tool, &text, kind);
        put_back(self, tool);
    } else if (!PyErr_Occurred()) {
        result = nothing();
    }
    Py_XDECREF(text.owner);
    return result;
}

static int is_true(PyObject *const *args, Py_ssize_t count, Py_ssize_t place)
{
    return place < count && args[place] == Py_True;
}

/* encode(text, as_list=False, any_length=False) */
PyObject *coder_encode(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    if (count < 1)
        return PyErr_Format(PyExc_TypeError, "encode takes a text");
    enum result kind = is_true(args, count, 1) ? LIST : ARRAY;
    return encode((Coder *)self, args[0], kind, is_true(args, count, 2));
}

/* returns(dtype, is_narrow): set the type that the method encode(text) of a tokenizer returns. */
PyObject *coder_returns(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 2)
        return PyErr_Format(PyExc_TypeError, "returns takes a dtype and whether it is narrow");
    ((Coder *)self)->usual = args[0] == Py_None                    ? ARRAY
                             : args[0] == (PyObject *)&PyList_Type ? LIST
                             : args[1] == Py_True                  ? NARROW
                                                                   : OTHER;
    return nothing();
}

/* ---- Batches ---- */

/* Texts end to end, then padding, and the position at which each text starts. */
typedef struct {
    uint8_t *bytes;
    int64_t length, room, count;
    int64_t *starts;
    int is_ascii;
} Joined;

static int append(Joined *joined, const Taken *text)
{
    int64_t needed = joined->length + text->length + TEXT_PADDING;

    if (needed > joined->room) {
        int64_t room = needed + needed / 2;
        uint8_t *larger = realloc(joined->bytes, (size_t)room);
        if (larger == NULL)
            return -1;
        joined->bytes = larger;
        joined->room = room;
    }
    joined->starts[joined->count++] = joined->length;
    memcpy(joined->bytes + joined->length, text->bytes, (size_t)text->length);
    joined->length += text->length;
    joined->is_ascii &= text->is_ascii;
    return 0;
}

/* Join the texts of a list; return 1, 0 if Python's code has to encode them, -1 after an error. */
static int join(PyObject *texts, Py_ssize_t count, int64_t most, Joined *joined)
{
    for (Py_ssize_t k = 0; k < count; k++) {
        PyObject *item = PySequence_GetItem(texts, k);
        Taken text = {0};
        int status = item ? take_text(item, &text) : -1;
        if (status == 1 && (joined->length + text.length > most || append(joined, &text) != 0))
            status = 0;
        Py_XDECREF(text.owner);
        Py_XDECREF(item);
        if (status != 1)
            return status;
    }
    if (joined->bytes)
        memset(joined->bytes + joined->length, 0, TEXT_PADDING);
    return 1;
}

/* Return a view of `count` ids of an array. */
static PyObject *view_of(const Coder *self, PyObject *whole, uint32_t *ids, Py_ssize_t count)
{
    PyObject *view = new_array(self, 1, &count, self->id_number, ids);

    if (view) {
        Py_INCREF(whole);
        if (((SetBase)self->numpy[SET_BASE])(view, whole) != 0) /* takes the reference anyway */
            Py_CLEAR(view);
    }
    return view;
}

/* Return a list with the ids of each text: views of the array `whole`, or lists if it is NULL. */
static PyObject *rows_of(Coder *self, PyObject *whole, uint32_t *ids, const int64_t *starts,
                         int64_t count)
{
    PyObject *rows = PyList_New(count);

    for (int64_t k = 0; rows && k < count; k++) {
        Py_ssize_t length = starts[k + 1] - starts[k];
        PyObject *row = whole ? view_of(self, whole, ids + starts[k], length)
                              : list_of(self, ids + starts[k], length);
        if (row)
            PyList_SetItem(rows, k, row);
        else
            Py_CLEAR(rows);
    }
    return rows;
}

/* Return the ids of joined texts; None without memory. */
static PyObject *encode_joined(Coder *self, Tool *tool, const Joined *joined, int as_list)
{
    uint32_t *ids = room_for(tool, joined->length + 3);
    int64_t *starts = malloc(((size_t)joined->count + 1) * sizeof *starts);
    PyObject *whole = NULL, *result = NULL;
    int64_t stopped, count = -1;

    if (ids && starts) {
        PyThreadState *saved = joined->length > FEW_BYTES ? PyEval_SaveThread() : NULL;
        count = self->engine.encode(tool->encoder, tool->table->words, joined->bytes, NULL, -1, 0,
                                    joined->length, joined->length, 0, joined->starts, joined->count,
                                    joined->count, starts, self->part_bytes, ids, &stopped);
        if (saved)
            PyEval_RestoreThread(saved);
    }
    if (count < 0) {
        result = nothing();
    } else if (as_list || (whole = array_of(self, ids, count)) != NULL) {
        starts[joined->count] = count;
        result = rows_of(self, whole, whole ? data_of(whole) : ids, starts, joined->count);
        Py_XDECREF(whole);
    }
    free(starts);
    return result;
}

/* encode_batch(texts, as_list=False, any_length=False); texts: a list. */
PyObject *coder_encode_batch(PyObject *object, PyObject *const *args, Py_ssize_t given)
{
    Coder *self = (Coder *)object;
    PyObject *result = NULL;
    Joined joined = {.is_ascii = 1};
    Py_ssize_t count;
    Tool *tool;

    count = given ? PySequence_Size(args[0]) : 0;
    if (count < 0)
        return NULL;
    if (self->pattern == NULL || count == 0)
        return nothing();
    joined.starts = malloc((size_t)count * sizeof *joined.starts);
    if (joined.starts == NULL)
        return PyErr_NoMemory();
    int64_t most = is_true(args, given, 2) ? INT64_MAX : self->most_bytes;
    int status = join(args[0], count, most, &joined);
    Taken whole = {joined.bytes, joined.length, NULL, joined.is_ascii};
    if (status == 1 && find_cuts(self, &whole) != 0)
        status = -1;
    if (status == 1 && (tool = take_tool(self)) != NULL) {
        result = encode_joined(self, tool, &joined, is_true(args, given, 1));
        put_back(self, tool);
    } else if (status >= 0) {
        result = nothing();
    }
    free(joined.bytes);
    free(joined.starts);
    return result;
}
