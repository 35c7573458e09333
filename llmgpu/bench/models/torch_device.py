"""Which of torch's devices stands beside an engine, and its memory."""

from __future__ import annotations

import importlib

from llmgpu.bench.measuring.engines import Engine
from llmgpu.bench.measuring.machine import package_version


def torch_device(engine: Engine) -> tuple[str, str]:
    """Return torch's device to compare an engine with, and what tables call torch there.

    That is cuda where torch has it and the engine is an NVIDIA GPU, else the CPU.

    Raises:
        ImportError: torch is not installed.
    """
    torch = importlib.import_module("torch")
    version = package_version("torch")
    if "NVIDIA" in engine.name and torch.cuda.is_available():
        return "cuda", f"torch {version} ({torch.cuda.get_device_name()})"
    return "cpu", f"torch {version} (cpu)"


def free_torch_memory(device: str) -> None:
    """Give back the memory of a device that torch keeps for later."""
    if device != "cpu":
        importlib.import_module("torch").cuda.empty_cache()
