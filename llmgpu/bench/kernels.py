"""Benchmarks of single operations of a language model: layers, generating and optimizers.

Each operation runs alone, on a GPU at the sizes of a training step of GPT-2 small, on a CPU at the
sizes of a tiny model. The caches of a GPU are evicted between runs. A speed-up is relative to
NumPy's median at the same sizes. If NumPy is not measured at these sizes, it is relative to the one
run of NumPy that computed the expected result. The kernels of `llmgpu.bench.embedding` are not
among these cases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import numpy as np

from llmgpu.bench import KERNELS, BenchOptions
from llmgpu.bench.cases import (
    Amount,
    Array,
    Arrays,
    CaseBench,
    Given,
    KernelCase,
    Sizes,
    Tensors,
    by,
)
from llmgpu.bench.embedding import (
    BACKWARD,
    COMPACT,
    GRADIENTS,
    HALF,
    KINDS,
    LOOKUP,
    POSITIONS,
    embed_lookup_positions,
    embedding_bytes,
    in_groups,
)
from llmgpu.bench.engines import Engine, Engines
from llmgpu.bench.peers import Torch
from llmgpu.bench.results import Results
from llmgpu.bench.tokenizers import measure_tokenizer_kernels
from llmgpu.lm.config import preset
from llmgpu.lm.gradients import LOGITS_BYTES, logits_block_rows
from llmgpu.lm.ops.activations import GELU, SWIGLU
from llmgpu.lm.ops.operations import Operations, open_operations
from llmgpu.lm.ops.optimizer import LOSS_PARTS, NORM_PARTIALS, WeightState, WeightUpdate
from llmgpu.lm.ops.tensor import AttentionShape
from llmgpu.lm.optimizers.adamw import BLOCK, CodedMoments, Moments, RowMoments
from llmgpu.lm.optimizers.muon import ITERATIONS, MUON, Momentum
from llmgpu.lm.updates import FIRST_SCALE
from llmgpu.progress import Progress

# Fields of cases with outputs in half precision. NumPy and a GPU may round a number to different
# neighbours.
HALVES: dict[str, Any] = {"where": "to half precision", "tolerance": 2e-3}
# Operations for each pair of query and key, in addition to products: scale, maximum, exp, sum.
SCORE_OPERATIONS = 4
LARGEST = 200  # number of largest logits to find, the default of --top-k
EPSILON = 1e-5
NORM_AND_PRODUCTS_TOLERANCE = 1e-4


def embedding_cases(s: Sizes) -> Iterator[KernelCase]:
    """Yield lookups in tables, the gradients of lookups, and filling a table with zeros."""
    tokens = s.tokens()
    distinct = len(np.unique(tokens))
    sizes = f"table {by(*s.shape('VC'))}, {s.rows:,} ids, {distinct:,} of them different"
    exact: dict[str, Any] = {"tolerance": 0}
    half = exact | {"where": "half-precision table"}
    for name, kind, operations, more in (
        ("embed_lookup", LOOKUP, 0, exact),
        ("embed_lookup", HALF, 0, half),
        ("embed_lookup_positions", POSITIONS, "NC", {"record": embed_lookup_positions}),
        ("embed_backward_grouped", BACKWARD, "NC", {}),
        ("embed_gradient_rows", COMPACT, "NC", {}),
    ):
        # Gradients also read the starts and rows of the groups.
        nbytes = embedding_bytes(kind, s, tokens) + 8 * distinct * (kind in GRADIENTS)
        more = more | {"sizes": sizes, "bytes": nbytes}
        yield s.case(name, KINDS[kind].operands, operations, partial(in_groups, tokens), **more)
    yield s.case("fill_zero", "+tensor:VC", **exact)


def norm_cases(s: Sizes) -> Iterator[KernelCase]:
    """Yield the RMS norm and its gradients."""
    operands, operations = "x:NC weight:C +out:NC{} +inverse_rms:N", s.rows * (4 * s.config.dim + 3)
    yield s.case("rms_norm", operands.format(""), operations, epsilon=EPSILON)
    yield s.case("rms_norm", operands.format(":h"), operations, epsilon=EPSILON, **HALVES)

    def given() -> dict[str, Array]:
        x = s.normal(*s.shape("NC"))
        return {"x": x, "inverse_rms": 1 / np.sqrt(np.square(x).mean(axis=1) + np.float32(EPSILON))}

    operands = "x:NC weight:C inverse_rms grad_out:NC{} *grad_x:NC *grad_weight:C"
    yield s.case("rms_norm_backward", operands.format(""), "9NC", given)
    operands = operands.format(":h") + " +half:NC:h"
    record = "rms_norm_backward_to_half"
    yield s.case("rms_norm_backward", operands, "9NC", given, record=record, **HALVES)


def linear_cases(s: Sizes) -> Iterator[KernelCase]:
    """Yield the cases of biases, then of matrix products: linear layers and their gradients.

    Products have the sizes of the feed-forward network and of the output layer, or a single row.
    """
    yield s.case("add_bias", "*x:NC bias:C", "NC")
    yield s.case("bias_backward", "grad_out:NC *grad_bias:C", "NC")
    for rows, outputs, half_x, half, where in (
        ("N", "F", "", "", "feed-forward"),
        ("N", "V", "", "", "output layer"),
        ("N", "F", ":h", ":h", "feed-forward, half-precision factors"),
        ("N", "F", "", ":h", "feed-forward, half-precision weights"),
        ("1", "F", "", "", "one row"),
        ("1", "F", "", ":h", "one row, half-precision weights"),
    ):
        n, m, k = s.shape(f"{rows}{outputs}C")
        operands = f"x:{rows}C{half_x} weight:{outputs}C{half} +out:{rows}{outputs}"
        more: dict[str, Any] = {"sizes": f"{by(n, k)} to {by(n, m)}", "operations": 2 * n * m * k}
        if half_x:  # torch rounds the products to half precision, too
            more |= HALVES | {"halves": True}
        more |= {"where": where, "torch": None if half_x != half else _multiply}
        yield s.case("linear", operands, **more)
        if rows == "1" or half_x != half:
            continue
        operands = f"grad_out:N{outputs}{half} weight:{outputs}C{half} +grad_x:NC"
        more |= {"accumulate": False, "sizes": f"{by(n, m)} to {by(n, k)}"}
        yield s.case("linear_backward_input", operands, **more | {"torch": _multiply_by_weight})
        operands = f"grad_out:N{outputs}{half} x:NC{half} *grad_weight:{outputs}C"
        more |= {"accumulate": True, "sizes": f"{by(m, n)} times {by(n, k)}"}
        yield s.case("linear_backward_weight", operands, **more | {"torch": _add_product})


def _multiply(torch: Any, t: Mapping[str, Any]) -> Any:
    return torch.matmul(t["x"], t["weight"].T)


def _multiply_by_weight(torch: Any, t: Mapping[str, Any]) -> Any:
    return torch.matmul(t["grad_out"], t["weight"])


def _add_product(torch: Any, t: Mapping[str, Any]) -> Any:
    if t["x"].dtype != t["grad_weight"].dtype:
        return t["grad_weight"].add_(torch.matmul(t["grad_out"].T, t["x"]))
    return t["grad_weight"].addmm_(t["grad_out"].T, t["x"])


def attention_cases(s: Sizes) -> Iterator[KernelCase]:
    """Yield rotations, and attention forward and backward."""
    config = s.config
    sizes = f"{config.heads} heads of {config.head_dim}, {by(s.sequences, config.seq_len)} tokens"
    tables = "cosines sines positions"
    more: dict[str, Any] = {"sizes": sizes, "head_dim": config.head_dim}
    yield s.case("rotary", f"*x:NC {tables}", "3NC", **more)
    more |= HALVES | {"starts": s.head_starts}
    yield s.case("rotary", f"x:NC {tables} +out:NC:h", "3NC", **more)
    operands = f"x:NP:h {tables} +q:NC:h +k:NK:h +v:NK:h"
    yield s.case("split_heads", operands, "3NC", **more)
    shape = AttentionShape(
        s.sequences, config.seq_len, config.heads, config.kv_heads, config.head_dim
    )
    # Pairs of query and key in all heads: a query attends to keys up to its own position.
    pairs = shape.batch * shape.heads * shape.seq * (shape.seq + 1) // 2

    # The backward pass reads `out` and `log_sum_exp`. The amount of work does not depend on their
    # values, as long as probabilities stay below one.
    def sums() -> dict[str, Array]:
        return {"log_sum_exp": np.full(s.shape("NH"), 7, np.float32)}

    halves = HALVES | {"where": "in half precision", "halves": True}
    for half, more in (("", {}), (":h", halves)):
        more |= {"sizes": sizes, "shape": shape}
        inputs = f"q:NC{half} k:NK{half} v:NK{half}"
        # Two products for each pair.
        operations = pairs * (2 * 2 * config.head_dim + SCORE_OPERATIONS)
        operands = f"{inputs} +out:NC{half} +log_sum_exp:NH starts:N:u"
        yield s.case("attention", operands, operations, **more)
        # Five products for each pair.
        operations = pairs * (5 * 2 * config.head_dim + SCORE_OPERATIONS)
        operands = f"{inputs} out:NC{half} log_sum_exp grad_out:NC{half}"
        operands += " +grad_q:NC +grad_k:NK +grad_v:NK starts:N:u"
        yield s.case("attention_backward", operands, operations, sums, **more)


def generating_cases(s: Sizes) -> Iterator[KernelCase]:
    """Yield the work of a layer for a new token, and the choice of the next token."""
    for rows, half in (("1", ""), ("1", ":h"), ("M", "")):
        yield from _new_token_cases(s, rows, half)
    # One query attends to a whole sequence of keys and values, which lie side by side in a row.
    config = s.config
    length, heads = config.seq_len, (config.heads, config.kv_heads, config.head_dim)
    operations = length * config.heads * (2 * 2 * config.head_dim + SCORE_OPERATIONS)
    more: dict[str, Any] = {"shape": AttentionShape(1, 1, *heads)}
    more["sizes"] = f"one query, {config.heads} heads of {config.head_dim}, {length:,} tokens"
    more["bytes"] = 8 * length * config.kv_dim + 8 * config.query_dim
    yield s.case("attention_cached", "q:1C cache:TB places +out:1C", operations, **more)
    # Write all rows of a sequence at once into the columns of values.
    places = np.stack([np.arange(length), np.zeros(length)]).astype(np.uint32)
    more = {"tolerance": 0, "column": config.kv_dim}
    more["bytes"] = 8 * length * config.kv_dim + 4 * length
    yield s.case("cache_append", "x:TK *cache:TB places", 0, lambda: {"places": places}, **more)
    yield from _choice_cases(s)


def _new_token_cases(s: Sizes, rows: str, half: str) -> Iterator[KernelCase]:
    """Yield the kernels that compute heads and the inner feed-forward layer of new tokens.

    rows: the letter for the number of tokens, see `Sizes.shape`. half: ":h" for half-precision
    weights, or "".
    """
    config, (count,) = s.config, s.shape(rows)
    where = f"{count} row{'s' if count > 1 else ''}{', half-precision weights' if half else ''}"
    # `positions` (2, rows) has each row's position and the start of its sequence in the cache.
    positions = np.stack([np.full(count, config.seq_len // 2), np.arange(count)])
    given = {"positions": positions.astype(np.uint32)}
    heads = f"cosines sines positions +q:{rows}C *cache:{config.seq_len + count}B"
    # Each case has a norm, products of its output, and a function of the products.
    # products, width: letters for the numbers of columns of the products and of the output.
    # starts: the first columns of queries, keys and values, or of gate and up, in the weights.
    more: dict[str, Any] = {"epsilon": EPSILON, "head_dim": config.head_dim, "function": SWIGLU}
    more |= {"where": where, "tolerance": NORM_AND_PRODUCTS_TOLERANCE}
    for name, tensors, products, width, starts in (
        ("heads_to_cache", heads, "P", "P", s.head_starts),
        ("feed_forward", f"+out:{rows}F", "G", "F", (0, config.ffn_dim)),
    ):
        weights = f"norm_weight:C weight_tensor:{products}C{half}"
        operands = f"x:{rows}C {weights} {tensors} norm_out:{rows}C inverse_rms:{rows}"
        more["sizes"] = f"{by(*s.shape(f'{rows}C'))} to {by(*s.shape(rows + width))}"
        more |= {"starts": starts, "bytes": prod(s.shape(f"{products}C")) * (2 if half else 4)}
        yield s.case(name, operands, f"2x{rows}{products}C", lambda: given, **more)


def _choice_cases(s: Sizes) -> Iterator[KernelCase]:
    """Yield the kernels that choose the next token from logits."""
    count = s.config.vocab_size
    more: dict[str, Any] = {"tolerance": 0, "idle": 0, "step": 0, "count": count}
    yield s.case("take_likeliest", "logits:1V *tokens:1:u *chosen:1x1:u places", **more)
    k = min(LARGEST, count)
    operands, sizes = f"logits:1V +found:1x{1 + k}x2:u", f"{k} of {count:,}"
    # Ids are found in any order, so only the sums are compared.
    yield s.case("find_largest", operands, sizes=sizes, total=("found",), k=k, **more)
    pairs = np.zeros((1, 1 + k, 2), np.uint32)
    pairs[0, 0, 0], pairs[0, 1:, 0] = k, np.arange(k)
    # `find_largest` writes positive logits as their inverted bits.
    pairs[0, 1:, 1] = ~(np.abs(s.normal(k)).view(np.uint32) | np.uint32(1 << 31))
    drawn = {"found": pairs, "draws": np.array([[[0.5, 1, 1, k]]], np.float32)}
    operands, sizes = "*found draws *tokens:1:u places", f"{k} logits"
    yield s.case("draw_largest", operands, 0, lambda: drawn, sizes=sizes, **more)


def elementwise_cases(s: Sizes) -> Iterator[KernelCase]:
    """Yield activations, cross-entropy, the sum of losses, and conversions of precision."""
    # Activations and their gradients. G: gate and up side by side.
    halves = HALVES | {"where": "in half precision"}
    of_half = halves | {"sizes": by(*s.shape("NF"))}
    for name, inner, function, forward, backward, more in (
        ("swiglu", ("inner_0:NF", "inner_1:NF"), SWIGLU, "5NF", "11NF", {}),
        ("swiglu", ("inner_0:NG:h",), SWIGLU, "5NF", "11NF", of_half),
        ("gelu", ("inner_0:NF",), GELU, "9NF", "19NF", {}),
    ):
        half, more = ":h" * (more is of_half), {"function": function} | more
        operands = " ".join(inner)
        yield s.case(name, f"{operands} +out:NF{half}", forward, record="activate", **more)
        operands += f" grad_out:NF{half} " + " ".join(f"+grad_{each}" for each in inner)
        more["record"] = "activate_backward"
        yield s.case(f"{name}_backward", operands, backward, **more)
    # Losses. params: weight of a row's gradient, label smoothing, z-loss, share of an id.
    # Gradients in half precision are multiplied by the loss scale.
    operands, width = "targets +cross_entropy:N +smoothing:N +z_loss:N params", s.vocabulary
    for logits, scale, more in (("*logits:NV", 1, {}), ("*logits:NV:h", FIRST_SCALE, halves)):
        params = np.array([scale / s.rows, 0.1, 1e-4, 1 / width], np.float32)
        given: Given = partial(dict, params=params)
        yield s.case("cross_entropy", f"{logits} {operands}", "7NV", given, tokens=width, **more)
    # The likeliest ids, sums, and conversions between single and half precision.
    yield s.case("argmax", "logits:NV *out:N:u", "NV", tolerance=0, tokens=width)
    yield s.case("sum_losses", "losses:N:a +out_sum:1", "N", sizes=f"{s.rows:,} losses")
    yield s.case("scale", "x:VC +out:VC", "VC", factor=2.0)
    yield s.case("cast_f32_to_f16", "source:VC +target:VC:h", tolerance=0)
    yield s.case("round_to_half", "source:VC +target:VC:h", tolerance=0)
    yield s.case("cast_f16_to_f32", "source:VC:h +target:VC", tolerance=0)


# Optimizers, on a tensor of the embedding table's size and on all weights

TENSORS = 110  # tensors of a model with 12 layers
# Clipping takes 1 operation per number, moments 7, the denominator 3, decay 1, the step 3.
ADAMW_OPERATIONS = 15
# Operations per number for decoding and coding two moments, and for the maximum of a block.
CODING_OPERATIONS = 20
ALL_WEIGHTS = "all weights"


def gradient_cases(s: Sizes) -> Iterator[KernelCase]:
    """Yield norms of gradients, and the statistics of a step, which follow from all norms."""
    # The gradient of the embedding table. partials: (gradients, NORM_PARTIALS), sums of squares.
    total: dict[str, Any] = {"total": ("partials",)}
    yield s.case("reduce_norm_sq", "grad:VC +partials:1S", "2VC", index=0, **total)
    # The gradients of a layer, in one operation.
    shapes = ("CC", "KC", "KC", "CC", "FC", "FC", "CF", "C", "C")
    operands = " ".join(f"grads_{k}:{letters}" for k, letters in enumerate(shapes))
    operands += f" +partials:{len(shapes)}S"
    size = sum(prod(s.shape(k)) for k in shapes)
    sizes = f"{len(shapes)} gradients of a layer"
    yield s.case("reduce_norms", operands, 2 * size, sizes=sizes, **total)
    # The statistics of a step, of which history has a row for each step.
    operands = f"partials:{TENSORS}S:a loss_sums:{LOSS_PARTS}:a *stats +history:1x8 hyper"
    operations, sizes = TENSORS * NORM_PARTIALS + 1, f"{TENSORS} tensors"
    yield s.case("finalize_grad_stats", operands, operations, sizes=sizes)


def adamw_cases(s: Sizes) -> Iterator[KernelCase]:
    """Yield AdamW with moments in float32 and in 8-bit codes, and on the rows of a batch's ids."""
    moments = "*first:VC *second:VC:a"
    yield from _updates(s, "adamw_update", "VC", moments, Moments, f"{ADAMW_OPERATIONS}VC")
    blocks = -(-s.vocabulary * s.config.dim // BLOCK)
    codes = np.resize(np.arange(1, 128, dtype=np.uint8), blocks * BLOCK)
    coded: Arrays = {"first_codes": codes, "second_codes": codes + np.uint8(128)}
    coded |= dict.fromkeys(("first_scales", "second_scales"), np.ones(blocks, np.float32))
    # The codes are not compared: a number half way between two codes may get either code.
    more: dict[str, Any] = {"given": lambda: coded, "uncompared": ("first_codes", "second_codes")}
    state = "first_codes *first_scales second_codes *second_scales"
    operations = f"{ADAMW_OPERATIONS + CODING_OPERATIONS}VC"
    yield from _updates(s, "adamw_8bit_update", "VC", state, CodedMoments, operations, **more)
    rows = np.unique(s.tokens())
    touched = len(rows) * s.config.dim
    sizes, nbytes = f"{len(rows):,} rows of {by(*s.shape('VC'))}", 28 * touched + 4 * len(rows)
    more = {"gradient": f"{len(rows)}C", "given": lambda: {"rows": rows}, "sizes": sizes}
    more |= {"operations": ADAMW_OPERATIONS * touched, "bytes": nbytes}
    case, with_copy = _updates(s, "adamw_update_rows", "VC", f"{moments} rows", RowMoments, **more)
    # Rows that are not updated have no copy, so the copies are not compared.
    yield from (case, replace(with_copy, copies={}, bytes=nbytes + 2 * touched))


def muon_cases(s: Sizes) -> Iterator[KernelCase]:
    """Yield Muon on a matrix of the feed-forward network, without and with a copy."""
    height, width = s.shape("FC")
    products = 2 * ITERATIONS * (2 * height * width**2 + width**3)
    operations = products + ADAMW_OPERATIONS * height * width
    case, with_copy = _updates(s, "muon_update", "FC", "*momentum:FC", Momentum, operations)
    # With a copy, the factors of Muon's products are in half precision.
    yield from (case, replace(with_copy, tolerance=2e-3))


def all_weights_cases(s: Sizes) -> Iterator[KernelCase]:
    """Yield two ways to update all weights of a model and their half-precision copies.

    In the first way, one kernel writes a weight and its copy. In the second way, another kernel
    reads each weight again and writes its copy: 110 more dispatches for a model of 12 layers.
    """
    config = s.updated or s.config
    weights = list(config.weights())
    operands = ""
    for k, weight in enumerate(weights):
        shape = "x".join(map(str, weight.shape))
        operands += f"*parameter_{k}:{shape} gradient_{k}:{shape} "
        operands += f"*first_{k}:{shape} *second_{k}:{shape}:a +mirror_{k}:{shape}:h "
    numbers = range(len(weights))
    more: dict[str, Any] = {
        "sizes": f"{config.layers} layers, {len(weights)} tensors, "
        f"{config.parameters / 1e6:,.1f} M parameters",
        "outputs": tuple(f"parameter_{k}" for k in numbers),
        "uncompared": tuple(f"{name}_{k}" for name in ("first", "second") for k in numbers),
        "copies": {f"mirror_{k}": f"parameter_{k}" for k in numbers},
    }

    def record(ops: Operations, t: Tensors, fused: bool = True) -> None:
        for k, weight in enumerate(weights):
            tensors = t[f"parameter_{k}"], t[f"gradient_{k}"], t["stats"], t["hyper"]
            mirror = t[f"mirror_{k}"]
            update = WeightUpdate(*tensors, weight.decays, mirror if fused else None)
            ops.update_weight(Moments(t[f"first_{k}"], t[f"second_{k}"]), update)
            if not fused:
                ops.cast_f32_to_f16(update.parameter, mirror)

    operands, operations = f"{operands}stats hyper", ADAMW_OPERATIONS * config.parameters
    more |= {"operands": operands, "operations": operations, "record": record}
    yield s.case("adamw_update_f16", where=ALL_WEIGHTS, **more)
    yield s.case("adamw_update", where=f"{ALL_WEIGHTS}, then cast", fused=False, **more)


def _updates(
    s: Sizes,
    name: str,
    shape: str,
    operands: str,
    state: Callable[..., WeightState],
    operations: Amount,
    gradient: str = "",
    **more: Any,
) -> Iterator[KernelCase]:
    """Yield the update of a weight, without and with a half-precision copy of the parameter.

    shape: of the weight. operands: the tensors of the weight's state. gradient: its shape, if it
    differs from the weight's. more: see `Sizes.case`.
    """
    names = [each.lstrip("*").partition(":")[0] for each in operands.split()]

    def record(ops: Operations, t: Tensors) -> None:
        tensors = t["parameter"], t["gradient"], t["stats"], t["hyper"]
        update = WeightUpdate(*tensors, decays=True, half_copy=t.get("mirror"))
        # Muon also records states of AdamW.
        MUON.record(ops, [(state(**{key: t[key] for key in names}), update)])

    operands = f"*parameter:{shape} gradient:{gradient or shape} {operands} stats hyper"
    more |= {"operations": operations, "record": record}
    case = s.case(name, operands, **more)
    yield case
    with_copy = s.case(f"{name}_f16", f"{operands} +mirror:{shape}:h", **more)
    yield replace(with_copy, outputs=case.outputs, copies={"mirror": "parameter"})


UPDATES = (gradient_cases, adamw_cases, muon_cases, all_weights_cases)
FAMILIES = (
    embedding_cases,
    norm_cases,
    linear_cases,
    attention_cases,
    generating_cases,
    elementwise_cases,
    *UPDATES,
)


def measure_kernels(engines: Engines, options: BenchOptions, progress: Progress) -> Results:
    """Yield all engines' results for kernels of language models, then for kernels of tokenizers."""
    bench = CaseBench(KERNELS, options, progress, cold=True)
    for engine in engines:
        sizes, note = choose_sizes(engine, quick=options.quick)
        cases = [replace(case, note=note) for family in FAMILIES for case in family(sizes)]
        torch = Torch.beside(engine) if options.peers else None
        yield from bench.measure_cases(cases, engine, torch if torch and torch.is_cuda else None)
    yield from measure_tokenizer_kernels(engines, options, progress)


def choose_sizes(engine: Engine, *, quick: bool) -> tuple[Sizes, str]:
    """Return the sizes for an engine, and a line that says how they differ from GPT-2 small's."""
    narrow = preset("tiny", 512, layers=12, dim=64, ffn_dim=192)
    if engine.backend.is_software:
        config = preset("tiny", 512, seq_len=32 if quick else 128)
        return Sizes(config, 1 if quick else 4, narrow), "sizes for a CPU, within its caches"
    if quick:
        return Sizes(preset("gpt2", 8192), 1, narrow), "fewer rows and ids"
    config, sequences = preset("gpt2", 50_257), 8
    rows = sequences * config.seq_len
    bindable = logits_block_rows(open_operations(engine.backend.device), config, rows, LOGITS_BYTES)
    if bindable < rows:
        fewer = preset("gpt2", 50_257, seq_len=max(64, bindable // sequences // 64 * 64))
        return Sizes(fewer, sequences), "fewer rows: the logits of all are more than a binding"
    return Sizes(config, sequences), ""
