"""The command ``llmgpu score``: print the log-likelihoods of documents under a model."""

from __future__ import annotations

import json
import math
import time
from typing import Any

import numpy as np

from llmgpu.backend import NUMPY, Opening
from llmgpu.bpe.encoding.open import open_encoder
from llmgpu.cli.commands.models import ScoreCommand
from llmgpu.cli.console import Reporter, left_out_of, print_result
from llmgpu.cli.groups import required_input, resolve_texts
from llmgpu.input_files import number_of
from llmgpu.lm.checkpoints.checkpoint import open_model
from llmgpu.lm.config import SHORT_CONTEXT
from llmgpu.lm.data.batches import token_bytes
from llmgpu.lm.data.inputs import default_separator
from llmgpu.lm.model import load_model
from llmgpu.lm.runs.run_folder import bits_per_byte, perplexity
from llmgpu.lm.scoring import Scorer, read_documents
from llmgpu.text.corpus import Corpus


def score(asked: ScoreCommand, report: Reporter, opening: Opening) -> None:
    """Score documents with the model in FOLDER."""
    paths = asked.files.named(asked.paths)
    paths = paths or required_input(report, "FILE: files, folders or globs")
    # Open the model before the text: if the names of model and text were swapped, the error of
    # opening the model is the clearer one.
    saved = open_model(asked.model, report.note)
    sources = resolve_texts(paths, asked.files.selection())
    options = asked.reading.corpus_options()
    # Load the model, with windows that fit into its positions and into memory.
    longest = saved.config.max_positions or saved.config.seq_len
    window = asked.window or min(longest, SHORT_CONTEXT)
    backend = opening.backend(report.note)
    report.note_missing_engine(backend)
    model = load_model(saved, backend, window)
    scorer = Scorer(model, window, asked.stride or max(1, window // 2))
    report.line(
        f"scoring on {backend.description} with {saved.folder}: windows of {window:,} tokens, "
        f"{scorer.stride:,} apart"
    )
    # Ids that precede a document's first id, uint32: the ids that the vocabulary adds before a
    # text; otherwise the beginning-of-text token or the token between documents. If there are
    # none, the first id is not scored.
    known = (saved.bos_id, default_separator(saved.vocabulary), saved.eos_id)
    start = [each for each in known if each is not None][:1]
    before = np.array(saved.vocabulary.prefix_ids or start, np.uint32)
    # Score. Encode text on the CPU, because the model occupies the device.
    spans, log_likelihoods = token_bytes(saved.vocabulary), list[float]()
    tokens = text_bytes = 0
    begin = time.perf_counter()
    with Corpus(sources, options) as text:
        encoder = open_encoder(saved.vocabulary, NUMPY)
        for found in scorer.scores(read_documents(encoder, text, before)):
            document = found.request
            ids = document.ids[document.first :]
            spanned = int(spans[ids].sum(dtype=np.int64))
            log_likelihoods.append(float(found.log_likelihoods.sum(dtype=np.float64)))
            tokens, text_bytes = tokens + len(ids), text_bytes + spanned
            described = {"file": document.path, "document": document.number}
            described |= _measures(len(ids), spanned, log_likelihoods[-1])
            if asked.per_token:
                described["ids"] = ids.tolist()
                described["log_likelihoods"] = [float(x) for x in found.log_likelihoods]
            print_result(json.dumps(described))
        summary = _measures(tokens, text_bytes, math.fsum(log_likelihoods))
        summary |= {"documents": text.documents, **left_out_of(text)}
    report.note_left_out(summary)
    report.line(_describe(summary))
    summary |= {
        "seconds": round(time.perf_counter() - begin, 3),
        "device": backend.description,
        "model": str(saved.folder),
        "window": window,
        "stride": scorer.stride,
    }
    report.summarize(summary, to_stderr=True)


def _measures(tokens: int, text_bytes: int, log_likelihood: float) -> dict[str, Any]:
    surprise = perplexity(-log_likelihood / tokens) if tokens else math.inf
    return {
        "tokens": tokens,
        "text_bytes": text_bytes,
        "log_likelihood": log_likelihood,
        "perplexity": surprise if surprise < math.inf else None,  # JSON has no infinity
        "bits_per_byte": bits_per_byte(-log_likelihood, text_bytes),
    }


def _describe(summary: dict[str, Any]) -> str:
    text = f"{number_of(summary['documents'], 'document')}, {number_of(summary['tokens'], 'token')}"
    if summary["perplexity"] is not None:
        text += f": perplexity {summary['perplexity']:.2f}"
    if summary["bits_per_byte"] is not None:
        text += f", {summary['bits_per_byte']:.4f} bits per byte"
    return text
