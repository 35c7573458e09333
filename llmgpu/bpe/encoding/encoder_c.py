"""The encoder on the CPU engine: see `llmgpu/cpu/encode.c` for how text becomes ids.

All threads share one table of words, so a new word is merged once. No thread waits for another.
With up to three threads, each thread encodes a slice of its own. With more, the engine's own
threads encode parts of the same slice, see `llmgpu/cpu/parts.c`.

The engine merges a long word faster if it may divide the word at places that no merge crosses. Such
places are called cuts. The engine finds the cuts of a vocabulary once, before the first long text
in which they may help.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.arrays import PADDING
from llmgpu.bpe.encoding.encoder import EncodedSlice
from llmgpu.bpe.encoding.encoder_host import HostEncoder, HostSlices, require_tokens
from llmgpu.bpe.encoding.special_encoding import normalized_texts
from llmgpu.bpe.pretokens.pattern import get_pattern
from llmgpu.bpe.pretokens.slices import Slice
from llmgpu.bpe.vocabulary.file import PackedTokens
from llmgpu.bpe.vocabulary.trie import NO_TOKEN, compile_trie
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.cpu.library import TEXT_PADDING, CEncoder, CSharedWords, CVocabulary, library
from llmgpu.forking import delaying_forks
from llmgpu.pipeline import in_order
from llmgpu.text.nfc import changeable_bits
from llmgpu.text.normalizing import NFC
from llmgpu.text.streams import FileBytes

if TYPE_CHECKING:
    from llmgpu.bpe.vocabulary.pieces import PieceSymbols

SLICE_BYTES = 1 << 20
MANY_THREADS = 4  # from this number of threads on, the engine's threads encode a slice together
PARTS = 4  # parts of a slice of SLICE_BYTES; a thread of the engine encodes one part at a time
MAX_TABLE_BYTES = 384 << 20  # the largest table of words
# Encoding a text of fewer bytes takes less time than finding the vocabulary's cuts.
LONG_TEXT = 1 << 17
# The vocabulary's cuts are found only if at least 1/32 of a sample of the text's bytes begin a
# character beyond ASCII.
_LEAST_SHARE = 32
# The cuts are found only if the vocabulary's tokens have at most this many characters beyond ASCII
# on average. In longer tokens few cuts are left.
_MOST_LEADS = 0.5
_SAMPLE = 1 << 16  # bytes of a slice that are searched for characters beyond ASCII
# The normalizers of SentencePiece's kind that the engine applies, as vocabularies store them.
_SPACED = '[{"content":" ","pattern":{"String":"\u2581"},"type":"Replace"}]'
_PREFIXED = '[{"prepend":" ","type":"Prepend"},' + _SPACED[1:]
# Lowest first byte of a character beyond ASCII; words may be divided before such a byte.
_FIRST_LEAD = 0xC0
_LEAST_SHARE_BYTES = 1 << 14  # about the bytes of long words from which a further thread pays off


class CpuEncoder(HostEncoder):
    """Encodes texts with a vocabulary, one text at a time.

    c_slices: encodes slices, and documents without cutting them into slices.

    Memory: the table of words and, for each thread, up to 10 bytes for each byte of a slice and 24
    for each byte of the longest word of the slice.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        slice_bytes: int = SLICE_BYTES,
        threads: int = 1,
    ) -> None:
        """Prepare for encoding with `vocabulary`; see `HostEncoder`."""
        # With few threads, each thread encodes its own slice, because then no thread waits for
        # another.
        engine_threads = threads if threads >= MANY_THREADS else 1
        self.c_slices = CSliceEncoder(vocabulary, engine_threads, slice_bytes // PARTS)
        slice_bytes *= max(1, engine_threads // MANY_THREADS)
        super().__init__(vocabulary, self.c_slices, slice_bytes, threads)


class CSliceEncoder:
    """Encodes slices on the engine; may be called in any number of threads. See `HostSlices`."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        threads: int = 1,
        part_bytes: int = SLICE_BYTES // PARTS,
    ) -> None:
        """Start with an empty table of words.

        threads: threads of the engine for one slice; each encodes up to `part_bytes` at a time.
        """
        self.is_parallel = threads > 1
        self._threads, self._part_bytes = threads, part_bytes
        self._vocabulary = vocabulary
        self.pattern = vocabulary.cut.for_engine()
        self._matching = make_c_vocabulary(vocabulary)
        self._words = CSharedWords(self._matching, MAX_TABLE_BYTES)
        self._idle: list[CEncoder] = []
        has_unknown = vocabulary.unknown_token is not None
        lacks_bytes = bool(vocabulary.missing_bytes)
        self._is_complete = has_unknown or not lacks_bytes
        # Cuts are found in the bytes of tokens. But the unknown token, and tokens merged from it,
        # have other bytes than their text. Long tokens leave few cuts.
        has_bytes = vocabulary.pieces is None and not (has_unknown and lacks_bytes)
        leads = _leads(vocabulary.token_data)
        self._has_many_cuts = has_bytes and leads <= _MOST_LEADS * vocabulary.size

    def encode(
        self, piece: Slice, entry: int, memory: NDArray[np.uint32] | None = None
    ) -> tuple[EncodedSlice, int]:
        """Return the ids of a slice, as a view of a larger array, and the end of the last token.

        See `llmgpu.bpe.encoding.encoder_host.HostSlices.encode`.
        """
        if self.pattern.is_marked and not self.pattern.has_expressions:
            piece = _read(piece)  # Python marks the starts of pre-tokens
        file = piece.file  # each thread of the engine reads the bytes of a file that it encodes
        text = piece.text if file is None else (file.fileno(), file.begin, file.nbytes)
        self._find_cuts_for(file or piece.text)
        marks = None  # bool (n,), the starts of pre-tokens, unless the engine finds them
        if file is None and self.pattern.is_marked:
            marks = self._vocabulary.cut.start_mask(piece.text, piece.starts)
        encoder, words = self._take_encoder()
        own = len(piece.document_starts)
        try:
            ids, starts, stopped = encoder.encode(
                words, text, marks, piece.main_end, entry, piece.starts, own, memory
            )
        except OSError:  # Python reads the file again to raise an error with the reason
            return self.encode(_read(piece), entry, memory)
        if file is not None:
            file.check_unchanged()
        self._idle.append(encoder)  # an error skips this line, so a failed encoder is never reused
        if not self._is_complete and ids.max(initial=0) == NO_TOKEN:
            require_tokens(self._vocabulary, _read(piece), ids, entry)
        return EncodedSlice(ids, starts, piece.main_end, piece.closed), stopped

    def encode_document(self, text: bytes | memoryview) -> NDArray[np.uint32] | None:
        """Return the ids of a document without cutting it into slices.

        Returns None if only `encode` can encode the document: if a byte has no token and there is
        no unknown token, if the engine lacks the vocabulary's pattern, or if cutting takes too many
        steps.
        """
        if not self.is_immediate:
            return None
        self._find_cuts_for(np.frombuffer(text, np.uint8))
        encoder, words = self._take_encoder()
        ids = encoder.encode_document(words, text)
        self._idle.append(encoder)
        return ids

    def match_words(self, words: Sequence[NDArray[np.uint8]]) -> list[NDArray[np.uint32]]:
        """Return the ids of each word; `words` is not empty."""
        self._find_cuts_for(max(words, key=len))

        def match(some: Sequence[NDArray[np.uint8]]) -> list[NDArray[np.uint32]]:
            encoder = CEncoder(get_pattern("none").for_engine(), self._matching)
            found = (encoder.encode_document(self._words, word.tobytes()) for word in some)
            # An encoder returns None only if its pattern has expressions, and "none" has none.
            return [ids for ids in found if ids is not None]

        # Divide the words into shares of similar size, several for each thread, in order.
        ends = np.cumsum([len(word) for word in words])
        share_bytes = max(int(ends[-1]) // (4 * self._threads), _LEAST_SHARE_BYTES)
        firsts = np.unique((ends - 1) // share_bytes, return_index=True)[1].tolist()
        shares = [words[first:end] for first, end in pairwise([*firsts, len(words)])]
        done = in_order(shares, match, len(shares), threads=self._threads)
        return [ids for found in done for ids in found]

    def _take_encoder(self) -> tuple[CEncoder, CSharedWords]:
        """Return an idle or a new encoder for this thread, and the table of words to use with it.

        Another thread may replace `self._words`, when the table is full, at any time. So the caller
        uses the returned table.
        """
        words = self._words
        if words.is_spent:
            self._words = words = CSharedWords(self._matching, MAX_TABLE_BYTES)
        try:
            return self._idle.pop(), words
        except IndexError:
            encoder = CEncoder(self.pattern, self._matching, self._threads, self._part_bytes)
            return encoder, words

    @property
    def is_immediate(self) -> bool:
        """Whether the engine encodes a document in one call, without help from Python."""
        is_cut = not self.pattern.is_marked or self.pattern.has_expressions
        return self._is_complete and is_cut

    def find_cuts(self) -> None:
        """Find the vocabulary's cuts, unless there are few or none."""
        if self._has_many_cuts and not self._matching.has_cuts:
            self._matching.find_cuts()

    def _find_cuts_for(self, text: NDArray[np.uint8] | FileBytes) -> None:
        """Find the cuts of the vocabulary before a long text with many characters beyond ASCII."""
        if not self._has_many_cuts or self._matching.has_cuts or text.nbytes < LONG_TEXT:
            return
        sample = text[:_SAMPLE] if isinstance(text, np.ndarray) else _middle(text)
        if _leads(sample) * _LEAST_SHARE >= len(sample):
            self.find_cuts()


def _read(piece: Slice) -> Slice:
    return piece.read(np.empty(piece.length + PADDING, np.uint8))


def _middle(text: FileBytes) -> NDArray[np.uint8]:
    sample = np.empty(min(_SAMPLE, text.nbytes), np.uint8)
    text.read(sample, (text.nbytes - len(sample)) // 2)
    return sample


def _leads(text: NDArray[np.uint8]) -> int:
    """Return the number of characters beyond ASCII in a text."""
    return int(np.count_nonzero(text >= _FIRST_LEAD))


def host_slices(vocabulary: Vocabulary, threads: int = 1) -> HostSlices:
    """Return an encoder on the CPU for the slices and words that a device leaves to the host.

    threads: threads of the engine that encode a slice.
    """
    if library() is not None:
        return CSliceEncoder(vocabulary, threads)
    from llmgpu.bpe.encoding.encoder_numpy import SliceEncoder

    return SliceEncoder(vocabulary)


@delaying_forks()
def open_coder(vocabulary: Vocabulary, most_bytes: int | None = None) -> Any:
    """Return a `Coder` of the extension module; None if the module is missing.

    A coder decodes ids. For a vocabulary of SentencePiece's kind it has empty tokens and only
    encodes, because only Python knows all rules for decoding such ids. If Python has to prepare
    all texts of such a vocabulary, the result is None.

    most_bytes: if given, the coder also encodes documents of up to this size and looks up the ids
        of tokens. A coder can't encode if Python has to prepare all texts, or if
        `CSliceEncoder.is_immediate` is false.
    """
    from llmgpu.cpu.extension import extension, make_coder

    module = extension()
    if module is None or not (vocabulary.pieces is None or _prepared_by_engine(vocabulary)):
        return None
    data = np.concatenate([vocabulary.token_data, np.zeros(TEXT_PADDING, np.uint8)])
    offsets = vocabulary.token_offsets
    if vocabulary.pieces is not None:
        offsets = np.zeros_like(offsets)
    tokens = data, offsets, vocabulary.token_spans
    if most_bytes is None:
        return make_coder(module, tokens)
    slices = CSliceEncoder(vocabulary)
    is_ready = slices.is_immediate and _prepared_by_engine(vocabulary)
    return make_coder(
        module,
        tokens,
        slices.pattern if is_ready else None,
        make_c_vocabulary(vocabulary),
        slices.find_cuts,
        vocabulary.special_tokens,
        (MAX_TABLE_BYTES, SLICE_BYTES // PARTS, most_bytes),
    )


_made: WeakKeyDictionary[Vocabulary, CVocabulary] = WeakKeyDictionary()
_making = threading.Lock()


def make_c_vocabulary(vocabulary: Vocabulary) -> CVocabulary:
    """Return a vocabulary in the form of the CPU engine. The object is made once and cached."""
    with _making:
        made = _made.get(vocabulary)
        if made is None or not made.is_of(library()):
            made = _make_unprepared(vocabulary)
            _prepare_documents(made, vocabulary)
            _made[vocabulary] = made
    return made


def _prepared_by_engine(vocabulary: Vocabulary) -> bool:
    """Whether the engine can encode texts without Python normalizing them; see `documents.c`."""
    is_plain = vocabulary.normalizer is None and vocabulary.pieces is None
    return is_plain or make_c_vocabulary(vocabulary).prepares


def _prepare_documents(made: CVocabulary, vocabulary: Vocabulary) -> None:
    """Let the engine prepare texts, if it knows all steps of the vocabulary's normalizer."""
    if vocabulary.pieces is None:
        if vocabulary.normalizer == NFC:
            trie = compile_trie([], [])
            made.set_documents(changeable_bits(), (trie.nodes, trie.edges))
        return
    has_prefix = vocabulary.normalizer == _PREFIXED
    late = normalized_texts(vocabulary)
    found = {vocabulary.special_tokens[text]: text for text in vocabulary.always_allowed}
    are_late = {text in late for text in found.values()}
    is_late = are_late != {False}
    flagged = {*vocabulary.lstrip_tokens, *vocabulary.rstrip_tokens, *vocabulary.single_word_tokens}
    if (
        vocabulary.normalizer not in (_SPACED, _PREFIXED)
        or len(are_late) > 1
        or (has_prefix and not is_late)
        or not flagged.isdisjoint(found)
    ):
        return
    added = {late[text] if is_late else text.encode(): number for number, text in found.items()}
    if len(added) == len(found):
        trie = compile_trie([*added], [*added.values()])
        made.set_documents(None, (trie.nodes, trie.edges), has_prefix=has_prefix, is_late=is_late)


def _make_unprepared(vocabulary: Vocabulary) -> CVocabulary:
    if vocabulary.piece_symbols is not None:
        return _make_c_pieces(vocabulary.piece_symbols)
    unknown = NO_TOKEN if vocabulary.unknown_token is None else vocabulary.unknown_token
    trie = None
    if vocabulary.match == "greedy":
        nodes, edges = vocabulary.trie.nodes, vocabulary.trie.edges
        trie = np.ascontiguousarray(nodes, np.uint32), np.ascontiguousarray(edges, np.uint32)
    return CVocabulary(
        vocabulary.token_data,
        vocabulary.token_offsets,
        vocabulary.ordinary_ids,
        _ranked_merges(vocabulary),
        unknown,
        takes_whole=vocabulary.takes_whole_tokens,
        trie=trie,
    )


def _make_c_pieces(symbols: PieceSymbols) -> CVocabulary:
    size = len(symbols.tokens)
    whole = [b""] * size
    for text, number in symbols.whole_tokens.items():
        whole[number] = text
    packed = PackedTokens.of(whole)
    made = CVocabulary(
        np.frombuffer(packed.data, np.uint8),
        packed.offsets,
        np.arange(size),
        symbols.merges,
        NO_TOKEN if symbols.unknown is None else symbols.unknown,
        takes_whole=symbols.whole,
        trie=None,
    )
    arrays = symbols.byte_symbols, symbols.firsts, symbols.items
    made.set_pieces(arrays, size, fuses=symbols.rules.fuses)
    return made


def _ranked_merges(vocabulary: Vocabulary) -> NDArray[np.uint32] | None:
    """Return the pairs that merge: uint32 (pairs, 4), each left, right, result and rank.

    Returns None if the engine needs no list. This is so for greedy matching. It is also so if every
    byte has a token, and the rank of each merge is the id of the token that it makes.
    """
    merges = vocabulary.merges
    if vocabulary.match == "greedy":
        return None
    if len(merges):  # if a pair is listed several times, the engine uses the last rank
        ranks = np.arange(len(merges), dtype=np.uint32)
        return np.ascontiguousarray(np.column_stack([merges, ranks]))  # the engine reads rows
    if not vocabulary.missing_bytes:
        return None
    from llmgpu.bpe.encoding.matching import pair_ranks

    return pair_ranks(vocabulary)
