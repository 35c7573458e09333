"""Files of other machines, read through fsspec."""

from __future__ import annotations

import functools
import gzip
import http.server
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from llmgpu.errors import InputError
from llmgpu.resume_key import file_facts
from llmgpu.text import remote
from llmgpu.text.corpus import Corpus, CorpusOptions
from llmgpu.text.remote import find_remote, shown_url
from llmgpu.text.sources import resolve_sources
from tests.text.reading import read_documents

fsspec = pytest.importorskip("fsspec")

SECRET = "hunter2"


class FlakyFile:
    def __init__(self, system: Flaky, data: bytes) -> None:
        self.system, self.data, self.position = system, data, 0

    def seek(self, position: int) -> None:
        self.position = position

    def read(self, count: int) -> bytes:
        if self.system.failures:
            self.system.failures -= 1
            if self.system.failures == self.system.changes_at:
                self.system.files["f"] = b"other"
            raise ConnectionError(f"https://user:{SECRET}@host/?{SECRET}")
        self.system.reads += 1
        part = self.data[self.position : self.position + min(count, 3)]
        self.position += len(part)
        return part

    def close(self) -> None:
        pass


class Flaky(fsspec.AbstractFileSystem):
    """A file system whose reads fail, and whose files may change meanwhile."""

    protocol = "flaky"
    cachable = False
    files: dict[str, bytes] = {}  # noqa: RUF012
    failures = 0
    changes_at = -1
    reads = 0

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        name = self._strip_protocol(path).partition("@")[2] or self._strip_protocol(path)
        if name not in self.files:
            raise FileNotFoundError(f"{path}?{SECRET}")
        return {"name": name, "size": len(self.files[name]), "type": "file", "ETag": "1"}

    def isdir(self, path: str) -> bool:
        return False

    def open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        name = self._strip_protocol(path).partition("@")[2] or self._strip_protocol(path)
        return FlakyFile(Flaky.current, self.files[name])

    current: Any = None


@pytest.fixture
def flaky(monkeypatch: pytest.MonkeyPatch) -> Flaky:
    fsspec.register_implementation("flaky", Flaky, clobber=True)
    monkeypatch.setattr(remote, "WAIT_SECONDS", 0.0)
    system = Flaky()
    Flaky.current = system
    monkeypatch.setattr(Flaky, "files", {"f": b"some text", "g": b""})
    return system


@pytest.fixture
def memory() -> Iterator[Any]:
    system = fsspec.filesystem("memory")
    system.pipe({"/c/a.txt": b"one", "/c/b.jsonl.gz": gzip.compress(b'{"text": "two"}\n')})
    system.pipe({"/c/.hidden": b"no", "/c/d/e.txt": b"three"})
    yield system
    system.rm("/c", recursive=True)


def read(*names: str) -> list[bytes]:
    with Corpus(list(names)) as corpus:
        return read_documents(corpus)


def test_files_folders_and_globs(memory: Any) -> None:
    assert read("memory://c/a.txt") == [b"one"]
    assert read("memory://c") == [b"one", b"two", b"three"]
    assert read("memory://c/*.txt") == [b"one"]
    assert resolve_sources(["memory://c/a.txt"]).total_bytes == 3
    with pytest.raises(InputError, match=r"no files at memory://c/\*\.csv"):
        read("memory://c/*.csv")
    with pytest.raises(InputError, match=r"can't read memory:///?c/x\.txt \(FileNotFoundError\)"):
        read("memory://c/x.txt")


def test_parquet(memory: Any, tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"text": ["one", None, "two"]}), tmp_path / "t.parquet")
    memory.pipe("/c/t.parquet", (tmp_path / "t.parquet").read_bytes())
    assert read("memory://c/t.parquet") == [b"one", b"two"]


def test_reads_are_tried_again(flaky: Flaky) -> None:
    flaky.failures = 3
    assert read("flaky://f", "flaky://g") == [b"some text", b""]
    flaky.failures = 4
    with pytest.raises(InputError, match=r"can't read flaky://f .*, tried 4 times") as raised:
        read("flaky://f")
    assert SECRET not in str(raised.value) and "ConnectionError" in str(raised.value)


def test_versions_are_not_joined(flaky: Flaky) -> None:
    flaky.failures, flaky.changes_at = 1, 0
    with pytest.raises(InputError, match="flaky://f was changed while it was read"):
        read("flaky://f")
    flaky.files["f"] = b"some text"
    (source,) = find_remote("flaky://f")
    facts = file_facts(source.path)
    flaky.files["f"] = b"some text and more"
    with pytest.raises(InputError, match="was changed while it was read"):
        source.check()
    assert file_facts(find_remote("flaky://f")[0].path) != facts


def test_secrets_are_not_shown(flaky: Flaky) -> None:
    url = f"flaky://user:{SECRET}@f"
    assert (
        shown_url(f"https://u:{SECRET}@host:80/a/b.txt?sig={SECRET}#x") == "https://host:80/a/b.txt"
    )
    assert SECRET not in shown_url(f"s3://[{SECRET}")
    assert read(url) == [b"some text"]
    sources = resolve_sources([url])
    assert SECRET not in repr([source.path for source in sources.files])
    assert SECRET not in repr(file_facts(sources.files[0].path))
    with pytest.raises(InputError, match="flaky://f is named by two URLs that are shown alike"):
        read(url, "flaky://f")
    with pytest.raises(InputError) as raised:
        read(f"flaky://user:{SECRET}@missing")
    assert SECRET not in str(raised.value)
    assert raised.value.__cause__ is None


def test_unknown_schemes_and_missing_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"can't read nothing://x \(ValueError\)"):
        read("nothing://x")
    monkeypatch.setitem(__import__("sys").modules, "fsspec", None)
    with pytest.raises(InputError, match=re.escape("pip install 'llmgpu[remote]'")):
        read("memory://c/a.txt")


class Plain(http.server.SimpleHTTPRequestHandler):
    """A server that sends whole files."""

    def log_message(self, *arguments: Any) -> None:
        pass


class Ranges(Plain):
    """A server that sends parts of files."""

    def do_GET(self) -> None:
        data = Path(self.translate_path(self.path)).read_bytes()
        asked = re.fullmatch(
            r"bytes=(\d+)-(\d+)", self.headers.get("Range", f"bytes=0-{len(data)}")
        )
        assert asked is not None
        part = data[int(asked[1]) : int(asked[2]) + 1]
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {asked[1]}-{asked[2]}/{len(data)}")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part)

    def end_headers(self) -> None:
        self.send_header("Accept-Ranges", "bytes")
        super().end_headers()


@contextmanager
def serve(folder: Path, kind: type[Plain]) -> Iterator[str]:
    handler = functools.partial(kind, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_http(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    (tmp_path / "a.txt").write_bytes(b"one " * 3_000_000)
    (tmp_path / "b.jsonl").write_bytes(b'{"a": {"b": "two"}}\n')
    with serve(tmp_path, Ranges) as root:
        assert read(f"{root}/a.txt?sig={SECRET}") == [b"one " * 3_000_000]
        with Corpus([f"{root}/b.jsonl"], CorpusOptions(text_field="a.b")) as corpus:
            assert read_documents(corpus) == [b"two"]
        with pytest.raises(InputError, match=r"missing\.txt \(FileNotFoundError\)"):
            read(f"{root}/missing.txt")
    with (
        serve(tmp_path, Plain) as root,
        pytest.raises(InputError, match="its server does not send parts of files; download it"),
    ):
        read(f"{root}/a.txt")
