"""What the kernels' texts declare."""

from __future__ import annotations

import re

from llmgpu.gpu.source import read_wgsl

FIELD = re.compile(r"^\s*(\w+): ", re.MULTILINE)
CONSTANT = re.compile(r"(?:const|override) (\w+): u32 = (\w+)u;")


def struct_fields(file: str, struct: str) -> list[str]:
    """Names of a struct's fields, in order."""
    body = read_wgsl(file).split(f"struct {struct} {{")[1].split("}")[0]
    return FIELD.findall(body)


def shader_constants(file: str) -> dict[str, int]:
    """Whole numbers that are constants of a file."""
    return {name: int(value, 0) for name, value in CONSTANT.findall(read_wgsl(file))}
