"""Special tokens and normalizing in ``llmgpu tokenize``, as a process."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import unicodedata
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from llmgpu.bpe.pretokens.names import PATTERNS
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.tokens.formats import FORMATS
from tests.cli.conftest import Run, environment, fails

END, BEGIN = "<|end|>", "<|begin|>"


@pytest.fixture
def special_vocab(corpus: Path, llmgpu: Run) -> Vocabulary:
    """A vocabulary in v.bin whose last two ids are special."""
    options = ("--vocab-size", "300", "--special-token", END, "--special-token", BEGIN)
    done = llmgpu("bpe-train", "corpus.txt", "--device", "cpu", "-q", *options)
    assert done.returncode == 0, done.stderr
    return Vocabulary.load(corpus.parent / "v.bin")


@pytest.mark.parametrize("name", FORMATS)
def test_ids_in_every_format(
    llmgpu: Run, corpus: Path, special_vocab: Vocabulary, device_name: str, name: str
) -> None:
    text = corpus.read_bytes().replace(b"\n", END.encode(), 50)
    (corpus.parent / "a.txt").write_bytes(text)
    (corpus.parent / "b.txt").write_bytes(END.encode())
    options = ("--format", name, "--vocab", "v.bin", "-q")
    encoding = ("--device", device_name, "--allowed-special", "all", "--bos", BEGIN, "--eos", "10")
    done = llmgpu("tokenize", "a.txt", "b.txt", "-o", "ids", *options, *encoding)
    assert done.returncode == 0, done.stderr
    back = llmgpu("tokenize", "ids", "--decode", *options)
    begin, end = BEGIN.encode(), END.encode()
    assert back.stdout == begin + text + b"\n" + begin + end + b"\n"
    if name == "bin":
        side = json.loads((corpus.parent / "ids.json").read_text())
        ids = np.fromfile(corpus.parent / "ids", np.uint16)
        assert side["count"] == len(ids) and side["bytes"] == len(text) + len(end)
        assert side["document_offsets"] == [0, len(ids) - 3]
        assert ids[-3:].tolist() == [299, 298, 10] and int((ids == 298).sum()) == 51


def test_special_tokens_encoded_as_text_are_noted(
    llmgpu: Run, corpus: Path, special_vocab: Vocabulary
) -> None:
    text = f"x{END}{BEGIN} {END}".encode()
    (corpus.parent / "s.txt").write_bytes(text)
    for command in (("tokenize",), ("tokenize", "--count"), ("count",)):
        for name, data in (("s.txt", b""), ("-", text)):
            arguments = (*command, name, "--vocab", "v.bin", "--device", "cpu")
            notes = llmgpu(*arguments, stdin=data).stderr.decode()
            assert (
                "note: the text spells 3 special tokens encoded as text: --allowed-special all "
                "encodes such text as ids, --disallow-special all refuses it\n"
            ) in notes
            assert notes.count("special token") == 1
            one = llmgpu(*arguments, "--allowed-special", END, stdin=data).stderr.decode()
            noted, note = (
                next(line for line in text.splitlines() if "spells" in line)
                for text in (one, notes)
            )
            assert noted == note.replace("3 special tokens", "1 special token") != note
            for quiet in (("-q",), ("--allowed-special", "all")):
                assert b"special" not in llmgpu(*arguments, *quiet, stdin=data).stderr
    both = llmgpu("count", "s.txt", "--vocab", "v.bin", "--vocab", "./v.bin").stderr.decode()
    assert "note: v.bin: the text spells 3" in both and "note: ./v.bin: the text spells 3" in both


def test_text_is_text_unless_allowed(llmgpu: Run, special_vocab: Vocabulary) -> None:
    text = f"x{END}{BEGIN}".encode()
    arguments = ("tokenize", "--vocab", "v.bin", "-q", "--device", "cpu")
    plain = llmgpu(*arguments, stdin=text).stdout.split()
    assert not {b"298", b"299"} & set(plain)
    one = llmgpu(*arguments, "--allowed-special", END, stdin=text).stdout.split()
    assert one[:2] == [b"120", b"298"] and b"299" not in one
    both = ("--allowed-special", END, "--allowed-special", BEGIN)
    assert llmgpu(*arguments, *both, stdin=text).stdout == b"120 298 299\n"
    counted = llmgpu(*arguments, *both, "--count", "--eos", END, stdin=text)
    assert counted.stdout == b"4\n"


def test_lines_end_as_they_come(special_vocab: Vocabulary, corpus: Path) -> None:
    expression = PATTERNS["none"].expression
    by_lines = replace(special_vocab, pattern="none", expression=expression, match="greedy")
    by_lines.save(corpus.parent / "lines.bin")  # lines go through one thread, so as they come
    arguments = ["tokenize", "--vocab", "lines.bin", "--line-documents", "--device", "cpu"]
    special = ["--allowed-special", "all", "--bos", BEGIN, "--eos", END]
    with subprocess.Popen(
        [sys.executable, "-m", "llmgpu", *arguments, *special],
        cwd=corpus.parent,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        watchdog = threading.Timer(60, child.kill)
        watchdog.start()
        for line in (b"first\n", END.encode() + b"\n", b"\n"):
            child.stdin.write(line)
            child.stdin.flush()
            ids = np.array(child.stdout.readline().split(), np.int64)  # before the next is sent
            expected = BEGIN.encode() + line + END.encode()
            assert special_vocab.decode(ids) == expected
        child.stdin.close()
        assert child.stdout.read() == b""
        assert child.wait(timeout=200) == 0
        watchdog.cancel()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ["--disallow-special", "all"],
            1,
            "'<|end|>' at offset 2 of the text in in.txt is disallowed",
        ),
        (["--disallow-special", END, "--allowed-special", BEGIN], 1, "--allowed-special"),
        (["--allowed-special", "<|no|>"], 1, "'<|no|>' is not a special token"),
        (["--disallow-special", "<|no|>"], 1, "'<|end|>', '<|begin|>'"),
        (["--bos", "300"], 1, "id 300 is not in this vocabulary of 300 tokens"),
        (["--eos", "two words"], 1, "'two words' is not a single token"),
        (["--decode", "--bos", "1"], 2, "--decode"),
    ],
)
def test_what_is_refused(
    llmgpu: Run,
    corpus: Path,
    special_vocab: Vocabulary,
    arguments: list[str],
    code: int,
    message: str,
) -> None:
    (corpus.parent / "in.txt").write_text(f"a\n{END}")
    before = sorted(corpus.parent.iterdir())
    options = ("--vocab", "v.bin", "-o", "out", "--device", "cpu")
    fails(llmgpu("tokenize", "in.txt", *options, *arguments), code, message)
    assert sorted(corpus.parent.iterdir()) == before


def test_text_is_normalized_first(
    llmgpu: Run, corpus: Path, special_vocab: Vocabulary, device_name: str
) -> None:
    replace(special_vocab, normalizer="NFC").save(corpus.parent / "nfc.bin")
    text = "e\u0301 \u1112\u1161\u11ab \u212b" * 1000
    arguments = ("tokenize", "--vocab", "nfc.bin", "--device", device_name)
    done = llmgpu(*arguments, stdin=text.encode())
    assert b"note: text is normalized (NFC)" in done.stderr
    back = llmgpu("tokenize", "--vocab", "nfc.bin", "--decode", stdin=done.stdout)
    assert back.stdout.decode() == unicodedata.normalize("NFC", text)


def test_a_normalizer_that_multiplies_ends_with_its_error(
    llmgpu: Run, corpus: Path, special_vocab: Vocabulary, device_name: str
) -> None:
    step = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10}
    spelled = json.dumps([step] * 12)
    replace(special_vocab, normalizer=spelled).save(corpus.parent / "v.bin")
    message = "step 7 of the normalizer, Replace, makes 10,000,000 bytes of a block of 64 KB"
    done = llmgpu("tokenize", "--vocab", "v.bin", "--device", device_name, "-q", stdin=b"a")
    fails(done, 1, message)


def test_what_a_vocabulary_puts_around_a_text(
    llmgpu: Run, corpus: Path, special_vocab: Vocabulary, device_name: str
) -> None:
    replace(special_vocab, prefix_ids=(299, 10), suffix_ids=(298,)).save(corpus.parent / "v.bin")
    (corpus.parent / "d.jsonl").write_text('{"text": "ab"}\n{"text": ""}\n')
    run = ("tokenize", "--vocab", "v.bin", "-q", "--device", device_name, "d.jsonl")
    assert llmgpu(*run).stdout == b"97 98\n\n"
    asked = (*run, "--add-special-tokens")
    assert llmgpu(*asked).stdout == b"299 10 97 98 298\n299 10 298\n"
    assert llmgpu(*asked, "--eos", "32").stdout == b"299 10 97 98 298 32\n299 10 298 32\n"
    assert llmgpu(*asked, "--max-tokens", "6").stdout == b"299 10 97 98 298\n299\n"
    assert llmgpu(*asked, "-o", "ids.bin").returncode == 0
    side = json.loads((corpus.parent / "ids.bin.json").read_text())
    assert (side["count"], side["bytes"], side["document_offsets"]) == (8, 2, [0, 5])
    counted = llmgpu("count", "--vocab", "v.bin", "d.jsonl", "--add-special-tokens", "--json")
    assert json.loads(counted.stdout)["tokens"] == [8]
    facts = json.loads(llmgpu("info", "v.bin", "--json").stdout)
    assert (facts["before a text"], facts["after a text"]) == ([299, 10], [298])


def test_where_nothing_goes_around_a_text(llmgpu: Run, special_vocab: Vocabulary) -> None:
    run = ("tokenize", "--vocab", "v.bin", "--device", "cpu", "--add-special-tokens")
    done = llmgpu(*run, stdin=b"ab")
    assert done.stdout == b"97 98\n"
    assert b"note: --add-special-tokens has no effect: the vocabulary adds no tokens" in done.stderr
    fails(llmgpu(*run, "--chat", stdin=b"{}"), 2, "--chat takes no special tokens")
    fails(llmgpu(*run, "--decode", stdin=b"1"), 2, "--add-special-tokens can't be combined with")
