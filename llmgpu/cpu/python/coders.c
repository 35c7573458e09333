/* Coders: a vocabulary with the encoders and tables of words that calls use. */
#include "calls.h"

long forks;

static void drop_table(const Coder *self, Table *table)
{
    if (table)
        self->engine.words_free(table->words);
    free(table);
}

/* Make a new table of words if there is none that can be used; return whether there is a table. A
 * forked process can't use the table of its parent, which another thread may have been changing. */
static int renew_table(Coder *self)
{
    Table *old = self->table, *made;

    if (old && self->forks == forks && !self->engine.words_spent(old->words))
        return 1;
    made = calloc(1, sizeof *made);
    if (made)
        made->words = self->engine.words_new(self->table_bytes);
    if (made == NULL || made->words == NULL) {
        free(made);
        return 0;
    }
    if (old && (old->users == 0 || self->forks != forks))
        drop_table(self, old);
    self->table = made;
    self->forks = forks;
    return 1;
}

static void free_tool(const Coder *self, Tool *tool)
{
    if (tool->encoder)
        self->engine.encoder_free(tool->encoder);
    free(tool->ids);
    free(tool);
}

Tool *take_tool(Coder *self)
{
    Tool *tool = NULL;
    Table *table = NULL;

    LOCK(self);
    if (renew_table(self)) {
        table = self->table;
        table->users++;
        tool = self->idle;
        if (tool)
            self->idle = tool->next;
    }
    UNLOCK(self);
    if (table && tool == NULL)
        tool = calloc(1, sizeof *tool);
    if (tool == NULL) {
        LOCK(self);
        if (table)
            table->users--;
        UNLOCK(self);
        return NULL;
    }
    tool->table = table;
    if (tool->encoder == NULL)
        tool->encoder = self->engine.encoder_new(self->pattern, self->vocabulary, self->threads);
    if (tool->encoder)
        return tool;
    put_back(self, tool); /* the next call may have the memory for an encoder */
    return NULL;
}

uint32_t *room_for(Tool *tool, int64_t count)
{
    if (count > tool->room) {
        free(tool->ids);
        tool->ids = malloc((size_t)count * sizeof *tool->ids);
        tool->room = tool->ids ? count : 0;
    }
    return tool->ids;
}

void put_back(Coder *self, Tool *tool)
{
    Table *table = tool->table;

    if (tool->room > KEPT_BYTES + 3) {
        free(tool->ids);
        tool->ids = NULL;
        tool->room = 0;
    }
    LOCK(self);
    if (--table->users == 0 && table != self->table)
        drop_table(self, table);
    tool->next = self->idle;
    self->idle = tool;
    UNLOCK(self);
}

void coder_dealloc(PyObject *object)
{
    Coder *self = (Coder *)object;
    PyTypeObject *type = Py_TYPE(object);

    for (Tool *tool = self->idle, *next; tool; tool = next) {
        next = tool->next;
        free_tool(self, tool);
    }
    drop_table(self, self->table);
    for (int64_t id = 0; self->ready && id < self->size; id++)
        Py_XDECREF(self->ready[id]);
    free(self->ready);
    pthread_mutex_destroy(&self->lock);
    Py_XDECREF(self->owners);
    Py_XDECREF(self->find_cuts);
    Py_XDECREF(self->special);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

/* Coder(data, offsets, spans, size, capsule of NumPy's table, NumPy's numbers of uint32 and int64,
 * owners of the memory): return a coder that decodes. */
PyObject *coder_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    unsigned long long data, offsets, spans;
    PyObject *capsule, *owners;
    int id_number, span_number;
    long long size;

    (void)named;
    if (!PyArg_ParseTuple(args, "KKKLOiiO", &data, &offsets, &spans, &size, &capsule, &id_number,
                          &span_number, &owners))
        return NULL;
    void *numpy = PyCapsule_GetPointer(capsule, NULL);
    Coder *self = numpy ? (Coder *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0) : NULL;
    if (self == NULL)
        return NULL;
    self->data = (void *)(uintptr_t)data;
    self->offsets = (void *)(uintptr_t)offsets;
    self->spans = (void *)(uintptr_t)spans;
    self->size = size;
    self->numpy = numpy;
    self->id_number = id_number;
    self->span_number = span_number;
    self->owners = Py_BuildValue("[O]", owners);
    pthread_mutex_init(&self->lock, NULL);
    if (self->owners == NULL)
        Py_CLEAR(self);
    return (PyObject *)self;
}

/* prepare(functions, pattern, vocabulary, threads, table_bytes, part_bytes, most_bytes, find_cuts,
 * special, owners): let the coder encode, too; without a pattern only `find` works. Further calls
 * have no effect.
 *
 * functions: bytes with the content of `Engine`. */
PyObject *coder_prepare(PyObject *object, PyObject *args)
{
    unsigned long long pattern, vocabulary;
    long long threads, table_bytes, part_bytes, most_bytes;
    PyObject *find_cuts, *special, *owners;
    Coder *self = (Coder *)object;
    Py_ssize_t given;
    const char *functions;

    if (!PyArg_ParseTuple(args, "y#KKLLLLOO!O", &functions, &given, &pattern, &vocabulary, &threads,
                          &table_bytes, &part_bytes, &most_bytes, &find_cuts, &PyDict_Type, &special,
                          &owners))
        return NULL;
    if (given != sizeof self->engine)
        return PyErr_Format(PyExc_ValueError, "%zd bytes are not the engine's functions", given);
    LOCK(self);
    int is_first = self->vocabulary == NULL;
    if (is_first) {
        memcpy(&self->engine, functions, sizeof self->engine);
        self->threads = threads;
        self->table_bytes = table_bytes;
        self->part_bytes = part_bytes;
        self->most_bytes = most_bytes;
        Py_INCREF(find_cuts);
        self->find_cuts = find_cuts;
        Py_INCREF(special);
        self->special = special;
        self->vocabulary = (void *)(uintptr_t)vocabulary;
        __atomic_store_n(&self->pattern, (void *)(uintptr_t)pattern, __ATOMIC_RELEASE);
    }
    UNLOCK(self);
    if (is_first && PyList_Append(self->owners, owners) != 0)
        return NULL;
    return nothing();
}
