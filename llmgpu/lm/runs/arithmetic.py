"""What the bits of a run depend on besides its options: the device or CPU engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from llmgpu.backend import Backend
from llmgpu.cpu.library import library
from llmgpu.cpu.tensors import ARITHMETIC
from llmgpu.lm.ops.operations import Operations, open_operations
from llmgpu.lm.ops.products import describe_products, has_fixed_products

# What the log calls the engine that computes on the CPU; earlier versions had only NumPy.
_IN_NUMPY, _IN_C = "NumPy", f"C (arithmetic {ARITHMETIC})"


@dataclass(frozen=True)
class Arithmetic:
    """Where a run computes, and how.

    in_c: the CPU engine computes. fixed_products: matrix products have the same bits with any
    number of threads, in NumPy.
    """

    backend: Backend
    in_c: bool
    fixed_products: bool

    @classmethod
    def choose(cls, backend: Backend, begun: Mapping[str, Any] | None) -> Arithmetic:
        """Choose that of a run; begun: the facts of its log if it is resumed."""
        is_on_cpu = backend.device is None
        in_c = is_on_cpu and library() is not None
        if begun is None:
            return cls(backend, in_c, is_on_cpu and has_fixed_products())
        in_c = in_c and begun.get("engine", _IN_NUMPY) != _IN_NUMPY
        # Runs of earlier versions left the threads to NumPy's library.
        return cls(backend, in_c, bool(begun.get("fixed_products", False)))

    def open_operations(self) -> Operations:
        """Open the operations."""
        device, fixed = self.backend.device, self.fixed_products
        return open_operations(device, fixed_products=fixed, in_c=self.in_c)

    def facts(self) -> dict[str, str]:
        """Return what the log records of it."""
        device = {"device": self.backend.description}
        if self.backend.device is not None:
            return device
        products = describe_products(fixed=self.fixed_products)
        return device | {"engine": _IN_C if self.in_c else _IN_NUMPY, "products": products}

    def changes(self, begun: Mapping[str, Any]) -> Iterator[str]:
        """Yield why a resumed run will not have the bits of an uninterrupted one."""
        begun = {"engine": _IN_NUMPY} | dict(begun)
        for name, now in self.facts().items():
            before = begun.get(name, now if self.fixed_products else "not recorded")
            if before != now:
                yield (
                    "from here on the bits may differ from those of an uninterrupted run: its "
                    f"{name} was {before} and is {now} now"
                )
