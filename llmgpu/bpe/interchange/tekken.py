"""Reads Mistral's tekken.json: ranks of tokens in base64, special tokens, and an expression.

- Special tokens have the first ids, and the other tokens follow by rank. Tokens beyond the
  vocabulary's stated size are ignored.
- The file's expression cuts text, in the C engine or, without the engine, in the package regex
  (`llmgpu.bpe.interchange.components`). A file with another expression than Mistral's is refused:
  the expression might not match all text, and Mistral's tokenizer would lose the unmatched text,
  while llmgpu would not.
"""

from __future__ import annotations

import binascii
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmgpu.bpe.interchange.components import pattern_of_expressions
from llmgpu.bpe.interchange.token_tables import MAX_IDS, imported_vocabulary, place_tokens
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import VocabularyError
from llmgpu.input_files import Note, naming, no_notes, parse_json, quote, read_limited

EXPRESSION = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# In files of these versions the list of special tokens may be missing; the tokens are then _EARLY.
_WITHOUT_SPECIAL = ("v1", "v2", "v3", "v7")
_EARLY = (
    "<unk> <s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] "
    "[/TOOL_RESULTS] [TOOL_CALLS] [IMG] <pad> [IMG_BREAK] [IMG_END] [PREFIX] [MIDDLE] [SUFFIX] "
    "[SYSTEM_PROMPT] [/SYSTEM_PROMPT] [TOOL_CONTENT]"
)


def read(path: str | Path, *, note: Note = no_notes) -> Vocabulary:
    """Read a tekken.json; see `formats.Reader.read`."""
    with naming(path):
        return _read_content(parse_json(read_limited(path)), note)


def _read_content(content: Any, note: Note) -> Vocabulary:
    config = content.get("config") if isinstance(content, dict) else None
    if not isinstance(config, dict):
        raise VocabularyError("not a tekken.json: no config")
    if config.get("pattern") != EXPRESSION:
        shown = quote(str(config.get("pattern")))
        raise VocabularyError(f"the expression {shown} is not Mistral's, the only one known")
    first = _number(config, "default_num_special_tokens", MAX_IDS)
    size = _number(config, "default_vocab_size", MAX_IDS)
    entries, early = content.get("special_tokens"), _EARLY.split()
    if entries is None and config.get("version") in _WITHOUT_SPECIAL and first >= len(early):
        entries = [{"rank": rank, "token_str": text} for rank, text in enumerate(early)]
    special = _read_special(entries, first)
    ordinary = _read_ranks(content.get("vocab"), size - first)
    return imported_vocabulary(
        "tekken",
        place_tokens(dict(enumerate(ordinary, first)), special),
        special,
        (),
        pattern_of_expressions([EXPRESSION], note),
        ignore_merges=True,
    )


def _number(content: Mapping[str, Any], name: str, most: int) -> int:
    value = content.get(name)
    if type(value) is not int or not 0 <= value < most:
        raise VocabularyError(f"{name} is {quote(str(value))}, not a number below {most}")
    return value


def _read_special(entries: object, count: int) -> dict[str, int]:
    """Return the ids of the first `count` special tokens by text.

    entries: the list in the file. An id without an entry gets Mistral's text for it, such as
    ``<SPECIAL_7>``.
    """
    if not isinstance(entries, list):
        raise VocabularyError("there are no special_tokens: use a file of version 7 or later")
    special: dict[str, int] = {}
    for entry in entries:
        text = entry.get("token_str") if isinstance(entry, dict) else None
        if not isinstance(text, str) or not text or text in special:
            raise VocabularyError(f"special token {quote(str(text))} is missing or a duplicate")
        special[text] = _number(entry, "rank", count)
    taken = set(special.values())
    special |= {f"<SPECIAL_{i}>": i for i in range(count) if i not in taken}
    return special


def _read_ranks(entries: object, count: int) -> list[bytes]:
    """Return the tokens of the first `count` ranks, or of all ranks if there are fewer."""
    if not isinstance(entries, list) or count < 0:
        raise VocabularyError("there is no vocab, or no room for it in default_vocab_size")
    ranks: dict[bytes, int] = {}
    for number, entry in enumerate(entries[:count]):
        try:
            token = binascii.a2b_base64(entry["token_bytes"], strict_mode=True)
            rank = entry["rank"]
        except (KeyError, TypeError, ValueError) as error:
            raise VocabularyError(f"entry {number} of vocab is not a rank and bytes") from error
        if rank != number or not token or token in ranks:
            raise VocabularyError(
                f"entry {number} of vocab has rank {quote(str(rank))}, or a token "
                "that is empty or a duplicate"
            )
        ranks[token] = rank
    return [*ranks]
