"""Write llmgpu/gpu/wgpu_declarations.json: the C declarations of the pinned wgpu, parsed.

cffi writes what it parsed as a Python module that calls its C core. The arguments of that call are
kept as data, bytes as text of the same code points. Run it from the top of the repository after
another wgpu is pinned; the output is the same for the same header and cffi format.
"""

from __future__ import annotations

import ast
import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import cffi
from wgpu._coreutils import get_header_filename

TARGET = Path("llmgpu/gpu/wgpu_declarations.json")


def main() -> None:
    """Parse the header of the installed wgpu."""
    header = Path(get_header_filename("combined_header.h")).read_bytes()
    ffi = cffi.FFI()
    ffi.cdef(header.decode())
    ffi.set_source("wgpu", None)
    with tempfile.TemporaryDirectory() as folder:
        module = Path(folder) / "declarations.py"
        ffi.emit_python_code(str(module))
        assignment = ast.parse(module.read_text()).body[-1]
    assert isinstance(assignment, ast.Assign)
    assert isinstance(assignment.value, ast.Call)
    arguments = {k.arg: _plain(ast.literal_eval(k.value)) for k in assignment.value.keywords}
    made = {"header_sha256": hashlib.sha256(header).hexdigest(), "arguments": arguments}
    TARGET.write_text(json.dumps(made, indent=0) + "\n", encoding="ascii")


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


if __name__ == "__main__":
    main()
