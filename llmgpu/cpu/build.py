"""Building the CPU engine's library, and the module for calls from Python, with the C compiler.

The build of the package runs this module before llmgpu and NumPy are installed, so this module
imports neither.
"""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

FOLDER = Path(__file__).parent
LIBRARY = FOLDER / ("engine.dll" if sys.platform == "win32" else "engine.so")
# With these flags products and sums are never fused, so numbers have the same bits everywhere.
NUMBERS = ("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")
FLAGS = ("-std=c99", "-O3", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread", *NUMBERS)
LIBRARIES = ("-lm",)
CALLS = FOLDER / "python"
IS_FREE_THREADED = "t" in getattr(sys, "abiflags", "")
# With the limited interface of 3.11, one file serves every CPython that has a global lock.
SUFFIX = EXTENSION_SUFFIXES[0] if IS_FREE_THREADED else ".abi3.so"
MODULE = FOLDER / f"calls{SUFFIX}"
LIMITED = () if IS_FREE_THREADED else ("-DPy_LIMITED_API=0x030B0000",)


class BuildError(Exception):
    """The library can't be built; the message is one line."""


def sources() -> list[Path]:
    """Return the C files and headers of the library, sorted by path."""
    return sorted([*FOLDER.glob("*.c"), *FOLDER.glob("*.h")])


def sources_checksum() -> int:
    """Return a checksum of the sources. A library built from other sources is not loaded."""
    return _checksum(sources(), 0)


def module_checksum() -> int:
    """Return a checksum of the sources of the engine and of the module."""
    return _checksum(sorted([*CALLS.glob("*.c"), *CALLS.glob("*.h")]), sources_checksum())


def _checksum(paths: Sequence[Path], checksum: int) -> int:
    for path in paths:
        checksum = zlib.crc32(path.read_bytes(), checksum)
    return checksum


def build(library: Path = LIBRARY, more_flags: Sequence[str] = ()) -> None:
    """Compile the library; BuildError if there is no compiler, or if the compiler fails."""
    files = [str(path) for path in sources() if path.suffix == ".c"]
    _compile(library, sources_checksum(), [*more_flags], [*files, *LIBRARIES])


def build_module(module: Path = MODULE, more_flags: Sequence[str] = ()) -> None:
    """Compile the module, which contains no code of the engine.

    Raises BuildError as `build` does, and if Python's header is missing or the system is Windows.
    """
    if sys.platform == "win32":
        raise BuildError("Windows needs an import library of Python's")
    import sysconfig

    header = Path(sysconfig.get_paths()["include"], "Python.h")
    if not header.exists():
        raise BuildError(f"there is no {header}")
    late = ("-undefined", "dynamic_lookup") if sys.platform == "darwin" else ()
    flags = *LIMITED, f"-I{header.parent}", *late, *more_flags
    files = [str(path) for path in sorted(CALLS.glob("*.c"))]
    _compile(module, module_checksum(), flags, files)


def _compile(target: Path, checksum: int, flags: Sequence[str], files: Sequence[str]) -> None:
    import subprocess

    temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    compiler = os.environ.get("CC") or "cc"
    command = [*compiler.split(), *FLAGS, f"-DLLMGPU_SOURCES={checksum}u", *flags]
    try:
        done = subprocess.run(
            [*command, "-o", str(temporary), *files],
            capture_output=True,
            text=True,
            errors="replace",
        )
        if done.returncode:
            lines = done.stderr.splitlines() or [f"exit status {done.returncode}"]
            raise BuildError(next((line for line in lines if "error" in line), lines[0]))
        os.replace(temporary, target)
    except OSError as error:
        raise BuildError(f"{compiler}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def main() -> None:
    """Build the library and the module in place; print one line for each failure."""
    try:
        build()
    except BuildError as error:
        LIBRARY.unlink(missing_ok=True)
        MODULE.unlink(missing_ok=True)
        print(f"note: the CPU engine is not built, NumPy is used: {error}", file=sys.stderr)
        return
    try:
        build_module()
    except BuildError as error:
        MODULE.unlink(missing_ok=True)
        print(f"note: the module for calls is not built, ctypes is used: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
