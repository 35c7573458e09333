"""What the operations of a language model have to move and to compute, whatever kernel does it.

Bytes: every input is read once and every output written once; what is added to is both. Operations:
additions, multiplications, comparisons, and one for a root, a division or an exponential. Sizes are
the letters of `llmgpu.lm.ops`, numbers have 4 bytes where nothing else is said.
"""

from __future__ import annotations

from dataclasses import dataclass

from llmgpu.lm.config import ModelConfig
from llmgpu.lm.ops.operations import AttentionShape
from llmgpu.lm.ops.optimizer import NORM_PARTIALS
from llmgpu.lm.optimizers.adamw_8bit import BLOCK

ADAMW_OPERATIONS = 15  # for each number: clipping 1, moments 7, denominator 3, decay 1, step 3
CODING_OPERATIONS = 20  # for each number: two codes to numbers and back, and the largest of a block
SCORE_OPERATIONS = 4  # for each pair of query and key, beside products: scale, maximum, exp, sum


@dataclass(frozen=True)
class Cost:
    """Bytes to read and write, and operations."""

    bytes: int
    operations: int


def embed_lookup(rows: int, distinct: int, width: int, element_bytes: int = 4) -> Cost:
    """Cost of looking `distinct` different ids up, `rows` times in all."""
    return Cost(4 * rows + distinct * width * element_bytes + 4 * rows * width, 0)


def embed_lookup_positions(rows: int, distinct: int, positions: int, width: int) -> Cost:
    """Cost of the same with as many different positions, whose rows are added."""
    return Cost(8 * rows + 4 * width * (distinct + positions + rows), rows * width)


def embed_backward_grouped(rows: int, distinct: int, width: int) -> Cost:
    """Cost of adding `rows` gradients to `distinct` rows of the table, given their order."""
    return Cost(4 * rows + 8 * distinct + 4 * width * (rows + 2 * distinct), rows * width)


def fill_zero(size: int) -> Cost:
    """Cost of filling with zeros."""
    return Cost(4 * size, 0)


def rms_norm(rows: int, width: int) -> Cost:
    """Cost of normalising rows."""
    return Cost(8 * rows * width + 4 * width + 4 * rows, rows * (4 * width + 3))


def rms_norm_backward(rows: int, width: int) -> Cost:
    """Cost of both gradients, which are added to."""
    return Cost(16 * rows * width + 12 * width + 4 * rows, 9 * rows * width)


def matrix_product(
    rows: int, columns: int, inner: int, *, weight_bytes: int = 4, accumulate: bool = False
) -> Cost:
    """Cost of (rows, inner) times (inner, columns); weight_bytes: of a number of the latter."""
    read = 4 * rows * inner + weight_bytes * inner * columns
    return Cost(read + 4 * rows * columns * (1 + accumulate), 2 * rows * columns * inner)


def rotary(rows: int, config: ModelConfig) -> Cost:
    """Cost of turning rows in place, with both tables of angles."""
    tables = 4 * config.seq_len * config.head_dim
    return Cost(8 * rows * config.dim + 4 * rows + tables, 3 * rows * config.dim)


def attention(shape: AttentionShape) -> Cost:
    """Cost of causal attention: two products for each query and key that it sees."""
    rows, kv_width = shape.batch * shape.seq, shape.kv_heads * shape.head_dim
    read = 4 * rows * (shape.heads * shape.head_dim + 2 * kv_width)
    written = 4 * rows * shape.heads * (shape.head_dim + 1)
    return Cost(read + written, _pairs(shape) * (4 * shape.head_dim + SCORE_OPERATIONS))


def attention_backward(shape: AttentionShape) -> Cost:
    """Cost of its gradients: five products for each query and key that it sees."""
    rows, kv_width = shape.batch * shape.seq, shape.kv_heads * shape.head_dim
    of_heads = 4 * rows * shape.heads * (4 * shape.head_dim + 1)
    operations = _pairs(shape) * (10 * shape.head_dim + SCORE_OPERATIONS)
    return Cost(of_heads + 16 * rows * kv_width, operations)


def attention_cached(length: int, shape: AttentionShape) -> Cost:
    """Cost of one query to a cache of `length` rows."""
    cache = 8 * length * shape.kv_heads * shape.head_dim
    operations = length * shape.heads * (4 * shape.head_dim + SCORE_OPERATIONS)
    return Cost(cache + 8 * shape.heads * shape.head_dim, operations)


def cache_append(rows: int, kv_width: int) -> Cost:
    """Cost of copying rows into a cache."""
    return Cost(rows * (8 * kv_width + 4), 0)


def swiglu(size: int) -> Cost:
    """Cost of `size` outputs."""
    return Cost(12 * size, 5 * size)


def swiglu_backward(size: int) -> Cost:
    """Cost of both gradients."""
    return Cost(20 * size, 11 * size)


def gelu(size: int) -> Cost:
    """Cost of `size` outputs."""
    return Cost(8 * size, 9 * size)


def gelu_backward(size: int) -> Cost:
    """Cost of its gradient."""
    return Cost(12 * size, 19 * size)


def cross_entropy(rows: int, vocabulary: int) -> Cost:
    """Cost of losses, and of gradients in the place of the logits."""
    return Cost(8 * rows * vocabulary + 8 * rows, 7 * rows * vocabulary)


def sum_losses(rows: int) -> Cost:
    """Cost of a sum."""
    return Cost(4 * rows + 4, rows)


def cast(size: int) -> Cost:
    """Cost of a conversion between 4 and 2 bytes a number."""
    return Cost(6 * size, 0)


def reduce_norm_sq(size: int) -> Cost:
    """Cost of the partial sums of squares."""
    return Cost(4 * size + 4 * NORM_PARTIALS, 2 * size)


def finalize_grad_stats(tensors: int, losses: int) -> Cost:
    """Cost of adding the partial sums of so many tensors up, and the losses; statistics beside."""
    numbers = tensors * NORM_PARTIALS + losses
    return Cost(4 * numbers + 3 * 16, numbers)


def adamw_update(size: int, *, mirror: bool = False) -> Cost:
    """Cost of an update of parameters and moments, and of a half-precision mirror."""
    return Cost((30 if mirror else 28) * size, ADAMW_OPERATIONS * size)


def adamw_8bit_update(size: int, *, mirror: bool = False) -> Cost:
    """Cost of the same with moments of one byte, and a scale for each block of them."""
    scales = 16 * -(-size // BLOCK)
    operations = (ADAMW_OPERATIONS + CODING_OPERATIONS) * size
    return Cost((18 if mirror else 16) * size + scales, operations)


def adamw_update_rows(listed: int, width: int, *, mirror: bool = False) -> Cost:
    """Cost of an update of the rows listed."""
    cost = adamw_update(listed * width, mirror=mirror)
    return Cost(cost.bytes + 4 * listed, cost.operations)


def fill_zero_rows(listed: int, width: int) -> Cost:
    """Cost of filling the rows listed with zeros."""
    return Cost(4 * listed * width + 4 * listed, 0)


def _pairs(shape: AttentionShape) -> int:
    """Return how many keys all queries of all heads see together."""
    return shape.batch * shape.heads * shape.seq * (shape.seq + 1) // 2
