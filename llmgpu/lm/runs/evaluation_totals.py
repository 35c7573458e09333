"""Losses of many targets summed up: mean, perplexity and bits per byte of text.

Bits per byte can be compared between vocabularies; the loss per token can't. Special tokens stand
for no text, so their losses are left out of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


def perplexity(loss: float) -> float:
    """Return e^loss, for a loss in nats; infinity where that is more than a float can be."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


@dataclass(frozen=True)
class EvaluationTotals:
    """Sums over targets, to be added up over batches.

    nats: of all targets. targets: how many. text_nats: of the targets that stand for text.
    text_bytes: of this text.
    """

    nats: float = 0.0
    targets: int = 0
    text_nats: float = 0.0
    text_bytes: int = 0

    @classmethod
    def of(
        cls,
        losses: NDArray[np.floating],
        targets: NDArray[np.uint32],
        token_bytes: NDArray[np.uint32],
    ) -> EvaluationTotals:
        """Sum up one batch.

        losses: nats of each target, any shape. targets: ids, as many; those beyond the vocabulary
        are left out. token_bytes: bytes of text of each id, (vocabulary size,).
        """
        wanted = targets.ravel()
        counts = wanted < len(token_bytes)
        nats = losses.ravel()[counts].astype(np.float64)
        sizes = token_bytes[wanted[counts]]
        return cls(
            nats=float(nats.sum()),
            targets=len(nats),
            text_nats=float(nats[sizes > 0].sum()),
            text_bytes=int(sizes.sum(dtype=np.int64)),
        )

    def __add__(self, other: EvaluationTotals) -> EvaluationTotals:
        return EvaluationTotals(
            self.nats + other.nats,
            self.targets + other.targets,
            self.text_nats + other.text_nats,
            self.text_bytes + other.text_bytes,
        )

    @property
    def loss(self) -> float | None:
        """Nats per target; None without targets."""
        return self.nats / self.targets if self.targets else None

    @property
    def bits_per_byte(self) -> float | None:
        """Bits per byte of text; None without text."""
        return self.text_nats / (math.log(2) * self.text_bytes) if self.text_bytes else None
