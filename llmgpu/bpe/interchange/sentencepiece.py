"""SentencePiece's tokenizer.model of type BPE: pieces with scores, and how text is normalized.

The file is a message of protocol buffers; `_fields` reads the wire format. See
`llmgpu.bpe.vocabulary.pieces` for the merges, and `llmgpu.text.charsmap` for the normalizer.

- Control symbols become special tokens. SentencePiece never finds them in text. llmgpu finds them
  only if a caller allows them; the text after an allowed token gets a dummy prefix of its own.
- User-defined symbols are found in all texts, after the text is normalized.
- If the text of a control symbol, the unknown piece or a byte piece is a single character,
  SentencePiece gives this character the piece's id. Models with such pieces are refused. Normal,
  unused and user-defined pieces with a space are refused, too: normalized text has no space.
- In place of bytes that are not UTF-8, SentencePiece puts U+FFFD, but llmgpu keeps the bytes.
"""

from __future__ import annotations

import binascii
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from llmgpu.bpe.interchange.piece_files import BYTE_TOKEN, PREFIX, TO_SPACES
from llmgpu.bpe.interchange.token_tables import MAX_IDS, imported_vocabulary
from llmgpu.bpe.vocabulary.pieces import (
    BYTE,
    CONTROL,
    NORMAL,
    SPACE_MARK,
    UNKNOWN,
    UNUSED,
    USER,
    PieceRules,
)
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import VocabularyError
from llmgpu.input_files import Note, naming, no_notes, quote, read_limited
from llmgpu.text.normalizing import spell_normalizer

_MODEL_TYPES = {1: "Unigram", 2: "BPE", 3: "Word", 4: "Char"}
_UNKNOWN_SURFACE = " \u2047 ".encode()  # bytes to which the unknown piece decodes


def read(path: str | Path, *, note: Note = no_notes) -> Vocabulary:
    """Read a tokenizer.model; see `formats.Reader.read`."""
    with naming(path):
        return _read_model(read_limited(path))


def _read_model(data: bytes) -> Vocabulary:
    # Read the file's fields: 1 is a piece, 2 the trainer's options, 3 the normalizer, 5 the
    # denormalizer.
    pieces: list[tuple[str, float, int]] = []  # text, score and kind by id
    trainer: dict[int, int | bytes] = {}  # values by the number of the field
    normalizer: dict[int, int | bytes] = {}
    for number, value in _fields(data):
        if number == 1:
            pieces.append(_read_piece(_message(value)))
            if len(pieces) > MAX_IDS:
                raise VocabularyError(f"more than {MAX_IDS} pieces")
        elif number == 2:
            trainer |= dict(_fields(_message(value)))
        elif number == 3:
            normalizer |= dict(_fields(_message(value)))
        elif number == 5 and any(
            field == 2 and mapped for field, mapped in _fields(_message(value))
        ):
            raise VocabularyError("the denormalizer of a model is not supported: use encode alone")
    if not pieces:
        raise VocabularyError("not a SentencePiece model: there are no pieces")
    # Check the options. Field 3 of the trainer is the model's type. Field 5 of the normalizer is
    # escape_whitespaces.
    kind = trainer.get(3, 1)
    if kind != 2:
        name = _MODEL_TYPES.get(kind if isinstance(kind, int) else 0, quote(kind))
        raise VocabularyError(
            f"a SentencePiece model of type {name}; supported: BPE. Encode with the package "
            "sentencepiece, and train on the ids as token files"
        )
    if not normalizer.get(5, 1):
        raise VocabularyError("a model with escape_whitespaces off is not supported")
    return make_model(
        "sentencepiece",
        pieces,
        has_bytes=bool(trainer.get(35, 0)),  # byte_fallback
        surface=_message(trainer.get(44, _UNKNOWN_SURFACE)),
        charsmap=_message(normalizer.get(2, b"")),
        prefix=bool(normalizer.get(3, 1)),  # add_dummy_prefix
        removes=bool(normalizer.get(4, 1)),  # remove_extra_whitespaces
        suffix=bool(trainer.get(24, 0)),  # treat_whitespace_as_suffix
    )


def make_model(
    tool: str,
    pieces: list[tuple[str, float, int]],
    *,
    has_bytes: bool,
    prefix: bool,
    surface: bytes = _UNKNOWN_SURFACE,
    charsmap: bytes = b"",
    removes: bool = False,
    suffix: bool = False,
    **rules: Any,
) -> Vocabulary:
    """Return the vocabulary of a model.

    tool: the tool whose file has the model. pieces: text, score and kind of each id. has_bytes:
    whether the model has byte pieces. surface: the bytes to which the unknown piece decodes.
    charsmap, prefix, removes, suffix: see `_spell_normalizer`. rules: further fields of Vocabulary.

    Raises VocabularyError for a model that can't be read exactly.
    """
    kinds = _check_pieces(pieces, has_bytes=has_bytes)
    # Spell the tokens.
    special: dict[str, int] = {}
    tokens: list[bytes] = []
    for number, (text, _, kind) in enumerate(pieces):
        if kind == UNKNOWN:
            tokens.append(surface)
        elif kind == BYTE:
            tokens.append(bytes([int(text[3:5], 16)]))
        else:
            spelled = text if kind == CONTROL else text.replace(SPACE_MARK, " ")
            tokens.append(spelled.encode())
            if kind in (CONTROL, USER) and special.setdefault(spelled, number) != number:
                raise VocabularyError(f"two special pieces are spelled {quote(spelled)}")
    # Turn scores into uint32 ranks by id. The highest score gets rank 0, and equal scores one rank.
    _, ranks = np.unique([-score for _, score, _ in pieces], return_inverse=True)
    symbols = tuple(number for number, kind in enumerate(kinds) if kind == USER)
    texts = [pieces[number][0] for number in symbols]
    vocabulary = imported_vocabulary(
        tool,
        tuple(tokens),
        special,
        (),
        "none",
        normalizer=_spell_normalizer(charsmap, prefix, removes, suffix, texts),
        unknown_token=kinds.index(UNKNOWN),
        normalized_tokens=symbols,
        pieces=PieceRules(
            kinds,
            ranks.astype("<u4").tobytes(),
            fuses=BYTE not in kinds,
            decoder="each" if removes else "first" if prefix else "",
        ),
        **rules,
    )
    assert vocabulary.piece_symbols is not None
    # Raises VocabularyError for unused pieces whose ids would depend on the surrounding text.
    _ = vocabulary.piece_symbols.merges
    return vocabulary


def _spell_normalizer(
    charsmap: bytes, prefix: bool, removes: bool, suffix: bool, symbols: list[str]
) -> str | None:
    """Return the normalizer as a vocabulary stores it.

    charsmap: the character map, see `llmgpu.text.charsmap`; may be empty. prefix, removes, suffix:
    add_dummy_prefix, remove_extra_whitespaces and treat_whitespace_as_suffix. symbols: user-defined
    pieces, which stay unchanged.

    If the steps Prepend and Replace have the same effect, they are stored, because they run faster
    than SentencePiece's rules.
    """
    steps: list[dict[str, Any]] = [PREFIX, TO_SPACES] if prefix else [TO_SPACES]
    if charsmap or removes or suffix:
        rules = {
            "charsmap": binascii.b2a_base64(charsmap, newline=False).decode(),
            "dummy_prefix": prefix,
            "remove_extra_whitespaces": removes,
            "suffix": suffix,
            "symbols": symbols,
            "type": "SentencePiece",
        }
        steps = [rules]
    return spell_normalizer(steps)


def _check_pieces(pieces: list[tuple[str, float, int]], *, has_bytes: bool) -> bytes:
    """Return the kinds of pieces, a byte for each id.

    Raises VocabularyError for pieces with which llmgpu would give other ids than SentencePiece.
    """
    seen: set[str] = set()
    for text, score, kind in pieces:
        if not text or text in seen:
            raise VocabularyError(f"the piece {quote(text)} is empty or a duplicate")
        seen.add(text)
        if math.isnan(score):
            raise VocabularyError(f"the piece {quote(text)} has a score that is not a number")
        if kind in (UNKNOWN, CONTROL, BYTE) and len(text) == 1:
            raise VocabularyError(f"the piece {quote(text)} is a character, and no normal piece")
        if kind in (NORMAL, UNUSED, USER) and " " in text:
            raise VocabularyError(f"the piece {quote(text)} has a space, which no text has")
        if kind == BYTE and not (has_bytes and BYTE_TOKEN.fullmatch(text)):
            raise VocabularyError(f"the byte piece {quote(text)} is none, or byte_fallback is off")
    kinds = bytes(kind for _, _, kind in pieces)
    found, needed = (kinds.count(UNKNOWN), kinds.count(BYTE)), (1, 256 * has_bytes)
    if found != needed:
        raise VocabularyError(f"{found} unknown and byte pieces; {needed} are needed")
    if has_bytes and (SPACE_MARK, NORMAL) not in {(text, kind) for text, _, kind in pieces}:
        raise VocabularyError("a model with byte pieces and no piece U+2581 is not supported")
    return kinds


def _read_piece(data: bytes) -> tuple[str, float, int]:
    text, score, kind = "", 0.0, NORMAL
    for number, value in _fields(data):
        if number == 1:
            try:
                text = _message(value).decode()
            except UnicodeDecodeError as error:
                raise VocabularyError(f"the piece {quote(value)} is not UTF-8") from error
        elif number == 2:
            if len(data := _message(value)) != 4:
                raise VocabularyError(f"the score of the piece {quote(text)} is not a float")
            (score,) = struct.unpack("<f", data)
        elif number == 3:
            if not isinstance(value, int) or not NORMAL <= value <= BYTE:
                raise VocabularyError(
                    f"the piece {quote(text)} has the unknown type {quote(value)}"
                )
            kind = value
    return text, score, kind


def _message(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise VocabularyError("not a SentencePiece model: a number in place of a string")
    return value


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the numbers and values of a message's fields; VocabularyError if it is damaged.

    A value is a whole number, or the bytes of a string, message or 32-bit number.
    """
    at = 0
    while at < len(data):
        key, at = _number(data, at)
        wire, number = key & 7, key >> 3
        if wire == 0:
            value, at = _number(data, at)
            yield number, value
            continue
        size = {1: 8, 5: 4}.get(wire)
        if wire == 2:
            size, at = _number(data, at)
        if number == 0 or size is None or size > len(data) - at:
            raise VocabularyError(f"not a SentencePiece model, or cut short: at byte {at}")
        yield number, data[at : at + size]
        at += size


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Decode a Protobuf varint at position `at`; return its value, and the position after it."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise VocabularyError(f"not a SentencePiece model, or cut short: at byte {at}")
