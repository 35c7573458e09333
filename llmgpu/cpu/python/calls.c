/* The extension module: single calls from Python that encode or decode a text on the CPU engine.
 *
 * - The engine is the library that ctypes has loaded: Python passes the addresses of its functions
 *   and objects. So calls through ctypes and calls through this module run the same code, and this
 *   module has only the code that needs CPython's API.
 * - A function handles the usual case. In any other case it returns None, and Python's code does
 *   the work or raises the error.
 * - CPython's lock is released for longer texts. Data that threads share is changed with this lock
 *   held, or, in a CPython without the lock, with the lock of a `Coder` held. Each call has a
 *   `Tool` of its own.
 * - NumPy's C functions make arrays. They are taken from NumPy's table by number. The numbers are
 *   fixed within a version of NumPy's interface, which Python's code compares.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_PADDING 16  /* as in engine.h */
#define FEW_BYTES 2048   /* bytes of text, or ids, for which releasing the lock does not pay off */
#define CACHED_CHARS (1 << 14) /* the most characters of a str that may keep its UTF-8: 64 KiB */
#define KEPT_BYTES (1 << 18) /* bytes of text; memory for the ids of longer texts is not kept */
#define LONG_BYTES (1 << 17) /* LONG_TEXT of encoder_c.py; the next three are from there, too */
#define SAMPLE (1 << 16)
#define LEAST_SHARE 32
#define FIRST_LEAD 0xC0
#define FEW_IDS 64       /* the most ids that are decoded without memory of the heap */
#define TOKEN_BYTES 256  /* the most bytes that are looked up without memory of the heap */

#ifdef Py_GIL_DISABLED
#define LOCK(coder) pthread_mutex_lock(&(coder)->lock)
#define UNLOCK(coder) pthread_mutex_unlock(&(coder)->lock)
#else
#define LOCK(coder) (void)(coder)
#define UNLOCK(coder) (void)(coder)
#endif

/* ---- The engine's and NumPy's functions ---- */

/* The engine's functions, in the order of FUNCTIONS in extension.py; see engine.h. */
typedef struct {
    int64_t (*encode_document)(void *encoder, void *words, const uint8_t *text, int64_t length,
                               int64_t part_bytes, uint32_t *ids);
    int64_t (*encode)(void *encoder, void *words, const uint8_t *text, const uint8_t *marks,
                      int descriptor, int64_t offset, int64_t length, int64_t main_end,
                      int64_t entry, const int64_t *starts, int64_t num_starts, int64_t own_starts,
                      int64_t *token_starts, int64_t part_bytes, uint32_t *ids, int64_t *stopped);
    void *(*encoder_new)(const void *pattern, const void *vocabulary, int64_t threads);
    void (*encoder_free)(void *encoder);
    void *(*words_new)(int64_t most_bytes);
    void (*words_free)(void *words);
    int (*words_spent)(const void *words);
    uint32_t (*find_token)(const void *vocabulary, const uint8_t *text, int64_t length);
} Engine;

#define NDARRAY_TYPE 2 /* this and the next two are numbers in NumPy's table */
#define NEW_ARRAY 93
#define SET_BASE 282
#define ARRAY_FLAGS 0x501 /* C order, aligned, writeable */

typedef PyObject *(*NewArray)(void *type, int dimensions, const Py_ssize_t *shape, int number,
                              const Py_ssize_t *strides, void *data, int item_bytes, int flags,
                              PyObject *owner);
typedef int (*SetBase)(PyObject *array, PyObject *base);

/* ---- Coders ---- */

/* A table of words with ids, and the number of calls that use it. */
typedef struct {
    void *words;
    int64_t users;
} Table;

/* An encoder with its buffers, for one call at a time. next: the next tool in the list of idle
 * tools. */
typedef struct Tool {
    void *encoder;
    uint32_t *ids; /* room for the ids of a text of up to KEPT_BYTES */
    int64_t room;
    Table *table;
    struct Tool *next;
} Tool;

/* An object that encodes and decodes by one vocabulary.
 *
 * pattern, vocabulary: NULL before `prepare`; pattern stays NULL if texts can't be encoded here.
 * most_bytes: the most bytes of a text that is encoded unless the caller sets any_length.
 * find_cuts: called before the first long text with many characters beyond ASCII; NULL after that.
 * data, offsets: the tokens, with padding. spans: bytes of text that each token stands for.
 * special: ids of special tokens by text.
 * forks: the value of `forks` when the words were made. ready: int objects of ids, made when
 * needed. */
typedef struct {
    PyObject_HEAD
    Engine engine;
    const void *pattern, *vocabulary;
    int64_t table_bytes, part_bytes, threads, most_bytes, size;
    const uint8_t *data;
    const int64_t *offsets, *spans;
    void *const *numpy;
    int id_number, span_number; /* NumPy's numbers of uint32 and int64 */
    PyObject *owners, *find_cuts, *special;
    int usual; /* the result of encode(text), see `enum result` */
    pthread_mutex_t lock;
    Table *table;
    Tool *idle;
    long forks;
    PyObject **ready;
} Coder;

static long forks; /* number of forks between the process that loaded the module and this one */
static PyObject *ascii_method; /* the name of the method */
static PyTypeObject *stream_type;

static PyObject *nothing(void)
{
    Py_INCREF(Py_None);
    return Py_None;
}

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

/* Return a tool for encoding until `put_back`; NULL without memory. */
static Tool *take_tool(Coder *self)
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
    if (table && tool == NULL && (tool = calloc(1, sizeof *tool)) != NULL) {
        tool->encoder = self->engine.encoder_new(self->pattern, self->vocabulary, self->threads);
        if (tool->encoder == NULL) {
            free_tool(self, tool);
            tool = NULL;
        }
    }
    if (tool)
        tool->table = table;
    else if (table) {
        LOCK(self);
        table->users--;
        UNLOCK(self);
    }
    return tool;
}

/* Return room for `count` ids, whose memory `put_back` may keep; NULL without memory. */
static uint32_t *room_for(Tool *tool, int64_t count)
{
    if (count > tool->room) {
        free(tool->ids);
        tool->ids = malloc((size_t)count * sizeof *tool->ids);
        tool->room = tool->ids ? count : 0;
    }
    return tool->ids;
}

static void put_back(Coder *self, Tool *tool)
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

static void coder_dealloc(PyObject *object)
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
static PyObject *coder_new(PyTypeObject *type, PyObject *args, PyObject *named)
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
static PyObject *coder_prepare(PyObject *object, PyObject *args)
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

/* ---- Texts ---- */

/* A text in UTF-8, or any bytes. owner: owns the memory if the argument does not. */
typedef struct {
    const uint8_t *bytes;
    Py_ssize_t length;
    PyObject *owner;
} Taken;

/* Return a str in UTF-8. A surrogate pair becomes its character, any other surrogate U+FFFD. */
static PyObject *mended(PyObject *text)
{
    PyObject *units = PyUnicode_AsEncodedString(text, "utf-16", "surrogatepass"), *whole;

    if (units == NULL)
        return NULL;
    whole = PyUnicode_Decode(PyBytes_AsString(units), PyBytes_Size(units), "utf-16", "replace");
    Py_DECREF(units);
    if (whole == NULL)
        return NULL;
    PyObject *bytes = PyUnicode_AsUTF8String(whole);
    Py_DECREF(whole);
    return bytes;
}

static int is_ascii(PyObject *text)
{
    PyObject *answer = PyObject_CallMethodObjArgs(text, ascii_method, NULL);

    if (answer == NULL)
        PyErr_Clear();
    Py_XDECREF(answer);
    return answer == Py_True;
}

/* Get the bytes of a text; return 1, 0 if it is neither str nor bytes, -1 after an error.
 *
 * A str of ASCII contains its UTF-8. Any other str keeps the UTF-8 that it is asked for, so that a
 * copy is made of a long str. */
static int take_text(PyObject *text, Taken *taken)
{
    taken->owner = NULL;
    if (PyUnicode_Check(text)) {
        if (PyUnicode_GetLength(text) <= CACHED_CHARS || is_ascii(text)) {
            taken->bytes = (const uint8_t *)PyUnicode_AsUTF8AndSize(text, &taken->length);
            if (taken->bytes)
                return 1;
        } else {
            taken->owner = PyUnicode_AsUTF8String(text);
        }
        if (taken->owner == NULL) {
            if (!PyErr_ExceptionMatches(PyExc_UnicodeEncodeError))
                return -1;
            PyErr_Clear();
            taken->owner = mended(text);
            if (taken->owner == NULL)
                return -1;
        }
        text = taken->owner;
    } else if (!PyBytes_Check(text)) {
        return 0;
    }
    taken->bytes = (const uint8_t *)PyBytes_AsString(text);
    taken->length = PyBytes_Size(text);
    return 1;
}

/* ---- Arrays and lists of ids ---- */

static PyObject *new_array(const Coder *self, Py_ssize_t count)
{
    NewArray make = (NewArray)self->numpy[NEW_ARRAY];

    return make(self->numpy[NDARRAY_TYPE], 1, &count, self->id_number, NULL, NULL, 0, 0, NULL);
}

/* Return the data of an array. The pointer is the array's first field. */
static void *data_of(PyObject *array)
{
    void *data;

    memcpy(&data, (char *)array + sizeof(PyObject), sizeof data);
    return data;
}

static PyObject *array_of(const Coder *self, const uint32_t *ids, int64_t count)
{
    PyObject *array = new_array(self, count);

    if (array && count)
        memcpy(data_of(array), ids, (size_t)count * sizeof *ids);
    return array;
}

/* Return the int object of an id. */
static inline PyObject *as_int(Coder *self, uint32_t id)
{
#ifndef Py_GIL_DISABLED /* without the lock, counting references of shared objects is slow */
    if (self->ready && id < self->size) {
        PyObject **ready = self->ready + id;
        if (*ready == NULL && (*ready = PyLong_FromUnsignedLong(id)) == NULL)
            return NULL;
        Py_INCREF(*ready);
        return *ready;
    }
#endif
    return PyLong_FromUnsignedLong(id);
}

static PyObject *list_of(Coder *self, const uint32_t *ids, int64_t count)
{
    PyObject *list = PyList_New(count);

#ifndef Py_GIL_DISABLED
    if (self->ready == NULL)
        self->ready = calloc((size_t)self->size, sizeof *self->ready);
#endif
    for (int64_t k = 0; list && k < count; k++) {
        PyObject *number = as_int(self, ids[k]);
        if (number == NULL || PyList_SetItem(list, k, number) != 0) {
            Py_DECREF(list);
            return NULL;
        }
    }
    return list;
}

/* Shrink an array of ids to its first `count`. */
static PyObject *shortened(PyObject *array, int64_t count)
{
    PyObject *resize = PyObject_GetAttrString(array, "resize");
    PyObject *shape = Py_BuildValue("(L)", (long long)count);
    PyObject *named = Py_BuildValue("{s:i}", "refcheck", 0), *done = NULL;

    if (resize && shape && named)
        done = PyObject_Call(resize, shape, named);
    Py_XDECREF(resize);
    Py_XDECREF(shape);
    Py_XDECREF(named);
    if (done == NULL)
        Py_CLEAR(array);
    Py_XDECREF(done);
    return array;
}

/* ---- Encoding ---- */

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

/* The type of a result. OTHER, NARROW: types that are not made here; NARROW types can't hold all
 * ids. */
enum result { ARRAY, LIST, COUNT, OTHER, NARROW };

static PyObject *result_of(Coder *self, enum result kind, const uint32_t *ids, int64_t count)
{
    if (count < 0)
        return nothing(); /* Python's code runs out of memory again, and raises the error */
    if (kind == COUNT)
        return PyLong_FromLongLong(count);
    return kind == LIST ? list_of(self, ids, count) : array_of(self, ids, count);
}

/* Call find_cuts, once, if places to cut words speed up a text; return -1 after an error. */
static int find_cuts(Coder *self, const uint8_t *text, int64_t length)
{
    int64_t leads = 0;

    if (length < LONG_BYTES || self->find_cuts == NULL)
        return 0;
    for (int64_t k = 0; k < SAMPLE; k++)
        leads += text[k] >= FIRST_LEAD;
    if (leads * LEAST_SHARE < SAMPLE)
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
    int is_direct = kind == ARRAY && text->length > KEPT_BYTES; /* into an array to be shortened */
    PyObject *array = is_direct ? new_array(self, text->length + 3) : NULL;
    uint32_t *ids = is_direct ? NULL : room_for(tool, text->length + 3);

    if (ids)
        return result_of(self, kind, ids, encode_to(self, tool, text, ids));
    if (!is_direct)
        return nothing();
    int64_t count = array ? encode_to(self, tool, text, data_of(array)) : 0;
    if (array && count >= 0)
        return shortened(array, count);
    if (array)
        Py_DECREF(array);
    return array ? nothing() : NULL;
}

/* Return the ids of a text; None if Python's code has to encode it. any_length: see `Coder`. */
static PyObject *encode(Coder *self, PyObject *given, enum result kind, int any_length)
{
    PyObject *result = NULL;
    Taken text;

    if (self->pattern == NULL)
        return nothing();
    int status = take_text(given, &text);
    if (status < 0)
        return NULL;
    if (status == 0 || (text.length > self->most_bytes && !any_length)) {
        if (status)
            Py_XDECREF(text.owner);
        return nothing();
    }
    Tool *tool = find_cuts(self, text.bytes, text.length) == 0 ? take_tool(self) : NULL;
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
static PyObject *coder_encode(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    if (count < 1)
        return PyErr_Format(PyExc_TypeError, "encode takes a text");
    enum result kind = is_true(args, count, 1) ? LIST : ARRAY;
    return encode((Coder *)self, args[0], kind, is_true(args, count, 2));
}

/* returns(dtype, is_narrow): set the type that the method encode(text) of a tokenizer returns. */
static PyObject *coder_returns(PyObject *self, PyObject *const *args, Py_ssize_t count)
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

/* Return consecutive views of an array. */
static PyObject *views_of(const Coder *self, PyObject *whole, const int64_t *starts, int64_t count)
{
    NewArray make = (NewArray)self->numpy[NEW_ARRAY];
    SetBase set_base = (SetBase)self->numpy[SET_BASE];
    PyObject *views = PyList_New(count);

    for (int64_t k = 0; views && k < count; k++) {
        Py_ssize_t length = starts[k + 1] - starts[k];
        uint32_t *first = (uint32_t *)data_of(whole) + starts[k];
        PyObject *view = make(self->numpy[NDARRAY_TYPE], 1, &length, self->id_number, NULL, first, 0,
                              ARRAY_FLAGS, NULL);
        Py_INCREF(whole);
        if (view == NULL) {
            Py_DECREF(whole);
            Py_CLEAR(views);
        } else if (set_base(view, whole) != 0) { /* takes the reference even if it fails */
            Py_DECREF(view);
            Py_CLEAR(views);
        } else {
            PyList_SetItem(views, k, view);
        }
    }
    return views;
}

static PyObject *lists_of(Coder *self, const uint32_t *ids, const int64_t *starts, int64_t count)
{
    PyObject *lists = PyList_New(count);

    for (int64_t k = 0; lists && k < count; k++) {
        PyObject *list = list_of(self, ids + starts[k], starts[k + 1] - starts[k]);
        if (list)
            PyList_SetItem(lists, k, list);
        else
            Py_CLEAR(lists);
    }
    return lists;
}

/* Return the ids of joined texts; None without memory. */
static PyObject *encode_joined(Coder *self, Tool *tool, const Joined *joined, int as_list)
{
    uint32_t *ids = room_for(tool, joined->length + 3);
    int64_t *starts = malloc(((size_t)joined->count + 1) * sizeof *starts);
    PyObject *result = NULL, *whole;
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
    } else {
        starts[joined->count] = count;
        if (as_list) {
            result = lists_of(self, ids, starts, joined->count);
        } else if ((whole = array_of(self, ids, count)) != NULL) {
            result = views_of(self, whole, starts, joined->count);
            Py_DECREF(whole);
        }
    }
    free(starts);
    return result;
}

/* encode_batch(texts, as_list=False, any_length=False); texts: a list. */
static PyObject *coder_encode_batch(PyObject *object, PyObject *const *args, Py_ssize_t given)
{
    Coder *self = (Coder *)object;
    PyObject *result = NULL;
    Joined joined = {0};
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
    if (status == 1 && find_cuts(self, joined.bytes, joined.length) != 0)
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

/* ---- Decoding ---- */

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
    if (view.ndim == 1 && view.format[1] == 0 && make_room(numbers, count)) {
        fits = 1;
        switch (view.format[0] | (int)view.itemsize << 8) {
        case 'B' | 1 << 8: TAKE(uint8_t);
        case 'H' | 2 << 8: TAKE(uint16_t);
        case 'I' | 4 << 8:
        case 'L' | 4 << 8: TAKE(uint32_t);
        case 'L' | 8 << 8:
        case 'Q' | 8 << 8: TAKE(uint64_t);
        case 'b' | 1 << 8: TAKE(int8_t);
        case 'h' | 2 << 8: TAKE(int16_t);
        case 'i' | 4 << 8:
        case 'l' | 4 << 8: TAKE(int32_t);
        case 'l' | 8 << 8:
        case 'q' | 8 << 8: TAKE(int64_t);
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

/* Return the text of ids, or their bytes if `errors` is NULL; None if Python's code has to
 * decode them. */
static PyObject *decode(const Coder *self, PyObject *ids, const char *errors)
{
    Numbers numbers;
    PyObject *result;

    if (!take_ids(self, ids, &numbers))
        result = nothing();
    else if (errors)
        result = spelled_text(self, &numbers, errors);
    else
        result = spelled_bytes(self, &numbers);
    free_numbers(&numbers);
    return result;
}

/* Return the name of an error handler; NULL if Python's code has to read the arguments. */
static const char *handler(PyObject *const *args, Py_ssize_t count)
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
static PyObject *coder_decode_batch(PyObject *self, PyObject *const *args, Py_ssize_t given)
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
static PyObject *coder_spans(PyObject *object, PyObject *const *args, Py_ssize_t given)
{
    Coder *self = (Coder *)object;
    PyObject *array = NULL;
    Numbers numbers;
    Taken text;

    if (given != 2)
        return PyErr_Format(PyExc_TypeError, "spans takes a text and its ids");
    int status = take_text(args[0], &text);
    if (status < 0)
        return NULL;
    if (status == 0)
        return nothing();
    int fits = take_ids(self, args[1], &numbers);
    int64_t at = 0, characters = 0, *row;
    for (int64_t k = 0; fits && k < numbers.count; k++)
        at += self->spans[numbers.ids[k]];
    if (fits && at == text.length) {
        NewArray make = (NewArray)self->numpy[NEW_ARRAY];
        Py_ssize_t shape[] = {numbers.count, 2};
        array = make(self->numpy[NDARRAY_TYPE], 2, shape, self->span_number, NULL, NULL, 0, 0, NULL);
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

/* Return the id of a special token, or else the lowest id of an ordinary token; None if Python's
 * code has to look it up. */
static PyObject *find(Coder *self, PyObject *given)
{
    uint8_t few[TOKEN_BYTES + TEXT_PADDING] = {0}, *padded = few;
    uint32_t found = UINT32_MAX;
    Taken text;

    if (self->vocabulary == NULL)
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

/* ---- Streams ---- */

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
static PyType_Spec stream_spec = {"llmgpu.cpu.calls.Stream", sizeof(Stream), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, stream_slots};

/* stream(ids, errors, spell): return an iterator over the texts of ids. */
static PyObject *coder_stream(PyObject *coder, PyObject *const *args, Py_ssize_t count)
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

/* ---- Methods of Tokenizer ---- */

/* Methods that handle the usual case here, and call the replaced functions in any other case. */
enum method { ENCODE, COUNT_IDS, DECODE, DECODE_BYTES, TOKEN_TO_ID, METHODS };

static PyObject *replaced[METHODS];
static PyObject *coder_name, *encode_name, *decode_bytes_name; /* of attributes */
static PyObject *dtype_name;                                  /* of an argument */
static PyTypeObject *coder_type;

/* Return the coder of a tokenizer; NULL, without an error, if it has none. */
static PyObject *coder_of(PyObject *tokenizer)
{
    PyObject *coder = PyObject_GetAttr(tokenizer, coder_name);

    if (coder && Py_TYPE(coder) == coder_type)
        return coder;
    Py_XDECREF(coder);
    PyErr_Clear();
    return NULL;
}

static PyMethodDef tokenizer_methods[METHODS];

/* Return whether a method of a tokenizer is the method made here, not one of a subclass or
 * object. */
static int is_ours(PyObject *tokenizer, enum method method, PyObject *name)
{
    PyObject *found = PyObject_GetAttr(tokenizer, name);
    int is_same = found && Py_TYPE(found) == &PyCFunction_Type &&
                  PyCFunction_GetFunction(found) == tokenizer_methods[method].ml_meth;

    if (found == NULL)
        PyErr_Clear();
    Py_XDECREF(found);
    return is_same;
}

/* Call the replaced function. names: the names of the last arguments; NULL if none has a name. */
static PyObject *call_replaced(enum method method, PyObject *self, PyObject *const *args,
                               Py_ssize_t count, PyObject *names)
{
    PyObject *given = PyTuple_New(count + 1), *named = names ? PyDict_New() : NULL, *result = NULL;
    int is_whole = given && (named || names == NULL);

    for (Py_ssize_t k = 0; is_whole && k <= count; k++) {
        PyObject *item = k ? args[k - 1] : self;
        Py_INCREF(item);
        PyTuple_SetItem(given, k, item);
    }
    for (Py_ssize_t k = 0; is_whole && names && k < PyTuple_Size(names); k++)
        is_whole = PyDict_SetItem(named, PyTuple_GetItem(names, k), args[count + k]) == 0;
    if (is_whole)
        result = PyObject_Call(replaced[method], given, named);
    Py_XDECREF(given);
    Py_XDECREF(named);
    return result;
}

/* Return the result of the usual case; if it is None, return the result of the replaced
 * function. */
static PyObject *or_replaced(PyObject *result, enum method method, PyObject *self,
                             PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    if (result != Py_None)
        return result;
    Py_DECREF(result);
    return call_replaced(method, self, args, count, names);
}

/* encode(text), encode(text, dtype=list) */
static PyObject *method_encode(PyObject *self, PyObject *const *args, Py_ssize_t count,
                               PyObject *names)
{
    PyObject *coder = count == 1 ? coder_of(self) : NULL, *result = NULL;
    enum result kind = coder ? (enum result)((Coder *)coder)->usual : OTHER;
    int is_usual = coder != NULL;

    if (is_usual && names && PyTuple_Size(names)) {
        is_usual = PyTuple_Size(names) == 1 && args[1] == (PyObject *)&PyList_Type &&
                   PyUnicode_Compare(PyTuple_GetItem(names, 0), dtype_name) == 0;
        kind = LIST;
    }
    is_usual = is_usual && (kind == ARRAY || kind == LIST);
    result = is_usual ? encode((Coder *)coder, args[0], kind, 0) : nothing();
    Py_XDECREF(coder);
    return or_replaced(result, ENCODE, self, args, count, names);
}

/* decode(ids), decode(ids, errors) */
static PyObject *method_decode(PyObject *self, PyObject *const *args, Py_ssize_t count,
                               PyObject *names)
{
    const char *errors = names ? NULL : count == 1 ? "replace" : handler(args, count);
    int is_usual = errors && is_ours(self, DECODE_BYTES, decode_bytes_name);
    PyObject *coder = is_usual ? coder_of(self) : NULL;
    PyObject *result = coder ? decode((Coder *)coder, args[0], errors) : nothing();

    Py_XDECREF(coder);
    return or_replaced(result, DECODE, self, args, count, names);
}

/* Handle the usual case of a method with one argument. */
static PyObject *of_one(enum method method, PyObject *self, PyObject *const *args, Py_ssize_t count,
                        PyObject *names)
{
    PyObject *object = count == 1 && names == NULL ? coder_of(self) : NULL, *result;
    Coder *coder = (Coder *)object;

    if (coder == NULL)
        result = nothing();
    else if (method == COUNT_IDS && (coder->usual == NARROW || !is_ours(self, ENCODE, encode_name)))
        result = nothing();
    else if (method == COUNT_IDS)
        result = encode(coder, args[0], COUNT, 0);
    else if (method == DECODE_BYTES)
        result = decode(coder, args[0], NULL);
    else
        result = find(coder, args[0]);
    Py_XDECREF(object);
    return or_replaced(result, method, self, args, count, names);
}

#define OF_ONE(name, method)                                                                        \
    static PyObject *name(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names) \
    {                                                                                               \
        return of_one(method, self, args, count, names);                                            \
    }

OF_ONE(method_count, COUNT_IDS)
OF_ONE(method_decode_bytes, DECODE_BYTES)
OF_ONE(method_token_to_id, TOKEN_TO_ID)

#define METHOD(name, function)                                                                      \
    {name, (PyCFunction)(void (*)(void))(function), METH_FASTCALL | METH_KEYWORDS, NULL}

static PyMethodDef tokenizer_methods[METHODS] = {
    METHOD("encode", method_encode), METHOD("count", method_count), METHOD("decode", method_decode),
    METHOD("decode_bytes", method_decode_bytes), METHOD("token_to_id", method_token_to_id)};

/* method(type, name, function, doc): return a method of the type that replaces a function. All
 * calls for a name have the same function. */
static PyObject *make_method(PyObject *module, PyObject *args)
{
    PyObject *type, *function;
    const char *name, *doc;

    (void)module;
    if (!PyArg_ParseTuple(args, "OsOs", &type, &name, &function, &doc))
        return NULL;
    for (int k = 0; k < METHODS; k++) {
        if (strcmp(tokenizer_methods[k].ml_name, name) != 0)
            continue;
        if (replaced[k] == NULL) {
            tokenizer_methods[k].ml_doc = strdup(doc); /* never freed, like the type */
            Py_INCREF(function);
            replaced[k] = function;
        } else if (replaced[k] != function) {
            break;
        }
        return PyDescr_NewMethod((PyTypeObject *)type, &tokenizer_methods[k]);
    }
    return PyErr_Format(PyExc_ValueError, "there is no method %s, or it replaces another function",
                        name);
}

/* ---- The module ---- */

#define FAST(function) (PyCFunction)(void (*)(void))(function), METH_FASTCALL

static PyMethodDef coder_methods[] = {{"prepare", coder_prepare, METH_VARARGS, NULL},
                                      {"encode", FAST(coder_encode), NULL},
                                      {"returns", FAST(coder_returns), NULL},
                                      {"encode_batch", FAST(coder_encode_batch), NULL},
                                      {"decode_batch", FAST(coder_decode_batch), NULL},
                                      {"spans", FAST(coder_spans), NULL},
                                      {"stream", FAST(coder_stream), NULL},
                                      {NULL, NULL, 0, NULL}};
static PyType_Slot coder_slots[] = {{Py_tp_new, coder_new},
                                    {Py_tp_dealloc, coder_dealloc},
                                    {Py_tp_methods, coder_methods},
                                    {0, NULL}};
static PyType_Spec coder_spec = {"llmgpu.cpu.calls.Coder", sizeof(Coder), 0, Py_TPFLAGS_DEFAULT,
                                 coder_slots};

static PyObject *sources(PyObject *module, PyObject *none)
{
    (void)module;
    (void)none;
    return PyLong_FromUnsignedLong(LLMGPU_SOURCES);
}

/* forked(): count a fork; must be called in the child process. */
static PyObject *forked(PyObject *module, PyObject *none)
{
    (void)module;
    (void)none;
    forks++;
    return nothing();
}

/* Fill the module. A module that is made again has the same types. */
static int fill_module(PyObject *module)
{
    if (coder_type == NULL) {
        coder_type = (PyTypeObject *)PyType_FromSpec(&coder_spec);
        stream_type = (PyTypeObject *)PyType_FromSpec(&stream_spec);
        ascii_method = PyUnicode_InternFromString("isascii");
        coder_name = PyUnicode_InternFromString("_coder");
        encode_name = PyUnicode_InternFromString("encode");
        decode_bytes_name = PyUnicode_InternFromString("decode_bytes");
        dtype_name = PyUnicode_InternFromString("dtype");
    }
    if (coder_type == NULL || stream_type == NULL || ascii_method == NULL || coder_name == NULL ||
        encode_name == NULL || decode_bytes_name == NULL || dtype_name == NULL)
        return -1;
    Py_INCREF((PyObject *)coder_type);
    return PyModule_AddObject(module, "Coder", (PyObject *)coder_type);
}

static PyMethodDef functions[] = {{"sources", sources, METH_NOARGS, NULL},
                                  {"forked", forked, METH_NOARGS, NULL},
                                  {"method", make_method, METH_VARARGS, NULL},
                                  {NULL, NULL, 0, NULL}};
static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, fill_module},
#ifdef Py_GIL_DISABLED
                                          {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
                                          {0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "calls", NULL, 0, functions,
                                        module_slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_calls(void)
{
    return PyModuleDef_Init(&definition);
}
