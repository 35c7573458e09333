"""A tokenizer.json of SentencePiece's kind: Llama 2, Gemma, Phi 3, Yi.

- The library writes U+2581 for spaces, by a normalizer or by the pre-tokenizer Metaspace. Text has
  no space afterwards, so a Split by spaces does nothing. llmgpu's tokens have spaces instead, and
  the last step of its normalizer turns every U+2581 of a text into a space.
- A character without a token becomes its byte tokens, or else the unknown token, before anything
  merges. A byte token may be missing if its byte is a character of ASCII that has a token, such as
  the tab of Gemma 2. If other byte tokens were missing, the library would put unknown tokens and
  byte tokens in another order than their characters. Such files are refused.
- Added tokens that are not special are found in every text. Special tokens are found only where a
  caller allows them, as with any other vocabulary.
- With `ignore_merges`, a pre-token that spells a token becomes this token. In llmgpu the whole text
  is one pre-token, so a file with `ignore_merges` and a Metaspace that splits is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.interchange.token_tables import place_tokens
from llmgpu.bpe.pretokens.pattern import get_pattern
from llmgpu.bpe.vocabulary.pieces import (
    ABSENT,
    BYTE,
    CONTROL,
    NORMAL,
    SPACE_MARK,
    UNKNOWN,
    USER,
    PieceRules,
)
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import VocabularyError
from llmgpu.input_files import quote

_BYTE_TOKEN = re.compile("<0x([0-9A-F]{2})>")
TO_MARKS = {"content": SPACE_MARK, "pattern": {"String": " "}, "type": "Replace"}
TO_SPACES = {"content": " ", "pattern": {"String": SPACE_MARK}, "type": "Replace"}
_CHANGES_STARTS = {"NFC", "Lowercase", "Strip"}

PRE_TOKENIZERS = {"Metaspace", "Split"}
DECODERS = {"ByteFallback", "Fuse", "Metaspace", "Replace", "Strip"}
Step = tuple[str, dict[str, Any]]


def is_of_pieces(content: Mapping[str, Any]) -> bool:
    """Whether a tokenizer.json is of SentencePiece's kind."""
    model, cut = content.get("model"), str(content.get("pre_tokenizer"))
    if isinstance(model, dict) and model.get("byte_fallback") is True:
        return True
    has_marks = SPACE_MARK in cut + str(content.get("normalizer")) or "'Metaspace'" in cut
    return has_marks and "'ByteLevel'" not in cut


def read_steps(
    normalizer: Sequence[Step], pre_tokenizer: Sequence[Step]
) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """Return the steps of llmgpu's normalizer, and the Metaspace, None if there is none.

    The returned steps give the text that the steps of Hugging Face's library give, with spaces in
    place of U+2581.

    Raises VocabularyError if a text may still have spaces after the library's steps.
    """
    # Find the step of type Metaspace. All other steps must be Splits at spaces.
    steps = [{name: step[name] for name in sorted(step)} for _, step in normalizer]
    metaspace = None
    for kind, step in pre_tokenizer:
        if kind == "Metaspace":
            if metaspace is not None or step.get("replacement") != SPACE_MARK:
                raise VocabularyError("pre_tokenizer Metaspace must have U+2581, and be there once")
            metaspace = step
        elif step.get("pattern") != {"String": " "} or step.get("invert"):
            raise VocabularyError("pre_tokenizer Split is supported for spaces in this vocabulary")
    # Find the last step that turns spaces into U+2581.
    if metaspace is not None:
        steps.append(TO_MARKS)
    if TO_MARKS not in steps:
        raise VocabularyError("the normalizer does not make U+2581 of spaces: not supported")
    last = len(steps) - 1 - steps[::-1].index(TO_MARKS)
    if any(" " in str(step.get("content", step.get("prepend", ""))) for step in steps[last + 1 :]):
        raise VocabularyError("the normalizer makes spaces after U+2581: not supported")
    # Add a step that turns U+2581 into spaces. If the last step turns spaces into U+2581, drop it,
    # since the added step would undo it.
    if last == len(steps) - 1:
        del steps[last]
        if steps and steps[-1] == {"prepend": SPACE_MARK, "type": "Prepend"}:
            steps[-1] = {"prepend": " ", "type": "Prepend"}
    steps.append(TO_SPACES)
    return steps, metaspace


def scheme_of(metaspace: Mapping[str, Any] | None) -> str:
    """Return for which texts a Metaspace adds a space in front: "always", "first" or "never".

    A document has several texts if special tokens were cut out. "first" means only the first of
    them.
    """
    if metaspace is None:
        return "never"
    default = "never" if metaspace.get("add_prefix_space") is False else "always"
    scheme = metaspace.get("prepend_scheme", default)
    if scheme not in ("always", "first", "never"):
        raise VocabularyError(f"the prepend_scheme of Metaspace is {quote(scheme)}")
    return str(scheme)


def check_prefix(
    steps: list[dict[str, Any]],
    scheme: str,
    added: Mapping[str, int],
    normalized: tuple[int, ...],
    *,
    has_normalizer: bool,
) -> tuple[list[dict[str, Any]], tuple[int, ...]]:
    """Return the normalizer's steps with the prefix of a Metaspace, and the normalized tokens' ids.

    Hugging Face's library searches for all added tokens before a Metaspace adds its prefix. With a
    prefix, no ids of normalized tokens are therefore returned.

    steps: the normalizer's steps. scheme: see `scheme_of`. added: ids by text. normalized: ids of
    the normalized tokens in the file.

    Raises VocabularyError if the ids could differ from the library's ids.
    """
    if scheme == "never":
        return steps, normalized
    if normalized and has_normalizer:
        raise VocabularyError(
            "normalized added tokens together with a normalizer and Metaspace are not supported"
        )
    if {step["type"] for step in steps} & _CHANGES_STARTS:
        raise VocabularyError("Metaspace after a normalizer other than Replace is not supported")
    # Hugging Face's library searches for normalized tokens after the other tokens, llmgpu for all
    # at once. Both find the same tokens unless a normalized token overlaps another token.
    late = [text for text, number in added.items() if number in set(normalized)]
    early = [text for text, number in added.items() if number not in set(normalized)]
    for text in late if early else ():
        for other in early:
            if _overlap(text, other):
                raise VocabularyError(
                    f"the added tokens {quote(other)} and {quote(text)} may overlap, and only one "
                    "is normalized: not supported"
                )
    return [*steps, {"prepend_scheme": scheme, "type": "Metaspace"}], ()


def _overlap(one: str, other: str) -> bool:
    ends = (one[-n:] == other[:n] or other[-n:] == one[:n] for n in range(1, len(one)))
    return one in other or other in one or any(ends)


def read_decoder(steps: Sequence[Step]) -> str:
    """Return the value of `PieceRules.decoder` for a decoder's steps."""
    decoder = ""
    for kind, step in steps:
        if kind == "Metaspace" and scheme_of(step) != "never":
            decoder = "token"
        elif kind == "Strip" and step.get("start"):
            decoder = "first"
    return decoder


def make_vocabulary(
    ids: dict[str, int],
    merges: NDArray[np.uint32],
    added: dict[str, int],
    plain: Sequence[str],
    unknown: int | None,
    model: Mapping[str, Any],
    *,
    splits: bool,
    decoder: str,
    **rules: Any,
) -> Vocabulary:
    """Return the vocabulary of a model.

    ids: ids by text of the model's tokens. added: ids by text of the added tokens. plain: texts of
    the added tokens that are not special. unknown: the unknown token's id. splits, decoder: fields
    of `PieceRules`. rules: further fields of Vocabulary.

    Raises VocabularyError for a rule of Hugging Face's library that llmgpu does not support.
    """
    takes_whole = model.get("ignore_merges") is True
    if takes_whole and splits:
        raise VocabularyError(
            "ignore_merges and a Metaspace that splits are not supported together"
        )
    # Read the model's tokens and their kinds, then let added tokens replace some of them.
    merged = set(merges.reshape(-1).tolist())
    tokens, kinds = _read_tokens(ids, merged, added, unknown, model.get("byte_fallback") is True)
    for text, number in added.items():
        if SPACE_MARK in text and " " in text:
            raise VocabularyError(f"the added token {quote(text)} has spaces and U+2581")
        if len(text) == 1 and text not in ids:
            raise VocabularyError(f"the added token {quote(text)} is a character without a token")
        kinds[number] = USER if text in plain else CONTROL
        tokens[number] = text.replace(SPACE_MARK, " ").encode()
        if kinds[number] == CONTROL and number in merged:
            raise VocabularyError(f"the token {quote(text)} is special, and in a merge")
    # Build the vocabulary. Its pattern does not cut texts.
    placed = place_tokens(tokens, {})
    cut = get_pattern("none")
    return Vocabulary(
        tokens=placed,
        merges=merges,
        pattern=cut.name,
        expression=cut.expression,
        special_tokens=added,
        match="bpe",
        ignore_merges=takes_whole,
        unknown_token=unknown,
        training={"imported_from": "huggingface"},
        pieces=PieceRules(
            bytes(kinds.get(number, ABSENT) for number in range(len(placed))),
            fuses=model.get("fuse_unk") is True,
            splits=splits,
            decoder=decoder,
            marked=tuple(sorted(n for text, n in added.items() if SPACE_MARK in text)),
        ),
        **rules,
    )


def _read_tokens(
    ids: dict[str, int],
    merged: Set[int],
    added: Mapping[str, int],
    unknown: int | None,
    has_bytes: bool,
) -> tuple[dict[int, bytes], dict[int, int]]:
    """Return the tokens of a model and their kinds, by id.

    ids: the model's ids by text. merged: ids that are in merges. added: ids by text of the added
    tokens. unknown: the unknown token's id. has_bytes: whether byte_fallback is on.
    """
    kinds: dict[int, int] = {}
    tokens: dict[int, bytes] = {}
    for text in filter(_BYTE_TOKEN.fullmatch, added if has_bytes else ()):
        raise VocabularyError(
            f"the byte token {quote(text)} is also an added token: leave byte tokens in the model "
            "only"
        )
    for text, number in ids.items():
        found = _BYTE_TOKEN.fullmatch(text) if has_bytes else None
        kinds[number] = UNKNOWN if number == unknown else BYTE if found else NORMAL
        spelled = text.replace(SPACE_MARK, " ").encode()
        tokens[number] = bytes([int(found[1], 16)]) if found else spelled
        if kinds[number] != NORMAL and number in merged:
            raise VocabularyError(f"a merge names the token {quote(text)}, which stands for bytes")
        if kinds[number] == NORMAL and text not in added and (" " in text or not text):
            raise VocabularyError(f"the token {quote(text)} is empty or has a space")
    # Check that every character of a text gets ids: by a token, by byte tokens or as unknown.
    missing = 256 - list(kinds.values()).count(BYTE)
    needed = [
        value
        for value in range(256 if has_bytes and missing < 256 else 0)
        if f"<0x{value:02X}>" not in ids
        and (value > 0x7F or kinds.get(ids.get(chr(value), -1)) != NORMAL)
    ]
    if needed:
        raise VocabularyError(
            f"byte_fallback, and {missing} of the 256 byte tokens are missing: the byte "
            f"0x{needed[0]:02x} has no token"
        )
    if missing < 256 and SPACE_MARK not in ids:
        raise VocabularyError("byte_fallback without a token U+2581 is not supported")
    if missing == 256 and unknown is None:
        raise VocabularyError("there are neither byte tokens nor an unk_token: text would be lost")
    return tokens, kinds
