/* Coders, and encoding by them: single texts, and batches. */
#include "calls.h"

static long forks; /* number of forks between the process that loaded the module and this one */

void count_fork(void)
{
    forks++;
}

static void free_words(PyObject *table)
{
    const Engine *engine = PyCapsule_GetContext(table);

    engine->words_free(PyCapsule_GetPointer(table, NULL));
}

/* Make a new table of words if there is none that can be used; return whether there is a table. A
 * forked process can't use the table of its parent, which another thread may have been changing.
 *
 * old: receives the reference of a replaced table. Dropping a reference may wait for other threads,
 *     so callers drop it without the lock. */
static int renew_table(Coder *self, PyObject **old)
{
    Engine *engine = &self->facts.engine;

    if (self->table && self->forks == forks && !engine->words_spent(self->words))
        return 1;
    void *words = engine->words_new(self->facts.table_bytes);
    PyObject *table = words ? PyCapsule_New(words, NULL, free_words) : NULL;
    if (table == NULL) {
        engine->words_free(words);
        return 0;
    }
    PyCapsule_SetContext(table, engine);
    *old = self->table;
    self->table = table;
    self->words = words;
    self->forks = forks;
    return 1;
}

/* Return a tool with an encoder; NULL without memory. */
static Tool *new_tool(const Facts *facts)
{
    Tool *tool = malloc(sizeof *tool);

    if (tool) {
        tool->next = NULL;
        tool->encoder = facts->engine.encoder_new(facts->pattern, facts->vocabulary, facts->threads);
    }
    if (tool && tool->encoder)
        return tool;
    free(tool);
    return NULL;
}

/* Return a tool for encoding until `put_back`; NULL without memory. */
static Tool *take_tool(Coder *self)
{
    PyObject *old = NULL;
    Tool *tool = NULL;

    LOCK(self);
    if (renew_table(self, &old))
        tool = self->idle ? self->idle : new_tool(&self->facts);
    if (tool) {
        self->idle = tool->next;
        tool->table = Py_NewRef(self->table);
        tool->words = self->words;
    }
    UNLOCK(self);
    Py_XDECREF(old);
    return tool;
}

static void put_back(Coder *self, Tool *tool)
{
    PyObject *table = tool->table;

    LOCK(self);
    tool->next = self->idle;
    self->idle = tool;
    UNLOCK(self);
    Py_DECREF(table);
}

void coder_dealloc(PyObject *object)
{
    Coder *self = (Coder *)object;
    PyTypeObject *type = Py_TYPE(object);

    for (Tool *tool = self->idle, *next; tool; tool = next) {
        next = tool->next;
        self->facts.engine.encoder_free(tool->encoder);
        free(tool);
    }
    Py_XDECREF(self->table);
    for (int64_t id = 0; self->ready && id < self->facts.size; id++)
        Py_XDECREF(self->ready[id]);
    free(self->ready);
    pthread_mutex_destroy(&self->lock);
    Py_XDECREF(self->owners);
    PyObject_Free(object);
    Py_DECREF(type);
}

/* Coder(facts, find_cuts, special, owners); facts: bytes with the content of `Facts`. */
PyObject *coder_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    PyObject *find_cuts, *special, *owners;
    const char *facts;
    Py_ssize_t length;

    (void)named;
    if (!PyArg_ParseTuple(args, "y#OO!O", &facts, &length, &find_cuts, &PyDict_Type, &special,
                          &owners))
        return NULL;
    if (length != sizeof(Facts))
        return PyErr_Format(PyExc_ValueError, "%zd bytes are not the facts of a coder", length);
    Coder *self = (Coder *)PyType_GenericAlloc(type, 0);
    if (self == NULL)
        return NULL;
    memcpy(&self->facts, facts, sizeof self->facts);
    self->find_cuts = find_cuts;
    self->special = special;
    self->owners = Py_NewRef(args);
    pthread_mutex_init(&self->lock, NULL);
    return (PyObject *)self;
}

/* ---- Results ---- */

static PyObject *array_of(const Coder *self, const uint32_t *ids, Py_ssize_t count)
{
    PyObject *array = new_array(self, 1, &count, self->facts.id_number, NULL);

    if (array && count)
        memcpy(data_of(array), ids, (size_t)count * sizeof *ids);
    return array;
}

static PyObject *list_of(Coder *self, const uint32_t *ids, int64_t count)
{
    PyObject *list = PyList_New(count), **items = list ? items_of(list) : NULL;

#ifndef Py_GIL_DISABLED /* without the lock, counting references of shared objects is slow */
    if (self->ready == NULL)
        self->ready = calloc((size_t)self->facts.size, sizeof *self->ready);
#endif
    PyObject **all = self->ready;
    for (int64_t k = 0; list && k < count; k++) {
        PyObject **ready = all ? all + ids[k] : items + k;
        if (*ready == NULL && (*ready = PyLong_FromUnsignedLong(ids[k])) == NULL)
            Py_CLEAR(list);
        else if (all)
            items[k] = Py_NewRef(*ready);
    }
    return list;
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

/* Return the ids of each text of a batch: lists, or views of one array.
 *
 * starts: where the ids of each text start, and where the last ones end. */
static PyObject *rows_of(Coder *self, const uint32_t *ids, const int64_t *starts, int64_t count,
                         enum result kind)
{
    PyObject *whole = kind == LIST ? NULL : array_of(self, ids, starts[count]);
    PyObject *rows = kind == LIST || whole ? PyList_New(count) : NULL;

    for (int64_t k = 0; rows && k < count; k++) {
        Py_ssize_t length = starts[k + 1] - starts[k];
        PyObject *row = whole ? view_of(self, whole, (uint32_t *)data_of(whole) + starts[k], length)
                              : list_of(self, ids + starts[k], length);
        if (row == NULL || PyList_SetItem(rows, k, row) != 0)
            Py_CLEAR(rows);
    }
    Py_XDECREF(whole);
    return rows;
}

/* ---- Single texts ---- */

/* Call find_cuts once, before the first text for which cutting words saves time; return 0 after an
 * error. */
static int find_cuts(Coder *self, const Taken *text)
{
    int leads = 0; /* bytes of a sample that begin a character beyond ASCII */

    if (text->is_ascii || text->length < LONG_BYTES || self->find_cuts == NULL)
        return 1;
    for (int k = 0; k < SAMPLE; k++)
        leads += text->bytes[k] >= FIRST_LEAD;
    if (leads * LEAST_SHARE < SAMPLE)
        return 1;
    PyObject *function = __atomic_exchange_n(&self->find_cuts, NULL, __ATOMIC_ACQ_REL);
    PyObject *done = function ? PyObject_CallFunctionObjArgs(function, NULL) : nothing();
    Py_XDECREF(done);
    return done != NULL;
}

/* Return the ids of a text, or of the joined texts of a batch; None without memory: Python's code
 * runs out of it again, and raises the error.
 *
 * starts: where each of `count` texts of a batch starts, then room for `count` + 1 numbers; NULL for
 *     a text that is no batch. */
static PyObject *encode_taken(Coder *self, const Taken *text, int64_t *starts, int64_t count,
                              enum result kind)
{
    const Facts *facts = &self->facts;
    Tool *tool = find_cuts(self, text) ? take_tool(self) : NULL;
    uint32_t *ids = tool ? tool->ids : NULL, *more = NULL;
    int64_t found = -1, stopped;
    PyObject *result;

    if (tool && text->length > KEPT_BYTES)
        ids = more = malloc(((size_t)text->length + 3) * sizeof *ids);
    if (ids) {
        PyThreadState *saved = text->length > FEW_BYTES ? PyEval_SaveThread() : NULL;
        if (starts)
            found = facts->engine.encode(tool->encoder, tool->words, text->bytes, NULL, -1, 0,
                                         text->length, text->length, 0, starts, count, count,
                                         starts + count, facts->part_bytes, ids, &stopped);
        else
            found = facts->engine.encode_document(tool->encoder, tool->words, text->bytes,
                                                  text->length, facts->part_bytes, ids);
        if (saved)
            PyEval_RestoreThread(saved);
    }
    if (found < 0) {
        result = nothing();
    } else if (starts) {
        starts[2 * count] = found;
        result = rows_of(self, ids, starts + count, count, kind);
    } else if (kind == COUNT) {
        result = PyLong_FromLongLong(found);
    } else {
        result = kind == LIST ? list_of(self, ids, found) : array_of(self, ids, found);
    }
    free(more);
    if (tool)
        put_back(self, tool);
    return result;
}

PyObject *encode(Coder *self, PyObject *given, enum result kind, int any_length)
{
    Taken text;

    if (self->facts.pattern == NULL || !take_text(given, &text))
        return nothing();
    int fits = any_length || text.length <= self->facts.most_bytes;
    PyObject *result = fits ? encode_taken(self, &text, NULL, 0, kind) : nothing();
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

/* Append a text to the joined texts, which padding follows; return 0 without memory. room: the bytes
 * of memory allocated for the joined texts. */
static int append(Taken *joined, int64_t *room, const Taken *text)
{
    int64_t needed = joined->length + text->length + TEXT_PADDING;
    uint8_t *bytes = (uint8_t *)joined->bytes;

    if (needed > *room) {
        bytes = realloc(bytes, (size_t)(needed + needed / 2));
        if (bytes == NULL)
            return 0;
        *room = needed + needed / 2;
        joined->bytes = bytes;
    }
    memcpy(bytes + joined->length, text->bytes, (size_t)text->length);
    joined->length += text->length;
    joined->is_ascii &= text->is_ascii;
    memset(bytes + joined->length, 0, TEXT_PADDING);
    return 1;
}

/* Join the texts of a list; return 0 if Python's code has to encode them, or after an error. */
static int join(PyObject *texts, Py_ssize_t count, int64_t most_bytes, Taken *joined, int64_t *starts)
{
    int fits = starts != NULL;
    int64_t room = 0;

    for (Py_ssize_t k = 0; fits && k < count; k++) {
        PyObject *item = PySequence_GetItem(texts, k);
        Taken text = {0};
        starts[k] = joined->length;
        fits = item && take_text(item, &text) && joined->length + text.length <= most_bytes &&
               append(joined, &room, &text);
        Py_XDECREF(text.owner);
        Py_XDECREF(item);
    }
    return fits;
}

/* encode_batch(texts, as_list=False, any_length=False); texts: a list. */
PyObject *coder_encode_batch(PyObject *object, PyObject *args)
{
    Coder *self = (Coder *)object;
    int as_list = 0, any_length = 0;
    Taken joined = {.is_ascii = 1};
    PyObject *texts;

    if (!PyArg_ParseTuple(args, "O!|pp", &PyList_Type, &texts, &as_list, &any_length))
        return NULL;
    Py_ssize_t count = PyList_Size(texts);
    if (self->facts.pattern == NULL || count == 0)
        return nothing();
    int64_t *starts = malloc((2 * (size_t)count + 1) * sizeof *starts);
    int fits = join(texts, count, any_length ? INT64_MAX : self->facts.most_bytes, &joined, starts);
    enum result kind = as_list ? LIST : ARRAY;
    PyObject *result = fits ? encode_taken(self, &joined, starts, count, kind) : nothing();
    free((void *)joined.bytes);
    free(starts);
    return result;
}
