"""What the bits of a run depend on besides its options: the device or CPU engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from llmgpu.backend import Backend
from llmgpu.cpu.library import library
from llmgpu.cpu.tensors import ARITHMETIC
from llmgpu.errors import CheckpointError
from llmgpu.lm.ops.operations import Operations, open_operations
from llmgpu.lm.ops.products import describe_products, has_fixed_products

# Names of the engine that computes on the CPU, as the log records them.
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
        """Choose that of a run; begun: the facts of its log if it is resumed.

        Raises CheckpointError for facts of an unreleased version, which do not record it.
        """
        is_on_cpu = backend.device is None
        in_c = is_on_cpu and library() is not None
        if begun is None:
            return cls(backend, in_c, is_on_cpu and has_fixed_products())
        missing = {"fixed_products"} - begun.keys()
        if "engine" in begun or "products" in begun:  # it began on the CPU
            missing |= {"engine", "products"} - begun.keys()
        if missing:
            raise CheckpointError(
                f"the log of the run lacks {', '.join(sorted(missing))}, as in unreleased versions "
                "of llmgpu: resume it with the one that wrote it, or start a new run"
            )
        # A run that began on a GPU names no engine; on the CPU NumPy continues it.
        in_c = in_c and begun.get("engine", _IN_NUMPY) != _IN_NUMPY
        return cls(backend, in_c, bool(begun["fixed_products"]))

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
        begun = {"engine": _IN_NUMPY, "products": "not recorded"} | dict(begun)
        for name, now in self.facts().items():
            if (before := begun.get(name)) != now:
                yield (
                    "from here on the bits may differ from those of an uninterrupted run: its "
                    f"{name} was {before} and is {now} now"
                )
