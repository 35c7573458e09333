"""A Tokenizer, and what it opens, in child processes."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llmgpu import Tokenizer, backend
from llmgpu.backend import NUMPY, Backend
from llmgpu.bpe.encoding import encoder_gpu
from llmgpu.bpe.encoding.encoder import Encoder
from llmgpu.bpe.encoding.open import open_matching_encoder
from llmgpu.cpu.library import library
from llmgpu.gpu.adapters import DRIVERS, list_adapters, load_driver
from llmgpu.tokenizer import encoders
from tests.bpe.encoding.test_special_encoding import vocabulary
from tests.cli.conftest import environment
from tests.conftest import NO_DAWN, require_adapter
from tests.test_tokenizer import long_text

CHILDREN = """
import multiprocessing, os, pickle, sys
from llmgpu import Tokenizer
from llmgpu.errors import DeviceError

def encode(tokenizer, text):
    try:
        return tokenizer.encode(text).tolist()
    except DeviceError as error:
        return str(error)

def encode_file(tokenizer, path):
    try:
        return tokenizer.encode_file(path).tolist()
    except DeviceError as error:
        return str(error)

def main(device, method, path):
    tokenizer = Tokenizer.load("v.bin", device)
    text = open(path).read()
    expected = tokenizer.encode_file(path).tolist()
    assert tokenizer.encode(text).tolist() == expected
    short = tokenizer.encode(text[:100]).tolist()
    with multiprocessing.get_context(method).Pool(2) as pool:
        jobs = [pool.apply_async(encode, (tokenizer, text)),
                pool.apply_async(encode, (tokenizer, text[:100])),
                pool.apply_async(encode_file, (tokenizer, path))]
        long, few, file = [job.get(timeout=150) for job in jobs]
    assert few == short
    if (device, method) == ("gpu", "fork"):
        assert "spawn" in long and 'device="cpu"' in long and file == long, long[:100]
    else:
        assert long == expected and file == expected
    if method == "fork":
        child = os.fork()
        if not child:
            same = encode(tokenizer, text) == long and encode(tokenizer, text[:100]) == short
            os._exit(0 if same else 1)
        assert os.waitpid(child, 0)[1] == 0

if __name__ == "__main__":
    main(*sys.argv[1:])
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("device", ["auto", "cpu", "gpu"])
def test_child_processes(tmp_path: Path, device: str, method: str) -> None:
    if sys.platform == "win32" and method == "fork":
        pytest.skip("this system has no fork")
    if device == "gpu":
        require_adapter()
    vocabulary().save(tmp_path / "v.bin")
    (tmp_path / "corpus.txt").write_text(long_text() * 30)  # is read by several threads
    (tmp_path / "children.py").write_text(CHILDREN)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "children.py", device, method, "corpus.txt"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr


def run_forking(code: str, folder: Path, **variables: str) -> None:
    """Run a program that forks; fails unless it ends with 0."""
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=folder,
        env=environment() | variables,
        check=True,
        timeout=100,
    )


def test_a_device_that_was_opened_in_vain_is_not_that_of_a_forked_process(tmp_path: Path) -> None:
    if sys.platform == "win32":
        pytest.skip("this system has no fork")
    require_adapter()
    vocabulary().save(tmp_path / "v.bin")
    code = (
        "import os, signal; from llmgpu import Tokenizer; from llmgpu.errors import LlmgpuError\n"
        "vocabulary = Tokenizer.load('v.bin').vocabulary\n"
        "try: Tokenizer.load('missing', 'gpu')\n"
        "except LlmgpuError: pass\n"
        "child = os.fork()\n"
        "if child: assert os.waitpid(child, 0)[1] == 0\n"
        "else:\n"
        "    signal.alarm(60)\n"
        "    try: Tokenizer(vocabulary, 'gpu').encode('low ' * 30_000)\n"
        "    except LlmgpuError as error: os._exit('was forked' not in str(error))\n"
        "    os._exit(2)"
    )
    run_forking(code, tmp_path, LLMGPU_DRIVER="wgpu")  # Dawn is not opened before it is needed


# Runs `case` for each tuple of `cases` in a forked process, which has imported NumPy and opened no
# device, and fails with the tuples whose process does not end with 0.
IN_PROCESSES = """
import os, signal, sys, threading, time
from llmgpu import Tokenizer, backend
from llmgpu.bpe.encoding import encoder_c, encoder_gpu, special_encoding
from llmgpu.bpe.vocabulary import vocabulary
from llmgpu.errors import LlmgpuError
from llmgpu.gpu import adapters

def run(cases):
    failed = []
    for each in cases:
        process = os.fork()
        if not process:
            try: case(*each)
            finally: os._exit(1)
        if os.waitpid(process, 0)[1]: failed.append(each)
    sys.exit(f"failed: {failed}" if failed else 0)

backend._may_have_gpu = lambda: True
Tokenizer.load("v.bin").encode("low ")  # imports NumPy
"""

LOCKED = """
lock, begun = threading.Lock(), threading.Event()
def slow(function):
    def call(*given, **named):
        with lock:
            begun.set()
            time.sleep(0.05)
            return function(*given, **named)
    return call

def encode(device):
    try: Tokenizer.load("v.bin", device).encode("low " * 30_000)
    except Exception: pass

def case(device, module, function, is_thread):
    signal.alarm(60)  # it would wait forever for a function that is never called
    setattr(globals()[module], function, slow(getattr(globals()[module], function)))
    if is_thread:
        threading.Thread(target=encode, args=(device,)).start()
        begun.wait()
    else: encode(device)
    child = os.fork()
    if child: os._exit(os.waitpid(child, 0)[1] != 0)
    signal.alarm(60)
    Tokenizer.load("v.bin").encode("low ")
    with lock: os._exit(0)
"""


SLOW_FUNCTIONS = [
    ("auto", "encoder_gpu", "pack_pairs"),
    ("auto", "backend", "_has_wgpu"),
    ("no such GPU", "encoder_gpu", "pack_pairs"),
    ("no such GPU", "backend", "_has_wgpu"),
    ("auto", "adapters", "load_driver"),
    ("gpu", "adapters", "load_driver"),
    ("cpu", "encoder_c", "CSliceEncoder"),
    ("cpu", "special_encoding", "chosen_texts"),
    ("gpu", "encoder_gpu", "GpuEncoder"),
    ("cpu", "vocabulary", "_check_merges"),
    ("cpu", "vocabulary", "pack_ids"),
]


@pytest.mark.parametrize("is_gpu", [False, True])
def test_a_process_is_forked_once_encoders_are_open(tmp_path: Path, *, is_gpu: bool) -> None:
    """It would wait forever for a lock that nobody holds there."""
    if sys.platform == "win32":
        pytest.skip("this system has no fork")
    if is_gpu:
        require_adapter()
    vocabulary().save(tmp_path / "v.bin")
    functions = [each for each in SLOW_FUNCTIONS if (each[0] == "gpu") == is_gpu]
    if library() is None:
        functions = [each for each in functions if each[1] != "encoder_c"]
    cases = [(*each, is_thread) for each in functions for is_thread in (False, True)]
    code = f"{IN_PROCESSES}{LOCKED}run({cases})"
    run_forking(code, tmp_path, LLMGPU_GPU_FROM="1kB", LLMGPU_DRIVER="wgpu")


FORKS = """
# The engine encodes the longest text in several threads. A device is to be opened, and used little.
counts = {"cpu": (30_000, 5_000, 10), "auto": (3_000, 1_000, 10), "gpu": (3_000, 1_000, 10)}
texts = {device: ["low lower lowest " * count for count in counts[device]] for device in counts}
encode_on_cpu = Tokenizer.load("v.bin", "cpu").encode
expected = {device: [encode_on_cpu(text).tolist() for text in texts[device][1:]]
            for device in counts}

def child(device, tokenizer):
    signal.alarm(60)  # it would wait forever for a lock that nobody holds there
    try:
        tokenizer = tokenizer or Tokenizer.load("v.bin", device)
        found = [tokenizer.encode(text).tolist() for text in texts[device][1:]]
    except LlmgpuError as error:
        os._exit(device == "auto" or "was forked" not in str(error))
    os._exit(found != expected[device])

def case(device, forks, seconds):
    has_ended = threading.Event()

    def encode():
        while not has_ended.is_set():
            try:
                tokenizer = Tokenizer.load("v.bin", device)
                for text in texts[device]: tokenizer.encode(text)
            except LlmgpuError: pass

    kept = Tokenizer.load("v.bin") if forks > 1 else None
    threads = [threading.Thread(target=encode) for _ in range(8 if forks > 1 else 1)]
    for thread in threads: thread.start()
    children = []
    for number in range(forks):
        time.sleep(seconds)
        children.append(os.fork())
        if not children[-1]: child(device, kept)
        if kept is not None: kept.encode(texts[device][1])
    ended = [os.waitpid(each, 0)[1] for each in children]
    has_ended.set()
    for thread in threads: thread.join()
    os._exit(any(ended))
"""


def run_forks(folder: Path, cases: list[tuple[str, int, float]]) -> None:
    if sys.platform == "win32":
        pytest.skip("this system has no fork")
    vocabulary().save(folder / "v.bin")
    code = f"{IN_PROCESSES}{FORKS}run({cases})"
    run_forking(code, folder, LLMGPU_GPU_FROM="10kB", LLMGPU_DRIVER="wgpu")


def test_a_process_forks_while_eight_threads_encode(tmp_path: Path) -> None:
    run_forks(tmp_path, [("auto", 10, 0.02), ("cpu", 10, 0.02)])


@pytest.mark.parametrize("device", ["auto", "gpu"])
def test_a_process_forks_while_a_device_is_being_opened(tmp_path: Path, device: str) -> None:
    if device == "gpu":
        require_adapter()
    run_forks(tmp_path, [(device, 1, seconds) for seconds in (0.0, 0.03, 0.1, 0.2, 0.3)])


def test_a_device_is_selected_once_though_the_first_text_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LLMGPU_GPU_FROM", "1kB")
    selected, opened = [], []

    def select(wanted: str, **options: object) -> Backend:
        selected.append(wanted)
        return NUMPY

    def open_once_failing(*given: Any, **named: Any) -> Encoder:
        opened.append(given)
        if len(opened) == 1:
            raise MemoryError
        return open_matching_encoder(*given, **named)

    monkeypatch.setattr(backend, "_may_have_gpu", lambda: True)
    monkeypatch.setattr(backend, "select_backend", select)
    monkeypatch.setattr(encoders, "open_matching_encoder", open_once_failing)
    tokenizer = Tokenizer(vocabulary())
    with pytest.raises(MemoryError):
        tokenizer.encode("low " * 30_000)
    assert tokenizer.decode(tokenizer.encode("low " * 30_000)) == "low " * 30_000
    assert selected == ["auto"]


def test_a_tokenizer_on_a_device_has_its_tables_from_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    require_adapter()
    pack_pairs = encoder_gpu.pack_pairs

    def pack_slowly(*given: Any) -> NDArray[np.uint32]:
        time.sleep(0.2)
        return pack_pairs(*given)

    monkeypatch.setattr(encoder_gpu, "pack_pairs", pack_slowly)
    tokenizer = Tokenizer(vocabulary(), "gpu")
    assert tokenizer.vocabulary in encoder_gpu._packed


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_forked_process_drops_what_is_its_parents(tmp_path: Path, driver: str) -> None:
    """It closes no device and no threads: those that it would wait for were not forked."""
    if sys.platform == "win32":
        pytest.skip("this system has no fork")
    if driver == "dawn":
        pytest.importorskip("wgpudawn")
        if not list_adapters(load_driver("dawn")):
            pytest.skip(NO_DAWN)
    else:
        require_adapter()
    code = (
        "import gc, os, signal\n"
        "from llmgpu.backend import select_backend\n"
        "from llmgpu.bpe.encoding.open import open_encoder\n"
        "from llmgpu.cpu.library import CThreads\n"
        "from tests.bpe.encoding.test_special_encoding import vocabulary\n"
        "kept = [open_encoder(vocabulary(), select_backend('gpu')), CThreads(4)]\n"
        "child = os.fork()\n"
        "if child: assert os.waitpid(child, 0)[1] == 0\n"
        "else: signal.alarm(60)\n"
        "kept.clear(); gc.collect()\n"
        "if not child: os._exit(0)"
    )
    run_forking(code, tmp_path, LLMGPU_DRIVER=driver, LLMGPU_CPU="c")
