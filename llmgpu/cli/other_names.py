"""What commands and options are called elsewhere, for those who mistake one tool for another.

The names are those of tiktoken, tokenizers, SentencePiece, YouTokenToMe, nanoGPT, nanochat, llm.c,
Megatron-LM, llama.cpp and transformers, with dashes.
"""

from __future__ import annotations

import click

COMMAND_NAMES = {
    "chat": "generate",
    "convert": "export",
    "decode": "tokenize --decode",
    "detokenize": "tokenize --decode",
    "diff": "compare-vocabs",
    "encode": "tokenize",
    "help": "--help",
    "inspect": "info",
    "pretrain": "train",
    "run": "generate",
    "sample": "generate",
    "train-bpe": "bpe-train",
    "train-tokenizer": "bpe-train",
    "version": "--version",
    "wc": "count",
}
_FILES = frozenset(
    ("corpus", "data", "dataset", "file", "files", "in", "infile", "input", "text", "train-file")
)
OPTION_NAMES = {
    "append-eod": ("--eos",),
    "block-size": ("--seq-len",),
    "column": ("--text-field",),
    "context-length": ("--seq-len",),
    "control-symbols": ("--special-token",),
    "cpu": ("--device",),
    "ctx-size": ("--seq-len",),
    "cuda": ("--device",),
    "d-model": ("--dim",),
    "depth": ("--layers",),
    "device-batch-size": ("--batch-size",),
    "dtype": ("--precision",),
    "encoding": ("--vocab", "--pattern"),
    "eval-iters": ("--eval-batches",),
    "field": ("--text-field",),
    "gpu": ("--device",),
    "gradient-accumulation-steps": ("--grad-accum",),
    "hidden-size": ("--dim",),
    "init-from": ("--resume",),
    "iters": ("--steps",),
    "json-keys": ("--text-field",),
    "learning-rate": ("--lr",),
    "max-iters": ("--steps",),
    "max-sentencepiece-length": ("--max-token-length",),
    "max-seq-len": ("--seq-len",),
    "max-steps": ("--steps",),
    "max-tokens": ("--max-new-tokens",),
    "merges": ("--vocab-size", "--vocab"),
    "min-count": ("--min-frequency",),
    "model": ("--vocab", "--output"),
    "model-dim": ("--dim",),
    "model-prefix": ("--output",),
    "n-embd": ("--dim",),
    "n-head": ("--heads",),
    "n-kv-head": ("--kv-heads",),
    "n-layer": ("--layers",),
    "n-predict": ("--max-new-tokens",),
    "n-threads": ("--threads",),
    "num-iterations": ("--steps",),
    "num-merges": ("--vocab-size",),
    "num-threads": ("--threads",),
    "out": ("--output",),
    "out-dir": ("--output",),
    "outfile": ("--output",),
    "output-prefix": ("--output",),
    "outtype": ("--weights",),
    "pat-str": ("--pattern-regex",),
    "pre-tokenizer": ("--pattern",),
    "pretokenizer": ("--pattern",),
    "regex": ("--pattern-regex",),
    "special-tokens": ("--special-token",),
    "split-pattern": ("--pattern-regex",),
    "start": ("--prompt",),
    "text-column": ("--text-field",),
    "tokenizer": ("--vocab",),
    "tokenizer-model": ("--vocab",),
    "top-tokens": ("--top-k",),
    "user-defined-symbols": ("--special-token",),
    "vocab-file": ("--vocab",),
    "warmup-iters": ("--warmup-steps",),
    "workers": ("--threads",),
}


def suggest_option(error: click.NoSuchOption) -> click.UsageError:
    """Return what to say of an option that a command lacks, and may have by another name."""
    command = error.ctx.command if error.ctx else None
    known = {name for parameter in command.params for name in parameter.opts} if command else set()
    name = error.option_name.lstrip("-").replace("_", "-")
    meant = [option for option in OPTION_NAMES.get(name, ()) if option in known]
    if f"--{name}" in known:
        meant = [f"--{name}"]
    if meant:
        hint = f"Did you mean {' or '.join(map(repr, meant))}?"
        return click.UsageError(f"No such option {error.option_name!r}. {hint}", error.ctx)
    takes_files = command and any(isinstance(p, click.Argument) for p in command.params)
    if name in _FILES and takes_files and error.ctx:
        hint = f"files need no option: {error.ctx.command_path} FILE"
        return click.UsageError(f"No such option {error.option_name!r}; {hint}", error.ctx)
    return error
