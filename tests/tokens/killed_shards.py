"""Kill a process wherever the writing of shards over those of a longer job asks something.

``python -m tests.tokens.killed_shards FOLDER``: see `tests.lm.killed_saves`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.lm.killed_saves import kill_at_each_call
from tests.tokens.test_shards import shards_in, write_bytes

LONGER, SHORTER = list(range(9)), [5, 6, 7]


def write_shards(folder: Path, values: list[int]) -> None:
    with shards_in(folder, tokens=2) as writer:
        write_bytes(writer, values)


def main(folder: Path) -> None:
    begun = folder / "begun"
    begun.mkdir()
    write_shards(begun, LONGER)
    kill_at_each_call(begun, lambda run: write_shards(run, SHORTER))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
