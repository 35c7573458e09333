"""Token ids as plain little-endian numbers, with a side file ``PATH.json`` that describes them.

A pipe or a device gets no side file. A layout, see `llmgpu.tokens.formats`, may put a header first.
``PATH.mask.npy``, a NumPy array of truth values, marks the ids that count in a loss. Without the
array all ids count.

If a side file lay beside ids for which it was not written, the ids would decode to wrong text. So a
writer removes the old side file before it replaces the ids. A side file also has a digest of
samples of the ids, which is compared when the ids are opened.

The index of Megatron-LM's token files, NAME.idx beside NAME.bin, is little-endian: ``MMIDIDX`` and
two zero bytes, version 1 (u64), the type of the numbers (u8: 8 is uint16, 4 is int32), the number
of sequences and the number of document bounds (u64 each). Then come the numbers of tokens of all
sequences (i32), the bytes at which the sequences begin (i64), and the sequences with which the
documents begin, followed by the number of sequences (i64). llmgpu writes a document as one
sequence, and leaves out documents without ids. Ids are below 2^31, so that uint32 and int32 are the
same bytes.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.encoding.encoder import EncodedSlice
from llmgpu.bpe.vocabulary import MATCH_RULES
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.closing import undoing
from llmgpu.cpu.texts import format_numbers
from llmgpu.errors import InputError, OutputError, VocabularyError
from llmgpu.file_kinds import NPY, TOKEN_INDEX, kind_of
from llmgpu.files import OutputFile, file_size, output_errors
from llmgpu.input_files import (
    STANDARD_INPUT,
    input_errors,
    listed,
    naming,
    quote,
    read_head,
    read_whole,
    require_known,
)
from llmgpu.spelling import spelled
from llmgpu.text.jsonl import parse_json_object
from llmgpu.tokens.formats import (
    LAYOUTS,
    Layout,
    get_layout,
    has_side_file,
    index_name,
    mask_path,
    side_path,
)
from llmgpu.tokens.sinks import (
    BLOCK_BYTES,
    HEADER_BYTES,
    NumbersWriter,
    id_dtype,
    npy_header,
    open_stream,
    read_numbers,
)

SIDE_FORMAT = "llmgpu-tokens"
SIDE_VERSION = 1

_SAMPLES, _SAMPLE_BYTES = 64, 4096

_SIDE_FIELDS: dict[str, type] = {
    "dtype": str,
    "layout": str,
    "count": int,
    "bytes": int,
    "vocabulary_size": int,
    "fingerprint": str,
    "documents": int,
    "continues": bool,
    "length": int,
    "sample_sha256": str,
    "document_offsets": list,
}

# Token files of other tools are read, too. They have no side file and do not name the vocabulary.
# llm.c writes the integer type in a header, Megatron-LM writes it in the index, and nanoGPT does
# not write it.
_INDEX = struct.Struct("<9sQBQQ")
_INDEX_MAGIC, _INDEX_VERSION = b"MMIDIDX\0\0", 1
_INDEX_CODES = {"uint16": 8, "uint32": 4}
_MOST_IN_INDEX = 2**31 - 1  # limit of the ids of a document in an index
_LLMC = LAYOUTS["llmc"]


def read_bin(
    name: str, vocabulary_size: int | None = None, layout: str = "raw", dtype: str | None = None
) -> Iterator[NDArray[np.int64]]:
    """Yield the ids of a file, int64, in blocks.

    vocabulary_size, layout: for a pipe, which has no side file. dtype: type of the numbers of a
    pipe, or of a file of another tool that does not name its type.
    """
    found, kind, count = get_layout(layout), None, None
    if name != STANDARD_INPUT and os.path.isfile(name):
        side = read_side_file(name) if has_side_file(name) else None
        found, kind, count = _side_facts(name, side, dtype) if side else numbers_of(name, dtype)
    elif not found.header_bytes:
        if vocabulary_size is None:
            raise InputError(
                f"{name}: a bin stream has no side file, which records its integer type: use npy"
            )
        kind = np.dtype(dtype).newbyteorder("<") if dtype else id_dtype(vocabulary_size)
    with open_stream(name) as stream:
        buffered = io.BufferedReader(stream, BLOCK_BYTES)
        header = buffered.read(found.header_bytes)
        if kind is None:
            stored, count = found.parse_header(header, name)
            kind = np.dtype(stored).newbyteorder("<")
        yield from read_numbers(buffered, name, kind, count)


def make_index(kind: str, starts: NDArray[np.int64], count: int) -> bytes:
    """Return the index of `count` ids.

    kind: uint16 or uint32. starts: positions at which documents begin, ascending (n,). The ids
    before the first position belong to a document of the previous file.

    Raises OutputError for a document of more than 2^31 - 1 ids.
    """
    inside = starts[(starts > 0) & (starts < count)]
    bounds = np.unique(np.concatenate([np.array([0, count], np.int64), inside]))
    lengths = np.diff(bounds)
    if lengths.max(initial=0) > _MOST_IN_INDEX:
        raise OutputError(
            f"a document of {lengths.max()} ids: Megatron's limit is {_MOST_IN_INDEX}"
        )
    sequences = len(lengths)
    return b"".join(
        [
            _INDEX.pack(_INDEX_MAGIC, _INDEX_VERSION, _INDEX_CODES[kind], sequences, sequences + 1),
            lengths.astype("<i4").tobytes(),
            (bounds[:-1] * np.dtype(kind).itemsize).astype("<i8").tobytes(),
            np.arange(sequences + 1, dtype="<i8").tobytes(),
        ]
    )


def read_side_file(path: str | Path) -> dict[str, Any]:
    """Return the content of the side file of a ``bin`` file, after checks of all entries.

    Raises InputError if the side file is missing, damaged, of another format or of a newer version.
    """
    name = side_path(path)
    with input_errors(f"{name}, the side file of {path}"):
        data = read_whole(name, "side file")
    side: dict[str, Any] = parse_json_object(data, name)
    # Check format and version first, then the types of all entries, then their values.
    if side.get("format") != SIDE_FORMAT:
        raise InputError(f"{name}: not a side file of token ids (its format: {SIDE_FORMAT!r})")
    version = side.get("version")
    if version != SIDE_VERSION:
        raise InputError(f"{name}: version {quote(version)}, but this llmgpu reads {SIDE_VERSION}")
    for field, kind in _SIDE_FIELDS.items():
        value = side.get(field)
        if type(value) is not kind or (type(value) is int and value < 0):
            raise InputError(f"{name}: field {field!r} is missing or not of type {kind.__name__}")
    with naming(name, InputError):
        require_known("dtype", side["dtype"], _INDEX_CODES)
        require_known("layout", side["layout"], LAYOUTS)
    offsets, count = side["document_offsets"], side["count"]
    if set(map(type, offsets)) - {int} or sorted([0, *offsets, count]) != [0, *offsets, count]:
        raise InputError(
            f"{name}: document_offsets are not whole numbers from 0 to {count}, ascending"
        )
    mask = side.get("loss_mask")
    if mask is not None and (not isinstance(mask, dict) or mask.keys() != {"sample_sha256"}):
        raise InputError(f"{name}: field 'loss_mask' is not an object with a sample_sha256")
    return side


def sample_digest(path: str | Path) -> str:
    """Return the SHA-256, in hexadecimal, of samples of a file; OSError if it can't be read.

    Samples are 64 blocks of 4096 bytes at equal distances, the first at the beginning and the last
    at the end: block k begins at byte k (length - 4096) // 63. A shorter file is hashed as a whole.
    """
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        room = os.fstat(file.fileno()).st_size - _SAMPLE_BYTES
        if room < (_SAMPLES - 1) * _SAMPLE_BYTES:
            return hashlib.sha256(file.readall()).hexdigest()
        for k in range(_SAMPLES):
            file.seek(k * room // (_SAMPLES - 1))
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


@dataclass(frozen=True)
class BinFile:
    """A ``bin`` file on disk that agrees with its side file.

    layout: has the length of the header. count: number of ids. has_mask: whether the file at
    `mask_path` is a loss mask of the ids. The other facts are those of the side file, 0 or "" if
    there is none.
    """

    path: str
    layout: Layout
    dtype: np.dtype[np.integer]
    count: int
    text_bytes: int = 0
    documents: int = 0
    continues: bool = False
    fingerprint: str = ""
    has_mask: bool = False


def describe_bin_file(
    path: str | Path, dtype: str | None = None, *, may_be_foreign: bool = False
) -> BinFile:
    """Return the facts in the side file and the header of the ``bin`` file `path`.

    may_be_foreign: accept a file of another tool, without a side file. dtype: type of the numbers,
    if the header does not name the type.

    Raises InputError if a file can't be read, or if side file, header and lengths disagree.
    """
    name = str(path)
    if not os.path.isfile(name):
        raise InputError(f"no such file: {name!r}")
    if may_be_foreign and not has_side_file(name):
        return BinFile(name, *numbers_of(name, dtype))
    side = read_side_file(name)
    layout, kind, count = _side_facts(name, side, dtype)
    mask = side.get("loss_mask")
    if mask is not None:
        length = HEADER_BYTES + count
        _check_samples(mask_path(name), mask | {"length": length}, name)
    facts = side["bytes"], side["documents"], side["continues"], side["fingerprint"]
    return BinFile(name, layout, kind, count, *facts, mask is not None)


def numbers_of(path: str, dtype: str | None = None) -> tuple[Layout, np.dtype[np.integer], int]:
    """Return layout, type of the numbers and count of ids of a token file without a side file.

    dtype: "uint16" or "uint32", for a file that does not name its type.

    Raises InputError if the file can't be read, if the type is unknown or differs from `dtype`, or
    if the file's length does not fit the type and the count.
    """
    layout, found, count = LAYOUTS["raw"], _type_in_index(path), None
    with suppress(InputError):  # an InputError means that the file has no header of llm.c
        found, count = _LLMC.parse_header(read_head(path, _LLMC.header_bytes), path)
        layout = _LLMC
    if found and dtype and found != dtype:
        raise InputError(f"{path}: by its header, its numbers are {found}, not {dtype}")
    if not (chosen := found or dtype):
        raise InputError(
            f"{path} has no side file that records its integer type: if another tool made it, use "
            f"{spelled('--token-dtype')} uint16 (nanoGPT) or uint32"
        )
    kind = np.dtype(chosen).newbyteorder("<")
    size = os.path.getsize(path) - layout.header_bytes
    if size % kind.itemsize or (count is not None and count * kind.itemsize != size):
        wanted = "a whole number" if count is None else str(count)
        raise InputError(
            f"{path} has {size} bytes of ids, not {wanted} of {kind.itemsize} bytes each: it is "
            "cut short, or its numbers are of another type"
        )
    return layout, kind, size // kind.itemsize


def note_of_foreign(names: Sequence[str], vocabulary_name: str) -> str:
    """Return the note about token files without a side file, which do not name their vocabulary."""
    return f"{listed(names)}: no side file, so the ids are assumed to be those of {vocabulary_name}"


def _type_in_index(path: str) -> str | None:
    """Return the type of the ids in a file's Megatron-LM index; None if there is no index.

    Raises InputError if the type is neither uint16 nor int32.
    """
    data = b""
    with suppress(InputError):  # there is no index, or the file's name can't have one
        data = read_head(index_name(path), _INDEX.size)
    if len(data) < _INDEX.size or not data.startswith(_INDEX_MAGIC):
        return None
    code = _INDEX.unpack(data)[2]
    # Ids are below 2^31, so uint32 and int32 are the same bytes.
    for kind, known in _INDEX_CODES.items():
        if code == known:
            return kind
    raise InputError(
        f"{path}: its index says numbers of type {quote(code)}, which are neither uint16 (8) nor "
        "int32 (4)"
    )


def matched_as(
    name: str, made_with: str, vocabulary: Vocabulary, vocabulary_name: str
) -> Vocabulary:
    """Return the vocabulary with the match rule that was used to write a token file.

    name: the token file. made_with: the fingerprint in the file, "" for none. vocabulary_name: for
    errors.

    Raises VocabularyError if the file was written with another vocabulary.
    """
    for rule in sorted(MATCH_RULES, key=lambda rule: rule != vocabulary.match):
        matched = vocabulary.with_match(rule)
        if not made_with or matched.fingerprint == made_with:
            return matched
    raise VocabularyError(
        f"{name} was made with vocabulary {made_with[:12]}, but {vocabulary_name} is "
        f"{vocabulary.fingerprint[:12]}: use the vocabulary it was made with"
    )


def _side_facts(
    name: str, side: dict[str, Any], asked: str | None
) -> tuple[Layout, np.dtype[np.integer], int]:
    """Return the layout, the type of the numbers and the count of ids that a side file states.

    asked: the type that the numbers must have; None for any.

    Raises InputError for another type than `asked`, and if the token file disagrees with its side
    file.
    """
    layout = get_layout(side["layout"])
    dtype = np.dtype(side["dtype"]).newbyteorder("<")
    count, size = side["count"], file_size(name)
    if size != layout.header_bytes + count * dtype.itemsize:
        header = f" after a header of {layout.header_bytes} bytes" if layout.header_bytes else ""
        raise InputError(
            f"{name} has {size} bytes, but by its side file {side_path(name)} it has {count} ids "
            f"of {dtype.itemsize} bytes{header}: they don't belong together, or one is cut short"
        )
    _check_samples(name, side, name)
    if asked not in (None, dtype.name):
        raise InputError(f"{name}: by its side file, its numbers are {dtype.name}, not {asked}")
    return layout, dtype, count


def _check_samples(name: str, side: dict[str, Any], tokens: str) -> None:
    """Raise InputError if a file has another length or digest than the side file says.

    side: the side file's content. tokens: the token file, named in the message.
    """
    with input_errors(name):
        size, digest = os.stat(name).st_size, sample_digest(name)
    if (size, digest) != (side["length"], side["sample_sha256"]):
        raise InputError(
            f"{name} is not the file that its side file {side_path(tokens)} describes: it was "
            "changed, or they don't belong together"
        )


class BinWriter(NumbersWriter):
    """Writes ids in a layout and, at the end, the side file.

    continues: whether the first ids belong to the last document of the previous file.
    """

    def __init__(
        self,
        path: str | Path,
        vocabulary: Vocabulary,
        layout: str = "raw",
        *,
        continues: bool = False,
        masked: bool = False,
    ) -> None:
        """Open `path` and its mask; InputError for an unknown layout or too large a vocabulary."""
        self._layout = get_layout(layout)
        most = self._layout.max_ids
        if most is not None and vocabulary.size > most:
            raise InputError(
                f"a vocabulary of {vocabulary.size} ids: layout {layout} holds up to {most}"
            )
        super().__init__(path, vocabulary)
        self._continues = continues
        self._offsets: list[NDArray[np.int64]] = []
        self._mask: OutputFile | None = None
        # Side file, index and mask, as far as they are open.
        self._side_outputs: list[OutputFile] = []
        if masked and not self.is_direct:
            with undoing(self.abort):
                self._mask = OutputFile(mask_path(path))
                self._side_outputs.append(self._mask)
                self._write_mask(npy_header(np.dtype(np.bool_), 0))

    def _write_mask(self, data: bytes) -> None:
        assert self._mask is not None
        with output_errors(self._mask.path):
            self._mask.stream.write(data)

    def _header(self, count: int) -> bytes:
        return self._layout.make_header(self._dtype.name, count)

    def _put(self, piece: EncodedSlice) -> None:
        most = self._layout.max_tokens
        if most is not None and self.ids + len(piece.ids) > most:
            raise OutputError(
                f"{self._output.path}: more than {most} tokens, the limit of a file of layout "
                f"{self._layout.name}: use {spelled('--shard-tokens')}"
            )
        super()._put(piece)
        if self._mask is not None:
            assert piece.mask is not None
            self._write_mask(piece.mask.tobytes())
        self._offsets.append(piece.document_starts + self.ids)

    def abort(self) -> None:
        """Remove the unfinished files, if possible."""
        for other in self._side_outputs:
            other.discard()
        super().abort()

    def close(self) -> None:
        """Write the side file, the index and the mask, and give all files their final names."""
        if self.is_direct:
            super().close()
            return
        # A kill must never leave ids beside a side file of other ids. So remove the old side file
        # before the old ids, and add the new side file after the new ids.
        with undoing(self.abort):
            if self._mask is not None:
                self._mask.stream.seek(0)
                self._write_mask(npy_header(np.dtype(np.bool_), self.ids))
                self._mask.finish()
            with output_errors(self._output.path):
                self._finish()
                self._output.finish()
                contents = self._describe(self._output.temporary)
            for path, content in contents.items():
                self._side_outputs.insert(0, OutputFile(path))
                with output_errors(path):
                    self._side_outputs[0].stream.write(content)
                self._side_outputs[0].finish()
            # Replace the old files. The new side file, `_side_outputs[0]`, gets its name last.
            for other in self._side_outputs:
                other.remove_old()
            self._remove_stale_files()
            self._output.commit(is_last=False)
            for other in reversed(self._side_outputs):
                other.commit(is_last=other is self._side_outputs[0])

    def _remove_stale_files(self) -> None:
        """Remove index and mask of the replaced file if the new file has no such file."""
        path = self._output.path
        if not os.path.exists(path):
            return
        stale = {} if self._mask is not None else {mask_path(path): NPY}
        if not self._layout.has_index:
            with suppress(InputError):  # a file with this name can't have an index
                stale[index_name(path)] = TOKEN_INDEX
        for name, kind in stale.items():
            if kind_of(name) == kind:
                with output_errors(name):
                    os.unlink(name)

    def _describe(self, path: str) -> dict[str, bytes]:
        """Return the contents of index and side file by name; path: the temporary file of ids."""
        mask = self._mask and {"sample_sha256": sample_digest(self._mask.temporary)}
        side = {
            "format": SIDE_FORMAT,
            "version": SIDE_VERSION,
            "dtype": self._dtype.name,
            "byte_order": "little",
            "layout": self._layout.name,
            "offset": self._layout.header_bytes,
            "count": self.ids,
            "bytes": self.text_bytes,
            "vocabulary_size": self._vocabulary.size,
            "fingerprint": self._vocabulary.fingerprint,
            **self._vocabulary.match_facts,
            "documents": self.documents,
            "continues": self._continues,
            "length": os.stat(path).st_size,
            "sample_sha256": sample_digest(path),
            **({"loss_mask": mask} if mask else {}),
        }
        starts = np.concatenate([np.empty(0, np.int64), *self._offsets])
        facts, numbers = json.dumps(side)[:-1].encode(), format_numbers(starts)
        listed = b"".join([facts, b', "document_offsets": [', numbers, b"]}\n"])
        contents = {}
        if self._layout.has_index:
            index = index_name(self._output.path)
            contents[index] = make_index(self._dtype.name, starts, self.ids)
        return contents | {side_path(self._output.path): listed}
