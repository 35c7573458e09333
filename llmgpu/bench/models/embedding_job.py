"""What the embedding part measures on: sizes of three models' tables, data, and right answers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

LOOKUP = "lookup"
HALF = "lookup, f16 table"
POSITIONS = "token plus position"
BACKWARD = "backward"
REPEATED = "backward, 2 % of the tokens the same"
KINDS = (LOOKUP, HALF, POSITIONS, BACKWARD, REPEATED)
REPEATED_SHARE = 50  # one of so many tokens is the same as others
BLOCK = 1_000_003  # random numbers; prime, so that no two rows made of them are the same
COLUMNS = 256  # that are summed in float64 at a time


@dataclass(frozen=True)
class EmbeddingJob:
    """A table (vocab_size, width) in float32, and batch x seq_len tokens to look up.

    scale: what a model's vocabulary and tokens were divided by.
    """

    model: str
    vocab_size: int
    width: int
    batch: int
    seq_len: int
    scale: int = 1

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return self.batch * self.seq_len

    @property
    def table_bytes(self) -> int:
        """Bytes of the table."""
        return self.vocab_size * self.width * 4

    @property
    def output_bytes(self) -> int:
        """Bytes of the rows that a lookup writes."""
        return self.tokens * self.width * 4

    def describe(self) -> str:
        """Return one line for people."""
        return (
            f"{self.model}: table {self.vocab_size:,} x {self.width:,}, "
            f"{self.batch} x {self.seq_len:,} tokens"
        )

    def scaled_to(self, table_bytes: int) -> EmbeddingJob:
        """Return the job with a table of at most so many bytes, and proportionally fewer tokens.

        Rows stay as long as they are, and tokens repeat as often as they do.
        """
        scale = 1
        while self.table_bytes > table_bytes * scale:
            scale *= 2
        batch = max(self.batch // scale, 1)
        return replace(
            self,
            vocab_size=max(self.vocab_size // scale, 1),
            batch=batch,
            seq_len=max(self.tokens // scale // batch, 1),
            scale=self.scale * scale,
        )


JOBS = (
    EmbeddingJob("GPT-2 Small", 50_257, 768, 32, 512),
    EmbeddingJob("Llama-2-7B", 32_000, 4096, 8, 1024),
    EmbeddingJob("Llama-3-8B", 128_256, 4096, 8, 2048),
)


class EmbeddingData:
    """Random tables, tokens and gradients of a job, and what comes of them."""

    def __init__(self, job: EmbeddingJob) -> None:
        """Draw tokens; tables are made when they are asked for."""
        rng = np.random.default_rng(job.tokens)
        self.job = job
        self._block = rng.random(BLOCK, np.float32)
        self._tokens = rng.integers(0, job.vocab_size, job.tokens).astype(np.uint32)
        self._repeated = self._tokens.copy()
        same = rng.choice(job.tokens, max(job.tokens // REPEATED_SHARE, 1), replace=False)
        self._repeated[same] = self._tokens[0]
        self._gradients: dict[str, NDArray[np.float32]] = {}
        self.positions = np.tile(np.arange(job.seq_len, dtype=np.uint32), job.batch)

    def tokens(self, kind: str) -> NDArray[np.uint32]:
        """Return the tokens of one of `KINDS`, (N,)."""
        return self._repeated if kind == REPEATED else self._tokens

    @cached_property
    def table(self) -> NDArray[np.float32]:
        """The table, (V, C)."""
        return np.resize(self._block, (self.job.vocab_size, self.job.width))

    @cached_property
    def half_table(self) -> NDArray[np.float16]:
        """The table in half precision, (V, C)."""
        return np.resize(self._block.astype(np.float16), self.table.shape)

    @cached_property
    def position_table(self) -> NDArray[np.float32]:
        """Rows of positions, (T, C)."""
        return np.resize(self._block[::-1], (self.job.seq_len, self.job.width))

    @cached_property
    def grad_out(self) -> NDArray[np.float32]:
        """Gradients of the output, (N, C), 0 to 1: sums of them lose nothing by cancellation."""
        return np.resize(self._block[::-1], (self.job.tokens, self.job.width))

    def is_right(self, kind: str, answer: NDArray[np.float32]) -> bool:
        """Compare with NumPy: rows (N, C) exactly, a table's gradient (V, C) with float64 sums."""
        if kind in (BACKWARD, REPEATED):
            return self._is_gradient(kind, answer)
        return np.array_equal(answer, self._rows(kind))

    def moved_bytes(self, kind: str) -> int:
        """Return the bytes that have to be read and written, rows of several tokens once."""
        tokens = self.tokens(kind)
        row = self.job.width * 4
        rows = len(np.unique(tokens)) * row
        output = self.job.output_bytes
        return (
            tokens.nbytes
            + {
                LOOKUP: rows + output,
                HALF: rows // 2 + output,
                POSITIONS: rows + self.positions.nbytes + self.job.seq_len * row + output,
                BACKWARD: output + 2 * rows,
                REPEATED: output + 2 * rows,
            }[kind]
        )

    def _rows(self, kind: str) -> NDArray[np.float32]:
        table: NDArray[Any] = self.half_table if kind == HALF else self.table
        rows = table[self.tokens(kind)].astype(np.float32, copy=False)
        return rows + self.position_table[self.positions] if kind == POSITIONS else rows

    def _is_gradient(self, kind: str, answer: NDArray[np.float32]) -> bool:
        tokens = self.tokens(kind)
        distinct, counts = np.unique(tokens, return_counts=True)
        tolerance = (int(counts.max()) + 1) * float(np.finfo(np.float32).eps)
        if not np.allclose(answer[distinct], self._sums(kind), rtol=tolerance, atol=0):
            return False
        return np.array_equal(np.flatnonzero(answer.any(axis=1)), distinct)  # 0 elsewhere

    def _sums(self, kind: str) -> NDArray[np.float32]:
        """Return the gradient's rows of the distinct tokens, ascending, by float64 sums."""
        if kind not in self._gradients:
            order = np.argsort(self.tokens(kind), kind="stable")
            _, first = np.unique(self.tokens(kind)[order], return_index=True)
            sums = np.empty((len(first), self.job.width), np.float32)
            for column in range(0, self.job.width, COLUMNS):
                columns = slice(column, column + COLUMNS)
                values = self.grad_out[order, columns].astype(np.float64)
                sums[:, columns] = np.add.reduceat(values, first, axis=0)
            self._gradients[kind] = sums
        return self._gradients[kind]
