"""The engines to measure (the CPU and opened adapters), and the description of the machine."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from llmgpu.backend import NUMPY, Backend, list_adapters, list_all_adapters, select_backend
from llmgpu.bench import ALL
from llmgpu.bench.results import C_ENGINE, NUMPY_ENGINE, Adapter, Machine
from llmgpu.bench.timing import timed
from llmgpu.cpu.library import library
from llmgpu.errors import DeviceError
from llmgpu.gpu.adapters import AdapterInfo, chosen_driver
from llmgpu.gpu.device import Device
from llmgpu.processors import usable_processors
from llmgpu.version import __version__

_PACKAGES = ("numpy", "wgpu", "tokenizers", "rustbpe", "gigatoken", "tiktoken", "torch")


@dataclass(frozen=True)
class Engine:
    """A backend, and the seconds that opening its device took, including the import of wgpu.

    again: whether an earlier engine uses the same adapter through another driver.
    """

    backend: Backend
    open_seconds: float
    again: bool = False

    @property
    def name(self) -> str:
        """The engine's name in tables of kernel times, in which the CPU is called NumPy."""
        device = self.backend.device
        if device is None:
            return NUMPY_ENGINE
        return f"{device.name} with Dawn" if device.webgpu.name == "dawn" else device.name

    @property
    def host_name(self) -> str:
        """Name of the adapter or of the CPU engine. Tables of kernels have `name` instead."""
        return cpu_engine() if self.backend.device is None else self.name

    @property
    def is_software_adapter(self) -> bool:
        """Whether a driver computes on the CPU instead of a GPU."""
        return self.backend.device is not None and self.backend.is_software


def cpu_engine() -> str:
    """Return the name of the CPU engine: the engine in C, or NumPy if there is none."""
    return NUMPY_ENGINE if library() is None else C_ENGINE


def open_engines(devices: Sequence[str]) -> tuple[list[Engine], dict[str, str]]:
    """Open the engines for values of ``--device``; ``all`` opens the CPU and every adapter.

    With ``all``, an adapter that Dawn lists, too, is opened a second time as an engine with
    `again`, unless LLMGPU_DRIVER is set.

    Returns the engines without duplicates, and by name the reasons why adapters of ``all`` could
    not be opened.

    Raises:
        DeviceError: no adapter matches a name, or an adapter that `devices` names can't be opened.
    """
    # Collect functions that open a backend, by the name of the engine or the value of --device.
    named = [device for device in devices if device != ALL]
    others = ["cpu", *(adapter.name for adapter in list_adapters())] if ALL in devices else []
    openers = {name: partial(select_backend, name) for name in [*others, *named]}
    dawn = list_all_adapters() if ALL in devices and chosen_driver() is None else []
    again = {f"{info.name} with Dawn": info for info in dawn if info.webgpu.name == "dawn"}
    openers |= {name: partial(_open, info) for name, info in again.items() if name not in openers}
    engines: dict[str, Engine] = {}
    failures: dict[str, str] = {}
    for name, opener in openers.items():
        try:
            seconds, backend = timed(opener)
        except DeviceError as error:
            if name in named:
                raise
            failures[name] = str(error)
        else:
            seconds = 0.0 if backend is NUMPY else seconds
            engine = Engine(backend, seconds, name in again and again[name].name in engines)
            engines.setdefault(engine.name, engine)
    return list(engines.values()), failures


def _open(info: AdapterInfo) -> Backend:
    return Backend(Device(info), str(info))


def describe_machine(engines: Sequence[Engine]) -> Machine:
    """Return the description of this machine, with the adapters among `engines`."""
    opened = [(e.name, e.backend.device) for e in engines if e.backend.device is not None]
    adapters = ((name, device.adapter, device.subgroup_size) for name, device in opened)
    return Machine(
        platform=f"{platform.system()} {platform.machine()}",
        cpu=_cpu_name(),
        cpus=usable_processors(),
        adapters=tuple(Adapter(name, a.kind, a.driver, a.backend, n) for name, a, n in adapters),
        python=platform.python_version(),
        llmgpu=__version__,
        commit=git_commit(Path(__file__).resolve().parents[2]),
        **{name: package_version(name) for name in _PACKAGES},
    )


def package_version(name: str) -> str | None:
    """Return the version of a package, None if the package is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def git_commit(root: Path) -> str | None:
    """Return the commit of a checkout, followed by "+changes" if files differ; None elsewhere."""
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--abbrev=40", "--exclude=*"]
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.check_output(
            [*command, "--dirty=+changes"], stderr=subprocess.DEVNULL, text=True, timeout=10
        ).strip()
    return None


def _cpu_name() -> str:
    with suppress(OSError), Path("/proc/cpuinfo").open() as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
