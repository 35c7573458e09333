"""Calls of a tokenizer by the extension module, by ctypes and by NumPy have one result or error.

`python -m tests.cpu.calls` takes a library, a module, a seed and how many rounds to run.
tests/cpu/test_sanitizers.py runs it on builds that stop at the first access out of bounds.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from llmgpu import Tokenizer
from llmgpu.bpe.pretokens.names import PATTERNS
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.cpu import extension, library
from tests.cpu.fuzz import REGEX, random_text, random_vocabulary

WAYS: dict[str, dict[str, str]] = {
    "module": {},
    "ctypes": {extension.VARIABLE: "ctypes"},
    "numpy": {library.VARIABLE: "numpy"},
}
DTYPES = (
    *("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *(">u4", "bool", "f8"),
)
SCALARS = {int, str, bytes}


@contextmanager
def by(way: str) -> Iterator[None]:
    """Choose what tokenizers use that are opened in the block."""
    before = {name: os.environ.pop(name, None) for name in (extension.VARIABLE, library.VARIABLE)}
    os.environ.update(WAYS[way])
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            os.environ.update({} if value is None else {name: value})


def outcome(call: Callable[[], Any]) -> Any:
    """Return a result in a form that can be compared, or the type and the text of an error."""
    try:
        return plain(call())
    except Exception as error:
        return type(error), str(error)


def plain(result: Any) -> Any:
    if isinstance(result, np.ndarray):
        return "array", result.dtype.str, result.shape, result.flags.writeable, result.tobytes()
    if isinstance(result, (list, tuple)):
        types = list(map(type, result))
        flat = SCALARS.issuperset(types)
        return type(result), types, list(result) if flat else [plain(each) for each in result]
    return type(result), result


def calls_on_texts(tokenizer: Tokenizer, texts: list[Any]) -> list[Any]:
    """Return the outcomes of all calls that the module does on texts of any type."""
    found: list[Any] = []
    for text in texts:
        given: list[Callable[[], Any]] = [
            lambda text=text: tokenizer.encode(text),
            lambda text=text: tokenizer.encode(text, dtype=list),
            lambda text=text: tokenizer.encode(text, dtype="int64"),
            lambda text=text: tokenizer.encode(text, bos=3),
            lambda text=text: tokenizer.encode(text, allowed_special="all"),
            lambda text=text: tokenizer.encode(text, disallowed_special="all"),
            lambda text=text: tokenizer.count(text),
            lambda text=text: tokenizer.token_to_id(text),
            lambda text=text: tokenizer.encode_with_offsets(text),
        ]
        found += map(outcome, given)
    for dtype in (None, list, "uint16"):
        found.append(outcome(lambda dtype=dtype: tokenizer.encode_batch(texts, dtype=dtype)))
        few = [text for text in texts if isinstance(text, (str, bytes))]
        found.append(outcome(lambda few=few, dtype=dtype: tokenizer.encode_batch(few, dtype=dtype)))
    return found


def calls_on_ids(tokenizer: Tokenizer, ids: list[Any]) -> list[Any]:
    """Return the outcomes of all calls that the module does on ids of any type."""
    found: list[Any] = []
    for row in ids:
        for errors in ("replace", "strict", "ignore", "unknown", "surrogateescape"):
            found.append(outcome(lambda row=row, errors=errors: tokenizer.decode(row, errors)))
            if errors == "strict" or type(row) is list:
                stream = outcome(lambda row=row, errors=errors: streamed(tokenizer, row, errors))
                found.append(stream)
        found.append(outcome(lambda row=row: tokenizer.decode(row)))
        found.append(outcome(lambda row=row: tokenizer.decode_bytes(row)))
        found.append(outcome(lambda row=row: tokenizer.decode_with_offsets(row)))
    for errors in ("replace", "strict"):
        found.append(outcome(lambda errors=errors: tokenizer.decode_batch(ids, errors)))
        usual = [row for row in ids if isinstance(row, list)][:1] * 2
        found.append(
            outcome(lambda rows=usual, errors=errors: tokenizer.decode_batch(rows, errors))
        )
    return found


def streamed(tokenizer: Tokenizer, ids: Any, errors: str) -> tuple[list[str], Any]:
    """Return the texts of a stream, and the error that ends it."""
    texts: list[str] = []
    stream = tokenizer.decode_stream(ids, errors)
    try:
        for text in stream:
            texts.append(text)
    except Exception as error:
        assert list(stream) == [], "a stream has ended with its error"
        return texts, (type(error), str(error))
    return texts, None


def random_ids(rng: random.Random, size: int) -> list[Any]:
    """Rows of ids in every type, some of them unknown."""
    few = [rng.randrange(size) for _ in range(rng.choice([0, 1, 8, 70, 300]))]
    numbers = [size, size + 1, -1, 1 << 31, 1 << 32, 1 << 63, 1 << 70]
    wrong = rng.choice([*numbers, True, 1.0, "a", None])
    mixed = [*few, wrong]
    rng.shuffle(mixed)
    small = [number % 128 for number in few[:100]]
    arrays = [np.array(small, np.int64).astype(dtype) for dtype in DTYPES]
    square, empty = np.zeros((2, 2), np.int32), np.zeros(3, "V0")
    shaped: list[Any] = [np.array(few, np.int64)[::2], square, empty, np.int64(3), 5, [[1], [2]]]
    data = bytes(small)
    others = [tuple(few), range(min(3, size)), memoryview(data), bytearray(small), data]
    return [few, mixed, *arrays, *shaped, *others, [np.uint32(number) for number in few[:3]], None]


def random_texts(rng: random.Random) -> list[Any]:
    data = random_text(rng)
    texts: list[Any] = [data, data.decode(errors="replace"), data.decode(errors="surrogateescape")]
    pieces = ["a", " b", "\ud83d", "\ude00", "é", "\udc80"]
    texts += ["".join(rng.choices(pieces, k=rng.randint(0, 9))), "", b"", np.str_("ab cd")]
    length = rng.choice([300, 520, 2100, 20_000, 70_000, 140_000, 300_000])
    whole = (texts[1] or " ab") * (length // max(1, len(texts[1] or " ab")) + 1)
    texts += [whole, whole.encode()]
    return [*texts, rng.choice([None, 3, ["a"], bytearray(b"a"), memoryview(b"a")])]


def check(rng: random.Random, vocabulary: Vocabulary) -> None:
    """Compare all calls by every way; and `encode` by the module that is used with what is not."""
    texts, ids = random_texts(rng), random_ids(rng, vocabulary.size)
    expected, device = None, rng.choice(["cpu", "auto"])
    for way in WAYS:
        with by(way):
            tokenizer = Tokenizer(vocabulary, device)
            outcome(lambda tokenizer=tokenizer: tokenizer.encode("a"))
            assert (tokenizer._coder is not None) == (way == "module")
            found = calls_on_texts(tokenizer, texts)
            if way != "ctypes":  # which decodes as "numpy" does
                found += calls_on_ids(tokenizer, ids)
        if expected is None:
            expected = found
        for number, (one, other) in enumerate(zip(found, expected, strict=way != "ctypes")):
            assert one == other, (way, number, str(one)[:1000], str(other)[:1000])


def main() -> None:
    path, module, seed, rounds = sys.argv[1:]
    vars(library)["LIBRARY"], vars(extension)["MODULE"] = Path(path), Path(module)
    rng = random.Random(int(seed))
    for _ in range(int(rounds)):
        check(rng, random_vocabulary(rng, rng.choice([*PATTERNS, REGEX])))
    print(f"{rounds} rounds")


if __name__ == "__main__":
    main()
