"""The WebGPU drivers: which is taken, and that Dawn does what wgpu does.

The tests of kernels run on either: on Dawn with LLMGPU_DRIVER=dawn.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from llmgpu import backend
from llmgpu.errors import DeviceError
from llmgpu.gpu import adapters
from llmgpu.gpu.adapters import list_adapters, load_driver
from llmgpu.gpu.device import Device
from llmgpu.kernel_source import compose
from tests.conftest import PYTHON_PATH
from tests.harness.kernels import kernel_of
from tests.test_kernel_source import COMPILED

COUNT = """
@group(0) @binding(0) var<storage, read_write> counts: array<u32>;
@compute @workgroup_size(64)
fn count(@builtin(global_invocation_id) id: vec3<u32>) {
    counts[id.x] += id.x;
}
"""


@pytest.mark.parametrize("scan", ["scan_shared", "scan_subgroup"])
def test_tint_compiles_every_kernel(null_device: Any, scan: str) -> None:
    for file, settings in COMPILED:
        text = compose(file, {"scan": f"common/{scan}.wgsl", **settings}).text
        if "atomic<f32>" in text:  # an extension of naga, of which WGSL and Tint know nothing
            continue
        load_driver("dawn").create_shader_module(null_device, text, file)


def test_tint_refuses_what_naga_does_not_look_for(null_device: Any) -> None:
    driver = load_driver("dawn")
    text = COUNT.replace("{\n", "{\n    if (counts[0] > id.x) { workgroupBarrier(); }\n")
    with pytest.raises(driver.errors, match="uniform control flow"):
        driver.create_shader_module(null_device, text, "count")


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("// subgroupAdd\nfn f() {}", ""),
        ("fn f() -> u32 { return subgroupAdd(1u); }", "enable subgroups; "),
        (
            "alias Sum = subgroup_matrix_result<f32, 16, 16>;",
            "enable subgroups, chromium_experimental_subgroup_matrix; ",
        ),
    ],
)
def test_tint_is_told_what_a_kernel_uses(code: str, line: str) -> None:
    pytest.importorskip("wgpudawn")
    from llmgpu.gpu.dawn_driver import enable_lines

    assert enable_lines(code) == line + code


def test_warnings_of_adapters_that_are_left_out_are_not_shown(
    capfd: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("wgpudawn")
    from llmgpu.gpu.dawn_driver import _without_warnings

    def complain() -> None:
        os.write(2, b"note: a\nWarning: Vulkan b required.\n - While c\n    at d\nerror: e\n")

    with pytest.raises(KeyboardInterrupt), _without_warnings():
        complain()
        raise KeyboardInterrupt
    assert capfd.readouterr().err == "note: a\nerror: e\n"
    complain()
    assert "Warning: Vulkan b required." in capfd.readouterr().err


@pytest.mark.parametrize("redirection", ["", "2>&-"])
def test_listing_adapters_prints_nothing_of_the_drivers(redirection: str) -> None:
    command = f"{shlex.quote(sys.executable)} -m llmgpu info {redirection}"
    environment = {key: os.environ[key] for key in os.environ if key != "XDG_RUNTIME_DIR"}
    done = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        env=environment | {"PYTHONPATH": PYTHON_PATH},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("llmgpu: ")


def test_a_kernel_runs_on_dawn(dawn_device: Device) -> None:
    device = dawn_device
    values = np.arange(1 << 20, dtype=np.uint32)  # larger than what goes through the queue
    buffer = device.upload("counts", values)
    kernel = kernel_of(device, COUNT).bind(counts=buffer)
    device.timing = True
    commands = device.record()
    commands.dispatch(kernel, len(values) // 64)
    device.wait(commands.submit())
    device.timing = False
    device.wait(None)
    np.testing.assert_array_equal(device.read(buffer, len(values), np.uint32), 2 * values)
    assert device.gpu_seconds["count"] > 0 or "timestamp-query" not in device.features


def test_submissions_that_nobody_waits_for_are_forgotten(dawn_device: Device) -> None:
    device = dawn_device
    buffer = device.upload("counts", np.zeros(64, np.uint32))
    kernel = kernel_of(device, COUNT).bind(counts=buffer)
    submissions = []
    for _ in range(200):
        commands = device.record()
        commands.dispatch(kernel, 1)
        submissions.append(commands.submit())
    device.wait(submissions[-1])
    device.wait(submissions[0])  # was done and forgotten before
    assert device.read(buffer, 64, np.uint32).tolist() == [200 * k for k in range(64)]


def test_a_signal_during_a_wait_is_not_lost(dawn_device: Device) -> None:
    class StopError(Exception):
        pass

    def stop(number: int, frame: object) -> None:
        raise StopError

    device = dawn_device
    buffer = device.upload("counts", np.zeros(64, np.uint32))
    kernel = kernel_of(device, COUNT).bind(counts=buffer)
    before = signal.signal(signal.SIGUSR1, stop)
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1))
    timer.start()
    try:
        with pytest.raises(StopError):
            while True:
                commands = device.record()
                for _ in range(200):
                    commands.dispatch(kernel, 1)
                device.wait(commands.submit())
                device.read(buffer, 64, np.uint32)
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)
    assert device.read(buffer, 64, np.uint32)[0] == 0


def test_dawn_raises_what_wgpu_ends_the_process_for(dawn_device: Device) -> None:
    with pytest.raises(DeviceError, match="does not compile at wgsl/text:2"):
        kernel_of(dawn_device, "@compute @workgroup_size(1) fn f() {\n    nowhere = 1;\n}")
    with pytest.raises(DeviceError, match="allocate"):
        dawn_device.create_handle("huge", 1 << 62, "STORAGE")


def test_an_unknown_driver_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMGPU_DRIVER", "metal")
    with pytest.raises(DeviceError, match="LLMGPU_DRIVER is 'metal'; use one of wgpu, dawn"):
        backend.select_backend("gpu")


def test_dawn_that_is_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMGPU_DRIVER", "dawn")
    monkeypatch.setattr(adapters, "has_dawn", lambda: False)
    with pytest.raises(DeviceError, match=r"wgpudawn is not installed; run pip install 'llmgpu"):
        backend.select_backend("gpu")


def refuse(driver: str) -> NoReturn:
    raise RuntimeError("no such luck")


def test_where_dawn_refuses_wgpu_takes_its_place_with_a_line(
    device: Device, monkeypatch: pytest.MonkeyPatch, logged: list[str]
) -> None:
    monkeypatch.setenv("LLMGPU_DRIVER", "dawn")
    monkeypatch.setattr(adapters, "has_dawn", lambda: True)
    opened = backend._open

    def open_wgpu(
        driver: str, wanted: str, only_discrete: bool, **options: bool
    ) -> backend.Backend | None:
        return refuse(driver) if driver == "dawn" else opened(driver, wanted, only_discrete)

    monkeypatch.setattr(backend, "_open", open_wgpu)
    notes: list[str] = []
    assert backend.select_backend("gpu", note=notes.append).driver == "wgpu"
    assert notes == ["Dawn can't be used, so wgpu takes its place: no such luck"]
    opening = backend.Opening("gpu")
    opening.begin()
    assert opening.backend().driver == "wgpu"
    assert logged == notes


def test_a_run_that_began_on_dawn_is_resumed_on_dawn_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("LLMGPU_DRIVER", raising=False)
    monkeypatch.setattr(backend, "_open", lambda driver, *given, **options: refuse(driver))
    with pytest.raises(DeviceError, match="was started with Dawn, which can't be used here: no"):
        backend.select_backend("gpu", driver="dawn")


def test_matrix_units_decide_where_nobody_names_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wgpudawn")
    monkeypatch.delenv("LLMGPU_DRIVER", raising=False)
    if not list_adapters(load_driver("wgpu")):
        pytest.skip("wgpu lists no adapter")
    offered = any(info.matrix_shapes for info in list_adapters(load_driver("dawn")))
    taken = backend.select_backend("gpu", matrices=True).driver
    assert taken == ("dawn" if offered else "wgpu")
    assert backend.select_backend("gpu").driver == "wgpu"


Command = Callable[..., bytes]


@pytest.fixture
def on_dawn(dawn_device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs a command in a folder with a text, on Dawn; returns what it said."""
    text = b"the cat sat on the mat, and the bat that sat there spat at it. " * 200
    (tmp_path / "text.txt").write_bytes(text)
    monkeypatch.setenv("LLMGPU_DRIVER", "dawn")

    def run(line: str) -> bytes:
        command = [sys.executable, "-m", "llmgpu", *line.split()]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()
        return done.stderr

    return run


@pytest.mark.slow
def test_commands_on_dawn_write_the_same_files(on_dawn: Command, tmp_path: Path) -> None:
    for device in ("gpu", "cpu"):
        on_dawn(f"bpe-train text.txt --vocab-size 300 -o {device}.bin --device {device}")
        on_dawn(f"tokenize --vocab {device}.bin text.txt -o {device} --device {device}")
    assert (tmp_path / "gpu.bin").read_bytes() == (tmp_path / "cpu.bin").read_bytes()
    assert (tmp_path / "gpu").read_bytes() == (tmp_path / "cpu").read_bytes()


@pytest.mark.slow
def test_a_model_is_trained_on_dawn_and_resumed_there(
    on_dawn: Command, dawn_device: Device, tmp_path: Path
) -> None:
    if dawn_device.is_software:
        pytest.skip("SwiftShader compiles the gradient of attention for many minutes")
    on_dawn("bpe-train text.txt --vocab-size 300 -o v.bin --device cpu")
    sizes = "--dim 32 --heads 2 --layers 1 --seq-len 32 --batch-size 2 --warmup-steps 0"
    train = f"train --vocab v.bin text.txt --device gpu {sizes}"
    on_dawn(f"{train} -o whole --steps 4 --save-interval 2")
    shutil.copytree(tmp_path / "whole", tmp_path / "parts")
    shutil.rmtree(tmp_path / "parts" / "step-00000004")
    on_dawn(f"{train} -o parts --steps 4 --save-interval 2 --resume")
    weights = "step-00000004/model.safetensors"
    assert b'"driver": "dawn"' in (tmp_path / "parts/step-00000004/training.json").read_bytes()
    whole, parts = (tmp_path / name / weights for name in ("whole", "parts"))
    assert whole.read_bytes() == parts.read_bytes()
    said = on_dawn("generate whole --prompt the --max-new-tokens 3 --device gpu")
    assert b"generating on" in said


ALL_AT_ONCE = """
import sys, threading
from llmgpu.gpu.adapters import list_adapters, load_driver
import llmgpu.gpu.{0}_driver

def list_all():
    start.wait()
    try:
        found.append(len(list_adapters(load_driver('{0}'))))
    except Exception as error:
        found.append(error)

found = []
start = threading.Barrier(8)
threads = [threading.Thread(target=list_all) for _ in range(8)]
sys.setswitchinterval(1e-6)
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(len(found), len(set(found)), found)
"""


@pytest.mark.parametrize(("name", "package"), [("wgpu", "wgpu"), ("dawn", "wgpudawn")])
@pytest.mark.parametrize("before", ["", "import {0}; {0}.gpu.enumerate_adapters_sync()"])
def test_threads_list_adapters_at_once(name: str, package: str, before: str) -> None:
    """Also where the program had used the driver's package before."""
    pytest.importorskip(package)
    done = subprocess.run(
        [sys.executable, "-c", before.format(package) + ALL_AT_ONCE.format(name)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.startswith("8 1 ["), done.stdout + done.stderr


def test_dawn_lists_both_of_two_adapters_of_one_name(dawn_device: Device, tmp_path: Path) -> None:
    """The driver is listed twice, as two cards of one kind are."""
    named = os.environ.get("VK_DRIVER_FILES")
    if not named:
        pytest.skip("VK_DRIVER_FILES does not name a driver that Dawn takes")
    source = Path(named.split(os.pathsep)[0])
    content = json.loads(source.read_text())
    library = content["ICD"]["library_path"]
    content["ICD"]["library_path"] = (
        str(source.parent / library) if library.startswith(".") else library
    )
    drivers = [tmp_path / "one.json", tmp_path / "two.json"]
    for driver in drivers:
        driver.write_text(json.dumps(content))
    both = os.pathsep.join(map(str, drivers))
    program = (
        "from llmgpu.gpu.adapters import OpenedAdapter, list_adapters, load_driver\n"
        "from llmgpu.gpu.adapters import select_adapter\n"
        "from llmgpu.gpu.device import Device\n"
        "driver = load_driver('dawn')\n"
        "opened = OpenedAdapter(select_adapter('gpu:1', driver))\n"
        "assert Device(opened).name == list_adapters(driver)[1].name\n"
        "print(*(info.name for info in list_adapters(driver)), sep='\\n')\n"
    )
    listed = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"VK_DRIVER_FILES": both, "PYTHONPATH": PYTHON_PATH},
        capture_output=True,
        text=True,
        timeout=60,
    )
    first, second = listed.stdout.split("\n")[:2]
    assert (first[-2:], second[-2:]) == (":0", ":1") and first[:-2] == second[:-2], listed.stderr


class _InterruptedResults(dict[int, object]):
    """Results whose first change is interrupted by Ctrl-C."""

    def __setitem__(self, number: int, result: object) -> None:
        if not isinstance(result, BaseException):
            raise KeyboardInterrupt
        super().__setitem__(number, result)


def test_an_interrupt_in_a_callback_is_raised_where_its_mapping_is_waited_for(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    wgpu_driver = pytest.importorskip("llmgpu.gpu.wgpu_driver")
    if device.webgpu is not wgpu_driver.WGPU:
        pytest.skip("Dawn calls no function of Python")
    monkeypatch.setattr(wgpu_driver, "_results", _InterruptedResults())
    finish = device.begin_read(device.create_buffer("x", 4), 1, np.uint32)
    with pytest.raises(KeyboardInterrupt):
        finish()
