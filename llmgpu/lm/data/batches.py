"""Token files as one long row of ids, and the batches of sequences that are cut from this row.

- Each read of ids opens its file, which takes microseconds. Mapped files would be faster, but if a
  mapped file is truncated, reading it ends the process by a signal, without a message.
- A sequence has seq_len + 1 tokens: the model reads the first seq_len tokens and predicts the last
  seq_len tokens. The last token of a sequence is the first token of the next sequence.
- Some sequences are for evaluation only. They come from another row, or from blocks of this row.
  The row is divided into stretches, and a block is at the end of each, because texts are often
  sorted by origin. A block begins at a token between documents, if there is one near. Training
  continues after the first such token that follows the block, if it is near.
- Each epoch cuts the training tokens at other borders and orders the sequences anew. An epoch
  starts at a random token, less than seq_len tokens from the first. Up to seq_len tokens at the
  ends are left out.
- The model reads ids that a loss mask excludes, but does not predict them: their targets are
  ignored.
- Order and borders depend only on seed and epoch, so a resumed run only needs the number of
  sequences used so far.
- Each of several corpora with weights is cut and ordered separately, in its own epochs, see
  `mix`.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, chain, pairwise
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import InputError, VocabularyError
from llmgpu.input_files import input_errors
from llmgpu.lm.options import TrainOptions
from llmgpu.progress import Progress, no_progress
from llmgpu.tokens.bin import BinFile, describe_bin_file, matched_as
from llmgpu.tokens.formats import mask_path
from llmgpu.tokens.sinks import HEADER_BYTES

_SCANNED_IDS = 1 << 20  # ids checked at a time
IGNORED_TARGET = 0xFFFFFFFF  # target that the loss ignores; larger than any id
SEARCHED_SEQUENCES = 8  # sequences near a border that are searched for a separator
# Least sequences of a stretch that ends with a block for evaluation, so that the block and the
# searches for separators fit.
LEAST_PART = 64
ROUNDS = 8  # rounds of the Feistel network in `permute`

_GOLDEN = 0x9E3779B97F4A7C15
_MIX = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_64_BITS = (1 << 64) - 1
_WHOLE_WEIGHT = 1 << 20  # sum of all weights, as whole numbers so that shares are exact

Batch = tuple[NDArray[np.uint32], NDArray[np.uint32]]  # tokens (B, T), targets (B, T)


@dataclass(frozen=True)
class _Piece:
    """A range of a file: `count` ids from number `begin` on."""

    file: BinFile
    begin: int
    count: int


class TokenSource:
    """The ids of token files, or of ranges of token files, end to end.

    vocabulary: the vocabulary of all files; it finds tokens by the rule by which the files were
        made. checksum, mask_checksum: CRC-32
        of all ids, and of the loss mask; 0 before `check_ids`. Checksums do not depend on the
        division of ids into files. corpora: number of ids of each corpus, in order; empty for a
        single corpus.
    has_mask: whether a file has a loss mask.
    """

    def __init__(self, pieces: Sequence[_Piece], vocabulary: Vocabulary) -> None:
        """Join pieces of token files; `open_token_files` has checked that all use `vocabulary`."""
        self._pieces = [piece for piece in pieces if piece.count]
        self._ends = np.cumsum([piece.count for piece in self._pieces], dtype=np.int64)
        self.vocabulary = vocabulary
        self.checksum = self.mask_checksum = 0
        self.corpora: list[int] = []
        self.has_mask = any(piece.file.has_mask for piece in self._pieces)

    def __len__(self) -> int:
        """Return the number of ids."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def count_in(self, paths: Collection[str]) -> int:
        """Return the number of ids in the files with these paths."""
        return sum(piece.count for piece in self._pieces if piece.file.path in paths)

    @property
    def folders(self) -> set[Path]:
        return {Path(piece.file.path).parent for piece in self._pieces}

    @property
    def foreign_files(self) -> list[str]:
        """The paths of files that do not record the vocabulary of their ids."""
        return [piece.file.path for piece in self._pieces if not piece.file.fingerprint]

    def joined(self, ranges: Iterable[tuple[int, int]]) -> TokenSource:
        """Return a source of the ids in several ranges of this source, end to end."""
        pieces = chain.from_iterable(self._between(begin, end) for begin, end in ranges)
        return TokenSource([*pieces], self.vocabulary)

    def _between(self, begin: int, end: int) -> Iterator[_Piece]:
        """Yield the pieces of the ids [begin, end), in order."""
        if not 0 <= begin <= end <= len(self):
            raise IndexError(f"{end - begin} ids from {begin} on, but there are {len(self)}")
        index = int(np.searchsorted(self._ends, begin, side="right"))
        while begin < end:
            piece, last = self._pieces[index], int(self._ends[index])
            count = min(end, last) - begin
            yield _Piece(piece.file, piece.begin + piece.count - (last - begin), count)
            begin, index = begin + count, index + 1

    def read(self, start: int, count: int) -> NDArray[np.uint32]:
        """Return the ids [start, start + count): uint32 (count,).

        Raises IndexError for a range beyond the row, InputError if a file can't be read any more.
        """
        pieces = [_read_ids(piece) for piece in self._between(start, start + count)]
        return np.concatenate([np.empty(0, np.uint32), *pieces], dtype=np.uint32)

    def read_mask(self, start: int, count: int) -> NDArray[np.bool_]:
        """Return whether each id of [start, start + count) counts in the loss: bool (count,).

        Raises the errors of `read`.
        """
        pieces = [_read_mask(piece) for piece in self._between(start, start + count)]
        return np.concatenate([np.empty(0, np.bool_), *pieces])

    def check_ids(self, progress: Progress = no_progress) -> None:
        """Check all ids and compute `checksum` and `mask_checksum`.

        Raises InputError for the first id beyond the vocabulary, and if no id counts in the loss.

        progress: called with the number of ids checked, phase "checking tokens".
        """
        done = checksum = mask_checksum = 0
        counts = False
        pieces = (
            _Piece(whole.file, begin, min(_SCANNED_IDS, whole.count - begin))
            for whole in self._pieces
            for begin in range(0, whole.count, _SCANNED_IDS)
        )
        for piece in pieces:
            ids = _read_ids(piece)
            if int(ids.max()) >= self.vocabulary.size:
                position = int(np.argmax(ids >= self.vocabulary.size))
                raise InputError(
                    f"{piece.file.path}: id {ids[position]} at position {piece.begin + position} "
                    f"is beyond the vocabulary of {self.vocabulary.size} ids: the file is damaged"
                )
            checksum = zlib.crc32(ids.astype("<u4", copy=False).data, checksum)
            if self.has_mask:
                mask = _read_mask(piece)
                counts |= bool(mask.any())
                mask_checksum = zlib.crc32(mask.data, mask_checksum)
            done += piece.count
            progress("checking tokens", done, len(self))
        if self.has_mask and not counts:
            raise InputError(
                f"{self._pieces[0].file.path}: no token counts towards the loss, because no "
                "conversation has an assistant message"
            )
        self.checksum, self.mask_checksum = checksum, mask_checksum


def open_token_files(
    paths: Sequence[str],
    vocabulary: Vocabulary,
    vocabulary_name: str,
    progress: Progress = no_progress,
    dtype: str | None = None,
) -> TokenSource:
    """Open ``bin`` files of a vocabulary, and check all ids once.

    vocabulary_name: name of the vocabulary in errors. progress: see `TokenSource.check_ids`. dtype:
    type of ids in files that do not record it, see `describe_bin_file`.

    Raises InputError for a file that is missing, damaged or truncated, or has an id beyond the
    vocabulary; VocabularyError for a file of another vocabulary.
    """
    files = [describe_bin_file(path, dtype, may_be_foreign=True) for path in paths]
    rules = {}
    for file in files:
        matched = matched_as(file.path, file.fingerprint, vocabulary, vocabulary_name)
        rules[matched.match] = matched, file.path
    if len(rules) > 1:
        (first, (_, one)), (second, (_, other)) = rules.items()
        raise VocabularyError(
            f"{one} was tokenized with --match {first}, {other} with --match {second}: use one rule"
        )
    pieces = [_Piece(file, 0, file.count) for file in files]
    source = TokenSource(pieces, next((made for made, _ in rules.values()), vocabulary))
    source.check_ids(progress)
    return source


def _read_ids(piece: _Piece) -> NDArray[np.integer]:
    return _read_numbers(piece, piece.file.path, piece.file.dtype, piece.file.layout.header_bytes)


def _read_mask(piece: _Piece) -> NDArray[np.bool_]:
    """Return whether each id of a piece counts in the loss: (count,)."""
    if not piece.file.has_mask:
        return np.ones(piece.count, np.bool_)
    path = mask_path(piece.file.path)
    return _read_numbers(piece, path, np.dtype(np.uint8), HEADER_BYTES).astype(np.bool_)


def _read_numbers(
    piece: _Piece, path: str, dtype: np.dtype[np.integer], offset: int
) -> NDArray[np.integer]:
    """Return the numbers of a piece: (count,).

    path: the file of ids or of the mask. offset: bytes before the first number of the file.
    """
    width = dtype.itemsize
    with input_errors(path), open(path, "rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        stream.seek(offset + piece.begin * width)
        content = stream.read(piece.count * width)
    if size < offset + piece.file.count * width or len(content) < piece.count * width:
        raise InputError(f"{path} was cut short to {size} bytes while it was read")
    return np.frombuffer(content, dtype)


def check_ids(ids: ArrayLike, vocab_size: int, what: str) -> None:
    """Check ids of any shape; what: beginning of the message.

    Raises InputError if the ids are not integers, and for the first id that is negative or not
    below `vocab_size`.
    """
    numbers = np.asarray(ids)
    if numbers.size and numbers.dtype.kind not in "iu":
        raise InputError(f"{what}: ids of type {numbers.dtype.name} are not whole numbers")
    bad = np.argwhere((numbers < 0) | (numbers >= vocab_size))
    if len(bad):
        at = tuple(bad[0].tolist())
        found = f"{what}: id {numbers[at]} at {at}"
        raise InputError(f"{found} is not in the vocabulary of {vocab_size} tokens")


def mix(weights: Sequence[float], number: int) -> tuple[int, int]:
    """Return the corpus of a sequence, and the sequence's number in this corpus.

    Sequences are assigned to corpora in proportion to weights. The number of a sequence decides its
    corpus, so a resumed run needs only the number of sequences used so far. Of the first n
    sequences floor(n * weight) are from the first corpus. The other sequences are divided among the
    remaining corpora in the same way. So the shares are exact, up to whole sequences, all along the
    run.

    weights: one for each corpus, above 0, in any unit. number: number of the sequence in the run,
    from 0.
    """
    total = sum(weights)
    shares = [max(1, round(weight / total * _WHOLE_WEIGHT)) for weight in weights]
    whole = sum(shares)
    for corpus, share in enumerate(shares[:-1]):
        # The number of a corpus's sequences is its share of all sequences so far, rounded down. A
        # sequence that increases this number belongs to the corpus. All other sequences are
        # renumbered, and divided among the remaining corpora.
        before, after = number * share // whole, (number + 1) * share // whole
        if after > before:
            return corpus, before
        number -= before
        whole -= share
    return len(shares) - 1, number


class Batches:
    """The batches of a run.

    training_sequences: number of sequences in an epoch, over all corpora. evaluation_sequences:
    number of sequences for evaluation.
    """

    def __init__(
        self,
        source: TokenSource,
        options: TrainOptions,
        seq_len: int,
        separator: int | None = None,
        evaluation_source: TokenSource | None = None,
    ) -> None:
        """Divide the tokens.

        options: have the number of sequences of a batch (B), the seed, the weights of the corpora
            of `source`, and the fraction of sequences of each corpus that is held out. At least one
            sequence of a corpus is held out, unless the fraction is 0.
        seq_len: tokens of a sequence (T). separator: id between documents, if any.
        evaluation_source: tokens to evaluate on instead of a fraction of `source`.

        Raises InputError for too few tokens.
        """
        self.batch_size, self.seq_len = options.batch_size, seq_len
        self._ids, self._seed, self._weights = source.vocabulary.size, options.seed, options.shares
        fraction = options.evaluation_fraction if evaluation_source is None else 0.0
        # The training tokens of each corpus, and the number of sequences in an epoch.
        self._corpora: list[tuple[TokenSource, int]] = []
        evaluated = []
        # Divide each corpus into training and evaluation.
        for begin, end in pairwise([0, *accumulate(source.corpora or [len(source)])]):
            corpus = source.joined([(begin, end)])
            held_out = round(max(0, len(corpus) - 1) // seq_len * fraction)
            held_out = max(1, held_out) if fraction else 0
            if len(corpus) - 1 - held_out * seq_len < seq_len:
                raise _too_short(len(corpus), seq_len, held_out)
            training, evaluation = divide(
                corpus, seq_len, held_out, options.evaluation_parts, separator
            )
            own = corpus.joined(training)
            self._corpora.append((own, max(1, (len(own) - seq_len) // seq_len)))
            evaluated.append(begin + evaluation)
        self._evaluated, self._evaluation_starts = source, np.concatenate(evaluated)
        # Cut the sequences of an evaluation source, from its first token on.
        if evaluation_source is not None:
            count = (len(evaluation_source) - 1) // seq_len
            if count < 1:
                raise InputError(
                    f"the evaluation text has {len(evaluation_source):,} tokens, but one sequence "
                    f"takes {seq_len + 1:,}: use more text"
                )
            self._evaluated = evaluation_source
            self._evaluation_starts = seq_len * np.arange(count, dtype=np.int64)
        self.evaluation_sequences = len(self._evaluation_starts)
        self.training_sequences = sum(count for _, count in self._corpora)

    def training(self, position: int) -> Batch:
        """Return the batch that follows `position` sequences: tokens and targets, uint32 (B, T)."""
        numbers = range(position, position + self.batch_size)
        return self._read([self._sequence(number) for number in numbers])

    def _sequence(self, number: int) -> tuple[TokenSource, int]:
        """Return the source of a training sequence, and the number of ids before it.

        number: number of the sequence in the run, from 0.
        """
        chosen, place = mix(self._weights, number)
        source, count = self._corpora[chosen]
        epoch, index = divmod(place, count)
        *keys, last = _random_numbers(self._seed, epoch | chosen << 32)
        offsets = min(self.seq_len, len(source) - count * self.seq_len)
        return source, permute(index, count, keys) * self.seq_len + last % offsets

    def evaluation(self, limit: int | None = None) -> Iterator[Batch]:
        """Yield the batches for evaluation, in order: tokens and targets, uint32 (B, T).

        limit: most sequences, evenly spread; None: all. If the last batch is not full, its
        remaining tokens are 0 and its remaining targets are IGNORED_TARGET.
        """
        every = self.evaluation_sequences
        count = every if limit is None else min(limit, every)
        for begin in range(0, count, self.batch_size):
            taken = np.arange(begin, min(begin + self.batch_size, count), dtype=np.int64)
            # Spread the chosen sequences evenly over all held-out sequences.
            starts = self._evaluation_starts[taken * every // count]
            yield self._read([(self._evaluated, start) for start in starts.tolist()])

    def _read(self, sequences: Sequence[tuple[TokenSource, int]]) -> Batch:
        """Read up to B sequences. Fill the rest of the batch with ignored targets.

        sequences: for each its source, and the number of ids before it.
        """
        ids = np.zeros((self.batch_size, self.seq_len + 1), np.uint32)
        counts = np.zeros((self.batch_size, self.seq_len), np.bool_)
        for k, (source, start) in enumerate(sequences):
            ids[k] = source.read(start, self.seq_len + 1)
            counts[k] = not source.has_mask or source.read_mask(start + 1, self.seq_len)
        check_ids(ids, self._ids, "a token file was changed during the run")
        return ids[:, :-1].copy(), np.where(counts, ids[:, 1:], np.uint32(IGNORED_TARGET))


def document_starts(tokens: NDArray[np.uint32], separator: int) -> NDArray[np.uint32]:
    """Return for each token the position at which its document begins: uint32 (B, T).

    Positions count from the first token of the sequence. A document begins with the separator
    before it, because the model predicts the document's first token from this separator. Tokens
    before the first separator of a sequence get position 0.
    """
    positions = np.arange(tokens.shape[1], dtype=np.uint32)
    begins = np.where(tokens == separator, positions, np.uint32(0))
    return np.maximum.accumulate(begins, axis=1)


def token_bytes(vocabulary: Vocabulary) -> NDArray[np.uint32]:
    """Return the number of bytes of text in each token, by id: uint32 (size,).

    Special tokens have 0 bytes. An unknown token that is not special has 1.
    """
    spans = vocabulary.token_spans.astype(np.uint32)
    spans[list(vocabulary.special_tokens.values())] = 0
    return spans


def divide(
    source: TokenSource, seq_len: int, held_out: int, parts: int, separator: int | None
) -> tuple[list[tuple[int, int]], NDArray[np.int64]]:
    """Divide a source of more than seq_len * held_out tokens into training and evaluation.

    Returns the ranges of training tokens, ascending, and the positions of the sequences for
    evaluation, int64 (held_out,).

    held_out: number of sequences for evaluation. parts: the most stretches into which the source
    is divided; the end of each is for evaluation. separator: id between documents, if any.
    """
    size = len(source)
    parts = max(1, min(parts, held_out, size // (LEAST_PART * seq_len)))
    training: list[tuple[int, int]] = []
    evaluation = []
    resumed = 0  # position at which training continues after the previous block
    for part in range(parts):
        end = (part + 1) * size // parts
        sequences = held_out // parts + (part < held_out % parts)
        # The last target of the block for evaluation is the last token of the stretch. Begin the
        # block at a separator instead, if there is one near.
        begin = end - sequences * seq_len - 1
        if parts > 1 and separator is not None and sequences:
            least = max(resumed + seq_len, begin - SEARCHED_SEQUENCES * seq_len)
            begin = max(_positions(source, separator, least, begin + 1), default=begin)
        # Evaluation reads the token at `begin` but does not predict it, so training may predict it.
        training.append((resumed, max(resumed, begin + 1)))
        evaluation.append(begin + seq_len * np.arange(sequences, dtype=np.int64))
        resumed = begin + sequences * seq_len + 1
        # Continue training after a separator, if one is near.
        if part < parts - 1 and separator is not None:
            after = end + SEARCHED_SEQUENCES * seq_len
            found = _positions(source, separator, resumed, after)
            resumed = found[0] + 1 if found else resumed
    training.append((resumed, size))
    used = [(begin, end) for begin, end in training if begin < end]
    return used, np.concatenate(evaluation)


def _positions(source: TokenSource, separator: int, begin: int, end: int) -> list[int]:
    """Return the positions of separators in [begin, end), ascending; [] if end < begin."""
    ids = source.read(begin, max(0, end - begin))
    positions: list[int] = (begin + np.flatnonzero(ids == separator)).tolist()
    return positions


def _too_short(tokens: int, seq_len: int, held_out: int) -> InputError:
    needed = (1 + held_out) * seq_len + 1
    for_evaluation = f" and {held_out:,} for evaluation" if held_out else ""
    or_less = ", or hold out less for evaluation" if held_out else ""
    if tokens < 2:  # an empty text has only the token after its document
        return InputError(f"the corpus is empty: training takes at least {needed:,} tokens of text")
    return InputError(
        f"{tokens:,} tokens are too few: one sequence of {seq_len:,} for training"
        f"{for_evaluation} take {needed:,}; use more text or a shorter sequence length{or_less}"
    )


@lru_cache  # all sequences of an epoch have the same numbers
def _random_numbers(seed: int, stream: int) -> list[int]:
    # The raw numbers of Philox are the same with every version of NumPy.
    key = np.array([seed, stream], np.uint64)
    return [*map(int, np.random.Philox(key=key).random_raw(ROUNDS + 1))]


def permute(index: int, size: int, keys: Sequence[int]) -> int:
    """Return the image of `index` under a random permutation of [0, size).

    The permutation needs no memory for any size. A Feistel network permutes the numbers of k bits:
    each round XORs a hash of one half of the bits into the other half, which can be undone. A
    number that leaves [0, size) goes through the network again until the result is in range (cycle
    walking). A result in range is always reached, because a permutation moves every number along a
    cycle that contains the number itself.

    keys: `ROUNDS` random numbers of 64 bits that select the permutation.
    """
    bits = (size - 1).bit_length()
    image = _permute_bits(index, bits, keys)
    while image >= size:  # 2^bits < 2 * size, so less than half of the numbers are outside
        image = _permute_bits(image, bits, keys)
    return image


def _permute_bits(value: int, bits: int, keys: Sequence[int]) -> int:
    low_bits = bits // 2
    low_mask, high_mask = (1 << low_bits) - 1, (1 << bits - low_bits) - 1
    low, high = value & low_mask, value >> low_bits
    for index, key in enumerate(keys):
        if index % 2:
            low ^= _hash(high, key) & low_mask
        else:
            high ^= _hash(low, key) & high_mask
    return high << low_bits | low


def _hash(value: int, key: int) -> int:
    """Mix the bits of a number with a key, by the last step of SplitMix64."""
    mixed = (value ^ key) * _GOLDEN & _64_BITS
    mixed = (mixed ^ mixed >> 30) * _MIX[0] & _64_BITS
    mixed = (mixed ^ mixed >> 27) * _MIX[1] & _64_BITS
    return mixed ^ mixed >> 31
