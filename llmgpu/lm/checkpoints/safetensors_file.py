"""The safetensors format: named tensors in one file that can be mapped into memory.

- A file starts with the length of the header: 8 bytes, little-endian. The header is a JSON map from
  name to dtype, shape and data_offsets (begin and end, counted from the header's end), and
  ``__metadata__`` (texts by name). The tensors follow, little-endian, in C order, without gaps.
- Written files equal the files of the safetensors library byte for byte. Tensors are ordered by
  dtype, as in `_DTYPES`, then by name. The header is padded with spaces to a multiple of 8, so that
  every tensor is aligned.
- `read_tensors` validates a whole file before any tensor is used.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from llmgpu.errors import CheckpointError, InputError, VocabularyError
from llmgpu.files import atomic_output
from llmgpu.input_files import parse_json, quote
from llmgpu.machine import has_limited_address_space
from llmgpu.pipeline import in_order

MAX_HEADER_BYTES = 1 << 24  # enough for more than 100 000 tensors
METADATA = "__metadata__"

_LENGTH_BYTES = 8
_ALIGNMENT = 8
_MAX_DIMENSIONS = 7
_MAX_NUMBER = 1 << 48
_PART = 1 << 24  # bytes of a file that a thread hashes at a time
_HASHING_THREADS = 4  # a thread hashes about 1 GB/s, so four do not delay a fast disk

_DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "U32": np.dtype("<u4"),
    "F16": np.dtype("<f2"),
    "U8": np.dtype("u1"),
}
# bfloat16 is only read, not written. NumPy lacks the type: a record of one field holds the bits.
BFLOAT16 = np.dtype([("bits", "<u2")])
_READ_DTYPES = _DTYPES | {"BF16": BFLOAT16}
WEIGHT_DTYPES = (np.dtype("<f4"), np.dtype("<f2"), BFLOAT16)  # see `as_float32`
_NAMES = {dtype: name for name, dtype in _READ_DTYPES.items()}
_RANKS = {dtype: rank for rank, dtype in enumerate(_DTYPES.values())}  # order of tensors in a file


# The dtype and the shape of each tensor of a file, by name.
Kinds = Mapping[str, tuple[DTypeLike, tuple[int, ...]]]


def write_tensors(
    path: str | Path,
    kinds: Kinds,
    read: Callable[[str], NDArray[Any]],
    metadata: Mapping[str, str] | None = None,
) -> str:
    """Write a file atomically; return its checksum, see `hash_file`.

    The order of `kinds` and `metadata` does not change the bytes of the file. Tensors are read
    one by one. At most 96 MiB of the file and two tensors are in memory at a time.

    kinds: float32, float16, uint32 or uint8. read: returns a tensor by name, of exactly this dtype
        and shape.

    Raises OutputError if the file can't be written, ValueError for a dtype that is not supported,
    and for an array of another dtype or shape.
    """
    for name, (dtype, _) in kinds.items():
        if name == METADATA or np.dtype(dtype) not in _RANKS:
            raise ValueError(f"tensor {quote(name)} of {np.dtype(dtype)} can't be written")
    names = sorted(kinds, key=lambda name: (_RANKS[np.dtype(kinds[name][0])], name))
    header = _describe({name: kinds[name] for name in names}, metadata or {})
    start = len(header).to_bytes(_LENGTH_BYTES, "little") + header
    digest = hashlib.sha256()
    content = chain([memoryview(start)], (_bytes_of(name, read(name), kinds) for name in names))
    with atomic_output(path) as stream:
        # Threads hash parts of the file while this thread writes earlier parts.
        for part, part_digest in _hashed_parts(content):
            for piece in part:
                stream.write(piece)
            digest.update(part_digest)
    return digest.hexdigest()


def hash_file(path: str | Path) -> str:
    """Return the checksum of a file, in hexadecimal; OSError if the file can't be read.

    The file is cut into parts of 16 MiB; the last part may be smaller. The checksum is the SHA-256
    of the SHA-256 digests of all parts, in order. So threads can hash parts side by side.
    """
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        content = (memoryview(part) for part in iter(lambda: stream.read(_PART), b""))
        for _, part_digest in _hashed_parts(content):
            digest.update(part_digest)
    return digest.hexdigest()


def _hashed_parts(content: Iterable[memoryview]) -> Iterator[tuple[list[memoryview], bytes]]:
    """Yield the parts of a file, each as pieces in order, and their SHA-256 digests."""

    def hash_part(part: list[memoryview]) -> tuple[list[memoryview], bytes]:
        digest = hashlib.sha256()
        for piece in part:
            digest.update(piece)
        return part, digest.digest()

    # If the address space is limited, the heaps of threads are too large.
    threads = 0 if has_limited_address_space() else _HASHING_THREADS
    return in_order(_parts(content), hash_part, threads + 1, threads=threads)


def _parts(content: Iterable[memoryview]) -> Iterator[list[memoryview]]:
    """Divide the bytes of a file into parts, without copies."""
    part, room = list[memoryview](), _PART
    for piece in content:
        while len(piece) >= room:
            yield [*part, piece[:room]]
            piece, part, room = piece[room:], [], _PART
        part.append(piece)
        room -= len(piece)
    if room < _PART:
        yield part


def _describe(kinds: Kinds, metadata: Mapping[str, str]) -> bytes:
    content: dict[str, Any] = {METADATA: dict(sorted(metadata.items()))} if metadata else {}
    begin = 0
    for name, (dtype, shape) in kinds.items():
        end = begin + math.prod(shape) * np.dtype(dtype).itemsize
        offsets = [begin, end]
        content[name] = {"dtype": _NAMES[np.dtype(dtype)], "shape": shape, "data_offsets": offsets}
        begin = end
    header = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
    return header.ljust(-(-len(header) // _ALIGNMENT) * _ALIGNMENT)


def _bytes_of(name: str, array: NDArray[Any], kinds: Kinds) -> memoryview:
    """Return the bytes of an array, little-endian."""
    dtype, shape = kinds[name]
    if (array.dtype, array.shape) != (np.dtype(dtype), shape):
        found = f"{array.dtype} {array.shape}"
        raise ValueError(f"{quote(name)} came as {found}, but {dtype} {shape} was announced")
    flat = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(-1)
    return flat.view(np.uint8).data


def read_tensors(path: str | Path) -> dict[str, NDArray[Any]]:
    """Return the tensors of a file by name, in the order of their data.

    The tensors are mapped from the file and read-only; the system loads pages on their first use.
    Raises CheckpointError, with the path, for an invalid file.
    """
    with naming(path):
        content, data = _open(path)
        metadata = content.pop(METADATA, {})
        if not isinstance(metadata, dict) or {*map(type, metadata.values())} - {str}:
            raise CheckpointError(f"damaged: {METADATA} is not a map of strings")
        return _map_tensors(content, data)


def require_tensors(
    path: str | Path,
    tensors: Mapping[str, NDArray[Any]],
    expected: Mapping[str, tuple[Sequence[np.dtype[Any]], tuple[int, ...]]],
    why: str = "",
    files: Mapping[str, Path] = MappingProxyType({}),
) -> None:
    """Raise CheckpointError for the first tensor that is missing, unexpected or different.

    expected: possible dtypes, and shape, of each tensor that there must be, by name.
    path, why, files: for the error: the file or folder of the tensors, the reason for the dtypes
        and shapes, and the file of each tensor in a folder.
    """
    for name, (dtypes, shape) in expected.items():
        if name not in tensors:
            raise CheckpointError(f"{path}: tensor {quote(name)} is missing")
        found = tensors[name]
        if found.dtype not in dtypes or found.shape != shape:
            known = " or ".join(_NAMES[dtype] for dtype in dtypes)
            raise CheckpointError(
                f"{files.get(name, path)}: tensor {quote(name)} is {_NAMES[found.dtype]} "
                f"{list(found.shape)}, but must be {known} {list(shape)}{why}"
            )
    for name in tensors:
        if name not in expected:
            raise CheckpointError(f"{files.get(name, path)}: tensor {quote(name)} is unexpected")


def _open(path: str | Path) -> tuple[dict[str, Any], NDArray[np.uint8]]:
    """Return the header's map and the data after the header, mapped into memory."""
    with open(path, "rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        prefix = stream.read(_LENGTH_BYTES)
        length = int.from_bytes(prefix, "little")
        limit = max(min(MAX_HEADER_BYTES, size - _LENGTH_BYTES), 0)
        if length > limit or len(prefix) < _LENGTH_BYTES:
            raise CheckpointError(
                f"damaged or cut short: the header has {length} bytes, but at most {limit} fit in "
                f"a file of {size} bytes"
            )
        content = parse_json(stream.read(length))
        data = np.memmap(stream, np.uint8, mode="r")[_LENGTH_BYTES + length :]
    if not isinstance(content, dict):
        raise CheckpointError("damaged: the header is not a JSON object")
    return content, data


def _map_tensors(content: dict[str, Any], data: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
    """Return the tensors as views of `data`, uint8 (bytes,).

    Raises CheckpointError unless the tensors cover the data without gaps and overlaps.
    """
    entries = sorted((_read_entry(name, entry), name) for name, entry in content.items())
    end = 0
    for (offsets, kind, shape), name in entries:
        begin, end = end, end + math.prod(shape) * _READ_DTYPES[kind].itemsize
        if offsets != [begin, end]:
            raise CheckpointError(
                f"damaged: tensor {quote(name)} of {kind} and shape {shape} has the data_offsets "
                f"{offsets}, but must have {[begin, end]}"
            )
    if end != len(data):
        raise CheckpointError(
            f"damaged or cut short: the tensors have {end} bytes, but the file has {len(data)}"
        )
    return {
        name: np.asarray(data[begin:end]).view(_READ_DTYPES[kind]).reshape(shape)
        for ((begin, end), kind, shape), name in entries
    }


def _read_entry(name: str, entry: object) -> tuple[list[int], str, list[int]]:
    """Return the data_offsets, the name of the dtype and the shape in a header's entry.

    Raises CheckpointError for an entry with other keys, types or numbers.
    """
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError(f"damaged: tensor {quote(name)} needs dtype, shape and data_offsets")
    kind, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(kind, str) or kind not in _READ_DTYPES:
        known = ", ".join(_READ_DTYPES)
        raise CheckpointError(f"tensor {quote(name)} has dtype {quote(kind)}; use one of {known}")
    for what, numbers in (("shape", shape), ("data_offsets", offsets)):
        if not (
            isinstance(numbers, list)
            and len(numbers) <= _MAX_DIMENSIONS
            and all(type(number) is int and 0 <= number < _MAX_NUMBER for number in numbers)
        ):
            raise CheckpointError(
                f"damaged: {what} of tensor {quote(name)} is {quote(numbers)}, but must be up to "
                f"{_MAX_DIMENSIONS} whole numbers below {_MAX_NUMBER:,}"
            )
    return offsets, kind, shape


def as_float32(tensor: NDArray[Any]) -> NDArray[np.float32]:
    """Return F32, F16 or BF16 numbers exactly, as float32; F32 is not copied."""
    if tensor.dtype == BFLOAT16:
        widened = tensor["bits"].astype(np.uint32)
        widened <<= 16
        return widened.view(np.float32)
    return tensor.astype(np.float32, copy=False)


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Turn an error of the block into a CheckpointError that names `path`."""
    try:
        yield
    except (CheckpointError, InputError, VocabularyError) as error:
        text = str(error)
        raise CheckpointError(text if f"{path}: " in text else f"{path}: {text}") from error
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: the links form a circle
        reason = getattr(error, "strerror", None) or error
        raise CheckpointError(f"{path}: can't read it: {reason}") from error
