"""Text in SVG and HTML."""

from __future__ import annotations

import re
from html import escape

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def escape_text(text: str) -> str:
    """Return any text as XML and HTML may hold it, in elements and in quoted attributes."""
    return escape(_NOT_XML.sub("\ufffd", text))
