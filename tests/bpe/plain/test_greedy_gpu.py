"""The trie kernels against a plain longest-match loop, wherever the text is cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgpu.backend import Backend
from llmgpu.bpe.encoding.encoder import Encoder, Expecting
from llmgpu.bpe.encoding.encoder_numpy import NumpyEncoder
from llmgpu.bpe.encoding.open import open_encoder
from llmgpu.bpe.plain import greedy_gpu
from llmgpu.bpe.plain.greedy_gpu import GpuGreedyEncoder
from llmgpu.bpe.pretokens.names import PATTERNS
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import DeviceError, InputError
from llmgpu.gpu.adapters import OpenedAdapter, select_adapter
from llmgpu.gpu.device import Device
from llmgpu.text.corpus import corpus_from_bytes
from tests.bpe.encoding.test_encoder_numpy import BYTES, make_vocabulary
from tests.bpe.plain.test_recount_gpu import words
from tests.conftest import require_adapter
from tests.harness.devices import workgroups_of
from tests.reference import bpe as reference

LETTERS = b"abs \n0!'\x00\xe4\xb8"
TEXT = st.lists(st.sampled_from(LETTERS), max_size=400).map(bytes)
DOCUMENTS = st.lists(TEXT, min_size=1, max_size=4)
TOKENS = st.lists(
    st.lists(st.sampled_from(LETTERS), min_size=2, max_size=30).map(bytes),
    max_size=30,
    unique=True,
)


def encode(encoder: Encoder, documents: bytes | list[bytes]) -> tuple[list[int], list[int]]:
    """Return all ids and where the documents begin in them."""
    ids: list[int] = []
    starts: list[int] = []
    for piece in encoder.encode(corpus_from_bytes(documents)):
        starts += (piece.document_starts + len(ids)).tolist()
        ids += piece.ids.tolist()
    return ids, starts


def expected(vocabulary: Vocabulary, documents: list[bytes]) -> tuple[list[int], list[int]]:
    tokens = {token: number for number, token in enumerate(vocabulary.tokens)}
    ids: list[int] = []
    starts: list[int] = []
    for document in documents:
        starts.append(len(ids))
        ids += reference.greedy(document, tokens, vocabulary.pattern)
    return ids, starts


@given(
    documents=DOCUMENTS,
    tokens=TOKENS,
    pattern=st.sampled_from(sorted(PATTERNS)),
    slice_bytes=st.sampled_from([40, 333, 5_000]),
    chunk_bytes=st.sampled_from([1, 7, 64, 1024]),
    workgroup_size=st.sampled_from([64, 256]),
)
def test_ids_are_those_of_a_plain_loop(
    any_device: Device,
    documents: list[bytes],
    tokens: list[bytes],
    pattern: str,
    slice_bytes: int,
    chunk_bytes: int,
    workgroup_size: int,
) -> None:
    vocabulary = make_vocabulary(BYTES + tokens, pattern)
    with workgroups_of(any_device, workgroup_size):
        encoder = GpuGreedyEncoder(any_device, vocabulary, slice_bytes, chunk_bytes=chunk_bytes)
        assert encode(encoder, documents) == expected(vocabulary, documents)


@pytest.mark.parametrize("children", [1, 2, 3, 7])
def test_every_child_of_a_node_is_found(any_device: Device, children: int) -> None:
    letters = bytes(range(children))
    pairs = [b"a" + bytes([letter]) for letter in letters]
    vocabulary = make_vocabulary([*BYTES, *pairs, b"a\0a", b"a\0z"], "none")
    text = letters + b"za" + b"".join(pairs) + b"a\0za\0aaay"
    assert encode(GpuGreedyEncoder(any_device, vocabulary), text) == expected(vocabulary, [text])


CHINESE = "天地玄黄宇宙洪荒日月盈昃辰宿列张寒来暑往秋收冬藏".encode()
LONG_TEXTS = {
    "words": words(1, 150_000, 5_000),
    "chinese": CHINESE * 4_000,
    "binary": bytes(np.random.default_rng(2).integers(0, 256, 300_000, np.uint8)),
    "spaces": b" " * 70_000 + b"x" + b"\n" * 5_000,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(LONG_TEXTS))
@pytest.mark.parametrize("pattern", sorted(PATTERNS))
def test_numpy_gives_the_same_ids(device: Device, name: str, pattern: str) -> None:
    text = LONG_TEXTS[name]
    pairs = {text[i : i + length] for i in range(0, 3_000, 3) for length in (2, 3, 6, 11)}
    vocabulary = make_vocabulary(BYTES + sorted(pair for pair in pairs if len(pair) > 1), pattern)
    on_cpu = encode(NumpyEncoder(vocabulary), text)
    for slice_bytes, chunk_bytes in ((None, 256), (100_000, 64)):
        encoder = GpuGreedyEncoder(device, vocabulary, slice_bytes, chunk_bytes=chunk_bytes)
        assert encode(encoder, text) == on_cpu


@pytest.mark.slow
@pytest.mark.parametrize("workgroup_size", [64, 256])
def test_more_than_65535_chunks(any_device: Device, workgroup_size: int) -> None:
    text = words(3, 40_000, 2_000)
    assert len(text) > 140_000
    vocabulary = make_vocabulary([*BYTES, b"et", b" e", b"ao", b"eta"], "class")
    with workgroups_of(any_device, workgroup_size):
        encoder = GpuGreedyEncoder(any_device, vocabulary, len(text) + 1_000, chunk_bytes=2)
        assert encode(encoder, text) == encode(NumpyEncoder(vocabulary), text)


@pytest.mark.slow
def test_more_than_65535_chunks_some_in_long_words(device: Device) -> None:
    # Ten long words, so that no thread of trie_long_chain walks over very many chunks.
    letters = np.random.default_rng(4).choice(np.frombuffer(b"ab", np.uint8), 20_000)
    text = b"\n".join([letters.tobytes()] * 10)
    vocabulary = make_vocabulary([*BYTES, b"ab", b"bb", b"abb", b"a" * 9], "class")
    encoder = GpuGreedyEncoder(device, vocabulary, len(text) + 1_000, chunk_bytes=2)
    assert encode(encoder, text) == encode(NumpyEncoder(vocabulary), text)


@pytest.mark.parametrize(
    ("longest", "size", "chunk_bytes"), [(200, 4_000, 256), (64, 4_000, 1024), (3, 66_000, 1)]
)
def test_long_walks_lose_no_ids(device: Device, longest: int, size: int, chunk_bytes: int) -> None:
    # From every position the walk goes deep and comes back with one byte.
    vocabulary = make_vocabulary([*BYTES, b"a" * longest + b"b"], "class")
    encoder = GpuGreedyEncoder(device, vocabulary, 1 << 20, chunk_bytes=chunk_bytes)
    assert encode(encoder, b"a" * size)[0] == [97] * size


def test_more_chunks_than_a_workgroup_sums_at_once(device: Device) -> None:
    vocabulary = make_vocabulary([*BYTES, b"ab", b" c"], "class")
    encoder = GpuGreedyEncoder(device, vocabulary, 1 << 16, chunk_bytes=2)
    text = b"ab c bca " * 1000
    assert encode(encoder, text) == encode(NumpyEncoder(vocabulary), text)


def test_two_texts_at_a_time(device: Device) -> None:
    vocabulary = make_vocabulary([*BYTES, b"ab", b"ba"], "none")
    encoder = GpuGreedyEncoder(device, vocabulary, 1_000)
    texts = [b"ab" * 6_000 + b"x", b"bab" * 4_000]
    sources = [iter(encoder.encode(corpus_from_bytes(text))) for text in texts]
    ids: list[list[int]] = [[], []]
    open_sources = [0, 1]
    while open_sources:
        for k in list(open_sources):
            piece = next(sources[k], None)
            if piece is None:
                open_sources.remove(k)
            else:
                ids[k] += piece.ids.tolist()
    for got, text in zip(ids, texts, strict=True):
        assert got == encode(NumpyEncoder(vocabulary), text)[0]


def test_timing_covers_every_kernel_and_changes_nothing(device: Device) -> None:
    if "timestamp-query" not in device.features:
        pytest.skip("no timestamp queries")
    vocabulary = make_vocabulary([*BYTES, b"ab"], "class")
    device.gpu_seconds.clear()
    device.timing = True
    try:
        ids, _ = encode(GpuGreedyEncoder(device, vocabulary, 3_000), b"ab\n" * 5_000)
    finally:
        device.timing = False
    assert ids == [256, 10] * 5_000
    assert len(device.gpu_seconds) == 7


def test_a_vocabulary_larger_than_the_adapter_takes_is_refused() -> None:
    require_adapter()
    small = Device(
        OpenedAdapter(select_adapter(), limits={"max-storage-buffer-binding-size": 1 << 16})
    )
    pairs = [bytes([a, b]) for a in range(97, 123) for b in range(256)]
    vocabulary = make_vocabulary([*BYTES, *pairs], "class")
    with pytest.raises(DeviceError, match=r"trie nodes needs \d+ bytes, .* binds at most 65536"):
        GpuGreedyEncoder(small, vocabulary)


def test_ten_megabytes_of_one_letter(device: Device) -> None:
    vocabulary = make_vocabulary([*BYTES, b"a" * 2, b"a" * 7], "class")
    size = 10_000_003
    ids = np.concatenate(
        [
            piece.ids
            for piece in GpuGreedyEncoder(device, vocabulary).encode(corpus_from_bytes(b"a" * size))
        ]
    )
    sevens, rest = divmod(size, 7)
    twos, ones = divmod(rest, 2)
    assert ids.tolist() == [257] * sevens + [256] * twos + [97] * ones


def test_tokens_longer_than_chunks_are_found(device: Device) -> None:
    long = bytes(range(97, 123)) * 40
    vocabulary = make_vocabulary([*BYTES, long], "class")
    encoder = GpuGreedyEncoder(device, vocabulary, 3_000, chunk_bytes=16)
    assert encode(encoder, b"x" + long * 5 + b"y")[0] == [120, *[256] * 5, 121]


def test_a_byte_without_a_token_is_named(device: Device) -> None:
    vocabulary = make_vocabulary([bytes([value]) for value in range(256) if value != 0x7A], "class")
    encoder = GpuGreedyEncoder(device, vocabulary, 1 << 12, chunk_bytes=8)
    for shift in range(4):  # the byte's place in a number of 32 bits
        with pytest.raises(InputError, match=rf"0x7a at offset {1234 + shift} of the text"):
            encode(encoder, b"ab " * 411 + b"\n" * (1 + shift) + b"z" + b"ab" * 50)
    encoder = GpuGreedyEncoder(device, vocabulary, 100, chunk_bytes=8)
    with pytest.raises(InputError, match=r"0x7a at offset 1234 of the text"):
        encode(encoder, b"ab " * 411 + b"\nz" + b"ab" * 50)
    assert encode(encoder, b"ab")[0] == [97, 98]  # and the encoder still works


def test_the_unknown_token_stands_for_it(device: Device) -> None:
    tokens = [bytes([value]) for value in range(256) if value != 0x7A]
    vocabulary = make_vocabulary([*tokens, b"<unk>"], "class", unknown_token=255)
    documents = [b"azz", b"", b"zb"]
    on_cpu = encode(NumpyEncoder(vocabulary), documents)
    assert encode(GpuGreedyEncoder(device, vocabulary), documents) == on_cpu
    assert on_cpu == ([97, 255, 255, 255, 98], [0, 3, 3])


def test_an_abandoned_text_does_not_disturb_the_next(device: Device) -> None:
    vocabulary = make_vocabulary(BYTES, "class")
    encoder = GpuGreedyEncoder(device, vocabulary, 1_000)
    pieces = encoder.encode(corpus_from_bytes(b"ab" * 20_000))
    first = next(iter(pieces))
    assert first.ids[0] == 97
    pieces.close()  # type: ignore[attr-defined]
    assert encode(encoder, b"abc")[0] == [97, 98, 99]


class CountingDevice(Device):
    """A device that counts the buffers it makes, of every kind, and their bytes."""

    made = nbytes = 0

    def create_handle(self, label: str, nbytes: int, usage: str) -> Any:
        self.made += 1
        self.nbytes += nbytes * (label != "download")
        return super().create_handle(label, nbytes, usage)


def test_a_second_text_allocates_nothing(device: Device) -> None:
    counting = CountingDevice(device)
    encoder = GpuGreedyEncoder(counting, make_vocabulary(BYTES, "class"), 1_000)
    encode(encoder, b"ab" * 5_000)
    made = counting.made
    encode(encoder, b"ba" * 5_000)
    assert made > 0 and counting.made == made


def test_buffers_have_the_size_of_the_announced_text(device: Device) -> None:
    counting = CountingDevice(device)
    vocabulary = make_vocabulary([*BYTES, b"ab", b"bab"], "class")
    encoder = GpuGreedyEncoder(counting, vocabulary, 1 << 20, text_bytes=100)
    text = b"abab " * 60_000
    for announced, nbytes, least, most in (
        (100, 100, 600_000, 1_000_000),
        (10_000, 10_000, 0, 0),  # the buffers of the text before are large enough
        (100, 300_000, 400_000, 1_000_000),  # longer than announced: more slots, no larger slots
        (300_000, 300_000, 5_000_000, 6_000_000),
        (None, 300_000, 10_000_000, 12_000_000),
        (100, 300_000, 0, 0),
    ):
        counting.nbytes = 0
        encoder.expect(announced)
        piece = text[:nbytes]
        assert encode(encoder, piece) == encode(NumpyEncoder(vocabulary), piece)
        assert least <= counting.nbytes <= most


def test_slices_of_a_short_text_hold_the_longest_token(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(greedy_gpu, "SHORTEST_SLICE_BYTES", 1)
    long = bytes(range(97, 123)) * 40
    encoder = GpuGreedyEncoder(device, make_vocabulary([*BYTES, long], "none"), text_bytes=1)
    assert encode(encoder, b"x" + long * 5 + b"y")[0] == [120, *[256] * 5, 121]
    assert "_host" not in vars(encoder)  # where slices that are too short would be encoded


def test_an_encoder_is_opened_for_the_size_of_its_first_text(device: Device) -> None:
    counting = CountingDevice(device)
    vocabulary = make_vocabulary([*BYTES, b"ab"], "class").with_match("greedy")
    encoder = open_encoder(vocabulary, Backend(counting, "counting"), text_bytes=100)
    assert isinstance(encoder, Expecting)
    assert encode(encoder, b"abab")[0] == [256, 256]
    assert counting.nbytes < 1 << 20


def test_chunk_size_out_of_range(device: Device) -> None:
    with pytest.raises(ValueError, match="chunk_bytes is 4096"):
        GpuGreedyEncoder(device, make_vocabulary(BYTES, "class"), chunk_bytes=4096)


def test_a_token_too_long_for_a_thread_is_refused(device: Device) -> None:
    most = device.max_loop_iterations // 9
    vocabulary = make_vocabulary([*BYTES, b"a" * (most + 1)], "class")
    with pytest.raises(DeviceError, match=rf"longest token has {most + 1} bytes.*--device cpu"):
        GpuGreedyEncoder(device, vocabulary)
