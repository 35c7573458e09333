"""No command writes over what it reads, over one of its outputs, or over a file of another kind."""

from __future__ import annotations

import os
import shutil
import subprocess
from base64 import b64encode
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import click
import pytest

from llmgpu.cli import COMMANDS, cli
from tests.cli.conftest import COMMAND, Run, environment, fails, run_here

CPU = ("--device", "cpu")

# Inputs by command and parameter: arguments that read the file "{}", and those that others need.
INPUTS = {
    ("bench", "corpus"): ["--corpus {}"],
    ("bench", "vocab"): ["--vocab {}"],
    ("bench", "record_path"): ["--from {}"],
    ("bench", "compare"): ["--compare {}"],
    ("bpe-train", "corpus"): ["{} --device cpu"],
    ("bpe-train", "seed"): ["corpus.txt --seed-vocab {} --vocab-size 400 --device cpu"],
    ("bpe-train", "files_from"): ["--files-from {} --device cpu"],
    ("bpe-train", "from_counts"): ["--from-counts {} --device cpu"],
    ("compare-vocabs", "first"): [],  # nothing is written
    ("compare-vocabs", "second"): [],
    ("compare-vocabs", "texts"): [],
    ("count", "chat_template"): [],  # nothing is written
    ("count", "files_from"): [],
    ("count", "paths"): [],
    ("count", "vocabs"): [],
    ("export", "vocab"): ["{}"],
    ("export", "chat_template"): [],  # for gguf alone: see tests/cli/test_interchange.py
    ("generate", "prompts"): [],
    ("generate", "run"): [],  # nothing is written
    ("import", "source"): ["{} --pattern gpt2", "{} merges.txt"],
    ("import", "merges"): ["vocab.json {}"],
    ("info", "file"): ["{}"],
    ("info", "texts"): ["v.bin --on {}"],
    ("merge-shards", "manifests"): ["{}"],
    ("merge-word-counts", "counts"): ["{} counts"],
    ("generate", "chat_template"): [],  # nothing is written
    ("score", "files_from"): [],  # nothing is written
    ("score", "model"): [],
    ("score", "paths"): [],
    ("tokenize", "chat_template"): [
        "--vocab v.bin --device cpu corpus.txt --chat-template {} --chat"
    ],
    ("tokenize", "files_from"): ["--vocab v.bin --device cpu --files-from {}"],
    ("tokenize", "files"): ["--vocab v.bin --device cpu {}", "--vocab v.bin --decode {}"],
    ("tokenize", "vocab"): ["--vocab {} --device cpu corpus.txt"],
    ("train", "chat_template"): ["--vocab v.bin --device cpu corpus.txt --chat-template {} --chat"],
    ("train", "config"): ["--vocab v.bin --device cpu corpus.txt --config {}"],
    ("train", "corpus"): ["--vocab v.bin --device cpu {}"],
    ("train", "eval_corpus"): ["--vocab v.bin --device cpu corpus.txt --eval-corpus {}"],
    ("train", "files_from"): ["--vocab v.bin --device cpu --files-from {}"],
    ("train", "init"): [],  # a folder: see tests/cli/test_train_init.py
    ("train", "vocab"): ["--vocab {} --device cpu corpus.txt"],
}

# Outputs by command and parameter: a file that is written, and arguments that do it.
SHARDS = "--format bin --shard-tokens 1K -o out.bin"
OUTPUTS = {
    ("bench", "output"): [("out", "-o out")],
    ("bench", "page"): [("out", "--report out")],
    ("bench", "write_corpus"): [("out", "--write-corpus out")],
    ("bpe-train", "output"): [("out", "-o out")],
    ("bpe-train", "counts_output"): [("out", "--save-counts out")],
    ("bpe-train", "checkpoint"): [("kept/counts", "--checkpoint kept -o out")],
    ("export", "output"): [
        ("out", "--to huggingface -o out"),
        ("hf/tokenizer.json", "--to huggingface -o hf/"),
        ("hf/tokenizer_config.json", "--to huggingface -o hf/"),
        ("hf/special_tokens_map.json", "--to huggingface -o hf/"),
        ("out", "--to tiktoken -o out"),
        ("out.json", "--to tiktoken -o out"),
        ("folder/vocab.json", "--to gpt2 -o folder"),
        ("folder/merges.txt", "--to gpt2 -o folder"),
    ],
    ("import", "output"): [("out", "-o out")],
    ("info", "page"): [("out", "--report out")],
    ("merge-shards", "output"): [("out", "-o out")],
    ("merge-word-counts", "output"): [("out", "-o out")],
    ("tokenize", "output"): [
        ("out", "-o out"),
        ("out", "--format jsonl -o out"),
        ("out", "--format npy -o out"),
        ("out", "--format bin -o out"),
        ("out.json", "--format bin -o out"),
        ("out.mask.npy", "--format bin -o out --chat"),
        ("out.idx", "--format bin --layout megatron -o out.bin"),
        ("out.json", SHARDS),
        ("out.progress.json", SHARDS),
        ("out-000000.bin", SHARDS),
        ("out-000001.bin", SHARDS),
        ("out-000001.bin.json", SHARDS),
    ],
    ("train", "output"): [
        ("run/log.jsonl", "-o run --force"),
        ("run/step-00000001/vocabulary.bin", "-o run --force"),
        ("run/tokens/tokens-000000.bin", "-o run --force"),
    ],
}

NEITHER = {
    "special_tokens",
    "doc_separators",
    "text_field",
    "template",
    "device",
    "devices",
    "prompt",
}
NEITHER |= {"search", "allowed_special", "disallow_special", "bos", "eos", "ray", "command"}


def text_parameters() -> set[tuple[str, str]]:
    """Every parameter of every command that takes any text, so that it may name a file."""
    context = click.Context(cli)
    found = set()
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        texts = (each for each in command.params if each.type == click.STRING)
        found |= {(name, str(each.name)) for each in texts}
    return found


def test_every_parameter_is_an_input_or_an_output_or_names_no_file() -> None:
    known = {pair for pair in text_parameters() if pair[1] not in NEITHER}
    assert known == set(INPUTS) | set(OUTPUTS)


def pairs() -> list[tuple[str, str, str, str]]:
    """Every input of every command with every output: command, input, file and how to write it."""
    return [
        (name, read, file, write)
        for (name, _), reads in INPUTS.items()
        for read in reads
        for (other, _), writes in OUTPUTS.items()
        for file, write in writes
        if other == name
        and (read, write) != ("--from {}", "--write-corpus out")  # wrong usage
        and not ("--decode" in read and "--format bin" in write)
    ]


def content_of(path: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.fixture(scope="module")
def files_of_a_vocabulary(
    tmp_path_factory: pytest.TempPathFactory, corpus_text: bytes, vocab_bytes: bytes
) -> Path:
    """A folder with a corpus, a vocabulary and files that commands take besides."""
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "corpus.txt").write_bytes(corpus_text)
    (folder / "v.bin").write_bytes(vocab_bytes)
    for command in (
        "bpe-train corpus.txt --device cpu --counts-only --save-counts counts",
        "bpe-train corpus.txt --device cpu --pattern gpt2 --vocab-size 270 -o gpt2.bin",
        "export gpt2.bin --to gpt2 -o .",
    ):
        assert run_here(folder, tuple(command.split()), b"").returncode == 0
    return folder


def contents_of_inputs(folder: Path) -> dict[str, bytes]:
    """Return a content for each input that is read; others are vocabularies."""
    return {
        "{} --device cpu": b"text",
        "--corpus {}": b"text",
        "--vocab v.bin --device cpu {}": b"text",
        "--files-from {} --device cpu": b"corpus.txt",
        "--vocab v.bin --device cpu --files-from {}": b"corpus.txt",
        "--from-counts {} --device cpu": (folder / "counts").read_bytes(),
        "{} counts": (folder / "counts").read_bytes(),
        "{} --pattern gpt2": b"".join(b"%s %d\n" % (b64encode(bytes([i])), i) for i in range(256)),
        "{} merges.txt": (folder / "vocab.json").read_bytes(),
        "vocab.json {}": (folder / "merges.txt").read_bytes(),
        "--vocab v.bin --decode {}": b"1 2 3\n",
        "--vocab v.bin --device cpu corpus.txt --chat-template {} --chat": b"{{ messages }}",
        "--vocab v.bin --device cpu corpus.txt --config {}": b"steps = 1\n",
    }


def move(source: Path, target: Path) -> None:
    source.rename(target)


LINKS: list[Callable[[Path, Path], None]] = [
    move,
    os.link,
    lambda source, target: target.symlink_to(source),
]


@pytest.mark.parametrize("command", sorted({name for name, *_ in pairs()}))
def test_an_input_is_never_written_over(
    llmgpu: Run, vocab: Path, files_of_a_vocabulary: Path, command: str
) -> None:
    folder = vocab.parent
    shutil.copytree(files_of_a_vocabulary, folder, dirs_exist_ok=True)
    contents = contents_of_inputs(folder)
    (folder / "run").mkdir()
    (folder / "run" / "run.lock").touch()
    for name, read, file, write in pairs():
        if name != command:
            continue
        for link in LINKS:
            source, target = folder / "source", folder / file
            source.write_bytes(contents.get(read, vocab.read_bytes()))
            target.parent.mkdir(parents=True, exist_ok=True)
            link(source, target)
            given = read.replace("{}", "source" if source.exists() else file).split()
            before = content_of(folder)
            resume = ["--resume"] if "--checkpoint" in write else []
            for force in ([], ["--force"]):
                done = llmgpu(command, *given, *write.split(), *resume, *force)
                fails(done, 1, "is an input")
                assert content_of(folder) == before, (read, write)
            target.unlink()
            source.unlink(missing_ok=True)


def pairs_of_outputs() -> list[tuple[str, str]]:
    """Every two outputs of a command, with the same name."""
    chosen = {name: writes[0][1] for name, writes in OUTPUTS.items()}
    return [
        (first[0], f"{chosen[first]} {chosen[second]}")
        for first, second in combinations(chosen, 2)
        if first[0] == second[0]
    ]


@pytest.mark.parametrize(("command", "write"), pairs_of_outputs())
def test_outputs_have_files_of_their_own(
    llmgpu: Run, vocab: Path, command: str, write: str
) -> None:
    options = {"bench": "--quick", "bpe-train": "corpus.txt --device cpu"}[command].split()
    write = write.replace("--checkpoint kept -o out", "--checkpoint out")
    before = content_of(vocab.parent)
    for arguments in (write, write.replace(" out", " ./out", 1)):
        fails(llmgpu(command, *options, *arguments.split()), 1, "is given for two outputs")
    assert content_of(vocab.parent) == before


@pytest.fixture(scope="module")
def files_of_all_kinds(
    tmp_path_factory: pytest.TempPathFactory, corpus_text: bytes, vocab_bytes: bytes
) -> Path:
    folder = tmp_path_factory.mktemp("kinds")
    (folder / "corpus.txt").write_bytes(corpus_text)
    for name in ("v.bin", "v2.bin"):
        (folder / name).write_bytes(vocab_bytes)
    (folder / "text.txt").write_text("a text\n")
    (folder / "own.json").write_text('{"name": "of somebody"}')
    (folder / "gpt2").mkdir()
    (folder / "gpt2" / "vocab.json").write_text('["a"]')
    for command in (
        "bpe-train corpus.txt --counts-only --save-counts counts --device cpu",
        "export v.bin --to tiktoken -o ranks",
        "tokenize --vocab v.bin corpus.txt --device cpu -o ids",
        "tokenize --vocab v.bin corpus.txt --device cpu -o ids.bin --format bin",
        "tokenize --vocab v.bin corpus.txt --device cpu -o shards.bin --format bin"
        " --shard-tokens 2K",
    ):
        assert run_here(folder, tuple(command.split()), b"").returncode == 0
    return folder


@pytest.mark.parametrize(
    ("write", "message"),
    [
        ("bpe-train corpus.txt --vocab-size 3000,400 -o w.bin --save-counts w-400.bin",
         "two outputs"),
        ("bpe-train corpus.txt --checkpoint kept -o kept/merges", "two outputs"),
        ("bpe-train corpus.txt -o - --save-counts -", "two outputs"),
        ("bpe-train corpus.txt", "v.bin exists already"),
        ("bpe-train corpus.txt -o corpus.txt", "corpus.txt is an input"),
        ("bpe-train corpus.txt -o text.txt", "text.txt is text, and a vocabulary would replace it"),
        ("bpe-train corpus.txt -o w.bin --save-counts v.bin", "v.bin is a vocabulary"),
        ("bpe-train corpus.txt -o counts", "counts is a file of word counts"),
        ("bpe-train corpus.txt -o v.bin --vocab-size 300", None),
        ("import ranks --pattern gpt2", "v.bin exists already"),
        ("import ranks --pattern gpt2 -o ids.bin", "ids.bin is a token file"),
        ("tokenize --vocab v.bin corpus.txt -o ranks", "ranks is a rank file, and decimal ids"),
        ("tokenize --vocab v.bin corpus.txt -o v2.bin", "v2.bin is a vocabulary"),
        ("tokenize --vocab v.bin corpus.txt -o ids.bin --format ids", "ids.bin is a token file"),
        ("tokenize --vocab v.bin corpus.txt -o ids", None),
        ("tokenize --vocab v.bin corpus.txt -o ids --format npy", "ids is decimal ids"),
        ("tokenize --vocab v.bin corpus.txt -o ids.bin --format bin", None),
        ("tokenize --vocab v.bin corpus.txt -o own --format bin", "own.json is text"),
        ("tokenize --vocab v.bin corpus.txt -o shards.bin --format bin --shard-tokens 4K", None),
        ("tokenize --vocab v.bin corpus.txt -o own.bin --format bin --shard-tokens 4K",
         "own.json is text"),
        ("tokenize --vocab v.bin --decode ids -o text.txt", "text.txt is text, and other text"),
        ("tokenize --vocab v.bin --decode ids -o new.txt", None),
        ("tokenize --vocab v.bin corpus.txt --format tokens -o text.txt", "text.txt is text, and"),
        ("bench --write-corpus text.txt --corpus corpus.txt", "text.txt is text, and other text"),
        ("tokenize --vocab v.bin --decode ids -o v2.bin", "v2.bin is a vocabulary, and text"),
        ("export v.bin --to tiktoken -o ranks", None),
        ("export v.bin --to tiktoken -o own", "own.json is text"),
        ("export v.bin --to huggingface -o own.json", "own.json is text"),
        ("export v.bin --to gpt2 -o gpt2", "vocab.json is text"),
        ("bench --quick -o text.txt", "text.txt is text, and benchmark results"),
        ("bench --quick --report v.bin", "v.bin is a vocabulary, and an HTML page"),
        ("bench --write-corpus v.bin --corpus corpus.txt", "v.bin is a vocabulary, and text"),
    ],
)  # fmt: skip
def test_files_of_another_kind_are_kept(
    llmgpu: Run, vocab: Path, files_of_all_kinds: Path, write: str, message: str | None
) -> None:
    folder = vocab.parent
    shutil.copytree(files_of_all_kinds, folder, dirs_exist_ok=True)
    before = content_of(folder)
    name = write.split()[0]
    device = CPU if name in ("bpe-train", "tokenize", "bench") else ()
    done = llmgpu(*write.split(), *device)
    if message is None:
        assert done.returncode == 0, done.stderr
        return
    fails(done, 1, message)
    assert content_of(folder) == before
    if "--write-corpus" in write or (name != "bench" and "exists" in message):
        assert llmgpu(*write.split(), *device, "--force").returncode == 0
        assert content_of(folder) != before


def test_devices_and_descriptors_are_written_as_ever(llmgpu: Run, vocab: Path) -> None:
    for write in (
        "bpe-train corpus.txt -o /dev/null --save-counts /dev/null",
        "tokenize --vocab v.bin corpus.txt -o /dev/null --format bin",
        "tokenize --vocab v.bin corpus.txt -o -",
    ):
        done = llmgpu(*write.split(), *CPU)
        assert done.returncode == 0, done.stderr


def test_standard_streams_are_compared(vocab: Path) -> None:
    """A shell that appends the output to the input would never end."""
    text = vocab.parent / "corpus.txt"
    before = text.read_bytes()
    with text.open("rb") as reading, text.open("ab") as appending:
        done = subprocess.run(
            [*COMMAND, "tokenize", "--vocab", "v.bin", *CPU],
            cwd=vocab.parent,
            env=environment(),
            stdin=reading,
            stdout=appending,
            stderr=subprocess.PIPE,
            timeout=200,
        )
    fails(done, 1, "is an input")
    assert text.read_bytes() == before
