"""A vocabulary: what each id stands for, and how text becomes ids.

- Decided once, never changed: a Vocabulary that exists is consistent, whoever made it.
- A token is its bytes. The tokens of a vocabulary trained here are the 256 bytes (the value is the
  id), the merges in the order they were made, and the special tokens; where it extends another one,
  all tokens of that come first. One that was imported may have any order, gaps (empty tokens) and
  repeats.
- Special tokens are not in the trie: text that spells one is text, unless a caller asks otherwise.
- The fingerprint covers what changes the ids of some text, or the bytes of some ids, and nothing
  else. Files made with a vocabulary carry it. How ties were broken and how the training went are
  not in it, nor are merges that a greedy match never looks at.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import msgpack
import numpy as np
from numpy.typing import ArrayLike, NDArray

from llmgpu.bpe.pretokens.pattern import get_pattern
from llmgpu.bpe.vocabulary import file as vocabulary_file
from llmgpu.bpe.vocabulary.check import check_vocabulary
from llmgpu.bpe.vocabulary.trie import Trie, compile_trie, validate_trie
from llmgpu.errors import InputError, VocabularyError
from llmgpu.files import atomic_output

_DECODE_BLOCK = 1 << 16  # ids gathered at once: bounds the temporary arrays
_LONG_TOKEN = 64  # bytes a token, on average, from which copying tokens beats gathering bytes


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Tokens by id, and the rules that match them; VocabularyError if they don't fit together.

    tokens: the bytes of each id; those of a special token are its text in UTF-8.
    merges: uint32 (M, 3), ids of the left part, the right part and the result, first merge first.
    pattern, expression: the pre-tokenizer's name, and what it does as an expression over bytes.
    special_tokens: id by text.
    tie: the rule by which training chose between equally frequent pairs.
    match: "greedy" (longest token first) or "bpe" (merges in order; without any, the pair that
        makes the token of the lowest id first).
    ignore_merges: with "bpe", a pre-token that is a token needs no merges; always so without any.
    normalizer: what is done to the text first: None or "NFC".
    unknown_token: id for bytes that no token matches; None if that is an error.
    training: how it was made: at most 64 numbers and texts, for people.
    """

    tokens: tuple[bytes, ...]
    merges: NDArray[np.uint32]
    pattern: str
    expression: str
    special_tokens: dict[str, int] = field(default_factory=dict)
    tie: str = "hf"
    match: str = "greedy"
    ignore_merges: bool = False
    normalizer: str | None = None
    unknown_token: int | None = None
    training: dict[str, int | float | str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_vocabulary(self)

    def with_match(self, match: str) -> Vocabulary:
        """Return the vocabulary with another match rule; VocabularyError if there is no such."""
        if match == self.match:
            return self
        changed = replace(self, match=match)
        changed.__dict__["trie"] = self.trie  # where cached_property keeps its value
        return changed

    @property
    def takes_whole_tokens(self) -> bool:
        """Whether a pre-token that is a token is taken as it is."""
        return self.match == "greedy" or self.ignore_merges or len(self.merges) == 0

    @property
    def size(self) -> int:
        """Number of ids."""
        return len(self.tokens)

    @cached_property
    def token_lengths(self) -> NDArray[np.int64]:
        """Bytes in each token: int64 (size,)."""
        return np.fromiter(map(len, self.tokens), np.int64, self.size)

    @cached_property
    def token_offsets(self) -> NDArray[np.int64]:
        """Position of each token in `token_data`, then the end: int64 (size + 1,)."""
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self.token_lengths)])

    @cached_property
    def token_spans(self) -> NDArray[np.int64]:
        """Bytes of text that each id stands for, 1 for the unknown token: int64 (size,)."""
        spans = self.token_lengths.copy()
        if self.unknown_token is not None:
            spans[self.unknown_token] = 1
        return spans

    @cached_property
    def token_data(self) -> NDArray[np.uint8]:
        """The bytes of all tokens, end to end, by id: uint8."""
        return np.frombuffer(b"".join(self.tokens), np.uint8)

    @cached_property
    def ordinary_ids(self) -> NDArray[np.int64]:
        """The ids that are not special, ascending: int64."""
        return np.delete(np.arange(self.size), list(self.special_tokens.values()))

    @cached_property
    def trie(self) -> Trie:
        """The trie of the ordinary tokens."""
        return compile_trie(self._ordinary_tokens(), self.ordinary_ids)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256, in hexadecimal, of all that changes ids."""
        by_merges = self.match == "bpe"
        decisive = (
            "llmgpu fingerprint 1",
            self.expression,
            self.normalizer,
            self.match,
            self.ignore_merges if by_merges else None,
            self.merges.astype("<u4").tobytes() if by_merges else None,
            self.unknown_token if self.missing_bytes() else None,
            vocabulary_file.pack_ids(sorted(self.special_tokens.values())),
            self.token_lengths.astype("<u4").tobytes(),
            self.token_data.tobytes(),
        )
        return hashlib.sha256(msgpack.packb(decisive)).hexdigest()

    def missing_bytes(self) -> list[int]:
        """Return the byte values that have no token of their own, special tokens apart."""
        present = {token[0] for token in self._ordinary_tokens() if len(token) == 1}
        return [value for value in range(256) if value not in present]

    def decode(self, ids: ArrayLike) -> bytes:
        """Return the bytes of `ids` (n,), any integers, end to end.

        Raises InputError for the first id that is not in the vocabulary, or if they are no
        integers.
        """
        numbers = np.asarray(ids)
        if numbers.size == 0:
            return b""
        if not np.issubdtype(numbers.dtype, np.integer):
            raise InputError(f"ids must be whole numbers of up to 64 bits, not {numbers.dtype}")
        numbers = numbers.reshape(-1)
        bad = (numbers < 0) | (numbers >= self.size)
        if bad.any():
            position = int(bad.argmax())
            raise InputError(
                f"id {numbers[position]} at position {position} is not in the vocabulary of "
                f"{self.size} tokens: was the text tokenized with another one?"
            )
        blocks = range(0, len(numbers), _DECODE_BLOCK)
        return b"".join(self._spell(numbers[i : i + _DECODE_BLOCK]) for i in blocks)

    def to_bytes(self) -> bytes:
        """Return the vocabulary as a file: the same bytes for the same vocabulary."""
        return vocabulary_file.pack(self)

    @classmethod
    def from_bytes(cls, data: bytes, name: str = "vocabulary") -> Vocabulary:
        """Read what `to_bytes` made; `name` is what an error calls it.

        Raises VocabularyError if anything about it is wrong. Never allocates more than a multiple
        of len(data).
        """
        try:
            content = vocabulary_file.unpack(data)
            vocabulary = cls(**content.fields)
            if vocabulary.fingerprint != content.fingerprint:
                raise VocabularyError("damaged: its fingerprint is not that of its content")
            validate_trie(content.trie, vocabulary._ordinary_tokens(), vocabulary.ordinary_ids)
        except VocabularyError as error:
            raise VocabularyError(f"{name}: {error}") from error
        vocabulary.__dict__["trie"] = content.trie  # where cached_property keeps its value
        return vocabulary

    @classmethod
    def load(cls, path: str | Path) -> Vocabulary:
        """Read a vocabulary file; VocabularyError if it can't be read or is not sound."""
        try:
            data = Path(path).read_bytes()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise VocabularyError(f"can't read the vocabulary {path}: {reason}") from error
        return cls.from_bytes(data, str(path))

    def save(self, path: str | Path) -> None:
        """Write a vocabulary file, whole or not at all; OutputError if that can't be done."""
        data = self.to_bytes()
        with atomic_output(path) as stream:
            stream.write(data)

    def _spell(self, ids: NDArray[np.integer]) -> bytes:
        """Return the bytes of a block of valid ids (n,), end to end."""
        lengths = self.token_lengths[ids]
        ends = np.cumsum(lengths)
        if ends[-1] > _LONG_TOKEN * len(ids):
            return b"".join([self.tokens[i] for i in ids.tolist()])
        shifts = self.token_offsets[ids] - (ends - lengths)  # from the result to token_data
        positions = np.repeat(shifts, lengths) + np.arange(ends[-1])
        return bytes(self.token_data[positions])

    def _ordinary_tokens(self) -> list[bytes]:
        special = set(self.special_tokens.values())
        if not special:
            return list(self.tokens)
        return [token for i, token in enumerate(self.tokens) if i not in special]


def byte_vocabulary(pattern: str, tie: str) -> Vocabulary:
    """Return the vocabulary of the 256 bytes, which matches by merges: what training starts from.

    Raises LlmgpuError for an unknown pattern, VocabularyError for an unknown tie rule.
    """
    known = get_pattern(pattern)
    return Vocabulary(
        tokens=tuple(bytes([value]) for value in range(256)),
        merges=np.empty((0, 3), np.uint32),
        pattern=known.name,
        expression=known.expression,
        tie=tie,
        match="bpe",
    )


def build_vocabulary(
    merges: ArrayLike,
    *,
    pattern: str,
    tie: str,
    special_tokens: Sequence[str],
    training: dict[str, int | float | str],
) -> Vocabulary:
    """Make the vocabulary of merges that start from bytes.

    merges: integers (M, 2), ids of the left and the right part. A byte's id is its value, merge k
        makes id 256 + k; the special tokens get the ids after the last merge.

    Raises VocabularyError as `extend_vocabulary` does; LlmgpuError for an unknown pattern.
    """
    pairs = np.asarray(merges)
    pairs = pairs if pairs.size else np.empty((0, 2), np.int64)
    return extend_vocabulary(
        byte_vocabulary(pattern, tie),
        np.column_stack([pairs, np.arange(256, 256 + len(pairs))]),
        special_tokens=special_tokens,
        training=training,
    )


def extend_vocabulary(
    seed: Vocabulary,
    merges: ArrayLike,
    *,
    special_tokens: Sequence[str],
    training: dict[str, int | float | str],
) -> Vocabulary:
    """Put merges behind those of a vocabulary, and special tokens last; all its ids stay.

    merges: integers (M, 3), ids of the left part, the right part and the result. A result is the
        next free id, or the id of a token that is there already and spells the same.

    Raises VocabularyError for a merge of an id that does not exist yet, or with another result than
    these; and for a special token that is empty, repeated or what a token spells.
    """
    triples = np.asarray(merges)
    triples = triples.astype(np.int64) if triples.size else np.empty((0, 3), np.int64)
    tokens = list(seed.tokens)
    for k, (left, right, result) in enumerate(triples.tolist()):
        if not (0 <= left < len(tokens) and 0 <= right < len(tokens)):
            raise VocabularyError(
                f"merge {k} of {[left, right]}: ids below {len(tokens)} exist then"
            )
        if result == len(tokens):
            tokens.append(tokens[left] + tokens[right])
        elif not 0 <= result < len(tokens):
            raise VocabularyError(f"merge {k} makes id {result}, but the next one is {len(tokens)}")
    special = _number_special_tokens(special_tokens, tokens)
    return replace(
        seed,
        tokens=(*tokens, *(text.encode() for text in special)),
        merges=np.concatenate([seed.merges, triples.astype(np.uint32)]),
        special_tokens=seed.special_tokens | special,
        training=dict(training),
    )


def _number_special_tokens(texts: Sequence[str], tokens: Sequence[bytes]) -> dict[str, int]:
    """Give special tokens the ids behind all other tokens."""
    numbered: dict[str, int] = {}
    taken = set(tokens)
    for text in texts:
        try:
            spelled = text.encode()
        except UnicodeEncodeError as error:
            raise VocabularyError(f"special token {text!r} is not valid Unicode") from error
        if not spelled or spelled in taken:
            reason = "is a token already" if spelled else "is empty"
            raise VocabularyError(f"special token {text!r} {reason}: choose another text")
        taken.add(spelled)
        numbered[text] = len(tokens) + len(numbered)
    return numbered
