"""tiktoken's rank files. A line has a token in base64, a space, and the token's rank, its id.

- A vocabulary read from ranks has no merges: two neighbours that together spell a token may merge,
  lowest id first, and a pre-token that spells a token becomes that token without merging.
- The file names neither the pattern nor the special tokens. Both come from the side file
  ``PATH.json`` that `write` makes, or from the caller. For the encodings of OpenAI, Qwen and
  Whisper, they come from a table by the SHA-256 of the content, since a file name proves nothing.
- A token may be empty, like one token of Whisper: no text gives its id.
- A vocabulary with merges can be written if ids and merges are in the same order: then ranks give
  the same ids.
"""

from __future__ import annotations

import binascii
import hashlib
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from llmgpu.bpe.interchange.token_tables import (
    TIKTOKEN,
    check_id,
    expression_of,
    imported_vocabulary,
    note_around,
    note_unicode,
    refuse_normalizing,
    require_merging,
    require_package,
)
from llmgpu.bpe.pretokens.names import PATTERNS
from llmgpu.bpe.pretokens.pattern import get_pattern
from llmgpu.bpe.vocabulary.recovery import ordinary_ranks, recover_merges
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import VocabularyError
from llmgpu.files import OutputFile, atomic_output, output_errors, writes_directly
from llmgpu.input_files import Note, naming, no_notes, number_of, parse_json, quote, read_limited
from llmgpu.outputs import RANKS, RANKS_SIDE_FILE, Output, check_outputs
from llmgpu.spelling import spelled
from llmgpu.text.normalizing import NFC

SIDE_FORMAT = "llmgpu-tiktoken"
SIDE_VERSION = 1

_RANK = re.compile(rb"[0-9]{1,10}")
_END = "<|endoftext|>"
_EMPTY = b"="  # spelling of the empty token


@dataclass(frozen=True)
class _Encoding:
    """The pattern, the special tokens and other facts of an encoding, which its rank file lacks."""

    name: str
    pattern: str
    special_tokens: Mapping[str, int]
    normalizer: str | None = None


def _numbered(first: int, texts: Sequence[str]) -> dict[str, int]:
    return {text: number for number, text in enumerate(texts, first)}


# OpenAI's encodings by the SHA-256 of the rank file; `published` finds them by name.
ENCODINGS = {
    "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930": _Encoding(
        "r50k_base", "gpt2", {_END: 50256}
    ),
    "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069": _Encoding(
        "p50k_base", "gpt2", {_END: 50256}
    ),
    "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7": _Encoding(
        "cl100k_base",
        "cl100k",
        {
            _END: 100257,
            "<|fim_prefix|>": 100258,
            "<|fim_middle|>": 100259,
            "<|fim_suffix|>": 100260,
            "<|endofprompt|>": 100276,
        },
    ),
    "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d": _Encoding(
        "o200k_base", "o200k", {_END: 199999, "<|endofprompt|>": 200018}
    ),
}
# The languages of Whisper's special tokens, in order. Only models from large-v3 on have "yue".
_LANGUAGES = (
    "en zh de es ru ko fr ja pt tr pl ca nl ar sv it id hi fi vi he uk el ms cs ro da hu ta no th "
    "ur hr bg lt la mi ml cy sk te fa lv bn sr az sl kn et mk br eu is hy ne mn bs kk sq sw gl mr "
    "pa si km sn yo so af oc ka be tg sd gu am yi lo uz fo ht ps tk nn mt sa lb my bo tl mg as tt "
    "haw ln ha ba jw su"
)
_TASKS = "translate transcribe startoflm startofprev nospeech notimestamps"
_TIMES = " ".join(f"{step / 50:.2f}" for step in range(1501))
_WHISPER = f"endoftext startoftranscript {_LANGUAGES} {_TASKS} {_TIMES}"
_OTHERS = {
    "b2b1b8dfb5cc5f024bafc373121c6aba3f66f9a5a0269e243470a1de16a33186": _Encoding(
        "Qwen",
        "qwen2",
        _numbered(151643, [_END, "<|im_start|>", "<|im_end|>"])
        | _numbered(151646, [f"<|extra_{number}|>" for number in range(205)]),
        NFC,
    ),
    "b34b360dbb493e781e479794586d661700670d65564001f23024971d1f2fa126": _Encoding(
        "Whisper", "gpt2", _numbered(50257, [f"<|{name}|>" for name in _WHISPER.split()])
    ),
}


def recognizes(data: bytes) -> bool:
    """Whether a file that begins with `data` is not a JSON object."""
    return not data.lstrip().startswith(b"{")


def read(
    path: str | Path,
    merges_path: str | Path | None = None,
    *,
    pattern: str | None = None,
    special_tokens: Mapping[str, int] | None = None,
    note: Note = no_notes,
) -> Vocabulary:
    """Read a rank file; see `llmgpu.bpe.interchange.formats.Format.read`.

    pattern: used in place of the pattern in the side file or the table. special_tokens: added to
    the known special tokens; a known token of the same text or id is replaced.
    """
    if merges_path is not None:
        raise VocabularyError("a tiktoken file has no merges; merges.txt is for gpt2")
    with naming(path):
        ranks = _parse_ranks(read_limited(path))
        canonical = _dump_ranks(ranks)
        known = _read_side(path, canonical, note) or _recognize(canonical, note)
        if known is None and pattern is None:
            raise VocabularyError(
                "a tiktoken file does not say how to split text: import it with "
                f"{spelled('--pattern')}, "
                f"one of {', '.join(PATTERNS)}"
            )
        chosen = get_pattern(pattern or (known.pattern if known else ""))
        special = _join_special(known, special_tokens or {}, note)
        for text, number in special.items():
            check_id(f"special token {quote(text)}", number)
        _check_bytes(ranks)
        if b"" in ranks:
            note(f"id {ranks[b'']} has an empty token, so it is never used")
        tokens, merges = {rank: token for token, rank in ranks.items()}, np.empty((0, 3), np.uint32)
        normalizer = known.normalizer if known else None
        return imported_vocabulary(
            "tiktoken",
            tokens,
            special,
            merges,
            chosen,
            ignore_merges=True,
            normalizer=normalizer,
            # Qwen's tokenizer normalizes the whole text before it searches for special tokens.
            normalized_tokens=tuple(sorted(special.values())) if normalizer else (),
        )


def outputs(path: str | Path) -> list[Output]:
    """Return the files that `write` writes."""
    ranks = Output(str(path), RANKS)
    if writes_directly(ranks.path):
        return [ranks]
    return [ranks, Output(side_path(path), RANKS_SIDE_FILE)]


def write(
    vocabulary: Vocabulary, path: str | Path, *, note: Note = no_notes, force: bool = False
) -> None:
    """Write a rank file, and beside it the side file ``PATH.json``.

    The side file has the other arguments of ``tiktoken.Encoding`` (pat_str, special_tokens), the
    pattern's name, and the rank file's SHA-256. There is no side file for a pipe, a device or
    standard output.

    Raises the errors of `llmgpu.bpe.interchange.formats.Format.write`.
    """
    ranks = exportable_ranks(vocabulary)
    data = _dump_ranks(ranks)
    side = _describe(vocabulary, data)
    check_outputs(outputs(path), force=force)
    output = OutputFile(path)
    try:
        with output_errors(output.path):
            output.stream.write(data)
        if not output.is_direct:
            with atomic_output(side_path(path)) as stream:
                stream.write(side)
    except BaseException:
        output.discard()
        raise
    output.commit()
    where = "not in the ranks" if output.is_direct else f"in {side_path(path)}, not in the ranks"
    note(
        f"the pattern and {number_of(len(vocabulary.special_tokens), 'special token')} are {where}"
    )
    note_unicode(vocabulary, note)
    note_around(vocabulary, note)


def side_path(path: str | Path) -> str:
    """Return the path of the side file of the rank file `path`."""
    return f"{path}.json"


def exportable_ranks(vocabulary: Vocabulary) -> dict[bytes, int]:
    """Return ids by token, ascending; VocabularyError if ranks alone would give other ids."""
    require_merging(vocabulary, "tiktoken")
    refuse_normalizing(vocabulary, "a tiktoken file")
    ranks = ordinary_ranks(vocabulary)
    _check_bytes(ranks)
    if len(ranks) < np.count_nonzero(vocabulary.token_lengths[vocabulary.ordinary_ids]):
        raise VocabularyError(
            "two ids have the same bytes: a tiktoken file can hold only one of them"
        )
    if len(vocabulary.merges):
        _check_order(vocabulary, ranks)
    return ranks


def to_tiktoken(vocabulary: Vocabulary, name: str, kind: Any = None) -> Any:
    """Return a `tiktoken.Encoding` with the same ids; kind: a subclass of it to use.

    Raises VocabularyError if ranks alone would give other ids, or if tiktoken is not installed.
    """
    ranks = exportable_ranks(vocabulary)
    return (kind or require_package("tiktoken").Encoding)(
        name,
        pat_str=expression_of(vocabulary.pattern, TIKTOKEN),
        mergeable_ranks=ranks,
        special_tokens=dict(vocabulary.special_tokens),
    )


def _check_order(vocabulary: Vocabulary, ranks: Mapping[bytes, int]) -> None:
    """Check that merging in the order of the list and merging by rank give the same ids.

    Merging by rank always makes a token from the same pair. The ids are the same if the list of
    merges has this pair for every token, in the order of the tokens' ids. Some tokens have no such
    pair: merging by rank never makes them, and only a pre-token that spells such a token becomes
    the token. If there are such tokens, the vocabulary must have `ignore_merges`.
    """
    # position: index in the list of each merge (left, right, result).
    position: dict[tuple[int, ...], int] = {}
    for k, merge in enumerate(map(tuple, vocabulary.merges.tolist())):
        position.setdefault(merge, k)
    last = -1
    needed = recover_merges(ranks)
    for merge in map(tuple, needed.tolist()):
        here = position.get(merge, -1)
        if here <= last:
            token = vocabulary.tokens[merge[2]]
            reason = "is made by another merge" if here < 0 else "is merged in another order"
            raise VocabularyError(f"by rank, the token {quote(token)} (id {merge[2]}) {reason}")
        last = here
    longer = sum(len(token) > 1 for token in ranks)
    if len(needed) < longer and not vocabulary.ignore_merges:
        raise VocabularyError(
            f"{longer - len(needed)} tokens are made by no merge, but tiktoken would give their ids"
        )


def _parse_ranks(data: bytes) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    lines_by_rank: dict[int, int] = {}
    for number, line in enumerate(io.BytesIO(data), 1):
        fields = line.split()
        if not fields:
            continue
        try:
            if len(fields) != 2 or not _RANK.fullmatch(fields[1]):
                raise VocabularyError(
                    "not a token in base64, a space and its rank, as a tiktoken file has"
                )
            encoded = b"" if fields[0] == _EMPTY else fields[0]
            token = binascii.a2b_base64(encoded, strict_mode=True)
            rank = check_id(f"token {quote(token)}", int(fields[1]))
            if token in ranks:
                raise VocabularyError(f"token {quote(token)} already has rank {ranks[token]}")
            if rank in lines_by_rank:
                raise VocabularyError(f"rank {rank} is already on line {lines_by_rank[rank]}")
        except binascii.Error as error:
            raise VocabularyError(
                f"line {number}: {quote(fields[0])} is not base64: {error}"
            ) from error
        except VocabularyError as error:
            raise VocabularyError(f"line {number}: {error}") from error
        ranks[token] = rank
        lines_by_rank[rank] = number
    if not ranks:
        raise VocabularyError("it has no tokens")
    return ranks


def _dump_ranks(ranks: Mapping[bytes, int]) -> bytes:
    entries = sorted((rank, token) for token, rank in ranks.items())
    return b"".join(
        b"%s %d\n" % (binascii.b2a_base64(token, newline=False) or _EMPTY, rank)
        for rank, token in entries
    )


def _check_bytes(ranks: Mapping[bytes, int]) -> None:
    missing = [value for value in range(256) if bytes([value]) not in ranks]
    if missing:
        raise VocabularyError(
            f"{len(missing)} bytes have no token, the first is 0x{missing[0]:02x}: "
            "tiktoken can't encode text that contains them"
        )


def _join_special(known: _Encoding | None, given: Mapping[str, int], note: Note) -> dict[str, int]:
    """Return the known and the given special tokens as ids by text.

    A given token replaces the known token of the same text or id. A note names each known token
    whose id belongs to a given token with another text.
    """
    ids = set(given.values())
    special = dict(given)
    for text, number in (known.special_tokens if known else {}).items():
        check_id(f"special token {quote(text)}", number)
        if text not in given and number in ids:
            note(f"special token {quote(text)} is skipped: its id {number} belongs to another")
        else:
            special.setdefault(text, number)
    return special


def _recognize(canonical: bytes, note: Note) -> _Encoding | None:
    encoding = (ENCODINGS | _OTHERS).get(hashlib.sha256(canonical).hexdigest())
    if encoding:
        count = number_of(len(encoding.special_tokens), "special token")
        form = f", normalizer {encoding.normalizer}" if encoding.normalizer else ""
        note(f"the ranks of {encoding.name}: pattern {encoding.pattern}, {count}{form}")
    return encoding


def _describe(vocabulary: Vocabulary, ranks: bytes) -> bytes:
    side = {
        "format": SIDE_FORMAT,
        "version": SIDE_VERSION,
        "sha256": hashlib.sha256(ranks).hexdigest(),
        "pattern": vocabulary.pattern,
        "pat_str": expression_of(vocabulary.pattern, TIKTOKEN),
        "special_tokens": vocabulary.special_tokens,
    }
    return json.dumps(side, indent=1).encode() + b"\n"


def _read_side(path: str | Path, canonical: bytes, note: Note) -> _Encoding | None:
    """Return the facts in the side file; None if the file is missing or belongs to other ranks."""
    side = side_path(path)
    if not Path(side).is_file():
        return None
    with naming(Path(side).name):
        content = parse_json(read_limited(side))
        if not isinstance(content, dict) or content.get("format") != SIDE_FORMAT:
            return None
        if content.get("version") != SIDE_VERSION:
            raise VocabularyError(
                f"version {quote(content.get('version'))}, but this llmgpu reads {SIDE_VERSION}"
            )
        if content.get("sha256") != hashlib.sha256(canonical).hexdigest():
            note(f"{side} belongs to another vocabulary: ignored")
            return None
        pattern, special = content.get("pattern"), content.get("special_tokens")
        if not isinstance(pattern, str) or not isinstance(special, dict):
            raise VocabularyError("pattern or special_tokens is missing")
    note(f"the pattern and {number_of(len(special), 'special token')} are from {side}")
    return _Encoding(side, pattern, special)
