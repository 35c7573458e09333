"""The WebGPU drivers by name, each loaded when it is first asked for."""

from __future__ import annotations

import importlib.util
import os

from llmgpu.errors import DeviceError
from llmgpu.gpu.driver import Driver
from llmgpu.input_files import quote

DRIVERS = ("wgpu", "dawn")
DRIVER_VARIABLE = "LLMGPU_DRIVER"


def chosen_driver() -> str | None:
    """Return the name that LLMGPU_DRIVER gives, None if it gives none.

    Raises:
        DeviceError: there is no driver of that name, or its package is not installed.
    """
    name = os.environ.get(DRIVER_VARIABLE) or None
    if name is not None and name not in DRIVERS:
        raise DeviceError(f"{DRIVER_VARIABLE} is {quote(name)}; use one of {', '.join(DRIVERS)}")
    if name == "dawn" and not has_dawn():
        raise DeviceError(
            f"{DRIVER_VARIABLE} is dawn, and the package wgpudawn is not installed; run "
            "pip install 'llmgpu[dawn]', or unset the variable"
        )
    return name


def has_dawn() -> bool:
    """Whether the package of Dawn is installed."""
    return importlib.util.find_spec("wgpudawn") is not None


def default_driver() -> Driver:
    """Return the driver that LLMGPU_DRIVER names, else wgpu."""
    return load_driver(chosen_driver() or "wgpu")


def load_driver(name: str) -> Driver:
    """Return the one driver of a name in `DRIVERS`; raises what its import raises."""
    if name == "dawn":
        from llmgpu.gpu.dawn_driver import DAWN

        return DAWN
    from llmgpu.gpu.wgpu_driver import WGPU

    return WGPU
