"""The vocabulary file, v.bin: one msgpack map, its entries always in the same order.

- ``format`` and ``version`` come first, then the fields of a Vocabulary, ``trie`` (a map) and
  ``fingerprint``. A file of a newer version is refused before anything else in it is read.
- Long fields are binary strings of bytes or little-endian 32-bit numbers, which are checked before
  Python objects are made: ``token_lengths`` and ``token_data`` (the tokens' bytes by id, end
  to end), ``special_ids`` (ascending; the bytes of such a token are its text), ``merges`` (left,
  right, result), ``trie.nodes`` (first child, number of children, token id) and ``trie.edges``
  (byte, target node).
- ``training`` also has ``unicode``, the version of the character classes, if the pattern has
  classes. Without this entry, the version is ``unicode_classes.UNRECORDED_VERSION``.
- ``training`` also has ``normalized_tokens``, ``lstrip_tokens``, ``rstrip_tokens``,
  ``single_word_tokens``, ``whole_tokens``, ``prefix_ids`` and ``suffix_ids``: each is a list of ids
  with commas between them, and is left out if empty. The entries of a chat template follow:
  ``chat_template`` is its source, and ``chat_tokens`` has the source's special tokens as JSON.
- A vocabulary of SentencePiece's kind ends with ``piece_kinds`` (a byte for each id),
  ``piece_ranks`` (a number for each id, or none) and ``piece_rules`` (JSON), see
  `llmgpu.bpe.vocabulary.pieces`. Other files have none of the three.
- There are no msgpack arrays, and only three maps of few entries. The reader allows no more, so
  reading a file never allocates much more than the file's size.
- This module checks the form of the bytes. Vocabulary checks that the fields are consistent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.arrays import offsets_of
from llmgpu.bpe.vocabulary.trie import SortedTokens, Trie
from llmgpu.errors import VocabularyError
from llmgpu.forking import cached_property
from llmgpu.input_files import quote
from llmgpu.spelling import spelled

FORMAT_NAME = "llmgpu vocabulary"
FORMAT_VERSION = 3
MAX_TRAINING_ENTRIES = 64
# Names of entries in a file's training data, for facts that have no field in the format.
# SPECIAL_IDS and AROUND name fields of Vocabulary that are tuples of ids.
UNICODE = "unicode"
ADDED_FLAGS = ("lstrip_tokens", "rstrip_tokens", "single_word_tokens", "whole_tokens")
SPECIAL_IDS = ("normalized_tokens", *ADDED_FLAGS)
AROUND = ("prefix_ids", "suffix_ids")
# Limit for the pattern's expression, and for each text in the training data, in bytes.
MAX_TEXT_BYTES = 1 << 16
# Limit for the normalizer of a vocabulary of SentencePiece's kind, in bytes.
MAX_NORMALIZER_BYTES = 1 << 20

_MAPS = 3  # number of maps in a file: the file itself, the trie and the training data
_MOST_BYTES = (1 << 32) - 1  # limit of msgpack for a binary string
_HEADER_BYTES = 64  # upper bound of the bytes of `format` and `version`
_NONE = type(None)

_FIELDS: dict[str, tuple[type, ...]] = {
    "format": (str,),
    "version": (int,),
    "pattern": (str,),
    "expression": (str,),
    "normalizer": (str, _NONE),
    "match": (str,),
    "ignore_merges": (bool,),
    "unknown_token": (int, _NONE),
    "tie": (str,),
    "special_ids": (bytes,),
    "token_lengths": (bytes,),
    "token_data": (bytes,),
    "merges": (bytes,),
    "trie": (dict,),
    "training": (dict,),
    "fingerprint": (str,),
}
OPTIONAL: dict[str, tuple[type, ...]] = {
    "piece_kinds": (bytes,),
    "piece_ranks": (bytes,),
    "piece_rules": (str,),
}
_TRIE_FIELDS: dict[str, tuple[type, ...]] = {
    "node_count": (int,),
    "edge_count": (int,),
    "longest_token": (int,),
    "nodes": (bytes,),
    "edges": (bytes,),
}
# The entries that are not arguments of a Vocabulary, or have another name there.
_CONVERTED = {"format", "version", "special_ids", "token_lengths", "token_data", "trie"}


class PackedTokens(Sequence[bytes]):
    """A sequence of tokens that are stored end to end, as in a file.

    Reading a token makes a bytes object for this token alone.

    data: the bytes of all tokens. offsets: int64 (tokens + 1,), the position in `data` at which
    each token starts, then the end.
    """

    def __init__(self, data: bytes, offsets: NDArray[np.int64]) -> None:
        self.data, self.offsets = data, offsets

    @classmethod
    def of(cls, tokens: Sequence[bytes]) -> PackedTokens:
        """Return `tokens` as PackedTokens; PackedTokens are returned unchanged."""
        if isinstance(tokens, cls):
            return tokens
        lengths = np.fromiter(map(len, tokens), np.int64, len(tokens))
        return cls(b"".join(tokens), offsets_of(lengths))

    @cached_property
    def _all(self) -> tuple[bytes, ...]:
        offsets = self.offsets.tolist()
        return tuple(map(self.data.__getitem__, map(slice, offsets[:-1], offsets[1:])))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, place: Any) -> Any:
        """Return a token, or the tokens of a slice as a tuple.

        Iterating over the tokens is faster than indexing each token.
        """
        if isinstance(place, slice):
            return self._all[place]
        token = range(len(self))[place]
        return self.data[self.offsets[token] : self.offsets[token + 1]]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._all)

    def __add__(self, more: tuple[bytes, ...]) -> tuple[bytes, ...]:
        return self._all + more

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._all == tuple(other)

    __hash__ = None  # type: ignore[assignment]


def check_text(what: str, text: object) -> None:
    """Raise VocabularyError unless `text` is a text that a file can hold."""
    if not isinstance(text, str):
        raise VocabularyError(f"{what} is not a string")
    try:
        length = len(text.encode())
    except UnicodeEncodeError as error:
        raise VocabularyError(f"{what} is not valid Unicode") from error
    if length > MAX_TEXT_BYTES:
        raise VocabularyError(f"{what} has {length} bytes, but the limit is {MAX_TEXT_BYTES}")


def pack_ids(ids: Sequence[int] | NDArray[np.integer]) -> bytes:
    """Return `ids`, each below 2**32, as little-endian 32-bit numbers."""
    return np.asarray(ids, np.uint32).astype("<u4").tobytes()


def pack(fields: dict[str, Any], trie: Trie | SortedTokens, fingerprint: str) -> Iterator[bytes]:
    """Yield the bytes of a file in blocks. Equal arguments give equal bytes.

    Raises VocabularyError for a field that is too long for the file.
    """
    tokens: PackedTokens = fields["tokens"]
    converted = {
        "format": FORMAT_NAME,
        "version": FORMAT_VERSION,
        "special_ids": pack_ids(sorted(fields["special_tokens"].values())),
        "token_lengths": pack_ids(np.diff(tokens.offsets)),
        "token_data": "",
        "merges": pack_ids(fields["merges"]),
        "trie": "",
        "training": dict(sorted(fields["training"].items())),
        "fingerprint": fingerprint,
    }
    optional = [name for name in OPTIONAL if name in fields]
    yield msgpack.Packer().pack_map_header(len(_FIELDS) + len(optional))
    # Yield the entries in the order of _FIELDS; long entries in several blocks.
    for name in [*_FIELDS, *optional]:
        yield msgpack.packb(name)
        if name == "token_data":
            yield from pack_data("token_data", len(tokens.data), [tokens.data])
        elif name == "trie":
            yield from _pack_trie(trie)
        else:
            yield msgpack.packb((fields | converted)[name])


def _pack_trie(trie: Trie | SortedTokens) -> Iterator[bytes]:
    """Yield the map of a trie. Its blocks are computed twice: once for nodes, once for edges."""
    nodes, edges = trie.num_nodes, trie.num_nodes - 1
    counts = {"node_count": nodes, "edge_count": edges, "longest_token": trie.longest}
    yield msgpack.Packer().pack_map_header(len(_TRIE_FIELDS))
    for name, value in counts.items():
        yield msgpack.packb(name) + msgpack.packb(value)
    yield msgpack.packb("nodes")
    yield from pack_data("nodes", 12 * nodes, (pack_ids(block[0]) for block in trie.blocks()))
    yield msgpack.packb("edges")
    yield from pack_data("edges", 8 * edges, (pack_ids(block[1]) for block in trie.blocks()))


def pack_data(name: str, size: int, parts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield a binary string of `size` bytes in msgpack's form: a header, then `parts`.

    Raises VocabularyError, before the first part, if the string is too long.
    """
    if size > _MOST_BYTES:
        raise VocabularyError(
            f"{name} would have {size} bytes, but the limit is {_MOST_BYTES}: make shorter tokens "
            f"({spelled('--max-token-length')})"
        )
    code, width = next((c, w) for c, w in ((0xC4, 1), (0xC5, 2), (0xC6, 4)) if size < 1 << 8 * w)
    yield bytes([code]) + size.to_bytes(width, "big")
    yield from parts


def unpack(data: bytes) -> tuple[dict[str, Any], Trie, str]:
    """Parse the bytes of a file; VocabularyError unless they have the form that `pack` writes.

    Returns arguments of Vocabulary, the trie and the fingerprint. Vocabulary and `validate_trie`
    check whether they are consistent.
    """
    check_header(data)
    # A normalizer of SentencePiece's kind may contain a long map of characters.
    longest = MAX_NORMALIZER_BYTES if b"piece_rules" in data else MAX_TEXT_BYTES
    content = _unpack_msgpack(lambda limits: msgpack.unpackb(data, **limits), len(data), longest)
    has_pieces = isinstance(content, dict) and any(name in content for name in OPTIONAL)
    _check_fields("the file", content, _FIELDS | OPTIONAL if has_pieces else _FIELDS)
    _check_fields("the trie", content["trie"], _TRIE_FIELDS)
    tokens = _unpack_tokens(content["token_lengths"], content["token_data"])
    fields = {name: value for name, value in content.items() if name not in _CONVERTED}
    fingerprint = fields.pop("fingerprint")
    fields["tokens"] = tokens
    fields["merges"] = _unpack_table("merges", content["merges"], 3)
    fields["special_tokens"] = _unpack_special_tokens(content["special_ids"], tokens)
    return fields, _unpack_trie(content["trie"]), fingerprint


def check_header(data: bytes) -> None:
    """Raise VocabularyError unless `data` begins like a file of a readable version."""

    def read(limits: dict[str, Any]) -> list[Any]:
        unpacker = msgpack.Unpacker(**limits)
        unpacker.feed(data[:_HEADER_BYTES])
        unpacker.read_map_header()
        return [unpacker.unpack() for _ in range(4)]

    try:
        keys_and_values = _unpack_msgpack(read, _HEADER_BYTES)
    except VocabularyError:
        keys_and_values = []
    if keys_and_values[:3] != ["format", FORMAT_NAME, "version"]:
        raise VocabularyError("not an llmgpu vocabulary")
    version = keys_and_values[3]
    if version != FORMAT_VERSION or not isinstance(version, int):
        newer = isinstance(version, int) and version > FORMAT_VERSION
        hint = (
            "use a newer llmgpu"
            if newer
            else "it is older than the first release: train it again, or export it to a "
            "tokenizer.json with the llmgpu that wrote it and import that"
        )
        raise VocabularyError(
            f"version {quote(version)} of the format, but this llmgpu reads version "
            f"{FORMAT_VERSION}; {hint}"
        )


def _unpack_msgpack(
    read: Callable[[dict[str, Any]], Any], size: int, longest: int = MAX_TEXT_BYTES
) -> Any:
    """Call `read` with limits that keep msgpack from allocating much more than `size` bytes.

    longest: limit for the bytes of a string. Raises VocabularyError if msgpack can't read the data.
    """
    maps = 0

    def make_map(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal maps
        maps += 1
        made = dict(pairs)
        if maps > _MAPS or len(made) < len(pairs):
            raise VocabularyError("damaged: more than three maps, or a repeated key")
        return made

    limits = {
        "object_pairs_hook": make_map,
        "strict_map_key": True,
        "max_str_len": longest,
        "max_bin_len": size,
        "max_array_len": 0,
        # Allow ten more entries: rules without a field, and the chat template.
        "max_map_len": MAX_TRAINING_ENTRIES + 10,
        "max_ext_len": 0,
    }
    try:
        return read(limits)
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError) as error:
        reason = str(error) or type(error).__name__
        raise VocabularyError(f"damaged or cut short: {reason}") from error


def _check_fields(what: str, content: Any, types: dict[str, tuple[type, ...]]) -> None:
    """Raise VocabularyError unless `content` is a map whose entries are as `types` says."""
    if not isinstance(content, dict) or content.keys() != types.keys():
        raise VocabularyError(f"damaged: {what} has unexpected or missing entries")
    for name, value in content.items():
        if type(value) not in types[name]:
            raise VocabularyError(f"damaged: {name} in {what} is a {type(value).__name__}")


def _unpack_table(name: str, data: bytes, columns: int) -> NDArray[np.uint32]:
    """Return little-endian 32-bit numbers as uint32 (rows, columns)."""
    if len(data) % (4 * columns):
        raise VocabularyError(f"damaged: {name} has {len(data)} bytes, not {4 * columns} per row")
    return np.frombuffer(data, "<u4").astype(np.uint32, copy=False).reshape(-1, columns)


def _unpack_tokens(lengths: bytes, data: bytes) -> PackedTokens:
    sizes = _unpack_table("token_lengths", lengths, 1)[:, 0]
    if int(sizes.sum(dtype=np.uint64)) != len(data):
        raise VocabularyError(f"damaged: the tokens' lengths do not add up to {len(data)} bytes")
    return PackedTokens(data, offsets_of(sizes))


def _unpack_special_tokens(data: bytes, tokens: Sequence[bytes]) -> dict[str, int]:
    ids = _unpack_table("special_ids", data, 1)[:, 0]
    if (ids >= len(tokens)).any() or (ids[1:] <= ids[:-1]).any():
        raise VocabularyError("damaged: special_ids are not ascending ids of tokens")
    try:
        special = {tokens[i].decode(): i for i in ids.tolist()}
    except UnicodeDecodeError as error:
        raise VocabularyError("damaged: a special token is not UTF-8") from error
    if len(special) < len(ids):
        raise VocabularyError("damaged: two special tokens have the same text")
    return special


def _unpack_trie(content: dict[str, Any]) -> Trie:
    nodes = _unpack_table("nodes", content["nodes"], 3)
    edges = _unpack_table("edges", content["edges"], 2)
    if (content["node_count"], content["edge_count"]) != (len(nodes), len(edges)):
        raise VocabularyError("damaged: the trie's counts do not match its nodes and edges")
    return Trie(nodes, edges, content["longest_token"])


CHAT_SOURCE, CHAT_TOKENS = "chat_template", "chat_tokens"


@dataclass(frozen=True)
class ChatTemplate:
    """A chat template in the language Jinja. Raises VocabularyError if it does not fit in a file.

    source: the template; empty if only the tokens are known and the caller gives the template
        later.
    tokens: texts of special tokens by their names in the template, such as ``eos_token``.
    """

    source: str
    tokens: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, text in self.entries().items():
            check_text(f"the {name}", text)

    def __bool__(self) -> bool:
        """Whether there is a source, not only tokens."""
        return bool(self.source)

    def entries(self) -> dict[str, str]:
        """Return the entries of the template in a file's training data."""
        tokens = json.dumps(dict(sorted(self.tokens.items())), ensure_ascii=False)
        source = {CHAT_SOURCE: self.source} if self.source else {}
        return source | ({CHAT_TOKENS: tokens} if self.tokens else {})


def take_chat_template(training: dict[str, int | float | str]) -> ChatTemplate | None:
    """Remove the entries of a template from a file's training data, and return the template.

    Returns None if there are no such entries. Raises VocabularyError for entries that
    `ChatTemplate.entries` can't have written.
    """
    source, packed = training.pop(CHAT_SOURCE, None), training.pop(CHAT_TOKENS, "{}")
    try:
        tokens = json.loads(str(packed))
    except (ValueError, RecursionError):
        tokens = None
    is_map = isinstance(tokens, dict) and all(isinstance(text, str) for text in tokens.values())
    if not is_map or not isinstance(source, str | None):
        raise VocabularyError(f"damaged: the chat template's tokens are {quote(packed)}")
    return ChatTemplate(source or "", tokens) if source or tokens else None
