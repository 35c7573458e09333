"""The kernels that mark where pre-tokens start, against the expressions and the NumPy rule."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from llmgpu.bpe.arrays import PADDING
from llmgpu.bpe.pretokens import unicode_classes
from llmgpu.bpe.pretokens.names import PATTERNS
from llmgpu.bpe.pretokens.pretoken_gpu import BLOCK, REACH, GpuPretokenizer, pack_classes
from llmgpu.bpe.pretokens.slices import Slice, SliceReader
from llmgpu.gpu.device import Device
from llmgpu.kernel_source import constant
from llmgpu.text.corpus import corpus_from_bytes
from tests.bpe.patterns import start_mask
from tests.bpe.pretokens.test_pattern import ANY_TEXT, PIECES
from tests.bpe.pretokens.test_pretoken_walk_gpu import WALKING
from tests.reference import bpe as reference

CAPACITY = 1 << 16


class Marker:
    """Marks texts on a device, slice by slice."""

    def __init__(self, device: Device, pattern: str, capacity: int = CAPACITY) -> None:
        self._device, self._pattern = device, pattern
        self._pretokenizer = GpuPretokenizer(device, pattern, capacity, reach=REACH)

    def mask(self, piece: Slice, text: NDArray[np.uint8]) -> NDArray[np.bool_]:
        self._device.write(self._pretokenizer.text, text)
        commands = self._device.record()
        self._pretokenizer.record(commands, piece)
        commands.submit()
        bits = self._device.read(self._pretokenizer.start_bits, -(-len(text) // 8), np.uint8)
        return np.unpackbits(bits, bitorder="little")[: len(text)].astype(np.bool_)

    def documents(self, documents: list[bytes], size: int) -> list[bool]:
        """Mark documents in slices of `size` bytes, of more where a pre-token is longer."""
        reader = SliceReader(corpus_from_bytes(documents), self._pattern)
        marks: list[bool] = []
        while (piece := reader.read(np.zeros(size + PADDING, np.uint8))) is not None:
            if piece.length:
                marks += self.mask(piece, piece.text)[: piece.main_end].tolist()
        return marks


@pytest.fixture(scope="module", params=sorted(set(PATTERNS) - set(WALKING)))
def marked_pattern(request: pytest.FixtureRequest) -> str:
    """Each pattern that is no walk over runs."""
    name: str = request.param
    return name


@given(documents=st.lists(ANY_TEXT, max_size=5), size=st.sampled_from([40, 64, 100, CAPACITY]))
def test_bits_are_those_of_the_expression(
    any_device: Device, marked_pattern: str, documents: list[bytes], size: int
) -> None:
    marks = Marker(any_device, marked_pattern).documents(documents, size)
    assert marks == reference.pre_token_starts(documents, marked_pattern)


def test_long_texts_are_marked_as_in_numpy(any_device: Device, marked_pattern: str) -> None:
    """Characters of one byte, of several, and both, over many workgroups and many slices."""
    rng = np.random.default_rng(7)
    plain = [piece for piece in PIECES if piece.isascii()]
    texts = [
        "".join(rng.choice(pieces, 12_000)) for pieces in (plain, PIECES, [*plain * 9, "\u6f22"])
    ]
    documents = [text.encode() for text in texts]
    data = np.frombuffer(b"".join(documents), np.uint8)
    lengths = np.array([len(document) for document in documents])
    expected = start_mask(data, marked_pattern, np.cumsum(lengths) - lengths)
    for size in (len(data), 5000):
        marker = Marker(any_device, marked_pattern, len(data))
        marks = marker.documents(documents, size)
        np.testing.assert_array_equal(marks, expected)


@pytest.mark.slow
def test_every_code_point_between_letters(device: Device) -> None:
    points = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    text = "".join(f"a{chr(c)}b {chr(c)}1" for c in points[::3] + list(range(0x3100))).encode()
    marks = Marker(device, "gpt2", len(text)).documents([text], len(text))
    data = np.frombuffer(text, np.uint8)
    np.testing.assert_array_equal(marks, start_mask(data, "gpt2", np.zeros(1, np.int64)))


@pytest.mark.parametrize("version", unicode_classes.VERSIONS)
def test_the_packed_table_is_that_of_the_classes(version: str) -> None:
    table = pack_classes(version)
    points = np.arange(0x110000)
    words = table[0x110000 // BLOCK + table[points // BLOCK] * BLOCK // 8 + points % BLOCK // 8]
    classes = words >> (points % 8 * 4).astype(np.uint32) & 15
    np.testing.assert_array_equal(classes, unicode_classes.code_point_classes(version))


def test_constants_are_those_of_the_host() -> None:
    file = "pretoken/unicode.wgsl"
    assert constant(file, "BLOCK_COUNT") == 0x110000 // BLOCK
    names = {"OTHER": "OTHER_CATEGORY", "NUMBER": "NUMBER_CATEGORY"}
    for name in ("OTHER", "UPPERCASE", "LOWERCASE", "OTHER_LETTER", "MARK", "NUMBER"):
        assert constant(file, names.get(name, name)) == getattr(unicode_classes, name)
    assert constant(file, "WHITE_SPACE") == unicode_classes.WHITE_SPACE
