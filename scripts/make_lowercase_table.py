"""Write llmgpu/text/lowercase.txt: what Hugging Face tokenizers make of each character."""

from __future__ import annotations

from pathlib import Path

import tokenizers
from tokenizers import normalizers

TARGET = Path("llmgpu/text/lowercase.txt")
HEAD = f"""\
# Lowercase of characters, as tokenizers {tokenizers.__version__} has it.
# Made by scripts/make_lowercase_table.py: do not edit. Runs of characters, hexadecimal: the first,
# the step to the next, how many, and what the first becomes; the others become as many more.
"""


def lowercase() -> dict[int, list[int]]:
    """Return what each code point becomes, if that is another one."""
    lower = normalizers.Lowercase().normalize_str
    codes = [*range(0xD800), *range(0xE000, 0x110000)]
    return {
        code: list(map(ord, lower(chr(code)))) for code in codes if lower(chr(code)) != chr(code)
    }


def runs(table: dict[int, list[int]]) -> list[str]:
    """Return the table in runs."""
    entries, done = [], set()
    for code, becomes in table.items():
        if code in done:
            continue

        def length(step: int, code: int = code, becomes: list[int] = becomes) -> int:
            count = 1
            while len(becomes) == 1 and table.get(code + count * step) == [
                becomes[0] + count * step
            ]:
                count += 1
            return count

        step = max((1, 2), key=length)
        done |= {code + k * step for k in range(length(step))}
        spelled = "+".join(f"{each:x}" for each in becomes)
        entries.append(f"{code:x}+{step:x}*{length(step):x}={spelled}")
    return entries


def main() -> None:
    lines, line = [], ""
    for entry in runs(lowercase()):
        if len(line) + len(entry) > 99:
            lines.append(line)
            line = ""
        line = f"{line} {entry}".strip()
    TARGET.write_text(HEAD + "\n".join([*lines, line]) + "\n", encoding="ascii")


if __name__ == "__main__":
    main()
