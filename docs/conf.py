"""How Sphinx builds the guide: `make docs`.

Everything is local: no fonts, scripts or inventories are downloaded, so the build needs no network.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import typing
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from command_help import CommandHelp
from kernel_tour import fill_page
from sphinx.ext.autodoc.mock import mock

from llmgpu import __version__

project = "llmgpu"
author = "llmgpu maintainers"
copyright = "llmgpu maintainers"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["recorded"]
html_theme = "furo"
html_title = f"llmgpu {version}"
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["guide.css"]

myst_heading_anchors = 3  # headings that links may name: page.md#heading
default_role = "code"  # `text` in a docstring is code, as it is in Markdown
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_type_aliases = {"ArrayLike": "ArrayLike"}
python_maximum_signature_line_length = 88
add_module_names = False

_ARRAY = re.compile(
    r"~?(?:numpy\.)?ndarray\[tuple\[~?(?:typing\.)?Any, \.\.\.\], "
    r"~?(?:numpy\.)?dtype\[~?(?:numpy\.)?(\w+)\]\]"
)


def list_parameters(
    app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Turn paragraphs such as ``text: what it is. size: how long`` into lists of parameters."""
    try:
        known = "|".join(map(re.escape, inspect.signature(obj).parameters))
    except (TypeError, ValueError):
        return
    entry = re.compile(rf"(?:^|(?<=[.;]) )((?:(?:{known}), )*(?:{known})): ")
    formatted: list[str] = []
    for paragraph in "\n".join(lines).split("\n\n"):
        text = " ".join(paragraph.split())
        if known and entry.match(text):
            parts = entry.split(text)[1:]
            formatted += [
                f"- ``{names}``: {what}"
                for names, what in zip(parts[::2], parts[1::2], strict=True)
            ]
        else:
            formatted += paragraph.split("\n")
        formatted.append("")
    lines[:] = formatted


def shorten_arrays(
    app: Any,
    what: str,
    name: str,
    obj: Any,
    options: Any,
    signature: str | None,
    returns: str | None,
) -> tuple[str | None, str | None]:
    """Write NumPy's array types as the source does: ``NDArray[uint32]``."""
    short = [text and _ARRAY.sub(r"NDArray[\1]", text) for text in (signature, returns)]
    return short[0], short[1]


def write_tour(app: Any, name: str, source: list[str]) -> None:
    """Write the kernels of wgsl/ into the page about them."""
    if name == "kernels":
        source[0] = fill_page(source[0])


def setup(app: Any) -> None:
    """Connect what is above."""
    # Signatures name types of packages. The guide is built without torch, so its types are mocked.
    with patch.object(typing, "TYPE_CHECKING", True), mock(["torch"]):
        importlib.import_module("llmgpu.tokenizer")
    app.add_directive("command-help", CommandHelp)
    app.connect("source-read", write_tour)
    app.connect("autodoc-process-docstring", list_parameters)
    app.connect("autodoc-process-signature", shorten_arrays)
