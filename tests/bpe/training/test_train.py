"""Training through a corpus: the same file from every backend, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgpu.backend import NUMPY, Backend
from llmgpu.bpe.training import batched_gpu, merge_host
from llmgpu.bpe.training.checkpoint import Checkpoint
from llmgpu.bpe.training.options import TrainingOptions
from llmgpu.bpe.training.symbols import Merges
from llmgpu.bpe.training.train import Training, train_vocabulary
from llmgpu.bpe.vocabulary.building import byte_vocabulary
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.bpe.words.counts_file import save_counts
from llmgpu.errors import CapacityError, InputError, LlmgpuError
from llmgpu.gpu.adapters import OpenedAdapter, select_adapter
from llmgpu.gpu.device import Device
from llmgpu.text.corpus import corpus_from_bytes
from tests.bpe.plain.test_recount_gpu import words
from tests.bpe.training.test_batched_numpy import DOCUMENTS, PATTERNS, TIES
from tests.bpe.vocabularies import build_vocabulary
from tests.conftest import examples, require_adapter
from tests.reference import bpe as reference


@pytest.mark.parametrize(
    ("pattern", "tie"),
    [
        ("class", "bytes"),
        ("none", "hf"),
        pytest.param("class", "hf", marks=pytest.mark.slow),
        pytest.param("none", "bytes", marks=pytest.mark.slow),
    ],
)
def test_every_backend_makes_the_same_file(any_device: Device, pattern: str, tie: str) -> None:
    documents = [words(1, 1_000, 300), b"", words(2, 1_000, 300), b"\x00\xff" * 300]
    adapter = Backend(any_device, "the adapter")
    files = set()
    for backend, engine in ((NUMPY, "batched"), (adapter, "batched"), (adapter, "recount")):
        options = TrainingOptions(
            290, pattern=pattern, tie=tie, special_tokens=("<|end|>",), engine=engine
        )
        result = train_vocabulary(corpus_from_bytes(documents), options, backend)
        files.add(result.vocabulary.to_bytes())
    assert len(files) == 1


@pytest.mark.parametrize("size", [1 << 16, 1 << 23], ids=["at the start", "as buffers grow"])
def test_what_does_not_fit_the_device_is_merged_on_the_cpu(size: int, tmp_path: Path) -> None:
    require_adapter()
    options = TrainingOptions(280)
    counts = Training(options, NUMPY).count(corpus_from_bytes(b"a" * 300_000))
    expected = train_vocabulary(counts, options, NUMPY)
    small = Device(
        OpenedAdapter(select_adapter(), limits={"max-storage-buffer-binding-size": size})
    )
    checkpoint = Checkpoint.begin(tmp_path / "run", {})
    result = train_vocabulary(
        counts, options, Backend(small, "a small device"), checkpoint=checkpoint
    )
    assert result.vocabulary.to_bytes() == expected.vocabulary.to_bytes()
    assert [note.split(", because ")[0] for note in result.notes] == ["merged on the CPU"]
    assert checkpoint.read_merges()[1].tolist() == expected.merge_counts.tolist()
    checkpoint.remove()


@pytest.mark.parametrize("before", [0, 3, 8])
def test_merges_made_again_are_logged_once(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    """The device runs out of memory after some merges; the CPU logs its merges by fours."""
    monkeypatch.setattr(merge_host, "SLICE_MERGES", 4)
    train = batched_gpu.train

    def fail(*given: Any) -> Merges:
        *others, task = given
        train(*others, replace(task, merges=before))
        raise CapacityError("it has no more memory")

    monkeypatch.setattr(batched_gpu, "train", fail)
    checkpoint = Checkpoint.begin(tmp_path / "run", {})
    options, adapter = TrainingOptions(280), Backend(device, "the adapter")
    made = train_vocabulary(
        corpus_from_bytes(words(1, 1_000, 300)), options, adapter, checkpoint=checkpoint
    )
    assert made.notes == ("merged on the CPU, because it has no more memory",)
    assert checkpoint.read_merges()[1].tolist() == made.merge_counts.tolist()
    checkpoint.remove()


def test_every_engine_takes_the_version_of_unicode(device: Device) -> None:
    text = "\u0295Ali \u0295Umar x\u0558y \u4e2d\U000323b0 ".encode() * 20
    made: dict[str, set[bytes]] = {"16.0": set(), "18.0": set()}
    adapter = Backend(device, "the adapter")
    for unicode, files in made.items():
        for backend, engine in ((NUMPY, "batched"), (adapter, "batched"), (adapter, "recount")):
            options = TrainingOptions(280, "o200k", engine=engine, unicode=unicode)
            vocabulary = train_vocabulary(corpus_from_bytes(text), options, backend).vocabulary
            assert vocabulary.unicode == unicode
            files.add(vocabulary.to_bytes())
    (older,), (newer,) = made.values()
    crossing = "x\u0558y".encode()
    assert any(crossing in token for token in Vocabulary.from_bytes(newer).tokens)
    assert not any(crossing in token for token in Vocabulary.from_bytes(older).tokens)


def test_training_facts(device: Device) -> None:
    text = words(3, 1_000, 200)
    result = train_vocabulary(
        corpus_from_bytes([text, text]), TrainingOptions(300), Backend(device, "the adapter")
    )
    facts = result.vocabulary.training
    assert (facts["text_bytes"], facts["documents"]) == (2 * len(text), 2)
    assert result.stop_reason is None
    assert len(result.merge_counts) == 44 and (result.merge_counts[:-1] > 0).all()


@pytest.mark.parametrize("on_gpu", [False, True])
def test_a_corpus_that_ends_early_says_so(device: Device, on_gpu: bool) -> None:
    backend = Backend(device, "the adapter") if on_gpu else NUMPY
    result = train_vocabulary(corpus_from_bytes(b"abcabcab"), TrainingOptions(1_000), backend)
    assert result.vocabulary.size == 258
    assert result.stop_reason is not None and "after 2 merges" in result.stop_reason


@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("documents", [[b""], [b"", b""]])
def test_an_empty_corpus_is_refused(device: Device, on_gpu: bool, documents: list[bytes]) -> None:
    backend = Backend(device, "the adapter") if on_gpu else NUMPY
    with pytest.raises(InputError, match="the corpus is empty"):
        train_vocabulary(corpus_from_bytes(documents), TrainingOptions(300), backend)


def test_a_vocabulary_of_bytes_alone(device: Device) -> None:
    for backend in (NUMPY, Backend(device, "the adapter")):
        result = train_vocabulary(corpus_from_bytes(b"aaaa"), TrainingOptions(256), backend)
        assert (result.vocabulary.size, result.stop_reason) == (256, None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"vocab_size": 255}, "the vocabulary size is 255; it must be from 256"),
        ({"vocab_size": 256, "special_tokens": ("a",)}, "from 257"),
        ({"vocab_size": 1 << 21}, "to 1048576"),
        ({"vocab_size": 300, "min_frequency": -1}, "the minimum frequency is -1"),
        ({"vocab_size": 300, "tie": "random"}, "unknown tie rule 'random'"),
        ({"vocab_size": 300, "pattern": "gpt5"}, "gpt5"),
        ({"vocab_size": 300, "special_tokens": ("x", "x")}, "special tokens must differ"),
        (
            {"vocab_size": 300, "max_token_length": 0},
            "maximum token length is 0 bytes; use 1 or more",
        ),
        ({"vocab_size": 300, "smaller_sizes": (301,)}, "the smaller size 301 is more than 300"),
        ({"vocab_size": 300, "smaller_sizes": (255,)}, "the vocabulary size is 255"),
        ({"vocab_size": 300, "engine": "steam"}, "unknown engine 'steam'"),
    ],
)
def test_options_out_of_range(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(LlmgpuError, match=message):
        TrainingOptions(**arguments)  # type: ignore[arg-type]


@st.composite
def seeds(draw: st.DrawFn) -> Vocabulary:
    """A vocabulary with trained merges, tokens that no merge makes, and special ones, in any order.

    Parts come before what they make.
    """
    tie = draw(TIES)
    pattern = draw(PATTERNS)
    merges = reference.train(draw(DOCUMENTS), draw(st.integers(0, 12)), pattern, tie, 1)
    spelled = reference.spell(merges)[256:]
    others = draw(st.lists(st.lists(st.sampled_from(b"abc "), min_size=2, max_size=5), max_size=8))
    unmade = [bytes(other) for other in others]
    special = draw(st.sampled_from([[], ["<s>"], ["<s>", "</s>"]]))
    first = draw(st.integers(0, len(special)))
    tokens = [text.encode() for text in special[:first]]
    shift = len(tokens)
    tokens += [bytes([value]) for value in range(256)]
    ids = list(range(shift, shift + 256))  # of the sequential trainer's ids
    for token in spelled:
        while unmade and draw(st.booleans()):
            tokens.append(unmade.pop())
        ids.append(len(tokens))
        tokens.append(token)
    tokens += [*unmade, *(text.encode() for text in special[first:])]
    triples = [(ids[left], ids[right], ids[256 + k]) for k, (left, right) in enumerate(merges)]
    return replace(
        byte_vocabulary(pattern, tie).with_match("greedy"),
        tokens=tuple(tokens),
        merges=np.array(triples, np.uint32).reshape(-1, 3),
        special_tokens={text: tokens.index(text.encode()) for text in special},
    )


@st.composite
def seeds_to_reach(draw: st.DrawFn) -> tuple[Vocabulary, list[bytes]]:
    """Documents, and a vocabulary with tokens that merging of them is likely to reach."""
    documents = draw(
        st.lists(
            st.lists(st.sampled_from(b"ab"), min_size=10, max_size=40).map(bytes),
            min_size=1,
            max_size=3,
        )
    )
    tie = draw(TIES)
    spelled = reference.spell(reference.train(documents, 12, "none", tie, 1))[256:]
    others = [b"aab", b"bba", b"aaaa"]
    tokens = draw(st.lists(st.sampled_from([*spelled, *others]), max_size=6, unique=True))
    start = byte_vocabulary("none", tie).with_match("greedy")
    return replace(start, tokens=(*start.tokens, *tokens)), documents


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(200))
@given(
    seeded=st.one_of(st.tuples(seeds(), DOCUMENTS), seeds_to_reach()),
    other_pattern=st.none() | PATTERNS,
    new_tokens=st.integers(0, 25),
    min_frequency=st.sampled_from([0, 1, 2, 5]),
    max_token_length=st.sampled_from([None, None, 1, 2, 3, 5]),
    special_tokens=st.sampled_from([(), ("<new>",)]),
)
def test_training_goes_on_from_a_seed(
    seeded: tuple[Vocabulary, list[bytes]],
    other_pattern: str | None,
    new_tokens: int,
    min_frequency: int,
    max_token_length: int | None,
    special_tokens: tuple[str, ...],
) -> None:
    seed, documents = seeded
    documents = [*documents, b"a"]
    pattern = other_pattern or seed.pattern
    options = TrainingOptions(
        seed.size + new_tokens + len(special_tokens),
        pattern=pattern,
        tie=seed.tie,
        min_frequency=min_frequency,
        max_token_length=max_token_length,
        special_tokens=special_tokens,
        seed=seed,
    )
    result = train_vocabulary(corpus_from_bytes(documents), options, NUMPY)
    learned, symbols = reference.extend(
        documents,
        seed.tokens,
        [(left, right, result) for left, right, result in seed.merges.tolist()],
        set(seed.special_tokens.values()),
        new_tokens,
        pattern,
        seed.tie,
        min_frequency,
        max_token_length,
    )
    made = result.vocabulary
    assert made.pattern == pattern
    assert made.merges.tolist() == [*seed.merges.tolist(), *map(list, learned)]
    assert made.training["tokens"] == symbols
    assert made.tokens[: seed.size] == seed.tokens
    new = [made.tokens[left] + made.tokens[right] for left, right, k in learned if k >= seed.size]
    assert made.tokens[seed.size :] == (*new, *(text.encode() for text in special_tokens))
    assert made.special_tokens == seed.special_tokens | {
        text: made.size - 1 for text in special_tokens
    }
    assert (result.stop_reason is None) == (len(new) == new_tokens)
    assert Vocabulary.from_bytes(made.to_bytes()).fingerprint == made.fingerprint


def test_a_merge_that_spells_a_token_of_the_seed_takes_its_id() -> None:
    seed = replace(
        byte_vocabulary("class", "hf").with_match("greedy"),
        tokens=(*byte_vocabulary("class", "hf").tokens, b"abc", b"zz", b"ab"),
    )
    options = TrainingOptions(260, seed.pattern, seed=seed)
    made = train_vocabulary(corpus_from_bytes(b"abcd " * 9), options, NUMPY).vocabulary
    # Equally frequent, and the token spelled "ab" ranks behind all bytes: (c, d) comes before it.
    assert made.merges.tolist() == [[97, 98, 258], [99, 100, 259]]
    assert made.tokens[259:] == (b"cd",)
    assert made.training["seed_fingerprint"] == seed.fingerprint


def test_ranks_are_gone_on_from_like_merges() -> None:
    text = corpus_from_bytes(b"abcabc abd " * 30)
    listed = train_vocabulary(text, TrainingOptions(262, "class"), NUMPY).vocabulary
    ranked = replace(listed, merges=np.empty((0, 3), np.uint32), ignore_merges=True)
    made = []
    for seed in (listed, ranked):
        options = TrainingOptions(270, "class", seed=seed)
        corpus = corpus_from_bytes(b"abcabc abd xyz xyz " * 30)
        made.append(train_vocabulary(corpus, options, NUMPY).vocabulary)
    assert made[0].tokens == made[1].tokens
    assert made[0].merges.tolist() == made[1].merges.tolist()
    assert made[1].size > 262


@pytest.mark.parametrize("engine", ["numpy", "seed"])
@settings(deadline=None, max_examples=examples(60))
@given(
    documents=DOCUMENTS,
    sizes=st.lists(st.integers(257, 290), min_size=1, max_size=4, unique=True),
    tie=TIES,
)
def test_several_sizes_are_those_of_several_runs(
    engine: str, documents: list[bytes], sizes: list[int], tie: str
) -> None:
    documents = [*documents, b"a"]
    start = byte_vocabulary("none", tie).with_match("greedy")
    seed = replace(start, tokens=(*start.tokens, b"aab")) if engine == "seed" else None
    sizes = sorted(size + (seed is not None) for size in sizes)

    def train(size: int, *smaller: int) -> dict[int, Vocabulary]:
        options = TrainingOptions(
            size,
            pattern="none",
            tie=tie,
            min_frequency=1,
            special_tokens=("<|end|>",),
            smaller_sizes=smaller,
            seed=seed,
        )
        return train_vocabulary(corpus_from_bytes(documents), options, NUMPY).vocabularies

    together = train(sizes[-1], *sizes[:-1])
    assert list(together) == sizes
    for size, vocabulary in together.items():
        assert vocabulary.to_bytes() == train(size)[size].to_bytes()


def test_what_the_recount_engine_cannot_do(device: Device) -> None:
    adapter = Backend(device, "the adapter")
    seed = byte_vocabulary("class", "hf")
    for changes, message in (
        ({"seed": seed}, "a seed vocabulary"),
        ({"max_token_length": 4}, "the length of tokens"),
        ({"smaller_sizes": (280,)}, "several sizes"),
    ):
        options = TrainingOptions(300, "class", engine="recount", **changes)  # type: ignore[arg-type]
        with pytest.raises(LlmgpuError, match=message):
            train_vocabulary(corpus_from_bytes(b"abab"), options, adapter)
    options = TrainingOptions(300, engine="recount")
    counted = Training(TrainingOptions(300), NUMPY).count(corpus_from_bytes(b"abab"))
    with pytest.raises(LlmgpuError, match="no word counts"):
        train_vocabulary(counted, options, adapter)
    with pytest.raises(LlmgpuError, match="needs a GPU adapter"):
        train_vocabulary(corpus_from_bytes(b"abab"), options, NUMPY)


def test_counted_words_train_the_same_vocabulary(tmp_path: Path) -> None:
    documents = [words(1, 2_000, 400), b"\x00\xff" * 300]
    options = TrainingOptions(400)
    counted = Training(options, NUMPY).count(corpus_from_bytes(documents))
    again = train_vocabulary(counted, options, NUMPY, counts_output=tmp_path / "c")
    save_counts(tmp_path / "counted", counted)
    assert (tmp_path / "c").read_bytes() == (tmp_path / "counted").read_bytes()
    whole = train_vocabulary(corpus_from_bytes(documents), options, NUMPY)
    assert again.vocabulary.to_bytes() == whole.vocabulary.to_bytes()
    assert again.batches is not None and 0 < again.batches <= 144


@pytest.mark.parametrize("pattern", ["none", "gpt2", "class"])
def test_a_second_stage_goes_across_the_cuts_of_the_first(pattern: str) -> None:
    documents = [b"by the way, by the way", b"on the way and by the way", b" the  the\n the"]
    first = reference.train(documents, 12, "cl100k", "hf", 1)
    seed = build_vocabulary(first, pattern="cl100k", tie="hf", special_tokens=["<s>"], training={})
    options = TrainingOptions(seed.size + 8, pattern, seed=seed, min_frequency=1)
    made = train_vocabulary(corpus_from_bytes(documents), options, NUMPY).vocabulary
    triples = [(left, right, result) for left, right, result in seed.merges.tolist()]
    special = set(seed.special_tokens.values())
    learned, _ = reference.extend(
        documents, seed.tokens, triples, special, 8, pattern, "hf", 1, None
    )
    assert made.merges.tolist() == [*seed.merges.tolist(), *map(list, learned)]
    assert (made.pattern, made.tokens[: seed.size]) == (pattern, seed.tokens)
    assert Vocabulary.from_bytes(made.to_bytes()).fingerprint == made.fingerprint
    goes_across = any(b" " in token[1:] for token in made.tokens[seed.size :])
    assert goes_across == (pattern != "gpt2")


def test_a_seed_keeps_its_version_of_unicode() -> None:
    seed = byte_vocabulary("o200k", "hf", "18.0")
    with pytest.raises(LlmgpuError, match=r"the Unicode version of the seed vocabulary is '18.0'"):
        TrainingOptions(300, "o200k", seed=seed)
    options = TrainingOptions(300, "o200k", seed=seed, unicode="18.0")
    trained = train_vocabulary(corpus_from_bytes(b"x\xd5\x98y" * 9), options, NUMPY).vocabulary
    assert (trained.unicode, trained.tokens[-1]) == ("18.0", b"x\xd5\x98y" * 4)
    with pytest.raises(LlmgpuError, match=r"no character classes of Unicode '17.0'"):
        TrainingOptions(300, unicode="17.0")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": 257}, "it must be from 258 .257 of the seed vocabulary and 1 special"),
        (
            {"tie": "bytes"},
            "seed vocabulary is 'hf' and can't change to 'bytes'",
        ),
        (
            {"special_tokens": ("<s>",)},
            "special token '<s>' is already a token of the seed",
        ),
        (
            {"special_tokens": ("bc",)},
            "special token 'bc' is already a token of the seed",
        ),
    ],
)
def test_options_that_do_not_go_with_the_seed(changes: dict[str, object], message: str) -> None:
    start = byte_vocabulary("class", "hf")
    seed = replace(
        start,
        tokens=(*start.tokens, b"<s>") if "<s>" in message else (*start.tokens, b"abcd"),
        special_tokens={"<s>": 256} if "<s>" in message else {},
    )
    given = {"pattern": seed.pattern, "special_tokens": ("<x>",), "seed": seed}
    options = {"vocab_size": 300} | given | changes
    with pytest.raises(LlmgpuError, match=message):
        TrainingOptions(**options)  # type: ignore[arg-type]
