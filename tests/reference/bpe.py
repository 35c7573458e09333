"""Byte pair encoding written for reading: slow, obvious, and sharing nothing with the package."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import pairwise

import regex
import tiktoken

from tests.reference.characters import CHARACTERS

EXPRESSIONS = {
    "class": rb" *[A-Za-z\x80-\xff]+| *[0-9]+| +|\n|[^\n A-Za-z0-9\x80-\xff]+",
    "gpt2": rb"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "cl100k": (
        rb"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}"
        rb"| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
    ),
    "rustbpe": (
        rb"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}"
        rb"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
    ),
    "llama3": (
        rb"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        rb"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "qwen2": (
        rb"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
        rb"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "nanochat": (
        rb"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}"
        rb"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
    ),
    "o200k": (
        rb"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
        rb"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        rb"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
        rb"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        rb"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "none": rb"[\x00-\xff]+",
}
OVER_CHARACTERS = {name for name, expression in EXPRESSIONS.items() if rb"\p{" in expression}


# Classes that the expressions tell apart, with a character for each that is in it in all versions
# of Unicode, and one that is in none.
CLASSES = {
    r"[\p{Lu}\p{Lt}]": "\u0100",
    r"\p{Ll}": "\u0101",
    r"[\p{Lm}\p{Lo}]": "\u01bb",
    r"\p{M}": "\u0300",
    r"\p{N}": "\u0660",
    r"\s": "\u2003",
}
NO_CLASS = "\u00a1"


@cache
def stand_ins() -> dict[int, str]:
    """Characters that tiktoken classes otherwise than `regex`, and what stands for their class."""
    ranks = {bytes([value]): value for value in range(256)}
    gone: set[str] = set()
    found: dict[int, str] = {}
    for expression, character in CLASSES.items():
        encoding = tiktoken.Encoding(
            "bytes", pat_str=expression, mergeable_ranks=ranks, special_tokens={}
        )
        members = set(bytes(encoding.encode_ordinary(CHARACTERS)).decode())
        newer = set(regex.findall(expression, CHARACTERS))
        gone |= newer - members
        found |= dict.fromkeys(map(ord, members - newer), character)
    return dict.fromkeys(map(ord, gone), NO_CLASS) | found


def pre_tokens(data: bytes, pattern: str, unicode: str = "16.0") -> list[bytes]:
    """Cut one document with the published expression.

    Bytes that are not valid UTF-8 become a surrogate each, which is no letter, number or space.
    unicode: 16.0 is what tiktoken has, 18.0 what `regex` has.
    """
    if pattern in OVER_CHARACTERS:
        text = data.decode("utf-8", "surrogateescape")
        seen = text.translate(stand_ins()) if unicode == "16.0" else text
        found = regex.finditer(EXPRESSIONS[pattern].decode(), seen)
        pieces = [text[slice(*m.span())].encode("utf-8", "surrogateescape") for m in found]
    else:
        pieces = re.findall(EXPRESSIONS[pattern], data)
    assert b"".join(pieces) == data
    return pieces


def pre_token_starts(documents: Iterable[bytes], pattern: str) -> list[bool]:
    """One flag a byte of the documents, end to end: does a pre-token start there?"""
    starts: list[bool] = []
    for document in documents:
        for piece in pre_tokens(document, pattern):
            starts += [True] + [False] * (len(piece) - 1)
    return starts


def bytes_to_unicode() -> dict[int, str]:
    """GPT-2's table of a character for each byte: printable ones as they are, others from 256."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {byte: chr(byte) for byte in shown}
    for byte in range(256):
        if byte not in table:
            table[byte] = chr(256 + len(table) - len(shown))
    return table


@cache
def symbol_rank(symbol: int, tie: str) -> int:
    """Where a symbol stands when counts are equal; lower is merged first."""
    if symbol >= 256 or tie == "bytes":
        return symbol
    table = bytes_to_unicode()
    return sorted(range(256), key=lambda byte: ord(table[byte])).index(symbol)


def merge_word(word: Sequence[int], pair: tuple[int, int], new: int) -> tuple[int, ...]:
    """Replace `pair` by `new`, from the left, without overlap."""
    left, right = pair
    merged: list[int] = []
    i = 0
    while i < len(word):
        if word[i] == left and i + 1 < len(word) and word[i + 1] == right:
            merged.append(new)
            i += 2
        else:
            merged.append(word[i])
            i += 1
    return tuple(merged)


def train(
    documents: Iterable[bytes],
    merges: int,
    pattern: str,
    tie: str,
    min_frequency: int,
    max_token_length: int | None = None,
) -> list[tuple[int, int]]:
    """Learn up to `merges` merges of bytes; merge k makes id 256 + k."""
    tokens = [bytes([value]) for value in range(256)]
    learned, _ = extend(
        documents, tokens, [], set(), merges, pattern, tie, min_frequency, max_token_length
    )
    return [(left, right) for left, right, _ in learned]


def extend(
    documents: Iterable[bytes],
    tokens: Sequence[bytes],
    merges: Sequence[tuple[int, int, int]],
    special: set[int],
    new_tokens: int,
    pattern: str,
    tie: str,
    min_frequency: int,
    max_token_length: int | None = None,
) -> tuple[list[tuple[int, int, int]], int]:
    """Replay merges, then learn more, one after the other, counting all pairs again for each.

    tokens: what there is, by id. merges: (left, right, result). special: ids no merge makes.
    A new merge that spells an ordinary token gives its id; the others give the next free ones,
    of which there are up to `new_tokens`.

    Returns the new merges, and the length of the text in tokens.
    """
    byte_id: dict[int, int] = {}
    known: dict[bytes, int] = {}
    for i, token in enumerate(tokens):
        if i not in special:
            known.setdefault(token, i)
            if len(token) == 1:
                byte_id.setdefault(token[0], i)
    words = Counter(
        tuple(byte_id[byte] for byte in piece)
        for document in documents
        for piece in pre_tokens(document, pattern)
    )
    for left, right, result in merges:
        words = merge_words(words, (left, right), result)
    ranks = {byte_id[byte]: symbol_rank(byte, tie) for byte in range(256)}
    spelled = list(tokens)
    learned: list[tuple[int, int, int]] = []
    while len(spelled) < len(tokens) + new_tokens:
        counts: Counter[tuple[int, int]] = Counter()
        for word, weight in words.items():
            for pair in pairwise(word):
                length = len(spelled[pair[0]]) + len(spelled[pair[1]])
                if max_token_length is None or length <= max_token_length:
                    counts[pair] += weight
        if not counts:
            break
        best = min(
            counts,
            key=lambda pair: (-counts[pair], *((i not in ranks, ranks.get(i, i)) for i in pair)),
        )
        if counts[best] < max(min_frequency, 1):
            break
        new = spelled[best[0]] + spelled[best[1]]
        result = known.setdefault(new, len(spelled))
        if result == len(spelled):
            spelled.append(new)
        learned.append((*best, result))
        words = merge_words(words, best, result)
    return learned, sum(len(word) * weight for word, weight in words.items())


def merge_words(
    words: Counter[tuple[int, ...]], pair: tuple[int, int], new: int
) -> Counter[tuple[int, ...]]:
    merged: Counter[tuple[int, ...]] = Counter()
    for word, weight in words.items():
        merged[merge_word(word, pair, new)] += weight
    return merged


def spell(merges: Iterable[tuple[int, int]]) -> list[bytes]:
    """The bytes of every id: the 256 bytes, then the merges."""
    tokens = [bytes([value]) for value in range(256)]
    for left, right in merges:
        tokens.append(tokens[left] + tokens[right])
    return tokens


def greedy(
    data: bytes,
    tokens: dict[bytes, int],
    pattern: str,
    unknown: int | None = None,
    unicode: str = "16.0",
) -> list[int]:
    """Tokenize one document: the longest token first, inside each pre-token.

    A byte at which no token begins becomes `unknown`; KeyError if that is None.
    """
    longest = max(map(len, tokens), default=0)
    ids: list[int] = []
    for piece in pre_tokens(data, pattern, unicode):
        i = 0
        while i < len(piece):
            for length in range(min(longest, len(piece) - i), 0, -1):
                if piece[i : i + length] in tokens:
                    ids.append(tokens[piece[i : i + length]])
                    i += length
                    break
            else:
                if unknown is None:
                    raise KeyError(piece[i])
                ids.append(unknown)
                i += 1
    return ids


NO_TOKEN = 0xFFFFFFFF


def flat_trie(tokens: dict[bytes, int]) -> tuple[list[list[int]], list[list[int]]]:
    """Nodes and edges of a trie: a tree of dictionaries, walked breadth first, bytes ascending.

    A node is [first edge (0 for a leaf), number of children, token id], an edge [byte, node].
    """
    prefixes = {token[:length] for token in tokens for length in range(len(token) + 1)} | {b""}
    children: dict[bytes, list[bytes]] = {prefix: [] for prefix in prefixes}
    for prefix in sorted(prefixes - {b""}):
        children[prefix[:-1]].append(prefix)
    queue = [b""]
    nodes: list[list[int]] = []
    edges: list[list[int]] = []
    for prefix in queue:  # grows while it is walked
        token = tokens.get(prefix, NO_TOKEN) if prefix else NO_TOKEN
        nodes.append([len(edges) if children[prefix] else 0, len(children[prefix]), token])
        for child in children[prefix]:
            edges.append([child[-1], len(queue)])
            queue.append(child)
    return nodes, edges


def tokens_of_trie(nodes: list[list[int]], edges: list[list[int]]) -> dict[bytes, int]:
    """Spell every token of a flat trie by walking all of it from the root."""
    found: dict[bytes, int] = {}
    pending = [(0, b"")]
    while pending:
        node, prefix = pending.pop()
        first, count, token = nodes[node]
        if token != NO_TOKEN:
            found[prefix] = token
        for byte, target in edges[first : first + count]:
            pending.append((target, prefix + bytes([byte])))
    return found
