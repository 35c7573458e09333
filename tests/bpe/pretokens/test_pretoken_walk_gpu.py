"""The kernels that walk a text by the expressions of cl100k's family and o200k."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from llmgpu.bpe.arrays import PADDING
from llmgpu.bpe.pretokens.names import PATTERNS
from llmgpu.bpe.pretokens.pretoken_gpu import REACH, GpuPretokenizer
from llmgpu.bpe.pretokens.slices import Slice
from llmgpu.gpu.device import Device
from llmgpu.kernel_source import compose
from tests.bpe.patterns import last_start, start_mask
from tests.bpe.pretokens.test_pattern_families import (
    CHARACTERS,
    DOCUMENTS,
    LONG,
    adversarial_texts,
    begins_of,
    expected_mask,
)

CAPACITY = 1 << 21
SCAN = {"scan": "common/scan_shared.wgsl"}
# The patterns whose kernels include walk.wgsl.
WALKING = sorted(
    name
    for name, found in PATTERNS.items()
    if "fn mark_segment" in compose(f"pretoken/{found.kernel}_starts.wgsl", SCAN).text
)
PLAIN = [*" \t\r\n'sSaB12.!/", "'ll", "'rE", "\n//", "; "]


def make_slice(text: bytes, begins: NDArray[np.int64], *, closed: bool) -> Slice:
    buffer = np.frombuffer(text + bytes(PADDING), np.uint8)
    return Slice(buffer[: len(text)], begins, closed, closed, buffer=buffer, main_end=len(text))


class Walker:
    """Marks texts on a device that begin with a pre-token."""

    def __init__(self, device: Device, pattern: str, reach: int | None = REACH) -> None:
        self._device = device
        self.pretokenizer = GpuPretokenizer(device, pattern, CAPACITY, reach=reach)

    def mask(
        self, text: bytes, begins: NDArray[np.int64], *, closed: bool = True
    ) -> NDArray[np.bool_]:
        """Mark a slice of text, in which documents begin, without looking whether it is decided."""
        self._device.write(self.pretokenizer.text, np.frombuffer(text, np.uint8))
        commands = self._device.record()
        self.piece = make_slice(text, begins, closed=closed)
        self.pretokenizer.record(commands, self.piece)
        commands.submit()
        return self.bits(len(text))

    def bits(self, length: int) -> NDArray[np.bool_]:
        """What the buffer of bits has."""
        bits = self._device.read(self.pretokenizer.start_bits, -(-length // 8), np.uint8)
        return np.unpackbits(bits, bitorder="little")[:length].astype(np.bool_)

    def undecided(self) -> int:
        """How many segments were not decided."""
        return int(self._device.read(self.pretokenizer.undecided, 1, np.uint32)[0])


@pytest.fixture(scope="module", params=WALKING)
def pattern(request: pytest.FixtureRequest) -> str:
    """Each pattern over runs."""
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def walker(any_device: Device, pattern: str) -> Walker:
    """The pattern's kernel on each device."""
    return Walker(any_device, pattern)


@given(documents=st.lists(adversarial_texts(), min_size=1, max_size=30))
def test_bits_are_those_of_the_expression(
    walker: Walker, pattern: str, documents: list[bytes]
) -> None:
    if not any(documents):
        return
    found = walker.mask(b"".join(documents), begins_of(documents))
    np.testing.assert_array_equal(found, expected_mask(documents, pattern))
    assert walker.undecided() == 0


@given(documents=DOCUMENTS, follows=adversarial_texts())
def test_bits_before_the_last_start_of_an_open_slice_hold(
    walker: Walker, pattern: str, documents: list[bytes], follows: bytes
) -> None:
    text, begins = b"".join(documents), begins_of(documents)
    if not text:
        return
    cut = last_start(np.frombuffer(text, np.uint8), pattern, begins)
    whole = expected_mask([*documents[:-1], documents[-1] + follows], pattern)
    found = walker.mask(text, begins, closed=False)
    np.testing.assert_array_equal(found[:cut], whole[:cut])
    rest = walker.mask(text[cut:] + follows, begins[begins > cut] - cut)
    np.testing.assert_array_equal(rest, whole[cut:])


@given(st.lists(st.sampled_from(PLAIN), min_size=1, max_size=8), st.integers(0, 1 << 32))
def test_plain_text(walker: Walker, pattern: str, pieces: list[str], seed: int) -> None:
    """Without documents' ends or characters beyond ASCII, segments are marked at once."""
    rng = np.random.default_rng(seed)
    text = "".join(rng.choice(pieces, 600, p=rng.dirichlet(np.ones(len(pieces)) / 2))).encode()
    found = walker.mask(text, np.zeros(1, np.int64))
    np.testing.assert_array_equal(found, expected_mask([text], pattern))
    assert walker.undecided() == 0


def test_numbers_in_plain_text(walker: Walker, pattern: str) -> None:
    """Runs of digits that begin at each place of a segment, and end in it or in the next one."""
    text = b" ".join(b"ab" * k + b" " + b"1" * n for k in range(9) for n in range(1, 12))
    found = walker.mask(text, np.zeros(1, np.int64))
    np.testing.assert_array_equal(found, expected_mask([text], pattern))


def test_the_first_and_last_sequences_of_each_length(walker: Walker, pattern: str) -> None:
    """A character joins the letters after it; bytes of no character are characters of their own."""
    points = (0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF)
    broken = ("c1bf", "e09fbf", "eda080", "edbfbf", "f08fbfbf", "f4908080", "f5808080", "f48fbf")
    sequences = [*(chr(point).encode() for point in points), *map(bytes.fromhex, broken)]
    documents = [b"1%babc %b\n" % (sequence, sequence) for sequence in sequences]
    found = walker.mask(b"".join(documents), begins_of(documents))
    np.testing.assert_array_equal(found, expected_mask(documents, pattern))


@pytest.mark.slow
def test_code_points_between_others(walker: Walker, pattern: str) -> None:
    frame = "{0}a{0}B{0}1{0}{0} {0}\n{0}!{0}'{0}"
    text = "".join(map(frame.format, [*CHARACTERS[:0x3400], *CHARACTERS[::97]])).encode()
    array = np.frombuffer(text, np.uint8)
    begins = np.zeros(1, np.int64)
    np.testing.assert_array_equal(walker.mask(text, begins), start_mask(array, pattern, begins))
    assert walker.undecided() == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG)
def test_long_runs_are_marked_or_said_to_be_undecided(
    walker: Walker, pattern: str, name: str
) -> None:
    documents = [LONG[name].encode(), b"a b" + LONG[name].encode() + b"x"]
    found = walker.mask(b"".join(documents), begins_of(documents))
    expected = expected_mask(documents, pattern)
    if walker.undecided() == 0:
        np.testing.assert_array_equal(found, expected)
    else:
        assert len(documents[0]) > walker.pretokenizer.reach
        walker.pretokenizer.mark_on_host(walker.piece)
        assert walker.undecided() == 0
        np.testing.assert_array_equal(walker.bits(len(expected)), expected)


@pytest.mark.slow
@pytest.mark.parametrize("unit", [" ", "1", "\n", "!", "a", "A", "\u6f22", "\u0301", "'s"])
def test_runs_within_reach_are_decided(walker: Walker, pattern: str, unit: str) -> None:
    run = unit * ((walker.pretokenizer.reach - 100) // len(unit.encode()))
    for document in (run, f"y. {run} z"):
        text = document.encode()
        found = walker.mask(text, np.zeros(1, np.int64))
        np.testing.assert_array_equal(found, expected_mask([text], pattern))
        assert walker.undecided() == 0


@pytest.mark.slow
def test_the_host_marks_what_is_undecided(walker: Walker, pattern: str) -> None:
    """Runs that are too long, next to one another and apart, and documents that end in them."""
    plain = b"It's 12 words, or so.\r\n" * 4000
    signs, spaces, digits = (unit * 2 * REACH for unit in (b"!", b" ", b"1"))
    documents = [signs + b"\n" + plain, plain + spaces, digits + plain * 3 + signs + spaces, plain]
    text, begins = b"".join(documents), begins_of(documents)
    assert len(text) < CAPACITY
    walker.mask(text, begins)
    expected = expected_mask(documents, pattern)
    assert walker.undecided() > 0
    walker.pretokenizer.mark_on_host(walker.piece)
    assert walker.undecided() == 0
    np.testing.assert_array_equal(walker.bits(len(text)), expected)


def test_a_slice_is_undecided_by_itself(walker: Walker) -> None:
    """The count is that of the slice marked last."""
    begins = np.zeros(1, np.int64)
    walker.mask(b"1" * 2 * REACH, begins)
    assert walker.undecided() > 0
    walker.mask(b"1 2", begins)
    assert walker.undecided() == 0


def test_a_software_adapter_leaves_more_to_the_host(device: Device, pattern: str) -> None:
    walker = Walker(device, pattern, reach=None)
    runs = [unit * (REACH // 2) + b" x" for unit in (b"a", b"!", b"1", b"\n")]
    text, begins = b"".join(runs), begins_of(runs)
    expected = expected_mask(runs, pattern)
    found = walker.mask(text, begins)
    assert (walker.undecided() > 0) == device.is_software
    if device.is_software:
        walker.pretokenizer.mark_on_host(walker.piece)
        found = walker.bits(len(text))
    np.testing.assert_array_equal(found, expected)
