"""``gs://`` through gcsfs, against a server on this machine that answers as Google's does."""

from __future__ import annotations

import http.server
import json
import re
import threading
import urllib.parse
from collections.abc import Iterator

import pytest

from llmgpu.errors import InputError
from llmgpu.text.corpus import Corpus
from tests.text.reading import read_documents

pytest.importorskip("gcsfs")

FILES = {
    "text/a.txt": b"low lower lowest\n" * 5000,
    "text/deep/b.txt": b"newest\n" * 9,
    "rows/r.jsonl": b'{"text": "row"}\n' * 3,
}
OBJECTS = "/storage/v1/b/bucket/o"


class Storage(http.server.BaseHTTPRequestHandler):
    """Objects and their lists, of the bucket "bucket"."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: object) -> None:
        pass

    def do_GET(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        found = re.fullmatch(rf"(?:/download)?{OBJECTS}/(.+)", url.path)
        name = urllib.parse.unquote(found[1]) if found else ""
        if url.path == OBJECTS:
            self.answer(200, self.listed(query.get("prefix", ""), query.get("delimiter", "\0")))
        elif name not in FILES:
            self.answer(404, {"error": {"code": 404, "message": "not there"}})
        elif query.get("alt") == "media":
            self.send_part(FILES[name])
        else:
            self.answer(200, self.facts(name))

    def facts(self, name: str) -> dict[str, str]:
        size = str(len(FILES[name]))
        return {"name": name, "bucket": "bucket", "size": size, "etag": "1", "generation": "1"}

    def listed(self, prefix: str, delimiter: str) -> dict[str, object]:
        below = [name for name in FILES if name.startswith(prefix)]
        folders = {
            prefix + name[len(prefix) :].split(delimiter)[0] + delimiter
            for name in below
            if delimiter in name[len(prefix) :]
        }
        items = [self.facts(name) for name in below if delimiter not in name[len(prefix) :]]
        return {"items": items, "prefixes": sorted(folders)}

    def answer(self, code: int, content: object) -> None:
        self.send_bytes(code, json.dumps(content).encode())

    def send_part(self, data: bytes) -> None:
        first, _, last = (self.headers.get("Range") or "bytes=0-")[6:].partition("-")
        self.send_bytes(206, data[int(first) : int(last) + 1 if last else None])

    def send_bytes(self, code: int, data: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Storage)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{server.server_port}")
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.usefixtures("storage")
def test_objects_of_google_cloud_storage() -> None:
    a, b = FILES["text/a.txt"], FILES["text/deep/b.txt"]
    for url, expected in (
        ("gs://bucket/text/a.txt", [a]),
        ("gs://bucket/text/", [a, b]),
        ("gs://bucket/text/**/*.txt", [a, b]),
        ("gs://bucket/rows/r.jsonl", [b"row"] * 3),
    ):
        assert read_documents(Corpus([url])) == expected, url
    for url in ("gs://bucket/none.txt", "gs://other/a.txt"):
        with pytest.raises(InputError, match=f"can't read {url}"):
            Corpus([url])
