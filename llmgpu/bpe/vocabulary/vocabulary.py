"""A vocabulary: the token of each id, and the rules by which text becomes ids.

- A Vocabulary is immutable and always consistent, whether trained, imported or read from a file.
- A token is a string of bytes. A vocabulary trained by llmgpu has the 256 bytes (the id is the
  value), then the results of merges in the order in which they were made, then the special tokens.
  A vocabulary that extends a seed starts with all tokens of the seed. An imported vocabulary may
  have any order, gaps (empty tokens) and repeated tokens.
- Special tokens are not in the trie: text that spells a special token is plain text unless a caller
  allows the token.
- The fingerprint is a hash of exactly the facts that change the ids of some text or the bytes of
  some ids. Files made with a vocabulary record the fingerprint. The tie rule and the facts about
  the training are left out, and with greedy matching also the merges.
- If the pattern has character classes, their Unicode version changes the ids of some text, so the
  fingerprint includes the version. A file that names no version has UNRECORDED_VERSION. The
  fingerprint leaves this version out, because such files were written with fingerprints without a
  version.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack
import numpy as np
from numpy.typing import ArrayLike, NDArray

from llmgpu.bpe.arrays import concatenate_ranges
from llmgpu.bpe.pretokens.blocks import Pattern
from llmgpu.bpe.pretokens.names import PATTERNS, REGEX_PREFIX, SPLITS_PREFIX
from llmgpu.bpe.pretokens.pattern import get_pattern
from llmgpu.bpe.pretokens.unicode_classes import DEFAULT_VERSION, UNRECORDED_VERSION, VERSIONS
from llmgpu.bpe.vocabulary import MATCH_RULES, TIE_RULES
from llmgpu.bpe.vocabulary.file import (
    ADDED_FLAGS,
    AROUND,
    CHAT_SOURCE,
    CHAT_TOKENS,
    MAX_TRAINING_ENTRIES,
    OPTIONAL,
    SPECIAL_IDS,
    UNICODE,
    ChatTemplate,
    PackedTokens,
    check_header,
    check_text,
    pack,
    pack_data,
    pack_ids,
    take_chat_template,
    unpack,
)
from llmgpu.bpe.vocabulary.trie import (
    NO_TOKEN,
    SortedTokens,
    Trie,
    lay_out,
    sort_tokens,
    validate_trie,
)
from llmgpu.cpu.library import library
from llmgpu.cpu.tokens import lay_out_trie, merges_spell, spelled_tokens
from llmgpu.errors import InputError, VocabularyError
from llmgpu.file_kinds import VOCABULARY, kind_of
from llmgpu.files import atomic_output
from llmgpu.forking import cached_property, delaying_forks
from llmgpu.input_files import quote, read_whole
from llmgpu.outputs import Output, check_outputs
from llmgpu.text.normalizing import get_normalizer

if TYPE_CHECKING:
    from llmgpu.bpe.vocabulary.pieces import PieceRules, PieceSymbols

_DECODE_BLOCK = 1 << 16  # ids decoded at once, which limits the size of temporary arrays
FEW_NODES = 1 << 22  # largest trie, in nodes, that is built in memory before it is written


_READABLE = (
    "give a file of bpe-train or import, a tokenizer.json, a .tiktoken file, a vocab.json beside "
    "its merges.txt, a folder with one of them, or a name such as cl100k"
)


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Tokens by id, and the rules that match them; VocabularyError if they are inconsistent.

    tokens: the bytes of each id, as a tuple or packed as in a file; the bytes of a special token
        are its text in UTF-8.
    merges: uint32 (M, 3), ids of the left token, the right token and the result, first merge first.
    pattern, expression: the pattern's name, and the pattern as an expression over bytes.
    special_tokens: id by text.
    tie: the rule by which training chose between equally frequent pairs.
    match: "greedy" (the longest token first) or "bpe" (merges are applied in order; in a vocabulary
        without merges, the pair that spells the token of the lowest id is merged first).
    ignore_merges: with "bpe", whether a pre-token that spells a token becomes this token. Without
        merges, such a pre-token always becomes the token.
    normalizer: applied to text first: None, "NFC" or steps, see `llmgpu.text.normalizing`.
    unknown_token: id of a byte without a token; if None, such a byte is an error.
    normalized_tokens: ids of the special tokens that are searched last: the text between the other
        special tokens is normalized, and searched for the normalized text of these tokens.
    lstrip_tokens, rstrip_tokens: ids of the special tokens that swallow the white space before a
        match, and after a match.
    single_word_tokens: ids of the special tokens that match only where no word character is next to
        them.
    whole_tokens: ids of the special tokens that are ordinary tokens, too: a pre-token of exactly
        their bytes becomes their id.
    training: facts about the training, up to 64 numbers and texts for people to read.
    unicode: version of the character classes in the pattern, one of `unicode_classes.VERSIONS`;
        without meaning for a pattern without classes.
    prefix_ids, suffix_ids: ids before and after a text, added on request only; not part of the
        fingerprint.
    chat: the template that renders conversations as text, if there is one; not part of the
        fingerprint.
    pieces: the rules of a vocabulary of SentencePiece's kind; None for other vocabularies.
    """

    tokens: tuple[bytes, ...] | PackedTokens
    merges: NDArray[np.uint32]
    pattern: str
    expression: str
    special_tokens: dict[str, int] = field(default_factory=dict)
    tie: str = "hf"
    match: str = "greedy"
    ignore_merges: bool = False
    normalizer: str | None = None
    unknown_token: int | None = None
    normalized_tokens: tuple[int, ...] = ()
    lstrip_tokens: tuple[int, ...] = ()
    rstrip_tokens: tuple[int, ...] = ()
    single_word_tokens: tuple[int, ...] = ()
    whole_tokens: tuple[int, ...] = ()
    training: dict[str, int | float | str] = field(default_factory=dict)
    unicode: str = DEFAULT_VERSION
    prefix_ids: tuple[int, ...] = ()
    suffix_ids: tuple[int, ...] = ()
    chat: ChatTemplate | None = None
    pieces: PieceRules | None = None

    def __post_init__(self) -> None:
        _check(self)

    def __repr__(self) -> str:
        """Return a short text, since notebooks print the value of a line."""
        sizes = f"{self.size:,} ids, {len(self.merges):,} merges"
        return f"<Vocabulary: {sizes}, pattern {quote(self.pattern)}>"

    def with_match(self, match: str | None) -> Vocabulary:
        """Return the vocabulary with another rule by which it finds tokens, see `match`.

        None keeps the rule. Raises VocabularyError if the rule is unknown.
        """
        if match in (None, self.match):
            return self
        changed = replace(self, match=match)
        # Copy the values of two cached properties to where cached_property stores them.
        changed.__dict__.update(trie=self.trie, _own_fingerprint=self._own_fingerprint)
        return changed

    @property
    def match_facts(self) -> dict[str, str]:
        """The facts about the match rule that a token file records.

        The dict is empty if the rule is "bpe" and the vocabulary's file has the same rule.
        Otherwise it has the match rule, and the fingerprint that the vocabulary has with the rule
        of its file.
        """
        if self.match == "bpe" and self._own_fingerprint == self.fingerprint:
            return {}
        return {"match": self.match, "vocabulary": self._own_fingerprint}

    @cached_property
    def _own_fingerprint(self) -> str:
        return self.fingerprint

    @cached_property
    def cut(self) -> Pattern:
        """The pattern that cuts text, with the character classes of the vocabulary's version.

        Raises LlmgpuError if the pattern is unknown.
        """
        if self.piece_symbols is not None:
            return self.piece_symbols.pattern
        return get_pattern(self.pattern, self.unicode)

    @cached_property
    def piece_symbols(self) -> PieceSymbols | None:
        """The symbols of a vocabulary of SentencePiece's kind; None for other vocabularies."""
        if self.pieces is None:
            return None
        from llmgpu.bpe.vocabulary.pieces import PieceSymbols

        others = self.pieces, self.unknown_token, self.ignore_merges
        return PieceSymbols(tuple(self.tokens), self.merges, *others)

    @cached_property
    def always_allowed(self) -> tuple[str, ...]:
        """The special tokens that are found in every text, without being allowed by a caller."""
        if self.pieces is None:
            return ()
        from llmgpu.bpe.vocabulary.pieces import USER

        kinds, special = self.pieces.kinds, self.special_tokens.items()
        return tuple(text for text, number in special if kinds[number] == USER)

    @property
    def classes_version(self) -> str | None:
        """Version of the character classes in the pattern; None without classes."""
        return self.unicode if _has_classes(self.pattern) else None

    @property
    def _recorded(self) -> dict[str, str]:
        """The rules for which a file has no field, as text by name; empty rules are left out.

        A file stores these rules in its training data.
        """
        version = self.classes_version
        recorded = {} if version in (None, UNRECORDED_VERSION) else {UNICODE: self.unicode}
        return recorded | self._joined(SPECIAL_IDS)

    def _joined(self, names: Iterable[str]) -> dict[str, str]:
        """Return the ids in each named field as text with commas; empty fields are left out."""
        return {name: ",".join(map(str, ids)) for name in names if (ids := getattr(self, name))}

    @property
    def swallows_space(self) -> bool:
        """Whether some special tokens swallow white space around them."""
        return bool(self.lstrip_tokens or self.rstrip_tokens)

    @property
    def takes_whole_tokens(self) -> bool:
        """Whether a pre-token that spells a token becomes this token without merging."""
        if self.pieces is not None:
            return self.ignore_merges
        return self.match == "greedy" or self.ignore_merges or len(self.merges) == 0

    @property
    def size(self) -> int:
        """Number of ids."""
        return len(self.tokens)

    @cached_property
    def token_lengths(self) -> NDArray[np.int64]:
        """Bytes in each token: int64 (size,)."""
        return np.diff(self.token_offsets)

    @cached_property
    def token_offsets(self) -> NDArray[np.int64]:
        """Position of each token in `token_data`, then the end: int64 (size + 1,)."""
        return self._packed_tokens.offsets

    @cached_property
    def token_spans(self) -> NDArray[np.int64]:
        """Number of text bytes that each id replaces, 1 for the unknown token: int64 (size,)."""
        spans = self.token_lengths.copy()
        if self.unknown_token is not None:
            spans[self.unknown_token] = 1
        return spans

    @cached_property
    def token_data(self) -> NDArray[np.uint8]:
        """The bytes of all tokens, end to end, by id: uint8."""
        return np.frombuffer(self._packed_tokens.data, np.uint8)

    @cached_property
    def _packed_tokens(self) -> PackedTokens:
        return PackedTokens.of(self.tokens)

    @cached_property
    def ordinary_ids(self) -> NDArray[np.int64]:
        """The ids, ascending, of tokens that are not special, and of `whole_tokens`: int64."""
        special = set(self.special_tokens.values()).difference(self.whole_tokens)
        return np.delete(np.arange(self.size), list(special))

    @cached_property
    def ordinary_tokens(self) -> list[bytes]:
        """The tokens of `ordinary_ids`, in the same order."""
        return list(map(tuple(self.tokens).__getitem__, self.ordinary_ids.tolist()))

    @cached_property
    def trie(self) -> Trie:
        """The trie of the ordinary tokens."""
        found = self._small_trie()
        return found if isinstance(found, Trie) else lay_out(found)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256, in hexadecimal, of all facts that change ids."""
        # Collect the facts that have a field of their own, then the other rules.
        by_merges = self.match == "bpe"
        decisive = (
            "llmgpu fingerprint 1",
            self.expression,
            self.normalizer,
            self.match,
            self.ignore_merges if by_merges else None,
            self.merges.astype("<u4").tobytes() if by_merges else None,
            self.unknown_token if self.missing_bytes else None,
            pack_ids(sorted(self.special_tokens.values())),
            self.token_lengths.astype("<u4").tobytes(),
        )
        # Include the name of a flag in its rule, since two flags may have equal lists of ids.
        rules = [
            f"{name} {rule}" if name in ADDED_FLAGS else rule
            for name, rule in self._recorded.items()
        ]
        if self.pieces is not None:
            rules += [str(self.unknown_token), *map(repr, self.pieces.entries().values())]
        # Hash msgpack's encoding entry by entry, so that gigabytes of tokens are not copied.
        digest = hashlib.sha256(msgpack.Packer().pack_array_header(len(decisive) + 1 + len(rules)))
        for entry in decisive:
            digest.update(msgpack.packb(entry))
        digest.update(b"".join(pack_data("token_data", len(self.token_data), ())))
        digest.update(self.token_data.data)
        for rule in rules:
            digest.update(msgpack.packb(rule))
        return digest.hexdigest()

    @cached_property
    def missing_bytes(self) -> list[int]:
        """The byte values that no ordinary token has, ascending.

        The list is empty for a vocabulary of SentencePiece's kind, in which any text has ids.
        """
        if self.pieces is not None:
            return []
        special = set(self.special_tokens.values())
        of_one_byte = np.flatnonzero(self.token_lengths == 1).tolist()
        starts = self.token_offsets[[i for i in of_one_byte if i not in special]]
        return sorted(set(range(256)).difference(self.token_data[starts].tolist()))

    def decode(self, ids: ArrayLike) -> bytes:
        """Return the bytes of `ids` (n,), any integers, end to end.

        Raises InputError if `ids` has more than one dimension or holds other values than integers,
        and for the first id that is not in the vocabulary or has no token.
        """
        numbers, spelled = _as_row(ids), []
        for begin in range(0, len(numbers), _DECODE_BLOCK):
            block = numbers[begin : begin + _DECODE_BLOCK]
            is_known = (block >= 0) & (block < self.size)
            # lengths: int64 (ids,), bytes of each id, 0 for an id without a token.
            lengths = self.token_lengths[np.where(is_known, block, 0)] * is_known
            if not lengths.all():
                place = int(np.argmin(lengths))
                raise InputError(
                    f"id {block[place]} at position {begin + place} is not in the vocabulary of "
                    f"{self.size:,} tokens: was the text tokenized with another one?"
                )
            starts = self.token_offsets[block]
            spelled.append(concatenate_ranges(self.token_data, starts, lengths).tobytes())
        return b"".join(spelled)

    def decode_document(self, ids: ArrayLike) -> bytes:
        """Return the bytes of a document's ids, without spaces that encoding added at the start.

        Raises InputError as `decode` does.
        """
        data, pieces = self.decode(ids), self.pieces
        if pieces is None or not pieces.decoder or not data.startswith(b" "):
            return data
        from llmgpu.bpe.vocabulary.pieces import UNKNOWN, drop_spaces

        # Only the first tokens can lose spaces: the tokens of the leading spaces, and the token
        # after them.
        begin = len(data) - len(data.lstrip(b" "))
        numbers = _as_row(ids)[: begin + 1 + int((self.token_lengths == 0).any())]
        tokens = [self.tokens[number] for number in numbers.tolist()]
        keeps = [pieces.kinds[number] == UNKNOWN for number in numbers.tolist()]
        return b"".join(drop_spaces(pieces.decoder, tokens, keeps)) + data[sum(map(len, tokens)) :]

    def to_bytes(self) -> bytes:
        """Return the bytes of the vocabulary file. Equal vocabularies have equal bytes."""
        return b"".join(self.packed())

    def packed(self) -> Iterator[bytes]:
        """Yield the bytes of the vocabulary file in blocks, in little memory."""
        entries = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        chat = {} if self.chat is None else self.chat.entries()
        entries["training"] = self.training | self._recorded | self._joined(AROUND) | chat
        entries["tokens"] = self._packed_tokens
        if (pieces := entries.pop("pieces")) is not None:
            entries |= pieces.entries()
        # Use an existing trie, or keep a small one.
        trie = self.__dict__.get("trie") or self._small_trie()
        if isinstance(trie, Trie):
            self.__dict__["trie"] = trie
        return pack(entries, trie, self.fingerprint)

    def _small_trie(self) -> Trie | SortedTokens:
        """Return the trie of the ordinary tokens; of a large trie, only the sorted tokens."""
        ids, lengths = self.ordinary_ids, self.token_lengths[self.ordinary_ids]
        if library() is not None and int(lengths.sum()) <= FEW_NODES:
            nodes, edges = lay_out_trie(self.token_data, self.token_offsets, ids)
            return Trie(nodes, edges, int(lengths.max(initial=0)))
        tokens = sort_tokens(self.ordinary_tokens, ids)
        return lay_out(tokens) if tokens.num_nodes <= FEW_NODES else tokens

    @classmethod
    @delaying_forks()  # modules are imported here, and an import holds the module's lock
    def from_bytes(cls, data: bytes, name: str = "vocabulary") -> Vocabulary:
        """Return the vocabulary in the bytes of a file, see `to_bytes`; name: the name in errors.

        Raises VocabularyError if anything is wrong with the data. Allocates no more than a small
        multiple of len(data).
        """
        # Move the rules out of the training data, then make a vocabulary, which checks everything.
        try:
            entries, trie, fingerprint = unpack(data)
            training = entries["training"]
            absent = UNRECORDED_VERSION if _has_classes(entries["pattern"]) else DEFAULT_VERSION
            entries["unicode"] = training.pop(UNICODE, absent)
            entries |= {rule: _take_ids(training, rule) for rule in (*SPECIAL_IDS, *AROUND)}
            entries["chat"] = take_chat_template(training)
            entries["pieces"] = _take_pieces(entries)
            vocabulary = cls(**entries)
            if vocabulary.fingerprint != fingerprint:
                raise VocabularyError("damaged: its fingerprint does not match its content")
            if not _spells_each_token_once(trie, vocabulary):
                validate_trie(trie, vocabulary.ordinary_tokens, vocabulary.ordinary_ids)
        except VocabularyError as error:
            raise VocabularyError(f"{name}: {error}") from error
        vocabulary.__dict__["trie"] = trie  # where cached_property stores the trie
        return vocabulary

    @classmethod
    def load(cls, path: str | Path) -> Vocabulary:
        """Read a vocabulary file; VocabularyError if it can't be read or is damaged."""
        try:
            data = read_whole(path, "vocabulary", check_header)
        except OSError as error:
            reason = error.strerror or error
            raise VocabularyError(f"can't read the vocabulary {path}: {reason}") from error
        except VocabularyError as error:
            kind = kind_of(str(path))
            what = "" if kind in (None, VOCABULARY) else f" but {kind}: {_READABLE}"
            raise VocabularyError(f"{path}: {error}{what}") from error
        return cls.from_bytes(data, str(path))

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write a vocabulary file atomically; OutputError if it can't be written.

        force: replace even a file of another kind.
        """
        check_outputs([Output(str(path), VOCABULARY)], force=force)
        with atomic_output(path) as stream:
            stream.writelines(self.packed())


def _spells_each_token_once(trie: Trie, vocabulary: Vocabulary) -> bool:
    """Whether the CPU engine finds that a trie spells each ordinary token exactly once.

    Without an engine, or if some tokens are equal, the result is False. The caller then asks
    `validate_trie`.
    """
    if library() is None:
        return False
    is_ordinary = np.zeros(vocabulary.size, np.bool_)
    is_ordinary[vocabulary.ordinary_ids] = True
    lengths = vocabulary.token_lengths[is_ordinary]
    found = spelled_tokens(
        trie.nodes, trie.edges, vocabulary.token_data, vocabulary.token_offsets, is_ordinary
    )
    return found == np.count_nonzero(lengths) and trie.longest == lengths.max(initial=0)


def _has_classes(pattern: str) -> bool:
    """Whether a named pattern has character classes, which depend on Unicode's version."""
    return pattern in PATTERNS and PATTERNS[pattern].unicode is not None


def _take_ids(training: dict[str, int | float | str], name: str) -> tuple[int, ...]:
    """Remove an entry from a file's training data, and return its ids.

    Raises VocabularyError for an invalid entry.
    """
    text = training.pop(name, None)
    if text is None:
        return ()
    if not isinstance(text, str) or not re.fullmatch("[0-9]{1,10}(,[0-9]{1,10})*", text):
        raise VocabularyError(f"damaged: {name} are not ids with commas between them")
    return tuple(map(int, text.split(",")))


def _take_pieces(fields: dict[str, Any]) -> PieceRules | None:
    """Remove the rules of SentencePiece's kind from a file's fields, and return them.

    The special tokens in `fields` are changed to the spelling that they have in texts.
    """
    entries = {name: fields.pop(name) for name in OPTIONAL if name in fields}
    if not entries:
        return None
    from llmgpu.bpe.vocabulary.pieces import PieceRules

    pieces = PieceRules.of_entries(entries)
    special = fields["special_tokens"].items()
    fields["special_tokens"] = {pieces.literal(number, text): number for text, number in special}
    return pieces


def _as_row(ids: ArrayLike) -> NDArray[np.integer]:
    """Return ids as integers (n,); InputError for more than one dimension or other values."""
    try:
        numbers = np.asarray(ids)
    except ValueError as error:
        raise InputError("ids must be one row, not rows of several lengths") from error
    if numbers.ndim > 1:
        raise InputError(f"ids must be one row, not {numbers.shape}: decode one row at a time")
    if numbers.size and not np.issubdtype(numbers.dtype, np.integer):
        raise InputError(f"ids must be whole numbers of up to 64 bits, not {numbers.dtype.name}")
    return numbers.reshape(-1)


def _check(vocabulary: Vocabulary) -> None:
    """Raise VocabularyError for the first error in a vocabulary.

    Sizes are checked before memory is allocated by size, so that the check of a malicious
    vocabulary takes at most a small multiple of the vocabulary's own memory.
    """
    if not 0 < vocabulary.size < NO_TOKEN:
        raise VocabularyError(f"{vocabulary.size} tokens: use 1 to {NO_TOKEN - 1}")
    _check_rules(vocabulary)
    if vocabulary.pieces is not None:
        vocabulary.pieces.check(vocabulary.tokens, vocabulary.unknown_token)
        if (vocabulary.pattern, vocabulary.match) != ("none", "bpe"):
            raise VocabularyError(
                "a vocabulary of SentencePiece's kind has the pattern none and merges; no other "
                "rule is possible"
            )
    check_pattern(vocabulary.pattern, vocabulary.expression)
    _check_special_tokens(vocabulary)
    _check_merges(vocabulary)
    check_training(vocabulary.training, vocabulary._recorded | vocabulary._joined(AROUND))


def _check_rules(vocabulary: Vocabulary) -> None:
    for what, value, known in (
        ("tie rule", vocabulary.tie, TIE_RULES),
        ("match rule", vocabulary.match, MATCH_RULES),
        ("Unicode version", vocabulary.unicode, VERSIONS),
    ):
        if value not in known:
            called, names = quote(str(value)), ", ".join(filter(None, known))
            raise VocabularyError(f"unknown {what} {called}: this version supports {names}")
    if vocabulary.normalizer is not None:
        get_normalizer(vocabulary.normalizer)
    unknown = vocabulary.unknown_token
    if unknown is not None and not 0 <= unknown < vocabulary.size:
        raise VocabularyError(
            f"the unknown token is {unknown}, but there are {vocabulary.size} tokens"
        )


def _check_special_tokens(vocabulary: Vocabulary) -> None:
    pieces = vocabulary.pieces
    for text, token in vocabulary.special_tokens.items():
        if not 0 <= token < vocabulary.size:
            raise VocabularyError(
                f"special token {quote(text)} has id {token}, but there are {vocabulary.size} "
                "tokens"
            )
        spelled = text
        if pieces is not None and token in pieces.marked:
            from llmgpu.bpe.vocabulary.pieces import SPACE_MARK

            spelled = text.replace(SPACE_MARK, " ")
        if not text or vocabulary.tokens[token] != spelled.encode(errors="replace"):
            raise VocabularyError(f"special token {quote(text)} is not what id {token} spells")
    special = set(vocabulary.special_tokens.values())
    for name in SPECIAL_IDS:
        marked = getattr(vocabulary, name)
        if len(set(marked)) < len(marked) or not set(marked) <= special:
            raise VocabularyError(f"{name} are not different ids of special tokens")
    for number in (*vocabulary.prefix_ids, *vocabulary.suffix_ids):
        if not 0 <= number < vocabulary.size or not vocabulary.tokens[number]:
            raise VocabularyError(f"id {number}, added around a text, is not in the vocabulary")


def _check_merges(vocabulary: Vocabulary) -> None:
    merges = vocabulary.merges
    if merges.dtype != np.uint32 or merges.ndim != 2 or merges.shape[1] != 3:
        raise VocabularyError(f"merges must be uint32 (M, 3), not {merges.dtype} {merges.shape}")
    pieces = vocabulary.pieces
    allowed = np.zeros(vocabulary.size, np.bool_)
    allowed[vocabulary.ordinary_ids if pieces is None else pieces.ids_of(*pieces.text_kinds)] = True
    if (merges >= vocabulary.size).any() or not allowed[merges].all():
        raise VocabularyError("a merge has an id that is special or not in the vocabulary")
    lengths = vocabulary.token_lengths[merges]
    if (lengths[:, :2] == 0).any():
        raise VocabularyError("a merge has an empty part")
    # Compare lengths first, so that `_spell_results` builds no string longer than a token.
    if (lengths[:, 0] + lengths[:, 1] != lengths[:, 2]).any() or not _spell_results(vocabulary):
        raise VocabularyError("a merge does not spell its result")


def _spell_results(vocabulary: Vocabulary) -> bool:
    if library() is not None:
        return merges_spell(vocabulary.token_data, vocabulary.token_offsets, vocabulary.merges)
    tokens = tuple(vocabulary.tokens)
    return all(
        tokens[left] + tokens[right] == tokens[result]
        for left, right, result in vocabulary.merges.tolist()
    )


def check_pattern(name: str, expression: str) -> None:
    """Raise VocabularyError unless a pattern's name and expression belong together.

    A name in PATTERNS must come with the expression in PATTERNS. The name of a custom pattern
    contains its expression. Any other name comes from another version of llmgpu, and may have any
    expression that is not in PATTERNS.
    """
    check_text("the pattern's name", name)
    check_text("the pattern's expression", expression)
    prefixes = [prefix for prefix in (REGEX_PREFIX, SPLITS_PREFIX) if name.startswith(prefix)]
    fits = not prefixes or name == prefixes[0] + expression
    for pattern in PATTERNS.values():
        fits = fits and (pattern.name == name) == (pattern.expression == expression)
    if not fits:
        raise VocabularyError(
            f"pattern {quote(name)} does not have the expression {quote(expression)}"
        )


def check_training(training: Mapping[str, object], recorded: Mapping[str, str]) -> None:
    """Raise VocabularyError for training data that a file can't store.

    recorded: rules, as text by name, that the file adds to its training data.
    """
    if len(training) > MAX_TRAINING_ENTRIES:
        raise VocabularyError(
            f"{len(training)} entries of training data, but the limit is {MAX_TRAINING_ENTRIES}"
        )
    for rule in (UNICODE, *SPECIAL_IDS, *AROUND, CHAT_SOURCE, CHAT_TOKENS):
        if rule in training:
            raise VocabularyError(
                f"training data can't hold {quote(rule)}, which is an argument of its own"
            )
    for rule, text in recorded.items():
        check_text(f"the list of {rule}", text)
    for key, value in training.items():
        check_text("a key of the training data", key)
        if isinstance(value, str):
            check_text(f"training data {quote(key)}", value)
        elif isinstance(value, bool) or not isinstance(value, (int, float)):
            raise VocabularyError(f"training data {quote(key)} is neither a number nor a string")
        elif isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise VocabularyError(f"training data {quote(key)} does not fit in 64 bits: {value}")
