"""The extension module `calls`: calls of the CPU engine without a layer of Python in between.

- The build of the package compiles the module if Python.h exists; see `llmgpu/cpu/python/calls.c`.
  Without the module, ctypes calls the same functions of the engine, with the same results.
- LLMGPU_CALLS=ctypes ignores the module.
- A `Coder` decodes, and may encode, with one vocabulary. Threads may share a `Coder`.
"""

from __future__ import annotations

import ctypes
import importlib
import inspect
import os
import platform
import struct
from collections.abc import Callable, Mapping
from functools import cache
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.cpu.build import MODULE, module_checksum
from llmgpu.cpu.library import CPattern, CVocabulary, default_threads, library
from llmgpu.errors import LlmgpuError

VARIABLE = "LLMGPU_CALLS"
# Functions of the engine in the order of `Engine` in calls.h.
FUNCTIONS = (
    *("encode_plain", "encode", "encoder_new", "encoder_free"),
    *("shared_words_new", "shared_words_free", "shared_words_spent", "find_token"),
)
ARRAY, LIST, OTHER, NARROW = range(4)  # results of encode(text), as in `enum result` of calls.h
# Versions of NumPy's binary interface in which its functions are numbered as in calls.h.
_NUMPY_VERSIONS = (0x01000009, 0x02000000)


def extension() -> Any:
    """Return the module, or None if ctypes or NumPy is used.

    Raises LlmgpuError if LLMGPU_CALLS has an unknown value.
    """
    wanted = os.environ.get(VARIABLE, "")
    if wanted not in ("", "ctypes"):
        raise LlmgpuError(f"{VARIABLE}={wanted}: use ctypes, or leave it out")
    return None if wanted or library() is None else load(MODULE)[0]


def describe() -> str:
    """Return the interface to the engine: "extension module", or "ctypes" with the reason."""
    if extension() is not None:
        return "extension module"
    if library() is None:
        return "none, without the CPU engine"
    chosen = os.environ.get(VARIABLE) == "ctypes"
    return f"ctypes ({f'{VARIABLE}=ctypes' if chosen else load(MODULE)[1]})"


@cache
def load(path: Path) -> tuple[Any, str]:
    """Return the module and "", or None and the reason why the module can't be loaded."""
    if not path.exists():
        return None, f"{path} was not built: install llmgpu where there is Python.h"
    loader = ExtensionFileLoader("llmgpu.cpu.calls", str(path))
    try:
        module = module_from_spec(ModuleSpec(loader.name, loader, origin=str(path)))
        loader.exec_module(module)
    except ImportError as error:
        return None, f"{path} can't be loaded: {error}"
    if module.sources != module_checksum():
        return None, f"{path} was built from other sources: install llmgpu again"
    if _numpy_version() not in _NUMPY_VERSIONS:
        return None, f"NumPy {np.__version__} has another binary interface"
    if not _finds_items([None]):
        return None, f"lists of Python {platform.python_version()} have another form"
    return module, ""


def _numpy_table() -> int:
    """Return the address of NumPy's table of C functions."""
    name = "numpy._core" if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else "numpy.core"
    capsule = importlib.import_module(f"{name}._multiarray_umath")._ARRAY_API
    # Make a new function object: types set on a function of `ctypes.pythonapi` itself would apply
    # to the whole process.
    prototype = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    address: int = prototype(("PyCapsule_GetPointer", ctypes.pythonapi))(capsule, None)
    return address


def _numpy_version() -> int:
    """Return the version of NumPy's binary interface, by calling the table's first function."""
    table = ctypes.cast(_numpy_table(), ctypes.POINTER(ctypes.c_void_p))
    return int(ctypes.CFUNCTYPE(ctypes.c_uint)(table[0])())


def _finds_items(one: list[None]) -> bool:
    """Whether `items_of` of calls.h finds the items of lists and of tuples; one: a list of None."""
    head = object.__basicsize__ + ctypes.sizeof(ctypes.c_ssize_t)  # up to the number of items
    has_pointer = list.__basicsize__ == head + 2 * ctypes.sizeof(ctypes.c_void_p)
    first = ctypes.c_void_p.from_address(id(one) + head).value if has_pointer else None
    pair = (None, one)
    # A tuple's items are its last field. Since Python 3.14, a hash is in front of them.
    found = ctypes.c_void_p.from_address(id(pair) + tuple.__basicsize__).value
    has_items = first is not None and ctypes.c_void_p.from_address(first).value == id(None)
    return has_items and found == id(None)


def make_coder(
    module: Any,
    tokens: tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]],
    pattern: CPattern | None = None,
    vocabulary: CVocabulary | None = None,
    find_cuts: Callable[[], None] | None = None,
    special_tokens: Mapping[str, int] | None = None,
    sizes: tuple[int, int, int] = (0, 0, 0),
) -> Any:
    """Return a `Coder`, which decodes, looks up tokens of `vocabulary`, and encodes by `pattern`.

    tokens: the tokens end to end, uint8 with TEXT_PADDING bytes after them; the bounds of tokens in
        these bytes, int64 (size + 1,); int64 (size,), the bytes of text that each token replaces.
    find_cuts: finds the places in tokens that no merge crosses; called before the first long text
        with many characters beyond ASCII. special_tokens: ids by text.
    sizes: the most bytes of the table of words; the bytes that a thread encodes at a time; the
        longest text, in bytes, that is encoded unless the caller insists.
    """
    functions = vocabulary.addresses(*FUNCTIONS) if vocabulary else [0] * len(FUNCTIONS)
    pointers = *functions, *(array.ctypes.data for array in tokens), _numpy_table()
    objects = (each.address if each else 0 for each in (pattern, vocabulary))
    numbers = len(tokens[2]), np.dtype(np.uint32).num, np.dtype(np.int64).num, default_threads()
    facts = struct.pack(f"{len(FUNCTIONS) + 6}P7q", *pointers, *objects, *numbers, *sizes)
    return module.Coder(facts, find_cuts, special_tokens or {}, (tokens, pattern, vocabulary))


def bind_methods(replaced: Mapping[type, Mapping[str, Callable[..., Any]]]) -> None:
    """Replace methods of classes by methods of the module, which use the `Coder` in `_coder`.

    replaced: the Python functions to replace, by class and name. The module's methods handle the
        usual case, and call these functions in all other cases. A method that a caller has
        overridden is not replaced. Without the module, no method is replaced.
    """
    module = extension()
    for api, functions in replaced.items() if module else ():
        for name, function in functions.items():
            if vars(api)[name] is function:
                setattr(api, name, module.method(api, name, function, _documented(name, function)))


def _documented(name: str, function: Callable[..., Any]) -> str:
    """Return the docstring of a method in C, which begins with the signature."""
    signature = inspect.signature(function)
    bare = [each.replace(annotation=each.empty) for each in signature.parameters.values()]
    shown = str(signature.replace(parameters=bare, return_annotation=signature.empty))
    return f"{name}{shown.replace('(self', '($self', 1)}\n--\n\n{inspect.getdoc(function)}"
