/* Decoding ids that arrive one by one to pieces of text. */
#include "calls.h"

PyTypeObject *stream_type;

/* The objects of a stream; the first are the arguments of `stream`. IDS: the iterator over the source,
 * made when the first text is asked for. SPELL: a function for ids that are not known here. */
enum { SOURCE, ERRORS, SPELL, GIVEN, CODER = GIVEN, IDS, OBJECTS };

/* An iterator over the texts of ids. rest: the bytes of an incomplete character. */
typedef struct {
    PyObject_HEAD
    PyObject *objects[OBJECTS];
    const Facts *facts;
    const char *errors; /* the name of the error handler */
    uint8_t rest[8];
    Py_ssize_t rest_length;
    int is_busy;
} Stream;

static int stream_clear(PyObject *object)
{
    for (int k = 0; k < OBJECTS; k++)
        Py_CLEAR(((Stream *)object)->objects[k]);
    return 0;
}

static int stream_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    for (int k = 0; k < OBJECTS; k++)
        Py_VISIT(((Stream *)object)->objects[k]);
    return 0;
}

static void stream_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);

    PyObject_GC_UnTrack(object);
    stream_clear(object);
    PyObject_GC_Del(object);
    Py_DECREF(type);
}

/* Return the text of the kept bytes and the next ones. Keep an incomplete character for the next
 * call. */
static PyObject *feed(Stream *self, const uint8_t *bytes, Py_ssize_t length)
{
    Py_ssize_t total = self->rest_length + length, used;
    uint8_t *joined = NULL;

    if (self->rest_length) {
        joined = malloc((size_t)total);
        if (joined == NULL)
            return PyErr_NoMemory();
        memcpy(joined, self->rest, (size_t)self->rest_length);
        memcpy(joined + self->rest_length, bytes, (size_t)length);
        bytes = joined;
    }
    PyObject *text = PyUnicode_DecodeUTF8Stateful((const char *)bytes, total, self->errors, &used);
    if (text) {
        /* An error handler may have replaced these bytes. */
        self->rest_length = used < total ? total - used : 0;
        if (self->rest_length > (Py_ssize_t)sizeof self->rest) {
            Py_CLEAR(text);
            PyErr_Format(PyExc_ValueError, "error handler %s leaves too many bytes", self->errors);
        } else if (self->rest_length) {
            memcpy(self->rest, bytes + used, (size_t)self->rest_length);
        }
    }
    free(joined);
    return text;
}

/* Return the text of an id, "" while a character is incomplete. */
static PyObject *next_text(Stream *self, PyObject *id)
{
    const int64_t *offsets = self->facts->offsets;
    int overflow;
    long long number = PyLong_CheckExact(id) ? PyLong_AsLongLongAndOverflow(id, &overflow) : -1;

    if (number >= 0 && number < self->facts->size && offsets[number + 1] > offsets[number])
        return feed(self, self->facts->data + offsets[number],
                    (Py_ssize_t)(offsets[number + 1] - offsets[number]));
    PyObject *bytes = PyObject_CallFunctionObjArgs(self->objects[SPELL], id, NULL);
    const char *first = bytes ? PyBytes_AsString(bytes) : NULL;
    PyObject *text = first ? feed(self, (const uint8_t *)first, PyBytes_Size(bytes)) : NULL;
    Py_XDECREF(bytes);
    return text;
}

static PyObject *stream_next(PyObject *object)
{
    Stream *self = (Stream *)object;
    PyObject *text = NULL, *id;

    if (self->objects[SOURCE] == NULL)
        return NULL;
    if (__atomic_exchange_n(&self->is_busy, 1, __ATOMIC_ACQUIRE))
        return PyErr_Format(PyExc_ValueError, "the stream is in use already");
    if (self->objects[IDS] == NULL)
        self->objects[IDS] = PyObject_GetIter(self->objects[SOURCE]);
    id = self->objects[IDS] ? PyIter_Next(self->objects[IDS]) : NULL;
    if (id) {
        text = next_text(self, id);
        Py_DECREF(id);
    } else if (!PyErr_Occurred() && self->rest_length) {
        text = PyUnicode_DecodeUTF8((const char *)self->rest, self->rest_length, self->errors);
        if (text && PyUnicode_GetLength(text) == 0)
            Py_CLEAR(text);
    }
    if (id == NULL || text == NULL) { /* that was the last text */
        Py_CLEAR(self->objects[SOURCE]);
        Py_CLEAR(self->objects[IDS]);
    }
    __atomic_store_n(&self->is_busy, 0, __ATOMIC_RELEASE);
    return text;
}

static PyType_Slot stream_slots[] = {{Py_tp_dealloc, stream_dealloc},
                                     {Py_tp_traverse, stream_traverse},
                                     {Py_tp_clear, stream_clear},
                                     {Py_tp_iter, PyObject_SelfIter},
                                     {Py_tp_iternext, stream_next},
                                     {0, NULL}};
PyType_Spec stream_spec = {"llmgpu.cpu.calls.Stream", sizeof(Stream), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, stream_slots};

/* stream(ids, errors, spell): return an iterator over the texts of ids. */
PyObject *coder_stream(PyObject *coder, PyObject *const *args, Py_ssize_t count)
{
    const char *errors = count == GIVEN ? handler(args[ERRORS]) : NULL;

    if (errors == NULL)
        return PyErr_Format(PyExc_TypeError, "stream takes ids, an error handler and a function");
    Stream *self = (Stream *)PyType_GenericAlloc(stream_type, 0);
    if (self == NULL)
        return NULL;
    for (int k = 0; k < GIVEN; k++)
        self->objects[k] = Py_NewRef(args[k]);
    self->objects[CODER] = Py_NewRef(coder);
    self->facts = &((Coder *)coder)->facts;
    self->errors = errors;
    return (PyObject *)self;
}
