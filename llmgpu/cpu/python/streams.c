/* Decoding ids that arrive one by one to pieces of text. */
#include "calls.h"

PyTypeObject *stream_type;

/* An iterator over the texts of ids. rest: the bytes of an incomplete character. spell: a function
 * for ids that are not known here. */
typedef struct {
    PyObject_HEAD
    PyObject *coder, *source, *ids, *errors, *spell;
    uint8_t rest[8];
    Py_ssize_t rest_length;
    int is_busy;
} Stream;

static int stream_clear(PyObject *object)
{
    Stream *self = (Stream *)object;

    Py_CLEAR(self->coder);
    Py_CLEAR(self->source);
    Py_CLEAR(self->ids);
    Py_CLEAR(self->errors);
    Py_CLEAR(self->spell);
    return 0;
}

static int stream_traverse(PyObject *object, visitproc visit, void *arg)
{
    Stream *self = (Stream *)object;

    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->coder);
    Py_VISIT(self->source);
    Py_VISIT(self->ids);
    Py_VISIT(self->errors);
    Py_VISIT(self->spell);
    return 0;
}

static void stream_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);

    PyObject_GC_UnTrack(object);
    stream_clear(object);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

/* Return the text of the kept bytes and the next ones. Keep an incomplete character for the next
 * call, unless these bytes are the last. */
static PyObject *feed(Stream *self, const uint8_t *bytes, Py_ssize_t length, int is_last)
{
    const char *errors = PyUnicode_AsUTF8AndSize(self->errors, NULL);
    Py_ssize_t total = self->rest_length + length, used = total;
    uint8_t *joined = NULL;
    PyObject *text;

    if (errors == NULL)
        return NULL;
    if (self->rest_length) {
        joined = malloc((size_t)total);
        if (joined == NULL)
            return PyErr_NoMemory();
        memcpy(joined, self->rest, (size_t)self->rest_length);
        memcpy(joined + self->rest_length, bytes, (size_t)length);
        bytes = joined;
    }
    if (is_last)
        text = PyUnicode_DecodeUTF8((const char *)bytes, total, errors);
    else
        text = PyUnicode_DecodeUTF8Stateful((const char *)bytes, total, errors, &used);
    if (text) {
        /* An error handler may have replaced these bytes. */
        self->rest_length = used < total ? total - used : 0;
        if (self->rest_length > (Py_ssize_t)sizeof self->rest) {
            self->rest_length = 0;
            Py_CLEAR(text);
            PyErr_Format(PyExc_ValueError, "error handler %s leaves too many bytes", errors);
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
    Coder *coder = (Coder *)self->coder;
    long long number = PyLong_CheckExact(id) ? PyLong_AsLongLong(id) : -1;

    if (number >= 0 && number < coder->size && coder->offsets[number + 1] > coder->offsets[number])
        return feed(self, coder->data + coder->offsets[number],
                    (Py_ssize_t)(coder->offsets[number + 1] - coder->offsets[number]), 0);
    PyErr_Clear();
    PyObject *bytes = PyObject_CallFunctionObjArgs(self->spell, id, NULL);
    if (bytes == NULL)
        return NULL;
    const char *first = PyBytes_AsString(bytes);
    PyObject *text = first ? feed(self, (const uint8_t *)first, PyBytes_Size(bytes), 0) : NULL;
    Py_DECREF(bytes);
    return text;
}

static PyObject *stream_next(PyObject *object)
{
    Stream *self = (Stream *)object;
    PyObject *text = NULL, *id;

    if (self->source == NULL)
        return NULL;
    if (__atomic_exchange_n(&self->is_busy, 1, __ATOMIC_ACQUIRE))
        return PyErr_Format(PyExc_ValueError, "the stream is in use already");
    if (self->ids == NULL)
        self->ids = PyObject_GetIter(self->source);
    id = self->ids ? PyIter_Next(self->ids) : NULL;
    if (id) {
        text = next_text(self, id);
        Py_DECREF(id);
    } else if (!PyErr_Occurred() && self->rest_length) {
        text = feed(self, self->rest + self->rest_length, 0, 1);
        if (text && PyUnicode_GetLength(text) == 0)
            Py_CLEAR(text);
    }
    if (id == NULL || text == NULL) { /* that was the last text */
        Py_CLEAR(self->source);
        Py_CLEAR(self->ids);
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
    if (count != 3)
        return PyErr_Format(PyExc_TypeError, "stream takes ids, an error handler and a function");
    Stream *self = (Stream *)((allocfunc)PyType_GetSlot(stream_type, Py_tp_alloc))(stream_type, 0);
    if (self == NULL)
        return NULL;
    PyObject **places[] = {&self->source, &self->errors, &self->spell};
    for (int k = 0; k < 3; k++) {
        Py_INCREF(args[k]);
        *places[k] = args[k];
    }
    Py_INCREF(coder);
    self->coder = coder;
    return (PyObject *)self;
}
