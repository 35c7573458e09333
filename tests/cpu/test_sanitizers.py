"""The CPU engine under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from llmgpu.cpu import build, extension
from tests.conftest import examples

ROOT = Path(__file__).parents[2]
FLAGS = ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
# So that words have windows, and what is taken from the heap has no room to spare.
SMALL = ("-DMOST_AT_ONCE=48", "-DWINDOW=16", "-DLEAST_ROOM=1", "-DPOOL_SPARE=0")


def sanitizer() -> str:
    """Return the path of the compiler's runtime library; skips without one."""
    command = [*os.environ.get("CC", "cc").split(), "-print-file-name=libasan.so"]
    try:
        path = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("there is no C compiler that finds its sanitizers")
    if not Path(path).is_absolute():
        pytest.skip("the compiler has no AddressSanitizer")
    return path


def build_checked(folder: Path, *flags: str) -> Path:
    """Build the library in a folder, to stop at the first mistake; skips without sanitizers."""
    sanitizer()
    path = folder / "engine.so"
    build.build(path, [*FLAGS, *flags])
    return path


def run(library: Path, program: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | variables
    environment |= {
        "LD_PRELOAD": sanitizer(),
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=4096",
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, *program]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)


def run_threads(folder: Path) -> subprocess.CompletedProcess[str]:
    """Build and run threads.c with the library under ThreadSanitizer; skips without it."""
    sanitizer()
    sources = [str(path) for path in build.sources() if path.suffix == ".c"]
    compiler = os.environ.get("CC", "cc").split()
    flags = ["-g", "-O1", "-fsanitize=thread", "-pthread", f"-I{build.FOLDER}"]
    program = str(folder / "threads")
    files = [str(Path(__file__).with_name("threads.c")), *sources, *build.LIBRARIES]
    subprocess.run([*compiler, *flags, "-o", program, *files], check=True)
    environment = os.environ | {"TSAN_OPTIONS": "halt_on_error=1"}
    return subprocess.run([program], capture_output=True, text=True, env=environment)


@pytest.fixture(scope="module", params=[SMALL, ("-DLLMGPU_PLAIN",)], ids=["blocks", "plain"])
def checked(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """The library with blocks of text and without."""
    return build_checked(tmp_path_factory.mktemp("engine"), *request.param)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_random_texts_and_vocabularies(checked: Path, seed: int) -> None:
    rounds = examples(150)
    done = run(checked, ["-m", "tests.cpu.fuzz", str(checked), str(seed), str(rounds)])
    assert (done.returncode, done.stdout) == (0, f"{rounds} rounds\n"), done.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.skipif(extension.extension() is None, reason="the module is not built")
def test_calls_of_the_extension_module(checked: Path) -> None:
    """With an allocation of its own for each object of Python, whose ends are watched, too."""
    module = checked.with_name(build.MODULE.name)
    build.build_module(module, FLAGS)
    rounds = examples(30)
    program = ["-m", "tests.cpu.calls", str(checked), str(module), "1", str(rounds)]
    done = run(checked, program, PYTHONMALLOC="malloc")
    assert (done.returncode, done.stdout) == (0, f"{rounds} rounds\n"), done.stderr[-3000:]


@pytest.mark.slow
def test_the_sanitizer_sees_a_text_without_padding(checked: Path) -> None:
    program = (
        "import ctypes, sys, numpy as np\n"
        "from llmgpu.cpu import library\n"
        "loaded, _ = library.load(library.Path(sys.argv[1]))\n"
        "text = np.full(1 << 20, 97, np.uint8)\n"
        "classes = np.ones(0x110000, np.uint8)\n"
        "pattern = loaded.llmgpu_pattern_new(b'gpt2', 1, 0, classes.ctypes.data)\n"
        "ends = np.empty(10, np.int64)\n"
        "start = text.ctypes.data + 4\n"
        "loaded.llmgpu_pretoken_ends(pattern, start, len(text) - 4, ends.ctypes.data)"
    )
    done = run(checked, ["-c", program, str(checked)])
    assert done.returncode != 0
    assert "ERROR: AddressSanitizer" in done.stderr


@pytest.mark.slow
def test_parts_of_the_last_long_token_are_looked_up(checked: Path) -> None:
    """A part of a few bytes at the very end of the tokens, which is read 16 bytes at a time."""
    program = (
        "import sys, numpy as np\n"
        "from llmgpu.cpu import library\n"
        "library.LIBRARY = library.Path(sys.argv[1])\n"
        "from llmgpu.bpe.encoding.encoder_c import CpuEncoder\n"
        "from llmgpu.bpe.pretokens.pattern import get_pattern\n"
        "from llmgpu.bpe.vocabulary.vocabulary import Vocabulary\n"
        "from llmgpu.text.corpus import corpus_from_bytes\n"
        "long = [(b'xy' * 1000)[:length] for length in (1999, 2000)]\n"
        "tokens = (*(bytes([value]) for value in range(256)), *long)\n"
        "merges, expression = np.empty((0, 3), np.uint32), get_pattern('none').expression\n"
        "vocabulary = Vocabulary(tokens, merges, 'none', expression, match='bpe')\n"
        "pieces = CpuEncoder(vocabulary).encode(corpus_from_bytes([b'ab' * 40000]))\n"
        "print(sum(len(piece.ids) for piece in pieces))"
    )
    done = run(checked, ["-c", program, str(checked)])
    assert (done.returncode, done.stdout) == (0, "80000\n"), done.stderr[-3000:]


@pytest.mark.slow
def test_threads_that_share_words_or_work(tmp_path: Path) -> None:
    done = run_threads(tmp_path)
    assert (done.returncode, done.stdout) == (0, "0 mistakes\n"), done.stderr[-3000:]
