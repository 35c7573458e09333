# ruff: noqa: RUF001, SIM905  (words in several scripts; lists of words)
"""Write a fixed set of files with the command line, and print the sha256 of each.

Two commits that should give the same results print the same lines:

    python scripts/digests.py --device cpu > before.txt

The set has vocabularies of all patterns, tie rules and engines, ids in all formats and layouts,
word counts, manifests, checkpoints and exports. ``--device`` is that of the command line, and
LLMGPU_CPU=numpy takes the C engine away. Language models depend on the device, all else does not.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
PATTERNS = "class gpt2 cl100k rustbpe llama3 qwen2 nanochat o200k none".split()
LAYOUTS = "raw nanogpt llmc megatron".split()
SYLLABLES = {
    "latin": "ka lo mi nu re sa ti vo 'll é ß ı th st qu".split(),
    "greek": "α βη γο δι".split(),
    "cyrillic": "да не то мы".split(),
    "cjk": "語 文 字 学 漢 かな カナ 한글".split(),
    "other": "😀 👩\u200d💻 अ न् ال سل e\u0301 \u00a0 \u2003".split(" "),
    "digits": "1 22 333 4444 1234567".split(),
}
PUNCTUATION = [
    " ",
    " ",
    " ",
    " ",
    ", ",
    ". ",
    "\n",
    "\r\n",
    "  ",
    "\t",
    " (",
    ") ",
    "-",
    "\n\n\n",
    "_",
]


def text(seed: int, words: int) -> str:
    """Return generated text in several scripts."""
    draw = random.Random(seed)
    lexicon = []
    for _ in range(400):
        syllables = draw.choice([SYLLABLES["latin"]] * 6 + list(SYLLABLES.values()))
        word = "".join(draw.choices(syllables, k=draw.randint(1, 4)))
        lexicon.append(draw.choice([word, word, word.capitalize(), word.upper()]))
    parts = []
    for _ in range(words):
        parts += [lexicon[int(400 * draw.random() ** 3)], draw.choice(PUNCTUATION)]
    return "".join(parts)


class Commands:
    """Runs commands in a folder; prints a digest of all that they write."""

    def __init__(self, folder: Path, device: str) -> None:
        self.folder, self.device = folder, device
        path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT)]))
        self.environment = os.environ | {"PYTHONPATH": path, "COLUMNS": "100"}
        self.failed = 0

    def run(self, *arguments: object, stdin: bytes = b"", name: str = "") -> bytes:
        """Run a command and return its stdout; with a name, print the digest of it."""
        command = [sys.executable, "-m", "llmgpu", *map(str, arguments), "--quiet"]
        done = subprocess.run(
            command, input=stdin, cwd=self.folder, env=self.environment, capture_output=True
        )
        if done.returncode:
            self.failed += 1
            print("failed:", *arguments, done.stderr.decode(errors="replace")[-300:])
        if name:
            show(name, done.stdout)
        return done.stdout

    def on_device(self, *arguments: object, stdin: bytes = b"", name: str = "") -> bytes:
        """Run a command that takes a device."""
        return self.run(*arguments, "--device", self.device, stdin=stdin, name=name)

    def show(self, *patterns: str) -> None:
        """Print the digests of files."""
        for pattern in patterns:
            found = sorted(filter(Path.is_file, self.folder.glob(pattern)))
            found = [path for path in found if not path.match("*.part.json")]  # has times
            if not found:
                self.failed += 1
                print("failed: no file", pattern)
            for path in found:
                show(str(path.relative_to(self.folder)), path.read_bytes())


def show(name: str, content: bytes) -> None:
    print(hashlib.sha256(content).hexdigest(), name, flush=True)


def write_texts(folder: Path) -> None:
    """Write the texts that all commands read."""
    for number in range(3):
        (folder / f"t{number}.txt").write_bytes(text(number, 20_000).encode())
    documents = text(7, 12_000).split("\n")
    rows = [json.dumps({"text": line, "n": k}) for k, line in enumerate(documents)]
    (folder / "d.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    noise = random.Random(5).randbytes(30_000)
    (folder / "noise.txt").write_bytes(noise)
    talks = [
        {
            "messages": [
                {"role": "user", "content": f"{line}?"},
                {"role": "assistant", "content": line},
            ]
        }
        for line in documents[:200]
    ]
    (folder / "talks.jsonl").write_text("\n".join(map(json.dumps, talks)) + "\n", encoding="utf-8")
    for path in folder.iterdir():  # resume keys have the times of files
        os.utime(path, (1_700_000_000, 1_700_000_000))


def vocabularies(commands: Commands) -> None:
    train = ["bpe-train", "t0.txt", "t1.txt", "noise.txt"]
    for pattern in PATTERNS:
        for tie in ("hf", "bytes"):
            name = f"{pattern}-{tie}.bin"
            commands.on_device(
                *train, "--vocab-size", 700, "--pattern", pattern, "--tie", tie, "-o", name
            )
    commands.on_device(
        *train, "--vocab-size", "500,900", "--special-token", "<|endoftext|>", "-o", "sizes.bin"
    )
    commands.on_device(
        "bpe-train", "t2.txt", "--seed-vocab", "gpt2-hf.bin", "--vocab-size", 900, "-o", "more.bin"
    )
    commands.on_device(*train, "--match", "greedy", "--vocab-size", 600, "-o", "greedy.bin")
    commands.on_device(
        *train, "--min-frequency", 50, "--max-token-length", 6, "--vocab-size", 900, "-o", "few.bin"
    )
    commands.on_device(
        "bpe-train", "d.jsonl", "--limit", "60KB", "--vocab-size", 600, "-o", "rows.bin"
    )
    if commands.device != "cpu":
        recount = ["--engine", "recount", "--vocab-size", 300, "--pattern", "class"]
        commands.on_device("bpe-train", "noise.txt", *recount, "-o", "recount.bin")
    commands.show("*.bin")


def counts(commands: Commands) -> None:
    for part in (1, 2):
        commands.on_device(
            *("bpe-train", "t0.txt", "t1.txt", "t2.txt", "--counts-only"),
            *("--part", f"{part}/2", "--save-counts", "%P.counts"),
        )
    commands.run("merge-word-counts", "1-of-2.counts", "2-of-2.counts", "-o", "all.counts")
    commands.on_device(
        *("bpe-train", "--from-counts", "all.counts", "--vocab-size", 800, "-o", "counted.bin")
    )
    commands.on_device("bpe-train", "t0.txt", "--counts-only", "--save-counts", "words.parquet")
    commands.show("*.counts", "counted.bin", "words.parquet")
    for per in ("file", "document", "total"):
        names = ["t0.txt", "t1.txt", "d.jsonl"]
        vocabularies = ["--vocab", "o200k-hf.bin", "--vocab", "gpt2-hf.bin"]
        commands.on_device("count", *vocabularies, *names, "--per", per, name=f"count by {per}")


TEMPLATE = (
    "{% for message in messages %}[{{ message.role }}]{% generation %}{{ message.content }}"
    "{% endgeneration %}{% endfor %}"
)


def ids(commands: Commands) -> None:
    texts = ["t0.txt", "t2.txt", "noise.txt"]
    vocabulary = ["--vocab", "sizes-900.bin", "--eos", "<|endoftext|>"]
    for ending in ("bin", "npy", "ids", "jsonl"):
        commands.on_device("tokenize", *vocabulary, *texts, "-o", f"ids.{ending}")
    shown = ["--format", "tokens", "-o", "ids.shown"]
    commands.on_device("tokenize", *vocabulary, *texts, *shown)
    for layout in LAYOUTS:
        output = ["--layout", layout, "-o", f"layout-{layout}.bin"]
        commands.on_device("tokenize", *vocabulary, *texts, "d.jsonl", *output)
    for pattern in PATTERNS:
        for kind in ("hf", "bytes"):
            encoding = ["--vocab", f"{pattern}-{kind}.bin"]
            name = f"ids of {pattern}, {kind}"
            commands.on_device("tokenize", *encoding, *texts, "d.jsonl", name=name)
    commands.on_device("tokenize", "--vocab", "greedy.bin", *texts, name="ids of greedy")
    (commands.folder / "template").write_text(TEMPLATE)
    chat = ["--chat", "--chat-template", "template", "-o", "split/chat.bin"]
    shards = ["--shard-tokens", 20_000, "-o", "shards/s.bin"]
    (commands.folder / "shards").mkdir()
    commands.on_device("tokenize", *vocabulary, *texts, "d.jsonl", *shards)
    for part in (1, 2):
        output = ["--shard-tokens", 20_000, "--part", f"{part}/2", "-o", "shards/%P.bin"]
        commands.on_device("tokenize", *vocabulary, *texts, "d.jsonl", *output)
    merged = ["shards/1-of-2.json", "shards/2-of-2.json", "-o", "shards/all.json"]
    commands.run("merge-shards", *merged)
    (commands.folder / "split").mkdir()
    split = ["--split", "val=0.2", "-o", "split/train.bin"]
    commands.on_device("tokenize", *vocabulary, "d.jsonl", *split)
    commands.on_device("tokenize", *vocabulary, "d.jsonl", "--shuffle", "-o", "split/shuffled.bin")
    by_position = ["--split", "val=0.1", "--split-by", "position", "-o", "split/p.bin"]
    commands.on_device("tokenize", *vocabulary, "t0.txt", *by_position)
    chunks = ["--chunk-tokens", 64, "--overlap", 8, "-o", "split/chunks.jsonl"]
    commands.on_device("tokenize", *vocabulary, "d.jsonl", *chunks)
    commands.on_device("tokenize", "--vocab", "sizes-900.bin", "talks.jsonl", *chat)
    lines = (commands.folder / "t1.txt").read_bytes()
    line_options = ["--line-documents", "--allowed-special", "all"]
    commands.on_device("tokenize", *vocabulary, *line_options, stdin=lines, name="ids of a pipe")
    commands.show("ids.*", "layout-*", "shards/*", "split/*")
    for name in ("ids.bin", "layout-megatron.bin", "layout-llmc.bin", "ids.npy"):
        output = commands.run("tokenize", "--vocab", "sizes-900.bin", "--decode", name)
        show(f"text of {name}", output)


MODEL = (
    "--dim 48 --layers 2 --heads 3 --seq-len 32 --batch-size 4 --steps 8 --save-interval 4".split()
)
RUNS = {
    "muon": [],
    "adamw": ["--optimizer", "adamw", "--untied", "--sparse-embedding"],
    "adamw-8bit": ["--optimizer", "adamw-8bit", "--schedule", "wsd", "--grad-accum", "2"],
    "options": "--activation gelu --kv-heads 1 --recompute --initialisation fan-in "
    "--label-smoothing 0.1".split(),
}


def models(commands: Commands) -> None:
    for name, options in RUNS.items():
        train = ["train", "t0.txt", "d.jsonl", "--vocab", "sizes-900.bin", "-o", f"run-{name}"]
        commands.on_device(*train, *MODEL, *options)
        commands.show(f"run-{name}/step-*/*")
    adapters = "--lora-rank 4 --steps 4 --batch-size 4 --save-interval 4".split()
    start = ["--init", "run-muon/step-00000008", "-o", "run-lora"]
    commands.on_device("train", "t1.txt", *start, *adapters)
    commands.show("run-lora/step-*/*.safetensors")
    more = ["--steps", 12, "--resume", "-o", "run-adamw", "--vocab", "sizes-900.bin"]
    commands.on_device("train", "t0.txt", "d.jsonl", *more)
    commands.show("run-adamw/step-*/*.safetensors")
    sample = ["--prompt", "ka lo", "--max-new-tokens", 20]
    for temperature in (0, 1):
        name = f"generated at {temperature}"
        commands.on_device("generate", "run-muon", *sample, "--temperature", temperature, name=name)
    commands.on_device("score", "run-muon", "d.jsonl", "--per-token", name="scores")
    commands.run("export", "run-muon", "--to", "gguf", "--weights", "f16", "-o", "model.gguf")
    commands.show("model.gguf")


def exports(commands: Commands) -> None:
    for pattern in PATTERNS:
        source = f"{pattern}-hf.bin"
        if pattern == "none":
            continue
        commands.run("export", source, "--to", "huggingface", "-o", f"{pattern}.tokenizer.json")
        commands.run(*("import", f"{pattern}.tokenizer.json", "-o", f"{pattern}.again", "--force"))
        commands.show(f"{pattern}.tokenizer.json", f"{pattern}.again")
    commands.run("export", "cl100k-bytes.bin", "--to", "tiktoken", "-o", "e.tiktoken")
    commands.run("export", "cl100k-hf.bin", "--to", "gguf", "-o", "e.gguf")
    commands.run("export", "gpt2-hf.bin", "--to", "gpt2", "-o", "e.gpt2")
    commands.show("e.*", "e.gpt2/*")


PARTS = {
    "vocabularies": vocabularies,
    "counts": counts,
    "ids": ids,
    "exports": exports,
    "models": models,
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--without", nargs="*", choices=[*PARTS], default=[])
    parser.add_argument(
        "--keep", type=Path, help="write the files to this new folder, and keep them"
    )
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        path = given.keep or Path(folder)
        path.mkdir(exist_ok=True)
        write_texts(path)
        commands = Commands(path, given.device)
        for name, part in PARTS.items():
            if name not in given.without:
                part(commands)
    return 1 if commands.failed else 0


if __name__ == "__main__":
    sys.exit(main())
