/* Coders: a vocabulary with the encoders and tables of words that calls use. */
#include "calls.h"

static long forks; /* number of forks between the process that loaded the module and this one */

void count_fork(void)
{
    forks++;
}

/* Count one user of a table less, and free the table after the last one. */
static void leave_table(const Coder *self, Table *table)
{
    if (table == NULL || --table->users > 0)
        return;
    self->facts.engine.words_free(table->words);
    free(table);
}

/* Make a new table of words if there is none that can be used; return whether there is a table. A
 * forked process can't use the table of its parent, which another thread may have been changing. */
static int renew_table(Coder *self)
{
    const Engine *engine = &self->facts.engine;
    Table *old = self->table;

    if (old && self->forks == forks && !engine->words_spent(old->words))
        return 1;
    Table *made = calloc(1, sizeof *made);
    if (made)
        made->words = engine->words_new(self->facts.table_bytes);
    if (made == NULL || made->words == NULL) {
        free(made);
        return 0;
    }
    leave_table(self, old);
    made->users = 1;
    self->table = made;
    self->forks = forks;
    return 1;
}

/* Return a tool with an encoder; NULL without memory. */
static Tool *new_tool(const Facts *facts)
{
    Tool *tool = calloc(1, sizeof *tool);

    if (tool)
        tool->encoder = facts->engine.encoder_new(facts->pattern, facts->vocabulary, facts->threads);
    if (tool && tool->encoder)
        return tool;
    free(tool);
    return NULL;
}

Tool *take_tool(Coder *self)
{
    Tool *tool = NULL;

    LOCK(self);
    if (renew_table(self))
        tool = self->idle ? self->idle : new_tool(&self->facts);
    if (tool) {
        self->idle = tool->next;
        tool->table = self->table;
        tool->table->users++;
    }
    UNLOCK(self);
    return tool;
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
    if (tool->room > KEPT_BYTES + 3) {
        free(tool->ids);
        tool->ids = NULL;
        tool->room = 0;
    }
    LOCK(self);
    leave_table(self, tool->table);
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
        self->facts.engine.encoder_free(tool->encoder);
        free(tool->ids);
        free(tool);
    }
    leave_table(self, self->table);
    for (int64_t id = 0; self->ready && id < self->facts.size; id++)
        Py_XDECREF(self->ready[id]);
    free(self->ready);
    pthread_mutex_destroy(&self->lock);
    Py_XDECREF(self->owners);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
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
    Coder *self = (Coder *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self == NULL)
        return NULL;
    memcpy(&self->facts, facts, sizeof self->facts);
    self->find_cuts = find_cuts;
    self->special = special;
    self->owners = Py_BuildValue("OOO", find_cuts, special, owners);
    pthread_mutex_init(&self->lock, NULL);
    if (self->owners == NULL)
        Py_CLEAR(self);
    return (PyObject *)self;
}
