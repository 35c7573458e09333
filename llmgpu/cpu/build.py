"""Building the CPU engine's library with the installed C compiler.

The build of the package runs this module before llmgpu or NumPy is installed, so neither is
imported.
"""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).parent
LIBRARY = FOLDER / ("engine.dll" if sys.platform == "win32" else "engine.so")
# Numbers have the same bits on all processors: no product is fused with a sum.
NUMBERS = ("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")
FLAGS = ("-std=c99", "-O3", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread", *NUMBERS)
LIBRARIES = ("-lm",)


class BuildError(Exception):
    """The library can't be built; the message is one line."""


def sources() -> list[Path]:
    """Return the files that the library is made of."""
    return sorted([*FOLDER.glob("*.c"), *FOLDER.glob("*.h")])


def sources_checksum() -> int:
    """Return a checksum of the sources, compared with the checksum in the library."""
    checksum = 0
    for path in sources():
        checksum = zlib.crc32(path.read_bytes(), checksum)
    return checksum


def build(library: Path = LIBRARY, more_flags: Sequence[str] = ()) -> None:
    """Compile the library; BuildError if there is no compiler or it fails."""
    import subprocess

    temporary = library.with_name(f"{library.name}.{os.getpid()}.tmp")
    files = [str(path) for path in sources() if path.suffix == ".c"]
    checksum = f"-DLLMGPU_SOURCES={sources_checksum()}u"
    compiler = os.environ.get("CC") or "cc"
    command = [*compiler.split(), *FLAGS, checksum, *more_flags, "-o", str(temporary)]
    try:
        done = subprocess.run(
            [*command, *files, *LIBRARIES], capture_output=True, text=True, errors="replace"
        )
        if done.returncode:
            lines = done.stderr.splitlines() or [f"exit status {done.returncode}"]
            raise BuildError(next((line for line in lines if "error" in line), lines[0]))
        os.replace(temporary, library)
    except OSError as error:
        raise BuildError(f"{compiler}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def main() -> None:
    """Build the library in place; print one line on failure."""
    try:
        build()
    except BuildError as error:
        LIBRARY.unlink(missing_ok=True)
        print(f"note: the CPU engine is not built, NumPy is used: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
