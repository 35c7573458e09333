"""All patterns by name; see `llmgpu.bpe.pretokens.pattern`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmgpu.registry import Entry, Registry

if TYPE_CHECKING:
    from llmgpu.bpe.pretokens.blocks import Pattern

_ROOM = "llmgpu.bpe.pretokens"

PATTERNS: Registry[Pattern] = Registry(
    {
        "class": Entry(f"{_ROOM}.byte_classes:PATTERN"),
        "gpt2": Entry(f"{_ROOM}.rule_patterns:GPT2"),
        "cl100k": Entry(f"{_ROOM}.rule_patterns:CL100K"),
        "rustbpe": Entry(f"{_ROOM}.rule_patterns:RUSTBPE"),
        "llama3": Entry(f"{_ROOM}.rule_patterns:LLAMA3"),
        "qwen2": Entry(f"{_ROOM}.rule_patterns:QWEN2"),
        "nanochat": Entry(f"{_ROOM}.rule_patterns:NANOCHAT"),
        "o200k": Entry(f"{_ROOM}.rule_patterns:O200K"),
        "none": Entry(f"{_ROOM}.blocks:NONE"),
    }
)
ALIASES = {"gpt4": "cl100k"}
DEFAULT_PATTERN = "cl100k"
