"""Which backend is selected, and that other work continues meanwhile."""

import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from llmgpu import backend, gpu
from llmgpu.backend import NUMPY, Backend, select_early, start_selecting
from llmgpu.cli.groups import gpu_from
from llmgpu.errors import DeviceError
from llmgpu.gpu import drivers
from tests.conftest import require_adapter


@pytest.fixture(autouse=True)
def _no_chosen_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LLMGPU_DRIVER", raising=False)


@pytest.mark.parametrize(
    ("wanted", "text_bytes", "least"), [("cpu", None, 0), ("cpu", 10**12, 0), ("auto", 99, 100)]
)
def test_small_work_loads_no_gpu_package(wanted: str, text_bytes: int | None, least: int) -> None:
    code = (
        "import sys; from llmgpu.backend import NUMPY, start_selecting\n"
        f"assert start_selecting({wanted!r}, {text_bytes!r}, {least!r})() is NUMPY\n"
        "assert 'wgpu' not in sys.modules and 'llmgpu.gpu' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(("text_bytes", "least"), [(100, 100), (0, 0)])
def test_auto_looks_for_adapters_from_the_least_size_on(
    monkeypatch: pytest.MonkeyPatch, text_bytes: int, least: int
) -> None:
    asked_in = []

    def no_adapter(driver: str, wanted: str) -> None:
        asked_in.append(threading.current_thread())

    monkeypatch.setattr(backend, "_open", no_adapter)
    chosen = start_selecting("auto", text_bytes, least, joins=True)()
    assert (chosen.device, chosen.join_from) == (None, 0)
    assert chosen.joining is not None
    assert chosen.joining() is NUMPY
    assert len(asked_in) == 1
    assert asked_in[0] is not threading.main_thread()


def test_a_text_of_unknown_size_opens_nothing_at_first() -> None:
    code = (
        "import sys; from llmgpu.backend import start_selecting\n"
        "chosen = start_selecting('auto', None, 100, joins=True)()\n"
        "assert (chosen.device, chosen.join_from) == (None, 100)\n"
        "assert 'wgpu' not in sys.modules and 'llmgpu.gpu' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_can_not_be_selected_is_an_error_when_it_is_asked_for() -> None:
    selected = start_selecting("no such adapter")
    with pytest.raises(DeviceError):
        selected()


@pytest.mark.parametrize("value", ["x", "0", "-1MB", "1e999"])
def test_the_size_in_the_environment_is_checked(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("LLMGPU_GPU_FROM", value)
    with pytest.raises(click.UsageError, match="LLMGPU_GPU_FROM"):
        gpu_from(100)


def test_the_size_in_the_environment_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LLMGPU_GPU_FROM", raising=False)
    assert gpu_from(100) == 100
    monkeypatch.setenv("LLMGPU_GPU_FROM", "2MB")
    assert gpu_from(100) == 2_000_000


SAYS_WHEN = """
import sys
from llmgpu import backend

def select_early(wanted, *, auto, matrices=False):
    print(wanted, auto, "numpy" in sys.modules)
    sys.exit()

backend.select_early = select_early
from llmgpu.cli import main
main()
"""


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("bpe-train small --device gpu", "gpu False"),
        ("tokenize --vocab v.bin small --device gpu", "gpu False"),
        ("count --vocab v.bin small --device gpu", "gpu False"),
        ("generate folder --prompt a", "auto True"),
        ("score folder small", "auto True"),
        ("bpe-train small", "auto False"),
        ("bpe-train large", "auto True"),
        ("bpe-train small small large --limit 1999", "auto False"),
        ("bpe-train large --checkpoint folder --resume", "auto False"),
        ("tokenize --vocab v.bin small small", "auto True"),
        ("tokenize --vocab v.bin small missing", "auto False"),
        ("tokenize --vocab v.bin large --decode", "auto False"),
    ],
)
def test_a_device_that_will_be_used_is_opened_before_numpy_is_imported(
    command: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "small").write_bytes(b"x" * 1000)
    (tmp_path / "large").write_bytes(b"x" * 2000)
    done = subprocess.run(
        [sys.executable, "-c", SAYS_WHEN, *command.split()],
        cwd=tmp_path,
        env=os.environ | {"LLMGPU_GPU_FROM": "2000"},
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == (f"{said} False\n", "")


def test_no_variable_is_set_while_a_device_is_opened_and_numpy_imported() -> None:
    """A driver that reads variables meanwhile may read memory that setting one has freed."""
    code = (
        "import os, sys; from llmgpu import backend\n"
        "os.environ.pop('XDG_RUNTIME_DIR', None)\n"
        "backend.select_early('gpu')\n"
        "def refuse(*arguments): os.write(2, repr(arguments).encode()); os._exit(1)\n"
        "os.putenv = os.unsetenv = refuse\n"
        "assert 'numpy' not in sys.modules; import numpy\n"
        "backend._early['gpu'].exception()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(("name", "package"), [("wgpu", "wgpu"), ("dawn", "wgpudawn")])
def test_adapters_are_listed_without_numpy(name: str, package: str) -> None:
    pytest.importorskip(package)
    code = (
        "import sys; from llmgpu.gpu import list_adapters, load_driver\n"
        f"list_adapters(load_driver({name!r}))\n"
        "assert 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_all_devices_are_not_one() -> None:
    with pytest.raises(DeviceError, match="device all is only for tokenizing and counting tokens"):
        start_selecting("all")()


def test_what_was_begun_early_is_taken_once() -> None:
    select_early("no such adapter")
    begun = backend._early["no such adapter"]
    for name in ("auto", "cpu"):
        select_early(name)
    assert [*backend._early] == ["no such adapter"]
    first, second = (start_selecting("no such adapter") for _ in range(2))
    assert not backend._early
    for selected in (first, begun.result, second):
        with pytest.raises(DeviceError, match=r"no such adapter|no GPU adapter"):
            selected()


@pytest.mark.parametrize(
    ("driver", "installed", "matrices", "in_thread"),
    [
        ("", False, False, True),
        ("", False, True, True),
        ("", True, False, True),
        ("", True, True, False),
        ("wgpu", True, True, True),
        ("dawn", True, False, False),
    ],
)
def test_dawn_is_not_selected_in_a_thread(
    driver: str,
    installed: bool,
    matrices: bool,
    in_thread: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While it lists adapters, standard error is a file."""
    asked_in = []

    def select(wanted: str, *, matrices: bool, note: Callable[[str], None] | None) -> Backend:
        asked_in.append(threading.current_thread())
        (note or print)(f"{wanted} {matrices}")
        return NUMPY

    monkeypatch.setenv("LLMGPU_DRIVER", driver)
    for module in gpu, drivers:
        monkeypatch.setattr(module, "has_dawn", lambda: installed)
    monkeypatch.setattr(backend, "select_backend", select)
    told: list[str] = []
    selected = start_selecting("some adapter", matrices=matrices, note=told.append)
    assert selected() is NUMPY
    assert told == [f"some adapter {matrices}"]
    assert (asked_in[0] is not threading.main_thread()) == in_thread
    select_early("gpu", matrices=matrices)
    assert [*backend._early] == ["gpu"] * in_thread
    assert start_selecting("gpu", matrices=matrices)() is NUMPY and not backend._early


def test_what_dawn_raises_is_raised_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: object, **how: object) -> Backend:
        raise DeviceError("no Dawn")

    monkeypatch.setenv("LLMGPU_DRIVER", "dawn")
    monkeypatch.setattr(drivers, "has_dawn", lambda: True)
    monkeypatch.setattr(backend, "select_backend", fail)
    selected = start_selecting("gpu")
    with pytest.raises(DeviceError, match="no Dawn"):
        selected()


def test_a_device_is_freed_when_nobody_uses_it() -> None:
    require_adapter()
    for early in False, True:
        if early:
            select_early("gpu")
        device = weakref.ref(start_selecting("gpu")().device)
        gc.collect()
        assert device() is None


def test_all_devices_that_were_opened_early_are_taken_once() -> None:
    select_early(backend.ALL)
    (begun,) = backend._early_all
    selected = start_selecting(backend.ALL, joins=True)
    assert selected is begun.result() and not backend._early_all
    found = selected()
    opened = [joining().description for joining in (found.joining, *found.others) if joining]
    assert len(opened) == len(set(opened)) and (opened or found is NUMPY)
