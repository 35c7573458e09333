"""What the measurements of peers have in common, whether they train or tokenize.

Most peers cut text with a regular expression over characters, as `llmgpu.bpe.interchange.spellings`
spells it for each engine; on valid UTF-8 it means what the pattern means over bytes.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from dataclasses import dataclass, field
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from pathlib import Path
from typing import Any

from llmgpu.bench.engines import package_version
from llmgpu.bench.tokenizers.corpus import Job
from llmgpu.bpe.interchange.spellings import HUGGINGFACE

# With pattern none a text would be one word, which peers take forever to merge.
EXPRESSIBLE = tuple(HUGGINGFACE)
# Under each of them a pre-token ends after such a newline, no matter what is on either side.
_PIECE_END = re.compile(r"(?<=\S)\n(?=\w)")


@dataclass(frozen=True)
class Peer:
    """A package to measure beside llmgpu, and the patterns that it can cut text with.

    needs: other packages that it needs.
    """

    package: str
    patterns: tuple[str, ...]
    needs: tuple[str, ...] = field(default=(), kw_only=True)

    @property
    def name(self) -> str:
        """What tables call it: its name, and its version where it is installed."""
        version = package_version(self.package)
        return self.package if version is None else f"{self.package} {version}"

    def why_not(self, job: Job) -> str | None:
        """Return why it can't do a job, as a line; None if it can."""
        packages = (self.package, *self.needs)
        if None in map(package_version, packages):
            return f"not installed: pip install {' '.join(packages)}"
        if job.pattern not in self.patterns:
            return f"left out: it doesn't know pattern {job.pattern}"
        if not job.text.is_utf8:
            return "left out: the text is not UTF-8, which it can't read"
        return None


def pieces(text: str, characters: int) -> list[str]:
    """Cut a text into pieces of at least `characters` where pre-tokens end."""
    found: list[str] = []
    begin = 0
    while begin < len(text):
        newline = _PIECE_END.search(text, begin + characters)
        end = len(text) if newline is None else newline.end()
        found.append(text[begin:end])
        begin = end
    return found


def gigatoken_extension() -> Any:
    """Load gigatoken's compiled part, which needs none of what the rest of it imports."""
    package = importlib.util.find_spec("gigatoken")
    assert package is not None and package.origin is not None
    path = str(next(Path(package.origin).parent.glob("gigatoken_rs.*")))
    loader = ExtensionFileLoader("gigatoken_rs", path)
    module = importlib.util.module_from_spec(ModuleSpec("gigatoken_rs", loader, origin=path))
    loader.exec_module(module)
    return module
