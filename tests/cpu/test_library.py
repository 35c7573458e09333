"""The library of the CPU engine: building it, choosing it, and its functions against NumPy's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from llmgpu.bpe.pretokens.blocks import Pattern
from llmgpu.bpe.pretokens.names import PATTERNS
from llmgpu.bpe.pretokens.pattern import get_pattern
from llmgpu.bpe.pretokens.slices import Slice
from llmgpu.bpe.pretokens.unicode_classes import VERSIONS
from llmgpu.bpe.words import count_host
from llmgpu.bpe.words.count_host import EngineCountTable
from llmgpu.cpu import build, library
from llmgpu.errors import LlmgpuError
from llmgpu.text.corpus import corpus_from_bytes
from tests.bpe.patterns import start_mask
from tests.bpe.word_lists import listed
from tests.cli.conftest import run_here
from tests.conftest import examples
from tests.cpu.texts import CHARACTERS, MOSTLY_ASCII, ends_of

HAS_COMPILER = shutil.which(os.environ.get("CC", "cc").split()[0]) is not None
needs_engine = pytest.mark.skipif(library.library() is None, reason="the CPU engine is not built")


@needs_engine
def test_every_pattern_has_a_rule_of_the_engine_but_those_of_own_expressions() -> None:
    for name in PATTERNS:
        assert not get_pattern(name).for_engine().is_marked, name
    assert get_pattern(r"regex:\w+").for_engine().is_marked


@pytest.mark.skipif(not HAS_COMPILER, reason="there is no C compiler")
def test_the_library_is_built_from_these_sources() -> None:
    if os.environ.get(library.VARIABLE) != "numpy":
        assert library.describe() == "C", "run make setup"


@pytest.mark.slow
@pytest.mark.skipif(not HAS_COMPILER, reason="there is no C compiler")
def test_nothing_in_the_sources_is_warned_of(tmp_path: Path) -> None:
    warnings = ("-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror")
    build.build(tmp_path / "engine.so", warnings)
    assert [path.name for path in tmp_path.iterdir()] == ["engine.so"]


def test_a_build_that_fails_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("LIBRARY", "MODULE"):
        monkeypatch.setattr(build, name, tmp_path / name)
        (tmp_path / name).touch()  # of an earlier build
    for compiler in ("/nowhere/cc", "false"):
        monkeypatch.setenv("CC", compiler)
        build.main()
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1
        assert lines[0].startswith("note: the CPU engine is not built, NumPy is used: ")
        assert list(tmp_path.iterdir()) == []


def test_the_engine_is_chosen_by_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(library.VARIABLE, "numpy")
    assert library.library() is None
    assert library.describe() == "NumPy (LLMGPU_CPU=numpy)"
    monkeypatch.setenv(library.VARIABLE, "fortran")
    with pytest.raises(LlmgpuError, match="LLMGPU_CPU=fortran: use c or numpy"):
        library.library()


@pytest.mark.parametrize("content", [None, b"not a library"])
def test_a_library_that_does_not_load_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    path = tmp_path / "engine.so"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setattr(library, "LIBRARY", path)
    monkeypatch.delenv(library.VARIABLE, raising=False)
    assert library.library() is None
    assert str(path) in library.describe()
    monkeypatch.setenv(library.VARIABLE, "c")
    with pytest.raises(LlmgpuError, match=r"LLMGPU_CPU=c: .*engine\.so"):
        library.library()


def test_a_command_says_that_the_library_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "LIBRARY", tmp_path / "engine.so")
    monkeypatch.delenv(library.VARIABLE, raising=False)
    (tmp_path / "text.txt").write_text("low lower lowest " * 20)
    made, sizes = ("--vocab", "v.bin"), ("--dim", "32", "--layers", "1", "--heads", "2")
    steps = ("--seq-len", "16", "--steps", "1", "-o", "run")
    commands = (
        ("bpe-train", "text.txt", "--vocab-size", "260", "-o", "v.bin", "--force"),
        ("tokenize", "text.txt", *made, "-o", "ids.bin"),
        ("count", "text.txt", *made),
        ("train", "text.txt", *made, *sizes, *steps, "--force"),
        ("generate", "run", "--prompt", "low", "--max-new-tokens", "1"),
        ("score", "run", "text.txt"),
    )
    note = b"note: NumPy replaces the CPU engine, which is up to 14 times faster: "
    for command in (
        *commands,
        ("bpe-train", "text.txt", "--counts-only", "--save-counts", "c"),
    ):
        done = run_here(tmp_path, (*command, "--device", "cpu"), b"")
        assert done.returncode == 0, done.stderr
        assert done.stderr.count(note) == 1, (command, done.stderr)
        assert b"engine.so was not built" in done.stderr
    quiet = run_here(tmp_path, (*commands[1], "--device", "cpu", "--quiet"), b"")
    assert (quiet.returncode, quiet.stderr) == (0, b"")
    monkeypatch.setenv(library.VARIABLE, "numpy")
    assert note not in run_here(tmp_path, (*commands[1], "--device", "cpu"), b"").stderr


@pytest.mark.slow
@pytest.mark.skipif(not HAS_COMPILER, reason="there is no C compiler")
def test_a_library_of_other_sources_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "sources_checksum", lambda: 1)
    build.build(tmp_path / "engine.so", ["-O0"])
    assert "was built from other sources" in library.load(tmp_path / "engine.so")[1]


def test_info_says_what_computes() -> None:
    command = [sys.executable, "-m", "llmgpu", "info"]
    environment = os.environ | {library.VARIABLE: "numpy"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert "cpu: NumPy (LLMGPU_CPU=numpy)" in done.stdout.splitlines()


@needs_engine
@settings(max_examples=examples(300))
@given(
    st.lists(st.sampled_from(CHARACTERS), min_size=1, max_size=30).map(b"".join),
    st.sampled_from(sorted(PATTERNS)),
    st.sampled_from(VERSIONS),
)
def test_pretokens_end_where_numpy_says(text: bytes, name: str, unicode: str) -> None:
    pattern = get_pattern(name, unicode)
    mask = start_mask(np.frombuffer(text, np.uint8), pattern, np.zeros(1, np.int64))
    expected = [*np.flatnonzero(mask).tolist()[1:], len(text)]
    assert ends_of(pattern.for_engine(), text) == expected


@needs_engine
@pytest.mark.parametrize("name", ["gpt2", "cl100k", "o200k", "qwen2"])
def test_characters_beyond_ascii_are_cut_anywhere_in_a_block(name: str) -> None:
    parts = ["é", "É", "’", "“a", "x\u0301y", "日本", "\xa0", "²", "a—b", "'ſ", "ıŞğ"]
    texts = [
        ("ab " * 60)[: 100 + before] + part + after
        for part in parts
        for after in ("", " word", "word 12", "!\n\n", "'s é")
        for before in range(0, 66, 3)
    ]
    documents = [each.encode() for text in texts for each in (text, " cd! é")]
    data = np.frombuffer(b"".join(documents), np.uint8)
    starts = np.cumsum([0, *map(len, documents)])
    found = np.flatnonzero(start_mask(data, name, starts[:-1]))
    pattern = get_pattern(name).for_engine()
    padded = np.concatenate([data, np.zeros(library.TEXT_PADDING, np.uint8)])
    room = np.empty(len(data), np.int64)
    for begin, end in pairwise(starts.tolist()):  # other characters follow, whose bytes don't count
        count = pattern._call("pretoken_ends", padded[begin:], end - begin, room)
        first, stop = np.searchsorted(found, [begin + 1, end])
        expected = [*(found[first:stop] - begin), end - begin]
        assert room[:count].tolist() == expected, padded[begin:end].tobytes()


@needs_engine
@pytest.mark.parametrize("name", ["gpt2", "cl100k", "o200k"])
def test_each_byte_of_ascii_is_classified_in_a_block(name: str) -> None:
    pattern = get_pattern(name).for_engine()
    for byte in map(chr, range(128)):
        text = f"ab{byte}12{byte} {byte}Cd".encode() + b" word" * 12
        mask = start_mask(np.frombuffer(text, np.uint8), name, np.zeros(1, np.int64))
        expected = [*np.flatnonzero(mask).tolist()[1:], len(text)]
        assert ends_of(pattern, text) == expected, byte


@needs_engine
@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(st.sampled_from(MOSTLY_ASCII), min_size=1, max_size=6, unique=True).flatmap(
        lambda some: st.lists(st.sampled_from(some), min_size=20, max_size=90).map(b"".join)
    ),
    st.sampled_from(["gpt2", "cl100k", "o200k", "qwen2", "nanochat"]),
)
def test_pretokens_of_blocks_end_where_numpy_says(text: bytes, name: str) -> None:
    mask = start_mask(np.frombuffer(text, np.uint8), name, np.zeros(1, np.int64))
    expected = [*np.flatnonzero(mask).tolist()[1:], len(text)]
    assert ends_of(get_pattern(name).for_engine(), text) == expected


@needs_engine
def test_marks_beyond_the_text_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    marked = Pattern.start_mask

    def mark(*arguments: Any, **options: Any) -> NDArray[np.bool_]:
        mask = marked(*arguments, **options)
        return np.append(mask, [False, True])[: len(mask)]

    monkeypatch.setattr(Pattern, "start_mask", mark)
    words = count_host.count_words(corpus_from_bytes([b"ab cd"]), r"regex:\w+|\W+")
    assert sorted(listed(words)) == [(b" ", 1), (b"ab", 1), (b"cd", 1)]


@needs_engine
@settings(max_examples=examples(300))
@given(
    st.lists(st.sampled_from(CHARACTERS) | st.binary(max_size=9), max_size=20).map(b"".join),
    st.text(max_size=40),
)
def test_utf8_is_valid_up_to_where_python_says(some: bytes, valid: str) -> None:
    engine = library.library()
    assert engine is not None
    for text in (some, valid.encode(errors="replace") + some):
        try:
            text.decode()
            expected = len(text)
        except UnicodeDecodeError as error:
            expected = error.start
        assert engine.llmgpu_valid_utf8(text, len(text)) == expected


@needs_engine
@pytest.mark.skipif(sys.platform != "linux", reason="limits addresses as Linux does")
def test_memory_that_is_not_there_is_an_error_line() -> None:
    program = (
        "import resource, numpy as np\n"
        "from llmgpu.bpe.pretokens.pattern import get_pattern\n"
        "from llmgpu.bpe.pretokens.slices import Slice\n"
        "from llmgpu.bpe.words.count_host import EngineCountTable\n"
        "from llmgpu.errors import LlmgpuError\n"
        "text = np.random.default_rng(1).integers(0, 256, 8 << 20, np.uint8)\n"
        "starts = np.zeros(1, np.int64)\n"
        "table = EngineCountTable(get_pattern('gpt2'))\n"
        "piece = Slice(text[:-16], starts, True, buffer=text, main_end=len(text) - 16)\n"
        "pages = int(open('/proc/self/statm').read().split()[0])\n"
        "limit = pages * resource.getpagesize() + (24 << 20)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n"
        "try:\n"
        "    table.add(piece)\n"
        "except LlmgpuError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.startswith("not enough memory for the words of the text"), done.stderr
    assert (done.stdout.count("\n"), done.stderr) == (1, "")


@needs_engine
def test_counts_have_64_bits() -> None:
    counters = [EngineCountTable(get_pattern("gpt2")) for _ in range(2)]
    text = np.frombuffer(b"a" + bytes(library.TEXT_PADDING), np.uint8)
    for counter in counters:
        counter.add(Slice(text[:1], np.zeros(1, np.int64), closed=True, buffer=text, main_end=1))
    # Each takes the other's words in turn: Fibonacci's numbers.
    for k in range(60):
        counters[k % 2].absorb(counters[1 - k % 2])
    expected = [1, 1]
    for k in range(60):
        expected[k % 2] += expected[1 - k % 2]
    for k, counter in enumerate(counters):
        assert counter.words().counts.tolist() == [expected[k]]
    assert min(expected) > 1 << 32
