"""The command ``llmgpu info``: show the adapters of this machine, or facts about a file."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import click

from llmgpu.backend import list_adapters, list_all_adapters
from llmgpu.cli.commands.vocabularies import InfoCommand
from llmgpu.cli.console import Reporter, is_terminal, print_result
from llmgpu.cli.options import refuse_given
from llmgpu.cpu.extension import describe as describe_calls
from llmgpu.cpu.library import describe as describe_engine
from llmgpu.errors import InputError, LlmgpuError, VocabularyError
from llmgpu.input_files import printable, quote
from llmgpu.version import __version__

if TYPE_CHECKING:
    from llmgpu.bpe.vocabulary.vocabulary import Vocabulary

LIMITS_SHOWN = (
    "max-buffer-size",
    "max-storage-buffer-binding-size",
    "max-storage-buffers-per-shader-stage",
    "max-compute-workgroup-storage-size",
    "max-compute-invocations-per-workgroup",
)
FEATURES_SHOWN = ("subgroup", "shader-f16", "timestamp-query", "subgroup-matrix")

_INTERNAL = frozenset(["epsilon", "driver", "f16_version"])  # options of a run that are not shown

_OF_TEXT = (
    "info also describes runs, word counts and files of ids, but no text, which count measures"
)
_LEAST_PLOT = 32  # smallest width of a plot, in columns
_SHOWN = 2000  # most characters of a normalizer that are shown
_BASE64 = re.compile("[A-Za-z0-9+/]{100,}=*")  # maps of SentencePiece's normalizers
_OF_LISTS = ("tokens", "merges", "first", "search", "ids")  # options of lists of tokens or merges
_Row = tuple[int, dict[str, Any], list[int]]  # id, further facts, ids of the tokens to show


def info(asked: InfoCommand, report: Reporter) -> None:
    """Show the adapters of this machine, or facts about a file."""
    file = asked.file
    lists = any(getattr(asked, name) for name in _OF_LISTS)
    # Check which options can be combined.
    if asked.page:
        refuse_given(_OF_LISTS, "can't be combined with --report")
    if asked.plot:
        refuse_given((*_OF_LISTS, "page", "as_json"), "can't be combined with --plot")
        if file is None:
            raise click.UsageError("--plot needs the folder of a run")
    if asked.merges:
        refuse_given(("tokens", "ids"), "can't be combined with --merges")
    # Without a file, show the adapters.
    if file is None:
        if lists or asked.page:
            raise click.UsageError(
                "--tokens, --merges, --first, --search, --id, --report need a vocabulary"
            )
        return _show(_adapter_facts(), report)
    if asked.plot:
        return _plot(file)
    # Describe a run, word counts or a file of ids. Open any other file as a vocabulary.
    facts = None if lists or asked.page else _file_facts(file)
    if facts is None:
        vocabulary = _open_vocabulary(asked, file, report)
        if lists:
            return _print_rows(vocabulary, asked, report)
        facts = _vocabulary_facts(vocabulary) | _model_facts(file)
        if asked.page:
            _write_page(asked, vocabulary, facts, report)
    _show(facts, report)


def _plot(folder: str) -> None:
    """Print the losses of a run as a plot of characters, at most as wide as the terminal."""
    from llmgpu.lm.runs.loss_curve import COLUMNS, LABEL_COLUMNS, plot_losses
    from llmgpu.lm.runs.run_folder import RunFolder, read_log, require_log

    require_log(folder)
    records = read_log(RunFolder(Path(folder)).log).records
    width = COLUMNS + LABEL_COLUMNS
    if is_terminal(sys.stdout):
        width = max(_LEAST_PLOT, min(width, shutil.get_terminal_size().columns))
    # Wrap the lines above and below the plot: these lines may be wider than the plot.
    for line in plot_losses(records, width - LABEL_COLUMNS).splitlines():
        print_result(line if len(line) <= width else "\n".join(wrap(line, width)))


def _open_vocabulary(asked: InfoCommand, file: str, report: Reporter) -> Vocabulary:
    """Open the vocabulary; file: a path or a vocabulary's name.

    If the command also writes an HTML page, check first that the page would not overwrite an input.
    """
    from llmgpu.bpe.interchange.formats import find_vocabulary
    from llmgpu.file_kinds import PAGE, TEXT, TOKEN_FILE, kind_of
    from llmgpu.outputs import Output, check_outputs
    from llmgpu.tokens.formats import side_path

    files = find_vocabulary(file)
    if asked.page:
        read = [*files.inputs, *asked.texts]
        check_outputs([Output(asked.page, PAGE)], read, force=asked.force)
    try:
        return files.read(report.note)
    except VocabularyError as error:
        kind = kind_of(file)
        if files.format is None and kind in (None, TOKEN_FILE):
            raise VocabularyError(f"{error}; a token file needs {side_path(file)}") from error
        if files.format is None and kind == TEXT:
            raise VocabularyError(f"{error}; {_OF_TEXT}") from error
        raise


def _show(facts: dict[str, Any], report: Reporter) -> None:
    if report.as_json:
        return report.summarize(facts)
    for name, value in facts.items():
        inner = value if isinstance(value, dict) else None
        print_result(printable(f"{name}: {value}" if inner is None else f"{name}:"))
        for key, item in (inner or {}).items():
            print_result(printable(f"  {key}: {item}"))


def _adapter_facts() -> dict[str, Any]:
    cpu = {"cpu": describe_engine(), "calls from Python": describe_calls()}
    facts: dict[str, Any] = {"llmgpu": __version__, **cpu}
    for number, adapter in enumerate(list_all_adapters()):
        facts[f"adapter {number}"] = {
            "name": adapter.name,
            "kind": adapter.kind,
            "driver": adapter.driver,
            "WebGPU": adapter.webgpu.name,
            "backend": adapter.backend,
            "features": ", ".join(f for f in FEATURES_SHOWN if f in adapter.features) or "none",
            "matrix products": ", ".join(map(str, adapter.matrix_shapes)) or "none",
            **{name: adapter.limits[name] for name in LIMITS_SHOWN},
        }
    name = next((each.name for each in list_adapters() if not each.is_software), "cpu")
    return facts | {"--device auto, train": name, "--device auto, tokenize": name}


def _vocabulary_facts(vocabulary: Vocabulary) -> dict[str, Any]:
    unicode, normalizer = vocabulary.classes_version, vocabulary.normalizer or "none"
    normalizer = _BASE64.sub(lambda found: f"{len(found[0]):,} characters", normalizer)
    if len(normalizer) > _SHOWN:
        normalizer = f"{normalizer[:_SHOWN]}... ({len(normalizer):,} characters)"
    return {
        "tokens": vocabulary.size,
        "merges": len(vocabulary.merges),
        "pattern": vocabulary.pattern,
        "expression": vocabulary.expression,
        **({"Unicode version": unicode} if unicode else {}),
        "match": vocabulary.match,
        "tie": vocabulary.tie,
        "normalizer": normalizer,
        "unknown token": "none" if vocabulary.unknown_token is None else vocabulary.unknown_token,
        "longest token": f"{vocabulary.trie.longest} bytes",
        "trie nodes": len(vocabulary.trie.nodes),
        "fingerprint": vocabulary.fingerprint,
        "special tokens": vocabulary.special_tokens or "none",
        **({"before a text": list(ids)} if (ids := vocabulary.prefix_ids) else {}),
        **({"after a text": list(ids)} if (ids := vocabulary.suffix_ids) else {}),
        **({"chat template": vocabulary.chat.source} if vocabulary.chat else {}),
        "training": vocabulary.training or "unknown",
    }


def _model_facts(path: str) -> dict[str, Any]:
    """Return the sizes of the model in a folder; empty for a folder without a model."""
    if not os.path.isfile(os.path.join(path, "config.json")):
        return {}
    from llmgpu.lm.checkpoints.checkpoint import open_model

    try:
        config = open_model(path).config
    except LlmgpuError as error:
        return {"model": f"none that can be opened here: {error}"}
    return {"model": {"parameters": config.parameters, **asdict(config)}}


def _file_facts(path: str) -> dict[str, Any] | None:
    """Return facts about a run, word counts or files of ids; None for any other file."""
    from llmgpu.file_kinds import COUNTS, MANIFEST, NPY, TOKEN_FILE, kind_of

    if os.path.isfile(os.path.join(path, "log.jsonl")):
        from llmgpu.lm.runs.run_folder import describe_run

        facts = describe_run(path)
        if isinstance(options := facts.get("options"), dict):
            facts["options"] = {k: v for k, v in options.items() if k not in _INTERNAL}
        return {"kind": "training run", **facts}
    # Find the kind of any other file by its first bytes.
    kind = kind_of(path)
    if kind == COUNTS:
        from llmgpu.bpe.words.counts_file import load_counts

        counts = load_counts(path)
        return {
            "kind": kind,
            "text bytes": counts.words.text_bytes,
            "documents": counts.documents,
            "distinct words": len(counts.words),
            "pattern": counts.pattern,
            "Unicode version": counts.cut.unicode or "none",
            "separators": [text.decode(errors="backslashreplace") for text in counts.separators]
            or "none",
        }
    if kind == TOKEN_FILE:
        from llmgpu.tokens.bin import describe_bin_file, read_side_file

        # Raises InputError if the file contradicts its side file.
        file = describe_bin_file(path, may_be_foreign=True)
        if not file.fingerprint:
            kind = f"{kind} of another tool"
            return {"kind": kind, "dtype": file.dtype.name, "count": file.count}
        return {"kind": kind, **_without_lists(read_side_file(path))}
    if kind == MANIFEST:
        from llmgpu.tokens.manifest import read_facts

        return {"kind": kind, **_without_lists(read_facts(path)[0])}
    if kind == NPY:
        from llmgpu.tokens.formats import read_tokens

        blocks = [(len(block), int(block.max())) for block in read_tokens(path, "npy")]
        largest = max((most for _, most in blocks), default=None)
        return {"kind": kind, "count": sum(count for count, _ in blocks), "largest id": largest}
    return None


def _without_lists(facts: dict[str, Any]) -> dict[str, Any]:
    """Return facts with readable names, and with the length of each list in place of the list."""
    shown = {name: len(fact) if isinstance(fact, list) else fact for name, fact in facts.items()}
    names = {"document_offsets": "documents", "bytes": "text bytes"}
    return {
        names.get(name, name).replace("_", " "): fact
        for name, fact in shown.items()
        if name not in ("format", "version")
    }


def _write_page(
    asked: InfoCommand, vocabulary: Vocabulary, facts: dict[str, Any], report: Reporter
) -> None:
    from llmgpu.bpe.training.statistics import bytes_a_token, draw_vocabulary
    from llmgpu.bpe.words.count_host import count_words
    from llmgpu.file_kinds import PAGE
    from llmgpu.files import atomic_output
    from llmgpu.outputs import Output, check_outputs
    from llmgpu.text.corpus import Corpus

    name, path, texts = str(asked.file), str(asked.page), asked.texts
    rates: list[tuple[int, float]] = []
    if texts:
        with report, Corpus(texts) as text:
            words = count_words(text, vocabulary.cut, report)
            read = [source.path for source in text.sources.files]
            check_outputs([Output(path, PAGE)], read, force=True)
            if not len(words):
                raise InputError("--on: there is no text to measure with")
            rates += bytes_a_token(vocabulary, words, report)
    plain = {key: value for key, value in facts.items() if not isinstance(value, dict)}
    page = draw_vocabulary(name, vocabulary, plain, rates, ", ".join(texts))
    with atomic_output(path) as file:
        file.write(page.encode())


def _rows(vocabulary: Vocabulary, asked: InfoCommand) -> Iterator[_Row]:
    """Yield a row for each token or, with --merges, for each merge, in order.

    The row of a merge has the id of the new token, and the two tokens that the merge joins.
    """
    from llmgpu.bpe.vocabulary.building import listed_merges

    if asked.merges:
        for left, right, made in listed_merges(vocabulary).tolist():
            yield made, {"left": left, "right": right}, [left, right]
        return
    special, last = set(vocabulary.special_tokens.values()), vocabulary.size - 1
    for token_id in asked.ids or range(vocabulary.size):
        if token_id > last:
            raise VocabularyError(f"id {token_id} is not in the vocabulary, which ends at {last}")
        yield token_id, {"special": token_id in special}, [token_id]


def _print_rows(vocabulary: Vocabulary, asked: InfoCommand, report: Reporter) -> None:
    """Print up to --first rows, one per line: the rows of tokens that match --search."""
    from llmgpu.bpe.vocabulary.spelling import readable

    wanted, tokens = _searched(asked.search), vocabulary.tokens
    printed = 0
    for token_id, more, shown in _rows(vocabulary, asked):
        token = tokens[token_id]
        if not wanted.search(token.decode(errors="backslashreplace")):
            continue
        if printed == asked.first:
            break
        printed += 1
        if report.as_json:
            facts = {"id": token_id, "text": None, "hex": token.hex()}
            with suppress(UnicodeDecodeError):
                facts["text"] = token.decode()
            report.summarize(facts | more)
        else:
            print_result("\t".join([str(token_id), *(readable(tokens[each]) for each in shown)]))


def _searched(search: str | None) -> re.Pattern[str]:
    """Compile a search. If the package regex is installed, the search may name scripts."""
    engine: Any = importlib.import_module("regex" if importlib.util.find_spec("regex") else "re")
    try:
        with warnings.catch_warnings(action="ignore", category=FutureWarning):
            found: re.Pattern[str] = engine.compile(search or "")
            return found
    except engine.error as error:
        raise click.UsageError(f"--search {quote(search or '')}: {error}") from error
