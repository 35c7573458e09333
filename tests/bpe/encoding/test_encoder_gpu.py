"""Byte pair encoding on an adapter against the plain loop, and against NumPy on long texts."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pytest import MonkeyPatch

from llmgpu.backend import Backend
from llmgpu.bpe.encoding import encoder_gpu
from llmgpu.bpe.encoding.encoder import (
    RESERVED_FROM,
    Allocate,
    CollectedIds,
    EncodedSlice,
    Encoder,
)
from llmgpu.bpe.encoding.encoder_gpu import LISTED, LONGEST, GpuEncoder, Spared
from llmgpu.bpe.encoding.encoder_numpy import NumpyEncoder
from llmgpu.bpe.encoding.matching import NO_RANK, byte_ids, pair_ranks
from llmgpu.bpe.encoding.open import open_encoder, open_host_encoder
from llmgpu.bpe.pretokens.names import PATTERNS
from llmgpu.bpe.pretokens.pattern import pattern_of_expression
from llmgpu.bpe.pretokens.pretoken_gpu import REACH
from llmgpu.bpe.pretokens.slices import Slice
from llmgpu.bpe.vocabulary.trie import NO_TOKEN
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.bpe.words.word_table_gpu import WordSlot
from llmgpu.cpu.library import library
from llmgpu.errors import InputError
from llmgpu.gpu.device import Device
from llmgpu.kernel_source import constant
from llmgpu.text.corpus import corpus_from_bytes
from tests.bpe.encoding.test_matching import merge_vocabularies, rank_vocabularies
from tests.bpe.words.test_count_gpu import PARTS
from tests.harness.devices import workgroups_of
from tests.reference import encoding as reference

LISTED_BYTES = constant("encode/08_long_words.wgsl", "LISTED_BYTES")
DOCUMENT = st.lists(
    st.sampled_from([*PARTS, b"ab", b"ba", b"abc", b"c" * 300, b"abc" * 90]), max_size=40
).map(b"".join)


def with_pattern(vocabulary: Vocabulary, pattern: str) -> Vocabulary:
    expression = PATTERNS[pattern].expression
    return vocabulary.__class__(
        vocabulary.tokens,
        vocabulary.merges,
        pattern,
        expression,
        match="bpe",
        ignore_merges=vocabulary.ignore_merges,
        unknown_token=vocabulary.unknown_token,
    )


def encode(encoder: Encoder, documents: list[bytes]) -> list[list[int]]:
    """Return the ids of each document."""
    ids: list[int] = []
    starts: list[int] = []
    for piece in encoder.encode(corpus_from_bytes(documents)):
        assert (piece.ids.dtype, piece.document_starts.dtype) == (np.uint32, np.int64)
        starts += (piece.document_starts + len(ids)).tolist()
        ids += piece.ids.tolist()
    return [ids[start:end] for start, end in pairwise([*starts, len(ids)])]


@cache
def ids_of_numpy(vocabulary: Vocabulary, *documents: bytes) -> list[list[int]]:
    """Return NumPy's ids, with which the ids of every device are compared."""
    return encode(NumpyEncoder(vocabulary), list(documents))


@given(
    vocabulary=merge_vocabularies(),
    pattern=st.sampled_from(sorted(PATTERNS)),
    documents=st.lists(DOCUMENT, max_size=4),
    slice_bytes=st.sampled_from([64, 1000, 4096, 1 << 16]),
    first_words=st.sampled_from([1, 64, 4096]),
    table_bytes=st.sampled_from([1, 10_000, 1 << 20]),
    workgroup_size=st.sampled_from([64, 256]),
    threads=st.sampled_from([1, 2, 8]),
)
def test_ids_of_merging(
    any_device: Device,
    vocabulary: Vocabulary,
    pattern: str,
    documents: list[bytes],
    slice_bytes: int,
    first_words: int,
    table_bytes: int,
    workgroup_size: int,
    threads: int,
) -> None:
    vocabulary = with_pattern(vocabulary, pattern)
    expected = [reference.bpe_encode(vocabulary, text) for text in documents]
    with workgroups_of(any_device, workgroup_size):
        encoder = GpuEncoder(
            any_device,
            vocabulary,
            slice_bytes,
            threads=threads,
            first_words=first_words,
            table_bytes=table_bytes,
        )
        assert encode(encoder, documents) == expected
        assert encode(encoder, documents[::-1]) == expected[::-1]  # the table is kept


@given(rank_vocabularies(), st.lists(st.sampled_from(b"abc "), max_size=300).map(bytes))
def test_ids_by_ranks(device: Device, vocabulary: Vocabulary, text: bytes) -> None:
    encoder = GpuEncoder(device, with_pattern(vocabulary, "class"), 100)
    expected = reference.bpe_encode(with_pattern(vocabulary, "class"), text)
    assert encode(encoder, [text]) == [expected]


@cache
def train(text: bytes) -> Vocabulary:
    from tests.bpe.encoding.test_encoder_numpy import train as train_vocabulary

    return with_pattern(train_vocabulary([text], 600, "class"), "class")


def hostile_text(seed: int, size: int) -> bytes:
    rng = np.random.default_rng(seed)
    letters = rng.choice(np.frombuffer(b"aaaabcdeeeeilnorst  \n.,\xc3\xa9'1", np.uint8), size)
    runs = b"".join(bytes([65 + k]) * (k * 37 % 900) + b" " for k in range(40))
    return letters.tobytes() + runs + bytes(range(256)) * 3


@pytest.mark.slow
@pytest.mark.parametrize("slice_bytes", [5000, 70_000, 1 << 20])
def test_long_texts_as_in_numpy(any_device: Device, slice_bytes: int) -> None:
    text = hostile_text(1, 200_000)
    vocabulary = train(text[:50_000])
    documents = text.splitlines(keepends=True)
    expected = ids_of_numpy(vocabulary, *documents)
    encoder = GpuEncoder(any_device, vocabulary, slice_bytes, first_words=64)
    assert encode(encoder, documents) == expected
    assert b"".join(vocabulary.decode(np.array(ids)) for ids in expected) == text


def test_slices_are_longer_from_the_first_long_text_on(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder_gpu, "SHORTER_SLICES", ((10_000, 500), (25_000, 1000)))
    short, long = hostile_text(3, 1000)[:4000], hostile_text(4, 20_000)
    vocabulary = train(long)
    encoder = GpuEncoder(device, vocabulary, 2000, text_bytes=4000)
    for text, nbytes, longest in (
        (short, 4000, 500),
        (short, None, 1000),
        (short, 10_000, 1000),
        (long, 30_000, 2000),
        (short, 4000, 2000),
    ):
        encoder.expect(nbytes)
        pieces = list(encoder.encode(corpus_from_bytes([text])))
        assert longest / 2 < max(piece.text_bytes for piece in pieces) <= longest
        ids = np.concatenate([piece.ids for piece in pieces]).tolist()
        assert [ids] == ids_of_numpy(vocabulary, text)


def test_room_for_which_several_slices_ask_is_made_once(any_device: Device) -> None:
    """Those after the first find it, and ask for no more words."""
    text = hostile_text(9, 20_000)
    vocabulary = train(text[:5000])
    encoder = GpuEncoder(any_device, vocabulary, 2048)
    words, nbytes = encoder._table.word_capacity, encoder._table.data_capacity
    assert encode(encoder, [text]) == ids_of_numpy(vocabulary, text)
    assert encoder._table.data_capacity > 4 * nbytes
    assert encoder._table.word_capacity == words


def test_texts_whose_tokens_become_shorter_and_longer(any_device: Device) -> None:
    """What is copied along with a slice may be too little, and more than there is."""
    vocabulary = train(b"abcdefgh " * 1000)
    text = (b"abcdefgh" * 500 + b" 0123456789" * 400 + b"abcdefgh " * 20) * 3
    expected = ids_of_numpy(vocabulary, text)
    encoder = GpuEncoder(any_device, vocabulary, 1000, first_words=64)
    assert encode(encoder, [text]) == encode(encoder, [text]) == expected


@pytest.mark.slow
def test_ids_are_put_where_the_caller_says(any_device: Device) -> None:
    text = hostile_text(2, 100_000)
    vocabulary = train(text)
    ids = CollectedIds(RESERVED_FROM)
    encoder = GpuEncoder(any_device, vocabulary, 20_000)
    for piece in encoder.encode(corpus_from_bytes(text), ids):
        place = ids(len(piece.ids))
        assert piece.ids.ctypes.data == place.ctypes.data
        ids.append(piece.ids)
    [expected] = ids_of_numpy(vocabulary, text)
    assert ids.take().tolist() == expected


@pytest.mark.parametrize("long_words", [0, 200])
def test_a_byte_without_a_token_is_named(device: Device, long_words: int) -> None:
    """The byte is in a slice that the device encodes, or in one that the host encodes."""
    tokens = (b"a", b" ", b"aa")
    expression = PATTERNS["class"].expression
    vocabulary = Vocabulary(
        tokens, np.empty((0, 3), np.uint32), "class", expression, match="bpe", ignore_merges=True
    )
    before = (b"a" * 600 + b" ") * long_words + b"aa " * 40 + b"aa"
    text = before + b"ba" + b" aa" * 10_000
    sizes = (64, 1 << 18)
    encoders = [GpuEncoder(device, vocabulary, size, threads=8) for size in sizes]
    for encoder in (*encoders, NumpyEncoder(vocabulary, 50)):
        with pytest.raises(InputError, match=f"byte 0x62 at offset {len(before)} "):
            encode(encoder, [text])


@given(st.lists(st.integers(0, 3), max_size=30), st.data())
def test_long_words_take_their_places(numbers: list[int], data: st.DataObject) -> None:
    ids = [encoder_gpu.LONG_WORD if number == 3 else number for number in numbers]
    words = [data.draw(st.lists(st.integers(5, 9), max_size=4)) for _ in range(numbers.count(3))]
    expected: list[int] = []
    left = iter(words)
    for number in numbers:
        expected += next(left) if number == 3 else [number]
    out = np.empty(len(expected), np.uint32)
    arrays = [np.array(word, np.uint32) for word in words]
    places = np.array([place for place, number in enumerate(numbers) if number == 3], np.int64)
    encoder_gpu.insert_long_words(out, np.array(ids, np.uint32), arrays, places)
    assert out.tolist() == expected


@pytest.mark.parametrize(
    ("words", "longest", "is_listed"),
    [
        (3, 700, True),
        (LISTED, LISTED_BYTES, True),
        (LISTED + 1, 600, False),
        (3, LISTED_BYTES + 1, False),
    ],
)
def test_long_words_between_documents(
    any_device: Device, monkeypatch: MonkeyPatch, words: int, longest: int, is_listed: bool
) -> None:
    """The device lists their text, or the host reads it where there is too much of it."""
    read: list[int] = []
    read_words = WordSlot.read_words

    def recorded(slot: WordSlot, spans: list[tuple[int, int]]) -> list[NDArray[np.uint8]]:
        read.append(len(spans))
        return read_words(slot, spans)

    monkeypatch.setattr(WordSlot, "read_words", recorded)
    rng = np.random.default_rng(words)
    lengths = [*rng.integers(LONGEST + 1, longest + 1, words - 1).tolist(), longest]
    texts = [b"abc" * (length // 3) + b"a" * (length % 3) for length in lengths]
    documents = [b"a bc\n" * int(rng.integers(9)) + text for text in texts] + [b"", b"abc a"]
    vocabulary = train(b"abc abcabc a bc " * 500)
    expected = ids_of_numpy(vocabulary, *documents)
    encoder = GpuEncoder(any_device, vocabulary, 1 << 22, threads=1)
    assert encode(encoder, documents) == encode(encoder, documents) == expected
    assert bool(read) != is_listed


def long_runs(size: int) -> bytes:
    """Return words that are too long for the device to list."""
    longer = LISTED_BYTES + 2
    return b"".join(bytes([97 + k % 3]) * (longer + k) + b" " for k in range(size // longer))


def undecided_runs(size: int) -> bytes:
    """Return letters whose words depend on runs that are longer than a device looks back."""
    run = b"aA" * REACH + b" "
    return run * (size // len(run))


@pytest.mark.skipif(library() is None, reason="NumPy has one thread")
@pytest.mark.parametrize("count", [LISTED, LISTED + 1])
def test_listed_long_words_leave_their_slice_to_the_device(
    any_device: Device, monkeypatch: MonkeyPatch, count: int
) -> None:
    text = b"".join(bytes([97 + k % 26]) * (LONGEST + 1 + k) + b" " for k in range(count))
    vocabulary = train(text[:50_000])
    encoder = GpuEncoder(any_device, vocabulary, 1 << 22, threads=8)
    # The first slices of an empty table are short: fill the table, so that one slice has all words.
    encode(encoder, [b"a few words"])
    spans = spans_on_host(monkeypatch)
    assert encode(encoder, [text]) == encode(open_host_encoder(vocabulary, threads=1), [text])
    assert bool(spans) == (count > LISTED)


def spans_on_host(monkeypatch: MonkeyPatch) -> list[tuple[int, int]]:
    """Return the list to which begin and end of each slice are added that the host encodes."""
    found: list[tuple[int, int]] = []
    encode_on_host = GpuEncoder._encode_on_host

    def recorded(encoder: GpuEncoder, piece: Slice, allocate: Allocate) -> EncodedSlice:
        assert piece.length <= len(piece.text)
        found.append((piece.offset, piece.offset + piece.main_end))
        return encode_on_host(encoder, piece, allocate)

    monkeypatch.setattr(GpuEncoder, "_encode_on_host", recorded)
    return found


def submitted_slices(monkeypatch: MonkeyPatch) -> set[int]:
    """Return the set to which the begin of each slice is added that a device gets."""
    found: set[int] = set()
    submit = encoder_gpu._Slot.submit

    def recorded(slot: encoder_gpu._Slot, piece: Slice) -> None:
        found.add(piece.offset)
        submit(slot, piece)

    monkeypatch.setattr(encoder_gpu._Slot, "submit", recorded)
    return found


@pytest.mark.skipif(library() is None, reason="NumPy has one thread")
@pytest.mark.parametrize(
    ("pattern", "make_bad"), [("class", long_runs), ("o200k", undecided_runs), ("gpt2", long_runs)]
)
def test_the_host_encodes_slices_that_a_device_is_bad_at(
    any_device: Device, monkeypatch: MonkeyPatch, pattern: str, make_bad: Callable[[int], bytes]
) -> None:
    """The device encodes the slices before these, and soon it encodes slices after them.

    Some of the slices in between are not even sent to the device.
    """
    monkeypatch.setattr(encoder_gpu, "MOST_SPARED", 2)
    good = b"".join(b"word%d ab abc,\n" % (k % 500) for k in range(10_000))
    bad = make_bad(300_000)
    vocabulary = with_pattern(train(good[:20_000] + bad[:20_000]), pattern)
    documents = [good, b"", bad[:100_000], bad[100_000:], good, good, b""]
    expected = encode(open_host_encoder(vocabulary, threads=1), documents)
    encoder = GpuEncoder(any_device, vocabulary, size := 1 << 15, threads=8)
    spans, submitted = spans_on_host(monkeypatch), submitted_slices(monkeypatch)
    assert encode(encoder, documents) == expected
    begin, end = len(good), len(good + bad)
    assert sum(max(0, min(high, end) - max(low, begin)) for low, high in spans) > 0.9 * len(bad)
    assert 2 < sum(low not in submitted for low, _ in spans) < len(spans)
    assert begin - size < min(spans)[0] and max(spans)[1] < end + 6 * size < len(
        b"".join(documents)
    )


def test_a_few_long_words_leave_their_slice_to_the_device(
    any_device: Device, monkeypatch: MonkeyPatch
) -> None:
    word, rest = b"b" * 600 + b" ", b"a bc abc " * 1000
    documents = [word * 4 + rest] * 50
    vocabulary = train(rest)
    encoder = GpuEncoder(any_device, vocabulary, 1 << 19, threads=4)
    spans = spans_on_host(monkeypatch)
    assert encode(encoder, documents) == ids_of_numpy(vocabulary, *documents)
    assert spans == []


def test_the_host_only_marks_the_words_of_expressions(
    any_device: Device, monkeypatch: MonkeyPatch
) -> None:
    documents = [b"ab abc, 12 3456 a-b " * 40] * 60
    trained, expression = train(documents[0]), "\\d{1,3}|[a-z]+|."
    name = pattern_of_expression(expression)
    vocabulary = Vocabulary(trained.tokens, trained.merges, name, expression, match="bpe")
    encoder = GpuEncoder(any_device, vocabulary, 1 << 14, threads=4)
    spans = spans_on_host(monkeypatch)
    assert encode(encoder, documents) == ids_of_numpy(vocabulary, *documents)
    assert spans == []


def test_a_device_is_tried_again_after_more_and_more_slices() -> None:
    spared = Spared()
    tries = []
    for _ in range(8):
        spared.judge(is_bad=True)
        tries.append(0)
        while spared.take():
            tries[-1] += 1
    assert tries == [1, 2, 4, 8, 16, 16, 16, 16]
    spared.judge(is_bad=False)
    assert not spared.take()
    spared.judge(is_bad=True)
    spared.judge(is_bad=False)  # a slice that was in flight when the bad slice was found
    assert not spared.take()
    spared.judge(is_bad=True)
    assert spared.take() and not spared.take()


def test_no_text(device: Device) -> None:
    encoder = GpuEncoder(device, train(b"abc " * 100))
    assert encode(encoder, []) == []
    assert encode(encoder, [b"", b"", b"a", b""]) == [[], [], [97], []]


@pytest.mark.parametrize("match", ["bpe", "greedy"])
def test_an_encoder_is_freed_with_its_last_name(device: Device, match: str) -> None:
    """Its memory on the device is large: cycles may be collected late."""
    backend = Backend(device, "the device")
    text = b"abc abcd " * 20_000
    encoder = open_encoder(train(text).with_match(match), backend, 4096)
    gc.disable()
    try:
        assert sum(len(piece.ids) for piece in encoder.encode(corpus_from_bytes(text)))
        next(pieces := encoder.encode(corpus_from_bytes(text)))
        pieces.close()  # type: ignore[attr-defined]
        freed = weakref.ref(encoder)
        del encoder, pieces
        assert freed() is None
    finally:
        gc.enable()


@pytest.mark.skipif(library() is None, reason="there is no CPU engine here")
def test_pairs_from_c_are_those_of_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = train(hostile_text(4, 20_000))
    tokens = [*trained.tokens, b"aa", b"aa", b"", b"zzzzzzz"]
    none = np.empty((0, 3), np.uint32)
    ranks = Vocabulary(tokens, none, "class", trained.expression, match="bpe")
    ours = encoder_gpu.ranked_pairs(ranks)
    theirs = pair_ranks(ranks)
    np.testing.assert_array_equal(ours, theirs)
    of_bytes = byte_ids(ranks).view(np.uint32)
    packed = encoder_gpu.pack_pairs(of_bytes, ours)
    monkeypatch.setattr(encoder_gpu, "insert_pairs", lambda *_: False)
    plain = encoder_gpu.pack_pairs(of_bytes, theirs)
    assert len(packed) == len(plain)
    assert sorted(packed.tolist()) == sorted(plain.tolist())


def test_constants_of_the_host_are_those_of_the_kernels() -> None:
    assert constant("encode/params.wgsl", "NO_TOKEN") == NO_TOKEN
    assert constant("encode/02_merge.wgsl", "NO_RANK") == NO_RANK
    assert constant("encode/02_merge.wgsl", "BYTE_MASK") >= LONGEST


def test_slices_of_any_size_fit_into_webgpu_s_default_limits(portable_device: Device) -> None:
    vocabulary = train(b"ab abc abcab " * 20)
    text = b"ab abc " * 50
    encoder = GpuEncoder(portable_device, vocabulary, 1 << 40)
    assert encode(encoder, [text]) == ids_of_numpy(vocabulary, text)
