"""What ``llmgpu info`` shows: the adapters of this machine, or the content of a vocabulary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from llmgpu.backend import auto_adapter, list_all_adapters
from llmgpu.cli.console import Reporter, print_json, print_result
from llmgpu.cpu.library import describe as describe_engine
from llmgpu.input_files import printable
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


def info(
    vocab: str | None,
    tokens: bool,
    first: int | None,
    search: str | None,
    as_json: bool,
    quiet: bool,
    debug: bool,
) -> None:
    """Show the adapters of this machine, or facts about the vocabulary VOCAB."""
    if vocab is None:
        if tokens or first or search:
            raise click.UsageError("--tokens, --first and --search need a vocabulary file")
        _show(_adapter_facts(), as_json)
        return
    from llmgpu.bpe.interchange.open import open_vocabulary

    report = Reporter(quiet=quiet)
    vocabulary = open_vocabulary(vocab, note=report.note)
    if tokens or first or search:
        _list_tokens(vocabulary, first, search, as_json)
    else:
        _show(_vocabulary_facts(vocabulary), as_json)


def _show(facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(facts, to_stderr=False)
        return
    for name, value in facts.items():
        if isinstance(value, dict):
            print_result(f"{name}:")
            for key, item in value.items():
                print_result(printable(f"  {key}: {item}"))
        else:
            print_result(printable(f"{name}: {value}"))


def _adapter_facts() -> dict[str, Any]:
    facts: dict[str, Any] = {"llmgpu": __version__, "cpu": describe_engine()}
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
    chosen = auto_adapter()
    name = "cpu (NumPy)" if chosen is None else chosen.name
    return facts | {"--device auto, train": name, "--device auto, tokenize": name}


def _vocabulary_facts(vocabulary: Vocabulary) -> dict[str, Any]:
    unicode = vocabulary.classes_version
    return {
        "tokens": vocabulary.size,
        "merges": len(vocabulary.merges),
        "pattern": vocabulary.pattern,
        "expression": vocabulary.expression,
        **({"Unicode version": unicode} if unicode else {}),
        "match": vocabulary.match,
        "tie": vocabulary.tie,
        "normalizer": vocabulary.normalizer or "none",
        "unknown token": "none" if vocabulary.unknown_token is None else vocabulary.unknown_token,
        "longest token": f"{vocabulary.trie.longest} bytes",
        "trie nodes": len(vocabulary.trie.nodes),
        "fingerprint": vocabulary.fingerprint,
        "special tokens": vocabulary.special_tokens or "none",
        "training": vocabulary.training or "unknown",
    }


def _list_tokens(
    vocabulary: Vocabulary, first: int | None, search: str | None, as_json: bool
) -> None:
    wanted = None if search is None else search.encode()
    shown = 0
    for token_id, token in enumerate(vocabulary.tokens):
        if wanted is not None and wanted not in token:
            continue
        if shown == first:
            break
        shown += 1
        text = repr(token)[2:-1]  # without b'...'
        if as_json:
            print_json({"id": token_id, "bytes": text}, to_stderr=False)
        else:
            print_result(f"{token_id}\t{text}")
