"""Matrix products in torch, which calls cuBLAS: what those of an NVIDIA GPU are compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from llmgpu.bench.measuring.engines import Engine
from llmgpu.bench.models.kernel_cases import Array, KernelCase
from llmgpu.bench.models.torch_device import torch_device

CACHE_BYTES = 256 << 20  # more than any cache holds
WARM_UPS = 3


@dataclass(frozen=True)
class TorchProducts:
    """torch on the GPU that an engine is; float32 without tf32."""

    name: str
    torch: Any

    @classmethod
    def open(cls, engine: Engine) -> TorchProducts | None:
        """Return torch where it has cuda and the engine is an NVIDIA GPU, else None."""
        if engine.backend.device is None or "NVIDIA" not in engine.name:
            return None
        try:
            device, name = torch_device(engine)
        except ImportError:
            return None
        if device != "cuda":
            return None
        import torch

        torch.set_float32_matmul_precision("highest")
        return cls(name, torch)

    def answer(self, case: KernelCase, arrays: dict[str, Array]) -> NDArray[Any]:
        """Return what a case's first output is to be."""
        found: NDArray[Any] = self._call(case, self._tensors(arrays)).cpu().numpy()
        return found

    def seconds(self, case: KernelCase, arrays: dict[str, Array], runs: int) -> list[float]:
        """Return the seconds of several runs by the GPU's clock, with nothing of it in caches."""
        torch, tensors = self.torch, self._tensors(arrays)
        cache = torch.zeros(CACHE_BYTES // 4, device="cuda")
        for _ in range(WARM_UPS):
            self._call(case, tensors)
        spent = []
        for _ in range(runs):
            cache.sum()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            self._call(case, tensors)
            end.record()
            torch.cuda.synchronize()
            spent.append(float(begin.elapsed_time(end)) * 1e-3)
        return spent

    def _tensors(self, arrays: dict[str, Array]) -> dict[str, Any]:
        return {name: self.torch.tensor(array, device="cuda") for name, array in arrays.items()}

    def _call(self, case: KernelCase, tensors: dict[str, Any]) -> Any:
        assert case.torch is not None
        return case.torch(self.torch, tensors)
