"""Operations one at a time: what a case is, and the sizes from which all take theirs.

What has to be moved follows from the arrays of a case: every input is read once and every output
written once; what is added to or changed in place is both. Where it depends on what is in a table
or a list, the case says it. Operations are additions, multiplications, comparisons, and one for a
root, a division or an exponential.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.bench.train import uneven_ids
from llmgpu.lm.config import ModelConfig
from llmgpu.lm.ops.tensor import Tensor

Array = NDArray[Any]
Arrays = dict[str, Array]
Tensors = dict[str, Tensor]
Record = Callable[[Any, dict[str, Any]], Any]  # calls an operation on named tensors
TOLERANCE = 3e-5  # NumPy and a GPU round differently, and add up in other orders
STEP_PARAMETERS = ("stats", "hyper")  # a few numbers, which no case counts as moved input
_PERIOD = 1_000_003  # random numbers that an array repeats
_OPERAND = re.compile(r"([+*]?)(\w+)(?::(\w+))?(:h)?")


@dataclass(frozen=True)
class KernelCase:
    """An operation on given inputs.

    name: of the operation. where: tells cases of one operation apart. sizes, note: for people.
    operations: how many, None to leave it out. bytes: to move, if not those of the arrays.
    make: returns all tensors' first content by name, NaN for those that are written only; in the
        order of the operation's arguments, unless `record` says how to call it.
    outputs: names of those to compare, of which `total` are compared by their sums alone.
    uncompared: other outputs. copies: half-precision copies of outputs, by name.
    more: arguments after tensors. uniforms: names of those that a kernel takes as a uniform.
    needs_half: whether it takes half precision. halves: its products are of factors in half
    precision, which matrix units multiply where there are some. why_not: why it can't be measured.
    torch: the same in torch, in place or returned.
    kind, reference: cases of one kind have the same inputs, and the answer that `reference` gives
        on NumPy; without a reference NumPy's own way is it. answer: what outputs are together.
    looked_up: bytes of the table, bytes of the output, and tokens of a lookup.
    """

    name: str
    sizes: str
    operations: int | None
    make: Callable[[], Arrays]
    outputs: tuple[str, ...]
    record: Record | None = None
    more: tuple[Any, ...] = ()
    where: str = ""
    note: str = ""
    why_not: str = ""
    uniforms: tuple[str, ...] = ()
    needs_half: bool = False
    halves: bool = False
    tolerance: float = TOLERANCE
    total: tuple[str, ...] = ()
    uncompared: tuple[str, ...] = ()
    copies: dict[str, str] = field(default_factory=dict)
    torch: Record | None = None
    bytes: int | None = None
    kind: str = ""
    reference: Record | None = None
    answer: str = "numbers"
    looked_up: tuple[int, int, int] | None = None

    @property
    def key(self) -> tuple[str, str]:
        """What cases have in common whose times are compared."""
        return self.kind or self.variant, self.sizes

    @property
    def variant(self) -> str:
        """What tables call it."""
        return f"{self.name}, {self.where}" if self.where else self.name

    def record_on(self, operations: Any, tensors: Tensors) -> None:
        """Append the operation to the program being recorded."""
        if self.record is not None:
            self.record(operations, tensors)
        else:
            getattr(operations, self.name)(*tensors.values(), *self.more)

    def moved_bytes(self, arrays: Arrays) -> int:
        """Return the bytes that have to be read and written."""
        if self.bytes is not None:
            return self.bytes
        outputs = {*self.outputs, *self.uncompared, *self.copies}
        moved = 0
        for name, array in arrays.items():
            if name in outputs:
                # Content to begin with means that it is read, too.
                moved += array.nbytes * (1 if np.isnan(array.flat[0]) else 2)
            elif name not in self.uniforms and name not in STEP_PARAMETERS:
                moved += array.nbytes
        return moved


@dataclass(frozen=True)
class Sizes:
    """A model and the sequences of a batch, from which all cases take their shapes.

    updated: the model all of whose weights are updated in one case, by default the same.
    """

    config: ModelConfig
    sequences: int
    updated: ModelConfig | None = None

    @property
    def rows(self) -> int:
        """Tokens of a batch (N)."""
        return self.sequences * self.config.seq_len

    @property
    def vocabulary(self) -> int:
        """Rows of the table (V)."""
        return self.config.padded_vocab_size

    @property
    def table_shape(self) -> tuple[int, int]:
        """Shape of the table (V, C)."""
        return self.vocabulary, self.config.dim

    def tokens(self) -> NDArray[np.uint32]:
        """Return ids (N,), as uneven as in a text."""
        generator = np.random.default_rng(1)
        return uneven_ids(generator, self.config.vocab_size, (self.rows,))

    def positions(self) -> NDArray[np.uint32]:
        """Return where in its sequence each row is, (N,)."""
        return np.tile(np.arange(self.config.seq_len, dtype=np.uint32), self.sequences)

    def normal(self, *shape: int, skip: int = 0) -> NDArray[np.float32]:
        """Return normal random numbers; large arrays repeat them.

        skip: rows to leave out at the beginning, so that arrays of one shape differ.
        """
        return np.resize(self._repeated, (shape[0] + skip, *shape[1:]))[skip:]

    @cached_property
    def _repeated(self) -> NDArray[np.float32]:
        return np.random.default_rng(2).standard_normal(_PERIOD, np.float32)

    def shape(self, letters: str) -> tuple[int, ...]:
        """Return a shape that is spelled by the letters of `llmgpu.lm.ops`.

        N rows, V table, C width, K width of keys, F feed-forward, H heads, T positions; 1 is 1. P
        and G: queries, keys and values, and gate and up, side by side.
        """
        config = self.config
        letter = {"N": self.rows, "V": self.vocabulary, "C": config.dim, "K": config.kv_dim}
        letter |= {"F": config.ffn_dim, "H": config.heads, "T": config.seq_len, "1": 1}
        letter |= {"P": config.dim + 2 * config.kv_dim, "G": 2 * config.ffn_dim}
        return tuple(letter[each] for each in letters)

    def case(
        self,
        name: str,
        operands: str,
        operations: int,
        given: Callable[[], Mapping[str, Array]] = dict,
        **more: Any,
    ) -> KernelCase:
        """Return a case of an operation by its operands, in the order of its arguments.

        operands: ``name:SHAPE``, or ``name:SHAPE:h`` in half precision, which are random numbers;
            ``+name:SHAPE`` is written, ``*name:SHAPE`` is read and written.
        given: returns content that is not random, of operands that need no shape then.
        more: other fields of a case; sizes are by default the shape of the first operand.
        """
        parts = _OPERAND.findall(operands)

        def make() -> Arrays:
            content, arrays = given(), {}
            for skip, (role, key, letters, half) in enumerate(parts):
                dtype = np.float16 if half else np.float32
                if key in content:
                    arrays[key] = content[key]
                elif role == "+":
                    arrays[key] = empty(*self.shape(letters), dtype=dtype)
                else:
                    arrays[key] = self.normal(*self.shape(letters), skip=skip).astype(dtype)
            return arrays

        more.setdefault("sizes", by(*self.shape(parts[0][2] or "1")))
        outputs = tuple(key for role, key, *_ in parts if role)
        return KernelCase(name, make=make, operations=operations, **{"outputs": outputs} | more)


def empty(*shape: int, dtype: Any = np.float32) -> Array:
    """Return an array for outputs, which shows what is left unwritten."""
    return np.full(shape, np.nan, dtype)


def by(*sizes: int) -> str:
    """Spell a shape."""
    return " x ".join(f"{size:,}" for size in sizes)
