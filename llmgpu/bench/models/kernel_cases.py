"""Operations one at a time: what a case is, and the sizes that all take theirs from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.bench.models.kernel_costs import Cost
from llmgpu.bench.models.training_steps import uneven_ids
from llmgpu.lm.config import ModelConfig
from llmgpu.lm.ops.operations import AttentionShape
from llmgpu.lm.ops.tensor import Tensor

Array = NDArray[Any]
Tensors = dict[str, Tensor]
TOLERANCE = 3e-5  # NumPy and a GPU round differently, and add up in other orders
_PERIOD = 1_000_003  # random numbers that an array repeats


@dataclass(frozen=True)
class KernelCase:
    """An operation on given inputs.

    name: of the operation. sizes: for people. make: gives all tensors' first content by name, NaN
    for those that are written only. outputs: names of those to compare. record: records the
    operation. where: tells cases of one operation apart. uniforms: names of those that a kernel
    takes as a uniform. needs_half: whether it takes half precision. total: names of those outputs
    of which only the sum is the same everywhere. torch: the same in torch, in place or returned.
    """

    name: str
    sizes: str
    cost: Cost
    make: Callable[[], dict[str, Array]]
    outputs: tuple[str, ...]
    record: Callable[[Any, Tensors], None]
    where: str = ""
    uniforms: tuple[str, ...] = ()
    needs_half: bool = False
    tolerance: float = TOLERANCE
    total: tuple[str, ...] = ()
    torch: Callable[[Any, dict[str, Any]], Any] | None = None

    @property
    def variant(self) -> str:
        """What tables call it."""
        return f"{self.name}, {self.where}" if self.where else self.name


@dataclass(frozen=True)
class Sizes:
    """A model and the sequences of a batch, from which all cases take their shapes."""

    config: ModelConfig
    sequences: int
    _block: list[NDArray[np.float32]] = field(default_factory=list, repr=False, compare=False)

    @property
    def rows(self) -> int:
        """Tokens of a batch (N)."""
        return self.sequences * self.config.seq_len

    @property
    def vocabulary(self) -> int:
        """Rows of the table (V)."""
        return self.config.padded_vocab_size

    @property
    def attention_shape(self) -> AttentionShape:
        """Sizes of attention."""
        config = self.config
        heads = (config.heads, config.kv_heads, config.head_dim)
        return AttentionShape(self.sequences, config.seq_len, *heads)

    def tokens(self) -> NDArray[np.uint32]:
        """Return ids (N,), as uneven as in a text."""
        generator = np.random.default_rng(1)
        return uneven_ids(generator, self.config.vocab_size, (self.rows,))

    def positions(self) -> NDArray[np.uint32]:
        """Return where in its sequence each row is, (N,)."""
        return np.tile(np.arange(self.config.seq_len, dtype=np.uint32), self.sequences)

    def normal(self, *shape: int) -> NDArray[np.float32]:
        """Return normal random numbers; what is large repeats them."""
        if not self._block:
            self._block.append(np.random.default_rng(2).standard_normal(_PERIOD, np.float32))
        return np.resize(self._block[0], shape)


def empty(*shape: int) -> NDArray[np.float32]:
    """Return an array for outputs, which shows what is left unwritten."""
    return np.full(shape, np.nan, np.float32)


def by(*sizes: int) -> str:
    """Spell a shape."""
    return " x ".join(f"{size:,}" for size in sizes)
