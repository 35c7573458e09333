"""What every trainer returns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class TrainedMerges:
    """What a trainer returns.

    merges: uint32 (M, 2), the ids merged; a byte's id is its value, merge k makes id 256 + k.
    counts: int64 (M,), how often each pair occurred when it was merged.
    symbols: length of the text in tokens after the last merge.
    """

    merges: NDArray[np.uint32]
    counts: NDArray[np.int64]
    symbols: int
