"""The input of a training run: token files, or texts that are tokenized first.

- A file whose name ends in ``.bin`` is a token file. A manifest (``OUT.json`` of ``llmgpu tokenize
  --shard-tokens``) is replaced by the shards in its list. Folders and globs may contain token
  files, manifests and side files. Each token file is used once, in the place where it is first
  named.
- All other files are text. A corpus of token files and text is refused, because the order would be
  ambiguous.
- Text is tokenized into shards in the run folder. Shards of the same text and vocabulary are used
  again, and interrupted tokenizing is resumed.
- Several corpora with weights become one row of tokens, one corpus after the other.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path

from llmgpu.backend import Backend
from llmgpu.bpe.encoding.open import open_encoder
from llmgpu.bpe.encoding.special_options import SpecialOptions
from llmgpu.bpe.interchange.token_tables import find_end_of_text
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import InputError
from llmgpu.file_kinds import MANIFEST, PROGRESS, SIDE_FILE, kind_of
from llmgpu.files import atomic_output, output_errors
from llmgpu.input_files import STANDARD_INPUT, input_errors, read_whole
from llmgpu.lm.data.batches import TokenSource, open_token_files
from llmgpu.progress import Progress, no_progress
from llmgpu.resume_key import Run, check_same_run
from llmgpu.text.corpus import Corpus, CorpusOptions
from llmgpu.text.jsonl import parse_json_object
from llmgpu.text.sources import Sources
from llmgpu.text.streams import AUTO
from llmgpu.tokens.conversations import CHAT_TOKENS
from llmgpu.tokens.filters import masking
from llmgpu.tokens.formats import masked_file
from llmgpu.tokens.manifest import shard_files
from llmgpu.tokens.shards import ShardNames, ShardWriter
from llmgpu.tokens.tokenizing import encode_into, encoding_key, require_rereadable

SHARD_TOKENS = 1 << 24  # small, because a killed run loses up to one shard

_SHARDS = "tokens.bin"
_MADE_FROM = "made-from.json"  # resume key of the shards, written after the last shard


def default_separator(vocabulary: Vocabulary) -> int | None:
    """Return the id of the special token with a usual end-of-text name; None if there is none."""
    text = find_end_of_text(vocabulary.special_tokens)
    return None if text is None else vocabulary.special_tokens[text]


def open_tokens(
    corpora: Sequence[Sources],
    vocabulary: Vocabulary,
    vocabulary_name: str,
    folder: Path,
    *,
    backend: Backend,
    reading: CorpusOptions | None = None,
    separator: int | None = None,
    resume: bool = False,
    progress: Progress = no_progress,
    dtype: str | None = None,
    told: Callable[[Corpus], None] = lambda text: None,
) -> TokenSource:
    """Open the tokens of one or more corpora; a corpus consists of token files, or of texts.

    corpora: for each corpus its token files and manifests, or its texts.
    vocabulary_name: name of the vocabulary in errors. dtype: type of ids in token files of other
        tools that do not record the type.
    progress: phases "tokenizing" (in bytes) and "checking tokens" (in ids).

    The other arguments are for texts. folder: receives the shards, in folders "0", "1" and so on
    for several corpora; created if missing. backend: encodes the texts. reading: options of
    reading. separator: id of the token after each document, or None. resume: whether tokens of
    other texts in the folder are an error; if False, they are replaced. told: called with each text
    after reading, to report rows that were left out.

    Raises InputError for inputs that are missing, damaged, mixed or have ids beyond the vocabulary,
    for a file in two corpora, and for texts other than the texts of a resumed run; VocabularyError
    for token files of another vocabulary, and for texts with a separator that is not in the
    vocabulary; OutputError for a folder that can't be written.
    """
    reading = reading or CorpusOptions()
    # A chat template itself separates conversations.
    special = SpecialOptions(eos=separator) if reading.chat is None else CHAT_TOKENS
    # Decide for each corpus whether its files are token files or texts.
    named = [_token_files(sources) for sources in corpora]
    _require_apart(corpora, named)
    # Tokenize the texts, then open all token files.
    paths: list[list[str]] = []
    for number, (sources, files) in enumerate(zip(corpora, named, strict=True)):
        if files is None:
            own = folder / str(number) if len(corpora) > 1 else folder
            how = reading, special, backend, progress
            files, text = _tokenize(sources, own, vocabulary, *how, resume=resume)
            if text is not None:
                told(text)
        paths.append(files)
    source = open_token_files([*chain(*paths)], vocabulary, vocabulary_name, progress, dtype)
    if len(paths) > 1:
        source.corpora = [source.count_in(set(files)) for files in paths]
    return source


def _require_apart(corpora: Sequence[Sources], named: Sequence[list[str] | None]) -> None:
    """Raise InputError for a file in two corpora.

    named: the token files of each corpus; None for a corpus of texts.
    """
    owners: dict[str, int] = {}
    for number, (sources, files) in enumerate(zip(corpora, named, strict=True)):
        for path in [text.path for text in sources.files] if files is None else files:
            if owners.setdefault(os.path.realpath(path), number) != number:
                raise InputError(f"{path} is in two of the corpora of --weights: name it once")


def _tokenize(
    inputs: Sources,
    folder: Path,
    vocabulary: Vocabulary,
    reading: CorpusOptions,
    special: SpecialOptions,
    backend: Backend,
    progress: Progress,
    *,
    resume: bool,
) -> tuple[list[str], Corpus | None]:
    """Tokenize the texts of a corpus into shards, unless the folder has all their shards.

    Returns the paths of the shards, and the corpus after it was read to its end, or None if it was
    not read.
    """
    names = ShardNames(str(folder / _SHARDS))
    key = encoding_key(inputs, reading, special)
    facts = {**key, "vocabulary": vocabulary.fingerprint}
    if os.path.exists(names.manifest) and _are_shards_of(inputs, folder, facts, resume=resume):
        return shard_files(names.manifest), None
    # Remove the resume key first: shards without a resume key are taken for unfinished.
    with output_errors(str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _MADE_FROM).unlink(missing_ok=True)
    if resume and os.path.exists(names.progress):
        require_rereadable(inputs)
    # Encode the texts. For conversations, also write masks of the ids that count in the loss.
    encoder = open_encoder(vocabulary, backend, special=special)
    with (
        Corpus(inputs, reading) as text,
        ShardWriter(
            names.output,
            vocabulary,
            SHARD_TOKENS,
            special=special,
            masked=reading.chat is not None,
            run=key,
            resume=resume,
        ) as writer,
    ):
        encode_into(writer, encoder, text, progress, masking(reading.chat, vocabulary))
    with atomic_output(folder / _MADE_FROM) as file:
        file.write(json.dumps(facts, indent=1).encode() + b"\n")
    return shard_files(names.manifest), text


def _are_shards_of(inputs: Sources, folder: Path, facts: Run, *, resume: bool) -> bool:
    """Whether the shards of a folder were made from the texts, and in the way, that `facts` names.

    Raises InputError for shards of other texts if `resume` is set.
    """
    path = folder / _MADE_FROM
    if not path.exists():
        return False
    with input_errors(str(path)):
        before = parse_json_object(read_whole(path, "description of a run"), str(path))
    try:
        if resume:
            check_same_run(f"{folder} has the tokens of another text", before, facts)
        else:
            require_rereadable(inputs)
    except InputError as error:
        if not resume:
            return False
        hint = f"--init {folder.parent} starts a new run from its weights"
        raise InputError(f"{error}; {hint}") from None
    return resume or before == json.loads(json.dumps(facts))


def are_tokens(inputs: Sources) -> bool:
    """Whether the first file contains tokens. `open_tokens` refuses a corpus that also has text.

    Raises InputError for an array of ids other than a mask, and for unfinished tokens.
    """
    first = inputs.files[0]
    return first.format == AUTO and _named_token_files(first.path) is not None


def _token_files(inputs: Sources) -> list[str] | None:
    """Return the ``bin`` files of a corpus, each file once; None if all files are text.

    Raises InputError for token files together with text, and for files of ids that do not record
    their vocabulary.
    """
    # The token files that each name stands for; None for a file of text.
    named = {
        source.path: _named_token_files(source.path) if source.format == AUTO else None
        for source in inputs.files
    }
    texts = [path for path, files in named.items() if files is None]
    if len(texts) == len(named):
        return None
    if texts:
        tokens = next(path for path in named if path not in texts)
        raise InputError(
            f"{tokens} holds tokens and {texts[0]} is text: name files of one kind, or give each "
            "its share with --weights"
        )
    once: dict[str, str] = {}
    for file in (file for files in named.values() for file in files or ()):
        once.setdefault(os.path.realpath(file), file)
    return list(once.values())


def _named_token_files(path: str) -> list[str] | None:
    """Return the token files that `path` names; None for a file of text.

    A ``bin`` file names itself, a mask or side file its token file, and a manifest its shards.
    Raises InputError for other arrays, and for unfinished tokens.
    """
    suffix = os.path.splitext(path)[1].lower()
    if path == STANDARD_INPUT or suffix not in (".bin", ".npy", ".json"):
        return None
    if suffix == ".bin":
        return [path]
    if suffix == ".npy" and (masked := masked_file(path)):
        return [masked]
    if suffix == ".npy":
        raise InputError(
            f"{path}: an array of ids does not record its vocabulary; write a token file with "
            "llmgpu tokenize --format bin"
        )
    kind = kind_of(path)
    if kind == PROGRESS:
        raise InputError(f"{path}: its tokens are not finished; use llmgpu tokenize --resume")
    if kind == SIDE_FILE:
        return [path.removesuffix(".json")]
    return shard_files(path) if kind == MANIFEST else None
