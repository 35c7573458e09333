"""``--chat``: conversations to token files with a loss mask, and models trained on them."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from llmgpu.lm.checkpoints.checkpoint import load_checkpoint
from llmgpu.lm.runs.run_folder import read_log
from llmgpu.tokenizer import Tokenizer
from tests.cli.conftest import Run, fails
from tests.cli.test_train import SIZES, STEPS

CHATML = ("--special-token", "<|im_start|>", "--special-token", "<|im_end|>")
TOKENIZE = ("tokenize", "--vocab", "v.bin", "--device", "cpu", "--chat", "c.jsonl")
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}."
    "{% endgeneration %}{% else %}{{ m.content }}?{% endif %}{% endfor %}"
)


@pytest.fixture
def conversations(llmgpu: Run, corpus: Path) -> Path:
    """Conversations, and a vocabulary with ChatML's tokens."""
    options = ("--vocab-size", "400", "-q", "--device", "cpu")
    assert llmgpu("bpe-train", "corpus.txt", *options, *CHATML).returncode == 0
    lines = [
        {"messages": [{"role": r, "content": f"{r} {k}"} for r in ("user", "assistant")]}
        for k in range(40)
    ]
    path = corpus.parent / "c.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def replies(folder: Path, name: str = "t.bin") -> bytes:
    """The text of the ids that count in a token file."""
    ids, mask = np.fromfile(folder / name, "<u2"), np.load(folder / f"{name}.mask.npy")
    assert mask.dtype == bool and mask.shape == ids.shape
    return Tokenizer.load(folder / "v.bin").decode_bytes(ids[mask])


def test_a_token_file_with_its_mask(llmgpu: Run, conversations: Path) -> None:
    done = llmgpu(*TOKENIZE, "-o", "t.bin", "--json")
    assert done.returncode == 0, done.stderr
    expected = b"".join(b"assistant %d<|im_end|>" % k for k in range(40))
    assert replies(conversations.parent) == expected
    summary = json.loads(done.stdout)
    assert summary["assistant_tokens"] == np.load(conversations.parent / "t.bin.mask.npy").sum()
    assert f"{summary['assistant_tokens']} are the assistant's".encode() in done.stderr
    decoded = llmgpu("tokenize", "--vocab", "v.bin", "--decode", "t.bin").stdout
    assert decoded.startswith(b"<|im_start|>user\nuser 0<|im_end|>\n<|im_start|>assistant\n")
    piped = llmgpu(*TOKENIZE[:-1], "-o", "p.bin", stdin=conversations.read_bytes())
    assert piped.returncode == 0 and replies(conversations.parent, "p.bin") == expected


def test_shards_and_parts_have_masks(llmgpu: Run, conversations: Path) -> None:
    folder = conversations.parent
    llmgpu(*TOKENIZE, "-o", "t.bin")
    whole = np.load(folder / "t.bin.mask.npy")
    done = llmgpu(*TOKENIZE, "-o", "s.bin", "--shard-tokens", "100")
    assert done.returncode == 0, done.stderr
    shards = sorted(folder.glob("s-*.bin.mask.npy"))
    assert np.array_equal(np.concatenate(list(map(np.load, shards))), whole)
    shards[1].write_bytes(shards[0].read_bytes())
    fails(llmgpu("info", "s-000001.bin"), 1, "s-000001.bin.mask.npy is not the file that its side")
    again = (*TOKENIZE, "-o", "s.bin", "--shard-tokens", "100", "--resume")
    assert llmgpu(*again).returncode == 0
    assert np.array_equal(np.concatenate(list(map(np.load, shards))), whole)
    (folder / "t.jinja").write_text(TEMPLATE)
    (folder / "s.json").rename(folder / "s.progress.json")
    changed = llmgpu(*again, "--chat-template", "t.jinja")
    assert changed.returncode == 1
    assert llmgpu(*TOKENIZE, "-o", "a.bin", "--split", "b=0.5").returncode == 0
    both = replies(folder, "a.bin") + replies(folder, "a-b.bin")
    assert sorted(both.split(b"<|im_end|>")) == sorted(replies(folder).split(b"<|im_end|>"))


def test_what_does_not_go_together(llmgpu: Run, conversations: Path) -> None:
    for options, message in (
        (("--eos", "<|im_end|>"), "--chat takes no special tokens"),
        (("--allowed-special", "all"), "--chat takes no special tokens"),
        (("--decode",), "--chat can't be combined with --decode"),
    ):
        fails(llmgpu(*TOKENIZE, *options), 2, message)
    without = (*TOKENIZE[:-2], "c.jsonl", "--chat-template", "c.jsonl")
    fails(llmgpu(*without), 2, "--chat-template needs --chat")
    lines = (*TOKENIZE, "--line-documents", "-o", "t.bin")
    fails(llmgpu(*lines), 1, "--chat can't be combined with --doc-separator")
    for output, name in (("-", "ids"), ("t.jsonl", "jsonl"), ("t.npy", "npy")):
        message = f"--chat with format {name} would lose which tokens the assistant wrote"
        fails(llmgpu(*TOKENIZE, "-o", output), 2, message)
    fails(llmgpu(*TOKENIZE, "--format", "bin"), 2, "--chat with format bin on a pipe would lose")
    assert b"<|im_start|>" in llmgpu(*TOKENIZE, "--format", "tokens").stdout
    assert llmgpu(*TOKENIZE, "--count").returncode == 0
    fails(llmgpu(*TOKENIZE[:-2], "c.jsonl"), 1, "(conversations: tokenize, count and train take")


def test_conversations_in_another_order(llmgpu: Run, conversations: Path) -> None:
    """Each takes its mask along."""
    assert llmgpu(*TOKENIZE, "-o", "t.bin", "--shuffle", "--seed", "3").returncode == 0
    said = replies(conversations.parent).split(b"<|im_end|>")[:-1]
    assert said != sorted(said, key=lambda text: int(text.split()[1]))
    assert sorted(said) == sorted(b"assistant %d" % k for k in range(40))
    assert llmgpu(*TOKENIZE, "-o", "s.bin", "--shuffle", "--split", "v=0.2").returncode == 0
    both = replies(conversations.parent, "s.bin") + replies(conversations.parent, "s-v.bin")
    assert sorted(both.split(b"<|im_end|>")[:-1]) == sorted(said)


def test_whole_conversations_within_a_limit(llmgpu: Run, conversations: Path) -> None:
    each = len("<|im_start|>user\nuser 0<|im_end|>\n<|im_start|>assistant\nassistant 0<|im_end|>\n")
    for limit, number in ((3 * each, 3), (4 * each - 1, 3), (each - 1, 0)):
        done = llmgpu(*TOKENIZE, "-o", "t.bin", "--limit", str(limit), "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["documents"] == number
        said = replies(conversations.parent)
        assert said == b"".join(b"assistant %d<|im_end|>" % k for k in range(number))
    both = (*TOKENIZE, "r.jsonl", "-o", "t.bin", "--json", "--limit", str(41 * each))
    shutil.copy(conversations, conversations.parent / "r.jsonl")
    assert json.loads(llmgpu(*both).stdout)["documents"] == 40


def test_conversations_of_a_table(llmgpu: Run, conversations: Path) -> None:
    """Rows are what lines are; the types of a field may be those of datasets."""
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [json.loads(line)["messages"] for line in conversations.read_text().splitlines()]
    rows[1][0]["name"] = "x"  # a field that the others lack
    table = arrow.table({"messages": [*rows, None], "other": [1] * 41})
    parquet.write_table(table, conversations.parent / "c.parquet", row_group_size=7)
    assert llmgpu(*TOKENIZE, "-o", "t.bin").returncode == 0
    command = (*TOKENIZE[:-1], "c.parquet", "-o", "p.bin")
    done = llmgpu(*command)
    assert done.returncode == 0 and b"1 row without text" in done.stderr, done.stderr
    for ending in ("", ".mask.npy"):
        made, expected = (conversations.parent / f"{name}.bin{ending}" for name in "pt")
        assert made.read_bytes() == expected.read_bytes()
    fails(llmgpu(*command, "--text-field", "other"), 1, "'other' is not a list of messages")
    bad = arrow.table({"messages": [[{"role": "nobody", "content": "x"}]]})
    parquet.write_table(bad, conversations.parent / "c.parquet")
    fails(llmgpu(*command), 1, "c.parquet, row 1, message 1: unknown role 'nobody'")
    # The same rows as `datasets` saves them.
    ipc = pytest.importorskip("pyarrow.ipc")
    command = (*TOKENIZE[:-1], "c.arrow", "-o", "a.bin")
    for make in (ipc.new_stream, ipc.new_file):
        with make(conversations.parent / "c.arrow", table.schema) as writer:
            writer.write_table(table, max_chunksize=7)
        done = llmgpu(*command)
        assert done.returncode == 0 and b"1 row without text" in done.stderr, done.stderr
        for ending in ("", ".mask.npy"):
            made, expected = (conversations.parent / f"{name}.bin{ending}" for name in "at")
            assert made.read_bytes() == expected.read_bytes()
    fails(llmgpu(*command, "--text-field", "other"), 1, "'other' is not a list of messages")


def test_tools_of_lines_and_rows(llmgpu: Run, conversations: Path) -> None:
    """The template is told of them; the plain one has no place for any."""
    pytest.importorskip("jinja2")
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    folder = conversations.parent
    messages = [[{"role": "user", "content": f"user {k}"}] for k in range(3)]
    tools = [[{"name": "f", "takes": {"x": "int"}}, {"name": "g", "takes": None}], [], None]
    rows = [{"messages": m, "tools": t} for m, t in zip(messages, tools, strict=True)]
    conversations.write_text("".join(json.dumps(row) + "\n" for row in rows))
    parquet.write_table(arrow.Table.from_pylist(rows), folder / "c.parquet", row_group_size=2)
    (folder / "t.jinja").write_text("{{ messages[0].content }}{{ tools | tojson }};")
    files = (conversations.name, "c.parquet")
    for name in files:
        command = (*TOKENIZE[:-1], name, "--chat-template", "t.jinja", "-o", "t.bin")
        assert llmgpu(*command).returncode == 0
        text = llmgpu("tokenize", "--vocab", "v.bin", "--decode", "t.bin", "-q").stdout.decode()
        expected = "".join(f"user {k}{json.dumps(each)};" for k, each in enumerate(tools))
        assert text == expected
        done = llmgpu(*TOKENIZE[:-1], name, "-o", "t.bin")
        fails(done, 1, f"{name}, {'row' if name == files[1] else 'line'} 1: the plain template")
    texts = arrow.table({"messages": messages, "tools": ["[]"] * 3})
    parquet.write_table(texts, folder / "c.parquet")
    fails(llmgpu(*command), 1, "c.parquet, row 1: the tools are not a list but a string")


def test_a_model_answers(llmgpu: Run, conversations: Path) -> None:
    folder = conversations.parent
    lines = [
        json.dumps({"messages": [dict(role="user", content=a), dict(role="assistant", content=b)]})
        for a, b in (("ping", "a b"), ("tick", "c d"))
    ]
    (folder / "c.jsonl").write_text("\n".join(lines * 20))
    sizes = ("--dim", "32", "--layers", "1", "--heads", "2", "--seq-len", "32")
    how = ("--steps", "120", "--lr", "2e-2", "--vocab", "v.bin", "--device", "cpu")
    assert llmgpu("train", "c.jsonl", "--chat", "-o", "run", *sizes, *how).returncode == 0
    end = Tokenizer.load(folder / "v.bin").token_to_id("<|im_end|>")
    kept = load_checkpoint(folder / "run")
    assert kept.stop_ids == {end}
    assert (
        "<|im_end|>"
        in json.loads((kept.folder / "tokenizer_config.json").read_bytes())["chat_template"]
    )
    answer = ("generate", "run", "--chat", "--temperature", "0", "--device", "cpu", "-q")
    assert llmgpu(*answer, "-p", "ping").stdout == b"a b\n"
    assert llmgpu(*answer, stdin=b"tick\n").stdout == b"c d\n"
    asked = [json.dumps({"m": [dict(role="user", content=text)]}) for text in ("ping", "tick")]
    for content, options in (("ping\ntick", ()), ("\n".join(asked), ("--prompt-field", "m"))):
        done = llmgpu(*answer, "--prompts", "-", *options, stdin=content.encode())
        assert [json.loads(line)["text"] for line in done.stdout.splitlines()] == ["a b", "c d"]
    (folder / "upper.jinja").write_text(
        "{{ '<|im_start|>user\n' + (messages[0].content | lower) }}"
        "{{ '<|im_end|>\n<|im_start|>assistant\n' }}"
    )
    other = ("--chat-template", "upper.jinja", "-p", "PING")
    if importlib.util.find_spec("jinja2"):
        assert llmgpu(*answer, *other).stdout == b"a b\n"
    fails(llmgpu("generate", "run", *other), 2, "--chat-template needs --chat")
    fails(llmgpu(*answer), 2, "--chat needs --prompt or --prompts")
    wrong = llmgpu(
        *answer, "--prompts", "-", "--prompt-field", "m", stdin=b'{"m": [{"role": "user"}]}'
    )
    fails(wrong, 1, "standard input, line 1, message 1: no content")


def test_a_model_learns_the_replies_alone(llmgpu: Run, conversations: Path) -> None:
    pytest.importorskip("jinja2")
    folder = conversations.parent
    (folder / "t.jinja").write_text(TEMPLATE)
    options = (*SIZES, *STEPS, "--steps", "4", "--device", "cpu", "--vocab", "v.bin")
    chat = ("--chat", "--chat-template", "t.jinja")
    done = llmgpu("train", "c.jsonl", "-o", "run", *options, *chat)
    assert done.returncode == 0, done.stderr
    kept = load_checkpoint(folder / "run")
    assert kept.vocabulary.chat is not None and kept.vocabulary.chat.source == TEMPLATE
    config = json.loads((kept.folder / "tokenizer_config.json").read_bytes())
    assert config["chat_template"] == TEMPLATE
    assert llmgpu(*TOKENIZE, *chat[1:], "-o", "t.bin").returncode == 0
    (folder / "data").mkdir()
    for file in folder.glob("t.bin*"):
        shutil.copy(file, folder / "data")
    for name, source in (("from-file", "t.bin"), ("from-folder", "data")):
        assert llmgpu("train", source, "-o", name, *options).returncode == 0
        facts = [read_log(folder / run / "log.jsonl").facts for run in ("run", name)]
        assert facts[0]["loss_mask_crc32"] == facts[1]["loss_mask_crc32"]
        for tensor in ("model.norm.weight", "model.embed_tokens.weight"):
            other = load_checkpoint(folder / name).weights[tensor]
            np.testing.assert_array_equal(kept.weights[tensor], other)
    resumed = llmgpu("train", "-o", "run", "--resume", "--steps", "5")
    assert resumed.returncode == 0, resumed.stderr
    (folder / "c.jsonl").write_text('{"messages": [{"role": "user", "content": "a b c d e f"}]}\n')
    fails(llmgpu("train", "c.jsonl", "-o", "none", *options, *chat), 1, "no token counts")
