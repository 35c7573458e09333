"""Packages that only some corpora need."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from llmgpu.errors import InputError


@dataclass(frozen=True)
class Package:
    """An optional package: the module to import, and the extra of llmgpu that installs it."""

    module: str
    extra: str

    def require(self, path: str) -> Any:
        """Import and return the module; InputError says how to install it to read `path`."""
        try:
            return importlib.import_module(self.module)
        except ImportError as error:
            raise InputError(
                f"{path}: reading it needs the package {self.module}: "
                f"pip install 'llmgpu[{self.extra}]'"
            ) from error


ZSTANDARD = Package("zstandard", "zstd")
PYARROW, PYARROW_PARQUET = Package("pyarrow", "parquet"), Package("pyarrow.parquet", "parquet")
