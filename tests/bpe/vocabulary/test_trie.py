"""The flat trie against a tree of dictionaries."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgpu.bpe.vocabulary.trie import (
    BLOCK_NODES,
    NO_TOKEN,
    Trie,
    compile_trie,
    sort_tokens,
    validate_trie,
)
from llmgpu.cpu import library
from llmgpu.cpu.tokens import lay_out_trie, spelled_tokens
from llmgpu.errors import VocabularyError
from tests.conftest import examples
from tests.reference import bpe as reference

TOKENS = st.lists(
    st.lists(st.sampled_from(b"ab\x00\xff"), max_size=6).map(bytes) | st.binary(max_size=4),
    max_size=30,
)


def lowest_ids(tokens: list[bytes], ids: list[int]) -> dict[bytes, int]:
    lowest: dict[bytes, int] = {}
    for token, number in zip(tokens, ids, strict=True):
        if token:
            lowest[token] = min(number, lowest.get(token, number))
    return lowest


@settings(deadline=None, max_examples=examples(200))
@given(tokens=TOKENS, data=st.data())
def test_trie_is_the_reference_trie(tokens: list[bytes], data: st.DataObject) -> None:
    ids = data.draw(
        st.lists(
            st.integers(0, NO_TOKEN - 1), min_size=len(tokens), max_size=len(tokens), unique=True
        )
    )
    expected = lowest_ids(tokens, ids)
    trie = compile_trie(tokens, ids)
    assert (trie.nodes.dtype, trie.edges.dtype) == (np.uint32, np.uint32)
    assert (trie.nodes.tolist(), trie.edges.tolist()) == reference.flat_trie(expected)
    assert reference.tokens_of_trie(trie.nodes.tolist(), trie.edges.tolist()) == expected
    assert trie.longest == max(map(len, tokens), default=0)
    validate_trie(trie, tokens, ids)
    if library.library() is not None:
        offsets = np.cumsum([0, *map(len, tokens)])
        joined, numbers = np.frombuffer(b"".join(tokens), np.uint8), np.arange(len(tokens))
        nodes, edges = lay_out_trie(joined, offsets, numbers)
        by_place = lowest_ids(tokens, numbers.tolist())
        assert (nodes.tolist(), edges.tolist()) == reference.flat_trie(by_place)
    most = data.draw(st.integers(1, 20))
    blocks = list(sort_tokens(tokens, ids).blocks(most))
    assert np.array_equal(np.concatenate([nodes for nodes, _ in blocks]), trie.nodes)
    assert np.array_equal(np.concatenate([edges for _, edges in blocks]), trie.edges)


@settings(deadline=None, max_examples=examples(50))
@given(
    tokens=st.lists(
        st.builds(
            lambda size, byte, end: byte * size + end,
            st.integers(0, 137),
            st.sampled_from([b"a", b"\0", b"\xff"]),
            st.binary(max_size=2),
        ),
        max_size=12,
    )
)
def test_tokens_that_share_many_bytes(tokens: list[bytes]) -> None:
    trie = compile_trie(tokens, range(len(tokens)))
    expected = lowest_ids(tokens, list(range(len(tokens))))
    assert reference.tokens_of_trie(trie.nodes.tolist(), trie.edges.tolist()) == expected
    assert (trie.nodes.tolist(), trie.edges.tolist()) == reference.flat_trie(expected)


def test_layout_of_a_small_trie() -> None:
    trie = compile_trie([b"ab", b"b", b"a", b"ac"], [10, 11, 12, 13])
    #                           root  a   b   ab  ac
    assert trie.nodes[:, 0].tolist() == [0, 2, 0, 0, 0]
    assert trie.nodes[:, 1].tolist() == [2, 2, 0, 0, 0]
    assert trie.nodes[:, 2].tolist() == [NO_TOKEN, 12, 11, 10, 13]
    assert trie.edges.tolist() == [[ord("a"), 1], [ord("b"), 2], [ord("b"), 3], [ord("c"), 4]]


def test_no_tokens() -> None:
    for tokens in ([], [b""], [b"", b""]):
        trie = compile_trie(tokens, range(len(tokens)))
        assert trie.nodes.tolist() == [[0, 0, NO_TOKEN]]
        assert trie.edges.shape == (0, 2)
        assert trie.longest == 0


def test_order_of_the_tokens_does_not_matter() -> None:
    tokens = [b"x", b"xyz", b"", b"xy", b"xyz", b"zzz", b"x"]
    ids = list(range(7))
    backwards = compile_trie(tokens[::-1], ids[::-1])
    forwards = compile_trie(tokens, np.array(ids, np.uint8))
    assert np.array_equal(backwards.nodes, forwards.nodes)
    assert np.array_equal(backwards.edges, forwards.edges)


def synthetic_tokens(count: int) -> list[bytes]:
    """Distinct tokens with many shared prefixes, in an order of no meaning."""
    rng = np.random.default_rng(11)
    syllables = [bytes(rng.integers(97, 123, rng.integers(1, 4)).tolist()) for _ in range(300)]
    tokens: set[bytes] = set()
    while len(tokens) < count:
        for row in rng.integers(0, 300, (count, 4)).tolist():
            tokens.add(b"".join(syllables[i] for i in row[: 2 + row[0] % 3]))
    ordered = sorted(tokens)
    rng.shuffle(ordered)
    return ordered[:count]


@pytest.mark.slow
def test_200_000_tokens() -> None:
    tokens = synthetic_tokens(200_000)
    trie = compile_trie(tokens, range(len(tokens)))
    edges = trie.edges
    assert np.array_equal(edges[:, 1], np.arange(1, len(trie.nodes)))
    found = reference.tokens_of_trie(trie.nodes.tolist(), edges.tolist())
    assert found == {token: i for i, token in enumerate(tokens)}
    inner = trie.nodes[trie.nodes[:, 1] > 0]
    assert np.array_equal(inner[1:, 0], inner[:-1, 0] + inner[:-1, 1])  # breadth first
    parents = np.repeat(np.arange(len(trie.nodes)), trie.nodes[:, 1])
    assert (np.diff(parents * 256 + edges[:, 0]) > 0).all()  # siblings ascend


def test_one_token_of_a_million_bytes() -> None:
    tokens = [b"a" * (1 << k) for k in range(21)]
    trie = compile_trie(tokens, range(21))
    assert trie.longest == 1 << 20
    assert np.flatnonzero(trie.nodes[:, 2] != NO_TOKEN).tolist() == [1 << k for k in range(21)]


@pytest.mark.parametrize("ids", [[], [0], [0, 1, 2]])
def test_tokens_and_ids_are_equally_many(ids: list[int]) -> None:
    with pytest.raises(ValueError, match=rf"^2 tokens, but {len(ids)} ids$"):
        compile_trie([b"a", b"b"], ids)


@pytest.mark.parametrize("ids", [[-1, 0], [0, NO_TOKEN], [1 << 40, 5], [5, -1]])
def test_ids_out_of_range(ids: list[int]) -> None:
    with pytest.raises(VocabularyError, match="id is below 0 or above 4294967294"):
        compile_trie([b"a", b"b"], ids)
    assert compile_trie([b"a", b"b"], [0, NO_TOKEN - 1]).longest == 1


@settings(deadline=None)
@given(data=st.data())
def test_any_change_is_found(data: st.DataObject) -> None:
    tokens = data.draw(st.sampled_from([[b"a", b"ab", b"b", b"bcd"], [b"a", b"", b"a", b"abc"]]))
    trie = compile_trie(tokens, range(4))
    validate_trie(trie, tokens, range(4))
    nodes, edges, longest = trie.nodes.copy(), trie.edges.copy(), trie.longest
    table = data.draw(st.sampled_from([nodes, edges]))
    place = data.draw(st.integers(0, table.size - 1))
    table.flat[place] ^= data.draw(st.integers(1, 2**32 - 1))
    with pytest.raises(VocabularyError, match="trie"):
        validate_trie(Trie(nodes, edges, longest), tokens, range(4))
    with pytest.raises(VocabularyError, match="trie"):
        validate_trie(Trie(trie.nodes, trie.edges, longest + 1), tokens, range(4))
    with pytest.raises(VocabularyError, match="trie"):
        validate_trie(Trie(trie.nodes[:-1], trie.edges[:-1], longest), tokens, range(4))


def test_a_trie_of_several_blocks_is_checked_to_its_end() -> None:
    tokens = [bytes([value]) * BLOCK_NODES for value in b"ab"]
    trie = compile_trie(tokens, range(2))
    validate_trie(trie, tokens, range(2))
    for k in range(2):
        tables = [trie.nodes.copy(), trie.edges.copy()]
        tables[k][-1, -1] ^= 1
        with pytest.raises(VocabularyError, match="trie"):
            validate_trie(Trie(*tables, trie.longest), tokens, range(2))


@pytest.mark.parametrize(("table", "place", "value"), [("edges", 0, 256), ("nodes", 5, 9)])
def test_numbers_beyond_bytes_and_ids_are_found(table: str, place: int, value: int) -> None:
    tokens = [b"\0", b"\0a"]
    trie = compile_trie(tokens, [0, 1])
    validate_trie(trie, tokens, [0, 1])
    changed = {"nodes": trie.nodes.copy(), "edges": trie.edges.copy()}
    changed[table].flat[place] = value
    with pytest.raises(VocabularyError, match="trie"):
        validate_trie(Trie(changed["nodes"], changed["edges"], trie.longest), tokens, [0, 1])


def test_a_node_that_is_its_own_child_is_found() -> None:
    nodes = np.array([[0, 1, NO_TOKEN], [0, 0, 0], [1, 1, NO_TOKEN]], np.uint32)
    edges = np.array([[97, 1], [98, 2]], np.uint32)
    validate_trie(Trie(nodes[:2], edges[:1], 1), [b"a"], [0])
    with pytest.raises(VocabularyError, match="trie"):
        validate_trie(Trie(nodes, edges, 1), [b"a"], [0])


def test_an_empty_token_has_no_node() -> None:
    tokens = [b"", b"", b"a\xff"]
    trie = compile_trie([b"\xff", b"a\xff"], [1, 2])
    with pytest.raises(VocabularyError, match="trie"):
        validate_trie(trie, tokens, range(3))


@pytest.mark.skipif(library.library() is None, reason="the CPU engine is not built")
def test_what_is_around_the_arrays_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """There it would say that the path "b" spells "ab", and that id 1 is a token."""
    monkeypatch.setattr(np, "empty", np.zeros)  # the root would have itself for a parent
    edges = np.array([[97, 0], [98, 1]], np.uint32)[1:]
    data, offsets = np.frombuffer(b"abb", np.uint8), np.array([0, 2, 3], np.int64)
    is_ordinary = np.ones(2, np.bool_)[:1]
    for token in (0, 1):
        nodes = np.array([[0, 1, NO_TOKEN], [0, 0, token]], np.uint32)
        assert spelled_tokens(nodes, edges, data, offsets, is_ordinary) == -1


@pytest.mark.skipif(library.library() is None, reason="the CPU engine is not built")
@pytest.mark.parametrize("leaf", [1, 2])
def test_a_leaf_without_a_token_is_found(leaf: int) -> None:
    nodes = np.array([[0, 2, NO_TOKEN], [0, 0, 0], [0, 0, 0]], np.uint32)
    nodes[leaf, 2] = NO_TOKEN
    edges = np.array([[97, 1], [98, 2]], np.uint32)
    data, offsets = np.frombuffer(b"ba"[leaf - 1 : leaf], np.uint8), np.array([0, 1], np.int64)
    assert spelled_tokens(nodes, edges, data, offsets, np.ones(1, np.bool_)) == -1
    with pytest.raises(VocabularyError, match="trie"):
        validate_trie(Trie(nodes, edges, 1), [data.tobytes()], [0])
