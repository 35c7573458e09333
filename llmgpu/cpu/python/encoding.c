/* Encoding texts to ids: single texts, and batches. */
#include "calls.h"

/* Return how many of SAMPLE bytes begin a character beyond ASCII. */
static int count_leads(const uint8_t *text)
{
    int leads = 0;

    for (int k = 0; k < SAMPLE; k++)
        leads += text[k] >= FIRST_LEAD;
    return leads;
}

/* Call find_cuts, once, if places to cut words speed up a text; return 0 after an error. */
static int find_cuts(Coder *self, const uint8_t *text, int64_t length, int is_ascii)
{
    if (is_ascii || length < LONG_BYTES || self->find_cuts == NULL)
        return 1;
    if (count_leads(text) * LEAST_SHARE < SAMPLE)
        return 1;
    PyObject *function = __atomic_exchange_n(&self->find_cuts, NULL, __ATOMIC_ACQ_REL);
    PyObject *done = function ? PyObject_CallFunctionObjArgs(function, NULL) : nothing();
    Py_XDECREF(done);
    return done != NULL;
}

/* Return the ids of a text; None without memory: Python's code runs out of it again, and raises
 * the error. */
static PyObject *encode_taken(Coder *self, Tool *tool, const Taken *text, enum result kind)
{
    uint32_t *ids = room_for(tool, text->length + 3);

    if (ids == NULL)
        return nothing();
    PyThreadState *saved = text->length > FEW_BYTES ? PyEval_SaveThread() : NULL;
    int64_t count = self->facts.engine.encode_document(tool->encoder, tool->table->words,
                                                       text->bytes, text->length,
                                                       self->facts.part_bytes, ids);
    if (saved)
        PyEval_RestoreThread(saved);
    if (count < 0)
        return nothing();
    if (kind == COUNT)
        return PyLong_FromLongLong(count);
    return kind == LIST ? list_of(self, ids, count) : array_of(self, ids, count);
}

PyObject *encode(Coder *self, PyObject *given, enum result kind, int any_length)
{
    Tool *tool = NULL;
    Taken text;

    if (self->facts.pattern == NULL || !take_text(given, &text))
        return nothing();
    if ((text.length <= self->facts.most_bytes || any_length) &&
        find_cuts(self, text.bytes, text.length, text.is_ascii))
        tool = take_tool(self);
    PyObject *result = tool ? encode_taken(self, tool, &text, kind) : nothing();
    if (tool)
        put_back(self, tool);
    Py_XDECREF(text.owner);
    return result;
}

/* encode(text, any_length=False) */
PyObject *coder_encode(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    if (count < 1)
        return PyErr_Format(PyExc_TypeError, "encode takes a text");
    return encode((Coder *)self, args[0], ARRAY, count > 1 && args[1] == Py_True);
}

/* ---- Batches ---- */

/* Texts end to end, then padding, and the position at which each text starts. */
typedef struct {
    uint8_t *bytes;
    int64_t length, room, count;
    int64_t *starts;
    int is_ascii;
} Joined;

/* Append a text; return 0 without memory. */
static int append(Joined *joined, const Taken *text)
{
    int64_t needed = joined->length + text->length + TEXT_PADDING;

    if (needed > joined->room) {
        int64_t room = needed + needed / 2;
        uint8_t *larger = realloc(joined->bytes, (size_t)room);
        if (larger == NULL)
            return 0;
        joined->bytes = larger;
        joined->room = room;
    }
    joined->starts[joined->count++] = joined->length;
    memcpy(joined->bytes + joined->length, text->bytes, (size_t)text->length);
    joined->length += text->length;
    joined->is_ascii &= text->is_ascii;
    memset(joined->bytes + joined->length, 0, TEXT_PADDING);
    return 1;
}

/* Join the texts of a list; return 0 if Python's code has to encode them, or after an error. */
static int join(PyObject *texts, Py_ssize_t count, int64_t most_bytes, Joined *joined)
{
    int fits = joined->starts != NULL;

    for (Py_ssize_t k = 0; fits && k < count; k++) {
        PyObject *item = PySequence_GetItem(texts, k);
        Taken text = {0};
        fits = item && take_text(item, &text) && joined->length + text.length <= most_bytes &&
               append(joined, &text);
        Py_XDECREF(text.owner);
        Py_XDECREF(item);
    }
    return fits;
}

/* Return a view of `count` ids of an array. */
static PyObject *view_of(const Coder *self, PyObject *whole, uint32_t *ids, Py_ssize_t count)
{
    PyObject *view = new_array(self, 1, &count, self->facts.id_number, ids);
    SetBase set_base = (SetBase)self->facts.numpy[SET_BASE];

    if (view && set_base(view, Py_NewRef(whole)) != 0) /* takes the reference anyway */
        Py_CLEAR(view);
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
        if (row == NULL || PyList_SetItem(rows, k, row) != 0)
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
        count = self->facts.engine.encode(tool->encoder, tool->table->words, joined->bytes, NULL, -1,
                                          0, joined->length, joined->length, 0, joined->starts,
                                          joined->count, joined->count, starts,
                                          self->facts.part_bytes, ids, &stopped);
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
PyObject *coder_encode_batch(PyObject *object, PyObject *args)
{
    Coder *self = (Coder *)object;
    int as_list = 0, any_length = 0;
    Joined joined = {.is_ascii = 1};
    PyObject *texts;
    Tool *tool = NULL;

    if (!PyArg_ParseTuple(args, "O!|pp", &PyList_Type, &texts, &as_list, &any_length))
        return NULL;
    Py_ssize_t count = PyList_Size(texts);
    if (self->facts.pattern == NULL || count == 0)
        return nothing();
    joined.starts = malloc((size_t)count * sizeof *joined.starts);
    if (join(texts, count, any_length ? INT64_MAX : self->facts.most_bytes, &joined) &&
        find_cuts(self, joined.bytes, joined.length, joined.is_ascii))
        tool = take_tool(self);
    PyObject *result = tool ? encode_joined(self, tool, &joined, as_list) : nothing();
    if (tool)
        put_back(self, tool);
    free(joined.bytes);
    free(joined.starts);
    return result;
}
