"""The command group: help, version, what is imported, `info`."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

import llmgpu
from llmgpu import __version__, machine
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.cli import COMMANDS, _describe, main
from llmgpu.spelling import COMMAND_NAMES, OPTION_NAMES, VALUE_NAMES
from tests.cli.conftest import COMMAND, Run, environment, fails
from tests.conftest import ROOT


def test_help_imports_nothing_that_computes() -> None:
    helps = [["--help"], ["--version"], *([name, "--help"] for name in COMMANDS)]
    assert not imported_by(*helps) & {"numpy", "msgpack", "rich", "wgpu"}


def test_commands_import_what_they_use(vocab: Path) -> None:
    commands = (
        "tokenize --vocab v.bin corpus.txt -o ids",
        "tokenize --vocab v.bin corpus.txt --device cpu --count",
        "info v.bin",
        "bpe-train corpus.txt --vocab-size 300 --device cpu -o w.bin",
        "bpe-train corpus.txt --vocab-size 300 -o w2.bin",
        "export v.bin --to tiktoken -o ranks",
    )
    modules = imported_by(*(each.split() for each in commands), folder=vocab.parent)
    assert not modules & {"rich", "wgpu", "llmgpu.lm", "llmgpu.bench", "asyncio"}


def test_tokenizing_imports_nothing_for_rare_vocabularies_and_options(vocab: Path) -> None:
    command = "tokenize --vocab v.bin corpus.txt --device cpu -o ids"
    modules = imported_by(command.split(), folder=vocab.parent)
    assert not modules & {"socket", "sysconfig", "tempfile", "unicodedata", "llmgpu.cpu.extension"}
    assert not modules & {f"llmgpu.bpe.pretokens.{name}" for name in ("custom_regex", "programs")}
    assert "llmgpu.bpe.vocabulary.pieces" not in modules


def imported_by(*commands: list[str], folder: Path | None = None) -> set[str]:
    """Return the modules that commands import, one after the other in a process of their own."""
    code = (
        "import sys\n"
        "from llmgpu.cli import main\n"
        f"for sys.argv[1:] in {commands}:\n"
        "    try: main()\n"
        "    except SystemExit as done: assert not done.code\n"
        "print('imported', *sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help_with_an_example(llmgpu: Run, name: str) -> None:
    done = llmgpu(name, "--help")
    assert done.returncode == 0
    assert f"llmgpu {name}" in done.stdout.decode().split("Example")[1]


def test_version(llmgpu: Run) -> None:
    assert llmgpu("--version").stdout.decode().split()[-1] == __version__


def test_an_unknown_command_is_wrong_usage(llmgpu: Run) -> None:
    done = llmgpu("frobnicate")
    assert done.returncode == 2 and b"frobnicate" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        "--help",
        "--version",
        "frobnicate",
        "info v.bin --json",
        "info v.bin --search e",
        "info --tokens",
        "bpe-train - -o - --device cpu --vocab-size 300",
        "bpe-train - -o - --device cpu --vocab-size 300 --json -q",
        "bpe-train missing.txt --device cpu",
        "tokenize --vocab v.bin --device cpu",
        "tokenize --vocab v.bin --device cpu --format npy -q",
        "tokenize --vocab v.bin --device no-such-gpu",
        "tokenize --vocab v.bin --decode --format bin",
    ],
)
def test_this_process_and_one_of_its_own_agree(
    llmgpu: Run, llmgpu_process: Run, vocab: Path, corpus_text: bytes, arguments: str
) -> None:
    runs = [run(*arguments.split(), stdin=corpus_text) for run in (llmgpu, llmgpu_process)]
    here, there = [(done.returncode, without_times(done)) for done in runs]
    assert here == there


def without_times(done: subprocess.CompletedProcess[bytes]) -> tuple[bytes, bytes]:
    """Return stdout and stderr without times and the memory of the process.

    The command has its installed name.
    """
    # The line of a training's phases names phases of at least 0.05 s. The line about memory is
    # printed only if the command may need more than a tenth of the free memory.
    errors = re.sub(rb"(?m)^total .*$", b"total", done.stderr)
    errors = re.sub(rb"(?m)^needs .* of memory\n", b"", errors)
    errors = re.sub(rb"[0-9.,]+ (?:s|[KMG]?B/s|merges/s)\b", b"", errors)
    errors = re.sub(rb'"(?:seconds|estimated_memory_bytes)": (?:\{.*?\}|[0-9.]+)', b"", errors)
    return done.stdout.replace(b"python -m ", b""), errors.replace(b"python -m ", b"")


def test_both_show_the_traceback(llmgpu: Run, llmgpu_process: Run) -> None:
    for run in (llmgpu, llmgpu_process):
        done = run("bpe-train", "missing.txt", "--debug")
        assert done.returncode == 1
        assert b"Traceback" in done.stderr and b"InputError" in done.stderr


def test_mistyped_commands_and_options_are_suggested(llmgpu: Run) -> None:
    fails(llmgpu("tokenise"), 2, "No such command 'tokenise'. Did you mean 'tokenize'?")
    fails(llmgpu("tokenize", "--vocb", "v.bin"), 2, "--vocab")
    fails(llmgpu("x"), 2, "No such command 'x'")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("encode", "No such command 'encode'. Did you mean 'tokenize'?"),
        ("bpe --data t.txt", "Did you mean 'bpe-train'?"),
        ("rnu", "No such command 'rnu'. Did you mean 'run'?"),
        ("nifo", "No such command 'nifo'. Did you mean 'info'?"),
        ("tok", "No such command 'tok'. Did you mean 'tokenize'?"),
        ("count t.txt", "Missing option '--vocab'. It takes a file such as v.bin"),
        ("train --resume run", "Name the run to resume: -o RUN --resume."),
        ("decode ids", "Did you mean 'tokenize --decode'?"),
        ("bpe-train --vocab_size 8000", "Did you mean '--vocab-size'?"),
        ("bpe-train --model-prefix m", "Did you mean '--output'?"),
        ("bpe-train --input t.txt", "files need no option: llmgpu bpe-train FILE"),
        ("tokenize --tokenizer gpt2", "Did you mean '--vocab'?"),
        ("train --n_layer=4", "No such option '--n_layer'. Did you mean '--layers'?"),
        ("tokenize --dtype uint16", "Did you mean '--token-dtype'?"),
        ("train --dtype f16", "Did you mean '--precision' or '--token-dtype'?"),
        ("info --vocab v.bin", "files need no option: llmgpu info FILE"),
        ("export --vocab v.bin", "files need no option: llmgpu export FILE"),
        ("train --save-every 4", "Did you mean '--save-interval'?"),
        ("train --eval-steps 4", "Did you mean '--eval-interval'?"),
        ("train --train-data t.txt", "files need no option: llmgpu train FILE"),
        ("train --max-tokens 5", "No such option '--max-tokens'"),
        ("generate --max-tokens 5", "Did you mean '--max-new-tokens'?"),
        ("generate --file t.txt", "Did you mean '--prompts'?"),
        ("generate --temp 1", "Did you mean '--temperature'?"),
        ("export --format hf", "Did you mean '--to'?"),
        ("tokenize --overwrite", "Did you mean '--force'?"),
        ("tokenize --num-workers 4", "Did you mean '--threads'?"),
        ("tokenize --seperator x", "No such option '--seperator'."),
        ("tokenize --verbose", "No such option '--verbose': progress and notes are shown without"),
        ("tokenize -v", "No such option '-v': progress and notes are shown without an option, and"),
        ("-v", "No such option '-v': progress and notes are shown without an option, and --debug"),
        ("tokenize --pretty", "No such option '--pretty'.\n"),
        ("generate --greedy", "No such option '--greedy': --temperature 0 takes"),
        ("generate --ctx-size 9", "No such option '--ctx-size'.\n"),
        ("generate --max-new 9", "Did you mean '--max-new-tokens'?"),
        ("count --max 9", "Did you mean '--budget'?"),
        ("bpe-train --vocabsize 9", "Did you mean '--vocab-size'?"),
        ("tokenize --disallowed-special all", "Did you mean '--disallow-special'?"),
        ("tokenize --val-fraction 0.1", "Did you mean '--split'?"),
        ("train --precision bf16", "is not one of 'f32', 'f16'. WebGPU has no bfloat16."),
        ("train --precision FP16", "is not one of 'f32', 'f16'. Did you mean 'f16'?"),
        ("generate m --precision float32", "Did you mean 'f32'?"),
        ("train --optimizer adam", "Did you mean 'adamw'?"),
        ("export v.bin --to llama.cpp", "Did you mean 'gguf'?"),
        (
            "export run --to gguf -o m.gguf --weights Q4_K_M",
            "from a file with --weights f16: llama-quantize IN.gguf OUT.gguf Q4_K_M.",
        ),
        ("export run --to gguf -o m.gguf --weights q6_k", "llama-quantize IN.gguf OUT.gguf Q6_K."),
        ("tokenize --layout llm.c", "Did you mean 'llmc'?"),
        ("tokenize --layout nanoGPT", "Did you mean 'nanogpt'?"),
        ("tokenize --layout numpy", "'raw', 'llmc', 'megatron', 'nanogpt'.\n"),
    ],
)
def test_names_of_other_tools_are_understood(llmgpu: Run, command: str, message: str) -> None:
    fails(llmgpu(*command.split()), 2, message)


def test_suggested_names_are_those_of_commands_and_options() -> None:
    options = {name for each in COMMANDS for p in COMMANDS[each].params for name in p.opts}
    assert set(OPTION_NAMES) <= options
    commands = {name.split()[0] for name in COMMAND_NAMES}
    assert commands <= {*COMMANDS, "--help", "--version"}
    assert not {*" ".join(COMMAND_NAMES.values()).split()} & set(COMMANDS)
    types = [p.type for each in COMMANDS.values() for p in each.params]
    values = {value for each in types if isinstance(each, click.Choice) for value in each.choices}
    assert set(VALUE_NAMES) <= values


COMPLETING = """
import os, sys
from llmgpu.cli import main

lines, sys.argv[:] = sys.argv[1:], ["llmgpu"]
for line in lines:
    os.environ.update(COMP_WORDS=line, COMP_CWORD=str(line.count(" ")))
    try: main()
    except SystemExit: pass
"""


def test_words_are_completed() -> None:
    lines = {
        "llmgpu info ": "file,",
        "llmgpu tokenize --vocab v": "file,v",
        "llmgpu tokenize --vo": "plain,--vocab",
        "llmgpu export v.bin --to ti": "plain,tiktoken",
        "llmgpu tok": "plain,tokenize",
    }
    done = subprocess.run(
        [sys.executable, "-c", COMPLETING, *lines],
        env=environment() | {"_LLMGPU_COMPLETE": "bash_complete"},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "".join(f"{found}\n" for found in lines.values())


def test_a_pipe_is_read_if_nothing_is_named(llmgpu: Run, corpus: Path, vocab: Path) -> None:
    text, note = corpus.read_bytes(), b"reading standard input\n"
    named = llmgpu("bpe-train", "corpus.txt", "--vocab-size", "300", "--device", "cpu", "-o", "a")
    options = ("--vocab-size", "0.3k", "--device", "cpu", "-o", "b")
    piped = llmgpu("bpe-train", *options, stdin=text)
    assert piped.returncode == named.returncode == 0, piped.stderr
    assert piped.stderr.startswith(note) and note not in named.stderr
    one, other = (Vocabulary.load(corpus.parent / name) for name in "ab")
    assert (one.tokens, one.fingerprint) == (other.tokens, other.fingerprint)
    assert note not in llmgpu("bpe-train", *options, "--quiet", stdin=text).stderr
    assert llmgpu("tokenize", "--vocab", "v.bin", stdin=b"a").stderr.startswith(note)
    sizes = ("--dim", "32", "--layers", "1", "--heads", "2", "--seq-len", "32", "--steps", "1")
    model = llmgpu("train", "--vocab", "v.bin", "-o", "run", "--device", "cpu", *sizes, stdin=text)
    assert model.returncode == 0 and model.stderr.startswith(note), model.stderr
    fails(llmgpu("bpe-train", *options), 1, "error: ")


def test_a_device_is_not_read_unless_it_is_named(corpus: Path) -> None:
    for command in (["bpe-train"], ["train", "--vocab", "v.bin", "-o", "run"]):
        done = subprocess.run(
            [*COMMAND, *command],
            cwd=corpus.parent,
            env=environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )
        fails(done, 2, "CORPUS")


def test_without_a_command_the_help_is_shown(llmgpu: Run) -> None:
    done = llmgpu()
    assert done.returncode == 2
    lines = done.stderr.decode().splitlines()
    assert lines[0].startswith("Usage: ") and "Main commands:" in lines and "Error" not in lines[2]


def test_a_mistake_does_not_wait_for_a_device_that_is_being_opened(tmp_path: Path) -> None:
    slow = "import time, llmgpu.backend as b; b.select_backend = lambda *_, **__: time.sleep(600)\n"
    program = f"import sys; {slow}from llmgpu.__main__ import main; main()"
    for arguments, code in ((["--overlap", "3"], 2), ([], 1)):
        command = ["tokenize", "--vocab", "v.bin", "--device", "gpu", "text", *arguments]
        done = subprocess.run(
            [sys.executable, "-c", program, *command],
            cwd=tmp_path, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == code
        assert "rror: " in done.stderr


@pytest.mark.skipif(os.name != "posix", reason="only where a crash is a signal")
def test_a_crash_says_where() -> None:
    crash = "import llmgpu.cli, os; llmgpu.cli.cli = lambda **options: os.kill(os.getpid(), 11)\n"
    command = [sys.executable, "-c", f"{crash}from llmgpu.__main__ import main; main()"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == -signal.SIGSEGV
    assert done.stderr.startswith("Fatal Python error: Segmentation fault\n")
    closed = " ".join(map(shlex.quote, command))
    assert subprocess.run(["sh", "-c", f"exec {closed} 2>&-"]).returncode == -signal.SIGSEGV


@pytest.mark.parametrize(
    "error_of_memory", [MemoryError(), SystemError("error return without exception set")]
)
def test_without_memory_no_option_is_named_that_a_command_lacks(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error_of_memory: Exception,
) -> None:
    def fail(**options: object) -> None:
        raise error_of_memory

    monkeypatch.setattr("llmgpu.cli.cli", fail)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    error = capsys.readouterr().err
    assert error.startswith("error: out of memory; use less text or a smaller model, or raise")
    assert "--" not in error  # --limit is not an option of all


@pytest.mark.parametrize(
    "other", [RuntimeError("built without threads"), ImportError("built without new threads")]
)
def test_other_errors_are_not_lacks_of_memory(
    monkeypatch: pytest.MonkeyPatch, other: Exception
) -> None:
    def fail(**options: object) -> None:
        raise other

    monkeypatch.setattr("llmgpu.cli.cli", fail)
    with pytest.raises(type(other), match="built without"):
        main()


BEFORE_NUMPY = """
import os, sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "numpy":
            for name in "OPENBLAS_THREAD_TIMEOUT", "OPENBLAS_MAIN_FREE":
                print(os.environ.pop(name), file=sys.stderr)

sys.meta_path.insert(0, Watch())
from llmgpu.__main__ import main
main()
"""


@pytest.mark.parametrize("given", [None, "9"])
def test_threads_for_products_of_matrices_are_told_to_sleep_before_numpy_starts_them(
    given: str | None, vocab: Path
) -> None:
    child = {name: value for name, value in environment().items() if "OPENBLAS" not in name}
    if given is not None:
        child["OPENBLAS_THREAD_TIMEOUT"] = given
    count = ("tokenize", "--vocab", str(vocab), "--count", "--device", "cpu", "-q", os.devnull)
    command = [sys.executable, "-c", BEFORE_NUMPY, *count]
    done = subprocess.run(command, env=child, capture_output=True, text=True)
    assert done.stdout.split() == ["0"], done.stderr
    assert done.stderr.split() == [given or str(machine._CYCLES_LOG2), "1"]


def test_the_module_lists_its_names() -> None:
    """They are imported when they are asked for."""
    assert {"Tokenizer", "count_words"} <= set(dir(llmgpu))
    with pytest.raises(AttributeError, match=r"get_encoding: use .*load\(NAME\).as_tiktoken"):
        _ = llmgpu.get_encoding


def test_lm_eval_without_its_package_says_what_to_install() -> None:
    script = (
        "import runpy, sys; sys.modules['lm_eval'] = None; "
        "runpy.run_module('llmgpu.lm_eval', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True)
    fails(done, 1, "pip install 'llmgpu[lm-eval]'")


def test_errors_of_the_system_name_the_file_or_the_output() -> None:
    many = OSError(errno.EMFILE, "Too many open files", "a.py")
    assert _describe(many) == "can't open a.py: Too many open files; raise `ulimit -n`"
    assert _describe(OSError(errno.EIO, "bad")) == "can't write standard output: bad"


@pytest.mark.skipif(os.name == "nt", reason="a working folder can't be removed")
def test_the_error_in_a_removed_working_folder_says_so(corpus: Path) -> None:
    command = ["bpe-train", str(corpus), "--checkpoint", str(corpus.parent / "kept")]
    command += ["-o", str(corpus.parent / "w.bin"), "--device", "cpu", "--vocab-size", "260"]
    script = 'mkdir gone && cd gone && rmdir ../gone && exec "$@"'
    done = subprocess.run(
        ["sh", "-c", script, "sh", *COMMAND, *command],
        cwd=corpus.parent,
        env=environment(),
        capture_output=True,
    )
    fails(done, 1, "error: the working folder was removed; change to another folder\n")


def test_the_demo_prints_commands_to_paste(tmp_path: Path) -> None:
    """Without escapes in a pipe, and with names of adapters quoted."""
    script = (ROOT / "scripts" / "demo.sh").read_text()
    functions = script[script.index("if [ -t 1 ]") : script.index("library=")]
    lines = f"{functions}\nrun echo 'llvmpipe (LLVM 15.0.6, 256 bits)' | tee printed\n"
    done = subprocess.run(["bash", "-c", lines], cwd=tmp_path, capture_output=True, check=True)
    assert b"\033" not in done.stdout
    shown = (tmp_path / "printed").read_text().splitlines()
    assert shown[2] == "llvmpipe (LLVM 15.0.6, 256 bits)"
    pasted = subprocess.run(["bash", "-c", shown[1][2:]], capture_output=True, check=True)
    assert pasted.stdout.decode().splitlines() == shown[2:]


@pytest.mark.parametrize("flags", [["--json"], ["--log-format", "json"], ["--log-format=json"]])
def test_errors_as_json_are_one_line(llmgpu: Run, vocab: Path, flags: list[str]) -> None:
    (vocab.parent / "dark.txt").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(99))
    failures = {
        ("count", "--vocab", "v.bin", "missing.txt"): (1, "no such file or folder: 'missing.txt'"),
        ("count", "--vocab", "v.bin", "dark.txt"): (1, "dark.txt is a picture: exclude it"),
        ("count", "--vocab", "v.bin", "corpus.txt", "--budget", "1"): (3, "more than the budget"),
        ("count", "--nope"): (2, "No such option '--nope'"),
        ("count", "corpus.txt"): (2, "Missing option '--vocab'"),
        ("train", "corpus.txt", "--vocab", "v.bin"): (2, "Missing option '--output' / '-o'."),
        ("tokenize", "--vocab", "v.bin", "corpus.txt", "--format", "xml"): (2, "'--format'"),
        ("frobnicate",): (2, "No such command 'frobnicate'."),
    }
    for arguments, (code, message) in failures.items():
        done = llmgpu(*arguments, *flags)
        assert done.returncode == code, (arguments, done.stderr)
        line = done.stderr.decode().splitlines()[-1]
        assert done.stderr.decode().count(message) == 1
        found = json.loads(line)
        assert message in found["error"] and found["exit_code"] == code
        assert found.keys() == {"error", "exit_code", *(["usage"] if code == 2 else [])}
        if code == 2:
            assert done.stderr.count(b"\n") == 1 and found["usage"].startswith("Usage: ")


def test_an_interrupt_as_json_has_its_exit_code(tmp_path: Path) -> None:
    for flags, line in ((["--json"], {"error": "interrupted", "exit_code": 143}), ([], None)):
        command = [*COMMAND, "count", "--vocab", "cl100k", "--device", "cpu", *flags]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(command, cwd=tmp_path, env=environment(), **pipes) as process:  # type: ignore[call-overload]
            assert process.stderr.readline() == b"reading standard input\n"
            process.send_signal(signal.SIGTERM)
            errors = process.stderr.read().splitlines()
        if line is None:
            assert errors[-1] == b"interrupted"
        else:
            assert json.loads(errors[-1]) == line


def test_messages_that_say_what_to_do(llmgpu: Run, vocab: Path) -> None:
    assert llmgpu("-V").stdout == llmgpu("--version").stdout != b""
    (vocab.parent / "ids").mkdir()
    decode = llmgpu("tokenize", "--vocab", "v.bin", "--decode", "ids")
    fails(decode, 1, "ids is a folder: --decode takes files of ids, such as ids/*.bin")
