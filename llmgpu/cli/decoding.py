"""Files of ids, turned back to text: ``llmgpu tokenize --decode``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.cli.console import Reporter
from llmgpu.files import atomic_output
from llmgpu.outputs import MANIFEST, kind_of
from llmgpu.text.streams import STANDARD_INPUT
from llmgpu.tokens.bin import has_side_file, matched_as, read_bin, read_side_file, side_path
from llmgpu.tokens.foreign import note_of_foreign
from llmgpu.tokens.formats import read_tokens, recognize_format
from llmgpu.tokens.manifest import read_manifest


def files_of_ids(names: Sequence[str], format: str | None) -> list[tuple[str, str]]:
    """Return files of ids and their formats; a manifest stands for its shards."""
    found: list[str] = []
    for name in names:
        is_manifest = format in (None, "bin") and kind_of(name) == MANIFEST
        found += [path for path, _ in read_manifest(name)] if is_manifest else [name]
    return [(name, format or recognize_format(name)) for name in found]


def read_for(ids: Sequence[tuple[str, str]]) -> list[str]:
    """Return the files that decoding `ids`, files and their formats, reads."""
    sides = [side_path(name) for name, format in ids if format == "bin" and name != "-"]
    return [*(name for name, _ in ids), *sides]


def decode_files(
    sources: Sequence[tuple[str, str]],
    vocabulary: Vocabulary,
    vocab: str,
    output: str,
    layout: str,
    dtype: str | None,
    report: Reporter,
) -> dict[str, Any]:
    """Decode files of ids, each with its format; return the summary.

    vocab: the vocabulary's name. layout: of a pipe. dtype: of numbers in token files that do not
    say it.
    """
    size, tokens, text_bytes = vocabulary.size, 0, 0
    with atomic_output(output) as file:
        for source, format in sources:
            if format == "bin":
                if has_side_file(source):
                    made_with = str(read_side_file(source)["fingerprint"])
                    matched_as(source, made_with, vocabulary, vocab)
                blocks = read_bin(source, size, layout, dtype)
                if source != STANDARD_INPUT and not has_side_file(source):
                    report.note(note_of_foreign([source], vocab))
            else:
                blocks = read_tokens(source, format)
            for ids in blocks:
                data = vocabulary.decode(ids)
                file.write(data)
                tokens += len(ids)
                text_bytes += len(data)
    return {"tokens": tokens, "text_bytes": text_bytes, "fingerprint": vocabulary.fingerprint}
