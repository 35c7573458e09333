"""Measure the memory that commands take against what they estimate, and print a table.

Each case is a command in a process of its own. Its peak is the largest resident size of the process
(ru_maxrss) less that of a process that only imports what the command does. Its estimate is
``estimated_memory_bytes`` of ``--json``, the memory of a software adapter included. An estimate is
a bound that says something if the peak is between 0.4 and 1.0 of it.

    python scripts/measure_memory.py                        # all cases, on NumPy
    python scripts/measure_memory.py --device llvmpipe --megabytes 5 --only bpe-train
    python scripts/measure_memory.py --only long            # pre-tokens of the text's whole length
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

Parts = Iterator[bytes]
LETTERS = b"etaoinshrdlucmfwypvbgkjqxz"
IMPORTS = """
import llmgpu.cli.{module}
if {gpu}: import llmgpu.gpu, llmgpu.bpe.training.batched_gpu, llmgpu.bpe.encoding.encoder_gpu
else: import llmgpu.bpe.training.batched_numpy, llmgpu.bpe.encoding.encoder_numpy
"""
COMMAND = "from llmgpu.cli import main; main()"


def _words(generator: random.Random, count: int, first: int, last: int) -> list[bytes]:
    return [
        bytes(generator.choices(LETTERS, k=generator.randint(first, last))) for _ in range(count)
    ]


def _zipf(words: list[bytes], generator: random.Random) -> Parts:
    """Yield text of words with the frequencies of natural language."""
    weights = np.cumsum(1 / np.arange(2.7, len(words) + 2.7)).tolist()
    while True:
        chosen = generator.choices(words, cum_weights=weights, k=1000)
        chosen[::12] = [word.capitalize() + b"," for word in chosen[::12]]
        yield b" ".join(chosen) + b".\n"


def _english(generator: random.Random) -> Parts:
    return _zipf(_words(generator, 60_000, 1, 12), generator)


def _multilingual(generator: random.Random) -> Parts:
    ranges = ((0x61, 0x7A), (0x430, 0x44F), (0x3B1, 0x3C9), (0x621, 0x64A), (0x4E00, 0x9FA5))
    words = []
    for first, last in ranges:
        for _ in range(20_000):
            length = generator.randint(1, 9)
            letters = (chr(generator.randint(first, last)) for _ in range(length))
            words.append("".join(letters).encode())
    generator.shuffle(words)
    return _zipf(words, generator)


def _source_code(generator: random.Random) -> Parts:
    for path in sorted(Path(os.__file__).parent.rglob("*.py")):
        yield path.read_bytes()
    yield from _english(generator)


def _random_words(generator: random.Random) -> Parts:
    while True:
        yield b" ".join(_words(generator, 1000, 3, 12)) + b"\n"


def _random_bytes(generator: random.Random) -> Parts:
    while True:
        yield generator.randbytes(1 << 16)


def _random_letters(generator: random.Random) -> Parts:
    while True:
        yield bytes(generator.choices(LETTERS, k=1 << 16))


def _repeated(text: bytes) -> Callable[[random.Random], Parts]:
    def parts(generator: random.Random) -> Parts:
        while True:
            yield text * (1 + (1 << 16) // len(text))

    return parts


def _digits(generator: random.Random) -> Parts:
    while True:
        yield b" ".join(b"%d" % generator.randrange(10**9) for _ in range(5000)) + b"\n"


def _long_words(generator: random.Random) -> Parts:
    while True:
        yield b"\n".join(_words(generator, 20, 500, 5000)) + b"\n"


def _short_documents(generator: random.Random) -> Parts:
    text = _english(generator)
    while True:
        words = next(text).split()
        lines = (b" ".join(words[first : first + 8]) for first in range(0, len(words), 8))
        yield b"".join(json.dumps({"text": line.decode()}).encode() + b"\n" for line in lines)


TEXTS: dict[str, Callable[[random.Random], Parts]] = {
    "English": _english,
    "multilingual": _multilingual,
    "source code": _source_code,
    "random words": _random_words,
    "random bytes": _random_bytes,
    "one letter": _repeated(b"a"),
    "repetitive lines": _repeated(b"GET /index.html HTTP/1.1 200 OK\n"),
    "digits": _digits,
    "long words": _long_words,
    "short documents": _short_documents,
    "compressed": _english,
    "compressed letters": _repeated(b"a"),
    "many files": _english,
}
FILE_BYTES = 5_000  # of each of many files
LONG: dict[str, Callable[[random.Random], Parts]] = {
    "one letter": _repeated(b"a"),
    "zeros": _repeated(b"\0"),
    "spaces": _repeated(b" "),
    "random letters": _random_letters,
    "one Chinese letter": _repeated("中".encode()),
}
MODELS: dict[str, list[str]] = {
    "tiny": ["--batch-size", "8"],
    "small": ["--preset", "small", "--batch-size", "4"],
    "wide vocabulary, untied": ["--dim", "64", "--untied", "--batch-size", "8"],
    "gelu, 8-bit moments": ["--dim", "512", "--activation", "gelu", "--optimizer", "adamw-8bit"],
    "long sequences": ["--seq-len", "2048", "--batch-size", "2"],
}


def write(path: Path, parts: Iterable[bytes], size: int) -> None:
    """Write `size` bytes of text."""
    with gzip.open(path, "wb") if path.suffix == ".gz" else path.open("wb") as file:
        for part in parts:
            if file.tell() + len(part) >= size:
                part = part[: size - file.tell()]
                # A line of JSON is not cut in two.
                file.write(part[: part.rfind(b"\n") + 1] if path.suffix == ".jsonl" else part)
                return
            file.write(part)


def peak_bytes(script: str, *arguments: str) -> tuple[int, str]:
    """Run Python with a script; return its peak resident size and what it printed."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen([sys.executable, "-c", script, *arguments], stdout=output)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"exit code {process.returncode}: llmgpu {' '.join(arguments)}")
        output.seek(0)
        return usage.ru_maxrss << 10, output.read().decode()


class Table:
    """The lines of a Markdown table, printed as they are measured."""

    def __init__(self, folder: Path, device: str) -> None:
        self.folder, self._device = folder, device
        print("| command | input | backend | peak | estimate | peak / estimate |")
        print("| --- | --- | --- | ---: | ---: | ---: |")

    def measure(self, name: str, size: int | None, *arguments: str) -> None:
        """Run a command on one of the inputs and print its line; size: to compare the peak with."""
        script = IMPORTS.format(module=arguments[0].replace("-", "_"), gpu=self._device != "cpu")
        baseline, _ = peak_bytes(script)
        peak, output = peak_bytes(
            COMMAND, *arguments, "--device", self._device, "--json", "--quiet"
        )
        peak -= baseline
        estimate = json.loads(output).get("estimated_memory_bytes", 1)
        cells = [arguments[0], name, self._device, f"{peak / 1e6:,.0f} MB"]
        cells += [f"{estimate / 1e6:,.0f} MB", f"{peak / estimate:.2f}"]
        if size:
            cells[1] += f" ({peak / size:.1f} times its length)"
        print(f"| {' | '.join(cells)} |", flush=True)


def text(folder: Path, name: str, megabytes: float, kinds: dict[str, Callable[..., Parts]]) -> str:
    """Return the path of a text, or folder, of a kind, made in a child so that this stays small."""
    suffix = ".jsonl" if "documents" in name else ".gz" if "compressed" in name else ".txt"
    path = folder / (name.replace(" ", "-") + suffix * ("files" not in name))
    child = os.fork()
    if child == 0:
        parts, size = kinds[name](random.Random(name)), int(megabytes * 1e6)
        if "files" in name:
            path.mkdir()
            for number in range(size // FILE_BYTES):
                write(path / f"{number}.txt", parts, FILE_BYTES)
        else:
            write(path, parts, size)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        raise SystemExit(f"{path} could not be written")
    return str(path)


def main() -> None:
    """Measure the cases that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--megabytes", type=float, default=10, help="of each text")
    parser.add_argument("--only", choices=("bpe-train", "tokenize", "train", "long"))
    parser.add_argument("--input", help="only the inputs with this in their names")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        table = Table(folder, asked.device)
        vocabulary = folder / "v.bin"
        english = text(folder, "English", 2, TEXTS)
        peak_bytes(COMMAND, "bpe-train", english, "-o", str(vocabulary), "--quiet",
                   "--vocab-size", "8192", "--device", "cpu")  # fmt: skip
        with_vocabulary = ("--vocab", str(vocabulary))
        commands = {
            "bpe-train": ("bpe-train", "-o", str(folder / "made.bin")),
            "tokenize": (
                "tokenize",
                "-o",
                str(folder / "ids.bin"),
                "--format",
                "bin",
                *with_vocabulary,
            ),
        }
        for kind, inputs in (("texts", TEXTS), ("long", LONG)):
            for name in inputs:
                if asked.only == "train" or (asked.only == "long") != (kind == "long"):
                    continue
                if asked.input and asked.input not in name:
                    continue
                path = text(folder, name, asked.megabytes, inputs)
                size = os.path.getsize(path) if kind == "long" else None
                for command, options in commands.items():
                    if asked.only in (None, "long", command):
                        table.measure(name, size, *options, path)
                shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
        for name, options in MODELS.items() if asked.only in (None, "train") else ():
            if asked.input and asked.input not in name:
                continue
            english = text(folder, "English", 2, TEXTS)
            run = ("-o", str(folder / "run"), "--force", "--steps", "2", "--eval-batches", "1")
            table.measure(name, None, "train", english, *with_vocabulary, *run, *options)


if __name__ == "__main__":
    main()
