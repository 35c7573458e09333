"""``llmgpu generate``: prompts of files and pipes, in batches, and where texts end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.cli.test_train import TRAIN

GENERATE = ("generate", "run", "--device", "cpu", "--max-new-tokens", "8", "--ignore-eos")


@pytest.fixture
def trained(llmgpu: Run, corpus: Path, vocab: Path) -> Path:
    assert llmgpu(*TRAIN, "--steps", "2", "--device", "cpu").returncode == 0
    return corpus.parent


def lines_of(stdout: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stdout.splitlines()]


def test_prompts_in_batches_are_those_alone(llmgpu: Run, trained: Path) -> None:
    texts = ["the", "a b", "the end of", "x", "of the"]
    (trained / "p.txt").write_text("\n".join(texts) + "\n\n")
    (trained / "p.jsonl").write_text(
        "".join(json.dumps({"q": text, "id": k}) + "\n" for k, text in enumerate(texts))
    )
    options = ("--temperature", "0", "--logprobs")
    done = llmgpu(*GENERATE, *options, "--prompts", "p.txt", "--batch-size", "2")
    assert done.returncode == 0, done.stderr
    found = lines_of(done.stdout)
    assert [each["prompt"] for each in found] == texts
    for each in found:
        assert (len(each["ids"]), len(each["logprobs"]), each["finish"]) == (8, 8, "length")
        assert max(each["logprobs"]) <= 0
    alone = llmgpu(*GENERATE, *options, "--prompt", "the end of", "--json")
    summary = json.loads(alone.stdout)
    assert (summary["prompt"], summary["ids"]) == ("the end of", found[2]["ids"])
    shown = llmgpu(*GENERATE, *options[:-1], "--prompt", "the end of")
    assert shown.stdout.decode() == f"the end of{summary['text']}\n"
    of_objects = ("--prompts", "p.jsonl", "--prompt-field", "q", "--batch-size", "2")
    of_json = llmgpu(*GENERATE, *options, *of_objects, "--json")
    summary = json.loads(of_json.stderr.splitlines()[-1])
    assert (summary["prompts"], summary["tokens"]) == (5, 40)
    assert of_json.returncode == 0, of_json.stderr
    assert lines_of(of_json.stdout)[3] == {"id": 3, **found[3]}
    piped = llmgpu(*GENERATE, "--temperature", "0", "--prompts", "-", stdin=b"the\nx\n")
    assert [each["ids"] for each in lines_of(piped.stdout)] == [found[0]["ids"], found[3]["ids"]]


def test_weights_in_half_precision_change_little(llmgpu: Run, trained: Path) -> None:
    found = []
    for precision in ("f32", "f16"):
        options = ("--temperature", "0", "--logprobs", "--json", "--precision", precision)
        done = llmgpu(*GENERATE, *options, "--prompt", "the end")
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout)["logprobs"][0])
    assert found[0] != found[1]
    assert abs(found[0] - found[1]) < 0.02


def test_a_text_ends_before_a_string(llmgpu: Run, trained: Path) -> None:
    whole = llmgpu(*GENERATE, "--prompt", "the", "--seed", "5", "--quiet")
    text = whole.stdout.decode().removesuffix("\n").removeprefix("the")
    stop = text[3:5]
    stopping = (*GENERATE, "--prompt", "the", "--seed", "5", "--stop", stop)
    expected = text[: text.index(stop)]
    assert llmgpu(*stopping).stdout.decode() == f"the{expected}\n"
    ended = llmgpu(*stopping, "--json")
    assert ended.returncode == 0, ended.stderr
    summary = json.loads(ended.stdout)
    assert (summary["text"], summary["finish"]) == (expected, "stop")
    (trained / "p.txt").write_text("the\n")
    of_file = llmgpu(*GENERATE, "--prompts", "p.txt", "--seed", "5", "--stop", stop)
    assert lines_of(of_file.stdout)[0]["text"] == expected


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--prompts", "none.txt"), 1, "can't read none.txt"),
        (("--prompts", "empty.txt"), 1, "empty.txt has no prompts"),
        (("--prompts", "bad.jsonl"), 1, 'bad.jsonl, line 2: no text in "prompt"'),
        (("--prompts", "bad.jsonl", "--prompt", "x"), 2, "give --prompt or --prompts, not both"),
        (("--prompt-field", "q"), 2, "--prompt-field needs --prompts FILE"),
        (("--logprobs",), 2, "--logprobs is for --prompts and --json"),
        (("--stop", ""), 2, "--stop must not be empty"),
        (("--repetition-penalty", "0.5"), 1, "--repetition-penalty is 0.5"),
    ],
)
def test_what_cannot_work_is_one_clear_line(
    llmgpu: Run, tmp_path: Path, options: tuple[str, ...], code: int, message: str
) -> None:
    (tmp_path / "empty.txt").write_text("\n \n")
    (tmp_path / "bad.jsonl").write_text('{"prompt": "a"}\n{"text": "b"}\n')
    done = llmgpu(*GENERATE, *options)
    assert done.returncode == code and message in done.stderr.decode()
