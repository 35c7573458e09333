"""Many random strings and every code point against tiktoken and Hugging Face tokenizers.

``python -m tests.harness.peers``; ``--share 0.01`` for a hundredth. Vocabularies are those that
OpenAI published, where this machine has their ranks (see `llmgpu.bpe.interchange.tiktoken`), and
some trained here and exported; or those of the tokenizer.json files that are named, against
tokenizers alone and with their special tokens in the text. A file may be refused.

- A string is encoded here, by tiktoken and by tokenizers, all with the same vocabulary.
- Neither package takes bytes that are no text. They are cut by the reference, and both packages
  merge each pre-token.
- Every code point stands in the neighbourhoods of `tests.bpe.pretokens.test_peers`, for all
  patterns.

Prints what differs, escaped, and how many were tried; ends with 1 if any differ.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import tiktoken
import tokenizers

from llmgpu.backend import NUMPY
from llmgpu.bpe.encoding.encoder import Encoder
from llmgpu.bpe.encoding.encoder_numpy import NumpyEncoder
from llmgpu.bpe.encoding.open import open_encoder
from llmgpu.bpe.encoding.special_options import SpecialOptions
from llmgpu.bpe.interchange import huggingface
from llmgpu.bpe.interchange.formats import open_vocabulary
from llmgpu.bpe.interchange.token_tables import TIKTOKEN
from llmgpu.bpe.pretokens.names import PATTERNS
from llmgpu.bpe.training.options import TrainingOptions
from llmgpu.bpe.training.train import train_vocabulary
from llmgpu.bpe.vocabulary.building import ordinary_ranks
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.cpu.library import describe
from llmgpu.errors import VocabularyError
from llmgpu.text.corpus import corpus_from_bytes
from tests.bpe.encoding.test_peers import ALPHABETS, SPECIALS, code_points, encode
from tests.bpe.pretokens.test_peers import CHUNK, compare_ids, compare_starts, valid
from tests.reference.bpe import bytes_to_unicode, pre_tokens, stand_ins

PUBLISHED = ("r50k_base", "p50k_base", "cl100k_base", "o200k_base")
TRAINED = ("llama3", "qwen2", "nanochat")
INSTEAD = ("gpt2", "o200k", "cl100k", "rustbpe")  # of published ones that are not on this machine
STRINGS, BYTE_STRINGS = 1_000_000, 100_000
BATCH = 2_000  # strings of a task
NUMPY_EVERY = 16  # one task in this many is encoded with NumPy as well
PARTS = b"ab \n1'\xe2\x82\xac\xc3\xa9\xf0\x9f\x98\x80\xed\xa0"  # bytes of some characters
ROOT = Path(__file__).parents[2]
CHARACTERS = bytes_to_unicode()


@dataclass
class Compared:
    """A vocabulary here and in both packages."""

    name: str
    vocabulary: Vocabulary
    encoders: dict[str, Encoder]
    encoding: tiktoken.Encoding | None
    tokenizer: tokenizers.Tokenizer


@dataclass(frozen=True)
class Task:
    """What a process does at a time; name: of a vocabulary or a pattern."""

    kind: str
    name: str
    number: int


def random_string(rng: random.Random, tokens: Sequence[bytes]) -> str:
    """Return characters of one alphabet, of all, of any code points, or tokens end to end."""
    length = rng.choice(
        (rng.randrange(10), rng.randrange(60), rng.randrange(60), rng.randrange(300))
    )
    match rng.randrange(8):
        case 0:
            alphabet = "".join(map(chr, rng.sample(code_points(), 30)))
        case 1 | 2:
            spelled = b"".join(rng.choices(tokens, k=length // 4 + 1))
            return spelled.decode(errors=rng.choice(("ignore", "replace")))
        case 3:
            return rng.choice(SPECIALS) + rng.choice(SPECIALS)
        case 4:
            alphabet = "".join(ALPHABETS)
        case _:
            alphabet = rng.choice(ALPHABETS)
    return "".join(rng.choices(alphabet, k=length))


def random_bytes(rng: random.Random, tokens: Sequence[bytes]) -> bytes:
    """Return any bytes, parts of characters, or tokens cut anywhere."""
    length = rng.randrange(60)
    match rng.randrange(3):
        case 0:
            return rng.randbytes(length)
        case 1:
            return bytes(
                rng.choices(b"ab \n1'\xe2\x82\xac\xc3\xa9\xf0\x9f\x98\x80\xed\xa0", k=length)
            )
        case _:
            spelled = b"".join(rng.choices(tokens, k=length // 4 + 1))
            return spelled[rng.randrange(4) : rng.randrange(len(spelled) + 1)]


def vocabularies() -> Iterator[tuple[str, Vocabulary]]:
    """Yield vocabularies by name: published ones that are here, and trained ones."""
    trained = list(TRAINED)
    for name, pattern in zip(PUBLISHED, INSTEAD, strict=True):
        try:
            yield name, open_vocabulary(name)
        except VocabularyError:
            print(f"{name} is not on this machine: a vocabulary of {pattern} is trained instead")
            trained.append(pattern)
    rng = random.Random(1)
    pages = [path.read_bytes() for path in sorted(ROOT.glob("docs/*.md"))]
    strings = "\n".join(random_string(rng, pages[:1]) for _ in range(3000)).encode()
    for pattern in trained:
        options = TrainingOptions(4000, pattern)
        corpus = corpus_from_bytes(b"".join(pages) + strings)
        yield f"trained {pattern}", train_vocabulary(corpus, options, NUMPY).vocabulary


def compared_file(path: Path) -> Compared:
    """Open a tokenizer.json here and there; VocabularyError if it is refused."""
    vocabulary = open_vocabulary(path, note=lambda note: print(f"{path.name}: {note}"))
    special = SpecialOptions(["all"])
    encoders = {f"encoding ({describe()})": open_encoder(vocabulary, NUMPY, special=special)}
    return Compared(
        path.stem, vocabulary, encoders, None, tokenizers.Tokenizer.from_file(str(path))
    )


def compared(name: str, vocabulary: Vocabulary, folder: Path) -> Compared:
    """Open a vocabulary in all packages."""
    encoding = tiktoken.Encoding(
        name,
        pat_str=TIKTOKEN[vocabulary.pattern],
        mergeable_ranks=ordinary_ranks(vocabulary),
        special_tokens={},
    )
    path = folder / f"{name}.json"
    huggingface.write(vocabulary, path)
    encoders = {
        f"encoding ({describe()})": open_encoder(vocabulary, NUMPY, threads=1),
        "encoding (NumPy)": NumpyEncoder(vocabulary, threads=1),
    }
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    return Compared(name, vocabulary, encoders, encoding, tokenizer)


OPENED: dict[str, Compared] = {}  # by name; filled before processes are forked


def strings_differ(task: Task) -> tuple[Counter[str], list[str]]:
    """Compare random strings; return how many of each comparison, and those that differ."""
    at = OPENED[task.name]
    rng = random.Random(f"{task.name} {task.number}")
    tokens = ordinary_tokens(task.name)
    texts = [random_string(rng, tokens) for _ in range(BATCH)]
    documents = [text.encode() for text in texts]
    there = at.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    expected = {"tokenizers": [found.ids for found in there]}
    if at.encoding is not None:
        expected["tiktoken"] = at.encoding.encode_ordinary_batch(texts, num_threads=1)
    return differences(at, task.number, documents, expected)


def bytes_differ(task: Task) -> tuple[Counter[str], list[str]]:
    """Compare random bytes, as the reference cuts them, and merges by both packages."""
    at = OPENED[task.name]
    assert at.encoding is not None
    rng = random.Random(f"bytes {task.name} {task.number}")
    tokens = ordinary_tokens(task.name)
    documents = [random_bytes(rng, tokens) for _ in range(BATCH)]
    pieces = [pre_tokens(document, at.vocabulary.pattern) for document in documents]
    expected = {
        "tiktoken": [
            [i for piece in found for i in at.encoding._encode_single_piece(piece)]
            for found in pieces
        ],
        "tokenizers": [
            [
                token.id
                for piece in found
                for token in at.tokenizer.model.tokenize("".join(CHARACTERS[b] for b in piece))
            ]
            for found in pieces
        ],
    }
    return differences(at, task.number, documents, expected)


@cache
def ordinary_tokens(name: str) -> list[bytes]:
    at = OPENED[name]
    tokens = [at.vocabulary.tokens[i] for i in at.vocabulary.ordinary_ids.tolist()]
    if at.encoding is None:  # special tokens are found in text; many, so that they come often
        special = [text.encode() for text in at.vocabulary.special_tokens]
        tokens += special * (len(tokens) // (10 * len(special)) if special else 0)
    return tokens


def differences(
    at: Compared, number: int, documents: list[bytes], expected: dict[str, list[list[int]]]
) -> tuple[Counter[str], list[str]]:
    """Encode here and compare."""
    tried: Counter[str] = Counter()
    found = []
    for k, (engine, encoder) in enumerate(at.encoders.items()):
        if k > 0 and number % NUMPY_EVERY:
            continue
        ours = encode(encoder, documents)
        for package, theirs in expected.items():
            tried[f"{engine}, {package}, {at.name}"] += len(documents)
            found += [
                f"{engine}, {package}, {at.name}: {document!a}"
                for document, one, other in zip(documents, ours, theirs, strict=True)
                if one != other
            ]
    return tried, found


def points_differ(task: Task) -> tuple[Counter[str], list[str]]:
    """Compare where a pattern cuts text with each code point of a chunk."""
    points = valid(range(task.number * CHUNK, (task.number + 1) * CHUNK))
    found = []
    for compare in (compare_ids, compare_starts):
        try:
            if points:
                compare(points, task.name)
        except pytest.fail.Exception as error:
            found.append(ascii(str(error)))
    return Counter({f"code points, both, pattern {task.name}": len(points)}), found


KINDS: dict[str, Callable[[Task], tuple[Counter[str], list[str]]]] = {
    "strings": strings_differ,
    "bytes": bytes_differ,
    "points": points_differ,
}


def run_task(task: Task) -> tuple[str, float, Counter[str], list[str]]:
    """Run a task; return its kind, its CPU seconds, and what it found."""
    before = time.process_time()
    tried, found = KINDS[task.kind](task)
    return task.kind, time.process_time() - before, tried, found


def tasks(share: float, kinds: Sequence[str]) -> list[Task]:
    """Return all tasks, in an order in which every kind comes early."""
    counts = {"strings": STRINGS, "bytes": BYTE_STRINGS}
    made = [
        Task(kind, name, number)
        for kind, count in counts.items()
        for name in OPENED
        for number in range(max(1, round(share * count / BATCH)))
    ]
    patterns = [name for name in PATTERNS if name != "none"]
    chunks = range(0, 0x110000 // CHUNK, max(1, round(1 / share)))
    made += [Task("points", name, number) for name in patterns for number in chunks]
    random.Random(0).shuffle(made)
    return [task for task in made if task.kind in kinds]


def open_all(files: Sequence[Path], folder: Path) -> None:
    """Open the files, or all vocabularies that there are; say which files are refused."""
    for path in files:
        try:
            OPENED[path.stem] = compared_file(path)
        except VocabularyError as error:
            print(f"refused: {error}")
    if not files:
        for name, vocabulary in vocabularies():
            OPENED[name] = compared(name, vocabulary, folder)


def main() -> None:
    """Compare as many as asked for, or as fit into the time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="part of all comparisons")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", choices=list(KINDS), action="append")
    parser.add_argument("files", nargs="*", type=Path, metavar="tokenizer.json")
    given = parser.parse_args()
    end = time.monotonic() + given.seconds
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    tried: Counter[str] = Counter()
    seconds: dict[str, float] = dict.fromkeys(KINDS, 0.0)
    differ = 0
    with tempfile.TemporaryDirectory(prefix="llmgpu-peers-") as name:
        open_all(given.files, Path(name))
        stand_ins()
        code_points()
        print(f"{len(OPENED)} vocabularies opened", flush=True)
        with multiprocessing.get_context("fork").Pool(given.jobs) as pool:
            kinds = ["strings"] if given.files else given.only or list(KINDS)
            todo = tasks(given.share, kinds)
            for kind, used, counts, found in pool.imap_unordered(run_task, todo):
                seconds[kind] += used
                tried += counts
                differ += len(found)
                print(*found[:5], sep="\n", end="\n" if found else "", flush=True)
                if time.monotonic() > end:
                    print("the time is over: this is not all", flush=True)
                    break
    for what, count in sorted(tried.items()):
        print(f"{what}: {count:,}")
    print(", ".join(f"{kind}: {used:,.0f} s" for kind, used in seconds.items()), "of CPU time")
    print(f"{sum(tried.values()):,} tried, {differ:,} differ")
    sys.exit(1 if differ else 0)


if __name__ == "__main__":
    main()
