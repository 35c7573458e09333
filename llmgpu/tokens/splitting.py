"""Documents shuffled, or divided among several outputs."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.encoding.encoder import EncodedSlice
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import InputError
from llmgpu.files import output_errors
from llmgpu.text.corpus import Corpus
from llmgpu.tokens.sinks import TokenSink

_PIECE_IDS = 1 << 20
_SHUFFLING = 1 << 63  # added to a seed: the order has nothing to do with --split
_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio


def split_name(output: str, split: str) -> str:
    """Return the file of a split: with "val", val.bin for train.bin and x-val.bin for x.bin."""
    folder, name = os.path.split(output)
    stem, ending = os.path.splitext(name)
    begin = re.sub(r"train$", "", stem)
    return os.path.join(folder, f"{begin if begin != stem else f'{stem}-'}{split}{ending}")


# Returns the number of the sink that each document goes to, int64 (n,), given the numbers of the
# documents, uint64 (n,).
Owners = Callable[[NDArray[np.uint64]], NDArray[np.int64]]


def drawn_owners(shares: Sequence[float], seed: int) -> Owners:
    """Give each sink but the first a share of the documents, drawn by a seed, and it the rest.

    shares: of the sinks after the first, above 0; less than 1 in all. seed: 0 or more.
    """
    edges = np.cumsum(shares)

    def owners(numbers: NDArray[np.uint64]) -> NDArray[np.int64]:
        drawn = np.searchsorted(edges, uniform(seed, numbers), side="right") + 1
        drawn[drawn > len(edges)] = 0
        return drawn

    return owners


def owners_by_file(text: Corpus, firsts: Sequence[int]) -> Owners:
    """Give each sink but the first the documents from one of the files of a corpus on.

    firsts: indices of these files, ascending.
    """

    def owners(numbers: NDArray[np.uint64]) -> NDArray[np.int64]:
        begun = [text.begun[first].documents for first in firsts if first < len(text.begun)]
        return np.searchsorted(np.array(begun, np.uint64), numbers, side="right")

    return owners


class SplitSink(TokenSink):
    """Divides documents among several sinks.

    The sink of a document depends on its number alone, not on slices or devices.
    """

    def __init__(
        self,
        sinks: Sequence[TokenSink],
        owners: Owners,
        spans: NDArray[np.int64],
    ) -> None:
        """Give documents to the sinks that `owners` says. spans: bytes of text of each id."""
        super().__init__()
        self.sinks = sinks
        self._owners = owners
        self._spans = spans
        self._open = 0  # the sink of the document that the next ids belong to

    def write(self, piece: EncodedSlice) -> None:
        """Write the next ids, see `TokenSink.write`."""
        starts, size = piece.document_starts, len(piece.ids)
        numbers = np.arange(self.documents, self.documents + len(starts), dtype=np.uint64)
        drawn = self._owners(numbers)
        owners = np.concatenate([[self._open], drawn])
        of_id = np.repeat(owners, np.diff(np.concatenate([[0], starts, [size]])))
        self._open = int(owners[-1])
        for number, sink in enumerate(self.sinks):
            mine, own = of_id == number, drawn == number
            if not (mine.any() or own.any()):
                continue
            before = np.concatenate([[0], np.cumsum(mine)])
            ids = piece.ids[mine]
            closed = piece.closed and self._open == number
            text_bytes = int(self._spans[ids].sum())
            mask = None if piece.mask is None else piece.mask[mine]
            sink.write(EncodedSlice(ids, before[starts[own]], text_bytes, closed, mask))
        self.ids += size
        self.documents += len(starts)

    def close(self) -> None:
        """Close all sinks; if one fails, abort the rest."""
        left = list(self.sinks)
        try:
            while left:
                left.pop(0).close()
        finally:
            for sink in left:
                sink.abort()

    def abort(self) -> None:
        """Abort all sinks."""
        for sink in self.sinks:
            sink.abort()


class ShuffledSink(TokenSink):
    """Hands documents on in an order drawn by the seed and their numbers alone.

    sink: the next sink. Until the end, ids are in a temporary file, 4 bytes each, masks in a second
    file, and the starts of documents in memory.
    """

    def __init__(
        self, sink: TokenSink, seed: int, spans: NDArray[np.int64], folder: str | None = None
    ) -> None:
        """Shuffle the documents for `sink`.

        seed: 0 or more. spans: bytes of text of each id. folder: of the temporary file.

        Raises OutputError if a temporary file can't be made.
        """
        super().__init__()
        self.sink = sink
        self._seed = seed
        self._spans = spans
        self._name = os.path.join(folder or tempfile.gettempdir(), "a temporary file")
        with output_errors(self._name):
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (see `abort`)
            self._masks = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        self._starts: list[NDArray[np.int64]] = []
        self._has_mask = False

    def write(self, piece: EncodedSlice) -> None:
        """Keep the next ids, see `TokenSink.write`."""
        with output_errors(self._name):
            self._file.write(np.ascontiguousarray(piece.ids, np.uint32).data)
            if piece.mask is not None:
                self._masks.write(piece.mask.tobytes())
                self._has_mask = True
        self._starts.append(piece.document_starts + self.ids)
        self.ids += len(piece.ids)
        self.documents += len(piece.document_starts)

    def close(self) -> None:
        """Hand all documents on, and close the sink."""
        try:
            with output_errors(self._name):
                self._file.flush()
                self._masks.flush()
            for piece in self._pieces():
                self.sink.write(piece)
        except BaseException:
            self.abort()
            raise
        self._file.close()
        self._masks.close()
        self.sink.close()

    def abort(self) -> None:
        """Abort the sink."""
        self._file.close()
        self._masks.close()
        self.sink.abort()

    def _pieces(self) -> Iterator[EncodedSlice]:
        """Yield the documents in their new order, in pieces of bounded size."""
        starts = np.concatenate([np.empty(0, np.int64), *self._starts])
        lengths = np.diff(np.append(starts, self.ids))
        numbers = np.arange(len(starts), dtype=np.uint64)
        order = np.argsort(uniform(self._seed + _SHUFFLING, numbers), kind="stable")
        ends = np.cumsum(lengths[order])
        begins = ends - lengths[order]
        shifts = starts[order] - begins  # from the old position of an id to its new position
        kept = np.memmap(self._file, np.uint32, "r") if self.ids else np.empty(0, np.uint32)
        has_mask = self._has_mask and self.ids
        masks = np.memmap(self._masks, np.bool_, "r") if has_mask else None
        for begin in range(0, self.ids, _PIECE_IDS):
            end = min(self.ids, begin + _PIECE_IDS)
            low, high = np.searchsorted(ends, begin, "right"), np.searchsorted(begins, end, "left")
            inside = np.minimum(ends[low:high], end) - np.maximum(begins[low:high], begin)
            at = np.arange(begin, end) + np.repeat(shifts[low:high], np.maximum(inside, 0))
            first = np.searchsorted(begins, begin, "left")
            ids = kept[at]
            text_bytes = int(self._spans[ids].sum())
            mask = None if masks is None else masks[at]
            yield EncodedSlice(ids, begins[first:high] - begin, text_bytes, mask=mask)
        empty = len(begins) - int(np.searchsorted(begins, self.ids, "left"))
        no_mask = np.empty(0, np.bool_) if self._has_mask else None
        yield EncodedSlice(np.empty(0, np.uint32), np.zeros(empty, np.int64), 0, mask=no_mask)


def uniform(seed: int, numbers: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return a number in [0, 1) for each of `numbers` (n,): SplitMix64 of seed and number."""
    mixed = numbers * np.uint64(_GOLDEN) + np.uint64((seed * 0xD1B54A32D192ED03 + _GOLDEN) & _MASK)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def spans_without(vocabulary: Vocabulary, added: Collection[int]) -> NDArray[np.int64]:
    """Return the bytes of text of each id; 0 for ids `added` to the text."""
    spans = vocabulary.token_spans.copy()
    spans[list(added)] = 0
    return spans


def check_shares(shares: Mapping[str, float]) -> None:
    """Raise InputError unless shares leave something for the output itself."""
    total = sum(shares.values())
    if total >= 1:
        raise InputError(
            f"the splits take {100 * total:g}% of the documents: leave some for the rest"
        )
