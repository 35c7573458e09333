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
from functools import partial
from typing import Any, NamedTuple

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
from llmgpu.bench.engines import Engine, Engines
from llmgpu.bench.peers import Torch, missing_torch
from llmgpu.bench.results import Results
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
    count, width = t["out"].shape
    four, heights = width % 4 == 0, [t[name].shape[0] for name in ("table", "position_table")]
    sizes = dims(count, width // 4 if four else width, *heights)
    lanes = lanes_of_row(width)
    kernel, settings = "lm/01_embed_lookup_positions.wgsl", {"four": int(four), "LANES": lanes}
    operations.dispatch(kernel, workgroups(count * lanes), settings, **t, dims=sizes)


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


# An implementation: a name of an operation or a function, see `KernelCase.record` and `torch`.
Way = str | Callable[..., Any]


class Kind(NamedTuple):
    """An operation on embedding tables, and its implementations by name.

    operands: see `Sizes.case`. reference: NumPy runs this implementation, and all other answers are
    compared with its answer. numpy, gpu, torch: the implementations on NumPy, on GPUs and in torch.
    """

    operands: str
    reference: Way
    numpy: dict[str, Way]
    gpu: dict[str, Way]
    torch: dict[str, Way]


# Operations that read no table, or accept a table that is cut into several tensors.
IN_PARTS = ("embed_lookup", "embed_lookup_elements", "embed_gradient_rows")
# Gradients are not negative, so that their sums lose no digits by cancellation.
_GRADIENTS = "tokens order starts rows grad_out:NC:a"
_SUM = Kind(
    f"{_GRADIENTS} *grad_table:VC",
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
        "of nn.Embedding, zeros included": lambda torch, t: torch.ops.aten.embedding_dense_backward(
            t["grad_out"], t["tokens"], len(t["grad_table"]), -1, False
        ),
    },
)
KINDS = {
    LOOKUP: Kind(
        "tokens table:VC +out:NC",
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
        "tokens table:VC:h +out:NC",
        "embed_lookup",
        {"np.take": "embed_lookup"},
        {"16-byte loads": "embed_lookup", "one thread an element": "embed_lookup_elements"},
        {"nn.Embedding, then float": lambda torch, t: _torch_rows(torch, t).float()},
    ),
    POSITIONS: Kind(
        "tokens table:VC positions position_table:TC +out:NC",
        embed_lookup_positions,
        {"np.take, added": embed_lookup_positions},
        {"16-byte loads": embed_lookup_positions},
        {
            "two nn.Embedding, added": lambda torch, t: (
                _torch_rows(torch, t) + _torch_rows(torch, t, "positions", "position_table")
            )
        },
    ),
    BACKWARD: _SUM,
    REPEATED: _SUM,
    COMPACT: Kind(
        f"{_GRADIENTS} +out:NC",
        "embed_gradient_rows",
        {"grouped": "embed_gradient_rows"},
        {"grouped": "embed_gradient_rows"},
        {
            "index_add_": lambda torch, t: (
                t["out"]
                .zero_()
                .index_add_(0, torch.searchsorted(t["rows"], t["tokens"]), t["grad_out"])
            )
        },
    ),
}


def embedding_bytes(kind: str, s: Sizes, tokens: NDArray[np.uint32]) -> int:
    """Return the bytes to read and to write; a row that several tokens share counts once."""
    row = 4 * s.config.dim
    rows, output = len(np.unique(tokens)) * row, s.rows * row
    moved = {LOOKUP: rows, HALF: rows // 2, COMPACT: output, BACKWARD: 2 * rows, REPEATED: 2 * rows}
    moved[POSITIONS] = rows + s.rows * 4 + s.config.seq_len * row
    return s.rows * 4 + moved[kind] + output


def in_groups(tokens: NDArray[np.uint32]) -> Arrays:
    """Return tokens, and the groups of equal tokens: the operands of `KINDS` without a shape."""
    groups = zip(("order", "starts", "rows"), group_tokens(tokens), strict=True)
    return {"tokens": tokens, **dict(groups)}


# Sizes


@dataclass(frozen=True)
class Lab(Sizes):
    """A table in float32 of the sizes of a model, and batches of tokens to look up.

    scale: number by which the model's vocabulary and number of tokens are divided. repeated: one
    token in `repeated` tokens has one and the same id. With 0, tokens are equal only by chance. The
    kind of work REPEATED uses REPEATED_SHARE in place of 0.
    """

    model: str = ""
    scale: int = 1
    repeated: int = 0

    @property
    def vocabulary(self) -> int:
        """Number of rows of the table (V), which is not padded as a model's table."""
        return self.config.vocab_size

    @property
    def table_bytes(self) -> int:
        return self.vocabulary * self.config.dim * 4

    def describe(self) -> str:
        table = by(*self.shape("VC"))
        return f"{self.model}: table {table}, {self.sequences} x {self.config.seq_len:,} tokens"

    def scaled_to(self, table_bytes: int) -> Lab:
        """Return a lab with a table of at most `table_bytes` bytes, and fewer tokens in proportion.

        The length of rows and the share of repeated tokens stay the same.
        """
        scale = 1
        while self.table_bytes > table_bytes * scale:
            scale *= 2
        batch = max(self.sequences // scale, 1)
        sizes = max(self.vocabulary // scale, 1), max(self.rows // scale // batch, 1)
        config = replace(self.config, vocab_size=sizes[0], seq_len=sizes[1])
        return replace(self, config=config, sequences=batch, scale=self.scale * scale)

    def token_ids(self, kind: str) -> NDArray[np.uint32]:
        """Return the tokens for one of `KINDS`, uint32 (N,)."""
        generator = np.random.default_rng(self.rows)
        generator.random(PERIOD, np.float32)  # the ids of recorded results follow these numbers
        ids = generator.integers(0, self.vocabulary, self.rows).astype(np.uint32)
        share = self.repeated or (REPEATED_SHARE if kind == REPEATED else 0)
        if share:
            same = max(self.rows // share, 1)
            ids[generator.choice(self.rows, same, replace=False)] = ids[0]
        return ids

    def way(
        self, kind: str, way: str, record: Way, largest: int = sys.maxsize, **more: Any
    ) -> KernelCase:
        """Return the benchmark case for one implementation of an operation.

        kind: a key of `KINDS`. way: name of the implementation. record: the implementation.
        largest: the most bytes of a tensor; a larger table is cut into several tensors.
        more: other fields of the case by name.
        """
        tokens, output_bytes = self.token_ids(kind), 4 * self.rows * self.config.dim
        if self.scale > 1:
            more["note"] = f"scaled down: 1/{self.scale} of the model's vocabulary and tokens"
        if record not in IN_PARTS and self.table_bytes > largest:
            more["why_not"] = f"takes a table in one binding, which has at most {largest:,} bytes"

        def given() -> Arrays:
            return in_groups(tokens) | {"grad_table": np.zeros(self.shape("VC"), np.float32)}

        return self.case(
            f"{kind}: {way}",
            KINDS[kind].operands,
            None,
            given,
            sizes=self.describe(),
            record=record,
            reference=KINDS[kind].reference,
            kind=kind,
            answer="rows",
            tolerance=TOLERANCE if kind in GRADIENTS else 0,
            bytes=embedding_bytes(kind, self, tokens),
            fields={"table_bytes": self.table_bytes, "output_bytes": output_bytes},
            counted={"output_bytes": output_bytes, "tokens": self.rows},
            **more,
        )

    def cases(self, where: str, largest: int = sys.maxsize) -> Iterator[KernelCase]:
        """Yield the cases of all ways of a place: "numpy", "gpu" or "torch"."""
        for name, kind in KINDS.items():
            for way, record in getattr(kind, where).items():
                if where == "torch":
                    yield self.way(name, way, kind.reference, torch=record)
                else:
                    yield self.way(name, way, record, largest)


def make_lab(model: str, vocab_size: int, width: int, batch: int, seq_len: int) -> Lab:
    """Return a lab with a table (vocab_size, width), and batch x seq_len tokens."""
    config = ModelConfig(vocab_size, dim=width, heads=1, kv_heads=1, seq_len=seq_len)
    return Lab(config, batch, model=model)


LABS = (
    make_lab("GPT-2 Small", 50_257, 768, 32, 512),
    make_lab("Llama-2-7B", 32_000, 4096, 8, 1024),
    make_lab("Llama-3-8B", 128_256, 4096, 8, 2048),
    make_lab("Llama-3-70B", 128_256, 8192, 8, 2048),
)


def measure_embedding(engines: Engines, options: BenchOptions, progress: Progress) -> Results:
    """Yield the result of each way in each lab: NumPy's ways, then torch's, then the GPUs'."""
    hosts = [engine for engine in engines if engine.backend.device is None]
    for lab, gpus in _labs(engines, options).items():
        bench = CaseBench(EMBEDDING, options, progress)
        for engine in hosts:
            yield from bench.measure_cases(lab.cases("numpy"), engine)
        found = [Torch.beside(engine) for engine in hosts + gpus if options.peers]
        if None in found:
            yield missing_torch(EMBEDDING, lab.describe())
        for torch in {torch.device: torch for torch in found if torch is not None}.values():
            yield from bench.measure_cases(lab.cases("torch"), None, torch)
            torch.module.cuda.empty_cache()  # for the tensors of the GPUs
        for engine in gpus:
            largest = open_operations(engine.backend.device).max_tensor_bytes
            yield from bench.measure_cases(lab.cases("gpu", largest), engine)


def most_table_bytes(engine: Engine, *, quick: bool) -> int:
    """Return the size of the largest table with which an engine is measured, in bytes."""
    if engine.is_software_adapter:
        return QUICK_SOFTWARE_TABLE_BYTES if quick else SOFTWARE_TABLE_BYTES
    return QUICK_TABLE_BYTES if quick else sys.maxsize


def _labs(engines: Sequence[Engine], options: BenchOptions) -> dict[Lab, list[Engine]]:
    """Return labs, each with the GPUs that are measured in it; NumPy is measured in all labs.

    A lab is as large as its engines can handle. If its table is larger than a binding of a device,
    the device is also measured in a smaller lab, with the ways that need the table in one binding.
    """
    free = free_memory()
    host = sys.maxsize if free is None else free // TABLE_COPIES
    labs: dict[Lab, list[Engine]] = {}
    for lab in LABS[:1] if options.quick else LABS:
        for engine in engines:
            own = lab.scaled_to(min(host, most_table_bytes(engine, quick=options.quick)))
            gpus, device = labs.setdefault(own, []), engine.backend.device
            if device is not None:
                gpus.append(engine)
                if own.table_bytes > device.max_binding_bytes:
                    labs.setdefault(lab.scaled_to(device.max_binding_bytes), []).append(engine)
    return labs
