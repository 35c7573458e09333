"""Encoding and decoding exactly as a `tokenizers.Tokenizer`, whose components are read once.

"The library" is the package tokenizers. The steps follow the library: split the text at the added
tokens that are not normalized, normalize the text between them, split this text at the normalized
added tokens, and match the text that remains. A method returns None in the cases in which only the
library gives the exact result:

- A text spells an added token with lstrip, rstrip or single_word.
- A text is not valid Unicode, or has a byte without a token.
- The Python package `regex` cuts the text into pre-tokens, and a character is newer than the
  library's version of Unicode, or the class of a character has changed since that version.
- The caller wants special tokens to be text, and the text spells a special token or is normalized.
  llmgpu encodes such a text only if all added tokens are special, and if pre-tokens are not looked
  up as whole tokens before merging (`ignore_merges`).

A method also returns None if the package `regex` cuts the texts, and the texts have fewer than
FEW_CHARACTERS together: the library encodes such texts faster.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from typing import Any

from llmgpu.bpe.encoding.special_search import search_for
from llmgpu.bpe.interchange.huggingface import read_content
from llmgpu.bpe.interchange.token_tables import require_package, stands_for_bytes, to_bytes
from llmgpu.bpe.pretokens.names import SPLITS_PREFIX
from llmgpu.bpe.vocabulary.file import ADDED_FLAGS
from llmgpu.errors import LlmgpuError, VocabularyError
from llmgpu.input_files import quote
from llmgpu.text.normalizing import get_normalizer
from llmgpu.tokenizer.tokenizer import Tokenizer

_FLAGS = ("lstrip", "rstrip", "single_word")
FEW_CHARACTERS = 8192  # characters in the texts of a call; see the head of this file
# If there are more stretches of text, encoding them in one call is faster than one by one.
_FEW = 24
_CHANGED = "\u0295"  # a letter whose class Unicode changed after the library's version

Ids = Sequence[int]


@dataclass(frozen=True)
class Around:
    """The ids that a post-processor adds around a text.

    before, after: the ids. types: the type ids of `before`, of the text and of `after`.
    """

    before: list[int]
    after: list[int]
    types: tuple[list[int], int, list[int]]


class _Added:
    """Added tokens that are searched at the same time."""

    def __init__(self, ids: Mapping[bytes, int]) -> None:
        """Search for the keys of `ids`, which are bytes; the values are the tokens' ids."""
        self.ids = ids
        # The group lets `split` return the tokens between the stretches of text.
        self._pattern = re.compile(b"(%s)" % search_for(ids).pattern.pattern) if ids else None

    def split(self, pieces: list[bytes | int]) -> list[bytes | int]:
        """Replace the tokens that stretches of text spell by their ids.

        pieces: stretches of text, and ids from an earlier search.
        """
        if self._pattern is None:
            return pieces
        found: list[bytes | int] = []
        for piece in pieces:
            if isinstance(piece, int):
                found.append(piece)
                continue
            for number, part in enumerate(self._pattern.split(piece)):
                found.append(self.ids[part] if number % 2 else part)
        return [piece for piece in found if piece != b""]

    def occurs(self, text: bytes) -> bool:
        """Whether a text contains at least one of the tokens."""
        return self._pattern is not None and self._pattern.search(text) is not None


class ExactBackend:
    """Encodes and decodes single texts as a `tokenizers.Tokenizer` without truncation and padding.

    text: the content of the tokenizer.json. around: the ids around a text without special tokens
    (key False), and with special tokens (key True). tokens: texts of tokens by id.
    """

    def __init__(self, library: Any) -> None:
        """Read a `tokenizers.Tokenizer`, which stays unchanged.

        Raises VocabularyError for a component that llmgpu can't replace exactly.
        """
        # Read the tokenizer.json.
        try:
            self.text: str = library.to_str()
        except Exception as error:  # the library's error for a component that is Python code
            raise VocabularyError(f"the tokenizer can't be written as JSON: {error}") from error
        content = json.loads(self.text) | {"truncation": None, "padding": None}
        vocabulary = read_content(content)
        # Run the post-processor to find the ids that it adds around a text.
        self.around = {adds: _ids_around(library.post_processor, adds) for adds in (False, True)}
        around = self.around[True]
        if (around.before, around.after) != (
            [*vocabulary.prefix_ids],
            [*vocabulary.suffix_ids],
        ):
            raise VocabularyError("post_processor adds other ids than it lists")
        # Create a tokenizer that only matches text: this class does all earlier steps.
        self._normalizer = vocabulary.normalizer
        self._read_added(content["added_tokens"], {*vocabulary.normalized_tokens})
        self._takes_whole = bool(vocabulary.takes_whole_tokens)
        self._is_cut_by_regex = vocabulary.pattern.startswith(SPLITS_PREFIX)
        plain = replace(vocabulary, normalizer=None, normalized_tokens=())
        # Drop special tokens, because tokens of kind USER would be found in all texts, see
        # `PieceRules`.
        if vocabulary.pieces is not None:
            no_flags: dict[str, Any] = dict.fromkeys(ADDED_FLAGS, ())
            plain = replace(plain, special_tokens={}, **no_flags)
        self._tokenizer = Tokenizer(plain, "cpu")
        self._read_tokens(library, content, vocabulary.tokens)

    def _read_added(self, added: Sequence[dict[str, Any]], late: set[int]) -> None:
        early_ids: dict[bytes, int] = {}
        late_ids: dict[bytes, int] = {}
        flagged: dict[bytes, int] = {}
        special: dict[bytes, int] = {}
        for token in added:
            text, number = token["content"], token["id"]
            is_late = number in late
            has_flags = any(token[flag] for flag in _FLAGS)
            if is_late and self._normalizer is not None:
                if has_flags:
                    raise VocabularyError(
                        f"the added token {quote(text)} is normalized, and has lstrip, rstrip or "
                        "single_word"
                    )
                text = get_normalizer(self._normalizer).apply(text)
            data = text.encode()
            (late_ids if is_late else early_ids)[data] = number
            if has_flags:
                flagged[data] = number
            if token["special"]:
                special[data] = number
        self._early, self._late = _Added(early_ids), _Added(late_ids)
        self._flagged, self._special = _Added(flagged), _Added(special)

    def _read_tokens(self, library: Any, content: dict[str, Any], spelled: Sequence[bytes]) -> None:
        # A normalized added token decodes to its normalized text. Special tokens are skipped by
        # text, so an ordinary token with the text of a special token is skipped, too.
        added = {token["id"]: library.id_to_token(token["id"]) for token in content["added_tokens"]}
        special = {token["content"] for token in content["added_tokens"] if token["special"]}
        self.tokens = {number: text for text, number in content["model"]["vocab"].items()} | added
        self._special_ids = {number for number, text in self.tokens.items() if text in special}
        self._bytes: dict[int, bytes] | None = None
        if (content.get("decoder") or {}).get("type") == "ByteLevel":
            self._bytes = {number: spelled[number] for number in self.tokens} | {
                number: to_bytes(text) if stands_for_bytes(text) else text.encode()
                for number, text in added.items()
            }

    def encode(
        self, texts: Sequence[str], special_is_text: bool, as_lists: bool
    ) -> list[Any] | None:
        """Return the ids of each text, without `around`; None in the cases of the module's head.

        special_is_text: encode special tokens as ordinary text. as_lists: return lists of int.
        Otherwise the ids are arrays, but lists if a text has added tokens.
        """
        if self._is_cut_by_regex and sum(map(len, texts)) < FEW_CHARACTERS:
            return None
        try:
            cut = [self._cut(text, special_is_text) for text in texts]
            if any(pieces is None for pieces in cut):
                return None
            stretches = [p for pieces in cut for p in pieces or () if not isinstance(p, int)]
            # Encode all stretches at once. Each text is one stretch, unless there are added tokens
            # in it.
            is_uncut = all(pieces and len(pieces) == 1 for pieces in cut)
            is_uncut = is_uncut and len(stretches) == len(texts)
            found = self._encode(stretches, as_lists or not is_uncut)
        except (LlmgpuError, UnicodeEncodeError):
            return None
        if is_uncut:
            return found
        each = iter(found)
        return [
            [number for p in pieces or () for number in ([p] if isinstance(p, int) else next(each))]
            for pieces in cut
        ]

    def _encode(self, stretches: Sequence[bytes], as_lists: bool) -> list[Any]:
        dtype = list if as_lists else None
        if len(stretches) > _FEW:
            return self._tokenizer.encode_batch(stretches, dtype=dtype)
        return [self._tokenizer.encode(stretch, dtype=dtype) for stretch in stretches]

    def _cut(self, text: str, special_is_text: bool) -> list[bytes | int] | None:
        """Split a text into stretches to match, and the ids of the added tokens between them.

        Returns None if only the package tokenizers gives the exact ids.
        """
        # Decide whether llmgpu gives the exact ids, and whether to search for added tokens.
        data = str.encode(text)
        # The packages tokenizers and regex may classify these characters differently.
        is_unsure = self._is_cut_by_regex and not text.isascii() and _unsure().search(text)
        if is_unsure or self._flagged.occurs(data):
            return None
        finds = True
        if special_is_text and self._special.ids:
            finds = len(self._special.ids) < len(self._early.ids) + len(self._late.ids)
            is_plain = not finds and not self._takes_whole
            if not is_plain and (self._normalizer is not None or self._special.occurs(data)):
                return None
        # Split and normalize the text.
        pieces: list[bytes | int] = [data] if data else []
        if finds:
            pieces = self._early.split(pieces)
        if self._normalizer is not None:
            apply = get_normalizer(self._normalizer).apply
            pieces = [
                p if isinstance(p, int) else apply(p.decode(), follows=number > 0).encode()
                for number, p in enumerate(pieces)
            ]
            pieces = [p for p in pieces if p != b""]
        return self._late.split(pieces) if finds else pieces

    def decode(self, ids: Ids, skip_special_tokens: bool) -> str | None:
        """Return the text of ids; None if only the package tokenizers can decode them."""
        if self._bytes is None or not {*map(type, ids)} <= {int}:
            return None
        if skip_special_tokens:
            ids = [number for number in ids if number not in self._special_ids]
        try:
            return b"".join(map(self._bytes.__getitem__, ids)).decode(errors="replace")
        except KeyError:
            return None


def _ids_around(post_processor: Any, adds: bool) -> Around:
    """Return the ids that a post-processor adds around a text.

    adds: whether the caller wants special tokens to be added.
    """
    library = require_package("tokenizers")
    encoding = library.Tokenizer(library.models.WordLevel({"x": 0}, unk_token="x")).encode("x")
    if post_processor is not None:
        encoding = post_processor.process(encoding, None, adds)
    place = encoding.special_tokens_mask.index(0)
    ids, types = encoding.ids, encoding.type_ids
    return Around(ids[:place], ids[place + 1 :], (types[:place], types[place], types[place + 1 :]))


@cache
def _unsure() -> re.Pattern[str]:
    """Return an expression for characters that tokenizers and regex may classify differently.

    These are _CHANGED, and all characters that Python's version of Unicode lacks.
    """
    codes = [code for code in range(0x110000) if unicodedata.category(chr(code)) == "Cn"]
    runs = []
    for _, run in groupby(enumerate(codes), lambda pair: pair[1] - pair[0]):
        found = [code for _, code in run]
        runs.append(rf"\U{found[0]:08x}-\U{found[-1]:08x}")
    return re.compile(f"[{_CHANGED}{''.join(runs)}]")
