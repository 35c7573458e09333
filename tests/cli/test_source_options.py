"""Which files are read and as what: pipes, binaries, lists of names, options without an effect."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import random
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import Run, fails

TEXT = b"low lower lowest newer newest\n" * 20
ROWS = b"".join(json.dumps({"text": f"row {n}", "body": f"b {n}"}).encode() + b"\n" for n in (1, 2))
PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(range(256))
VOCAB = ("--vocab", "v.bin", "--device", "cpu")
ENCODE, COUNT = ("tokenize", *VOCAB), ("count", *VOCAB)
SIZES = ("--dim", "32", "--layers", "1", "--heads", "2", "--seq-len", "16", "--steps", "1")
TRAIN = ("train", *VOCAB, "-o", "run", "--batch-size", "1", *SIZES)
BPE_TRAIN = ("bpe-train", "--device", "cpu", "--vocab-size", "260", "-o", "n.bin")


def ids_of(llmgpu: Run, *arguments: str, stdin: bytes = b"") -> bytes:
    done = llmgpu(*ENCODE, *arguments, stdin=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout


def zstd(data: bytes) -> bytes:
    return bytes(pytest.importorskip("zstandard").compress(data))


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress, zstd])
def test_a_compressed_pipe_is_decompressed(
    llmgpu: Run, vocab: Path, compress: Callable[[bytes], bytes]
) -> None:
    expected, packed = ids_of(llmgpu, stdin=TEXT), compress(TEXT)
    assert ids_of(llmgpu, stdin=packed) == expected
    (vocab.parent / "t").write_bytes(packed)
    done = llmgpu(*ENCODE, "t")
    fails(
        done,
        1,
        "t is a compressed file: unpack it, exclude it (--exclude), or read it as raw bytes",
    )
    assert ids_of(llmgpu, "t", "--input-format", "bytes") != expected
    assert ids_of(llmgpu, "--input-format", "bytes", stdin=packed) == ids_of(
        llmgpu, "t", "--input-format", "bytes"
    )
    fails(llmgpu(*ENCODE, stdin=packed[: len(packed) // 2]), 1, "damaged or truncated")
    both = ("--vocab", "v.bin")
    done = llmgpu(*COUNT, *both, "--json", "-q", stdin=packed)
    assert len(set(json.loads(done.stdout)["tokens"])) == 1
    assert json.loads(done.stdout)["text_bytes"] == len(TEXT)


def test_json_lines_in_a_pipe(llmgpu: Run, vocab: Path) -> None:
    (vocab.parent / "r.jsonl").write_bytes(ROWS)
    expected = ids_of(llmgpu, "r.jsonl")
    done = llmgpu(*ENCODE, stdin=ROWS)
    assert b"note: 'standard input': read as plain text, but looks like JSON Lines" in done.stderr
    for stdin in (ROWS, gzip.compress(ROWS)):
        assert ids_of(llmgpu, "--input-format", "jsonl", stdin=stdin) == expected
        assert ids_of(llmgpu, "--text-field", "text", stdin=stdin) == expected
    by_body = ids_of(llmgpu, "r.jsonl", "--text-field", "body")
    assert ids_of(llmgpu, "--text-field", "body", stdin=ROWS) == by_body != expected
    assert b"looks like" not in llmgpu(*ENCODE, stdin=b'{"a": 1} is JSON').stderr
    done = llmgpu(*COUNT, "--vocab", "v.bin", "--text-field", "text", "--json", stdin=ROWS)
    assert json.loads(done.stdout)["documents"] == 2


def test_json_lines_of_another_name(llmgpu: Run, vocab: Path) -> None:
    for name in ("r.json", "r.jsonl"):
        (vocab.parent / name).write_bytes(ROWS)
    done = llmgpu(*ENCODE, "r.json")
    assert b"note: 'r.json': read as plain text, but looks like JSON Lines" in done.stderr
    fails(llmgpu(*ENCODE, "r.json", "--text-field", "body"), 2, "r.json is read as text")
    for text in (b'[{"text": "a"}, {"text": "b"}]', b'[\n  {\n    "text": "a"\n  }\n]\n'):
        (vocab.parent / "array.json").write_bytes(text)
        done = llmgpu(*COUNT, "array.json")
        line = b"note: 'array.json': read as plain text, but looks like an array of JSON objects"
        assert line in done.stderr and b"jq -c '.[]' makes JSON Lines" in done.stderr
        fails(llmgpu(*COUNT, "array.json", "--text-field", "text"), 2, "makes lines of an array")
    (vocab.parent / "array.json").write_bytes(b'[["a"], {"text": "b"}]')
    assert not llmgpu(*COUNT, "array.json").stderr
    assert ids_of(llmgpu, "r.json", "--input-format", "jsonl") == ids_of(llmgpu, "r.jsonl")
    as_text = ids_of(llmgpu, "r.jsonl", "--input-format", "text")
    assert as_text == ids_of(llmgpu, "r.json")


def test_files_that_are_not_text(llmgpu: Run, vocab: Path) -> None:
    folder = vocab.parent / "d"
    folder.mkdir()
    for name, data in (("a.txt", TEXT), ("logo.png", PNG), ("odd", b"\xff\0b")):
        (folder / name).write_bytes(data)
    (folder / "v.model").write_bytes((folder.parent / "v.bin").read_bytes())
    options = ("--dim", "32", "--layers", "1", "--heads", "2", "--seq-len", "16", "--steps", "1")
    train = ("train", *VOCAB, "-o", "run", "--batch-size", "1", *options)
    bpe_train = ("bpe-train", "--device", "cpu", "--vocab-size", "260", "-o", "n.bin")
    skipped = b"note: 3 binary files skipped: 'd/logo.png', 'd/odd', 'd/v.model'\n"
    for command in (ENCODE, COUNT, bpe_train, train):
        for name in ("d", "d/*")[: 1 if command == train else 2]:  # train keeps what it tokenized
            done = llmgpu(*command, name)
            assert done.returncode == 0, done.stderr
            assert done.stderr.count(skipped) == 1 and b"NUL bytes" not in done.stderr
        anew = ["other" if each == "run" else each for each in command]
        fails(llmgpu(*anew, "d/a.txt", "d/logo.png"), 1, "d/logo.png is a picture: exclude it")
    for k in range(9):
        (folder / f"{k}.png").write_bytes(PNG)
    assert b"12 binary files skipped: 'd/0.png', " in (few := llmgpu(*ENCODE, "d").stderr)
    every = llmgpu(*ENCODE, "d", "--list-skipped").stderr
    assert b"more" in few and all(f"'d/{k}.png'".encode() in every for k in range(9))
    for k in range(9):
        (folder / f"{k}.png").unlink()
    (folder / "v.model").unlink()
    fails(llmgpu(*ENCODE, stdin=PNG), 1, "standard input is a picture: read it as raw bytes")
    table = llmgpu(*ENCODE, stdin=b"PAR1\x15\0\x15\xff")
    fails(table, 1, "standard input is a Parquet file: name the file, which can't be read from a")
    done = llmgpu(*COUNT, "d", "--json")
    assert [Path(file["path"]).name for file in json.loads(done.stdout)["files"]] == ["a.txt"]
    assert b"note: 2 binary files skipped: 'd/logo.png', 'd/odd'" in done.stderr
    fails(llmgpu(*COUNT, "d/logo.png"), 1, "d/logo.png is a picture")
    done = llmgpu(*COUNT, "d/odd", "d/logo.png", "--input-format", "bytes", "--json")
    assert json.loads(done.stdout)["text_bytes"] == 3 + len(PNG) and not done.stderr.count(b"note")
    ids_of(llmgpu, "d/a.txt", "-o", "t.bin")
    fails(llmgpu(*ENCODE, "t.bin"), 1, "t.bin is a token file: tokenize --decode gives its text")


def test_archives_and_damaged_files_of_a_folder_are_skipped(llmgpu: Run, vocab: Path) -> None:
    folder = vocab.parent / "d"
    folder.mkdir()
    (folder / "a.txt").write_bytes(TEXT)
    (folder / "good.txt.gz").write_bytes(gzip.compress(TEXT))
    with zipfile.ZipFile(folder / "a.zip", "w") as archive:
        archive.writestr("a.txt", TEXT)
    for name, mode in (("a.tar.gz", "w:gz"), ("a.tar.xz", "w:xz"), ("a.tgz", "w:gz")):
        with tarfile.open(folder / name, mode) as packed:  # type: ignore[call-overload]
            packed.add(folder / "a.txt", "a.txt")
    noise = random.Random(5).randbytes(1 << 14)
    (folder / "noise.txt.gz").write_bytes(gzip.compress(noise))
    for name, data in (
        ("bad.txt.gz", b"no gzip"),
        ("bad.jsonl.xz", b"no xz"),
        ("bad.txt.bz2", bz2.compress(TEXT)[:-9]),
        ("cut.txt.gz", gzip.compress(TEXT)[:-5]),
        ("none.txt.zst", b""),
    ):
        (folder / name).write_bytes(data)
    skipped = {
        "binary file": ["a.tar.gz", "a.tar.xz", "a.tgz", "a.zip", "noise.txt.gz"],
        "damaged compressed file": [
            *("bad.jsonl.xz", "bad.txt.bz2", "bad.txt.gz", "cut.txt.gz", "none.txt.zst")
        ],
    }
    for command in (ENCODE, COUNT, BPE_TRAIN, TRAIN):
        done = llmgpu(*command, "d", "--list-skipped")
        assert done.returncode == 0, done.stderr
        for noun, names in skipped.items():
            shown = ", ".join(f"'d/{name}'" for name in names)
            line = f"note: {len(names)} {noun}s skipped: {shown}\n"
            assert line in done.stderr.decode()
    counted = json.loads(llmgpu(*COUNT, "d", "--json").stdout)
    assert counted["text_bytes"] == 2 * len(TEXT) and len(counted["notes"]) == 2
    # A file that is named alone is refused with the reason.
    for name, reason in (
        ("a.tar.gz", "is an archive of tar: unpack it"),
        ("a.zip", "is a compressed file: unpack it"),
        ("bad.txt.gz", ": damaged or truncated .gz file"),
        ("cut.txt.gz", ": damaged or truncated .gz file"),
    ):
        fails(llmgpu(*COUNT, f"d/{name}"), 1, f"d/{name}{' ' * (reason[0] == 'i')}{reason}")
    # Text before damage may have been used, so damage after the first bytes is an error.
    words = " ".join(map(str, range(1 << 14))).encode()
    (folder / "late.txt.gz").write_bytes(gzip.compress(words)[:-999])
    for command in (ENCODE, COUNT, (*BPE_TRAIN[:-1], "m.bin")):
        fails(llmgpu(*command, "d"), 1, "d/late.txt.gz: damaged or truncated .gz file")


def test_data_of_other_fields_in_a_folder_is_skipped(llmgpu: Run, vocab: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    folder = vocab.parent / "d"
    folder.mkdir()
    (folder / "a.txt").write_bytes(TEXT)
    (folder / "good.jsonl").write_bytes(b'{"other": 1}\n' + ROWS)  # the first row lacks the text
    chat = b'{"messages": [{"role": "user", "content": "low"}]}\n'
    (folder / "chat.jsonl").write_bytes(chat * 3)
    (folder / "chat.jsonl.gz").write_bytes(gzip.compress(chat))
    parquet.write_table(arrow.table({"question": ["low"]}), folder / "qa.parquet")
    with arrow.ipc.new_file(str(folder / "qa.arrow"), arrow.schema([("q", "string")])):
        pass
    (folder / "wide").write_bytes(TEXT.decode().encode("utf-16"))
    (folder / "wide.txt.gz").write_bytes(gzip.compress(TEXT.decode().encode("utf-16")))
    for command in (ENCODE, COUNT, BPE_TRAIN, TRAIN):
        done = llmgpu(*command, "d", "--list-skipped")
        assert done.returncode == 0, done.stderr
        names = "'d/chat.jsonl', 'd/chat.jsonl.gz', 'd/qa.arrow', 'd/qa.parquet'"
        for line in (
            f"note: 4 files without field 'text' skipped: {names}; --text-field names another",
            "note: 2 files in UTF-16 skipped: 'd/wide', 'd/wide.txt.gz'; iconv converts",
        ):
            assert line in done.stderr.decode()
    counted = json.loads(llmgpu(*COUNT, "d", "--json").stdout)
    assert [file["path"] for file in counted["files"]] == ["d/a.txt", "d/good.jsonl"]
    for name in ("chat.jsonl", "chat.jsonl.gz", "qa.parquet", "wide", "wide.txt.gz"):
        fails(llmgpu(*COUNT, f"d/{name}"), 1, f"d/{name}")
    (vocab.parent / "list").write_bytes(b"d/a.txt\nd/chat.jsonl\n")
    listed = llmgpu(*COUNT, "--files-from", "list")
    assert b"1 file without field 'text' skipped: 'd/chat.jsonl'" in listed.stderr


def test_a_list_of_files(llmgpu: Run, vocab: Path) -> None:
    for name in ("a b.txt", "c.txt", "d.txt"):
        (vocab.parent / name).write_bytes(TEXT + name.encode())
    expected = ids_of(llmgpu, "d.txt", "a b.txt", "c.txt")
    for names in (b"a b.txt\nc.txt", b"\na b.txt\r\nc.txt\n", b"a b.txt\0c.txt\0"):
        (vocab.parent / "list").write_bytes(names)
        assert ids_of(llmgpu, "d.txt", "--files-from", "list") == expected
        assert ids_of(llmgpu, "d.txt", "--files-from", "-", stdin=names) == expected
    for encoding in ("utf-8-sig", "utf-16"):  # with a byte-order mark, as PowerShell writes lists
        marked = "\r\n".join(["c.txt", "d.txt", ""]).encode(encoding)
        done = llmgpu(*COUNT, "--files-from", "-", "--json", stdin=marked)
        assert [file["path"] for file in json.loads(done.stdout)["files"]] == ["c.txt", "d.txt"]
    broken = llmgpu(*ENCODE, "--files-from", "-", stdin=b"\xff\xfea")
    fails(broken, 1, "can't read standard input")
    fails(llmgpu(*ENCODE, "--files-from", "none"), 1, "can't read none: No such file")
    fails(llmgpu(*ENCODE, "--files-from", "-"), 1, "--files-from: standard input names no files")
    fails(llmgpu(*ENCODE, "--files-from", "-", stdin=b"gone"), 1, "no such file or folder: 'gone'")
    fails(llmgpu(*ENCODE, "-", "--files-from", "-"), 2, "can't be both the text and the list")
    done = llmgpu(*COUNT, "--files-from", "-", "--json", stdin=b"c.txt\nd.txt")
    assert len(json.loads(done.stdout)["files"]) == 2


def test_names_as_git_quotes_them(llmgpu: Run, vocab: Path) -> None:
    names = ["\u00fc \u00f6.txt", 'a"b\\c.txt', "tab\t.txt", '"kept"']
    for name in names:
        (vocab.parent / name).write_bytes(TEXT)
    quoted = (rb'"\303\274 \303\266.txt"', rb'"a\"b\\c.txt"', rb'"tab\t.txt"', b'"kept"')
    done = llmgpu(*COUNT, "--files-from", "-", "--json", stdin=b"\n".join(quoted))
    assert [file["path"] for file in json.loads(done.stdout)["files"]] == names, done.stderr
    done = llmgpu(*COUNT, "--files-from", "-", stdin=b'"\\x"\n"\\u1234"')
    assert b"2 listed files not found, skipped: " in done.stderr


def test_gitignore_and_exclude(llmgpu: Run, vocab: Path) -> None:
    folder = vocab.parent / "src"
    for name in ("a.txt", "b.txt", "build/c.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(TEXT)
    (folder / ".gitignore").write_text("build/\n")
    files = [file["path"] for file in json.loads(counted(llmgpu, "src", "--gitignore"))["files"]]
    assert files == ["src/a.txt", "src/b.txt"]
    files = json.loads(counted(llmgpu, "src", "src/*.txt", "--exclude", "b.txt"))["files"]
    assert [file["path"] for file in files] == ["src/a.txt", "src/build/c.txt", "src/a.txt"]
    told = llmgpu(*COUNT, "src/", "--exclude", "src/b.txt").stderr
    assert b"--exclude 'src/b.txt' is matched with paths within src/: try 'b.txt'" in told
    fails(llmgpu(*COUNT, "src/a.txt", "--exclude", "a.*"), 1, "is excluded: no file is left")


def counted(llmgpu: Run, *arguments: str) -> bytes:
    done = llmgpu(*COUNT, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*ENCODE, "a.txt", "--count", "-o", "x.bin"), "--output can't be combined with --count"),
        ((*ENCODE, "a.txt", "--count", "--format", "npy"), "--format can't be combined"),
        ((*ENCODE, "a.txt", "--seed", "3"), "--seed needs --split NAME=SHARE or --shuffle"),
        ((*ENCODE, "t.bin", "--decode", "--threads", "2"), "--threads can't be combined"),
        ((*ENCODE, "t.bin", "--decode", "--exclude", "x"), "--exclude is for text"),
        ((*COUNT, "a.txt", "--per", "total", "--sort", "path"), "--sort has no effect"),
        (
            ("bpe-train", "a.txt", "--counts-only", "--save-counts", "c", "-o", "w.bin"),
            "--output has no effect with --counts-only, which writes no vocabulary",
        ),
        (
            ("bpe-train", "--from-counts", "w", "--gitignore"),
            "--gitignore can't be combined with --from-counts",
        ),
        (("train", "--vocab", "v.bin", "t.bin", "-o", "r", "--limit", "9"), "--limit is for text"),
        (("train", "--vocab", "v.bin", "t.bin", "-o", "r", "--chat"), "t.bin has tokens"),
        (("train", "--vocab", "v.bin", "a.txt", "-o", "r", "--text-field", "x"), "read as text"),
    ],
)
def test_options_without_an_effect(
    llmgpu: Run, vocab: Path, arguments: tuple[str, ...], message: str
) -> None:
    (vocab.parent / "a.txt").write_bytes(TEXT)
    ids_of(llmgpu, "a.txt", "-o", "t.bin")
    fails(llmgpu(*arguments), 2, message)


def test_token_files_of_other_tools(llmgpu: Run, vocab: Path) -> None:
    """The ids of nanoGPT's prepare.py and of llm.c come back as text, and train a model."""
    folder = vocab.parent
    ids = np.array(ids_of(llmgpu, stdin=TEXT).split(), np.int64)
    header = np.zeros(256, np.int32)
    header[:3] = 20240520, 1, len(ids)
    ids.astype(np.uint16).tofile(folder / "nano.bin")
    (folder / "c.bin").write_bytes(header.tobytes() + ids.astype(np.uint16).tobytes())
    back = ("tokenize", "--vocab", "v.bin", "--decode")
    fails(llmgpu(*back, "nano.bin"), 1, "nano.bin has no side file")
    nano = ("nano.bin", "--token-dtype", "uint16")
    for names in (nano, ("c.bin",)):
        done = llmgpu(*back, *names)
        assert done.stdout == TEXT
        assert b".bin': no side file, so the ids are assumed to be those of v.bin" in done.stderr
        model = ("--dim", "16", "--layers", "1", "--heads", "1", "--seq-len", "8", "--steps", "1")
        run = ("train", "--vocab", "v.bin", *names, "-o", names[0][:1], *model, "--device", "cpu")
        done = llmgpu(*run)
        assert done.returncode == 0 and b"assumed to be those of v.bin" in done.stderr, done.stderr
    done = llmgpu(*back, "--format", "bin", "--token-dtype", "uint32", stdin=b"a\0\0\0")
    assert done.stdout == b"a", done.stderr
    done = llmgpu("info", "c.bin", "--json")
    assert json.loads(done.stdout)["kind"] == "a token file of another tool"
    fails(llmgpu(*ENCODE, "--token-dtype", "uint16"), 2, "--token-dtype needs --decode")


def test_what_is_inside_is_looked_at_when_it_is_read(llmgpu: Run, vocab: Path) -> None:
    """The name says text, or there is something else in what is compressed."""
    (vocab.parent / "p.txt").write_bytes(PNG)
    (vocab.parent / "p.gz").write_bytes(gzip.compress(PNG))
    for name in ("p.txt", "p.gz"):
        fails(llmgpu(*ENCODE, name), 1, f"{name} is a picture")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--template", "{question}", "--template", "{answer}"), "--template"),
        (("-o", "a.bin", "--output", "b.bin"), "--output"),
        (("--vocab-size", "300", "--vocab-size=301"), "--vocab-size"),
    ],
)
def test_a_second_and_different_value_is_refused(
    llmgpu: Run, corpus: Path, words: tuple[str, ...], named: str
) -> None:
    done = llmgpu("bpe-train", "corpus.txt", "-o", words[1] if words[0] == "-o" else "v", *words)
    fails(done, 2, f"{named} takes one value, and two are given: ")
    assert not {"v", "a.bin", "b.bin"} & {each.name for each in corpus.parent.iterdir()}


def test_the_same_value_may_be_given_twice(
    llmgpu: Run, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLMGPU_DEVICE", "gpu")  # the command line overrides the environment
    twice = ("--vocab-size", "300", "--vocab-size", "0300", "-q", "-q", "--device", "cpu")
    done = llmgpu("bpe-train", "corpus.txt", "-o", "v.bin", *twice)
    assert done.returncode == 0, done.stderr


def test_a_flag_and_its_opposite_are_refused(llmgpu: Run, corpus: Path) -> None:
    both = ("--document-mask", "--no-document-mask")
    done = llmgpu("train", "corpus.txt", "--vocab", "v.bin", "-o", "run", *both)
    fails(done, 2, "--document-mask and --no-document-mask can't be combined")


@pytest.mark.parametrize("is_stream", [True, False])
def test_a_saved_data_set(llmgpu: Run, vocab: Path, corpus: Path, is_stream: bool) -> None:
    """The folder as `datasets` saves it; the subsets are told by their names."""
    arrow = pytest.importorskip("pyarrow")
    ipc = pytest.importorskip("pyarrow.ipc")
    folder, lines = corpus.parent, []
    (folder / "a").mkdir()
    (folder / "a" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    for name in ("train", "test"):
        (folder / "a" / name).mkdir()
        for card in ("state.json", "dataset_info.json"):
            (folder / "a" / name / card).write_text("{}")
        rows = [{"text": f"low {name} {k}", "in": {"b": "new"}} for k in range(25)] + [{}]
        lines.append("".join(row["text"] + "\n" for row in rows[:-1]).encode())  # type: ignore
        table = arrow.Table.from_pylist(rows)
        make = ipc.new_stream if is_stream else ipc.new_file
        with make(folder / "a" / name / "data-00000-of-00001.arrow", table.schema) as writer:
            writer.write_table(table, max_chunksize=7)
    (folder / "train.txt").write_bytes(lines[0])
    (folder / "both.txt").write_bytes(lines[1] + lines[0])
    for options, same in ((("--subset", "train"), "train.txt"), ((), "both.txt")):
        expected = llmgpu(*ENCODE, same, "--line-documents").stdout
        done = llmgpu(*ENCODE, "a", *options)
        assert done.returncode == 0, done.stderr
        stripped = [line.rsplit(b" ", 1)[0] for line in expected.splitlines()]  # the newline's id
        assert done.stdout.splitlines() == stripped
        assert b"note: 5 files beside the data left out: 'a/dataset_dict" in done.stderr
    joined = llmgpu(*ENCODE, "a", "--template", "{in.b} {text}", "--count")
    assert int(joined.stdout) > int(llmgpu(*ENCODE, "a", "--count").stdout)
    fails(llmgpu(*ENCODE, "a", "--subset", "validation"), 1, "a has no file with validation or ")
    # Files that a shell names follow the same rule.
    named = [f"a/{name}/data-00000-of-00001.arrow" for name in ("test", "train")]
    done = llmgpu(*ENCODE, *named, "--subset", "train")
    assert done.stdout == llmgpu(*ENCODE, "a", "--subset", "train").stdout
    assert b"note: 1 file of other subsets left out: 'a/test/data" in done.stderr
    fails(llmgpu(*ENCODE, named[0], "--subset", "train"), 1, "or not of subset train: no file")
    broken = folder / "a" / "test" / "data-00000-of-00001.arrow"
    fails(llmgpu(*ENCODE, str(broken), "--text-field", "x"), 1, "no column 'x'; the columns are")
    data = bytearray(broken.read_bytes())
    broken.write_bytes(data[: len(data) // 2])
    fails(llmgpu(*ENCODE, str(broken)), 1, "damaged, or not an Arrow file")
    broken.write_bytes(b"\xff\xff\xff\xff\xf0\0\0\0\x10\0\0\0\0\0\n" + bytes(200))
    fails(llmgpu(*ENCODE, str(broken)), 1, "damaged, or not an Arrow file")
    broken.rename(folder / "a" / "data")
    fails(llmgpu(*ENCODE, "a/data"), 1, "is an Arrow file: name it .arrow, or use --input-format")


def test_a_card_beside_other_text_is_text(llmgpu: Run, vocab: Path) -> None:
    folder = vocab.parent / "c"
    folder.mkdir()
    (folder / "README.md").write_text("readme")
    (folder / "train-0.jsonl").write_text('{"text": "low"}\n')
    assert b"note: 1 file beside the data left out: 'c/README.md'" in llmgpu(*ENCODE, "c").stderr
    alone = llmgpu(*ENCODE, "c", "--count").stdout
    (folder / "main.py").write_text("low")
    assert int(llmgpu(*ENCODE, "c", "--count").stdout) > 2 * int(alone)


def test_several_fields_and_templates(llmgpu: Run, corpus: Path, vocab: Path) -> None:
    folder = corpus.parent
    (folder / "qa.jsonl").write_text('{"question": "low?", "answer": "newest", "n": {"b": "x"}}\n')
    tokenize = ("tokenize", "--vocab", "v.bin", "--device", "cpu", "-q")
    decode = (*tokenize, "--decode", "o.bin")
    fields = ("--text-field", "question", "--text-field", "answer")
    for options, expected in (
        (fields, b"low?\nnewest"),
        (("--template", "{question}\n{answer}"), b"low?\nnewest"),
        (("--template", r"{question}\n{answer}"), b"low?\nnewest"),
        (("--template", "{n.b}: {{{answer}}}"), b"x: {newest}"),
    ):
        done = llmgpu(*tokenize, "qa.jsonl", "-o", "o.bin", *options)
        assert done.returncode == 0, done.stderr
        assert llmgpu(*decode).stdout == expected
    piped = llmgpu(*tokenize, "-", "--count", *fields, stdin=(folder / "qa.jsonl").read_bytes())
    counted = llmgpu(*tokenize, "qa.jsonl", "--count", *fields)
    assert piped.stdout == counted.stdout != b""
    # A second template is another job: for shards, and for a trained vocabulary.
    shards = (*tokenize, "qa.jsonl", "-o", "s.bin", "--shard-tokens", "100", "--template")
    runs = []
    for template in ("{answer}!", "{answer}?"):
        assert llmgpu(*shards, template).returncode == 0
        runs.append(json.loads((folder / "s.json").read_text())["run_sha256"])
    assert runs[0] != runs[1]
    train = (*("bpe-train", "qa.jsonl", "-o", "t.bin"), "--checkpoint", "kept", "--device", "cpu")
    assert llmgpu(*train, "--template", "{answer}").returncode == 0
    again = llmgpu(*train, "--template", "{answer}", "--resume")
    other = llmgpu(*train, "--template", "{answer}{question}", "--resume")
    assert b"other options" not in again.stderr and b"had other options" in other.stderr
    # Messages.
    fails(llmgpu(*tokenize, "qa.jsonl", *fields, "--template", "{n.b}"), 2, "can't be combined")
    fails(llmgpu(*tokenize, "qa.jsonl", "--template", "{a!r}"), 1, "{a!r}, which is not a field")
    fails(llmgpu(*tokenize, "corpus.txt", "--template", "{a}"), 2, "--template is for .jsonl")
    both = llmgpu(*tokenize, "qa.jsonl", "--text-field", "question,answer")
    fails(both, 1, "for several fields, --text-field question --text-field answer")
    chat = llmgpu(*tokenize, "qa.jsonl", *fields, "--chat", "-o", "c.bin")
    fails(chat, 2, "--chat reads one field")
