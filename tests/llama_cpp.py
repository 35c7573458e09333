"""llama.cpp through its C interface: the library in the folder that LLMGPU_LLAMA_CPP names.

npm's @node-llama-cpp/linux-x64 has it built, in bins/linux-x64; tried with 3.22.1.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import c_bool, c_char_p, c_int8, c_int32, c_ubyte, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

_VOCAB_ONLY = 72  # where in its parameters of a model that flag is


class _Parameters(ctypes.Structure):
    """Larger than any of its structures; only its own part of them is read."""

    _fields_ = [("bytes", c_ubyte * 256)]


class _Batch(ctypes.Structure):
    _fields_ = [
        ("count", c_int32),
        ("ids", c_void_p),
        ("embd", c_void_p),
        ("pos", c_void_p),
        ("n_seq_id", c_void_p),
        ("seq_id", c_void_p),
        ("wanted", c_void_p),
    ]


_Log = ctypes.CFUNCTYPE(None, ctypes.c_int, c_char_p, c_void_p)
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "llama_log_set": (None, [_Log, c_void_p]),
    "llama_model_default_params": (_Parameters, []),
    "llama_model_load_from_file": (c_void_p, [c_char_p, _Parameters]),
    "llama_model_get_vocab": (c_void_p, [c_void_p]),
    "llama_model_chat_template": (c_char_p, [c_void_p, c_char_p]),
    "llama_model_free": (None, [c_void_p]),
    "llama_vocab_n_tokens": (c_int32, [c_void_p]),
    "llama_vocab_bos": (c_int32, [c_void_p]),
    "llama_vocab_eos": (c_int32, [c_void_p]),
    "llama_vocab_get_add_bos": (c_bool, [c_void_p]),
    "llama_tokenize": (
        c_int32,
        [c_void_p, c_char_p, c_int32, c_void_p, c_int32, c_bool, c_bool],
    ),
    "llama_context_default_params": (_Parameters, []),
    "llama_init_from_model": (c_void_p, [c_void_p, _Parameters]),
    "llama_decode": (c_int32, [c_void_p, _Batch]),
    "llama_get_logits": (ctypes.POINTER(ctypes.c_float), [c_void_p]),
    "llama_free": (None, [c_void_p]),
}
_silent = _Log(lambda level, text, data: None)


@cache
def _library() -> Any:
    folder = os.environ.get("LLMGPU_LLAMA_CPP")
    if not folder:
        pytest.skip("LLMGPU_LLAMA_CPP does not name a folder with libllama")
    backends, library = (
        ctypes.CDLL(str(next(Path(folder).glob(f"{name}*.so"))), mode=ctypes.RTLD_GLOBAL)
        for name in ("libggml.", "libllama.")
    )
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    library.llama_log_set(_silent, None)
    backends.ggml_backend_load_all_from_path(str(folder).encode())
    return library


class LlamaCpp:
    """A file that llama.cpp has opened."""

    def __init__(self, path: Path, *, vocabulary_only: bool = False) -> None:
        self._library = _library()
        parameters = self._library.llama_model_default_params()
        parameters.bytes[_VOCAB_ONLY] = vocabulary_only
        self._model = self._library.llama_model_load_from_file(str(path).encode(), parameters)
        assert self._model, f"llama.cpp does not open {path}"
        self._vocabulary = self._library.llama_model_get_vocab(self._model)

    def close(self) -> None:
        self._library.llama_model_free(self._model)

    def fact(self, name: str) -> int:
        """A number such as eos."""
        return int(getattr(self._library, f"llama_vocab_{name}")(self._vocabulary))

    @property
    def chat_template(self) -> str | None:
        found = self._library.llama_model_chat_template(self._model, None)
        return None if found is None else found.decode()

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        data = text.encode()
        room = len(data) + 8
        ids = (c_int32 * room)()
        count = self._library.llama_tokenize(
            self._vocabulary, data, len(data), ids, room, True, special
        )
        assert count >= 0
        return list(ids[:count])

    def logits(self, ids: list[int]) -> NDArray[np.float32]:
        """Logits after each of `ids`, (n, vocabulary)."""
        context = self._library.llama_init_from_model(
            self._model, self._library.llama_context_default_params()
        )
        given, wanted = (c_int32 * len(ids))(*ids), (c_int8 * len(ids))(*[1] * len(ids))
        addresses = (ctypes.addressof(given), None, None, None, None, ctypes.addressof(wanted))
        assert self._library.llama_decode(context, _Batch(len(ids), *addresses)) == 0
        shape = (len(ids), self.fact("n_tokens"))
        found = np.ctypeslib.as_array(self._library.llama_get_logits(context), shape).copy()
        self._library.llama_free(context)
        return found
