"""The post-processors of a tokenizer.json, which add ids before and after a text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llmgpu.bpe.interchange.token_tables import check_id, to_text
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import VocabularyError
from llmgpu.input_files import Note, quote

_PROCESSING = "TemplateProcessing"
_NAMED = {"RobertaProcessing", "BertProcessing"}
KINDS = {_PROCESSING, "ByteLevel"} | _NAMED

Around = tuple[tuple[int, ...], tuple[int, ...]]


def read_around(steps: Sequence[tuple[str, Mapping[str, Any]]], note: Note) -> Around:
    """Return the ids that post-processors add before and after a text.

    steps: types and content of the post-processors. The types are in KINDS. note: called with a
    reminder that llmgpu adds the ids only on request.

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


def describe_around(
    vocabulary: Vocabulary, texts: Mapping[int, str] | None = None
) -> dict[str, Any] | None:
    """Return the post-processor that adds a vocabulary's `prefix_ids` and `suffix_ids`.

    Returns None if the vocabulary has no such ids.

    texts: text of each id. By default, special tokens have their own text, and other tokens their
    text in the byte-level alphabet.
    """
    before, after = vocabulary.prefix_ids, vocabulary.suffix_ids
    special = texts or {number: text for text, number in vocabulary.special_tokens.items()}
    names = {
        number: special.get(number) or to_text(vocabulary.tokens[number])
        for number in (*before, *after)
    }

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
