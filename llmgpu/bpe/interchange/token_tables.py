r"""Tokens and patterns in the spelling of other tools' files.

- GPT-2's byte-level alphabet writes a token as text: a printable character for each byte. A byte
  that is a printable Latin-1 character is written as this character. The other bytes are written as
  the characters from U+0100 on, in order.
- tokenizer.json and merges.txt contain one map of ids by text, and merges as pairs of texts.
  Special tokens are in the map with their own text, so two tokens with the same spelling can't both
  be written.

Patterns are written as regular expressions:

- A spelling belongs to the pattern with the same behaviour, not to the model that publishes it.
  tokenizer.json files of cl100k have the expression of Llama 3. This expression divides white space
  that ends a text after its last newline; OpenAI's expression, with ``\s++$``, does not.
- The engines differ. In Oniguruma, the engine of Hugging Face, ``{1,3}+`` is a repeated repetition,
  not a possessive repetition. So OpenAI's spelling of cl100k means something else in a
  tokenizer.json, and is not accepted.
- Patterns published over bytes are spelled over characters here. On valid UTF-8 both spellings
  match the same, and the other tools accept no other text.
- The other tools have the character classes of `unicode_classes.DEFAULT_VERSION`, and imported
  vocabularies get these classes.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llmgpu.bpe.pretokens.names import PATTERNS
from llmgpu.bpe.pretokens.pattern import get_pattern
from llmgpu.bpe.pretokens.unicode_classes import DEFAULT_VERSION
from llmgpu.bpe.vocabulary.building import ALPHABET
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import VocabularyError
from llmgpu.files import atomic_output, output_errors
from llmgpu.input_files import Note, listed, quote
from llmgpu.outputs import Output, check_outputs
from llmgpu.text.normalizing import get_normalizer

# Special tokens that end a text. If a vocabulary has several, the first in this list is used.
ENDS_OF_TEXT = ("<|endoftext|>", "<|end_of_text|>", "<|eos|>", "<eos>", "</s>", "[EOS]")

# Limit of the ids. Without it, a file with one large id would request as many empty tokens.
MAX_IDS = 1 << 22

_LETTERS = frozenset(ALPHABET)
_TO_TEXT = dict(enumerate(ALPHABET))
# U+FFFD, which Latin-1 can't encode, marks the Latin-1 characters that are not in the alphabet.
_TO_BYTES = {value: 0xFFFD for value in range(256)} | {
    ord(character): value for value, character in enumerate(ALPHABET)
}


def to_text(token: bytes) -> str:
    """Return a token as text in the byte-level alphabet."""
    return token.decode("latin-1").translate(_TO_TEXT)


def to_bytes(text: str) -> bytes:
    """Return the token spelled by `text`; VocabularyError if a character is not in the alphabet."""
    try:
        return text.translate(_TO_BYTES).encode("latin-1")
    except UnicodeEncodeError as error:
        raise VocabularyError(
            f"{quote(text)} is not written in the byte-level alphabet: {text[error.start]!r}"
        ) from error


def stands_for_bytes(text: str) -> bool:
    """Whether all characters of `text` are in the byte-level alphabet."""
    return _LETTERS.issuperset(text)


def find_end_of_text(special_tokens: Mapping[str, int]) -> str | None:
    """Return the first of ENDS_OF_TEXT among the special tokens, None if there is none."""
    return next((text for text in ENDS_OF_TEXT if text in special_tokens), None)


def check_id(what: str, number: object) -> int:
    """Return `number` if it is a valid id; otherwise raise VocabularyError with the name `what`."""
    if type(number) is int and 0 <= number < MAX_IDS:
        return number
    raise VocabularyError(f"{what} has id {quote(number)}: ids are whole numbers below {MAX_IDS}")


def place_tokens(ordinary: Mapping[int, bytes], special: Mapping[str, int]) -> tuple[bytes, ...]:
    """Return the tokens by id, empty for ids without a token.

    ordinary: tokens by id. special: ids by text. Raises VocabularyError if there are no tokens, two
    tokens share an id, or a special token is not valid Unicode.
    """
    size = max([*ordinary, *special.values()], default=-1) + 1
    if size == 0:
        raise VocabularyError("there are no tokens")
    tokens = [b""] * size
    for number, token in ordinary.items():
        tokens[number] = token
    owners: dict[int, bytes | str] = dict(ordinary)
    for text, number in special.items():
        if (other := owners.setdefault(number, text)) is not text:
            raise VocabularyError(
                f"special token {quote(text)} and {quote(other)} have the same id, {number}: "
                "remove one of them"
            )
        try:
            tokens[number] = text.encode()
        except UnicodeEncodeError as error:
            raise VocabularyError(f"special token {quote(text)} is not valid Unicode") from error
    return tuple(tokens)


def imported_vocabulary(
    tool: str,
    tokens: tuple[bytes, ...],
    special: dict[str, int],
    merges: ArrayLike,
    pattern: str,
    **rules: Any,
) -> Vocabulary:
    """Return the vocabulary of another tool.

    tokens: see `place_tokens`. special: ids by text. merges: ids of the left token, the right token
    and the result of each merge; may be empty. pattern: a name. rules: further fields of
    Vocabulary.

    Raises LlmgpuError for an unknown pattern.
    """
    cut = get_pattern(pattern)
    return Vocabulary(
        tokens=tokens,
        merges=np.asarray(merges, np.uint32).reshape(-1, 3),
        pattern=cut.name,
        expression=cut.expression,
        special_tokens=special,
        match="bpe",
        training={"imported_from": tool},
        **rules,
    )


def check_vocabulary_map(content: object) -> dict[str, int]:
    """Return `content` if it maps texts to distinct ids; otherwise raise VocabularyError."""
    if not isinstance(content, dict) or not content:
        raise VocabularyError("the map of tokens is missing")
    for text, number in content.items():
        check_id(f"token {quote(text)}", number)
    check_distinct(content, "tokens {} and {} have the same id, {}")
    return content


def number_merges(
    listed: Iterable[tuple[int, Any]], ids: Mapping[str, int], place: str = "merge {} of the list"
) -> NDArray[np.uint32]:
    """Convert merges of texts to merges of ids: uint32 (M, 3), each row (left, right, result).

    listed: merges with their numbers. A merge is a list of two texts, or one text with a space
        between the two.
    place: names a merge in an error, for `str.format`, which gets the number.

    Raises VocabularyError for any other entry, for a text without an id, for a pair that together
    spells no token, and for a repeated pair.
    """
    flat: list[int] = []
    try:
        for number, merge in listed:
            pair = merge.split(" ") if isinstance(merge, str) else merge
            are_texts = isinstance(pair, list) and all(isinstance(t, str) and t for t in pair)
            if not are_texts or len(pair) != 2:
                where = place.format(number)
                raise VocabularyError(f"{where} is not two tokens: {quote(merge)}")
            flat += ids[pair[0]], ids[pair[1]], ids[pair[0] + pair[1]]
    except KeyError as error:
        raise VocabularyError(
            f"a merge needs the token {quote(error.args[0])}, which is missing"
        ) from error
    merges = np.array(flat, np.uint32).reshape(-1, 3)
    keys = merges[:, 0].astype(np.uint64) << np.uint64(32) | merges[:, 1]
    _, firsts = np.unique(keys, return_index=True)
    if len(firsts) < len(merges):
        again = np.setdiff1d(np.arange(len(merges)), firsts)[0]
        raise VocabularyError(f"merge {again + 1} repeats an earlier one")
    return merges


def require_merging(vocabulary: Vocabulary, tool: str) -> None:
    """Raise VocabularyError unless the vocabulary merges bytes, which `tool` requires."""
    if vocabulary.pieces is not None:
        raise VocabularyError(
            f"a vocabulary of SentencePiece's kind can't be exported: {tool} has tokens of bytes, "
            "not of characters; huggingface and gguf can hold such a vocabulary"
        )
    if vocabulary.match != "bpe":
        raise VocabularyError(
            f"a vocabulary with greedy matching can't be exported: {tool} applies merges and would "
            "give other ids"
        )


def refuse_missing_bytes(missing: Sequence[int], effect: str) -> None:
    """Raise VocabularyError if bytes have no token.

    missing: these bytes. effect: the end of the message, which names the consequence in the tool.
    """
    if missing:
        raise VocabularyError(
            f"{len(missing)} bytes have no token, the first is 0x{missing[0]:02x}: {effect}"
        )


def needs_whole_tokens(vocabulary: Vocabulary, merges: NDArray[np.uint32]) -> bool:
    """Whether merging alone gives other ids, because pre-tokens may become tokens without merging.

    merges: of `listed_merges`, uint32 (M, 3).
    """
    longer = int((vocabulary.token_lengths[vocabulary.ordinary_ids] > 1).sum())
    is_made = len(set(merges[:, 2].tolist())) >= longer  # merges make all tokens
    return vocabulary.takes_whole_tokens and (len(vocabulary.merges) > 0 or not is_made)


def refuse_normalizing(vocabulary: Vocabulary, files: str) -> None:
    """Raise VocabularyError for a normalizer, and for flags of special tokens.

    files: the files that can't hold them, for the message.
    """
    refuse_added_flags(vocabulary, f"{files} can't hold")
    if vocabulary.normalizer is not None:
        name = get_normalizer(vocabulary.normalizer).name
        raise VocabularyError(f"{files} can't hold a normalizer ({name})")


def refuse_added_flags(vocabulary: Vocabulary, refusal: str) -> None:
    """Raise VocabularyError if special tokens have flags, because a format lacks them.

    refusal: the beginning of the message, such as "llama.cpp does not support".
    """
    for field, meaning in (
        ("normalized_tokens", "normalized special tokens"),
        ("lstrip_tokens", "special tokens that swallow the white space before them (lstrip)"),
        ("rstrip_tokens", "special tokens that swallow the white space after them (rstrip)"),
        ("single_word_tokens", "special tokens that count only as words (single_word)"),
    ):
        if getattr(vocabulary, field):
            raise VocabularyError(f"{refusal} {meaning}")


def name_bytes(vocabulary: Vocabulary, tool: str) -> dict[int, str]:
    """Return the texts of all tokens by id, ascending; an id without a token has no entry.

    Special tokens have their own text, and other tokens their text in the byte-level alphabet.

    Raises VocabularyError if two tokens have the same text, or if the vocabulary does not merge as
    the tool does.
    """
    require_merging(vocabulary, tool)
    special = {number: text for text, number in vocabulary.special_tokens.items()}
    tokens = enumerate(vocabulary.tokens)
    texts = {number: special.get(number) or to_text(token) for number, token in tokens if token}
    check_distinct(texts, WRITTEN_ALIKE)
    return texts


WRITTEN_ALIKE = "ids {} and {} would both be written {}: the format can't hold both"


def check_distinct(values: Mapping[Any, Any], message: str) -> None:
    """Raise VocabularyError if two keys have the same value.

    message: for `str.format`, which gets the two keys and the value.
    """
    first: dict[Any, Any] = {}
    for key, value in values.items():
        if first.setdefault(value, key) != key:
            raise VocabularyError(message.format(quote(first[value]), quote(key), quote(value)))


def name_pairs(texts: Mapping[int, str], merges: NDArray[np.uint32]) -> list[tuple[str, str]]:
    """Return the texts of the two tokens of each merge.

    texts: by id. merges: ids, uint32 (M, 3).
    """
    return [(texts[left], texts[right]) for left, right, _ in merges.tolist()]


def note_missing_bytes(vocabulary: Vocabulary, note: Note) -> None:
    """Write a note if some bytes have no token and no unknown token replaces them."""
    missing = vocabulary.missing_bytes
    if missing and vocabulary.unknown_token is None:
        shown = listed([f"0x{value:02x}" for value in missing])
        note(f"bytes without a token are an error here (other tools skip them): {shown}")


def note_unicode(vocabulary: Vocabulary, note: Note) -> None:
    """Write a note if other tools classify characters by another Unicode version."""
    version = vocabulary.classes_version
    if version not in (None, DEFAULT_VERSION):
        note(
            f"the pattern uses the character classes of Unicode {version}, other tools those of "
            f"{DEFAULT_VERSION}: text with characters that changed in between is split differently"
        )


def note_around(vocabulary: Vocabulary, note: Note) -> None:
    """Write a note if a vocabulary adds tokens around a text, which a format can't express."""
    if vocabulary.prefix_ids or vocabulary.suffix_ids:
        note("the format can't hold the tokens that --add-special-tokens adds around a text")


def write_files(
    files: Sequence[Output],
    contents: Sequence[bytes],
    *,
    force: bool,
    folder: str | Path | None = None,
) -> None:
    """Write files as one output: a file gets its name when all files are written.

    contents: bytes of each file; further entries are not written. force:
    see `formats.Writer.write`. folder: created if it is missing.

    Raises OutputError for files that can't be written.
    """
    check_outputs(files, force=force)
    if folder is not None:
        with output_errors(str(folder)):
            Path(folder).mkdir(exist_ok=True)
    with ExitStack() as stack:
        for file, content in zip(files, contents, strict=False):
            stack.enter_context(atomic_output(file.path)).write(content)


def _spellings(engine: str) -> dict[str, str]:
    """Return the spellings of patterns by name for an engine; some patterns have no spelling."""
    found = {name: p.spellings.get(engine, p.expression) for name, p in PATTERNS.items()}
    return {name: expression for name, expression in found.items() if expression is not None}


GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# The expressions that `export` writes, by the name of the pattern. None: the tool can't express the
# pattern.
TIKTOKEN, HUGGINGFACE = _spellings("tiktoken"), _spellings("huggingface")

# Names of patterns by expression, for all expressions of a tokenizer.json that `import` knows.
HUGGINGFACE_NAMES = {expression: name for name, expression in HUGGINGFACE.items()} | {
    GPT2: "gpt2",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?[\p{L}]+| ?[\p{N}]+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": "gpt2",
    TIKTOKEN["gpt2"]: "gpt2",
}


def expression_of(pattern: str, engine: dict[str, str]) -> str:
    """Return a pattern in the spelling of an engine, TIKTOKEN or HUGGINGFACE.

    Raises VocabularyError if the engine can't express the pattern.
    """
    if pattern not in engine:
        raise VocabularyError(f"the pattern {quote(pattern)} has no spelling for other tools")
    return engine[pattern]


def require_package(name: str, install: str | None = None) -> Any:
    """Import and return another tool's package; VocabularyError with a remedy if missing.

    install: name for pip, if it is another.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        remedy = f"pip install {install or name}"
        raise VocabularyError(f"the package {name} is missing: {remedy}") from error
