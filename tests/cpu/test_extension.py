"""The extension module: built, chosen, used by every call, and equal to ctypes and to NumPy."""

from __future__ import annotations

import _thread
import codecs
import ctypes
import gc
import inspect
import os
import random
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import BuiltinMethodType
from typing import Any

import numpy as np
import pytest

from llmgpu import Tokenizer
from llmgpu.bpe.encoding import encoder_c
from llmgpu.bpe.encoding.encoder_c import open_coder
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.cpu import build, extension, library
from llmgpu.errors import InputError, LlmgpuError
from llmgpu.tokenizer import encoders
from llmgpu.tokenizer import tokenizer as tokenizer_module
from llmgpu.tokenizer.decoding import Decoder
from tests.bpe.encoding.test_special_encoding import vocabulary
from tests.conftest import examples
from tests.cpu import calls
from tests.cpu.fuzz import random_vocabulary

HAS_COMPILER = shutil.which(os.environ.get("CC", "cc").split()[0]) is not None
HAS_HEADER = Path(sysconfig.get_paths()["include"], "Python.h").exists()
needs_module = pytest.mark.skipif(extension.extension() is None, reason="the module is not built")
needs_compiler = pytest.mark.skipif(
    not (HAS_COMPILER and HAS_HEADER) or sys.platform == "win32", reason="nothing can be built"
)
LONG = "low lower, newest 12 wide\n" * 8000  # is encoded by several threads where there are


@pytest.fixture
def tokenizer() -> Tokenizer:
    """A tokenizer whose calls go through the module."""
    made = Tokenizer(vocabulary(), "cpu")
    made.encode("a")
    assert made._coder is not None
    return made


@needs_compiler
def test_the_module_is_built_from_these_sources() -> None:
    if not {library.VARIABLE, extension.VARIABLE} & os.environ.keys():
        assert extension.describe() == "extension module", "run make setup"
        assert build.MODULE.name.endswith(".abi3.so") != build.IS_FREE_THREADED


@pytest.mark.slow
@needs_compiler
def test_nothing_in_the_source_is_warned_of(tmp_path: Path) -> None:
    warnings = ("-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror")
    build.build_module(tmp_path / "calls.abi3.so", warnings)
    assert [path.name for path in tmp_path.iterdir()] == ["calls.abi3.so"]


def test_without_a_header_the_engine_is_built_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "calls.so").touch()  # of an earlier build
    monkeypatch.setattr(build, "MODULE", tmp_path / "calls.so")
    monkeypatch.setattr(build, "build", lambda: None)
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    build.main()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("note: the module for calls is not built, ctypes is used: ")
    assert list(tmp_path.iterdir()) == []


def test_the_module_is_chosen_by_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(library.VARIABLE, raising=False)
    monkeypatch.setenv(extension.VARIABLE, "ctypes")
    assert extension.extension() is None
    if library.library() is not None:
        assert extension.describe() == "ctypes (LLMGPU_CALLS=ctypes)"
    monkeypatch.setenv(extension.VARIABLE, "fast")
    with pytest.raises(LlmgpuError, match="LLMGPU_CALLS=fast: use ctypes, or leave it out"):
        extension.extension()
    monkeypatch.delenv(extension.VARIABLE)
    monkeypatch.setenv(library.VARIABLE, "numpy")
    assert extension.describe() == "none, without the CPU engine"


def test_a_module_that_is_missing_or_is_none_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "calls.abi3.so"
    assert "was not built" in extension.load.__wrapped__(path)[1]
    path.write_bytes(b"\x7fELF")
    assert "can't be loaded" in extension.load.__wrapped__(path)[1]


@pytest.mark.slow
@needs_compiler
def test_a_module_of_other_sources_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "module_checksum", lambda: 1)
    build.build_module(tmp_path / "calls.abi3.so", ["-O0"])
    assert "was built from other sources" in extension.load(tmp_path / "calls.abi3.so")[1]


@needs_module
def test_another_interface_of_numpy_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extension, "_NUMPY_VERSIONS", ())
    assert "has another binary interface" in extension.load.__wrapped__(build.MODULE)[1]


@needs_module
def test_lists_of_another_form_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert extension._finds_items([None])
    for other in ([None, None], [[None]], []):  # the place of a None is looked at
        assert extension._finds_items(other) == (other[:1] == [None])
    monkeypatch.setattr(extension, "_finds_items", lambda one: False)
    assert "lists of Python" in extension.load.__wrapped__(build.MODULE)[1]


def test_the_numbers_of_functions_are_those_of_numpy() -> None:
    header = Path(np.get_include(), "numpy", "__multiarray_api.h")
    found = re.sub(r"\\\n", " ", header.read_text())
    source = (build.CALLS / "calls.h").read_text()
    names = {"PyArray_Type": "NDARRAY_TYPE", "PyArray_New": "NEW_ARRAY"}
    names |= {"PyArray_SetBaseObject": "SET_BASE"}
    for name, ours in names.items():
        (number,) = re.findall(rf"#define {name}\b[^#]*?PyArray_API\[(\d+)\]", found)
        assert re.findall(rf"#define {ours} (\d+)", source) == [number], name


@needs_module
def test_calls_do_not_go_through_python(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: object, **named: object) -> None:
        raise AssertionError("Python was called")

    ids = tokenizer.encode("a b").tolist()
    names = ("encode_document", "encode_documents", "_on_host")
    for name in names:
        monkeypatch.setattr(encoders.ProcessEncoders, name, refuse)
    monkeypatch.setattr(type(tokenizer.vocabulary), "decode", refuse)
    for text in ("a b", b"a b", LONG, LONG.encode(), LONG + "é", "\ud800"):
        assert tokenizer.encode(text, dtype=list) == tokenizer.encode(text).tolist()
        assert tokenizer.count(text) == len(tokenizer.encode_batch([text, text])[1])
    assert tokenizer.decode(ids) == tokenizer.decode(np.array(ids), "strict") == "a b"
    assert tokenizer.decode_bytes(ids) == b"a b"
    assert tokenizer.decode_batch([ids]) == ["a b"]
    assert "".join(tokenizer.decode_stream(ids)) == "a b"
    assert tokenizer.token_to_id("a") == ids[0]
    with pytest.raises(AssertionError, match="Python was called"):
        tokenizer.encode("a b", bos=3)


@needs_module
def test_without_the_module_ctypes_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[int] = []

    def encode(self: library.CEncoder, words: library.CSharedWords, text: bytes) -> Any:
        called.append(len(text))
        return original(self, words, text)

    original = library.CEncoder.encode_document
    monkeypatch.setattr(library.CEncoder, "encode_document", encode)
    with calls.by("ctypes"):
        made = Tokenizer(vocabulary(), "cpu")
        for text in ("a b", LONG):
            made.encode(text)
    assert called == [3, len(LONG)] and made._coder is None
    Tokenizer(vocabulary(), "cpu").encode("a b")
    assert len(called) == 2


@needs_module
@pytest.mark.parametrize("seed", range(examples(60)))
def test_every_way_gives_the_same(seed: int) -> None:
    rng = random.Random(seed)
    pattern = rng.choice(["gpt2", "cl100k", "o200k", "class", "none", calls.REGEX])
    calls.check(rng, random_vocabulary(rng, pattern))


@needs_module
def test_texts_of_every_length_end_where_they_do(tokenizer: Tokenizer) -> None:
    """From 513 bytes on a text is encoded where it is, but for its end."""
    text = "ab abc, ab\n\n  x 12'll " * 120
    expected = [Tokenizer(vocabulary(), "cpu").encode(text[:n], bos=3)[1:] for n in range(460, 700)]
    for text_bytes, ids in zip(range(460, 700), expected, strict=True):
        assert tokenizer.encode(text[:text_bytes]).tolist() == ids.tolist(), text_bytes
    for whole in ("x" * 9000, "é" * 5000, " " * 3000, "日" * 70_000, "ab " * 100_000):
        assert tokenizer.decode(tokenizer.encode(whole)) == whole


@needs_module
def test_results_are_the_callers(tokenizer: Tokenizer) -> None:
    for text in ("a b", LONG):
        first = tokenizer.encode(text)
        kept = first.copy()
        tokenizer.encode("zzz" * len(text))
        assert np.array_equal(first, kept)
        assert first.flags.writeable and first.flags.owndata
        first[:] = 0
        assert np.array_equal(tokenizer.encode(text), kept)
    one, two = tokenizer.encode_batch(["a b", "c"])
    assert one.base is two.base and len(one.base) == len(one) + len(two)


@needs_module
def test_methods_have_the_signatures_and_docs_of_python(tokenizer: Tokenizer) -> None:
    from llmgpu.tokenizer.tokenizer import _IN_PYTHON

    functions = {name: each for named in _IN_PYTHON.values() for name, each in named.items()}
    assert list(functions) == ["encode", "count", "decode", "decode_bytes", "token_to_id"]
    for name, function in functions.items():
        method = getattr(Tokenizer, name)
        assert method is not function
        expected = inspect.signature(function).parameters.values()
        found = inspect.signature(method).parameters.values()
        described = [
            [(each.name, each.default, each.kind) for each in parameters][1:]
            for parameters in (expected, found)
        ]
        assert described[0] == described[1]
        assert inspect.getdoc(method) == inspect.getdoc(function)


@needs_module
@pytest.mark.parametrize(("dtype", "kind"), [(list, "list"), ("int64", "int64"), (None, "uint32")])
def test_the_type_of_a_tokenizer_is_that_of_its_calls(dtype: Any, kind: str) -> None:
    tokenizer = Tokenizer(vocabulary(), "cpu", dtype=dtype)
    for _ in range(2):  # by Python, which opens the module; by the module
        ids = tokenizer.encode("low lower")
        assert getattr(ids, "dtype", type(ids).__name__) == kind
        [ids] = tokenizer.encode_batch(["low lower"])
        assert getattr(ids, "dtype", type(ids).__name__) == kind
        assert tokenizer.encode("low lower", dtype=list) == [*map(int, ids)]
        assert tokenizer.decode(ids) == "low lower"
        assert tokenizer.encode_with_offsets("low")[0].dtype == np.uint32


@needs_module
def test_methods_of_subclasses_are_called(tokenizer: Tokenizer) -> None:
    class Loud(Tokenizer):
        def encode(self, text: Any, **options: Any) -> Any:
            return super().encode(text.upper(), **options)

    loud = Loud(vocabulary(), "cpu")
    for _ in range(2):
        assert loud.encode("ab").tolist() == tokenizer.encode("AB").tolist()
        assert loud.encode("ab", dtype=list) == tokenizer.encode("AB", dtype=list)


@needs_module
def test_methods_that_are_kept_before_the_first_call_are_the_modules() -> None:
    made = Tokenizer(vocabulary(), "cpu")
    kept = made.encode, made.decode
    assert [type(each) for each in kept] == [BuiltinMethodType] * 2
    assert kept[1](kept[0]("a b")) == "a b"


@pytest.mark.parametrize("way", ["module", "ctypes"])
def test_a_str_of_a_subclass_is_its_characters(way: str) -> None:
    class Odd(str):
        def encode(self, *given: Any, **named: Any) -> bytes:
            return b"b"

        def isascii(self) -> bool:
            raise AssertionError("the method of a subclass was called")

    with calls.by(way):
        made = Tokenizer(vocabulary(), "cpu")
        for text in ("ab", "a\ud800", "\u00e9" * 20_000):
            assert made.encode(Odd(text), dtype=list) == made.encode(text, dtype=list)
            assert made.encode(Odd(text), bos=1).tolist() == made.encode(text, bos=1).tolist()


@needs_module
def test_functions_of_python_keep_their_types(monkeypatch: pytest.MonkeyPatch) -> None:
    """Types that are set on a function of `ctypes.pythonapi` hold for the whole process."""
    function = ctypes.pythonapi.PyCapsule_GetPointer
    monkeypatch.setattr(function, "restype", ctypes.c_short)
    assert extension.load.__wrapped__(build.MODULE)[1] == ""
    assert function.restype is ctypes.c_short


@needs_module
def test_a_method_that_somebody_has_replaced_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def ours(self: Tokenizer, text: str) -> str:
        return text

    monkeypatch.setattr(Tokenizer, "encode", ours)
    made = Tokenizer(vocabulary(), "cpu")
    made.encode_batch(["a"])
    assert made.encode("a") == "a"


@needs_module
def test_methods_call_those_of_a_subclass(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Twice(Tokenizer):
        def encode(self, text: Any, **options: Any) -> Any:
            return super().encode(text * 2, **options)

    class Loud(Tokenizer):
        def decode_bytes(self, ids: Any) -> bytes:
            return super().decode_bytes(ids).upper()

    class Quoting(Tokenizer):
        def decode(self, ids: Any, errors: str = "replace", **options: Any) -> str:
            return f"'{super().decode(ids, errors, **options)}'"

        def decode_single_token_bytes(self, token_id: int) -> Any:
            return "not of streams"

    twice, loud, quoting = (kind(vocabulary(), "cpu") for kind in (Twice, Loud, Quoting))
    for _ in range(2):  # by Python, which opens the module; by the module
        assert twice.count("zq") == 4
        assert loud.decode([97]) == "A" and loud.decode_batch([[97]]) == ["A"]
        assert quoting.decode_batch([[97]]) == ["'a'"]
        numbers: Any = [np.uint32(97), 98]
        assert [*quoting.decode_stream(numbers)] == ["a", "b"]
    monkeypatch.setattr(tokenizer, "encode", lambda text, **options: np.array([97] * len(text)))
    assert tokenizer.count("<<") == 2
    assert tokenizer.encode_with_offsets("aa")[0].tolist() == [97, 97]
    monkeypatch.undo()
    assert tokenizer.count("<<") == 1


@needs_module
def test_a_method_that_is_put_back_is_replaced_again(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by two threads, both of which find the function of Python."""
    function = tokenizer_module._IN_PYTHON[Tokenizer]["encode"]
    for _ in range(2):
        monkeypatch.setattr(Tokenizer, "encode", function)
        made = Tokenizer(vocabulary(), "cpu")
        assert made.encode("ab").tolist() == made.encode("ab").tolist()
        assert vars(Tokenizer)["encode"] is not function
    with pytest.raises(ValueError, match="replaces another function"):
        extension.extension().method(Tokenizer, "encode", len, "")


@needs_module
def test_threads_that_open_the_module_share_a_coder(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that is second to make a coder gets the first one's."""
    made = Tokenizer(vocabulary(), "cpu")

    def open_twice(given: Vocabulary, most_bytes: int) -> Any:
        monkeypatch.setattr(encoder_c, "open_coder", open_coder)
        others.append(made._open_coder(encodes=True))  # in another thread
        return open_coder(given, most_bytes)

    others: list[Any] = []
    monkeypatch.setattr(encoder_c, "open_coder", open_twice)
    coder = made._open_coder(encodes=True)
    assert coder is others[0] is made._coder
    assert coder.encode("ab") is not None


@needs_module
def test_a_coder_that_only_decodes_never_replaces_one_that_encodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = Tokenizer(vocabulary(), "cpu")

    def open_late(given: Vocabulary, most_bytes: int | None) -> Any:
        monkeypatch.setattr(encoder_c, "open_coder", open_coder)
        made.encode("a")  # in another thread
        full.append(made._coder)
        return open_coder(given, most_bytes)

    full: list[Any] = []
    monkeypatch.setattr(encoder_c, "open_coder", open_late)
    assert made._open_coder(encodes=False).encode("ab") is not None
    assert made._open_coder(encodes=False) is made._coder is full[0]


def test_a_missing_module_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking for it takes longer than decoding a short document."""
    made, looks = Tokenizer(vocabulary(), "cpu"), list[None]()
    monkeypatch.setattr(extension, "extension", lambda: looks.append(None))
    monkeypatch.setattr(extension, "bind_methods", lambda methods: None)
    decode = tokenizer_module._IN_PYTHON[Decoder]["decode_bytes"]
    assert [decode(made, ids) for ids in ([97], [98])] == [b"a", b"b"]
    assert len(looks) == 1


@needs_module
def test_a_coder_is_complete_when_other_threads_find_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Tokenizer(vocabulary(), "cpu", dtype=list)
    found: list[Any] = []

    class Watching:
        def __setattr__(self, name: str, value: Any) -> None:
            found.append(made._coder)
            setattr(coder, name, value)

    coder, watching = open_coder(made.vocabulary, 100), Watching()
    monkeypatch.setattr(encoder_c, "open_coder", lambda *arguments: watching)
    assert made._open_coder(encodes=True) is watching
    assert found == [None]


@needs_module
@pytest.mark.parametrize("dtype", ["uint8", "int64"])
def test_a_count_fails_as_the_ids_do(dtype: str) -> None:
    """Ids beyond those of the type are an error in the first call, and in all others."""
    tokenizer = Tokenizer(vocabulary(), "cpu", dtype=dtype)
    for text, count in (("ab", 1), ("a", 1)) * 2:
        if dtype == "uint8" and text == "ab":
            with pytest.raises(InputError, match="does not fit in uint8"):
                tokenizer.count(text)
        else:
            assert tokenizer.count(text) == count


@needs_module
def test_rows_of_an_iterator_are_decoded_as_they_come(tokenizer: Tokenizer) -> None:
    def rows() -> Iterator[Any]:
        row = np.zeros(1, np.int64)
        for row[0] in (97, 98):
            yield row

    assert tokenizer.decode_batch(rows()) == ["a", "b"]
    assert tokenizer.decode_batch([[97], [98]]) == ["a", "b"]


@pytest.mark.parametrize("way", ["module", "ctypes"])
@pytest.mark.parametrize(("text", "after"), [(b"x" * 9, 1), (b"x" * 999, 0), (b"x" * 99, 99)])
def test_an_error_handler_may_change_the_bytes_of_a_stream(
    way: str, text: bytes, after: int
) -> None:
    def change(error: Any) -> tuple[str, int]:
        error.object = text
        return "?", after

    codecs.register_error("llmgpu.changing", change)
    with calls.by(way):
        tokenizer = Tokenizer(vocabulary(), "cpu")
        tokenizer.decode([97])
        found = [*tokenizer.decode_stream([255, 97, 255, 98], "llmgpu.changing")]
    changed = "?" + "x" * (len(text) - after)
    assert found[0] == changed and len(found) == 4
    with pytest.raises(ValueError, match="null character"):
        [*tokenizer.decode_stream([97], "replace\0")]


@needs_module
@pytest.mark.parametrize("place", [0, 50_000, 100_000])
def test_the_module_survives_a_handler_that_changes_bytes(tokenizer: Tokenizer, place: int) -> None:
    def change(error: Any) -> tuple[str, int]:
        error.object = b"x" * 100_000
        return "?", place

    codecs.register_error("llmgpu.changing", change)
    stream = tokenizer._coder.stream([255, 97, 240, 98], "llmgpu.changing", None)
    assert next(stream) == "?" + "x" * (100_000 - place)
    assert next(stream) == "a"


@needs_module
def test_a_handler_that_leaves_many_bytes_ends_a_stream(tokenizer: Tokenizer) -> None:
    def change(error: Any) -> tuple[str, int]:
        error.object = b""
        return "?", 0

    codecs.register_error("llmgpu.changing", change)
    stream = tokenizer._coder.stream([255] * 20, "llmgpu.changing", None)
    with pytest.raises(ValueError, match=r"llmgpu\.changing leaves too many bytes"):
        list(stream)
    assert list(tokenizer.decode_stream([255] * 20, "llmgpu.changing")) == ["?"] * 21


@needs_module
@pytest.mark.parametrize("call", ["encode", "encode_batch", "count"])
def test_python_goes_on_during_a_long_text(tokenizer: Tokenizer, call: str) -> None:
    """Threads take turns only where one lets the others go on: within the call, or after it."""
    text = LONG * 20
    given: Any = [text] if call == "encode_batch" else text
    method = getattr(tokenizer, call)

    def goes_on() -> bool:
        results: list[Any] = []
        thread = threading.Thread(target=lambda: results.append(method(given)))
        thread.start()
        has_ended = bool(results)
        thread.join()
        assert results
        return not has_ended

    interval = sys.getswitchinterval()
    sys.setswitchinterval(100)
    try:
        # A busy machine may run this thread too late.
        assert any(goes_on() for _ in range(50))
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.parametrize("way", ["module", "ctypes"])
def test_threads_have_the_ids_of_one(way: str) -> None:
    if library.library() is None:
        pytest.skip("the CPU engine is not built")
    texts = [f"{LONG[: 900 * k]} ab{k}" for k in range(24)]
    with calls.by(way):
        expected = [Tokenizer(vocabulary(), "cpu").encode(text).tolist() for text in texts]
        shared = Tokenizer(vocabulary(), "cpu")
        found: dict[int, list[Any]] = {}

        def work(number: int) -> None:
            order = random.Random(number).sample(range(24), 24)
            found[number] = [(k, shared.encode(texts[k]).tolist()) for k in order]

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(found) == 8
    assert all(ids == expected[k] for results in found.values() for k, ids in results)


def test_a_long_str_is_encoded_in_its_own_memory_by_ctypes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine reads the str in place. A search for special tokens, and NumPy, read a copy."""
    if library.library() is None:
        pytest.skip("the CPU engine is not built")

    def encode(self: library.CEncoder, words: library.CSharedWords, text: Any) -> Any:
        given.append(type(text))
        return original(self, words, text)

    original, given = library.CEncoder.encode_document, list[type]()
    text = (LONG * 2)[: tokenizer_module.SHARED_FROM]
    expected = {}
    with calls.by("ctypes"):
        made = Tokenizer(vocabulary(), "cpu")
        for each in (text, text + " <|b|>", text + "é", text[1:]):
            expected[each] = made.encode(each.encode()).tolist()
        monkeypatch.setattr(library.CEncoder, "encode_document", encode)
        found = {each: made.encode(each).tolist() for each in expected}
        assert given == [memoryview, memoryview, bytes, bytes]
        special = made.encode(text + " <|b|>", allowed_special="all").tolist()
        with pytest.raises(InputError, match="b"):
            made.encode(text + " <|b|>", disallowed_special="all")
    assert found == expected
    with calls.by("numpy"):
        plain = Tokenizer(vocabulary(), "cpu")
        assert plain.encode(text + " <|b|>").tolist() == expected[text + " <|b|>"]
        assert plain.encode(text + " <|b|>", allowed_special="all").tolist() == special
    memory = library.bytes_of(text)
    assert memory is not None and memory.readonly and bytes(memory) == text.encode()


def test_two_documents_are_encoded_at_once_by_ctypes(monkeypatch: pytest.MonkeyPatch) -> None:
    if library.library() is None:
        pytest.skip("the CPU engine is not built")
    both = threading.Barrier(2, timeout=60)

    def encode(self: library.CEncoder, words: library.CSharedWords, text: bytes) -> Any:
        both.wait()
        return original(self, words, text)

    with calls.by("ctypes"):
        made = Tokenizer(vocabulary(), "cpu")
        made.encode("a")
        original = library.CEncoder.encode_document
        monkeypatch.setattr(library.CEncoder, "encode_document", encode)
        threads = [threading.Thread(target=made.encode, args=(text,)) for text in ("a b", "c d")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not both.broken


@needs_module
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_forked_processes_encode(tokenizer: Tokenizer) -> None:
    """Also if threads of the parent are encoding during the fork."""
    expected = tokenizer.encode(LONG).tolist()
    is_over = threading.Event()

    def work() -> None:
        while not is_over.is_set():
            tokenizer.encode(LONG)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            child = os.fork()
            if child == 0:
                same = tokenizer.encode(LONG).tolist() == expected
                os._exit(0 if same and tokenizer.decode(expected) == LONG else 1)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    assert tokenizer.encode(LONG).tolist() == expected


@needs_module
def test_an_interrupt_ends_a_loop_of_calls(tokenizer: Tokenizer) -> None:
    threading.Timer(0.05, _thread.interrupt_main).start()
    with pytest.raises(KeyboardInterrupt):
        while True:
            tokenizer.encode(LONG)
    assert tokenizer.decode(tokenizer.encode(LONG)) == LONG


@needs_module
def test_an_error_of_the_ids_ends_a_stream(tokenizer: Tokenizer) -> None:
    def ids() -> Iterator[int]:
        yield 97
        raise KeyError("no more")

    stream = tokenizer.decode_stream(ids())
    assert next(stream) == "a"
    with pytest.raises(KeyError, match="no more"):
        next(stream)
    assert list(stream) == []
    streams: list[Iterator[str]] = []
    streams.append(tokenizer.decode_stream(int(next(streams[0])) for _ in range(2)))
    with pytest.raises(ValueError, match="in use already"):
        next(streams[0])


@needs_module
def test_a_stream_in_a_circle_is_freed(tokenizer: Tokenizer) -> None:
    class Owner:
        def __init__(self) -> None:
            self.stream = tokenizer.decode_stream(self.ids())
            next(self.stream)

        def ids(self) -> Iterator[int]:
            yield 97
            yield len(vars(self))

    gone = weakref.ref(Owner())
    gc.collect()
    assert gone() is None


def used_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@needs_module
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory can't be measured here")
def test_memory_stays_flat(tokenizer: Tokenizer) -> None:
    texts: list[Any] = ["a b", LONG[:5000], LONG[:5000] + "é", "\ud800", b"ab", None]
    ids: list[Any] = [[97, 98], np.array([97], np.int16), [97, 1 << 40], ["a"], [98] * 300]

    def repeat(times: int) -> None:
        for _ in range(times):
            calls.calls_on_texts(tokenizer, texts)
            calls.calls_on_ids(tokenizer, ids)
            tokenizer.encode(LONG)
            next(tokenizer.decode_stream(iter([97])))
            Tokenizer(vocabulary(), "cpu").encode("a")

    repeat(12)
    gc.collect()
    objects = *texts[:-1], *ids, *tokenizer.encode("ab abc <<", dtype=list), list
    counts = [*map(sys.getrefcount, objects)]
    before = used_bytes(), sys.getallocatedblocks()
    repeat(12)
    gc.collect()
    assert used_bytes() - before[0] < 3 << 20
    assert sys.getallocatedblocks() - before[1] < 2000
    assert counts == [*map(sys.getrefcount, objects)]


@needs_module
def test_a_tokenizer_is_freed(tokenizer: Tokenizer) -> None:
    made: Callable[[], Tokenizer] = lambda: Tokenizer(vocabulary(), "cpu")  # noqa: E731
    one = made()
    one.encode("a", dtype=list)
    gone = weakref.ref(one)
    del one
    gc.collect()
    assert gone() is None


@needs_module
def test_help_loads_no_module() -> None:
    program = (
        "import sys; sys.argv = ['llmgpu', '--help']\n"
        "from llmgpu.__main__ import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "assert 'llmgpu.cpu.extension' not in sys.modules and 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.slow
@needs_compiler
def test_a_compiler_that_refuses_the_module_leaves_the_engine(tmp_path: Path) -> None:
    compiler = tmp_path / "cc"
    refusing = 'case "$*" in *calls.c*) echo error; exit 1;; esac'
    compiler.write_text(f'#!/bin/sh\n{refusing}\nexec cc "$@"\n')
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    program = (
        "import sys; from pathlib import Path; from llmgpu.cpu import build\n"
        "build.LIBRARY, build.MODULE = (Path(sys.argv[1], name) for name in ('e.so', 'c.so'))\n"
        "real = build.build; build.build = lambda: real(build.LIBRARY, ['-O0']); build.main()"
    )
    environment = os.environ | {"CC": str(compiler)}
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "the module for calls is not built, ctypes is used" in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"cc", "e.so"}
