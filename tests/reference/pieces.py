"""Encoding of SentencePiece's kind, written for reading: what the two libraries do, step by step.

Tokens are texts here, with U+2581 for a space, and a text is a list of symbols, which are texts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

MARK = "\u2581"
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)

Piece = tuple[str, float, int]  # text, score and kind


def merge(symbols: list[str], key: Callable[[int], float | None]) -> list[str]:
    """Merge neighbours, the lowest key first and then the leftmost, until none has a key.

    key: of the pair that begins at a place; None if it does not merge.
    """
    while True:
        found = [(key(i), i) for i in range(len(symbols) - 1)]
        pairs = [(value, i) for value, i in found if value is not None]
        if not pairs:
            return symbols
        _, i = min(pairs)
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]


def normalize_model(
    text: str,
    charsmap: Mapping[str, str],
    symbols: Sequence[str],
    *,
    prefix: bool = True,
    removes: bool = True,
    suffix: bool = False,
) -> str:
    """Return a text as SentencePiece normalizes it."""
    units = []
    while text:
        kept = [s for s in symbols if text.startswith(s)]
        keys = [k for k in charsmap if text.startswith(k)]
        string = max(kept or keys or [text[0]], key=len)
        units.append(string if kept else charsmap.get(string, string))
        text = text[len(string) :]
    if removes:
        while units and units[0] == " ":
            del units[0]
    if not units:
        return ""
    made, after_space = "", removes
    for unit in units:
        unit = unit.lstrip(" ") if after_space else unit
        made += unit
        if unit:
            after_space = removes and unit.endswith(" ")
    made = (MARK if prefix and not suffix else "") + made.replace(" ", MARK)
    if removes:
        made = made.rstrip(MARK)
    return made + (MARK if prefix and suffix else "")


def encode_model(pieces: Sequence[Piece], text: str) -> list[int]:
    """Return the ids of a normalized text by a model with these pieces."""
    ids = {piece: number for number, (piece, _, _) in enumerate(pieces)}
    kinds = {piece: kind for piece, _, kind in pieces}
    scores = {p: s for p, s, kind in pieces if kind in (NORMAL, UNUSED, USER)}
    unknown = next(k for k, piece in enumerate(pieces) if piece[2] == UNKNOWN)
    has_bytes = BYTE in kinds.values()
    user = [piece for piece, kind in kinds.items() if kind == USER]
    stretches: list[list[str]] = [[]]  # between user-defined symbols, which stand alone
    while text:
        found = max((u for u in user if text.startswith(u)), key=len, default="")
        if found:
            stretches += [[found], []]
        else:
            stretches[-1].append(text[0])
        text = text[len(found or text[0]) :]
    made_of: dict[str, tuple[str, str]] = {}
    encoded: list[int] = []
    was_unknown = False
    for stretch in stretches:
        symbols = list(stretch)

        def key(i: int, symbols: list[str] = symbols) -> float | None:
            score = scores.get(symbols[i] + symbols[i + 1])
            if score is not None:
                made_of[symbols[i] + symbols[i + 1]] = symbols[i], symbols[i + 1]
            return None if score is None else -score

        left = merge(symbols, key)
        while left:
            symbol = left.pop(0)
            if kinds.get(symbol) == UNUSED and symbol in made_of:
                left[:0] = made_of[symbol]
            elif symbol in ids and kinds[symbol] != UNUSED:
                encoded.append(ids[symbol])
                was_unknown = False
            elif has_bytes:
                encoded += [ids[f"<0x{byte:02X}>"] for byte in symbol.encode()]
            else:
                encoded += [] if was_unknown else [unknown]
                was_unknown = True
    return encoded


def encode_json(
    vocab: Mapping[str, int],
    merges: Sequence[tuple[str, str]],
    text: str,
    *,
    unknown: str | None,
    fuses: bool,
    has_bytes: bool,
) -> list[int]:
    """Return the ids of a pre-token by the model of a tokenizer.json."""
    ranks = {pair: rank for rank, pair in enumerate(merges)}
    symbols: list[str] = []
    for character in text:
        in_bytes = [f"<0x{byte:02X}>" for byte in character.encode()]
        if character in vocab:
            symbols.append(character)
        elif has_bytes and all(each in vocab for each in in_bytes):
            symbols += in_bytes
        elif unknown is not None and not (fuses and symbols and symbols[-1] == unknown):
            symbols.append(unknown)
    merged = merge(symbols, lambda i: ranks.get((symbols[i], symbols[i + 1])))
    return [vocab[symbol] for symbol in merged]
