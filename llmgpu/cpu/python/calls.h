/* Declarations that the files of the extension module share; see calls.c. */
#ifndef LLMGPU_CALLS_H
#define LLMGPU_CALLS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

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
#define TOKEN_BYTES 256  /* the most bytes of a token that is looked up here */

/* A function with its own arguments, as the table of methods holds it. */
#define FASTCALL(function) (PyCFunction)(void (*)(void))(function)

#ifdef Py_GIL_DISABLED
#define LOCK(coder) pthread_mutex_lock(&(coder)->lock)
#define UNLOCK(coder) pthread_mutex_unlock(&(coder)->lock)
#else
#define LOCK(coder) (void)(coder)
#define UNLOCK(coder) (void)(coder)
#endif

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

/* ---- Coders (encoding.c) ---- */

/* An encoder with memory for ids, for one call at a time. table: a reference that keeps the table of
 * the words with their ids until the call ends. next: the next tool in the list of idle tools. */
typedef struct Tool {
    void *encoder, *words;
    PyObject *table;
    struct Tool *next;
    uint32_t ids[KEPT_BYTES + 3]; /* as the engine needs for a text of KEPT_BYTES */
} Tool;

/* The facts that Python packs for a coder: pointers, then numbers, in the order of `make_coder`.
 *
 * data, offsets: the tokens, with padding. spans: bytes of text that each token stands for.
 * numpy: NumPy's table of functions.
 * pattern, vocabulary: NULL if texts can't be encoded; pattern alone is NULL if only `find` works.
 * size: the number of ids. id_number, span_number: NumPy's numbers of uint32 and int64.
 * most_bytes: the most bytes of a text that is encoded unless the caller sets any_length. */
typedef struct {
    Engine engine;
    const uint8_t *data;
    const int64_t *offsets, *spans;
    void *const *numpy;
    const void *pattern, *vocabulary;
    int64_t size, id_number, span_number, threads, table_bytes, part_bytes, most_bytes;
} Facts;

/* An object that encodes and decodes by one vocabulary.
 *
 * owners: owns all objects of the facts, find_cuts and special.
 * find_cuts: called before the first long text with many characters beyond ASCII; NULL after that.
 * special: ids of special tokens by text.
 * usual: the result of encode(text), see `enum result`.
 * table: owns the words. A call in another thread may use them after they were replaced; in a forked
 * process, the calls of the parent's other threads keep them.
 * forks: the value of `forks` when the words were made. ready: int objects of ids, made when
 * needed. */
typedef struct {
    PyObject_HEAD
    Facts facts;
    PyObject *owners, *find_cuts, *special, *table;
    int usual;
    pthread_mutex_t lock;
    void *words;
    Tool *idle;
    long forks;
    PyObject **ready;
} Coder;

extern PyTypeObject *coder_type;

/* Return None, with which a function leaves a case to Python's code; NULL after an error. */
static inline PyObject *nothing(void)
{
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

/* Count a fork; must be called in the child process. */
void count_fork(void);

PyObject *coder_new(PyTypeObject *type, PyObject *args, PyObject *named);
void coder_dealloc(PyObject *object);

/* ---- Texts and arrays (values.c) ---- */

/* A text in UTF-8, or any bytes. owner: owns the memory if the argument does not. is_ascii: whether
 * the text is known to be ASCII. */
typedef struct {
    const uint8_t *bytes;
    Py_ssize_t length;
    PyObject *owner;
    int is_ascii;
} Taken;

extern PyObject *ascii_method; /* str.isascii */

/* Get the bytes of a text; return 0 if it is neither str nor bytes, or after an error. */
int take_text(PyObject *text, Taken *taken);

/* Return an array of `data`, or of new memory if it is NULL. number: NumPy's number of the type. */
PyObject *new_array(const Coder *self, int dimensions, const Py_ssize_t *shape, int64_t number,
                    void *data);

/* Return the data of an array. The pointer is the array's first field. */
static inline void *data_of(PyObject *array)
{
    return *(void **)(array + 1);
}

extern Py_ssize_t tuple_items; /* tuple.__basicsize__, the offset of the items */

/* Return the items of a tuple, which are its last field, or of a list, whose first field points to
 * them; extension.py checks both. Functions of CPython take longer for an item. */
static inline PyObject **items_of(PyObject *object)
{
    int is_tuple = Py_TYPE(object) == &PyTuple_Type;

    return is_tuple ? (void *)((char *)object + tuple_items) : *(void **)((PyVarObject *)object + 1);
}

/* ---- Encoding (encoding.c) ---- */

/* The type of a result, as in extension.py. OTHER, NARROW: types that are not made here; NARROW types
 * can't hold all ids. */
enum result { ARRAY, LIST, OTHER, NARROW, COUNT };

/* Return the ids of a text; None if Python's code has to encode it. any_length: see `Coder`. */
PyObject *encode(Coder *self, PyObject *given, enum result kind, int any_length);

PyObject *coder_encode(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *coder_encode_batch(PyObject *object, PyObject *args);

/* ---- Decoding (decoding.c, streams.c) ---- */

/* Return the text of ids, or their bytes if `errors` is NULL; None if Python's code has to
 * decode them. */
PyObject *decode(const Facts *facts, PyObject *ids, const char *errors);

/* Return the name of an error handler; NULL if Python's code has to read the argument. */
const char *handler(PyObject *errors);

/* Return the id of a special token, or else the lowest id of an ordinary token; None if Python's
 * code has to look it up. */
PyObject *find(const Coder *self, PyObject *given);

PyObject *coder_decode_batch(PyObject *self, PyObject *args);
PyObject *coder_spans(PyObject *object, PyObject *const *args, Py_ssize_t given);
PyObject *coder_stream(PyObject *coder, PyObject *const *args, Py_ssize_t count);

extern PyType_Spec stream_spec;
extern PyTypeObject *stream_type;

/* ---- Methods of Tokenizer (methods.c) ---- */

extern PyObject *coder_name; /* "_coder" */

/* method(type, name, function, doc): return a method of the type that replaces a function. All
 * calls for a name have the same function. */
PyObject *make_method(PyObject *module, PyObject *args);

#endif
