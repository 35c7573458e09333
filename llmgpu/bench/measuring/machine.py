"""What a measurement was made on: the machine, its adapters, and the versions of the software."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llmgpu
from llmgpu.backend import Backend
from llmgpu.processors import usable_processors

_PACKAGES = ("numpy", "wgpu", "tokenizers", "rustbpe", "gigatoken", "tiktoken", "torch")


def describe_machine(backends: Sequence[Backend]) -> dict[str, Any]:
    """Return a record of this machine and of the adapters among `backends`, fit for JSON."""
    return {
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu_name(),
        "cpus": usable_processors(),
        "adapters": [_describe_adapter(backend) for backend in backends if backend.device],
        "python": platform.python_version(),
        "llmgpu": llmgpu.__version__,
        "commit": git_commit(Path(llmgpu.__file__).resolve().parents[1]),
        **{name: package_version(name) for name in _PACKAGES},
    }


def package_version(name: str) -> str | None:
    """Return an installed package's version, None if there is none."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def git_commit(root: Path) -> str | None:
    """Return the commit of the checkout at `root` (with "+changes" if it has any), else None."""
    if not (root / ".git").exists():
        return None
    commit = _git(root, "rev-parse", "HEAD")
    changes = _git(root, "status", "--porcelain", "--untracked-files=no")
    return commit + "+changes" if commit and changes else commit or None


def _git(root: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _describe_adapter(backend: Backend) -> dict[str, Any]:
    assert backend.device is not None
    adapter = backend.device.adapter
    return {
        "name": adapter.name,
        "kind": adapter.kind,
        "driver": adapter.driver,
        "backend": adapter.backend,
        "subgroup_size": backend.device.subgroup_size,
    }
