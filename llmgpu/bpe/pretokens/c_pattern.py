"""Patterns for the CPU engine."""

from __future__ import annotations

from functools import lru_cache

from llmgpu.bpe.pretokens.blocks import Pattern
from llmgpu.bpe.pretokens.custom_regex import HostPattern
from llmgpu.bpe.pretokens.unicode_classes import DEFAULT_VERSION, code_point_classes
from llmgpu.cpu.library import RULES, CPattern


def make_c_pattern(pattern: Pattern) -> CPattern:
    """Return a pattern as the CPU engine takes it; NumPy marks starts by those that C has not."""
    is_known = pattern.kernel in RULES and not isinstance(pattern, HostPattern)
    rule = pattern.kernel if is_known else "marks"
    constants = pattern.constants
    return _make(
        rule,
        pattern.unicode or DEFAULT_VERSION,
        constants.get("DIGITS", 1),
        bool(constants.get("WHOLE_AT_END", 0)),
    )


@lru_cache(maxsize=16)
def _make(rule: str, unicode: str, digits: int, whole_at_end: bool) -> CPattern:
    return CPattern(rule, code_point_classes(unicode), digits, whole_at_end=whole_at_end)
