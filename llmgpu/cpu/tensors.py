"""The CPU engine's threads, which compute operations on the tensors of a language model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llmgpu.cpu.library import EngineObject, as_argument

ARITHMETIC = 1  # of the operations; another number where the bits of a result change


class CThreads(EngineObject):
    """Threads for one operation at a time."""

    def __init__(self, count: int) -> None:
        """Start `count` threads, the caller's included."""
        self.count = count
        super().__init__("threads", count)

    def bind(self, operation: str, *arguments: Any) -> Callable[[], None]:
        """Return what carries out an operation of rows.c or products.c; arrays are in C order."""
        function = getattr(self._library, f"llmgpu_{operation}")
        plain = [as_argument(argument) for argument in arguments]

        def call(owners: Any = arguments) -> None:  # their memory lives as long
            function(self.address, *plain)

        return call
