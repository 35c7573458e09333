"""Text from ``.zst`` files."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from llmgpu.errors import InputError
from llmgpu.text import compressions
from llmgpu.text.corpus import Corpus
from tests.text.reading import read_documents, write

zstandard = pytest.importorskip("zstandard")
SKIPPABLE = (0x184D2A50).to_bytes(4, "little") + (5).to_bytes(4, "little") + b"notes"


def compress(data: bytes) -> bytes:
    packed: bytes = zstandard.ZstdCompressor(write_checksum=True).compress(data)
    return packed


@pytest.mark.parametrize("name", ["f.txt.zst", "f.ZST"])
@pytest.mark.parametrize("size", [700, 8192, 1 << 21])
def test_frames_are_read_one_after_the_other(tmp_path: Path, name: str, size: int) -> None:
    data = bytes(range(256)) * 500 + np.random.default_rng(0).bytes(50_000)
    packed = compress(data[:100_000]) + SKIPPABLE + compress(b"") + compress(data[100_000:])
    assert read_documents(Corpus([write(tmp_path, name, packed)]), size) == [data]


@pytest.mark.parametrize("read_bytes", [1 << 20, 50_000, 1001])
@pytest.mark.parametrize("kind", ["zeros", "words", "noise"])
def test_one_block_is_decompressed_at_a_time(
    monkeypatch: pytest.MonkeyPatch, kind: str, read_bytes: int
) -> None:
    monkeypatch.setattr(compressions, "_ZSTD_READ_BYTES", read_bytes)
    rng = np.random.default_rng(0)
    part = {"zeros": bytes(100), "noise": rng.bytes(1 << 20)}.get(kind) or b" ".join(
        rng.integers(0, 50_000, 200_000).astype("S")
    )
    data = part * (4_000_000 // len(part))
    streamed = zstandard.ZstdCompressor().compressobj()  # its frame does not say how long it is
    packed = compress(data) + SKIPPABLE + streamed.compress(data) + streamed.flush() + compress(b"")
    file = compressions.ZstdFile(io.BytesIO(packed))
    buffer = memoryview(bytearray(10_000_000))
    found = []
    while count := file.readinto(buffer):
        found.append(bytes(buffer[:count]))
    assert b"".join(found) == 2 * data
    assert max(map(len, found)) <= 1 << 17


def test_position_and_size(tmp_path: Path) -> None:
    packed = compress(b"some text" * 1000)
    corpus = Corpus([write(tmp_path, "f.zst", packed)])
    assert read_documents(corpus) == [b"some text" * 1000]
    assert corpus.total_bytes == corpus.bytes_read == len(packed)


def test_json_lines(tmp_path: Path) -> None:
    path = write(tmp_path, "f.jsonl.zst", compress(b'{"text": "one"}\n{"text": ""}\n'))
    assert read_documents(Corpus([path])) == [b"one", b""]


def test_a_text_that_is_much_longer_than_its_file(tmp_path: Path) -> None:
    path = write(tmp_path, "f.zst", compress(bytes(50_000_000)))
    corpus = Corpus([path])
    buffer = np.empty(1 << 20, np.uint8)
    length = 0
    while not (fill := corpus.read_into(buffer)).end:
        length += fill.length
    assert length + fill.length == 50_000_000


def uncompressed_frame(length: int, blocks: list[bytes]) -> bytes:
    """Return a frame whose header says that its text has `length` bytes."""
    frame = b"\x28\xb5\x2f\xfd\x80\x58" + length.to_bytes(4, "little")
    for number, block in enumerate(blocks, 1):
        frame += ((number == len(blocks)) | len(block) << 3).to_bytes(3, "little") + block
    return frame


@pytest.mark.parametrize("excess", [0, 1, -1])
@pytest.mark.parametrize(
    "blocks", [[b"low", b"est"], [b"lower", b""], [b"low " * 30_000] * 9 + [b""]]
)
def test_a_frame_of_another_length_than_its_header_says(
    tmp_path: Path, blocks: list[bytes], excess: int
) -> None:
    """The package itself accepts some frames whose last block is empty."""
    text = b"".join(blocks)
    packed = uncompressed_frame(len(text) + excess, blocks) + compress(b" behind")
    corpus = Corpus([write(tmp_path, "f.zst", packed)])
    if excess:
        with pytest.raises(InputError, match=r"damaged or truncated \.zst"):
            read_documents(corpus)
    else:
        assert read_documents(corpus) == [text + b" behind"]


def test_the_error_of_a_damaged_header_tells_what_is_damaged(tmp_path: Path) -> None:
    packed = compress(b"lowest" * 1000)
    errors = {packed[:size]: "it ends inside a frame" for size in range(1, len(packed))}
    errors[packed[:4] + bytes([packed[4] | 8]) + packed[5:]] = "Unsupported frame parameter"
    for number, (data, error) in enumerate(errors.items()):
        with pytest.raises(InputError, match=error):
            read_documents(Corpus([write(tmp_path, f"{number}.zst", data)]))


@pytest.mark.parametrize("name", ["f.zst", "f.jsonl.zst"])
def test_damaged_files(tmp_path: Path, name: str) -> None:
    text = np.random.default_rng(0).bytes(50_000).hex()
    packed = compress(b'{"text": "%s"}' % text.encode())
    two = packed + packed[:-1]
    flipped = packed[:-1] + bytes([packed[-1] ^ 1])  # the checksum
    damaged = [packed[:-20], packed[:-1], packed[:5], b"no such format" * 9, b"", two, flipped]
    for number, data in enumerate([*damaged, packed + b"behind"]):
        path = write(tmp_path, f"{number}{name}", data)
        with pytest.raises(InputError, match=re.escape(f"{path}: damaged or truncated .zst")):
            read_documents(Corpus([path]))


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, "f.jsonl.zst", compress(b"{}"))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    message = f"{path}: reading it needs the package zstandard: pip install 'llmgpu[zstd]'"
    with pytest.raises(InputError, match=re.escape(message)):
        Corpus([path])
