"""The Python API, in one process and in children of it."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

import llmgpu
from llmgpu import Tokenizer
from llmgpu.bpe.interchange import huggingface
from llmgpu.bpe.interchange import tiktoken as rank_files
from llmgpu.bpe.vocabulary.file import ChatTemplate
from llmgpu.bpe.vocabulary.spelling import chunks_of
from llmgpu.errors import DeviceError, InputError, LlmgpuError, OutputError, VocabularyError
from llmgpu.text.corpus import CorpusOptions
from llmgpu.tokenizer.encoders import HOST_BYTES
from tests.bpe.encoding.test_special_encoding import DOCUMENTS, SPECIAL, UNEQUAL, peer, vocabulary
from tests.bpe.plain.test_recount_gpu import words
from tests.cli.conftest import ROOT, environment
from tests.conftest import require_adapter
from tests.reference.bpe import EXPRESSIONS

SURROGATES = st.text(st.sampled_from("ab \ud83d\ude00\udc80\ud800é😀"), max_size=8)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(vocabulary(), "cpu")


@pytest.fixture(params=["cpu", "gpu"])
def any_tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    if request.param == "gpu":
        require_adapter()
    return Tokenizer(vocabulary(), request.param)


@given(DOCUMENTS, st.booleans(), st.sampled_from([None, 3, SPECIAL[0]]), st.sampled_from([None, 4]))
def test_a_document_at_once_has_the_ids_of_a_batch(
    documents: list[str], allows: bool, bos: int | str | None, eos: int | None
) -> None:
    made = Tokenizer(vocabulary(), "cpu")
    allowed = UNEQUAL if allows else ()
    batch = made.encode_batch(documents, allowed_special=allowed, bos=bos, eos=eos)
    for text, expected in zip(documents, batch, strict=True):
        found = made.encode(text, allowed_special=allowed, bos=bos, eos=eos)
        assert found.dtype == np.uint32
        assert found.tolist() == expected.tolist()


def long_text() -> str:
    return words(3, 30_000, 900).decode() + "".join(SPECIAL) * 100


@given(DOCUMENTS)
def test_ids_are_those_of_tiktoken(documents: list[str]) -> None:
    made = Tokenizer(vocabulary(), "cpu")
    expected = [peer().encode(text, allowed_special=set(UNEQUAL)) for text in documents]
    found = made.encode_batch(documents, allowed_special=UNEQUAL)
    assert [ids.tolist() for ids in found] == expected
    assert all(ids.dtype == np.uint32 and ids.ndim == 1 for ids in found)
    for text, ids in zip(documents, expected, strict=True):
        assert made.encode(text, allowed_special=UNEQUAL).tolist() == ids
        assert made.encode(text.encode(), allowed_special=frozenset(UNEQUAL)).tolist() == ids
        assert made.decode(ids) == text


@given(SURROGATES)
def test_surrogates_are_those_of_tiktoken(text: str) -> None:
    made = Tokenizer(vocabulary(), "cpu")
    assert made.encode(text).tolist() == peer().encode(text, disallowed_special=())


@given(st.lists(st.binary(max_size=20), max_size=5))
def test_bytes_come_back(texts: list[bytes]) -> None:
    made = Tokenizer(vocabulary(), "cpu")
    found = made.encode_batch(texts, bos=SPECIAL[0], eos=SPECIAL[1])
    bos, eos = SPECIAL[0].encode(), SPECIAL[1].encode()
    assert [made.decode_bytes(ids) for ids in found] == [bos + text + eos for text in texts]


def test_long_texts_on_any_device(any_tokenizer: Tokenizer, tokenizer: Tokenizer) -> None:
    text = long_text()
    assert len(text) > HOST_BYTES
    assert any_tokenizer.decode(any_tokenizer.encode(text)) == text
    arguments: dict[str, Any] = {"allowed_special": "all", "bos": 3}
    ids = any_tokenizer.encode(text, **arguments)
    np.testing.assert_array_equal(ids, tokenizer.encode(text, **arguments))
    pieces = [text[i : i + 1000] for i in range(0, len(text), 1000)]
    for found, piece in zip(any_tokenizer.encode_batch(pieces), pieces, strict=True):
        np.testing.assert_array_equal(found, tokenizer.encode(piece))


def test_files(any_tokenizer: Tokenizer, tmp_path: Path) -> None:
    text = long_text()
    (tmp_path / "a.txt").write_text(text)
    (tmp_path / "b.txt").write_text("short")
    both = any_tokenizer.encode_file(tmp_path, eos=1)
    expected = [any_tokenizer.encode(part, eos=1) for part in (text, "short")]
    np.testing.assert_array_equal(both, np.concatenate(expected))
    names = [str(tmp_path / "b.txt"), tmp_path / "b.txt"]
    assert any_tokenizer.decode(any_tokenizer.encode_file(names)) == "shortshort"
    reading = CorpusOptions(separators=(b"o",))
    assert any_tokenizer.decode(any_tokenizer.encode_file(names[0], reading=reading)) == "shrt"
    with pytest.raises(InputError, match=r"missing\.txt"):
        any_tokenizer.encode_file("missing.txt")


def test_results_are_the_callers(tokenizer: Tokenizer) -> None:
    before = tokenizer.encode("abab abab").tolist()
    tokenizer.encode("abab abab")[:] = 7
    assert tokenizer.encode("abab abab").tolist() == before
    assert tokenizer.encode("").shape == (0,) and tokenizer.encode("").dtype == np.uint32
    assert tokenizer.encode_batch([]) == []
    tokenizer.special_tokens.clear()
    assert list(tokenizer.special_tokens) == list(SPECIAL)
    assert tokenizer.vocab_size == tokenizer.vocabulary.size == 272
    assert repr(tokenizer) == "<Tokenizer: 272 ids, pattern gpt2, device 'cpu'>"


def test_decoding(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(b"a\xff\xe2\x98")
    assert tokenizer.decode_bytes(ids) == b"a\xff\xe2\x98"
    assert tokenizer.decode(ids) == "a\ufffd\ufffd"
    assert tokenizer.decode(ids.tolist(), errors="ignore") == "a"
    with pytest.raises(UnicodeDecodeError):
        tokenizer.decode(ids, errors="strict")
    with pytest.raises(InputError, match="id 272 at position 0"):
        tokenizer.decode([272])


def spans_by_character(text: str, tokens: list[bytes]) -> list[list[int]]:
    """Where each token's bytes are, found character by character."""
    owner = [k for k, character in enumerate(text) for _ in character.encode()]
    begin, spans = 0, []
    for token in tokens:
        owned = owner[begin : begin + len(token)]
        spans.append([owned[0], owned[-1] + 1])
        begin += len(token)
    return spans


@given(st.text(st.sampled_from("ab é☃😀")))
def test_offsets_are_those_of_the_characters(text: str) -> None:
    made = Tokenizer(vocabulary(), "cpu")
    ids, offsets = made.encode_with_offsets(text)
    assert ids.tolist() == made.encode(text).tolist()
    tokens = [made.decode_single_token_bytes(i) for i in ids.tolist()]
    assert offsets.tolist() == spans_by_character(text, tokens)
    assert made.count(text) == len(ids)
    decoded, again = made.decode_with_offsets(ids)
    assert decoded == text
    assert again.tolist() == offsets.tolist()
    assert [begin for begin, _ in offsets.tolist()] == made.as_tiktoken().decode_with_offsets(
        ids.tolist()
    )[1]


def test_offsets_of_bytes_that_are_no_text(tokenizer: Tokenizer) -> None:
    ids, offsets = tokenizer.encode_with_offsets(b"\xa9a\xe2")
    assert (offsets >= 0).all() and len(offsets) == len(ids)
    with pytest.raises(InputError, match="not UTF-8, at byte 0"):
        tokenizer.decode_with_offsets(ids)
    assert tokenizer.encode_with_offsets("")[1].shape == (0, 2)


@given(st.text(st.sampled_from("ab é☃😀")), st.integers(0, 12))
def test_truncated_text(text: str, tokens: int) -> None:
    made = Tokenizer(vocabulary(), "cpu")
    cut = made.truncate(text, tokens)
    assert text.startswith(cut)
    assert made.count(cut) <= tokens
    if made.count(text) <= tokens:
        assert cut == text
    elif tokens:
        first = made.decode_bytes(made.encode(text)[:tokens]).decode(errors="ignore")
        assert first.startswith(cut)
        assert cut == first or made.count(first) > tokens
    with pytest.raises(InputError, match="-1 tokens"):
        made.truncate(text, -1)


@given(st.binary(max_size=12))
def test_decoding_as_ids_come(data: bytes) -> None:
    made = Tokenizer(vocabulary(), "cpu")
    ids = made.encode(data).tolist()
    assert "".join(made.decode_stream(ids)) == data.decode(errors="replace")
    assert made.decode_batch([ids, []]) == [made.decode(ids), ""]


def test_tokens_by_name(tokenizer: Tokenizer) -> None:
    vocab = tokenizer.get_vocab_bytes()
    assert len(tokenizer) == tokenizer.n_vocab == 272
    assert len(vocab) + len(SPECIAL) == 272
    for token, number in vocab.items():
        assert tokenizer.token_to_id(token) == number
        assert tokenizer.decode_single_token_bytes(number) == token
    for text, number in tokenizer.special_tokens.items():
        assert tokenizer.token_to_id(text) == number
    assert tokenizer.token_to_id("no such token") is None
    assert tokenizer.eot_token is None
    assert "a" in repr(tokenizer) and tokenizer == Tokenizer(vocabulary(), "auto")
    assert hash(tokenizer) == hash(Tokenizer(vocabulary(), "auto"))
    assert tokenizer != Tokenizer.train_from_iterator(["ab ab"], vocab_size=257, device="cpu")
    assert tokenizer != "tokenizer"


def test_objects_of_other_packages(tokenizer: Tokenizer) -> None:
    text = "abab ab é☃"
    ids = tokenizer.encode(text, allowed_special={"☃"}).tolist()
    encoding = tokenizer.as_tiktoken()
    assert encoding.encode(text, allowed_special={"☃"}, disallowed_special=()) == ids
    pytest.importorskip("transformers")
    assert tokenizer.as_hf()("ab ab é")["input_ids"] == tokenizer.encode("ab ab é").tolist()


def test_training_on_an_iterator(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    documents = ["low lower<|end|>lowest", "", "newer newest", "low new"] * 20
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    options = {"vocab_size": 275, "special_tokens": ["<|end|>"], "pattern": "gpt2"}
    expected = Tokenizer.train(path, device="cpu", **options)
    made = Tokenizer.train_from_iterator(iter(documents), device="cpu", **options)
    assert made == expected
    with pytest.raises(TypeError, match="expected a list of texts"):
        Tokenizer.train_from_iterator("text", vocab_size=300)
    with pytest.raises(TypeError, match="expected a list of texts"):
        made.encode_batch("text")
    with pytest.raises(InputError):
        Tokenizer.train_from_iterator([], vocab_size=300, device="cpu")


def test_integers_of_numpy(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("ab", bos=np.uint32(3), eos=np.int64(4))  # type: ignore[call-overload]
    assert ids.tolist() == tokenizer.encode("ab", bos=3, eos=4).tolist()
    text = "ab " * 200
    few: Any = [np.uint8(200), np.uint8(3)]
    assert tokenizer.chunks(text, few[0], overlap=few[1]) == tokenizer.chunks(text, 200, overlap=3)
    assert tokenizer.truncate(text, few[0]) == tokenizer.truncate(text, 200)
    arguments: dict[str, Any] = {"vocab_size": 262, "min_frequency": 3, "max_token_length": 4}
    expected = Tokenizer.train_from_counts({"lowest": 3, "low": 5}, **arguments)
    arguments = {name: np.int64(number) for name, number in arguments.items()}
    counts = {"lowest": np.int64(3), "low": np.uint8(5)}
    assert Tokenizer.train_from_counts(counts, **arguments) == expected  # type: ignore[arg-type]


def test_no_pattern_is_the_default_one() -> None:
    texts = ["low lower lowest"] * 3
    expected = Tokenizer.train_from_iterator(texts, vocab_size=262)
    assert Tokenizer.train_from_iterator(texts, vocab_size=262, pattern=None) == expected


def test_training_on_counts(tmp_path: Path) -> None:
    text = words(3, 3_000, 200).decode() + "low"
    (tmp_path / "corpus.txt").write_text(text)
    arguments: dict[str, Any] = {"vocab_size": 300, "pattern": "gpt2", "device": "cpu"}
    expected = Tokenizer.train(tmp_path / "corpus.txt", **arguments)
    counts = Counter(regex.findall(EXPRESSIONS["gpt2"].decode(), text))
    assert Tokenizer.train_from_counts(counts, **arguments) == expected
    in_bytes = {word.encode(): count for word, count in counts.items()}
    assert Tokenizer.train_from_counts(in_bytes, **arguments) == expected
    for word, count in ((b"", 1), (b"a", 0), (b"a", -1), (b"a", 1 << 63)):
        with pytest.raises(InputError, match="counts are from 1 to"):
            Tokenizer.train_from_counts({word: count}, **arguments)
    for wrong in (2.9, 2.0, "2", None):
        with pytest.raises(TypeError, match="the count of 'a' is an int, not"):
            Tokenizer.train_from_counts({"a": wrong}, **arguments)  # type: ignore[dict-item]
    with pytest.raises(InputError, match="empty"):
        Tokenizer.train_from_counts({}, **arguments)
    with pytest.raises(TypeError, match="str or bytes"):
        Tokenizer.train_from_counts({3: 1}, **arguments)  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="expected a list of texts"):
        Tokenizer.train_from_counts(counts, special_tokens="<|end|>", **arguments)


def test_ids_come_in_the_type_that_is_asked_for(tokenizer: Tokenizer) -> None:
    text = "abab ab"
    ids = tokenizer.encode(text).tolist()
    assert tokenizer.encode(text, dtype=list) == ids == tokenizer.encode_ordinary(text).tolist()
    assert all(type(number) is int for number in tokenizer.encode(text, dtype=list))
    dtypes: tuple[Any, ...] = ("int64", np.uint16, np.dtype("<i4"))
    for dtype in dtypes:
        found = tokenizer.encode(text, dtype=dtype)
        assert found.dtype == np.dtype(dtype) and found.tolist() == ids
    batch = [text, "", "b"]
    assert tokenizer.encode_batch(batch, dtype=list) == [
        tokenizer.encode(one, dtype=list) for one in batch
    ]
    arrays = tokenizer.encode_batch(batch, dtype="int64", eos=3)
    assert [array.dtype for array in arrays] == [np.dtype("int64")] * 3
    with pytest.raises(InputError, match="id 271 does not fit in uint8, which ends at 255"):
        tokenizer.encode("a", dtype=np.uint8, eos=271)
    for dtype in (float, "float32", bool, str):
        with pytest.raises(TypeError, match="ids are integers"):
            tokenizer.encode(text, dtype=dtype)


def test_tensors(tokenizer: Tokenizer) -> None:
    torch = pytest.importorskip("torch")
    ids = tokenizer.encode("abab ab", dtype=torch.int64)
    assert ids.dtype == torch.int64 and ids.tolist() == tokenizer.encode("abab ab").tolist()
    assert torch.nn.Embedding(tokenizer.n_vocab, 4)(ids).shape == (len(ids), 4)
    for_torch = tokenizer.encode("abab ab", dtype="pt")
    assert for_torch.dtype == torch.int64 and torch.equal(for_torch, ids)
    assert tokenizer.encode("abab ab", dtype="np").dtype == np.int64
    batch = tokenizer.encode_batch(["ab", ""], dtype=torch.int32)
    assert [(one.dtype, len(one)) for one in batch] == [(torch.int32, 1), (torch.int32, 0)]
    with pytest.raises(TypeError, match="ids are integers"):
        tokenizer.encode("ab", dtype=torch.float32)
    with pytest.raises(InputError, match="does not fit"):
        tokenizer.encode("a", dtype=torch.int8, eos=271)


def test_what_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(InputError, match="'☃' at offset 1 of the text is disallowed"):
        tokenizer.encode("a☃", disallowed_special="all")
    with pytest.raises(VocabularyError, match="'nope' is not a special token"):
        tokenizer.encode("a", allowed_special={"nope"})
    with pytest.raises(VocabularyError, match="id 272 is not in"):
        tokenizer.encode("a", eos=272)
    for limited in (tokenizer.truncate, tokenizer.chunks):
        with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
            limited("a", "5")  # type: ignore[operator]
    with pytest.raises(InputError, match="a chunk has 1 token or more, not 0"):
        tokenizer.chunks("a", 0)
    with pytest.raises(InputError, match="text itself, use train_from_iterator"):
        Tokenizer.train("a text", vocab_size=300)
    for token in (True, 1.5, b"a"):
        with pytest.raises(TypeError, match=f"text of a token, not a {type(token).__name__}"):
            tokenizer.encode("a", eos=token)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="a vocabulary size is an int, not str"):
        Tokenizer.train_from_iterator(["a"], vocab_size="300")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="str or bytes, not int"):
        tokenizer.encode(3)  # type: ignore[call-overload]
    for texts in (["a", "b", float("nan")], ["a", b"b", float("nan"), 3]):
        with pytest.raises(TypeError, match=r"not float, as text 2 \(from 0\) is$"):
            tokenizer.encode_batch(texts)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"not float, as text 2 \(from 0\) is$"):
            Tokenizer.train_from_iterator(texts, vocab_size=300)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"not list, as text 0 \(from 0\) is; give one text at a"):
        Tokenizer.train_from_iterator([["a"]], vocab_size=300)  # type: ignore[list-item]
    for options, message in (
        ({"smaller_sizes": (258.5,)}, "vocabulary size is an int, not float"),
        ({"min_frequency": 2.5}, "minimum frequency is an int, not float"),
        ({"max_token_length": "9"}, "maximum token length is an int, not str"),
        ({"special_tokens": [b"<s>"]}, "special token is a str, not bytes"),
        ({"show_progress": True}, "unexpected argument 'show_progress'"),
        ({"device": 0}, "named by a str such as gpu, not int"),
    ):
        with pytest.raises(TypeError, match=message):
            Tokenizer.train_from_iterator(["a"], vocab_size=300, **options)
    with pytest.raises(LlmgpuError, match=r"special tokens must differ .* and not be empty"):
        Tokenizer.train_from_iterator(["a"], vocab_size=300, special_tokens=[""])
    with pytest.raises(LlmgpuError, match=r"'w\+': use one of .*, or 'regex:' and the expression"):
        Tokenizer.train_from_iterator(["a"], vocab_size=300, pattern="w+")
    with pytest.raises(DeviceError):
        Tokenizer(vocabulary(), "no such adapter")


def test_other_tools_files(tokenizer: Tokenizer, tmp_path: Path) -> None:
    rank_files.write(tokenizer.vocabulary, tmp_path / "ranks")
    huggingface.write(tokenizer.vocabulary, tmp_path / "tokenizer.json")
    special = tokenizer.special_tokens
    for made in (
        Tokenizer.from_huggingface(tmp_path / "tokenizer.json", device="cpu"),
        Tokenizer.from_tiktoken(
            tmp_path / "ranks", pattern="gpt2", special_tokens=special, device="cpu"
        ),
    ):
        assert made.special_tokens == special
        text = "abab <|a|>"
        np.testing.assert_array_equal(
            made.encode(text, allowed_special="all"),
            tokenizer.encode(text, allowed_special="all"),
        )


def test_folders_and_pairs_of_files(tokenizer: Tokenizer, tmp_path: Path) -> None:
    for name in ("huggingface", "gpt2"):
        folder = tmp_path / name
        folder.mkdir()
        target = folder / "tokenizer.json" if name == "huggingface" else folder
        tokenizer.export(name, target)
        made = Tokenizer.from_pretrained(folder, device="cpu")
        assert made.encode("abab é").tolist() == tokenizer.encode("abab é").tolist()
    pair = Tokenizer.from_gpt2(folder / "vocab.json", folder / "merges.txt", device="cpu")
    assert pair == made
    with pytest.raises(VocabularyError, match=r"neither tokenizer\.json nor vocab\.json"):
        Tokenizer.from_pretrained(tmp_path)
    with pytest.raises(VocabularyError, match="unknown format 'nope': use one of huggingface"):
        tokenizer.export("nope", tmp_path / "x")


def test_training_saving_and_loading(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt"
    path.write_bytes(b"<|end|>".join(words(seed, 2_000, 300) for seed in (1, 2)))
    made = Tokenizer.train(path, vocab_size=300, special_tokens=["<|end|>"], device="cpu")
    command = ["bpe-train", "corpus.txt", "--vocab-size", "300", "--special-token", "<|end|>", "-q"]
    subprocess.run(
        [sys.executable, "-m", "llmgpu", *command, "--device", "cpu"],
        cwd=tmp_path,
        env=environment(),
        check=True,
        timeout=200,
    )
    made.save(tmp_path / "saved.bin")
    assert (tmp_path / "saved.bin").read_bytes() == (tmp_path / "v.bin").read_bytes()
    loaded = Tokenizer.load(tmp_path / "v.bin", device="cpu")
    ids = loaded.encode_file(path, allowed_special="all")
    assert loaded.decode_bytes(ids) == path.read_bytes() and int((ids == 299).sum()) == 1
    with pytest.raises(OutputError):
        made.save(tmp_path)
    with pytest.raises(VocabularyError, match=r"missing\.bin"):
        Tokenizer.load(tmp_path / "missing.bin")
    with pytest.raises(VocabularyError, match="not valid Unicode"):
        Tokenizer.train(path, vocab_size=300, special_tokens=["\ud800"], device="cpu")
    path.write_bytes(b"")
    with pytest.raises(InputError, match="empty"):
        Tokenizer.train([path], vocab_size=300, device="cpu")


def test_threads_share_one(any_tokenizer: Tokenizer) -> None:
    texts = [long_text()[i:] for i in range(4)] + ["short", "ab"]
    expected = [any_tokenizer.encode(text).tolist() for text in texts]
    found: dict[int, list[int]] = {}

    def work(number: int) -> None:
        text = texts[number % len(texts)]
        found[number] = any_tokenizer.encode(text, eos=None).tolist()

    threads = [threading.Thread(target=work, args=[number]) for number in range(18)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [found[number] for number in range(18)] == [expected[n % len(texts)] for n in range(18)]


def test_copies(any_tokenizer: Tokenizer) -> None:
    text = long_text()
    expected = any_tokenizer.encode(text)
    for made in (pickle.loads(pickle.dumps(any_tokenizer)), copy.deepcopy(any_tokenizer)):
        assert repr(made) == repr(any_tokenizer)
        np.testing.assert_array_equal(made.encode(text), expected)


@pytest.mark.parametrize("device", ["no such adapter", "all"])
@pytest.mark.parametrize(
    "call",
    [
        lambda device: Tokenizer.load("missing", device),
        lambda device: Tokenizer.from_tiktoken("missing", device=device),
        lambda device: Tokenizer.from_huggingface("missing", device=device),
        lambda device: Tokenizer.from_gpt2("missing", "missing", device=device),
        lambda device: Tokenizer.from_pretrained("missing", device=device),
        lambda device: Tokenizer.train("missing", vocab_size=300, device=device),
        lambda device: Tokenizer.train_from_iterator("text", vocab_size=300, device=device),
        lambda device: Tokenizer.train_from_counts({"low": 0}, vocab_size=300, device=device),
        lambda device: Tokenizer.train_from_counts({"low": 2}, vocab_size=5, device=device),
    ],
)
def test_what_is_wrong_is_said_before_the_device_and_leaves_none(
    call: Callable[[str], Tokenizer], device: str
) -> None:
    before = {*threading.enumerate()}
    with pytest.raises((LlmgpuError, TypeError)) as raised:
        call(device)
    assert not isinstance(raised.value, DeviceError)
    assert {*threading.enumerate()} <= before


def test_importing_the_package_imports_little() -> None:
    code = "import sys, llmgpu; print([m for m in ('numpy', 'wgpu', 'click') if m in sys.modules])"
    code += "; from llmgpu import Tokenizer; print('numpy' in sys.modules, Tokenizer.__module__)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=200
    )
    assert done.stdout.splitlines() == ["[]", "False llmgpu.tokenizer.tokenizer"], done.stderr


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("batch_decode", "decode_batch"),
        ("convert_tokens_to_ids", "token_to_id"),
        ("encode_ordinary_batch", "encode_batch"),
        ("eos_token_id", "eot_token"),
        ("pad_token", r"as_hf\(\)"),
        ("special_tokens_set", "special_tokens"),
    ],
)
def test_names_of_other_tools_lead_to_ours(tokenizer: Tokenizer, name: str, ours: str) -> None:
    with pytest.raises(AttributeError, match=f"Tokenizer has no {name}: use {ours}$"):
        getattr(tokenizer, name)


def test_names_of_other_tools_lead_to_ours_before_there_is_a_tokenizer() -> None:
    with pytest.raises(AttributeError, match=r"Tokenizer has no from_file: use load$"):
        getattr(Tokenizer, "from_file")  # noqa: B009
    with pytest.raises(AttributeError, match="type object 'Tokenizer' has no attribute 'nothing'"):
        getattr(Tokenizer, "nothing")  # noqa: B009


def test_names_of_other_tools_are_free_for_subclasses(tokenizer: Tokenizer) -> None:
    class Mixin:
        def batch_decode(self) -> str:
            return "mixed in"

    class Other(Tokenizer, Mixin):
        def __init__(self) -> None:
            super().__init__(tokenizer.vocabulary, "cpu")
            self.pad_token = "<pad>"

        def tokenize(self) -> str:
            return "own"

    other: Any = Other()
    assert (other.batch_decode(), other.tokenize(), other.pad_token) == ("mixed in", "own", "<pad>")
    with pytest.raises(AttributeError, match=r"Other has no encode_plus: use encode$"):
        getattr(other, "encode_plus")  # noqa: B009
    assert {"batch_decode", "tokenize", "pad_token", "encode"} <= {*dir(other)}
    for each in (tokenizer, Tokenizer, other, Other):
        assert not {"encode_plus", "from_file", "unk_token"} & {*dir(each)}


def test_attributes_that_nobody_has(tokenizer: Tokenizer) -> None:
    assert not hasattr(tokenizer, "nothing")
    assert copy.copy(tokenizer) == tokenizer
    with pytest.raises(AttributeError, match="'Tokenizer' object has no attribute 'nothing'"):
        getattr(tokenizer, "nothing")  # noqa: B009
    with pytest.raises(TypeError, match="not list; use encode_batch for several"):
        tokenizer.encode(["low"])  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="unexpected argument 'num_threads'; there are allowed_"):
        tokenizer.encode_batch(["low"], num_threads=2)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t: t("a", padding=True), r"; as_hf\(\) has a tokenizer that pads$"),
        (lambda t: t.encode("a", return_tensors="pt"), r"'return_tensors'; use dtype=\"pt\" or"),
        (lambda t: t.encode_batch(["a"], padding=True), r"; as_hf\(\) has a tokenizer that pads$"),
        (lambda t: t.apply_chat_template([], tokenize=False), "; use render_chat_template for"),
        (lambda t: t.decode([1], nothing=True), "unexpected keyword argument 'nothing'$"),
    ],
)
def test_arguments_of_other_tools_lead_to_ours(
    tokenizer: Tokenizer, call: Callable[[Tokenizer], object], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        call(tokenizer)


def test_names_of_the_package() -> None:
    calls = {"as_transformers", "count_words", "merge_counts", "tokenize_part"}
    assert set(llmgpu.__all__) == {"Tokenizer", "__version__", *calls}
    assert dir(llmgpu) == sorted(llmgpu.__all__)
    with pytest.raises(AttributeError, match="Tokenizr"):
        _ = llmgpu.Tokenizr  # type: ignore[attr-defined]


def chatting(template: str | None = None) -> Tokenizer:
    tokens = ("<|im_start|>", "<|im_end|>")
    tokenizer = Tokenizer.train_from_iterator(
        ["user assistant newest low"] * 9, vocab_size=280, special_tokens=tokens, device="cpu"
    )
    vocabulary = tokenizer.vocabulary
    chat = ChatTemplate(template, {"eos_token": "<|im_end|>"}) if template else None
    return Tokenizer(replace(vocabulary, chat=chat), "cpu")


def test_chunks_of_a_text() -> None:
    tokenizer = chatting()
    text = "newest low déjà 漢字 user " * 9
    ids = tokenizer.encode(text)
    for tokens, overlap in ((7, 0), (7, 3), (8, 7), (1, 0), (len(ids), 2), (len(ids) + 1, 0)):
        chunks = tokenizer.chunks(text, tokens, overlap=overlap)
        end = least = 0
        for chunk in chunks:
            assert tokenizer.count(chunk) <= tokens or len(chunk) == 1
            begin = text.index(chunk, least)  # where it is the first one that may follow
            assert begin <= end and (overlap or begin == end)
            least, end = begin + 1, max(end, begin + len(chunk))
        assert end == len(text)
        assert len(chunks) <= 2 * -(-len(ids) // (tokens - overlap))
    assert "".join(tokenizer.chunks("newest low " * 9, 5)) == "newest low " * 9
    assert tokenizer.chunks("", 5) == []
    # As o200k encodes " \u017f": b" \xc5" and b"\xbf", which share a character.
    spans = np.array([[0, 2], [1, 2]])
    assert [*chunks_of(" \u017f", spans, 1, 0, len)] == [" ", "\u017f"]
    for tokens, overlap in ((3, 3), (3, -1)):
        with pytest.raises(InputError, match=f"of {tokens} tokens can't overlap by {overlap}"):
            tokenizer.chunks("a", tokens, overlap=overlap)


def test_habits_that_are_errors() -> None:
    """Each says what to do."""
    with pytest.raises(TypeError, match=r"takes a Vocabulary; use Tokenizer.load"):
        Tokenizer("v.bin")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected a list of texts"):
        Tokenizer.train_from_iterator(["a"], vocab_size=300, special_tokens="<|end|>")
    with pytest.raises(VocabularyError, match="no such folder: 'gpt2'; nothing is downloaded"):
        Tokenizer.from_pretrained("gpt2")
    with pytest.raises(VocabularyError, match=r"hf download a/b-1 tokenizer.json --local-dir"):
        Tokenizer.from_pretrained("a/b-1")


def test_a_type_of_ids_for_all_calls(tmp_path: Path) -> None:
    path = tmp_path / "v.bin"
    vocabulary().save(path)
    plain = Tokenizer.load(path, "cpu")
    expected = plain.encode("abab ab é").tolist()
    lists = Tokenizer.load(path, "cpu", dtype=list)
    for ids in (lists.encode("abab ab é"), lists.encode_ordinary("abab ab é")):
        assert ids == expected and type(ids) is list
    assert lists.encode_batch(["abab ab é", ""]) == [expected, []]
    assert lists.encode("ab", dtype="int64").dtype == np.int64  # an argument wins
    assert lists.count("abab ab é") == len(expected)
    assert lists.truncate("abab ab é", 2) == plain.truncate("abab ab é", 2)
    assert lists.chunks("abab ab é", 3) == plain.chunks("abab ab é", 3)
    for made in (lists.encode_with_offsets("ab é"), plain.encode_with_offsets("ab é")):
        assert [array.dtype for array in made] == [np.uint32, np.int64]
    for copied in (pickle.loads(pickle.dumps(lists)), copy.deepcopy(lists), copy.copy(lists)):
        assert copied.encode("abab ab é") == expected and copied == lists == plain
    wide = Tokenizer(vocabulary(), "cpu", dtype=np.int64)
    assert wide.encode("ab").dtype == wide.encode_batch(["ab"])[0].dtype == np.int64
    with pytest.raises(TypeError, match="ids are integers, not float32"):
        Tokenizer.load(path, "cpu", dtype="float32")  # type: ignore[call-overload]


def test_tensors_for_an_embedding_of_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "v.bin"
    vocabulary().save(path)
    tokenizer = Tokenizer.load(path, "cpu", dtype="pt")
    embedding = torch.nn.Embedding(len(tokenizer), 4)
    ids = tokenizer.encode("abab ab é")
    assert ids.dtype == torch.int64 and embedding(ids).shape == (len(ids), 4)
    assert [embedding(each).shape for each in tokenizer.encode_batch(["ab", ""])]
    assert embedding(tokenizer("ab")["input_ids"]).shape[1] == 4
    assert tokenizer.decode(ids, skip_special_tokens=True) == "abab ab é"


def test_calls_are_those_of_transformers() -> None:
    made = Tokenizer.train_from_iterator(["low lower"] * 9, vocab_size=280, special_tokens=SPECIAL)
    first, last = made.special_tokens[SPECIAL[0]], made.special_tokens[SPECIAL[1]]
    around = replace(made.vocabulary, prefix_ids=(first,), suffix_ids=(last,))
    tokenizer = Tokenizer(around, "cpu", dtype=list)
    text = f"low {SPECIAL[0]}er"
    ids = [first, *tokenizer.encode(text, allowed_special="all"), last]
    assert tokenizer(text) == {"input_ids": ids, "attention_mask": [1] * len(ids)}
    several = tokenizer(text.encode() for _ in range(2))
    assert several == {"input_ids": [ids] * 2, "attention_mask": [[1] * len(ids)] * 2}
    assert tokenizer(text, dtype="int64")["attention_mask"].dtype == np.int64
    assert tokenizer([]) == {"input_ids": [], "attention_mask": []}
    pytest.importorskip("transformers")
    theirs = tokenizer.as_hf()
    assert theirs(text).data == tokenizer(text)
    assert theirs.get_vocab() == tokenizer.get_vocab()


def test_tokens_as_keys(tokenizer: Tokenizer) -> None:
    vocab = tokenizer.get_vocab()
    assert len(vocab) == 272 and set(SPECIAL) <= set(vocab)
    assert vocab["a"] == tokenizer["a"] == tokenizer[b"a"] == tokenizer.get_vocab_bytes()[b"a"]
    assert vocab["\u0120"] == tokenizer[" "] and vocab.get("nothing", 5) == 5
    assert "a" in tokenizer and b"\xff" in tokenizer and SPECIAL[0] in tokenizer
    assert "no such token" not in tokenizer and "no such token" not in vocab
    mistaken: Any = vocab
    for ask in (lambda: mistaken[b"a"], lambda: b"a" in mistaken, lambda: mistaken.get(b"a")):
        with pytest.raises(TypeError, match=r"use get_vocab_bytes\(\), or token_to_id"):
            ask()
    with pytest.raises(KeyError, match="no such token"):
        tokenizer["no such token"]
    with pytest.raises(KeyError, match="nothing"):
        vocab["nothing"]
    with pytest.raises(TypeError, match="not iterable"):
        iter(tokenizer)  # type: ignore[call-overload]


def test_special_tokens_are_skipped(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(f"a{SPECIAL[0]}b{SPECIAL[1]}", allowed_special="all")
    for each in (ids, ids.tolist(), ids.astype(np.int64), tuple(ids.tolist())):
        assert tokenizer.decode(each, skip_special_tokens=True) == "ab"
    assert tokenizer.decode_batch([ids, []], skip_special_tokens=True) == ["ab", ""]
    assert tokenizer.decode(ids) == f"a{SPECIAL[0]}b{SPECIAL[1]}"
    with pytest.raises(InputError, match="id 272 at position 0"):
        tokenizer.decode([272], skip_special_tokens=True)


def test_a_representation_is_short() -> None:
    made = Tokenizer(vocabulary(pattern="regex:" + "|".join(["ab", "[a-z]+", "."] * 40)), "cpu")
    assert len(repr(made)) <= 120
    assert repr(made).endswith("..., device 'cpu'>") and "272 ids" in repr(made)
