"""The speed of each idea behind the kernels, measured by switching off one idea at a time.

An idea has several ways. A way is a number that a kernel takes, an existing kernel, or a kernel of
``wgsl/bench`` that replaces a file of the product while the way is measured. The first way of an
idea is the way of the product itself. Before a way is timed, its answer is compared with the CPU's.
Ways on text run in turns, so that a change of the clocks affects all ways of an idea. The time of a
way on text is the sum over all kernels of a job; the seconds of each kernel are recorded, too. An
idea that can't be switched off has a result without times, whose note gives the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.backend import NUMPY, Backend
from llmgpu.bench import IDEAS, BenchOptions
from llmgpu.bench.cases import Array, CaseBench, KernelCase, Sizes
from llmgpu.bench.embedding import (
    BACKWARD,
    COMPACT,
    HALF,
    KINDS,
    LABS,
    LOOKUP,
    Lab,
    Way,
    lab_kernel,
    most_table_bytes,
)
from llmgpu.bench.engines import (
    Engine,
    ProgramTimes,
    cpu_engine,
    has_timestamps,
    raise_clocks,
    time_run,
    timed,
)
from llmgpu.bench.kernels import all_weights_cases, choose_sizes
from llmgpu.bench.results import NUMPY_ENGINE, Result
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

Answer = NDArray[np.uint32]
Run = Callable[[], Answer]


@dataclass(frozen=True)
class TextWay:
    """A way of doing a job on text, with an idea or without it.

    files: kernels' files in wgsl/ to use in place of others, by the name of the replaced file.
    options: arguments of the job.
    """

    name: str
    files: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, int] = field(default_factory=dict)


_SCANS = (
    TextWay("subgroup operations, 2 barriers"),
    TextWay("workgroup memory, 18 barriers", {"scan": "common/scan_shared.wgsl"}),
)
_MATCH, _COUNT = "trie/match.wgsl", "recount/02_pair_count.wgsl"
RECOUNT_IDEAS: dict[str, tuple[TextWay, ...]] = {
    "counting in workgroup memory": (
        TextWay("a table of 1,024 slots"),
        TextWay("a table of 512 slots", {}, {"slots": 512}),
        TextWay("a table of 2,048 slots", {}, {"slots": 2048}),
        TextWay("global atomics alone", {_COUNT: "bench/pair_count_global.wgsl"}),
    ),
    "symbols that a workgroup counts": tuple(
        TextWay(f"{tile:,}", {}, {"tile": tile}) for tile in (1024, 256, 4096)
    ),
    "scan of marks": _SCANS,
}
GREEDY_IDEAS: dict[str, tuple[TextWay, ...]] = {
    "cached levels of the trie": (
        TextWay("root and its children"),
        TextWay("root alone", {_MATCH: "bench/match_root_cache.wgsl"}),
        TextWay("none", {_MATCH: "bench/match_no_caches.wgsl"}),
    ),
    "branchless search": (
        TextWay("as many steps for all threads"),
        TextWay("ends at the child", {_MATCH: "bench/match_branches.wgsl"}),
    ),
    "sums of chunks": (
        TextWay("a workgroup"),
        TextWay("one thread", {"trie/04_prefix_sum.wgsl": "bench/prefix_sum_one_thread.wgsl"}),
    ),
    "coalesced copy of ids": (
        TextWay("a workgroup a chunk"),
        TextWay(
            "a thread a chunk", {"trie/05_tokenizer_compact.wgsl": "bench/compact_by_threads.wgsl"}
        ),
    ),
    "bytes of a chunk": tuple(
        TextWay(f"{size:,}", {}, {"chunk_bytes": size}) for size in (256, 64, 512, 1024)
    ),
    "scan of counts": _SCANS,
}


def measure_ideas(
    engines: Sequence[Engine], options: BenchOptions, progress: Progress
) -> Iterator[Result]:
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


def _text_results(engine: Engine, options: BenchOptions, progress: Progress) -> Iterator[Result]:
    # Choose the text, and train the vocabulary of the encoders.
    device = engine.backend.device
    assert device is not None
    data = load_text(options.corpus, options.limit)
    data = data[: kernel_text_bytes(engine, quick=options.quick)]
    merges = SOFTWARE_MERGES if engine.is_software_adapter else MERGES
    training = TrainingOptions(256 + merges, options.pattern)
    vocabulary = train_vocabulary(
        corpus_from_bytes(data), TrainingOptions(options.vocab_size, options.pattern), NUMPY
    ).vocabulary.with_match("greedy")

    def recount(own: Device, way: TextWay) -> Run:
        slots = way.options.get("slots", training.recount_slots)
        asked = replace(training, recount_slots=slots)
        text, starts = np.frombuffer(data, np.uint8), np.zeros(1, np.int64)
        tile = way.options.get("tile")
        return lambda: recount_gpu.train(own, text, starts, asked, count_tile=tile).pairs

    def encode(own: Device, way: TextWay) -> Run:
        encoder = GpuGreedyEncoder(own, vocabulary, **way.options)
        return lambda: encode_all(encoder, corpus_from_bytes(data))

    # Compute the CPU's answers, and compare and time the ways of each idea.
    size = f"{len(data) / 1e6:,.2f} MB of text, pattern {options.pattern}"
    learned = train_vocabulary(corpus_from_bytes(data), training, NUMPY).vocabulary.merges[:, :2]
    ids = encode_all(open_encoder(vocabulary, NUMPY), corpus_from_bytes(data))
    for job, ideas, make, expected, answer in (
        (f"recounting {merges} merges, {size}", RECOUNT_IDEAS, recount, learned, "merges"),
        (f"greedy ids of {vocabulary.size:,}, {size}", GREEDY_IDEAS, encode, ids, "ids"),
    ):
        for idea, ways in ideas.items():
            progress(f"{IDEAS}: {engine.name}, {idea}", 0, 1)
            begun = Result(IDEAS, engine.name, job=job)
            if ways is _SCANS and not device.subgroup_size:
                yield replace(begun, variant=f"{idea}: {ways[0].name}", note="no subgroups")
                continue
            yield from _compare_ways(begun, idea, ways, engine, make, (expected, answer), options)


def _compare_ways(
    begun: Result,
    idea: str,
    ways: Sequence[TextWay],
    engine: Engine,
    make: Callable[[Device, TextWay], Run],
    reference: tuple[Answer, str],
    options: BenchOptions,
) -> Iterator[Result]:
    """Yield a result for each way; ways with a wrong answer are not timed.

    make: returns the job of a way on a device. reference: the CPU's answer, and its name.
    """
    expected, answer = reference
    opened = engine.backend.device
    assert opened is not None
    right: dict[str, tuple[Device, Run, ProgramTimes]] = {}  # by variant

    def compare(begun: Result, way: TextWay) -> Result:
        # The same device, but with kernel files of its own.
        device = Device(opened)
        device.source_choices = device.source_choices | dict(way.files)
        run = make(device, way)
        result = begun.compared(np.array_equal(run(), expected), f"{answer} of {cpu_engine()}")
        if result.correct:
            clock = "gpu" if has_timestamps(device) else "host"
            right[result.variant] = device, run, ProgramTimes(clock)
        return result

    results = []
    for way in ways:
        named = replace(begun, variant=f"{idea}: {way.name}")
        results.append(named.or_why_not(partial(compare, named, way)))
    # Time the ways in turns.
    for _ in range(options.runs):
        raise_clocks(engine.backend)
        for device, run, times in right.values():
            times.runs.append(time_run(device, run))
    for result in results:
        if result.correct:
            times = right[result.variant][-1]
            result = result.timed(times.seconds, clock=times.clock, kernels=times.kernels)
        yield result


# Ideas on tensors


def _case_results(engine: Engine, options: BenchOptions, progress: Progress) -> Iterator[Result]:
    bench = CaseBench(IDEAS, options, progress, cold=True)
    sizes, note = choose_sizes(engine, quick=options.quick)
    lab = _lab(engine, quick=options.quick)
    with_floats, why_not = _engine_with_floats(engine)
    yield from bench.measure_cases(engine, _lookup_cases(lab))
    for share in REPEATED_SHARES:
        repeated = replace(lab, repeated=share)
        yield from bench.measure_cases(engine, _gradient_cases(repeated))
        case = _gradient_case(repeated, BACKWARD, "float32 additions of the device", _add_floats)
        yield from bench.measure_cases(with_floats, [replace(case, why_not=why_not)])
        yield _sorting(repeated, options)
    cases = [*_loss_cases(replace(sizes, sequences=LOSS_SEQUENCES)), *_cast_cases(sizes)]
    yield from bench.measure_cases(engine, [replace(case, note=note) for case in cases])


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


def _lookup_cases(lab: Lab) -> Iterator[KernelCase]:
    for kind in (LOOKUP, HALF):
        for way, record in reversed(KINDS[kind].gpu.items()):
            case = lab.case(kind, way, record, lab.table_bytes)
            yield replace(case, name=f"rows of a table: {kind}, {way}")


_add_floats = lab_kernel(
    "bench/embed_backward_float.wgsl", lambda n, c: workgroups(n * c), adds=True
)


def _gradient_cases(lab: Lab) -> Iterator[KernelCase]:
    for way, record in reversed(KINDS[BACKWARD].gpu.items()):
        yield _gradient_case(lab, BACKWARD, way, record)
    yield _gradient_case(lab, COMPACT, "grouped, distinct rows alone", "embed_gradient_rows")


def _gradient_idea(lab: Lab) -> str:
    share = f"{100 / lab.repeated:g}" if lab.repeated else "0"
    return f"gradients of rows, {share} % of the tokens the same"


def _gradient_case(lab: Lab, kind: str, way: str, record: Way) -> KernelCase:
    case = lab.case(kind, way, record, lab.table_bytes)
    idea = _gradient_idea(lab)
    return replace(case, name=f"{idea}: {way}", kind=f"{kind}, {idea}")


def _sorting(lab: Lab, options: BenchOptions) -> Result:
    """Measure how long the host takes to sort tokens. Gradients in groups need sorted tokens."""
    tokens = lab.token_ids(BACKWARD)
    seconds = [timed(partial(group_tokens, tokens))[0] for _ in range(options.runs)]
    variant = f"{_gradient_idea(lab)}: the host sorts tokens for grouping"
    begun = Result(IDEAS, NUMPY_ENGINE, job=lab.describe(), variant=variant, clock="host")
    return replace(begun, correct=True, answer="the reference").timed(seconds)


def _loss_cases(s: Sizes) -> Iterator[KernelCase]:
    """Yield the cross-entropy without and with label smoothing and z-loss, then with 256, 128 and
    64 threads for each row.
    """
    rows, width = s.rows, s.vocabulary

    def given(smoothing: float, z_loss: float) -> Mapping[str, Array]:
        params = np.array([1 / rows, smoothing, z_loss, 1 / width], np.float32)
        return {"params": params}

    operands = "*logits:NV targets +cross_entropy:N +smoothing:N +z_loss:N params"
    whole = partial(
        s.case, operands=operands, operations=7 * rows * width, record="cross_entropy", tokens=width
    )
    for name, factors in (
        ("neither", (0.0, 0.0)),
        ("smoothing", (0.1, 0.0)),
        ("z-loss", (0.0, 1e-4)),
        ("both", (0.1, 1e-4)),
    ):
        yield whole(f"label smoothing and z-loss: {name}", given=partial(given, *factors))
    both = partial(given, 0.1, 1e-4)
    for threads in (256, 128, 64):
        yield whole(
            f"threads for the softmax of a row: {threads}",
            given=both,
            record="cross_entropy_by",
            reference="cross_entropy",
            kind="threads of a row",
            threads=threads,
        )


def _cast_cases(s: Sizes) -> Iterator[KernelCase]:
    """Yield updates of all weights and their half-precision copies, in one kernel and in two."""
    fused, apart = all_weights_cases(s)
    both: dict[str, Any] = {"kind": "half-precision copies", "reference": fused.record, "where": ""}
    yield replace(fused, name="half-precision copies: written by the update", **both)
    yield replace(apart, name="half-precision copies: cast after the update", **both)
