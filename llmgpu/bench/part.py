"""What the parts about language models share: their options, and how their results begin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PartOptions:
    """How thoroughly a part measures.

    runs: measurements of each variant at most; a part may stop earlier where time runs out.
    peers: whether to measure other programs. quick: smaller sizes and less time for each variant.
    """

    runs: int = 5
    peers: bool = True
    quick: bool = False


def begin_part_result(what: str, engine: str, job: str) -> dict[str, Any]:
    """Return a result without measurements: which part asked what of which engine or peer.

    job: one line for people that names the sizes.
    """
    return {
        "what": what,
        "engine": engine,
        "job": job,
        "correct": None,  # True or False once an answer was compared
    }
