"""One small, sound file of every format, made by the commands themselves."""

from __future__ import annotations

import bz2
import gzip
import importlib.util
import json
import lzma
import os
import shutil
import stat
from pathlib import Path

import pytest

from llmgpu.bpe.interchange.formats import open_vocabulary
from tests.bpe.interchange import models
from tests.bpe.interchange.models import model, random_pieces, user_defined
from tests.bpe.interchange.test_piece_files_reading import CASES
from tests.bpe.interchange.test_tekken import content as tekken_content
from tests.cli.conftest import killed_before, run_here
from tests.reference.pieces import MARK, NORMAL
from tests.text.test_charsmap import charsmap

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
zstandard = pytest.importorskip("zstandard")

MODEL = (
    *("--dim", "8", "--layers", "1", "--heads", "2", "--ffn-dim", "8", "--seq-len", "8"),
    *("--batch-size", "2", "--eval-batches", "1", "--device", "cpu"),
)
CHECKPOINTED = ("bpe-train", "in/corpus.txt", "--vocab-size", "300", "--device", "cpu")
SPECIAL = ("--special-token", "<|end|>")
SHARDED = (
    *("tokenize", "in/corpus.txt", "--vocab", "in/v.bin", "--format", "bin"),
    *("--shard-tokens", "200", "--device", "cpu"),
)
# Options that make no run long; the command line has the others.
OPTIONS_FILE = """\
vocab = "in/v.bin"
corpus = ["in/corpus.txt"]
doc-separator = ["cat"]
lr = 1e-3
tied = false
seed = 7
warmup-steps = 0
weight-decay = 0.1
"""
TRAINED = ("train", "in/corpus.txt", "--vocab", "in/v.bin", *MODEL)
ADAPTED = (
    *("train", "in/corpus.txt", "--init", "kept/model", "--lora-rank", "2", "--device", "cpu"),
    *("--batch-size", "2", "--eval-batches", "1"),
)


def make_samples(folder: Path) -> None:
    """Make ``in`` with inputs, and ``kept`` with what unfinished runs left.

    Without the package gguf, the sample of its format is missing.
    """
    inputs = folder / "in"
    inputs.mkdir()
    (folder / "kept").mkdir()
    text = "\n".join(f"the {word} of café {k * k}" for k in range(60) for word in ("cat", "dogs"))
    (inputs / "corpus.txt").write_text(text)
    _make_corpora(inputs, text)
    _run(folder, *CHECKPOINTED, *SPECIAL, "--pattern", "gpt2", "-o", "in/v.bin")
    _run(folder, *CHECKPOINTED, "--save-counts", "in/counts", "--counts-only")
    for name in ("ids", "jsonl", "npy", "bin"):
        tokenize = ("tokenize", "in/corpus.txt", "--vocab", "in/v.bin", "--format", name)
        _run(folder, *tokenize, "-o", f"in/ids.{name}", "--device", "cpu")
    for layout in ("megatron", "nanogpt"):
        tokenize = ("tokenize", "in/corpus.txt", "--vocab", "in/v.bin", "--layout", layout)
        _run(folder, *tokenize, "-o", f"in/{layout}.bin", "--device", "cpu")
    _run(folder, *SHARDED, "-o", "in/shards.bin")
    for name, output in (
        ("huggingface", "t.json"),
        ("tiktoken", "ranks"),
        ("gpt2", "gpt2"),
        ("gguf", "v.gguf"),
    ):
        if name == "gguf" and importlib.util.find_spec("gguf") is None:
            print("no sample of GGUF: the package gguf is not installed", flush=True)
            continue
        (inputs / "gpt2").mkdir(exist_ok=True)
        _run(folder, "export", "in/v.bin", "--to", name, "-o", f"in/{output}", "--quiet")
    _make_chat(folder)
    (inputs / "tekken.json").write_text(json.dumps(tekken_content()))
    _make_pieces(inputs)
    (inputs / "run.toml").write_text(OPTIONS_FILE)
    options = ("--quick", "--limit", "4KB", "--vocab-size", "260", "--runs", "1", "--no-peers")
    _run(folder, "bench", "tokenize", "--device", "cpu", *options, "-o", "in/record.json")
    killed_before("v2.bin", 1, folder, *CHECKPOINTED, "--checkpoint", "kept/run", "-o", "v2.bin")
    killed_before("shards-000002.bin", 1, folder, *SHARDED, "-o", "kept/shards.bin")
    for part in ("1/2", "2/2"):
        _run(folder, *SHARDED, "--part", part, "-o", "kept/parts-%P.bin")
    _run(folder, *TRAINED, "--steps", "1", "-o", "kept/model")
    _run(folder, *ADAPTED, "--steps", "1", "-o", "kept/adapted")
    shutil.copytree(folder / "kept" / "model", inputs / "run")
    lock = folder / "kept" / "shards.lock"
    for left in [*folder.glob(".*"), *folder.glob("v*"), *(folder / "kept").glob(".*"), lock]:
        left.unlink()


def _run(folder: Path, *arguments: str) -> None:
    done = run_here(folder, arguments, b"")
    assert done.returncode == 0, done.stderr


def _make_pieces(inputs: Path) -> None:
    """Write a SentencePiece model with a map of strings, and files of its kind."""
    pieces = [*random_pieces(1, has_bytes=True, has_unused=True), *user_defined("<x>")]
    mapped = charsmap({"\n": " ", "a\u0301": "\u00e1"})
    (inputs / "t.model").write_bytes(model(pieces, None, {2: mapped, 4: 1}))
    (inputs / "pieces.json").write_text(json.dumps(CASES["llama 2"](1)))
    open_vocabulary(inputs / "t.model").save(inputs / "pieces.bin")
    if importlib.util.find_spec("gguf") is not None:
        texts = [MARK, *"theca", "th", "the", f"{MARK}the"]
        letters = [(text, -float(number), NORMAL) for number, text in enumerate(texts)]
        (inputs / "e.model").write_bytes(model([*models.SPECIAL, *models.BYTES, *letters]))
        _run(inputs, "export", "e.model", "--to", "gguf", "-o", "pieces.gguf", "--quiet")
        (inputs / "e.model").unlink()


def _make_chat(folder: Path) -> None:
    """Make conversations, a vocabulary with a template, and a token file with a mask."""
    (folder / "in" / "t.jinja").write_text(
        "{% for m in messages %}{{ m.role }}: {% generation %}{{ m.content }}{% endgeneration %}"
        "{% if not loop.last %}, {% endif %}{{ eos_token }}{% endfor %}"
    )
    line = {"messages": [{"role": role, "content": "the cat"} for role in ("user", "assistant")]}
    (folder / "in" / "chat.jsonl").write_text(20 * (json.dumps(line) + "\n"))
    template = ("--chat-template", "in/t.jinja")
    _run(folder, "export", "in/v.bin", "--to", "huggingface", "-o", "in/chat/", *template)
    _run(folder, "import", "in/chat", "-o", "in/chat/v.bin", "--quiet")
    chat = ("tokenize", "in/chat.jsonl", "--chat", "--vocab", "in/chat/v.bin", "--device", "cpu")
    _run(folder, *chat, "-o", "in/chat.bin")


def _make_corpora(inputs: Path, text: str) -> None:
    data = text.encode()
    rows = [{"text": line} for line in text.splitlines()]
    (inputs / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    parquet.write_table(pyarrow.Table.from_pylist(rows), inputs / "c.parquet")
    (inputs / "c.txt.gz").write_bytes(gzip.compress(data))
    (inputs / "c.txt.bz2").write_bytes(bz2.compress(data))
    (inputs / "c.txt.xz").write_bytes(lzma.compress(data))
    (inputs / "c.txt.zst").write_bytes(zstandard.compress(data))


def fresh_copy(samples: Path, folder: Path, former: Path | None = None) -> None:
    """Make a folder in which a command runs: the inputs, and an empty ``out``.

    former: a folder of this function that is not used any more, if it exists. Its inputs are moved,
        and copied again only if they were changed, because copying takes longer than most commands.
    """
    inputs = folder / "in"
    if former is None or not (former / "in").is_dir():
        shutil.copytree(samples / "in", inputs, copy_function=shutil.copy2)
    else:
        folder.mkdir()
        (former / "in").rename(inputs)
        _restore(samples / "in", inputs)
    (folder / "out").mkdir()


def _restore(samples: Path, inputs: Path) -> None:
    wanted, found = _content(samples), _content(inputs)
    if _folders(wanted) != _folders(found):
        shutil.rmtree(inputs)
        shutil.copytree(samples, inputs, copy_function=shutil.copy2)
        return
    for name in wanted.keys() | found.keys():
        if wanted.get(name) != found.get(name):
            (inputs / name).unlink(missing_ok=True)
            if name in wanted:
                shutil.copy2(samples / name, inputs / name)


def _content(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the mode of everything below a folder, and the size and time of change of files."""
    found: dict[str, tuple[int, ...]] = {}
    for parent, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = os.path.join(parent, name)
            status = os.lstat(path)
            file = () if stat.S_ISDIR(status.st_mode) else (status.st_size, status.st_mtime_ns)
            found[os.path.relpath(path, folder)] = (status.st_mode, *file)
    return found


def _folders(content: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    return {name: facts for name, facts in content.items() if len(facts) == 1}
