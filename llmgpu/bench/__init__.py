"""Benchmarks of llmgpu on this machine, next to other programs ("peers"): what can be asked for.

A wrong answer gets no time: the answers of every engine and peer are compared with those of
the CPU first.

``--help`` imports this module, so it imports nothing that computes.
"""

from __future__ import annotations

from dataclasses import dataclass

from llmgpu.errors import LlmgpuError

BPE_TRAIN, TOKENIZE, EMBEDDING, KERNELS = "bpe-train", "tokenize", "embedding", "kernels"
TRAIN, GENERATE, STARTUP = "train", "generate", "startup"
TEXT_PARTS = (BPE_TRAIN, TOKENIZE)
PARTS = (*TEXT_PARTS, EMBEDDING, KERNELS, TRAIN, GENERATE, STARTUP)
ALL = "all"  # devices
GENERATED = "generated"  # a corpus
DEFAULT_LIMIT = 20_000_000
DEFAULT_VOCAB_SIZE = 8192
DEFAULT_PATTERN = "gpt2"  # which all peers know
DEFAULT_RUNS = 5
DEFAULT_THRESHOLD = 0.1
QUICK_LIMIT = 1_000_000
QUICK_VOCAB_SIZE = 1024
QUICK_RUNS = 2


@dataclass(frozen=True)
class BenchOptions:
    """Parts to measure, and their sizes.

    parts: of PARTS. devices: as ``--device`` takes them, or "all". corpus: sources; none stands for
    Python's standard library. limit: the most bytes of text to take. pattern: how text is cut.
    runs: measurements of each engine. peers: whether to measure other programs.
    vocabulary: file to tokenize with, whose size and pattern replace those given; None trains one.
    match: the rule to tokenize by; None for that of the vocabulary, and greedy.
    quick: whether to take smaller sizes where no option gives one.

    Raises:
        LlmgpuError: an option is out of range.
    """

    parts: tuple[str, ...] = PARTS
    devices: tuple[str, ...] = (ALL,)
    corpus: tuple[str, ...] = ()
    limit: int = DEFAULT_LIMIT
    vocab_size: int = DEFAULT_VOCAB_SIZE
    pattern: str = DEFAULT_PATTERN
    runs: int = DEFAULT_RUNS
    peers: bool = True
    vocabulary: str | None = None
    match: str | None = None
    quick: bool = False

    def __post_init__(self) -> None:
        from llmgpu.bpe.pretokens.pattern import get_pattern

        get_pattern(self.pattern)
        unknown = set(self.parts) - set(PARTS)
        if unknown:
            raise LlmgpuError(f"unknown part {min(unknown)!r}; there are {', '.join(PARTS)}")
        for name, value in (("vocabulary", self.vocabulary), ("match rule", self.match)):
            if value is not None and TOKENIZE not in self.parts:
                raise LlmgpuError(f"a {name} is only for {TOKENIZE}, which is not measured here")
        if self.runs < 1:
            raise LlmgpuError(f"{self.runs} runs measure nothing; use 1 or more")
        if self.vocab_size < 257:
            raise LlmgpuError(
                f"a vocabulary of {self.vocab_size} tokens has no merges; use 257 or more"
            )
