"""The command ``llmgpu compare-vocabs``: show two vocabularies side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.backend import Backend, Opening
from llmgpu.bpe.encoding.open import open_encoder
from llmgpu.bpe.interchange.formats import open_vocabulary
from llmgpu.bpe.training.statistics import lengths_of, scripts_of
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.cli.commands.vocabularies import CompareVocabsCommand
from llmgpu.cli.console import Reporter, left_out_of, print_result, print_table
from llmgpu.cli.count import keep_input
from llmgpu.cli.groups import labels_of
from llmgpu.text.corpus import Corpus, CorpusOptions
from llmgpu.text.sources import Selection, Sources
from llmgpu.tokens.tokenizing import count_files, known_bytes

GROUPS: dict[str, Callable[[Vocabulary], list[str]]] = {"script": scripts_of, "length": lengths_of}


def compare_vocabs(asked: CompareVocabsCommand, report: Reporter, opening: Opening) -> None:
    """Compare two vocabularies."""
    names = [asked.first, asked.second]
    options = asked.reading.corpus_options()
    with keep_input(asked.texts, 2, Selection()) as (sources, kept):
        opening.begin_encoding(known_bytes(sources, options.limit))
        pair = [open_vocabulary(name, note=report.note) for name in names]
        facts = _overlap(names, pair)
        if asked.texts:
            facts |= _measure(pair, sources, options, opening.backend(), report)
            report.note_left_out(facts)
    facts |= {"groups": _groups(pair, facts.pop("used", None))}
    for file in facts.get("files", ()):
        file["path"] = "-" if file["path"] == kept else file["path"]
    report.summarize(facts)
    if not report.as_json:
        _print(labels_of(names), facts)


def _overlap(names: Sequence[str], pair: Sequence[Vocabulary]) -> dict[str, Any]:
    tokens = [set(vocabulary.ordinary_tokens) - {b""} for vocabulary in pair]
    both = tokens[0] & tokens[1]
    return {
        "vocabularies": [
            {
                "name": name,
                "fingerprint": vocabulary.fingerprint,
                "ids": vocabulary.size,
                "tokens": len(own),
                "pattern": vocabulary.pattern,
                "match": vocabulary.match,
                "special_tokens": len(vocabulary.special_tokens),
            }
            for name, vocabulary, own in zip(names, pair, tokens, strict=True)
        ],
        "same_ids": pair[0].fingerprint == pair[1].fingerprint,
        "tokens_in_both": len(both),
        "tokens_only_in_one": [len(own - both) for own in tokens],
    }


def _measure(
    pair: Sequence[Vocabulary],
    sources: Sources,
    options: CorpusOptions,
    backend: Backend,
    report: Reporter,
) -> dict[str, Any]:
    """Encode a text with both vocabularies; return named facts about the text and its tokens.

    The fact "used" has, for each vocabulary, the number of occurrences of each id: int64 (ids,).
    """
    counts, used = [], []
    with report:
        for vocabulary in pair:
            used.append(np.zeros(vocabulary.size, np.int64))
            encoder = open_encoder(vocabulary, backend)
            with Corpus(sources, options) as text:
                counts.append(count_files(encoder, text, report, used=used[-1]))
    files = [
        {"path": one.path, "text_bytes": one.text_bytes, "tokens": [one.tokens, other.tokens]}
        for one, other in zip(*counts, strict=True)
    ]
    return {
        "text_bytes": text.text_bytes,
        "tokens": [int(each.sum()) for each in used],
        "files": files,
        "used": used,
        **left_out_of(text),
    }


def _groups(
    pair: Sequence[Vocabulary], used: Sequence[NDArray[np.int64]] | None
) -> dict[str, list[dict[str, Any]]]:
    """Count the ids of both vocabularies by script and by length of the token.

    Returns rows by the keys of GROUPS; a row is about one script or length.

    used: for each vocabulary, the number of occurrences in the text of each id, int64 (ids,). If
    given, a row also has the tokens and bytes of the text with the row's script or length.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for kind, group_of in GROUPS.items():
        groups = [np.array(group_of(vocabulary)) for vocabulary in pair]
        sizes = [Counter(each.tolist()) for each in groups]
        order = sorted(sizes[0] | sizes[1], key=lambda name: -max(each[name] for each in sizes))
        if kind == "length":
            order.sort(key=lambda name: int(name.split(" ")[0]) if name[0].isdigit() else 99)
        found[kind] = rows = [
            {"name": name, "ids": [each[name] for each in sizes]} for name in order
        ]
        for row in rows if used is not None else ():
            mine = [each == row["name"] for each in groups]
            times = [own[chosen] for own, chosen in zip(used or (), mine, strict=True)]
            row["tokens"] = [int(each.sum()) for each in times]
            row["text_bytes"] = [
                int(np.dot(each, vocabulary.token_spans[chosen]))
                for each, vocabulary, chosen in zip(times, pair, mine, strict=True)
            ]
    return found


def _print(labels: Sequence[str], facts: dict[str, Any]) -> None:
    # Print facts about the vocabularies.
    rows = [
        [*(each[key] for each in facts["vocabularies"]), key.replace("_", " ")]
        for key in ("ids", "tokens", "special_tokens", "pattern", "match")
    ]
    both, alone = facts["tokens_in_both"], facts["tokens_only_in_one"]
    rows += [[both, both, "tokens in both"], [*alone, "tokens in this one only"]]
    rows.append([*(each["fingerprint"][:8] for each in facts["vocabularies"]), "fingerprint"])
    print_table([*labels, ""], rows)
    # Print bytes per token for each file of text.
    has_text = "files" in facts
    if has_text:
        files = [
            *facts["files"],
            *([{**facts, "path": "total"}] if len(facts["files"]) > 1 else []),
        ]
        lines = [[*_rates(file), file["text_bytes"], file["path"]] for file in files]
        print_result("\nbytes per token")
        print_table([*labels, "bytes", ""], lines)
    # Print the number of ids by script and by length.
    heads = [*labels, *(labels if has_text else ()), ""]
    for kind, title, numbers in (
        ("script", "and bytes per token", _rates),
        ("length", "and share of the text's tokens", partial(_parts, facts)),
    ):
        print_result(f"\nids by {kind}{f', {title}' if has_text else ''}")
        lines = [[*row["ids"], *numbers(row), row["name"]] for row in facts["groups"][kind]]
        print_table(heads, lines)


def _parts(facts: dict[str, Any], row: dict[str, Any]) -> list[str]:
    """Return a row's share of the text's tokens, in percent, for each vocabulary."""
    pairs = zip(row.get("tokens", ()), facts.get("tokens", ()), strict=True)
    return [f"{100 * count / total:.1f} %" if total else "-" for count, total in pairs]


def _rates(row: dict[str, Any]) -> list[str]:
    """Return the bytes per token for each vocabulary; empty without a text."""
    if "tokens" not in row:
        return []
    sizes = row["text_bytes"]
    pairs = zip(sizes if isinstance(sizes, list) else [sizes] * 2, row["tokens"], strict=True)
    return [f"{size / tokens:.3f}" if tokens else "-" for size, tokens in pairs]
