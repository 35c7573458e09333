"""Tokens for people to look at: what a text is cut into, and where."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.vocabulary.spelling import readable
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.tokens.sinks import PreparedSlice, TokenWriter

Style = Literal["lines", "colours", "borders"]

# Black on one of the first by turns; special tokens are white on the others. Of the palette of 256.
_GROUNDS = (153, 157, 229, 217)
_SPECIAL_GROUNDS = (88, 54)
_BORDER = "│"


class ShownTokens(TokenWriter):
    """Writes tokens by their text, as `readable` gives it, documents apart by an empty line.

    Style "lines" has a line for each token, its id and its text; "colours" and "borders" show the
    text, lines broken where it breaks them, with tokens on grounds of different colours or with a
    border after each.
    """

    def __init__(self, path: str | Path, vocabulary: Vocabulary, style: Style = "lines") -> None:
        """Open `path` ("-": standard output) for the tokens of a vocabulary."""
        super().__init__(path, vocabulary.size)
        self._vocabulary = vocabulary
        self._style = style
        forms = {"lines": self._line, "colours": self._coloured, "borders": self._bordered}
        self._form = forms[style]
        self._spelled: dict[int, str] = {}
        self._turn = 0

    @cached_property
    def _special(self) -> frozenset[int]:
        return frozenset(self._vocabulary.special_tokens.values())

    def _write(self, piece: PreparedSlice) -> None:
        bounds = [0, *piece.document_starts.tolist(), len(piece.ids)]
        text = []
        for number, (begin, end) in enumerate(pairwise(bounds)):
            if number and self.documents + number > 1:  # not before the first document
                text.append("\n" if self._style == "lines" else "\n\n")
            text += self._show(piece.ids[begin:end])
        self._output.stream.write("".join(text).encode())

    def _finish(self) -> None:
        if self._style != "lines" and self.ids:
            self._output.stream.write(b"\n")

    def _show(self, ids: NDArray[np.uint32]) -> Iterator[str]:
        for token_id in ids.tolist():
            text = self._spelled.get(token_id)
            if text is None:
                text = self._spelled[token_id] = readable(self._vocabulary.tokens[token_id])
            yield self._form(token_id, text)

    def _line(self, token_id: int, text: str) -> str:
        return f"{token_id}\t{text}\n"

    def _bordered(self, token_id: int, text: str) -> str:
        return f"{text}{_BORDER}{self._break(token_id)}"

    def _coloured(self, token_id: int, text: str) -> str:
        self._turn = (self._turn + 1) % len(_GROUNDS)
        colours = f"38;5;16;48;5;{_GROUNDS[self._turn]}"
        if token_id in self._special:
            colours = f"38;5;231;48;5;{_SPECIAL_GROUNDS[self._turn % len(_SPECIAL_GROUNDS)]}"
        return f"\x1b[{colours}m{text}\x1b[0m{self._break(token_id)}"

    def _break(self, token_id: int) -> str:
        return "\n" if self._vocabulary.tokens[token_id].endswith(b"\n") else ""
