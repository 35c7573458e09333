"""Texts that end at a string: against looking for it in the whole text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from llmgpu.lm.generator import StopStrings

PIECES = st.lists(st.text("ab", max_size=3).map(str.encode), max_size=8)
STOPS = st.lists(st.text("ab", min_size=1, max_size=4).map(str.encode), max_size=3)


@given(PIECES, STOPS)
def test_the_text_ends_before_the_first_string(pieces: list[bytes], stops: list[bytes]) -> None:
    text, given_out = StopStrings(stops), b""
    whole = b""
    for piece in pieces:
        whole += piece
        found = [whole.find(stop) for stop in stops if stop in whole]
        assert text.add(piece) == bool(found)
        given_out += text.take()
        expected = whole[: min(found)] if found else whole
        assert bytes(text.data) == expected
        assert expected.startswith(given_out)
        if found:
            assert given_out == expected
            return
        # What is held back is the beginning of a string.
        held = expected[len(given_out) :]
        assert not held or any(stop.startswith(held) for stop in stops)
    assert given_out + text.take(last=True) == whole
