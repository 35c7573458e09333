"""Calls that do a part of a job, in other processes: the files of the command line."""

from __future__ import annotations

import json
import multiprocessing
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import llmgpu
from llmgpu import Tokenizer, count_words, merge_counts, tokenize_part
from llmgpu.bpe.words.counts_file import load_counts, save_counts
from llmgpu.bpe.words.distinct_words import WordCounts, words_of
from llmgpu.cli import cli
from llmgpu.errors import InputError, OutputError
from llmgpu.text.corpus import CorpusOptions
from llmgpu.tokens.manifest import merge_shards

PARTS = 3


def run_cli(*arguments: str) -> None:
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0, done.output


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.txt").write_text("low lower lowest, new newer newest\n" * 200)
    lines = (json.dumps({"text": f"wide wider widest <|end|> {i}"}) for i in range(300))
    (folder / "b.jsonl").write_text("\n".join(lines))
    return "data"


def in_processes(calls: list[Callable[[], dict[str, Any]]]) -> list[dict[str, Any]]:
    """Send the pickled calls to processes that were started without anything of this one."""
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        return pool.map(_call, [pickle.dumps(call) for call in calls])


def _call(pickled: bytes) -> dict[str, Any]:
    done: dict[str, Any] = pickle.loads(pickled)()
    return done


def test_calls_are_pickled_by_name() -> None:
    for name in llmgpu.__all__:
        assert pickle.loads(pickle.dumps(getattr(llmgpu, name))) == getattr(llmgpu, name)


def test_counts_of_parts_are_those_of_the_whole(corpus: str) -> None:
    common: dict[str, Any] = {"special_tokens": ["<|end|>"], "device": "cpu"}
    numbers = range(1, PARTS + 1)
    done = in_processes(
        [partial(count_words, corpus, f"{k}.counts", part=(k, PARTS), **common) for k in numbers]
    )
    names = [each["output"] for each in done]
    assert names == [f"{k}.counts" for k in numbers]
    merged = merge_counts(names, "all.counts")
    whole = count_words(corpus, "whole.counts", **common)
    assert merged == whole | {"output": "all.counts"}
    assert sum(each["documents"] for each in done) == whole["documents"] == 601
    by_hand = ["bpe-train", corpus, "--counts-only", "--special-token", "<|end|>", "-q"]
    run_cli(*by_hand, "--device", "cpu", "--save-counts", "by-hand.counts")
    run_cli(*by_hand, "--device", "cpu", "--save-counts", "2-by-hand.counts", "--part", "2/3")
    contents = {name: Path(name).read_bytes() for name in ("all.counts", "by-hand.counts")}
    assert len({*contents.values(), Path("whole.counts").read_bytes()}) == 1
    assert Path("2.counts").read_bytes() == Path("2-by-hand.counts").read_bytes()
    trained = Tokenizer.train(counts=names, vocab_size=280, special_tokens=["<|end|>"])
    expected = Tokenizer.train(corpus, vocab_size=280, special_tokens=["<|end|>"], device="cpu")
    assert trained == expected
    weighted = merge_counts(names, "weighted.counts", weights=[1, 2, 1])
    assert weighted["documents"] == 601 + done[1]["documents"]


def test_shards_of_parts_are_those_of_the_command(corpus: str) -> None:
    Tokenizer.train(corpus, vocab_size=280, device="cpu").save("v.bin")
    options: dict[str, Any] = {"shard_tokens": 512, "device": "cpu"}
    numbers = range(1, PARTS + 1)
    calls = [
        partial(tokenize_part, "v.bin", corpus, f"t{k}.bin", (k, PARTS), **options) for k in numbers
    ]
    done = in_processes(calls)
    by_hand = ["tokenize", corpus, "--vocab", "v.bin", "--shard-tokens", "512", "-q"]
    for k in numbers:
        run_cli(*by_hand, "--device", "cpu", "-o", f"h{k}.bin", "--part", f"{k}/{PARTS}")
        shards = sorted(Path().glob(f"t{k}-*.bin"))
        assert shards
        for shard in shards:
            assert shard.read_bytes() == Path("h" + shard.name[1:]).read_bytes()
        assert (
            json.loads(Path(f"t{k}.json").read_text())["run_sha256"]
            == (json.loads(Path(f"h{k}.json").read_text())["run_sha256"])
        )
    merged = merge_shards([each["manifest"] for each in done], "t.json")
    assert merged["count"] == sum(each["count"] for each in done)
    before = {path: path.stat().st_mtime_ns for path in Path().glob("t2*")}
    assert calls[1]() == done[1]  # it is finished
    assert {path: path.stat().st_mtime_ns for path in Path().glob("t2*")} == before


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (partial(count_words, "data", "c", part=(4, 3)), InputError, "there is no part 4/3"),
        (
            partial(count_words, "data", "c", part=(1, 3), reading=CorpusOptions(limit=9)),
            InputError,
            "part can't be combined with limit",
        ),
        (partial(count_words, "data", "data/a.txt"), OutputError, "is an input"),
        (partial(merge_counts, [], "c"), InputError, "no word counts to add up"),
        (partial(merge_counts, ["a"], "c", weights=[0]), InputError, "give each 1 or more"),
        (
            partial(merge_counts, ["a"], "c", weights=[2.5]),  # type: ignore[list-item]
            TypeError,
            "as an integer",
        ),
        (partial(count_words, "data", "c", special_tokens="ab"), TypeError, "a list of texts"),
        (partial(Tokenizer.train, vocab_size=300), InputError, "give either corpus or counts"),
        (partial(Tokenizer.train, vocab_size=300, counts=[]), InputError, "at least one file"),
    ],
)
def test_what_can_not_be_done(
    corpus: str, call: Callable[[], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call()


def test_counts_that_do_not_go_with_the_options(corpus: str) -> None:
    count_words(corpus, "c.counts", pattern="cl100k", device="cpu")
    assert "pattern cl100k" in repr(Tokenizer.train(counts="c.counts", vocab_size=270))
    with pytest.raises(InputError, match="were cut by pattern 'cl100k', not by 'gpt2'"):
        Tokenizer.train(counts="c.counts", vocab_size=270, pattern="gpt2")
    with pytest.raises(InputError, match="special token '<s>' was counted as ordinary text"):
        Tokenizer.train(counts="c.counts", vocab_size=270, special_tokens=["<s>"])


def test_a_part_does_not_replace_another(corpus: str) -> None:
    Tokenizer.train(corpus, vocab_size=280, device="cpu").save("v.bin")
    own = partial(tokenize_part, "v.bin", corpus, "t.bin", shard_tokens=512, device="cpu")
    done = own(part=(1, 3))
    assert own(part=(1, 3), shard_tokens=np.int64(512)) == done  # type: ignore[arg-type]
    with pytest.raises(OutputError, match=r"t.json lists part '1/3', which part 2/3 would replace"):
        own(part=(2, 3))


def test_counts_beyond_32_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In 32 bits, the sums of the first word would be those of the rarest."""
    monkeypatch.chdir(tmp_path)
    half = (1 << 31) + 1
    counts = {b"ab": half, b"cd": 1000, b"ef": (1 << 40) + 7, b"ef cd": 2}
    words = words_of(counts, counts.values())
    save_counts("c.counts", WordCounts(words, 3, "class"))
    merge_counts(["c.counts", "c.counts"], "two.counts", weights=[1, 1])
    merge_counts(["c.counts"], "two.parquet", weights=[np.int64(2)])  # type: ignore[list-item]
    for name in ("two.counts", "two.parquet"):
        read = load_counts(name, "class")
        assert {read.words.spell(k): int(n) for k, n in enumerate(read.words.counts)} == {
            b"ab": 2 * half,
            b"cd": 2000,
            b"ef": (1 << 41) + 14,
            b"ef cd": 4,
        }
    trained = Tokenizer.train(counts=["c.counts", "c.counts"], vocab_size=259, device="cpu")
    assert [trained.id_to_token(k) for k in (256, 257, 258)] == ["ef", "ab", "cd"]
