"""What a model is trained on: token files and texts, whole, damaged and of other vocabularies."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llmgpu.backend import NUMPY
from llmgpu.bpe.encoding.encoder import EncodedSlice
from llmgpu.bpe.encoding.open import open_encoder
from llmgpu.bpe.vocabulary.building import byte_vocabulary
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import InputError, OutputError, VocabularyError
from llmgpu.lm.data import batches
from llmgpu.lm.data import inputs as inputs_module
from llmgpu.lm.data.batches import TokenSource
from llmgpu.lm.data.inputs import default_separator, open_tokens
from llmgpu.text.corpus import CorpusOptions, corpus_from_bytes
from llmgpu.text.sources import Selection, resolve_sources
from llmgpu.tokens.formats import open_writer
from llmgpu.tokens.manifest import read_progress
from llmgpu.tokens.shards import ShardWriter
from tests.cli.conftest import environment
from tests.lm.vocabularies import sample_text, sample_vocabulary
from tests.tokens.writing import sized

SEPARATOR = len(sample_vocabulary().tokens) - 1
NO_STARTS = np.zeros(1, np.int64)


@pytest.fixture(autouse=True)
def short_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs_module, "SHARD_TOKENS", 1_000)


def ids_of(text: bytes) -> list[int]:
    pieces = open_encoder(sample_vocabulary(), NUMPY).encode(corpus_from_bytes(text))
    return [i for piece in pieces for i in piece.ids.tolist()]


def opened(folder: Path, *inputs: str | Path, **options: Any) -> TokenSource:
    options = {"backend": NUMPY} | options
    vocabulary = options.pop("vocabulary", sample_vocabulary())
    corpus = resolve_sources([str(i) for i in inputs], Selection(may_be_tokens=True))
    return open_tokens([corpus], vocabulary, "v.bin", folder / "tokens", **options)


def all_ids(source: TokenSource) -> list[int]:
    return source.read(0, len(source)).tolist()


def write_bin(path: Path, ids: NDArray[np.uint32], **options: Any) -> None:
    vocabulary: Vocabulary = options.pop("vocabulary", sample_vocabulary())
    with open_writer(path, "bin", vocabulary, **options) as writer:
        writer.write(EncodedSlice(ids, NO_STARTS, text_bytes=2 * len(ids)))


def write_shards(path: Path, ids: NDArray[np.uint32], shard_tokens: int, **options: Any) -> None:
    with ShardWriter(path, sample_vocabulary(), shard_tokens, **options) as writer:
        writer.write(EncodedSlice(ids, NO_STARTS))


def random_ids(count: int) -> NDArray[np.uint32]:
    return np.random.default_rng(count).integers(0, 400, count).astype(np.uint32)


@pytest.mark.parametrize("layout", ["raw", "llmc"])
def test_token_files_end_to_end(tmp_path: Path, layout: str) -> None:
    first, second = random_ids(1_003), random_ids(17)
    write_bin(tmp_path / "one.bin", second, layout=layout)
    write_shards(tmp_path / "out.bin", first, 100, layout=layout)
    expected = [*first.tolist(), *second.tolist()]
    source = opened(tmp_path, tmp_path / "out.json", tmp_path / "one.bin")
    assert len(source) == 1_020
    assert all_ids(source) == expected
    for start in range(0, 1_020, 37):
        for count in (0, 1, 99, 100, 101, 350):
            if start + count <= 1_020:
                ids = source.read(start, count)
                assert ids.dtype == np.uint32 and ids.tolist() == expected[start : start + count]
    for start, count in ((-1, 2), (1_019, 2), (1_021, 0), (5, -1)):
        with pytest.raises(IndexError):
            source.read(start, count)
    assert not (tmp_path / "tokens").exists()


def test_each_token_file_counts_once(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    ids = random_ids(450)
    write_shards(folder / "out.bin", ids, 100)
    for inputs in ([folder], [folder / "*.bin"], [folder / "out.json", folder], [folder / "*"]):
        assert all_ids(opened(tmp_path, *inputs)) == ids.tolist()
    side = folder / "out-000001.bin.json"
    assert all_ids(opened(tmp_path, side)) == ids[100:200].tolist()


def test_reading_over_many_files(tmp_path: Path) -> None:
    ids = random_ids(200)
    write_shards(tmp_path / "out.bin", ids, 10)
    source = opened(tmp_path, tmp_path / "out.json")
    for start in (0, 150, 7, 95):
        assert source.read(start, 50).tolist() == ids[start : start + 50].tolist()


def test_files_without_ids(tmp_path: Path) -> None:
    write_bin(tmp_path / "one.bin", random_ids(10))
    assert len(opened(tmp_path, tmp_path / "one.bin")) == 10
    write_bin(tmp_path / "none.bin", random_ids(0))
    source = opened(tmp_path, tmp_path / "none.bin")
    assert len(source) == 0
    assert source.read(0, 0).tolist() == []


def test_large_vocabularies_have_wide_ids(tmp_path: Path) -> None:
    small = byte_vocabulary("none", "hf")
    large = replace(small, tokens=small.tokens + (b"ab",) * 69_744)
    ids = np.array([69_999, 3, 65_536], np.uint32)
    write_bin(tmp_path / "one.bin", ids, vocabulary=large)
    source = opened(tmp_path, tmp_path / "one.bin", vocabulary=large)
    assert all_ids(source) == ids.tolist()


def test_files_of_another_vocabulary(tmp_path: Path) -> None:
    other = sample_vocabulary(300)
    write_bin(tmp_path / "own.bin", random_ids(10))
    write_bin(tmp_path / "other.bin", random_ids(10) % 300, vocabulary=other)
    with pytest.raises(
        VocabularyError,
        match=rf"other.bin was made with vocabulary {other.fingerprint[:12]}, but v.bin is",
    ):
        opened(tmp_path, tmp_path / "own.bin", tmp_path / "other.bin")


def test_ids_beyond_the_vocabulary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "_SCANNED_IDS", 64)
    write_bin(tmp_path / "own.bin", random_ids(100))
    ids = random_ids(200)
    ids[131:] = 400
    larger = sized(500, sample_vocabulary().fingerprint)
    write_bin(tmp_path / "bad.bin", ids, vocabulary=larger)
    seen: list[tuple[str, int, int | None]] = []
    with pytest.raises(
        InputError, match=r"bad.bin: id 400 at position 131 is beyond the vocabulary of 400 ids"
    ):
        opened(
            tmp_path,
            tmp_path / "own.bin",
            tmp_path / "bad.bin",
            progress=lambda *facts: seen.append(facts),
        )
    assert seen == [("checking tokens", done, 300) for done in (64, 100, 164, 228)]


def damaged(folder: Path, kind: str) -> str:
    """Damage some shards; return what is to be opened."""
    shard = folder / "out-000001.bin"
    if kind == "cut short":
        shard.write_bytes(shard.read_bytes()[:-1])
    elif kind == "missing":
        shard.unlink()
    elif kind == "no side file":
        (folder / "out-000001.bin.json").unlink()
    elif kind == "replaced":
        write_bin(shard, random_ids(99))
    elif kind == "manifest":
        (folder / "out.json").write_bytes(b'{"format": "llmgpu-token-shards", "version": 1}')
    elif kind == "version":
        manifest = json.loads((folder / "out.json").read_bytes()) | {"version": 2}
        (folder / "out.json").write_text(json.dumps(manifest))
    elif kind == "unfinished":
        (folder / "out.json").rename(folder / "out.progress.json")
        text = (folder / "out.progress.json").read_text()
        (folder / "out.progress.json").write_text(text.replace("shards", "shards-in-progress", 1))
        return "out.progress.json"
    elif kind == "npy":
        np.save(folder / "ids.npy", random_ids(9))
        return "ids.npy"
    elif kind == "device":
        (folder / "zero.bin").symlink_to("/dev/zero")
        return "zero.bin"
    return "out.json"


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("cut short", r"out-000001.bin has 199 bytes, but by its side file .* 100 ids"),
        ("missing", r"no such file: '.*out-000001.bin'"),
        ("no side file", r"can't read .*out-000001.bin.json, the side file"),
        ("replaced", r"out-000001.bin has 99 ids, but .*out.json lists 100"),
        ("manifest", r"out.json is not a list of token shards"),
        ("version", r"out.json: 'llmgpu-token-shards' version 2"),
        ("unfinished", r"out.progress.json: its tokens are not finished"),
        ("npy", r"ids.npy: an array of ids does not record its vocabulary"),
        ("device", r"no such file: '.*zero.bin'"),
    ],
)
def test_damaged_token_files(tmp_path: Path, kind: str, message: str) -> None:
    write_shards(tmp_path / "out.bin", random_ids(300), 100)
    name = damaged(tmp_path, kind)
    with pytest.raises(InputError, match=message):
        opened(tmp_path, tmp_path / name)


def test_the_checksum_is_that_of_all_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "_SCANNED_IDS", 7)
    ids = random_ids(60)
    write_bin(tmp_path / "one.bin", ids)
    write_shards(tmp_path / "out.bin", ids, 25)
    expected = zlib.crc32(ids.astype("<u4").tobytes())
    for name in ("one.bin", "out.json"):
        assert opened(tmp_path, tmp_path / name).checksum == expected
    write_bin(tmp_path / "one.bin", ids[::-1])
    assert opened(tmp_path, tmp_path / "one.bin").checksum != expected


def test_a_file_that_becomes_shorter_when_it_was_read_already(tmp_path: Path) -> None:
    write_bin(tmp_path / "a.bin", random_ids(10))
    source = opened(tmp_path, tmp_path / "a.bin")
    source.read(0, 10)
    os.truncate(tmp_path / "a.bin", 4)
    with pytest.raises(InputError, match=r"a.bin was cut short to 4 bytes"):
        source.read(0, 10)


def test_a_file_that_becomes_shorter(tmp_path: Path) -> None:
    for name in ("a.bin", "b.bin"):
        write_bin(tmp_path / name, random_ids(10))
    source = opened(tmp_path, tmp_path / "a.bin", tmp_path / "b.bin")
    os.truncate(tmp_path / "a.bin", 8)
    with pytest.raises(InputError, match=r"a.bin was cut short to 8 bytes"):
        source.read(0, 4)


def test_tokens_and_text_are_not_mixed(tmp_path: Path) -> None:
    write_bin(tmp_path / "own.bin", random_ids(10))
    (tmp_path / "a.txt").write_bytes(b"some text")
    with pytest.raises(InputError, match=r"own.bin holds tokens and .*a.txt is text"):
        opened(tmp_path, tmp_path / "a.txt", tmp_path / "own.bin")
    with pytest.raises(InputError, match="no such file or folder"):
        opened(tmp_path, tmp_path / "missing.bin")
    with pytest.raises(InputError, match="no corpus given"):
        opened(tmp_path)


def test_texts_of_all_kinds_become_tokens(tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "a.txt").write_bytes(sample_text())
    (texts / "b.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    (texts / "c.txt.gz").write_bytes(gzip.compress(b"\xff\xfe not UTF-8 \x00"))
    (texts / "d.json").write_bytes(b'{"format": "of somebody else"}')
    documents = [sample_text(), b"one", b"two", b"\xff\xfe not UTF-8 \x00"]
    documents.append((texts / "d.json").read_bytes())
    expected = [i for text in documents for i in (*ids_of(text), SEPARATOR)]
    separator = default_separator(sample_vocabulary())
    assert separator == SEPARATOR
    source = opened(tmp_path, texts, separator=separator)
    assert all_ids(source) == expected
    names = os.listdir(tmp_path / "tokens")
    assert len([name for name in names if name.endswith(".bin")]) == -(-len(expected) // 1_000)


def test_separators(tmp_path: Path) -> None:
    assert default_separator(byte_vocabulary("none", "hf")) is None
    assert default_separator(sample_vocabulary(300, ("<|pad|>", "</s>"))) == 299
    assert default_separator(sample_vocabulary(300, ("<|pad|>",))) is None
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_bytes(b"ab")
    inputs = (tmp_path / "a.txt", tmp_path / "b.txt")
    plain = ids_of(b"ab")
    for separator, between in ((None, []), (SEPARATOR, [SEPARATOR]), (7, [7])):
        expected = [*plain, *between, *plain, *between]
        assert all_ids(opened(tmp_path, *inputs, separator=separator)) == expected
    with pytest.raises(VocabularyError, match="id 9999 is not in this vocabulary"):
        opened(tmp_path, *inputs, separator=9999)


def test_how_text_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\xff\ntwo")
    strict = CorpusOptions(encoding_errors="strict")
    with pytest.raises(InputError, match=r"a.txt: invalid UTF-8 at byte 3"):
        opened(tmp_path, tmp_path / "a.txt", reading=strict)
    lines = CorpusOptions(line_documents=True)
    source = opened(tmp_path, tmp_path / "a.txt", reading=lines, separator=0)
    assert all_ids(source) == [*ids_of(b"one\xff\n"), 0, *ids_of(b"two"), 0]


def test_an_empty_text_has_no_tokens(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"")
    assert len(opened(tmp_path, tmp_path / "a.txt")) == 0
    assert all_ids(opened(tmp_path, tmp_path / "a.txt", separator=SEPARATOR)) == [SEPARATOR]


def times(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("tokens-*")}


def test_tokens_of_the_same_text_are_used_again(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_bytes(sample_text())
    first = all_ids(opened(tmp_path, text))
    before = times(tmp_path / "tokens")
    phases: set[str] = set()
    for resume in (False, True):
        source = opened(tmp_path, text, resume=resume, progress=lambda phase, *_: phases.add(phase))
        assert all_ids(source) == first
    assert times(tmp_path / "tokens") == before and phases == {"checking tokens"}


def test_tokens_of_another_text_are_replaced_or_refused(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_bytes(sample_text())
    opened(tmp_path, text)
    with pytest.raises(InputError, match=r"tokens of another text: token behind documents was"):
        opened(tmp_path, text, separator=SEPARATOR, resume=True)
    with pytest.raises(InputError, match=r"tokens of another text: vocabulary was"):
        opened(tmp_path, text, vocabulary=sample_vocabulary(300), resume=True)
    text.write_bytes(b"shorter")
    with pytest.raises(InputError, match=r"tokens of another text: corpus files"):
        opened(tmp_path, text, resume=True)
    assert all_ids(opened(tmp_path, text)) == ids_of(b"shorter")
    assert len(times(tmp_path / "tokens")) == 2
    (tmp_path / "tokens" / "made-from.json").write_bytes(b"{")
    with pytest.raises(InputError, match=r"made-from.json: not JSON"):
        opened(tmp_path, text)


def test_a_folder_that_can_not_be_written(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_bytes(b"text")
    (tmp_path / "tokens").write_bytes(b"a file")
    with pytest.raises(OutputError, match=r"can't write .*tokens"):
        opened(tmp_path, text)


OPENING = """
import sys
from pathlib import Path
from llmgpu.backend import NUMPY
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.lm.data import inputs
from llmgpu.text.sources import resolve_sources
v, text, folder, resume = sys.argv[1:]
inputs.SHARD_TOKENS = 1000
vocabulary = Vocabulary.load(v)
corpus = resolve_sources([text])
source = inputs.open_tokens([corpus], vocabulary, v, Path(folder), backend=NUMPY,
    separator=inputs.default_separator(vocabulary), resume=resume == "resume")
print(len(source))
"""


def arguments(folder: Path, text: str, resume: str) -> list[str]:
    where = [str(folder / "v.bin"), text, str(folder / "tokens"), resume]
    return [sys.executable, "-c", OPENING, *where]


def test_tokenizing_goes_on_after_a_kill(tmp_path: Path) -> None:
    sample_vocabulary().save(tmp_path / "v.bin")
    text = tmp_path / "a.txt"
    letters = np.random.default_rng(3).integers(97, 105, (10_000, 12), dtype=np.uint8)
    letters[:, -1] = ord(" ")
    text.write_bytes(letters.tobytes())
    progress = tmp_path / "tokens" / "tokens.progress.json"
    with subprocess.Popen(arguments(tmp_path, str(text), "new"), env=environment()) as child:
        deadline = time.monotonic() + 60
        while not progress.exists():
            assert child.poll() is None and time.monotonic() < deadline
            time.sleep(0.001)
        child.send_signal(signal.SIGKILL)
    kept = read_progress(progress)[1]
    shard = tmp_path / "tokens" / kept[0].file
    before = shard.stat().st_mtime_ns
    done = subprocess.run(
        arguments(tmp_path, str(text), "resume"), env=environment(), capture_output=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert shard.stat().st_mtime_ns == before and not progress.exists()
    ids = [*ids_of(text.read_bytes()), SEPARATOR]
    assert int(done.stdout) == len(ids)
    options: dict[str, Any] = {"separator": SEPARATOR, "resume": True}
    assert all_ids(opened(tmp_path, text, **options)) == ids


def test_standard_input_is_used_again_only_by_a_resumed_run(tmp_path: Path) -> None:
    sample_vocabulary().save(tmp_path / "v.bin")
    expected = [len(ids_of(b"some text")) + 1, len(ids_of(b"other")) + 1]
    for resume, given, count in (
        ("new", b"some text", expected[0]),
        ("resume", b"", expected[0]),
        ("new", b"other", expected[1]),
    ):
        done = subprocess.run(
            arguments(tmp_path, "-", resume),
            env=environment(),
            input=given,
            capture_output=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        assert int(done.stdout) == count
