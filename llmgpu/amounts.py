"""Amounts with a unit, in options and the environment: 4096, 100MB, 2GiB."""

from __future__ import annotations

import re
from collections.abc import Mapping

from llmgpu.errors import InputError
from llmgpu.input_files import quote

BYTE_UNITS = {
    "": 1,
    "B": 1,
    **dict.fromkeys(("K", "KB"), 10**3),
    **dict.fromkeys(("M", "MB"), 10**6),
    **dict.fromkeys(("G", "GB"), 10**9),
    **dict.fromkeys(("T", "TB"), 10**12),
    "KIB": 1 << 10,
    "MIB": 1 << 20,
    "GIB": 1 << 30,
    "TIB": 1 << 40,
}
BYTE_EXAMPLES = "4096, 100MB or 2GiB"
_MOST_DIGITS = 18  # most digits before the point, and after it; no text has 10**18 bytes or tokens


def parse_amount(text: str, units: Mapping[str, int], name: str, one: str, examples: str) -> int:
    """Return the number spelled by a text. An amount such as 1.5KB is rounded down to whole bytes.

    units: size of each unit, by the unit's name in capitals.
    name, one, examples: words of the error message: the kind of amount ("size"), the smallest
        unit ("byte") and valid spellings.

    Raises InputError for a text that is not a number with a known unit, for an amount below 1, and
    for a fraction of the smallest unit.
    """
    number = rf"-?(\d{{1,{_MOST_DIGITS}}}(?:\.\d{{1,{_MOST_DIGITS}}})?)"
    match = re.fullmatch(rf"\s*{number}\s*([A-Za-z]*)\s*", text, re.ASCII)
    if match is None or match[2].upper() not in units:
        raise InputError(f"{quote(text)} is not a {name}; write {examples}")
    whole, _, decimals = match[1].partition(".")
    one_of_unit = units[match[2].upper()]
    amount: int = int(whole + decimals) * one_of_unit // 10 ** len(decimals)
    if amount < 1 or "-" in text:
        raise InputError(f"{quote(text)} is less than one {one}".rstrip())
    if one_of_unit == 1 and decimals.strip("0"):
        raise InputError(f"{quote(text)} is not a whole number; write {examples}")
    return amount


def parse_bytes(text: str) -> int:
    """Return the number of bytes that a text spells: 1 MB is 10**6 bytes, 1 MiB is 2**20.

    Raises InputError for any other text.
    """
    return parse_amount(text, BYTE_UNITS, "size", "byte", BYTE_EXAMPLES)
