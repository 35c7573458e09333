"""Encoding and decoding exactly as a `tokenizers.Tokenizer`, whose components are read once.

"The library" is the package tokenizers. Texts are split at their added tokens and normalized by
`SpecialTokens`, and a `Tokenizer` matches the text between the tokens. A method returns None in
the cases in which only the library gives the exact result:

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
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from typing import Any

from llmgpu.bpe.encoding.special_encoding import Pieces, SpecialTokens
from llmgpu.bpe.encoding.special_options import ALL, SpecialOptions
from llmgpu.bpe.encoding.special_search import search_for
from llmgpu.bpe.interchange.huggingface import read_content
from llmgpu.bpe.interchange.token_tables import require_package, stands_for_bytes, to_bytes
from llmgpu.bpe.pretokens.names import SPLITS_PREFIX
from llmgpu.bpe.vocabulary.file import ADDED_FLAGS
from llmgpu.errors import LlmgpuError, VocabularyError
from llmgpu.tokenizer.tokenizer import Tokenizer

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
        around, listed = self.around[True], (vocabulary.prefix_ids, vocabulary.suffix_ids)
        if (tuple(around.before), tuple(around.after)) != listed:
            raise VocabularyError("post_processor adds other ids than it lists")
        # `_added` finds all added tokens of a text, `_special` only the special ones.
        self._added = SpecialTokens(vocabulary, SpecialOptions((ALL,)))
        tokens = content["added_tokens"]
        special = [token["content"].encode() for token in tokens if token["special"]]
        self._special = search_for(special) if special else None
        self._are_special = len(special) == len(tokens)
        # Create a tokenizer that only matches text: `_added` does all earlier steps.
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
            is_uncut = cut == [[stretch] for stretch in stretches]
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

    def _encode(self, stretches: Sequence[Any], as_lists: bool) -> list[Any]:
        dtype = list if as_lists else None
        if len(stretches) > _FEW:
            return self._tokenizer.encode_batch(stretches, dtype=dtype)
        return [self._tokenizer.encode(stretch, dtype=dtype) for stretch in stretches]

    def _cut(self, text: str, special_is_text: bool) -> Pieces | None:
        """Split a text into stretches to match, and the ids of the added tokens between them.

        Returns None if only the package tokenizers gives the exact ids.
        """
        data = str.encode(text)
        # The packages tokenizers and regex may classify these characters differently.
        if self._is_cut_by_regex and not text.isascii() and _unsure().search(text):
            return None
        if not special_is_text or self._special is None:
            return self._added.split(data)
        normalizer = self._added.normalizer
        if self._are_special and not self._takes_whole:
            return [normalizer.apply(text).encode() if normalizer else data]
        if normalizer or self._special.pattern.search(data):
            return None
        return self._added.split(data)

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
