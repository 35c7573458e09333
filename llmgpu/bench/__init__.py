"""The parts and options of the benchmarks, which compare llmgpu with other programs ("peers").

The answers of every engine and peer are compared with the CPU's. A result with a wrong answer has
no times.

``--help`` imports this module, so this module imports no module that computes.
"""

from __future__ import annotations

from dataclasses import dataclass

from llmgpu.bpe.pretokens.names import PATTERNS
from llmgpu.bpe.vocabulary import MATCH_RULES
from llmgpu.errors import LlmgpuError
from llmgpu.option_fields import check_ranges, option

BPE_TRAIN, TOKENIZE, EMBEDDING, KERNELS = "bpe-train", "tokenize", "embedding", "kernels"
TRAIN, GENERATE, STARTUP, IDEAS = "train", "generate", "startup", "ideas"
TEXT_PARTS = (BPE_TRAIN, TOKENIZE)
PARTS = (*TEXT_PARTS, EMBEDDING, KERNELS, TRAIN, GENERATE, STARTUP, IDEAS)
ALL = "all"  # a value of --device and of the argument WHAT
GENERATED = "generated"  # a value of --corpus
DEFAULT_LIMIT = 20_000_000
DEFAULT_VOCAB_SIZE = 8192
DEFAULT_PATTERN = "gpt2"  # a pattern that all peers know
DEFAULT_RUNS = 5
DEFAULT_THRESHOLD = 0.1
QUICK_SIZES = {"limit": 1_000_000, "vocab_size": 1024, "runs": 2}


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """The parts of the benchmark to measure, and the sizes of their jobs.

    parts: names in PARTS. vocab_size, pattern: size and pattern of the vocabulary to train; not
    used with `vocab`, whose size and pattern are used instead.

    Raises:
        LlmgpuError: an option is out of range.
    """

    # fmt: off
    parts: tuple[str, ...] = PARTS
    devices: tuple[str, ...] = option(
        (ALL,), str,
        "Device to measure; all, the default, is the CPU and every GPU. Repeatable.", "--device",
        metavar="all|cpu|gpu|NAME", many=True, settings={"show_default": False})
    corpus: tuple[str, ...] = option(
        (), str,
        "Text to measure on; generated: text of any size, with a realistic number of distinct "
        "words. Repeatable.  [default: the source of Python's standard library]", metavar="PATH",
        many=True)
    limit: int = option(
        DEFAULT_LIMIT, "bytes", "Use at most this much text.", metavar="SIZE", default_words="20MB")
    vocab_size: int = option(
        DEFAULT_VOCAB_SIZE, "vocabulary size", "Size to train to.", metavar="N", least=257,
        default_words=str(DEFAULT_VOCAB_SIZE))
    pattern: str = option(
        DEFAULT_PATTERN, PATTERNS, "Pattern that splits text into pre-tokens.")
    vocab: str | None = option(
        None, str, "Tokenize with this vocabulary and its pattern instead of training one.",
        metavar="VOCAB")
    match: str | None = option(
        None, MATCH_RULES,
        "Tokenize with this rule only: merges in order (bpe) or longest token first (greedy).",
        default_words="the vocabulary's rule, and greedy")
    runs: int = option(
        DEFAULT_RUNS, "count", "Runs per measurement.", default_words=str(DEFAULT_RUNS))
    peers: bool = option(True, bool, "Also measure other programs.", "--peers/--no-peers")
    quick: bool = option(
        False, bool,
        "Use smaller sizes unless set otherwise: 1MB of text, 1024 ids and 2 runs.")
    # fmt: on

    def __post_init__(self) -> None:
        check_ranges(self)
        if unknown := set(self.parts) - set(PARTS):
            raise LlmgpuError(f"unknown part {min(unknown)!r}; there are {', '.join(PARTS)}")
        for name, value in (("vocabulary", self.vocab), ("match rule", self.match)):
            if value is not None and TOKENIZE not in self.parts:
                raise LlmgpuError(f"a {name} is only for {TOKENIZE}, which is not measured here")
