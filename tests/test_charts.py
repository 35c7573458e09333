"""Pages of HTML."""

from __future__ import annotations

import pytest

from llmgpu.charts import escape_text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\x9b31mb", "a\\u009b31mb"),
        ("a\u202eb\u2066c\u200f", "a\\u202eb\\u2066c\\u200f"),
        ("<\x1b&\ud800>\t\n\u05d0", "&lt;\ufffd&amp;\ufffd&gt;\t\n\u05d0"),
    ],
)
def test_text_has_no_characters_that_a_browser_acts_on(text: str, expected: str) -> None:
    assert escape_text(text) == expected
