"""The options of training a vocabulary: their checks, and values that follow from them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import index
from typing import Any, SupportsIndex

from llmgpu.bpe.pretokens.blocks import Pattern
from llmgpu.bpe.pretokens.pattern import get_pattern
from llmgpu.bpe.pretokens.unicode_classes import DEFAULT_VERSION
from llmgpu.bpe.training.declared import ENGINES, DeclaredOptions
from llmgpu.bpe.training.symbols import SeedSymbols, seed_symbols
from llmgpu.bpe.vocabulary import MATCH_RULES, TIE_RULES
from llmgpu.bpe.vocabulary.building import byte_ranks, byte_vocabulary, listed_merges
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.bpe.words.distinct_words import WordCounts
from llmgpu.errors import InputError, LlmgpuError, VocabularyError
from llmgpu.forking import cached_property
from llmgpu.input_files import number_of, quote, require_known
from llmgpu.text.corpus import CorpusOptions

MAX_VOCABULARY = 1 << 20
UNICODE_FACT = "Unicode version"
RECOUNT_SLOTS = 1024  # 8 KiB of workgroup memory


@dataclass(frozen=True)
class TrainingOptions(DeclaredOptions):
    """The options of ``llmgpu bpe-train``, and further options of the library.

    vocab_size: upper bound of the number of ids, special tokens included.
    pattern: name of the pattern; an alias is replaced by the name.
    min_frequency: merge only pairs that occur at least this often; 0 has the effect of 1.
    special_tokens: texts of the last ids, in this order.
    tie: decides between equally frequent pairs, see `llmgpu.bpe.vocabulary.building`.
    max_token_length: make no token of more bytes; None for no limit.
    match: how the vocabulary is applied, "bpe" or "greedy"; None for the seed's rule, or "bpe"
        without a seed. The merges are the same.
    seed: a vocabulary whose tokens keep their ids, and whose merges come first. Its tie rule must
        be the `tie` of the options. With another pattern than the seed's own, the seed's merges are
        applied to text cut by the new pattern, so that new tokens may cross the seed's boundaries.
    engine: "batched" merges the distinct words, many pairs at a time; "recount" counts the whole
        text again for each merge, on a GPU.
    smaller_sizes: further vocabulary sizes, each less than `vocab_size`.
    recount_slots: size of the recount engine's table in workgroup memory, a power of two. The size
        changes only the speed.
    threads: CPU threads that count words; None: see `llmgpu.bpe.words.count_host`.
    unicode: version of the pattern's character classes. With a seed of the same pattern, it must be
        the seed's version.

    Raises:
        LlmgpuError: an option is out of range, or contradicts the seed.
        VocabularyError: the seed can't be extended.
    """

    smaller_sizes: tuple[int, ...] = ()
    recount_slots: int = RECOUNT_SLOTS
    threads: int | None = None
    unicode: str = DEFAULT_VERSION

    def __post_init__(self) -> None:
        object.__setattr__(self, "pattern", get_pattern(self.pattern, self.unicode).name)
        require_known("tie rule", self.tie, TIE_RULES, LlmgpuError)
        require_known("engine", self.engine, ENGINES, LlmgpuError)
        if self.match is not None:
            require_known("match rule", self.match, MATCH_RULES, LlmgpuError)
        # Check the types and ranges of numbers and texts.
        self._make_ints()
        for text in self.special_tokens:
            if not isinstance(text, str):
                raise TypeError(f"a special token is a str, not {type(text).__name__}")
        for size in (*self.smaller_sizes, self.vocab_size):
            self._check_size(size)
        if self.min_frequency < 0:
            raise LlmgpuError(f"the minimum frequency is {self.min_frequency}; use 0 or more")
        if self.max_token_length is not None and self.max_token_length < 1:
            raise LlmgpuError(
                f"the maximum token length is {self.max_token_length} bytes; use 1 or more"
            )
        if len(set(self.special_tokens)) != len(self.special_tokens) or "" in self.special_tokens:
            raise LlmgpuError("special tokens must differ from one another and not be empty")
        # Check the options against the seed.
        if self.seed is not None:
            self._check_seed(self.seed)
            _ = self.symbols  # raises VocabularyError if the seed can't be extended

    @cached_property
    def cut(self) -> Pattern:
        """The pattern with the character classes of the options' Unicode version."""
        return get_pattern(self.pattern, self.unicode)

    @property
    def merges(self) -> int:
        """Number of merges that make a new token, for the largest vocabulary."""
        return self.new_tokens(self.vocab_size)

    @property
    def sizes(self) -> tuple[int, ...]:
        """All vocabulary sizes to train, ascending."""
        return tuple(sorted({*self.smaller_sizes, self.vocab_size}))

    @property
    def separators(self) -> tuple[bytes, ...]:
        """All special tokens, the seed's included. They separate documents and are not counted."""
        of_seed = self.seed.special_tokens if self.seed else ()
        return tuple(text.encode(errors="replace") for text in (*of_seed, *self.special_tokens))

    def separating(self, reading: CorpusOptions) -> CorpusOptions:
        """Return options of reading with the special tokens as further separators."""
        return replace(reading, separators=(*reading.separators, *self.separators))

    @cached_property
    def start(self) -> Vocabulary:
        """The vocabulary that training extends: the 256 bytes, or the seed with this pattern."""
        if self.seed is None:
            start = byte_vocabulary(self.pattern, self.tie, self.unicode)
            return start.with_match(self.match or start.match)
        seed = self.seed
        if seed.pattern != self.pattern:
            expression = self.cut.expression
            seed = replace(seed, pattern=self.pattern, expression=expression, unicode=self.unicode)
        by_ranks = seed.match == "bpe" and len(seed.merges) == 0
        if by_ranks:
            # Training appends to a list of merges, so a seed that has only ranks gets a list.
            return replace(seed, merges=listed_merges(seed), ignore_merges=True)
        return seed

    @cached_property
    def symbols(self) -> SeedSymbols:
        """The tokens of `start` as symbols."""
        return seed_symbols(self.start, byte_ranks(self.tie))

    def facts(self) -> dict[str, Any]:
        """Return the options that determine the vocabulary: JSON values by readable names."""
        unicode = self.cut.unicode
        return {
            "vocabulary sizes": list(self.sizes),
            "pattern": self.cut.expression,
            **({UNICODE_FACT: unicode} if unicode else {}),
            "minimum frequency": self.min_frequency,
            "special tokens": list(self.special_tokens),
            "tie rule": self.tie,
            "longest token": self.max_token_length,
            "seed vocabulary": None if self.seed is None else self.seed.fingerprint,
            **({"match rule": self.match} if self.seed is None and self.match == "greedy" else {}),
        }

    def new_tokens(self, size: int) -> int:
        """Return the number of new tokens in a vocabulary of `size` ids."""
        first = 256 if self.seed is None else self.seed.size
        return size - first - len(self.special_tokens)

    def _make_ints(self) -> None:
        """Convert NumPy integers to int; raise TypeError for any other type."""
        size = "a vocabulary size"
        made: dict[str, Any] = {
            "vocab_size": _as_int(self.vocab_size, size),
            "smaller_sizes": tuple(_as_int(each, size) for each in self.smaller_sizes),
            "min_frequency": _as_int(self.min_frequency, "the minimum frequency"),
        }
        if self.max_token_length is not None:
            made["max_token_length"] = _as_int(self.max_token_length, "the maximum token length")
        for name, value in made.items():
            object.__setattr__(self, name, value)

    def _check_size(self, size: int) -> None:
        least = size - self.new_tokens(size)
        if size > self.vocab_size:
            raise LlmgpuError(f"the smaller size {size} is more than {self.vocab_size}")
        if least <= size <= MAX_VOCABULARY:
            return
        first = "the 256 bytes" if self.seed is None else f"{self.seed.size} of the seed vocabulary"
        special = len(self.special_tokens)
        first += f" and {number_of(special, 'special token')}" if special else ""
        raise LlmgpuError(
            f"the vocabulary size is {size}; it must be from {least} ({first}) to {MAX_VOCABULARY}"
        )

    def _check_seed(self, seed: Vocabulary) -> None:
        if seed.pieces is not None:
            raise VocabularyError("a vocabulary of SentencePiece's kind can't be extended")
        kept = seed.classes_version if seed.pattern == self.pattern else self.cut.unicode
        for what, own, given in (
            ("tie rule", seed.tie, self.tie),
            ("match rule", seed.match, self.match or seed.match),
            (UNICODE_FACT, kept, self.cut.unicode),
        ):
            if own != given:
                raise LlmgpuError(
                    f"the {what} of the seed vocabulary is {quote(own)} and can't change to "
                    f"{quote(given)}"
                )
        for text in self.special_tokens:
            spelled = text.encode(errors="replace")
            is_part = any(spelled in token for token in seed.ordinary_tokens)
            if text in seed.special_tokens or is_part:
                raise LlmgpuError(
                    f"special token {quote(text)} is already a token of the seed vocabulary, or a "
                    "part of one: choose another text"
                )


def _as_int(number: object, what: str) -> int:
    if not isinstance(number, SupportsIndex):
        raise TypeError(f"{what} is an int, not {type(number).__name__}")
    return index(number)


def require_counted_for(counts: WordCounts, options: TrainingOptions) -> None:
    """Raise InputError unless the words were counted as the options of this training require."""
    for what, counted, wanted in (
        ("pattern", counts.pattern, options.pattern),
        ("Unicode version", counts.cut.unicode, options.cut.unicode),
    ):
        if counted != wanted:
            raise InputError(
                f"{counts.source}: the words were cut by {what} {quote(counted)}, not by "
                f"{quote(wanted)}: count the corpus again"
            )
    for text in options.separators:
        if text not in counts.separators:
            raise InputError(
                f"{counts.source}: special token {quote(text.decode())} was counted as ordinary "
                "text: count the corpus again with it"
            )
