"""The options of training a vocabulary that the command line declares. Does not import NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmgpu.bpe.pretokens.names import DEFAULT_PATTERN
from llmgpu.bpe.vocabulary import MATCH_RULES, TIE_RULES
from llmgpu.option_fields import option

if TYPE_CHECKING:
    from llmgpu.bpe.vocabulary.vocabulary import Vocabulary

ENGINES = ("batched", "recount")


@dataclass(frozen=True)
class DeclaredOptions:
    """The fields of `TrainingOptions` that are options of ``llmgpu bpe-train``."""

    # fmt: off
    vocab_size: int = option(
        32768, "sizes",
        "Vocabulary size, including special tokens and the tokens of a seed. Several sizes are "
        "written to v-8192.bin, v-32768.bin and so on.", metavar="N[,N...]",
        settings={"default": "32768"})
    pattern: str = option(
        DEFAULT_PATTERN, "pattern",
        "Split text into pre-tokens by this pattern; no token crosses their boundaries.",
        default_words=f"the pattern of the seed or counts, else {DEFAULT_PATTERN}")
    min_frequency: int = option(2, int, "Merge only pairs that occur at least this often.")
    max_token_length: int | None = option(
        None, int, "Longest token to make (one less than Hugging Face's max_token_length).",
        metavar="BYTES", least=1)
    special_tokens: tuple[str, ...] = option(
        (), "text",
        "Reserve an id for this token. In the corpus, it separates documents and is not counted. "
        "Repeatable.", "--special-token", metavar="TEXT", many=True)
    tie: str = option(
        "hf", TIE_RULES,
        "Merge equally frequent pairs in the order of Hugging Face tokenizers (hf) or by byte "
        "value (bytes).", default_words="the seed's rule, else hf")
    match: str | None = option(
        None, MATCH_RULES,
        "How words become tokens: merges in order (bpe) or longest token first (greedy).",
        default_words="the seed's rule, else bpe")
    seed: Vocabulary | None = option(
        None, str,
        "Extend this vocabulary: its tokens keep their ids and its merges come first.",
        "--seed-vocab", metavar="VOCAB")
    engine: str = option(
        "batched", ENGINES,
        "Merge many pairs of the distinct words at a time (batched), or recount the whole text for "
        "each merge (recount, GPU only). The merges are the same.")
    # fmt: on
