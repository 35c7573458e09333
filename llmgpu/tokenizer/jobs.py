"""Jobs of the Python API: train vocabularies, count words, tokenize parts of a corpus.

All arguments and results can be pickled, so an engine such as Ray, Spark or datatrove can send
`count_words`, `merge_counts` and `tokenize_part` to its workers. The files are byte for byte equal
to the files of the command line. The files of all parts together give the result of a single call
for the whole job.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import fields
from operator import index
from pathlib import Path
from typing import Any, SupportsIndex

from llmgpu.backend import Opening, select_backend
from llmgpu.bpe.encoding.open import open_encoder
from llmgpu.bpe.interchange.formats import open_vocabulary
from llmgpu.bpe.pretokens.blocks import cut_text_by
from llmgpu.bpe.pretokens.names import DEFAULT_PATTERN
from llmgpu.bpe.training.options import TrainingOptions, require_counted_for
from llmgpu.bpe.training.train import Training, train_vocabulary
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.bpe.words import counts_file
from llmgpu.bpe.words.counts_file import add_counts, load_counts, save_counts
from llmgpu.bpe.words.distinct_words import WordCounts, words_of
from llmgpu.errors import InputError, OutputError
from llmgpu.file_kinds import COUNTS
from llmgpu.input_files import quote
from llmgpu.outputs import Output, check_outputs
from llmgpu.progress import no_progress
from llmgpu.resume_key import part_key
from llmgpu.spelling import speaking_python
from llmgpu.text.corpus import Corpus, CorpusOptions, corpus_from_documents
from llmgpu.text.parts import Part, take_part
from llmgpu.text.sources import resolve_sources
from llmgpu.tokenizer.arguments import Token, names_of, several, special_options, to_bytes
from llmgpu.tokens.manifest import read_facts
from llmgpu.tokens.shards import ShardNames, ShardWriter, finished_job
from llmgpu.tokens.tokenizing import encode_into, encoding_key, known_bytes

_ANY_SIZE = 1 << 10  # a valid size, without effect on jobs that only count
Options = Mapping[str, Any]  # names and values of fields of `TrainingOptions`


def train_on_files(
    names: Sequence[str], reading: CorpusOptions | None, opening: Opening, options: Options
) -> Vocabulary:
    """Train on files, folders or globs.

    Special tokens separate documents and are not trained on.
    """
    checked = _checked(options)
    corpus = Corpus(names, checked.separating(reading or CorpusOptions()))
    return _train(corpus, opening, checked)


def train_on_texts(texts: Iterable[str | bytes], opening: Opening, options: Options) -> Vocabulary:
    """Train on documents. Special tokens separate documents and are not trained on."""
    checked = _checked(options)
    advice = "give one text at a time"
    documents = (to_bytes(text, advice, number) for number, text in enumerate(texts))
    corpus = corpus_from_documents(documents, checked.separating(CorpusOptions()))
    return _train(corpus, opening, checked)


def train_on_counts(
    counts: Mapping[str, int] | Mapping[bytes, int], opening: Opening, options: Options
) -> Vocabulary:
    """Train on counts of words; TypeError for a count that is not an integer."""
    checked = _checked(options)
    sums: Counter[bytes] = Counter()
    for word, count in counts.items():
        if not isinstance(count, SupportsIndex):
            raise TypeError(f"the count of {word!r} is an int, not {type(count).__name__}")
        sums[to_bytes(word)] += index(count)
    return _train(WordCounts(words_of(sums, sums.values()), 1, checked.pattern), opening, checked)


def train_on_counts_files(names: Sequence[str], opening: Opening, options: Options) -> Vocabulary:
    """Train on the sum of files of word counts, by default with the pattern of the counts.

    Raises InputError if there are no files, or if the words were counted with other options.
    """
    if not names:
        raise InputError("there are no word counts to train on: give at least one file")
    separators, pattern = _checked(options).separators, options["pattern"]
    counts = add_counts([load_counts(name, pattern, separators) for name in names])
    theirs = {"pattern": pattern or counts.pattern, "unicode": counts.unicode}
    checked = _checked({**options, **theirs})
    require_counted_for(counts, checked)
    return _train(counts, opening, checked)


def _checked(options: Options) -> TrainingOptions:
    """Return the options as `TrainingOptions`, with the default pattern if none is given.

    Raises TypeError for an unknown option, and for special tokens that are a single text.
    """
    known = {field.name for field in fields(TrainingOptions)}
    if unknown := options.keys() - known:
        raise TypeError(f"unexpected argument {min(unknown)!r}")
    pattern = options.get("pattern") or DEFAULT_PATTERN
    special = tuple(several(options.get("special_tokens", ())))
    return TrainingOptions(**{**options, "pattern": pattern, "special_tokens": special})


def _train(source: Corpus | WordCounts, opening: Opening, options: TrainingOptions) -> Vocabulary:
    # Open the device last, after errors of a missing corpus or a wrong option.
    opening.begin()
    with source if isinstance(source, Corpus) else nullcontext():
        return train_vocabulary(source, options, opening.backend()).vocabulary


@speaking_python
def count_words(
    corpus: str | Path | Sequence[str | Path],
    output: str | Path,
    *,
    part: tuple[int, int] | None = None,
    pattern: str = DEFAULT_PATTERN,
    special_tokens: Sequence[str] = (),
    reading: CorpusOptions | None = None,
    device: str = "auto",
) -> dict[str, Any]:
    """Count the words of a corpus, or of a part of it, as ``bpe-train --counts-only`` does.

    corpus: files, folders or globs. output: file of word counts; a table if it ends with .parquet.
    part: the part's number, from 1, and the number of parts. special_tokens: texts that separate
    documents and are not counted. reading: options for reading the corpus.

    Returns "output", "distinct_words", "text_bytes" and "documents".

    Raises InputError for a corpus that can't be read or cut, OutputError if `output` is an existing
    file of another kind, LlmgpuError for an unknown pattern, DeviceError for a missing device.
    """
    special = tuple(several(special_tokens))
    options = TrainingOptions(_ANY_SIZE, pattern=pattern, special_tokens=special)
    how = options.separating(reading or CorpusOptions())
    found = resolve_sources(names_of(corpus))
    check_outputs([Output(os.fspath(output), COUNTS)], [source.path for source in found.files])
    if part is not None:
        found = take_part(found, Part(*part), how, cut_text_by(options.cut, how.separators))
    with Corpus(found, how) as text:
        training = Training(options, select_backend(device))
        counts = training.count(text, merges=False, may_be_empty=part is not None)
    return save_counts(output, counts)


@speaking_python
def merge_counts(
    counts: Sequence[str | Path], output: str | Path, *, weights: Sequence[int] | None = None
) -> dict[str, Any]:
    """Add up files of word counts, as ``merge-word-counts`` does.

    counts: the files. output: file of the sum. weights: for each file, an integer of 1 or more; the
    file's counts are multiplied by it.

    Returns "output", "distinct_words", "text_bytes" and "documents" of the sum.

    Raises InputError for a file that is damaged or was counted differently, OutputError if `output`
    is an existing file of another kind.
    """
    names = names_of(counts)
    if not names:
        raise InputError("there are no word counts to add up: give at least one file")
    weights = None if weights is None else [index(weight) for weight in weights]
    if weights is not None and (len(weights) != len(names) or min(weights) < 1):
        raise InputError(f"{len(names)} files have the weights {weights}: give each 1 or more")
    check_outputs([Output(os.fspath(output), COUNTS)], names)
    return counts_file.merge_counts(names, output, weights)


@speaking_python
def tokenize_part(
    vocabulary: str | Path,
    corpus: str | Path | Sequence[str | Path],
    output: str | Path,
    part: tuple[int, int],
    *,
    shard_tokens: int,
    layout: str = "raw",
    bos: Token | None = None,
    eos: Token | None = None,
    reading: CorpusOptions | None = None,
    device: str = "auto",
) -> dict[str, Any]:
    """Tokenize a part of a corpus into shards, as ``tokenize --shard-tokens N --part I/M`` does.

    A finished part is not repeated, and an interrupted part is resumed.

    vocabulary: file, folder or name as for `Tokenizer.load`. output: OUT.bin, another name for each
    part. The shards are OUT-000000.bin and so on, and the manifest OUT.json is input for
    ``merge-shards``. part: the part's number, from 1, and the number of parts.

    Returns the path of the "manifest", and its "count" of ids, "bytes" of text and "documents".

    Raises InputError for a corpus that can't be read or cut, VocabularyError for a vocabulary that
    can't be read, OutputError if another file has the name of a shard, DeviceError for a missing
    device.
    """
    # Find this part of the corpus, and the job's resume key.
    name, shard_tokens = os.fspath(output), index(shard_tokens)
    manifest = ShardNames(name).manifest
    known = open_vocabulary(vocabulary)
    special = special_options(known, bos=bos, eos=eos)
    how = reading or CorpusOptions()
    whole = resolve_sources(names_of(corpus))
    own = take_part(whole, Part(*part), how)
    key = part_key(encoding_key(own, how, special), Part(*part), whole, own)
    # Tokenize the part, unless it is finished.
    if finished_job(name, known, shard_tokens, layout, key) is None:
        _check_part(manifest, str(Part(*part)))
        with Opening(device, encodes=True) as opening, Corpus(own, how) as text:
            opening.begin_encoding(known_bytes(own, how.limit), at_start=False)
            encoder = open_encoder(known, opening.backend(), special=special)
            with ShardWriter(
                name, known, shard_tokens, layout=layout, special=special, run=key, resume=True
            ) as sink:
                encode_into(sink, encoder, text, no_progress)
    content, _ = read_facts(manifest)
    facts = {fact: content[fact] for fact in ("count", "bytes", "documents")}
    return {"manifest": manifest, **facts}


def _check_part(manifest: str, part: str) -> None:
    """Raise OutputError if a manifest lists the shards of another part."""
    with suppress(InputError):
        other = read_facts(manifest)[0].get("part", part)
        if other != part:
            raise OutputError(
                f"{manifest} lists part {quote(str(other))}, which part {part} would replace: give "
                "each part an output of its own"
            )
