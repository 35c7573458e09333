"""Measuring embedding lookups and their gradient, at the sizes of three models.

Transfers are left out: tables and tokens are in place before, and every way first gives an answer
that is compared with NumPy's. Bytes a second are those that have to be read and written, each row
once, over the time; caches that keep rows from one run to the next can lift them above a copy's. A
laboratory exercise that this follows counts the output alone; that rate is given, too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.bench import EMBEDDING, BenchOptions
from llmgpu.bench.engines import Engine
from llmgpu.bench.kernels import operations as kernels
from llmgpu.bench.kernels.cases import (
    TOLERANCE,
    Array,
    Arrays,
    KernelCase,
    Record,
    Tensors,
    by,
    empty,
)
from llmgpu.bench.kernels.measure import CaseBench
from llmgpu.bench.peers.torch import Torch, missing_torch
from llmgpu.bench.results import Result
from llmgpu.lm.ops.embedding import group_tokens
from llmgpu.lm.ops.operations import open_operations
from llmgpu.memory import free_memory
from llmgpu.progress import Progress

LOOKUP = "lookup"
HALF = "lookup, f16 table"
POSITIONS = "token plus position"
BACKWARD = "backward"
REPEATED = "backward, 2 % of the tokens the same"
COMPACT = "backward, rows of distinct tokens alone"
KINDS = (LOOKUP, HALF, POSITIONS, BACKWARD, REPEATED, COMPACT)
GRADIENTS = (BACKWARD, REPEATED, COMPACT)
REPEATED_SHARE = 50  # one token in 50 is the same as others
BLOCK = 1_000_003  # random numbers; prime, so that no two rows made of them are the same
TABLE_COPIES = 8  # for which the host needs memory, if not more
SOFTWARE_TABLE_BYTES = 32 << 20
QUICK_TABLE_BYTES = 64 << 20
QUICK_SOFTWARE_TABLE_BYTES = 8 << 20
BUDGET, QUICK_BUDGET = 0.5, 0.1  # seconds for a way


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
        """Number of tokens (N)."""
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
        table = by(self.vocab_size, self.width)
        return f"{self.model}: table {table}, {self.batch} x {self.seq_len:,} tokens"

    def scaled_to(self, table_bytes: int) -> EmbeddingJob:
        """Return the job with a table of at most this size, and proportionally fewer tokens.

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

    def token_ids(self, kind: str) -> NDArray[np.uint32]:
        """Return the tokens of one of `KINDS`, (N,)."""
        _, generator = self._numbers()
        ids = generator.integers(0, self.vocab_size, self.tokens).astype(np.uint32)
        if kind == REPEATED:
            same = max(self.tokens // REPEATED_SHARE, 1)
            ids[generator.choice(self.tokens, same, replace=False)] = ids[0]
        return ids

    def _numbers(self) -> tuple[NDArray[np.float32], np.random.Generator]:
        """Return the numbers that tables repeat, from 0 to 1, and a generator for ids."""
        generator = np.random.default_rng(self.tokens)
        return generator.random(BLOCK, np.float32), generator

    def arrays(self, kind: str, largest: int) -> Arrays:
        """Return what a kind of work is given, by name.

        Tables are in parts of whole rows, of at most `largest` bytes: "table 0" and so on. Numbers
        are not negative, so that sums of gradients lose nothing by cancellation.
        """
        (block, _), tokens = self._numbers(), self.token_ids(kind)
        arrays: Arrays = {"tokens": tokens}
        if kind in GRADIENTS:
            arrays |= zip(("order", "starts", "rows"), group_tokens(tokens), strict=True)
            arrays["grad_out"] = np.resize(block[::-1], (self.tokens, self.width))
            if kind != COMPACT:
                return arrays | {"grad_table": np.zeros((self.vocab_size, self.width), np.float32)}
            return arrays | {"out": empty(self.tokens, self.width)}
        values = block.astype(np.float16) if kind == HALF else block
        table = np.resize(values, (self.vocab_size, self.width))
        rows = min(max(largest // table[:1].nbytes, 1), len(table))
        for part, first in enumerate(range(0, len(table), rows)):
            arrays[f"table {part}"] = table[first : first + rows]
        if kind == POSITIONS:
            arrays["positions"] = np.tile(np.arange(self.seq_len, dtype=np.uint32), self.batch)
            arrays["position_table"] = np.resize(block[::-1], (self.seq_len, self.width))
        return arrays | {"out": empty(self.tokens, self.width)}

    def moved_bytes(self, kind: str) -> int:
        """Return the bytes that have to be read and written, rows of several tokens once."""
        row = self.width * 4
        rows = len(np.unique(self.token_ids(kind))) * row
        positions = rows + self.tokens * 4 + self.seq_len * row
        moved = (rows, rows // 2, positions, 2 * rows, 2 * rows, self.output_bytes)
        return self.tokens * 4 + moved[KINDS.index(kind)] + self.output_bytes


JOBS = (
    EmbeddingJob("GPT-2 Small", 50_257, 768, 32, 512),
    EmbeddingJob("Llama-2-7B", 32_000, 4096, 8, 1024),
    EmbeddingJob("Llama-3-8B", 128_256, 4096, 8, 2048),
)


Ways = dict[str, tuple[tuple[str, Record], ...]]  # of each kind: names, and what they call


def _call(operation: str | Callable[..., None], *arguments: str) -> Record:
    """Return the call of an operation on tensors; "table" stands for all parts of the table."""

    def record(ops: Any, t: Tensors) -> None:
        parts = [tensor for name, tensor in t.items() if name.startswith("table ")]
        call = getattr(ops, operation) if isinstance(operation, str) else partial(operation, ops)
        call(*(parts if key == "table" else t[key] for key in arguments))

    return record


def _index(ops: Any, t: Tensors) -> None:
    """Make new rows, as ``table[tokens]`` does."""
    tokens, table = t["tokens"].array, t["table 0"].array
    ops.append(lambda: t.update(out=replace(t["out"], data=table[tokens])))


def _add_row_after_row(table: Array, tokens: Array, grad_out: Array) -> None:
    for s, token in enumerate(tokens):
        table[token] += grad_out[s]


def _add_by(add: Callable[[Array, Array, Array], None]) -> Record:
    """Return the addition of gradients to the rows of a NumPy table."""
    names = ("grad_table", "tokens", "grad_out")
    return lambda ops, t: ops.append(partial(add, *(t[name].array for name in names)))


def _torch_rows(torch: Any, t: dict[str, Any], ids: str = "tokens", table: str = "table 0") -> Any:
    return torch.nn.functional.embedding(t[ids], t[table])


def _torch_sum(torch: Any, t: dict[str, Any]) -> Any:
    return _torch_rows(torch, t) + _torch_rows(torch, t, "positions", "position_table")


def _torch_backward(torch: Any, t: dict[str, Any]) -> Any:
    backward, rows = torch.ops.aten.embedding_dense_backward, len(t["grad_table"])
    return backward(t["grad_out"], t["tokens"], rows, -1, False)


def _torch_compact(torch: Any, t: dict[str, Any]) -> Any:
    groups = torch.searchsorted(t["rows"], t["tokens"])
    return t["out"].zero_().index_add_(0, groups, t["grad_out"])


def _ways(lookup: Any, half: Any, positions: Any, gradient: Any, compact: Any) -> dict[str, Any]:
    """Return what belongs to each kind; both kinds of gradients have the same."""
    return dict(zip(KINDS, (lookup, half, positions, gradient, gradient, compact), strict=True))


_IN_ONE, _GRADIENT = ("tokens", "table 0", "out"), ("tokens", "grad_out", "grad_table")
_lookup = _call("embed_lookup", "tokens", "table", "out")
_elements = _call("embed_lookup_elements", "tokens", "table", "out")
_positions = _call(
    kernels.embed_lookup_positions, "tokens", "table 0", "positions", "position_table", "out"
)
_grouped, _compact = kernels.embed_backward_grouped, kernels.embed_gradient_rows
REFERENCES: dict[str, Record] = _ways(_lookup, _lookup, _positions, _grouped, _compact)
IN_PARTS = (_lookup, _elements, _compact)  # which take tables of several parts, or none
# The first way of each kind is what others are compared with.
NUMPY_WAYS: Ways = _ways(
    (("np.take into memory that is there", _lookup), ("table[tokens]", _index)),
    (("np.take", _lookup),),
    (("np.take, added", _positions),),
    (
        ("row after row", _add_by(_add_row_after_row)),
        ("np.add.at", _add_by(np.add.at)),
        ("grouped", _grouped),
    ),
    (("grouped", _compact),),
)
GPU_WAYS: Ways = _ways(
    (
        ("one thread a token", _call(kernels.embed_lookup_token, *_IN_ONE)),
        ("one thread an element", _elements),
        ("8 tokens x 32 columns a workgroup", _call(kernels.embed_lookup_2d, *_IN_ONE)),
        ("one workgroup a token", _call(kernels.embed_lookup_rows_scalar, *_IN_ONE)),
        ("16-byte loads", _lookup),
    ),
    (("16-byte loads", _lookup), ("one thread an element", _elements)),
    (("one thread an element", _positions),),
    (
        ("atomic, one thread an element", _call(kernels.embed_backward, *_GRADIENT)),
        ("atomic, one workgroup a token", _call(kernels.embed_backward_rows, *_GRADIENT)),
        ("grouped", _grouped),
    ),
    (("grouped", _compact),),
)
TORCH_WAYS: Ways = _ways(
    (("nn.Embedding", _torch_rows),),
    (("nn.Embedding, then float", lambda torch, t: _torch_rows(torch, t).float()),),
    (("two nn.Embedding, added", _torch_sum),),
    (
        ("index_add_", lambda _, t: t["grad_table"].index_add_(0, t["tokens"], t["grad_out"])),
        ("of nn.Embedding, zeros included", _torch_backward),
    ),
    (("index_add_", _torch_compact),),
)


def measure_embedding(
    engines: Sequence[Engine], options: BenchOptions, progress: Progress
) -> Iterator[Result]:
    """Yield the result of each engine's ways on each job, NumPy's and torch's before others'."""
    budget = QUICK_BUDGET if options.quick else BUDGET
    for job, own_engines in _jobs(engines, options):
        bench = CaseBench(EMBEDDING, options, progress, budget)
        for is_gpu, ways in ((False, NUMPY_WAYS), (True, GPU_WAYS)):
            if is_gpu and options.peers:
                yield from _measure_torch(bench, job, own_engines)
            for engine in own_engines:
                if is_gpu == (engine.backend.device is not None):
                    yield from bench.measure_cases(engine, _cases(job, engine, ways))


def _measure_torch(
    bench: CaseBench, job: EmbeddingJob, engines: Sequence[Engine]
) -> Iterator[Result]:
    """Yield the result of each of torch's ways on the devices that engines are compared with."""
    try:
        devices = {torch.device: torch for torch in map(Torch.beside, engines)}
    except ImportError:
        yield missing_torch(EMBEDDING, job.describe())
        return
    for torch in devices.values():
        for kind, ways in TORCH_WAYS.items():
            for way, compute in ways:
                case = _case(job, kind, way, REFERENCES[kind], sys.maxsize)
                yield bench.measure_torch(torch, replace(case, torch=compute))
        torch.free_memory()


def _cases(job: EmbeddingJob, engine: Engine, ways: Ways) -> Iterator[KernelCase]:
    """Yield all ways as cases, with the reason where one can't be measured on an engine."""
    largest = open_operations(engine.backend.device).max_tensor_bytes
    too_large = f"takes a table in one binding, which has at most {largest:,} bytes"
    for kind in KINDS:
        for way, record in ways[kind]:
            fits = record in IN_PARTS or job.table_bytes <= largest
            case = _case(job, kind, way, record, largest)
            yield case if fits else replace(case, why_not=too_large)


def _case(job: EmbeddingJob, kind: str, way: str, record: Record, largest: int) -> KernelCase:
    """Return a way as a case; largest: bytes of a part of a table."""
    note = f"scaled down: 1/{job.scale} of the model's vocabulary and tokens"
    return KernelCase(
        f"{kind}: {way}",
        job.describe(),
        None,
        partial(job.arrays, kind, largest),
        ("grad_table",) if kind in (BACKWARD, REPEATED) else ("out",),
        record=record,
        reference=REFERENCES[kind],
        kind=kind,
        needs_half=kind == HALF,
        note=note if job.scale > 1 else "",
        answer="rows",
        tolerance=TOLERANCE if kind in GRADIENTS else 0,
        bytes=job.moved_bytes(kind),
        looked_up=(job.table_bytes, job.output_bytes, job.tokens),
    )


def _jobs(
    engines: Sequence[Engine], options: BenchOptions
) -> list[tuple[EmbeddingJob, list[Engine]]]:
    """Return jobs with the engines that do each; NumPy does them all.

    A job is as large as suits an engine; one for the ways that take no table in parts may follow.
    """
    free = free_memory()
    host = sys.maxsize if free is None else free // TABLE_COPIES
    jobs: dict[EmbeddingJob, list[Engine]] = {}
    for job in JOBS[:1] if options.quick else JOBS:
        for engine in engines:
            largest = QUICK_TABLE_BYTES if options.quick else sys.maxsize
            if engine.is_software_adapter:
                largest = QUICK_SOFTWARE_TABLE_BYTES if options.quick else SOFTWARE_TABLE_BYTES
            own = job.scaled_to(min(host, largest))
            jobs.setdefault(own, []).append(engine)
            device = engine.backend.device
            if device is not None and own.table_bytes > device.max_binding_bytes:
                jobs.setdefault(job.scaled_to(device.max_binding_bytes), []).append(engine)
    for doing in jobs.values():
        doing += [e for e in engines if e.backend.device is None and e not in doing]
    return list(jobs.items())
