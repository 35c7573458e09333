"""Which backend is selected, and that other work continues meanwhile."""

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click
import pytest

from llmgpu import Tokenizer, backend, tokenize_part
from llmgpu.backend import NUMPY, Backend, Opening
from llmgpu.bpe.vocabulary.building import byte_vocabulary
from llmgpu.cli.groups import gpu_from
from llmgpu.errors import DeviceError
from llmgpu.gpu import adapters
from llmgpu.machine import usable_processors
from tests.conftest import ROOT, require_adapter


@pytest.fixture(autouse=True)
def _no_chosen_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LLMGPU_DRIVER", raising=False)


LOADS_NOTHING = "assert 'wgpu' not in sys.modules and 'llmgpu.gpu' not in sys.modules"


@pytest.mark.parametrize("device", ["cpu", "auto"])
@pytest.mark.parametrize("text_bytes", [None, 99])
def test_small_work_loads_no_gpu_package(device: str, text_bytes: int | None) -> None:
    code = (
        "import os, sys; os.environ['LLMGPU_GPU_FROM'] = '100'\n"
        "from llmgpu.backend import NUMPY, Opening\n"
        f"opening = Opening({device!r}, encodes=True)\n"
        f"opening.begin_encoding({text_bytes!r})\n"
        f"assert opening.backend() == NUMPY\n{LOADS_NOTHING}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_adapters_are_not_listed_where_no_driver_of_a_gpu_is() -> None:
    code = (
        "import sys; from llmgpu import backend\n"
        "backend._GPU_FILES = ('/dev/no such file*',); sys.platform = 'linux'\n"
        "opening = backend.Opening('auto', encodes=True)\n"
        "opening.begin()\n"
        f"assert opening.backend() == backend.NUMPY\n{LOADS_NOTHING}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("text_bytes", "is_open", "on_gpu"),
    [
        *[(None, False, False), (None, True, False)],
        *[(10**8 - 1, False, False), (10**8, False, True)],
        *[((1 << 20) - 1, True, False), (1 << 20, True, True)],
    ],
)
def test_the_size_of_a_text_decides_where_auto_encodes_it(
    monkeypatch: pytest.MonkeyPatch, text_bytes: int | None, is_open: bool, on_gpu: bool
) -> None:
    encodes_on_gpu = partial(backend.encodes_on_gpu, at_start=True)
    monkeypatch.setenv("LLMGPU_GPU_FROM", "100MB")
    assert encodes_on_gpu(text_bytes, is_open=is_open) == on_gpu
    monkeypatch.delenv("LLMGPU_GPU_FROM")
    least = backend.encoding_from(usable_processors())
    assert not encodes_on_gpu(least - 1, is_open=False)
    assert encodes_on_gpu(least, is_open=False)


@pytest.mark.parametrize("at_start", [True, False])
def test_the_sizes_are_those_where_recorded_processes_were_as_fast_on_both(at_start: bool) -> None:
    record = json.loads((ROOT / "docs/recorded/commands/nvidia-h200-cpu-or-gpu.json").read_text())
    rows = record["results"] if at_start else record["encode_file"]["results"]
    losses = []
    for row in rows:
        least = backend.encoding_from(row["processors"], at_start=at_start)
        cpu, gpu = row["cpu_seconds"], row["gpu_seconds"]
        on_gpu = row["megabytes"] * 1_000_000 >= least
        losses.append((gpu if on_gpu else cpu) / min(cpu, gpu) - 1)
    assert len(losses) == (53 if at_start else 27)
    assert max(losses) <= 0.03


def test_a_tokenizer_opens_a_gpu_for_longer_texts_than_a_command_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    opened: list[str] = []

    def select(wanted: str, **how: object) -> Backend:
        opened.append(wanted)
        return NUMPY

    monkeypatch.delenv("LLMGPU_GPU_FROM", raising=False)
    monkeypatch.setattr(backend, "encoding_from", lambda _, at_start: 9 if at_start else 100_000)
    monkeypatch.setattr(backend, "_may_have_gpu", lambda: True)
    monkeypatch.setattr(backend, "select_backend", select)
    path, vocabulary = tmp_path / "text", tmp_path / "v.bin"
    byte_vocabulary("cl100k", "hf").save(vocabulary)
    for size, count in (99_999, 0), (100_000, 1):
        path.write_bytes(b"a" * size)
        assert len(Tokenizer.load(vocabulary).encode_file(path)) == size
        assert len(opened) == count
        tokenize_part(vocabulary, path, tmp_path / f"{size}.bin", (1, 1), shard_tokens=1 << 20)
        assert len(opened) == 2 * count
    opening = Opening("auto", encodes=True)
    assert opening.begin_encoding(9)
    assert opening.backend() == NUMPY
    assert len(opened) == 3


class Adapter:
    """An adapter of a kind, as drivers list them."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.is_software = kind == "software adapter"
        self.is_discrete = kind == "discrete GPU"
        self.matrix_shapes = ()

    def __str__(self) -> str:
        return self.kind


KINDS = "discrete GPU", "integrated GPU", "software adapter", "unknown kind of GPU"


@pytest.mark.parametrize(
    ("kinds", "encoding", "computing"),
    [
        (KINDS, KINDS[0], KINDS[0]),
        (KINDS[1:], "the CPU", KINDS[1]),
        (KINDS[2:], "the CPU", KINDS[3]),
        (KINDS[2:3], "the CPU", "the CPU"),
        ((), "the CPU", "the CPU"),
    ],
)
def test_auto_encodes_on_a_discrete_gpu_alone(
    kinds: tuple[str, ...], encoding: str, computing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wgpu")
    monkeypatch.setattr(backend, "_may_have_gpu", lambda: True)
    monkeypatch.setattr(adapters, "list_adapters", lambda driver: [Adapter(kind) for kind in kinds])
    monkeypatch.setattr(adapters, "OpenedAdapter", lambda adapter: adapter)
    monkeypatch.setattr("llmgpu.gpu.device.Device", lambda opened: opened)
    for encodes, expected in (True, encoding), (False, computing):
        opening = Opening("auto", encodes=encodes)
        opening.begin()
        found = opening.backend()
        assert found.description == expected
        assert found.is_optional == (encodes and expected != "the CPU")


def test_a_device_that_auto_can_not_open_leaves_encoding_to_the_cpu(
    monkeypatch: pytest.MonkeyPatch, logged: list[str]
) -> None:
    def refuse(wanted: str, **how: object) -> Backend:
        raise DeviceError("can't open it")

    monkeypatch.setattr(backend, "_may_have_gpu", lambda: True)
    monkeypatch.setattr(backend, "select_backend", refuse)
    opening = Opening("auto", encodes=True)
    opening.begin()
    assert opening.backend() == NUMPY
    assert logged == ["can't open it; using the CPU"]
    for others in Opening("auto"), Opening("gpu", encodes=True):
        others.begin()
        for _ in range(2):
            with pytest.raises(DeviceError, match="can't open it"):
                others.backend()


def test_auto_takes_the_cpu_for_the_next_text_if_that_is_small(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = Backend(None, "a device")
    monkeypatch.setenv("LLMGPU_GPU_FROM", "1kB")
    monkeypatch.setattr(backend, "_may_have_gpu", lambda: True)
    monkeypatch.setattr(backend, "select_backend", lambda wanted, **how: device)
    opening = Opening("auto", encodes=True)
    for text_bytes, expected in (1000, device), (999, NUMPY), (None, NUMPY), (2000, device):
        assert opening.begin_encoding(text_bytes) == (expected is device)
        assert opening.backend() == expected


def test_what_can_not_be_selected_is_an_error_when_it_is_asked_for() -> None:
    opening = Opening("no such adapter")
    opening.begin()
    for _ in range(2):
        with pytest.raises(DeviceError, match=r"no such adapter|no GPU adapter"):
            opening.backend()


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

def begin(opening):
    print(opening.wanted, "numpy" in sys.modules)
    sys.exit()

backend.Opening.begin = begin
from llmgpu.cli import main
for command in sys.argv[1:]:
    sys.argv[1:] = command.split()
    try: main()
    except SystemExit: pass
"""


def says_when(folder: Path, *commands: str) -> tuple[str, str]:
    """Return what commands write that run one after the other in one process."""
    (folder / "small").write_bytes(b"x" * 1000)
    (folder / "large").write_bytes(b"x" * 2000)
    done = subprocess.run(
        [sys.executable, "-c", SAYS_WHEN, *commands],
        cwd=folder,
        env=os.environ | {"LLMGPU_GPU_FROM": "2000"},
        capture_output=True,
        text=True,
    )
    return done.stdout, done.stderr


def test_a_device_that_will_be_used_is_opened_before_numpy_is_imported(tmp_path: Path) -> None:
    commands = {
        "bpe-train small --device gpu": "gpu",
        "tokenize --vocab v.bin small --device gpu": "gpu",
        "count --vocab v.bin small --device gpu": "gpu",
        "compare-vocabs v.bin w.bin --on large": "auto",
        "generate folder --prompt a": "auto",
        "score folder small": "auto",
        "bpe-train large": "auto",
        "tokenize --vocab v.bin small small": "auto",
    }
    said = "".join(f"{wanted} False\n" for wanted in commands.values())
    assert says_when(tmp_path, *commands) == (said, "")


@pytest.mark.parametrize(
    "command",
    [
        "bpe-train small",
        "bpe-train small small large --limit 1999",
        "bpe-train large --checkpoint folder --resume",
        "tokenize --vocab v.bin small missing",
        "tokenize --vocab v.bin large --decode",
        "tokenize --vocab v.bin ids --decode --device gpu",
    ],
)
def test_a_device_that_may_not_be_used_is_not_opened_early(command: str, tmp_path: Path) -> None:
    # Without a vocabulary the command fails, if not before it begins to open a device.
    assert not says_when(tmp_path, command)[0].endswith("False\n")


def test_no_variable_is_set_while_a_device_is_opened_and_numpy_imported() -> None:
    """A driver that reads variables meanwhile may read memory that setting one has freed."""
    code = (
        "import os, sys; from llmgpu.backend import Opening\n"
        "os.environ.pop('XDG_RUNTIME_DIR', None)\n"
        "opening = Opening('gpu')\n"
        "opening.begin()\n"
        "def refuse(*arguments): os.write(2, repr(arguments).encode()); os._exit(1)\n"
        "os.putenv = os.unsetenv = refuse\n"
        "assert 'numpy' not in sys.modules; import numpy\n"
        "opening.close()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_thread_opens_a_device_in_a_limited_address_space() -> None:
    """Where OpenBLAS lacks memory it ends the process, which would wait for the thread forever."""
    pytest.importorskip("resource")
    code = (
        "import resource, threading; from llmgpu.backend import Opening\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 42, 1 << 42))\n"
        "opening = Opening('gpu')\n"
        "opening.begin()\n"
        "assert threading.active_count() == 1\n"
        "import numpy\n"
        "assert opening.backend().device is not None"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(("name", "package"), [("wgpu", "wgpu"), ("dawn", "wgpudawn")])
def test_adapters_are_listed_without_numpy(name: str, package: str) -> None:
    pytest.importorskip(package)
    code = (
        "import sys; from llmgpu.gpu.adapters import list_adapters, load_driver\n"
        f"list_adapters(load_driver({name!r}))\n"
        "assert 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_all_devices_are_not_one() -> None:
    opening = Opening("all", encodes=True)
    opening.begin()
    with pytest.raises(DeviceError, match=r"no device all: .* --part I/N --device gpu:K$"):
        opening.backend()


def test_a_device_is_opened_once() -> None:
    require_adapter()
    with Opening("gpu") as opening:
        opening.begin()
        first = opening.backend()
        opening.begin()
        assert opening.backend() is first


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_process_selects_again_where_the_thread_is_missing() -> None:
    opening = Opening("no such adapter")
    opening.begin()
    child = os.fork()
    if not child:
        signal.alarm(60)
        try:
            opening.backend()
        except DeviceError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    with pytest.raises(DeviceError):
        opening.backend()


def test_closing_waits_for_the_thread_and_drops_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    proceed = threading.Event()

    def select(wanted: str, **how: object) -> Backend:
        assert proceed.wait(20)
        return Backend(None, "a device")

    monkeypatch.setattr(backend, "select_backend", select)
    before = threading.active_count()
    with Opening("gpu") as opening:
        opening.begin()
        assert threading.active_count() == before + 1
        timer = threading.Timer(0.1, proceed.set)
        timer.start()
    timer.join()
    assert threading.active_count() == before
    assert opening.backend() == NUMPY


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

    def select(
        wanted: str, *, matrices: bool, note: Callable[[str], None] | None, only_discrete: bool
    ) -> Backend:
        asked_in.append(threading.current_thread())
        (note or print)(f"{wanted} {matrices}")
        return NUMPY

    monkeypatch.setenv("LLMGPU_DRIVER", driver)
    monkeypatch.setattr(adapters, "has_dawn", lambda: installed)
    monkeypatch.setattr(backend, "select_backend", select)
    told: list[str] = []
    opening = Opening("some adapter", matrices=matrices)
    opening.begin()
    assert opening.backend(told.append) == NUMPY
    assert told == ([] if in_thread else [f"some adapter {matrices}"])
    assert (asked_in[0] is not threading.main_thread()) == in_thread


def test_what_dawn_raises_is_raised_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: object, **how: object) -> Backend:
        raise DeviceError("no Dawn")

    monkeypatch.setenv("LLMGPU_DRIVER", "dawn")
    monkeypatch.setattr(adapters, "has_dawn", lambda: True)
    monkeypatch.setattr(backend, "select_backend", fail)
    opening = Opening("gpu")
    opening.begin()
    with pytest.raises(DeviceError, match="no Dawn"):
        opening.backend()


def test_a_device_is_freed_when_nobody_uses_it() -> None:
    require_adapter()
    first = Opening("gpu")  # tests share its kernels, which refer to its device
    first.begin()
    assert first.backend().device is not None
    for is_closed in False, True:
        opening = Opening("gpu")
        opening.begin()
        device = weakref.ref(opening.backend().device)
        assert device() is not None
        if is_closed:
            opening.close()
        else:
            del opening
        gc.collect()
        assert device() is None


def test_python_is_told_of_all_devices_in_its_words() -> None:
    with pytest.raises(DeviceError, match=r'part=\(I, N\) device="gpu:K"$'):
        Tokenizer(byte_vocabulary("cl100k", "hf"), "all")
