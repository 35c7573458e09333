"""The formats by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from llmgpu.bpe.interchange import gpt2, huggingface, tiktoken
from llmgpu.bpe.interchange.input_files import naming, read_limited
from llmgpu.bpe.interchange.notes import Note
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import VocabularyError

WRITERS = {
    "tiktoken": tiktoken.write,
    "huggingface": huggingface.write,
    "gpt2": gpt2.write,
}
FORMATS = tuple(WRITERS)


def guess_format(path: str | Path, merges_path: str | Path | None) -> str:
    """Return the format of a file: a JSON object is one of two, depending on `merges_path`.

    Raises VocabularyError if it can't be read.
    """
    if merges_path is not None:
        return "gpt2"
    with naming(path):
        is_object = read_limited(path).lstrip().startswith(b"{")
    return "huggingface" if is_object else "tiktoken"


def read_vocabulary(
    path: str | Path,
    merges_path: str | Path | None,
    format: str,
    *,
    pattern: str | None,
    special_tokens: Mapping[str, int],
    note: Note,
) -> Vocabulary:
    """Read a file in one of FORMATS.

    merges_path: merges.txt, for gpt2 and for nothing else.
    pattern, special_tokens: what the file does not say; a tokenizer.json says it all.

    Raises VocabularyError for a file that can't be read exactly, or arguments that don't go with
    its format; LlmgpuError for an unknown pattern.
    """
    if format == "gpt2" and merges_path is not None:
        return gpt2.read(
            path, merges_path, pattern=pattern, special_tokens=special_tokens, note=note
        )
    if format == "gpt2" or merges_path is not None:
        raise VocabularyError("gpt2 is two files, vocab.json and merges.txt; the others are one")
    if format == "huggingface":
        if pattern is not None or special_tokens:
            raise VocabularyError("a tokenizer.json has its pattern and special tokens in itself")
        return huggingface.read(path, note=note)
    return tiktoken.read(path, pattern=pattern, special_tokens=special_tokens, note=note)
