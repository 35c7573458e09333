"""The recount trainer against the sequential algorithm, and against the NumPy trainer."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from llmgpu.bpe.plain import recount_gpu
from llmgpu.bpe.plain.recount_gpu import STATE
from llmgpu.bpe.pretokens.names import PATTERNS
from llmgpu.bpe.training import batched_numpy
from llmgpu.bpe.training.options import TrainingOptions
from llmgpu.bpe.training.symbols import Merges, MergeTask, byte_symbols, translate
from llmgpu.bpe.vocabulary.building import byte_ranks
from llmgpu.bpe.words.count_host import count_words
from llmgpu.errors import DeviceError, LlmgpuError
from llmgpu.gpu.adapters import Buffer, OpenedAdapter, select_adapter
from llmgpu.gpu.commands import Commands
from llmgpu.gpu.device import Device
from llmgpu.gpu.kernel import BoundKernel, Kernel
from llmgpu.kernel_source import constant
from llmgpu.progress import no_progress
from llmgpu.text.corpus import corpus_from_bytes
from tests.bpe.word_lists import byte_ids
from tests.conftest import require_adapter
from tests.harness.devices import workgroups_of
from tests.reference import bpe as reference

KERNELS = 10  # the recount folder's, and that which marks where pre-tokens start
SMALL_GROUP = 16
SMALL_TILE = recount_gpu.RUN_TILE * recount_gpu.SYMBOLS_PER_THREAD * SMALL_GROUP  # symbols
# Runs, ties, byte 0, boundaries of all kinds.
TEXT = st.lists(st.sampled_from(b"aab \n0!\x00\xc3"), max_size=300).map(bytes)
DOCUMENTS = st.lists(TEXT, min_size=1, max_size=3).filter(any)


def train(
    device: Device,
    documents: list[bytes],
    *,
    merges: int,
    tie: str = "bytes",
    workgroup_size: int = Device.workgroup_size,
    **options: object,
) -> Merges:
    lengths = [len(document) for document in documents]
    starts = np.array([0, *itertools.accumulate(lengths)][:-1], np.int64)
    text = np.frombuffer(b"".join(documents), np.uint8)
    names = {field.name for field in fields(TrainingOptions)} & set(options)
    training: Any = {name: options.pop(name) for name in names}
    wanted = TrainingOptions(256 + merges, tie=tie, **training)
    with workgroups_of(device, workgroup_size):
        return recount_gpu.train(device, text, starts, wanted, **options)  # type: ignore[arg-type]


def replay(
    documents: list[bytes], merges: list[tuple[int, int]], pattern: str
) -> tuple[list[int], int]:
    """Return how often each pair occurs when it is merged, and the symbols left at the end."""
    words = Counter(
        tuple(piece) for text in documents for piece in reference.pre_tokens(text, pattern)
    )
    counts = []
    for number, pair in enumerate(merges):
        occurrences = {word: list(itertools.pairwise(word)).count(pair) for word in words}
        counts.append(sum(words[word] * count for word, count in occurrences.items()))
        words = reference.merge_words(words, pair, 256 + number)
    return counts, sum(len(word) * weight for word, weight in words.items())


def merge_everywhere(
    symbols: NDArray[np.int64], left: int, right: int, new: int
) -> NDArray[np.int64]:
    """Merge a pair in a text without pre-tokens, from the left in runs of one symbol."""
    first = np.flatnonzero((symbols[:-1] == left) & (symbols[1:] == right))
    if left == right:
        begins = np.flatnonzero(np.diff(first, prepend=-2) != 1)  # in first
        place = np.arange(len(first)) - np.repeat(begins, np.diff(begins, append=len(first)))
        first = first[place % 2 == 0]
    merged = symbols.copy()
    merged[first] = new
    return np.delete(merged, first + 1)


def words(seed: int, count: int, distinct: int) -> bytes:
    """Text whose words are as unevenly frequent as those of a language."""
    rng = np.random.default_rng(seed)
    letters = np.frombuffer(b"etaoinshrdlucmfwypvbgk", np.uint8)
    listed = [bytes(rng.choice(letters, rng.integers(1, 10))) for _ in range(distinct)]
    picks = np.minimum(rng.zipf(1.3, count) - 1, distinct - 1)
    return b" ".join(listed[pick] for pick in picks)


@given(
    documents=DOCUMENTS,
    pattern=st.sampled_from(["class", "none"]),
    tie=st.sampled_from(["bytes", "hf"]),
    min_frequency=st.sampled_from([0, 1, 2, 3]),
    workgroup_size=st.sampled_from([64, 256]),
    table_slots=st.sampled_from([16, 65_536]),
    count_tile=st.sampled_from([1, 100, 256, 4096]),
    symbol_bytes=st.sampled_from([2, 4]),
)
def test_merges_are_those_of_the_sequential_algorithm(
    any_device: Device,
    documents: list[bytes],
    pattern: str,
    tie: str,
    min_frequency: int,
    workgroup_size: int,
    table_slots: int,
    count_tile: int,
    symbol_bytes: int,
) -> None:
    trained = train(
        any_device,
        documents,
        merges=20,
        tie=tie,
        pattern=pattern,
        min_frequency=min_frequency,
        workgroup_size=workgroup_size,
        table_slots=table_slots,
        count_tile=count_tile,
        symbol_bytes=symbol_bytes,
    )
    expected = reference.train(documents, 20, pattern, tie, min_frequency)
    assert [tuple(pair) for pair in trained.pairs.tolist()] == expected
    counts = trained.counts.tolist()
    assert (counts, trained.symbols) == replay(documents, expected, pattern)


@pytest.mark.parametrize("symbol_bytes", [2, 4])
@pytest.mark.parametrize("length", [1, 2, 3, 255, 256, 257, 511, 513, 4097, 66_000])
def test_one_run_merges_left_to_right(any_device: Device, length: int, symbol_bytes: int) -> None:
    options: dict[str, Any] = {"pattern": "none", "min_frequency": 1, "symbol_bytes": symbol_bytes}
    trained = train(any_device, [b"a" * length], merges=3, **options)
    assert [tuple(pair) for pair in trained.pairs.tolist()] == reference.train(
        [b"a" * length], 3, "none", "bytes", 1
    )


@pytest.mark.parametrize("before", [0, 1, 700, 1023, 2500])
@pytest.mark.parametrize("length", [3, 1025, 5001])
def test_runs_over_several_blocks_keep_their_starts(
    any_device: Device, before: int, length: int
) -> None:
    documents = [b"bc" * (before // 2) + b"b" * (before % 2) + b"a" * length + b"bc"]
    trained = train(any_device, documents, merges=5, pattern="none", min_frequency=1)
    pairs = [tuple(pair) for pair in trained.pairs.tolist()]
    assert pairs == reference.train(documents, 5, "none", "bytes", 1)
    assert (trained.counts.tolist(), trained.symbols) == replay(documents, pairs, "none")


@pytest.mark.parametrize("before", [5, SMALL_TILE // 2 - 2, SMALL_TILE // 2 - 1])
def test_runs_over_several_tiles_of_blocks_keep_their_starts(
    any_device: Device, before: int
) -> None:
    # The long run has a number of letters that two merges halve without a rest: a start at an odd
    # distance from the right one costs a merge. The run before it moves its start with each merge.
    text = b"a" * before + b"b" + b"a" * (4 * SMALL_TILE + 4) + b"cb"
    symbols = np.frombuffer(text, np.uint8).astype(np.int64)
    options = {"merges": 4, "pattern": "none", "workgroup_size": SMALL_GROUP}
    trained = train(any_device, [text], **options)  # type: ignore[arg-type]
    for number, ((left, right), count) in enumerate(
        zip(trained.pairs.tolist(), trained.counts.tolist(), strict=True)
    ):
        pairs = np.bincount(symbols[:-1] * 260 + symbols[1:])
        assert (left * 260 + right, count) == (int(pairs.argmax()), pairs.max())
        symbols = merge_everywhere(symbols, left, right, 256 + number)
    assert (len(trained.pairs), trained.symbols) == (4, len(symbols))


@pytest.mark.parametrize("symbol_bytes", [2, 4])
@pytest.mark.parametrize("seed", range(4))
def test_blocks_that_keep_few_symbols_share_words_of_memory(
    any_device: Device, seed: int, symbol_bytes: int
) -> None:
    rng, documents = np.random.default_rng(seed), []
    letters = np.frombuffer(b"abc", np.uint8)
    for kept in rng.choice([0, 2, 3, 5], 40):
        word = rng.choice(letters, kept).tobytes()
        singles = [b"a"] * (4 * 64 - kept)  # a document of one letter leaves the text
        at = int(rng.integers(len(singles)))
        documents += [*singles[:at], *filter(None, [word]), *singles[at:]]
    options: dict[str, Any] = {"pattern": "none", "min_frequency": 1, "symbol_bytes": symbol_bytes}
    trained = train(any_device, documents, merges=12, workgroup_size=64, **options)
    pairs = [tuple(pair) for pair in trained.pairs.tolist()]
    assert pairs == reference.train(documents, 12, "none", "bytes", 1)
    assert (trained.counts.tolist(), trained.symbols) == replay(documents, pairs, "none")


@pytest.mark.parametrize("pattern", sorted(PATTERNS))
def test_every_pattern(any_device: Device, pattern: str) -> None:
    documents = [words(7, 60, 30) + " Ünder 1234 \r\n\n it's  ÇA\t東京".encode(), b"", b"a"]
    trained = train(any_device, documents, merges=25, pattern=pattern, tie="hf", workgroup_size=64)
    pairs = [tuple(pair) for pair in trained.pairs.tolist()]
    assert pairs == reference.train(documents, 25, pattern, "hf", 2)


@pytest.mark.parametrize(("tokens", "symbol_bytes"), [(32_768, 2), (65_536, 4)])
def test_the_largest_ranks_of_both_sizes_of_symbols(
    any_device: Device, tokens: int, symbol_bytes: int
) -> None:
    documents, merges = [b"ababab cab" * 30, words(7, 300, 60)], 60
    text = np.frombuffer(b"".join(documents), np.uint8)
    options = TrainingOptions(tokens, pattern="class", tie="bytes")
    with workgroups_of(any_device, 64):
        loop = recount_gpu._RecountLoop(any_device, len(text), options, 1024, 256, symbol_bytes)
    loop.load(text, np.array([0, len(documents[0])]))
    # The loop goes on as if almost all merges were made, of which no symbol is left in the text.
    made = tokens - 256 - merges
    state = any_device.read(loop._buffers["state"], STATE.itemsize, np.uint8).view(STATE)
    state["merge_count"] = made
    any_device.write(loop._buffers["state"], state)
    trained = loop.run(no_progress)
    expected = reference.train(documents, merges, "class", "bytes", 2)
    assert trained.symbols == replay(documents, expected, "class")[1]
    pairs = [tuple(i - made * (i > 255) for i in pair) for pair in trained.pairs[made:].tolist()]
    assert pairs == expected and len(pairs) == merges


def test_symbols_have_as_few_bytes_as_hold_them(device: Device) -> None:
    hardware = _Hardware(device)
    for tokens, symbols in ((32_768, 2), (32_769, 1)):
        train(hardware, [b"abcab"], merges=tokens - 256, pattern="none")
        assert hardware.asked["recount/02_pair_count.wgsl"]["symbols_per_word"] == symbols


@pytest.mark.slow
def test_workgroup_and_table_sizes_change_nothing(any_device: Device) -> None:
    documents = [words(1, 4_000, 700), words(2, 4_000, 700)]
    results = [
        train(
            any_device,
            documents,
            merges=150,
            pattern="class",
            workgroup_size=workgroup_size,
            table_slots=table_slots,
        )
        for workgroup_size, table_slots in [(64, 64), (256, 64), (256, 1 << 16), (128, 1 << 12)]
    ]
    for other in results[1:]:
        np.testing.assert_array_equal(results[0].pairs, other.pairs)
        np.testing.assert_array_equal(results[0].counts, other.counts)
        assert results[0].symbols == other.symbols


def test_a_table_that_pairs_fill_grows(device: Device) -> None:
    documents = [words(9, 300, 60)]
    trained = train(device, documents, merges=10, pattern="class", table_slots=16)
    expected = reference.train(documents, 10, "class", "bytes", 2)
    assert [tuple(pair) for pair in trained.pairs.tolist()] == expected


class _Hardware(Device):
    """A device that takes itself for hardware, and remembers what it compiles."""

    is_software = False  # type: ignore[assignment]

    def __init__(self, device: Device) -> None:
        self.asked: dict[str, Mapping[str, int | str]] = {}
        super().__init__(device)

    def begin_kernel(
        self, file: str, constants: Mapping[str, int | str], *, in_thread: bool = True
    ) -> Future[Kernel]:
        self.asked[file] = constants
        return super().begin_kernel(file, constants, in_thread=in_thread)


class _Watched(Device):
    """A device that remembers its buffers by label."""

    def __init__(self, device: Device) -> None:
        self.made: dict[str, Buffer] = {}
        super().__init__(device)

    def create_buffer(self, label: str, nbytes: int) -> Buffer:
        self.made[label] = super().create_buffer(label, nbytes)
        return self.made[label]


@pytest.mark.parametrize("merges", [0, 1, 2, 5, 40])
def test_words_of_one_symbol_leave_the_text(device: Device, merges: int) -> None:
    watched, documents = _Watched(device), [b"aaaa ab ab abc b a", b"aaa bcd", b"a"]
    options = {"pattern": "class", "min_frequency": 1}
    trained = train(watched, documents, merges=merges, **options)  # type: ignore[arg-type]
    pieces = [tuple(one) for text in documents for one in reference.pre_tokens(text, "class")]
    for number, pair in enumerate(trained.pairs.tolist()):
        pieces = [reference.merge_word(piece, tuple(pair), 256 + number) for piece in pieces]
    assert trained.symbols == sum(map(len, pieces))
    # The last iteration finds no merge. It has counted the text that the last merge has left.
    state = watched.read(watched.made["state"], STATE.itemsize, np.uint8).view(STATE)
    left = sum(len(piece) for piece in pieces if len(piece) > 1)
    assert state["symbol_count"][0] == (left if len(trained.pairs) else sum(map(len, pieces)))
    # The table is empty for the next count.
    used = {pair for piece in pieces for pair in itertools.pairwise(piece)}
    assert state["used_slots"][0] == len(used)
    slots = int(state["table_size"][0])
    assert (watched.read(watched.made["pair ids"], slots, np.uint32) == 0xFFFFFFFF).all()


def test_no_iteration_is_submitted_after_the_last(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels: list[str] = []
    dispatch = Commands.dispatch

    def counted(self: Commands, kernel: BoundKernel, groups: int) -> None:
        labels.append(kernel.label)
        dispatch(self, kernel, groups)

    monkeypatch.setattr(Commands, "dispatch", counted)
    train(device, [words(5, 900, 200)], merges=30, pattern="class")
    assert labels.count("bpe_setup_merge") == 31  # the last one ends the loop


@pytest.mark.parametrize("slots", [64, 1024, 2048])
def test_slots_and_the_tile_of_hardware_reach_the_kernels(device: Device, slots: int) -> None:
    hardware, documents = _Hardware(device), [words(5, 900, 200)]
    trained = train(hardware, documents, merges=30, pattern="class", recount_slots=slots)
    counting = hardware.asked["recount/02_pair_count.wgsl"]
    tile = constant("recount/iter_state.wgsl", "COUNT_TILE")
    assert (counting["LOCAL_TABLE_SIZE"], counting["COUNT_TILE"]) == (slots, tile)
    assert tile != recount_gpu.SOFTWARE_COUNT_TILE
    assert hardware.asked["recount/01_clear_table.wgsl"]["COUNT_TILE"] == tile
    expected = reference.train(documents, 30, "class", "bytes", 2)
    assert [tuple(pair) for pair in trained.pairs.tolist()] == expected


@pytest.mark.slow
@pytest.mark.parametrize("tie", ["hf", "bytes"])
def test_numpy_makes_the_same_merges(device: Device, tie: str) -> None:
    text = words(3, 12_000, 3_000)
    on_gpu = train(device, [text], merges=300, tie=tie, pattern="class")
    ranks = byte_ranks(tie)
    symbols = byte_symbols(count_words(corpus_from_bytes(text), "class"), ranks)
    on_cpu = batched_numpy.train(symbols, TrainingOptions(256), MergeTask(merges=300))
    results = np.arange(256, 256 + len(on_cpu.pairs), dtype=np.uint32)
    merges = translate(on_cpu.pairs, results, byte_ids(ranks))
    np.testing.assert_array_equal(on_gpu.pairs, merges[:, :2])
    np.testing.assert_array_equal(on_gpu.counts, on_cpu.counts)
    assert on_gpu.symbols == on_cpu.symbols


def test_sums_of_more_blocks_than_a_workgroup_scans_at_once(device: Device) -> None:
    size = 64 * recount_gpu.SYMBOLS_PER_THREAD * (4 * 64 + 300)
    text = np.random.default_rng(3).choice(np.frombuffer(b"aab", np.uint8), size).tobytes()
    options = TrainingOptions(258, pattern="none", tie="bytes")
    symbols = byte_symbols(count_words(corpus_from_bytes(text), "none"), byte_ranks("bytes"))
    on_cpu = batched_numpy.train(symbols, options, MergeTask(merges=2))
    on_gpu = train(device, [text], merges=2, pattern="none", tie="bytes", workgroup_size=64)
    np.testing.assert_array_equal(on_gpu.counts, on_cpu.counts)
    assert on_gpu.symbols == on_cpu.symbols


@pytest.mark.slow
def test_more_than_65535_blocks_and_2_to_the_24_symbols(device: Device) -> None:
    rng = np.random.default_rng(4)
    size = (1 << 24) + 300_001
    text = rng.choice(np.frombuffer(b"abcd", np.uint8), size, p=[0.4, 0.3, 0.2, 0.1])
    starts = np.zeros(1, np.int64)
    trained = recount_gpu.train(
        device, text, starts, TrainingOptions(258, pattern="none", tie="bytes")
    )
    symbols = text.astype(np.int64)
    for new, pair, count in zip((256, 257), trained.pairs, trained.counts, strict=True):
        pairs = np.bincount(symbols[:-1] * 258 + symbols[1:])
        best = int(pairs.argmax())  # the first of equals, which is the lowest pair
        assert pair.tolist() == list(divmod(best, 258))
        assert count == pairs[best]
        symbols = merge_everywhere(symbols, *divmod(best, 258), new)
    assert trained.pairs[0].tolist() == [97, 97]
    assert trained.symbols == len(symbols)


@pytest.mark.slow
def test_trainings_on_one_device_do_not_disturb_one_another(device: Device) -> None:
    text, other = words(5, 1_000, 300), words(6, 500, 100)
    alone = [
        train(device, [one], merges=merges, pattern="class")
        for one, merges in ((text, 60), (other, 10))
    ]
    nested: list[Merges] = []

    def train_the_other(*_: object) -> None:
        # Not each time: what takes long between submissions makes them smaller, and more of them.
        if len(nested) < 3:
            nested.append(train(device, [other], merges=10, pattern="class"))

    together = train(device, [text], merges=60, pattern="class", progress=train_the_other)
    assert len(nested) >= 2  # so some ran between submissions of the first
    for trained, expected in ((together, alone[0]), *((one, alone[1]) for one in nested)):
        np.testing.assert_array_equal(trained.pairs, expected.pairs)
        np.testing.assert_array_equal(trained.counts, expected.counts)
        assert trained.symbols == expected.symbols


def test_more_tokens_than_16_bits_number_are_refused(device: Device) -> None:
    with pytest.raises(LlmgpuError, match=r"65537 tokens asked for, but the limit is 65536"):
        train(device, [b"abc"], merges=65_537 - 256, pattern="class")


@pytest.mark.parametrize(("tokens", "most"), [(32_768, 524_288), (32_769, 262_144)])
def test_a_text_larger_than_the_adapter_takes_is_refused(tokens: int, most: int) -> None:
    require_adapter()
    small = Device(
        OpenedAdapter(select_adapter(), limits={"max-storage-buffer-binding-size": 1 << 20})
    )
    with pytest.raises(DeviceError, match=rf"more than {most} bytes.*--limit {most}"):
        train(small, [b"a" * (most + 1)], merges=tokens - 256, pattern="none")
    assert train(small, [b"a" * most], merges=tokens - 256, pattern="none").symbols == 2


def test_a_minimum_frequency_of_more_than_32_bits(device: Device) -> None:
    trained = train(device, [b"ababab"], merges=3, pattern="none", min_frequency=1 << 33)
    assert (len(trained.pairs), trained.symbols) == (0, 6)


@pytest.mark.slow
def test_an_interrupted_training_does_not_disturb_the_next(device: Device) -> None:
    text = words(8, 3_000, 500)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    first = train(device, [text], merges=40, pattern="class")
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            train(device, [text[::-1]], merges=40, pattern="class", progress=interrupt)
    again = train(device, [text], merges=40, pattern="class")
    np.testing.assert_array_equal(first.pairs, again.pairs)
    np.testing.assert_array_equal(first.counts, again.counts)


@pytest.mark.slow
def test_timing_covers_every_kernel_and_changes_nothing(device: Device) -> None:
    if "timestamp-query" not in device.features:
        pytest.skip("no timestamp queries")
    text = words(9, 2_000, 300)
    plain = train(device, [text], merges=30, pattern="class")
    device.gpu_seconds.clear()
    device.timing = True
    try:
        timed = train(device, [text], merges=30, pattern="class")
    finally:
        device.timing = False
    np.testing.assert_array_equal(plain.pairs, timed.pairs)
    assert len(device.gpu_seconds) == KERNELS
    assert all(seconds >= 0 for seconds in device.gpu_seconds.values())
    assert device.gpu_seconds["bpe_pair_count_b"] > 0


def test_progress_is_reported(device: Device) -> None:
    calls: list[tuple[str, int, int | None]] = []
    train(
        device,
        [words(6, 500, 100)],
        merges=12,
        pattern="class",
        progress=lambda *call: calls.append(call),
    )
    assert calls[-1] == ("merging", 12, 12)
