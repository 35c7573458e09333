"""Checkpoints of training: what a run that was killed goes on from."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgpu.backend import NUMPY
from llmgpu.bpe.training import checkpoint as module
from llmgpu.bpe.training import merge_host
from llmgpu.bpe.training.checkpoint import Checkpoint
from llmgpu.bpe.training.options import TrainingOptions
from llmgpu.bpe.training.train import train_vocabulary
from llmgpu.bpe.vocabulary.building import byte_vocabulary, extend_vocabulary
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import InputError, OutputError
from llmgpu.text.corpus import corpus_from_bytes
from tests.bpe.training.test_batched_numpy import make_text
from tests.conftest import examples

FORGERIES = examples(30)
RUN = {"vocabulary sizes": [300], "corpus files": [["a.txt", 10, 123456789]], "limit": None}


def log_of(checkpoint: Checkpoint) -> tuple[list[list[int]], list[int]]:
    pairs, counts = checkpoint.read_merges()
    return pairs.tolist(), counts.tolist()


def resumes(folder: Path, run: dict[str, object]) -> bool:
    checkpoint = Checkpoint.resume(folder, run)
    if checkpoint is not None:
        checkpoint.close()
    return checkpoint is not None


def add(checkpoint: Checkpoint, first: int, last: int) -> None:
    numbers = np.arange(first, last)
    pairs = np.column_stack([numbers, numbers + 1]).astype(np.uint32)
    checkpoint.add_merges(pairs, numbers.astype(np.int64) << 40)


def test_a_log_is_read_back(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    begun = Checkpoint.begin(folder, RUN)
    assert begun.is_empty
    assert log_of(begun) == ([], [])
    add(begun, 0, 3)
    add(begun, 3, 4)
    begun.close()
    resumed = Checkpoint.resume(folder, RUN)
    assert resumed is not None and not resumed.is_empty
    assert log_of(resumed) == ([[0, 1], [1, 2], [2, 3], [3, 4]], [k << 40 for k in range(4)])
    add(resumed, 4, 5)
    assert log_of(resumed)[0][3:] == [[3, 4], [4, 5]]
    resumed.remove()
    assert list(tmp_path.iterdir()) == []


@settings(deadline=None)
@given(st.data())
def test_a_torn_tail_is_cut_off(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("torn") / "run"
    checkpoint = Checkpoint.begin(folder, RUN)
    ends = [0]
    for first in (0, 2, 7):
        add(checkpoint, first, first + 2)
        ends.append((folder / "merges").stat().st_size)
    checkpoint.close()
    content = (folder / "merges").read_bytes()
    length = data.draw(st.integers(0, len(content)))
    torn = content[:length] + data.draw(st.binary(max_size=40))
    (folder / "merges").write_bytes(torn)
    whole = max(k for k, end in enumerate(ends) if torn[:end] == content[:end])
    assert log_of(checkpoint)[0] == [[0, 1], [1, 2], [2, 3], [3, 4], [7, 8], [8, 9]][: 2 * whole]
    assert (folder / "merges").stat().st_size == ends[whole]
    add(checkpoint, 20, 21)
    checkpoint.close()
    assert log_of(checkpoint)[0][2 * whole :] == [[20, 21]]


def test_a_changed_block_ends_the_log(tmp_path: Path) -> None:
    checkpoint = Checkpoint.begin(tmp_path / "run", RUN)
    add(checkpoint, 0, 2)
    add(checkpoint, 2, 4)
    checkpoint.close()
    log = tmp_path / "run" / "merges"
    content = bytearray(log.read_bytes())
    content[-1] ^= 1
    log.write_bytes(content)
    assert log_of(checkpoint)[0] == [[0, 1], [1, 2]]


def test_appending_reaches_the_disk_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr("os.fsync", synced.append)
    monkeypatch.setattr(module, "SYNC_SECONDS", 3600.0)
    checkpoint = Checkpoint.begin(tmp_path / "run", RUN)
    synced.clear()
    for k in range(5):
        add(checkpoint, k, k + 1)
    assert len(synced) <= 1
    monkeypatch.setattr(module, "SYNC_SECONDS", 0.0)
    add(checkpoint, 5, 6)
    add(checkpoint, 6, 7)
    assert len(synced) >= 2
    checkpoint.close()


def test_a_folder_that_is_there_is_refused(tmp_path: Path) -> None:
    Checkpoint.begin(tmp_path / "run", RUN).close()
    with pytest.raises(OutputError, match=r"run exists already: use --resume"):
        Checkpoint.begin(tmp_path / "run", RUN).close()
    with pytest.raises(OutputError, match="no/such"):
        Checkpoint.begin(tmp_path / "no" / "such" / "run", RUN)


def test_only_one_process_writes_a_checkpoint(tmp_path: Path) -> None:
    begun = Checkpoint.begin(tmp_path / "run", RUN)
    with pytest.raises(OutputError, match=rf"run is in use by process {os.getpid()}: wait"):
        Checkpoint.resume(tmp_path / "run", RUN)
    begun.close()
    resumed = Checkpoint.resume(tmp_path / "run", RUN)
    assert resumed is not None
    resumed.remove()
    assert os.listdir(tmp_path) == []


def test_nothing_to_resume(tmp_path: Path) -> None:
    assert Checkpoint.resume(tmp_path / "run", RUN) is None


def test_a_folder_of_a_run_that_had_not_begun(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / ".run.json.0123456789ab.tmp").write_bytes(b"{")
    resumed = Checkpoint.resume(folder, RUN)
    assert resumed is not None and json.loads((folder / "run.json").read_bytes())["run"] == RUN
    resumed.remove()
    assert not folder.exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"limit": 5}, "limit was null and is 5 now"),
        (
            {"corpus files": [["a.txt", 11, 123456789]], "limit": 7},
            r'corpus files was \["a.txt", 10, .* now \(and limit\)',
        ),
        ({"new option": "x"}, 'new option was null and is "x" now'),
    ],
)
def test_another_run_is_refused(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    Checkpoint.begin(tmp_path / "run", RUN).close()
    with pytest.raises(InputError, match=message):
        Checkpoint.resume(tmp_path / "run", RUN | changes)


def test_a_run_that_does_not_record_the_version_of_unicode_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert Checkpoint.unicode_of(folder) is None
    Checkpoint.begin(folder, RUN).close()
    assert Checkpoint.unicode_of(folder) is None
    for version in ("16.0", "18.0"):
        with pytest.raises(InputError, match="another run: Unicode version was null and"):
            Checkpoint.resume(folder, RUN | {"Unicode version": version})
    with pytest.raises(InputError, match="another run: limit was"):
        Checkpoint.resume(folder, RUN | {"Unicode version": "16.0", "limit": 77})
    assert resumes(folder, RUN)  # of a pattern without character classes


def test_the_version_of_unicode_is_recorded(tmp_path: Path) -> None:
    facts = TrainingOptions(300).facts()
    Checkpoint.begin(tmp_path / "run", facts).close()
    assert Checkpoint.unicode_of(tmp_path / "run") == facts["Unicode version"] == "16.0"
    newer = TrainingOptions(300, unicode="18.0").facts()
    with pytest.raises(InputError, match=r'Unicode version was "16.0" and is "18.0" now'):
        Checkpoint.resume(tmp_path / "run", newer)
    assert "Unicode version" not in TrainingOptions(300, "class").facts()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is not a checkpoint of training"),
        (b"[]", "is not a checkpoint of training"),
        (b'{"format": "x"}', "is not a checkpoint of training"),
        (
            b'{"format": "llmgpu training checkpoint", "version": 99, "run": {}}',
            "version 99 of the format, but this llmgpu reads version 1",
        ),
    ],
)
def test_what_is_no_checkpoint(tmp_path: Path, content: bytes, message: str) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.json").write_bytes(content)
    with pytest.raises(InputError, match=message):
        Checkpoint.resume(folder, RUN)


def test_a_folder_with_other_files_is_no_checkpoint_and_is_kept(tmp_path: Path) -> None:
    (tmp_path / "letters.txt").write_bytes(b"abc")
    with pytest.raises(InputError, match="not a checkpoint"):
        Checkpoint.resume(tmp_path, RUN)
    with pytest.raises(InputError, match="not a checkpoint"):
        Checkpoint.resume(tmp_path / "letters.txt", RUN)
    checkpoint = Checkpoint.begin(tmp_path / "run", RUN)
    (tmp_path / "run" / "mine.txt").write_bytes(b"abc")
    checkpoint.remove()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["mine.txt"]


def seed() -> Vocabulary:
    """One merge that is made often, and a token that merging will reach."""
    bytes_alone = byte_vocabulary("class", "hf")
    with_more = extend_vocabulary(bytes_alone, [(97, 98, 256)], special_tokens=(), training={})
    return replace(with_more, tokens=(*with_more.tokens, b"cd"))


class KilledError(Exception):
    pass


@pytest.mark.parametrize("seeded", [False, True])
@pytest.mark.parametrize("batches", [0, 1, 2, 10])
def test_a_run_goes_on_where_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seeded: bool, batches: int
) -> None:
    monkeypatch.setattr(merge_host, "SLICE_MERGES", 8)
    documents = [make_text(7, 600), b"abcd cdab " * 200]
    options = TrainingOptions(
        400,
        "class",
        smaller_sizes=(280, 350),
        seed=seed() if seeded else None,
        special_tokens=("<|x|>",),
    )
    whole = train_vocabulary(corpus_from_bytes(documents), options, NUMPY)
    checkpoint = Checkpoint.begin(tmp_path / "run", options.facts())
    kept = checkpoint.add_merges
    calls = 0

    def add_until_killed(pairs: np.ndarray, counts: np.ndarray) -> None:
        nonlocal calls
        if calls == batches:
            raise KilledError
        calls += 1
        kept(pairs, counts)

    monkeypatch.setattr(checkpoint, "add_merges", add_until_killed)
    with pytest.raises(KilledError):
        train_vocabulary(corpus_from_bytes(documents), options, NUMPY, checkpoint=checkpoint)
    checkpoint.close()
    resumed = Checkpoint.resume(tmp_path / "run", options.facts())
    assert resumed is not None
    again = train_vocabulary(corpus_from_bytes(documents), options, NUMPY, checkpoint=resumed)
    resumed.remove()
    assert again.merge_counts.tolist() == whole.merge_counts.tolist()
    for size, vocabulary in whole.vocabularies.items():
        assert again.vocabularies[size].to_bytes() == vocabulary.to_bytes()
    if seeded:
        assert any(result == 257 for *_, result in whole.vocabulary.merges.tolist())


def forged(
    rng: np.random.Generator, pairs: list[list[int]], counts: list[int]
) -> tuple[list[list[int]], list[int]]:
    """A log with one change of a kind that a checksum would not tell."""
    pairs, counts = [list(pair) for pair in pairs], list(counts)
    k, other = rng.integers(len(pairs), size=2).tolist()
    match rng.integers(6):
        case 0:
            pairs[k][rng.integers(2)] = int(rng.integers(0, 600))
        case 1:
            pairs[k][rng.integers(2)] = int(rng.integers(0, 1 << 32))
        case 2:
            counts[k] += int(rng.integers(-3, 4))
        case 3:
            counts[k] = int(rng.integers(-(2**63), 2**63))
        case 4:
            pairs[k], pairs[other] = pairs[other], pairs[k]
        case 5:
            del pairs[k], counts[k]
    return pairs, counts


@pytest.mark.parametrize("seeded", [False, True])
def test_forged_logs_are_refused_or_harmless(tmp_path: Path, seeded: bool) -> None:
    text = make_text(11, 4000)
    start = byte_vocabulary("gpt2", "hf")
    triple = np.array([[32, 97, 256]])
    longer = extend_vocabulary(start, triple, special_tokens=(), training={})
    seed = longer if seeded else None
    options = TrainingOptions(320, pattern="gpt2", seed=seed)

    def train(checkpoint: Checkpoint | None) -> bytes:
        with corpus_from_bytes(text) as corpus:
            result = train_vocabulary(corpus, options, NUMPY, checkpoint=checkpoint)
        return result.vocabulary.to_bytes()

    begun = Checkpoint.begin(tmp_path / "run", RUN)
    expected = train(begun)
    begun.close()
    pairs, counts = log_of(begun)
    log, rng, refused = tmp_path / "run" / "merges", np.random.default_rng(5), 0
    for _ in range(FORGERIES):
        log.unlink()
        checkpoint = Checkpoint(tmp_path / "run")
        changed = forged(rng, pairs[:30], counts[:30])
        checkpoint.add_merges(np.array(changed[0], np.uint32), np.array(changed[1], np.int64))
        checkpoint.close()
        try:
            assert train(checkpoint) == expected, changed
        except InputError as error:
            assert str(error).startswith(str(tmp_path / "run"))
            refused += 1
        checkpoint.close()
    assert refused > 0.7 * FORGERIES
