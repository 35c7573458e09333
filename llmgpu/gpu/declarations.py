"""Importing wgpu's binding without parsing C at every start.

The binding lets cffi parse the header of wgpu-native in Python, at import and again for each used
type. This takes half a second or more in every process that opens an adapter. cffi can save the
parsed declarations, so the package contains a saved file for the pinned wgpu, made by
``scripts/make_wgpu_declarations.py``. If the installed wgpu has another header, or cffi another
format, the binding is imported without the file.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from pathlib import Path
from typing import Any

import cffi

_BINDING = "wgpu.backends.wgpu_native._ffi"  # the module that creates an FFI from the header
_DECLARATIONS = Path(__file__).with_name("wgpu_declarations.json")
_lock = threading.Lock()


def import_binding() -> None:
    """Import wgpu's binding; use the saved declarations if they were made from the same header."""
    with _lock:
        if _BINDING in sys.modules:
            return
        plain = cffi.FFI
        saved = _saved_interface()

        def make(*arguments: Any, **options: Any) -> Any:
            # At the same time, other threads may import other bindings, which need the normal FFI.
            is_binding = sys._getframe(1).f_globals.get("__name__") == _BINDING
            return saved if is_binding else plain(*arguments, **options)

        if saved is not None:
            cffi.FFI = make
        try:
            import wgpu.backends.wgpu_native  # noqa: F401
        finally:
            cffi.FFI = plain


def _saved_interface() -> Any:
    """Return an FFI with the saved declarations; None if the declarations can't be used."""
    from wgpu._coreutils import get_header_filename

    try:
        import _cffi_backend

        saved = json.loads(_DECLARATIONS.read_bytes())
        header = Path(get_header_filename("combined_header.h")).read_bytes()
        if saved["header_sha256"] != hashlib.sha256(header).hexdigest():
            return None

        class ParsedInterface(_cffi_backend.FFI):  # type: ignore[misc]
            """An FFI with the saved declarations. The binding receives this class as `cffi.FFI`."""

            def cdef(self, source: str) -> None:
                """Declare nothing: the saved declarations are complete."""

            def set_source(self, name: str, source: None) -> None:
                """Compile nothing."""

        arguments = {name: _packed(value) for name, value in saved["arguments"].items()}
        return ParsedInterface("wgpu", **arguments)
    except (ImportError, OSError, RuntimeError, TypeError, ValueError, KeyError):
        return None


def _packed(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("latin-1")
    return tuple(map(_packed, value)) if isinstance(value, list) else value
