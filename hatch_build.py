"""Builds the CPU engine into wheels and editable installs; see llmgpu/cpu/build.py."""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class EngineBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Compiles the library and the module for calls from Python.

    Without a compiler the wheel is for any platform, and NumPy is used. With the library the wheel
    is for any Python of the platform: a Python that can't load the module uses ctypes.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the library, and name the platform that the wheel is for."""
        path = Path(self.root, "llmgpu", "cpu", "build.py")
        spec = importlib.util.spec_from_file_location("llmgpu_cpu_build", path)
        assert spec is not None and spec.loader is not None
        engine = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = engine
        spec.loader.exec_module(engine)
        engine.main()
        if engine.LIBRARY.exists():
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform}"
