"""Values and files that nobody means well: one clear line, nothing hangs, nothing odd is shown."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from llmgpu.bpe.vocabulary.building import byte_vocabulary, extend_vocabulary
from tests.cli.conftest import COMMAND, Run, environment, fails
from tests.conftest import ROOT

DIGITS = "9" * 5000
SPARSE_BYTES = 5 << 30
NO_TEXT = "\udcff"  # a byte that is not UTF-8, as the system passes it


@pytest.mark.parametrize(
    "arguments",
    [
        ("bpe-train", "corpus.txt", "--limit", DIGITS),
        ("bpe-train", "corpus.txt", "--limit", f"1.{DIGITS}MB"),
        ("bpe-train", "corpus.txt", "--vocab-size", DIGITS),
        ("bpe-train", "corpus.txt", "--vocab-size", f"300,{DIGITS}"),
        ("bpe-train", "corpus.txt", "--min-frequency", DIGITS),
        ("bpe-train", "corpus.txt", "--threads", "100000"),
        ("tokenize", "corpus.txt", "--vocab", "v.bin", "--threads", "100000"),
        ("tokenize", "corpus.txt", "--vocab", "v.bin", "--shard-tokens", DIGITS),
        ("import", "v.bin", "--special-token", f"a={DIGITS}"),
        ("import", "v.bin", "--pattern-regex", "(" * 5000),
        ("bench", "--from", "v.bin", "--threshold", DIGITS),
        (DIGITS,),
        (f"--{DIGITS}",),
        ("train", "corpus.txt", "--vocab", "v.bin", "-o", "run", "--preset", DIGITS),
    ],
)
def test_long_values_are_wrong_usage_in_one_line(
    llmgpu: Run, vocab: Path, arguments: tuple[str, ...]
) -> None:
    done = llmgpu(*arguments)
    last = done.stderr.decode().splitlines()[-1]
    assert done.returncode in (1, 2) and last.lower().startswith("error: "), done.stderr
    assert b"Traceback" not in done.stderr and len(done.stderr) < 900


@pytest.mark.parametrize(
    "arguments",
    [
        ("bpe-train", "corpus.txt", "--special-token", NO_TEXT),
        ("bpe-train", "corpus.txt", "--doc-separator", NO_TEXT),
        ("bpe-train", "corpus.txt", "--pattern-regex", NO_TEXT),
        ("tokenize", "corpus.txt", "--vocab", "v.bin", "--allowed-special", NO_TEXT),
        ("tokenize", "corpus.txt", "--vocab", "v.bin", "--eos", NO_TEXT),
        ("info", "v.bin", "--search", NO_TEXT),
        ("generate", "run", "--prompt", NO_TEXT),
        ("import", "t.json", "--special-token", f"{NO_TEXT}=3"),
    ],
)
def test_bytes_that_are_no_text_are_wrong_usage(
    llmgpu: Run, vocab: Path, arguments: tuple[str, ...]
) -> None:
    fails(llmgpu(*arguments), 2, "is not valid UTF-8")


def in_little_memory(
    folder: Path, megabytes: int, arguments: tuple[str, ...], threads: int = 1
) -> subprocess.CompletedProcess[bytes]:
    limit = f"ulimit -v {megabytes << 10} && exec {shlex.join((*COMMAND, *arguments))}"
    # A stack and a heap for each thread of OpenBLAS count, too.
    child = environment() | {"OPENBLAS_NUM_THREADS": str(threads)}
    return subprocess.run(
        ["sh", "-c", limit], cwd=folder, env=child, capture_output=True, timeout=100
    )


@pytest.mark.parametrize(
    "arguments", [("info", "v.bin"), ("tokenize", "corpus.txt", "--vocab", "v.bin", "-o", "o.bin")]
)
def test_small_files_are_read_in_little_address_space(
    vocab: Path, arguments: tuple[str, ...]
) -> None:
    done = in_little_memory(vocab.parent, 700, arguments)
    assert done.returncode == 0, done.stderr


def test_sources_need_no_table_of_the_names_of_characters() -> None:
    """Python loads a library to read such a name, and calls a failure a syntax error."""
    for path in (ROOT / "llmgpu").rglob("*.py"):
        assert not re.search(r"(?<!\\)\\N\{", path.read_text()), path


@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit of address space")
def test_openblas_gets_as_many_threads_as_the_address_space_has_room_for() -> None:
    script = (
        "import os, resource; from llmgpu import machine as p; "
        "p.usable_processors = lambda: 8; "
        "limit = p._OTHER_BYTES + 8 * p._BLAS_THREAD_BYTES - {less}; "
        "resource.setrlimit(resource.RLIMIT_AS, (limit, limit)); p.set_blas_variables(); "
        "print(os.environ.get('OPENBLAS_NUM_THREADS'))"
    )
    child = {key: each for key, each in environment().items() if key != "OPENBLAS_NUM_THREADS"}
    for less, threads in ((0, "None"), (1, "1")):
        command = [sys.executable, "-c", script.format(less=less)]
        done = subprocess.run(command, env=child, capture_output=True, text=True, check=True)
        assert done.stdout == f"{threads}\n"


@pytest.mark.slow
@pytest.mark.parametrize("megabytes", [250, 400, 600])
def test_too_little_address_space_is_an_error_in_one_line(vocab: Path, megabytes: int) -> None:
    folder = vocab.parent
    with_vocabulary = ("corpus.txt", "--vocab", "v.bin")
    for arguments in (
        ("info", "v.bin"),
        ("bpe-train", "corpus.txt", "-o", "out", "--vocab-size", "400"),
        ("count", *with_vocabulary),
        ("tokenize", *with_vocabulary, "-o", "out.bin"),
        ("tokenize", *with_vocabulary, "-o", "out.npy"),
        ("export", "v.bin", "--to", "huggingface", "-o", "tokenizer"),
        ("export", "v.bin", "--to", "tiktoken", "-o", "out.tiktoken"),
        ("import", "tokenizer/tokenizer.json", "-o", "out"),
        ("compare-vocabs", "v.bin", "v.bin"),
    ):
        before = set(folder.iterdir())
        done = in_little_memory(folder, megabytes, arguments)
        made = set(folder.iterdir()) - before
        assert done.returncode in (0, 1), (arguments, done.stderr)
        assert b"Traceback" not in done.stderr, (arguments, done.stderr)
        if done.returncode:
            [error] = [line for line in done.stderr.splitlines() if b"error" in line]
            assert error.startswith(b"error: ") and len(error) < 200
            assert not made, (arguments, made)
        for path in made - {folder / "tokenizer"}:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "threads"), [("", 1), ("", 2), ("numpy", 1), ("numpy", 2)])
def test_training_in_too_little_address_space_ends_in_one_line(
    vocab: Path, monkeypatch: pytest.MonkeyPatch, engine: str, threads: int
) -> None:
    """The libraries that it opens, and OpenBLAS, don't end it in words of their own."""
    monkeypatch.setenv("LLMGPU_CPU", engine)
    arguments = ("train", "corpus.txt", "--vocab", "v.bin", "-o", "run", "--device", "cpu")
    options = ("--steps", "2", "--dim", "32", "--force")
    codes = []
    for megabytes in (225, 250, 275, 300, 325, 350, 400, 2000):
        done = in_little_memory(vocab.parent, megabytes, (*arguments, *options), threads)
        codes.append(done.returncode)
        assert b"Traceback" not in done.stderr, (megabytes, done.stderr)
        errors = [line for line in done.stderr.splitlines() if b"error" in line]
        assert len(errors) == done.returncode
        assert all(line.startswith(b"error: ") and len(line) < 200 for line in errors)
    # The heap of a second thread takes more addresses where there are more.
    assert threads > 1 or codes == sorted(codes, reverse=True)
    assert codes[0] == 1 and codes[-1] == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("bpe-train", "corpus.txt", "-o", ""),
        ("bpe-train", "corpus.txt", "-o", "new.bin", "--save-counts", ""),
        ("bpe-train", "corpus.txt", "-o", "new.bin", "--checkpoint", ""),
        ("tokenize", "corpus.txt", "--vocab", "v.bin", "-o", ""),
        ("train", "corpus.txt", "--vocab", "v.bin", "-o", ""),
        ("export", "v.bin", "--to", "gpt2", "-o", ""),
        ("export", "v.bin", "--to", "huggingface", "-o", ""),
        ("export", "v.bin", "--to", "tiktoken", "-o", ""),
    ],
)
def test_outputs_need_a_name(llmgpu: Run, vocab: Path, arguments: tuple[str, ...]) -> None:
    before = sorted(os.listdir(vocab.parent))
    fails(llmgpu(*arguments), 1, "can't write '': an output needs a name")
    assert sorted(os.listdir(vocab.parent)) == before


def test_several_sizes_do_not_go_to_a_device(llmgpu: Run, corpus: Path) -> None:
    done = llmgpu("bpe-train", "corpus.txt", "--vocab-size", "300,400", "-o", "/dev/null")
    fails(done, 2, "several vocabulary sizes can't be written to /dev/null")


READING = [
    ("info", "{}"),
    ("tokenize", "corpus.txt", "--vocab", "{}"),
    ("tokenize", "ids.bin", "--vocab", "v.bin", "--decode", "--format", "bin"),  # its side file
    ("bpe-train", "--from-counts", "{}"),
    ("bpe-train", "corpus.txt", "--seed-vocab", "{}"),
    ("bench", "--from", "{}"),
    ("bench", "--compare", "{}"),
    ("import", "{}"),
    ("import", "{}", "{}"),
    ("generate", "{}"),
]


# Runs all commands of `READING` in one process, and prints what each gave.
READ_ALL = """
import contextlib, io, json, sys
from llmgpu.cli import main
from tests.cli.test_hostile_input import READING

program, bad = sys.argv
for arguments in READING:
    sys.argv = [program, *(argument.format(bad) for argument in arguments)]
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            code = main()
        except SystemExit as done:
            code = done.code
    print(json.dumps([code, errors.getvalue()]))
"""


@pytest.mark.parametrize("what", ["device", "sparse"])
def test_files_without_end_are_not_read_whole(vocab: Path, what: str) -> None:
    bad = vocab.parent / "ids.bin.json"
    if what == "device":
        bad.symlink_to("/dev/zero")
    else:
        with open(bad, "wb") as stream:
            stream.truncate(SPARSE_BYTES)
    (vocab.parent / "ids.bin").write_bytes(b"")
    limited = ("sh", "-c", 'ulimit -v 4000000; exec "$@"', "sh", sys.executable, "-c")
    read = subprocess.run(
        [*limited, READ_ALL, str(bad)],
        cwd=vocab.parent,
        env=environment() | {"LLMGPU_DEVICE": "cpu", "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        timeout=100,
    )
    assert read.returncode == 0, read.stderr
    answers = [json.loads(line) for line in read.stdout.splitlines()]
    for arguments, (code, stderr) in zip(READING, answers, strict=True):
        done = subprocess.CompletedProcess(arguments, code, b"", stderr.encode())
        fails(done, 1, "error: ")
        assert b"out of memory" not in done.stderr


def test_what_a_terminal_would_act_on_is_escaped(llmgpu: Run, tmp_path: Path) -> None:
    acted_on = {"\x1b", "\x07", "\x9b", "\u202e"}
    odd = "2J".join(sorted(acted_on))
    vocabulary = extend_vocabulary(
        byte_vocabulary("gpt2", "hf"),
        [],
        special_tokens=[odd],
        training={"by": odd},
    )
    (tmp_path / f"{odd}.bin").write_bytes(vocabulary.to_bytes())
    for arguments in (("info", f"{odd}.bin"), ("info", f"{odd}.bin", "--json"), ("info", odd)):
        done = llmgpu(*arguments)
        shown = (done.stdout + done.stderr).decode()
        assert not acted_on & set(shown) and "2J" in shown
    exported = llmgpu("export", f"{odd}.bin", "--to", "huggingface", "-o", f"{odd}.json")
    assert exported.returncode == 0 and not acted_on & set(exported.stderr.decode())
    facts = json.loads(llmgpu("info", f"{odd}.bin", "--json").stdout)
    assert facts["training"] == {"by": odd}


@pytest.mark.parametrize(
    "arguments",
    [("info", "v.bin"), ("info", "v.bin", "--json"), ("tokenize", "--vocab", "v.bin", "--count")],
)
def test_a_closed_standard_output_is_an_error(vocab: Path, arguments: tuple[str, ...]) -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *COMMAND, *arguments],
        cwd=vocab.parent,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    done.stdout = b""
    fails(done, 1, "can't write to standard output: it is closed")


def test_an_expression_of_somebody_else_does_not_hang_tokenize(llmgpu: Run, tmp_path: Path) -> None:
    vocabulary = byte_vocabulary("regex:(?:a|a)*$", "hf")
    (tmp_path / "v.bin").write_bytes(vocabulary.to_bytes())
    (tmp_path / "text").write_bytes(b"a" * 50_000 + b"c")
    options = ("--vocab", "v.bin", "--regex-seconds", "0.1", "--device", "cpu")
    fails(llmgpu("tokenize", "text", *options), 1, "took more than 0.1 s of CPU time")
    fails(llmgpu("tokenize", "text", *options, "--regex-seconds", "0"), 2, "0")


def test_a_manifest_lists_files_of_its_folder_only(llmgpu: Run, vocab: Path) -> None:
    options = ("--vocab", "v.bin", "--format", "bin", "--device", "cpu")
    done = llmgpu("tokenize", "corpus.txt", "-o", "t.bin", "--shard-tokens", "9K", *options)
    assert done.returncode == 0, done.stderr
    manifest = vocab.parent / "t.json"
    listed = json.loads(manifest.read_bytes())
    for name in ("../x.bin", "/etc/passwd", "sub/t-000000.bin"):
        listed["shards"][0]["file"] = name
        manifest.write_text(json.dumps(listed))
        done = llmgpu("train", "t.json", "--vocab", "v.bin", "-o", "run", "--device", "cpu")
        fails(done, 1, "is not a file in its folder: name token files of other folders")
