"""Options of all commands, put together at random from Click's own tree."""

from __future__ import annotations

import random
from pathlib import Path

import click

from llmgpu.cli import COMMANDS, cli
from tests.harness.properties import run_checked
from tests.harness.samples import MODEL, fresh_copy

INPUTS = (
    *("in/corpus.txt", "in/v.bin", "in/counts", "in/ids.ids", "in/ids.jsonl", "in/ids.npy"),
    *("in/ids.bin", "in/ids.bin.json", "in/shards.json", "in/t.json", "in/ranks", "in/c.jsonl"),
    *("in/gpt2/vocab.json", "in/gpt2/merges.txt", "in/record.json", "in/c.parquet", "in/c.txt.gz"),
    *(
        "in/c.txt.zst",
        "in/c.txt.bz2",
        "in/c.txt.xz",
        "in/*.txt",
        "in/nothing*",
        "in",
        "",
        "missing",
    ),
    *("in/tekken.json", "in/v.gguf", "in/megatron.bin", "in/megatron.idx", "in/nanogpt.bin"),
    *("in/run.toml", "memory://a/b", "nosuch://user:secret@host/x?key", "file:///dev/null", "x://"),
    *("/dev/null", "-", "in/missing/x", "\udcff", "x" * 300),
)
OUTPUTS = (
    *("out/a", "out/a", "out/a.bin", "out/b.json", "out/sub/x", "out", "/dev/null", "-", ""),
    *("in/corpus.txt", "in/v.bin", "out/\udcff", "out/" + "x" * 300, "/dev/full", "out/new/"),
)
TEXTS = (
    "",
    "the",
    "<|end|>",
    "text",
    "\n",
    "é",
    "\udcff",
    "x" * 3000,
    "all",
    "0",
    "256",
    "\x1b[2J",
)
NUMBERS = (
    *("0", "1", "2", "3", "7", "300", "-1", "257", "65536", "4294967296", "9" * 30, "9" * 5000),
    *("0.5", "1e400", "nan", "inf", "-inf", "", "x", "10%", "4KB", "1GiB", "300,280", "0.1"),
)
EXPRESSIONS = (r"\w+|\W", "(", "(?:a|a)*$", "a*b|.", "\\p{L}+", "", "x{99999999999}")
# Options whose names say where results go; the others name what is read.
WRITTEN = frozenset({"output", "counts_output", "checkpoint", "page", "write_corpus"})
READ = frozenset({"vocab", "vocabs", "from_counts", "record_path", "compare", "corpus"})
READ |= {"texts", "config", "chat_template"}

# What each command gets in any case, so that a run takes little time.
BASES: dict[str, tuple[tuple[str, ...], ...]] = {
    "bench": (
        ("--from", "in/record.json"),
        ("tokenize", "--quick", "--limit", "2KB", "--runs", "1", "--no-peers", "--device", "cpu"),
    ),
    "bpe-train": (
        ("in/corpus.txt", "--vocab-size", "270", "-o", "out/v.bin", "--device", "cpu"),
        ("--from-counts", "in/counts", "--vocab-size", "270", "-o", "out/v.bin", "--device", "cpu"),
    ),
    "count": (
        ("in/corpus.txt", "--vocab", "in/v.bin", "--device", "cpu"),
        ("in", "--vocab", "in/v.bin", "--vocab", "in/t.json", "--per", "folder", "--device", "cpu"),
    ),
    "compare-vocabs": (
        ("in/v.bin", "in/t.json", "--device", "cpu"),
        ("in/v.bin", "in/v.bin", "--on", "in/corpus.txt", "--device", "cpu"),
    ),
    "export": (
        ("in/v.bin", "--to", "huggingface", "-o", "out/x"),
        ("in/v.bin", "--to", "tiktoken", "-o", "out/x"),
        ("in/v.bin", "--to", "gguf", "-o", "out/x"),
        ("in/run", "--to", "gguf", "-o", "out/x.gguf"),
        ("in/v.bin",),
    ),
    "import": (
        ("in/t.json", "-o", "out/v.bin"),
        ("in/ranks", "-o", "out/v.bin"),
        ("in/tekken.json", "-o", "out/v.bin"),
    ),
    "merge-shards": (
        ("in/shards.json", "in/shards.json", "-o", "out/a.json"),
        ("in/shards.json", "-o", "in/all.json"),
    ),
    "merge-word-counts": (("in/counts", "in/counts", "-o", "out/all"),),
    "generate": (
        ("in/run", "--prompt", "the", "--max-new-tokens", "2", "--device", "cpu"),
        ("in/run", "--prompts", "in/c.jsonl", "--prompt-field", "text", "--max-new-tokens", "1"),
    ),
    "info": (("in/v.bin",), ("in/v.bin", "--tokens")),
    "run": (("--ray", "nowhere:1", "--", "tokenize", "in/corpus.txt"),),
    "score": (("in/run", "in/corpus.txt", "--device", "cpu"),),
    "tokenize": (
        ("in/corpus.txt", "--vocab", "in/v.bin", "-o", "out/ids", "--device", "cpu"),
        ("in/corpus.txt", "--vocab", "in/v.bin", "-o", "out/i.bin", "--layout", "megatron"),
        ("in/ids.ids", "--decode", "--vocab", "in/v.bin", "-o", "out/text", "--device", "cpu"),
        (
            "in/corpus.txt",
            "--vocab",
            "in/v.bin",
            "--format",
            "bin",
            "-o",
            "out/i",
            "--device",
            "cpu",
        ),
    ),
    "train": (
        ("--config", "in/run.toml", "-o", "out/run", *MODEL, "--steps", "1"),
        ("in/corpus.txt", "--vocab", "in/v.bin", "-o", "out/run", *MODEL, "--steps", "1"),
        ("in/ids.bin", "--vocab", "in/v.bin", "-o", "out/run", *MODEL, "--steps", "1"),
    ),
}
# Options that would make a run long, or whose values would.
LEFT_OUT = {
    "train": {"steps", "dim", "layers", "ffn_dim", "seq_len", "batch_size", "grad_accum", "preset"},
    "bench": {
        "limit",
        "runs",
        "vocab_size",
        "quick",
        "peers",
        "devices",
        "what",
        "corpus",
        "vocab",
    },
    "generate": {"max_new_tokens"},
}
LEFT_OUT["bench"] |= {"write_corpus", "vocab"}


def parameters(command: str) -> list[click.Parameter]:
    """Return the parameters of a command that cases use."""
    context = click.Context(cli)
    found = cli.get_command(context, command)
    assert found is not None
    left_out = LEFT_OUT.get(command, set()) | {"debug", "force"}
    return [each for each in found.params if each.name not in left_out]


def values_of(parameter: click.Parameter) -> tuple[str, ...]:
    """Return values, sound and not, that a parameter may be given."""
    name, kind = str(parameter.name), parameter.type
    if name in WRITTEN:
        return OUTPUTS
    is_seed_vocabulary = name == "seed" and kind is click.STRING
    if name in READ or is_seed_vocabulary or isinstance(parameter, click.Argument):
        return INPUTS
    if isinstance(kind, click.Choice):
        return (*kind.choices, "x")
    if name == "device":
        return ("cpu", "no such device", "")
    if name == "pattern_regex":
        return EXPRESSIONS
    if name == "regex_seconds":
        return ("0.05", *NUMBERS)
    return NUMBERS if kind.name not in ("text", "special token") else TEXTS


def arguments_of(command: str, rng: random.Random) -> tuple[str, ...]:
    """Return arguments: those of a base, and some of any option in any order."""
    chosen: list[list[str]] = [[word] for word in rng.choice(BASES[command])]
    base = [word for (word,) in chosen]
    extra: list[list[str]] = []
    for parameter in rng.choices(parameters(command), k=rng.choice((0, 1, 1, 2, 2, 3, 5))):
        if isinstance(parameter, click.Argument):
            extra.append([rng.choice(INPUTS)])
            continue
        flag = rng.choice([*parameter.opts, *parameter.secondary_opts])
        is_flag = isinstance(parameter, click.Option) and parameter.is_flag
        value = rng.choice(values_of(parameter))
        if parameter.name in WRITTEN and value.startswith("in/") and value not in base:
            value = "out/a"  # what nothing reads may be replaced by a result of its kind
        extra.append([flag] if is_flag else [flag, value])
    rng.shuffle(extra)
    words = [command, *base, *(word for group in extra for word in group)]
    if rng.random() < 0.03 and "--quick" not in words:  # without it a run takes long
        words[rng.randrange(len(words))] = rng.choice((*TEXTS, *NUMBERS, "--", "--help"))
    return tuple(words)


def option_case(
    samples: Path, folder: Path, number: int, former: Path | None = None
) -> tuple[object, str]:
    """Run one case.

    Returns the case's arguments, and a description of the fault that it found, or "".

    former: see `fresh_copy`.
    """
    rng = random.Random(f"options {number}")
    arguments = arguments_of(sorted(COMMANDS)[number % len(COMMANDS)], rng)
    fresh_copy(samples, folder, former)
    stdin = rng.choice((b"", b"the cat\n", b"256 1 2\n", b"\xff\0"))
    done, wrong = run_checked(folder, arguments, stdin)
    return arguments, f"{wrong}\n{done.stderr.decode(errors='replace')}" if wrong else ""
