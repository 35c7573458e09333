r"""Text made of several fields of a row by a template, such as ``{question}\n{answer}``.

``{field}`` is replaced by the value of a field, and ``{a.b}`` by the value of field ``b`` of the
object in field ``a``; ``{{`` and ``}}`` are braces. Python's other format specifications are
refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain, zip_longest
from typing import NamedTuple

from llmgpu.errors import InputError
from llmgpu.input_files import quote
from llmgpu.spelling import spelled

_PART = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[^{}]+", re.DOTALL)
_BETWEEN_FIELDS = "\n"


class MissingFieldError(InputError):
    """A row lacks the field, or a table lacks the column."""


class Template(NamedTuple):
    """Fields in order, and the texts before, between and after the fields."""

    fields: tuple[str, ...]
    texts: tuple[str, ...]

    @classmethod
    def joined(cls, fields: Sequence[str]) -> Template:
        """Return the template that joins one or more fields by newlines."""
        return cls(tuple(fields), ("", *[_BETWEEN_FIELDS] * (len(fields) - 1), ""))

    @classmethod
    def parse(cls, source: str) -> Template:
        """Parse a template such as ``{question} {answer}``.

        Raises InputError for a stray brace, or a text without a field.
        """
        fields: list[str] = []
        texts = [""]
        position = 0
        # Take one part after another: a doubled brace, a field, or text without braces.
        while position < len(source):
            found = _PART.match(source, position)
            if found is None:
                raise InputError(
                    f"the template {quote(source)} has a stray {source[position]} at character "
                    f"{position + 1}: a field is {{name}}, and a brace is {{{{ or }}}}"
                )
            if found[1] is None:
                texts[-1] += {"{{": "{", "}}": "}"}.get(found[0], found[0])
            elif not found[1] or re.search(r"[:!\[\]\s]", found[1]):
                raise InputError(
                    f"the template {quote(source)} has {found[0]}, which is not a field: write "
                    "{name} or {outer.name}, without conversions"
                )
            else:
                fields.append(found[1])
                texts.append("")
            position = found.end()
        if not fields:
            raise InputError(f"the template {quote(source)} has no field such as {{text}}")
        return cls(tuple(fields), tuple(texts))

    @property
    def source(self) -> str:
        """The text that spells the template."""
        texts = [text.replace("{", "{{").replace("}", "}}") for text in self.texts]
        fields = [f"{{{field}}}" for field in self.fields]
        return "".join(chain.from_iterable(zip_longest(texts, fields, fillvalue="")))

    def fill(self, values: Sequence[str]) -> str:
        """Return the text with these values in place of the fields, in the order of `fields`."""
        after = zip(values, self.texts[1:], strict=True)
        return self.texts[0] + "".join(value + text for value, text in after)


def field_hint(name: str, known: Sequence[str]) -> str:
    """Return the advice for a missing field, by its name and the names of the known fields."""
    numbers = [part for part in name.split(".") if part.isdecimal()]
    if numbers:
        return f"; fields are chosen by name, and {numbers[-1]} is no position in a row or a list"
    parts = [part.strip() for part in name.split(",")]
    if len(parts) < 2 or not {part.split(".")[0] for part in parts} <= set(known):
        choose, leave_out = spelled("--text-field"), spelled("--exclude")
        return f"; choose one with {choose}, or leave the file out with {leave_out}"
    flags = " ".join(f"--text-field {part}" for part in parts)
    return f"; for several fields, {spelled(flags, 'use a Template')}"
