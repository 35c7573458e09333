"""The longest match as a vocabulary's own rule: trained, tokenized, in runs, and not exported."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from llmgpu import Tokenizer
from llmgpu.bpe.interchange.formats import WRITERS
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.tokens.bin import read_side_file
from tests.cli.conftest import Run, fails
from tests.conftest import require_adapter
from tests.harness.arguments import overridden
from tests.reference.bpe import greedy

RUN = ("-o", "run", "--dim", "32", "--layers", "1", "--heads", "2", "--ffn-dim", "48")
TRAIN = (*RUN, "--seq-len", "16", "--batch-size", "4", "--device", "cpu")


def greedy_ids(vocabulary: Vocabulary, text: bytes) -> list[int]:
    ordinary = {vocabulary.tokens[i]: i for i in vocabulary.ordinary_ids.tolist()}
    return greedy(text, ordinary, vocabulary.pattern)


def succeed(llmgpu: Run, *arguments: str) -> bytes:
    done = llmgpu(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_vocabulary_is_trained_with_the_rule(
    llmgpu: Run, corpus: Path, vocab: Path, device_name: str
) -> None:
    options = ("--vocab-size", "400", "--match", "greedy", "--device", device_name, "--json")
    summary = json.loads(succeed(llmgpu, "bpe-train", "corpus.txt", "-o", "g.bin", *options))
    made = Vocabulary.load(corpus.parent / "g.bin")
    assert summary["match"] == made.match == "greedy" and made.match_facts["match"] == "greedy"
    same = replace(Vocabulary.load(vocab), match="greedy", training=made.training)
    assert made.to_bytes() == same.to_bytes()
    text = corpus.read_bytes()
    succeed(llmgpu, "tokenize", "corpus.txt", "--vocab", "g.bin", "--device", device_name, *BIN)
    ids = np.fromfile(corpus.parent / "ids.bin", np.uint16)
    assert ids.tolist() == greedy_ids(made, text)
    tokenizer = Tokenizer.load(corpus.parent / "g.bin", "cpu")
    assert tokenizer.match == "greedy" and tokenizer.encode(text).tolist() == ids.tolist()
    merged = Tokenizer.load(vocab, "cpu")
    assert merged.match == "bpe" and merged.encode(text).tolist() != ids.tolist()
    assert Tokenizer.load(vocab, "cpu", match="greedy").encode(text).tolist() == ids.tolist()


BIN = ("--format", "bin", "-o", "ids.bin", "-q")


def test_token_files_name_the_rule_and_the_vocabulary(
    llmgpu: Run, corpus: Path, vocab: Path
) -> None:
    own = Vocabulary.load(vocab)
    tokenize = ("tokenize", "corpus.txt", "--vocab", "v.bin", "--device", "cpu", *BIN)
    succeed(llmgpu, *tokenize)
    assert not {"match", "vocabulary"} & read_side_file(corpus.parent / "ids.bin").keys()
    succeed(llmgpu, *tokenize, "--match", "greedy")
    side = read_side_file(corpus.parent / "ids.bin")
    assert (side["match"], side["vocabulary"]) == ("greedy", own.fingerprint)
    assert side["fingerprint"] == own.with_match("greedy").fingerprint
    decode = ("tokenize", "--decode", "--format", "bin", "ids.bin", "--vocab")
    assert succeed(llmgpu, *decode, "v.bin") == corpus.read_bytes()
    own.with_match("greedy").save(corpus.parent / "g.bin")
    assert succeed(llmgpu, *decode, "g.bin") == corpus.read_bytes()
    replace(own, pattern="none", expression=r"[\x00-\xff]+").save(corpus.parent / "other.bin")
    fails(llmgpu(*decode, "other.bin"), 1, "ids.bin was made with vocabulary")
    succeed(llmgpu, *tokenize, "--match", "greedy", "--shard-tokens", "500")
    manifest = json.loads((corpus.parent / "ids.json").read_text())
    assert manifest["match"] == "greedy"
    assert read_side_file(corpus.parent / "ids-000000.bin")["vocabulary"] == own.fingerprint


def test_a_run_carries_the_rule(llmgpu: Run, corpus: Path, vocab: Path) -> None:
    own = Vocabulary.load(vocab)
    for rule in ("greedy", "bpe"):
        options = ("--format", "bin", "-o", f"{rule}.bin", "--match", rule, "--device", "cpu")
        succeed(llmgpu, "tokenize", "corpus.txt", "--vocab", "v.bin", "-q", *options)
    train = ("train", "--vocab", "v.bin", *TRAIN)
    succeed(llmgpu, *train, "greedy.bin", "--steps", "2")
    kept = Vocabulary.load(corpus.parent / "run" / "step-00000002" / "vocabulary.bin")
    assert kept.fingerprint == own.with_match("greedy").fingerprint
    succeed(llmgpu, *train, "greedy.bin", "--steps", "4", "--resume")
    fails(llmgpu(*train, "bpe.bin", "--steps", "6", "--resume"), 1, "started with other tokens")
    mixed = llmgpu(*overridden(*train, "-o", "mixed"), "greedy.bin", "bpe.bin", "--steps", "2")
    fails(mixed, 1, "bpe.bin with --match bpe: use one rule")
    prompt = corpus.read_text()[:200]
    arguments = ("generate", "run", "--prompt", prompt, "--max-new-tokens", "1", "--json")
    done = llmgpu(*arguments, "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["prompt_ids"] == greedy_ids(kept, prompt.encode())


@pytest.mark.parametrize("name", WRITERS)
def test_tools_that_merge_do_not_get_it(llmgpu: Run, vocab: Path, name: str) -> None:
    gpt2 = replace(Vocabulary.load(vocab), pattern="none", expression=r"[\x00-\xff]+")
    gpt2.with_match("greedy").save(vocab)
    fails(
        llmgpu("export", "v.bin", "--to", name, "-o", "out"),
        1,
        "would give other id",
    )
    assert [path.name for path in vocab.parent.iterdir() if path.name == "out"] == []


def test_what_does_not_go_together(llmgpu: Run, corpus: Path, vocab: Path) -> None:
    seeded = ("bpe-train", "corpus.txt", "--seed-vocab", "v.bin", "--vocab-size", "410")
    fails(llmgpu(*seeded, "--match", "greedy", "-o", "x.bin"), 1, "of the seed vocabulary is 'bpe'")
    done = llmgpu(*seeded, "--match", "bpe", "-o", "x.bin", "--device", "cpu")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_recount_engine_makes_the_same_vocabulary(llmgpu: Run, corpus: Path) -> None:
    require_adapter()
    options = ("bpe-train", "corpus.txt", "--vocab-size", "290", "-q")
    succeed(llmgpu, *options, "-o", "v.bin", "--device", "cpu")
    recount = (*options, "-o", "r.bin", "--device", "gpu", "--engine", "recount", "--force")
    for rule in ("bpe", "greedy"):
        succeed(llmgpu, *recount, "--match", rule)
        made = Vocabulary.load(corpus.parent / "r.bin")
        expected = Vocabulary.load(corpus.parent / "v.bin").with_match(rule)
        assert made.fingerprint == expected.fingerprint
        assert made.match == rule
