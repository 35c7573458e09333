r"""Components of a tokenizer.json beside its model: pre-tokenizer, post-processor, added tokens.

Text is cut by a ByteLevel, possibly after Splits and Digits:

- One Split with the expression of a known pattern is read as this pattern. Any other pre-tokenizer
  becomes a pattern of the expressions of all steps, which the package regex runs one after the
  other (`llmgpu.bpe.pretokens.custom_regex`).
- Such a pattern is exact only if regex and Oniguruma agree. An expression is therefore accepted
  only if it consists of elements with the same meaning in both engines: characters, ``\s \S \d \r
  \n \t`` and classes such as ``\p{Lu}``, sets of these without nested sets, groups, alternatives,
  lookahead, and repetitions. Repetitions in braces may be neither possessive nor lazy. Ignoring
  case is accepted only for English contractions, because ignoring case may join characters. ``$``
  and ``^`` are refused: they match at the ends of lines in one engine, at the ends of the text in
  the other.
- Character classes follow the Unicode version of the package regex. A note says that other tools
  may have another version.

The post-processor:

- A template for one text becomes ids before and after the text. The two tokens that RoBERTa's and
  BERT's processors name become such ids, too. The ids come from the post-processor, because the
  library uses the ids stated there.
- Templates for two texts are not kept, because each text is a document of its own in llmgpu. The
  written template treats both texts alike, as Llama 3's template does.
- In a Sequence of templates, the library passes the tokens of one template to the next template as
  several texts. Such a Sequence is refused. A template that does not have the text exactly once is
  refused, too.

Added tokens are checked against the tokens of the model.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.interchange.token_tables import (
    GPT2,
    HUGGINGFACE,
    HUGGINGFACE_NAMES,
    check_id,
    expression_of,
    stands_for_bytes,
    to_bytes,
)
from llmgpu.bpe.pretokens.blocks import Pattern
from llmgpu.bpe.pretokens.custom_regex import custom_pattern, splits_name
from llmgpu.bpe.pretokens.names import SPLITS_PREFIX
from llmgpu.bpe.vocabulary.file import check_text
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import LlmgpuError, VocabularyError
from llmgpu.input_files import Note, quote
from llmgpu.text.normalizing import NFC, get_normalizer

Steps = list[tuple[str, dict[str, Any]]]  # the type and content of each component of one kind


class Model(NamedTuple):
    """The content of a tokenizer.json.

    content: of its model. ids: ids by text of the model's tokens. merges: uint32 (M, 3). unknown:
    the unknown token's id. added: ids by text of the added tokens. plain: texts of the added tokens
    that are not special. parts: components by kind.
    """

    content: Mapping[str, Any]
    ids: dict[str, int]
    merges: NDArray[np.uint32]
    unknown: int | None
    added: dict[str, int]
    plain: Sequence[str]
    parts: Mapping[str, Steps]


PRE_TOKENIZERS = frozenset({"Split", "ByteLevel", "Digits"})

_ESCAPED = r"\\(?:p\{[A-Z][a-z]?\}|[sSdrnt]|\W)"
_PORTABLE = re.compile(
    rf"(?:{_ESCAPED}"
    rf"|\[\^?(?:{_ESCAPED}|(?!&&)[^\\\[\]])+\]"
    r"|\(\?i:'s\|'t\|'re\|'ve\|'m\|'ll\|'d\)|'\(\?i:\[sdmt\]\|ll\|ve\|re\)"
    r"|\(\?[:=!]|\((?!\?)|[)|]|[?*+]|\{\d+(?:,\d*)?\}(?![+?])"
    r"|[^\\\[\](){}^$.|?*+])*"
)


def read_pattern(steps: Steps, note: Note) -> str:
    """Return the name of the pattern by which a pre-tokenizer cuts text.

    steps: types and contents of the pre-tokenizer's components; the types are in PRE_TOKENIZERS.
    note: called if the Python package `regex` will cut the text, because its version of Unicode
    may differ from that of the package tokenizers.

    Raises VocabularyError for components that can't be read exactly.
    """
    kinds = [kind for kind, _ in steps]
    if kinds[-1:] != ["ByteLevel"] or "ByteLevel" in kinds[:-1]:
        raise VocabularyError(
            f"pre_tokenizer is {kinds[:5]}, but must be a ByteLevel, optionally after Splits and "
            "Digits"
        )
    # The last step is ByteLevel. With use_regex, it also cuts by gpt2's expression.
    last = steps[-1][1]
    if last.get("add_prefix_space", True) is not False:
        raise VocabularyError("pre_tokenizer ByteLevel with add_prefix_space is not supported")
    use_regex = last.get("use_regex", True) is not False
    if len(steps) == 1:
        return "gpt2" if use_regex else "none"
    cuts = [_read_cut(kind, step) for kind, step in steps[:-1]]
    if use_regex:
        cuts.append((GPT2, True))
    # A single expression may be the published spelling of a known pattern.
    if len(cuts) == 1 and (known := HUGGINGFACE_NAMES.get(cuts[0][0])):
        return known
    # Any other pattern consists of expressions, and its pre-tokens contain all text. So a step that
    # removes matches is refused.
    for expression, is_isolated in cuts:
        if not is_isolated:
            raise VocabularyError(
                "pre_tokenizer Split may be Removed and inverted only with the expression of a "
                f"known pattern, not with {quote(expression)}"
            )
    return pattern_of_expressions([expression for expression, _ in cuts], note)


def pattern_of_expressions(expressions: Sequence[str], note: Note) -> str:
    """Return the name of the pattern that cuts by expressions, one after the other.

    note: called with the version of the package regex, because its Unicode version may differ from
    that of other tools.

    Raises VocabularyError for expressions that may mean something else to another engine, and if
    the package regex is missing.
    """
    for expression in expressions:
        check_portable(expression)
    try:
        pattern = custom_pattern(splits_name(expressions))
    except LlmgpuError as error:
        raise VocabularyError(str(error)) from error
    version = importlib.import_module("regex").__version__
    note(
        f"text is cut by the package regex ({version}), which may follow another version of "
        "Unicode than other tools"
    )
    return pattern.name


def describe_pattern(pattern: str, byte_level: dict[str, Any]) -> dict[str, Any]:
    """Return the pre-tokenizer for a pattern; VocabularyError for a pattern without one.

    byte_level: the ByteLevel that ends the pre-tokenizer, without use_regex.
    """
    if pattern in ("gpt2", "none"):
        return byte_level | {"use_regex": pattern == "gpt2"}
    if pattern.startswith(SPLITS_PREFIX):
        expressions = custom_pattern(pattern).expressions
        for expression in expressions:
            check_portable(expression)
    else:
        expressions = (expression_of(pattern, HUGGINGFACE),)
    splits = [
        {
            "type": "Split",
            "pattern": {"Regex": expression},
            "behavior": "Isolated",
            "invert": False,
        }
        for expression in expressions
    ]
    return {"type": "Sequence", "pretokenizers": [*splits, byte_level | {"use_regex": False}]}


def check_portable(expression: str) -> None:
    """Raise VocabularyError for an expression that another engine may match differently."""
    check_text(f"the expression {quote(expression)}", expression)
    found = _PORTABLE.match(expression)
    end = found.end() if found else 0
    if end < len(expression):
        raise VocabularyError(
            f"the expression {quote(expression)} is not that of a known pattern, and other engines "
            f"may match it differently from {quote(expression[end:])} on"
        )


def _read_cut(kind: str, step: dict[str, Any]) -> tuple[str, bool]:
    """Return the expression of a Split or of Digits, and whether its behavior is Isolated.

    With Isolated, matches and the text between matches become pre-tokens. Digits does this, too.
    """
    if kind == "Digits":
        return (r"\p{N}" if step.get("individual_digits") is True else r"\p{N}+"), True
    how = (step.get("behavior"), step.get("invert", False))
    # "Removed" and inverted removes the text between matches. The known patterns match all text, so
    # there is no text to remove.
    if how not in (("Isolated", False), ("Removed", True)):
        raise VocabularyError("pre_tokenizer Split must be Isolated, or Removed and inverted")
    given = step.get("pattern")
    if not isinstance(given, dict):
        raise VocabularyError("pattern of Split is not a JSON object")
    text, expression = given.get("String"), given.get("Regex")
    if isinstance(text, str) and text:
        expression = re.sub(r"(\W)", r"\\\1", text)
    if not isinstance(expression, str):
        raise VocabularyError("pre_tokenizer Split has neither a Regex nor a String")
    return expression, how == ("Isolated", False)


_PROCESSING = "TemplateProcessing"
_NAMED = {"RobertaProcessing", "BertProcessing"}
POST_PROCESSORS = {_PROCESSING, "ByteLevel"} | _NAMED

Around = tuple[tuple[int, ...], tuple[int, ...]]


def read_around(steps: Steps, note: Note) -> Around:
    """Return the ids that post-processors add before and after a text.

    steps: types and content of the post-processors. The types are in POST_PROCESSORS. note: called
    with a reminder that llmgpu adds the ids only on request.

    Raises VocabularyError if llmgpu can't add the same ids as Hugging Face's library.
    """
    adding = [(kind, step) for kind, step in steps if kind != "ByteLevel"]
    if not adding:
        return (), ()
    kind, step = adding[0]
    if len(adding) > 1:
        raise VocabularyError(f"post_processor {kind} is followed by another that adds tokens")
    try:
        if kind == _PROCESSING:
            around = _read_template(step)
        else:
            around = (_id_of(*step["cls"]),), (_id_of(*step["sep"]),)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise VocabularyError(f"post_processor {kind} is not what the library writes") from error
    if any(around):
        note(f"{kind} adds special tokens around a text; use --add-special-tokens for that")
    if kind in _NAMED:
        note(f"the tokens that {kind} adds between two texts are not kept")
    return around


def _read_template(step: Mapping[str, Any]) -> Around:
    pieces = [pair for piece in step["single"] for pair in piece.items()]
    texts = [place for place, (kind, _) in enumerate(pieces) if kind == "Sequence"]
    if len(texts) != 1 or pieces[texts[0]][1]["id"] != "A":
        raise VocabularyError(f"post_processor {_PROCESSING} must have the text, $A, once")
    ids = {name: known["ids"] for name, known in step["special_tokens"].items()}
    before, after = (
        tuple(_id_of(each["id"], number) for _, each in part for number in ids[each["id"]])
        for part in (pieces[: texts[0]], pieces[texts[0] + 1 :])
    )
    return before, after


def _id_of(name: object, number: object) -> int:
    return check_id(f"the post_processor's token {quote(str(name))}", number)


def describe_around(vocabulary: Vocabulary, texts: Mapping[int, str]) -> dict[str, Any] | None:
    """Return the post-processor that adds a vocabulary's `prefix_ids` and `suffix_ids`.

    Returns None if the vocabulary has no such ids. texts: text of each id.
    """
    before, after = vocabulary.prefix_ids, vocabulary.suffix_ids
    names = {number: texts[number] for number in (*before, *after)}

    def pieces(text: str, type_id: int) -> list[dict[str, Any]]:
        marks = [
            [{"SpecialToken": {"id": names[number], "type_id": type_id}} for number in ids]
            for ids in (before, after)
        ]
        return [*marks[0], {"Sequence": {"id": text, "type_id": type_id}}, *marks[1]]

    if not names:
        return None
    return {
        "type": _PROCESSING,
        "single": pieces("A", 0),
        "pair": [*pieces("A", 0), *pieces("B", 1)],
        "special_tokens": {
            name: {"id": name, "ids": [number], "tokens": [name]} for number, name in names.items()
        },
    }


def check_unmerged(tokens: set[bytes], ignore_merges: bool) -> None:
    """Check that Hugging Face's library and llmgpu give the same ids for a model without merges.

    Without merges, llmgpu lets two neighbours become a token if together they spell it. The library
    uses a token of several bytes only for a whole pre-token (ignore_merges). So the check fails if
    a token consists of two other tokens.
    """
    longer = sorted(token for token in tokens if len(token) > 1)
    if longer and not ignore_merges:
        raise VocabularyError("model BPE has tokens of several bytes, but no merges")
    for token in longer:
        if any(token[:cut] in tokens and token[cut:] in tokens for cut in range(1, len(token))):
            raise VocabularyError(
                f"model BPE has no merges, but the token {quote(token)} consists of two others: "
                "without merges, it would be merged here"
            )


def find_whole(special: Mapping[str, int], vocabulary: Vocabulary) -> list[int]:
    """Return the ids of the special tokens that a pre-token may spell.

    Usually no pre-token has the text of a special token, because the search for special tokens
    finds this text before the pattern cuts. The search misses the text if the normalizer produces
    it, or if the token has the flag single_word and stands inside a word.

    special: ids by text of special tokens that are tokens of the model, too.

    Raises VocabularyError if such a pre-token has other bytes than the special token.
    """
    found = []
    for text, number in special.items():
        if not stands_for_bytes(text):
            continue
        data = to_bytes(text)
        text_bytes = text.encode()
        can_be_missed = number in vocabulary.single_word_tokens or (
            number not in vocabulary.normalized_tokens and _can_make(vocabulary.normalizer, text)
        )
        if not (can_be_missed or data != text_bytes) or not _is_pre_token(data, vocabulary.cut):
            continue
        if data != text_bytes:
            raise VocabularyError(
                f"the added token {quote(text)} is also the model's token for the bytes "
                f"{data.hex(' ')}, and can't be both here: remove it from added_tokens"
            )
        found.append(number)
    return found


def _is_pre_token(data: bytes, pattern: Pattern) -> bool:
    """Whether the pattern leaves `data` as a single pre-token."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    text = np.frombuffer(data, np.uint8)
    return bool(pattern.start_mask(text, np.zeros(1, np.int64)).sum() == 1)


def _can_make(normalizer: str | None, text: str) -> bool:
    """Whether a normalizer may produce `text` from a text that does not contain it."""
    if normalizer == NFC:
        # NFC maps other characters to only three ASCII characters: K, semicolon, grave accent.
        return not text.isascii() or not {"K", ";", "`"}.isdisjoint(text)
    return normalizer is not None and get_normalizer(normalizer).name != "Strip"


def check_added_ids(added: dict[str, int], ids: dict[str, int]) -> None:
    """Check that Hugging Face's library gives added tokens the ids that the file states.

    The library ignores the stated id of a token that the model lacks, and numbers such tokens in
    the order of the list, from the model's size on.

    added: stated ids by text, in the order of the list. ids: the model's ids by text.
    """
    following = len(ids)
    for text, number in added.items():
        given = ids.get(text, following)
        following += text not in ids
        if given != number:
            raise VocabularyError(
                f"the added token {quote(text)} has id {number}, but the library would give {given}"
            )
