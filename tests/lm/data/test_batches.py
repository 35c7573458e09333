"""Batches: which tokens they hold, in which order, and that a resumed run gets the same ones."""

from __future__ import annotations

import threading
import zlib
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from llmgpu.bpe.encoding.encoder import EncodedSlice
from llmgpu.bpe.vocabulary.building import byte_vocabulary
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import InputError
from llmgpu.lm.data.batches import (
    IGNORED_TARGET,
    ROUNDS,
    Batches,
    TokenSource,
    divide,
    document_starts,
    mix,
    open_token_files,
    permute,
    token_bytes,
)
from llmgpu.lm.options import TrainOptions
from llmgpu.tokens.formats import open_writer
from tests.lm.vocabularies import sample_vocabulary

VOCABULARY = sample_vocabulary()


def test_a_document_begins_with_the_separator_before_it() -> None:
    tokens = np.array([[5, 0, 6, 7, 0, 0, 8], [0, 1, 2, 3, 4, 5, 0], [9] * 7], np.uint32)
    starts = [[0, 1, 1, 1, 4, 5, 5], [0, 0, 0, 0, 0, 0, 6], [0] * 7]
    assert document_starts(tokens, 0).tolist() == starts
    assert document_starts(tokens, 0).dtype == np.uint32


def source_of(folder: Path, count: int) -> TokenSource:
    """Tokens that are all different, as far as uint16 goes: each is its position."""
    path = folder / f"{count}.bin"
    many = byte_vocabulary("none", "hf")
    vocabulary = Vocabulary(
        tokens=many.tokens + (b"ab",) * (65_536 - 256),
        merges=many.merges,
        pattern=many.pattern,
        expression=many.expression,
    )
    with open_writer(path, "bin", vocabulary) as writer:
        writer.write(EncodedSlice(np.arange(count, dtype=np.uint32), np.zeros(1, np.int64)))
    return open_token_files([str(path)], vocabulary, "v.bin")


def batches_of(source: TokenSource, batch_size: int, seq_len: int, **options: Any) -> Batches:
    some = {"seed": 0, "evaluation_parts": 1} | options
    return Batches(source, TrainOptions(batch_size=batch_size, **some), seq_len)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> TokenSource:
    return source_of(tmp_path_factory.mktemp("tokens"), 10_007)


def starts_of_epoch(batches: Batches, epoch: int) -> list[int]:
    """Where the sequences of an epoch begin, by their first tokens."""
    count, size = batches.training_sequences, batches.batch_size
    starts: list[int] = []
    for position in range(epoch * count, (epoch + 1) * count, size):
        starts += batches.training(position)[0][:, 0].tolist()
    return starts[:count]


def test_ids_are_checked_without_threads_in_a_limited_address_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The heap of a thread may be too large for the address space."""
    started: list[object] = []
    monkeypatch.setattr(threading.Thread, "start", started.append)
    checksum = source_of(tmp_path, 100).checksum
    assert checksum == zlib.crc32(np.arange(100, dtype="<u4").tobytes()) and not started


def test_a_loss_mask_leaves_targets_out(tmp_path: Path, source: TokenSource) -> None:
    rng = np.random.default_rng(3)
    mask = rng.random(10_007) < 0.5
    ids = np.arange(10_007, dtype=np.uint32)
    paths = []
    for begin, end, masked in ((0, 4_000, True), (4_000, 5_000, False), (5_000, 10_007, True)):
        paths.append(str(tmp_path / f"{begin}.bin"))
        with open_writer(paths[-1], "bin", source.vocabulary, masked=masked) as writer:
            piece = EncodedSlice(ids[begin:end], np.zeros(1, np.int64), mask=mask[begin:end])
            writer.write(piece)
    mask[4_000:5_000] = True  # without a mask, all ids count
    masked_source = open_token_files(paths, source.vocabulary, "v.bin")
    assert masked_source.mask_checksum == zlib.crc32(mask.tobytes())
    options: dict[str, Any] = {"batch_size": 4, "seq_len": 32}
    plain, counted = batches_of(source, **options), batches_of(masked_source, **options)
    rows = [(plain.training(k), counted.training(k)) for k in range(0, 600, 4)]
    rows += zip(plain.evaluation(), counted.evaluation(), strict=True)
    for (tokens, targets), (same_tokens, some) in rows:
        assert np.array_equal(tokens, same_tokens)
        left = (targets != IGNORED_TARGET) & ~mask[np.minimum(targets, 10_006)]
        assert np.array_equal(some, np.where(left, IGNORED_TARGET, targets))


def test_targets_are_the_next_tokens(source: TokenSource) -> None:
    batches = batches_of(source, 4, 32)
    rows = [batches.training(position) for position in (0, 4, 1_000, 99_999_999_999)]
    for tokens, targets in [*rows, *batches.evaluation()]:
        assert tokens.shape == targets.shape == (4, 32)
        assert tokens.dtype == targets.dtype == np.uint32
        used = targets[:, 0] != IGNORED_TARGET
        assert (np.diff(tokens[used].astype(np.int64), axis=1) == 1).all()
        assert (targets[used] == tokens[used] + 1).all()


@pytest.mark.parametrize("seq_len", [pytest.param(1, marks=pytest.mark.slow), 7, 32, 1_000, 4_000])
def test_an_epoch_has_each_sequence_once(source: TokenSource, seq_len: int) -> None:
    batches = batches_of(source, 50, seq_len, seed=5)
    held_out = batches.evaluation_sequences * seq_len
    orders = [starts_of_epoch(batches, epoch) for epoch in range(3)]
    for starts in orders:
        ordered = sorted(starts)
        assert 0 <= ordered[0] < seq_len
        assert all(after - before == seq_len for before, after in pairwise(ordered))
        # The last target may be the first token that evaluation reads, which it doesn't predict.
        assert ordered[-1] + seq_len <= len(source) - 1 - held_out
        if batches.training_sequences > 5:
            assert starts != ordered
    if seq_len > 7:
        assert len({min(starts) for starts in orders}) > 1
    assert orders[0] != orders[1] != orders[2]
    left_out = len(source) - 1 - held_out - batches.training_sequences * seq_len
    assert 0 <= left_out < 2 * seq_len


def test_only_position_and_seed_matter(source: TokenSource) -> None:
    batches, again = (batches_of(source, 4, 100, seed=9) for _ in range(2))
    other = batches_of(source, 4, 100, seed=10)
    one = batches_of(source, 1, 100, seed=9)
    assert batches.training_sequences == 98
    # The second goes over the end of an epoch.
    for position in (0, 96, 1_234, 3, 256, 255, 259, 1, 515):
        tokens, targets = batches.training(position)
        for row in range(4):
            alone = one.training(position + row)
            assert np.array_equal(alone[0][0], tokens[row])
            assert np.array_equal(alone[1][0], targets[row])
        assert np.array_equal(again.training(position)[0], tokens)
        assert not np.array_equal(other.training(position)[0], tokens)


def test_the_order_is_the_same_on_every_machine(source: TokenSource) -> None:
    batches = batches_of(source, 6, 100, seed=1)
    assert batches.training(0)[0][:, 0].tolist() == [1911, 9411, 4911, 2611, 9311, 6411]


def test_the_random_numbers_of_an_epoch_are_drawn_once(
    source: TokenSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = Mock(wraps=np.random.Philox)
    monkeypatch.setattr(np.random, "Philox", drawn)
    batches = batches_of(source, 4, 100, seed=20_261_130)
    for batch in range(2 * batches.training_sequences // 4):
        batches.training(4 * batch)
    assert drawn.call_count == 2  # the second epoch has another order


def evaluation_starts(batches: Batches, limit: int | None = None) -> list[int]:
    starts: list[int] = []
    for tokens, targets in batches.evaluation(limit):
        used = (targets != IGNORED_TARGET).any(axis=1)
        assert ((targets != IGNORED_TARGET).all(axis=1) == used).all()
        assert not tokens[~used].any() and used[0]
        starts += tokens[used, 0].tolist()
    return starts


def test_evaluation_is_at_the_end_and_in_order(source: TokenSource) -> None:
    batches = batches_of(source, 4, 100, evaluation_fraction=0.1)
    assert batches.evaluation_sequences == 10
    expected = [10_006 - 1_000 + 100 * i for i in range(10)]
    assert evaluation_starts(batches) == expected
    assert evaluation_starts(batches, 99) == expected
    assert evaluation_starts(batches, 3) == [expected[i] for i in (0, 3, 6)]
    assert evaluation_starts(batches, 0) == []
    assert [len(tokens) for tokens, _ in batches.evaluation()] == [4, 4, 4]
    assert batches_of(source, 4, 100).evaluation_sequences == 1
    assert batches_of(source, 4, 5_000).evaluation_sequences == 1
    none = batches_of(source, 4, 100, evaluation_fraction=0.0)
    assert evaluation_starts(none) == [] and none.training_sequences == 99


@pytest.mark.parametrize("count", [17, 18, 31])
def test_the_fewest_tokens_there_can_be(tmp_path: Path, count: int) -> None:
    batches = batches_of(source_of(tmp_path, count), 2, 8)
    assert (batches.training_sequences, batches.evaluation_sequences) == (1, 1)
    for position in range(0, 40, 2):
        tokens, targets = batches.training(position)
        assert tokens.min() >= 0 and targets.max() <= count - 9
    assert evaluation_starts(batches) == [count - 9]


@pytest.mark.parametrize(
    ("count", "options", "message"),
    [
        (1, {}, r"^the corpus is empty: training takes at least 17 tokens of text$"),
        (2, {}, r"^2 tokens are too few: .* 8 for training and 1 for evaluation take 17; use more"),
        (16, {}, r"^16 tokens are too few.* or hold out less for evaluation$"),
        (8, {"evaluation_fraction": 0.0}, r"^8 tokens .* training take 9; .* sequence length$"),
        (100, {"evaluation_fraction": 0.99}, r"^100 tokens .* 12 for evaluation take 105"),
        (100, {"seq_len": 2**40}, r"one sequence of 1,099,511,627,776 for training"),
    ],
)
def test_what_can_not_be_divided(
    tmp_path: Path, count: int, options: dict[str, Any], message: str
) -> None:
    arguments = {"batch_size": 2, "seq_len": 8} | options
    with pytest.raises(InputError, match=message):
        batches_of(source_of(tmp_path, count), **arguments)


def test_a_file_that_changes_during_a_run(tmp_path: Path) -> None:
    path = tmp_path / "one.bin"
    with open_writer(path, "bin", VOCABULARY) as writer:
        writer.write(EncodedSlice(np.zeros(100, np.uint32), np.zeros(1, np.int64)))
    batches = batches_of(open_token_files([str(path)], VOCABULARY, "v.bin"), 9, 8)
    assert not batches.training(0)[0].any()
    path.write_bytes(b"\x90\x01" * 100)
    with pytest.raises(
        InputError, match=r"changed during the run: id 400 at .* vocabulary of 400 tokens"
    ):
        batches.training(0)


def permuted(indices: range, size: int, seed: int) -> list[int]:
    keys = np.random.Philox(key=seed).random_raw(ROUNDS).tolist()
    return [permute(index, size, keys) for index in indices]


@given(st.integers(1, 3_000), st.integers(0, 2**32))
def test_permutations_are_one_to_one(size: int, seed: int) -> None:
    assert sorted(permuted(range(size), size, seed)) == list(range(size))


def test_permutations_of_more_than_could_be_written_down() -> None:
    size = 2**40 + 12_345
    found = np.array(permuted(range(size - 50_000, size), size, 1))
    assert len(np.unique(found)) == 50_000 and found.min() >= 0 and found.max() < size
    # Neighbours go far from each other, and all of the range is used alike.
    assert np.abs(np.diff(found)).mean() == pytest.approx(size / 3, rel=0.03)
    assert found.mean() == pytest.approx(size / 2, rel=0.03)


def test_each_order_of_a_few_things_is_about_as_frequent() -> None:
    counts: dict[tuple[int, ...], int] = {}
    for seed in range(2_400):
        order = tuple(permuted(range(3), 3, seed))
        counts[order] = counts.get(order, 0) + 1
    assert sorted(counts) == sorted(permutations(range(3)))
    assert all(300 < count < 500 for count in counts.values())


def test_bytes_of_tokens() -> None:
    counts = token_bytes(VOCABULARY)
    assert counts.dtype == np.uint32 and len(counts) == VOCABULARY.size
    special = set(VOCABULARY.special_tokens.values())
    assert special
    for token, text in enumerate(VOCABULARY.tokens):
        assert counts[token] == (0 if token in special else len(text))


def test_corpora_with_weights_are_drawn_in_their_shares_each_in_its_own_epochs(
    source: TokenSource,
) -> None:
    """3 007 and 7 000 tokens, a quarter of the sequences from the first."""
    parts = open_token_files([source._pieces[0].file.path], source.vocabulary, "v.bin")
    parts.corpora = [3_007, 7_000]
    batches = batches_of(parts, 4, 100, seed=9, evaluation_fraction=0.1, corpus_weights="1,3")
    firsts = np.concatenate([batches.training(k)[0][:, 0] for k in range(0, 400, 4)])
    assert (firsts < 3_007).sum() == 100
    held_out = np.concatenate([tokens[:, 0] for tokens, _ in batches.evaluation()])
    assert batches.evaluation_sequences == 3 + 7
    assert sorted(held_out[: batches.evaluation_sequences] < 3_007) == [False] * 7 + [True] * 3
    for k in range(0, 400, 4):
        tokens, targets = batches.training(k)
        rows = np.concatenate([tokens, targets[:, -1:]], axis=1).astype(np.int64)
        assert (rows[:, -1] - rows[:, 0] == 100).all()  # none goes from a corpus to the other
        assert ((rows[:, 0] < 3_007) == (rows[:, -1] < 3_007)).all()
        assert not set(tokens.reshape(-1).tolist()) & {int(x) + 1 for x in held_out[:10]}
    first_epoch = firsts[firsts < 3_007][:26].tolist()  # 2 707 tokens are not held out
    assert len(set(first_epoch)) == len(first_epoch)
    one = batches_of(parts, 1, 100, seed=9, evaluation_fraction=0.1, corpus_weights="1,3")
    assert np.array_equal([one.training(k)[0][0, 0] for k in range(80)], firsts[:80])


def test_a_corpus_that_is_too_short(source: TokenSource) -> None:
    parts = open_token_files([source._pieces[0].file.path], source.vocabulary, "v.bin")
    parts.corpora = [10_000, 7]
    with pytest.raises(InputError, match="7 tokens are too few: one sequence of 100"):
        batches_of(parts, 4, 100, corpus_weights="1,3")


SEQ_LEN = 8


class Row:
    """Ids in memory, read as `TokenSource` is."""

    def __init__(self, ids: NDArray[np.uint32]) -> None:
        self.ids = ids

    def __len__(self) -> int:
        return len(self.ids)

    def read(self, start: int, count: int) -> NDArray[np.uint32]:
        assert 0 <= start <= start + count <= len(self.ids)
        return self.ids[start : start + count]


def divided(ids: NDArray[Any], held_out: int, parts: int, separator: int | None) -> Any:
    row: Any = Row(ids.astype(np.uint32))
    return divide(row, SEQ_LEN, held_out, parts, separator)


@pytest.mark.parametrize("separator", [None, 0])
@pytest.mark.parametrize(
    ("size", "held_out", "parts"), [(5_000, 6, 4), (6_001, 90, 32), (40, 1, 3)]
)
def test_nothing_that_is_held_out_is_trained_on(
    size: int, held_out: int, parts: int, separator: int | None
) -> None:
    ids = np.random.default_rng(size).integers(0, 30, size)
    training, evaluation = divided(ids, held_out, parts, separator)
    assert len(evaluation) == held_out
    counted = np.zeros(size, int)
    for begin, end in training:
        counted[begin:end] += 1
    evaluated = np.zeros(size, int)
    for begin in evaluation:
        assert evaluated[begin + 1 : begin + SEQ_LEN + 1].sum() == 0
        evaluated[begin + 1 : begin + SEQ_LEN + 1] += 1
    assert counted.max() == 1 and (counted & evaluated).sum() == 0
    # What is in neither is less than a search for a document.
    assert (counted + evaluated == 0).sum() <= parts * 9 * SEQ_LEN
    if parts > 1 and size > 1_000:
        assert np.diff(evaluation).max() > SEQ_LEN
        if separator is not None:
            # Where a separator is near, which it is in most places.
            after = [ids[begin - 1] == separator for begin, _ in training[1:]]
            blocks = np.flatnonzero(np.diff(evaluation, prepend=-size) > SEQ_LEN)
            at = ids[evaluation[blocks]] == separator
            assert np.mean(after) > 0.5 and at.mean() > 0.5


def test_the_last_of_the_text_where_there_is_one_part() -> None:
    training, evaluation = divided(np.zeros(100), 3, 1, 0)
    assert training == [(0, 100 - 3 * SEQ_LEN)]
    assert evaluation.tolist() == [75, 83, 91]


def test_ranges_are_read_as_one_row(source: TokenSource) -> None:
    ranges = source.joined([(3, 7), (10, 11), (20, 40)])
    whole = [*range(3, 7), 10, *range(20, 40)]
    assert len(ranges) == len(whole)
    for start in range(len(whole)):
        for count in (1, 2, 6, len(whole) - start):
            count = min(count, len(whole) - start)
            assert ranges.read(start, count).tolist() == whole[start : start + count]
    again = ranges.joined([(2, 6), (9, 9), (24, 25)])
    assert again.read(0, 5).tolist() == [5, 6, 10, 20, 39]
    for start, count in ((20, 6), (-1, 2), (26, 0)):
        with pytest.raises(IndexError, match="but there are 25"):
            ranges.read(start, count)


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=5), st.integers(0, 10**12))
def test_shares_are_exact_to_a_sequence_of_each_corpus_before(
    weights: list[float], begin: int
) -> None:
    numbers = np.arange(begin, begin + 300, dtype=np.int64)
    corpora, places = np.array([mix(weights, number) for number in numbers.tolist()]).T
    for number, weight in enumerate(weights):
        mine = places[corpora == number]
        assert np.array_equal(mine, np.arange(mine[0], mine[0] + len(mine)) if len(mine) else mine)
        if len(mine):
            fraction = weight / sum(weights)
            # Weights are rounded to whole numbers of 2^-20.
            off = number + 1.01 + (begin + 300) * 2.0**-19
            assert abs(mine[-1] + 1 - fraction * (numbers[corpora == number][-1] + 1)) <= off


def test_the_first_sequences_of_three_corpora() -> None:
    corpora, places = zip(*(mix([2, 1, 1], number) for number in range(8)), strict=True)
    assert corpora == (2, 0, 1, 0, 2, 0, 1, 0)
    assert places == (0, 0, 0, 1, 1, 2, 1, 3)


def test_one_corpus_has_all() -> None:
    for number in (5, 99_999_999_999, 6):
        assert mix([0.3], number) == (0, number)
