"""The pairs that merge, against all ways to cut each token in a dictionary."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgpu.bpe.encoding import encoder_gpu
from llmgpu.bpe.encoding import matching as ranking
from llmgpu.bpe.encoding.encoder_c import make_c_vocabulary
from llmgpu.bpe.encoding.matching import NO_RANK, BpeMatcher, pair_ranks, pair_table
from llmgpu.bpe.pretokens.names import PATTERNS
from llmgpu.bpe.vocabulary.trie import NO_TOKEN
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.cpu.library import insert_pairs, library
from llmgpu.errors import VocabularyError
from llmgpu.gpu.device import hash_key
from llmgpu.kernel_source import constant
from tests.reference import hashes

BYTES = [bytes([value]) for value in range(256)]
TOKEN = st.lists(st.sampled_from(b"ab\x00\xff"), min_size=1, max_size=9).map(bytes)


def make_vocabulary(tokens: list[bytes]) -> Vocabulary:
    return Vocabulary(
        tuple(tokens),
        np.empty((0, 3), np.uint32),
        "none",
        PATTERNS["none"].expression,
        match="bpe",
        ignore_merges=True,
    )


def all_cuts(tokens: list[bytes]) -> list[tuple[int, int, int]]:
    ids: dict[bytes, int] = {}
    for number, token in enumerate(tokens):
        if token:
            ids.setdefault(token, number)
    return [
        (ids[token[:cut]], ids[token[cut:]], number)
        for token, number in ids.items()
        for cut in range(1, len(token))
        if token[:cut] in ids and token[cut:] in ids
    ]


def assert_all_cuts(tokens: list[bytes]) -> None:
    pairs = pair_ranks(make_vocabulary(tokens))
    assert [tuple(pair) for pair in pairs[:, [0, 1, 3]].tolist()] == all_cuts(tokens)
    assert (pairs[:, 2] == pairs[:, 3]).all()
    assert pairs.dtype == np.uint32
    if library() is not None:
        engine_pairs = make_c_vocabulary(make_vocabulary(tokens)).pairs()
        assert [tuple(pair) for pair in engine_pairs.tolist()] == all_cuts(tokens)


def test_kernels_have_the_same_number_for_no_rank() -> None:
    assert constant("encode/02_merge.wgsl", "NO_RANK") == NO_RANK


@pytest.mark.parametrize("merges", [0, 3])
def test_no_more_tokens_than_ranks(monkeypatch: pytest.MonkeyPatch, merges: int) -> None:
    vocabulary = make_vocabulary([*BYTES, b"ab"])
    table = np.array([[97, 98, 256]] * merges, np.uint32).reshape(-1, 3)
    vocabulary = replace(vocabulary, merges=table)
    monkeypatch.setattr(ranking, "NO_RANK", 257)
    assert len(pair_ranks(vocabulary)) == 1
    monkeypatch.setattr(ranking, "NO_RANK", 256)
    with pytest.raises(VocabularyError, match="more than 256 tokens or merges"):
        pair_ranks(vocabulary)


@settings(deadline=None)
@given(tokens=st.lists(TOKEN, max_size=60))
def test_every_cut_into_two_tokens_is_a_pair(tokens: list[bytes]) -> None:
    assert_all_cuts([*tokens[:5], b"", *BYTES, *tokens[3:]])


def test_long_tokens() -> None:
    assert_all_cuts([*BYTES, *(b"a" * size for size in (2, 3, 255, 256, 514)), b"b" + b"a" * 256])


def test_pair_table() -> None:
    """Also of pairs below and above all that there are, and of bytes without a token."""
    table = pair_table(pair_ranks(make_vocabulary([*BYTES, b"ab", b"bc", b"abc"])))
    pairs = [(0, 0), (97, 98), (97, 257), (256, 99), (98, 97), (-1, 98), (97, -1), (258, 258)]
    ranks = [table.get(left << 32 | right, NO_RANK << 32) >> 32 for left, right in pairs]
    assert ranks == [NO_RANK, 256, 258, 258, NO_RANK, NO_RANK, NO_RANK, NO_RANK]


def test_bytes_without_a_token_never_merge() -> None:
    matcher = BpeMatcher(make_vocabulary([b"a", b"b", b"ab"]))
    assert [*matcher.match_word(b"abxab")] == [2, NO_TOKEN, 2]
    assert [*matcher.match_word(b"xx")] == [NO_TOKEN, NO_TOKEN]


def test_bytes_alone_have_no_pairs() -> None:
    assert_all_cuts(BYTES)


@pytest.mark.parametrize("count", [1, 100, 128])
def test_pairs_lie_where_the_kernel_looks_for_them(count: int) -> None:
    rng = np.random.default_rng(count)
    entries = np.column_stack([rng.integers(0, 1 << 32, (count, 3)), np.arange(count)])
    entries = entries.astype(np.uint32)
    key = hash_key()
    for is_used in (False, True):
        table = np.full((256, 4), encoder_gpu.FREE, np.uint32)
        if not (is_used and insert_pairs(entries, table, encoder_gpu.FREE, key)):
            encoder_gpu._insert_pairs(entries, table, key)
        for entry in entries:
            at = hashes.hash_numbers(entry[:2].tolist(), key.tolist()) % 256
            while (table[at, :2] != entry[:2]).any():
                assert table[at, 2] != encoder_gpu.FREE
                at = (at + 1) % 256
            assert (table[at] == entry).all()
        assert int((table[:, 2] != encoder_gpu.FREE).sum()) == count
