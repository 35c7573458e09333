"""All functions of the CPU engine on random texts and tensors, against NumPy.

`python -m tests.cpu.fuzz` takes the library to load, a seed and how many rounds to run.
tests/cpu/test_sanitizers.py runs it on a library that stops at the first access out of bounds or
undefined operation.
"""

from __future__ import annotations

import json
import os
import random
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.encoding.encoder_numpy import NumpyEncoder
from llmgpu.bpe.pretokens.names import PATTERNS
from llmgpu.bpe.pretokens.pattern import get_pattern
from llmgpu.bpe.training import batched_numpy, merge_host
from llmgpu.bpe.training.options import TrainingOptions
from llmgpu.bpe.training.symbols import MergeTask, byte_symbols
from llmgpu.bpe.vocabulary.building import byte_ranks
from llmgpu.bpe.vocabulary.file import PackedTokens
from llmgpu.bpe.vocabulary.trie import compile_trie
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.bpe.words.count_host import count_words
from llmgpu.cpu import library
from llmgpu.cpu.texts import (
    JsonlTexts,
    format_ids,
    format_numbers,
    is_valid_utf8,
    line_starts,
    replaced_bytes,
    spell_cells,
)
from llmgpu.cpu.tokens import append_merges, lay_out_trie, merges_spell, spelled_tokens
from llmgpu.errors import InputError
from llmgpu.lm.ops.operations import open_operations
from llmgpu.lm.ops.tensor import AttentionShape
from llmgpu.text.corpus import corpus_from_bytes
from tests.bpe.patterns import start_mask
from tests.bpe.word_lists import listed
from tests.cpu.texts import CHARACTERS, MOSTLY_ASCII, ends_of
from tests.lm.ops.all_operations import Tensors, run_all

SINGLE = [bytes([value]) for value in range(256)]
REGEX = r"regex:\w+|\s"
EXPRESSION = PATTERNS["none"].expression
CHANGES = [*range(10), 97, 98, 99, 255, 256, 1 << 31, (1 << 32) - 1]


def random_text(rng: random.Random) -> bytes:
    every = rng.choice([CHARACTERS, CHARACTERS, MOSTLY_ASCII])
    parts = rng.sample(every, rng.randint(1, 9)) if rng.random() < 0.6 else every
    text = b"".join(rng.choices(parts, k=rng.choice([0, 1, 5, 40, 400])))
    return text * rng.choice([1, 1, 1, 20]) if len(text) < 1000 else text


def random_vocabulary(rng: random.Random, pattern: str) -> Vocabulary:
    """A vocabulary by ranks, by merges, with an unknown token, or by the longest token."""
    pieces = rng.choices(CHARACTERS, k=rng.randint(0, 60))
    tokens = dict.fromkeys(left + right for left in pieces for right in pieces[:4])
    for _ in range(3):
        tokens |= dict.fromkeys(a + b for a, b in zip(tokens, list(tokens)[1:], strict=False))
    kind = rng.choice(["ranks", "merges", "unknown", "greedy"])
    if kind == "ranks" and rng.random() < 0.3:  # prefixes of a long token, one byte apart
        whole = b"".join(rng.choices(pieces or SINGLE, k=2)) * rng.randint(8, 400)
        tokens |= {whole[: len(whole) - cut]: None for cut in (1, 0)}
    known = SINGLE if kind != "unknown" else [b"<unk>", *SINGLE[::2]]
    spelled = [*known, *(token for token in list(tokens)[:400] if token not in set(known))]
    ids = {token: number for number, token in enumerate(spelled)}
    merges = [
        (ids[token[:cut]], ids[token[cut:]], ids[token])
        for token in spelled
        for cut in range(1, len(token))
        if token[:cut] in ids and token[cut:] in ids
    ]
    return Vocabulary(
        tuple(spelled),
        np.array(merges if kind == "merges" else [], np.uint32).reshape(-1, 3),
        pattern,
        get_pattern(pattern).expression,
        match="greedy" if kind == "greedy" else "bpe",
        ignore_merges=kind == "merges" and rng.random() < 0.5,
        unknown_token=0 if kind == "unknown" else None,
    )


def encoded(encoder: object, documents: list[bytes]) -> tuple[list[int], list[int]]:
    ids: list[int] = []
    starts: list[int] = []
    for piece in encoder.encode(corpus_from_bytes(documents)):  # type: ignore[attr-defined]
        starts += (piece.document_starts + len(ids)).tolist()
        ids += piece.ids.tolist()
    return ids, starts


def check_encoding(rng: random.Random, pattern: str, documents: list[bytes]) -> None:
    from tests.bpe.host_encoders import CpuEncoder, cutting_cpu_encoder

    vocabulary = random_vocabulary(rng, pattern)
    slice_bytes = rng.choice([1, 20, 300, 1 << 20])
    expected = encoded(NumpyEncoder(vocabulary), documents)
    for host_encoder in (CpuEncoder, cutting_cpu_encoder):
        encoder = host_encoder(vocabulary, slice_bytes, rng.choice([1, 2, 5]))
        assert encoded(encoder, documents) == expected, (vocabulary, documents)
    check_decoding(rng, vocabulary, expected[0])
    at_once = CpuEncoder(vocabulary).c_slices.encode_document(documents[0])
    if at_once is not None:
        assert at_once.tolist() == encoded(NumpyEncoder(vocabulary), documents[:1])[0], documents


def check_decoding(rng: random.Random, vocabulary: Vocabulary, ids: list[int]) -> None:
    """Ids have the bytes of their tokens, in any order; an id beyond the last is refused."""
    drawn = rng.choices(range(vocabulary.size), k=rng.choice([1, 8, 300]))
    for given in (ids, drawn, rng.sample(drawn, len(drawn))):
        expected = b"".join(vocabulary.tokens[number] for number in given)
        assert vocabulary.decode(np.array(given, np.uint32)) == expected, given
    try:
        vocabulary.decode([*drawn, vocabulary.size])
    except InputError:
        return
    raise AssertionError("an id beyond the last was decoded")


def check_counting(rng: random.Random, pattern: str, documents: list[bytes]) -> None:
    found = []
    for engine in ("c", "numpy"):
        os.environ[library.VARIABLE] = engine
        words = count_words(
            corpus_from_bytes(documents),
            pattern,
            threads=2,
            slice_bytes=rng.choice([50, 1 << 20]),
            memory_bytes=rng.choice([None, 0]),
        )
        found.append(sorted(listed(words)))
    os.environ[library.VARIABLE] = "c"
    assert found[0] == found[1], (pattern, documents)


def check_merging(rng: random.Random, pattern: str, documents: list[bytes]) -> None:
    words = byte_symbols(count_words(corpus_from_bytes(documents), pattern), byte_ranks("hf"))
    longest = rng.choice([None, None, 3])
    options = TrainingOptions(256, min_frequency=rng.randint(1, 3), max_token_length=longest)
    merges = rng.choice([3, 30, 300])
    task = MergeTask(merges=merges)
    trained, expected = (
        trainer.train(words, options, task) for trainer in (merge_host, batched_numpy)
    )
    assert trained.pairs.tolist() == expected.pairs.tolist(), (pattern, documents)
    assert trained.counts.tolist() == expected.counts.tolist(), (pattern, documents)
    few = merge_host.Trainer(
        words,
        merges,
        least=options.min_frequency,
        longest=longest,
        most_pairs=rng.choice([20, 300]),
    )
    for found, wanted in zip(
        few.train(merges, 1 << 40), (trained.pairs, trained.counts), strict=True
    ):
        assert np.array_equal(found, wanted), (pattern, documents)
    results = np.arange(256, 256 + len(trained.pairs), dtype=np.uint32)
    replayed = merge_host.apply_merges(words, np.column_stack([trained.pairs, results]))
    assert replayed.total == trained.symbols == expected.symbols, (pattern, documents)


def check_merging_into_one_symbol(rng: random.Random) -> None:
    """Pairs become a symbol that is there already, beside itself, too."""
    count = rng.randint(20, 200)
    pieces = [b"ab" * count, b"cd" * rng.randint(count // 2, count)]  # may just fill the lists
    words = byte_symbols(count_words(corpus_from_bytes(pieces), "none"), byte_ranks("bytes"))
    words = replace(words, lengths=np.array([1] * 256 + [2], np.uint32))
    merges = np.array([[97, 98, 256], [99, 100, 256]], np.uint32)
    found, expected = (
        engine.apply_merges(words, merges).symbols.tolist()
        for engine in (merge_host, batched_numpy)
    )
    assert found == expected, pieces


def check_trie(rng: random.Random) -> None:
    """A trie is that of its tokens; changed anywhere, it is refused."""
    pieces = {bytes(rng.choices(b"abc", k=rng.randint(1, 6))) for _ in range(rng.randint(1, 40))}
    tokens = [*SINGLE[97:100], *sorted(pieces - set(SINGLE))]
    made = Vocabulary(tuple(tokens), np.empty((0, 3), np.uint32), "none", EXPRESSION)
    is_ordinary = np.ones(len(tokens), np.bool_)
    facts = made.token_data, made.token_offsets, is_ordinary
    nodes, edges = made.trie.nodes.copy(), made.trie.edges.copy()
    assert spelled_tokens(nodes, edges, *facts) == len(tokens)
    changed = rng.choice([nodes, edges]).reshape(-1)
    place = rng.randrange(len(changed))
    changed[place] = rng.choice([value for value in CHANGES if value != changed[place]])
    assert spelled_tokens(nodes, edges, *facts) < len(tokens), (tokens, nodes, edges)
    repeated = Vocabulary(
        (*tokens, b"", *rng.choices(tokens, k=3)), made.merges, "none", EXPRESSION
    )
    ids = repeated.ordinary_ids
    laid_out = lay_out_trie(repeated.token_data, repeated.token_offsets, ids)
    compiled = compile_trie(repeated.ordinary_tokens, ids)
    for found, expected in zip(laid_out, (compiled.nodes, compiled.edges), strict=True):
        assert found.tolist() == expected.tolist(), tokens


def check_merged_tokens(rng: random.Random) -> None:
    """Tokens that merges make are those that a list of bytes grows to, or there are none."""
    tokens = [b"", *SINGLE[97:100]]
    packed = PackedTokens.of(tokens)
    merges = []
    for _ in range(rng.randint(0, 12)):
        left, right = rng.choices(range(len(tokens)), k=2)
        result = rng.choice([len(tokens), len(tokens), rng.randrange(len(tokens))])
        tokens += [tokens[left] + tokens[right]] * (result == len(tokens))
        merges.append((left, right, result))
    table, size = np.array(merges, np.uint32).reshape(-1, 3), sum(map(len, tokens))
    given = np.frombuffer(packed.data, np.uint8), packed.offsets
    made = append_merges(*given, table, size)
    assert made is not None and PackedTokens(made[0].tobytes(), made[1]) == tokens, merges
    long_enough = all(len(tokens[a]) + len(tokens[b]) == len(tokens[c]) for a, b, c in merges)
    if long_enough:
        spelled = all(tokens[a] + tokens[b] == tokens[c] for a, b, c in merges)
        assert merges_spell(*made, table) == spelled, merges
    assert size == len(packed.data) or append_merges(*given, table, size - 1) is None
    if merges:
        changed = rng.randrange(len(merges)), rng.randrange(3)
        table[changed] = rng.choice([len(tokens) + 1, (1 << 32) - 1])
        assert append_merges(*given, table, size) is None, (merges, changed)


def check_text(text: bytes, pattern: str) -> None:
    assert is_valid_utf8(np.frombuffer(text, np.uint8)) or not is_utf8(text)
    if pattern == REGEX or not text:
        return
    starts: NDArray[np.int64] = np.zeros(1, np.int64)
    mask = start_mask(np.frombuffer(text, np.uint8), pattern, starts)
    ends = [*np.flatnonzero(mask).tolist()[1:], len(text)]
    assert ends_of(get_pattern(pattern).for_engine(), text) == ends, (pattern, text)


def check_jsonl(rng: random.Random, documents: list[bytes]) -> None:
    """Lines that C takes have the text that `json` gives; some bytes are changed."""
    texts = [text.decode(errors="replace") for text in documents]
    objects = [{"a": [1.5, None], "t": text} for text in texts]
    lines = [json.dumps(found, ensure_ascii=rng.random() < 0.5) for found in objects]
    data = bytearray("\n".join(lines).encode("utf-8", "surrogatepass"))
    for _ in range(rng.choice([0, 0, 1, 3])):
        data[rng.randrange(len(data))] = rng.choice(b'"\\{}[]:,u0\n\xff\xed ')
    end = rng.choice([len(data), rng.randrange(len(data) + 1)])
    padded = np.frombuffer(bytes(data[:end]) + bytes(library.TEXT_PADDING), np.uint8).copy()
    taken = JsonlTexts("t", 1 << 30).take(padded, 0, end, is_last=True)
    found = [line for line in bytes(data[: taken.end]).split(b"\n") if line.strip()]
    expected = [json.loads(line)["t"].encode() for line in found]
    bounds = [*taken.starts.tolist(), len(taken.text)]
    assert [taken.text[a:b].tobytes() for a, b in pairwise(bounds)] == expected, data


def check_spelling(rng: random.Random) -> None:
    count = rng.choice([1, 9, 10, 11, 100, 2000])
    ids = [rng.randrange(count) for _ in range(rng.choice([0, 1, 7, 300]))]
    starts = sorted(rng.randrange(len(ids) + 1) for _ in range(rng.randint(0, 4)))
    border = rng.choice([b"", b"\n", b']}\n{"ids": ['])
    expected = b""
    for number, value in enumerate(ids):
        expected += border * starts.count(number)
        expected += (b"" if number in starts else b",") + str(value).encode()
    expected += border * starts.count(len(ids))
    made = format_ids(spell_cells(count, b","), np.array(ids, np.uint32), np.array(starts), border)
    assert bytes(made) == expected, (ids, starts, border)
    numbers = [rng.randrange(10 ** rng.randint(1, 18)) for _ in ids]
    assert bytes(format_numbers(np.array(numbers, np.int64))) == str(numbers)[1:-1].encode()
    spans = [rng.randrange(1 << rng.choice([1, 4, 40])) for _ in range(count)]
    total = replaced_bytes(np.array(spans, np.int64), np.array(ids, np.uint32))
    assert total == sum(spans[value] for value in ids)


def check_lines(rng: random.Random) -> None:
    letters = rng.choice([b"\n", b"a\n", b"\n\x0b\x8a\x00" + b"a" * 40])
    text = bytes(rng.choices(letters, k=rng.randrange(70)))
    expected = [place + 1 for place, byte in enumerate(text) if byte == ord("\n")]
    assert line_starts(np.frombuffer(text, np.uint8)).tolist() == expected, text


def check_tensors(rng: random.Random) -> None:
    """Operations on tensors of any size are those of NumPy, within rounding."""
    heads, group = rng.randint(1, 3), rng.randint(1, 3)
    sizes = rng.randint(1, 3), rng.randint(1, 70), heads * group, heads, 2 * rng.randint(1, 20)
    seed, vocabulary = rng.randrange(1 << 32), rng.choice([1, 7, 300])
    found, expected = (
        run_all(
            Tensors(operations, np.random.default_rng(seed)), AttentionShape(*sizes), vocabulary
        )
        for operations in (open_operations(None, in_c=True), open_operations(None))
    )
    for name, array in expected.items():
        margin = 1e-4 * (1 + float(abs(array).max()))
        np.testing.assert_allclose(found[name], array, 1e-3, margin, err_msg=f"{name} of {sizes}")


def is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def main() -> None:
    path, seed, rounds = sys.argv[1:]
    vars(library)["LIBRARY"] = Path(path)
    os.environ[library.VARIABLE] = "c"
    rng = random.Random(int(seed))
    for _ in range(int(rounds)):
        documents = [random_text(rng) for _ in range(rng.randint(1, 4))]
        pattern = rng.choice([*PATTERNS, REGEX])
        for text in documents:
            check_text(text, pattern)
        check_encoding(rng, pattern, documents)
        check_counting(rng, pattern, documents)
        check_merging(rng, pattern, documents)
        check_merging_into_one_symbol(rng)
        check_trie(rng)
        check_merged_tokens(rng)
        check_jsonl(rng, documents)
        check_spelling(rng)
        check_lines(rng)
        check_tensors(rng)
    print(f"{rounds} rounds")


if __name__ == "__main__":
    main()
