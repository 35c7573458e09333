"""Kill a process wherever writing a token file over another one asks something.

``python -m tests.tokens.killed_token_file FOLDER``: see `tests.lm.killed_saves`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from llmgpu.bpe.encoding.encoder import EncodedSlice
from llmgpu.tokens.bin import BinWriter
from tests.lm.killed_saves import kill_at_each_call
from tests.tokens.writing import sized

OLD, NEW = list(range(1000)), list(range(2000, 3000))


def write_ids(folder: Path, ids: list[int]) -> None:
    """Write ids of a vocabulary whose fingerprint is the first of them."""
    with BinWriter(folder / "ids.bin", sized(5000, str(ids[0]))) as writer:
        writer.write(EncodedSlice(np.array(ids, np.uint32), np.zeros(1, np.int64), 1))


def main(folder: Path) -> None:
    begun = folder / "begun"
    begun.mkdir()
    write_ids(begun, OLD)
    kill_at_each_call(begun, lambda run: write_ids(run, NEW))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
