/* Declarations that the files of the extension module share; see calls.c. */
#ifndef LLMGPU_CALLS_H
#define LLMGPU_CALLS_H

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
#define COPIED_BYTES 40000   /* bytes of text whose ids are copied sooner than their array shrinks */
#define LONG_BYTES (1 << 17) /* LONG_TEXT of encoder_c.py; the next three are from there, too */
#define SAMPLE (1 << 16)
#define LEAST_SHARE 32
#define FIRST_LEAD 0xC0
#define AHEAD 16         /* ids between an int object that is put into a list and one that is fetched */
#define FEW_IDS 64       /* the most ids that are decoded without memory of the heap */
#define TOKEN_BYTES 256  /* the most bytes that are looked up without memory of the heap */

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

#define NDARRAY_TYPE 2 /* this and the next three are numbers in NumPy's table */
#define RESIZE 80
#define NEW_ARRAY 93
#define SET_BASE 282
#define ARRAY_FLAGS 0x501 /* C order, aligned, writeable */

typedef PyObject *(*NewArray)(void *type, int dimensions, const Py_ssize_t *shape, int number,
                              const Py_ssize_t *strides, void *data, int item_bytes, int flags,
                              PyObject *owner);
typedef int (*SetBase)(PyObject *array, PyObject *base);

/* The lengths of an array's dimensions. */
typedef struct {
    Py_ssize_t *lengths;
    int dimensions;
} Shape;

typedef PyObject *(*Resize)(PyObject *array, const Shape *shape, int checks_references, int order);

/* ---- Coders (coders.c) ---- */

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

extern long forks; /* number of forks between the process that loaded the module and this one */
extern PyTypeObject *coder_type;

static inline PyObject *nothing(void)
{
    Py_INCREF(Py_None);
    return Py_None;
}

PyObject *coder_new(PyTypeObject *type, PyObject *args, PyObject *named);
void coder_dealloc(PyObject *object);
PyObject *coder_prepare(PyObject *object, PyObject *args);

/* Return a tool for encoding until `put_back`; NULL without memory. */
Tool *take_tool(Coder *self);
void put_back(Coder *self, Tool *tool);

/* Return room for `count` ids, whose memory `put_back` may keep; NULL without memory. */
uint32_t *room_for(Tool *tool, int64_t count);

/* ---- Texts and ids (values.c) ---- */

/* A text in UTF-8, or any bytes. owner: owns the memory if the argument does not. is_ascii: whether
 * the text is known to be ASCII. */
typedef struct {
    const uint8_t *bytes;
    Py_ssize_t length;
    PyObject *owner;
    int is_ascii;
} Taken;

extern PyObject *ascii_method; /* str.isascii */

/* Get the bytes of a text; return 1, 0 if it is neither str nor bytes, -1 after an error. */
int take_text(PyObject *text, Taken *taken);

/* Return an array of `data`, or of new memory if it is NULL. number: NumPy's number of the type. */
PyObject *new_array(const Coder *self, int dimensions, const Py_ssize_t *shape, int number,
                    void *data);
PyObject *array_of(const Coder *self, const uint32_t *ids, Py_ssize_t count);
PyObject *list_of(Coder *self, const uint32_t *ids, int64_t count);

/* Shrink an array of ids to its first `count`. */
PyObject *shortened(const Coder *self, PyObject *array, Py_ssize_t count);

/* Return the data of an array. The pointer is the array's first field. */
static inline void *data_of(PyObject *array)
{
    void *data;

    memcpy(&data, (char *)array + sizeof(PyObject), sizeof data);
    return data;
}

/* ---- Encoding (encoding.c) ---- */

/* The type of a result. OTHER, NARROW: types that are not made here; NARROW types can't hold all
 * ids. */
enum result { ARRAY, LIST, COUNT, OTHER, NARROW };

/* Return the ids of a text; None if Python's code has to encode it. any_length: see `Coder`. */
PyObject *encode(Coder *self, PyObject *given, enum result kind, int any_length);

PyObject *coder_encode(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *coder_returns(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *coder_encode_batch(PyObject *object, PyObject *const *args, Py_ssize_t given);

/* ---- Decoding (decoding.c, streams.c) ---- */

/* Return the text of ids, or their bytes if `errors` is NULL; None if Python's code has to
 * decode them. */
PyObject *decode(const Coder *self, PyObject *ids, const char *errors);

/* Return the name of an error handler; NULL if Python's code has to read the arguments. */
const char *handler(PyObject *const *args, Py_ssize_t count);

/* Return the id of a special token, or else the lowest id of an ordinary token; None if Python's
 * code has to look it up. */
PyObject *find(Coder *self, PyObject *given);

PyObject *coder_decode_batch(PyObject *self, PyObject *const *args, Py_ssize_t given);
PyObject *coder_spans(PyObject *object, PyObject *const *args, Py_ssize_t given);
PyObject *coder_stream(PyObject *coder, PyObject *const *args, Py_ssize_t count);

extern PyType_Spec stream_spec;
extern PyTypeObject *stream_type;

/* ---- Methods of Tokenizer (methods.c) ---- */

/* Make the names that methods look up; -1 after an error. */
int fill_methods(void);

/* method(type, name, function, doc): return a method of the type that replaces a function. All
 * calls for a name have the same function. */
PyObject *make_method(PyObject *module, PyObject *args);

#endif
