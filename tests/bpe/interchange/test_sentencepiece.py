"""Models of SentencePiece, compared with the oracle, and with the package if it is there."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from llmgpu.bpe.encoding.encoder_c import CpuEncoder
from llmgpu.bpe.encoding.encoder_host import HostEncoder
from llmgpu.bpe.encoding.encoder_numpy import NumpyEncoder
from llmgpu.bpe.interchange.formats import WRITERS, find_vocabulary
from llmgpu.bpe.training.options import TrainingOptions
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.cpu.library import library
from llmgpu.errors import InputError, VocabularyError
from llmgpu.text.corpus import corpus_from_bytes
from llmgpu.tokenizer import Tokenizer
from tests.bpe.interchange.models import (
    BYTES,
    SPECIAL,
    field,
    model,
    piece,
    random_pieces,
    random_text,
    user_defined,
)
from tests.reference.pieces import (
    CONTROL,
    MARK,
    NORMAL,
    UNUSED,
    Piece,
    encode_model,
    normalize_model,
)

PLAIN: list[Piece] = [(MARK, -1.0, NORMAL), ("a", -2.0, NORMAL), ("b", -3.0, NORMAL)]


def load(folder: Path, data: bytes) -> Tokenizer:
    path = folder / "tokenizer.model"
    path.write_bytes(data)
    return Tokenizer.load(path)


@pytest.fixture(params=["c", "numpy"])
def engine_of_host(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "c" and library() is None:
        pytest.skip("no CPU engine")
    monkeypatch.setenv("LLMGPU_CPU", request.param)
    return str(request.param)


@pytest.mark.parametrize("has_bytes", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_ids_are_those_of_the_oracle(
    seed: int, has_bytes: bool, tmp_path: Path, engine_of_host: str
) -> None:
    pieces = random_pieces(seed, has_bytes=has_bytes, has_unused=seed % 2 == 1)
    ours = load(tmp_path, model(pieces))
    draw = random.Random(seed)
    texts = [random_text(draw) for _ in range(60)]
    expected = [
        encode_model(pieces, normalize_model(text, {}, [], removes=False)) for text in texts
    ]
    assert [each.tolist() for each in ours.encode_batch(texts)] == expected


@pytest.mark.parametrize("prefix", [0, 1])
@pytest.mark.parametrize("removes", [0, 1])
@pytest.mark.parametrize("suffix", [0, 1])
def test_white_space_and_user_defined_symbols(
    prefix: int, removes: int, suffix: int, tmp_path: Path, engine_of_host: str
) -> None:
    symbols = ["ab", "<x>", MARK + MARK, "b"]
    pieces = [p for p in random_pieces(5, has_bytes=True) if p[0] not in symbols]
    pieces = [*pieces, *user_defined(*symbols)]
    data = model(pieces, {24: suffix}, {3: prefix, 4: removes})
    ours = load(tmp_path, data)
    draw = random.Random(3)
    for _ in range(60):
        text = random_text(draw, ["ab", "<x>", MARK + MARK])
        normalized = normalize_model(
            text, {}, symbols, prefix=bool(prefix), removes=bool(removes), suffix=bool(suffix)
        )
        assert ours.encode(text, dtype=list) == encode_model(pieces, normalized), repr(text)


def test_cuts_are_made_only_where_no_piece_lies_across(tmp_path: Path) -> None:
    pieces = [*SPECIAL, *PLAIN, ("ab", -1.0, NORMAL), (f"b{MARK}", -0.5, NORMAL)]
    pattern = load(tmp_path, model(pieces)).vocabulary.cut
    text = np.frombuffer(b"ab ba  a", np.uint8)
    marks = pattern.mark(text, np.empty(0, np.int64), continues=False)
    # Not within "ab" and "b "; between unknown characters it could not be cut either.
    assert np.flatnonzero(marks).tolist() == [0, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("has_bytes", [True, False])
def test_slices_and_threads_make_no_difference(has_bytes: bool, tmp_path: Path) -> None:
    vocabulary = load(tmp_path, model(random_pieces(2, has_bytes=has_bytes))).vocabulary
    draw = random.Random(2)
    text = " ".join(random_text(draw) for _ in range(900)).encode()
    text += b"\xe2\x96\xff\x81\xf0\x9f" * 9 + "\u65e5".encode() * 3000  # no cut there
    encoders: list[HostEncoder] = [NumpyEncoder(vocabulary), NumpyEncoder(vocabulary, 999, 2)]
    if library() is not None:
        encoders += [CpuEncoder(vocabulary), CpuEncoder(vocabulary, 999, threads=6)]
    found = [
        np.concatenate([each.ids for each in encoder.encode(corpus_from_bytes(text))]).tolist()
        for encoder in encoders
    ]
    assert all(ids == found[0] for ids in found)


def test_a_run_of_one_letter_is_not_quadratic(tmp_path: Path) -> None:
    runs = [("a" * (2 << k), float(k), NORMAL) for k in range(6)]
    ours = load(tmp_path, model([*SPECIAL, *PLAIN, *runs]))
    ids = ours.encode("a" * 1_000_003, dtype=list)
    longest = ours.token_to_id("a" * 64)
    assert ids.count(longest) == 1_000_003 // 64
    assert ours.decode(ids) == "a" * 1_000_003


def test_equal_scores_merge_from_the_left(tmp_path: Path, engine_of_host: str) -> None:
    pieces = [*SPECIAL, *PLAIN, ("ab", -1.0, NORMAL), ("ba", -1.0, NORMAL)]
    ours = load(tmp_path, model(pieces))
    assert [pieces[i][0] for i in ours.encode("abab")] == [MARK, "ab", "ab"]
    assert [pieces[i][0] for i in ours.encode("baba")] == [MARK, "ba", "ba"]


def test_a_character_without_a_piece_merges(tmp_path: Path, engine_of_host: str) -> None:
    pieces = [*SPECIAL, *BYTES, *PLAIN, ("a\u65e5", -1.0, NORMAL)]
    ours = load(tmp_path, model(pieces))
    assert [pieces[i][0] for i in ours.encode("a\u65e5\u65e5")] == [
        *(MARK, "a\u65e5", "<0xE6>", "<0x97>", "<0xA5>")
    ]


def test_decoding_drops_the_prefix(tmp_path: Path) -> None:
    ours = load(tmp_path, model([*SPECIAL, *BYTES, *PLAIN]))
    for text in ("ab", " ab", "a  b ", "\u65e5", ""):
        ids = ours.encode(text)
        assert ours.decode(ids) == text
        assert "".join(ours.decode_stream(ids.tolist())) == text
    ids, offsets = ours.encode_with_offsets("a\u65e5")  # of the text with its prefix
    assert offsets.tolist() == [[0, 1], [1, 2], [2, 3], [2, 3], [2, 3]]
    unknown = load(tmp_path, model([*SPECIAL, *PLAIN]))
    assert unknown.decode(unknown.encode("xa")) == " \u2047 a"
    with pytest.raises(InputError, match="offsets are not known"):
        unknown.encode_with_offsets("xa")


def test_control_symbols_are_text_unless_they_are_allowed(tmp_path: Path) -> None:
    ours = load(tmp_path, model([*SPECIAL, *BYTES, *PLAIN]))
    assert 1 not in ours.encode("<s>a").tolist()
    ids = ours.encode("<s>a", allowed_special="all").tolist()
    assert ids == [1, *ours.encode("a").tolist()]


def test_the_vocabulary_file_keeps_everything(tmp_path: Path) -> None:
    pieces = [*random_pieces(3, has_bytes=True, has_unused=True), *user_defined("<x>")]
    first = load(tmp_path, model(pieces, None, {4: 1}))
    first.vocabulary.save(tmp_path / "v.bin")
    again = Vocabulary.load(tmp_path / "v.bin")
    assert again.to_bytes() == first.vocabulary.to_bytes()
    assert again.pieces == first.vocabulary.pieces
    assert Tokenizer.load(tmp_path / "v.bin").encode("ab <x> a").tolist() == (
        first.encode("ab <x> a").tolist()
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (model([*SPECIAL, *PLAIN], {3: 1}), "of type Unigram; supported: BPE"),
        (model([*SPECIAL, *PLAIN], {3: 4}), "of type Char"),
        (model([*SPECIAL, *PLAIN], None, {5: 0}), "escape_whitespaces off"),
        (model([*SPECIAL, *PLAIN, ("a", -1.0, NORMAL)]), "'a' is empty or a duplicate"),
        (model([*SPECIAL, *PLAIN, ("", -1.0, NORMAL)]), "'' is empty"),
        (model([*SPECIAL, *PLAIN, ("c d", -1.0, NORMAL)]), "'c d' has a space"),
        (model([*SPECIAL, *PLAIN, ("c", 0.0, CONTROL)]), "'c' is a character"),
        (model([*SPECIAL, *PLAIN, ("c", math.nan, NORMAL)]), "not a number"),
        (model([*SPECIAL, *PLAIN, *BYTES[:9]]), "\\(1, 9\\) unknown and byte"),
        (model([*SPECIAL, *PLAIN, *BYTES], {35: 0}), "byte_fallback is off"),
        (model([*SPECIAL[1:], *PLAIN]), "\\(0, 0\\) unknown"),
        (model([*SPECIAL, *BYTES, *PLAIN[1:]]), "no piece U\\+2581"),
        (model([*SPECIAL, *PLAIN, ("c" * 2000, -1.0, NORMAL)]), "2000 characters"),
        (model([*SPECIAL, *PLAIN, ("aaa", 0.0, UNUSED), ("aa", 0.0, NORMAL)]), "'aaa' can be"),
        (model([*SPECIAL, *PLAIN]) + field(5, field(2, b"x")), "denormalizer"),
        (model([*SPECIAL, *PLAIN], None, {2: b"\xff\xff\xff\x7f"}), "charsmap has no units"),
        (model([*SPECIAL, *PLAIN])[:-3], "cut short"),
        (piece("<unk>", 0.0, 9), "unknown type 9"),
        (b"\n\x05\n\x03<u>" + b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", "cut short"),
    ],
)
def test_refused(data: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(VocabularyError, match=message):
        load(tmp_path, data)


def test_recognized(tmp_path: Path) -> None:
    path = tmp_path / "any name"
    path.write_bytes(model([*SPECIAL, *PLAIN]))
    assert find_vocabulary(path).format == "sentencepiece"
    assert Tokenizer.load(path).vocab_size == 6
    (tmp_path / "tokenizer.model").write_bytes(path.read_bytes())
    assert Tokenizer.load(tmp_path).vocab_size == 6


def test_the_package_gives_the_same_ids(tmp_path: Path, engine_of_host: str) -> None:
    package = pytest.importorskip("sentencepiece")
    for seed in range(4):
        data = model(random_pieces(seed, has_bytes=seed > 1, has_unused=seed % 2 == 1))
        ours = load(tmp_path, data)
        theirs = package.SentencePieceProcessor(model_proto=data)
        draw = random.Random(seed)
        for text in (random_text(draw) for _ in range(200)):
            ids = ours.encode(text, dtype=list)
            assert ids == theirs.encode(text), repr(text)
            assert ours.decode(ids) == theirs.decode(ids), repr(text)


def test_what_is_not_supported_is_refused(tmp_path: Path) -> None:
    ours = load(tmp_path, model([*SPECIAL, *PLAIN])).vocabulary
    for to, name in (("tiktoken", "t.tiktoken"), ("gpt2", "t/")):
        with pytest.raises(VocabularyError, match="SentencePiece's kind can't be exported"):
            WRITERS[to].write(ours, tmp_path / name)
    with pytest.raises(VocabularyError, match="no other rule is possible"):
        ours.with_match("greedy")
    with pytest.raises(VocabularyError, match="can't be extended"):
        TrainingOptions(vocab_size=300, pattern="none", seed=ours)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"piece_kinds": b"\2\3\3\1\1"}, "5 kinds of pieces"),
        ({"piece_kinds": b"\2\3\3\1\1\7"}, "0 to 6, for 6 ids"),
        ({"piece_kinds": b"\2\3\3\1\1\6"}, "not one for each of the 256 bytes"),
        ({"piece_ranks": b"\0" * 20}, "are not 6 numbers below"),
        ({"piece_ranks": b"\xff" * 24}, "are not 6 numbers below"),
        ({"piece_rules": "{}"}, "not rules of pieces"),
        ({"piece_rules": '{"decoder":"x","fuses":true,"marked":[],"splits":false}'}, "decoder"),
        ({"piece_rules": '{"decoder":"","fuses":true,"marked":[9],"splits":false}'}, "not ids"),
        ({"match": "greedy"}, "no other rule is possible"),
        ({"unknown_token": None}, "neither byte tokens nor an unknown token"),
        ({"piece_kinds": 5}, "piece_kinds in the file is a int"),
        ({"piece_ranks": b"\0" * 24}, "fingerprint"),
    ],
)
def test_damaged_vocabulary_files(entries: dict[str, Any], message: str, tmp_path: Path) -> None:
    vocabulary = load(tmp_path, model([*SPECIAL, *PLAIN])).vocabulary
    content = msgpack.unpackb(vocabulary.to_bytes())
    assert [*content][-3:] == ["piece_kinds", "piece_ranks", "piece_rules"]
    with pytest.raises(VocabularyError, match=message):
        Vocabulary.from_bytes(msgpack.packb(content | entries))
    del content["piece_rules"]
    with pytest.raises(VocabularyError, match="unexpected or missing entries"):
        Vocabulary.from_bytes(msgpack.packb(content))
