"""What commands and options are called elsewhere, for those who mistake one tool for another.

The names are those of tiktoken, tokenizers, SentencePiece, YouTokenToMe, nanoGPT, nanochat, llm.c,
Megatron-LM, llama.cpp and transformers, with dashes.
"""

from __future__ import annotations

import re
from difflib import get_close_matches

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
    "sample": "generate",
    "train-bpe": "bpe-train",
    "train-tokenizer": "bpe-train",
    "version": "--version",
    "wc": "count",
}
_FILES = frozenset(
    ("corpus", "data", "data-path", "dataset", "file", "files", "in", "infile", "input", "text")
) | {"train-data", "train-data-path", "train-file"}
OPTION_NAMES = {  # ours, and what others call it
    "--bad-rows": "on-bad-row on-error skip-errors",
    "--batch-size": "device-batch-size micro-batch-size per-device-train-batch-size",
    "--beta1": "adam-beta1",
    "--beta2": "adam-beta2",
    "--disallow-special": "disallowed-special",
    "--budget": "fail-above limit-tokens max max-tokens",
    "--device": "cpu cuda gpu",
    "--dim": "d-model hidden-size model-dim n-embd",
    "--eos": "append-eod append-eos",
    "--eval-batches": "eval-iters",
    "--eval-corpus": "eval-data val-data valid-data-path validation-file",
    "--eval-fraction": "val val-fraction valid",
    "--eval-interval": "eval-every eval-steps val-loss-every",
    "--ffn-dim": "ffn-hidden-size intermediate-size",
    "--force": "overwrite yes",
    "--grad-accum": "gradient-accumulation-steps",
    "--grad-clip": "clip-grad max-grad-norm",
    "--heads": "n-head num-heads num-attention-heads",
    "--keep": "save-total-limit",
    "--kv-heads": "n-kv-head num-key-value-heads",
    "--layers": "depth n-layer num-hidden-layers num-layers",
    "--log-interval": "log-every logging-steps",
    "--lr": "learning-rate",
    "--max-new-tokens": "max-length max-tokens n n-predict num-predict",
    "--max-token-length": "max-sentencepiece-length",
    "--min-frequency": "min-count",
    "--output": "log-dir model model-prefix out out-dir outfile output-prefix",
    "--pattern": "encoding pre-tokenizer pretokenizer",
    "--pattern-regex": "pat-str regex split-pattern",
    "--precision": "dtype",
    "--prompt": "interactive start text",
    "--prompts": "file",
    "--recompute": "activation-checkpointing gradient-checkpointing recompute-activations",
    "--resume": "checkpoint init-from",
    "--save-interval": "checkpoint-every save-every save-steps",
    "--schedule": "lr-decay-style lr-scheduler-type",
    "--seq-len": "block-size context-length ctx-size max-seq-len max-seq-length",
    "--special-token": "control-symbols special-tokens user-defined-symbols",
    "--split": "val val-fraction val-split valid validation-split",
    "--steps": "epochs iters max-iters max-steps num-epochs num-iterations num-train-epochs "
    "train-iters",
    "--temperature": "do-sample temp",
    "--text-field": "column field json-keys key text-column",
    "--threads": "jobs n-jobs n-threads num-proc num-threads num-workers workers",
    "--to": "format",
    "--vocab": "encoding model tokenizer tokenizer-model vocab-file",
    "--vocab-size": "num-merges",
    "--warmup-steps": "lr-warmup-iters warmup-iters",
    "--weights": "outtype quantize",
}
_NOT_ONE = re.compile(r"'(.+)' is not one of ")  # click's message
_NEAR = 0.8  # of 1: an option that is spelled otherwise by a letter or two
_NOT_HERE = {  # what others have, and what there is in place of it
    "csv": "--json prints the same numbers, of which jq makes CSV (see the guide: Counting)",
    "dropout": "there is no dropout; --weight-decay regularizes",
    "greedy": "--temperature 0 takes the likeliest token",
    "num-return-sequences": "repeat the line in --prompts: each has a seed of its own",
    "recursive": "folders are read with all their subfolders",
    "tensorboard": "the folder has log.jsonl and loss.svg",
    "wandb": "the folder has log.jsonl and loss.svg",
}
VALUE_NAMES = {  # of options: ours, and what others call it
    "adamw": "adam",
    "f16": "amp float16 fp16 half mixed",
    "f32": "float32 fp32 full",
    "gguf": "ggml llama.cpp",
    "jsonl": "json ndjson",
    "llmc": "llm-c llm.c",
    "npy": "numpy",
}
_NO_BFLOAT16 = "WebGPU has no bfloat16"
_NO_VALUES = {"bf16": _NO_BFLOAT16, "bfloat16": _NO_BFLOAT16, "tf32": "WebGPU has no TF32"}


def explain_value(error: click.BadParameter) -> str:
    """Return what follows the message on a value that an option lacks; "" if nothing is known."""
    given = _NOT_ONE.match(error.message)
    if given is None or error.param is None or not isinstance(error.param.type, click.Choice):
        return ""
    value = given[1].lower()
    if value in _NO_VALUES:
        return f" {_NO_VALUES[value]}."
    choices = error.param.type.choices
    meant = [ours for ours, others in VALUE_NAMES.items() if value in others.split()]
    meant = [ours for ours in (value, *meant) if ours in choices]
    return f" Did you mean {meant[0]!r}?" if meant else ""


def suggest_option(error: click.NoSuchOption) -> click.UsageError:
    """Return the error for an option that a command lacks, with the name it may have here."""
    command = error.ctx.command if error.ctx else None
    known = {name for parameter in command.params for name in parameter.opts} if command else set()
    name = error.option_name.lstrip("-").replace("_", "-")
    meant = [ours for ours, others in OPTION_NAMES.items() if name in others.split()]
    meant = [ours for ours in (f"--{name}", *meant) if ours in known]
    if meant:
        hint = f"Did you mean {' or '.join(map(repr, meant))}?"
        return click.UsageError(f"No such option {error.option_name!r}. {hint}", error.ctx)
    if name in _NOT_HERE:
        text = f"No such option {error.option_name!r}: {_NOT_HERE[name]}"
        return click.UsageError(text, error.ctx)
    takes_files = command and any(
        isinstance(p, click.Argument) and p.name in ("corpus", "files") for p in command.params
    )
    if name in _FILES and takes_files and error.ctx:
        hint = f"files need no option: {error.ctx.command_path} FILE"
        return click.UsageError(f"No such option {error.option_name!r}; {hint}", error.ctx)
    if error.option_name.startswith("-") and not error.option_name.startswith("--"):
        return error
    longer = (ours for ours in sorted(known) if ours.startswith(f"--{name}"))
    near = get_close_matches(f"--{name}", sorted(known), cutoff=_NEAR)  # click's may be far off
    return click.NoSuchOption(
        error.option_name, possibilities=[*dict.fromkeys([*longer, *near])], ctx=error.ctx
    )
