"""``llmgpu count``: tables, JSON, budgets."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from pathlib import Path

import pytest

from llmgpu import Tokenizer
from tests.cli.conftest import COMMAND, Run, environment, fails, read_terminal


@pytest.fixture
def folder(corpus: Path, vocab: Path, corpus_text: bytes) -> Path:
    """A folder with two more, and a second vocabulary."""
    for name, data in (("n/a.txt", corpus_text), ("n/b.txt", b""), ("n/deep/c.txt", b"a b c" * 9)):
        (corpus.parent / name).parent.mkdir(parents=True, exist_ok=True)
        (corpus.parent / name).write_bytes(data)
    return corpus.parent


def counted(folder: Path, *names: str, vocab: str = "v.bin") -> list[int]:
    """Return the tokens of files, each encoded alone."""
    tokenizer = Tokenizer.load(folder / vocab, "cpu")
    return [tokenizer.count((folder / name).read_bytes()) for name in names]


def test_a_line_for_each_file_and_the_sum(llmgpu: Run, folder: Path) -> None:
    first, _, last = tokens = counted(folder, "n/a.txt", "n/b.txt", "n/deep/c.txt")
    done = llmgpu("count", "--vocab", "v.bin", "n", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.decode().splitlines()]
    assert lines[0] == ["tokens", "bytes", "B/token"]
    assert [line[3] for line in lines[1:]] == ["n/a.txt", "n/b.txt", "n/deep/c.txt", "total"]
    assert [int(line[0]) for line in lines[1:]] == [*tokens, sum(tokens)]
    assert [line[2] for line in lines[2:4]] == ["-", f"{45 / last:.3f}"]
    by_size = llmgpu("count", "--vocab", "v.bin", "n", "--sort", "tokens", "--json")
    summary = json.loads(by_size.stdout)
    assert [file["tokens"] for file in summary["files"]] == [[first], [last], [0]]
    assert summary["tokens"] == [sum(tokens)] and summary["documents"] == 3
    folders = json.loads(
        llmgpu("count", "--vocab", "v.bin", "n", "--per", "folder", "--json").stdout
    )
    assert folders["folders"] == [
        {"path": "n", "text_bytes": (folder / "n/a.txt").stat().st_size, "tokens": [first]},
        {"path": "n/deep", "text_bytes": 45, "tokens": [last]},
    ]


def test_several_vocabularies_and_a_pipe(llmgpu: Run, folder: Path, corpus_text: bytes) -> None:
    Tokenizer.train(folder / "n/deep", vocab_size=258, device="cpu").save(folder / "w.bin")
    both = ("--vocab", "v.bin", "--vocab", "w.bin", "--device", "cpu")
    expected = [counted(folder, "corpus.txt", vocab=name)[0] for name in ("v.bin", "w.bin")]
    named = llmgpu("count", *both, "corpus.txt").stdout.decode().splitlines()
    assert named[0].split() == ["v.bin", "w.bin", "bytes", "B/v.bin", "B/w.bin"]
    ratios = [f"{len(corpus_text) / tokens:.3f}" for tokens in expected]
    (row,) = named[1:]
    assert row.split() == [*map(str, expected), str(len(corpus_text)), *ratios, "corpus.txt"]
    piped = llmgpu("count", *both, "--json", stdin=corpus_text)
    assert json.loads(piped.stdout)["files"] == [
        {"path": "-", "text_bytes": len(corpus_text), "tokens": expected}
    ]
    assert piped.stderr == b"reading standard input\n"
    total = llmgpu("count", *both, "--per", "total", "-q", stdin=corpus_text).stdout.decode()
    assert total.splitlines()[1].split()[-1] == "total" and len(total.splitlines()) == 2


def test_a_budget_is_for_scripts(llmgpu: Run, folder: Path) -> None:
    tokens = counted(folder, "corpus.txt")[0]
    budget = ("count", "--vocab", "v.bin", "corpus.txt", "--budget")
    assert llmgpu(*budget, str(tokens)).returncode == 0
    over = llmgpu(*budget, str(tokens - 1))
    fails(over, 3, f"{tokens:,} tokens are 1 more than the budget of {tokens - 1:,}")
    assert str(tokens) in over.stdout.decode()
    fails(llmgpu(*budget, "0"), 2, "less than one token")
    per_file = (
        "count",
        "--vocab",
        "v.bin",
        "n",
        "corpus.txt",
        "--per",
        "folder",
        "--budget-per-file",
    )
    assert llmgpu(*per_file, str(tokens)).returncode == 0
    fails(llmgpu(*per_file, str(tokens - 1)), 3, f": {tokens:,} tokens are 1 more than")


def test_lengths_of_documents(llmgpu: Run, folder: Path) -> None:
    texts = ["", *("low " * (k % 90) for k in range(300)), "newest " * 2000, "x"]
    (folder / "d.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    tokenizer = Tokenizer.load(folder / "v.bin", "cpu")
    lengths = sorted(tokenizer.count(text) for text in texts)
    count = ("count", "--vocab", "v.bin", "--device", "cpu", "d.jsonl", "--per", "document")
    (found,) = json.loads(llmgpu(*count, "--json").stdout)["document_tokens"]
    above = found.pop("above")
    assert found == {
        "documents": len(texts),
        "min": 0,
        "median": lengths[151],
        "p90": lengths[-(-303 * 90 // 100) - 1],
        "p99": lengths[-(-303 * 99 // 100) - 1],
        "max": lengths[-1],
    }
    assert above == {
        str(1 << bits): sum(length > 1 << bits for length in lengths)
        for bits in range(7, 20)
        if 1 << bits < lengths[-1]
    }
    shown = llmgpu(*count).stdout.decode().splitlines()
    assert [line.split()[0] for line in shown[1:3]] == [str(len(texts)), "0"]
    assert shown[-1].split()[1:] == ["above", [*above][-1]]
    (folder / "none.jsonl").write_text("")
    (folder / "lines").write_bytes(b"a b\nc\n\n")
    by_line = (*count[:-3], "lines", "--per", "document", "--line-documents")
    assert b"3  documents" in llmgpu(*by_line).stdout
    assert b"0  documents" in llmgpu(*count[:-3], "none.jsonl", "--per", "document").stdout


def test_conversations_are_counted_as_they_are_tokenized(llmgpu: Run, folder: Path) -> None:
    Tokenizer.train(
        folder / "corpus.txt",
        vocab_size=300,
        special_tokens=["<|im_start|>", "<|im_end|>"],
        device="cpu",
    ).save(folder / "chat.bin")
    messages = [{"role": "user", "content": "low"}, {"role": "assistant", "content": "new"}]
    (folder / "c.jsonl").write_text(json.dumps({"messages": messages}) + "\n")
    chat = ("--vocab", "chat.bin", "--device", "cpu", "--chat", "c.jsonl")
    tokens = int(llmgpu("tokenize", *chat, "--count").stdout)
    assert json.loads(llmgpu("count", *chat, "--json").stdout)["tokens"] == [tokens]


def test_nothing_to_read_is_wrong_usage(folder: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "count", "--vocab", "v.bin"],
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )
    fails(done, 2, "give PATH")


def test_a_terminal_gets_lines_of_its_width(folder: Path) -> None:
    long = folder / ("very" * 20) / ("long" * 20)
    long.mkdir(parents=True)
    (long / "name.txt").write_bytes(b"text")
    ours, theirs = pty.openpty()
    command = [*COMMAND, "count", "--vocab", "v.bin", ".", "--device", "cpu", "-q"]
    subprocess.run(
        command, cwd=folder, env=environment() | {"COLUMNS": "80"}, stdout=theirs, check=True
    )
    os.close(theirs)
    lines = read_terminal(ours).splitlines()
    assert max(map(len, lines)) <= 80
    assert any("…" in line and line.endswith("name.txt") for line in lines)
    assert f"{counted(folder, 'corpus.txt')[0]:,}" in lines[1]


def test_rows_without_text_are_counted_and_bad_ones_refused(llmgpu: Run, folder: Path) -> None:
    rows = ['{"text": "low"}', '{"text": null}', '{"id": 3}', '{"text": 4}', "{", '{"text": "new"}']
    (folder / "dirty.jsonl").write_text("\n".join(rows))
    count = ("count", "--vocab", "v.bin", "--device", "cpu", "--json", "dirty.jsonl")
    fails(llmgpu(*count), 1, "dirty.jsonl, line 4: field 'text' is not a string but a number")
    done = llmgpu(*count, "--bad-rows", "skip")
    assert (
        b"note: 2 rows without text skipped\nnote: 2 bad rows skipped; the first: " in done.stderr
    )
    summary = json.loads(done.stdout)
    found = [summary[name] for name in ("documents", "text_bytes", "left_out_rows", "bad_rows")]
    assert found == [2, 6, 2, 2]
    part = ("tokenize", "--vocab", "v.bin", "dirty.jsonl", "-o", "o-%P.bin", "--part", "1/1")
    assert llmgpu(*part, "--bad-rows", "skip").returncode == 0
    assert b"nothing to do" in llmgpu(*part, "--bad-rows", "skip").stderr
    fails(llmgpu(*part), 1, "line 4: field")  # which is another job


def test_bytes_that_are_not_text_are_told(llmgpu: Run, folder: Path) -> None:
    latin = "größer als öde\n" * 400
    (folder / "latin.txt").write_bytes(latin.encode("latin-1"))
    (folder / "mark.txt").write_bytes(b"\xef\xbb\xbflow")
    (folder / "l.jsonl").write_bytes(b'{"text": "\xff\xffa\xe4"}\n')
    (folder / "good.txt").write_text(latin)
    files = ("latin.txt", "mark.txt", "l.jsonl", "good.txt")
    replaced = llmgpu("count", "--vocab", "v.bin", *files, "--encoding-errors", "replace", "--json")
    found = json.loads(replaced.stdout)["invalid_sequences"]
    assert found == 3 * 400 + 3
    for command in (
        ("count",),
        ("tokenize", "--count"),
        ("tokenize", "--count", "--line-documents"),
    ):
        done = llmgpu(*command, "--vocab", "v.bin", "--device", "cpu", *files, "--json")
        notes = json.loads(done.stdout)["notes"]
        assert notes[0] == "a byte order mark (3 bytes) at the start of 'mark.txt' was kept as text"
        assert notes[1].startswith(
            "1,203 invalid UTF-8 sequences kept as bytes in 'latin.txt', 'l.j"
        )
        assert b"\nnote: 1,203 invalid" in done.stderr
    trained = llmgpu(
        "bpe-train", "-o", "w.bin", "--vocab-size", "260", stdin=latin.encode("latin-1")
    )
    assert b"note: 1,200 invalid UTF-8 sequences kept as bytes in 'standard i" in trained.stderr


def test_folders_and_lists_may_have_any_files(llmgpu: Run, corpus: Path, vocab: Path) -> None:
    folder = corpus.parent / "repo"
    (folder / "sub").mkdir(parents=True)
    text = corpus.read_text()
    (folder / "a.txt").write_text(text)
    (folder / "p.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    (folder / "o.dat").write_bytes(b"\xff\xee\0\0")
    (folder / "nul.txt").write_bytes(b"a\0b")  # text for `tokenize`, too
    (folder / "sub" / "u.utf16").write_text(text, encoding="utf-16")
    (folder / "t.jsonl").write_text('{"text": "low"}\n')
    count = ("count", "--vocab", "v.bin", "--device", "cpu", "--json")
    whole = llmgpu(*count, "repo")
    assert b"2 binary files skipped" in whole.stderr
    assert b"1 file in UTF-16 skipped: 'repo/sub/u.utf16'" in whole.stderr
    found = {file["path"]: file["text_bytes"] for file in json.loads(whole.stdout)["files"]}
    sizes = {"a.txt": len(text), "nul.txt": 3, "t.jsonl": 3}
    assert found == {f"repo/{name}": size for name, size in sizes.items()}
    names = [f"repo/{name}" for name in (*sizes, "p.png", "sub/u.utf16", "gone.py")]
    listed = llmgpu(*count, "--files-from", "-", stdin="\n".join(names).encode())
    assert b"1 listed file not found, skipped: 'repo/gone.py'" in listed.stderr
    assert json.loads(listed.stdout)["tokens"] == json.loads(whole.stdout)["tokens"]
    url = llmgpu(*count, "--files-from", "-", stdin=b"nowhere://a.txt\nrepo/a.txt\n")
    fails(url, 1, "nowhere://a.txt")
    chain = llmgpu(*count, "-q", "--files-from", "-", stdin=b"reference::file://a\nrepo/a.txt\n")
    fails(chain, 1, "reference::file://a")
    for nothing in (b"", b"repo/p.png\n", b"repo/gone.py"):
        done = llmgpu(*count, "--files-from", "-", "--budget", "1", stdin=nothing)
        assert (done.returncode, json.loads(done.stdout)["tokens"]) == (0, [0]), done.stderr
    fails(llmgpu(*count, "repo/p.png"), 1, "is a picture")


def test_a_folder_is_read_as_other_commands_read_it(llmgpu: Run, corpus: Path, vocab: Path) -> None:
    folder = corpus.parent / "repo"
    folder.mkdir()
    (folder / "log.jsonl").write_text('{"a": "low"}\n{"a": "newest"}\n')
    (folder / "t.txt").write_text("low")
    count = ("count", "--vocab", "v.bin", "--device", "cpu", "--json")
    tokenize = ("tokenize", "--vocab", "v.bin", "--device", "cpu", "--count", "--json")
    folders, file = ("repo", "repo/*"), ("repo/log.jsonl",)
    refused = "repo/log.jsonl, line 1: no field"
    for options, names, code, message in (
        ((), folders, 0, "note: 1 file without field 'text' skipped: 'repo/log.jsonl'; --text-"),
        ((), file, 1, f"{refused} 'text'"),
        (("--text-field", "nope"), (*folders, *file), 1, f"{refused} 'nope'"),
        (("--text-field", "text"), folders, 1, f"{refused} 'text'"),
        (("--bad-rows", "error"), folders, 1, f"{refused} 'text'"),
        (("--text-field", "a"), (*folders, *file), 0, ""),
    ):
        for name in names:
            counted, tokenized = (llmgpu(*command, name, *options) for command in (count, tokenize))
            assert counted.returncode == tokenized.returncode == code, counted.stderr
            told = [
                [line for line in done.stderr.splitlines() if line.startswith((b"note", b"{"))]
                for done in (counted, tokenized)
            ]
            assert told[0] == told[1] and message in counted.stderr.decode()
    (folder / "u.txt").write_text("low", encoding="utf-16")
    for command in (count, tokenize):
        for name in ("repo", "repo/u.txt"):
            done = llmgpu(*command, name)
            reason = b"u.txt is text in UTF-16, not UTF-8: convert it with iconv, exclude it ("
            assert done.returncode == 1 and reason in done.stderr
    # Without another file, the first one is refused with the reason.
    for name in ("t.txt", "u.txt"):
        (folder / name).unlink()
    for command in (count, tokenize):
        fails(llmgpu(*command, "repo"), 1, "repo/log.jsonl, line 1: no field 'text'")
