"""Words as symbols, the input of a batched trainer.

Symbols are numbered in the order that decides between equally frequent pairs: first the bytes by
their rank (0 .. 255, see `llmgpu.bpe.vocabulary.building`), then all other tokens by their ids.
Each merge that makes a new symbol gives it the next number.

Training starts from a vocabulary: the 256 bytes, or a vocabulary whose merges are replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.arrays import offsets_of
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.bpe.words.distinct_words import DistinctWords
from llmgpu.errors import InputError, VocabularyError
from llmgpu.progress import Progress, no_progress
from llmgpu.text.normalizing import get_normalizer


@dataclass(eq=False)
class SymbolWords:
    """Words of two symbols or more. Shorter words have no pair to merge and are left out.

    symbols: (n,), the words end to end: uint8 if all are bytes before any merge, else uint32.
    offsets: int64 (words + 1,), word k is symbols[offsets[k] : offsets[k + 1]].
    counts: int64 (words,), occurrences of each word, 1 or more.
    lengths: uint32 (symbols,), the bytes of each symbol; the first new symbol is len(lengths).
    total: number of symbols in the whole text, including words that are left out.
    """

    symbols: NDArray[np.uint8] | NDArray[np.uint32]
    offsets: NDArray[np.int64]
    counts: NDArray[np.int64]
    lengths: NDArray[np.uint32]
    total: int

    @property
    def positions(self) -> int:
        """Number of symbols, and of separators around the words."""
        return len(self.symbols) + len(self.counts) + 1

    def let_go(self) -> None:
        """Free the symbols. Call this after a trainer has copied them."""
        self.symbols = self.symbols[:0].copy()


def byte_symbols(words: DistinctWords, byte_ranks: NDArray[np.uint32]) -> SymbolWords:
    """Return words with a symbol for each byte.

    byte_ranks: uint32 (256,), a permutation: the rank of each byte, which decides ties.
    """
    lengths = np.diff(words.offsets)
    kept = lengths > 1
    data = words.data if kept.all() else words.data[np.repeat(kept, lengths)]
    table = byte_ranks.astype(np.uint8).tobytes()
    return SymbolWords(
        symbols=np.frombuffer(data.tobytes().translate(table), np.uint8),
        offsets=offsets_of(lengths[kept]),
        counts=words.counts[kept],
        lengths=np.ones(256, np.uint32),
        total=int(np.dot(lengths, words.counts)),
    )


class Spellings:
    """The bytes of every symbol, and the symbols that no merge has made yet.

    These symbols are called unreached. A merge that spells an unreached symbol makes this symbol;
    any other merge makes a new symbol. So no two ids have the same bytes.
    """

    def __init__(self, tokens: Iterable[bytes], unreached: Sequence[int]) -> None:
        """Start with symbols that have the bytes `tokens`, some of them `unreached`."""
        self._tokens = list(tokens)
        self._unreached = {self._tokens[symbol]: symbol for symbol in reversed(unreached)}

    def merge(self, left: int, right: int) -> int:
        """Return the symbol that the next merge makes, and record the merge."""
        spelled = self._tokens[left] + self._tokens[right]
        symbol = self._unreached.pop(spelled, len(self._tokens))
        if symbol == len(self._tokens):
            self._tokens.append(spelled)
        return symbol

    def results(self, pairs: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """Return the symbol that each merge makes: uint32 (M,).

        pairs: uint32 (M, 2), merges in order; InputError for a symbol that does not exist yet.
        """
        try:
            made = [self.merge(left, right) for left, right in pairs.tolist()]
        except IndexError as error:
            raise InputError("a merge has a symbol that no merge before it makes") from error
        return np.array(made, np.uint32)


@dataclass(frozen=True, eq=False)
class SeedSymbols:
    """The tokens of a vocabulary as symbols, one symbol for each id.

    ids: uint32 (symbols,), the id of each symbol.
    tokens: the bytes of each symbol.
    merges: uint32 (M, 3), the vocabulary's merges: left symbol, right symbol, result.
    unreached: the ordinary symbols that no merge of the vocabulary makes, ascending.
    """

    ids: NDArray[np.uint32]
    tokens: tuple[bytes, ...]
    merges: NDArray[np.uint32]
    unreached: tuple[int, ...]

    def spellings(self) -> Spellings:
        """Return new `Spellings`, to number the results of further merges."""
        return Spellings(self.tokens, self.unreached)

    def results(self, pairs: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """Return the symbol that each learned merge makes; pairs: uint32 (M, 2), in order."""
        if self.unreached:
            return self.spellings().results(pairs)
        return np.arange(len(self.tokens), len(self.tokens) + len(pairs), dtype=np.uint32)

    def words(self, words: DistinctWords, byte_ranks: NDArray[np.uint32]) -> SymbolWords:
        """Return words with a symbol for each byte, before any merge."""
        lengths = np.fromiter(map(len, self.tokens), np.uint32, len(self.tokens))
        return replace(byte_symbols(words, byte_ranks), lengths=lengths)


def seed_symbols(seed: Vocabulary, byte_ranks: NDArray[np.uint32]) -> SeedSymbols:
    """Number the tokens of a vocabulary: bytes by their rank, then all other tokens by their ids.

    Raises VocabularyError if the vocabulary can't be extended: a byte has no token, text is changed
    before it is tokenized, or a merge joins a token of several bytes that no earlier merge makes.
    """
    _check_seed(seed)
    ids = np.empty(seed.size, np.uint32)  # the id of each symbol
    is_byte = np.zeros(seed.size, np.bool_)  # whether the token of each id is a byte
    ordinary, spelled = seed.ordinary_ids.tolist(), tuple(seed.tokens)
    # Go backwards, so that the lowest of several ids for the same byte remains.
    of_byte = {spelled[i]: i for i in reversed(ordinary) if len(spelled[i]) == 1}
    for value, rank in enumerate(byte_ranks.tolist()):
        ids[rank] = of_byte[bytes([value])]
    is_byte[ids[:256]] = True
    ids[256:] = np.flatnonzero(~is_byte)
    symbol_of = np.empty(seed.size, np.uint32)  # the symbol of each id
    symbol_of[ids] = np.arange(seed.size, dtype=np.uint32)
    merges = symbol_of[seed.merges]
    reached = _reached(merges, seed.size)
    tokens = tuple(map(spelled.__getitem__, ids.tolist()))
    unreached = sorted(
        symbol for symbol in symbol_of[ordinary].tolist() if tokens[symbol] and not reached[symbol]
    )
    return SeedSymbols(ids, tokens, merges, tuple(unreached))


def _check_seed(seed: Vocabulary) -> None:
    missing = seed.missing_bytes
    if missing:
        raise VocabularyError(
            f"this vocabulary can't be extended: {len(missing)} bytes have no token, the "
            f"first is 0x{missing[0]:02x}"
        )
    if seed.normalizer is not None:
        name = get_normalizer(seed.normalizer).name
        raise VocabularyError(
            f"this vocabulary can't be extended: it normalizes text ({name}), which training does "
            "not"
        )


def _reached(merges: NDArray[np.uint32], size: int) -> NDArray[np.bool_]:
    """Return whether each symbol is a byte or the result of a merge: bool (size,)."""
    reached = np.arange(size) < 256
    for k, (left, right, result) in enumerate(merges.tolist()):
        if not (reached[left] and reached[right]):
            raise VocabularyError(
                f"this vocabulary can't be extended: no merge before merge {k} makes its parts"
            )
        reached[result] = True
    return reached


# A callback for finished merges in their order: pairs of symbols, uint32 (k, 2), and the
# occurrences of each pair, int64 (k,).
OnMerges = Callable[[NDArray[np.uint32], NDArray[np.int64]], None]


@dataclass(frozen=True, kw_only=True)
class MergeTask:
    """The merges that a trainer is to learn.

    merges: the most new symbols that the merges make.
    on_merges: called with the finished merges, batch by batch.
    spellings: records the result of each merge, on the CPU only. A merge that spells an unreached
        symbol of the seed makes this symbol instead of a new one.
    keeps_words: if False, the trainer may free the words' symbols early, to save memory.
    """

    merges: int
    progress: Progress = no_progress
    on_merges: OnMerges | None = None
    spellings: Spellings | None = None
    keeps_words: bool = True


@dataclass(frozen=True, eq=False)
class Merges:
    """Merges that a trainer has learned.

    pairs: uint32 (M, 2), the symbols merged, first merge first. (The recount trainer gives ids
        instead: a byte's id is its value, and merge k makes id 256 + k.)
    counts: int64 (M,), occurrences of each pair when it was merged.
    symbols: number of symbols in the text after the last merge.
    batches: number of passes; None if unknown.
    """

    pairs: NDArray[np.uint32]
    counts: NDArray[np.int64]
    symbols: int
    batches: int | None = None


def check_logged(
    pairs: NDArray[np.uint32], counts: NDArray[np.int64], seed: SeedSymbols, min_frequency: int
) -> None:
    """Raise InputError for logged merges that no training can have made.

    pairs, counts: as in `Merges`. Both symbols of a pair must exist before its merge. No pair may
    occur more often than the pair before. Equally frequent pairs come in ascending order of their
    symbols, unless the second pair contains the symbol that the first merge makes.
    """
    new = len(seed.tokens) + np.arange(len(pairs))  # the symbol that each merge makes
    order = pairs[:, 0].astype(np.int64) << 32 | pairs[:, 1]
    made_before = np.asarray((pairs >= new[:, None] - 1).any(axis=1))
    steps = np.diff(counts)
    sound = (
        (pairs < new[:, None]).all()
        and (counts >= max(min_frequency, 1)).all()
        and (steps <= 0).all()
        # With unreached symbols, a merge may make an old symbol, so the order of pairs is not
        # checked.
        and (seed.unreached or ((steps < 0) | (np.diff(order) > 0) | made_before[1:]).all())
    )
    if not sound:
        raise InputError("its log holds merges that this training can't have made: remove it")


def check_replayed(
    pairs: NDArray[np.uint32], counts: NDArray[np.int64], before: int, after: int
) -> None:
    """Raise InputError unless the merges have shortened the text as their counts require.

    before, after: number of symbols in the text. Merging an occurrence removes one symbol.
    Occurrences of (a, a) may overlap, so at least half of them are merged.
    """
    overlap = pairs[:, 0] == pairs[:, 1]
    most = sum(counts.tolist())  # sum Python's ints, which do not overflow
    least = most - sum((counts[overlap] // 2).tolist())
    if not least <= before - after <= most:
        raise InputError("its log holds merges that are not those of its word counts: remove it")


def translate(
    pairs: NDArray[np.uint32], results: NDArray[np.uint32], ids: NDArray[np.uint32]
) -> NDArray[np.uint32]:
    """Convert merges of symbols to merges of ids.

    pairs: uint32 (M, 2), symbols. results: uint32 (M,), the merged symbols.
    ids: uint32 (symbols,), the id of each symbol before training; a new symbol's number is its id.

    Returns uint32 (M, 3): left, right, result.
    """
    triples = np.column_stack([pairs, results]).astype(np.uint32)
    known = triples < len(ids)
    triples[known] = ids[triples[known]]
    return triples
