"""The operations that a model is made of, declared once.

`Operations` is all that the model, its training and its generation know of a backend. Its two
implementations, in NumPy and as GPU kernels, are put together in `llmgpu.lm.ops.backends`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import DTypeLike

from llmgpu.lm.ops.arguments import (
    AttentionGradients,
    AttentionShape,
    AttentionTensors,
    Groups,
    HeadTensors,
    Losses,
    NewRows,
    Norm,
    Rotation,
)
from llmgpu.lm.ops.tensor import AnyArray, Packed, Tensor
from llmgpu.lm.ops.transfers import Transfers
from llmgpu.lm.ops.weight_state import WeightState, WeightUpdate

Step = Callable[[], None]


@dataclass
class Program:
    """Recorded operations on fixed tensors, in order."""

    name: str
    steps: list[Step] = field(default_factory=list)


class Operations(ABC):
    """Tensors, programs, and the operations that programs are made of.

    Calling an operation computes nothing: it appends to the program being recorded, which `run`
    carries out as often as wanted. Shape letters are those of `llmgpu.lm.ops`; numbers are float32
    unless stated otherwise.

    nbytes: bytes of all tensors made so far.
    """

    def __init__(self) -> None:
        """Start without tensors; nothing is being recorded."""
        self.nbytes = 0
        self._scratch: dict[tuple[str, tuple[int, ...]], Tensor] = {}
        self._program: Program | None = None

    # Memory

    @property
    @abstractmethod
    def stack_elements(self) -> int:
        """How many numbers of matrices it is best to compute with at once; 0: of one matrix."""

    @property
    @abstractmethod
    def has_half_precision(self) -> bool:
        """Whether tensors of half-precision numbers can be computed with."""

    @property
    @abstractmethod
    def is_asynchronous(self) -> bool:
        """Whether `run` returns before its program has been carried out."""

    @property
    @abstractmethod
    def max_tensor_bytes(self) -> int:
        """Size of the largest tensor that can be made."""

    def tensor(self, name: str, shape: tuple[int, ...], dtype: DTypeLike = np.float32) -> Tensor:
        """Make a tensor of zeros.

        Raises:
            DeviceError: the device can't hold or bind that much.
        """
        return self._make(name, shape, dtype, uniform=False)

    def parameters(
        self, name: str, shape: tuple[int, ...], dtype: DTypeLike = np.float32
    ) -> Tensor:
        """Make a small tensor of numbers that the host writes between runs."""
        return self._make(name, shape, dtype, uniform=True)

    def _make(
        self, name: str, shape: tuple[int, ...], dtype: DTypeLike, *, uniform: bool
    ) -> Tensor:
        tensor = self._allocate(Tensor(name, shape, np.dtype(dtype), None), uniform=uniform)
        self.nbytes += tensor.nbytes
        return tensor

    @abstractmethod
    def _allocate(self, tensor: Tensor, *, uniform: bool) -> Tensor:
        """Return a tensor of this name, shape and type with memory; uniform: for `parameters`."""

    @abstractmethod
    def write(self, tensor: Tensor, array: AnyArray) -> None:
        """Copy an array of the tensor's size into it, before anything that runs later."""

    def write_computed(
        self, tensors: Sequence[Tensor], compute: Callable[[], Iterable[AnyArray]]
    ) -> None:
        """Write the arrays that `compute` returns, which nothing but the tensors needs."""
        for tensor, array in zip(tensors, compute(), strict=True):
            self.write(tensor, array)

    @abstractmethod
    def open_transfers(self, numbers: int) -> Transfers:
        """Return what moves up to `numbers` numbers at a time while programs run."""

    def scratch(self, role: str, shape: tuple[int, ...], dtype: DTypeLike = np.float32) -> Tensor:
        """Return memory that an operation may use until the next one starts.

        All operations that ask for the same role and shape share it; its contents are undefined.
        """
        key = (role, shape)
        if key not in self._scratch:
            self._scratch[key] = self.tensor(f"{role} scratch", shape, dtype)
        return self._scratch[key]

    @abstractmethod
    def begin_read(self, tensor: Tensor) -> Callable[[], AnyArray]:
        """Start a copy of a tensor, after everything that was run; return what waits for it."""

    def read(self, tensor: Tensor) -> AnyArray:
        """Return a copy of a tensor, after everything that was run."""
        return self.begin_read(tensor)()

    # Programs

    @contextmanager
    def record(self, name: str) -> Iterator[Program]:
        """Append the operations called in the block to a new program, which the block is given."""
        outer, self._program = self._program, Program(name)
        try:
            yield self._program
        finally:
            self._program = outer

    def append(self, step: Step) -> None:
        """Append a step to the program being recorded.

        Raises:
            RuntimeError: no program is being recorded.
        """
        if self._program is None:
            raise RuntimeError("an operation was called outside `record`")
        self._program.steps.append(step)

    @abstractmethod
    def prepare(self, program: Program) -> None:
        """Do what can be done of the program's next run while the device is at work."""

    @abstractmethod
    def run(self, program: Program) -> None:
        """Carry out a program, or start it on a device without waiting for its end."""

    @abstractmethod
    def wait_for_runs(self, ahead: int) -> None:
        """Return once no more than `ahead` of the programs that were run are unfinished."""

    # Zeros and conversions

    @abstractmethod
    def fill_zero(self, tensor: Tensor) -> None:
        """Write zeros; any shape and type."""

    @abstractmethod
    def cast_f32_to_f16(self, source: Tensor, target: Tensor) -> None:
        """Round to the nearest half-precision number of up to 65504 in size; NaN stays NaN.

        Raises:
            DeviceError: the device has no half-precision numbers.
        """

    @abstractmethod
    def round_to_half(self, source: Tensor, target: Tensor) -> None:
        """Round to the nearest half-precision number, infinity from 65520 on; NaN stays NaN.

        Raises:
            DeviceError: the device has no half-precision numbers.
        """

    @abstractmethod
    def cast_f16_to_f32(self, source: Tensor, target: Tensor) -> None:
        """Write half-precision numbers as float32, which is exact.

        Raises:
            DeviceError: the device has no half-precision numbers.
        """

    @abstractmethod
    def scale(self, x: Tensor, out: Tensor, factor: float) -> None:
        """Out = factor * x; any shape, the same for both."""

    # Embedding

    @abstractmethod
    def embed_lookup(self, tokens: Tensor, table: Tensor | Sequence[Tensor], out: Tensor) -> None:
        """Out = table[tokens], zeros for tokens >= V; (N,), (V, C), (N, C).

        table: float32 or float16; several tensors are the parts of one table, in order.
        """

    @abstractmethod
    def embed_backward_grouped(self, groups: Groups, grad_out: Tensor, grad_table: Tensor) -> None:
        """Add the rows of grad_out to those of their tokens, in a fixed order.

        Gradients that are not finite count as 0, and tokens beyond the table are left out.

        grad_out: (N, C). grad_table: (V, C).
        """

    @abstractmethod
    def embed_gradient_rows(self, groups: Groups, grad_out: Tensor, out: Tensor) -> None:
        """Write the gradient of token rows[g] to row g of out, zeros after the last.

        grad_out: (N, C). out: (U, C), where U is N or the number of distinct tokens.
        """

    # Layers

    @abstractmethod
    def rms_norm(self, norm: Norm, epsilon: float) -> None:
        """Out = x * r * weight with inverse_rms r = 1 / sqrt(mean(x^2) + epsilon).

        Out may be float16, as what the activations write may: then it is rounded as by
        `round_to_half`.
        """

    @abstractmethod
    def rms_norm_backward(
        self, norm: Norm, grad_out: Tensor, grad_x: Tensor, grad_weight: Tensor
    ) -> None:
        """Add the gradients of x (N, C) and weight (C,) to those given; grad_out is (N, C)."""

    @abstractmethod
    def linear(
        self, x: Tensor, weight: Tensor, out: Tensor, residual: Tensor | None = None
    ) -> None:
        """Out (N, O) = x (N, I) weight^T (+ residual); x, weight (O, I) are float32 or float16.

        So are the factors of its gradients; sums are float32, on matrix units where the device has
        those and both factors are float16. What nothing is added to, here and in the gradient of
        x, may be float16: then it is rounded as by `round_to_half`.
        """

    @abstractmethod
    def linear_backward_input(
        self, grad_out: Tensor, weight: Tensor, grad_x: Tensor, *, accumulate: bool
    ) -> None:
        """Grad_x (N, I) = grad_out (N, O) weight; with `accumulate` it is added to grad_x."""

    @abstractmethod
    def linear_backward_weight(self, grad_out: Tensor, x: Tensor, grad_weight: Tensor) -> None:
        """Add grad_out^T x to grad_weight (O, I)."""

    @abstractmethod
    def multiply(
        self,
        left: Tensor,
        right: Tensor,
        product: Tensor,
        *,
        left_transposed: bool = False,
        right_transposed: bool = False,
    ) -> None:
        """Write the products (S, N, O) of S matrices (N, I) and S matrices (I, O).

        Factors are float32 or float16 and may be stored transposed, one of them at most.
        """

    @abstractmethod
    def add_bias(self, x: Tensor, bias: Tensor) -> None:
        """Add bias (O,) to each row of x (N, O)."""

    @abstractmethod
    def bias_backward(self, grad_out: Tensor, grad_bias: Tensor) -> None:
        """Add the sum of the rows of grad_out (N, O) to grad_bias (O,)."""

    @abstractmethod
    def rotary(
        self, x: Tensor, rotation: Rotation, out: Tensor | None = None, *, inverse: bool = False
    ) -> None:
        """Turn x (N, heads * D) by the angles of its rows, or back: in place, or into float16 out.

        D is a multiple of 8 where there is an `out`.
        """

    @abstractmethod
    def split_heads(
        self, x: Tensor, starts: Sequence[int], rotation: Rotation, heads: AttentionTensors
    ) -> None:
        """Write q and k, turned by the angles of rows, and v, which x (N, R) has side by side.

        All are float16. starts: their first columns in x, multiples of 4; D is one of 8.
        """

    @abstractmethod
    def join_heads(
        self, grad: AttentionGradients, rotation: Rotation, grad_x: Tensor, starts: Sequence[int]
    ) -> None:
        """Write the gradient of what `split_heads` takes, float16, from those of q, k and v."""

    def attends_in_half(self, head_dim: int) -> bool:
        """Whether attention takes float16 tensors of heads of this width, on matrix units."""
        return False

    @abstractmethod
    def attention(self, t: AttentionTensors, starts: Tensor, shape: AttentionShape) -> None:
        """Write `out`, and `log_sum_exp` for the backward pass.

        starts: uint32 (N,), the first position of its sequence that a row attends to, up to its
            own; none is less than that of the row before in the sequence.
        The other tensors are all float32, or all float16 where `attends_in_half`.

        Raises:
            DeviceError: the kernels don't take heads of this width.
        """

    @abstractmethod
    def attention_backward(
        self, t: AttentionTensors, grad: AttentionGradients, starts: Tensor, shape: AttentionShape
    ) -> None:
        """Write the gradients of q, k and v, float32, from what `attention` read and wrote.

        grad.out is of the type of the other tensors.

        Raises:
            DeviceError: the kernels don't take heads of this width.
        """

    @abstractmethod
    def swiglu(self, gate: Tensor, up: Tensor | None, out: Tensor) -> None:
        """Out = gate * sigmoid(gate) * up; all (N, F), each float32 or float16, as below.

        Without `up`, `gate` (N, R) has both, up in its last columns; then all are float16, and F
        and R are multiples of 4. So it is in `swiglu_backward` with both gradients.
        """

    @abstractmethod
    def swiglu_backward(
        self,
        gate: Tensor,
        up: Tensor | None,
        grad_out: Tensor,
        grad_gate: Tensor,
        grad_up: Tensor | None,
    ) -> None:
        """Write the gradients of gate and up; all (N, F)."""

    @abstractmethod
    def gelu(self, x: Tensor, out: Tensor) -> None:
        """Out = x * Phi(x), Phi by tanh; both (N, F)."""

    @abstractmethod
    def gelu_backward(self, x: Tensor, grad_out: Tensor, grad_x: Tensor) -> None:
        """Write the gradient of x; all (N, F)."""

    # Generating

    @abstractmethod
    def heads_to_cache(
        self, norm: Norm, epsilon: float, weight: Packed, rotation: Rotation, heads: HeadTensors
    ) -> None:
        """Write queries, and keys and values to their rows of the cache, from a norm's input.

        weight: those of queries, keys and values. rotation: its positions are `NewRows.places`.
        norm: out and inverse_rms are undefined afterwards.
        """

    @abstractmethod
    def cache_append(self, x: Tensor, cache: Tensor, places: Tensor, column: int) -> None:
        """Copy rows x (N, K * D) to columns from `column` on of their rows of the cache."""

    @abstractmethod
    def attention_cached(
        self, heads: HeadTensors, places: Tensor, out: Tensor, shape: AttentionShape
    ) -> None:
        """Write out (N, H * D): a query attends to the rows of its sequence up to its own.

        Only the heads of `shape` count. DeviceError if the kernels don't take such heads.
        """

    @abstractmethod
    def feed_forward(self, norm: Norm, epsilon: float, weight: Packed, out: Tensor) -> None:
        """Out (N, F) = swiglu(gate, up), or gelu(up) where `weight` has no gate, of a norm."""

    @abstractmethod
    def take_likeliest(
        self, logits: Tensor, count: int, rows: NewRows, chosen: Tensor, step: int
    ) -> None:
        """Make the likeliest of the first `count` ids the row's token, at its next position.

        That is the smallest of those with the largest logit. They are also written to row `step` of
        chosen, uint32 (steps, N).
        """

    @abstractmethod
    def find_largest(self, logits: Tensor, count: int, k: int, found: Tensor) -> None:
        """Write the k ids below `count` with the largest logits of each row, and all equal to them.

        logits: (N, V), V a multiple of 4.
        found: uint32 (N, 1 + capacity, 2): how many there are and 0; id and inverted order of the
        logit, see `logits_of`, of as many as there is room for, in no order; the rest has all bits.
        """

    @abstractmethod
    def draw_largest(self, found: Tensor, draws: Tensor, rows: NewRows, step: int) -> None:
        """Make one of the ids that `find_largest` found the row's token, at its next position.

        draws: (steps, N, 4), of which row `step` counts: a number from 0 to 1 that the id is drawn
            by, what logits are multiplied by, top_p, and k, up to `MOST_LARGEST`.
        found: the id is put beside the number of those found. It is what `Sampler` draws, but where
            that is a matter of rounding.
        """

    # Loss and updates

    @abstractmethod
    def cross_entropy(
        self,
        logits: Tensor,
        targets: Tensor,
        losses: Losses,
        params: Tensor,
        *,
        tokens: int | None = None,
        joint: bool = False,
        gradient: Tensor | None = None,
    ) -> None:
        """Write the loss of each row, and the gradient of the logits in their place.

        A logit that is NaN or infinite makes the loss and the gradient of its row NaN.

        logits: (N, V), dLogits afterwards. tokens: how many columns stand for tokens, the first
            ones (W); the others are not read, and their gradient is 0. All of them by default.
        targets: uint32 (N,); the loss and the gradient of a row whose target is W or more are 0.
        params: (4,), from `parameters`: factor of the gradients (1 / number of targets that count,
            0 where there are none), label smoothing, weight of the z-loss, 1 / W.
        joint: write the sum of all parts to `losses.cross_entropy`.
        gradient: float16 (N, V), where the gradient goes instead; the logits are undefined then.
        """

    @abstractmethod
    def argmax(self, logits: Tensor, out: Tensor, tokens: int) -> None:
        """Write the first of the columns with the largest of the first `tokens` logits of a row.

        logits: (N, V). out: uint32 (N,).
        """

    @abstractmethod
    def sum_losses(self, losses: Tensor, out_sum: Tensor) -> None:
        """Write the sum of the losses (N,) to out_sum (1,)."""

    @abstractmethod
    def reduce_norm_sq(self, grad: Tensor, partials: Tensor, index: int) -> None:
        """Write NORM_PARTIALS sums that make the sum of grad's squares into row `index`."""

    def reduce_norms(self, grads: Sequence[Tensor], partials: Tensor) -> None:
        """Write NORM_PARTIALS sums of the squares of each gradient, into rows from 0 on."""
        for index, grad in enumerate(grads):
            self.reduce_norm_sq(grad, partials, index)

    @abstractmethod
    def finalize_grad_stats(
        self, partials: Tensor, loss_sums: Tensor, stats: Tensor, history: Tensor, hyper: Tensor
    ) -> None:
        """Write stats (4,) = clip_scale, norm, bad, loss, and a row of history (S, 8).

        A norm or a part of the loss that is not finite marks the step as bad. Every later step is
        bad, too, until the host clears the mark.

        loss_sums: (3 * A, columns), sums of the parts of `Losses`, A rows each, added up.
        The history's row is loss, norm, clip_scale, bad, label smoothing, z-loss, 0, 0.
        """

    @abstractmethod
    def update_weight(self, state: WeightState, update: WeightUpdate) -> None:
        """Take an optimizer's step of one weight; nothing changes in a bad step."""

    @abstractmethod
    def scale_to_norm(self, matrices: Tensor) -> None:
        """Divide each of S matrices (S, N, O) by its Frobenius norm, if that is not 0."""

    @abstractmethod
    def newton_schulz(self, gram: Tensor, square: Tensor) -> None:
        """Square = a I + b gram + c square, both (S, n, n); Muon's coefficients."""
