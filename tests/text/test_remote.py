"""Files of other machines, read through fsspec."""

from __future__ import annotations

import functools
import gzip
import http.server
import json
import os
import re
import subprocess
import sys
import tarfile
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmgpu.errors import InputError
from llmgpu.text import remote
from llmgpu.text.corpus import Corpus, CorpusOptions
from llmgpu.text.remote import shown_url
from llmgpu.text.sources import Selection, resolve_sources
from tests.conftest import ROOT
from tests.text.reading import read_documents

fsspec = pytest.importorskip("fsspec")

SECRET = "hunter2"


class FlakyFile:
    """An open file, which gives no data after a read that failed."""

    def __init__(self, system: Flaky, data: bytes) -> None:
        self.system, self.data, self.position = system, data, 0
        self.is_lost = False

    def seek(self, position: int) -> None:
        self.position = position

    def read(self, count: int) -> bytes:
        assert not self.is_lost
        if self.system.failures:
            self.is_lost = True
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


def test_a_file_of_unknown_length(flaky: Flaky, monkeypatch: pytest.MonkeyPatch) -> None:
    info = {"name": "f", "size": None, "type": "file"}
    monkeypatch.setattr(Flaky, "info", lambda self, path, **options: info)
    with pytest.raises(InputError, match="its length is unknown"):
        read("flaky://f")


def test_files_folders_and_globs(memory: Any) -> None:
    assert read("memory://c/a.txt") == [b"one"]
    assert read("memory://c") == [b"one", b"two", b"three"]
    assert read("memory://c/*.txt") == [b"one"]
    assert read("memory://c/*") == read("memory://c/**") == [b"one", b"two", b"three"]
    assert resolve_sources(["memory://c/a.txt"]).total_bytes == 3
    with pytest.raises(InputError, match=r"no files at memory://c/\*\.csv"):
        read("memory://c/*.csv")
    with pytest.raises(InputError, match=r"can't read memory:///?c/x\.txt \(FileNotFoundError\)"):
        read("memory://c/x.txt")


def test_files_of_a_folder_that_are_not_text_are_skipped(memory: Any, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one")
    for name, mode in (("p.tar", "w"), ("p.tar.gz", "w:gz"), ("p.tar.xz", "w:xz")):
        with tarfile.open(tmp_path / name, mode) as packed:  # type: ignore[call-overload]
            packed.add(tmp_path / "a.txt", "a.txt")
        memory.pipe(f"/c/{name}", (tmp_path / name).read_bytes())
    memory.pipe({"/c/logo": b"\x89PNG\r\n\x1a\n\0\0", "/c/bad.gz": b"no gzip", "/c/none": b""})
    memory.pipe({"/c/good.gz": gzip.compress(b"four"), "/c/plain": b"five"})
    memory.pipe("/c/wide", "six".encode("utf-16"))
    skipping = Selection(skips_binaries=True)
    for name in ("memory://c", "memory://c/**"):
        found = resolve_sources([name], skipping)
        names = [source.path.rpartition("/")[2] for source in found.files]
        assert names == ["a.txt", "b.jsonl.gz", "e.txt", "good.gz", "none", "plain"]
        assert [note.partition(" skipped")[0] for note in found.notes] == [
            "4 binary files",
            "1 damaged compressed file",
            "1 file in UTF-16",
        ]
        assert "c/logo'" in found.notes[0] and "c/bad.gz'" in found.notes[1]
    # A file that is named alone is refused when it is read.
    resolve_sources(["memory://c/p.tar.gz"], skipping)
    with pytest.raises(InputError, match=r"c/p\.tar\.gz is an archive of tar: unpack it"):
        read("memory://c/p.tar.gz")


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
    (source,) = resolve_sources(["flaky://f"]).files
    assert source.remote is not None
    flaky.files["f"] = b"some text and more"
    with pytest.raises(InputError, match="was changed while it was read"):
        source.remote.check()
    assert resolve_sources(["flaky://f"]).files[0].facts != source.facts


def test_secrets_are_not_shown(flaky: Flaky) -> None:
    url = f"flaky://user:{SECRET}@f"
    assert (
        shown_url(f"https://u:{SECRET}@host:80/a/b.txt?sig={SECRET}#x") == "https://host:80/a/b.txt"
    )
    assert SECRET not in shown_url(f"s3://[{SECRET}")
    assert read(url) == [b"some text"]
    sources = resolve_sources([url])
    assert SECRET not in repr([source.path for source in sources.files])
    assert SECRET not in repr(sources.files[0].facts)
    with pytest.raises(InputError, match="flaky://f is named by two URLs that are shown alike"):
        read(url, "flaky://f")
    with pytest.raises(InputError) as raised:
        read(f"flaky://user:{SECRET}@missing")
    assert SECRET not in str(raised.value)
    assert raised.value.__cause__ is None


def test_unknown_schemes_and_missing_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"can't read nothing://x \(ValueError\)"):
        read("nothing://x")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(InputError, match=re.escape("pip install 'llmgpu[remote]'")):
        read("memory://c/a.txt")


class Plain(http.server.SimpleHTTPRequestHandler):
    """A server that sends whole files."""

    def log_message(self, *arguments: Any) -> None:
        pass


class Ranges(Plain):
    """A server that sends parts of files."""

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        if path.is_dir():  # a page of links
            return super().do_GET()
        data = path.read_bytes()
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
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
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
        # A folder of a web server is a page of links.
        for page in (root, f"{root}/"):
            (note,) = resolve_sources([page]).notes
            assert note.startswith(f"{root}/ is read as the page") and f"'{root}/*' reads" in note
        assert not resolve_sources([f"{root}/b.jsonl"]).notes
        found = resolve_sources([f"{root}/*"])
        assert [source.path for source in found.files] == [f"{root}/a.txt", f"{root}/b.jsonl"]
    with (
        serve(tmp_path, Plain) as root,
        pytest.raises(InputError, match="its server does not support range requests; download it"),
    ):
        read(f"{root}/a.txt")


def test_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = pytest.importorskip("fsspec.registry")
    for scheme, module, package in (
        ("s3", "s3fs", "s3fs"),
        ("gs", "gcsfs", "gcsfs"),
        ("hf", "huggingface_hub", "huggingface_hub"),
        ("smb", "smbprotocol", "'fsspec[smb]'"),
    ):
        monkeypatch.delitem(registry._registry, scheme, raising=False)
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(InputError, match=re.escape(f"pip install {package}")) as raised:
            read(f"{scheme}://{SECRET}:{SECRET}@b/x.txt")
        assert SECRET not in str(raised.value)


class Hub(Plain):
    """What of Hugging Face's hub reading files takes: the data set u/d."""

    files: dict[str, bytes] = {}  # noqa: RUF012
    asked: list[str] = []  # noqa: RUF012
    commit = "1" * 40

    def _answer(self, body: Any, status: int = 200, **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.asked.append(f"{path} {self.headers.get('Authorization')}")
        name = path.removeprefix("/datasets/u/d/resolve/main/")
        if path.startswith("/api/datasets/u/d/tree/main"):
            folder = path.removeprefix("/api/datasets/u/d/tree/main").lstrip("/")
            self._answer(self._tree(folder))
        elif path == "/api/datasets/u/d":
            self._answer({"id": "u/d", "sha": self.commit})
        elif name in self.files:
            data = self.files[name]
            part = re.match(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            assert part is not None
            place = f"bytes {part[1]}-{part[2]}/{len(data)}"
            self._answer(data[int(part[1]) : int(part[2]) + 1], 206, Content_Range=place)
        else:
            self._answer({"error": SECRET}, 404)

    def do_HEAD(self) -> None:
        self.do_GET()

    def _tree(self, folder: str) -> list[dict[str, Any]]:
        if not folder:
            return [{"type": "directory", "path": "data", "oid": "0" * 40}]
        return [
            {"type": "file", "path": name, "size": len(data), "oid": f"{zlib.crc32(data):040}"}
            for name, data in self.files.items()
        ]


READ = """
import sys
from llmgpu.errors import InputError
from llmgpu.text.corpus import Corpus
from tests.text.reading import read_documents

for name in sys.argv[1:]:
    try:
        with Corpus([name]) as corpus:
            print(*map(len, read_documents(corpus)))
    except InputError as error:
        print(error)
"""


def test_hugging_face(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process of its own: where the hub is, its package reads once."""
    pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(Hub, "files", {"data/a.txt": b"one " * 300_000, "data/b.txt": b"two"})
    monkeypatch.setattr(Hub, "asked", [])
    names = ("data", "data/[b]*", "data/a.txt", "data/c.txt")
    with serve(tmp_path, Hub) as root:
        hub = {"HF_ENDPOINT": root, "HF_TOKEN": SECRET, "HF_HOME": str(tmp_path)}
        command = [sys.executable, "-c", READ, *(f"hf://datasets/u/d/{name}" for name in names)]
        done = subprocess.run(
            [*command, "hf://datasets/u/other/c.txt"],
            cwd=ROOT,
            env=os.environ | hub,
            capture_output=True,
            timeout=100,
        )
    *read, missing, elsewhere = done.stdout.decode().splitlines()
    assert read == ["1200000 3", "3", "1200000"], done.stderr
    assert missing == "can't read hf://datasets/u/d/data/c.txt (FileNotFoundError)"
    assert elsewhere.startswith("can't read hf://datasets/u/other/c.txt (")
    assert any(SECRET in asked for asked in Hub.asked)
    assert SECRET.encode() not in done.stdout + done.stderr


@pytest.mark.filterwarnings("ignore")
def test_s3(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("s3fs")
    moto, boto3 = pytest.importorskip("moto.server"), pytest.importorskip("boto3")
    monkeypatch.setattr(remote, "WAIT_SECONDS", 0.0)
    server = moto.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        root = "http://{}:{}".format(*server.get_host_and_port())
        for name, value in (
            ("AWS_ACCESS_KEY_ID", SECRET),
            ("AWS_SECRET_ACCESS_KEY", SECRET),
            ("AWS_DEFAULT_REGION", "us-east-1"),
            ("AWS_ENDPOINT_URL", root),
        ):
            monkeypatch.setenv(name, value)
        client = boto3.client("s3")
        client.create_bucket(Bucket="bucket")
        for key, data in (("c/a.txt", b"one " * 300_000), ("c/b.jsonl", b'{"text": "two"}\n')):
            client.put_object(Bucket="bucket", Key=key, Body=data)
        assert read("s3://bucket/c") == [b"one " * 300_000, b"two"]
        assert read("s3://bucket/c/*.jsonl") == [b"two"]
        for missing in ("s3://bucket/d.txt", f"s3://{SECRET}:{SECRET}@nobody/x"):
            with pytest.raises(InputError, match=r"can't read s3://") as raised:
                read(missing)
            assert SECRET not in str(raised.value)
        with Corpus(["s3://bucket/c/a.txt"]) as corpus:
            corpus.read_into(np.empty(10, np.uint8))
            client.put_object(Bucket="bucket", Key="c/a.txt", Body=b"eno " * 300_000)
            with pytest.raises(InputError, match="was changed while it was read"):
                read_documents(corpus)
    finally:
        server.stop()


class Failing(Ranges):
    """A server that is busy every second time, or refuses."""

    status = 503
    answers = 0

    def do_GET(self) -> None:
        type(self).answers += 1
        if self.answers % 2 or self.status in (400, 403):
            self.send_error(self.status)
        else:
            super().do_GET()


def test_answers_of_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("aiohttp")
    monkeypatch.setattr(remote, "WAIT_SECONDS", 0.0)
    (tmp_path / "a.txt").write_bytes(b"one " * 300_000)
    with serve(tmp_path, Failing) as root:
        for status in (503, 500, 429):
            monkeypatch.setattr(Failing, "status", status)
            assert read(f"{root}/a.txt") == [b"one " * 300_000]
        for status in (400, 403):
            monkeypatch.setattr(Failing, "status", status)
            monkeypatch.setattr(Failing, "answers", 0)
            answer = rf"a.txt \(ClientResponseError: {status}\)"
            with pytest.raises(InputError, match=answer) as raised:
                read(f"{root}/a.txt?{SECRET}")
            assert SECRET not in str(raised.value) and Failing.answers == 1
