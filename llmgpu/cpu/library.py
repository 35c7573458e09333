"""The CPU engine's library: choosing and loading the library, its functions and objects.

- The build of the package compiles the library. Without the library, NumPy does the same work with
  the same results.
- LLMGPU_CPU=numpy ignores the library. With LLMGPU_CPU=c, a library that can't be loaded is an
  error.
- A call releases Python's lock. Threads may share patterns and vocabularies, but not encoders and
  counters.
- A text is an array with TEXT_PADDING more bytes after the text.
"""

from __future__ import annotations

import ctypes
import os
import re
import threading
from collections.abc import Callable, Sequence
from ctypes import (
    PYFUNCTYPE,
    byref,
    c_float,
    c_int,
    c_int64,
    c_ssize_t,
    c_uint32,
    c_void_p,
    py_object,
    pythonapi,
)
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.closing import close_with
from llmgpu.cpu.build import LIBRARY, sources, sources_checksum
from llmgpu.errors import InputError, LlmgpuError
from llmgpu.machine import usable_processors
from llmgpu.pipeline import in_order
from llmgpu.spelling import spelled

VARIABLE = "LLMGPU_CPU"
TEXT_PADDING = 16
# length of the random hash key: nobody can prepare words that collide under an unknown key
_HASH_KEY_BYTES = 32
SHORT_TEXT = 1 << 10  # longest text, in bytes, for whose ids memory is kept
# most threads by default with NumPy: between NumPy's operations only one thread at a time runs
MOST_NUMPY_THREADS = 4
PAIR_PARTS = 32  # pairs are found for 1 / PAIR_PARTS of the tokens at a time
MANY_IDS = 1 << 22  # from this number of ids on, copying would take too much memory
ARITHMETIC = 1  # version of the operations on tensors; increased when a result changes by a bit
NO_MEMORY = -1  # equal to the constant in engine.h
UNREADABLE = -2  # equal to the constant in parts.c
TOO_SLOW = -3  # equal to the constant in engine.h

# A function of the library in its sources: the type of the result, the name, and the parameters.
# Python finds "\nAPI " in a fifth of the time of "^API ".
_FUNCTION = re.compile(r"\nAPI ([\w ]+\*?) ?llmgpu_(\w+)\(([^)]*)\)")
_NUMBERS = {"int64_t": c_int64, "uint32_t": c_uint32, "int": c_int, "float": c_float, "void": None}


def _declare_functions(loaded: ctypes.CDLL) -> None:
    """Set the types of all functions to those in the sources; AttributeError for a missing one."""
    for source in sources():
        for result, name, parameters in _FUNCTION.findall(source.read_text(encoding="utf-8")):
            function = getattr(loaded, f"llmgpu_{name}")
            function.restype = _type_of(result)
            taken = parameters.split(",") if parameters != "void" else []
            function.argtypes = list(map(_type_of, taken))


def _type_of(declared: str) -> Any:
    """Return the ctypes type of a declared result or parameter; a pointer is an address."""
    return c_void_p if "*" in declared else _NUMBERS[declared.split()[0]]


def library() -> ctypes.CDLL | None:
    """Return the library, or None if NumPy computes.

    Raises LlmgpuError if LLMGPU_CPU has an unknown value, or is c and the library can't be loaded.
    """
    wanted = os.environ.get(VARIABLE, "")
    if wanted not in ("", "c", "numpy"):
        raise LlmgpuError(f"{VARIABLE}={wanted}: use c or numpy, or leave it out")
    if wanted == "numpy":
        return None
    loaded, reason = load(LIBRARY)
    if wanted == "c" and loaded is None:
        raise LlmgpuError(f"{VARIABLE}=c: {reason}; use numpy, or leave it out")
    return loaded


def engine() -> ctypes.CDLL:
    """Return the library. The caller has checked that `library` does not return None."""
    loaded, _ = load(LIBRARY)
    assert loaded is not None, "there is no CPU engine"
    return loaded


def describe() -> str:
    """Return the name of the CPU backend: "C", or "NumPy" with the reason."""
    if library() is not None:
        return "C"
    return f"NumPy ({why_missing() or f'{VARIABLE}=numpy'})"


def why_missing() -> str:
    """Return the reason why the library can't be used; "" if it can, or if the user chose NumPy."""
    return "" if os.environ.get(VARIABLE) == "numpy" else load(LIBRARY)[1]


@cache
def load(path: Path) -> tuple[ctypes.CDLL | None, str]:
    """Return the library and "", or None and the reason why the library can't be loaded."""
    if not path.exists():
        return None, f"{path} was not built: install llmgpu where there is a C compiler"
    try:
        loaded = ctypes.CDLL(str(path))
        _declare_functions(loaded)
    except (OSError, AttributeError) as error:
        return None, f"{path} can't be loaded: {error}"
    if loaded.llmgpu_sources() != sources_checksum():
        return None, f"{path} was built from other sources: install llmgpu again"
    loaded.llmgpu_set_hash_keys(os.urandom(_HASH_KEY_BYTES))
    return loaded, ""


def default_threads() -> int:
    """Return the number of usable processors, with NumPy at most MOST_NUMPY_THREADS."""
    threads = usable_processors()
    return min(threads, MOST_NUMPY_THREADS) if library() is None else threads


def out_of_memory() -> LlmgpuError:
    """Return the error for memory that the engine can't allocate."""
    return InputError(
        f"not enough memory for the words of the text: use fewer threads ({spelled('--threads')})"
    )


class EngineObject:
    """A Python object that owns an object of the C library.

    When the Python object is freed, the library's object is freed, too. The Python object keeps the
    arguments of its constructor alive.
    """

    _library: ctypes.CDLL

    def __init__(self, kind: str, *arguments: Any, beside: EngineObject | None = None) -> None:
        """Make an object with the library's function ``llmgpu_KIND_new``.

        beside: another object, whose library is used in place of the installed library.
        """
        others = [other for other in (*arguments, beside) if isinstance(other, EngineObject)]
        self._library = loaded = others[0]._library if others else engine()
        self._arguments = arguments
        plain = [as_argument(argument) for argument in arguments]
        address = getattr(loaded, f"llmgpu_{kind}_new")(*plain)
        if address is None:
            raise out_of_memory()
        self.address: int = address
        free = getattr(loaded, f"llmgpu_{kind}_free")
        # Do not free the object at the end of the process: a thread may still use it.
        close_with(self, free, address).atexit = False

    def addresses(self, *names: str) -> tuple[int, ...]:
        """Return the addresses of functions of the object's library."""
        functions = (getattr(self._library, f"llmgpu_{name}") for name in names)
        return tuple(ctypes.cast(each, c_void_p).value or 0 for each in functions)

    def _call(self, name: str, *arguments: Any) -> int:
        """Call a function of the library on this object; InputError if memory is exhausted (-1)."""
        function = getattr(self._library, f"llmgpu_{name}")
        result: int = function(self.address, *map(as_argument, arguments))
        if result == NO_MEMORY:
            raise out_of_memory()
        return result


def as_argument(argument: Any) -> Any:
    """Convert an argument to a form that ctypes can pass to a library function."""
    if isinstance(argument, EngineObject):
        return argument.address
    if isinstance(argument, c_int64):  # the function writes a number to the argument
        return byref(argument)
    return address_of(argument) if isinstance(argument, np.ndarray) else argument


def call(name: str, *arguments: Any) -> int:
    """Call a function of the library, which must be loaded; arrays must be in C order."""
    result: int = getattr(engine(), f"llmgpu_{name}")(*map(as_argument, arguments))
    return result


def _shortened(ids: NDArray[np.uint32], count: int) -> NDArray[np.uint32]:
    """Return the first `count` ids: a view if the array is small, else the array, resized."""
    if len(ids) < MANY_IDS:
        return ids[:count]
    ids.resize(count, refcheck=False)  # in place, because no other code refers to the array yet
    return ids


def bytes_of(text: Any) -> memoryview | None:
    """Return the bytes of an ASCII str, valid as long as the str lives; None for any other str.

    `str.encode` would take new memory in each call, whose pages the system has to clear.
    """
    is_usual = type(text) is str and text.isascii()
    return _view_memory(_utf8_of(text, None), len(text), _READ_ONLY) if is_usual else None


# New function objects: types set on functions of `ctypes.pythonapi` would hold for the process.
_utf8_of = PYFUNCTYPE(c_void_p, py_object, c_void_p)(("PyUnicode_AsUTF8AndSize", pythonapi))
_VIEW = PYFUNCTYPE(py_object, c_void_p, c_ssize_t, c_int)
_view_memory: Callable[..., memoryview] = _VIEW(("PyMemoryView_FromMemory", pythonapi))
_READ_ONLY = 0x100  # PyBUF_READ


def address_of(array: NDArray[Any] | None) -> int | None:
    """Return the address of an array for the library; None for None."""
    return None if array is None else array.ctypes.data


class CPattern(EngineObject):
    """A pattern in the form of the engine: the rule that cuts text.

    rule: the name of the pattern's kernel. classes: uint8 (0x110000,), the class of each code
        point.
    digits, whole_at_end: constants of cl100k and its variants.
    is_marked: whether the engine lacks the rule, so that callers mark the starts of pre-tokens.
    has_expressions: whether the engine can mark the starts itself; see `set_expressions`.
    """

    def __init__(
        self, rule: str, classes: NDArray[np.uint8], digits: int = 3, *, whole_at_end: bool = False
    ) -> None:
        super().__init__("pattern", rule.encode(), digits, whole_at_end, classes)
        self.is_marked = bool(self._call("pattern_is_marked"))
        self.has_expressions = False

    def set_expressions(
        self, code: NDArray[np.int32], first: NDArray[np.int32], bits: NDArray[np.uint32]
    ) -> None:
        """Let a pattern with `is_marked` cut by expressions, tried in the order of `first`.

        code: int32 (n, 4), instructions, see `llmgpu/cpu/expressions.c`.
        first: int32 (m, 2), for each expression the index of its first instruction, and a set of
            bits: the first character of a match has at least one of these bits.
        bits: uint32 (256,), the bits of each class of characters.
        """
        self._code = code  # keeps the array alive, because the engine reads it
        self._call("pattern_set_expressions", code, first, len(first), bits)
        self.has_expressions = True

    def set_automata(
        self,
        tables: Sequence[tuple[NDArray[np.uint16], NDArray[np.uint16]]],
        num_classes: int,
        pairs: NDArray[np.uint16] | None,
    ) -> None:
        """Let a pattern with expressions cut by automata, one after the other.

        tables: for each automaton the next states and the flags, uint16 (n,), see
            `llmgpu/cpu/automata.c`. num_classes: number of classes of characters.
        pairs: uint16 (2, 128), pairs[0, a] + pairs[1, b] is the column for ASCII character a
            followed by b; None if the tables have no such columns.
        """
        joined = [np.concatenate(arrays) for arrays in zip(*tables, strict=True)]
        places = np.cumsum([0, *(len(table) for table, _ in tables[:-1])])
        self._tables = joined, pairs  # keeps the arrays alive, because the engine reads them
        self._call("pattern_set_automata", *joined, places, len(tables), num_classes, pairs)

    def mark(self, text: NDArray[np.uint8], starts: NDArray[np.int64]) -> NDArray[np.bool_] | None:
        """Mark the starts of pre-tokens by the expressions: bool (n,).

        text: uint8 (n,). starts: int64, where documents start. Returns None if matching takes too
        many steps.
        """
        marks = np.empty(len(text), np.bool_)
        arrays = np.ascontiguousarray(text), len(text), np.ascontiguousarray(starts), len(starts)
        return None if self._call("mark_expressions", *arrays, marks) else marks


class CVocabulary(EngineObject):
    """The tokens and merges of a vocabulary.

    data: uint8, the bytes of all tokens. offsets: int64 (size + 1,), start of each token in data.
    tokens: int64, the ids of the tokens to match.
    merges: uint32 (n, 4), left id, right id, result and rank; None if the rank of a pair is the id
        of the joined token. With None, each byte must have a token.
    unknown: id of a byte without a token.
    trie: nodes and edges for greedy matching, see `llmgpu.bpe.vocabulary.trie.Trie`.
    prepares: whether `set_documents` was called.
    """

    def __init__(
        self,
        data: NDArray[np.uint8],
        offsets: NDArray[np.int64],
        tokens: NDArray[np.int64],
        merges: NDArray[np.uint32] | None,
        unknown: int,
        *,
        takes_whole: bool,
        trie: tuple[NDArray[np.uint32], NDArray[np.uint32]] | None,
    ) -> None:
        padded = np.concatenate([data, np.zeros(TEXT_PADDING, np.uint8)])
        tokens = np.ascontiguousarray(tokens, np.int64)
        nodes, edges = trie or (None, None)
        count = 0 if merges is None else len(merges)
        self._tokens = padded, offsets, tokens, len(tokens)
        self._finding_cuts = threading.Lock()
        self.has_cuts = self.prepares = False
        super().__init__(
            "vocabulary", *self._tokens, merges, count, takes_whole, unknown, nodes, edges
        )

    def find_cuts(self) -> None:
        """Find the places at which words may be cut, and set `has_cuts`.

        Returns at once if another thread is finding cuts, because ids are the same without cuts.
        """
        if not self._finding_cuts.acquire(blocking=False):
            return
        try:
            if not self.has_cuts:
                self._call("vocabulary_find_cuts", *self._tokens)
            self.has_cuts = True
        finally:
            self._finding_cuts.release()

    def set_pieces(self, arrays: Sequence[NDArray[np.uint32]], size: int, *, fuses: bool) -> None:
        """Switch the vocabulary to matching words by SentencePiece's rules.

        arrays: byte_symbols, firsts and items of `llmgpu.bpe.vocabulary.pieces.PieceSymbols`.
        """
        self._pieces = arrays  # keeps the arrays alive, because the engine reads them
        self._call("vocabulary_set_pieces", *arrays, size, fuses)

    def set_documents(
        self,
        changeable: NDArray[np.uint8] | None,
        added: tuple[NDArray[np.uint32], NDArray[np.uint32]],
        *,
        has_prefix: bool = False,
        is_late: bool = True,
    ) -> None:
        """Let `encode_plain` of the engine prepare documents; see `llmgpu/cpu/documents.c`.

        changeable: uint8, a bit for each code point, the lowest bit of a byte first: whether NFC
            may change the code point. None: do not check for NFC, but turn U+2581 into spaces.
        added: nodes and edges of the trie of the tokens that every text may spell.
        has_prefix: whether to put a space before a text that is not empty.
        is_late: whether the tokens are searched after U+2581 has become spaces.
        """
        arguments = changeable, has_prefix, is_late, *added
        self._documents = arguments  # keeps the arrays alive, because the engine reads them
        self._call("vocabulary_set_documents", *arguments)
        self.prepares = True

    def is_of(self, loaded: ctypes.CDLL | None) -> bool:
        """Whether the vocabulary was made by this library."""
        return self._library is loaded

    def pairs(self) -> NDArray[np.uint32]:
        """Return every way to cut a token into two tokens, uint32 (n, 3): left, right, token.

        Rows ascend by token, then by cut. If several ids have the same bytes, only the lowest is
        used.
        """
        data, offsets, tokens, _ = self._tokens

        def find(tokens: NDArray[np.int64]) -> NDArray[np.uint32]:
            lengths = offsets[tokens + 1] - offsets[tokens]
            found = np.empty((int(np.maximum(lengths - 1, 0).sum()), 3), np.uint32)
            arrays = data, offsets, tokens, len(tokens), found
            return found[: self._call("vocabulary_pairs", *arrays)]

        parts, threads = np.array_split(tokens, PAIR_PARTS), min(8, usable_processors())
        return np.concatenate(list(in_order(parts, find, PAIR_PARTS, threads=threads)))


def insert_pairs(
    pairs: NDArray[np.uint32], table: NDArray[np.uint32], empty: int, key: NDArray[np.uint32]
) -> bool:
    """Insert pairs, uint32 (n, 4), into the table of wgsl/encode/02_merge.wgsl, uint32 (m, 4).

    empty: rank in a free slot. key: the hash's key, uint32 (4,), see wgsl/common/hash.wgsl.
    Returns False without the CPU engine.
    """
    if library() is None:
        return False
    call("insert_pairs", pairs, len(pairs), table, len(table), empty, key)
    return True


class CSharedWords(EngineObject):
    """A table of words and their ids under one vocabulary, which threads share."""

    def __init__(self, vocabulary: CVocabulary, most_bytes: int) -> None:
        """Make an empty table; most_bytes: approximate limit on the memory of words."""
        super().__init__("shared_words", most_bytes, beside=vocabulary)

    @property
    def is_spent(self) -> bool:
        """Whether the table lacked so many words of recent texts that a new table pays off."""
        return bool(self._call("shared_words_spent"))


class CEncoder(EngineObject):
    """Encodes texts, one at a time."""

    def __init__(
        self, pattern: CPattern, vocabulary: CVocabulary, threads: int = 1, part_bytes: int = 1
    ) -> None:
        """Make an encoder.

        threads: number of threads that encode a text. part_bytes: bytes of text that a thread
        encodes at a time.
        """
        self._part_bytes = part_bytes
        super().__init__("encoder", pattern, vocabulary, threads)
        self._room = np.empty(SHORT_TEXT + 3, np.uint32)  # for ids of short texts
        # Cached, because reading the attribute takes longer than encoding a few words.
        self._room_address = self._room.ctypes.data

    def encode(
        self,
        words: CSharedWords,
        text: NDArray[np.uint8] | tuple[int, int, int],
        marks: NDArray[np.bool_] | None,
        main_end: int,
        entry: int,
        starts: NDArray[np.int64],
        own_starts: int,
        memory: NDArray[np.uint32] | None = None,
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64], int]:
        """Encode the words that start in the first `main_end` bytes of a text.

        words: the table of known words, to which new words are added.
        text: uint8 (n,), in an array with TEXT_PADDING more bytes; or a range of a file: its
            descriptor, an offset and n.
        marks: bool (n,), the starts of pre-tokens, if the pattern is "marks".
        entry: start of the first token. starts: positions of documents in the text, ascending.
        memory: an array for the ids, used if large enough.

        Returns the ids, maybe as a view of a larger array; the number of ids before each of the
        first `own_starts` documents; and the end of the last token. Raises OSError if the file is
        too short or can't be read.
        """
        # Memory for the largest number of ids that the words can have.
        room = max(main_end - entry, 0) + 3
        ids = np.empty(room, np.uint32) if memory is None or len(memory) < room else memory
        token_starts = np.empty(own_starts, np.int64)
        stopped = c_int64()
        starts = np.ascontiguousarray(starts, np.int64)
        is_file = isinstance(text, tuple)
        count = self._call(
            "encode",
            *(words, None if is_file else text, marks),
            *(text if is_file else (-1, 0, len(text))),
            *(main_end, entry, starts, len(starts), own_starts, token_starts),
            *(self._part_bytes, ids, stopped),
        )
        if count == UNREADABLE:
            raise OSError("the file is shorter or can't be read")
        found = ids[:count] if ids is memory else _shortened(ids, count)
        return found, token_starts, stopped.value

    def encode_document(
        self, words: CSharedWords, text: bytes | memoryview
    ) -> NDArray[np.uint32] | None:
        """Return the ids of a document, uint32 (n,); None if cutting it takes too many steps.

        Not usable with the pattern "marks" without expressions.
        """
        is_short = len(text) <= SHORT_TEXT
        ids = self._room if is_short else np.empty(len(text) + 3, np.uint32)
        address = self._room_address if is_short else ids.ctypes.data
        given = text if isinstance(text, bytes) else np.frombuffer(text, np.uint8).ctypes.data
        count = self._library.llmgpu_encode_document(
            self.address, words.address, given, len(text), self._part_bytes, address
        )
        if count == TOO_SLOW:
            return None
        if count < 0:
            raise out_of_memory()
        ids = ids[:count] if is_short else _shortened(ids, count)
        return ids if ids.base is None else ids.copy()


class CThreads(EngineObject):
    """A group of threads that work together on one operation at a time."""

    def __init__(self, count: int) -> None:
        """Start `count` threads; the caller's thread is one of them."""
        self.count = count
        super().__init__("threads", count)

    def bind(self, operation: str, *arguments: Any) -> Callable[[], None]:
        """Return a function that runs an operation of rows.c or products.c on `arguments`.

        Arrays are in C order.
        """
        function = getattr(self._library, f"llmgpu_{operation}")
        plain = [as_argument(argument) for argument in arguments]

        def call(owners: Any = arguments) -> None:  # `owners` keeps the arrays alive
            function(self.address, *plain)

        return call
