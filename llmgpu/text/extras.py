"""Packages that only some corpora need; without one its files are refused by name."""

from __future__ import annotations

import importlib
from typing import Any

from llmgpu.errors import InputError


def require_package(package: str, extra: str, path: str) -> Any:
    """Return the module `package`; InputError says how to install what reading `path` needs."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise InputError(
            f"{path}: reading it needs the package {package}: pip install 'llmgpu[{extra}]'"
        ) from error
