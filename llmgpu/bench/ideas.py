"""The speed of each idea behind the kernels, measured by switching off one idea at a time.

An idea has several ways. A way is a number that a kernel takes, an existing kernel, or a kernel of
``wgsl/bench`` that replaces a file of the product while the way is measured. The first way of an
idea is the way of the product itself. Before a way is timed, its answer is compared with the CPU's.
Ways on text run in turns, so that a change of the clocks affects all ways of an idea. The time of a
way on text is the sum over all kernels of a job; the seconds of each kernel are recorded, too. An
idea that can't be switched off has a result without times, whose note gives the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from llmgpu.backend import NUMPY, Backend
from llmgpu.bench import IDEAS, BenchOptions
from llmgpu.bench.cases import CaseBench, Given, KernelCase, Sizes
from llmgpu.bench.embedding import (
    BACKWARD,
    COMPACT,
    HALF,
    KINDS,
    LABS,
    LOOKUP,
    Lab,
    lab_kernel,
    most_table_bytes,
)
from llmgpu.bench.engines import Engine, Engines, Work, time_in_turns, timed, with_times
from llmgpu.bench.kernels import all_weights_cases, choose_sizes
from llmgpu.bench.results import NUMPY_ENGINE, Result, Results
from llmgpu.bench.tokenizers import encode_all, kernel_text_bytes, load_text
from llmgpu.bpe.encoding.open import open_encoder
from llmgpu.bpe.plain import recount_gpu
from llmgpu.bpe.plain.greedy_gpu import GpuGreedyEncoder
from llmgpu.bpe.training.options import TrainingOptions
from llmgpu.bpe.training.train import train_vocabulary
from llmgpu.errors import DeviceError
from llmgpu.gpu.adapters import OPTIONAL_FEATURES, OpenedAdapter
from llmgpu.gpu.device import Device
from llmgpu.lm.ops.ids import group_tokens
from llmgpu.lm.ops.recording import workgroups
from llmgpu.progress import Progress
from llmgpu.text.corpus import corpus_from_bytes

# Number of merges to train. Further merges would repeat the same iterations on a shorter text.
MERGES, SOFTWARE_MERGES = 256, 16
LOSS_SEQUENCES = 1
REPEATED_SHARES = (0, 50, 10, 2)  # one of this many tokens is the same token; 0: only by chance
FLOAT_ATOMICS = "shader-float32-atomic"
NOT_MEASURED = {
    "word boundaries marked on the GPU": "the trainers on a GPU have no other way to cut text",
    "marks and sums in one kernel": "no kernel only marks, or only sums",
    "offsets, merge and move in one kernel": "no kernel does one of the three alone",
    "one submission for many merges": "the number of merges in a submission follows the clock",
    "nodes of the trie in breadth-first order": "a vocabulary has no other order",
    "buffers that are kept between texts": "an encoder always keeps its buffers",
    "one submission a slice": "the kernels of a slice are never submitted apart",
    "only the ids that exist are copied": "no call copies the whole output",
    "gradient in the place of the logits": "no kernel in single precision has a second matrix",
    "softmax and loss in one kernel": "no kernel computes one of them alone",
    "sums of the softmax in one pass": "no kernel reads the logits once for each sum",
    "no second pass without label smoothing": "the sum for label smoothing needs no second pass",
    "saturating casts": "no cast of one element a thread lets numbers overflow",
}

# Settings of a way, by name. A str is a file in wgsl/ that replaces the kernel's file of that name.
# An int is an argument of the job.
Settings = Mapping[str, str | int]

_SCANS: Mapping[str, Settings] = {
    "subgroup operations, 2 barriers": {},
    "workgroup memory, 18 barriers": {"scan": "common/scan_shared.wgsl"},
}
_MATCH, _COUNT = "trie/match.wgsl", "recount/02_pair_count.wgsl"
_SUM, _COMPACT = "trie/04_prefix_sum.wgsl", "trie/05_tokenizer_compact.wgsl"
# Ideas on text, each with its ways.
RECOUNT_IDEAS: dict[str, Mapping[str, Settings]] = {
    "counting in workgroup memory": {
        "a table of 1,024 slots": {},
        "a table of 512 slots": {"slots": 512},
        "a table of 2,048 slots": {"slots": 2048},
        "global atomics alone": {_COUNT: "bench/pair_count_global.wgsl"},
    },
    "symbols that a workgroup counts": {f"{n:,}": {"tile": n} for n in (1024, 256, 4096)},
    "scan of marks": _SCANS,
}
GREEDY_IDEAS: dict[str, Mapping[str, Settings]] = {
    "cached levels of the trie": {
        "root and its children": {},
        "root alone": {_MATCH: "bench/match_root_cache.wgsl"},
        "none": {_MATCH: "bench/match_no_caches.wgsl"},
    },
    "branchless search": {
        "as many steps for all threads": {},
        "ends at the child": {_MATCH: "bench/match_branches.wgsl"},
    },
    "sums of chunks": {"a workgroup": {}, "one thread": {_SUM: "bench/prefix_sum_one_thread.wgsl"}},
    "coalesced copy of ids": {
        "a workgroup a chunk": {},
        "a thread a chunk": {_COMPACT: "bench/compact_by_threads.wgsl"},
    },
    "bytes of a chunk": {f"{size:,}": {"chunk_bytes": size} for size in (256, 64, 512, 1024)},
    "scan of counts": _SCANS,
}


def measure_ideas(engines: Engines, options: BenchOptions, progress: Progress) -> Results:
    """Yield the results of each GPU: ideas on text, on tables, on losses and on updates.

    An engine without kernels, such as the CPU, has one result with a note.
    """
    for engine in engines:
        if engine.backend.device is None:
            yield Result(IDEAS, engine.name, job="kernels", note="has no kernels")
            continue
        yield from _text_results(engine, options, progress)
        yield from _case_results(engine, options, progress)
        for idea, reason in NOT_MEASURED.items():
            begun = Result(IDEAS, engine.name, job="ideas without a switch", note=reason)
            yield replace(begun, variant=f"not measured: {idea}")


# Ideas on text


def _text_results(engine: Engine, options: BenchOptions, progress: Progress) -> Results:
    # Choose the text, and train the vocabulary of the encoders.
    opened = engine.backend.device
    assert opened is not None
    data = load_text(options.corpus, options.limit)
    data = data[: kernel_text_bytes(engine, quick=options.quick)]
    merges = SOFTWARE_MERGES if engine.is_software_adapter else MERGES
    training = TrainingOptions(256 + merges, options.pattern)
    trained = train_vocabulary(corpus_from_bytes(data), training, NUMPY).vocabulary
    whole = TrainingOptions(options.vocab_size, options.pattern, match="greedy")
    vocabulary = train_vocabulary(corpus_from_bytes(data), whole, NUMPY).vocabulary

    def recount(own: Device, slots: int = training.recount_slots, tile: int | None = None) -> Work:
        asked = replace(training, recount_slots=slots)
        text, starts = np.frombuffer(data, np.uint8), np.zeros(1, np.int64)
        return lambda: recount_gpu.train(own, text, starts, asked, count_tile=tile).pairs

    def encode(own: Device, **sizes: int) -> Work:
        encoder = GpuGreedyEncoder(own, vocabulary, **sizes)
        return lambda: encode_all(encoder, corpus_from_bytes(data))

    def open_way(work: Callable[..., Work], settings: Settings) -> tuple[Device, Work]:
        # The same device, but with kernel files of its own.
        files = {name: file for name, file in settings.items() if isinstance(file, str)}
        device = Device(opened)
        device.source_choices = device.source_choices | files
        sizes = {name: size for name, size in settings.items() if name not in files}
        return device, work(device, **sizes)

    # Compute the CPU's answers, and compare and time the ways of each idea.
    size = f"{len(data) / 1e6:,.2f} MB of text, pattern {options.pattern}"
    ids = encode_all(open_encoder(vocabulary, NUMPY), corpus_from_bytes(data))
    recounting = f"recounting {merges} merges, {size}"
    for job, ideas, work, expected, answer in (
        (recounting, RECOUNT_IDEAS, recount, trained.merges[:, :2], "merges"),
        (f"greedy ids of {vocabulary.size:,}, {size}", GREEDY_IDEAS, encode, ids, "ids"),
    ):
        for idea, ways in ideas.items():
            progress(f"{IDEAS}: {engine.name}, {idea}", 0, 1)
            begun = [Result(IDEAS, engine.name, job=job, variant=f"{idea}: {way}") for way in ways]
            if ways is _SCANS and not opened.subgroup_size:
                yield replace(begun[0], note="no subgroups")
                continue
            opens = [partial(open_way, work, settings) for settings in ways.values()]
            pairs = zip(begun, opens, strict=True)
            for result, times in time_in_turns(engine, pairs, expected, answer, options.runs):
                yield with_times(result, times) if times else result


# Ideas on tensors


def _case_results(engine: Engine, options: BenchOptions, progress: Progress) -> Results:
    bench = CaseBench(IDEAS, options, progress, cold=True)
    sizes, note = choose_sizes(engine, quick=options.quick)
    lab = _lab(engine, quick=options.quick)
    engine, why_not = _engine_with_floats(engine)
    yield from bench.measure_cases(_lookup_cases(lab), engine)
    for share in REPEATED_SHARES:
        repeated = replace(lab, repeated=share)
        idea = f"gradients of rows, {100 / share if share else 0:g} % of the tokens the same"
        yield from bench.measure_cases(_gradient_cases(repeated, idea, why_not), engine)
        # The time that the host takes to sort tokens: gradients in groups need sorted tokens.
        sort = partial(group_tokens, repeated.token_ids(BACKWARD))
        variant = f"{idea}: the host sorts tokens for grouping"
        begun = Result(IDEAS, NUMPY_ENGINE, job=lab.describe(), variant=variant)
        seconds = [timed(sort)[0] for _ in range(options.runs)]
        yield begun.compared(True, "reference").timed(seconds, clock="host")
    cases = [*_loss_cases(replace(sizes, sequences=LOSS_SEQUENCES)), *_cast_cases(sizes)]
    yield from bench.measure_cases([replace(case, note=note) for case in cases], engine)


def _lab(engine: Engine, *, quick: bool) -> Lab:
    return LABS[0].scaled_to(most_table_bytes(engine, quick=quick))


def _engine_with_floats(engine: Engine) -> tuple[Engine, str]:
    """Reopen the adapter with atomic additions of float32; return the new engine and "".

    If the adapter can't be opened with them, return `engine` and the reason.
    """
    device = engine.backend.device
    assert device is not None
    if FLOAT_ATOMICS not in device.adapter.features:
        return engine, f"{device.webgpu.name} does not offer {FLOAT_ATOMICS} here"
    try:
        again = Device(OpenedAdapter(device.adapter, OPTIONAL_FEATURES | {FLOAT_ATOMICS}))
    except DeviceError as error:
        return engine, str(error)
    return replace(engine, backend=Backend(again, engine.backend.description)), ""


_FILE = "bench/embed_backward_float.wgsl"
_add_floats = lab_kernel(_FILE, lambda n, c: workgroups(n * c), adds=True)


def _lookup_cases(lab: Lab) -> Iterator[KernelCase]:
    for kind in (LOOKUP, HALF):
        for way, record in reversed(KINDS[kind].gpu.items()):
            yield replace(lab.way(kind, way, record), name=f"rows of a table: {kind}, {way}")


def _gradient_cases(lab: Lab, idea: str, no_floats: str) -> Iterator[KernelCase]:
    """Yield the ways to add gradients to rows.

    no_floats: the reason why the device can't add float32 numbers atomically, or "".
    """
    ways = [(BACKWARD, way, record, "") for way, record in reversed(KINDS[BACKWARD].gpu.items())]
    ways.append((COMPACT, "grouped, distinct rows alone", "embed_gradient_rows", ""))
    ways.append((BACKWARD, "float32 additions of the device", _add_floats, no_floats))
    for kind, way, record, why_not in ways:
        case = lab.way(kind, way, record)
        yield replace(case, name=f"{idea}: {way}", kind=f"{kind}, {idea}", why_not=why_not)


def _loss_cases(s: Sizes) -> Iterator[KernelCase]:
    """Yield the cross-entropy without and with label smoothing and z-loss, then with 256, 128 and
    64 threads for each row.
    """

    def case(name: str, smoothing: float, z_loss: float, **more: Any) -> KernelCase:
        params = np.array([1 / s.rows, smoothing, z_loss, 1 / s.vocabulary], np.float32)
        operands = "*logits:NV targets +cross_entropy:N +smoothing:N +z_loss:N params"
        operations, more = 7 * s.rows * s.vocabulary, {"record": "cross_entropy"} | more
        given: Given = partial(dict, params=params)
        return s.case(name, operands, operations, given, tokens=s.vocabulary, **more)

    yield case("label smoothing and z-loss: neither", 0.0, 0.0)
    yield case("label smoothing and z-loss: smoothing", 0.1, 0.0)
    yield case("label smoothing and z-loss: z-loss", 0.0, 1e-4)
    yield case("label smoothing and z-loss: both", 0.1, 1e-4)
    by_threads = {"record": "cross_entropy_by", "reference": "cross_entropy"}
    for threads in (256, 128, 64):
        name = f"threads for the softmax of a row: {threads}"
        yield case(name, 0.1, 1e-4, kind="threads of a row", threads=threads, **by_threads)


def _cast_cases(s: Sizes) -> Iterator[KernelCase]:
    """Yield updates of all weights and their half-precision copies, in one kernel and in two."""
    fused, apart = all_weights_cases(s)
    both: dict[str, Any] = {"kind": "half-precision copies", "reference": fused.record, "where": ""}
    yield replace(fused, name="half-precision copies: written by the update", **both)
    yield replace(apart, name="half-precision copies: cast after the update", **both)
