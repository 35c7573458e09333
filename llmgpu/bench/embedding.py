"""The embedding lab: ways to look up rows and to add gradients to rows, as cases of kernels.

A lab is a table and tokens in the sizes of one of four models. A kind is an operation, and a way
is an implementation of the operation. Transfers are not timed: tables and tokens are already on the
device. Bytes per second are the bytes to read and to write, each row once, divided by the time. If
caches keep rows from one run to the next, this rate may exceed the rate of a copy. The laboratory
exercise that the lab follows counts only the bytes of the output; the rate of these bytes is a
result, too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.bench import EMBEDDING, BenchOptions
from llmgpu.bench.cases import (
    PERIOD,
    TOLERANCE,
    Array,
    Arrays,
    CaseBench,
    KernelCase,
    Sizes,
    Tensors,
    by,
)
from llmgpu.bench.engines import Engine
from llmgpu.bench.peers import Torch, missing_torch
from llmgpu.bench.results import Result
from llmgpu.lm.config import ModelConfig
from llmgpu.lm.ops.ids import copy_rows, group_tokens, lanes_of_row
from llmgpu.lm.ops.operations import GpuOperations, Operations, open_operations
from llmgpu.lm.ops.recording import dims, workgroups
from llmgpu.lm.ops.tensor import Tensor
from llmgpu.machine import free_memory
from llmgpu.progress import Progress

LOOKUP = "lookup"
HALF = "lookup, f16 table"
POSITIONS = "token plus position"
BACKWARD = "backward"
REPEATED = "backward, 2 % of the tokens the same"
COMPACT = "backward, rows of distinct tokens alone"
GRADIENTS = (BACKWARD, REPEATED, COMPACT)
REPEATED_SHARE = 50  # one token in 50 is the same token
TABLE_COPIES = 8  # the host must have memory for at least this many copies of a table
SOFTWARE_TABLE_BYTES = 32 << 20
QUICK_TABLE_BYTES = 64 << 20
QUICK_SOFTWARE_TABLE_BYTES = 8 << 20
TILE_COLUMNS, TILE_TOKENS = 32, 8  # tile of a workgroup of embed_lookup_2d


def lab_kernel(
    file: str, groups: Callable[[int, int], int], *, adds: bool = False
) -> Callable[..., None]:
    """Return a GPU operation on float32 tensors whose kernel is used only by the lab.

    A lookup writes out (N, C), the rows of tokens (N,) in table (V, C). With `adds` the kernel adds
    the gradients grad_out (N, C) to the rows of grad_table (V, C) with atomics, in no fixed order.

    groups: returns the number of workgroups for N rows of C columns.
    """
    rows, table = ("grad_out", "grad_table") if adds else ("out", "table")

    def record(operations: GpuOperations, t: Tensors) -> None:
        bound = {name: t[name] for name in ("tokens", rows, table)}
        shape = t[rows].shape
        operations.dispatch(file, groups(*shape), **bound, dims=dims(*shape, t[table].shape[0]))

    return record


embed_lookup_2d = lab_kernel(
    "bench/embed_lookup_2d.wgsl", lambda n, c: -(-c // TILE_COLUMNS) * -(-n // TILE_TOKENS)
)
embed_lookup_token = lab_kernel("bench/embed_lookup_token.wgsl", lambda n, _: workgroups(n))
embed_lookup_rows_scalar = lab_kernel("bench/embed_lookup_rows_scalar.wgsl", lambda n, _: n)
embed_backward = lab_kernel("lm/01_embed_backward.wgsl", lambda n, c: workgroups(n * c), adds=True)
embed_backward_rows = lab_kernel("lm/01_embed_backward_rows.wgsl", lambda n, _: n, adds=True)


def embed_lookup_positions(operations: Operations, t: Tensors) -> None:
    """Compute out = table[tokens] + position_table[positions]; ids beyond a table give rows of 0.

    tokens (N,), table (V, C), positions (N,), position_table (P, C), out (N, C); numbers are
    float32. Works on every backend.
    """
    if not isinstance(operations, GpuOperations):

        def add_rows() -> None:
            out = t["out"].array
            rows = np.empty_like(out)
            copy_rows(t["position_table"].array, t["positions"].array, rows)
            copy_rows(t["table"].array, t["tokens"].array, out)
            out += rows

        operations.append(add_rows)
        return
    names = ("tokens", "table", "out", "positions", "position_table")
    bound, (count, width) = {name: t[name] for name in names}, t["out"].shape
    four, heights = width % 4 == 0, [t[name].shape[0] for name in ("table", "position_table")]
    sizes = dims(count, width // 4 if four else width, *heights)
    lanes = lanes_of_row(width)
    kernel, settings = "lm/01_embed_lookup_positions.wgsl", {"four": int(four), "LANES": lanes}
    operations.dispatch(kernel, workgroups(count * lanes), settings, **bound, dims=sizes)


# Ways


def _index(ops: Operations, t: Tensors) -> None:
    """Record ``out = table[tokens]``, which allocates new memory for the rows."""
    tokens, table = t["tokens"].array, t["table"].array
    ops.append(lambda: t.update(out=replace(t["out"], data=table[tokens])))


def _add_row_after_row(table: Array, tokens: Array, grad_out: Array) -> None:
    for s, token in enumerate(tokens):
        table[token] += grad_out[s]


def _add_by(add: Callable[[Array, Array, Array], None]) -> Callable[..., None]:
    """Return an operation that calls `add` with NumPy's arrays: grad_table, tokens and grad_out."""

    def record(ops: Operations, grad_table: Tensor, tokens: Tensor, grad_out: Tensor) -> None:
        ops.append(partial(add, grad_table.array, tokens.array, grad_out.array))

    return record


def _torch_rows(torch: Any, t: dict[str, Any], ids: str = "tokens", table: str = "table") -> Any:
    return torch.nn.functional.embedding(t[ids], t[table])


def _torch_sum(torch: Any, t: dict[str, Any]) -> Any:
    return _torch_rows(torch, t) + _torch_rows(torch, t, "positions", "position_table")


def _torch_backward(torch: Any, t: dict[str, Any]) -> Any:
    backward, rows = torch.ops.aten.embedding_dense_backward, len(t["grad_table"])
    return backward(t["grad_out"], t["tokens"], rows, -1, False)


def _torch_compact(torch: Any, t: dict[str, Any]) -> Any:
    groups = torch.searchsorted(t["rows"], t["tokens"])
    return t["out"].zero_().index_add_(0, groups, t["grad_out"])


# An implementation: a name of an operation or a function, see `KernelCase.record`.
Way = str | Callable[..., Any]


@dataclass(frozen=True)
class Kind:
    """An operation on embedding tables, and its implementations by name: NumPy's, GPUs', torch's.

    operands: see `Sizes.case`; {} stands for the shape of the table.
    reference: NumPy runs this implementation, and all other answers are compared with its answer.
    """

    operands: str
    reference: Way
    numpy: dict[str, Way]
    gpu: dict[str, Way]
    torch: dict[str, Callable[[Any, dict[str, Any]], Any]]


# Operations that read no table, or accept a table that is cut into several tensors.
IN_PARTS = ("embed_lookup", "embed_lookup_elements", "embed_gradient_rows")
# Gradients are not negative, so that their sums lose no digits by cancellation.
_GRADIENTS = "tokens order starts rows grad_out:NC:a"
_SUM = Kind(
    f"{_GRADIENTS} *grad_table:{{}}",
    "embed_backward_grouped",
    {
        "row after row": _add_by(_add_row_after_row),
        "np.add.at": _add_by(np.add.at),
        "grouped": "embed_backward_grouped",
    },
    {
        "atomic, one thread an element": embed_backward,
        "atomic, one workgroup a token": embed_backward_rows,
        "grouped": "embed_backward_grouped",
    },
    {
        "index_add_": lambda _, t: t["grad_table"].index_add_(0, t["tokens"], t["grad_out"]),
        "of nn.Embedding, zeros included": _torch_backward,
    },
)
KINDS = {
    LOOKUP: Kind(
        "tokens table:{} +out:NC",
        "embed_lookup",
        {"np.take into memory that is there": "embed_lookup", "table[tokens]": _index},
        {
            "one thread a token": embed_lookup_token,
            "one thread an element": "embed_lookup_elements",
            "8 tokens x 32 columns a workgroup": embed_lookup_2d,
            "one workgroup a token": embed_lookup_rows_scalar,
            "16-byte loads": "embed_lookup",
        },
        {"nn.Embedding": _torch_rows},
    ),
    HALF: Kind(
        "tokens table:{}:h +out:NC",
        "embed_lookup",
        {"np.take": "embed_lookup"},
        {"16-byte loads": "embed_lookup", "one thread an element": "embed_lookup_elements"},
        {"nn.Embedding, then float": lambda torch, t: _torch_rows(torch, t).float()},
    ),
    POSITIONS: Kind(
        "tokens table:{} positions position_table:TC +out:NC",
        embed_lookup_positions,
        {"np.take, added": embed_lookup_positions},
        {"16-byte loads": embed_lookup_positions},
        {"two nn.Embedding, added": _torch_sum},
    ),
    BACKWARD: _SUM,
    REPEATED: _SUM,
    COMPACT: Kind(
        f"{_GRADIENTS} +out:NC",
        "embed_gradient_rows",
        {"grouped": "embed_gradient_rows"},
        {"grouped": "embed_gradient_rows"},
        {"index_add_": _torch_compact},
    ),
}


def embedding_bytes(kind: str, s: Sizes, tokens: NDArray[np.uint32]) -> int:
    """Return the bytes to read and to write; a row that several tokens share counts once."""
    row = 4 * s.config.dim
    rows, output = len(np.unique(tokens)) * row, s.rows * row
    moved = {
        LOOKUP: rows,
        HALF: rows // 2,
        POSITIONS: rows + s.rows * 4 + s.config.seq_len * row,
        BACKWARD: 2 * rows,
        REPEATED: 2 * rows,
        COMPACT: output,
    }
    return s.rows * 4 + moved[kind] + output


def in_groups(tokens: NDArray[np.uint32]) -> Arrays:
    """Return tokens, and the groups of equal tokens: the operands of `KINDS` without a shape."""
    groups = zip(("order", "starts", "rows"), group_tokens(tokens), strict=True)
    return {"tokens": tokens, **dict(groups)}


# Sizes


@dataclass(frozen=True)
class Lab:
    """A table (vocab_size, width) in float32, and batch x seq_len tokens to look up.

    scale: number by which the model's vocabulary and number of tokens are divided. repeated: one
    token in `repeated` tokens has one and the same id. With 0, tokens are equal only by chance. The
    kind of work REPEATED uses REPEATED_SHARE in place of 0.
    """

    model: str
    vocab_size: int
    width: int
    batch: int
    seq_len: int
    scale: int = 1
    repeated: int = 0

    @cached_property
    def sizes(self) -> Sizes:
        """The sizes of a model with such a table. They pad the table, unlike the lab."""
        config = ModelConfig(
            self.vocab_size, dim=self.width, heads=1, kv_heads=1, seq_len=self.seq_len
        )
        return Sizes(config, self.batch)

    @property
    def tokens(self) -> int:
        """Number of tokens (N)."""
        return self.batch * self.seq_len

    @property
    def table_bytes(self) -> int:
        return self.vocab_size * self.width * 4

    @property
    def output_bytes(self) -> int:
        """Bytes of the rows that a lookup writes."""
        return self.tokens * self.width * 4

    def describe(self) -> str:
        table = by(self.vocab_size, self.width)
        return f"{self.model}: table {table}, {self.batch} x {self.seq_len:,} tokens"

    def scaled_to(self, table_bytes: int) -> Lab:
        """Return a lab with a table of at most `table_bytes` bytes, and fewer tokens in proportion.

        The length of rows and the share of repeated tokens stay the same.
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

    def token_ids(self, kind: str) -> NDArray[np.uint32]:
        """Return the tokens for one of `KINDS`, uint32 (N,)."""
        generator = np.random.default_rng(self.tokens)
        generator.random(PERIOD, np.float32)  # the ids of recorded results follow these numbers
        ids = generator.integers(0, self.vocab_size, self.tokens).astype(np.uint32)
        share = self.repeated or (REPEATED_SHARE if kind == REPEATED else 0)
        if share:
            same = max(self.tokens // share, 1)
            ids[generator.choice(self.tokens, same, replace=False)] = ids[0]
        return ids

    def case(self, kind: str, way: str, record: Way, largest: int) -> KernelCase:
        """Return the benchmark case for one implementation of an operation.

        kind: a key of `KINDS`. way: name of the implementation. record: the implementation.
        largest: the most bytes of a tensor; a larger table is cut into several tensors.
        """
        fits = record in IN_PARTS or self.table_bytes <= largest
        too_large = f"takes a table in one binding, which has at most {largest:,} bytes"
        note = f"scaled down: 1/{self.scale} of the model's vocabulary and tokens"
        tokens = self.token_ids(kind)

        def given() -> Arrays:
            empty_table = np.zeros((self.vocab_size, self.width), np.float32)
            return in_groups(tokens) | {"grad_table": empty_table}

        case = self.sizes.case(
            f"{kind}: {way}",
            KINDS[kind].operands.format(f"{self.vocab_size}x{self.width}"),
            None,
            given,
            sizes=self.describe(),
            record=record,
            reference=KINDS[kind].reference,
            kind=kind,
            needs_half=kind == HALF,
            note=note if self.scale > 1 else "",
            why_not="" if fits else too_large,
            answer="rows",
            tolerance=TOLERANCE if kind in GRADIENTS else 0,
            bytes=embedding_bytes(kind, self.sizes, tokens),
            fields={"table_bytes": self.table_bytes, "output_bytes": self.output_bytes},
            counted={"output_bytes": self.output_bytes, "tokens": self.tokens},
        )
        return replace(case, make=partial(_make_in_parts, case, largest))


def _make_in_parts(case: KernelCase, largest: int) -> Arrays:
    """Return the arrays of a case. A larger table is cut into whole rows, "table_0" and so on."""
    arrays = case.make()
    if "table" in arrays and arrays["table"].nbytes > largest:
        table = arrays.pop("table")
        rows = max(largest // table[:1].nbytes, 1)
        starts = range(0, len(table), rows)
        arrays |= {f"table_{k}": table[i : i + rows] for k, i in enumerate(starts)}
    return arrays


LABS = (
    Lab("GPT-2 Small", 50_257, 768, 32, 512),
    Lab("Llama-2-7B", 32_000, 4096, 8, 1024),
    Lab("Llama-3-8B", 128_256, 4096, 8, 2048),
    Lab("Llama-3-70B", 128_256, 8192, 8, 2048),
)


def measure_embedding(
    engines: Sequence[Engine], options: BenchOptions, progress: Progress
) -> Iterator[Result]:
    """Yield the result of each way in each lab: NumPy's ways, then torch's, then the GPUs'."""
    for lab, own_engines in _labs(engines, options):
        bench = CaseBench(EMBEDDING, options, progress)
        for is_gpu in (False, True):
            if is_gpu and options.peers:
                yield from _measure_torch(bench, lab, own_engines)
            for engine in own_engines:
                if is_gpu == (engine.backend.device is not None):
                    largest = open_operations(engine.backend.device).max_tensor_bytes
                    ways = [
                        lab.case(name, way, record, largest)
                        for name, kind in KINDS.items()
                        for way, record in (kind.gpu if is_gpu else kind.numpy).items()
                    ]
                    yield from bench.measure_cases(engine, ways)


def _measure_torch(bench: CaseBench, lab: Lab, engines: Sequence[Engine]) -> Iterator[Result]:
    """Yield the results of torch, on each torch device that is compared with an engine."""
    try:
        devices = {torch.device: torch for torch in map(Torch.beside, engines)}
    except ImportError:
        yield missing_torch(EMBEDDING, lab.describe())
        return
    for torch in devices.values():
        for name, kind in KINDS.items():
            for way, compute in kind.torch.items():
                case = lab.case(name, way, kind.reference, sys.maxsize)
                yield bench.measure_torch(torch, replace(case, torch=compute))
        torch.free_memory()


def most_table_bytes(engine: Engine, *, quick: bool) -> int:
    """Return the size of the largest table with which an engine is measured, in bytes."""
    if engine.is_software_adapter:
        return QUICK_SOFTWARE_TABLE_BYTES if quick else SOFTWARE_TABLE_BYTES
    return QUICK_TABLE_BYTES if quick else sys.maxsize


def _labs(engines: Sequence[Engine], options: BenchOptions) -> list[tuple[Lab, list[Engine]]]:
    """Return labs, each with the engines that are measured in it; NumPy is measured in all labs.

    A lab is as large as its engines can handle. If its table is larger than a binding of a device,
    the device is also measured in a smaller lab, with the ways that need the table in one binding.
    """
    free = free_memory()
    host = sys.maxsize if free is None else free // TABLE_COPIES
    labs: dict[Lab, list[Engine]] = {}
    for lab in LABS[:1] if options.quick else LABS:
        for engine in engines:
            own = lab.scaled_to(min(host, most_table_bytes(engine, quick=options.quick)))
            labs.setdefault(own, []).append(engine)
            device = engine.backend.device
            if device is not None and own.table_bytes > device.max_binding_bytes:
                labs.setdefault(lab.scaled_to(device.max_binding_bytes), []).append(engine)
    for working in labs.values():
        working += [e for e in engines if e.backend.device is None and e not in working]
    return list(labs.items())
