"""Words as symbols, and vocabularies as symbols that training goes on from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from llmgpu.bpe.training.symbols import (
    Spellings,
    byte_symbols,
    check_logged,
    seed_symbols,
    translate,
)
from llmgpu.bpe.vocabulary import TIE_RULES
from llmgpu.bpe.vocabulary.building import byte_ranks, byte_vocabulary, extend_vocabulary
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.bpe.words.count_host import count_words
from llmgpu.errors import InputError, VocabularyError
from llmgpu.text.corpus import corpus_from_bytes
from tests.bpe.word_lists import byte_ids

BYTES = tuple(bytes([value]) for value in range(256))


def make_vocabulary(
    tokens: tuple[bytes, ...],
    merges: list[tuple[int, int, int]],
    special_tokens: dict[str, int] | None = None,
) -> Vocabulary:
    return replace(
        byte_vocabulary("class", "hf"),
        tokens=tokens,
        merges=np.array(merges, np.uint32).reshape(-1, 3),
        special_tokens=special_tokens or {},
    )


@pytest.mark.parametrize("tie", TIE_RULES)
def test_words_become_symbols(tie: str) -> None:
    ranks = byte_ranks(tie)
    words = byte_symbols(count_words(corpus_from_bytes(b"ab ab ! ab"), "class"), ranks)
    spelled = {}
    for k, count in enumerate(words.counts.tolist()):
        symbols = words.symbols[words.offsets[k] : words.offsets[k + 1]]
        spelled[bytes(byte_ids(ranks)[symbols].tolist())] = count
    assert spelled == {b"ab": 1, b" ab": 2}  # words of one byte have nothing to merge
    assert words.total == 10
    assert words.symbols.dtype == np.uint8
    assert words.lengths.tolist() == [1] * 256


def test_no_words() -> None:
    words = byte_symbols(count_words(corpus_from_bytes(b"\n\n"), "class"), byte_ranks("hf"))
    assert (len(words.symbols), words.offsets.tolist(), words.total) == (0, [0], 2)


def test_symbols_of_a_trained_vocabulary_are_its_ids() -> None:
    seed = extend_vocabulary(
        byte_vocabulary("class", "bytes"),
        [(97, 98, 256), (256, 99, 257)],
        special_tokens=("<|end|>",),
        training={},
    )
    symbols = seed_symbols(seed, byte_ranks("bytes"))
    assert symbols.ids.tolist() == list(range(259))
    assert symbols.merges.tolist() == seed.merges.tolist()
    assert symbols.unreached == ()


def test_symbols_of_a_vocabulary_in_any_order() -> None:
    tokens = (b"<s>", b"xyz", *BYTES, b"ab", b"", b"a", b"abc")
    seed = make_vocabulary(tokens, [(2 + 97, 2 + 98, 258)], {"<s>": 0})
    ranks = byte_ranks("hf")
    symbols = seed_symbols(seed, ranks)
    assert sorted(symbols.ids.tolist()) == list(range(seed.size))
    assert symbols.ids[ranks].tolist() == list(range(2, 258))
    assert symbols.ids[256:].tolist() == [0, 1, 258, 259, 260, 261]  # in the order of ids
    assert [symbols.tokens[k] for k in symbols.unreached] == [b"xyz", b"a", b"abc"]
    assert symbols.merges.tolist() == [[ranks[97], ranks[98], 258]]
    words = symbols.words(count_words(corpus_from_bytes(b"ab"), "class"), ranks)
    assert words.lengths[256:].tolist() == [3, 3, 2, 0, 1, 3]


def test_merges_of_symbols_become_merges_of_ids() -> None:
    ids = np.array([7, 5, 6], np.uint32)
    pairs = np.array([[0, 1], [3, 2]], np.uint32)
    triples = translate(pairs, np.array([3, 4], np.uint32), ids)
    assert triples.tolist() == [[7, 5, 3], [3, 6, 4]]
    assert translate(pairs[:0], np.empty(0, np.uint32), ids).shape == (0, 3)


def test_spellings() -> None:
    spellings = Spellings([b"a", b"b", b"ab", b"ba", b"aba", b"ab"], [2, 3, 4, 5])
    pairs = np.array([[0, 0], [0, 1], [2, 0], [6, 1]], np.uint32)
    assert spellings.results(pairs).tolist() == [6, 2, 4, 7]
    assert spellings.merge(2, 0) == 8  # what one merge has made, no other one makes


@pytest.mark.parametrize(
    ("seed", "message"),
    [
        (make_vocabulary(BYTES[:255], []), "1 bytes have no token, the first is 0xff"),
        (replace(make_vocabulary(BYTES, []), normalizer="NFC"), r"it normalizes text \(NFC\)"),
        (
            make_vocabulary((*BYTES, b"ab", b"abc"), [(256, 99, 257), (97, 98, 256)]),
            "no merge before merge 0 makes its parts",
        ),
    ],
)
def test_vocabularies_that_training_cannot_go_on_from(seed: Vocabulary, message: str) -> None:
    with pytest.raises(VocabularyError, match=message):
        seed_symbols(seed, byte_ranks("hf"))


def test_a_merge_of_what_does_not_exist_yet() -> None:
    spellings = Spellings(BYTES, ())
    assert spellings.results(np.array([[97, 98], [256, 99]], np.uint32)).tolist() == [256, 257]
    with pytest.raises(InputError, match="a symbol that no merge before it makes"):
        spellings.results(np.array([[97, 98], [259, 99]], np.uint32))


@pytest.mark.parametrize(
    ("pairs", "counts", "is_sound"),
    [
        ([[97, 98], [98, 99]], [3, 3], True),
        ([[98, 99], [97, 98]], [3, 3], False),  # of equally frequent ones the lower comes first
        ([[98, 99], [97, 98]], [4, 3], True),
        ([[98, 99], [97, 256]], [3, 3], True),  # the merge before has made it
        ([[98, 99], [97, 257]], [3, 3], False),
        ([[97, 98], [97, 99]], [3, 3], True),
        ([[97, 98], [100, 101], [97, 257]], [3, 3, 3], True),
        ([[97, 98], [100, 101], [97, 256]], [3, 3, 3], False),  # that was one merge earlier
        ([[97, 98], [98, 99]], [3, 4], False),
        ([[97, 98], [98, 99]], [3, 2], False),  # less often than asked for
        ([[97, 98]], [3], True),
    ],
)
def test_a_log_is_one_that_training_can_have_made(
    pairs: list[list[int]], counts: list[int], is_sound: bool
) -> None:
    seed = seed_symbols(byte_vocabulary("class", "bytes"), byte_ranks("bytes"))
    logged = np.array(pairs, np.uint32), np.array(counts)
    if is_sound:
        check_logged(*logged, seed, min_frequency=3)
    else:
        with pytest.raises(InputError, match="merges that this training can't have made"):
            check_logged(*logged, seed, min_frequency=3)
