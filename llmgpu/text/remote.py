"""Files of other machines, by URLs that fsspec opens: https://, hf://, s3://, gs:// and so on.

- A failed read is tried again a few times, from the position reached. If the server says that the
  file is missing or access is denied, the error is raised at once.
- The server tells a file's length and version. Both are compared after a retry and at the end, so
  that parts of two versions are never joined.
- Passwords and signatures in URLs are never shown: errors, summaries and resume keys have the URL
  of `shown_url`. Errors of fsspec are shown only by their type, since their text may contain the
  URL.
"""

from __future__ import annotations

import hashlib
import io
import re
import time
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit

from llmgpu.errors import InputError
from llmgpu.text.compressions import Package

ATTEMPTS = 4
WAIT_SECONDS = 0.5  # pause before the second attempt; doubled before each further attempt

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_FINAL = (FileNotFoundError, PermissionError, IsADirectoryError, NotImplementedError)
_VERSION = (
    "ETag",
    "etag",
    "LastModified",
    "Last-Modified",
    "Content-MD5",
    "mtime",
    "updated",
    "created",
    "last_commit",
)
_FSSPEC = Package("fsspec", "remote")
_PACKAGES = {  # packages that fsspec needs, by scheme
    **dict.fromkeys(("http", "https"), "'llmgpu[remote]'"),
    **dict.fromkeys(("s3", "s3a"), "s3fs"),
    **dict.fromkeys(("gs", "gcs"), "gcsfs"),
    **dict.fromkeys(("az", "abfs", "abfss"), "adlfs"),
    "hf": "huggingface_hub",
}
_PASSING = (408, 425, 429)  # 4xx answers after which another attempt may succeed

Result = TypeVar("Result")


def is_remote(name: str) -> bool:
    """Whether a name is a URL."""
    return _URL.match(name) is not None


def is_listing(url: str) -> bool:
    """Whether a URL names a folder of a web server: the server would send a page of links."""
    if not url.startswith(("http://", "https://")):
        return False
    return shown_url(url).count("/") == 2 or shown_url(url).endswith("/")


def shown_url(url: str) -> str:
    """Return a URL without the parts that may be secret: user, password, query and fragment."""
    try:
        parts = urlsplit(url)
        place = parts.netloc.rpartition("@")[2]
    except ValueError:
        return url.partition("://")[0] + "://..."
    return f"{parts.scheme}://{place}{parts.path}"


def _reason(error: BaseException) -> str:
    """Describe an error without secrets: its type, and the HTTP status or the system's error."""
    named = getattr(error, "strerror", None)
    known = isinstance(error, OSError) and error.errno is not None and isinstance(named, str)
    status = getattr(error, "status", None)
    extra = named if known and "://" not in str(named) else status
    return type(error).__name__ + (f": {extra}" if extra else "")


def _is_refusal(error: Exception) -> bool:
    """Whether a server answered that the request is wrong or denied."""
    response = getattr(error, "response", None)
    status = getattr(error, "status", None) or getattr(response, "status_code", None)
    return isinstance(status, int) and 400 <= status < 500 and status not in _PASSING


def _attempt(
    url: str, action: Callable[[], Result], retry: Callable[[], None] = lambda: None
) -> Result:
    """Call `action` until it succeeds, at most ATTEMPTS times; call `retry` before each retry."""
    for number in range(ATTEMPTS):
        try:
            if number:
                time.sleep(WAIT_SECONDS * 2 ** (number - 1))
                retry()
            return action()
        except InputError:
            raise
        except ImportError as error:
            scheme = url.partition("://")[0]
            package = _PACKAGES.get(scheme.lower(), f"'fsspec[{scheme}]'")
            missing = f" ({error.name})" if error.name else ""
            raise InputError(
                f"{shown_url(url)}: reading {scheme}:// needs another package{missing}: "
                f"pip install {package}"
            ) from None
        except Exception as error:  # each file system of fsspec raises other errors
            is_final = isinstance(error, _FINAL) or _is_refusal(error)
            if is_final or number == ATTEMPTS - 1:
                tried = "" if is_final else f", tried {ATTEMPTS} times"
                message = f"can't read {shown_url(url)} ({_reason(error)}{tried})"
                raise InputError(message) from None
    raise AssertionError("unreachable")


def _open_file_system(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the path in it.

    Raises InputError if the package for the URL's scheme is missing.
    """
    package = _FSSPEC.require(shown_url(url))
    try:
        return package.core.url_to_fs(url)  # type: ignore[no-any-return]
    except ValueError as error:
        raise InputError(f"can't read {shown_url(url)} ({_reason(error)})") from None


class RemoteSource:
    """A file of another machine.

    url: complete URL, for opening. path: URL without secrets, for messages. size: length in bytes.
    version: digest of the server's facts about the file.
    """

    def __init__(self, url: str) -> None:
        """Request length and version; InputError if the file can't be read."""
        self.url, self.path = url, shown_url(url)
        self._system, self._name = _attempt(url, lambda: _open_file_system(url))
        self.size, self.version = self._describe()

    def open_once(self, block_bytes: int | None) -> Any:
        """Return the file as opened by fsspec, without retries."""
        return self._system.open(self._name, "rb", block_size=block_bytes)

    def check(self) -> None:
        """Raise InputError if length or version have changed since the file was found."""
        if self._describe() != (self.size, self.version):
            raise InputError(
                f"{self.path} was changed while it was read: read it again, or a copy of it"
            )

    def _describe(self) -> tuple[int, str]:
        def ask() -> dict[str, Any]:
            self._system.invalidate_cache()
            return dict(self._system.info(self._name))

        info = _attempt(self.url, ask)
        if info.get("type") == "directory" or not isinstance(info.get("size"), int):
            raise InputError(f"can't read {self.path}: its length is unknown")
        facts = repr([str(info.get(name)) for name in _VERSION])
        return info["size"], hashlib.sha256(facts.encode()).hexdigest()[:16]


class RemoteFile(io.RawIOBase):
    """An open file of another machine, which tries failed reads again."""

    def __init__(self, source: RemoteSource, block_bytes: int | None = None) -> None:
        """Open the file; InputError if that fails.

        block_bytes: bytes to request at least at a time; None for the default of the file system.
        """
        super().__init__()
        self.source, self._block_bytes, self._position = source, block_bytes, 0
        self._file = _attempt(source.url, lambda: source.open_once(block_bytes))

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Set the position; see `io.IOBase.seek`."""
        begin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.source.size}
        self._position = max(0, begin[whence] + offset)
        return self._position

    def readinto(self, buffer: Any, /) -> int:
        """Fill the front of `buffer`; return the number of bytes, 0 at the end.

        Raises InputError if reading fails.
        """
        wanted = min(len(memoryview(buffer)), max(0, self.source.size - self._position))
        if wanted == 0:
            return 0

        def read() -> bytes:
            try:
                self._file.seek(self._position)
                data: bytes = self._file.read(wanted)
            except ValueError:  # raised by fsspec if a server answers with the whole file
                raise InputError(
                    f"can't read {self.source.path}: its server does not support range requests; "
                    "download it"
                ) from None
            if not data:
                raise EOFError
            return data

        data = _attempt(self.source.url, read, self._open_again)
        memoryview(buffer)[: len(data)] = data
        self._position += len(data)
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()

    def _open_again(self) -> None:
        self.source.check()
        self._file.close()
        self._file = self.source.open_once(self._block_bytes)


def find_remote(name: str) -> list[RemoteSource]:
    """Return the files of a URL, sorted by name: one file, or the files of a folder or a glob.

    Raises InputError if there are no files, or if a file can't be read.
    """
    system, path = _attempt(name, lambda: _open_file_system(name))
    if any(character in path for character in "*[") and "?" not in name:
        names = _attempt(name, lambda: _find_matches(system, path))
    elif not name.startswith(("http://", "https://")) and _attempt(
        name, lambda: system.isdir(path)
    ):
        names = _attempt(name, lambda: system.find(path))
    else:
        return [RemoteSource(name)]
    hidden = re.compile(r"/\.[^/]*")
    sources = [
        RemoteSource(url)
        for url in sorted(map(system.unstrip_protocol, names))
        if url == name or not hidden.search(url.removeprefix(name))
    ]
    if not sources:
        raise InputError(f"no files at {shown_url(name)}")
    return sources


def _find_matches(system: Any, pattern: str) -> set[str]:
    """Return the files that a glob matches, and the files of matching folders."""
    names: set[str] = set()
    for found, facts in system.glob(pattern, detail=True).items():
        names.update(system.find(found) if facts.get("type") == "directory" else [found])
    return names
