"""The saved declarations of wgpu's header are those that cffi parses, or they are left aside."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import cffi
import pytest

from llmgpu.gpu import declarations

ROOT = Path(__file__).parents[2]
FILE = ROOT / "llmgpu" / "gpu" / "wgpu_declarations.json"


def header() -> Path:
    from wgpu._coreutils import get_header_filename

    return Path(get_header_filename("combined_header.h"))


def test_generator_gives_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "llmgpu" / "gpu").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(ROOT / "scripts" / "make_wgpu_declarations.py"), run_name="__main__")
    made = (tmp_path / "llmgpu" / "gpu" / FILE.name).read_text(encoding="ascii")
    assert made == FILE.read_text(encoding="ascii"), "wgpu or cffi moved: run the generator"


@pytest.mark.slow  # cffi parses each type
def test_types_have_the_layout_that_cffi_parses() -> None:
    parsed, saved = cffi.FFI(), declarations._saved_interface()
    parsed.cdef(header().read_text())
    names = parsed.list_types()[0]
    assert set(saved.list_types()[0]) == set(names)
    compared = 0
    for name in names:
        theirs, ours = parsed.typeof(name), saved.typeof(name)
        assert theirs.kind == ours.kind, name
        if theirs.kind == "struct" and theirs.fields:
            assert saved.sizeof(ours) == parsed.sizeof(theirs), name
            places = [(field, place.offset) for field, place in theirs.fields]
            assert [(field, place.offset) for field, place in ours.fields] == places, name
            compared += 1
        if theirs.kind == "enum":
            assert ours.elements == theirs.elements, name
    assert compared > 50


IMPORT = """
import cffi, importlib.util, sys
spec = importlib.util.spec_from_file_location("declarations", sys.argv[1])
declarations = importlib.util.module_from_spec(spec)
spec.loader.exec_module(declarations)
plain = cffi.FFI
declarations.import_binding()
assert cffi.FFI is plain
from wgpu.backends.wgpu_native._ffi import ffi
print(type(ffi).__name__)
"""


def interface_used(folder: Path, content: str) -> str:
    """Return the class of the binding's FFI in a process whose saved file has this content."""
    module = folder / "declarations.py"
    module.write_bytes(Path(declarations.__file__).read_bytes())
    (folder / FILE.name).write_text(content)
    command = [sys.executable, "-c", IMPORT, str(module)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("change", ["none", "another header", "truncated", "another format"])
def test_declarations_that_do_not_fit_are_left_aside(tmp_path: Path, change: str) -> None:
    content = FILE.read_text()
    saved = json.loads(content)
    if change == "another header":
        saved["header_sha256"] = "0" * 64
    elif change == "another format":
        saved["arguments"]["_version"] = 1
    content = content[:1000] if change == "truncated" else json.dumps(saved)
    expected = "ParsedInterface" if change == "none" else "FFI"
    assert interface_used(tmp_path, content) == expected
