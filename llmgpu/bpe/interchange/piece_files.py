"""Vocabularies of SentencePiece's kind in a tokenizer.json, and for llama.cpp's tokenizer `llama`.

Reading a tokenizer.json, for example that of Llama 2, Gemma, Phi 3 or Yi:

- The library writes U+2581 for spaces, by a normalizer or by the pre-tokenizer Metaspace. Text has
  no space afterwards, so a Split by spaces does nothing. llmgpu's tokens have spaces instead, and
  the last step of its normalizer turns every U+2581 of a text into a space.
- A character without a token becomes its byte tokens, or else the unknown token, before anything
  merges. A byte token may be missing if its byte is a character of ASCII that has a token, such as
  the tab of Gemma 2. If other byte tokens were missing, the library would put unknown tokens and
  byte tokens in another order than their characters. Such files are refused.
- Added tokens that are not special are found in every text. Special tokens are found only where a
  caller allows them, as with any other vocabulary.
- With `ignore_merges`, a pre-token that spells a token becomes this token. In llmgpu the whole text
  is one pre-token, so a file with `ignore_merges` and a Metaspace that splits is refused.

Writing:

SentencePiece and llama.cpp merge two neighbours that together are a piece, in the order of the
pieces' scores. A tokenizer.json lists pairs instead. Both orders give the same ids for these
reasons:

- Merge the characters of one piece alone, by score. The last pair merged is the only pair that ever
  makes the piece, in any text (`llmgpu.bpe.vocabulary.building`). This holds for equal scores, too,
  because the leftmost pair then merges first both in the text and in the piece alone. Call it the
  last pair of the piece.
- So a list with the last pair of each piece, by score, makes the same merges, unless two of these
  pieces have equal scores (`_is_run` has an exception). A list can't merge characters that are not
  pieces themselves, and can't split an unused piece again.
- A list that contains the last pair of each piece makes no other merge, because no other pair ever
  appears. So llama.cpp gives the ids of a tokenizer.json if its list contains the last pairs of all
  pieces, in an order in which these pairs are indeed the last ones. llama.cpp looks up every token
  by its text, so a control symbol, byte token or token without merges must have no last pair.

No tool merges user-defined symbols with other text. SentencePiece adds the dummy prefix only before
the whole text, other tools also after each symbol. llama.cpp searches for long symbols first,
SentencePiece searches from the left. The difference matters only if symbols overlap.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence, Set
from itertools import groupby, pairwise
from typing import Any

import numpy as np

from llmgpu.bpe.interchange.components import Model, Steps
from llmgpu.bpe.interchange.token_tables import (
    WRITTEN_ALIKE,
    check_distinct,
    imported_vocabulary,
    place_tokens,
)
from llmgpu.bpe.vocabulary.building import last_pair
from llmgpu.bpe.vocabulary.pieces import (
    ABSENT,
    BYTE,
    CONTROL,
    NORMAL,
    SPACE_MARK,
    UNKNOWN,
    UNUSED,
    USER,
    PieceRules,
)
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import VocabularyError
from llmgpu.input_files import Note, quote
from llmgpu.text.normalizing import spell_normalizer, steps_of

BYTE_TOKEN = re.compile("<0x([0-9A-F]{2})>")
TO_MARKS = {"content": SPACE_MARK, "pattern": {"String": " "}, "type": "Replace"}
TO_SPACES = {"content": " ", "pattern": {"String": SPACE_MARK}, "type": "Replace"}
PREFIX = {"prepend": " ", "type": "Prepend"}
_CHANGES_STARTS = {"NFC", "Lowercase", "Strip"}

PRE_TOKENIZERS = {"Metaspace", "Split"}
DECODERS = {"ByteFallback", "Fuse", "Metaspace", "Replace", "Strip"}


def is_of_pieces(content: Mapping[str, Any]) -> bool:
    """Whether a tokenizer.json is of SentencePiece's kind."""
    model, cut = content.get("model"), str(content.get("pre_tokenizer"))
    if isinstance(model, dict) and model.get("byte_fallback") is True:
        return True
    has_marks = SPACE_MARK in cut + str(content.get("normalizer")) or "'Metaspace'" in cut
    return has_marks and "'ByteLevel'" not in cut


def _read_steps(
    model: Model, normalized: tuple[int, ...]
) -> tuple[list[dict[str, Any]], bool, tuple[int, ...]]:
    """Return the steps of llmgpu's normalizer, `PieceRules.splits` and the normalized tokens' ids.

    The returned steps give the text that the normalizer and the Metaspace of Hugging Face's library
    give, with spaces in place of U+2581. The library searches for all added tokens before a
    Metaspace adds its prefix. With a prefix, no ids of normalized tokens are therefore returned.

    normalized: ids of the normalized tokens in the file.

    Raises VocabularyError if a text may still have spaces after the library's steps, and if the ids
    could differ from the library's ids.
    """
    # Find the step of type Metaspace. All other steps must be Splits at spaces.
    parts = model.parts
    steps = [{name: step[name] for name in sorted(step)} for _, step in parts["normalizer"]]
    metaspace: dict[str, Any] | None = None
    for kind, step in parts["pre_tokenizer"]:
        if kind == "Metaspace":
            if metaspace is not None or step.get("replacement") != SPACE_MARK:
                raise VocabularyError("pre_tokenizer Metaspace must have U+2581, and be there once")
            metaspace = step
        elif step.get("pattern") != {"String": " "} or step.get("invert"):
            raise VocabularyError("pre_tokenizer Split is supported for spaces in this vocabulary")
    # Find the last step that turns spaces into U+2581.
    if metaspace is not None:
        steps.append(TO_MARKS)
    if TO_MARKS not in steps:
        raise VocabularyError("the normalizer does not make U+2581 of spaces: not supported")
    last = len(steps) - 1 - steps[::-1].index(TO_MARKS)
    if any(" " in str(step.get("content", step.get("prepend", ""))) for step in steps[last + 1 :]):
        raise VocabularyError("the normalizer makes spaces after U+2581: not supported")
    # Add a step that turns U+2581 into spaces. If the last step turns spaces into U+2581, drop it,
    # since the added step would undo it.
    if last == len(steps) - 1:
        del steps[last]
        if steps and steps[-1] == {"prepend": SPACE_MARK, "type": "Prepend"}:
            steps[-1] = PREFIX
    steps.append(TO_SPACES)
    # Add the prefix of the Metaspace.
    scheme, splits = _scheme_of(metaspace), bool(metaspace and metaspace.get("split", True) is True)
    if scheme == "never":
        return steps, splits, normalized
    _check_prefix(model, steps, set(normalized))
    return [*steps, {"prepend_scheme": scheme, "type": "Metaspace"}], splits, ()


def _scheme_of(metaspace: Mapping[str, Any] | None) -> str:
    """Return for which texts a Metaspace adds a space in front: "always", "first" or "never".

    A document has several texts if special tokens were cut out. "first" means only the first of
    them.
    """
    if metaspace is None:
        return "never"
    default = "never" if metaspace.get("add_prefix_space") is False else "always"
    scheme = metaspace.get("prepend_scheme", default)
    if scheme not in ("always", "first", "never"):
        raise VocabularyError(f"the prepend_scheme of Metaspace is {quote(scheme)}")
    return str(scheme)


def _check_prefix(model: Model, steps: Sequence[Mapping[str, Any]], normalized: Set[int]) -> None:
    """Raise VocabularyError if ids could differ from the library's ids because of a prefix."""
    if normalized and model.parts["normalizer"]:
        raise VocabularyError(
            "normalized added tokens together with a normalizer and Metaspace are not supported"
        )
    if {step["type"] for step in steps} & _CHANGES_STARTS:
        raise VocabularyError("Metaspace after a normalizer other than Replace is not supported")
    # Hugging Face's library searches for normalized tokens after the other tokens, llmgpu for all
    # at once. Both find the same tokens unless a normalized token overlaps another token.
    late = [text for text, number in model.added.items() if number in normalized]
    early = [text for text, number in model.added.items() if number not in normalized]
    for text in late if early else ():
        for other in early:
            if _overlap(text, other):
                raise VocabularyError(
                    f"the added tokens {quote(other)} and {quote(text)} may overlap, and only one "
                    "is normalized: not supported"
                )


def _overlap(one: str, other: str) -> bool:
    ends = (one[-n:] == other[:n] or other[-n:] == one[:n] for n in range(1, len(one)))
    return one in other or other in one or any(ends)


def _read_decoder(steps: Steps) -> str:
    """Return the value of `PieceRules.decoder` for a decoder's steps."""
    decoder = ""
    for kind, step in steps:
        if kind == "Metaspace" and _scheme_of(step) != "never":
            decoder = "token"
        elif kind == "Strip" and step.get("start"):
            decoder = "first"
    return decoder


def make_vocabulary(model: Model, **rules: Any) -> Vocabulary:
    """Return the vocabulary of a model; rules: further fields of Vocabulary.

    Raises VocabularyError for a rule of Hugging Face's library that llmgpu does not support.
    """
    added = model.added
    steps, splits, rules["normalized_tokens"] = _read_steps(model, rules["normalized_tokens"])
    takes_whole = model.content.get("ignore_merges") is True
    if takes_whole and splits:
        raise VocabularyError(
            "ignore_merges and a Metaspace that splits are not supported together"
        )
    # Read the model's tokens and their kinds, then let added tokens replace some of them.
    merged, users = set(model.merges.reshape(-1).tolist()), set(model.plain)
    tokens, kinds = _read_tokens(model, merged)
    for text, number in added.items():
        if SPACE_MARK in text and " " in text:
            raise VocabularyError(f"the added token {quote(text)} has spaces and U+2581")
        if len(text) == 1 and text not in model.ids:
            raise VocabularyError(f"the added token {quote(text)} is a character without a token")
        kinds[number] = USER if text in users else CONTROL
        tokens[number] = text.replace(SPACE_MARK, " ").encode()
        if kinds[number] == CONTROL and number in merged:
            raise VocabularyError(f"the token {quote(text)} is special, and in a merge")
    # Build the vocabulary. Its pattern does not cut texts.
    placed = place_tokens(tokens, {})
    return imported_vocabulary(
        "huggingface",
        placed,
        added,
        model.merges,
        "none",
        ignore_merges=takes_whole,
        normalizer=spell_normalizer(steps),
        unknown_token=model.unknown,
        pieces=PieceRules(
            bytes(kinds.get(number, ABSENT) for number in range(len(placed))),
            fuses=model.content.get("fuse_unk") is True,
            splits=splits,
            decoder=_read_decoder(model.parts["decoder"]),
            marked=tuple(sorted(n for text, n in added.items() if SPACE_MARK in text)),
        ),
        **rules,
    )


def _read_tokens(model: Model, merged: Set[int]) -> tuple[dict[int, bytes], dict[int, int]]:
    """Return the tokens of a model and their kinds, by id; merged: ids that are in merges."""
    ids, added, unknown = model.ids, model.added, model.unknown
    has_bytes = model.content.get("byte_fallback") is True
    kinds: dict[int, int] = {}
    tokens: dict[int, bytes] = {}
    for text in filter(BYTE_TOKEN.fullmatch, added if has_bytes else ()):
        raise VocabularyError(
            f"the byte token {quote(text)} is also an added token: leave byte tokens in the model "
            "only"
        )
    for text, number in ids.items():
        found = BYTE_TOKEN.fullmatch(text) if has_bytes else None
        kinds[number] = UNKNOWN if number == unknown else BYTE if found else NORMAL
        spelled = text.replace(SPACE_MARK, " ").encode()
        tokens[number] = bytes([int(found[1], 16)]) if found else spelled
        if kinds[number] != NORMAL and number in merged:
            raise VocabularyError(f"a merge names the token {quote(text)}, which stands for bytes")
        if kinds[number] == NORMAL and text not in added and (" " in text or not text):
            raise VocabularyError(f"the token {quote(text)} is empty or has a space")
    # Check that every character of a text gets ids: by a token, by byte tokens or as unknown.
    missing = 256 - list(kinds.values()).count(BYTE)
    needed = [
        value
        for value in range(256 if has_bytes and missing < 256 else 0)
        if f"<0x{value:02X}>" not in ids
        and (value > 0x7F or kinds.get(ids.get(chr(value), -1)) != NORMAL)
    ]
    if needed:
        raise VocabularyError(
            f"byte_fallback, and {missing} of the 256 byte tokens are missing: the byte "
            f"0x{needed[0]:02x} has no token"
        )
    if missing < 256 and SPACE_MARK not in ids:
        raise VocabularyError("byte_fallback without a token U+2581 is not supported")
    if missing == 256 and unknown is None:
        raise VocabularyError("there are neither byte tokens nor an unk_token: text would be lost")
    return tokens, kinds


_LONGEST_RUN = 64  # characters; `_is_run` refuses pieces with more
_LLAMA = "llama.cpp's tokenizer llama"


def unused_characters(vocabulary: Vocabulary) -> set[int]:
    """Return the ids of unused tokens of one character.

    Other tools would give such an id to the character in a text, so a file must not name it.
    """
    unused = _rules(vocabulary).ids_of(UNUSED)
    return {number for number in unused if len(vocabulary.tokens[number].decode()) == 1}


def describe_steps(vocabulary: Vocabulary) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """Return the steps of the normalizer and the pre-tokenizer of a tokenizer.json.

    Raises VocabularyError for a normalizer that a tokenizer.json can't hold.
    """
    rules, steps = _rules(vocabulary), _steps(vocabulary, "a tokenizer.json")
    if rules.ranks and PREFIX in steps:
        _refuse_symbols(vocabulary, "a tokenizer.json would put")
    cut = None
    scheme = steps.pop()["prepend_scheme"] if steps[-1]["type"] == "Metaspace" else "never"
    if scheme != "never" or rules.splits:
        cut = {
            "type": "Metaspace",
            "replacement": SPACE_MARK,
            "prepend_scheme": scheme,
            "split": rules.splits,
        }
    if steps[-1] == TO_SPACES:  # a Metaspace, or TO_MARKS below, would undo this step
        del steps[-1]
    if cut is None:
        if steps and steps[-1] == PREFIX:
            steps[-1] = PREFIX | {"prepend": SPACE_MARK}
        steps.append(TO_MARKS)
    return steps, cut


def describe_decoder(rules: PieceRules) -> dict[str, Any]:
    """Return the decoder of a tokenizer.json."""
    steps: list[dict[str, Any]] = [{"type": "Replace", "pattern": TO_SPACES["pattern"]}]
    steps[0]["content"] = " "
    if rules.decoder == "token":
        always = {"prepend_scheme": "always", "split": rules.splits}
        steps = [{"type": "Metaspace", "replacement": SPACE_MARK} | always]
    steps += [{"type": "ByteFallback"}, {"type": "Fuse"}]
    if rules.decoder in ("first", "each"):
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {"type": "Sequence", "decoders": steps}


def name_pieces(vocabulary: Vocabulary) -> dict[int, str]:
    """Return each id's text as a model spells it; VocabularyError if two texts are equal."""
    rules = _rules(vocabulary)
    special = {number: text for text, number in vocabulary.special_tokens.items()}
    names: dict[int, str] = {}
    for number, kind in enumerate(rules.kinds):
        token = vocabulary.tokens[number]
        if kind == BYTE:
            names[number] = f"<0x{token[0]:02X}>"
        elif number in special:
            # SentencePiece searches for its symbols in normalized text, where spaces are U+2581.
            spelled = special[number]
            is_symbol = bool(rules.ranks) and kind == USER
            names[number] = spelled.replace(" ", SPACE_MARK) if is_symbol else spelled
        elif kind == UNKNOWN and rules.ranks:
            # The token's own bytes are the text to which the unknown id decodes, not its name.
            names[number] = "<unk>"
        elif kind != ABSENT:
            names[number] = token.decode().replace(" ", SPACE_MARK)
    check_distinct(names, WRITTEN_ALIKE)
    return names


def pairs_by_score(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """Return the merges of a tokenizer.json: the last pair of each piece, sorted by score.

    Raises VocabularyError if no list of merges gives the same ids.
    """
    symbols, rules = vocabulary.piece_symbols, _rules(vocabulary)
    assert symbols is not None
    scores = np.frombuffer(rules.ranks, "<u4").tolist()
    ranks = {text: scores[number] for text, number in symbols.texts.items()}
    unused = set(rules.ids_of(UNUSED))
    found = {text: last_pair(text, ranks) for text in ranks if len(text) > 1}
    pairs = {text: pair for text, pair in found.items() if pair is not None}
    for text, pair in pairs.items():
        if symbols.texts[text] in unused:
            raise VocabularyError(
                f"the unused piece {quote(text)} is made and split again, which a tokenizer.json "
                "can't do"
            )
        for part in pair:
            if symbols.texts.get(part, -1) in (-1, *unused):
                raise VocabularyError(
                    f"the character {quote(part)} is no piece, but the piece {quote(text)} is made "
                    "of it, which a tokenizer.json can't do"
                )
    order = sorted(pairs, key=lambda text: (ranks[text], -len(text)))
    for _, group in groupby(order, key=ranks.__getitem__):
        equal = [*group]
        if len(equal) > 1 and not _is_run(equal, pairs):
            raise VocabularyError(
                f"the pieces {quote(equal[0])} and {quote(equal[1])} have equal scores: the "
                "leftmost of the two merges first, which a tokenizer.json can't say"
            )
    return [
        (left.replace(" ", SPACE_MARK), right.replace(" ", SPACE_MARK))
        for left, right in map(pairs.__getitem__, order)
    ]


def _is_run(texts: Sequence[str], pairs: Mapping[str, tuple[str, str]]) -> bool:
    """Whether merging by the list of pairs gives the same pieces as merging by score.

    texts: pieces with equal scores, the longest first. pairs: for each piece, the pair whose merge
    makes it.

    Returns True only if the pieces are runs of one character, and no other piece contains them. The
    runs of this character in a text then do not affect each other. If the first characters of a
    long run become the longest piece before any other merge, this piece stays, and the rest is a
    shorter run. So it is enough to compare both ways of merging on short runs.
    """
    longest = len(texts[0])
    parts = {part for text, pair in pairs.items() if text not in texts for part in pair}
    is_alone = len({*"".join(texts)}) == 1 and parts.isdisjoint(texts)
    if longest > _LONGEST_RUN or len(texts[-1]) != 2 or not is_alone:
        return False
    lengths = {len(text) for text in texts}
    listed = {
        (len(left), len(right)): place
        for place, (left, right) in enumerate(map(pairs.__getitem__, texts))
    }
    for length in range(2, 2 * longest + 1):
        by_score = _merge_run(length, lambda left, right: 0 if left + right in lengths else None)
        by_list = _merge_run(length, lambda left, right: listed.get((left, right)))
        if by_score[-1] != by_list[-1]:
            return False
    first = [longest] + [1] * longest
    return first in by_score and first in by_list


def _merge_run(length: int, rank: Callable[[int, int], int | None]) -> list[list[int]]:
    """Merge `length` equal characters; return the lengths of the symbols after each merge.

    rank: given the lengths of two neighbours, returns their rank; None if they do not merge.
    """
    parts = [1] * length
    states: list[list[int]] = []
    while True:
        ranks = ((rank(*pair), place) for place, pair in enumerate(pairwise(parts)))
        found = [(value, place) for value, place in ranks if value is not None]
        if not found:
            return states
        _, place = min(found)
        parts = [*parts[:place], parts[place] + parts[place + 1], *parts[place + 2 :]]
        states.append(parts)


def describe_llama(
    vocabulary: Vocabulary, texts: dict[int, str], kinds: dict[int, int], note: Note
) -> dict[str, Any]:
    """Return the metadata of merges for a GGUF file, and change texts and kinds for llama.cpp.

    texts: see `name_pieces`; also has texts for ids without a token. kinds: by id. note: called
    with a note on texts that get other ids.

    Raises VocabularyError if llama.cpp can't give the same ids.
    """
    rules = _rules(vocabulary)
    if not rules.has_bytes:
        raise VocabularyError(f"{_LLAMA} needs byte tokens, which the vocabulary does not have")
    if vocabulary.ignore_merges:
        raise VocabularyError(f"{_LLAMA} always applies merges, but this vocabulary ignore_merges")
    steps = _steps(vocabulary, _LLAMA)
    if steps not in ([TO_SPACES], [PREFIX, TO_SPACES]):
        types = ", ".join(step["type"] for step in steps)
        raise VocabularyError(f"{_LLAMA} can't normalize text by the steps {types}")
    has_prefix = steps[0] == PREFIX
    if has_prefix and rules.ranks:
        _refuse_symbols(vocabulary, f"{_LLAMA} would put")
    texts |= {number: f"[UNUSED{number}]" for number in unused_characters(vocabulary)}
    ranks = _ranks_for_llama(vocabulary, texts, kinds)
    if rules.ranks:  # llama.cpp searches for symbols before it turns spaces into U+2581
        for number in rules.ids_of(USER):
            if SPACE_MARK in texts[number]:
                texts[number] = texts[number].replace(SPACE_MARK, " ")
                note(f"{_LLAMA} finds {quote(texts[number])} in spaces only, not in U+2581")
    _refuse_overlaps([texts[number] for number in rules.ids_of(USER)])
    if vocabulary.unknown_token is not None:
        kinds[vocabulary.unknown_token] = UNKNOWN
    return {
        "tokenizer_model": "llama",
        "tokenizer_pre": "default",
        "token_scores": [-float(ranks[number]) for number in sorted(ranks)],
        "add_space_prefix": has_prefix,
        "unk_token_id": vocabulary.unknown_token,
    }


def _ranks_for_llama(
    vocabulary: Vocabulary, texts: Mapping[int, str], kinds: Mapping[int, int]
) -> dict[int, int]:
    """Return ranks by id with which llama.cpp makes the merges of the vocabulary.

    Raises VocabularyError for a token that llama.cpp would make from another pair, or in another
    order.
    """
    rules, symbols = _rules(vocabulary), vocabulary.piece_symbols
    assert symbols is not None
    worst = vocabulary.size + len(vocabulary.merges)
    places: dict[tuple[int, int], int] = {}
    ranks = dict.fromkeys(texts, worst)
    if rules.ranks:
        scores = np.frombuffer(rules.ranks, "<u4").tolist()
        ranks |= {n: scores[n] for n in rules.ids_of(NORMAL, UNUSED)}
    else:
        made = set(symbols.texts.values())
        for place, (left, right, result) in enumerate(vocabulary.merges.tolist()):
            if result in made:
                places[left, right] = place
                ranks[result] = min(ranks[result], place)
    by_text = {text: ranks[number] for number, text in texts.items()}
    ids = {text: number for number, text in texts.items()}
    # Rank, position of the last pair, and text of each token.
    order: list[tuple[int, int, str]] = []
    for number, text in texts.items():
        stands_alone = kinds[number] == USER and (rules.ranks or SPACE_MARK not in text)
        pair = None if len(text) < 2 or stands_alone else last_pair(text, by_text)
        if pair is None or (rules.ranks and kinds[number] == NORMAL):
            continue
        listed = ids.get(pair[0], -1), ids.get(pair[1], -1)
        if listed not in places:
            left, right = map(quote, pair)
            raise VocabularyError(
                f"{_LLAMA} would merge {left} and {right} to the token {quote(text)}; here they "
                "do not merge"
            )
        order.append((ranks[number], places[listed], text))
    order.sort()
    for (_, place, text), (_, following, other) in pairwise(order):
        if place > following:
            raise VocabularyError(
                f"{_LLAMA} would make the token {quote(text)} before {quote(other)}; here the "
                "order of their merges is the other"
            )
    return ranks


def _refuse_overlaps(symbols: list[str]) -> None:
    begun: dict[str, set[str]] = {}  # symbols by each text with which they begin
    for text in symbols:
        for end in range(1, len(text)):
            begun.setdefault(text[:end], set()).add(text)
    for left in symbols:
        for begin in range(1, len(left)):
            for right in begun.get(left[begin:], ()):
                if right != left and len({*left, *right}) > 1:
                    raise VocabularyError(
                        f"the user-defined tokens {quote(left)} and {quote(right)} may overlap, "
                        f"and {_LLAMA} would look for the longer one first"
                    )


def _refuse_symbols(vocabulary: Vocabulary, tool: str) -> None:
    if found := vocabulary.always_allowed:
        raise VocabularyError(
            f"the model has the user-defined piece {quote(found[0])} and a dummy prefix, which "
            f"{tool} after the piece, too"
        )


def _steps(vocabulary: Vocabulary, tool: str) -> list[dict[str, Any]]:
    """Return the steps of a vocabulary's normalizer, as dicts of a tokenizer.json.

    tool: the tool or file that the error message names. Raises VocabularyError for a step of type
    SentencePiece: only the library SentencePiece can apply this step.
    """
    steps = steps_of(vocabulary.normalizer)
    for step in steps:
        if step["type"] == "SentencePiece":
            names = ("charsmap", "remove_extra_whitespaces", "suffix")
            rules = ", ".join(name for name in names if step[name])
            raise VocabularyError(
                f"{tool} can't hold the model's normalizer, which has SentencePiece's {rules}"
            )
    return steps


def _rules(vocabulary: Vocabulary) -> PieceRules:
    assert vocabulary.pieces is not None
    return vocabulary.pieces
